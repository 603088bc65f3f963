//! A reply that comes after its exchange has ended: made in the background and polled, or resumed after its stream broke.
//!
//! The provider's id of the response finds the turn, among those of the same credential and upstream. The turn gets its
//! whole reply once, whoever reads it how often, and the exchange that brought its usage reports it.

use std::sync::Arc;

use super::build;
use crate::clock::now;
use crate::context::{Outcome, TenantId};
use crate::dialect::{CountLimit, Dialect, Note, Reply};
use crate::proxy::response::tap::{LateFuture, SettleLate};
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::ReplyRecord;
use crate::store::StoreError;
use crate::telemetry::FailOpen;

/// A stored reply that is being read.
pub(crate) struct LateReply {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) tenant: TenantId,
    pub(crate) dialect: Dialect,
    pub(crate) upstream: Box<str>,
    /// Its id at the provider.
    pub(crate) response: Box<str>,
}

impl LateReply {
    pub(crate) fn settle(self) -> SettleLate {
        Box::new(move |record, reply| -> LateFuture { Box::pin(self.book(record, reply)) })
    }

    async fn book(
        self,
        mut record: ReplyRecord,
        reply: Option<Reply>,
    ) -> (ReplyRecord, Option<FailOpen>) {
        // While the provider still works on it, it has no reason to have stopped. An error in its place has no id.
        let Some(reply) = reply else { return (record, None) };
        if !reply.complete || reply.stop.is_none() || reply.id.is_none() {
            return (record, None);
        }
        let mut whole_reply = ReplyRecord::new(record.outcome, record.has_body);
        whole_reply.take(&reply);
        let outcome = match whole_reply.outcome {
            Outcome::Complete => Outcome::Complete,
            _ => Outcome::UpstreamFailed,
        };
        let Self { proxy, tenant, dialect, upstream, response } = self;
        let completing = proxy.ledgers.complete_turn(&tenant, &response, |turn| {
            let is_its = turn.upstream == upstream && turn.dialect == dialect;
            if !is_its || !turn.is_completed_by(outcome, &reply.usage) {
                return None;
            }
            let mut turn = build::completed(turn, &reply, outcome, now());
            let window = proxy.catalogue.largest_window(&turn.model, None);
            let window = window.map(|window| window.max(turn.window));
            let estimate = turn.estimate.as_ref().map(|estimate| estimate.tokens);
            let limit = CountLimit::new(window, estimate);
            turn.usage.forget_impossible(limit);
            // Not what was known of it before.
            turn.dollars = None;
            turn.dollars = turn.cost(|model| proxy.price(&turn.upstream, &turn.model, model));
            Some(turn)
        });
        match completing.await {
            Ok(Some(turn)) => {
                record.take(&reply);
                record.set_cost(&turn, |model| proxy.price(&turn.upstream, &turn.model, model));
                if record.usage != turn.usage {
                    record.usage = turn.usage.clone();
                    record.notes.push(Note::ImpossibleCount);
                }
                record.completed = Some(turn);
                (record, None)
            }
            Ok(None) | Err(StoreError::Deleted) => (record, None),
            Err(_) => (record, Some(FailOpen::Store)),
        }
    }
}
