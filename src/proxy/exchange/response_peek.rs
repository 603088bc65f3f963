//! An accepted answer that says at its start that the request does not fit: an error event before any
//! word, a 200 that holds an error (`docs/protocols.md` 3.6, 4.3; gateways, MiniMax).
//!
//! Only answers to requests that are large enough to be suspected are read here, before their head goes
//! to the client. What waits is never a word of the reply, and not long.

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{Response, StatusCode};

use crate::context::overflow::{self, OverflowEvidence, OverflowSign};
use crate::dialect::lesson::LessonMatch;
use crate::dialect::overflow::Overflow;
use crate::dialect::{Dialect, Reply};
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::http::memory::MemoryShare;
use crate::proxy::learning::lessons;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::turn::pending::PendingExchange;

/// Most bytes that are read of a start: an error is shorter.
const BYTES: usize = 16 * 1024;
/// How long the start of an answer that holds no word yet may be kept from the client, accepted or refused.
pub(super) const TIMEOUT: Duration = Duration::from_millis(250);

/// Reads the start of an accepted answer: the answer, whole, and what it says of the window where it is an
/// error in place of a reply.
pub(super) async fn read(
    response: Response<OutgoingBody>,
    pending: &PendingExchange,
    recorder: &ExchangeRecorder,
) -> (StartedResponse, Option<(Overflow, LessonMatch)>) {
    let conversation = &pending.prepared().conversation;
    let (dialect, purpose) = (conversation.dialect, conversation.purpose);
    let mut seen = Reply::default();
    let begun =
        StartedResponse::until(response, BYTES, TIMEOUT, &recorder.memory, |head, start| {
            seen = reply(dialect, head, start, &recorder.memory);
            seen.error.is_some() || !seen.parts.is_empty() || seen.complete
        });
    let begun = begun.await;
    if !seen.parts.is_empty() {
        return (begun, None);
    }
    let host = recorder.upstream_host().unwrap_or_default();
    let shown = overflow::shown(
        &seen,
        purpose,
        &OverflowEvidence { host: &host, ..OverflowEvidence::default() },
    );
    let said = shown.filter(|shown| shown.sign == OverflowSign::InReply).map(|shown| shown.said);
    let (Some(said), Some(error)) = (said, &seen.error) else { return (begun, None) };
    let error = lessons::RefusalResponse::InReply { status: StatusCode::OK.as_u16(), error };
    let prepared = pending.prepared();
    let taught = lessons::taught(error, &prepared.body, prepared.name(), None).await;
    (begun, Some((said, taught)))
}

/// What the start of an answer holds of a reply.
fn reply(dialect: Dialect, head: &Parts, start: &[u8], memory: &Arc<MemoryShare>) -> Reply {
    let status = StatusCode::OK.as_u16();
    let mut reading = ResponseObserver::new(dialect, status, &head.headers, BYTES * 2, memory);
    reading.saw(start);
    reading.finish(true).reply.unwrap_or_default()
}
