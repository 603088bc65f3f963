//! Floor 5: connections, limits and draining.
//!
//! Must never be in the way: whatever fails in here, the client gets what it would have got without Plimsoll.
//! Does not know the admin listener. Folders are in the order in which they build on each other.

mod http;
mod offload;

mod state;

mod fetch;

mod learning;
mod plan;
mod response;

mod compaction;
mod turn;

mod exchange;

mod server;

pub use self::http::tunnel_timeouts::TunnelTimeouts;
pub use self::server::{DrainOutcome, serve};
pub use self::state::Proxy;
pub(crate) use self::turn::drafts::find_interrupted;

#[cfg(test)]
mod tests;
