//! A request to plan for: read, placed in its session, with the policy and the model that apply to it.
//!
//! Owned, so that it can move between threads. Complete when it is built; nothing here decides anything.

use std::sync::Arc;

use bytes::Bytes;

use super::added_option::{AddedOption, AddedOptionKind};
use crate::config::Mode;
use crate::context::budget::{self, Anchor, MeasuredEstimate};
use crate::context::plan::{self, Overlay, PlanStep, RecordedDecisions, RewriteSummary};
use crate::context::policy::{EchoRule, Policy};
use crate::context::{ExchangeId, Millis, TenantId, prune};
use crate::dialect::Conversation;
use crate::dialect::models::Model;
use crate::proxy::http::memory::HeldMemory;
use crate::store::ledgers::{AnchorTurn as Grown, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::tokens::Tokenizer;
use crate::tokens::learn::EstimatorState;

/// A request with everything that is known about its model and upstream.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) exchange: ExchangeId,
    /// Its tenant; `None` if unknown.
    pub(crate) tenant: Option<TenantId>,
    /// See [`LessonSource::vouched`].
    pub(crate) vouched: bool,
    pub(crate) conversation: Conversation,
    /// The body that the conversation was read from.
    pub(crate) body: Bytes,
    /// The memory of the conversation.
    pub(crate) memory: Arc<HeldMemory>,
    pub(crate) model: Model,
    /// What responses taught about counting that model's tokens.
    pub(crate) learned: Arc<EstimatorState>,
    pub(crate) upstream: Box<str>,
    pub(crate) echo: EchoRule,
    pub(crate) policy: Arc<Policy>,
    pub(crate) mode: Mode,
    pub(crate) held_out: bool,
    /// The store did not return its session in time: nothing new is decided without it.
    pub(crate) unknown: bool,
    /// Its client signed the body: no byte of it may change.
    pub(crate) signed: bool,
    /// What is requested on the client's behalf besides the plan.
    pub(crate) added: Vec<AddedOption>,
    pub(crate) reserve: u64,
    /// The provider's token count of it, from the message that it does not fit.
    pub(crate) counted_input: Option<u64>,
    /// The model's maximum output in tokens, learned from another request's refusal.
    pub(crate) max_output: Option<u64>,
    pub(crate) now: Millis,
}

impl PreparedRequest {
    /// Its memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.memory.bytes()
    }

    /// The model, as the client named it; empty if it named none.
    pub(crate) fn name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }

    /// The source of a lesson, also to look one up.
    pub(crate) fn source(&self) -> LessonSource<'_> {
        let (tenant, upstream) = (self.tenant.as_ref(), &*self.upstream);
        LessonSource { tenant, upstream, model: self.name(), vouched: self.vouched }
    }

    /// The texts of it that its provider may quote.
    pub(crate) fn quotable(&self) -> (&Bytes, &str) {
        (&self.body, self.name())
    }

    /// The request in the form that the pure modules use.
    pub(crate) fn request(&self) -> plan::PlanRequest<'_> {
        plan::PlanRequest {
            exchange: &self.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &self.model,
            name: self.name(),
            upstream: &self.upstream,
            echo: self.echo,
            policy: &self.policy,
            mode: self.mode,
            clears_past: self.added.iter().find_map(|added| match added.what {
                AddedOptionKind::Editing { trigger } => Some(trigger),
                _ => None,
            }),
            tokenizer: Tokenizer::now(self.model.family),
            reserve: self.reserve,
            now: self.now,
        }
    }

    /// The estimate of the request as planned. `known`: the recorded decisions in it.
    pub(crate) fn measure(
        &self,
        sent: &Overlay,
        known: &RecordedDecisions,
        anchor: Option<&Grown>,
    ) -> Box<MeasuredEstimate> {
        let anchor = anchor.map(|at| Anchor { turn: &at.turn, sketch: &at.sketch });
        Box::new(budget::estimate(&self.request(), sent, known, anchor, &self.learned))
    }

    /// The cost that decisions use.
    pub(crate) fn cost<'m>(&'m self, measured: &'m MeasuredEstimate) -> prune::RequestCost<'m> {
        let rules = self.policy.estimate.deciding();
        prune::RequestCost { tokens: measured.estimate.tokens, parts: &measured.parts, rules }
    }

    /// Adapts the request to its opened session. If a thread was rewritten before, shadow mode repeats its
    /// decisions as observe mode does: its cache and its reasoning depend on that.
    pub(crate) fn is_opened(&mut self, opened: &mut OpenedSession) {
        self.unknown |= opened.store_missed;
        if self.mode != Mode::Shadow {
            return;
        }
        let known = opened.look_again(&self.conversation, false);
        if known.decides_nothing() {
            return;
        }
        self.mode = Mode::Observe;
        match plan::replay(&self.request(), &known).edits.is_empty() {
            true => self.mode = Mode::Shadow,
            false => opened.known = known,
        }
    }

    /// The rewrite summary of these steps.
    pub(crate) fn rewrite_summary(&self, steps: &[PlanStep]) -> RewriteSummary {
        let shows_thinking = self.added.iter().any(|it| it.what == AddedOptionKind::Display);
        let held_out = self.held_out;
        RewriteSummary { held_out, shows_thinking, ..RewriteSummary::of(steps, self.mode) }
    }

    /// Whether policy's rewrites apply to its thread.
    pub(crate) fn rewrites(&self) -> bool {
        self.mode == Mode::Active && !self.held_out && !self.signed
    }

    /// Whether new decisions may be made.
    pub(crate) fn may_decide(&self) -> bool {
        self.mode != Mode::Observe && !self.held_out && !self.unknown
    }
}
