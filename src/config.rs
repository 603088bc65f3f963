//! Reads what was written (files, environment, flags) as raw values, then resolves them: checked and
//! complete.
//!
//! All faults are reported at once, each with its place, the nearest known key and what to do, before a port
//! is bound. Secrets come from the environment or files, never from the configuration's text.

mod built_in;
mod choices;
pub(crate) mod errors;
pub mod hosts;
mod introduction;
mod layers;
mod memory_limits;
mod otel;
pub(crate) mod permissions;
pub mod presets;
mod prices;
pub mod raw;
mod resolve;
pub mod schema;
mod secret;
mod settings;
mod sources;
#[cfg(any(test, feature = "test-support"))]
mod testing;

use std::path::{Path, PathBuf};

pub use crate::context::policy::Mode;
use errors::{ConfigErrors, ConfigPlace};
use layers::ConfigEntry;

pub use choices::{
    ClientMode, CountTokens, IncludeUsage, LogLevel, OnFailure, OtelProtocol, OtelSignal,
    ProviderCounting, Tenants, UpgradePolicy,
};
pub use otel::{OtelSettings, OtelTarget, TraceSampler};
pub use prices::PriceList;
pub(crate) use resolve::{CapFault, check_cap, day};
pub use settings::{
    Config, ContentSettings, LessonSettings, Retention, Secret, ServerLimits, SharedStore, Tls,
    Upstream,
};
pub use sources::{ConfigFlag, ConfigSources};

/// A configuration that can be served.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The resolved configuration.
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// What is odd but harmless.
    pub warnings: Vec<String>,
}

/// Reads, checks and completes a configuration.
///
/// # Errors
/// All faults at once.
pub fn load(sources: &ConfigSources) -> Result<LoadedConfig, ConfigErrors> {
    load_excusing(sources, true, |_| false)
}

/// Like [`load`], for commands that only query a running process: that process has the secrets that are
/// missing here. `plimsoll run` removes them from the environment of its command, which may query all the
/// same. Nor is the table of models read, which only that process needs: it may be large, or broken by now.
///
/// # Errors
/// All other faults at once.
pub(crate) fn load_for_query(sources: &ConfigSources) -> Result<LoadedConfig, ConfigErrors> {
    load_excusing(sources, false, |key| key.ends_with("token") || key.ends_with(".credential"))
}

/// Reads, checks and completes a configuration; faults of keys that are `excused` are ignored.
fn load_excusing(
    sources: &ConfigSources,
    reads_models: bool,
    excused: fn(&str) -> bool,
) -> Result<LoadedConfig, ConfigErrors> {
    let schema = schema::schema();
    let mut errors = ConfigErrors::default();
    let file =
        sources.file.clone().or_else(|| sources.search.iter().find(|path| path.exists()).cloned());
    let mut warnings = sources.ignored(file.as_deref());
    let mut raw = file.as_deref().map_or_else(ConfigEntry::empty, |path| read(path, &mut errors));
    if !errors.is_empty() {
        // A text that is not valid TOML has no reliable meaning, so its keys are not checked.
        return Err(errors.sorted());
    }
    set_from_variables(&mut raw, sources, &mut warnings);
    for flag in &sources.flags {
        set_from_flag(&mut raw, &schema, flag, &mut errors);
    }
    schema::check(&schema, &raw, "", &mut errors);
    presets::put_under(&mut raw);
    if !reads_models {
        raw.take(&["catalogue"]);
    }
    let config = resolve::resolve(&raw, sources, &mut errors, &mut warnings);
    errors.0.retain(|fault| !excused(&fault.key));
    match config {
        Some(config) if errors.is_empty() => {
            warnings.extend(resolve::oddities(&config));
            Ok(LoadedConfig { config, file, warnings })
        }
        _ => Err(errors.sorted()),
    }
}

fn read(path: &Path, errors: &mut ConfigErrors) -> ConfigEntry {
    if let Some(finding) = permissions::writable(path) {
        errors.add(ConfigPlace::File(path.to_owned()), "", finding.what, finding.todo);
        return ConfigEntry::empty();
    }
    match std::fs::read_to_string(path) {
        Ok(text) => layers::file(path, &text, errors),
        Err(error) => {
            let todo = "Name a file that is there and can be read, or leave --config out.";
            errors.add(
                ConfigPlace::File(path.to_owned()),
                "",
                format!("cannot be read: {error}"),
                todo,
            );
            ConfigEntry::empty()
        }
    }
}

/// `PLIMSOLL_…`: one variable for each plain key, and `PLIMSOLL_UPSTREAM_NAME` for base URLs.
fn set_from_variables(raw: &mut ConfigEntry, sources: &ConfigSources, warnings: &mut Vec<String>) {
    // With the keys of presets, so that the check says what is wrong with them.
    let with_presets = schema::with_presets();
    let leaves = schema::leaves(&with_presets);
    for (name, value) in &sources.variables {
        if !name.starts_with("PLIMSOLL_") || resolve::is_foreign(name) {
            continue;
        }
        let leaf = leaves.iter().find(|(path, _)| schema::variable(path) == *name);
        // An empty variable is one that is not set, except for a list: then it has no elements.
        if value.is_empty() && !leaf.is_some_and(|(_, leaf)| schema::is_list(leaf)) {
            continue;
        }
        let place = ConfigPlace::Variable(name.clone());
        if let Some(upstream) = name.strip_prefix("PLIMSOLL_UPSTREAM_") {
            let upstream = upstream.to_lowercase().replace('_', "-");
            raw.set(&["upstream", &upstream, "base_url"], value.as_str().into(), place);
        } else if let Some((path, leaf)) = leaf {
            let path: Vec<_> = path.iter().map(String::as_str).collect();
            raw.set(&path, schema::from_text(leaf, value), place);
        } else {
            let known: Vec<_> = leaves.iter().map(|(path, _)| schema::variable(path)).collect();
            let near = errors::nearest(name, known.iter().map(String::as_str));
            let hint = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
            warnings.push(format!("environment variable {name} is not known{hint}; it is ignored"));
        }
    }
}

fn set_from_flag(
    raw: &mut ConfigEntry,
    schema: &serde_json::Value,
    flag: &ConfigFlag,
    errors: &mut ConfigErrors,
) {
    let (key, value) = (&*flag.key, &*flag.value);
    let place = ConfigPlace::Flag(flag.name.clone());
    if key == "upstream" {
        return match value.split_once('=') {
            Some((name, url)) => {
                let path = ["upstream", name, "base_url"];
                let twice = raw.at(&path).is_some_and(|entry| entry.place == place);
                if twice {
                    errors.add(place, key, format!("{name} is named twice"), "Name each once.");
                } else {
                    raw.set(&path, url.into(), place);
                }
            }
            None => errors.add(place, key, "should be NAME=URL", "Write, say, openai=http://…"),
        };
    }
    let leaves = schema::leaves(schema);
    let leaf = leaves.iter().find(|(path, _)| path.join(".") == key);
    let value = leaf.map_or_else(|| value.into(), |(_, leaf)| schema::from_text(leaf, value));
    raw.set(&key.split('.').collect::<Vec<_>>(), value, place);
}
