//! A store with many turns, with the built program: how soon it is ready, how soon each query has its first line, how
//! long a page of the list takes, and how long sessions of requests take to load meanwhile. `make scale N=5000000`.
//!
//! The turns are those of a real run, copied by the database in one transaction. One-shots are copied more often, so
//! that there is a session for every five turns. Times are printed. A short run asserts that every query has a result
//! and that memory is bounded; a long one asserts the times, too.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::{ScopePage, Store};
use rusqlite::Connection;
use scripted_provider::ScriptedProvider;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::Plan;
use crate::load::Load;
use crate::process::Running;

/// Largest resident memory of the program during the queries, KiB.
const MEMORY_KIB: u64 = 256 << 10;
/// How soon the program must be ready.
const READY: Duration = Duration::from_millis(300);
/// How soon a query must have its first line.
const FIRST_LINE: Duration = Duration::from_millis(100);
/// p99 of a page of the list.
const LIST: Duration = Duration::from_millis(10);
/// p99 of loading a session for a request.
const LOAD: Duration = Duration::from_millis(5);
/// Turns per session, on average.
const TURNS: u64 = 5;
/// The period over which the copies are spread, milliseconds: none has expired.
const SPAN: u64 = 20 * 24 * 3600 * 1000;

/// The verdicts on what was measured.
#[derive(Default)]
struct Verdicts {
    bad: Vec<String>,
}

impl Verdicts {
    fn time(&mut self, what: &str, took: Duration, most: Duration) {
        let is_good = took <= most;
        let verdict = if is_good { "good" } else { "BAD" };
        println!("| {what} | {took:?} | {most:?} allowed | {verdict} |");
        if !is_good {
            self.bad.push(what.to_owned());
        }
    }
}

/// Times in ascending order.
struct Times(Vec<Duration>);

impl Times {
    fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    fn reported(mut self, what: &str) -> Duration {
        self.0.sort();
        println!(
            "{what}: median {:?}, p99 {:?}, most {:?}",
            self.at(50),
            self.at(99),
            self.at(100)
        );
        self.at(99)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_with_many_turns_is_queried_with_bounded_memory() {
    let turns = std::env::var("PLIMSOLL_SCALE_TURNS").ok().map(|n| n.parse::<u64>().unwrap());
    let provider =
        ScriptedProvider::start(([127, 0, 0, 1], 0).into(), plimsoll::demo::count_tokens)
            .await
            .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        is_long: false,
        lasts: Duration::from_secs(3),
        rate: 50,
        bound: 1 << 40,
        minute: Duration::from_secs(3),
    };
    let mut running = Running::start(folder.path(), provider.address(), &plan).await;
    let clients = Arc::new(Load::new(running.clients)).start(plan.rate, plan.lasts);
    tokio::time::sleep(plan.lasts).await;
    drop(clients.end().await);
    running.kill().await;
    let file = folder.path().join("data/plimsoll.db");
    let began = Instant::now();
    let (sessions, copied) = copy(&file, turns.unwrap_or(20_000));
    let mib = std::fs::metadata(&file).unwrap().len() >> 20;
    println!("{copied} turns of {sessions} sessions in {mib} MiB, made in {:?}", began.elapsed());

    let mut verdicts = Verdicts::default();
    for what in ["ready, after the machine starts", "ready, after the program ended"] {
        if what.contains("machine") {
            forget_pages(&file);
        } else {
            running.kill().await;
        }
        let began = Instant::now();
        running = Running::start(folder.path(), provider.address(), &plan).await;
        verdicts.time(what, began.elapsed(), READY);
    }
    let idle = running.memory();
    let data = running.data.to_str().unwrap().to_owned();
    for question in ["sessions", "savings", "export", "top"] {
        let (first, whole) = ask(question, &data).await;
        println!("{question}: all after {whole:?}");
        verdicts.time(&format!("first line of {question}"), first, FIRST_LINE);
    }
    let memory = running.memory();
    println!("memory: {} MiB at the start, {} MiB after", idle >> 10, memory >> 10);
    assert!(memory < MEMORY_KIB, "{memory} KiB");
    verdicts.time("p99 of a page of 100 sessions", pages(&running).await, LIST);
    running.kill().await;
    verdicts.time("p99 of a session's load beside", loads_beside_admin_queries(&file).await, LOAD);
    assert!(turns.is_none() || verdicts.bad.is_empty(), "too slow: {:?}", verdicts.bad);
}

/// Removes the file from the page cache, so that it is read from the disk as after a start of the machine.
fn forget_pages(file: &Path) {
    let file = std::fs::File::open(file).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Requests one page of the list after the other, as the page in a browser does.
async fn pages(running: &Running) -> Duration {
    let (mut took, mut after) = (Vec::new(), String::new());
    for _ in 0..500 {
        let (page, time) = running.ask(&format!("/api/v1/sessions?limit=100{after}")).await;
        took.push(time);
        let page: Value = serde_json::from_str(&page).unwrap();
        let next = page["next_after"].as_str();
        after = next.map_or_else(String::new, |next| format!("&after={next}"));
    }
    Times(took).reported("a page of 100 sessions")
}

/// Copies sessions until there are this many turns; returns the numbers of sessions and turns. The copies are older
/// than the originals.
fn copy(file: &Path, turns: u64) -> (u64, u64) {
    let store = Connection::open(file).unwrap();
    // The file's settings stay as the program leaves them, but without a journal, which would be too large for these
    // Without a log, which would be too large for these copies. Otherwise the file is as the program leaves it when it
    // ends.
    let tune = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -262144;";
    store.execute_batch(tune).unwrap();
    let counts = "SELECT count(*), coalesce(sum(turns), 0), max(id), sum(turns = 1) FROM scopes
        WHERE learned = 0 AND turns > 0";
    let [sessions, here, last, single] = store
        .query_row(counts, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
        .unwrap();
    let more = turns.saturating_sub(here);
    assert!(here > 0, "there is no turn to copy");
    assert!(single > 0, "there is no turn to copy");
    // Copies of everything, then of one-shots, so that both numbers are reached.
    let of_all = (more - more / TURNS).saturating_mul(here) / (here - sessions).max(1);
    let of_all = of_all.min(more) / here;
    let of_single = (more - of_all * here).div_ceil(single);
    let copies = of_all + of_single;
    let facts = "SELECT max(id) FROM facts";
    let facts: u64 = store.query_row(facts, [], |row| row.get(0)).unwrap();
    let earlier = SPAN / copies.max(1);
    let columns = |table: &str, changed: &[(&str, String)]| {
        let mut query = store.prepare(&format!("PRAGMA table_info({table})")).unwrap();
        let names = query.query_map([], |row| row.get::<_, String>(1)).unwrap();
        let value = |name: String| match changed.iter().find(|(it, _)| *it == name) {
            Some((_, value)) => value.clone(),
            None => format!("{table}.{name}"),
        };
        names.map(|name| value(name.unwrap())).collect::<Vec<_>>().join(", ")
    };
    let time = |name: &str| format!("{name} - ({copies} + 1 - k) * {earlier}");
    let lines = columns(
        "scopes",
        &[
            ("id", format!("scopes.id + k * {last}")),
            ("session", "scopes.session || '-' || k".to_owned()),
            ("began", time("began")),
            ("used", time("used")),
            ("newest", time("newest")),
        ],
    );
    let rows = columns(
        "facts",
        &[
            ("id", format!("facts.id + k * {facts}")),
            ("scope", format!("facts.scope + k * {last}")),
            ("at", time("at")),
        ],
    );
    let numbers = format!(
        "WITH RECURSIVE n(k) AS (SELECT 1 WHERE {copies} > 0 UNION ALL SELECT k + 1 FROM n WHERE k < {copies})"
    );
    let chosen = format!("learned = 0 AND turns > 0 AND (k <= {of_all} OR turns = 1)");
    let change = store.unchecked_transaction().unwrap();
    change
        .execute_batch(&format!(
            "{numbers} INSERT INTO scopes SELECT {lines} FROM n CROSS JOIN scopes
             WHERE scopes.id <= {last} AND {chosen} ORDER BY k, scopes.id;
             {numbers} INSERT INTO facts SELECT {rows} FROM n CROSS JOIN scopes
             CROSS JOIN facts ON facts.scope = scopes.id
             WHERE scopes.id <= {last} AND facts.id <= {facts} AND {chosen};"
        ))
        .unwrap();
    change.commit().unwrap();
    store.pragma_update(None, "journal_mode", "WAL").unwrap();
    let counts = "SELECT count(*), sum(turns) FROM scopes WHERE learned = 0";
    store.query_row(counts, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

/// Runs a sub-command that queries the store; returns when its first and its last byte came.
async fn ask(question: &str, data: &str) -> (Duration, Duration) {
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([question, "--data", data])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 1];
    let reading = async {
        out.read_exact(&mut first).await.unwrap();
        let first = began.elapsed();
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).await.unwrap();
        (first, began.elapsed())
    };
    let times = tokio::time::timeout(Duration::from_secs(60), reading).await.expect(question);
    assert!(child.wait().await.unwrap().success(), "{question}");
    times
}

/// Loads sessions as requests do, while another task goes through the whole list and reads sessions.
async fn loads_beside_admin_queries(file: &Path) -> Duration {
    let store = SqliteStore::open(file).unwrap();
    let mut some = Vec::new();
    let mut after = None;
    while some.len() < 5_000 {
        let page = store.scopes(ScopePage { after, skip: 0, count: 500 }).await.unwrap();
        after = page.last().map(|line| line.cursor);
        some.extend(page.into_iter().map(|line| line.scope));
        if after.is_none() {
            break;
        }
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let looking: Vec<_> = (0..4)
        .map(|_| {
            let (admin, is_over) = (store.for_admin(), is_over.clone());
            tokio::spawn(async move {
                let (mut after, mut seen) = (None, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let page =
                        admin.scopes(ScopePage { after, skip: 0, count: 500 }).await.unwrap();
                    after = page.last().map(|line| line.cursor);
                    for line in page.iter().take(50) {
                        seen += admin.scan(line.scope.clone(), 8192).await.unwrap().len();
                    }
                }
                seen
            })
        })
        .collect();
    let mut took = Vec::new();
    for n in 0..1_000usize {
        let scope = some[n * 7_919 % some.len()].clone();
        let began = Instant::now();
        assert!(!store.scan(scope, 8192).await.unwrap().is_empty());
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for looking in looking {
        assert!(looking.await.unwrap() > 0, "nobody looked");
    }
    Times(took).reported("a session is loaded beside")
}
