//! Calls and results that must be adjacent, in lists inside messages: Anthropic and Gemini.
//!
//! A changed list of blocks is rebuilt from the bytes of its blocks, which stay as they are. A missing result
//! is searched for elsewhere in the history before a placeholder is used.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};

use super::placeholders::NO_CONTENT;
use crate::dialect::Span;
use crate::dialect::rewrite::{edit, insert, literal};
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// A message in Anthropic's form, with the fields needed here.
struct MessageBlocks<'d> {
    span: Span,
    is_models: bool,
    content: Option<Value<'d>>,
    blocks: Vec<Value<'d>>,
}

/// The edits after which every call in Anthropic's form has one result, at the start of the next message.
pub(super) fn anthropic(root: Value<'_>, text: &str) -> Vec<Edit> {
    let messages: Vec<MessageBlocks<'_>> = root
        .get("messages")
        .into_iter()
        .flat_map(|list| list.items())
        .map(|message| MessageBlocks {
            span: message.span(),
            is_models: message.get_text("role").as_deref() == Some("assistant"),
            content: message.get("content"),
            blocks: message.get("content").iter().flat_map(Value::items).collect(),
        })
        .collect();
    // The results by the id of their call, in order.
    let mut results: HashMap<String, VecDeque<Value<'_>>> = HashMap::default();
    for block in blocks_of_type(&messages, "tool_result") {
        let id = block.get_text("tool_use_id").unwrap_or_default().into_owned();
        results.entry(id).or_default().push_back(block);
    }
    let mut edits = Vec::new();
    let mut ids = HashSet::default();
    let mut end = 0;
    while end < messages.len() {
        let begins = end;
        let is_models = messages[end].is_models;
        while end < messages.len() && messages[end].is_models == is_models {
            end += 1;
        }
        let run = &messages[begins..end];
        if !is_models {
            // A result before the model's first message belongs to no call.
            if begins == 0 {
                for message in run {
                    edits.extend(put(message, Vec::new()));
                }
            }
            continue;
        }
        let mut wanted = Vec::new();
        for call in blocks_of_type(run, "tool_use") {
            let Some(value) = call.get("id") else { continue };
            let id = value.text().unwrap_or_default().into_owned();
            let result = results.get_mut(&id).and_then(VecDeque::pop_front);
            let new_id = unique(&id, &mut ids);
            if new_id != id {
                edits.push(edit(value.span(), literal(&new_id)));
            }
            wanted.push(result_for(result, &id, &new_id, text));
        }
        let last_byte = run.last().map_or(0, |last| last.span.end);
        match messages.get(end) {
            Some(next) => edits.extend(put(next, wanted)),
            None if wanted.is_empty() => {}
            None => {
                let content = wanted.join(",");
                let message = format!(",{{\"role\":\"user\",\"content\":[{content}]}}");
                edits.push(insert(last_byte, message));
            }
        }
        // Later messages of the same user turn contain no results.
        let rest = messages[end..].iter().skip(1).take_while(|message| !message.is_models);
        for message in rest {
            edits.extend(put(message, Vec::new()));
        }
    }
    edits
}

fn blocks_of_type<'m, 'd>(
    messages: &'m [MessageBlocks<'d>],
    kind: &'m str,
) -> impl Iterator<Item = Value<'d>> + use<'m, 'd> {
    let blocks = messages.iter().flat_map(|message| &message.blocks).copied();
    blocks.filter(move |block| block.get_text("type").as_deref() == Some(kind))
}

/// The id, changed if an earlier call has it.
pub(super) fn unique(id: &str, used: &mut HashSet<String>) -> String {
    let mut candidate = id.to_owned();
    let mut number = 2;
    while !used.insert(candidate.clone()) {
        candidate = format!("{id}_{number}");
        number += 1;
    }
    candidate
}

fn result_for(result: Option<Value<'_>>, id: &str, own: &str, text: &str) -> String {
    let Some(result) = result else {
        let own = literal(own);
        let text = literal(text);
        return format!(
            "{{\"type\":\"tool_result\",\"tool_use_id\":{own},\"content\":{text},\"is_error\":true}}"
        );
    };
    let raw = String::from_utf8_lossy(result.raw());
    match result.get("tool_use_id") {
        Some(old_id) if own != id => {
            let base = result.span().start;
            let start = old_id.span().start - base;
            let end = old_id.span().end - base;
            format!("{}{}{}", &raw[..start], literal(own), &raw[end..])
        }
        _ => raw.into_owned(),
    }
}

/// The edit that puts these results first in the user's message, and no others; `None` if they already are.
fn put(message: &MessageBlocks<'_>, results: Vec<String>) -> Option<Edit> {
    let content = message.content?;
    if content.kind() == Kind::String {
        if results.is_empty() {
            return None;
        }
        let replacement = format!("{{\"type\":\"text\",\"text\":{}}}", raw(content));
        let results = results.join(",");
        return Some(edit(content.span(), format!("[{results},{replacement}]")));
    }
    if content.kind() != Kind::Array {
        return None;
    }
    let mut blocks = results;
    for block in &message.blocks {
        if block.get_text("type").as_deref() != Some("tool_result") {
            blocks.push(raw(*block));
        }
    }
    let old_blocks: Vec<String> = message.blocks.iter().map(|block| raw(*block)).collect();
    // The order of parallel results means nothing, so it is no reason for an edit.
    if is_same(&blocks, &old_blocks) {
        return None;
    }
    if blocks.is_empty() {
        blocks.push(format!("{{\"type\":\"text\",\"text\":{}}}", literal(NO_CONTENT)));
    }
    Some(edit(content.span(), format!("[{}]", blocks.join(","))))
}

fn raw(value: Value<'_>) -> String {
    String::from_utf8_lossy(value.raw()).into_owned()
}

/// Whether two lists of blocks are equal, apart from the order of the leading results.
fn is_same(all: &[String], before: &[String]) -> bool {
    let count = leading_results(all);
    count == leading_results(before)
        && sorted(&all[..count]) == sorted(&before[..count])
        && all[count..] == before[count..]
}

fn leading_results(blocks: &[String]) -> usize {
    blocks.iter().take_while(|block| block.contains("\"tool_result\"")).count()
}

fn sorted(blocks: &[String]) -> Vec<String> {
    let mut blocks = blocks.to_vec();
    blocks.sort_unstable();
    blocks
}

/// The edits after which every content of Gemini's with calls is followed by as many responses.
pub(super) fn gemini(root: Value<'_>, text: &str) -> Vec<Edit> {
    let contents: Vec<Value<'_>> =
        root.get("contents").into_iter().flat_map(|list| list.items()).collect();
    let mut edits = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        let calls = parts(*content, &CALLS);
        let caller = at.checked_sub(1).and_then(|at| contents.get(at));
        let was_called = caller.is_some_and(|content| !parts(*content, &CALLS).is_empty());
        let responses = parts(*content, &RESPONSES);
        // They answer nothing, which Gemini refuses.
        if !responses.is_empty() && !was_called {
            edits.extend(responses_for(*content, &[], text));
        }
        if calls.is_empty() {
            continue;
        }
        let names: Vec<CallName> = calls.iter().map(|call| named(*call)).collect();
        match contents.get(at + 1) {
            Some(next) if !parts(*next, &RESPONSES).is_empty() => {
                edits.extend(responses_for(*next, &names, text));
            }
            _ => {
                let responses: Vec<String> =
                    names.iter().map(|name| response(name, text)).collect();
                let responses = responses.join(",");
                let turn = format!(",{{\"role\":\"user\",\"parts\":[{responses}]}}");
                edits.push(insert(content.span().end, turn));
            }
        }
    }
    edits
}

const CALLS: [&str; 2] = ["functionCall", "function_call"];
const RESPONSES: [&str; 2] = ["functionResponse", "function_response"];

fn parts<'d>(content: Value<'d>, names: &[&str; 2]) -> Vec<Value<'d>> {
    let parts = content.get("parts").into_iter().flat_map(|parts| parts.items());
    parts.filter_map(|part| part.get_any(names)).collect()
}

/// What a call or response is found by.
struct CallName {
    id: Option<String>,
    name: String,
}

fn named(value: Value<'_>) -> CallName {
    let id = value.get_text("id").map(Into::into);
    CallName { id, name: value.get_text("name").unwrap_or_default().into_owned() }
}

/// A response that says that there is none.
fn response(CallName { id, name }: &CallName, text: &str) -> String {
    let id = id.as_deref().map(|id| format!("\"id\":{},", literal(id))).unwrap_or_default();
    let name = literal(name);
    let text = literal(text);
    format!("{{\"functionResponse\":{{{id}\"name\":{name},\"response\":{{\"error\":{text}}}}}}}")
}

fn response_in(part: Value<'_>) -> Option<Value<'_>> {
    part.get_any(&RESPONSES)
}

/// The edit after which a content has one response per call; `None` if it already has.
fn responses_for(content: Value<'_>, calls: &[CallName], text: &str) -> Option<Edit> {
    let list = content.get("parts")?;
    let mut old_parts: Vec<Option<Value<'_>>> = list.items().map(Some).collect();
    let mut new_parts = Vec::new();
    for call in calls {
        let place = old_parts.iter().position(|part| {
            let Some(answer) = part.and_then(response_in).map(named) else { return false };
            // Clients leave ids out: then the name alone decides.
            let has_same_id = answer.id.is_none() || call.id.is_none() || answer.id == call.id;
            has_same_id && answer.name == call.name
        });
        match place.and_then(|place| old_parts.get_mut(place)?.take()) {
            Some(part) => new_parts.push(raw(part)),
            None => new_parts.push(response(call, text)),
        }
    }
    let is_same = new_parts.len()
        == list.items().filter(|part| response_in(*part).is_some()).count()
        && new_parts.iter().all(|one| list.items().any(|part| raw(part) == *one));
    if is_same {
        return None;
    }
    new_parts.extend(
        old_parts.into_iter().flatten().filter(|part| response_in(*part).is_none()).map(raw),
    );
    if new_parts.is_empty() {
        new_parts.push(format!("{{\"text\":{}}}", literal(NO_CONTENT)));
    }
    Some(edit(list.span(), format!("[{}]", new_parts.join(","))))
}
