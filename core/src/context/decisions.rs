//! The decisions about one thing: the first, and one more after each refusal that made the earlier one void.
//!
//! A refused rewrite either suspends its branch ([`super::Suspension`]) or revokes the request's decisions
//! ([`super::Revocation`]); they are then not repeated. Later decisions are stored beside the earlier ones,
//! with that refusal in their key. So neither hides the other, and branches without the refusal keep theirs.
//! Pure.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::HashMap;

use super::footprint::{block_bytes, entry_bytes, text_bytes};
use super::policy::DecisionMode;
use super::repair::RepairDecision;
use super::{
    CompactionRecord, Cut, DecisionEpoch, ExchangeId, Fact, InjectionState, ReasoningAction,
    ReasoningDecision, Replacement,
};
use crate::dialect::PartKey;

/// The key of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DecisionKey {
    /// What it is about.
    pub(super) about: u128,
    /// The mode that it was made in.
    pub(super) mode: DecisionMode,
    /// The refusal that it came after.
    pub(super) epoch: Option<DecisionEpoch>,
}

/// A fact that can be decided again.
pub(super) trait Decidable {
    /// What it is about: two decisions with the same key exclude each other.
    fn decision_key(&self) -> DecisionKey;
    fn exchange(&self) -> &ExchangeId;
    /// Its size in memory, bytes, roughly.
    fn bytes(&self) -> usize;
}

impl Decidable for Cut {
    fn decision_key(&self) -> DecisionKey {
        let mode = DecisionMode::of_stored(self.shadow);
        DecisionKey { about: self.about.0, mode, epoch: self.epoch }
    }

    fn exchange(&self) -> &ExchangeId {
        &self.exchange
    }

    fn bytes(&self) -> usize {
        let content = match &self.content {
            Replacement::Text(content) => text_bytes(content),
            Replacement::Trim(_) => 64,
        };
        own_bytes(self) + text_bytes(&self.exchange) + content
    }
}

impl Decidable for ReasoningDecision {
    fn decision_key(&self) -> DecisionKey {
        let mode = DecisionMode::of_stored(self.shadow);
        DecisionKey { about: self.about.0, mode, epoch: self.epoch }
    }

    fn exchange(&self) -> &ExchangeId {
        &self.exchange
    }

    fn bytes(&self) -> usize {
        let content = match &self.does {
            ReasoningAction::StandIn(content) => text_bytes(content),
            ReasoningAction::PutBack | ReasoningAction::Remove => 0,
        };
        own_bytes(self) + text_bytes(&self.exchange) + content
    }
}

impl Decidable for RepairDecision {
    fn decision_key(&self) -> DecisionKey {
        DecisionKey { about: self.about.0, mode: DecisionMode::Active, epoch: self.epoch }
    }

    fn exchange(&self) -> &ExchangeId {
        &self.exchange
    }

    fn bytes(&self) -> usize {
        let names = text_bytes(&self.model) + text_bytes(&self.upstream);
        own_bytes(self)
            + text_bytes(&self.exchange)
            + names
            + text_bytes(self.repair.inserted_text())
    }
}

impl Decidable for CompactionRecord {
    fn decision_key(&self) -> DecisionKey {
        let mode = DecisionMode::of_stored(self.shadow);
        // A provider's own summary is void for another model, so its address has the model in it.
        DecisionKey { about: self.address().0, mode, epoch: self.epoch }
    }

    fn exchange(&self) -> &ExchangeId {
        &self.exchange
    }

    fn bytes(&self) -> usize {
        let near = block_bytes(self.near.capacity() * size_of::<PartKey>());
        let names =
            text_bytes(&self.exchange) + text_bytes(&self.upstream) + text_bytes(&self.model);
        own_bytes(self) + names + text_bytes(&self.raw) + near
    }
}

fn own_bytes<T>(one: &T) -> usize {
    // The two counters of an `Arc` take 16 bytes.
    block_bytes(size_of_val(one) + 16) + entry_bytes::<(DecisionKey, Arc<T>)>()
}

impl Fact {
    /// Marks a decision for a request of this epoch, if any.
    #[must_use]
    pub fn in_epoch(mut self, epoch: Option<DecisionEpoch>) -> Self {
        match &mut self {
            Self::Cut(cut) => cut.epoch = epoch,
            Self::ReasoningDecision(decision) => decision.epoch = epoch,
            Self::Repair(repair) => repair.epoch = epoch,
            Self::Summary(compact) | Self::Compact(compact) => compact.epoch = epoch,
            Self::InjectedMessage(message) => {
                if let InjectionState::Injected(injection) = &mut message.state {
                    injection.epoch = epoch;
                }
            }
            _ => {}
        }
        self
    }
}

/// All decisions of one kind.
#[derive(Clone, Debug)]
pub(super) struct Decisions<T> {
    by_key: HashMap<DecisionKey, Arc<T>>,
    /// Their size in memory, bytes.
    bytes: usize,
}

impl<T> Default for Decisions<T> {
    fn default() -> Self {
        Self { by_key: HashMap::default(), bytes: 0 }
    }
}

impl<T: Decidable> Decisions<T> {
    /// Adds one, unless there is one with the same key; returns by how many bytes the size grew.
    pub(super) fn add(&mut self, one: Arc<T>) -> usize {
        let bytes = match self.by_key.entry(one.decision_key()) {
            // The first write wins, as in the store.
            Entry::Occupied(_) => 0,
            Entry::Vacant(entry) => entry.insert(one).bytes(),
        };
        self.bytes += bytes;
        bytes
    }

    /// Their size in memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The one that applies to a request of this epoch.
    pub(super) fn get(
        &self,
        about: u128,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> Option<&Arc<T>> {
        self.by_key.get(&DecisionKey { about, mode, epoch })
    }

    /// All that apply to a request of this epoch, in no order.
    pub(super) fn holding(
        &self,
        mode: DecisionMode,
        epoch: Option<DecisionEpoch>,
    ) -> impl Iterator<Item = &Arc<T>> {
        self.by_key
            .iter()
            .filter(move |(key, _)| key.mode == mode && key.epoch == epoch)
            .map(|(_, one)| one)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_key.values()
    }

    pub(super) fn any(&self, mode: DecisionMode) -> bool {
        self.by_key.keys().any(|key| key.mode == mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::plan::DecisionReason;
    use crate::context::policy::SummaryAuthor;
    use crate::context::{Millis, Renewal, Revocation};
    use crate::dialect::{Chain, Usage};

    /// The epoch after a suspension at this time.
    fn suspended_at(at: Millis) -> Option<DecisionEpoch> {
        Some(DecisionEpoch::of_suspension(at))
    }

    struct RecordedDecision(ExchangeId, Option<DecisionEpoch>);

    impl Decidable for RecordedDecision {
        fn decision_key(&self) -> DecisionKey {
            DecisionKey { about: 1, mode: DecisionMode::Active, epoch: self.1 }
        }

        fn exchange(&self) -> &ExchangeId {
            &self.0
        }

        fn bytes(&self) -> usize {
            1
        }
    }

    #[test]
    fn decision_made_after_refusal_applies_in_refused_thread_only() {
        let mut all = Decisions::default();
        let held = |all: &Decisions<RecordedDecision>, epoch| {
            all.get(1, DecisionMode::Active, epoch).map(|one| one.0.to_string())
        };
        assert_eq!(all.add(Arc::new(RecordedDecision("first".into(), None))), 1);
        assert_eq!(held(&all, None).as_deref(), Some("first"));
        // It was refused at 20: it no longer applies there, but does elsewhere.
        assert_eq!(held(&all, suspended_at(20)), None);
        assert_eq!(held(&all, None), Some("first".into()));
        assert_eq!(all.add(Arc::new(RecordedDecision("anew".into(), suspended_at(20)))), 1);
        assert_eq!(held(&all, suspended_at(20)), Some("anew".into()));
        assert_eq!(held(&all, None), Some("first".into()));
        // Another replica made the same decision later: the first one stays.
        assert_eq!(all.add(Arc::new(RecordedDecision("late".into(), suspended_at(20)))), 0);
        assert_eq!(held(&all, suspended_at(20)), Some("anew".into()));
        assert_eq!(held(&all, suspended_at(40)), None);
        assert_eq!(all.holding(DecisionMode::Active, suspended_at(20)).count(), 1);
    }

    fn cut(about: u128, content: &str) -> Cut {
        crate::context::scene::cut(about, "1", content)
    }

    fn decision(does: ReasoningAction) -> ReasoningDecision {
        let (about, exchange, why) = (PartKey(1), "1".into(), DecisionReason::Always);
        ReasoningDecision { about, at: 1, exchange, does, why, shadow: false, epoch: None }
    }

    fn summary(by: SummaryAuthor, model: &str) -> CompactionRecord {
        CompactionRecord {
            about: Chain(1),
            near: Vec::new(),
            is_own: true,
            at: 1,
            exchange: "1".into(),
            raw: "words".into(),
            was: 2,
            tokens: 1,
            by,
            why: DecisionReason::Threshold,
            upstream: Box::default(),
            model: model.into(),
            spent: Usage::default(),
            dollars: None,
            took: 0,
            carries: None,
            shadow: false,
            epoch: None,
        }
    }

    /// Decisions of shadow mode do not apply to requests that are sent, and the other way round.
    #[test]
    fn shadow_decisions_are_kept_apart() {
        let mut cuts = Decisions::default();
        cuts.add(Arc::new(Cut { exchange: "sent".into(), ..cut(1, "words") }));
        use DecisionMode::{Active, Shadow};
        assert!(cuts.any(Active));
        assert!(!cuts.any(Shadow));
        cuts.add(Arc::new(Cut { exchange: "planned".into(), shadow: true, ..cut(2, "words") }));
        let names =
            |mode| cuts.holding(mode, None).map(|one| one.exchange().as_str()).collect::<Vec<_>>();
        assert_eq!(names(Active), vec!["sent"]);
        assert_eq!(names(Shadow), vec!["planned"]);
        assert_eq!(cuts.all().count(), 2);
        assert!(cuts.any(Shadow));
    }

    /// A session's decisions are limited by their size: their texts, and what each one takes itself.
    #[test]
    fn counted_size_of_decision_grows_with_its_content() {
        let long = "w".repeat(1 << 16);
        let grows_by = |short: usize, with: usize, own: usize| {
            assert!(short > own, "{short} for {own} bytes and its entry");
            assert!(short < 2 * own + 400, "{short} for {own} bytes and its entry");
            let more = with - short;
            assert!((1 << 16..(1 << 16) + (1 << 13)).contains(&more), "{more} more");
        };
        let (own, base) = (size_of::<Cut>(), cut(1, "").bytes());
        grows_by(base, cut(1, &long).bytes(), own);
        grows_by(base, Cut { exchange: long.as_str().into(), ..cut(1, "") }.bytes(), own);
        let (own, base) =
            (size_of::<ReasoningDecision>(), decision(ReasoningAction::PutBack).bytes());
        grows_by(base, decision(ReasoningAction::StandIn(long.as_str().into())).bytes(), own);
        let named = ReasoningDecision {
            exchange: long.as_str().into(),
            ..decision(ReasoningAction::Remove)
        };
        grows_by(base, named.bytes(), own);
        let (own, plain) = (size_of::<CompactionRecord>(), summary(SummaryAuthor::Summary, "m"));
        let with = |more: CompactionRecord| grows_by(plain.bytes(), more.bytes(), own);
        with(CompactionRecord { raw: long.as_str().into(), ..plain.clone() });
        with(CompactionRecord { exchange: long.as_str().into(), ..plain.clone() });
        with(CompactionRecord { near: vec![PartKey(1); 1 << 12], ..plain.clone() });
    }

    /// A client chooses the names of upstream and model, so long names count like texts.
    #[test]
    fn size_of_summary_includes_its_upstream_and_model_names() {
        let (base, long) = (summary(SummaryAuthor::Summary, ""), "w".repeat(1 << 16));
        for with in [
            CompactionRecord { model: long.as_str().into(), ..base.clone() },
            CompactionRecord { upstream: long.as_str().into(), ..base.clone() },
        ] {
            let more = with.bytes() - base.bytes();
            assert!((1 << 16..(1 << 16) + (1 << 13)).contains(&more), "{more} more");
        }
    }

    /// Another model cannot read a provider's summary, so each model has its own. A summary as text is one for all
    /// models.
    #[test]
    fn provider_summary_has_its_model() {
        let of = |by, model| summary(by, model).decision_key().about;
        assert_eq!(of(SummaryAuthor::Summary, "a"), of(SummaryAuthor::Summary, "b"));
        assert_ne!(of(SummaryAuthor::Provider, "a"), of(SummaryAuthor::Provider, "b"));
        let is_for = |by, model| summary(by, "a").is_for(model);
        assert!(is_for(SummaryAuthor::Summary, None));
        assert!(is_for(SummaryAuthor::Summary, Some("b")));
        assert!(is_for(SummaryAuthor::Provider, Some("a")));
        assert!(!is_for(SummaryAuthor::Provider, Some("b")));
        assert!(!is_for(SummaryAuthor::Provider, None));
    }

    /// The epoch after a refusal differs from that after any other refusal, and from any time.
    #[test]
    fn revocation_epoch_is_unique() {
        let revoked = |exchange: String, about: Vec<u128>, renewal| Revocation {
            exchange: exchange.into(),
            thread: "t".into(),
            parent: None,
            at: 1,
            about: about.into_iter().map(PartKey).collect(),
            renewal,
        };
        let mut epochs = std::collections::BTreeSet::new();
        let mut keys = std::collections::BTreeSet::new();
        for request in 0..50 {
            for about in [vec![], vec![1], vec![2], vec![1, 2]] {
                let of = |renewal| revoked(request.to_string(), about.clone(), renewal);
                let epoch = of(Renewal::Next).epoch().unwrap();
                assert!(u64::from_le_bytes(epoch.to_le_bytes()) > u64::MAX / 2, "{epoch:?}");
                assert!(epochs.insert(epoch));
                assert!(keys.insert(of(Renewal::Next).key()));
                assert_eq!(of(Renewal::Cold).epoch(), Some(epoch));
                assert_eq!(of(Renewal::Never).epoch(), None);
            }
        }
    }

    /// A decision that is made again is stored beside the refused one, under the time of the refusal.
    #[test]
    fn repeated_decision_is_stored_under_time_of_its_refusal() {
        let key_of = |fact: &Fact| match fact {
            Fact::Cut(cut) => cut.decision_key(),
            Fact::ReasoningDecision(decision) => decision.decision_key(),
            Fact::Summary(one) | Fact::Compact(one) => one.decision_key(),
            other => panic!("{other:?}"),
        };
        let one = || Box::new(summary(SummaryAuthor::Summary, "m"));
        for (fact, about) in [
            (Fact::Cut(Box::new(cut(1, ""))), 1),
            (Fact::ReasoningDecision(Box::new(decision(ReasoningAction::Remove))), 1),
            (Fact::Summary(one()), 1),
            (Fact::Compact(one()), 1),
        ] {
            let key = |epoch| DecisionKey { about, mode: DecisionMode::Active, epoch };
            assert_eq!(key_of(&fact), key(None));
            assert_eq!(key_of(&fact.in_epoch(suspended_at(9))), key(suspended_at(9)));
        }
        assert_eq!(decision(ReasoningAction::PutBack).exchange(), "1");
        assert_eq!(summary(SummaryAuthor::Summary, "m").exchange(), "1");
    }

    /// The size of a repair includes all that it holds. It is stored with its exchange, and under the refusal that it
    /// came after.
    #[test]
    fn size_of_repair_includes_content() {
        use crate::context::repair::RepairDecision;
        use crate::dialect::repair::Repair;
        let long = || -> Box<str> { "x".repeat(4_096).into() };
        let one = RepairDecision {
            about: PartKey(7),
            at: 1,
            exchange: "r".into(),
            model: "m".into(),
            upstream: "u".into(),
            repair: Repair::Empty { text: "w".into() },
            epoch: Some(DecisionEpoch::of_suspension(3)),
        };
        let key = DecisionKey {
            about: 7,
            mode: DecisionMode::Active,
            epoch: Some(DecisionEpoch::of_suspension(3)),
        };
        assert_eq!(one.decision_key(), key);
        assert_eq!(one.exchange().as_str(), "r");
        let of = |change: fn(&mut RepairDecision, Box<str>)| {
            let mut other = one.clone();
            change(&mut other, long());
            other.bytes() - one.bytes()
        };
        for more in [
            of(|one, long| one.exchange = (&*long).into()),
            of(|one, long| one.model = long),
            of(|one, long| one.upstream = long),
            of(|one, long| one.repair = Repair::Empty { text: long }),
        ] {
            assert!((4_000..4_500).contains(&more), "{more}");
        }
        assert!((size_of::<RepairDecision>()..2_000).contains(&one.bytes()), "{}", one.bytes());
        let fact = |fact: Fact| match fact.in_epoch(suspended_at(9)) {
            Fact::Repair(one) => one.epoch,
            other => panic!("{other:?}"),
        };
        assert_eq!(fact(Fact::Repair(Box::new(one))), suspended_at(9));
    }
}
