//! A store with many turns, over the built program: how soon it is ready, how soon each question has its
//! first line, and how long sessions of traffic take to load meanwhile. `make scale N=5000000`.
//!
//! The turns are those of a real run, copied by the database. Times are printed; what is asserted is that
//! each answer is there, and that its memory is bounded.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::demo::provider::Provider;
use plimsoll::store::sqlite::Sqlite;
use plimsoll::store::{Page, Store};
use rusqlite::Connection;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::Plan;
use crate::load::Load;
use crate::process::Running;

/// Most resident memory of the program while it is asked, KiB.
const MEMORY_KIB: u64 = 256 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn many_turns_are_looked_at_at_once() {
    let turns = std::env::var("PLIMSOLL_SCALE_TURNS").map_or(20_000, |n| n.parse().unwrap());
    let provider = Provider::start(([127, 0, 0, 1], 0).into()).await.unwrap();
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
    let (sessions, copied) = copy(&file, turns);
    let mib = std::fs::metadata(&file).unwrap().len() >> 20;
    println!("{copied} turns of {sessions} sessions in {mib} MiB, made in {:?}", began.elapsed());

    let began = Instant::now();
    let mut running = Running::start(folder.path(), provider.address(), &plan).await;
    println!("ready after {:?}", began.elapsed());
    let idle = running.memory();
    let data = running.data.to_str().unwrap().to_owned();
    for question in ["sessions", "savings", "export", "top"] {
        let (first, whole) = ask(question, &data).await;
        println!("{question}: first line after {first:?}, all after {whole:?}");
    }
    let asked = running.memory();
    println!("memory: {} MiB at the start, {} MiB after", idle >> 10, asked >> 10);
    assert!(asked < MEMORY_KIB, "{asked} KiB");
    running.kill().await;
    loads_beside_lookers(&file).await;
}

/// Copies sessions until there are so many turns; answers how many sessions and turns there are.
fn copy(file: &Path, turns: u64) -> (u64, u64) {
    let store = Connection::open(file).unwrap();
    let tune =
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;";
    store.execute_batch(tune).unwrap();
    let count = |query: &str| store.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap();
    let here = count("SELECT count(*) FROM facts WHERE kind = 1");
    assert!(here > 0, "there is no turn to copy");
    let copies = turns.div_ceil(here).saturating_sub(1);
    let (scopes, facts) = (count("SELECT max(id) FROM scopes"), count("SELECT max(id) FROM facts"));
    let columns = |table: &str, changed: &[(&str, String)]| {
        let mut query = store.prepare(&format!("PRAGMA table_info({table})")).unwrap();
        let names = query.query_map([], |row| row.get::<_, String>(1)).unwrap();
        let value = |name: String| match changed.iter().find(|(it, _)| *it == name) {
            Some((_, value)) => value.clone(),
            None => format!("{table}.{name}"),
        };
        names.map(|name| value(name.unwrap())).collect::<Vec<_>>().join(", ")
    };
    // A minute later each.
    let later = |name: &str| format!("{name} + k * 60000");
    let lines = columns(
        "scopes",
        &[
            ("id", format!("scopes.id + k * {scopes}")),
            ("session", "scopes.session || '-' || k".to_owned()),
            ("began", later("began")),
            ("used", later("used")),
            ("newest", later("newest")),
        ],
    );
    let rows = columns(
        "facts",
        &[
            ("id", format!("facts.id + k * {facts}")),
            ("scope", format!("facts.scope + k * {scopes}")),
            ("at", later("at")),
        ],
    );
    store.execute_batch("BEGIN").unwrap();
    store
        .execute_batch(&format!(
            "WITH RECURSIVE n(k) AS (SELECT 1 WHERE {copies} > 0 UNION ALL SELECT k + 1 FROM n WHERE k < {copies})
             INSERT INTO scopes SELECT {lines} FROM n CROSS JOIN scopes
             WHERE scopes.learned = 0 AND scopes.id <= {scopes} ORDER BY k, scopes.id;
             WITH RECURSIVE n(k) AS (SELECT 1 WHERE {copies} > 0 UNION ALL SELECT k + 1 FROM n WHERE k < {copies})
             INSERT INTO facts SELECT {rows} FROM n CROSS JOIN facts
             WHERE facts.scope IN (SELECT id FROM scopes WHERE learned = 0) AND facts.id <= {facts};
             COMMIT;"
        ))
        .unwrap();
    (
        count("SELECT count(*) FROM scopes WHERE learned = 0"),
        count("SELECT coalesce(sum(turns), 0) FROM scopes"),
    )
}

/// Runs a looking sub-command: when its first byte came, and its last.
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

/// Sessions of traffic are loaded while somebody goes through the whole list and looks into sessions.
async fn loads_beside_lookers(file: &Path) {
    let store = Sqlite::open(file).unwrap();
    let mut some = Vec::new();
    let mut after = None;
    while some.len() < 5_000 {
        let page = store.scopes(Page { after, skip: 0, count: 500 }).await.unwrap();
        after = page.last().map(|line| line.cursor);
        some.extend(page.into_iter().map(|line| line.scope));
        if after.is_none() {
            break;
        }
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let looking: Vec<_> = (0..4)
        .map(|_| {
            let (lookers, is_over) = (store.for_lookers(), is_over.clone());
            tokio::spawn(async move {
                let (mut after, mut seen) = (None, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let page = lookers.scopes(Page { after, skip: 0, count: 500 }).await.unwrap();
                    after = page.last().map(|line| line.cursor);
                    for line in page.iter().take(50) {
                        seen += lookers.scan(line.scope.clone(), 8192).await.unwrap().len();
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
    took.sort();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!(
        "a session is loaded beside: median {:?}, p99 {:?}, most {:?}",
        at(50),
        at(99),
        at(100)
    );
}
