use super::*;

use crate::context::{Breakdown, PromptSection, Turn};
use crate::dialect::models::Catalogue;
use crate::dialect::{PartKey, ProviderError, ReplyPart};
use crate::tokens::learn::CostPrediction;

fn estimate(tokens: u64, method: EstimateMethod) -> Estimate {
    let breakdown = Breakdown { messages: tokens, ..Breakdown::default() };
    let guess = CostPrediction { tokens, ..CostPrediction::default() };
    Estimate {
        tokens,
        method,
        counting: <_>::default(),
        new: 0,
        gone: 0,
        gone_history: 0,
        encrypted_compaction: false,
        breakdown,
        guess,
    }
}

fn sign(reply: &Reply, estimate: &Estimate) -> Option<OverflowSign> {
    let evidence =
        OverflowEvidence { estimate: Some(estimate), host: "h", ..OverflowEvidence::default() };
    Some(detected(reply, Purpose::Turn, &evidence)?.sign)
}

#[test]
fn overflow_in_reply_is_detected() {
    let small = estimate(100, EstimateMethod::Anchored);
    let error = |kind: &str, message: &str| Reply {
        error: Some(ProviderError {
            kind: Some(kind.into()),
            message: Some(message.into()),
            ..ProviderError::default()
        }),
        ..Reply::default()
    };
    let full = error("context_length_exceeded", "Your input exceeds the context window of it.");
    assert_eq!(sign(&full, &small), Some(OverflowSign::InReply));
    let long = error("invalid_request_error", "prompt is too long: 210 tokens > 200 maximum");
    let reported = Overflow { window: Some(200), input: Some(210), ..Overflow::default() };
    let seen = detected(&long, Purpose::Turn, &OverflowEvidence::default()).unwrap();
    assert_eq!(seen.sign, OverflowSign::InReply);
    assert_eq!(seen.reported, reported);
    assert_eq!(sign(&error("rate_limit_exceeded", "Rate limit reached"), &small), None);
    let stopped = |stop| Reply { stop: Some(stop), ..Reply::default() };
    assert_eq!(sign(&stopped(StopReason::WindowFull), &small), Some(OverflowSign::WindowFull));
    assert_eq!(sign(&stopped(StopReason::MaxTokens), &small), Some(OverflowSign::Empty));
    let mut thought = stopped(StopReason::MaxTokens);
    thought.parts.push(ReplyPart::new(PartKind::Reasoning));
    assert_eq!(sign(&thought, &small), None, "reasoning used all output");
    assert_eq!(
        detected(&stopped(StopReason::WindowFull), Purpose::WarmUp, &OverflowEvidence::default()),
        None
    );
}

fn read(input: u64) -> Reply {
    Reply {
        usage: Usage { input: Some(input), output: Some(9), ..Usage::default() },
        stop: Some(StopReason::End),
        ..Reply::default()
    }
}

/// One part of this many tokens.
fn parts(tokens: u32) -> Vec<SketchPart> {
    vec![SketchPart { key: PartKey(1), tokens, place: PromptSection::History, by_length: false }]
}

/// A call whose usage reports this input.
fn turn(input: u64) -> Turn {
    let zero = "0".repeat(32);
    serde_json::from_value(serde_json::json!({
        "exchange": "q", "position": {"thread": "t", "chain": zero, "last": null, "system": zero, "tools": zero},
        "after": zero, "response": null, "at": 1, "ended": 2, "upstream": "up", "dialect": "openai-chat",
        "model": "m", "family": "other", "purpose": "turn", "estimate": null,
        "usage": {"input": input, "output": 9}, "stop": null, "outcome": "complete", "window": 0,
        "reserve": 0, "sketch": {"kept": 0, "added": []}, "reply": [],
    }))
    .unwrap()
}

/// Whether the history counts as truncated: `input` tokens were read of `sent`, after `before` were read of
/// `sent_before`.
fn capped((sent, input): (u32, u64), (sent_before, before): (u32, u64)) -> bool {
    let (turn, sketch) = (turn(before), parts(sent_before));
    let estimate = estimate(before + u64::from(sent - sent_before), EstimateMethod::Anchored);
    let parts = parts(sent);
    let evidence = OverflowEvidence {
        estimate: Some(&estimate),
        sums: PartSums::new(&parts, Some(Anchor { turn: &turn, sketch: &sketch })),
        ..OverflowEvidence::default()
    };
    let shown = detected(&read(input), Purpose::Turn, &evidence);
    assert!(shown.is_none_or(|shown| shown.sign == OverflowSign::Truncated));
    shown.is_some()
}

/// Far fewer tokens than counted may be an error of the estimate. Only the same limit met twice is evidence.
#[test]
fn low_input_means_cut_history_only_if_limit_explains_it() {
    // However low a tokenizer counts, one low count is no evidence.
    for method in [EstimateMethod::Anchored, EstimateMethod::Estimated, EstimateMethod::Compacted] {
        assert_eq!(sign(&read(4_096), &estimate(40_000, method)), None, "{method:?}");
    }
    // The same limit twice, although the thread grew.
    assert!(capped((20_000, 4_096), (12_000, 4_096)));
    assert!(capped((20_000, 4_090), (12_000, 4_050)), "messages go as a whole");
    assert!(
        !capped((20_000, 6_800), (12_000, 4_096)),
        "the input grew, too: its tokens are larger"
    );
    assert!(!capped((12_500, 4_096), (12_000, 4_096)), "it hardly grew");
    assert!(!capped((5_600, 4_096), (4_100, 4_096)), "not far below");
    assert!(!capped((1_400, 300), (1_000, 300)), "any window holds so little");
    let mut cleared = read(4_096);
    cleared.usage.hosted_tools = true;
    let (turn, before, now) = (turn(4_096), parts(12_000), parts(20_000));
    let estimate = estimate(12_096, EstimateMethod::Anchored);
    let anchor = Some(Anchor { turn: &turn, sketch: &before });
    let sums = PartSums::new(&now, anchor);
    let known = OverflowEvidence { estimate: Some(&estimate), sums, ..<_>::default() };
    assert!(detected(&read(4_096), Purpose::Turn, &known).is_some());
    assert_eq!(
        detected(&cleared, Purpose::Turn, &known),
        None,
        "hosted tools ran, so the input is not comparable"
    );
}

/// Ollama reads as much as its window holds.
#[test]
fn known_window_that_was_too_small_explains_cut_history() {
    let sums = PartSums::new(&parts(20_000), None);
    let sent = estimate(20_000, EstimateMethod::Estimated);
    let within = |window| {
        let evidence =
            OverflowEvidence { estimate: Some(&sent), sums, window, ..OverflowEvidence::default() };
        detected(&read(4_096), Purpose::Turn, &evidence).is_some()
    };
    assert!(within(Some(4_096)));
    assert!(within(Some(8_192)));
    assert!(!within(None));
    assert!(!within(Some(32_768)));
    assert!(!within(Some(2_048)));
    let held = OverflowEvidence {
        estimate: Some(&estimate(20_000, EstimateMethod::Held)),
        sums,
        window: Some(4_096),
        ..OverflowEvidence::default()
    };
    assert_eq!(detected(&read(4_096), Purpose::Turn, &held), None);
}

proptest::proptest! {
    /// If a provider counts any share of what we do, no call is reported as cut, however it grows.
    #[test]
    fn provider_that_counts_fewer_tokens_is_not_reported_as_cutting(
        steps in proptest::collection::vec(200u32..40_000, 2..12), percent in 15u64..100,
    ) {
        let (mut sent, mut before) = (0u32, None::<(u32, u64)>);
        for step in steps {
            sent += step;
            let input = u64::from(sent) * percent / 100;
            if let Some(before) = before {
                proptest::prop_assert!(!capped((sent, input), before));
            }
            before = Some((sent, input));
        }
    }
}

/// The message is believed up to eight times our estimate plus the output. If all content can be seen, no tokenizer
/// counts more.
#[test]
fn overflow_message_far_above_estimate_is_not_believed() {
    let sent = |content: &str| {
        let body =
            format!(r#"{{"max_tokens":50,"messages":[{{"role":"user","content":{content}}}]}}"#);
        crate::dialect::read(crate::dialect::Dialect::Anthropic, "/v1/messages", body.as_bytes())
    };
    let plain = sent(r#""Look.""#);
    let of = |window, input| Overflow { window, input, ..Overflow::default() };
    let is_wild = |reported: Overflow| {
        contradicts(
            &reported,
            &estimate(100, EstimateMethod::Anchored),
            &plain,
            &PictureRule::default(),
        )
    };
    assert!(!is_wild(of(Some(200), Some(850))));
    assert!(is_wild(of(Some(200), Some(851))));
    assert!(!is_wild(of(Some(850), None)));
    assert!(is_wild(of(Some(851), None)));
    let reported = of(None, Some(9_999));
    let unseen = |method, sent| {
        contradicts(&reported, &estimate(100, method), sent, &PictureRule::default())
    };
    assert!(unseen(EstimateMethod::Anchored, &plain));
    assert!(!unseen(EstimateMethod::Held, &plain));
    let held = Some(crate::dialect::HeldHistory::After("r".into()));
    let held = Conversation { held, ..plain.clone() };
    assert!(!unseen(EstimateMethod::Anchored, &held));
    let document = r#"[{"type":"document","source":{"type":"url","url":"https://a/b.pdf"}}]"#;
    let opaque = r#"[{"type":"server_thing","of":"somewhere"}]"#;
    for other in [sent(document), sent(opaque)] {
        let is_wild = contradicts(
            &reported,
            &estimate(100, EstimateMethod::Anchored),
            &other,
            &PictureRule::default(),
        );
        assert!(!is_wild, "nobody here knows its size");
    }
}

/// Each picture adds what the largest picture costs, and no more.
#[test]
fn each_picture_raises_believed_overflow_by_its_largest_cost() {
    let picture = r#"{"type":"image","source":{"type":"url","url":"https://a/b.png"}}"#;
    let rule = Catalogue::default().model("claude-opus-4-8", "").pictures;
    let is_wild = |pictures: usize, input| {
        let content = vec![picture; pictures].join(",");
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{content}]}}]}}"#);
        let sent = crate::dialect::read(
            crate::dialect::Dialect::Anthropic,
            "/v1/messages",
            body.as_bytes(),
        );
        let reported = Overflow { input, ..Overflow::default() };
        contradicts(&reported, &estimate(400, EstimateMethod::Anchored), &sent, &rule)
    };
    let most = |pictures: u64| Some(8 * (400 + pictures * u64::from(largest_picture(&rule))));
    for pictures in [1, 3] {
        let most = most(pictures as u64);
        assert!(!is_wild(pictures, most), "{pictures}");
        assert!(is_wild(pictures, most.map(|tokens| tokens + 1)), "{pictures}");
        assert!(!is_wild(pictures, None), "with {pictures} pictures it may be true");
    }
}

/// A request that fits any window, however it is counted, was not refused for its size.
#[test]
fn overflow_without_numbers_is_not_believed_of_small_request() {
    let body = br#"{"max_tokens":64000,"messages":[{"role":"user","content":"Look."}]}"#;
    let sent = crate::dialect::read(crate::dialect::Dialect::Anthropic, "/v1/messages", body);
    let is_wild = |tokens, method| {
        contradicts(&Overflow::default(), &estimate(tokens, method), &sent, &PictureRule::default())
    };
    assert!(is_wild(749, EstimateMethod::Anchored));
    assert!(!is_wild(750, EstimateMethod::Anchored));
    assert!(!is_wild(749, EstimateMethod::Held), "nobody here knows what it holds");
}

#[test]
fn overflow_report_is_complete() {
    let report = |sign, input, window, saved| {
        OverflowReport { sign, reported: Overflow { window, input, ..Overflow::default() }, saved }
            .to_string()
    };
    let refused = report(OverflowSign::Refused, Some(2_100), Some(2_000), false);
    assert!(refused.ends_with("(2,100 tokens, window 2,000); no room could be made"), "{refused}");
    let saved = report(OverflowSign::Refused, Some(2_100), None, true);
    assert!(saved.ends_with("(2,100 tokens); room was made, and it was answered"), "{saved}");
    let late = report(OverflowSign::Truncated, None, Some(2_000), false);
    assert!(late.ends_with("cut the history (window 2,000)"), "{late}");
    use OverflowSign::{Empty, InReply, Refused, Truncated, WindowFull};
    let descriptions =
        [Refused, InReply, WindowFull, Empty, Truncated].map(OverflowSign::description);
    let different: std::collections::BTreeSet<_> = descriptions.iter().collect();
    assert!(different.len() == 5, "{descriptions:?}");
    assert!(descriptions.iter().all(|it| it.contains(' ')), "{descriptions:?}");
}

/// Two numbers alone count if the count is near the estimate, and does not fit with the requested output.
#[test]
fn inferred_numbers_must_be_near() {
    let near = |window, input, max_output| {
        let stated = Overflow { window, input, is_inferred: true, ..Overflow::default() };
        is_near(&stated, 60_000, max_output)
    };
    assert!(near(Some(54_450), Some(60_500), None));
    assert!(near(Some(200_000), Some(240_000), None));
    assert!(near(Some(9_000), Some(15_000), None));
    assert!(!near(Some(200_000), Some(240_001), None), "far more than was sent");
    assert!(!near(Some(9_000), Some(14_999), None), "far less");
    assert!(near(Some(70_000), Some(60_500), Some(9_501)), "with the output");
    assert!(!near(Some(70_000), Some(60_500), Some(9_500)));
    assert!(!near(Some(70_000), Some(60_500), None));
    assert!(near(Some(74_999), None, None), "ours may be a little less");
    assert!(!near(Some(75_000), None, None));
    assert!(!near(None, Some(60_500), None));
}
