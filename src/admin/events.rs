//! `GET /api/v1/events`: what happens, as server-sent events, as it happens; on a shared store also at the other processes.
//!
//! A client that reads slowly misses events and is told so; it delays nobody. Each process tells the others what happens in
//! requests. What caps reach it finds out itself.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::{broadcast, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::responses::{AdminBody, with_hardening};
use super::state::{Admin, becomes_true};
use crate::context::caps::CapState;
use crate::store::ledgers::Ledgers;
use crate::telemetry::log::LogFields;
use crate::telemetry::{ContextReduction, Exchange, MessageEvent, Telemetry};
use crate::wire::sse::write_event;

/// How often a live stream without events sends a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often the events of other processes are read, while somebody listens.
const OTHERS: Duration = Duration::from_millis(500);
/// How long events are collected before others are told of them together, and most of them.
const COLLECTED: Duration = Duration::from_millis(200);
const TOLD_TOGETHER: usize = 100;

pub(super) fn events(admin: &Admin, ending: watch::Receiver<bool>) -> Response<AdminBody> {
    let live = LiveListener {
        requests: RequestEvents::subscribe(&admin.telemetry),
        others: OtherProcesses::subscribe(&admin.ledgers),
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

/// Tells other processes on a shared store what happens here.
pub(crate) async fn tell_others(admin: Arc<Admin>) -> Infallible {
    let mut requests = RequestEvents::subscribe(&admin.telemetry);
    while admin.ledgers.is_shared()
        && let Some(first) = requests.next().await
    {
        sleep(COLLECTED).await;
        let mut events = vec![first];
        while events.len() < TOLD_TOGETHER
            && let Some(Some(event)) = requests.next().now_or_never()
        {
            events.push(event);
        }
        // What cannot be told is not waited for.
        let _ = admin.ledgers.tell_events(events).await;
    }
    std::future::pending().await
}

/// A subscriber to live events.
struct LiveListener {
    requests: RequestEvents,
    others: Option<OtherProcesses>,
    caps: broadcast::Receiver<CapState>,
    ending: watch::Receiver<bool>,
    is_begun: bool,
}

impl LiveListener {
    /// The next bytes of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_begun, true) {
            if let Some(others) = &mut self.others {
                others.begin().await;
            }
            // Tells the client at once that the stream is open.
            return Some(Bytes::from_static(b": listening\n\n"));
        }
        let heartbeat = sleep(HEARTBEAT);
        tokio::pin!(heartbeat);
        loop {
            tokio::select! {
                () = becomes_true(&mut self.ending) => return None,
                () = &mut heartbeat => return Some(Bytes::from_static(b": still here\n\n")),
                event = self.requests.next() => return event,
                Ok(cap) = self.caps.recv() => {
                    let data = serde_json::to_string(&cap).unwrap_or_default();
                    return Some(write_event("cap", &data).into());
                }
                others = tick(&mut self.others) => {
                    let events = others.read().await;
                    if !events.is_empty() {
                        return Some(events);
                    }
                }
            }
        }
    }
}

/// What happens in requests at this process.
struct RequestEvents {
    exchanges: broadcast::Receiver<Arc<Exchange>>,
    messages: broadcast::Receiver<MessageEvent>,
    shrunk: broadcast::Receiver<ContextReduction>,
}

impl RequestEvents {
    fn subscribe(telemetry: &Telemetry) -> Self {
        Self {
            exchanges: telemetry.subscribe(),
            messages: telemetry.messages(),
            shrunk: telemetry.shrunk(),
        }
    }

    /// The next event, as it is sent; `None` at the end. Nothing is lost if it is dropped.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            exchange = self.exchanges.recv() => match exchange {
                Ok(exchange) => {
                    let data = serde_json::to_string(&LogFields::from(&*exchange)).unwrap_or_default();
                    Some(format!("id: {}\n{}", exchange.id, write_event("exchange", &data)).into())
                }
                // A client that reads slowly misses events, and is told so.
                Err(broadcast::error::RecvError::Lagged(missed)) => Some(missed_event(missed)),
                Err(broadcast::error::RecvError::Closed) => None,
            },
            // After missed events, the client finds the state in the queue itself.
            Ok(messages) = self.messages.recv() => {
                let data = serde_json::to_string(&messages).unwrap_or_default();
                let mut events = write_event("say", &data);
                events.extend(messages.step.event().map(|event| write_event(event, &data)));
                Some(events.into())
            }
            Ok(shrunk) = self.shrunk.recv() => {
                let data = serde_json::to_string(&shrunk).unwrap_or_default();
                Some(write_event(shrunk.event, &data).into())
            }
        }
    }
}

fn missed_event(missed: u64) -> Bytes {
    write_event("missed", &format!("{{\"missed\":{missed}}}")).into()
}

/// What happens at the other processes on a shared store.
struct OtherProcesses {
    ledgers: Arc<Ledgers>,
    ticks: Interval,
    /// How far it was read.
    place: Option<u64>,
}

impl OtherProcesses {
    /// `None` if there are none.
    fn subscribe(ledgers: &Arc<Ledgers>) -> Option<Self> {
        if !ledgers.is_shared() {
            return None;
        }
        let mut ticks = interval(OTHERS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Self { ledgers: ledgers.clone(), ticks, place: None })
    }

    /// What happens from now on is read.
    async fn begin(&mut self) {
        self.read().await;
    }

    /// The events since the last time, as they are sent.
    async fn read(&mut self) -> Bytes {
        // While the store is away, only what happens here is shown.
        let Ok(told) = self.ledgers.events_of_others(self.place).await else {
            return Bytes::new();
        };
        self.place = Some(told.place);
        let mut texts: Vec<Bytes> = told.events.into_iter().map(|event| event.text).collect();
        if told.missed > 0 {
            texts.push(missed_event(told.missed));
        }
        texts.concat().into()
    }
}

/// Ready when others are to be read; never, if there are none.
async fn tick(others: &mut Option<OtherProcesses>) -> &mut OtherProcesses {
    match others {
        Some(others) => {
            others.ticks.tick().await;
            others
        }
        None => std::future::pending().await,
    }
}
