//! How an agent's rules count a request from the turn before it: where the new messages begin, and what else is
//! counted.

use serde_json::{Value, json};

use super::*;
use crate::context::Turn;
use crate::context::records::CarryOver;
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::Dialect;

const FREE: &str = "claude-opus-4-6";

/// The turn "Words 0." with the reply "Said 1.", 900 tokens of input and 100 of output.
fn turn(scene: &SessionFixture) -> Turn {
    scene.turn(&scene.reply(&json!([{"type": "text", "text": "Said 1."}])))
}

fn of(rules: &ClassicRules, scene: &SessionFixture, last: Option<&Turn>) -> ClassicEstimate {
    let anchor = last.map(|turn| Anchor { turn, sketch: &turn.sketch.added });
    classic(rules, &scene.conversation, &scene.body, anchor, 0.0, |_| SentContent::Whole)
}

/// New messages begin after the earlier request and its reply. If neither is found again, they begin after the model's
/// last message.
#[test]
fn new_messages_begin_after_earlier_request_and_its_reply() {
    let turn = turn(&SessionFixture::new(FREE, &messages("u")));
    let anchor = Anchor { turn: &turn, sketch: &turn.sketch.added };
    let user = |text: &str| json!({"role": "user", "content": text});
    let model = |text: &str| json!({"role": "assistant", "content": text});
    let first = |messages: &[Value]| {
        first_new(&SessionFixture::new(FREE, &messages.to_vec().into()).conversation, &anchor)
    };
    let (question, reply) = (user("Words 0."), model("Said 1."));
    assert_eq!(first(&[question.clone(), reply.clone(), user("On.")]), 2);
    assert_eq!(first(&[question.clone(), user("On.")]), 1, "the reply does not come");
    assert_eq!(
        first(&[question.clone(), model("Else."), user("On.")]),
        2,
        "the reply comes back changed"
    );
    assert_eq!(first(&[question.clone(), reply.clone(), model("More."), user("On.")]), 3);
    assert_eq!(
        first(&[question.clone(), reply.clone(), user("On."), model("So."), user("Go.")]),
        2
    );
    let other = user("Other words.");
    let changed = [other.clone(), reply.clone(), user("On."), model("So."), user("Go.")];
    assert_eq!(first(&changed), 4, "nothing is found again");
    assert_eq!(first(&[other.clone(), user("On.")]), 0, "and the model said nothing");
    assert_eq!(first(&[question, reply]), 2, "nothing is new");
}

/// System prompt and tools count in the first call, if the rules count them at all. Later, reported usage includes
/// them.
#[test]
fn system_prompt_and_tools_count_once() {
    let tool = r#"{"name":"Read","input_schema":{}}"#;
    let body = json!({"model": FREE, "max_tokens": 9, "system": "12345678", "messages": messages("u"),
        "tools": [serde_json::from_str::<Value>(tool).unwrap()]});
    let scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", FREE, &body);
    let last = turn(&scene);
    let tools = tool.len().div_ceil(4) as u64;
    let rules = ClassicRules::default();
    let expected = |tokens, method, new, head: bool| ClassicEstimate {
        rules: "length-4".into(),
        tokens,
        method,
        new,
        gone: 0,
        system: if head { 2 } else { 0 },
        tools: if head { tools } else { 0 },
        before: tokens - new,
        weight: new as f64,
        removed: RemovedTokens::default(),
    };
    let (estimated, anchored) = (EstimateMethod::Estimated, EstimateMethod::Anchored);
    let whole = 2 + tools + 2;
    assert_eq!(of(&rules, &scene, None), expected(whole, estimated, whole, true));
    let headless = ClassicRules { head: false, ..rules.clone() };
    assert_eq!(of(&headless, &scene, None), expected(2, estimated, 2, false));
    for rules in [&rules, &headless] {
        assert_eq!(of(rules, &scene, Some(&last)), expected(1_000, anchored, 0, true));
    }
    let anew = ClassicRules { anchored: false, ..rules.clone() };
    assert_eq!(of(&anew, &scene, Some(&last)), expected(whole, estimated, whole, true));
    // A turn without reported usage cannot be an anchor.
    let mut silent = last.clone();
    silent.usage.input = None;
    assert_eq!(of(&rules, &scene, Some(&silent)), expected(whole, estimated, whole, true));
    // Of the last output, only the part that comes back is counted.
    let carry = Some(CarryOver { by_rules: 940, ..CarryOver::default() });
    let lost = ClassicEstimate { gone: 60, ..expected(940, anchored, 0, true) };
    assert_eq!(of(&rules, &scene, Some(&Turn { carry, ..last })), lost);
}

/// The factor applies to new content and to what was added to it, not to reported tokens.
#[test]
fn factor_spares_reported_tokens() {
    let scene = SessionFixture::new(FREE, &messages("uau"));
    let last = turn(&SessionFixture::new(FREE, &messages("u")));
    let rules = ClassicRules { factor: 1.5, ..ClassicRules::default() };
    let anchor = Some(Anchor { turn: &last, sketch: &last.sketch.added });
    let seen = |_: &Part| SentContent::Whole;
    let counted = classic(&rules, &scene.conversation, &scene.body, anchor, 4.0, seen);
    assert_eq!(counted.tokens, 1_009);
    assert_eq!(counted.new, 9);
}

#[test]
fn held_history_counts_as_reported() {
    let body = json!({"model": "gpt-5", "previous_response_id": "r", "input": "12345678"});
    let scene = SessionFixture::read(Dialect::OpenaiResponses, "/v1/responses", "gpt-5", &body);
    let last = turn(&SessionFixture::new(FREE, &messages("u")));
    let counted = of(&ClassicRules::default(), &scene, Some(&last));
    assert_eq!(counted.method, EstimateMethod::Held);
    assert_eq!(counted.tokens, 1_002);
    assert_eq!(counted.new, 2);
    assert_eq!(of(&ClassicRules::default(), &scene, None).method, EstimateMethod::Held);
}

/// System prompt and tools that grow or shrink between two calls are in the estimate at once, where the rules counted
/// those of the earlier call.
#[test]
fn changed_system_counts_at_once() {
    let scene = |system: &str| {
        let body =
            json!({"model": FREE, "max_tokens": 9, "system": system, "messages": messages("u")});
        SessionFixture::read(Dialect::Anthropic, "/v1/messages", FREE, &body)
    };
    let short = scene("12345678");
    let last = |method, ruled| {
        let mut last = turn(&short);
        let estimate = last.estimate.as_mut().unwrap();
        // Capped: the breakdown says less than was counted.
        estimate.breakdown = Breakdown { system: 1, head: Some([2, 0]), ..Breakdown::default() };
        estimate.method = method;
        last.carry = Some(CarryOver { by_rules: 940, ruled, ..CarryOver::default() });
        last
    };
    let (estimated, anchored) = (EstimateMethod::Estimated, EstimateMethod::Anchored);
    let with_head = ClassicRules::default();
    let headless = ClassicRules { head: false, ..ClassicRules::default() };
    let counted = |rules, system: &str, last: &Turn| {
        let counted = of(rules, &scene(system), Some(last));
        assert_eq!(1_000 - counted.gone + counted.new, counted.tokens, "{counted:?}");
        (counted.tokens, counted.new, counted.gone)
    };
    let long = "1234".repeat(100);
    for (rules, method) in [(&with_head, estimated), (&with_head, anchored), (&headless, anchored)]
    {
        assert_eq!(counted(rules, &long, &last(method, true)), (1_038, 98, 60));
        assert_eq!(counted(rules, "1234", &last(method, true)), (939, 0, 61));
        assert_eq!(counted(rules, "12345678", &last(method, true)), (940, 0, 60));
        assert_eq!(counted(rules, &long, &last(method, false)), (940, 0, 60), "counted by us");
    }
    assert_eq!(counted(&headless, &long, &last(estimated, true)), (940, 0, 60), "never counted");
}
