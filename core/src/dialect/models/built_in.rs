//! The built-in models, and which of them a name means.
//!
//! A name means a model if the model's entry says so: it is its name or one of its aliases, in any spelling, or one that
//! open weights are served under. Every other name is a guess, and has no price.

use std::sync::OnceLock;

use foldhash::HashMap;
use jiff::civil::Date;
use serde::Deserialize;

use super::model::Model;
use super::names::{cuts, is_serving, spellings};
use super::pictures::PictureRule;
use super::sources::date_in;

/// The content of `config/models.toml`.
#[derive(Deserialize)]
pub(super) struct CatalogueFile {
    models: HashMap<Box<str>, BuiltInModel>,
    /// By the start of a name: the tokenizer is certain, the rest a guess.
    families: HashMap<Box<str>, Model>,
    /// The name of the entry of each alias.
    #[serde(skip)]
    aliases: HashMap<Box<str>, Box<str>>,
    /// When the file was made.
    #[serde(skip)]
    pub(super) date: Option<Date>,
}

#[derive(Deserialize)]
struct BuiltInModel {
    #[serde(flatten)]
    model: Model,
    /// Other names of the same model, at the same price.
    #[serde(default)]
    aliases: Box<[Box<str>]>,
    /// Its weights are open: sizes, formats and dates after its name say how it is served.
    #[serde(default)]
    open: bool,
}

impl CatalogueFile {
    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut file: Self = toml::from_str(text)?;
        file.date = date_in(text);
        for (name, entry) in &file.models {
            for alias in &entry.aliases {
                file.aliases.insert(alias.clone(), name.clone());
            }
        }
        Ok(file)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(AsRef::as_ref)
    }

    fn entry(&self, name: &str) -> Option<&BuiltInModel> {
        let listed = self.models.get(name);
        listed.or_else(|| self.models.get(self.aliases.get(name)?))
    }

    /// The entry with the longest name that this one begins with, and what follows it.
    fn start<'n>(&self, name: &'n str) -> Option<(&BuiltInModel, &'n str)> {
        cuts(name).skip(1).find_map(|end| {
            let (start, rest) = name.split_at(end);
            Some((self.entry(start)?, rest))
        })
    }

    /// Open weights are served under many names, by whom each asks its own price for them.
    fn served(&self, name: &str) -> Option<Model> {
        let (entry, rest) = self.start(name)?;
        let is_same = entry.open && is_serving(rest);
        is_same.then(|| Model { price: None, retires: None, ..entry.model.clone() })
    }

    fn guess(&self, name: &str) -> Option<Model> {
        // What follows may name a product of its own (`-highspeed`, `-cyber`, `-flashx`).
        let (entry, _) = self.start(name)?;
        Some(Model { known: false, price: None, retires: None, ..entry.model.clone() })
    }

    fn family(&self, name: &str) -> Option<Model> {
        let fitting = self.families.iter().filter(|(start, _)| name.starts_with(&***start));
        let (_, guess) = fitting.max_by_key(|(start, _)| start.len())?;
        Some(Model { known: false, ..guess.clone() })
    }
}

pub(super) fn built_in() -> &'static CatalogueFile {
    // A test checks that it is valid.
    static FILE: OnceLock<CatalogueFile> = OnceLock::new();
    FILE.get_or_init(|| {
        let text = include_str!("../../../../config/models.toml");
        let mut file = CatalogueFile::parse(text).unwrap_or_else(|_| CatalogueFile {
            models: HashMap::default(),
            families: HashMap::default(),
            aliases: HashMap::default(),
            date: None,
        });
        for (name, entry) in &mut file.models {
            entry.model.pictures = PictureRule::by_name(&[name.to_string()], entry.model.family);
        }
        file
    })
}

/// Looks for the exact name, then for its other spellings, then for its start.
pub(super) fn find(name: &str) -> Model {
    let file = built_in();
    // Most names are spelled as in the catalogue.
    if let Some(entry) = file.models.get(name) {
        return entry.model.clone();
    }
    if let Some(entry) = file.entry(name) {
        return entry.model.clone().with_pictures(&[name.to_owned()]);
    }
    let spellings = spellings(name);
    let entry = spellings.iter().skip(1).find_map(|name| Some((name, file.entry(name)?)));
    if let Some((spelling, entry)) = entry {
        let mut model = entry.model.clone();
        // What was fine-tuned costs more than its base.
        let is_tuned = spellings.iter().any(|name| name.starts_with("ft:"));
        if is_tuned && !spelling.starts_with("ft:") {
            model.price = None;
        }
        return model.with_pictures(&spellings);
    }
    let ways = [CatalogueFile::served, CatalogueFile::guess, CatalogueFile::family];
    let model = ways.iter().find_map(|way| spellings.iter().find_map(|name| way(file, name)));
    model.unwrap_or_else(Model::unknown).with_pictures(&spellings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_file_is_valid() {
        let file = CatalogueFile::parse(include_str!("../../../../config/models.toml")).unwrap();
        assert!(file.models.len() > 150, "{}", file.models.len());
        let models = file.models.iter().map(|(name, entry)| (name, &entry.model));
        for (name, model) in models.chain(&file.families) {
            assert_eq!(**name, *name.to_lowercase(), "looked up in lower case");
            assert!(model.window >= 1_024, "{name}");
            assert!(model.max_output >= 512, "{name}");
            let Some(price) = &model.price else { continue };
            assert!((0.0..=1000.0).contains(&price.output), "{name}");
            assert_eq!(price.impossible_number(), None, "{name}");
        }
        assert!(file.date.is_some(), "its comment names a date");
        for (alias, name) in &file.aliases {
            assert!(!file.models.contains_key(alias), "{alias} of {name} is an entry of its own");
        }
        let named: usize = file.models.values().map(|entry| entry.aliases.len()).sum();
        assert_eq!(named, file.aliases.len(), "an alias of two entries");
    }
}
