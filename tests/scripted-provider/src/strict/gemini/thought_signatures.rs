//! Checks thought signatures that come back (`docs/protocols.md` 5.4): on the part they were issued on, the
//! part unchanged, in either alphabet of base64; on the first call of each step of the current turn always.
//!
//! Thought texts are not read and not checked.

use std::collections::HashMap;

use serde_json::Value;

use super::{ContentRun, DIALECT, get, measure_call, refuse, thought_tokens};
use crate::strict::prompt::{Place, hash, text};
use crate::strict::reply_store::{ReplyStore, SignatureKind};
use crate::strict::rules::{ModelRules, SignatureRule};
use crate::strict::verdict::{ApiError, DropReason, Loss, Rule};

/// Values that skip the check.
const SKIP_VALUES: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// The result of checking a request's signatures.
#[derive(Default)]
pub(super) struct SignatureOutcome {
    /// Signed parts whose thoughts the model reads, with their tokens.
    pub(super) visible: HashMap<Place, u64>,
    /// Places of thoughts that the model does not keep.
    pub(super) not_kept: Vec<Place>,
    pub(super) losses: Vec<Loss>,
    /// Number of the newest issued reply in the request.
    pub(super) parent: Option<usize>,
}

/// Checks all turns; `current` is the last one with text of the user.
pub(super) fn check(
    model: &ModelRules,
    store: &ReplyStore,
    turns: &[ContentRun<'_>],
    current: usize,
) -> Result<SignatureOutcome, ApiError> {
    let mut outcome = SignatureOutcome::default();
    for (at, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.role == "model") {
        outcome.check_step(model, store, turn, at > current)?;
    }
    Ok(outcome)
}

impl SignatureOutcome {
    /// Checks one step of the model.
    fn check_step(
        &mut self,
        model: &ModelRules,
        store: &ReplyStore,
        turn: &ContentRun<'_>,
        is_current: bool,
    ) -> Result<(), ApiError> {
        let required = model.signature_rule == SignatureRule::Required;
        let mut reply = None;
        for (place, part) in &turn.parts {
            let given = get(part, "thoughtSignature").as_str();
            let Some(given) = given.filter(|given| !SKIP_VALUES.contains(given)) else { continue };
            let Some((_, signature)) = store.find_signature(DIALECT, given) else {
                return refuse(Rule::SignatureInvalid, "Corrupted thought signature.");
            };
            if signature.kind != SignatureKind::ThoughtSignature
                || signature.content_hash != signed_hash(part)
            {
                return refuse(Rule::SignatureInvalid, "Thought signature is not valid");
            }
            reply = Some(signature.reply);
            let tokens = thought_tokens(signature.tokens);
            if !model.reads(&signature.model) {
                let reason = DropReason::Model;
                self.losses.push(Loss::ReasoningDropped { place: *place, reason });
            } else if tokens > 0 && required && is_current {
                self.visible.insert(*place, tokens);
            } else if tokens > 0 {
                self.not_kept.push(*place);
            }
        }
        let has_signature = reply.is_some();
        let reply = reply.or_else(|| find_reply(store, turn));
        self.parent = reply.or(self.parent);
        let first_call = turn.parts.iter().find(|(_, part)| get(part, "functionCall").is_object());
        if let Some((place, part)) = first_call
            && is_current
            && required
        {
            require_signature(part, *place)?;
        }
        let issued = reply.and_then(|reply| store.reply(reply));
        if is_current
            && !has_signature
            && issued.is_some_and(|issued| !issued.signatures.is_empty())
        {
            let place = first_call.or(turn.parts.last()).map_or(Place::End, |(place, _)| *place);
            self.losses.push(Loss::SignatureAbsent { place });
        }
        Ok(())
    }
}

fn require_signature(part: &Value, place: Place) -> Result<(), ApiError> {
    // The first call of a step has a signature, or a value that skips the check.
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

/// Hash of what a signature signs: the call, or the text.
pub(super) fn signed_hash(part: &Value) -> u128 {
    let call = get(part, "functionCall");
    match call.is_object() {
        true => measure_call(call).hash,
        false => hash(&["text", text(&part["text"])]),
    }
}

/// Number of the issued reply that a step is, by its calls or its text.
fn find_reply(store: &ReplyStore, turn: &ContentRun<'_>) -> Option<usize> {
    // Ids are optional, so a call is known by its name and arguments, too.
    let mut ids = turn.calls().filter_map(|call| call["id"].as_str());
    let mut contents = turn.calls().map(|call| measure_call(call).hash.to_string());
    ids.find_map(|id| store.find_reply(DIALECT, "id", id))
        .or_else(|| contents.find_map(|call| store.find_reply(DIALECT, "call", &call)))
        .or_else(|| {
            let answer_parts = turn.parts.iter().filter(|(_, part)| part["thought"] != true);
            let full_text: String = answer_parts.map(|(_, part)| text(&part["text"])).collect();
            store.find_reply(DIALECT, "text", &full_text)
        })
}
