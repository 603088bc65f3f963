//! Messages that an operator queues: which request takes them, and where they stay from then on.
//!
//! The next request of the session's main line takes them at its end, so that nothing before them changes and
//! bound reasoning stays valid (`docs/protocols.md` 1.5). Later requests find the place by content, as with
//! cuts. Pure; proposes facts, which `plan` replays.

mod main_line;
mod message;

pub use main_line::is_or_begins_main_line;
pub(super) use main_line::waiting;
pub(crate) use message::InjectionPlace;
pub use message::{InjectedMessage, InjectionState, QueuedMessage};

use std::sync::Arc;

use super::plan::{HistoryEnd, PlanRequest, RecordedDecisions};
use super::policy::Mode;
use super::{ExchangeId, Fact, Millis};
use crate::dialect::{Audience, Conversation, Message, PartIndex, PartKey, Role};

/// Longest message, bytes.
pub const LONGEST: usize = 64 * 1024;
/// Most messages that may wait in one session.
pub const MOST: usize = 32;

/// Takes the waiting messages at the end of this request, if the model is to answer it.
pub fn propose(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Vec<Fact> {
    let conversation = request.conversation;
    let may = request.mode == Mode::Active && conversation.is_whole_turn();
    let end = known.end().filter(|_| may && !known.waiting.is_empty());
    let Some(HistoryEnd { at, about, boundary }) = end else { return Vec::new() };
    let Some(part) = request.part(at) else { return Vec::new() };
    // A retry still has the message at its place.
    let is_there = |queued: &&Arc<QueuedMessage>| {
        queued.repeats.as_deref().is_some_and(|old| known.is_injected(old))
    };
    let (there, waiting): (Vec<_>, Vec<_>) = known.waiting.iter().partition(is_there);
    let needless = there.into_iter().map(|queued| {
        let (id, at) = (queued.id.clone(), request.now);
        Fact::InjectedMessage(Box::new(InjectedMessage { id, at, state: InjectionState::Removed }))
    });
    let needless: Vec<Fact> = needless.collect();
    let texts: Vec<&str> = waiting.iter().map(|queued| &*queued.text).collect();
    if texts.is_empty() || !takes_text(conversation, at) {
        return needless;
    }
    if crate::dialect::rewrite::inject(conversation, request.body, at, &texts).is_empty() {
        return Vec::new();
    }
    let mut counter = request.tokenizer.counter(conversation, request.body, request.model);
    let places = waiting.iter().map(|queued| InjectionPlace {
        exchange: request.exchange.clone(),
        thread: known.thread.clone(),
        number: queued.number,
        after: PartKey(about),
        boundary,
        text: queued.text.clone(),
        tokens: counter.stands_for(part, &queued.text),
        queued: queued.at,
        epoch: None,
    });
    let ids = waiting.iter().map(|queued| queued.id.clone());
    let injected = ids.zip(places).map(|(id, place)| {
        let state = InjectionState::Injected(Box::new(place));
        Fact::InjectedMessage(Box::new(InjectedMessage { id, at: request.now, state }))
    });
    needless.into_iter().chain(injected).collect()
}

/// Whether a text may follow a part at the end of the history: not while something runs at the provider, not beside
/// results that a program waits for, and not before what the model wrote since (`docs/protocols.md` 12.3).
fn takes_text(conversation: &Conversation, at: PartIndex) -> bool {
    let is_models = |message: &Message| message.role == Role::Assistant;
    let is_for_program =
        |message: &Message| message.parts.iter().any(|part| part.audience == Audience::Program);
    let end = conversation.messages.iter().rev().take_while(|message| !is_models(message));
    let is_last =
        conversation.messages.iter().rposition(is_models).is_none_or(|it| it < at.message);
    is_last && !conversation.is_open_at_provider() && !end.into_iter().any(is_for_program)
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
    let last = known.injected_at(end.at);
    let is_last_try = |message: &&InjectedMessage| {
        failure == DeliveryFailure::Refused && message.id.starts_with(REQUEUED_PREFIX)
    };
    let messages = last.filter(|message| !is_last_try(message));
    messages.filter_map(|message| requeued(message, exchange, now)).collect()
}

/// Queues messages again that a request took but did not send. `saved`: the facts saved for that request.
pub fn requeue_unsent(saved: &[Fact], exchange: &ExchangeId) -> Vec<Fact> {
    let taken = taken_messages(saved, exchange);
    taken.filter_map(|message| requeued(message, exchange, message.at)).collect()
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

/// The ids of queued messages that need not be sent, because a retry still has them: among new facts.
pub fn carried_ids(new: &[Fact]) -> Vec<Box<str>> {
    let carried = new.iter().filter_map(|fact| match fact {
        Fact::InjectedMessage(message) if message.place().is_none() => Some(message.id.clone()),
        _ => None,
    });
    carried.collect()
}

/// The messages that this exchange took, among saved facts.
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
    fn the_main_line_is_that_of_the_first_turn() {
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
