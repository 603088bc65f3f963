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
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InjectRequest {
    /// The text; at most 65,536 bytes, not empty.
    text: String,
}

/// The messages of a session, in order.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct InjectQueue {
    /// Those that wait for its next request.
    pub waiting: Vec<WaitingMessage>,
    /// Those that are in its requests.
    #[serde(rename = "taken")]
    pub sent: Vec<SentMessage>,
}

/// A queued message.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct WaitingMessage {
    pub id: String,
    /// Its position in the queue, from 1.
    pub position: usize,
    /// When it was queued, ms since 1970.
    pub at: Millis,
    pub text: String,
}

/// A message that was sent.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct SentMessage {
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
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct ClearedMessages {
    /// Their ids, without those of messages that were sent meanwhile.
    pub removed: Vec<String>,
}

/// The result of removing a message.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct RemovedMessage {
    pub removed: String,
}

impl InjectQueue {
    fn from_ledger(ledger: &Ledger) -> Self {
        let queued = ledger.waiting().into_iter().enumerate();
        let injections = ledger.injections().into_iter();
        Self {
            waiting: queued.map(|(index, queued)| WaitingMessage::new(queued, index + 1)).collect(),
            sent: injections
                .map(|(message, injection)| SentMessage {
                    id: message.id.to_string(),
                    at: injection.queued,
                    injected_at: message.at,
                    request: injection.exchange.clone(),
                    thread: injection.thread.clone(),
                    text: injection.text.to_string(),
                })
                .collect(),
        }
    }
}

impl WaitingMessage {
    fn new(queued: &QueuedMessage, position: usize) -> Self {
        Self { id: queued.id.to_string(), position, at: queued.at, text: queued.text.to_string() }
    }
}

impl fmt::Display for InjectQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.waiting.is_empty() {
            write!(f, "No message is queued.")?;
        }
        for (index, waiting) in self.waiting.iter().enumerate() {
            let WaitingMessage { id, position, at, text } = waiting;
            let break_ = if index > 0 { "\n" } else { "" };
            write!(f, "{break_}{position}. {id}, queued {}: {}", time(*at), one_line(text))?;
        }
        for message in &self.sent {
            let SentMessage { id, injected_at, request, text, .. } = message;
            write!(f, "\nsent {} in {request} ({id}): {}", time(*injected_at), one_line(text))?;
        }
        Ok(())
    }
}

fn time(at: Millis) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(at))
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ⏎ ")
}

pub(super) async fn queue(admin: &Admin, id: &str, request: &Request<Incoming>) -> AdminResponse {
    let scope = scope(admin, id).await?;
    Ok(negotiated(&admin.ledgers.look(&scope, InjectQueue::from_ledger).await?, request))
}

pub(super) async fn say(admin: &Admin, id: &str, body: &mut Incoming) -> AdminResponse {
    let text = message_text(body).await?;
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    // Numbers only grow, so that the order of messages never changes.
    let (number, waiting) = admin.ledgers.look(&scope, next).await?;
    if waiting >= MOST {
        let what = format!(
            "{MOST} messages are already queued in session {id:?}. Its next request sends them; \
             remove some, or wait for that request."
        );
        return Err(AdminError::new(StatusCode::CONFLICT, "queue_full", what));
    }
    let random = getrandom::u64().map_err(|error| {
        AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "no_id", error.to_string())
    })?;
    let message_id = format!("{random:016x}");
    let queued = QueuedMessage {
        id: message_id.as_str().into(),
        number,
        at: now(),
        text: text.into(),
        repeats: None,
    };
    let answer = WaitingMessage::new(&queued, waiting + 1);
    store_fact_if_absent(admin, &handle, Fact::Queued(Box::new(queued)), id).await?;
    admin.telemetry.announce(MessageEvent {
        position: Some(waiting + 1),
        ..message_event(&scope, &message_id, MessageStep::Queued)
    });
    Ok(json(&answer))
}

pub(super) async fn take_back(admin: &Admin, id: &str, message_id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    let is_known = admin
        .ledgers
        .look(&scope, |ledger| ledger.queued().any(|queued| &*queued.id == message_id));
    if !is_known.await? {
        let what = format!("Session {id:?} has no queued message {message_id:?}.");
        return Err(AdminError::new(StatusCode::NOT_FOUND, "not_found", what));
    }
    let fact = InjectedMessage { id: message_id.into(), at: now(), state: InjectionState::Removed };
    // The proxy may send it at this very moment: whoever stores the first fact decides.
    let stored =
        store_fact_if_absent(admin, &handle, Fact::InjectedMessage(Box::new(fact)), id).await?;
    if let Fact::InjectedMessage(stored) = &stored
        && let Some(sent) = stored.place()
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

pub(super) async fn clear(admin: &Admin, id: &str) -> AdminResponse {
    let scope = scope(admin, id).await?;
    let handle = admin.ledgers.handle(&scope);
    let waiting_ids = admin.ledgers.look(&scope, |ledger| {
        ledger.waiting().into_iter().map(|queued| queued.id.clone()).collect::<Vec<_>>()
    });
    let mut removed = Vec::new();
    for message_id in waiting_ids.await? {
        let fact =
            InjectedMessage { id: message_id.clone(), at: now(), state: InjectionState::Removed };
        let stored =
            store_fact_if_absent(admin, &handle, Fact::InjectedMessage(Box::new(fact)), id).await?;
        // What was sent meanwhile stays in the conversation.
        if !matches!(&stored, Fact::InjectedMessage(message) if message.place().is_some()) {
            admin.telemetry.announce(message_event(&scope, &message_id, MessageStep::Removed));
            removed.push(message_id.into());
        }
    }
    Ok(json(&ClearedMessages { removed }))
}

/// The number of the next message, and how many are queued.
fn next(ledger: &Ledger) -> (u32, usize) {
    let highest = ledger.queued().map(|queued| queued.number).max().unwrap_or(0);
    (highest.saturating_add(1), ledger.waiting().len())
}

async fn message_text(body: &mut Incoming) -> Result<String, AdminError> {
    let bytes = match Limited::new(body, QUESTION).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_long()),
        Err(_) => return Err(bad_request("broken", "The request was incomplete.")),
    };
    let Ok(InjectRequest { text }) = serde_json::from_slice(&bytes) else {
        return Err(bad_request("bad_question", "Send JSON: {\"text\": \"…\"}."));
    };
    if text.trim().is_empty() {
        return Err(bad_request("empty", "The text is empty: there is nothing to send."));
    }
    if text.len() > LONGEST { Err(too_long()) } else { Ok(text) }
}

fn bad_request(code: &'static str, what: &str) -> AdminError {
    AdminError::new(StatusCode::BAD_REQUEST, code, what)
}

fn too_long() -> AdminError {
    let what = format!("The text is longer than {LONGEST} bytes.");
    AdminError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", what)
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
