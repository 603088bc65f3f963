//! Ids of tool calls in a valid form: each id is changed in the same way everywhere, so that calls and
//! results still match.

use xxhash_rust::xxh3::xxh3_128;

use super::messages::history;
use crate::dialect::Dialect;
use crate::dialect::rewrite::{edit, literal};
use crate::wire::json::Value;
use crate::wire::splice::Edit;

/// Letters and digits.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The longest id if the refusal does not say (`docs/protocols.md` 2.2).
const LONGEST: usize = 40;

/// The edits after which every id is valid. `length`: exactly this many letters and digits.
pub(super) fn edits(dialect: Dialect, root: Value<'_>, length: Option<u32>) -> Vec<Edit> {
    let mut found = Vec::new();
    for message in history(dialect, root).into_iter().flat_map(|list| list.items()) {
        match dialect {
            Dialect::Anthropic => {
                for block in message.get("content").into_iter().flat_map(|it| it.items()) {
                    match block.get_text("type").as_deref() {
                        Some("tool_use") => found.extend(block.get("id")),
                        Some("tool_result") => found.extend(block.get("tool_use_id")),
                        _ => {}
                    }
                }
            }
            Dialect::OpenaiChat => {
                found.extend(message.get("tool_call_id"));
                let calls = message.get("tool_calls").into_iter().flat_map(|it| it.items());
                found.extend(calls.filter_map(|call| call.get("id")));
            }
            Dialect::OpenaiResponses => found.extend(message.get("call_id")),
            // Ids there are made by the client, and may have any form.
            Dialect::Gemini => {}
        }
    }
    let changed = found.into_iter().filter_map(|value| {
        let id = value.text()?;
        let new = formed(&id, length)?;
        Some(edit(value.span(), literal(&new)))
    });
    changed.collect()
}

/// The valid form of an id; `None` if it is valid.
fn formed(id: &str, length: Option<u32>) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
    let Some(length) = length.map(|length| length as usize) else {
        let may_stand = |byte: u8| is_plain(byte) || matches!(byte, b'_' | b'-');
        let is_formed = !id.is_empty() && id.len() <= LONGEST && id.bytes().all(may_stand);
        return (!is_formed).then(|| format!("call_{}", letters(id, 22)));
    };
    let is_formed = id.len() == length && id.bytes().all(is_plain);
    (!is_formed && length > 0).then(|| letters(id, length.min(LONGEST)))
}

/// This many letters and digits, computed from an id.
fn letters(id: &str, length: usize) -> String {
    let mut hash = xxh3_128(id.as_bytes());
    let letter = |hash: &mut u128| {
        let letter = ALPHABET[(*hash % 62) as usize];
        *hash = (*hash / 62).rotate_left(7) ^ *hash;
        char::from(letter)
    };
    (0..length).map(|_| letter(&mut hash)).collect()
}
