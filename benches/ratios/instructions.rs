//! How many instructions a small request, an event of a stream and a large turn take, of Plimsoll and of the bare proxy,
//! as callgrind counts them.
//!
//! Beside a count stand the one that was kept last, and its bar. Unlike time, the count does not depend on how busy the
//! machine is, so figures of different days can be compared. It needs valgrind. A program runs about 50 times slower
//! under it, so what waits for a time of its own weighs less. The counts by function stay in [`PROFILES`], for
//! `callgrind_annotate`; names need `CARGO_PROFILE_BENCH_STRIP=none`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::layers::UNREAD;
use super::load::{Load, MESSAGES};
use super::process::{self, Part};

/// Requests that are not counted, so that connections and caches exist.
const WARM_UP: usize = 64;
/// Requests that are counted.
const COUNTED: usize = 320;
/// Conversations of the requests that go on.
const CONVERSATIONS: usize = 16;
/// Connections.
const WIDTH: usize = 4;
/// The time between two events of a stream: each is read by itself.
const PACE: Duration = Duration::from_millis(2);
/// Valgrind, as what counts.
const VALGRIND: [&str; 3] = ["valgrind", "--quiet", "--tool=callgrind"];

/// The counts that were last kept, thousands: a name, `=` and a count a line.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// Where the counts by function are put, a file for each kind of request.
const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/instructions");
/// How much more than was kept is too much, a share: two runs of the same program differ by less.
const MORE: f64 = 0.03;
/// The same for an event: how often a stream is waited for depends on how busy the machine is.
const MORE_OF_EVENT: f64 = 0.15;

/// Counts and prints each kind of request. Whether none takes more than was kept.
pub(crate) async fn print() -> bool {
    let kept = std::fs::read_to_string(KEPT).unwrap_or_default();
    let kept = |name: &str| -> Option<f64> {
        let count = kept.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
        count.parse().ok()
    };
    println!("instructions                           thousands     kept      bar");
    let mut holds = true;
    for Counted { name, count, bar } in count_all().await {
        let kept = kept(&name);
        let more = if name.ends_with("event") { MORE_OF_EVENT } else { MORE };
        let is_held = kept.is_some_and(|kept| count <= kept * (1.0 + more));
        let verdict = if is_held { "" } else { "  more than was kept" };
        holds &= is_held;
        let shown =
            |figure: Option<f64>| figure.map_or("-".into(), |figure| format!("{figure:.0}"));
        println!("{name:<40}{count:>8.1}{:>9}{:>9}{verdict}", shown(kept), shown(bar));
    }
    println!();
    holds
}

/// Instructions of one kind of request, and its bar, thousands.
struct Counted {
    name: String,
    count: f64,
    bar: Option<f64>,
}

async fn count_all() -> Vec<Counted> {
    let data = tempfile::tempdir().unwrap();
    let provider = Part::start("provider", &[]);
    std::fs::create_dir_all(PROFILES).unwrap();
    let floor = Profiled::start("floor", &[&provider.address], data.path());
    let mut all = Vec::new();
    let mut add = |name: &str, count: f64, bar| {
        all.push(Counted { name: name.to_owned(), count: count / 1e3, bar });
    };
    add("bare proxy", floor.small_requests(MESSAGES, "bare").await, None);
    add("bare proxy, an event", floor.streamed_event("bare").await, None);
    drop(floor);
    // The last two are bars of the first and the next request of a session.
    for (kind, store, first, next) in
        [("forgets", "no store", Some(110.0), None), ("whole", "SQLite", Some(160.0), Some(200.0))]
    {
        let own = data.path().join(kind);
        std::fs::create_dir(&own).unwrap();
        let args = [kind, provider.address.as_str(), own.to_str().unwrap()];
        let server = Profiled::start("server", &args, data.path());
        if kind == "forgets" {
            add("not read", server.small_requests(UNREAD, "unread").await, Some(60.0));
            add("an event", server.streamed_event(kind).await, None);
        }
        let count = server.small_requests(MESSAGES, kind).await;
        add(&format!("the first of a session, {store}"), count, first);
        add(&format!("the next of a session, {store}"), server.next_requests(kind).await, next);
    }
    add("a turn of 1 MB with 100 cuts", large_turn(data.path()), None);
    all
}

/// Instructions of reading, estimating and planning a large turn of which 2 % is new.
fn large_turn(folder: &Path) -> f64 {
    // The difference, so that what they begin with is not counted.
    let [few, many] = [1, 6].map(|turns: usize| {
        let dump = folder.join(format!("turns-{turns}.counts"));
        let [valgrind, options @ ..] = VALGRIND;
        let mut command = Command::new(valgrind);
        command.args(options).arg(format!("--callgrind-out-file={}", dump.display()));
        command.arg(std::env::current_exe().unwrap()).args(["turns", &turns.to_string()]);
        assert!(command.status().unwrap().success(), "{turns} turns were not counted");
        total(&dump)
    });
    (many - few) / 5.0
}

/// All instructions in a dump.
fn total(dump: &Path) -> f64 {
    let text = std::fs::read_to_string(dump).unwrap();
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    totals.unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// A role of this program under callgrind.
struct Profiled {
    part: Part,
    dump: PathBuf,
}

impl Profiled {
    fn start(role: &str, args: &[&str], folder: &Path) -> Self {
        let dump = folder.join(format!("{}.counts", [role, args[0]].join("-").replace(':', "-")));
        let out = format!("--callgrind-out-file={}", dump.display());
        let valgrind = [&VALGRIND[..], &[&out]].concat();
        Self { part: Part::start_under(&valgrind, role, args), dump }
    }

    /// Instructions of one of many equal requests, each of which begins a session.
    async fn small_requests(&self, path: &'static str, profile: &str) -> f64 {
        let load = Load::new(&self.part.address).at(path);
        load.small_requests(WARM_UP, WIDTH).await;
        self.idle().await;
        self.control("--zero");
        load.small_requests(COUNTED, WIDTH).await;
        // Until the last turn is in the database, too.
        self.idle().await;
        self.counted(&format!("{profile}-first")) / COUNTED as f64
    }

    /// Instructions of one request of conversations that go on.
    async fn next_requests(&self, profile: &str) -> f64 {
        let load = Load::new(&self.part.address);
        let conversations = load.begin_conversations(CONVERSATIONS).await;
        self.idle().await;
        self.control("--zero");
        let count = conversations.continue_all(COUNTED / CONVERSATIONS, WIDTH).await;
        self.idle().await;
        self.counted(&format!("{profile}-next")) / count as f64
    }

    /// Instructions of one event of a stream that is read.
    async fn streamed_event(&self, profile: &str) -> f64 {
        let load = Load::new(&self.part.address);
        load.paced_streams(WIDTH, 10, PACE).await;
        let mut counts = Vec::new();
        // The difference, so that the request is not counted.
        for events in [100, 500] {
            self.idle().await;
            self.control("--zero");
            load.paced_streams(WIDTH, events, PACE).await;
            self.idle().await;
            counts.push(self.counted(&format!("{profile}-events")));
        }
        (counts[1] - counts[0]) / (400 * WIDTH) as f64
    }

    /// Returns once it does nothing: the vocabulary of the first requests' model is loaded in the background.
    async fn idle(&self) {
        let mut before = f64::NAN;
        loop {
            let spent = process::cpu_seconds(self.part.id());
            if spent - before < 0.02 {
                return;
            }
            before = spent;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The instructions since the last `--zero`, by function in [`PROFILES`].
    fn counted(&self, profile: &str) -> f64 {
        self.control("--dump");
        // Each dump has a file with a number; all but the newest are moved away.
        let dumps = std::fs::read_dir(self.dump.parent().unwrap()).unwrap();
        let name = self.dump.file_name().unwrap().to_str().unwrap();
        let file = dumps
            .map(|entry| entry.unwrap().path())
            .find(|path| {
                path.file_name().unwrap().to_string_lossy().starts_with(&format!("{name}."))
            })
            .unwrap();
        let total = total(&file);
        std::fs::copy(&file, Path::new(PROFILES).join(profile)).unwrap();
        std::fs::remove_file(file).unwrap();
        total
    }

    fn control(&self, what: &str) {
        let id = self.part.id().to_string();
        let done = Command::new("callgrind_control").args([what, &id]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
