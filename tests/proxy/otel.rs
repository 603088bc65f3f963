//! Traces and metrics, as a collector gets them.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::trace::v1::Span;
use plimsoll::config::{Config, OtelProtocol, TraceSampler};
use plimsoll::otel::OtelExport;
use prost::Message as _;
use tokio::net::TcpListener;

use crate::support::collector::{Collector, lines, settings, target};
use crate::support::h2;
use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{wire, within};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const SESSION: &str = "11111111-2222-3333-4444-555555555555";

/// A proxy whose exchanges are exported.
struct Exported {
    server: TestServer,
    export: Option<OtelExport>,
    provider: Provider,
    /// How many chunks came after the first one of their stream.
    later_chunks: u64,
}

impl Exported {
    async fn start(collector: &str, protocol: OtelProtocol, change: impl Fn(&mut Config)) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        config.otel = Some(settings(collector, protocol));
        change(&mut config);
        let server = TestServer::with(config.clone()).await;
        let export = OtelExport::start(&config, &server.telemetry);
        Self { server, export, provider, later_chunks: 0 }
    }

    /// One streamed exchange: what the upstream got.
    async fn exchange(&mut self, headers: &str) -> Message {
        let script = wire::anthropic();
        let mut client = Wire::connect(self.server.address).await;
        let length = script.request.len();
        client
            .send(format!(
                "POST {} HTTP/1.1\r\nhost: localhost\r\nx-api-key: sk-secret\r\n\
                 x-claude-code-session-id: {SESSION}\r\n{headers}content-length: {length}\r\n\r\n{}",
                script.path, script.request
            ))
            .await;
        let mut call = self.provider.call().await;
        call.begin_events().await;
        for event in &script.events {
            call.chunk(event).await;
        }
        call.end().await;
        assert_eq!(client.response().await.status(), 200);
        self.later_chunks += self.server.next_exchange().await.timing.frames - 1;
        call.message
    }

    fn counted(&self, signal: &str, outcome: &str) -> u64 {
        let name =
            format!(r#"plimsoll_otel_items_total{{outcome="{outcome}",signal="{signal}"}} "#);
        let metrics = self.server.telemetry.render();
        let count = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        count.unwrap_or(0)
    }
}

fn only_traces(config: &mut Config) {
    config.otel.as_mut().unwrap().metrics = None;
}

fn only_metrics(config: &mut Config) {
    config.otel.as_mut().unwrap().traces = None;
}

/// Only logs, for the collector at `base`.
fn only_logs(config: &mut Config, base: &str, protocol: OtelProtocol) {
    let otel = config.otel.as_mut().unwrap();
    (otel.traces, otel.metrics) = (None, None);
    otel.logs = Some(target(base, protocol, "logs"));
}

/// Panics unless the pinned conventions have this, or it is ours.
fn expect_known(kind: &str, name: &str, of_type: &str, unit: &str) {
    let facts = include_str!("../data/conventions/gen-ai-0.1.0.tsv");
    let row = [kind, name, of_type, unit].join("\t");
    let is_known = name.starts_with("plimsoll.") || facts.lines().any(|it| it == row.trim_end());
    assert!(is_known, "{row}");
}

fn expect_known_attributes(attributes: &[KeyValue]) {
    for KeyValue { key, value, .. } in attributes {
        let of_type = match value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::StringValue(_) => "string",
            Value::BoolValue(_) => "boolean",
            Value::IntValue(_) => "int",
            Value::DoubleValue(_) => "double",
            Value::ArrayValue(_) => "string[]",
            other => panic!("{key}: {other:?}"),
        };
        expect_known("attribute", key, of_type, "");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn spans(collector: &mut Collector) -> Vec<Span> {
    let mut request = collector.traces().await;
    let scope = request.resource_spans.remove(0).scope_spans.remove(0);
    assert_eq!(scope.schema_url, "https://opentelemetry.io/schemas/gen-ai/0.1.0");
    scope.spans.iter().for_each(|span| expect_known_attributes(&span.attributes));
    scope.spans
}

fn traceparent(flags: &str) -> String {
    format!("Traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: v=1\r\n")
}

#[tokio::test]
async fn exchange_is_spans_of_clients_trace() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_traces).await;
    proxy.exchange(&traceparent("01")).await;
    let export = collector.next().await;
    assert_eq!(export.path, "/v1/traces");
    assert_eq!(export.headers["content-type"], "application/x-protobuf");
    let text = String::from_utf8_lossy(&export.body).into_owned();
    assert!(!text.contains("hello") && !text.contains("Hello") && !text.contains("sk-"), "{text}");
    let request = ExportTraceServiceRequest::decode(export.body).unwrap();
    let [of_resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
    let resource = of_resource.resource.as_ref().unwrap();
    let attributes = lines(&resource.attributes);
    let [name, instance] = attributes.as_slice() else { panic!("{attributes:?}") };
    assert_eq!(name, "service.name=plimsoll");
    let instance = instance.strip_prefix("service.instance.id=").unwrap();
    assert!(instance.len() == 36 && &instance[14..15] == "4", "{instance}");
    let spans = &of_resource.scope_spans[0].spans;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let expected = [
        "POST /v1/messages",
        "chat claude-sonnet-4-5",
        "read request",
        "read session",
        "plan",
        "store turn",
    ];
    for name in &expected[..3] {
        assert!(names.contains(name), "{names:?}");
    }
    assert!(names.iter().all(|name| expected.contains(name)), "{names:?}");
    assert!(names.contains(&"plan"), "{names:?}");
    for span in spans {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(span.trace_state, "v=1");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
        assert!(span.end_time_unix_nano <= spans[0].end_time_unix_nano + 1_000_000, "{span:?}");
    }
    assert_eq!(hex(&spans[0].parent_span_id), PARENT);
    assert!(spans[1..].iter().all(|span| span.parent_span_id == spans[0].span_id));
    let mut ids: Vec<&[u8]> = spans.iter().map(|span| &*span.span_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), spans.len());
    assert_eq!((spans[0].kind, spans[1].kind), (2, 3), "server, client");
    proxy.export.take().unwrap().finish().await;
    assert_eq!(proxy.counted("traces", "sent"), spans.len() as u64);
}

#[tokio::test]
async fn every_attribute_is_as_documented() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_traces).await;
    proxy.exchange("user-agent: claude-cli/2.1.0 (external, cli)\r\n").await;
    let spans = spans(&mut collector).await;
    let port = proxy.provider.base().rsplit(':').next().unwrap().to_owned();
    let of_inference = lines(&spans[1].attributes);
    let first_chunk = "gen_ai.response.time_to_first_chunk=";
    let steady: Vec<&str> = of_inference
        .iter()
        .map(|line| if line.starts_with(first_chunk) { first_chunk } else { line.as_str() })
        .collect();
    let server_port = format!("server.port={port}");
    let conversation = format!("gen_ai.conversation.id={SESSION}");
    assert_eq!(
        steady,
        [
            "gen_ai.operation.name=chat",
            "gen_ai.provider.name=anthropic",
            &conversation,
            "gen_ai.request.model=claude-sonnet-4-5",
            "gen_ai.request.stream=true",
            "gen_ai.response.model=claude-sonnet-4-5",
            "gen_ai.response.finish_reasons=[stop]",
            "gen_ai.usage.input_tokens=11",
            "gen_ai.usage.output_tokens=5",
            "gen_ai.usage.cache_read.input_tokens=0",
            "gen_ai.usage.cache_write.input_tokens=0",
            first_chunk,
            "server.address=127.0.0.1",
            &server_port,
            "http.request.method=POST",
            "http.response.status_code=200",
        ]
    );
    let events: Vec<&str> = spans[1].events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["first byte", "last byte"]);
    assert!(spans[1].status.is_none());
    let of_exchange = lines(&spans[0].attributes);
    let keys: Vec<&str> =
        of_exchange.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(
        keys,
        [
            "http.request.method",
            "url.path",
            "http.response.status_code",
            "gen_ai.conversation.id",
            "plimsoll.request.id",
            "plimsoll.upstream",
            "plimsoll.dialect",
            "plimsoll.purpose",
            "plimsoll.thread.id",
            "plimsoll.agent.name",
            "plimsoll.outcome",
            "plimsoll.cost.dollars",
            "plimsoll.overhead.seconds",
            "plimsoll.context.window",
            "plimsoll.estimate.tokens",
            "plimsoll.estimate.method",
            "plimsoll.estimate.low",
            "plimsoll.estimate.high",
            "plimsoll.estimate.error",
            "plimsoll.context.fill",
            "plimsoll.mode",
        ]
    );
    for line in [
        "url.path=/v1/messages",
        "plimsoll.upstream=up",
        "plimsoll.dialect=anthropic",
        "plimsoll.purpose=turn",
        "plimsoll.agent.name=Claude Code",
        "plimsoll.outcome=complete",
        "plimsoll.context.window=200000",
        "plimsoll.estimate.method=estimated",
        "plimsoll.context.fill=0.000055",
        "plimsoll.mode=observe",
    ] {
        assert!(of_exchange.iter().any(|it| it == line), "{line}: {of_exchange:?}");
    }
}

#[tokio::test]
async fn clients_header_passes_as_it_is() {
    let collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_traces).await;
    let request = proxy.exchange(&traceparent("01")).await;
    let client_line = format!("Traceparent: 00-{TRACE}-{PARENT}-01");
    assert!(request.lines().contains(&client_line.as_str()), "{:?}", request.lines());
    let request = proxy.exchange("").await;
    assert_eq!(request.header("traceparent"), None);
}

#[tokio::test]
async fn upstream_continues_trace_if_configured() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, |config| {
        only_traces(config);
        config.otel.as_mut().unwrap().propagate = true;
    })
    .await;
    let request = proxy.exchange(&traceparent("01")).await;
    let spans = spans(&mut collector).await;
    let ours = format!("00-{TRACE}-{}-01", hex(&spans[1].span_id));
    assert_eq!(request.header("traceparent"), Some(ours.as_str()));
    assert_eq!(request.header("tracestate"), Some("v=1"));
    assert_eq!(request.text(), wire::anthropic().request);
    // All other lines are the client's.
    let lines = request.lines();
    let others = lines.iter().filter(|line| !line.to_ascii_lowercase().starts_with("traceparent"));
    let others: Vec<&str> = others.copied().collect();
    let unsampled = proxy.exchange(&traceparent("00")).await;
    let expected = unsampled.lines();
    let expected =
        expected.iter().filter(|line| !line.to_ascii_lowercase().starts_with("traceparent"));
    assert_eq!(others, expected.copied().collect::<Vec<_>>());
    // What the client does not sample keeps its header.
    assert_eq!(unsampled.header("traceparent"), Some(&*format!("00-{TRACE}-{PARENT}-00")));
}

#[tokio::test]
async fn unsampled_exchange_has_no_span() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, |config| {
        only_traces(config);
        config.otel.as_mut().unwrap().sampler = TraceSampler { ratio: 0.0, follows_client: true };
    })
    .await;
    proxy.exchange("").await;
    proxy.exchange(&traceparent("00")).await;
    proxy.exchange(&traceparent("01")).await;
    let spans = spans(&mut collector).await;
    assert_eq!(spans.iter().filter(|span| span.kind == 2).count(), 1);
    proxy.export.take().unwrap().finish().await;
    collector.expect_nothing();
}

#[tokio::test]
async fn refused_call_is_an_error() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_traces).await;
    let mut client = Wire::connect(proxy.server.address).await;
    let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#;
    let length = body.len();
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
    client.send(format!("{head}\r\n\r\n{body}")).await;
    let mut call = proxy.provider.call().await;
    call.answer("529 Overloaded", r#"{"type":"error","error":{"type":"overloaded_error"}}"#).await;
    assert_eq!(client.response().await.status(), 529);
    proxy.server.next_exchange().await;
    let spans = spans(&mut collector).await;
    for span in &spans[..2] {
        assert_eq!(span.status.as_ref().map(|status| status.code), Some(2), "{span:?}");
        assert!(lines(&span.attributes).contains(&"error.type=overloaded".to_owned()), "{span:?}");
    }
    let finish = "gen_ai.response.finish_reasons=[error]".to_owned();
    assert!(lines(&spans[1].attributes).contains(&finish));
}

#[tokio::test]
async fn grpc_is_spoken() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Grpc, |_| {}).await;
    proxy.exchange("").await;
    let export = collector.next().await;
    assert_eq!(export.path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(export.headers["te"], "trailers");
    proxy.export.take().unwrap().finish().await;
    let export = collector.next().await;
    assert_eq!(export.path, "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
    assert!(proxy.counted("traces", "sent") > 0);
    assert_eq!(proxy.counted("metrics", "sent"), 1);
    assert_eq!(proxy.counted("traces", "dropped"), 0);
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Grpc, |config| {
        only_logs(config, &collector.base, OtelProtocol::Grpc);
    })
    .await;
    proxy.exchange("").await;
    let export = collector.next().await;
    assert_eq!(export.path, "/opentelemetry.proto.collector.logs.v1.LogsService/Export");
    proxy.export.take().unwrap().finish().await;
    assert!(proxy.counted("logs", "sent") > 0);
}

#[tokio::test]
async fn requests_are_compressed_if_asked() {
    for protocol in [OtelProtocol::Http, OtelProtocol::Grpc] {
        let mut collector = Collector::start().await;
        let mut proxy = Exported::start(&collector.base, protocol, |config| {
            only_traces(config);
            config.otel.as_mut().unwrap().traces.as_mut().unwrap().gzip = true;
        })
        .await;
        proxy.exchange("").await;
        let export = collector.next().await;
        let header = match protocol {
            OtelProtocol::Http => "content-encoding",
            OtelProtocol::Grpc => "grpc-encoding",
        };
        assert_eq!(export.headers[header], "gzip");
        let request = ExportTraceServiceRequest::decode(export.body).unwrap();
        assert_eq!(request.resource_spans.len(), 1);
    }
}

#[tokio::test]
async fn collectors_own_authority_is_trusted_if_named() {
    let mut collector = h2::Provider::start().await;
    let authority = collector.config().extra_ca.unwrap();
    for (certificate, dropped) in [(None, true), (Some(authority), false)] {
        let mut proxy = Exported::start(&collector.base(), OtelProtocol::Grpc, |config| {
            only_traces(config);
            config.otel.as_mut().unwrap().traces.as_mut().unwrap().certificate =
                certificate.clone();
        })
        .await;
        proxy.exchange("").await;
        if !dropped {
            let call = collector.call().await;
            assert_eq!(call.request.headers()["content-type"], "application/grpc");
            let done = http::Response::builder().header("grpc-status", "0");
            drop(call.answer(done.body(h2::body().1).unwrap()));
        }
        within("the end", proxy.export.take().unwrap().finish()).await;
        assert_eq!(proxy.counted("traces", "dropped") > 0, dropped);
    }
}

/// The log's line of an exchange is a record that names its span.
#[tokio::test]
async fn exchange_is_record_of_log() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, |config| {
        config.otel.as_mut().unwrap().logs =
            Some(target(&collector.base, OtelProtocol::Http, "logs"));
        only_traces(config);
    })
    .await;
    proxy.exchange(&traceparent("01")).await;
    let (mut spans, mut records) = (Vec::new(), Vec::new());
    while spans.is_empty() || records.is_empty() {
        let export = collector.next().await;
        let text = String::from_utf8_lossy(&export.body).into_owned();
        assert!(
            !text.contains("hello") && !text.contains("Hello") && !text.contains("sk-"),
            "{text}"
        );
        if export.path == "/v1/traces" {
            let request = ExportTraceServiceRequest::decode(export.body).unwrap();
            spans.extend(request.resource_spans.into_iter().flat_map(|it| it.scope_spans));
        } else {
            assert_eq!(export.path, "/v1/logs");
            let request = ExportLogsServiceRequest::decode(export.body).unwrap();
            let [of_resource] = request.resource_logs.as_slice() else { panic!("{request:?}") };
            let resource = of_resource.resource.as_ref().unwrap();
            let attributes = lines(&resource.attributes);
            let [name, instance] = attributes.as_slice() else { panic!("{attributes:?}") };
            assert_eq!(name, "service.name=plimsoll");
            let instance = instance.strip_prefix("service.instance.id=").unwrap();
            assert!(instance.len() == 36 && &instance[14..15] == "4", "{instance}");
            let [scope] = of_resource.scope_logs.as_slice() else { panic!("{request:?}") };
            assert_eq!(scope.schema_url, "https://opentelemetry.io/schemas/gen-ai/0.1.0");
            // Diagnostics of tests that run beside this one are no exchanges.
            let exchanges = scope.log_records.iter().filter(|it| !it.event_name.is_empty());
            records.extend(exchanges.cloned());
        }
    }
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(record.event_name, "plimsoll.exchange");
    assert_eq!((record.severity_number, record.severity_text.as_str()), (9, "INFO"));
    assert_eq!(
        (hex(&record.trace_id).as_str(), &record.span_id),
        (TRACE, &spans[0].spans[0].span_id)
    );
    let Some(Value::StringValue(line)) = record.body.as_ref().unwrap().value.as_ref() else {
        panic!("{record:?}")
    };
    assert!(line.starts_with("up POST /v1/messages 200 complete id="), "{line}");
    assert!(line.contains(" model=claude-sonnet-4-5 ") && line.contains(" input=11 "), "{line}");
    let attributes = lines(&record.attributes);
    assert!(attributes[0].starts_with("plimsoll.request.id="), "{attributes:?}");
    let session = format!("gen_ai.conversation.id={SESSION}");
    assert_eq!(
        attributes[1..],
        [
            "plimsoll.outcome=complete",
            "plimsoll.upstream=up",
            &session,
            "gen_ai.request.model=claude-sonnet-4-5",
            "http.response.status_code=200",
        ]
    );
    expect_known_attributes(&record.attributes);
}

#[tokio::test]
async fn metrics_follow_conventions() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_metrics).await;
    proxy.exchange("").await;
    proxy.exchange("").await;
    assert!(proxy.later_chunks > 0);
    proxy.export.take().unwrap().finish().await;
    let mut request = collector.metrics().await;
    let scope = request.resource_metrics.remove(0).scope_metrics.remove(0);
    assert_eq!(scope.schema_url, "https://opentelemetry.io/schemas/gen-ai/0.1.0");
    let mut series = Vec::new();
    for metric in scope.metrics {
        let name = metric.name.trim_start_matches("gen_ai.client.inference.").to_owned();
        match metric.data.unwrap() {
            Data::Sum(sum) => {
                let [point] = sum.data_points.as_slice() else { panic!("{sum:?}") };
                let Some(number_data_point::Value::AsInt(value)) = point.value else { panic!() };
                expect_known("metric", &metric.name, "counter", &metric.unit);
                expect_known_attributes(&point.attributes);
                assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "cumulative");
                series.push(format!("{name} {value} {}", metric.unit));
            }
            Data::Histogram(histogram) => {
                let [point] = histogram.data_points.as_slice() else { panic!("{histogram:?}") };
                expect_known("metric", &metric.name, "histogram", &metric.unit);
                expect_known_attributes(&point.attributes);
                assert_eq!(point.explicit_bounds.first(), Some(&0.01));
                let mut labels = lines(&point.attributes);
                labels.retain(|label| !label.starts_with("server."));
                labels.sort();
                let expected = [
                    "gen_ai.operation.name=chat",
                    "gen_ai.provider.name=anthropic",
                    "gen_ai.request.model=claude-sonnet-4-5",
                    "gen_ai.response.model=claude-sonnet-4-5",
                ];
                assert_eq!(labels, expected);
                series.push(format!("{name} {} {}", point.count, metric.unit));
            }
            other => panic!("{other:?}"),
        }
    }
    series.sort();
    assert_eq!(
        series,
        [
            "duration 2 s",
            &format!("time_per_output_chunk {} s", proxy.later_chunks),
            "time_to_first_chunk 2 s",
            "usage.cache_read.input_tokens 0 {token}",
            "usage.cache_write.input_tokens 0 {token}",
            "usage.input_tokens 22 {token}",
            "usage.output_tokens 10 {token}",
        ]
    );
}

/// A call inside a reply counts under its own model.
#[tokio::test]
async fn tokens_count_under_model_that_used_them() {
    let mut collector = Collector::start().await;
    let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, only_metrics).await;
    let mut client = Wire::connect(proxy.server.address).await;
    let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#;
    let length = body.len();
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
    client.send(format!("{head}\r\n\r\n{body}")).await;
    let mut call = proxy.provider.call().await;
    let reply = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"end_turn",
        "content":[{"type":"text","text":"done"}],"usage":{"input_tokens":9,"output_tokens":3,"iterations":[
        {"type":"advisor_message","model":"claude-opus-4-6","input_tokens":2000,"output_tokens":400},
        {"type":"message","model":"m","input_tokens":9,"output_tokens":3}]}}"#;
    call.answer("200 OK", reply).await;
    assert_eq!(client.response().await.status(), 200);
    proxy.server.next_exchange().await;
    proxy.export.take().unwrap().finish().await;
    let mut request = collector.metrics().await;
    let scope = request.resource_metrics.remove(0).scope_metrics.remove(0);
    let mut counted = Vec::new();
    for metric in scope.metrics {
        let Some(Data::Sum(sum)) = metric.data else { continue };
        for point in sum.data_points {
            let labels = lines(&point.attributes);
            let model = labels.iter().find_map(|it| it.strip_prefix("gen_ai.response.model="));
            let Some(number_data_point::Value::AsInt(value)) = point.value else { panic!() };
            let name = metric.name.trim_start_matches("gen_ai.client.inference.usage.");
            counted.push(format!("{name} {} {value}", model.unwrap()));
        }
    }
    counted.sort();
    let expected = [
        "input_tokens claude-opus-4-6 2000",
        "input_tokens m 9",
        "output_tokens claude-opus-4-6 400",
        "output_tokens m 3",
    ];
    assert_eq!(counted, expected);
}

/// Sums of two processes that look alike would replace each other; the name of a pod that the operator gives stays.
#[tokio::test]
async fn each_process_has_instance_id() {
    let mut collector = Collector::start().await;
    let mut ids = Vec::new();
    for given in [None, None, Some("pod-7")] {
        let mut proxy = Exported::start(&collector.base, OtelProtocol::Http, |config| {
            let resource = &mut config.otel.as_mut().unwrap().resource;
            resource.extend(given.map(|id: &str| ("service.instance.id".into(), id.into())));
        })
        .await;
        proxy.exchange("").await;
        proxy.export.take().unwrap().finish().await;
        let mut of_process = Vec::new();
        for _ in 0..2 {
            let export = collector.next().await;
            let resource = if export.path == "/v1/traces" {
                let request = ExportTraceServiceRequest::decode(export.body).unwrap();
                request.resource_spans.into_iter().next().unwrap().resource
            } else {
                let request = ExportMetricsServiceRequest::decode(export.body).unwrap();
                request.resource_metrics.into_iter().next().unwrap().resource
            };
            let mut attributes = lines(&resource.unwrap().attributes);
            attributes.retain(|line| line.starts_with("service.instance.id="));
            assert_eq!(attributes.len(), 1, "{attributes:?}");
            of_process.extend(attributes);
        }
        assert_eq!(of_process[0], of_process[1], "traces and metrics are of one process");
        ids.push(of_process.remove(0));
    }
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[2], "service.instance.id=pod-7");
}

/// A collector that takes connections and says nothing, and one that is not there.
#[tokio::test]
async fn absent_collector_costs_only_spans() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = format!("http://{}", silent.local_addr().unwrap());
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let absent = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    for base in [hanging, absent] {
        for protocol in [OtelProtocol::Http, OtelProtocol::Grpc] {
            let mut proxy = Exported::start(&base, protocol, |config| {
                let otel = config.otel.as_mut().unwrap();
                for target in [&mut otel.traces, &mut otel.metrics].into_iter().flatten() {
                    target.timeout = Duration::from_millis(100);
                }
            })
            .await;
            for _ in 0..3 {
                proxy.exchange("").await;
            }
            within("the end", proxy.export.take().unwrap().finish()).await;
            assert!(proxy.counted("traces", "dropped") >= 12, "{base} {protocol:?}");
            assert_eq!(proxy.counted("traces", "sent"), 0);
            assert_eq!(proxy.counted("metrics", "dropped"), 1);
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_unless_asked() {
    let mut collector = Collector::start().await;
    let mut proxy =
        Exported::start(&collector.base, OtelProtocol::Http, |config| config.otel = None).await;
    let request = proxy.exchange(&traceparent("01")).await;
    assert_eq!(request.header("traceparent"), Some(&*format!("00-{TRACE}-{PARENT}-01")));
    assert!(proxy.export.is_none());
    collector.expect_nothing();
}
