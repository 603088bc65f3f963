//! How long a connection that was upgraded may be quiet.
//!
//! Long while both sides are open, short where others need its memory.

use std::time::Duration;

/// How long nothing may pass in a tunnel before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelTimeouts {
    /// While both sides are open: longer than people think between two turns.
    pub idle: Duration,
    /// Once one side has ended.
    pub half_closed: Duration,
    /// Where others need its memory.
    pub short: Duration,
    /// How often it is looked at.
    pub check: Duration,
}

impl Default for TunnelTimeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(60),
            short: Duration::from_secs(60),
            check: Duration::from_secs(10),
        }
    }
}

impl TunnelTimeouts {
    /// How long one may be quiet that is half closed, or whose memory others need.
    pub(crate) fn timeout(&self, half_closed: bool, is_short: bool) -> Duration {
        match (half_closed, is_short) {
            (true, true) => self.half_closed.min(self.short),
            (true, false) => self.half_closed,
            (false, true) => self.short,
            (false, false) => self.idle,
        }
    }
}
