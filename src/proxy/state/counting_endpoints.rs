//! What is known about counting endpoints: counts by content, and upstreams that are paused.
//!
//! Bounded: if it is full, everything is dropped. A pause applies to one tenant, because a refusal says
//! nothing about others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_128;

use crate::context::{ProviderCount, TenantId};
use crate::store::lessons::LessonSource;

/// Most count requests in flight; further ones are not sent.
const AT_ONCE: usize = 2;
/// Most counts, and most pauses, in memory.
const MOST: usize = 1024;

/// A count that was asked for; empty until it has arrived.
#[derive(Default)]
pub(crate) struct PendingCount {
    /// The client's original is counted, and not the form that was planned.
    of_original: bool,
    pub(in crate::proxy) tokens: OnceLock<u64>,
    /// There is no such endpoint. A lesson only if the request itself was answered: a path or model that does not exist
    /// has no counting endpoint either.
    pub(in crate::proxy) is_missing: AtomicBool,
    /// Another form than the planned one was sent in the end.
    is_replaced: AtomicBool,
}

impl PendingCount {
    pub(in crate::proxy) fn new(of_original: bool) -> Arc<Self> {
        Arc::new(Self { of_original, ..Self::default() })
    }

    pub(in crate::proxy) fn set_replaced(&self) {
        // Only a count of the original is still about the exchange then.
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    pub(in crate::proxy) fn arrived(&self) -> Option<ProviderCount> {
        let Self { of_original, .. } = *self;
        let tokens = *self.tokens.get()?;
        // A count of the planned form says nothing of another one.
        if self.is_replaced.load(Ordering::Relaxed) && !of_original {
            return None;
        }
        Some(ProviderCount { of_original, tokens })
    }
}

/// What is known about counting endpoints.
pub(crate) struct CountingEndpoints {
    pub(in crate::proxy) permits: Arc<Semaphore>,
    /// Counts, by hash of the content.
    answers: Mutex<HashMap<u128, u64>>,
    /// Pauses by tenant and upstream: a refusal to one tenant says nothing about others.
    pauses: Mutex<HashMap<Box<str>, Instant>>,
    /// Tenant, upstream and model for which a client was told that there is no counting endpoint. It is
    /// learned once the upstream has answered a turn there, because a path that does not exist has no
    /// counting endpoint either.
    missing: Mutex<HashSet<u128>>,
}

impl Default for CountingEndpoints {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            answers: Mutex::default(),
            pauses: Mutex::default(),
            missing: Mutex::default(),
        }
    }
}

impl CountingEndpoints {
    pub(in crate::proxy) fn is_paused(&self, key: &str) -> bool {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.get(key).is_some_and(|until| Instant::now() < *until)
    }

    pub(in crate::proxy) fn pause(&self, key: Box<str>, duration: Duration) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= MOST {
            pauses.clear();
        }
        pauses.insert(key, Instant::now() + duration);
    }

    pub(crate) fn set_missing(&self, source: &LessonSource<'_>) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.len() >= MOST {
            missing.clear();
        }
        missing.insert(key(source));
    }

    /// Whether that was recorded; removes it.
    pub(crate) fn take_missing(&self, source: &LessonSource<'_>) -> bool {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        !missing.is_empty() && missing.remove(&key(source))
    }

    pub(in crate::proxy) fn answered(&self, key: u128) -> Option<u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    pub(in crate::proxy) fn keep(&self, key: u128, tokens: u64) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, tokens);
    }
}

fn key(source: &LessonSource<'_>) -> u128 {
    let LessonSource { tenant, upstream, model, .. } = source;
    let tenant = tenant.map(TenantId::as_str).unwrap_or_default();
    xxh3_128([tenant, upstream, model].join("\0").as_bytes())
}
