//! What is told at once, beside exchanges that ended: queued words, and requests whose context was made
//! smaller.
//!
//! Holds no word of what was said.

use serde::Serialize;

use super::OpenExchange;
use crate::context::policy::{Mode, SummaryAuthor};
use crate::context::{ExchangeId, Millis, SessionId, TenantId, ThreadId};

/// Something that happened to queued words; without the words.
#[derive(Clone, Debug, Serialize)]
pub struct MessageEvent {
    /// Which.
    pub id: Box<str>,
    /// What.
    pub step: MessageStep,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// The exchange that took them.
    #[serde(rename = "request")]
    pub exchange: Option<ExchangeId>,
    /// Their place among those that wait, from 1, of words that were just queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// When.
    pub at: Millis,
}

/// What happens to queued words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageStep {
    /// They wait.
    Queued,
    /// They were taken back.
    Removed,
    /// They stand in a request.
    Taken,
}

impl MessageStep {
    /// The live event that says this alone; `None` where words that waited are said by nobody.
    pub fn event(self) -> Option<&'static str> {
        match self {
            Self::Queued => Some("queued"),
            Self::Taken => Some("dequeued"),
            Self::Removed => None,
        }
    }
}

/// A request goes out with a context that was just made smaller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextReduction {
    /// How: the live event's name.
    #[serde(skip)]
    pub event: &'static str,
    /// Its exchange.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// The thread.
    pub thread: ThreadId,
    /// Tokens without it, estimated.
    pub before: u64,
    /// Tokens with it, estimated.
    pub after: u64,
    /// Who wrote the summary that took the place of older messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<SummaryAuthor>,
    /// How many results of tools were cleared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<u32>,
    /// When the request arrived.
    pub at: Millis,
}

impl ContextReduction {
    /// What is new in a request that goes out: a summary that takes the place of older messages
    /// (`compacted`), results that were cleared (`pruned`).
    pub(super) fn of(open_exchange: &OpenExchange) -> impl Iterator<Item = Self> {
        let done = open_exchange.view.rewriting;
        let is_sent = done.mode == Mode::Active;
        let told = |event, less: u64| Self {
            event,
            exchange: open_exchange.id.clone(),
            tenant: open_exchange.tenant.clone(),
            session: open_exchange.session.clone(),
            thread: open_exchange.thread.clone(),
            before: open_exchange.view.total.saturating_add(less),
            after: open_exchange.view.total,
            strategy: None,
            results: None,
            at: open_exchange.at,
        };
        let compacted = (is_sent && done.new.compacted > 0).then(|| Self {
            strategy: done.summary_by,
            ..told("compacted", done.tokens_compacted)
        });
        let pruned = (is_sent && done.new.cut > 0)
            .then(|| Self { results: Some(done.new.cut), ..told("pruned", done.tokens_pruned) });
        compacted.into_iter().chain(pruned)
    }
}
