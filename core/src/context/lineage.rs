//! Lineage: which thread a request belongs to, and which turn it grew from.
//!
//! The turn that covers most of the request, found by its reply, by a boundary, or by its end
//! ([`grown_from`]); then whether the request carries on that turn's thread ([`growth`]). Two
//! conversations that begin alike never mix: what begins with words already answered in full begins
//! a thread of its own. Pure; must not know where turns are kept.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::ledger::{BoundaryHash, Ledger};
use super::{ExchangeId, Outcome, Position, PromptSection, ThreadId, Turn};
use crate::dialect::{Chain, Conversation, HeldHistory, Part, PartKey, Purpose, Role};

/// How a request relates to the turn it grew from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing known precedes it.
    Begins,
    /// It is the next step of its thread.
    Grows,
    /// It sends again what an unfinished turn sent.
    Retries,
    /// It leaves its parent's thread.
    Forks,
    /// The provider holds its history, and nothing says for certain which turn that ends with.
    Held,
}

/// Where a request belongs.
#[derive(Clone, Debug)]
pub struct Placement {
    /// To be kept with its turn.
    pub position: Position,
    /// The turn it grew from.
    pub parent: Option<Arc<Turn>>,
    /// How.
    pub growth: Growth,
    /// How many keyed parts of the request that turn accounts for, its reply included.
    pub covers: usize,
    /// Its own exchange.
    pub exchange: ExchangeId,
}

/// Places the request of an exchange. `client_thread` is the thread that the client names.
pub fn place(
    ledger: &Ledger,
    conversation: &Conversation,
    exchange: &ExchangeId,
    client_thread: Option<&str>,
) -> Placement {
    let mut position = position(conversation, client_thread);
    let mut covers = 0;
    let mut grown = || {
        let found = grown_from(ledger, conversation, &position)?;
        covers = found.covers;
        Some(found.turn)
    };
    let found = match &conversation.held {
        None => grown().map(|turn| (turn, growth(ledger, conversation, &position, turn))),
        // What is sent is only the new part: ids say more than words.
        Some(HeldHistory::After(id)) => match ledger.answered_by(id) {
            // Nothing was said before a warm-up: the words after it are all there are.
            Some(warm) if is_bare(warm) => grown()
                .map(|turn| (turn, growth(ledger, conversation, &position, turn)))
                .or_else(|| Some((warm, follows(ledger, conversation, &position, warm)))),
            Some(turn) => Some((turn, follows(ledger, conversation, &position, turn))),
            None => grown().map(|turn| (turn, Growth::Held)),
        },
        // A named conversation is a thread: without words in common, its newest turn came before.
        Some(HeldHistory::Named(_)) => {
            grown().or_else(|| ledger.turns().next_back()).map(|turn| (turn, Growth::Held))
        }
    };
    let (parent, growth) = match found {
        Some((turn, growth)) => (Some(turn.clone()), growth),
        None => (None, Growth::Begins),
    };
    if let (Some(HeldHistory::After(_)), Some(turn)) = (&conversation.held, &parent) {
        inherit_head(&mut position, turn);
    }
    position.parent = parent.as_ref().map(|turn| turn.exchange.clone());
    position.thread = match (&parent, growth) {
        (Some(turn), Growth::Grows | Growth::Retries | Growth::Held) => {
            turn.position.thread.clone()
        }
        _ => new_thread(exchange),
    };
    position.suspended = ledger.suspended_since(&position.thread, parent.as_deref());
    Placement { position, parent, growth, covers, exchange: exchange.clone() }
}

/// What can be said of a request without knowing any other.
fn position(conversation: &Conversation, client_thread: Option<&str>) -> Position {
    Position {
        thread: ThreadId::default(),
        parent: None,
        chain: conversation.chains().last().unwrap_or(Chain::START),
        last: conversation.parts().rev().find_map(|part| part.key),
        system: fold(&conversation.system),
        tools: fold(&conversation.tools),
        client_thread: client_thread.map(Into::into),
        suspended: None,
    }
}

fn fold(parts: &[Part]) -> PartKey {
    let keys = parts.iter().filter_map(|part| part.key);
    PartKey(keys.fold(Chain::START, Chain::then).0)
}

/// By the exchange alone: a name is shown, and nothing of what was said may be told from it.
fn new_thread(exchange: &ExchangeId) -> ThreadId {
    format!("{:016x}", (xxh3_128(exchange.as_str().as_bytes()) >> 64) as u64).into()
}

/// A turn that a request grew from, and what says so.
struct AncestorMatch<'l> {
    turn: &'l Arc<Turn>,
    /// How many keyed parts of the request it covers.
    covers: usize,
}

/// Finds the turn in three ways; the one that covers most of the request counts, of equals the first:
/// 1. *reply*: a prefix of it is a known turn's request and reply;
/// 2. *boundary*: somewhere in it stands a part that marks a turn's reply (a tool call with an id of its
///    own, a text of some length), or a run of parts that meets where a turn's request met its reply
///    ([`proves`]). So a turn is found although the client changed a part before it (a date, a
///    reminder, its whole first message), or dropped the words beside a tool call;
/// 3. *end*: a prefix of it is a known turn's request without its reply (a retry, an aborted call,
///    a rewind). This proves less, so system prompt and tools must be the same.
fn grown_from<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
    position: &Position,
) -> Option<AncestorMatch<'l>> {
    if ledger.is_empty() {
        return None;
    }
    let chains: Vec<Chain> = conversation.chains().collect();
    let by_chain = longest_prefix(ledger, &chains, position);
    let covered = by_chain.as_ref().map_or(0, |found| found.covers);
    last_boundary(ledger, conversation, position, covered).or(by_chain)
}

/// Ways 1 and 3: the longest prefix that a turn is known by.
fn longest_prefix<'l>(
    ledger: &'l Ledger,
    chains: &[Chain],
    position: &Position,
) -> Option<AncestorMatch<'l>> {
    chains.iter().enumerate().rev().find_map(|(index, chain)| {
        let covers = index + 1;
        let replied = prefer(ledger.replied_to(*chain), position);
        let ended = || {
            let same_head = |turn: &&Arc<Turn>| has_head(turn, position);
            prefer(ledger.ended_at(*chain).filter(same_head), position)
        };
        replied.or_else(ended).map(|turn| AncestorMatch { turn, covers })
    })
}

/// Of several turns at one chain (newest first): the client's own thread, then the same head.
fn prefer<'l>(
    turns: impl Iterator<Item = &'l Arc<Turn>>,
    position: &Position,
) -> Option<&'l Arc<Turn>> {
    let rank = |turn: &Arc<Turn>| {
        let client_thread = turn.position.client_thread == position.client_thread;
        let turns = turn.purpose == Purpose::Turn;
        (turns, client_thread, has_head(turn, position), turn.outcome == Outcome::Complete)
    };
    // `max_by_key` keeps the last of equals: reversed order would keep the oldest.
    turns.fold(None, |best: Option<&Arc<Turn>>, turn| match best {
        Some(best) if rank(best) >= rank(turn) => Some(best),
        _ => Some(turn),
    })
}

/// Way 2: the boundary nearest to the end, of those that cover more than `covered` parts. Reasoning
/// between neighbours has no key and is not in the way.
fn last_boundary<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
    position: &Position,
    covered: usize,
) -> Option<AncestorMatch<'l>> {
    let keyed: Vec<(PartKey, Role)> =
        conversation.parts().filter_map(|part| Some((part.key?, part.role))).collect();
    let keys: Vec<PartKey> = keyed.iter().map(|(key, _)| *key).collect();
    (covered..keys.len()).rev().find_map(|index| {
        let (key, Role::Assistant) = keyed[index] else { return None };
        let before = index.checked_sub(1).map(|before| BoundaryHash::of(keys[before], key));
        let met = before
            .into_iter()
            .flat_map(|boundary| ledger.turns_at_boundary(boundary).take(CANDIDATES));
        let marked = ledger.turns_at_boundary(BoundaryHash::of_anchor_key(key)).take(CANDIDATES);
        let known = marked.map(|turn| (turn, true)).chain(met.map(|turn| (turn, false)));
        let measured = known.map(|(turn, marked)| (turn, marked, run(ledger, turn, &keys, index)));
        let proven = measured.filter(|(turn, marked, run)| proves(turn, *marked, *run, position));
        // Newest first, and of equals the first stays.
        let best = proven.fold(None, |best: Option<(&Arc<Turn>, usize)>, (turn, _, run)| {
            if best.is_some_and(|(_, longest)| longest >= run) { best } else { Some((turn, run)) }
        });
        best.map(|(turn, _)| AncestorMatch { turn, covers: index + 1 })
    })
}

/// Most turns that are compared where several have the same boundary, the newest.
const CANDIDATES: usize = 8;

/// How many parts of the request, up to and with the one at `index`, stand one after the other in
/// what the turn sent and was answered.
fn run(ledger: &Ledger, turn: &Turn, keys: &[PartKey], index: usize) -> usize {
    let sketch = ledger.sketch(turn).unwrap_or_default();
    let history =
        sketch.iter().filter(|part| part.place == PromptSection::History).map(|part| part.key);
    let mut said: Vec<PartKey> = history.collect();
    if let Some(last) = turn.position.last.filter(|last| said.last() != Some(last)) {
        said = vec![last];
    }
    let reply = turn.reply.iter().map(|part| part.key);
    let answered = reply.clone().position(|key| key == keys[index]).unwrap_or(0);
    said.extend(reply.take(answered + 1));
    let pairs = said.iter().rev().zip(keys[..=index].iter().rev());
    pairs
        .take_while(|(said, sent)| {
            said == sent || **said == sent.cut() || **said == sent.cut().cut()
        })
        .count()
}

/// Whether a boundary is proof enough. A mark is; other words may be said twice (`Go on.`, `Done.`), so
/// the part before them must be the same too, and where it is no more than that, the head.
fn proves(turn: &Turn, marked: bool, run: usize, position: &Position) -> bool {
    marked || run >= 5 || (run >= 3 && has_head(turn, position))
}

fn has_head(turn: &Turn, position: &Position) -> bool {
    turn.position.system == position.system && turn.position.tools == position.tools
}

/// A request carries its parent's thread on unless the place is taken (a fork), the client names
/// another thread, both system prompt and tools are others (a side call on top of the history), or
/// it is itself no turn (title, count, compaction). Then it begins a thread, and may still be
/// measured from that turn.
fn growth(
    ledger: &Ledger,
    conversation: &Conversation,
    position: &Position,
    turn: &Turn,
) -> Growth {
    let other_head =
        turn.position.system != position.system && turn.position.tools != position.tools;
    let beside = conversation.purpose != Purpose::Turn || turn.purpose != Purpose::Turn;
    if turn.position.client_thread != position.client_thread || other_head || beside {
        return Growth::Forks;
    }
    let again = turn.position.chain == position.chain;
    if again && turn.outcome != Outcome::Complete {
        return Growth::Retries;
    }
    // The same words after they were answered, or another way from a turn that already went on.
    if again || ledger.has_grown(turn) { Growth::Forks } else { Growth::Grows }
}

/// How a request relates to the turn whose response it names. It brings only what is new, so its own
/// words say nothing of a retry, and its head may be held.
fn follows(
    ledger: &Ledger,
    conversation: &Conversation,
    position: &Position,
    turn: &Turn,
) -> Growth {
    let beside = !matches!(conversation.purpose, Purpose::Turn | Purpose::WarmUp);
    let elsewhere = turn.position.client_thread != position.client_thread || ledger.has_grown(turn);
    if beside || elsewhere { Growth::Forks } else { Growth::Grows }
}

/// What a request to held history does not send again is held, too.
fn inherit_head(position: &mut Position, parent: &Turn) {
    let nothing = fold(&[]);
    if position.system == nothing {
        position.system = parent.position.system;
    }
    if position.tools == nothing {
        position.tools = parent.position.tools;
    }
}

/// A warm-up that brought instructions and tools alone.
fn is_bare(turn: &Turn) -> bool {
    let position = &turn.position;
    turn.purpose == Purpose::WarmUp && position.parent.is_none() && position.chain == Chain::START
}

#[cfg(test)]
mod tests;
