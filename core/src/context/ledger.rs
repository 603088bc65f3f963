//! What is known about one session, in memory: its turns and decisions, and the indexes to find them.
//!
//! Facts are added, never changed. A turn is found by its exchange, by its response's id, by the chain at the
//! end of its request, by the chain after its reply, and by its boundary (the last part of the request and
//! the first part of the reply). Must not know where facts are stored, or what is decided from them.

mod boundary;
mod decided;
mod totals;

pub(super) use boundary::{ANCHOR_BYTES, anchor_keys_of, is_own};
pub use boundary::{BoundaryHash, anchor_keys, boundary_hashes, reply_end_chains};
pub use totals::Totals;

use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::decisions::Decisions;
use super::footprint::{block_bytes, entry_bytes, list_bytes, text_bytes};
use super::repair::RepairDecision;
use super::{
    CompactionRecord, Cut, ExchangeId, Fact, InjectedMessage, InjectionPlace, Outcome,
    QueuedMessage, ReasoningDecision, ReasoningRecord, ReplyForm, Revocation, Sketch, SketchPart,
    Suspension, ThreadId, Turn, TurnOrigin,
};
use crate::dialect::hints::ClientHints;
use crate::dialect::{Chain, PartKey, Purpose};

/// Everything known about one scope.
#[derive(Debug, Default)]
pub struct Ledger {
    turns: Vec<Arc<Turn>>,
    by_exchange: HashMap<ExchangeId, usize>,
    by_response: HashMap<Box<str>, usize>,
    by_end: HashMap<Chain, Vec<usize>>,
    by_after: HashMap<Chain, Vec<usize>>,
    by_boundary: HashMap<BoundaryHash, Vec<usize>>,
    /// Turns that a later turn of their thread continues.
    grown: HashSet<ExchangeId>,
    reasoning: HashMap<Chain, Arc<ReasoningRecord>>,
    /// The reasoning of later replies with the same parts: to a repeated request, or in another thread.
    repeated_reasoning: HashMap<Chain, Vec<Arc<ReasoningRecord>>>,
    /// The reasoning of all replies, those to a repeated request too, by the keys of its signed blocks.
    by_signature: HashMap<PartKey, Arc<ReasoningRecord>>,
    /// Chains after replies, by the replies' anchor keys, oldest first; of many replies with a key, the newest.
    by_anchor_key: HashMap<PartKey, Vec<Chain>>,
    /// Decisions, those of shadow mode included.
    cuts: Decisions<Cut>,
    reasoning_decisions: Decisions<ReasoningDecision>,
    repairs: Decisions<RepairDecision>,
    /// Refused rewrites.
    suspensions: Vec<Suspension>,
    /// Revocations, by the exchange whose decisions they revoke.
    revocations: HashMap<ExchangeId, Vec<Revocation>>,
    /// Summaries that are in use, by the keys that they are stored under.
    compacts: Decisions<CompactionRecord>,
    /// Summaries that were written.
    summaries: Decisions<CompactionRecord>,
    /// The session's client compacts by itself.
    client_compacted: bool,
    /// Queued messages, and what happened to them, by id.
    queued: HashMap<Box<str>, Arc<QueuedMessage>>,
    injected: HashMap<Box<str>, Arc<InjectedMessage>>,
    bytes: usize,
}

/// Most turns of a session in memory; past it, the oldest quarter is dropped. The longest sessions seen have
/// a few thousand.
const TURNS: usize = 4096;
/// How many turns a client may still take to use a summary that it had written.
const COMPACTED_SOON: usize = 7;
/// Of the replies with the same anchor key, at most this many are found by it, the newest.
const MOST_ALIKE: usize = 16;
/// Most parts that are copied to complete sketches whose base is dropped.
const WHOLE: usize = 100_000;

/// The beginning of a request that repeats the request of an earlier turn.
#[derive(Clone, Debug)]
pub(super) struct RepeatedPrefix {
    /// The earlier turn.
    pub(super) of: Arc<Turn>,
    /// Its tokens, as estimated.
    pub(super) tokens: u64,
}

impl Ledger {
    /// Adds a fact. A fact that is already there changes nothing.
    pub fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Turn(turn) => self.add_turn(turn),
            Fact::Reasoning(reasoning) => self.add_reasoning(Arc::new(*reasoning)),
            Fact::Cut(cut) => self.bytes += self.cuts.add(Arc::new(*cut)),
            Fact::ReasoningDecision(decision) => {
                self.bytes += self.reasoning_decisions.add(Arc::new(*decision));
            }
            Fact::Repair(repair) => self.bytes += self.repairs.add(Arc::new(*repair)),
            Fact::Suspension(suspended) => self.add_suspension(*suspended),
            Fact::Revocation(revocation) => self.add_revocation(*revocation),
            Fact::Summary(summary) => self.bytes += self.summaries.add(Arc::new(*summary)),
            Fact::Compact(compact) => self.bytes += self.compacts.add(Arc::new(*compact)),
            Fact::Queued(queued) => self.add_queued(Arc::new(*queued)),
            Fact::InjectedMessage(message) => self.add_injected(Arc::new(*message)),
        }
    }

    /// Adds all facts of another ledger.
    pub fn merge(&mut self, other: &Ledger) {
        for turn in &other.turns {
            self.add_turn(turn.clone());
        }
        for reasoning in other.all_reasoning() {
            self.add_reasoning(reasoning.clone());
        }
        self.take_decisions(other);
    }

    /// The reasoning of all replies, also of those with equal parts.
    fn all_reasoning(&self) -> impl Iterator<Item = &Arc<ReasoningRecord>> {
        self.reasoning.values().chain(self.repeated_reasoning.values().flatten())
    }

    fn take_decisions(&mut self, other: &Ledger) {
        for cut in other.cuts.all() {
            self.bytes += self.cuts.add(cut.clone());
        }
        for decision in other.reasoning_decisions.all() {
            self.bytes += self.reasoning_decisions.add(decision.clone());
        }
        for repair in other.repairs.all() {
            self.bytes += self.repairs.add(repair.clone());
        }
        for summary in other.summaries.all() {
            self.bytes += self.summaries.add(summary.clone());
        }
        for compact in other.compacts.all() {
            self.bytes += self.compacts.add(compact.clone());
        }
        // Once seen, it is never taken back.
        self.client_compacted |= other.client_compacted;
        for queued in other.queued.values() {
            self.add_queued(queued.clone());
        }
        for message in other.injected.values() {
            self.add_injected(message.clone());
        }
        for suspension in &other.suspensions {
            self.add_suspension(suspension.clone());
        }
        for revocation in other.revocations.values().flatten() {
            self.add_revocation(revocation.clone());
        }
    }

    /// Its memory, bytes: never less than the real amount, and rarely more than a third above it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory of decisions within it, bytes.
    pub fn decision_bytes(&self) -> usize {
        let Self { cuts, reasoning_decisions: decisions, repairs, summaries, compacts, .. } = self;
        cuts.bytes() + decisions.bytes() + repairs.bytes() + summaries.bytes() + compacts.bytes()
    }

    fn add_reasoning(&mut self, reasoning: Arc<ReasoningRecord>) {
        // If a request was repeated and answered with the same parts, the first reply is the one that
        // is put back; another one only in its own branch.
        let chain = reasoning.after;
        let signatures: Vec<_> = reasoning.signature_keys().collect();
        let by_signature = signatures.iter().filter_map(|key| self.by_signature.get(key));
        let is_recorded = by_signature
            .chain(self.reasoning.get(&chain))
            .chain(self.repeated_reasoning(chain))
            .any(|record| record.key() == reasoning.key());
        if is_recorded {
            return;
        }
        self.bytes += reasoning_bytes(&reasoning, signatures.len());
        // Facts may come in any order, so time and key decide.
        let is_first = self
            .reasoning
            .get(&chain)
            .is_none_or(|record| (record.at, record.key()) > (reasoning.at, reasoning.key()));
        let repeated = if is_first {
            for key in &reasoning.anchor_keys {
                self.add_anchor_key(*key, &reasoning);
            }
            self.reasoning.insert(chain, reasoning.clone())
        } else {
            Some(reasoning.clone())
        };
        self.by_signature.extend(signatures.into_iter().map(|key| (key, reasoning.clone())));
        if let Some(record) = repeated {
            self.repeated_reasoning.entry(chain).or_default().push(record);
        }
    }

    fn add_anchor_key(&mut self, key: PartKey, reasoning: &ReasoningRecord) {
        let chains = self.by_anchor_key.entry(key).or_insert_with(|| Vec::with_capacity(1));
        chains.retain(|chain| *chain != reasoning.after);
        // Facts may come in any order: sorted by time, not by arrival.
        let place = chains.partition_point(|chain| {
            self.reasoning
                .get(chain)
                .is_some_and(|other| (other.at, other.after.0) < (reasoning.at, reasoning.after.0))
        });
        chains.insert(place, reasoning.after);
        if chains.len() > MOST_ALIKE {
            chains.remove(0);
        }
    }

    fn add_suspension(&mut self, suspension: Suspension) {
        if self.suspensions.iter().all(|other| other.exchange != suspension.exchange) {
            let parent = suspension.parent.as_ref().map_or(0, text_bytes);
            let texts = text_bytes(&suspension.thread) + text_bytes(&suspension.exchange) + parent;
            self.bytes += 2 * size_of::<Suspension>() + texts;
            self.suspensions.push(suspension);
        }
    }

    fn add_revocation(&mut self, revocation: Revocation) {
        let recorded = self.revocations.entry(revocation.exchange.clone()).or_default();
        if !recorded.contains(&revocation) {
            let parent = revocation.parent.as_ref().map_or(0, text_bytes);
            let texts =
                text_bytes(&revocation.thread) + 2 * text_bytes(&revocation.exchange) + parent;
            let entry = entry_bytes::<(ExchangeId, Vec<Revocation>)>();
            // A `Vec` with one element has room for four.
            self.bytes +=
                4 * size_of::<Revocation>() + texts + list_bytes(&revocation.about) + entry;
            recorded.push(revocation);
        }
    }

    fn add_queued(&mut self, queued: Arc<QueuedMessage>) {
        if let Entry::Vacant(place) = self.queued.entry(queued.id.clone()) {
            let texts = 2 * text_bytes(&queued.id) + text_bytes(&queued.text);
            let repeated_bytes = queued.repeats.as_deref().map_or(0, text_bytes);
            let entry = entry_bytes::<(Box<str>, Arc<QueuedMessage>)>();
            self.bytes +=
                block_bytes(size_of::<QueuedMessage>() + 16) + texts + repeated_bytes + entry;
            place.insert(queued);
        }
    }

    fn add_injected(&mut self, message: Arc<InjectedMessage>) {
        if let Entry::Vacant(place) = self.injected.entry(message.id.clone()) {
            let place_bytes = message.place().map_or(0, |place| {
                size_of::<InjectionPlace>()
                    + text_bytes(&place.text)
                    + text_bytes(&place.exchange)
                    + text_bytes(&place.thread)
            });
            let entry = entry_bytes::<(Box<str>, Arc<InjectedMessage>)>();
            self.bytes += block_bytes(size_of::<InjectedMessage>() + 16)
                + 2 * text_bytes(&message.id)
                + place_bytes
                + entry;
            place.insert(message);
        }
    }

    fn add_turn(&mut self, turn: Arc<Turn>) {
        if let Some(index) = self.by_exchange.get(&turn.exchange).copied() {
            return self.complete_turn(index, turn);
        }
        if self.turns.len() >= TURNS {
            self.forget_oldest();
        }
        let index = self.turns.len();
        self.bytes += bytes_of(&turn);
        self.client_compacted |= turn.purpose == Purpose::Compaction;
        self.by_exchange.insert(turn.exchange.clone(), index);
        self.by_end.entry(turn.position.chain).or_default().push(index);
        self.find_by_reply(index, &turn);
        self.turns.push(turn);
    }

    fn complete_turn(&mut self, index: usize, turn: Arc<Turn>) {
        let Some(recorded) = self.turns.get_mut(index) else { return };
        if !recorded.is_completed_by(turn.outcome, &turn.usage) {
            return;
        }
        // What finds a part of the reply still finds it.
        *recorded = turn.clone();
        self.bytes += bytes_of(&turn);
        self.find_by_reply(index, &turn);
    }

    fn find_by_reply(&mut self, index: usize, turn: &Turn) {
        if let Some(response) = &turn.response {
            self.by_response.insert(response.clone(), index);
        }
        for form in turn.forms().filter(|form| form.after != turn.position.chain) {
            let ending = self.by_after.entry(form.after).or_default();
            // Several forms of one reply may end at the same chain.
            if ending.last() != Some(&index) {
                ending.push(index);
            }
        }
        for boundary in boundary_hashes(turn) {
            self.by_boundary.entry(boundary).or_default().push(index);
        }
        if let Some(parent) = self.parent(&turn.position)
            && parent.position.chain != turn.position.chain
            && parent.position.thread == turn.position.thread
            && continues_parent(turn)
        {
            self.grown.insert(parent.exchange.clone());
        }
    }

    fn forget_oldest(&mut self) {
        let ledger = std::mem::take(self);
        let (dropped_turns, turns) = ledger.turns.split_at(ledger.turns.len() / 4);
        let dropped: HashSet<&ExchangeId> =
            dropped_turns.iter().map(|turn| &turn.exchange).collect();
        // Tools that later turns have, too, stand with the turn that had them first.
        let firsts = dropped_turns.iter().filter(|turn| !turn.definitions.is_empty());
        let mut firsts: HashMap<_, _> = firsts.map(|turn| (turn.position.tools, turn)).collect();
        let mut room = WHOLE;
        for turn in turns {
            // Sketches that are based on a dropped turn are completed, as far as there is room, so
            // that their turns can still be anchors.
            let lost = turn.sketch.base.as_ref().is_some_and(|base| dropped.contains(base));
            let parts = if lost { ledger.sketch(turn) } else { None };
            let mut turn = match parts {
                Some(added) if added.len() <= room => {
                    room -= added.len();
                    let sketch = Sketch { added, ..Sketch::default() };
                    Arc::new(Turn { sketch, ..Turn::clone(turn) })
                }
                _ => turn.clone(),
            };
            if let Some(first) = firsts.remove(&turn.position.tools)
                && turn.definitions.is_empty()
            {
                Arc::make_mut(&mut turn).definitions.clone_from(&first.definitions);
            }
            self.add_turn(turn);
        }
        for record in ledger.all_reasoning() {
            // A reply that is reasoning alone ends where its request does.
            let end = &record.after;
            if self.by_after.contains_key(end) || self.by_end.contains_key(end) {
                self.add_reasoning(record.clone());
            }
        }
        self.take_decisions(&ledger);
    }

    /// Whether it has no turns.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// All turns, in the order in which they were added.
    pub fn turns(&self) -> impl DoubleEndedIterator<Item = &Arc<Turn>> {
        self.turns.iter()
    }

    /// The turn that this exchange became, if it is known.
    pub fn turn(&self, exchange: &ExchangeId) -> Option<&Arc<Turn>> {
        self.turns.get(*self.by_exchange.get(exchange)?)
    }

    /// The turn whose response has this id.
    pub fn answered_by(&self, response: &str) -> Option<&Arc<Turn>> {
        self.turns.get(*self.by_response.get(response)?)
    }

    pub(super) fn ended_at(&self, chain: Chain) -> impl Iterator<Item = &Arc<Turn>> {
        self.listed(self.by_end.get(&chain))
    }

    pub(super) fn replied_to(&self, chain: Chain) -> impl Iterator<Item = &Arc<Turn>> {
        self.listed(self.by_after.get(&chain))
    }

    pub(super) fn turns_at_boundary(
        &self,
        boundary: BoundaryHash,
    ) -> impl Iterator<Item = &Arc<Turn>> {
        self.listed(self.by_boundary.get(&boundary))
    }

    pub(super) fn has_grown(&self, turn: &Turn) -> bool {
        self.grown.contains(&turn.exchange)
    }

    /// The reasoning of the reply that ended at `chain`.
    pub fn reasoning(&self, after: Chain) -> Option<&Arc<ReasoningRecord>> {
        self.reasoning.get(&after)
    }

    /// The signed reasoning of later replies that ended at `chain`, too.
    pub(crate) fn repeated_reasoning(
        &self,
        after: Chain,
    ) -> impl Iterator<Item = &Arc<ReasoningRecord>> {
        self.repeated_reasoning.get(&after).into_iter().flatten()
    }

    /// The reasoning of replies with this anchor key, newest first.
    pub(super) fn reasoning_by_anchor_key(
        &self,
        key: PartKey,
    ) -> impl Iterator<Item = &Arc<ReasoningRecord>> {
        let chains = self.by_anchor_key.get(&key).into_iter().flatten().rev();
        chains.filter_map(|chain| self.reasoning(*chain))
    }

    pub(super) fn reasoning_by_signature(&self, key: PartKey) -> Option<&Arc<ReasoningRecord>> {
        self.by_signature.get(&key)
    }

    /// Whether reasoning of any reply is known.
    pub fn knows_reasoning(&self) -> bool {
        !self.reasoning.is_empty()
    }

    /// Whether the session's client has compacted by itself before.
    pub fn client_compacted(&self) -> bool {
        self.client_compacted
    }

    /// Whether the client had the history of a turn, or of one of the few before it, summarised.
    pub(crate) fn is_being_compacted(&self, turn: Option<&Turn>) -> bool {
        if !self.client_compacted {
            return false;
        }
        // Copilot goes on while its summary is being written. One that it never uses is forgotten after a few turns.
        let newest: Vec<&ExchangeId> =
            self.line(turn).take(COMPACTED_SOON).map(|turn| &turn.exchange).collect();
        let mut compactions = self.turns.iter().filter(|turn| turn.purpose == Purpose::Compaction);
        compactions.any(|turn| {
            turn.position.parent.as_ref().is_some_and(|parent| newest.contains(&parent))
        })
    }

    /// Queued messages that no request took yet, in order.
    pub fn waiting(&self) -> Vec<&Arc<QueuedMessage>> {
        let mut waiting: Vec<_> =
            self.queued.values().filter(|queued| !self.injected.contains_key(&queued.id)).collect();
        waiting.sort_by(|a, b| (a.number, a.at, &a.id).cmp(&(b.number, b.at, &b.id)));
        waiting
    }

    /// All queued messages, in no order.
    pub fn queued(&self) -> impl Iterator<Item = &Arc<QueuedMessage>> {
        self.queued.values()
    }

    /// Messages that a request took, in the order in which they were queued.
    pub fn injections(&self) -> Vec<(&Arc<InjectedMessage>, &InjectionPlace)> {
        let injections =
            self.injected.values().filter_map(|message| Some((message, message.place()?)));
        let mut injections: Vec<_> = injections.collect();
        injections.sort_by(|a, b| (a.1.number, &a.0.id).cmp(&(b.1.number, &b.0.id)));
        injections
    }

    /// The nearest turn, from `turn` through its ancestors, whose reported usage an estimate can be based on.
    pub fn anchor_at(&self, turn: &Arc<Turn>) -> Option<&Arc<Turn>> {
        // The turn may have been completed since it was handed out.
        let nearest = self.turn(&turn.exchange)?;
        let anchor = self.line(Some(nearest)).find(|turn| is_anchor(turn))?;
        self.turn(&anchor.exchange)
    }

    /// The parts that a turn's request consisted of; `None` if a base of its sketch was dropped.
    pub fn sketch(&self, turn: &Turn) -> Option<Vec<SketchPart>> {
        let mut line = vec![&turn.sketch];
        while let Some(base) = line.last().and_then(|sketch| sketch.base.as_ref()) {
            if line.len() > self.turns.len() {
                return None; // a cycle: the facts contradict each other
            }
            line.push(&self.turn(base)?.sketch);
        }
        // From the oldest base to the turn itself: each keeps the beginning of the one before.
        let mut parts = Vec::with_capacity(line.iter().map(|sketch| sketch.added.len()).sum());
        for sketch in line.into_iter().rev() {
            parts.truncate(sketch.kept as usize);
            parts.extend_from_slice(&sketch.added);
        }
        Some(parts)
    }

    /// The beginning of this turn's request that repeats an earlier turn's.
    pub(super) fn repeated_prefix(&self, turn: &Turn) -> Option<RepeatedPrefix> {
        let base = self.turn(turn.sketch.base.as_ref()?)?;
        let parts = self.sketch(base)?;
        let repeated = parts.iter().take(turn.sketch.kept as usize);
        let tokens = repeated.map(|part| u64::from(part.tokens)).sum();
        Some(RepeatedPrefix { of: base.clone(), tokens })
    }

    /// Threads with their turns, in the order they began.
    pub fn threads(&self) -> Vec<(ThreadId, Vec<Arc<Turn>>)> {
        let mut threads: Vec<(ThreadId, Vec<Arc<Turn>>)> = Vec::new();
        let mut places: HashMap<&ThreadId, usize> = HashMap::default();
        for turn in &self.turns {
            let place = *places.entry(&turn.position.thread).or_insert_with(|| {
                threads.push((turn.position.thread.clone(), Vec::new()));
                threads.len() - 1
            });
            threads[place].1.push(turn.clone());
        }
        threads
    }

    /// The sum of what all turns used.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for turn in &self.turns {
            totals.add_turn(turn);
        }
        totals
    }

    fn listed(&self, indexes: Option<&Vec<usize>>) -> impl Iterator<Item = &Arc<Turn>> {
        // Newest first: of turns that look alike, the newest is the likely one.
        let indexes = indexes.map(Vec::as_slice).unwrap_or_default();
        indexes.iter().rev().filter_map(|index| self.turns.get(*index))
    }
}

fn reasoning_bytes(record: &ReasoningRecord, signatures: usize) -> usize {
    let blocks = record.blocks.iter().map(|block| text_bytes(&block.raw));
    let values = record.signatures.iter().map(|signature| text_bytes(&signature.value));
    let names = text_bytes(&record.model) + text_bytes(&record.upstream);
    let lists = list_bytes(&record.blocks)
        + list_bytes(&record.signatures)
        + list_bytes(&record.parts)
        + list_bytes(&record.anchor_keys);
    let entries = entry_bytes::<(Chain, Arc<ReasoningRecord>)>()
        + signatures * entry_bytes::<(PartKey, Arc<ReasoningRecord>)>()
        // A key has a list of chains, which mostly holds one.
        + record.anchor_keys.len()
            * (entry_bytes::<(PartKey, Vec<Chain>)>() + block_bytes(size_of::<Chain>()));
    // The two counters of an `Arc` take 16 bytes.
    let record_bytes = block_bytes(size_of::<ReasoningRecord>() + 16);
    record_bytes + entries + names + lists + blocks.chain(values).sum::<usize>()
}

/// The memory of a turn and its index entries, bytes, roughly.
fn bytes_of(turn: &Turn) -> usize {
    let position = &turn.position;
    // The keys of a turn's request and response are stored twice: in the turn and in the index.
    let found_by =
        2 * (text_bytes(&turn.exchange) + turn.response.as_deref().map_or(0, text_bytes));
    let parent = 2 * position.parent.as_ref().map_or(0, text_bytes);
    let threads =
        text_bytes(&position.thread) + position.client_thread.as_deref().map_or(0, text_bytes);
    let names = text_bytes(&turn.upstream) + text_bytes(&turn.model);
    let base = turn.sketch.base.as_ref().map_or(0, text_bytes);
    let hints = turn.hints.as_deref().map_or(0, ClientHints::bytes);
    let origin = turn.origin.as_deref().map_or(0, TurnOrigin::bytes);
    let texts = found_by + parent + threads + names + base + hints + origin;
    let others = turn.others.iter().map(|form| {
        let entry = entry_bytes::<(Chain, Vec<usize>)>() + 48;
        list_bytes(&form.parts) + list_bytes(&form.anchor_keys) + size_of::<ReplyForm>() + entry
    });
    let lists =
        list_bytes(&turn.sketch.added) + list_bytes(&turn.reply) + list_bytes(&turn.anchor_keys);
    let lists = lists + others.sum::<usize>() + list_bytes(&position.beginnings);
    let tools = turn.definitions.iter().map(|one| &one.tool).chain(&turn.called);
    let lists = lists + tools.map(|name| size_of::<Box<str>>() + text_bytes(name)).sum::<usize>();
    let steps = list_bytes(&turn.done.steps);
    // Each index has an entry with a list of turns.
    let ways = 2 + boundary_hashes(turn).count();
    let entries =
        3 * entry_bytes::<(Box<str>, usize)>() + ways * (entry_bytes::<(Chain, Vec<usize>)>() + 48);
    // The two counters of an `Arc` take 16 bytes.
    let turn_bytes = block_bytes(size_of::<Turn>() + 16) + 2 * size_of::<Arc<Turn>>();
    turn_bytes + texts + lists + steps + entries
}

fn continues_parent(turn: &Turn) -> bool {
    // A failed attempt or a call beside the conversation does not make a later turn a fork.
    turn.purpose == Purpose::Turn && turn.outcome == Outcome::Complete
}

fn is_anchor(turn: &Turn) -> bool {
    let measured = turn.context().is_some_and(|context| context.input > 0);
    // A warm-up counts if its usage is reported: the next request begins with it.
    let begins = matches!(turn.purpose, Purpose::Turn | Purpose::WarmUp);
    measured && begins && turn.sketch != Sketch::default()
}

#[cfg(test)]
mod memory_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ReasoningBlock;
    use crate::context::reasoning::Signature;

    /// The bytes that a fact adds to an empty ledger.
    fn added(fact: Fact) -> usize {
        let mut ledger = Ledger::default();
        ledger.add(fact.clone());
        let bytes = ledger.bytes();
        ledger.add(fact.clone());
        assert_eq!(ledger.bytes(), bytes, "added twice");
        let mut other = Ledger::default();
        other.merge(&ledger);
        assert_eq!(other.bytes(), bytes, "taken over");
        bytes
    }

    /// This count limits a session's memory: it is at least what is held, and seldom a third more.
    #[test]
    fn size_of_reasoning_record_includes_all_its_content() {
        let plain = ReasoningRecord {
            after: Chain(1),
            at: 1,
            prefix: Chain(2),
            ..ReasoningRecord::default()
        };
        let of = |reasoning| added(Fact::Reasoning(Box::new(reasoning)));
        let base = of(plain.clone());
        assert!(
            (size_of::<ReasoningRecord>()..2 * size_of::<ReasoningRecord>()).contains(&base),
            "{base}"
        );
        let held = 1 << 16;
        let long_text: Box<str> = "w".repeat(held).into();
        let thought = ReasoningBlock {
            before: 0,
            hosted: 0,
            leads: false,
            raw: long_text.clone(),
            partial: false,
        };
        let keys = || (0..held as u128 / 16).map(PartKey).collect::<Vec<_>>();
        let grows = [
            ReasoningRecord { model: long_text.clone(), ..plain.clone() },
            ReasoningRecord { upstream: long_text.clone(), ..plain.clone() },
            ReasoningRecord { blocks: vec![thought], ..plain.clone() },
            ReasoningRecord {
                signatures: vec![Signature { part: 0, value: long_text, piece: None }],
                ..plain.clone()
            },
            ReasoningRecord { parts: keys(), ..plain.clone() },
        ];
        for with in grows {
            let more = of(with.clone()) - base;
            assert!((held..held + held / 8).contains(&more), "{more} for {with:.80?}");
        }
        // Each one can be found by its anchor key, too: a map entry with its own list.
        let more = of(ReasoningRecord { anchor_keys: keys(), ..plain }) - base;
        assert!((6 * held..9 * held).contains(&more), "{more}");
    }

    #[test]
    fn size_of_revocations_and_suspensions_includes_their_content() {
        let long_text: Box<str> = "w".repeat(1 << 16).into();
        let revoked = Revocation {
            exchange: "".into(),
            thread: "".into(),
            parent: None,
            at: 1,
            about: vec![],
            renewal: crate::context::Renewal::Next,
        };
        let of = |revocation| added(Fact::Revocation(Box::new(revocation)));
        let base = of(revoked.clone());
        let own = size_of::<Revocation>();
        assert!((4 * own..6 * own).contains(&base), "{base} for {own}");
        let grows = [
            (1, Revocation { thread: long_text.clone().into(), ..revoked.clone() }),
            (2, Revocation { exchange: long_text.clone().into(), ..revoked.clone() }),
            (1, Revocation { parent: Some(long_text.clone().into()), ..revoked.clone() }),
            (1, Revocation { about: vec![PartKey(1); 1 << 12], ..revoked }),
        ];
        for (times, with) in grows {
            let (more, held) = (of(with) - base, times << 16);
            assert!((held..held + held / 8).contains(&more), "{more} for {held}");
        }
        let suspended =
            Suspension { exchange: "r".into(), thread: "t".into(), parent: None, at: 1 };
        let of = |suspended| added(Fact::Suspension(Box::new(suspended)));
        let base = of(suspended.clone());
        assert!(base >= 2 * size_of::<Suspension>(), "{base}");
        for with in [
            Suspension { exchange: long_text.clone().into(), ..suspended.clone() },
            Suspension { thread: long_text.clone().into(), ..suspended.clone() },
            Suspension { parent: Some(long_text.into()), ..suspended },
        ] {
            let more = of(with) - base;
            assert!(((1 << 16) - 16..(1 << 16) + (1 << 13)).contains(&more), "{more}");
        }
    }
}
