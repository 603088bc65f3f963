//! Detects an accepted response that says at its start that the request does not fit: an error event before
//! any content, or a 200 with an error (`docs/protocols.md` 3.6, 4.3; gateways, MiniMax).
//!
//! Only responses to large requests are read here before their head is forwarded. What is delayed is never
//! content of the reply, and the delay is short.

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{Response, StatusCode};

use crate::context::overflow::{self, OverflowEvidence, OverflowReport, OverflowSign};
use crate::dialect::lesson::LessonMatch;
use crate::dialect::overflow::Overflow;
use crate::dialect::reading::BodyEnd;
use crate::dialect::{Dialect, Reply};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::http::memory::MemoryBudget;
use crate::proxy::learning::lessons::{self, QuotableRequest};
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::pending::PendingExchange;

/// Most bytes that are read of the start: an error is shorter.
const BYTES: usize = 16 * 1024;
/// How long the start of a response without content may be delayed, accepted or refused.
pub(super) const TIMEOUT: Duration = Duration::from_millis(250);

/// What a response says about the window, and the lessons of its message.
#[derive(Clone)]
pub(super) struct SeenOverflow {
    pub(super) sign: OverflowSign,
    pub(super) reported: Overflow,
    pub(super) taught: LessonMatch,
}

/// Reads the start of a response. With it comes what it says about the window, if it is an error instead of a reply.
pub(super) async fn read(
    response: Response<OutgoingBody>,
    pending: &PendingExchange,
    recorder: &ExchangeRecorder,
) -> (StartedResponse, Option<SeenOverflow>) {
    let conversation = &pending.prepared().conversation;
    let mut partial_reply = Reply::default();
    let reading =
        StartedResponse::until(response, BYTES, TIMEOUT, &recorder.proxy.memory, |head, start| {
            partial_reply = reply(conversation.dialect, head, start, &recorder.proxy.memory);
            partial_reply.error.is_some()
                || !partial_reply.parts.is_empty()
                || partial_reply.complete
        });
    let response = reading.await;
    // Content has begun: whatever comes after it, the request fitted.
    if !partial_reply.parts.is_empty() {
        return (response, None);
    }
    let host = pending.prepared().info.upstream.host();
    let evidence = OverflowEvidence { host, ..OverflowEvidence::default() };
    let Some(OverflowReport { sign: OverflowSign::InReply, reported, .. }) =
        overflow::detected(&partial_reply, conversation.purpose, &evidence)
    else {
        return (response, None);
    };
    let Some(error) = &partial_reply.error else {
        return (response, None);
    };
    let error = lessons::RefusalResponse::InReply { status: StatusCode::OK.as_u16(), error };
    let prepared = pending.prepared();
    let request = QuotableRequest { info: &prepared.info, body: &prepared.body, head: None };
    let taught = lessons::taught(error, &request).await;
    let sign = OverflowSign::InReply;
    (response, Some(SeenOverflow { sign, reported, taught }))
}

fn reply(dialect: Dialect, head: &Parts, start: &[u8], memory: &Arc<MemoryBudget>) -> Reply {
    let status = StatusCode::OK.as_u16();
    let mut reading = ResponseObserver::new(dialect, status, &head.headers, BYTES * 2, memory);
    reading.observe(start);
    reading.finish(BodyEnd::Whole).reply.unwrap_or_default()
}
