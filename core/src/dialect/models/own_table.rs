//! Tables in our own form, as `config/models.toml` is: whoever writes one means every key of it.
//!
//! A key that is not known, or a number that cannot be, is told with its model, and the whole table is refused.

use jiff::civil::Date;
use serde::Deserialize;

use super::checks::{AMOUNT, COUNT, is_count};
use super::facts::{ModelBehaviour, ModelOverride};
use super::family::Family;
use super::model::ReasoningBinding;
use super::price::Price;

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// It is neither JSON nor TOML.
    #[error("it is neither JSON nor TOML: {0}")]
    Syntax(String),
    /// An entry of our own form has a key or a number that cannot be.
    #[error("model {model:?}: {reason}")]
    Entry {
        /// The model, as the table calls it.
        model: String,
        /// What is wrong, with the key.
        reason: String,
    },
    /// It has no models in a form that is known.
    #[error(
        "no models are in it: it must be a table like LiteLLM's, models.dev's, or Plimsoll's config/models.toml"
    )]
    Empty,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnTable {
    #[serde(default)]
    models: toml::Table,
    /// The starts of names in the built-in table, which a table over it has no use for.
    #[serde(default, rename = "families")]
    _families: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    window: Option<u64>,
    max_output: Option<u64>,
    family: Option<Family>,
    price: Option<Price>,
    binding: Option<ReasoningBinding>,
    keeps_reasoning: Option<bool>,
    reads_reasoning: Option<bool>,
    drops_steered: Option<bool>,
    plain_results: Option<bool>,
    tool_offering: Option<u32>,
    prompt_overhead: Option<u64>,
    cache_min: Option<u64>,
    cache_ttl_s: Option<u64>,
    retires: Option<Date>,
    #[serde(default)]
    aliases: Vec<Box<str>>,
    /// Only the built-in table is asked for names that open weights are served under.
    #[serde(rename = "open")]
    _open: Option<bool>,
}

pub(super) fn read(text: &str) -> Result<Vec<ModelOverride>, TableError> {
    let table: OwnTable =
        toml::from_str(text).map_err(|error| TableError::Syntax(error.to_string()))?;
    let mut models = Vec::new();
    for (name, entry) in table.models {
        match understood(&name, entry) {
            Ok(overrides) => models.extend(overrides),
            Err(reason) => return Err(TableError::Entry { model: name, reason }),
        }
    }
    Ok(models)
}

/// What is said of the model, once for each of its names.
fn understood(name: &str, entry: toml::Value) -> Result<Vec<ModelOverride>, String> {
    let entry: Entry = entry.try_into().map_err(|error: toml::de::Error| {
        // The message, and on a line of its own the key that it is inside of.
        error.to_string().trim().replace('\n', ", ")
    })?;
    let counts = [
        ("window", entry.window),
        ("max_output", entry.max_output),
        // These may be 0.
        ("prompt_overhead", entry.prompt_overhead.filter(|count| *count > 0)),
        ("cache_min", entry.cache_min.filter(|count| *count > 0)),
        ("cache_ttl_s", entry.cache_ttl_s.filter(|seconds| *seconds > 0)),
    ];
    for (key, count) in counts {
        if let Some(count) = count.filter(|count| !is_count(*count)) {
            return Err(format!("{key} = {count} {COUNT}"));
        }
    }
    if let Some((key, number)) = entry.price.as_ref().and_then(Price::impossible_number) {
        return Err(format!("price.{key} = {number} {AMOUNT}"));
    }
    let facts = ModelOverride {
        name: name.into(),
        window: entry.window,
        max_output: entry.max_output,
        family: entry.family,
        price: entry.price,
        rules: ModelBehaviour {
            binding: entry.binding,
            keeps_reasoning: entry.keeps_reasoning,
            reads_reasoning: entry.reads_reasoning,
            drops_steered: entry.drops_steered,
            plain_results: entry.plain_results,
            tool_offering: entry.tool_offering,
            prompt_overhead: entry.prompt_overhead,
            cache_min: entry.cache_min,
            cache_ttl_s: entry.cache_ttl_s,
            retires: entry.retires,
        },
    };
    let mut overrides = Vec::new();
    for alias in entry.aliases {
        overrides.push(ModelOverride { name: alias, ..facts.clone() });
    }
    overrides.push(facts);
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(entry: &str) -> String {
        let text = format!("[models]\n\"gpt-9\" = {{ {entry} }}");
        read(&text).expect_err(entry).to_string()
    }

    const RATES: &str = "input = 1, output = 2, cache_read = 0.1, cache_write = 1";

    #[test]
    fn impossible_numbers_are_refused() {
        for (entry, key) in [
            ("window = 0".to_owned(), "window = 0"),
            ("max_output = 1_000_000_000".to_owned(), "max_output = 1000000000"),
            ("cache_ttl_s = 9_000_000_000_000".to_owned(), "cache_ttl_s = "),
            (
                "price = { input = -1000, output = 2, cache_read = 0, cache_write = 0 }".to_owned(),
                "price.input = -1000",
            ),
            (
                "price = { input = 1, output = nan, cache_read = 0, cache_write = 0 }".to_owned(),
                "price.output = NaN",
            ),
            (
                "price = { input = 1, output = 2, cache_read = 1e30, cache_write = 0 }".to_owned(),
                "price.cache_read = 1000000000000000000000000000000",
            ),
            (format!("price = {{ {RATES}, search = inf }}"), "price.search = inf"),
            (format!("price = {{ {RATES}, audio = -1 }}"), "price.audio = -1"),
            (format!("price = {{ {RATES}, regional = -1 }}"), "price.regional = -1"),
            (format!("price = {{ {RATES}, tiers = {{ flex = -1 }} }}"), "price.tiers.flex = -1"),
            (
                format!(
                    "price = {{ {RATES}, tiers = {{ flex = {{ other = 1, cache_read = nan }} }} }}"
                ),
                "price.tiers.flex.cache_read = NaN",
            ),
            (
                format!(
                    "price = {{ {RATES}, long = {{ above = 9, input = -1, output = 1, cache_read = 1, cache_write = 1 }} }}"
                ),
                "price.long.input = -1",
            ),
            (
                format!(
                    "price = {{ {RATES}, change = {{ from = \"2027-01-01\", input = 1, output = -1, cache_read = 1, cache_write = 1 }} }}"
                ),
                "price.change.output = -1",
            ),
        ] {
            let told = refusal(&entry);
            assert!(told.starts_with(&format!("model \"gpt-9\": {key}")), "{entry}: {told}");
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        for (entry, key, place) in [
            ("colour = \"red\"".to_owned(), "colour", ""),
            (format!("price = {{ {RATES}, serach = 3 }}"), "serach", "price"),
            (format!("price = {{ {RATES}, tiers = {{ speedy = 3 }} }}"), "speedy", "price.tiers"),
            (
                format!("price = {{ {RATES}, tiers = {{ flex = {{ others = 3 }} }} }}"),
                "others",
                "price.tiers.flex",
            ),
            (format!("price = {{ {RATES}, long = {{ over = 3 }} }}"), "over", "price.long"),
            (format!("price = {{ {RATES}, long = [{{ over = 3 }}] }}"), "over", "price.long"),
            (format!("price = {{ {RATES}, change = {{ since = 3 }} }}"), "since", "price.change"),
        ] {
            let told = refusal(&entry);
            assert!(told.contains(&format!("unknown field `{key}`")), "{entry}: {told}");
            assert!(told.starts_with("model \"gpt-9\": "), "{entry}: {told}");
            assert!(told.contains(place), "{entry}: {told}");
        }
        let outside = read("[model]\na = 1").expect_err("it is [models]").to_string();
        assert!(outside.contains("unknown field `model`"), "{outside}");
    }

    #[test]
    fn all_that_the_built_in_table_says_is_read() {
        let text = include_str!("../../../../config/models.toml");
        let models = read(text).expect("our own table");
        assert!(models.len() > 150);
        let claude = models.iter().find(|model| *model.name == *"claude-opus-5-5").unwrap();
        assert_eq!(claude.rules.binding, Some(ReasoningBinding::Prefix));
        assert_eq!(claude.rules.cache_min, Some(512));
    }
}
