//! Replies in odd forms: what a client has of them, and that its next request is the same conversation.

use plimsoll::context::policy::ReinjectPolicy;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{Dialect, OddReply, Rule, Stub};
use serde_json::Value;

use super::Play;
use super::checks::CheckedExchange;
use crate::stream;

/// Session and thread of an exchange.
pub(super) type Place = (String, String);

/// The oddities that occur in a dialect, in a stream or not.
fn oddities(dialect: Dialect, stream: bool) -> Vec<OddReply> {
    let hidden = [true, false].map(|is_reported| OddReply::HiddenReasoning { is_reported });
    let others: &[OddReply] = match (dialect, stream) {
        (Dialect::Anthropic, _) | (Dialect::Responses, false) => &[],
        (Dialect::Chat, false) => &[OddReply::SplitChoices],
        (Dialect::Chat, true) => {
            &[OddReply::SplitChoices, OddReply::CountingIndex, OddReply::OtherId]
        }
        (Dialect::Responses, true) => &[
            OddReply::FinalStub(Stub::Nothing),
            OddReply::FinalStub(Stub::EmptyMessage),
            OddReply::FinalStub(Stub::EmptyCalls),
            OddReply::OtherId,
        ],
        (Dialect::Gemini, _) => &[
            OddReply::SplitChoices,
            OddReply::RepeatedCall { has_ids: false },
            OddReply::RepeatedCall { has_ids: true },
        ],
    };
    [&hidden, others].concat()
}

impl Play {
    /// How the next reply is odd, if it is.
    pub(super) fn choose_odd_reply(&mut self, may: bool) -> Option<OddReply> {
        let is_odd = may && self.odd_dice.once_in(3);
        let oddities = oddities(self.dialect, self.head.stream);
        let odd = is_odd.then(|| self.odd_dice.of(&oddities));
        self.stage.provider.odd_reply_next(odd);
        odd
    }

    /// The oddity that was chosen, if it happened.
    pub(super) fn happened(&mut self, chosen: Option<OddReply>) -> Option<OddReply> {
        let has_not = self.stage.provider.odd_reply_next(None);
        let odd = chosen.filter(|_| has_not.is_none())?;
        self.count_odd(&format!("{odd:?}"));
        Some(odd)
    }

    fn count_odd(&mut self, form: &str) {
        // Its variants are one kind.
        let kind = form.split([' ', '(']).next().unwrap_or(form);
        *self.counts.odd_replies.entry(kind.to_owned()).or_default() += 1;
    }

    /// What the client has of a response: one of several replies, or all choices of one.
    pub(super) fn read_answer(&mut self, text: &str) -> Value {
        let several = self.style.replies > 1;
        let nth = self.odd_dice.below(self.style.replies);
        if several {
            self.count_odd("OneOfSeveral");
        }
        let mut answer = match self.head.stream {
            true => stream::assemble_choice(self.dialect, text, several.then_some(nth)),
            false => serde_json::from_str(text).unwrap(),
        };
        match (self.dialect, self.head.stream) {
            (Dialect::Chat, false) => {
                if several {
                    answer["choices"][0] = answer["choices"][nth].take();
                } else if let Some(calls) = answer.pointer_mut("/choices/1/message/tool_calls") {
                    answer["choices"][0]["message"]["tool_calls"] = calls.take();
                }
            }
            (Dialect::Gemini, false) => {
                if several {
                    answer["candidates"][0] = answer["candidates"][nth].take();
                } else if let Some(more) = answer.pointer_mut("/candidates/1/content/parts") {
                    let more = more.as_array().cloned().unwrap();
                    parts_mut(&mut answer).extend(more);
                }
            }
            _ => {}
        }
        answer
    }

    /// What it keeps of that: a call that came twice, once or twice.
    pub(super) fn kept_answer(&mut self, mut answer: Value, odd: Option<OddReply>) -> Value {
        let is_repeated = matches!(odd, Some(OddReply::RepeatedCall { .. }));
        if is_repeated && self.odd_dice.once_in(2) {
            // By name and arguments: the later one takes the place of the first.
            let parts = parts_mut(&mut answer);
            let repeated = parts.pop().unwrap();
            let first = parts.iter_mut().find(|part| part["functionCall"].is_object()).unwrap();
            *first = repeated;
        }
        answer
    }

    /// A call that its client repeats without its signature gets it back before the provider has to ask for it.
    pub(super) fn check_signatures(&self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let is_asked = checked.log[0].verdict.broken_rule() == Some(Rule::SignatureMissing);
        let may = checked.mode.is_none()
            && !self.is_suspended
            && self.policy.reasoning.reinject == ReinjectPolicy::Auto;
        if is_asked && may {
            return Err(format!(
                "no signature: {:?}\n{}",
                checked.exchange.done.steps, checked.body
            ));
        }
        Ok(())
    }
}

/// The request continues the reply before it, if there was one to continue.
pub(super) fn check_place(expected: Option<Place>, exchange: &Exchange) -> Result<(), String> {
    let place = place(exchange);
    match expected {
        Some(expected) if expected != place => {
            Err(format!("another session or thread: {expected:?}, then {place:?}"))
        }
        _ => Ok(()),
    }
}

pub(super) fn place(exchange: &Exchange) -> Place {
    (format!("{:?}", exchange.session), format!("{:?}", exchange.thread))
}

fn parts_mut(answer: &mut Value) -> &mut Vec<Value> {
    answer["candidates"][0]["content"]["parts"].as_array_mut().unwrap()
}
