//! The faults of a configuration: where they are, whose fault they are, and what to do.
//!
//! Faults are collected, because a person who corrects a file wants to see all of them at once. No text here
//! ever quotes a secret.

use std::fmt;
use std::path::PathBuf;

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigPlace {
    /// A line of a file, counted from 1.
    Line(PathBuf, usize),
    /// A whole file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag on the command line.
    Flag(String),
    /// A preset, by its name.
    Preset(&'static str),
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigPlace::Line(path, line) => write!(f, "{}:{line}", path.display()),
            ConfigPlace::File(path) => write!(f, "{}", path.display()),
            ConfigPlace::Variable(name) => write!(f, "environment variable {name}"),
            ConfigPlace::Flag(name) => write!(f, "flag {name}"),
            ConfigPlace::Preset(name) => write!(f, "preset {name}"),
            ConfigPlace::Default => f.write_str("default"),
        }
    }
}

/// What is wrong with the value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the value was set.
    pub place: ConfigPlace,
    /// The dotted key that it is about; empty if it is about the text itself.
    pub key: String,
    /// What is wrong; [`ConfigError::whose`] says whose fault it is.
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl ConfigError {
    /// Whose fault it is, as text.
    pub(crate) fn whose(&self) -> &'static str {
        match self.place {
            ConfigPlace::Line(..) => "the configuration file",
            ConfigPlace::File(_) => "the file or its permissions",
            ConfigPlace::Variable(_) => "the environment",
            ConfigPlace::Flag(_) => "the command line",
            ConfigPlace::Preset(_) => "the keys set in addition to the preset",
            ConfigPlace::Default => "this machine",
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}. {}", self.what, self.todo)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn add(
        &mut self,
        place: ConfigPlace,
        key: &str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) {
        let (key, what, todo) = (key.to_owned(), what.into(), todo.into());
        let error = ConfigError { place, key, what, todo };
        // Several settings may come from one value.
        if !self.0.contains(&error) {
            self.0.push(error);
        }
    }

    /// Whether there is no fault.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sorted in the order of the file, then the environment, then the flags.
    pub(super) fn sorted(mut self) -> Self {
        self.0.sort_by_key(|fault| match &fault.place {
            ConfigPlace::File(_) => (0, 0),
            ConfigPlace::Line(_, line) => (1, *line),
            ConfigPlace::Variable(_) => (2, 0),
            ConfigPlace::Flag(_) => (3, 0),
            ConfigPlace::Preset(_) | ConfigPlace::Default => (4, 0),
        });
        self
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.len();
        let noun = if number == 1 { "error" } else { "errors" };
        writeln!(f, "{number} {noun} in the configuration:")?;
        for fault in &self.0 {
            writeln!(f, "  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The known name nearest to `raw`, if one is near enough to be what was meant.
pub(crate) fn nearest<'n>(raw: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    /// Below this similarity, two names are unrelated.
    const NEAR: f64 = 0.72;
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&raw.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(near, _)| *near >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
