//! Live events, which several processes tell each other by way of the store that they share.
//!
//! Only the newest are there, for a minute: nothing is decided by them.

use bytes::Bytes;

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldEvent {
    /// The process.
    pub instance: u64,
    /// The event, as it is sent to who listens.
    pub text: Bytes,
}

/// What was told since a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldEvents {
    /// Where to read on: how many were told ever.
    pub place: u64,
    /// How many of them are not there any more.
    pub missed: u64,
    /// The others, oldest first.
    pub events: Vec<ToldEvent>,
}
