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

#[test]
fn searches_have_price_of_their_own() {
    let billing = Billing { searches: 3, ..Billing::default() };
    near(bill(&Usage { billing: billing.clone(), ..usage(0, 0) }, "claude-opus-5-5"), 0.03);
    let unknown = Usage { billing, ..usage(0, 0) };
    assert_eq!(bill(&unknown, "deepseek-chat"), None, "without a price for a search");
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
    assert_eq!(turn.costs_by_model(price)[0].2, turn.cost(price));
    turn.served = Some("gpt-6-luna".into());
    assert_ne!(turn.cost(price), Some(1.5), "a known one has its own");
}

#[test]
fn audio_has_price_of_its_own() {
    let billing = Billing { audio_input: 50_000, ..Billing::default() };
    near(bill(&Usage { billing, ..usage(100_000, 0) }, "gemini-2.5-flash"), 0.015 + 0.05);
}
