//! What is done next so that a request fits: a summary is used, written or waited for, as a table.
//!
//! [`next`] returns the action; the caller performs it, and returns with its result ([`ScheduleEvent`]) and the
//! request as it is planned by then ([`ScheduleContext`]). A request uses [`MOST_SUMMARIES`] summaries at most,
//! reads the store once at most, and waits only if it does not fit, or where policy says so at the threshold.
//! [`WriterState`] says who writes the summary of a thread. Pure: time is an argument (`core/src/context/compact/README.md`).

use serde::{Deserialize, Serialize};

use super::{CompactionNeed, highest_need, is_compactable, need_at, policy_allows, propose};
use crate::context::Millis;
use crate::context::plan::{DecisionReason, PlanRequest, RecordedDecisions};
use crate::context::policy::Mode;

/// The most summaries that a request uses before it is sent. One may leave too much, because much was added
/// since it was written.
const MOST_SUMMARIES: u8 = 2;

/// What is known of a request each time that it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleContext {
    /// How urgently it needs a summary.
    pub need: CompactionNeed,
    /// Whether anything may be sent otherwise (observe, shadow, active).
    pub mode: Mode,
    /// Whether new decisions may be made for it.
    pub may_decide: bool,
    /// The summary that is written for it and not in use yet.
    pub summary: WrittenSummary,
    /// Who writes the summary of its thread.
    pub writer: SummaryWriter,
    /// An operator requested a compaction that this request can carry out.
    pub is_requested: bool,
    /// It waits for a summary also if it fits, but is past the threshold.
    pub waits_at_threshold: bool,
}

/// Whether a request waits for its summary from the threshold on: where policy says so, unless the summary is for
/// the turn after the open tool loop.
pub fn waits_at_threshold(request: &PlanRequest<'_>) -> bool {
    let needs_reasoning = request.is_bound() && request.is_in_loop();
    request.policy.compact.wait_at_threshold && !needs_reasoning
}

/// A summary that is written for a request and not in use yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenSummary {
    /// There is none.
    Missing,
    /// It can be used.
    Ready,
    /// It is for the turn after the open tool loop, which needs its reasoning.
    AfterLoop,
}

/// Who writes the summary of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryWriter {
    /// Nobody. One may be written.
    Nobody,
    /// This process.
    Here,
    /// Another process, so it appears in the store first.
    Elsewhere,
    /// Nobody, because summaries failed.
    CoolingDown,
}

/// What was done about a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleState {
    /// The provider said that it does not fit. Counts until a summary is used.
    pub overflows: bool,
    /// How many summaries were used.
    pub used: u8,
    /// The store was read, or a summary was waited for: what other processes wrote is known.
    pub is_fresh: bool,
}

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleEvent {
    /// The request is planned: for the first time, with a summary in use, or with what the store has.
    Planned,
    /// The summary could not be put into use: that decision could not be saved.
    NotSaved,
    /// The writer that was waited for is done, and the request is planned with what it wrote, if anything.
    WriterDone,
    /// There was no time to wait longer.
    TimedOut,
    /// No summary can be written, for this reason.
    CannotWrite(DecisionReason),
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleAction {
    /// Send the request; it needs no summary. Earlier failures of its thread no longer count.
    SendSmall,
    /// Send it as it is.
    Send,
    /// Send it as it is, and report why it is not compacted.
    Decline(DecisionReason),
    /// The same. If an operator requested a compaction, it ends, because it is impossible.
    GiveUp(DecisionReason),
    /// Send it. Once it is accepted, a summary is written for later requests.
    WriteLater,
    /// Write a summary, and wait for it.
    WriteNow,
    /// Wait for the summary that is being written.
    Wait,
    /// Put the written summary into use.
    Use,
    /// Read what other processes wrote.
    Refresh,
}

/// What is done next, and what is done once that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleStep {
    /// What is done next.
    pub action: ScheduleAction,
    /// The state once the action is done.
    pub state: ScheduleState,
}

/// What to do after `event`.
pub fn next(context: ScheduleContext, state: ScheduleState, event: ScheduleEvent) -> ScheduleStep {
    let action = match event {
        ScheduleEvent::Planned => context.action(state),
        ScheduleEvent::WriterDone if context.summary != WrittenSummary::Missing => {
            context.action(state)
        }
        ScheduleEvent::WriterDone | ScheduleEvent::TimedOut => {
            ScheduleAction::Decline(DecisionReason::NotReady)
        }
        ScheduleEvent::NotSaved => ScheduleAction::Decline(DecisionReason::NotKept),
        ScheduleEvent::CannotWrite(why) => context.unwritable(why),
    };
    ScheduleStep { action, state: state.after(action) }
}

impl ScheduleState {
    fn after(self, action: ScheduleAction) -> Self {
        match action {
            ScheduleAction::Use => Self { overflows: false, used: self.used + 1, ..self },
            ScheduleAction::Refresh | ScheduleAction::Wait | ScheduleAction::WriteNow => {
                Self { is_fresh: true, ..self }
            }
            ScheduleAction::SendSmall
            | ScheduleAction::Send
            | ScheduleAction::Decline(_)
            | ScheduleAction::GiveUp(_)
            | ScheduleAction::WriteLater => self,
        }
    }

    /// How urgently a request of this many tokens needs a summary now. `is_requested`: an operator requested a
    /// compaction that it can carry out, which is written now, and used as soon as it is written.
    pub fn need(
        self,
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        tokens: Option<u64>,
        is_requested: bool,
    ) -> CompactionNeed {
        let measured = tokens.map_or(CompactionNeed::No, |tokens| need_at(request, known, tokens));
        let overflows = self.overflows && policy_allows(request);
        let need = if overflows { CompactionNeed::Must } else { measured };
        let need = need.min(highest_need(request));
        let of_request =
            known.summaries.iter().any(|(_, one)| one.why == DecisionReason::Requested);
        match is_compactable(request) {
            true if of_request => need.max(CompactionNeed::Swap),
            true if is_requested && !known.summaries.is_empty() => need.max(CompactionNeed::Swap),
            true if is_requested => need.max(CompactionNeed::Prepare),
            _ => need,
        }
    }
}

impl WrittenSummary {
    /// The summary for a request that needs one this urgently.
    pub fn from_request(
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        need: CompactionNeed,
    ) -> WrittenSummary {
        match propose(request, known, need) {
            Ok(_) => WrittenSummary::Ready,
            Err(DecisionReason::OpenLoop) => WrittenSummary::AfterLoop,
            Err(_) => WrittenSummary::Missing,
        }
    }
}

impl ScheduleContext {
    fn action(self, state: ScheduleState) -> ScheduleAction {
        match (self.need, self.summary) {
            _ if state.used >= MOST_SUMMARIES => ScheduleAction::Send,
            (CompactionNeed::No, _) if state.used == 0 => ScheduleAction::SendSmall,
            (CompactionNeed::No, _) => ScheduleAction::Send,
            _ if self.mode == Mode::Shadow && self.is_due() => {
                ScheduleAction::Decline(DecisionReason::Shadow)
            }
            _ if self.mode != Mode::Active || !self.may_decide => ScheduleAction::Send,
            (_, WrittenSummary::Missing) => self.unwritten(state),
            (CompactionNeed::Prepare, _) => ScheduleAction::Send,
            (_, WrittenSummary::Ready) => ScheduleAction::Use,
            (_, WrittenSummary::AfterLoop) => ScheduleAction::Decline(DecisionReason::OpenLoop),
        }
    }

    fn unwritten(self, state: ScheduleState) -> ScheduleAction {
        match self.writer {
            // The store may have one that was written elsewhere.
            _ if !state.is_fresh && self.may_be_stored() => ScheduleAction::Refresh,
            SummaryWriter::Nobody if self.waits() => ScheduleAction::WriteNow,
            SummaryWriter::Nobody => ScheduleAction::WriteLater,
            SummaryWriter::Here | SummaryWriter::Elsewhere if self.waits() => ScheduleAction::Wait,
            _ if self.is_due() => ScheduleAction::Decline(DecisionReason::NotReady),
            _ => ScheduleAction::Send,
        }
    }

    /// What to do if no summary can be written, for this reason.
    fn unwritable(self, why: DecisionReason) -> ScheduleAction {
        match why {
            _ if !self.is_due() && !self.is_requested => ScheduleAction::Send,
            // Too many are written already.
            DecisionReason::NotReady => ScheduleAction::Decline(why),
            _ => ScheduleAction::GiveUp(why),
        }
    }

    fn is_due(self) -> bool {
        self.need >= CompactionNeed::Swap
    }

    fn waits(self) -> bool {
        self.need == CompactionNeed::Must || self.is_due() && self.waits_at_threshold
    }

    fn may_be_stored(self) -> bool {
        match self.writer {
            SummaryWriter::Nobody => true,
            SummaryWriter::Here => false,
            // All processes must use the same beginning of a thread, even while it cools down.
            SummaryWriter::Elsewhere | SummaryWriter::CoolingDown => self.is_due(),
        }
    }
}

/// Where the summary of a thread is being written, and how often it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterState {
    place: Option<WriterPlace>,
    failures: SummaryFailures,
}

/// The failures of a thread's summaries, since one was written or its history was small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryFailures {
    /// How many.
    pub count: u32,
    /// No summary is begun for a request before this time, ms since 1970.
    pub cools_until: Millis,
}

impl SummaryFailures {
    /// One failure more.
    #[must_use]
    pub fn and_one(self, cools_until: Millis) -> Self {
        Self { count: self.count.saturating_add(1), cools_until }
    }

    fn is_cooling_down(self, max_failures: u32, now: Millis) -> bool {
        // For a while, or after too many failures until the history is small again.
        self.count >= max_failures || now < self.cools_until
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterPlace {
    Here,
    Elsewhere,
}

/// How the writing of a summary ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritingEnd {
    /// Before it began, or for a reason that is no failure of the thread.
    Cancelled,
    /// Without a summary.
    Failed,
    /// With a summary.
    Written,
}

impl WriterState {
    /// The state once this process begins to write.
    #[must_use]
    pub fn begun(self) -> Self {
        Self { place: Some(WriterPlace::Here), ..self }
    }

    /// The state once it turns out that another process writes it.
    #[must_use]
    pub fn found_elsewhere(self) -> Self {
        Self { place: Some(WriterPlace::Elsewhere), ..self }
    }

    /// The state once the writing has ended. `cools_until`: when the next summary may begin if it failed.
    #[must_use]
    pub fn ended(self, end: WritingEnd, cools_until: Millis) -> Self {
        match end {
            WritingEnd::Cancelled => Self { place: None, ..self },
            WritingEnd::Failed => {
                Self { place: None, failures: self.failures.and_one(cools_until) }
            }
            WritingEnd::Written => Self::default(),
        }
    }

    /// The state with the failures at all processes.
    #[must_use]
    pub fn with_failures(self, failures: SummaryFailures) -> Self {
        Self { failures, ..self }
    }

    /// Who writes the summary.
    pub fn writer(self, max_failures: u32, now: Millis) -> SummaryWriter {
        match self.place {
            Some(WriterPlace::Here) => SummaryWriter::Here,
            Some(WriterPlace::Elsewhere) => SummaryWriter::Elsewhere,
            None if self.failures.is_cooling_down(max_failures, now) => SummaryWriter::CoolingDown,
            None => SummaryWriter::Nobody,
        }
    }
}

#[cfg(test)]
mod tests;
