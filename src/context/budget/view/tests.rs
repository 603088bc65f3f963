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
