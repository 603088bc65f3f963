//! Traces and metrics of exchanges for an OpenTelemetry collector, by OTLP.
//!
//! One task hears of each exchange at its end, as the metrics do, and makes spans of it if it is sampled. What a collector
//! does not take in time is dropped and counted: nothing on the way of a request waits for this task, or fails with it.
//! Names follow OpenTelemetry's conventions for generative AI (`conventions`); no text of a conversation is in a span.

mod conventions;
mod metrics;
mod providers;
mod spans;
mod transport;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use self::metrics::InferenceMetrics;
use self::providers::Providers;
use self::transport::{Collector, ExportError};
use crate::config::{Config, OtelSignal};
use crate::telemetry::{Exchange, OtelOutcome, Telemetry};

/// Spans that wait, at most; past it the oldest are dropped.
const MOST_WAITING: usize = 2048;
/// Spans in one request, at most.
const MOST_SENT: usize = 512;
/// How long the last export may take when the process ends.
const LAST: Duration = Duration::from_secs(3);

/// The running export.
pub struct OtelExport {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl OtelExport {
    /// Starts it, if the configuration asks for it. If it cannot be started, that is told: traffic does not need it.
    pub fn start(config: &Config, telemetry: &Arc<Telemetry>) -> Option<Self> {
        let settings = config.otel.as_ref()?;
        let tls = crate::tls::client_config(config);
        let tls = tls.inspect_err(|reason| tracing::warn!("OpenTelemetry: off: {reason}")).ok()?;
        let providers = Arc::new(Providers::new(config));
        let traces = settings.traces.as_ref().map(|target| {
            let collector = Collector::new(target, OtelSignal::Traces, &tls);
            SpanQueue::new(collector, spans::Resource::new(settings), telemetry.clone())
        });
        let (to_send, exported) = mpsc::channel(1);
        let metrics = settings.metrics.as_ref().map(|target| {
            let collector = Collector::new(target, OtelSignal::Metrics, &tls);
            (InferenceMetrics::new(settings, to_send, telemetry.clone()), collector)
        });
        let (metrics, collector) = metrics.unzip();
        let sending =
            collector.map(|it| tokio::spawn(send_metrics(it, exported, telemetry.clone())));
        let (stop, stopped) = oneshot::channel();
        let export = Export {
            exchanges: telemetry.subscribe(),
            telemetry: telemetry.clone(),
            providers,
            traces,
            metrics,
            sending,
        };
        let task = tokio::spawn(export.run(settings.span_delay, stopped));
        Some(Self { stop, task })
    }

    /// Sends what is left, for a few seconds at most.
    pub async fn finish(self) {
        drop(self.stop);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST, self.task).await.is_err() {
            abort.abort();
        }
    }
}

/// What the task holds.
struct Export {
    exchanges: broadcast::Receiver<Arc<Exchange>>,
    telemetry: Arc<Telemetry>,
    providers: Arc<Providers>,
    traces: Option<SpanQueue>,
    metrics: Option<InferenceMetrics>,
    /// The task that sends metrics.
    sending: Option<JoinHandle<()>>,
}

impl Export {
    async fn run(mut self, delay: Duration, mut stopped: oneshot::Receiver<()>) {
        let mut tick = tokio::time::interval(delay);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.reset();
        loop {
            tokio::select! {
                heard = self.exchanges.recv() => match heard {
                    Ok(exchange) => self.take(&exchange),
                    Err(broadcast::error::RecvError::Lagged(missed)) => self.missed(missed),
                    Err(broadcast::error::RecvError::Closed) => break,
                },
                _ = tick.tick() => {
                    if let Some(traces) = &mut self.traces {
                        traces.begin();
                    }
                }
                () = sent(&mut self.traces) => {}
                _ = &mut stopped => break,
            }
        }
        while let Ok(exchange) = self.exchanges.try_recv() {
            self.take(&exchange);
        }
        if let Some(traces) = &mut self.traces {
            traces.drain().await;
        }
        // Its last export, for which it waits in a thread of its own.
        if let Some(metrics) = self.metrics.take() {
            let _ = tokio::task::spawn_blocking(move || metrics.finish()).await;
        }
        if let Some(sending) = self.sending.take() {
            let _ = sending.await;
        }
    }

    fn take(&mut self, exchange: &Exchange) {
        if let Some(metrics) = &self.metrics {
            metrics.record(exchange, &self.providers);
        }
        if let (Some(traces), Some(trace)) = (&mut self.traces, &exchange.trace) {
            traces.add(spans::spans(exchange, trace, &self.providers));
        }
    }

    fn missed(&self, exchanges: u64) {
        // How many of them were sampled is not known.
        self.telemetry.count_otel(OtelSignal::Traces, OtelOutcome::Dropped, exchanges as usize);
    }
}

/// Ready when the spans under way were taken or refused.
async fn sent(traces: &mut Option<SpanQueue>) {
    match traces {
        Some(traces) if traces.sending.is_some() => traces.sent().await,
        _ => std::future::pending().await,
    }
}

type SpanExport = Pin<Box<dyn Future<Output = (Vec<Span>, Result<(), ExportError>)> + Send>>;

/// The spans that wait, and those under way.
struct SpanQueue {
    collector: Arc<Collector>,
    resource: spans::Resource,
    telemetry: Arc<Telemetry>,
    waiting: VecDeque<Span>,
    sending: Option<SpanExport>,
}

impl SpanQueue {
    fn new(collector: Collector, resource: spans::Resource, telemetry: Arc<Telemetry>) -> Self {
        let collector = Arc::new(collector);
        Self { collector, resource, telemetry, waiting: VecDeque::new(), sending: None }
    }

    fn add(&mut self, spans: Vec<Span>) {
        self.waiting.extend(spans);
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

    fn dropped(&self, spans: usize) {
        if spans > 0 {
            self.telemetry.count_otel(OtelSignal::Traces, OtelOutcome::Dropped, spans);
        }
    }

    /// Begins to send, unless some are under way.
    fn begin(&mut self) {
        if self.sending.is_some() || self.waiting.is_empty() {
            return;
        }
        let count = self.waiting.len().min(MOST_SENT);
        let spans: Vec<Span> = self.waiting.drain(..count).collect();
        let collector = self.collector.clone();
        let mut request = ExportTraceServiceRequest::default();
        let resource = self.resource.clone();
        self.sending = Some(Box::pin(async move {
            request.resource_spans = vec![resource.around(spans)];
            let outcome = collector.send(request.encode_to_vec()).await;
            (spans::Resource::spans(request), outcome)
        }));
    }

    async fn sent(&mut self) {
        let Some(sending) = &mut self.sending else { return };
        let (spans, sent) = sending.await;
        self.sending = None;
        match sent {
            Ok(()) => self.telemetry.count_otel(OtelSignal::Traces, OtelOutcome::Sent, spans.len()),
            Err(ExportError::Refused) => self.dropped(spans.len()),
            // Again with the next ones, as far as there is room.
            Err(ExportError::Unavailable) => {
                for span in spans.into_iter().rev() {
                    self.waiting.push_front(span);
                }
                self.bound();
            }
        }
    }

    /// Sends all, until the first failure.
    async fn drain(&mut self) {
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

async fn send_metrics(
    collector: Collector,
    mut exported: mpsc::Receiver<Vec<u8>>,
    telemetry: Arc<Telemetry>,
) {
    while let Some(request) = exported.recv().await {
        // The next export has the sums of this one in it.
        let outcome = match collector.send(request).await {
            Ok(()) => OtelOutcome::Sent,
            Err(_) => OtelOutcome::Dropped,
        };
        telemetry.count_otel(OtelSignal::Metrics, outcome, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OtelProtocol, OtelTarget};

    #[tokio::test]
    async fn waiting_spans_are_bounded() {
        let telemetry = Telemetry::silent().unwrap();
        let target = OtelTarget {
            url: "http://127.0.0.1:1/v1/traces".parse().unwrap(),
            protocol: OtelProtocol::Http,
            headers: Vec::new(),
            timeout: Duration::from_secs(1),
        };
        let tls = crate::tls::client_config(&Config::for_tests("http://127.0.0.1:1")).unwrap();
        let collector = Collector::new(&target, OtelSignal::Traces, &tls);
        let mut queue = SpanQueue::new(collector, spans::Resource::default(), telemetry.clone());
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
