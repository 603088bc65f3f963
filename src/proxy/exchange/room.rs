//! Makes room in a request that does not fit: an action of the retries.
//!
//! Cuts come first, then a summary, then trims. If any of them panics, it is left out, and the others still count.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::request;

use crate::context::prune;
use crate::dialect::overflow::Overflow;
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::pending::PendingExchange;

impl PendingExchange {
    pub(super) async fn make_room(
        &mut self,
        overflow: Overflow,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<PlannedRequest> {
        // Cuts come first, then a summary if that makes it fit, then trims of new results, which no model has
        // read. If no summary makes it fit alone, one is added to the trims where these are not enough. The
        // text of the client's own compaction is shortened last.
        let prepared = self.prepared.clone();
        let proxy = recorder.proxy.clone();
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
        let trimming =
            planned.cut_for_room(prune::trim_for_room, &proxy, &prepared, &self.opened, goal);
        is_made |= AssertUnwindSafe(trimming).catch_unwind().await.unwrap_or(false);
        if !by_summary {
            let overflows = !is_made;
            is_made |= self.compact_now(&mut planned, overflows, head, recorder).await;
        }
        // The text of the client's own compaction is its only memory of what was before it.
        let shortening =
            planned.cut_for_room(prune::shorten_for_room, &proxy, &prepared, &self.opened, goal);
        is_made |= AssertUnwindSafe(shortening).catch_unwind().await.unwrap_or(false);
        if is_made { Some(planned) } else { None }
    }

    /// Returns whether the request was compacted. `overflows`: it does not fit, whatever the estimate says.
    async fn compact_now(
        &mut self,
        planned: &mut PlannedRequest,
        overflows: bool,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> bool {
        let prepared = &self.prepared;
        let proxy = recorder.proxy.clone();
        // All waits together are bounded.
        let timeout = Duration::from_secs(prepared.info.policy.compact.wait_s);
        let timeout = timeout.saturating_sub(self.summary_wait());
        let opened = &mut self.opened;
        let mut compaction = CompactionContext::new(&proxy, prepared, opened, planned, head);
        let compacting = compaction.compact_now(timeout, overflows);
        let compacted = AssertUnwindSafe(compacting).catch_unwind().await.unwrap_or(false);
        if let Some(wait) = compaction.waited {
            self.add_summary_wait(wait, recorder);
        }
        compacted
    }
}
