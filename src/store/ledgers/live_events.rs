//! Live events of all processes that share the store: this one's are told, the others' are read by who listens here.
//!
//! Nothing is decided by them, so what cannot be told or read is lost.

use bytes::Bytes;

use super::Ledgers;
use crate::store::StoreError;
use crate::store::live_events::{ToldEvent, ToldEvents};

impl Ledgers {
    /// Tells other processes what happens here.
    ///
    /// # Errors
    /// The store's [`StoreError`]: they do not hear of it.
    pub(crate) async fn tell_events(&self, texts: Vec<Bytes>) -> Result<(), StoreError> {
        let instance = self.drafts.instance();
        let events = texts.into_iter().map(|text| ToldEvent { instance, text });
        self.admin_store.tell_events(events.collect()).await
    }

    /// What other processes told since a place; without one, where to begin.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn events_of_others(
        &self,
        place: Option<u64>,
    ) -> Result<ToldEvents, StoreError> {
        let mut told = self.admin_store.events_since(place).await?;
        told.events.retain(|event| event.instance != self.drafts.instance());
        Ok(told)
    }
}
