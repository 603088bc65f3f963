//! HTTP connections and bodies, and the memory that they may use.
//!
//! Knows nothing about upstreams, sessions or models.

pub(super) mod answer;
pub(super) mod body;
pub(super) mod close;
pub(super) mod framing;
pub(super) mod gate;
pub(super) mod headers;
pub(super) mod memory;
pub(super) mod opening;
pub(super) mod pieces;
pub(super) mod progress;
pub(super) mod transport;
pub(super) mod tunnel_timeouts;
