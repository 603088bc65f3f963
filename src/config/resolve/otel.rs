//! Where traces, metrics and logs are sent: `[otel]`, and under it the standard `OTEL_*` variables.
//!
//! A wrong key of ours is an error like any other. A wrong variable is a warning: other programs read it too, and no
//! traffic depends on it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, Uri};

use super::{Resolver, read_certificates};
use crate::config::choices::{OtelProtocol, OtelSignal};
use crate::config::otel::{OtelSettings, OtelTarget, TraceSampler};
use crate::config::permissions;
use crate::config::raw::RawOtel;
use crate::config::settings::Secret;

/// The values that the specification of OpenTelemetry's SDKs has for what is not set.
const TIMEOUT: Duration = Duration::from_secs(10);
const SPAN_DELAY: Duration = Duration::from_secs(5);
const METRIC_INTERVAL: Duration = Duration::from_secs(60);

impl<'a> Resolver<'a> {
    pub(super) fn otel(&mut self, raw: &RawOtel) -> Option<OtelSettings> {
        if self
            .sources
            .variable("OTEL_SDK_DISABLED")
            .is_some_and(|it| it.eq_ignore_ascii_case("true"))
        {
            return None;
        }
        let headers = raw.headers.as_deref().and_then(|it| self.secret(&["otel", "headers"], it));
        let traces = self.otel_target(raw, OtelSignal::Traces, headers.as_ref());
        let metrics = self.otel_target(raw, OtelSignal::Metrics, headers.as_ref());
        let logs = self.otel_target(raw, OtelSignal::Logs, headers.as_ref());
        if let Some(sample) = raw.sample.filter(|share| !(0.0..=1.0).contains(share)) {
            let what = format!("{sample} is not from 0 to 1");
            self.wrong(&["otel", "sample"], what, "Write the share of traces, such as 0.1.");
        }
        if traces.is_none() && metrics.is_none() && logs.is_none() {
            return None;
        }
        Some(OtelSettings {
            traces,
            metrics,
            logs,
            sampler: match raw.sample {
                Some(ratio) => TraceSampler { ratio, follows_client: true },
                None => self.otel_sampler(),
            },
            propagate: raw.propagate,
            resource: self.otel_resource(),
            span_delay: self.otel_time("OTEL_BSP_SCHEDULE_DELAY", SPAN_DELAY),
            metric_interval: self.otel_time("OTEL_METRIC_EXPORT_INTERVAL", METRIC_INTERVAL),
        })
    }

    fn otel_target(
        &mut self,
        raw: &RawOtel,
        signal: OtelSignal,
        own: Option<&Secret>,
    ) -> Option<OtelTarget> {
        let name = signal.as_ref().to_ascii_uppercase();
        let exporter = self.sources.variable(&format!("OTEL_{name}_EXPORTER"));
        if !raw.signals.contains(&signal) || exporter == Some("none") {
            return None;
        }
        let protocol = match (raw.protocol, self.otel_variable(&name, "PROTOCOL")) {
            (Some(protocol), _) => protocol,
            (None, Some((_, "grpc"))) => OtelProtocol::Grpc,
            (None, None | Some((_, "http/protobuf"))) => OtelProtocol::Http,
            (None, Some((variable, other))) => {
                let warning =
                    format!("{variable}: {other:?} is not known; http/protobuf is spoken");
                self.otel_warning(warning);
                OtelProtocol::Http
            }
        };
        let url = match (&raw.endpoint, self.otel_variable(&name, "ENDPOINT")) {
            (Some(base), _) => {
                let url = otel_url(base, Some(signal), protocol);
                if url.is_none() {
                    let todo = "Write http:// or https://, host and port: http://127.0.0.1:4318.";
                    self.wrong(&["otel", "endpoint"], "is not the URL of a collector", todo);
                }
                url?
            }
            (None, Some((variable, text))) => {
                // That of one signal is used as it is.
                let signal = if variable.contains(&name) { None } else { Some(signal) };
                let url = otel_url(text, signal, protocol);
                if url.is_none() {
                    let warning =
                        format!("{variable} is not the URL of a collector; nothing is sent to it");
                    self.otel_warning(warning);
                }
                url?
            }
            (None, None) => return None,
        };
        let timeout = self.otel_variable(&name, "TIMEOUT").map(|(variable, _)| variable);
        let headers = match (own, self.otel_variable(&name, "HEADERS")) {
            (Some(own), _) => self.otel_headers("otel.headers", &own.0),
            (None, Some((variable, text))) => self.otel_headers(&variable, text),
            (None, None) => Vec::new(),
        };
        let timeout = timeout.map_or(TIMEOUT, |variable| self.otel_time(&variable, TIMEOUT));
        let gzip = self.otel_compression(&name);
        let certificate = self.otel_certificate(&name);
        Some(OtelTarget { url, protocol, headers, timeout, gzip, certificate })
    }

    fn otel_compression(&mut self, signal: &str) -> bool {
        match self.otel_variable(signal, "COMPRESSION") {
            None | Some((_, "none")) => false,
            Some((_, "gzip")) => true,
            Some((variable, other)) => {
                let warning = format!("{variable}: {other:?} is not known; nothing is compressed");
                self.otel_warning(warning);
                false
            }
        }
    }

    fn otel_certificate(&mut self, signal: &str) -> Option<PathBuf> {
        let (variable, path) = self.otel_variable(signal, "CERTIFICATE")?;
        let path = Path::new(path);
        let reason = match (read_certificates(path), permissions::writable(path)) {
            (Ok(()), None) => return Some(path.to_owned()),
            (Err(error), _) => format!("{}: {error}", path.display()),
            (Ok(()), Some(fault)) => fault.what,
        };
        self.otel_warning(format!("{variable}: {reason}; it is not trusted"));
        None
    }

    /// Once, though several signals may share a variable.
    fn otel_warning(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The variable of a signal, else that of all, with its name.
    fn otel_variable(&self, signal: &str, what: &str) -> Option<(String, &'a str)> {
        let names =
            [format!("OTEL_EXPORTER_OTLP_{signal}_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
        names.into_iter().find_map(|name| {
            let value = self.sources.variable(&name)?;
            Some((name, value))
        })
    }

    fn otel_headers(&mut self, place: &str, text: &str) -> Vec<(HeaderName, Secret)> {
        let mut headers = Vec::new();
        for (name, value) in otel_pairs(text) {
            match (name.parse(), http::HeaderValue::try_from(&value)) {
                (Ok(name), Ok(_)) => headers.push((name, Secret(value))),
                // Its value may be a secret.
                _ => self.otel_warning(format!("{place}: a header is not valid; it is not sent")),
            }
        }
        headers
    }

    fn otel_time(&mut self, variable: &str, default: Duration) -> Duration {
        let Some(text) = self.sources.variable(variable) else { return default };
        match text.parse() {
            Ok(ms) if ms > 0 => Duration::from_millis(ms),
            _ => {
                let warning = format!("{variable}: {text:?} is not a time in ms; it is ignored");
                self.otel_warning(warning);
                default
            }
        }
    }

    fn otel_sampler(&mut self) -> TraceSampler {
        let name = self.sources.variable("OTEL_TRACES_SAMPLER").unwrap_or("parentbased_always_on");
        let argument = self.sources.variable("OTEL_TRACES_SAMPLER_ARG");
        let share = argument.map_or(Some(1.0), |text| text.parse().ok());
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        let (kind, follows_client) = match name.strip_prefix("parentbased_") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let ratio = match kind {
            "always_on" => Some(1.0),
            "always_off" => Some(0.0),
            "traceidratio" => share,
            _ => None,
        };
        match ratio {
            Some(ratio) => TraceSampler { ratio, follows_client },
            None => {
                let warning = "OTEL_TRACES_SAMPLER is not known, or its ARG is not from 0 to 1; all traces are sent";
                self.wins(warning);
                TraceSampler::default()
            }
        }
    }

    /// `service.name` comes first.
    fn otel_resource(&self) -> Vec<(Box<str>, Box<str>)> {
        let attributes = self.sources.variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let mut given = otel_pairs(attributes);
        if let Some(name) = self.sources.variable("OTEL_SERVICE_NAME") {
            given.retain(|(key, _)| key != "service.name");
            given.insert(0, ("service.name".to_owned(), name.to_owned()));
        }
        for (key, value) in
            [("service.name", "plimsoll"), ("service.version", env!("CARGO_PKG_VERSION"))]
        {
            if !given.iter().any(|(known, _)| known == key) {
                given.push((key.to_owned(), value.to_owned()));
            }
        }
        given.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
    }
}

/// The whole URL. `signal`: whose path is added to a base.
fn otel_url(text: &str, signal: Option<OtelSignal>, protocol: OtelProtocol) -> Option<Uri> {
    let base: Uri = text.trim_end_matches('/').parse().ok()?;
    if !matches!(base.scheme_str(), Some("http" | "https")) || base.host().is_none_or(str::is_empty)
    {
        return None;
    }
    match (protocol, signal) {
        (OtelProtocol::Http, None) => Some(base),
        (OtelProtocol::Http, Some(signal)) => {
            format!("{}/v1/{}", text.trim_end_matches('/'), signal.as_ref()).parse().ok()
        }
        // The method stands in the path.
        (OtelProtocol::Grpc, _) => {
            format!("{}://{}", base.scheme_str()?, base.authority()?).parse().ok()
        }
    }
}

/// `key=value,key=value`, percent-encoded, as W3C's baggage writes it.
fn otel_pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.trim().to_owned(), percent_decoded(value.trim())))
        .filter(|(key, _)| !key.is_empty())
        .collect()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = if first == b'%' { after.get(..2) } else { None };
        let byte = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigSources, OtelProtocol, TraceSampler, load};

    fn resolved(variables: &[(&str, &str)]) -> (Config, Vec<String>) {
        let home = [("HOME", "/home/somebody")];
        let variables = home.iter().chain(variables);
        let variables = variables.map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let loaded = load(&ConfigSources { variables, ..ConfigSources::default() }).unwrap();
        (loaded.config, loaded.warnings)
    }

    #[test]
    fn nothing_is_sent_unless_asked() {
        assert!(resolved(&[("OTEL_SERVICE_NAME", "x")]).0.otel.is_none());
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        assert!(resolved(&[endpoint]).0.otel.is_some());
        assert!(resolved(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).0.otel.is_none());
        let none = ["OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"]
            .map(|exporter| (exporter, "none"));
        assert!(resolved(&[endpoint, none[0], none[1], none[2]]).0.otel.is_none());
        let otel = resolved(&[endpoint, none[0]]).0.otel.unwrap();
        assert!(otel.traces.is_none());
        assert_eq!(otel.metrics.unwrap().url.to_string(), "http://c:4318/v1/metrics");
        assert_eq!(otel.logs.unwrap().url.to_string(), "http://c:4318/v1/logs");
    }

    #[test]
    fn standard_variables_are_read() {
        let (config, warnings) = resolved(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://m/in"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b,x-team=c"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,k=v"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let otel = config.otel.unwrap();
        let traces = otel.traces.unwrap();
        assert_eq!(traces.url.to_string(), "http://c:4318/base/v1/traces");
        assert_eq!(traces.timeout.as_millis(), 250);
        assert_eq!(traces.headers[0].0, "x-key");
        assert_eq!(traces.headers[0].1.0, "a b");
        assert!(traces.gzip && traces.certificate.is_none());
        let metrics = otel.metrics.unwrap();
        assert_eq!(metrics.url.to_string(), "https://m/in");
        assert!(!metrics.gzip);
        assert_eq!(otel.sampler, TraceSampler { ratio: 0.25, follows_client: false });
        assert_eq!(otel.span_delay.as_millis(), 20);
        assert_eq!(otel.resource[0], ("service.name".into(), "mine".into()));
        assert_eq!(otel.resource[1], ("k".into(), "v".into()));
    }

    #[test]
    fn own_keys_come_first() {
        let (config, _) = resolved(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("PLIMSOLL_OTEL_ENDPOINT", "http://d:4317"),
            ("PLIMSOLL_OTEL_PROTOCOL", "grpc"),
            ("PLIMSOLL_OTEL_HEADERS", "x-key=secret"),
            ("PLIMSOLL_OTEL_SIGNALS", "traces"),
            ("PLIMSOLL_OTEL_SAMPLE", "0.1"),
        ]);
        let otel = config.otel.unwrap();
        assert!(otel.metrics.is_none() && otel.logs.is_none());
        assert_eq!(otel.sampler, TraceSampler { ratio: 0.1, follows_client: true });
        let traces = otel.traces.unwrap();
        assert_eq!(traces.protocol, OtelProtocol::Grpc);
        assert_eq!(traces.url.to_string(), "http://d:4317/");
        assert!(!format!("{traces:?}").contains("secret"));
    }

    #[test]
    fn wrong_variable_is_one_warning() {
        for variable in ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
            let (config, warnings) = resolved(&[(variable, "collector:4317")]);
            assert!(config.otel.is_none());
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].starts_with(variable), "{warnings:?}");
        }
    }

    #[test]
    fn certificate_that_cannot_be_used_is_one_warning() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let good = folder.path().join("good.pem");
        std::fs::write(&good, made.cert.pem()).unwrap();
        let broken = folder.path().join("broken.pem");
        std::fs::write(&broken, "none").unwrap();
        for (file, warned) in [(&good, 0), (&broken, 1), (&folder.path().join("absent"), 1)] {
            let (config, warnings) = resolved(&[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", file.to_str().unwrap()),
            ]);
            assert_eq!(warnings.len(), warned, "{warnings:?}");
            let trusted = config.otel.unwrap().traces.unwrap().certificate;
            assert_eq!(trusted.is_some(), warned == 0);
        }
    }

    #[test]
    fn wrong_key_is_one_error() {
        let variables = vec![("PLIMSOLL_OTEL_ENDPOINT".to_owned(), "collector:4317".to_owned())];
        let errors = load(&ConfigSources { variables, ..ConfigSources::default() }).unwrap_err();
        assert_eq!(errors.to_string().matches("the URL of a collector").count(), 1, "{errors}");
    }

    #[test]
    fn sampler_takes_its_share() {
        let sampler = TraceSampler { ratio: 0.25, follows_client: true };
        let trace = |first: u8| {
            let mut id = [1; 16];
            id[8] = first;
            id
        };
        assert!(sampler.samples(&trace(0x3f), None));
        assert!(!sampler.samples(&trace(0x41), None));
        assert!(sampler.samples(&trace(0x41), Some(true)));
        assert!(!sampler.samples(&trace(0), Some(false)));
        let alone = TraceSampler { follows_client: false, ..sampler };
        assert!(!alone.samples(&trace(0x41), Some(true)));
    }
}
