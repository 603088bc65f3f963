//! Encrypted reasoning that comes back (`docs/protocols.md` 3.2, 3.5): genuine, of this account, and
//! read only by its own model, after its own prefix, in the turns the model keeps.
//!
//! What is not read is reported as `input_transformations` and is no error; what did not come back
//! is a loss.

use std::collections::HashMap;

use super::{DIALECT, Item, compaction, not_found, weigh_item};
use crate::strict::Call;
use crate::strict::prompt::{Place, items, link, text};
use crate::strict::reply_store::{Book, Kind, Prefix, Seal};
use crate::strict::rules::Model;
use crate::strict::verdict::{Loss, Refusal, Rule, Transformation, Why};

/// The seals of all reasoning items, by place; items without any are left out.
pub(super) fn seals(
    call: &Call,
    model: &Model,
    book: &Book,
    list: &[Item<'_>],
) -> Result<HashMap<usize, usize>, Refusal> {
    let mut all = HashMap::new();
    for (at, item) in list.iter().enumerate().filter(|(_, item)| item.kind == "reasoning") {
        if !model.reasons {
            let message = "Reasoning input items can only be provided to a reasoning or computer use model. Remove reasoning items from your input and try again.";
            let param = format!("input[{at}]");
            let rule = Rule::ReasoningRefused;
            return Err(Refusal::openai(rule, 400, None, Some(&param), message.into()));
        }
        match item.field("encrypted_content").as_str() {
            Some(sealed) => {
                let (number, seal) = genuine(book, item, sealed)?;
                if Some(seal.account) != call.account {
                    return unverified(
                        item,
                        "The encrypted content's organization_id did not match the target organization.",
                    );
                }
                all.insert(at, number);
            }
            None => {
                let Some(id) = item.id() else { continue };
                let stored = book.stored_item(id, call.account);
                let Some(stored) = stored.filter(|_| call.body["store"] != false) else {
                    return not_found(call, id);
                };
                if let Some((number, _)) = book.seal(DIALECT, text(&stored["encrypted_content"])) {
                    all.insert(at, number);
                }
            }
        }
    }
    Ok(all)
}

fn genuine<'b>(
    book: &'b Book,
    item: &Item<'_>,
    sealed: &str,
) -> Result<(usize, &'b Seal), Refusal> {
    match book.seal(DIALECT, sealed) {
        Some((number, seal))
            if seal.kind == Kind::Encrypted && item.id().is_none_or(|id| id == seal.id) =>
        {
            Ok((number, seal))
        }
        _ => unverified(item, "Encrypted content could not be decrypted or parsed."),
    }
}

fn unverified<T>(item: &Item<'_>, reason: &str) -> Result<T, Refusal> {
    let what = match item.id() {
        Some(id) => format!("for item {id}"),
        None => abbreviated(text(item.field("encrypted_content"))),
    };
    let message = format!("The encrypted content {what} could not be verified. Reason: {reason}");
    let code = Some("invalid_encrypted_content");
    Err(Refusal::openai(Rule::SignatureInvalid, 400, code, None, message))
}

/// How content without an id is named: `gAAA...DQ==`.
fn abbreviated(content: &str) -> String {
    let end = content.len().saturating_sub(4);
    format!("{}...{}", content.get(..4).unwrap_or_default(), content.get(end..).unwrap_or_default())
}

/// What came of a request's reasoning.
#[derive(Default)]
pub(super) struct Read {
    /// Reasoning items that the model reads, by place, with what they weigh.
    pub(super) visible: HashMap<usize, u64>,
    pub(super) transformations: Vec<Transformation>,
    pub(super) losses: Vec<Loss>,
    /// Where reasoning stands that the model does not keep.
    pub(super) not_kept: Vec<Place>,
    /// The chain of all items, reasoning left out.
    pub(super) chain: u128,
    /// The newest reply of ours in the list.
    pub(super) parent: Option<usize>,
}

/// A reply of ours as it is found in the list.
struct Found {
    reply: usize,
    place: usize,
    /// The chain before each of its items that are not reasoning.
    chains: Vec<u128>,
    present: Vec<usize>,
}

/// Reads all reasoning. `start` is what precedes the items.
pub(super) fn read(
    call: &Call,
    model: &Model,
    book: &Book,
    list: &[Item<'_>],
    seals: &HashMap<usize, usize>,
    start: Prefix,
) -> Read {
    let all_turns = match text(&call.body["reasoning"]["context"]) {
        "all_turns" => true,
        "current_turn" => false,
        _ => model.keeps_reasoning,
    };
    let current = list.iter().rposition(Item::is_said).map_or(0, |said| said + 1);
    let kept = |at: usize| all_turns || at >= current;
    let mut read = Read::default();
    let mut found: Vec<Found> = Vec::new();
    for (at, item) in list.iter().enumerate() {
        let sealed = seals.get(&at).and_then(|number| Some((*number, book.numbered(*number)?)));
        let reply = sealed.map(|(_, seal)| seal.reply).or_else(|| trace(book, item));
        if let Some(reply) = reply {
            if found.last().is_none_or(|last| last.reply != reply) {
                found.push(Found { reply, place: at, chains: Vec::new(), present: Vec::new() });
            }
            read.parent = Some(reply);
        }
        let here = found.last_mut().filter(|last| reply == Some(last.reply));
        if let Some((number, seal)) = sealed {
            if let Some(here) = here {
                here.present.push(number);
            }
            let prefix = Prefix { messages: read.chain, ..start };
            let why = unreadable(model, seal, prefix).or((!kept(at)).then_some(Why::Turn));
            read.take(at, seal, why);
        } else if let Some(chain) = compaction::chain(book, item) {
            read.chain = chain;
        } else if item.kind != "reasoning" {
            if let Some(here) = here {
                here.chains.push(read.chain);
            }
            read.chain =
                weigh_item(item).iter().fold(read.chain, |chain, one| link(chain, one.hash));
        }
        phase(book, item, at, &mut read.losses);
    }
    for one in found.iter().filter(|one| kept(one.place)) {
        read.losses.extend(absent(call, model, book, one, start));
    }
    read
}

impl Read {
    fn take(&mut self, at: usize, seal: &Seal, why: Option<Why>) {
        let place = Place::Message { message: at, block: 0 };
        let Some(why) = why else {
            self.visible.insert(at, seal.tokens);
            return;
        };
        let id = Some(seal.id.clone());
        self.transformations.push(Transformation { place, id, why, allowed: false });
        match why {
            Why::Turn => self.not_kept.push(place),
            _ => self.losses.push(Loss::ReasoningDropped { place, why }),
        }
    }
}

/// `docs/protocols.md` 3.5: another model's, or after a prefix that changed.
fn unreadable(model: &Model, seal: &Seal, prefix: Prefix) -> Option<Why> {
    match () {
        () if !model.reads(&seal.model) => Some(Why::Model),
        () if model.binding && seal.prefix != prefix => Some(Why::Prefix),
        () => None,
    }
}

/// The reply of ours that an item is part of, by its ids or its words.
fn trace(book: &Book, item: &Item<'_>) -> Option<usize> {
    let by = |kind: &str, name: &str| book.trace(DIALECT, kind, item.field(name).as_str()?);
    match item.kind.as_str() {
        "function_call" | "custom_tool_call" => by("id", "id").or_else(|| by("call", "call_id")),
        "message" if item.field("role") == "assistant" => by("id", "id").or_else(|| {
            let content = item.field("content");
            let words: String = match content.as_str() {
                Some(words) => words.to_owned(),
                None => items(content).map(|part| text(&part["text"])).collect(),
            };
            book.trace(DIALECT, "text", &words)
        }),
        _ => None,
    }
}

/// An assistant message that lost its phase (`docs/protocols.md` 3.5).
fn phase(book: &Book, item: &Item<'_>, at: usize, losses: &mut Vec<Loss>) {
    if item.kind != "message" || item.field("role") != "assistant" {
        return;
    }
    let issued = trace(book, item).and_then(|reply| book.reply(reply));
    let mut phases = issued
        .into_iter()
        .flat_map(|issued| &issued.items)
        .filter_map(|item| item.phase.as_deref());
    let Some(phase) = phases.next() else { return };
    if item.field("phase") != phase {
        losses.push(Loss::PhaseDropped { place: Place::Message { message: at, block: 0 } });
    }
}

fn absent(call: &Call, model: &Model, book: &Book, found: &Found, start: Prefix) -> Option<Loss> {
    let issued = book.reply(found.reply)?;
    let gone = issued.seals.iter().find(|seal| !found.present.contains(seal))?;
    let seal = book.numbered(*gone)?;
    let now = found.chains.get(seal.lead).map(|chain| Prefix { messages: *chain, ..start });
    let fits = now.is_some_and(|now| unreadable(model, seal, now).is_none());
    Some(Loss::ReasoningAbsent {
        place: Place::Message { message: found.place, block: 0 },
        issued: issued.seals.len(),
        present: found.present.len(),
        readable: fits && Some(seal.account) == call.account,
    })
}
