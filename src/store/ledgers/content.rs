//! The content of exchanges, stored beside their turns if configured (`content.keep`).
//!
//! It is deleted with its session. It is never kept in memory: a ledger holds no text, and the admin API
//! reads it exchange by exchange.

use xxhash_rust::xxh3::xxh3_128;

use super::Ledgers;
use super::opened_session::SessionHandle;
use crate::context::content::ExchangeContent;
use crate::context::{ExchangeId, Millis};
use crate::store::{Record, RecordKind, Scope, StoreError};

impl Ledgers {
    /// Stores the content of an exchange that began at `at`, unless its session would then have more than
    /// `most` bytes of content, or was deleted meanwhile. Exchanges of a session that end at the same moment
    /// do not wait for each other, so each may exceed the limit.
    ///
    /// # Errors
    /// The store's [`StoreError`]; nothing is stored then.
    pub(crate) async fn keep_content(
        &self,
        handle: SessionHandle,
        content: &ExchangeContent,
        at: Millis,
        most: u64,
    ) -> Result<(), StoreError> {
        let value = serde_json::to_vec(content);
        let value =
            value.map_err(|_| StoreError::Failed("the text cannot be written".to_owned()))?;
        let SessionHandle { scope, cache, exchange } = handle;
        let stored_bytes = self.store.size(scope.clone(), RecordKind::Content).await?;
        if stored_bytes.saturating_add(value.len() as u64) > most {
            return Ok(());
        }
        let key = xxh3_128(exchange.as_str().as_bytes());
        let record = Record { kind: RecordKind::Content, key, value: value.into(), at, turn: None };
        let only_if = cache.precondition();
        let write = cache.add(Vec::new(), || self.store.put(scope, vec![record], only_if));
        let Some(write) = write else { return Ok(()) };
        match write.await {
            // Who deleted the session does not want its content.
            Err(StoreError::Deleted) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// The content of an exchange; `None` if it was not stored.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn content(
        &self,
        scope: &Scope,
        exchange: &ExchangeId,
    ) -> Result<Option<ExchangeContent>, StoreError> {
        let key = xxh3_128(exchange.as_str().as_bytes());
        let value = self.store.get(scope.clone(), RecordKind::Content, key).await?;
        Ok(value.and_then(|value| serde_json::from_slice(&value).ok()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::context::content::{ContentLink, TranscriptKind, TranscriptPart, TranscriptSpeaker};
    use crate::context::policy::DecisionMode;
    use crate::dialect::{Conversation, Dialect};
    use crate::store::ledgers::{OpenedSession, SessionLookup};
    use crate::store::memory::MemoryStore;
    use crate::store::recall::ReadBudget;

    fn content(text: &str) -> ExchangeContent {
        let json = serde_json::json!({"role": "user", "kind": "text", "chars": 1, "text": text});
        let part: TranscriptPart = serde_json::from_value(json).unwrap();
        assert_eq!(part.role, TranscriptSpeaker::User);
        assert_eq!(part.kind, TranscriptKind::Text);
        ExchangeContent {
            follows: ContentLink::Nothing,
            messages: vec![part],
            ..ExchangeContent::default()
        }
    }

    async fn opened(ledgers: &Ledgers, exchange: &str) -> OpenedSession {
        let timeout = Duration::from_secs(5);
        let lookup = SessionLookup {
            tenant: &"t".into(),
            session: Some(&"s".into()),
            client_thread: None,
            exchange: &exchange.into(),
            timeout,
            reads: &ReadBudget::new(timeout),
            decisions: DecisionMode::Active,
            source: Default::default(),
            body: &[],
            spender: None,
        };
        ledgers.open(lookup, &Conversation::empty(Dialect::Anthropic)).await.unwrap()
    }

    #[tokio::test]
    async fn content_is_limited_per_session() {
        let store = Arc::new(MemoryStore::default());
        let ledgers = Ledgers::new(store.clone());
        let kept = content("one");
        let length = serde_json::to_vec(&kept).unwrap().len() as u64;
        for (request, most) in [("a", length), ("b", 2 * length - 1), ("c", 2 * length)] {
            let handle = opened(&ledgers, request).await.handle();
            ledgers.keep_content(handle, &kept, 9, most).await.unwrap();
        }
        let scope = Scope { tenant: "t".into(), session: "s".into() };
        let other = Scope { tenant: "u".into(), session: "s".into() };
        assert_eq!(ledgers.content(&scope, &"a".into()).await.unwrap(), Some(kept.clone()));
        assert_eq!(ledgers.content(&scope, &"b".into()).await.unwrap(), None);
        assert_eq!(ledgers.content(&scope, &"c".into()).await.unwrap(), Some(kept));
        assert_eq!(ledgers.content(&other, &"a".into()).await.unwrap(), None);
    }

    #[tokio::test]
    async fn deleted_content_stays_away() {
        let ledgers = Ledgers::new(Arc::new(MemoryStore::default()));
        let scope = Scope { tenant: "t".into(), session: "s".into() };
        let kept = opened(&ledgers, "a").await.handle();
        ledgers.keep_content(kept, &content("one"), 9, 1_000).await.unwrap();
        let late = opened(&ledgers, "b").await;
        let handle = late.handle();
        ledgers.forget(&scope).await.unwrap();
        // A session of the same name that begins later is another session.
        drop(opened(&ledgers, "c").await);
        ledgers.keep_content(handle, &content("two"), 9, 1_000).await.unwrap();
        for exchange in ["a", "b"] {
            assert_eq!(ledgers.content(&scope, &exchange.into()).await.unwrap(), None);
        }
    }
}
