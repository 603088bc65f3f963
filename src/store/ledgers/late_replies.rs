//! Replies that come after their exchange has ended: the turn is found by the response's id, and completed once.
//!
//! The id finds only turns of the same tenant (invariant 11). Must not know what a reply is.

use std::sync::Arc;

use super::lock::lock;
use super::records::record;
use super::{LOOK, Ledgers, RequestSource, fingerprint_keys, fingerprints, no_answer};
use crate::context::caps::Spending;
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
        let mut earlier = Spending::default();
        // In one step: of two requests that read the reply, only one completes the turn.
        let write = cache.add_found(
            |ledger| {
                let stored = ledger.answered_by(response).map(|turn| &**turn);
                earlier = stored.map(self.caps.pricing()).unwrap_or_default();
                let turn = complete(stored.or(open.as_ref().map(|(_, turn)| turn))?)?;
                let turn = completed.insert(Arc::new(turn));
                Some(vec![Fact::Turn(turn.clone())])
            },
            |facts| {
                let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
                if fingerprints::is_unnamed(&scope.session) {
                    let prints: Vec<Record> =
                        facts.iter().flat_map(fingerprint_keys::left_by).collect();
                    lock(&self.fingerprints).add(&scope, &prints, 0);
                    records.extend(prints);
                }
                self.store.put(scope.clone(), records, cache.precondition())
            },
        );
        let Some(write) = write else { return Ok(None) };
        match write.await?.first() {
            Some(WriteOutcome::Written) => {
                if let Some(turn) = &completed {
                    let spending = self.caps.add_late_turn(&scope, turn, earlier);
                    self.add_to_common_sums(spending, turn.at).await;
                }
                Ok(completed)
            }
            _ => Ok(None),
        }
    }

    /// The session with the turn whose response has this id.
    async fn scope_of_response(
        &self,
        tenant: &TenantId,
        response: &str,
    ) -> Result<Option<Scope>, StoreError> {
        let wanted = vec![fingerprint_keys::of_response(response)];
        let shown = [fingerprint_keys::shown_response(response)];
        let source = RequestSource::default();
        let cached = lock(&self.fingerprints).session(tenant, &shown, source, false);
        let session = match cached {
            Some(found) => Some(found.session),
            None => {
                let asking = self.store.session_by_fingerprint(tenant.clone(), wanted);
                tokio::time::timeout(LOOK, asking).await.map_err(|_| no_answer(LOOK))??
            }
        };
        Ok(session.map(|session| Scope { tenant: tenant.clone(), session }))
    }
}
