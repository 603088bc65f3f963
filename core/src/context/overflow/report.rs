//! An overflow as it is shown: how it showed, and what was done about it.
//!
//! Contains numbers only, nothing that a provider wrote.

use std::fmt;

use crate::context::budget::grouped;
use crate::context::records::{OverflowReport, OverflowSign};
use crate::dialect::overflow::Overflow;

impl OverflowReport {
    pub(super) fn unsaved(sign: OverflowSign, reported: Overflow) -> Self {
        Self { sign, reported, saved: false }
    }
}

impl OverflowSign {
    pub(super) fn description(self) -> &'static str {
        match self {
            OverflowSign::Refused => "the provider refused the request: it does not fit the window",
            OverflowSign::InReply => "the provider broke off: the request does not fit the window",
            OverflowSign::WindowFull => "the reply ended because the window was full",
            OverflowSign::Empty => {
                "the reply ended at its length before it began: the window is full"
            }
            OverflowSign::Truncated => {
                "the provider read far less than was sent: it cut the history"
            }
        }
    }
}

impl fmt::Display for OverflowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sign.description())?;
        match (self.reported.input, self.reported.window) {
            (Some(input), Some(window)) => {
                write!(f, " ({} tokens, window {})", grouped(input), grouped(window))?;
            }
            (Some(input), None) => write!(f, " ({} tokens)", grouped(input))?,
            (None, Some(window)) => write!(f, " (window {})", grouped(window))?,
            (None, None) => {}
        }
        // What shows later than a refusal can only be reported.
        let is_mendable = self.sign == OverflowSign::Refused;
        match self.saved {
            true => f.write_str("; room was made, and it was answered"),
            false if is_mendable => f.write_str("; no room could be made"),
            false => Ok(()),
        }
    }
}
