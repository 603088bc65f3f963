//! Makes room in a request that does not fit: an action of the retries.
//!
//! Cuts come first, then a summary, then trims. If any of them panics, it is left out, and the others still count.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use http::request;

use crate::context::prune;
use crate::dialect::overflow::Overflow;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;

impl PlacedRequest {
    pub(super) async fn make_room(
        &mut self,
        overflow: Overflow,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<PlannedRequest> {
        // Cuts come first, then a summary if that makes it fit, then trims of new results, which no model has
        // read. If no summary makes it fit alone, one is added to the trims where these are not enough. The
        // text of the client's own compaction is shortened last.
        let goal = self.room_goal(overflow)?;
        let pruned = AssertUnwindSafe(self.with_room(goal)).catch_unwind().await.ok().flatten();
        let mut is_made = pruned.is_some();
        let room = pruned.unwrap_or_else(|| self.planned.clone());
        // Until it is sent and answered, the form before it is the planned one.
        let planned = std::mem::replace(&mut self.planned, room);
        let by_summary = self.fits_with_summary(goal).await;
        if by_summary {
            let overflows = true;
            is_made |= self.summarize_for_room(overflows, head, recorder).await;
        }
        let trimming = self.cut_for_room(prune::trim_for_room, goal);
        is_made |= AssertUnwindSafe(trimming).catch_unwind().await.unwrap_or(false);
        if !by_summary {
            let overflows = !is_made;
            is_made |= self.summarize_for_room(overflows, head, recorder).await;
        }
        // The text of the client's own compaction is its only memory of what was before it.
        let shortening = self.cut_for_room(prune::shorten_for_room, goal);
        is_made |= AssertUnwindSafe(shortening).catch_unwind().await.unwrap_or(false);
        let room = std::mem::replace(&mut self.planned, planned);
        if is_made { Some(room) } else { None }
    }

    /// Returns whether the request was compacted. `overflows`: it does not fit, whatever the estimate says.
    async fn summarize_for_room(
        &mut self,
        overflows: bool,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> bool {
        let earlier_wait = self.summary_wait;
        let compacting = self.compact_now(head, overflows);
        let compacted = AssertUnwindSafe(compacting).catch_unwind().await.unwrap_or(false);
        self.record_summary_wait(earlier_wait, recorder);
        compacted
    }
}
