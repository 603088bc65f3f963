//! What is told of a refusal that blames what was sent.
//!
//! Causes and outcomes are closed sets: nothing that a provider says gets into it.

use serde::Serialize;

use super::labels::RefusalOutcome;
use crate::dialect::repair::RepairCause;

/// What became of a refusal that blames what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusalReport {
    /// What was refused, as far as the words are known, in the order in which it was refused.
    pub causes: Vec<RepairCause>,
    /// What became of it.
    pub outcome: RefusalOutcome,
}

impl RefusalReport {
    /// What was changed after refusals and then accepted, or before there was one; separated by commas.
    pub fn healed(&self) -> Option<String> {
        let words: Vec<&str> = self.causes.iter().map(|cause| cause.word()).collect();
        let is_changed = matches!(self.outcome, RefusalOutcome::Healed | RefusalOutcome::Spared);
        is_changed.then(|| words.join(","))
    }
}
