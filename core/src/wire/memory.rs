//! How readers request memory before they hold it.
//!
//! The sender decides how large a decoded body, window or message is, so the decoder requests memory first
//! and stops reading if that is refused. The floors above decide who grants it, and how much.

/// Memory that one reader may hold.
pub trait Memory: Send {
    /// Sets the total that is held to `bytes`, replacing the previous amount. Returns `false` if there is no
    /// room; the previous amount is then still held.
    fn hold(&mut self, bytes: usize) -> bool;
}

/// A fixed number of bytes that is shared with nobody.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit(pub usize);

impl Memory for MemoryLimit {
    fn hold(&mut self, bytes: usize) -> bool {
        bytes <= self.0
    }
}
