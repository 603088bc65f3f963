//! Plans a request that counts tokens.
//!
//! It has no place in a session, because no turn continues it; but it is sent in the form in which the counted
//! request would be sent, so that the number is that of the next turn.

use std::sync::Arc;

use super::live_exchange::{LiveExchange, Planned, Received};
use super::planning::is_held_out;
use crate::config::{Mode, ProviderCounting};
use crate::context::TenantId;
use crate::context::plan::RecordedDecisions;
use crate::dialect::identity::Identity;
use crate::proxy::plan::planned_request;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::store::ledgers::SessionPeek;
use crate::store::recall::{LookupOutcome, ReadBudget};
use crate::telemetry::FailOpen;

impl LiveExchange<Received> {
    pub(super) async fn plan_count(
        &mut self,
        mut prepared: PreparedRequest,
        tenant: &TenantId,
        identity: &Identity,
        reads: &ReadBudget,
    ) -> Planned {
        let proxy = self.recorder.proxy.clone();
        if proxy.config.count == ProviderCounting::Raw || self.client.is_signed() {
            return Planned::original_count(Arc::new(prepared));
        }
        let is_shadow = prepared.mode == Mode::Shadow;
        // Shadow mode would decide. If the thread was rewritten before, its decisions are repeated, as in its turns.
        prepared.mode = if is_shadow { Mode::Observe } else { prepared.mode };
        let lookup = self.session_lookup(&prepared, tenant, identity, reads);
        let mut peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        let is_undecided =
            matches!(&peeked, LookupOutcome::Found(peek) if peek.known.decides_nothing());
        if is_shadow && is_undecided {
            prepared.mode = Mode::Shadow;
            let lookup = self.session_lookup(&prepared, tenant, identity, reads);
            peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        }
        let (known, held_out) = match peeked {
            LookupOutcome::Found(SessionPeek { session, known, store_missed }) => {
                if store_missed {
                    self.recorder.event.add_fail_open(FailOpen::Store);
                }
                let held_out = is_held_out(&session, prepared.mode, &proxy);
                self.recorder.event.session = Some(session);
                (known, held_out)
            }
            LookupOutcome::None => (RecordedDecisions::default(), false),
            LookupOutcome::Late => {
                self.recorder.event.add_fail_open(FailOpen::SessionLate);
                return Planned::original_count(Arc::new(prepared));
            }
        };
        // It takes no place in its session, so nothing of that can be late.
        prepared.held_out = held_out;
        prepared.added = self.client.added_options(&prepared, None, &proxy);
        let prepared = Arc::new(prepared);
        let decisions = Arc::new(known);
        let planned =
            planned_request::replay_recorded(prepared, decisions, &mut self.recorder).await;
        self.recorder.record_plan(&planned.done, None);
        Planned { count: Some(Box::new(planned)), ..Planned::default() }
    }
}
