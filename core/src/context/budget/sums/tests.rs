//! Estimates from an anchor. The expected numbers are computed by hand.

use serde_json::json;

use super::*;
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::PartKey;
use crate::dialect::editing::ClearingReport;
use crate::dialect::models::Family;

fn part(tokens: u32, place: PromptSection) -> SketchPart {
    SketchPart { key: PartKey(u128::from(tokens)), tokens, place, by_length: false }
}

fn turn(input: u64, output: u64) -> Turn {
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    (turn.usage.input, turn.usage.output) = (Some(input), Some(output));
    turn
}

fn cleared_turn(input: u64, cleared: u64) -> Turn {
    let mut turn = turn(input, 0);
    turn.usage.cleared =
        Some(ClearingReport { input_tokens: cleared, ..ClearingReport::default() });
    turn
}

#[test]
fn reasoning_is_summed_by_section_and_counted_by_retention() {
    let sums = TokenSums::from_parts(&[
        part(1, PromptSection::System),
        part(2, PromptSection::Tools),
        part(4, PromptSection::SystemItem),
        part(8, PromptSection::ToolsItem),
        part(16, PromptSection::History),
        part(100, PromptSection::Reasoning),
        part(1_000, PromptSection::SteeredReasoning),
        part(10_000, PromptSection::OldReasoning),
    ]);
    assert_eq!(sums.content, 31);
    assert_eq!(sums.thoughts(), 11_100);
    let read =
        TokenSums { around: -1, around_read: 5, ..sums }.by_retention().map(|(_, tokens)| tokens);
    let by = |retention: ReasoningRetention| read[retention as usize];
    assert_eq!(by(ReasoningRetention::Keeps), 30 + 11_100 + 5);
    assert_eq!(by(ReasoningRetention::Loops), 30 + 1_100 + 5);
    assert_eq!(by(ReasoningRetention::Turns), 30 + 100 + 5);
    assert_eq!(by(ReasoningRetention::Drops), 30);
    let sketch = [
        part(1, PromptSection::System),
        part(4, PromptSection::SystemItem),
        part(2, PromptSection::Tools),
        part(8, PromptSection::ToolsItem),
        part(16, PromptSection::History),
        part(100, PromptSection::Reasoning),
    ];
    let there = places(&sketch, ReasoningRetention::Turns);
    assert_eq!(there.system, 5);
    assert_eq!(there.tools, 10);
    assert_eq!(there.messages, 16);
    assert_eq!(there.reasoning, 100);
    assert_eq!(places(&sketch, ReasoningRetention::Drops).reasoning, 0);
}

/// An estimate is the reported tokens, plus what came, less what left. Parts that stayed cancel out.
#[test]
fn estimate_is_reported_tokens_plus_new_less_gone_parts() {
    let (turn, sketch) = (turn(5_000, 100), [part(4_000, PromptSection::History)]);
    let anchor = Anchor { turn: &turn, sketch: &sketch };
    let of = |all, left| grown(&anchor, ReasoningRetention::Keeps, all, 0, left, None);
    assert_eq!(of(4_600, 0), 5_600);
    assert_eq!(of(3_500, 999), 4_500, "little leaves with every call of some clients");
    // A quarter of the history leaves, and with it a quarter of the 1,000 tokens that were counted too few.
    assert_eq!(of(3_000, 1_000), 3_750);
    assert_eq!(gone_history(&anchor, ReasoningRetention::Keeps, 1_000), 1_250);
    assert_eq!(gone_history(&anchor, ReasoningRetention::Keeps, 999), 999);
}

/// If more reasoning leaves than was reported at all, nothing of it is left, and what is new comes on top: the number
/// that is shown between the two is 0.
#[test]
fn what_is_new_counts_whatever_leaves() {
    let (turn, sketch) = (turn(5_000, 0), [part(60_000, PromptSection::Reasoning)]);
    let anchor = Anchor { turn: &turn, sketch: &sketch };
    assert_eq!(grown(&anchor, ReasoningRetention::Keeps, 170, 170, 0, None), 170);
}

/// A wrong count of the whole is corrected down to half of it or up to double.
#[test]
fn wrong_count_is_shared_in_bounds() {
    assert_eq!(miscounted(5_000, 4_000, 2_000), 500);
    assert_eq!(miscounted(3_000, 4_000, 2_000), -500);
    assert_eq!(miscounted(90_000, 4_000, 2_000), 2_000);
    assert_eq!(miscounted(0, 4_000, 2_000), -1_000);
    assert_eq!(miscounted(5_000, 4_000, 9_000), 1_000, "no more can leave than there was");
    assert_eq!(miscounted(5_000, 4_000, 999), 0);
    assert_eq!(miscounted(5_000, 0, 2_000), 0);
}

/// From one tokenizer to another the whole is scaled, because counts of parts cannot be compared.
#[test]
fn another_tokenizers_count_is_scaled() {
    let turn = turn(6_000, 0);
    let of = |sketch: &[SketchPart], all| rescaled(&Anchor { turn: &turn, sketch }, all, None);
    assert_eq!(of(&[part(4_000, PromptSection::History)], 5_000), 7_500);
    assert_eq!(of(&[], 5_000), 5_000, "nothing is known of it");
}

#[test]
fn cleared_tokens_are_left_out_if_provider_clears_again() {
    let (turn, sketch) = (cleared_turn(1_000, 500), [part(1_500, PromptSection::History)]);
    let anchor = Anchor { turn: &turn, sketch: &sketch };
    let of = |past| grown(&anchor, ReasoningRetention::Keeps, 1_600, 0, 0, past);
    assert_eq!(of(None), 1_600);
    assert_eq!(of(Some(1_600)), 1_600);
    assert_eq!(of(Some(1_599)), 1_100);
    let next = |past| cleared_next(&turn, 1_100, past);
    assert_eq!(next(None), 1_600);
    assert_eq!(next(Some(1_600)), 1_600);
    assert_eq!(next(Some(1_599)), 1_100);
}

/// New is what came; gone is what makes the sum right.
#[test]
fn new_and_gone_tokens_add_up() {
    let turn = turn(1_000, 100);
    let anchor = Anchor { turn: &turn, sketch: &[] };
    for (counted, tokens, new, moves) in [
        (1_300, 1_300, 200, (200, 0)),
        (1_200, 1_200, 200, (200, 100)),
        (1_300, 1_350, 200, (250, 0)),
        (1_300, 1_250, 200, (150, 0)),
        (1_400, 1_400, 200, (300, 0)),
    ] {
        let (new, gone) = moved(&anchor, counted, tokens, new);
        assert_eq!((new, gone), moves, "{counted}, {tokens}");
        assert_eq!(1_100 + new - gone, tokens);
    }
}

/// A guess does not fall below what is sent now, scaled by the error of the whole. What left makes its band wider.
#[test]
fn prediction_never_falls_to_zero() {
    let (turn, sketch) = (turn(1_000, 0), [part(2_000, PromptSection::History)]);
    let anchor = Anchor { turn: &turn, sketch: &sketch };
    let now = TokenSums { content: 800, ..TokenSums::default() };
    let guess = |tokens, head_left| {
        let guess =
            CostPrediction { tokens, low: tokens, high: tokens, ..CostPrediction::default() };
        let guess = floored(guess, &anchor, &now, head_left);
        (guess.tokens, guess.low, guess.high)
    };
    // Half of what was counted was reported, so 800 tokens count as 400.
    assert_eq!(guess(500, 0), (500, 500, 500));
    assert_eq!(guess(500, 300), (500, 350, 650), "half of what left is unsure");
    assert_eq!(guess(200, 0), (200, 200, 200));
    assert_eq!(guess(200, 2_000), (200, 100, 1_200), "a quarter of them at least");
    assert_eq!(guess(199, 0), (400, 100, 800));
    assert_eq!(guess(0, 4_000), (400, 100, 2_000));
}

#[test]
fn reply_reasoning_is_output_that_other_parts_do_not_explain() {
    let mut turn = turn(1_000, 100);
    turn.reply[0].tokens = 70;
    assert_eq!(reasoning_of(&turn), 30);
    assert_eq!(reported_reasoning(&turn), 0);
    turn.usage.reasoning = Some(40);
    assert_eq!(reasoning_of(&turn), 40);
    assert_eq!(reported_reasoning(&turn), 40);
    turn.usage.reasoning = Some(140);
    assert_eq!(reasoning_of(&turn), 100, "no more than was generated");
    let sketch = [part(5, PromptSection::OldReasoning), part(6, PromptSection::History)];
    assert_eq!(thoughts(&Anchor { turn: &turn, sketch: &sketch }), 105);
    turn.usage.input = None;
    assert_eq!(reasoning_of(&turn), 0);
}

/// A call of Gemini's between what it would cost with all of the reasoning and without any: what did not count does not
/// count in the next reply either.
#[test]
fn reasoning_that_counts_in_part_returns_in_part() {
    let mut turn = turn(10_470, 700);
    turn.usage.reasoning = Some(600);
    turn.reply[0].tokens = 100;
    let estimate = turn.estimate.as_mut().unwrap();
    estimate.guess.by_retention = [10_600, 10_600, 10_600, 10_000];
    assert_eq!(returned_reasoning(&turn), 600, "only Gemini reports a part");
    turn.family = Family::Gemini;
    assert_eq!(returned_reasoning(&turn), 470);
    turn.usage.reasoning = Some(100);
    turn.usage.output = Some(200);
    assert_eq!(returned_reasoning(&turn), 0, "all of it");
}
