//! Values in an agent's configuration file: read, and set in its text.
//!
//! Pure. What is not understood is refused, so that nothing of a file is lost.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value};

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FileFormat {
    /// JSON without comments.
    Json,
    /// TOML; only keys at the top are set.
    Toml,
    /// Lines `NAME=value`.
    Env,
}

/// The text with these values at their paths; an empty text is an empty file. Says why if that cannot be done.
pub(crate) fn with_values(
    format: FileFormat,
    text: &str,
    values: &[(&str, String)],
) -> Result<String, String> {
    match format {
        FileFormat::Json => with_json_values(text, values),
        FileFormat::Toml => with_toml_values(text, values),
        FileFormat::Env => Ok(with_env_values(text, values)),
    }
}

/// The values at a path, as far as there are any.
pub(crate) fn values_at(format: FileFormat, text: &str, path: &str) -> Vec<String> {
    match format {
        FileFormat::Json => {
            let mut values = Vec::new();
            if let Ok(value) = serde_json::from_str(text) {
                collect(&value, path, &mut values);
            }
            values
        }
        FileFormat::Toml => {
            let table: Option<toml::Table> = text.parse().ok();
            let value = table.as_ref().and_then(|table| table.get(path)?.as_str());
            value.map(str::to_owned).into_iter().collect()
        }
        FileFormat::Env => {
            let mut lines = text.lines();
            let value = lines.find_map(|line| env_value(line, path));
            value.map(str::to_owned).into_iter().collect()
        }
    }
}

fn with_json_values(text: &str, values: &[(&str, String)]) -> Result<String, String> {
    let mut root = match text.trim() {
        "" => Value::Object(Map::new()),
        text => {
            serde_json::from_str(text).map_err(|error| format!("is not plain JSON ({error})"))?
        }
    };
    if !root.is_object() {
        return Err("is not a JSON object".to_owned());
    }
    for (path, value) in values {
        set(&mut root, path, value).map_err(|at| format!("has something else at {at}"))?;
    }
    let mut places = Vec::new();
    for (path, _) in values {
        collect(&root, path, &mut places);
    }
    if places.is_empty() {
        let paths: Vec<&str> = values.iter().map(|(path, _)| *path).collect();
        return Err(format!("has no place for an address ({})", paths.join(", ")));
    }
    let text = serde_json::to_string_pretty(&root).map_err(|error| error.to_string())?;
    Ok(format!("{text}\n"))
}

/// One step of a path.
pub(super) enum PathStep<'p> {
    Member { name: &'p str, is_optional: bool },
    Elements { name: &'p str, key: &'p str, value: &'p str },
}

impl<'p> PathStep<'p> {
    /// The first step of a path, and the rest of it, which is empty after the last one.
    pub(super) fn split(path: &'p str) -> (Self, &'p str) {
        let (step, rest) = path.split_once('.').unwrap_or((path, ""));
        let condition = step.strip_suffix(']').and_then(|step| step.split_once('['));
        if let Some((name, condition)) = condition
            && let Some((key, value)) = condition.split_once('=')
        {
            return (Self::Elements { name, key, value }, rest);
        }
        let name = step.strip_suffix('?').unwrap_or(step);
        (Self::Member { name, is_optional: name.len() < step.len() }, rest)
    }
}

fn set<'p>(place: &mut Value, path: &'p str, value: &str) -> Result<(), &'p str> {
    let (step, rest) = PathStep::split(path);
    let Some(members) = place.as_object_mut() else { return Err(path) };
    match step {
        PathStep::Member { name, is_optional: true } if !members.contains_key(name) => Ok(()),
        PathStep::Member { name, .. } if rest.is_empty() => {
            members.insert(name.to_owned(), value.into());
            Ok(())
        }
        PathStep::Member { name, .. } => {
            let below = members.entry(name).or_insert_with(|| Value::Object(Map::new()));
            set(below, rest, value)
        }
        PathStep::Elements { name, key, value: wanted } => {
            let Some(list) = members.get_mut(name) else { return Ok(()) };
            let elements = list.as_array_mut().ok_or(path)?;
            for element in elements.iter_mut().filter(|element| element[key] == wanted) {
                set(element, rest, value)?;
            }
            Ok(())
        }
    }
}

fn collect(place: &Value, path: &str, found: &mut Vec<String>) {
    if path.is_empty() {
        found.extend(place.as_str().map(str::to_owned));
        return;
    }
    let (step, rest) = PathStep::split(path);
    match step {
        PathStep::Member { name, .. } => {
            if let Some(below) = place.get(name) {
                collect(below, rest, found);
            }
        }
        PathStep::Elements { name, key, value } => {
            let elements = place.get(name).and_then(Value::as_array);
            for element in elements.into_iter().flatten().filter(|element| element[key] == value) {
                collect(element, rest, found);
            }
        }
    }
}

fn with_toml_values(text: &str, values: &[(&str, String)]) -> Result<String, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| format!("is not TOML ({})", error.message()))?;
    let mut added = String::new();
    for (key, value) in values {
        match table.get(*key) {
            None => {
                let _ = writeln!(added, "{key} = {}", toml::Value::from(value.as_str()));
            }
            Some(known) if known.as_str() == Some(value) => {}
            Some(known) => return Err(format!("has {key} = {known}: change that yourself")),
        }
    }
    // Before the first table, where keys belong to none.
    Ok(added + text)
}

fn with_env_values(text: &str, values: &[(&str, String)]) -> String {
    let mut edited = String::new();
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    for line in text.lines() {
        let named = values.iter().find(|(name, _)| env_value(line, name).is_some());
        let _ = match named {
            Some((name, value)) => write!(edited, "{name}={value}{end}"),
            None => write!(edited, "{line}{end}"),
        };
    }
    for (name, value) in values {
        if !text.lines().any(|line| env_value(line, name).is_some()) {
            let _ = write!(edited, "{name}={value}{end}");
        }
    }
    edited
}

pub(super) fn env_value<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    Some(line.strip_prefix(name)?.strip_prefix('=')?.trim_matches(['"', '\'']))
}
