//! Explains one exchange: what was changed, what was not and why, and the effect on the cache.
//!
//! Uses the turn if there is one, otherwise the report of the exchange. Contains positions, sizes and rules,
//! and never text of a prompt (invariant 9).

mod text;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{compactions, view};
use crate::config::{Mode, PriceList};
use crate::context::compact::report::{CompactionReport, Compactions};
use crate::context::ledger::Ledger;
use crate::context::overflow::OverflowReport;
use crate::context::plan::{
    Change, ChangeCounts, Decision, DecisionReason, MOST_STORED_STEPS, PlanStep,
};
use crate::context::savings::ExchangeSavings;
use crate::context::{
    CountingMethod, Cut, DecisionEpoch, EstimateMethod, ExchangeId, Millis, Outcome, PromptSection,
    SessionId, SessionWitness, SketchPart, ThreadId, Turn,
};
use crate::dialect::cache::CacheMiss;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::dialect::{PartKey, Usage};
use crate::store::Scope;
use crate::telemetry::Exchange;

/// What was done to one request, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct Explanation {
    /// The id of the exchange.
    pub request: ExchangeId,
    /// The provider's request id, if it sent one: its support asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<String>,
    /// When it arrived, ms since 1970.
    pub at: Millis,
    /// The session, as the client names it.
    pub session: Option<SessionId>,
    pub thread: Option<ThreadId>,
    /// What decided which session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_by: Option<SessionWitness>,
    /// The upstream that it was sent to.
    pub upstream: Option<String>,
    /// The model that was requested.
    pub model: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// In how many of the model's last ten turns the newest call had the same result; given from four on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// The mode, which limits what may be changed.
    pub mode: Mode,
    /// Whether the session is held out for comparison.
    pub held_out: bool,
    /// Whether the request was sent with changes.
    pub sent_changed: bool,
    /// What the provider's refusal of the rewrite named, if the original was sent instead.
    pub resent: Option<RefusalCause>,
    /// What the provider's refusal of this request's new changes named, if these were revoked and the request
    /// was sent in the last accepted form.
    pub revoked: Option<RefusalCause>,
    /// The causes for which the provider refused the request, if it accepted it once they were changed.
    pub healed: Vec<RepairCause>,
    /// If the request did not fit the window: how that showed, and whether room was made.
    pub overflow: Option<OverflowReport>,
    /// The number of changes, replayed and new.
    pub made: ChangeCounts,
    /// The number of new changes.
    pub new: ChangeCounts,
    /// Tokens of tool results that were not sent, estimated.
    pub tokens_removed: u64,
    /// Tokens that a summary replaced, less its own, estimated.
    pub tokens_compacted: u64,
    /// The changes: new ones, declined ones, and replayed ones as far as they can be identified.
    pub steps: Vec<ExplainedChange>,
    /// The number of changes that are not among the steps.
    pub unlisted: u32,
    /// The compactions in its history.
    pub compactions: Compactions,
    /// The effect on the provider's cache.
    pub cache: CacheEffect,
    /// The estimate of its input; `None` if it was not read.
    pub estimate: Option<ExplainedEstimate>,
    /// The model that the reply names, if it is not called as it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
    /// What it cost, US dollars; `None` if a price of it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// What rewriting saved or cost.
    pub saved: Option<ExchangeSavings>,
}

/// One change, made or declined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ExplainedChange {
    /// The kind of change.
    pub change: Change,
    /// Whether it was made.
    pub decision: Decision,
    pub why: DecisionReason,
    /// The reason as text.
    pub rule: String,
    /// The documentation section of the rule.
    pub section: String,
    /// The index of the message in the history, from 0.
    pub message: Option<usize>,
    /// The index of the part in the message, from 0.
    pub part: Option<usize>,
    /// The first byte of the changed range, in the request as it came.
    pub byte: Option<u64>,
    /// The length in bytes before.
    pub bytes_before: Option<u64>,
    /// The length in bytes after.
    pub bytes_after: Option<u64>,
    /// Tokens before, estimated; `None` if they are not counted (reasoning). For a declined cut: what the
    /// whole batch would save.
    pub tokens_before: Option<u64>,
    /// Tokens after, estimated.
    pub tokens_after: Option<u64>,
    /// The exchange that decided it, if that was an earlier one.
    pub decided_by: Option<ExchangeId>,
}

/// The expected and the reported effect on the provider's cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct CacheEffect {
    /// The turn that it is compared with.
    pub before: Option<CacheReport>,
    /// Expected: tokens at the front of that turn's prompt that are unchanged in this one.
    pub kept: Option<u64>,
    /// All tokens of that turn's prompt.
    pub kept_of: Option<u64>,
    /// Where the first change is; `None` if nothing changed.
    pub breaks_in: Option<PromptSection>,
    /// The provider's report for this exchange.
    pub now: CacheReport,
    /// Why the cache was missed, if the provider says so.
    pub miss: Option<CacheMiss>,
}

/// A provider's report about its cache, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct CacheReport {
    /// The id of the exchange.
    pub request: ExchangeId,
    /// The whole prompt, cached or not.
    pub input: Option<u64>,
    /// Read from the cache.
    pub read: Option<u64>,
    /// Written to it.
    pub written: Option<u64>,
}

/// The estimate, and how it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct ExplainedEstimate {
    /// Input tokens, estimated.
    pub tokens: u64,
    /// How the estimate was made.
    pub method: EstimateMethod,
    /// How its new parts were counted.
    pub counting: CountingMethod,
    /// The reported tokens, if they can be compared.
    pub actual: Option<u64>,
}

impl Explanation {
    /// Explains an exchange that became a turn of this session.
    pub(crate) fn of_turn(scope: &Scope, ledger: &Ledger, turn: &Turn, prices: &PriceList) -> Self {
        let mut explained = Self::of_exchange(&view::exchange(scope, ledger, turn, prices));
        explained.compactions = compactions::of_turn(ledger, turn, prices);
        // The turn stores only its own steps: those of earlier exchanges are found again.
        explained.steps.extend(replayed(ledger, turn));
        let compacted = explained.compactions.newest().filter(|one| one.exchange != turn.exchange);
        explained.steps.extend(compacted.map(ExplainedChange::repeats));
        explained.unlisted = explained.unlisted();
        let base = turn.sketch.base.as_ref().and_then(|base| ledger.turn(base));
        let base = base.map(AsRef::as_ref).or_else(|| ledger.parent(&turn.position));
        let cache = &mut explained.cache;
        cache.before = base.map(|base| CacheReport::new(&base.exchange, &base.usage));
        // The parent is only a base if the sketch was made from it.
        if let Some(base) = base
            && Some(&base.exchange) == turn.sketch.base.as_ref()
            && let Some(sketch) = ledger.sketch(base)
        {
            let (kept, rest) = sketch.split_at(sketch.len().min(turn.sketch.kept as usize));
            cache.kept = Some(total_tokens(kept));
            cache.kept_of = Some(total_tokens(&sketch));
            cache.breaks_in = rest.first().map(|part| part.place);
        }
        explained
    }

    pub(super) fn of_exchange(exchange: &Exchange) -> Self {
        let Exchange { done, usage, .. } = exchange;
        let mut explained = Self {
            request: exchange.id.clone(),
            provider_request_id: owned(&exchange.provider_request_id),
            found_by: exchange.found_by,
            at: exchange.at,
            session: exchange.session.clone(),
            thread: exchange.thread.clone(),
            upstream: owned(&exchange.upstream),
            model: owned(&exchange.model),
            outcome: exchange.outcome,
            repeated_calls: exchange.repeated_calls,
            mode: done.mode,
            held_out: done.held_out,
            sent_changed: done.is_sent(),
            resent: done.resent,
            revoked: done.revoked,
            healed: done.healed.clone(),
            overflow: done.overflow,
            made: done.made,
            new: done.new,
            tokens_removed: done.removed().cut,
            tokens_compacted: done.removed().compacted,
            steps: done.steps.iter().map(ExplainedChange::from_step).collect(),
            unlisted: 0,
            compactions: Compactions::default(),
            cache: CacheEffect {
                now: CacheReport::new(&exchange.id, usage),
                miss: usage.cache_miss,
                ..CacheEffect::default()
            },
            estimate: exchange.estimate.as_ref().map(|estimate| ExplainedEstimate {
                tokens: estimate.tokens,
                method: estimate.method,
                counting: estimate.counting,
                actual: usage.input,
            }),
            served: owned(&exchange.served),
            dollars: exchange.dollars,
            saved: exchange.saved,
        };
        // Without a turn nothing says what was replayed.
        explained.unlisted = explained.unlisted();
        explained
    }

    fn unlisted(&self) -> u32 {
        let made = self.steps.iter().filter(|step| step.decision != Decision::Declined);
        let listed = u32::try_from(made.count()).unwrap_or(u32::MAX);
        self.made.count().saturating_sub(listed)
    }
}

fn total_tokens(parts: &[SketchPart]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}

fn owned(text: &Option<Box<str>>) -> Option<String> {
    text.as_deref().map(str::to_owned)
}

fn replayed(ledger: &Ledger, turn: &Turn) -> Vec<ExplainedChange> {
    if !turn.done.is_sent() {
        return Vec::new();
    }
    // A cut part has a key of its own in the turn's sketch, so the cuts are found there, in the sketch's order.
    // Equal parts that are stored by position have one key: each of them is taken once.
    let mut places: HashMap<PartKey, Vec<usize>> = HashMap::new();
    for (place, part) in ledger.sketch(turn).unwrap_or_default().iter().enumerate() {
        places.entry(part.key).or_default().push(place);
    }
    let mut cuts: Vec<(usize, &Cut)> = ledger
        .cuts_holding(turn.position.suspended.map(DecisionEpoch::of_suspension))
        .map(AsRef::as_ref)
        .filter(|cut| cut.exchange != turn.exchange)
        .filter_map(|cut| Some((places.get_mut(&cut.sent_key())?.pop()?, cut)))
        .collect();
    cuts.sort_by_key(|(place, _)| *place);
    cuts.truncate(MOST_STORED_STEPS);
    cuts.into_iter().map(|(_, cut)| ExplainedChange::of_replayed_cut(ledger, cut)).collect()
}

impl CacheReport {
    fn new(exchange: &ExchangeId, usage: &Usage) -> Self {
        Self {
            request: exchange.clone(),
            input: usage.input,
            read: usage.cache_read,
            written: usage.cache_write,
        }
    }
}

impl ExplainedChange {
    fn repeats(compacted: &CompactionReport) -> Self {
        let (rule, section) = compacted.why.rule();
        Self {
            change: Change::Compacted,
            decision: Decision::Replayed,
            why: compacted.why,
            rule: rule.to_owned(),
            section: section.to_owned(),
            message: Some(0),
            part: Some(0),
            byte: None,
            bytes_before: None,
            bytes_after: None,
            tokens_before: Some(compacted.tokens_before),
            tokens_after: Some(compacted.tokens_after),
            decided_by: Some(compacted.exchange.clone()),
        }
    }

    fn from_step(step: &PlanStep) -> Self {
        let (rule, section) = step.why.rule();
        // Reasoning is not counted.
        let weighed = step.tokens_before > 0 || step.tokens_after > 0;
        Self {
            change: step.change,
            decision: step.decision,
            why: step.why,
            rule: rule.to_owned(),
            section: section.to_owned(),
            message: Some(step.at.message),
            part: Some(step.at.part),
            byte: Some(step.byte),
            bytes_before: Some(step.bytes_before),
            bytes_after: Some(step.bytes_after),
            tokens_before: if weighed { Some(step.tokens_before) } else { None },
            tokens_after: if weighed { Some(step.tokens_after) } else { None },
            decided_by: None,
        }
    }

    fn of_replayed_cut(ledger: &Ledger, cut: &Cut) -> Self {
        // The position stands with the exchange that decided the cut, if that identifies it unambiguously.
        let (rule, section) = cut.why.rule();
        let decided = ledger.turn(&cut.exchange).map(|turn| &*turn.done.steps).unwrap_or_default();
        let mut fitting = decided.iter().filter(|step| {
            step.change == Change::Cut
                && step.decision == Decision::New
                && (step.why, step.tokens_before, step.tokens_after)
                    == (cut.why, u64::from(cut.was), u64::from(cut.tokens))
        });
        let step = match (fitting.next(), fitting.next()) {
            (Some(step), None) => Some(step),
            _ => None,
        };
        Self {
            change: Change::Cut,
            decision: Decision::Replayed,
            why: cut.why,
            rule: rule.to_owned(),
            section: section.to_owned(),
            message: step.map(|step| step.at.message),
            part: step.map(|step| step.at.part),
            byte: None,
            bytes_before: step.map(|step| step.bytes_before),
            bytes_after: step.map(|step| step.bytes_after),
            tokens_before: Some(cut.was.into()),
            tokens_after: Some(cut.tokens.into()),
            decided_by: Some(cut.exchange.clone()),
        }
    }
}
