//! `plimsoll models`: what is known about models, and where a table of others differs.
//!
//! Reads the configuration and its table. Asks nobody.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::print::{self, CliError};
use super::table::columns;
use crate::config::{self, ConfigSources};
use crate::context::budget::grouped;
use crate::dialect::models::{Catalogue, Model, ModelTable};

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
    sources: &ConfigSources,
    names: &[String],
    compare: Option<&Path>,
    as_json: bool,
) -> Result<(), CliError> {
    let loaded = config::load(sources).map_err(|errors| CliError(errors.to_string()))?;
    let catalogue = loaded.config.catalogue;
    if let Some(file) = compare {
        let text = std::fs::read_to_string(file)
            .map_err(|error| CliError(format!("{}: {error}", file.display())))?;
        let table = ModelTable::read(&text)
            .map_err(|error| CliError(format!("{}: {error}", file.display())))?;
        print::out(&differences(&catalogue, &table));
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
    if as_json {
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
    if let Some(long) = &price.long {
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

/// Where a table says another window or price than is used here, for every name that both know.
fn differences(catalogue: &Catalogue, table: &ModelTable) -> String {
    let mut rows = vec![["MODEL", "WHAT", "HERE", "THERE"].map(String::from)];
    let mut names: Vec<&str> = table.models.keys().map(AsRef::as_ref).collect();
    names.sort_unstable();
    let mut compared = 0;
    for name in names {
        let model = catalogue.model(name, "");
        if !model.known || name.contains('/') {
            continue;
        }
        compared += 1;
        let other = &table.models[name];
        let here = model.price.as_ref();
        let there = other.price.as_ref();
        for (what, here, there) in [
            ("window", Some(model.window as f64), other.window.map(|window| window as f64)),
            ("input", here.map(|at| at.input), there.map(|at| at.input)),
            ("output", here.map(|at| at.output), there.map(|at| at.output)),
            ("cache read", here.map(|at| at.cache_read), there.map(|at| at.cache_read)),
        ] {
            if let (Some(here), Some(there)) = (here, there)
                && (here - there).abs() > 0.005 * there.abs()
            {
                rows.push([name.into(), what.into(), here.to_string(), there.to_string()]);
            }
        }
    }
    let found = rows.len() - 1;
    format!("{}{compared} names are in both; {found} differences.\n", columns(&rows))
}
