mod bounds;
pub(super) mod scale;

use std::time::Instant;

use super::*;
use crate::context::Fact;
use crate::store::conformance::{self, scope, turn};

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
async fn facts_outlive_process() {
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

/// A copy of the folder is what a process finds that comes after `kill -9`.
#[tokio::test]
async fn appended_facts_outlive_crash() {
    let home = conformance::folder();
    let folders = ["first", "second", "third"].map(|name| home.path().join(name));
    let copy = |from: &Path, to: &Path| {
        std::fs::create_dir(to).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    let store = SqliteStore::open(&folders[0].join("p.db")).unwrap();
    let append =
        |key| store.append(scope("t", "s"), vec![turn(key, "kept", 1)], Precondition::default());
    append(1).await.unwrap();
    append(2).await.unwrap();
    copy(&folders[0], &folders[1]);
    let path = folders[1].join("p.db");
    let crashed = SqliteStore::open(&path).unwrap();
    let scan = crashed.scan(scope("t", "s"), 9).await.unwrap();
    assert_eq!(scan, [turn(1, "kept", 1), turn(2, "kept", 1)]);
    // It crashes again, after the session was deleted and before the file of its turns was.
    crashed.drop_scope(scope("t", "s")).await.unwrap();
    copy(&folders[1], &folders[2]);
    let left = std::fs::read_dir(&folders[0]).unwrap().map(|file| file.unwrap());
    for file in left.filter(|file| file.file_name().to_string_lossy().contains("-turns.")) {
        std::fs::copy(file.path(), folders[2].join(file.file_name())).unwrap();
    }
    let again = SqliteStore::open(&folders[2].join("p.db")).unwrap();
    assert_eq!(again.scan(scope("t", "s"), 9).await.unwrap(), [], "it does not come back");
    again.append(scope("t", "s"), vec![turn(3, "new", 1)], Precondition::default()).await.unwrap();
    assert_eq!(again.scan(scope("t", "s"), 9).await.unwrap(), [turn(3, "new", 1)]);
    let files = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    again.close().await.unwrap();
    assert_eq!(files(&folders[2]), 1, "a clean stop leaves one file");
}

/// People who read the file wait for no query.
#[tokio::test]
async fn appended_facts_come_into_file_by_themselves() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    let append = store.append(scope("t", "s"), vec![turn(1, "a", 1)], Precondition::default());
    append.await.unwrap();
    let connection = Connection::open(&path).unwrap();
    let count = || connection.query_row("SELECT count(*) FROM turns", [], |row| row.get(0));
    while count() != Ok(1) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn left_drafts_become_turns() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let value = r#"{"kind":"turn","exchange":"r","usage":{"input":40},"outcome":"interrupted"}"#;
    let draft =
        |key| Draft { scope: scope("t", "s"), record: turn(key, value, 10), since: Instant::now() };
    let first = SqliteStore::open(&path).unwrap();
    first.put_drafts(7, vec![draft(1), draft(2)], vec![2]).await.unwrap();
    drop(first);
    let second = SqliteStore::open(&path).unwrap();
    assert_eq!(second.adopt_drafts(9).await.unwrap(), [scope("t", "s")]);
    assert_eq!(second.scan(scope("t", "s"), 9).await.unwrap(), [draft(1).record]);
    assert_eq!(second.adopt_drafts(9).await.unwrap(), [], "once");
    let row = second.read(|connection| {
        let query = "SELECT outcome, input, (SELECT count(*) FROM drafts) FROM turns";
        connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    });
    assert_eq!(row.await.unwrap(), ("interrupted".to_owned(), 40i64, 0i64));
}

#[tokio::test]
async fn huge_sums_stay_integers() {
    const MOST: u64 = i64::MAX as u64;
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1), turn(2, TURN, 2)]).await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.execute("UPDATE facts SET output = ?1", [MOST as i64]).unwrap();
    connection.execute("UPDATE scopes SET input = ?1", [MOST as i64]).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(3, TURN, 3)]).await.unwrap();
    let list = store.scopes(ScopePage::first(9)).await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].input, MOST);
    let output = store.read(|connection| {
        connection.query_row("SELECT output FROM sessions", [], |row| row.get::<_, u64>(0))
    });
    assert_eq!(output.await.unwrap(), MOST);
}

#[tokio::test]
async fn other_layouts_are_refused() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    SqliteStore::open(&path).unwrap().close().await.unwrap();
    for (layout, reason) in [
        (
            schema::LAYOUT + 1,
            "a newer Plimsoll wrote it (layout 11, this one knows 10); use that one",
        ),
        (schema::LAYOUT - 1, "an earlier Plimsoll wrote it (layout 9, this one knows 10); move"),
    ] {
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", layout).unwrap();
        connection.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let trouble = SqliteStore::open(&path).err().unwrap().to_string();
        assert!(trouble.contains(reason), "{trouble}");
        assert_eq!(examine(&path).unwrap_err().to_string(), trouble);
        let copy = folder.path().join("copy.db");
        assert_eq!(backup(&path, &copy).unwrap_err().to_string(), trouble);
        assert!(std::fs::read(&path).unwrap() == bytes, "it was changed");
    }
}

#[test]
fn other_programs_files_are_refused() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    let trouble = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("another program"), "{trouble}");
    let tables = "SELECT count(*) FROM sqlite_schema";
    assert_eq!(connection.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

#[test]
fn wrong_paths_get_advice() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    std::fs::write(&path, "this is a letter, not a database".repeat(100)).unwrap();
    let trouble = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("not a database"), "{trouble}");
    assert!(trouble.contains("move it away"), "{trouble}");
    let below_a_file = path.join("p.db");
    let trouble = SqliteStore::open(&below_a_file).err().unwrap().to_string();
    assert!(trouble.contains("cannot be created"), "{trouble}");
    assert!(trouble.contains("--data"), "{trouble}");
}

/// A stream that broke off reported its input at the start: its error is in the view.
#[tokio::test]
async fn cut_streams_have_estimate_errors() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let errors = async |store: &SqliteStore| {
        let all = store.read(|connection| {
            let mut query = connection.prepare("SELECT error FROM turns")?;
            let errors = query.query_map([], |row| row.get::<_, Option<i64>>(0))?;
            errors.collect::<rusqlite::Result<Vec<_>>>()
        });
        all.await.unwrap()
    };
    let store = SqliteStore::open(&path).unwrap();
    let cut = r#"{"exchange":"r","position":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5,"lower_bound":true},"ended":30}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(1, cut, 10)]).await.unwrap();
    let silent = r#"{"exchange":"q","position":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"lower_bound":true},"ended":50}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(2, silent, 40)]).await.unwrap();
    assert_eq!(errors(&store).await, [Some(10), None]);
}

#[tokio::test]
async fn views_show_stored_turns() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let value = r#"{"exchange":"r","position":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5},"ended":30,"dollars":0.25}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(1, value, 10)]).await.unwrap();
    let row = store.read(|connection| {
        connection.query_row("SELECT thread, method, error, milliseconds FROM turns", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
    });
    let (thread, method, error, time): (String, String, i64, i64) = row.await.unwrap();
    assert_eq!(thread.as_str(), "th");
    assert_eq!(method.as_str(), "anchored");
    assert_eq!(error, 10);
    assert_eq!(time, 20);
    let sessions = store.read(|connection| {
        connection.query_row("SELECT turns, input, dollars FROM sessions", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
    });
    let (turns, input, dollars): (i64, i64, f64) = sessions.await.unwrap();
    assert_eq!(turns, 1);
    assert_eq!(input, 100);
    assert_eq!(dollars, 0.25);
}

/// Columns are read of what stands before the sketch, or taken from the turn itself: they are the same.
#[tokio::test]
async fn turns_with_sketch_have_columns() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let mut fact: Fact = serde_json::from_str(&scale::agents_turn(7)).unwrap();
    let Fact::Turn(written) = &mut fact else { panic!("{fact:?}") };
    Arc::make_mut(written).dollars = Some(0.25);
    let made = Some(written.clone());
    let value = serde_json::to_string(&fact).unwrap();
    assert!(value.contains(r#","sketch":"#));
    let read = turn(1, &value, 10);
    let made = Record { key: 2, turn: made, ..read.clone() };
    // Through the journal, which keeps turns.
    store.append(scope("t", "s"), vec![read, made], Precondition::default()).await.unwrap();
    assert_eq!(store.scan(scope("t", "s"), 9).await.unwrap().len(), 2);
    let columns = "thread, request, upstream, model, purpose, outcome, method, estimated, input, output, reasoning, \
                   cache_read, cache_write, window, ended, dollars";
    let joined = columns.replace(", ", " || '|' || ");
    let rows = store.read(move |connection| {
        let mut query = connection.prepare(&format!("SELECT {joined} FROM facts"))?;
        let rows = query.query_map([], |row| row.get::<_, Option<String>>(0))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    });
    let rows = rows.await.unwrap();
    assert!(rows[0].is_some(), "a column is missing");
    assert_eq!(rows[0], rows[1]);
    let sums = store.read(|connection| {
        let sums = "SELECT turns, input, output, cache_read FROM scopes";
        connection
            .query_row(sums, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
    });
    let sums: [u64; 4] = sums.await.unwrap();
    assert!(sums.iter().all(|sum| *sum > 0 && sum % 2 == 0), "{sums:?}");
}

const TURN: &str = r#"{"kind":"turn","exchange":"r","position":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5},"ended":30}"#;

pub(super) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Every query for requests and for retention reads its rows in the order of an index. Sorting could need disk space
/// that is not there.
#[tokio::test]
async fn no_query_sorts() {
    let sources = [include_str!("facts.rs"), include_str!("drafts.rs"), include_str!("upkeep.rs")];
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let mut connection = connect(&path).unwrap();
    schema::prepare(&mut connection, &path).unwrap();
    let mut seen = 0;
    for source in sources {
        for literal in source.split('"').skip(1).step_by(2) {
            let begin = literal.trim_start();
            if !begin.starts_with("SELECT ") && !begin.starts_with("DELETE FROM facts") {
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
async fn deleted_text_is_in_no_file() {
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
        let doomed = store
            .read(|it| it.query_row("SELECT count(*) FROM doomed", [], |row| row.get::<_, i64>(0)));
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
async fn clean_stop_leaves_one_whole_file() {
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
async fn deletion_survives_restart() {
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
async fn write_queue_is_bounded() {
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

/// A read that hangs delays neither the end of a runtime nor that of the process.
#[test]
fn hanging_reads_do_not_delay_end() {
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
async fn backup_is_whole_and_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = conformance::folder();
    let (path, copy) = (folder.path().join("p.db"), folder.path().join("copy.db"));
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let size = backup(&path, &copy).unwrap();
    let file = std::fs::metadata(&copy).unwrap();
    assert_eq!(size, file.len());
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(size > 4_096, "{size} bytes hold no store");
    let told = backup(&path, &copy).unwrap_err().to_string();
    assert!(told.contains("cannot be written"), "{told}");
    let copied = SqliteStore::open(&copy).unwrap();
    assert_eq!(copied.scan(scope("t", "s"), 9).await.unwrap(), [turn(1, TURN, 1)]);
}

/// A store is examined without being changed: its size includes the log beside it.
#[tokio::test]
async fn store_is_examined_with_its_log() {
    let folder = conformance::folder();
    let path = folder.path().join("p.db");
    let store = SqliteStore::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(length("p.db-wal") > 0);
    assert_eq!(examine(&path).unwrap(), length("p.db") + length("p.db-wal"));
    store.close().await.unwrap();
    drop(store);
    let letter = folder.path().join("letter.db");
    std::fs::write(&letter, "this is a letter, not a database".repeat(100)).unwrap();
    assert!(matches!(examine(&letter), Err(StoreError::Damaged(_))));
}

/// Queries of the admin API have their own threads, however slow they are. The number of waiting queries is reported.
#[tokio::test]
async fn admin_queries_do_not_delay_traffic() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, TURN, 1)]).await.unwrap();
    let admin = store.for_admin();
    let gates = (0..=ADMIN.threads).map(|_| std::sync::mpsc::channel::<()>());
    let (go, slow): (Vec<_>, Vec<_>) =
        gates.map(|(go, gate)| (go, admin.read(move |_| Ok(gate.recv().is_ok())))).unzip();
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
    assert_eq!(store.load().traffic, 0);
    assert_eq!(
        store.file.traffic.threads() + store.file.admin.threads(),
        TRAFFIC.threads + ADMIN.threads
    );
    drop(go);
    for slow in slow {
        assert!(!slow.await.unwrap());
    }
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    load(&|load| load.bytes == length("p.db") + length("p.db-wal") && load.admin == 0).await;
    store.close().await.unwrap();
    assert_eq!(
        store.file.traffic.threads() + store.file.admin.threads(),
        0,
        "the readers have ended"
    );
}

/// After a number of jobs, what is in the log is written to the file, and the log is used again.
#[tokio::test]
async fn checkpoints_come_after_many_jobs() {
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
async fn session_rows_count_their_bytes() {
    let folder = conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let row = async || {
        let row = store.read(|connection| {
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
    let kinds = store.read(|connection| {
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
