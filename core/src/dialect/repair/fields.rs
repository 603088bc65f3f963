//! A member in the history that a model does not know: it is removed at every place with that path.
//!
//! Never one that a message needs.

use crate::dialect::rewrite::without_member;
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

/// Members that a request needs.
const NEEDED: [&str; 12] = [
    "role",
    "content",
    "type",
    "text",
    "id",
    "tool_use_id",
    "tool_call_id",
    "call_id",
    "name",
    "input",
    "parts",
    "tool_calls",
];

/// Whether a member at a path may be removed: it is in the history, and no message needs it.
pub(crate) fn may_go(place: &str) -> bool {
    let mut names = place.split('.');
    let root = names.next().unwrap_or_default();
    let last = names.next_back().unwrap_or_default();
    matches!(root, "messages" | "input" | "contents") && !NEEDED.contains(&last) && last != "*"
}

/// The edits after which the member is at no place with that path.
pub(super) fn edits(root: Value<'_>, body: &[u8], place: &str) -> Vec<Edit> {
    if !may_go(place) {
        return Vec::new();
    }
    let mut here = vec![root];
    for name in place.split('.') {
        here = here
            .into_iter()
            .flat_map(|value| match (name, value.kind()) {
                ("*", Kind::Array) => value.items().collect::<Vec<_>>(),
                (name, Kind::Object) => value.get(name).into_iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    here.into_iter().filter_map(|value| without_member(body, value.span())).collect()
}
