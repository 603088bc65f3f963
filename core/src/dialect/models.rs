//! The model catalogue: windows, limits, tokenizer families, prices and cache rules.
//!
//! From `config/models.toml`, which a script makes from public data (source and date inside), then the user's
//! overrides. Names have many spellings (provider prefixes, dates, tags); an unknown name gets
//! [`Model::unknown`], never an error. Must not know who asks, or why.

mod chatgpt;
mod facts;
mod family;
mod pictures;
mod price;
mod price_steps;
mod tables;

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

pub use facts::ModelOverride;
pub use family::Family;
pub use pictures::PictureRule;
pub(crate) use pictures::{PageCost, Patches, PictureCost, Shrinking};
pub use price::{CallTerms, Price};
pub use price_steps::{PriceSteps, Rates};
pub use tables::{Difference, ModelTable, TableError};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::door::Door;

/// Whether reasoning is bound to the prefix it was made from (`docs/protocols.md` 1.5, 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningBinding {
    /// Old parts may change.
    Free,
    /// A changed prefix invalidates the reasoning after it (`docs/protocols.md` 1.5, 3.5).
    Prefix,
}

/// What is known about a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Context window, tokens.
    pub window: u64,
    /// Largest output, tokens.
    pub max_output: u64,
    /// Which tokenizer counts its tokens.
    pub family: Family,
    /// Whether its reasoning is bound to the prefix.
    #[serde(default = "free")]
    pub binding: ReasoningBinding,
    /// Whether reasoning of earlier turns stays in the context (Claude Opus 4.5+, Sonnet 4.6+, GPT-5.6+;
    /// `docs/estimates.md` 2).
    #[serde(default)]
    pub keeps_reasoning: bool,
    /// Whether reasoning that is sent back is read at all, even in a tool loop (not by Gemini up to 2.5;
    /// `docs/estimates.md` 2).
    #[serde(default = "yes")]
    pub reads_reasoning: bool,
    /// Whether a turn's reasoning is more often dropped than kept if user text comes with tool results: GPT-5.5
    /// dropped it in 25 of 32 recorded cases (`docs/estimates.md` 2).
    #[serde(default)]
    pub drops_steered: bool,
    /// Whether tool results cost only their text and their tool's name (Gemini up to 2.0; later models read
    /// them as JSON).
    #[serde(default)]
    pub plain_results: bool,
    /// The additional cost of the first tool (the instructions for tool calls), tokens, if it differs from
    /// that of the family.
    #[serde(default)]
    pub tool_offering: Option<u32>,
    /// What the model's template puts before every prompt, tokens (the system message of gpt-oss).
    #[serde(default)]
    pub prompt_overhead: u64,
    /// How pictures are counted: by the name and the family.
    #[serde(skip)]
    pub pictures: PictureRule,
    /// Prices, US dollars per million tokens; `None` if unknown.
    #[serde(default)]
    pub price: Option<Price>,
    /// The smallest prefix that is cached, tokens.
    #[serde(default)]
    pub cache_min: u64,
    /// How long an unused cached prefix lives, seconds; 0 if nothing is promised.
    #[serde(default)]
    pub cache_ttl_s: u64,
    /// The door that the window belongs to.
    #[serde(skip)]
    pub door: Door,
    /// Whether the request has to stay in a region.
    #[serde(skip)]
    pub is_regional: bool,
    /// Whether the configuration names the price: nothing else then changes it.
    #[serde(skip)]
    pub has_own_price: bool,
    /// Whether the configuration names the window: nothing else then changes it but a refusal.
    #[serde(skip)]
    pub is_configured: bool,
    /// Whether the name was found. If not, window and limits are safe guesses, and the caller logs the name
    /// once.
    #[serde(skip, default = "yes")]
    pub known: bool,
}

fn free() -> ReasoningBinding {
    ReasoningBinding::Free
}

fn yes() -> bool {
    true
}

impl Model {
    /// Safe defaults for a model that is not in the catalogue: a window that most models have today, and
    /// reasoning treated as bound, so that nothing is cut that it may depend on.
    pub fn unknown() -> Self {
        Self {
            window: 128_000,
            max_output: 16_384,
            family: Family::Other,
            binding: ReasoningBinding::Prefix,
            keeps_reasoning: true,
            reads_reasoning: true,
            drops_steered: false,
            plain_results: false,
            tool_offering: None,
            prompt_overhead: 0,
            pictures: PictureRule::default(),
            price: None,
            cache_min: 1024,
            cache_ttl_s: 300,
            door: Door::default(),
            is_regional: false,
            has_own_price: false,
            is_configured: false,
            known: false,
        }
    }

    fn with_pictures(self, names: &[String]) -> Self {
        // By its names, else by its family.
        Self { pictures: PictureRule::by_name(names, self.family), ..self }
    }

    /// Whether a carriage return before a line feed costs nothing: Gemini from 3 on reads both as one.
    pub(crate) fn folds_line_ends(&self) -> bool {
        self.family == Family::Gemini && self.reads_reasoning
    }

    /// The same model behind an upstream with its own window or prices.
    #[must_use]
    pub fn behind(mut self, window: Option<u64>, price: Option<Price>) -> Self {
        self.known |= window.is_some();
        self.is_configured |= window.is_some();
        self.window = window.unwrap_or(self.window);
        self.has_own_price |= price.is_some();
        self.price = price.or(self.price);
        self
    }

    /// The same model, called `name`, with the window that it has at this door.
    #[must_use]
    pub fn through(mut self, door: Door, name: &str) -> Self {
        self.door = door;
        if door == Door::Chatgpt && !self.is_configured {
            let names = spellings(&name.trim().to_lowercase());
            self.window = chatgpt::window(&names).unwrap_or(self.window);
        }
        self
    }

    /// The same model, asked in a region or not.
    #[must_use]
    pub fn in_region(self, is_regional: bool) -> Self {
        Self { is_regional, ..self }
    }

    /// The output tokens to reserve: the model's maximum output, at most `limit`, and at most half of the
    /// window.
    pub fn reserve(&self, limit: u64) -> u64 {
        self.max_output.min(limit).min(self.window / 2)
    }
}

/// All known models, a table beside them, and the user's overrides. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    table: Arc<RwLock<Arc<ModelTable>>>,
    overrides: Vec<ModelOverride>,
}

/// The content of `config/models.toml`.
#[derive(Deserialize)]
struct CatalogueFile {
    models: HashMap<Box<str>, Model>,
    /// By the start of a name: the tokenizer is certain, the rest a guess.
    families: HashMap<Box<str>, Model>,
}

fn built_in() -> &'static CatalogueFile {
    // A test checks that it is valid.
    static FILE: OnceLock<CatalogueFile> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = toml::from_str(include_str!("../../../config/models.toml"));
        let mut file: CatalogueFile = file.unwrap_or_else(|_| CatalogueFile {
            models: HashMap::default(),
            families: HashMap::default(),
        });
        for (name, model) in &mut file.models {
            model.pictures = PictureRule::by_name(&[name.to_string()], model.family);
        }
        file
    })
}

impl Catalogue {
    /// The built-in models with the user's `overrides`; of several that match, the last one wins.
    pub fn new(overrides: Vec<ModelOverride>) -> Self {
        Self { table: Arc::default(), overrides }
    }

    /// The names that are built in.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        built_in().models.keys().map(AsRef::as_ref)
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
        let table = self.table();
        if !table.models.is_empty()
            && let Some(facts) =
                spellings(&spelled).iter().find_map(|name| table.models.get(&**name))
        {
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

    /// Where a table says another window or price, of the models that both know, by name; and how many these are. A table
    /// that prices the cache as input says nothing of it.
    pub fn differences(&self, table: &ModelTable) -> (usize, Vec<Difference>) {
        let mut names: Vec<&str> = table.models.keys().map(AsRef::as_ref).collect();
        // With a vendor before it, it is the price of a gateway.
        names.retain(|name| !name.contains('/'));
        names.sort_unstable();
        let models = names.into_iter().map(|name| (name, self.model(name, "")));
        let known: Vec<_> = models.filter(|(_, model)| model.known).collect();
        let differences = known.iter().flat_map(|(name, model)| {
            let theirs = &table.models[*name];
            let (price, their_price) = (model.price.as_ref(), theirs.price.as_ref());
            let their_read = their_price.filter(|price| price.cache_read != price.input);
            [
                ("window", Some(model.window as f64), theirs.window.map(|window| window as f64)),
                ("input", price.map(|price| price.input), their_price.map(|price| price.input)),
                ("output", price.map(|price| price.output), their_price.map(|price| price.output)),
                (
                    "cache read",
                    price.map(|price| price.cache_read),
                    their_read.map(|price| price.cache_read),
                ),
            ]
            .into_iter()
            .filter_map(|(what, ours, theirs)| {
                let (ours, theirs) = (ours?, theirs?);
                // Less than half a percent is rounding.
                let differs = (ours - theirs).abs() > 0.005 * theirs.abs();
                differs.then(|| Difference { model: (*name).into(), what, ours, theirs })
            })
        });
        let differences = differences.collect();
        (known.len(), differences)
    }
}

/// Whether `wanted` (a name, or its start with `*` at the end) means the model called `name`.
pub fn is_named(wanted: &str, name: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    spellings(&name.trim().to_lowercase()).iter().any(|name| match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *name == wanted,
    })
}

impl ModelOverride {
    fn matches(&self, name: &str) -> bool {
        is_named(&self.name, name)
    }

    fn apply(&self, model: &mut Model) {
        model.known |= self.window.is_some();
        model.window = self.window.unwrap_or(model.window);
        model.max_output = self.max_output.unwrap_or(model.max_output);
        if let Some(family) = self.family {
            model.family = family;
            model.pictures = PictureRule::of_family(family);
        }
        model.price = self.price.or(model.price);
    }
}

/// Looks for the exact name, then for its other spellings, then for its start.
fn find(name: &str) -> Model {
    let file = built_in();
    // Most names are spelled as in the catalogue.
    if let Some(model) = file.models.get(name) {
        return model.clone();
    }
    if let Some(model) = listed(name) {
        return model.with_pictures(&[name.to_owned()]);
    }
    let spellings = spellings(name);
    let entry = spellings.iter().skip(1).find_map(|name| Some((name, listed(name)?)));
    if let Some((spelling, mut model)) = entry {
        // What was fine-tuned costs more than its base.
        let is_tuned = spellings.iter().any(|name| name.starts_with("ft:"));
        if is_tuned && !spelling.starts_with("ft:") {
            model.price = None;
        }
        return model.with_pictures(&spellings);
    }
    let guess = spellings.iter().find_map(|name| {
        let fitting = file.families.iter().filter(|(start, _)| name.starts_with(&***start));
        // The longest start is the nearest relative.
        fitting.max_by_key(|(start, _)| start.len())
    });
    let model = match guess {
        Some((_, guess)) => Model { known: false, ..guess.clone() },
        None => Model::unknown(),
    };
    model.with_pictures(&spellings)
}

fn listed(name: &str) -> Option<Model> {
    for end in cuts(name) {
        let (start, suffix) = name.split_at(end);
        let Some(model) = built_in().models.get(start) else { continue };
        // What is cut off may name a product of its own (`-highspeed`, `-cyber`, `-flashx`): then
        // the rest is a guess, and the price is unknown.
        let model = model.clone();
        return Some(match is_alias(suffix) {
            // Mistral changes the price with the month in the name.
            true if start.contains("stral") && has_month(suffix) => Model { price: None, ..model },
            true => model,
            false => Model { known: false, price: None, ..model },
        });
    }
    None
}

/// Words after a model's name that name the same model: how it is served, not what it is.
const SAME_MODEL: &[&str] = &[
    "latest",
    "preview",
    "beta",
    "exp",
    "experimental",
    "instruct",
    "it",
    "chat",
    "versatile",
    "instant",
    "maas",
    "tee",
    "v1",
    "v2",
    "hf",
    "gguf",
    "awq",
    "gptq",
    "mlx",
    "bf16",
    "fp8",
    "fp16",
    "int4",
    "int8",
    "k",
    "m",
    "s",
    "l",
    "xs",
    "non",
    "reasoning",
    "thinking",
    "minimal",
    "low",
    "medium",
    "high",
    "xhigh",
    "4bit",
    "8bit",
    "mxfp4",
    "nvfp4",
    "qat",
];

fn words(suffix: &str) -> impl Iterator<Item = &str> {
    // The words of a suffix, up to a tag.
    let end = suffix.find([':', '@', '[']).unwrap_or(suffix.len());
    suffix[..end].split(['-', '_']).filter(|word| !word.is_empty())
}

fn is_alias(suffix: &str) -> bool {
    words(suffix).all(|word| {
        // Tags, dates, sizes (`70b`, `a17b`, `16e`), quantization (`q4_k_m`), `SAME_MODEL`.
        let digits = word.trim_start_matches(['a', 'q']).trim_end_matches(['b', 'e']);
        let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        is_number || SAME_MODEL.contains(&word)
    })
}

fn has_month(suffix: &str) -> bool {
    let mut numbers = words(suffix).filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.next().is_some_and(|word| word.len() == 4) && numbers.next().is_none()
}

/// Names of vendors and clouds that are put before a model's name with a dash.
const DASHED: [&str; 8] =
    ["databricks-", "openai-", "anthropic-", "google-", "azure-", "meta-", "xai-", "zai-"];

/// Names longer than this, bytes, have no other spelling: the number of spellings grows with the length.
const LONGEST: usize = 512;

fn spellings(name: &str) -> Vec<String> {
    if name.len() > LONGEST {
        return vec![name.to_owned()];
    }
    // Each prefix of routers and clouds: `anthropic/…`, `models/…`, `us.anthropic.…`, `arn:…/…`,
    // `ft:…`, `databricks-meta-…`.
    let mut names = Vec::new();
    without_prefixes(name, &mut names);
    // A slash after a dot or colon at which the loop stopped still ends a prefix.
    if let Some((_, last)) = name.rsplit_once('/') {
        without_prefixes(last, &mut names);
    }
    for index in 0..names.len() {
        let mut name = names[index].clone();
        while let Some(rest) = DASHED.iter().find_map(|vendor| name.strip_prefix(vendor)) {
            // SAP writes two dashes.
            name = rest.trim_start_matches('-').to_owned();
            names.push(name.clone());
        }
    }
    let others: Vec<_> = names.iter().flat_map(|name| other_versions(name)).collect();
    names.extend(others);
    names
}

fn without_prefixes(name: &str, all: &mut Vec<String>) {
    let mut rest = name;
    all.push(rest.to_owned());
    while let Some(at) = rest.find(['/', '.', ':']) {
        let prefix = &rest[..at];
        let is_prefix = match rest.as_bytes()[at] {
            b'/' => true,
            b':' => prefix == "ft",
            // A region or vendor is a word without digits. In `gpt-4.1`, this is a version.
            _ => !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_alphabetic()),
        };
        if !is_prefix {
            break;
        }
        rest = &rest[at + 1..];
        all.push(rest.to_owned());
    }
}

fn other_versions(name: &str) -> Vec<String> {
    // With a dash for the dot (`claude-opus-4.5`, `grok-4.1-fast`) and a dot for the dash
    // (`llama-3-3-70b`), with `p` for the dot (Fireworks: `v3p1`), before Claude's line
    // (OpenRouter: `claude-4.5-haiku`), and without a dot (Azure: `gpt-35-turbo`).
    let mut others = Vec::new();
    let dashed = with_separator(name, '.', '-', usize::MAX);
    let ordered = line_first(dashed.as_deref().unwrap_or(name));
    others.extend(dashed);
    others.extend(ordered);
    // The first dash only: a later one may separate the parts of a date.
    others.extend(with_separator(name, '-', '.', 1));
    if let Some(dotted) = with_separator(name, 'p', '.', 1) {
        others.extend(dotted.strip_prefix("llama-v").map(|rest| format!("llama-{rest}")));
        others.push(dotted);
    }
    others.extend(name.strip_prefix("gpt-35-turbo").map(|rest| format!("gpt-3.5-turbo{rest}")));
    others
}

fn with_separator(name: &str, old: char, new: char, most: usize) -> Option<String> {
    let mut changed = name.as_bytes().to_vec();
    // Only between a digit and a version: other dashes and dots are part of the name.
    let places = name.match_indices(old).map(|(at, _)| at).filter(|at| {
        let follows_digit = at.checked_sub(1).is_some_and(|last| changed[last].is_ascii_digit());
        follows_digit && begins_with_version(&name[at + 1..])
    });
    let places: Vec<_> = places.take(most).collect();
    for at in &places {
        changed[*at] = new as u8;
    }
    if places.is_empty() {
        return None;
    }
    String::from_utf8(changed).ok()
}

/// `claude-haiku-4-5-20251001` for `claude-4-5-haiku-20251001`; `None` for other names.
fn line_first(name: &str) -> Option<String> {
    let rest = name.strip_prefix("claude-")?;
    let line = rest.find(|next: char| next.is_ascii_alphabetic())?;
    let version = rest[..line].strip_suffix('-').filter(|version| !version.is_empty())?;
    let ends = rest[line..].find(|next: char| !next.is_ascii_alphabetic());
    let (line, after) = rest[line..].split_at(ends.unwrap_or(rest.len() - line));
    Some(format!("claude-{line}-{version}{after}"))
}

fn cuts(name: &str) -> impl Iterator<Item = usize> {
    let ends = name.char_indices().rev().filter(|(at, sign)| {
        let rest = name.get(at + sign.len_utf8()..).unwrap_or_default();
        // Before a date, a tag or a word (`-latest`, `-preview`, `:free`, `@001`, `[1m]`), but not
        // before a version.
        match sign {
            '-' | '_' => !begins_with_version(rest),
            ':' | '@' | '[' => true,
            _ => false,
        }
    });
    std::iter::once(name.len()).chain(ends.map(|(at, _)| at))
}

fn begins_with_version(rest: &str) -> bool {
    // One or two digits: `-5`, `-4-5`, but not `-0613`, `-001`, `-2025-11-01`; nor a size, `-8b`,
    // `-1.7b`.
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let is_size = rest[number..].starts_with(|next: char| next.is_ascii_alphabetic());
    (1..=2).contains(&digits) && !is_size
}

#[cfg(test)]
mod tests;
