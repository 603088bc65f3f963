//! Replies that come after their exchange has ended: the turn is found by the response's id, and completed once.
//!
//! The id finds only turns of the same tenant (invariant 11). Must not know what a reply is.

use std::sync::Arc;

use super::lock::lock;
use super::records::record;
use super::{LOOK, Ledgers, RequestSource, fingerprints};
use crate::context::{Fact, TenantId, Turn};
use crate::store::recall::ReadBudget;
use crate::store::{Record, Scope, StoreError, WriteOutcome};

impl Ledgers {
    /// Completes the turn whose response has this id: `complete` makes the whole turn of what is known, if that is
    /// not whole. Returns it if nobody else completed it before.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory may have the turn all the same.
    pub(crate) async fn complete_turn(
        &self,
        tenant: &TenantId,
        response: &str,
        complete: impl FnOnce(&Turn) -> Option<Turn>,
    ) -> Result<Option<Arc<Turn>>, StoreError> {
        let open = self.drafts.of_response(tenant, response);
        let scope = match &open {
            Some((scope, _)) => scope.clone(),
            None => match self.scope_of_response(tenant, response).await? {
                Some(scope) => scope,
                None => return Ok(None),
            },
        };
        let cache = lock(&self.caches).cache(&scope);
        cache.load(&self.store, &scope, &ReadBudget::new(LOOK)).await?;
        let mut completed = None;
        let kept = cache.add_found(
            |ledger| {
                let known = ledger.answered_by(response).map(|turn| &**turn);
                let turn = complete(known.or(open.as_ref().map(|(_, turn)| turn))?)?;
                completed = Some(Arc::new(turn.clone()));
                Some(vec![Fact::Turn(Box::new(turn))])
            },
            |facts| {
                let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
                if fingerprints::is_unnamed(&scope.session) {
                    let left: Vec<Record> = facts.iter().flat_map(fingerprints::left_by).collect();
                    lock(&self.fingerprints).add(&scope, &left, 0);
                    records.extend(left);
                }
                self.store.put(scope.clone(), records, cache.precondition())
            },
        );
        let Some(kept) = kept else { return Ok(None) };
        let was_first = matches!(kept.await?.first(), Some(WriteOutcome::Written));
        Ok(completed.filter(|_| was_first))
    }

    /// The session with the turn whose response has this id.
    async fn scope_of_response(
        &self,
        tenant: &TenantId,
        response: &str,
    ) -> Result<Option<Scope>, StoreError> {
        let wanted = vec![fingerprints::of_response(response)];
        let (shown, source) = ([fingerprints::shown_response(response)], RequestSource::default());
        let known = lock(&self.fingerprints).session(tenant, &shown, source, false);
        let session = match known {
            Some((session, _)) => Some(session),
            None => {
                let asking = self.store.session_by_fingerprint(tenant.clone(), wanted);
                let timed_out = |_| StoreError::Failed(format!("no answer within {LOOK:?}"));
                tokio::time::timeout(LOOK, asking).await.map_err(timed_out)??
            }
        };
        Ok(session.map(|session| Scope { tenant: tenant.clone(), session }))
    }
}
