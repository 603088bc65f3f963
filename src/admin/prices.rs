//! What tokens cost: the configured prices, or else those of the catalogue.
//!
//! For calls whose cost was not known when they were made: that is kept with their turns (`Turn::cost`).

use crate::config::Config;
use crate::context::cost::{self, NextInput};
use crate::context::{CompactionRecord, Millis, Turn};
use crate::dialect::Dialect;
use crate::dialect::models::{Catalogue, Price};

/// US dollars per million tokens, by upstream and model.
#[derive(Clone, Debug, Default)]
pub struct PriceList {
    catalogue: Catalogue,
    /// By the upstream's name.
    upstreams: Vec<(Box<str>, Price)>,
}

impl PriceList {
    /// The prices of a configuration.
    pub fn new(config: &Config) -> Self {
        let mut upstreams = Vec::new();
        for upstream in &config.upstreams {
            if let Some(price) = upstream.price {
                upstreams.push((upstream.name.clone(), price));
            }
        }
        Self { catalogue: config.catalogue.clone(), upstreams }
    }

    /// The price of a model behind an upstream; `None` if it is unknown.
    pub(super) fn price(&self, upstream: &str, model: &str) -> Option<Price> {
        // A configured price is that of all models behind the upstream.
        match self.upstreams.iter().find(|(name, _)| **name == *upstream) {
            Some((_, price)) => Some(*price),
            None => self.catalogue.model(model, "").price,
        }
    }

    /// The price of a model that was called for a turn. The configured price of the model that was requested is that of
    /// whatever answered.
    pub(super) fn of_turn(&self, turn: &Turn, model: &str) -> Option<Price> {
        let requested = self.catalogue.model(&turn.model, "");
        let has_upstream_price = self.upstreams.iter().any(|(name, _)| *name == turn.upstream);
        if requested.has_own_price && !has_upstream_price {
            return requested.price;
        }
        self.price(&turn.upstream, model)
    }

    /// What a summary of ours cost, US dollars.
    pub(super) fn of_summary(&self, summary: &CompactionRecord) -> Option<f64> {
        summary.dollars.or_else(|| {
            let price = self.price(&summary.upstream, &summary.model)?;
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
        let last = turns.rev().find(|turn| turn.usage.input.is_some())?;
        let price = last.price_of(last.answered_by(), |model| self.of_turn(last, model))?;
        let model = self.catalogue.model(&last.model, "");
        NextInput::after(last, tokens, &model, &price, now)
    }
}
