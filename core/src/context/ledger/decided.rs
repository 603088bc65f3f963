//! What was decided in a session and holds: in which branch, and until what refusal.
//!
//! A decision is looked for at its place; where it was taken back, at the place after that, once. Must
//! not know what is decided from it.

use std::sync::Arc;

use foldhash::HashSet;

use super::Ledger;
use crate::context::decisions::{Decidable, Decisions};
use crate::context::repair::RepairDecision;
use crate::context::{
    CompactionRecord, Cut, Fact, Millis, ReasoningAction, ReasoningDecision, Revocation,
    RevocationRetry, Suspension, Turn,
};
use crate::dialect::PartKey;

impl Ledger {
    /// Whether anything was decided, in shadow mode or not.
    pub fn has_decided(&self, shadow: bool) -> bool {
        self.cuts.any(shadow) || self.echoes.any(shadow) || self.repairs.any(shadow)
    }

    /// The summaries that are in use, in no order.
    pub fn compacts(&self, shadow: bool) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.compacts.all().filter(move |one| one.shadow == shadow)
    }

    /// Those that are in use in a thread that was `suspended` then.
    pub fn compacts_holding(
        &self,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.all_that_hold(&self.compacts, shadow, suspended)
    }

    /// The summaries that were written, in no order.
    pub fn summaries(&self, shadow: bool) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        self.summaries.all().filter(move |one| one.shadow == shadow)
    }

    /// Those that a thread which was `suspended` then can use.
    pub fn summaries_holding(
        &self,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> impl Iterator<Item = &Arc<CompactionRecord>> {
        let may_be_used = move |one: &CompactionRecord| {
            let (_, used) = self.last(&self.compacts, one.place().0, shadow, suspended);
            used.is_none_or(|used| !self.is_void(&**used))
        };
        self.summaries.holding(shadow, suspended).filter(move |one| may_be_used(one))
    }

    /// What was cut from a result, in a thread that was `suspended` then.
    pub fn cut(&self, about: u128, shadow: bool, suspended: Option<Millis>) -> Option<&Arc<Cut>> {
        self.holding(&self.cuts, about, shadow, suspended)
    }

    /// Everything that is cut in a thread that was `suspended` then, in no order.
    pub fn cuts_holding(&self, suspended: Option<Millis>) -> impl Iterator<Item = &Arc<Cut>> {
        self.all_that_hold(&self.cuts, false, suspended)
    }

    /// What was decided about reasoning, in a thread that was `suspended` then.
    pub fn echo(
        &self,
        about: u128,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> Option<&Arc<ReasoningDecision>> {
        self.holding(&self.echoes, about, shadow, suspended)
    }

    /// Reasoning of clients that is taken out, in a thread that was `suspended` then.
    pub fn taken_out(
        &self,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> impl Iterator<Item = &Arc<ReasoningDecision>> {
        let holding = self.all_that_hold(&self.echoes, shadow, suspended);
        holding.filter(|echo| echo.does == ReasoningAction::Out)
    }

    /// Changes that answer refusals, and hold, in no order.
    ///
    /// A refused rewrite sets none aside: they answer what was said of the client's own words.
    pub fn repairs(&self) -> impl Iterator<Item = &Arc<RepairDecision>> {
        self.all_that_hold(&self.repairs, false, None)
    }

    /// When a rewrite was last refused that a request of `thread`, grown from `parent`, has to mind: one
    /// of the turns that it grew from, or one that grew from there in the same thread.
    pub fn suspended_since(&self, thread: &str, parent: Option<&Turn>) -> Option<Millis> {
        let from = parent.map(|turn| &*turn.request);
        let beside = |suspended: &&Suspension| {
            *suspended.thread == *thread && suspended.parent.as_deref() == from
        };
        let beside = self.suspensions.iter().filter(beside).map(|suspended| suspended.at).max();
        beside.max(parent.and_then(|turn| turn.position.suspended))
    }

    /// What took a decision back.
    fn taker(&self, one: &impl Decidable) -> Option<&Revocation> {
        let about = PartKey(one.place().0);
        let taken = self.taken_back.get(one.request())?;
        taken.iter().find(|taken| taken.about.contains(&about))
    }

    /// Everything that was taken back, in no order.
    pub fn all_taken_back(&self) -> impl Iterator<Item = &Revocation> {
        self.taken_back.values().flatten()
    }

    fn is_void(&self, one: &impl Decidable) -> bool {
        self.taker(one).is_some()
    }

    /// The last that was decided about something, void or not, and the refusal after which: once anew after
    /// it was taken back, and no more.
    fn last<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        about: u128,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> (Option<Millis>, Option<&'l Arc<T>>) {
        let first = all.get(about, shadow, suspended);
        match first.and_then(|first| self.taker(&**first)).and_then(Revocation::epoch) {
            Some(epoch) => (Some(epoch), all.get(about, shadow, Some(epoch))),
            None => (suspended, first),
        }
    }

    /// What holds of it.
    fn holding<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        about: u128,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> Option<&'l Arc<T>> {
        self.last(all, about, shadow, suspended).1.filter(|last| !self.is_void(&***last))
    }

    fn all_that_hold<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> impl Iterator<Item = &'l Arc<T>> {
        let first = all.holding(shadow, suspended);
        first.filter_map(move |first| self.holding(all, first.place().0, shadow, suspended))
    }

    /// A new decision for a request that was `suspended` then, if it ever was: it stands after what took
    /// back the one before it.
    pub fn after_suspension(&self, fact: Fact, suspended: Option<Millis>) -> Fact {
        let after = match &fact {
            Fact::Cut(cut) => self.last(&self.cuts, cut.place().0, cut.shadow, suspended).0,
            Fact::Echo(echo) => self.last(&self.echoes, echo.place().0, echo.shadow, suspended).0,
            Fact::Repair(one) => self.last(&self.repairs, one.place().0, false, None).0,
            Fact::Compact(one) => self.last(&self.compacts, one.place().0, one.shadow, suspended).0,
            _ => suspended,
        };
        fact.after(after)
    }

    /// Whether a decision was taken back, and is not to be made.
    pub fn voids(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Cut(cut) => self.is_void(&**cut),
            Fact::Echo(echo) => self.is_void(&**echo),
            Fact::Repair(repair) => self.is_void(&**repair),
            Fact::Compact(compact) => self.is_void(&**compact),
            _ => false,
        }
    }

    /// What was taken back for good in a thread that was `suspended` then: what that is kept by.
    pub fn given_up(&self, shadow: bool, suspended: Option<Millis>) -> HashSet<u128> {
        if self.taken_back.is_empty() {
            return HashSet::default();
        }
        let cuts = self.void(&self.cuts, shadow, suspended);
        let echoes = self.void(&self.echoes, shadow, suspended);
        cuts.chain(echoes).chain(self.void(&self.repairs, shadow, None)).collect()
    }

    fn void<'l, T: Decidable>(
        &'l self,
        all: &'l Decisions<T>,
        shadow: bool,
        suspended: Option<Millis>,
    ) -> impl Iterator<Item = u128> + 'l {
        let abouts = all.holding(shadow, suspended).map(|first| first.place().0);
        abouts.filter(move |about| {
            let (_, last) = self.last(all, *about, shadow, suspended);
            last.is_some_and(|last| self.is_void(&**last))
        })
    }

    /// Whether nothing new is tried in a request of `thread`, grown from `parent`, until its cache is cold:
    /// decisions were refused in one that it grew from, or that grew from there in the same thread, and
    /// nothing was learned that would spare the next ones.
    pub fn rests(&self, thread: &str, parent: Option<&Turn>) -> bool {
        let from = parent.map(|turn| &*turn.request);
        let mut resting =
            self.all_taken_back().filter(|taken| taken.retry == RevocationRetry::Cold).peekable();
        if resting.peek().is_none() {
            return false;
        }
        let before = |turn: &&Turn| Some(&**self.turn(turn.position.parent.as_deref()?)?);
        // No line is longer.
        let line = std::iter::successors(parent, before).take(self.turns.len());
        let line: HashSet<&str> = line.map(|turn| &*turn.request).collect();
        resting.any(|taken| {
            let beside = *taken.thread == *thread && taken.parent.as_deref() == from;
            beside || line.contains(&*taken.request)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Replacement;
    use crate::context::plan::DecisionReason;

    fn cut(request: &str, after: Option<Millis>) -> Fact {
        Fact::Cut(Box::new(Cut {
            about: PartKey(1),
            at: 1,
            request: request.into(),
            content: Replacement::Text("cut".into()),
            keep_media: false,
            was: 2,
            tokens: 1,
            why: DecisionReason::Always,
            shadow: false,
            after,
        }))
    }

    fn taken_back(request: &str, retry: RevocationRetry) -> Revocation {
        let (request, thread) = (request.into(), "thread".into());
        Revocation { request, thread, parent: None, at: 2, about: vec![PartKey(1)], retry }
    }

    #[test]
    fn what_was_refused_twice_is_given_up() {
        let mut ledger = Ledger::default();
        let given_up = |ledger: &Ledger| ledger.given_up(false, None).contains(&1);
        ledger.add(cut("first", None));
        assert!(!given_up(&ledger), "it holds");
        let first = taken_back("first", RevocationRetry::Next);
        let epoch = first.epoch();
        ledger.add(Fact::TakenBack(Box::new(first)));
        assert!(!given_up(&ledger), "it may be tried once more");
        ledger.add(cut("second", epoch));
        assert!(!given_up(&ledger), "it holds again");
        ledger.add(Fact::TakenBack(Box::new(taken_back("second", RevocationRetry::Never))));
        assert!(given_up(&ledger));
        assert!(!ledger.given_up(true, None).contains(&1), "shadow mode's are others");
    }

    /// One decision of each kind about one thing, decided for this request.
    fn decisions(request: &str) -> [Fact; 4] {
        use crate::context::policy::SummaryAuthor;
        use crate::context::{ReasoningAction, ReasoningDecision};
        use crate::dialect::repair::Repair;
        use crate::dialect::{Chain, Usage};
        let about = PartKey(1);
        let why = DecisionReason::Always;
        [
            cut(request, None),
            Fact::Echo(Box::new(ReasoningDecision {
                about,
                at: 1,
                request: request.into(),
                does: ReasoningAction::Back,
                why,
                shadow: false,
                after: None,
            })),
            Fact::Repair(Box::new(RepairDecision {
                about,
                at: 1,
                request: request.into(),
                model: "m".into(),
                upstream: "u".into(),
                repair: Repair::Unicode,
                after: None,
            })),
            Fact::Compact(Box::new(CompactionRecord {
                about: Chain(1),
                near: Vec::new(),
                is_own: true,
                at: 1,
                request: request.into(),
                raw: "{}".into(),
                was: 2,
                tokens: 1,
                by: SummaryAuthor::Summary,
                why,
                upstream: "u".into(),
                model: "m".into(),
                spent: Usage::default(),
                took: 0,
                carries: None,
                shadow: false,
                after: None,
            })),
        ]
    }

    fn after(fact: Fact) -> Option<Millis> {
        match fact {
            Fact::Cut(it) => it.after,
            Fact::Echo(it) => it.after,
            Fact::Repair(it) => it.after,
            Fact::Compact(it) | Fact::Summary(it) => it.after,
            other => panic!("{other:?}"),
        }
    }

    /// What was taken back is not made by the request that made it, and what is decided anew stands after that. What
    /// answers a refusal is set aside by none.
    #[test]
    fn what_was_taken_back_is_decided_anew_after_that() {
        let back = taken_back("first", RevocationRetry::Next);
        let epoch = back.epoch();
        for (at, fact) in decisions("first").into_iter().enumerate() {
            let mut ledger = Ledger::default();
            let plain = after(ledger.after_suspension(fact.clone(), Some(9)));
            let is_repair = matches!(fact, Fact::Repair(_));
            assert_eq!(plain, if is_repair { None } else { Some(9) }, "{at}");
            ledger.add(fact.clone());
            assert!(!ledger.voids(&fact), "{at}");
            ledger.add(Fact::TakenBack(Box::new(back.clone())));
            assert!(ledger.voids(&fact), "{at}");
            let anew = decisions("second").into_iter().nth(at).unwrap();
            assert!(!ledger.voids(&anew), "{at}");
            assert_eq!(after(ledger.after_suspension(anew, None)), epoch, "{at}");
            let given_up = || ledger.given_up(false, None).contains(&1);
            assert!(!given_up(), "{at}: it may be tried once more");
        }
        let [.., compact] = decisions("first");
        let Fact::Compact(compact) = compact else { panic!() };
        let mut ledger = Ledger::default();
        ledger.add(Fact::TakenBack(Box::new(back)));
        let summary = Fact::Summary(compact);
        assert!(!ledger.voids(&summary), "nothing was sent of it");
        assert_eq!(after(ledger.after_suspension(summary, Some(9))), Some(9));
    }

    /// A refused rewrite sets aside what its thread tries from the same turn, and nothing else.
    #[test]
    fn a_refusal_suspends_its_thread_where_it_was_refused() {
        let mut ledger = Ledger::default();
        for (thread, parent, at) in
            [("t", None, 5), ("t", None, 7), ("u", None, 9), ("t", Some("p"), 11)]
        {
            ledger.add(Fact::Aside(Box::new(Suspension {
                request: format!("r{at}").into(),
                thread: thread.into(),
                parent: parent.map(Into::into),
                at,
            })));
        }
        assert_eq!(ledger.suspended_since("t", None), Some(7));
        assert_eq!(ledger.suspended_since("u", None), Some(9));
        assert_eq!(ledger.suspended_since("v", None), None);
    }

    /// Until its cache is cold nothing is tried in the thread that was refused from the same turn.
    #[test]
    fn a_thread_rests_where_it_was_refused() {
        let mut ledger = Ledger::default();
        ledger.add(Fact::TakenBack(Box::new(taken_back("first", RevocationRetry::Next))));
        assert!(!ledger.rests("thread", None), "the next request may try again");
        ledger.add(Fact::TakenBack(Box::new(taken_back("second", RevocationRetry::Cold))));
        assert!(ledger.rests("thread", None) && !ledger.rests("other", None));
        let parent = Some("p".into());
        let elsewhere = Revocation { parent, ..taken_back("third", RevocationRetry::Cold) };
        let mut ledger = Ledger::default();
        ledger.add(Fact::TakenBack(Box::new(elsewhere)));
        assert!(!ledger.rests("thread", None), "it grew from another turn");
    }
}
