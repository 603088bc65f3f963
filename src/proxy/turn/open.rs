//! The turn of an exchange whose response has begun: what is needed at its end, and storing it.
//!
//! Streams last minutes, and there are many: what was parsed of the request (the [`PendingExchange`]) is
//! released once it was accepted. The request's bytes are held until the reply has begun, because an error
//! before that is only believed if its message is not quoted from the request. What is unknown stays absent.
//! If the store fails, the turn is lost at the next restart; the client gets its response anyway.

use std::sync::Arc;

use http::StatusCode;
use tokio::task::JoinHandle;

use super::build::{self, ExchangeEnding, ForwardedPrefix};
use super::pending::PendingExchange;
use crate::clock::now;
use crate::context::budget::{CarryOutlook, ContextView};
use crate::context::content::ExchangeContent;
use crate::context::overflow::{self, OverflowEvidence, OverflowReport, OverflowSign, PartSums};
use crate::context::policy::ReinjectPolicy;
use crate::context::savings::{ExchangeSavings, SavingsInput};
use crate::context::{Estimate, Fact, Outcome, Turn};
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::models::Model;
use crate::dialect::overflow::ErrorResponse;
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::{CountLimit, Note, ProviderError, Purpose, Reply, Usage};
use crate::proxy::learning::lessons::{self, QuotableRequest};
use crate::proxy::offload::{OFF_THREAD, long_work_if};
use crate::proxy::plan::undelivered::{UndeliveredMessages, requeue};
use crate::proxy::response::request_body::RequestBody;
use crate::proxy::response::status::may_not_fit;
use crate::proxy::response::tap::{CommitFuture, SettleReply};
use crate::proxy::state::Proxy;
use crate::proxy::state::calibration;
use crate::proxy::state::exchange_recorder::{ReplyRecord, TurnRecord};
use crate::proxy::turn::counting::PendingCount;
use crate::proxy::turn::request_info::RequestInfo;
use crate::store::ledgers::{DraftGuard, DraftProgress, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::telemetry::FailOpen;
use crate::tokens::learn::{EstimatorState, Observation};

/// Replies with more bytes than this are counted off the async threads: with an exact vocabulary that takes 1
/// ms and more, and other streams must not wait for it.
const LARGE: usize = 32 * 1024;

/// What the head of a response says, which its body does not.
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    pub(crate) provider_request_id: Option<Box<str>>,
}

/// The turn of an exchange in flight.
pub(crate) struct OpenTurn {
    opened: OpenedSession,
    head: ResponseHead,
    /// The turn as it would be if nothing more arrived.
    draft: DraftGuard,
    info: RequestInfo,
    body: Arc<RequestBody>,
    counted: Option<PendingCount>,
    /// Messages injected at the end of the request. They are queued again if the reply does not arrive, or if
    /// this is dropped before its end is known.
    undelivered: Option<UndeliveredMessages>,
    /// The data for calibration, and the calibration before it.
    seen: Option<Box<Observation>>,
    learned: Arc<EstimatorState>,
    /// Predicts what the next request will contain of it; `None` if it was not measured.
    prospect: Option<CarryOutlook>,
    /// The estimated tokens that were sent.
    sums: PartSums,
    /// What was forwarded, if reasoning of the reply is recorded.
    forwarded: Option<ForwardedPrefix>,
    /// The request may be sent again with room made in it.
    may_make_room: bool,
    /// The new content of the request, if content is stored; made in a task, so that the response does not
    /// wait for it.
    content: Option<JoinHandle<ExchangeContent>>,
}

impl PendingExchange {
    /// Called when the request was sent for the last time and its response has begun: releases what was
    /// parsed of the request.
    pub(crate) fn open(mut self, proxy: &Arc<Proxy>, head: ResponseHead) -> Box<OpenTurn> {
        let undelivered = UndeliveredMessages::with(proxy, &self.opened, self.unsent_messages());
        // From now on, the end of the exchange decides whether they were delivered.
        self.undelivered.take().into_iter().for_each(UndeliveredMessages::end);
        self.revise_draft();
        let may_make_room = self.may_make_room();
        let kept = proxy.config.content;
        let content = kept.keep.then(|| tokio::spawn(self.content(kept.exchange_bytes)));
        let Self { mut opened, prepared, mut planned, counted, draft, .. } = self;
        (opened.known, opened.anchor) = Default::default();
        let sent = &planned.sent;
        // Reasoning that was made after some that we put back needs it there, whatever policy says now.
        let records =
            prepared.policy.reasoning.reinject != ReinjectPolicy::Off || sent.has_put_back();
        let forwarded = ForwardedPrefix { prefix: sent.chain(), order: sent.thought() };
        Box::new(OpenTurn {
            opened,
            head,
            draft,
            info: RequestInfo::of(&prepared),
            body: RequestBody::of(prepared.body.clone()),
            counted,
            undelivered,
            prospect: planned.prospect(&prepared),
            sums: planned.part_sums(),
            seen: planned.measured.as_mut().and_then(|measured| measured.seen.take()),
            learned: prepared.learned.clone(),
            forwarded: records.then_some(forwarded),
            may_make_room,
            content,
        })
    }

    /// The content that the request adds to its parent, at most `most` bytes.
    fn content(&self, most: usize) -> impl Future<Output = ExchangeContent> + Send + 'static {
        let (prepared, placed) = (self.prepared.clone(), self.opened.placed.clone());
        let (is_large, tenant) = (prepared.body.len() > OFF_THREAD, prepared.tenant.clone());
        let read = move || {
            ExchangeContent::of_request(&prepared.conversation, &prepared.body, &placed, most)
        };
        async move { long_work_if(is_large, tenant.as_ref(), read).await }
    }
}

impl OpenTurn {
    /// Where the progress of its reply is recorded.
    pub(crate) fn progress(&self) -> Arc<DraftProgress> {
        self.draft.latest()
    }

    /// The body of its request.
    pub(crate) fn body(&self) -> Arc<RequestBody> {
        self.body.clone()
    }

    /// Stores the turn once its reply is known.
    pub(crate) fn settle(self: Box<Self>, proxy: Arc<Proxy>) -> SettleReply {
        Box::new(move |record, mut reply| {
            if let Some(reply) = &mut reply {
                self.forget_impossible_counts(&proxy, record, reply);
            }
            match record.outcome {
                Outcome::Refused => self.settle_refusal(proxy, record, reply.unwrap_or_default()),
                _ => self.settle_turn(proxy, record, reply),
            }
        })
    }

    /// Settles a refusal, which is no turn; requests that wait for this turn may continue.
    fn settle_refusal(
        self: Box<Self>,
        proxy: Arc<Proxy>,
        record: &mut ReplyRecord,
        reply: Reply,
    ) -> CommitFuture {
        let turn = self.draft.turn();
        let overflow = self.overflow_in(&turn, record.has_body, &reply);
        record.turn = TurnRecord {
            refusal: self.info.refusal(self.head.status.as_u16(), reply.error.as_ref()),
            overflow,
            window: overflow.and_then(|overflow| overflow.reported.window),
            ..TurnRecord::default()
        };
        Box::pin(self.learn_from_refusal(proxy, reply, turn.estimate, overflow.is_some()))
    }

    /// Settles an accepted request. If its reply was not read, its turn has an empty one, from which nothing is
    /// concluded.
    fn settle_turn(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        record: &mut ReplyRecord,
        reply: Option<Reply>,
    ) -> CommitFuture {
        let mut turn = Box::new(self.draft.turn());
        let is_read = reply.is_some();
        if !is_read {
            // The next request will contain a reply of unknown size.
            self.prospect = None;
        }
        let reply = reply.unwrap_or_default();
        if self.opened.is_completed() {
            // Another exchange has read it, and reported its usage.
            record.usage = Usage::default();
        }
        let overflow = self.overflow_shown(&turn, &reply);
        turn.done.overflow = turn.done.overflow.or(overflow);
        turn.usage = reply.usage.clone();
        turn.measure_removed(self.opened.placed.parent.as_deref());
        record.turn = TurnRecord {
            overflow,
            measured: turn.done.measured,
            saved: Some(self.saved(&turn, &proxy)),
            shown_capped: ContextView::after(&turn).breakdown.capped,
            ..TurnRecord::default()
        };
        let ending = ExchangeEnding {
            ended: now(),
            provider_request_id: self.head.provider_request_id.clone(),
            outcome: record.outcome,
        };
        Box::pin(async move {
            let reply = reply.delivered();
            if is_read {
                self.learn(&proxy, &turn, ending.outcome, &reply).await;
            }
            self.store(proxy, turn, ending, reply).await
        })
    }

    /// Completes the turn, stores it with the reply's reasoning and the content, and calibrates with it.
    async fn store(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        turn: Box<Turn>,
        ending: ExchangeEnding,
        reply: Reply,
    ) -> Option<FailOpen> {
        let sample = self.calibration_sample(&turn, &ending, &reply);
        let applied = sample.map(|sample| sample.applied_to(&self.learned));
        let learned = applied.as_ref().map_or_else(|| self.learned.clone(), |it| it.after.clone());
        let (kept_content, at) = (proxy.config.content, turn.at);
        let is_large = reply.parts.iter().map(|part| part.text.len()).sum::<usize>() > LARGE;
        let (content, panicked) = match self.content.take() {
            Some(content) => {
                content.await.map_or_else(|why| (None, why.is_panic()), |it| (Some(it), false))
            }
            None => (None, false),
        };
        let tenant = self.info.tenant.clone();
        let build = move || {
            let content =
                content.map(|content| content.answered(&reply, kept_content.exchange_bytes));
            let facts = self.complete(*turn, ending, &reply, &learned);
            (self, facts, content)
        };
        let (this, facts, content) = long_work_if(is_large, tenant.as_ref(), build).await;
        let Self { opened, draft, info, .. } = *this;
        let content = content.map(|content| (opened.handle(), content));
        let mut kept = proxy.ledgers.commit(opened, facts).await;
        draft.release();
        if let Some(applied) = applied {
            // Backends of a router count alike: only what they refuse differs.
            let source = LessonSource { model: &info.model_name, ..info.lesson_source() };
            proxy.calibration.learn(&proxy.ledgers, &source, &applied);
        }
        if let Some((handle, content)) = content.filter(|_| kept.is_ok()) {
            let most = kept_content.session_bytes;
            kept = proxy.ledgers.keep_content(handle, &content, at, most).await;
        }
        kept.err().map(|_| FailOpen::Store).or(panicked.then_some(FailOpen::Panicked))
    }

    /// The facts of the completed turn. If the client left or lost the rest, the reply to the
    /// injected messages was not delivered, and they are queued again.
    fn complete(
        &mut self,
        draft: Turn,
        ending: ExchangeEnding,
        reply: &Reply,
        learned: &EstimatorState,
    ) -> Vec<Fact> {
        let is_delivered = ending.outcome == Outcome::Complete && draft.done.resent.is_none();
        let counted = self.counted.as_ref().and_then(PendingCount::arrived);
        let mut turn = Turn { counted, ..ending.turn(draft, &self.info, reply) };
        if self.opened.keeps_title {
            build::set_title(&mut turn, reply);
        }
        let prospect = self.prospect.take();
        turn.carry =
            prospect.map(|prospect| prospect.carry_over(&turn, reply, &self.info.model, learned));
        let mut facts = build::facts(turn, reply, self.forwarded);
        match self.undelivered.take() {
            Some(messages) if is_delivered => messages.end(),
            Some(messages) => facts.extend(messages.into_facts()),
            None => {}
        }
        facts
    }

    /// An overflow that the reply shows, unless one is already recorded.
    fn overflow_shown(&self, turn: &Turn, reply: &Reply) -> Option<OverflowReport> {
        if turn.done.overflow.is_some() {
            return None;
        }
        let Model { known, window, .. } = self.info.model;
        let evidence = OverflowEvidence {
            estimate: turn.estimate.as_ref(),
            sums: self.sums,
            window: known.then_some(window),
            max_output: self.info.max_output,
            host: self.info.upstream.host(),
        };
        overflow::detected(reply, self.info.purpose, &evidence)
    }

    /// Learns from a reply: an error in it may teach the window; a normal reply shows what fits, and that a
    /// missing counting endpoint is really missing.
    async fn learn(&self, proxy: &Proxy, turn: &Turn, outcome: Outcome, reply: &Reply) {
        let (info, status) = (&self.info, StatusCode::OK.as_u16());
        let source = info.lesson_source();
        let in_reply = turn.done.overflow.filter(|seen| seen.sign == OverflowSign::InReply);
        if let (Some(error), Some(_)) = (&reply.error, in_reply) {
            let taught = self.taught(status, error).await;
            if let Some(window) = info.window_to_learn(&taught, size(turn.estimate.as_ref()), proxy)
            {
                let believed = Some(info.model.window);
                proxy.learn(&source, Lesson::Window(window), believed).await;
            }
        }
        if outcome != Outcome::Complete {
            return;
        }
        if let Some(held) = reply.usage.context() {
            let held = held.input.saturating_add(held.output);
            proxy.ledgers.lessons().answered(&source, held, now());
        }
        let is_missing = self.counted.as_ref().is_some_and(PendingCount::is_missing);
        if proxy.counting.take_missing(&source) || is_missing {
            proxy.learn(&source, Lesson::CountMissing, None).await;
        }
    }

    /// The lessons of an error instead of a reply. An error inside a reply teaches nothing, because it cannot
    /// be compared with the request any more.
    async fn taught(&self, status: u16, error: &ProviderError) -> LessonMatch {
        let Some(body) = self.body.take() else { return LessonMatch::default() };
        let error = lessons::RefusalResponse::InReply { status, error };
        let tenant = self.info.tenant.as_ref();
        let refused =
            QuotableRequest { tenant, body: &body, model: &self.info.model_name, head: None };
        lessons::taught(error, &refused).await
    }

    /// What a refusal that was forwarded unread says about the window, if it says that the request does not
    /// fit.
    fn overflow_in(&self, turn: &Turn, has_body: bool, reply: &Reply) -> Option<OverflowReport> {
        let status = self.head.status;
        if self.may_make_room || turn.done.overflow.is_some() || !may_not_fit(status) {
            return None;
        }
        let error = reply.error.as_ref().map(ProviderError::text);
        let message = error.or((!has_body).then(String::new))?;
        let (status, host) = (status.as_u16(), self.info.upstream.host());
        let response = ErrorResponse { status, host, body: message.as_bytes() };
        let found = crate::dialect::overflow::overflow(&response)?;
        let is_near =
            |estimate: &Estimate| overflow::is_near(&found, estimate.tokens, self.info.max_output);
        if found.is_inferred && !turn.estimate.as_ref().is_some_and(is_near) {
            return None;
        }
        Some(OverflowReport { sign: OverflowSign::Refused, reported: found, saved: false })
    }

    /// The savings of this exchange. `turn` has its usage.
    fn saved(&self, turn: &Turn, proxy: &Proxy) -> ExchangeSavings {
        let Self { info, opened, .. } = self;
        let price = |model: &str| match model == &*info.model_name {
            true => info.model.price,
            false => info.upstream.price.or_else(|| proxy.catalogue.model(model, "").price),
        };
        let parent = opened.placed.parent.as_deref();
        let counted = self.counted.as_ref().and_then(PendingCount::arrived);
        SavingsInput { counted, ..SavingsInput::from_turn(turn, parent, price) }.saved()
    }

    /// Forgets reported counts that the request's model cannot have, before anything is concluded from them.
    fn forget_impossible_counts(&self, proxy: &Proxy, record: &mut ReplyRecord, reply: &mut Reply) {
        let info = &self.info;
        // What was learned may be less than the truth; a beta may allow more.
        let window = proxy.catalogue.largest_window(&info.model_name, info.upstream.window);
        let window = window.map(|window| window.max(info.model.window));
        if !reply.usage.clone().forget_impossible(CountLimit::of(window, None)) {
            return; // as nearly always
        }
        let estimate = self.draft.turn().estimate.map(|estimate| estimate.tokens);
        let limit = CountLimit::of(window, estimate);
        if reply.usage.forget_impossible(limit) {
            record.usage = reply.usage.clone();
            record.notes.push(Note::ImpossibleCount);
        }
    }

    /// Queues undelivered messages again, and learns from a refusal, which is not a turn. `overflows`: it says that
    /// the request does not fit.
    async fn learn_from_refusal(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        reply: Reply,
        estimate: Option<Estimate>,
        overflows: bool,
    ) -> Option<FailOpen> {
        let handle = self.opened.handle();
        let messages = self.undelivered.take().map(UndeliveredMessages::into_facts);
        for fact in messages.into_iter().flatten() {
            requeue(&proxy, &handle, fact).await;
        }
        let error = reply.error.as_ref()?;
        let message = error.message.as_deref().unwrap_or_default();
        let demands = refusal::cause(message.as_bytes()) == RefusalCause::ReasoningDemanded;
        if !demands && !overflows {
            return None;
        }
        let status = self.head.status.as_u16();
        let (info, taught) = (&self.info, self.taught(status, error).await);
        let window = info.window_to_learn(&taught, size(estimate.as_ref()), &proxy);
        let source = info.lesson_source();
        if demands && taught.holds(Lesson::ReasoningDemanded) {
            proxy.learn(&source, Lesson::ReasoningDemanded, None).await;
        }
        if let Some(window) = window.filter(|_| overflows) {
            let believed = Some(info.model.window);
            proxy.learn(&source, Lesson::Window(window), believed).await;
        }
        None
    }

    /// What the response teaches about counting, if the reported usage measures the estimate.
    fn calibration_sample(
        &mut self,
        turn: &Turn,
        ending: &ExchangeEnding,
        reply: &Reply,
    ) -> Option<calibration::CalibrationSample> {
        let usage = &reply.usage;
        let measures = !usage.lower_bound
            && !usage.hosted_tools
            && !usage.compacted
            && usage.served_by.is_none()
            && usage.last_call.is_none()
            && usage.cleared.is_none()
            && ending.outcome == Outcome::Complete
            && self.info.purpose == Purpose::Turn;
        let (seen, estimate) = (self.seen.take()?, turn.estimate.as_ref()?);
        let actual = usage.input.filter(|input| *input > 0 && measures)?;
        Some(calibration::CalibrationSample { seen, guess: estimate.guess, actual })
    }
}

/// The size and method of an estimate.
fn size(estimate: Option<&Estimate>) -> Option<(u64, crate::context::EstimateMethod)> {
    estimate.map(|estimate| (estimate.tokens, estimate.method))
}
