//! The report of a refusal that blames the request's content.
//!
//! Causes and outcomes are closed sets: no text of a provider gets into it.

use serde::Serialize;

use super::labels::RefusalOutcome;
use crate::dialect::repair::RepairCause;

/// The outcome of a refusal that blames the request's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RefusalReport {
    /// What was refused, as far as the messages are known, in order of refusal.
    pub causes: Vec<RepairCause>,
    /// What was done about it.
    pub outcome: RefusalOutcome,
}

impl RefusalReport {
    /// The causes of changes that were accepted after refusals, or that avoided one; separated by commas.
    pub(crate) fn healed(&self) -> Option<String> {
        let names: Vec<&str> = self.causes.iter().map(AsRef::as_ref).collect();
        let is_changed = matches!(self.outcome, RefusalOutcome::Healed | RefusalOutcome::Spared);
        is_changed.then(|| names.join(","))
    }
}
