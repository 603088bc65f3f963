//! What happened over time: calls, tokens, dollars, errors and estimates in equal steps, and by model.
//!
//! Summed up here, from the calls that the index holds, so that a page of a month is as small as one of an hour. What is
//! missing is said (`complete_since`), never estimated.

use std::collections::{BTreeMap, BTreeSet};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::calls::Call;
use super::responses::{AdminError, AdminResponse, json, parameter, text_parameter};
use super::state::Admin;
use crate::clock::{now, wall};
use crate::context::{Millis, TenantId};
use crate::dialect::BilledTokens;
use crate::telemetry::FailedCall;

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;
const DAY: Millis = 24 * HOUR;
/// The steps of a range, the first that is long enough: at most 96 of them make a range.
const STEPS: [Millis; 6] = [15_000, MINUTE, 5 * MINUTE, 20 * MINUTE, 2 * HOUR, 8 * HOUR];
const MOST_STEPS: Millis = 96;
const SHORTEST_RANGE: Millis = 15 * MINUTE;
const LONGEST_RANGE: Millis = 30 * DAY;
/// The upper edges of the error classes, `(estimated − reported) / reported`; the last class has none.
const ERROR_EDGES: [f64; 11] =
    [-0.1, -0.05, -0.02, -0.01, -0.001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2];

/// What happened in a range of time.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct HistoryPage {
    /// The beginning of the first step, ms since 1970.
    pub since: Millis,
    /// Now.
    pub until: Millis,
    /// The length of a step, ms.
    pub step_ms: Millis,
    /// Before it, calls may be missing: too many sessions, or they are still being read.
    pub complete_since: Millis,
    /// They are still being read: the next answer has more.
    pub reading: bool,
    /// Before it, calls that were refused may be missing: nothing of them is stored.
    pub failures_since: Millis,
    /// What everybody spent today, UTC, US dollars, whatever the range.
    pub today: f64,
    pub total: HistorySums,
    /// One for each step, oldest first, those without calls too.
    pub steps: Vec<HistoryStep>,
    /// By model that answered and upstream, the dearest first.
    pub models: Vec<HistoryModel>,
    /// The upper edges of the classes of [`HistoryModel::errors`].
    pub error_edges: Vec<f64>,
    /// The upstreams of the range.
    pub upstreams: BTreeSet<String>,
    /// The tenants of the range.
    pub tenants: BTreeSet<String>,
}

/// One step.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct HistoryStep {
    /// When it begins, ms since 1970.
    pub at: Millis,
    #[serde(flatten)]
    pub sums: HistorySums,
    /// US dollars by model.
    pub dollars_by_model: BTreeMap<String, f64>,
}

/// One model behind one upstream.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct HistoryModel {
    pub model: String,
    pub upstream: String,
    #[serde(flatten)]
    pub sums: HistorySums,
    /// Estimates by class of error, one more than there are edges.
    pub errors: Vec<u64>,
}

/// The sums of some calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct HistorySums {
    /// Calls of clients, those that were refused, too.
    pub calls: u64,
    /// Those without a reply, unless the client left or Plimsoll ended.
    pub failed: u64,
    /// Sessions that they belong to.
    pub sessions: u64,
    /// Calls of our own that wrote a summary.
    pub summaries: u64,
    /// Tokens of all calls.
    #[serde(flatten)]
    pub tokens: BilledTokens,
    /// US dollars, as far as prices are known.
    pub dollars: f64,
    /// The share of `dollars` that paid for summaries.
    pub summary_dollars: f64,
    /// Calls whose price is not known.
    pub unpriced: u64,
    /// Tokens that rewriting did not send.
    pub removed: u64,
    /// What that saved, less the cost of broken caches, US dollars.
    pub saved: f64,
    /// Results that were cut for the first time.
    pub cut: u64,
    /// Pieces of reasoning that were put back for the first time.
    pub put_back: u64,
    /// Histories that were compacted.
    pub compacted: u64,
    /// Requests that did not fit and were answered, because room was made.
    pub overflows_avoided: u64,
    /// Requests that did not fit and were refused.
    pub overflows: u64,
    pub estimates: EstimateSums,
}

/// How good estimates were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct EstimateSums {
    /// Estimates that can be compared with what was reported.
    pub compared: u64,
    /// Those without any error.
    pub exact: u64,
    /// The median of the errors, without sign: a share of what was reported.
    pub median: Option<f64>,
    /// 19 of 20 errors are no larger.
    pub p95: Option<f64>,
    /// Those with a predicted range.
    pub banded: u64,
    /// Those with the reported number in that range.
    pub in_band: u64,
    /// The median of half the width of that range: a share of what was reported.
    pub band: Option<f64>,
    /// Those that were corrected by what earlier replies taught.
    pub corrected: u64,
}

/// Sums as they grow.
#[derive(Default)]
struct HistoryTally {
    sums: HistorySums,
    /// Errors without sign.
    errors: Vec<f64>,
    /// Half the widths of predicted ranges.
    bands: Vec<f64>,
    /// The last session that was counted.
    session: Option<usize>,
}

impl HistoryTally {
    /// `session`: `None` if it belongs to none that is stored.
    fn add(&mut self, call: &Call, session: Option<usize>) {
        let sums = &mut self.sums;
        if call.is_summary {
            sums.summaries += 1;
            sums.summary_dollars += call.dollars.unwrap_or(0.0);
        } else {
            sums.calls += 1;
            sums.failed += u64::from(call.has_failed);
        }
        // The calls of a session come one after another.
        if session.is_some() && self.session != session {
            self.session = session;
            sums.sessions += 1;
        }
        sums.tokens.add(&call.tokens);
        for (sum, tokens) in [
            (&mut sums.removed, call.removed),
            (&mut sums.cut, u64::from(call.new.cut)),
            (&mut sums.put_back, u64::from(call.new.put_back)),
            (&mut sums.compacted, u64::from(call.new.compacted)),
        ] {
            // A provider may report any number.
            *sum = sum.saturating_add(tokens);
        }
        sums.dollars += call.dollars.unwrap_or(0.0);
        sums.unpriced += u64::from(call.is_unpriced);
        sums.saved += call.saved;
        sums.overflows_avoided += u64::from(call.overflow == Some(true));
        sums.overflows += u64::from(call.overflow == Some(false));
        if let Some(check) = call.check {
            let estimates = &mut sums.estimates;
            estimates.compared += 1;
            estimates.exact += u64::from(check.ratio == 0.0);
            estimates.banded += u64::from(check.in_band.is_some());
            estimates.in_band += u64::from(check.in_band == Some(true));
            estimates.corrected += u64::from(check.corrected);
            self.errors.push(check.ratio.abs());
            self.bands.extend(check.band);
        }
    }

    fn finish(mut self) -> HistorySums {
        self.errors.sort_by(f64::total_cmp);
        self.bands.sort_by(f64::total_cmp);
        self.sums.estimates.band = quantile(&self.bands, 0.5);
        self.sums.estimates.median = quantile(&self.errors, 0.5);
        self.sums.estimates.p95 = quantile(&self.errors, 0.95);
        self.sums
    }
}

/// The smallest number that this share of them does not exceed.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Which calls are counted, and in which steps.
struct HistoryQuery {
    since: Millis,
    until: Millis,
    step: Millis,
    tenant: Option<String>,
    model: Option<String>,
    upstream: Option<String>,
}

impl HistoryQuery {
    fn parse(query: Option<&str>, now: Millis) -> Result<Self, AdminError> {
        let range = match parameter(query, "range") {
            None => DAY,
            Some(range) => length(range).ok_or_else(|| {
                let what = "range should be 15m to 30d: a number and m, h or d.";
                AdminError::new(StatusCode::BAD_REQUEST, "bad_query", what)
            })?,
        };
        let step = STEPS.into_iter().find(|step| range <= step * MOST_STEPS);
        let step = step.unwrap_or(8 * HOUR);
        Ok(Self {
            // Steps begin at whole multiples, so that the same step has the same calls in every answer.
            since: (now - range.min(now)).next_multiple_of(step),
            until: now,
            step,
            tenant: text_parameter(query, "tenant"),
            model: text_parameter(query, "model"),
            upstream: text_parameter(query, "upstream"),
        })
    }

    fn has(&self, call: &Call) -> bool {
        (self.since..=self.until).contains(&call.at)
            && self.model.as_deref().is_none_or(|model| *call.model == *model)
            && self.upstream.as_deref().is_none_or(|upstream| *call.upstream == *upstream)
    }
}

fn length(range: &str) -> Option<Millis> {
    let (number, unit) = range.split_at_checked(range.len().checked_sub(1)?)?;
    let unit = match unit {
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        _ => return None,
    };
    let range = number.parse::<Millis>().ok()?.checked_mul(unit)?;
    if (SHORTEST_RANGE..=LONGEST_RANGE).contains(&range) { Some(range) } else { None }
}

/// Steps and models as they grow.
struct History {
    query: HistoryQuery,
    total: HistoryTally,
    steps: Vec<HistoryTally>,
    dollars: Vec<BTreeMap<String, f64>>,
    models: BTreeMap<(String, String), (HistoryTally, Vec<u64>)>,
    upstreams: BTreeSet<String>,
    tenants: BTreeSet<String>,
}

impl History {
    fn new(query: HistoryQuery) -> Self {
        let steps = (query.until.saturating_sub(query.since) / query.step + 1) as usize;
        Self {
            query,
            total: HistoryTally::default(),
            steps: (0..steps).map(|_| HistoryTally::default()).collect(),
            dollars: vec![BTreeMap::new(); steps],
            models: BTreeMap::new(),
            upstreams: BTreeSet::new(),
            tenants: BTreeSet::new(),
        }
    }

    fn add(&mut self, call: &Call, session: Option<usize>) {
        let step = ((call.at - self.query.since) / self.query.step) as usize;
        self.total.add(call, session);
        if let Some(tally) = self.steps.get_mut(step) {
            tally.add(call, session);
        }
        if let Some(dollars) = self.dollars.get_mut(step) {
            let whole_price = [(call.model.clone(), call.dollars.unwrap_or(0.0))];
            let shares = if call.shares.is_empty() { &whole_price[..] } else { &call.shares };
            for (model, share) in shares.iter().filter(|(_, share)| *share > 0.0) {
                *dollars.entry(model.to_string()).or_default() += share;
            }
        }
        self.add_to_models(call, session);
        self.upstreams.insert(call.upstream.to_string());
    }

    fn add_to_models(&mut self, call: &Call, session: Option<usize>) {
        let (tally, errors) = self.model(&call.model, &call.upstream);
        tally.add(call, session);
        if let Some(check) = call.check {
            errors[ERROR_EDGES.partition_point(|edge| *edge < check.ratio)] += 1;
        }
        if call.shares.is_empty() {
            return;
        }
        // Each model has its own share of the money.
        tally.sums.dollars -= call.dollars.unwrap_or(0.0);
        for (model, share) in &call.shares {
            self.model(model, &call.upstream).0.sums.dollars += share;
        }
    }

    fn model(&mut self, name: &str, upstream: &str) -> &mut (HistoryTally, Vec<u64>) {
        let model = self.models.entry((name.to_owned(), upstream.to_owned()));
        model.or_insert_with(|| (HistoryTally::default(), vec![0; ERROR_EDGES.len() + 1]))
    }

    fn add_failures(&mut self, failures: Vec<FailedCall>) {
        for failure in failures {
            let wanted = self.query.tenant.as_deref();
            if wanted.is_some() && failure.tenant.as_ref().map(TenantId::as_str) != wanted {
                continue;
            }
            let call = Call::from_failure(&failure);
            if self.query.has(&call) {
                self.add(&call, None);
            }
        }
    }

    fn page(self) -> HistoryPage {
        let HistoryQuery { since, until, step, .. } = self.query;
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut time = since;
        for (tally, dollars_by_model) in self.steps.into_iter().zip(self.dollars) {
            steps.push(HistoryStep { at: time, sums: tally.finish(), dollars_by_model });
            time += step;
        }
        let models = self.models.into_iter();
        let models = models.map(|((model, upstream), (tally, errors))| HistoryModel {
            model,
            upstream,
            sums: tally.finish(),
            errors,
        });
        let mut models: Vec<HistoryModel> = models.collect();
        models.sort_by(|one, other| other.sums.dollars.total_cmp(&one.sums.dollars));
        HistoryPage {
            since,
            until,
            step_ms: step,
            total: self.total.finish(),
            steps,
            models,
            error_edges: ERROR_EDGES.to_vec(),
            upstreams: self.upstreams,
            tenants: self.tenants,
            ..HistoryPage::default()
        }
    }
}

pub(super) async fn answer(admin: &Admin, request: &Request<Incoming>) -> AdminResponse {
    let query = HistoryQuery::parse(request.uri().query(), wall())?;
    let index = admin.index.refreshed(&admin.ledgers, &admin.prices).await?;
    let mut history = History::new(query);
    for (number, (scope, session)) in index.sessions.iter().enumerate() {
        if history.query.tenant.as_deref().is_some_and(|tenant| *tenant != *scope.tenant.as_str()) {
            continue;
        }
        for call in &session.calls {
            if history.query.has(call) {
                history.add(call, Some(number));
                history.tenants.insert(scope.tenant.to_string());
            }
        }
    }
    let complete_since = index.complete_since();
    let reading = index.is_reading();
    drop(index);
    history.add_failures(admin.telemetry.failures(history.query.since));
    let failures_since = admin.telemetry.failures_complete_since();
    let today = admin.ledgers.today(now()).await.dollars;
    Ok(json(&HistoryPage { complete_since, reading, failures_since, today, ..history.page() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_few_steps() {
        let now = 1_800_000_000_123;
        for (range, step) in [
            ("15m", 15_000),
            ("1h", MINUTE),
            ("6h", 5 * MINUTE),
            ("1d", 20 * MINUTE),
            ("7d", 2 * HOUR),
            ("30d", 8 * HOUR),
        ] {
            let query = HistoryQuery::parse(Some(&format!("range={range}")), now).unwrap();
            assert_eq!(query.step, step, "{range}");
            assert_eq!(query.since % step, 0);
            let steps = History::new(query).steps.len();
            assert!((45..=96).contains(&steps), "{range}: {steps}");
        }
        for wrong in ["14m", "31d", "1w", "m", "", "-1h", "ü"] {
            assert!(HistoryQuery::parse(Some(&format!("range={wrong}")), now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantiles_are_values() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.95), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.95), Some(95.0));
    }
}
