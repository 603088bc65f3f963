//! A client and a provider that play a conversation through the proxy, exchange by exchange.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::plan::{Change, Decision, DecisionReason, PlanStep};
use plimsoll::context::policy::Policy;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};

/// One provider, one store, and the proxy between client and provider.
pub struct Play {
    pub provider: Provider,
    pub store: Arc<dyn Store>,
    pub server: TestServer,
    pub config: Config,
    pub session: &'static str,
    pub key: &'static str,
    pub headers: String,
    pub target: &'static str,
}

/// The record of one exchange.
pub struct Scene {
    /// What the provider received.
    pub sent: Value,
    /// The same, as bytes.
    pub bytes: String,
    /// First line and headers of the request.
    pub head: String,
    /// The exchange's event.
    pub exchange: Arc<Exchange>,
}

impl Play {
    pub async fn of(target: &'static str, policy: Policy) -> Self {
        Self::over(Arc::new(MemoryStore::default()), target, Mode::Active, policy).await
    }

    pub async fn over(
        store: Arc<dyn Store>,
        target: &'static str,
        mode: Mode,
        policy: Policy,
    ) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        (config.mode, config.policy) = (mode, Arc::new(policy));
        let server = server(&store, &config).await;
        let (session, headers) = ("11111111-2222-3333-4444-555555555555", String::new());
        Self { provider, store, server, config, session, key: "k", headers, target }
    }

    /// Starts another process over the same store.
    pub async fn restart(&mut self) {
        self.server = server(&self.store, &self.config).await;
    }

    /// One exchange: the client sends `request`, the provider returns `reply`.
    pub async fn exchange(&mut self, request: &Value, reply: &Value) -> Scene {
        let mut client = self.send_request(request).await;
        let mut call = self.provider.call().await;
        call.answer("200 OK", &reply.to_string()).await;
        client.response().await;
        let bytes = call.message.text().to_owned();
        let exchange = self.server.next_exchange().await;
        let head = call.message.head.clone();
        Scene { sent: serde_json::from_str(&bytes).unwrap(), bytes, head, exchange }
    }

    /// Sends a request on a connection of its own.
    pub async fn send_request(&self, request: &Value) -> Wire {
        let mut client = Wire::connect(self.server.address).await;
        let (body, target, headers) = (request.to_string(), self.target, &self.headers);
        let (key, session) = (self.key, self.session);
        let head = format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\
             x-plimsoll-session: {session}\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(format!("{head}{body}")).await;
        client
    }
}

async fn server(store: &Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await
}

impl Scene {
    /// The steps of the plan: change, decision, reason.
    pub fn steps(&self) -> Vec<(Change, Decision, DecisionReason)> {
        let step_of = |step: &PlanStep| (step.change, step.decision, step.why);
        self.exchange.done.steps.iter().map(step_of).collect()
    }
}

/// An Anthropic request.
pub fn anthropic_request(model: &str, messages: &[Value]) -> Value {
    json!({
        "model": model, "max_tokens": 1000, "thinking": {"type": "adaptive"},
        "system": "You are calm.", "messages": messages,
    })
}

/// An Anthropic reply.
pub fn anthropic_reply(id: &str, model: &str, content: Value) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1000, "output_tokens": 50, "cache_creation_input_tokens": 500,
                  "cache_read_input_tokens": 300},
    })
}

/// `{"role":…,"content":…}`.
pub fn message(role: &str, content: Value) -> Value {
    json!({"role": role, "content": content})
}
