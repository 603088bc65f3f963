//! Removes cache markers above the allowed number: the oldest in the history first, then those of the system
//! prompt, then those of the tools. The blocks with the markers stay.

use crate::dialect::rewrite::without_member;
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// The edits after which `most` markers are left.
pub(super) fn edits(root: Value<'_>, body: &[u8], most: usize) -> Vec<Edit> {
    let has_root_marker =
        root.get("cache_control").is_some_and(|marker| marker.kind() == Kind::Object);
    let mut markers = Vec::new();
    // The last markers cover the longest prefixes, so the first ones go, and those of messages before others.
    for name in ["messages", "system", "tools"] {
        if let Some(list) = root.get(name) {
            gather(list, &mut markers);
        }
    }
    let excess = (markers.len() + usize::from(has_root_marker)).saturating_sub(most);
    markers.truncate(excess);
    // Edits of one object would overlap; only one is kept.
    let edits = markers.into_iter().filter_map(|marker| without_member(body, marker.span()));
    let mut edits: Vec<Edit> = edits.filter(|edit| !edit.at.is_empty()).collect();
    edits.sort_by_key(|edit| edit.at);
    edits.dedup_by(|later, first| later.at.start < first.at.end);
    edits
}

fn gather<'d>(root: Value<'d>, found: &mut Vec<Value<'d>>) {
    // Without recursion, so that nesting needs no stack.
    let mut markers = Vec::new();
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value.kind() {
            Kind::Object => {
                // The input of a tool call may have a member of any name.
                let is_call = value.get_text("type").is_some_and(|kind| kind == "tool_use");
                for (key, member) in value.entries() {
                    if key.is("cache_control") && member.kind() == Kind::Object {
                        markers.push(member);
                    } else if !(is_call && key.is("input") || key.is("input_schema")) {
                        waiting.push(member);
                    }
                }
            }
            Kind::Array => waiting.extend(value.items()),
            _ => {}
        }
    }
    markers.sort_by_key(Value::span);
    found.extend(markers);
}
