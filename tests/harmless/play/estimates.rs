//! How often an estimate that an earlier count anchors holds the actual count in its band (`docs/estimates.md` 1.2).
//!
//! The provider counts four bytes as a token and a picture as 1,500, which no model does, and no conversation here is long
//! enough to learn that. So half of what was counted, not reported, is added to the band: what was reported must be
//! carried over as it was.

use plimsoll::context::EstimateMethod;
use scripted_provider::strict::Loss;
use serde_json::Value;

use super::Play;
use super::checks::CheckedExchange;
use crate::client::PICTURE;

/// Tokens around a message, which no text explains.
const AROUND: u64 = 40;

impl Play {
    /// Counts the estimate of a request that was accepted as it was planned, if an earlier count anchors it.
    pub(super) fn count_estimate(&mut self, checked: &CheckedExchange<'_>) {
        let is_after_hidden = std::mem::take(&mut self.is_after_hidden);
        let [entry] = checked.log else { return };
        let Some(accepted) = entry.verdict.accepted() else { return };
        let Some(estimate) = &checked.exchange.estimate else { return };
        let Some(band) = estimate.band() else { return };
        // Which reasoning its provider drops, nobody can know.
        let is_drop = |loss: &Loss| matches!(loss, Loss::ReasoningDropped { .. });
        let knows_input = !has_new_picture(checked.body) && !accepted.losses.iter().any(is_drop);
        if estimate.method != EstimateMethod::Anchored || !knows_input {
            return;
        }
        let counted = (estimate.new + estimate.gone) / 2 + AROUND;
        let (low, high) = (band.low.saturating_sub(counted), band.high + counted);
        let is_within = (low..=high).contains(&accepted.input_tokens);
        if self.verbose && !is_within {
            println!("estimated {} ({band:?}) for {}", estimate.tokens, accepted.input_tokens);
        }
        self.counts.anchored.count(is_within);
        if is_after_hidden {
            self.counts.anchored_after_hidden.count(is_within);
        }
    }
}

/// Whether the newest message or item has a picture.
fn has_new_picture(body: &Value) -> bool {
    let names = ["messages", "input", "contents"];
    let newest = names.iter().find_map(|name| body[*name].as_array()?.last());
    newest.is_some_and(|newest| newest.to_string().contains(PICTURE))
}
