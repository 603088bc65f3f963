//! Prints text for whoever typed the command.
//!
//! Printed text may quote strangers, so all of it passes through [`terminal`]: a terminal obeys only our own
//! [`TerminalControl`]. A reader that went away (`plimsoll sessions | head -1`) is not an error: text that
//! cannot be written is dropped, and nothing panics.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::style::{self, StyledLine};
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

/// Prints why a command failed, on standard error; as JSON for those who asked for that.
pub(super) fn error(error: &CliError, as_json: bool) {
    let message = error.0.trim_end();
    match as_json {
        true => error_json(&serde_json::json!({"error": {"message": message}}).to_string()),
        false => note(message),
    }
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

/// Prints lines, in colour if standard output has it.
pub(super) fn styled(lines: &[StyledLine]) {
    let has_colour = style::has_colour();
    let mut text = String::new();
    for line in lines {
        text += &line.rendered(usize::MAX, has_colour);
        text.push('\n');
    }
    to_out(&text);
}

pub(super) fn control(control: TerminalControl) {
    to_out(control.sequence());
}

/// Replaces what the screen shows: lines no wider than it, and no more than it has.
pub(super) fn picture(lines: &[StyledLine], columns: usize, has_colour: bool) {
    let mut text = String::from(TerminalControl::Home.sequence());
    for (at, line) in lines.iter().enumerate() {
        // After the last line, a newline would scroll.
        if at > 0 {
            text.push('\n');
        }
        text += &line.rendered(columns, has_colour);
        text += TerminalControl::ClearLine.sequence();
    }
    text += TerminalControl::ClearBelow.sequence();
    to_out(&text);
}

/// How wide standard output is, in characters; `None` if it is no terminal.
pub(super) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(columns, _)| columns.0.into())
}

/// How long a fast command shows no progress, and how often progress is shown that may come any number of times.
const SILENT: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(100);

/// The progress of a command, on standard error if that is a terminal: one line, which disappears when this
/// is dropped. So the user sees at once that the command works.
#[derive(Debug)]
pub(super) struct ProgressLine {
    is_shown: bool,
    /// When the next step is shown.
    next_step: Cell<Instant>,
}

impl ProgressLine {
    /// Shows the first text.
    pub(super) fn begin(text: &str) -> Self {
        let progress = Self::begin_silent();
        progress.show(text);
        progress
    }

    /// Shows nothing before a second has passed, and only steps.
    pub(super) fn begin_silent() -> Self {
        let next_step = Cell::new(Instant::now() + SILENT);
        Self { is_shown: io::stderr().is_terminal(), next_step }
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

    /// Says how many of all are done, if the last step was shown a while ago.
    pub(super) fn step(&self, what: &str, done: usize, all: usize) {
        let now = Instant::now();
        if self.is_shown && now >= self.next_step.get() {
            self.next_step.set(now + STEP);
            self.show(&format!("{what} {done} of {all}"));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.show("");
    }
}

/// Whether something could not be written to standard output.
static READER_LEFT: AtomicBool = AtomicBool::new(false);

/// Whether somebody still reads standard output, as far as the last write showed.
pub(super) fn is_read() -> bool {
    !READER_LEFT.load(Ordering::Relaxed)
}

fn to_out(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    let is_written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok();
    if !is_written {
        READER_LEFT.store(true, Ordering::Relaxed);
    }
    is_written
}

fn to_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
