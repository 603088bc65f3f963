//! Detects an agent that repeats itself: the same tool, arguments and result, again and again.
//!
//! Reads only the history in the request. Reports, but never changes a request.

use foldhash::HashMap;

use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::{Audience, Conversation, Part, PartKey, PartKind, Role};
use crate::wire::json::{Document, Span};

/// How many of the model's last turns are checked.
const TURNS: usize = 10;
/// In how many of them the same call must have the same result.
const TIMES: u32 = 4;

/// In how many of the model's last ten turns the newest call was made with the same result.
///
/// `None` if fewer than four, if the provider holds the history, or if the request is not a turn.
pub fn repeated_calls(conversation: &Conversation, body: &[u8]) -> Option<u32> {
    if !conversation.is_whole_turn() {
        return None;
    }
    let turns = turns(conversation);
    let turns: Vec<Vec<AnsweredCall<'_>>> = turns.iter().map(|turn| turn.answered(body)).collect();
    let (newest, earlier) = turns.split_first()?;
    let is_asked_again =
        |call: &AnsweredCall<'_>| newest.iter().any(|newest| newest.requested == call.requested);
    // Results are long, and few calls are made again.
    let alike = earlier.iter().filter(|calls| calls.iter().any(is_asked_again)).count();
    if alike + 1 < TIMES as usize {
        return None;
    }
    let newest = newest.iter().filter_map(|call| call.identity(body));
    let mut times: HashMap<PartKey, u32> = newest.map(|call| (call, 1)).collect();
    for calls in earlier {
        let calls = calls.iter().filter(|call| is_asked_again(call));
        let mut calls: Vec<PartKey> = calls.filter_map(|call| call.identity(body)).collect();
        calls.sort_unstable();
        // Parallel calls that are the same count once: in how many turns it was made is counted.
        calls.dedup();
        for call in calls {
            times.entry(call).and_modify(|times| *times += 1);
        }
    }
    times.into_values().max().filter(|times| *times >= TIMES)
}

/// A turn of the model: its calls and their results.
#[derive(Default)]
struct ModelTurn<'c> {
    calls: Vec<&'c Part>,
    /// Each with the keys of the images and documents in it.
    results: Vec<(&'c Part, Vec<PartKey>)>,
}

fn turns(conversation: &Conversation) -> Vec<ModelTurn<'_>> {
    let mut turns = Vec::new();
    let mut turn = ModelTurn::default();
    let mut is_models = false;
    let mut media = Vec::new();
    // What a program calls, however often, is one step of the model.
    for part in conversation.parts().rev().filter(|part| part.audience == Audience::Model) {
        if is_models && part.role != Role::Assistant {
            turns.push(std::mem::take(&mut turn));
            if turns.len() == TURNS {
                return turns;
            }
        }
        is_models = part.role == Role::Assistant;
        match part.kind {
            PartKind::Image | PartKind::Document => media.extend(part.key),
            PartKind::ToolResult => turn.results.push((part, std::mem::take(&mut media))),
            PartKind::ToolCall if is_models => turn.calls.push(part),
            _ => media.clear(),
        }
    }
    if is_models {
        turns.push(turn);
    }
    turns
}

/// A call with its result.
struct AnsweredCall<'c> {
    /// The hash of the tool's name and the arguments.
    requested: PartKey,
    result: &'c Part,
    /// The keys of the images and documents in the result.
    media: &'c [PartKey],
}

impl ModelTurn<'_> {
    fn answered(&self, body: &[u8]) -> Vec<AnsweredCall<'_>> {
        let mut keyer = Keyer::default();
        let mut results: Vec<_> = self.results.iter().rev().collect();
        let mut answered = Vec::new();
        for call in self.calls.iter().rev() {
            // A result answers one call only, however many are the same.
            let place = results.iter().position(|(result, _)| answers(result, call));
            let Some((result, media)) = place.map(|place| results.remove(place)) else { continue };
            if let Some(requested) = requested(&mut keyer, call, body) {
                answered.push(AnsweredCall { requested, result, media });
            }
        }
        answered
    }
}

fn answers(result: &Part, call: &Part) -> bool {
    // Results without an id answer the calls in order.
    match (&call.id, &result.id) {
        (Some(call), Some(result)) => call == result,
        _ => result.name.is_none() || result.name == call.name,
    }
}

fn requested(keyer: &mut Keyer, call: &Part, body: &[u8]) -> Option<PartKey> {
    // Without its id, which differs each time.
    let name = call.name.as_deref().unwrap_or_default();
    let Some(arguments) = call.texts.first() else {
        return keyer.tool_call(None, name, ToolArguments::Text(""));
    };
    let (raw, document) = value(*arguments, body)?;
    keyer.tool_call(None, name, ToolArguments::Value(document.root(raw)?))
}

impl AnsweredCall<'_> {
    /// The hash of the call and its result.
    fn identity(&self, body: &[u8]) -> Option<PartKey> {
        let texts: Option<Vec<_>> =
            self.result.texts.iter().map(|text| value(*text, body)).collect();
        let texts = texts?;
        let pieces = texts.iter().filter_map(|(raw, document)| document.root(raw));
        let answered = Keyer::default().tool_result("", pieces)?;
        let mut bytes = Vec::with_capacity(16 * (2 + self.media.len()));
        for key in [self.requested, answered].iter().chain(self.media) {
            bytes.extend_from_slice(&key.0.to_le_bytes());
        }
        Some(PartKey::of_bytes(&bytes))
    }
}

fn value(span: Span, body: &[u8]) -> Option<(&[u8], Document)> {
    let raw = span.slice(body);
    Some((raw, Document::read(raw).ok()?))
}

#[cfg(test)]
mod tests;
