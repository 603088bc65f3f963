//! Boundaries: how a turn is found again although the client changed something before it.
//!
//! A boundary is the end of a request with the start of its reply, or a part of the reply that no other has. Pure.

use crate::context::Turn;
use crate::dialect::reply::runs;
use crate::dialect::{Chain, PartKey, PartKind, Reply, ReplyPart};

/// The hash of two parts that are adjacent at the end of a request. It is unique enough to find the turn even
/// if a part before them has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryHash(pub u128);

impl BoundaryHash {
    /// Hashes the last keyed part of a request and the first keyed part of its reply.
    pub fn new(request_end: PartKey, reply_start: PartKey) -> Self {
        Self(Chain(request_end.0).then(reply_start).0)
    }

    /// Hashes the end of a request that a reply follows, whichever: its client may have edited it.
    pub fn of_end(request_end: Chain) -> Self {
        Self(request_end.then(PartKey(1)).0)
    }

    /// Hashes a part of the reply that is unique by itself: see [`anchor_keys`].
    pub fn of_anchor_key(key: PartKey) -> Self {
        Self(Chain::START.then(key).0)
    }
}

/// The boundary hashes by which a turn can be found, made from its reply.
pub fn boundary_hashes(turn: &Turn) -> impl Iterator<Item = BoundaryHash> {
    let mut hashes = Vec::new();
    for form in turn.forms() {
        if let (Some(end), Some(start)) = (turn.position.last, form.parts.first()) {
            hashes.push(BoundaryHash::new(end, start.key));
        }
        hashes.extend(form.anchor_keys.iter().copied().map(BoundaryHash::of_anchor_key));
    }
    if !turn.others.is_empty() {
        // Forms of one reply share parts; a turn is listed once for each hash.
        hashes.sort_unstable();
        hashes.dedup();
    }
    hashes.into_iter()
}

/// Most forms of a reply without its beginning that are told apart.
const REPLY_ENDS: usize = 8;

/// The chains after a turn's request and only the end of its reply: some clients drop the text beside a call.
pub fn reply_end_chains(turn: &Turn) -> impl Iterator<Item = Chain> {
    turn.forms().flat_map(|form| {
        let ends = (1..form.parts.len()).take(REPLY_ENDS).map(move |from| &form.parts[from..]);
        ends.map(|end| end.iter().fold(turn.position.chain, |chain, part| chain.then(part.key)))
    })
}

/// Texts shorter than this occur more than once in a session, and identify nothing.
pub(in crate::context) const ANCHOR_BYTES: usize = 48;

/// The keys of those parts of a reply that are probably in no other reply: tool calls with unique ids, and
/// long texts.
pub fn anchor_keys(reply: &Reply) -> Vec<PartKey> {
    anchor_keys_of(&reply.parts)
}

pub(in crate::context) fn anchor_keys_of(parts: &[ReplyPart]) -> Vec<PartKey> {
    runs(parts).filter(|(_, run)| is_anchor(run)).map(|(key, _)| key).collect()
}

fn is_anchor(run: &[&ReplyPart]) -> bool {
    let Some(part) = run.last() else { return false };
    match (part.kind, part.id.as_deref()) {
        (PartKind::ToolCall, Some(id)) => is_own(id, part.name.as_deref().unwrap_or_default()),
        (PartKind::Text, _) => {
            run.iter().map(|part| part.text.len()).sum::<usize>() >= ANCHOR_BYTES
        }
        _ => false,
    }
}

/// Whether a call's id is unique: random, not counted (`call_0`, `functions.Read:12`).
pub(in crate::context) fn is_own(id: &str, tool: &str) -> bool {
    // The name of the tool in an id is not random.
    let (prefix, suffix) = match memchr::memmem::find(id.as_bytes(), tool.as_bytes()) {
        Some(at) if !tool.is_empty() => (&id[..at], &id[at + tool.len()..]),
        _ => (id, ""),
    };
    let mut upper = 0;
    let mut lower = 0;
    let mut digits = 0;
    for byte in prefix.bytes().chain(suffix.bytes()) {
        upper += u32::from(byte.is_ascii_uppercase());
        lower += u32::from(byte.is_ascii_lowercase());
        digits += u32::from(byte.is_ascii_digit());
    }
    let mixed = upper > 0 && lower > 0;
    upper + lower + digits >= 8 && (mixed || digits >= 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{PromptSection, ReplyForm, SketchPart};
    use crate::dialect::Dialect;
    use crate::dialect::models::Family;

    /// Gemini signs the last piece of a reply's text; a client sends the text back in one part.
    #[test]
    fn text_in_pieces_is_one_anchor_key() {
        let piece = |text: &str, key| ReplyPart {
            text: text.into(),
            key,
            ..ReplyPart::new(PartKind::Text)
        };
        let long = "a".repeat(ANCHOR_BYTES - 1);
        let parts = |long: &str| {
            vec![
                piece(long, None),
                ReplyPart::new(PartKind::Reasoning),
                piece(".", Some(PartKey(1))),
                piece(".", Some(PartKey(2))),
            ]
        };
        let of = |long: &str| anchor_keys(&Reply { parts: parts(long), ..Reply::default() });
        assert_eq!(of(&long), [PartKey(1)]);
        assert_eq!(of(&long[1..]), []);
    }

    /// A call that came twice may come back once, without the text beside it.
    #[test]
    fn each_form_of_a_reply_has_its_ends() {
        let part = |key| SketchPart {
            key: PartKey(key),
            tokens: 1,
            place: PromptSection::History,
            by_length: false,
        };
        let once = ReplyForm {
            after: Chain::START,
            parts: vec![part(1), part(2)],
            anchor_keys: Vec::new(),
            output: 0,
            reasoning: 0,
        };
        let turn = Turn {
            reply: vec![part(1), part(2), part(2)],
            others: vec![once],
            ..Turn::empty(Dialect::Gemini, Family::Gemini)
        };
        let end = Chain::START.then(PartKey(2));
        let ends: Vec<Chain> = reply_end_chains(&turn).collect();
        assert_eq!(ends, [end.then(PartKey(2)), end, end]);
    }

    /// Ids that only count come again in other replies, so they identify nothing.
    #[test]
    fn random_call_ids_identify_reply_and_counted_ones_do_not() {
        let drawn = [
            ("toolu_01A09q90qw90lq917835lq9", "read"),
            ("call_aBcDeFgH", ""),
            ("call_1234", "read"),
            ("read_AbCdEfGh", "read"),
            ("AbcdefgH-read", "read"),
            ("read-1234abcd", "read"),
        ];
        let counted = [
            ("", ""),
            ("call_0", "read"),
            ("functions.Read:12", "Read"),
            ("read_file_AbCdEf1", "read_file"),
            ("call_abcdefgh123", ""),
            ("ABCDEFGHIJ", ""),
            ("abcdefghij", ""),
            ("aB1", ""),
            ("1234567", ""),
        ];
        drawn.iter().for_each(|(id, tool)| assert!(is_own(id, tool), "{id}"));
        counted.iter().for_each(|(id, tool)| assert!(!is_own(id, tool), "{id}"));
    }
}
