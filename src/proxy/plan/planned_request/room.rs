//! Makes room in a request that its provider said does not fit (`docs/rewriting.md` "A request that does not
//! fit").
//!
//! Cuts and trims are decided in `context::prune`, saved like any decision, and replayed with the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{PlannedRequest, save};
use crate::config::Mode;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::{Fact, compact, prune};
use crate::dialect::overflow::Overflow;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::OpenedSession;

/// Proposes cuts that bring a request down to so many tokens.
type ProposeRoom =
    fn(&PlanRequest<'_>, &RecordedDecisions, prune::RequestCost<'_>, u64) -> Vec<Fact>;

impl PlannedRequest {
    pub(crate) fn room_goal(&self, prepared: &PreparedRequest, overflow: Overflow) -> Option<u64> {
        // If it was not measured, may not be changed, or a panic kept the goal from being found, the client
        // gets the provider's answer.
        let tokens = prepared.cost(self.measured.as_ref()?).tokens;
        if prepared.mode != Mode::Active || prepared.held_out {
            return None;
        }
        catch_unwind(AssertUnwindSafe(|| {
            prune::room_goal(&prepared.plan_request(), &self.known, tokens, overflow)
        }))
        .ok()
    }

    /// With old results cut. `None` if nothing can be cut, or it could not be saved.
    pub(crate) async fn with_room(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> Option<Self> {
        let measured = self.measured.clone()?;
        let decisions = self.known.clone();
        let cuts = prepared
            .off_thread(move |prepared| {
                let cost = prepared.cost(&measured);
                prune::clear_for_room(&prepared.plan_request(), &decisions, cost, goal)
            })
            .await
            .ok()?;
        if cuts.is_empty() {
            return None;
        }
        let saved = save(proxy, opened, cuts, self.known.epoch).await.ok()?;
        let mut decisions = self.known.clone();
        Arc::make_mut(&mut decisions).add(saved);
        let pruned = Self {
            known: decisions,
            before: self.before.clone(),
            anchor: self.anchor.clone(),
            ..Self::default()
        };
        let pruned = pruned.replayed(prepared).await.ok()?;
        // What was given up before is not cut again: then it is the same as before.
        if pruned.plan.edits.is_empty() || pruned.plan.edits == self.plan.edits {
            return None;
        }
        Some(pruned.in_place_of(self))
    }

    /// Whether it has more than `goal` tokens, and no more with a summary in place of its beginning.
    pub(crate) async fn fits_with_summary(
        &self,
        prepared: &Arc<PreparedRequest>,
        goal: u64,
    ) -> bool {
        let Some(measured) = self.measured.clone() else { return false };
        let decisions = self.known.clone();
        prepared
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
    pub(crate) async fn cut_for_room(
        &mut self,
        propose: ProposeRoom,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> bool {
        let Some(measured) = self.measured.clone() else { return false };
        let decisions = self.known.clone();
        let cuts = prepared
            .off_thread(move |prepared| {
                let cost = prepared.cost(&measured);
                propose(&prepared.plan_request(), &decisions, cost, goal)
            })
            .await;
        let Ok(cuts) = cuts else { return false };
        if cuts.is_empty() {
            return false;
        }
        match save(proxy, opened, cuts, self.known.epoch).await {
            Ok(saved) => self.add_saved(prepared, saved).await,
            Err(_) => false,
        }
    }
}
