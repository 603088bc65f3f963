//! What was set where: a file, overridden by the environment, overridden by flags, as one tree with places.
//!
//! Knows nothing about the meaning of keys; only that a later layer overrides an earlier one, and where each
//! value came from, so that a fault can name the place.

use std::path::Path;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::errors::{ConfigErrors, ConfigPlace};

/// A value or a table, and where it was set.
#[derive(Clone, Debug)]
pub(super) struct ConfigEntry {
    pub(super) place: ConfigPlace,
    pub(super) tree: ConfigTree,
}

/// A table keeps the order in which its keys were set.
#[derive(Clone, Debug)]
pub(super) enum ConfigTree {
    Leaf(Value),
    Table(Vec<(String, ConfigEntry)>),
}

impl ConfigEntry {
    pub(super) fn empty() -> Self {
        Self { place: ConfigPlace::Default, tree: ConfigTree::Table(Vec::new()) }
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&ConfigEntry> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        let ConfigTree::Table(entries) = &self.tree else { return None };
        entries.iter().find(|(key, _)| key == first)?.1.at(rest)
    }

    pub(super) fn keys(&self, path: &[&str]) -> Vec<String> {
        match self.at(path).map(|entry| &entry.tree) {
            Some(ConfigTree::Table(entries)) => {
                entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Some(ConfigTree::Leaf(_)) | None => Vec::new(),
        }
    }

    /// The place of the deepest existing entry on the way to `path`.
    pub(super) fn place(&self, path: &[&str]) -> ConfigPlace {
        let mut place = self.place.clone();
        // What is missing has no place of its own: the nearest table says where to look.
        for length in 1..=path.len() {
            if let Some(entry) = self.at(&path[..length]) {
                place = entry.place.clone();
            }
        }
        match self.at(path) {
            Some(entry) => entry.place.clone(),
            None => place,
        }
    }

    pub(super) fn set(&mut self, path: &[&str], value: Value, place: ConfigPlace) {
        let Some((first, rest)) = path.split_first() else {
            *self = ConfigEntry { place, tree: ConfigTree::Leaf(value) };
            return;
        };
        // A later layer may set a table where an earlier one set a value.
        if let ConfigTree::Leaf(_) = self.tree {
            self.tree = ConfigTree::Table(Vec::new());
        }
        let ConfigTree::Table(entries) = &mut self.tree else { return };
        if let Some((_, entry)) = entries.iter_mut().find(|(key, _)| key == first) {
            return entry.set(rest, value, place);
        }
        let mut entry = ConfigEntry { place: place.clone(), tree: ConfigTree::Table(Vec::new()) };
        entry.set(rest, value, place);
        entries.push(((*first).to_owned(), entry));
    }

    pub(super) fn take(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        let ConfigTree::Table(entries) = &mut self.tree else { return };
        match rest {
            [] => entries.retain(|(key, _)| key != first),
            _ => {
                let below = entries.iter_mut().filter(|(key, _)| key == first);
                below.for_each(|(_, entry)| entry.take(rest));
            }
        }
    }

    /// Adds the entries of `below` that are not set yet.
    pub(super) fn put_under(&mut self, below: &ConfigEntry) {
        let (ConfigTree::Table(entries), ConfigTree::Table(more)) = (&mut self.tree, &below.tree)
        else {
            return;
        };
        for (key, entry) in more {
            match entries.iter_mut().find(|(raw, _)| raw == key) {
                Some((_, raw)) => raw.put_under(entry),
                // What is set already counts more than what lies below it.
                None => entries.push((key.clone(), entry.clone())),
            }
        }
    }

    /// The values, without places.
    pub(super) fn value(&self) -> Value {
        match &self.tree {
            ConfigTree::Leaf(value) => value.clone(),
            ConfigTree::Table(entries) => {
                entries.iter().map(|(key, entry)| (key.clone(), entry.value())).collect()
            }
        }
    }
}

/// The tree of a TOML text. What cannot be parsed is a fault; the rest is still in the tree.
pub(super) fn file(path: &Path, text: &str, errors: &mut ConfigErrors) -> ConfigEntry {
    let (table, unparsed) = DeTable::parse_recoverable(text);
    for error in unparsed {
        let place = match error.span() {
            Some(span) => line_at(path, text, span.start),
            None => ConfigPlace::File(path.to_owned()),
        };
        let message = error.message().trim().trim_end_matches('.').replace('\n', ", ");
        errors.add(place, "", format!("not TOML: {message}"), "Fix the line.");
    }
    ConfigEntry {
        place: ConfigPlace::File(path.to_owned()),
        tree: table_of(table.get_ref(), &|at| line_at(path, text, at)),
    }
}

fn line_at(path: &Path, text: &str, at: usize) -> ConfigPlace {
    let until = text.get(..at.min(text.len())).unwrap_or(text);
    ConfigPlace::Line(path.to_owned(), until.bytes().filter(|byte| *byte == b'\n').count() + 1)
}

/// The tree of a text that we ship.
pub(super) fn shipped(place: &ConfigPlace, text: &str) -> ConfigEntry {
    let (table, _) = DeTable::parse_recoverable(text);
    ConfigEntry { place: place.clone(), tree: table_of(table.get_ref(), &|_| place.clone()) }
}

fn table_of(table: &DeTable<'_>, line: &dyn Fn(usize) -> ConfigPlace) -> ConfigTree {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut table = Vec::new();
    for (key, value) in entries {
        let place = line(key.span().start);
        let tree = tree_of(value.get_ref(), line);
        table.push((key.get_ref().to_string(), ConfigEntry { place, tree }));
    }
    ConfigTree::Table(table.into_iter().collect())
}

fn tree_of(value: &DeValue<'_>, line: &dyn Fn(usize) -> ConfigPlace) -> ConfigTree {
    match value {
        DeValue::Table(table) => table_of(table, line),
        leaf => ConfigTree::Leaf(leaf_of(leaf)),
    }
}

fn leaf_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                .map_or(Value::Null, Value::from)
        }
        DeValue::Float(number) => {
            number.as_str().replace('_', "").parse::<f64>().map_or(Value::Null, Value::from)
        }
        DeValue::Boolean(yes) => Value::Bool(*yes),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| leaf_of(item.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, item)| (key.get_ref().to_string(), leaf_of(item.get_ref())))
            .collect(),
    }
}
