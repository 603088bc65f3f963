//! Compacts a request: performs what `context/compact/schedule.rs` decides.
//!
//! From the prepare mark on, a summary is written in the background: one at a time per thread, also across
//! replicas. The request that crosses the threshold uses it. A request that would not fit waits for it, up to
//! a limit. If the client leaves, only the wait is cancelled.

use std::time::Duration;

use http::request;
use tokio::sync::watch;
use tokio::time::Instant;

use super::summarize::{self, RELEASING, SummaryChoice, SummaryJob};
use crate::clock::now;
use crate::context::Fact;
use crate::context::compact::schedule::{
    self, ScheduleAction, ScheduleContext, ScheduleEvent, ScheduleState, SummaryWriter,
    WrittenSummary,
};
use crate::context::compact::{self, CompactionNeed, HistoryChunk, SummaryFocus};
use crate::context::plan::{self, Change, DecisionReason, PlanStep};
use crate::dialect::{Chain, PartIndex, Span};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::state::summaries::{CompactionKey, SummaryGuard, wait_until_done};

/// Begins a summary for a thread; `None` if one is being written, or too many others are.
pub(crate) fn begin_summary(proxy: &Proxy, key: &CompactionKey) -> Option<SummaryGuard> {
    proxy.summaries.begin(key, proxy.config.policy.compact.cool_down_s * 1000)
}

impl PlacedRequest {
    /// Compacts a request if policy says so: uses a written summary, and waits for a missing one if the
    /// request would not fit. Returns the job to write a summary after the response, if one is due. `head`: the
    /// request's, as it is sent, with its credentials. Copied only if a summary is requested.
    pub(crate) async fn compact_if_due(&mut self, head: &request::Parts) -> Option<SummaryJob> {
        let state = ScheduleState::default();
        let step = schedule::next(self.schedule_context(state), state, ScheduleEvent::Planned);
        if step.action == ScheduleAction::SendSmall {
            self.reset_failures();
            return None;
        }
        // Boxed, because few requests need it and the future is large.
        let wait = Duration::from_secs(self.planned.prepared.info.policy.compact.wait_s);
        Box::pin(self.compact(head, state, Instant::now() + wait)).await
    }

    /// Compacts the request now, if it may still wait for that; returns whether it was compacted. `overflows`: it does
    /// not fit, whatever the estimate says.
    pub(crate) async fn compact_now(&mut self, head: &request::Parts, overflows: bool) -> bool {
        // All waits together are bounded.
        let wait = Duration::from_secs(self.planned.prepared.info.policy.compact.wait_s);
        let wait = wait.saturating_sub(self.summary_wait);
        let previous_summary = self.in_use();
        let state = ScheduleState { overflows, ..ScheduleState::default() };
        // No job for later: the request is about to be sent, and only its summary counts.
        drop(self.compact(head, state, Instant::now() + wait).await);
        self.in_use() != previous_summary
    }

    /// Performs one action after another, until the request can be sent.
    async fn compact(
        &mut self,
        head: &request::Parts,
        mut state: ScheduleState,
        until: Instant,
    ) -> Option<SummaryJob> {
        let mut event = ScheduleEvent::Planned;
        loop {
            let context = self.schedule_context(state);
            let step = schedule::next(context, state, event);
            state = step.state;
            event = match step.action {
                ScheduleAction::SendSmall => {
                    self.reset_failures();
                    return None;
                }
                ScheduleAction::Send => return None,
                ScheduleAction::Decline(why) => {
                    self.decline(why);
                    return None;
                }
                ScheduleAction::GiveUp(why) => {
                    // The exchange's record has the reason.
                    self.close_pending_compaction();
                    self.decline(why);
                    return None;
                }
                ScheduleAction::WriteLater => match self.job(head, context.need, state).await {
                    Ok(job) => return Some(job),
                    Err(why) => ScheduleEvent::CannotWrite(why),
                },
                ScheduleAction::WriteNow => match self.job(head, context.need, state).await {
                    Ok(job) => {
                        let writing = self.writing();
                        job.begin();
                        self.wait(writing, until).await
                    }
                    Err(why) => ScheduleEvent::CannotWrite(why),
                },
                ScheduleAction::Wait => self.wait(self.writing(), until).await,
                ScheduleAction::Use => self.use_summary(context.need).await,
                ScheduleAction::Refresh => self.refresh_from_store().await,
            };
        }
    }

    /// The summary in use, by the prefix that it replaces.
    fn in_use(&self) -> Option<Chain> {
        self.planned.known.compact().map(|(_, compact)| compact.about)
    }

    fn key(&self) -> CompactionKey {
        (self.opened.scope.clone(), self.opened.placed.position.thread.clone())
    }

    fn reset_failures(&self) {
        self.proxy.summaries.reset_failures(|| self.key());
        if self.proxy.ledgers.is_shared() {
            let thread = &self.opened.placed.position.thread;
            self.proxy.ledgers.forget_failures(&self.opened.handle(), thread);
        }
    }

    fn writing(&self) -> Option<watch::Receiver<()>> {
        self.proxy.summaries.writing(&self.key())
    }

    /// The request as it is planned now.
    fn schedule_context(&self, state: ScheduleState) -> ScheduleContext {
        let request = self.planned.prepared.plan_request();
        let decisions = &self.planned.known;
        let measured = self.planned.measured.as_ref();
        // A summary in use has taken the cuts away that were waiting.
        let waiting = match state.used {
            0 => plan::waiting_savings(&self.planned.declined),
            _ => 0,
        };
        let tokens = measured
            .map(|measured| self.planned.prepared.cost(measured).tokens.saturating_sub(waiting));
        let is_requested = self.has_pending_compaction();
        let need = state.need(&request, decisions, tokens, is_requested);
        let max_failures = request.policy.compact.max_failures;
        ScheduleContext {
            need,
            mode: request.mode,
            may_decide: self.planned.prepared.may_decide(),
            summary: WrittenSummary::from_request(&request, decisions, need),
            writer: match need {
                // Most requests need none, and nobody has to look it up.
                CompactionNeed::No => SummaryWriter::Nobody,
                _ => {
                    let key = self.key();
                    let ledgers = &self.proxy.ledgers;
                    let failures = ledgers.summary_failures(&self.opened.handle(), &key.1);
                    self.proxy.summaries.writer(&key, failures, max_failures, now())
                }
            },
            is_requested,
            waits_at_threshold: schedule::waits_at_threshold(&request),
        }
    }

    /// Whether a compaction of the conversation was requested.
    fn has_pending_compaction(&self) -> bool {
        // Applies to its main line, not to sub-agents.
        self.proxy.ledgers.has_pending_compaction(&self.opened.scope) && self.opened.is_main_line()
    }

    /// Ends a requested compaction: it is done, or cannot be done, which is reported.
    fn close_pending_compaction(&self) {
        if self.has_pending_compaction()
            && let Some(mut claim) = self.proxy.ledgers.claim_compaction(self.opened.handle())
        {
            claim.close();
        }
    }

    /// Reads what other processes wrote.
    async fn refresh_from_store(&mut self) -> ScheduleEvent {
        let refreshing = self.proxy.ledgers.refresh(&self.opened.scope);
        let _ = self.opened.reads.wait(refreshing).await;
        self.reload_decisions().await;
        ScheduleEvent::Planned
    }

    /// Waits for the summary that is being written.
    async fn wait(
        &mut self,
        writing: Option<watch::Receiver<()>>,
        until: Instant,
    ) -> ScheduleEvent {
        // If nobody writes it any more, it is done.
        if let Some(writing) = writing {
            let began = Instant::now();
            let is_done = wait_until_done(writing, until).await;
            self.summary_wait += began.elapsed();
            if !is_done {
                return ScheduleEvent::TimedOut;
            }
        }
        self.reload_decisions().await;
        ScheduleEvent::WriterDone
    }

    /// The job to write a summary of the request.
    async fn job(
        &self,
        head: &request::Parts,
        due: CompactionNeed,
        state: ScheduleState,
    ) -> Result<SummaryJob, DecisionReason> {
        let mut choices = self.choices().await?;
        // A request that does not fit, or an operator who asks, gets a summary of any worth.
        if !state.overflows && !self.has_pending_compaction() {
            let request = self.planned.prepared.plan_request();
            let decisions = &self.planned.known;
            choices.retain(|choice| {
                compact::is_worth_writing(&request, decisions, &choice.point, self.tokens(), due)
            });
            if choices.is_empty() {
                return Err(DecisionReason::LittleRoom);
            }
        }
        let measured = self.planned.measured.as_ref().ok_or(DecisionReason::NothingToCut)?;
        // Last of what can fail: from here on, others wait for this summary.
        let writing = begin_summary(&self.proxy, &self.key()).ok_or(DecisionReason::NotReady)?;
        let handle = self.opened.handle();
        let mut claim = None;
        if self.has_pending_compaction() {
            claim = self.proxy.ledgers.claim_compaction(handle.clone());
        }
        let cached = self.cached(due, &choices).await;
        // The summariser reads what the provider has cached, if it can, because that costs less.
        let reads = cached.as_ref().unwrap_or(&self.planned);
        let parts = reads.measured.as_ref().unwrap_or(measured).parts.clone();
        Ok(SummaryJob {
            claim,
            handle,
            proxy: self.proxy.clone(),
            prepared: self.planned.prepared.clone(),
            known: reads.known.clone(),
            parts,
            tokens: measured.estimate.tokens,
            edits: reads.plan.edits.as_slice().into(),
            head: head.clone(),
            choices,
            due,
            writing,
        })
    }

    /// The request in the form that the provider has cached.
    async fn cached(
        &self,
        due: CompactionNeed,
        choices: &[SummaryChoice],
    ) -> Option<PlannedRequest> {
        // Only if the summary is written before the request is sent, by the request's own model, and the part
        // to summarise fits the window in that form.
        let policy = &self.planned.prepared.info.policy.compact;
        if due < CompactionNeed::Must || policy.model.is_some() || policy.upstream.is_some() {
            return None;
        }
        let cached = self.planned.as_cached().await?;
        let parts = &cached.measured.as_ref()?.parts;
        let request = self.planned.prepared.plan_request();
        let fits = choices.iter().all(|choice| {
            let piece = HistoryChunk { from: 0, through: choice.point.cut };
            let history = compact::weigh(&request, &cached.known, parts, piece);
            summarize::head_tokens(parts).saturating_add(history) <= request.fillable()
        });
        if fits { Some(cached) } else { None }
    }

    /// Who may write it, and where each one would cut, the first choice first.
    async fn choices(&self) -> Result<Vec<SummaryChoice>, DecisionReason> {
        let measured = self.planned.measured.as_ref().ok_or(DecisionReason::NothingToCut)?;
        let request = self.planned.prepared.plan_request();
        let is_focused =
            self.has_pending_compaction() && self.proxy.ledgers.has_focus(&self.opened.scope);
        let focus = if is_focused { SummaryFocus::OfOperator } else { SummaryFocus::OfPolicy };
        let writers = compact::writers(&request, focus);
        if writers.is_empty() {
            return Err(DecisionReason::Provider);
        }
        let decisions = &self.planned.known;
        let mut choices = Vec::new();
        for by in writers.iter().copied() {
            let point = compact::choose(&request, decisions, &measured.parts, self.tokens(), by);
            choices.extend(point.map(|point| SummaryChoice { by, point }));
        }
        if choices.is_empty() { Err(DecisionReason::NothingToCut) } else { Ok(choices) }
    }

    /// Puts the written summary into use.
    async fn use_summary(&mut self, due: CompactionNeed) -> ScheduleEvent {
        let facts =
            compact::propose(&self.planned.prepared.plan_request(), &self.planned.known, due);
        let Ok(facts) = facts else { return ScheduleEvent::NotSaved };
        if !self.save_and_replan(facts).await {
            return ScheduleEvent::NotSaved;
        }
        // A summary that was written without the operator's focus is not the requested one.
        if !self.proxy.ledgers.has_focus(&self.opened.scope) {
            self.close_pending_compaction();
        }
        ScheduleEvent::Planned
    }

    /// Saves the decision to use a summary, and plans again with it; returns whether another summary is in use.
    async fn save_and_replan(&mut self, facts: Vec<Fact>) -> bool {
        let previous_summary = self.in_use();
        let epoch = self.planned.known.epoch;
        let Ok(saved) = self.save(facts, epoch).await else { return false };
        self.planned.add_saved(saved).await;
        // The first write wins: another process may have saved another summary in its place.
        self.in_use() != previous_summary
    }

    /// Plans again with what others wrote meanwhile, if anything is new.
    async fn reload_decisions(&mut self) {
        let mode = self.planned.prepared.mode.decisions();
        let mut decisions = self.opened.reload_decisions(&self.planned.prepared.conversation, mode);
        decisions.keep_adopted(&self.planned.known);
        let in_use = decisions.compact().map(|(_, compact)| compact.about);
        // Planning is dear, and most often nothing changed.
        if in_use != self.in_use()
            || decisions.summaries.len() != self.planned.known.summaries.len()
        {
            self.planned.replan_with(decisions).await;
        }
    }

    /// Whether the request that it continues was past the threshold.
    fn was_due_before(&self) -> bool {
        let request = self.planned.prepared.plan_request();
        let threshold = request.policy.compact.threshold(request.fillable());
        let input = self.planned.known.parent.as_ref().and_then(|turn| turn.usage.input);
        input.is_some_and(|input| input >= threshold)
    }

    /// Its tokens as planned; 0 if it was not measured.
    fn tokens(&self) -> u64 {
        self.planned.measured.as_ref().map_or(0, |measured| measured.estimate.tokens)
    }

    /// Records why the request is not compacted.
    fn decline(&mut self, why: DecisionReason) {
        // That there is too little room for a summary is said once: not if the request before was as large.
        let tokens = self.tokens();
        if why == DecisionReason::LittleRoom {
            if self.was_due_before() {
                return;
            }
            let session = &self.opened.scope.session;
            tracing::warn!(
                "session {session} is not compacted: there is too little room for a summary to last"
            );
        }
        let first_message = self.planned.prepared.conversation.messages.first();
        let span = first_message.map_or(Span::new(0, 0), |message| message.span);
        let step = PlanStep::declined(Change::Compacted, why, PartIndex::default(), span, tokens);
        self.planned.add_declined(step);
    }
}

/// Releases the claims of this process, so that other processes and its own next start can write.
pub(crate) async fn finish(proxy: &Proxy) {
    let claims = std::mem::take(&mut *proxy.summaries.claims());
    let releasing = async {
        for claim in claims {
            // A claim that cannot be released expires by itself.
            let _ = proxy.ledgers.release(claim, proxy.run).await;
        }
    };
    let _ = tokio::time::timeout(RELEASING, releasing).await;
}
