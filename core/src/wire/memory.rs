//! Where readers ask for memory before they hold it.
//!
//! What a body, a window or a message unfolds to is the sender's choice, so whoever unfolds it asks first and
//! stops reading at a no. Who grants it, and of how much, is decided above.

/// Memory that one reader may hold.
pub trait Memory: Send {
    /// Holds `bytes` in all from now on, in place of what was held before. `false` where there is no room:
    /// what was held before is then held still.
    fn hold(&mut self, bytes: usize) -> bool;
}

/// A fixed number of bytes, nobody else's concern.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit(pub usize);

impl Memory for MemoryLimit {
    fn hold(&mut self, bytes: usize) -> bool {
        bytes <= self.0
    }
}
