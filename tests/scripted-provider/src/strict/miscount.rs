//! Usage as odd servers report it (`docs/protocols.md` 0, 1.4): zeros at the end, counts that cannot be, and calls of
//! other models inside a reply.

use serde_json::{Value, json};

use super::{Dialect, ReceivedRequest};
use demo_provider::dialect::Event;

/// How the usage of a reply is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miscount {
    /// The end of a stream repeats the counts as 0. Not in Responses, whose last event is the only one with counts.
    Zeros,
    /// The input is a number that no prompt can have.
    Absurd,
    /// A call of another model is listed besides. Only Anthropic lists any.
    Advice,
}

/// Inputs that no prompt can have.
const ABSURD: [u64; 3] = [4_000_000_000, 1 << 63, u64::MAX];

/// Changes the usage in a response's body.
pub(super) fn change(kind: Miscount, dialect: Dialect, body: &mut Value) {
    let (usage, input) = match dialect {
        Dialect::Anthropic | Dialect::Responses => ("usage", "input_tokens"),
        Dialect::Chat => ("usage", "prompt_tokens"),
        Dialect::Gemini => ("usageMetadata", "promptTokenCount"),
    };
    let Some(usage) = body.get_mut(usage).filter(|usage| usage.is_object()) else { return };
    match kind {
        Miscount::Zeros => {}
        Miscount::Absurd => {
            let input_tokens = usage[input].as_u64().unwrap_or(0);
            usage[input] = ABSURD[input_tokens as usize % ABSURD.len()].into();
        }
        Miscount::Advice if dialect == Dialect::Anthropic => {
            let mut message = usage.clone();
            message["type"] = "message".into();
            let advice = json!({"type": "advisor_message", "model": "claude-opus-5",
                "input_tokens": 90_314, "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0, "output_tokens": 5_644});
            usage["iterations"] = json!([advice, message]);
        }
        Miscount::Advice => {}
    }
}

/// Adds zeros to the end of a stream.
pub(super) fn add_zeros(request: &ReceivedRequest, events: &mut Vec<Event>) {
    match request.dialect {
        Dialect::Anthropic => {
            let end = events.iter_mut().find(|event| event.name == Some("message_delta"));
            let Some(end) = end else { return };
            let mut data: Value = serde_json::from_str(&end.data).unwrap_or_default();
            for name in ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"] {
                data["usage"][name] = 0.into();
            }
            end.data = data.to_string();
        }
        Dialect::Chat if request.body["stream_options"]["include_usage"] == true => {
            let zeros = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
            let chunk = json!({"object": "chat.completion.chunk", "choices": [], "usage": zeros});
            let done = events.len().saturating_sub(1);
            events.insert(done, Event { name: None, data: chunk.to_string() });
        }
        Dialect::Gemini => {
            let zeros =
                json!({"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0});
            events.push(Event { name: None, data: json!({"usageMetadata": zeros}).to_string() });
        }
        Dialect::Chat | Dialect::Responses => {}
    }
}
