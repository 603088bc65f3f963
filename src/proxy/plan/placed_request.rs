//! A request in its place: prepared, placed in its session, and planned. It is compacted, sent, repaired and given room
//! as this one value, until its response has begun (`docs/architecture.md` "Life of a request").
//!
//! Nothing is sent that is not saved. If the store fails or is slow, only the new decisions are lost.

mod repair;
mod room;

use std::sync::Arc;
use std::time::Duration;

use super::planned_request::{PlannedRequest, load_vocabulary};
use super::prepared_request::PreparedRequest;
use super::undelivered::{self, UndeliveredMessages};
use crate::clock::now;
use crate::config::Mode;
use crate::context::cost::NextInput;
use crate::context::inject::{self, DeliveryFailure};
use crate::context::plan::{RecordedDecisions, RewriteSummary};
use crate::context::{DecisionEpoch, Estimate, Fact, Millis};
use crate::dialect::PartKey;
use crate::dialect::repair::RepairCause;
use crate::proxy::state::Proxy;
use crate::proxy::state::counting_endpoints::PendingCount;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::store::ledgers::{DecisionError, DraftGuard, OpenedSession};
use crate::telemetry::{FailOpen, RefusalOutcome};

/// A request, with everything that changing it needs.
pub(crate) struct PlacedRequest {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) opened: OpenedSession,
    /// The form that it is sent in.
    pub(crate) planned: PlannedRequest,
    /// Its injected messages, until there is a response. They are queued again if they are not delivered.
    pub(crate) undelivered: Option<UndeliveredMessages>,
    /// How long it waited for summaries; all these waits together are bounded.
    pub(crate) summary_wait: Duration,
    /// Its draft, for the case that this process ends first; `None` until it is planned.
    pub(crate) draft: Option<DraftGuard>,
    /// The provider's count of it.
    pub(crate) counted: Option<Arc<PendingCount>>,
    /// It was refused with our changes, and accepted without them.
    pub(crate) is_blamed: bool,
}

impl PlacedRequest {
    /// A request that is not planned yet.
    pub(crate) fn new(proxy: Arc<Proxy>, prepared: PreparedRequest, opened: OpenedSession) -> Self {
        Self {
            proxy,
            opened,
            planned: PlannedRequest::new(Arc::new(prepared)),
            undelivered: None,
            summary_wait: Duration::ZERO,
            draft: None,
            counted: None,
            is_blamed: false,
        }
    }

    pub(crate) async fn plan(&mut self, recorder: &mut ExchangeRecorder) {
        load_vocabulary(self.planned.prepared.info.model.family);
        let anchor = self.opened.anchor.take().map(Arc::new);
        // Cuts that would void reasoning do not count any more, neither here nor when it is planned again.
        let mut decisions = std::mem::replace(&mut self.opened.known, self.planned.known.clone());
        Arc::make_mut(&mut decisions)
            .drop_cuts_that_void_reasoning(&self.planned.prepared.plan_request());
        let prepared = &self.planned.prepared;
        let unplanned = PlannedRequest::from_decisions(prepared.clone(), decisions.clone(), anchor);
        let draft = prepared.off_thread(move |_| unplanned.draft()).await;
        let (mut planned, new) = match draft {
            Ok(draft) => draft,
            Err(why) => return recorder.event.add_fail_open(why),
        };
        // Of repairs, only a lower output limit is proposed before a refusal.
        let mut is_spared = new.iter().any(|fact| matches!(fact, Fact::Repair(_)));
        let mut undelivered = self.undelivered(&decisions, DeliveryFailure::NoReply);
        if !new.is_empty() {
            let carried = inject::carried_ids(&new);
            // Boxed, because few requests decide anything and the future is large.
            let saved = Box::pin(self.save(new, decisions.epoch)).await;
            let saved = saved.unwrap_or_else(|error| {
                recorder.event.add_fail_open(match error {
                    DecisionError::TooMany => FailOpen::Decisions,
                    DecisionError::Store(_) => FailOpen::Store,
                });
                is_spared = false;
                Vec::new()
            });
            let mut dequeued = inject::injected_ids(&saved, &self.planned.prepared.info.exchange);
            if !saved.is_empty() {
                dequeued.extend(carried);
            }
            Arc::make_mut(&mut decisions).add(saved);
            let with_dequeued = self.undelivered(&decisions, DeliveryFailure::NoReply);
            if let Some(replaced) = std::mem::replace(&mut undelivered, with_dequeued) {
                replaced.end();
            }
            planned.known = decisions;
            planned = match Box::pin(planned.replayed()).await {
                Ok(planned) => planned,
                Err(why) => return recorder.event.add_fail_open(why),
            };
            undelivered::announce_dequeued(&dequeued, &self.opened.scope, recorder);
        }
        // Its edits are left out then, and the original is sent.
        if planned.plan.conflict {
            recorder.event.add_fail_open(FailOpen::EditsConflict);
        }
        if self.planned.prepared.mode == Mode::Shadow
            && let Some(why) = Box::pin(planned.set_shadow()).await
        {
            recorder.event.add_fail_open(why);
        }
        if is_spared {
            recorder.report_refusal(&[RepairCause::MaxTokens], RefusalOutcome::Spared);
        }
        self.planned = planned;
        self.undelivered = undelivered;
    }

    /// Plans a request that no byte may change in.
    pub(crate) async fn plan_original(&mut self, recorder: &mut ExchangeRecorder) {
        load_vocabulary(self.planned.prepared.info.model.family);
        let planned = &mut self.planned;
        planned.anchor = self.opened.anchor.take().map(Arc::new);
        // Nothing of what was decided applies, and the session is held until its reply ends.
        self.opened.known = planned.known.clone();
        if let Some(why) = planned.set_sent_as_original().await {
            recorder.event.add_fail_open(why);
        }
        let by_rules = planned.measured.as_ref().and_then(|measured| measured.removed);
        planned.done = RewriteSummary { by_rules, ..planned.prepared.rewrite_summary(&[]) };
    }

    /// The messages that it injects with these decisions; `None` if there are none. `failure`: why they are queued
    /// again if they are not delivered.
    pub(crate) fn undelivered(
        &self,
        decisions: &RecordedDecisions,
        failure: DeliveryFailure,
    ) -> Option<UndeliveredMessages> {
        let facts =
            inject::requeue(decisions, &self.planned.prepared.info.exchange, now(), failure);
        UndeliveredMessages::new(&self.proxy, &self.opened, facts)
    }

    pub(crate) fn estimate(&self) -> Option<&Estimate> {
        self.planned.measured.as_ref().map(|measured| &measured.estimate)
    }

    /// Saves decisions, and returns those that apply.
    pub(crate) async fn save(
        &self,
        facts: Vec<Fact>,
        epoch: Option<DecisionEpoch>,
    ) -> Result<Vec<Fact>, DecisionError> {
        // Saved before they are sent: a decision that is lost would break the cache of the next request.
        let timeout = Duration::from_millis(self.proxy.config.limits.store_ms);
        let trims: Vec<PartKey> = facts.iter().filter_map(trimmed).collect();
        let facts = self.opened.after_suspension(facts, epoch);
        let mut saved = self.proxy.ledgers.decide(&self.opened, facts, timeout).await?;
        // Another branch may have cleared the result once it was read there. In this branch nobody has read it.
        saved.retain(|fact| {
            let Fact::Cut(cut) = fact else { return true };
            cut.is_trim() || !trims.contains(&cut.about)
        });
        Ok(saved)
    }

    /// What its input costs, US dollars, if the provider had it in its cache and has it no longer.
    pub(crate) fn cold_input(&self, at: Millis) -> Option<f64> {
        let parent = self.opened.placed.parent.as_ref()?;
        let tokens = self.estimate()?.tokens;
        let model = &self.planned.prepared.info.model;
        let next_input = NextInput::after(parent, tokens, model, model.price.as_ref()?, at)?;
        if at > next_input.cached_until? { Some(next_input.cold) } else { None }
    }
}

fn trimmed(fact: &Fact) -> Option<PartKey> {
    let Fact::Cut(cut) = fact else { return None };
    if cut.is_trim() { Some(cut.about) } else { None }
}
