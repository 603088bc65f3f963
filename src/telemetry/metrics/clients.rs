//! The metrics of what clients say of their requests (`docs/protocols.md` 8.1).
//!
//! Their labels come from enums, so that no client can grow them.

use prometheus::IntCounterVec;

use super::make::{MetricRegistrar, NONE};
use super::variant_name;
use crate::dialect::hints::ClientHints;

pub(super) struct ClientMetrics {
    requests: IntCounterVec,
    compactions: IntCounterVec,
}

impl ClientMetrics {
    #[rustfmt::skip] // A table: one metric two lines.
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: make.counters("plimsoll_client_requests_total", &["upstream", "class", "agent_type"],
                "Requests whose client says what they are for (Claude Code's hint headers), by class (`main`, `subagent`, `workflow`, `compaction`, `auxiliary`, `other`) and kind of sub-agent.")?,
            compactions: make.counters("plimsoll_client_compactions_total", &["upstream", "cause"],
                "Compactions by a client that says why (`auto`, `manual`, `reactive`, `other`).")?,
        })
    }

    /// Counts one exchange.
    pub(super) fn count(&self, hints: &ClientHints, upstream: &str) {
        if let Some(class) = hints.class {
            let agent_type = hints.agent_type.map_or_else(|| NONE.to_owned(), variant_name);
            let labels = [upstream, &variant_name(class), &agent_type];
            self.requests.with_label_values(&labels).inc();
        }
        if let Some(cause) = hints.compaction {
            let labels = [upstream, &variant_name(cause)];
            self.compactions.with_label_values(&labels).inc();
        }
    }
}
