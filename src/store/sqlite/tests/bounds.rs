//! A store stays within its limits: under many writes, with long reads, if it starts far past them, and if the clock
//! jumps.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::super::*;
use super::file_bytes;
use crate::store::conformance::{self, scope, turn};

/// A query by the admin API keeps the log from being reused while it runs. When the log gets long, the query is ended.
/// What is written meanwhile is neither lost nor refused.
#[tokio::test(flavor = "multi_thread")]
async fn admin_queries_do_not_grow_log() {
    const LOOK: &str =
        "WITH RECURSIVE n(i) AS (SELECT count(*) FROM facts UNION ALL SELECT i + 1 FROM n)
        SELECT count(*) FROM n";
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let looking: Vec<_> = (0..4)
        .map(|_| {
            let admin = store.for_admin();
            tokio::spawn(async move {
                let mut ended = 0;
                loop {
                    let look = |it: &Connection| it.query_row(LOOK, [], |row| row.get::<_, i64>(0));
                    let trouble = admin.read(look).await.unwrap_err();
                    if matches!(trouble, StoreError::Closed) {
                        return ended;
                    }
                    ended += 1;
                }
            })
        })
        .collect();
    let log = beside(store.path(), "-wal");
    let value = "words ".repeat(4_000);
    let mut most = 0;
    for n in 0..6_000u64 {
        let words = Record { kind: RecordKind::Content, ..turn(n.into(), &value, n) };
        let puts = store.put_if_absent(scope("t", &format!("s{}", n / 99)), vec![words]).await;
        assert_eq!(puts.unwrap(), [WriteOutcome::Written]);
        most = most.max(file_bytes(&log));
    }
    assert!(most < 48 << 20, "the log was {most} bytes long");
    assert!(file_bytes(store.path()) > 100 << 20, "too little was written");
    store.close().await.unwrap();
    for looking in looking {
        assert!(looking.await.unwrap() > 0, "nobody looked");
    }
}

/// While sessions come and go as fast as possible, file and log stay near the limit.
#[tokio::test(flavor = "multi_thread")]
async fn size_limit_holds_under_load() {
    const BOUND: u64 = 8 << 20;
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let sweeping = {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                let gone = store.expire(0, BOUND).await.unwrap();
                let pause = if gone.more { 5 } else { 50 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        })
    };
    let noise = |n: u64| format!("{:x}", u128::MAX / u128::from(n * 7 + 3)).repeat(40);
    let (mut most, mut written) = (0, 0);
    for n in 0..6_000u64 {
        let here = scope("t", &format!("s{}", n / 5));
        let value = noise(n);
        let words = Record { kind: RecordKind::Content, ..turn(n.into(), &value.repeat(3), n) };
        written += value.len() * 4;
        store.put_if_absent(here, vec![turn(n.into(), &value, n), words]).await.unwrap();
        most = most.max(store.load().bytes);
    }
    assert!(written as u64 > 3 * BOUND, "{written} bytes are no load");
    assert!(most < BOUND * 11 / 10 + (64 << 20), "{most} bytes");
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while file_bytes(store.path()) > BOUND * 11 / 10 + (2 << 20) {
        assert!(std::time::Instant::now() < until, "{} bytes", file_bytes(store.path()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sweeping.abort();
    assert!(store.scopes(ScopePage::first(9999)).await.unwrap().len() > 100, "not all went");
}

/// A store that starts far past its limit works at once, and is reduced step by step.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout, reason = "times are told, not judged")]
async fn store_past_its_limit_serves() {
    const BOUND: u64 = 1 << 20;
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let value = "words ".repeat(4_000);
    let words = |n: u64| Record { kind: RecordKind::Content, ..turn(n.into(), &value, n) };
    for n in 0..1_600 {
        let here = scope("t", &format!("s{}", n / 4));
        store.put_if_absent(here, vec![turn(n.into(), "t", n), words(n)]).await.unwrap();
    }
    store.close().await.unwrap();
    let full = file_bytes(&path);
    assert!(full > 30 * BOUND, "{full} bytes");

    let began = Instant::now();
    let store = SqliteStore::open(&path).unwrap();
    store.ready().await.unwrap();
    println!("{full} bytes, ready in {:?}", began.elapsed());
    let (mut n, mut steps, mut most) = (2_000, 0, Duration::ZERO);
    let until = Instant::now() + Duration::from_secs(60);
    while file_bytes(&path) > BOUND / 10 * 11 + (2 << 20) {
        assert!(Instant::now() < until, "{} bytes", file_bytes(&path));
        let gone = store.expire(0, BOUND).await.unwrap();
        steps += u64::from(gone.more);
        // What is written meanwhile is stored and found.
        let began = Instant::now();
        let put = store.put_if_absent(scope("t", "in use"), vec![turn(n.into(), "t", n)]).await;
        assert_eq!(put.unwrap(), [WriteOutcome::Written]);
        most = most.max(began.elapsed());
        if n == 2_000 {
            assert!(file_bytes(&path) > 20 * BOUND, "it was brought under the bound first");
        }
        n += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("under the bound after {steps} steps; a write waited for {most:?} at most");
    assert!(steps > 10, "in {steps} steps");
    let used = store.scan(scope("t", "in use"), 9_999).await.unwrap();
    assert_eq!(used.len() as u64, n - 2_000);
}

/// The clock was a year ahead for a while. Sessions from that time do not count as in use for a year, and sessions in
/// use are not deleted instead of them.
#[tokio::test]
async fn wrong_clock_expires_in_order() {
    const YEAR: Millis = 365 * 24 * 3600 * 1000;
    const NOW: Millis = 56 * YEAR;
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let put = async |session: &str, at: Millis| {
        let words = Record { kind: RecordKind::Content, ..turn(at.into(), &"w".repeat(9_000), at) };
        let records = vec![turn(at.into(), "t", at), words];
        store.put_if_absent(scope("t", session), records).await.unwrap();
    };
    for n in 0..300 {
        put(&format!("ahead {n}"), NOW + YEAR + n).await;
    }
    // The clock is set right, and then a year back, which is believed, too.
    for (round, now) in [NOW, NOW - YEAR].into_iter().enumerate() {
        for n in 0..30 {
            put(&format!("used {round} {n}"), now + 10_000 + n).await;
        }
        // A few sessions are deleted at a time.
        for _ in 0..8 {
            store.expire(0, u64::MAX).await.unwrap();
        }
        for n in 0..9 {
            put(&format!("used {round} {n}"), now + 20_000 + n).await;
            store.expire(0, u64::MAX).await.unwrap();
        }
        let first = store.scopes(ScopePage::first(9)).await.unwrap();
        let names: Vec<_> = first.iter().map(|line| line.scope.session.as_str()).collect();
        let used: Vec<_> = (0..9).rev().map(|n| format!("used {round} {n}")).collect();
        assert_eq!(names, used, "round {round}");
    }
}

/// Another program may lock the file for longer than any request waits. What the writer was given is stored when the
/// lock is released.
#[tokio::test(flavor = "multi_thread")]
async fn held_file_costs_no_turn() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let holder = Connection::open(store.path()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let keeping = store.put_if_absent(scope("t", "s"), vec![turn(1, "a", 1)]);
    let letting_go = async {
        tokio::time::sleep(BUSY + Duration::from_secs(1)).await;
        holder.execute_batch("ROLLBACK").unwrap();
    };
    let (kept, ()) = tokio::join!(keeping, letting_go);
    assert_eq!(kept.unwrap(), [WriteOutcome::Written]);
}

/// A client that names many models, or many users of one shared credential, cannot fill the disk with what is learned
/// about each.
#[tokio::test(flavor = "multi_thread")]
async fn learned_states_are_limited() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let learn = async |what: String, at: u64| {
        let record = Record { kind: RecordKind::Learned, ..turn(at.into(), "state", at) };
        store.put_if_absent(Scope::series(&what), vec![record]).await.unwrap();
    };
    let most = facts::MOST_SERIES as u64;
    for n in 0..most {
        learn(format!("model {n}"), n + 1).await;
    }
    // A client's session may have the same name: it is not affected.
    let named = Scope { tenant: "t".into(), ..Scope::series("model") };
    store.put_if_absent(named.clone(), vec![turn(1, "a", 1)]).await.unwrap();
    learn("model 0".to_owned(), most + 1).await;
    learn("one more".to_owned(), most + 2).await;
    let known = async |what: &str| !store.scan(Scope::series(what), 9).await.unwrap().is_empty();
    assert!(known("model 0").await);
    assert!(known("one more").await);
    assert!(known("model 2").await);
    assert!(!known("model 1").await, "it was unused longest");
    assert_eq!(store.scan(named.clone(), 9).await.unwrap().len(), 1);
    // What was not used for a long time is deleted.
    learn("much later".to_owned(), most + 2 + facts::SERIES_AGE).await;
    assert!(known("one more").await);
    assert!(known("much later").await);
    assert!(!known("model 0").await, "they were unused too long");
    assert!(!known("model 2").await, "they were unused too long");
    assert_eq!(store.scan(named, 9).await.unwrap().len(), 1);
}

/// A full pipe is a disk that hangs: nothing is written until somebody reads. The only worker is not held by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn hanging_append_holds_no_worker_and_can_be_given_up() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let (mut disk, file) = std::io::pipe().unwrap();
    store.file.writer.journal.write_to(File::from(OwnedFd::from(file)));
    let (recovers, recovered) = std::sync::mpsc::channel::<()>();
    let disk = std::thread::spawn(move || {
        // In the end it works again, whatever the test finds.
        let _ = recovered.recv_timeout(Duration::from_secs(10));
        drop(std::io::copy(&mut disk, &mut std::io::sink()));
    });
    let large = vec![turn(1, &"x".repeat(100_000), 1)];
    let append = store.append(scope("t", "s"), large, Precondition::default());
    let waited = tokio::time::timeout(Duration::from_millis(100), append).await;
    assert!(waited.is_err(), "it waited until the disk worked again");
    let other = tokio::time::timeout(Duration::from_secs(5), tokio::spawn(async {})).await;
    assert!(other.is_ok(), "the worker waits for the disk");
    recovers.send(()).unwrap();
    // It is stored all the same.
    while store.scan(scope("t", "s"), 9).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(store);
    disk.join().unwrap();
}
