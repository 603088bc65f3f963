//! What is known about a request's parts: recorded decisions that apply, and replies that came back.
//!
//! Gathered from the ledger at once, so that planning needs no lock. New facts are added once they are saved.
//! Replies are found by their chain, or by an anchor key if the client changed something before them
//! (`docs/architecture.md` "Facts").

mod branch;
mod injected;
mod keyed;
mod repairs;
mod replies;
mod reply;
mod returned;
mod summaries;
mod thoughts;

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::{Decision, DecisionReason, Overlay, PlanRequest};
use crate::context::ledger::{Ledger, RepeatedPrefix};
use crate::context::lineage::Placement;
use crate::context::policy::{DecisionMode, ReasoningRule};
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, ExchangeId, Fact, InjectedMessage, QueuedMessage,
    ReasoningAction, ReasoningDecision, ThreadId, Turn, inject,
};
use crate::dialect::{Chain, Conversation, Message, Part, PartIndex, PartKey, PartKind, Role};
use branch::{Branch, CutCount, OwnReasoning};
use keyed::{KeyedPart, head, keyed_parts, prefill};
use thoughts::SentThoughts;

pub(in crate::context) use injected::HistoryEnd;
pub use reply::ForeignReasoning;
pub(crate) use reply::ReturnedReply;

/// The range of the history in which a cut makes reasoning void.
#[derive(Clone, Copy, Debug)]
struct CutReach {
    /// The end: the first part that the request which decided the cut does not share.
    end: PartIndex,
    /// The parent turn sent the part in this cut form.
    is_sent: bool,
}

/// Everything known about one request.
#[derive(Clone, Debug, Default)]
pub struct RecordedDecisions {
    keyed_parts: Vec<KeyedPart>,
    /// The chain of system prompt and tools.
    head: Chain,
    cuts: HashMap<u128, Arc<Cut>>,
    /// The message at which a prefill begins, if there is one.
    prefill: Option<usize>,
    /// For each cut, by its decision key: the range of the history in which it makes reasoning void.
    reaches: HashMap<u128, CutReach>,
    reasoning_decisions: HashMap<u128, Arc<ReasoningDecision>>,
    /// The keys of the decisions about parts, and to remove reasoning, that were made for the requested model.
    of_its_model: HashSet<PartKey>,
    /// Keys of decisions that were refused and are never made again.
    given_up: HashSet<u128>,
    /// Changes that answer refusals by this upstream and model, in the order in which they are made.
    pub(in crate::context) repairs: Vec<Arc<RepairDecision>>,
    /// Keys of decisions of other branches that this request adopted.
    adopted: HashSet<u128>,
    exchange: ExchangeId,
    /// The reasoning that the parent turn sent.
    thoughts: Arc<SentThoughts>,
    /// The replies whose reasoning another one has, too.
    repeated: HashSet<Chain>,
    /// The removal keys of the client's reasoning that the parent turn did not send.
    left_out: HashSet<u128>,
    /// Replies whose reasoning is recorded, oldest first.
    pub replies: Vec<ReturnedReply>,
    /// The client's own reasoning that belongs to none of them, in order.
    pub foreign: Vec<ForeignReasoning>,
    /// The turn that it continues.
    pub parent: Option<Arc<Turn>>,
    /// If the parent turn read nothing from the cache: the beginning of its request that repeats an earlier one.
    pub(in crate::context) repeated_prefix: Option<RepeatedPrefix>,
    /// The refusal of a rewrite of its branch: decisions from before it are not repeated.
    pub epoch: Option<DecisionEpoch>,
    /// Decisions of its branch were refused: nothing new is decided until its cache is cold.
    pub is_suspended: bool,
    /// The summary in use, with the index of the first message that stays.
    compact: Option<(usize, Arc<CompactionRecord>)>,
    /// The tokens of the request that first used that summary, as reported or else as estimated.
    pub(in crate::context) compacted_to: Option<u64>,
    /// Summaries written for it and not in use, each with the index of the first message that stays.
    pub summaries: Vec<(usize, Arc<CompactionRecord>)>,
    /// Its client was seen to compact by itself.
    pub client_compacted: bool,
    /// Its client had its history summarised a few turns ago, and will soon send the summary instead.
    pub(in crate::context) is_being_compacted: bool,
    /// Injected messages, each with the number of the keyed part that it follows.
    injected: Vec<(usize, Arc<InjectedMessage>)>,
    /// Messages that wait for injection, in order, if this request can take them.
    pub(in crate::context) waiting: Vec<Arc<QueuedMessage>>,
    pub(in crate::context) thread: ThreadId,
}

/// The cut of one result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CutOfPart<'k> {
    /// `None` if it is not cut.
    pub(crate) cut: Option<&'k Cut>,
    /// The same cut, if it only trimmed the result, which may then be cleared.
    pub(crate) trim: Option<&'k Cut>,
}

impl RecordedDecisions {
    /// Gathers what `ledger` knows, with the decisions of this mode.
    pub fn from_ledger(
        ledger: &Ledger,
        conversation: &Conversation,
        placed: &Placement,
        mode: DecisionMode,
    ) -> Self {
        let missed = placed.parent.as_ref().filter(|parent| parent.usage.cache_read == Some(0));
        let mut recorded = Self {
            parent: placed.parent.clone(),
            repeated_prefix: missed.and_then(|parent| ledger.repeated_prefix(parent)),
            epoch: placed.position.suspended.map(DecisionEpoch::of_suspension),
            is_suspended: placed.position.suspended.is_some()
                || ledger.is_suspended(&placed.position.thread, placed.parent.as_deref()),
            client_compacted: ledger.client_compacted(),
            is_being_compacted: ledger.is_being_compacted(placed.parent.as_deref()),
            waiting: inject::waiting(ledger, placed),
            thread: placed.position.thread.clone(),
            exchange: placed.exchange.clone(),
            ..Self::bare(conversation)
        };
        recorded.prefill = prefill(conversation, &recorded.keyed_parts, placed);
        let branch = Branch::new(ledger, placed, recorded.without_prefill(), mode);
        recorded.find_summaries(ledger, conversation, mode, &branch);
        // What a session does not have need not be looked for.
        if ledger.knows_reasoning() {
            recorded.find_replies(ledger, conversation, &branch);
            recorded.repeated = thoughts::repeated(&recorded.replies);
        }
        if ledger.knows_reasoning() || ledger.has_decided(mode) {
            recorded.thoughts = branch.thoughts().clone();
        }
        if ledger.has_decided(mode) {
            let own_reasoning = branch.own_reasoning(conversation);
            let forms = recorded.find_decisions(
                ledger,
                mode,
                &branch,
                &own_reasoning,
                conversation.model.as_deref(),
            );
            recorded.left_out = own_reasoning.left_out;
            recorded.given_up = ledger.given_up(mode, recorded.epoch);
            recorded.given_up.extend(branch.given_up());
            recorded.find_reaches(ledger, conversation, &branch, &forms);
        }
        // Neither has a form for shadow mode.
        if mode == DecisionMode::Active {
            recorded.find_repairs(ledger, &branch);
            for (message, _) in ledger.injections() {
                recorded.find_injected(message);
            }
            let Self { injected, keyed_parts, .. } = &mut recorded;
            injected
                .retain(|(place, message)| branch.has_injected(message, keyed_parts[*place].key));
        }
        recorded
    }

    pub(super) fn bare(conversation: &Conversation) -> Self {
        Self { head: head(conversation), keyed_parts: keyed_parts(conversation), ..Self::default() }
    }

    /// Finds the decisions that apply here. Returns in which form the parent turn sent the parts that were cut,
    /// by index into `keyed_parts`.
    fn find_decisions(
        &mut self,
        ledger: &Ledger,
        mode: DecisionMode,
        branch: &Branch<'_>,
        own: &OwnReasoning,
        model: Option<&str>,
    ) -> HashMap<usize, CutCount> {
        let epoch = self.epoch;
        let mut cuts = Vec::new();
        for (index, keyed) in self.keyed_parts.iter().enumerate() {
            let nth = [(keyed.about, CutCount::Once), (clearing_key(keyed.about), CutCount::Twice)];
            for (about, nth) in nth {
                let Some(cut) = ledger.cut(about, mode, epoch) else { break };
                cuts.push((index, nth, cut));
            }
            let Some(decision) = ledger.reasoning_decision(keyed.about, mode, epoch) else {
                continue;
            };
            // A reply that ends with this part has the same key: what is put back is looked up below.
            if !matches!(decision.does, ReasoningAction::StandIn(_)) {
                continue;
            }
            if branch.is_of_model(decision, model) {
                self.of_its_model.insert(decision.about);
            }
            self.reasoning_decisions.insert(keyed.about, decision.clone());
        }
        let keys = cuts.iter().map(|(index, ..)| self.keyed_parts[*index].key).collect();
        let forms = branch.forms(&self.keyed_parts, &keys);
        let answered = self.without_prefill();
        let replied = answered.iter().rposition(|keyed| keyed.role == Role::Assistant);
        for (index, nth, cut) in cuts {
            // No model has read what follows the last reply.
            let is_new = replied.is_none_or(|replied| index > replied);
            let key = self.keyed_parts[index].key;
            if branch.has_cut(cut, key, nth, forms.get(&index).copied(), is_new) {
                self.cuts.insert(cut.about.0, cut.clone());
            }
        }
        for returned in &self.replies {
            let chain = returned.reasoning.after;
            if let Some(decision) = ledger.reasoning_decision(chain.0, mode, epoch)
                && branch.has_back(decision, &returned.reasoning, self.repeated.contains(&chain))
            {
                self.reasoning_decisions.insert(chain.0, decision.clone());
            }
        }
        // The bytes of what the client sends are not at hand here, so all decisions to remove are taken.
        let replies = self.replies.iter().map(|returned| &*returned.reasoning);
        let elsewhere =
            branch.removals_elsewhere(ledger.reasoning_removals(mode, epoch), replies, own);
        for decision in ledger.reasoning_removals(mode, epoch) {
            if elsewhere.contains(&decision.about) {
                continue;
            }
            if branch.is_of_model(decision, model) {
                self.of_its_model.insert(decision.about);
            }
            self.reasoning_decisions.insert(decision.about.0, decision.clone());
        }
        forms
    }

    fn adopt(&mut self, about: u128, by: &ExchangeId) {
        // Another branch made it first: it is new here all the same.
        if *by != self.exchange {
            self.adopted.insert(about);
        }
    }

    /// Keeps the decisions that this request adopted from other branches. `earlier`: what was known about the
    /// request before.
    pub fn keep_adopted(&mut self, earlier: &Self) {
        for about in &earlier.adopted {
            if let Some(cut) = earlier.cuts.get(about) {
                self.cuts.insert(*about, cut.clone());
            }
            if let Some(decision) = earlier.reasoning_decisions.get(about) {
                self.of_its_model.insert(decision.about);
                self.reasoning_decisions.insert(*about, decision.clone());
            }
            if let Some((cut, summary)) = &earlier.compact
                && summary.address().0 == *about
                && *cut > self.kept_from()
            {
                self.compact = Some((*cut, summary.clone()));
                self.summaries.retain(|(other, _)| other > cut);
                self.only_kept();
            }
            self.adopted.insert(*about);
        }
    }

    /// Adds facts once they are saved.
    pub fn add(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            match fact {
                Fact::Cut(cut) => {
                    self.adopt(cut.about.0, &cut.exchange);
                    self.cuts.entry(cut.about.0).or_insert_with(|| Arc::new(*cut));
                }
                Fact::ReasoningDecision(decision) => {
                    self.adopt(decision.about.0, &decision.exchange);
                    // It was proposed for this request, whoever was the first to decide it.
                    self.of_its_model.insert(decision.about);
                    self.reasoning_decisions
                        .entry(decision.about.0)
                        .or_insert_with(|| Arc::new(*decision));
                }
                Fact::Repair(repair) => {
                    self.adopt(repair.about.0, &repair.exchange);
                    self.add_repair(Arc::new(*repair));
                }
                Fact::Compact(compact) => self.use_summary(*compact),
                Fact::InjectedMessage(injected) => {
                    if self.injected.iter().all(|(_, known)| known.id != injected.id) {
                        self.find_injected(&Arc::new(*injected));
                    }
                }
                Fact::Turn(_)
                | Fact::Reasoning(_)
                | Fact::Suspension(_)
                | Fact::Revocation(_)
                | Fact::Summary(_)
                | Fact::Queued(_) => {}
            }
        }
    }

    /// The keys of the decisions that an exchange made.
    pub fn decided_by(&self, exchange: &ExchangeId) -> HashSet<PartKey> {
        let cuts = self.cuts.values().map(|cut| (&cut.exchange, cut.about));
        let decisions =
            self.reasoning_decisions.values().map(|decision| (&decision.exchange, decision.about));
        let compact = self.compact().map(|(_, one)| (&one.exchange, PartKey(one.address().0)));
        let repairs = self.repairs.iter().map(|one| (&one.exchange, one.about));
        cuts.chain(decisions)
            .chain(compact)
            .chain(repairs)
            .filter(|(by, about)| self.decision(about.0, by, exchange) == Decision::New)
            .map(|(_, about)| about)
            .collect()
    }

    /// The same without the cuts that this exchange newly made in parts that were sent before: the form that
    /// the provider has cached. `None` if there are no such cuts.
    pub fn as_cached(&self, exchange: &ExchangeId) -> Option<Self> {
        let mut cuts = self.cuts.clone();
        // What was cut at birth was never sent whole.
        cuts.retain(|about, cut| {
            is_birth(cut.why) || self.decision(*about, &cut.exchange, exchange) != Decision::New
        });
        if cuts.len() == self.cuts.len() {
            return None;
        }
        Some(Self { cuts, ..self.clone() })
    }

    /// Whether a decision may be made, that is, was not refused for good.
    pub fn may_decide(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Cut(cut) => !self.given_up.contains(&cut.about.0),
            Fact::ReasoningDecision(decision) => !self.given_up.contains(&decision.about.0),
            Fact::Repair(repair) => !self.given_up.contains(&repair.about.0),
            _ => true,
        }
    }

    /// Whether all of these may be decided. A change and the removal of the reasoning that it makes void are decided
    /// together or not at all.
    pub(in crate::context) fn may_decide_all(&self, facts: &[Fact]) -> bool {
        facts.iter().all(|fact| self.may_decide(fact))
    }

    /// Takes over what an exchange decided about parts that it sent for the first time: nothing depends on
    /// their unchanged form, and no reasoning comes after them.
    pub fn take_births(&mut self, other: &Self, exchange: &ExchangeId) {
        for (about, cut) in &other.cuts {
            let decision = other.decision(*about, &cut.exchange, exchange);
            if is_birth(cut.why) && decision == Decision::New {
                self.cuts.insert(*about, cut.clone());
            }
        }
        for (about, decision) in &other.reasoning_decisions {
            let is_new = other.decision(*about, &decision.exchange, exchange) == Decision::New;
            if is_birth(decision.why) && is_new {
                self.reasoning_decisions.insert(*about, decision.clone());
            }
        }
    }

    /// Whether no decision could change the request.
    pub fn decides_nothing(&self) -> bool {
        let is_empty =
            self.cuts.is_empty() && self.reasoning_decisions.is_empty() && self.injected.is_empty();
        is_empty && self.compact.is_none() && self.repairs.is_empty()
    }

    pub(super) fn removes_reasoning(&self) -> bool {
        self.reasoning_decisions.values().any(|decision| decision.does == ReasoningAction::Remove)
    }

    /// Whether any reasoning is removed for another reason than that the provider refused it.
    pub fn takes_out_unrefused(&self) -> bool {
        self.reasoning_decisions.values().any(|decision| {
            decision.does == ReasoningAction::Remove && decision.why != DecisionReason::Refusal
        })
    }

    pub(crate) fn was_sent(&self, returned: &ReturnedReply) -> bool {
        let reasoning = &returned.reasoning;
        self.thoughts.have(reasoning, self.repeated.contains(&reasoning.after))
    }

    pub(crate) fn reasoning_decision(&self, about: u128) -> Option<&ReasoningDecision> {
        self.reasoning_decisions.get(&about).map(|decision| &**decision)
    }

    pub(crate) fn takes_out_reasoning(
        &self,
        request: &PlanRequest<'_>,
        about: u128,
    ) -> Option<&ReasoningDecision> {
        let decision = self.reasoning_decision(about)?;
        let applies = decision.does == ReasoningAction::Remove && self.removes(request, decision);
        if applies { Some(decision) } else { None }
    }

    /// The cut with this key; if that only trimmed the result, the later cut that cleared it.
    pub(crate) fn cut(&self, about: u128) -> Option<&Cut> {
        let cut = self.cuts.get(&about)?;
        if cut.is_trim()
            && let Some(clearing) = self.cuts.get(&clearing_key(about))
        {
            return Some(clearing);
        }
        Some(cut)
    }

    pub(crate) fn cut_at(&self, part: &Part, at: PartIndex) -> CutOfPart<'_> {
        let may_be_cut =
            matches!(part.kind, PartKind::ToolResult | PartKind::Image | PartKind::Text);
        // The place is only looked up where there is something to find.
        let about = if may_be_cut && !self.cuts.is_empty() { self.about(at) } else { None };
        let cut = about.and_then(|about| self.cut(about));
        let trim = cut.filter(|cut| cut.is_trim() && about == Some(cut.about.0));
        CutOfPart { cut, trim }
    }

    pub(super) fn tokens_before(&self, at: PartIndex, cut: &Cut) -> u64 {
        // What was trimmed and then cleared was whole before the first of the two.
        let earliest = self.about(at).and_then(|about| self.cuts.get(&about));
        u64::from(earliest.map_or(cut.was, |earliest| earliest.was))
    }

    /// The part's key in the form in which it is sent, with its cuts.
    fn cut_key(&self, keyed: &KeyedPart) -> PartKey {
        match self.cut(keyed.about) {
            Some(cut) if cut.about.0 == keyed.about => keyed.key.cut(),
            Some(_) => keyed.key.cut().cut(),
            None => keyed.key,
        }
    }

    /// The key of decisions about the part at a place; `None` for parts without a key.
    pub(crate) fn about(&self, at: PartIndex) -> Option<u128> {
        let index = self.keyed_parts.binary_search_by_key(&at, |keyed| keyed.at).ok()?;
        Some(self.keyed_parts[index].about)
    }

    fn removes(&self, request: &PlanRequest<'_>, decision: &ReasoningDecision) -> bool {
        let needs_all = request.reasoning_rule == ReasoningRule::Demanded || request.is_bound();
        if !needs_all || decision.why == DecisionReason::Refusal || self.is_of_its_model(decision) {
            return true;
        }
        // This model demands reasoning, or what it thought later is void without it. So what policy removed for another
        // model is sent, unless the parent turn left it out for this model as well.
        self.continues_model(request) && self.left_out.contains(&decision.about.0)
    }

    /// Whether the model that answered the parent turn is asked.
    pub(super) fn continues_model(&self, request: &PlanRequest<'_>) -> bool {
        self.parent.as_ref().is_some_and(|parent| *parent.model == *request.name)
    }

    pub(super) fn is_of_its_model(&self, decision: &ReasoningDecision) -> bool {
        self.of_its_model.contains(&decision.about)
    }

    /// The cuts in this request: place, key of the cut part, cut.
    pub(crate) fn cuts_here(&self) -> impl Iterator<Item = (PartIndex, PartKey, &Cut)> {
        // Long histories mostly have no cuts, and are not walked then.
        let keyed_parts: &[KeyedPart] = if self.cuts.is_empty() { &[] } else { self.kept_parts() };
        keyed_parts
            .iter()
            .filter_map(|keyed| Some((keyed.at, self.cut_key(keyed), self.cut(keyed.about)?)))
    }

    pub(super) fn stand_ins(&self) -> impl Iterator<Item = (PartIndex, &ReasoningDecision)> {
        let keyed_parts: &[KeyedPart] =
            if self.reasoning_decisions.is_empty() { &[] } else { self.kept_parts() };
        keyed_parts
            .iter()
            .filter_map(|keyed| Some((keyed.at, &**self.reasoning_decisions.get(&keyed.about)?)))
    }

    /// The newest message of the model. Nobody has read what follows it.
    pub(in crate::context) fn last_reply(&self, messages: &[Message]) -> Option<usize> {
        let end = self.prefill.unwrap_or(messages.len());
        messages[..end].iter().rposition(|message| message.role == Role::Assistant)
    }

    fn without_prefill(&self) -> &[KeyedPart] {
        let end = self.prefill.unwrap_or(usize::MAX);
        &self.keyed_parts[..self.keyed_parts.partition_point(|keyed| keyed.at.message < end)]
    }

    fn kept_parts(&self) -> &[KeyedPart] {
        let from = self.kept_from();
        &self.keyed_parts[self.keyed_parts.partition_point(|keyed| keyed.at.message < from)..]
    }

    /// Whether a decision with key `about`, made by the exchange `by`, is new to another exchange.
    pub(in crate::context) fn decision(
        &self,
        about: u128,
        by: &ExchangeId,
        exchange: &ExchangeId,
    ) -> Decision {
        // What another branch decided first is adopted, and new here all the same.
        let is_new = by == exchange || *exchange == self.exchange && self.adopted.contains(&about);
        if is_new { Decision::New } else { Decision::Replayed }
    }

    /// What is forwarded according to summary, cuts and injections: the chains only, no overlay yet.
    pub(in crate::context) fn sent(&self) -> Overlay {
        let mut chains = Vec::with_capacity(self.keyed_parts.len() + 1);
        let mut chain = self.head;
        chains.push(chain);
        let covered = self.keyed_parts.len() - self.kept_parts().len();
        if covered > 0
            && let Some((_, compact)) = self.compact()
        {
            chains.resize(covered, chain);
            chain = match compact.carries {
                // Reasoning stays valid behind a summary that carries what the provider read.
                Some(history) if history.head == self.head => history.sent,
                _ => chain.then(compact.key()),
            };
            chains.push(chain);
        }
        let mut injected =
            self.injected.iter().skip_while(|(after, _)| *after < covered).peekable();
        for (place, keyed) in self.keyed_parts.iter().enumerate().skip(covered) {
            chain = chain.then(if self.cuts.is_empty() { keyed.key } else { self.cut_key(keyed) });
            while let Some((_, injected)) = injected.next_if(|(after, _)| *after == place) {
                chain = chain.then(injected.key());
            }
            chains.push(chain);
        }
        Overlay::new(chains)
    }
}

fn is_birth(why: DecisionReason) -> bool {
    matches!(why, DecisionReason::Birth | DecisionReason::TooLarge)
}

pub(in crate::context) fn clearing_key(about: u128) -> u128 {
    // Clearing a part that was trimmed before is another decision than trimming it.
    PartKey(about).cut().0
}
