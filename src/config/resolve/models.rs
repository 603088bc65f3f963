//! What is known about models: the configured table, and the overrides by name.
//!
//! Nothing is fetched here: of a table at a URL the last copy is read.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::Uri;
use jiff::civil::Date;
use jiff::{Timestamp, tz::Offset};

use super::Resolver;
use crate::config::hosts::is_loopback;
use crate::config::raw::RawConfig;
use crate::dialect::models::{Catalogue, ModelOverride, ModelTable};

/// The copy of a table at a URL, in the data folder.
const COPY: &str = "catalogue-copy";

/// The catalogue, and where a part of it comes from.
#[derive(Default)]
pub(super) struct ConfiguredModels {
    pub(super) catalogue: Catalogue,
    pub(super) file: Option<PathBuf>,
    pub(super) url: Option<Uri>,
}

impl Resolver<'_> {
    pub(super) fn catalogue(&mut self, raw: &RawConfig, data: Option<&Path>) -> ConfiguredModels {
        let catalogue = Catalogue::new(self.models(raw));
        let mut models = ConfiguredModels { catalogue, ..ConfiguredModels::default() };
        let Some(table) = raw.catalogue.as_deref() else { return models };
        if table.contains("://") {
            models.url = self.table_url(table);
            models.file = data.map(|data| data.join(COPY));
            // Before there is a copy, and if it is broken, the built-in models are used.
            if let Some(table) = models.file.as_deref().and_then(|file| read(file).ok()) {
                models.catalogue.set_table(table);
            }
            return models;
        }
        let file = self.file(&["catalogue"], table);
        match read(&file) {
            Ok(table) => {
                for oddity in table.oddities() {
                    self.warnings.push(format!("catalogue: {}: {oddity}", file.display()));
                }
                models.catalogue.set_table(table);
            }
            Err(reason) => {
                let todo = "Name a table of models that exists and is readable.";
                self.wrong(&["catalogue"], format!("{table}: {reason}"), todo);
            }
        }
        models.file = Some(file);
        models
    }

    fn table_url(&mut self, raw: &str) -> Option<Uri> {
        let url = raw.parse::<Uri>().ok().filter(|url| match url.scheme_str() {
            // No credential is sent.
            _ if url.authority().is_none_or(|authority| authority.as_str().contains('@')) => false,
            Some("https") => true,
            // Whoever is on the way could set windows and prices.
            Some("http") => url.host().is_some_and(is_loopback),
            _ => false,
        });
        if url.is_none() {
            let todo = "Write https://HOST/PATH, or name a file. http is for loopback only.";
            self.wrong(&["catalogue"], "is no address of a table", todo);
        }
        url
    }

    fn models(&mut self, raw: &RawConfig) -> Vec<ModelOverride> {
        let names = self.entry.keys(&["model"]);
        let mut models = Vec::new();
        for name in names {
            let Some(model) = raw.model.get(&name) else { continue };
            if name.trim_end_matches('*').contains('*') {
                let todo = "Put `*` only at the end.";
                self.wrong(&["model", &name], "`*` is inside the name", todo);
            }
            for (key, value) in [
                ("window_tokens", model.window_tokens),
                ("max_output_tokens", model.max_output_tokens),
            ] {
                if value == Some(0) {
                    self.wrong(&["model", &name, key], "0 is too small", "Write 1 or more.");
                }
            }
            self.price(&["model", &name, "price"], model.price.as_ref());
            models.push(ModelOverride {
                name: name.as_str().into(),
                window: model.window_tokens,
                max_output: model.max_output_tokens,
                family: model.family,
                price: model.price,
                ..ModelOverride::default()
            });
        }
        models
    }
}

fn read(file: &Path) -> Result<ModelTable, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let table = ModelTable::read(&text).map_err(|error| error.to_string())?;
    let changed = file.metadata().and_then(|about| about.modified()).ok();
    Ok(table.at(&file.display().to_string(), changed.and_then(day)))
}

/// The day of a time, UTC; `None` if no calendar has it.
pub(crate) fn day(time: SystemTime) -> Option<Date> {
    let time = Timestamp::try_from(time).ok()?;
    Some(Offset::UTC.to_datetime(time).date())
}
