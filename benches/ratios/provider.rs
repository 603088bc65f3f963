//! The provider of the benchmark: Anthropic Messages, as cheap as hyper allows, time stamps inside.
//!
//! `x-events: N` asks for a stream of N events, `x-pace-us: T` for one every T µs, `x-hold: 1` for a
//! stream that stays open until the client leaves.

use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

const ANSWER: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn","usage":{"input_tokens":12,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}"#;

/// Serves until killed.
pub(crate) fn serve() {
    crate::floor::accept(|stream| {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer))
    });
}

/// One answer.
pub(crate) async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let number =
        |name: &str| -> Option<u64> { request.headers().get(name)?.to_str().ok()?.parse().ok() };
    let (events, pace, hold) =
        (number("x-events"), number("x-pace-us"), number("x-hold").is_some());
    let _ = request.into_body().collect().await;
    let Some(events) = events else {
        return Ok(Response::builder()
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(ANSWER.as_bytes())).boxed_unsync())
            .unwrap());
    };
    let (sender, body) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(stream(sender, events, pace.map(Duration::from_micros), hold));
    Ok(Response::builder()
        .header("content-type", "text/event-stream")
        .body(body.boxed_unsync())
        .unwrap())
}

async fn stream(
    mut to: http_body_util::channel::Sender<Bytes, Infallible>,
    events: u64,
    pace: Option<Duration>,
    hold: bool,
) {
    let start = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

"#;
    if to.send_data(Bytes::from_static(start.as_bytes())).await.is_err() {
        return;
    }
    let mut ticks = pace.map(tokio::time::interval);
    for _ in 0..events {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let event = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"at {now} the hull\"}}}}\n\n"
        );
        if to.send_data(event.into()).await.is_err() {
            return;
        }
    }
    if hold {
        std::future::pending::<()>().await;
    }
    let end = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let _ = to.send_data(Bytes::from_static(end.as_bytes())).await;
}
