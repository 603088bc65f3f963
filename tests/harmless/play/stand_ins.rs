//! No stand-in goes out for a signature or for reasoning that is known.

use plimsoll::context::policy::{ReinjectPolicy, StripPolicy};
use scripted_provider::strict::Dialect;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::Play;
use super::checks::CheckedExchange;
use crate::client;

/// What skips the check of a signature, `skip_thought_signature_validator`, in the alphabet of [`client::history`].
const SKIP: &str = "skip/thought/signature/validator";
/// What stands for reasoning in Chat Completions.
const BLANK: [&str; 3] = ["", " ", "."];
/// Members that hold reasoning in Chat Completions.
const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// A call of the model in a message.
struct SeenCall {
    /// Its name and arguments.
    content: Value,
    /// What it is signed with; or the reasoning beside it.
    signature: Option<String>,
}

impl SeenCall {
    fn is_real(&self) -> bool {
        let is_real = |signature: &String| signature != SKIP && !BLANK.contains(&&**signature);
        self.signature.as_ref().is_some_and(is_real)
    }
}

fn calls(dialect: Dialect, message: &Value) -> Vec<SeenCall> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match dialect {
        Dialect::Gemini => {
            let parts = message["parts"].as_array().into_iter().flatten();
            let calls = parts.filter(|part| part["functionCall"].is_object());
            let call = |part: &Value| SeenCall {
                content: json!([part["functionCall"]["name"], part["functionCall"]["args"]]),
                signature: text(&part["thoughtSignature"]),
            };
            calls.map(call).collect()
        }
        Dialect::Chat => {
            let signature = REASONING.iter().find_map(|name| text(&message[*name]));
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let call = |call: &Value| {
                let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                let content = json!([call["function"]["name"], arguments]);
                SeenCall { content, signature: signature.clone() }
            };
            calls.map(call).collect()
        }
        // These take no stand-in.
        Dialect::Anthropic | Dialect::Responses => Vec::new(),
    }
}

/// Hash of a call after a history, whose reasoning is left out.
fn place_of(history: &[Value], call: &SeenCall) -> u64 {
    let bare: Value = history.iter().map(without_reasoning).collect();
    xxh3_64(json!([bare, call.content]).to_string().as_bytes())
}

fn without_reasoning(value: &Value) -> Value {
    let is_thought = |value: &Value| value["thought"] == true || value["text"] == "";
    match value {
        Value::Array(items) => {
            items.iter().filter(|item| !is_thought(item)).map(without_reasoning).collect()
        }
        Value::Object(members) => {
            let is_reasoning =
                |name: &str| name == "thoughtSignature" || name.starts_with("reasoning");
            let others = members.iter().filter(|(name, _)| !is_reasoning(name));
            others.map(|(name, value)| (name.clone(), without_reasoning(value))).collect()
        }
        other => other.clone(),
    }
}

impl Play {
    /// Remembers which calls of a whole reply came with their reasoning.
    pub(super) fn remember_calls(&mut self, body: &Value, reply: &Value) {
        let history = client::history(self.dialect, body);
        let is_recorded = self.policy.reasoning.reinject == ReinjectPolicy::Auto;
        let seen = calls(self.dialect, reply);
        // The newest reply is meant, whether it reasoned or not.
        for call in &seen {
            self.known_calls.remove(&place_of(&history, call));
        }
        for call in seen.iter().filter(|call| is_recorded && call.is_real()) {
            self.known_calls.insert(place_of(&history, call), self.head.model);
        }
    }

    /// No stand-in goes out for what is known, if policy puts it back.
    pub(super) fn check_stand_ins(&mut self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let reasoning = &self.policy.reasoning;
        let may = checked.mode.is_none()
            && !self.is_suspended
            && reasoning.reinject == ReinjectPolicy::Auto
            && reasoning.strip() == StripPolicy::None;
        let own = client::history(self.dialect, checked.body);
        let sent = client::history(self.dialect, &checked.log[0].request.body);
        // A summary has other messages.
        if !may || own.len() != sent.len() {
            return Ok(());
        }
        for (at, message) in own.iter().enumerate() {
            let dropped = calls(self.dialect, message).into_iter().filter(|call| !call.is_real());
            let places = dropped.map(|call| place_of(&own[..at], &call));
            let model = Some(&self.head.model);
            self.counts.dropped_signatures +=
                places.filter(|place| self.known_calls.get(place) == model).count() as u64;
        }
        for (at, message) in sent.iter().enumerate() {
            for call in calls(self.dialect, message) {
                if call.signature.is_none() || call.is_real() {
                    continue;
                }
                self.counts.stand_ins += 1;
                let model = self.known_calls.get(&place_of(&own[..at], &call));
                if model == Some(&self.head.model) {
                    return Err(format!(
                        "a stand-in for what is known in message {at}: {:?}\n{}\n{}",
                        checked.exchange.done.steps,
                        checked.body,
                        String::from_utf8_lossy(&checked.log[0].request.bytes)
                    ));
                }
            }
        }
        Ok(())
    }
}
