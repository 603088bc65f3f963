//! The state of the admin listener: what its requests read, who is admitted, and how much at once.
//!
//! Knows nothing of requests.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::index::SessionIndex;
use super::rate_limit::WrongTokenLimiter;
use super::view::ServerInfo;
use crate::config::{PriceList, Secret};
use crate::store::ledgers::Ledgers;
use crate::telemetry::Telemetry;

/// The most exports at once: each holds the turns of one session, and its longest line.
pub(super) const EXPORTS: usize = 4;

/// Which tokens give access to what.
#[derive(Clone, Debug)]
pub struct AdminAccess {
    /// The token that allows everything.
    pub admin: Secret,
    /// The token that only allows reading.
    pub reader: Secret,
    /// Whether `/metrics` needs no token.
    pub metrics_open: bool,
}

/// The state of the admin listener.
pub struct Admin {
    pub(super) ledgers: Arc<Ledgers>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) about: ServerInfo,
    pub(super) prices: Arc<PriceList>,
    pub(super) access: AdminAccess,
    pub(super) wrong_tokens: WrongTokenLimiter,
    pub(super) exports: Arc<Semaphore>,
    pub(super) index: SessionIndex,
    /// Becomes true when the proxy stops accepting.
    pub(super) draining: watch::Receiver<bool>,
}

impl Admin {
    /// Serves data of `ledgers` and `telemetry` for the server that `about` describes, with costs from
    /// `prices`; `access` decides who is admitted. `process_bytes` is the memory of the whole process, if that
    /// is limited.
    pub fn new(
        process_bytes: Option<u64>,
        ledgers: Arc<Ledgers>,
        telemetry: Arc<Telemetry>,
        about: ServerInfo,
        prices: PriceList,
        access: AdminAccess,
        draining: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledgers,
            telemetry,
            about,
            prices: Arc::new(prices),
            access,
            wrong_tokens: WrongTokenLimiter::default(),
            exports: Arc::new(Semaphore::new(EXPORTS)),
            index: SessionIndex::within(process_bytes),
            draining,
        })
    }
}

/// Ready once `flag` is true, or once its sender is gone.
pub(super) async fn becomes_true(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
