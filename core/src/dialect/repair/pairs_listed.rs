//! Calls and results that are messages or items of their own: Chat Completions and Responses.
//!
//! A misplaced result is moved with its bytes, one without a call is removed, and a missing one gets a
//! placeholder.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};

use super::pairs::unique;
use crate::dialect::Span;
use crate::dialect::rewrite::{Removal, edit, insert, literal, room, runs};
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// The edits after which every call of a message has one result right after the message.
pub(super) fn chat(root: Value<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    let messages: Vec<Value<'_>> = items(root, "messages");
    let mut results: HashMap<String, VecDeque<usize>> = HashMap::default();
    for (at, message) in messages.iter().enumerate().filter(|(_, message)| is_tool(message)) {
        let id = message.get_text("tool_call_id").unwrap_or_default().into_owned();
        results.entry(id).or_default().push_back(at);
    }
    let mut stays = HashSet::default();
    let mut edits = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let following = messages[at + 1..].iter().take_while(|message| is_tool(message)).count();
        let near = at + 1..=at + following;
        let mut missing = String::new();
        for call in message.get("tool_calls").into_iter().flat_map(|calls| calls.items()) {
            let id = call.get_text("id").unwrap_or_default().into_owned();
            // Prefers the result right after the message.
            let result = results.get_mut(&id).and_then(|places| {
                let nearest = places.iter().position(|place| near.contains(place));
                places.remove(nearest.unwrap_or(0))
            });
            match result {
                Some(result) if near.contains(&result) => {
                    stays.insert(result);
                }
                Some(result) => {
                    missing.push(',');
                    missing.push_str(&String::from_utf8_lossy(messages[result].raw()));
                }
                None => {
                    let id = literal(&id);
                    let text = literal(text);
                    missing.push_str(&format!(
                        ",{{\"role\":\"tool\",\"tool_call_id\":{id},\"content\":{text}}}"
                    ));
                }
            }
        }
        if !missing.is_empty() {
            edits.push(insert(message.span().end, missing));
        }
    }
    let mut removals = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if is_tool(message) && !stays.contains(&at) {
            removals.push(message.span());
        }
    }
    edits.extend(removed(body, removals, "{\"role\":\"user\",\"content\":\"(no content)\"}"));
    without_overlaps(edits)
}

fn is_tool(message: &Value<'_>) -> bool {
    message.get_text("role").as_deref() == Some("tool")
}

/// The types of calls, with the types of their results.
const CALLS: [(&str, &str); 2] =
    [("function_call", "function_call_output"), ("custom_tool_call", "custom_tool_call_output")];

/// The edits after which every call has an output, every output has a call before it, and no id occurs twice:
/// of a repeated item only the first stays, and another call with the same id gets a new one.
pub(super) fn responses(root: Value<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    let items: Vec<Value<'_>> = items(root, "input");
    let kinds: Vec<String> =
        items.iter().map(|item| item.get_text("type").unwrap_or_default().into_owned()).collect();
    let mut edits = Vec::new();
    let mut removals = repeated(&items);
    let mut renamed = Vec::new();
    for (call, output) in CALLS {
        let (open, answered) = paired(&items, &kinds, call, output, &mut removals, &mut renamed);
        let mut missing: Vec<(usize, String)> = open
            .into_iter()
            .filter(|(id, _)| !answered.contains(id))
            .map(|(id, at)| (at, id))
            .collect();
        // In the order of the body: the map has none.
        missing.sort_unstable();
        for (at, id) in missing {
            // The result came before its call, or never.
            let early = items.iter().enumerate().find(|(place, item)| {
                removals.contains(place) && kinds[*place] == output && self::id(item) == id
            });
            let with = match early {
                Some((_, item)) => String::from_utf8_lossy(item.raw()).into_owned(),
                None => {
                    let id = literal(&id);
                    let text = literal(text);
                    // A program finds its results by its own name.
                    let caller = items[at].get("caller").map(|caller| caller.raw());
                    let caller = caller.map(String::from_utf8_lossy);
                    let caller = caller.map(|caller| format!(",\"caller\":{caller}"));
                    let caller = caller.unwrap_or_default();
                    format!("{{\"type\":\"{output}\",\"call_id\":{id},\"output\":{text}{caller}}}")
                }
            };
            let end = run_end(&kinds, at);
            edits.push((items[end].span().end, format!(",{with}")));
        }
    }
    // Several insertions at one place become one edit.
    let mut joined: Vec<Edit> = Vec::new();
    edits.sort_by_key(|(at, _)| *at);
    for group in edits.chunk_by(|one, two| one.0 == two.0) {
        let text: String = group.iter().map(|(_, with)| with.as_str()).collect();
        joined.push(insert(group[0].0, text));
    }
    let removals = removals.into_iter().map(|at| items[at].span()).collect();
    joined.extend(renamed);
    joined.extend(removed(body, removals, "{\"role\":\"user\",\"content\":\"(no content)\"}"));
    without_overlaps(joined)
}

fn paired(
    items: &[Value<'_>],
    kinds: &[String],
    call: &str,
    output: &str,
    removals: &mut HashSet<usize>,
    renamed: &mut Vec<Edit>,
) -> (HashMap<String, usize>, HashSet<String>) {
    // Finds the calls, by their current ids, and those that have results. Items without a place are
    // removed, and duplicate ids renamed.
    let mut open: HashMap<String, usize> = HashMap::default();
    let mut answered = HashSet::default();
    let mut used = HashSet::default();
    // The current id of the newest call with each original id.
    let mut current_ids: HashMap<String, String> = HashMap::default();
    for (at, item) in items.iter().enumerate() {
        if removals.contains(&at) {
            continue;
        }
        let original_id = id(item);
        let current_id = current_ids.get(&original_id).unwrap_or(&original_id).clone();
        if kinds[at] == call {
            match open.contains_key(&current_id) {
                true if !answered.contains(&current_id) => {
                    removals.insert(at);
                }
                true => {
                    let other = unique(&original_id, &mut used);
                    renamed.extend(rename(item, &other));
                    open.insert(other.clone(), at);
                    current_ids.insert(original_id, other);
                }
                false => {
                    used.insert(current_id.clone());
                    open.insert(current_id, at);
                }
            }
        } else if kinds[at] == output {
            if !open.contains_key(&current_id) || !answered.insert(current_id.clone()) {
                removals.insert(at);
            } else if current_id != original_id {
                renamed.extend(rename(item, &current_id));
            }
        }
    }
    (open, answered)
}

fn repeated(items: &[Value<'_>]) -> HashSet<usize> {
    let mut ids: HashSet<String> = HashSet::default();
    let mut repeats = HashSet::default();
    for (at, item) in items.iter().enumerate() {
        if let Some(id) = item.get_text("id").filter(|id| !id.is_empty())
            && !ids.insert(id.into_owned())
        {
            repeats.insert(at);
        }
    }
    repeats
}

fn rename(item: &Value<'_>, id: &str) -> Option<Edit> {
    Some(edit(item.get("call_id")?.span(), literal(id)))
}

fn id(item: &Value<'_>) -> String {
    item.get_text("call_id").unwrap_or_default().into_owned()
}

/// The last of the calls and reasoning items that are adjacent to a call.
fn run_end(kinds: &[String], at: usize) -> usize {
    let later = kinds[at + 1..].iter();
    at + later.take_while(|kind| CALLS.iter().any(|(call, _)| call == kind)).count()
}

fn items<'d>(root: Value<'d>, name: &str) -> Vec<Value<'d>> {
    let list = root.get(name).filter(|list| list.kind() == Kind::Array);
    list.into_iter().flat_map(|list| list.items()).collect()
}

/// The edits that remove items; if none is left, `least` replaces the list.
fn removed(body: &[u8], gone: Vec<Span>, least: &str) -> Vec<Edit> {
    let runs = runs(body, gone).into_iter();
    let edits = runs.filter_map(|run| match room(body, run)? {
        Removal::Shared(at) => Some(edit(at, "")),
        Removal::Alone(at) => Some(edit(at, format!("[{least}]"))),
    });
    edits.collect()
}

fn without_overlaps(mut edits: Vec<Edit>) -> Vec<Edit> {
    // A removed message takes the comma before it, which is where a new one is inserted.
    edits.sort_by_key(|edit| edit.at);
    let mut joined: Vec<Edit> = Vec::with_capacity(edits.len());
    for next in edits {
        match joined.last_mut() {
            Some(last) if last.at.end == next.at.start && last.at.is_empty() => {
                last.at.end = next.at.end;
                last.with = [&last.with[..], &next.with[..]].concat().into();
            }
            Some(last) if next.at.start < last.at.end => {
                last.at.end = last.at.end.max(next.at.end);
                last.with = [&last.with[..], &next.with[..]].concat().into();
            }
            _ => joined.push(next),
        }
    }
    joined
}
