//! Requests that are upgraded: bytes in both directions, and the messages in them read along.
//!
//! A connection that nobody uses is closed in its time.

pub(super) mod frames;
pub(super) mod tunnel;
