//! What is done to one request: recorded decisions replayed, new ones proposed and saved
//! (`docs/architecture.md` "Life of a request").
//!
//! Nothing is on the wire that is not saved; a store that fails or is slow costs the new decisions,
//! never the request. Large bodies are planned off the async threads.

mod repaired;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::undelivered::UndeliveredMessage;
use crate::config::Mode;
use crate::context::budget::{Anchor, CarryOutlook, ContextView, MeasuredEstimate, WindowLimits};
use crate::context::overflow::PartSums;
use crate::context::plan::{
    self, MOST_TOLD, Overlay, Plan, PlanStep, RecordedDecisions, RewriteSummary,
};
use crate::context::policy::SummaryAuthor;
use crate::context::{Estimate, ExchangeId, Fact, Millis, inject, prune, reasoning, repair};
use crate::dialect::models::Family;
use crate::dialect::overflow::Overflow;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::summary::provider;
use crate::dialect::{Dialect, PartKey};
use crate::proxy::offload::off_thread;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::{AnchorTurn as Grown, DecisionError, OpenedSession};
use crate::telemetry::FailOpen;
use crate::tokens::bpe;
use crate::wire::splice::Edit;

/// What is done, and what it costs.
#[derive(Clone, Default)]
pub(crate) struct PlannedRequest {
    /// The changes of bytes; none in shadow mode.
    pub(crate) edits: Vec<Edit>,
    /// As it is sent. Absent where measuring panicked.
    pub(crate) measured: Option<Box<MeasuredEstimate>>,
    /// What is sent in place of what came.
    pub(crate) sent: Overlay,
    /// What is known of its parts.
    pub(crate) known: Arc<RecordedDecisions>,
    /// What was known before anything was decided for it.
    before: Arc<RecordedDecisions>,
    /// Who wrote the summary that is sent.
    summary: Option<SummaryAuthor>,
    /// What was decided against.
    refused: Vec<PlanStep>,
    /// What it was measured from.
    anchor: Option<Arc<Grown>>,
    pub(crate) done: RewriteSummary,
    /// Queued words that it took.
    pub(crate) taken: Vec<Box<str>>,
    /// Where we stood aside.
    pub(crate) stood_aside: Option<FailOpen>,
    /// Less output is asked for, because another request was refused.
    pub(crate) is_spared: bool,
}

/// What a plan changes.
pub(crate) struct PlannedRewrite {
    /// The body without its encoding.
    pub(crate) plain: Bytes,
    /// The changes of its bytes.
    pub(crate) edits: Vec<Edit>,
    /// What the head has to list for it.
    pub(crate) beta: Option<&'static str>,
}

/// A first look: what is known makes a plan, and may call for more.
struct PlanOutcome {
    plan: Plan,
    measured: Box<MeasuredEstimate>,
    new: Vec<Fact>,
    refused: Vec<PlanStep>,
    /// Less output is asked for, because another request was refused.
    is_spared: bool,
}

fn look(
    prepared: &PreparedRequest,
    known: &RecordedDecisions,
    anchor: Option<&Grown>,
) -> PlanOutcome {
    let request = prepared.request();
    let (mut new, mut refused) = match prepared.may_decide() {
        true => reasoning::propose(&request, known),
        false => Default::default(),
    };
    new.retain(|fact| known.may_decide(fact));
    let spare = prepared.max_output.filter(|_| prepared.may_decide() && prepared.rewrites());
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
    PlanOutcome { plan, measured, new, refused, is_spared }
}

/// Has the vocabulary loaded, some 30 ms; until it is there, counting goes by length.
fn want_vocabulary(family: Family) {
    if bpe::is_wanted(family) {
        drop(tokio::task::spawn_blocking(move || bpe::load(family)));
    }
}

/// Plans a request: replay, propose, save, replay again what is new. Answers what it says beside, which waits
/// again where nobody hears it.
pub(crate) async fn plan(
    proxy: &Arc<Proxy>,
    prepared: Arc<PreparedRequest>,
    opened: &mut OpenedSession,
) -> (PlannedRequest, Option<UndeliveredMessage>) {
    want_vocabulary(prepared.model.family);
    let anchor = opened.anchor.take().map(Arc::new);
    let size = prepared.body.len();
    let mut known = std::mem::take(&mut opened.known);
    known.spares_reasoning(&prepared.request());
    let known = Arc::new(known);
    let looked = {
        let (prepared, known, anchor) = (prepared.clone(), known.clone(), anchor.clone());
        off_thread(size, move || look(&prepared, &known, anchor.as_deref())).await
    };
    let looked = match looked {
        Ok(looked) => looked,
        Err(why) => {
            return (PlannedRequest { stood_aside: Some(why), ..PlannedRequest::default() }, None);
        }
    };
    let PlanOutcome { mut plan, mut measured, new, refused, mut is_spared } = looked;
    let before = known.clone();
    let (mut stood_aside, mut known, mut taken) = (None, known, Vec::new());
    let mut undelivered = UndeliveredMessage::of(proxy, opened, &known, &prepared.exchange);
    if !new.is_empty() {
        // Few decide anything: the others' way is not made longer by it.
        let saved = Box::pin(save(proxy, opened, new, known.suspended)).await;
        let saved = saved.unwrap_or_else(|error| {
            stood_aside = Some(match error {
                DecisionError::TooMany => FailOpen::Decisions,
                DecisionError::Store(_) => FailOpen::Store,
            });
            is_spared = false;
            Vec::new()
        });
        taken = inject::taken(&saved, &prepared.exchange);
        Arc::make_mut(&mut known).add(saved);
        let with_taken = UndeliveredMessage::of(proxy, opened, &known, &prepared.exchange);
        std::mem::replace(&mut undelivered, with_taken)
            .into_iter()
            .for_each(UndeliveredMessage::end);
        let again = Box::pin(again(&prepared, &known, anchor.as_ref())).await;
        let Some(again) = again else {
            return (
                PlannedRequest {
                    stood_aside: Some(FailOpen::Panicked),
                    ..PlannedRequest::default()
                },
                None,
            );
        };
        (plan, measured) = again;
    }
    if plan.conflict {
        stood_aside = Some(FailOpen::EditsConflict);
    }
    let mut planned = PlannedRequest {
        known,
        before,
        refused,
        anchor,
        taken,
        stood_aside,
        is_spared,
        ..PlannedRequest::default()
    };
    planned.holds(&prepared, plan, measured);
    let is_changed = !planned.edits.is_empty() || !planned.sent.is_as_it_came();
    if prepared.mode == Mode::Shadow && is_changed {
        planned.is_sent_as_it_came(&prepared).await;
    }
    (planned, undelivered)
}

/// Keeps decisions before they reach the wire, of a thread that was `suspended` then.
pub(crate) async fn save(
    proxy: &Proxy,
    opened: &OpenedSession,
    new: Vec<Fact>,
    suspended: Option<Millis>,
) -> Result<Vec<Fact>, DecisionError> {
    let timeout = Duration::from_millis(proxy.config.limits.save_ms);
    proxy.ledgers.decide(opened, opened.after_suspension(new, suspended), timeout).await
}

/// Replays once more, with what is known by now.
async fn again(
    prepared: &Arc<PreparedRequest>,
    known: &Arc<RecordedDecisions>,
    anchor: Option<&Arc<Grown>>,
) -> Option<(Plan, Box<MeasuredEstimate>)> {
    let (size, prepared) = (prepared.body.len(), prepared.clone());
    let (known, anchor) = (known.clone(), anchor.cloned());
    let replay = move || {
        let mut plan = plan::replay(&prepared.request(), &known);
        let measured = prepared.measure(&plan.sent, &known, anchor.as_deref());
        prepared.fit_output(&mut plan, &known, &measured);
        (plan, measured)
    };
    off_thread(size, replay).await.ok()
}

impl PlannedRequest {
    /// The same request with room made in it, after its provider said that it does not fit: decided,
    /// saved, and replayed with what was decided before. `None` where there is nothing to cut, or it
    /// could not be saved.
    pub(crate) async fn with_room(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        said: Overflow,
    ) -> Option<Self> {
        if prepared.mode != Mode::Active || prepared.held_out {
            return None;
        }
        let measured = self.measured.clone()?;
        let new = {
            let (prepared, known) = (prepared.clone(), self.known.clone());
            off_thread(prepared.body.len(), move || {
                let cost = prepared.cost(&measured);
                prune::make_room(&prepared.request(), &known, cost, said)
            })
            .await
            .ok()?
        };
        if new.is_empty() {
            return None;
        }
        let saved = save(proxy, opened, new, self.known.suspended).await.ok()?;
        let mut known = self.known.clone();
        Arc::make_mut(&mut known).add(saved);
        let (plan, measured) = again(prepared, &known, self.anchor.as_ref()).await?;
        if plan.edits.is_empty() {
            return None;
        }
        Some(Self {
            edits: plan.edits,
            measured: Some(measured),
            sent: plan.sent,
            done: prepared.rewrite_summary(&plan.steps),
            summary: plan.summary,
            anchor: self.anchor.clone(),
            before: self.before.clone(),
            known,
            ..Self::default()
        })
    }

    fn holds(&mut self, prepared: &PreparedRequest, plan: Plan, measured: Box<MeasuredEstimate>) {
        let mut steps = plan.steps;
        steps.extend(self.refused.iter().cloned());
        self.done = prepared.rewrite_summary(&steps);
        (self.edits, self.sent, self.measured) = (plan.edits, plan.sent, Some(measured));
        self.summary = plan.summary;
    }

    /// What the head has to list for what is sent.
    pub(crate) fn beta(&self, prepared: &PreparedRequest) -> Option<&'static str> {
        let is_anthropic = prepared.conversation.dialect == Dialect::Anthropic;
        let is_block = self.summary == Some(SummaryAuthor::Provider);
        (is_anthropic && is_block && !self.edits.is_empty()).then_some(provider::BETA)
    }

    /// The same plan, with the edits that are gone from this one.
    pub(crate) async fn again(&self, prepared: &Arc<PreparedRequest>) -> Self {
        let mut planned = self.clone();
        planned.knows(prepared, RecordedDecisions::clone(&self.known)).await;
        planned
    }

    /// The same request as those before it were sent: without what was decided for it and a refusal
    /// that names `cause` may be due to. `None` where that is nothing, or the request as it came.
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
        // Its edits went out with it.
        let mut planned = Self { edits: Vec::new(), ..self.clone() };
        planned.knows(prepared, known).await;
        (!planned.edits.is_empty()).then_some(planned)
    }

    /// What was decided for it and is not in `other`: what that is kept by.
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

    /// What the provider's cache holds of it: the request without what it cut of what was sent before. `None`
    /// where that is itself.
    pub(crate) async fn as_cached(&self, prepared: &Arc<PreparedRequest>) -> Option<Self> {
        let known = Arc::new(self.known.as_cached(&prepared.exchange)?);
        let (plan, measured) = again(prepared, &known, self.anchor.as_ref()).await?;
        let mut cached = Self { known, anchor: self.anchor.clone(), ..Self::default() };
        let is_whole = !plan.conflict;
        cached.holds(prepared, plan, measured);
        is_whole.then_some(cached)
    }

    /// More was decided since it was planned: it is planned again. What panics changes nothing.
    pub(crate) async fn adds(&mut self, prepared: &Arc<PreparedRequest>, facts: Vec<Fact>) {
        let mut known = RecordedDecisions::clone(&self.known);
        known.add(facts);
        self.knows(prepared, known).await;
    }

    /// The same with all that is known by now.
    pub(crate) async fn knows(
        &mut self,
        prepared: &Arc<PreparedRequest>,
        mut known: RecordedDecisions,
    ) {
        known.spares_reasoning(&prepared.request());
        let known = Arc::new(known);
        let again = again(prepared, &known, self.anchor.as_ref()).await;
        if let Some((plan, measured)) = again.filter(|(plan, _)| !plan.conflict) {
            self.known = known;
            self.holds(prepared, plan, measured);
        }
    }

    /// Something was decided against.
    pub(crate) fn refuses(&mut self, step: PlanStep) {
        if self.done.steps.len() < MOST_TOLD {
            self.done.steps.push(step.clone());
        }
        self.refused.push(step);
    }

    /// Of a request that can no longer be changed.
    pub(crate) async fn as_it_came(
        prepared: &Arc<PreparedRequest>,
        opened: &mut OpenedSession,
    ) -> Self {
        want_vocabulary(prepared.model.family);
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

    /// What a request costs of which nothing is known beside itself.
    pub(crate) async fn alone(prepared: &Arc<PreparedRequest>) -> Option<Estimate> {
        estimate(prepared, plan::as_it_came(&prepared.request()), &Arc::default()).await
    }

    /// What has to be known of it, as it was sent, to say what the next request will hold of its turn.
    pub(crate) fn prospect(&self, prepared: &PreparedRequest) -> Option<CarryOutlook> {
        let rewrites = prepared.rewrites() && self.done.resent.is_none();
        let measured = self.measured.as_ref()?;
        let limits = WindowLimits::of(&prepared.request(), prepared.may_decide());
        Some(CarryOutlook::new(&prepared.request(), measured, self.anchor(), rewrites, limits))
    }

    /// How much was sent.
    pub(crate) fn part_sums(&self) -> PartSums {
        let parts = self.measured.as_ref().map_or(&[][..], |measured| &measured.parts);
        PartSums::of(parts, self.anchor())
    }

    /// The turn that it was measured from, and what that consisted of.
    fn anchor(&self) -> Option<Anchor<'_>> {
        self.anchor.as_ref().map(|at| Anchor { turn: &at.turn, sketch: &at.sketch })
    }

    /// What the context will be like.
    pub(crate) fn view(&self, prepared: &PreparedRequest) -> Option<ContextView> {
        let MeasuredEstimate { estimate, contents, .. } = &**self.measured.as_ref()?;
        let anchor = self.anchor.as_ref().map(|anchor| &*anchor.turn);
        let (window, reserve) = (prepared.model.window, prepared.reserve);
        let limits = WindowLimits::of(&prepared.request(), prepared.may_decide());
        let mut view = ContextView::before(estimate, window, reserve, anchor, &self.done);
        view.rewriting.summary_by = self.summary;
        Some(view.with(Some(limits)).made_of(Some(&contents.clone().with_few_tools())))
    }

    /// Of a request that is no turn: what was decided before is repeated, and nothing is decided or
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
            Err(why) => return Self { stood_aside: Some(why), ..Self::default() },
        };
        let done = prepared.rewrite_summary(&plan.steps);
        let edits = if prepared.mode == Mode::Shadow { Vec::new() } else { plan.edits };
        let stood_aside = plan.conflict.then_some(FailOpen::EditsConflict);
        let summary = plan.summary;
        let sent = match prepared.mode {
            Mode::Shadow => plan::as_it_came(&prepared.request()),
            Mode::Observe | Mode::Active => plan.sent,
        };
        Self { edits, sent, known, done, summary, stood_aside, ..Self::default() }
    }

    /// The original is sent in place of the rewrite.
    pub(crate) async fn is_sent_as_it_came(&mut self, prepared: &Arc<PreparedRequest>) {
        self.edits = Vec::new();
        self.sent = plan::as_it_came(&prepared.request());
        let measure = {
            let (prepared, sent, anchor) =
                (prepared.clone(), self.sent.clone(), self.anchor.clone());
            move || prepared.measure(&sent, &RecordedDecisions::default(), anchor.as_deref())
        };
        self.measured = off_thread(prepared.body.len(), measure).await.ok();
    }
}

/// What a request costs of which this is sent, and no turn before it is known.
pub(crate) async fn estimate(
    prepared: &Arc<PreparedRequest>,
    sent: Overlay,
    known: &Arc<RecordedDecisions>,
) -> Option<Estimate> {
    want_vocabulary(prepared.model.family);
    let measure = {
        let (prepared, known) = (prepared.clone(), known.clone());
        move || prepared.measure(&sent, &known, None).estimate
    };
    off_thread(prepared.body.len(), measure).await.ok()
}
