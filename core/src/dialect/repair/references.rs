//! References to tools that are not defined: they are removed (`docs/protocols.md` 1.2).
//!
//! A tool that was connected when the model found it may be gone when the conversation goes on.

use std::borrow::Cow;

use foldhash::HashSet;

use super::placeholders::NO_CONTENT;
use crate::dialect::rewrite::{edit, literal};
use crate::wire::json::Value;
use crate::wire::splice::Edit;

/// The edits after which no result refers to a tool that is not defined.
pub(super) fn edits(root: Value<'_>) -> Vec<Edit> {
    let tools = root.get("tools").into_iter().flat_map(|tools| tools.items());
    let defined: HashSet<_> = tools.filter_map(|tool| tool.get_text("name")).collect();
    let messages = root.get("messages").into_iter().flat_map(|messages| messages.items());
    let blocks =
        messages.filter_map(|message| message.get("content")).flat_map(|content| content.items());
    let mut edits = Vec::new();
    for content in blocks.filter_map(|block| block.get("content")) {
        let references = content.get("tool_references");
        let list = references.unwrap_or(content);
        if !list.items().any(|item| is_lost(item, &defined)) {
            continue;
        }
        let references_left = list.items().filter(|item| !is_lost(*item, &defined));
        let mut items: Vec<String> =
            references_left.map(|item| String::from_utf8_lossy(item.raw()).into_owned()).collect();
        // A tool's result has to say something; a search may have found nothing.
        if items.is_empty() && references.is_none() {
            items.push(format!(r#"{{"type":"text","text":{}}}"#, literal(NO_CONTENT)));
        }
        edits.push(edit(list.span(), format!("[{}]", items.join(","))));
    }
    edits
}

fn is_lost(item: Value<'_>, defined: &HashSet<Cow<'_, str>>) -> bool {
    item.get_text("type").as_deref() == Some("tool_reference")
        && item.get_text("tool_name").is_none_or(|name| !defined.contains(&name))
}
