//! An agent's session as the demo plays it: a person asks, tools return more and more, and the history grows,
//! in two protocols.
//!
//! A plain client: it knows a base URL and its own history, and nothing about the servers behind.

use std::io;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// A client for plain HTTP.
pub(super) type Http = Client<HttpConnector, Full<Bytes>>;

pub(super) fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends a request and reads the whole response; any status but 2xx is an error.
pub(super) async fn fetch(http: &Http, request: Request<Full<Bytes>>) -> io::Result<Bytes> {
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = http.request(request).await.map_err(io::Error::other)?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    if !status.is_success() {
        let body = String::from_utf8_lossy(&body).into_owned();
        return Err(io::Error::other(format!("{what}: {status}: {body}")));
    }
    Ok(body)
}

/// The person's messages, one after the other; each is sent once the previous one has its final answer.
const ASKS: &[&str] = &[
    "Find out why the nightly build failed: look around in 5 steps.",
    "Which single change would you make? Check it in 2 steps.",
];
/// Messages for a session that fills its window.
const LONG: &[&str] = &[
    "Find out why the nightly build failed: read all of its logs in 12 steps.",
    "Read the logs of the night before too, in 10 steps.",
];

/// One task as a coding agent works on it: many tool calls, none with a large result, while the history
/// grows.
const TASK: &[&str] = &[
    "The nightly build has failed for weeks, each night in another unit. Find out what these nights have in \
     common: read what you need, in 38 steps.",
];

const SYSTEM: &str = include_str!("system.txt");

/// Which protocol an agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// Anthropic Messages, streamed.
    Anthropic,
    /// OpenAI Responses, streamed.
    Responses,
}

/// One agent with its history.
pub(super) struct Agent {
    speaks: Speaks,
    /// The model that it requests.
    pub(super) model: &'static str,
    /// The session id that it sends.
    pub(super) session: String,
    /// Whether it drops the reasoning of replies, as many clients do.
    forgets: bool,
    prompts: &'static [&'static str],
    /// The number of lines that the tool prints in its `n`th call.
    lines: fn(usize) -> usize,
    history: Vec<Value>,
    prompted: usize,
    results: usize,
}

/// The result of one exchange.
pub(super) struct Step {
    /// The new content of the request.
    pub(super) sent: String,
    /// The text of the reply.
    pub(super) reply: String,
}

impl Agent {
    pub(super) fn new(speaks: Speaks, model: &'static str, session: &str) -> Self {
        Self {
            speaks,
            model,
            session: session.to_owned(),
            forgets: false,
            prompts: ASKS,
            lines: |n| 12 << n.min(6),
            history: Vec::new(),
            prompted: 0,
            results: 0,
        }
    }

    /// The same agent, with more to read than its window holds.
    pub(super) fn long(self) -> Self {
        Self { prompts: LONG, ..self }
    }

    /// The same agent, with one task of many steps and results of some 4,000 tokens.
    pub(super) fn steady(self) -> Self {
        Self { prompts: TASK, lines: |n| 130 + 40 * (n % 3), ..self }
    }

    /// The same agent, which does not send its reasoning back.
    pub(super) fn forgetful(self) -> Self {
        Self { forgets: true, ..self }
    }

    /// Plays one exchange; `None` once all messages are sent.
    ///
    /// # Errors
    /// If the base URL does not respond as the protocol says.
    pub(super) async fn step(&mut self, http: &Http, base: &str) -> io::Result<Option<Step>> {
        let Some(sent) = self.grow() else { return Ok(None) };
        let (path, body) = self.request();
        let request = Request::post(format!("{base}{path}"))
            .header("content-type", "application/json")
            .header("authorization", "Bearer demo-key")
            .header("anthropic-version", "2023-06-01")
            .header("x-plimsoll-session", &self.session)
            .body(Full::from(body.to_string()))
            .map_err(io::Error::other)?;
        let answer = fetch(http, request).await?;
        let events = events(&answer);
        let reply = match self.speaks {
            Speaks::Anthropic => self.hear_anthropic(&events),
            Speaks::Responses => self.hear_responses(&events),
        };
        Ok(Some(Step { sent, reply }))
    }

    /// Returns what comes next as text.
    fn grow(&mut self) -> Option<String> {
        // A tool's result if the model called one, otherwise the next message.
        let call = self.history.last().and_then(|item| match self.speaks {
            Speaks::Anthropic => {
                item["content"].as_array()?.iter().find(|block| block["type"] == "tool_use")
            }
            Speaks::Responses => Some(item).filter(|item| item["type"] == "function_call"),
        });
        if let Some(call) = call {
            let id = call["id"].clone();
            let call_id = call["call_id"].clone();
            let result = tool_result((self.lines)(self.results));
            let description = format!("a tool result of {} bytes", result.len());
            self.results += 1;
            self.history.push(match self.speaks {
                Speaks::Anthropic => {
                    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]})
                }
                Speaks::Responses => json!({"type": "function_call_output", "call_id": call_id, "output": result}),
            });
            return Some(description);
        }
        let prompt = self.prompts.get(self.prompted)?;
        self.prompted += 1;
        self.history.push(json!({"role": "user", "content": prompt}));
        Some(format!("“{prompt}”"))
    }

    fn request(&self) -> (&'static str, Value) {
        let schema = json!({
            "type": "object", "properties": {"command": {"type": "string", "description": "The command line"}},
            "required": ["command"],
        });
        let about = "Runs a command in the project's folder and answers with what it printed.";
        match self.speaks {
            Speaks::Anthropic => {
                let system = json!([{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]);
                let tools = json!([{"name": "bash", "description": about, "input_schema": schema}]);
                (
                    "/v1/messages",
                    json!({
                        "model": self.model, "max_tokens": 8192, "stream": true, "system": system, "tools": tools,
                        "thinking": {"type": "enabled", "budget_tokens": 4096}, "messages": self.history,
                    }),
                )
            }
            Speaks::Responses => {
                let tools = json!([{"type": "function", "name": "shell", "description": about, "parameters": schema}]);
                (
                    "/v1/responses",
                    json!({
                        "model": self.model, "stream": true, "store": false, "instructions": SYSTEM, "tools": tools,
                        "reasoning": {"effort": "medium"}, "include": ["reasoning.encrypted_content"], "input": self.history,
                    }),
                )
            }
        }
    }

    fn hear_anthropic(&mut self, events: &[Value]) -> String {
        // As the protocol requires it to be sent back.
        let mut blocks: Vec<Value> = Vec::new();
        let mut arguments = String::new();
        for event in events {
            let delta = &event["delta"];
            match (event["type"].as_str().unwrap_or_default(), blocks.last_mut()) {
                ("content_block_start", _) => {
                    arguments.clear();
                    blocks.push(event["content_block"].clone());
                }
                ("content_block_delta", Some(block)) => {
                    for field in ["text", "thinking", "signature"] {
                        if let Some(more) = delta[field].as_str() {
                            block[field] =
                                json!(block[field].as_str().unwrap_or_default().to_owned() + more);
                        }
                    }
                    arguments += delta["partial_json"].as_str().unwrap_or_default();
                }
                ("content_block_stop", Some(block)) if block["type"] == "tool_use" => {
                    block["input"] = serde_json::from_str(&arguments).unwrap_or_default();
                }
                _ => {}
            }
        }
        let reply = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        blocks.retain(|block| !self.forgets || block["type"] != "thinking");
        self.history.push(json!({"role": "assistant", "content": blocks}));
        reply
    }

    fn hear_responses(&mut self, events: &[Value]) -> String {
        let output = events.last().map(|last| last["response"]["output"].clone());
        let items = output.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        let reply = items.iter().filter_map(|item| item["content"][0]["text"].as_str()).collect();
        self.history.extend(items);
        reply
    }
}

fn events(stream: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(stream);
    text.lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect()
}

/// What the tool prints: this many lines of a log.
fn tool_result(lines: usize) -> String {
    (0..lines)
        .map(|line| {
            let step = line * 37 % 420;
            let unit = ["lexer", "parser", "report", "config"][line % 4];
            // Deterministic, so that every run of the demo shows the same numbers.
            let word = if line % 29 == 28 { "WARN" } else { "INFO" };
            format!(
                "[{word}] build.{unit}: step {step}/420 compiled {} units in {}.{:03} s\n",
                3 + line % 88,
                line % 3,
                line * 131 % 1000
            )
        })
        .collect()
}
