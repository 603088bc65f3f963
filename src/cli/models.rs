//! `plimsoll models`: what is known about models and from where, what lists and refusals taught about them, where a table of
//! others differs, and which used models nobody knows.
//!
//! Reads the configuration and its table, and asks the running Plimsoll what it was taught. Asks no provider.

mod described;

use std::path::Path;

use super::admin_client::AdminClient;
use super::flags::AdminTarget;
use super::print::{self, CliError};
use super::table::columns;
use crate::admin::lessons::{LessonList, LessonView};
use crate::admin::spend::SpendPage;
use crate::config;
use crate::context::budget::grouped;
use crate::dialect::models::{Catalogue, Difference, ModelTable, TableComparison, is_named};
use crate::telemetry::log::clean;
use described::KnownModel;
use serde::Serialize;

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
        let comparison = catalogue.compare(&table);
        if at.json {
            print::json(&comparison);
        } else {
            print::out(&listed(&comparison));
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
    let lessons = at.try_ask(async |client| lessons(client).await)?.unwrap_or_default();
    let models: Vec<KnownModel<'_>> = names
        .iter()
        .map(|name| {
            let model = catalogue.model(name, "");
            let sources = catalogue.sources(name);
            let taught = taught(&lessons, name).cloned().collect();
            KnownModel { name, known: model.known, model, sources, taught }
        })
        .collect();
    if at.json {
        print::json(&models);
        return Ok(());
    }
    for model in &models {
        print::out(&model.described());
    }
    Ok(())
}

async fn lessons(client: &AdminClient) -> Result<Vec<LessonView>, CliError> {
    let list: LessonList = client.value("/api/v1/lessons").await?;
    Ok(list.lessons)
}

/// What was taught about the window of the model that a client calls `name`.
fn taught<'l>(lessons: &'l [LessonView], name: &str) -> impl Iterator<Item = &'l LessonView> {
    lessons.iter().filter(move |lesson| {
        lesson.lesson.contains("window")
            && !lesson.model.is_empty()
            && is_named(&lesson.model, name)
    })
}

/// Of the names that are not known here, at most so many are written out.
const NAMED_UNKNOWN: usize = 8;

fn listed(comparison: &TableComparison) -> String {
    let TableComparison { compared, with_vendor, unknown, differences } = comparison;
    let mut rows = vec![["MODEL", "WHAT", "HERE", "THERE"].map(String::from)];
    rows.extend(differences.iter().map(|difference| {
        let Difference { model, what, ours, theirs } = difference;
        [model.to_string(), (*what).into(), ours.to_string(), theirs.to_string()]
    }));
    let mut text = format!(
        "{}{compared} names are in both; differences: {}.\nCompared are windows and the prices of input, output and cache reads \
         at the standard tier. Left out: {with_vendor} names with a vendor before them, and {} that are not \
         known here",
        columns(&rows),
        differences.len(),
        unknown.len()
    );
    let names: Vec<_> = unknown.iter().take(NAMED_UNKNOWN).map(|name| clean(name)).collect();
    if !names.is_empty() {
        let more = if unknown.len() > names.len() { ", …" } else { "" };
        text += &format!(" ({}{more})", names.join(", "));
    }
    text + ".\n"
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
        let lessons = lessons(&client).await?;
        let mut missing = Vec::new();
        for line in spent.lines {
            let model = catalogue.model(&line.name, "");
            let window = !model.known && taught(&lessons, &line.name).next().is_none();
            let price = model.price.is_none();
            if window || price {
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
