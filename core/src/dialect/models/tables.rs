//! Tables of model facts that others keep: LiteLLM's prices, models.dev's list, and files in our own form.
//!
//! A table says windows, limits and prices of names. What it does not say (tokenizer, binding, cache) stays as the built-in
//! catalogue has it. Facts are read, nothing else: what cannot be is left out of the tables of others, and told; our own form is
//! refused.

use foldhash::HashMap;
use jiff::civil::Date;
use serde::Serialize;
use serde_json::Value;

use super::built_in::built_in;
use super::checks::{is_amount, is_count};
use super::facts::ModelOverride;
use super::names::spellings;
use super::own_table::{self, TableError};
use super::price::Price;
use super::price_steps::PriceSteps;
use super::price_steps::{LongPrice, Rates};
use super::sources::{FactSource, date_in};

/// A table, by the lower-case name of each model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelTable {
    /// The facts.
    pub models: HashMap<Box<str>, ModelOverride>,
    /// What of its chat models is not used, because it cannot be: the model, the key, and the value.
    pub left_out: Vec<Box<str>>,
    /// Its file or URL.
    pub place: Box<str>,
    /// The date that it names, else that of its file.
    pub date: Option<Date>,
}

/// Where a table says something else about a model than a catalogue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The model, as the table calls it.
    pub model: Box<str>,
    /// `window`, `input`, `output`, or `cache read`.
    pub what: &'static str,
    /// What the catalogue says: tokens, or US dollars per million tokens.
    pub ours: f64,
    /// What the table says.
    pub theirs: f64,
}

/// How a table differs from a catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableComparison {
    /// How many names are in both.
    pub compared: usize,
    /// How many names of the table have a vendor before them: those may be a gateway's, with its price.
    pub with_vendor: usize,
    /// The other names of the table that the catalogue does not have.
    pub unknown: Vec<Box<str>>,
    /// Where the two say something else, by name.
    pub differences: Vec<Difference>,
}

/// Who makes models, as LiteLLM and models.dev call them: a name alone is their model, not a reseller's.
const MAKERS: [&str; 18] = [
    "anthropic",
    "openai",
    "gemini",
    "google",
    "deepseek",
    "xai",
    "mistral",
    "moonshot",
    "moonshotai",
    "zai",
    "minimax",
    "dashscope",
    "alibaba",
    "meta_llama",
    "meta",
    "llama",
    "xiaomi_mimo",
    "cohere_chat",
];

/// How many of the facts that are left out are named.
const MOST_TOLD: usize = 5;

impl ModelTable {
    /// Reads a table in any of the known forms.
    pub fn read(text: &str) -> Result<Self, TableError> {
        let table = if text.trim_start().starts_with('{') {
            let value = serde_json::from_str(text);
            Self::from_json(&value.map_err(|error| TableError::Syntax(error.to_string()))?)
        } else {
            let mut table = Self::default();
            for facts in own_table::read(text)? {
                table.add(facts);
            }
            table
        };
        if table.models.is_empty() {
            return Err(TableError::Empty);
        }
        Ok(Self { date: date_in(text), ..table })
    }

    /// The same table, with its file or URL, and the day when that changed last, which is its date if it names none.
    #[must_use]
    pub fn at(self, place: &str, changed: Option<Date>) -> Self {
        Self { place: place.into(), date: self.date.or(changed), ..self }
    }

    pub(super) fn source(&self) -> FactSource {
        FactSource::Table { place: self.place.clone(), date: self.date }
    }

    /// What it says of a model, by its name in lower case.
    pub(super) fn facts(&self, name: &str) -> Option<&ModelOverride> {
        if self.models.is_empty() {
            return None;
        }
        spellings(name).iter().find_map(|name| self.models.get(&**name))
    }

    /// What is odd about it: what is left out, and that it is older than what it goes over.
    pub fn oddities(&self) -> Vec<String> {
        let mut oddities = Vec::from_iter(self.leftovers());
        if let (Some(date), Some(newer)) = (self.date, built_in().date)
            && date < newer
        {
            oddities.push(format!(
                "it is of {date}, and goes over the built-in table, which is of {newer}: older windows and prices count"
            ));
        }
        oddities
    }

    fn leftovers(&self) -> Option<String> {
        let count = self.left_out.len();
        let named = self.left_out.get(..MOST_TOLD.min(count))?;
        let more = if count > MOST_TOLD { ", …" } else { "" };
        let message = format!(
            "{count} numbers are left out, because they cannot be: {}{more}",
            named.join(", ")
        );
        if count == 0 { None } else { Some(message) }
    }

    fn from_json(value: &Value) -> Self {
        let mut table = Self::default();
        for (name, entry) in value.as_object().into_iter().flatten() {
            match entry.get("models").and_then(Value::as_object) {
                Some(models) => {
                    for (model, entry) in models {
                        table.add_named(name, model, models_dev(entry), entry, &MODELS_DEV);
                    }
                }
                None if is_chat(entry) => {
                    let provider = entry["litellm_provider"].as_str().unwrap_or_default();
                    let model = name.strip_prefix(&format!("{provider}/")).unwrap_or(name);
                    table.add_named(provider, model, litellm(entry), entry, &LITELLM);
                }
                None => {}
            }
        }
        table
    }

    fn add_named(
        &mut self,
        provider: &str,
        model: &str,
        mut facts: ModelOverride,
        entry: &Value,
        form: &Form,
    ) {
        let full: Box<str> = format!("{provider}/{model}").into();
        for (key, value, is_price) in form.impossible(entry) {
            self.left_out.push(format!("{full}: {key} = {value}").into());
            if is_price {
                // What is left of a price would be another price.
                facts.price = None;
            }
        }
        if facts.window.is_none() && facts.price.is_none() {
            return;
        }
        if MAKERS.contains(&provider) && !model.contains('/') {
            self.add(ModelOverride { name: model.into(), ..facts.clone() });
        }
        self.add(ModelOverride { name: full, ..facts });
    }

    fn add(&mut self, facts: ModelOverride) {
        let name: Box<str> = facts.name.to_lowercase().into();
        self.models.insert(name.clone(), ModelOverride { name, ..facts });
    }
}

/// Where a form has numbers that are used.
struct Form {
    /// Tokens.
    counts: &'static [&'static str],
    /// What parts of the keys of prices, or the objects that they are in, are called.
    prices: &'static [&'static str],
    /// How many tokens a price is for, as a share of a million.
    millions: f64,
}

const LITELLM: Form = Form {
    counts: &["/max_input_tokens", "/max_output_tokens"],
    prices: &["cost_per_token", "token_cost", "tiered_pricing"],
    millions: 1e6,
};
const MODELS_DEV: Form = Form {
    counts: &["/limit/input", "/limit/context", "/limit/output"],
    prices: &["cost"],
    millions: 1.0,
};

impl Form {
    /// Key and value of each number that cannot be; and whether it is one of the price.
    fn impossible<'e>(&self, entry: &'e Value) -> Vec<(String, &'e Value, bool)> {
        let mut wrong = Vec::new();
        for count in self.counts {
            // Many say 0 for a limit that they do not know.
            match entry.pointer(count) {
                Some(value)
                    if value.is_number()
                        && value.as_u64() != Some(0)
                        && !value.as_u64().is_some_and(is_count) =>
                {
                    wrong.push((count[1..].replace('/', "."), value, false));
                }
                _ => {}
            }
        }
        for (key, value) in entry.as_object().into_iter().flatten() {
            if self.prices.iter().any(|part| key.contains(part)) {
                self.impossible_prices(key, value, &mut wrong);
            }
        }
        wrong
    }

    fn impossible_prices<'e>(
        &self,
        key: &str,
        value: &'e Value,
        wrong: &mut Vec<(String, &'e Value, bool)>,
    ) {
        match value {
            Value::Number(number)
                if !number.as_f64().is_some_and(|price| is_amount(price * self.millions)) =>
            {
                wrong.push((key.to_owned(), value, true));
            }
            Value::Array(steps) => {
                for step in steps {
                    self.impossible_prices(key, step, wrong);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    // From how many tokens on a step holds is no price.
                    if !matches!(&**name, "range" | "tier") {
                        self.impossible_prices(&format!("{key}.{name}"), member, wrong);
                    }
                }
            }
            _ => {}
        }
    }
}

fn is_chat(entry: &Value) -> bool {
    matches!(entry["mode"].as_str(), Some("chat" | "responses"))
}

/// An entry of LiteLLM's table: prices of a token.
fn litellm(entry: &Value) -> ModelOverride {
    let steps = entry["tiered_pricing"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (first, price) = match steps {
        // Qwen's: each step has all of its prices.
        [first, longer @ ..] if entry.get("input_cost_per_token").is_none() => {
            let longer = longer.iter().map(|step| {
                let above = step["range"][0].as_f64()? as u64;
                Some(LongPrice { above, rates: of_token(step, "", None)? })
            });
            (first, longer.collect::<Option<Vec<_>>>())
        }
        _ => (entry, of_token(entry, "", None).map(|base| above(entry, base))),
    };
    let price = price.and_then(|longer| priced(of_token(first, "", None)?, &longer));
    facts(entry["max_input_tokens"].as_u64(), entry["max_output_tokens"].as_u64(), price)
}

fn of_token(entry: &Value, suffix: &str, base: Option<Rates>) -> Option<Rates> {
    let at = |key: &str| Some(entry.get(format!("{key}{suffix}"))?.as_f64()? * 1e6);
    rates(
        at("input_cost_per_token").or(base.map(|base| base.input)),
        at("output_cost_per_token").or(base.map(|base| base.output)),
        at("cache_read_input_token_cost").or(base.map(|base| base.cache_read)),
        at("cache_creation_input_token_cost").or(base.map(|base| base.cache_write)),
    )
}

fn of_million(cost: &Value) -> Option<Rates> {
    let [input, output, cache_read, cache_write] =
        ["input", "output", "cache_read", "cache_write"].map(|key| cost[key].as_f64());
    rates(input, output, cache_read, cache_write)
}

fn above(entry: &Value, base: Rates) -> Vec<LongPrice> {
    let lengths = [32_u64, 100, 128, 200, 256, 272, 512].into_iter();
    let steps = lengths.filter_map(|thousands| {
        let suffix = format!("_above_{thousands}k_tokens");
        entry.get(format!("input_cost_per_token{suffix}"))?;
        let rates = of_token(entry, &suffix, Some(base))?;
        Some(LongPrice { above: thousands * 1_000, rates })
    });
    steps.collect()
}

fn priced(base: Rates, steps: &[LongPrice]) -> Option<Price> {
    // With steps that cannot be said the price is unknown.
    Some(Price { long: PriceSteps::new(steps).ok()?, ..Price::from_rates(base) })
}

/// An entry of models.dev's list: prices of a million tokens.
fn models_dev(entry: &Value) -> ModelOverride {
    let limit = &entry["limit"];
    let cost = &entry["cost"];
    let long: Option<Vec<LongPrice>> = match (cost["tiers"].as_array(), &cost["context_over_200k"])
    {
        (None, Value::Null) => Some(Vec::new()),
        // The older form, which is rounded where both are said.
        (None, over) => of_million(over).map(|rates| vec![LongPrice { above: 200_000, rates }]),
        (Some(tiers), _) => {
            let steps = tiers.iter().map(|tier| {
                // A step by anything but the length of the context cannot be said.
                if tier["tier"]["type"] != "context" {
                    return None;
                }
                Some(LongPrice { above: tier["tier"]["size"].as_u64()?, rates: of_million(tier)? })
            });
            steps.collect()
        }
    };
    let price = long.and_then(|long| priced(of_million(cost)?, &long));
    // What input may fill, where the whole window is larger.
    let window = limit["input"].as_u64().or(limit["context"].as_u64());
    facts(window, limit["output"].as_u64(), price)
}

fn facts(window: Option<u64>, max_output: Option<u64>, price: Option<Price>) -> ModelOverride {
    ModelOverride {
        window: window.filter(|window| is_count(*window)),
        max_output: max_output.filter(|output| is_count(*output)),
        price,
        ..ModelOverride::default()
    }
}

fn rates(
    input: Option<f64>,
    output: Option<f64>,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
) -> Option<Rates> {
    // Without a price of its own, reading from the cache and writing to it cost what input costs.
    let input = input?;
    Some(Rates {
        input,
        output: output?,
        cache_read: cache_read.unwrap_or(input),
        cache_write: cache_write.filter(|price| *price > 0.0).unwrap_or(input),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn litellms_table_is_read() {
        let table = ModelTable::read(
            r#"{
            "sample_spec": {"mode": "one of …"},
            "gemini/gemini-9": {"litellm_provider": "gemini", "mode": "chat", "max_input_tokens": 2000000,
                "max_output_tokens": 65536, "input_cost_per_token": 2e-06, "output_cost_per_token": 1e-05,
                "cache_read_input_token_cost": 2e-07, "input_cost_per_token_above_200k_tokens": 4e-06},
            "azure/gpt-9": {"litellm_provider": "azure", "mode": "responses", "max_input_tokens": 400000},
            "dashscope/qwen-9": {"litellm_provider": "dashscope", "mode": "chat", "max_input_tokens": 900000, "tiered_pricing": [
                {"input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06, "range": [0, 32000]},
                {"input_cost_per_token": 2e-06, "output_cost_per_token": 9e-06, "range": [32000, 128000]},
                {"input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05, "range": [128000, 256000]}]},
            "dall-e": {"litellm_provider": "openai", "mode": "image_generation"},
            "broken": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 9000, "input_cost_per_token": -1,
                "output_cost_per_token": 1e-06, "cache_read_input_token_cost": 1e24},
            "endless": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 9000000000}
        }"#,
        )
        .expect("a table");
        let gemini = &table.models["gemini-9"];
        assert_eq!(gemini.window, Some(2_000_000));
        assert_eq!(gemini.max_output, Some(65_536));
        let price = gemini.price.expect("a price");
        assert!((price.cache_write - 2.0).abs() < 1e-9);
        let long = price.long.iter().next().expect("a step");
        assert_eq!(long.above, 200_000);
        assert!((long.rates.input - 4.0).abs() < 1e-9 && (long.rates.output - 10.0).abs() < 1e-9);
        let qwen = table.models["dashscope/qwen-9"].price.expect("a price");
        let lengths: Vec<u64> = qwen.long.iter().map(|step| step.above).collect();
        assert_eq!(lengths, [32_000, 128_000]);
        assert!((qwen.output - 5.0).abs() < 1e-9, "{qwen:?}");
        assert_eq!(table.models["azure/gpt-9"].window, Some(400_000));
        assert!(!table.models.contains_key("gpt-9"), "a reseller's is not the maker's");
        let mut left_out: Vec<&str> = table.left_out.iter().map(AsRef::as_ref).collect();
        left_out.sort_unstable();
        assert_eq!(
            left_out,
            [
                "openai/broken: cache_read_input_token_cost = 1e+24",
                "openai/broken: input_cost_per_token = -1",
                "openai/endless: max_input_tokens = 9000000000",
            ]
        );
        assert_eq!(table.models["broken"].price, None, "what is left would be another price");
        assert_eq!(table.models["broken"].window, Some(9_000));
        assert!(!table.models.contains_key("endless"), "nothing else is said of it");
    }

    #[test]
    fn models_devs_list_is_read() {
        let table = ModelTable::read(
            r#"{"openai": {"id": "openai", "models": {"gpt-9": {
                "limit": {"context": 1050000, "input": 922000, "output": 128000},
                "cost": {"input": 2, "output": 10, "cache_read": 0.1,
                    "context_over_200k": {"input": 4, "output": 15, "cache_read": 0.2}}},
                "gpt-8": {"limit": {"context": 1050000}, "cost": {"input": 2, "output": 10,
                    "tiers": [{"input": 4, "output": 15, "tier": {"type": "context", "size": 272000}}],
                    "context_over_200k": {"input": 4, "output": 15}}},
                "gpt-7": {"limit": {"context": 1050000}, "cost": {"input": 2, "output": 10,
                    "tiers": [{"input": 4, "output": 15, "tier": {"type": "moon"}}]}},
                "gpt-6": {"limit": {"context": 1050000}, "cost": {"input": 2, "output": 10,
                    "context_over_200k": {"input": -4, "output": 15}}}}}}"#,
        )
        .expect("a table");
        let model = &table.models["gpt-9"];
        assert_eq!(model.window, Some(922_000));
        let price = model.price.expect("a price");
        assert_eq!(price.cache_read, 0.1);
        let long = price.long.iter().next().expect("a step");
        assert_eq!(long.above, 200_000);
        assert_eq!(long.rates.output, 15.0);
        let tiered = table.models["gpt-8"].price.expect("a price");
        assert_eq!(tiered.long.iter().map(|step| step.above).collect::<Vec<_>>(), [272_000]);
        assert_eq!(table.models["gpt-7"].price, None, "a step that is not understood");
        assert_eq!(table.models["openai/gpt-9"].window, Some(922_000));
        assert_eq!(table.models["gpt-6"].price, None);
        assert_eq!(*table.left_out, ["openai/gpt-6: cost.context_over_200k.input = -4".into()]);
    }

    #[test]
    fn our_own_form_is_read() {
        let table =
            ModelTable::read("[models]\n\"My-Model\" = { window = 32_000, aliases = [\"mine\"] }")
                .expect("a table");
        assert_eq!(table.models["my-model"].window, Some(32_000));
        assert_eq!(table.models["mine"].window, Some(32_000));
    }

    /// A table of another year is told once, by whoever reads it.
    #[test]
    fn old_table_is_odd() {
        let text = "# Date: 2023-01-05\n[models]\n\"gpt-4o\" = { window = 9_000 }";
        let old = ModelTable::read(text).expect("a table").at("mine.toml", None);
        let [oddity] = &old.oddities()[..] else { panic!("{:?}", old.oddities()) };
        assert!(oddity.starts_with("it is of 2023-01-05, and goes over the built-in"), "{oddity}");
        let undated = text.trim_start_matches("# Date: 2023-01-05");
        let changed = Date::constant(1970, 1, 2);
        let dated = ModelTable::read(undated).expect("a table").at("mine.toml", Some(changed));
        assert_eq!(dated.date, Some(changed));
        let new = ModelTable::read(undated).expect("a table");
        assert!(new.oddities().is_empty(), "without a date it is not old");
    }

    #[test]
    fn what_is_no_table_is_told() {
        assert!(matches!(ModelTable::read("{\"a\": 1}"), Err(TableError::Empty)));
        assert!(matches!(ModelTable::read("{\"a\""), Err(TableError::Syntax(_))));
        assert!(matches!(ModelTable::read("a b"), Err(TableError::Syntax(_))));
        assert!(matches!(ModelTable::read(""), Err(TableError::Empty)));
    }
}
