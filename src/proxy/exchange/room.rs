//! Makes room in a request that does not fit: an action of the retries.
//!
//! Cuts come first, then a summary, then trims. If any of them panics, it is left out, and the others still count.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::request;

use crate::dialect::overflow::Overflow;
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::pending::{PendingExchange, RevisedRequest};

impl PendingExchange {
    /// Makes room in a request that does not fit: by cuts, then by a summary if that makes it fit, then by
    /// trims of new results, which no model has read. If no summary makes it fit alone, one is added to the
    /// trims where these are not enough. The text of the client's own compaction is shortened last. `None` if no room
    /// can be made. `head`: the request's, as it is sent.
    pub(super) async fn make_room(
        &mut self,
        overflow: Overflow,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<RevisedRequest> {
        let (prepared, proxy) = (self.prepared.clone(), recorder.proxy.clone());
        let goal = self.planned.room_goal(&prepared, overflow)?;
        let making = self.planned.with_room(&proxy, &prepared, &self.opened, goal);
        let pruned = AssertUnwindSafe(making).catch_unwind().await.ok().flatten();
        let mut is_made = pruned.is_some();
        let mut planned = match pruned {
            Some(planned) => planned,
            None => self.planned.clone(),
        };
        let by_summary = planned.fits_with_summary(&prepared, goal).await;
        if by_summary {
            let overflows = true;
            is_made |= self.compact_now(&mut planned, overflows, head, recorder).await;
        }
        let trimming = planned.trim_for_room(&proxy, &prepared, &self.opened, goal);
        is_made |= AssertUnwindSafe(trimming).catch_unwind().await.unwrap_or(false);
        if !by_summary {
            let overflows = !is_made;
            is_made |= self.compact_now(&mut planned, overflows, head, recorder).await;
        }
        let shortening = planned.shorten_for_room(&proxy, &prepared, &self.opened, goal);
        is_made |= AssertUnwindSafe(shortening).catch_unwind().await.unwrap_or(false);
        is_made.then(|| RevisedRequest::new(&prepared, planned))
    }

    /// The request with room, without the reasoning that is bound to what was cut: its model turned out to bind
    /// it. `None` if there is no such reasoning.
    pub(super) async fn unbind_room(
        &mut self,
        room: &RevisedRequest,
        recorder: &ExchangeRecorder,
    ) -> Option<RevisedRequest> {
        Arc::make_mut(&mut self.prepared).set_bound();
        let (prepared, proxy) = (self.prepared.clone(), recorder.proxy.clone());
        let unbinding = room.planned.without_bound_reasoning(&proxy, &prepared, &self.opened);
        let planned = AssertUnwindSafe(unbinding).catch_unwind().await.ok().flatten()?;
        Some(RevisedRequest::new(&prepared, planned))
    }

    /// Compacts the request now, if that is possible in the time that is left; returns whether it was
    /// compacted. `overflows`: it does not fit, whatever the estimate says.
    async fn compact_now(
        &mut self,
        planned: &mut PlannedRequest,
        overflows: bool,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> bool {
        let (prepared, proxy) = (&self.prepared, recorder.proxy.clone());
        // All waits together are bounded.
        let timeout = Duration::from_secs(prepared.policy.compact.wait_s);
        let timeout = timeout.saturating_sub(self.summary_wait());
        let opened = &mut self.opened;
        let mut compaction = CompactionContext::new(&proxy, prepared, opened, planned, head);
        let compacting = compaction.compact_now(timeout, overflows);
        let compacted = AssertUnwindSafe(compacting).catch_unwind().await.unwrap_or(false);
        let waited = compaction.waited;
        waited.into_iter().for_each(|waited| self.add_summary_wait(waited, recorder));
        compacted
    }
}
