//! Words for whoever typed the command.
//!
//! What is printed may quote a stranger, so all of it passes [`terminal`]: the one thing that a
//! terminal obeys is a [`TerminalControl`] of ours. A reader that went away (`plimsoll sessions | head -1`)
//! is no failure: what cannot be written is left out, and nothing panics.

use std::io::{self, IsTerminal as _, Write};

use crate::telemetry::terminal;

/// Why a command could not do its work: whose fault, and what to do.
#[derive(Debug, Clone)]
pub(super) struct CliError(pub String);

impl<E: std::error::Error> From<E> for CliError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Writes text to standard output.
pub(super) fn out(text: &str) {
    to_out(&terminal::visible(text));
}

/// Writes a line to standard output.
pub(super) fn line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes a value for machines to standard output.
pub(super) fn json(value: &impl serde::Serialize) {
    json_text(&format!("{}\n", serde_json::to_string_pretty(value).unwrap_or_default()));
}

/// Writes what is JSON already to standard output; answers whether anybody still reads it.
pub(super) fn json_text(json: &str) -> bool {
    to_out(&terminal::visible_json(json))
}

/// Says something to the person who typed the command, on standard error.
pub(super) fn note(text: &str) {
    error_text(&format!("plimsoll: {text}\n"));
}

/// Writes text to standard error.
pub(super) fn error_text(text: &str) {
    to_error(&terminal::visible(text));
}

/// Writes a line of JSON to standard error.
pub(super) fn error_json(json: &str) {
    to_error(&format!("{}\n", terminal::visible_json(json)));
}

/// Says what went wrong.
pub(super) fn trouble(trouble: &CliError) {
    note(trouble.0.trim_end());
}

/// What we have a terminal do.
#[derive(Clone, Copy, Debug)]
pub(super) enum TerminalControl {
    /// To the second screen, without a cursor.
    Enter,
    /// Back to the first, with one.
    Leave,
    /// To the first column of the first line.
    Home,
    /// Nothing stands behind here in this line.
    ClearLine,
    /// Nothing stands behind here on the screen.
    ClearBelow,
}

impl TerminalControl {
    fn sequence(self) -> &'static str {
        match self {
            TerminalControl::Enter => "\x1b[?1049h\x1b[?25l",
            TerminalControl::Leave => "\x1b[?25h\x1b[?1049l",
            TerminalControl::Home => "\x1b[H",
            TerminalControl::ClearLine => "\x1b[K",
            TerminalControl::ClearBelow => "\x1b[J",
        }
    }
}

/// Text with controls of ours between it.
#[derive(Debug, Default)]
pub(super) struct Screen(String);

impl Screen {
    pub(super) fn control(&mut self, control: TerminalControl) -> &mut Self {
        self.0.push_str(control.sequence());
        self
    }

    /// A line, no wider than `columns`.
    pub(super) fn line(&mut self, text: &str, columns: usize) -> &mut Self {
        self.0.extend(terminal::visible(text).chars().take(columns));
        self.control(TerminalControl::ClearLine).0.push('\n');
        self
    }

    /// Writes it to standard output.
    pub(super) fn show(&self) {
        to_out(&self.0);
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// What is being done, on standard error, where that is a terminal: one line, which is gone when this is
/// dropped. Whoever typed the command sees at once that it works.
#[derive(Debug)]
pub(super) struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    /// Shows what is begun.
    pub(super) fn begin(text: &str) -> Self {
        let progress = Self { is_shown: io::stderr().is_terminal() };
        progress.says(text);
        progress
    }

    /// Shows how far it is.
    pub(super) fn says(&self, text: &str) {
        if self.is_shown {
            to_error(&format!(
                "\r{}{}",
                terminal::visible(text),
                TerminalControl::ClearLine.sequence()
            ));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.says("");
    }
}

fn to_out(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

fn to_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
