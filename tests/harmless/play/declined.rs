//! A model declines a request: its client sends the same to another one, which is the same turn (`docs/protocols.md` 1.9).

use plimsoll::telemetry::Exchange;
use scripted_provider::strict::OddReply;

use super::{Play, odd_replies};
use crate::random;

impl Play {
    /// Whether the model declines the next request; first ones more often.
    pub(super) fn choose_decline(&mut self, may: bool) -> Option<OddReply> {
        let times = if self.history.len() == 1 { 6 } else { 24 };
        if !may || !self.habit_dice.once_in(times) {
            return None;
        }
        let decline = Some(OddReply::Declined);
        self.stage.provider.odd_reply_next(decline);
        decline
    }

    /// The model declined: the client sends the same request to another one.
    pub(super) fn ask_another_model(&mut self, exchange: &Exchange) {
        let models = random::models(self.dialect);
        let own = models.iter().position(|model| *model == self.head.model).unwrap_or(0);
        self.head.model =
            models[(own + 1 + self.habit_dice.below(models.len() - 1)) % models.len()];
        self.reply_broke_off = true;
        self.last_sent = None;
        // A first request, whose client names no session, is known to its replica alone (`docs/fleets.md`).
        let is_known =
            self.history.len() > 1 || self.stage.names_session || self.stage.replica_count() == 1;
        self.expected_place = is_known.then(|| odd_replies::place(exchange));
        self.counts.declined += 1;
    }
}
