//! The program between clients and an upstream that both misbehave, while its store fails and the program is killed.
//!
//! `PLIMSOLL_CHAOS_MINUTES` sets the duration (12 s by default), `PLIMSOLL_CHAOS_SEED` the random seed. If
//! `PLIMSOLL_CHAOS_SMALL` names a small disk, the data folder is on it, and the disk is filled now and then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use plimsoll::context::Fact;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::{ScopePage, Store as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::program::Serving;
use super::support::digest;
use super::upstream::{Fault, Upstream};

const CLIENTS: u64 = 8;
/// The defaults, with a request id by which a client finds the log line of its exchange.
const CONFIG: &str = "request_id_header = true\n";
/// How often the program is killed before the next folder begins.
const KILLS: usize = 3;
/// A close later than this may have come after the request was read, as `docs/limits.md` says ("Repeats on another connection"):
/// the client gets 502. Here that happens only if the machine delays the upstream, which closes in time.
const CROSSING: Duration = Duration::from_millis(50);
/// Reasons in the log for a turn that is not stored, or not in time.
const NOT_KEPT: [&str; 5] =
    ["store", "commit_late", "session_late", "memory_budget", "analysis_budget"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos() {
    let variable = |name: &str| std::env::var(name).ok();
    let minutes = variable("PLIMSOLL_CHAOS_MINUTES").map(|minutes| minutes.parse::<u64>().unwrap());
    let seed = variable("PLIMSOLL_CHAOS_SEED").map(|seed| seed.parse::<u64>().unwrap());
    let seed = seed.unwrap_or_else(|| if minutes.is_some() { rand::random() } else { 1 });
    let time = minutes.map_or(Duration::from_secs(12), |minutes| Duration::from_secs(minutes * 60));
    let small = variable("PLIMSOLL_CHAOS_SMALL").map(PathBuf::from);
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
    world.verdict();
}

/// A reply whose end its client saw.
struct Acknowledged {
    id: u64,
    /// The request id that the program gave it.
    request: String,
}

/// What the clients and the run share.
struct World {
    upstream: Upstream,
    /// The program's address while it runs.
    address: Mutex<Option<SocketAddr>>,
    /// How often it was started or ended.
    epoch: AtomicU64,
    next: AtomicU64,
    ends: AtomicBool,
    /// Requests without a complete response.
    under_way: Mutex<BTreeSet<u64>>,
    /// Not checked yet.
    acknowledged: Mutex<Vec<Acknowledged>>,
    /// The results of those that were checked.
    fates: Mutex<BTreeMap<String, u64>>,
    outcomes: Mutex<BTreeMap<String, u64>>,
    /// What should not have happened.
    wrong: Mutex<Vec<String>>,
}

impl World {
    fn before(upstream: Upstream) -> Self {
        Self {
            upstream,
            address: Mutex::default(),
            epoch: AtomicU64::default(),
            next: AtomicU64::default(),
            ends: AtomicBool::default(),
            under_way: Mutex::default(),
            acknowledged: Mutex::default(),
            fates: Mutex::default(),
            outcomes: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    fn set_address(&self, address: Option<SocketAddr>) {
        *lock(&self.address) = address;
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Records a fault. The run continues, and fails at its end.
    fn is_wrong(&self, what: String) {
        println!("WRONG after {} requests: {what}", self.next.load(Ordering::Relaxed));
        lock(&self.wrong).push(what);
    }

    /// Waits until all earlier requests have their responses.
    async fn answered(&self) {
        let before = {
            let _begun = lock(&self.under_way);
            self.next.load(Ordering::SeqCst)
        };
        let answered = async {
            while lock(&self.under_way).first().is_some_and(|id| *id < before) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(90), answered).await.expect("clients wait for ever");
    }

    /// Waits until the program has logged all acknowledged replies: after a kill it logs nothing more.
    async fn all_logged(&self, serving: &Serving) {
        self.answered().await;
        let telling = async {
            loop {
                let log = serving.log();
                if lock(&self.acknowledged).iter().all(|one| line(&log, &one.request).is_some()) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), telling).await.expect("an exchange is not logged");
    }

    fn verdict(&self) {
        let log = lock(&self.upstream.log);
        log.wrong.iter().for_each(|wrong| self.is_wrong(wrong.clone()));
        let twice: Vec<_> = log.times.iter().filter(|(_, times)| **times > 1).collect();
        if !twice.is_empty() {
            self.is_wrong(format!("sent twice: {twice:?}"));
        }
        let (outcomes, fates) = (lock(&self.outcomes), lock(&self.fates));
        println!("what was acknowledged:");
        fates.iter().for_each(|(ending, times)| println!("{times:7} {ending}"));
        println!("what clients got:");
        outcomes.iter().for_each(|(what, times)| println!("{times:7} {what}"));
        assert!(outcomes.len() > 10, "hardly anything happened: {outcomes:?}");
        let late: u64 =
            outcomes.iter().filter(|(what, _)| what.ends_with(LATE)).map(|it| it.1).sum();
        let requests = self.next.load(Ordering::Relaxed);
        assert!(
            late * 100 <= requests,
            "{late} of {requests} were lost because this machine was late"
        );
        let wrong = lock(&self.wrong);
        assert!(wrong.is_empty(), "{} things were wrong: {wrong:#?}", wrong.len());
        println!("VERDICT: good, {requests} requests");
    }
}

/// Ignores poisoning, so that a failed assertion elsewhere is reported as itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log line of an exchange.
fn line<'l>(log: &'l str, request: &str) -> Option<&'l str> {
    let name = format!(" id={request} ");
    log.lines().find(|line| line.contains(&name))
}

/// One data folder: the program is started and killed several times.
async fn lives(world: &World, small: Option<&Path>, dice: &mut StdRng) {
    let folder = match small {
        Some(small) => tempfile::tempdir_in(small).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let data = folder.path().join("data");
    let config = folder.path().join("plimsoll.toml");
    let Upstream { http2, certificates, .. } = &world.upstream;
    let settings = format!(
        "{CONFIG}extra_ca = {:?}\n[upstream.http2]\nbase_url = \"https://{http2}\"\n\
         dialects = [\"anthropic\"]\n",
        certificates.authority
    );
    std::fs::write(&config, settings).unwrap();
    for kill in 0..=KILLS {
        let base = format!("http://{}", world.upstream.address);
        let [data_at, config_at] = [&data, &config].map(|path| path.to_str().unwrap());
        let more = ["--data", data_at, "--config", config_at];
        let mut serving = Serving::start(&base, &more).await;
        world.set_address(Some(serving.clients));
        let lives = Duration::from_millis(dice.random_range(500..4000));
        let until = Instant::now() + lives;
        let mut was_full = false;
        while Instant::now() < until {
            match dice.random_range(0..4) {
                0 => hold(&data, Duration::from_millis(dice.random_range(0..1500))).await,
                1 if small.is_some() => {
                    let full = FullDisk::fill(folder.path());
                    sleep(Duration::from_millis(dice.random_range(0..1500))).await;
                    drop(full);
                    was_full = true;
                    world.all_logged(&serving).await;
                }
                _ => sleep(Duration::from_millis(dice.random_range(10..400))).await,
            }
        }
        let ends_well = kill == KILLS;
        let ends_full = small.is_some() && !ends_well && dice.random_bool(0.2);
        let full = ends_full.then(|| FullDisk::fill(folder.path()));
        if ends_full {
            was_full = true;
            sleep(Duration::from_millis(dice.random_range(0..1000))).await;
        }
        // A response from now on may have been affected by the end of the program.
        world.set_address(None);
        if ends_full {
            world.all_logged(&serving).await;
        }
        serving.signal(if ends_well { "TERM" } else { "KILL" }).await;
        let log = serving.log_to_its_end().await;
        serving.gone().await;
        drop(full);
        world.answered().await;
        all_is_kept(world, &data, &log, was_full).await;
    }
}

/// Another program locks the store for a while.
async fn hold(data: &Path, time: Duration) {
    let Ok(holder) = rusqlite::Connection::open(data.join("plimsoll.db")) else { return };
    if holder.execute_batch("BEGIN IMMEDIATE").is_ok() {
        sleep(time).await;
    }
}

/// A full disk, until this is dropped.
struct FullDisk(PathBuf);

impl FullDisk {
    fn fill(folder: &Path) -> Self {
        let filler = folder.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        let zeros = vec![0; 64 * 1024];
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        Self(filler)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// After the program has ended, checks that its store has every acknowledged turn, unless its log gave a reason for
/// that exchange. "The store failed" is a valid reason only if the disk `was_full`. A turn without a log line, because
/// the program was killed, must be there.
async fn all_is_kept(world: &World, data: &Path, log: &str, was_full: bool) {
    let acknowledged = std::mem::take(&mut *lock(&world.acknowledged));
    let store = SqliteStore::open(&data.join("plimsoll.db")).unwrap();
    let mut kept = HashSet::new();
    for line in store.scopes(ScopePage::first(100_000)).await.unwrap() {
        for record in store.scan(line.scope.clone(), 1 << 20).await.unwrap() {
            if let Ok(Fact::Turn(turn)) = serde_json::from_slice(&record.value) {
                kept.extend(turn.response.as_deref().map(String::from));
            }
        }
    }
    store.close().await.unwrap();
    for Acknowledged { id, request } in acknowledged {
        let ending = if kept.contains(&format!("msg_{id}")) {
            "kept".to_owned()
        } else {
            let logged = line(log, &request);
            let reasons = logged.unwrap_or_default().split_whitespace();
            let mut reasons = reasons.filter_map(|word| word.strip_prefix("fail_open="));
            match reasons.find(|why| NOT_KEPT.contains(why) && (was_full || *why != "store")) {
                Some(why) => format!("not kept, as it told: {why}"),
                None => {
                    let logged = logged.unwrap_or("nothing");
                    world.is_wrong(format!(
                        "request {id} was acknowledged, and is not kept ({} are). It told: {logged}",
                        kept.len()
                    ));
                    "lost".to_owned()
                }
            }
        };
        *lock(&world.fates).entry(ending).or_default() += 1;
    }
}

/// How a response ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
    /// The client left.
    Left,
}

/// The response that a client got.
#[derive(Debug)]
struct Answer {
    status: Option<StatusCode>,
    /// `x-plimsoll-error`
    error: Option<String>,
    /// `x-plimsoll-request-id`
    request: Option<String>,
    body: Vec<u8>,
    end: End,
    took: Duration,
}

async fn ask_until_the_end(world: Arc<World>, number: u64, mut dice: StdRng) {
    let client = || Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let mut kept = client();
    while !world.ends.load(Ordering::Relaxed) {
        let epoch = world.epoch.load(Ordering::SeqCst);
        let Some((under_way, address)) = UnderWay::new(&world) else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        if dice.random_bool(0.1) {
            kept = client();
        }
        let id = under_way.id;
        let fault = Fault::ALL[dice.random_range(0..Fault::ALL.len())];
        // Sometimes a request has very many small parts, and may be forwarded unread.
        let is_flood = dice.random_bool(0.02);
        let messages = if is_flood { 20_000 } else { dice.random_range(1..6) };
        let over_http2 = dice.random_bool(0.3);
        let base = format!("http://{address}{}", if over_http2 { "/http2" } else { "" });
        let sent = request((id, number), fault, &base, messages);
        let leaves = dice.random_bool(0.05);
        let answer = timeout(Duration::from_secs(60), ask(&kept, sent, leaves)).await;
        let answer = answer.unwrap_or_else(|_| panic!("request {id} ({fault:?}) is not answered"));
        let lived = epoch == world.epoch.load(Ordering::SeqCst);
        judge(&world, (id, fault, over_http2, lived), &answer);
        if answer.end == End::Whole && answer.status == Some(StatusCode::OK) && !is_flood {
            let request = answer.request.expect("an answer without an id");
            lock(&world.acknowledged).push(Acknowledged { id, request });
        }
        drop(under_way);
        sleep(Duration::from_millis(dice.random_range(0..30))).await;
    }
}

/// A request without a complete response, until this is dropped.
struct UnderWay<'w> {
    world: &'w World,
    id: u64,
}

impl<'w> UnderWay<'w> {
    /// Begins the next request; returns the program's address, too. `None` while it does not run.
    fn new(world: &'w World) -> Option<(Self, SocketAddr)> {
        let mut under_way = lock(&world.under_way);
        let address = (*lock(&world.address))?;
        let id = world.next.fetch_add(1, Ordering::SeqCst);
        under_way.insert(id);
        Some((Self { world, id }, address))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.world.under_way).remove(&self.id);
    }
}

fn request(
    (id, client): (u64, u64),
    fault: Fault,
    base: &str,
    messages: usize,
) -> Request<Full<Bytes>> {
    let mut messages = vec![json!({"role": "user", "content": "a"}); messages];
    messages.push(json!({"role": "user", "content": format!("Request {id}.")}));
    if fault == Fault::RefusesUnread {
        // Larger than what sockets take at once, so that some of it is on its way when the refusal comes.
        messages.push(json!({"role": "user", "content": "much ".repeat(200_000)}));
    }
    let body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 64, "stream": true, "messages": messages,
    });
    let body = body.to_string();
    Request::post(format!("{base}/v1/messages"))
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
    let began = Instant::now();
    let Ok(response) = client.request(request).await else {
        return Answer {
            status: None,
            error: None,
            request: None,
            body: Vec::new(),
            end: End::Broken,
            took: began.elapsed(),
        };
    };
    let header = |name| response.headers().get(name).map(|it| it.to_str().unwrap().to_owned());
    let mut answer = Answer {
        status: Some(response.status()),
        error: header("x-plimsoll-error"),
        request: header("x-plimsoll-request-id"),
        body: Vec::new(),
        end: End::Whole,
        took: Duration::ZERO,
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
    answer.took = began.elapsed();
    answer
}

/// Added to an outcome that a slow machine explains.
const LATE: &str = ", for this machine was late";

/// Checks that the client got what the upstream sent, or a broken end, and that the upstream got the request once.
/// `lived`: the program ran all the time.
fn judge(world: &World, (id, fault, over_http2, lived): (u64, Fault, bool, bool), answer: &Answer) {
    let protocol = if over_http2 { ", HTTP/2" } else { "" };
    let what = format!("request {id} ({fault:?}{protocol}): {:?} {:?}", answer.status, answer.end);
    let sent = fault.body(id);
    let (is_ours, is_whole) = (answer.error.is_some(), answer.end == End::Whole);
    let is_ok = answer.status == Some(fault.status());
    let is_refused = answer.status == Some(StatusCode::BAD_GATEWAY);
    if !is_ours && !sent.as_bytes().starts_with(&answer.body) {
        world.is_wrong(format!("{what}: other bytes"));
    }
    if !is_ours && is_ok && is_whole && answer.body.len() != sent.len() {
        world.is_wrong(format!("{what}: it ends well, and is not whole"));
    }
    let times = lock(&world.upstream.log).times.get(&id).copied().unwrap_or(0);
    let is_late = lived && times == 0 && is_refused && is_ours && answer.took >= CROSSING;
    if lived && !is_late {
        if times != 1 {
            let (took, body) = (answer.took, String::from_utf8_lossy(&answer.body));
            world.is_wrong(format!("{what}: read {times} times, after {took:?}. {body}"));
        }
        if fault.is_whole() && answer.end != End::Left && !(is_ok && is_whole) {
            let body = String::from_utf8_lossy(&answer.body);
            world.is_wrong(format!("{what} after {:?}: {body}", answer.took));
        }
        if !fault.is_whole() && is_whole && !is_refused {
            world.is_wrong(format!("{what}: what broke ends well"));
        }
    } else if times > 1 {
        world.is_wrong(format!("{what}: the upstream read it {times} times"));
    }
    let status = answer.status.map_or("-".to_owned(), |status| status.as_u16().to_string());
    let more = match (is_late, lived) {
        (true, _) => LATE,
        (false, true) => "",
        (false, false) => ", while it ended",
    };
    let outcome = format!("{fault:?}{protocol}: {status} {:?}{more}", answer.end);
    *lock(&world.outcomes).entry(outcome).or_default() += 1;
}
