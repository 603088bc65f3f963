//! The proxy in front of the strict provider, which refuses and silently loses what a real one would.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::Policy;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, LoggedRequest, Rules, ScriptedReply, StrictProvider, StrictServer,
};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::support::http1::Wire;
use crate::support::server::{TestServer, config};
use crate::support::within;

/// One client, one proxy, one strict provider.
pub struct Stage {
    pub provider: StrictProvider,
    _serving: StrictServer,
    store: Arc<dyn Store>,
    pub config: Config,
    pub server: TestServer,
    pub headers: &'static str,
    pub session: &'static str,
}

/// The record of one exchange.
pub struct RoundTrip {
    pub status: u16,
    /// Status line and headers of the response.
    pub head: String,
    pub answer: Value,
    pub exchange: Arc<Exchange>,
    /// The provider's verdicts on its requests, oldest first.
    pub log: Vec<LoggedRequest>,
}

impl Stage {
    pub async fn open(rules: Rules, policy: Policy) -> Self {
        let provider = StrictProvider::with_clock(rules, 7, Clock::manual());
        let serving = strict::serve(provider.clone()).await.unwrap();
        let mut config = config(&serving.base());
        (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let server = server(&store, &config).await;
        let (headers, session) = ("", "s");
        Self { provider, _serving: serving, store, config, server, headers, session }
    }

    /// Starts another process over the same store.
    pub async fn restart(&mut self) {
        self.server = server(&self.store, &self.config).await;
    }

    /// The events of a streamed reply, as another provider of the same kind writes them.
    pub async fn preview(&self, body: &Value, reply: ScriptedReply) -> Vec<String> {
        let mut alone = Self::open(Rules::default(), Policy::default()).await;
        let last = body["messages"].as_array().unwrap().last().unwrap();
        let mut body = body.clone();
        body["messages"] = serde_json::json!([last]);
        let trip = alone.exchange("/v1/messages", &body, reply).await;
        let stream = trip.answer.as_str().unwrap().trim_end();
        stream.split("\n\n").map(str::to_owned).collect()
    }

    /// One exchange; the provider replies with `reply` if it accepts the request.
    pub async fn exchange(
        &mut self,
        target: &str,
        body: &Value,
        reply: ScriptedReply,
    ) -> RoundTrip {
        let is_streamed = body["stream"] == true;
        self.send_and_record(target, &body.to_string(), reply, is_streamed).await
    }

    /// The same with a body given as text.
    pub async fn exchange_text(
        &mut self,
        target: &str,
        body: &str,
        reply: ScriptedReply,
    ) -> RoundTrip {
        self.send_and_record(target, body, reply, false).await
    }

    async fn send_and_record(
        &mut self,
        target: &str,
        body: &str,
        reply: ScriptedReply,
        is_streamed: bool,
    ) -> RoundTrip {
        self.provider.queue_reply(reply);
        self.provider.take_log();
        let (headers, session) = (self.headers, self.session);
        let end = if is_streamed { "connection: close\r\n" } else { "" };
        let head = format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\n\
             x-plimsoll-session: {session}\r\n{headers}{end}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = Wire::connect(self.server.address).await;
        client.send(format!("{head}{body}")).await;
        let (status, head, text) = match is_streamed {
            true => streamed(client).await,
            false => {
                let response = client.response().await;
                (response.status(), response.head.clone(), response.text().to_owned())
            }
        };
        let exchange = self.server.next_exchange().await;
        let answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
        RoundTrip { status, head, answer, exchange, log: self.provider.take_log() }
    }
}

/// A stream as it came, complete or broken, with its chunk framing.
async fn streamed(mut client: Wire) -> (u16, String, String) {
    let mut read = Vec::new();
    let reading = client.stream.read_to_end(&mut read);
    let _ = within("the stream to end", reading).await;
    let text = String::from_utf8(read).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}

async fn server(store: &Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await
}

impl RoundTrip {
    /// The body that the provider accepted, or refused last.
    pub fn sent(&self) -> &Value {
        &self.log.last().unwrap().request.body
    }
}
