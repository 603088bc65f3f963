//! Makes the turn of an exchange that ended, and the draft of one in flight.
//!
//! The draft is the turn without its reply, and the turn is made from it, so that an interrupted exchange is
//! stored in the same form as any other.

use crate::context::budget::{MeasuredEstimate, ToolTokens};
use crate::context::plan::ForwardedPrefix;
use crate::context::reasoning;
use crate::context::{Fact, Millis, Outcome, Turn, budget, edited};
use crate::dialect::reply::chain_after;
use crate::dialect::{PartKind, Reply, agent};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::request_info::RequestInfo;
use crate::store::ledgers::OpenedSession;
use crate::tokens::Tokenizer;

/// Makes the turn of an exchange that ended from its draft, without what is counted or learned of it.
pub(super) fn end(turn: &mut Turn, info: &RequestInfo, reply: &Reply) {
    turn.response.clone_from(&reply.id);
    turn.repeated_calls = info.repeated_calls;
    // The provider still works on it: its reply comes later.
    if turn.outcome == Outcome::Complete && reply.pending && reply.id.is_some() {
        turn.outcome = Outcome::Interrupted;
    }
    turn.window = info.model.window;
    turn.reserve = info.reserve;
    add_reply(turn, reply);
}

fn add_reply(turn: &mut Turn, reply: &Reply) {
    let chain = turn.position.chain;
    let tokenizer = Tokenizer::now(turn.family);
    turn.after = reply.chain_after(chain);
    turn.usage.clone_from(&reply.usage);
    turn.served = reply.model.clone().filter(|model| **model != *turn.model);
    turn.stop = reply.stop;
    turn.reply = budget::reply(reply, tokenizer);
    turn.anchor_keys = edited::reply_keys(&turn.position, reply);
    turn.others = budget::other_forms(reply, chain, tokenizer);
    turn.called = budget::called(reply);
}

pub(super) fn set_title(turn: &mut Turn, reply: &Reply) {
    let texts = reply.parts.iter().filter(|part| part.kind == PartKind::Text);
    let text: String = texts.map(|part| &*part.text).collect();
    if let Some(origin) = &mut turn.origin {
        origin.title = agent::title(&text);
    }
}

pub(super) fn completed(turn: &Turn, reply: &Reply, outcome: Outcome, ended: Millis) -> Turn {
    let mut turn = turn.clone();
    add_reply(&mut turn, reply);
    turn.response = turn.response.or_else(|| reply.id.clone());
    turn.ended = ended;
    turn.outcome = outcome;
    // It was predicted from a reply that was not there.
    turn.carry = None;
    turn
}

pub(super) fn draft(request: &PlacedRequest, at: Millis) -> Turn {
    let PlacedRequest { opened, planned, .. } = request;
    let prepared = &planned.prepared;
    let position = opened.placed.position.clone();
    let measured = planned.measured.as_deref();
    Turn {
        exchange: prepared.info.exchange.clone(),
        after: Reply::default().chain_after(position.chain),
        position,
        done: planned.done.clone(),
        at,
        ended: at,
        upstream: prepared.info.upstream.name.clone(),
        model: prepared.info.model_name().into(),
        purpose: prepared.conversation.purpose,
        estimate: measured.map(|measured| measured.estimate.clone()),
        outcome: Outcome::Interrupted,
        window: prepared.info.model.window,
        reserve: prepared.info.reserve,
        sketch: measured.map(|measured| measured.sketch.clone()).unwrap_or_default(),
        definitions: definitions(opened, prepared, measured),
        hints: prepared.info.hints.clone(),
        origin: Some(Box::new(opened.origin.clone())),
        ..Turn::empty(prepared.conversation.dialect, prepared.info.model.family)
    }
}

/// The tools of a request that its parent did not have like this.
fn definitions(
    opened: &OpenedSession,
    prepared: &PreparedRequest,
    measured: Option<&MeasuredEstimate>,
) -> Vec<ToolTokens> {
    let placed = &opened.placed;
    let parent = placed.parent.as_ref().map(|parent| parent.position.tools);
    match measured {
        Some(measured) if parent != Some(placed.position.tools) => {
            budget::definitions(&prepared.conversation, &measured.parts)
        }
        _ => Vec::new(),
    }
}

pub(super) fn facts(turn: Box<Turn>, reply: &Reply, prefix: Option<ForwardedPrefix>) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(prefix) = prefix {
        // Its client may have the reply in any of its forms.
        for form in reply.forms() {
            let after = chain_after(form, turn.position.chain);
            let reasoning = reasoning::record(form, after, &turn, prefix);
            facts.extend(reasoning.map(|reasoning| Fact::Reasoning(Box::new(reasoning))));
        }
    }
    facts.insert(0, Fact::Turn(turn.into()));
    facts
}
