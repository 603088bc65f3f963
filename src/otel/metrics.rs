//! Metrics by OpenTelemetry's conventions for generative AI, of all exchanges, sampled or not.
//!
//! OpenTelemetry's own SDK adds them up, bounds the number of their series, and hands over an export each minute. Times
//! count from a request's arrival here, as those of the Prometheus metrics do.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use prost::Message as _;
use tokio::sync::mpsc;

use super::conventions as name;
use super::providers::Providers;
use crate::config::{OtelSettings, OtelSignal};
use crate::telemetry::{CHUNK_SECONDS, Exchange, OtelOutcome, Telemetry};

/// The instruments.
pub(super) struct InferenceMetrics {
    provider: SdkMeterProvider,
    duration: Histogram<f64>,
    first_chunk: Histogram<f64>,
    per_chunk: Histogram<f64>,
    input: Counter<u64>,
    output: Counter<u64>,
    cache_read: Counter<u64>,
    cache_write: Counter<u64>,
    reasoning: Counter<u64>,
}

impl InferenceMetrics {
    /// `to_send` gets the exports, encoded.
    pub(super) fn new(
        settings: &OtelSettings,
        to_send: mpsc::Sender<Vec<u8>>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        let attributes = settings.resource.iter();
        let attributes =
            attributes.map(|(key, value)| KeyValue::new(key.to_string(), value.to_string()));
        let exporter = EncodingExporter { to_send, telemetry };
        let reader = PeriodicReader::builder(exporter).with_interval(settings.metric_interval);
        let provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder_empty().with_attributes(attributes).build())
            .with_reader(reader.build())
            .build();
        let scope = InstrumentationScope::builder(name::SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(name::SCHEMA_URL);
        let meter = provider.meter_with_scope(scope.build());
        Self {
            duration: histogram(&meter, name::DURATION),
            first_chunk: histogram(&meter, name::TIME_TO_FIRST_CHUNK),
            per_chunk: histogram(&meter, name::TIME_PER_OUTPUT_CHUNK),
            input: counter(&meter, name::INPUT_TOKENS),
            output: counter(&meter, name::OUTPUT_TOKENS),
            cache_read: counter(&meter, name::CACHE_READ_TOKENS),
            cache_write: counter(&meter, name::CACHE_WRITE_TOKENS),
            reasoning: counter(&meter, name::REASONING_TOKENS),
            provider,
        }
    }

    pub(super) fn record(&self, exchange: &Exchange, providers: &Providers) {
        let provider = providers.get(exchange.upstream.as_deref());
        let (Some(provider), Some(_)) = (provider, exchange.timing.forwarded_us) else {
            // What was not forwarded is no call of a model.
            return;
        };
        if !name::is_inference(exchange) {
            return;
        }
        let mut labels = vec![
            KeyValue::new(name::OPERATION, name::operation(exchange.dialect)),
            KeyValue::new(name::PROVIDER, provider.name(exchange.dialect)),
            KeyValue::new(name::SERVER, provider.host.to_string()),
            KeyValue::new(name::PORT, i64::from(provider.port)),
        ];
        if let Some(model) = &exchange.model {
            labels.push(KeyValue::new(name::REQUEST_MODEL, model.to_string()));
        }
        if let Some(model) = name::response_model(exchange) {
            labels.push(KeyValue::new(name::RESPONSE_MODEL, model.to_owned()));
        }
        if let (true, Some(first)) = (exchange.streamed, exchange.timing.first_byte_us) {
            self.first_chunk.record(seconds(first), &labels);
        }
        if let Some(chunks) = &exchange.timing.chunks {
            // Each counts; together, those of a bucket took as long as their mean so many times.
            for (mean, chunks) in chunks.means() {
                (0..chunks).for_each(|_| self.per_chunk.record(mean, &labels));
            }
        }
        self.count_tokens(exchange, &labels);
        if let Some(error) = name::error(exchange) {
            labels.push(KeyValue::new(name::ERROR, error));
        }
        self.duration.record(seconds(exchange.timing.duration_us), &labels);
    }

    /// Counts the reply's tokens, and those of calls inside it (an advisor, a model that declined midway), each under its model.
    fn count_tokens(&self, exchange: &Exchange, labels: &[KeyValue]) {
        for (model, usage) in exchange.usage.billed() {
            let mut labels = labels.to_vec();
            labels.push(KeyValue::new(name::MODALITY, "unknown"));
            if let Some(model) = model {
                labels.retain(|label| label.key.as_str() != name::RESPONSE_MODEL);
                labels.push(KeyValue::new(name::RESPONSE_MODEL, model.to_owned()));
            }
            for (counter, tokens) in [
                // Without a report, these count 0, as the conventions want it.
                (&self.input, Some(usage.input.unwrap_or(0))),
                (&self.output, Some(usage.output.unwrap_or(0))),
                (&self.cache_read, usage.cache_read),
                (&self.cache_write, usage.cache_write),
                (&self.reasoning, usage.reasoning),
            ] {
                if let Some(tokens) = tokens {
                    counter.add(tokens, &labels);
                }
            }
        }
    }

    /// The last export. Blocks.
    pub(super) fn finish(self) {
        // Nobody is left who could be told.
        let _ = self.provider.shutdown();
    }
}

fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}

fn histogram(meter: &Meter, name: &'static str) -> Histogram<f64> {
    let builder = meter.f64_histogram(name).with_unit("s");
    builder.with_boundaries(CHUNK_SECONDS.to_vec()).build()
}

fn counter(meter: &Meter, name: &'static str) -> Counter<u64> {
    meter.u64_counter(name).with_unit("{token}").build()
}

/// Encodes exports, for the task that sends them.
struct EncodingExporter {
    to_send: mpsc::Sender<Vec<u8>>,
    telemetry: Arc<Telemetry>,
}

impl PushMetricExporter for EncodingExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let request = ExportMetricsServiceRequest::from(metrics).encode_to_vec();
        self.to_send.try_send(request).map_err(|_| {
            // The one before is still under way.
            self.telemetry.count_otel(OtelSignal::Metrics, OtelOutcome::Dropped, 1);
            OTelSdkError::InternalFailure("the collector is slow".to_owned())
        })
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}
