//! What a turn leaves of itself, and what a request shows: hashes by which a session is found again.
//!
//! Those that no other conversation is likely to show come first, then the others, each nearest to the request's end first.
//! Pure; must not know which sessions left them.

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128, xxh3_128_with_seed};

use crate::context::edited::shown_replies;
use crate::context::ledger::{BoundaryHash, boundary_hashes, reply_end_chains};
use crate::context::{Fact, Millis, Outcome, SessionWitness, Turn};
use crate::dialect::{Conversation, HeldHistory, PartKey, PartKind, Role};
use crate::store::{Record, RecordKind};

/// Most fingerprints of one request that are looked up in a store.
const LOOKED_UP: usize = 64;
/// How many of the newest signatures of a request are looked up.
const SIGNATURES: usize = 4;
/// How many of the newest messages are looked up if there are no replies.
const MESSAGES: usize = 4;
/// No two sessions are likely to have this many parts in common from the first one on, as in the search for a turn.
const LONG_HISTORY: usize = 5;

/// A fingerprint that a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownFingerprint {
    pub(super) key: u128,
    /// What it proves.
    pub(super) witness: SessionWitness,
    pub(super) strength: Strength,
}

/// How much a fingerprint proves beside others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strength {
    Usual,
    /// It is all of a request, which leaves it only if it had no complete reply.
    SentAgain,
    /// A text or a call without an id, which the model may have said in several sessions.
    Text,
    /// A history up to the end of a reply, of at least [`LONG_HISTORY`] parts.
    LongHistory,
}

impl ShownFingerprint {
    pub(super) fn new(key: u128, witness: SessionWitness) -> Self {
        Self { key, witness, strength: Strength::Usual }
    }

    pub(super) fn is_sent_again(&self) -> bool {
        self.strength == Strength::SentAgain
    }

    pub(super) fn is_request_end(&self) -> bool {
        self.is_sent_again() || self.witness == SessionWitness::RequestEnd
    }
}

pub(super) fn left_by(fact: &Fact) -> Vec<Record> {
    // A turn leaves the end of its reply, its anchor keys and
    // boundary, its response's id, and the end of its request: if it has no complete reply, or none
    // because the model declined, for whatever follows; if the request has a reply in it, for an edited one. A request without a
    // reply proves nothing: many conversations begin with the same words. With the end of its reply
    // it does: some clients drop the text beside a call. Reasoning leaves its signatures.
    let (mut fingerprints, at) = match fact {
        Fact::Turn(turn) => (left_by_turn(turn), turn.at),
        Fact::Reasoning(made) => (made.signature_keys().map(of_signature).collect(), made.at),
        _ => return Vec::new(),
    };
    fingerprints.dedup();
    fingerprints.into_iter().map(|key| fingerprint_record(key, at)).collect()
}

fn fingerprint_record(key: u128, at: Millis) -> Record {
    Record { kind: RecordKind::Fingerprint, key, value: Bytes::new(), at, turn: None }
}

fn left_by_turn(turn: &Turn) -> Vec<u128> {
    let request = turn.position.chain;
    let mut fingerprints: Vec<u128> = boundary_hashes(turn).map(|boundary| boundary.0).collect();
    if turn.after != request {
        fingerprints.push(turn.after.0);
    }
    if turn.outcome != Outcome::Complete || turn.is_declined() {
        fingerprints.push(request.0);
    }
    let position = &turn.position;
    if position.has_reply || position.has_messages {
        fingerprints.push(BoundaryHash::of_end(request).0);
    }
    if !position.has_reply {
        fingerprints.extend(reply_end_chains(turn).map(|chain| chain.0));
    }
    if let Some(name) = &position.client_thread {
        fingerprints.iter_mut().for_each(|key| *key = of_thread(*key, name));
    }
    fingerprints.extend(turn.response.as_deref().map(of_response));
    fingerprints
}

/// A fingerprint of a thread that its client names: agents with other names may have equal prompts, and equal ids of calls.
fn of_thread(key: u128, name: &str) -> u128 {
    xxh3_128_with_seed(&key.to_le_bytes(), xxh3_64(name.as_bytes()))
}

/// What a request of a thread that its client names shows: the fingerprints of that thread, then those of threads without a
/// name, which it may have left.
pub(super) fn of_client_thread(
    shown: Vec<ShownFingerprint>,
    name: Option<&str>,
) -> Vec<ShownFingerprint> {
    let Some(name) = name else { return shown };
    let named = shown.iter().map(|it| ShownFingerprint { key: of_thread(it.key, name), ..*it });
    named.chain(shown.iter().copied()).collect()
}

/// The fingerprints that a request shows, the most specific first.
pub(super) fn shown_by(conversation: &Conversation) -> Vec<ShownFingerprint> {
    shown(conversation, true)
}

/// The first of them, up to the end of its newest reply: nearly every request is found by these.
pub(super) fn shown_by_end(conversation: &Conversation) -> Vec<ShownFingerprint> {
    shown(conversation, false)
}

fn shown(conversation: &Conversation, is_whole: bool) -> Vec<ShownFingerprint> {
    let chains = conversation.chains();
    let mut keyed: Vec<(PartKey, bool, Strength)> = Vec::with_capacity(chains.len());
    let parts = conversation.parts();
    keyed.extend(parts.filter_map(|part| {
        let has_id = part.kind == PartKind::ToolCall && part.id.is_some();
        let strength = if has_id { Strength::Usual } else { Strength::Text };
        Some((part.key?, part.role == Role::Assistant, strength))
    }));
    let message_ends = message_ends(conversation);
    // Unsigned, it is the same in many conversations.
    let signatures = conversation.parts().rev().filter_map(|part| part.signature_key);
    let mut found_by: Vec<ShownFingerprint> = signatures
        .take(SIGNATURES)
        .map(|key| ShownFingerprint::new(of_signature(key), SessionWitness::Signature))
        .collect();
    if let Some(HeldHistory::After(id)) = &conversation.held {
        found_by.push(shown_response(id));
    }
    let first_reply = keyed.iter().position(|(_, answered, _)| *answered).unwrap_or(keyed.len());
    let replies = if is_whole { shown_replies(conversation) } else { Vec::new() };
    let mut sentences: Vec<ShownFingerprint> = replies
        .into_iter()
        .flat_map(|shown| shown.keys)
        .map(|key| BoundaryHash::of_anchor_key(key).0)
        .map(|key| ShownFingerprint::new(key, SessionWitness::Sentence))
        .collect();
    let mut boundary_hashes = Vec::new();
    for (index, (key, answered, strength)) in keyed.iter().enumerate().rev() {
        let next_answered = keyed.get(index + 1).map(|(_, answered, _)| *answered);
        let is_request_end = !*answered && next_answered == Some(true);
        if is_request_end && index < first_reply {
            found_by.append(&mut sentences);
        }
        // A turn ends where the role changes, or at the end.
        if next_answered != Some(*answered) {
            let end = ShownFingerprint::new(chains[index].0, SessionWitness::Prefix);
            let strength = match answered {
                false => Strength::SentAgain,
                true if index + 1 >= LONG_HISTORY => Strength::LongHistory,
                true => Strength::Usual,
            };
            found_by.push(ShownFingerprint { strength, ..end });
        }
        // Before the first reply, many conversations begin alike.
        if is_request_end && index > first_reply || message_ends.contains(&index) {
            let end = BoundaryHash::of_end(chains[index]);
            found_by.push(ShownFingerprint::new(end.0, SessionWitness::RequestEnd));
            // All of the request proves more than its history.
            found_by.append(&mut sentences);
        }
        if *answered && !is_whole {
            return found_by;
        }
        if *answered {
            let call = BoundaryHash::of_anchor_key(*key);
            let call = ShownFingerprint::new(call.0, SessionWitness::Call);
            found_by.push(ShownFingerprint { strength: *strength, ..call });
            if let Some(previous) = index.checked_sub(1) {
                let boundary = BoundaryHash::new(keyed[previous].0, *key);
                boundary_hashes.push(ShownFingerprint::new(boundary.0, SessionWitness::Boundary));
            }
        }
    }
    // They prove least, so they come last.
    found_by.extend(boundary_hashes);
    found_by
}

/// Where the newest messages end that the last one follows, if the client sends no replies back: one of them ended the request
/// before. Not where the first one does, because many conversations begin alike.
fn message_ends(conversation: &Conversation) -> Vec<usize> {
    if !conversation.has_only_user_messages() {
        return Vec::new();
    }
    let mut parts = 0;
    let mut ends = Vec::new();
    for message in &conversation.messages {
        let keyed = message.parts.iter().filter(|part| part.key.is_some()).count();
        parts += keyed;
        if keyed > 0 {
            ends.push(parts - 1);
        }
    }
    ends.pop();
    let skipped = ends.len().saturating_sub(MESSAGES).max(1);
    ends.into_iter().skip(skipped).collect()
}

/// The fingerprints of a request that the store is asked for: of both kinds, those nearest to its end.
pub(super) fn to_look_up(fingerprints: &[ShownFingerprint]) -> Vec<u128> {
    let (boundaries, others): (Vec<&ShownFingerprint>, Vec<&ShownFingerprint>) =
        fingerprints.iter().partition(|shown| shown.witness == SessionWitness::Boundary);
    let nearest = others.into_iter().take(LOOKED_UP * 3 / 4);
    nearest.chain(boundaries).take(LOOKED_UP).map(|shown| shown.key).collect()
}

fn of_signature(key: PartKey) -> u128 {
    BoundaryHash::new(key, PartKey(2)).0
}

pub(super) fn of_response(id: &str) -> u128 {
    xxh3_128(id.as_bytes())
}

/// The same, as a request shows it.
pub(super) fn shown_response(id: &str) -> ShownFingerprint {
    ShownFingerprint::new(of_response(id), SessionWitness::Response)
}

pub(super) fn of_open_reply(fact: &Fact) -> Option<Record> {
    // The whole reply completes the turn, also in a session that its client names.
    let Fact::Turn(turn) = fact else { return None };
    if turn.outcome == Outcome::Complete {
        return None;
    }
    let response = turn.response.as_deref()?;
    Some(fingerprint_record(of_response(response), turn.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{self, Dialect};

    /// However many messages there are, only the newest ends are looked up.
    #[test]
    fn messages_without_replies_show_few_ends() {
        let ends = |count: usize| {
            let messages = vec![("user", &["go on"][..]); count];
            let shown = shown_by(&conversation(&messages)).into_iter();
            shown.filter(|shown| shown.witness == SessionWitness::RequestEnd).count()
        };
        assert_eq!([1, 2, 3, 4, 5000].map(ends), [0, 0, 1, 2, MESSAGES]);
    }

    fn conversation(messages: &[(&str, &[&str])]) -> Conversation {
        let message = |(role, texts): &(&str, &[&str])| {
            let text = |text: &&str| serde_json::json!({"type": "text", "text": text});
            let texts: Vec<_> = texts.iter().map(text).collect();
            serde_json::json!({"role": role, "content": texts})
        };
        let messages: Vec<_> = messages.iter().map(message).collect();
        let body = serde_json::json!({"model": "m", "max_tokens": 9, "messages": messages});
        dialect::read(Dialect::Anthropic, "/v1/messages", body.to_string().as_bytes())
    }

    /// Models without signatures think the same in many conversations. What a request shows first is remembered with what the
    /// store answers.
    #[test]
    fn unsigned_thoughts_prove_nothing() {
        let shown = |thought: serde_json::Value| {
            let block = serde_json::json!({"role": "assistant", "content": [thought]});
            let question = serde_json::json!({"role": "user", "content": "Hi."});
            let messages = [&question, &block, &question];
            let body = serde_json::json!({"model": "m", "max_tokens": 9, "messages": messages});
            let body = body.to_string();
            let asked = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
            let shown = shown_by(&asked).into_iter();
            shown.filter(|shown| shown.witness == SessionWitness::Signature).count()
        };
        let thought = serde_json::json!({"type": "thinking", "thinking": "Hm."});
        assert_eq!(shown(thought.clone()), 0);
        let mut signed = thought;
        signed["signature"] = "c2ln".into();
        assert_eq!(shown(signed), 1);
    }

    /// A call of Gemini is signed like a thought.
    #[test]
    fn signed_calls_prove_whose_they_are() {
        let body = r#"{"contents":[{"role":"model","parts":[
            {"functionCall":{"name":"ls","args":{}},"thoughtSignature":"c2ln"}]}]}"#;
        let path = "/v1beta/models/gemini-3-pro:generateContent";
        let asked = dialect::read(Dialect::Gemini, path, body.as_bytes());
        let first = shown_by(&asked)[0];
        let signature = asked.parts().find_map(|part| part.signature_key).unwrap();
        assert_eq!(first.key, of_signature(signature));
        assert_eq!(first.witness, SessionWitness::Signature);
    }

    /// A turn ends where the role changes, so these ends are looked up, from the last to the first.
    #[test]
    fn requests_are_found_by_turn_ends() {
        let asked = conversation(&[
            ("user", &["one", "two"]),
            ("assistant", &["three", "four"]),
            ("user", &["five"]),
        ]);
        let chains: Vec<u128> = asked.chains().iter().map(|chain| chain.0).collect();
        assert_eq!(chains.len(), 5);
        let shown = shown_by(&asked).into_iter().map(|shown| shown.key);
        let ends: Vec<u128> = shown.filter(|shown| chains.contains(shown)).collect();
        assert_eq!(ends, [chains[4], chains[3], chains[1]]);
    }

    #[test]
    fn requests_are_found_by_response_id() {
        let mut asked = conversation(&[("user", &["one"])]);
        let shown = |id: &str, asked: &mut Conversation| {
            asked.held = Some(HeldHistory::After(id.into()));
            shown_by(asked)
        };
        let (one, other) = (shown("resp_1", &mut asked), shown("resp_2", &mut asked));
        assert_ne!(one[0], other[0]);
        assert_eq!(one[1..], other[1..]);
    }

    /// Of a long request only some fingerprints are looked up: mostly specific ones, and of each kind those nearest to
    /// its end.
    #[test]
    fn look_ups_take_nearest() {
        let texts: Vec<String> = (0..300).map(|n| format!("text {n}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let turns = texts.chunks(3);
        let messages: Vec<(&str, &[&str])> =
            turns.flat_map(|said| [("user", &said[..2]), ("assistant", &said[2..])]).collect();
        let long = conversation(&messages);
        let shown = shown_by(&long);
        let shown: Vec<u128> = shown.iter().map(|shown| shown.key).collect();
        let telling = shown.len() - 100;
        let wanted = to_look_up(&shown_by(&long));
        assert_eq!(wanted.len(), LOOKED_UP);
        assert_eq!(wanted[..48], shown[..48]);
        assert_eq!(wanted[48..], shown[telling..telling + 16]);
        let short = conversation(&messages[190..]);
        let all: Vec<u128> = shown_by(&short).iter().map(|shown| shown.key).collect();
        assert_eq!(to_look_up(&shown_by(&short)), all, "of a short one, all");
    }

    /// Whoever is found by the end is found by all, and by the same fingerprint.
    #[test]
    fn end_is_shown_first() {
        let messages: [(&str, &[&str]); 4] = [
            ("user", &["Count the ships."]),
            ("assistant", &["There are two.", "One is a brig."]),
            ("user", &["And now?", "Be quick."]),
            ("assistant", &["Three."]),
        ];
        for (end, shown) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
            let asked = conversation(&messages[..end]);
            let near = shown_by_end(&asked);
            assert_eq!(near.len(), shown, "of {end} messages");
            assert!(shown_by(&asked).starts_with(&near));
        }
        let begun = conversation(&messages[..1]);
        assert_eq!(shown_by_end(&begun), shown_by(&begun));
    }
}
