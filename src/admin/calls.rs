//! Calls as the history counts them: the numbers of one stored turn, small enough to hold many in memory.
//!
//! They come from the functions that the log, `spend` and `savings` use, so that all show the same. A summary that Plimsoll
//! wrote is a call, too, because it costs money.

use std::sync::Arc;

use foldhash::HashSet;

use crate::config::PriceList;
use crate::context::budget::HiddenInput;
use crate::context::ledger::Ledger;
use crate::context::plan::ChangeCounts;
use crate::context::policy::DecisionMode;
use crate::context::{Millis, Turn};
use crate::dialect::BilledTokens;
use crate::telemetry::FailedCall;
use crate::tokens::learn::Expert;

/// One call to a provider.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    /// When the request arrived.
    pub at: Millis,
    /// The model that answered.
    pub model: Arc<str>,
    pub upstream: Arc<str>,
    /// Whether it wrote a summary for Plimsoll.
    pub is_summary: bool,
    /// Whether it ended without the reply, and not because its client left or this process ended.
    pub has_failed: bool,
    /// Everything that is billed of it, tokens.
    pub tokens: BilledTokens,
    /// US dollars; `None` if a price of it is not known.
    pub dollars: Option<f64>,
    /// It cost something that nobody knows.
    pub is_unpriced: bool,
    /// The share of them for each model, if several were called for it.
    pub shares: Box<[(Arc<str>, f64)]>,
    /// Tokens that rewriting did not send.
    pub removed: u64,
    /// What that saved, less the cost of a broken cache, US dollars.
    pub saved: f64,
    /// Changes that are new with it and were sent.
    pub new: ChangeCounts,
    /// Whether room was made, if the window was too small.
    pub overflow: Option<bool>,
    pub check: Option<EstimateCheck>,
}

/// An estimate beside what was reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct EstimateCheck {
    /// `(estimated − reported) / reported`.
    pub ratio: f64,
    /// Whether the reported number was in the range that was predicted; `None` without such a range.
    pub in_band: Option<bool>,
    /// Half the width of that range, as a share of what was reported.
    pub band: Option<f64>,
    /// Whether what earlier replies taught corrected the count.
    pub corrected: bool,
}

/// The calls of a session since a time, oldest first.
pub(super) fn from_ledger(ledger: &Ledger, since: Millis, prices: &PriceList) -> Vec<Call> {
    // Most calls of a session name the same model.
    let mut names = HashSet::default();
    let mut calls = Vec::new();
    for turn in ledger.turns().filter(|turn| turn.at >= since) {
        calls.push(Call::from_turn(turn, ledger, prices, &mut names));
    }
    for summary in ledger.summaries(DecisionMode::Active).filter(|summary| summary.at >= since) {
        let dollars = prices.of_summary(summary);
        calls.push(Call {
            at: summary.at,
            model: interned(&mut names, &summary.model),
            upstream: interned(&mut names, &summary.upstream),
            is_summary: true,
            tokens: BilledTokens::from_usage(&summary.spent),
            dollars,
            is_unpriced: summary.spent.is_unpriced(dollars),
            ..Call::default()
        });
    }
    calls.sort_by_key(|call| call.at);
    calls
}

impl Call {
    fn from_turn(
        turn: &Turn,
        ledger: &Ledger,
        prices: &PriceList,
        names: &mut HashSet<Arc<str>>,
    ) -> Self {
        let price = prices.for_turn(turn);
        let saved = turn.savings(ledger.parent(&turn.position), price);
        let costs = turn.costs_by_model(price);
        let mut shares = Vec::new();
        if costs.len() > 1 {
            for cost in &costs {
                shares.extend(cost.dollars().map(|dollars| (interned(names, cost.model), dollars)));
            }
        }
        let money = saved.money.unwrap_or_default();
        let dollars = turn.cost(price);
        Self {
            at: turn.at,
            model: interned(names, turn.usage.served_by.as_deref().unwrap_or(turn.answered_by())),
            upstream: interned(names, &turn.upstream),
            is_summary: false,
            has_failed: turn.outcome.is_failure(),
            tokens: BilledTokens::from_usage(&turn.usage),
            dollars,
            is_unpriced: turn.usage.is_unpriced(dollars),
            shares: shares.into(),
            removed: saved.gone(),
            saved: money.saved - money.broken,
            new: if turn.done.is_sent() { turn.done.new } else { ChangeCounts::default() },
            overflow: turn.done.overflow.map(|overflow| overflow.saved),
            check: EstimateCheck::from_turn(turn),
        }
    }

    /// A call that became no turn: nothing is known of it but that it failed.
    pub(super) fn from_failure(call: &FailedCall) -> Self {
        Self {
            at: call.at,
            model: call.model.as_deref().unwrap_or("unknown").into(),
            upstream: call.upstream.as_deref().unwrap_or("none").into(),
            has_failed: true,
            ..Self::default()
        }
    }
}

impl EstimateCheck {
    /// `None` if they cannot be compared: nothing was reported, or part of the input could not be known beforehand.
    pub(super) fn from_turn(turn: &Turn) -> Option<Self> {
        let estimate = turn.estimate.as_ref()?;
        let actual = turn.usage.input.filter(|actual| *actual > 0)?;
        if HiddenInput::from_usage(&turn.usage, estimate).is_some() {
            return None;
        }
        let band = estimate.band().filter(|band| band.low < band.high);
        Some(Self {
            ratio: turn.usage.error_of(estimate.tokens)?.ratio?,
            in_band: band.map(|band| (band.low..=band.high).contains(&actual)),
            band: band.map(|band| (band.high - band.low) as f64 / 2.0 / actual as f64),
            corrected: estimate.guess.expert != Expert::Counted,
        })
    }
}

fn interned(names: &mut HashSet<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    let name: Arc<str> = name.into();
    names.insert(name.clone());
    name
}
