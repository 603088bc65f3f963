//! Replies that end in unusual ways: in the background, resumed, without their last event, with usage in odd places, and
//! clients that leave at the finish reason. What is booked is what the provider reports, each reply once, whoever reads
//! it how often; the client gets the whole text, and no usage that it did not ask for.
//!
//! `make harmless N=5000` plays a tenth as many of these; `PLIMSOLL_ENDING_SEED` plays one alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Config;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{ScopePage, Store};
use scripted_provider::strict::{
    self, Clock, Dialect, ReplyEnding, Rules, ScriptedReply, StrictProvider,
};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::stage::patient;
use crate::stream::assemble;
use crate::support::http1::Wire;
use crate::support::server::{TestServer, config};
use crate::{first_seed, number};

/// Conversations that `cargo test` plays.
const FEW: u64 = 60;

/// How a reply reaches its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Usual,
    NoLastEvent,
    NoReason,
    UsageBesideChoice,
    SeveralLines,
    LeftAtReason,
    Polled,
    Resumed,
    Fetched,
}

fn ways(dialect: Dialect) -> &'static [Way] {
    use Way::{
        Fetched, LeftAtReason, NoLastEvent, NoReason, Polled, Resumed, SeveralLines,
        UsageBesideChoice, Usual,
    };
    match dialect {
        Dialect::Anthropic => &[Usual, NoLastEvent, SeveralLines],
        // The last event has the usage.
        Dialect::Gemini => &[Usual, SeveralLines],
        Dialect::Chat => {
            &[Usual, NoLastEvent, NoReason, UsageBesideChoice, SeveralLines, LeftAtReason]
        }
        Dialect::Responses => &[Usual, SeveralLines, Polled, Resumed, Fetched],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_is_booked_once() {
    let seeds = match number("PLIMSOLL_ENDING_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let count = number("PLIMSOLL_HARMLESS").map_or(FEW, |count| count / 10);
            first_seed()..first_seed() + count
        }
    };
    let mut played = BTreeMap::new();
    for seed in seeds.clone() {
        if let Err(message) = Play::open(seed).await.run(&mut played).await {
            panic!("seed {seed}: {message}");
        }
    }
    println!("{played:?}");
    // A few other seeds may miss one of the ways.
    if seeds.start == 0 && seeds.end >= FEW {
        assert_eq!(played.len(), 9, "{played:?}");
    }
}

struct Play {
    dice: Dice,
    dialect: Dialect,
    provider: StrictProvider,
    _serving: strict::StrictServer,
    store: Arc<dyn Store>,
    config: Config,
    server: TestServer,
    history: Vec<Value>,
    /// Input and output that were reported, and the share of them since the last restart.
    booked: [u64; 2],
    since_restart: [u64; 2],
}

impl Play {
    async fn open(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let all = [Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini];
        let dialect = dice.of(&all);
        let provider = StrictProvider::with_clock(Rules::default(), seed, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let config = patient(config(&serving.base()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let matcher = Matcher::builder().build();
        let server = TestServer::over(store.clone(), config.clone(), matcher).await;
        let (history, booked, since_restart) = Default::default();
        Self {
            dice,
            dialect,
            provider,
            _serving: serving,
            store,
            config,
            server,
            history,
            booked,
            since_restart,
        }
    }

    async fn run(mut self, played: &mut BTreeMap<Way, u64>) -> Result<(), String> {
        for _ in 0..3 + self.dice.below(3) {
            let way = self.dice.of(ways(self.dialect));
            let words = self.dice.words(8);
            let question = self.dice.words(4);
            self.push("user", &question);
            self.provider.queue_reply(ScriptedReply::text(&words));
            self.play(way, &words)
                .await
                .map_err(|why| format!("{:?} {way:?}: {why}", self.dialect))?;
            self.push("assistant", &words);
            let sums = self.sums().await;
            if sums != (self.booked, self.since_restart) {
                let expected = (self.booked, self.since_restart);
                return Err(format!("{:?} {way:?}: {sums:?} for {expected:?}", self.dialect));
            }
            *played.entry(way).or_default() += 1;
        }
        Ok(())
    }

    async fn play(&mut self, way: Way, words: &str) -> Result<(), String> {
        let ending = match way {
            Way::NoLastEvent => Some(ReplyEnding::NoLastEvent),
            Way::NoReason => Some(ReplyEnding::NoReason),
            Way::UsageBesideChoice => Some(ReplyEnding::UsageBesideChoice),
            Way::SeveralLines => Some(ReplyEnding::SeveralLines),
            _ => None,
        };
        ending.into_iter().for_each(|ending| self.provider.end_next_stream(ending));
        match way {
            Way::LeftAtReason => self.leave_at_reason().await,
            Way::Polled => {
                let polls = self.dice.below(3);
                self.provider.finish_after_polls(polls);
                let body = self.body(true, false);
                let id = self.json(&body).await?["id"].clone();
                self.read_later(&id, polls).await?;
            }
            Way::Resumed | Way::Fetched => {
                let after = 3 + self.dice.below(3);
                self.provider.cut_next_stream_after(after);
                let text = self.stream(&self.body(way == Way::Resumed, true), false).await;
                let first = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
                let first: Value = serde_json::from_str(first).unwrap();
                let id = first["response"]["id"].clone();
                if way == Way::Resumed {
                    self.restart_sometimes().await;
                    let path = format!("{}?stream=true&starting_after={}", path_of(&id), after - 1);
                    let mut client = self.get("key-one", &path).await;
                    let rest = client.response().await.text().to_owned();
                    if !assemble(self.dialect, &rest)
                        .to_string()
                        .contains(&words[words.len() - 8..])
                    {
                        return Err(format!("the rest is {rest}"));
                    }
                    self.server.next_exchange().await;
                    self.book();
                    self.restart_sometimes().await;
                    self.poll("key-one", &id).await;
                } else {
                    self.read_later(&id, 0).await?;
                }
            }
            _ => {
                let text = self.stream(&self.body(false, true), true).await;
                self.check_text(&text, words)?;
                self.book();
            }
        }
        Ok(())
    }

    /// Polls a reply until it is done, and once more; others poll it, too, and the proxy may start again.
    async fn read_later(&mut self, id: &Value, polls: usize) -> Result<(), String> {
        self.restart_sometimes().await;
        for _ in 0..polls {
            self.poll("key-one", id).await;
        }
        if self.dice.once_in(2) {
            self.poll("key-two", id).await;
            let sums = self.sums().await;
            if sums != (self.booked, self.since_restart) {
                return Err(format!("another credential booked {sums:?}"));
            }
        }
        self.restart_sometimes().await;
        self.poll("key-one", id).await;
        self.book();
        self.restart_sometimes().await;
        self.poll("key-one", id).await;
        Ok(())
    }

    async fn poll(&mut self, key: &str, id: &Value) {
        let mut client = self.get(key, &path_of(id)).await;
        assert_eq!(client.response().await.status(), 200);
        self.server.next_exchange().await;
    }

    /// The newest reply has been booked.
    fn book(&mut self) {
        let (input, output) = self.provider.newest_usage();
        for sums in [&mut self.booked, &mut self.since_restart] {
            (sums[0], sums[1]) = (sums[0] + input, sums[1] + output);
        }
    }

    async fn restart_sometimes(&mut self) {
        if self.dice.once_in(3) {
            self.server.stop();
            let matcher = Matcher::builder().build();
            self.server = TestServer::over(self.store.clone(), self.config.clone(), matcher).await;
            self.since_restart = [0, 0];
        }
    }

    /// What the sessions of the store and the metrics of the process say.
    async fn sums(&self) -> ([u64; 2], [u64; 2]) {
        let lines = self.server.ledgers.sessions(ScopePage::first(100)).await.unwrap();
        let kept = [lines.iter().map(|it| it.input).sum(), lines.iter().map(|it| it.output).sum()];
        let metrics = self.server.telemetry.render();
        let counted = ["input", "output"].map(|kind| {
            let of = format!("plimsoll_tokens_total{{kind=\"{kind}\",");
            let own = metrics.lines().filter(|line| line.starts_with(&of));
            own.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        });
        (kept, counted)
    }

    /// The client leaves when it has the finish reason; what it did not wait for is read all the same.
    async fn leave_at_reason(&mut self) {
        let mut client = self.post(&self.body(false, true)).await;
        client.head().await;
        let mut seen = String::new();
        while !seen.contains("\"finish_reason\":\"stop\"") {
            seen += std::str::from_utf8(&client.chunk().await).unwrap();
        }
        drop(client);
        self.server.next_exchange().await;
        self.book();
    }

    /// The client has the whole text, and no usage that it did not ask for.
    fn check_text(&self, stream: &str, words: &str) -> Result<(), String> {
        if self.dialect == Dialect::Chat && stream.contains("prompt_tokens") {
            return Err(format!("usage is shown: {stream}"));
        }
        let last = &words[words.len() - 8..];
        match stream.contains(last) {
            true => Ok(()),
            false => Err(format!("{last} is missing: {stream}")),
        }
    }

    fn push(&mut self, role: &str, words: &str) {
        self.history.push(match (self.dialect, role) {
            (Dialect::Gemini, "user") => json!({"role": "user", "parts": [{"text": words}]}),
            (Dialect::Gemini, _) => json!({"role": "model", "parts": [{"text": words}]}),
            _ => json!({"role": role, "content": words}),
        });
    }

    fn body(&self, background: bool, stream: bool) -> String {
        let history = &self.history;
        let body = match self.dialect {
            Dialect::Anthropic => {
                json!({"model": "claude-sonnet-4-6", "max_tokens": 900, "stream": stream, "messages": history})
            }
            Dialect::Chat => json!({"model": "gpt-5.5", "stream": stream, "messages": history}),
            Dialect::Responses => {
                json!({"model": "gpt-5.5", "stream": stream, "background": background, "input": history})
            }
            Dialect::Gemini => json!({"contents": history}),
        };
        body.to_string()
    }

    async fn post(&self, body: &str) -> Wire {
        let path = match self.dialect {
            Dialect::Anthropic => "/v1/messages",
            Dialect::Chat => "/v1/chat/completions",
            Dialect::Responses => "/v1/responses",
            Dialect::Gemini => "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        };
        let length = body.len();
        let head = "anthropic-version: 2023-06-01\r\ncontent-type: application/json";
        let mut client = Wire::connect(self.server.address).await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key-one\r\n{head}\r\n\
                 content-length: {length}\r\n\r\n{body}"
            ))
            .await;
        client
    }

    async fn get(&self, key: &str, path: &str) -> Wire {
        let mut client = Wire::connect(self.server.address).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}");
        client.send(format!("{head}\r\n\r\n")).await;
        client
    }

    async fn json(&mut self, body: &str) -> Result<Value, String> {
        let mut client = self.post(body).await;
        let response = client.response().await;
        self.server.next_exchange().await;
        serde_json::from_slice(&response.body).map_err(|why| format!("{why}: {}", response.text()))
    }

    /// The text of a stream that ends properly, or that breaks off.
    async fn stream(&mut self, body: &str, ends: bool) -> String {
        let mut client = self.post(body).await;
        let text = if ends {
            client.response().await.text().to_owned()
        } else {
            client.head().await;
            String::from_utf8(client.rest().await.unwrap_or_default()).unwrap()
        };
        self.server.next_exchange().await;
        text
    }
}

fn path_of(id: &Value) -> String {
    format!("/v1/responses/{}", id.as_str().unwrap())
}
