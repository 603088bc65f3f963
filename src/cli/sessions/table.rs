//! Sessions as a table: a row for each, called as people call it, and one for each sub-agent and side call.
//!
//! Every number comes from the admin API.

use crate::admin::view::{SessionView, ThreadView};
use crate::cli::style::Style;
use crate::cli::table::{Cell, Column, Row, Table, cell, shortened};
use crate::cli::times;
use crate::context::budget::grouped;
use crate::context::{Millis, Outcome, SessionId, SessionNames, thread_label};
use crate::store::ledgers::is_unnamed;
use crate::telemetry::log::clean;

const COLUMNS: [Column; 8] = [
    Column { title: "SESSION", rank: 0, least: 26, is_number: false },
    Column { title: "LAST", rank: 2, least: 0, is_number: false },
    Column { title: "MODEL", rank: 3, least: 12, is_number: false },
    Column { title: "TURNS", rank: 5, least: 0, is_number: true },
    Column { title: "CONTEXT", rank: 0, least: 0, is_number: false },
    Column { title: "ERROR", rank: 6, least: 0, is_number: false },
    Column { title: "COST", rank: 1, least: 0, is_number: true },
    Column { title: "ENDED", rank: 7, least: 0, is_number: false },
];
/// Where there is less room, numbers are rounded.
const WIDE: usize = 120;
/// Clients choose names, which must not break a table.
const LONGEST_NAME: usize = 40;
const LONGEST_LABEL: usize = 24;

/// The table, for a place of this width.
pub(in crate::cli) fn table(
    sessions: &[SessionView],
    now: Millis,
    width: Option<usize>,
) -> Table<'static> {
    let is_wide = width.is_none_or(|width| width >= WIDE);
    let mut rows = Vec::new();
    for session in sessions {
        let main = session.names.main_thread.as_ref();
        let mut threads: Vec<&ThreadView> = session.threads.iter().collect();
        threads.sort_by_key(|thread| Some(&thread.id) != main);
        for (at, thread) in threads.into_iter().enumerate() {
            if at > 0 {
                let hints = thread.hints.as_deref();
                let named = thread.client_thread.as_deref();
                let label = thread_label(thread.purpose, hints, named, &thread.id);
                let label = format!("  ↳ {}", shortened(&label, LONGEST_LABEL));
                rows.push(Row::Cells(cells(cell(Style::Dim, label), None, thread, now, is_wide)));
                continue;
            }
            let name = name(&session.names, &session.session, session.began);
            let more = about(session, &name);
            let cost = Some(cost(Some(session.dollars), session.unpriced));
            rows.push(Row::Cells(cells(cell(Style::Bold, name), cost, thread, now, is_wide)));
            rows.extend(more.map(Row::Note));
        }
    }
    Table { columns: &COLUMNS, rows }
}

/// What a session is called: its title; else its agent, beginning and project; else as its client calls it.
pub(in crate::cli) fn name(names: &SessionNames, session: &SessionId, began: Millis) -> String {
    let began = times::when(began);
    // The version comes last of all, and the end is cut first.
    let agent = names.agent.as_ref().map(|agent| &*agent.name);
    // A hash tells people nothing.
    let project = names.project.as_deref().filter(|project| !project.starts_with('#'));
    let name = match (names.title.as_deref(), agent, project) {
        (Some(title), ..) => title.to_owned(),
        (None, Some(agent), Some(project)) => format!("{agent} · {began} · {project}"),
        (None, Some(one), None) | (None, None, Some(one)) => format!("{one} · {began}"),
        (None, None, None) if is_unnamed(session) => format!("session of {began}"),
        (None, None, None) => session.to_string(),
    };
    shortened(&name.chars().map(spelled).collect::<String>(), LONGEST_NAME)
}

fn spelled(letter: char) -> char {
    if letter.is_control() { '_' } else { letter }
}

/// What the name does not say: the id that commands take, the agent and project beside a title.
fn about(session: &SessionView, name: &str) -> Option<String> {
    let names = &session.names;
    let mut words = Vec::new();
    if session.session.as_str() != name {
        words.push(clean(session.session.as_str()).into_owned());
    }
    let agent = names.agent.as_ref();
    words.extend(
        agent
            .filter(|agent| agent.version.is_some() || names.title.is_some())
            .map(ToString::to_string),
    );
    if names.title.is_some() {
        words.extend(names.project.as_deref().map(str::to_owned));
    }
    if words.is_empty() { None } else { Some(words.join(" · ")) }
}

fn cells(
    name: Cell,
    cost: Option<String>,
    thread: &ThreadView,
    now: Millis,
    is_wide: bool,
) -> Vec<Cell> {
    let ended = match thread.outcome {
        Outcome::Complete => Style::Dim,
        Outcome::ClientLeft | Outcome::Interrupted => Style::Plain,
        _ => Style::Bad,
    };
    vec![
        name,
        cell(Style::Plain, age(now, thread.newest)),
        cell(Style::Plain, shortened(&clean(&thread.model), LONGEST_NAME)),
        cell(Style::Plain, thread.turns.to_string()),
        fill(thread, is_wide),
        cell(Style::Plain, error(thread)),
        cell(Style::Plain, cost.unwrap_or_default()),
        cell(ended, thread.outcome.as_ref()),
    ]
}

/// `52,100 / 200,000 (26%)`, or `26% of 200k`; with `?` behind a window that is a guess.
fn fill(thread: &ThreadView, is_wide: bool) -> Cell {
    let Some(context) = &thread.context else { return cell(Style::Plain, "unknown") };
    let style = Style::of_fill(context.percent);
    let percent = format!("{:.0}%", context.percent);
    let guess = if context.window_guessed { "?" } else { "" };
    if !is_wide {
        return vec![
            (style, percent),
            (Style::Plain, format!(" of {}{guess}", brief(context.window))),
        ];
    }
    let numbers = format!("{} / {}{guess} (", grouped(context.total), grouped(context.window));
    vec![(Style::Plain, numbers), (style, percent), (Style::Plain, ")".into())]
}

/// `200k`, `1M`.
pub(in crate::cli) fn brief(tokens: u64) -> String {
    match tokens {
        1_000_000.. => format!("{:.1}M", tokens as f64 / 1e6).replace(".0M", "M"),
        1_000.. => format!("{:.0}k", tokens as f64 / 1e3),
        _ => tokens.to_string(),
    }
}

/// `$0.42`; with `+ ?` if the price of some calls is not known, `?` if that of none is.
pub(in crate::cli) fn cost(dollars: Option<f64>, unpriced: usize) -> String {
    match (dollars.unwrap_or(0.0), unpriced) {
        (dollars, 0) => money(dollars),
        (0.0, _) => "?".to_owned(),
        (dollars, _) => format!("{} + ?", money(dollars)),
    }
}

/// Dollars and cents; what is less than a cent, in more digits.
fn money(dollars: f64) -> String {
    match dollars {
        0.000_05..0.01 => format!("${dollars:.4}"),
        _ => format!("${dollars:.2}"),
    }
}

/// `+0.6%`, `exact`
pub(in crate::cli) fn share(ratio: f64) -> String {
    match ratio * 100.0 {
        0.0 => "exact".to_owned(),
        small if small.abs() < 0.05 => "<0.1%".to_owned(),
        percent => format!("{percent:+.1}%"),
    }
}

/// `+310 (+0.6%)`
fn error(thread: &ThreadView) -> String {
    let Some(measured) = thread.measured else { return "–".to_owned() };
    match (measured.error, measured.error_ratio) {
        (Some(0), _) => "exact".to_owned(),
        (Some(error), Some(ratio)) => {
            let sign = if error < 0 { '-' } else { '+' };
            format!("{sign}{} ({})", grouped(error.unsigned_abs()), share(ratio))
        }
        _ => "–".to_owned(),
    }
}

/// How long ago, in the largest unit that fits.
pub(in crate::cli) fn age(now: Millis, then: Millis) -> String {
    let seconds = now.saturating_sub(then) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::agent::Agent;

    #[test]
    fn ages_have_one_unit() {
        let second = 1000;
        for (ms, text) in [
            (0, "0 s"),
            (59 * second, "59 s"),
            (60 * second, "1 min"),
            (3600 * second, "1 h"),
            (49 * 3600 * second, "2 d"),
        ] {
            assert_eq!(age(ms, 0), text);
        }
        assert_eq!(age(0, 5_000), "0 s", "clocks differ");
    }

    #[test]
    fn cost_says_what_it_lacks() {
        assert_eq!(cost(Some(0.424), 0), "$0.42");
        assert_eq!(cost(Some(0.424), 2), "$0.42 + ?");
        assert_eq!(cost(Some(0.0004), 0), "$0.0004");
        assert_eq!(cost(Some(0.0), 0), "$0.00");
        assert_eq!(cost(None, 2), "?");
    }

    #[test]
    fn numbers_are_brief() {
        for (tokens, text) in
            [(999, "999"), (200_000, "200k"), (1_000_000, "1M"), (1_050_000, "1.1M")]
        {
            assert_eq!(brief(tokens), text);
        }
    }

    /// In UTC; nearly everywhere it is the same day.
    const NOON: Millis = 1_000_036_800_000;

    #[test]
    fn sessions_have_names_for_people() {
        let mut names = SessionNames::default();
        assert_eq!(name(&names, &"a\nb".into(), 0), "a_b");
        assert_eq!(name(&names, &"x".repeat(90).as_str().into(), 0).chars().count(), LONGEST_NAME);
        assert!(name(&names, &"line-0123".into(), NOON).starts_with("session of Sep 09 "));
        names.agent = Some(Agent { name: "pi".into(), version: None });
        assert!(name(&names, &"line-0123".into(), NOON).starts_with("pi · Sep 09 "));
        names.agent = Some(Agent { name: "Claude Code".into(), version: Some("2.1.332".into()) });
        names.project = Some("site".into());
        let full = name(&names, &"line-0123".into(), NOON);
        assert!(full.starts_with("Claude Code · Sep 09 "), "{full}");
        assert!(full.ends_with(" · site"), "{full}");
        names.title = Some("Fix the build".into());
        assert_eq!(name(&names, &"line-0123".into(), NOON), "Fix the build");
    }
}
