//! What people ask of a session from outside, until a request of it takes it up.
//!
//! In memory alone: a wish that a restart loses is made again. Bounded, and a later wish for the same
//! session takes the place of the earlier.

use foldhash::HashMap;

use crate::store::Scope;

/// Most sessions with a wish; past it the wish is refused.
const MOST: usize = 1000;
/// Most bytes of a focus.
pub const FOCUS_BYTES: usize = 4000;

/// All wishes for compaction: what to look at above all, where that was said.
#[derive(Default)]
pub(super) struct Wishes(HashMap<Scope, Option<Box<str>>>);

impl Wishes {
    /// Keeps a wish; `false` where there are too many.
    pub(super) fn add(&mut self, scope: Scope, focus: Option<Box<str>>) -> bool {
        let has_room = self.0.len() < MOST || self.0.contains_key(&scope);
        if has_room {
            self.0.insert(scope, focus);
        }
        has_room
    }

    pub(super) fn is_there(&self, scope: &Scope) -> bool {
        self.0.contains_key(scope)
    }

    pub(super) fn has_focus(&self, scope: &Scope) -> bool {
        self.0.get(scope).is_some_and(Option::is_some)
    }

    pub(super) fn take(&mut self, scope: &Scope) -> Option<Option<Box<str>>> {
        self.0.remove(scope)
    }
}
