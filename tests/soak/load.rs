//! Clients: agents with sessions of 2 to 40 turns, one-shots, clients that leave, and a provider whose streams break
//! off. The acknowledged replies of each client are recorded.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use plimsoll::context::Fact;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::{ScopePage, Store};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The number of concurrent clients.
const CLIENTS: u32 = 16;

/// The acknowledged turns of each named session, by the ids of their replies.
pub type Known = HashMap<String, Vec<Acknowledged>>;

/// A reply whose end its client saw.
pub struct Acknowledged {
    id: String,
    /// When it ended, milliseconds since 1970.
    at: u64,
}

/// The results of the exchanges.
#[derive(Default)]
pub struct Answers {
    /// When each ended, since the beginning, and how long it took.
    pub took: Vec<(Duration, Duration)>,
    /// Streams that broke off as intended.
    pub broken: u64,
    /// Clients that left in the middle.
    pub left: u64,
    /// What should not have happened.
    pub errors: Vec<String>,
}

pub struct Load {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    began: Instant,
    sessions: AtomicU64,
    is_over: AtomicBool,
    answers: Mutex<Answers>,
    known: Mutex<Known>,
}

pub struct Clients {
    load: Arc<Load>,
    tasks: Vec<JoinHandle<()>>,
}

/// How a stream is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Whole,
    /// The provider breaks it off.
    Cut,
    /// The client leaves.
    Left,
}

impl Load {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
            address,
            began: Instant::now(),
            sessions: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            answers: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Starts clients that together send `rate` requests a second, for this time and then until they are ended.
    pub fn start(self: Arc<Self>, rate: u32, lasts: Duration) -> Clients {
        let pace = Duration::from_secs(1) * CLIENTS / rate;
        let until = self.began + lasts;
        let tasks = (0..CLIENTS).map(|_| {
            let load = self.clone();
            tokio::spawn(async move {
                while !load.is_over.load(Ordering::Relaxed) {
                    load.session(pace, until).await;
                }
            })
        });
        let tasks = tasks.collect();
        Clients { load: self, tasks }
    }

    /// One session from its first turn to its last.
    async fn session(&self, pace: Duration, until: Instant) {
        let n = self.sessions.fetch_add(1, Ordering::Relaxed);
        let (is_one_shot, turns, is_named) = {
            let mut dice = rand::rng();
            let is_one_shot = dice.random_ratio(1, 3);
            let turns = if is_one_shot { 1 } else { dice.random_range(2..=40) };
            (is_one_shot, turns, dice.random_ratio(3, 4))
        };
        // An agent names its session; an unnamed session is found by its content.
        let name = (is_named && !is_one_shot).then(|| format!("soak-{n}"));
        let mut messages: Vec<Value> = Vec::new();
        for turn in 0..turns {
            let began = Instant::now();
            let text = format!("Session {n}, turn {turn}: {}", noise(n * 64 + turn));
            messages.push(json!({"role": "user", "content": text}));
            let ending = match rand::rng().random_range(0..20) {
                0 => Ending::Cut,
                1 => Ending::Left,
                _ => Ending::Whole,
            };
            let answered = self.exchange(name.as_deref(), &messages, ending).await;
            let is_over = self.is_over.load(Ordering::Relaxed);
            match answered {
                Ok(Some((id, text))) => {
                    if let Some(name) = &name {
                        let mut known = self.known.lock().unwrap();
                        known.entry(name.clone()).or_default().push(Acknowledged { id, at: now() });
                    }
                    let took = (self.began.elapsed(), began.elapsed());
                    self.answers.lock().unwrap().took.push(took);
                    messages.push(json!({"role": "assistant", "content": text}));
                }
                // It is sent again, as agents do.
                Ok(None) => drop(messages.pop()),
                // The kill at the end interrupts whatever is in flight.
                Err(_) if Instant::now() >= until || is_over => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return;
                }
                Err(error) => {
                    self.answers.lock().unwrap().errors.push(error);
                    return;
                }
            }
            tokio::time::sleep(pace.saturating_sub(began.elapsed())).await;
        }
    }

    /// One exchange; returns the reply's id and text if it was complete.
    async fn exchange(
        &self,
        session: Option<&str>,
        messages: &[Value],
        ending: Ending,
    ) -> Result<Option<(String, String)>, String> {
        let body = json!({
            "model": "claude-sonnet-4-5", "max_tokens": 256, "stream": true, "messages": messages,
        });
        let mut request = http::Request::post(format!("http://{}/v1/messages", self.address))
            .header("content-type", "application/json")
            .header("x-api-key", "sk-soak");
        if let Some(session) = session {
            request = request.header("x-claude-code-session-id", session);
        }
        if ending == Ending::Cut {
            request = request.header("x-demo-cut", "1");
        }
        let request = request.body(Full::from(body.to_string())).unwrap();
        let answer = async {
            let response = self.client.request(request).await.map_err(|it| it.to_string())?;
            if response.status() != 200 {
                return Err(format!("status {}", response.status()));
            }
            self.read(response.into_body(), ending).await
        };
        let timeout = Duration::from_secs(60);
        tokio::time::timeout(timeout, answer).await.map_err(|_| "no answer in 60 s".to_owned())?
    }

    async fn read(
        &self,
        mut body: hyper::body::Incoming,
        ending: Ending,
    ) -> Result<Option<(String, String)>, String> {
        let mut stream = Vec::new();
        while !stream.ends_with(b"{\"type\":\"message_stop\"}\n\n") {
            match body.frame().await {
                Some(Ok(frame)) => stream.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None if ending == Ending::Cut => {
                    self.answers.lock().unwrap().broken += 1;
                    return Ok(None);
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("the stream ended before its last event".to_owned()),
            }
            if ending == Ending::Left {
                self.answers.lock().unwrap().left += 1;
                return Ok(None);
            }
        }
        if ending == Ending::Cut {
            return Err("a stream that broke off came whole".to_owned());
        }
        let stream = String::from_utf8(stream).map_err(|error| error.to_string())?;
        let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = events.filter_map(|it| serde_json::from_str(it).ok()).collect();
        let id = events.first().and_then(|event| event["message"]["id"].as_str());
        let id = id.ok_or("no message in the stream")?.to_owned();
        let texts = events.iter().filter_map(|event| event["delta"]["text"].as_str());
        Ok(Some((id, texts.collect())))
    }
}

impl Clients {
    /// Ends the clients; returns their results and the acknowledged turns.
    pub async fn end(self) -> (Answers, Known) {
        self.load.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a client failed");
        }
        let take = (&self.load.answers, &self.load.known);
        (std::mem::take(&mut take.0.lock().unwrap()), std::mem::take(&mut take.1.lock().unwrap()))
    }
}

/// Words that do not repeat, as long as a small tool result.
fn noise(n: u64) -> String {
    let mut seed = n;
    let mut word = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:x} ", seed >> 24)
    };
    (0..40).map(|_| word()).collect()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// What became of the acknowledged turns.
#[derive(Default)]
pub struct Missing {
    pub acknowledged: usize,
    /// In the store.
    pub kept: usize,
    /// Of sessions that were deleted because of the limit, as a whole.
    pub forgotten: usize,
    /// Of sessions that were deleted while in use and began again: the turns before that. This happens only if the
    /// limit is smaller than what is in use.
    pub of_restarted_sessions: usize,
    /// Not in the store, though an earlier turn of their session is.
    pub missing: Vec<String>,
}

pub async fn missing(folder: &Path, known: &Known) -> Missing {
    let store = SqliteStore::open(&folder.join("data/plimsoll.db")).unwrap();
    let acknowledged = known.values().map(Vec::len).sum();
    let mut missing = Missing { acknowledged, forgotten: acknowledged, ..Missing::default() };
    let mut after = None;
    loop {
        let page = store.scopes(ScopePage { after, skip: 0, count: 500 }).await.unwrap();
        for line in &page {
            let Some(replies) = known.get(line.scope.session.as_str()) else { continue };
            let facts = store.scan(line.scope.clone(), 1 << 20).await.unwrap();
            let turns = facts.iter().filter_map(|it| serde_json::from_slice(&it.value).ok());
            let responses = turns.filter_map(|fact| match fact {
                Fact::Turn(turn) => turn.response.as_ref().map(ToString::to_string),
                _ => None,
            });
            let responses: HashSet<String> = responses.collect();
            let first = replies.iter().position(|reply| responses.contains(&reply.id));
            // None of them is there, and everything that is there is newer: the session had just begun again.
            let is_restarted = replies.last().is_some_and(|last| line.began > last.at);
            let (before, since) =
                replies.split_at(first.unwrap_or(if is_restarted { replies.len() } else { 0 }));
            missing.forgotten -= replies.len();
            missing.of_restarted_sessions += before.len();
            let (kept, lost): (Vec<_>, Vec<_>) =
                since.iter().partition(|reply| responses.contains(&reply.id));
            missing.kept += kept.len();
            let named = lost.iter().map(|reply| format!("{}: {}", line.scope.session, reply.id));
            missing.missing.extend(named);
        }
        after = page.last().map(|line| line.cursor);
        if after.is_none() {
            return missing;
        }
    }
}
