//! Repairs a request that its provider refused (`docs/healing.md`).
//!
//! The change is decided in `context::repair`, saved like any decision, and replayed with the others.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::PlacedRequest;
use crate::context::{Fact, repair};
use crate::dialect::PartKey;
use crate::dialect::repair::Refusal;
use crate::proxy::offload::long_work_alone;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::telemetry::RefusalOutcome;

impl PlacedRequest {
    /// The form that was refused, with a repair, and the keys of the decisions of the repair. `base`: the form with the
    /// repairs before it, if there are any. `None` if there is no repair, or it could not be saved.
    pub(crate) async fn repair(
        &mut self,
        refusal: &Refusal,
        base: Option<&PlannedRequest>,
        recorder: &mut ExchangeRecorder,
    ) -> Option<(PlannedRequest, Vec<PartKey>)> {
        if repair::is_of_window(refusal) {
            // The provider counts the input when it says that the output does not fit beside it.
            Arc::make_mut(&mut self.planned.prepared).counted_input = refusal.count;
        }
        let repairing = self.repaired(refusal, base.unwrap_or(&self.planned));
        let repaired = AssertUnwindSafe(repairing).catch_unwind().await.ok();
        match repaired.unwrap_or(Err(RefusalOutcome::NoRepair)) {
            Ok(repaired) => Some(repaired),
            Err(why) => {
                recorder.report_refusal(&[refusal.cause], why);
                None
            }
        }
    }

    async fn repaired(
        &self,
        refusal: &Refusal,
        base: &PlannedRequest,
    ) -> Result<(PlannedRequest, Vec<PartKey>), RefusalOutcome> {
        let proposal = {
            let decisions = base.known.clone();
            let refusal = refusal.clone();
            self.planned
                .prepared
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
        let facts = self.with_smaller_pictures(refusal, base, proposal.facts).await;
        let saved = self.save(facts, base.known.epoch).await;
        let saved = saved.map_err(|_| RefusalOutcome::NotKept)?;
        // Such a repair did not help before.
        if repair::are_known(&saved, &base.known) {
            return Err(RefusalOutcome::NoRepair);
        }
        let decisions = repair::keys(&saved);
        let mut repaired = base.clone();
        repaired.prepared = self.planned.prepared.clone();
        repaired.add_saved(saved).await;
        match repaired.plan.edits == base.plan.edits {
            true => Err(RefusalOutcome::NoRepair),
            false => Ok((repaired, decisions)),
        }
    }

    async fn with_smaller_pictures(
        &self,
        refusal: &Refusal,
        base: &PlannedRequest,
        facts: Vec<Fact>,
    ) -> Vec<Fact> {
        if !repair::may_be_smaller(&self.planned.prepared.plan_request(), refusal) {
            return facts;
        }
        // Images are decoded off the async threads, for one request at a time; if that would take too long, the
        // text is used.
        let room = self.opened.room_for_pictures();
        let prepared = self.planned.prepared.clone();
        let decisions = base.known.clone();
        let refusal = refusal.clone();
        let quoted = facts.clone();
        long_work_alone(self.planned.prepared.info.tenant.as_ref(), move || {
            repair::smaller(&prepared.plan_request(), &decisions, &refusal, quoted, room)
        })
        .await
        .unwrap_or(facts)
    }
}
