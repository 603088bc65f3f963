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
use crate::context::ledger::Ledger;
use crate::context::lineage::Placement;
use crate::context::plan::DecisionReason;
use crate::context::policy::DecisionMode;
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, ExchangeId, InjectedMessage, PromptSection, ReasoningAction,
    ReasoningBlock, ReasoningDecision, ReasoningRecord, RevocationRetry, SketchPart, Turn,
    reasoning,
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
}

impl<'l> Branch<'l> {
    /// Of decisions of shadow mode nothing was sent.
    pub(super) fn of(
        ledger: &'l Ledger,
        placed: &'l Placement,
        keyed_parts: &[KeyedPart],
        mode: DecisionMode,
    ) -> Self {
        let parent = placed.parent.as_deref();
        let is_models = |keyed: &&KeyedPart| keyed.role == Role::Assistant;
        let known = parent.filter(|parent| {
            // The model's parts next to what the parent covers are its reply, as the client has it. Others have no
            // known turn: what was sent before them is unknown, too.
            let mut later = keyed_parts.iter().skip(placed.covers).skip_while(is_models);
            let is_known = later.all(|keyed| !is_models(&keyed) || parent.has_in_reply(keyed.key));
            is_known && mode == DecisionMode::Active
        });
        let sent = known.and_then(|parent| ledger.sketch(parent)).filter(|sent| !sent.is_empty());
        let covered = keyed_parts.get(..placed.covers).unwrap_or(keyed_parts);
        let reply = match covered.last() {
            // Its client may have edited the parts of the reply before the one that it was found by.
            Some(last) if parent.is_some_and(|parent| parent.has_in_reply(last.key)) => {
                covered.iter().rev().take_while(is_models).count()
            }
            _ => 0,
        };
        let covers = covered.len() - reply;
        let (line, keys) = Default::default();
        let client_thread = placed.position.client_thread.as_deref();
        Self { ledger, exchange: &placed.exchange, client_thread, parent, sent, covers, line, keys }
    }

    /// Whether it has sent a part with this key.
    pub(super) fn has_sent(&self, key: PartKey) -> bool {
        let keys = || self.sent.iter().flatten().map(|part| part.key).collect();
        self.keys.get_or_init(keys).contains(&key)
    }

    /// Whether an exchange of this branch made the decision.
    fn has_made(&self, exchange: &ExchangeId) -> bool {
        exchange == self.exchange || self.line().contains(exchange)
    }

    fn line(&self) -> &HashSet<&'l ExchangeId> {
        let line = || self.ledger.line(self.parent).map(|turn| &turn.exchange).collect();
        self.line.get_or_init(line)
    }

    /// The reasoning of the reply that ended at `chain`: of several with the same parts, of the one in this branch. That of
    /// a thread which its client names otherwise is never used: sub-agents may have equal prompts and call ids.
    pub(super) fn reasoning(&self, chain: Chain) -> Option<&'l Arc<ReasoningRecord>> {
        let first = self.ledger.reasoning(chain)?;
        if self.client_thread.is_none() && self.ledger.repeated_reasoning(chain).next().is_none() {
            return Some(first);
        }
        let all = || std::iter::once(first).chain(self.ledger.repeated_reasoning(chain));
        let here = self.ledger.replied_to(chain).find(|turn| self.line().contains(&turn.exchange));
        let own = here.and_then(|turn| all().find(|it| it.at == turn.ended));
        // A reply of the named thread has its own reasoning or none.
        if self.client_thread.is_some()
            && here.is_some_and(|turn| turn.position.client_thread.as_deref() == self.client_thread)
        {
            return own;
        }
        own.or_else(|| all().find(|it| !self.is_of_another(it)))
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
            names.extend(CutCount::ALL.map(|cuts| (cuts.of(*key), (*key, cuts))));
        }
        let mut forms: HashMap<PartKey, Vec<CutCount>> = HashMap::default();
        let here = sent.iter().filter(|part| part.place == PromptSection::History);
        for (key, cuts) in here.filter_map(|part| names.get(&part.key)) {
            forms.entry(*key).or_default().push(*cuts);
        }
        // Equal parts in several places are matched by their order, from the end of what the parent sent: a summary
        // may stand in place of the first ones.
        let covered = &keyed_parts[..self.covers.min(keyed_parts.len())];
        let covered = covered.iter().enumerate().rev();
        let cut = covered.filter(|(_, keyed)| keys.contains(&keyed.key));
        cut.filter_map(|(index, keyed)| Some((index, forms.get_mut(&keyed.key)?.pop()?))).collect()
    }

    /// Whether a cut applies to a part that this branch has sent in the form `form`. A result that it has not
    /// sent yet stays whole, or is trimmed as it was when another branch first sent it: no model of this
    /// branch has read it. `is_new`: the part follows the last reply. So it was not sent, even if it is unknown
    /// what was.
    pub(super) fn has_cut(
        &self,
        cut: &Cut,
        nth: CutCount,
        form: Option<CutCount>,
        is_new: bool,
    ) -> bool {
        let is_birth = cut.is_trim();
        if self.sent.is_none() {
            return !is_new || is_birth;
        }
        form.map_or(is_birth, |form| form >= nth) || self.has_made(&cut.exchange)
    }

    /// Whether a summary is in use in this branch.
    pub(super) fn has_compact(&self, compact: &CompactionRecord) -> bool {
        self.sent.is_none() || self.has_sent(compact.key()) || self.has_made(&compact.exchange)
    }

    /// Whether a change that answers a refusal applies: an image that this branch has already sent stays.
    /// Rules for the whole request always apply, because no branch was accepted without them.
    pub(super) fn has_repair(&self, one: &RepairDecision) -> bool {
        let (Repair::Media { part, .. } | Repair::Picture { part, .. }) = one.repair else {
            return true;
        };
        self.sent.is_none() || self.has_made(&one.exchange) || !self.has_sent(part)
    }

    /// Whether an injected message belongs in this branch, after the part with this key.
    pub(super) fn has_injected(&self, message: &InjectedMessage, after: PartKey) -> bool {
        let is_new = || !CutCount::ALL.iter().any(|cuts| self.has_sent(cuts.of(after)));
        let has_made =
            || message.place().is_some_and(|injection| self.has_made(&injection.exchange));
        self.sent.is_none() || self.has_sent(message.key()) || has_made() || is_new()
    }

    /// Whether the decision to put a reply's reasoning back applies.
    pub(super) fn has_back(
        &self,
        decision: &ReasoningDecision,
        reasoning: &ReasoningRecord,
    ) -> bool {
        if decision.does != ReasoningAction::PutBack
            || self.sent.is_none()
            || self.has_made(&decision.exchange)
        {
            return true;
        }
        let was_there = reasoning.parts.first().is_some_and(|first| self.has_sent(*first));
        // It was made for another reply with the same parts.
        let first = self.ledger.reasoning(reasoning.after);
        let is_for_another = first.is_some_and(|first| first.key() != reasoning.key());
        !(was_there || is_for_another) || self.has_thought(reasoning)
    }

    /// Whether a decision is known to have been made for this model: a refused request leaves decisions, but no turn.
    pub(super) fn is_of_model(&self, decision: &ReasoningDecision, model: Option<&str>) -> bool {
        self.ledger.turn(&decision.exchange).is_some_and(|turn| Some(&*turn.model) == model)
    }

    /// Decisions of other branches to remove reasoning that do not apply here, because this branch has sent that
    /// reasoning, or has it for the first time and decides by itself; what a provider refused there is refused here,
    /// too. Returns their keys. If it is unknown what this branch sent, all decisions apply and none is returned.
    pub(super) fn not_out<'r>(
        &self,
        out: impl Iterator<Item = &'r Arc<ReasoningDecision>>,
        replies: impl Iterator<Item = &'r ReasoningRecord>,
        own: &OwnReasoning,
    ) -> HashSet<PartKey> {
        let others =
            out.filter(|decision| self.sent.is_some() && !self.has_made(&decision.exchange));
        let others: HashMap<PartKey, &ReasoningDecision> =
            others.map(|decision| (decision.about, &**decision)).collect();
        // If policy does not put reasoning back, no replies are known; the keys of what was sent still tell.
        let is_kept = |decision: &&&ReasoningDecision| {
            let about = decision.about;
            let is_left_out = own.left_out.contains(&about.0);
            let is_refused = decision.why == DecisionReason::Refusal;
            own.sent.contains(&about.0) || !is_left_out && (!is_refused || self.has_sent(about))
        };
        let kept: HashSet<PartKey> = others.values().filter(is_kept).map(|it| it.about).collect();
        // Such decisions are rare, and reading all replies takes time.
        let replies = replies.filter(|_| kept.len() < others.len());
        let blocks = replies.flat_map(|reply| reply.blocks.iter().map(move |it| (it, reply)));
        let elsewhere = blocks.filter_map(|(block, reply)| {
            let literal = reasoning::literal(&block.raw)?;
            let decision = others.get(&PartKey::of_bytes(literal.as_bytes()))?;
            // Of reasoning that repeats to the letter, only a later one may have been sent under its own key.
            let is_left_out = |key: PartKey| own.left_out.contains(&key.0);
            let is_sent = |key: PartKey| self.has_sent(key) && !is_left_out(key);
            has_block(is_sent, block, reply).then_some(decision.about)
        });
        elsewhere.chain(kept.iter().copied()).collect()
    }

    /// Whether the parent turn sent the reasoning of a reply, from its client or put back.
    fn has_thought(&self, reasoning: &ReasoningRecord) -> bool {
        names(reasoning).any(|key| self.has_sent(key))
    }

    /// What the parent turn did with the client's own reasoning in its request. Of reasoning that repeats to the
    /// letter, the oldest is taken to be left out.
    pub(super) fn own_reasoning(&self, conversation: &Conversation) -> OwnReasoning {
        let (mut before, mut own) = (0, OwnReasoning::default());
        let mut places: HashMap<u128, Vec<u128>> = HashMap::default();
        for part in conversation.parts() {
            if before >= self.covers {
                break;
            }
            before += usize::from(part.key.is_some());
            if let (Some(key), Some(about)) = (part.reasoning_key, part.removal_key()) {
                places.entry(key).or_default().push(about);
            }
        }
        let mut count: HashMap<u128, usize> = HashMap::default();
        for part in self.sent.iter().flatten().filter(|part| is_reasoning(part)) {
            *count.entry(part.key.0).or_default() += 1;
        }
        for (key, abouts) in places {
            let sent = count.get(&key).copied().unwrap_or_default();
            let (left_out, sent) = abouts.split_at(abouts.len().saturating_sub(sent));
            own.left_out.extend(left_out);
            own.sent.extend(sent);
        }
        own
    }

    /// The keys of the reasoning that the parent turn sent.
    pub(super) fn thoughts(&self) -> HashSet<PartKey> {
        let sent = self.sent.iter().flatten();
        sent.filter(|part| is_reasoning(part)).map(|part| part.key).collect()
    }

    /// Keys of decisions that are never made again in this branch: revoked twice, or for good.
    pub(super) fn given_up(&self) -> HashSet<u128> {
        let mut revoked: HashMap<u128, usize> = HashMap::default();
        for one in self.ledger.revocations() {
            let grew_from = one.parent.as_ref();
            if self.has_made(&one.exchange) || grew_from.is_some_and(|it| self.has_made(it)) {
                let times = if one.retry == RevocationRetry::Never { 2 } else { 1 };
                one.about.iter().for_each(|about| *revoked.entry(about.0).or_default() += times);
            }
        }
        revoked.into_iter().filter(|(_, times)| *times > 1).map(|(about, _)| about).collect()
    }

    /// The exchange of this branch that first sent each of these keys.
    fn first_sent(&self, keys: &HashSet<PartKey>) -> HashMap<PartKey, &'l ExchangeId> {
        let mut line = Vec::new();
        let mut next = self.parent;
        // No branch is longer than the number of turns.
        for _ in self.ledger.turns() {
            let Some(turn) = next else { break };
            line.push(turn);
            next = turn.sketch.base.as_ref().and_then(|base| Some(&**self.ledger.turn(base)?));
        }
        let (mut parts, mut first): (Vec<PartKey>, HashMap<PartKey, &'l ExchangeId>) =
            Default::default();
        for turn in line.into_iter().rev() {
            let kept = parts.len().min(turn.sketch.kept as usize);
            let gone = parts.drain(kept..).filter_map(|key| first.remove_entry(&key));
            let gone: HashMap<PartKey, &'l ExchangeId> = gone.collect();
            let added = turn.sketch.added.iter().map(|part| part.key);
            for key in added.filter(|key| keys.contains(key)) {
                first.insert(key, gone.get(&key).copied().unwrap_or(&turn.exchange));
            }
            parts.extend(turn.sketch.added.iter().map(|part| part.key));
        }
        first
    }

    /// The exchange that began to send each of these cuts in this branch: it made the decision, or adopted
    /// it. Keyed by the decision key. `cuts`: each with the key of its cut part.
    pub(super) fn began<'c>(
        &self,
        cuts: impl Iterator<Item = (&'c Cut, PartKey)>,
    ) -> HashMap<PartKey, ExchangeId> {
        let (own, others): (Vec<_>, Vec<_>) =
            cuts.partition(|(cut, _)| self.sent.is_none() || self.has_made(&cut.exchange));
        let mut began: HashMap<PartKey, ExchangeId> =
            own.iter().map(|(cut, _)| (cut.about, cut.exchange.clone())).collect();
        if !others.is_empty() {
            let first = self.first_sent(&others.iter().map(|(_, key)| *key).collect());
            let first = others.iter().filter_map(|(cut, key)| Some((cut.about, first.get(key)?)));
            began.extend(first.map(|(about, exchange)| (about, (*exchange).clone())));
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

fn is_reasoning(part: &SketchPart) -> bool {
    let places =
        [PromptSection::Reasoning, PromptSection::SteeredReasoning, PromptSection::OldReasoning];
    places.contains(&part.place)
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

    /// The key of a part that was cut this often.
    pub(super) fn of(self, key: PartKey) -> PartKey {
        match self {
            Self::None => key,
            Self::Once => key.cut(),
            Self::Twice => key.cut().cut(),
        }
    }
}

/// The keys that a reply's reasoning can have in a sketch: put back by us, or sent by its client.
pub(super) fn names(reasoning: &ReasoningRecord) -> impl Iterator<Item = PartKey> + '_ {
    let blocks = reasoning.blocks.iter().flat_map(block_names);
    blocks.chain(reasoning.signatures.iter().flat_map(|signature| spelled(&signature.value)))
}

/// Whether this block of a reply's reasoning was sent. Of a reply with one block its other names tell, too.
fn has_block(
    is_sent: impl Fn(PartKey) -> bool,
    block: &ReasoningBlock,
    reply: &ReasoningRecord,
) -> bool {
    block_names(block).any(&is_sent) || reply.blocks.len() == 1 && names(reply).any(&is_sent)
}

/// The keys of a signature without its quotes and with them.
fn spelled(signature: &str) -> [PartKey; 2] {
    [
        PartKey::of_bytes(signature.as_bytes()),
        PartKey::of_bytes(format!("\"{signature}\"").as_bytes()),
    ]
}

/// The keys that one block of reasoning can have in a sketch.
fn block_names(block: &ReasoningBlock) -> impl Iterator<Item = PartKey> + '_ {
    let literal = reasoning::literal(&block.raw).map(|literal| spelled(&literal));
    let raw = PartKey::of_bytes(block.raw.as_bytes());
    literal.into_iter().flatten().chain([raw])
}

#[cfg(test)]
mod tests;
