//! What a policy would have done, as it is reported: changes, costs and savings.
//!
//! Data and sums only. The names of the fields are those of the JSON that `plimsoll replay --json` prints.

use std::collections::BTreeMap;

use serde::Serialize;

use plimsoll_core::context::cost;
use plimsoll_core::context::plan::{Change, DecisionReason};
use plimsoll_core::context::savings::Savings;
use plimsoll_core::context::{Millis, Turn};
use plimsoll_core::dialect::Usage;
use plimsoll_core::dialect::models::Model;

/// A change that would have been made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIfEvent {
    /// The session.
    pub session: String,
    /// The number of the call in its session, from 1.
    pub call: u64,
    /// The time of the call, in ms since 1970.
    pub at: Millis,
    /// The model.
    pub model: String,
    /// The kind of change.
    pub change: Change,
    /// The reason.
    pub why: DecisionReason,
    /// Tokens before the change, estimated.
    pub tokens_before: u64,
    /// Tokens after the change.
    pub tokens_after: u64,
}

/// Tokens and US dollars of a set of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WhatIfCosts {
    /// Input tokens.
    pub input: u64,
    /// Those of them that were read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens of the largest call.
    pub largest: u64,
    /// The cost of the calls whose price is known, at catalogue prices, in US dollars.
    pub dollars: f64,
}

impl WhatIfCosts {
    /// Adds a call's.
    pub(super) fn add(&mut self, usage: &Usage, turn: &Turn, model: &Model) {
        self.input += usage.input.unwrap_or(0);
        self.cache_read += usage.cache_read.unwrap_or(0);
        self.largest = self.largest.max(usage.input.unwrap_or(0));
        let price = model.price.as_ref();
        let dollars = price.and_then(|price| cost::call(usage, price, turn.dialect, turn.at));
        self.dollars += dollars.unwrap_or(0.0);
    }
}

/// What a policy would have done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WhatIfReport {
    /// The number of calls with a reported input.
    pub calls: u64,
    /// The number of these whose price is known.
    pub priced_calls: u64,
    /// The actual costs.
    pub as_it_was: WhatIfCosts,
    /// The costs under the policy, without those of summaries.
    pub under_policy: WhatIfCosts,
    /// The number of summaries that would have been written.
    pub summaries: u64,
    /// The cost of writing them.
    pub spent_on_summaries: WhatIfCosts,
    /// What rewriting saved, summed as for live traffic, including the cost of broken caches.
    pub savings: Savings,
    /// The number of results that would have been cut.
    pub results_cut: u64,
    /// The number of these whose tool the agent later called again with the same arguments, which it would
    /// have had to do, or did anyway.
    #[serde(rename = "asked_again")]
    pub requested_again: u64,
    /// Every change, at the call that would have made it first.
    pub events: Vec<WhatIfEvent>,
    /// The number of declined changes, by reason.
    #[serde(rename = "refused")]
    pub declined: BTreeMap<String, u64>,
}

impl WhatIfReport {
    /// The re-read rate: the share of cut results whose tool the agent later called again with the same
    /// arguments. 0 if none was cut.
    pub fn re_read_rate(&self) -> f64 {
        self.requested_again as f64 / self.results_cut.max(1) as f64
    }
}
