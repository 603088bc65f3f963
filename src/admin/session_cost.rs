//! What a session cost: its exchanges, and the summaries that Plimsoll wrote for it. Lists, the page and the command line
//! show this one number.

use crate::config::PriceList;
use crate::context::ledger::Ledger;
use crate::context::policy::DecisionMode;

/// What the exchanges of a session and our summaries of it cost.
#[derive(Default)]
pub(super) struct SessionCost {
    /// US dollars; `None` if no price is known.
    pub dollars: Option<f64>,
    /// Exchanges and summaries whose price is not known.
    pub unpriced: usize,
}

impl SessionCost {
    pub(super) fn from_ledger(ledger: &Ledger, prices: &PriceList) -> Self {
        let mut cost = Self::default();
        for turn in ledger.turns() {
            // Of one that failed nothing was reported: it costs nothing that is known.
            let is_billed = turn.usage.input.is_some();
            cost.add(turn.cost(|model| prices.of_turn(turn, model)), is_billed);
        }
        for summary in ledger.summaries(DecisionMode::Active) {
            cost.add(prices.of_summary(summary), true);
        }
        cost
    }

    fn add(&mut self, dollars: Option<f64>, is_billed: bool) {
        match dollars {
            Some(dollars) => self.dollars = Some(self.dollars.unwrap_or(0.0) + dollars),
            None => self.unpriced += usize::from(is_billed),
        }
    }
}
