//! The range of a first call's estimate, when no usage was ever reported for such a prompt.
//!
//! Providers add text of their own around parts and tools, which weighs most in small prompts. Measured on
//! recorded first calls; uses nothing that was learned.

use super::band::Band;
use crate::dialect::models::Family;

/// The bounds as shares of the estimate, by tokenizer and size (`docs/estimates.md`, "First calls").
pub(super) fn cold_band(family: Family, tokens: u64) -> Band {
    let class = match tokens {
        ..200 => 0,
        200..1_000 => 1,
        _ => 2,
    };
    let (low, high) = match family {
        Family::O200k | Family::Cl100k => [(0.7, 2.3), (0.8, 1.15), (0.6, 1.4)],
        Family::Gemini => [(0.25, 1.5), (0.5, 1.5), (0.2, 1.5)],
        Family::Claude => [(0.9, 2.8), (0.7, 1.2), (0.55, 2.6)],
        Family::ClaudeNew => [(0.75, 1.5), (0.75, 1.3), (0.75, 1.5)],
        Family::Other => [(0.25, 6.0), (0.6, 3.5), (0.8, 1.8)],
    }[class];
    // A few tokens of structure are half of a prompt of ten tokens.
    Band {
        low: ((tokens as f64 * low) as u64).min(tokens.saturating_sub(3)),
        high: ((tokens as f64 * high).ceil() as u64).max(tokens.saturating_add(3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 6] = [
        Family::O200k,
        Family::Cl100k,
        Family::Gemini,
        Family::Claude,
        Family::ClaudeNew,
        Family::Other,
    ];

    #[test]
    fn first_calls_band_holds_its_estimate_and_some_structure() {
        for family in FAMILIES {
            for tokens in [0, 1, 5, 10, 199, 200, 999, 1_000, 50_000, u64::MAX] {
                let Band { low, high } = cold_band(family, tokens);
                let band = format!("{family:?}, {tokens}: {low} to {high}");
                assert!(low <= tokens.saturating_sub(3), "{band}");
                assert!(high >= tokens.saturating_add(3), "{band}");
                // No band is wider than from a fifth of the tokens to six times as many.
                assert!(tokens > 1 << 53 || low >= (tokens / 5).saturating_sub(3), "{band}");
                assert!(high <= tokens.saturating_mul(6).max(tokens.saturating_add(3)), "{band}");
            }
        }
    }

    /// As measured (`docs/estimates.md`, "First calls"): the structure around a small prompt may cost up to twice the
    /// prompt.
    #[test]
    fn first_calls_band_goes_by_size() {
        let of = |tokens| cold_band(Family::Claude, tokens);
        assert_eq!(of(100), Band { low: 90, high: 280 });
        assert_eq!(of(400), Band { low: 280, high: 480 });
        assert_eq!(of(2_000), Band { low: 1_100, high: 5_200 });
        let share = |tokens: u64| of(tokens).high as f64 / tokens as f64;
        assert!(share(199) > 2.7);
        assert!(share(200) < 1.4);
        assert!(share(999) < 1.4);
        assert!(share(1_000) > 2.5);
    }
}
