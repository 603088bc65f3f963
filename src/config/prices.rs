//! What tokens cost: the price that is configured, or else that of the catalogue.
//!
//! Must not know calls. The catalogue follows its file, so a price may change while the program runs.

use super::settings::Config;
use crate::dialect::models::{Catalogue, Model, Price};

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

    /// The price of the model that answered; `None` if it is unknown.
    pub(crate) fn price(&self, upstream: &str, requested: &str, answered: &str) -> Option<Price> {
        // A price that is configured for the upstream, or for the model that was requested, is that of whatever
        // answered.
        if let Some((_, price)) = self.upstreams.iter().find(|(name, _)| **name == *upstream) {
            return Some(*price);
        }
        let model = self.model(requested);
        if model.has_own_price { model.price } else { self.model(answered).price }
    }

    /// What is known of a model.
    pub(crate) fn model(&self, name: &str) -> Model {
        self.catalogue.model(name, "")
    }
}
