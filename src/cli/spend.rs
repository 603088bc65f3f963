//! `plimsoll spend`: who spent what, as a table that fits the terminal, as comma-separated values or as JSON.
//!
//! Every number comes from the admin API.

use std::time::Duration;

use super::admin_client::AdminClient;
use super::print::{self, CliError, ProgressLine};
use super::sessions::table::cost;
use super::style::{Style, StyledLine};
use super::table::{Cell, Column, Row, Table, cell};
use super::{sessions, times};
use crate::admin::spend::{SpendBy, SpendLine, SpendPage, shown};
use crate::clock::wall;
use crate::context::Millis;
use crate::context::budget::grouped;
use crate::store::ledgers::is_unnamed;

/// The name may be shortened to so much.
const LEAST_NAME: usize = 14;

pub(super) async fn spend(
    client: &AdminClient,
    by: SpendBy,
    since: Duration,
    as_csv: bool,
    as_json: bool,
) -> Result<(), CliError> {
    let since = wall().saturating_sub(since.as_millis() as Millis);
    let path = format!("/api/v1/spend?by={}&since={since}&", by.as_ref());
    if as_json && !as_csv {
        return sessions::show(client, &path, true).await;
    }
    let progress = ProgressLine::begin("reading the store");
    let page: SpendPage = client.read(&client.text(&format!("{path}format=json")).await?)?;
    drop(progress);
    if as_csv {
        print::out(&page.csv());
        return Ok(());
    }
    print::styled(&table(&page, print::width()));
    if page.total.unpriced > 0 {
        print::line(&format!(
            "The price of {} calls is not known: `plimsoll models --missing`.",
            grouped(page.total.unpriced)
        ));
    }
    let sessions = if page.sessions == 1 { "session" } else { "sessions" };
    let since = times::full(page.since);
    print::line(&format!("Since {since}, {} {sessions}.", grouped(page.sessions)));
    Ok(())
}

fn table(page: &SpendPage, width: Option<usize>) -> Vec<StyledLine> {
    let title = match page.by {
        SpendBy::Day => "DAY, UTC".to_owned(),
        by => by.as_ref().to_uppercase(),
    };
    let column = |title, rank, least, is_number| Column { title, rank, least, is_number };
    let mut columns = vec![
        column(&title, 0, LEAST_NAME, false),
        column("COST", 0, 0, true),
        column("CALLS", 2, 0, true),
        column("INPUT", 3, 0, true),
        column("CACHED", 1, 0, true),
        column("OUTPUT", 4, 0, true),
    ];
    let has_tools = page.lines.iter().any(|line| line.defined > 0 || line.called > 0);
    if has_tools {
        columns.extend([column("DEFINED", 6, 0, true), column("CALLED", 5, 0, true)]);
    }
    let mut rows = Vec::new();
    for line in page.lines.iter().chain([&page.total]) {
        rows.push(Row::Cells(cells(page.by, line, has_tools)));
        rows.extend(note(page.by, line).map(Row::Note));
    }
    Table { columns: &columns, rows }.lines(width)
}

fn cells(by: SpendBy, line: &SpendLine, has_tools: bool) -> Vec<Cell> {
    let cached = line.cache_read as f64 * 100.0 / line.input.max(1) as f64;
    let mut texts = vec![
        called(by, line),
        cost(Some(line.dollars), line.unpriced as usize),
        grouped(line.calls),
        grouped(line.input),
        format!("{cached:.0}%"),
        grouped(line.output),
    ];
    if has_tools {
        // What is no tool's has neither.
        let is_tool = line.defined > 0 || line.called > 0;
        let count = |count| if is_tool { grouped(count) } else { String::new() };
        texts.extend([count(line.defined), count(line.called)]);
    }
    texts.into_iter().map(|text| cell(Style::Plain, text)).collect()
}

/// What people call it.
fn called(by: SpendBy, line: &SpendLine) -> String {
    let began = line.began.map(times::when);
    match (&line.label, began) {
        (Some(label), Some(began)) => format!("{} · {began}", shown(label)),
        (None, Some(began)) if by == SpendBy::Session && is_unnamed(&line.name.as_str().into()) => {
            format!("session of {began}")
        }
        (None, Some(began)) if by == SpendBy::Turn => format!("turn of {began}"),
        _ => shown(&line.name).into(),
    }
}

/// The id, if it is called otherwise.
fn note(by: SpendBy, line: &SpendLine) -> Option<String> {
    let name = shown(&line.name);
    if *called(by, line) == *name {
        return None;
    }
    match by {
        // Its time stands before it.
        SpendBy::Turn => name.rsplit(' ').next().map(str::to_owned),
        _ => Some(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In UTC; nearly everywhere it is the same day.
    const NOON: Millis = 1_000_036_800_000;

    fn line(name: &str, label: Option<&str>, began: Option<Millis>) -> SpendLine {
        SpendLine { name: name.into(), label: label.map(Into::into), began, ..SpendLine::default() }
    }

    #[test]
    fn ids_have_names_for_people() {
        for (by, line, name, id) in [
            (
                SpendBy::Session,
                line("01a2-22", Some("Codex · shop"), Some(NOON)),
                "Codex · shop · Sep 09",
                Some("01a2-22"),
            ),
            (
                SpendBy::Session,
                line("line-0123", None, Some(NOON)),
                "session of Sep 09",
                Some("line-0123"),
            ),
            (SpendBy::Session, line("mine", None, Some(NOON)), "mine", None),
            (
                SpendBy::Turn,
                line("2001-09-09 12:00 2d92", None, Some(NOON)),
                "turn of Sep 09",
                Some("2d92"),
            ),
            (SpendBy::Agent, line("Gemini CLI", None, None), "Gemini CLI", None),
        ] {
            let called = called(by, &line);
            assert!(called.starts_with(name), "{called}");
            assert_eq!(note(by, &line).as_deref(), id);
        }
    }

    /// The columns that are least wanted go first, and every call without a price is seen.
    #[test]
    fn table_fits_phone() {
        let tool = SpendLine { defined: 4, called: 3, calls: 4, ..line("bash", None, None) };
        let unpriced = SpendLine { unpriced: 2, calls: 1_000_000, ..line("(rest)", None, None) };
        let page =
            SpendPage { by: SpendBy::Tool, lines: vec![tool, unpriced], ..SpendPage::default() };
        let shown = |width| -> Vec<String> {
            table(&page, Some(width)).iter().map(|line| line.rendered(width, false)).collect()
        };
        let [narrow, wide] = [shown(40), shown(80)];
        assert_eq!(narrow[0], "TOOL     COST      CALLS  INPUT  CACHED");
        assert_eq!(narrow[2], "(rest)      ?  1,000,000      0      0%");
        assert!(wide[0].ends_with("DEFINED  CALLED"), "{wide:?}");
    }
}
