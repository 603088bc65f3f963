//! Lineage: which thread a request belongs to, and which turn it continues.
//!
//! The parent is the turn that covers most of the request ([`Search::ancestor`]). Then [`growth`] decides whether the request stays on that turn's thread. Two
//! conversations that begin alike never mix: a request whose beginning was already answered in full begins a
//! thread of its own. Pure; must not know where turns are stored.

mod search;

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::edited::shared_beginnings;
use super::ledger::Ledger;
use super::{ExchangeId, Outcome, Position, ThreadId, Turn};
use crate::dialect::{Chain, Conversation, HeldHistory, Part, PartKey, Purpose};
use search::{Search, has_head, is_reply, replies};

/// How a request relates to its parent turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It has no known parent.
    Begins,
    /// It is the next step of its thread.
    Grows,
    /// It repeats the request of an unfinished turn, or of one that was declined.
    Repeats,
    /// It leaves its parent's thread.
    Forks,
    /// The provider holds its history, and the turn at the end of that history is not certain.
    Held,
}

/// Where a request belongs.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Its position, which is stored with its turn.
    pub position: Position,
    /// The turn that it continues.
    pub parent: Option<Arc<Turn>>,
    /// How it relates to that turn.
    pub growth: Growth,
    /// How many keyed parts of the request that turn covers, its reply included.
    pub covers: usize,
    /// It was found by sentences of its reply: that follows what is covered, and maybe a message that the client changed.
    pub by_sentences: bool,
    /// The id of its exchange.
    pub exchange: ExchangeId,
}

/// Finds the place of the request of an exchange. `client_thread` is the thread that the client names.
pub fn place(
    ledger: &Ledger,
    conversation: &Conversation,
    exchange: &ExchangeId,
    client_thread: Option<&str>,
) -> Placement {
    let mut position = position(conversation, client_thread);
    let named = match &conversation.held {
        Some(HeldHistory::After(id)) => ledger.answered_by(id),
        _ => None,
    };
    let ancestor = match named {
        // Nothing came before a warm-up: what follows it is the whole conversation.
        Some(turn) if !is_bare(turn) => None,
        _ if ledger.is_empty() => None,
        _ => Search::new(ledger, conversation, &position).ancestor(),
    };
    let covers = ancestor.as_ref().map_or(0, |ancestor| ancestor.covers);
    let by_sentences = ancestor.as_ref().is_some_and(|ancestor| ancestor.by_sentences);
    let ancestor = ancestor.map(|ancestor| ancestor.turn);
    let (parent, growth) = match (&conversation.held, ancestor, named) {
        // The request has only the new part, so ids tell more than content.
        (_, None, Some(turn)) => {
            (Some(turn.clone()), follows(ledger, conversation, &position, turn))
        }
        (None, Some(turn), _) | (Some(_), Some(turn), Some(_)) => {
            (Some(turn.clone()), growth(ledger, conversation, &position, turn))
        }
        (Some(_), Some(turn), None) => (Some(turn.clone()), Growth::Held),
        // A named conversation is one thread: without parts in common, its newest turn is the parent.
        (Some(HeldHistory::Named(_)), None, None) => match ledger.turns().next_back() {
            Some(turn) => (Some(turn.clone()), Growth::Held),
            None => (None, Growth::Begins),
        },
        (None | Some(HeldHistory::After(_)), None, None) => (None, Growth::Begins),
    };
    if let (Some(HeldHistory::After(id)), Some(turn)) = (&conversation.held, &parent) {
        inherit_head(&mut position, turn);
        if turn.response.as_ref() == Some(id) {
            // The client may send the whole conversation next, and is found by all of it.
            let keys = conversation.parts().filter_map(|part| part.key);
            position.chain = keys.fold(turn.after, Chain::then);
            position.has_reply |= turn.position.has_reply || !turn.reply.is_empty();
        }
    }
    position.parent = parent.as_ref().map(|turn| turn.exchange.clone());
    position.thread = match (&parent, growth) {
        (Some(turn), Growth::Grows | Growth::Repeats | Growth::Held) => {
            turn.position.thread.clone()
        }
        _ => new_thread(exchange),
    };
    position.suspended = ledger.suspended_since(&position.thread, parent.as_deref());
    Placement { position, parent, growth, covers, by_sentences, exchange: exchange.clone() }
}

fn position(conversation: &Conversation, client_thread: Option<&str>) -> Position {
    Position {
        chain: conversation.chains().last().copied().unwrap_or(Chain::START),
        last: conversation.parts().rev().find_map(|part| part.key),
        system: fold(&conversation.system),
        tools: fold(&conversation.tools),
        client_thread: client_thread.map(Into::into),
        has_reply: conversation.parts().any(|part| part.key.is_some() && is_reply(part)),
        has_messages: conversation.has_only_user_messages(),
        beginnings: shared_beginnings(conversation),
        ..Position::default()
    }
}

fn fold(parts: &[Part]) -> PartKey {
    let keys = parts.iter().filter_map(|part| part.key);
    PartKey(keys.fold(Chain::START, Chain::then).0)
}

fn new_thread(exchange: &ExchangeId) -> ThreadId {
    // A thread's name is shown, and must reveal nothing of its content.
    format!("{:016x}", (xxh3_128(exchange.as_str().as_bytes()) >> 64) as u64).into()
}

/// A request stays on its parent's thread, with six exceptions: another turn already continues the parent (a
/// fork), it repeats the parent's request after that was answered, the client names another thread, both
/// system prompt and tools differ (a side call with the same history), one of them differs and no reply
/// follows the parent's request, or it or the parent is not a turn (title, count, compaction). Then it begins a thread,
/// but its estimate may still be based on that turn.
fn growth(
    ledger: &Ledger,
    conversation: &Conversation,
    position: &Position,
    turn: &Turn,
) -> Growth {
    let other_head =
        turn.position.system != position.system && turn.position.tools != position.tools;
    let is_beside = conversation.purpose != Purpose::Turn || turn.purpose != Purpose::Turn;
    if turn.position.client_thread != position.client_thread || other_head || is_beside {
        return Growth::Forks;
    }
    if !has_head(turn, position) {
        let end = conversation.chains().iter().position(|chain| *chain == turn.position.chain);
        if end.is_some_and(|end| replies(conversation).get(end + 1) != Some(&true)) {
            return Growth::Forks;
        }
    }
    let repeats = turn.position.chain == position.chain;
    if repeats && (turn.outcome != Outcome::Complete || turn.is_declined()) {
        return Growth::Repeats;
    }
    // The same request after it was answered, or another continuation of a turn that already has one.
    if repeats || ledger.has_grown(turn) { Growth::Forks } else { Growth::Grows }
}

/// How a request relates to the turn whose response it names.
fn follows(
    ledger: &Ledger,
    conversation: &Conversation,
    position: &Position,
    turn: &Turn,
) -> Growth {
    // The request has only the new part, so its content does not show a repeat, and the provider may hold its
    // head.
    let is_beside = !matches!(conversation.purpose, Purpose::Turn | Purpose::WarmUp);
    let is_elsewhere =
        turn.position.client_thread != position.client_thread || ledger.has_grown(turn);
    if is_beside || is_elsewhere { Growth::Forks } else { Growth::Grows }
}

fn inherit_head(position: &mut Position, parent: &Turn) {
    let nothing = fold(&[]);
    // What a request to held history does not repeat is held, too.
    if position.system == nothing {
        position.system = parent.position.system;
    }
    if position.tools == nothing {
        position.tools = parent.position.tools;
    }
}

fn is_bare(turn: &Turn) -> bool {
    let position = &turn.position;
    // A warm-up with instructions and tools only has no history to continue.
    turn.purpose == Purpose::WarmUp && position.parent.is_none() && position.chain == Chain::START
}

#[cfg(test)]
mod tests;
