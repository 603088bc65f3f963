//! The load: small requests, streams flat out, paced streams, held streams. It checks that every
//! answer came whole, because a fast wrong answer is no figure.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// A small Messages request, as an agent's first call without tools.
pub(crate) const SMALL_BODY: &str = r#"{"model":"claude-sonnet-4-5","max_tokens":1024,"stream":true,"messages":[{"role":"user","content":"What is the draught of this ship?"}]}"#;

/// What a conversation grows by: the provider's answer, and the next question.
const ANSWER_AND_QUESTION: &str = r#",{"role":"assistant","content":[{"type":"text","text":"Done."}]},{"role":"user","content":"And when it is loaded?"}"#;

/// Where it is sent.
pub(crate) const MESSAGES: &str = "/v1/messages";

/// Seconds.
#[derive(Clone, Copy)]
pub(crate) struct Latencies {
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
}

impl Latencies {
    /// The percentiles of these times.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// Load on one address.
#[derive(Clone)]
pub(crate) struct Load {
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
    path: &'static str,
}

impl Load {
    /// Load on `address`, with a connection pool of its own.
    pub(crate) fn new(address: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            address: address.to_owned(),
            path: MESSAGES,
        }
    }

    /// The same load on another path.
    pub(crate) fn at(self, path: &'static str) -> Self {
        Self { path, ..self }
    }

    /// `count` requests over `width` connections.
    pub(crate) async fn small_requests(&self, count: usize, width: usize) -> Latencies {
        let all = in_parallel(width, |_| {
            let this = self.clone();
            async move {
                let mut times = Vec::with_capacity(count / width);
                for _ in 0..count / width {
                    let started = Instant::now();
                    let body = this.post(&[]).await.into_body().collect().await.unwrap().to_bytes();
                    assert!(body.ends_with(b"}}"), "an answer is not whole");
                    times.push(started.elapsed().as_secs_f64());
                }
                times
            }
        });
        Latencies::of(all.await)
    }

    /// `streams` streams of `events` events each, `width` at a time, as fast as they go. Returns how
    /// many events came.
    pub(crate) async fn flat_out_streams(
        &self,
        streams: usize,
        events: usize,
        width: usize,
    ) -> usize {
        let count = events.to_string();
        let seen = in_parallel(width, |_| {
            let (this, count) = (self.clone(), count.clone());
            async move {
                for _ in 0..streams / width {
                    let mut body = this.post(&[("x-events", &count)]).await.into_body();
                    // A frame may be cut anywhere, the last one too.
                    let (mut before, mut last) = (Bytes::new(), Bytes::new());
                    while let Some(frame) = body.frame().await {
                        before = std::mem::replace(&mut last, frame.unwrap().into_data().unwrap());
                    }
                    let end = [before, last].concat();
                    assert!(end.ends_with(b"message_stop\"}\n\n"), "a stream is not whole");
                }
                vec![(streams / width * events) as f64]
            }
        });
        seen.await.iter().sum::<f64>() as usize
    }

    /// `streams` streams at once with one event every `pace`: how late each event is.
    pub(crate) async fn paced_streams(
        &self,
        streams: usize,
        events: usize,
        pace: Duration,
    ) -> Latencies {
        let (count, pace) = (events.to_string(), pace.as_micros().to_string());
        let all = in_parallel(streams, |_| {
            let (this, count, pace) = (self.clone(), count.clone(), pace.clone());
            async move {
                let headers = [("x-events", count.as_str()), ("x-pace-us", &pace)];
                let mut body = this.post(&headers).await.into_body();
                let mut late = Vec::new();
                while let Some(frame) = body.frame().await {
                    let frame = frame.unwrap().into_data().unwrap_or_default();
                    late.extend(lateness(&frame));
                }
                assert!(late.len() >= events, "events are missing");
                late
            }
        });
        Latencies::of(all.await)
    }

    /// `streams` streams at once that begin one after another, `rounds` times: how long the first byte took.
    pub(crate) async fn first_bytes(
        &self,
        streams: usize,
        rounds: usize,
        events: usize,
        pace: Duration,
    ) -> Latencies {
        let lasts = pace * u32::try_from(events).unwrap();
        let (count, pace) = (events.to_string(), pace.as_micros().to_string());
        let all = in_parallel(streams, |number| {
            let (this, count, pace) = (self.clone(), count.clone(), pace.clone());
            async move {
                let headers = [("x-events", count.as_str()), ("x-pace-us", &pace)];
                tokio::time::sleep(lasts.mul_f64(number as f64 / streams as f64)).await;
                let mut times = Vec::new();
                for _ in 0..rounds {
                    let began = Instant::now();
                    let mut body = this.post(&headers).await.into_body();
                    let first = body.frame().await.unwrap().unwrap();
                    assert!(first.is_data(), "a stream is empty");
                    times.push(began.elapsed().as_secs_f64());
                    while let Some(frame) = body.frame().await {
                        frame.unwrap();
                    }
                }
                times
            }
        });
        Latencies::of(all.await)
    }

    /// Holds `count` streams open after some events and measures then.
    pub(crate) async fn hold_streams(&self, count: usize, measure: impl Fn() -> f64) -> f64 {
        let mut open = Vec::new();
        for _ in 0..count {
            let mut body = self.post(&[("x-events", "5"), ("x-hold", "1")]).await.into_body();
            let mut seen = 0;
            while seen < 5 {
                let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
                seen += lateness(&frame).count();
            }
            open.push(body);
        }
        measure()
    }

    /// One request of a session, which has no name if that is empty: its whole answer.
    pub(crate) async fn say(&self, session: &str, body: impl Into<Bytes>) -> Bytes {
        let named = [("x-plimsoll-session", session)];
        let named = if session.is_empty() { &[][..] } else { &named };
        let answer = self.send(named, body.into()).await;
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    /// `count` conversations that have had their first request.
    pub(crate) async fn begin_conversations(&self, count: usize) -> Conversations {
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let mut histories: Vec<_> = (0..count)
            .map(|number| {
                format!(
                    r#"{{"role":"user","content":"Ship {begun}-{number}: what is its draught?"}}"#
                )
            })
            .collect();
        for history in &mut histories {
            self.continue_conversation(history).await;
        }
        Conversations { load: self.clone(), histories }
    }

    /// Sends a conversation, and adds the answer and the next question to it.
    async fn continue_conversation(&self, history: &mut String) {
        let body = format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":1024,"stream":true,"messages":[{history}]}}"#
        );
        let answer = self.send(&[], body.into()).await.into_body().collect().await.unwrap();
        assert!(answer.to_bytes().ends_with(b"}}"), "an answer is not whole");
        history.push_str(ANSWER_AND_QUESTION);
    }

    async fn post(&self, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(headers, Bytes::from_static(SMALL_BODY.as_bytes())).await
    }

    async fn send(&self, headers: &[(&str, &str)], body: Bytes) -> Response<Incoming> {
        let mut request = Request::post(format!("http://{}{}", self.address, self.path))
            .header("content-type", "application/json")
            .header("x-api-key", "sk-bench");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer
    }
}

/// Conversations that go on: each request holds the ones before it.
pub(crate) struct Conversations {
    load: Load,
    histories: Vec<String>,
}

impl Conversations {
    /// Sends `turns` more requests of each conversation, `width` conversations at once. Returns how many requests.
    pub(crate) async fn continue_all(self, turns: usize, width: usize) -> usize {
        let Self { load, histories } = self;
        let count = histories.len();
        let mut shares: Vec<Vec<String>> = vec![Vec::new(); width];
        for (number, history) in histories.into_iter().enumerate() {
            shares[number % width].push(history);
        }
        in_parallel(width, |number| {
            let (load, share) = (load.clone(), std::mem::take(&mut shares[number]));
            async move {
                for mut history in share {
                    for _ in 0..turns {
                        load.continue_conversation(&mut history).await;
                    }
                }
                Vec::new()
            }
        })
        .await;
        count * turns
    }
}

/// For each time stamp in a frame, how long ago it was, seconds.
fn lateness(frame: &[u8]) -> impl Iterator<Item = f64> + '_ {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    memchr::memmem::find_iter(frame, b"at ").filter_map(move |at| {
        let digits = frame.get(at + 3..at + 22)?;
        let then: u128 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(now.saturating_sub(then) as f64 / 1e9)
    })
}

async fn in_parallel<F, T>(width: usize, mut task: F) -> Vec<f64>
where
    F: FnMut(usize) -> T,
    T: Future<Output = Vec<f64>> + Send + 'static,
{
    let tasks: Vec<_> = (0..width).map(|i| tokio::spawn(task(i))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all
}
