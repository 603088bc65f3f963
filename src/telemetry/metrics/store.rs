//! Metrics of the store, and of the threads besides the workers.
//!
//! Sets and counts what others measured; queries nothing itself.

use std::time::Duration;

use super::Metrics;
use crate::telemetry::log::variant_name;
use crate::telemetry::{StoreOperation, StoreState};

impl Metrics {
    pub(in crate::telemetry) fn set_store_state(&self, state: Option<&StoreState>) {
        let families = &self.families;
        families.store_unusable.set(i64::from(state.is_none()));
        let Some(state) = state else { return };
        families.store_bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
        families.store_threads.set(state.threads as i64);
        families.store_restarts.set(state.restarts as i64);
        for (queue, waiting) in
            [("write", state.writes), ("traffic", state.traffic), ("look", state.admin)]
        {
            families.store_waiting.with_label_values(&[queue]).set(waiting as i64);
        }
    }

    pub(in crate::telemetry) fn blocking_threads(&self, threads: usize) {
        self.families.blocking_threads.set(threads as i64);
    }

    pub(in crate::telemetry) fn set_store_failing(&self, fails: bool) {
        self.families.store_failing.set(i64::from(fails));
    }

    pub(in crate::telemetry) fn sessions_expired(&self, sessions: u64) {
        self.families.store_forgotten.inc_by(sessions);
    }

    pub(in crate::telemetry) fn session_loaded(&self, waited: Duration) {
        self.families.session_load.observe(waited.as_secs_f64());
    }

    pub(in crate::telemetry) fn store_took(
        &self,
        operation: StoreOperation,
        took: Duration,
        succeeded: bool,
    ) {
        let operation = variant_name(operation);
        self.families.store.with_label_values(&[&operation]).observe(took.as_secs_f64());
        if !succeeded {
            self.families.store_failures.with_label_values(&[&operation]).inc();
        }
    }
}
