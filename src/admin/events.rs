//! `GET /api/v1/events`: what happens, as server-sent events, as it happens.
//!
//! A client that reads slowly misses events and is told so; it delays nobody.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::{broadcast, watch};

use super::responses::{AdminBody, with_hardening};
use super::state::{Admin, becomes_true};
use crate::context::caps::CapState;
use crate::telemetry::log::LogFields;
use crate::telemetry::{ContextReduction, Exchange, MessageEvent};
use crate::wire::sse::write_event;

/// How often a live stream without events sends a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(super) fn events(admin: &Admin, ending: watch::Receiver<bool>) -> Response<AdminBody> {
    let live = LiveListener {
        exchanges: admin.telemetry.subscribe(),
        messages: admin.telemetry.messages(),
        shrunk: admin.telemetry.shrunk(),
        caps: admin.ledgers.caps().passed(),
        ending,
        is_begun: false,
    };
    let frames = stream::unfold(live, |mut live| async move {
        let bytes = live.next().await?;
        Some((Ok::<_, io::Error>(Frame::data(bytes)), live))
    });
    with_hardening("text/event-stream", StreamBody::new(frames.boxed()).boxed_unsync())
}

/// A subscriber to live events.
struct LiveListener {
    exchanges: broadcast::Receiver<std::sync::Arc<Exchange>>,
    messages: broadcast::Receiver<MessageEvent>,
    shrunk: broadcast::Receiver<ContextReduction>,
    caps: broadcast::Receiver<CapState>,
    ending: watch::Receiver<bool>,
    is_begun: bool,
}

impl LiveListener {
    /// The next bytes of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_begun, true) {
            // Tells the client at once that the stream is open.
            return Some(Bytes::from_static(b": listening\n\n"));
        }
        tokio::select! {
            () = becomes_true(&mut self.ending) => None,
            () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(b": still here\n\n")),
            exchange = self.exchanges.recv() => match exchange {
                Ok(exchange) => {
                    let data = serde_json::to_string(&LogFields::from(&*exchange)).unwrap_or_default();
                    Some(format!("id: {}\n{}", exchange.id, write_event("exchange", &data)).into())
                }
                // A client that reads slowly misses events, and is told so.
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    Some(write_event("missed", &format!("{{\"missed\":{missed}}}")).into())
                }
                Err(broadcast::error::RecvError::Closed) => None,
            },
            // After missed events, the client finds the state in the queue itself.
            Ok(messages) = self.messages.recv() => {
                let data = serde_json::to_string(&messages).unwrap_or_default();
                let mut events = write_event("say", &data);
                events.extend(messages.step.event().map(|event| write_event(event, &data)));
                Some(events.into())
            }
            Ok(cap) = self.caps.recv() => {
                let data = serde_json::to_string(&cap).unwrap_or_default();
                Some(write_event("cap", &data).into())
            }
            Ok(shrunk) = self.shrunk.recv() => {
                let data = serde_json::to_string(&shrunk).unwrap_or_default();
                Some(write_event(shrunk.event, &data).into())
            }
        }
    }
}
