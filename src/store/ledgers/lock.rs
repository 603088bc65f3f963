//! How the ledgers lock what they hold in memory.
//!
//! No lock is held over an `await`.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A poisoned lock means that a reader panicked, not that the facts are wrong: facts are only added.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
