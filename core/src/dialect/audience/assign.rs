//! Gives the parts of a request their audience, and finds what is open at the provider.
//!
//! Knows calls and results by their ids, and tools by their names; not how a dialect writes them.

use foldhash::{HashMap, HashSet};

use super::{Audience, ServerStep};
use crate::dialect::conversation::Conversation;
use crate::dialect::kinds::{Dialect, PartKind, Role};
use crate::dialect::part::Part;

pub(in crate::dialect) fn assign(conversation: &mut Conversation) {
    answer_programs(conversation);
    load_tools(conversation);
}

fn answer_programs(conversation: &mut Conversation) {
    // Most requests have no programs.
    if conversation.parts().all(|part| part.audience != Audience::Program) {
        return;
    }
    // A program's calls are answered to the program. A result follows its call, and an id may occur
    // again, so the last call of an id decides.
    let mut callers: HashMap<Box<str>, Audience> = HashMap::default();
    for message in &mut conversation.messages {
        // What is inside a result, such as its images, belongs to it.
        let mut program_data = 0;
        for part in &mut message.parts {
            match (part.kind, part.id.as_deref()) {
                (PartKind::ToolCall, Some(id)) => drop(callers.insert(id.into(), part.audience)),
                (PartKind::ToolResult, Some(id)) if callers.get(id) == Some(&Audience::Program) => {
                    part.audience = Audience::Program;
                }
                _ => {}
            }
            if part.span.end <= program_data {
                part.audience = Audience::Program;
            }
            if part.audience == Audience::Program {
                part.content = None;
                program_data = program_data.max(part.span.end);
            }
        }
    }
}

fn load_tools(conversation: &mut Conversation) {
    // A tool that something in the history loads is in the context from there on.
    if conversation.tools.iter().all(|tool| tool.audience != Audience::Nobody) {
        return;
    }
    let dialect = conversation.dialect;
    let parts = conversation.messages.iter().flat_map(|message| &message.parts);
    let mut loaded: HashSet<Box<str>> = HashSet::default();
    for part in parts {
        loaded.extend(part.loads.iter().cloned());
        // Gateways that search for tools in Chat Completions do not show what they found.
        if dialect == Dialect::OpenaiChat && part.kind == PartKind::ToolCall {
            loaded.extend(part.name.clone());
        }
    }
    match dialect {
        // The item that loads a function repeats its definition.
        Dialect::OpenaiResponses => {
            conversation
                .tools
                .retain(|tool| tool.audience != Audience::Nobody || !is_loaded(tool, &loaded));
        }
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::Gemini => {
            for tool in &mut conversation.tools {
                if is_loaded(tool, &loaded) {
                    tool.audience = Audience::Model;
                }
            }
        }
    }
}

fn is_loaded(tool: &Part, loaded: &HashSet<Box<str>>) -> bool {
    tool.name.as_ref().is_some_and(|name| loaded.contains(name))
}

impl Conversation {
    /// Whether something still runs at the provider when the request arrives, so that no text may be added at its end
    /// (`docs/protocols.md` 12.3).
    pub fn is_open_at_provider(&self) -> bool {
        self.open_server_steps().last() == Some(&true)
    }

    /// Before each message, and at the end: whether a step is open that runs at the provider. A text of the user ends
    /// the turn, and what was open in it.
    pub(crate) fn open_server_steps(&self) -> Vec<bool> {
        let mut open: Vec<Option<&str>> = Vec::new();
        let mut is_open = Vec::with_capacity(self.messages.len() + 1);
        for message in &self.messages {
            let answers = message.parts.iter().any(|part| part.kind == PartKind::ToolResult);
            // A text of the user ends the turn, and what was open in it.
            if message.role == Role::User && !answers {
                open.clear();
            }
            is_open.push(!open.is_empty());
            for part in &message.parts {
                let id = part.id.as_deref();
                match part.server_step {
                    Some(ServerStep::Begins) => open.push(id),
                    Some(ServerStep::Ends) => open.retain(|begun| *begun != id),
                    None => {}
                }
            }
        }
        is_open.push(!open.is_empty());
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::read;

    fn audiences(dialect: Dialect, body: &str) -> Vec<(PartKind, Audience)> {
        let read = read(dialect, "/", body.as_bytes());
        let all = read.tools.iter().chain(read.parts());
        all.map(|part| (part.kind, part.audience)).collect()
    }

    /// The result of a program's call is the program's, with or without a caller of its own, and cannot be cut. A later
    /// call with the same id is another call.
    #[test]
    fn results_belong_to_who_called() {
        use Audience::{Model, Program};
        let call = |caller: &str| {
            format!(
                r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"q","input":{{}}{caller}}}]}},
                {{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":[{{"type":"text","text":"r"}},
                {{"type":"image","source":{{"type":"url","url":"u"}}}}]}}]}}"#
            )
        };
        let code = r#","caller":{"type":"code_execution_20250825","tool_id":"s"}"#;
        let body = format!(
            r#"{{"messages":[{},{},{}]}}"#,
            call(code),
            call(r#","caller":{"type":"direct"}"#),
            call("")
        );
        let found: Vec<_> = audiences(Dialect::Anthropic, &body)
            .into_iter()
            .map(|(_, audience)| audience)
            .collect();
        assert_eq!(found, [Program, Program, Program, Model, Model, Model, Model, Model, Model]);
        let read = read(Dialect::Anthropic, "/", body.as_bytes());
        let may_be_cut: Vec<_> = read.parts().filter(|part| part.content.is_some()).collect();
        assert_eq!(may_be_cut.len(), 2);
    }

    /// LiteLLM shows the caller in Chat Completions; the result is a message of the tool, or a block of the user's.
    #[test]
    fn gateway_shows_who_called() {
        let call = r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"q","arguments":"{}"},
            "caller":{"type":"code_execution_20250825","tool_id":"s"}}]}"#;
        let block =
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}"#;
        for result in [r#"{"role":"tool","tool_call_id":"c","content":"r"}"#, block] {
            let body = format!(r#"{{"messages":[{call},{result}]}}"#);
            let (call, result) = (PartKind::ToolCall, PartKind::ToolResult);
            let program = Audience::Program;
            assert_eq!(audiences(Dialect::OpenaiChat, &body), [(call, program), (result, program)]);
        }
    }

    /// What the provider ran for a program is data of the program, too.
    #[test]
    fn program_calls_are_not_read() {
        let search = r#"{"role":"assistant","content":[
            {"type":"server_tool_use","id":"w","name":"web_search","input":{},"caller":{"type":"code_execution_20260120","tool_id":"s"}},
            {"type":"web_search_tool_result","tool_use_id":"w","content":[{"type":"web_search_result","url":"u"}]}]}"#;
        let found = audiences(Dialect::Anthropic, &format!(r#"{{"messages":[{search}]}}"#));
        assert!(found.iter().all(|(_, audience)| *audience == Audience::Program), "{found:?}");
        let mcp = r#"{"input":[{"type":"mcp_call","id":"m","name":"f","output":"o","caller":{"type":"program","caller_id":"p"}}]}"#;
        let found = audiences(Dialect::OpenaiResponses, mcp);
        assert_eq!(found, [(PartKind::Opaque, Audience::Program)]);
    }

    /// A deferred tool is read once something in the history loads it.
    #[test]
    fn references_load_tools() {
        let tools = r#""tools":[{"name":"a","input_schema":{}},{"name":"b","defer_loading":true,"input_schema":{}}]"#;
        let loads = [
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"b"}]}]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_search_tool_result","tool_use_id":"c","content":{"type":"tool_search_tool_search_result","tool_references":[{"type":"tool_reference","tool_name":"b"}]}}]}"#,
            r#"{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_reference","name":"b"}}]}"#,
        ];
        let second = |messages: &str| {
            let body = format!(r#"{{{tools},"messages":[{messages}]}}"#);
            audiences(Dialect::Anthropic, &body)[1].1
        };
        assert_eq!(second(r#"{"role":"user","content":"b"}"#), Audience::Nobody);
        for message in loads {
            assert_eq!(second(message), Audience::Model, "{message}");
        }
        let chat = |messages: &str| {
            let tool = r#"{"type":"function","defer_loading":true,"function":{"name":"b"}}"#;
            let body = format!(r#"{{"tools":[{tool}],"messages":[{messages}]}}"#);
            audiences(Dialect::OpenaiChat, &body)[0].1
        };
        assert_eq!(chat(r#"{"role":"user","content":"b"}"#), Audience::Nobody);
        let reference = r#"{"role":"tool","tool_call_id":"c","content":[{"type":"tool_reference","tool_name":"b"}]}"#;
        assert_eq!(chat(reference), Audience::Model);
        let called = r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"b","arguments":"{}"}}]}"#;
        assert_eq!(chat(called), Audience::Model);
    }

    /// In Responses the item that loads a function repeats its definition, so its parameters are no part any more.
    #[test]
    fn found_functions_are_not_deferred() {
        let function = r#"{"type":"function","name":"f","description":"d","defer_loading":true,"parameters":{}}"#;
        let tools = format!(
            r#""tools":[{function},{{"type":"namespace","name":"n","description":"d","tools":[{}]}}]"#,
            function.replace("\"f\"", "\"g\"")
        );
        let of = |input: &str| {
            audiences(Dialect::OpenaiResponses, &format!(r#"{{{tools},"input":[{input}]}}"#))
        };
        let (tool, opaque) = (PartKind::Tool, PartKind::Opaque);
        let (model, nobody) = (Audience::Model, Audience::Nobody);
        assert_eq!(of(""), [(tool, model), (tool, nobody), (tool, model), (tool, nobody)]);
        let output = format!(r#"{{"type":"tool_search_output","tools":[{function}]}}"#);
        assert_eq!(of(&output), [(tool, model), (tool, model), (tool, nobody), (opaque, model)]);
    }

    #[test]
    fn steps_at_provider_are_open_until_their_result_or_text() {
        let open = |dialect, body: &str| read(dialect, "/", body.as_bytes()).open_server_steps();
        let call = r#"{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_fetch","input":{}}]}"#;
        let result = r#"{"role":"assistant","content":[{"type":"web_fetch_tool_result","tool_use_id":"s","content":{}}]}"#;
        let answer =
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}"#;
        let text = r#"{"role":"user","content":"On."}"#;
        let messages = |all: &[&str]| {
            open(Dialect::Anthropic, &format!(r#"{{"messages":[{}]}}"#, all.join(",")))
        };
        assert_eq!(messages(&[text, call, answer]), [false, false, true, true]);
        assert_eq!(
            messages(&[text, call, answer, result, text]),
            [false, false, true, true, false, false]
        );
        assert_eq!(messages(&[call, text, text]), [false, false, false, false]);
        let program = r#"{"type":"program","call_id":"p","code":"1"}"#;
        let output = r#"{"type":"program_output","call_id":"p","result":"1"}"#;
        let items = |all: &[&str]| {
            open(Dialect::OpenaiResponses, &format!(r#"{{"input":[{}]}}"#, all.join(",")))
        };
        assert_eq!(items(&[program]), [false, true]);
        assert_eq!(items(&[program, output]), [false, true, false]);
    }
}
