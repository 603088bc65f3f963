//! A provider that answers every request of each dialect, a client that writes them, and the proxy between.

use std::sync::{Arc, Mutex};

use plimsoll::config::{Config, Mode};
use plimsoll::context::policy::Policy;
use plimsoll::dialect::Dialect;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Call, Message, Provider, Wire};
use crate::support::server::{TestServer, config};

/// Part of every request for a summary.
const ASKS: &str = "Write a summary of the conversation";

/// What a provider answers to a request, as it received it: status and body.
pub type Answer = fn(&Message, usize) -> (&'static str, Value);

/// The proxy in front of a provider that answers by itself.
pub struct Stage {
    pub server: TestServer,
    /// The requests that the provider received, those for summaries apart.
    pub received: Arc<Mutex<Vec<Message>>>,
    pub summaries: Arc<Mutex<Vec<Message>>>,
}

impl Stage {
    pub async fn of(answer: Answer, configure: impl FnOnce(&mut Config)) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        (config.mode, config.policy) = (Mode::Active, Arc::new(Policy::default()));
        configure(&mut config);
        let server = TestServer::with(config).await;
        let (received, summaries) =
            <(Arc<Mutex<Vec<Message>>>, Arc<Mutex<Vec<Message>>>)>::default();
        tokio::spawn(answer_all(provider, answer, received.clone(), summaries.clone()));
        Self { server, received, summaries }
    }

    /// One exchange; returns the client's response and the record.
    pub async fn exchange(
        &mut self,
        target: &str,
        headers: &str,
        body: &Value,
    ) -> (Message, Arc<Exchange>) {
        let body = body.to_string();
        let mut client = Wire::connect(self.server.address).await;
        let length = body.len();
        let key = if headers.contains("x-api-key") { "" } else { "x-api-key: k\r\n" };
        client
            .send(format!(
                "POST {target} HTTP/1.1\r\nhost: localhost\r\n{key}{headers}content-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            ))
            .await;
        let response = client.response().await;
        (response, self.server.next_exchange().await)
    }

    /// The newest request that the provider received.
    pub fn last(&self) -> Message {
        self.received.lock().unwrap().last().unwrap().clone()
    }
}

async fn answer_all(
    provider: Provider,
    answer: Answer,
    received: Arc<Mutex<Vec<Message>>>,
    summaries: Arc<Mutex<Vec<Message>>>,
) {
    loop {
        let mut wire = provider.accept().await;
        let (received, summaries) = (received.clone(), summaries.clone());
        tokio::spawn(async move {
            while wire.begins().await {
                let mut call: Call = wire.request().await;
                let is_summary = call.message.text().contains(ASKS);
                let (status, body) = if is_summary {
                    summaries.lock().unwrap().push(call.message.clone());
                    let text = "The person asked about ships, and they were told all of it.";
                    ("200 OK", reply(dialect_of(call.message.first_line()), 900, text))
                } else {
                    let number = {
                        let mut received = received.lock().unwrap();
                        received.push(call.message.clone());
                        received.len()
                    };
                    answer(&call.message, number)
                };
                call.answer(status, &body.to_string()).await;
                wire = call.wire;
            }
        });
    }
}

/// The dialect of a request line.
pub fn dialect_of(line: &str) -> Dialect {
    match line {
        line if line.contains("/messages") => Dialect::Anthropic,
        line if line.contains("/chat/completions") => Dialect::OpenaiChat,
        line if line.contains("/responses") => Dialect::OpenaiResponses,
        _ => Dialect::Gemini,
    }
}

pub const DIALECTS: [Dialect; 4] =
    [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];

/// The path of a dialect.
pub fn target(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "/v1/messages",
        Dialect::OpenaiChat => "/v1/chat/completions",
        Dialect::OpenaiResponses => "/v1/responses",
        Dialect::Gemini => "/v1beta/models/gemini-2.5-flash:generateContent",
    }
}

/// A request of texts, the user's first.
pub fn request(dialect: Dialect, system: &str, texts: &[String]) -> Value {
    let message = |at: usize, text: &String| match (dialect, at % 2) {
        (Dialect::Gemini, 0) => json!({"role": "user", "parts": [{"text": text}]}),
        (Dialect::Gemini, _) => json!({"role": "model", "parts": [{"text": text}]}),
        (_, 0) => json!({"role": "user", "content": text}),
        (_, _) => json!({"role": "assistant", "content": text}),
    };
    let messages: Vec<Value> =
        texts.iter().enumerate().map(|(at, text)| message(at, text)).collect();
    match dialect {
        Dialect::Anthropic => {
            json!({"model": "claude-sonnet-4-5", "max_tokens": 900, "system": system, "messages": messages})
        }
        Dialect::OpenaiChat => {
            let system = json!({"role": "system", "content": system});
            let all: Vec<Value> = std::iter::once(system).chain(messages).collect();
            json!({"model": "gpt-4.1", "messages": all})
        }
        Dialect::OpenaiResponses => {
            json!({"model": "gpt-4.1", "store": false, "instructions": system, "input": messages})
        }
        Dialect::Gemini => {
            json!({"systemInstruction": {"parts": [{"text": system}]}, "contents": messages})
        }
    }
}

/// A reply of one text after `input` tokens.
pub fn reply(dialect: Dialect, input: u64, text: &str) -> Value {
    match dialect {
        Dialect::Anthropic => {
            json!({"id": format!("msg_{input}"), "type": "message", "role": "assistant",
            "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
            "usage": {"input_tokens": input, "output_tokens": 40}})
        }
        Dialect::OpenaiChat => json!({"id": format!("chat_{input}"), "object": "chat.completion",
            "model": "gpt-4.1", "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": input, "completion_tokens": 40, "total_tokens": input + 40}}),
        Dialect::OpenaiResponses => json!({"id": format!("resp_{input}"), "object": "response",
            "status": "completed", "model": "gpt-4.1", "output": [{"type": "message", "id": "m",
                "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "usage": {"input_tokens": input, "output_tokens": 40, "total_tokens": input + 40}}),
        Dialect::Gemini => json!({"candidates": [{"index": 0, "finishReason": "STOP",
                "content": {"role": "model", "parts": [{"text": text}]}}],
            "responseId": format!("r_{input}"),
            "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": 40,
                "totalTokenCount": input + 40}}),
    }
}

/// Replies at length, and counts a token per four bytes of the request.
pub fn talkative(request: &Message, number: usize) -> (&'static str, Value) {
    let text = format!(
        "  Reply {number}.\nThe café at the harbour sells maps of it; this is what they say. {}\n",
        "The tide turns twice a day, and with it the ships. ".repeat(6)
    );
    ("200 OK", reply(dialect_of(request.first_line()), request.body.len() as u64 / 4, &text))
}
