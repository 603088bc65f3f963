//! Lineage: which thread a request belongs to, and which turn it continues.
//!
//! The parent is the turn that covers most of the request, found by its reply, by a boundary, or by its end
//! ([`grown_from`]). Then [`growth`] decides whether the request stays on that turn's thread. Two
//! conversations that begin alike never mix: a request whose beginning was already answered in full begins a
//! thread of its own. Pure; must not know where turns are stored.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::ledger::{BoundaryHash, Ledger};
use super::{ExchangeId, Outcome, Position, PromptSection, SketchPart, ThreadId, Turn};
use crate::dialect::{
    Chain, Conversation, HeldHistory, Part, PartKey, PartKind, Purpose, Role, StopReason,
};

/// How a request relates to its parent turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It has no known parent.
    Begins,
    /// It is the next step of its thread.
    Grows,
    /// It repeats the request of an unfinished turn, or of one that was declined.
    Retries,
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
    let mut covers = 0;
    let mut grown = || {
        let found = grown_from(ledger, conversation, &position)?;
        covers = found.covers;
        Some(found.turn)
    };
    let found = match &conversation.held {
        None => grown().map(|turn| (turn, growth(ledger, conversation, &position, turn))),
        // The request has only the new part, so ids tell more than content.
        Some(HeldHistory::After(id)) => match ledger.answered_by(id) {
            // Nothing came before a warm-up: what follows it is the whole conversation.
            Some(warm) if is_bare(warm) => grown()
                .map(|turn| (turn, growth(ledger, conversation, &position, turn)))
                .or_else(|| Some((warm, follows(ledger, conversation, &position, warm)))),
            Some(turn) => Some((turn, follows(ledger, conversation, &position, turn))),
            None => grown().map(|turn| (turn, Growth::Held)),
        },
        // A named conversation is one thread: without parts in common, its newest turn is the parent.
        Some(HeldHistory::Named(_)) => {
            grown().or_else(|| ledger.turns().next_back()).map(|turn| (turn, Growth::Held))
        }
    };
    let (parent, growth) = match found {
        Some((turn, growth)) => (Some(turn.clone()), growth),
        None => (None, Growth::Begins),
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
        (Some(turn), Growth::Grows | Growth::Retries | Growth::Held) => {
            turn.position.thread.clone()
        }
        _ => new_thread(exchange),
    };
    position.suspended = ledger.suspended_since(&position.thread, parent.as_deref());
    Placement { position, parent, growth, covers, exchange: exchange.clone() }
}

/// What a request says about its position by itself, without other turns.
fn position(conversation: &Conversation, client_thread: Option<&str>) -> Position {
    Position {
        thread: ThreadId::default(),
        parent: None,
        chain: conversation.chains().last().unwrap_or(Chain::START),
        last: conversation.parts().rev().find_map(|part| part.key),
        system: fold(&conversation.system),
        tools: fold(&conversation.tools),
        client_thread: client_thread.map(Into::into),
        has_reply: conversation.parts().any(|part| part.key.is_some() && is_reply(part)),
        suspended: None,
    }
}

fn is_reply(part: &Part) -> bool {
    part.role == Role::Assistant
}

fn fold(parts: &[Part]) -> PartKey {
    let keys = parts.iter().filter_map(|part| part.key);
    PartKey(keys.fold(Chain::START, Chain::then).0)
}

/// Made from the exchange's id alone: a thread's name is shown, and must reveal nothing of its content.
fn new_thread(exchange: &ExchangeId) -> ThreadId {
    format!("{:016x}", (xxh3_128(exchange.as_str().as_bytes()) >> 64) as u64).into()
}

/// A turn that a request continues.
struct AncestorMatch<'l> {
    turn: &'l Arc<Turn>,
    /// How many keyed parts of the request it covers.
    covers: usize,
}

/// Finds the parent turn in three ways. The match that covers most of the request is used. Of equals a prefix
/// (way 1, then 3) wins over a boundary:
/// 1. *reply*: a prefix of the request is a known turn's request and reply;
/// 2. *boundary*: the request has a part that identifies a turn's reply (a tool call with its unique id, a
///    long text), or a run of parts across the end of a turn's request and the start of its reply
///    ([`proves`]). This finds the turn even if the client changed a part before it (a date, a reminder,
///    its whole first message), or dropped the text beside a tool call;
/// 3. *end*: a prefix of the request is a known turn's request without its reply (a retry, an aborted
///    call, a rewind). This proves less, so system prompt and tools must be the same. They may differ for a call
///    beside the conversation: it has more than the turn's request, and the reply that the turn itself continues
///    ([`continues_a_reply`]). And they may differ if the client edited the reply: a reply follows the turn's request,
///    which has one itself. Of several such turns, the newest that may have reached its provider is the
///    parent, because no reply tells them apart.
fn grown_from<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
    position: &Position,
) -> Option<AncestorMatch<'l>> {
    if ledger.is_empty() {
        return None;
    }
    let chains: Vec<Chain> = conversation.chains().collect();
    let by_chain = longest_prefix(ledger, conversation, &chains, position);
    let covered = by_chain.as_ref().map_or(0, |found| found.covers);
    last_boundary(ledger, conversation, position, covered).or(by_chain)
}

/// Ways 1 and 3: the longest prefix that identifies a turn. Reasoning is in no chain, and a model may say the same in two
/// branches. So of several replies, the one whose reasoning the request has is the parent; and a turn is no ancestor if it
/// arrived before the request whose reply has reasoning that the prefix has here.
fn longest_prefix<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
    chains: &[Chain],
    position: &Position,
) -> Option<AncestorMatch<'l>> {
    let newest = newest_reasoning(ledger, conversation);
    let replies = replies(conversation);
    let others = OtherAgents::new(ledger, position);
    chains.iter().enumerate().rev().find_map(|(index, chain)| {
        let covers = index + 1;
        let is_later = |turn: &&Arc<Turn>| {
            !others.contains(turn)
                && newest.is_none_or(|(before, maker)| covers <= before || turn.at >= maker.at)
        };
        let made = newest.map(|(_, maker)| maker).filter(|maker| {
            let client_thread = maker.position.client_thread == position.client_thread;
            maker.is_after(*chain) && client_thread
        });
        let is_complete = |turn: &Turn| turn.outcome == Outcome::Complete;
        let replied = || prefer(ledger.replied_to(*chain).filter(is_later), position, is_complete);
        let ended = || {
            let ended = ledger.ended_at(*chain).filter(is_later);
            let goes_on = covers < chains.len();
            let is_proven = |turn: &&Arc<Turn>| {
                let is_main = || continues_a_reply(ledger, turn, &chains[..index]);
                let is_edited = turn.position.has_reply && replies.get(covers) == Some(&true);
                has_head(turn, position) || is_edited || goes_on && is_main()
            };
            prefer(ended.filter(is_proven), position, may_be_cached)
        };
        made.or_else(replied).or_else(ended).map(|turn| AncestorMatch { turn, covers })
    })
}

/// The turns of other agents, which the request of an agent that has turns of its own does not continue: their prompts, and
/// even the ids of their calls, may be equal. They are told apart by the names that the client gives them.
struct OtherAgents<'p>(Option<&'p str>);

impl<'p> OtherAgents<'p> {
    fn new(ledger: &Ledger, position: &'p Position) -> Self {
        let own = position.client_thread.as_deref();
        let is_own = |turn: &Arc<Turn>| turn.position.client_thread.as_deref() == own;
        Self(own.filter(|_| ledger.turns().any(is_own)))
    }

    fn contains(&self, turn: &Turn) -> bool {
        let other = turn.position.client_thread.as_deref();
        self.0.is_some_and(|own| other.is_some_and(|other| other != own))
    }
}

/// Which keyed parts of a request are replies of the model.
fn replies(conversation: &Conversation) -> Vec<bool> {
    conversation.parts().filter(|part| part.key.is_some()).map(is_reply).collect()
}

/// The turn that made the newest reasoning in a request whose maker is known, after how many keyed parts. Arrivals are
/// compared, not ends: a client may go on before its reply has ended here, and another replica has another clock.
fn newest_reasoning<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
) -> Option<(usize, &'l Arc<Turn>)> {
    if !ledger.knows_reasoning() {
        return None;
    }
    let maker = |key| {
        let made = ledger.reasoning_by_signature(PartKey(key))?;
        // Where the reply was reasoning alone, the chain after it is the request's.
        let mut turns = ledger.replied_to(made.after).chain(ledger.ended_at(made.after));
        turns.find(|turn| turn.ended == made.at && turn.is_after(made.after))
    };
    let (mut before, mut newest) = (0, None);
    for part in conversation.parts() {
        newest = part.reasoning_key.and_then(maker).map(|maker| (before, maker)).or(newest);
        before += usize::from(part.key.is_some());
    }
    newest
}

/// Whether a turn continues a reply that ended at one of these chains, with the same system prompt and tools. With others
/// it may be a call beside the conversation that asked the same first (a router, a count).
fn continues_a_reply(ledger: &Ledger, turn: &Turn, chains: &[Chain]) -> bool {
    let parent = turn.position.parent.as_ref().and_then(|parent| ledger.turn(parent));
    parent.filter(|parent| has_head(parent, &turn.position)).is_some_and(|parent| {
        let is_there = parent.forms().any(|form| chains.contains(&form.after));
        let has_reply = !parent.reply.is_empty() && is_there;
        turn.purpose == Purpose::Turn && has_reply
    })
}

/// Whether its provider may have read its request, and so may have it cached.
fn may_be_cached(turn: &Turn) -> bool {
    !matches!(turn.outcome, Outcome::Refused | Outcome::EndedByProxy)
}

/// The best of several turns at one chain (given newest first): one of the conversation rather than a call
/// beside it, then one on the client's thread, then one with the same head, then one that `is_likelier`.
fn prefer<'l>(
    turns: impl Iterator<Item = &'l Arc<Turn>>,
    position: &Position,
    is_likelier: fn(&Turn) -> bool,
) -> Option<&'l Arc<Turn>> {
    let rank = |turn: &Arc<Turn>| {
        let client_thread = turn.position.client_thread == position.client_thread;
        let is_turn = turn.purpose == Purpose::Turn;
        (is_turn, client_thread, has_head(turn, position), is_likelier(turn))
    };
    // A fold keeps the newest of equals. `max_by_key` keeps the last one, here the oldest.
    turns.fold(None, |best: Option<&Arc<Turn>>, turn| match best {
        Some(best) if rank(best) >= rank(turn) => Some(best),
        _ => Some(turn),
    })
}

/// Way 2: the boundary nearest to the end, among those that cover more than `covered` parts. Reasoning
/// between two parts does not matter, because it has no key.
fn last_boundary<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
    position: &Position,
    covered: usize,
) -> Option<AncestorMatch<'l>> {
    let parts: Vec<&Part> = conversation.parts().filter(|part| part.key.is_some()).collect();
    let keys: Vec<PartKey> = parts.iter().filter_map(|part| part.key).collect();
    let others = OtherAgents::new(ledger, position);
    (covered..keys.len()).rev().find_map(|index| {
        let (part, key) = (parts[index], keys[index]);
        if !is_reply(part) {
            return None;
        }
        let before = index.checked_sub(1).map(|before| BoundaryHash::of(keys[before], key));
        let met = before
            .into_iter()
            .flat_map(|boundary| ledger.turns_at_boundary(boundary).take(CANDIDATES));
        // Another call may be the same but for its id, which is in no key of Gemini's.
        let mark = (part.kind != PartKind::ToolCall || part.id.is_some())
            .then(|| BoundaryHash::of_anchor_key(key));
        let marked =
            mark.into_iter().flat_map(|mark| ledger.turns_at_boundary(mark).take(CANDIDATES));
        let known = marked.map(|turn| (turn, true)).chain(met.map(|turn| (turn, false)));
        let measured = known.map(|(turn, marked)| (turn, marked, run(ledger, turn, &keys, index)));
        let proven = measured.filter(|(turn, marked, run)| {
            !others.contains(turn) && proves(turn, *marked, *run, position)
        });
        // The turns are given newest first; of equals, the first is kept.
        let best = proven.fold(None, |best: Option<(&Arc<Turn>, usize)>, (turn, _, run)| {
            if best.is_some_and(|(_, longest)| longest >= run) { best } else { Some((turn, run)) }
        });
        best.map(|(turn, _)| AncestorMatch { turn, covers: index + 1 })
    })
}

/// If several turns have the same boundary, at most this many are compared, the newest.
const CANDIDATES: usize = 8;

/// How many consecutive parts of the request, ending with the one at `index`, are also consecutive in what
/// the turn sent and received.
fn run(ledger: &Ledger, turn: &Turn, keys: &[PartKey], index: usize) -> usize {
    let sketch = ledger.sketch(turn).unwrap_or_default();
    let history =
        sketch.iter().filter(|part| part.place == PromptSection::History).map(|part| part.key);
    let mut said: Vec<PartKey> = history.collect();
    if let Some(last) = turn.position.last.filter(|last| said.last() != Some(last)) {
        said = vec![last];
    }
    let holds = |parts: &&[SketchPart]| parts.iter().any(|part| part.key == keys[index]);
    let form = turn.forms().map(|form| form.parts).find(holds).unwrap_or(&turn.reply);
    let reply = form.iter().map(|part| part.key);
    let answered = reply.clone().position(|key| key == keys[index]).unwrap_or(0);
    said.extend(reply.take(answered + 1));
    let pairs = said.iter().rev().zip(keys[..=index].iter().rev());
    pairs
        .take_while(|(said, sent)| {
            said == sent || **said == sent.cut() || **said == sent.cut().cut()
        })
        .count()
}

/// Whether a boundary proves that the turn is the parent. An anchor key does. Other content may occur twice
/// (`Go on.`, `Done.`), so five parts must match, or three parts and the head (system prompt and tools).
fn proves(turn: &Turn, marked: bool, run: usize, position: &Position) -> bool {
    marked || run >= 5 || (run >= 3 && has_head(turn, position))
}

fn has_head(turn: &Turn, position: &Position) -> bool {
    turn.position.system == position.system && turn.position.tools == position.tools
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
    let no_turn = conversation.purpose != Purpose::Turn || turn.purpose != Purpose::Turn;
    let lacks_reply = || {
        let end = conversation.chains().position(|chain| chain == turn.position.chain);
        end.is_some_and(|end| replies(conversation).get(end + 1) != Some(&true))
    };
    let beside = other_head || no_turn || !has_head(turn, position) && lacks_reply();
    if turn.position.client_thread != position.client_thread || beside {
        return Growth::Forks;
    }
    let repeats = turn.position.chain == position.chain;
    // A declined request may be sent to another model.
    let is_declined = turn.stop == Some(StopReason::Refused) && turn.reply.is_empty();
    if repeats && (turn.outcome != Outcome::Complete || is_declined) {
        return Growth::Retries;
    }
    // The same request after it was answered, or another continuation of a turn that already has one.
    if repeats || ledger.has_grown(turn) { Growth::Forks } else { Growth::Grows }
}

/// How a request relates to the turn whose response it names. It has only the new part, so its content does
/// not show a retry, and the provider may hold its head.
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

/// System prompt and tools that a request to held history does not repeat are held, too.
fn inherit_head(position: &mut Position, parent: &Turn) {
    let nothing = fold(&[]);
    if position.system == nothing {
        position.system = parent.position.system;
    }
    if position.tools == nothing {
        position.tools = parent.position.tools;
    }
}

/// Whether a turn is a warm-up with instructions and tools only.
fn is_bare(turn: &Turn) -> bool {
    let position = &turn.position;
    turn.purpose == Purpose::WarmUp && position.parent.is_none() && position.chain == Chain::START
}

#[cfg(test)]
mod tests;
