//! A client's connection, as its exchanges know it: its number and its permit.
//!
//! Must not know the socket, nor what is sent on it.

use std::sync::{Arc, Weak};

use tokio::sync::OwnedSemaphorePermit;

/// A client's connection.
#[derive(Debug, Default)]
pub(crate) struct ClientConnection {
    /// Its number in this process, from 1.
    pub(crate) number: u64,
    /// Its permit, of which there are `limits.connections`. What is kept of a request may outlive the connection, so
    /// only the connection itself owns it.
    permit: Weak<OwnedSemaphorePermit>,
}

impl ClientConnection {
    pub(crate) fn new(number: u64, permit: &Arc<OwnedSemaphorePermit>) -> Self {
        Self { number, permit: Arc::downgrade(permit) }
    }

    pub(crate) fn permit(&self) -> Option<Arc<OwnedSemaphorePermit>> {
        // A tunnel continues after the upgrade, and still counts as a connection.
        self.permit.upgrade()
    }
}
