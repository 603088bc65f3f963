//! Words for whoever typed the command.
//!
//! A reader that went away (`plimsoll sessions | head -1`) is no failure: what cannot be written is
//! left out, and nothing panics.

use std::io::{self, Write};

/// Why a command could not do its work: whose fault, and what to do.
#[derive(Debug, Clone)]
pub(super) struct Trouble(pub String);

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Writes text to standard output.
pub(super) fn out(text: &str) {
    tell(text);
}

/// Writes text to standard output; answers whether anybody still reads it.
pub(super) fn tell(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Writes a line to standard output.
pub(super) fn line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes a value for machines to standard output.
pub(super) fn json(value: &impl serde::Serialize) {
    line(&serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Says something to the person who typed the command, on standard error.
pub(super) fn note(text: &str) {
    error_line(&format!("plimsoll: {text}"));
}

/// Writes a line to standard error.
pub(super) fn error_line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says what went wrong.
pub(super) fn trouble(trouble: &Trouble) {
    note(trouble.0.trim_end());
}
