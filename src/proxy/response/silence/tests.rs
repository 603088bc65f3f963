use std::future::poll_fn;

use http::HeaderValue;

use super::*;
use crate::dialect::reading::{BodyEnd, ResponseReader};

const DIALECTS: [Dialect; 4] =
    [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];

fn headers(more: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    for (name, value) in more {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    headers
}

fn silence(
    dialect: Dialect,
    more: &[(&'static str, &'static str)],
    ms: (u64, u64),
) -> StreamSilence {
    let after = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    let limits = SilenceLimits { silent: after(ms.0), keep_alive: after(ms.1) };
    StreamSilence::new(Some(dialect), "up", &headers(more), limits, Duration::ZERO).unwrap()
}

async fn next(silence: &mut StreamSilence) -> SilenceAction {
    poll_fn(|cx| silence.poll(cx)).await
}

/// The error event is an error for a reader of its protocol, and a complete event.
#[tokio::test]
async fn error_events_fit_each_dialect() {
    for dialect in DIALECTS {
        let mut silence = silence(dialect, &[], (20, 0));
        silence.passed(b"data: {}\r\n\r\n");
        let SilenceAction::Break(Some(event)) = next(&mut silence).await else {
            panic!("{dialect:?}")
        };
        assert!(event.ends_with(b"\n\n"), "{dialect:?}");
        let mut reading = ResponseReader::new(dialect, 200, Framing::Events, 1 << 20);
        reading.push(&event);
        let error = reading
            .finish(BodyEnd::Whole)
            .error
            .unwrap_or_else(|| panic!("{dialect:?}: {event:?}"));
        let message = error.message.unwrap();
        assert!(message.contains("limits.silent_stream_s"), "{dialect:?}: {message}");
    }
}

#[tokio::test]
async fn comments_repeat_until_limit() {
    let mut silence = silence(Dialect::Anthropic, &[], (400, 20));
    let mut comments = 0;
    loop {
        match next(&mut silence).await {
            SilenceAction::KeepAlive(comment) => {
                assert_eq!(comment, KEEP_ALIVE);
                comments += 1;
            }
            SilenceAction::Break(event) => {
                assert!(event.is_some());
                break;
            }
        }
    }
    assert!((1..=20).contains(&comments), "{comments}");
}

/// Nothing can be inserted in the middle of an event, into an encoded body, or into a body of a known length.
#[tokio::test]
async fn breaks_without_event_if_bound() {
    let mut within = silence(Dialect::OpenaiChat, &[], (30, 10));
    within.passed(b"data: {}\n\n");
    within.passed(b"data: {\"half\"");
    assert_eq!(next(&mut within).await, SilenceAction::Break(None));
    for more in [("content-encoding", "gzip"), ("content-length", "9")] {
        let mut bound = silence(Dialect::OpenaiChat, &[more], (30, 10));
        assert_eq!(next(&mut bound).await, SilenceAction::Break(None), "{more:?}");
    }
}

/// An event's end may come in pieces.
#[test]
fn event_ends_are_known_in_pieces() {
    for (text, is_end) in [
        ("", true),
        ("data: {}\n\n", true),
        ("data: {}\r\n\r\n", true),
        ("data: {}\r\r", true),
        ("data: {}\n", false),
        ("data: {}\r\n", false),
        ("data: {}\r\n\r", false),
        ("d", false),
    ] {
        for size in 1..=text.len().max(1) {
            let mut tail = SentTail::default();
            text.as_bytes().chunks(size).for_each(|piece| tail.passed(piece));
            assert_eq!(tail.is_end(), is_end, "{text:?} in pieces of {size}");
        }
    }
}

/// Without limits nothing is done; a response that is not an event stream is not watched.
#[tokio::test]
async fn without_limits_only_measured() {
    let mut silence = silence(Dialect::Gemini, &[], (0, 0));
    let never = tokio::time::timeout(Duration::from_millis(30), next(&mut silence)).await;
    assert!(never.is_err());
    silence.heard(true);
    assert!(silence.longest_gap.is_some_and(|gap| gap >= Duration::from_millis(30)));
    let mut json = headers(&[]);
    json.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (limits, before) = (SilenceLimits::default(), Duration::ZERO);
    assert!(StreamSilence::new(Some(Dialect::Gemini), "up", &json, limits, before).is_none());
    assert!(StreamSilence::new(None, "up", &headers(&[]), limits, before).is_none());
}
