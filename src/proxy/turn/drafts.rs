//! Writes down what is on its way, and finds what a process left that ended without a word.
//!
//! Beside the traffic: no exchange waits for it. Knows the clock, and nothing of what is written.

use std::sync::Arc;
use std::time::Duration;

use crate::proxy::state::Proxy;
use crate::store::drafts::LEASE;
use crate::store::ledgers::Ledgers;
use crate::telemetry::clock::now;

/// How often is looked for what is to be written, while anything is on its way.
const LOOK: Duration = Duration::from_millis(50);
/// How long a store that failed is left in peace with it.
const REST: Duration = Duration::from_secs(1);
/// How long the last write may take.
const LAST: Duration = Duration::from_secs(1);

/// A stream is written once it has lasted so long: what ends before leaves only its turn.
pub(crate) const STREAM: Duration = Duration::from_millis(50);
/// An answer in one piece comes whole or not at all; only one that takes its time is written.
pub(crate) const UNARY: Duration = Duration::from_secs(1);

/// Writes and finds until it is dropped.
pub(crate) async fn run(proxy: Arc<Proxy>) {
    tokio::join!(write(&proxy.ledgers), find(&proxy));
}

async fn write(ledgers: &Ledgers) {
    loop {
        ledgers.has_drafts().await;
        tokio::time::sleep(LOOK).await;
        // A store that fails is told where turns are written.
        if ledgers.write_drafts(now()).await.is_err() {
            tokio::time::sleep(REST).await;
        }
    }
}

async fn find(proxy: &Proxy) {
    loop {
        // A store that cannot be asked now is asked again.
        if let Ok(found @ 1..) = proxy.ledgers.adopt_drafts(LEASE).await {
            proxy.telemetry.found_interrupted(found as u64);
            tracing::warn!(
                "{found} exchanges were in flight when Plimsoll was killed; they are stored as interrupted"
            );
        }
        tokio::time::sleep(LEASE / 3).await;
    }
}

/// What ended last leaves no draft behind.
pub(crate) async fn finish(ledgers: &Ledgers) {
    let _ = tokio::time::timeout(LAST, ledgers.write_drafts(now())).await;
}
