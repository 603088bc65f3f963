//! What was decided about one thing: once, and anew after each refusal that made it void.
//!
//! A refused rewrite sets what grows from it aside ([`super::Suspended`]), or takes back what was decided for
//! it ([`super::Revoked`]): that is not repeated. What is decided afterwards stands beside it under that
//! refusal, so that neither hides the other, and branches that were not refused keep what they have. No
//! clock is compared. Pure.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::HashMap;

use super::footprint::{block, entry, text};
use super::{
    CompactionRecord, Cut, Fact, InjectionState, Millis, ReasoningAction, ReasoningDecision,
    Replacement,
};
use crate::dialect::PartKey;

/// What a decision is kept by: what it is about, whether it is shadow mode's, and the refusal after
/// which it was decided.
pub(super) type DecisionKey = (u128, bool, Option<Millis>);

/// A fact that can be decided anew.
pub(super) trait Decidable {
    /// What it is kept by.
    fn place(&self) -> DecisionKey;
    /// The exchange that decided it.
    fn request(&self) -> &str;
    /// What it takes in memory, bytes, roughly.
    fn bytes(&self) -> usize;
}

impl Decidable for Cut {
    fn place(&self) -> DecisionKey {
        (self.about.0, self.shadow, self.after)
    }

    fn request(&self) -> &str {
        &self.request
    }

    fn bytes(&self) -> usize {
        let words = match &self.content {
            Replacement::Text(words) => text(words),
            Replacement::Trim(_) => 64,
        };
        place(self) + text(&self.request) + words
    }
}

impl Decidable for ReasoningDecision {
    fn place(&self) -> DecisionKey {
        (self.about.0, self.shadow, self.after)
    }

    fn request(&self) -> &str {
        &self.request
    }

    fn bytes(&self) -> usize {
        let words = match &self.does {
            ReasoningAction::StandIn(words) => text(words),
            ReasoningAction::Back | ReasoningAction::Out => 0,
        };
        place(self) + text(&self.request) + words
    }
}

impl Decidable for CompactionRecord {
    fn place(&self) -> DecisionKey {
        (self.address().0, self.shadow, self.after)
    }

    fn request(&self) -> &str {
        &self.request
    }

    fn bytes(&self) -> usize {
        let near = block(self.near.capacity() * size_of::<PartKey>());
        place(self) + text(&self.request) + text(&self.raw) + near
    }
}

/// What a decision takes itself, with its entry.
fn place<T>(one: &T) -> usize {
    block(size_of_val(one) + 16) + entry::<(DecisionKey, Arc<T>)>()
}

impl Fact {
    /// A decision for a request that was set `aside` then, if it ever was.
    #[must_use]
    pub fn after(mut self, aside: Option<Millis>) -> Self {
        match &mut self {
            Self::Cut(cut) => cut.after = aside,
            Self::Echo(echo) => echo.after = aside,
            Self::Summary(compact) | Self::Compact(compact) => compact.after = aside,
            Self::Said(said) => {
                if let InjectionState::Taken(taken) = &mut said.fate {
                    taken.aside = aside;
                }
            }
            _ => {}
        }
        self
    }
}

/// Everything that was decided of one kind.
#[derive(Clone, Debug)]
pub(super) struct Decisions<T> {
    by_place: HashMap<DecisionKey, Arc<T>>,
    /// What they take, bytes.
    bytes: usize,
}

impl<T> Default for Decisions<T> {
    fn default() -> Self {
        Self { by_place: HashMap::default(), bytes: 0 }
    }
}

impl<T: Decidable> Decisions<T> {
    /// Adds one, unless one of the same place is there; answers by how many bytes it grew.
    pub(super) fn add(&mut self, one: Arc<T>) -> usize {
        let bytes = match self.by_place.entry(one.place()) {
            Entry::Occupied(_) => 0,
            Entry::Vacant(place) => place.insert(one).bytes(),
        };
        self.bytes += bytes;
        bytes
    }

    /// What they take, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The one that holds for a request that was set `aside` then.
    pub(super) fn get(&self, about: u128, shadow: bool, aside: Option<Millis>) -> Option<&Arc<T>> {
        self.by_place.get(&(about, shadow, aside))
    }

    /// All that hold for a request that was set `aside` then, in no order.
    pub(super) fn holding(
        &self,
        shadow: bool,
        aside: Option<Millis>,
    ) -> impl Iterator<Item = &Arc<T>> {
        let holds = move |place: &DecisionKey| (place.1, place.2) == (shadow, aside);
        self.by_place.iter().filter(move |(place, _)| holds(place)).map(|(_, one)| one)
    }

    /// All of them, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_place.values()
    }

    /// Whether there is any.
    pub(super) fn any(&self, shadow: bool) -> bool {
        self.by_place.keys().any(|place| place.1 == shadow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct RecordedDecision(&'static str, Option<Millis>);

    impl Decidable for RecordedDecision {
        fn place(&self) -> DecisionKey {
            (1, false, self.1)
        }

        fn request(&self) -> &str {
            self.0
        }

        fn bytes(&self) -> usize {
            1
        }
    }

    #[test]
    fn what_is_decided_after_a_refusal_holds_where_it_was_refused_alone() {
        let mut all = Decisions::default();
        let held =
            |all: &Decisions<RecordedDecision>, aside| all.get(1, false, aside).map(|one| one.0);
        assert_eq!(all.add(Arc::new(RecordedDecision("first", None))), 1);
        assert_eq!(held(&all, None), Some("first"));
        // Refused at 20: void there, not elsewhere.
        assert_eq!((held(&all, Some(20)), held(&all, None)), (None, Some("first")));
        assert_eq!(all.add(Arc::new(RecordedDecision("anew", Some(20)))), 1);
        assert_eq!((held(&all, Some(20)), held(&all, None)), (Some("anew"), Some("first")));
        // Another replica decided it too, later: the first stays.
        assert_eq!(all.add(Arc::new(RecordedDecision("late", Some(20)))), 0);
        assert_eq!((held(&all, Some(20)), held(&all, Some(40))), (Some("anew"), None));
        assert_eq!(all.holding(false, Some(20)).count(), 1);
    }
}
