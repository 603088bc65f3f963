//! A request to plan for: read, placed in its session, with the policy and the model that apply to it.
//!
//! Owned, so that it can move between threads. Complete when it is built, from a [`RequestBasis`] and what its
//! session says. Only what a response says about it changes it afterwards.

use std::sync::Arc;

use bytes::Bytes;

use super::added_option::{AddedOption, AddedOptionKind};
use super::body_reader::ParsedBody;
use crate::config::{Mode, Upstream};
use crate::context::budget::{self, Anchor, MeasuredEstimate};
use crate::context::plan::{self, Overlay, PlanStep, RecordedDecisions, RewriteSummary};
use crate::context::policy::{DecisionMode, Policy, ReasoningRule};
use crate::context::{ExchangeId, Millis, TenantId, prune};
use crate::dialect::Conversation;
use crate::dialect::models::{Model, ReasoningBinding};
use crate::proxy::http::memory::HeldMemory;
use crate::proxy::offload::off_thread;
use crate::proxy::state::lesson_source;
use crate::store::ledgers::{AnchorTurn, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::telemetry::FailOpen;
use crate::tokens::Tokenizer;
use crate::tokens::learn::EstimatorState;

/// A request that was read, and whose session is not open yet.
pub(crate) struct RequestBasis {
    pub(crate) exchange: ExchangeId,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) parsed: ParsedBody,
    pub(crate) facts: ModelFacts,
    /// How far Plimsoll may go, as configuration and client say.
    pub(crate) mode: Mode,
    pub(crate) signed: bool,
    pub(crate) now: Millis,
}

/// What is known about a request's model behind its upstream.
pub(crate) struct ModelFacts {
    pub(crate) model: Model,
    pub(crate) learned: Arc<EstimatorState>,
    pub(crate) reasoning_rule: ReasoningRule,
    pub(crate) compaction_refused: bool,
    pub(crate) policy: Arc<Policy>,
    /// As in [`plan::PlanRequest`].
    pub(crate) client_compacts: Option<bool>,
    pub(crate) max_output: Option<u64>,
    pub(crate) reserve: u64,
    /// What lessons about the model are kept under.
    pub(crate) lesson_model: Box<str>,
    /// The store did not return the lessons in time.
    pub(crate) lessons_missed: bool,
}

/// What the session of a request says about it.
struct SessionTerms {
    mode: Mode,
    held_out: bool,
    /// The store did not return the session in time.
    store_missed: bool,
}

/// A request with everything that is known about its model and upstream.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) exchange: ExchangeId,
    /// Its tenant; `None` if unknown.
    pub(crate) tenant: Option<TenantId>,
    pub(crate) conversation: Conversation,
    /// The body that the conversation was read from.
    pub(crate) body: Bytes,
    /// The memory of the conversation.
    pub(crate) memory: Arc<HeldMemory>,
    pub(crate) model: Model,
    /// What responses taught about counting that model's tokens.
    pub(crate) learned: Arc<EstimatorState>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) reasoning_rule: ReasoningRule,
    /// The provider refused to compact contexts of this model.
    pub(crate) compaction_refused: bool,
    pub(crate) policy: Arc<Policy>,
    /// As in [`plan::PlanRequest`].
    pub(crate) client_compacts: Option<bool>,
    pub(crate) mode: Mode,
    pub(crate) held_out: bool,
    /// The store did not return its session or the lessons in time: nothing new is decided without them.
    pub(crate) store_missed: bool,
    /// Its client signed the body: no byte of it may change.
    pub(crate) signed: bool,
    /// What is requested on the client's behalf besides the plan.
    pub(crate) added: Vec<AddedOption>,
    /// See [`repeated_calls`](crate::context::repeats::repeated_calls).
    pub(crate) repeated_calls: Option<u32>,
    pub(crate) reserve: u64,
    /// The provider's token count of it, from the message that it does not fit.
    pub(crate) counted_input: Option<u64>,
    /// The model's maximum output in tokens, learned from another request's refusal.
    pub(crate) max_output: Option<u64>,
    /// What lessons about the model are kept under.
    pub(crate) lesson_model: Box<str>,
    pub(crate) now: Millis,
}

impl RequestBasis {
    /// `held_out`: from rewriting. `adds` chooses what is requested on the client's behalf.
    pub(crate) fn in_session(
        self,
        opened: &mut OpenedSession,
        held_out: bool,
        adds: impl FnOnce(&PreparedRequest, &OpenedSession) -> Vec<AddedOption>,
    ) -> PreparedRequest {
        let mode = self.mode;
        let mut prepared =
            self.on(SessionTerms { mode, held_out, store_missed: opened.store_missed });
        // If the thread was rewritten before, shadow mode repeats its decisions as observe mode does: its cache
        // and its reasoning depend on that.
        if mode == Mode::Shadow {
            let decisions = opened.reload_decisions(&prepared.conversation, DecisionMode::Active);
            prepared.mode = Mode::Observe;
            let is_rewritten = !decisions.decides_nothing()
                && !plan::replay(&prepared.plan_request(), &decisions).edits.is_empty();
            match is_rewritten {
                true => opened.known = Arc::new(decisions),
                false => prepared.mode = Mode::Shadow,
            }
        }
        prepared.added = adds(&prepared, opened);
        prepared
    }

    pub(crate) fn for_count(
        self,
        held_out: bool,
        adds: impl FnOnce(&PreparedRequest) -> Vec<AddedOption>,
    ) -> PreparedRequest {
        // It takes no place in its session, so nothing of that can be late.
        let mode = self.mode;
        let mut prepared = self.on(SessionTerms { mode, held_out, store_missed: false });
        prepared.added = adds(&prepared);
        prepared
    }

    pub(crate) fn alone(self) -> PreparedRequest {
        let mode = self.mode;
        self.on(SessionTerms { mode, held_out: false, store_missed: false })
    }

    fn on(self, terms: SessionTerms) -> PreparedRequest {
        let Self { exchange, tenant, upstream, parsed, facts, mode: _, signed, now } = self;
        let ParsedBody { plain: body, conversation, repeated_calls, memory } = parsed;
        let ModelFacts {
            model,
            learned,
            reasoning_rule,
            compaction_refused,
            policy,
            client_compacts,
            max_output,
            reserve,
            lesson_model,
            lessons_missed,
        } = facts;
        let SessionTerms { mode, held_out, store_missed } = terms;
        PreparedRequest {
            exchange,
            tenant,
            upstream,
            conversation,
            body,
            memory: Arc::new(memory),
            model,
            learned,
            reasoning_rule,
            compaction_refused,
            policy,
            client_compacts,
            mode,
            held_out,
            store_missed: lessons_missed || store_missed,
            signed,
            added: Vec::new(),
            repeated_calls,
            reserve,
            counted_input: None,
            max_output,
            lesson_model,
            now,
        }
    }
}

impl PreparedRequest {
    /// Returns the window assumed so far.
    pub(crate) fn set_named_window(&mut self, window: u64, output_reserve: u64) -> u64 {
        let assumed = std::mem::replace(&mut self.model.window, window);
        self.reserve = self.model.reserve(output_reserve);
        assumed
    }

    pub(crate) fn set_bound(&mut self) {
        // The provider refused reasoning because its prefix was changed.
        self.model.binding = ReasoningBinding::Prefix;
    }

    pub(crate) fn set_counted_input(&mut self, count: Option<u64>) {
        // The provider counts the input when it says that the output does not fit beside it.
        self.counted_input = count;
    }

    /// Its memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.memory.bytes()
    }

    pub(crate) fn model_name(&self) -> &str {
        self.conversation.model.as_deref().unwrap_or_default()
    }

    pub(crate) fn lesson_source(&self) -> LessonSource<'_> {
        lesson_source(self.tenant.as_ref(), &self.upstream, &self.lesson_model, self.model.door)
    }

    pub(crate) fn plan_request(&self) -> plan::PlanRequest<'_> {
        plan::PlanRequest {
            exchange: &self.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &self.model,
            name: self.model_name(),
            upstream: &self.upstream.name,
            reasoning_rule: self.reasoning_rule,
            compaction_refused: self.compaction_refused,
            policy: &self.policy,
            client_compacts: self.client_compacts,
            mode: self.mode,
            clears_past: self.added.iter().find_map(|added| match added.kind {
                AddedOptionKind::Editing { trigger } => Some(trigger),
                _ => None,
            }),
            tokenizer: Tokenizer::now(self.model.family),
            reserve: self.reserve,
            now: self.now,
        }
    }

    pub(crate) async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        run: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, FailOpen> {
        // A small body is not worth the change of thread.
        let this = self.clone();
        off_thread(self.body.len(), self.tenant.as_ref(), move || run(&this)).await
    }

    /// `known`: the recorded decisions in it.
    pub(super) fn measure(
        &self,
        sent: &Overlay,
        known: &RecordedDecisions,
        anchor: Option<&AnchorTurn>,
    ) -> Box<MeasuredEstimate> {
        let anchor = anchor.map(|at| Anchor { turn: &at.turn, sketch: &at.sketch });
        Box::new(budget::estimate(&self.plan_request(), sent, known, anchor, &self.learned))
    }

    pub(crate) fn cost<'m>(&'m self, measured: &'m MeasuredEstimate) -> prune::RequestCost<'m> {
        let rules = self.policy.estimate.deciding();
        prune::RequestCost { tokens: measured.estimate.tokens, parts: &measured.parts, rules }
    }

    pub(super) fn rewrite_summary(&self, steps: &[PlanStep]) -> RewriteSummary {
        let mut added = self.added.iter();
        let shows_thinking = added.any(|option| option.kind == AddedOptionKind::Display);
        let held_out = self.held_out;
        RewriteSummary { held_out, shows_thinking, ..RewriteSummary::from_steps(steps, self.mode) }
    }

    pub(super) fn may_rewrite(&self) -> bool {
        self.mode == Mode::Active && !self.held_out && !self.signed
    }

    pub(crate) fn may_decide(&self) -> bool {
        // A retry that redeems a fallback credit must be the request that was declined (`docs/protocols.md`
        // 1.9).
        let is_free = !self.conversation.redeems_credit;
        self.mode != Mode::Observe && !self.held_out && !self.store_missed && is_free
    }
}
