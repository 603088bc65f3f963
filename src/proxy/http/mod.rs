//! HTTP connections to clients and upstreams, bodies, and the memory that bodies may use.
//!
//! Knows nothing about sessions or models. Only `upstream` knows providers; it builds on the other files.

pub(super) mod answer;
pub(super) mod arriving;
pub(super) mod body;
pub(super) mod client_access;
pub(super) mod connection;
pub(super) mod framing;
pub(super) mod headers;
mod interim;
pub(super) mod memory;
pub(super) mod opening;
pub(super) mod path_tags;
mod peer_activity;
pub(super) mod pieces;
pub(super) mod transport;
pub(super) mod tunnel_timeouts;
pub(super) mod upload;
pub(super) mod upstream;
