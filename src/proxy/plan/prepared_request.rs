//! A request to plan for: read, placed in its session, with the policy and the model that apply to it.
//!
//! Owned, so that it can move between threads. Its session adds to it, and afterwards only what a response says about it.

use std::sync::Arc;

use bytes::Bytes;

use super::added_option::{AddedOption, AddedOptionKind};
use super::parsed_body::ParsedBody;
use crate::clock::now;
use crate::config::Mode;
use crate::context::budget::{self, MeasuredEstimate};
use crate::context::plan::{self, Overlay, Plan, PlanStep, RecordedDecisions, RewriteSummary};
use crate::context::policy::DecisionMode;
use crate::context::{Millis, prune, repair};
use crate::dialect::Conversation;
use crate::proxy::http::memory::HeldMemory;
use crate::proxy::offload::off_thread;
use crate::proxy::state::request_info::RequestInfo;
use crate::store::ledgers::{AnchorTurn, OpenedSession};
use crate::telemetry::FailOpen;
use crate::tokens::Tokenizer;

/// A request with everything that planning it needs.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) info: Arc<RequestInfo>,
    pub(crate) conversation: Conversation,
    /// The body that the conversation was read from.
    pub(crate) body: Bytes,
    /// The memory of the conversation.
    pub(crate) memory: Arc<HeldMemory>,
    /// How far Plimsoll may go, as configuration, client and session say.
    pub(crate) mode: Mode,
    pub(crate) held_out: bool,
    /// The store did not return its session or the lessons in time: nothing new is decided without them.
    pub(crate) store_missed: bool,
    /// Its client signed the body: no byte of it may change.
    pub(crate) signed: bool,
    /// What is requested on the client's behalf besides the plan.
    pub(crate) added: Vec<AddedOption>,
    /// The provider's token count of it, from the message that it does not fit.
    pub(crate) counted_input: Option<u64>,
    pub(crate) now: Millis,
}

impl PreparedRequest {
    /// A request whose session is not open yet.
    pub(crate) fn new(info: RequestInfo, parsed: ParsedBody, mode: Mode, signed: bool) -> Self {
        Self {
            store_missed: info.lessons_missed,
            info: Arc::new(info),
            conversation: parsed.conversation,
            body: parsed.plain,
            memory: Arc::new(parsed.memory),
            mode,
            held_out: false,
            signed,
            added: Vec::new(),
            counted_input: None,
            now: now(),
        }
    }

    pub(crate) fn place(&mut self, opened: &mut OpenedSession, held_out: bool) {
        self.held_out = held_out;
        self.store_missed |= opened.store_missed;
        // If the thread was rewritten before, shadow mode repeats its decisions as observe mode does: its cache
        // and its reasoning depend on that.
        if self.mode == Mode::Shadow {
            let decisions = opened.reload_decisions(&self.conversation, DecisionMode::Active);
            self.mode = Mode::Observe;
            let is_rewritten = !decisions.decides_nothing()
                && !plan::replay(&self.plan_request(), &decisions).edits.is_empty();
            match is_rewritten {
                true => opened.known = Arc::new(decisions),
                false => self.mode = Mode::Shadow,
            }
        }
    }

    /// Its memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.memory.bytes()
    }

    pub(crate) fn plan_request(&self) -> plan::PlanRequest<'_> {
        let info = &*self.info;
        plan::PlanRequest {
            exchange: &info.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &info.model,
            name: info.model_name(),
            upstream: &info.upstream.name,
            reasoning_rule: info.reasoning_rule,
            compaction_refused: info.compaction_refused,
            policy: &info.policy,
            client_compacts: info.client_compacts,
            mode: self.mode,
            clears_past: self.added.iter().find_map(|added| match added.kind {
                AddedOptionKind::Editing { trigger } => Some(trigger),
                _ => None,
            }),
            tokenizer: Tokenizer::now(info.model.family),
            reserve: info.reserve,
            now: self.now,
        }
    }

    pub(crate) async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        run: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, FailOpen> {
        // A small body is not worth the change of thread.
        let this = self.clone();
        off_thread(self.body.len(), self.info.tenant.as_ref(), move || run(&this)).await
    }

    /// `known`: the recorded decisions in it.
    pub(super) fn measure(
        &self,
        sent: &Overlay,
        known: &RecordedDecisions,
        anchor: Option<&AnchorTurn>,
    ) -> Box<MeasuredEstimate> {
        let anchor = anchor.map(AnchorTurn::as_anchor);
        Box::new(budget::estimate(&self.plan_request(), sent, known, anchor, &self.info.learned))
    }

    pub(super) fn fit_output(
        &self,
        plan: &mut Plan,
        known: &RecordedDecisions,
        measured: &MeasuredEstimate,
    ) {
        // An earlier refusal may have said that prompt and output exceed the window. The provider's own count
        // is better than the estimate.
        let input = self.counted_input.unwrap_or(measured.estimate.tokens);
        repair::fit_output(&self.plan_request(), known, plan, input, self.counted_input.is_some());
    }

    pub(crate) fn cost<'m>(&'m self, measured: &'m MeasuredEstimate) -> prune::RequestCost<'m> {
        let rules = self.info.policy.estimate.deciding();
        prune::RequestCost { tokens: measured.estimate.tokens, parts: &measured.parts, rules }
    }

    pub(super) fn rewrite_summary(&self, steps: &[PlanStep]) -> RewriteSummary {
        let mut added = self.added.iter();
        let shows_thinking = added.any(|option| option.kind == AddedOptionKind::Display);
        let held_out = self.held_out;
        RewriteSummary { held_out, shows_thinking, ..RewriteSummary::from_steps(steps, self.mode) }
    }

    pub(crate) fn may_rewrite(&self) -> bool {
        self.mode == Mode::Active && !self.held_out && !self.signed
    }

    pub(crate) fn may_decide(&self) -> bool {
        // A retry that redeems a fallback credit must be the request that was declined (`docs/protocols.md`
        // 1.9).
        let is_free = !self.conversation.redeems_credit;
        self.mode != Mode::Observe && !self.held_out && !self.store_missed && is_free
    }
}
