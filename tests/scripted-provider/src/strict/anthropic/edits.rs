//! The provider's own context editing (`docs/protocols.md` 1.3): old tool results cleared before the
//! model reads, the client's history untouched.
//!
//! Works on rendered pieces; what was sent stays what was sent, so binding does not see it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Block, refuse, thinking};
use crate::strict::Call;
use crate::strict::prompt::{Piece, Place, items, text, weigh_text};
use crate::strict::verdict::{Refusal, Rule};

const CLEAR_TOOL_USES: &str = "clear_tool_uses_20250919";
pub(super) const CLEAR_THINKING: &str = "clear_thinking_20251015";
/// What stands where a result was.
const PLACEHOLDER: &str = "[Old tool result content cleared]";

/// Checks that the edits are ones we know, `clear_thinking` first (`docs/protocols.md` 1.3).
pub(super) fn check(call: &Call) -> Result<(), Refusal> {
    for (at, edit) in items(&call.body["context_management"]["edits"]).enumerate() {
        let kind = text(&edit["type"]);
        if kind == CLEAR_THINKING && at > 0 {
            return refuse(
                Rule::ContextEdit,
                format!("context_management.edits: `{CLEAR_THINKING}` must be the first edit"),
            );
        }
        if ![CLEAR_THINKING, CLEAR_TOOL_USES].contains(&kind) {
            return refuse(
                Rule::ContextEdit,
                format!(
                    "context_management.edits.{at}: Input tag '{kind}' found using 'type' does not match any of the expected tags: '{CLEAR_THINKING}', '{CLEAR_TOOL_USES}', 'compact_20260112'"
                ),
            );
        }
    }
    Ok(())
}

/// Applies the edits that the request asks for; answers those that did something, as they are
/// reported. `total` is the prompt's tokens before them; what they change is added to `own`.
pub(super) fn apply(
    call: &Call,
    blocks: &[Block<'_>],
    rendered: &mut [(usize, Piece)],
    total: u64,
    thought: &thinking::Thought,
    own: &mut Vec<Place>,
) -> Vec<Value> {
    let mut applied = Vec::new();
    for edit in items(&call.body["context_management"]["edits"]) {
        match text(&edit["type"]) {
            CLEAR_THINKING if thought.cleared.0 > 0 => applied.push(json!({
                "type": CLEAR_THINKING, "cleared_thinking_turns": thought.cleared.0,
                "cleared_input_tokens": thought.cleared.1,
            })),
            CLEAR_TOOL_USES => applied.extend(clear(edit, blocks, rendered, total, own)),
            _ => {}
        }
    }
    applied
}

fn clear(
    edit: &Value,
    blocks: &[Block<'_>],
    rendered: &mut [(usize, Piece)],
    total: u64,
    own: &mut Vec<Place>,
) -> Option<Value> {
    let calls: Vec<&Block<'_>> = blocks.iter().filter(|block| block.kind == "tool_use").collect();
    let trigger = &edit["trigger"];
    let value = trigger["value"].as_u64().unwrap_or(100_000);
    let now = match text(&trigger["type"]) {
        "tool_uses" => calls.len() as u64,
        _ => total,
    };
    if now <= value {
        return None;
    }
    let kept: Vec<&str> = items(&edit["exclude_tools"]).map(text).collect();
    let keep = edit["keep"]["value"].as_u64().unwrap_or(3) as usize;
    let mut old: Vec<&&Block<'_>> =
        calls.iter().filter(|call| !kept.contains(&text(call.field("name")))).collect();
    old.truncate(old.len().saturating_sub(keep));
    let ids: HashSet<&str> = old.iter().map(|call| text(call.field("id"))).collect();
    let inputs = |block: &Block<'_>| match &edit["clear_tool_inputs"] {
        Value::Bool(all) => *all,
        names => items(names).any(|name| name == block.field("name")),
    };
    let placeholder = weigh_text("user", PLACEHOLDER);
    let mut changes = Vec::new();
    for (at, (block, piece)) in rendered.iter().enumerate() {
        let block = &blocks[*block];
        let result = block.kind == "tool_result" && ids.contains(text(block.field("tool_use_id")));
        let call = block.kind == "tool_use" && ids.contains(text(block.field("id")));
        if (result || call && inputs(block)) && piece.tokens > placeholder.tokens {
            changes.push(at);
        }
    }
    let cleared: u64 = changes.iter().map(|at| rendered[*at].1.tokens - placeholder.tokens).sum();
    if cleared == 0 || edit["clear_at_least"]["value"].as_u64().is_some_and(|least| cleared < least)
    {
        return None;
    }
    let results = changes.iter().filter(|at| blocks[rendered[**at].0].kind == "tool_result");
    let uses = results.count();
    for at in changes {
        let piece = &mut rendered[at].1;
        (piece.hash, piece.tokens) = (placeholder.hash, placeholder.tokens);
        own.push(piece.place);
    }
    Some(
        json!({"type": CLEAR_TOOL_USES, "cleared_tool_uses": uses, "cleared_input_tokens": cleared}),
    )
}
