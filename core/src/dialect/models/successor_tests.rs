//! The newest model of a line has every component of the price that the one before it has, or the reason is here.
//!
//! What is missing would make calls unpriced that were priced on the older model, and no cap would count them.

use std::collections::{BTreeMap, BTreeSet};

use super::price::TierFactor;
use super::*;

/// The model, the component, and why it has none.
const LACKS: &[(&str, &str, &str)] = &[
    ("gpt-6.2-sol", "tiers.flex", "OpenAI's price page of 2026-11-18 has no row for it"),
    ("gpt-6.2-astra", "tiers.flex", "OpenAI's price page of 2026-11-18 has no row for it"),
    ("gpt-6.2-sol", "tiers.ultrafast", "no source says its price"),
    ("gpt-6.2-astra", "tiers.ultrafast", "no source says its price"),
    ("gpt-5.3-chat-latest", "search", "neither table has a search with it"),
    ("gpt-5.3-chat-latest", "file_search", "neither table has tools with it"),
];

/// The line of a model, and its version: `gpt-sol` and 6.2 of `gpt-6.2-sol`.
fn line(name: &str) -> (String, Vec<u32>) {
    let mut words = Vec::new();
    let mut version = Vec::new();
    for word in name.split(['-', '.']).filter(|word| *word != "preview") {
        match word.parse() {
            // A longer number is a date.
            Ok(number) if word.len() <= 2 => version.push(number),
            _ => words.push(word),
        }
    }
    (words.join("-"), version)
}

fn components(price: &Price) -> BTreeSet<String> {
    let Price {
        long,
        audio,
        audio_as_text,
        search,
        search_prompt,
        file_search,
        call,
        regional,
        tiers,
        ..
    } = price;
    let mut components: BTreeSet<String> =
        tiers.named().map(|(tier, _)| format!("tiers.{tier}")).collect();
    for (component, is_there) in [
        ("long", !long.is_empty()),
        ("audio", audio.is_some() || *audio_as_text),
        ("search", search.is_some() || search_prompt.is_some()),
        ("file_search", file_search.is_some()),
        ("call", call.is_some()),
        ("regional", regional.is_some()),
    ] {
        if is_there {
            components.insert(component.to_owned());
        }
    }
    components
}

#[test]
fn successors_lack_nothing() {
    let mut lines: BTreeMap<String, BTreeMap<Vec<u32>, &str>> = BTreeMap::new();
    for name in Catalogue::built_in_names() {
        let (line, version) = line(name);
        lines.entry(line).or_default().insert(version, name);
    }
    let catalogue = Catalogue::default();
    let mut missing = BTreeSet::new();
    for versions in lines.values() {
        let mut newest = versions.values().rev();
        let (Some(new), Some(old)) = (newest.next(), newest.next()) else { continue };
        let priced = |name: &str| catalogue.model(name, "").price;
        let (Some(new_price), Some(old_price)) = (priced(new), priced(old)) else { continue };
        for component in components(&old_price).difference(&components(&new_price)) {
            missing.insert((*new, component.clone()));
        }
    }
    let reasons: BTreeSet<(&str, String)> =
        LACKS.iter().map(|(model, component, _)| (*model, (*component).to_owned())).collect();
    let open: Vec<_> = missing.difference(&reasons).collect();
    assert!(open.is_empty(), "no reason says why they lack: {open:?}");
    let outdated: Vec<_> = reasons.difference(&missing).collect();
    assert!(outdated.is_empty(), "these lack nothing any more: {outdated:?}");
}

/// A search and a tier that OpenAI's price page has for GPT-6.2, and a grounded prompt of Gemini 2.5, are priced.
#[test]
fn newest_models_have_their_fees() {
    for name in ["gpt-6.2-sol", "gpt-6.2-astra"] {
        let price = Catalogue::default().model(name, "").price.expect("a price");
        assert_eq!(price.search, Some(0.01), "{name}");
        assert_eq!(price.tiers.priority, Some(TierFactor::All(2.0)), "{name}");
        assert_eq!(price.tiers.batch, Some(TierFactor::All(0.5)), "{name}");
    }
    let fable = Catalogue::default().model("claude-fable-5-2", "").price.expect("a price");
    assert_eq!(fable.tiers.fast, Some(TierFactor::All(2.0)));
    let gemini = Catalogue::default().model("gemini-2.5-pro", "").price.expect("a price");
    assert_eq!(gemini.search_prompt, Some(0.035));
}
