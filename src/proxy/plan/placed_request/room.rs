//! Makes room in a request that its provider said does not fit (`docs/rewriting.md` "A request that does not
//! fit").
//!
//! Cuts and trims are decided in `context::prune`, saved like any decision, and replayed with the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::PlacedRequest;
use crate::config::Mode;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::{Fact, compact, prune};
use crate::dialect::overflow::Overflow;
use crate::proxy::plan::planned_request::PlannedRequest;

/// Proposes cuts that bring a request down to so many tokens.
type ProposeRoom =
    fn(&PlanRequest<'_>, &RecordedDecisions, prune::RequestCost<'_>, u64) -> Vec<Fact>;

impl PlacedRequest {
    pub(crate) fn room_goal(&self, overflow: Overflow) -> Option<u64> {
        // If it was not measured, may not be changed, or a panic kept the goal from being found, the client
        // gets the provider's answer.
        let planned = &self.planned;
        let prepared = &planned.prepared;
        let tokens = prepared.cost(planned.measured.as_ref()?).tokens;
        if prepared.mode != Mode::Active || prepared.held_out {
            return None;
        }
        catch_unwind(AssertUnwindSafe(|| {
            prune::room_goal(&prepared.plan_request(), &planned.known, tokens, overflow)
        }))
        .ok()
    }

    /// Its form with old results cut. `None` if nothing can be cut, or it could not be saved.
    pub(crate) async fn with_room(&self, goal: u64) -> Option<PlannedRequest> {
        let planned = &self.planned;
        let cuts = self.room_cuts(prune::clear_for_room, goal).await?;
        let saved = self.save(cuts, planned.known.epoch).await.ok()?;
        let mut decisions = planned.known.clone();
        Arc::make_mut(&mut decisions).add(saved);
        let prepared = planned.prepared.clone();
        let mut pruned =
            PlannedRequest::from_decisions(prepared, decisions, planned.anchor.clone());
        pruned.before = planned.before.clone();
        let pruned = pruned.replayed().await.ok()?;
        // What was given up before is not cut again: then it is the same as before.
        if pruned.plan.edits.is_empty() || pruned.plan.edits == planned.plan.edits {
            return None;
        }
        Some(pruned.in_place_of(planned))
    }

    /// Whether it has more than `goal` tokens, and no more with a summary in place of its beginning.
    pub(crate) async fn fits_with_summary(&self, goal: u64) -> bool {
        let Some(measured) = self.planned.measured.clone() else { return false };
        let decisions = self.planned.known.clone();
        self.planned
            .prepared
            .off_thread(move |prepared| {
                let request = prepared.plan_request();
                let cost = prepared.cost(&measured);
                cost.tokens > goal
                    && compact::would_leave(&request, &decisions, cost.parts, cost.tokens, goal)
            })
            .await
            .unwrap_or(false)
    }

    /// Cuts what `propose` names if it has more than `goal` tokens; returns whether anything was cut.
    pub(crate) async fn cut_for_room(&mut self, propose: ProposeRoom, goal: u64) -> bool {
        let Some(cuts) = self.room_cuts(propose, goal).await else { return false };
        match self.save(cuts, self.planned.known.epoch).await {
            Ok(saved) => self.planned.add_saved(saved).await,
            Err(_) => false,
        }
    }

    /// What `propose` names; `None` if that is nothing.
    async fn room_cuts(&self, propose: ProposeRoom, goal: u64) -> Option<Vec<Fact>> {
        let measured = self.planned.measured.clone()?;
        let decisions = self.planned.known.clone();
        let cuts = self
            .planned
            .prepared
            .off_thread(move |prepared| {
                propose(&prepared.plan_request(), &decisions, prepared.cost(&measured), goal)
            })
            .await
            .ok()?;
        if cuts.is_empty() { None } else { Some(cuts) }
    }
}
