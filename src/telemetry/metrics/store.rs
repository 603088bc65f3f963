//! Metrics of the store.
//!
//! Sets and counts what others measured; queries nothing itself.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};
use strum::AsRefStr;

use super::family::{MetricFamily, families, labels};
use crate::telemetry::{StoreOperation, StoreState};

/// From 5 ms to 1 s: the time of an operation.
const OPERATION: &[f64] = &[5e-3, 0.1, 1.0];
/// From 0.1 to 10 s: the time that a request waits for its session.
const FIRST_LOAD: &[f64] = &[0.1, 1.0, 10.0];

/// Who waits for the store.
#[derive(Clone, Copy, AsRefStr)]
#[strum(serialize_all = "snake_case")]
enum StoreQueue {
    Write,
    Traffic,
    Look,
}

/// What an operation of the store does; a metric label.
#[derive(Clone, Copy, AsRefStr)]
#[strum(serialize_all = "snake_case")]
enum StoreAccessKind {
    /// It reads one session.
    Read,
    /// It lists sessions.
    List,
    Write,
}

impl From<StoreOperation> for StoreAccessKind {
    fn from(operation: StoreOperation) -> Self {
        use StoreOperation::{Draft, Drop, Expire, Find, Get, Put, Ready, Scan, Scopes};
        match operation {
            Get | Find | Scan | Ready => Self::Read,
            Scopes => Self::List,
            Put | Draft | Drop | Expire => Self::Write,
        }
    }
}

labels! {
    AccessLabels { access: StoreAccessKind }
    pub(super) OperationLabels { operation: StoreOperation }
    QueueLabels { queue: StoreQueue }
}

families! {
    /// All metrics of the store.
    pub(in crate::telemetry) struct StoreMetrics {
        session_load: Histogram = "plimsoll_session_load_seconds" in FIRST_LOAD,
            "How long requests waited for their session to be loaded.";
        times: MetricFamily<AccessLabels, Histogram> = "plimsoll_store_operation_seconds" in OPERATION,
            "How long operations of the store took.";
        operations: MetricFamily<OperationLabels, IntCounter> = "plimsoll_store_operations_total",
            "Operations of the store, failed ones included.";
        pub(super) failures: MetricFamily<OperationLabels, IntCounter> = "plimsoll_store_failures_total",
            "Times the store failed.";
        unusable: IntGauge = "plimsoll_store_unusable",
            "1 while nothing can be stored; traffic continues.";
        bytes: IntGauge = "plimsoll_store_bytes",
            "Size of the store on disk, with its WAL.";
        restarts: IntGauge = "plimsoll_store_restarts",
            "Restarts of the store's writing thread after a panic.";
        waiting: MetricFamily<QueueLabels, IntGauge> = "plimsoll_store_waiting",
            "Operations that wait for the store: `write`, reads for `traffic` and for the admin API (`look`).";
        pub(in crate::telemetry) forgotten: IntCounter = "plimsoll_store_forgotten_sessions_total",
            "Sessions that retention deleted.";
        pub(in crate::telemetry) retention_failures: IntCounter = "plimsoll_retention_failures_total",
            "Failures to delete old sessions.";
        pub(in crate::telemetry) interrupted: IntCounter = "plimsoll_interrupted_exchanges_total",
            "Exchanges that were in flight when a process was killed.";
    }
}

impl StoreMetrics {
    pub(in crate::telemetry) fn set_state(&self, state: Option<&StoreState>) {
        self.unusable.set(i64::from(state.is_none_or(|state| state.is_failing)));
        let Some(state) = state else { return };
        self.bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
        self.restarts.set(state.restarts as i64);
        for (queue, waiting) in [
            (StoreQueue::Write, state.writes),
            (StoreQueue::Traffic, state.traffic),
            (StoreQueue::Look, state.admin),
        ] {
            self.waiting.get(QueueLabels { queue }).set(waiting as i64);
        }
    }

    pub(in crate::telemetry) fn session_loaded(&self, waited: Duration) {
        self.session_load.observe(waited.as_secs_f64());
    }

    pub(in crate::telemetry) fn took(
        &self,
        operation: StoreOperation,
        took: Duration,
        succeeded: bool,
    ) {
        self.times.get(AccessLabels { access: operation.into() }).observe(took.as_secs_f64());
        self.operations.get(OperationLabels { operation }).inc();
        if !succeeded {
            self.failures.get(OperationLabels { operation }).inc();
        }
    }
}
