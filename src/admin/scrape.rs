//! What a scraper of metrics gets: the format that it asks for, compressed if it can read that.
//!
//! OpenMetrics goes to who names it and does not prefer plain text; Prometheus does name it first. Anything else, an
//! invalid header included, gets Prometheus' own format, uncompressed.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AsHeaderName, CONTENT_ENCODING, HeaderMap, HeaderValue,
};
use hyper::Response;

use super::responses::{AdminBody, whole};
use super::state::Admin;
use crate::clock::now;
use crate::telemetry::MetricsFormat;

/// `GET /metrics`.
pub(super) fn answer(admin: &Admin, headers: &HeaderMap) -> Response<AdminBody> {
    // The fullest subject of each cap comes last, so that it is the one that shows.
    for state in admin.ledgers.caps().list(now()).iter().rev() {
        admin.telemetry.show_cap(&state.cap, state.used);
    }
    let format = format(headers);
    let kind = match format {
        MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
    };
    let page = admin.telemetry.render_as(format);
    let compressed = if accepts_gzip(headers) { gzip(page.as_bytes()) } else { None };
    match compressed {
        Some(compressed) => {
            let mut response = whole(kind, compressed);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        None => whole(kind, page),
    }
}

fn format(headers: &HeaderMap) -> MetricsFormat {
    let (mut open, mut text) = (0.0_f32, 0.0_f32);
    for AcceptedRange { name, parameters, weight } in ranges(headers, ACCEPT) {
        let version = parameters.iter().find_map(|parameter| parameter.strip_prefix("version="));
        let is_ours = matches!(version, None | Some("1.0.0" | "\"1.0.0\""));
        match name.as_str() {
            "application/openmetrics-text" if is_ours => open = open.max(weight),
            "text/plain" => text = text.max(weight),
            _ => {}
        }
    }
    if open > 0.0 && open >= text { MetricsFormat::OpenMetrics } else { MetricsFormat::Prometheus }
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let weights = ranges(headers, ACCEPT_ENCODING);
    weights.iter().any(|range| range.name == "gzip" && range.weight > 0.0)
}

/// One entry of a header that lists what is accepted.
struct AcceptedRange {
    /// In lower case.
    name: String,
    parameters: Vec<String>,
    weight: f32,
}

fn ranges(headers: &HeaderMap, header: impl AsHeaderName) -> Vec<AcceptedRange> {
    let lines = headers.get_all(header).into_iter().filter_map(|line| line.to_str().ok());
    let entries = lines.flat_map(|line| line.split(','));
    let ranges = entries.map(|entry| {
        let mut parts = entry.split(';').map(|part| part.trim().to_ascii_lowercase());
        let name = parts.next().unwrap_or_default();
        let parameters: Vec<String> = parts.collect();
        let weight = parameters.iter().find_map(|parameter| parameter.strip_prefix("q="));
        // What is no number is not accepted.
        let weight = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        AcceptedRange { name, parameters, weight }
    });
    ranges.collect()
}

fn gzip(page: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepting(line: &'static str) -> MetricsFormat {
        format(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(line))]))
    }

    #[test]
    fn openmetrics_is_for_who_asks() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let openmetrics = [
            prometheus_2,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; q=1, text/plain",
        ];
        for line in openmetrics {
            assert_eq!(accepting(line), MetricsFormat::OpenMetrics, "{line}");
        }
        for line in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=high",
            "application/openmetrics-text;q=0.3, text/plain;q=0.5",
        ] {
            assert_eq!(accepting(line), MetricsFormat::Prometheus, "{line}");
        }
        assert_eq!(format(&HeaderMap::new()), MetricsFormat::Prometheus);
    }

    #[test]
    fn gzip_is_for_who_reads_it() {
        let accepts = |line: &'static str| {
            let line = HeaderValue::from_static(line);
            accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, line)]))
        };
        assert!(accepts("gzip"));
        assert!(accepts("deflate, GZIP;q=0.5"));
        for line in ["", "identity", "gzip;q=0", "gzip; q=0.0", "br"] {
            assert!(!accepts(line), "{line}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
