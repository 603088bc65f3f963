//! Makes room in a request that its provider said does not fit (`docs/rewriting.md` "A request that does not
//! fit").
//!
//! Cuts and trims are decided in `context::prune`, saved like any decision, and replayed with the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{PlanBasis, PlannedRequest, replay, save};
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
    /// How many of its tokens fit; `None` if it was not measured, may not be changed, or a panic kept it from being
    /// found: the client then gets the provider's answer.
    pub(crate) fn room_goal(&self, prepared: &PreparedRequest, overflow: Overflow) -> Option<u64> {
        let tokens = prepared.cost(self.measured.as_ref()?).tokens;
        if prepared.mode != Mode::Active || prepared.held_out {
            return None;
        }
        let goal = || prune::room_goal(&prepared.plan_request(), &self.known, tokens, overflow);
        catch_unwind(AssertUnwindSafe(goal)).ok()
    }

    /// The same request with old results cut. `None` if nothing can be cut, or it could not be saved.
    pub(crate) async fn with_room(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> Option<Self> {
        let measured = self.measured.clone()?;
        let new = {
            let known = self.known.clone();
            let propose = move |prepared: &PreparedRequest| {
                let cost = prepared.cost(&measured);
                prune::clear_for_room(&prepared.plan_request(), &known, cost, goal)
            };
            prepared.off_thread(propose).await.ok()?
        };
        if new.is_empty() {
            return None;
        }
        let saved = save(proxy, opened, new, self.known.epoch).await.ok()?;
        let mut known = self.known.clone();
        Arc::make_mut(&mut known).add(saved);
        let replayed = replay(prepared, &known, self.anchor.as_ref()).await.ok()?;
        // What was given up before is not cut again: then it is the same as before.
        if replayed.plan.edits.is_empty() || *replayed.plan.edits == *self.edits {
            return None;
        }
        let (before, anchor) = (self.before.clone(), self.anchor.clone());
        let basis = PlanBasis { known, before, declined: Vec::new(), anchor };
        Some(Self::new(prepared, basis, replayed).in_place_of(self))
    }

    /// The same request, with the room that was made in it, without the reasoning that is bound to what was cut.
    /// `None` if there is none, or it could not be saved. `prepared`: for a model that binds.
    pub(crate) async fn without_bound_reasoning(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
    ) -> Option<Self> {
        let new = {
            let known = self.known.clone();
            let unbinding = move |prepared: &PreparedRequest| {
                prune::unbind_room(&prepared.plan_request(), &known)
            };
            prepared.off_thread(unbinding).await.ok()?
        };
        let saved = match new.is_empty() {
            true => new,
            false => save(proxy, opened, new, self.known.epoch).await.ok()?,
        };
        let mut known = RecordedDecisions::clone(&self.known);
        known.add(saved);
        self.replanned(prepared, known).await.filter(|planned| planned.edits != self.edits)
    }

    /// Whether it has more than `goal` tokens, and no more with a summary in place of its beginning.
    pub(crate) async fn fits_with_summary(
        &self,
        prepared: &Arc<PreparedRequest>,
        goal: u64,
    ) -> bool {
        let Some(measured) = self.measured.clone() else { return false };
        let known = self.known.clone();
        let fits = move |prepared: &PreparedRequest| {
            let (request, cost) = (prepared.plan_request(), prepared.cost(&measured));
            let leaves = || compact::would_leave(&request, &known, cost.parts, cost.tokens, goal);
            cost.tokens > goal && leaves()
        };
        prepared.off_thread(fits).await.unwrap_or(false)
    }

    /// Trims its new results if it has more than `goal` tokens; returns whether any was trimmed.
    pub(crate) async fn trim_for_room(
        &mut self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> bool {
        self.add_room(prune::trim_for_room, proxy, prepared, opened, goal).await
    }

    /// Shortens the text of the client's own compaction if it has more than `goal` tokens; returns whether it was
    /// shortened.
    pub(crate) async fn shorten_for_room(
        &mut self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> bool {
        self.add_room(prune::shorten_for_room, proxy, prepared, opened, goal).await
    }

    /// Adds the cuts that `propose` makes for this goal; returns whether there were any.
    async fn add_room(
        &mut self,
        propose: ProposeRoom,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        goal: u64,
    ) -> bool {
        let Some(measured) = self.measured.clone() else { return false };
        let new = {
            let known = self.known.clone();
            let propose_here = move |prepared: &PreparedRequest| {
                let cost = prepared.cost(&measured);
                propose(&prepared.plan_request(), &known, cost, goal)
            };
            prepared.off_thread(propose_here).await
        };
        let Ok(new) = new else { return false };
        if new.is_empty() {
            return false;
        }
        match save(proxy, opened, new, self.known.epoch).await {
            Ok(saved) => self.add_saved(prepared, saved).await,
            Err(_) => false,
        }
    }
}
