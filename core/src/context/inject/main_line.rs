//! The session's main line: only its requests take the messages that wait.
//!
//! Reads turns and their positions. The content of the request does not matter.

use std::sync::Arc;

use crate::context::Turn;
use crate::context::ledger::Ledger;
use crate::context::lineage::Placement;
use crate::context::records::QueuedMessage;
use crate::dialect::Purpose;

pub(in crate::context) fn waiting(ledger: &Ledger, placed: &Placement) -> Vec<Arc<QueuedMessage>> {
    let waiting = ledger.waiting();
    // Sub-agents and side calls take no message of the operator.
    if waiting.is_empty() || !is_main(ledger, placed) {
        return Vec::new();
    }
    waiting.into_iter().cloned().collect()
}

/// Whether a request is on the session's main line: the thread of its first turn, and its forks.
fn is_main(ledger: &Ledger, placed: &Placement) -> bool {
    first_turn(ledger).is_some_and(|first| is_line_of(ledger, placed, first))
}

/// The same, but the first request of a session is on the main line, too.
pub fn is_or_begins_main_line(ledger: &Ledger, placed: &Placement) -> bool {
    match first_turn(ledger) {
        Some(first) => is_line_of(ledger, placed, first),
        None => placed.position.client_thread.is_none(),
    }
}

fn first_turn(ledger: &Ledger) -> Option<&Arc<Turn>> {
    ledger.turns().find(|turn| turn.purpose == Purpose::Turn)
}

fn is_line_of(ledger: &Ledger, placed: &Placement, first: &Turn) -> bool {
    let main = &first.position;
    let position = &placed.position;
    // Sub-agents are named by their client, or have other system prompts.
    if main.client_thread != position.client_thread {
        return false;
    }
    if ledger.line(placed.parent.as_deref()).any(|turn| turn.position.thread == main.thread) {
        return true;
    }
    // The line breaks if the client compacts its history; the same system prompt and tools continue it.
    main.system == position.system && main.tools == position.tools
}
