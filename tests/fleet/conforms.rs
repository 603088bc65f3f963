//! The store does what every store must do, on both engines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use plimsoll::store::precondition::Precondition;
use plimsoll::store::redis::{RedisServer, RedisStore};
use plimsoll::store::{
    LogPlace, Record, RecordKind, Scope, ScopePage, Store, StoreError, conformance,
};

use crate::cluster::Cluster;
use crate::sentinel::Watched;
use crate::server::{Engine, LIFE, Server};

/// Stores with nothing in them.
fn numbered(settings: impl Fn(&str) -> RedisServer) -> impl Fn() -> RedisStore {
    let stores = AtomicUsize::new(0);
    move || {
        let number = stores.fetch_add(1, Ordering::Relaxed);
        RedisStore::new(settings(&format!("test {number}:")), LIFE)
    }
}

fn here() -> Scope {
    Scope { tenant: "t".into(), session: "s".into() }
}

fn turn(key: u128, value: &'static str) -> Record {
    Record { kind: RecordKind::Turn, key, value: value.into(), at: 10, turn: None }
}

#[tokio::test]
async fn redis_conforms() {
    let server = Server::start(Engine::Redis).await;
    conformance::check(numbered(|prefix| server.settings(prefix))).await;
}

#[tokio::test]
async fn valkey_conforms() {
    let server = Server::start(Engine::Valkey).await;
    conformance::check(numbered(|prefix| server.settings(prefix))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_conform() {
    for engine in [Engine::Redis, Engine::Valkey] {
        let cluster = Cluster::start(engine).await;
        conformance::check(numbered(|prefix| cluster.settings(prefix))).await;
    }
}

#[tokio::test]
async fn watched_servers_conform() {
    let watched = Watched::start(Engine::Valkey).await;
    conformance::check(numbered(|prefix| watched.settings(prefix))).await;
}

/// A cluster is used as one, and nothing else is.
#[tokio::test]
async fn clusters_are_told_from_servers() {
    let cluster = Cluster::start(Engine::Redis).await;
    let why = async |settings: RedisServer| settings.examine().await.unwrap_err().to_string();
    assert_eq!(cluster.settings("p:").examine().await.unwrap(), None);
    let text = why(cluster.nodes[0].settings("p:")).await;
    assert!(text.contains("Write redis+cluster://"), "{text}");
    let single = Server::start(Engine::Redis).await;
    let text = why(RedisServer { is_cluster: true, ..single.settings("p:") }).await;
    assert!(text.contains("is no cluster"), "{text}");
    let slots = ["CLUSTER", "DELSLOTS", "5"];
    let _: String = cluster.nodes[0].ask(&slots).await;
    let text = why(RedisServer { is_cluster: true, ..cluster.nodes[0].settings("p:") }).await;
    assert!(text.contains("its state is fail: 16383 of 16384 slots"), "{text}");
}

/// A reader gets what was written since it last looked, also a turn that was completed later.
#[tokio::test]
async fn readers_read_on() {
    let server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    let began = Instant::now();
    let since = async |place| store.scan_since(here(), began, place).await.unwrap();
    assert_eq!(since(LogPlace::default()).await.records, []);
    let broken = r#"{"kind":"turn","outcome":"client_left"}"#;
    store.put_if_absent(here(), vec![turn(1, broken), turn(2, "b")]).await.unwrap();
    let first = since(LogPlace::default()).await;
    assert_eq!(first.records, [turn(1, broken), turn(2, "b")]);
    assert_eq!(since(first.place).await.records, []);
    let whole = r#"{"kind":"turn","outcome":"complete"}"#;
    // What stands behind the turn that is replaced is not missed.
    store.put_if_absent(here(), vec![turn(3, "c")]).await.unwrap();
    store.put_if_absent(here(), vec![turn(1, whole), turn(4, "d")]).await.unwrap();
    let second = since(first.place).await;
    assert_eq!(second.records, [turn(3, "c"), turn(1, whole), turn(4, "d")]);
    assert!(!second.is_deleted);
    store.drop_scope(here()).await.unwrap();
    assert!(since(second.place).await.is_deleted);
    let later = Instant::now();
    store.put(here(), vec![turn(5, "e")], Precondition::default()).await.unwrap();
    let anew = store.scan_since(here(), later, second.place).await.unwrap();
    assert!(!anew.is_deleted);
    assert_eq!(anew.records, [turn(5, "e")], "from the start of the new session");
}

/// Nothing is left of a deleted session but that it was deleted.
#[tokio::test]
async fn deletion_is_complete() {
    let server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    store.ready().await.unwrap();
    let keys = async || {
        let mut keys = server.ask::<Vec<String>>(&["KEYS", "*"]).await;
        keys.retain(|key| !key.contains("alive"));
        keys.sort();
        keys
    };
    let before = keys().await;
    let sign = Record { kind: RecordKind::Fingerprint, ..turn(7, "") };
    store.put_if_absent(here(), vec![turn(1, "a"), sign]).await.unwrap();
    assert_eq!(keys().await.len(), before.len() + 9);
    store.drop_scope(here()).await.unwrap();
    let left: Vec<String> = keys().await.into_iter().filter(|key| !before.contains(key)).collect();
    assert_eq!(left, ["p:{index}:bytes", "p:{t:s}:gone"]);
    let bytes: u64 = server.ask(&["GET", "p:{index}:bytes"]).await;
    assert_eq!(bytes, 0);
}

/// The server deletes what nobody uses, whether a process runs or not.
#[tokio::test]
async fn unused_sessions_have_an_end() {
    let server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), Duration::from_millis(300));
    store.put_if_absent(here(), vec![turn(1, "a")]).await.unwrap();
    assert_eq!(store.scan(here(), 9).await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(store.scan(here(), 9).await.unwrap(), []);
    assert_eq!(store.scopes(ScopePage::first(9)).await.unwrap(), []);
    assert_eq!(store.scopes_named("s".into()).await.unwrap(), []);
}

/// Scripts that the server lost are loaded again.
#[tokio::test]
async fn lost_scripts_are_loaded_again() {
    let server = Server::start(Engine::Valkey).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    store.put_if_absent(here(), vec![turn(1, "a")]).await.unwrap();
    let _: String = server.ask(&["SCRIPT", "FLUSH"]).await;
    store.put_if_absent(here(), vec![turn(2, "b")]).await.unwrap();
    assert_eq!(store.scan(here(), 9).await.unwrap().len(), 2);
}

/// What cannot be used says so in one line, and what to do.
#[tokio::test]
async fn unusable_servers_say_why() {
    let mut server = Server::with_options(Engine::Redis, &["--requirepass", "secret"]).await;
    let why = async |settings: plimsoll::store::redis::RedisServer| {
        settings.examine().await.unwrap_err().to_string()
    };
    let text = why(server.settings("p:")).await;
    assert!(text.contains("Set store.password"), "{text}");
    let mut settings = server.settings("p:");
    settings.password = Some("wrong".into());
    let text = why(settings.clone()).await;
    assert!(text.contains("Set store.password"), "{text}");
    assert!(!text.contains("wrong") && !text.contains('\n'), "{text}");
    settings.password = Some("secret".into());
    assert_eq!(settings.examine().await.unwrap(), None);
    let ours = RedisStore::new(settings.clone(), LIFE);
    ours.ready().await.unwrap();
    settings.fingerprint = "another".into();
    let text = why(settings.clone()).await;
    assert!(text.contains("another store.secret"), "{text}");
    settings.fingerprint = "".into();
    let mut login = server.connect().await;
    redis::cmd("AUTH").arg("secret").exec_async(&mut login).await.unwrap();
    for layout in [1, 9] {
        redis::cmd("SET").arg("p:{index}:layout").arg(layout).exec_async(&mut login).await.unwrap();
        let text = why(settings.clone()).await;
        assert!(text.contains("another version"), "{text}");
    }
    server.kill();
    let text = why(settings).await;
    assert!(text.contains("refused"), "{text}");
}

/// A server that evicts keys at random is warned of.
#[tokio::test]
async fn evicting_servers_are_warned_of() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::with_options(Engine::Redis, &options).await;
    let warning = server.settings("p:").examine().await.unwrap().unwrap();
    assert!(warning.contains("Set noeviction"), "{warning}");
}

/// A server without memory refuses writes, and is read all the same.
#[tokio::test]
async fn full_servers_are_read() {
    let server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    store.put_if_absent(here(), vec![turn(1, "a")]).await.unwrap();
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = store.put_if_absent(here(), vec![turn(2, "b")]).await;
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    assert_eq!(store.scan(here(), 9).await.unwrap(), [turn(1, "a")]);
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    store.put_if_absent(here(), vec![turn(2, "b")]).await.unwrap();
}

/// A server that is gone costs one wait, then none until it is back.
#[tokio::test]
async fn breaker_opens_and_closes() {
    let mut server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    store.put_if_absent(here(), vec![turn(1, "a")]).await.unwrap();
    server.freeze();
    let began = Instant::now();
    store.scan(here(), 9).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let began = Instant::now();
    store.scan(here(), 9).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
    server.kill();
    store.scan(here(), 9).await.unwrap_err();
    server.restart().await;
    let until = Instant::now() + Duration::from_secs(20);
    while store.scan(here(), 9).await.is_err() {
        assert!(Instant::now() < until, "it stays away");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.scan(here(), 9).await.unwrap(), [turn(1, "a")]);
}

/// A turn of a session that its client does not name leaves some three fingerprints. Those of all sessions share hashes, in
/// which each takes little more than its text; a key for each took 280 bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fingerprints_take_little() {
    const SESSIONS: u128 = 2_000;
    const EACH: u128 = 120;
    let server = Server::start(Engine::Redis).await;
    let store = RedisStore::new(server.settings("p:"), LIFE);
    store.ready().await.unwrap();
    let used = async || {
        let info: String = server.ask(&["INFO", "memory"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let fill = async |each: u128| {
        let before = used().await;
        for number in 0..SESSIONS {
            let scope = Scope {
                tenant: "e766c2f944764f40".into(),
                session: format!("line-{each:04x}{number:020x}").into(),
            };
            let fingerprints = (0..each).map(|nth| {
                let key =
                    (number * 1_000 + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                Record { kind: RecordKind::Fingerprint, ..turn(key, "") }
            });
            let records: Vec<Record> = [turn(1, "{}")].into_iter().chain(fingerprints).collect();
            store.put_if_absent(scope, records).await.unwrap();
        }
        used().await - before
    };
    let without = fill(0).await;
    let each = (fill(EACH).await - without) / (SESSIONS * EACH) as u64;
    assert!(each < 140, "{each} bytes for a fingerprint");
}
