//! Events that are reported at once, not at the end of an exchange: queued messages, and requests whose
//! context was made smaller.
//!
//! They hold no text of messages.

use serde::Serialize;

use super::OpenExchange;
use crate::context::policy::{Mode, SummaryAuthor};
use crate::context::{ExchangeId, Millis, SessionId, TenantId, ThreadId};

/// Something that happened to a queued message, without its text.
#[derive(Clone, Debug, Serialize)]
pub struct MessageEvent {
    /// The message's id.
    pub id: Box<str>,
    /// What happened to it.
    pub step: MessageStep,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session that it is for.
    pub session: SessionId,
    /// The exchange that sent it.
    #[serde(rename = "request")]
    pub exchange: Option<ExchangeId>,
    /// Its position in the queue, from 1, if it was just queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The time of the event.
    pub at: Millis,
}

/// What happens to a queued message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageStep {
    /// It waits in the queue.
    Queued,
    /// It was removed from the queue.
    Removed,
    /// It was added to a request.
    #[serde(rename = "taken")]
    Dequeued,
}

impl MessageStep {
    /// The name of the live event of this step; `None` if there is none.
    pub(crate) fn event(self) -> Option<&'static str> {
        match self {
            Self::Queued => Some("queued"),
            Self::Dequeued => Some("dequeued"),
            Self::Removed => None,
        }
    }
}

/// A request is sent with a context that was just made smaller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextReduction {
    /// What was done: the live event's name.
    #[serde(skip)]
    pub event: &'static str,
    /// The id of its exchange.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session whose context was made smaller.
    pub session: SessionId,
    /// The thread in it.
    pub thread: ThreadId,
    /// Tokens without the reduction, estimated: for a summary, the number that it was decided by.
    pub before: u64,
    /// Tokens with the reduction, estimated.
    pub after: u64,
    /// Who wrote the summary that replaces older messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<SummaryAuthor>,
    /// The number of tool results that were cleared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<u32>,
    /// When the request arrived.
    pub at: Millis,
}

impl ContextReduction {
    /// The new reductions of a request: a summary that replaces older messages (`compacted`), and cleared
    /// tool results (`pruned`).
    pub(super) fn from_open(open_exchange: &OpenExchange) -> impl Iterator<Item = Self> {
        let done = open_exchange.view.rewriting;
        let is_sent = done.mode == Mode::Active;
        let total = open_exchange.view.total;
        let reduced = |event, before: u64| Self {
            event,
            exchange: open_exchange.id.clone(),
            tenant: open_exchange.tenant.clone(),
            session: open_exchange.session.clone(),
            thread: open_exchange.position.thread.clone(),
            before,
            after: total,
            strategy: None,
            results: None,
            at: open_exchange.at,
        };
        let compacted = (is_sent && done.new.compacted > 0).then(|| Self {
            strategy: done.summary_by,
            ..reduced("compacted", done.compacted_from.unwrap_or(total + done.tokens_compacted))
        });
        let pruned = (is_sent && done.new.cut > 0).then(|| Self {
            results: Some(done.new.cut),
            ..reduced("pruned", total + done.tokens_pruned)
        });
        compacted.into_iter().chain(pruned)
    }
}
