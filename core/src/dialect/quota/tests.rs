use super::*;
use crate::wire::json::Document;

/// 2026-11-27, 12:00 UTC.
const NOW: u64 = 1_795_780_800_000;

fn quotas(headers: &[(&'static str, &'static str)]) -> Vec<Quota> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.parse().expect("a value"));
    }
    from_headers(&map, NOW)
}

fn one(headers: &[(&'static str, &'static str)]) -> Quota {
    let quotas = quotas(headers);
    assert_eq!(quotas.len(), 1, "{quotas:?}");
    quotas[0]
}

#[test]
fn anthropic_counts_requests_and_tokens() {
    let told = quotas(&[
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-ratelimit-requests-remaining", "40"),
        ("anthropic-ratelimit-requests-reset", "2026-11-27T12:00:30Z"),
        ("anthropic-ratelimit-output-tokens-limit", "8000"),
        ("anthropic-ratelimit-output-tokens-remaining", "0"),
    ]);
    let requests = told.iter().find(|quota| quota.kind == QuotaKind::Requests).expect("requests");
    assert!((requests.used - 0.2).abs() < 1e-9);
    assert_eq!(requests.resets_at, Some(NOW + 30_000));
    let output = told.iter().find(|quota| quota.kind == QuotaKind::OutputTokens).expect("output");
    assert_eq!(output.limit, Some(8_000));
    assert_eq!(output.used, 1.0);
    assert_eq!(output.resets_at, None);
}

#[test]
fn claude_subscriptions_have_two_windows() {
    let told = quotas(&[
        ("anthropic-ratelimit-unified-5h-utilization", "0.42"),
        ("anthropic-ratelimit-unified-5h-reset", "1795784400"),
        ("anthropic-ratelimit-unified-7d-utilization", "0.3"),
        ("anthropic-ratelimit-unified-status", "allowed"),
    ]);
    let kinds: Vec<QuotaKind> = told.iter().map(|quota| quota.kind).collect();
    assert_eq!(kinds, [QuotaKind::FiveHours, QuotaKind::SevenDays]);
    assert_eq!(told[0].resets_at, Some(NOW + 3_600_000));
}

#[test]
fn codex_says_percent() {
    let primary = one(&[
        ("x-codex-primary-used-percent", "89.5"),
        ("x-codex-primary-window-minutes", "300"),
        ("x-codex-primary-reset-at", "1795784400"),
    ]);
    assert_eq!(primary.kind, QuotaKind::FiveHours);
    assert!((primary.used - 0.895).abs() < 1e-9);
}

/// Which window is the first one depends on the plan.
#[test]
fn codex_says_how_long_its_windows_are() {
    for (minutes, kind) in [
        ("300", QuotaKind::FiveHours),
        ("10080", QuotaKind::SevenDays),
        ("43200", QuotaKind::Month),
    ] {
        let primary = one(&[
            ("x-codex-primary-used-percent", "50"),
            ("x-codex-primary-window-minutes", minutes),
            ("x-codex-primary-reset-after-seconds", "90"),
        ]);
        assert_eq!(primary.kind, kind);
        assert_eq!(primary.resets_at, Some(NOW + 90_000));
    }
}

#[test]
fn refusal_says_how_long_to_wait() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "3600".parse().unwrap());
    let waits = unnamed(&headers, &[], NOW).unwrap();
    assert_eq!(waits.kind, QuotaKind::Unnamed);
    assert_eq!(waits.resets_at, Some(NOW + 3_600_000));
    headers.insert("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT".parse().unwrap());
    assert_eq!(unnamed(&headers, &[], NOW).unwrap().resets_at, Some(1_792_567_680_000));
    let named = Quota { kind: QuotaKind::Tokens, limit: None, used: 1.0, resets_at: None };
    assert_eq!(unnamed(&headers, &[named], NOW), None);
}

#[test]
fn openai_says_how_long_it_takes() {
    for (reset, wait) in
        [("6m0s", 360_000), ("1.5s", 1_500), ("20ms", 20), ("1h2m3s", 3_723_000), ("60", 60_000)]
    {
        let quota = one(&[
            ("x-ratelimit-limit-requests", "10000"),
            ("x-ratelimit-remaining-requests", "9999"),
            ("x-ratelimit-reset-requests", reset),
        ]);
        assert_eq!(quota.resets_at, Some(NOW + wait), "{reset}");
    }
}

#[test]
fn openrouter_names_nothing() {
    let quota = one(&[
        ("x-ratelimit-limit", "20"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1795784400000"),
    ]);
    assert_eq!(quota.kind, QuotaKind::Requests);
    assert_eq!(quota.used, 1.0);
    assert_eq!(quota.resets_at, Some(NOW + 3_600_000));
}

#[test]
fn copilot_has_month_of_premium_requests() {
    let quota = one(&[(
        "x-quota-snapshot-premium_interactions",
        "ent=300&ov=0.0&ovPerm=false&rem=75.0&rst=2026-11-27T13%3A00%3A00Z",
    )]);
    assert_eq!(quota.kind, QuotaKind::Premium);
    assert_eq!(quota.limit, Some(300));
    assert!((quota.used - 0.25).abs() < 1e-9);
    assert_eq!(quota.resets_at, Some(NOW + 3_600_000));
}

#[test]
fn nonsense_says_nothing() {
    for headers in [
        [("x-ratelimit-limit-tokens", "0"), ("x-ratelimit-remaining-tokens", "0")],
        [("x-ratelimit-limit-tokens", "-5"), ("x-ratelimit-remaining-tokens", "1")],
        [("x-ratelimit-limit-tokens", "many"), ("x-ratelimit-remaining-tokens", "1")],
        [
            ("anthropic-ratelimit-unified-5h-utilization", "-1"),
            ("x-codex-primary-used-percent", "NaN"),
        ],
        [
            ("x-codex-primary-used-percent", "1e300"),
            ("x-quota-snapshot-premium_interactions", "rem=x"),
        ],
    ] {
        assert_eq!(quotas(&headers), [], "{headers:?}");
    }
    let odd_reset = one(&[
        ("x-ratelimit-limit-tokens", "10"),
        ("x-ratelimit-remaining-tokens", "20"),
        ("x-ratelimit-reset-tokens", "soon"),
    ]);
    assert_eq!(odd_reset.used, 0.0, "more than the limit is left");
    assert_eq!(odd_reset.resets_at, None, "more than the limit is left");
}

#[test]
fn gemini_names_limits_that_are_used_up() {
    // As Google's API answers ("Rate limits", ai.google.dev; `google.rpc.QuotaFailure`).
    let body = br#"{"error": {"code": 429, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
                {"quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
                 "quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "250"},
                {"quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_input_token_count",
                 "quotaId": "GenerateContentInputTokensPerModelPerMinute-FreeTier", "quotaValue": "250000"},
                {"quotaId": "SomethingNew", "quotaValue": "1"}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}}"#;
    let json = Document::read(body).expect("JSON");
    let told = in_refusal(json.root(body).and_then(|root| root.get("error")).expect("an error"));
    let quotas: Vec<Quota> = told.into_iter().map(|quota| quota.at(NOW)).collect();
    let midnight = NOW + 20 * 60 * 60 * 1000;
    let limits = [
        (QuotaKind::DailyRequests, 250, midnight),
        (QuotaKind::InputTokens, 250_000, NOW + 34_500),
    ];
    let limits = limits.map(|(kind, limit, resets_at)| Quota {
        kind,
        limit: Some(limit),
        used: 1.0,
        resets_at: Some(resets_at),
    });
    assert_eq!(quotas, limits);
}

#[test]
fn days_end_at_midnight_in_california() {
    let day = ExhaustedQuota { kind: QuotaKind::DailyRequests, limit: None, wait_ms: None };
    for (now, midnight) in [
        ("2026-11-27T12:00:00Z", "2026-11-28T08:00:00Z"),
        ("2026-07-01T06:59:00Z", "2026-07-01T07:00:00Z"),
    ] {
        let [now, midnight] = [now, midnight].map(|at| moment(at, 0).expect("a time"));
        assert_eq!(day.at(now).resets_at, Some(midnight));
    }
}

#[test]
fn refusals_without_a_wait_hold_for_a_minute() {
    let body = br#"{"details":[{"violations":[{"quotaId":"RequestsPerMinute"},{"quotaId":"InputTokensPerDay"}]}]}"#;
    let json = Document::read(body).expect("JSON");
    let told = in_refusal(json.root(body).expect("an object"));
    let waits: Vec<Option<u64>> = told.iter().map(|quota| quota.wait_ms).collect();
    assert_eq!(waits, [Some(60_000), None]);
}

/// "Service tiers" and "Fast mode", Anthropic's documentation, 2026-11.
#[test]
fn tiers_have_limits_of_their_own() {
    for (tier, kind) in
        [("priority", QuotaKind::PriorityInputTokens), ("fast", QuotaKind::FastInputTokens)]
    {
        let mut headers = HeaderMap::new();
        for (what, value) in [("limit", "10000"), ("remaining", "9618")] {
            let name = format!("anthropic-{tier}-input-tokens-{what}");
            headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        let told = from_headers(&headers, NOW);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].kind, told[0].limit), (kind, Some(10_000)));
    }
}

#[test]
fn windows_of_models_are_one_limit() {
    let told = one(&[
        ("anthropic-ratelimit-unified-7d_sonnet-utilization", "0.1"),
        ("anthropic-ratelimit-unified-7d_opus-utilization", "0.9"),
        ("anthropic-ratelimit-unified-7d_opus-reset", "1795784400"),
    ]);
    assert_eq!((told.kind, told.used), (QuotaKind::SevenDaysOfModel, 0.9));
    assert_eq!(told.resets_at, Some(NOW + 3_600_000));
}

/// Two of five hours have passed.
#[test]
fn window_says_when_it_runs_out() {
    let window = |used: f64| Quota {
        kind: QuotaKind::FiveHours,
        limit: None,
        used,
        resets_at: Some(NOW + 3 * HOUR),
    };
    assert_eq!(window(0.5).used_up_at(NOW), Some(NOW + 2 * HOUR));
    assert_eq!(window(0.4).used_up_at(NOW), None, "whole again before");
    assert_eq!(window(1.0).used_up_at(NOW), None, "used up already");
    assert_eq!(window(0.5).used_up_at(NOW - 2 * HOUR), None, "it just began");
    let minute = Quota { kind: QuotaKind::Tokens, ..window(0.5) };
    assert_eq!(minute.used_up_at(NOW), None);
}
