//! The model catalogue: windows, limits, tokenizer families, prices and cache rules.
//!
//! From `config/models.toml`, which a script makes from public data (source and date inside), then the user's
//! overrides. Names have many spellings (prefixes of providers, other separators); an unknown name gets
//! [`Model::unknown`], never an error. Must not know who asks, or why.

mod built_in;
mod checks;
mod door_windows;
mod facts;
mod family;
mod model;
mod names;
mod own_table;
mod pictures;
mod price;
mod price_steps;
mod sources;
mod tables;
mod written;

use std::sync::{Arc, PoisonError, RwLock};

pub use facts::{ModelBehaviour, ModelOverride};
pub use family::Family;
pub use model::{Model, ReasoningBinding};
pub use own_table::TableError;
pub use pictures::PictureRule;
pub(crate) use pictures::{PageCost, Patches, PictureCost, Shrinking};
pub use price::{CallTerms, OffPeak, Price, TierFactor};
pub use price_steps::{PriceSteps, Rates};
pub use sources::{FactSource, FactSources};
pub use tables::{Difference, ModelTable, TableComparison};

use built_in::{built_in, find};
use names::spellings;

/// All known models, a table beside them, and the user's overrides. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    table: Arc<RwLock<Arc<ModelTable>>>,
    overrides: Vec<ModelOverride>,
}

impl Catalogue {
    /// The built-in models with the user's `overrides`; of several that match, the last one wins.
    pub fn new(overrides: Vec<ModelOverride>) -> Self {
        Self { table: Arc::default(), overrides }
    }

    /// The names that are built in.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        built_in().names()
    }

    /// Uses this table from now on, over the built-in models and under the user's overrides.
    pub fn set_table(&self, table: ModelTable) {
        // A panic elsewhere leaves a whole table behind.
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// The table in use; empty if there is none.
    pub fn table(&self) -> Arc<ModelTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The largest window that the catalogue or the configuration has for a model, behind an upstream with a window of
    /// its own; `None` if neither has one.
    pub fn largest_window(&self, name: &str, upstream: Option<u64>) -> Option<u64> {
        let built_in = find(&name.trim().to_lowercase());
        let configured = self.model(name, "").behind(upstream, None);
        let windows = [built_in, configured].into_iter().filter(|model| model.known);
        windows.map(|model| model.window).max()
    }

    /// What is known about the model that a client calls `name`. `betas`: the request's `anthropic-beta`
    /// header, else empty. One of them once gave a window of 1M tokens; of a model that is not in the catalogue it
    /// still says that there is one (`docs/protocols.md` 9).
    pub fn model(&self, name: &str, betas: &str) -> Model {
        let spelled = name.trim().to_lowercase();
        let mut model = find(&spelled);
        let claude = matches!(model.family, Family::Claude | Family::ClaudeNew);
        let asks = spelled.ends_with("[1m]") || betas.contains("context-1m");
        if claude && asks && !model.known {
            model.window = model.window.max(1_000_000);
        }
        if let Some(facts) = self.table().facts(&spelled) {
            facts.apply(&mut model);
        }
        // Behind gateways that name a model with its maker (OpenRouter, Vercel), GPT-5 was counted without
        // instructions on tools.
        if spelled.starts_with("openai/") && model.family == Family::O200k {
            model.tool_offering = model.tool_offering.or(Some(0));
        }
        for better in self.overrides.iter().filter(|better| better.matches(&spelled)) {
            better.apply(&mut model);
            model.is_configured |= better.window.is_some();
            model.has_own_price |= better.price.is_some();
        }
        model
    }

    /// Where what is known about the model that a client calls `name` comes from.
    pub fn sources(&self, name: &str) -> FactSources {
        let spelled = name.trim().to_lowercase();
        let model = find(&spelled);
        let built_in = |is_known: bool, otherwise| match is_known {
            true => FactSource::BuiltIn { date: built_in().date },
            false => otherwise,
        };
        let mut sources = FactSources {
            window: built_in(model.known, FactSource::Guess),
            max_output: built_in(model.known, FactSource::Guess),
            // By the start of its name it is certain.
            family: built_in(model.known || model.family != Family::Other, FactSource::Guess),
            price: built_in(model.price.is_some(), FactSource::Unknown),
        };
        let table = self.table();
        if let Some(facts) = table.facts(&spelled) {
            sources.take(facts, &table.source());
        }
        for better in self.overrides.iter().filter(|better| better.matches(&spelled)) {
            sources.take(better, &FactSource::Configuration);
        }
        sources
    }

    /// Where a table says another window or price, of the models that both know, and what is not compared. A table that
    /// prices the cache as input says nothing of it.
    pub fn compare(&self, table: &ModelTable) -> TableComparison {
        let mut comparison = TableComparison::default();
        let mut names: Vec<&str> = table.models.keys().map(AsRef::as_ref).collect();
        names.sort_unstable();
        for name in names {
            let model = self.model(name, "");
            if name.contains('/') {
                comparison.with_vendor += 1;
            } else if model.known {
                comparison.compared += 1;
                comparison.differences.extend(differences(name, &model, &table.models[name]));
            } else {
                comparison.unknown.push(name.into());
            }
        }
        comparison
    }
}

fn differences(name: &str, model: &Model, theirs: &ModelOverride) -> Vec<Difference> {
    let (price, their_price) = (model.price.as_ref(), theirs.price.as_ref());
    let their_read = their_price.filter(|price| price.cache_read != price.input);
    let facts = [
        ("window", Some(model.window as f64), theirs.window.map(|window| window as f64)),
        ("input", price.map(|price| price.input), their_price.map(|price| price.input)),
        ("output", price.map(|price| price.output), their_price.map(|price| price.output)),
        (
            "cache read",
            price.map(|price| price.cache_read),
            their_read.map(|price| price.cache_read),
        ),
    ];
    let mut differences = Vec::new();
    for (what, ours, theirs) in facts {
        // Less than half a percent is rounding.
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && (ours - theirs).abs() > 0.005 * theirs.abs()
        {
            differences.push(Difference { model: name.into(), what, ours, theirs });
        }
    }
    differences
}

/// Whether `wanted` (a name, or its start with `*` at the end) means the model called `name`.
pub fn is_named(wanted: &str, name: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    spellings(&name.trim().to_lowercase()).iter().any(|name| match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *name == wanted,
    })
}

impl FactSources {
    fn take(&mut self, facts: &ModelOverride, source: &FactSource) {
        let said = [
            (facts.window.is_some(), &mut self.window),
            (facts.max_output.is_some(), &mut self.max_output),
            (facts.family.is_some(), &mut self.family),
            (facts.price.is_some(), &mut self.price),
        ];
        for (is_said, place) in said {
            if is_said {
                *place = source.clone();
            }
        }
    }
}

impl ModelOverride {
    fn matches(&self, name: &str) -> bool {
        is_named(&self.name, name)
    }
}

#[cfg(test)]
mod successor_tests;
#[cfg(test)]
mod tests;
