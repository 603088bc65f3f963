//! What compacting a session would do: only a preview, nothing is changed.
//!
//! The numbers come from `context::compact`; costs use catalogue prices.

use serde::{Deserialize, Serialize};

use crate::config::PriceList;
use crate::context::compact::CompactionPreview;
use crate::context::policy::SummaryAuthor;

/// The preview.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct DryRun {
    /// Messages in the history.
    pub messages: u64,
    /// Messages that a summary would replace.
    pub messages_cut: u64,
    /// The tokens of the newest request, estimated.
    pub tokens_before: u64,
    /// Its tokens with a summary of `tokens_summary` tokens.
    pub tokens_after: u64,
    /// The assumed tokens of a summary.
    pub tokens_summary: u64,
    /// Tokens of the window that may be filled before the history must be compacted.
    #[serde(rename = "usable")]
    pub fillable: u64,
    /// Who would write it first.
    pub engine: SummaryAuthor,
    /// The upstream of the session.
    pub upstream: Box<str>,
    /// Its model.
    pub model: Box<str>,
    /// What each later call would save if it is read from the cache, in US dollars; `None` without a price.
    pub saved_per_call_cached: Option<f64>,
    /// The same if the cache is cold.
    pub saved_per_call_cold: Option<f64>,
    /// What writing it would cost if the history is read from the cache; `None` without a price.
    pub cost_of_writing: Option<f64>,
}

impl DryRun {
    pub(super) fn new(preview: CompactionPreview, prices: &PriceList) -> Self {
        let price = prices.price(&preview.upstream, &preview.model, &preview.model);
        let saved = preview.before.saturating_sub(preview.after);
        Self {
            messages: preview.messages,
            messages_cut: preview.cut,
            tokens_before: preview.before,
            tokens_after: preview.after,
            tokens_summary: preview.summary,
            fillable: preview.fillable,
            engine: preview.by,
            saved_per_call_cached: price.map(|price| dollars(saved, price.cache_read)),
            saved_per_call_cold: price.map(|price| dollars(saved, price.input)),
            cost_of_writing: price.map(|price| {
                dollars(preview.before, price.cache_read) + dollars(preview.summary, price.output)
            }),
            upstream: preview.upstream,
            model: preview.model,
        }
    }
}

fn dollars(tokens: u64, price: f64) -> f64 {
    tokens as f64 * price / 1e6
}
