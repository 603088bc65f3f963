//! The session that a request belongs to, and the end of a turn from which it goes on there.

use std::sync::{Arc, Mutex};

use super::fingerprints::SessionFingerprints;
use super::lock::lock;
use crate::context::{SessionId, SessionWitness};
use crate::store::Scope;

/// A session that a request was found to belong to.
pub(super) struct FoundSession {
    pub(super) session: SessionId,
    /// What decided that.
    pub(super) witness: SessionWitness,
    /// The fingerprint from which it is the first to go on.
    pub(super) continues: Option<u128>,
}

impl FoundSession {
    pub(super) fn new(session: SessionId, witness: SessionWitness) -> Self {
        Self { session, witness, continues: None }
    }
}

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
