//! `plimsoll line`: one line about a session, for status bars.
//!
//! Claude Code passes a JSON object on standard input, whose `session_id` is the name that it gives the session. A status
//! bar has no place for errors: for Claude Code they are the line.

use std::io::Read as _;

use serde::Deserialize;

use super::print::{self, CliError};
use crate::dialect::percent::encoded;

/// Bytes of standard input that are read; Claude Code sends some 2 KiB.
const MOST_INPUT: u64 = 1 << 20;

/// Who shows the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LineFormat {
    /// Whoever likes.
    Plain,
    /// Claude Code's status line.
    ClaudeCode,
}

/// What Claude Code says of itself.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusInput {
    session_id: Option<String>,
}

/// Where the admin listener has the line of the session; of the newest one if none is named.
pub(super) fn path(format: LineFormat, session: Option<&str>) -> String {
    let mut id = session.map(str::to_owned);
    if format == LineFormat::ClaudeCode && id.is_none() {
        let mut input = Vec::new();
        // Without a name it is the newest session.
        let _ = std::io::stdin().lock().take(MOST_INPUT).read_to_end(&mut input);
        let status: StatusInput = serde_json::from_slice(&input).unwrap_or_default();
        id = status.session_id;
    }
    let query = id.map(|id| format!("session={}&", encoded(&id))).unwrap_or_default();
    format!("/api/v1/line?{query}")
}

/// What is printed in place of an error.
pub(super) fn printed(format: LineFormat, outcome: Result<(), CliError>) -> Result<(), CliError> {
    match outcome {
        Err(CliError(reason)) if format == LineFormat::ClaudeCode => {
            // What to do about it has no place in a status bar.
            print::line(&format!("plimsoll: {}", reason.split(". ").next().unwrap_or_default()));
            Ok(())
        }
        outcome => outcome,
    }
}
