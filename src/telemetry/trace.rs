//! The place of a sampled exchange in a trace (W3C Trace Context), and when its steps were.
//!
//! An exchange that is not sampled has none, and costs nothing. Knows no exporter: `otel` makes spans of it at the end.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::config::TraceSampler;

/// Trace, parent and flags, as `00-TRACE-PARENT-01`.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What vendors say of the trace.
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The longest `tracestate` that is kept, bytes.
const LONGEST_STATE: usize = 1024;
/// The sampled flag.
const SAMPLED: u8 = 1;

/// The place of an exchange in a trace.
#[derive(Clone, Debug)]
pub struct ExchangeTrace {
    /// The trace.
    pub trace: [u8; 16],
    /// The client's span, if it began the trace.
    pub parent: Option<[u8; 8]>,
    /// The client's `tracestate`.
    pub state: Option<Box<str>>,
    /// The exchange's span.
    pub span: [u8; 8],
    /// The span of the upstream's part.
    pub upstream_span: [u8; 8],
    /// What took time, in the order of its end.
    pub steps: Vec<TraceStep>,
}

/// A part of an exchange that took time. Both times count from the request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// What it was.
    pub kind: StepKind,
    /// When it began.
    pub from: Duration,
    /// When it ended.
    pub to: Duration,
}

/// What took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The request's body arrived.
    Read,
    /// The session was read from the store.
    StoreRead,
    /// A summary was waited for.
    Compaction,
    /// The request was read, planned and rewritten; with the two above in it.
    Plan,
    /// The upstream was called, until its last byte.
    Upstream,
    /// The turn was stored, while the last frame waited.
    StoreWrite,
}

/// What a client says of its trace.
#[derive(Debug, PartialEq, Eq)]
struct ClientTrace {
    trace: [u8; 16],
    parent: [u8; 8],
    sampled: bool,
}

impl ExchangeTrace {
    /// Continues the client's trace, or begins one; `None` if it is not sampled.
    pub(crate) fn begin(headers: &HeaderMap, sampler: TraceSampler) -> Option<Box<Self>> {
        let client = client_trace(headers);
        let decided = client.as_ref().map(|client| client.sampled);
        // Nothing random is needed where the client has decided against it.
        if sampler.follows_client && decided == Some(false) {
            return None;
        }
        let mut random = [0; 32];
        // Without randomness there is no trace.
        getrandom::fill(&mut random).ok()?;
        let (own, rest) = random.split_first_chunk()?;
        let (span, rest) = rest.split_first_chunk()?;
        let trace = client.as_ref().map_or(*own, |client| client.trace);
        if !sampler.samples(&trace, decided) {
            return None;
        }
        Some(Box::new(Self {
            trace,
            state: client.as_ref().and_then(|_| client_state(headers)),
            parent: client.map(|client| client.parent),
            span: *span,
            upstream_span: *rest.first_chunk()?,
            steps: Vec::new(),
        }))
    }

    /// The header by which the upstream continues it.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        let mut text = String::from("00-");
        push_hex(&self.trace, &mut text);
        text.push('-');
        push_hex(&self.upstream_span, &mut text);
        text += "-01";
        HeaderValue::try_from(text).ok()
    }
}

/// Appends bytes as lower-case digits.
pub(super) fn push_hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
}

fn client_trace(headers: &HeaderMap) -> Option<ClientTrace> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let line = line.as_bytes();
    // A later version may have more at its end, after a hyphen.
    let (known, more) = line.split_at_checked(55)?;
    let [version, trace, parent, flags] =
        <[&[u8]; 4]>::try_from(known.split(|byte| *byte == b'-').collect::<Vec<_>>()).ok()?;
    let [version] = hex::<1>(version)?;
    let is_whole = more.is_empty() || version > 0 && more.first() == Some(&b'-');
    let client = ClientTrace {
        trace: hex(trace)?,
        parent: hex(parent)?,
        sampled: hex::<1>(flags)?[0] & SAMPLED > 0,
    };
    let is_valid = version < 0xff && client.trace != [0; 16] && client.parent != [0; 8];
    (is_whole && is_valid).then_some(client)
}

fn client_state(headers: &HeaderMap) -> Option<Box<str>> {
    let lines = headers.get_all(TRACESTATE).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let state = lines.join(",");
    (!state.is_empty() && state.len() <= LONGEST_STATE).then(|| state.into())
}

/// Bytes from lower-case digits: W3C Trace Context allows no others.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let lines = lines.iter().cloned();
        lines.map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn client_trace_is_continued() {
        let headers = headers(&[(TRACEPARENT, CLIENT), (TRACESTATE, "a=1")]);
        let trace = ExchangeTrace::begin(&headers, TraceSampler::default()).unwrap();
        let header = trace.traceparent().unwrap();
        let header = header.to_str().unwrap();
        assert!(header.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{header}");
        assert!(header.ends_with("-01"), "{header}");
        assert!(!header.contains("b7ad6b7169203331"), "{header}");
        assert_eq!(trace.parent, hex(b"b7ad6b7169203331"));
        assert_eq!(trace.state.as_deref(), Some("a=1"));
    }

    #[test]
    fn client_decides_sampling() {
        let against = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let against = headers(&[(TRACEPARENT, against)]);
        assert!(ExchangeTrace::begin(&against, TraceSampler::default()).is_none());
        let alone = TraceSampler { ratio: 1.0, follows_client: false };
        assert!(ExchangeTrace::begin(&against, alone).is_some());
        let none = TraceSampler { ratio: 0.0, follows_client: true };
        assert!(ExchangeTrace::begin(&HeaderMap::new(), none).is_none());
        assert!(ExchangeTrace::begin(&headers(&[(TRACEPARENT, CLIENT)]), none).is_some());
    }

    #[test]
    fn broken_traceparent_begins_anew() {
        for broken in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c7b7ad6b7169203331-01-",
        ] {
            let headers = headers(&[(TRACEPARENT, broken), (TRACESTATE, "a=1")]);
            let trace = ExchangeTrace::begin(&headers, TraceSampler::default()).unwrap();
            assert_eq!((trace.parent, &trace.state), (None, &None), "{broken}");
        }
        let twice = headers(&[(TRACEPARENT, CLIENT), (TRACEPARENT, CLIENT)]);
        assert_eq!(client_trace(&twice), None);
    }

    #[test]
    fn later_version_may_be_longer() {
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what";
        assert!(client_trace(&headers(&[(TRACEPARENT, later)])).is_some());
    }
}
