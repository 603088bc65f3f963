//! The spans of one exchange, made at its end.
//!
//! A server span of the exchange; under it one for each step, and a client span of the upstream's part, which alone has
//! the attributes of the conventions for inference, so that no sum of tokens counts them twice.

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::attributes::{Attributes, scope};
use super::conventions as name;
use super::providers::{Providers, UpstreamProvider};
use super::queue::ExportItem;
use crate::config::OtelSignal;
use crate::context::Outcome;
use crate::telemetry::{Exchange, ExchangeTrace, StepKind, TraceStep};

/// Sampled; and it is known whether the parent is in another process.
const FLAGS: u32 = 0x101;
/// The parent is in another process.
const REMOTE: u32 = 0x200;

impl ExportItem for Span {
    const SIGNAL: OtelSignal = OtelSignal::Traces;
    type Request = ExportTraceServiceRequest;

    fn request(resource: Resource, spans: Vec<Self>) -> Self::Request {
        let schema_url = name::SCHEMA_URL.to_owned();
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, schema_url }];
        let resource = Some(resource);
        let of_resource = ResourceSpans { resource, scope_spans, schema_url: String::new() };
        ExportTraceServiceRequest { resource_spans: vec![of_resource] }
    }

    fn items(request: Self::Request) -> Vec<Self> {
        let scopes = request.resource_spans.into_iter().flat_map(|one| one.scope_spans);
        scopes.flat_map(|one| one.spans).collect()
    }
}

/// The spans of a sampled exchange, its own first.
pub(super) fn spans(exchange: &Exchange, trace: &ExchangeTrace, known: &Providers) -> Vec<Span> {
    let parts = SpanParts { exchange, trace, provider: known.get(exchange.upstream.as_deref()) };
    let mut spans = vec![parts.server()];
    spans.extend(parts.upstream());
    for (number, step) in trace.steps.iter().enumerate() {
        spans.extend(parts.step(step, number));
    }
    spans
}

/// What the spans of an exchange are made of.
struct SpanParts<'e> {
    exchange: &'e Exchange,
    trace: &'e ExchangeTrace,
    provider: Option<&'e UpstreamProvider>,
}

impl SpanParts<'_> {
    fn at(&self, since: Duration) -> u64 {
        self.exchange.at.saturating_mul(1_000_000).saturating_add(since.as_nanos() as u64)
    }

    fn end(&self) -> Duration {
        Duration::from_micros(self.exchange.timing.duration_us)
    }

    fn span(&self, id: [u8; 8], name: &str, kind: SpanKind, from: Duration, to: Duration) -> Span {
        Span {
            trace_id: self.trace.trace.to_vec(),
            span_id: id.to_vec(),
            trace_state: self.trace.state.as_deref().unwrap_or_default().to_owned(),
            parent_span_id: self.trace.span.to_vec(),
            flags: FLAGS,
            name: name.to_owned(),
            kind: kind as i32,
            start_time_unix_nano: self.at(from),
            end_time_unix_nano: self.at(to),
            ..Span::default()
        }
    }

    fn server(&self) -> Span {
        let Self { exchange, trace, .. } = self;
        // Only a known path is of few values.
        let name = match exchange.purpose {
            Some(_) => format!("{} {}", exchange.method, exchange.path),
            None => exchange.method.to_string(),
        };
        let mut attributes = Attributes::default();
        attributes.text(name::METHOD, &exchange.method);
        attributes.text(name::PATH, &exchange.path);
        attributes.may_number(name::STATUS, exchange.status);
        attributes.may_text(name::CONVERSATION, exchange.session.as_ref().map(AsRef::as_ref));
        self.about(&mut attributes);
        self.about_estimate(&mut attributes);
        self.about_rewriting(&mut attributes);
        let failed = exchange.outcome == Outcome::UpstreamFailed
            || exchange.status.is_some_and(|status| status >= 500);
        if failed {
            attributes.may_text(name::ERROR, name::error(exchange).as_deref());
        }
        let mut span = self.span(trace.span, &name, SpanKind::Server, Duration::ZERO, self.end());
        let parent = trace.parent.map(|parent| parent.to_vec());
        span.flags |= if parent.is_some() { REMOTE } else { 0 };
        span.parent_span_id = parent.unwrap_or_default();
        span.attributes = attributes.0;
        span.status = status(failed);
        span
    }

    fn about(&self, attributes: &mut Attributes) {
        let Exchange { id, upstream, dialect, purpose, thread, agent, outcome, .. } = self.exchange;
        attributes.text("plimsoll.request.id", id.as_str());
        attributes.may_text("plimsoll.upstream", upstream.as_deref());
        attributes.may_text("plimsoll.dialect", dialect.as_ref().map(AsRef::as_ref));
        attributes.may_text("plimsoll.purpose", purpose.as_ref().map(AsRef::as_ref));
        attributes.may_text("plimsoll.thread.id", thread.as_ref().map(AsRef::as_ref));
        attributes.may_text("plimsoll.agent.name", agent.as_ref().map(|agent| &*agent.name));
        attributes.text("plimsoll.outcome", outcome.as_ref());
        attributes.may_real("plimsoll.cost.dollars", self.exchange.dollars);
        let overhead = Duration::from_micros(self.exchange.timing.request_side_us).as_secs_f64();
        attributes.may_real("plimsoll.overhead.seconds", Some(overhead));
        let fail_open = self.exchange.fail_open.iter().map(AsRef::as_ref);
        attributes.list("plimsoll.fail_open", fail_open);
    }

    fn about_estimate(&self, attributes: &mut Attributes) {
        let exchange = self.exchange;
        attributes.may_number("plimsoll.context.window", exchange.window);
        let Some(estimate) = &exchange.estimate else { return };
        attributes.number("plimsoll.estimate.tokens", estimate.tokens);
        attributes.text("plimsoll.estimate.method", estimate.method.as_ref());
        if let Some(band) = estimate.band() {
            attributes.number("plimsoll.estimate.low", band.low);
            attributes.number("plimsoll.estimate.high", band.high);
        }
        attributes.may_number("plimsoll.estimate.error", exchange.error());
        let window = exchange.window.filter(|window| *window > 0);
        let fill = window
            .map(|window| exchange.actual().unwrap_or(estimate.tokens) as f64 / window as f64);
        attributes.may_real("plimsoll.context.fill", fill);
    }

    fn about_rewriting(&self, attributes: &mut Attributes) {
        let done = &self.exchange.done;
        attributes.text("plimsoll.mode", done.mode.as_ref());
        let made = done.made;
        for (kind, times) in [
            ("cut", made.cut),
            ("put_back", made.put_back),
            ("removed", made.removed),
            ("compacted", made.compacted),
            ("injected", made.injected),
            ("repaired", made.repaired),
        ] {
            if times > 0 {
                attributes.number(&format!("plimsoll.edits.{kind}"), times);
            }
        }
        let mut reasons = BTreeMap::<String, i64>::new();
        for step in &done.steps {
            let [kind, why, decision] =
                [step.change.as_ref(), step.why.as_ref(), step.decision.as_ref()];
            *reasons.entry(format!("{kind}.{why}.{decision}")).or_default() += 1;
        }
        let reasons = reasons.iter().map(|(reason, times)| format!("{reason}={times}"));
        let reasons: Vec<String> = reasons.collect();
        attributes.list("plimsoll.edits.reasons", reasons.iter().map(String::as_str));
        let tokens = done.removed().cut + done.removed().compacted;
        if tokens > 0 {
            attributes.number("plimsoll.edits.tokens_removed", tokens);
        }
    }

    /// The upstream's part; `None` if it was not called.
    fn upstream(&self) -> Option<Span> {
        let exchange = self.exchange;
        let from = Duration::from_micros(exchange.timing.forwarded_us?);
        let last_step = self.trace.steps.iter().find(|step| step.kind == StepKind::Upstream);
        let to = last_step.map_or(self.end(), |step| step.to);
        let first_byte = exchange.timing.first_byte_us.map(Duration::from_micros);
        let mut attributes = Attributes::default();
        let span_name = if name::is_inference(exchange) {
            self.about_inference(&mut attributes);
            let first_chunk = if exchange.streamed { first_byte } else { None };
            let seconds = first_chunk.map(|first| first.saturating_sub(from).as_secs_f64());
            attributes.may_real(name::FIRST_CHUNK, seconds);
            let model = exchange.model.as_deref().unwrap_or_default();
            format!("{} {model}", name::operation(exchange.dialect)).trim_end().to_owned()
        } else {
            exchange.method.to_string()
        };
        if let Some(UpstreamProvider { host, port, .. }) = self.provider {
            attributes.text(name::SERVER, host);
            attributes.number(name::PORT, *port);
        }
        attributes.text(name::METHOD, &exchange.method);
        attributes.may_number(name::STATUS, exchange.status);
        let error = name::error(exchange);
        attributes.may_text(name::ERROR, error.as_deref());
        let mut span = self.span(self.trace.upstream_span, &span_name, SpanKind::Client, from, to);
        span.attributes = attributes.0;
        span.status = status(error.is_some());
        let times = [("first byte", first_byte), ("last byte", last_step.map(|step| step.to))];
        let events = times.into_iter().filter_map(|(name, at)| {
            let time_unix_nano = self.at(at?);
            Some(Event { time_unix_nano, name: name.to_owned(), ..Event::default() })
        });
        span.events = events.collect();
        Some(span)
    }

    fn about_inference(&self, attributes: &mut Attributes) {
        let exchange = self.exchange;
        let usage = &exchange.usage;
        attributes.text(name::OPERATION, name::operation(exchange.dialect));
        let provider = self.provider.map(|provider| provider.name(exchange.dialect));
        attributes.may_text(name::PROVIDER, provider);
        attributes.may_text(name::CONVERSATION, exchange.session.as_ref().map(AsRef::as_ref));
        let compacts = exchange.done.made.compacted > 0 && exchange.done.is_sent();
        attributes.flag(name::COMPACTED, compacts);
        attributes.may_text(name::REQUEST_MODEL, exchange.model.as_deref());
        attributes.flag(name::STREAM, exchange.streamed);
        attributes.may_text(name::RESPONSE_MODEL, name::response_model(exchange));
        attributes.list(name::FINISH_REASONS, name::finish_reason(exchange).into_iter());
        for (key, tokens) in [
            (name::INPUT, usage.input),
            (name::OUTPUT, usage.output),
            (name::CACHE_READ, usage.cache_read),
            (name::CACHE_WRITE, usage.cache_write),
            (name::REASONING, usage.reasoning),
        ] {
            attributes.may_number(key, tokens);
        }
    }

    /// `number` tells the spans of an exchange apart.
    fn step(&self, step: &TraceStep, number: usize) -> Option<Span> {
        let name = match step.kind {
            StepKind::Read => "read request",
            StepKind::StoreRead => "read session",
            StepKind::Compaction => "wait for summary",
            StepKind::Plan => "plan",
            StepKind::StoreWrite => "store turn",
            // It has a span of its own.
            StepKind::Upstream => return None,
        };
        // All of one exchange differ. An id of zeros would be none.
        let (id, past_end) = u64::from_be_bytes(self.trace.span).overflowing_add(number as u64 + 1);
        let id = (id + u64::from(past_end)).to_be_bytes();
        Some(self.span(id, name, SpanKind::Internal, step.from, step.to))
    }
}

fn status(failed: bool) -> Option<Status> {
    failed.then(|| Status { code: StatusCode::Error as i32, ..Status::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::plan::{Change, Decision, DecisionReason, PlanStep, RewriteSummary};
    use crate::context::policy::Mode;
    use crate::dialect::PartIndex;

    fn rewritten() -> Exchange {
        let mut done = RewriteSummary { mode: Mode::Active, ..RewriteSummary::default() };
        done.made.cut = 3;
        done.made.compacted = 1;
        done.tokens_removed = 1200;
        done.tokens_compacted = 300;
        done.steps = vec![
            PlanStep {
                change: Change::Cut,
                why: DecisionReason::Pressure,
                decision: Decision::New,
                at: PartIndex::default(),
                byte: 0,
                bytes_before: 10,
                bytes_after: 1,
                tokens_before: 9,
                tokens_after: 1,
            };
            2
        ];
        Exchange {
            done,
            upstream: Some("up".into()),
            ..Exchange::begun("id".into(), 1000, "POST", "/x")
        }
    }

    fn trace() -> ExchangeTrace {
        ExchangeTrace {
            trace: [1; 16],
            parent: None,
            state: None,
            span: [0xff; 8],
            upstream_span: [3; 8],
            steps: vec![
                TraceStep {
                    kind: StepKind::Compaction,
                    from: Duration::from_millis(2),
                    to: Duration::from_millis(5),
                },
                TraceStep {
                    kind: StepKind::StoreWrite,
                    from: Duration::from_millis(7),
                    to: Duration::from_millis(8),
                },
            ],
        }
    }

    #[test]
    fn edits_are_told_by_reason() {
        let providers = Providers::new(&Config::for_tests("http://127.0.0.1:1"));
        let spans = spans(&rewritten(), &trace(), &providers);
        let attributes = spans[0].attributes.iter();
        let edits: Vec<String> = attributes
            .filter(|it| it.key.starts_with("plimsoll.edits"))
            .map(|it| format!("{} {:?}", it.key, it.value.as_ref().unwrap().value))
            .collect();
        assert_eq!(edits.len(), 4, "{edits:?}");
        assert_eq!(edits[0], "plimsoll.edits.cut Some(IntValue(3))");
        assert_eq!(edits[1], "plimsoll.edits.compacted Some(IntValue(1))");
        assert!(edits[2].contains("cut.pressure.new=2"), "{edits:?}");
        assert_eq!(edits[3], "plimsoll.edits.tokens_removed Some(IntValue(1500))");
    }

    #[test]
    fn steps_are_spans_at_their_times() {
        let providers = Providers::new(&Config::for_tests("http://127.0.0.1:1"));
        let spans = spans(&rewritten(), &trace(), &providers);
        // It was never forwarded, so there is no client span.
        let [server, summary, stored] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!(summary.name, "wait for summary");
        assert_eq!(summary.start_time_unix_nano, 1_002_000_000);
        assert_eq!(summary.end_time_unix_nano, 1_005_000_000);
        assert_eq!(stored.name, "store turn");
        assert_eq!(server.parent_span_id, Vec::<u8>::new());
        assert_eq!(summary.parent_span_id, server.span_id);
        // An id of zeros is none.
        assert_ne!(summary.span_id, vec![0; 8]);
        assert_ne!(summary.span_id, stored.span_id);
    }
}
