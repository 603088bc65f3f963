//! How many interim responses (1xx) an upstream may send before it answers.
//!
//! They are not forwarded, so nobody downstream would end an upstream that sends nothing else. Over HTTP/2 only the
//! type of a frame is known, and requests share a connection, so the count is that of the connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What a connection may bring after the newest request on it. Some upstreams send one every second while a model
/// thinks.
const MOST: i64 = 1000;

/// How many more interim responses a connection may bring.
#[derive(Clone, Debug)]
pub(super) struct InterimAllowance(Arc<AtomicI64>);

impl Default for InterimAllowance {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(MOST)))
    }
}

impl InterimAllowance {
    /// Called for a request that is sent. `finals`: how many of its responses are counted although they are final.
    pub(super) fn add_request(&self, finals: i64) {
        // A request restores what the ones before it used up.
        self.0.fetch_max(MOST, Ordering::Relaxed);
        self.0.fetch_add(finals, Ordering::Relaxed);
    }

    /// Called for a response that may be an interim one.
    pub(super) fn use_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> io::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0.. => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it sent too many 1xx responses")),
        }
    }
}
