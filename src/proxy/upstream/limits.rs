//! How long upstreams are waited for, and how often they are asked.
//!
//! What waits here waits for the network, never for us.

use std::time::Duration;

/// A peer that is silent this long is asked whether it is still there; connections die unnoticed
/// (NAT, sleeping machines), and thinking models are silent for minutes.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// How long it may take to answer that.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// How often a request is sent, at most. It is sent again only where the upstream surely did not work on it.
pub(super) const ATTEMPTS: usize = 3;
/// Idle connections are kept this long.
pub(super) const IDLE: Duration = Duration::from_secs(60);
