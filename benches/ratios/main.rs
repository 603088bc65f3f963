//! Plimsoll against its floor: the same load on the provider alone, on a bare hyper reverse proxy,
//! and on Plimsoll, alternating, in processes of their own. Figures are ratios within one run.
//!
//! `make bench` runs it; `cargo bench --bench ratios -- --quick` gives rough figures in a minute,
//! `--stages`, `--layers`, `--drafts`, `--lanes`, `--compaction`, `--instructions` and `--fleet` one table alone (the last
//! three only so; `--sessions=N` with the last).
//! The same program plays every part: `provider` and `floor` are roles it starts itself in.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its figures, and stops where its own parts fail"
)]

mod compaction;
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
/// Requests of a conversation after its first.
const TURNS: usize = 20;

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
        () if asked("--small-parts") => {
            let provider = Part::start("provider", &[]);
            runtime.block_on(beside_small_parts(&size, &provider.address));
        }
        () => {
            stages::print();
            start_and_idle(size.rounds);
            runtime.block_on(layers::print(&size));
            runtime.block_on(drafts::print(&size));
            runtime.block_on(lanes::print());
            runtime.block_on(compare(&size));
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

async fn compare(size: &Size) {
    let provider = Part::start("provider", &[]);
    let floor = Part::start("floor", &[&provider.address]);
    let plimsoll = Plimsoll::start(&provider.address);
    let targets = [
        ("direct", provider.address.clone(), None),
        ("floor", floor.address.clone(), Some(floor.id())),
        ("plimsoll", plimsoll.address.clone(), Some(plimsoll.id())),
    ];
    let mut rows: Vec<Row> = targets.iter().map(|(name, ..)| Row::new(name)).collect();
    for round in 0..=size.rounds {
        for (row, (_, address, id)) in rows.iter_mut().zip(&targets) {
            let sample = Sample::take(size, address, *id).await;
            if round > 0 {
                row.samples.push(sample); // the first round warms up
            }
        }
    }
    print_rows(&rows);
    beside_small_parts(size, &provider.address).await;
    held_streams(size, &provider.address).await;
}

/// How late events are of streams beside which others send bodies of 100,000 messages each, one after the other:
/// of streams that go direct, and of streams that go the way of those bodies.
async fn beside_small_parts(size: &Size, provider: &str) {
    let plimsoll = Plimsoll::start(provider);
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
    for address in [provider, &plimsoll.address] {
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

/// What one target did in one round.
struct Sample {
    request_cpu: f64,
    request: Latencies,
    /// Of a request that continues a session.
    next_cpu: f64,
    event_cpu: f64,
    event: Latencies,
}

impl Sample {
    async fn take(size: &Size, address: &str, id: Option<u32>) -> Self {
        let cpu = || id.map_or(0.0, process::cpu_seconds);
        let load = Load::new(address);
        let before = cpu();
        let request = load.small_requests(size.requests, 8).await;
        let request_cpu = (cpu() - before) / size.requests as f64;

        let conversations = load.begin_conversations(size.requests / TURNS).await;
        let before = cpu();
        let requests = conversations.continue_all(TURNS, 8).await;
        let next_cpu = (cpu() - before) / requests as f64;

        let before = cpu();
        let events = load.flat_out_streams(size.streams, size.events, 8).await;
        let event_cpu = (cpu() - before) / events as f64;

        let event = load.paced_streams(8, size.events / 2, Duration::from_millis(1)).await;
        Self { request_cpu, request, next_cpu, event_cpu, event }
    }
}

struct Row {
    name: String,
    samples: Vec<Sample>,
}

impl Row {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), samples: Vec::new() }
    }

    fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(&mut self.samples.iter().map(figure).collect::<Vec<_>>())
    }
}

fn print_rows(rows: &[Row]) {
    println!(
        "{:<10}{:>14}{:>13}{:>13}{:>14}{:>13}{:>13}",
        "", "µs CPU/request", "p50 µs", "p99 µs", "µs CPU/event", "p50 µs", "p99 µs"
    );
    for row in rows {
        println!(
            "{:<10}{:>14.1}{:>13.0}{:>13.0}{:>14.2}{:>13.0}{:>13.0}",
            row.name,
            row.median(|s| s.request_cpu) * 1e6,
            row.median(|s| s.request.p50) * 1e6,
            row.median(|s| s.request.p99) * 1e6,
            row.median(|s| s.event_cpu) * 1e6,
            row.median(|s| s.event.p50) * 1e6,
            row.median(|s| s.event.p99) * 1e6,
        );
    }
    let [_, floor, ours] = rows else { return };
    let ratio = |figure: fn(&Sample) -> f64| ours.median(figure) / floor.median(figure);
    let added = |figure: fn(&Sample) -> f64| (ours.median(figure) - floor.median(figure)) * 1e6;
    println!(
        "\nsmall request, CPU against the floor   {:>6.2}×   (bar: 1.35×)",
        ratio(|s| s.request_cpu)
    );
    println!(
        "the next of a session, CPU             {:>6.2}×   ({:.1} µs, floor {:.1})",
        ratio(|s| s.next_cpu),
        ours.median(|s| s.next_cpu) * 1e6,
        floor.median(|s| s.next_cpu) * 1e6
    );
    println!(
        "streamed event, CPU against the floor  {:>6.2}×   (bar: 1.5×)",
        ratio(|s| s.event_cpu)
    );
    println!(
        "requests per CPU second                {:>6.0}    (floor {:.0})",
        1.0 / ours.median(|s| s.request_cpu),
        1.0 / floor.median(|s| s.request_cpu)
    );
    println!(
        "CPU per million events                 {:>6.1} s  (floor {:.1})",
        ours.median(|s| s.event_cpu) * 1e6,
        floor.median(|s| s.event_cpu) * 1e6
    );
    println!(
        "request latency added, p50 / p99       {:>6.0} / {:.0} µs",
        added(|s| s.request.p50),
        added(|s| s.request.p99)
    );
    println!(
        "event latency added, p50 / p99         {:>6.0} / {:.0} µs   (bar: +50 at p99)\n",
        added(|s| s.event.p50),
        added(|s| s.event.p99)
    );
}

/// What a stream that is open weighs, in fresh processes.
async fn held_streams(size: &Size, provider: &str) {
    let floor = Part::start("floor", &[provider]);
    let plimsoll = Plimsoll::start(provider);
    println!("{:<10}{:>16}{:>16}{:>16}", "", "RSS idle KiB", "1 stream", "KiB a stream");
    let mut each = Vec::new();
    for (name, address, id) in
        [("floor", &floor.address, floor.id()), ("plimsoll", &plimsoll.address, plimsoll.id())]
    {
        let load = Load::new(address);
        let idle = process::rss_kib(id);
        let one = load.hold_streams(1, || process::rss_kib(id)).await;
        let many = load.hold_streams(size.held, || process::rss_kib(id)).await;
        let per_stream = (many - one) / (size.held - 1) as f64;
        println!("{name:<10}{idle:>16.0}{one:>16.0}{per_stream:>16.1}");
        each.push(per_stream);
    }
    println!(
        "RSS a stream above the floor           {:>6.1} KiB (bar: 40), at {} streams",
        each[1] - each[0],
        size.held
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
