//! The turn of an exchange whose response has begun: what is needed at its end, and storing it.
//!
//! Streams last minutes, and there are many: what was parsed of the request (the [`PlacedRequest`]) is
//! released once it was accepted. The request's bytes are held until the reply has begun, because an error
//! before that is only believed if its message is not quoted from the request. What is unknown stays absent.
//! If the store fails, the turn is lost at the next restart; the client gets its response anyway.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::StatusCode;
use tokio::task::JoinHandle;

use super::build;
use crate::clock::now;
use crate::context::budget::{CarryOutlook, ContextView};
use crate::context::content::ExchangeContent;
use crate::context::overflow::{self, OverflowEvidence, OverflowReport, OverflowSign, PartSums};
use crate::context::plan::ForwardedPrefix;
use crate::context::policy::ReinjectPolicy;
use crate::context::{Estimate, Fact, Outcome, Turn};
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::models::{Model, Price};
use crate::dialect::overflow::ErrorResponse;
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::status::may_not_fit;
use crate::dialect::{CountLimit, Note, ProviderError, Purpose, Reply, Usage};
use crate::proxy::learning::lessons;
use crate::proxy::offload::{OFF_THREAD, long_work_if};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::undelivered::UndeliveredMessages;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::response::request_body::RequestBody;
use crate::proxy::response::tap::{CommitFuture, SettleReply};
use crate::proxy::state::Proxy;
use crate::proxy::state::calibration;
use crate::proxy::state::counting_endpoints::PendingCount;
use crate::proxy::state::exchange_recorder::TurnOutcome;
use crate::proxy::state::request_info::RequestInfo;
use crate::store::ledgers::{DraftGuard, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::telemetry::{Exchange, FailOpen};
use crate::tokens::learn::{EstimatorState, Observation};

/// Replies with more bytes than this are counted off the async threads: with an exact vocabulary that takes 1
/// ms and more, and other streams must not wait for it.
const LARGE: usize = 32 * 1024;

/// The turn of an exchange in flight.
pub(crate) struct OpenTurn {
    opened: OpenedSession,
    /// The turn as it would be if nothing more arrived.
    draft: DraftGuard,
    info: Arc<RequestInfo>,
    body: Arc<RequestBody>,
    counted: Option<Arc<PendingCount>>,
    /// Messages injected at the end of the request. They are queued again if the reply does not arrive, or if
    /// this is dropped before its end is known.
    undelivered: Option<UndeliveredMessages>,
    /// The data for calibration.
    seen: Option<Box<Observation>>,
    /// Predicts what the next request will contain of it; `None` if it was not measured.
    prospect: Option<CarryOutlook>,
    /// The estimated tokens that were sent.
    sums: PartSums,
    /// What was forwarded, if reasoning of the reply is recorded.
    forwarded: Option<ForwardedPrefix>,
    /// The request may be sent again with room made in it.
    may_make_room: bool,
    /// It asked for several replies.
    several: bool,
    /// The new content of the request, if content is stored; made in a task, so that the response does not
    /// wait for it.
    content: Option<JoinHandle<ExchangeContent>>,
}

impl PlacedRequest {
    /// `None` if it was not planned.
    pub(crate) fn open(mut self: Box<Self>) -> Option<Box<OpenTurn>> {
        // Called when the request was sent for the last time: what was parsed of it is released.
        let draft = self.draft.take()?;
        let undelivered = self.unsent_messages();
        // From now on, the end of the exchange decides whether they were delivered.
        if let Some(messages) = self.undelivered.take() {
            messages.end();
        }
        self.revise_draft(&draft);
        let may_make_room = self.may_make_room();
        let limits = self.proxy.config.content;
        let content = match limits.keep {
            true => Some(tokio::spawn(self.content(limits.exchange_bytes))),
            false => None,
        };
        let Self { mut opened, mut planned, counted, .. } = *self;
        // A stream may last for minutes: what only planning needs is not held for it.
        opened.anchor = None;
        let overlay = &planned.plan.sent;
        let prepared = &planned.prepared;
        // Reasoning that was made after some that we put back needs it there, whatever policy says now.
        let records = prepared.info.policy.reasoning.reinject != ReinjectPolicy::Off
            || overlay.has_put_back();
        let forwarded = match records {
            true => Some(overlay.prefix()),
            false => None,
        };
        Some(Box::new(OpenTurn {
            opened,
            draft,
            info: prepared.info.clone(),
            several: prepared.conversation.several,
            body: RequestBody::new(prepared.body.clone()),
            counted,
            undelivered,
            prospect: planned.prospect(),
            sums: planned.part_sums(),
            seen: planned.measured.as_mut().and_then(|measured| measured.seen.take()),
            forwarded,
            may_make_room,
            content,
        }))
    }

    /// At most `most` bytes.
    fn content(&self, most: usize) -> impl Future<Output = ExchangeContent> + Send + 'static {
        let prepared = self.planned.prepared.clone();
        let placed = self.opened.placed.clone();
        async move {
            let is_large = prepared.body.len() > OFF_THREAD;
            let tenant = prepared.info.tenant.clone();
            // Only what the request adds to its parent: the rest is stored with earlier turns.
            long_work_if(is_large, tenant.as_ref(), move || {
                ExchangeContent::of_request(&prepared.conversation, &prepared.body, &placed, most)
            })
            .await
        }
    }
}

impl OpenTurn {
    /// Tells the observer of its reply what is known of its request, and where the reply's progress is recorded.
    pub(crate) fn observed_by(&self, observer: ResponseObserver) -> ResponseObserver {
        observer.with_several(self.several).with_progress(self.draft.latest(), self.body.clone())
    }

    pub(crate) fn settle(self: Box<Self>, proxy: Arc<Proxy>) -> SettleReply {
        Box::new(move |event, mut reply| {
            if let Some(reply) = &mut reply {
                self.forget_impossible_counts(&proxy, event, reply);
                // Its provider bills what its client has not waited for.
                if reply.count_what_came() {
                    event.usage = reply.usage.clone();
                }
            }
            match event.outcome {
                Outcome::Refused => self.settle_refusal(proxy, event, reply.unwrap_or_default()),
                _ => self.settle_turn(proxy, event, reply),
            }
        })
    }

    fn settle_refusal(
        self: Box<Self>,
        proxy: Arc<Proxy>,
        event: &mut Exchange,
        reply: Reply,
    ) -> CommitFuture {
        // A refusal is no turn; requests that wait for this one may continue.
        let turn = self.draft.turn();
        let status = event.status.unwrap_or_default();
        let has_body = event.timing.response_bytes > 0;
        let overflow = self.overflow_in(&turn, status, has_body, &reply);
        // What a retry found out comes before what the reply says.
        if event.refusal.is_none() {
            event.refusal = self.info.refusal(status, reply.error.as_ref());
        }
        if let Some(overflow) = overflow {
            event.done.overflow = Some(overflow);
            event.window = overflow.reported.window.or(event.window);
        }
        Box::pin(async move {
            let overflows = overflow.is_some();
            self.learn_from_refusal(proxy, status, reply, turn.estimate, overflows).await;
            TurnOutcome::default()
        })
    }

    fn settle_turn(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        event: &mut Exchange,
        reply: Option<Reply>,
    ) -> CommitFuture {
        let mut turn = Box::new(self.draft.turn());
        let is_read = reply.is_some();
        if !is_read {
            // The next request will contain a reply of unknown size.
            self.prospect = None;
        }
        // If its reply was not read, its turn has an empty one, from which nothing is concluded.
        let mut reply = reply.unwrap_or_default();
        reply.usage.billing.regional |= self.info.model.is_regional;
        let has_writes = reply.usage.cache_write.is_some_and(|tokens| tokens > 0);
        reply.usage.billing.long_writes = self.info.long_cache && has_writes;
        let overflow = self.overflow_shown(&turn, &reply);
        turn.done.overflow = turn.done.overflow.or(overflow);
        turn.usage = reply.usage.clone();
        turn.served = reply.model.clone().filter(|model| **model != *turn.model);
        turn.dollars = turn.cost(|model| self.price(model, &proxy));
        event.served = turn.served.clone();
        if self.opened.is_completed(&turn.usage) {
            // Another exchange has read it, and reported its usage and what it cost.
            event.usage = Usage::default();
        } else {
            event.add_cost(&turn, |model| self.price(model, &proxy));
        }
        turn.measure_removed(self.opened.placed.parent.as_deref());
        event.done.overflow = overflow.or(event.done.overflow);
        event.done.measured = turn.done.measured.or(event.done.measured);
        turn.counted = self.counted.as_deref().and_then(PendingCount::arrived);
        let parent = self.opened.placed.parent.as_deref();
        event.saved = Some(turn.savings(parent, |model| self.price(model, &proxy)));
        event.shown_capped = ContextView::after(&turn).breakdown.capped;
        turn.ended = now();
        turn.outcome = event.outcome;
        turn.provider_request_id.clone_from(&event.provider_request_id);
        Box::pin(async move {
            let reply = reply.delivered();
            if is_read {
                self.learn(&proxy, &turn, &reply).await;
            }
            TurnOutcome::new(self.store(proxy, turn, reply).await)
        })
    }

    async fn store(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        turn: Box<Turn>,
        reply: Reply,
    ) -> Option<FailOpen> {
        let sample = self.calibration_sample(&turn, &reply);
        let info = &self.info;
        // Backends of a router count alike: only what they refuse differs.
        let source = LessonSource { model: info.model_name(), ..info.lesson_source() };
        let learned = match sample {
            Some(sample) => {
                proxy.calibration.learn(&proxy.ledgers, &source, &sample, &info.learned)
            }
            None => info.learned.clone(),
        };
        let limits = proxy.config.content;
        let at = turn.at;
        let is_large = reply.parts.iter().map(|part| part.text.len()).sum::<usize>() > LARGE;
        let mut content = None;
        let mut panicked = false;
        if let Some(task) = self.content.take() {
            match task.await {
                Ok(request_content) => content = Some(request_content),
                Err(error) => panicked = error.is_panic(),
            }
        }
        let tenant = self.info.tenant.clone();
        let (this, facts, content) = long_work_if(is_large, tenant.as_ref(), move || {
            let content = content.map(|content| content.answered(&reply, limits.exchange_bytes));
            let facts = self.complete(turn, &reply, &learned);
            (self, facts, content)
        })
        .await;
        let Self { opened, draft, .. } = *this;
        let content = content.map(|content| (opened.handle(), content));
        let mut stored = proxy.ledgers.commit(opened, facts).await;
        // From here on the turn stands in the place of its draft.
        draft.release();
        if stored.is_ok()
            && let Some((handle, content)) = content
        {
            let session_bytes = limits.session_bytes;
            stored = proxy.ledgers.keep_content(handle, &content, at, session_bytes).await;
        }
        match stored {
            Err(_) => Some(FailOpen::Store),
            Ok(_) if panicked => Some(FailOpen::Panicked),
            Ok(_) => None,
        }
    }

    fn complete(
        &mut self,
        mut turn: Box<Turn>,
        reply: &Reply,
        learned: &EstimatorState,
    ) -> Vec<Fact> {
        let is_delivered = turn.outcome == Outcome::Complete && turn.done.resent.is_none();
        build::end(&mut turn, &self.info, reply);
        // It may have arrived since.
        turn.counted = self.counted.as_deref().and_then(PendingCount::arrived);
        if self.opened.keeps_title {
            build::set_title(&mut turn, reply);
        }
        let prospect = self.prospect.take();
        turn.carry =
            prospect.map(|prospect| prospect.carry_over(&turn, reply, &self.info.model, learned));
        let mut facts = build::facts(turn, reply, self.forwarded);
        // If the client left or lost the rest, the reply to the injected messages was not delivered, and they
        // are queued again.
        match self.undelivered.take() {
            Some(messages) if is_delivered => messages.end(),
            Some(messages) => facts.extend(messages.into_facts()),
            None => {}
        }
        facts
    }

    fn overflow_shown(&self, turn: &Turn, reply: &Reply) -> Option<OverflowReport> {
        if turn.done.overflow.is_some() {
            return None;
        }
        let Model { known, window, .. } = self.info.model;
        let evidence = OverflowEvidence {
            estimate: turn.estimate.as_ref(),
            sums: self.sums,
            window: if known { Some(window) } else { None },
            max_output: self.info.max_output,
            host: self.info.upstream.host(),
        };
        overflow::detected(reply, self.info.purpose, &evidence)
    }

    async fn learn(&self, proxy: &Proxy, turn: &Turn, reply: &Reply) {
        let info = &self.info;
        let source = info.lesson_source();

        // An error in a reply may teach the window; a normal reply shows what fits, and that a missing counting
        // endpoint is really missing.
        if let Some(error) = &reply.error
            && let Some(OverflowReport { sign: OverflowSign::InReply, .. }) = turn.done.overflow
        {
            let taught = self.taught(StatusCode::OK.as_u16(), error).await;
            if let Some(window) = info.window_to_learn(&taught, size(turn.estimate.as_ref()), proxy)
            {
                let believed = Some(info.model.window);
                proxy.learn(&source, Lesson::Window(window), believed).await;
            }
        }
        if turn.outcome != Outcome::Complete {
            return;
        }
        if let Some(context) = reply.usage.context() {
            let tokens = context.input.saturating_add(context.output);
            proxy.ledgers.lessons().answered(&source, tokens, now());
        }
        let is_missing =
            self.counted.as_ref().is_some_and(|count| count.is_missing.load(Ordering::Relaxed));
        if proxy.counting.take_missing(&source) || is_missing {
            proxy.learn(&source, Lesson::CountMissing, None).await;
        }
    }

    async fn taught(&self, status: u16, error: &ProviderError) -> LessonMatch {
        // An error inside a reply teaches nothing, because it cannot be compared with the request any more.
        let Some(body) = self.body.take() else { return LessonMatch::default() };
        let error = lessons::RefusalResponse::InReply { status, error };
        lessons::taught(error, &self.info, &body, None).await
    }

    fn overflow_in(
        &self,
        turn: &Turn,
        status: u16,
        has_body: bool,
        reply: &Reply,
    ) -> Option<OverflowReport> {
        // Only of a refusal that was forwarded unread; any other was judged before.
        if self.may_make_room || turn.done.overflow.is_some() || !may_not_fit(status) {
            return None;
        }
        let message = match &reply.error {
            Some(error) => error.text(),
            None if !has_body => String::new(),
            None => return None,
        };
        let reported = crate::dialect::overflow::overflow(&ErrorResponse {
            status,
            host: self.info.upstream.host(),
            body: message.as_bytes(),
        })?;
        if reported.is_inferred {
            let tokens = turn.estimate.as_ref()?.tokens;
            if !overflow::is_near(&reported, tokens, self.info.max_output) {
                return None;
            }
        }
        Some(OverflowReport::new(OverflowSign::Refused, reported))
    }

    /// The price of a model that answered: the requested one, or another.
    fn price(&self, model: &str, proxy: &Proxy) -> Option<Price> {
        let requested = &self.info.model;
        if model == self.info.model_name() || requested.has_own_price {
            return requested.price;
        }
        proxy.catalogue.model(model, "").price
    }

    fn forget_impossible_counts(&self, proxy: &Proxy, event: &mut Exchange, reply: &mut Reply) {
        // Before anything is concluded from them.
        let info = &self.info;
        let believed = CountLimit::new(Some(info.model.window), None);
        if !reply.usage.clone().forget_impossible(believed) {
            return; // as nearly always
        }
        // What was learned may be less than the truth; a beta may allow more.
        let window = proxy.catalogue.largest_window(info.model_name(), info.upstream.window);
        let window = window.map(|window| window.max(info.model.window));
        if !reply.usage.clone().forget_impossible(CountLimit::new(window, None)) {
            return;
        }
        let estimate = self.draft.turn().estimate.map(|estimate| estimate.tokens);
        let limit = CountLimit::new(window, estimate);
        if reply.usage.forget_impossible(limit) {
            event.usage = reply.usage.clone();
            event.add_notes([Note::ImpossibleCount]);
        }
    }

    /// `overflows`: it says that the request does not fit.
    async fn learn_from_refusal(
        mut self: Box<Self>,
        proxy: Arc<Proxy>,
        status: u16,
        reply: Reply,
        estimate: Option<Estimate>,
        overflows: bool,
    ) {
        if let Some(messages) = self.undelivered.take() {
            messages.requeue().await;
        }
        let Some(error) = &reply.error else { return };
        let message = error.message.as_deref().unwrap_or_default();
        let demands = refusal::cause(message.as_bytes()) == RefusalCause::ReasoningDemanded;
        // Nothing else in a message that was forwarded unread is learned.
        if !demands && !overflows {
            return;
        }
        let taught = self.taught(status, error).await;
        let info = &self.info;
        let window = info.window_to_learn(&taught, size(estimate.as_ref()), &proxy);
        let source = info.lesson_source();
        if demands && taught.holds(Lesson::ReasoningDemanded) {
            proxy.learn(&source, Lesson::ReasoningDemanded, None).await;
        }
        if overflows && let Some(window) = window {
            let believed = Some(info.model.window);
            proxy.learn(&source, Lesson::Window(window), believed).await;
        }
    }

    fn calibration_sample(
        &mut self,
        turn: &Turn,
        reply: &Reply,
    ) -> Option<calibration::CalibrationSample> {
        // The reported usage must measure what was estimated, and nothing else.
        let usage = &reply.usage;
        let measures = !usage.lower_bound
            && !usage.hosted_tools
            && !usage.compacted
            && usage.served_by.is_none()
            && usage.last_call.is_none()
            && usage.cleared.is_none()
            && turn.outcome == Outcome::Complete
            && self.info.purpose == Purpose::Turn;
        let seen = self.seen.take()?;
        let guess = turn.estimate.as_ref()?.guess;
        let actual = usage.input.filter(|input| *input > 0 && measures)?;
        Some(calibration::CalibrationSample { seen, guess, actual })
    }
}

fn size(estimate: Option<&Estimate>) -> Option<(u64, crate::context::EstimateMethod)> {
    estimate.map(|estimate| (estimate.tokens, estimate.method))
}
