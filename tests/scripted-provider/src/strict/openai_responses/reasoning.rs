//! Checks encrypted reasoning that comes back (`docs/protocols.md` 3.2, 3.5): as it was issued, of this
//! account, and read only by its own model, after its own prefix, in the turns the model keeps.
//!
//! What is not read is reported as `input_transformations` and is no error; what did not come back
//! is a loss.

use std::collections::HashMap;

use super::{DIALECT, InputItem, compaction, measure_item, not_found};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{Place, items, link, text};
use crate::strict::reply_store::{IssuedSignature, Prefix, ReplyStore, SignatureKind};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{ApiError, DropReason, Loss, Rule, Transformation};

/// The signature numbers of all reasoning items, by place; items without one are left out.
pub(super) fn signatures(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    list: &[InputItem<'_>],
) -> Result<HashMap<usize, usize>, ApiError> {
    let mut items_of_replies = HashMap::new();
    for (at, item) in list.iter().enumerate().filter(|(_, item)| item.kind == "reasoning") {
        if !model.reasons {
            let message = "Reasoning input items can only be provided to a reasoning or computer use model. Remove reasoning items from your input and try again.";
            let param = format!("input[{at}]");
            let rule = Rule::ReasoningRefused;
            return Err(ApiError::openai(rule, 400, None, Some(&param), message.into()));
        }
        match item.field("encrypted_content").as_str() {
            Some(encrypted) => {
                let (number, signature) = issued_signature(store, item, encrypted)?;
                if Some(signature.account) != request.account {
                    return refuse_unverified(
                        item,
                        "The encrypted content's organization_id did not match the target organization.",
                    );
                }
                items_of_replies.insert(at, number);
            }
            None => {
                let Some(id) = item.id() else { continue };
                let stored = match request.body["store"] == false {
                    true => None,
                    false => store.stored_item(id, request.account),
                };
                let Some(stored) = stored else { return not_found(request, id) };
                if let Some((number, _)) =
                    store.find_signature(DIALECT, text(&stored["encrypted_content"]))
                {
                    items_of_replies.insert(at, number);
                }
            }
        }
    }
    Ok(items_of_replies)
}

fn issued_signature<'b>(
    store: &'b ReplyStore,
    item: &InputItem<'_>,
    encrypted: &str,
) -> Result<(usize, &'b IssuedSignature), ApiError> {
    match store.find_signature(DIALECT, encrypted) {
        Some((number, signature))
            if signature.kind == SignatureKind::EncryptedReasoning
                && item.id().is_none_or(|id| id == signature.item_id) =>
        {
            Ok((number, signature))
        }
        _ => refuse_unverified(item, "Encrypted content could not be decrypted or parsed."),
    }
}

fn refuse_unverified<T>(item: &InputItem<'_>, reason: &str) -> Result<T, ApiError> {
    let what = match item.id() {
        Some(id) => format!("for item {id}"),
        None => abbreviate(text(item.field("encrypted_content"))),
    };
    let message = format!("The encrypted content {what} could not be verified. Reason: {reason}");
    let code = Some("invalid_encrypted_content");
    Err(ApiError::openai(Rule::SignatureInvalid, 400, code, None, message))
}

/// How content without an id is named: `gAAA...DQ==`.
fn abbreviate(content: &str) -> String {
    let end = content.len().saturating_sub(4);
    format!("{}...{}", content.get(..4).unwrap_or_default(), content.get(end..).unwrap_or_default())
}

/// The result of checking a request's reasoning.
#[derive(Default)]
pub(super) struct ReasoningOutcome {
    /// Reasoning items that the model reads, by place, with their tokens.
    pub(super) visible: HashMap<usize, u64>,
    pub(super) transformations: Vec<Transformation>,
    pub(super) losses: Vec<Loss>,
    /// Places of reasoning that the model does not keep.
    pub(super) not_kept: Vec<Place>,
    /// The chain of all items, reasoning left out.
    pub(super) chain: u128,
    /// Number of the newest issued reply in the list.
    pub(super) parent: Option<usize>,
}

/// An issued reply that is found in the list.
struct FoundReply {
    reply: usize,
    place: usize,
    /// The chain before each of its items that are not reasoning.
    chains: Vec<u128>,
    present: Vec<usize>,
}

/// Checks all reasoning. `start` is the prefix of the items.
pub(super) fn check(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    list: &[InputItem<'_>],
    signatures: &HashMap<usize, usize>,
    start: Prefix,
) -> ReasoningOutcome {
    let all_turns = match text(&request.body["reasoning"]["context"]) {
        "all_turns" => true,
        "current_turn" => false,
        _ => model.keeps_reasoning,
    };
    let last_user = list.iter().rposition(InputItem::is_user_turn);
    let current = last_user.map_or(0, |at| at + 1);
    let is_kept = |at: usize| all_turns || at >= current;
    let mut outcome = ReasoningOutcome::default();
    let mut found: Vec<FoundReply> = Vec::new();
    for (at, item) in list.iter().enumerate() {
        let found_signature =
            signatures.get(&at).and_then(|number| Some((*number, store.signature(*number)?)));
        let reply = found_signature
            .map(|(_, signature)| signature.reply)
            .or_else(|| find_reply(store, list, at));
        if let Some(reply) = reply {
            // A reply that says what an earlier one said has no item beside that one's.
            let goes_on = at > 0 && list[at - 1].is_output();
            if !goes_on || found.last().is_none_or(|last| last.reply != reply) {
                found.push(FoundReply {
                    reply,
                    place: at,
                    chains: Vec::new(),
                    present: Vec::new(),
                });
            }
            outcome.parent = Some(reply);
        }
        let newest_reply = found.last_mut().filter(|last| reply == Some(last.reply));
        if let Some((number, signature)) = found_signature {
            if let Some(newest_reply) = newest_reply {
                newest_reply.present.push(number);
            }
            let prefix = Prefix { messages: outcome.chain, ..start };
            let reason = unreadable_reason(model, signature, prefix)
                .or((!is_kept(at)).then_some(DropReason::Turn));
            outcome.add(at, signature, reason);
        } else if let Some(chain) = compaction::chain(store, item) {
            outcome.chain = chain;
        } else if item.kind != "reasoning" {
            if let Some(newest_reply) = newest_reply {
                newest_reply.chains.push(outcome.chain);
            }
            outcome.chain = measure_item(item)
                .iter()
                .fold(outcome.chain, |chain, content| link(chain, content.hash));
        }
        check_phase(store, list, at, &mut outcome.losses);
    }
    for reply in found.iter().filter(|reply| is_kept(reply.place)) {
        outcome.losses.extend(absent_reasoning(request, model, store, reply, start));
    }
    outcome
}

impl ReasoningOutcome {
    fn add(&mut self, at: usize, signature: &IssuedSignature, reason: Option<DropReason>) {
        let place = Place::Message { message: at, block: 0 };
        let Some(reason) = reason else {
            self.visible.insert(at, signature.tokens);
            return;
        };
        let id = Some(signature.item_id.clone());
        self.transformations.push(Transformation { place, id, reason, allowed: false });
        match reason {
            DropReason::Turn => self.not_kept.push(place),
            _ => self.losses.push(Loss::ReasoningDropped { place, reason }),
        }
    }
}

fn unreadable_reason(
    model: &ModelRules,
    signature: &IssuedSignature,
    prefix: Prefix,
) -> Option<DropReason> {
    // `docs/protocols.md` 3.5: of another model, or after a prefix that changed.
    match () {
        () if !model.reads(&signature.model) => Some(DropReason::Model),
        () if model.binding && signature.prefix != prefix => Some(DropReason::Prefix),
        () => None,
    }
}

/// Number of the issued reply that an item is part of, by its ids or its text.
fn find_reply(store: &ReplyStore, list: &[InputItem<'_>], at: usize) -> Option<usize> {
    let item = &list[at];
    if let Some(reply) = find_reply_by_id(store, item) {
        return Some(reply);
    }
    if item.kind != "message" || item.field("role") != "assistant" {
        return None;
    }
    let content = item.field("content");
    let full_text: String = match content.as_str() {
        Some(content) => content.to_owned(),
        None => items(content).map(|part| text(&part["text"])).collect(),
    };
    let newest = store.find_reply(DIALECT, "text", &full_text)?;
    // Several replies may say the same: it is part of the one whose items stand beside it.
    let items_before = list[..at].iter().rev().take_while(|item| item.is_output());
    let items_after = list[at + 1..].iter().take_while(|item| item.is_output());
    let mut neighbours =
        items_before.chain(items_after).filter_map(|item| find_reply_by_id(store, item));
    let same_text = neighbours.find(|reply| {
        let issued = store.reply(*reply);
        issued.is_some_and(|reply| reply.items.iter().any(|item| item.text == full_text))
    });
    Some(same_text.unwrap_or(newest))
}

/// Number of the issued reply that an item is part of, by its ids or its reasoning.
fn find_reply_by_id(store: &ReplyStore, item: &InputItem<'_>) -> Option<usize> {
    let by = |kind: &str, name: &str| store.find_reply(DIALECT, kind, item.field(name).as_str()?);
    match item.kind.as_str() {
        "function_call" | "custom_tool_call" => by("id", "id").or_else(|| by("call", "call_id")),
        "message" if item.field("role") == "assistant" => by("id", "id"),
        "reasoning" => {
            let encrypted = item.field("encrypted_content").as_str()?;
            Some(store.find_signature(DIALECT, encrypted)?.1.reply)
        }
        _ => None,
    }
}

fn check_phase(store: &ReplyStore, list: &[InputItem<'_>], at: usize, losses: &mut Vec<Loss>) {
    // An assistant message that lost its phase (`docs/protocols.md` 3.5).
    let item = &list[at];
    if item.kind != "message" || item.field("role") != "assistant" {
        return;
    }
    let issued = find_reply(store, list, at).and_then(|reply| store.reply(reply));
    let mut phases = issued
        .into_iter()
        .flat_map(|issued| &issued.items)
        .filter_map(|item| item.phase.as_deref());
    let Some(phase) = phases.next() else { return };
    if item.field("phase") != phase {
        losses.push(Loss::PhaseDropped { place: Place::Message { message: at, block: 0 } });
    }
}

fn absent_reasoning(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    found: &FoundReply,
    start: Prefix,
) -> Option<Loss> {
    let issued = store.reply(found.reply)?;
    let missing = issued.signatures.iter().find(|number| !found.present.contains(number))?;
    let signature = store.signature(*missing)?;
    let prefix =
        found.chains.get(signature.blocks_before).map(|chain| Prefix { messages: *chain, ..start });
    let is_readable =
        prefix.is_some_and(|prefix| unreadable_reason(model, signature, prefix).is_none());
    Some(Loss::ReasoningAbsent {
        place: Place::Message { message: found.place, block: 0 },
        issued: issued.signatures.len(),
        present: found.present.len(),
        readable: is_readable && Some(signature.account) == request.account,
    })
}
