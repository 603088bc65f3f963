//! How many instructions a small request takes, of Plimsoll and of the bare proxy, as callgrind counts them.
//!
//! Beside a count stands its bar, and whether it is held. Unlike time, the count does not depend on how busy the
//! machine is, so figures of different days can be compared. It needs valgrind. A program runs about 50 times slower
//! under it, so what waits for a time of its own weighs less.

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

/// Counts and prints each kind of request.
pub(crate) async fn print() {
    let data = tempfile::tempdir().unwrap();
    let provider = Part::start("provider", &[]);
    let floor = Counted::start("floor", &[&provider.address], data.path());
    let bare = floor.small_requests(MESSAGES).await;
    println!("a small request, instructions          thousands     floor      bar");
    let line = |name: &str, count: f64, bar: Option<f64>| {
        let verdict = match bar {
            Some(bar) if count <= bar * 1e3 => format!("{bar:>9.0} held"),
            Some(bar) => format!("{bar:>9.0} missed"),
            None => String::new(),
        };
        println!("{name:<40}{:>8.1}{:>9.2}×{verdict}", count / 1e3, count / bare);
    };
    line("bare proxy", bare, None);
    drop(floor);
    // The last two are bars of the first and the next request of a session, in thousands.
    for (kind, store, first, next) in
        [("forgets", "no store", Some(110.0), None), ("whole", "SQLite", Some(160.0), Some(200.0))]
    {
        let own = data.path().join(kind);
        std::fs::create_dir(&own).unwrap();
        let args = [kind, provider.address.as_str(), own.to_str().unwrap()];
        let server = Counted::start("server", &args, data.path());
        if kind == "forgets" {
            line("not read", server.small_requests(UNREAD).await, Some(60.0));
        }
        let count = server.small_requests(MESSAGES).await;
        line(&format!("the first of a session, {store}"), count, first);
        line(&format!("the next of a session, {store}"), server.next_requests().await, next);
    }
    println!();
}

/// A role of this program under callgrind.
struct Counted {
    part: Part,
    dump: PathBuf,
}

impl Counted {
    fn start(role: &str, args: &[&str], folder: &Path) -> Self {
        let dump = folder.join(format!("{}.counts", [role, args[0]].join("-").replace(':', "-")));
        let out = format!("--callgrind-out-file={}", dump.display());
        let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &out];
        Self { part: Part::start_under(&valgrind, role, args), dump }
    }

    /// Instructions of one of many equal requests, each of which begins a session.
    async fn small_requests(&self, path: &'static str) -> f64 {
        let load = Load::new(&self.part.address).at(path);
        load.small_requests(WARM_UP, WIDTH).await;
        self.idle().await;
        self.control("--zero");
        load.small_requests(COUNTED, WIDTH).await;
        // Until the last turn is in the database, too.
        self.idle().await;
        self.counted() / COUNTED as f64
    }

    /// Instructions of one request of conversations that go on.
    async fn next_requests(&self) -> f64 {
        let load = Load::new(&self.part.address);
        let conversations = load.begin_conversations(CONVERSATIONS).await;
        self.idle().await;
        self.control("--zero");
        let count = conversations.continue_all(COUNTED / CONVERSATIONS, WIDTH).await;
        self.idle().await;
        self.counted() / count as f64
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

    /// The instructions since the last `--zero`.
    fn counted(&self) -> f64 {
        self.control("--dump");
        // Each dump has a file with a number; all but the newest are deleted.
        let dumps = std::fs::read_dir(self.dump.parent().unwrap()).unwrap();
        let name = self.dump.file_name().unwrap().to_str().unwrap();
        let file = dumps
            .map(|entry| entry.unwrap().path())
            .find(|path| {
                path.file_name().unwrap().to_string_lossy().starts_with(&format!("{name}."))
            })
            .unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
        totals.split(' ').next().unwrap().parse().unwrap()
    }

    fn control(&self, what: &str) {
        let id = self.part.id().to_string();
        let done = Command::new("callgrind_control").args([what, &id]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
