//! What tokens cost: the configured prices, or else those of the catalogue.
//!
//! Prices are today's, not those of the time when a turn was made.

use crate::config::Config;
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
    pub fn of(config: &Config) -> Self {
        let own = config.upstreams.iter();
        let own = own.filter_map(|upstream| Some((upstream.name.clone(), upstream.price?)));
        Self { catalogue: Catalogue::new(config.models.clone()), upstreams: own.collect() }
    }

    /// The price of a model behind an upstream; `None` if it is unknown.
    pub(super) fn price(&self, upstream: &str, model: &str) -> Option<Price> {
        let own = self.upstreams.iter().find(|(name, _)| **name == *upstream);
        own.map(|(_, price)| *price).or_else(|| self.catalogue.model(model, "").price)
    }
}
