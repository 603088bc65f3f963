//! Replies as odd servers write them (`docs/protocols.md` 2.3, 2.4, 3.1, 5.4): in several choices, with calls that are
//! repeated or have two ids, with stubs at the end, or with reasoning that is only billed.
//!
//! What is recorded as issued is the reply without its oddity, which is what the model wrote. Also here: several replies
//! to one request.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::prompt::{items, text};
use super::{Dialect, ReceivedRequest};
use demo_provider::dialect::{Event, gemini, openai_chat};

/// How a reply is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OddReply {
    /// Its only reasoning is billed and not sent.
    HiddenReasoning {
        /// The usage says how much of the output it is.
        is_reported: bool,
    },
    /// The calls are in a second choice or candidate, though one reply was asked for (Chat Completions, Gemini).
    SplitChoices,
    /// The index of the choice counts the chunks (Chat Completions).
    CountingIndex,
    /// The last event lists stubs in place of the items that were streamed (Responses).
    FinalStub(Stub),
    /// Calls have other ids at the end of the stream (Chat Completions, Responses).
    OtherId,
    /// Its first call comes again at the end, without its signature (Gemini).
    RepeatedCall {
        /// The calls have ids.
        has_ids: bool,
    },
    /// The model declines: nothing of it is sent or billed.
    Declined,
}

/// What a last event lists in place of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stub {
    /// Nothing.
    Nothing,
    /// An empty message after the reasoning.
    EmptyMessage,
    /// The calls without their arguments.
    EmptyCalls,
}

/// Tokens of reasoning that is only billed.
const HIDDEN_TOKENS: u64 = 2_000;

impl OddReply {
    /// Whether a reply to this request can be odd in this way, given its body.
    pub(super) fn applies(self, request: &ReceivedRequest, body: &Value) -> bool {
        let dialect = request.dialect;
        let has_call = calls(dialect, body) > 0;
        let is_one = requested_replies(request) == 1;
        match self {
            Self::HiddenReasoning { .. } => !has_reasoning(dialect, body),
            Self::SplitChoices => {
                let has_more = match dialect {
                    Dialect::Chat => true,
                    Dialect::Gemini => first_call(body).is_some_and(|first| first > 0),
                    Dialect::Anthropic | Dialect::Responses => false,
                };
                has_call && has_more && is_one
            }
            Self::CountingIndex => dialect == Dialect::Chat && request.stream && is_one,
            Self::FinalStub(_) => dialect == Dialect::Responses && request.stream,
            Self::OtherId => {
                let has_two = matches!(dialect, Dialect::Chat | Dialect::Responses);
                has_two && request.stream && has_call
            }
            Self::RepeatedCall { .. } => dialect == Dialect::Gemini && has_call && is_one,
            Self::Declined => is_one,
        }
    }

    /// Changes a body as far as the oddity is there.
    pub(super) fn change_body(self, dialect: Dialect, body: &mut Value) {
        match (self, dialect) {
            (Self::HiddenReasoning { is_reported }, _) => {
                bill_hidden_reasoning(dialect, body, is_reported);
            }
            (Self::SplitChoices, Dialect::Chat) => {
                let choice = &mut body["choices"][0];
                let calls = choice["message"]["tool_calls"].take();
                if let Some(message) = choice["message"].as_object_mut() {
                    message.remove("tool_calls");
                }
                let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
                let second = json!({"index": 1, "message": message, "finish_reason": choice["finish_reason"]});
                push(&mut body["choices"], second);
            }
            (Self::SplitChoices, Dialect::Gemini) => {
                let call = first_call(body).unwrap_or_default();
                let candidate = &mut body["candidates"][0];
                let parts =
                    candidate["content"]["parts"].as_array_mut().map(|all| all.split_off(call));
                let second = json!({"content": {"parts": parts, "role": "model"}, "index": 1,
                    "finishReason": candidate["finishReason"]});
                push(&mut body["candidates"], second);
            }
            (Self::RepeatedCall { has_ids }, _) => {
                let call = first_call(body).unwrap_or_default();
                let parts = &mut body["candidates"][0]["content"]["parts"];
                if !has_ids {
                    for part in parts.as_array_mut().into_iter().flatten() {
                        remove(&mut part["functionCall"], "id");
                    }
                }
                let mut again = parts[call].clone();
                remove(&mut again, "thoughtSignature");
                push(parts, again);
            }
            (Self::Declined, _) => decline(dialect, body),
            _ => {}
        }
    }

    /// Changes the events of a stream as far as the oddity is there.
    pub(super) fn change_events(self, dialect: Dialect, events: &mut [Event]) {
        match (self, dialect) {
            (Self::CountingIndex, _) => {
                let chunks = events.iter_mut().enumerate();
                chunks.for_each(|(at, event)| {
                    change(event, |data| {
                        if data["choices"][0].is_object() {
                            data["choices"][0]["index"] = at.into();
                        }
                    });
                });
            }
            (Self::OtherId, Dialect::Chat) => {
                for event in events {
                    change(event, |data| {
                        let call = data.pointer_mut("/choices/0/delta/tool_calls/0");
                        if let Some(call) = call.filter(|call| call["id"].is_null()) {
                            call["id"] = format!("call_other_{}", call["index"]).into();
                        }
                    });
                }
            }
            (Self::OtherId, _) => change_last(events, |output| {
                for item in output.iter_mut().filter(|item| item["type"] == "function_call") {
                    for name in ["id", "call_id"] {
                        item[name] = format!("{}_other", text(&item[name])).into();
                    }
                }
            }),
            (Self::FinalStub(stub), _) => change_last(events, |output| match stub {
                Stub::Nothing => output.clear(),
                Stub::EmptyMessage => {
                    output.retain(|item| item["type"] == "reasoning");
                    output.push(json!({"id": "msg_x", "type": "message", "role": "assistant",
                        "content": [{"type": "output_text", "text": "", "annotations": []}]}));
                }
                Stub::EmptyCalls => {
                    for item in output.iter_mut().filter(|item| item["type"] == "function_call") {
                        item["arguments"] = "".into();
                    }
                }
            }),
            _ => {}
        }
    }
}

/// How many replies a request asks for.
pub(super) fn requested_replies(request: &ReceivedRequest) -> usize {
    let count = match request.dialect {
        Dialect::Chat => &request.body["n"],
        Dialect::Gemini => &request.body["generationConfig"]["candidateCount"],
        Dialect::Anthropic | Dialect::Responses => return 1,
    };
    count.as_u64().map_or(1, |count| count as usize)
}

/// Adds another reply to the same request, as its next choice; the usage is the sum.
pub(super) fn add_choice(dialect: Dialect, body: &mut Value, mut other: Value) {
    let (choices, usage, sums): (_, _, &[&str]) = match dialect {
        Dialect::Chat => ("choices", "usage", &["completion_tokens", "reasoning_tokens"]),
        _ => ("candidates", "usageMetadata", &["candidatesTokenCount", "thoughtsTokenCount"]),
    };
    let mut choice = other[choices][0].take();
    choice["index"] = items(&body[choices]).len().into();
    push(&mut body[choices], choice);
    let mut output = 0;
    for name in sums {
        let (more, sum) = match *name {
            "reasoning_tokens" => (
                other[usage]["completion_tokens_details"][name].as_u64(),
                &mut body[usage]["completion_tokens_details"][name],
            ),
            _ => (other[usage][name].as_u64(), &mut body[usage][name]),
        };
        let Some(more) = more else { continue };
        *sum = (sum.as_u64().unwrap_or(0) + more).into();
        output += if *name == "reasoning_tokens" { 0 } else { more };
    }
    let total = if dialect == Dialect::Chat { "total_tokens" } else { "totalTokenCount" };
    body[usage][total] = (body[usage][total].as_u64().unwrap_or(0) + output).into();
}

/// The events of a body with several choices: in turn if they are replies of their own, else one after the other.
pub(super) fn events_of_choices(request: &ReceivedRequest, body: &Value) -> Vec<Event> {
    let in_turn = requested_replies(request) > 1;
    let name = if request.dialect == Dialect::Chat { "choices" } else { "candidates" };
    let with_usage = request.body["stream_options"]["include_usage"] == true;
    let (mut waiting, mut end) = (VecDeque::new(), Vec::new());
    for choice in items(&body[name]) {
        let mut single = body.clone();
        single[name] = json!([choice]);
        let mut events = match request.dialect {
            Dialect::Chat => openai_chat::stream_events(&single, with_usage),
            _ => gemini::stream_events(&single),
        };
        if request.dialect == Dialect::Chat {
            // The usage and `[DONE]` are for all.
            end = events.split_off(events.len() - 1 - usize::from(with_usage));
        }
        for event in &mut events {
            change(event, |data| data[name][0]["index"] = choice["index"].clone());
        }
        waiting.push_back(VecDeque::from(events));
    }
    let mut merged = Vec::new();
    while let Some(mut events) = waiting.pop_front() {
        merged.extend(events.pop_front());
        match (events.is_empty(), in_turn) {
            (true, _) => {}
            (false, true) => waiting.push_back(events),
            (false, false) => waiting.push_front(events),
        }
    }
    merged.extend(end);
    merged
}

fn decline(dialect: Dialect, body: &mut Value) {
    let (usage, input) = match dialect {
        Dialect::Anthropic => {
            body["content"] = json!([]);
            body["stop_reason"] = "refusal".into();
            body["stop_details"] = json!({"type": "refusal"});
            ("usage", "input_tokens")
        }
        Dialect::Chat => {
            body["choices"][0]["message"] = json!({"role": "assistant", "content": null});
            body["choices"][0]["finish_reason"] = "content_filter".into();
            ("usage", "prompt_tokens")
        }
        Dialect::Responses => {
            body["output"] = json!([]);
            body["status"] = "incomplete".into();
            body["incomplete_details"] = json!({"reason": "content_filter"});
            ("usage", "input_tokens")
        }
        Dialect::Gemini => {
            remove(body, "candidates");
            body["promptFeedback"] = json!({"blockReason": "PROHIBITED_CONTENT"});
            ("usageMetadata", "promptTokenCount")
        }
    };
    let usage = &mut body[usage];
    let input = usage[input].clone();
    for name in ["output_tokens", "completion_tokens", "candidatesTokenCount"] {
        if usage[name].is_u64() {
            usage[name] = 0.into();
        }
    }
    for name in ["total_tokens", "totalTokenCount"] {
        if usage[name].is_u64() {
            usage[name] = input.clone();
        }
    }
    for name in ["output_tokens_details", "completion_tokens_details", "thoughtsTokenCount"] {
        remove(usage, name);
    }
}

fn bill_hidden_reasoning(dialect: Dialect, body: &mut Value, is_reported: bool) {
    let (usage, output, details, reasoning) = match dialect {
        Dialect::Anthropic => {
            ("usage", "output_tokens", "output_tokens_details", "thinking_tokens")
        }
        Dialect::Responses => {
            ("usage", "output_tokens", "output_tokens_details", "reasoning_tokens")
        }
        Dialect::Chat => {
            ("usage", "completion_tokens", "completion_tokens_details", "reasoning_tokens")
        }
        Dialect::Gemini => {
            let output = if is_reported { "thoughtsTokenCount" } else { "candidatesTokenCount" };
            ("usageMetadata", output, "", "")
        }
    };
    let usage = &mut body[usage];
    let add = |count: &mut Value| *count = (count.as_u64().unwrap_or(0) + HIDDEN_TOKENS).into();
    add(&mut usage[output]);
    match dialect {
        Dialect::Gemini => add(&mut usage["totalTokenCount"]),
        Dialect::Chat | Dialect::Responses => add(&mut usage["total_tokens"]),
        Dialect::Anthropic => {}
    }
    match (is_reported, details) {
        (_, "") => {}
        (true, details) => add(&mut usage[details][reasoning]),
        (false, details) => remove(usage, details),
    }
}

/// Whether a reply has reasoning that may come back.
fn has_reasoning(dialect: Dialect, body: &Value) -> bool {
    // A provider that requires some of it always shows it.
    match dialect {
        Dialect::Anthropic => {
            count(&body["content"], |block| text(&block["type"]).ends_with("thinking")) > 0
        }
        Dialect::Chat => {
            let message = &body["choices"][0]["message"];
            ["reasoning_content", "reasoning_details"].iter().any(|name| !message[*name].is_null())
        }
        Dialect::Responses => count(&body["output"], |item| item["type"] == "reasoning") > 0,
        Dialect::Gemini => {
            count(&body["candidates"][0]["content"]["parts"], |part| {
                part["thoughtSignature"].is_string()
            }) > 0
        }
    }
}

/// How many tools a reply calls.
fn calls(dialect: Dialect, body: &Value) -> usize {
    match dialect {
        Dialect::Anthropic => count(&body["content"], |block| block["type"] == "tool_use"),
        Dialect::Chat => items(&body["choices"][0]["message"]["tool_calls"]).len(),
        Dialect::Responses => count(&body["output"], |item| item["type"] == "function_call"),
        Dialect::Gemini => count(&body["candidates"][0]["content"]["parts"], is_call),
    }
}

fn count(list: &Value, is_one: fn(&Value) -> bool) -> usize {
    items(list).filter(|item| is_one(item)).count()
}

fn is_call(part: &Value) -> bool {
    part["functionCall"].is_object()
}

/// The place of the first call (Gemini).
fn first_call(body: &Value) -> Option<usize> {
    items(&body["candidates"][0]["content"]["parts"]).position(is_call)
}

fn change(event: &mut Event, change: impl FnOnce(&mut Value)) {
    let Ok(mut data) = serde_json::from_str(&event.data) else { return };
    change(&mut data);
    event.data = data.to_string();
}

/// Changes the output of the response in the last event (Responses).
fn change_last(events: &mut [Event], change_output: impl FnOnce(&mut Vec<Value>)) {
    let Some(last) = events.last_mut() else { return };
    change(last, |data| {
        if let Some(output) = data["response"]["output"].as_array_mut() {
            change_output(output);
        }
    });
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().into_iter().for_each(|list| list.push(item.clone()));
}

fn remove(object: &mut Value, name: &str) {
    object.as_object_mut().into_iter().for_each(|object| _ = object.remove(name));
}
