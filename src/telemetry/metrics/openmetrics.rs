//! The text format of OpenMetrics 1.0, for scrapers that ask for it: as Prometheus' own, with exemplars.
//!
//! <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>. A counter's family is named
//! without `_total`; a histogram of signed values has buckets alone, because its sum may fall.

use std::fmt::Write as _;

use prometheus::proto::{Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplar, Exemplars};
use crate::telemetry::trace::push_hex;

/// All families, to the end.
pub(super) fn encode(families: &[MetricFamily], exemplars: &Exemplars) -> String {
    let mut page = OpenMetricsPage(String::with_capacity(64 * 1024));
    for family in families {
        page.push_family(family, exemplars);
    }
    page.0 += "# EOF\n";
    page.0
}

struct OpenMetricsPage(String);

impl OpenMetricsPage {
    fn push(&mut self, pieces: &[&str]) {
        pieces.iter().for_each(|piece| self.0.push_str(piece));
    }

    fn push_family(&mut self, family: &MetricFamily, exemplars: &Exemplars) {
        let name = family.name();
        let (kind, stem) = match family.get_field_type() {
            MetricType::COUNTER => ("counter", name.strip_suffix("_total").unwrap_or(name)),
            MetricType::GAUGE => ("gauge", name),
            MetricType::HISTOGRAM => ("histogram", name),
            // We have none.
            MetricType::SUMMARY | MetricType::UNTYPED => return,
        };
        self.push(&[
            "# TYPE ",
            stem,
            " ",
            kind,
            "\n# HELP ",
            stem,
            " ",
            &escaped(family.help()),
            "\n",
        ]);
        for metric in family.get_metric() {
            match family.get_field_type() {
                MetricType::COUNTER => {
                    self.push(&[stem, "_total"]);
                    self.push_labels(metric.get_label(), None);
                    self.push_number(metric.get_counter().get_value());
                }
                MetricType::HISTOGRAM => self.push_histogram(stem, metric, exemplars),
                _ => {
                    self.push(&[stem]);
                    self.push_labels(metric.get_label(), None);
                    self.push_number(metric.get_gauge().get_value());
                }
            }
        }
    }

    fn push_histogram(&mut self, name: &str, metric: &Metric, exemplars: &Exemplars) {
        let labels = metric.get_label();
        let histogram: &Histogram = metric.get_histogram();
        let label =
            |key: &str| labels.iter().find(|pair| pair.name() == key).map_or("", LabelPair::value);
        let exemplars = exemplars.of_series(name, label("upstream"), label("model"));
        let buckets = histogram.get_bucket();
        let bounds = buckets.iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        let infinite = (f64::INFINITY, histogram.get_sample_count());
        let mut is_signed = false;
        for (number, (bound, count)) in bounds.chain([infinite]).enumerate() {
            is_signed |= bound < 0.0;
            self.push(&[name, "_bucket"]);
            self.push_labels(labels, Some(bound));
            self.push(&[" ", itoa::Buffer::new().format(count)]);
            if let Some(Some(exemplar)) = exemplars.get(number) {
                self.push_exemplar(exemplar);
            }
            self.push(&["\n"]);
        }
        if is_signed {
            return;
        }
        self.push(&[name, "_sum"]);
        self.push_labels(labels, None);
        self.push_number(histogram.get_sample_sum());
        self.push(&[name, "_count"]);
        self.push_labels(labels, None);
        self.push(&[" ", itoa::Buffer::new().format(histogram.get_sample_count()), "\n"]);
    }

    fn push_labels(&mut self, labels: &[LabelPair], bound: Option<f64>) {
        let mut before = "{";
        for label in labels {
            self.push(&[before, label.name(), "=\"", &escaped(label.value()), "\""]);
            before = ",";
        }
        if let Some(bound) = bound {
            self.push(&[before, "le=\""]);
            if bound.is_infinite() {
                self.push(&["+Inf"]);
            } else {
                // With a decimal point, which OpenMetrics wants.
                let _ = write!(self.0, "{bound:?}");
            }
            self.push(&["\""]);
            before = ",";
        }
        if before == "," {
            self.push(&["}"]);
        }
    }

    /// Writes a sample's value, and ends its line.
    fn push_number(&mut self, value: f64) {
        let _ = writeln!(self.0, " {value}");
    }

    fn push_exemplar(&mut self, exemplar: &Exemplar) {
        let Exemplar { trace, span, value, at } = exemplar;
        self.push(&[" # {trace_id=\""]);
        push_hex(trace, &mut self.0);
        self.push(&["\",span_id=\""]);
        push_hex(span, &mut self.0);
        let _ = write!(self.0, "\"}} {value} {}.{:03}", at / 1000, at % 1000);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}
