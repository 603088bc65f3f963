//! A client, a provider and the proxy between them: turns get replies automatically, summary requests wait for the
//! test.

use std::sync::{Arc, Mutex};

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::presets::Preset;
use plimsoll::config::{self, Config, ConfigSources, Mode};
use plimsoll::context::ledger::{Ledger, Totals};
use plimsoll::context::policy::{CompactPolicy, DecisionMode, Policy, SummaryEngine};
use plimsoll::dialect::Chain;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Scope, Store};
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{self, TestServer};
use crate::support::within;

pub const MODEL: &str = "claude-sonnet-4-5";
/// The window in tokens; a quarter of it is kept free.
pub const WINDOW: u64 = 4000;
/// A summary is written past `MARK` tokens and used past `THRESHOLD`; `USABLE` tokens fit.
pub const MARK: u64 = 1080;
pub const THRESHOLD: u64 = 1800;
pub const USABLE: u64 = 3000;
/// Part of every summary request, in the prompts of the default policy and of `micro-compact`.
const ASKS: [&str; 2] =
    ["Write a summary of the conversation", "write a detailed summary of this conversation"];
/// Part of every request for a compaction block.
const COMPACTS: &str = r#""compaction":{"type":"summarize""#;

/// The provider refuses a request with this text as too long, whatever its size.
pub const TOO_LONG: &str = "More than fits.";
/// After this text and a number, the provider accepts at most that many bytes. Its error names the window, unless the
/// request has `UNTOLD`.
pub const HOLDS: &str = "No more bytes than ";
pub const UNTOLD: &str = "Say not how many.";
/// The provider never responds to a request with this text.
pub const NEVER: &str = "Say nothing.";
/// With this text in the request, the provider refuses summaries.
pub const WHOLE: &str = "The whole of it.";
/// With this text in the newest result of an open tool loop, it refuses summaries, too: it demands the loop's
/// reasoning.
pub const DEMANDS: &str = "Think on.";
/// With this text in the request, the model reasons before it replies.
pub const THINKS: &str = "Think aloud.";
/// Part of every summary message of ours.
const CONTINUED: &str = "continued from an earlier part";

/// A provider that replies to turns by itself.
pub struct Stage {
    /// Requests for a summary.
    pub summaries: mpsc::UnboundedReceiver<Call>,
    /// Heads and bodies of all other requests.
    pub turns: Arc<Mutex<Vec<(String, String)>>>,
}

impl Stage {
    pub fn of(provider: Provider) -> Self {
        let (sender, summaries) = mpsc::unbounded_channel();
        let turns = Arc::default();
        tokio::spawn(reply_to_turns(provider, sender, Arc::clone(&turns)));
        Self { summaries, turns }
    }
}

pub struct Play {
    stage: Stage,
    pub store: Arc<dyn Store>,
    pub config: Config,
    pub server: TestServer,
    /// Earlier processes over the same store, which get no more requests.
    pub others: Vec<TestServer>,
    pub history: Vec<Value>,
    pub session: &'static str,
    pub model: &'static str,
    pub system: &'static str,
}

/// The record of one exchange.
pub struct Scene {
    pub sent: Value,
    pub bytes: String,
    pub exchange: Arc<Exchange>,
}

impl Scene {
    fn scope(&self) -> Scope {
        let (tenant, session) = (self.exchange.tenant.clone(), self.exchange.session.clone());
        Scope { tenant: tenant.unwrap(), session: session.unwrap() }
    }
}

/// A policy whose thresholds a few messages reach.
pub fn policy() -> Policy {
    let compact = CompactPolicy {
        engine: SummaryEngine::Summary,
        threshold: 0.6,
        prepare: 0.6,
        keep_messages: 4,
        wait_s: 5,
        timeout_s: 10,
        cool_down_s: 60,
        ..CompactPolicy::default()
    };
    Policy { compact, ..Policy::default() }
}

/// A policy under which one summary may follow another at once.
pub fn without_a_pause() -> Policy {
    let mut policy = policy();
    policy.compact.lasting_share = 0.0;
    policy
}

impl Play {
    pub async fn of(policy: Policy) -> Self {
        Self::over(Arc::new(MemoryStore::default()), policy, Mode::Active).await
    }

    pub async fn over(store: Arc<dyn Store>, policy: Policy, mode: Mode) -> Self {
        let provider = Provider::start().await;
        let mut config = server::config(&provider.base());
        (config.mode, config.policy) = (mode, Arc::new(policy));
        config.upstreams[0].window = Some(WINDOW);
        let server = open(&store, &config).await;
        let stage = Stage::of(provider);
        Self {
            stage,
            store,
            config,
            server,
            others: Vec::new(),
            history: Vec::new(),
            session: "s",
            model: MODEL,
            system: "You are calm.",
        }
    }

    /// The same under a preset, with these further lines of configuration and a window of this many tokens.
    pub async fn under(preset: Preset, also: &str, window: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plimsoll.toml");
        std::fs::write(&file, format!("preset = \"{}\"\n{also}\n", preset.name())).unwrap();
        let variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
        let sources = ConfigSources { file: Some(file), variables, ..ConfigSources::default() };
        let resolved = config::load(&sources).unwrap_or_else(|faults| panic!("{faults}")).config;
        let mut play = Self::of(resolved.policy.as_ref().clone()).await;
        play.config.preset = resolved.preset;
        play.config.output_reserve = resolved.output_reserve;
        play.config.upstreams[0].window = Some(window);
        play.restart().await;
        play
    }

    /// Replies to every summary request with this summary from now on; returns the log of these requests.
    pub fn write_every_summary(&mut self, summary: &'static str) -> Arc<Mutex<Vec<Value>>> {
        let (_, none) = mpsc::unbounded_channel();
        let mut summaries = std::mem::replace(&mut self.stage.summaries, none);
        let questions: Arc<Mutex<Vec<Value>>> = Arc::default();
        let log = Arc::clone(&questions);
        tokio::spawn(async move {
            while let Some(question) = summaries.recv().await {
                log.lock().unwrap().push(serde_json::from_str(question.message.text()).unwrap());
                send_summary(question, summary).await;
            }
        });
        questions
    }

    /// Starts another process over the same store; the earlier one keeps running.
    pub async fn restart(&mut self) {
        let next = open(&self.store, &self.config).await;
        self.others.push(std::mem::replace(&mut self.server, next));
    }

    /// The user sends a message of this many words.
    pub fn add_user_message(&mut self, number: usize, count: usize) {
        let text = format!("Question {number}: {}", "more of it ".repeat(count / 3));
        self.history.push(json!({"role": "user", "content": text}));
    }

    pub fn request(&self) -> Value {
        json!({"model": self.model, "max_tokens": 1000, "system": self.system,
            "messages": self.history})
    }

    pub async fn send_request(&self) -> Wire {
        let body = self.request().to_string();
        let mut client = Wire::connect(self.server.address).await;
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.session,
            body.len()
        );
        client.send(format!("{head}{body}")).await;
        client
    }

    /// The user sends a message and gets a reply.
    pub async fn turn(&mut self, number: usize) -> Scene {
        self.add_user_message(number, 120);
        let client = self.send_request().await;
        self.read_reply(client).await
    }

    /// Reads the response; its reply is added to the history.
    pub async fn read_reply(&mut self, mut client: Wire) -> Scene {
        let response = client.response().await;
        assert_eq!(response.status(), 200, "{}", response.text());
        let reply: Value = serde_json::from_str(response.text()).unwrap();
        self.history.push(json!({"role": "assistant", "content": reply["content"]}));
        let exchange = self.server.next_exchange().await;
        let (_, bytes) = self.stage.turns.lock().unwrap().last().unwrap().clone();
        Scene { sent: serde_json::from_str(&bytes).unwrap(), bytes, exchange }
    }

    /// The head of the last request that the provider received.
    pub fn head(&self) -> String {
        self.stage.turns.lock().unwrap().last().unwrap().0.clone()
    }

    /// Waits until the provider has received this text in this many requests.
    pub async fn wait_until_received(&self, text: &str, times: usize) {
        let turns = &self.stage.turns;
        let received = async {
            let has = |(_, body): &&(String, String)| body.contains(text);
            while turns.lock().unwrap().iter().filter(has).count() < times {
                tokio::task::yield_now().await;
            }
        };
        within(text, received).await;
    }

    /// The next request for a summary.
    pub async fn next_summary_request(&mut self) -> Call {
        within("a request for a summary", self.stage.summaries.recv()).await.unwrap()
    }

    /// The summary requests that have arrived by now.
    pub fn take_summary_requests(&mut self) -> Vec<Call> {
        std::iter::from_fn(|| self.stage.summaries.try_recv().ok()).collect()
    }

    /// Their bodies.
    pub fn take_summary_bodies(&mut self) -> Vec<String> {
        let calls = self.take_summary_requests().into_iter();
        calls.map(|call| call.message.text().to_owned()).collect()
    }

    /// Plays turns until a summary is requested; returns the last turn and the summary request.
    pub async fn fill_to_mark(&mut self) -> (Scene, Call) {
        for number in self.history.len() / 2.. {
            let scene = self.turn(number).await;
            if tokens(&scene) > MARK {
                return (scene, self.next_summary_request().await);
            }
        }
        unreachable!()
    }

    /// The chains at which used summaries cut, in the session of this exchange.
    pub async fn cuts(&self, of: &Scene) -> Vec<Chain> {
        let cuts =
            |ledger: &Ledger| ledger.compacts(DecisionMode::Active).map(|one| one.about).collect();
        self.server.ledgers.look(&of.scope(), cuts).await.unwrap()
    }

    /// The token totals of the session of this exchange.
    pub async fn totals(&self, of: &Scene) -> Totals {
        self.server.ledgers.look(&of.scope(), Ledger::totals).await.unwrap()
    }

    /// Waits until the proxy has written its summary.
    pub async fn wait_until_written(&self, count: u64) {
        self.wait_for_count("outcome=\"written\"", count).await;
    }

    /// Replies to every summary request with this summary, also if a history is summarised in pieces, until `count`
    /// summaries are written.
    pub async fn write_summaries(&mut self, summary: &str, count: u64) {
        loop {
            tokio::select! {
                biased;
                () = wait_for_count(&self.server, "outcome=\"written\"", count) => return,
                question = self.stage.summaries.recv() => send_summary(question.unwrap(), summary).await,
            }
        }
    }

    /// Waits until this many summaries ended with these labels.
    pub async fn wait_for_count(&self, labels: &str, count: u64) {
        wait_for_count(&self.server, labels, count).await;
    }
}

async fn wait_for_count(server: &TestServer, labels: &str, count: u64) {
    let total = || {
        let text = server.telemetry.render();
        let lines = text.lines().filter(|line| line.starts_with("plimsoll_compactions_total"));
        let ours = lines.filter(|line| line.contains(labels));
        ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>()
    };
    let counted = async {
        while total() < count {
            tokio::task::yield_now().await;
        }
    };
    within(labels, counted).await;
}

/// The estimate of a request.
pub fn tokens(scene: &Scene) -> u64 {
    scene.exchange.estimate.as_ref().unwrap().tokens
}

/// Replies to everything that is not a summary request.
async fn reply_to_turns(
    provider: Provider,
    sender: mpsc::UnboundedSender<Call>,
    turns: Arc<Mutex<Vec<(String, String)>>>,
) {
    let mut unanswered = Vec::new();
    loop {
        let mut wire = provider.accept().await;
        if !wire.begins().await {
            continue;
        }
        let mut call = wire.request().await;
        let text = call.message.text().to_owned();
        if ASKS.iter().any(|asks| text.contains(asks)) || text.contains(COMPACTS) {
            let _ = sender.send(call);
            continue;
        }
        if text.contains(NEVER) {
            turns.lock().unwrap().push((call.message.head.clone(), text));
            unanswered.push(call);
            continue;
        }
        if text.contains(TOO_LONG) {
            let message = "prompt is too long: 4100 tokens > 4000 maximum";
            let error = json!({"type": "invalid_request_error", "message": message});
            let error = json!({"type": "error", "error": error});
            call.answer("400 Bad Request", &error.to_string()).await;
            continue;
        }
        if let Some(message) = overflow(&text) {
            let error = json!({"type": "invalid_request_error", "message": message});
            let error = json!({"type": "error", "error": error});
            call.answer("400 Bad Request", &error.to_string()).await;
            continue;
        }
        let refused = [
            (WHOLE, "messages.1.content.0: Invalid `signature` in `thinking` block."),
            (
                DEMANDS,
                "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). To avoid this requirement, disable `thinking`.",
            ),
        ];
        let newest = text.rfind(r#"{"role":"#).unwrap_or(0);
        let is_beside = |(beside, _): &(&str, &str)| match *beside {
            DEMANDS => text[newest..].contains(DEMANDS),
            beside => text.contains(beside),
        };
        let refused = refused.into_iter().find(is_beside);
        if let Some((_, message)) = refused.filter(|_| text.contains(CONTINUED)) {
            let error = json!({"type": "invalid_request_error", "message": message});
            let error = json!({"type": "error", "error": error});
            call.answer("400 Bad Request", &error.to_string()).await;
            continue;
        }
        let number = turns.lock().unwrap().len();
        turns.lock().unwrap().push((call.message.head.clone(), text.clone()));
        let content = format!("Answer {number}, which is long enough to be told from any other.");
        let mut reply = answer(&content, text.len() as u64 / 4);
        if text.contains(THINKS) {
            let signature = format!("c2ln{number:04}");
            let thought =
                json!({"type": "thinking", "thinking": "So it is.", "signature": signature});
            reply["content"].as_array_mut().unwrap().insert(0, thought);
        }
        call.answer("200 OK", &reply.to_string()).await;
    }
}

/// The provider's error for a request with more bytes than it accepts.
fn overflow(text: &str) -> Option<String> {
    let (_, holds) = text.split_once(HOLDS)?;
    let holds: usize = holds.split_once('.')?.0.parse().unwrap();
    let tokens = |bytes: usize| bytes / 4;
    let (input, window) = (tokens(text.len()), tokens(holds) + 1_500);
    let message = format!("prompt is too long: {input} tokens > {window} maximum");
    let is_precise = !text.contains(UNTOLD);
    (text.len() > holds).then(|| if is_precise { message } else { "prompt is too long".to_owned() })
}

async fn open(store: &Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await
}

/// An Anthropic reply with this text.
pub fn answer(text: &str, input: u64) -> Value {
    json!({
        "id": "msg", "type": "message", "role": "assistant", "model": MODEL,
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
        "usage": {"input_tokens": input, "output_tokens": 20},
    })
}

/// A provider's own summary, as it is written in a body.
pub const BLOCK: &str =
    r#"{"type":"compaction","content":"Much was asked.","signature":"c2ln","tool_changes":[]}"#;

/// Replies to a request for a compaction block.
pub async fn send_compaction_block(mut question: Call) {
    let usage = r#"{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":900,"output_tokens":21,"cache_read_input_tokens":0,"cache_creation_input_tokens":0}]}"#;
    let reply = format!(
        r#"{{"id":"m","type":"message","role":"assistant","content":[{BLOCK}],"stop_reason":"compaction","usage":{usage}}}"#
    );
    question.answer("200 OK", &reply).await;
}

/// Replies to a summary request, and closes the connection.
pub async fn send_summary(mut question: Call, summary: &str) {
    question.answer("200 OK", &answer(summary, 900).to_string()).await;
}
