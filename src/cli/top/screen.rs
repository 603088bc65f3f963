//! What `top` shows, and what keys do: a list that is sorted and filtered, one session, or the help.
//!
//! Pure: keys and answers in, lines out. The server sorts and filters.

use super::keys::Key;
use crate::admin::view::SessionLine;
use crate::cli::sessions::table::{age, brief, cost, name, share};
use crate::cli::style::{Style, StyledLine, gauge, with_gauge};
use crate::cli::table::{Cell, Column, Row, Table, cell};
use crate::context::Millis;
use crate::dialect::percent::encoded;

/// How large a terminal is, in characters.
#[derive(Clone, Copy)]
pub(super) struct ScreenSize {
    pub columns: usize,
    pub rows: usize,
}

/// How the list can be sorted: by the API's name, and in words. Names go from a, numbers from the largest.
const ORDERS: [(&str, &str); 6] = [
    ("used", "last used"),
    ("dollars", "cost"),
    ("fill", "context"),
    ("error", "error"),
    ("turns", "turns"),
    ("client", "agent"),
];

const COLUMNS: [Column; 8] = [
    Column { title: "SESSION", rank: 0, least: 26, is_number: false },
    Column { title: "CONTEXT", rank: 0, least: 0, is_number: false },
    Column { title: "COST", rank: 1, least: 0, is_number: true },
    Column { title: "NEXT CALL", rank: 4, least: 0, is_number: true },
    Column { title: "ERROR", rank: 5, least: 0, is_number: true },
    Column { title: "TURNS", rank: 6, least: 0, is_number: true },
    Column { title: "MODEL", rank: 3, least: 12, is_number: false },
    Column { title: "LAST", rank: 2, least: 0, is_number: true },
];

const GAUGE: usize = 12;
/// Lines around the list: head, order, an empty one, titles, keys.
const FRAME: usize = 5;
const KEYS: &str = "q quit  ? help  ↑↓ choose  enter open  / filter  s sort  r reverse";
const HELP: &str = "\
↑ ↓ k j       choose a session
enter         open it: how full its context is, and with what
esc           back to the list; in the list, no filter
/             filter by agent, title, project, model or id; enter ends typing
s             sort by the next column: last used, cost, context, error,
              turns, agent
r             the other way round
q, Ctrl-C     quit

The line under CONTEXT fills as the model's window does: green, yellow from
80 %, red when it is full. TURNS counts the calls of sub-agents, too.
NEXT CALL is what the input of the next call will cost.
ERROR is how far the last estimate was off.";

/// What is open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum OpenView {
    #[default]
    List,
    Help,
    /// A session: its id, and the first line that is shown.
    Session(String, usize),
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TopAction {
    Draw,
    /// Other data.
    Load,
    Quit,
}

/// Everything that is shown.
#[derive(Default)]
pub(super) struct Top {
    pub view: OpenView,
    pub sessions: Vec<SessionLine>,
    /// About the server: one line.
    pub head: String,
    pub failure: Option<String>,
    /// The text of the session that is open.
    pub session_text: String,
    order: usize,
    is_reversed: bool,
    filter: String,
    is_typing: bool,
    chosen: usize,
    has_keys: bool,
}

impl Top {
    pub(super) fn new(has_keys: bool) -> Self {
        Self { has_keys, ..Self::default() }
    }

    /// Whether there is somebody to press keys.
    pub(super) fn set_keys(&mut self, has_keys: bool) {
        self.has_keys = has_keys;
    }

    /// The query of the list that is wanted.
    pub(super) fn query(&self, limit: usize) -> String {
        let sort = ORDERS[self.order].0;
        let mut query = format!("details=true&limit={limit}&sort={sort}");
        if self.is_reversed {
            query += if sort == "client" { "&order=desc" } else { "&order=asc" };
        }
        if !self.filter.trim().is_empty() {
            query += &format!("&search={}", encoded(self.filter.trim()));
        }
        query
    }

    /// Shows other sessions; the same one stays chosen.
    pub(super) fn set_sessions(&mut self, sessions: Vec<SessionLine>) {
        let chosen = self.sessions.get(self.chosen).map(|line| line.id.clone());
        let index = sessions.iter().position(|line| Some(&line.id) == chosen.as_ref());
        self.chosen = index.unwrap_or(self.chosen).min(sessions.len().saturating_sub(1));
        self.sessions = sessions;
    }

    pub(super) fn press(&mut self, key: Key) -> TopAction {
        if self.is_typing {
            return self.type_filter(key);
        }
        match (key, &mut self.view) {
            (Key::Letter('q' | 'Q'), _) => return TopAction::Quit,
            (Key::Letter('?'), _) => self.view = OpenView::Help,
            (Key::Escape | Key::Backspace, OpenView::List) if !self.filter.is_empty() => {
                self.filter.clear();
                return TopAction::Load;
            }
            (Key::Escape | Key::Backspace, _) => self.view = OpenView::List,
            (key, OpenView::Session(_, from)) => *from = moved(*from, key),
            (_, OpenView::Help) => self.view = OpenView::List,
            (Key::Enter, OpenView::List) => {
                let Some(line) = self.sessions.get(self.chosen) else { return TopAction::Draw };
                self.view = OpenView::Session(line.id.clone(), 0);
                self.session_text.clear();
                return TopAction::Load;
            }
            (Key::Letter('/'), OpenView::List) => self.is_typing = true,
            (Key::Letter('s'), OpenView::List) => {
                self.order = (self.order + 1) % ORDERS.len();
                self.is_reversed = false;
                self.chosen = 0;
                return TopAction::Load;
            }
            (Key::Letter('r'), OpenView::List) => {
                self.is_reversed = !self.is_reversed;
                self.chosen = 0;
                return TopAction::Load;
            }
            (key, OpenView::List) => {
                self.chosen = moved(self.chosen, key).min(self.sessions.len().saturating_sub(1));
            }
        }
        TopAction::Draw
    }

    fn type_filter(&mut self, key: Key) -> TopAction {
        match key {
            Key::Letter(letter) => self.filter.push(letter),
            Key::Backspace => _ = self.filter.pop(),
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            Key::Enter => {
                self.is_typing = false;
                return TopAction::Draw;
            }
            _ => return TopAction::Draw,
        }
        TopAction::Load
    }

    /// Everything as lines, as many as fit.
    pub(super) fn lines(&self, size: ScreenSize, now: Millis) -> Vec<StyledLine> {
        let mut lines = vec![StyledLine::new(Style::Bold, self.head.as_str())];
        if let Some(failure) = &self.failure {
            lines.push(StyledLine::new(Style::Bad, failure.as_str()));
        }
        match &self.view {
            OpenView::List => self.add_list(&mut lines, size, now),
            OpenView::Help => {
                lines.push(StyledLine::default());
                lines.extend(HELP.lines().map(|line| StyledLine::new(Style::Plain, line)));
            }
            OpenView::Session(id, from) => {
                let line = self.sessions.iter().find(|line| line.id == *id);
                let title = match line {
                    Some(line) => name(&line.details.names, &line.session, line.began),
                    None => id.clone(),
                };
                lines.push(StyledLine::new(Style::Bold, title));
                lines.push(StyledLine::default());
                let text = with_gauge(&self.session_text);
                // The end stays in sight.
                let from = (*from).min(text.len().saturating_sub(1));
                lines.extend(text.into_iter().skip(from));
            }
        }
        lines.truncate(size.rows.saturating_sub(2));
        lines.resize(size.rows.saturating_sub(1), StyledLine::default());
        lines.push(StyledLine::new(Style::Dim, self.keys()));
        lines
    }

    fn keys(&self) -> &'static str {
        match (&self.view, self.has_keys) {
            (_, false) => "Ctrl-C ends",
            (OpenView::List, true) if self.is_typing => "enter keeps the filter  esc drops it",
            (OpenView::List, true) => KEYS,
            (_, true) => "q quit  esc back  ↑↓ scroll",
        }
    }

    fn add_list(&self, lines: &mut Vec<StyledLine>, size: ScreenSize, now: Millis) {
        let arrow = if self.is_reversed { "↑" } else { "↓" };
        let mut order = format!("by {} {arrow}", ORDERS[self.order].1);
        if self.is_typing || !self.filter.is_empty() {
            let cursor = if self.is_typing { "▏" } else { "" };
            order += &format!("   filter: {}{cursor}", self.filter);
        }
        lines.push(StyledLine::new(Style::Dim, order));
        lines.push(StyledLine::default());
        let height = size.rows.saturating_sub(FRAME).max(1);
        let top_line = (self.chosen + 1).saturating_sub(height);
        let mut listed = table(&self.sessions, now).lines(Some(size.columns));
        let is_empty = self.sessions.is_empty();
        if let Some(row) = listed.get_mut(self.chosen + 1) {
            row.is_chosen = self.has_keys;
        }
        lines.extend(listed.drain(..1));
        lines.extend(listed.into_iter().skip(top_line));
        if is_empty {
            lines.push(StyledLine::new(Style::Plain, "No session."));
        }
    }
}

/// The sessions as a table.
pub(super) fn table(sessions: &[SessionLine], now: Millis) -> Table<'static> {
    let rows = sessions.iter().map(|session| Row::Cells(cells(session, now))).collect();
    Table { columns: &COLUMNS, rows }
}

fn cells(session: &SessionLine, now: Millis) -> Vec<Cell> {
    let details = &session.details;
    let mut context = Cell::new();
    if let (Some(percent), Some(window)) = (details.percent, details.window) {
        // The end is cut first.
        context.push((Style::Plain, format!("{percent:>3.0}% ")));
        context.extend(gauge(percent, GAUGE));
        let guess = if details.window_guessed { "?" } else { "" };
        context.push((Style::Plain, format!(" {}{guess}", brief(window))));
    }
    let next_price = details.next_input.map(|next| format!("${:.3}", next.dollars));
    let error = details.error_ratio.map(share);
    vec![
        cell(Style::Bold, name(&details.names, &session.session, session.began)),
        context,
        cell(Style::Plain, cost(details.dollars, details.unpriced.unwrap_or(0))),
        cell(Style::Plain, next_price.unwrap_or_default()),
        cell(Style::Plain, error.unwrap_or_default()),
        cell(Style::Plain, session.turns.to_string()),
        cell(Style::Plain, details.model.clone().unwrap_or_default()),
        cell(Style::Dim, age(now, session.newest)),
    ]
}

/// A place after a key that moves it.
fn moved(from: usize, key: Key) -> usize {
    const PAGE: usize = 10;
    match key {
        Key::Up | Key::Letter('k') => from.saturating_sub(1),
        Key::Down | Key::Letter('j') => from + 1,
        Key::PageUp => from.saturating_sub(PAGE),
        Key::PageDown => from + PAGE,
        _ => from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::view::SessionDetails;

    fn line(name: &str, percent: f64) -> SessionLine {
        SessionLine {
            id: format!("0123456789abcdef.{name}"),
            session: name.into(),
            tenant: "0123456789abcdef".into(),
            newest: 0,
            records: 1,
            began: 0,
            turns: 3,
            input: 0,
            output: 0,
            cache_read: 0,
            failed: 0,
            details: SessionDetails {
                model: Some("claude-sonnet-4-5".into()),
                window: Some(200_000),
                percent: Some(percent),
                dollars: Some(1.336),
                ..SessionDetails::default()
            },
        }
    }

    fn top() -> Top {
        let mut top = Top::new(true);
        top.head = "plimsoll active".into();
        top.set_sessions(vec![line("first", 43.0), line("second", 90.0), line("third", 0.0)]);
        top
    }

    fn shown(top: &Top, columns: usize, rows: usize) -> Vec<String> {
        let lines = top.lines(ScreenSize { columns, rows }, 2_000);
        lines.iter().map(|line| line.rendered(columns, false)).collect()
    }

    #[test]
    fn list_fits_terminal() {
        for columns in [40, 80, 120] {
            let lines = shown(&top(), columns, 8);
            assert_eq!(lines.len(), 8);
            assert!(
                lines
                    .iter()
                    .all(|line| line.trim_end_matches("\x1b[0m").chars().count() <= columns + 4)
            );
        }
        let lines = shown(&top(), 80, 9);
        assert_eq!(lines[1], "by last used ↓");
        assert!(lines[3].starts_with("SESSION") && lines[3].contains("MODEL"), "{}", lines[3]);
        assert!(lines[5].contains(" 90% ━━━━━━━━━━━─ 200k  $1.34"), "{}", lines[5]);
        assert_eq!(lines[8], KEYS);
    }

    #[test]
    fn keys_choose_sort_and_filter() {
        let mut top = top();
        assert_eq!(top.press(Key::Down), TopAction::Draw);
        assert!(shown(&top, 80, 9)[5].starts_with("\x1b[7msecond"));
        // It stays chosen in another order.
        top.set_sessions(vec![line("second", 90.0), line("first", 43.0)]);
        assert!(shown(&top, 80, 9)[4].starts_with("\x1b[7msecond"));
        assert_eq!(top.press(Key::Letter('s')), TopAction::Load);
        assert_eq!(top.press(Key::Letter('r')), TopAction::Load);
        top.press(Key::Letter('/'));
        for letter in "q x".chars() {
            assert_eq!(top.press(Key::Letter(letter)), TopAction::Load);
        }
        assert_eq!(top.query(9), "details=true&limit=9&sort=dollars&order=asc&search=q%20x");
        assert_eq!(top.press(Key::Enter), TopAction::Draw);
        assert_eq!(top.press(Key::Escape), TopAction::Load);
        assert_eq!(top.query(9), "details=true&limit=9&sort=dollars&order=asc");
        assert_eq!(top.press(Key::Letter('q')), TopAction::Quit);
    }

    #[test]
    fn enter_opens_session() {
        let mut top = top();
        assert_eq!(top.press(Key::Enter), TopAction::Load);
        assert_eq!(top.view, OpenView::Session("0123456789abcdef.first".into(), 0));
        top.session_text = "one\ntwo\nthree".into();
        top.press(Key::Down);
        assert_eq!(shown(&top, 80, 9)[3..5], ["two", "three"]);
        assert_eq!(top.press(Key::Escape), TopAction::Draw);
        assert_eq!(top.view, OpenView::List);
        top.press(Key::Letter('?'));
        assert!(shown(&top, 100, 20).iter().any(|line| line.contains("sort by the next column")));
    }

    #[test]
    fn help_fits_80_columns() {
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn narrow_list_shows_percent() {
        let lines = shown(&top(), 40, 9);
        assert!(lines[4].contains(" 43%"), "{}", lines[4]);
        assert!(lines[8].starts_with("q quit  ? help"), "{}", lines[8]);
    }

    #[test]
    fn without_keys_ctrl_c_ends() {
        let mut top = top();
        top.has_keys = false;
        let lines = shown(&top, 80, 9);
        assert_eq!(lines[8], "Ctrl-C ends");
        assert!(lines[4].starts_with("first"), "nothing is chosen");
    }
}
