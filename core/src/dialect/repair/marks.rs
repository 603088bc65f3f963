//! Removes cache markers above the allowed number: the oldest in the history first, then those of the system
//! prompt, then those of the tools. The blocks with the markers stay.

use crate::dialect::rewrite::without_member;
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// The edits after which `most` markers are left.
pub(super) fn edits(root: Value<'_>, body: &[u8], most: usize) -> Vec<Edit> {
    let whole = usize::from(root.get("cache_control").is_some_and(|it| it.kind() == Kind::Object));
    let mut found = Vec::new();
    for name in ["messages", "system", "tools"] {
        root.get(name).into_iter().for_each(|list| gather(list, &mut found));
    }
    let excess = (found.len() + whole).saturating_sub(most);
    found.truncate(excess);
    // Edits of one object would overlap; only one is kept.
    let edits = found.into_iter().filter_map(|marker| without_member(body, marker.span()));
    let mut edits: Vec<Edit> = edits.filter(|edit| !edit.at.is_empty()).collect();
    edits.sort_by_key(|edit| edit.at);
    edits.dedup_by(|later, first| later.at.start < first.at.end);
    edits
}

/// Collects markers in the order of the body; without recursion.
fn gather<'d>(root: Value<'d>, found: &mut Vec<Value<'d>>) {
    let mut here = Vec::new();
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value.kind() {
            Kind::Object => {
                // The input of a tool call may have a member of any name.
                let is_call = value.get_text("type").is_some_and(|kind| kind == "tool_use");
                for (key, member) in value.entries() {
                    if key.is("cache_control") && member.kind() == Kind::Object {
                        here.push(member);
                    } else if !(is_call && key.is("input") || key.is("input_schema")) {
                        waiting.push(member);
                    }
                }
            }
            Kind::Array => waiting.extend(value.items()),
            _ => {}
        }
    }
    here.sort_by_key(Value::span);
    found.extend(here);
}
