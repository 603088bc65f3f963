//! Replies with odd usage: what is understood of it, and that nothing is concluded from what cannot be.

use plimsoll::context::Outcome;
use scripted_provider::strict::{Dialect, Miscount};

use super::Play;
use super::checks::CheckedExchange;

/// No conversation here has as many tokens.
const MANY: u64 = 1_000_000;

impl Play {
    /// Whether the next reply's usage is odd, and how.
    pub(super) fn choose_miscount(&mut self, may: bool) -> Option<Miscount> {
        let miscount = (may && self.count_dice.once_in(6))
            .then(|| self.count_dice.of(&[Miscount::Zeros, Miscount::Absurd, Miscount::Advice]));
        self.stage.provider.miscount_next(miscount);
        miscount
    }

    /// The input is what the provider counted, also if it says 0 later; unknown if it says what cannot be. Estimates stay
    /// within reason.
    pub(super) fn check_counts(
        &mut self,
        checked: &CheckedExchange<'_>,
        miscount: Option<Miscount>,
    ) -> Result<(), String> {
        // A refused request did not take it.
        self.stage.provider.miscount_next(None);
        let exchange = checked.exchange;
        let estimated = exchange.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
        if estimated > MANY {
            return Err(format!("estimated {estimated} after odd usage"));
        }
        let Some(miscount) = miscount.filter(|_| exchange.outcome == Outcome::Complete) else {
            return Ok(());
        };
        let accepted = checked.log.last().and_then(|entry| entry.verdict.accepted());
        let Some(accepted) = accepted else { return Ok(()) };
        self.counts.miscounts += 1;
        let usage = &exchange.usage;
        let is_fine = match (miscount, usage.input) {
            (Miscount::Absurd, input) => input.is_none(),
            // Nobody asked for the usage of this stream.
            (_, None) => self.dialect == Dialect::Chat,
            (_, Some(input)) => input == accepted.input_tokens,
        };
        let is_advice = miscount == Miscount::Advice && self.dialect == Dialect::Anthropic;
        if !is_fine || usage.attempts.len() != usize::from(is_advice) {
            return Err(format!("{miscount:?}: {usage:?} for {}", accepted.input_tokens));
        }
        Ok(())
    }
}
