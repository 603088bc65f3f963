//! Input that cannot be seen from here, so that its reported size does not measure the estimate.
//!
//! Says which exchanges these are, from reported usage and the estimate's method. Counts nothing.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::context::{Estimate, EstimateMethod};
use crate::dialect::Usage;

/// Why the input of an exchange could not be known before it was reported; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum HiddenInput {
    /// Tools ran at the provider: their results are in no request, and several calls are reported as one.
    HostedTools,
    /// The provider summarised or cleared the history itself.
    ProviderEdit,
    /// Another model than the requested one answered, which counts otherwise.
    OtherModel,
    /// The provider holds a history whose turns did not pass through Plimsoll.
    Continuation,
}

impl HiddenInput {
    /// The reason for an exchange with this usage and estimate, if there is one.
    pub fn from_usage(usage: &Usage, estimate: &Estimate) -> Option<Self> {
        // With an anchor, the held history is known.
        let grows = estimate.new < estimate.tokens;
        match () {
            () if usage.hosted_tools => Some(Self::HostedTools),
            () if usage.served_by.is_some() => Some(Self::OtherModel),
            () if usage.cleared.is_some() || !usage.attempts.is_empty() => Some(Self::ProviderEdit),
            // The instructions to write a compaction, and its text, are in no request.
            () if usage.compacted || estimate.encrypted_compaction => Some(Self::ProviderEdit),
            () if usage.last_call.is_some() => Some(Self::HostedTools),
            () if estimate.method == EstimateMethod::Held && !grows => Some(Self::Continuation),
            () => None,
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Self::HostedTools => "tools ran at the provider",
            Self::ProviderEdit => "the provider edited the history",
            Self::OtherModel => "another model answered",
            Self::Continuation => "the provider holds a history that was not seen",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::scene::{SessionFixture, messages};
    use crate::dialect::editing::ClearingReport;
    use crate::dialect::{Attempt, LastCall};

    #[test]
    fn hidden_input_has_a_cause() {
        let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        let turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
        let estimate = Estimate { tokens: 100, new: 100, ..turn.estimate.unwrap() };
        let of = |change: fn(&mut Usage)| {
            let mut usage = Usage::default();
            change(&mut usage);
            HiddenInput::from_usage(&usage, &estimate)
        };
        use HiddenInput::{Continuation, HostedTools, OtherModel, ProviderEdit};
        assert_eq!(of(|_| {}), None);
        assert_eq!(of(|usage| usage.hosted_tools = true), Some(HostedTools));
        assert_eq!(of(|usage| usage.cleared = Some(ClearingReport::default())), Some(ProviderEdit));
        assert_eq!(of(|usage| usage.attempts = vec![Attempt::default()]), Some(ProviderEdit));
        assert_eq!(of(|usage| usage.served_by = Some("m".into())), Some(OtherModel));
        assert_eq!(of(|usage| usage.compacted = true), Some(ProviderEdit));
        let encrypted = Estimate { encrypted_compaction: true, ..estimate.clone() };
        assert_eq!(HiddenInput::from_usage(&Usage::default(), &encrypted), Some(ProviderEdit));
        let cut = Estimate { gone_history: 7, ..encrypted.clone() };
        let stored = serde_json::to_value(&cut).unwrap();
        assert_eq!(stored["encrypted_compaction"], true, "stored names");
        assert_eq!(stored["gone_history"], 7, "stored names");
        assert_eq!(of(|usage| usage.last_call = Some(LastCall::default())), Some(HostedTools));
        let held = |new| {
            let estimate = Estimate { method: EstimateMethod::Held, new, ..estimate.clone() };
            HiddenInput::from_usage(&Usage::default(), &estimate)
        };
        // With a parent turn, the size of what the provider holds is known.
        assert_eq!(held(100), Some(Continuation));
        assert_eq!(held(99), None);
    }
}
