//! What is done to one request: recorded decisions replayed, new ones proposed and saved
//! (`docs/architecture.md` "The way of a request").
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
use crate::context::budget::{Anchor, CarryOutlook, ContextView, Limits, MeasuredEstimate};
use crate::context::overflow::PartSums;
use crate::context::plan::{
    self, MOST_TOLD, Overlay, Plan, PlanStep, RecordedDecisions, RewriteSummary,
};
use crate::context::policy::SummaryAuthor;
use crate::context::{Estimate, Fact, Millis, inject, prune, reasoning};
use crate::dialect::models::Family;
use crate::dialect::overflow::Overflow;
use crate::dialect::refusal::Cause;
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
}

fn look(
    subject: &PreparedRequest,
    known: &RecordedDecisions,
    anchor: Option<&Grown>,
) -> PlanOutcome {
    let request = subject.request();
    let (mut new, mut refused) = match subject.may_decide() {
        true => reasoning::propose(&request, known),
        false => Default::default(),
    };
    new.retain(|fact| known.may_decide(fact));
    let mut with = Cow::Borrowed(known);
    if !new.is_empty() {
        with.to_mut().add(new.iter().cloned());
    }
    let mut plan = plan::replay(&request, &with);
    let measured = subject.measure(&plan.sent, &with, anchor);
    subject.fit_output(&mut plan, &with, &measured);
    if subject.may_decide() {
        let (cuts, not) = prune::propose(&request, &with, subject.cost(&measured));
        new.extend(cuts.into_iter().filter(|fact| known.may_decide(fact)));
        refused.extend(not);
    }
    new.extend(inject::propose(&request, &with));
    PlanOutcome { plan, measured, new, refused }
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
    subject: Arc<PreparedRequest>,
    opened: &mut OpenedSession,
) -> (PlannedRequest, Option<UndeliveredMessage>) {
    want_vocabulary(subject.model.family);
    let anchor = opened.anchor.take().map(Arc::new);
    let size = subject.body.len();
    let mut known = std::mem::take(&mut opened.known);
    known.spares_reasoning(&subject.request());
    let known = Arc::new(known);
    let looked = {
        let (subject, known, anchor) = (subject.clone(), known.clone(), anchor.clone());
        off_thread(size, move || look(&subject, &known, anchor.as_deref())).await
    };
    let looked = match looked {
        Ok(looked) => looked,
        Err(why) => {
            return (PlannedRequest { stood_aside: Some(why), ..PlannedRequest::default() }, None);
        }
    };
    let PlanOutcome { mut plan, mut measured, new, refused } = looked;
    let before = known.clone();
    let (mut stood_aside, mut known, mut taken) = (None, known, Vec::new());
    let mut unheard = UndeliveredMessage::of(proxy, opened, &known, &subject.id);
    if !new.is_empty() {
        // Few decide anything: the others' way is not made longer by it.
        let saved = Box::pin(save(proxy, opened, new, known.aside)).await;
        let saved = saved.unwrap_or_else(|error| {
            stood_aside = Some(match error {
                DecisionError::TooMany => FailOpen::Decisions,
                DecisionError::Store(_) => FailOpen::Store,
            });
            Vec::new()
        });
        taken = inject::taken(&saved, &subject.id);
        Arc::make_mut(&mut known).add(saved);
        let with_taken = UndeliveredMessage::of(proxy, opened, &known, &subject.id);
        std::mem::replace(&mut unheard, with_taken).into_iter().for_each(UndeliveredMessage::end);
        let again = Box::pin(again(&subject, &known, anchor.as_ref())).await;
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
        ..PlannedRequest::default()
    };
    planned.holds(&subject, plan, measured);
    let is_changed = !planned.edits.is_empty() || !planned.sent.is_as_it_came();
    if subject.mode == Mode::Shadow && is_changed {
        planned.is_sent_as_it_came(&subject).await;
    }
    (planned, unheard)
}

/// Keeps decisions before they reach the wire, of a thread that was set `aside` then.
pub(crate) async fn save(
    proxy: &Proxy,
    opened: &OpenedSession,
    new: Vec<Fact>,
    aside: Option<Millis>,
) -> Result<Vec<Fact>, DecisionError> {
    let patience = Duration::from_millis(proxy.config.limits.save_ms);
    proxy.ledgers.decide(opened, opened.anew(new, aside), patience).await
}

/// Replays once more, with what is known by now.
async fn again(
    subject: &Arc<PreparedRequest>,
    known: &Arc<RecordedDecisions>,
    anchor: Option<&Arc<Grown>>,
) -> Option<(Plan, Box<MeasuredEstimate>)> {
    let (size, subject) = (subject.body.len(), subject.clone());
    let (known, anchor) = (known.clone(), anchor.cloned());
    let replay = move || {
        let mut plan = plan::replay(&subject.request(), &known);
        let measured = subject.measure(&plan.sent, &known, anchor.as_deref());
        subject.fit_output(&mut plan, &known, &measured);
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
        subject: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        said: Overflow,
    ) -> Option<Self> {
        if subject.mode != Mode::Active || subject.held_out {
            return None;
        }
        let measured = self.measured.clone()?;
        let new = {
            let (subject, known) = (subject.clone(), self.known.clone());
            off_thread(subject.body.len(), move || {
                let cost = subject.cost(&measured);
                prune::make_room(&subject.request(), &known, cost, said)
            })
            .await
            .ok()?
        };
        if new.is_empty() {
            return None;
        }
        let saved = save(proxy, opened, new, self.known.aside).await.ok()?;
        let mut known = self.known.clone();
        Arc::make_mut(&mut known).add(saved);
        let (plan, measured) = again(subject, &known, self.anchor.as_ref()).await?;
        if plan.edits.is_empty() {
            return None;
        }
        Some(Self {
            edits: plan.edits,
            measured: Some(measured),
            sent: plan.sent,
            done: RewriteSummary::of(&plan.steps, subject.mode),
            summary: plan.summary,
            anchor: self.anchor.clone(),
            before: self.before.clone(),
            known,
            ..Self::default()
        })
    }

    fn holds(&mut self, subject: &PreparedRequest, plan: Plan, measured: Box<MeasuredEstimate>) {
        let mut steps = plan.steps;
        steps.extend(self.refused.iter().cloned());
        self.done = RewriteSummary {
            held_out: subject.held_out,
            ..RewriteSummary::of(&steps, subject.mode)
        };
        (self.edits, self.sent, self.measured) = (plan.edits, plan.sent, Some(measured));
        self.summary = plan.summary;
    }

    /// What the head has to list for what is sent.
    pub(crate) fn beta(&self, subject: &PreparedRequest) -> Option<&'static str> {
        let is_anthropic = subject.conversation.dialect == Dialect::Anthropic;
        let is_block = self.summary == Some(SummaryAuthor::Provider);
        (is_anthropic && is_block && !self.edits.is_empty()).then_some(provider::BETA)
    }

    /// The same plan, with the edits that are gone from this one.
    pub(crate) async fn again(&self, subject: &Arc<PreparedRequest>) -> Self {
        let mut planned = self.clone();
        planned.knows(subject, RecordedDecisions::clone(&self.known)).await;
        planned
    }

    /// The same request as those before it were sent: without what was decided for it and a refusal
    /// that names `cause` may be due to. `None` where that is nothing, or the request as it came.
    pub(crate) async fn as_before(
        &self,
        subject: &Arc<PreparedRequest>,
        cause: Cause,
    ) -> Option<Self> {
        let mut known = RecordedDecisions::clone(&self.before);
        if !cause.is_of_what_is_new() {
            known.takes_births(&self.known, &subject.id);
        }
        let decided = |known: &RecordedDecisions| known.decided_by(&subject.id);
        if subject.mode != Mode::Active || decided(&known) == decided(&self.known) {
            return None;
        }
        // Its edits went out with it.
        let mut planned = Self { edits: Vec::new(), ..self.clone() };
        planned.knows(subject, known).await;
        (!planned.edits.is_empty()).then_some(planned)
    }

    /// What was decided for it and is not in `other`: what that is kept by.
    pub(crate) fn decided_beyond(&self, other: Option<&Self>, id: &str) -> Vec<PartKey> {
        let here = self.known.decided_by(id);
        let there = other.map(|other| other.known.decided_by(id)).unwrap_or_default();
        let mut beyond: Vec<PartKey> = here.difference(&there).copied().collect();
        beyond.sort_unstable();
        beyond
    }

    /// What the provider's cache holds of it: the request without what it cut of what was sent before. `None`
    /// where that is itself.
    pub(crate) async fn as_cached(&self, subject: &Arc<PreparedRequest>) -> Option<Self> {
        let known = Arc::new(self.known.as_cached(&subject.id)?);
        let (plan, measured) = again(subject, &known, self.anchor.as_ref()).await?;
        let mut cached = Self { known, anchor: self.anchor.clone(), ..Self::default() };
        let is_whole = !plan.conflict;
        cached.holds(subject, plan, measured);
        is_whole.then_some(cached)
    }

    /// More was decided since it was planned: it is planned again. What panics changes nothing.
    pub(crate) async fn adds(&mut self, subject: &Arc<PreparedRequest>, facts: Vec<Fact>) {
        let mut known = RecordedDecisions::clone(&self.known);
        known.add(facts);
        self.knows(subject, known).await;
    }

    /// The same with all that is known by now.
    pub(crate) async fn knows(
        &mut self,
        subject: &Arc<PreparedRequest>,
        mut known: RecordedDecisions,
    ) {
        known.spares_reasoning(&subject.request());
        let known = Arc::new(known);
        let again = again(subject, &known, self.anchor.as_ref()).await;
        if let Some((plan, measured)) = again.filter(|(plan, _)| !plan.conflict) {
            self.known = known;
            self.holds(subject, plan, measured);
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
        subject: &Arc<PreparedRequest>,
        opened: &mut OpenedSession,
    ) -> Self {
        want_vocabulary(subject.model.family);
        let (anchor, size) = (opened.anchor.take().map(Arc::new), subject.body.len());
        let sent = plan::as_it_came(&subject.request());
        let measured = {
            let (subject, sent, anchor) = (subject.clone(), sent.clone(), anchor.clone());
            let measure =
                move || subject.measure(&sent, &RecordedDecisions::default(), anchor.as_deref());
            off_thread(size, measure).await.ok()
        };
        let done =
            RewriteSummary { held_out: subject.held_out, ..RewriteSummary::of(&[], subject.mode) };
        Self { measured, sent, anchor, done, ..Self::default() }
    }

    /// What a request costs of which nothing is known beside itself.
    pub(crate) async fn alone(subject: &Arc<PreparedRequest>) -> Option<Estimate> {
        estimate(subject, plan::as_it_came(&subject.request()), &Arc::default()).await
    }

    /// What has to be known of it, as it was sent, to say what the next request will hold of its turn.
    pub(crate) fn prospect(&self, subject: &PreparedRequest) -> Option<CarryOutlook> {
        let rewrites = subject.rewrites() && self.done.resent.is_none();
        let measured = self.measured.as_ref()?;
        let limits = Limits::of(&subject.request(), subject.may_decide());
        Some(CarryOutlook::new(&subject.request(), (measured, self.anchor()), rewrites, limits))
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
    pub(crate) fn view(&self, subject: &PreparedRequest) -> Option<ContextView> {
        let MeasuredEstimate { estimate, contents, .. } = &**self.measured.as_ref()?;
        let anchor = self.anchor.as_ref().map(|anchor| &*anchor.turn);
        let (window, reserve) = (subject.model.window, subject.reserve);
        let limits = Limits::of(&subject.request(), subject.may_decide());
        let mut view = ContextView::before(estimate, (window, reserve), anchor, &self.done);
        view.rewriting.summary_by = self.summary;
        Some(view.with(Some(limits)).made_of(Some(&contents.clone().with_few_tools())))
    }

    /// Of a request that is no turn: what was decided before is repeated, and nothing is decided or
    /// measured.
    pub(crate) async fn replayed(
        subject: &Arc<PreparedRequest>,
        known: Arc<RecordedDecisions>,
    ) -> Self {
        let replay = {
            let (subject, known) = (subject.clone(), known.clone());
            move || plan::replay(&subject.request(), &known)
        };
        let plan = match off_thread(subject.body.len(), replay).await {
            Ok(plan) => plan,
            Err(why) => return Self { stood_aside: Some(why), ..Self::default() },
        };
        let done = RewriteSummary {
            held_out: subject.held_out,
            ..RewriteSummary::of(&plan.steps, subject.mode)
        };
        let edits = if subject.mode == Mode::Shadow { Vec::new() } else { plan.edits };
        let stood_aside = plan.conflict.then_some(FailOpen::EditsConflict);
        let summary = plan.summary;
        let sent = match subject.mode {
            Mode::Shadow => plan::as_it_came(&subject.request()),
            Mode::Observe | Mode::Active => plan.sent,
        };
        Self { edits, sent, known, done, summary, stood_aside, ..Self::default() }
    }

    /// The original is sent in place of the rewrite.
    pub(crate) async fn is_sent_as_it_came(&mut self, subject: &Arc<PreparedRequest>) {
        self.edits = Vec::new();
        self.sent = plan::as_it_came(&subject.request());
        let measure = {
            let (subject, sent, anchor) = (subject.clone(), self.sent.clone(), self.anchor.clone());
            move || subject.measure(&sent, &RecordedDecisions::default(), anchor.as_deref())
        };
        self.measured = off_thread(subject.body.len(), measure).await.ok();
    }
}

/// What a request costs of which this is sent, and no turn before it is known.
pub(crate) async fn estimate(
    subject: &Arc<PreparedRequest>,
    sent: Overlay,
    known: &Arc<RecordedDecisions>,
) -> Option<Estimate> {
    want_vocabulary(subject.model.family);
    let measure = {
        let (subject, known) = (subject.clone(), known.clone());
        move || subject.measure(&sent, &known, None).estimate
    };
    off_thread(subject.body.len(), measure).await.ok()
}
