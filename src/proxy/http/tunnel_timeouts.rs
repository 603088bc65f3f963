//! How long an upgraded connection may be idle.
//!
//! Long while both sides are open, short once one of them has ended.

use std::time::Duration;

/// How long a tunnel may be idle before it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelTimeouts {
    /// While both sides are open: longer than people pause between two turns.
    pub idle: Duration,
    /// Once one side has ended.
    pub half_closed: Duration,
    /// How often this is checked.
    pub check: Duration,
}

impl Default for TunnelTimeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(60),
            check: Duration::from_secs(10),
        }
    }
}

impl TunnelTimeouts {
    pub(crate) fn timeout(&self, half_closed: bool) -> Duration {
        if half_closed { self.half_closed } else { self.idle }
    }
}
