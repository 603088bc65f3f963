//! Thought signatures that come back (`docs/protocols.md` 5.4): on the part they were issued on, the part
//! unchanged, in either alphabet of base64; on the first call of each step of the current turn always.
//!
//! Thought texts are not read and not checked.

use std::collections::HashMap;

use serde_json::Value;

use super::{DIALECT, Turn, get, refuse, thought_tokens, weigh_call};
use crate::strict::prompt::{Place, hash, text};
use crate::strict::reply_store::{Book, Kind};
use crate::strict::rules::{Model, Signatures};
use crate::strict::verdict::{Loss, Refusal, Rule, Why};

/// What skips the check.
const SKIPS: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// What came of a request's thoughts.
#[derive(Default)]
pub(super) struct Thoughts {
    /// Signed parts whose thoughts the model reads, with what they weigh.
    pub(super) visible: HashMap<Place, u64>,
    /// Where thoughts stand that the model does not keep.
    pub(super) not_kept: Vec<Place>,
    pub(super) losses: Vec<Loss>,
    /// The newest reply of ours in the request.
    pub(super) parent: Option<usize>,
}

/// Checks all turns; `current` is the one in which a person spoke last.
pub(super) fn check(
    model: &Model,
    book: &Book,
    turns: &[Turn<'_>],
    current: usize,
) -> Result<Thoughts, Refusal> {
    let mut thoughts = Thoughts::default();
    for (at, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.role == "model") {
        thoughts.step(model, book, turn, at > current)?;
    }
    Ok(thoughts)
}

impl Thoughts {
    /// One step of the model's.
    fn step(
        &mut self,
        model: &Model,
        book: &Book,
        turn: &Turn<'_>,
        current: bool,
    ) -> Result<(), Refusal> {
        let required = model.signatures == Signatures::Required;
        let mut reply = None;
        for (place, part) in &turn.parts {
            let given = get(part, "thoughtSignature").as_str();
            let Some(given) = given.filter(|given| !SKIPS.contains(given)) else { continue };
            let Some((_, seal)) = book.seal(DIALECT, given) else {
                return refuse(Rule::SignatureInvalid, "Corrupted thought signature.");
            };
            if seal.kind != Kind::Thought || seal.text != signed_hash(part) {
                return refuse(Rule::SignatureInvalid, "Thought signature is not valid");
            }
            reply = Some(seal.reply);
            let weight = thought_tokens(seal.tokens);
            if !model.reads(&seal.model) {
                let why = Why::Model;
                self.losses.push(Loss::ReasoningDropped { place: *place, why });
            } else if weight > 0 && required && current {
                self.visible.insert(*place, weight);
            } else if weight > 0 {
                self.not_kept.push(*place);
            }
        }
        let signed = reply.is_some();
        let reply = reply.or_else(|| trace(book, turn));
        self.parent = reply.or(self.parent);
        let first = turn.parts.iter().find(|(_, part)| get(part, "functionCall").is_object());
        if let Some((place, part)) = first.filter(|_| current && required) {
            demanded(part, *place)?;
        }
        let issued = reply.and_then(|reply| book.reply(reply));
        if current && !signed && issued.is_some_and(|issued| !issued.seals.is_empty()) {
            let place = first.or(turn.parts.last()).map_or(Place::End, |(place, _)| *place);
            self.losses.push(Loss::SignatureAbsent { place });
        }
        Ok(())
    }
}

/// The first call of a step has a signature, or the word that skips the check.
fn demanded(part: &Value, place: Place) -> Result<(), Refusal> {
    if get(part, "thoughtSignature").as_str().is_some_and(|given| !given.is_empty()) {
        return Ok(());
    }
    let name = text(&get(part, "functionCall")["name"]);
    let position = if let Place::Message { message, .. } = place { message + 1 } else { 0 };
    refuse(
        Rule::SignatureMissing,
        format!(
            "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:{name}` , position {position}."
        ),
    )
}

/// What a signature signs: the call, or the text.
pub(super) fn signed_hash(part: &Value) -> u128 {
    let call = get(part, "functionCall");
    match call.is_object() {
        true => weigh_call(call).hash,
        false => hash(&["text", text(&part["text"])]),
    }
}

/// The reply of ours that a step is, by its calls or its words. Ids are optional, so a call is
/// known by its name and arguments too.
fn trace(book: &Book, turn: &Turn<'_>) -> Option<usize> {
    let mut by_id = turn.calls().filter_map(|call| call["id"].as_str());
    let mut by_words = turn.calls().map(|call| weigh_call(call).hash.to_string());
    by_id
        .find_map(|id| book.trace(DIALECT, "id", id))
        .or_else(|| by_words.find_map(|words| book.trace(DIALECT, "call", &words)))
        .or_else(|| {
            let said = turn.parts.iter().filter(|(_, part)| part["thought"] != true);
            let words: String = said.map(|(_, part)| text(&part["text"])).collect();
            book.trace(DIALECT, "text", &words)
        })
}
