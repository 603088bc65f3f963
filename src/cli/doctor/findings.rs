//! The lines of `plimsoll doctor`, in the order in which they are found.
//!
//! Knows nothing of what is looked at.

use serde::Serialize;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Worth a look; everything works.
    Look,
    Fault,
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub level: Level,
    pub about: String,
    pub text: String,
}

/// All lines so far.
#[derive(Default, Serialize)]
pub(super) struct Findings(pub Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, level: Level, about: &str, text: impl Into<String>) {
        self.0.push(Finding { level, about: about.to_owned(), text: text.into() });
    }
}
