//! How large and how fast a store with many turns is. `PLIMSOLL_TURNS` sets their number (4,000).
//!
//! With millions it is a measurement: the numbers are printed (`--nocapture`), and the assertions leave room for a busy
//! machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::super::*;
use crate::store::conformance::{self, scope, turn};
use crate::store::keyed::KeyedStore;

/// Turns of one session.
const SESSION: u64 = 20;

/// A turn as an agent's session leaves it. Its values differ from turn to turn.
pub(super) fn agents_turn(n: u64) -> String {
    let mut seed = u128::from(n);
    let mut hex = || {
        seed = xxhash_rust::xxh3::xxh3_128(&seed.to_le_bytes());
        format!("{seed:032x}")
    };
    let (at, input) = (1_795_357_033_853 + n * 997, 20_000 + n * 7919 % 90_000);
    let added: Vec<String> = (0..5)
        .map(|i| {
            let (key, tokens) = (hex(), (n * 31 + i) % 3000);
            format!(r#"{{"key":"{key}","tokens":{tokens},"place":"history"}}"#)
        })
        .collect();
    let (thread, system, tools) = (&hex()[..16], hex(), hex());
    format!(
        r#"{{"kind":"turn","exchange":"a37275fea22cad7b{n:08x}","position":{{"thread":"{thread}","parent":"a37275fea22cad7b{n:08x}","chain":"{}","last":"{}","system":"{system}","tools":"{tools}"}},"after":"{}","response":"msg_{}","at":{at},"ended":{},"upstream":"anthropic","dialect":"anthropic","model":"claude-sonnet-4-5","family":"claude","purpose":"turn","estimate":{{"tokens":{input},"method":"anchored","counting":"ratio","new":{},"gone":0,"breakdown":{{"system":359,"tools":555,"messages":{input},"reasoning":218}},"guess":{{"tokens":{input},"low":{},"high":{},"retention":"loops","expert":"regression","by_retention":[{input},{input},{input},{}],"evidence":[0.2328779,0.2328779,0.2328779,1.0451767]}}}},"usage":{{"input":{},"output":57,"reasoning":22,"cache_read":{},"cache_write":{},"cache_write_long":0}},"stop":"tool_use","outcome":"complete","window":200000,"reserve":16000,"sketch":{{"base":"a37275fea22cad7b{n:08x}","kept":36,"added":[{}]}},"reply":[{{"key":"{}","tokens":9,"place":"history"}},{{"key":"{}","tokens":26,"place":"history"}}],"anchor_keys":["{}"]}}"#,
        hex(),
        hex(),
        hex(),
        &hex()[..24],
        at + 758,
        input / 5,
        input - 1200,
        input + 1200,
        input - 24,
        input - 198,
        input / 2,
        input / 5,
        added.join(","),
        hex(),
        hex(),
        hex(),
    )
}

fn session(n: u64) -> Scope {
    scope("0123456789abcdef", &format!("{:016x}-session", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

async fn fill(store: &SqliteStore, turns: u64) {
    let mut under_way = std::collections::VecDeque::new();
    for n in 0..turns {
        let record = turn(n.into(), &agents_turn(n), 1_795_357_033_853 + n * 997);
        // Eight sessions at a time, as agents work in parallel.
        let of = n / (SESSION * 8) * 8 + n % 8;
        under_way.push_back(store.put_if_absent(session(of), vec![record]));
        if under_way.len() > 512 {
            under_way.pop_front().unwrap().await.unwrap();
        }
    }
    for put in under_way {
        put.await.unwrap();
    }
}

/// How many milliseconds each of several calls took, in order.
struct WaitTimes(Vec<f64>);

impl WaitTimes {
    fn print_quantiles(&mut self, what: &str) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        println!(
            "{what}: median {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            at(0.5),
            at(0.99),
            at(1.0)
        );
        at(0.99)
    }
}

async fn wait<T>(waits: &mut WaitTimes, answer: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let answer = answer.await;
    waits.0.push(began.elapsed().as_secs_f64() * 1000.0);
    answer
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout, reason = "a measurement says what it measured")]
async fn many_turns_stay_small_and_quick() {
    let turns: u64 = std::env::var("PLIMSOLL_TURNS").map_or(4_000, |n| n.parse().unwrap());
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let began = Instant::now();
    fill(&store, turns).await;
    println!("{turns} turns written in {:.1} s", began.elapsed().as_secs_f64());
    store.close().await.unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len() / turns;
    let raw = agents_turn(1).len();
    println!("{bytes} bytes a turn on disk, {raw} as JSON");
    assert!(bytes <= 1500, "{bytes} bytes a turn");

    let began = Instant::now();
    let store = SqliteStore::open(&path).unwrap();
    store.ready().await.unwrap();
    println!("ready in {:.0} ms", began.elapsed().as_secs_f64() * 1000.0);

    let admin = store.for_admin();
    let sessions = turns / (SESSION * 8) * 8;
    let looking = tokio::spawn(async move {
        let (mut lists, mut after) = (WaitTimes(Vec::new()), None);
        // Pages through the whole list, reads some sessions, and looks up a fact that does not exist.
        for n in 0.. {
            let page = ScopePage { after, skip: 0, count: 500 };
            let page = wait(&mut lists, admin.scopes(page)).await.unwrap();
            after = page.last().map(|line| line.cursor);
            for line in page.iter().take(20) {
                admin.scan(line.scope.clone(), 8192).await.unwrap();
            }
            if n % 20 == 0 {
                drop(admin.holder(RecordKind::Turn, u128::MAX).await);
            }
            if after.is_none() {
                break;
            }
        }
        lists
    });
    let mut loads = WaitTimes(Vec::new());
    let mut n = 0u64;
    while !looking.is_finished() || n < 300 {
        n += 1;
        let here = session(n.wrapping_mul(7_919) % sessions);
        let facts = wait(&mut loads, store.scan(here, 8192)).await.unwrap();
        assert_eq!(facts.len() as u64, SESSION);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lists = looking.await.unwrap().print_quantiles("a page of 500 sessions");
    let loads = loads.print_quantiles("a session is loaded beside");
    assert!(lists < 500.0, "{lists} ms, {loads} ms");
    assert!(loads < 250.0, "{lists} ms, {loads} ms");
}

/// The file whose database steps are counted, and the counter.
static COUNTED: Mutex<Option<(PathBuf, Arc<AtomicU64>)>> = Mutex::new(None);

/// Counts the steps of a connection to [`COUNTED`].
pub(in crate::store::sqlite) fn count_steps(
    connection: &mut Connection,
    path: &Path,
) -> rusqlite::Result<()> {
    let counted = COUNTED.lock().unwrap();
    let Some((_, count)) = counted.as_ref().filter(|(counted, _)| counted == path) else {
        return Ok(());
    };
    let count = count.clone();
    let add = move || {
        count.fetch_add(1, Ordering::Relaxed);
        false
    };
    connection.progress_handler(1, Some(add))
}

/// Copies every session `copies` times.
fn multiply(path: &Path, copies: u64) {
    let connection = Connection::open(path).unwrap();
    let numbers = format!(
        "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < {copies})"
    );
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF;
             PRAGMA temp_store = MEMORY;
             BEGIN;
             {numbers} INSERT INTO facts SELECT facts.id + k * 10000, scope + k * 1000, kind, key,
                 at, thread, request, upstream, model, purpose, outcome, method, estimated, input,
                 lower_bound, output, reasoning, cache_read, cache_write, window, ended, dollars,
                 packed, value
             FROM n CROSS JOIN facts;
             {numbers} INSERT INTO scopes SELECT scopes.id + k * 1000, tenant, session || k, began,
                 used, newest, records, bytes, turns, input, output, cache_read, learned
             FROM n CROSS JOIN scopes WHERE learned = 0;
             COMMIT;"
        ))
        .unwrap();
}

/// Database steps from opening a store until it is ready, has deleted what is due, and has found what the first request
/// looks up.
async fn steps_of_a_start(path: &Path) -> u64 {
    let steps = Arc::<AtomicU64>::default();
    *COUNTED.lock().unwrap() = Some((path.to_owned(), steps.clone()));
    let store = KeyedStore::open(path).unwrap();
    store.tenant_key().await.unwrap();
    store.ready().await.unwrap();
    assert_eq!(store.scopes(ScopePage::first(1)).await.unwrap().len(), 1);
    for _ in 0..3 {
        store.expire(1, u64::MAX).await.unwrap();
    }
    store.scan(Scope::series("what is learned"), 8).await.unwrap();
    store.session_by_fingerprint("t".into(), vec![7]).await.unwrap();
    *COUNTED.lock().unwrap() = None;
    store.sqlite().close().await.unwrap();
    steps.load(Ordering::Relaxed)
}

/// The number of steps must not depend on the number of turns: reading all of them would delay requests.
#[tokio::test(flavor = "multi_thread")]
async fn start_does_not_read_all_turns() {
    const TURNS: u64 = 2_000;
    const COPIES: u64 = 30;
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = KeyedStore::open(&path).unwrap();
    fill(store.sqlite(), TURNS).await;
    store.sqlite().close().await.unwrap();
    let few = steps_of_a_start(&path).await;
    multiply(&path, COPIES);
    let many = steps_of_a_start(&path).await;
    let count = "SELECT count(*) FROM facts";
    let connection = Connection::open(&path).unwrap();
    let facts: u64 = connection.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(facts, TURNS * (COPIES + 1));
    assert!(few > 0, "nothing was counted");
    assert!(many <= few + few / 10 + 64, "{few} steps with {TURNS} turns, {many} with {facts}");
}
