//! Turns as the rows of a statement: JSON, whose members are the columns.
//!
//! Holds every value to what the database can store: numbers up to its largest, text without NUL.

use std::borrow::Cow;

use serde::Serialize;

use super::queue::QueuedTurn;
use crate::store::turn_columns::{TextColumn, TurnColumns};

/// A turn; the members are named as the columns of `database::TABLES`.
#[derive(Serialize)]
struct TurnRow<'t> {
    session: &'t str,
    tenant: &'t str,
    /// Hex digits.
    id: String,
    at: i64,
    ended: Option<i64>,
    thread: Option<Cow<'t, str>>,
    request: Option<Cow<'t, str>>,
    upstream: Option<Cow<'t, str>>,
    model: Option<Cow<'t, str>>,
    purpose: Option<Cow<'t, str>>,
    outcome: Option<Cow<'t, str>>,
    method: Option<Cow<'t, str>>,
    estimated: Option<i64>,
    input: Option<i64>,
    lower_bound: bool,
    output: Option<i64>,
    reasoning: Option<i64>,
    cache_read: Option<i64>,
    cache_write: Option<i64>,
    window: Option<i64>,
    dollars: Option<f64>,
}

/// The rows of these turns, as a JSON array.
///
/// # Errors
/// If they cannot be written as JSON.
pub(super) fn rows(turns: &[QueuedTurn]) -> serde_json::Result<String> {
    let columns: Vec<TurnColumns<'_>> =
        turns.iter().map(|turn| TurnColumns::read(&turn.value)).collect();
    let rows: Vec<TurnRow<'_>> =
        turns.iter().zip(&columns).map(|(turn, columns)| TurnRow::new(turn, columns)).collect();
    serde_json::to_string(&rows)
}

impl<'t> TurnRow<'t> {
    fn new(turn: &'t QueuedTurn, columns: &'t TurnColumns<'t>) -> Self {
        let usage = columns.usage.as_ref();
        let estimate = columns.estimate.as_ref();
        Self {
            session: turn.scope.session.as_str(),
            tenant: turn.scope.tenant.as_str(),
            id: format!("{:032x}", turn.key),
            at: capped(turn.at),
            ended: number(columns.ended),
            thread: text(columns.position.as_ref().and_then(|position| position.thread.as_ref())),
            request: text(columns.exchange.as_ref()),
            upstream: text(columns.upstream.as_ref()),
            model: text(columns.model.as_ref()),
            purpose: text(columns.purpose.as_ref()),
            outcome: text(columns.outcome.as_ref()),
            method: text(estimate.and_then(|estimate| estimate.method.as_ref())),
            estimated: number(estimate.and_then(|estimate| estimate.tokens)),
            input: number(usage.and_then(|usage| usage.input)),
            lower_bound: usage.is_some_and(|usage| usage.lower_bound),
            output: number(usage.and_then(|usage| usage.output)),
            reasoning: number(usage.and_then(|usage| usage.reasoning)),
            cache_read: number(usage.and_then(|usage| usage.cache_read)),
            cache_write: number(usage.and_then(|usage| usage.cache_write)),
            window: number(columns.window),
            dollars: columns.dollars,
        }
    }
}

fn text<'t>(column: Option<&'t TextColumn<'t>>) -> Option<Cow<'t, str>> {
    let text: &str = column?;
    // The one character that no text in the database may have.
    Some(if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() })
}

fn number(count: Option<u64>) -> Option<i64> {
    count.map(capped)
}

fn capped(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
