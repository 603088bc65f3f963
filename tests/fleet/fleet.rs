//! Replicas on one server, before one strict provider: each has a store of its own, as a process has.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::caps::Cap;
use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy};
use plimsoll::store::redis::{RedisServer, RedisStore};
use scripted_provider::strict::{self, Clock, Rules, StrictProvider, StrictServer};
use serde_json::{Value, json};

use crate::server::LIFE;
use crate::support::http1::Wire;
use crate::support::server::{TestServer, config};

pub const MODEL: &str = "claude-sonnet-4-5";

pub struct Fleet {
    pub provider: StrictProvider,
    _serving: StrictServer,
    pub replicas: Vec<TestServer>,
    config: Config,
    server: RedisServer,
}

impl Fleet {
    pub async fn start(server: RedisServer, replicas: usize) -> Self {
        Self::with_caps(server, replicas, Vec::new()).await
    }

    pub async fn with_caps(server: RedisServer, replicas: usize, caps: Vec<Cap>) -> Self {
        let provider = StrictProvider::with_clock(Rules::default(), 7, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let mut config = config(&serving.base());
        config.mode = Mode::Active;
        config.policy = Arc::new(eager());
        config.caps = caps;
        let mut fleet = Self { provider, _serving: serving, replicas: Vec::new(), config, server };
        for _ in 0..replicas {
            fleet.add().await;
        }
        fleet
    }

    /// Starts one more replica.
    pub async fn add(&mut self) {
        let store = Arc::new(RedisStore::new(self.server.clone(), LIFE));
        let matcher = Matcher::builder().build();
        self.replicas.push(TestServer::over(store, self.config.clone(), matcher).await);
    }

    /// Sends a history to one replica; returns the status and the reply.
    pub async fn send(&self, replica: usize, session: &str, messages: &[Value]) -> (u16, Value) {
        let body = request(messages).to_string();
        let named = match session {
            "" => String::new(),
            session => format!("x-plimsoll-session: {session}\r\n"),
        };
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\n\
             anthropic-version: 2023-06-01\r\n{named}content-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = Wire::connect(self.replicas[replica].address).await;
        client.send(format!("{head}{body}")).await;
        let response = client.response().await;
        let answer = serde_json::from_str(response.text());
        (response.status(), answer.unwrap_or_default())
    }

    /// The same; returns the messages that the provider got.
    pub async fn sent(&self, replica: usize, session: &str, messages: &[Value]) -> Vec<Value> {
        self.provider.take_log();
        let (status, answer) = self.send(replica, session, messages).await;
        assert_eq!(status, 200, "{answer}");
        let log = self.provider.take_log();
        log.last().unwrap().request.body["messages"].as_array().unwrap().clone()
    }
}

/// Cuts as soon as there is something to cut.
fn eager() -> Policy {
    let prune = PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 100,
        protect_messages: 2,
        min_saving_tokens: 50,
        min_messages: 4,
        ..PrunePolicy::default()
    };
    Policy { prune, ..Policy::default() }
}

fn request(messages: &[Value]) -> Value {
    json!({"model": MODEL, "max_tokens": 1000, "system": "You are calm.", "messages": messages})
}

/// A history of `count` calls, each with a result of its own, which begins with `first`.
pub fn history(first: &str, count: usize) -> Vec<Value> {
    let mut history = vec![json!({"role": "user", "content": first})];
    for number in 0..count {
        let id = format!("toolu_01AbCdEf{number:04}");
        let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {"path": number}});
        history.push(json!({"role": "assistant", "content": [call]}));
        let text = format!("Line {number} of the log. ").repeat(40);
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": text});
        history.push(json!({"role": "user", "content": [result]}));
    }
    history
}

/// How many results were cut.
pub fn cuts(sent: &[Value]) -> usize {
    let results = sent.iter().filter_map(|message| message["content"][0]["content"].as_str());
    results.filter(|result| !result.starts_with("Line")).count()
}
