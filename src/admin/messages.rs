//! Messages for a session: queue, list and remove them.
//!
//! The only place that shows message text, and only of messages that were queued here. The proxy adds queued
//! messages to the session's next request; whichever comes first, that or a removal, decides.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::responses::{AdminError, AdminResponse, json, negotiated, scope};
use super::state::Admin;
use crate::clock::now;
use crate::context::inject::{LONGEST, MOST};
use crate::context::ledger::Ledger;
use crate::context::{
    ExchangeId, Fact, InjectedMessage, InjectionState, Millis, QueuedMessage, ThreadId,
};
use crate::store::ledgers::SessionHandle;
use crate::store::{Scope, StoreError};
use crate::telemetry::{MessageEvent, MessageStep};

/// The longest request body in bytes: every byte of the longest text may be escaped.
const QUESTION: usize = 6 * LONGEST + 1024;

/// A message to queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InjectRequest {
    text: String,
}

/// The messages of a session, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct InjectQueue {
    /// Those that wait for its next request.
    pub waiting: Vec<WaitingMessage>,
    /// Those that are in its requests.
    #[serde(rename = "taken")]
    pub sent: Vec<SentMessage>,
}

/// A queued message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WaitingMessage {
    pub id: String,
    /// Its position in the queue, from 1.
    pub position: usize,
    /// When it was queued, ms since 1970.
    pub at: Millis,
    pub text: String,
}

/// A message that was sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentMessage {
    pub id: String,
    /// When it was queued, ms since 1970.
    pub at: Millis,
    /// When it was added to a request, ms since 1970.
    #[serde(rename = "taken_at")]
    pub injected_at: Millis,
    /// The exchange that sent it.
    pub request: ExchangeId,
    pub thread: ThreadId,
    pub text: String,
}

/// The result of removing all queued messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClearedMessages {
    /// Their ids, without those of messages that were sent meanwhile.
    pub removed: Vec<String>,
}

/// The result of removing a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemovedMessage {
    pub removed: String,
}

impl InjectQueue {
    fn of(ledger: &Ledger) -> Self {
        let waiting = ledger.waiting().into_iter().enumerate();
        let waiting = waiting.map(|(place, queued)| WaitingMessage::of(queued, place + 1));
        let sent = ledger.injections().into_iter().map(|(message, injection)| SentMessage {
            id: message.id.to_string(),
            at: injection.queued,
            injected_at: message.at,
            request: injection.exchange.clone(),
            thread: injection.thread.clone(),
            text: injection.text.to_string(),
        });
        Self { waiting: waiting.collect(), sent: sent.collect() }
    }
}

impl WaitingMessage {
    fn of(queued: &QueuedMessage, position: usize) -> Self {
        let (id, text) = (queued.id.to_string(), queued.text.to_string());
        Self { id, position, at: queued.at, text }
    }
}

impl fmt::Display for InjectQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |at| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(at));
        let line = |text: &str| text.lines().collect::<Vec<_>>().join(" ⏎ ");
        if self.waiting.is_empty() {
            write!(f, "No message is queued.")?;
        }
        for (index, waiting) in self.waiting.iter().enumerate() {
            let WaitingMessage { id, position, at, text } = waiting;
            let break_ = if index > 0 { "\n" } else { "" };
            write!(f, "{break_}{position}. {id}, queued {}: {}", time(*at), line(text))?;
        }
        for message in &self.sent {
            let SentMessage { id, injected_at, request, text, .. } = message;
            write!(f, "\nsent {} in {request} ({id}): {}", time(*injected_at), line(text))?;
        }
        Ok(())
    }
}

pub(super) async fn queue(admin: &Admin, id: &str, request: &Request<Incoming>) -> AdminResponse {
    let scope = scope(admin, id).await?;
    Ok(negotiated(&admin.ledgers.look(&scope, InjectQueue::of).await?, request))
}

/// Queues a message.
pub(super) async fn say(admin: &Admin, id: &str, body: &mut Incoming) -> AdminResponse {
    let text = message_text(body).await?;
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    let (number, waiting) = admin.ledgers.look(&scope, next).await?;
    if waiting >= MOST {
        let what = format!(
            "{MOST} messages are already queued in session {id:?}. Its next request sends them; \
             remove some, or wait for that request."
        );
        return Err(AdminError::new(StatusCode::CONFLICT, "queue_full", what));
    }
    let unready = |error: getrandom::Error| {
        AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "no_id", error.to_string())
    };
    let message_id = format!("{:016x}", getrandom::u64().map_err(unready)?);
    let (at, text) = (now(), text.into());
    let queued = QueuedMessage { id: message_id.as_str().into(), number, at, text, repeats: None };
    let answer = WaitingMessage::of(&queued, waiting + 1);
    store_fact_if_absent(admin, &handle, Fact::Queued(Box::new(queued)), id).await?;
    admin.telemetry.announce(MessageEvent {
        position: Some(waiting + 1),
        ..message_event(&scope, &message_id, MessageStep::Queued)
    });
    Ok(json(&answer))
}

/// Removes a queued message that was not sent.
pub(super) async fn take_back(admin: &Admin, id: &str, message_id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    let is_known =
        admin.ledgers.look(&scope, |ledger| ledger.queued().any(|it| &*it.id == message_id));
    if !is_known.await? {
        let what = format!("Session {id:?} has no queued message {message_id:?}.");
        return Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what));
    }
    let fact = InjectedMessage { id: message_id.into(), at: now(), state: InjectionState::Removed };
    let held =
        store_fact_if_absent(admin, &handle, Fact::InjectedMessage(Box::new(fact)), id).await?;
    if let Fact::InjectedMessage(held) = &held
        && let Some(sent) = held.place()
    {
        let what = format!(
            "It was already sent, in request {}: it stays in the conversation.",
            sent.exchange
        );
        return Err(AdminError::new(StatusCode::CONFLICT, "taken", what));
    }
    admin.telemetry.announce(message_event(&scope, message_id, MessageStep::Removed));
    Ok(json(&RemovedMessage { removed: message_id.to_owned() }))
}

/// Removes all queued messages that were not sent.
pub(super) async fn clear(admin: &Admin, id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    let waiting = |ledger: &Ledger| {
        ledger.waiting().into_iter().map(|queued| queued.id.clone()).collect::<Vec<_>>()
    };
    let mut removed = Vec::new();
    for message_id in admin.ledgers.look(&scope, waiting).await? {
        let fact =
            InjectedMessage { id: message_id.clone(), at: now(), state: InjectionState::Removed };
        let held =
            store_fact_if_absent(admin, &handle, Fact::InjectedMessage(Box::new(fact)), id).await?;
        if !matches!(&held, Fact::InjectedMessage(held) if held.place().is_some()) {
            admin.telemetry.announce(message_event(&scope, &message_id, MessageStep::Removed));
            removed.push(message_id.into());
        }
    }
    Ok(json(&ClearedMessages { removed }))
}

/// The number of the next message, and how many are queued.
fn next(ledger: &Ledger) -> (u32, usize) {
    let last = ledger.queued().map(|queued| queued.number).max().unwrap_or(0);
    (last.saturating_add(1), ledger.waiting().len())
}

/// The text of a request, which must not be empty.
async fn message_text(body: &mut Incoming) -> Result<String, AdminError> {
    let wrong = |status, code, what: &str| Err(AdminError::new(status, code, what));
    let too_long = || {
        let what = format!("The text is longer than {LONGEST} bytes.");
        Err(AdminError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", what))
    };
    let bytes = match Limited::new(body, QUESTION).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return too_long(),
        Err(_) => return wrong(StatusCode::BAD_REQUEST, "broken", "The request was incomplete."),
    };
    let Ok(InjectRequest { text }) = serde_json::from_slice(&bytes) else {
        let what = "Send JSON: {\"text\": \"…\"}.";
        return wrong(StatusCode::BAD_REQUEST, "bad_question", what);
    };
    if text.trim().is_empty() {
        return wrong(
            StatusCode::BAD_REQUEST,
            "empty",
            "The text is empty: there is nothing to send.",
        );
    }
    if text.len() > LONGEST { too_long() } else { Ok(text) }
}

/// Stores a fact unless there already is one; returns the one that applies.
async fn store_fact_if_absent(
    admin: &Admin,
    handle: &SessionHandle,
    fact: Fact,
    id: &str,
) -> Result<Fact, AdminError> {
    admin.ledgers.store_fact_if_absent(handle, fact).await.map_err(|trouble| match trouble {
        StoreError::Closed | StoreError::Deleted => {
            let what = format!("Session {id:?} was just deleted, or Plimsoll is shutting down.");
            AdminError::new(StatusCode::NOT_FOUND, "not_found", what)
        }
        trouble => trouble.into(),
    })
}

fn message_event(scope: &Scope, id: &str, step: MessageStep) -> MessageEvent {
    let Scope { tenant, session } = scope.clone();
    MessageEvent { id: id.into(), step, tenant, session, exchange: None, position: None, at: now() }
}
