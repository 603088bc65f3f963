//! How the ledgers lock what they hold in memory.
//!
//! No lock is held over an `await`.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a reader panicked, not that the facts are wrong: facts are only
    // added.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
