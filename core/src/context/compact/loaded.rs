//! Tools that a part of the history loads (`docs/protocols.md` 12.2): where a cut would take the reference away from a
//! call that needs it, and the steps that are repeated after the summary so that such a tool stays loaded.
//!
//! Reads messages only; what was decided does not matter.

use foldhash::HashMap;

use crate::dialect::{Conversation, Dialect, Message, Part, PartIndex, PartKind};

fn loaded_calls(messages: &[Message]) -> Vec<(PartIndex, usize)> {
    let mut loaded: HashMap<&str, PartIndex> = HashMap::default();
    let mut calls = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for (at, part) in message.parts.iter().enumerate() {
            let names = part.loads.iter().map(|name| (&**name, PartIndex::new(index, at)));
            loaded.extend(names);
            if part.kind == PartKind::ToolCall
                && let Some(reference) = part.name.as_deref().and_then(|name| loaded.get(name))
            {
                calls.push((*reference, index));
            }
        }
    }
    calls
}

/// For each message: whether a cut before it takes the reference away from a call that stays.
pub(super) fn separates(messages: &[Message]) -> Vec<bool> {
    let mut separates = vec![false; messages.len()];
    for (reference, call) in loaded_calls(messages) {
        separates[reference.message + 1..=call].fill(true);
    }
    separates
}

pub(super) fn repeated(conversation: &Conversation, body: &[u8], cut: usize) -> Vec<String> {
    let mut loaded: HashMap<&str, PartIndex> = HashMap::default();
    // A summary is often written before it is used, so a tool may be called meanwhile that nobody had called by
    // then: all that was loaded stays loaded.
    for (index, message) in conversation.messages.iter().enumerate().take(cut) {
        for (at, part) in message.parts.iter().enumerate() {
            let names = part.loads.iter().filter(|name| is_offered(conversation, name));
            loaded.extend(names.map(|name| (&**name, PartIndex::new(index, at))));
        }
    }
    let mut references: Vec<PartIndex> = loaded.into_values().collect();
    references.sort_unstable();
    references.dedup();
    let mut steps: Vec<String> = Vec::new();
    for reference in references {
        // Several references may be in one result.
        if let Some(step) = step(conversation, body, reference)
            && !steps.contains(&step)
        {
            steps.push(step);
        }
    }
    steps
}

fn is_offered(conversation: &Conversation, name: &str) -> bool {
    // In Responses the item that loads a tool has its definition.
    conversation.dialect == Dialect::OpenaiResponses
        || conversation.tools.iter().any(|tool| tool.name.as_deref() == Some(name))
}

/// The call and the result that a reference is in, as messages; `None` if the result has no call, or needs none.
fn step(conversation: &Conversation, body: &[u8], at: PartIndex) -> Option<String> {
    let message = conversation.messages.get(at.message)?;
    let part = message.parts.get(at.part)?;
    // A reference may be inside a result: the whole result is repeated.
    let mut results = message.parts.iter().filter(|part| part.kind == PartKind::ToolResult);
    let result = results
        .find(|result| result.span.start <= part.span.start && part.span.end <= result.span.end)
        .unwrap_or(part);
    let parts = conversation.messages[..=at.message].iter().flat_map(|message| &message.parts);
    let earlier: Vec<&Part> =
        parts.take_while(|part| part.span.start < result.span.start).collect();
    let call = earlier.iter().rev().find(|part| match result.kind {
        PartKind::ToolResult => part.kind == PartKind::ToolCall && part.id == result.id,
        // A search of the provider's has no id.
        _ => part.name.as_deref() == Some("tool_search_call"),
    })?;
    let call = String::from_utf8_lossy(call.span.slice(body));
    let text = String::from_utf8_lossy(result.span.slice(body));
    Some(match conversation.dialect {
        Dialect::Anthropic if result.server_step.is_some() => format!(
            r#"{{"role":"assistant","content":[{call},{text}]}},{{"role":"user","content":"{LOADED}"}}"#
        ),
        // With a text the loop ends, which otherwise has to begin with thinking (`docs/protocols.md` 1.2).
        Dialect::Anthropic => format!(
            r#"{{"role":"assistant","content":[{call}]}},{{"role":"user","content":[{text},{{"type":"text","text":"{LOADED}"}}]}}"#
        ),
        Dialect::OpenaiChat => {
            format!(r#"{{"role":"assistant","content":null,"tool_calls":[{call}]}},{text}"#)
        }
        Dialect::OpenaiResponses => format!("{call},{text}"),
        Dialect::Gemini => return None,
    })
}

/// What stands between such a step and the message of the model that follows the summary.
const LOADED: &str = "(These tools stay loaded.)";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dialect::read;

    /// What is repeated if everything before `cut` is replaced, parsed.
    fn kept(dialect: Dialect, body: &Value, cut: usize) -> Value {
        let body = body.to_string();
        let read = read(dialect, "/", body.as_bytes());
        let steps = repeated(&read, body.as_bytes(), cut);
        serde_json::from_str(&format!("[{}]", steps.join(","))).unwrap()
    }

    fn call(id: &str, name: &str) -> Value {
        let call = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        json!({"role": "assistant", "content": [call]})
    }

    fn result(id: &str, content: Value) -> Value {
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": content});
        json!({"role": "user", "content": [result]})
    }

    /// A search that found two tools; one of them is called before the cut, the other after it.
    #[test]
    fn summary_repeats_what_loads_tools() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let reference = |name: &str| json!({"type": "tool_reference", "tool_name": name});
        let found = result("s", json!([reference("a"), reference("b")]));
        let messages = json!([
            user("Go."),
            call("s", "find"),
            found,
            call("1", "a"),
            result("1", json!("r")),
            user("On."),
            call("2", "b"),
            result("2", json!("r")),
            user("So.")
        ]);
        let body = json!({"tools": [{"name": "a"}, {"name": "b"}], "messages": messages});
        let text = body.to_string();
        let read = read(Dialect::Anthropic, "/", text.as_bytes());
        let separated: Vec<bool> = separates(&read.messages);
        assert_eq!(separated, [false, false, false, true, true, true, true, false, false]);
        let kept = |cut| kept(Dialect::Anthropic, &body, cut);
        let steps = kept(5);
        assert_eq!(steps[0], messages[1]);
        assert_eq!(steps[1]["content"][0], messages[2]["content"][0]);
        assert_eq!(kept(2), json!([]), "nothing was loaded");
        assert_eq!(kept(7), steps, "it may be called until the summary is used");
    }

    #[test]
    fn search_by_provider_is_repeated_with_its_result() {
        let call = json!({"type": "server_tool_use", "id": "s", "name": "search", "input": {}});
        let references = json!([{"type": "tool_reference", "tool_name": "a"}]);
        let content =
            json!({"type": "tool_search_tool_search_result", "tool_references": references});
        let found =
            json!({"type": "tool_search_tool_result", "tool_use_id": "s", "content": content});
        let later = self::call("1", "a");
        let body = json!({"tools": [{"name": "a"}], "messages": [
            {"role": "user", "content": "Go."}, {"role": "assistant", "content": [call, found]},
            {"role": "user", "content": "On."}, later
        ]});
        let steps = kept(Dialect::Anthropic, &body, 2);
        assert_eq!(steps[0], json!({"role": "assistant", "content": [call, found]}));
        assert_eq!(steps[1]["role"], "user");
    }

    #[test]
    fn steps_are_repeated_in_form_of_their_protocol() {
        let function = json!({"type": "function", "name": "a", "parameters": {}});
        let search = json!({"type": "tool_search_call", "execution": "client", "call_id": "s", "arguments": {}});
        let output = json!({"type": "tool_search_output", "execution": "client", "call_id": "s", "tools": [function]});
        let hosted = |item: &Value| {
            let mut item = item.clone();
            (item["execution"], item["call_id"]) = (json!("server"), Value::Null);
            item
        };
        let later =
            json!({"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}"});
        for (search, output) in
            [(search.clone(), output.clone()), (hosted(&search), hosted(&output))]
        {
            let body = json!({"input": [{"role": "user", "content": "Go."}, search, output,
                {"role": "user", "content": "On."}, later]});
            assert_eq!(kept(Dialect::OpenaiResponses, &body, 3), json!([search, output]));
        }
        let call =
            json!({"id": "s", "type": "function", "function": {"name": "find", "arguments": "{}"}});
        let found = json!({"role": "tool", "tool_call_id": "s", "content": [{"type": "tool_reference", "tool_name": "a"}]});
        let later = json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{}"}}]});
        let body = json!({"tools": [{"function": {"name": "a"}}], "messages": [{"role": "user", "content": "Go."},
            {"role": "assistant", "tool_calls": [call]}, found, {"role": "user", "content": "On."}, later]});
        let steps = kept(Dialect::OpenaiChat, &body, 3);
        assert_eq!(&steps[0]["tool_calls"], &json!([call]));
        assert_eq!(&steps[1], &found);
    }
}
