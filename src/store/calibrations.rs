//! States of calibration: what counting has learned of a model, saved again and again.
//!
//! Records are never changed: a new state is a new record, the newest counts, and a store lets the others go.
//! Must not know what a state says.

use std::sync::Arc;

use bytes::Bytes;

use super::{Record, RecordKind, Scope, Store, StoreError};
use crate::context::Millis;

/// Most states that are read of one name.
const STATES: usize = 8;

/// The states that all processes on one store have saved.
pub(crate) struct Calibrations {
    store: Arc<dyn Store>,
}

impl Calibrations {
    /// The states that `store` keeps.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// The states that were saved under a name, and when, as far as they are still there.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn states(&self, name: &str) -> Result<Vec<(Bytes, Millis)>, StoreError> {
        let kept = self.store.scan(Scope::series(name), STATES).await?;
        Ok(kept.into_iter().map(|record| (record.value, record.at)).collect())
    }

    /// Saves a state under a name.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn save(
        &self,
        name: &str,
        state: Bytes,
        now: Millis,
    ) -> Result<(), StoreError> {
        let record =
            Record { kind: RecordKind::Learned, key: u128::from(now), value: state, at: now };
        self.store.put_if_absent(Scope::series(name), vec![record]).await.map(drop)
    }
}
