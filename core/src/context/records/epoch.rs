//! The refusal that a decision comes after, which is part of the decision's key.
//!
//! Pure values.

use serde::{Deserialize, Serialize};

use crate::context::Millis;

/// The refusal after which a decision was made anew: a suspension's time, or a hash of a revocation. Only
/// compared for equality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DecisionEpoch(u64);

impl DecisionEpoch {
    /// The epoch after the suspension at this time ([`super::Suspension::at`]).
    pub fn of_suspension(at: Millis) -> Self {
        Self(at)
    }

    pub(in crate::context) fn of_revocation(key: u128) -> Self {
        // The highest bit is set, so that it never equals a real time.
        Self((key >> 64) as u64 | 1 << 63)
    }

    /// The bytes that are part of the address of a stored decision.
    pub fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}
