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
/// processed, or it was almost certainly not read.
pub(super) const ATTEMPTS: usize = 3;
/// How long idle connections are kept.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// How long an idle TCP connection is silent until the system probes it, and how long after each of three probes.
pub(super) const TCP_PROBE: Duration = Duration::from_secs(15);
/// How long after each probe the next one follows.
pub(super) const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How long the system waits for bytes that were sent to be acknowledged; then the connection has failed.
pub(super) const TCP_UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// How long a connection on which nothing came of late may take to answer a ping, before another one is used.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// The same if a request is on its way there and nothing came since: a large one may still lie before the ping in buffers.
pub(super) const FIRST_SIGN: Duration = Duration::from_secs(10);
/// How long after a connection could not be opened another one is opened for requests that wait for a stream.
pub(super) const DIAL_PAUSE: Duration = Duration::from_secs(1);
