//! Makes the turn of an exchange: of one that ended, and the draft of one that goes on.
//!
//! One way for both, so that what is known of an exchange that was interrupted has the form of any other.

use super::Measure;
use crate::context::policy::Reinject;
use crate::context::reasoning::{self, Made};
use crate::context::{Fact, Millis, Outcome, Turn, budget, ledger};
use crate::dialect::Reply;
use crate::proxy::counting::Awaited;
use crate::proxy::now;
use crate::store::ledgers::Opened;
use crate::telemetry::Exchange;
use crate::tokens::Tokenizer;
use crate::tokens::learn::Learned;

/// How an exchange ended, by its account.
pub(super) struct Ending {
    pub(super) id: Box<str>,
    pub(super) at: Millis,
    pub(super) ended: Millis,
    pub(super) upstream: Box<str>,
    pub(super) outcome: Outcome,
}

impl Ending {
    pub(super) fn of(event: &Exchange) -> Self {
        Self {
            id: event.id.clone(),
            at: event.at,
            ended: now(),
            upstream: event.upstream.clone().unwrap_or_default(),
            outcome: event.outcome,
        }
    }
}

impl Measure {
    /// What stays of it if nothing more is heard, of an exchange that began at this time.
    pub(super) fn draft(&self, at: Millis) -> Turn {
        let (id, upstream) = (self.subject.id.clone(), self.subject.upstream.clone());
        let ending = Ending { id, at, ended: at, upstream, outcome: Outcome::Interrupted };
        self.turn(ending, &Reply::default())
    }

    /// The draft says what was sent in the end.
    pub(super) fn revise_draft(&self) {
        let Some(draft) = &self.draft else { return };
        draft.revise(|turn| {
            let is_same =
                turn.done == self.planned.done && turn.estimate.as_ref() == self.estimate();
            (!is_same).then(|| self.draft(turn.at))
        });
    }

    /// What is kept of an exchange that ended.
    pub(super) fn facts(
        self,
        ending: Ending,
        reply: &Reply,
        unsaid: Vec<Fact>,
        learned: &Learned,
    ) -> (Opened, Vec<Fact>) {
        let (subject, upstream, at) = (&self.subject, ending.upstream.clone(), ending.ended);
        // Who left, or lost the rest, did not hear the answer to what was said.
        let is_heard = ending.outcome == Outcome::Complete && self.planned.done.resent.is_none();
        let mut turn = self.turn(ending, reply);
        let parts = self.planned.measured.as_deref().map(|measured| &measured.parts);
        let parts = parts.map(Vec::as_slice).unwrap_or_default();
        turn.carry = self.planned.carry_over(subject, &turn, parts, reply, learned);
        let mut facts = vec![Fact::Turn(Box::new(turn))];
        if subject.policy.reasoning.reinject != Reinject::Off {
            let made = Made {
                dialect: subject.conversation.dialect,
                after: reply.chain_after(self.opened.placed.standing.chain),
                prefix: self.planned.sent.chain(),
                order: self.planned.sent.thought(),
                model: subject.name(),
                upstream: &upstream,
                at,
            };
            let reasoning = reasoning::record(reply, made);
            facts.extend(reasoning.map(|reasoning| Fact::Reasoning(Box::new(reasoning))));
        }
        if !is_heard {
            facts.extend(unsaid);
        }
        (self.opened, facts)
    }

    fn turn(&self, ending: Ending, reply: &Reply) -> Turn {
        let Self { opened, subject, planned, counted, .. } = self;
        let standing = opened.placed.standing.clone();
        let measured = planned.measured.as_deref();
        Turn {
            request: ending.id,
            after: reply.chain_after(standing.chain),
            standing,
            done: planned.done.clone(),
            response: reply.id.clone(),
            at: ending.at,
            ended: ending.ended,
            upstream: ending.upstream,
            dialect: subject.conversation.dialect,
            model: subject.name().into(),
            family: subject.model.family,
            purpose: subject.conversation.purpose,
            estimate: measured.map(|measured| measured.estimate.clone()),
            usage: reply.usage.clone(),
            counted: counted.as_ref().and_then(Awaited::here),
            stop: reply.stop,
            outcome: ending.outcome,
            window: subject.model.window,
            reserve: subject.reserve,
            sketch: measured.map(|measured| measured.sketch.clone()).unwrap_or_default(),
            reply: budget::reply(reply, Tokenizer::now(subject.model.family)),
            marks: ledger::marks(reply),
            carry: None,
        }
    }
}
