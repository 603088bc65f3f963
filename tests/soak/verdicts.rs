//! The measurements, and a verdict on each line of the report. A short run asserts counts and bytes; a long one asserts
//! times, too.

use std::time::Duration;

use crate::Plan;
use crate::load::{Answers, Missing};
use crate::process::{Look, Running};

/// The largest p99 of a later minute, as a multiple of the median minute's.
const SLOWER: f64 = 3.0;
/// Most milliseconds for a list of sessions.
const LIST_MS: f64 = 100.0;
/// Most threads: workers, the store's, and those for long work.
const THREADS: u64 = 40;

/// The resources of the process at one moment.
pub struct Sample {
    at: Duration,
    disk: u64,
    memory: u64,
    threads: u64,
    descriptors: u64,
}

impl Sample {
    pub fn of(running: &Running, at: Duration) -> Self {
        Self {
            at,
            disk: running.bytes_on_disk(),
            memory: running.memory(),
            threads: running.threads(),
            descriptors: running.descriptors(),
        }
    }
}

pub struct Measured {
    pub samples: Vec<Sample>,
    pub answers: Answers,
    pub looks: Vec<Look>,
    pub missing: Missing,
    lasts: Duration,
    minute: Duration,
}

/// A line of the report.
struct Line {
    what: &'static str,
    measured: String,
    is_good: bool,
    /// Whether the short run asserts it.
    is_count: bool,
}

impl Measured {
    pub fn new(plan: &Plan) -> Self {
        Self {
            samples: Vec::new(),
            answers: Answers::default(),
            looks: Vec::new(),
            missing: Missing::default(),
            lasts: plan.lasts,
            minute: plan.minute,
        }
    }

    /// Prints a line with a verdict for each measurement, and fails if one is bad.
    pub fn judge(&self, plan: &Plan) {
        let lines = [
            self.disk(plan),
            self.forgotten(),
            self.memory(),
            self.threads(),
            self.descriptors(),
            self.waits(),
            self.lists(),
            self.errors(),
            self.kept(plan),
        ];
        println!("{} s, {} exchanges a second asked for", self.lasts.as_secs(), plan.rate);
        for line in &lines {
            let verdict = match (line.is_good, line.is_count || plan.is_long) {
                (true, _) => "good",
                (false, true) => "BAD",
                (false, false) => "not judged",
            };
            println!("| {} | {} | {verdict} |", line.what, line.measured);
        }
        let judged = lines.iter().filter(|line| line.is_count || plan.is_long);
        let bad: Vec<_> = judged.filter(|line| !line.is_good).map(|line| line.what).collect();
        assert!(bad.is_empty(), "not as it should be: {bad:?}");
    }

    fn disk(&self, plan: &Plan) -> Line {
        let most = self.samples.iter().map(|it| it.disk).max().unwrap_or(u64::MAX);
        let allowed = plan.bound / 10 * 11 + (64 << 20);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Line {
            what: "bytes on disk, log included",
            measured: format!("most {:.0} MiB, {:.0} allowed", mib(most), mib(allowed)),
            is_good: most <= allowed,
            is_count: true,
        }
    }

    /// If no session was deleted, the limit was never reached.
    fn forgotten(&self) -> Line {
        let sessions = self.looks.iter().map(|look| look.forgotten).max().unwrap_or(0);
        Line {
            what: "sessions forgotten for the bound",
            measured: sessions.to_string(),
            is_good: sessions > 0,
            is_count: true,
        }
    }

    /// The slope of a line through the second half of the samples.
    fn memory(&self) -> Line {
        let half: Vec<&Sample> = self.samples.iter().filter(|it| it.at * 2 >= self.lasts).collect();
        let count = half.len().max(1) as f64;
        let seconds = |it: &&Sample| it.at.as_secs_f64();
        let mean_at = half.iter().map(seconds).sum::<f64>() / count;
        let mean = half.iter().map(|it| it.memory as f64).sum::<f64>() / count;
        let together: f64 = half.iter().map(|it| (seconds(it) - mean_at) * it.memory as f64).sum();
        let spread: f64 = half.iter().map(|it| (seconds(it) - mean_at).powi(2)).sum();
        let slope = together / spread.max(f64::MIN_POSITIVE);
        let percent = slope * 600.0 / mean.max(1.0) * 100.0;
        Line {
            what: "memory, second half",
            measured: format!("{:.0} MiB, {percent:+.2} % per 10 minutes", mean / 1024.0),
            is_good: percent <= 1.0,
            is_count: false,
        }
    }

    fn threads(&self) -> Line {
        let most = self.samples.iter().map(|it| it.threads).max().unwrap_or(u64::MAX);
        Line {
            what: "threads",
            measured: format!("most {most}, {THREADS} allowed"),
            is_good: most <= THREADS,
            is_count: true,
        }
    }

    /// At most as many in the second half as in the first, with a few more that come and go.
    fn descriptors(&self) -> Line {
        let most = |second: bool| {
            let half = self.samples.iter().filter(|it| (it.at * 2 >= self.lasts) == second);
            half.map(|it| it.descriptors).max().unwrap_or(0)
        };
        let (first, second) = (most(false), most(true));
        Line {
            what: "descriptors",
            measured: format!("most {first} in the first half, {second} in the second"),
            is_good: second <= first + first / 4 + 16,
            is_count: true,
        }
    }

    /// The 99th percentile of each minute.
    fn waits(&self) -> Line {
        let mut minutes: Vec<Vec<f64>> = Vec::new();
        for (at, took) in &self.answers.took {
            let minute = (at.as_secs_f64() / self.minute.as_secs_f64()) as usize;
            minutes.resize_with(minutes.len().max(minute + 1), Vec::new);
            minutes[minute].push(took.as_secs_f64() * 1000.0);
        }
        minutes.retain(|minute| minute.len() > 20);
        let p99 = |minute: &mut Vec<f64>| {
            minute.sort_by(f64::total_cmp);
            minute[(minute.len() - 1) * 99 / 100]
        };
        let p99: Vec<f64> = minutes.iter_mut().map(p99).collect();
        let mut sorted = p99.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::MAX);
        let most = sorted.last().copied().unwrap_or(f64::MAX);
        let by_minute: Vec<String> = p99.iter().map(|it| format!("{it:.0}")).collect();
        println!("p99 by minute, ms: {}", by_minute.join(" "));
        Line {
            what: "p99 of an exchange by minute",
            measured: format!("median {median:.0} ms, most {most:.0} ms"),
            is_good: most <= median * SLOWER,
            is_count: false,
        }
    }

    fn lists(&self) -> Line {
        let most = |of: fn(&Look) -> Duration| {
            let most = self.looks.iter().map(of).max().unwrap_or(Duration::MAX);
            most.as_secs_f64() * 1000.0
        };
        let list = most(|look| look.list);
        let (savings, export) = (most(|look| look.savings), most(|look| look.export));
        let health = most(|look| look.health);
        let in_store = self.looks.iter().map(|look| look.in_store).fold(0.0, f64::max) * 1000.0;
        let shown = self.looks.iter().map(|look| look.sessions).max().unwrap_or(0);
        Line {
            what: "list of sessions",
            measured: format!(
                "most {list:.0} ms for {shown}, of that in the store under {in_store:.0} ms; /healthz \
                 {health:.0} ms, savings {savings:.0} ms, export {export:.0} ms"
            ),
            is_good: list <= LIST_MS,
            is_count: false,
        }
    }

    fn errors(&self) -> Line {
        let Answers { took, broken, left, errors } = &self.answers;
        for error in errors.iter().take(10) {
            println!("error: {error}");
        }
        Line {
            what: "exchanges",
            measured: format!(
                "{} whole, {broken} broken off, {left} left by the client, {} errors",
                took.len(),
                errors.len()
            ),
            is_good: errors.is_empty() && !took.is_empty() && *broken > 0 && *left > 0,
            is_count: true,
        }
    }

    fn kept(&self, plan: &Plan) -> Line {
        let Missing { acknowledged, kept, forgotten, of_restarted_sessions, missing } =
            &self.missing;
        for one in missing.iter().take(10) {
            println!("missing: {one}");
        }
        Line {
            what: "turns after kill -9",
            measured: format!(
                "{acknowledged} acknowledged: {kept} kept, {} forgotten for the bound, {} missing",
                forgotten + of_restarted_sessions,
                missing.len()
            ),
            is_good: missing.is_empty()
                && *kept > 0
                && (*of_restarted_sessions == 0 || !plan.is_long),
            is_count: true,
        }
    }
}
