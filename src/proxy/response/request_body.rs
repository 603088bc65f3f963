//! A request's body, as long as its answer may be a refusal that has to be held against it.
//!
//! Let go once the answer speaks: from then on nothing that it says is a refusal.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// A request's body, until nothing can ask for it any more.
#[derive(Default)]
pub(crate) struct RequestBody(Mutex<Option<Bytes>>);

impl RequestBody {
    /// Of a request that is on its way.
    pub(crate) fn of(body: Bytes) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(body))))
    }

    /// The answer has begun: what it says from now on is no refusal.
    pub(crate) fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The body, unless it was let go; once.
    pub(crate) fn take(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
