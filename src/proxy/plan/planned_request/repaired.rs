//! Repairs a request that its provider refused (`docs/healing.md`).
//!
//! The change is decided in `context::repair`, saved like any decision, and replayed with the others.

use std::sync::Arc;

use super::{PlannedRequest, save};
use crate::context::budget::MeasuredEstimate;
use crate::context::plan::{Plan, RecordedDecisions};
use crate::context::{Fact, repair};
use crate::dialect::PartKey;
use crate::dialect::repair::Refusal;
use crate::proxy::offload::long_work_alone;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::OpenedSession;
use crate::telemetry::RefusalOutcome;

impl PreparedRequest {
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
}

/// A request that was planned again with a repair.
pub(crate) struct RepairedPlan {
    pub(crate) planned: PlannedRequest,
    /// The keys of the decisions of the repair.
    pub(crate) decisions: Vec<PartKey>,
}

impl PlannedRequest {
    pub(crate) async fn repaired(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        refusal: &Refusal,
    ) -> Result<RepairedPlan, RefusalOutcome> {
        let proposal = {
            let decisions = self.known.clone();
            let refusal = refusal.clone();
            prepared
                .off_thread(move |prepared| {
                    repair::propose(&prepared.plan_request(), &decisions, &refusal)
                })
                .await
                .map_err(|_| RefusalOutcome::NoRepair)?
        };
        if proposal.is_misplaced {
            return Err(RefusalOutcome::Misplaced);
        }
        if proposal.facts.is_empty() {
            return Err(RefusalOutcome::NoRepair);
        }
        let facts = self.with_smaller_pictures(prepared, opened, refusal, proposal.facts).await;
        let saved = save(proxy, opened, facts, self.known.epoch).await;
        let saved = saved.map_err(|_| RefusalOutcome::NotKept)?;
        // Such a repair did not help before.
        if repair::are_known(&saved, &self.known) {
            return Err(RefusalOutcome::NoRepair);
        }
        let decisions = repair::keys(&saved);
        let mut planned = self.clone();
        planned.add_saved(prepared, saved).await;
        match planned.plan.edits == self.plan.edits {
            true => Err(RefusalOutcome::NoRepair),
            false => Ok(RepairedPlan { planned, decisions }),
        }
    }

    async fn with_smaller_pictures(
        &self,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        refusal: &Refusal,
        facts: Vec<Fact>,
    ) -> Vec<Fact> {
        if !repair::may_be_smaller(&prepared.plan_request(), refusal) {
            return facts;
        }
        // Images are decoded off the async threads, for one request at a time; if that would take too long, the
        // text is used.
        let room = opened.room_for_pictures();
        let tenant = prepared.info.tenant.as_ref();
        let prepared = prepared.clone();
        let decisions = self.known.clone();
        let refusal = refusal.clone();
        let quoted = facts.clone();
        long_work_alone(tenant, move || {
            repair::smaller(&prepared.plan_request(), &decisions, &refusal, quoted, room)
        })
        .await
        .unwrap_or(facts)
    }
}
