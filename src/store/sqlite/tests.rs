use std::time::Instant;

use rusqlite::params;

use super::columns::blob;
use super::*;
use crate::store::claims::Claims;
use crate::store::conformance::{self, scope, turn};
use crate::store::keyed::KeyedStore;

#[tokio::test]
async fn conforms() {
    let folder = conformance::folder();
    let count = std::cell::Cell::new(0);
    let fresh = || {
        count.set(count.get() + 1);
        SqliteStore::open(&folder.path().join(format!("{}/p.db", count.get()))).unwrap()
    };
    conformance::check(fresh).await;
}

#[tokio::test]
async fn facts_outlive_the_process() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, "kept", 1)]).await.unwrap();
    let key = store.tenant_key().await.unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.scan(scope("t", "s"), 99).await.unwrap(), [turn(1, "kept", 1)]);
    assert_eq!(store.tenant_key().await.unwrap(), key);
}

/// A process that starts while no other runs knows that all earlier ones have ended.
#[tokio::test]
async fn drafts_of_an_ended_process_are_adopted_when_the_store_is_opened() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let value = r#"{"kind":"turn","request":"r","usage":{"input":40},"outcome":"interrupted"}"#;
    let draft =
        |key| Draft { scope: scope("t", "s"), record: turn(key, value, 10), since: Instant::now() };
    let first = SqliteStore::open(&path).unwrap();
    first.put_drafts(7, vec![draft(1), draft(2)], vec![2]).await.unwrap();
    // A second process at the same time does not take the drafts of the first as interrupted.
    let second = SqliteStore::open(&path).unwrap();
    assert_eq!(second.scan(scope("t", "s"), 9).await.unwrap(), []);
    assert_eq!(second.adopt_drafts(8, crate::store::drafts::LEASE).await.unwrap(), []);
    drop((first, second));
    let third = SqliteStore::open(&path).unwrap();
    assert_eq!(third.scan(scope("t", "s"), 9).await.unwrap(), [draft(1).record]);
    assert_eq!(third.adopt_drafts(9, crate::store::drafts::LEASE).await.unwrap().len(), 1);
    assert_eq!(third.adopt_drafts(9, crate::store::drafts::LEASE).await.unwrap(), [], "told once");
    let row = third.read(|connection, _| {
        let query = "SELECT outcome, input, (SELECT count(*) FROM drafts) FROM turns";
        connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    });
    assert_eq!(row.await.unwrap(), ("interrupted".to_owned(), 40i64, 0i64));
}

/// An older version stored whatever was reported, and sums past the largest integer were none any more.
#[tokio::test]
async fn sums_of_an_older_version_that_overflowed_break_nothing() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    for session in ["bad", "good"] {
        store.put_if_absent(scope("t", session), vec![turn(1, TURN, 1)]).await.unwrap();
    }
    store.close().await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "UPDATE scopes SET input = 9223372036854775807 + 9223372036854775807 WHERE session = 'bad';
             UPDATE facts SET output = 9223372036854775807;
             INSERT INTO facts (scope, kind, key, at, packed, value, thread, output)
                 SELECT scope, kind, zeroblob(16), at, packed, value, thread, output FROM facts;
             DROP VIEW sessions; DROP VIEW threads;
             CREATE VIEW threads AS SELECT session, thread, sum(output) AS output FROM turns
                 GROUP BY session, thread;
             CREATE VIEW sessions AS SELECT session, sum(output) AS output FROM threads
                 GROUP BY session;",
        )
        .unwrap();
    connection.pragma_update(None, "user_version", 5).unwrap();
    connection.close().unwrap();
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "bad"), vec![turn(2, TURN, 2)]).await.unwrap();
    let page = ScopePage { count: 9, skip: 0, after: None };
    let list = store.scopes(page).await.unwrap();
    let sums: Vec<_> = list.iter().map(|line| (line.scope.session.as_str(), line.input)).collect();
    assert_eq!(sums[0], ("bad", i64::MAX as u64));
    assert_eq!((sums.len(), sums[1].0), (2, "good"));
    let viewed = store.read(|connection, _| {
        connection.query_row("SELECT max(output) FROM sessions", [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(viewed.await.unwrap(), i64::MAX);
}

/// A file of the version before has its views, and gets the tables that it lacks.
#[tokio::test]
async fn a_file_of_the_previous_version_gets_the_missing_tables() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    store.close().await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch("DROP TABLE tombstones; DROP TABLE drafts; DROP TABLE instances")
        .unwrap();
    connection.pragma_update(None, "user_version", 2).unwrap();
    connection.close().unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let draft = Draft { scope: scope("t", "s"), record: turn(2, TURN, 2), since: Instant::now() };
    store.put_drafts(7, vec![draft], Vec::new()).await.unwrap();
    assert_eq!(store.adopt_drafts(8, Duration::ZERO).await.unwrap().len(), 1);
    let count = store.read(|connection, _| {
        connection.query_row("SELECT count(*) FROM turns", [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(count.await.unwrap(), 2);
}

#[tokio::test]
async fn a_newer_file_is_refused_and_left_alone() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    drop(SqliteStore::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let trouble = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("a newer Plimsoll wrote it (version 99"), "{trouble}");
    let version: i64 = connection.pragma_query_value(None, "user_version", |r| r.get(0)).unwrap();
    assert_eq!(version, 99);
}

#[test]
fn a_path_that_is_not_a_store_gets_an_error_with_advice() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    std::fs::write(&path, "this is a letter, not a database".repeat(100)).unwrap();
    let trouble = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("not a database") && trouble.contains("move it away"), "{trouble}");
    let below_a_file = path.join("p.db");
    let trouble = SqliteStore::open(&below_a_file).err().unwrap().to_string();
    assert!(trouble.contains("cannot be created") && trouble.contains("--data"), "{trouble}");
}

/// A stream that broke off reported its input at the start: its error is in the view, also in older files.
#[tokio::test]
async fn the_estimate_error_of_an_incomplete_stream_is_in_the_turns_view() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let errors = async |store: &SqliteStore| {
        let all = store.read(|connection, _| {
            let mut query = connection.prepare("SELECT error FROM turns")?;
            let errors = query.query_map([], |row| row.get::<_, Option<i64>>(0))?;
            errors.collect::<rusqlite::Result<Vec<_>>>()
        });
        all.await.unwrap()
    };
    let store = SqliteStore::open(&path).unwrap();
    let cut = r#"{"request":"r","standing":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5,"lower_bound":true},"ended":30}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(1, cut, 10)]).await.unwrap();
    let silent = r#"{"request":"q","standing":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"lower_bound":true},"ended":50}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(2, silent, 40)]).await.unwrap();
    assert_eq!(errors(&store).await, [Some(10), None]);
    store.close().await.unwrap();
    // As the version before wrote the view.
    let connection = Connection::open(&path).unwrap();
    let before = "CASE WHEN lower_bound THEN NULL ELSE estimated - facts.input END AS error";
    let before = views::TURNS.replace("estimated - facts.input AS error", before);
    connection.execute_batch(&format!("DROP VIEW turns; {}", views::turns_view(&before))).unwrap();
    connection.pragma_update(None, "user_version", 4).unwrap();
    connection.close().unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(errors(&store).await, [Some(10), None]);
}

#[tokio::test]
async fn the_turns_and_sessions_views_show_stored_turns() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let value = r#"{"request":"r","standing":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5},"ended":30}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(1, value, 10)]).await.unwrap();
    let row = store.read(|connection, _| {
        connection.query_row("SELECT thread, method, error, milliseconds FROM turns", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
    });
    let (thread, method, error, time): (String, String, i64, i64) = row.await.unwrap();
    assert_eq!((thread.as_str(), method.as_str(), error, time), ("th", "anchored", 10, 20));
    let sessions = store.read(|connection, _| {
        connection.query_row("SELECT turns, input FROM sessions", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    });
    assert_eq!(sessions.await.unwrap(), (1i64, 100i64));
}

/// A file as the release of the first version wrote it.
pub(in crate::store) fn old_file(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute_batch(schema::STEPS[0]).unwrap();
    connection.execute("INSERT INTO secrets VALUES ('tenant_key', ?1)", [[7u8; 32]]).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection
}

pub(in crate::store) fn old_put(connection: &Connection, scope: &Scope, record: &Record) {
    let Record { kind, key, value, at } = record;
    let (tenant, session) = (scope.tenant.as_str(), scope.session.as_str());
    let value = std::str::from_utf8(value).unwrap();
    if *kind == RecordKind::Fingerprint {
        let row = params![tenant, blob(*key), session, at];
        connection.execute("INSERT INTO signs VALUES (?1, ?2, ?3, ?4)", row).unwrap();
        return;
    }
    let row = params![tenant, session, kind.name(), blob(*key), at, value];
    let insert = "INSERT INTO records (tenant, session, kind, key, at, value)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    connection.execute(insert, row).unwrap();
}

const TURN: &str = r#"{"kind":"turn","request":"r","standing":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5},"ended":30}"#;

/// One record of each kind, and a later turn.
fn one_of_each(n: u128) -> Vec<Record> {
    let one = |kind: RecordKind| {
        let value = match kind {
            RecordKind::Fingerprint => String::new(),
            RecordKind::Turn => TURN.to_owned(),
            other => format!("{{\"{}\":\"{n}\"}}", other.name()),
        };
        Record { kind, ..turn(n, &value, 5) }
    };
    let kinds = RecordKind::ALL.iter().copied().filter(|kind| *kind != RecordKind::Learned);
    kinds.map(one).chain([turn(n + (1 << 64), TURN, 9)]).collect()
}

/// Checks all that a store returns for the sessions `0..count`, whether they are moved or not.
async fn finds(store: &KeyedStore<SqliteStore>, count: u128, what: &str) {
    for n in 0..count {
        let here = scope("t", &format!("s{n}"));
        let mut expected = one_of_each(n);
        for record in &expected {
            if record.kind == RecordKind::Fingerprint {
                let session_by_fingerprint =
                    store.session_by_fingerprint("t".into(), vec![record.key]).await.unwrap();
                assert_eq!(session_by_fingerprint.as_ref(), Some(&here.session), "{what}");
                continue;
            }
            let found = store.get(here.clone(), record.kind, record.key).await.unwrap();
            assert_eq!(found.as_ref(), Some(&record.value), "{what}: {:?} of {n}", record.kind);
            let put = store.put_if_absent(here.clone(), vec![record.clone()]).await.unwrap();
            assert_eq!(put, [WriteOutcome::Existed(record.value.clone())], "{what}");
        }
        let words = expected.iter().find(|it| it.kind == RecordKind::Content).unwrap().clone();
        let size = store.size(here.clone(), RecordKind::Content).await.unwrap();
        assert_eq!(size, words.value.len() as u64, "{what}");
        expected.retain(|it| !matches!(it.kind, RecordKind::Fingerprint | RecordKind::Content));
        assert_eq!(store.scan(here.clone(), 99).await.unwrap(), expected, "{what}: in order");
        assert_eq!(store.scan(here.clone(), 1).await.unwrap().last(), expected.last());
        assert_eq!(store.holder(RecordKind::Turn, n).await.unwrap(), Some(here.clone()), "{what}");
        assert_eq!(store.scopes_named(here.session.clone()).await.unwrap(), [here], "{what}");
    }
    let (rows, error): (u128, i64) = store
        .sqlite()
        .read(|connection, _| {
            let counted = "SELECT count(*), min(error) FROM turns WHERE session LIKE 's%'
                AND thread = 'th' AND time = '1970-01-01 00:00:00' AND method = 'anchored'";
            connection
                .query_row(counted, [], |row| Ok((row.get::<_, i64>(0)? as u128, row.get(1)?)))
        })
        .await
        .unwrap();
    assert_eq!((rows, error), (2 * count, 10), "{what}: the view");
}

pub(in crate::store) fn is_moved(path: &Path) -> bool {
    let connection = Connection::open(path).unwrap();
    let query = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'old%'";
    connection.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap() == 0
}

pub(in crate::store) async fn moved(path: &Path) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !is_moved(path) {
        assert!(std::time::Instant::now() < until, "it is still moving");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Moves the newest facts, as a running process does.
pub(in crate::store) fn move_some(path: &Path, count: usize, rekey: &RekeyFact) {
    let connection = connect(path).unwrap();
    tune(&connection).unwrap();
    let rule = RetentionRule { before: 0, max_bytes: u64::MAX };
    let step = || migration::step(&connection, rule, false, count, rekey);
    upkeep::in_transaction(&connection, step).unwrap();
}

/// Each fact is found while facts are being moved, and a later start continues where the last one ended.
#[tokio::test]
async fn a_file_of_the_first_version_keeps_every_fact() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let old = old_file(&path);
    for n in 0..50 {
        let here = scope("t", &format!("s{n}"));
        one_of_each(n).iter().for_each(|record| old_put(&old, &here, record));
    }
    let lesson = Record { kind: RecordKind::Learned, ..turn(1, "kept", 1) };
    old_put(&old, &scope("", "~learned"), &lesson);
    for at in 0..500 {
        let state = Record { kind: RecordKind::Learned, ..turn(at.into(), &format!("{at}"), at) };
        old_put(&old, &Scope::series("counting"), &state);
    }
    // While this query reads, the old tables keep their rows, so facts are found in both.
    drop(old);
    let store = KeyedStore::open(&path).unwrap();
    finds(&store, 50, "while it is moved").await;
    store.sqlite().close().await.unwrap();
    let store = KeyedStore::open(&path).unwrap();
    finds(&store, 50, "after another start").await;
    moved(&path).await;
    finds(&store, 50, "when all is moved").await;
    assert_eq!(store.tenant_key().await.unwrap(), [7; 32]);
    let learned = store.get(scope("", "~learned"), RecordKind::Learned, 1).await.unwrap();
    assert_eq!(learned, Some("kept".into()));
    let series = store.scan(Scope::series("counting"), 999).await.unwrap();
    assert_eq!(series.last().unwrap().value, "499");
    assert!(series.len() < 10, "{} of a series stayed", series.len());
    let lines = store.scopes(ScopePage::first(99)).await.unwrap();
    assert_eq!(lines.len(), 50);
    assert!(lines.iter().all(|line| (line.turns, line.input, line.records) == (2, 200, 12)));
    let clear = store.sqlite().read(|connection, _| {
        let counted = "SELECT count(*) FROM facts
            WHERE scope <> 1 AND kind <> 4 AND packed = 0 AND substr(value, 1, 1) <> ' '";
        connection.query_row(counted, [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(clear.await.unwrap(), 0, "all are keyed");
}

/// A fact that is not moved yet is found at its old place. Here nothing can be moved: a reader keeps an old snapshot of
/// the file, and the write lock is held.
#[test]
fn a_fact_that_is_not_migrated_yet_is_found_in_the_old_tables() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let old = old_file(&path);
    for n in 0..5 {
        let here = scope("t", &format!("s{n}"));
        one_of_each(n).iter().for_each(|record| old_put(&old, &here, record));
    }
    drop(old);
    let mut connection = connect(&path).unwrap();
    schema::prepare(&mut connection, &path).unwrap();
    let here = scope("t", "s3");
    let mut expected = one_of_each(3);
    assert_eq!(
        legacy::value_at(&connection, &here, RecordKind::Cut, 3).unwrap().unwrap(),
        "{\"cut\":\"3\"}"
    );
    assert_eq!(
        legacy::session_by_fingerprint(&connection, &here.tenant, 3).unwrap(),
        Some("s3".into())
    );
    assert_eq!(legacy::holder(&connection, RecordKind::Turn, 3).unwrap(), Some(here.clone()));
    assert_eq!(legacy::named(&connection, &here.session).unwrap(), std::slice::from_ref(&here));
    assert_eq!(legacy::size(&connection, &here, RecordKind::Content).unwrap(), 13);
    expected.retain(|it| !matches!(it.kind, RecordKind::Fingerprint | RecordKind::Content));
    assert_eq!(legacy::scan(&connection, &here, 99).unwrap().len(), expected.len());
    let puts = facts::put(&connection, true, &here, &one_of_each(3)).unwrap();
    assert!(puts.iter().all(|put| *put != WriteOutcome::Written), "{puts:?}");
    assert_eq!(legacy::drop_scope(&connection, &here).unwrap(), 11);
    assert_eq!(legacy::named(&connection, &here.session).unwrap(), []);
    // Its fingerprint is still stored, but finds no session. It is deleted when it would be moved.
    assert_eq!(legacy::drop_scope(&connection, &scope("t", "s4")).unwrap(), 11);
    assert_eq!(legacy::session_by_fingerprint(&connection, &here.tenant, 4).unwrap(), None);
    assert_eq!(
        legacy::session_by_fingerprint(&connection, &here.tenant, 2).unwrap(),
        Some("s2".into())
    );
}

/// If a file is much larger than its limit, the newest sessions are moved and the rest is left out.
#[tokio::test]
async fn facts_past_the_age_or_size_limit_are_not_migrated() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let old = old_file(&path);
    let long = "x".repeat(10_000);
    old.execute_batch("BEGIN").unwrap();
    for n in 0..300 {
        let here = scope("t", &format!("s{n}"));
        old_put(&old, &here, &turn(1, &long, 1000 + n));
        old_put(&old, &here, &Record { kind: RecordKind::Content, ..turn(1, &long, 1000 + n) });
    }
    old.execute_batch("COMMIT").unwrap();
    drop(old);
    let store = SqliteStore::open(&path).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let gone = store.expire(1100, 1_000_000).await.unwrap();
        if !gone.more && is_moved(&path) && file_bytes(&path) < 4_000_000 {
            break;
        }
        assert!(std::time::Instant::now() < until, "{gone:?}, {} bytes", file_bytes(&path));
    }
    let lines = store.scopes(ScopePage::first(999)).await.unwrap();
    assert!((20..150).contains(&lines.len()), "{} sessions stay", lines.len());
    assert_eq!(lines[0].scope.session, "s299");
}

pub(super) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Every query for requests and for retention reads its rows in the order of an index. Sorting could need disk space
/// that is not there.
#[tokio::test]
async fn no_store_query_needs_a_temporary_sort() {
    let sources = [include_str!("facts.rs"), include_str!("upkeep.rs"), include_str!("legacy.rs")];
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    drop(old_file(&path));
    let mut connection = connect(&path).unwrap();
    // With rows in the old tables, too.
    connection.execute_batch("INSERT INTO records VALUES (1, '', '', '', x'', 0, '')").unwrap();
    schema::prepare(&mut connection, &path).unwrap();
    let mut seen = 0;
    for source in sources {
        let literals = source.split("decides!()").collect::<Vec<_>>().join(" kind = 'cut' ");
        for literal in literals.split('"').skip(1).step_by(2) {
            let is_whole = literal.trim_start().starts_with("SELECT ")
                || literal.trim_start().starts_with("DELETE FROM facts");
            if !is_whole || literal.contains('{') || literal.trim_end().ends_with("AND NOT") {
                continue;
            }
            let Ok(mut plan) = connection.prepare(&format!("EXPLAIN QUERY PLAN {literal}")) else {
                continue;
            };
            seen += 1;
            let steps = plan.raw_query().mapped(|row| row.get::<_, String>(3));
            for step in steps {
                let step = step.unwrap();
                assert!(!step.contains("TEMP B-TREE"), "{step} in {literal}");
            }
        }
    }
    assert!(seen > 20, "only {seen} queries");
}

/// Soon after a session is deleted, its texts are in no file of the folder, though others read and write meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_deleted_session_is_in_no_file() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let canary = |n: u64| format!("canary-{n}-of-the-session");
    let here = scope("t", "secret");
    for n in 0..200 {
        let value = format!("{} {}", canary(n), "and more words of it. ".repeat(n as usize / 2));
        let records =
            RecordKind::ALL.iter().copied().filter(|kind| *kind != RecordKind::Fingerprint);
        let records = records.map(|kind| Record { kind, ..turn(n.into(), &value, n) });
        store.put_if_absent(here.clone(), records.collect()).await.unwrap();
        let other = scope("t", &format!("other {}", n % 7));
        store
            .put_if_absent(other, vec![turn(n.into(), &value.replace("canary", "other"), n)])
            .await
            .unwrap();
    }
    assert!(!holding(folder.path(), b"canary-").is_empty(), "it was never there");
    let busy = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 1000u64.. {
                let other = scope("t", &format!("other {}", n % 7));
                store.put_if_absent(other.clone(), vec![turn(n.into(), "busy", n)]).await.unwrap();
                store.scan(other, 99).await.unwrap();
                store.for_admin().scopes(ScopePage::first(9)).await.unwrap();
            }
        })
    };
    assert_eq!(store.drop_scope(here.clone()).await.unwrap(), 200 * 11);
    assert_eq!(store.scan(here, 9).await.unwrap(), []);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        let holding = holding(folder.path(), b"canary-");
        if holding.is_empty() {
            break;
        }
        let doomed = store.read(|it, _| {
            it.query_row("SELECT count(*) FROM doomed", [], |row| row.get::<_, i64>(0))
        });
        let doomed = doomed.await.unwrap();
        assert!(std::time::Instant::now() < until, "{holding:?}, {doomed} to be deleted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    busy.abort();
}

/// The files that contain a word, and how often.
fn holding(folder: &Path, word: &[u8]) -> Vec<(std::ffi::OsString, usize)> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let counted = files.map(|file| {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        (file.file_name(), memchr::memmem::find_iter(&bytes, word).count())
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn a_clean_stop_leaves_one_whole_file() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    for n in 0..300 {
        store.put_if_absent(scope("t", "s"), vec![turn(n, "kept", 1)]).await.unwrap();
    }
    store.close().await.unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(store.put_if_absent(scope("t", "s"), vec![turn(1, "late", 1)]).await.is_err());
    for store in [store.clone(), store.for_admin()] {
        assert!(matches!(store.scan(scope("t", "s"), 9).await, Err(StoreError::Closed)));
    }
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let copy = SqliteStore::open(&copy).unwrap();
    assert_eq!(copy.scan(scope("t", "s"), 999).await.unwrap().len(), 300);
}

/// Deleting, and returning space to the disk, continue after a restart in the middle.
#[tokio::test]
async fn deletion_continues_after_a_restart_and_the_file_shrinks() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let long = "x".repeat(20_000);
    for n in 0..400 {
        let words = Record { kind: RecordKind::Content, ..turn(n, &long, 1) };
        store.put_if_absent(scope("t", "old"), vec![turn(n, "t", 1), words]).await.unwrap();
    }
    store.put_if_absent(scope("t", "new"), vec![turn(1, "t", 9)]).await.unwrap();
    assert_eq!(store.expire(5, u64::MAX).await.unwrap().scopes, [scope("t", "old")]);
    store.close().await.unwrap();
    assert!(file_bytes(&path) > 7_000_000, "it was deleted at once: {}", file_bytes(&path));
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.scan(scope("t", "old"), 9).await.unwrap(), []);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while store.load().bytes > 5_000_000 || file_bytes(&path) > 4_000_000 {
        assert!(std::time::Instant::now() < until, "{} bytes", store.load().bytes);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.scan(scope("t", "new"), 9).await.unwrap().len(), 1);
}

/// The disk hangs, and turns keep coming.
#[tokio::test]
async fn the_writer_queue_is_bounded_in_bytes() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let stands_still = Connection::open(&path).unwrap();
    stands_still.execute_batch("BEGIN IMMEDIATE").unwrap();
    let value = "x".repeat(1 << 20);
    let put = |key| store.put_if_absent(scope("t", "s"), vec![turn(key, &value, 1)]);
    // The writer has taken some of them for its next transaction: up to 4 MiB and the one that it began with.
    let mut waiting = Vec::new();
    let mut refused = 0;
    for key in 0..60 {
        let mut putting = put(key);
        match futures_util::FutureExt::now_or_never(&mut putting) {
            Some(Err(StoreError::Closed)) => refused += 1,
            _ => waiting.push(putting),
        }
        assert!(store.load().write_bytes <= QUEUE_BYTES);
    }
    assert!(refused >= 60 - 16 - 8, "{refused} of 60 MiB were refused");
    stands_still.execute_batch("COMMIT").unwrap();
    for putting in waiting {
        putting.await.unwrap();
    }
    assert_eq!(store.load().write_bytes, 0);
    put(99).await.unwrap();
}

/// A panic loses what was being written, not the store.
#[tokio::test]
async fn the_thread_that_writes_goes_on_after_a_panic() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let old = old_file(&path);
    old_put(&old, &scope("t", "old"), &turn(1, "{}", 1));
    drop(old);
    // Facts of an earlier version are moved to the new tables, and each attempt panics.
    let began = Instant::now();
    let store = SqliteStore::open_rekeying(&path, Box::new(|_| panic!("a mistake"))).unwrap();
    let again = async {
        while store.load().restarts < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), again).await.expect("it goes on");
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "a second after the start, then each second"
    );
    let put = store.put_if_absent(scope("t", "s"), vec![turn(2, "{}", 2)]).await.unwrap();
    assert_eq!(put, [WriteOutcome::Written]);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap().len(), 1);
    store.close().await.unwrap();
}

/// A read that hangs delays neither the end of a runtime nor that of the process.
#[test]
fn a_hanging_read_does_not_delay_the_end_of_the_runtime() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (told, ended) = std::sync::mpsc::channel();
    let closing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let _hangs = store.file.traffic.query(move |_| Ok(gate.recv().is_ok()));
            while store.load().traffic > 0 {
                tokio::task::yield_now().await;
            }
            let close = tokio::time::timeout(Duration::from_millis(20), store.close());
            assert!(close.await.is_err(), "the read still hangs");
        });
        drop(runtime);
        told.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    drop(go);
    ended.expect("the runtime waited for the read");
    closing.join().unwrap();
}

/// A copy is complete, belongs to the same user alone, and never replaces a file.
#[tokio::test]
async fn a_backup_is_complete_private_and_never_replaces_a_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = conformance::folder();
    let (path, copy) = (folder.path().join("p.db"), folder.path().join("copy.db"));
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let size = backup(&path, &copy).unwrap();
    let file = std::fs::metadata(&copy).unwrap();
    assert_eq!((size, file.permissions().mode() & 0o777), (file.len(), 0o600));
    assert!(size > 4_096, "{size} bytes hold no store");
    let told = backup(&path, &copy).unwrap_err().to_string();
    assert!(told.contains("cannot be written"), "{told}");
    let copied = SqliteStore::open(&copy).unwrap();
    assert_eq!(copied.scan(scope("t", "s"), 9).await.unwrap(), [turn(1, TURN, 1)]);
}

/// A store is examined without being changed: its size includes the log beside it, and a newer version is refused.
#[tokio::test]
async fn a_store_is_examined_with_its_log_and_a_newer_one_is_refused() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(length("p.db-wal") > 0);
    assert_eq!(examine(&path).unwrap(), length("p.db") + length("p.db-wal"));
    store.close().await.unwrap();
    drop(store);
    for (version, is_refused) in [(schema::STEPS.len(), false), (schema::STEPS.len() + 1, true)] {
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", version as i64).unwrap();
        connection.close().unwrap();
        assert_eq!(examine(&path).is_err(), is_refused, "version {version}");
        let copy = folder.path().join(format!("copy-{version}.db"));
        assert_eq!(backup(&path, &copy).is_err(), is_refused, "version {version}");
    }
    let letter = folder.path().join("letter.db");
    std::fs::write(&letter, "this is a letter, not a database".repeat(100)).unwrap();
    assert!(matches!(examine(&letter), Err(StoreError::Damaged(_))));
}

/// A session that is partly moved is read as if all of it were in one place: the newest facts, and all decisions in
/// order.
#[tokio::test]
async fn a_session_that_is_partly_moved_is_read_and_deleted_as_a_whole() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let old = old_file(&path);
    let cut = |key: u128| Record { kind: RecordKind::Cut, ..turn(key, "{}", key as u64) };
    let of_session = |at: u128| turn(at, TURN, at as u64);
    let all: Vec<Record> = (1..4).map(cut).chain((4..9).map(of_session)).collect();
    all.iter().for_each(|record| old_put(&old, &scope("t", "s"), record));
    drop(old);
    SqliteStore::open(&path).unwrap().close().await.unwrap();
    move_some(&path, 3, &(Box::new(|record| record) as RekeyFact));
    let store = SqliteStore::open(&path).unwrap();
    assert!(!is_moved(&path));
    for newest in [0, 2, 4, 9] {
        let mut expected = all.clone();
        expected.retain(|it| it.kind == RecordKind::Cut || it.key as usize + newest > 8);
        assert_eq!(store.scan(scope("t", "s"), newest).await.unwrap(), expected, "{newest}");
    }
    let size = store.size(scope("t", "s"), RecordKind::Cut).await.unwrap();
    assert_eq!(size, 6, "the values of both layouts");
    assert_eq!(store.drop_scope(scope("t", "s")).await.unwrap(), 8);
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap(), []);
}

/// Queries of the admin API have their own threads, however slow they are. The number of waiting queries is reported.
#[tokio::test]
async fn admin_queries_do_not_delay_traffic_and_their_load_is_reported() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let admin = store.for_admin();
    let gates = (0..=ADMIN.threads).map(|_| std::sync::mpsc::channel::<()>());
    let (go, slow): (Vec<_>, Vec<_>) =
        gates.map(|(go, gate)| (go, admin.read(move |_, _| Ok(gate.recv().is_ok())))).unzip();
    let load = async |wanted: &dyn Fn(&StoreLoad) -> bool| {
        let reached = async {
            while !wanted(&store.load()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reached).await.expect("it is told");
    };
    load(&|load| load.admin == 1).await;
    let scanned = tokio::time::timeout(Duration::from_secs(20), store.scan(scope("t", "s"), 9));
    assert_eq!(scanned.await.unwrap().unwrap().len(), 1);
    assert_eq!(
        (store.load().traffic, store.load().threads),
        (0, TRAFFIC.threads + ADMIN.threads + 2)
    );
    drop(go);
    for slow in slow {
        assert!(!slow.await.unwrap());
    }
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    load(&|load| load.bytes == length("p.db") + length("p.db-wal") && load.admin == 0).await;
    store.close().await.unwrap();
    assert_eq!(store.load().threads, 2, "the readers have ended");
}

/// After a number of jobs, what is in the log is written to the file, and the log is used again.
#[tokio::test]
async fn a_checkpoint_comes_after_so_many_jobs() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let log = beside(&path, "-wal");
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < until, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until("upkeep after the start empties it", &|| file_bytes(&log) == 0).await;
    let before = file_bytes(&path);
    let put = async |key| {
        store.put_if_absent(scope("t", "s"), vec![turn(key, TURN, 1)]).await.unwrap();
    };
    for key in 0..900 {
        put(key).await;
    }
    assert_eq!(file_bytes(&path), before, "it waits for more");
    for key in 900..1100 {
        put(key).await;
    }
    until("no checkpoint came", &|| file_bytes(&path) > before).await;
}

/// One row per record in the view that people read, as text where it is text. The session's row counts their size.
#[tokio::test]
async fn a_sessions_row_counts_what_its_records_take() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let row = async || {
        let row = store.read(|connection, _| {
            let row = "SELECT records, bytes FROM scopes WHERE session = 's'";
            connection.query_row(row, [], |row| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?)))
        });
        row.await.unwrap()
    };
    let content = |key, value: &'static [u8]| Record {
        kind: RecordKind::Content,
        value: Bytes::from_static(value),
        ..turn(key, "", 1)
    };
    let fingerprint = Record { kind: RecordKind::Fingerprint, ..turn(3, "", 1) };
    let records = vec![content(1, "é".as_bytes()), content(2, &[0xff; 10]), fingerprint];
    store.put_if_absent(scope("t", "s"), records).await.unwrap();
    assert_eq!(row().await, (3, (2 + 160) + (10 + 160) + 90));
    let kinds = store.read(|connection, _| {
        let kinds =
            "SELECT group_concat(typeof(value)) FROM (SELECT value FROM facts ORDER BY key)";
        connection.query_row(kinds, [], |row| row.get::<_, String>(0))
    });
    assert_eq!(kinds.await.unwrap(), "text,blob");
    // A turn that replaces an interrupted one counts instead of it.
    let turn_of = |outcome: &str| turn(7, &format!(r#"{{"outcome":"{outcome}"}}"#), 1);
    for (outcome, bytes) in [("interrupted", 25), ("complete", 22)] {
        store.put_if_absent(scope("t", "s"), vec![turn_of(outcome)]).await.unwrap();
        assert_eq!(row().await, (4, (2 + 160) + (10 + 160) + 90 + bytes + 160), "{outcome}");
    }
}

/// A process that starts waits for another that is starting, and then shares the folder.
#[test]
fn a_start_waits_for_another_start_and_shares_the_folder() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let other = std::fs::File::open(folder.path()).unwrap();
    other.lock().unwrap();
    let starting = std::thread::spawn(move || {
        let mut is_alone = false;
        let began = Instant::now();
        let lock = FolderLock::take(&path, || is_alone = true);
        (is_alone, began.elapsed(), lock)
    });
    std::thread::sleep(Duration::from_millis(100));
    other.unlock().unwrap();
    let (is_alone, waited, lock) = starting.join().unwrap();
    assert!(!is_alone && waited < Duration::from_secs(4), "{waited:?}");
    assert!(other.try_lock().is_err(), "it has the folder");
    other.try_lock_shared().unwrap();
    other.unlock().unwrap();
    drop(lock);
    assert!(other.try_lock().is_ok());
}

#[tokio::test]
async fn the_claims_of_processes_that_ended_are_dropped_at_the_start() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let claim = async |store: &SqliteStore, holder| {
        Claims::new(Arc::new(store.clone())).claim("a summary", holder, 5, 1000).await.unwrap()
    };
    let first = SqliteStore::open(&path).unwrap();
    assert!(claim(&first, 1).await);
    let second = SqliteStore::open(&path).unwrap();
    assert!(!claim(&second, 2).await, "the first one is there");
    drop((first, second));
    let third = SqliteStore::open(&path).unwrap();
    assert!(claim(&third, 3).await, "both have ended");
}
