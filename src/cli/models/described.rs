//! What is known about a model, as text: window, limits, each component of the price, and where they come from.
//!
//! Looks nothing up.

use jiff::Timestamp;
use serde::Serialize;

use crate::admin::lessons::LessonView;
use crate::context::budget::grouped;
use crate::dialect::models::{FactSource, FactSources, Model, OffPeak, Price, Rates, TierFactor};

/// Before what follows the first line about the price.
const INDENT: &str = "              ";

/// What is known about a name.
#[derive(Serialize)]
pub(super) struct KnownModel<'n> {
    pub(super) name: &'n str,
    /// Whether the name was found; else window and limits are guesses.
    pub(super) known: bool,
    #[serde(flatten)]
    pub(super) model: Model,
    pub(super) sources: FactSources,
    /// What lists of models and refusals taught about its window, for whom asked there.
    pub(super) taught: Vec<LessonView>,
}

impl KnownModel<'_> {
    /// As text.
    pub(super) fn described(&self) -> String {
        let KnownModel { name, model, sources, taught, .. } = self;
        let mut lines = vec![(*name).to_owned()];
        lines.extend(taught.iter().map(window_taught));
        // What was taught is used instead.
        if model.known || taught.is_empty() {
            let guess = if model.known { "" } else { " (a guess: the name is not known)" };
            lines.push(format!("  window:     {} tokens of input{guess}", grouped(model.window)));
        }
        lines.push(format!("  output:     {} tokens at most", grouped(model.max_output)));
        lines.push(format!("  tokenizer:  {}", model.family.as_ref()));
        let parts = model.price.as_ref().map_or(vec!["unknown".to_owned()], priced);
        lines.push(format!("  price:      {}", parts.join(&format!("\n{INDENT}"))));
        if let Some(day) = model.retires {
            lines.push(format!("  retires:    {day}: its maker offers it no longer from then on"));
        }
        lines.push(format!("  source:     {}", sourced(sources)));
        lines.join("\n") + "\n"
    }
}

fn window_taught(lesson: &LessonView) -> String {
    let window = grouped(lesson.window.unwrap_or_default());
    let source =
        if lesson.lesson.starts_with("listed") { "its list of models" } else { "a refusal" };
    let until = lesson.expires.and_then(day).map_or(String::new(), |day| format!(", until {day}"));
    let upstream = &lesson.upstream;
    format!("  window:     {window} tokens of input through {upstream}, as {source} says{until}")
}

fn day(at: u64) -> Option<String> {
    let time = Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

fn rates(rates: &Rates) -> String {
    let Rates { input, output, cache_read, cache_write } = rates;
    format!(
        "${input} input, ${output} output, ${cache_read} cache read, ${cache_write} cache write"
    )
}

fn priced(price: &Price) -> Vec<String> {
    let mut parts = vec![format!("{}, a million tokens", rates(&price.base()))];
    for step in price.long.iter() {
        let above = grouped(step.above);
        parts.push(format!("{} for prompts above {above} tokens", rates(&step.rates)));
    }
    if price.audio_as_text {
        parts.push("audio as text".to_owned());
    }
    for (number, what) in [
        (price.audio, "a million tokens of audio"),
        (price.cached_audio, "a million tokens of cached audio"),
        (price.call, "a call beside its tokens"),
        (price.search, "a search"),
        (price.search_prompt, "a prompt with searches"),
        (price.file_search, "a search of files"),
    ] {
        parts.extend(number.map(|number| format!("${number} {what}")));
    }
    let tiers: Vec<String> = price.tiers.named().map(tier).collect();
    if !tiers.is_empty() {
        parts.push(format!("times {}", tiers.join(", ")));
    }
    if let Some(regional) = price.regional {
        parts.push(format!("times {regional} in a region"));
    }
    if let Some(OffPeak { factor, peak }) = &price.off_peak {
        let hours = peak.map(|(start, end)| format!("{start:.0} to {end:.0}")).join(" and ");
        parts.push(format!("times {factor} outside peak hours ({hours} UTC, Monday to Friday)"));
    }
    if let Some(change) = &price.change {
        parts.push(format!("{} from {} on", rates(&change.rates), change.from));
    }
    parts
}

fn tier((name, factor): (&str, TierFactor)) -> String {
    match factor {
        TierFactor::All(factor) => format!("{factor} at {name}"),
        TierFactor::Apart { other, cache_read } => {
            format!("{other} ({cache_read} for cache reads) at {name}")
        }
    }
}

/// The place of all facts, or that of each.
fn sourced(sources: &FactSources) -> String {
    let FactSources { window, max_output, family, price } = sources;
    let facts =
        [("window", window), ("output", max_output), ("tokenizer", family), ("price", price)];
    if facts.iter().all(|(_, source)| *source == window) {
        return place(window);
    }
    facts.map(|(fact, source)| format!("{fact}: {}", place(source))).join("; ")
}

fn place(source: &FactSource) -> String {
    let date_of =
        |date: &Option<jiff::civil::Date>| date.map_or(String::new(), |date| format!(" ({date})"));
    match source {
        FactSource::BuiltIn { date } => format!("built in{}", date_of(date)),
        FactSource::Table { place, date } => format!("{place}{}", date_of(date)),
        FactSource::Configuration => "the configuration".to_owned(),
        FactSource::Guess => "a guess".to_owned(),
        FactSource::Unknown => "unknown".to_owned(),
    }
}
