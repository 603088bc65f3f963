//! The shape of a configuration: its JSON Schema, and the check of a text against it.
//!
//! Everything here follows from [`RawConfig`]: a key that is added there is documented, checked and can be
//! set through the environment without a change here.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::errors::{ConfigErrors, nearest};
use super::layers::{ConfigEntry, ConfigTree};
use super::raw::RawConfig;

#[cfg(any(test, feature = "test-support"))]
#[path = "testing/reference.rs"]
pub mod reference;

/// The JSON Schema of what users can set, for editors.
pub fn schema() -> Value {
    let mut schema = with_presets();
    remove_preset_keys(&mut schema);
    schema
}

/// The JSON Schema with the keys that only presets set, which are marked in the types of the policies.
pub(super) fn with_presets() -> Value {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<RawConfig>().to_value()
}

fn remove_preset_keys(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(keys)) = members.get_mut("properties") {
                keys.retain(|_, key| !is_preset_key(key));
            }
            members.values_mut().for_each(remove_preset_keys);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_preset_keys),
        _ => {}
    }
}

fn is_preset_key(schema: &Value) -> bool {
    schema["presetOnly"] == true
}

/// The leaves of the schema: the path of each, and its own schema.
pub(super) fn leaves(schema: &Value) -> Vec<(Vec<String>, &Value)> {
    let mut leaves = Vec::new();
    gather(schema, &mut Vec::new(), &mut leaves);
    leaves
}

fn gather<'s>(
    schema: &'s Value,
    path: &mut Vec<String>,
    leaves: &mut Vec<(Vec<String>, &'s Value)>,
) {
    let Some(properties) = properties(schema) else {
        if map_of(schema).is_none() {
            leaves.push((path.clone(), schema));
        }
        return;
    };
    for (key, below) in properties {
        path.push(key.clone());
        gather(below, path, leaves);
        path.pop();
    }
}

/// The environment variable that sets a key.
pub(super) fn variable(path: &[String]) -> String {
    format!("PLIMSOLL_{}", path.join("_").to_uppercase())
}

pub(super) fn check(schema: &Value, raw: &ConfigEntry, path: &str, errors: &mut ConfigErrors) {
    let entries = match &raw.tree {
        ConfigTree::Leaf(value) => return check_leaf(schema, value, raw, path, errors),
        ConfigTree::Table(entries) => entries,
    };
    // A table with free keys, such as the upstreams.
    if let Some(below) = map_of(schema) {
        for (key, entry) in entries {
            check(below, entry, &joined(path, key), errors);
        }
        return;
    }
    let Some(properties) = properties(schema) else {
        errors.add(
            raw.place.clone(),
            path,
            format!("a table, but should be {}", kind(schema)),
            "Write a value after `=`.",
        );
        return;
    };
    for (key, entry) in entries {
        let path = joined(path, key);
        match properties.get(key) {
            Some(below) => check(below, entry, &path, errors),
            None => {
                let (what, todo) = unknown(key, &path, properties);
                errors.add(entry.place.clone(), &path, what, todo);
            }
        }
    }
    for key in required(schema) {
        if !entries.iter().any(|(raw, _)| raw == key) {
            errors.add(raw.place.clone(), path, format!("{key} is missing"), "Add it.");
        }
    }
}

fn check_leaf(
    schema: &Value,
    value: &Value,
    raw: &ConfigEntry,
    path: &str,
    errors: &mut ConfigErrors,
) {
    if properties(schema).is_some() || map_of(schema).is_some() {
        errors.add(
            raw.place.clone(),
            path,
            "a value, but should be a table",
            format!("Write [{path}] and its keys below it."),
        );
    } else if !fits(schema, value) {
        // Closed sets of words are often misspelled.
        let near = value.as_str().and_then(|raw| nearest(raw, allowed_values(schema)));
        errors.add(
            raw.place.clone(),
            path,
            format!("should be {}", kind(schema)),
            near.map_or("Fix the value.".into(), |near| format!("Did you mean {near:?}?")),
        );
    }
}

fn unknown(key: &str, path: &str, known: &Map<String, Value>) -> (String, String) {
    // Keys that only presets set are not in the reference file.
    if path.split('.').try_fold(&with_presets(), |at, key| properties(at)?.get(key)).is_some() {
        let what = "only presets set this; its value belongs to the agent that they follow";
        return (what.to_owned(), "Remove it, or choose another preset.".to_owned());
    }
    let last_word = format!("_{key}");
    let longer = known.keys().map(String::as_str).find(|known| known.ends_with(&last_word));
    if let Some(near) = longer.or_else(|| nearest(key, known.keys().map(String::as_str))) {
        let what = format!("unknown key; the nearest known key is {near}");
        return (what, format!("Rename it to {near}, or remove it."));
    }
    let root = schema();
    let elsewhere = leaves(&root)
        .into_iter()
        .find(|(leaf, _)| leaf.last().is_some_and(|last| last == key) && leaf.join(".") != path);
    match elsewhere {
        Some((leaf, _)) => (
            format!("unknown key here; there is {}", leaf.join(".")),
            "Move it there, or remove it.".to_owned(),
        ),
        None => {
            let all: Vec<_> = known.keys().map(String::as_str).collect();
            (format!("unknown key; known here: {}", all.join(", ")), "Remove it.".to_owned())
        }
    }
}

pub(super) fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn bare(schema: &Value) -> &Value {
    let options = schema["anyOf"].as_array();
    options
        .and_then(|options| options.iter().find(|option| option["type"] != "null"))
        .unwrap_or(schema)
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    bare(schema)["properties"].as_object()
}

fn map_of(schema: &Value) -> Option<&Value> {
    let schema = bare(schema);
    schema.get("additionalProperties").filter(|below| below.is_object())
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    bare(schema)["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The values of a closed set; empty for anything else.
fn allowed_values(schema: &Value) -> Vec<&str> {
    let schema = bare(schema);
    let listed = schema["enum"].as_array().into_iter().flatten();
    let options = schema["oneOf"].as_array().into_iter().flatten().flat_map(|option| {
        option.get("const").into_iter().chain(option["enum"].as_array().into_iter().flatten())
    });
    listed.chain(options).filter_map(Value::as_str).collect()
}

pub(super) fn from_text(schema: &Value, text: &str) -> Value {
    // Text that cannot be parsed as that type stays text, and then fails the check.
    match type_of(schema) {
        "integer" => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
        "number" => text.parse::<f64>().map_or_else(|_| Value::from(text), Value::from),
        "boolean" => text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        "array" if text.is_empty() => Value::Array(Vec::new()),
        "array" => text.split(',').map(|item| Value::from(item.trim())).collect(),
        _ => Value::from(text),
    }
}

pub(super) fn is_list(schema: &Value) -> bool {
    type_of(schema) == "array"
}

/// The plain type: `string`, `integer`, `boolean`, `number`, `array`.
fn type_of(schema: &Value) -> &str {
    match &bare(schema)["type"] {
        Value::String(one) => one,
        Value::Array(some) => {
            some.iter().filter_map(Value::as_str).find(|one| *one != "null").unwrap_or("string")
        }
        _ => "string",
    }
}

fn fits(schema: &Value, value: &Value) -> bool {
    let allowed_values = allowed_values(schema);
    if !allowed_values.is_empty() {
        return value.as_str().is_some_and(|raw| allowed_values.contains(&raw));
    }
    match type_of(schema) {
        "integer" => value.as_u64().is_some(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value
            .as_array()
            .is_some_and(|items| items.iter().all(|item| fits(&bare(schema)["items"], item))),
        _ => value.is_string(),
    }
}

fn kind(schema: &Value) -> String {
    let allowed_values = allowed_values(schema);
    if !allowed_values.is_empty() {
        return format!("one of {}", allowed_values.join(", "));
    }
    match type_of(schema) {
        "integer" => "a whole number, 0 or more".to_owned(),
        "number" => "a number".to_owned(),
        "boolean" => "true or false".to_owned(),
        "array" => format!("a list, each {}", kind(&bare(schema)["items"])),
        _ => "a text in quotes".to_owned(),
    }
}
