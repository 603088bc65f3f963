//! How a reply leaves the provider, if not in the usual way: its end, where its usage stands, and replies that are
//! stored and read later (`docs/protocols.md` 2.1, 3.7).
//!
//! What is reported for each reply is kept, so that tests can add it up.

use std::collections::HashMap;
use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::prompt::text;
use super::{Dialect, ReceivedRequest, StrictProvider};
use demo_provider::dialect::{Event, openai_responses};
use demo_provider::{Body, event_stream, json_response};

/// How the next streamed reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnding {
    /// Without its last event; the connection ends properly.
    NoLastEvent,
    /// Without a finish reason.
    NoReason,
    /// With its usage beside a choice that says nothing.
    UsageBesideChoice,
    /// With each event over several lines.
    SeveralLines,
}

/// Input and output of a reply, as reported.
pub type UsageSum = (u64, u64);

/// Replies that are stored at the provider.
#[derive(Default)]
pub(super) struct StoredReplies {
    /// Each with how often it is still made in the background when it is read.
    by_id: HashMap<String, (Value, usize)>,
    /// What the newest reply reports.
    newest: UsageSum,
    /// How often the next reply in the background is read before it is done.
    pub(super) polls: usize,
}

impl StrictProvider {
    /// The next streamed reply ends like this.
    pub fn end_next_stream(&self, ending: ReplyEnding) {
        self.state().ending = Some(ending);
    }

    /// The next reply in the background is read this many times before it is done.
    pub fn finish_after_polls(&self, polls: usize) {
        self.state().stored.polls = polls;
    }

    /// What the newest reply reports.
    pub fn newest_usage(&self) -> UsageSum {
        self.state().stored.newest
    }
}

impl StoredReplies {
    /// Keeps a reply; returns what its client gets at once.
    pub(super) fn keep(&mut self, request: &ReceivedRequest, body: Value) -> Value {
        self.newest = usage(request.dialect, &body);
        if request.dialect != Dialect::Responses || request.body["store"] == false {
            return body;
        }
        let in_background = request.body["background"] == true;
        let polls = if in_background { std::mem::take(&mut self.polls) } else { 0 };
        self.by_id.insert(text(&body["id"]).to_owned(), (body.clone(), polls));
        if in_background && !request.stream { queued(body) } else { body }
    }

    /// The response to a request that reads a stored reply, or the rest of its stream.
    pub(super) fn read(&mut self, target: &str) -> Response<Body> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let id = path.rsplit('/').next().unwrap_or_default();
        let Some((body, polls)) = self.by_id.get_mut(id) else {
            return json_response(
                StatusCode::NOT_FOUND,
                &json!({"error": {"message": "not found"}}),
            );
        };
        let starting_after = query.split('&').find_map(|pair| pair.strip_prefix("starting_after="));
        if let Some(number) = starting_after.and_then(|number| number.parse::<usize>().ok()) {
            let events = openai_responses::stream_events(body).into_iter().skip(number + 1);
            let frames = events.map(|event| Ok(event.frame(false))).collect();
            return event_stream(frames, Duration::ZERO);
        }
        let is_done = *polls == 0;
        *polls = polls.saturating_sub(1);
        let reply = if is_done { body.clone() } else { queued(body.clone()) };
        json_response(StatusCode::OK, &reply)
    }
}

/// A reply that is not made yet.
fn queued(mut body: Value) -> Value {
    (body["status"], body["output"], body["usage"]) = (json!("queued"), json!([]), Value::Null);
    body
}

fn usage(dialect: Dialect, body: &Value) -> UsageSum {
    let sum = |usage: &Value, names: &[&str]| {
        // Odd servers report numbers whose sum is larger than any.
        names.iter().filter_map(|name| usage[name].as_u64()).fold(0, u64::saturating_add)
    };
    match dialect {
        Dialect::Anthropic => {
            let input = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
            (sum(&body["usage"], &input), sum(&body["usage"], &["output_tokens"]))
        }
        Dialect::Chat => {
            let usage = &body["usage"];
            let input = sum(usage, &["prompt_tokens"]);
            (input, sum(usage, &["total_tokens"]).saturating_sub(input))
        }
        Dialect::Responses => {
            (sum(&body["usage"], &["input_tokens"]), sum(&body["usage"], &["output_tokens"]))
        }
        Dialect::Gemini => {
            let output = ["candidatesTokenCount", "thoughtsTokenCount"];
            let usage = &body["usageMetadata"];
            (sum(usage, &["promptTokenCount"]), sum(usage, &output))
        }
    }
}

/// The frames of a stream that ends like this.
pub(super) fn frames(
    ending: Option<ReplyEnding>,
    mut events: Vec<Event>,
    crlf: bool,
) -> Vec<String> {
    match ending {
        Some(ReplyEnding::NoLastEvent) => {
            events.pop();
        }
        Some(ReplyEnding::NoReason) => {
            events.retain(|event| !event.data.contains("\"finish_reason\":\""));
        }
        Some(ReplyEnding::UsageBesideChoice) => {
            for event in events.iter_mut().filter(|event| event.data.contains("\"choices\":[]")) {
                let choice = r#""choices":[{"delta":{},"finish_reason":null,"index":0}]"#;
                event.data = event.data.replace("\"choices\":[]", choice);
            }
        }
        Some(ReplyEnding::SeveralLines) => {
            return events.iter().map(|event| lines(event, crlf)).collect();
        }
        None => {}
    }
    events.iter().map(|event| event.frame(crlf)).collect()
}

/// An event whose data stands on several lines.
fn lines(event: &Event, crlf: bool) -> String {
    let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return event.frame(crlf) };
    let data = serde_json::to_string_pretty(&data).unwrap_or_default();
    Event {
        data: data.replace('\n', if crlf { "\r\ndata: " } else { "\ndata: " }),
        ..event.clone()
    }
    .frame(crlf)
}
