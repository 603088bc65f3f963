//! A second estimate, by the rules of a known agent: last input, last output, and new messages by length.
//!
//! It is the number that the agent itself would compute. If its rules decide, it is also the number that is
//! shown; else it is stored beside ours for comparison. Of the last output, only the part that comes back
//! counts. Results that were cleared since the last call are subtracted, by no more than their share of what was
//! reported, and a changed system prompt or tool list counts at once. Nothing else does, because such agents do
//! not know about it.

use serde::{Deserialize, Serialize};

use super::anchor::Anchor;
use crate::context::plan::RemovedTokens;
use crate::context::{Breakdown, EstimateMethod, Turn};
use crate::dialect::{Chain, Conversation, Part, Role};
use crate::tokens::classic::{ClassicRules, SentContent};

/// The cost of a request by an agent's rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClassicEstimate {
    /// The rules' name, for labels and the page.
    pub rules: Box<str>,
    /// Input tokens.
    pub tokens: u64,
    /// Whether it is based on an earlier call.
    pub method: EstimateMethod,
    /// Tokens that are new since that call: messages, and what system prompt and tools have grown by. Without
    /// one, of all messages.
    pub new: u64,
    /// Tokens of that call's input and output that are not sent again.
    #[serde(skip)]
    pub gone: u64,
    /// Tokens of the system prompt.
    #[serde(skip)]
    pub system: u64,
    /// Tokens of the tool definitions.
    #[serde(skip)]
    pub tools: u64,
    /// Tokens that come from the earlier call, with the changes of system prompt and tools since; 0 without one.
    #[serde(skip)]
    pub before: u64,
    /// The weight of what is new, before the factor and the rounding.
    #[serde(skip)]
    pub weight: f64,
    /// What is not sent of the messages.
    #[serde(skip)]
    pub removed: RemovedTokens,
}

/// Counts a request by `rules`. `seen` says what is sent of each part. `added` is the weight of what was
/// inserted: with an earlier call, of what is new; else of all.
pub fn classic<'s>(
    rules: &ClassicRules,
    conversation: &Conversation,
    body: &[u8],
    anchor: Option<Anchor<'_>>,
    added: f64,
    seen: impl Fn(&Part) -> SentContent<'s>,
) -> ClassicEstimate {
    let basis = basis(rules, anchor);
    let (carried, weight) = match basis {
        Some((carried, anchor)) => {
            let messages = &conversation.messages[first_new(conversation, &anchor)..];
            (carried, rules.weigh(body, messages, &seen))
        }
        None => {
            let head = if rules.head { rules.head(conversation, body) } else { 0.0 };
            (0, head + rules.weigh(body, &conversation.messages, &seen))
        }
    };
    let weight = weight + added;
    // What the rules do not count gets no share.
    let (system, tools) = match rules.head || basis.is_some() {
        true => (rules.system(conversation, body), rules.tools(conversation, body)),
        false => (0, 0),
    };
    let turn = basis.map(|(_, anchor)| anchor.turn);
    let growth = turn.map_or(0, |turn| head_growth(rules, turn, system.saturating_add(tools)));
    let carried = carried.saturating_add_signed(growth);
    let added = rules.sum(weight);
    let context = turn.and_then(Turn::context).unwrap_or_default();
    let reported = context.input.saturating_add(context.output);
    let method = match (&conversation.held, basis) {
        (Some(_), _) => EstimateMethod::Held,
        (None, Some(_)) => EstimateMethod::Anchored,
        (None, None) => EstimateMethod::Estimated,
    };
    ClassicEstimate {
        rules: rules.name.as_str().into(),
        tokens: carried.saturating_add(added),
        method,
        new: added.saturating_add_signed(growth.max(0)),
        // A longer system prompt is new, and takes nothing away; a shorter one does.
        gone: reported.saturating_sub(carried.saturating_add_signed(-growth.max(0))),
        system,
        tools,
        before: carried,
        weight,
        removed: RemovedTokens::default(),
    }
}

impl ClassicEstimate {
    pub(super) fn more(&self, rules: &ClassicRules, weight: f64) -> u64 {
        rules.sum(self.weight + weight).saturating_sub(rules.sum(self.weight))
    }

    pub(super) fn subtract(&mut self, tokens: u64) {
        // The input of the earlier call still contains it.
        let tokens = tokens.min(self.before);
        self.before -= tokens;
        self.tokens -= tokens;
        self.gone = self.gone.saturating_add(tokens);
    }
}

/// How much longer system prompt and tools are than in the request of an earlier call, tokens by the rules; 0
/// where the rules did not count them there.
fn head_growth(rules: &ClassicRules, turn: &Turn, now: u64) -> i64 {
    // What the rules did not count there is not known to have grown.
    let is_ruled = turn.carry.as_ref().is_some_and(|carry| carry.ruled);
    let counted = turn
        .estimate
        .as_ref()
        .filter(|estimate| is_ruled && (rules.head || estimate.method == EstimateMethod::Anchored));
    let Some(Breakdown { system, tools, head, .. }) = counted.map(|estimate| estimate.breakdown)
    else {
        return 0;
    };
    let [system, tools] = head.unwrap_or([system, tools]);
    now.cast_signed().saturating_sub(system.saturating_add(tools).cast_signed())
}

/// The earlier call that `rules` count from, after the tokens that come from it.
fn basis<'a>(rules: &ClassicRules, anchor: Option<Anchor<'a>>) -> Option<(u64, Anchor<'a>)> {
    // Such rules count the whole request each time.
    if !rules.anchored {
        return None;
    }
    let anchor = anchor?;
    Some((anchor.turn.carried_by_rules()?, anchor))
}

/// The first message that `rules` count: those before it are in the input or output of the earlier call.
pub(super) fn counted_from(
    rules: &ClassicRules,
    conversation: &Conversation,
    anchor: Option<Anchor<'_>>,
) -> usize {
    basis(rules, anchor).map_or(0, |(_, anchor)| first_new(conversation, &anchor))
}

/// The first message that is in neither the anchor's request nor its reply: after the end of the request, or
/// if that is not found, after the model's last message; then past the reply.
pub(super) fn first_new(conversation: &Conversation, anchor: &Anchor<'_>) -> usize {
    let ends = [anchor.turn.position.chain, anchor.turn.after];
    let messages = &conversation.messages;
    let mut chain = Chain::START;
    let mut end = None;
    for (index, message) in messages.iter().enumerate() {
        for key in message.parts.iter().filter_map(|part| part.key) {
            chain = chain.then(key);
            // The last match counts: the end of the reply is after that of the request.
            if ends.contains(&chain) {
                end = Some(index + 1);
            }
        }
    }
    // If the history was changed before the anchor's end, the model's last message must do.
    let start = end
        .or_else(|| messages.iter().rposition(|message| message.role == Role::Assistant))
        .unwrap_or(0);
    let reply = messages[start..].iter().take_while(|message| message.role == Role::Assistant);
    start + reply.count()
}

#[cfg(test)]
mod tests;
