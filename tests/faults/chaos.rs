//! The program between clients and an upstream that both misbehave, while its store and its life are in danger.
//!
//! `PLIMSOLL_CHAOS_MINUTES` says for how long (12 s without), `PLIMSOLL_CHAOS_SEED` which dice. Where
//! `PLIMSOLL_CHAOS_SMALL` names a small disk, the data folder is there and the disk is filled now and then.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use plimsoll::context::Fact;
use plimsoll::store::sqlite::Sqlite;
use plimsoll::store::{Page, Store as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::program::Serving;
use super::support::digest;
use super::upstream::{Fault, Upstream, events};

const CLIENTS: u64 = 8;
/// A request that does not find its session in time is answered and told of, and leaves no turn: here all wait
/// for a store that is locked.
const PATIENT: &str = "[limits]\nload_ms = 30000\nsettle_ms = 30000\nsave_ms = 30000\n";
/// How often it is killed before it begins with an empty folder.
const KILLS: usize = 3;
/// How long a turn that was to be kept on a full disk may be tried again.
const RECOVERY: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos() {
    let said = |name: &str| std::env::var(name).ok();
    let minutes = said("PLIMSOLL_CHAOS_MINUTES").map(|minutes| minutes.parse::<u64>().unwrap());
    let seed = said("PLIMSOLL_CHAOS_SEED").map(|seed| seed.parse::<u64>().unwrap());
    let seed = seed.unwrap_or_else(|| if minutes.is_some() { rand::random() } else { 1 });
    let time = minutes.map_or(Duration::from_secs(12), |minutes| Duration::from_secs(minutes * 60));
    let small = said("PLIMSOLL_CHAOS_SMALL").map(PathBuf::from);
    println!("PLIMSOLL_CHAOS_SEED={seed}");
    if small.is_none() {
        println!("PLIMSOLL_CHAOS_SMALL names no small disk: no disk is filled");
    }
    let world = Arc::new(World::before(Upstream::start().await));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let dice = StdRng::seed_from_u64(seed.wrapping_add(number));
            tokio::spawn(ask_until_the_end(world.clone(), number, dice))
        })
        .collect();
    let mut dice = StdRng::seed_from_u64(seed);
    let began = Instant::now();
    while began.elapsed() < time && clients.iter().all(|client| !client.is_finished()) {
        lives(&world, small.as_deref(), &mut dice).await;
    }
    world.ends.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let heard = world.upstream.heard.lock().unwrap();
    assert_eq!(heard.wrong, Vec::<String>::new());
    let twice: Vec<_> = heard.times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    let outcomes = world.outcomes.lock().unwrap();
    println!(
        "{} kept of {} acknowledged",
        world.kept.load(Ordering::Relaxed),
        world.acknowledged()
    );
    outcomes.iter().for_each(|(what, times)| println!("{times:7} {what}"));
    assert!(outcomes.len() > 10, "hardly anything happened: {outcomes:?}");
}

/// A reply whose end its client saw.
struct Acknowledged {
    id: u64,
    began: Instant,
    ended: Instant,
}

/// What clients and the run share.
struct World {
    upstream: Upstream,
    /// Where the program serves, while it lives.
    address: Mutex<Option<SocketAddr>>,
    /// How often it began or ended.
    epoch: AtomicU64,
    next: AtomicU64,
    ends: AtomicBool,
    /// Clients that ask.
    under_way: AtomicU64,
    /// Not looked for yet.
    acknowledged: Mutex<Vec<Acknowledged>>,
    looked_for: AtomicU64,
    kept: AtomicU64,
    /// When the disk was full, until some time after.
    full: Mutex<Vec<(Instant, Instant)>>,
    outcomes: Mutex<BTreeMap<String, u64>>,
}

impl World {
    fn before(upstream: Upstream) -> Self {
        Self {
            upstream,
            address: Mutex::default(),
            epoch: AtomicU64::default(),
            next: AtomicU64::default(),
            ends: AtomicBool::default(),
            under_way: AtomicU64::default(),
            acknowledged: Mutex::default(),
            looked_for: AtomicU64::default(),
            kept: AtomicU64::default(),
            full: Mutex::default(),
            outcomes: Mutex::default(),
        }
    }

    fn serves_at(&self, address: Option<SocketAddr>) {
        *self.address.lock().unwrap() = address;
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    fn acknowledged(&self) -> u64 {
        self.looked_for.load(Ordering::Relaxed)
    }
}

/// One data folder: the program serves, is killed, and serves again.
async fn lives(world: &World, small: Option<&Path>, dice: &mut StdRng) {
    let folder = match small {
        Some(small) => tempfile::tempdir_in(small).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let data = folder.path().join("data");
    let config = folder.path().join("plimsoll.toml");
    std::fs::write(&config, PATIENT).unwrap();
    for kill in 0..=KILLS {
        let base = format!("http://{}", world.upstream.address);
        let [data_at, config_at] = [&data, &config].map(|path| path.to_str().unwrap());
        let more = ["--data", data_at, "--config", config_at];
        let mut serving = Serving::start(&base, &more).await;
        world.serves_at(Some(serving.clients));
        let lives = Duration::from_millis(dice.random_range(500..4000));
        let until = Instant::now() + lives;
        while Instant::now() < until {
            match dice.random_range(0..4) {
                0 => lock(&data, Duration::from_millis(dice.random_range(0..1500))).await,
                1 if small.is_some() => {
                    fill(world, folder.path(), Duration::from_millis(dice.random_range(0..1500)))
                        .await;
                }
                _ => sleep(Duration::from_millis(dice.random_range(10..400))).await,
            }
        }
        let ends_well = kill == KILLS;
        // What it answers from now on it may answer because it ends.
        world.serves_at(None);
        serving.signal(if ends_well { "TERM" } else { "KILL" }).await;
        serving.gone().await;
        // What clients read last is told by them first.
        let told = async {
            while world.under_way.load(Ordering::SeqCst) > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(90), told).await.expect("clients do not end");
        all_is_kept(world, &data).await;
    }
}

/// Another program writes to the store.
async fn lock(data: &Path, time: Duration) {
    let Ok(holder) = rusqlite::Connection::open(data.join("plimsoll.db")) else { return };
    if holder.execute_batch("BEGIN IMMEDIATE").is_ok() {
        sleep(time).await;
    }
}

/// The disk is full for some time.
async fn fill(world: &World, folder: &Path, time: Duration) {
    let (from, filler) = (Instant::now(), folder.join("filler"));
    let mut file = std::fs::File::create(&filler).unwrap();
    let zeros = vec![0; 64 * 1024];
    while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
    sleep(time).await;
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    world.full.lock().unwrap().push((from, Instant::now() + RECOVERY));
}

/// What was acknowledged is in the store of a program that has ended.
async fn all_is_kept(world: &World, data: &Path) {
    let acknowledged = std::mem::take(&mut *world.acknowledged.lock().unwrap());
    let store = Sqlite::open(&data.join("plimsoll.db")).unwrap();
    let mut kept = HashSet::new();
    for line in store.scopes(Page::first(100_000)).await.unwrap() {
        for record in store.scan(line.scope.clone(), 1 << 20).await.unwrap() {
            if let Ok(Fact::Turn(turn)) = serde_json::from_slice(&record.value) {
                kept.extend(turn.response.map(String::from));
            }
        }
    }
    let full = world.full.lock().unwrap().clone();
    for Acknowledged { id, began, ended } in acknowledged {
        world.looked_for.fetch_add(1, Ordering::Relaxed);
        if kept.contains(&format!("msg_{id}")) {
            world.kept.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let is_excused = full.iter().any(|(from, until)| began < *until && ended > *from);
        assert!(is_excused, "request {id} was acknowledged, and is not kept ({} are)", kept.len());
    }
}

/// How an answer ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
    /// The client left.
    Left,
}

/// What a client got.
#[derive(Debug)]
struct Answer {
    status: Option<StatusCode>,
    /// `x-plimsoll-error`
    error: Option<String>,
    body: Vec<u8>,
    end: End,
}

async fn ask_until_the_end(world: Arc<World>, number: u64, mut dice: StdRng) {
    let client = || Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let mut kept = client();
    while !world.ends.load(Ordering::Relaxed) {
        let under_way = UnderWay::new(&world);
        let epoch = world.epoch.load(Ordering::SeqCst);
        let Some(address) = *world.address.lock().unwrap() else {
            drop(under_way);
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        if dice.random_bool(0.1) {
            kept = client();
        }
        let id = world.next.fetch_add(1, Ordering::Relaxed);
        let fault = Fault::ALL[dice.random_range(0..Fault::ALL.len())];
        let began = Instant::now();
        // Now and then a flood of small parts, which may pass unread.
        let is_flood = dice.random_bool(0.02);
        let messages = if is_flood { 20_000 } else { dice.random_range(1..6) };
        let asked = request((id, number), fault, address, messages);
        let leaves = dice.random_bool(0.05);
        let answer = timeout(Duration::from_secs(60), ask(&kept, asked, leaves)).await;
        let answer = answer.unwrap_or_else(|_| panic!("request {id} ({fault:?}) is not answered"));
        let lived = epoch == world.epoch.load(Ordering::SeqCst);
        judge(&world, (id, fault, lived), &answer);
        if answer.end == End::Whole && answer.status == Some(StatusCode::OK) && !is_flood {
            let ended = Instant::now();
            world.acknowledged.lock().unwrap().push(Acknowledged { id, began, ended });
        }
        drop(under_way);
        sleep(Duration::from_millis(dice.random_range(0..30))).await;
    }
}

/// A client that asks, until this is dropped.
struct UnderWay<'w>(&'w World);

impl<'w> UnderWay<'w> {
    fn new(world: &'w World) -> Self {
        world.under_way.fetch_add(1, Ordering::SeqCst);
        Self(world)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

fn request(
    (id, client): (u64, u64),
    fault: Fault,
    to: SocketAddr,
    messages: usize,
) -> Request<Full<Bytes>> {
    let mut messages = vec![json!({"role": "user", "content": "a"}); messages];
    messages.push(json!({"role": "user", "content": format!("Request {id}.")}));
    let body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 64, "stream": true, "messages": messages,
    });
    let body = body.to_string();
    Request::post(format!("http://{to}/v1/messages"))
        .header("content-type", "application/json")
        .header("x-api-key", "sk-chaos")
        .header("x-claude-code-session-id", format!("session-{client}-{}", id / 50))
        .header("x-id", id)
        .header("x-fault", format!("{fault:?}"))
        .header("x-digest", digest(body.as_bytes()))
        .body(Full::from(body))
        .unwrap()
}

async fn ask(
    client: &Client<HttpConnector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
    leaves: bool,
) -> Answer {
    let Ok(response) = client.request(request).await else {
        return Answer { status: None, error: None, body: Vec::new(), end: End::Broken };
    };
    let error = response.headers().get("x-plimsoll-error");
    let mut answer = Answer {
        status: Some(response.status()),
        error: error.map(|error| error.to_str().unwrap().to_owned()),
        body: Vec::new(),
        end: End::Whole,
    };
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => answer.body.extend(frame.into_data().unwrap()),
            Err(_) => answer.end = End::Broken,
        }
        if leaves {
            answer.end = End::Left;
            break;
        }
    }
    answer
}

/// What the client got is what the upstream sent, or has a broken end; the upstream got the request once.
/// `lived`: the program lived all the while.
fn judge(world: &World, (id, fault, lived): (u64, Fault, bool), answer: &Answer) {
    let what = format!("request {id} ({fault:?}): {:?} {:?}", answer.status, answer.end);
    let sent = events(id).concat();
    let is_ours = answer.error.is_some();
    if !is_ours {
        assert!(sent.as_bytes().starts_with(&answer.body), "{what}: other bytes");
    }
    if !is_ours && answer.status == Some(StatusCode::OK) && answer.end == End::Whole {
        assert_eq!(answer.body.len(), sent.len(), "{what}: it ends well, and is not whole");
    }
    let times = world.upstream.heard.lock().unwrap().times.get(&id).copied().unwrap_or(0);
    assert!(times <= 1, "{what}: it was sent {times} times");
    if lived {
        assert_eq!(times, 1, "{what}: {}", String::from_utf8_lossy(&answer.body));
        if fault.is_whole() && answer.end != End::Left {
            assert!(
                answer.status == Some(StatusCode::OK) && answer.end == End::Whole,
                "{what}: {}",
                String::from_utf8_lossy(&answer.body)
            );
        }
        if !fault.is_whole() && answer.end == End::Whole {
            assert_eq!(answer.status, Some(StatusCode::BAD_GATEWAY), "{what}");
        }
    }
    let status = answer.status.map_or("-".to_owned(), |status| status.as_u16().to_string());
    let life = if lived { "" } else { ", while it ended" };
    let outcome = format!("{fault:?}: {status} {:?}{life}", answer.end);
    *world.outcomes.lock().unwrap().entry(outcome).or_default() += 1;
}
