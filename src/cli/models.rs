//! `plimsoll models`: what is known about models, where a table of others differs, and which used models nobody knows.
//!
//! Reads the configuration and its table. Asks no provider.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::flags::AdminTarget;
use super::print::{self, CliError};
use super::table::columns;
use crate::admin::spend::SpendPage;
use crate::config;
use crate::context::budget::grouped;
use crate::dialect::models::{Catalogue, Difference, Model, ModelTable};
use crate::telemetry::log::clean;

/// What is known about a name.
#[derive(Serialize)]
struct KnownModel<'n> {
    name: &'n str,
    /// Whether the name was found; else window and limits are guesses.
    known: bool,
    #[serde(flatten)]
    model: Model,
}

/// Prints what is known about `names`, or of how many models; with `compare`, where that table differs.
pub(super) fn run(
    at: &AdminTarget,
    names: &[String],
    compare: Option<&Path>,
) -> Result<(), CliError> {
    let catalogue = catalogue(at)?;
    if let Some(file) = compare {
        let text = std::fs::read_to_string(file)
            .map_err(|error| CliError(format!("{}: {error}", file.display())))?;
        let table = ModelTable::read(&text)
            .map_err(|error| CliError(format!("{}: {error}", file.display())))?;
        let (compared, differences) = catalogue.differences(&table);
        if at.json {
            print::json(&differences);
        } else {
            print::out(&listed(compared, &differences));
        }
        return Ok(());
    }
    if names.is_empty() {
        let more = catalogue.table().models.len();
        print::line(&format!(
            "{} models are built in, {} are in the configured table. `plimsoll models NAME` shows one.",
            Catalogue::built_in_names().count(),
            grouped(more as u64)
        ));
        return Ok(());
    }
    let models: Vec<KnownModel<'_>> = names
        .iter()
        .map(|name| {
            let model = catalogue.model(name, "");
            KnownModel { name, known: model.known, model }
        })
        .collect();
    if at.json {
        print::json(&models);
        return Ok(());
    }
    for model in &models {
        print::out(&described(model));
    }
    Ok(())
}

fn described(KnownModel { name, model, .. }: &KnownModel<'_>) -> String {
    let guess = if model.known { "" } else { " (a guess: the name is not known)" };
    let mut text = format!(
        "{name}\n  window:     {} tokens of input{guess}\n  output:     {} tokens at most\n  tokenizer:  {}\n",
        grouped(model.window),
        grouped(model.max_output),
        model.family.as_ref(),
    );
    let Some(price) = &model.price else {
        text += "  price:      unknown\n";
        return text;
    };
    let base = price.base();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  price:      ${} input, ${} output, ${} cache read, ${} cache write, a million tokens",
        base.input, base.output, base.cache_read, base.cache_write
    );
    for long in price.long.iter() {
        let _ = writeln!(
            text,
            "              ${} input, ${} output for prompts above {} tokens",
            long.rates.input,
            long.rates.output,
            grouped(long.above)
        );
    }
    if let Some(search) = price.search {
        let _ = writeln!(text, "              ${search} a search");
    }
    if let Some(off_peak) = &price.off_peak {
        let _ = writeln!(text, "              times {} outside peak hours", off_peak.factor);
    }
    if let Some(change) = &price.change {
        let _ = writeln!(
            text,
            "              ${} input, ${} output from {} on",
            change.rates.input, change.rates.output, change.from
        );
    }
    text
}

fn listed(compared: usize, differences: &[Difference]) -> String {
    let mut rows = vec![["MODEL", "WHAT", "HERE", "THERE"].map(String::from)];
    rows.extend(differences.iter().map(|difference| {
        let Difference { model, what, ours, theirs } = difference;
        [model.to_string(), (*what).into(), ours.to_string(), theirs.to_string()]
    }));
    let count = differences.len();
    format!("{}{compared} names are in both; differences: {count}.\n", columns(&rows))
}

/// A model that was used and is not wholly known.
#[derive(Serialize)]
struct MissingModel {
    model: String,
    calls: u64,
    /// Its window is a guess.
    window: bool,
    /// Its price is not known.
    price: bool,
}

/// Prints the models of the last 30 days whose window is a guess or whose price is not known.
pub(super) fn missing(at: &AdminTarget) -> Result<(), CliError> {
    let catalogue = catalogue(at)?;
    at.ask(async |client| {
        let spent: SpendPage = client.value("/api/v1/spend?by=model").await?;
        let mut missing = Vec::new();
        for line in spent.lines {
            let model = catalogue.model(&line.name, "");
            if !model.known || model.price.is_none() {
                let (window, price) = (!model.known, model.price.is_none());
                missing.push(MissingModel { model: line.name, calls: line.calls, window, price });
            }
        }
        if at.json {
            print::json(&missing);
        } else {
            print::out(&advice(&missing));
        }
        Ok(())
    })
}

fn catalogue(at: &AdminTarget) -> Result<Catalogue, CliError> {
    let loaded = config::load(&at.sources()).map_err(|errors| CliError(errors.to_string()))?;
    Ok(loaded.config.catalogue)
}

fn advice(missing: &[MissingModel]) -> String {
    let Some(first) = missing.first() else {
        return "Window and price of all models of the last 30 days are known.\n".to_owned();
    };
    let mut rows = vec![["MODEL", "CALLS", "NOT KNOWN"].map(String::from)];
    rows.extend(missing.iter().map(|line| {
        let what = match (line.window, line.price) {
            (true, true) => "window (a guess is used), price",
            (true, false) => "window (a guess is used)",
            _ => "price",
        };
        [clean(&line.model).into_owned(), grouped(line.calls), what.to_owned()]
    }));
    let name = clean(&first.model);
    format!(
        "{}Set them in the configuration ([model.{name:?}]: window_tokens, price), or name a newer table (catalogue).\n",
        columns(&rows)
    )
}
