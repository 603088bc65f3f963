//! Every tool call has one result at the beginning of the next user turn, and every result has a call
//! (`docs/protocols.md` 1.2).

use super::{Block, MessageRun, refuse};
use crate::strict::prompt::text;
use crate::strict::verdict::{ApiError, Rule};

/// Checks all pairs. Consecutive messages of one role count as one turn.
pub(super) fn check(blocks: &[Block<'_>], turns: &[MessageRun<'_>]) -> Result<(), ApiError> {
    for (at, turn) in turns.iter().enumerate() {
        let blocks_here = &blocks[turn.blocks.clone()];
        let following =
            turns.get(at + 1).map_or(&[][..], |following| &blocks[following.blocks.clone()]);
        let previous = at.checked_sub(1).map_or(&[][..], |at| &blocks[turns[at].blocks.clone()]);
        match turn.role {
            "assistant" => check_calls(blocks_here, following)?,
            "user" => check_results(blocks_here, previous)?,
            _ => {}
        }
    }
    Ok(())
}

fn check_calls(here: &[Block<'_>], next: &[Block<'_>]) -> Result<(), ApiError> {
    let leading = next.iter().take_while(|block| block.kind == "tool_result");
    let answered: Vec<&str> = leading.map(|block| text(block.field("tool_use_id"))).collect();
    let calls = here.iter().filter(|block| block.kind == "tool_use");
    let open: Vec<&str> =
        calls.map(|block| text(block.field("id"))).filter(|id| !answered.contains(id)).collect();
    let Some(first) = here.iter().find(|block| open.contains(&text(block.field("id")))) else {
        return Ok(());
    };
    refuse(
        Rule::CallUnanswered,
        format!(
            "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
            first.message,
            open.join(", ")
        ),
    )
}

fn check_results(here: &[Block<'_>], before: &[Block<'_>]) -> Result<(), ApiError> {
    let mut seen_ids = Vec::new();
    for block in here.iter().filter(|block| block.kind == "tool_result") {
        let id = text(block.field("tool_use_id"));
        let is_call = |other: &&Block<'_>| other.kind == "tool_use" && other.field("id") == id;
        if !before.iter().any(|other| is_call(&other)) {
            return refuse(
                Rule::ResultWithoutCall,
                format!(
                    "{}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
                    block.path()
                ),
            );
        }
        if seen_ids.contains(&id) {
            return refuse(
                Rule::ResultTwice,
                format!(
                    "{}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}",
                    block.path()
                ),
            );
        }
        seen_ids.push(id);
    }
    Ok(())
}
