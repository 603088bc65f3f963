//! What the model does not read (`docs/protocols.md` 12): code that calls tools, and tools that are not loaded.
//!
//! The code runs until it has what it called for. Its calls and their results are not rendered; what it gives back is.

use serde_json::{Value, json};

use super::{Block, MessageRun, refuse};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{items, measure, text};
use crate::strict::reply_store::IdGenerator;
use crate::strict::verdict::{ApiError, Rule};

/// Whether a block is a call by code, or the result of one.
pub(super) fn is_hidden(blocks: &[Block<'_>], block: &Block<'_>) -> bool {
    let by_code = |call: &Block<'_>| text(&call.field("caller")["type"]).starts_with("code_");
    let id = block.field("tool_use_id");
    by_code(block)
        || block.kind == "tool_result"
            && blocks.iter().any(|call| call.field("id") == id && by_code(call))
}

/// Code waits for results of the client, and for nothing else; what is called was loaded before.
pub(super) fn check(
    body: &Value,
    blocks: &[Block<'_>],
    turns: &[MessageRun<'_>],
) -> Result<(), ApiError> {
    check_open_code(blocks, turns)?;
    check_data(blocks, turns)?;
    check_loaded(body, blocks)
}

/// Calls of the provider's tools without a result.
fn open<'b>(blocks: &'b [Block<'b>]) -> impl Iterator<Item = (usize, &'b Block<'b>)> {
    let calls = blocks.iter().enumerate().filter(|(_, block)| block.kind == "server_tool_use");
    calls.filter(|(_, call)| {
        !blocks.iter().any(|block| {
            block.kind != "tool_result" && block.field("tool_use_id") == call.field("id")
        })
    })
}

fn check_open_code(blocks: &[Block<'_>], turns: &[MessageRun<'_>]) -> Result<(), ApiError> {
    for (at, call) in open(blocks) {
        let later = turns.iter().filter(|turn| turn.role == "user" && turn.blocks.start > at);
        let is_over = later.into_iter().any(|turn| {
            blocks[turn.blocks.clone()].iter().any(|block| block.kind != "tool_result")
        });
        if is_over {
            let (name, id) = (text(call.field("name")), text(call.field("id")));
            return refuse(
                Rule::CallUnanswered,
                format!(
                    "`{name}` tool use with id `{id}` was found without a corresponding `{name}_tool_result` block"
                ),
            );
        }
    }
    let results = blocks.iter().filter(|block| block.kind == "code_execution_tool_result");
    for result in results {
        let id = result.field("tool_use_id");
        if !blocks.iter().any(|call| call.kind == "server_tool_use" && call.field("id") == id) {
            let message = format!(
                "{}: unexpected `tool_use_id` found in `code_execution_tool_result` blocks: {id}. Each `code_execution_tool_result` block must have a corresponding `server_tool_use` block before it.",
                result.path()
            );
            return refuse(Rule::ResultWithoutCall, message);
        }
    }
    Ok(())
}

/// Results for code come alone, and are text.
fn check_data(blocks: &[Block<'_>], turns: &[MessageRun<'_>]) -> Result<(), ApiError> {
    for turn in turns.iter().filter(|turn| turn.role == "user") {
        let here = &blocks[turn.blocks.clone()];
        let Some(first) = here.iter().find(|block| is_hidden(blocks, block)) else { continue };
        let is_text = |block: &Block<'_>| {
            block.kind == "tool_result"
                && items(block.field("content")).all(|part| part["type"] == "text")
        };
        if !here.iter().all(is_text) {
            let message = format!("{}: only text results may answer calls by code", first.path());
            return refuse(Rule::BadValue, message);
        }
        let callers = blocks.iter().filter(|call| call.kind == "tool_use");
        for call in callers.filter(|call| is_hidden(blocks, call)) {
            let code = &call.field("caller")["tool_id"];
            if !blocks.iter().any(|it| it.kind == "server_tool_use" && it.field("id") == code) {
                let message = format!("{}: the code that called it is not there", call.path());
                return refuse(Rule::CallUnanswered, message);
            }
        }
    }
    Ok(())
}

/// The tools that a block loads, by name.
fn references<'b>(block: &'b Block<'_>) -> impl Iterator<Item = &'b str> {
    let inside = items(block.field("content"));
    inside.filter(|part| part["type"] == "tool_reference").map(|part| text(&part["tool_name"]))
}

fn tool<'b>(body: &'b Value, name: &str) -> Option<&'b Value> {
    items(&body["tools"]).find(|tool| tool["name"] == name)
}

/// The tokens of the definitions that a block is the first to load.
pub(super) fn loaded_tokens(body: &Value, blocks: &[Block<'_>], at: usize) -> u64 {
    let is_new = |name: &&str| blocks[..at].iter().all(|it| references(it).all(|old| old != *name));
    let names = references(&blocks[at]).filter(is_new);
    names.filter_map(|name| tool(body, name)).map(|tool| measure("tool", tool).tokens).sum()
}

/// Whether a tool may be called after these blocks.
pub(super) fn is_loaded(tool: &Value, blocks: &[Block<'_>]) -> bool {
    let name = text(&tool["name"]);
    tool["defer_loading"] != true || blocks.iter().any(|it| references(it).any(|it| it == name))
}

fn check_loaded(body: &Value, blocks: &[Block<'_>]) -> Result<(), ApiError> {
    for (at, block) in blocks.iter().enumerate() {
        if let Some(name) = references(block).find(|name| tool(body, name).is_none()) {
            let message = format!("Tool reference '{name}' not found in available tools");
            return refuse(Rule::BadValue, message);
        }
        let called = tool(body, text(block.field("name"))).filter(|_| block.kind == "tool_use");
        if called.is_some_and(|tool| !is_loaded(tool, &blocks[..at])) {
            let message = format!("{}: the called tool is not loaded", block.path());
            return refuse(Rule::BadValue, message);
        }
    }
    Ok(())
}

/// What code gives back that has now what it waited for.
pub(super) fn results_of_code(request: &ReceivedRequest) -> Vec<Value> {
    let blocks = super::blocks(&request.body);
    let result = |call: &Block<'_>| {
        json!({"type": "code_execution_tool_result", "tool_use_id": call.field("id"), "content": {
            "type": "code_execution_result", "stdout": "17\n", "stderr": "", "return_code": 0, "content": []}})
    };
    open(&blocks).map(|(_, call)| result(call)).collect()
}

/// Whether the calls of a reply are made by code: every second time, if the request lets code call.
pub(super) fn calls_by_code(request: &ReceivedRequest, rounds: u64) -> bool {
    let has_code =
        items(&request.body["tools"]).any(|tool| text(&tool["type"]).starts_with("code_execution"));
    has_code && request.body["stream"] != true && rounds % 2 == 0
}

/// The code that calls, and who it is to the calls.
pub(super) fn code(ids: &mut IdGenerator) -> (Value, Value) {
    let id = ids.id("srvtoolu_");
    let input = json!({"code": "print(sum(row['revenue'] for row in await query()))"});
    let caller = json!({"type": "code_execution_20260120", "tool_id": id});
    (json!({"type": "server_tool_use", "id": id, "name": "code_execution", "input": input}), caller)
}
