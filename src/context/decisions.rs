//! What was decided about one thing: once, and anew after each refusal that made it void.
//!
//! A refused rewrite sets its thread aside ([`super::Aside`]): what was decided up to then is not
//! repeated there. What is decided afterwards stands beside it under the time of that refusal, so that
//! neither hides the other, and threads that were not refused keep what they have. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Cut, Echo, Fact, Millis};

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

impl Fact {
    /// A decision of a thread that was set `aside` then, if it ever was.
    #[must_use]
    pub fn after(mut self, aside: Option<Millis>) -> Self {
        match &mut self {
            Self::Cut(cut) => cut.after = aside,
            Self::Echo(echo) => echo.after = aside,
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
