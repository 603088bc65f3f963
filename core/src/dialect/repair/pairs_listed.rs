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
    let is_tool = |message: &Value<'_>| message.get_text("role").as_deref() == Some("tool");
    let mut results: HashMap<String, VecDeque<usize>> = HashMap::default();
    for (at, message) in messages.iter().enumerate().filter(|(_, message)| is_tool(message)) {
        let id = message.get_text("tool_call_id").unwrap_or_default().into_owned();
        results.entry(id).or_default().push_back(at);
    }
    let (mut stays, mut edits) = (HashSet::default(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        let mut after = messages[at + 1..].iter().take_while(|it| is_tool(it)).count();
        after += at;
        let mut missing = String::new();
        for call in message.get("tool_calls").into_iter().flat_map(|calls| calls.items()) {
            let id = call.get_text("id").unwrap_or_default().into_owned();
            let known = results.get_mut(&id);
            // Prefers the result right after the message.
            let found = known.and_then(|all| {
                let near = all.iter().position(|it| (at + 1..=after).contains(it)).unwrap_or(0);
                all.remove(near)
            });
            match found {
                Some(found) if (at + 1..=after).contains(&found) => {
                    stays.insert(found);
                }
                Some(found) => {
                    missing.push(',');
                    missing.push_str(&String::from_utf8_lossy(messages[found].raw()));
                }
                None => {
                    let (id, text) = (literal(&id), literal(text));
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
    let gone = messages.iter().enumerate().filter(|(at, it)| is_tool(it) && !stays.contains(at));
    let gone = gone.map(|(_, message)| message.span()).collect();
    edits.extend(removed(body, gone, "{\"role\":\"user\",\"content\":\"(no content)\"}"));
    without_overlaps(edits)
}

/// The types of calls, with the types of their results.
const CALLS: [(&str, &str); 2] =
    [("function_call", "function_call_output"), ("custom_tool_call", "custom_tool_call_output")];

/// The edits after which every call has an output, every output has a call before it, and no id occurs twice:
/// of a repeated item only the first stays, and another call with the same id gets a new one.
pub(super) fn responses(root: Value<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    let items: Vec<Value<'_>> = items(root, "input");
    let kind = |item: &Value<'_>| item.get_text("type").unwrap_or_default().into_owned();
    let kinds: Vec<String> = items.iter().map(kind).collect();
    let mut edits = Vec::new();
    let mut gone = repeated(&items);
    let mut renamed = Vec::new();
    for (call, output) in CALLS {
        let (open, answered) = paired(&items, &kinds, call, output, &mut gone, &mut renamed);
        let mut missing: Vec<(usize, String)> = open
            .into_iter()
            .filter(|(id, _)| !answered.contains(id))
            .map(|(id, at)| (at, id))
            .collect();
        missing.sort_unstable();
        for (at, id) in missing {
            // The result came before its call, or never.
            let early = items.iter().enumerate().find(|(place, item)| {
                gone.contains(place) && kinds[*place] == output && self::id(item) == id
            });
            let with = match early {
                Some((_, item)) => String::from_utf8_lossy(item.raw()).into_owned(),
                None => {
                    let (id, text) = (literal(&id), literal(text));
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
        let all: String = group.iter().map(|(_, with)| with.as_str()).collect();
        joined.push(insert(group[0].0, all));
    }
    let gone = gone.into_iter().map(|at| items[at].span()).collect();
    joined.extend(renamed);
    joined.extend(removed(body, gone, "{\"role\":\"user\",\"content\":\"(no content)\"}"));
    without_overlaps(joined)
}

/// Finds the calls, by their current ids, and those that have results. Items without a place are removed, and
/// duplicate ids renamed.
fn paired(
    items: &[Value<'_>],
    kinds: &[String],
    call: &str,
    output: &str,
    gone: &mut HashSet<usize>,
    renamed: &mut Vec<Edit>,
) -> (HashMap<String, usize>, HashSet<String>) {
    let mut open: HashMap<String, usize> = HashMap::default();
    let (mut answered, mut used) = (HashSet::default(), HashSet::default());
    // The current id of the newest call with each original id.
    let mut now: HashMap<String, String> = HashMap::default();
    for (at, item) in items.iter().enumerate() {
        if gone.contains(&at) {
            continue;
        }
        let own = id(item);
        let known = now.get(&own).unwrap_or(&own).clone();
        if kinds[at] == call {
            match open.contains_key(&known) {
                true if !answered.contains(&known) => {
                    gone.insert(at);
                }
                true => {
                    let other = unique(&own, &mut used);
                    renamed.extend(rename(item, &other));
                    open.insert(other.clone(), at);
                    now.insert(own, other);
                }
                false => {
                    used.insert(known.clone());
                    open.insert(known, at);
                }
            }
        } else if kinds[at] == output {
            if !open.contains_key(&known) || !answered.insert(known.clone()) {
                gone.insert(at);
            } else if known != own {
                renamed.extend(rename(item, &known));
            }
        }
    }
    (open, answered)
}

/// The items whose own id occurred before.
fn repeated(items: &[Value<'_>]) -> HashSet<usize> {
    let mut known: HashSet<String> = HashSet::default();
    let is_repeated = |item: &Value<'_>| {
        let id = item.get_text("id").filter(|id| !id.is_empty());
        id.is_some_and(|id| !known.insert(id.into_owned()))
    };
    let found = items.iter().map(is_repeated).collect::<Vec<_>>().into_iter().enumerate();
    found.filter(|(_, is_repeated)| *is_repeated).map(|(at, _)| at).collect()
}

fn rename(item: &Value<'_>, id: &str) -> Option<Edit> {
    Some(edit(item.get("call_id")?.span(), literal(id)))
}

fn id(item: &Value<'_>) -> String {
    item.get_text("call_id").unwrap_or_default().into_owned()
}

/// The last of the calls and reasoning items that are adjacent to a call.
fn run_end(kinds: &[String], at: usize) -> usize {
    let is_call = |kind: &&String| CALLS.iter().any(|(call, _)| *call == kind.as_str());
    at + kinds[at + 1..].iter().take_while(is_call).count()
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

/// Joins a removal and an insertion at one place: a removed message takes the comma before it, which is where
/// a new one is inserted.
fn without_overlaps(mut edits: Vec<Edit>) -> Vec<Edit> {
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
