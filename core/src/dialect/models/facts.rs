//! What a user, or a table that others keep, says of a model: it is used instead of what the catalogue has.
//!
//! What nobody says stays as the catalogue has it.

use jiff::civil::Date;

use super::family::Family;
use super::model::{Model, ReasoningBinding};
use super::pictures::PictureRule;
use super::price::Price;

/// What is said of models whose name matches. What is `None` is not said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelOverride {
    /// The model's name; a `*` at its end matches any rest.
    pub name: Box<str>,
    /// Context window, tokens.
    pub window: Option<u64>,
    /// Largest output, tokens.
    pub max_output: Option<u64>,
    /// The model's tokenizer.
    pub family: Option<Family>,
    /// The prices to use instead of the catalogue's.
    pub price: Option<Price>,
    /// How it works beside that.
    pub rules: ModelBehaviour,
}

/// What a table in our own form may say of how a model works, as [`Model`] has it.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "they are the members of Model")]
pub struct ModelBehaviour {
    pub binding: Option<ReasoningBinding>,
    pub keeps_reasoning: Option<bool>,
    pub reads_reasoning: Option<bool>,
    pub drops_steered: Option<bool>,
    pub plain_results: Option<bool>,
    pub tool_offering: Option<u32>,
    pub prompt_overhead: Option<u64>,
    pub cache_min: Option<u64>,
    pub cache_ttl_s: Option<u64>,
    pub retires: Option<Date>,
}

impl ModelOverride {
    pub(super) fn apply(&self, model: &mut Model) {
        model.known |= self.window.is_some();
        model.window = self.window.unwrap_or(model.window);
        model.max_output = self.max_output.unwrap_or(model.max_output);
        if let Some(family) = self.family {
            model.family = family;
            model.pictures = PictureRule::of_family(family);
        }
        model.price = self.price.or(model.price);
        self.rules.apply(model);
    }
}

impl ModelBehaviour {
    fn apply(&self, model: &mut Model) {
        model.binding = self.binding.unwrap_or(model.binding);
        model.keeps_reasoning = self.keeps_reasoning.unwrap_or(model.keeps_reasoning);
        model.reads_reasoning = self.reads_reasoning.unwrap_or(model.reads_reasoning);
        model.drops_steered = self.drops_steered.unwrap_or(model.drops_steered);
        model.plain_results = self.plain_results.unwrap_or(model.plain_results);
        model.tool_offering = self.tool_offering.or(model.tool_offering);
        model.prompt_overhead = self.prompt_overhead.unwrap_or(model.prompt_overhead);
        model.cache_min = self.cache_min.unwrap_or(model.cache_min);
        model.cache_ttl_s = self.cache_ttl_s.unwrap_or(model.cache_ttl_s);
        model.retires = self.retires.or(model.retires);
    }
}
