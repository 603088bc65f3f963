//! From a request and its reply to a turn: what an exchange taught, and the keeping of it.
//!
//! Measured before the request leaves, built once the ending is known, kept on a task of its own.
//! What is not known stays absent; a store that fails costs the turn after a restart, never the
//! client its answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

use super::account::Account;
use super::tap::Settle;
use super::{Proxy, now};
use crate::context::budget::{self, Measured};
use crate::context::{Estimate, Fact, Outcome, Reasoning, Turn, ledger};
use crate::dialect::models::Model;
use crate::dialect::{Conversation, Dialect, PartKind, Purpose, Reply};
use crate::store::ledgers::Opened;
use crate::telemetry::{Exchange, FailOpen};
use crate::tokens::{Tokenizer, bpe};

/// Bodies larger than this are read and measured off the async threads: that takes about 1 ms a MB,
/// more where much is new, and other streams must not wait meanwhile.
pub(crate) const OFF_THREAD: usize = 256 * 1024;

/// What a turn is made of before its reply is known.
pub(crate) struct Measure {
    opened: Opened,
    name: Box<str>,
    model: Model,
    purpose: Purpose,
    dialect: Dialect,
    /// Absent where measuring panicked.
    measured: Option<Measured>,
}

/// Measures a request. The conversation was read from `body`.
pub(crate) async fn measured(
    conversation: Conversation,
    body: Bytes,
    model: Model,
    mut opened: Opened,
) -> Measure {
    let name = conversation.model.clone().unwrap_or_default();
    let (purpose, dialect) = (conversation.purpose, conversation.dialect);
    let large = body.len() > OFF_THREAD;
    let (anchor, of) = (opened.anchor.take(), model.clone());
    if bpe::is_wanted(model.family) {
        // Some 30 ms; until it is there, counting goes by length.
        drop(tokio::task::spawn_blocking({
            let family = model.family;
            move || bpe::load(family)
        }));
    }
    let measure = move || {
        let anchor = anchor.as_ref();
        let anchor = anchor.map(|at| budget::Anchor { turn: &at.turn, sketch: &at.sketch });
        budget::measure(&conversation, &body, &of, anchor, Tokenizer::now(of.family))
    };
    let measured = match large {
        true => tokio::task::spawn_blocking(measure).await.ok(),
        false => catch_unwind(AssertUnwindSafe(measure)).ok(),
    };
    Measure { opened, name, model, purpose, dialect, measured }
}

impl Measure {
    /// What the request will cost.
    pub(crate) fn estimate(&self) -> Option<&Estimate> {
        self.measured.as_ref().map(|measured| &measured.estimate)
    }

    /// Keeps the turn once its reply is known.
    pub(crate) fn settle(self, proxy: Arc<Proxy>) -> Settle {
        Box::new(move |account: &mut Account, reply: Reply| {
            if account.event.outcome == Outcome::Refused {
                // Nothing was answered: there is no turn, and who waits for it may go on.
                drop(self);
                return Box::pin(std::future::ready(None));
            }
            let told = Told::of(&account.event);
            Box::pin(async move {
                let reserve = self.model.reserve(proxy.config.output_reserve);
                let (opened, facts) = self.facts(told, &reply, reserve);
                drop(reply);
                let kept = proxy.ledgers.commit(opened, facts).await;
                kept.is_err().then_some(FailOpen::Store)
            })
        })
    }

    fn facts(self, told: Told, reply: &Reply, reserve: u64) -> (Opened, Vec<Fact>) {
        let standing = self.opened.placed.standing.clone();
        let after = reply.chain_after(standing.chain);
        let (estimate, sketch) = match self.measured {
            Some(Measured { estimate, sketch }) => (Some(estimate), sketch),
            None => Default::default(),
        };
        let reasoning = Reasoning {
            after,
            at: told.ended,
            prefix: standing.chain,
            model: self.name.clone(),
            upstream: told.upstream.clone(),
            blocks: reasoning(reply),
        };
        let turn = Turn {
            request: told.id,
            standing,
            after,
            response: reply.id.clone(),
            at: told.at,
            ended: told.ended,
            upstream: told.upstream,
            dialect: self.dialect,
            model: self.name,
            family: self.model.family,
            purpose: self.purpose,
            estimate,
            usage: reply.usage.clone(),
            stop: reply.stop,
            outcome: told.outcome,
            window: self.model.window,
            reserve,
            sketch,
            reply: budget::reply(reply, Tokenizer::now(self.model.family)),
            marks: ledger::marks(reply),
        };
        let mut facts = vec![Fact::Turn(Box::new(turn))];
        if !reasoning.blocks.is_empty() {
            facts.push(Fact::Reasoning(Box::new(reasoning)));
        }
        (self.opened, facts)
    }
}

/// What a turn keeps of the exchange's account.
struct Told {
    id: Box<str>,
    at: u64,
    ended: u64,
    upstream: Box<str>,
    outcome: Outcome,
}

impl Told {
    fn of(event: &Exchange) -> Self {
        Self {
            id: event.id.clone(),
            at: event.at,
            ended: now(),
            upstream: event.upstream.clone().unwrap_or_default(),
            outcome: event.outcome,
        }
    }
}

/// Reasoning as it was received: raw blocks, each with the number of keyed parts before it.
fn reasoning(reply: &Reply) -> Vec<(u32, Box<str>)> {
    let mut before = 0;
    let mut blocks = Vec::new();
    for part in &reply.parts {
        match &part.raw {
            Some(raw) if part.kind == PartKind::Reasoning => blocks.push((before, raw.clone())),
            _ => before += u32::from(part.key.is_some()),
        }
    }
    blocks
}
