use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::store::conformance::{self, scope};
use crate::store::memory::MemoryStore;

fn cipher() -> Cipher {
    Cipher::new(&[7; 32])
}

/// A fact that contains two hashes and is stored under the first.
fn record(kind: RecordKind, hash: u128, at: u64) -> Record {
    let value =
        format!(r#"{{"kind":"x","about":"{hash:032x}","near":["{:032x}"],"at":{at}}}"#, !hash);
    Record { kind, key: hash, value: value.into(), at, turn: None }
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
        let fingerprint = Record {
            kind: RecordKind::Fingerprint,
            key: hash(99),
            value: Bytes::new(),
            at: n,
            turn: None,
        };
        (scope("t", &format!("s{n}")), facts.chain([fingerprint]).collect())
    };
    (0..of).map(session).collect()
}

#[tokio::test]
async fn conforms() {
    conformance::check(|| KeyedStore::over(MemoryStore::default(), cipher())).await;
}

/// Live events are on the server for others, and so for whoever can read there.
#[tokio::test]
async fn told_events_have_only_keyed_hashes() {
    let hash = format!("{:032x}", 7u128 << 100);
    let event =
        ToldEvent { instance: 1, text: format!("data: {{\"thread\":\"{hash}\"}}\n\n").into() };
    let store = KeyedStore::over(MemoryStore::default(), cipher());
    store.tell_events(vec![event.clone()]).await.unwrap();
    let kept = store.store.events_since(Some(0)).await.unwrap();
    assert!(!String::from_utf8_lossy(&kept.events[0].text).contains(&hash));
    assert_eq!(store.events_since(Some(0)).await.unwrap().events, [event]);
}

#[tokio::test]
async fn store_has_only_keyed_hashes() {
    let folder = crate::store::conformance::folder();
    let path = folder.path().join("p.db");
    let store = KeyedStore::open(&path).unwrap();
    for (scope, records) in records(20) {
        store.put_if_absent(scope, records).await.unwrap();
    }
    is_whole(&store, records(20)).await;
    is_whole(&store.for_admin(), records(20)).await;
    store.sqlite().close().await.unwrap();
    assert_eq!(clear_hashes(&path, 20), 0);
    let plain_folder = crate::store::conformance::folder();
    let plain_path = plain_folder.path().join("p.db");
    let plain = SqliteStore::open(&plain_path).unwrap();
    for (scope, records) in records(20) {
        plain.put_if_absent(scope, records).await.unwrap();
    }
    assert!(clear_hashes(&plain_path, 20) > 0, "the search finds hashes that are not keyed");
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
    let other =
        KeyedStore { store: SqliteStore::open(&path).unwrap(), cipher: Cipher::new(&[8; 32]) };
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

#[tokio::test]
async fn changed_secret_is_reported() {
    let folder = crate::store::conformance::folder();
    let store = SqliteStore::open(&folder.path().join("p.db")).unwrap();
    assert!(!store.keyed_with(&[1; 32]).unwrap(), "the first");
    assert!(!store.keyed_with(&[1; 32]).unwrap());
    assert!(store.keyed_with(&[2; 32]).unwrap());
    std::fs::write(folder.path().join(FILE), "no secret").unwrap();
    let trouble = Cipher::open(folder.path()).err().unwrap().to_string();
    assert!(trouble.contains("64 hex digits"), "{trouble}");
    assert!(trouble.contains("backup"), "{trouble}");
}

#[test]
fn secrets_have_fingerprints() {
    let (one, other) = (cipher(), Cipher::new(&[8; 32]));
    assert_eq!(one.fingerprint(), cipher().fingerprint());
    assert_ne!(one.fingerprint(), other.fingerprint());
    assert_ne!(one.fingerprint(), &[7; 32], "it is not the secret");
}

#[test]
fn secret_is_created_once() {
    let folder = crate::store::conformance::folder();
    let folder = folder.path();
    let first = Cipher::open(folder).unwrap();
    assert_eq!(Cipher::open(folder).unwrap().fingerprint(), first.fingerprint());
    let error = make(folder, &folder.join("missing").join(FILE)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "what was made meanwhile is gone");
}

/// A draft stores hashes as its turn does, and becomes a turn that can be read like any other.
#[tokio::test]
async fn drafts_have_only_keyed_hashes() {
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
    assert_eq!(store.adopt_drafts(8).await.unwrap(), std::slice::from_ref(&here));
    assert_eq!(store.scan(here, 9).await.unwrap(), [record]);
}

#[tokio::test]
async fn only_keyed_rows_are_found() {
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
    fn hashes_and_values_are_restored(hash: u128, text in "([\"a-f0-9]{0,3}|\"[0-9a-f]{31,33}\"|[ {}:,\\\\]){0,12}") {
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
