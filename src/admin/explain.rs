//! One exchange explained: what was changed, what was not and why, what that did to the cache.
//!
//! Tally of the turn where there is one, else of what was told. Holds places, sizes and rules, and
//! never a word of a prompt (invariant 9).

mod text;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::compactions;
use super::prices::PriceList;
use crate::config::Mode;
use crate::context::compact::report::{CompactionReport, Compactions};
use crate::context::ledger::Ledger;
use crate::context::overflow::OverflowReport;
use crate::context::plan::{
    Change, ChangeCounts, Decision, DecisionReason, MOST_TOLD, PlanStep, RewriteSummary,
};
use crate::context::savings::{ExchangeSavings, SavingsInput};
use crate::context::{
    CountingMethod, Cut, Estimate, EstimateMethod, ExchangeId, Millis, Outcome, PromptSection,
    SessionId, ThreadId, Turn,
};
use crate::dialect::cache::CacheMiss;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::dialect::{PartKey, Usage};
use crate::telemetry::Exchange;

/// What was done to one request, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The exchange.
    pub request: ExchangeId,
    /// The provider's id of it, where it gave one: what its support asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<String>,
    /// When it arrived, ms since 1970.
    pub at: Millis,
    /// The session, as the client names it.
    pub session: Option<SessionId>,
    /// The thread.
    pub thread: Option<ThreadId>,
    /// Where it went.
    pub upstream: Option<String>,
    /// The model that was asked.
    pub model: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// In how many of the model's last ten turns the newest call had the same result, from four on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// How far we might go.
    pub mode: Mode,
    /// The session is held out for comparison.
    pub held_out: bool,
    /// Whether what was changed is on the wire.
    pub sent_changed: bool,
    /// The provider refused the rewrite, naming this; the original was sent in its place.
    pub resent: Option<RefusalCause>,
    /// The provider refused what was decided for the request, naming this; that was taken back, and the
    /// request sent as those before it were.
    pub taken_back: Option<RefusalCause>,
    /// The provider refused the request for these, and took it with them changed.
    pub healed: Vec<RepairCause>,
    /// The window was not large enough: how that showed, and whether room was made.
    pub overflow: Option<OverflowReport>,
    /// How many changes were made, replayed and new.
    pub made: ChangeCounts,
    /// How many of them are new.
    pub new: ChangeCounts,
    /// Tokens of tool results that were not sent, estimated.
    pub tokens_removed: u64,
    /// Tokens that a summary took the place of, less its own, estimated.
    pub tokens_compacted: u64,
    /// Each change: new ones, refused ones, and replayed ones as far as they can be told apart.
    pub steps: Vec<ExplainedChange>,
    /// Changes that were made and are not among the steps.
    pub unlisted: u32,
    /// The compactions that its history rests on.
    pub compactions: Compactions,
    /// What became of the provider's cache.
    pub cache: CacheEffect,
    /// What was predicted.
    pub estimate: Option<ExplainedEstimate>,
    /// What rewriting did for it.
    pub saved: Option<ExchangeSavings>,
}

/// One change, made or refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedChange {
    /// What.
    pub change: Change,
    /// Whether.
    pub decision: Decision,
    /// Why.
    pub why: DecisionReason,
    /// The same in words.
    pub rule: String,
    /// Where the rule comes from.
    pub section: String,
    /// The message of the history, counted from 0.
    pub message: Option<usize>,
    /// The part of the message, counted from 0.
    pub part: Option<usize>,
    /// The first byte of what is changed, in the request as it came.
    pub byte: Option<u64>,
    /// Bytes there before.
    pub bytes_before: Option<u64>,
    /// Bytes there after.
    pub bytes_after: Option<u64>,
    /// Tokens before, estimated; `None` where they are not weighed (reasoning). Of a refused cut:
    /// what it would save, with all that would have been cut beside it.
    pub tokens_before: Option<u64>,
    /// Tokens after, estimated.
    pub tokens_after: Option<u64>,
    /// The exchange that decided it, where that was another.
    pub decided_by: Option<ExchangeId>,
}

/// Expected and reported effect on the provider's cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheEffect {
    /// The turn that it is compared with.
    pub before: Option<CacheReport>,
    /// Expected: tokens of that turn's prompt that stand unchanged at the front of this one.
    pub kept: Option<u64>,
    /// Of how many.
    pub kept_of: Option<u64>,
    /// Where the first change is; `None` where nothing changed.
    pub breaks_in: Option<PromptSection>,
    /// Reported of this exchange.
    pub now: CacheReport,
    /// Why the provider says it was missed, where it says.
    pub miss: Option<CacheMiss>,
}

/// What a provider reported of its cache, tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// The exchange.
    pub request: ExchangeId,
    /// The whole prompt.
    pub input: Option<u64>,
    /// Read from the cache.
    pub read: Option<u64>,
    /// Written to it.
    pub written: Option<u64>,
}

/// What was predicted, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedEstimate {
    /// Input tokens.
    pub tokens: u64,
    /// How the estimate was made.
    pub method: EstimateMethod,
    /// How its new parts were counted.
    pub counting: CountingMethod,
    /// What was reported, where it can be compared.
    pub actual: Option<u64>,
}

impl Explanation {
    /// Of an exchange that became a turn of this session.
    pub fn of_turn(session: &SessionId, ledger: &Ledger, turn: &Turn, prices: &PriceList) -> Self {
        let parent = turn.position.parent.as_ref().and_then(|parent| ledger.turn(parent));
        let price = prices.price(&turn.upstream, &turn.model);
        let exchanged = SavingsInput::of(turn, parent.map(AsRef::as_ref), price);
        let mut explained = Self {
            provider_request_id: turn.provider_request_id.as_deref().map(str::to_owned),
            repeated_calls: turn.repeated_calls,
            session: Some(session.clone()),
            thread: Some(turn.position.thread.clone()),
            upstream: Some(turn.upstream.to_string()),
            model: Some(turn.model.to_string()),
            saved: Some(exchanged.saved()),
            compactions: compactions::of_turn(ledger, turn, prices),
            ..Self::of(
                &turn.exchange,
                turn.at,
                turn.outcome,
                &turn.done,
                &turn.usage,
                turn.estimate.as_ref(),
            )
        };
        explained.steps.extend(replayed(ledger, turn));
        let compacted = explained.compactions.newest().filter(|one| one.exchange != turn.exchange);
        explained.steps.extend(compacted.map(ExplainedChange::repeats));
        explained.unlisted = explained.unlisted();
        let base = turn.sketch.base.as_ref().and_then(|base| ledger.turn(base)).or(parent);
        let cache = &mut explained.cache;
        cache.before = base.map(|base| CacheReport::of(&base.exchange, &base.usage));
        if let Some(sketch) = base
            .filter(|base| Some(&base.exchange) == turn.sketch.base.as_ref())
            .and_then(|base| ledger.sketch(base))
        {
            let (kept, rest) = sketch.split_at(sketch.len().min(turn.sketch.kept as usize));
            let sum = |parts: &[_]| parts.iter().map(tokens_of).sum::<u64>();
            cache.kept = Some(sum(kept));
            cache.kept_of = Some(sum(&sketch));
            cache.breaks_in = rest.first().map(|part| part.place);
        }
        explained
    }

    /// Of an exchange that became none: refused, cut short, or not understood.
    pub fn of_exchange(exchange: &Exchange) -> Self {
        let word = |word: &Option<Box<str>>| word.as_deref().map(str::to_owned);
        let (done, usage) = (&exchange.done, &exchange.usage);
        let mut explained = Self {
            provider_request_id: word(&exchange.provider_request_id),
            repeated_calls: exchange.repeated_calls,
            session: exchange.session.clone(),
            thread: exchange.thread.clone(),
            upstream: word(&exchange.upstream),
            model: word(&exchange.model),
            saved: exchange.saved,
            ..Self::of(
                &exchange.id,
                exchange.at,
                exchange.outcome,
                done,
                usage,
                exchange.estimate.as_ref(),
            )
        };
        explained.unlisted = explained.unlisted();
        explained
    }

    fn of(
        exchange: &ExchangeId,
        at: Millis,
        outcome: Outcome,
        done: &RewriteSummary,
        usage: &Usage,
        estimate: Option<&Estimate>,
    ) -> Self {
        let actual = usage.input;
        let estimate = estimate.map(|estimate| ExplainedEstimate {
            tokens: estimate.tokens,
            method: estimate.method,
            counting: estimate.counting,
            actual,
        });
        let now = CacheReport::of(exchange, usage);
        Self {
            request: exchange.clone(),
            provider_request_id: None,
            at,
            session: None,
            thread: None,
            upstream: None,
            model: None,
            outcome,
            repeated_calls: None,
            mode: done.mode,
            held_out: done.held_out,
            sent_changed: done.is_sent(),
            resent: done.resent,
            taken_back: done.taken_back,
            healed: done.healed.clone(),
            overflow: done.overflow,
            made: done.made,
            new: done.new,
            tokens_removed: done.tokens_removed,
            tokens_compacted: done.tokens_compacted,
            steps: done.steps.iter().map(ExplainedChange::of).collect(),
            unlisted: 0,
            compactions: Compactions::default(),
            cache: CacheEffect { now, miss: usage.cache_miss, ..CacheEffect::default() },
            estimate,
            saved: None,
        }
    }

    fn unlisted(&self) -> u32 {
        let made = self.steps.iter().filter(|step| step.decision != Decision::Refused);
        let listed = u32::try_from(made.count()).unwrap_or(u32::MAX);
        self.made.count().saturating_sub(listed)
    }
}

fn tokens_of(part: &crate::context::SketchPart) -> u64 {
    u64::from(part.tokens)
}

/// The cuts of earlier exchanges that this turn repeated. A cut part stands in the turn's sketch
/// under a key of its own, so they are found there, and in its order; those that are kept by their place
/// (a call whose id is not its own) are not, and neither is anything that was not sent.
fn replayed(ledger: &Ledger, turn: &Turn) -> Vec<ExplainedChange> {
    if !turn.done.is_sent() {
        return Vec::new();
    }
    let sent = ledger.sketch(turn).unwrap_or_default();
    let places: HashMap<PartKey, usize> = sent.iter().map(|part| part.key).zip(0..).collect();
    let mut cuts: Vec<(usize, &Cut)> = ledger
        .cuts_holding(turn.position.suspended)
        .map(AsRef::as_ref)
        .filter(|cut| cut.exchange != turn.exchange)
        .filter_map(|cut| Some((*places.get(&cut.about.cut())?, cut)))
        .collect();
    cuts.sort_by_key(|(place, _)| *place);
    cuts.truncate(MOST_TOLD);
    cuts.into_iter().map(|(_, cut)| ExplainedChange::again(ledger, cut)).collect()
}

impl CacheReport {
    fn of(exchange: &ExchangeId, usage: &Usage) -> Self {
        Self {
            request: exchange.clone(),
            input: usage.input,
            read: usage.cache_read,
            written: usage.cache_write,
        }
    }
}

impl ExplainedChange {
    /// A summary that an earlier exchange took into use.
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

    fn of(step: &PlanStep) -> Self {
        let (rule, section) = step.why.rule();
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
            tokens_before: weighed.then_some(step.tokens_before),
            tokens_after: weighed.then_some(step.tokens_after),
            decided_by: None,
        }
    }

    /// A cut that was decided earlier; its place, if the exchange that decided it tells it apart.
    fn again(ledger: &Ledger, cut: &Cut) -> Self {
        let (rule, section) = cut.why.rule();
        let decided = ledger.turn(&cut.exchange).map(|turn| &*turn.done.steps).unwrap_or_default();
        let mut fitting = decided.iter().filter(|step| {
            step.change == Change::Cut
                && step.decision == Decision::New
                && (step.why, step.tokens_before, step.tokens_after)
                    == (cut.why, u64::from(cut.was), u64::from(cut.tokens))
        });
        let step = fitting.next().filter(|_| fitting.next().is_none());
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
