use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;
use crate::store::conformance::{self, scope};
use crate::store::memory::Memory;

fn cipher() -> Cipher {
    Cipher::of(&[7; 32])
}

/// A fact with two hashes, kept by a third.
fn record(kind: RecordKind, hash: u128, at: u64) -> Record {
    let value =
        format!(r#"{{"kind":"x","about":"{hash:032x}","near":["{:032x}"],"at":{at}}}"#, !hash);
    Record { kind, key: hash, value: value.into(), at }
}

const KINDS: [RecordKind; 9] = [
    RecordKind::Turn,
    RecordKind::Reasoning,
    RecordKind::Cut,
    RecordKind::Echo,
    RecordKind::Aside,
    RecordKind::Summary,
    RecordKind::Compact,
    RecordKind::Queued,
    RecordKind::Said,
];

/// As many facts of every kind, in so many sessions.
fn records(of: u64) -> Vec<(Scope, Vec<Record>)> {
    let session = |n: u64| {
        let hash = |at: usize| xxhash_rust::xxh3::xxh3_128(format!("{n} {at}").as_bytes());
        let facts =
            KINDS.iter().enumerate().map(|(at, kind)| record(*kind, hash(at), n + at as u64));
        let sign = Record { kind: RecordKind::Sign, key: hash(99), value: Bytes::new(), at: n };
        (scope("t", &format!("s{n}")), facts.chain([sign]).collect())
    };
    (0..of).map(session).collect()
}

#[tokio::test]
async fn conforms() {
    conformance::check(|| Keyed::over(Memory::default(), cipher())).await;
}

#[tokio::test]
async fn no_hash_of_content_stands_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    let store = Keyed::open(Sqlite::open(&path).unwrap(), folder.path()).unwrap();
    for (scope, records) in records(20) {
        store.put_if_absent(scope, records).await.unwrap();
    }
    is_whole(&store, 20).await;
    drop(store);
    assert_eq!(clear_hashes(&path, 20), 0);
    let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        std::fs::read_dir(folder.path())
            .unwrap()
            .filter(|it| { it.as_ref().unwrap().file_name().to_string_lossy().starts_with('.') })
            .count(),
        0,
        "nothing is left of making it"
    );
    // The file alone is of no use to another installation.
    let other = Keyed {
        store: Sqlite::open(&path).unwrap(),
        cipher: Cipher::of(&[8; 32]),
        is_mixed: Arc::default(),
    };
    let (scope, records) = records(1).remove(0);
    assert_eq!(other.get(scope, records[1].kind, records[1].key).await.unwrap(), None);
}

/// How many of the facts' hashes are found in the files of a store, as digits or as they are.
fn clear_hashes(path: &Path, of: u64) -> usize {
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
    let files = files
        .filter(|file| file.extension().is_some_and(|it| it.to_string_lossy().starts_with("db")));
    // A log goes with the last connection.
    let bytes: Vec<u8> = files.filter_map(|file| std::fs::read(file).ok()).flatten().collect();
    let stands = |record: &Record| {
        let digits = format!("{:032x}", record.key);
        let is_raw = is_hash(record.kind)
            && memchr::memmem::find(&bytes, &record.key.to_be_bytes()).is_some();
        is_raw || memchr::memmem::find(&bytes, digits.as_bytes()).is_some()
    };
    records(of).iter().flat_map(|(_, records)| records).filter(|record| stands(record)).count()
}

/// Every fact is found by its key, by its sign and in its session, once and as it was; none is written twice.
async fn is_whole(store: &Keyed<Sqlite>, of: u64) {
    for (scope, mut records) in records(of) {
        let again = records.iter().map(|record| Record { at: record.at + 9, ..record.clone() });
        let puts = store.put_if_absent(scope.clone(), again.collect()).await.unwrap();
        let sign = records.pop().unwrap();
        for (record, put) in records.iter().zip(puts) {
            assert_eq!(put, Put::Existed(record.value.clone()), "{record:?}");
            let found = store.get(scope.clone(), record.kind, record.key).await.unwrap();
            assert_eq!(found.as_ref(), Some(&record.value));
            assert_eq!(store.holder(record.kind, record.key).await.unwrap(), Some(scope.clone()));
        }
        let signed = store.signed("t".into(), vec![5, sign.key]).await.unwrap();
        assert_eq!(signed, Some(scope.session.clone()));
        assert_eq!(store.scan(scope, 99).await.unwrap(), records);
    }
}

/// What an earlier version wrote: 40 sessions, and a lesson.
async fn earlier(path: &Path) {
    let store = Sqlite::open(path).unwrap();
    for (scope, records) in records(40) {
        store.put_if_absent(scope, records).await.unwrap();
    }
    store.put_if_absent(scope("", "~learned"), vec![lesson()]).await.unwrap();
}

fn lesson() -> Record {
    Record {
        kind: RecordKind::Learned,
        key: 3,
        value: "\"0123456789abcdef0123456789abcdef\"".into(),
        at: 1,
    }
}

/// However far it came when it was ended, everything is there and in one form or the other.
#[tokio::test]
async fn a_file_of_an_earlier_version_is_turned_whatever_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    earlier(&path).await;
    assert!(clear_hashes(&path, 40) > 390, "as earlier versions wrote it");
    let cipher = Cipher::open(folder.path()).unwrap();
    for steps in 0.. {
        // Opened again after every batch, as after a kill.
        let store = Sqlite::open(&path).unwrap();
        let Keying { is_other, rest } = store.keying(cipher.fingerprint()).unwrap();
        assert!(!is_other);
        let is_mixed = Arc::new(AtomicBool::new(rest.is_some()));
        let store = Keyed { store, cipher: cipher.clone(), is_mixed };
        is_whole(&store, 40).await;
        let Some(mut rest) = rest else {
            assert!(steps >= 2, "in {steps} batches");
            assert_eq!(store.scan(scope("", "~learned"), 9).await.unwrap(), [lesson()]);
            break;
        };
        rest.step(&cipher).unwrap();
    }
    assert_eq!(clear_hashes(&path, 40), 0);
}

/// The first write wins, in whichever form it stands.
#[tokio::test]
async fn what_was_decided_before_holds_while_the_file_is_turned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    earlier(&path).await;
    let cipher = Cipher::open(folder.path()).unwrap();
    let store = Sqlite::open(&path).unwrap();
    let mut rest = store.keying(cipher.fingerprint()).unwrap().rest.unwrap();
    let store = Keyed { store, cipher: cipher.clone(), is_mixed: Arc::new(AtomicBool::new(true)) };
    // Another session shows a sign that one of before has, and goes on to be turned.
    let sign = records(1).remove(0).1.pop().unwrap();
    store.put_if_absent(scope("t", "later"), vec![sign.clone()]).await.unwrap();
    let new = record(RecordKind::Cut, u128::MAX / 3, 1);
    let (here, old) = records(1).remove(0);
    let cut = Record { value: "{}".into(), ..old[2].clone() };
    let puts = store.put_if_absent(here.clone(), vec![cut, new.clone()]).await.unwrap();
    assert_eq!(puts, [Put::Existed(old[2].value.clone()), Put::Written]);
    while rest.step(&cipher).unwrap() {}
    store.is_mixed.store(false, Ordering::Release);
    assert_eq!(store.signed("t".into(), vec![sign.key]).await.unwrap(), Some(here.session.clone()));
    assert_eq!(store.get(here, RecordKind::Cut, new.key).await.unwrap(), Some(new.value));
}

#[tokio::test]
async fn another_secret_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("p.db")).unwrap();
    assert!(!store.keying(&[1; 32]).unwrap().is_other, "the first");
    assert!(!store.keying(&[1; 32]).unwrap().is_other);
    assert!(store.keying(&[2; 32]).unwrap().is_other);
    std::fs::write(folder.path().join(FILE), "no secret").unwrap();
    let trouble = Cipher::open(folder.path()).err().unwrap().to_string();
    assert!(trouble.contains("64 hex digits") && trouble.contains("backup"), "{trouble}");
}

/// What keying costs a turn. `cargo test --release --lib keying_costs -- --ignored --nocapture`
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
        std::hint::black_box(cipher.seal_value(std::hint::black_box(value.as_bytes())));
    }
    println!("{} bytes, 12 hashes: {:?} a turn", value.len(), began.elapsed() / rounds);
}

proptest! {
    #[test]
    fn a_hash_and_a_value_come_back(hash: u128, text in "([\"a-f0-9]{0,3}|\"[0-9a-f]{31,33}\"|[ {}:,\\\\]){0,12}") {
        let cipher = cipher();
        prop_assert_eq!(cipher.open_hash(cipher.seal(hash)), hash);
        let keyed = cipher.seal_value(text.as_bytes());
        prop_assert_eq!(keyed.len(), text.len() + 1);
        prop_assert_eq!(cipher.open_value(keyed), Bytes::from(text.into_bytes()));
        let value = format!(r#"{{"a":"{hash:032x}","{:032x}":1}}"#, !hash);
        let keyed = cipher.seal_value(value.as_bytes());
        let expected = format!(r#" {{"a":"{:032x}","{:032x}":1}}"#, cipher.seal(hash), cipher.seal(!hash));
        prop_assert_eq!(&keyed[..], expected.as_bytes());
    }
}
