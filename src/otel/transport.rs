//! Requests to a collector: OTLP over HTTP with protobuf, or over gRPC.
//!
//! Both are one POST; gRPC adds a prefix of five bytes, and a status in the trailers. An address that does not answer is
//! told once for all signals that go there; what it answers, once for each. Both again after it worked.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::config::{OtelProtocol, OtelSignal, OtelTarget};

/// A collector's answer is short; of a longer one no more is read.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Why a collector did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportError {
    /// It never will.
    Refused,
    /// It may do so later.
    Unavailable,
}

/// Why, for the log, too.
enum ExportFailure {
    /// Nobody answered at the address.
    Unreachable(String),
    /// An answer that does not take it.
    Answered(ExportError, String),
}

/// Which addresses do not answer.
#[derive(Default)]
pub(super) struct CollectorAddresses(HashMap<Authority, Arc<AtomicBool>>);

/// A collector of one signal.
pub(super) struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    protocol: OtelProtocol,
    headers: HeaderMap,
    gzip: bool,
    timeout: Duration,
    /// Whether its address did not answer, whatever the signal.
    unreachable: Arc<AtomicBool>,
    /// Whether it did not take the last request that it answered.
    refusing: AtomicBool,
}

impl Collector {
    pub(super) fn new(
        target: &OtelTarget,
        signal: OtelSignal,
        tls: &rustls::ClientConfig,
        addresses: &mut CollectorAddresses,
    ) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in &target.headers {
            if let Ok(mut value) = HeaderValue::try_from(&value.0) {
                value.set_sensitive(true);
                headers.append(name.clone(), value);
            }
        }
        headers.insert(USER_AGENT, HeaderValue::from_static("plimsoll"));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(target.timeout));
        let mut client = Client::builder(TokioExecutor::new());
        let (connector, media) = match target.protocol {
            OtelProtocol::Http => {
                (builder.enable_http1().wrap_connector(http), "application/x-protobuf")
            }
            OtelProtocol::Grpc => {
                client.http2_only(true);
                headers.insert(TE, HeaderValue::from_static("trailers"));
                (builder.enable_http2().wrap_connector(http), "application/grpc")
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        if target.gzip {
            let name = match target.protocol {
                OtelProtocol::Http => CONTENT_ENCODING,
                OtelProtocol::Grpc => HeaderName::from_static("grpc-encoding"),
            };
            headers.insert(name, HeaderValue::from_static("gzip"));
        }
        Self {
            client: client.build(connector),
            url: with_method(&target.url, target.protocol, signal),
            protocol: target.protocol,
            headers,
            gzip: target.gzip,
            timeout: target.timeout,
            unreachable: addresses.unreachable(&target.url),
            refusing: AtomicBool::new(false),
        }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// If the collector did not take it.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), ExportError> {
        let sent =
            tokio::time::timeout(self.timeout, self.post(message)).await.unwrap_or_else(|_| {
                let reason = format!("no answer within {} ms", self.timeout.as_millis());
                Err(ExportFailure::Unreachable(reason))
            });
        let is_unreachable = matches!(sent, Err(ExportFailure::Unreachable(_)));
        let was_unreachable = self.unreachable.swap(is_unreachable, Ordering::Relaxed);
        if was_unreachable && !is_unreachable {
            tracing::info!("OpenTelemetry: {} answers again", self.address());
        }
        match sent {
            Ok(()) => {
                if self.refusing.swap(false, Ordering::Relaxed) {
                    tracing::info!("OpenTelemetry: {} takes what is sent again", self.url);
                }
                Ok(())
            }
            Err(ExportFailure::Unreachable(reason)) => {
                if !was_unreachable {
                    warn(&self.address(), &reason);
                }
                Err(ExportError::Unavailable)
            }
            Err(ExportFailure::Answered(error, reason)) => {
                if !self.refusing.swap(true, Ordering::Relaxed) {
                    warn(&self.url.to_string(), &reason);
                }
                Err(error)
            }
        }
    }

    fn address(&self) -> String {
        let scheme = self.url.scheme_str().unwrap_or_default();
        let authority = self.url.authority().map_or("", Authority::as_str);
        format!("{scheme}://{authority}")
    }

    async fn post(&self, mut message: Vec<u8>) -> Result<(), ExportFailure> {
        if self.gzip {
            message = gzip(&message).map_err(|error| {
                ExportFailure::Answered(ExportError::Refused, error.to_string())
            })?;
        }
        let body = match self.protocol {
            OtelProtocol::Http => Bytes::from(message),
            OtelProtocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(u8::from(self.gzip));
                framed.put_u32(message.len() as u32);
                framed.extend_from_slice(&message);
                framed.freeze()
            }
        };
        let mut request = Request::post(self.url.clone());
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| ExportFailure::Answered(ExportError::Refused, error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            ExportFailure::Unreachable(cause.unwrap_or_else(|| error.to_string()))
        })?;
        judge(response, self.protocol)
            .await
            .map_err(|(error, reason)| ExportFailure::Answered(error, reason))
    }
}

impl CollectorAddresses {
    fn unreachable(&mut self, url: &Uri) -> Arc<AtomicBool> {
        let Some(authority) = url.authority() else { return Arc::default() };
        self.0.entry(authority.clone()).or_default().clone()
    }
}

fn gzip(message: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 4), Compression::fast());
    encoder.write_all(message)?;
    encoder.finish()
}

fn warn(place: &str, reason: &str) {
    tracing::warn!(
        "OpenTelemetry: {place}: {reason}. What it does not take is dropped; traffic goes on. Told once until it works"
    );
}

async fn judge(
    response: Response<Incoming>,
    protocol: OtelProtocol,
) -> Result<(), (ExportError, String)> {
    let status = response.status();
    let from_headers = grpc_status(response.headers());
    let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
    if !status.is_success() {
        let error = match status.as_u16() {
            429 | 502 | 503 | 504 => ExportError::Unavailable,
            _ => ExportError::Refused,
        };
        return Err((error, format!("it answered {status}")));
    }
    if protocol == OtelProtocol::Http {
        return Ok(());
    }
    let from_trailers =
        body.ok().and_then(|body| grpc_status(body.trailers().unwrap_or(&HeaderMap::new())));
    match from_headers.or(from_trailers) {
        Some(0) => Ok(()),
        // Those that the specification of OTLP says to repeat: cancelled, deadline, aborted, out of range, unavailable,
        // data loss.
        Some(code @ (1 | 4 | 10 | 11 | 14 | 15)) => {
            Err((ExportError::Unavailable, format!("it answered gRPC status {code}")))
        }
        Some(code) => Err((ExportError::Refused, format!("it answered gRPC status {code}"))),
        None => Err((ExportError::Unavailable, "its answer has no gRPC status".to_owned())),
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn with_method(url: &Uri, protocol: OtelProtocol, signal: OtelSignal) -> Uri {
    let method = match (protocol, signal) {
        (OtelProtocol::Http, _) => return url.clone(),
        (OtelProtocol::Grpc, OtelSignal::Traces) => {
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        }
        (OtelProtocol::Grpc, OtelSignal::Metrics) => {
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        }
        (OtelProtocol::Grpc, OtelSignal::Logs) => {
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
        }
    };
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static(method));
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}
