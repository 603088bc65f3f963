//! The decisions of a session that apply: in which branch, and until which refusal.
//!
//! A decision is looked up under its key. If it was revoked, the one that replaced it is looked up, once.
//! Must not know what is decided from it.

use std::sync::Arc;

use foldhash::HashSet;

use super::Ledger;
use crate::context::decisions::{Decidable, DecisionKey, Decisions};
use crate::context::policy::DecisionMode;
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, ExchangeId, Fact, Millis, Position, ReasoningAction,
    ReasoningDecision, Renewal, Revocation, ThreadId, Turn,
};
use crate::dialect::PartKey;

/// The last decision with a key.
struct LastDecision<'l, T> {
    /// The refusal that it came after.
    epoch: Option<DecisionEpoch>,
    /// `None` if there is none.
    decision: Option<&'l Arc<T>>,
}

impl Ledger {
    pub(crate) fn has_decided(&self, mode: DecisionMode) -> bool {
        self.cuts.any(mode) || self.reasoning_decisions.any(mode) || self.repairs.any(mode)
    }

    /// The summaries in use, in no order.
    pub fn compacts(&self, mode: DecisionMode) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.compacts.all().filter(move |one| one.decision_key().mode == mode)
    }

    /// The summaries in use that apply in a branch of this epoch.
    pub fn compacts_holding(
        &self,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.all_that_hold(&self.compacts, mode, epoch)
    }

    /// The summaries that were written, in no order.
    pub fn summaries(&self, mode: DecisionMode) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.summaries.all().filter(move |one| one.decision_key().mode == mode)
    }

    pub(crate) fn summaries_holding(
        &self,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        // One that was used and refused is not used again.
        self.summaries.holding(mode, epoch).filter(move |summary| {
            let about = summary.decision_key().about;
            let used = self.last(&self.compacts, about, mode, epoch).decision;
            used.is_none_or(|used| !self.is_void(&**used))
        })
    }

    /// The cut of a result that applies in a branch of this epoch.
    pub fn cut(
        &self,
        about: u128,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> Option<&Arc<Cut>> {
        self.holding(&self.cuts, about, mode, epoch)
    }

    /// All cuts that apply in a branch of this epoch, in no order.
    pub fn cuts_holding(&self, epoch: Option<DecisionEpoch>) -> impl Iterator<Item = &Arc<Cut>> {
        self.all_that_hold(&self.cuts, DecisionMode::Active, epoch)
    }

    pub(crate) fn reasoning_decision(
        &self,
        about: u128,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> Option<&Arc<ReasoningDecision>> {
        self.holding(&self.reasoning_decisions, about, mode, epoch)
    }

    pub(crate) fn reasoning_removals(
        &self,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = &Arc<ReasoningDecision>> {
        let holding = self.all_that_hold(&self.reasoning_decisions, mode, epoch);
        holding.filter(|decision| decision.does == ReasoningAction::Remove)
    }

    pub(crate) fn repairs(&self) -> impl Iterator<Item = &Arc<RepairDecision>> {
        // Suspensions do not affect them: they answer refusals of the client's own content.
        self.all_that_hold(&self.repairs, DecisionMode::Active, None)
    }

    /// The turn that a request with this position continues.
    pub fn parent(&self, position: &Position) -> Option<&Turn> {
        Some(self.turn(position.parent.as_ref()?)?)
    }

    /// A turn and its ancestors, nearest first. Ends where an ancestor is unknown.
    pub(crate) fn line<'l>(&'l self, turn: Option<&'l Turn>) -> impl Iterator<Item = &'l Turn> {
        let line = std::iter::successors(turn, |turn| self.parent(&turn.position));
        // Facts that contradict each other could make a ring.
        line.take(self.turns.len() + 1)
    }

    /// When a rewrite was last refused that affects a request of `thread` with this parent.
    pub(crate) fn suspended_since(
        &self,
        thread: &ThreadId,
        parent: Option<&Turn>,
    ) -> Option<Millis> {
        let from = parent.map(|turn| &turn.exchange);
        // A repeated request has the same thread and parent, but the refused one is no ancestor of it.
        let refusals = self
            .suspensions
            .iter()
            .filter(|one| one.thread == *thread && one.parent.as_ref() == from)
            .map(|one| one.at);
        let inherited = parent.and_then(|turn| turn.position.suspended);
        refusals.max().max(inherited)
    }

    fn revocation_of(&self, one: &impl Decidable) -> Option<&Revocation> {
        let about = PartKey(one.decision_key().about);
        let revocations = self.revocations.get(one.exchange())?;
        revocations.iter().find(|revocation| revocation.about.contains(&about))
    }

    pub(crate) fn revocations(&self) -> impl Iterator<Item = &Revocation> {
        self.revocations.values().flatten()
    }

    fn is_void(&self, one: &impl Decidable) -> bool {
        self.revocation_of(one).is_some()
    }

    /// The last decision with a key, void or not.
    fn last<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        about: u128,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> LastDecision<'l, T> {
        let decision = all.get(about, mode, epoch);
        let revocation = decision.and_then(|decision| self.revocation_of(&**decision));
        match revocation.and_then(Revocation::epoch) {
            // Looked up once more only: what is refused twice is not tried a third time.
            Some(epoch) => {
                let decision = all.get(about, mode, Some(epoch));
                LastDecision { epoch: Some(epoch), decision }
            }
            None => LastDecision { epoch, decision },
        }
    }

    fn holding<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        about: u128,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> Option<&'l Arc<T>> {
        let decision = self.last(all, about, mode, epoch).decision?;
        if self.is_void(&**decision) { None } else { Some(decision) }
    }

    fn all_that_hold<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = &'l Arc<T>> {
        all.holding(mode, epoch).filter_map(move |decision| {
            self.holding(all, decision.decision_key().about, mode, epoch)
        })
    }

    /// Marks a new decision for a request of a branch of this epoch: it comes after the
    /// revocation of the decision before it.
    pub fn after_suspension(&self, fact: Fact, epoch: Option<DecisionEpoch>) -> Fact {
        let epoch = match &fact {
            Fact::Cut(cut) => self.follows(&self.cuts, &**cut, epoch),
            Fact::ReasoningDecision(decision) => {
                self.follows(&self.reasoning_decisions, &**decision, epoch)
            }
            Fact::Repair(repair) => self.follows(&self.repairs, &**repair, None),
            Fact::Compact(compact) => self.follows(&self.compacts, &**compact, epoch),
            _ => epoch,
        };
        fact.in_epoch(epoch)
    }

    fn follows<T: Decidable>(
        &self,
        all: &Decisions<T>,
        new: &T,
        epoch: Option<DecisionEpoch>,
    ) -> Option<DecisionEpoch> {
        let DecisionKey { about, mode, .. } = new.decision_key();
        self.last(all, about, mode, epoch).epoch
    }

    /// Whether a decision was revoked and must not be made.
    pub fn voids(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Cut(cut) => self.is_void(&**cut),
            Fact::ReasoningDecision(decision) => self.is_void(&**decision),
            Fact::Repair(repair) => self.is_void(&**repair),
            Fact::Compact(compact) => self.is_void(&**compact),
            _ => false,
        }
    }

    /// The keys of decisions that were revoked for good in a branch of this epoch.
    pub(crate) fn given_up(
        &self,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> HashSet<u128> {
        if self.revocations.is_empty() {
            return HashSet::default();
        }
        let cuts = self.void(&self.cuts, mode, epoch);
        let decisions = self.void(&self.reasoning_decisions, mode, epoch);
        cuts.chain(decisions).chain(self.void(&self.repairs, mode, None)).collect()
    }

    fn void<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = u128> + 'l {
        let abouts = all.holding(mode, epoch).map(|first| first.decision_key().about);
        abouts.filter(move |about| {
            let decision = self.last(all, *about, mode, epoch).decision;
            decision.is_some_and(|decision| self.is_void(&**decision))
        })
    }

    /// Whether a request of `thread` with this parent gets no new decisions until its cache is cold:
    /// decisions were refused for one of its ancestors, or for another request with the same thread and
    /// parent.
    pub(crate) fn is_suspended(&self, thread: &ThreadId, parent: Option<&Turn>) -> bool {
        let from = parent.map(|turn| &turn.exchange);
        // Where something was learned, it prevents the next refusal.
        let mut resting =
            self.revocations().filter(|revoked| revoked.renewal == Renewal::Cold).peekable();
        if resting.peek().is_none() {
            return false;
        }
        let line: HashSet<&ExchangeId> = self.line(parent).map(|turn| &turn.exchange).collect();
        resting.any(|revoked| {
            let is_repeated = revoked.thread == *thread && revoked.parent.as_ref() == from;
            is_repeated || line.contains(&revoked.exchange)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::context::Suspension;
    use crate::context::plan::DecisionReason;

    /// The epoch after a suspension at this time.
    fn suspended_at(at: Millis) -> Option<DecisionEpoch> {
        Some(DecisionEpoch::of_suspension(at))
    }

    fn cut(exchange: &str, epoch: Option<DecisionEpoch>) -> Fact {
        Fact::Cut(Box::new(Cut { epoch, ..crate::context::scene::cut(1, exchange, "cut") }))
    }

    fn revocation(exchange: &str, renewal: Renewal) -> Revocation {
        let (exchange, thread) = (exchange.into(), "thread".into());
        Revocation { exchange, thread, parent: None, at: 2, about: vec![PartKey(1)], renewal }
    }

    #[test]
    fn twice_refused_is_given_up() {
        let mut ledger = Ledger::default();
        let given_up = |ledger: &Ledger| ledger.given_up(DecisionMode::Active, None).contains(&1);
        ledger.add(cut("first", None));
        assert!(!given_up(&ledger), "it holds");
        let first = revocation("first", Renewal::Next);
        let epoch = first.epoch();
        ledger.add(Fact::Revocation(Box::new(first)));
        assert!(!given_up(&ledger), "it may be tried once more");
        ledger.add(cut("second", epoch));
        assert!(!given_up(&ledger), "it holds again");
        ledger.add(Fact::Revocation(Box::new(revocation("second", Renewal::Never))));
        assert!(given_up(&ledger));
        assert!(
            !ledger.given_up(DecisionMode::Shadow, None).contains(&1),
            "shadow mode's are others"
        );
    }

    /// One decision of each kind about the same thing, made for this request.
    fn decisions(request: &str) -> [Fact; 4] {
        use crate::context::policy::SummaryAuthor;
        use crate::context::{ReasoningAction, ReasoningDecision};
        use crate::dialect::repair::Repair;
        use crate::dialect::{Chain, Usage};
        let about = PartKey(1);
        let why = DecisionReason::Always;
        [
            cut(request, None),
            Fact::ReasoningDecision(Box::new(ReasoningDecision {
                about,
                at: 1,
                exchange: request.into(),
                does: ReasoningAction::PutBack,
                why,
                shadow: false,
                epoch: None,
            })),
            Fact::Repair(Box::new(RepairDecision {
                about,
                at: 1,
                exchange: request.into(),
                model: "m".into(),
                upstream: "u".into(),
                repair: Repair::Unicode,
                epoch: None,
            })),
            Fact::Compact(Box::new(CompactionRecord {
                about: Chain(1),
                near: Vec::new(),
                is_own: true,
                at: 1,
                exchange: request.into(),
                raw: "{}".into(),
                was: 2,
                tokens: 1,
                by: SummaryAuthor::Summary,
                why,
                upstream: "u".into(),
                model: "m".into(),
                spent: Usage::default(),
                dollars: None,
                took: 0,
                carries: None,
                shadow: false,
                epoch: None,
            })),
        ]
    }

    fn epoch_of(fact: Fact) -> Option<DecisionEpoch> {
        match fact {
            Fact::Cut(it) => it.epoch,
            Fact::ReasoningDecision(it) => it.epoch,
            Fact::Repair(it) => it.epoch,
            Fact::Compact(it) | Fact::Summary(it) => it.epoch,
            other => panic!("{other:?}"),
        }
    }

    /// A revoked decision does not count for the request that made it. A new one is stored after the revocation. A
    /// suspension does not affect repairs.
    #[test]
    fn revoked_decision_can_be_made_again() {
        let back = revocation("first", Renewal::Next);
        let epoch = back.epoch();
        for (at, fact) in decisions("first").into_iter().enumerate() {
            let mut ledger = Ledger::default();
            let plain = epoch_of(ledger.after_suspension(fact.clone(), suspended_at(9)));
            let is_repair = matches!(fact, Fact::Repair(_));
            assert_eq!(plain, if is_repair { None } else { suspended_at(9) }, "{at}");
            ledger.add(fact.clone());
            assert!(!ledger.voids(&fact), "{at}");
            ledger.add(Fact::Revocation(Box::new(back.clone())));
            assert!(ledger.voids(&fact), "{at}");
            let anew = decisions("second").into_iter().nth(at).unwrap();
            assert!(!ledger.voids(&anew), "{at}");
            assert_eq!(epoch_of(ledger.after_suspension(anew, None)), epoch, "{at}");
            let given_up = || ledger.given_up(DecisionMode::Active, None).contains(&1);
            assert!(!given_up(), "{at}: it may be tried once more");
        }
        let [.., compact] = decisions("first");
        let Fact::Compact(compact) = compact else { panic!() };
        let mut ledger = Ledger::default();
        ledger.add(Fact::Revocation(Box::new(back)));
        let summary = Fact::Summary(compact);
        assert!(!ledger.voids(&summary), "none of it was sent");
        assert_eq!(epoch_of(ledger.after_suspension(summary, suspended_at(9))), suspended_at(9));
    }

    /// A refused rewrite suspends its thread for requests with the same parent turn, and nothing else.
    #[test]
    fn suspension_applies_to_its_thread_and_parent_turn_only() {
        let mut ledger = Ledger::default();
        for (thread, parent, at) in
            [("t", None, 5), ("t", None, 7), ("u", None, 9), ("t", Some("p"), 11)]
        {
            ledger.add(Fact::Suspension(Box::new(Suspension {
                exchange: format!("r{at}").into(),
                thread: thread.into(),
                parent: parent.map(Into::into),
                at,
            })));
        }
        assert_eq!(ledger.suspended_since(&"t".into(), None), Some(7));
        assert_eq!(ledger.suspended_since(&"u".into(), None), Some(9));
        assert_eq!(ledger.suspended_since(&"v".into(), None), None);
    }

    /// Until the cache is cold, nothing new is tried in the refused thread from the same turn.
    #[test]
    fn refused_thread_tries_nothing_new_from_same_turn() {
        let mut ledger = Ledger::default();
        ledger.add(Fact::Revocation(Box::new(revocation("first", Renewal::Next))));
        assert!(!ledger.is_suspended(&"thread".into(), None), "the next request may try again");
        ledger.add(Fact::Revocation(Box::new(revocation("second", Renewal::Cold))));
        assert!(ledger.is_suspended(&"thread".into(), None));
        assert!(!ledger.is_suspended(&"other".into(), None));
        let parent = Some("p".into());
        let elsewhere = Revocation { parent, ..revocation("third", Renewal::Cold) };
        let mut ledger = Ledger::default();
        ledger.add(Fact::Revocation(Box::new(elsewhere)));
        assert!(!ledger.is_suspended(&"thread".into(), None), "it grew from another turn");
    }
}
