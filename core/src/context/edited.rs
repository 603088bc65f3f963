//! Edited replies: how a turn is found by the sentences that its client left of the reply, and what was sent before it.
//!
//! A sentence alone proves nothing, because replies begin and end alike. It counts after all of the turn's first request, or
//! after a request whose last message differs: some clients put text into that for one request only (`docs/protocols.md`
//! 8.2). Pure; must not know sessions.

use super::Position;
use super::ledger::{self, BoundaryHash};
use crate::dialect::{
    Chain, Conversation, Part, PartKey, PartKind, Reply, Role, Sentence, sentences,
};

/// Most sentences of a reply that are looked for after all of its request.
const AFTER_ALL: usize = 4;
/// The same after a part of it, each together with the reply's first sentence.
const AFTER_PART: usize = 2;
/// Shorter sentences, bytes without spaces, are in many replies: they count if a reply has no other.
const TELLING: usize = 24;

/// What a request shows of the reply that comes last in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownReply {
    /// How many keyed parts of the request stand before it, and were sent like this.
    pub covers: usize,
    /// The keys of its sentences.
    pub keys: Vec<PartKey>,
}

/// What a request has, besides all of it, after which sentences of its reply prove something: the history before the user's
/// own last message; or if there is none, the first and the last sentence of the user's prompt.
pub(super) fn shared_beginnings(conversation: &Conversation) -> Vec<Chain> {
    let message: Vec<&Part> = conversation
        .parts()
        .rev()
        .filter(|part| part.key.is_some())
        .take_while(|part| !is_history(part))
        .collect();
    let Some(history) = conversation.chains().len().checked_sub(message.len() + 1) else {
        return conversation.prompt.into_iter().flat_map(ends).collect();
    };
    if message.is_empty() {
        return Vec::new();
    }
    conversation.chains().get(history).copied().into_iter().collect()
}

/// Whether it is before the user's own last message: clients that edit messages leave the model's parts and results alone. A
/// reply of reasoning alone has no key, so a message may follow on a result.
pub(super) fn is_history(part: &Part) -> bool {
    part.role == Role::Assistant || part.kind == PartKind::ToolResult
}

/// The keys by which a turn is found if the client changes something: of the parts of its reply that no other has, and of its
/// sentences.
pub fn reply_keys(position: &Position, reply: &Reply) -> Vec<PartKey> {
    let mut keys = Vec::new();
    for said in reply.forms().flat_map(sentences::of_reply) {
        let mut long: Vec<&Sentence> = said.iter().filter(|it| it.length >= TELLING).collect();
        if !position.has_reply {
            let first = said.iter().filter(|it| long.is_empty() || it.length >= TELLING);
            keys.extend(first.take(AFTER_ALL).map(|it| after(position.chain, it.key)));
        }
        // The first one may be short, and after a history that is proof enough.
        if long.is_empty() && position.has_reply {
            long.extend(said.first());
        }
        long.sort_by_key(|sentence| std::cmp::Reverse(sentence.length));
        for beginning in &position.beginnings {
            let pairs = long.iter().take(AFTER_PART).map(|second| with_first(&said, second));
            keys.extend(pairs.map(|pair| after(*beginning, pair)));
        }
    }
    // Forms of one reply have most sentences in common.
    keys.sort_unstable();
    keys.dedup();
    let mut anchor_keys = ledger::anchor_keys(reply);
    anchor_keys.extend(keys);
    anchor_keys
}

/// What a request shows of its last reply, the best proof first.
pub fn shown_replies(conversation: &Conversation) -> Vec<ShownReply> {
    let said = &conversation.last_reply;
    let keyed: Vec<&Part> = conversation.parts().filter(|part| part.key.is_some()).collect();
    let Some(end) = keyed.iter().rposition(|part| part.role == Role::Assistant) else {
        return Vec::new();
    };
    let message = keyed[..end].iter().rposition(|part| part.role != Role::Assistant);
    let request = message.map_or(0, |at| at + 1);
    if said.is_empty() || request == 0 {
        return Vec::new();
    }
    let chains = conversation.chains();
    if let Some(history) = keyed[..request].iter().rposition(|part| is_history(part)) {
        return vec![ShownReply::after_part(history + 1, chains[history], said)];
    }
    let history = chains[request - 1];
    let keys = said.iter().map(|sentence| after(history, sentence.key)).collect();
    let mut replies_shown = vec![ShownReply { covers: request, keys }];
    let ends = conversation.prompt.into_iter().flat_map(ends);
    replies_shown.extend(ends.map(|beginning| ShownReply::after_part(0, beginning, said)));
    replies_shown
}

impl ShownReply {
    fn after_part(covers: usize, beginning: Chain, said: &[Sentence]) -> Self {
        let pairs = said.iter().map(|second| with_first(said, second));
        Self { covers, keys: pairs.map(|pair| after(beginning, pair)).collect() }
    }
}

fn ends(prompt: [PartKey; 2]) -> [Chain; 2] {
    // A prompt may be one sentence.
    let [first, last] = prompt.map(|key| Chain::START.then(key));
    [first.then(PartKey(1)), last.then(PartKey(2))]
}

fn with_first(said: &[Sentence], second: &Sentence) -> PartKey {
    // Replies to equal prompts have long sentences in common, and begin differently.
    let first_sentence = said.first().unwrap_or(second);
    PartKey(Chain(first_sentence.key.0).then(second.key).0)
}

fn after(beginning: Chain, said: PartKey) -> PartKey {
    // Not a chain of parts: a reply may be one sentence.
    PartKey(BoundaryHash::of_end(beginning.then(said)).0)
}
