//! Programs that call tools (`docs/protocols.md` 12.1): they wait for outputs, which only they read.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{InputItem, refuse_at};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{items, text};
use crate::strict::reply_store::IdGenerator;
use crate::strict::verdict::{ApiError, Rule};

/// Whether an item is a call by a program, or the output of one.
pub(super) fn is_hidden(item: &InputItem<'_>) -> bool {
    item.field("caller")["type"] == "program"
}

/// A program waits for the outputs of its calls, and for nothing else.
pub(super) fn check(list: &[InputItem<'_>]) -> Result<(), ApiError> {
    let mut programs = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    let mut callers: Vec<(&str, &Value)> = Vec::new();
    for (at, item) in list.iter().enumerate() {
        let (id, caller) = (text(item.field("call_id")), item.field("caller"));
        let refused = match item.kind.as_str() {
            "program" => {
                programs.insert(id);
                open.push(id);
                None
            }
            "program_output" => {
                open.retain(|program| *program != id);
                (!programs.contains(id)).then_some("No program found for program output")
            }
            "function_call" => {
                callers.push((id, caller));
                let is_lost = is_hidden(item) && !programs.contains(text(&caller["caller_id"]));
                is_lost.then_some("The program that called it was not found")
            }
            "function_call_output" => {
                let differs = callers.iter().any(|(call, by)| *call == id && *by != caller);
                differs.then_some("The caller differs from that of the call")
            }
            "message" if item.is_user_turn() => {
                (!open.is_empty()).then_some("No program output found for program")
            }
            _ => None,
        };
        if let Some(message) = refused {
            let path = format!("input[{at}]");
            return refuse_at(Rule::CallUnanswered, &path, format!("{message} {id}."));
        }
    }
    Ok(())
}

/// What programs give back that have now what they waited for.
pub(super) fn outputs(request: &ReceivedRequest, ids: &mut IdGenerator) -> Vec<Value> {
    let ended: HashSet<&str> = call_ids(request, "program_output").collect();
    call_ids(request, "program")
        .filter(|id| !ended.contains(id))
        .map(|id| {
            json!({"id": ids.id("po_"), "type": "program_output", "call_id": id, "result": "17",
                "status": "completed"})
        })
        .collect()
}

fn call_ids<'r>(request: &'r ReceivedRequest, kind: &'static str) -> impl Iterator<Item = &'r str> {
    items(&request.body["input"])
        .filter(move |item| item["type"] == kind)
        .map(|item| text(&item["call_id"]))
}

/// Whether the calls of a reply are made by a program: every second time, if the request lets programs call.
pub(super) fn calls_by_program(request: &ReceivedRequest, rounds: u64) -> bool {
    let may = items(&request.body["tools"]).any(|tool| tool["type"] == "programmatic_tool_calling");
    may && request.body["stream"] != true && rounds.is_multiple_of(2)
}

/// A program, and who it is to its calls.
pub(super) fn program(ids: &mut IdGenerator) -> (Value, Value) {
    let (id, call_id) = (ids.id("prog_"), ids.id("call_"));
    let caller = json!({"type": "program", "caller_id": call_id});
    let code = "const rows = await query({sql: 'select *'}); text(rows.length)";
    let program = json!({"id": id, "type": "program", "call_id": call_id, "code": code, "fingerprint": "fp_1"});
    (program, caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict::tests::Client;
    use crate::strict::{Rules, ScriptedReply};

    /// Whatever the output for a program says, it costs the same; it names its caller, and nothing else may come with it.
    #[test]
    fn outputs_for_program_cost_nothing_and_come_alone() {
        let client =
            Client::new("/v1/responses", &[("authorization", "Bearer key")], Rules::default());
        let parameters = json!({"type": "object", "properties": {}});
        let mut body = json!({
            "model": "gpt-5.6-sol", "store": false,
            "tools": [{"type": "programmatic_tool_calling"},
                {"type": "function", "name": "query", "parameters": parameters}],
            "input": [{"type": "message", "role": "user", "content": "How many are there?"}],
        });
        let reply = ScriptedReply::text("I count.").with_call("query", json!({}));
        let answer = client.reply_to(&body, reply);
        let add = |body: &mut Value, item: Value| body["input"].as_array_mut().unwrap().push(item);
        items(&answer["output"]).for_each(|item| add(&mut body, item.clone()));
        let call = items(&answer["output"]).find(|item| item["type"] == "function_call").unwrap();
        let with = |text: &str| {
            let mut body = body.clone();
            add(
                &mut body,
                json!({"type": "function_call_output", "call_id": call["call_id"],
                "output": text, "caller": call["caller"]}),
            );
            body
        };
        let tokens = |text: &str| client.accept(&with(text)).input_tokens;
        assert_eq!(tokens("1"), tokens(&"1,".repeat(10_000)));
        let mut refused = with("1");
        add(&mut refused, json!({"type": "message", "role": "user", "content": "Well?"}));
        client.refuse(&refused, Rule::CallUnanswered, "No program output found");
        let mut nameless = with("1");
        let last = nameless["input"].as_array_mut().unwrap().last_mut().unwrap();
        last.as_object_mut().unwrap().remove("caller");
        client.refuse(&nameless, Rule::CallUnanswered, "caller differs");
        let ended = client.reply_to(&with("1"), ScriptedReply::text("One."));
        assert_eq!(ended["output"][0]["type"], "program_output");
    }
}
