//! The tap: the response body as the client gets it, watched as it passes.
//!
//! Every frame leaves at once, the same and in order, trailers and errors included (invariant 5).
//! Knows exactly one ending: complete, upstream failed, or client left, also on drop. Only what ends
//! a reply waits, and only for its turn to be kept; what has come of a body before its headers leave
//! leaves with them. Nothing that is learned from a body may fail it.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, sleep_until};

use super::observe::{ObservedReply, ResponseObserver};
use super::silence::{SilenceAction, StreamSilence};
use super::usage_rewrite::ResponseEdits;
use crate::context::Outcome;
use crate::dialect::Reply;
use crate::dialect::error_kind::ErrorKind;
use crate::proxy::exchange_recorder::{ExchangeRecorder, TurnOutcome, add_once};
use crate::proxy::http::body::{ConnectionError, OutgoingBody};
use crate::proxy::http::memory::HeldMemory;
use crate::proxy::http::pieces::CoalescedBody;
use crate::proxy::offload::long_work;
use crate::proxy::state::ServingPhase;
use crate::telemetry::{Exchange, FailOpen};
use crate::wire::encoding::DecodeError;

/// A break waits this long, so that what was passed just before it is on its way: hyper drops what it
/// has not written when a body fails, and a client without us would have got it.
const BEFORE_BREAK: Duration = Duration::from_millis(10);

/// A reply that takes no more is not counted once it is read, bytes.
const SMALL_REPLY: usize = 64 * 1024;

/// A turn being kept; answers why it could not be.
pub(crate) type CommitFuture = Pin<Box<dyn Future<Output = Option<FailOpen>> + Send>>;
/// Why a stream is broken that its upstream ended before its terminal event.
const CUT: &str = "the upstream ended the stream before its terminal event";

/// Why a stream is broken on which its upstream said nothing for too long.
const SILENT: &str = "the upstream sent nothing in its stream for limits.silent_stream_s";

/// Makes a turn of a reply, once the exchange's ending is known.
pub(crate) type SettleReply = Box<dyn FnOnce(&mut Exchange, Reply) -> CommitFuture + Send>;

/// A turn being kept, by way of a reply that is being read where that takes long.
enum TurnWrite {
    Turn(CommitFuture),
    Reading(Pin<Box<dyn Future<Output = TurnOutcome> + Send>>),
}

impl TurnWrite {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TurnOutcome> {
        match self {
            Self::Turn(commit) => {
                commit.as_mut().poll(cx).map(|why| TurnOutcome { why, ..TurnOutcome::default() })
            }
            Self::Reading(reading) => reading.as_mut().poll(cx),
        }
    }
}

/// A response body of ours, or an upstream's under the tap.
pub(crate) enum ResponseBody {
    /// Our own words.
    Ours(Option<Bytes>),
    /// An upstream's, and how its pieces go out.
    Tapped(Box<Tap<OutgoingBody>>, CoalescedBody),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        match self.get_mut() {
            ResponseBody::Ours(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            ResponseBody::Tapped(tap, pieces) => {
                ready!(pieces.poll_ready(cx));
                let frame = ready!(Pin::new(tap.as_mut()).poll_frame(cx));
                let pass = |frame: Frame<Bytes>| frame.map_data(|data| pieces.pass(data));
                Poll::Ready(frame.map(|frame| frame.map(pass)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Ours(bytes) => bytes.is_none(),
            ResponseBody::Tapped(tap, _) => tap.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Ours(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            ResponseBody::Tapped(tap, _) => tap.size_hint(),
        }
    }
}

/// What is done with a response body besides passing it on.
#[derive(Default)]
pub(crate) struct ResponseActions {
    /// Reads along.
    pub(crate) observation: Option<ResponseObserver>,
    /// Changes what the client gets of it.
    pub(crate) altering: Option<Box<ResponseEdits>>,
    /// Keeps the turn.
    pub(crate) settle: Option<SettleReply>,
    /// Sees to it that a stream does not stay silent for ever.
    pub(crate) silence: Option<StreamSilence>,
}

/// An upstream's response body on its way to the client.
pub(crate) struct Tap<B: Body<Data = Bytes>> {
    inner: B,
    recorder: ExchangeRecorder,
    actions: ResponseActions,
    /// How it ends if nothing goes wrong: refused, or complete.
    whole: Outcome,
    /// The ending is known; nothing changes it any more.
    settled: bool,
    /// It ended, however cleanly, before its dialect's terminal event: it has to break.
    cut: bool,
    /// What waits for the commit.
    commit: Option<Box<BoundedTurnWrite>>,
    /// What [`Tap::look_ahead`] found: what comes next, or the end.
    ahead: Option<Option<Result<Frame<Bytes>, ConnectionError>>>,
    held: Option<Frame<Bytes>>,
    /// Follows what is held.
    trailers: Option<Frame<Bytes>>,
    /// How the body ends once nothing is held any more.
    end: Option<Result<(), ConnectionError>>,
    /// The wait before a break.
    breaking: Option<Pin<Box<Sleep>>>,
}

/// A turn being kept by who waits for it, which spares a task of its own; the wait is bounded.
struct BoundedTurnWrite {
    /// `None` once it has ended.
    commit: Option<TurnWrite>,
    until: tokio::time::Instant,
    /// Set when it is known that there is something to wait for.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes>> Tap<B> {
    pub(crate) fn new(
        inner: B,
        recorder: ExchangeRecorder,
        actions: ResponseActions,
        whole: Outcome,
    ) -> Self {
        let bodiless = inner.is_end_stream();
        let mut tap = Self {
            inner,
            recorder,
            actions,
            whole,
            settled: false,
            cut: false,
            commit: None,
            ahead: None,
            held: None,
            trailers: None,
            end: None,
            breaking: None,
        };
        if bodiless {
            tap.settle(whole);
        }
        tap
    }

    /// Takes what has come of the body already, before the headers leave: a short answer then leaves
    /// in one piece with them, where its end would follow alone. Waits for nothing but its turn.
    pub(crate) async fn look_ahead(&mut self)
    where
        B: Unpin,
        B::Error: Into<ConnectionError>,
    {
        if self.inner.is_end_stream() {
            return;
        }
        let looking = poll_fn(|cx| match Pin::new(&mut *self).poll_frame(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending if self.commit.is_some() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        self.ahead = looking.await;
    }

    /// What was taken of the body already, bytes.
    fn taken(&self) -> u64 {
        let frame = self.ahead.iter().flatten().flatten().next();
        frame.and_then(Frame::data_ref).map_or(0, |data| data.len() as u64)
    }

    /// One data frame, and all that is done with it.
    fn data(&mut self, data: Bytes) {
        let began = Instant::now();
        let event = &mut self.recorder.event;
        if event.first_byte_us.is_none() {
            event.first_byte_us = Some((began - self.recorder.began).as_micros() as u64);
        }
        event.frames += 1;
        event.response_bytes += data.len() as u64;
        let complete = self.actions.observation.as_mut().is_some_and(|along| along.saw(&data));
        let last = self.inner.is_end_stream();
        self.held = self.shown(data, last);
        if let (Some(silence), Some(shown)) = (&mut self.actions.silence, &self.held) {
            silence.passed(shown.data_ref().map_or(&[], |data| data));
        }
        if matches!(self.end, Some(Err(_))) {
            self.settle_alone(Outcome::UpstreamFailed);
        } else if complete || last {
            self.settle_whole();
        }
        self.recorder.response_side_ns += began.elapsed().as_nanos() as u64;
    }

    /// What the client gets of a data frame.
    fn shown(&mut self, data: Bytes, last: bool) -> Option<Frame<Bytes>> {
        let Some(altering) = &mut self.actions.altering else { return Some(Frame::data(data)) };
        // What panicked may have lost some of it: then the body breaks off, as where it cannot be decoded.
        let passed = catch_unwind(AssertUnwindSafe(|| altering.pass(data)));
        let passed = passed.unwrap_or_else(|_| {
            add_once(&mut self.recorder.event.fail_open, FailOpen::Panicked);
            Err(DecodeError::Broken)
        });
        match passed {
            Ok(mut shown) => {
                let rest = if last { altering.rest() } else { Bytes::new() };
                if !rest.is_empty() {
                    let mut joined = BytesMut::from(shown);
                    joined.extend_from_slice(&rest);
                    shown = joined.freeze();
                }
                (!shown.is_empty()).then(|| Frame::data(shown))
            }
            Err(fault) => {
                self.end = Some(Err(fault.into()));
                None
            }
        }
    }

    /// The upstream's body has ended.
    fn ended(&mut self, how: Result<(), ConnectionError>) {
        match &how {
            Ok(()) => self.settle_whole(),
            // A broken stream breaks at once: nobody waits for its turn.
            Err(_) => self.settle_alone(Outcome::UpstreamFailed),
        }
        let rest = self.actions.altering.as_mut().map(|altering| altering.rest());
        self.held = rest.filter(|rest| !rest.is_empty()).map(Frame::data);
        self.end = Some(how);
    }

    /// The upstream has said nothing for too long: its client hears that, where words can stand there.
    fn fell_silent(&mut self, event: Option<Bytes>) {
        self.recorder.event.silent_stream = true;
        self.settle_alone(Outcome::UpstreamFailed);
        self.end = Some(match event {
            Some(_) => Ok(()),
            None => Err(SILENT.into()),
        });
        self.held = event.map(Frame::data);
    }

    /// The upstream's body came to an end of its own.
    fn settle_whole(&mut self) {
        let waiting = self.settle(self.whole);
        match self.cut {
            true => self.go_on(waiting),
            false => self.commit = self.commit.take().or(waiting),
        }
    }

    /// The one ending: what was read becomes a turn, and is kept while what ends the reply waits. A panic
    /// costs the turn.
    fn settle(&mut self, outcome: Outcome) -> Option<Box<BoundedTurnWrite>> {
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        self.recorder.stream = None;
        if let Some(silence) = &self.actions.silence {
            let longest = silence.gaps.longest().map(|gap| gap.as_micros() as u64);
            self.recorder.event.longest_gap_us = longest;
            self.recorder.event.gaps = longest.map(|_| Box::new(silence.gaps.clone()));
        }
        self.recorder.event.outcome = outcome;
        let observation = self.actions.observation.take()?;
        let settle = self.actions.settle.take();
        let commit = match observation.is_long() {
            true => {
                TurnWrite::Reading(Box::pin(read(observation, self.recorder.event.clone(), settle)))
            }
            false => {
                let event = &mut self.recorder.event;
                let settled = catch_unwind(AssertUnwindSafe(|| {
                    let is_whole = is_whole(event.outcome);
                    settled(event, observation.finish(is_whole), settle)
                }));
                let settled = settled.unwrap_or_else(|_| {
                    add_once(&mut event.fail_open, FailOpen::Panicked);
                    ReplyOutcome::default()
                });
                self.cut = settled.is_cut;
                TurnWrite::Turn(settled.commit?)
            }
        };
        let timeout = Duration::from_millis(self.recorder.proxy.config.limits.commit_ms);
        Some(Box::new(BoundedTurnWrite {
            commit: Some(commit),
            until: tokio::time::Instant::now() + timeout,
            timeout: None,
        }))
    }

    /// The one ending where nobody waits for the turn.
    fn settle_alone(&mut self, outcome: Outcome) {
        let waiting = self.settle(outcome);
        self.go_on(waiting);
    }

    /// Nobody waits for it any more: what is not kept yet is kept by itself, and told of then.
    fn go_on(&mut self, waiting: Option<Box<BoundedTurnWrite>>) {
        let commit = waiting.and_then(|waiting| waiting.commit);
        // Outside a runtime there is nobody left to keep anything for.
        if let (Some(mut commit), Ok(runtime)) = (commit, Handle::try_current()) {
            self.recorder.keeping = Some(runtime.spawn(poll_fn(move |cx| commit.poll(cx))));
        }
    }
}

fn is_whole(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Complete | Outcome::Refused)
}

/// What became of a reply.
#[derive(Default)]
struct ReplyOutcome {
    /// Keeps its turn.
    commit: Option<CommitFuture>,
    /// It ended, however cleanly, before its dialect's terminal event, and told of no error.
    is_cut: bool,
}

/// Tells what a reply said, and begins to keep its turn.
fn settled(
    event: &mut Exchange,
    observed: ObservedReply,
    settle: Option<SettleReply>,
) -> ReplyOutcome {
    event.streamed = observed.streamed;
    observed.note.into_iter().for_each(|note| add_once(&mut event.notes, note));
    observed.gave_up.into_iter().for_each(|why| add_once(&mut event.fail_open, why));
    let Some(reply) = observed.reply else { return ReplyOutcome::default() };
    let mut is_cut = false;
    if event.outcome == Outcome::Complete && observed.streamed && !reply.complete {
        event.outcome = Outcome::UpstreamFailed;
        // One of which nothing was understood is no stream of its dialect, and ends as it ends.
        let has_begun = reply.id.is_some() || !reply.parts.is_empty();
        is_cut = has_begun && reply.error.is_none();
    }
    event.error_kind = reply.error.as_ref().map(ErrorKind::of);
    // An error inside a success is none.
    if event.outcome == Outcome::Complete && event.error_kind.is_some() {
        event.outcome = Outcome::UpstreamFailed;
    }
    reply.notes.iter().for_each(|note| add_once(&mut event.notes, *note));
    event.usage = reply.usage.clone();
    event.stop = reply.stop;
    let commit = settle.map(|settle| settle(event, reply));
    ReplyOutcome { commit: commit.map(|commit| held_until_kept(commit, observed.memory)), is_cut }
}

/// Reads off the async threads what is left of a reply, then settles it as any other.
async fn read(
    observation: ResponseObserver,
    mut event: Box<Exchange>,
    settle: Option<SettleReply>,
) -> TurnOutcome {
    let whole = is_whole(event.outcome);
    let Ok(observed) = long_work(move || observation.finish(whole)).await else {
        return TurnOutcome { why: Some(FailOpen::Panicked), ..TurnOutcome::default() };
    };
    // Who left with all of a stream has the whole reply.
    let is_complete = observed.reply.as_ref().is_some_and(|reply| reply.complete);
    if event.outcome == Outcome::ClientLeft && observed.streamed && is_complete {
        event.outcome = Outcome::Complete;
    }
    let ReplyOutcome { commit, is_cut } = settled(&mut event, observed, settle);
    let why = match commit {
        Some(commit) => commit.await,
        None => None,
    };
    TurnOutcome { why, is_cut, read: Some(event) }
}

/// What a large reply takes is held until its turn is kept; a small one spares the task's detour.
fn held_until_kept(commit: CommitFuture, memory: HeldMemory) -> CommitFuture {
    if memory.bytes() <= SMALL_REPLY {
        return commit;
    }
    Box::pin(async move {
        let kept = commit.await;
        drop(memory);
        kept
    })
}

impl BoundedTurnWrite {
    /// Ready when the turn is kept, or when waiting for it has taken long enough.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TurnOutcome> {
        let because = |why| TurnOutcome { why: Some(why), ..TurnOutcome::default() };
        let Some(commit) = &mut self.commit else { return Poll::Ready(TurnOutcome::default()) };
        let polled = catch_unwind(AssertUnwindSafe(|| commit.poll(cx)));
        if let Poll::Ready(kept) = polled.unwrap_or(Poll::Ready(because(FailOpen::Panicked))) {
            self.commit = None;
            return Poll::Ready(kept);
        }
        let timeout = self.timeout.get_or_insert_with(|| Box::pin(sleep_until(self.until)));
        timeout.as_mut().poll(cx).map(|()| because(FailOpen::CommitLate))
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
                let kept = ready!(commit.poll(cx));
                this.cut |= kept.is_cut;
                kept.tell(&mut this.recorder.event);
                let late = this.commit.take();
                this.go_on(late);
            }
            if let Some(frame) = this.held.take().or_else(|| this.trailers.take()) {
                return Poll::Ready(Some(Ok(frame)));
            }
            // Who read a clean end would take half an answer for a whole one. HTTP/2 has such an end where the
            // upstream resets without an error.
            if this.cut && matches!(this.end, Some(Ok(()))) {
                this.end = Some(Err(CUT.into()));
            }
            if let Some(Err(_)) = &this.end {
                let breaking = this.breaking.get_or_insert_with(|| Box::pin(sleep(BEFORE_BREAK)));
                ready!(breaking.as_mut().poll(cx));
            }
            if let Some(end) = this.end.take() {
                return Poll::Ready(end.err().map(Err));
            }
            let next = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(next) => {
                    if let Some(silence) = &mut this.actions.silence {
                        silence.heard(matches!(&next, Some(Ok(frame)) if frame.is_data()));
                    }
                    next
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
            match next {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.data(data),
                    Err(trailers) => {
                        this.ended(Ok(()));
                        this.trailers = Some(trailers);
                    }
                },
                Some(Err(error)) => this.ended(Err(error.into())),
                None => this.ended(Ok(())),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = self.ahead.is_some() || self.held.is_some();
        let waiting = held || self.trailers.is_some() || self.end.is_some();
        !waiting && !self.cut && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.actions.altering {
            None => self.inner.size_hint() + SizeHint::with_exact(self.taken()),
            Some(_) => SizeHint::default(),
        }
    }
}

impl<B: Body<Data = Bytes>> Drop for Tap<B> {
    /// Who drops a body has all of it, or has left: the client, or we at the deadline of a drain.
    fn drop(&mut self) {
        let outcome = match *self.recorder.phase.borrow() {
            _ if self.inner.is_end_stream() => self.whole,
            ServingPhase::Breaking => Outcome::Turned,
            ServingPhase::Serving | ServingPhase::Draining => Outcome::ClientLeft,
        };
        let waiting = self.commit.take().or_else(|| self.settle(outcome));
        self.go_on(waiting);
    }
}

#[cfg(test)]
mod tests;
