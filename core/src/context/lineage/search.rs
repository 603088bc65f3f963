//! The search for the turn that a request continues: by its reply, by a boundary, by its end, or by sentences of its reply.
//!
//! Pure; must not know which thread the request begins or stays on.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::sync::Arc;

use crate::context::edited::{is_history, shown_replies};
use crate::context::ledger::{BoundaryHash, Ledger};
use crate::context::{Outcome, Position, PromptSection, Turn};
use crate::dialect::{Chain, Conversation, Part, PartKey, PartKind, Purpose, Role};

/// A turn that a request continues.
#[derive(Clone)]
pub(super) struct AncestorMatch<'l> {
    pub(super) turn: &'l Arc<Turn>,
    /// How many keyed parts of the request it covers.
    pub(super) covers: usize,
    /// As [`Placement::by_sentences`](super::Placement::by_sentences).
    pub(super) by_sentences: bool,
}

impl<'l> AncestorMatch<'l> {
    fn new(turn: &'l Arc<Turn>, covers: usize) -> Self {
        Self { turn, covers, by_sentences: false }
    }
}

/// The search for the turn that a request continues.
pub(super) struct Search<'s, 'l> {
    ledger: &'l Ledger,
    conversation: &'s Conversation,
    position: &'s Position,
    others: OtherAgents<'s>,
    /// Whether each keyed part is the model's.
    replies: Vec<bool>,
    /// The turn that made the newest reasoning whose maker is known, after how many keyed parts; not another agent's.
    newest: Option<(usize, &'l Arc<Turn>)>,
    /// What way 4 finds. Most requests have no edited reply, and then nobody asks.
    said: OnceCell<Vec<AncestorMatch<'l>>>,
}

impl<'s, 'l> Search<'s, 'l> {
    pub(super) fn new(
        ledger: &'l Ledger,
        conversation: &'s Conversation,
        position: &'s Position,
    ) -> Self {
        let others = OtherAgents::new(ledger, position);
        let newest = newest_reasoning(ledger, conversation);
        Self {
            ledger,
            conversation,
            position,
            newest: newest.filter(|(_, maker)| !others.contains(maker)),
            others,
            replies: replies(conversation),
            said: OnceCell::new(),
        }
    }

    /// Finds the parent turn in four ways. The match that covers most of the request is used. Of equals a sentence wins, because
    /// its reply stands after what is covered, and a prefix (way 1, then 3) wins over a boundary:
    /// 1. *reply*: a prefix of the request is a known turn's request and reply;
    /// 2. *boundary*: the request has a part that identifies a turn's reply (a tool call with its unique id, a
    ///    long text), or a run of parts across the end of a turn's request and the start of its reply
    ///    ([`proves`]). This finds the turn even if the client changed a part before it (a date, a reminder,
    ///    its whole first message), or dropped the text beside a tool call;
    /// 3. *end*: a prefix of the request is a known turn's request without its reply (a repeat, an aborted
    ///    call, a rewind). This proves less, so system prompt and tools must be the same. They may differ for a call
    ///    beside the conversation: it has more than the turn's request, and the reply that the turn itself continues
    ///    ([`continues_a_reply`]). And they may differ if the client edited the reply: a reply follows the turn's request,
    ///    which has one itself. Of several such turns, one that may have reached its provider is the
    ///    parent, then one that said what is left of an edited reply;
    /// 4. *sentence*: what is left of a reply that the client edited ([`edited`](crate::context::edited)).
    ///
    /// Behind the nearest of them, a turn that continues it may have its whole reply, after a message that the client changed.
    /// If none of these covers what the newest reasoning in the request stands behind, its maker is the parent: a reply may be
    /// reasoning alone, or a call without an id, after a message that the client changed.
    ///
    /// Of equal turns, one that no turn has continued is the parent, then the newest.
    pub(super) fn ancestor(&self) -> Option<AncestorMatch<'l>> {
        let by_chain = self.longest_prefix();
        let covered = by_chain.as_ref().map_or(0, |ancestor| ancestor.covers);
        // Of turns that look alike, one that continues what is the same for certain is the likely one.
        let base = by_chain.as_ref().map(|ancestor| ancestor.turn);
        let by_boundary = match self.replies.iter().skip(covered).any(|is_reply| *is_reply) {
            true => self.last_boundary(by_chain.as_ref()),
            // There is no boundary without a reply.
            false => None,
        };
        let nearest = by_boundary.or(by_chain);
        let covered = nearest.as_ref().map_or(0, |ancestor| ancestor.covers);
        let last_reply = self.replies.iter().rposition(|is_reply| *is_reply);
        if last_reply.is_some_and(|at| at >= covered) {
            // A turn that said nothing did not say what stands there.
            let is_silent = nearest.as_ref().is_some_and(|ancestor| ancestor.turn.reply.is_empty());
            let mut nearer =
                self.said().iter().filter(|found| is_silent || found.covers >= covered);
            let continued = nearer.clone().find(|found| continues(self.ledger, found.turn, base));
            if let Some(found) = continued.or_else(|| nearer.next()) {
                return Some(found.clone());
            }
        }
        let nearest = match self.newest {
            Some((covers, maker)) if nearest.as_ref().is_none_or(|it| it.covers <= covers) => {
                AncestorMatch::new(maker, covers)
            }
            _ => nearest?,
        };
        Some(self.behind_message(nearest))
    }

    /// Ways 1 and 3: the longest prefix that identifies a turn. Reasoning is in no chain.
    fn longest_prefix(&self) -> Option<AncestorMatch<'l>> {
        let Self { ledger, position, .. } = *self;
        let chains = self.conversation.chains();
        for (index, chain) in chains.iter().enumerate().rev() {
            let covers = index + 1;
            // A model may say the same in two branches: the reply whose reasoning the request has is the one.
            if let Some((_, maker)) = self.newest
                && maker.is_after(*chain)
                && maker.position.client_thread == position.client_thread
            {
                return Some(AncestorMatch::new(maker, covers));
            }
            // A turn that arrived before the newest reasoning in the prefix was made does not have it.
            let since = match self.newest {
                // Arrivals are compared, not ends: a client may go on before its reply has ended here, and
                // another replica has another clock.
                Some((parts, maker)) if covers > parts => maker.at,
                _ => 0,
            };
            let replied = ledger
                .replied_to(*chain)
                .filter(|turn| turn.at >= since && !self.others.contains(turn));
            if let Some(turn) =
                prefer(replied, position, |turn| (is_complete(turn), !ledger.has_grown(turn)))
            {
                return Some(AncestorMatch::new(turn, covers));
            }
            // A request that was sent again is no other one that waits.
            let is_repeat = covers == chains.len();
            let ended = ledger.ended_at(*chain).filter(|turn| {
                let is_edited = turn.position.has_reply && self.replies.get(covers) == Some(&true);
                turn.at >= since
                    && !self.others.contains(turn)
                    && (has_head(turn, position)
                        || is_edited
                        || covers < chains.len()
                            && continues_a_reply(ledger, turn, &chains[..index]))
            });
            let likelihood = |turn: &Turn| {
                let is_said = self.said().iter().any(|found| std::ptr::eq(&**found.turn, turn));
                (may_be_cached(turn), is_said, is_repeat || !ledger.has_grown(turn))
            };
            if let Some(turn) = prefer(ended, position, likelihood) {
                return Some(AncestorMatch::new(turn, covers));
            }
        }
        None
    }

    /// Way 2: the boundary nearest to the end, among those that cover more than a prefix does.
    fn last_boundary(&self, by_chain: Option<&AncestorMatch<'l>>) -> Option<AncestorMatch<'l>> {
        let ledger = self.ledger;
        let covered = by_chain.map_or(0, |ancestor| ancestor.covers);
        let base = by_chain.map(|ancestor| ancestor.turn);
        // Reasoning between two parts does not matter, because it has no key.
        let parts: Vec<&Part> =
            self.conversation.parts().filter(|part| part.key.is_some()).collect();
        let keys: Vec<PartKey> = parts.iter().filter_map(|part| part.key).collect();
        for index in (covered..keys.len()).rev() {
            let part = parts[index];
            if !is_reply(part) {
                continue;
            }
            let mut candidates = Vec::new();
            // Another call may be the same but for its id, which is in no key of Gemini's.
            if part.kind != PartKind::ToolCall || part.id.is_some() {
                let anchor = BoundaryHash::of_anchor_key(keys[index]);
                let turns = ledger.turns_at_boundary(anchor).take(CANDIDATES);
                candidates.extend(turns.map(|turn| (turn, true)));
            }
            if index > 0 {
                let boundary = BoundaryHash::new(keys[index - 1], keys[index]);
                let turns = ledger.turns_at_boundary(boundary).take(CANDIDATES);
                candidates.extend(turns.map(|turn| (turn, false)));
            }
            let mut best = None;
            for (turn, has_anchor) in candidates {
                if self.others.contains(turn) {
                    continue;
                }
                let run = run(ledger, turn, &keys, index);
                let rank = (run, continues(ledger, turn, base), !ledger.has_grown(turn));
                // The turns are given newest first; of equals, the first is kept.
                if proves(turn, has_anchor, run, self.position)
                    && best.is_none_or(|(_, most)| rank > most)
                {
                    best = Some((turn, rank));
                }
            }
            if let Some((turn, _)) = best {
                return Some(AncestorMatch::new(turn, index + 1));
            }
        }
        None
    }

    /// Way 4: the turns whose reply has most sentences of the last reply in the request, the likeliest first.
    fn by_sentences(&self) -> Vec<AncestorMatch<'l>> {
        for shown in shown_replies(self.conversation) {
            let mut counts: Vec<(&Arc<Turn>, usize)> = Vec::new();
            for key in shown.keys {
                for turn in
                    self.ledger.turns_at_boundary(BoundaryHash::of_anchor_key(key)).take(CANDIDATES)
                {
                    match counts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, turn)) {
                        Some((_, count)) => *count += 1,
                        None if !self.others.contains(turn) => counts.push((turn, 1)),
                        None => {}
                    }
                }
            }
            if let Some(most) = counts.iter().map(|(_, count)| *count).max() {
                counts.retain(|(_, count)| *count == most);
                counts.sort_by_key(|(turn, _)| Reverse((!self.ledger.has_grown(turn), turn.at)));
                let found = counts.into_iter();
                let covers = shown.covers;
                return found
                    .map(|(turn, _)| AncestorMatch { turn, covers, by_sentences: true })
                    .collect();
            }
        }
        Vec::new()
    }

    /// The turn after this one whose whole reply stands behind the user's own message, which its client may have changed; else
    /// this one.
    fn behind_message(&self, certain: AncestorMatch<'l>) -> AncestorMatch<'l> {
        let parts =
            self.conversation.parts().filter(|part| part.key.is_some()).skip(certain.covers);
        let mut parts = parts.peekable();
        let mut covers = certain.covers;
        while parts.next_if(|part| !is_history(part)).is_some() {
            covers += 1;
        }
        let reply: Vec<PartKey> =
            parts.take_while(|part| is_reply(part)).filter_map(|part| part.key).collect();
        if covers == certain.covers || reply.is_empty() {
            return certain;
        }
        let children = self.ledger.turns().rev().filter(|turn| {
            turn.position.parent.as_ref() == Some(&certain.turn.exchange)
                && turn.purpose == Purpose::Turn
                && !self.others.contains(turn)
                && turn
                    .forms()
                    .any(|form| form.parts.iter().map(|part| part.key).eq(reply.iter().copied()))
        });
        // Of equals, one that no turn has continued, then the newest, which comes first.
        match children.min_by_key(|turn| self.ledger.has_grown(turn)) {
            Some(turn) => AncestorMatch::new(turn, covers + reply.len()),
            None => certain,
        }
    }

    fn said(&self) -> &[AncestorMatch<'l>] {
        self.said.get_or_init(|| self.by_sentences())
    }
}

/// Whether a turn is this earlier one or continues it; so does every turn if there is none.
fn continues(ledger: &Ledger, turn: &Turn, earlier: Option<&Arc<Turn>>) -> bool {
    let Some(earlier) = earlier else { return true };
    ledger.line(Some(turn)).any(|turn| std::ptr::eq(turn, &**earlier))
}

fn is_complete(turn: &Turn) -> bool {
    turn.outcome == Outcome::Complete
}

/// The turns of other agents, which the request of an agent that has turns of its own does not continue: their prompts, and
/// even the ids of their calls, may be equal. They are told apart by the names that the client gives them.
struct OtherAgents<'p>(Option<&'p str>);

impl<'p> OtherAgents<'p> {
    fn new(ledger: &Ledger, position: &'p Position) -> Self {
        let Some(name) = position.client_thread.as_deref() else { return Self(None) };
        // The first request of an agent may continue another's turn: it is a fork.
        let mut threads = ledger.turns().map(|turn| turn.position.client_thread.as_deref());
        Self(if threads.any(|thread| thread == Some(name)) { Some(name) } else { None })
    }

    fn contains(&self, turn: &Turn) -> bool {
        let other = turn.position.client_thread.as_deref();
        self.0.is_some_and(|own| other.is_some_and(|other| other != own))
    }
}

/// The turn that made the newest reasoning in a request whose maker is known, after how many keyed parts.
fn newest_reasoning<'l>(
    ledger: &'l Ledger,
    conversation: &Conversation,
) -> Option<(usize, &'l Arc<Turn>)> {
    if !ledger.knows_reasoning() {
        return None;
    }
    let mut keyed_parts = 0;
    let mut newest = None;
    for part in conversation.parts() {
        if let Some(maker) = part.signature_key.and_then(|key| maker(ledger, key)) {
            newest = Some((keyed_parts, maker));
        }
        keyed_parts += usize::from(part.key.is_some());
    }
    newest
}

fn maker(ledger: &Ledger, key: PartKey) -> Option<&Arc<Turn>> {
    let record = ledger.reasoning_by_signature(key)?;
    // Where the reply was reasoning alone, the chain after it is the request's.
    let mut turns = ledger.replied_to(record.after).chain(ledger.ended_at(record.after));
    turns.find(|turn| turn.ended == record.at && turn.is_after(record.after))
}

/// Whether a turn continues a reply that ended at one of these chains.
fn continues_a_reply(ledger: &Ledger, turn: &Turn, chains: &[Chain]) -> bool {
    let parent = turn.position.parent.as_ref().and_then(|parent| ledger.turn(parent));
    let Some(parent) = parent else { return false };
    // With another head it may be a call beside the conversation that asked the same first (a router, a
    // count).
    turn.purpose == Purpose::Turn
        && has_head(parent, &turn.position)
        && !parent.reply.is_empty()
        && parent.forms().any(|form| chains.contains(&form.after))
}

fn may_be_cached(turn: &Turn) -> bool {
    // What was refused, or never sent, is in no cache of a provider.
    !matches!(turn.outcome, Outcome::Refused | Outcome::EndedByProxy)
}

/// The best of several turns at one chain (given newest first): one of the conversation rather than a call
/// beside it, then one on the client's thread, then one with the same head, then the likeliest.
pub(super) fn prefer<'l, Likelihood: Ord>(
    turns: impl Iterator<Item = &'l Arc<Turn>>,
    position: &Position,
    likelihood: impl Fn(&Turn) -> Likelihood,
) -> Option<&'l Arc<Turn>> {
    let mut best = None;
    for turn in turns {
        let rank = (
            turn.purpose == Purpose::Turn,
            turn.position.client_thread == position.client_thread,
            has_head(turn, position),
            likelihood(turn),
        );
        // Of equals the newest stays: `max_by_key` would keep the last one, here the oldest.
        if best.as_ref().is_none_or(|(best_rank, _)| rank > *best_rank) {
            best = Some((rank, turn));
        }
    }
    best.map(|(_, turn)| turn)
}

/// If several turns have the same boundary, at most this many are compared, the newest.
const CANDIDATES: usize = 8;

/// How many consecutive parts of the request, ending with the one at `index`, are also consecutive in what
/// the turn sent and received.
fn run(ledger: &Ledger, turn: &Turn, keys: &[PartKey], index: usize) -> usize {
    let sketch = ledger.sketch(turn).unwrap_or_default();
    let history =
        sketch.iter().filter(|part| part.place == PromptSection::History).map(|part| part.key);
    let mut turn_keys: Vec<PartKey> = history.collect();
    // Without a sketch (its base was dropped), only the end of the request is known.
    if let Some(end) = turn.position.last.filter(|end| turn_keys.last() != Some(end)) {
        turn_keys = vec![end];
    }
    let form = turn
        .forms()
        .map(|form| form.parts)
        .find(|parts| parts.iter().any(|part| part.key == keys[index]))
        .unwrap_or(&turn.reply);
    let place = form.iter().position(|part| part.key == keys[index]).unwrap_or(0);
    turn_keys.extend(form.iter().take(place + 1).map(|part| part.key));
    // The sketch has the keys of what was sent, which differ for cut results.
    turn_keys
        .iter()
        .rev()
        .zip(keys[..=index].iter().rev())
        .take_while(|(turn_key, key)| {
            turn_key == key || **turn_key == key.cut() || **turn_key == key.cut().cut()
        })
        .count()
}

fn proves(turn: &Turn, has_anchor: bool, run: usize, position: &Position) -> bool {
    // Content other than an anchor may occur twice (`Go on.`, `Done.`), so five parts must match, or
    // three parts and the head (system prompt and tools).
    has_anchor || run >= 5 || (run >= 3 && has_head(turn, position))
}

pub(super) fn is_reply(part: &Part) -> bool {
    part.role == Role::Assistant
}

pub(super) fn replies(conversation: &Conversation) -> Vec<bool> {
    let mut replies = Vec::with_capacity(conversation.chains().len());
    replies.extend(conversation.parts().filter(|part| part.key.is_some()).map(is_reply));
    replies
}

pub(super) fn has_head(turn: &Turn, position: &Position) -> bool {
    turn.position.system == position.system && turn.position.tools == position.tools
}
