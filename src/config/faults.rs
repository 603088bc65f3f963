//! What is wrong with a configuration: where, whose fault, and what to do.
//!
//! Faults are collected, not thrown: a person who mends a file wants all of them at once. No text
//! here ever quotes a secret.

use std::fmt;
use std::path::PathBuf;

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Variable(name) => write!(f, "environment variable {name}"),
            Place::Flag(name) => write!(f, "flag {name}"),
            Place::Preset(name) => write!(f, "preset {name}"),
            Place::Default => f.write_str("default"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// The key it is about, dotted; empty where it is about the text itself.
    pub key: String,
    /// What is wrong; whose fault it is follows from [`Fault::whose`].
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl Fault {
    /// Whose fault it is, in words.
    pub fn whose(&self) -> &'static str {
        match self.place {
            Place::Line(..) => "the configuration file",
            Place::File(_) => "the file or its permissions",
            Place::Variable(_) => "the environment",
            Place::Flag(_) => "the command line",
            Place::Preset(_) => "the keys set beside the preset",
            Place::Default => "the surroundings",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}. {}", self.what, self.todo)
    }
}

/// Everything that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    pub(super) fn add(
        &mut self,
        place: Place,
        key: &str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.0.push(Fault { place, key: key.to_owned(), what: what.into(), todo: todo.into() });
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of the file, then of the environment, then of the flags.
    pub(super) fn sorted(mut self) -> Self {
        self.0.sort_by_key(|fault| match &fault.place {
            Place::File(_) => (0, 0),
            Place::Line(_, line) => (1, *line),
            Place::Variable(_) => (2, 0),
            Place::Flag(_) => (3, 0),
            Place::Preset(_) | Place::Default => (4, 0),
        });
        self
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.len();
        let noun = if number == 1 { "fault" } else { "faults" };
        writeln!(f, "{number} {noun} in the configuration:")?;
        for fault in &self.0 {
            writeln!(f, "  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// The known name nearest to `said`, if any is near enough to be what was meant.
pub fn nearest<'n>(said: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    /// Below this, two names have nothing in common.
    const NEAR: f64 = 0.72;
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&said.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(near, _)| *near >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
