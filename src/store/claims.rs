//! Claims: of all processes on one store, only one at a time does a piece of work.
//!
//! A claim is a record, held by the process that writes it first. Records never change, so a claim that
//! expired or was released is followed by another record.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::{Record, RecordKind, Scope, Store, StoreError, WriteOutcome};
use crate::context::{Millis, TenantId};

/// Most claims for one piece of work: what has failed that often will always fail.
const MOST_CLAIMS: usize = 32;

fn claim_key(what: &str, attempt: usize) -> u128 {
    xxh3_128(format!("{what} #{attempt}").as_bytes())
}

fn release_key(what: &str, attempt: usize) -> u128 {
    xxh3_128(format!("{what} #{attempt} released").as_bytes())
}

fn scope() -> Scope {
    Scope { tenant: TenantId::default(), session: "~learned".into() }
}

/// The claims of all processes on one store.
pub struct Claims {
    store: Arc<dyn Store>,
}

impl Claims {
    /// The claims in `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Claims a piece of work for `holder` until a time, unless another process holds it. A claim that
    /// expired, was released, or is the holder's own may be claimed again.
    ///
    /// # Errors
    /// The store's [`StoreError`]: nothing is claimed, and it is unknown whether another process holds it.
    pub async fn claim(
        &self,
        what: &str,
        holder: u64,
        now: Millis,
        until: Millis,
    ) -> Result<bool, StoreError> {
        for attempt in 0..MOST_CLAIMS {
            let key = claim_key(what, attempt);
            let value = format!("{holder:016x} {until}").into();
            let record = Record { kind: RecordKind::Learned, key, value, at: now };
            let put = self.store.put_if_absent(scope(), vec![record]).await?;
            let Some(WriteOutcome::Existed(first)) = put.into_iter().next() else {
                return Ok(true);
            };
            let first = String::from_utf8_lossy(&first);
            let (by, until) = first.split_once(' ').unwrap_or_default();
            let is_held = until.parse::<Millis>().is_ok_and(|until| until > now);
            if is_held && !self.is_released(what, attempt).await? {
                return Ok(by == format!("{holder:016x}"));
            }
        }
        Ok(false)
    }

    /// Releases what `holder` has claimed, so that others need not wait until it expires.
    ///
    /// # Errors
    /// The store's [`StoreError`]: it then expires by itself.
    pub async fn release(&self, what: &str, holder: u64, now: Millis) -> Result<(), StoreError> {
        let kind = RecordKind::Learned;
        for attempt in 0..MOST_CLAIMS {
            let held = self.store.get(scope(), kind, claim_key(what, attempt)).await?;
            let Some(held) = held else { return Ok(()) };
            if held.starts_with(format!("{holder:016x} ").as_bytes()) {
                let (key, value) = (release_key(what, attempt), "\"released\"".into());
                let record = Record { kind, key, value, at: now };
                self.store.put_if_absent(scope(), vec![record]).await?;
            }
        }
        Ok(())
    }

    async fn is_released(&self, what: &str, attempt: usize) -> Result<bool, StoreError> {
        let key = release_key(what, attempt);
        Ok(self.store.get(scope(), RecordKind::Learned, key).await?.is_some())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

    use super::*;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn a_claim_is_held_until_its_expiry_or_release() {
        let claims = Claims::new(Arc::new(MemoryStore::default()));
        let claim =
            async |holder, now| claims.claim("sum up", holder, now, now + 10).await.unwrap();
        assert!(claim(1, 0).await);
        assert!(claim(1, 1).await, "its own");
        assert!(!claim(2, 9).await, "another holds it");
        assert!(claim(2, 10).await, "it has run out");
        claims.release("sum up", 1, 11).await.unwrap();
        assert!(!claim(3, 12).await, "only its holder gives it back");
        claims.release("sum up", 2, 13).await.unwrap();
        assert!(claim(3, 14).await);
        assert!(claims.claim("sum up otherwise", 4, 14, 24).await.unwrap(), "other work");
    }

    #[tokio::test]
    async fn work_claimed_too_often_cannot_be_claimed_again() {
        let claims = Claims::new(Arc::new(MemoryStore::default()));
        for at in 0..MOST_CLAIMS as u64 {
            assert!(claims.claim("fail", at, at, at).await.unwrap());
        }
        assert!(!claims.claim("fail", 99, 99, 99).await.unwrap());
    }
}
