use serde_json::json;

use super::*;
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::Attempt;
use crate::dialect::billing::ServiceTier;
use crate::dialect::models::Catalogue;

/// 2026-11-25, 12:00 UTC, a Wednesday.
const NOON: Millis = 1_795_608_000_000;

fn price(model: &str) -> Option<Price> {
    Catalogue::default().model(model, "").price
}

fn usage(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

fn bill(usage: &Usage, model: &str) -> Option<f64> {
    billed(usage, model, Dialect::OpenaiResponses, NOON, price)
}

fn near(dollars: Option<f64>, expected: f64) {
    let dollars = dollars.expect("a price");
    assert!((dollars - expected).abs() < 1e-9, "{dollars} is not {expected}");
}

/// A refusal that is not billed costs 0, and no log line says -0.0.
#[test]
fn nothing_costs_zero() {
    let refusal = Usage { unbilled: true, ..usage(900, 0) };
    let dollars = bill(&refusal, "claude-opus-4-8").unwrap();
    assert!(dollars == 0.0 && dollars.is_sign_positive(), "{dollars:?}");
}

#[test]
fn priority_costs_twice_and_flex_half() {
    let call = usage(100_000, 10_000);
    near(bill(&call, "gpt-6-astra"), 1.5);
    for (tier, expected) in [(ServiceTier::Priority, 3.0), (ServiceTier::Flex, 0.75)] {
        let billing = Billing { tier, ..Billing::default() };
        near(bill(&Usage { billing, ..call.clone() }, "gpt-6-astra"), expected);
    }
}

#[test]
fn tier_without_price_is_unknown() {
    let billing = Billing { tier: ServiceTier::Ultrafast, ..Billing::default() };
    assert_eq!(bill(&Usage { billing, ..usage(1_000, 10) }, "gpt-4o"), None);
}

/// Whatever a price is, a cost that is no number of 0 or more is in no sum, and no counter sees it.
#[test]
fn impossible_cost_is_unknown() {
    for input in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let broken = Price { input, ..price("gpt-4o").unwrap() };
        let dollars = billed(&usage(9, 0), "gpt-4o", Dialect::OpenaiChat, NOON, |_| Some(broken));
        assert_eq!(dollars, None, "{input}");
        let dollars = call(&usage(9, 0), &broken, Dialect::OpenaiChat, NOON);
        assert_eq!(dollars, None, "{input}");
    }
}

/// A reply said that 2,000 tokens cost $99,999, and every cap was spent.
#[test]
fn stated_cost_that_cannot_be_is_not_believed() {
    let stated = |dollars: f64| {
        let billing = Billing { stated: Some((dollars * 1e9) as u64), ..Billing::default() };
        Usage { billing, ..usage(1_000, 1_000) }
    };
    near(
        bill(&stated(99_999.0), "gpt-6-astra"),
        bill(&usage(1_000, 1_000), "gpt-6-astra").unwrap(),
    );
    near(bill(&stated(0.9), "gpt-6-luna"), 0.9);
    near(bill(&stated(99.0), "unheard-of"), 99.0);
}

#[test]
fn searches_have_price_of_their_own() {
    let billing = Billing { searches: 3, ..Billing::default() };
    near(bill(&Usage { billing: billing.clone(), ..usage(0, 0) }, "claude-opus-5-5"), 0.03);
    let unknown = Usage { billing, ..usage(0, 0) };
    assert_eq!(bill(&unknown, "deepseek-chat"), None, "without a price for a search");
}

/// By the price pages of 2026-11: $2.50 for a thousand searches of files, $25 and $10 for a thousand calls of models that
/// always search, $35 for a thousand prompts of Gemini 2.5 that searched, $14 for a thousand searches of later ones.
#[test]
fn tools_at_the_provider_have_their_price() {
    let billing = Billing { file_searches: 4, ..Billing::default() };
    near(bill(&Usage { billing, ..usage(0, 0) }, "gpt-6.2-sol"), 0.01);
    near(bill(&usage(0, 0), "gpt-4o-search-preview"), 0.025);
    near(bill(&usage(0, 0), "gpt-4o-mini-search-preview"), 0.025);
    near(bill(&usage(0, 0), "gpt-5-search-api"), 0.01);
    let billing = Billing { searches: 5, ..Billing::default() };
    let searched = Usage { billing, ..usage(0, 0) };
    near(bill(&searched, "gemini-2.5-pro"), 0.035);
    near(bill(&searched, "gemini-4-hydrogen"), 0.07);
    near(bill(&searched, "gpt-6.2-astra"), 0.05);
}

/// What the reply does not tell is in no sum, and the call is counted as one whose price is not wholly known.
#[test]
fn untold_fee_makes_a_lower_bound() {
    let billing = Billing { unmetered: 1, ..Billing::default() };
    let ran = Usage { billing, ..usage(1_000_000, 0) };
    let dollars = bill(&ran, "claude-opus-5-5");
    near(dollars, 4.0);
    assert!(ran.is_unpriced(dollars));
    assert!(!usage(9, 9).is_unpriced(Some(1.0)));
    assert!(usage(9, 9).is_unpriced(None));
}

#[test]
fn provider_knows_its_price_best() {
    let billing = Billing { stated: Some(1_230_000), ..Billing::default() };
    let call = Usage { billing, ..usage(100_000, 10_000) };
    near(bill(&call, "gpt-6-astra"), 0.00123);
    near(bill(&call, "unheard-of"), 0.00123);
    near(computed(&call, "gpt-6-astra", Dialect::OpenaiResponses, NOON, price), 1.5);
}

#[test]
fn region_costs_tenth_more_also_for_other_models_calls() {
    let advice = Attempt {
        kind: "advisor_message".into(),
        model: Some("claude-opus-5-5".into()),
        usage: usage(10_000, 1_000),
    };
    let billing = Billing { regional: true, ..Billing::default() };
    let call = Usage { attempts: vec![advice], billing, ..usage(10_000, 1_000) };
    near(bill(&call, "claude-opus-5-5"), 2.0 * 0.06 * 1.1);
}

/// A deployment's own name has the price of what was asked for.
#[test]
fn unknown_name_of_answer_has_requested_price() {
    let scene = SessionFixture::new("gpt-6-astra", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    turn.usage = usage(100_000, 10_000);
    turn.served = Some("our-deployment".into());
    near(turn.cost(price), 1.5);
    assert_eq!(turn.costs_by_model(price)[0].dollars(), turn.cost(price));
    turn.served = Some("gpt-6-luna".into());
    assert_ne!(turn.cost(price), Some(1.5), "a known one has its own");
}

/// Each part stands under the model that is billed, and all of them are what the call cost, also by the provider's word.
#[test]
fn parts_add_up_to_cost() {
    let advice = Attempt {
        kind: "advisor_message".into(),
        model: Some("claude-opus-5-5".into()),
        usage: usage(10_000, 1_000),
    };
    let scene = SessionFixture::new("gpt-6-astra", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    turn.usage = Usage { attempts: vec![advice], ..usage(100_000, 10_000) };
    for stated in [None, Some(9.0)] {
        turn.dollars = stated;
        let costs = turn.costs_by_model(price);
        let models: Vec<&str> = costs.iter().map(|cost| cost.model).collect();
        assert_eq!(models, ["gpt-6-astra", "claude-opus-5-5"]);
        near(costs.iter().map(ModelCost::dollars).sum(), turn.cost(price).unwrap());
        let [answer, advice] = [costs[0].parts.unwrap(), costs[1].parts.unwrap()];
        near(Some(advice.output), 0.02);
        assert!(answer.input > answer.output / 2.0);
    }
    turn.model = "unheard-of".into();
    turn.usage = usage(100_000, 10_000);
    near(turn.costs_by_model(price)[0].parts.map(|parts| parts.stated), 9.0);
}

/// Google's price page, 2026-11: cached audio of Gemini 2.5 Flash is $0.10, at flex half of the uncached price; later models
/// have one price for all kinds of input.
#[test]
fn cached_audio_has_price_of_its_own() {
    let billing = Billing { audio_input: 100_000, audio_cached: 200_000, ..Billing::default() };
    let call = Usage { cache_read: Some(300_000), billing, ..usage(500_000, 0) };
    near(bill(&call, "gemini-2.5-flash"), 0.1 * 0.3 + 0.1 * 1.0 + 0.1 * 0.03 + 0.2 * 0.1);
    near(bill(&call, "gemini-3.8-flash"), 0.2 * 0.75 + 0.3 * 0.075);
    let billing = Billing { tier: ServiceTier::Flex, ..call.billing.clone() };
    let flex = Usage { billing, ..call };
    near(bill(&flex, "gemini-2.5-flash"), 0.1 * 0.15 + 0.1 * 0.5 + 0.1 * 0.03 + 0.2 * 0.1);
}

#[test]
fn audio_has_price_of_its_own() {
    let billing = Billing { audio_input: 50_000, ..Billing::default() };
    near(bill(&Usage { billing, ..usage(100_000, 0) }, "gemini-2.5-flash"), 0.015 + 0.05);
}
