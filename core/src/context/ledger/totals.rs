//! What a session's exchanges used in total: as reported, and of replies that broke off what was received.
//!
//! A sum of the turns that are in memory. Must not know where usage comes from.

use crate::context::{Outcome, Turn};
use crate::dialect::{BilledTokens, LastCall, Usage};

/// Token totals of a session: sums of reported usage, of all models, and what was received of replies that broke off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Totals {
    /// By kind.
    #[serde(flatten)]
    pub tokens: BilledTokens,
    /// Input and output.
    pub total: u64,
    /// The share of `total` that was not reported, because replies broke off: an estimate.
    #[serde(default)]
    pub estimated: u64,
}

impl Totals {
    pub(super) fn add_turn(&mut self, turn: &Turn) {
        self.add(&turn.usage);
        // What broke off was billed, too: of its reply, the context view counts what arrived.
        if turn.outcome == Outcome::Complete || turn.reply.is_empty() || turn.usage.unbilled {
            return;
        }
        let tokens = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
        let reply = turn.reply.iter().map(|part| u64::from(part.tokens)).sum();
        let LastCall { input, output } =
            turn.context().unwrap_or(LastCall { input: tokens, output: reply });
        let input = input.saturating_sub(turn.usage.input.unwrap_or(0));
        let output = output.saturating_sub(turn.usage.output.unwrap_or(0));
        self.tokens.add(&BilledTokens { input, output, ..BilledTokens::default() });
        self.total = self.total.saturating_add(input).saturating_add(output);
        self.estimated = self.estimated.saturating_add(input).saturating_add(output);
    }

    pub(super) fn add(&mut self, usage: &Usage) {
        let tokens = BilledTokens::from_usage(usage);
        self.tokens.add(&tokens);
        self.total = self.total.saturating_add(tokens.input).saturating_add(tokens.output);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::scene::{SessionFixture, messages};
    use crate::dialect::Attempt;

    #[test]
    fn totals_saturate() {
        let mut totals = Totals::default();
        for input in [u64::MAX, u64::MAX, 1] {
            totals.add(&Usage { input: Some(input), output: Some(2), ..Usage::default() });
        }
        assert_eq!(totals.tokens.input, u64::MAX);
        assert_eq!(totals.tokens.output, 6);
        assert_eq!(totals.total, u64::MAX);
    }

    /// A reply that broke off counts as in the context view, and what of that was not reported is told apart.
    #[test]
    fn totals_have_what_was_received_of_reply_that_broke_off() {
        let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
        let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
        turn.estimate.as_mut().unwrap().tokens = 950;
        turn.reply[0].tokens = 60;
        let sums = |turn: &Turn| {
            let mut totals = Totals::default();
            totals.add_turn(turn);
            assert_eq!(totals.tokens.input + totals.tokens.output, totals.total);
            (totals.tokens.input, totals.tokens.output, totals.estimated)
        };
        let reported =
            |input, output, lower_bound| Usage { input, output, lower_bound, ..Usage::default() };
        turn.usage = reported(Some(1_000), Some(100), false);
        assert_eq!(sums(&turn), (1_000, 100, 0));
        turn.outcome = Outcome::ClientLeft;
        turn.usage = reported(Some(1_000), Some(1), true);
        assert_eq!(sums(&turn), (1_000, 60, 59));
        turn.usage = Usage::default();
        assert_eq!(sums(&turn), (950, 60, 1_010), "it told nothing");
        turn.reply.clear();
        assert_eq!(sums(&turn), (0, 0, 0), "nothing was received");
    }

    #[test]
    fn totals_are_what_is_billed() {
        let one = |input| Usage { input: Some(input), output: Some(1), ..Usage::default() };
        let attempts = vec![Attempt { usage: one(20), ..Attempt::default() }];
        let mut totals = Totals::default();
        totals.add(&Usage { attempts, ..one(3) });
        totals.add(&Usage { unbilled: true, ..one(400) });
        assert_eq!(totals.tokens.input, 23);
        assert_eq!(totals.tokens.output, 2);
        assert_eq!(totals.total, 25);
    }
}
