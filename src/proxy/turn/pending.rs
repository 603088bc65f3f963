//! An exchange from its plan to its ending: the request that waits for its answer, and in which forms it went.
//!
//! What was added, cut, taken back or made room for on the way is kept here until the turn is built from it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::request;

use super::{build, drafts};
use crate::context::budget::ClassicEstimate;
use crate::context::overflow::{self, OverflowReport, OverflowSign};
use crate::context::policy::{Mode, ReportedUsage as ToldUsage};
use crate::context::{
    Estimate, Fact, Millis, Revocation, RevocationRetry, Suspension, inject, repair,
};
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::models::ReasoningBinding;
use crate::dialect::overflow::Overflow;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::{Refusal, RepairCause};
use crate::dialect::{PartKey, Purpose};
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::learning::counting::{self, PendingCount};
use crate::proxy::learning::request_info::RequestInfo;
use crate::proxy::plan::planned_request::{PlannedRequest, PlannedRewrite};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::plan::undelivered::{UndeliveredMessage, wait_again};
use crate::proxy::response::usage_rewrite::UsageAddition;
use crate::proxy::state::Proxy;
use crate::store::ledgers::{DraftGuard, OpenedSession, SessionRoom};
use crate::telemetry::clock::now;
use crate::telemetry::{OpenExchange, RefusalOutcome};
use crate::wire::splice::Edit;

/// What a turn is made of before its reply is known.
pub(crate) struct PendingExchange {
    pub(super) opened: OpenedSession,
    pub(super) prepared: Arc<PreparedRequest>,
    pub(super) planned: PlannedRequest,
    pub(super) counted: Option<PendingCount>,
    /// What stays of it where this process ends first.
    pub(super) draft: DraftGuard,
    /// What it says, until it is answered.
    pub(super) undelivered: Option<UndeliveredMessage>,
}

impl PendingExchange {
    /// From now on it is known that it began, at this time.
    pub(crate) fn begin(
        proxy: &Proxy,
        opened: OpenedSession,
        prepared: Arc<PreparedRequest>,
        planned: PlannedRequest,
        undelivered: Option<UndeliveredMessage>,
        at: Millis,
    ) -> Self {
        let streams = prepared.conversation.stream;
        let delay = if streams { drafts::STREAM } else { drafts::UNARY };
        let draft = build::draft(&opened, &prepared, &planned, at);
        let draft = proxy.ledgers.draft(&opened, draft, delay);
        Self { opened, prepared, planned, counted: None, draft, undelivered }
    }

    /// The draft says what was sent in the end.
    pub(super) fn revise_draft(&self) {
        let Self { opened, prepared, planned, draft, .. } = self;
        draft.revise(|turn| {
            let is_same = turn.done == planned.done
                && turn.estimate.as_ref() == self.estimate()
                && turn.position == opened.placed.position;
            (!is_same).then(|| build::draft(opened, prepared, planned, turn.at))
        });
    }

    /// What is measured.
    pub(crate) fn prepared(&self) -> &PreparedRequest {
        &self.prepared
    }

    /// Whether other bytes are sent than came.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.planned.done.is_sent()
    }

    /// Has its provider count it, where policy wants that. Head and body are what goes out.
    pub(crate) fn count_where_wanted(
        &mut self,
        proxy: &Arc<Proxy>,
        head: &request::Parts,
        sent: &OutgoingBody,
    ) {
        let Some(estimate) = self.estimate() else { return };
        let is_rewritten = self.is_rewritten();
        self.counted = counting::ask(proxy, &self.prepared, estimate, is_rewritten, head, sent);
    }

    /// What the request will cost.
    pub(crate) fn estimate(&self) -> Option<&Estimate> {
        self.planned.measured.as_ref().map(|measured| &measured.estimate)
    }

    /// What is seen of it while it is on its way.
    pub(crate) fn open_exchange(&self, at: Millis) -> Option<OpenExchange> {
        let scope = &self.opened.scope;
        Some(OpenExchange {
            id: self.prepared.exchange.clone(),
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            thread: self.opened.placed.position.thread.clone(),
            at,
            purpose: self.prepared.conversation.purpose,
            view: self.planned.view(&self.prepared)?,
        })
    }

    /// What an agent's rules say that it will cost, where they are asked.
    pub(crate) fn classic(&self) -> Option<&ClassicEstimate> {
        self.planned.measured.as_ref()?.classic.as_ref()
    }

    /// What the head has to list for them.
    pub(crate) fn beta(&self) -> Option<&'static str> {
        self.planned.beta(&self.prepared)
    }

    /// The changes of bytes, once.
    pub(crate) fn edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.planned.edits)
    }

    /// The original is sent in place of what was refused.
    pub(crate) async fn set_sent_as_original(&mut self, recorder: &mut ExchangeRecorder) {
        self.planned.is_sent_as_it_came(&self.prepared).await;
        recorder.event.estimate = self.estimate().cloned();
        recorder.event.classic = self.classic().cloned();
    }

    /// The provider said that the request does not fit: what it said of the window holds for this
    /// request, and is learned where its words teach.
    ///
    /// `taught`: what the same words teach, if anything.
    pub(crate) async fn record_overflow(
        &mut self,
        sign: OverflowSign,
        said: Overflow,
        taught: &LessonMatch,
        recorder: &mut ExchangeRecorder,
    ) {
        let overflowed = OverflowReport { sign, said, saved: false };
        recorder.event.done.overflow = Some(overflowed);
        self.planned.done.overflow = Some(overflowed);
        let Some(window) = said.window else { return };
        let prepared = Arc::make_mut(&mut self.prepared);
        let believed = std::mem::replace(&mut prepared.model.window, window);
        let proxy = recorder.proxy.clone();
        prepared.reserve = prepared.model.reserve(proxy.config.output_reserve);
        recorder.event.window = Some(window);
        let estimate = self.estimate().map(|estimate| (estimate.tokens, estimate.method));
        let info = RequestInfo::of(&self.prepared);
        let Some(window) = info.believes(taught, estimate, &proxy) else { return };
        let timeout = Duration::from_millis(proxy.config.limits.save_ms);
        let learning = tokio::spawn(async move {
            proxy.learn(&info.source(), Lesson::Window(window), Some(believed)).await;
        });
        let _ = tokio::time::timeout(timeout, learning).await;
    }

    /// Whether what is said of the window contradicts what was sent, so that it is about something else. Then
    /// nothing is learned of it, which is counted.
    pub(crate) fn contradicts_estimate(
        &self,
        said: &Overflow,
        taught: &LessonMatch,
        recorder: &ExchangeRecorder,
    ) -> bool {
        let parts = &self.prepared.conversation;
        let Some(estimate) = self.estimate() else { return false };
        let is_wild = overflow::contradicts(said, estimate, parts);
        if is_wild {
            let size = Some((estimate.tokens, estimate.method));
            let _ = RequestInfo::of(&self.prepared).believes(taught, size, &recorder.proxy);
        }
        is_wild
    }

    /// The provider said how much its model writes at most, and took a request that asks for no more: learned, so
    /// that no other is refused for it. `taught`: what its words teach.
    pub(crate) async fn learn_max_output(&self, taught: &LessonMatch, recorder: &ExchangeRecorder) {
        let asked = self.prepared.conversation.max_output;
        let most = taught.max_output().filter(|most| asked.is_some_and(|asked| asked > *most));
        let (info, proxy) = (RequestInfo::of(&self.prepared), recorder.proxy.clone());
        proxy.count_quoted(&self.prepared.upstream, taught);
        let Some(most) = most else { return };
        let timeout = Duration::from_millis(proxy.config.limits.save_ms);
        let learning = tokio::spawn(async move {
            proxy.learn(&info.source(), Lesson::MaxOutput(most), None).await;
        });
        let _ = tokio::time::timeout(timeout, learning).await;
    }

    /// Room in a request that does not fit: by cutting what can be cut, else, or where that is too
    /// little, by a summary. `None` where there is none. `head`: the request's, as it goes out.
    pub(crate) async fn make_room(
        &mut self,
        said: Overflow,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<RevisedRequest> {
        let (prepared, proxy) = (&self.prepared, &recorder.proxy.clone());
        let making = self.planned.with_room(proxy, prepared, &self.opened, said);
        let pruned = AssertUnwindSafe(making).catch_unwind().await.ok().flatten();
        let is_pruned = pruned.is_some();
        let mut planned = match pruned {
            Some(planned) => planned,
            // Its edits went out with it.
            None => self.planned.again(prepared).await,
        };
        let (opened, timeout) = (&mut self.opened, prepared.policy.compact.wait_s);
        // All its waits together are bounded.
        let waited = recorder.event.compaction_wait_us.unwrap_or(0);
        let timeout = Duration::from_secs(timeout);
        let timeout = timeout.saturating_sub(Duration::from_micros(waited));
        let mut attended = CompactionContext::new(proxy, prepared, opened, &mut planned, head);
        let compacting = attended.compact_now(timeout, !is_pruned);
        let compacted = AssertUnwindSafe(compacting).catch_unwind().await.unwrap_or(false);
        let more = attended.waited.map(|waited| waited.as_micros() as u64);
        if let Some(more) = more {
            recorder.event.compaction_wait_us = Some(waited.saturating_add(more));
        }
        let plain = prepared.body.clone();
        let beta = planned.beta(prepared);
        (compacted || is_pruned).then_some(RevisedRequest { plain, beta, planned })
    }

    /// Whether a refusal of it may be answered by a change.
    pub(crate) fn may_repair(&self) -> bool {
        self.may_make_room() && !self.prepared.unknown
    }

    /// Whether policy has this repaired.
    pub(crate) fn repairs(&self, cause: RepairCause) -> bool {
        self.prepared.policy.heal.causes.contains(&cause)
    }

    /// The request with the smallest change that answers a refusal of it, or of it as it was repaired `before`, and
    /// what was decided for that. `None` where there is none, or it could not be kept.
    pub(crate) async fn repair(
        &mut self,
        refusal: &Refusal,
        before: Option<&RevisedRequest>,
        recorder: &mut ExchangeRecorder,
    ) -> Option<(RevisedRequest, Vec<PartKey>)> {
        if repair::is_of_window(refusal) {
            Arc::make_mut(&mut self.prepared).counted_input = refusal.count;
        }
        let (proxy, prepared) = (recorder.proxy.clone(), self.prepared.clone());
        let base = before.map_or(&self.planned, |before| &before.planned);
        let repairing = base.repaired(&proxy, &prepared, &self.opened, refusal);
        let repaired = AssertUnwindSafe(repairing).catch_unwind().await.ok();
        let (planned, decisions) = match repaired.unwrap_or(Err(RefusalOutcome::NoRepair)) {
            Ok(repaired) => repaired,
            Err(why) => {
                recorder.report_refusal(&[refusal.cause], why);
                return None;
            }
        };
        let (plain, beta) = (prepared.body.clone(), planned.beta(&prepared));
        Some((RevisedRequest { plain, beta, planned }, decisions))
    }

    /// What the provider answered is the answer to the request as it was repaired.
    pub(crate) fn set_repaired(
        &mut self,
        repaired: RevisedRequest,
        healed: &[RepairCause],
        recorder: &mut ExchangeRecorder,
    ) {
        self.planned = repaired.planned;
        self.planned.done.healed = healed.to_vec();
        self.update_event(recorder);
    }

    /// What the provider answered is the answer to the request with room in it.
    pub(crate) fn set_room(
        &mut self,
        room: RevisedRequest,
        saved: bool,
        recorder: &mut ExchangeRecorder,
    ) {
        let said = self.planned.done.overflow.take();
        self.planned = room.planned;
        self.planned.done.overflow = said.map(|said| OverflowReport { saved, ..said });
        self.update_event(recorder);
    }

    fn update_event(&self, recorder: &mut ExchangeRecorder) {
        let event = &mut recorder.event;
        event.done = self.planned.done.clone();
        event.estimate = self.estimate().cloned();
        event.classic = self.classic().cloned();
    }

    /// Whether it is large enough that its answer, though accepted, may turn out to say that it does not
    /// fit: past half of the window, or where nobody knows the window, past what any holds.
    pub(crate) fn may_overflow(&self) -> bool {
        let model = &self.prepared.model;
        let least = if model.known { model.window / 2 } else { overflow::ANY_HOLDS };
        let is_turn = self.prepared.conversation.purpose == Purpose::Turn;
        is_turn && self.estimate().is_some_and(|estimate| estimate.tokens > least)
    }

    /// Whether it may be sent again with room made in it, should it not fit.
    pub(crate) fn may_make_room(&self) -> bool {
        let prepared = &self.prepared;
        prepared.mode == Mode::Active && !prepared.held_out && !prepared.signed
    }

    /// Whether something was put into the request that its client left out.
    pub(crate) fn has_reasoning_back(&self) -> bool {
        self.planned.done.made.put_back > 0
    }

    /// Whether anything is changed that the client's reasoning may rest on: more than what was refused before.
    pub(crate) fn may_unbind(&self) -> bool {
        let made = &self.planned.done.made;
        let known = &self.planned.known;
        made.count() > made.repaired + made.taken_out || known.takes_out_unrefused()
    }

    /// The request as those before it were sent, where a refusal that names `cause` may be due to what was
    /// decided for it; what the refusal says of the model holds for it already.
    pub(crate) async fn as_last_accepted(&mut self, cause: RefusalCause) -> Option<RevisedRequest> {
        if cause == RefusalCause::Bound {
            Arc::make_mut(&mut self.prepared).model.binding = ReasoningBinding::Prefix;
        }
        let replanning = self.planned.without_own_decisions(&self.prepared, cause);
        let planned = AssertUnwindSafe(replanning).catch_unwind().await.ok().flatten()?;
        let (plain, beta) = (self.prepared.body.clone(), planned.beta(&self.prepared));
        Some(RevisedRequest { plain, beta, planned })
    }

    /// What the provider answered is the answer to the request as those before it were sent: answers what
    /// it decided beside, which is void.
    pub(crate) fn set_sent_as_last_accepted(
        &mut self,
        before: RevisedRequest,
        cause: RefusalCause,
        recorder: &mut ExchangeRecorder,
    ) -> Vec<PartKey> {
        let void = self.planned.decided_beyond(Some(&before.planned), &self.prepared.exchange);
        self.planned = before.planned;
        self.planned.done.taken_back = Some(cause);
        self.update_event(recorder);
        void
    }

    /// What making room decided, which is void: it was refused.
    pub(crate) fn room_decisions(&self, room: &RevisedRequest) -> Vec<PartKey> {
        room.planned.decided_beyond(Some(&self.planned), &self.prepared.exchange)
    }

    /// What the request decided.
    pub(crate) fn own_decisions(&self) -> Vec<PartKey> {
        self.planned.decided_beyond(None, &self.prepared.exchange)
    }

    /// It was the rewrite that was refused.
    pub(crate) fn set_refused(&mut self, cause: RefusalCause) {
        self.planned.done.resent = Some(cause);
    }

    /// What grows from it is set aside: answers the fact that says so.
    pub(crate) fn suspend_branch(&mut self) -> (SessionRoom, Fact) {
        let at = now();
        let position = &mut self.opened.placed.position;
        position.suspended = Some(at);
        let (thread, parent) = (position.thread.clone(), position.parent.clone());
        let suspended = Suspension { exchange: self.prepared.exchange.clone(), thread, parent, at };
        (self.opened.room(), Fact::Aside(Box::new(suspended)))
    }

    /// What it decided about these is void, if they are any: answers the fact that says so.
    pub(crate) fn revoke(
        &self,
        about: Vec<PartKey>,
        retry: RevocationRetry,
    ) -> Option<(SessionRoom, Fact)> {
        let (exchange, at) = (self.prepared.exchange.clone(), now());
        let position = &self.opened.placed.position;
        let (thread, parent) = (position.thread.clone(), position.parent.clone());
        let taken = Revocation { exchange, thread, parent, at, about, retry };
        (!taken.about.is_empty()).then(|| (self.opened.room(), Fact::TakenBack(Box::new(taken))))
    }

    /// What its client is told of usage beyond what is reported, where policy says so and there is any.
    pub(crate) fn usage_addition(&self) -> Option<UsageAddition> {
        let (done, conversation) = (&self.planned.done, &self.prepared.conversation);
        let wants = self.prepared.policy.client_usage == ToldUsage::Unpruned && done.is_sent();
        let tokens = done.tokens_removed.saturating_add(done.tokens_compacted);
        let tokens = tokens.saturating_sub(done.tokens_added);
        let (dialect, streams) = (conversation.dialect, conversation.stream);
        (wants && tokens > 0).then_some(UsageAddition { dialect, tokens, streams })
    }

    /// Words that were said at the end of the request, to wait again if nobody heard them.
    pub(super) fn unsent_messages(&self) -> Vec<Fact> {
        let is_in_vain = self.planned.done.resent.is_some();
        inject::again(&self.planned.known, &self.prepared.exchange, now(), is_in_vain)
    }

    /// Nobody answered the request: what it said waits again. Its client waits for an answer of ours, and
    /// no longer for the store than for a decision.
    pub(crate) async fn requeue_messages(&mut self, proxy: &Proxy) {
        let timeout = Duration::from_millis(proxy.config.limits.save_ms);
        let (room, unsaid) = (self.opened.room(), self.unsent_messages());
        let keeping = async {
            for fact in unsaid {
                wait_again(proxy, &room, fact).await;
            }
        };
        if tokio::time::timeout(timeout, keeping).await.is_ok() {
            self.undelivered.take().into_iter().for_each(UndeliveredMessage::end);
        }
    }
}

/// A request that is planned otherwise after it was refused, and is not sent yet.
pub(crate) struct RevisedRequest {
    /// The body without its encoding.
    plain: Bytes,
    /// What the head has to list.
    beta: Option<&'static str>,
    planned: PlannedRequest,
}

impl RevisedRequest {
    /// What is changed in the body.
    pub(crate) fn rewrite(&self) -> PlannedRewrite {
        let (plain, edits) = (self.plain.clone(), self.planned.edits.clone());
        PlannedRewrite { plain, edits, beta: self.beta }
    }
}
