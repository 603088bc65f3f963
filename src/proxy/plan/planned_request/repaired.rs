//! A request with what its provider refused of it changed (`docs/healing.md`).
//!
//! What is changed is decided in `context::repair`, saved as any decision, and replayed with the others.

use std::sync::Arc;

use super::{PlannedRequest, save};
use crate::context::budget::MeasuredEstimate;
use crate::context::plan::{Plan, RecordedDecisions};
use crate::context::repair;
use crate::dialect::PartKey;
use crate::dialect::repair::Refusal;
use crate::proxy::offload::off_thread;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::store::ledgers::OpenedSession;
use crate::telemetry::RefusalOutcome;

impl PreparedRequest {
    /// Lowers the output that is asked for, where the window was refused with it.
    pub(super) fn fit_output(
        &self,
        plan: &mut Plan,
        known: &RecordedDecisions,
        measured: &MeasuredEstimate,
    ) {
        let input = self.counted_input.map_or((measured.estimate.tokens, false), |it| (it, true));
        repair::fit_output(&self.request(), known, plan, input);
    }
}

impl PlannedRequest {
    /// The same request with the smallest change that answers a refusal of it: decided, saved, and replayed. Answers
    /// also what was decided.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn repaired(
        &self,
        proxy: &Proxy,
        prepared: &Arc<PreparedRequest>,
        opened: &OpenedSession,
        refusal: &Refusal,
    ) -> Result<(Self, Vec<PartKey>), RefusalOutcome> {
        // Its edits went out with it.
        let before = self.again(prepared).await;
        let proposal = {
            let (prepared, known) = (prepared.clone(), self.known.clone());
            let (refusal, size) = (refusal.clone(), prepared.body.len());
            let propose = move || repair::propose(&prepared.request(), &known, &refusal);
            off_thread(size, propose).await
        };
        let proposal = proposal.map_err(|_| RefusalOutcome::NoRepair)?;
        if proposal.is_misplaced {
            return Err(RefusalOutcome::Misplaced);
        }
        if proposal.facts.is_empty() {
            return Err(RefusalOutcome::NoRepair);
        }
        let saved = save(proxy, opened, proposal.facts, self.known.suspended).await;
        let saved = saved.map_err(|_| RefusalOutcome::NotKept)?;
        let decisions = repair::keys(&saved);
        let mut planned = before.clone();
        planned.adds(prepared, saved).await;
        match planned.edits == before.edits {
            true => Err(RefusalOutcome::NoRepair),
            false => Ok((planned, decisions)),
        }
    }
}
