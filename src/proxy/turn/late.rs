//! A reply that comes after its exchange has ended: made in the background and polled, or resumed after its stream broke.
//!
//! The provider's id of the response finds the turn, among those of the same credential and upstream. The turn gets its
//! whole reply once, whoever reads it how often, and the exchange that brought its usage reports it.

use std::sync::Arc;

use super::build;
use crate::clock::now;
use crate::config::Upstream;
use crate::context::{Outcome, TenantId, Turn};
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::{CountLimit, Dialect, Note, Reply};
use crate::proxy::response::tap::{CommitFuture, SettleLate};
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::TurnOutcome;
use crate::store::StoreError;
use crate::telemetry::{Exchange, FailOpen};

/// Completes the turn of a stored reply that is being read. `response`: its id at the provider.
pub(crate) fn settle(
    proxy: Arc<Proxy>,
    tenant: TenantId,
    dialect: Dialect,
    upstream: Arc<Upstream>,
    response: Box<str>,
) -> SettleLate {
    Box::new(move |mut event, reply| -> CommitFuture {
        Box::pin(async move {
            let mut why = None;
            if let Some(mut reply) = reply {
                forget_zeros(&mut reply);
                let completing = complete(&proxy, &tenant, &response, &mut event, &reply, |turn| {
                    turn.upstream == upstream.name && turn.dialect == dialect
                });
                why = completing.await;
            }
            TurnOutcome { why, event: Some(event) }
        })
    })
}

fn forget_zeros(reply: &mut Reply) {
    // No prompt is empty: a gateway has not counted yet.
    let usage = &mut reply.usage;
    if usage.input == Some(0) {
        usage.input = None;
        usage.output = usage.output.filter(|output| *output > 0);
    }
}

/// `is_its`: whether the reply is that of this turn.
async fn complete(
    proxy: &Proxy,
    tenant: &TenantId,
    response: &str,
    event: &mut Exchange,
    reply: &Reply,
    is_its: impl Fn(&Turn) -> bool,
) -> Option<FailOpen> {
    // While the provider still works on it, it has no reason to have stopped. An error in its place has no id.
    if !reply.complete || reply.stop.is_none() || reply.id.is_none() {
        return None;
    }
    let outcome = match ErrorKind::in_reply(reply) {
        None if event.outcome == Outcome::Complete => Outcome::Complete,
        _ => Outcome::UpstreamFailed,
    };
    let completing = proxy.ledgers.complete_turn(tenant, response, |turn| {
        if !is_its(turn) || !turn.is_completed_by(outcome, &reply.usage) {
            return None;
        }
        let mut turn = build::completed(turn, reply, outcome, now());
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
            event.add_reply(reply, &proxy.telemetry);
            event.add_cost(&turn, |model| proxy.price(&turn.upstream, &turn.model, model));
            if event.usage != turn.usage {
                event.usage = turn.usage.clone();
                event.add_notes([Note::ImpossibleCount]);
            }
            event.model = Some(turn.model.clone());
            event.family = Some(turn.family);
            event.thread = Some(turn.position.thread.clone());
            None
        }
        Ok(None) | Err(StoreError::Deleted) => None,
        Err(_) => Some(FailOpen::Store),
    }
}
