use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::store::conformance::{self, scope};
use crate::store::memory::MemoryStore;
use crate::store::sqlite::tests::{is_moved, move_some, moved, old_file, old_put};

fn cipher() -> Cipher {
    Cipher::of(&[7; 32])
}

/// A fact that contains two hashes and is stored under the first.
fn record(kind: RecordKind, hash: u128, at: u64) -> Record {
    let value =
        format!(r#"{{"kind":"x","about":"{hash:032x}","near":["{:032x}"],"at":{at}}}"#, !hash);
    Record { kind, key: hash, value: value.into(), at }
}

const KINDS: [RecordKind; 9] = [
    RecordKind::Turn,
    RecordKind::Reasoning,
    RecordKind::Cut,
    RecordKind::ReasoningDecision,
    RecordKind::Suspension,
    RecordKind::Summary,
    RecordKind::Compact,
    RecordKind::Queued,
    RecordKind::InjectedMessage,
];

/// One fact of each kind in each of `of` sessions.
fn records(of: u64) -> Vec<(Scope, Vec<Record>)> {
    let session = |n: u64| {
        let hash = |at: usize| xxhash_rust::xxh3::xxh3_128(format!("{n} {at}").as_bytes());
        let facts =
            KINDS.iter().enumerate().map(|(at, kind)| record(*kind, hash(at), n + at as u64));
        let fingerprint =
            Record { kind: RecordKind::Fingerprint, key: hash(99), value: Bytes::new(), at: n };
        (scope("t", &format!("s{n}")), facts.chain([fingerprint]).collect())
    };
    (0..of).map(session).collect()
}

#[tokio::test]
async fn conforms() {
    conformance::check(|| KeyedStore::over(MemoryStore::default(), cipher())).await;
}

#[tokio::test]
async fn the_store_file_contains_no_unkeyed_content_hash() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    let store = KeyedStore::open(&path).unwrap();
    for (scope, records) in records(20) {
        store.put_if_absent(scope, records).await.unwrap();
    }
    is_whole(&store, records(20)).await;
    store.sqlite().close().await.unwrap();
    assert_eq!(clear_hashes(&path, 20), 0);
    let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        std::fs::read_dir(folder.path())
            .unwrap()
            .filter(|it| { it.as_ref().unwrap().file_name().to_string_lossy().starts_with('.') })
            .count(),
        0,
        "no temporary file is left"
    );
    // The file alone is of no use to another installation.
    let other = KeyedStore {
        store: SqliteStore::open(&path).unwrap(),
        cipher: Cipher::of(&[8; 32]),
        is_mixed: Arc::default(),
    };
    let (scope, records) = records(1).remove(0);
    assert_eq!(other.get(scope, records[1].kind, records[1].key).await.unwrap(), None);
}

/// How many of the facts' hashes are in the files of a store, in hexadecimal or as bytes.
fn clear_hashes(path: &Path, of: u64) -> usize {
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
    let files = files
        .filter(|file| file.extension().is_some_and(|it| it.to_string_lossy().starts_with("db")));
    // A log file may disappear when the last connection closes.
    let bytes: Vec<u8> = files.filter_map(|file| std::fs::read(file).ok()).flatten().collect();
    let stands = |record: &Record| {
        let digits = format!("{:032x}", record.key);
        let is_raw = is_hash(record.kind)
            && memchr::memmem::find(&bytes, &record.key.to_be_bytes()).is_some();
        is_raw || memchr::memmem::find(&bytes, digits.as_bytes()).is_some()
    };
    records(of).iter().flat_map(|(_, records)| records).filter(|record| stands(record)).count()
}

/// Every fact is found by its key, by its fingerprint and in its session, once and unchanged. None is written twice.
async fn is_whole(store: &KeyedStore<SqliteStore>, records: Vec<(Scope, Vec<Record>)>) {
    for (scope, mut records) in records {
        let again = records.iter().map(|record| Record { at: record.at + 9, ..record.clone() });
        let puts = store.put_if_absent(scope.clone(), again.collect()).await.unwrap();
        let fingerprint = records.pop().unwrap();
        for (record, put) in records.iter().zip(puts) {
            assert_eq!(put, WriteOutcome::Existed(record.value.clone()), "{record:?}");
            let found = store.get(scope.clone(), record.kind, record.key).await.unwrap();
            assert_eq!(found.as_ref(), Some(&record.value));
            assert_eq!(store.holder(record.kind, record.key).await.unwrap(), Some(scope.clone()));
        }
        let session_by_fingerprint =
            store.session_by_fingerprint("t".into(), vec![5, fingerprint.key]).await.unwrap();
        assert_eq!(session_by_fingerprint, Some(scope.session.clone()));
        assert_eq!(store.scan(scope, 99).await.unwrap(), records);
    }
}

/// A file of an earlier version, with `of` sessions and a lesson.
fn earlier(path: &Path, of: u64) {
    let file = old_file(path);
    file.execute_batch("BEGIN").unwrap();
    for (scope, records) in records(of) {
        records.iter().for_each(|record| old_put(&file, &scope, record));
    }
    old_put(&file, &scope("", "~learned"), &lesson());
    file.execute_batch("COMMIT").unwrap();
}

fn lesson() -> Record {
    Record {
        kind: RecordKind::Learned,
        key: 3,
        value: "\"0123456789abcdef0123456789abcdef\"".into(),
        at: 1,
    }
}

fn encrypt_with(cipher: &Cipher) -> crate::store::sqlite::RekeyFact {
    let cipher = cipher.clone();
    Box::new(move |record| cipher.encrypted(record))
}

/// Wherever the migration was interrupted, every fact is there, in the old form or the new.
#[tokio::test]
async fn an_old_file_is_whole_after_each_step_of_its_migration() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    earlier(&path, 40);
    assert!(clear_hashes(&path, 40) > 390, "as earlier versions wrote it");
    let mut steps = 0;
    loop {
        // The store is opened after every step, as after a kill. Its own steps begin only a second later.
        let store = KeyedStore::open(&path).unwrap();
        is_whole(&store, records(40)).await;
        let lessons = store.scan(scope("", "~learned"), 9).await.unwrap();
        assert_eq!(lessons, [lesson()]);
        store.sqlite().close().await.unwrap();
        if is_moved(&path) {
            break;
        }
        move_some(&path, 100, &encrypt_with(&Cipher::open(folder.path()).unwrap()));
        steps += 1;
    }
    assert!(steps >= 2, "in {steps} steps");
    assert_eq!(clear_hashes(&path, 40), 0);
}

/// While it is in use, a file of an earlier version is moved to the new tables and keyed. No hash stays readable, not
/// even in the log.
#[tokio::test]
async fn an_old_file_is_keyed_while_the_store_is_in_use() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    earlier(&path, 40);
    let store = KeyedStore::open(&path).unwrap();
    while !is_moved(&path) {
        is_whole(&store, records(40)).await;
        is_whole(&store.for_admin(), records(40)).await;
    }
    is_whole(&store, records(40)).await;
    let until = Instant::now() + Duration::from_secs(20);
    while store.is_mixed() || clear_hashes(&path, 40) > 0 {
        assert!(Instant::now() < until, "{} stand there", clear_hashes(&path, 40));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A deleted fact is gone, whatever its key was.
    let (here, facts) = records(1).remove(0);
    store.drop_scope(here.clone()).await.unwrap();
    assert_eq!(store.get(here, facts[2].kind, facts[2].key).await.unwrap(), None);
    assert_eq!(store.session_by_fingerprint("t".into(), vec![facts[9].key]).await.unwrap(), None);
}

/// A process that moves a file is killed again and again, until one finishes.
#[tokio::test]
async fn a_file_is_whole_after_kill_9_while_it_is_keyed() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    earlier(&path, 200);
    for round in 0u32.. {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::keyed::tests::keys_a_file_for_another", "--ignored"])
            .env(KEYED, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_millis(10) * 2u32.pow(round.min(11));
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break Some(ended);
            }
            if Instant::now() > until {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::yield_now();
        };
        let store = KeyedStore::open(&path).unwrap();
        // Only some of them, because the store itself begins to move facts a second after it is opened.
        is_whole(&store, records(200).into_iter().step_by(9).collect()).await;
        store.sqlite().close().await.unwrap();
        if let Some(ended) = ended {
            assert!(ended.success() && is_moved(&path));
            break;
        }
        assert!(round < 16, "it never ends");
    }
    let store = KeyedStore::open(&path).unwrap();
    is_whole(&store, records(200)).await;
    store.sqlite().close().await.unwrap();
    assert_eq!(clear_hashes(&path, 200), 0);
}

/// The variable that names the file for the child process.
const KEYED: &str = "PLIMSOLL_TEST_KEYED";

#[test]
#[ignore = "the child of the test above"]
fn keys_a_file_for_another() {
    let Some(path) = std::env::var_os(KEYED) else { return };
    let path = Path::new(&path);
    drop(KeyedStore::open(path).unwrap());
    let rekey = encrypt_with(&Cipher::open(path.parent().unwrap()).unwrap());
    while !is_moved(path) {
        move_some(path, 16, &rekey);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first write wins, in the old form or the new.
#[tokio::test]
async fn earlier_decisions_apply_while_the_file_is_being_keyed() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    earlier(&path, 40);
    let store = KeyedStore::open(&path).unwrap();
    assert!(store.is_mixed());
    // A later session has a fingerprint of an earlier one. The earlier one is still being moved.
    let fingerprint = records(1).remove(0).1.pop().unwrap();
    let put = store.put_if_absent(scope("t", "later"), vec![fingerprint.clone()]).await.unwrap();
    assert_eq!(put, [WriteOutcome::Existed(Bytes::new())]);
    let new = record(RecordKind::Cut, u128::MAX / 3, 1);
    let (here, old) = records(1).remove(0);
    let cut = Record { value: "{}".into(), ..old[2].clone() };
    let puts = store.put_if_absent(here.clone(), vec![cut, new.clone()]).await.unwrap();
    assert_eq!(puts, [WriteOutcome::Existed(old[2].value.clone()), WriteOutcome::Written]);
    moved(&path).await;
    assert_eq!(
        store.session_by_fingerprint("t".into(), vec![fingerprint.key]).await.unwrap(),
        Some(here.session.clone())
    );
    assert_eq!(store.get(here, RecordKind::Cut, new.key).await.unwrap(), Some(new.value));
}

#[tokio::test]
async fn a_changed_or_unreadable_secret_is_reported() {
    let folder = crate::store::conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    assert!(!store.keyed_with(&[1; 32]).unwrap(), "the first");
    assert!(!store.keyed_with(&[1; 32]).unwrap());
    assert!(store.keyed_with(&[2; 32]).unwrap());
    std::fs::write(folder.path().join(FILE), "no secret").unwrap();
    let trouble = Cipher::open(folder.path()).err().unwrap().to_string();
    assert!(trouble.contains("64 hex digits") && trouble.contains("backup"), "{trouble}");
}

#[test]
fn each_secret_has_a_fingerprint_of_its_own() {
    let (one, other) = (cipher(), Cipher::of(&[8; 32]));
    assert_eq!(one.fingerprint(), cipher().fingerprint());
    assert_ne!(one.fingerprint(), other.fingerprint());
    assert_ne!(one.fingerprint(), &[7; 32], "it is not the secret");
}

/// Two processes that start at once use the secret of the first.
#[test]
fn a_secret_is_created_once_and_a_failure_leaves_no_file() {
    let folder = crate::store::conformance::folder();
    let (path, folder) = (folder.path().join(FILE), folder.path());
    make(folder, &path).unwrap();
    let first = std::fs::read(&path).unwrap();
    make(folder, &path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);
    let error = make(folder, &folder.join("missing").join(FILE)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "what was made meanwhile is gone");
}

/// A draft stores hashes as its turn does, and becomes a turn that can be read like any other.
#[tokio::test]
async fn a_draft_contains_no_unkeyed_content_hash() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    let store = KeyedStore::open(&path).unwrap();
    let record = record(RecordKind::Turn, u128::MAX / 7, 1);
    let (here, since) = (scope("t", "s"), Instant::now());
    let draft = Draft { scope: here.clone(), record: record.clone(), since };
    store.put_drafts(7, vec![draft], Vec::new()).await.unwrap();
    let digits = format!("{:032x}", record.key);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert_eq!(memchr::memmem::find(&bytes, digits.as_bytes()), None);
    }
    assert_eq!(store.adopt_drafts(8, Duration::ZERO).await.unwrap(), std::slice::from_ref(&here));
    assert_eq!(store.scan(here, 9).await.unwrap(), [record]);
}

/// Once nothing is left to move, rows without a keyed hash are not looked up any more.
#[tokio::test]
async fn after_the_migration_only_keyed_rows_are_found() {
    let inner = MemoryStore::default();
    let clear = record(RecordKind::Cut, 7, 1);
    inner.put_if_absent(scope("t", "s"), vec![clear.clone()]).await.unwrap();
    let store = KeyedStore::over(inner, cipher());
    assert_eq!(store.get(scope("t", "s"), RecordKind::Cut, 7).await.unwrap(), None);
    assert_eq!(store.holder(RecordKind::Cut, 7).await.unwrap(), None);
    let put = store.put_if_absent(scope("t", "s"), vec![clear.clone()]).await.unwrap();
    assert_eq!(put, [WriteOutcome::Written]);
    assert_eq!(store.get(scope("t", "s"), RecordKind::Cut, 7).await.unwrap(), Some(clear.value));
}

/// What keyed hashes cost per turn. `cargo test --release --lib keying_costs -- --ignored --nocapture`
#[test]
#[ignore = "prints a measurement"]
fn keying_costs() {
    let parts: Vec<String> = (0..12u128)
        .map(|n| format!(r#"{{"key":"{:032x}","tokens":12,"place":"history"}}"#, n * 77777))
        .collect();
    let value = format!(
        r#"{{"kind":"turn","sketch":[{}],"done":"{}"}}"#,
        parts.join(","),
        "a".repeat(1800)
    );
    let (cipher, rounds) = (cipher(), 10_000u32);
    let began = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(cipher.encrypt_value(std::hint::black_box(value.as_bytes())));
    }
    println!("{} bytes, 12 hashes: {:?} a turn", value.len(), began.elapsed() / rounds);
}

proptest! {
    #[test]
    fn encrypted_hashes_and_values_decrypt_to_the_originals(hash: u128, text in "([\"a-f0-9]{0,3}|\"[0-9a-f]{31,33}\"|[ {}:,\\\\]){0,12}") {
        let cipher = cipher();
        prop_assert_eq!(cipher.open_hash(cipher.encrypt_hash(hash)), hash);
        let keyed = cipher.encrypt_value(text.as_bytes());
        prop_assert_eq!(keyed.len(), text.len() + 1);
        prop_assert_eq!(cipher.open_value(keyed), Bytes::from(text.into_bytes()));
        let value = format!(r#"{{"a":"{hash:032x}","{:032x}":1}}"#, !hash);
        let keyed = cipher.encrypt_value(value.as_bytes());
        let expected = format!(r#" {{"a":"{:032x}","{:032x}":1}}"#, cipher.encrypt_hash(hash), cipher.encrypt_hash(!hash));
        prop_assert_eq!(&keyed[..], expected.as_bytes());
    }
}
