use super::*;
use crate::store::conformance::{self, scope, turn};

#[tokio::test]
async fn conforms() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    let fresh = || {
        count.set(count.get() + 1);
        Sqlite::open(&folder.path().join(format!("{}/p.db", count.get()))).unwrap()
    };
    conformance::check(fresh).await;
}

#[tokio::test]
async fn facts_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    let store = Sqlite::open(&path).unwrap();
    store.put_if_absent(scope("t", "s"), vec![turn(1, "kept", 1)]).await.unwrap();
    let key = store.tenant_key().await.unwrap();
    drop(store);
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.scan(scope("t", "s"), 99).await.unwrap(), [turn(1, "kept", 1)]);
    assert_eq!(store.tenant_key().await.unwrap(), key);
}

#[tokio::test]
async fn a_newer_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    drop(Sqlite::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let trouble = Sqlite::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("a newer Plimsoll wrote it (version 99"), "{trouble}");
    let version: i64 = connection.pragma_query_value(None, "user_version", |r| r.get(0)).unwrap();
    assert_eq!(version, 99);
}

#[test]
fn what_is_no_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    std::fs::write(&path, "this is a letter, not a database".repeat(100)).unwrap();
    let trouble = Sqlite::open(&path).err().unwrap().to_string();
    assert!(trouble.contains("not a database") && trouble.contains("move it away"), "{trouble}");
    let below_a_file = path.join("p.db");
    let trouble = Sqlite::open(&below_a_file).err().unwrap().to_string();
    assert!(trouble.contains("cannot be made") && trouble.contains("--data"), "{trouble}");
}

#[tokio::test]
async fn the_views_read_turns() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("p.db")).unwrap();
    let value = r#"{"request":"r","standing":{"thread":"th"},"estimate":{"tokens":110,"method":"anchored"},"usage":{"input":100,"output":5},"ended":30}"#;
    store.put_if_absent(scope("t", "s"), vec![turn(1, value, 10)]).await.unwrap();
    let row = store.read(|connection| {
        connection.query_row("SELECT thread, method, error, milliseconds FROM turns", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
    });
    let (thread, method, error, time): (String, String, i64, i64) = row.await.unwrap();
    assert_eq!((thread.as_str(), method.as_str(), error, time), ("th", "anchored", 10, 20));
    let sessions = store.read(|connection| {
        connection.query_row("SELECT turns, input FROM sessions", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    });
    assert_eq!(sessions.await.unwrap(), (1i64, 100i64));
}
