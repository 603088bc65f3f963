//! Messages that an operator queues: which request takes them, and where they stay from then on.
//!
//! The next request of the session's main line takes them at its end, so that nothing before them changes and
//! bound reasoning stays valid (`docs/protocols.md` 1.5). Later requests find the place by content, as with
//! cuts. Pure; proposes facts, which `plan` replays.

mod main_line;

pub(crate) use super::records::InjectionPlace;
pub use super::records::{InjectedMessage, InjectionState, QueuedMessage};
pub use main_line::is_or_begins_main_line;
pub(super) use main_line::waiting;

use super::plan::{HistoryEnd, PlanRequest, RecordedDecisions};
use super::policy::Mode;
use super::{ExchangeId, Fact, Millis};
use crate::dialect::{Audience, Conversation, PartIndex, PartKey, Role};

/// Longest message, bytes.
pub const LONGEST: usize = 64 * 1024;
/// Most messages that may wait in one session.
pub const MOST: usize = 32;

/// Takes the waiting messages at the end of this request, if the model is to answer it.
pub fn propose(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Vec<Fact> {
    let conversation = request.conversation;
    if request.mode != Mode::Active || !conversation.is_whole_turn() || known.waiting.is_empty() {
        return Vec::new();
    }
    let Some(HistoryEnd { at, about, boundary }) = known.end() else { return Vec::new() };
    let Some(part) = request.part(at) else { return Vec::new() };
    let mut facts = Vec::new();
    let mut waiting: Vec<&QueuedMessage> = Vec::new();
    for queued in &known.waiting {
        // A repeated request still has the message at its place.
        if queued.repeats.as_deref().is_some_and(|original| known.is_injected(original)) {
            facts.push(injected(queued, request.now, InjectionState::Removed));
        } else {
            waiting.push(queued);
        }
    }
    if request.policy.one_queued_message {
        // A step that is repeated has its message already.
        waiting.truncate(usize::from(known.injected_at(at).next().is_none()));
    }
    let texts: Vec<&str> = waiting.iter().map(|queued| &*queued.text).collect();
    if texts.is_empty() || !takes_text(conversation, at) {
        return facts;
    }
    if crate::dialect::rewrite::inject(conversation, request.body, at, &texts).is_empty() {
        return Vec::new();
    }
    let mut counter = request.tokenizer.counter(conversation, request.body, request.model);
    for queued in waiting {
        let place = InjectionPlace {
            exchange: request.exchange.clone(),
            thread: known.thread.clone(),
            number: queued.number,
            after: PartKey(about),
            boundary,
            text: queued.text.clone(),
            tokens: counter.stands_for(part, &queued.text),
            queued: queued.at,
            epoch: None,
        };
        facts.push(injected(queued, request.now, InjectionState::Injected(Box::new(place))));
    }
    facts
}

fn injected(queued: &QueuedMessage, at: Millis, state: InjectionState) -> Fact {
    Fact::InjectedMessage(Box::new(InjectedMessage { id: queued.id.clone(), at, state }))
}

/// Whether a text may follow a part at the end of the history (`docs/protocols.md` 12.3): not while something
/// runs at the provider, and not before what the model wrote since.
fn takes_text(conversation: &Conversation, at: PartIndex) -> bool {
    let messages = &conversation.messages;
    let newest_reply = messages.iter().rposition(|message| message.role == Role::Assistant);
    if newest_reply.is_some_and(|index| index >= at.message) || conversation.is_open_at_provider() {
        return false;
    }
    // A program waits for these results, and nothing else may stand beside them.
    let answers = &messages[newest_reply.map_or(0, |index| index + 1)..];
    !answers
        .iter()
        .flat_map(|message| &message.parts)
        .any(|part| part.audience == Audience::Program)
}

/// Prefix of the ids of messages that are queued again.
const REQUEUED_PREFIX: &str = "again-";

/// Why messages were not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryFailure {
    /// The request got no reply.
    NoReply,
    /// The request was refused with them and accepted without. They are tried only once more, because they
    /// may be what was refused.
    Refused,
}

/// Queues messages again that were at the end of a request and were not delivered.
pub fn requeue(
    known: &RecordedDecisions,
    exchange: &ExchangeId,
    now: Millis,
    failure: DeliveryFailure,
) -> Vec<Fact> {
    let Some(end) = known.end() else { return Vec::new() };
    let mut facts = Vec::new();
    for message in known.injected_at(end.at) {
        // The message itself may be what is refused, so it is tried once more and then dropped.
        let is_last_try =
            failure == DeliveryFailure::Refused && message.id.starts_with(REQUEUED_PREFIX);
        if !is_last_try {
            facts.extend(requeued(message, exchange, now));
        }
    }
    facts
}

/// Queues messages again that a request took but did not send. `saved`: the facts saved for that request.
pub fn requeue_unsent(saved: &[Fact], exchange: &ExchangeId) -> Vec<Fact> {
    taken_messages(saved, exchange)
        .filter_map(|message| requeued(message, exchange, message.at))
        .collect()
}

fn requeued(message: &InjectedMessage, exchange: &ExchangeId, now: Millis) -> Option<Fact> {
    let place = message.place()?;
    let id = PartKey::of_bytes(format!("{} {exchange}", message.id).as_bytes());
    Some(Fact::Queued(Box::new(QueuedMessage {
        id: format!("{REQUEUED_PREFIX}{id}").into(),
        number: place.number,
        at: now,
        text: place.text.clone(),
        repeats: Some(message.id.clone()),
    })))
}

/// The ids of the messages that this exchange took, among saved facts.
pub fn injected_ids(saved: &[Fact], exchange: &ExchangeId) -> Vec<Box<str>> {
    taken_messages(saved, exchange).map(|message| message.id.clone()).collect()
}

/// The ids of queued messages that need not be sent, because a repeated request still has them: among new facts.
pub fn carried_ids(new: &[Fact]) -> Vec<Box<str>> {
    let carried = new.iter().filter_map(|fact| match fact {
        Fact::InjectedMessage(message) if message.place().is_none() => Some(message.id.clone()),
        _ => None,
    });
    carried.collect()
}

fn taken_messages<'f>(
    saved: &'f [Fact],
    exchange: &'f ExchangeId,
) -> impl Iterator<Item = &'f InjectedMessage> {
    let messages = saved.iter().filter_map(|fact| match fact {
        Fact::InjectedMessage(message) => Some(&**message),
        _ => None,
    });
    messages.filter(|message| message.place().is_some_and(|place| place.exchange == *exchange))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::context::ledger::Ledger;
    use crate::context::lineage;
    use crate::context::scene::SessionFixture;
    use crate::dialect::{self, Dialect};

    const MODEL: &str = "claude-opus-4-6";

    fn body(system: &str, tool: &str, messages: &Value) -> Value {
        let tools = json!([{"name": tool, "input_schema": {}}]);
        json!({"model": MODEL, "system": system, "tools": tools, "messages": messages})
    }

    /// The main line grows from the first turn. If it breaks off, a request with the same system prompt and tools
    /// continues it. A thread that the client names is another line.
    #[test]
    fn main_line_is_that_of_first_turn() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let first = json!([user("Words.")]);
        let path = "/v1/messages";
        let begun = body("Be kind.", "look", &first);
        let mut scene = SessionFixture::read(Dialect::Anthropic, path, MODEL, &begun);
        let placed = |ledger: &Ledger, body: &Value, thread| {
            let read = dialect::read(Dialect::Anthropic, path, body.to_string().as_bytes());
            lineage::place(ledger, &read, &"next".into(), thread)
        };
        let goes_on = |ledger: &Ledger, body: &Value, thread| {
            let placed = placed(ledger, body, thread);
            (is_or_begins_main_line(ledger, &placed), waiting(ledger, &placed).len())
        };
        scene.ledger.add(Fact::Queued(Box::new(QueuedMessage {
            id: "q".into(),
            number: 1,
            at: 1,
            text: "Mind the tide.".into(),
            repeats: None,
        })));
        // The first request begins the main line, but nothing is injected into it yet.
        assert_eq!(goes_on(&scene.ledger, &begun, None), (true, 0));
        assert_eq!(goes_on(&scene.ledger, &begun, Some("sub")), (false, 0));
        scene.answered(&json!([{"type": "text", "text": "Said."}]));
        let (on, off) = ((true, 1), (false, 0));
        let ledger = &scene.ledger;
        let grown = json!([user("Words."), {"role": "assistant", "content": "Said."}, user("On.")]);
        assert_eq!(goes_on(ledger, &body("Be kind.", "look", &grown), None), on);
        assert_eq!(
            goes_on(ledger, &body("Be brief.", "look", &grown), None),
            on,
            "it grew from it"
        );
        let other = json!([user("A summary of all that.")]);
        assert_eq!(goes_on(ledger, &body("Be kind.", "look", &other), None), on);
        assert_eq!(goes_on(ledger, &body("Be brief.", "look", &other), None), off);
        assert_eq!(goes_on(ledger, &body("Be kind.", "find", &other), None), off);
        assert_eq!(goes_on(ledger, &body("Be kind.", "look", &grown), Some("sub")), off);
    }
}
