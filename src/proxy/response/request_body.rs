//! A request's body, held as long as the response may be a refusal that has to be compared with it.
//!
//! Released once the reply has begun, because from then on it is no refusal.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// A request's body, until it is not needed any more.
#[derive(Default)]
pub(crate) struct RequestBody(Mutex<Option<Bytes>>);

impl RequestBody {
    /// The body of a request in flight.
    pub(crate) fn new(body: Bytes) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(body))))
    }

    /// Called when the reply has begun: it is no refusal.
    pub(super) fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Takes the body, unless it was released.
    pub(crate) fn take(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
