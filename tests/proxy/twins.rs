//! Two runs of an agent that send equal bytes over one connection are two sessions, each a conversation in itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::identity::{Site, place};
use crate::support::http1::Wire;

/// The steps in which the runs are equal.
const EQUAL: usize = 4;
const STEPS: usize = 6;
/// Which run sends the next request.
const ORDERS: [&str; 4] = ["abababababab", "abbabaabbaab", "aabbbaabbaab", "aaababbbbaab"];
/// How a request fails: it leaves no turn, or a turn without a complete reply.
const FAILURES: [&str; 2] = ["429 Too Many Requests", "200 OK"];

/// A client without session ids that drops reasoning and text beside a call, and whose call ids only count.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dialect {
    Messages,
    Chat,
    Responses,
    Gemini,
}

const DIALECTS: [Dialect; 4] =
    [Dialect::Messages, Dialect::Chat, Dialect::Responses, Dialect::Gemini];

/// A run: what its tools have returned.
#[derive(Clone, Default)]
struct Run {
    results: Vec<String>,
}

impl Run {
    /// In the first steps both runs see the same.
    fn go_on(&mut self, name: char) {
        let seen = self.results.len();
        self.results.push(if seen < EQUAL { seen.to_string() } else { format!("{name}{seen}") });
    }

    fn request(&self, dialect: Dialect) -> Value {
        let steps = self.results.iter().enumerate();
        let steps = steps.flat_map(|(step, result)| dialect.step(step, result));
        let turns: Vec<Value> = std::iter::once(dialect.prompt()).chain(steps).collect();
        match dialect {
            Dialect::Messages => {
                json!({"model": "claude-sonnet-4-5", "max_tokens": 5000, "messages": turns,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "tools": [{"name": "look", "input_schema": {"type": "object"}}]})
            }
            Dialect::Chat => json!({"model": "gpt-4.1", "messages": turns}),
            Dialect::Responses => json!({"model": "gpt-5.5", "input": turns, "store": false}),
            Dialect::Gemini => json!({"contents": turns}),
        }
    }
}

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Self::Messages => "/v1/messages",
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Gemini => "/v1beta/models/gemini-2.5-pro:generateContent",
        }
    }

    fn prompt(self) -> Value {
        match self {
            Self::Gemini => json!({"role": "user", "parts": [{"text": "Look at all."}]}),
            _ => json!({"role": "user", "content": "Look at all."}),
        }
    }

    /// A call as the client repeats it, and its result.
    fn step(self, step: usize, result: &str) -> [Value; 2] {
        let call = self.call(step);
        let id = format!("look:{step}");
        match self {
            Self::Messages => [
                json!({"role": "assistant", "content": [call]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}),
            ],
            Self::Chat => [
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": id, "content": result}),
            ],
            Self::Responses => {
                [call, json!({"type": "function_call_output", "call_id": id, "output": result})]
            }
            Self::Gemini => [
                json!({"role": "model", "parts": [call]}),
                json!({"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": result}}}]}),
            ],
        }
    }

    fn call(self, step: usize) -> Value {
        let (id, arguments) = (format!("look:{step}"), format!("{{\"n\":{step}}}"));
        match self {
            Self::Messages => {
                json!({"type": "tool_use", "id": id, "name": "look", "input": {"n": step}})
            }
            Self::Chat => {
                json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}})
            }
            Self::Responses => {
                json!({"type": "function_call", "call_id": id, "name": "look", "arguments": arguments})
            }
            Self::Gemini => json!({"functionCall": {"name": "look", "args": {"n": step}}}),
        }
    }

    /// The reply to a request: `number` is different in each.
    fn reply(self, step: usize, number: usize) -> Value {
        let call = self.call(step);
        match self {
            Self::Messages => {
                let signature = format!("c2ln{number:04}");
                let thinking =
                    json!({"type": "thinking", "thinking": "Hm.", "signature": signature});
                json!({"id": format!("msg_{number}"), "type": "message", "role": "assistant",
                    "model": "claude-sonnet-4-5", "content": [thinking, call], "stop_reason": "tool_use",
                    "usage": {"input_tokens": 50, "output_tokens": 9}})
            }
            Self::Chat => {
                let message =
                    json!({"role": "assistant", "content": "Let me look.", "tool_calls": [call]});
                json!({"id": format!("c{number}"), "object": "chat.completion", "model": "gpt-4.1",
                    "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                    "usage": {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}})
            }
            Self::Responses => {
                json!({"id": format!("resp_{number}"), "object": "response", "model": "gpt-5.5",
                "status": "completed", "output": [call],
                "usage": {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59}})
            }
            Self::Gemini => {
                json!({"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 50, "candidatesTokenCount": 9, "totalTokenCount": 59},
                "modelVersion": "gemini-2.5-pro"})
            }
        }
    }
}

/// Two runs over one connection, and what was recorded of them.
struct Twins {
    site: Site,
    wire: Wire,
    dialect: Dialect,
    runs: BTreeMap<char, Run>,
    /// Number of requests.
    number: usize,
    /// The steps of each session, in their order.
    steps: BTreeMap<String, Vec<usize>>,
    /// What the provider got in each session.
    sent: BTreeMap<String, Vec<Value>>,
}

impl Twins {
    async fn new(dialect: Dialect) -> Self {
        let site = Site::new().await;
        let wire = site.connect().await;
        let runs = [('a', Run::default()), ('b', Run::default())].into();
        let (steps, sent) = (BTreeMap::new(), BTreeMap::new());
        Self { site, wire, dialect, runs, number: 0, steps, sent }
    }

    /// A request that fails with this status, or gets its reply. Returns what it got, too.
    async fn ask(&mut self, name: char, failure: Option<&str>) -> Arc<Exchange> {
        let run = &self.runs[&name];
        self.number += 1;
        let reply = match failure {
            Some(_) => {
                json!({"type": "error", "error": {"type": "overloaded_error", "message": "Wait."}})
            }
            None => self.dialect.reply(run.results.len(), self.number),
        };
        let key = match self.dialect {
            Dialect::Gemini => "x-goog-api-key: k\r\n",
            _ => "authorization: Bearer k\r\n",
        };
        let (path, request) = (self.dialect.path(), run.request(self.dialect));
        let status = failure.unwrap_or("200 OK");
        let (sent, exchange) =
            self.site.ask_at(path, &mut self.wire, key, &request, status, &reply).await;
        if failure.is_none() {
            let (session, step) = (place(&exchange).0, run.results.len());
            self.steps.entry(session.clone()).or_default().push(step);
            self.sent.entry(session).or_default().push(sent);
        }
        exchange
    }

    async fn step(&mut self, name: char) -> (String, String) {
        let exchange = self.ask(name, None).await;
        self.runs.get_mut(&name).unwrap().go_on(name);
        place(&exchange)
    }

    /// Both runs are whole sessions, each step of which continues the one before it.
    fn check(&self, what: &str) {
        let whole: Vec<usize> = (0..STEPS).collect();
        let steps: Vec<&Vec<usize>> = self.steps.values().collect();
        assert_eq!(steps, [&whole, &whole], "{:?} {what}", self.dialect);
        for sent in self.sent.values() {
            for pair in sent.windows(2) {
                let [before, after] = [&pair[0], &pair[1]].map(|body| {
                    let turns = ["messages", "input", "contents"].map(|name| &body[name]);
                    turns.into_iter().find_map(Value::as_array).unwrap()
                });
                assert!(
                    after.starts_with(before),
                    "{:?} {what}: {before:?} {after:?}",
                    self.dialect
                );
            }
        }
    }
}

/// While they are equal to the byte they may change places, which nobody sees; then each keeps its own.
#[tokio::test]
async fn equal_runs_over_one_connection_stay_two() {
    for dialect in DIALECTS {
        for order in ORDERS {
            let mut twins = Twins::new(dialect).await;
            let mut places = BTreeMap::new();
            for name in order.chars() {
                let differs = twins.runs[&name].results.len() > EQUAL;
                let place = twins.step(name).await;
                if differs {
                    assert_eq!(*places.entry(name).or_insert(place.clone()), place);
                }
            }
            twins.check(order);
        }
    }
}

/// A request that fails is sent again. Meanwhile the other run sends the same, and may fail, too.
#[tokio::test]
async fn failed_request_is_sent_again_once() {
    for (dialect, failure) in DIALECTS.into_iter().flat_map(|it| FAILURES.map(|one| (it, one))) {
        for failed in [0, 1, EQUAL] {
            for fails in ["a", "ab", "aabb"] {
                let mut twins = Twins::new(dialect).await;
                for step in 0..STEPS {
                    if step == failed {
                        for name in fails.chars() {
                            twins.ask(name, Some(failure)).await;
                        }
                    }
                    for name in ['b', 'a'] {
                        twins.step(name).await;
                    }
                }
                twins.check(&format!("{failure} {failed} {fails}"));
            }
        }
    }
}
