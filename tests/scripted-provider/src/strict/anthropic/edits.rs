//! The provider's own context editing (`docs/protocols.md` 1.3): old tool results cleared before the
//! model reads, the client's history unchanged.
//!
//! Changes rendered pieces only, so that prefix binding does not see it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Block, refuse, thinking};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{Place, PromptPiece, items, measure_text, text};
use crate::strict::verdict::{ApiError, Rule};

const CLEAR_TOOL_USES: &str = "clear_tool_uses_20250919";
pub(super) const CLEAR_THINKING: &str = "clear_thinking_20251015";
/// The text in place of a cleared result.
const PLACEHOLDER: &str = "[Old tool result content cleared]";

/// Checks that the edits are ones we know, `clear_thinking` first (`docs/protocols.md` 1.3).
pub(super) fn check(request: &ReceivedRequest) -> Result<(), ApiError> {
    for (at, edit) in items(&request.body["context_management"]["edits"]).enumerate() {
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

/// Applies the edits of the request; returns those that changed something, as they are reported. `total`
/// is the prompt's tokens before them; the places they change are added to `provider_edits`.
pub(super) fn apply(
    request: &ReceivedRequest,
    blocks: &[Block<'_>],
    rendered: &mut [(usize, PromptPiece)],
    total: u64,
    thinking: &thinking::ThinkingOutcome,
    provider_edits: &mut Vec<Place>,
) -> Vec<Value> {
    let mut applied = Vec::new();
    for edit in items(&request.body["context_management"]["edits"]) {
        match text(&edit["type"]) {
            CLEAR_THINKING if thinking.cleared.turns > 0 => applied.push(json!({
                "type": CLEAR_THINKING, "cleared_thinking_turns": thinking.cleared.turns,
                "cleared_input_tokens": thinking.cleared.tokens,
            })),
            CLEAR_TOOL_USES => {
                applied.extend(clear_tool_results(edit, blocks, rendered, total, provider_edits));
            }
            _ => {}
        }
    }
    applied
}

fn clear_tool_results(
    edit: &Value,
    blocks: &[Block<'_>],
    rendered: &mut [(usize, PromptPiece)],
    total: u64,
    provider_edits: &mut Vec<Place>,
) -> Option<Value> {
    let calls: Vec<&Block<'_>> = blocks.iter().filter(|block| block.kind == "tool_use").collect();
    let trigger = &edit["trigger"];
    let value = trigger["value"].as_u64().unwrap_or(100_000);
    let current = match text(&trigger["type"]) {
        "tool_uses" => calls.len() as u64,
        _ => total,
    };
    if current <= value {
        return None;
    }
    let excluded: Vec<&str> = items(&edit["exclude_tools"]).map(text).collect();
    let keep = edit["keep"]["value"].as_u64().unwrap_or(3) as usize;
    let mut old: Vec<&&Block<'_>> =
        calls.iter().filter(|call| !excluded.contains(&text(call.field("name")))).collect();
    old.truncate(old.len().saturating_sub(keep));
    let ids: HashSet<&str> = old.iter().map(|call| text(call.field("id"))).collect();
    let clears_input = |block: &Block<'_>| match &edit["clear_tool_inputs"] {
        Value::Bool(all) => *all,
        names => items(names).any(|name| name == block.field("name")),
    };
    let placeholder = measure_text("user", PLACEHOLDER);
    let mut changes = Vec::new();
    for (at, (block, piece)) in rendered.iter().enumerate() {
        let block = &blocks[*block];
        let is_result =
            block.kind == "tool_result" && ids.contains(text(block.field("tool_use_id")));
        let is_call = block.kind == "tool_use" && ids.contains(text(block.field("id")));
        // What is smaller than its placeholder stays.
        if (is_result || is_call && clears_input(block)) && piece.tokens > placeholder.tokens {
            changes.push(at);
        }
    }
    let cleared: u64 = changes.iter().map(|at| rendered[*at].1.tokens - placeholder.tokens).sum();
    if cleared == 0 || edit["clear_at_least"]["value"].as_u64().is_some_and(|min| cleared < min) {
        return None;
    }
    let results = changes.iter().filter(|at| blocks[rendered[**at].0].kind == "tool_result");
    let uses = results.count();
    for at in changes {
        let piece = &mut rendered[at].1;
        (piece.hash, piece.tokens) = (placeholder.hash, placeholder.tokens);
        provider_edits.push(piece.place);
    }
    Some(
        json!({"type": CLEAR_TOOL_USES, "cleared_tool_uses": uses, "cleared_input_tokens": cleared}),
    )
}
