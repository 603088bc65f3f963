//! What calls cost whose cost was not known when they were made, and what the next one will.
//!
//! Other costs are kept with their turns (`Turn::cost`). The prices are those of the configuration.

use crate::config::PriceList;
use crate::context::cost::{self, NextInput};
use crate::context::{CompactionRecord, Millis, Turn};
use crate::dialect::Dialect;
use crate::dialect::models::Price;

impl PriceList {
    /// The price of a model that was called for a turn.
    pub(super) fn for_turn<'t>(
        &'t self,
        turn: &'t Turn,
    ) -> impl Fn(&str) -> Option<Price> + Copy + 't {
        move |model| self.of_turn(turn, model)
    }

    pub(super) fn of_turn(&self, turn: &Turn, model: &str) -> Option<Price> {
        self.price(&turn.upstream, &turn.model, model)
    }

    /// What a summary of ours cost, US dollars.
    pub(super) fn of_summary(&self, summary: &CompactionRecord) -> Option<f64> {
        summary.dollars.or_else(|| {
            let price = self.price(&summary.upstream, &summary.model, &summary.model)?;
            // The protocol changes the cost only by cache lifetimes, which are not reported.
            cost::call(&summary.spent, &price, Dialect::OpenaiChat, summary.at)
        })
    }

    /// The price of the next call's input, `tokens`, of the thread that these turns are of, the oldest first.
    pub(super) fn next_input<'t>(
        &self,
        turns: impl DoubleEndedIterator<Item = &'t Turn>,
        tokens: u64,
        now: Millis,
    ) -> Option<NextInput> {
        let newest_turn = turns.rev().find(|turn| turn.usage.input.is_some())?;
        let price = newest_turn
            .price_of(newest_turn.answered_by(), |model| self.of_turn(newest_turn, model))?;
        let model = self.model(&newest_turn.model);
        NextInput::after(newest_turn, tokens, &model, &price, now)
    }
}
