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
            let dollars = turn.cost(|model| prices.of_turn(turn, model));
            cost.add(dollars, turn.usage.is_unpriced(dollars));
        }
        for summary in ledger.summaries(DecisionMode::Active) {
            let dollars = prices.of_summary(summary);
            cost.add(dollars, dollars.is_none());
        }
        cost
    }

    fn add(&mut self, dollars: Option<f64>, is_unpriced: bool) {
        if let Some(dollars) = dollars {
            self.dollars = Some(self.dollars.unwrap_or(0.0) + dollars);
        }
        self.unpriced += usize::from(is_unpriced);
    }
}
