//! Words that somebody outside wants said: which request says them, and where they stand from then on.
//!
//! The next request of the session's main line, at its end, so that nothing before them changes: what
//! is bound to its prefix stays valid (`docs/protocols.md` 1.5). The place is found by content, as cuts
//! are. Pure; proposes facts, which `plan` replays.

use std::sync::Arc;

use super::ledger::Ledger;
use super::lineage::Placement;
use super::plan::{PlanRequest, RecordedDecisions};
use super::policy::Mode;
use super::{Fact, InjectedMessage, InjectionPlace, InjectionState, Millis, QueuedMessage, Turn};
use crate::dialect::{PartKey, Purpose};

/// Longest text, bytes.
pub const LONGEST: usize = 64 * 1024;
/// Most that may wait in one session.
pub const MOST: usize = 32;

/// What waits, for a request of the session's main line; nothing for any other.
pub(super) fn waiting(ledger: &Ledger, placed: &Placement) -> Vec<Arc<QueuedMessage>> {
    let waiting = ledger.waiting();
    if waiting.is_empty() || !is_main(ledger, placed) {
        return Vec::new();
    }
    waiting.into_iter().cloned().collect()
}

/// Whether a request carries on the session's main line: that of its first turn and of its forks.
/// Where the line breaks (the client compacted its history), the same system prompt and tools carry
/// it on. Sub-agents are named by their client, or begin with prompts of their own.
fn is_main(ledger: &Ledger, placed: &Placement) -> bool {
    let is_turn = |turn: &&Arc<Turn>| turn.purpose == Purpose::Turn;
    let Some(first) = ledger.turns().find(is_turn) else { return false };
    is_line_of(ledger, placed, first)
}

/// The same, where the first request of a session carries on its main line, too.
pub fn carries_on(ledger: &Ledger, placed: &Placement) -> bool {
    let is_turn = |turn: &&Arc<Turn>| turn.purpose == Purpose::Turn;
    match ledger.turns().find(is_turn) {
        Some(first) => is_line_of(ledger, placed, first),
        None => placed.position.client_thread.is_none(),
    }
}

fn is_line_of(ledger: &Ledger, placed: &Placement, first: &Turn) -> bool {
    let (main, here) = (&first.position, &placed.position);
    if main.client_thread != here.client_thread {
        return false;
    }
    let parent = |turn: &&Arc<Turn>| ledger.turn(turn.position.parent.as_deref()?);
    let line = std::iter::successors(placed.parent.as_ref(), parent).take(ledger.turns().count());
    if line.into_iter().any(|turn| turn.position.thread == main.thread) {
        return true;
    }
    main.system == here.system && main.tools == here.tools
}

/// What waits, said at the end of this request, if the model is to answer it.
pub fn propose(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Vec<Fact> {
    let conversation = request.conversation;
    let may = request.mode == Mode::Active
        && conversation.held.is_none()
        && conversation.purpose == Purpose::Turn;
    let Some((at, after, boundary)) = known.end().filter(|_| may && !known.waiting.is_empty())
    else {
        return Vec::new();
    };
    let Some(part) = request.part(at) else { return Vec::new() };
    // A retry has its words where they were.
    let is_there = |queued: &&Arc<QueuedMessage>| {
        queued.again.as_deref().is_some_and(|old| known.is_said(old))
    };
    let (there, waiting): (Vec<_>, Vec<_>) = known.waiting.iter().partition(is_there);
    let needless = there.into_iter().map(|queued| {
        let (id, at) = (queued.id.clone(), request.now);
        Fact::Said(Box::new(InjectedMessage { id, at, fate: InjectionState::Removed }))
    });
    let needless: Vec<Fact> = needless.collect();
    let texts: Vec<&str> = waiting.iter().map(|queued| &*queued.text).collect();
    if texts.is_empty() {
        return needless;
    }
    if crate::dialect::rewrite::say(conversation, request.body, at, &texts).is_empty() {
        return Vec::new();
    }
    let mut counter = request.tokenizer.counter(conversation, request.body, request.model);
    let taken = waiting.iter().map(|queued| InjectionPlace {
        request: request.id.into(),
        thread: known.thread.clone(),
        number: queued.number,
        after: PartKey(after),
        boundary,
        text: queued.text.clone(),
        tokens: counter.stands_for(part, &queued.text),
        queued: queued.at,
        suspended: None,
    });
    let ids = waiting.iter().map(|queued| queued.id.clone());
    let taken = ids.zip(taken).map(|(id, taken)| {
        let fate = InjectionState::Taken(Box::new(taken));
        Fact::Said(Box::new(InjectedMessage { id, at: request.now, fate }))
    });
    needless.into_iter().chain(taken).collect()
}

/// How ids of words begin that wait again.
const AGAIN: &str = "again-";

/// Words at the end of a request that nobody answered: they wait again. `in_vain`: because it was
/// refused with them, and answered without; then once, since they may be what was refused.
pub fn again(known: &RecordedDecisions, request: &str, now: Millis, in_vain: bool) -> Vec<Fact> {
    let Some((end, ..)) = known.end() else { return Vec::new() };
    let last = known.said_at(end);
    let said = last.filter(|said| !(in_vain && said.id.starts_with(AGAIN)));
    said.filter_map(|said| requeued(said, request, now)).collect()
}

/// Words that a request took and never had, of what was saved for it: they wait again.
pub fn untaken(saved: &[Fact], request: &str) -> Vec<Fact> {
    let said = saved.iter().filter_map(|fact| match fact {
        Fact::Said(said) => Some(said),
        _ => None,
    });
    let ours = said.filter(|said| said.taken().is_some_and(|taken| &*taken.request == request));
    ours.filter_map(|said| requeued(said, request, said.at)).collect()
}

fn requeued(said: &InjectedMessage, request: &str, now: Millis) -> Option<Fact> {
    let taken = said.taken()?;
    let id = PartKey::of_bytes(format!("{} {request}", said.id).as_bytes());
    Some(Fact::Queued(Box::new(QueuedMessage {
        id: format!("{AGAIN}{id}").into(),
        number: taken.number,
        at: now,
        text: taken.text.clone(),
        again: Some(said.id.clone()),
    })))
}

/// The ids of words that this exchange took, of what was saved.
pub fn taken(saved: &[Fact], request: &str) -> Vec<Box<str>> {
    let said = saved.iter().filter_map(|fact| match fact {
        Fact::Said(said) => Some(said),
        _ => None,
    });
    let ours = said.filter(|said| said.taken().is_some_and(|taken| &*taken.request == request));
    ours.map(|said| said.id.clone()).collect()
}

impl InjectedMessage {
    /// Its identity among the parts of a request.
    pub fn key(&self) -> PartKey {
        PartKey::of_bytes(self.id.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::context::lineage;
    use crate::context::scene::SessionFixture;
    use crate::dialect::{self, Dialect};

    const MODEL: &str = "claude-opus-4-6";

    fn body(system: &str, tool: &str, messages: &Value) -> Value {
        let tools = json!([{"name": tool, "input_schema": {}}]);
        json!({"model": MODEL, "system": system, "tools": tools, "messages": messages})
    }

    /// The main line is what grows from the first turn; where it breaks, the same system prompt and tools carry it on. A
    /// thread that its client names is another line.
    #[test]
    fn the_main_line_is_that_of_the_first_turn() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let first = json!([user("Words.")]);
        let path = "/v1/messages";
        let begun = body("Be kind.", "look", &first);
        let mut scene = SessionFixture::read(Dialect::Anthropic, path, MODEL, &begun);
        let placed = |ledger: &Ledger, body: &Value, thread| {
            let read = dialect::read(Dialect::Anthropic, path, body.to_string().as_bytes());
            lineage::place(ledger, &read, "next", thread)
        };
        let goes_on = |ledger: &Ledger, body: &Value, thread| {
            let placed = placed(ledger, body, thread);
            (carries_on(ledger, &placed), waiting(ledger, &placed).len())
        };
        scene.ledger.add(Fact::Queued(Box::new(QueuedMessage {
            id: "q".into(),
            number: 1,
            at: 1,
            text: "Mind the tide.".into(),
            again: None,
        })));
        // The first request carries on what is to be the main line, but nothing is said in it yet.
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
