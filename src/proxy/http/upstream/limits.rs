//! Timeouts for upstreams, and how often a request is sent.
//!
//! These waits are for the network, not for Plimsoll.

use std::time::Duration;

/// A peer that is silent this long is pinged: connections die unnoticed (NAT, sleeping machines), and
/// thinking models are silent for minutes.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to a ping may take.
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a request is sent, at most. It is sent again only if it was not sent, the upstream says that it was not
/// processed, or an idle connection closed so soon that it was almost certainly not read.
pub(super) const ATTEMPTS: usize = 3;
/// How long idle connections are kept.
pub(super) const IDLE: Duration = Duration::from_secs(60);
