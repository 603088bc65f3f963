//! Compactions that operators request for a session, until a request of it carries them out.
//!
//! In memory, and in a note of the session on a store that processes share: without such a store they have to be requested
//! again after a restart. Bounded in number and time; a later one for the same session replaces the earlier. One that was
//! claimed but not carried out waits again until its time is over, which is logged.

use std::time::Duration;

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::context::Millis;
use crate::store::Scope;

/// Most sessions with a pending compaction; past it, further ones are refused.
const MOST: usize = 1000;
/// Most bytes of a focus.
pub(crate) const FOCUS_BYTES: usize = 4000;
/// How long a pending compaction waits.
pub(crate) const PENDING_TTL: Duration = Duration::from_secs(3600);

/// A compaction that an operator requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingCompaction {
    /// What the summary should focus on, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) focus: Option<Box<str>>,
    until: Millis,
}

impl PendingCompaction {
    pub(super) fn new(focus: Option<Box<str>>) -> Self {
        Self { focus, until: now() + PENDING_TTL.as_millis() as Millis }
    }
}

/// All pending compactions.
#[derive(Default)]
pub(super) struct PendingCompactions(HashMap<Scope, PendingEntry>);

struct PendingEntry {
    pending: PendingCompaction,
    /// A request of this process carries it out.
    is_claimed: bool,
}

impl PendingCompactions {
    /// Adds a pending compaction; `false` if there are too many.
    pub(super) fn add(&mut self, scope: Scope, pending: PendingCompaction) -> bool {
        let has_room = self.has_room(&scope);
        if has_room {
            self.0.insert(scope, PendingEntry { pending, is_claimed: false });
        }
        has_room
    }

    pub(super) fn has_room(&self, scope: &Scope) -> bool {
        self.0.len() < MOST || self.0.contains_key(scope)
    }

    /// Returns whether it was not known, and is added.
    pub(super) fn give_back(&mut self, scope: &Scope, pending: PendingCompaction) -> bool {
        match self.0.get_mut(scope) {
            Some(entry) if entry.pending == pending => {
                entry.is_claimed = false;
                false
            }
            // A later one is what the operator wants now.
            Some(entry) if !entry.is_claimed => false,
            _ => self.add(scope.clone(), pending),
        }
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<&PendingCompaction> {
        let entry = self.0.get(scope).filter(|entry| !entry.is_claimed)?;
        Some(&entry.pending).filter(|pending| pending.until > now())
    }

    pub(super) fn claim(&mut self, scope: &Scope) -> Option<PendingCompaction> {
        // One whose time is over stays: `expire` returns it.
        let pending = self.get(scope)?.clone();
        let entry = self.0.get_mut(scope)?;
        entry.is_claimed = true;
        Some(pending)
    }

    /// Removes one that was carried out, or cannot be.
    pub(super) fn close(&mut self, scope: &Scope, pending: &PendingCompaction) {
        if self.0.get(scope).is_some_and(|entry| entry.pending == *pending) {
            self.0.remove(scope);
        }
    }

    /// Learns which one all processes know of a session.
    pub(super) fn learn(&mut self, scope: &Scope, noted: Option<PendingCompaction>) {
        match (self.0.get(scope), noted) {
            (Some(entry), Some(noted)) if entry.pending == noted => {}
            (_, Some(noted)) if noted.until > now() => _ = self.add(scope.clone(), noted),
            // Another process carried it out.
            (Some(entry), None) if !entry.is_claimed => _ = self.0.remove(scope),
            _ => {}
        }
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        self.0.remove(scope);
    }

    /// Removes and returns those whose time is over.
    pub(super) fn expire(&mut self) -> Vec<(Scope, PendingCompaction)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let now = now();
        let is_over = |entry: &PendingEntry| entry.pending.until <= now && !entry.is_claimed;
        let expired = self.0.extract_if(|_, entry| is_over(entry));
        expired.map(|(scope, entry)| (scope, entry.pending)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(session: &str) -> Scope {
        Scope { tenant: "t".into(), session: session.into() }
    }

    fn pending(focus: &str, lasts: Duration) -> PendingCompaction {
        let until = now() + lasts.as_millis() as Millis;
        PendingCompaction { focus: Some(focus.into()), until }
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
        assert_eq!(pending_compactions.expire().len(), 1);
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
        assert!(!pending_compactions.give_back(&scope("s"), pending("earlier", PENDING_TTL)));
        assert_eq!(pending_compactions.get(&scope("s")).unwrap().focus.as_deref(), Some("later"));
        let later = pending_compactions.claim(&scope("s")).unwrap();
        assert!(pending_compactions.get(&scope("s")).is_none(), "it is claimed");
        pending_compactions.give_back(&scope("s"), later.clone());
        assert!(pending_compactions.get(&scope("s")).is_some());
        pending_compactions.close(&scope("s"), &pending("earlier", PENDING_TTL));
        assert!(pending_compactions.get(&scope("s")).is_some());
        pending_compactions.close(&scope("s"), &later);
        assert!(pending_compactions.get(&scope("s")).is_none());
    }

    #[test]
    fn noted_compactions_are_learned() {
        let mut pending_compactions = PendingCompactions::default();
        let (one, other) = (pending("one", PENDING_TTL), pending("other", PENDING_TTL));
        let here = scope("s");
        pending_compactions.learn(&here, Some(one.clone()));
        assert_eq!(pending_compactions.claim(&here), Some(one.clone()));
        pending_compactions.learn(&here, Some(one.clone()));
        assert_eq!(pending_compactions.get(&here), None, "it is still claimed");
        pending_compactions.learn(&here, None);
        pending_compactions.give_back(&here, one);
        assert!(pending_compactions.get(&here).is_some(), "who claimed it gives it back");
        pending_compactions.learn(&here, Some(other.clone()));
        assert_eq!(pending_compactions.get(&here), Some(&other), "a later one");
        pending_compactions.learn(&here, None);
        assert_eq!(pending_compactions.get(&here), None, "another process carried it out");
        pending_compactions.learn(&here, Some(pending("old", Duration::ZERO)));
        assert!(pending_compactions.expire().is_empty(), "its time was over");
    }
}
