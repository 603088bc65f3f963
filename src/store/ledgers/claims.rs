//! Claims: one process at a time does a piece of work, of all on the same store.
//!
//! A claim is a record that the first one writes. Records are never changed, so that a claim that ran out, or was
//! released, is followed by another.

use xxhash_rust::xxh3::xxh3_128;

use super::{Ledgers, learned_scope};
use crate::context::Millis;
use crate::store::{Record, RecordKind, StoreError, WriteOutcome};

/// Most claims of one piece of work: who fails that often fails always.
const MOST_CLAIMS: usize = 32;

fn claim_key(what: &str, attempt: usize) -> u128 {
    xxh3_128(format!("{what} #{attempt}").as_bytes())
}

fn release_key(what: &str, attempt: usize) -> u128 {
    xxh3_128(format!("{what} #{attempt} released").as_bytes())
}

impl Ledgers {
    /// Claims a piece of work for `holder` until a time, unless another holds it. A claim that has run
    /// out, was released, or is the holder's own, may be claimed again.
    ///
    /// # Errors
    /// The store's [`StoreError`]: nothing is claimed then, and nobody knows whether another holds it.
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
            let put = self.store.put_if_absent(learned_scope(), vec![record]).await?;
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

    /// Gives back what `holder` has claimed, so that others need not wait until it has run out.
    ///
    /// # Errors
    /// The store's [`StoreError`]: it runs out in its time then.
    pub async fn release(&self, what: &str, holder: u64, now: Millis) -> Result<(), StoreError> {
        let kind = RecordKind::Learned;
        for attempt in 0..MOST_CLAIMS {
            let held = self.store.get(learned_scope(), kind, claim_key(what, attempt)).await?;
            let Some(held) = held else { return Ok(()) };
            if held.starts_with(format!("{holder:016x} ").as_bytes()) {
                let (key, value) = (release_key(what, attempt), "\"released\"".into());
                let record = Record { kind, key, value, at: now };
                self.store.put_if_absent(learned_scope(), vec![record]).await?;
            }
        }
        Ok(())
    }

    async fn is_released(&self, what: &str, attempt: usize) -> Result<bool, StoreError> {
        let key = release_key(what, attempt);
        Ok(self.store.get(learned_scope(), RecordKind::Learned, key).await?.is_some())
    }
}
