//! When a history is compacted, and which requests wait for it (`docs/rewriting.md` "Compaction").
//!
//! From the prepare mark on, a summary is written in the background: one at a time per thread, also across
//! replicas. The request that crosses the threshold uses it. A request that would not fit waits for it, up to
//! a limit. If the client leaves, only the wait is cancelled.

use std::sync::Arc;
use std::time::Duration;

use http::request;
use tokio::sync::watch;
use tokio::time::Instant;

use super::summarize::{self, SummaryJob};
use crate::config::Mode;
use crate::context::Fact;
use crate::context::compact::{self, CompactionNeed, CutPoint, HistoryChunk};
use crate::context::plan::{Change, DecisionReason, PlanStep};
use crate::context::policy::SummaryAuthor;
use crate::dialect::lesson::Lesson;
use crate::dialect::{Chain, PartIndex, Span};
use crate::proxy::plan::planned_request::{self, PlannedRequest};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::scheduler::{CompactionKey, SummaryGuard, waited};
use crate::proxy::state::Proxy;
use crate::store::ledgers::OpenedSession;
use crate::telemetry::clock::now;

/// How often a request is compacted before it is sent as it is. A summary may leave too much, because much
/// was added since it was written.
const MOST_IN_A_ROW: usize = 2;
/// How long releasing claims may take at shutdown.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// Begins a summary for a thread; `None` if one is being written, or too many others are.
pub(crate) fn begin_summary(proxy: &Proxy, key: &CompactionKey) -> Option<SummaryGuard> {
    proxy.compacting.begin(key, proxy.config.policy.compact.cool_down_s * 1000)
}

/// A request, with everything that compacting it needs.
pub(crate) struct CompactionContext<'a> {
    proxy: &'a Arc<Proxy>,
    prepared: &'a Arc<PreparedRequest>,
    opened: &'a mut OpenedSession,
    planned: &'a mut PlannedRequest,
    /// The request's head as it is sent, with its credentials. Copied only if a summary is requested.
    head: &'a request::Parts,
    /// How long it waited for summaries.
    pub(crate) waited: Option<Duration>,
}

impl<'a> CompactionContext<'a> {
    /// For a request that has not waited yet.
    pub(crate) fn new(
        proxy: &'a Arc<Proxy>,
        prepared: &'a Arc<PreparedRequest>,
        opened: &'a mut OpenedSession,
        planned: &'a mut PlannedRequest,
        head: &'a request::Parts,
    ) -> Self {
        Self { proxy, prepared, opened, planned, head, waited: None }
    }

    /// Compacts a request if policy says so: uses a written summary, and waits for a missing one if the
    /// request would not fit. Returns the job to write a summary after the response, if one is due.
    pub(crate) async fn attend(&mut self) -> Option<SummaryJob> {
        if self.due(CompactionNeed::No) == CompactionNeed::No {
            self.forgive();
            return None;
        }
        // Boxed, because few requests need it and the future is large.
        Box::pin(self.compact(CompactionNeed::No, self.deadline())).await
    }

    /// Compacts the request now, if that is possible within `wait`; returns whether it was compacted. `must`:
    /// it does not fit, whatever the estimate says.
    pub(crate) async fn compact_now(&mut self, wait: Duration, must: bool) -> bool {
        let before = self.in_use();
        let least = if must { CompactionNeed::Must } else { CompactionNeed::No };
        drop(self.compact(least, Instant::now() + wait).await);
        self.in_use() != before
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.prepared.policy.compact.wait_s)
    }

    fn max_failures(&self) -> u32 {
        self.prepared.policy.compact.max_failures
    }

    fn in_use(&self) -> Option<Chain> {
        self.planned.known.compact().map(|(_, compact)| compact.about)
    }

    fn key(&self) -> CompactionKey {
        (self.opened.scope.clone(), self.opened.placed.position.thread.clone())
    }

    fn forgive(&self) {
        self.proxy.compacting.forgive(|| self.key());
    }

    /// How urgently it needs a summary, at least `least`.
    fn due(&self, least: CompactionNeed) -> CompactionNeed {
        let measured = self.planned.measured.as_ref();
        let tokens = measured.map(|measured| self.prepared.cost(measured).tokens);
        let due = tokens.map_or(CompactionNeed::No, |tokens| {
            compact::due(&self.prepared.request(), &self.planned.known, tokens)
        });
        let request = self.prepared.request();
        let due = if compact::may(&request) { due.max(least) } else { due };
        let due = due.min(compact::at_most(&request));
        // A compaction that an operator requested is written now, and used as soon as it is written.
        let summaries = &self.planned.known.summaries;
        let asked = summaries.iter().any(|(_, one)| one.why == DecisionReason::Asked);
        match compact::can(&request) {
            true if asked => due.max(CompactionNeed::Swap),
            true if self.has_pending_compaction() && !summaries.is_empty() => {
                due.max(CompactionNeed::Swap)
            }
            true if self.has_pending_compaction() => due.max(CompactionNeed::Prepare),
            _ => due,
        }
    }

    /// Whether a compaction of the conversation was requested. Applies to its main line, not to sub-agents.
    fn has_pending_compaction(&self) -> bool {
        self.proxy.ledgers.has_pending_compaction(&self.opened.scope) && self.opened.is_main_line()
    }

    /// Ends a requested compaction: it is done, or cannot be done, which is reported.
    fn close_pending_compaction(&self) {
        if self.has_pending_compaction()
            && let Some(mut claim) = self.proxy.ledgers.claim_compaction(self.opened.room())
        {
            claim.is_over();
        }
    }

    async fn compact(&mut self, least: CompactionNeed, until: Instant) -> Option<SummaryJob> {
        let (mut rounds, mut is_fresh) = (0, false);
        loop {
            let asked = if rounds == 0 { least } else { CompactionNeed::No };
            let due = self.due(asked);
            if due == CompactionNeed::No || rounds == MOST_IN_A_ROW {
                if rounds == 0 && due == CompactionNeed::No {
                    self.forgive();
                }
                return None;
            }
            match self.prepared.mode {
                Mode::Active if self.prepared.may_decide() => {}
                Mode::Shadow if due >= CompactionNeed::Swap => {
                    return self.refuse(DecisionReason::Shadow);
                }
                Mode::Active | Mode::Shadow | Mode::Observe => return None,
            }
            if due < CompactionNeed::Swap && !self.planned.known.summaries.is_empty() {
                return None;
            }
            if due >= CompactionNeed::Swap {
                match compact::propose(&self.prepared.request(), &self.planned.known, due) {
                    Ok(facts) => {
                        if !self.takes(facts).await {
                            return self.refuse(DecisionReason::NotKept);
                        }
                        if !self.proxy.ledgers.has_focus(&self.opened.scope) {
                            self.close_pending_compaction();
                        }
                        rounds += 1;
                        continue;
                    }
                    Err(DecisionReason::NotReady) => {}
                    Err(why) => return self.refuse(why),
                }
            }
            if !is_fresh {
                is_fresh = true;
                if self.asks_others(due).await {
                    continue;
                }
            }
            if let Some(writing) = self.proxy.compacting.writing(&self.key()) {
                if due < CompactionNeed::Must || !self.waits(writing, until).await {
                    return self.refuse_late(due);
                }
                self.look_again().await;
                // It was not written after all, so there is nothing more to wait for.
                if self.planned.known.summaries.is_empty() {
                    return self.refuse(DecisionReason::NotReady);
                }
                continue;
            }
            if self.proxy.compacting.rests(&self.key(), self.max_failures()) {
                return self.refuse_late(due);
            }
            let writer = match self.writer(due).await {
                Ok(writer) => writer,
                Err(why) => {
                    let asked = self.has_pending_compaction();
                    // Ends a requested compaction that is impossible; the exchange's record has the reason.
                    if why != DecisionReason::NotReady {
                        self.close_pending_compaction();
                    }
                    return if due < CompactionNeed::Swap && !asked {
                        None
                    } else {
                        self.refuse(why)
                    };
                }
            };
            if due < CompactionNeed::Must {
                return Some(writer);
            }
            writer.begin();
            if self.proxy.compacting.writing(&self.key()).is_none() {
                return self.refuse(DecisionReason::NotReady);
            }
        }
    }

    /// Looks for a summary that another replica wrote; returns whether anything new is known.
    async fn asks_others(&mut self, due: CompactionNeed) -> bool {
        if !self.proxy.compacting.may_be_elsewhere(&self.key(), self.max_failures(), due) {
            return false;
        }
        let refreshing = self.proxy.ledgers.refresh(&self.opened.scope);
        let _ = self.opened.reads.wait(refreshing).await;
        self.look_again().await
    }

    async fn waits(&mut self, writing: watch::Receiver<()>, until: Instant) -> bool {
        let began = Instant::now();
        let is_done = waited(writing, until).await;
        *self.waited.get_or_insert_default() += began.elapsed();
        is_done
    }

    /// The job to write a summary of the request.
    async fn writer(&self, due: CompactionNeed) -> Result<SummaryJob, DecisionReason> {
        let choices = self.choices().await?;
        let measured = self.planned.measured.as_ref().ok_or(DecisionReason::NothingToCut)?;
        let writing = begin_summary(self.proxy, &self.key()).ok_or(DecisionReason::NotReady)?;
        let room = self.opened.room();
        let claim = self
            .has_pending_compaction()
            .then(|| self.proxy.ledgers.claim_compaction(room.clone()))
            .flatten();
        let cached = self.cached(due, &choices).await;
        let reads = cached.as_ref().unwrap_or(self.planned);
        let parts = reads.measured.as_ref().unwrap_or(measured).parts.clone();
        Ok(SummaryJob {
            claim,
            room,
            proxy: self.proxy.clone(),
            prepared: self.prepared.clone(),
            known: reads.known.clone(),
            parts,
            tokens: measured.estimate.tokens,
            edits: reads.edits.clone(),
            head: self.head.clone(),
            choices,
            due,
            writing,
        })
    }

    /// The request in the form that the provider has cached. Only if the summary is written before the
    /// request is sent, by the request's own model, and the part to summarise fits the window in that form.
    async fn cached(
        &self,
        due: CompactionNeed,
        choices: &[(SummaryAuthor, CutPoint)],
    ) -> Option<PlannedRequest> {
        let policy = &self.prepared.policy.compact;
        if due < CompactionNeed::Must || policy.model.is_some() || policy.upstream.is_some() {
            return None;
        }
        let cached = self.planned.as_cached(self.prepared).await?;
        let parts = &cached.measured.as_ref()?.parts;
        let request = self.prepared.request();
        let fits = choices.iter().all(|(_, choice)| {
            let piece = HistoryChunk { from: 0, through: choice.cut };
            let history = compact::weigh(&request, &cached.known, parts, piece);
            summarize::head_tokens(parts).saturating_add(history) <= compact::usable(&request)
        });
        fits.then_some(cached)
    }

    /// Who may write it, and where each one would cut, the first choice first.
    async fn choices(&self) -> Result<Vec<(SummaryAuthor, CutPoint)>, DecisionReason> {
        let measured = self.planned.measured.as_ref().ok_or(DecisionReason::NothingToCut)?;
        let refused = self.proxy.knows(&self.prepared.source(), Lesson::CompactionRefused);
        let request = self.prepared.request();
        let is_told =
            self.has_pending_compaction() && self.proxy.ledgers.has_focus(&self.opened.scope);
        let is_told = is_told || self.prepared.policy.compact.focus.is_some();
        let writers = compact::writers(&request, refused, is_told);
        if writers.is_empty() {
            return Err(DecisionReason::Provider);
        }
        let (known, parts) = (&self.planned.known, &measured.parts);
        let choose =
            |by: &SummaryAuthor| Some((*by, compact::choose(&request, known, parts, *by)?));
        let choices: Vec<_> = writers.iter().filter_map(choose).collect();
        if choices.is_empty() { Err(DecisionReason::NothingToCut) } else { Ok(choices) }
    }

    /// Puts a summary into use; returns whether it is in use.
    async fn takes(&mut self, facts: Vec<Fact>) -> bool {
        let before = self.in_use();
        let suspended = self.planned.known.suspended;
        let Ok(saved) = planned_request::save(self.proxy, self.opened, facts, suspended).await
        else {
            return false;
        };
        self.planned.add_saved(self.prepared, saved).await;
        self.in_use() != before
    }

    /// Reads what others wrote meanwhile; returns whether anything is new.
    async fn look_again(&mut self) -> bool {
        let is_shadow = self.prepared.request().is_shadow();
        let mut known = self.opened.look_again(&self.prepared.conversation, is_shadow);
        known.keeps_what_was_taken_over(&self.planned.known);
        let of = |known: &crate::context::plan::RecordedDecisions| {
            (known.compact().map(|(_, one)| one.about), known.summaries.len())
        };
        let is_new = of(&known) != of(&self.planned.known);
        if is_new {
            self.planned.replan_with(self.prepared, known).await;
        }
        is_new
    }

    /// No summary is written yet. This is reported if one should have been in use by now.
    fn refuse_late(&mut self, due: CompactionNeed) -> Option<SummaryJob> {
        if due < CompactionNeed::Swap { None } else { self.refuse(DecisionReason::NotReady) }
    }

    fn refuse(&mut self, why: DecisionReason) -> Option<SummaryJob> {
        let tokens = self.planned.measured.as_ref().map_or(0, |it| it.estimate.tokens);
        let first = self.prepared.conversation.messages.first();
        let span = first.map_or(Span::new(0, 0), |message| message.span);
        let step = PlanStep::refused(Change::Compacted, why, PartIndex::default(), span, tokens);
        self.planned.refuses(step);
        None
    }
}

/// Releases the claims of this process, so that other processes and its own next start can write.
pub(crate) async fn finish(proxy: &Proxy) {
    let claims = std::mem::take(&mut *proxy.compacting.claims());
    let giving_back = async {
        for what in claims {
            // A claim that cannot be released expires by itself.
            let _ = proxy.ledgers.claims().release(&what, proxy.run, now()).await;
        }
    };
    let _ = tokio::time::timeout(GIVING_BACK, giving_back).await;
}
