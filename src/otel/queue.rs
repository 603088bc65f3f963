//! What waits for a collector, one by one: spans, or records of the log.
//!
//! One request is under way at a time. What a collector does not take now is sent again with the next ones; past a limit
//! the oldest are dropped and counted.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::transport::{Collector, ExportError};
use crate::config::OtelSignal;
use crate::telemetry::{OtelOutcome, Telemetry};

/// How many wait, at most; past it the oldest are dropped.
const MOST_WAITING: usize = 2048;
/// How many are in one request, at most.
const MOST_SENT: usize = 512;

/// What can be sent together with others of its kind.
pub(super) trait ExportItem: Sized + Send + 'static {
    const SIGNAL: OtelSignal;
    type Request: Message + Default;

    fn request(resource: Resource, items: Vec<Self>) -> Self::Request;

    /// The items of a request, back.
    fn items(request: Self::Request) -> Vec<Self>;
}

type PendingExport<I> = Pin<Box<dyn Future<Output = (Vec<I>, Result<(), ExportError>)> + Send>>;

/// What waits, and what is under way.
pub(super) struct ExportQueue<I> {
    collector: Arc<Collector>,
    resource: Resource,
    telemetry: Arc<Telemetry>,
    waiting: VecDeque<I>,
    sending: Option<PendingExport<I>>,
}

impl<I: ExportItem> ExportQueue<I> {
    pub(super) fn new(collector: Collector, resource: Resource, telemetry: Arc<Telemetry>) -> Self {
        let collector = Arc::new(collector);
        Self { collector, resource, telemetry, waiting: VecDeque::new(), sending: None }
    }

    pub(super) fn add(&mut self, items: impl IntoIterator<Item = I>) {
        self.waiting.extend(items);
        self.bound();
        if self.waiting.len() >= MOST_SENT {
            self.begin();
        }
    }

    fn bound(&mut self) {
        let over = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..over);
        self.dropped(over);
    }

    /// So many were lost.
    pub(super) fn dropped(&self, items: usize) {
        if items > 0 {
            self.telemetry.count_otel(I::SIGNAL, OtelOutcome::Dropped, items);
        }
    }

    /// Begins to send, unless some are under way.
    pub(super) fn begin(&mut self) {
        if self.sending.is_some() || self.waiting.is_empty() {
            return;
        }
        let count = self.waiting.len().min(MOST_SENT);
        let items: Vec<I> = self.waiting.drain(..count).collect();
        let collector = self.collector.clone();
        let resource = self.resource.clone();
        self.sending = Some(Box::pin(async move {
            let request = I::request(resource, items);
            let outcome = collector.send(request.encode_to_vec()).await;
            (I::items(request), outcome)
        }));
    }

    /// Ready when those under way were taken or refused; never, if there are none.
    pub(super) async fn sent(&mut self) {
        let Some(sending) = &mut self.sending else { return std::future::pending().await };
        let (items, sent) = sending.await;
        self.sending = None;
        match sent {
            Ok(()) => self.telemetry.count_otel(I::SIGNAL, OtelOutcome::Sent, items.len()),
            Err(ExportError::Refused) => self.dropped(items.len()),
            // Again with the next ones, as far as there is room.
            Err(ExportError::Unavailable) => {
                for item in items.into_iter().rev() {
                    self.waiting.push_front(item);
                }
                self.bound();
            }
        }
    }

    /// Sends all, until the first failure.
    pub(super) async fn drain(&mut self) {
        loop {
            self.begin();
            if self.sending.is_none() {
                return;
            }
            let waiting = self.waiting.len();
            self.sent().await;
            if self.waiting.len() > waiting {
                self.dropped(self.waiting.len());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::trace::v1::Span;

    use super::*;
    use crate::config::{Config, OtelProtocol, OtelTarget};
    use crate::otel::transport::CollectorAddresses;

    #[tokio::test]
    async fn waiting_spans_are_bounded() {
        // One that is not there, and one that takes connections and says nothing.
        let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        for port in [1, hanging.local_addr().unwrap().port()] {
            let telemetry = Telemetry::silent().unwrap();
            let target = OtelTarget {
                url: format!("http://127.0.0.1:{port}/v1/traces").parse().unwrap(),
                protocol: OtelProtocol::Http,
                headers: Vec::new(),
                timeout: Duration::from_millis(100),
                gzip: false,
                certificate: None,
            };
            let tls = crate::tls::client_config(&Config::for_tests("http://127.0.0.1:1")).unwrap();
            let addresses = &mut CollectorAddresses::default();
            let collector = Collector::new(&target, OtelSignal::Traces, &tls, addresses);
            let mut queue = ExportQueue::new(collector, Resource::default(), telemetry.clone());
            for _ in 0..6 {
                queue.add(vec![Span::default(); MOST_SENT]);
            }
            // One request is under way, and its spans come back.
            assert_eq!(queue.waiting.len(), MOST_WAITING);
            queue.sent().await;
            assert_eq!(queue.waiting.len(), MOST_WAITING);
            let dropped = format!(
                "plimsoll_otel_items_total{{outcome=\"dropped\",signal=\"traces\"}} {}",
                6 * MOST_SENT - MOST_WAITING
            );
            let metrics = telemetry.render();
            assert!(metrics.contains(&dropped), "{metrics}");
        }
    }
}
