//! The text of a context view, character by character.

use super::*;
use crate::context::records::{SectionTokens, ToolTokens};

fn view() -> ContextView {
    let breakdown = Breakdown { system: 4_000, tools: 8_000, messages: 40_100, ..<_>::default() };
    ContextView {
        method: Some(EstimateMethod::Anchored),
        basis: Some(EstimateBasis { input: 50_000, output: 2_000, cut: false, new: 100, gone: 0 }),
        last_error_percent: Some(0.6),
        hidden_input: None,
        ..ContextView::new(breakdown, 200_000, 16_000)
    }
}

#[test]
fn text_view_has_exact_layout() {
    let text = "\
Context Usage: 52,100 / 200,000 tokens (26%)
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

Breakdown:
  System prompt:   4,000 tokens (estimated)
  Tools:           8,000 tokens (estimated)
  Messages:       40,100 tokens (back-calculated)
  ─────────────────────────────
  Total:          52,100 tokens

Calculation basis:
  Last actual input:  50,000 tokens
  Last output:         2,000 tokens
  New since then:        100 tokens (estimated)

Last estimate accuracy: +0.6% error

Free space: 131,900 tokens (after 16,000 output buffer)";
    assert_eq!(view().to_string(), text);
}

/// With hidden input, a difference is no error of the estimate, so none is shown.
#[test]
fn hidden_input_replaces_error() {
    let view = ContextView {
        last_error_percent: None,
        hidden_input: Some(HiddenInput::HostedTools),
        ..view()
    };
    let text = view.to_string();
    assert!(!text.contains("accuracy"), "{text}");
    assert!(text.contains("Last estimate: not comparable, tools ran at the provider\n"), "{text}");
}

/// Each section stands below the item that contains it.
#[test]
fn sections_are_listed_below_item_that_contains_them() {
    let sections = SectionTokens { mcp_tools: 5_000, memory: 2_900, skills: 700, agents: 0 };
    let breakdown = Breakdown { sections, ..view().breakdown };
    let text = ContextView { breakdown, ..view() }.to_string();
    let lines = "\
  Tools:           8,000 tokens (estimated)
    MCP tools:     5,000 tokens (estimated)
  Messages:       40,100 tokens (back-calculated)
    Memory files:  2,900 tokens (estimated)
    Skills:          700 tokens (estimated)
  ───";
    assert!(text.contains(lines), "{text}");
    let json = serde_json::to_value(breakdown).unwrap();
    assert_eq!(json["mcp_tools"], 5_000);
    assert!(json["agents"].is_null());
    assert_eq!(serde_json::from_value::<Breakdown>(json).unwrap(), breakdown);
}

#[test]
fn provider_count_is_in_view() {
    let counted = Some(ProviderCount { of_original: false, tokens: 51_987 });
    let text = ContextView { counted, ..view() }.to_string();
    assert!(text.ends_with("\n\nCounted by the provider: 51,987 tokens, as it was sent"), "{text}");
    let counted = Some(ProviderCount { of_original: true, tokens: 90_000 });
    assert!(ContextView { counted, ..view() }.to_string().contains("90,000 tokens, as it came"));
}

#[test]
fn numbers_are_grouped_in_threes() {
    let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_048_576, "1,048,576")];
    for (number, text) in cases {
        assert_eq!(grouped(number), text);
    }
}

#[test]
fn view_without_reported_usage_is_marked_as_estimated() {
    let view = ContextView { method: Some(EstimateMethod::Estimated), basis: None, ..view() };
    let text = view.to_string();
    assert!(
        text.starts_with("Context Usage: 52,100 / 200,000 tokens (26%) (estimated)\n"),
        "{text}"
    );
    assert!(text.contains("Messages:       40,100 tokens (estimated)\n"), "{text}");
    assert!(text.contains("Total:          52,100 tokens (estimated)\n"), "{text}");
    assert!(!text.contains("Calculation basis"), "{text}");
}

#[test]
fn view_shows_gone_and_capped() {
    let breakdown = Breakdown { capped: true, system: 30, tools: 70, ..<_>::default() };
    let basis = Some(EstimateBasis {
        input: 2_000_000,
        output: 1_500,
        cut: false,
        new: 0,
        gone: 1_001_400,
    });
    let text = ContextView { basis, ..ContextView::new(breakdown, 1_048_576, 16_000) }.to_string();
    assert!(text.contains("Messages:            0 tokens (capped: "), "{text}");
    assert!(text.contains("  Last actual input: 2,000,000 tokens\n"), "{text}");
    assert!(text.contains("  Gone since then: 1,001,400 tokens (estimated)\n"), "{text}");
}

#[test]
fn window_that_is_overfull_or_unknown_has_no_room() {
    let full = ContextView::new(Breakdown { messages: 250_000, ..<_>::default() }, 200_000, 16_000);
    assert_eq!(full.free, 0);
    assert_eq!(full.percent, 125.0);
    let unknown = ContextView::new(Breakdown::default(), 0, 16_000);
    assert_eq!(unknown.free, 0);
    assert_eq!(unknown.percent, 0.0);
}

/// Rewrites stand below the free space. Without any there is no line.
#[test]
fn rewrites_have_one_line_in_view() {
    let rewriting_line = |rewriting: RewriteView| {
        let text = ContextView { rewriting, ..view() }.to_string();
        let line = text.lines().next_back().unwrap().to_owned();
        line.starts_with("Rewriting").then_some(line)
    };
    let made = ChangeCounts { cut: 3, put_back: 1, ..ChangeCounts::default() };
    let active = RewriteView { made, tokens_removed: 12_400, ..<_>::default() };
    let line = "Rewriting (active): 3 tool results cut, 1 piece of reasoning put back, \
                12,400 tokens less";
    assert_eq!(rewriting_line(active).as_deref(), Some(line));
    let shadow =
        RewriteView { mode: Mode::Shadow, made: ChangeCounts { cut: 0, ..made }, ..active };
    let line = "Rewriting (shadow): 1 piece of reasoning put back; only measured, not sent";
    assert_eq!(rewriting_line(shadow).as_deref(), Some(line));
    let line = "; refused by the provider, sent as it came";
    assert!(rewriting_line(RewriteView { resent: true, ..active }).unwrap().ends_with(line));
    let line = "; the new changes were refused and revoked";
    let revoked = RewriteView { revoked: true, ..active };
    assert!(rewriting_line(revoked).unwrap().ends_with(line));
    assert_eq!(serde_json::to_value(revoked).unwrap()["revoked"], true, "its served name");
    let held_out = RewriteView { held_out: true, ..<_>::default() };
    assert_eq!(rewriting_line(held_out).as_deref(), Some("Rewriting (active, held out): nothing"));
    assert_eq!(rewriting_line(RewriteView::default()), None);
}

#[test]
fn request_in_flight_is_marked() {
    let text = ContextView { in_flight: true, ..view() }.to_string();
    assert!(text.starts_with("Context Usage: 52,100 / 200,000 tokens (26%) (in flight)\n"));
}

#[test]
fn view_survives_json_round_trip() {
    let json = serde_json::to_string(&view()).unwrap();
    assert_eq!(serde_json::from_str::<ContextView>(&json).unwrap(), view());
}

/// A view in which everything that can be shown is set.
fn whole() -> ContextView {
    let tool = |tool: &str, tokens| ToolTokens { tool: tool.into(), tokens };
    let contents = MessageTokens {
        user: 20_000,
        assistant: 5_000,
        tool_calls: 1_100,
        tool_results: vec![tool("Read", 6_000), tool("Bash", 2_000)],
        media: 1_500,
        summaries: 900,
        other: 600,
        deferred: vec![tool("Look", 0), tool("Find", 0)],
        deferred_more: 1_002,
        ..MessageTokens::default()
    };
    let sections = SectionTokens { mcp_tools: 5_000, memory: 2_900, skills: 0, agents: 700 };
    let breakdown = Breakdown { sections, reasoning: 3_000, ..view().breakdown };
    let basis = EstimateBasis { input: 50_000, output: 3_000, cut: true, new: 100, gone: 1_000 };
    let reported = crate::dialect::overflow::Overflow { window: Some(200_000), ..<_>::default() };
    let overflow = OverflowReport {
        sign: crate::context::overflow::OverflowSign::Refused,
        reported,
        saved: true,
    };
    let made = ChangeCounts { cut: 1, compacted: 1, ..<_>::default() };
    let rewriting = RewriteView {
        held_out: true,
        overflow: Some(overflow),
        made,
        tokens_removed: 1_000,
        tokens_compacted: 2_400,
        ..<_>::default()
    };
    let view = ContextView {
        breakdown,
        basis: Some(basis),
        hidden_input: Some(HiddenInput::ProviderEdit),
        tool_use_prompt: Some(1_234),
        rewriting,
        next_input: Some(NextInput {
            dollars: 0.0125,
            warm: 0.0125,
            cold: 0.25,
            cached_until: Some(300_000),
        }),
        ..view()
    };
    view.with(Some(limits())).made_of(Some(&contents))
}

fn limits() -> WindowLimits {
    WindowLimits {
        fillable: 184_000,
        pruning: Some(92_000),
        preparing: Some(110_400),
        compacting: Some(165_600),
        refusing: Some(200_000),
        buffer: Some(34_400),
    }
}

/// The full text: sections and contents stand below the item that contains them, then come the basis of the
/// calculation, the free space, the counts, the changes and the limits.
#[test]
fn full_view_has_exact_layout() {
    let view = whole();
    let overflow = view.rewriting.overflow.unwrap();
    let text = format!(
        "\
Context Usage: 52,100 / 200,000 tokens (26%)
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

Breakdown:
  System prompt:   4,000 tokens (estimated)
  Tools:           8,000 tokens (estimated)
    MCP tools:     5,000 tokens (estimated)
    Deferred:          0 tokens (Look, Find and 1,002 more)
  Messages:       40,100 tokens (back-calculated)
    User:         20,000 tokens (estimated)
      Memory files: 2,900 tokens (estimated)
      Agents:        700 tokens (estimated)
    Assistant:     5,000 tokens (estimated)
    Tool calls:    1,100 tokens (estimated)
    Tool results:  8,000 tokens (estimated)
      Read:        6,000 tokens (estimated)
      Bash:        2,000 tokens (estimated)
    Reasoning:     3,000 tokens (estimated)
    Media:         1,500 tokens (estimated)
    Summaries:       900 tokens (estimated)
    Other:           600 tokens (estimated)
  ─────────────────────────────
  Total:          52,100 tokens

Calculation basis:
  Last actual input:  50,000 tokens
  Last output:         3,000 tokens (estimated, the reply was cut)
  New since then:        100 tokens (estimated)
  Gone since then:     1,000 tokens (estimated)

Last estimate: not comparable, the provider edited the history

Autocompact buffer: 34,400 tokens
Free space: 113,500 tokens (after the buffer)
Next call's input: $0.0125 (cached until 00:05 UTC, then $0.2500)

Tool-use prompt: 1,234 tokens (for tools at the provider; they do not stay)
Rewriting (active, held out): 1 tool result cut, 1 history compacted, 3,400 tokens less
Overflow: {overflow}

Thresholds:
  Pruning:        92,000 tokens (46.0%)
  Preparing:     110,400 tokens (55.2%)
  Compacting:    165,600 tokens (82.8%)
  Refusing:      200,000 tokens (100.0%)"
    );
    assert_eq!(view.to_string(), text);
}

/// A limit that does not exist, and a number that is 0, have no line.
#[test]
fn zero_counts_have_no_line() {
    let view = whole();
    // A count of 0 has no line, and a reply that was not cut was reported. A guessed window does not decide.
    let unknown = WindowLimits { pruning: Some(0), refusing: None, buffer: None, ..limits() };
    let few = MessageTokens { user: 9, ..<_>::default() };
    let basis = EstimateBasis { cut: false, gone: 0, ..view.basis.unwrap() };
    let plain = ContextView { basis: Some(basis), rewriting: RewriteView::default(), ..view };
    let plain = plain.with(Some(unknown)).made_of(Some(&few)).to_string();
    for gone in ["Assistant:", "Deferred", "Gone since", "was cut", "Rewriting", "Refusing:"] {
        assert!(!plain.contains(gone), "{gone}: {plain}");
    }
    let lines = "Thresholds:\n  Pruning:       with every call\n  Preparing:";
    assert!(plain.contains(lines), "{plain}");
    let lines = "\n  The model is unknown: its window is a guess, and no decision uses it.";
    assert!(plain.ends_with(lines), "{plain}");
}

/// If the contents of the messages are shown, they replace the lines for sections and reasoning, so that these appear
/// once.
#[test]
fn sections_are_shown_once() {
    let sections = SectionTokens { skills: 300, ..<_>::default() };
    let breakdown = Breakdown { sections, reasoning: 2_000, ..view().breakdown };
    let view = ContextView { breakdown, ..view() };
    let without = view.to_string();
    assert!(without.contains("    Skills:          300 tokens"), "{without}");
    assert!(without.contains("    Reasoning:     2,000 tokens"), "{without}");
    let contents = MessageTokens { user: 40_000, ..<_>::default() };
    let with = view.clone().made_of(Some(&contents)).to_string();
    assert_eq!(with.matches("Skills:").count(), 1, "{with}");
    assert_eq!(with.matches("Reasoning:").count(), 1, "{with}");
    // Empty contents count as none.
    assert_eq!(view.clone().made_of(Some(&MessageTokens::default())), view);
    assert_eq!(view.clone().made_of(None).with(None), view);
}

/// A turn that was rewritten in shadow mode, and how it is shown.
fn rewritten() -> (Turn, RewriteView) {
    use crate::context::scene::{SessionFixture, messages};
    use crate::dialect::refusal::RefusalCause;
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let reply = scene.reply(&serde_json::json!([{"type": "text", "text": "Aye."}]));
    let mut turn = scene.turn(&reply);
    turn.done = RewriteSummary {
        made: ChangeCounts { cut: 3, ..<_>::default() },
        new: ChangeCounts { cut: 1, ..<_>::default() },
        tokens_removed: 100,
        tokens_pruned: 40,
        tokens_compacted: 7,
        mode: Mode::Shadow,
        held_out: true,
        resent: Some(RefusalCause::Structure),
        ..RewriteSummary::default()
    };
    turn.counted = Some(ProviderCount { of_original: true, tokens: 901 });
    turn.usage.tool_use_prompt = Some(12);
    turn.estimate.as_mut().unwrap().tokens = 990;
    let carry = crate::context::records::CarryOver { tokens: 960, reasoning: 30, ..<_>::default() };
    turn.carry = Some(carry);
    let rewriting = RewriteView {
        mode: Mode::Shadow,
        held_out: true,
        resent: true,
        revoked: false,
        overflow: None,
        made: turn.done.made,
        new: turn.done.new,
        summary_by: None,
        compacted_from: None,
        tokens_removed: 100,
        tokens_pruned: 40,
        tokens_compacted: 7,
    };
    (turn, rewriting)
}

/// The view after a turn, and the view of a request in flight: each number is that of the turn, the plan or the
/// estimate.
#[test]
fn view_shows_numbers_of_its_turn_plan_and_estimate() {
    let (mut turn, rewriting) = rewritten();
    let after = ContextView::after(&turn);
    let expected = ContextView {
        basis: Some(EstimateBasis { input: 900, output: 100, cut: false, new: 0, gone: 40 }),
        last_error_percent: Some(10.0),
        counted: turn.counted,
        tool_use_prompt: Some(12),
        rewriting,
        ..ContextView::new(after.breakdown, turn.window, turn.reserve)
    };
    assert_eq!(after, expected);
    assert_eq!(after.total, 960);
    assert_eq!(after.breakdown.reasoning, 30);
    // The estimate was a tenth too low. With hidden input, it cannot be compared.
    turn.estimate.as_mut().unwrap().tokens = 810;
    assert_eq!(ContextView::after(&turn).last_error_percent, Some(-10.0));
    turn.usage.hosted_tools = true;
    let hidden = ContextView::after(&turn);
    let shown = (hidden.last_error_percent, hidden.hidden_input);
    assert_eq!(shown, (None, Some(HiddenInput::HostedTools)));
    turn.usage.hosted_tools = false;
    // A request whose parent is that turn.
    let estimate = Estimate {
        tokens: 1_100,
        new: 105,
        gone: 5,
        method: EstimateMethod::Anchored,
        ..turn.estimate.clone().unwrap()
    };
    let before =
        |estimate: &Estimate| ContextView::before(estimate, 200_000, 9, Some(&turn), &turn.done);
    let expected = ContextView {
        method: Some(EstimateMethod::Anchored),
        basis: Some(EstimateBasis { input: 900, output: 100, cut: false, new: 105, gone: 5 }),
        last_error_percent: Some(-10.0),
        rewriting,
        in_flight: true,
        ..ContextView::new(estimate.breakdown, 200_000, 9)
    };
    assert_eq!(before(&estimate), expected);
    let anew = Estimate { method: EstimateMethod::Estimated, ..estimate };
    assert_eq!(before(&anew).basis, None);
    assert_eq!(before(&anew).method, Some(EstimateMethod::Estimated));
    // Nothing was reported: everything is estimated.
    turn.usage.input = None;
    let silent = ContextView::after(&turn);
    assert_eq!(silent.basis, None);
    assert_eq!(silent.method, Some(turn.estimate.unwrap().method));
    assert_eq!(silent.last_error_percent, None);
    // Without new cuts, `tokens_pruned` is not written.
    let json = |tokens_pruned| {
        serde_json::to_value(RewriteView { tokens_pruned, ..rewriting }).unwrap()["tokens_pruned"]
            .as_u64()
    };
    assert_eq!(json(0), None);
    assert_eq!(json(7), Some(7));
}

/// Without reported input there is no error to show, nor if the reported input is 0.
#[test]
fn reported_input_of_zero_shows_no_estimate_error() {
    use crate::context::scene::{SessionFixture, messages};
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&serde_json::json!([{"type": "text", "text": "Aye."}])));
    turn.usage.input = Some(0);
    assert_eq!(ContextView::after(&turn).last_error_percent, None);
    turn.usage.input = Some(turn.estimate.as_ref().unwrap().tokens);
    assert_eq!(ContextView::after(&turn).last_error_percent, Some(0.0));
}

/// The number of further deferred tools is not written if it is 0.
#[test]
fn number_of_further_deferred_tools_is_not_written_if_zero() {
    let written = |deferred_more| {
        serde_json::to_value(MessageTokens { deferred_more, ..MessageTokens::default() }).unwrap()
            ["deferred_more"]
            .as_u64()
    };
    assert_eq!(written(0), None);
    assert_eq!(written(3), Some(3));
}
