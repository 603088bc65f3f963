//! Compactions that operators request for a session, until a request of it carries them out.
//!
//! In memory only: after a restart, they have to be requested again. Bounded in number and time; a later one
//! for the same session replaces the earlier. One that was claimed but not carried out waits again until its
//! time is over, which is logged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::late_writes::SessionRoom;
use super::{Ledgers, OpenedSession, lock};
use crate::context::inject;
use crate::store::Scope;

/// Most sessions with a pending compaction; past it, further ones are refused.
const MOST: usize = 1000;
/// Most bytes of a focus.
pub(crate) const FOCUS_BYTES: usize = 4000;
/// How long a pending compaction waits.
pub(crate) const PENDING_TTL: Duration = Duration::from_secs(3600);

/// A compaction that an operator requested.
#[derive(Clone, Debug)]
struct PendingCompaction {
    /// What the summary should focus on, if given.
    focus: Option<Box<str>>,
    until: Instant,
}

/// All pending compactions.
#[derive(Default)]
pub(super) struct PendingCompactions(HashMap<Scope, PendingCompaction>);

impl PendingCompactions {
    /// Adds a pending compaction; `false` if there are too many.
    fn add(&mut self, scope: Scope, pending: PendingCompaction) -> bool {
        let has_room = self.0.len() < MOST || self.0.contains_key(&scope);
        if has_room {
            self.0.insert(scope, pending);
        }
        has_room
    }

    /// Returns a pending compaction that was not carried out, unless there is a later one.
    fn give_back(&mut self, scope: &Scope, pending: PendingCompaction) {
        if !self.0.contains_key(scope) {
            self.add(scope.clone(), pending);
        }
    }

    fn of(&self, scope: &Scope) -> Option<&PendingCompaction> {
        self.0.get(scope).filter(|pending| pending.until > Instant::now())
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        self.0.remove(scope);
    }

    /// Removes those whose time is over, and logs them.
    pub(super) fn expire(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        for (scope, _) in self.0.extract_if(|_, pending| pending.until <= now) {
            tracing::warn!(
                "session {} was not compacted as requested: no request of its main thread could start it \
                 within an hour; ask again",
                scope.session
            );
        }
    }
}

/// A claimed pending compaction. If it is dropped before it was carried out, it waits again.
pub(crate) struct ClaimedCompaction {
    ledgers: Arc<Ledgers>,
    room: SessionRoom,
    pending: Option<PendingCompaction>,
}

impl ClaimedCompaction {
    /// What the summary should focus on.
    pub(crate) fn focus(&self) -> Option<&str> {
        self.pending.as_ref()?.focus.as_deref()
    }

    /// Called when it was carried out, or cannot be.
    pub(crate) fn is_over(&mut self) {
        self.pending = None;
    }
}

impl Drop for ClaimedCompaction {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let Self { ledgers, room, .. } = self;
        room.cache.unless_forgotten(|| {
            lock(&ledgers.pending_compactions).give_back(&room.scope, pending);
        });
    }
}

impl OpenedSession {
    /// Whether the request is on the main line of its session: not a sub-agent's, and not a call beside it.
    pub(crate) fn is_main_line(&self) -> bool {
        self.cache.look(|ledger| inject::carries_on(ledger, &self.placed))
    }
}

impl Ledgers {
    /// Requests that the next request of a session's main line compacts it, with a focus; `false` if too many
    /// are pending.
    pub fn request_compaction(&self, scope: Scope, focus: Option<Box<str>>) -> bool {
        let mut pending_compactions = lock(&self.pending_compactions);
        pending_compactions.expire();
        pending_compactions
            .add(scope, PendingCompaction { focus, until: Instant::now() + PENDING_TTL })
    }

    /// Whether a compaction of a session is pending.
    pub fn has_pending_compaction(&self, scope: &Scope) -> bool {
        lock(&self.pending_compactions).of(scope).is_some()
    }

    /// Whether the pending compaction has a focus.
    pub(crate) fn has_focus(&self, scope: &Scope) -> bool {
        lock(&self.pending_compactions).of(scope).is_some_and(|pending| pending.focus.is_some())
    }

    /// Claims a pending compaction for a request.
    pub(crate) fn claim_compaction(
        self: &Arc<Self>,
        room: SessionRoom,
    ) -> Option<ClaimedCompaction> {
        let mut pending_compactions = lock(&self.pending_compactions);
        pending_compactions.of(&room.scope)?;
        let pending = pending_compactions.0.remove(&room.scope);
        drop(pending_compactions);
        Some(ClaimedCompaction { ledgers: self.clone(), room, pending })
    }

    /// A compaction that is claimed as soon as it is requested.
    pub(crate) fn claim_new_compaction(
        self: &Arc<Self>,
        room: SessionRoom,
        focus: Option<Box<str>>,
    ) -> ClaimedCompaction {
        let pending = Some(PendingCompaction { focus, until: Instant::now() + PENDING_TTL });
        ClaimedCompaction { ledgers: self.clone(), room, pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(session: &str) -> Scope {
        Scope { tenant: "t".into(), session: session.into() }
    }

    fn pending(focus: &str, lasts: Duration) -> PendingCompaction {
        PendingCompaction { focus: Some(focus.into()), until: Instant::now() + lasts }
    }

    #[test]
    fn pending_compactions_are_bounded_in_number_and_time() {
        let mut pending_compactions = PendingCompactions::default();
        for number in 0..MOST {
            assert!(
                pending_compactions.add(scope(&format!("{number}")), pending("f", PENDING_TTL))
            );
        }
        assert!(!pending_compactions.add(scope("one more"), pending("f", PENDING_TTL)));
        assert!(
            pending_compactions.add(scope("0"), pending("f", Duration::ZERO)),
            "in place of an earlier one"
        );
        assert!(
            pending_compactions.of(&scope("0")).is_none()
                && pending_compactions.of(&scope("1")).is_some()
        );
        pending_compactions.expire();
        assert!(pending_compactions.add(scope("one more"), pending("f", PENDING_TTL)));
    }

    #[test]
    fn a_wish_that_is_given_back_does_not_take_the_place_of_a_later_one() {
        let mut pending_compactions = PendingCompactions::default();
        pending_compactions.add(scope("s"), pending("later", PENDING_TTL));
        pending_compactions.give_back(&scope("s"), pending("earlier", PENDING_TTL));
        assert_eq!(pending_compactions.of(&scope("s")).unwrap().focus.as_deref(), Some("later"));
    }
}
