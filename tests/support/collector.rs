//! An OpenTelemetry collector: takes what is sent by HTTP and gRPC, and hands it to the test.

use std::convert::Infallible;
use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use plimsoll::config::{OtelProtocol, OtelSettings, OtelTarget, TraceSampler};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::within;

/// One request as it came.
pub struct Export {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub struct Collector {
    pub base: String,
    exports: mpsc::UnboundedReceiver<Export>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (heard, exports) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let heard = heard.clone();
                let service = service_fn(move |request| answer(request, heard.clone()));
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { base, exports }
    }

    pub async fn next(&mut self) -> Export {
        within("an export", self.exports.recv()).await.unwrap()
    }

    pub fn expect_nothing(&mut self) {
        assert!(self.exports.try_recv().is_err(), "something was sent");
    }

    pub async fn traces(&mut self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(self.next().await.body).unwrap()
    }

    pub async fn logs(&mut self) -> ExportLogsServiceRequest {
        ExportLogsServiceRequest::decode(self.next().await.body).unwrap()
    }

    pub async fn metrics(&mut self) -> ExportMetricsServiceRequest {
        ExportMetricsServiceRequest::decode(self.next().await.body).unwrap()
    }
}

async fn answer(
    request: Request<Incoming>,
    heard: mpsc::UnboundedSender<Export>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut body = body.collect().await.unwrap().to_bytes();
    let is_grpc = head.headers["content-type"] == "application/grpc";
    let mut answer = Response::builder().body(Full::new(Bytes::new()).boxed()).unwrap();
    if is_grpc {
        let prefix = body.split_to(5);
        assert_eq!(prefix[0] == 1, head.headers.contains_key("grpc-encoding"), "compressed");
        assert_eq!(u32::from_be_bytes(prefix[1..].try_into().unwrap()), body.len() as u32);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let empty_message = Full::new(Bytes::from_static(&[0; 5]));
        *answer.body_mut() = empty_message.with_trailers(async { Some(Ok(trailers)) }).boxed();
    }
    let codings = ["content-encoding", "grpc-encoding"].map(|name| head.headers.get(name));
    if codings.into_iter().flatten().any(|coding| coding == "gzip") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*body).read_to_end(&mut plain).unwrap();
        body = plain.into();
    }
    let _ = heard.send(Export { path: head.uri.path().to_owned(), headers: head.headers, body });
    Ok(answer)
}

/// Where a signal goes, for the collector at `base`.
pub fn target(base: &str, protocol: OtelProtocol, signal: &str) -> OtelTarget {
    let path = if protocol == OtelProtocol::Http { format!("/v1/{signal}") } else { "/".into() };
    OtelTarget {
        url: format!("{base}{path}").parse().unwrap(),
        protocol,
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
        gzip: false,
        certificate: None,
    }
}

/// Traces and metrics for the collector at `base`, soon.
pub fn settings(base: &str, protocol: OtelProtocol) -> OtelSettings {
    OtelSettings {
        traces: Some(target(base, protocol, "traces")),
        metrics: Some(target(base, protocol, "metrics")),
        logs: None,
        sampler: TraceSampler::default(),
        propagate: false,
        resource: vec![("service.name".into(), "plimsoll".into())],
        span_delay: Duration::from_millis(10),
        metric_interval: Duration::from_secs(3600),
    }
}

/// Attributes as `key=value`, in their order.
pub fn lines(attributes: &[KeyValue]) -> Vec<String> {
    let texts =
        attributes.iter().map(|KeyValue { key, value, .. }| format!("{key}={}", shown(value)));
    texts.collect()
}

fn shown(value: &Option<AnyValue>) -> String {
    match value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::ArrayValue(list)) => {
            let values = list.values.iter().map(|value| shown(&Some(value.clone())));
            format!("[{}]", values.collect::<Vec<_>>().join(","))
        }
        other => format!("{other:?}"),
    }
}
