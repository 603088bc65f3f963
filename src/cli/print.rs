//! Prints text for whoever typed the command.
//!
//! Printed text may quote strangers, so all of it passes through [`terminal`]: a terminal obeys only our own
//! [`TerminalControl`]. A reader that went away (`plimsoll sessions | head -1`) is not an error: text that
//! cannot be written is dropped, and nothing panics.

use std::io::{self, IsTerminal as _, Write};

use crate::telemetry::terminal;

/// Why a command failed: whose fault it is, and what to do.
#[derive(Debug, Clone)]
pub(super) struct CliError(pub String);

impl<E: std::error::Error> From<E> for CliError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(super) fn out(text: &str) {
    to_out(&terminal::visible(text));
}

pub(super) fn line(text: &str) {
    out(&format!("{text}\n"));
}

pub(super) fn json(value: &impl serde::Serialize) {
    json_text(&format!("{}\n", serde_json::to_string_pretty(value).unwrap_or_default()));
}

/// Writes JSON text to standard output; returns whether somebody still reads it.
pub(super) fn json_text(json: &str) -> bool {
    to_out(&terminal::visible_json(json))
}

/// Prints a message for the person who typed the command, on standard error.
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

pub(super) fn error(error: &CliError) {
    note(error.0.trim_end());
}

/// The terminal controls that we use.
#[derive(Clone, Copy, Debug)]
pub(super) enum TerminalControl {
    /// Switches to the alternate screen and hides the cursor.
    Enter,
    /// Switches back to the normal screen and shows the cursor.
    Leave,
    /// Moves to the first column of the first line.
    Home,
    /// Clears the rest of the line.
    ClearLine,
    /// Clears the rest of the screen.
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

/// Text with our own controls in between.
#[derive(Debug, Default)]
pub(super) struct Screen(String);

impl Screen {
    pub(super) fn control(&mut self, control: TerminalControl) -> &mut Self {
        self.0.push_str(control.sequence());
        self
    }

    /// Adds a line, no wider than `columns`.
    pub(super) fn line(&mut self, text: &str, columns: usize) -> &mut Self {
        self.0.extend(terminal::visible(text).chars().take(columns));
        self.control(TerminalControl::ClearLine).0.push('\n');
        self
    }

    pub(super) fn show(&self) {
        to_out(&self.0);
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// The progress of a command, on standard error if that is a terminal: one line, which disappears when this
/// is dropped. So the user sees at once that the command works.
#[derive(Debug)]
pub(super) struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    /// Shows the first text.
    pub(super) fn begin(text: &str) -> Self {
        let progress = Self { is_shown: io::stderr().is_terminal() };
        progress.show(text);
        progress
    }

    /// Replaces the text.
    pub(super) fn show(&self, text: &str) {
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
        self.show("");
    }
}

fn to_out(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

fn to_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
