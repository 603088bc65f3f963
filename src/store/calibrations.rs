//! Calibration states: what was learned about counting a model's tokens, saved repeatedly.
//!
//! Records never change: a new state is a new record, the newest one counts, and the store drops older ones.
//! Must not know the content of a state.

use std::sync::Arc;

use bytes::Bytes;

use super::{Record, RecordKind, Scope, Store, StoreError};
use crate::context::Millis;

/// Most states that are read for one name.
const STATES: usize = 8;

/// The calibration states of all processes on one store.
pub(crate) struct Calibrations {
    store: Arc<dyn Store>,
}

impl Calibrations {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// The states that were saved under a name, with their times, as far as they still exist.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn states(&self, name: &str) -> Result<Vec<(Bytes, Millis)>, StoreError> {
        let records = self.store.scan(Scope::series(name), STATES).await?;
        Ok(records.into_iter().map(|record| (record.value, record.at)).collect())
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
        let record = Record {
            kind: RecordKind::Learned,
            key: u128::from(now),
            value: state,
            at: now,
            turn: None,
        };
        self.store.put_if_absent(Scope::series(name), vec![record]).await.map(drop)
    }
}
