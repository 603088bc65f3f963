use std::collections::VecDeque;
use std::sync::Arc;

use http::{HeaderMap, Request};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::dialect::Dialect;
use crate::proxy::response::usage_strip::UsageStrip;
use crate::proxy::state::Proxy;
use crate::store::ledgers::Ledgers;
use crate::store::memory::MemoryStore;
use crate::telemetry::{Exchange, Telemetry};

const EVENTS: [&str; 3] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"role\":\"assistant\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];

type Step = Result<Frame<Bytes>, ConnectionError>;

/// A body that yields each step when it is sent, and ends when the sender is dropped.
struct Scripted {
    steps: mpsc::UnboundedReceiver<Step>,
    /// After this many frames the body reports its end, as a body with a length does.
    left: Option<usize>,
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        let step = ready!(self.steps.poll_recv(cx));
        if let (Some(_), Some(left)) = (&step, &mut self.left) {
            *left -= 1;
        }
        Poll::Ready(step)
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }
}

struct Bench {
    tap: Tap<Scripted>,
    feed: Option<mpsc::UnboundedSender<Step>>,
    reported: tokio::sync::broadcast::Receiver<Arc<Exchange>>,
    /// In its first phase, so that a drain would wait.
    phase: watch::Sender<ServingPhase>,
}

impl Bench {
    async fn new(actions: ResponseActions) -> Self {
        Self::with(actions, None, 20).await
    }

    async fn with(actions: ResponseActions, left: Option<usize>, commit_ms: u64) -> Self {
        let telemetry = Telemetry::silent().unwrap();
        let reported = telemetry.subscribe();
        let config = Arc::new(crate::proxy::tests::config(commit_ms));
        let ledgers = Arc::new(Ledgers::new(Arc::new(MemoryStore::default())));
        let matcher = Matcher::builder().build();
        let proxy = Proxy::through(config, ledgers, telemetry, matcher).await.unwrap();
        let (phase, watching) = watch::channel(ServingPhase::Serving);
        let request = Request::post("/v1/messages?key=secret").body(()).unwrap();
        let recorder = ExchangeRecorder::open(&proxy, &request, &Arc::default(), watching);
        let (feed, steps) = mpsc::unbounded_channel();
        let tap = Tap::new(Scripted { steps, left }, recorder, actions, Outcome::Complete);
        Self { tap, feed: Some(feed), reported, phase }
    }

    fn send(&self, text: &str) {
        let frame = Frame::data(Bytes::copy_from_slice(text.as_bytes()));
        self.feed.as_ref().unwrap().send(Ok(frame)).unwrap();
    }

    fn end(&mut self) {
        self.feed = None;
    }

    async fn next(&mut self) -> Option<Step> {
        std::future::poll_fn(|cx| Pin::new(&mut self.tap).poll_frame(cx)).await
    }

    /// The next frame, which must be there already.
    fn now(&mut self) -> Option<Poll<Option<Step>>> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut self.tap).poll_frame(&mut cx) {
            Poll::Pending => None,
            ready => Some(ready),
        }
    }

    async fn text(&mut self) -> String {
        let data = self.next().await.unwrap().unwrap().into_data().unwrap();
        String::from_utf8(data.to_vec()).unwrap()
    }

    /// The one event that is reported when the tap is dropped.
    fn reported(self) -> Arc<Exchange> {
        let Self { tap, mut reported, .. } = self;
        assert!(reported.try_recv().is_err(), "reported before its end");
        drop(tap);
        let event = reported.try_recv().expect("told at its end");
        assert!(reported.try_recv().is_err(), "reported twice");
        event
    }
}

fn reading() -> ResponseActions {
    let headers = HeaderMap::from_iter([(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/event-stream"),
    )]);
    let observer = ResponseObserver::new(
        Dialect::Anthropic,
        200,
        &headers,
        1 << 20,
        &crate::proxy::http::memory::MemoryBudget::ample(),
    );
    ResponseActions { observer: Some(observer), ..ResponseActions::default() }
}

/// Observes the reply, with a commit that ends when the test says so.
fn committing() -> (ResponseActions, oneshot::Sender<Option<FailOpen>>) {
    let (done, wait) = oneshot::channel();
    let settle: SettleReply = Box::new(move |_, _| {
        Box::pin(async { TurnOutcome::new(wait.await.unwrap_or(Some(FailOpen::Store))) })
    });
    (ResponseActions { settle: Some(settle), ..reading() }, done)
}

#[tokio::test]
async fn invariant_5_frames_and_trailers_are_forwarded_unchanged_in_order() {
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        http::HeaderValue::from_static("1"),
    )]);
    let frames = [&b"one"[..], b"", b"\xff\x00", b"two"].map(Bytes::from_static);
    let mut bench = Bench::new(reading()).await;
    for frame in &frames {
        bench.feed.as_ref().unwrap().send(Ok(Frame::data(frame.clone()))).unwrap();
    }
    let _ = bench.feed.as_ref().unwrap().send(Ok(Frame::trailers(trailers.clone())));
    bench.end();
    for frame in &frames {
        let got = bench.next().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(got, frame);
        assert!(frame.is_empty() || got.as_ptr() == frame.as_ptr(), "a copy was made");
    }
    let got = bench.next().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(got, trailers);
    assert!(bench.next().await.is_none());
    assert!(bench.next().await.is_none(), "the end stays the end");
}

#[tokio::test]
async fn invariant_5_errors_are_same() {
    let mut bench = Bench::new(reading()).await;
    bench.send(EVENTS[0]);
    bench.feed.as_ref().unwrap().send(Err("cut by the script".into())).unwrap();
    assert_eq!(bench.text().await, EVENTS[0]);
    let error = bench.next().await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "cut by the script");
    let event = bench.reported();
    assert_eq!(event.outcome, Outcome::UpstreamFailed);
    assert_eq!(event.usage.input, Some(7));
    assert!(event.usage.lower_bound, "{:?}", event.usage);
}

#[tokio::test]
async fn events_leave_at_once() {
    let mut bench = Bench::new(reading()).await;
    assert!(bench.now().is_none());
    for event in &EVENTS {
        bench.send(event);
        let now = bench.now().expect("it leaves at once");
        let Poll::Ready(Some(Ok(frame))) = now else { panic!("no frame") };
        assert_eq!(frame.into_data().unwrap(), event.as_bytes());
    }
    let event = bench.reported();
    assert_eq!(event.outcome, Outcome::Complete);
    assert_eq!(event.timing.frames, 3);
    assert_eq!(event.usage.input, Some(7));
    assert_eq!(event.usage.output, Some(3));
}

#[tokio::test]
async fn only_terminal_events_wait() {
    let (actions, done) = committing();
    let mut bench = Bench::with(actions, None, 60_000).await;
    bench.send(EVENTS[0]);
    bench.send(EVENTS[1]);
    assert_eq!(bench.text().await, EVENTS[0]);
    assert_eq!(bench.text().await, EVENTS[1]);
    bench.send(EVENTS[2]);
    assert!(bench.now().is_none(), "the terminal event waits");
    assert!(!bench.tap.is_end_stream());
    done.send(None).unwrap();
    assert_eq!(bench.text().await, EVENTS[2]);
    bench.end();
    assert!(bench.next().await.is_none());
    let event = bench.reported();
    assert_eq!(event.outcome, Outcome::Complete);
    assert_eq!(event.fail_open.as_slice(), &[][..]);
}

#[tokio::test]
async fn late_commits_hold_nothing() {
    let (actions, done) = committing();
    let mut bench = Bench::with(actions, None, 1).await;
    EVENTS.iter().for_each(|event| bench.send(event));
    for event in &EVENTS {
        assert_eq!(bench.text().await, *event);
    }
    // The commit continues and a drain waits for it; the event is emitted once the turn can be found.
    let Bench { tap, mut reported, phase, .. } = bench;
    drop(tap);
    tokio::task::yield_now().await;
    assert!(reported.try_recv().is_err(), "reported before the turn is stored");
    assert_eq!(phase.receiver_count(), 1);
    done.send(None).unwrap();
    assert_eq!(reported.recv().await.unwrap().fail_open, [FailOpen::CommitLate]);
    phase.closed().await;
}

#[tokio::test]
async fn plain_ends_wait_for_commit() {
    for left in [None, Some(1)] {
        let (actions, done) = committing();
        let mut bench = Bench::with(actions, left, 60_000).await;
        bench.send("data: {}\n\n");
        bench.end();
        if left.is_none() {
            assert_eq!(bench.text().await, "data: {}\n\n");
        }
        assert!(bench.now().is_none(), "the end waits");
        done.send(Some(FailOpen::Store)).unwrap();
        if left.is_some() {
            assert_eq!(bench.text().await, "data: {}\n\n");
            assert!(bench.tap.is_end_stream());
        } else {
            assert!(bench.next().await.is_none());
        }
        assert_eq!(bench.reported().fail_open, [FailOpen::Store]);
    }
}

#[tokio::test]
async fn invariant_6_leaving_ends_once() {
    // After the terminal event: complete.
    let mut bench = Bench::new(reading()).await;
    EVENTS.iter().for_each(|event| bench.send(event));
    for event in &EVENTS {
        assert_eq!(bench.text().await, *event);
    }
    assert_eq!(bench.reported().outcome, Outcome::Complete);

    // Before it: the client left, and what was seen is a lower bound.
    let mut bench = Bench::new(reading()).await;
    bench.send(EVENTS[0]);
    assert_eq!(bench.text().await, EVENTS[0]);
    let event = bench.reported();
    assert_eq!(event.outcome, Outcome::ClientLeft);
    assert!(event.usage.lower_bound);

    // The client left before anything was sent.
    assert_eq!(Bench::new(reading()).await.reported().outcome, Outcome::ClientLeft);
}

#[tokio::test]
async fn partial_turns_are_kept() {
    let (kept, keeping) = oneshot::channel();
    let settle: SettleReply = Box::new(move |event, reply| {
        let _ = kept.send((event.outcome, reply.unwrap().usage.input));
        Box::pin(std::future::ready(TurnOutcome::default()))
    });
    let mut bench = Bench::new(ResponseActions { settle: Some(settle), ..reading() }).await;
    bench.send(EVENTS[0]);
    bench.text().await;
    drop(bench);
    assert_eq!(keeping.await.unwrap(), (Outcome::ClientLeft, Some(7)));
}

/// No frame waits for a turn whose client left, so nothing else says that it is late.
#[tokio::test]
async fn late_turns_of_leavers_are_reported() {
    let (actions, _never_done) = committing();
    let mut bench = Bench::new(actions).await;
    bench.send(EVENTS[0]);
    bench.text().await;
    let Bench { tap, mut reported, .. } = bench;
    drop(tap);
    assert_eq!(reported.recv().await.unwrap().fail_open, [FailOpen::CommitLate]);
}

#[tokio::test]
async fn cut_streams_have_failed() {
    let mut bench = Bench::new(reading()).await;
    bench.send(EVENTS[0]);
    bench.end();
    assert_eq!(bench.text().await, EVENTS[0]);
    assert!(bench.next().await.is_none(), "its end is the upstream's");
    assert_eq!(bench.reported().outcome, Outcome::UpstreamFailed);
}

#[tokio::test]
async fn drain_deadlines_are_no_client_left() {
    let bench = Bench::new(reading()).await;
    bench.phase.send_replace(ServingPhase::Breaking);
    assert_eq!(bench.reported().outcome, Outcome::EndedByProxy);
}

#[tokio::test]
async fn held_data_precedes_errors() {
    let mut queue: VecDeque<&str> = VecDeque::from([
        "data: {\"id\":1,\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
    ]);
    let observer = ResponseObserver::new(
        Dialect::OpenaiChat,
        200,
        &HeaderMap::new(),
        1 << 20,
        &crate::proxy::http::memory::MemoryBudget::ample(),
    );
    let edits = UsageStrip::new(
        "api.openai.com",
        [].into_iter(),
        &crate::proxy::http::memory::MemoryBudget::ample(),
    )
    .map(|hiding| Box::new(ResponseEdits::Strips(hiding)));
    let mut bench = Bench::new(ResponseActions {
        observer: Some(observer),
        edits,
        ..ResponseActions::default()
    })
    .await;
    bench.send(queue.pop_front().unwrap());
    assert_eq!(bench.text().await, "data: {\"id\":1,\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n");
    bench.send(queue.pop_front().unwrap());
    assert!(bench.now().is_none());
    bench.send(queue.pop_front().unwrap());
    assert_eq!(bench.text().await, "data: [DONE]\n\n");
    // Data that was held when the upstream broke is sent before the error.
    let edits = UsageStrip::new(
        "api.openai.com",
        [].into_iter(),
        &crate::proxy::http::memory::MemoryBudget::ample(),
    )
    .map(|hiding| Box::new(ResponseEdits::Strips(hiding)));
    let mut bench = Bench::new(ResponseActions { edits, ..ResponseActions::default() }).await;
    bench.send("data: {\"usage\"");
    assert!(bench.now().is_none());
    bench.feed.as_ref().unwrap().send(Err("cut".into())).unwrap();
    assert_eq!(bench.text().await, "data: {\"usage\"");
    assert!(bench.next().await.unwrap().is_err());
}

#[tokio::test]
async fn arrived_data_is_read_ahead() {
    let (actions, done) = committing();
    let mut bench = Bench::with(actions, Some(2), 60_000).await;
    bench.tap.look_ahead().await; // nothing has arrived, so it does not wait
    assert!(bench.now().is_none());
    bench.send(EVENTS[0]);
    let end = EVENTS[1..].concat();
    bench.send(&end);
    bench.tap.look_ahead().await;
    assert_eq!(bench.text().await, EVENTS[0]);
    // Here, too, the end of the reply waits for the commit of its turn.
    let mut looking = Box::pin(bench.tap.look_ahead());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(looking.as_mut().poll(&mut cx).is_pending());
    done.send(None).unwrap();
    looking.await;
    assert!(!bench.tap.is_end_stream(), "its end was taken, and has not left");
    assert_eq!(bench.text().await, end);
    assert!(bench.tap.is_end_stream());
    let event = bench.reported();
    assert_eq!(event.outcome, Outcome::Complete);
    assert_eq!(event.timing.frames, 2);
}
