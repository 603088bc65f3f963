//! The end of a turn from which a request goes on: it is open again if the request leaves no turn itself.
//!
//! Knows the sessions' fingerprints, and no session.

use std::sync::{Arc, Mutex};

use super::fingerprints::SessionFingerprints;
use super::lock::lock;
use crate::store::Scope;

/// The end of a turn from which a request goes on. If that leaves no turn itself, another may go on from there.
pub(super) struct ContinuedEnd {
    known: Arc<Mutex<SessionFingerprints>>,
    scope: Scope,
    fingerprint: u128,
    has_left_turn: bool,
}

impl ContinuedEnd {
    pub(super) fn new(
        known: Arc<Mutex<SessionFingerprints>>,
        scope: Scope,
        fingerprint: u128,
    ) -> Self {
        Self { known, scope, fingerprint, has_left_turn: false }
    }

    pub(super) fn leave_turn(&mut self) {
        self.has_left_turn = true;
    }
}

impl Drop for ContinuedEnd {
    fn drop(&mut self) {
        if !self.has_left_turn {
            lock(&self.known).reopen(&self.scope, self.fingerprint);
        }
    }
}
