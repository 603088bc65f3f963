//! How full the context of a thread is: of the main line, unless another thread is named.
//!
//! Must not know sessions by name: it gets a ledger and what is in flight. What is shown is named, so that nobody takes a
//! sub-agent's context for the conversation's.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::compactions::{self, CompactionsText};
use crate::config::PriceList;
use crate::context::budget::ContextView;
use crate::context::compact::report::Compactions;
use crate::context::ledger::Ledger;
use crate::context::{MainLine, Millis, SessionId, SessionNames, ThreadId, Turn};
use crate::dialect::Purpose;
use crate::telemetry::OpenExchange;
use crate::telemetry::log::clean;

/// How full a thread's context is, and what was done so that it fits.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ContextPage {
    /// How full it is.
    #[serde(flatten)]
    pub view: ContextView,
    /// The compactions in its history.
    pub compactions: Compactions,
    /// Whose context it is.
    pub shown: ShownThread,
}

/// Whose context is shown.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ShownThread {
    /// What people call the session, if it has such a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// The id that the client gave the session, or one of ours.
    pub session: SessionId,
    pub thread: ThreadId,
    /// Whether it is the main thread: the conversation that the user follows.
    pub main: bool,
    /// What the client calls the thread, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_thread: Option<String>,
    /// What its newest request is for.
    pub purpose: Purpose,
    /// The model that it requested; unknown while its first request is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// When its newest request arrived, ms since 1970.
    pub at: Millis,
}

impl ShownThread {
    fn new(
        session: &SessionId,
        ledger: &Ledger,
        is_main: bool,
        newest: Option<&Turn>,
        open_exchange: Option<&OpenExchange>,
    ) -> Option<Self> {
        let position = match (open_exchange, newest) {
            (Some(open_exchange), _) => &open_exchange.position,
            (None, newest) => &newest?.position,
        };
        let arrival = open_exchange.map(|open_exchange| open_exchange.at);
        let purpose = open_exchange.map(|open_exchange| open_exchange.purpose);
        Some(Self {
            session_name: SessionNames::from_ledger(ledger).description(),
            session: session.clone(),
            thread: position.thread.clone(),
            main: is_main,
            client_thread: position.client_thread.as_deref().map(str::to_owned),
            purpose: purpose.or(newest.map(|turn| turn.purpose))?,
            model: newest.map(|turn| turn.model.to_string()),
            at: arrival.or(newest.map(|turn| turn.at))?,
        })
    }
}

impl fmt::Display for ShownThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.main, &self.purpose) {
            (true, _) => "main",
            (false, Purpose::Turn) => "sub-agent",
            (false, purpose) => purpose.as_ref(),
        };
        write!(f, "Thread: {kind}")?;
        let named = self.client_thread.as_deref().unwrap_or(self.thread.as_str());
        if !self.main {
            write!(f, " {}", clean(named))?;
        }
        if let Some(model) = &self.model {
            write!(f, ", {}", clean(model))?;
        }
        let time = humantime::format_rfc3339_seconds(
            SystemTime::UNIX_EPOCH + Duration::from_millis(self.at),
        );
        write!(f, ", {time}\nSession: {}", clean(self.session.as_str()))?;
        match &self.session_name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ContextPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.view)?;
        let compactions = CompactionsText(&self.compactions).to_string();
        if !compactions.is_empty() {
            write!(f, "\n{}", compactions.trim_end())?;
        }
        write!(f, "\n\n{}", self.shown)
    }
}

/// The conversation that the user follows.
pub(super) const MAIN: &str = "main";
/// Its earlier name.
const LATEST: &str = "latest";

/// A thread with its turns.
type ThreadTurns = (ThreadId, Vec<Arc<Turn>>);

/// The thread that a path names: by its id or as its client calls it, else as [`MAIN`]; and whether it is meant by that.
pub(super) fn named_thread<'t>(
    threads: &'t [ThreadTurns],
    line: Option<&MainLine<'_>>,
    name: &str,
) -> (Option<&'t ThreadTurns>, bool) {
    let stored = threads.iter().find(|(id, turns)| {
        let named = turns.last().and_then(|turn| turn.position.client_thread.as_deref());
        *id == *name || named == Some(name)
    });
    let is_main = stored.is_none() && matches!(name, MAIN | LATEST);
    // A session may have side calls alone.
    let stored = match (line, is_main) {
        (Some(line), true) => threads.iter().find(|(id, _)| id == line.thread()),
        (None, true) => threads.iter().max_by_key(|(_, turns)| turns.last().map(|turn| turn.ended)),
        (_, false) => stored,
    };
    (stored, is_main)
}

/// How full a thread's context is. `open_exchanges`: the session's requests in flight, the newest first.
pub(super) fn context(
    ledger: &Ledger,
    open_exchanges: &[OpenExchange],
    (session, thread): (&SessionId, &str),
    prices: &PriceList,
    now: Millis,
) -> Option<ContextPage> {
    let line = MainLine::from_ledger(ledger);
    let threads = ledger.threads();
    let (stored, is_main) = named_thread(&threads, line.as_ref(), thread);
    // As the newest request in flight will make it; without one, after the thread's newest turn for which that
    // is known.
    let open_exchange = open_exchanges.iter().find(|open_exchange| {
        let OpenExchange { id, position, hints, purpose, .. } = open_exchange;
        let is_on_thread = match (&line, is_main) {
            (Some(line), true) => line.goes_on_at(position, hints.as_deref()),
            (None, true) => true,
            (_, false) => {
                position.thread == *thread || stored.is_some_and(|(id, _)| *id == position.thread)
            }
        };
        // Its turn may have been stored meanwhile.
        is_on_thread && (!is_main || *purpose == Purpose::Turn) && ledger.turn(id).is_none()
    });
    let turns = match open_exchange {
        Some(open_exchange) => {
            let id = &open_exchange.position.thread;
            threads.iter().find(|(thread, _)| thread == id).map(|(_, turns)| &turns[..])
        }
        None => stored.map(|(_, turns)| &turns[..]),
    };
    let turns = turns.unwrap_or_default();
    let turn = match open_exchange {
        Some(_) => turns.last().map(AsRef::as_ref),
        None => measured(turns.iter().map(AsRef::as_ref)),
    };
    let compactions =
        turn.map(|turn| compactions::of_turn(ledger, turn, prices)).unwrap_or_default();
    let newest = turns.last().map(AsRef::as_ref);
    let is_main = is_main
        || line.as_ref().is_some_and(|line| stored.is_some_and(|(id, _)| id == line.thread()));
    let subject = ShownThread::new(session, ledger, is_main, newest, open_exchange);
    let view = match open_exchange {
        Some(open_exchange) => {
            let view = open_exchange.view.clone();
            let next_input = prices.next_input(turns.iter().map(AsRef::as_ref), view.total, now);
            ContextView { next_input, ..view }
        }
        None => view_after(turns.iter().map(AsRef::as_ref), prices, now)?,
    };
    Some(ContextPage { view, compactions, shown: subject? })
}

/// The context after a thread's newest turn, and the price of the next call's input.
pub(super) fn view_after<'t>(
    turns: impl DoubleEndedIterator<Item = &'t Turn> + Clone,
    prices: &PriceList,
    now: Millis,
) -> Option<ContextView> {
    let view = ContextView::after(measured(turns.clone())?);
    let next_input = prices.next_input(turns, view.total, now);
    Some(ContextView { next_input, ..view })
}

/// The newest turn for which the size of its context is known.
fn measured<'t>(turns: impl DoubleEndedIterator<Item = &'t Turn>) -> Option<&'t Turn> {
    turns.rev().find(|turn| turn.carried().is_some())
}
