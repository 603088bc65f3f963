//! Plimsoll against its floor: the same load on the provider alone, on a bare hyper reverse proxy, on other
//! proxies that are installed, and on Plimsoll, alternating, in processes of their own. Figures are ratios within one run.
//!
//! `make bench` runs it; `cargo bench --bench ratios -- --quick` gives rough figures in a minute,
//! `--stages`, `--layers`, `--compare`, `--drafts`, `--lanes`, `--compaction`, `--instructions` and `--fleet` one table alone (the last
//! three only so; `--sessions=N` with the last).
//! The same program plays every part: `provider` and `floor` are roles it starts itself in.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its figures, and stops where its own parts fail"
)]

mod compaction;
mod compare;
mod drafts;
mod fleet;
mod floor;
mod instructions;
mod lanes;
mod layers;
mod least;
mod load;
mod process;
mod provider;
mod stages;

use std::time::Duration;

use mimalloc::MiMalloc;

use load::{Latencies, Load};
use process::{Part, Plimsoll};

/// As in the program itself, so that a layer or the floor is not cheaper or dearer by its allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How much load makes a figure.
struct Size {
    rounds: usize,
    requests: usize,
    streams: usize,
    events: usize,
    held: usize,
}

const FULL: Size = Size { rounds: 7, requests: 20_000, streams: 64, events: 2_000, held: 600 };
const QUICK: Size = Size { rounds: 3, requests: 4_000, streams: 16, events: 1_000, held: 300 };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("provider") => return provider::serve(),
        Some("slow-summariser") => return compaction::serve(),
        Some("floor") => return floor::serve(&args[1]),
        Some("lanes") => return lanes::serve(&args[1]),
        Some("server") => return layers::serve(&args[1], &args[2], &args[3]),
        Some("turns") => return stages::turns(args[1].parse().unwrap()),
        Some("least") => return least::serve(&args[1], &args[2], &args[3]),
        Some("load") => return loaded(&args[1], args[2].parse().unwrap(), args.get(3)),
        _ => {}
    }
    let asked = |flag: &str| args.iter().any(|arg| arg == flag);
    let size = if asked("--quick") { QUICK } else { FULL };
    println!("plimsoll {} · {}", env!("CARGO_PKG_VERSION"), process::machine());
    if !asked("--compaction") {
        println!("all figures are medians of {} interleaved rounds\n", size.rounds);
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match () {
        () if asked("--stages") => stages::print(),
        () if asked("--compaction") => runtime.block_on(compaction::print()),
        () if asked("--drafts") => runtime.block_on(drafts::print(&size)),
        () if asked("--fleet") => {
            let sessions = args.iter().find_map(|arg| arg.strip_prefix("--sessions="));
            let sessions = sessions.map_or(100_000, |count| count.parse().unwrap());
            runtime.block_on(fleet::print(&size, sessions));
        }
        () if asked("--lanes") => runtime.block_on(lanes::print()),
        () if asked("--instructions") => {
            let holds = runtime.block_on(instructions::print());
            if asked("--check") && !holds {
                std::process::exit(1);
            }
        }
        () if asked("--layers") => runtime.block_on(layers::print(&size)),
        () if asked("--small-parts") => runtime.block_on(beside_small_parts(&size)),
        () if asked("--compare") => runtime.block_on(compare::print(&size)),
        () => {
            stages::print();
            start_and_idle(size.rounds);
            runtime.block_on(layers::print(&size));
            runtime.block_on(drafts::print(&size));
            runtime.block_on(lanes::print());
            runtime.block_on(beside_small_parts(&size));
            runtime.block_on(compare::print(&size));
        }
    }
}

/// Load for a process that is looked at with a profiler: small requests, `load 127.0.0.1:8787 100000`, or
/// streams of so many events, `load 127.0.0.1:8787 64 2000`.
fn loaded(address: &str, count: usize, events: Option<&String>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let load = Load::new(address);
    if let Some(events) = events {
        let events = events.parse().unwrap();
        let seen = runtime.block_on(load.flat_out_streams(count, events, 8));
        return println!("{seen} events");
    }
    let Latencies { p50, p99 } = runtime.block_on(load.small_requests(count, 8));
    println!("p50 {:.0} µs, p99 {:.0} µs", p50 * 1e6, p99 * 1e6);
}

/// From the start of the process to its first answer, and what it weighs before any traffic.
fn start_and_idle(rounds: usize) {
    let provider = Part::start("provider", &[]);
    let mut firsts = Vec::new();
    let mut idle = Vec::new();
    for _ in 0..rounds {
        let plimsoll = Plimsoll::start(&provider.address);
        firsts.push(plimsoll.first_answer);
        idle.push(plimsoll.rss_kib());
    }
    println!("start to first served request  {:>8.1} ms   (bar: 100)", median(&mut firsts) * 1e3);
    println!("resident after one request     {:>8.1} MiB  (bar: 40)\n", median(&mut idle) / 1024.0);
}

/// How late events are of streams beside which others send bodies of 100,000 messages each, one after the other:
/// of streams that go direct, and of streams that go the way of those bodies.
async fn beside_small_parts(size: &Size) {
    let provider = Part::start("provider", &[]);
    let plimsoll = Plimsoll::start(&provider.address);
    let messages = vec![r#"{"role":"user","content":"a"}"#; 100_000].join(",");
    let body =
        format!(r#"{{"model":"claude-sonnet-4-5","max_tokens":64,"messages":[{messages}]}}"#);
    let flood = Load::new(&plimsoll.address);
    let flooding = tokio::spawn(async move {
        loop {
            flood.say("flood", body.clone()).await;
        }
    });
    let mut late = Vec::new();
    for address in [&provider.address, &plimsoll.address] {
        let load = Load::new(address);
        let events = load.paced_streams(8, size.events / 2, Duration::from_millis(1)).await;
        late.push(events.p99);
    }
    flooding.abort();
    println!(
        "event latency added beside bodies of 100,000 parts, p99  {:>6.1} ms   (bar: 20; direct {:.1})\n",
        (late[1] - late[0]) * 1e3,
        late[0] * 1e3
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
