//! A message that an operator queued, and what became of it. Two records: which of several requests took it is
//! decided by the first write of the second.

use serde::{Deserialize, Serialize};

use super::DecisionEpoch;
use crate::context::{ExchangeId, Millis, ThreadId};
use crate::dialect::PartKey;

/// A message that an operator queued for a session. It waits for the session's next request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedMessage {
    /// Unique in its session.
    pub id: Box<str>,
    /// Its number among all messages queued in the session, from 1.
    pub number: u32,
    /// When it was queued.
    pub at: Millis,
    /// The user's text, as the operator wrote it.
    pub text: Box<str>,
    /// The message that this one repeats, because the request that contained it was not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Box<str>>,
}

/// What happened to a queued message; the first write decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InjectedMessage {
    /// The id of the queued message.
    pub id: Box<str>,
    /// When it was decided.
    pub at: Millis,
    /// How it ended.
    pub state: InjectionState,
}

impl InjectedMessage {
    pub(crate) fn key(&self) -> PartKey {
        PartKey::of_bytes(self.id.as_bytes())
    }

    /// Its place, if a request took it.
    pub fn place(&self) -> Option<&InjectionPlace> {
        match &self.state {
            InjectionState::Injected(place) => Some(place),
            InjectionState::Removed => None,
        }
    }
}

/// What happened to a queued message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectionState {
    /// It was removed before a request took it.
    Removed,
    /// A request took it; it stays in all requests that continue that one.
    Injected(Box<InjectionPlace>),
}

/// The place of an injected message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InjectionPlace {
    /// The first exchange that sent it.
    pub exchange: ExchangeId,
    /// The thread of that exchange.
    pub thread: ThreadId,
    /// Its number among the queued messages.
    pub number: u32,
    /// The part that it follows.
    pub after: PartKey,
    /// The hash of that part and the one before it: finds the place if the client changed something before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary: Option<PartKey>,
    /// The user's text, as the operator wrote it.
    pub text: Box<str>,
    /// Its cost, tokens, estimated.
    pub tokens: u32,
    /// When it was queued.
    pub queued: Millis,
    /// Injected after this refusal. Messages from before it are not repeated there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}
