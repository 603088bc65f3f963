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
            blocks: message.get("content").into_iter().flat_map(|it| it.items()).collect(),
        })
        .collect();
    let kind = |block: &Value<'_>, name: &str| block.get_text("type").is_some_and(|it| it == name);
    // The results by the id of their call, in order.
    let mut results: HashMap<String, VecDeque<Value<'_>>> = HashMap::default();
    for block in messages.iter().flat_map(|it| &it.blocks).filter(|it| kind(it, "tool_result")) {
        let id = block.get_text("tool_use_id").unwrap_or_default().into_owned();
        results.entry(id).or_default().push_back(*block);
    }
    let (mut edits, mut ids) = (Vec::new(), HashSet::default());
    let mut at = 0;
    while at < messages.len() {
        let begins = at;
        let is_models = messages[at].is_models;
        while at < messages.len() && messages[at].is_models == is_models {
            at += 1;
        }
        let run = &messages[begins..at];
        if !is_models {
            // A result before the model's first message belongs to no call.
            if begins == 0 {
                run.iter().for_each(|message| edits.extend(put(message, Vec::new())));
            }
            continue;
        }
        let mut wanted = Vec::new();
        for call in run.iter().flat_map(|it| &it.blocks).filter(|block| kind(block, "tool_use")) {
            let Some(value) = call.get("id") else { continue };
            let id = value.text().unwrap_or_default().into_owned();
            let result = results.get_mut(&id).and_then(VecDeque::pop_front);
            let own = unique(&id, &mut ids);
            if own != id {
                edits.push(edit(value.span(), literal(&own)));
            }
            wanted.push(result_for(result, &id, &own, text));
        }
        let next = messages.get(at).filter(|_| at < messages.len());
        let end = run.last().map_or(0, |last| last.span.end);
        match next {
            Some(next) => edits.extend(put(next, wanted)),
            None if wanted.is_empty() => {}
            None => {
                let all = wanted.join(",");
                edits.push(insert(end, format!(",{{\"role\":\"user\",\"content\":[{all}]}}")));
            }
        }
        // Later messages of the same user turn contain no results.
        let rest = messages[at..].iter().skip(1).take_while(|message| !message.is_models);
        rest.for_each(|message| edits.extend(put(message, Vec::new())));
    }
    edits
}

/// The id, changed if an earlier call has it.
pub(super) fn unique(id: &str, used: &mut HashSet<String>) -> String {
    let mut own = id.to_owned();
    let mut number = 2;
    while !used.insert(own.clone()) {
        own = format!("{id}_{number}");
        number += 1;
    }
    own
}

/// The bytes of a result with the new id of its call; a placeholder if there is none.
fn result_for(result: Option<Value<'_>>, id: &str, own: &str, text: &str) -> String {
    let Some(result) = result else {
        let (own, text) = (literal(own), literal(text));
        return format!(
            "{{\"type\":\"tool_result\",\"tool_use_id\":{own},\"content\":{text},\"is_error\":true}}"
        );
    };
    let raw = String::from_utf8_lossy(result.raw());
    match result.get("tool_use_id").filter(|_| own != id) {
        Some(named) => {
            let (base, at) = (result.span().start, named.span());
            let (start, end) = (at.start - base, at.end - base);
            format!("{}{}{}", &raw[..start], literal(own), &raw[end..])
        }
        None => raw.into_owned(),
    }
}

/// The edit that puts these results first in the user's message, and no others; `None` if they already are.
fn put(message: &MessageBlocks<'_>, results: Vec<String>) -> Option<Edit> {
    let content = message.content?;
    let text = |value: Value<'_>| String::from_utf8_lossy(value.raw()).into_owned();
    if content.kind() == Kind::String {
        let replacement = format!("{{\"type\":\"text\",\"text\":{}}}", text(content));
        let all = results.join(",");
        return (!results.is_empty())
            .then(|| edit(content.span(), format!("[{all},{replacement}]")));
    }
    if content.kind() != Kind::Array {
        return None;
    }
    let is_result = |block: &&Value<'_>| block.get_text("type").as_deref() == Some("tool_result");
    let others = message.blocks.iter().filter(|block| !is_result(block)).map(|block| text(*block));
    let mut all = results;
    all.extend(others);
    let before: Vec<String> = message.blocks.iter().map(|block| text(*block)).collect();
    if is_same(&all, &before) {
        return None;
    }
    if all.is_empty() {
        all.push(format!("{{\"type\":\"text\",\"text\":{}}}", literal(NO_CONTENT)));
    }
    Some(edit(content.span(), format!("[{}]", all.join(","))))
}

/// Whether two lists of blocks are equal, apart from the order of the leading results.
fn is_same(all: &[String], before: &[String]) -> bool {
    let leads = |blocks: &[String]| {
        let is_result = |block: &&String| block.contains("\"tool_result\"");
        blocks.iter().take_while(is_result).count()
    };
    let (one, two) = (leads(all), leads(before));
    let sorted = |blocks: &[String]| {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        blocks
    };
    one == two && sorted(&all[..one]) == sorted(&before[..two]) && all[one..] == before[two..]
}

/// The edits after which every content of Gemini's with calls is followed by as many responses.
pub(super) fn gemini(root: Value<'_>, text: &str) -> Vec<Edit> {
    let contents: Vec<Value<'_>> =
        root.get("contents").into_iter().flat_map(|list| list.items()).collect();
    let mut edits = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        let calls = parts(*content, &CALLS);
        let before = at.checked_sub(1).and_then(|at| contents.get(at));
        let was_called = before.is_some_and(|it| !parts(*it, &CALLS).is_empty());
        let responses = parts(*content, &RESPONSES);
        if !responses.is_empty() && !was_called {
            edits.extend(responses_for(*content, &[], text));
        }
        if calls.is_empty() {
            continue;
        }
        let names: Vec<CallName> = calls.iter().map(|call| named(*call)).collect();
        let next = contents.get(at + 1);
        match next.filter(|next| !parts(**next, &RESPONSES).is_empty()) {
            Some(next) => edits.extend(responses_for(*next, &names, text)),
            None => {
                let all: Vec<String> = names.iter().map(|name| response(name, text)).collect();
                let all = all.join(",");
                let turn = format!(",{{\"role\":\"user\",\"parts\":[{all}]}}");
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
    let (name, text) = (literal(name), literal(text));
    format!("{{\"functionResponse\":{{{id}\"name\":{name},\"response\":{{\"error\":{text}}}}}}}")
}

/// The `functionResponse` of a part, in either spelling.
fn response_in(part: Value<'_>) -> Option<Value<'_>> {
    part.get_any(&RESPONSES)
}

/// The edit after which a content has one response per call; `None` if it already has.
fn responses_for(content: Value<'_>, calls: &[CallName], text: &str) -> Option<Edit> {
    let list = content.get("parts")?;
    let mut left: Vec<Option<Value<'_>>> = list.items().map(Some).collect();
    let raw = |part: Value<'_>| String::from_utf8_lossy(part.raw()).into_owned();
    let mut all = Vec::new();
    for call in calls {
        let fits = |part: &Option<Value<'_>>| {
            let Some(found) = part.and_then(response_in).map(named) else { return false };
            let is_either = found.id.is_none() || call.id.is_none();
            is_either || found.id == call.id && found.name == call.name
        };
        let named_so = |part: &Option<Value<'_>>| {
            fits(part)
                && part.and_then(response_in).map(named).is_some_and(|it| it.name == call.name)
        };
        let place = left.iter().position(named_so);
        match place.and_then(|place| left.get_mut(place)?.take()) {
            Some(part) => all.push(raw(part)),
            None => all.push(response(call, text)),
        }
    }
    let is_same = all.len() == list.items().filter(|part| response_in(*part).is_some()).count()
        && all.iter().all(|one| list.items().any(|part| raw(part) == *one));
    if is_same {
        return None;
    }
    all.extend(left.into_iter().flatten().filter(|part| response_in(*part).is_none()).map(raw));
    if all.is_empty() {
        all.push(format!("{{\"text\":{}}}", literal(NO_CONTENT)));
    }
    Some(edit(list.span(), format!("[{}]", all.join(","))))
}
