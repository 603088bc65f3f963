//! Traces, metrics and logs for an OpenTelemetry collector, by OTLP.
//!
//! One task hears of each exchange at its end, as the metrics do, and makes spans of it if it is sampled. What a collector
//! does not take in time is dropped and counted: nothing on the way of a request waits for this task, or fails with it.
//! Names follow OpenTelemetry's conventions for generative AI (`conventions`); no text of a conversation is in what is sent.

mod attributes;
mod conventions;
mod logs;
mod metrics;
mod providers;
mod queue;
mod spans;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use self::metrics::InferenceMetrics;
use self::providers::Providers;
use self::queue::{ExportItem, ExportQueue};
use self::transport::{Collector, CollectorAddresses};
use crate::config::{Config, OtelSignal, OtelTarget};
use crate::telemetry::{Diagnostic, Exchange, OtelOutcome, Telemetry};

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
        // Dropped if they are not sent, so that none is kept.
        let diagnostics = telemetry.diagnostics();
        let settings = &attributes::with_instance_id(config.otel.as_ref()?);
        let mut addresses = CollectorAddresses::default();
        let (to_send, exported) = mpsc::channel(1);
        let metrics = settings.metrics.as_ref();
        let metrics = collector(config, metrics, OtelSignal::Metrics, &mut addresses);
        let (metrics, sending) = match metrics {
            Some(collector) => {
                let sending = send_metrics(collector, exported, telemetry.clone());
                let metrics = InferenceMetrics::new(settings, to_send, telemetry.clone());
                (Some(metrics), Some(tokio::spawn(sending)))
            }
            None => (None, None),
        };
        let resource = attributes::resource(settings);
        let traces = settings.traces.as_ref();
        let traces = collector(config, traces, OtelSignal::Traces, &mut addresses)
            .map(|collector| ExportQueue::new(collector, resource.clone(), telemetry.clone()));
        let logs = settings.logs.as_ref();
        let logs = collector(config, logs, OtelSignal::Logs, &mut addresses)
            .map(|collector| ExportQueue::new(collector, resource.clone(), telemetry.clone()));
        let (stop, stopped) = oneshot::channel();
        let export = Export {
            exchanges: telemetry.subscribe(),
            diagnostics: if logs.is_some() { diagnostics } else { None },
            telemetry: telemetry.clone(),
            providers: Arc::new(Providers::new(config)),
            traces,
            logs,
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

/// Where a signal goes; `None`: nowhere, which is told if its authorities cannot be read.
fn collector(
    config: &Config,
    target: Option<&OtelTarget>,
    signal: OtelSignal,
    addresses: &mut CollectorAddresses,
) -> Option<Collector> {
    let target = target?;
    let tls = crate::tls::client_config_with(config, target.certificate.as_deref())
        .inspect_err(|reason| tracing::warn!("OpenTelemetry: no {}: {reason}", signal.as_ref()))
        .ok()?;
    Some(Collector::new(target, signal, &tls, addresses))
}

/// What the task holds.
struct Export {
    exchanges: broadcast::Receiver<Arc<Exchange>>,
    /// `None` if they are not sent, or if somebody else took them.
    diagnostics: Option<mpsc::Receiver<Diagnostic>>,
    telemetry: Arc<Telemetry>,
    providers: Arc<Providers>,
    traces: Option<ExportQueue<Span>>,
    logs: Option<ExportQueue<LogRecord>>,
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
                Some(diagnostic) = received(&mut self.diagnostics) => self.tell(&diagnostic),
                _ = tick.tick() => {
                    self.traces.iter_mut().for_each(ExportQueue::begin);
                    self.logs.iter_mut().for_each(ExportQueue::begin);
                }
                () = sent(&mut self.traces) => {}
                () = sent(&mut self.logs) => {}
                _ = &mut stopped => break,
            }
        }
        self.finish().await;
    }

    async fn finish(mut self) {
        while let Ok(exchange) = self.exchanges.try_recv() {
            self.take(&exchange);
        }
        while let Some(diagnostic) = self.diagnostics.as_mut().and_then(|it| it.try_recv().ok()) {
            self.tell(&diagnostic);
        }
        let Self { traces, logs, metrics, sending, .. } = self;
        let traces = async {
            if let Some(mut traces) = traces {
                traces.drain().await;
            }
        };
        let logs = async {
            if let Some(mut logs) = logs {
                logs.drain().await;
            }
        };
        let metrics = async {
            // Its last export, for which it waits in a thread of its own.
            if let Some(metrics) = metrics {
                let _ = tokio::task::spawn_blocking(move || metrics.finish()).await;
            }
            if let Some(sending) = sending {
                let _ = sending.await;
            }
        };
        tokio::join!(traces, logs, metrics);
    }

    fn take(&mut self, exchange: &Exchange) {
        if let Some(metrics) = &self.metrics {
            metrics.record(exchange, &self.providers);
        }
        if let (Some(traces), Some(trace)) = (&mut self.traces, &exchange.trace) {
            traces.add(spans::spans(exchange, trace, &self.providers));
        }
        if let Some(logs) = &mut self.logs {
            logs.add([logs::of_exchange(exchange)]);
        }
    }

    fn tell(&mut self, diagnostic: &Diagnostic) {
        if let Some(logs) = &mut self.logs {
            logs.dropped(self.telemetry.lost_diagnostics());
            logs.add([logs::of_diagnostic(diagnostic)]);
        }
    }

    fn missed(&self, exchanges: u64) {
        // How many of them were sampled is not known.
        if let Some(traces) = &self.traces {
            traces.dropped(exchanges as usize);
        }
        if let Some(logs) = &self.logs {
            logs.dropped(exchanges as usize);
        }
    }
}

/// The next diagnostic; never, if they are not sent.
async fn received(diagnostics: &mut Option<mpsc::Receiver<Diagnostic>>) -> Option<Diagnostic> {
    match diagnostics {
        Some(diagnostics) => diagnostics.recv().await,
        None => std::future::pending().await,
    }
}

/// Ready when what is under way was taken or refused.
async fn sent<I: ExportItem>(queue: &mut Option<ExportQueue<I>>) {
    match queue {
        Some(queue) => queue.sent().await,
        None => std::future::pending().await,
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
