//! The log, for a collector: a record for each exchange, and the process's own diagnostics.
//!
//! Their texts are those of the log, which hold nothing of a conversation. An exchange that is sampled names its span.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::attributes::{Attributes, scope};
use super::conventions as name;
use super::queue::ExportItem;
use crate::config::OtelSignal;
use crate::telemetry::{Diagnostic, Exchange, log};

impl ExportItem for LogRecord {
    const SIGNAL: OtelSignal = OtelSignal::Logs;
    type Request = ExportLogsServiceRequest;

    fn request(resource: Resource, log_records: Vec<Self>) -> Self::Request {
        let schema_url = name::SCHEMA_URL.to_owned();
        let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records, schema_url }];
        let resource = Some(resource);
        let of_resource = ResourceLogs { resource, scope_logs, schema_url: String::new() };
        ExportLogsServiceRequest { resource_logs: vec![of_resource] }
    }

    fn items(request: Self::Request) -> Vec<Self> {
        let scopes = request.resource_logs.into_iter().flat_map(|one| one.scope_logs);
        scopes.flat_map(|one| one.log_records).collect()
    }
}

/// The record of an exchange: its line of the log, without the time.
pub(super) fn of_exchange(exchange: &Exchange) -> LogRecord {
    let line = log::text(exchange);
    let line = line.split_once(' ').map_or(line.as_str(), |(_, rest)| rest);
    let mut attributes = Attributes::default();
    attributes.text("plimsoll.request.id", exchange.id.as_str());
    attributes.text("plimsoll.outcome", exchange.outcome.as_ref());
    attributes.may_text("plimsoll.upstream", exchange.upstream.as_deref());
    attributes.may_text(name::CONVERSATION, exchange.session.as_ref().map(AsRef::as_ref));
    attributes.may_text(name::REQUEST_MODEL, exchange.model.as_deref());
    attributes.may_number(name::STATUS, exchange.status);
    let at = exchange.at * 1_000_000 + exchange.timing.duration_us * 1_000;
    let mut record = record(at, SeverityNumber::Info, "INFO", line);
    record.event_name = "plimsoll.exchange".to_owned();
    record.attributes = attributes.0;
    if let Some(trace) = &exchange.trace {
        record.trace_id = trace.trace.to_vec();
        record.span_id = trace.span.to_vec();
        record.flags = 1;
    }
    record
}

/// The record of a diagnostic.
pub(super) fn of_diagnostic(diagnostic: &Diagnostic) -> LogRecord {
    let severity = match diagnostic.level {
        tracing::Level::ERROR => SeverityNumber::Error,
        tracing::Level::WARN => SeverityNumber::Warn,
        tracing::Level::INFO => SeverityNumber::Info,
        tracing::Level::DEBUG => SeverityNumber::Debug,
        tracing::Level::TRACE => SeverityNumber::Trace,
    };
    let at = diagnostic.at * 1_000_000;
    record(at, severity, diagnostic.level.as_str(), &diagnostic.text)
}

fn record(at: u64, severity: SeverityNumber, level: &str, text: &str) -> LogRecord {
    LogRecord {
        time_unix_nano: at,
        observed_time_unix_nano: at,
        severity_number: severity as i32,
        severity_text: level.to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) }),
        ..LogRecord::default()
    }
}
