//! Savings compared with sums computed by hand, and cases in which rewriting costs more than it saves.

use super::*;
use crate::context::plan::{Change, Decision, DecisionReason, PlanStep};
use crate::dialect::Attempt;
use crate::dialect::models::Rates;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::{PartIndex, Span};

/// Anthropic's ratios at 10 dollars a million: a read costs a tenth, a write a quarter more.
const PRICE: Price =
    Price::from_rates(Rates { input: 10.0, output: 50.0, cache_read: 1.0, cache_write: 12.5 });

fn cut(why: DecisionReason, decision: Decision, tokens: u64) -> PlanStep {
    let declined =
        PlanStep::declined(Change::Cut, why, PartIndex::new(1, 0), Span::new(0, 1), tokens);
    PlanStep { decision, tokens_after: 0, ..declined }
}

fn usage(input: u64, read: u64, write: u64) -> Usage {
    Usage {
        input: Some(input),
        output: Some(1_000),
        cache_read: Some(read),
        cache_write: Some(write),
        ..Usage::default()
    }
}

fn summary_costs(spent: &Usage) -> SummaryCosts {
    SummaryCosts::from_usage(spent, cost::call(spent, &PRICE, Dialect::Anthropic, 0))
}

fn saved(done: &RewriteSummary, usage: &Usage, before: Option<&Usage>) -> ExchangeSavings {
    exchanged(done, usage, before).saved()
}

fn exchanged<'a>(
    done: &'a RewriteSummary,
    usage: &'a Usage,
    before: Option<&'a Usage>,
) -> SavingsInput<'a> {
    let (dialect, price, window) = (Dialect::Anthropic, Some(PRICE), 200_000);
    let spent = cost::call(usage, &PRICE, dialect, 0);
    let (counted, estimate) = (None, None);
    SavingsInput { done, usage, counted, estimate, before, window, price, spent, dialect, at: 0 }
}

fn near(is: f64, wanted: f64) {
    assert!((is - wanted).abs() < 1e-9, "{is} is not {wanted}");
}

/// The example of `docs/protocols.md` 7.4: of 100k in the cache 20k are kept before the cut, 30k go, and
/// 50k behind it are written again: (T−R)·(w−r) against R·r a turn.
#[test]
fn cut_in_warm_cache_costs_first_and_saves_later() {
    let before = usage(100_000, 90_000, 10_000);
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::PaysBack, Decision::New, 30_000)],
        Mode::Active,
    );
    let first = saved(&done, &usage(72_000, 20_000, 52_000), Some(&before));
    assert_eq!(first.removed, 30_000);
    assert_eq!(first.reprocessed, 50_000);
    let money = first.money.unwrap();
    near(money.saved, 0.03);
    near(money.broken, 50_000.0 * (12.5 - 1.0) / 1e6);
    near(money.spent, 0.02 + 52_000.0 * 12.5 / 1e6 + 0.05);
    assert!(money.net() < 0.0);

    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::PaysBack, Decision::Replayed, 30_000)],
        Mode::Active,
    );
    let later = saved(&done, &usage(74_000, 72_000, 2_000), Some(&usage(72_000, 20_000, 52_000)));
    assert_eq!(later.removed, 30_000);
    assert_eq!(later.reprocessed, 0);
    near(later.money.unwrap().net(), 0.03);
}

/// A cold cache loses its content anyway. If something was read, it was not cold, and what broke counts.
#[test]
fn cut_in_cold_cache_breaks_nothing_and_saves_write() {
    let before = usage(100_000, 90_000, 10_000);
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::ColdCache, Decision::New, 30_000)],
        Mode::Active,
    );
    let cold = saved(&done, &usage(72_000, 0, 72_000), Some(&before));
    assert_eq!(cold.reprocessed, 0);
    near(cold.money.unwrap().net(), 30_000.0 * 12.5 / 1e6);
    let warm = saved(&done, &usage(72_000, 20_000, 52_000), Some(&before));
    assert_eq!(warm.reprocessed, 50_000);
    // A cut under pressure does not depend on a cold cache, so what was not read counts as our loss.
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::Pressure, Decision::New, 30_000)],
        Mode::Active,
    );
    assert_eq!(saved(&done, &usage(72_000, 0, 72_000), Some(&before)).reprocessed, 70_000);
}

/// Other sessions share system prompt and tools and keep them in the cache. If no more than these was read, the history
/// was not in the cache.
#[test]
fn cached_heads_of_other_sessions_do_not_count_as_history() {
    let before = usage(100_000, 90_000, 10_000);
    let head = |tokens: u64| {
        let breakdown =
            crate::context::Breakdown { system: 12_000, tools: tokens - 12_000, ..<_>::default() };
        Some(Estimate { breakdown, ..estimate(72_000, 1_000, 0).unwrap() })
    };
    let money = |decision, estimate: Option<Estimate>| {
        let done = RewriteSummary::from_steps(
            &[cut(DecisionReason::ColdCache, decision, 30_000)],
            Mode::Active,
        );
        let usage = usage(72_000, 20_000, 52_000);
        let judged =
            SavingsInput { estimate: estimate.as_ref(), ..exchanged(&done, &usage, Some(&before)) };
        judged.saved().money.unwrap()
    };
    for decision in [Decision::New, Decision::Replayed] {
        let cold = money(decision, head(20_000));
        near(cold.saved, 30_000.0 * 12.5 / 1e6);
        near(cold.broken, 0.0);
        // More was read than these, so it was history: without the cut, the cut part would have been read, too.
        near(money(decision, head(19_999)).saved, 0.03);
        near(money(decision, None).saved, 0.03);
    }
    near(money(Decision::New, head(19_999)).broken, 50_000.0 * 11.5 / 1e6);
}

/// The oldest cut precedes everything that could be cached, so nothing is read. Without the cut all would have been
/// read, so the saving is the price of a read.
#[test]
fn cut_that_breaks_whole_cache_saves_read_and_no_write() {
    let before = usage(100_000, 90_000, 10_000);
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::Pressure, Decision::New, 60_000)],
        Mode::Active,
    );
    let money = saved(&done, &usage(42_000, 0, 42_000), Some(&before)).money.unwrap();
    near(money.saved, 0.06);
    near(money.broken, 40_000.0 * 11.5 / 1e6);
    // If the turn before left nothing in the cache, nothing broke.
    let nothing = usage(100_000, 0, 0);
    let money = saved(&done, &usage(42_000, 0, 42_000), Some(&nothing)).money.unwrap();
    near(money.saved, 60_000.0 * 12.5 / 1e6);
    near(money.broken, 0.0);
}

#[test]
fn cut_at_birth_breaks_no_cache() {
    let before = usage(50_000, 50_000, 0);
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::TooLarge, Decision::New, 30_000)],
        Mode::Active,
    );
    let born = saved(&done, &usage(52_000, 50_000, 2_000), Some(&before));
    assert_eq!(born.removed, 30_000);
    assert_eq!(born.reprocessed, 0);
    near(born.money.unwrap().saved, 30_000.0 * 12.5 / 1e6);
}

#[test]
fn unsent_changes_save_nothing() {
    let before = usage(100_000, 90_000, 10_000);
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::Always, Decision::New, 30_000)],
        Mode::Shadow,
    );
    let shadow = saved(&done, &usage(102_000, 100_000, 2_000), Some(&before));
    assert_eq!(shadow.removed, 0);
    assert_eq!(shadow.in_shadow, 30_000);
    assert_eq!(shadow.reprocessed, 0);
    near(shadow.money.unwrap().net(), 0.0);
    let done = RewriteSummary { mode: Mode::Active, resent: Some(RefusalCause::Structure), ..done };
    let resent = saved(&done, &usage(102_000, 100_000, 2_000), Some(&before));
    assert_eq!(resent.removed, 0);
    assert_eq!(resent.in_shadow, 0);
    assert_eq!(resent.reprocessed, 0);
}

/// If caching is automatic and writes are not reported, the whole earlier prompt was in the cache.
#[test]
fn automatic_caches_hold_whole_prompt() {
    let before = Usage { cache_write: None, ..usage(100_000, 90_000, 0) };
    let now = Usage { cache_write: None, ..usage(72_000, 20_480, 0) };
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::Always, Decision::New, 30_000)],
        Mode::Active,
    );
    let price = Some(Price { cache_write: 0.0, ..PRICE });
    let dialect = Dialect::OpenaiChat;
    let saved = SavingsInput { price, dialect, ..exchanged(&done, &now, Some(&before)) }.saved();
    assert_eq!(saved.reprocessed, 100_000 - 30_000 - 20_480);
    near(saved.money.unwrap().broken, 49_520.0 * 9.0 / 1e6);
}

#[test]
fn long_lived_cache_writes_cost_more() {
    let long = Usage { cache_write_long: Some(1_000), ..usage(2_000, 0, 2_000) };
    let spent = cost::call(&long, &PRICE, Dialect::Anthropic, 0).unwrap();
    near(spent, (1_000.0 * 12.5 + 1_000.0 * 20.0) / 1e6 + 0.05);
}

/// Each call costs what its model costs, and what the provider does not bill costs nothing.
#[test]
fn billed_call_costs_its_models_price() {
    let advice =
        Attempt { model: Some("dear".into()), usage: usage(1_000, 0, 0), ..<_>::default() };
    let price = |model: &str| {
        let factor = if model == "dear" { 10.0 } else { 1.0 };
        (model != "unheard").then_some(Price { input: PRICE.input * factor, ..PRICE })
    };
    let spent =
        |usage: &Usage, model: &str| cost::billed(usage, model, Dialect::Anthropic, 0, price);
    let one = cost::call(&usage(1_000, 0, 0), &PRICE, Dialect::Anthropic, 0).unwrap();
    let mut both = Usage { attempts: vec![advice], ..usage(1_000, 0, 0) };
    near(spent(&both, "m").unwrap(), 2.0 * one + 9.0 * PRICE.input / 1e3);
    assert_eq!(spent(&both, "unheard"), None);
    both.served_by = Some("dear".into());
    near(spent(&both, "unheard").unwrap(), 2.0 * one + 18.0 * PRICE.input / 1e3);
    let refused = Usage { unbilled: true, ..usage(1_000, 0, 0) };
    assert_eq!(spent(&refused, "m"), Some(0.0));
}

/// Without a price or report no money is counted, and a contradictory report does not break the sum.
#[test]
fn unknown_prices_and_impossible_usage_do_not_break_savings() {
    assert_eq!(cost::call(&Usage::default(), &PRICE, Dialect::Gemini, 0), None);
    let odd = usage(10, u64::MAX, u64::MAX);
    assert!(cost::call(&odd, &PRICE, Dialect::Anthropic, 0).unwrap().is_finite());
    let mut savings = Savings::default();
    assert_eq!(savings.removed_share, None);
    savings.add(&ExchangeSavings { removed: 30, sent: 70, ..ExchangeSavings::default() });
    let money = Some(Money { spent: 3.0, saved: 1.0, broken: 2.0 });
    savings.add(&ExchangeSavings { sent: u64::MAX, money, ..ExchangeSavings::default() });
    assert_eq!(savings.turns, 2);
    assert_eq!(savings.pruned_turns, 1);
    assert_eq!(savings.priced_turns, 1);
    assert_eq!(savings.sent, u64::MAX);
    assert_eq!(savings.net, -1.0);
}

/// The provider's count of the original request is compared with what we claim was removed.
#[test]
fn provider_count_checks_savings() {
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::ColdCache, Decision::Replayed, 30_000)],
        Mode::Active,
    );
    let (sent, mut counted) =
        (usage(72_000, 0, 0), ProviderCount { of_original: true, tokens: 101_500 });
    let of = |done: &RewriteSummary, sent: &Usage, counted| {
        SavingsInput { counted, ..exchanged(done, sent, None) }.saved()
    };
    let mut savings = Savings::default();
    savings.add(&of(&done, &sent, Some(counted)));
    savings.add(&of(&done, &sent, None));
    let checked = ClaimCheck { turns: 1, claimed: 30_000, came: 101_500, sent: 72_000 };
    assert_eq!(savings.checked, checked);
    assert_eq!(savings.checked.saved(), 29_500);
    // Exchanges that were not rewritten, not reported, or counted as they were sent check nothing.
    assert_eq!(of(&RewriteSummary::default(), &sent, Some(counted)).came, None);
    assert_eq!(of(&done, &Usage::default(), Some(counted)).came, None);
    counted.of_original = false;
    assert_eq!(of(&done, &sent, Some(counted)).came, None);
}

/// Tokens that the provider no longer counts were cut or replaced by a summary: the claim includes both.
#[test]
fn provider_count_checks_savings_of_summary_too() {
    let swap = PlanStep {
        change: Change::Compacted,
        tokens_after: 1_000,
        ..cut(DecisionReason::Threshold, Decision::Replayed, 81_000)
    };
    let steps = [swap, cut(DecisionReason::Pressure, Decision::Replayed, 30_000)];
    let done = RewriteSummary::from_steps(&steps, Mode::Active);
    let (sent, counted) =
        (usage(40_000, 0, 0), Some(ProviderCount { of_original: true, tokens: 150_000 }));
    let mut savings = Savings::default();
    savings.add(&SavingsInput { counted, ..exchanged(&done, &sent, None) }.saved());
    let checked = ClaimCheck { turns: 1, claimed: 110_000, came: 150_000, sent: 40_000 };
    assert_eq!(savings.checked, checked);
    assert_eq!(savings.checked.saved(), 110_000);
    assert_eq!(savings.removed, 30_000);
    assert_eq!(savings.summaries.tokens_compacted, 80_000);
}

/// What a summary replaced is saved on each turn that would have fit without it. A new summary breaks the cache.
#[test]
fn summary_is_credited_for_what_it_took_place_of() {
    let swap = PlanStep {
        change: Change::Compacted,
        tokens_after: 1_000,
        ..cut(DecisionReason::Threshold, Decision::New, 81_000)
    };
    let first = RewriteSummary::from_steps(std::slice::from_ref(&swap), Mode::Active);
    let before = usage(100_000, 90_000, 10_000);
    let new = saved(&first, &usage(21_000, 5_000, 16_000), Some(&before));
    assert_eq!(new.compacted, 80_000);
    assert_eq!(new.removed, 0);
    assert_eq!(new.reprocessed, 15_000);
    near(new.money.unwrap().net(), 0.08 - 15_000.0 * 11.5 / 1e6);
    let later = RewriteSummary::from_steps(
        &[PlanStep { decision: Decision::Replayed, ..swap }],
        Mode::Active,
    );
    near(saved(&later, &usage(23_000, 21_000, 2_000), None).money.unwrap().net(), 0.08);
    // Without the summary the request would not have fit, so nothing could have been paid for it.
    let large = saved(&later, &usage(123_000, 121_000, 2_000), None);
    assert_eq!(large.compacted, 80_000);
    near(large.money.unwrap().net(), 0.0);
    let mut savings = Savings::default();
    savings.add(&later_saved(&later));
    savings.wrote(summary_costs(&usage(100_000, 90_000, 0)));
    assert_eq!(savings.summaries.tokens_compacted, 80_000);
    near(savings.net, 0.08 - 0.24);
}

fn later_saved(done: &RewriteSummary) -> ExchangeSavings {
    saved(done, &usage(23_000, 21_000, 2_000), None)
}

/// A turn with these rewrites, this estimate and this usage.
fn turn(done: RewriteSummary, estimate: Option<Estimate>, usage: Usage) -> Turn {
    let zero = "0".repeat(32);
    let turn: Turn = serde_json::from_value(serde_json::json!({
        "exchange": "q", "position": {"thread": "t", "chain": zero, "last": null, "system": zero, "tools": zero},
        "after": zero, "response": null, "at": 1, "ended": 2, "upstream": "up", "dialect": "anthropic",
        "model": "m", "family": "claude", "purpose": "turn", "estimate": null, "usage": {}, "stop": null,
        "outcome": "complete", "window": 0, "reserve": 0, "sketch": {"kept": 0, "added": []}, "reply": [],
    }))
    .unwrap();
    Turn { done, estimate, usage, ..turn }
}

/// `gone_history`: tokens of the history that left since the turn before.
fn estimate(tokens: u64, new: u64, gone_history: u64) -> Option<Estimate> {
    Some(Estimate {
        tokens,
        method: EstimateMethod::Anchored,
        counting: crate::tokens::CountingMethod::default(),
        new,
        gone: gone_history,
        gone_history,
        encrypted_compaction: false,
        breakdown: crate::context::Breakdown::default(),
        guess: CostPrediction { tokens, low: tokens, high: tokens, ..CostPrediction::default() },
    })
}

/// The provider's next count shows what a cut really removed. The claim is corrected by it from then on.
#[test]
fn claim_is_corrected_by_next_count() {
    let measured = |mut turn: Turn, parent: Option<&Turn>| {
        turn.measure_removed(parent);
        turn
    };
    let ratio = |turn: &Turn| turn.done.measured.unwrap_or(1.0);
    let first = RewriteSummary::from_steps(
        &[cut(DecisionReason::Pressure, Decision::New, 30_000)],
        Mode::Active,
    );
    // By the correction of the whole, 26,000 left; the provider counts 2,000 more than was predicted from that.
    let grown = turn(first.clone(), estimate(76_000, 2_000, 26_000), usage(78_000, 0, 0));
    let first_turn = measured(grown.clone(), None);
    near(ratio(&first_turn), 0.8);
    assert_eq!(SavingsInput::from_turn(&first_turn, None, |_| Some(PRICE)).saved().removed, 24_000);
    // The error of an earlier turn says nothing about this one.
    let plain = turn(RewriteSummary::default(), estimate(99_000, 1_000, 0), usage(100_000, 0, 0));
    near(ratio(&measured(grown, Some(&plain))), 0.8);
    // The ratio stays for the first cut; a later cut has its own.
    let steps = [
        cut(DecisionReason::Pressure, Decision::Replayed, 30_000),
        cut(DecisionReason::Pressure, Decision::New, 10_000),
    ];
    let (quiet, later) = (
        RewriteSummary::from_steps(&steps[..1], Mode::Active),
        RewriteSummary::from_steps(&steps, Mode::Active),
    );
    let after = |done: &RewriteSummary, estimate, usage| {
        ratio(&measured(turn(done.clone(), estimate, usage), Some(&first_turn)))
    };
    let second = || estimate(80_000, 500, 10_000);
    near(after(&quiet, estimate(80_000, 500, 0), usage(90_000, 0, 0)), 0.8);
    near(after(&later, second(), usage(80_000, 0, 0)), 34.0 / 40.0);
    // As much was new as was cut, and both may be equally wrong.
    near(after(&later, estimate(80_000, 20_000, 10_000), usage(83_000, 0, 0)), 31.0 / 40.0);
    // Nothing is learned if nothing was counted, if nothing was sent, or if the parts were not in the turn before.
    near(after(&later, estimate(80_000, 500, 4_999), usage(80_000, 0, 0)), 0.8);
    near(after(&later, second(), Usage::default()), 0.8);
    near(after(&later, None, usage(80_000, 0, 0)), 0.8);
    let shadow = RewriteSummary { mode: Mode::Shadow, ..later.clone() };
    near(after(&shadow, second(), usage(80_000, 0, 0)), 0.8);
    // A count that cannot come from the cut limits the claim to between nothing and double.
    let odd = |input| turn(first.clone(), estimate(72_000, 0, 30_000), usage(input, 0, 0));
    near(ratio(&measured(odd(900_000), None)), 0.0);
    near(ratio(&measured(odd(1), None)), 2.0);
}

/// The less certain the cost of new parts is, the smaller is the share of the error that the cut gets.
#[test]
fn counting_error_is_shared_between_cut_and_new_parts() {
    let ratio = |half: u64, actual| {
        let done = RewriteSummary::from_steps(
            &[cut(DecisionReason::Pressure, Decision::New, 10_000)],
            Mode::Active,
        );
        let estimate = estimate(80_000, 30_000, 10_000).map(|estimate| Estimate {
            guess: CostPrediction { low: 80_000 - half, high: 80_000 + half, ..estimate.guess },
            ..estimate
        });
        let mut turn = turn(done, estimate, usage(actual, 0, 0));
        turn.measure_removed(None);
        turn.done.measured.unwrap_or(1.0)
    };
    // The cut may be wrong by a fifth of 10,000.
    near(ratio(0, 81_000), 0.9);
    near(ratio(2_000, 81_000), 0.95);
    near(ratio(2_000, 79_000), 1.05);
    near(ratio(6_000, 81_000), 0.99);
}

/// If an agent's rules decide, their number is shown. A claim is still checked against our own prediction.
#[test]
fn claimed_savings_are_not_checked_against_classic_rules() {
    let done = RewriteSummary::from_steps(
        &[cut(DecisionReason::Pressure, Decision::New, 10_000)],
        Mode::Active,
    );
    let ours = estimate(80_000, 2_000, 10_000).unwrap();
    let rules = Estimate { tokens: 60_000, new: 900, ..ours };
    let mut turn = turn(done, Some(rules), usage(80_500, 0, 0));
    turn.measure_removed(None);
    near(turn.done.measured.unwrap(), 0.95);
}

/// A turn stores only some of its steps, but claims all: what they removed, broke and saved.
#[test]
fn batch_larger_than_listed_steps_is_claimed_whole() {
    for many in [80, 100, 300] {
        let of = |why| {
            let step = PlanStep { tokens_after: 10, ..cut(why, Decision::New, 1_010) };
            RewriteSummary::from_steps(&vec![step; many as usize], Mode::Active)
        };
        let (gone, left) = (1_000 * many, 20_000 + 10 * many);
        let before = usage(gone + 20_000, gone + 20_000, 0);
        let done = of(DecisionReason::Pressure);
        assert!(done.steps.len() < many as usize);
        // Everything was counted as the provider counts it.
        let estimate = estimate(left, 10 * many, 1_010 * many);
        let mut cut = turn(done, estimate, usage(left, 5_000, left - 5_000));
        let stored = serde_json::to_string(&cut).unwrap();
        cut.measure_removed(None);
        assert_eq!(cut.done.measured, None, "{many}: the claim was right");
        let mut cut: Turn = serde_json::from_str(&stored).unwrap();
        cut.measure_removed(None);
        assert_eq!(cut.done.measured, None, "{many}: so it was stored");
        let late = SavingsInput {
            before: Some(&before),
            ..SavingsInput::from_turn(&cut, None, |_| Some(PRICE))
        };
        assert_eq!(late.saved().removed, gone);
        assert_eq!(late.saved().reprocessed, 15_000);
        // What was cut when it was new would have been written to the cache, all of it.
        let born = saved(&of(DecisionReason::TooLarge), &cut.usage, None);
        near(born.money.unwrap().saved, gone as f64 * 12.5 / 1e6);
    }
}

/// A turn of an earlier version has only its stored steps. If there are few, they are all.
#[test]
fn turn_without_sums_claims_by_steps() {
    let steps = vec![cut(DecisionReason::Pressure, Decision::New, 1_000); 40];
    let done = RewriteSummary::from_steps(&steps, Mode::Active);
    let mut stored = serde_json::to_value(&done).unwrap();
    assert!(stored.as_object_mut().unwrap().remove("new_tokens").is_some());
    let old: RewriteSummary = serde_json::from_value(stored).unwrap();
    assert_eq!(old.tokens_of_new(), done.tokens_of_new());
    assert_eq!(old.tokens_of_new().late, 40_000);
}

/// A summary's cost is what it read and wrote, and is subtracted from the savings. One whose price or usage is not
/// known is counted without cost.
#[test]
fn summaries_are_subtracted_from_what_was_saved() {
    let mut savings = Savings::default();
    let money = Some(Money { spent: 3.0, saved: 1.0, broken: 0.25 });
    savings.add(&ExchangeSavings { removed: 30, sent: 70, money, ..ExchangeSavings::default() });
    savings.wrote(summary_costs(&usage(100_000, 90_000, 0)));
    let cost = (90_000.0 + 10_000.0 * 10.0 + 1_000.0 * 50.0) / 1e6;
    near(savings.summaries.dollars, cost);
    near(savings.net, 1.0 - 0.25 - cost);
    savings.wrote(SummaryCosts::from_usage(&usage(5, 0, 0), None));
    savings.wrote(summary_costs(&Usage::default()));
    let summaries = savings.summaries;
    assert_eq!(summaries.written, 3);
    assert_eq!(summaries.priced, 1);
    assert_eq!(summaries.input, 100_005);
    assert_eq!(summaries.output, 2_000);
    near(savings.net, 0.75 - cost);
    assert_eq!(savings.turns, 1, "no exchange of their own");
    assert_eq!(savings.removed, 30, "no exchange of their own");
}

/// A part of the cache writes is for a long life and costs more, by each provider's multiple of the input price.
#[test]
fn cache_writes_of_mixed_lifetimes_are_priced_by_their_shares() {
    let price = Price { input: 4.0, output: 0.0, cache_read: 0.0, cache_write: 5.0, ..PRICE };
    let of = |written, long, dialect| {
        let usage =
            Usage { cache_write: Some(written), cache_write_long: Some(long), ..Usage::default() };
        write_price(&usage, price.base(), dialect)
    };
    near(of(100, 25, Dialect::Anthropic), 5.0 + 0.25 * 3.0);
    near(of(100, 25, Dialect::OpenaiChat), 5.0 + 0.25 * 5.0);
    near(of(100, 25, Dialect::OpenaiResponses), 5.0 + 0.25 * 5.0);
    near(of(100, 25, Dialect::Gemini), 5.0);
    near(of(100, 200, Dialect::Anthropic), 8.0);
    near(of(0, 0, Dialect::Anthropic), 5.0);
    let no_fee = Price { cache_write: 0.0, ..price };
    near(write_price(&Usage::default(), no_fee.base(), Dialect::Anthropic), 4.0);
}

/// The removed share of several exchanges is computed from their sums.
#[test]
fn removed_share_is_of_all_sent() {
    let of = |removed, sent| Savings { removed, sent, ..Savings::default() };
    let mut all = Savings::default();
    all.join(&Savings::default());
    assert_eq!(all.removed_share, None, "without tokens there is no share");
    all.join(&of(10, 90));
    assert_eq!(all.removed_share, Some(0.1));
    all.join(&of(40, 60));
    assert_eq!(all.removed_share, Some(0.25));
}

/// Sums of exchanges and summaries, each number by itself. Net is what was saved less what it cost.
#[test]
fn sums_are_joined_number_by_number() {
    let of = |n: u64| Savings {
        turns: n,
        pruned_turns: 2 * n,
        removed: 3 * n,
        sent: 9 * n,
        removed_share: None,
        in_shadow: 5 * n,
        reprocessed: 6 * n,
        priced_turns: 7 * n,
        checked: ClaimCheck { turns: 8 * n, claimed: 10 * n, came: 11 * n, sent: 12 * n },
        summaries: SummaryCosts {
            written: 13 * n,
            priced: 14 * n,
            input: 15 * n,
            output: 16 * n,
            dollars: 0.5 * n as f64,
            tokens_compacted: 17 * n,
        },
        money: Money { spent: 8.0 * n as f64, saved: 4.0 * n as f64, broken: n as f64 },
        net: 0.0,
    };
    let mut sum = of(1);
    sum.join(&of(10));
    let net = 44.0 - 11.0 - 5.5;
    assert_eq!(sum, Savings { removed_share: Some(0.25), net, ..of(11) });
    assert_eq!(sum.checked.saved(), -11);
    // One complete exchange, and one that was neither checked nor priced.
    let money = Money { spent: 3.0, saved: 2.0, broken: 1.0 };
    let one = ExchangeSavings {
        removed: 100,
        compacted: 20,
        in_shadow: 5,
        sent: 300,
        reprocessed: 7,
        came: Some(390),
        money: Some(money),
    };
    let mut sum = Savings::default();
    sum.add(&one);
    let expected = Savings {
        turns: 1,
        pruned_turns: 1,
        removed: 100,
        sent: 300,
        removed_share: Some(0.25),
        in_shadow: 5,
        reprocessed: 7,
        priced_turns: 1,
        checked: ClaimCheck { turns: 1, claimed: 120, came: 390, sent: 300 },
        summaries: SummaryCosts { tokens_compacted: 20, ..SummaryCosts::default() },
        money,
        net: 1.0,
    };
    assert_eq!(sum, expected);
    sum.add(&ExchangeSavings { sent: 100, ..ExchangeSavings::default() });
    let expected = Savings { turns: 2, sent: 400, removed_share: Some(0.2), ..expected };
    assert_eq!(sum, expected);
    let mut spent = usage(1_000_000, 0, 0);
    spent.output = Some(100_000);
    sum.wrote(summary_costs(&spent));
    let written = SummaryCosts {
        written: 1,
        priced: 1,
        input: 1_000_000,
        output: 100_000,
        dollars: 15.0,
        tokens_compacted: 20,
    };
    assert_eq!(sum, Savings { summaries: written, net: -14.0, ..expected });
}
