//! A second estimate, by the rules of a known agent: last input, last output, new messages by length.
//!
//! It is what that agent would have believed, and is kept beside ours to be compared. Nothing that left
//! since is taken off, because such agents do not know of it.

use serde::{Deserialize, Serialize};

use super::{Anchor, Measured, fit};
use crate::context::{Counting, Method};
use crate::dialect::{Chain, Conversation, Part, Role};
use crate::tokens::classic::{Rules, Seen};

/// What an agent's rules say that a call will cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classic {
    /// What the rules are called.
    pub rules: Box<str>,
    /// Input tokens.
    pub tokens: u64,
    /// Whether it grew from a call before.
    pub method: Method,
    /// Tokens of the messages that are new since that call; all of them without one.
    pub new: u64,
}

/// Counts a request by `rules`; `seen` says what is sent of each part.
pub fn classic<'s>(
    rules: &Rules,
    conversation: &Conversation,
    body: &[u8],
    anchor: Option<Anchor<'_>>,
    seen: impl Fn(&Part) -> Seen<'s>,
) -> Classic {
    let anchor = anchor.filter(|_| rules.anchored);
    let last = anchor.and_then(|anchor| Some((anchor.turn.usage.context()?, anchor)));
    let (before, new) = match last {
        Some((context, anchor)) => {
            let fresh = &conversation.messages[first_new(conversation, &anchor)..];
            (context.input.saturating_add(context.output), rules.messages(body, fresh, seen))
        }
        None => (0, rules.whole(conversation, body, seen)),
    };
    let method = match (&conversation.held, last) {
        (Some(_), _) => Method::Held,
        (None, Some(_)) => Method::Anchored,
        (None, None) => Method::Estimated,
    };
    let rules = rules.name.as_str().into();
    Classic { rules, tokens: before.saturating_add(new), method, new }
}

/// The first message that neither the anchor's request nor its reply held: after the request's end, or
/// where that is not found again after the last words of the model, and past the reply.
fn first_new(conversation: &Conversation, anchor: &Anchor<'_>) -> usize {
    let ends = [anchor.turn.standing.chain, anchor.turn.after];
    let messages = &conversation.messages;
    let (mut chain, mut found) = (Chain::START, None);
    for (index, message) in messages.iter().enumerate() {
        for key in message.parts.iter().filter_map(|part| part.key) {
            chain = chain.then(key);
            found = if ends.contains(&chain) { Some(index + 1) } else { found };
        }
    }
    let is_models = |index: &usize| messages[*index].role == Role::Assistant;
    let first = found.or_else(|| (0..messages.len()).rev().find(is_models)).unwrap_or(0);
    first + (first..messages.len()).take_while(is_models).count()
}

impl Measured {
    /// The classic count takes the place of ours in the budget that is shown and kept.
    pub fn ruled_by_classic(&mut self) {
        let Some(classic) = &self.classic else { return };
        let estimate = &mut self.estimate;
        (estimate.tokens, estimate.new, estimate.gone) = (classic.tokens, classic.new, 0);
        (estimate.method, estimate.counting) = (classic.method, Counting::Length);
        estimate.breakdown = fit(estimate.breakdown, classic.tokens);
    }
}
