//! The plan of one request: recorded decisions are replayed, and new ones proposed.
//!
//! Knows no session and saves nothing. Large bodies are planned off the async threads.

use std::borrow::Cow;
use std::sync::Arc;

use crate::config::Mode;
use crate::context::budget::{Anchor, CarryOutlook, ContextView, MeasuredEstimate, WindowLimits};
use crate::context::overflow::PartSums;
use crate::context::plan::{
    self, MOST_STORED_STEPS, Overlay, Plan, PlanStep, Proposal, RecordedDecisions, RewriteSummary,
};
use crate::context::policy::SummaryAuthor;
use crate::context::{Estimate, Fact, inject, prune, reasoning, repair};
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::summary::provider;
use crate::dialect::{Dialect, PartKey};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::request_info::RequestInfo;
use crate::store::ledgers::AnchorTurn;
use crate::telemetry::FailOpen;
use crate::tokens::bpe;

/// A request with its plan and what it costs.
#[derive(Clone)]
pub(crate) struct PlannedRequest {
    pub(crate) prepared: Arc<PreparedRequest>,
    /// What is sent in place of what the client sent; without edits in shadow mode. It stays here once it is
    /// sent, because a retry begins with it.
    pub(crate) plan: Plan,
    /// The estimate of what is sent; `None` if it could not be measured.
    pub(crate) measured: Option<Box<MeasuredEstimate>>,
    /// The recorded decisions, including new ones.
    pub(crate) known: Arc<RecordedDecisions>,
    /// The recorded decisions before new ones were made.
    pub(super) before: Arc<RecordedDecisions>,
    /// The tokens that its new summary was decided by.
    compacted_from: Option<u64>,
    /// What was decided against.
    pub(crate) declined: Vec<PlanStep>,
    /// The turn that the estimate is based on.
    pub(super) anchor: Option<Arc<AnchorTurn>>,
    pub(crate) done: RewriteSummary,
}

/// The plan of a request that is not a turn: earlier decisions are replayed, and nothing is decided or
/// measured.
pub(crate) async fn replay_recorded(
    prepared: Arc<PreparedRequest>,
    known: Arc<RecordedDecisions>,
    recorder: &mut ExchangeRecorder,
) -> PlannedRequest {
    let mut planned = PlannedRequest::from_decisions(prepared.clone(), known, None);
    let replayed = prepared
        .off_thread(move |prepared| {
            let plan = plan::replay(&prepared.plan_request(), &planned.known);
            planned.set_plan(plan, None);
            planned
        })
        .await;
    match replayed {
        Ok(mut planned) => {
            if planned.plan.conflict {
                recorder.event.add_fail_open(FailOpen::EditsConflict);
            }
            // Shadow mode changes nothing, and counts what is sent.
            if prepared.mode == Mode::Shadow {
                planned.plan.edits.clear();
                planned.plan.sent = plan::original_overlay(&prepared.plan_request());
            }
            planned
        }
        Err(why) => {
            recorder.event.add_fail_open(why);
            PlannedRequest::new(prepared)
        }
    }
}

pub(super) fn load_vocabulary(family: Family) {
    if bpe::is_wanted(family) {
        // Loading takes about 30 ms; until then, counting is by length.
        drop(tokio::task::spawn_blocking(move || bpe::load(family)));
    }
}

impl PlannedRequest {
    /// Nothing is planned, decided or measured.
    pub(super) fn new(prepared: Arc<PreparedRequest>) -> Self {
        Self::from_decisions(prepared, Arc::default(), None)
    }

    pub(super) fn from_decisions(
        prepared: Arc<PreparedRequest>,
        known: Arc<RecordedDecisions>,
        anchor: Option<Arc<AnchorTurn>>,
    ) -> Self {
        Self {
            prepared,
            before: known.clone(),
            known,
            anchor,
            plan: Plan::default(),
            measured: None,
            compacted_from: None,
            declined: Vec::new(),
            done: RewriteSummary::default(),
        }
    }

    /// A request that is sent as it came; not measured.
    pub(crate) fn original(prepared: Arc<PreparedRequest>) -> Self {
        let mut original = Self::new(prepared);
        original.plan.sent = plan::original_overlay(&original.prepared.plan_request());
        original
    }

    /// The plan made from its recorded decisions, and the new decisions that are proposed.
    pub(super) fn draft(mut self) -> (Self, Vec<Fact>) {
        let prepared = &*self.prepared;
        let request = prepared.plan_request();
        let recorded = self.known.clone();
        let Proposal { facts: mut new, mut declined } = match prepared.may_decide() {
            true => reasoning::propose(&request, &recorded),
            false => Proposal::default(),
        };
        new.retain(|fact| recorded.may_decide(fact));
        if prepared.may_decide()
            && prepared.may_rewrite()
            && let Some(max_output) = prepared.info.learned_max_output
            && let Some(spare) = repair::spare(&request, &recorded, max_output)
        {
            new.push(spare);
        }
        // Cuts are proposed last: what was put back counts against the window.
        let mut with = Cow::Borrowed(&*recorded);
        if !new.is_empty() {
            with.to_mut().add(new.iter().cloned());
        }
        let mut plan = plan::replay(&request, &with);
        let measured = prepared.measure(&plan.sent, &with, self.anchor.as_deref());
        prepared.fit_output(&mut plan, &with, &measured);
        if prepared.may_decide() {
            let cuts = prune::propose(&request, &with, prepared.cost(&measured));
            new.extend(cuts.facts.into_iter().filter(|fact| recorded.may_decide(fact)));
            declined.extend(cuts.declined);
        }
        new.extend(inject::propose(&request, &with));
        self.declined = declined;
        self.set_plan(plan, Some(measured));
        (self, new)
    }

    /// Replays its decisions, and measures what is then sent.
    pub(super) async fn replayed(mut self) -> Result<Self, FailOpen> {
        let prepared = self.prepared.clone();
        prepared
            .off_thread(move |prepared| {
                let mut plan = plan::replay(&prepared.plan_request(), &self.known);
                let measured = prepared.measure(&plan.sent, &self.known, self.anchor.as_deref());
                prepared.fit_output(&mut plan, &self.known, &measured);
                self.set_plan(plan, Some(measured));
                self
            })
            .await
    }

    fn set_plan(&mut self, mut plan: Plan, measured: Option<Box<MeasuredEstimate>>) {
        // The summary has as many of them as are stored.
        let mut steps = std::mem::take(&mut plan.steps);
        steps.extend(self.declined.iter().cloned());
        let by_rules = measured.as_ref().and_then(|measured| measured.removed);
        self.done = RewriteSummary { by_rules, ..self.prepared.rewrite_summary(&steps) };
        self.plan = plan;
        self.measured = measured;
    }

    pub(super) fn in_place_of(mut self, earlier: &Self) -> Self {
        if self.done.new.compacted > 0 {
            // The estimate before the summary is what the summary was decided by.
            self.compacted_from = earlier
                .compacted_from
                .or_else(|| earlier.measured.as_ref().map(|measured| measured.estimate.tokens));
        }
        self
    }

    /// Leaves it unchanged, as shadow mode does. Returns the reason if the original could not be measured.
    pub(super) async fn set_shadow(&mut self) -> Option<FailOpen> {
        // The summary is of the plan; what is sent and measured is the original.
        if self.plan.edits.is_empty() && self.plan.sent.is_original() {
            return None;
        }
        self.plan.edits.clear();
        self.set_sent_as_original().await
    }

    pub(crate) fn beta(&self) -> Option<&'static str> {
        // Only the provider's own block needs a beta, and only while it is sent.
        let is_anthropic = self.prepared.conversation.dialect == Dialect::Anthropic;
        let is_block = self.plan.summary == Some(SummaryAuthor::Provider);
        let needs_beta = is_anthropic && is_block && !self.plan.edits.is_empty();
        if needs_beta { Some(provider::BETA) } else { None }
    }

    pub(crate) async fn without_own_decisions(&self, cause: RefusalCause) -> Option<Self> {
        let prepared = &self.prepared;
        let mut decisions = RecordedDecisions::clone(&self.before);
        if !cause.is_of_what_is_new() {
            decisions.take_births(&self.known, &prepared.info.exchange);
        }
        // As earlier requests of its branch were sent: without its own decisions that may be to blame.
        if prepared.mode != Mode::Active {
            return None;
        }
        if cause == RefusalCause::Bound {
            decisions.drop_cuts_before_returned_reasoning(&prepared.plan_request());
        }
        // Neither what was refused nor the original is sent again.
        let replanned = self.replanned(decisions).await?;
        let is_new = replanned.plan.edits != self.plan.edits && !replanned.plan.edits.is_empty();
        is_new.then_some(replanned)
    }

    /// The keys of decisions made for it that `other` does not have.
    pub(crate) fn decided_beyond(&self, other: Option<&Self>) -> Vec<PartKey> {
        let exchange = &self.prepared.info.exchange;
        let decided = self.known.decided_by(exchange);
        let shared = other.map(|other| other.known.decided_by(exchange)).unwrap_or_default();
        let mut beyond: Vec<PartKey> = decided.difference(&shared).copied().collect();
        // A set has no order, and what is stored of it should have one.
        beyond.sort_unstable();
        beyond
    }

    pub(crate) async fn as_cached(&self) -> Option<Self> {
        // The provider has parts cached that were sent before: new cuts of them would miss the cache.
        let decisions = Arc::new(self.known.as_cached(&self.prepared.info.exchange)?);
        let cached = Self::from_decisions(self.prepared.clone(), decisions, self.anchor.clone());
        let cached = cached.replayed().await.ok()?;
        if cached.plan.conflict { None } else { Some(cached) }
    }

    pub(crate) async fn add_saved(&mut self, facts: Vec<Fact>) -> bool {
        let mut decisions = RecordedDecisions::clone(&self.known);
        decisions.add(facts);
        self.replan_with(decisions).await
    }

    pub(crate) async fn replan_with(&mut self, known: RecordedDecisions) -> bool {
        match self.replanned(known).await {
            Some(planned) => {
                *self = planned;
                true
            }
            None => false,
        }
    }

    async fn replanned(&self, mut decisions: RecordedDecisions) -> Option<Self> {
        decisions.drop_cuts_that_void_reasoning(&self.prepared.plan_request());
        let prepared = self.prepared.clone();
        let replanned = Self {
            before: self.before.clone(),
            declined: self.declined.clone(),
            ..Self::from_decisions(prepared, Arc::new(decisions), self.anchor.clone())
        };
        let replanned = replanned.replayed().await.ok()?;
        if replanned.plan.conflict { None } else { Some(replanned.in_place_of(self)) }
    }

    pub(crate) fn add_declined(&mut self, step: PlanStep) {
        // What a turn stores has a limit; a new plan begins with all of them.
        if self.done.steps.len() < MOST_STORED_STEPS {
            self.done.steps.push(step.clone());
        }
        self.declined.push(step);
    }

    pub(crate) async fn alone(prepared: &Arc<PreparedRequest>) -> Result<Estimate, FailOpen> {
        estimate(prepared, plan::original_overlay(&prepared.plan_request()), &Arc::default()).await
    }

    pub(crate) fn prospect(&self) -> Option<CarryOutlook> {
        // It predicts what the next request will contain of its turn.
        let prepared = &self.prepared;
        let rewrites = prepared.may_rewrite() && self.done.resent.is_none();
        let measured = self.measured.as_ref()?;
        let limits = self.limits();
        Some(CarryOutlook::new(&prepared.plan_request(), measured, self.anchor(), rewrites, limits))
    }

    fn limits(&self) -> WindowLimits {
        let decides = self.prepared.may_decide();
        WindowLimits::new(&self.prepared.plan_request(), decides, self.known.client_compacted)
    }

    pub(crate) fn part_sums(&self) -> PartSums {
        let parts = self.measured.as_ref().map_or(&[][..], |measured| &measured.parts);
        PartSums::new(parts, self.anchor())
    }

    fn anchor(&self) -> Option<Anchor<'_>> {
        self.anchor.as_deref().map(AnchorTurn::as_anchor)
    }

    pub(crate) fn view(&self) -> Option<ContextView> {
        let MeasuredEstimate { estimate, contents, .. } = &**self.measured.as_ref()?;
        let anchor = self.anchor.as_ref().map(|anchor| &*anchor.turn);
        let RequestInfo { model, reserve, .. } = &*self.prepared.info;
        let mut view = ContextView::before(estimate, model.window, *reserve, anchor, &self.done);
        view.rewriting.summary_by = self.plan.summary;
        view.rewriting.compacted_from = self.compacted_from;
        let view = view.with(Some(self.limits()));
        Some(view.made_of(Some(&contents.clone().with_few_tools())))
    }

    /// Measures the original. Returns the reason if it could not be measured.
    pub(crate) async fn set_sent_as_original(&mut self) -> Option<FailOpen> {
        self.plan.sent = plan::original_overlay(&self.prepared.plan_request());
        let sent = self.plan.sent.clone();
        let anchor = self.anchor.clone();
        // Nothing is decided for it, so nothing recorded is in it.
        let measuring = self.prepared.off_thread(move |prepared| {
            prepared.measure(&sent, &RecordedDecisions::default(), anchor.as_deref())
        });
        match measuring.await {
            Ok(measured) => {
                self.measured = Some(measured);
                None
            }
            Err(why) => {
                self.measured = None;
                Some(why)
            }
        }
    }
}

/// The estimate of a request in this form, without an earlier turn.
///
/// # Errors
/// The reason why there is none.
pub(crate) async fn estimate(
    prepared: &Arc<PreparedRequest>,
    sent: Overlay,
    decisions: &Arc<RecordedDecisions>,
) -> Result<Estimate, FailOpen> {
    load_vocabulary(prepared.info.model.family);
    let decisions = decisions.clone();
    prepared.off_thread(move |prepared| prepared.measure(&sent, &decisions, None).estimate).await
}
