//! What is known about a request's parts: recorded decisions that apply, and replies that came back.
//!
//! Gathered from the ledger at once, so that planning needs no lock. New facts are added once they are saved.
//! Replies are found by their chain, or by an anchor key if the client changed something before them
//! (`docs/architecture.md` "Facts").

mod branch;
mod keyed;
mod repairs;
mod replies;
mod reply;
mod returned;
mod summaries;

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::{Decision, DecisionReason, Overlay, PlanRequest};
use crate::context::ledger::{BoundaryHash, Ledger, RepeatedPrefix};
use crate::context::lineage::Placement;
use crate::context::policy::{DecisionMode, ReasoningRule};
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, ExchangeId, Fact, InjectedMessage, QueuedMessage,
    ReasoningAction, ReasoningDecision, ThreadId, Turn, inject,
};
use crate::dialect::{Chain, Conversation, Part, PartIndex, PartKey, PartKind, Role};
use branch::{Branch, CutCount, OwnReasoning};
use keyed::{KeyedPart, head, keyed_parts};

pub(crate) use reply::ForeignReasoning;
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
    /// The keys of the reasoning that the parent turn sent.
    thoughts: Arc<HashSet<PartKey>>,
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
    /// Injected messages, each with the number of the keyed part that it follows.
    injected: Vec<(usize, Arc<InjectedMessage>)>,
    /// Messages that wait for injection, in order, if this request can take them.
    pub(in crate::context) waiting: Vec<Arc<QueuedMessage>>,
    pub(in crate::context) thread: ThreadId,
}

/// The end of a request's history, as far as the model has not replied to it.
pub(in crate::context) struct HistoryEnd {
    /// The newest part.
    pub(in crate::context) at: PartIndex,
    /// The key of decisions about that part.
    pub(in crate::context) about: u128,
    pub(in crate::context) boundary: Option<PartKey>,
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
    pub fn of(
        ledger: &Ledger,
        conversation: &Conversation,
        placed: &Placement,
        mode: DecisionMode,
    ) -> Self {
        let missed = placed.parent.as_ref().filter(|parent| parent.usage.cache_read == Some(0));
        let mut known = Self {
            parent: placed.parent.clone(),
            repeated_prefix: missed.and_then(|parent| ledger.repeated_prefix(parent)),
            epoch: placed.position.suspended.map(DecisionEpoch::of_suspension),
            is_suspended: placed.position.suspended.is_some()
                || ledger.is_suspended(&placed.position.thread, placed.parent.as_deref()),
            client_compacted: ledger.client_compacted(),
            waiting: inject::waiting(ledger, placed),
            thread: placed.position.thread.clone(),
            exchange: placed.exchange.clone(),
            ..Self::bare(conversation)
        };
        let branch = Branch::of(ledger, placed, &known.keyed_parts, mode);
        known.find_summaries(ledger, conversation, mode, &branch);
        if ledger.knows_reasoning() {
            known.find_replies(ledger, conversation, &branch);
        }
        if ledger.knows_reasoning() || ledger.has_decided(mode) {
            known.thoughts = Arc::new(branch.thoughts());
        }
        if ledger.has_decided(mode) {
            let own = branch.own_reasoning(conversation);
            let forms =
                known.find_decisions(ledger, mode, &branch, &own, conversation.model.as_deref());
            known.left_out = own.left_out;
            known.given_up = ledger.given_up(mode, known.epoch);
            known.given_up.extend(branch.given_up());
            known.find_reaches(ledger, conversation, &branch, &forms);
        }
        if mode == DecisionMode::Active {
            known.find_repairs(ledger, &branch);
            ledger.injections().into_iter().for_each(|(injected, _)| known.find_injected(injected));
            let Self { injected, keyed_parts, .. } = &mut known;
            injected
                .retain(|(place, injected)| branch.has_injected(injected, keyed_parts[*place].key));
        }
        known
    }

    /// Nothing is known, except the conversation itself.
    pub(super) fn bare(conversation: &Conversation) -> Self {
        Self { head: head(conversation), keyed_parts: keyed_parts(conversation), ..Self::default() }
    }

    /// Finds the place of an injected message in this request, if it has one.
    fn find_injected(&mut self, injected: &Arc<InjectedMessage>) {
        let Some(injection) = injected.place() else { return };
        if injection.epoch != self.epoch {
            return;
        }
        let place = self.keyed_parts.iter().rposition(|keyed| keyed.about == injection.after.0);
        let Some(place) = place.or_else(|| self.joined(injection.boundary?)) else { return };
        self.injected.push((place, injected.clone()));
        // Ordered by the part that they follow, then by when they were queued.
        let order = |of: &InjectedMessage| of.place().map(|injection| injection.number);
        self.injected.sort_by_key(|(place, injected)| (*place, order(injected)));
    }

    /// The keyed part with this boundary hash; `None` unless there is exactly one.
    fn joined(&self, boundary: PartKey) -> Option<usize> {
        let mut found =
            (1..self.keyed_parts.len()).filter(|place| self.boundary(*place) == Some(boundary));
        found.next().filter(|_| found.next().is_none())
    }

    /// The boundary hash of a keyed part and the one before it.
    fn boundary(&self, place: usize) -> Option<PartKey> {
        let before = self.keyed_parts.get(place.checked_sub(1)?)?.key;
        Some(PartKey(BoundaryHash::of(before, self.keyed_parts.get(place)?.key).0))
    }

    /// Where a message can be injected now: after the newest part, if the model has not replied to it.
    pub(in crate::context) fn end(&self) -> Option<HistoryEnd> {
        let is_message = |keyed: &KeyedPart| keyed.role != Role::System;
        let place = self.keyed_parts.iter().rposition(is_message)?;
        let keyed = self.keyed_parts[place];
        let open = matches!(keyed.role, Role::User | Role::Tool);
        open.then(|| HistoryEnd {
            at: keyed.at,
            about: keyed.about,
            boundary: self.boundary(place),
        })
    }

    /// Whether an injected message is in this request.
    pub(in crate::context) fn is_injected(&self, id: &str) -> bool {
        self.injected.iter().any(|(_, injected)| *injected.id == *id)
    }

    /// Messages injected after the part at a place.
    pub(in crate::context) fn injected_at(
        &self,
        at: PartIndex,
    ) -> impl Iterator<Item = &InjectedMessage> {
        let here = self.injected.iter().filter(move |(place, _)| self.keyed_parts[*place].at == at);
        here.map(|(_, injected)| &**injected)
    }

    /// Messages injected after any part of a message, in order.
    pub(in crate::context) fn injected_in(
        &self,
        message: usize,
    ) -> impl Iterator<Item = &InjectedMessage> {
        let here = self
            .injected
            .iter()
            .filter(move |(place, _)| self.keyed_parts[*place].at.message == message);
        here.map(|(_, injected)| &**injected)
    }

    /// Messages injected in this request: the place that they follow, and all that follow it, in order.
    pub(in crate::context) fn injections(
        &self,
    ) -> impl Iterator<Item = (PartIndex, Vec<&InjectedMessage>)> {
        let from = self.kept_from();
        let groups = self.injected.chunk_by(|one, two| one.0 == two.0);
        let groups = groups.map(|group| {
            (
                self.keyed_parts[group[0].0].at,
                group.iter().map(|(_, injected)| &**injected).collect(),
            )
        });
        // Messages that a summary covers are not repeated.
        groups.filter(move |(at, _): &(_, Vec<&InjectedMessage>)| at.message >= from)
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
            let decision = ledger.reasoning_decision(keyed.about, mode, epoch);
            // A reply that ends with this part has the same key: what is put back is looked up below.
            let is_stand_in =
                |it: &&Arc<ReasoningDecision>| matches!(it.does, ReasoningAction::StandIn(_));
            let Some(decision) = decision.filter(is_stand_in) else { continue };
            if branch.is_of_model(decision, model) {
                self.of_its_model.insert(decision.about);
            }
            self.reasoning_decisions.insert(keyed.about, decision.clone());
        }
        let keys = cuts.iter().map(|(index, ..)| self.keyed_parts[*index].key).collect();
        let forms = branch.forms(&self.keyed_parts, &keys);
        let replied = self.keyed_parts.iter().rposition(|keyed| keyed.role == Role::Assistant);
        let held = cuts.into_iter().filter(|(index, nth, cut)| {
            let is_new = replied.is_none_or(|replied| *index > replied);
            branch.has_cut(cut, *nth, forms.get(index).copied(), is_new)
        });
        self.cuts.extend(held.map(|(_, _, cut)| (cut.about.0, cut.clone())));
        for returned in &self.replies {
            let about = returned.reasoning.after.0;
            let decision = ledger.reasoning_decision(about, mode, epoch);
            let decision =
                decision.filter(|decision| branch.has_back(decision, &returned.reasoning));
            self.reasoning_decisions.extend(decision.map(|decision| (about, decision.clone())));
        }
        // The bytes of what the client sends are not at hand here, so all decisions to remove are taken.
        let replies = self.replies.iter().map(|returned| &*returned.reasoning);
        let elsewhere = branch.not_out(ledger.reasoning_removals(mode, epoch), replies, own);
        let out = ledger
            .reasoning_removals(mode, epoch)
            .filter(|decision| !elsewhere.contains(&decision.about));
        for decision in out {
            if branch.is_of_model(decision, model) {
                self.of_its_model.insert(decision.about);
            }
            self.reasoning_decisions.insert(decision.about.0, decision.clone());
        }
        forms
    }

    /// Records that a decision for this request was made first by another branch and adopted as it is.
    fn adopt(&mut self, about: u128, by: &ExchangeId) {
        if *by != self.exchange {
            self.adopted.insert(about);
        }
    }

    /// Keeps the decisions that this request adopted from other branches. `before`: what was known about the
    /// request earlier.
    pub fn keep_adopted(&mut self, before: &Self) {
        for about in &before.adopted {
            let cut = before.cuts.get(about).map(|cut| (*about, cut.clone()));
            self.cuts.extend(cut);
            if let Some(decision) = before.reasoning_decisions.get(about) {
                self.of_its_model.insert(decision.about);
                self.reasoning_decisions.insert(*about, decision.clone());
            }
            let compact = before.compact.as_ref().filter(|(_, one)| one.address().0 == *about);
            if let Some((cut, one)) = compact.filter(|(cut, _)| *cut > self.kept_from()) {
                self.compact = Some((*cut, one.clone()));
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
        let all = cuts.chain(decisions).chain(compact).chain(repairs);
        let is_its =
            |by: &ExchangeId, about: PartKey| self.decision(about.0, by, exchange) == Decision::New;
        all.filter(|(by, about)| is_its(by, *about)).map(|(_, about)| about).collect()
    }

    /// The same without the cuts that this exchange newly made in parts that were sent before: the form that
    /// the provider has cached. `None` if there are no such cuts.
    pub fn as_cached(&self, exchange: &ExchangeId) -> Option<Self> {
        let is_new = |about: u128, cut: &Cut| {
            let is_birth = matches!(cut.why, DecisionReason::Birth | DecisionReason::TooLarge);
            !is_birth && self.decision(about, &cut.exchange, exchange) == Decision::New
        };
        let mut cuts = self.cuts.clone();
        cuts.retain(|about, cut| !is_new(*about, cut));
        (cuts.len() < self.cuts.len()).then(|| Self { cuts, ..self.clone() })
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

    /// Whether a decision about the same reasoning is recorded.
    pub(in crate::context) fn has_decided(&self, fact: &Fact) -> bool {
        let Fact::ReasoningDecision(decision) = fact else { return false };
        self.reasoning_decisions.contains_key(&decision.about.0)
    }

    /// The message of the first cut or summary that this request decided itself; `None` if there is none.
    pub(in crate::context) fn first_own_change(&self) -> Option<usize> {
        let is_own = |about: u128, by: &ExchangeId| {
            self.decision(about, by, &self.exchange) == Decision::New
        };
        // Reasoning stays valid behind a summary that carries what the provider read.
        let summary = self.compact().filter(|(_, one)| one.carries.is_none());
        let summary = summary.filter(|(_, one)| is_own(one.address().0, &one.exchange));
        let mut cuts = self.cuts_here();
        let cut = cuts.find(|(_, _, cut)| is_own(cut.about.0, &cut.exchange));
        // A summary stands before every cut.
        summary.map(|(from, _)| from).or(cut.map(|(at, ..)| at.message))
    }

    /// Takes over what an exchange decided about parts that it sent for the first time: nothing depends on
    /// their unchanged form, and no reasoning comes after them.
    pub fn take_births(&mut self, of: &Self, exchange: &ExchangeId) {
        let is_birth = |about: u128, by: &ExchangeId, why| {
            let is_new = of.decision(about, by, exchange) == Decision::New;
            is_new && matches!(why, DecisionReason::Birth | DecisionReason::TooLarge)
        };
        let cuts = of.cuts.iter().filter(|(about, cut)| is_birth(**about, &cut.exchange, cut.why));
        self.cuts.extend(cuts.map(|(about, cut)| (*about, cut.clone())));
        let decisions = of.reasoning_decisions.iter();
        let decisions = decisions
            .filter(|(about, decision)| is_birth(**about, &decision.exchange, decision.why));
        self.reasoning_decisions
            .extend(decisions.map(|(about, decision)| (*about, decision.clone())));
    }

    /// Whether no decision could change the request.
    pub fn decides_nothing(&self) -> bool {
        let is_empty =
            self.cuts.is_empty() && self.reasoning_decisions.is_empty() && self.injected.is_empty();
        is_empty && self.compact.is_none() && self.repairs.is_empty()
    }

    /// Whether reasoning that the client sends is to be removed.
    pub(super) fn removes_reasoning(&self) -> bool {
        self.reasoning_decisions.values().any(|decision| decision.does == ReasoningAction::Remove)
    }

    /// Whether any reasoning is removed for another reason than that the provider refused it.
    pub fn takes_out_unrefused(&self) -> bool {
        let mut out = self
            .reasoning_decisions
            .values()
            .filter(|decision| decision.does == ReasoningAction::Remove);
        out.any(|decision| decision.why != DecisionReason::Refusal)
    }

    /// Whether the parent turn sent the reasoning of a reply, or a part of it.
    pub(crate) fn was_sent(&self, returned: &ReturnedReply) -> bool {
        !self.thoughts.is_empty()
            && branch::names(&returned.reasoning).any(|key| self.thoughts.contains(&key))
    }

    /// The decision about reasoning with this key.
    pub(crate) fn reasoning_decision(&self, about: u128) -> Option<&ReasoningDecision> {
        self.reasoning_decisions.get(&about).map(|decision| &**decision)
    }

    /// The decision that takes out reasoning with this key, if it applies to this request.
    pub(crate) fn takes_out_reasoning(
        &self,
        request: &PlanRequest<'_>,
        about: u128,
    ) -> Option<&ReasoningDecision> {
        let decision = self.reasoning_decision(about)?;
        (decision.does == ReasoningAction::Remove && self.removes(request, decision))
            .then_some(decision)
    }

    /// The cut with this key; if that only trimmed the result, the later cut that cleared it.
    pub(crate) fn cut(&self, about: u128) -> Option<&Cut> {
        let cleared = || self.cuts.get(&clearing_key(about));
        let first = self.cuts.get(&about)?;
        Some(if first.why == DecisionReason::TooLarge { cleared().unwrap_or(first) } else { first })
    }

    /// The cut of the result at a place.
    pub(crate) fn cut_at(&self, part: &Part, at: PartIndex) -> CutOfPart<'_> {
        let kinds = [PartKind::ToolResult, PartKind::Image, PartKind::Text];
        let is_kind = kinds.contains(&part.kind);
        let may_be = is_kind && !self.cuts.is_empty();
        let about = if may_be { self.about(at) } else { None };
        let cut = about.and_then(|about| self.cut(about));
        let is_trim =
            |cut: &&Cut| cut.why == DecisionReason::TooLarge && about == Some(cut.about.0);
        CutOfPart { cut, trim: cut.filter(is_trim) }
    }

    /// Tokens of the part at a place before its first cut.
    pub(super) fn tokens_before(&self, at: PartIndex, cut: &Cut) -> u64 {
        let first = self.about(at).and_then(|about| self.cuts.get(&about));
        u64::from(first.map_or(cut.was, |first| first.was))
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
        let found = self.keyed_parts.binary_search_by_key(&at, |keyed| keyed.at).ok()?;
        Some(self.keyed_parts[found].about)
    }

    /// Whether a decision to remove reasoning applies. If this model demands reasoning, what policy removed for
    /// another model is sent, unless the parent turn left it out for this model as well.
    fn removes(&self, request: &PlanRequest<'_>, decision: &ReasoningDecision) -> bool {
        let was_left_out = || {
            let is_its = |parent: &&Arc<Turn>| *parent.model == *request.name;
            self.parent.as_ref().filter(is_its).is_some()
                && self.left_out.contains(&decision.about.0)
        };
        request.reasoning_rule != ReasoningRule::Demanded
            || decision.why == DecisionReason::Refusal
            || self.is_of_its_model(decision)
            || was_left_out()
    }

    /// Whether a decision about a part, or to remove reasoning, was made for the model that this request asks
    /// for.
    pub(super) fn is_of_its_model(&self, decision: &ReasoningDecision) -> bool {
        self.of_its_model.contains(&decision.about)
    }

    /// The cuts in this request: place, key of the cut part, cut.
    pub(crate) fn cuts_here(&self) -> impl Iterator<Item = (PartIndex, PartKey, &Cut)> {
        let (none, from) = (self.cuts.is_empty(), self.kept_from());
        let keyed_parts =
            self.keyed_parts.iter().filter(move |keyed| !none && keyed.at.message >= from);
        keyed_parts
            .filter_map(|keyed| Some((keyed.at, self.cut_key(keyed), self.cut(keyed.about)?)))
    }

    pub(super) fn stand_ins(&self) -> impl Iterator<Item = (PartIndex, &ReasoningDecision)> {
        let (none, from) = (self.reasoning_decisions.is_empty(), self.kept_from());
        let keyed_parts =
            self.keyed_parts.iter().filter(move |keyed| !none && keyed.at.message >= from);
        keyed_parts
            .filter_map(|keyed| Some((keyed.at, &**self.reasoning_decisions.get(&keyed.about)?)))
    }

    /// Whether a decision with key `about`, made by the exchange `of`, is new to the exchange `here`.
    pub(super) fn decision(&self, about: u128, of: &ExchangeId, here: &ExchangeId) -> Decision {
        let is_new = of == here || *here == self.exchange && self.adopted.contains(&about);
        if is_new { Decision::New } else { Decision::Replayed }
    }

    /// What is forwarded according to summary, cuts and injections: the chains only, no overlay yet.
    pub(in crate::context) fn sent(&self) -> Overlay {
        let mut chains = Vec::with_capacity(self.keyed_parts.len() + 1);
        let mut chain = self.head;
        chains.push(chain);
        let gone = self.keyed_parts.partition_point(|keyed| keyed.at.message < self.kept_from());
        if let Some((_, compact)) = self.compact().filter(|_| gone > 0) {
            chains.resize(gone, chain);
            let carried = compact.carries.filter(|it| it.head == self.head);
            chain = carried.map_or_else(|| chain.then(compact.key()), |it| it.sent);
            chains.push(chain);
        }
        let mut injected = self.injected.iter().skip_while(|(after, _)| *after < gone).peekable();
        for (place, keyed) in self.keyed_parts.iter().enumerate().skip(gone) {
            chain = chain.then(if self.cuts.is_empty() { keyed.key } else { self.cut_key(keyed) });
            while let Some((_, injected)) = injected.next_if(|(after, _)| *after == place) {
                chain = chain.then(injected.key());
            }
            chains.push(chain);
        }
        Overlay::of(chains)
    }
}

/// The decision key for clearing a part that was trimmed before.
pub(in crate::context) fn clearing_key(about: u128) -> u128 {
    PartKey(about).cut().0
}
