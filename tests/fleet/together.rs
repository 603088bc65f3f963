//! Processes on one server are one to people: what is set, lifted, spent or happens at one of them shows at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use plimsoll::store::live_events::ToldEvent;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::notes::StoredNote;
use plimsoll::store::redis::RedisStore;
use plimsoll::store::{LogPlace, Scope, Store};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::process::{Replica, provider};
use crate::server::{Engine, LIFE, Server};
use crate::support::http1::Wire;
use crate::support::within;

const ADMIN: &str = "a-token-of-the-operators";
const HERE: &str = "11111111-2222-3333-4444-555555555555";
const THERE: &str = "22222222-2222-3333-4444-555555555555";

fn variables(url: &str) -> [(&str, &str); 3] {
    [
        ("PLIMSOLL_STORE_URL", url),
        ("PLIMSOLL_STORE_SECRET", "0123456789abcdef0123456789abcdef"),
        ("PLIMSOLL_ADMIN_TOKEN", ADMIN),
    ]
}

fn look(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\naccept: application/json\r\nauthorization: Bearer {ADMIN}")
}

async fn value(replica: &Replica, path: &str) -> Value {
    serde_json::from_str(&replica.view(&look(path)).await).unwrap()
}

/// Sends turns of a session until one has this status: a change holds at another process within a second.
async fn becomes(replica: &Replica, session: &str, status: u16) {
    for _ in 0..600 {
        if replica.status_of(session, "Hail.").await == status {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{session} never gets {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caps_are_set_and_lifted_for_all() {
    let (server, provider) = (Server::start(Engine::Valkey).await, provider().await);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let variables = variables(&url);
    let (here, there) =
        tokio::join!(Replica::start(&provider, &variables), Replica::start(&provider, &variables));
    here.say(HERE, "Hail.").await;
    let limit = ["--of", "session", "--per", "month", "--tokens", "1"];
    let set = there.command(&[&["caps", "--set", "small"], &limit[..]].concat()).await;
    assert!(set.contains(HERE), "it counts what was spent elsewhere: {set}");
    becomes(&here, HERE, 402).await;
    // A session that only the other process knows is lifted here.
    becomes(&here, THERE, 402).await;
    let caps = value(&here, "/api/v1/caps").await;
    let mut subjects = caps["caps"].as_array().unwrap().iter().map(|cap| &cap["subject"]);
    let subject = subjects.find_map(|it| it.as_str().filter(|it| it.ends_with(THERE))).unwrap();
    let lifted = there.command(&["caps", "--lift", "small", "--of", subject]).await;
    assert!(lifted.contains("lifted until"), "{lifted}");
    becomes(&here, THERE, 200).await;
    assert_eq!(here.status_of(HERE, "Hail.").await, 402, "the others are not lifted");
    // One that starts later has it from its start.
    let late = Replica::start(&provider, &variables).await;
    assert_eq!(late.status_of(HERE, "Hail.").await, 402);
    assert_eq!(late.status_of(THERE, "Hail.").await, 200);
    late.command(&["caps", "--unset", "small"]).await;
    becomes(&here, HERE, 200).await;
    becomes(&there, HERE, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_day_is_one_sum() {
    let (server, provider) = (Server::start(Engine::Redis).await, provider().await);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let variables = variables(&url);
    let (here, there) =
        tokio::join!(Replica::start(&provider, &variables), Replica::start(&provider, &variables));
    let today = async |replica| value(replica, "/api/v1/line").await["today"].as_f64().unwrap();
    here.say(HERE, "Hail.").await;
    let one = today(&there).await;
    assert!(one > 0.0, "{one}");
    there.say(THERE, "Hail.").await;
    let both = today(&here).await;
    assert!(both > one, "{both} > {one}");
    assert_eq!(today(&there).await, both);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_hears_all() {
    let (mut server, provider) = (Server::start(Engine::Redis).await, provider().await);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let variables = variables(&url);
    let (here, there) =
        tokio::join!(Replica::start(&provider, &variables), Replica::start(&provider, &variables));
    let mut listening = Wire::connect(there.admin).await;
    listening.send(format!("{}\r\nhost: localhost\r\n\r\n", look("/api/v1/events"))).await;
    within("the stream", listening.until(": listening")).await;
    let mut heard = async |session: &str| {
        let mark = format!("\"session\":\"{session}\"");
        String::from_utf8(within(session, listening.until(&mark)).await).unwrap()
    };
    here.say(HERE, "Hail.").await;
    let mut all = heard(HERE).await;
    there.say(THERE, "Hail.").await;
    all += &heard(THERE).await;
    here.say("after", "Hail.").await;
    all += &heard("after").await;
    assert_eq!(all.matches("event: exchange").count(), 3, "each once: {all}");
    server.kill();
    there.say("alone", "Hail.").await;
    heard("alone").await;
}

fn told(numbers: std::ops::Range<u64>) -> Vec<ToldEvent> {
    let event =
        |number| ToldEvent { instance: 7, text: Bytes::from(format!("data: {number}\n\n")) };
    numbers.map(event).collect()
}

/// What every store that processes share does with notes of sessions.
async fn notes_are_read_with_the_session(store: &impl Store) {
    let scope = |session: &str| Scope { tenant: "t".into(), session: session.into() };
    let note =
        |key, text: &'static str| StoredNote { key, text: Bytes::from_static(text.as_bytes()) };
    let began = Instant::now();
    let put = async |note| store.put_note(scope("s"), note, began).await.unwrap();
    put(note(1, "{}")).await;
    put(note(2, "{\"a\":1}")).await;
    put(note(1, "{\"b\":2}")).await;
    let read = async |session| {
        let gain = store.scan_since(scope(session), began, LogPlace::default()).await.unwrap();
        assert_eq!(gain.records, []);
        let mut notes = gain.notes;
        notes.sort_by_key(|note| note.key);
        notes
    };
    assert_eq!(read("s").await, [note(1, "{\"b\":2}"), note(2, "{\"a\":1}")]);
    assert_eq!(read("other").await, []);
    let remove = async |note| store.remove_note(scope("s"), note).await.unwrap();
    assert!(!remove(note(1, "{}")).await, "it says something else by now");
    assert!(remove(note(1, "{\"b\":2}")).await);
    assert_eq!(read("s").await, [note(2, "{\"a\":1}")]);
    store.drop_scope(scope("s")).await.unwrap();
    put(note(1, "{}")).await;
    assert_eq!(read("s").await, [], "the writer knew the session before");
}

/// What every store that processes share does with events and changes of caps.
async fn all_is_told(store: Arc<impl Store>) {
    notes_are_read_with_the_session(&*store).await;
    store.tell_events(told(0..3)).await.unwrap();
    let begin = store.events_since(None).await.unwrap();
    assert_eq!(begin.events, [], "what was told before");
    assert_eq!(store.events_since(Some(begin.place)).await.unwrap(), begin);
    store.tell_events(told(3..5)).await.unwrap();
    let next = store.events_since(Some(begin.place)).await.unwrap();
    assert_eq!((next.events, next.missed), (told(3..5), 0));
    let text = |text: &'static str| Some(Bytes::from(text));
    assert_eq!(store.cap_changes().await.unwrap(), None);
    let replace = async |known, new| store.replace_cap_changes(known, new).await.unwrap();
    assert!(replace(None, "a".into()).await);
    assert!(!replace(None, "b".into()).await, "another one was faster");
    assert!(replace(text("a"), "c".into()).await);
    assert_eq!(store.cap_changes().await.unwrap(), text("c"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_stores_tell_all() {
    all_is_told(Arc::new(MemoryStore::default())).await;
    let server = Server::start(Engine::Valkey).await;
    let store = Arc::new(RedisStore::new(server.settings("p:"), LIFE));
    // Nobody listens.
    store.tell_events(told(0..3)).await.unwrap();
    assert_eq!(server.ask::<u64>(&["EXISTS", "p:{index}:events", "p:{index}:told"]).await, 0);
    all_is_told(store.clone()).await;
    let cluster = Cluster::start(Engine::Redis).await;
    all_is_told(Arc::new(RedisStore::new(cluster.settings("p:"), LIFE))).await;
    // Of more than are kept, the newest are there, and how many are not.
    let place = store.events_since(None).await.unwrap().place;
    for round in 0..11 {
        store.tell_events(told(round * 100..round * 100 + 100)).await.unwrap();
    }
    let newest = store.events_since(Some(place)).await.unwrap();
    assert_eq!((newest.events, newest.missed), (told(100..1100), 100));
}
