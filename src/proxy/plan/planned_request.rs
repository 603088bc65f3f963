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
    self, MOST_STORED_STEPS, Overlay, Plan, PlanStep, RecordedDecisions, RewriteSummary,
};
use crate::context::policy::SummaryAuthor;
use crate::context::{Estimate, ExchangeId, Fact, Millis, inject, prune, reasoning, repair};
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::summary::provider;
use crate::dialect::{Dialect, PartKey};
use crate::proxy::offload::off_thread;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::{AnchorTurn, DecisionError, OpenedSession};
use crate::telemetry::FailOpen;
use crate::tokens::bpe;
use crate::wire::splice::Edit;

/// A request with its plan and what it costs.
#[derive(Clone, Default)]
pub(crate) struct PlannedRequest {
    /// The edits of the body; none in shadow mode. They stay here once they are sent, because a retry begins
    /// with them.
    pub(crate) edits: Arc<[Edit]>,
    /// The estimate of what is sent; `None` if measuring panicked.
    pub(crate) measured: Option<Box<MeasuredEstimate>>,
    /// What is sent in place of what the client sent.
    pub(crate) sent: Overlay,
    /// The recorded decisions, including new ones.
    pub(crate) known: Arc<RecordedDecisions>,
    /// The recorded decisions before new ones were made.
    before: Arc<RecordedDecisions>,
    /// Who wrote the summary that is sent.
    summary_by: Option<SummaryAuthor>,
    /// What was decided against.
    refused: Vec<PlanStep>,
    /// The turn that the estimate is based on.
    anchor: Option<Arc<AnchorTurn>>,
    pub(crate) done: RewriteSummary,
    /// The ids of the queued messages that it took.
    pub(crate) dequeued: Vec<Box<str>>,
    /// Why part of the plan was left out.
    pub(crate) fail_open: Option<FailOpen>,
    /// The output limit is lowered, because another request was refused for it.
    pub(crate) is_spared: bool,
}

/// The changes of a plan.
pub(crate) struct PlannedRewrite {
    /// The body, decompressed.
    pub(crate) plain: Bytes,
    /// The edits.
    pub(crate) edits: Arc<[Edit]>,
    /// The beta that the head has to list.
    pub(crate) beta: Option<&'static str>,
}

/// Plans a request: replays, proposes, saves, and replays again with the new decisions. Also returns the
/// messages that it injects, which are queued again if they are not delivered.
pub(crate) async fn plan(
    proxy: &Arc<Proxy>,
    prepared: Arc<PreparedRequest>,
    opened: &mut OpenedSession,
) -> (PlannedRequest, Option<UndeliveredMessages>) {
    load_vocabulary(prepared.model.family);
    let anchor = opened.anchor.take().map(Arc::new);
    let size = prepared.body.len();
    let mut known = std::mem::take(&mut opened.known);
    known.spares_reasoning(&prepared.request());
    let known = Arc::new(known);
    let drafted = {
        let (prepared, known, anchor) = (prepared.clone(), known.clone(), anchor.clone());
        off_thread(size, move || draft_plan(&prepared, &known, anchor.as_deref())).await
    };
    let drafted = match drafted {
        Ok(drafted) => drafted,
        Err(why) => {
            return (PlannedRequest::unplanned(why), None);
        }
    };
    let DraftPlan { mut plan, mut measured, new, refused, mut is_spared } = drafted;
    let before = known.clone();
    let (mut fail_open, mut known, mut dequeued) = (None, known, Vec::new());
    let mut undelivered = UndeliveredMessages::of(proxy, opened, &known, &prepared.exchange);
    if !new.is_empty() {
        // Boxed, because few requests decide anything and the future is large.
        let saved = Box::pin(save(proxy, opened, new, known.suspended)).await;
        let saved = saved.unwrap_or_else(|error| {
            fail_open = Some(match error {
                DecisionError::TooMany => FailOpen::Decisions,
                DecisionError::Store(_) => FailOpen::Store,
            });
            is_spared = false;
            Vec::new()
        });
        dequeued = inject::injected_ids(&saved, &prepared.exchange);
        Arc::make_mut(&mut known).add(saved);
        let with_dequeued = UndeliveredMessages::of(proxy, opened, &known, &prepared.exchange);
        std::mem::replace(&mut undelivered, with_dequeued)
            .into_iter()
            .for_each(UndeliveredMessages::end);
        let replayed = Box::pin(replay(&prepared, &known, anchor.as_ref())).await;
        let Some(replayed) = replayed else {
            return (PlannedRequest::unplanned(FailOpen::Panicked), None);
        };
        (plan, measured) = replayed;
    }
    if plan.conflict {
        fail_open = Some(FailOpen::EditsConflict);
    }
    let mut planned = PlannedRequest {
        known,
        before,
        refused,
        anchor,
        dequeued,
        fail_open,
        is_spared,
        ..PlannedRequest::default()
    };
    planned.set_plan(&prepared, plan, measured);
    let is_changed = !planned.edits.is_empty() || !planned.sent.is_as_it_came();
    if prepared.mode == Mode::Shadow && is_changed {
        planned.edits = Arc::default();
        planned.set_sent_as_it_came(&prepared).await;
    }
    (planned, undelivered)
}

/// The plan made from recorded decisions, and the new decisions that are proposed.
struct DraftPlan {
    plan: Plan,
    measured: Box<MeasuredEstimate>,
    new: Vec<Fact>,
    refused: Vec<PlanStep>,
    /// The output limit is lowered, because another request was refused for it.
    is_spared: bool,
}

/// Replays the recorded decisions, and proposes new ones. Saves nothing.
fn draft_plan(
    prepared: &PreparedRequest,
    known: &RecordedDecisions,
    anchor: Option<&AnchorTurn>,
) -> DraftPlan {
    let request = prepared.request();
    let (mut new, mut refused) = match prepared.may_decide() {
        true => reasoning::propose(&request, known),
        false => Default::default(),
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
        let (cuts, not) = prune::propose(&request, &with, prepared.cost(&measured));
        new.extend(cuts.into_iter().filter(|fact| known.may_decide(fact)));
        refused.extend(not);
    }
    new.extend(inject::propose(&request, &with));
    DraftPlan { plan, measured, new, refused, is_spared }
}

/// Starts loading the vocabulary, which takes about 30 ms; until then, counting is by length.
fn load_vocabulary(family: Family) {
    if bpe::is_wanted(family) {
        drop(tokio::task::spawn_blocking(move || bpe::load(family)));
    }
}

/// Saves decisions before they are sent, for a branch that was last suspended at `suspended`.
pub(crate) async fn save(
    proxy: &Proxy,
    opened: &OpenedSession,
    new: Vec<Fact>,
    suspended: Option<Millis>,
) -> Result<Vec<Fact>, DecisionError> {
    let timeout = Duration::from_millis(proxy.config.limits.save_ms);
    let trims: Vec<PartKey> = new.iter().filter_map(trimmed).collect();
    let new = opened.after_suspension(new, suspended);
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
async fn replay(
    prepared: &Arc<PreparedRequest>,
    known: &Arc<RecordedDecisions>,
    anchor: Option<&Arc<AnchorTurn>>,
) -> Option<(Plan, Box<MeasuredEstimate>)> {
    let (size, prepared) = (prepared.body.len(), prepared.clone());
    let (known, anchor) = (known.clone(), anchor.cloned());
    let replaying = move || {
        let mut plan = plan::replay(&prepared.request(), &known);
        let measured = prepared.measure(&plan.sent, &known, anchor.as_deref());
        prepared.fit_output(&mut plan, &known, &measured);
        (plan, measured)
    };
    off_thread(size, replaying).await.ok()
}

impl PlannedRequest {
    /// A request without a plan: it is sent as it came.
    fn unplanned(why: FailOpen) -> Self {
        Self { fail_open: Some(why), ..Self::default() }
    }

    fn set_plan(
        &mut self,
        prepared: &PreparedRequest,
        plan: Plan,
        measured: Box<MeasuredEstimate>,
    ) {
        let mut steps = plan.steps;
        steps.extend(self.refused.iter().cloned());
        self.done = prepared.rewrite_summary(&steps);
        (self.edits, self.sent, self.measured) = (plan.edits.into(), plan.sent, Some(measured));
        self.summary_by = plan.summary;
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
            known.takes_births(&self.known, &prepared.exchange);
        }
        let decided = |known: &RecordedDecisions| known.decided_by(&prepared.exchange);
        if prepared.mode != Mode::Active || decided(&known) == decided(&self.known) {
            return None;
        }
        // If it cannot be planned again, there is nothing else to send.
        let mut planned = Self { edits: Arc::default(), ..self.clone() };
        planned.replan_with(prepared, known).await;
        (!planned.edits.is_empty()).then_some(planned)
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
        let (plan, measured) = replay(prepared, &known, self.anchor.as_ref()).await?;
        let mut cached = Self { known, anchor: self.anchor.clone(), ..Self::default() };
        let is_whole = !plan.conflict;
        cached.set_plan(prepared, plan, measured);
        is_whole.then_some(cached)
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
        mut known: RecordedDecisions,
    ) -> bool {
        known.spares_reasoning(&prepared.request());
        let known = Arc::new(known);
        let replayed = replay(prepared, &known, self.anchor.as_ref()).await;
        let Some((plan, measured)) = replayed.filter(|(plan, _)| !plan.conflict) else {
            return false;
        };
        self.known = known;
        self.set_plan(prepared, plan, measured);
        true
    }

    /// Records a step that was decided against.
    pub(crate) fn add_refused(&mut self, step: PlanStep) {
        if self.done.steps.len() < MOST_STORED_STEPS {
            self.done.steps.push(step.clone());
        }
        self.refused.push(step);
    }

    /// The plan of a request that can no longer be changed.
    pub(crate) async fn as_it_came(
        prepared: &Arc<PreparedRequest>,
        opened: &mut OpenedSession,
    ) -> Self {
        load_vocabulary(prepared.model.family);
        let (anchor, size) = (opened.anchor.take().map(Arc::new), prepared.body.len());
        let sent = plan::as_it_came(&prepared.request());
        let measured = {
            let (prepared, sent, anchor) = (prepared.clone(), sent.clone(), anchor.clone());
            let measure =
                move || prepared.measure(&sent, &RecordedDecisions::default(), anchor.as_deref());
            off_thread(size, measure).await.ok()
        };
        let done = prepared.rewrite_summary(&[]);
        Self { measured, sent, anchor, done, ..Self::default() }
    }

    /// The estimate of a request by itself, without its session.
    pub(crate) async fn alone(prepared: &Arc<PreparedRequest>) -> Option<Estimate> {
        estimate(prepared, plan::as_it_came(&prepared.request()), &Arc::default()).await
    }

    /// What has to be kept of the sent request to predict what the next one will contain of its turn.
    pub(crate) fn prospect(&self, prepared: &PreparedRequest) -> Option<CarryOutlook> {
        let rewrites = prepared.may_rewrite() && self.done.resent.is_none();
        let measured = self.measured.as_ref()?;
        let limits = WindowLimits::of(&prepared.request(), prepared.may_decide());
        Some(CarryOutlook::new(&prepared.request(), measured, self.anchor(), rewrites, limits))
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
        let limits = WindowLimits::of(&prepared.request(), prepared.may_decide());
        let mut view = ContextView::before(estimate, window, reserve, anchor, &self.done);
        view.rewriting.summary_by = self.summary_by;
        Some(view.with(Some(limits)).made_of(Some(&contents.clone().with_few_tools())))
    }

    /// The plan of a request that is not a turn: earlier decisions are replayed, and nothing is decided or
    /// measured.
    pub(crate) async fn replayed(
        prepared: &Arc<PreparedRequest>,
        known: Arc<RecordedDecisions>,
    ) -> Self {
        let replay = {
            let (prepared, known) = (prepared.clone(), known.clone());
            move || plan::replay(&prepared.request(), &known)
        };
        let plan = match off_thread(prepared.body.len(), replay).await {
            Ok(plan) => plan,
            Err(why) => return Self::unplanned(why),
        };
        let done = prepared.rewrite_summary(&plan.steps);
        let is_shadow = prepared.mode == Mode::Shadow;
        let edits = if is_shadow { Arc::default() } else { plan.edits.into() };
        let fail_open = plan.conflict.then_some(FailOpen::EditsConflict);
        let summary_by = plan.summary;
        let sent = match prepared.mode {
            Mode::Shadow => plan::as_it_came(&prepared.request()),
            Mode::Observe | Mode::Active => plan.sent,
        };
        Self { edits, sent, known, done, summary_by, fail_open, ..Self::default() }
    }

    /// Records that the original is sent instead of the rewritten request, and measures it.
    pub(crate) async fn set_sent_as_it_came(&mut self, prepared: &Arc<PreparedRequest>) {
        self.sent = plan::as_it_came(&prepared.request());
        let measure = {
            let (prepared, sent, anchor) =
                (prepared.clone(), self.sent.clone(), self.anchor.clone());
            move || prepared.measure(&sent, &RecordedDecisions::default(), anchor.as_deref())
        };
        self.measured = off_thread(prepared.body.len(), measure).await.ok();
    }
}

/// The estimate of a request in this form, without an earlier turn.
pub(crate) async fn estimate(
    prepared: &Arc<PreparedRequest>,
    sent: Overlay,
    known: &Arc<RecordedDecisions>,
) -> Option<Estimate> {
    load_vocabulary(prepared.model.family);
    let measure = {
        let (prepared, known) = (prepared.clone(), known.clone());
        move || prepared.measure(&sent, &known, None).estimate
    };
    off_thread(prepared.body.len(), measure).await.ok()
}
