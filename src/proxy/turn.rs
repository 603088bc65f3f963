//! From a reply to a turn: what an exchange taught, and the keeping of it.
//!
//! Built once the ending is known, kept on a task of its own. What is not known stays absent; a
//! store that fails costs the turn after a restart, never the client its answer.

use std::sync::Arc;

use super::account::Account;
use super::tap::Settle;
use super::{Proxy, now};
use crate::context::{Fact, Millis, Outcome, Place, Reasoning, Sketch, Sketched, Turn, ledger};
use crate::dialect::models::Family;
use crate::dialect::{Chain, Conversation, PartKind, Reply};
use crate::store::ledgers::Opened;
use crate::telemetry::FailOpen;

/// Keeps the turn of an exchange once its reply is known.
pub(crate) fn settle(proxy: Arc<Proxy>, opened: Opened, conversation: &Conversation) -> Settle {
    let model: Box<str> = conversation.model.clone().unwrap_or_default();
    let purpose = conversation.purpose;
    let dialect = conversation.dialect;
    Box::new(move |account: &mut Account, reply: Reply| {
        let event = &account.event;
        if event.outcome == Outcome::Refused {
            // Nothing was answered: there is no turn, and who waits for it may go on.
            drop(opened);
            return Box::pin(std::future::ready(None));
        }
        let chain = opened.placed.standing.chain;
        let after = reply.chain_after(chain);
        let upstream: Box<str> = event.upstream.clone().unwrap_or_default();
        let ended = now();
        let turn = Turn {
            request: event.id.clone(),
            standing: opened.placed.standing.clone(),
            after,
            response: reply.id.clone(),
            at: event.at,
            ended,
            upstream: upstream.clone(),
            dialect,
            model: model.clone(),
            family: event.family.unwrap_or(Family::Other),
            purpose,
            estimate: event.estimate.clone(),
            usage: reply.usage.clone(),
            stop: reply.stop,
            outcome: event.outcome,
            window: event.window.unwrap_or_default(),
            reserve: proxy.config.output_reserve,
            sketch: Sketch::default(),
            reply: sketched(&reply),
            marks: ledger::marks(&reply),
        };
        let mut facts = vec![Fact::Turn(Box::new(turn))];
        facts.extend(reasoning(&reply, chain, after, ended, model, upstream));
        Box::pin(async move {
            let kept = proxy.ledgers.commit(opened, facts).await;
            kept.is_err().then_some(FailOpen::Store)
        })
    })
}

fn sketched(reply: &Reply) -> Vec<Sketched> {
    let keys = reply.parts.iter().filter_map(|part| part.key);
    keys.map(|key| Sketched { key, tokens: 0, place: Place::History }).collect()
}

/// The reasoning of a reply as it was received, each block with the number of keyed parts before it.
fn reasoning(
    reply: &Reply,
    prefix: Chain,
    after: Chain,
    at: Millis,
    model: Box<str>,
    upstream: Box<str>,
) -> Option<Fact> {
    let mut before = 0;
    let mut blocks = Vec::new();
    for part in &reply.parts {
        match &part.raw {
            Some(raw) if part.kind == PartKind::Reasoning => blocks.push((before, raw.clone())),
            _ => before += u32::from(part.key.is_some()),
        }
    }
    let reasoning = Reasoning { after, at, prefix, model, upstream, blocks };
    (!reasoning.blocks.is_empty()).then(|| Fact::Reasoning(Box::new(reasoning)))
}
