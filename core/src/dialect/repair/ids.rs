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
    let mut ids = Vec::new();
    for message in history(dialect, root).into_iter().flat_map(|list| list.items()) {
        match dialect {
            Dialect::Anthropic => {
                for block in message.get("content").iter().flat_map(Value::items) {
                    match block.get_text("type").as_deref() {
                        Some("tool_use") => ids.extend(block.get("id")),
                        Some("tool_result") => ids.extend(block.get("tool_use_id")),
                        _ => {}
                    }
                }
            }
            Dialect::OpenaiChat => {
                ids.extend(message.get("tool_call_id"));
                let calls = message.get("tool_calls");
                let calls = calls.iter().flat_map(Value::items);
                ids.extend(calls.filter_map(|call| call.get("id")));
            }
            Dialect::OpenaiResponses => ids.extend(message.get("call_id")),
            // Ids there are made by the client, and may have any form.
            Dialect::Gemini => {}
        }
    }
    let changed = ids.into_iter().filter_map(|value| {
        let id = value.text()?;
        let valid = formed(&id, length)?;
        Some(edit(value.span(), literal(&valid)))
    });
    changed.collect()
}

fn formed(id: &str, length: Option<u32>) -> Option<String> {
    let Some(length) = length.map(|length| length as usize) else {
        let has_valid_bytes =
            id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        let is_formed = !id.is_empty() && id.len() <= LONGEST && has_valid_bytes;
        return if is_formed { None } else { Some(format!("call_{}", letters(id, 22))) };
    };
    let is_formed = id.len() == length && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_formed || length == 0 { None } else { Some(letters(id, length.min(LONGEST))) }
}

fn letters(id: &str, length: usize) -> String {
    // Computed from the id, so that call and result still match.
    let mut hash = xxh3_128(id.as_bytes());
    let mut letters = String::with_capacity(length);
    for _ in 0..length {
        letters.push(char::from(ALPHABET[(hash % 62) as usize]));
        // One hash has only 21 letters; rotating it gives more of them.
        hash = (hash / 62).rotate_left(7) ^ hash;
    }
    letters
}
