//! Upgraded requests: tunnels bytes in both directions, and reads the messages in them.
//!
//! An unused connection is closed after a while.

pub(super) mod frames;
pub(super) mod tunnel;
