//! Writes drafts of exchanges in flight, and finds those of processes that were killed.
//!
//! Runs in the background; no exchange waits for it, and a start only for the first look. Knows the clock, but not the content of drafts.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::now;
use crate::proxy::state::Proxy;
use crate::store::ledgers::Ledgers;

/// How often drafts are checked, while there are exchanges in flight.
const LOOK: Duration = Duration::from_millis(50);
/// How often the store is asked for exchanges of processes that were killed.
const FIND: Duration = Duration::from_secs(5);
/// How long to wait after the store failed.
const REST: Duration = Duration::from_secs(1);
/// How long a start waits for the first look.
const FIRST: Duration = Duration::from_secs(1);
/// How long the last write may take.
const LAST: Duration = Duration::from_secs(1);

/// A stream gets a draft once it has lasted this long; shorter ones only have their turn.
pub(super) const STREAM: Duration = Duration::from_millis(50);
/// A response that is not streamed arrives whole or not at all; it gets a draft only if it takes this long.
pub(super) const UNARY: Duration = Duration::from_secs(1);

pub(crate) async fn run(proxy: Arc<Proxy>) {
    tokio::join!(write(&proxy.ledgers), find(&proxy));
}

async fn write(ledgers: &Ledgers) {
    loop {
        ledgers.wait_for_drafts().await;
        tokio::time::sleep(LOOK).await;
        // A failing store is reported where turns are written.
        if ledgers.write_drafts(now()).await.is_err() {
            tokio::time::sleep(REST).await;
        }
    }
}

async fn find(proxy: &Proxy) {
    while !adopt(proxy).await || proxy.ledgers.is_shared() {
        tokio::time::sleep(FIND).await;
    }
}

/// Makes turns of the exchanges that were in flight when their process was killed.
pub(crate) async fn find_interrupted(proxy: &Arc<Proxy>) {
    // Called before the first request, which may continue one of them; it waits for a second at most.
    let proxy = proxy.clone();
    // A task of its own: if the store is slow, what it adopts is still reported and found.
    let adopting = tokio::spawn(async move { adopt(&proxy).await });
    let _ = tokio::time::timeout(FIRST, adopting).await;
}

/// Returns `false` if the store fails, for example because it is not open yet.
async fn adopt(proxy: &Proxy) -> bool {
    let Ok(count) = proxy.ledgers.adopt_drafts().await else { return false };
    report_interrupted(proxy, count);
    true
}

fn report_interrupted(proxy: &Proxy, count: usize) {
    if count == 0 {
        return;
    }
    proxy.telemetry.found_interrupted(count as u64);
    tracing::warn!(
        "{count} exchanges were in flight when Plimsoll was killed; they are stored as interrupted"
    );
}

pub(crate) async fn finish(ledgers: &Ledgers) {
    // Those of the exchanges that ended last have no other chance.
    let _ = tokio::time::timeout(LAST, ledgers.write_drafts(now())).await;
}
