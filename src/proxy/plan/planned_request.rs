//! The plan of one request: recorded decisions are replayed, new ones proposed and saved
//! (`docs/architecture.md` "Life of a request").
//!
//! Nothing is sent that is not saved. If the store fails or is slow, only the new decisions are lost. Large
//! bodies are planned off the async threads.

mod repaired;
mod room;

pub(crate) use self::repaired::RepairedPlan;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::undelivered::UndeliveredMessages;
use crate::config::Mode;
use crate::context::budget::{Anchor, CarryOutlook, ContextView, MeasuredEstimate, WindowLimits};
use crate::context::overflow::PartSums;
use crate::context::plan::{
    self, MOST_STORED_STEPS, Overlay, Plan, PlanStep, Proposal, RecordedDecisions, RewriteSummary,
};
use crate::context::policy::SummaryAuthor;
use crate::context::{DecisionEpoch, Estimate, ExchangeId, Fact, inject, prune, reasoning, repair};
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::summary::provider;
use crate::dialect::{Dialect, PartKey};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::{AnchorTurn, DecisionError, OpenedSession};
use crate::telemetry::FailOpen;
use crate::tokens::bpe;
use crate::wire::splice::Edit;

/// A request with its plan and what it costs.
#[derive(Clone)]
pub(crate) struct PlannedRequest {
    /// The edits of the body; none in shadow mode. They stay here once they are sent, because a retry begins
    /// with them.
    pub(crate) edits: Arc<[Edit]>,
    /// The estimate of what is sent; `None` if it could not be measured.
    pub(crate) measured: Option<Box<MeasuredEstimate>>,
    /// What is sent in place of what the client sent.
    pub(crate) sent: Overlay,
    /// The recorded decisions, including new ones.
    pub(crate) known: Arc<RecordedDecisions>,
    /// The recorded decisions before new ones were made.
    before: Arc<RecordedDecisions>,
    /// Who wrote the summary that is sent.
    summary_by: Option<SummaryAuthor>,
    /// The tokens that its new summary was decided by.
    compacted_from: Option<u64>,
    /// What was decided against.
    pub(crate) declined: Vec<PlanStep>,
    /// The turn that the estimate is based on.
    anchor: Option<Arc<AnchorTurn>>,
    pub(crate) done: RewriteSummary,
}

/// The result of planning a request.
pub(crate) struct PlanOutcome {
    pub(crate) planned: PlannedRequest,
    /// The ids of the queued messages that it took.
    pub(crate) dequeued: Vec<Box<str>>,
    /// The messages that it injects. They are queued again if they are not delivered.
    pub(crate) undelivered: Option<UndeliveredMessages>,
    /// Why part of the plan was left out.
    pub(crate) fail_open: Option<FailOpen>,
    /// The output limit is lowered, because another request was refused for it.
    pub(crate) is_spared: bool,
}

/// What a request is planned from.
struct PlanBasis {
    /// The recorded decisions, including new ones.
    known: Arc<RecordedDecisions>,
    /// The recorded decisions before new ones were made.
    before: Arc<RecordedDecisions>,
    /// What was decided against.
    declined: Vec<PlanStep>,
    /// The turn that the estimate is based on.
    anchor: Option<Arc<AnchorTurn>>,
}

/// A plan, and the estimate of the request as planned.
struct MeasuredPlan {
    plan: Plan,
    /// `None` if it was not measured.
    measured: Option<Box<MeasuredEstimate>>,
}

/// A plan in shadow mode.
struct ShadowPlan {
    planned: PlannedRequest,
    /// Why the original could not be measured, if so.
    unmeasured: Option<FailOpen>,
}

/// The changes of a plan.
#[derive(Clone)]
pub(crate) struct PlannedRewrite {
    /// The body, decompressed.
    pub(crate) plain: Bytes,
    /// The edits.
    pub(crate) edits: Arc<[Edit]>,
    /// The beta that the head has to list.
    pub(crate) beta: Option<&'static str>,
}

/// Plans a request: replays, proposes, saves, and replays again with the new decisions.
pub(crate) async fn plan(
    proxy: &Arc<Proxy>,
    prepared: Arc<PreparedRequest>,
    opened: &mut OpenedSession,
) -> PlanOutcome {
    load_vocabulary(prepared.model.family);
    let anchor = opened.anchor.take().map(Arc::new);
    let mut known = std::mem::take(&mut opened.known);
    Arc::make_mut(&mut known).drop_cuts_that_void_reasoning(&prepared.plan_request());
    let drafted = {
        let (known, anchor) = (known.clone(), anchor.clone());
        prepared.off_thread(move |prepared| draft_plan(prepared, &known, anchor.as_deref())).await
    };
    let drafted = match drafted {
        Ok(drafted) => drafted,
        Err(why) => return PlanOutcome::unplanned(why),
    };
    let DraftPlan { mut replayed, new, declined, mut is_spared } = drafted;
    let before = known.clone();
    let (mut fail_open, mut known, mut dequeued) = (None, known, Vec::new());
    let mut undelivered = UndeliveredMessages::of(proxy, opened, &known, &prepared.exchange);
    if !new.is_empty() {
        let carried = inject::carried_ids(&new);
        // Boxed, because few requests decide anything and the future is large.
        let saved = Box::pin(save(proxy, opened, new, known.epoch)).await;
        let saved = saved.unwrap_or_else(|error| {
            fail_open = Some(match error {
                DecisionError::TooMany => FailOpen::Decisions,
                DecisionError::Store(_) => FailOpen::Store,
            });
            is_spared = false;
            Vec::new()
        });
        dequeued = inject::injected_ids(&saved, &prepared.exchange);
        if !saved.is_empty() {
            dequeued.extend(carried);
        }
        Arc::make_mut(&mut known).add(saved);
        let with_dequeued = UndeliveredMessages::of(proxy, opened, &known, &prepared.exchange);
        std::mem::replace(&mut undelivered, with_dequeued)
            .into_iter()
            .for_each(UndeliveredMessages::end);
        let replanned = Box::pin(replay(&prepared, &known, anchor.as_ref())).await;
        replayed = match replanned {
            Ok(replanned) => replanned,
            Err(why) => return PlanOutcome::unplanned(why),
        };
    }
    if replayed.plan.conflict {
        fail_open = Some(FailOpen::EditsConflict);
    }
    let basis = PlanBasis { known, before, declined, anchor };
    let planned = match prepared.mode {
        Mode::Shadow => {
            let shadow = Box::pin(PlannedRequest::in_shadow(&prepared, basis, replayed)).await;
            fail_open = shadow.unmeasured.or(fail_open);
            shadow.planned
        }
        Mode::Observe | Mode::Active => PlannedRequest::new(&prepared, basis, replayed),
    };
    PlanOutcome { planned, dequeued, undelivered, fail_open, is_spared }
}

/// The plan of a request that can no longer be changed.
pub(crate) async fn planned_original(
    prepared: &Arc<PreparedRequest>,
    opened: &mut OpenedSession,
) -> PlanOutcome {
    load_vocabulary(prepared.model.family);
    let anchor = opened.anchor.take().map(Arc::new);
    let sent = plan::original_overlay(&prepared.plan_request());
    let measured = measure_original(prepared, sent.clone(), anchor.clone()).await;
    let (measured, unmeasured) = ok_or_why(measured);
    let plan = Plan { sent, ..Plan::default() };
    let basis = PlanBasis::recorded(Arc::default(), anchor);
    let planned = PlannedRequest::new(prepared, basis, MeasuredPlan { plan, measured });
    PlanOutcome::of(planned, unmeasured)
}

/// The plan of a request that is not a turn: earlier decisions are replayed, and nothing is decided or
/// measured.
pub(crate) async fn replay_recorded(
    prepared: &Arc<PreparedRequest>,
    known: Arc<RecordedDecisions>,
) -> PlanOutcome {
    let replay = {
        let known = known.clone();
        move |prepared: &PreparedRequest| plan::replay(&prepared.plan_request(), &known)
    };
    let mut plan = match prepared.off_thread(replay).await {
        Ok(plan) => plan,
        Err(why) => return PlanOutcome::unplanned(why),
    };
    if prepared.mode == Mode::Shadow {
        plan.edits = Vec::new();
        plan.sent = plan::original_overlay(&prepared.plan_request());
    }
    let fail_open = plan.conflict.then_some(FailOpen::EditsConflict);
    let basis = PlanBasis::recorded(known, None);
    let planned = PlannedRequest::new(prepared, basis, MeasuredPlan { plan, measured: None });
    PlanOutcome::of(planned, fail_open)
}

/// The plan made from recorded decisions, and the new decisions that are proposed.
struct DraftPlan {
    replayed: MeasuredPlan,
    new: Vec<Fact>,
    declined: Vec<PlanStep>,
    /// The output limit is lowered, because another request was refused for it.
    is_spared: bool,
}

/// Replays the recorded decisions, and proposes new ones. Saves nothing.
fn draft_plan(
    prepared: &PreparedRequest,
    known: &RecordedDecisions,
    anchor: Option<&AnchorTurn>,
) -> DraftPlan {
    let request = prepared.plan_request();
    let Proposal { facts: mut new, mut declined } = match prepared.may_decide() {
        true => reasoning::propose(&request, known),
        false => Proposal::default(),
    };
    new.retain(|fact| known.may_decide(fact));
    let spare = prepared.max_output.filter(|_| prepared.may_decide() && prepared.may_rewrite());
    let spare = spare.and_then(|most| repair::spare(&request, known, most));
    let is_spared = spare.is_some();
    new.extend(spare);
    let mut with = Cow::Borrowed(known);
    if !new.is_empty() {
        with.to_mut().add(new.iter().cloned());
    }
    let mut plan = plan::replay(&request, &with);
    let measured = prepared.measure(&plan.sent, &with, anchor);
    prepared.fit_output(&mut plan, &with, &measured);
    if prepared.may_decide() {
        let cuts = prune::propose(&request, &with, prepared.cost(&measured));
        new.extend(cuts.facts.into_iter().filter(|fact| known.may_decide(fact)));
        declined.extend(cuts.declined);
    }
    new.extend(inject::propose(&request, &with));
    DraftPlan {
        replayed: MeasuredPlan { plan, measured: Some(measured) },
        new,
        declined,
        is_spared,
    }
}

/// Starts loading the vocabulary, which takes about 30 ms; until then, counting is by length.
fn load_vocabulary(family: Family) {
    if bpe::is_wanted(family) {
        drop(tokio::task::spawn_blocking(move || bpe::load(family)));
    }
}

/// Saves decisions before they are sent, for a branch of this epoch.
pub(crate) async fn save(
    proxy: &Proxy,
    opened: &OpenedSession,
    new: Vec<Fact>,
    epoch: Option<DecisionEpoch>,
) -> Result<Vec<Fact>, DecisionError> {
    let timeout = Duration::from_millis(proxy.config.limits.store_ms);
    let trims: Vec<PartKey> = new.iter().filter_map(trimmed).collect();
    let new = opened.after_suspension(new, epoch);
    let mut saved = proxy.ledgers.decide(opened, new, timeout).await?;
    // Another branch may have cleared the result once it was read there. In this branch nobody has read it.
    saved.retain(|fact| {
        let Fact::Cut(cut) = fact else { return true };
        cut.is_trim() || !trims.contains(&cut.about)
    });
    Ok(saved)
}

/// The result that is trimmed when it is first sent.
fn trimmed(fact: &Fact) -> Option<PartKey> {
    let Fact::Cut(cut) = fact else { return None };
    cut.is_trim().then_some(cut.about)
}

/// Replays with the decisions that are known now.
///
/// # Errors
/// The reason why it was not done.
async fn replay(
    prepared: &Arc<PreparedRequest>,
    known: &Arc<RecordedDecisions>,
    anchor: Option<&Arc<AnchorTurn>>,
) -> Result<MeasuredPlan, FailOpen> {
    let (known, anchor) = (known.clone(), anchor.cloned());
    let replaying = move |prepared: &PreparedRequest| {
        let mut plan = plan::replay(&prepared.plan_request(), &known);
        let measured = prepared.measure(&plan.sent, &known, anchor.as_deref());
        prepared.fit_output(&mut plan, &known, &measured);
        MeasuredPlan { plan, measured: Some(measured) }
    };
    prepared.off_thread(replaying).await
}

/// The estimate of a request that is sent unchanged.
///
/// # Errors
/// The reason why there is none.
async fn measure_original(
    prepared: &Arc<PreparedRequest>,
    sent: Overlay,
    anchor: Option<Arc<AnchorTurn>>,
) -> Result<Box<MeasuredEstimate>, FailOpen> {
    let measure = move |prepared: &PreparedRequest| {
        prepared.measure(&sent, &RecordedDecisions::default(), anchor.as_deref())
    };
    prepared.off_thread(measure).await
}

/// A value, or the reason why there is none.
fn ok_or_why<T, E>(result: Result<T, E>) -> (Option<T>, Option<E>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    }
}

impl PlanOutcome {
    /// A request without a plan: it is sent unchanged.
    fn unplanned(why: FailOpen) -> Self {
        Self::of(PlannedRequest::unplanned(), Some(why))
    }

    /// A request for which nothing was decided.
    fn of(planned: PlannedRequest, fail_open: Option<FailOpen>) -> Self {
        Self { planned, dequeued: Vec::new(), undelivered: None, fail_open, is_spared: false }
    }
}

impl PlanBasis {
    /// Recorded decisions, for a request that makes none itself.
    fn recorded(known: Arc<RecordedDecisions>, anchor: Option<Arc<AnchorTurn>>) -> Self {
        Self { before: known.clone(), known, declined: Vec::new(), anchor }
    }
}

impl PlannedRequest {
    /// A request whose plan was replayed.
    fn new(prepared: &PreparedRequest, basis: PlanBasis, replayed: MeasuredPlan) -> Self {
        let PlanBasis { known, before, declined, anchor } = basis;
        let MeasuredPlan { plan, measured } = replayed;
        let Plan { edits, sent, mut steps, conflict: _, summary: summary_by } = plan;
        steps.extend(declined.iter().cloned());
        let by_rules = measured.as_ref().and_then(|measured| measured.removed);
        let done = RewriteSummary { by_rules, ..prepared.rewrite_summary(&steps) };
        Self {
            edits: edits.into(),
            measured,
            sent,
            known,
            before,
            summary_by,
            compacted_from: None,
            declined,
            anchor,
            done,
        }
    }

    /// The request in place of `earlier`, from which it was planned again.
    fn in_place_of(mut self, earlier: &Self) -> Self {
        if self.done.new.compacted > 0 {
            let decided = || Some(earlier.measured.as_ref()?.estimate.tokens);
            self.compacted_from = earlier.compacted_from.or_else(decided);
        }
        self
    }

    /// The same in shadow mode: the summary is of the plan, and the original is sent and measured.
    async fn in_shadow(
        prepared: &Arc<PreparedRequest>,
        basis: PlanBasis,
        replayed: MeasuredPlan,
    ) -> ShadowPlan {
        let MeasuredPlan { mut plan, mut measured } = replayed;
        let removed = measured.as_ref().and_then(|measured| measured.removed);
        let mut unmeasured = None;
        if !plan.edits.is_empty() || !plan.sent.is_original() {
            plan.edits = Vec::new();
            plan.sent = plan::original_overlay(&prepared.plan_request());
            let original =
                measure_original(prepared, plan.sent.clone(), basis.anchor.clone()).await;
            (measured, unmeasured) = ok_or_why(original);
        }
        let mut planned = Self::new(prepared, basis, MeasuredPlan { plan, measured });
        planned.done.by_rules = removed;
        ShadowPlan { planned, unmeasured }
    }

    /// A request without a plan: it is sent unchanged.
    fn unplanned() -> Self {
        Self {
            edits: Arc::default(),
            measured: None,
            sent: Overlay::default(),
            known: Arc::default(),
            before: Arc::default(),
            summary_by: None,
            compacted_from: None,
            declined: Vec::new(),
            anchor: None,
            done: RewriteSummary::default(),
        }
    }

    /// The beta that the head has to list for what is sent.
    pub(crate) fn beta(&self, prepared: &PreparedRequest) -> Option<&'static str> {
        let is_anthropic = prepared.conversation.dialect == Dialect::Anthropic;
        let is_block = self.summary_by == Some(SummaryAuthor::Provider);
        (is_anthropic && is_block && !self.edits.is_empty()).then_some(provider::BETA)
    }

    /// The changes of the body that the client sent; `None` if there are none.
    pub(crate) fn rewrite(&self, prepared: &PreparedRequest) -> Option<PlannedRewrite> {
        let (plain, edits) = (prepared.body.clone(), self.edits.clone());
        let beta = self.beta(prepared);
        (!edits.is_empty()).then_some(PlannedRewrite { plain, edits, beta })
    }

    /// The same request as earlier ones of its branch were sent: without its own decisions that may have
    /// caused a refusal with this `cause`. `None` if there are none, or if that is the original.
    pub(crate) async fn without_own_decisions(
        &self,
        prepared: &Arc<PreparedRequest>,
        cause: RefusalCause,
    ) -> Option<Self> {
        let mut known = RecordedDecisions::clone(&self.before);
        if !cause.is_of_what_is_new() {
            known.take_births(&self.known, &prepared.exchange);
        }
        let decided = |known: &RecordedDecisions| known.decided_by(&prepared.exchange);
        if prepared.mode != Mode::Active || decided(&known) == decided(&self.known) {
            return None;
        }
        // If it cannot be planned again, there is nothing else to send.
        self.replanned(prepared, known).await.filter(|planned| !planned.edits.is_empty())
    }

    /// The keys of decisions made for it that `other` does not have.
    pub(crate) fn decided_beyond(
        &self,
        other: Option<&Self>,
        exchange: &ExchangeId,
    ) -> Vec<PartKey> {
        let here = self.known.decided_by(exchange);
        let there = other.map(|other| other.known.decided_by(exchange)).unwrap_or_default();
        let mut beyond: Vec<PartKey> = here.difference(&there).copied().collect();
        beyond.sort_unstable();
        beyond
    }

    /// The request as the provider has it cached: without its new cuts of parts that were sent before. `None`
    /// if there are no such cuts.
    pub(crate) async fn as_cached(&self, prepared: &Arc<PreparedRequest>) -> Option<Self> {
        let known = Arc::new(self.known.as_cached(&prepared.exchange)?);
        let replayed = replay(prepared, &known, self.anchor.as_ref()).await.ok()?;
        let is_whole = !replayed.plan.conflict;
        let basis = PlanBasis::recorded(known, self.anchor.clone());
        is_whole.then(|| Self::new(prepared, basis, replayed))
    }

    /// Adds decisions that were saved meanwhile, and plans again; returns whether it did. A panic changes
    /// nothing.
    pub(crate) async fn add_saved(
        &mut self,
        prepared: &Arc<PreparedRequest>,
        facts: Vec<Fact>,
    ) -> bool {
        let mut known = RecordedDecisions::clone(&self.known);
        known.add(facts);
        self.replan_with(prepared, known).await
    }

    /// Plans again with these recorded decisions; returns whether it did.
    pub(crate) async fn replan_with(
        &mut self,
        prepared: &Arc<PreparedRequest>,
        known: RecordedDecisions,
    ) -> bool {
        let replanned = self.replanned(prepared, known).await;
        let is_replanned = replanned.is_some();
        replanned.into_iter().for_each(|planned| *self = planned);
        is_replanned
    }

    /// The request planned again with these recorded decisions; `None` if it cannot be.
    async fn replanned(
        &self,
        prepared: &Arc<PreparedRequest>,
        mut known: RecordedDecisions,
    ) -> Option<Self> {
        known.drop_cuts_that_void_reasoning(&prepared.plan_request());
        let known = Arc::new(known);
        let replayed = replay(prepared, &known, self.anchor.as_ref()).await.ok()?;
        if replayed.plan.conflict {
            return None;
        }
        let (before, declined) = (self.before.clone(), self.declined.clone());
        let basis = PlanBasis { known, before, declined, anchor: self.anchor.clone() };
        Some(Self::new(prepared, basis, replayed).in_place_of(self))
    }

    /// Records a step that was decided against.
    pub(crate) fn add_declined(&mut self, step: PlanStep) {
        if self.done.steps.len() < MOST_STORED_STEPS {
            self.done.steps.push(step.clone());
        }
        self.declined.push(step);
    }

    /// The estimate of a request by itself, without its session.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn alone(prepared: &Arc<PreparedRequest>) -> Result<Estimate, FailOpen> {
        estimate(prepared, plan::original_overlay(&prepared.plan_request()), &Arc::default()).await
    }

    /// What has to be kept of the sent request to predict what the next one will contain of its turn.
    pub(crate) fn prospect(&self, prepared: &PreparedRequest) -> Option<CarryOutlook> {
        let rewrites = prepared.may_rewrite() && self.done.resent.is_none();
        let measured = self.measured.as_ref()?;
        let limits = self.limits(prepared);
        Some(CarryOutlook::new(&prepared.plan_request(), measured, self.anchor(), rewrites, limits))
    }

    fn limits(&self, prepared: &PreparedRequest) -> WindowLimits {
        let decides = prepared.may_decide();
        WindowLimits::new(&prepared.plan_request(), decides, self.known.client_compacted)
    }

    /// The estimated tokens that were sent.
    pub(crate) fn part_sums(&self) -> PartSums {
        let parts = self.measured.as_ref().map_or(&[][..], |measured| &measured.parts);
        PartSums::of(parts, self.anchor())
    }

    /// The turn that the estimate is based on, and its sketch.
    fn anchor(&self) -> Option<Anchor<'_>> {
        self.anchor.as_ref().map(|at| Anchor { turn: &at.turn, sketch: &at.sketch })
    }

    /// The context as this request will make it.
    pub(crate) fn view(&self, prepared: &PreparedRequest) -> Option<ContextView> {
        let MeasuredEstimate { estimate, contents, .. } = &**self.measured.as_ref()?;
        let anchor = self.anchor.as_ref().map(|anchor| &*anchor.turn);
        let (window, reserve) = (prepared.model.window, prepared.reserve);
        let limits = self.limits(prepared);
        let mut view = ContextView::before(estimate, window, reserve, anchor, &self.done);
        view.rewriting.summary_by = self.summary_by;
        view.rewriting.compacted_from = self.compacted_from;
        Some(view.with(Some(limits)).made_of(Some(&contents.clone().with_few_tools())))
    }

    /// Records that the original is sent instead of the rewritten request, and measures it. Returns the reason
    /// if it could not be measured.
    pub(crate) async fn set_sent_as_original(
        &mut self,
        prepared: &Arc<PreparedRequest>,
    ) -> Option<FailOpen> {
        self.sent = plan::original_overlay(&prepared.plan_request());
        let measured = measure_original(prepared, self.sent.clone(), self.anchor.clone()).await;
        let (measured, unmeasured) = ok_or_why(measured);
        self.measured = measured;
        unmeasured
    }
}

/// The estimate of a request in this form, without an earlier turn.
///
/// # Errors
/// The reason why there is none.
pub(crate) async fn estimate(
    prepared: &Arc<PreparedRequest>,
    sent: Overlay,
    known: &Arc<RecordedDecisions>,
) -> Result<Estimate, FailOpen> {
    load_vocabulary(prepared.model.family);
    let known = known.clone();
    prepared.off_thread(move |prepared| prepared.measure(&sent, &known, None).estimate).await
}
