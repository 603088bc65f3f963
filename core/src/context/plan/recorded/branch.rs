//! Decisions belong to branches: what another branch of the session decided holds here only where nothing in
//! this one stands on other bytes.
//!
//! What this branch sent is in the sketch of the turn that a request grew from. A decision holds that an
//! exchange of this branch made, or that this branch has sent before. What else policy wants, it decides
//! anew, and takes over what is kept of it ([`RecordedDecisions::add`](super::RecordedDecisions::add)). Where it is not known what this branch sent, all
//! decisions hold.

use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::KeyedPart;
use crate::context::ledger::Ledger;
use crate::context::lineage::Placement;
use crate::context::plan::DecisionReason;
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, InjectedMessage, PromptSection, ReasoningAction, ReasoningDecision,
    ReasoningRecord, RevocationRetry, SketchPart, Turn, reasoning,
};
use crate::dialect::repair::Repair;
use crate::dialect::{PartKey, Role};

/// The branch that a request is the end of.
pub(super) struct Branch<'l> {
    ledger: &'l Ledger,
    /// The request's own exchange.
    request: &'l str,
    /// The turn that it grew from.
    parent: Option<&'l Turn>,
    /// What that sent, part by part; `None` where it is not known.
    sent: Option<Vec<SketchPart>>,
    /// The exchanges that it grew from.
    line: OnceCell<HashSet<&'l str>>,
    /// The keys of all that.
    keys: OnceCell<HashSet<PartKey>>,
}

impl<'l> Branch<'l> {
    /// `decides_apart`: the decisions are those of shadow mode, which nobody sent.
    pub(super) fn of(
        ledger: &'l Ledger,
        placed: &'l Placement,
        keyed_parts: &[KeyedPart],
        decides_apart: bool,
    ) -> Self {
        let parent = placed.parent.as_deref();
        let known = parent.filter(|parent| {
            // Words of the model that no turn is known for: what stood before them then is not known either.
            let is_its = |key: PartKey| parent.reply.iter().any(|part| part.key == key);
            let mut after = keyed_parts.iter().skip(placed.covers);
            let is_known = after.all(|keyed| keyed.role != Role::Assistant || is_its(keyed.key));
            is_known && !decides_apart
        });
        let sent = known.and_then(|parent| ledger.sketch(parent)).filter(|sent| !sent.is_empty());
        let (line, keys) = Default::default();
        Self { ledger, request: &placed.request, parent, sent, line, keys }
    }

    fn has_sent(&self, key: PartKey) -> bool {
        let keys = || self.sent.iter().flatten().map(|part| part.key).collect();
        self.keys.get_or_init(keys).contains(&key)
    }

    /// Whether an exchange of this branch made it.
    fn has_made(&self, request: &str) -> bool {
        request == self.request || self.line().contains(request)
    }

    fn line(&self) -> &HashSet<&'l str> {
        self.line.get_or_init(|| {
            let before =
                |turn: &&'l Turn| Some(&**self.ledger.turn(turn.position.parent.as_deref()?)?);
            let mut line = HashSet::default();
            // What was seen before is a circle: the facts contradict each other.
            for turn in std::iter::successors(self.parent, before) {
                if !line.insert(&*turn.request) {
                    break;
                }
            }
            line
        })
    }

    /// How this branch sent the parts with these keys, by their places in `keyed_parts`: how often each was cut.
    /// What it did not send is not there.
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
        // The same words may stand in more than one place: they are told apart by their order.
        let mut seen: HashMap<PartKey, usize> = HashMap::default();
        let mut found = HashMap::default();
        for (index, keyed) in
            keyed_parts.iter().enumerate().filter(|(_, keyed)| keys.contains(&keyed.key))
        {
            let number = seen.entry(keyed.key).or_default();
            found.extend(forms.get(&keyed.key).and_then(|it| Some((index, *it.get(*number)?))));
            *number += 1;
        }
        found
    }

    /// Whether a cut holds of a part that this branch has sent as `form`. A result that it has not sent yet
    /// is whole, or trimmed as it was at its birth: the model of this branch has not read it.
    pub(super) fn has_cut(&self, cut: &Cut, nth: CutCount, form: Option<CutCount>) -> bool {
        let is_sent = match form {
            Some(form) => form >= nth,
            None => cut.why == DecisionReason::TooLarge,
        };
        self.sent.is_none() || is_sent || self.has_made(&cut.request)
    }

    /// Whether a summary is in use here.
    pub(super) fn has_compact(&self, compact: &CompactionRecord) -> bool {
        self.sent.is_none() || self.has_sent(compact.key()) || self.has_made(&compact.request)
    }

    /// Whether a change that answers a refusal holds: a picture that this branch has sent stays. What a rule
    /// changes was accepted in no branch.
    pub(super) fn has_repair(&self, one: &RepairDecision) -> bool {
        let (Repair::Media { part, .. } | Repair::Picture { part, .. }) = one.repair else {
            return true;
        };
        self.sent.is_none() || self.has_made(&one.request) || !self.has_sent(part)
    }

    /// Whether words that somebody queued stand here after the part with this key.
    pub(super) fn has_said(&self, said: &InjectedMessage, after: PartKey) -> bool {
        let is_new = || !CutCount::ALL.iter().any(|cuts| self.has_sent(cuts.of(after)));
        let has_made = || said.taken().is_some_and(|taken| self.has_made(&taken.request));
        self.sent.is_none() || self.has_sent(said.key()) || has_made() || is_new()
    }

    /// Whether it holds that the reasoning of a reply is put back.
    pub(super) fn has_back(&self, echo: &ReasoningDecision, reasoning: &ReasoningRecord) -> bool {
        if echo.does != ReasoningAction::Back || self.sent.is_none() || self.has_made(&echo.request)
        {
            return true;
        }
        let was_there = reasoning.parts.first().is_some_and(|first| self.has_sent(*first));
        !was_there || self.has_thought(reasoning)
    }

    /// Whether a decision was made for this model. Of one whose turn is not known, it is taken to be.
    pub(super) fn is_of_model(&self, echo: &ReasoningDecision, model: Option<&str>) -> bool {
        self.ledger.turn(&echo.request).is_none_or(|turn| Some(&*turn.model) == model)
    }

    /// Those of the decisions to take reasoning out which its client sends that do not hold here, by what they
    /// are kept by: this branch sent it. Of what nobody knows, all hold.
    pub(super) fn not_out<'r>(
        &self,
        out: impl Iterator<Item = &'r Arc<ReasoningDecision>>,
        replies: impl Iterator<Item = &'r ReasoningRecord>,
    ) -> HashSet<PartKey> {
        let others = out.filter(|echo| self.sent.is_some() && !self.has_made(&echo.request));
        let others: HashMap<PartKey, &ReasoningDecision> =
            others.map(|echo| (echo.about, &**echo)).collect();
        // Where reasoning is not put back, no reply is known.
        let sent = others.keys().copied().filter(|about| self.has_sent(*about));
        let sent: HashSet<PartKey> = sent.collect();
        // Few have any: to read all replies takes its time.
        let replies = replies.filter(|_| !others.is_empty());
        let blocks = replies.flat_map(|reply| reply.blocks.iter().map(move |it| (it, reply)));
        let elsewhere = blocks.filter_map(|(block, reply)| {
            let literal = reasoning::literal(&block.raw)?;
            let echo = others.get(&PartKey::of_bytes(literal.as_bytes()))?;
            // It went with what made it void there.
            let is_new = self.parent.is_some_and(|parent| parent.after == reply.after);
            (self.has_thought(reply) || is_new && echo.why == DecisionReason::Bound)
                .then_some(echo.about)
        });
        elsewhere.chain(sent).collect()
    }

    /// Whether the turn before sent the reasoning of a reply: its client's own, or put back.
    fn has_thought(&self, reasoning: &ReasoningRecord) -> bool {
        names(reasoning).any(|key| self.has_sent(key))
    }

    /// The reasoning that the turn before sent.
    pub(super) fn thoughts(&self) -> HashSet<PartKey> {
        let is_thought = |part: &&SketchPart| {
            let places = [
                PromptSection::Reasoning,
                PromptSection::SteeredReasoning,
                PromptSection::OldReasoning,
            ];
            places.contains(&part.place)
        };
        self.sent.iter().flatten().filter(is_thought).map(|part| part.key).collect()
    }

    /// What was taken back in this branch and is not decided in it again: twice, or for good.
    pub(super) fn given_up(&self) -> HashSet<u128> {
        let mut taken: HashMap<u128, usize> = HashMap::default();
        for one in self.ledger.all_taken_back() {
            let grew_from = one.parent.as_deref();
            if self.has_made(&one.request) || grew_from.is_some_and(|it| self.has_made(it)) {
                let times = if one.retry == RevocationRetry::Never { 2 } else { 1 };
                one.about.iter().for_each(|about| *taken.entry(about.0).or_default() += times);
            }
        }
        taken.into_iter().filter(|(_, times)| *times > 1).map(|(about, _)| about).collect()
    }

    /// The exchanges of this branch that sent parts so first, by the keys that they have so.
    fn first_sent(&self, keys: &HashSet<PartKey>) -> HashMap<PartKey, &'l str> {
        let mut line = Vec::new();
        let mut next = self.parent;
        // No line is longer.
        for _ in self.ledger.turns() {
            let Some(turn) = next else { break };
            line.push(turn);
            next = turn.sketch.base.as_deref().and_then(|base| Some(&**self.ledger.turn(base)?));
        }
        let (mut parts, mut first): (Vec<PartKey>, HashMap<PartKey, &'l str>) = Default::default();
        for turn in line.into_iter().rev() {
            let kept = parts.len().min(turn.sketch.kept as usize);
            let gone = parts.drain(kept..).filter_map(|key| first.remove_entry(&key));
            let gone: HashMap<PartKey, &'l str> = gone.collect();
            let added = turn.sketch.added.iter().map(|part| part.key);
            for key in added.filter(|key| keys.contains(key)) {
                first.insert(key, gone.get(&key).copied().unwrap_or(&turn.request));
            }
            parts.extend(turn.sketch.added.iter().map(|part| part.key));
        }
        first
    }

    /// The exchange of this branch with which each of these cuts began to be sent in it, by what it is kept
    /// by: the one that decided it, or that took it over. `cuts`: each with the key of its part.
    pub(super) fn began<'c>(
        &self,
        cuts: impl Iterator<Item = (&'c Cut, PartKey)>,
    ) -> HashMap<PartKey, Box<str>> {
        let (own, others): (Vec<_>, Vec<_>) =
            cuts.partition(|(cut, _)| self.sent.is_none() || self.has_made(&cut.request));
        let mut began: HashMap<PartKey, Box<str>> =
            own.iter().map(|(cut, _)| (cut.about, cut.request.clone())).collect();
        if !others.is_empty() {
            let first = self.first_sent(&others.iter().map(|(_, key)| *key).collect());
            let first = others.iter().filter_map(|(cut, key)| Some((cut.about, first.get(key)?)));
            began.extend(first.map(|(about, request)| (about, (*request).into())));
        }
        began
    }
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

    /// What a part is known by then.
    pub(super) fn of(self, key: PartKey) -> PartKey {
        match self {
            Self::None => key,
            Self::Once => key.cut(),
            Self::Twice => key.cut().cut(),
        }
    }
}

/// What the reasoning of a reply is known by among the parts of a turn: put back by us, or sent by its client.
pub(super) fn names(reasoning: &ReasoningRecord) -> impl Iterator<Item = PartKey> + '_ {
    let blocks = reasoning.blocks.iter().flat_map(|block| {
        let literal = reasoning::literal(&block.raw).map(|literal| spelled(&literal));
        let raw = PartKey::of_bytes(block.raw.as_bytes());
        literal.into_iter().flatten().chain([raw])
    });
    blocks.chain(reasoning.seals.iter().flat_map(|signature| spelled(&signature.seal)))
}

/// A signature, without its quotes and with them.
fn spelled(seal: &str) -> [PartKey; 2] {
    [PartKey::of_bytes(seal.as_bytes()), PartKey::of_bytes(format!("\"{seal}\"").as_bytes())]
}

#[cfg(test)]
mod tests;
