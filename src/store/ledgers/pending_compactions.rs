//! What people ask of a session from outside, until a request of it takes it up.
//!
//! In memory alone: a wish that a restart loses is made again. Bounded in number and time; a later wish for the same
//! session takes the place of the earlier. One that was taken up and did not come true waits again, as
//! long as its time lasts; one whose time is over is told in the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::late_writes::SessionRoom;
use super::{Ledgers, OpenedSession, lock};
use crate::context::inject;
use crate::store::Scope;

/// Most sessions with a wish; past it the wish is refused.
const MOST: usize = 1000;
/// Most bytes of a focus.
pub const FOCUS_BYTES: usize = 4000;
/// How long a wish waits.
pub const WISH_LASTS: Duration = Duration::from_secs(3600);

/// A wish for compaction.
#[derive(Clone, Debug)]
struct PendingCompaction {
    /// What to look at above all, where that was said.
    focus: Option<Box<str>>,
    until: Instant,
}

/// All wishes.
#[derive(Default)]
pub(super) struct PendingCompactions(HashMap<Scope, PendingCompaction>);

impl PendingCompactions {
    /// Keeps a wish; `false` where there are too many.
    fn add(&mut self, scope: Scope, wish: PendingCompaction) -> bool {
        let has_room = self.0.len() < MOST || self.0.contains_key(&scope);
        if has_room {
            self.0.insert(scope, wish);
        }
        has_room
    }

    /// A wish that did not come true waits again, unless a later one does.
    fn give_back(&mut self, scope: &Scope, wish: PendingCompaction) {
        if !self.0.contains_key(scope) {
            self.add(scope.clone(), wish);
        }
    }

    fn of(&self, scope: &Scope) -> Option<&PendingCompaction> {
        self.0.get(scope).filter(|wish| wish.until > Instant::now())
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        self.0.remove(scope);
    }

    /// Takes those away whose time is over, and tells of them.
    pub(super) fn expire(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        for (scope, _) in self.0.extract_if(|_, wish| wish.until <= now) {
            tracing::warn!(
                "session {} was not compacted although somebody asked: no request of its main thread could start it \
                 within an hour; ask again",
                scope.session
            );
        }
    }
}

/// A wish that was taken up. Dropped before it came true, it waits again.
pub struct ClaimedCompaction {
    ledgers: Arc<Ledgers>,
    room: SessionRoom,
    wish: Option<PendingCompaction>,
}

impl ClaimedCompaction {
    /// What to look at above all.
    pub fn focus(&self) -> Option<&str> {
        self.wish.as_ref()?.focus.as_deref()
    }

    /// It came true, or was told that it cannot.
    pub fn is_over(&mut self) {
        self.wish = None;
    }
}

impl Drop for ClaimedCompaction {
    fn drop(&mut self) {
        let Some(wish) = self.wish.take() else { return };
        let Self { ledgers, room, .. } = self;
        room.cache.unless_forgotten(|| lock(&ledgers.wishes).give_back(&room.scope, wish));
    }
}

impl OpenedSession {
    /// Whether the request carries on the main line of its session: no sub-agent's, and no call beside it.
    pub fn is_main_line(&self) -> bool {
        self.cache.look(|ledger| inject::carries_on(ledger, &self.placed))
    }
}

impl Ledgers {
    /// Somebody wants a session compacted by the next request of its main line, with a look at `focus` above
    /// all; `false` where too many wishes wait.
    pub fn wish(&self, scope: Scope, focus: Option<Box<str>>) -> bool {
        let mut wishes = lock(&self.wishes);
        wishes.expire();
        wishes.add(scope, PendingCompaction { focus, until: Instant::now() + WISH_LASTS })
    }

    /// Whether somebody wants a session compacted.
    pub fn is_wished(&self, scope: &Scope) -> bool {
        lock(&self.wishes).of(scope).is_some()
    }

    /// Whether somebody who wants it said what to look at above all.
    pub fn has_focus(&self, scope: &Scope) -> bool {
        lock(&self.wishes).of(scope).is_some_and(|wish| wish.focus.is_some())
    }

    /// The wish is taken up by a request.
    pub fn take_wish(self: &Arc<Self>, room: SessionRoom) -> Option<ClaimedCompaction> {
        let mut wishes = lock(&self.wishes);
        wishes.of(&room.scope)?;
        let wish = wishes.0.remove(&room.scope);
        drop(wishes);
        Some(ClaimedCompaction { ledgers: self.clone(), room, wish })
    }

    /// A wish that is taken up as it is made.
    pub fn wish_now(
        self: &Arc<Self>,
        room: SessionRoom,
        focus: Option<Box<str>>,
    ) -> ClaimedCompaction {
        let wish = Some(PendingCompaction { focus, until: Instant::now() + WISH_LASTS });
        ClaimedCompaction { ledgers: self.clone(), room, wish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(session: &str) -> Scope {
        Scope { tenant: "t".into(), session: session.into() }
    }

    fn wish(focus: &str, lasts: Duration) -> PendingCompaction {
        PendingCompaction { focus: Some(focus.into()), until: Instant::now() + lasts }
    }

    #[test]
    fn wishes_are_bounded_in_number_and_time() {
        let mut wishes = PendingCompactions::default();
        for number in 0..MOST {
            assert!(wishes.add(scope(&format!("{number}")), wish("f", WISH_LASTS)));
        }
        assert!(!wishes.add(scope("one more"), wish("f", WISH_LASTS)));
        assert!(wishes.add(scope("0"), wish("f", Duration::ZERO)), "in place of an earlier one");
        assert!(wishes.of(&scope("0")).is_none() && wishes.of(&scope("1")).is_some());
        wishes.expire();
        assert!(wishes.add(scope("one more"), wish("f", WISH_LASTS)));
    }

    #[test]
    fn a_wish_that_is_given_back_does_not_take_the_place_of_a_later_one() {
        let mut wishes = PendingCompactions::default();
        wishes.add(scope("s"), wish("later", WISH_LASTS));
        wishes.give_back(&scope("s"), wish("earlier", WISH_LASTS));
        assert_eq!(wishes.of(&scope("s")).unwrap().focus.as_deref(), Some("later"));
    }
}
