//! How long an upgraded connection may be idle.
//!
//! Long while both sides are open, short if others need its memory.

use std::time::Duration;

/// How long a tunnel may be idle before it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelTimeouts {
    /// While both sides are open: longer than people pause between two turns.
    pub idle: Duration,
    /// Once one side has ended.
    pub half_closed: Duration,
    /// If others need its memory.
    pub short: Duration,
    /// How often this is checked.
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
    /// How long a tunnel may be idle, depending on whether it is half closed and whether others need its
    /// memory.
    pub(crate) fn timeout(&self, half_closed: bool, is_short: bool) -> Duration {
        match (half_closed, is_short) {
            (true, true) => self.half_closed.min(self.short),
            (true, false) => self.half_closed,
            (false, true) => self.short,
            (false, false) => self.idle,
        }
    }
}
