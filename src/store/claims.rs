//! Claims: of all processes on one store, only one at a time does a piece of work.
//!
//! A claim is a record, held by the process that writes it first. Records never change, so a claim that
//! expired or was released is followed by another record. In a store that only one process uses, everything is
//! free, and nothing is written.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::{Record, RecordKind, Scope, Store, StoreError, WriteOutcome};
use crate::context::{Millis, TenantId};

/// The session of all claims.
const SESSION: &str = "~claims";

fn claim_key(what: &str, number: u64) -> u128 {
    xxh3_128(format!("{what} #{number}").as_bytes())
}

fn release_key(what: &str, number: u64) -> u128 {
    xxh3_128(format!("{what} #{number} released").as_bytes())
}

fn scope() -> Scope {
    Scope { tenant: TenantId::default(), session: SESSION.into() }
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
        if !self.store.is_shared() {
            // Nobody else could hold it. What is claimed has to be stored, so a store that cannot is found out now.
            return self.store.ready().await.map(|()| true);
        }
        let by = format!("{holder:016x}");
        let mut number = self.count(what).await?;
        loop {
            if let Some(last) = number.checked_sub(1)
                && let Some(held_by) = self.holder(what, last, now).await?
            {
                return Ok(held_by == by);
            }
            let value = format!("{by} {until}").into();
            let key = claim_key(what, number);
            let record = Record { kind: RecordKind::Learned, key, value, at: now };
            let put = self.store.put_if_absent(scope(), vec![record]).await?;
            if !matches!(put.first(), Some(WriteOutcome::Existed(_))) {
                return Ok(true);
            }
            // Another process was faster.
            number += 1;
        }
    }

    /// Releases what `holder` has claimed, so that others need not wait until it expires.
    ///
    /// # Errors
    /// The store's [`StoreError`]: it then expires by itself.
    pub async fn release(&self, what: &str, holder: u64, now: Millis) -> Result<(), StoreError> {
        if !self.store.is_shared() {
            return Ok(());
        }
        let Some(last) = self.count(what).await?.checked_sub(1) else { return Ok(()) };
        if self.holder(what, last, now).await? == Some(format!("{holder:016x}")) {
            let key = release_key(what, last);
            let value = "\"released\"".into();
            let record = Record { kind: RecordKind::Learned, key, value, at: now };
            self.store.put_if_absent(scope(), vec![record]).await?;
        }
        Ok(())
    }

    async fn count(&self, what: &str) -> Result<u64, StoreError> {
        // They are numbered without gaps, so few have to be looked at.
        let mut beyond = 1;
        while self.exists(claim_key(what, beyond - 1)).await? {
            beyond *= 2;
        }
        // The last one that exists is between the last two numbers that were tried.
        let mut low = beyond / 2;
        let mut high = beyond - 1;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.exists(claim_key(what, middle)).await? {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Who holds a claim, unless it has expired or was released.
    async fn holder(
        &self,
        what: &str,
        number: u64,
        now: Millis,
    ) -> Result<Option<String>, StoreError> {
        let key = claim_key(what, number);
        let claim = self.store.get(scope(), RecordKind::Learned, key).await?.unwrap_or_default();
        let claim = String::from_utf8_lossy(&claim).into_owned();
        let (by, until) = claim.split_once(' ').unwrap_or_default();
        let is_held = until.parse::<Millis>().is_ok_and(|until| until > now);
        if !is_held || self.exists(release_key(what, number)).await? {
            return Ok(None);
        }
        Ok(Some(by.to_owned()))
    }

    async fn exists(&self, key: u128) -> Result<bool, StoreError> {
        Ok(self.store.get(scope(), RecordKind::Learned, key).await?.is_some())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::store::sqlite::SqliteStore;

    #[tokio::test]
    async fn claims_are_held_until_expiry() {
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

    /// Nobody else could do the work.
    #[tokio::test]
    async fn store_of_one_process_has_no_claims() {
        let folder = crate::store::conformance::folder();
        let store = Arc::new(SqliteStore::open(&folder.path().join("p.db")).unwrap());
        let claims = Claims::new(store.clone());
        for holder in 1..=2 {
            assert!(claims.claim("sum up", holder, 0, 10).await.unwrap());
        }
        claims.release("sum up", 2, 1).await.unwrap();
        assert_eq!(store.scan(scope(), 9).await.unwrap(), []);
    }

    #[tokio::test]
    async fn work_can_be_claimed_repeatedly() {
        let claims = Claims::new(Arc::new(MemoryStore::default()));
        for at in 0..70 {
            assert!(claims.claim("sum up", at, at, at + 10).await.unwrap(), "{at}");
            assert!(!claims.claim("sum up", at + 1, at, at + 10).await.unwrap(), "it is held");
            assert_eq!(claims.count("sum up").await.unwrap(), at + 1);
            claims.release("sum up", at, at).await.unwrap();
        }
    }
}
