//! Plimsoll beside the floor, and beside other proxies that are installed: the same load on each, in turns.
//!
//! [`PEERS`] says how each is started. A peer that is not on the PATH is left out. The table has a line for each
//! figure, and ends with a verdict for each bar.

use std::any::Any;
use std::time::Duration;

use crate::load::{Latencies, Load};
use crate::process::{self, Part, Peer, Plimsoll};
use crate::{Size, median, stages};

/// Other proxies that pass everything on. In their configuration, `LISTEN` and `UPSTREAM` are addresses, `FOLDER` an
/// empty folder.
const PEERS: [Peer; 2] = [
    Peer {
        name: "nginx",
        args: &["-c", "FOLDER/peer.conf", "-e", "stderr"],
        configuration: "daemon off; master_process off; pid FOLDER/pid;
            events { worker_connections 4096; }
            http {
                access_log off; client_max_body_size 64m; client_body_buffer_size 64m;
                client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
                uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
                upstream provider { server UPSTREAM; keepalive 128; keepalive_requests 1000000; }
                server {
                    listen LISTEN; keepalive_requests 1000000;
                    location / {
                        proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection '';
                        proxy_buffering off;
                    }
                }
            }",
    },
    Peer {
        name: "haproxy",
        args: &["-db", "-f", "FOLDER/peer.conf"],
        configuration: "global
            maxconn 4096
        defaults
            mode http
            http-reuse always
            option http-no-delay
            timeout connect 5s
            timeout client 60s
            timeout server 60s
        listen proxy
            bind LISTEN
            server provider UPSTREAM
",
    },
];

/// The floor's column; the last two are Plimsoll's.
const FLOOR: usize = 1;
const OURS: usize = 2;
/// Requests of a conversation after its first.
const TURNS: usize = 20;
/// Bytes of a long conversation.
const LONG: usize = 1 << 20;

/// One proxy, or none.
struct Target {
    name: &'static str,
    address: String,
    /// The process that is measured.
    id: Option<u32>,
    /// Ends with this.
    _process: Option<Box<dyn Any>>,
}

impl Target {
    fn all(provider: &str) -> Vec<Self> {
        let direct =
            Self { name: "direct", address: provider.to_owned(), id: None, _process: None };
        let part = Part::start("floor", &[provider]);
        let floor = Self::new("floor", part.address.clone(), part.id(), part);
        let peers = PEERS.iter().filter_map(|peer| {
            let part = peer.start(provider)?;
            Some(Self::new(peer.name, part.address.clone(), part.id(), part))
        });
        let ours = [("observe", "mode = \"observe\"\n"), ("active", "mode = \"active\"\n")];
        let ours = ours.map(|(name, configuration)| {
            let program = Plimsoll::with(provider, configuration);
            Self::new(name, program.address.clone(), program.id(), program)
        });
        [direct, floor].into_iter().chain(peers).chain(ours).collect()
    }

    fn new(name: &'static str, address: String, id: u32, process: impl Any) -> Self {
        Self { name, address, id: Some(id), _process: Some(Box::new(process)) }
    }

    /// CPU that it has used, µs.
    fn cpu(&self) -> f64 {
        self.id.map_or(f64::NAN, process::cpu_seconds) * 1e6
    }
}

/// What one target did in one round: CPU and times in µs.
struct Sample {
    wide_cpu: f64,
    wide: Latencies,
    single_cpu: f64,
    single: Latencies,
    /// Of a request that continues a session.
    next_cpu: f64,
    event_cpu: f64,
    event: Latencies,
    /// Of a long conversation: its first request, and the next ones.
    long_first_cpu: f64,
    long_next_cpu: f64,
}

impl Sample {
    async fn take(size: &Size, target: &Target, round: usize) -> Self {
        let load = Load::new(&target.address);
        let before = target.cpu();
        let wide = load.small_requests(size.requests, 64).await;
        let wide_cpu = (target.cpu() - before) / size.requests as f64;

        let before = target.cpu();
        let single = load.small_requests(size.requests / 8, 1).await;
        let single_cpu = (target.cpu() - before) / (size.requests / 8) as f64;

        let conversations = load.begin_conversations(size.requests / TURNS).await;
        let before = target.cpu();
        let requests = conversations.continue_all(TURNS, 8).await;
        let next_cpu = (target.cpu() - before) / requests as f64;

        let before = target.cpu();
        let events = load.flat_out_streams(size.streams, size.events, 8).await;
        let event_cpu = (target.cpu() - before) / events as f64;
        let event = load.paced_streams(8, size.events / 2, Duration::from_millis(1)).await;

        let steps = stages::steps(LONG, &format!("{} {round}", target.name));
        let known = steps.len() - TURNS;
        let before = target.cpu();
        load.say("", stages::body(&steps[..known])).await;
        let between = target.cpu();
        for end in known..steps.len() {
            load.say("", stages::body(&steps[..=end])).await;
        }
        Self {
            wide_cpu,
            wide,
            single_cpu,
            single,
            next_cpu,
            event_cpu,
            event,
            long_first_cpu: between - before,
            long_next_cpu: (target.cpu() - between) / TURNS as f64,
        }
    }
}

/// How much of a figure is wanted at most.
enum Bar {
    /// Times the floor's.
    Times(f64),
    /// More than the floor's, in the figure's unit.
    Plus(f64),
    /// In all, in the figure's unit.
    Most(f64),
}

impl Bar {
    fn verdict(&self, ours: f64, floor: f64) -> String {
        let (is_met, said) = match self {
            Self::Times(most) => {
                (ours <= most * floor, format!("{:.2}× the floor's, bar {most}×", ours / floor))
            }
            Self::Plus(most) => (
                ours <= floor + most,
                format!("{:.1} more than the floor's, bar {most}", ours - floor),
            ),
            Self::Most(most) => (ours <= *most, format!("{ours:.1}, bar {most}")),
        };
        format!("{said}: {}", if is_met { "met" } else { "missed" })
    }
}

struct Figure {
    name: &'static str,
    of: fn(&Sample) -> f64,
    bar: Option<Bar>,
}

impl Figure {
    const ALL: [Self; 12] = [
        Self::new("request, 64 at once, µs CPU", |sample| sample.wide_cpu, Some(Bar::Times(2.5))),
        Self::new("  time at p50, ms", |sample| sample.wide.p50 * 1e3, None),
        Self::new("  at p99, ms", |sample| sample.wide.p99 * 1e3, None),
        Self::new(
            "request, one at a time, µs CPU",
            |sample| sample.single_cpu,
            Some(Bar::Times(3.5)),
        ),
        Self::new(
            "request, one at a time, p50 µs",
            |sample| sample.single.p50 * 1e6,
            Some(Bar::Plus(150.0)),
        ),
        Self::new("  p99, µs", |sample| sample.single.p99 * 1e6, None),
        Self::new("the next of a session, µs CPU", |sample| sample.next_cpu, None),
        Self::new("streamed event, µs CPU", |sample| sample.event_cpu, Some(Bar::Times(1.15))),
        Self::new("  how late, p50 µs", |sample| sample.event.p50 * 1e6, None),
        Self::new("  p99 µs", |sample| sample.event.p99 * 1e6, None),
        Self::new(
            "1 MB seen first, ms CPU",
            |sample| sample.long_first_cpu / 1e3,
            Some(Bar::Most(10.0)),
        ),
        Self::new(
            "1 MB that grows, ms CPU",
            |sample| sample.long_next_cpu / 1e3,
            Some(Bar::Times(2.0)),
        ),
    ];

    const fn new(name: &'static str, of: fn(&Sample) -> f64, bar: Option<Bar>) -> Self {
        Self { name, of, bar }
    }
}

/// Measures all targets in turns and prints the figures, then the verdicts.
pub(crate) async fn print(size: &Size) {
    let provider = Part::start("provider", &[]);
    let targets = Target::all(&provider.address);
    let mut samples: Vec<Vec<Sample>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..=size.rounds {
        for (samples, target) in samples.iter_mut().zip(&targets) {
            let sample = Sample::take(size, target, round).await;
            // The first round warms up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let line = |name: &str, values: &[f64]| {
        let values: String = values.iter().map(|value| format!("{value:>10.1}")).collect();
        println!("{name:<32}{}", values.replace("NaN", "  -"));
    };
    let names: String = targets.iter().map(|target| format!("{:>10}", target.name)).collect();
    println!("{:<32}{names}", "");
    let mut verdicts = Vec::new();
    let mut judge = |name: &str, bar: &Bar, values: &[f64]| {
        for (target, ours) in targets.iter().zip(values).skip(targets.len() - OURS) {
            let verdict = bar.verdict(*ours, values[FLOOR]);
            verdicts.push(format!("{:<8} {name}: {verdict}", target.name));
        }
    };
    for figure in &Figure::ALL {
        let values: Vec<f64> = samples
            .iter()
            .map(|samples| median(&mut samples.iter().map(figure.of).collect::<Vec<_>>()))
            .collect();
        line(figure.name, &values);
        if let Some(bar) = &figure.bar {
            judge(figure.name, bar, &values);
        }
    }
    let held = held_streams(size, &provider.address).await;
    let name = format!("a stream, {} open, KiB", size.held);
    line(&name, &held);
    judge(&name, &Bar::Plus(8.0), &held);
    println!("\n{}\n", verdicts.join("\n"));
}

/// What a stream that is open weighs in fresh processes, KiB.
async fn held_streams(size: &Size, provider: &str) -> Vec<f64> {
    let mut each = Vec::new();
    for target in Target::all(provider) {
        let Some(id) = target.id else {
            each.push(f64::NAN);
            continue;
        };
        let load = Load::new(&target.address);
        let one = load.hold_streams(1, || process::rss_kib(id)).await;
        let many = load.hold_streams(size.held, || process::rss_kib(id)).await;
        each.push((many - one) / (size.held - 1) as f64);
    }
    each
}
