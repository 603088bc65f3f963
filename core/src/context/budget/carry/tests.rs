//! What the next request will contain of a turn. The expected numbers are computed by hand.

use serde_json::json;

use super::*;
use crate::context::Estimate;
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::editing::ClearingReport;
use crate::dialect::{ReplyPart, Usage};

/// For a client that sends everything back, under a policy that removes nothing.
fn outlook() -> CarryOutlook {
    CarryOutlook {
        dialect: Dialect::Anthropic,
        streams: false,
        held: false,
        rules: None,
        basis: None,
        clears_past: None,
        strip: StripPolicy::None,
        may_strip: true,
        may_strip_loop: false,
        puts_back: false,
        drops: false,
        dropped_before: false,
        anchor: None,
        thoughts: TokenSums { reasoning: 10, steered: 20, old: 30, ..TokenSums::default() },
        fixed: TokenSums::default(),
        newest: None,
        limits: WindowLimits::default(),
        contents: MessageTokens::default(),
    }
}

/// A reply with reasoning (`t`), text (`w`) and calls (`c`). A capital letter: the part has a signature.
fn reply(letters: &str) -> Reply {
    let part = |letter: char| {
        let kind = match letter.to_ascii_lowercase() {
            't' => PartKind::Reasoning,
            'w' => PartKind::Text,
            _ => PartKind::ToolCall,
        };
        let signature = letter.is_ascii_uppercase().then(|| "c2ln".into());
        let key = (kind != PartKind::Reasoning).then_some(PartKey(1));
        ReplyPart { signature, key, ..ReplyPart::new(kind) }
    };
    Reply { parts: letters.chars().map(part).collect(), ..Reply::default() }
}

/// Whether reasoning comes back in what is sent, whether it does by an agent's rules, and whether none of it is sent.
fn back(outlook: &CarryOutlook, letters: &str) -> (bool, bool, bool) {
    let back = outlook.reply_carry(&reply(letters));
    assert_eq!(back.goes_on, letters.to_ascii_lowercase().contains('c'), "{letters}");
    (back.returns, back.returns_by_rules, back.unsent)
}

const ALL: (bool, bool, bool) = (true, true, false);
const NOTHING: (bool, bool, bool) = (false, false, true);

#[test]
fn no_reasoning_is_not_carried() {
    for (letters, comes) in [("Tw", ALL), ("tw", ALL), ("Tc", ALL), ("w", NOTHING), ("c", NOTHING)]
    {
        assert_eq!(back(&outlook(), letters), comes, "{letters}");
    }
    assert_eq!(back(&outlook(), "T"), NOTHING, "nobody sends reasoning alone");
    let held = CarryOutlook { held: true, ..outlook() };
    assert_eq!(back(&held, "w"), ALL, "the provider holds it");
    assert_eq!(back(&CarryOutlook { dialect: Dialect::Gemini, ..held }, "w"), ALL);
}

#[test]
fn dropped_reasoning_is_carried_over_only_if_it_is_put_back() {
    let drops = CarryOutlook { drops: true, ..outlook() };
    assert_eq!(back(&drops, "tw"), NOTHING);
    assert_eq!(back(&drops, "tc"), NOTHING);
    let puts_back = CarryOutlook { puts_back: true, ..drops.clone() };
    assert_eq!(back(&puts_back, "tw"), ALL);
    assert_eq!(back(&puts_back, "tc"), ALL);
    // Chat Completions look-alikes put signatures on text and calls.
    let chat = CarryOutlook { dialect: Dialect::OpenaiChat, ..outlook() };
    assert_eq!(back(&chat, "W"), ALL);
    let chat = CarryOutlook { dialect: Dialect::OpenaiChat, ..drops };
    assert!(!back(&chat, "W").0);
    let chat = CarryOutlook { puts_back: true, ..chat };
    assert!(back(&chat, "W").0);
}

#[test]
fn reasoning_that_policy_may_strip_is_not_carried_over() {
    let strips = |strip| CarryOutlook { strip, ..outlook() };
    let all = strips(StripPolicy::All);
    assert_eq!(back(&all, "tw"), NOTHING, "a loop keeps its own");
    assert_eq!(back(&all, "tc"), ALL, "a loop keeps its own");
    let all = CarryOutlook { may_strip: false, may_strip_loop: true, ..all };
    assert_eq!(back(&all, "tw"), ALL);
    assert_eq!(back(&all, "tc"), NOTHING);
    assert_eq!(back(&strips(StripPolicy::AllButLast), "tw"), ALL, "it is the last");
}

#[test]
fn half_call_is_not_answered() {
    let mut half = reply("c");
    assert!(outlook().reply_carry(&half).goes_on);
    half.parts[0].key = None;
    assert!(!outlook().reply_carry(&half).goes_on);
}

/// Gemini reads the signature, not the thoughts. An agent's rules do not know signatures.
#[test]
fn gemini_reasoning_is_carried_over_with_its_signature() {
    let gemini = CarryOutlook { dialect: Dialect::Gemini, ..outlook() };
    assert_eq!(back(&gemini, "tW"), ALL);
    assert_eq!(back(&gemini, "tw"), (true, true, true));
    assert_eq!(
        back(&gemini, "Tw"),
        (true, true, true),
        "a signature on the thoughts does not count"
    );
    assert_eq!(back(&gemini, "w"), NOTHING);
    let drops = CarryOutlook { drops: true, ..gemini.clone() };
    assert_eq!(back(&drops, "tW"), ALL, "the signature comes with the text");
    let strips = CarryOutlook { strip: StripPolicy::All, may_strip: false, ..gemini };
    assert_eq!(back(&strips, "W"), (true, false, false));
    assert_eq!(back(&strips, "tC"), (true, false, false), "in an open loop, too");
}

/// A turn of 1,000 input tokens whose reply has 60 tokens of text and 40 of reasoning.
fn turn() -> Turn {
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    turn.usage =
        Usage { input: Some(1000), output: Some(100), reasoning: Some(40), ..Usage::default() };
    turn.reply[0].tokens = 60;
    turn
}

const KEEPS: ReplyCarry = ReplyCarry {
    returns: true,
    unsent: false,
    returns_by_rules: true,
    hidden: false,
    goes_on: true,
};
const LOSES: ReplyCarry = ReplyCarry {
    returns: false,
    unsent: true,
    returns_by_rules: false,
    hidden: false,
    goes_on: false,
};

#[test]
fn carry_over_is_input_reply_and_reasoning_that_is_read() {
    use ReasoningRetention::{Drops, Keeps, Loops, Turns};
    let of = |back, retention| {
        let carry = outlook().carried(&turn(), back, retention, false);
        assert_eq!(carry.returns, back.returns);
        assert!(!carry.drops);
        (carry.tokens, carry.reasoning, carry.by_rules)
    };
    // The turn goes on. Its reasoning: 10 of the current loop, 20 from before the user's last words, 30 of old turns,
    // 40 of the reply.
    assert_eq!(of(KEEPS, Keeps), (1000 + 60 + 40, 10 + 20 + 30 + 40, 1100));
    assert_eq!(of(KEEPS, Loops), (1000 + 60 + 40, 10 + 20 + 40, 1100));
    assert_eq!(of(KEEPS, Turns), (1000 + 60 + 40, 10 + 40, 1100));
    assert_eq!(of(KEEPS, Drops), (1000 + 60, 0, 1100));
    // The user speaks next, so all reasoning becomes old.
    let ends = ReplyCarry { goes_on: false, ..KEEPS };
    assert_eq!(of(ends, Keeps), (1100, 100, 1100));
    assert_eq!(of(ends, Loops), (1000 + 60 - 10 - 20, 0, 1100));
    assert_eq!(of(ends, Turns), (1000 + 60 - 10, 0, 1100));
    assert_eq!(of(LOSES, Keeps), (1000 + 60, 60, 1000 + 100 - 40));
}

/// Some providers also count reasoning that is not sent back.
#[test]
fn reasoning_not_sent_back_counts_if_provider_counts_it() {
    let of = |back, counted| {
        let carry = outlook().carried(&turn(), back, ReasoningRetention::Keeps, counted);
        (carry.tokens, carry.reasoning)
    };
    assert_eq!(of(LOSES, false), (1060, 60));
    assert_eq!(of(LOSES, true), (1100, 100));
    assert_eq!(of(KEEPS, true), (1100, 100), "it is sent back");
}

#[test]
fn reasoning_that_policy_strips_is_not_in_carry_over() {
    let of = |strip, may, may_in_loop, back| {
        let outlook = CarryOutlook {
            strip,
            may_strip: may,
            may_strip_loop: may_in_loop,
            newest: Some(SketchPart {
                key: PartKey(1),
                tokens: 7,
                place: PromptSection::Reasoning,
                by_length: false,
            }),
            ..outlook()
        };
        let stay = outlook.stay(back);
        let carry = outlook.carried(&turn(), back, ReasoningRetention::Keeps, false);
        assert_eq!(
            carry.by_rules + 60 - stay.thoughts(),
            if back.returns_by_rules { 1100 } else { 1060 }
        );
        (stay.reasoning, stay.steered, stay.old)
    };
    use StripPolicy::{All, AllButLast, None as Nothing};
    let ends = ReplyCarry { goes_on: false, ..KEEPS };
    for back in [KEEPS, ends, LOSES] {
        assert_eq!(of(Nothing, true, true, back), (10, 20, 30));
        assert_eq!(of(All, false, false, back), (10, 20, 30));
        assert_eq!(of(All, true, true, back), (0, 0, 0));
    }
    // Policy may keep the reasoning of the current turn and remove that of old turns, or the other way round.
    // Since steered reasoning the user has spoken, so that it goes with that of old turns.
    assert_eq!(of(All, true, false, KEEPS), (10, 0, 0));
    assert_eq!(of(All, false, true, KEEPS), (0, 20, 30));
    assert_eq!(of(All, true, false, ends), (0, 0, 0));
    // The newest reasoning stays, unless the reply has newer reasoning.
    assert_eq!(of(AllButLast, true, true, LOSES), (7, 0, 0));
    assert_eq!(of(AllButLast, true, true, KEEPS), (0, 0, 0));
    assert_eq!(of(AllButLast, false, false, LOSES), (10, 20, 30));
}

/// Reasoning behind a signature on a call is not removed with the reasoning that a client sends.
#[test]
fn reasoning_behind_signature_stays_with_its_call() {
    let signed = TokenSums { reasoning: 3_000, ..TokenSums::default() };
    let of = |strip| {
        let outlook = CarryOutlook {
            strip,
            may_strip_loop: true,
            thoughts: TokenSums { reasoning: 3_010, ..TokenSums::default() },
            fixed: signed,
            ..outlook()
        };
        let carry = outlook.carried(&turn(), KEEPS, ReasoningRetention::Drops, false);
        (outlook.stay(KEEPS).reasoning, carry.by_rules)
    };
    assert_eq!(of(StripPolicy::All), (3_000, 1_100 - 10));
    assert_eq!(of(StripPolicy::AllButLast), (3_000, 1_100 - 10));
    assert_eq!(of(StripPolicy::None), (3_010, 1_100));
}

/// The client sends again what the provider cleared. The provider clears it again if the request asks for it and the
/// prompt is large enough.
#[test]
fn cleared_tokens_come_back_unless_provider_clears_them_again() {
    let mut turn = turn();
    turn.usage.cleared = Some(ClearingReport { input_tokens: 500, ..ClearingReport::default() });
    let of = |clears_past| {
        let outlook = CarryOutlook { clears_past, ..outlook() };
        outlook.carried(&turn, KEEPS, ReasoningRetention::Keeps, false).tokens
    };
    assert_eq!(of(None), 1_600);
    assert_eq!(of(Some(1_600)), 1_600);
    assert_eq!(of(Some(1_599)), 1_100);
}

/// Without reported usage, only the estimate and the tokens counted in the reply are known.
#[test]
fn without_usage_estimate_carries() {
    let mut turn = turn();
    turn.usage = Usage::default();
    let estimate = turn.estimate.take().unwrap();
    let of = |turn: &Turn| {
        let carry = outlook().carried(turn, KEEPS, ReasoningRetention::Keeps, false);
        (carry.tokens, carry.by_rules)
    };
    assert_eq!(of(&turn), (60, 60));
    assert_eq!(turn.carried(), None);
    turn.estimate = Some(Estimate { tokens: 700, ..estimate });
    assert_eq!(of(&turn), (760, 760));
    assert_eq!(turn.carried(), Some(700));
}

/// By an agent's rules, the reply counts as its client will send it back, with one rounding for all that is new. The call
/// before it stays the basis.
#[test]
fn without_usage_rules_count() {
    let text = ReplyPart {
        text: "12345678".into(),
        key: Some(PartKey(1)),
        ..ReplyPart::new(PartKind::Text)
    };
    let call = ReplyPart {
        text: r#"{"n": 1}"#.into(),
        name: Some("Read".into()),
        id: Some("c1".into()),
        key: Some(PartKey(2)),
        ..ReplyPart::new(PartKind::ToolCall)
    };
    let reply = Reply { parts: vec![text, call], ..Reply::default() };
    let mut turn = turn();
    turn.usage = Usage::default();
    let basis = Some(LastCall { input: 400, output: 100 });
    let of = |dialect, rules: &ClassicRules| {
        let rules = Some(RulesCount {
            rules: rules.clone(),
            before: 500,
            weight: 10.4,
            stripped: 0.0,
            after: None,
        });
        let outlook = CarryOutlook { dialect, rules, basis, ..outlook() };
        let model = crate::dialect::models::Catalogue::default().model("gpt-5", "");
        let learned = EstimatorState::new(model.family);
        let carry = outlook.carry_over(&turn, &reply, &model, &learned);
        assert_eq!(carry.basis, basis);
        assert!(carry.ruled);
        carry.by_rules
    };
    let dialects =
        [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];
    for dialect in dialects {
        // Two for the text, one for the name, two for `{"n":1}`.
        let counted = of(dialect, &ClassicRules::default());
        assert!((500 + 16..=500 + 17).contains(&counted), "{dialect:?}: {counted}");
    }
    let micro = ClassicRules {
        message_tokens: 12,
        tool_block_tokens: 24,
        factor: 2.0,
        ..ClassicRules::default()
    };
    // One message; in Responses, each item is one.
    let expected =
        |messages: f64| 500 + ((10.4 + 12.0 * messages + 2.0 + 24.0 + 3.0) * 2.0).ceil() as u64;
    assert_eq!(of(Dialect::Anthropic, &micro), expected(1.0));
    let blocks = ClassicRules {
        calls: crate::tokens::classic::CountedContent::Json,
        ..ClassicRules::default()
    };
    let block = r#"{"functionCall":{"name":"Read","args":{"n":1}}}"#.len().div_ceil(4) as u64;
    assert_eq!(of(Dialect::Gemini, &blocks), 500 + 11 + 2 + block);
}

/// If a reply broke off, its counted tokens are used if they are more than was reported.
#[test]
fn incomplete_reply_is_measured_by_what_arrived() {
    let of = |change: fn(&mut Usage)| {
        let mut turn = turn();
        turn.usage.lower_bound = true;
        change(&mut turn.usage);
        turn.context().map(|context| (context.input, context.output))
    };
    assert_eq!(of(|usage| usage.output = Some(10)), Some((1000, 60)));
    assert_eq!(of(|usage| usage.output = None), Some((1000, 60)));
    assert_eq!(of(|_| {}), Some((1000, 100)));
    assert_eq!(of(|usage| usage.input = None), None);
    assert_eq!(of(|usage| usage.hosted_tools = true), None, "it measures something else");
    assert_eq!(of(|usage| usage.last_call = Some(LastCall { input: 1, output: 1 })), None);
    assert_eq!(of(|usage| (usage.lower_bound, usage.hosted_tools) = (false, true)), None);
}

/// OpenAI's Chat Completions does not show reasoning, so it never comes back.
#[test]
fn turn_leaves_its_stored_carry_over() {
    let mut turn = turn();
    assert_eq!(turn.carried_by_rules(), Some(1100));
    assert_eq!(turn.carried(), Some(1100));
    (turn.dialect, turn.family) = (Dialect::OpenaiChat, Family::O200k);
    assert_eq!(turn.carried_by_rules(), Some(1060));
    assert_eq!(turn.carried(), Some(1060));
    turn.family = Family::Claude;
    assert_eq!(turn.carried(), Some(1100));
    let carry = CarryOver { tokens: 900, by_rules: 800, ..CarryOver::default() };
    turn.carry = Some(carry.clone());
    assert_eq!(turn.carried_by_rules(), Some(800));
    assert_eq!(turn.carried(), Some(900));
    turn.carry = Some(CarryOver { ruled: true, ..carry });
    assert_eq!(turn.carried(), Some(800));
}

/// A client drops reasoning if reasoning was expected back and did not come, or if that was seen before.
#[test]
fn client_dropping_reasoning_is_seen() {
    let thought = |key| SketchPart {
        key: PartKey(key),
        tokens: 9,
        place: PromptSection::Reasoning,
        by_length: false,
    };
    let text = |key| SketchPart { place: PromptSection::History, ..thought(key) };
    let of = |before: &[SketchPart], now: &[SketchPart], returns, drops| {
        let mut turn = turn();
        turn.carry = Some(CarryOver { returns, drops, ..CarryOver::default() });
        has_dropped(now, Some(Anchor { turn: &turn, sketch: before }), true)
    };
    let before = [text(1), thought(2)];
    assert!(of(&before, &[text(1), thought(2), text(3)], true, false));
    assert!(!of(&before, &[text(1), thought(2), thought(3)], true, true), "it came");
    assert!(!of(&before, &[thought(2), thought(2)], true, true), "as often as a signature comes");
    assert!(of(&[thought(2), thought(2)], &[thought(2), text(9)], true, false));
    for drops in [false, true] {
        assert_eq!(of(&before, &before, false, drops), drops, "nothing was expected");
    }
    let mut none = turn();
    (none.usage.reasoning, none.reply[0].tokens) = (None, 100);
    none.carry = Some(CarryOver { returns: true, ..CarryOver::default() });
    assert!(
        !has_dropped(&before, Some(Anchor { turn: &none, sketch: &before }), true),
        "it had none"
    );
    none.carry = None;
    assert!(!has_dropped(&before, Some(Anchor { turn: &none, sketch: &before }), true));
    assert!(!has_dropped(&before, None, true));
}

/// A client that repeats its request, or goes on without the reply, says nothing about the reply's reasoning.
#[test]
fn repeated_request_does_not_show_that_its_client_drops_reasoning() {
    let has = |letters: &str| {
        let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        let reply = scene.reply(&json!([
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": "Aye."}]));
        let turn = scene.turn(&reply);
        let next = SessionFixture::new("claude-opus-4-6", &messages(letters));
        has_reply(&next.conversation, &Anchor { turn: &turn, sketch: &[] })
    };
    assert!(has("uau"));
    assert!(!has("u"));
    assert!(!has("uu"));
}

/// A turn stores the tokens by each way of counting, what its messages are made of, and the limits of the window.
#[test]
fn turn_stores_its_carry_over_and_its_window_limits() {
    use crate::context::policy::ClassicRole;
    let carried = |change: fn(&mut SessionFixture)| {
        let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        change(&mut scene);
        let request = scene.request();
        let limits = WindowLimits { fillable: 7, ..WindowLimits::default() };
        let learned = EstimatorState::new(scene.model.family);
        let plan = scene.plan();
        let known = scene.known();
        let measured =
            crate::context::budget::estimate(&request, &plan.sent, &known, None, &learned);
        let reply = scene.reply(&json!([{"type": "text", "text": "Aye. ".repeat(50)}]));
        let outlook = CarryOutlook::new(&request, &measured, None, true, limits);
        outlook.carry_over(&scene.turn(&reply), &reply, &scene.model, &learned)
    };
    let plain = carried(|_| {});
    let user = plain.contents.user;
    let contents = MessageTokens { user, assistant: 100, ..MessageTokens::default() };
    let expected = CarryOver {
        tokens: 1_000,
        by_rules: 1_000,
        basis: None,
        ruled: false,
        reasoning: 0,
        returns: false,
        drops: false,
        hidden: false,
        limits: Some(WindowLimits { fillable: 7, ..WindowLimits::default() }),
        contents,
    };
    assert!(user > 0);
    assert_eq!(plain, expected);
    let ruled = carried(|scene| scene.policy.estimate.decides = ClassicRole::Budget);
    assert_eq!(ruled, CarryOver { ruled: true, ..expected });
    let displayed =
        |ruled| CarryOver { tokens: 5, by_rules: 6, ruled, ..CarryOver::default() }.displayed();
    assert_eq!(displayed(false), 5);
    assert_eq!(displayed(true), 6);
}

/// Where no usage was reported, sent reasoning that policy removes next does not count: not in the open loop, where it
/// has to stay.
#[test]
fn without_usage_reasoning_that_goes_does_not_count() {
    let mut turn = turn();
    turn.usage = Usage::default();
    let shown = |letters: &str| {
        let rules = ClassicRules::default();
        let rules = RulesCount { rules, before: 0, weight: 90.0, stripped: 40.0, after: None };
        let rules = Some(RulesCount { after: Some(turn.position.chain), ..rules });
        let outlook = CarryOutlook { rules, strip: StripPolicy::All, ..outlook() };
        let model = crate::dialect::models::Catalogue::default().model("gpt-5", "");
        let learned = EstimatorState::new(model.family);
        outlook.carry_over(&turn, &reply(letters), &model, &learned).by_rules
    };
    assert_eq!(shown("w"), 50);
    assert_eq!(shown("c"), 90);
}
