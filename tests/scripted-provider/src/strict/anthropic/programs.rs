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

fn check_data(blocks: &[Block<'_>], turns: &[MessageRun<'_>]) -> Result<(), ApiError> {
    // Results for code come alone, and are text.
    for turn in turns.iter().filter(|turn| turn.role == "user") {
        let turn_blocks = &blocks[turn.blocks.clone()];
        let Some(first) = turn_blocks.iter().find(|block| is_hidden(blocks, block)) else {
            continue;
        };
        let is_text = |block: &Block<'_>| {
            block.kind == "tool_result"
                && items(block.field("content")).all(|part| part["type"] == "text")
        };
        if !turn_blocks.iter().all(is_text) {
            let message = format!("{}: only text results may answer calls by code", first.path());
            return refuse(Rule::BadValue, message);
        }
        let callers = blocks.iter().filter(|call| call.kind == "tool_use");
        for call in callers.filter(|call| is_hidden(blocks, call)) {
            let code = &call.field("caller")["tool_id"];
            if !blocks
                .iter()
                .any(|block| block.kind == "server_tool_use" && block.field("id") == code)
            {
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
    let is_new =
        |name: &&str| blocks[..at].iter().all(|block| references(block).all(|old| old != *name));
    let names = references(&blocks[at]).filter(is_new);
    names.filter_map(|name| tool(body, name)).map(|tool| measure("tool", tool).tokens).sum()
}

/// Whether a tool may be called after these blocks.
pub(super) fn is_loaded(tool: &Value, blocks: &[Block<'_>]) -> bool {
    let name = text(&tool["name"]);
    tool["defer_loading"] != true
        || blocks.iter().any(|block| references(block).any(|loaded| loaded == name))
}

fn check_loaded(body: &Value, blocks: &[Block<'_>]) -> Result<(), ApiError> {
    for (at, block) in blocks.iter().enumerate() {
        if let Some(name) = references(block).find(|name| tool(body, name).is_none()) {
            let message = format!("Tool reference '{name}' not found in available tools");
            return refuse(Rule::BadValue, message);
        }
        let called = tool(body, text(block.field("name")));
        if block.kind == "tool_use" && called.is_some_and(|tool| !is_loaded(tool, &blocks[..at])) {
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
    has_code && request.body["stream"] != true && rounds.is_multiple_of(2)
}

/// The code that calls, and who it is to the calls.
pub(super) fn code(ids: &mut IdGenerator) -> (Value, Value) {
    let id = ids.id("srvtoolu_");
    let input = json!({"code": "print(sum(row['revenue'] for row in await query()))"});
    let caller = json!({"type": "code_execution_20260120", "tool_id": id});
    (json!({"type": "server_tool_use", "id": id, "name": "code_execution", "input": input}), caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict::tests::Client;
    use crate::strict::{Rules, ScriptedReply};

    fn client() -> Client {
        let headers = [("x-api-key", "key"), ("anthropic-version", "2023-06-01")];
        Client::new("/v1/messages", &headers, Rules::default())
    }

    fn first() -> Value {
        let schema = json!({"type": "object", "properties": {}});
        json!({
            "model": "claude-sonnet-4-5", "max_tokens": 8000,
            "tools": [
                {"type": "code_execution_20260120", "name": "code_execution"},
                {"name": "query", "input_schema": schema},
                {"name": "late", "defer_loading": true, "input_schema": schema},
            ],
            "messages": [{"role": "user", "content": "How many are there?"}],
        })
    }

    fn add(body: &mut Value, role: &str, content: Value) {
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": role, "content": content}));
    }

    /// Whatever the result for code says, it costs the same; nothing else may come with it.
    #[test]
    fn results_for_code_cost_nothing_and_come_alone() {
        let client = client();
        let mut body = first();
        let reply = ScriptedReply::text("I count.").with_call("query", json!({}));
        let answer = client.reply_to(&body, reply);
        add(&mut body, "assistant", answer["content"].clone());
        let call = items(&answer["content"]).find(|block| block["type"] == "tool_use").unwrap();
        let result =
            |text: &str| json!({"type": "tool_result", "tool_use_id": call["id"], "content": text});
        let with = |content: Value| {
            let mut body = body.clone();
            add(&mut body, "user", content);
            body
        };
        let tokens = |text: &str| client.accept(&with(json!([result(text)]))).input_tokens;
        assert_eq!(tokens("1"), tokens(&"1,".repeat(10_000)));
        let text = json!({"type": "text", "text": "Well?"});
        let refused = with(json!([result("1"), text]));
        client.refuse(&refused, Rule::CallUnanswered, "`code_execution` tool use with id");
        let ended = client.reply_to(&with(json!([result("1")])), ScriptedReply::text("One."));
        assert_eq!(ended["content"][0]["type"], "code_execution_tool_result");
    }

    #[test]
    fn tool_is_called_after_it_was_loaded() {
        let client = client();
        let mut body = first();
        let call = |id: &str, name: &str| json!([{"type": "tool_use", "id": id, "name": name, "input": {}}]);
        let result = |id: &str, content: Value| json!([{"type": "tool_result", "tool_use_id": id, "content": content}]);
        let mut early = body.clone();
        add(&mut early, "assistant", call("a", "late"));
        add(&mut early, "user", result("a", json!("Found.")));
        client.refuse(&early, Rule::BadValue, "not loaded");
        add(&mut body, "assistant", call("s", "query"));
        let reference = |name: &str| json!([{"type": "tool_reference", "tool_name": name}]);
        let mut unknown = body.clone();
        add(&mut unknown, "user", result("s", reference("nobody")));
        client.refuse(&unknown, Rule::BadValue, "not found in available tools");
        add(&mut body, "user", result("s", reference("late")));
        add(&mut body, "assistant", call("a", "late"));
        add(&mut body, "user", result("a", json!("Found.")));
        client.accept(&body);
    }
}
