//! The layout, to the letter.

use super::*;

fn view() -> View {
    let breakdown = Breakdown { system: 4_000, tools: 8_000, messages: 40_100, ..<_>::default() };
    View {
        method: Some(Method::Anchored),
        basis: Some(Basis { input: 50_000, output: 2_000, new: 100, gone: 0 }),
        last_error_percent: Some(0.6),
        ..View::new(breakdown, 200_000, 16_000)
    }
}

#[test]
fn the_text_is_laid_out_to_the_letter() {
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

#[test]
fn numbers_are_grouped_in_threes() {
    let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_048_576, "1,048,576")];
    for (number, text) in cases {
        assert_eq!(grouped(number), text);
    }
}

#[test]
fn what_was_only_estimated_says_so() {
    let view = View { method: Some(Method::Estimated), basis: None, ..view() };
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
fn what_left_and_what_was_capped_is_said() {
    let breakdown = Breakdown { capped: true, system: 30, tools: 70, ..<_>::default() };
    let basis = Some(Basis { input: 2_000_000, output: 1_500, new: 0, gone: 1_001_400 });
    let text = View { basis, ..View::new(breakdown, 1_048_576, 16_000) }.to_string();
    assert!(text.contains("Messages:            0 tokens (capped: "), "{text}");
    assert!(text.contains("  Last actual input: 2,000,000 tokens\n"), "{text}");
    assert!(text.contains("  Gone since then: 1,001,400 tokens (estimated)\n"), "{text}");
}

#[test]
fn a_window_that_is_overfull_or_unknown_has_no_room() {
    let full = View::new(Breakdown { messages: 250_000, ..<_>::default() }, 200_000, 16_000);
    assert_eq!((full.free, full.percent), (0, 125.0));
    let unknown = View::new(Breakdown::default(), 0, 16_000);
    assert_eq!((unknown.free, unknown.percent), (0, 0.0));
}

#[test]
fn json_says_the_same() {
    let json = serde_json::to_string(&view()).unwrap();
    assert_eq!(serde_json::from_str::<View>(&json).unwrap(), view());
}
