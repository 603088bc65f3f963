//! Decisions belong to branches: a decision of another branch of the session applies here only if nothing in
//! this branch depends on other bytes.
//!
//! The sketch of the parent turn says what this branch sent. A decision applies if an exchange of this branch
//! made it, or if this branch has sent it before. Whatever else policy wants, this branch decides again, and
//! adopts the stored decision if there is one ([`RecordedDecisions::add`](super::RecordedDecisions::add)). If
//! it is unknown what this branch sent, all decisions apply, except cuts of results that have no reply yet.

use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::keyed::KeyedPart;
use super::thoughts::{SentThoughts, block_names, is_reasoning, names};
use crate::context::ledger::Ledger;
use crate::context::lineage::Placement;
use crate::context::plan::DecisionReason;
use crate::context::policy::DecisionMode;
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, ExchangeId, InjectedMessage, PromptSection, ReasoningAction,
    ReasoningBlock, ReasoningDecision, ReasoningRecord, Renewal, SketchPart, Turn, reasoning,
};
use crate::dialect::repair::Repair;
use crate::dialect::{Chain, Conversation, PartKey, Role};

/// The branch that a request is the end of.
pub(super) struct Branch<'l> {
    ledger: &'l Ledger,
    /// The request's own exchange.
    exchange: &'l ExchangeId,
    /// The thread that the client names.
    client_thread: Option<&'l str>,
    /// The turn that it continues.
    parent: Option<&'l Turn>,
    /// What that turn sent, part by part; `None` if unknown.
    sent: Option<Vec<SketchPart>>,
    /// How many keyed parts of the request that turn's request covers, without its reply.
    covers: usize,
    /// The ancestors of the request.
    line: OnceCell<HashSet<&'l ExchangeId>>,
    /// The keys of everything in `sent`.
    keys: OnceCell<HashSet<PartKey>>,
    /// The reasoning in `sent`.
    thoughts: OnceCell<Arc<SentThoughts>>,
}

impl<'l> Branch<'l> {
    pub(super) fn new(
        ledger: &'l Ledger,
        placed: &'l Placement,
        keyed_parts: &[KeyedPart],
        mode: DecisionMode,
    ) -> Self {
        let parent = placed.parent.as_deref();
        // Of decisions of shadow mode nothing was sent.
        let sketch = match parent {
            Some(parent) if mode == DecisionMode::Active => {
                // The model's parts next to what the parent covers are its reply, as the client has it, also behind a
                // message that the client changed. Others have no known turn: what was sent before them is unknown, too.
                let mut later = keyed_parts
                    .iter()
                    .skip(placed.covers)
                    .skip_while(|keyed| placed.by_sentences && !is_models(keyed))
                    .skip_while(|keyed| is_models(keyed));
                let is_known =
                    later.all(|keyed| !is_models(keyed) || parent.has_in_reply(keyed.key));
                if is_known { ledger.sketch(parent) } else { None }
            }
            _ => None,
        };
        let covered = keyed_parts.get(..placed.covers).unwrap_or(keyed_parts);
        let reply = match (parent, covered.last()) {
            // Its client may have edited the parts of the reply before the one that it was found by. A paused reply that
            // came back is the end of the parent's request.
            (Some(parent), Some(last)) if parent.has_in_reply(last.key) => {
                let earlier = covered.iter().rev().skip(1).take_while(|keyed| {
                    is_models(keyed) && Some(keyed.key) != parent.position.last
                });
                1 + earlier.count()
            }
            _ => 0,
        };
        Self {
            ledger,
            exchange: &placed.exchange,
            client_thread: placed.position.client_thread.as_deref(),
            parent,
            sent: sketch.filter(|parts| !parts.is_empty()),
            covers: covered.len() - reply,
            line: OnceCell::new(),
            keys: OnceCell::new(),
            thoughts: OnceCell::new(),
        }
    }

    pub(super) fn has_sent(&self, key: PartKey) -> bool {
        self.keys
            .get_or_init(|| self.sent.iter().flatten().map(|part| part.key).collect())
            .contains(&key)
    }

    fn has_made(&self, exchange: &ExchangeId) -> bool {
        exchange == self.exchange || self.line().contains(exchange)
    }

    fn line(&self) -> &HashSet<&'l ExchangeId> {
        self.line.get_or_init(|| self.ledger.line(self.parent).map(|turn| &turn.exchange).collect())
    }

    /// The reasoning of the reply that ended at `chain`: of several with the same parts, of the one in this branch.
    pub(super) fn reasoning(&self, chain: Chain) -> Option<&'l Arc<ReasoningRecord>> {
        // That of a thread which its client names otherwise is never used.
        let record = self.ledger.reasoning(chain)?;
        if self.client_thread.is_none() && self.ledger.repeated_reasoning(chain).next().is_none() {
            return Some(record);
        }
        let records: Vec<&'l Arc<ReasoningRecord>> =
            std::iter::once(record).chain(self.ledger.repeated_reasoning(chain)).collect();
        let turn = self.ledger.replied_to(chain).find(|turn| self.line().contains(&turn.exchange));
        if let Some(turn) = turn {
            let made = records.iter().copied().find(|record| record.at == turn.ended);
            // A reply of the named thread has its own reasoning or none.
            let is_named = self.client_thread.is_some()
                && turn.position.client_thread.as_deref() == self.client_thread;
            if made.is_some() || is_named {
                return made;
            }
        }
        // Sub-agents may have equal prompts and call ids.
        records.into_iter().find(|record| !self.is_of_another(record))
    }

    /// Whether reasoning was made in a thread that its client names otherwise than this one.
    pub(super) fn is_of_another(&self, reasoning: &ReasoningRecord) -> bool {
        let Some(name) = self.client_thread else { return false };
        let replied = self.ledger.replied_to(reasoning.after);
        let mut makers = replied.filter(|turn| turn.ended == reasoning.at).peekable();
        makers.peek().is_some()
            && makers.all(|turn| {
                let other = turn.position.client_thread.as_deref().filter(|other| *other != name);
                other.is_some() && !self.line().contains(&turn.exchange)
            })
    }

    /// In which form this branch sent the parts with these keys: how often each was cut, by index into
    /// `keyed_parts`. Parts that it did not send are absent.
    pub(super) fn forms(
        &self,
        keyed_parts: &[KeyedPart],
        keys: &HashSet<PartKey>,
    ) -> HashMap<usize, CutCount> {
        let Some(sent) = &self.sent else { return HashMap::default() };
        let mut names: HashMap<PartKey, (PartKey, CutCount)> = HashMap::default();
        for key in keys {
            names.extend(CutCount::ALL.map(|cuts| (cuts.applied_to(*key), (*key, cuts))));
        }
        let mut forms: HashMap<PartKey, Vec<CutCount>> = HashMap::default();
        for part in sent.iter().filter(|part| part.place == PromptSection::History) {
            if let Some((key, cuts)) = names.get(&part.key) {
                forms.entry(*key).or_default().push(*cuts);
            }
        }
        // Equal parts in several places are matched by their order, from the end of what the parent sent: a summary
        // may stand in place of the first ones.
        let covered = &keyed_parts[..self.covers.min(keyed_parts.len())];
        let mut counts = HashMap::default();
        for (index, keyed) in covered.iter().enumerate().rev() {
            if let Some(cuts) = forms.get_mut(&keyed.key).and_then(Vec::pop) {
                counts.insert(index, cuts);
            }
        }
        counts
    }

    /// Whether a cut applies to a part with this key that this branch has sent in the form `form`. `is_new`: the part
    /// follows the last reply.
    pub(super) fn has_cut(
        &self,
        cut: &Cut,
        key: PartKey,
        nth: CutCount,
        form: Option<CutCount>,
        is_new: bool,
    ) -> bool {
        let is_birth = cut.is_trim();
        if self.sent.is_none() {
            // What follows the last reply was not sent, even if it is unknown what was.
            return !is_new || is_birth;
        }
        // A result that was not sent yet stays whole, or is trimmed as it was when another branch
        // first sent it: no model of this branch has read it.
        form.map_or_else(
            || is_birth && self.went_out(&cut.exchange, &[nth.applied_to(key)]),
            |form| form >= nth,
        ) || self.has_made(&cut.exchange)
    }

    /// Whether an exchange sent a part with one of these keys, as far as is known: where it decided that, a summary may
    /// have replaced the part.
    fn went_out(&self, exchange: &ExchangeId, keys: &[PartKey]) -> bool {
        let sketch = self.ledger.turn(exchange).and_then(|turn| self.ledger.sketch(turn));
        sketch.is_none_or(|parts| parts.iter().any(|part| keys.contains(&part.key)))
    }

    pub(super) fn has_compact(&self, compact: &CompactionRecord) -> bool {
        self.sent.is_none() || self.has_sent(compact.key()) || self.has_made(&compact.exchange)
    }

    pub(super) fn has_repair(&self, one: &RepairDecision) -> bool {
        let (Repair::Media { part, .. } | Repair::Picture { part, .. }) = one.repair else {
            // Rules for the whole request always apply, because no branch was accepted without them.
            return true;
        };
        // An image that this branch has already sent stays.
        self.sent.is_none() || self.has_made(&one.exchange) || !self.has_sent(part)
    }

    pub(super) fn has_injected(&self, message: &InjectedMessage, after: PartKey) -> bool {
        if self.sent.is_none()
            || self.has_sent(message.key())
            || message.place().is_some_and(|injection| self.has_made(&injection.exchange))
        {
            return true;
        }
        // After a part that was never sent, nothing depends on what follows it.
        !CutCount::ALL.iter().any(|cuts| self.has_sent(cuts.applied_to(after)))
    }

    /// Whether a decision to put back reasoning applies. `repeats`: another reply has the same reasoning.
    pub(super) fn has_back(
        &self,
        decision: &ReasoningDecision,
        reasoning: &ReasoningRecord,
        repeats: bool,
    ) -> bool {
        if decision.does != ReasoningAction::PutBack
            || self.sent.is_none()
            || self.has_made(&decision.exchange)
        {
            // What this branch decided itself it has sent, or will send now.
            return true;
        }
        let was_there = reasoning.parts.first().is_some_and(|key| self.has_sent(*key));
        // It was made for another reply with the same parts.
        let record = self.ledger.reasoning(reasoning.after);
        let is_for_another = record.is_some_and(|record| record.key() != reasoning.key());
        let names: Vec<PartKey> = names(reasoning).collect();
        let is_new = !(was_there || is_for_another);
        is_new && self.went_out(&decision.exchange, &names)
            || names.iter().any(|key| self.has_sent(*key))
                && (!repeats || self.thoughts().have(reasoning, true))
    }

    pub(super) fn is_of_model(&self, decision: &ReasoningDecision, model: Option<&str>) -> bool {
        match self.ledger.turn(&decision.exchange) {
            Some(turn) => Some(&*turn.model) == model,
            // A refused request leaves decisions, but no turn. In a long session the turn may be forgotten: then it is
            // older than one that continues a forgotten turn, and what was sent goes on being sent.
            None => self.ledger.turns().any(|turn| {
                let parent = turn.position.parent.as_ref();
                decision.at < turn.at
                    && parent.is_some_and(|parent| self.ledger.turn(parent).is_none())
            }),
        }
    }

    /// Decisions of other branches to remove reasoning that do not apply here, because this branch has sent that
    /// reasoning, or has it for the first time and decides by itself; what a provider refused there is refused here,
    /// too. Returns their keys. If it is unknown what this branch sent, all decisions apply and none is returned.
    pub(super) fn removals_elsewhere<'r>(
        &self,
        removals: impl Iterator<Item = &'r Arc<ReasoningDecision>>,
        replies: impl Iterator<Item = &'r ReasoningRecord>,
        own: &OwnReasoning,
    ) -> HashSet<PartKey> {
        let mut others: HashSet<PartKey> = HashSet::default();
        let mut elsewhere: HashSet<PartKey> = HashSet::default();
        for decision in removals {
            if self.sent.is_none() || self.has_made(&decision.exchange) {
                continue;
            }
            let about = decision.about;
            others.insert(about);
            // If policy does not put reasoning back, no replies are known; the keys of what was sent still tell.
            let is_left_out = own.left_out.contains(&about.0);
            let is_refused = decision.why == DecisionReason::Refusal;
            if own.sent.contains(&about.0) || !is_left_out && (!is_refused || self.has_sent(about))
            {
                elsewhere.insert(about);
            }
        }
        // Such decisions are rare, and reading all replies takes time.
        if elsewhere.len() == others.len() {
            return elsewhere;
        }
        for reply in replies {
            for block in &reply.blocks {
                let Some(about) = reasoning::reasoning_key(&block.raw) else { continue };
                // Of reasoning that repeats to the letter, only a later one may have been sent under its own
                // key.
                if others.contains(&about)
                    && has_block(
                        |key| self.has_sent(key) && !own.left_out.contains(&key.0),
                        block,
                        reply,
                    )
                {
                    elsewhere.insert(about);
                }
            }
        }
        elsewhere
    }

    /// What the parent turn did with the client's own reasoning in its request.
    pub(super) fn own_reasoning(&self, conversation: &Conversation) -> OwnReasoning {
        let mut own_reasoning = OwnReasoning::default();
        let mut keyed_parts = 0;
        let mut places: HashMap<u128, Vec<u128>> = HashMap::default();
        for part in conversation.parts() {
            if keyed_parts >= self.covers {
                break;
            }
            keyed_parts += usize::from(part.key.is_some());
            if let (Some(key), Some(about)) = (part.reasoning_key, part.removal_key()) {
                places.entry(key).or_default().push(about);
            }
        }
        // Where nothing was ever removed, its client did not send it: what it sends now is new.
        let removes = self.ledger.line(self.parent).any(|turn| turn.done.made.removed > 0);
        let mut count: HashMap<u128, usize> = HashMap::default();
        for part in self.sent.iter().flatten().filter(|part| is_reasoning(part)) {
            *count.entry(part.key.0).or_default() += 1;
        }
        for (key, abouts) in places {
            let times = count.get(&key).copied().unwrap_or_default();
            // Of reasoning that repeats to the letter, the oldest is taken to be left out.
            let (left_out, sent_abouts) = abouts.split_at(abouts.len().saturating_sub(times));
            own_reasoning.sent.extend(sent_abouts);
            if removes {
                own_reasoning.left_out.extend(left_out);
            }
        }
        own_reasoning
    }

    pub(super) fn thoughts(&self) -> &Arc<SentThoughts> {
        let sent = self.sent.as_deref().unwrap_or_default();
        self.thoughts.get_or_init(|| Arc::new(SentThoughts::new(sent)))
    }

    /// Keys of decisions that are never made again in this branch: revoked twice, or for good.
    pub(super) fn given_up(&self) -> HashSet<u128> {
        let mut revoked: HashMap<u128, usize> = HashMap::default();
        for one in self.ledger.revocations() {
            let is_of_branch = self.has_made(&one.exchange)
                || one.parent.as_ref().is_some_and(|parent| self.has_made(parent));
            if is_of_branch {
                // What is refused twice is not tried a third time.
                let times = if one.renewal == Renewal::Never { 2 } else { 1 };
                for about in &one.about {
                    *revoked.entry(about.0).or_default() += times;
                }
            }
        }
        revoked.into_iter().filter(|(_, times)| *times > 1).map(|(about, _)| about).collect()
    }

    fn first_sent(&self, keys: &HashSet<PartKey>) -> HashMap<PartKey, &'l ExchangeId> {
        let mut line = Vec::new();
        let mut ancestor = self.parent;
        // No branch is longer than the number of turns.
        for _ in self.ledger.turns() {
            let Some(turn) = ancestor else { break };
            line.push(turn);
            // A sketch without a base is whole, and its turn may still continue another.
            let earlier = turn.sketch.base.as_ref().or(turn.position.parent.as_ref());
            ancestor = earlier.and_then(|earlier| Some(&**self.ledger.turn(earlier)?));
        }
        let mut parts: Vec<PartKey> = Vec::new();
        let mut exchanges: HashMap<PartKey, &'l ExchangeId> = HashMap::default();
        for turn in line.into_iter().rev() {
            let repeated = parts.len().min(turn.sketch.kept as usize);
            // What only moved was sent before.
            let replaced: HashMap<PartKey, &'l ExchangeId> =
                parts.drain(repeated..).filter_map(|key| exchanges.remove_entry(&key)).collect();
            for part in &turn.sketch.added {
                if keys.contains(&part.key) {
                    let exchange = replaced.get(&part.key).copied().unwrap_or(&turn.exchange);
                    exchanges.insert(part.key, exchange);
                }
                parts.push(part.key);
            }
        }
        exchanges
    }

    /// The exchange that began to send each of these cuts in this branch: it made the decision, or adopted
    /// it. Keyed by the decision key. `cuts`: each with the key of its cut part.
    pub(super) fn began<'c>(
        &self,
        cuts: impl Iterator<Item = (&'c Cut, PartKey)>,
    ) -> HashMap<PartKey, ExchangeId> {
        let (own_cuts, others): (Vec<_>, Vec<_>) =
            cuts.partition(|(cut, _)| self.sent.is_none() || self.has_made(&cut.exchange));
        let mut began: HashMap<PartKey, ExchangeId> =
            own_cuts.iter().map(|(cut, _)| (cut.about, cut.exchange.clone())).collect();
        if !others.is_empty() {
            let exchanges = self.first_sent(&others.iter().map(|(_, key)| *key).collect());
            for (cut, key) in others {
                if let Some(exchange) = exchanges.get(&key) {
                    began.insert(cut.about, (*exchange).clone());
                }
            }
        }
        began
    }
}

/// What a turn did with the client's own reasoning in its request, by removal key.
#[derive(Debug, Default)]
pub(super) struct OwnReasoning {
    pub(super) sent: HashSet<u128>,
    pub(super) left_out: HashSet<u128>,
}

fn is_models(keyed: &KeyedPart) -> bool {
    keyed.role == Role::Assistant
}

/// How often a part was cut: a trimmed result may be cleared later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CutCount {
    None,
    Once,
    Twice,
}

impl CutCount {
    const ALL: [Self; 3] = [Self::None, Self::Once, Self::Twice];

    pub(super) fn applied_to(self, key: PartKey) -> PartKey {
        match self {
            Self::None => key,
            Self::Once => key.cut(),
            Self::Twice => key.cut().cut(),
        }
    }
}

fn has_block(
    is_sent: impl Fn(PartKey) -> bool,
    block: &ReasoningBlock,
    reply: &ReasoningRecord,
) -> bool {
    // Of a reply with one block, its other names tell, too.
    block_names(block).any(&is_sent) || reply.blocks.len() == 1 && names(reply).any(&is_sent)
}

#[cfg(test)]
mod tests;
