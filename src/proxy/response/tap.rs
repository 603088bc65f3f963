//! The tap: the response body as the client gets it, observed as it passes.
//!
//! Every frame is forwarded at once, unchanged and in order, including trailers and errors (invariant 5). It
//! has exactly one ending: complete, refused, upstream failed, client left, or ended by the proxy, also if it
//! is dropped. Only the last frame of a reply waits, and only for its turn to be stored. Data that arrives
//! before the headers are sent is sent with them. No finding about a body may make it fail.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, sleep_until};

use super::model_list::ModelListTap;
use super::observe::ResponseObserver;
use super::silence::{SilenceAction, StreamSilence};
use super::usage_rewrite::ResponseEdits;
use crate::context::{Outcome, TenantId};
use crate::dialect::Reply;
use crate::dialect::reading::BodyEnd;
use crate::proxy::http::arriving::ConnectionError;
use crate::proxy::http::headers;
use crate::proxy::http::memory::HeldMemory;
use crate::proxy::offload::long_work;
use crate::proxy::state::exchange_recorder::{ExchangeRecorder, TurnOutcome};
use crate::proxy::state::{Proxy, ServingPhase};
use crate::telemetry::{Exchange, FailOpen, micros};
use crate::wire::encoding::DecodeError;

/// How long to wait before breaking a stream, so that earlier data is sent: hyper drops unwritten data when a
/// body fails, but without Plimsoll the client would have received it.
const BEFORE_BREAK: Duration = Duration::from_millis(10);

/// How long the usage that we asked for is waited for, once its client has left with the whole answer.
const USAGE_WAIT: Duration = Duration::from_secs(5);

/// Replies with less memory than this are not counted once they are read, bytes.
const SMALL_REPLY: usize = 64 * 1024;

/// Stores a turn; if reading its reply takes long, that comes first.
pub(crate) type CommitFuture = Pin<Box<dyn Future<Output = TurnOutcome> + Send>>;

/// The error of a stream whose upstream was silent for too long.
const SILENT: &str = "the upstream sent nothing in its stream for limits.silent_stream_s";

/// Makes a turn from a reply, once the exchange has ended, and adds what came of it to the event. Without a
/// reply, it was not read.
pub(crate) type SettleReply = Box<dyn FnOnce(&mut Exchange, Option<Reply>) -> CommitFuture + Send>;

/// Completes the turn of an earlier exchange with a reply that is read later. Without a reply, it was not read.
pub(crate) type SettleLate = Box<dyn FnOnce(Box<Exchange>, Option<Reply>) -> CommitFuture + Send>;

/// What is done with a response body besides forwarding it.
#[derive(Default)]
pub(crate) struct ResponseActions {
    /// In whose turn it is read, if that takes long.
    pub(crate) tenant: Option<TenantId>,
    /// Observes it.
    pub(crate) observer: Option<ResponseObserver>,
    /// It answers the operator's credential: its trailers say nothing of the operator's account.
    pub(crate) is_operators: bool,
    /// Edits it for the client.
    pub(crate) edits: Option<Box<ResponseEdits>>,
    /// Stores the turn.
    pub(crate) settle: Option<SettleReply>,
    /// Completes the turn of an earlier exchange.
    pub(crate) settle_late: Option<SettleLate>,
    /// Limits its silence.
    pub(crate) silence: Option<StreamSilence>,
    /// Learns from it, if it is a list of models.
    pub(crate) model_list: Option<Box<ModelListTap>>,
}

impl ResponseActions {
    fn shown_trailers(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if !self.is_operators {
            return frame;
        }
        match frame.into_trailers() {
            Ok(trailers) => Frame::trailers(headers::without(trailers, headers::is_operators)),
            Err(frame) => frame,
        }
    }
}

/// An upstream's response body on its way to the client.
pub(crate) struct Tap<B: Body<Data = Bytes>> {
    inner: B,
    recorder: Box<ExchangeRecorder>,
    actions: ResponseActions,
    /// The outcome if nothing goes wrong: refused, or complete.
    clean_outcome: Outcome,
    /// The outcome is final.
    settled: bool,
    /// The turn that is being stored, if the end waits for it.
    commit: Option<Box<BoundedTurnWrite>>,
    /// What [`Tap::look_ahead`] found: the next frame, or the end.
    ahead: Option<Option<Result<Frame<Bytes>, ConnectionError>>>,
    /// The frame that leaves next.
    next_frame: Option<Frame<Bytes>>,
    /// The trailers, which come after it.
    trailers: Option<Frame<Bytes>>,
    /// How the body ends after these frames.
    end: Option<Result<(), ConnectionError>>,
    /// The wait before breaking the stream.
    breaking: Option<Pin<Box<Sleep>>>,
    /// Time spent on its frames; a single frame takes less than 1 µs.
    response_side: Duration,
}

/// A turn that is stored by the task that waits for it, which saves a task; the wait is bounded.
struct BoundedTurnWrite {
    /// `None` once it has ended.
    commit: Option<CommitFuture>,
    until: tokio::time::Instant,
    /// Set once there is something to wait for.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes>> Tap<B> {
    pub(crate) fn new(
        inner: B,
        recorder: Box<ExchangeRecorder>,
        actions: ResponseActions,
        clean_outcome: Outcome,
    ) -> Self {
        let bodiless = has_all(&inner);
        let mut tap = Self {
            inner,
            recorder,
            actions,
            clean_outcome,
            settled: false,
            commit: None,
            ahead: None,
            next_frame: None,
            trailers: None,
            end: None,
            breaking: None,
            response_side: Duration::ZERO,
        };
        // Nobody polls a body that has no frames, so its turn is settled at once.
        if bodiless {
            tap.settle(clean_outcome);
        }
        tap
    }

    /// Takes data of the body that has already arrived, before the headers are sent.
    pub(crate) async fn look_ahead(&mut self)
    where
        B: Unpin,
        B::Error: Into<ConnectionError>,
    {
        if self.inner.is_end_stream() {
            return;
        }
        // A short response is then sent in one piece with its headers. Only its turn is waited for.
        let looking = poll_fn(|cx| match Pin::new(&mut *self).poll_frame(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending if self.commit.is_some() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        self.ahead = looking.await;
    }

    /// Whether it ends with usage that we asked for, which has not come.
    pub(super) fn awaits_usage(&self) -> bool {
        let requested = matches!(self.actions.edits.as_deref(), Some(ResponseEdits::Strips(_)));
        let is_finished = self.actions.observer.as_ref().is_some_and(ResponseObserver::is_finished);
        let is_breaking = *self.recorder.phase.borrow() == ServingPhase::Breaking;
        requested && is_finished && !self.settled && !is_breaking
    }

    /// Reads it on without its client, once, until its reply has ended or the wait is over.
    pub(super) async fn read_usage(&mut self)
    where
        B: Unpin,
        B::Error: Into<ConnectionError>,
    {
        self.actions.edits = None;
        let mut phase = self.recorder.phase.clone();
        let breaking = phase.wait_for(|phase| *phase == ServingPhase::Breaking);
        let reading = async {
            while !self.settled
                && let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await
            {
            }
        };
        tokio::select! {
            () = reading => {}
            () = sleep(USAGE_WAIT) => {}
            _ = breaking => {}
        }
    }

    fn data(&mut self, data: Bytes) {
        let began = Instant::now();
        let since = began - self.recorder.began;
        let timing = &mut self.recorder.event.timing;
        timing.first_byte_us.get_or_insert(micros(since));
        timing.frames += 1;
        timing.response_bytes += data.len() as u64;
        let complete =
            self.actions.observer.as_mut().is_some_and(|observer| observer.observe(&data));
        if self.actions.model_list.as_mut().is_some_and(|list| !list.pass(&data)) {
            self.actions.model_list = None;
        }
        let is_last = has_all(&self.inner);
        self.next_frame = self.edited(data, is_last);
        if let (Some(silence), Some(shown)) = (&mut self.actions.silence, &self.next_frame) {
            silence.passed(shown.data_ref().map_or(&[], |data| data));
        }
        if matches!(self.end, Some(Err(_))) {
            self.settle_detached(Outcome::UpstreamFailed);
        } else if complete || is_last {
            self.settle_whole();
        }
        self.response_side += began.elapsed();
    }

    fn edited(&mut self, data: Bytes, is_last: bool) -> Option<Frame<Bytes>> {
        let Some(edits) = &mut self.actions.edits else { return Some(Frame::data(data)) };
        // A panic may have lost part of it, so the body breaks off, as if it could not be decompressed.
        let passed = catch_unwind(AssertUnwindSafe(|| edits.pass(data)));
        let passed = passed.unwrap_or_else(|_| {
            self.recorder.event.add_fail_open(FailOpen::Panicked);
            Err(DecodeError::Broken)
        });
        match passed {
            Ok(mut shown) => {
                let rest = if is_last { edits.rest() } else { Bytes::new() };
                if is_last && edits.is_cut() {
                    self.end = Some(Err(DecodeError::Broken.into()));
                }
                if !rest.is_empty() {
                    let mut joined = BytesMut::from(shown);
                    joined.extend_from_slice(&rest);
                    shown = joined.freeze();
                }
                if shown.is_empty() { None } else { Some(Frame::data(shown)) }
            }
            Err(fault) => {
                self.end = Some(Err(fault.into()));
                None
            }
        }
    }

    fn ended(&mut self, how: Result<(), ConnectionError>) {
        let is_cut = self.actions.edits.as_mut().is_some_and(|edits| edits.is_cut());
        let how = if is_cut { how.and(Err(DecodeError::Broken.into())) } else { how };
        match &how {
            Ok(()) => self.settle_whole(),
            // An error is forwarded at once, without waiting for the turn.
            Err(_) => self.settle_detached(Outcome::UpstreamFailed),
        }
        let rest = self.actions.edits.as_mut().map(|edits| edits.rest());
        self.next_frame = rest.filter(|rest| !rest.is_empty()).map(Frame::data);
        self.end = Some(how);
    }

    fn fell_silent(&mut self, event: Option<Bytes>) {
        self.recorder.event.timing.silent_stream = true;
        self.settle_detached(Outcome::UpstreamFailed);
        // The client gets an error event, if one can be inserted.
        self.end = Some(match event {
            Some(_) => Ok(()),
            None => Err(SILENT.into()),
        });
        self.next_frame = event.map(Frame::data);
    }

    fn settle_whole(&mut self) {
        let waiting = self.settle(self.clean_outcome);
        self.commit = self.commit.take().or(waiting);
    }

    /// Makes a turn from what was read, and stores it while the last frame waits.
    fn settle(&mut self, outcome: Outcome) -> Option<Box<BoundedTurnWrite>> {
        // A panic costs the turn.
        // The first end counts: a body may be dropped after its last frame.
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        self.recorder.stream = None;
        self.recorder.record_last_byte();
        if let Some(silence) = &mut self.actions.silence {
            let timing = &mut self.recorder.event.timing;
            timing.longest_gap_us = silence.longest_gap.map(micros);
            timing.chunks = silence.chunks.take();
        }
        self.recorder.event.outcome = outcome;
        let model_list = self.actions.model_list.take();
        if outcome == Outcome::Complete
            && let Some(list) = model_list
        {
            return Some(self.bounded(list.learned()));
        }
        let observer = self.actions.observer.take();
        let settle = self.actions.settle.take();
        let late = self.actions.settle_late.take();
        let tenant = self.actions.tenant.take();
        if observer.is_none() && settle.is_none() {
            return None;
        }
        let proxy = self.recorder.proxy.clone();
        let event = &mut *self.recorder.event;
        let commit: CommitFuture = match (observer, late) {
            (Some(observer), Some(late)) => {
                let event = Box::new(event.clone());
                Box::pin(read_late(tenant, observer, event, late))
            }
            (Some(observer), None) if observer.is_long() => {
                let event = Box::new(event.clone());
                Box::pin(read_then_settle(proxy, tenant, observer, event, settle))
            }
            (observer, _) => {
                let settled = catch_unwind(AssertUnwindSafe(|| {
                    let observed = observer.map(|observer| observer.finish(body_end(outcome)));
                    settle_reply(&proxy, event, observed, settle)
                }));
                let commit = settled.unwrap_or_else(|_| {
                    self.recorder.event.add_fail_open(FailOpen::Panicked);
                    None
                });
                commit?
            }
        };
        Some(self.bounded(commit))
    }

    fn bounded(&self, commit: CommitFuture) -> Box<BoundedTurnWrite> {
        let timeout = Duration::from_millis(self.recorder.proxy.config.limits.commit_ms);
        Box::new(BoundedTurnWrite {
            commit: Some(commit),
            until: tokio::time::Instant::now() + timeout,
            timeout: None,
        })
    }

    fn settle_detached(&mut self, outcome: Outcome) {
        // An end without a frame: the client waits for nothing.
        let waiting = self.settle(outcome);
        self.store_detached(waiting);
    }

    fn store_detached(&mut self, waiting: Option<Box<BoundedTurnWrite>>) {
        // No frame waits for it; the exchange is reported when that ends.
        let commit = waiting.and_then(|waiting| waiting.commit);
        // Without a runtime, the process is ending.
        if let (Some(commit), Ok(runtime)) = (commit, Handle::try_current()) {
            self.recorder.storing = Some(runtime.spawn(commit));
        }
    }
}

/// Whether nothing more of a body is to come.
fn has_all(body: &impl Body) -> bool {
    // Over HTTP/2 the end may come after the last byte, in a frame of its own. A client that is told the length leaves
    // before.
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

fn body_end(outcome: Outcome) -> BodyEnd {
    BodyEnd::new(matches!(outcome, Outcome::Complete | Outcome::Refused))
}

/// Records the data of a reply, and begins to store its turn.
fn settle_reply(
    proxy: &Proxy,
    event: &mut Exchange,
    observed: Option<ResponseObserver>,
    settle: Option<SettleReply>,
) -> Option<CommitFuture> {
    let read = observed.and_then(|observed| read_reply(event, observed));
    // A reply that was not read has a turn all the same.
    let Some((reply, memory)) = read else { return settle.map(|settle| settle(event, None)) };
    event.add_reply(&reply, &proxy.telemetry);
    let commit = settle.map(|settle| settle(event, Some(reply)));
    commit.map(|commit| held_until_kept(commit, memory))
}

fn read_reply(event: &mut Exchange, observed: ResponseObserver) -> Option<(Reply, HeldMemory)> {
    event.streamed = observed.streamed;
    event.add_notes(observed.note);
    if let Some(why) = observed.gave_up {
        event.add_fail_open(why);
    }
    let reply = observed.reply?;
    // One that ended before its dialect says so was not complete; its body ends as the upstream ended it.
    if event.outcome == Outcome::Complete && event.streamed && !reply.complete {
        event.outcome = Outcome::UpstreamFailed;
    }
    Some((reply, observed.memory))
}

async fn read_late(
    tenant: Option<TenantId>,
    observer: ResponseObserver,
    mut event: Box<Exchange>,
    late: SettleLate,
) -> TurnOutcome {
    let end = body_end(event.outcome);
    let observed = match observer.is_long() {
        true => long_work(tenant.as_ref(), move || observer.finish(end)).await.ok(),
        false => Some(observer.finish(end)),
    };
    if observed.is_none() {
        event.add_fail_open(FailOpen::Panicked);
    }
    let read = observed.and_then(|observed| read_reply(&mut event, observed));
    let (reply, _memory) = read.unzip();
    late(event, reply).await
}

async fn read_then_settle(
    proxy: Arc<Proxy>,
    tenant: Option<TenantId>,
    observer: ResponseObserver,
    mut event: Box<Exchange>,
    settle: Option<SettleReply>,
) -> TurnOutcome {
    let end = body_end(event.outcome);
    let observed = long_work(tenant.as_ref(), move || observer.finish(end)).await.ok();
    if observed.is_none() {
        event.add_fail_open(FailOpen::Panicked);
    }
    // A client that left with the whole stream has the whole reply.
    if event.outcome == Outcome::ClientLeft
        && let Some(ResponseObserver { streamed: true, reply: Some(reply), .. }) = &observed
        && reply.complete
    {
        event.outcome = Outcome::Complete;
    }
    let outcome = match settle_reply(&proxy, &mut event, observed, settle) {
        Some(commit) => commit.await,
        None => TurnOutcome::default(),
    };
    TurnOutcome { event: Some(event), ..outcome }
}

fn held_until_kept(commit: CommitFuture, memory: HeldMemory) -> CommitFuture {
    // A small one is not worth another future.
    if memory.bytes() <= SMALL_REPLY {
        return commit;
    }
    Box::pin(async move {
        let outcome = commit.await;
        drop(memory);
        outcome
    })
}

impl BoundedTurnWrite {
    /// Ready when the turn is stored, or when the wait is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TurnOutcome> {
        let Some(commit) = &mut self.commit else { return Poll::Ready(TurnOutcome::default()) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| commit.as_mut().poll(cx))) {
            Ok(Poll::Ready(outcome)) => outcome,
            Err(_) => TurnOutcome::new(Some(FailOpen::Panicked)),
            Ok(Poll::Pending) => {
                let timeout = self.timeout.get_or_insert_with(|| Box::pin(sleep_until(self.until)));
                ready!(timeout.as_mut().poll(cx));
                // The turn is stored later, by a task.
                return Poll::Ready(TurnOutcome::new(Some(FailOpen::CommitLate)));
            }
        };
        self.commit = None;
        Poll::Ready(outcome)
    }
}

impl<B> Body for Tap<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<ConnectionError>,
{
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        let this = self.get_mut();
        if let Some(next) = this.ahead.take() {
            return Poll::Ready(next);
        }
        loop {
            if let Some(commit) = &mut this.commit {
                let outcome = ready!(commit.poll(cx));
                outcome.write(&mut this.recorder.event);
                this.recorder.record_stored();
                let unfinished = this.commit.take();
                this.store_detached(unfinished);
            }
            if let Some(frame) = this.next_frame.take().or_else(|| this.trailers.take()) {
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(Err(_)) = &this.end {
                let breaking = this.breaking.get_or_insert_with(|| Box::pin(sleep(BEFORE_BREAK)));
                ready!(breaking.as_mut().poll(cx));
            }
            if let Some(end) = this.end.take() {
                return Poll::Ready(end.err().map(Err));
            }
            let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(frame) => {
                    if let Some(silence) = &mut this.actions.silence {
                        silence.heard(matches!(&frame, Some(Ok(frame)) if frame.is_data()));
                    }
                    frame
                }
                Poll::Pending => {
                    let Some(silence) = &mut this.actions.silence else { return Poll::Pending };
                    match ready!(silence.poll(cx)) {
                        SilenceAction::KeepAlive(comment) => {
                            return Poll::Ready(Some(Ok(Frame::data(comment))));
                        }
                        SilenceAction::Break(event) => this.fell_silent(event),
                    }
                    continue;
                }
            };
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.data(data),
                    Err(trailers) => {
                        this.ended(Ok(()));
                        this.trailers = Some(this.actions.shown_trailers(trailers));
                    }
                },
                Some(Err(error)) => this.ended(Err(error.into())),
                None => this.ended(Ok(())),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let has_frame = self.ahead.is_some() || self.next_frame.is_some();
        let waiting = has_frame || self.trailers.is_some() || self.end.is_some();
        !waiting && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Never exact. Its headers state its length if its upstream did; hyper would state one that is known
        // here, and a body that breaks after its last byte would look whole.
        SizeHint::default()
    }
}

impl<B: Body<Data = Bytes>> Drop for Tap<B> {
    fn drop(&mut self) {
        // The client has all of it, or has left, or we end it at the deadline of a drain.
        let outcome = match *self.recorder.phase.borrow() {
            _ if self.inner.is_end_stream() => self.clean_outcome,
            ServingPhase::Breaking => Outcome::EndedByProxy,
            ServingPhase::Serving | ServingPhase::Leaving | ServingPhase::Draining => {
                Outcome::ClientLeft
            }
        };
        let waiting = self.commit.take().or_else(|| self.settle(outcome));
        self.store_detached(waiting);
        self.recorder.event.timing.response_side_us = micros(self.response_side);
    }
}

#[cfg(test)]
mod tests;
