//! A request's body, held as long as the response may be a refusal that has to be compared with it.
//!
//! Released once the reply has begun, because from then on it is no refusal.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// A request's body, until it is not needed any more.
#[derive(Default)]
pub(crate) struct RequestBody(Mutex<Option<Bytes>>);

impl RequestBody {
    pub(crate) fn new(body: Bytes) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(body))))
    }

    pub(super) fn release(&self) {
        // From now on an error is no refusal that has to be compared with the request.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn take(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
