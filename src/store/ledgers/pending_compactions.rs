//! Compactions that operators request for a session, until a request of it carries them out.
//!
//! In memory only: after a restart, they have to be requested again. Bounded in number and time; a later one
//! for the same session replaces the earlier. One that was claimed but not carried out waits again until its
//! time is over, which is logged.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::store::Scope;

/// Most sessions with a pending compaction; past it, further ones are refused.
const MOST: usize = 1000;
/// Most bytes of a focus.
pub(crate) const FOCUS_BYTES: usize = 4000;
/// How long a pending compaction waits.
pub(crate) const PENDING_TTL: Duration = Duration::from_secs(3600);

/// A compaction that an operator requested.
#[derive(Clone, Debug)]
pub(super) struct PendingCompaction {
    /// What the summary should focus on, if given.
    pub(super) focus: Option<Box<str>>,
    until: Instant,
}

impl PendingCompaction {
    pub(super) fn new(focus: Option<Box<str>>) -> Self {
        Self { focus, until: Instant::now() + PENDING_TTL }
    }
}

/// All pending compactions.
#[derive(Default)]
pub(super) struct PendingCompactions(HashMap<Scope, PendingCompaction>);

impl PendingCompactions {
    /// Adds a pending compaction; `false` if there are too many.
    pub(super) fn add(&mut self, scope: Scope, pending: PendingCompaction) -> bool {
        let has_room = self.0.len() < MOST || self.0.contains_key(&scope);
        if has_room {
            self.0.insert(scope, pending);
        }
        has_room
    }

    pub(super) fn give_back(&mut self, scope: &Scope, pending: PendingCompaction) {
        // A later one is what the operator wants now.
        if !self.0.contains_key(scope) {
            self.add(scope.clone(), pending);
        }
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<&PendingCompaction> {
        self.0.get(scope).filter(|pending| pending.until > Instant::now())
    }

    pub(super) fn claim(&mut self, scope: &Scope) -> Option<PendingCompaction> {
        // One whose time is over stays: `expire` logs it.
        self.get(scope)?;
        self.0.remove(scope)
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
    fn pending_compactions_are_bounded() {
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
        assert!(pending_compactions.get(&scope("0")).is_none());
        assert!(pending_compactions.get(&scope("1")).is_some());
        pending_compactions.expire();
        assert!(pending_compactions.add(scope("one more"), pending("f", PENDING_TTL)));
        assert!(pending_compactions.get(&scope("1")).is_some(), "its time is not over");
        pending_compactions.forget(&scope("1"));
        assert!(pending_compactions.claim(&scope("1")).is_none());
        assert!(pending_compactions.claim(&scope("2")).is_some(), "others stay");
    }

    #[test]
    fn returned_compactions_come_second() {
        let mut pending_compactions = PendingCompactions::default();
        pending_compactions.add(scope("s"), pending("later", PENDING_TTL));
        pending_compactions.give_back(&scope("s"), pending("earlier", PENDING_TTL));
        assert_eq!(pending_compactions.get(&scope("s")).unwrap().focus.as_deref(), Some("later"));
        let later = pending_compactions.claim(&scope("s")).unwrap();
        assert!(pending_compactions.get(&scope("s")).is_none(), "it is claimed");
        pending_compactions.give_back(&scope("s"), later);
        assert!(pending_compactions.get(&scope("s")).is_some());
    }
}
