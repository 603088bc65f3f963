//! What is known of endpoints that count: answers by content, and upstreams that are left alone for now.
//!
//! Bounded; forgets all where it is full. A pause is its tenant's: what one was refused says nothing of others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use tokio::sync::Semaphore;

/// Questions under way at once; more are not asked.
const AT_ONCE: usize = 2;
/// Answers kept in memory, and pauses.
const MOST: usize = 1024;
/// What is known of counting endpoints.
pub(crate) struct CountingEndpoints {
    pub(super) permits: Arc<Semaphore>,
    /// By content.
    answers: Mutex<HashMap<u128, u64>>,
    /// Upstreams that are left alone for now by a tenant: what one was refused says nothing of others.
    pauses: Mutex<HashMap<Box<str>, Instant>>,
}

impl Default for CountingEndpoints {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        Self { permits, answers: Mutex::default(), pauses: Mutex::default() }
    }
}

impl CountingEndpoints {
    pub(super) fn is_paused(&self, whose: &str) -> bool {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.get(whose).is_some_and(|until| Instant::now() < *until)
    }

    pub(super) fn pause(&self, whose: Box<str>, how_long: Duration) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= MOST {
            pauses.clear();
        }
        pauses.insert(whose, Instant::now() + how_long);
    }

    pub(super) fn answered(&self, key: u128) -> Option<u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    pub(super) fn keep(&self, key: u128, tokens: u64) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, tokens);
    }
}
