//! What was decided about one thing: once, and anew after each refusal that made it void.
//!
//! A refused rewrite sets its thread aside ([`super::Aside`]): what was decided up to then is not
//! repeated there. What is decided afterwards stands beside it under the time of that refusal, so that
//! neither hides the other, and threads that were not refused keep what they have. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Compact, Cut, Echo, Fact, Millis};

/// By what they are about, and whether they are shadow mode's.
pub(super) type Decisions<T> = HashMap<(u128, bool), Vec<Arc<T>>>;

/// A fact that can be decided anew.
pub(super) trait Decided {
    /// When it was decided.
    fn at(&self) -> Millis;
    /// The refusal after which it was decided.
    fn after(&self) -> Option<Millis>;
}

impl Decided for Cut {
    fn at(&self) -> Millis {
        self.at
    }

    fn after(&self) -> Option<Millis> {
        self.after
    }
}

impl Decided for Echo {
    fn at(&self) -> Millis {
        self.at
    }

    fn after(&self) -> Option<Millis> {
        self.after
    }
}

impl Decided for Compact {
    fn at(&self) -> Millis {
        self.at
    }

    fn after(&self) -> Option<Millis> {
        self.after
    }
}

impl Fact {
    /// A decision of a thread that was set `aside` then, if it ever was.
    #[must_use]
    pub fn after(mut self, aside: Option<Millis>) -> Self {
        match &mut self {
            Self::Cut(cut) => cut.after = aside,
            Self::Echo(echo) => echo.after = aside,
            Self::Summary(compact) | Self::Compact(compact) => compact.after = aside,
            _ => {}
        }
        self
    }
}

/// Adds one, unless one of the same time is there; answers by how many bytes it grew.
pub(super) fn add<T: Decided>(
    all: &mut Decisions<T>,
    place: (u128, bool),
    one: Arc<T>,
    bytes: usize,
) -> usize {
    let known = all.entry(place).or_default();
    if known.iter().any(|other| other.after() == one.after()) {
        return 0;
    }
    known.push(one);
    bytes
}

/// The one that holds in a thread that was set `aside` then: its own, else the first that was decided
/// later.
pub(super) fn that_holds<T: Decided>(all: &[Arc<T>], aside: Option<Millis>) -> Option<&Arc<T>> {
    let holds =
        |one: &&Arc<T>| one.after() == aside || aside.is_none_or(|refused| one.at() > refused);
    all.iter().filter(holds).min_by_key(|one| (one.after() != aside, one.after()))
}

/// Of everything that was decided, what holds in a thread that was set `aside` then, in no order.
pub(super) fn all_that_hold<T: Decided>(
    all: &Decisions<T>,
    shadow: bool,
    aside: Option<Millis>,
) -> impl Iterator<Item = &Arc<T>> {
    let kind = all.iter().filter(move |((_, of), _)| *of == shadow);
    kind.filter_map(move |(_, all)| that_holds(all, aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made(Millis, Option<Millis>);

    impl Decided for Made {
        fn at(&self) -> Millis {
            self.0
        }

        fn after(&self) -> Option<Millis> {
            self.1
        }
    }

    fn held(all: &[Arc<Made>], aside: Option<Millis>) -> Option<Millis> {
        that_holds(all, aside).map(|one| one.0)
    }

    #[test]
    fn what_is_decided_after_a_refusal_holds_in_its_thread_alone() {
        let mut all = Decisions::default();
        let place = (1, false);
        assert!(add(&mut all, place, Arc::new(Made(10, None)), 1) > 0);
        assert_eq!(held(&all[&place], None), Some(10));
        // Refused at 20: void there, not elsewhere.
        assert_eq!((held(&all[&place], Some(20)), held(&all[&place], None)), (None, Some(10)));
        assert!(add(&mut all, place, Arc::new(Made(30, Some(20))), 1) > 0);
        assert_eq!((held(&all[&place], Some(20)), held(&all[&place], None)), (Some(30), Some(10)));
        // Another replica decided it too, later: the first stays.
        assert_eq!(add(&mut all, place, Arc::new(Made(31, Some(20))), 1), 0);
        assert_eq!(held(&all[&place], Some(40)), None);
    }

    #[test]
    fn what_another_thread_decides_after_a_refusal_holds_until_it_is_decided_here() {
        let mut all = vec![Arc::new(Made(30, None))];
        assert_eq!(held(&all, Some(20)), Some(30));
        all.push(Arc::new(Made(35, Some(20))));
        assert_eq!(held(&all, Some(20)), Some(35));
    }
}
