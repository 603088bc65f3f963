use super::*;

fn used(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

#[test]
fn no_window_of_catalogue_is_larger_than_largest() {
    let catalogue: toml::Table =
        toml::from_str(include_str!("../../../../config/models.toml")).unwrap();
    let models = catalogue["models"].as_table().unwrap();
    let windows = models.values().filter_map(|model| model.get("window")?.as_integer());
    assert_eq!(windows.max(), Some(LARGEST_WINDOW as i64));
}

#[test]
fn count_above_what_one_call_can_have_is_unknown_with_its_shares() {
    let limit = CountLimit::new(Some(200_000), Some(500));
    let mut usage = Usage { cache_read: Some(100), reasoning: Some(7), ..used(4_000_000_000, 40) };
    assert!(usage.forget_impossible(limit));
    assert_eq!(usage, Usage { output: Some(40), reasoning: Some(7), ..Usage::default() });
    let mut usage = Usage { reasoning: Some(7), cache_read: Some(9), ..used(500, 200_001) };
    assert!(usage.forget_impossible(limit));
    assert_eq!(usage, Usage { input: Some(500), cache_read: Some(9), ..Usage::default() });
    let mut usage = Usage { cache_write: Some(4_000_000_000), ..used(500, 40) };
    assert!(usage.forget_impossible(limit));
    assert_eq!(usage, used(500, 40));
    assert!(!used(200_000, 200_000).forget_impossible(limit));
}

#[test]
fn share_larger_than_whole_is_unknown() {
    let limit = CountLimit::new(Some(200_000), None);
    for shares in [
        Usage { reasoning: Some(41), ..used(500, 40) },
        Usage { cache_read: Some(501), ..used(500, 40) },
        Usage { cache_write: Some(501), ..used(500, 40) },
        Usage { cache_write_long: Some(501), ..used(500, 40) },
        Usage { tool_use_prompt: Some(501), ..used(500, 40) },
    ] {
        let mut usage = shares.clone();
        assert!(usage.forget_impossible(limit), "{shares:?}");
        assert_eq!(usage, used(500, 40), "{shares:?}");
    }
    let whole = Usage { reasoning: Some(40), cache_read: Some(500), ..used(500, 40) };
    assert!(!whole.clone().forget_impossible(limit));
    assert!(!Usage { input: None, ..whole }.forget_impossible(limit));
}

#[test]
fn impossible_searches_are_unpriced() {
    for (searches, is_impossible) in [(1_000, false), (1_001, true), (u64::MAX, true)] {
        let billing = Billing { searches, ..Billing::default() };
        let mut usage = Usage { billing, ..used(500, 40) };
        assert_eq!(usage.forget_impossible(CountLimit::ANY), is_impossible);
        assert_eq!(usage.billing.searches, if is_impossible { 0 } else { searches });
        assert_eq!(usage.is_unpriced(Some(0.1)), is_impossible);
    }
}

#[test]
fn request_that_was_estimated_above_its_window_is_believed() {
    let limit = CountLimit::new(Some(200_000), Some(290_000));
    assert!(!used(310_000, 40).forget_impossible(limit));
    assert!(used(580_001, 40).forget_impossible(limit));
    let unknown = CountLimit::new(None, Some(500));
    assert!(!used(900_000, 40).forget_impossible(unknown));
    assert!(used(10_000_001, 40).forget_impossible(unknown));
}

#[test]
fn sums_over_several_calls_may_be_larger_than_window() {
    let limit = CountLimit::new(Some(200_000), None);
    let hosted = Usage { hosted_tools: true, ..used(560_000, 40) };
    assert!(!hosted.clone().forget_impossible(limit));
    let last = LastCall { input: 190_000, output: 20 };
    let mut summed = Usage { last_call: Some(last), ..used(560_000, 40) };
    assert!(!summed.forget_impossible(limit));
    summed.last_call = Some(LastCall { input: 200_001, ..last });
    assert!(summed.forget_impossible(limit));
    assert!(summed.last_call.is_none());
    assert!(Usage { input: Some(20_000_001), ..hosted }.forget_impossible(limit));
}

#[test]
fn billing_is_listed_by_model() {
    let advice = Attempt {
        kind: "advisor_message".into(),
        model: Some("claude-opus-5".into()),
        usage: used(9, 3),
    };
    let mut usage = Usage { attempts: vec![advice.clone()], ..used(5, 2) };
    let models = |usage: &Usage| {
        usage.billed().map(|(model, one)| (model.map(str::to_owned), one.input)).collect::<Vec<_>>()
    };
    let advised = (advice.model.as_deref().map(str::to_owned), Some(9));
    assert_eq!(models(&usage), [(None, Some(5)), advised.clone()]);
    usage.served_by = Some("claude-opus-4-8".into());
    assert_eq!(models(&usage)[0].0.as_deref(), Some("claude-opus-4-8"));
    usage.unbilled = true;
    assert_eq!(models(&usage), [advised]);
}

#[test]
fn impossible_stored_count_is_unknown() {
    let stored = r#"{"input":9223372036854775808,"output":7,"cache_read":18446744073709551615}"#;
    let usage: Usage = serde_json::from_str(stored).unwrap();
    assert_eq!(usage, Usage { output: Some(7), ..Usage::default() });
}
