//! Adds text of the user to a request, after a part of the user or a tool.
//!
//! In the same message if that is possible, so that roles alternate as before; after a tool result that is a
//! message of its own, in the next message. For the model it is the same whether the client wrote a string or
//! a list (`docs/protocols.md` 10.7). Only adds bytes.

use super::beside::{insert, literal};
use super::ranges::within;
use crate::dialect::{Conversation, Dialect, Message, Part, PartIndex, PartKind, Role, Span};
use crate::wire::splice::Edit;

/// Edits that add `texts`, in order, after the part `at` (message and part). Empty if that part is the
/// model's, or the structure of the body does not allow it.
pub fn inject(
    conversation: &Conversation,
    body: &[u8],
    at: PartIndex,
    texts: &[&str],
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(at.message) else { return Vec::new() };
    let Some(part) = holder(message, at.part) else { return Vec::new() };
    if texts.is_empty() || !matches!(part.role, Role::User | Role::Tool) {
        return Vec::new();
    }
    let dialect = conversation.dialect;
    let is_string = part.span.slice(body).first() == Some(&b'"');
    let is_answer = part.kind == PartKind::ToolResult;
    match dialect {
        Dialect::OpenaiChat | Dialect::OpenaiResponses if is_answer => {
            let added: String = texts
                .iter()
                .flat_map(|text| [",", &message_of(dialect, text)].map(String::from))
                .collect();
            if in_list(body, message.span) {
                vec![insert(message.span.end, added)]
            } else {
                Vec::new()
            }
        }
        Dialect::OpenaiChat if is_string => {
            let added: String = texts.iter().map(|text| inside(&format!("\n\n{text}"))).collect();
            vec![insert(part.span.end - 1, added)]
        }
        _ if is_string => {
            // The whole input in Responses, or the content of a message.
            let (open, close) = match part.span == message.span {
                true => ("[{\"type\":\"message\",\"role\":\"user\",\"content\":[", "]}]"),
                false => ("[", "]"),
            };
            let start = format!("{open}{}", opening(dialect));
            let end = format!("}}{}{close}", blocks(dialect, texts));
            vec![insert(part.span.start, start), insert(part.span.end, end)]
        }
        _ => {
            if in_list(body, part.span) && part.span != message.span {
                vec![insert(part.span.end, blocks(dialect, texts))]
            } else {
                Vec::new()
            }
        }
    }
}

/// The part, or the tool result or document that it is in.
fn holder(message: &Message, at: usize) -> Option<&Part> {
    let part = message.parts.get(at)?;
    // The outermost, because a result may have a document in it.
    let container = message.parts[..at].iter().find(|other| {
        matches!(other.kind, PartKind::ToolResult | PartKind::Document)
            && within(part.span, other.span)
    });
    Some(container.unwrap_or(part))
}

fn opening(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => "{\"type\":\"text\",\"text\":",
        Dialect::OpenaiResponses => "{\"type\":\"input_text\",\"text\":",
        Dialect::Gemini => "{\"text\":",
    }
}

fn blocks(dialect: Dialect, texts: &[&str]) -> String {
    texts.iter().map(|text| format!(",{}{}}}", opening(dialect), literal(text))).collect()
}

fn message_of(dialect: Dialect, text: &str) -> String {
    match dialect {
        Dialect::OpenaiResponses => {
            let content = format!("[{}{}}}]", opening(dialect), literal(text));
            format!("{{\"type\":\"message\",\"role\":\"user\",\"content\":{content}}}")
        }
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::Gemini => {
            format!("{{\"role\":\"user\",\"content\":{}}}", literal(text))
        }
    }
}

fn inside(text: &str) -> String {
    let literal = literal(text);
    literal[1..literal.len() - 1].to_owned()
}

fn in_list(body: &[u8], span: Span) -> bool {
    // Judged by the bytes around it, because the conversation does not say so.
    let rest = body.get(span.end..).unwrap_or_default();
    let following = rest.iter().find(|byte| !byte.is_ascii_whitespace());
    let head = body.get(..span.start).unwrap_or_default();
    let preceding = head.iter().rev().find(|byte| !byte.is_ascii_whitespace());
    matches!((preceding, following), (Some(b'[' | b','), Some(b']' | b',')))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dialect::read;
    use crate::wire::splice::splice;

    fn added(dialect: Dialect, target: &str, body: &Value) -> Value {
        let body = bytes::Bytes::from(body.to_string());
        let conversation = read(dialect, target, &body);
        let last = conversation.messages.len() - 1;
        let at = PartIndex::new(last, conversation.messages[last].parts.len() - 1);
        let edits = inject(&conversation, &body, at, &["a \"b\"", "c"]);
        let slices = splice(&body, edits).unwrap();
        serde_json::from_slice(&slices.concat()).unwrap()
    }

    #[test]
    fn injected_message_goes_into_user_message_or_after_it() {
        let block = |text: &str| json!({"type": "text", "text": text});
        let whole = json!([block("Hi"), block("a \"b\""), block("c")]);
        for content in [json!("Hi"), json!([block("Hi")])] {
            let body = json!({"messages": [{"role": "user", "content": content}]});
            let seen = added(Dialect::Anthropic, "/v1/messages", &body);
            assert_eq!(seen["messages"][0]["content"], whole);
        }
        let picture = json!({"type": "image", "source": {"type": "url", "url": "x"}});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [picture]});
        let body = json!({"messages": [{"role": "user", "content": [result]}]});
        let seen = added(Dialect::Anthropic, "/v1/messages", &body);
        assert_eq!(seen["messages"][0]["content"], json!([result, block("a \"b\""), block("c")]));
        let document =
            json!({"type": "document", "source": {"type": "content", "content": [picture]}});
        let body = json!({"messages": [{"role": "user", "content": [document]}]});
        let seen = added(Dialect::Anthropic, "/v1/messages", &body);
        assert_eq!(seen["messages"][0]["content"], json!([document, block("a \"b\""), block("c")]));

        let chat = "/v1/chat/completions";
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let seen = added(Dialect::OpenaiChat, chat, &body);
        assert_eq!(seen["messages"][0]["content"], "Hi\n\na \"b\"\n\nc");
        let tool = json!({"role": "tool", "tool_call_id": "t", "content": "done"});
        let seen = added(Dialect::OpenaiChat, chat, &json!({"messages": [tool]}));
        let user = |text: &str| json!({"role": "user", "content": text});
        assert_eq!(seen["messages"], json!([tool, user("a \"b\""), user("c")]));

        let responses = "/v1/responses";
        let block = |text: &str| json!({"type": "input_text", "text": text});
        let whole = json!([block("Hi"), block("a \"b\""), block("c")]);
        let item = json!({"type": "message", "role": "user", "content": "Hi"});
        for input in [json!("Hi"), json!([item])] {
            let seen = added(Dialect::OpenaiResponses, responses, &json!({"input": input}));
            assert_eq!(seen["input"][0]["content"], whole);
            assert_eq!(seen["input"].as_array().unwrap().len(), 1);
        }
        let output = json!({"type": "function_call_output", "call_id": "t", "output": "done"});
        let seen = added(Dialect::OpenaiResponses, responses, &json!({"input": [output]}));
        let user = |text| json!({"type": "message", "role": "user", "content": [block(text)]});
        assert_eq!(seen["input"], json!([output, user("a \"b\""), user("c")]));

        let gemini = "/v1beta/models/m:generateContent";
        let answer = json!({"functionResponse": {"name": "f", "response": {"output": "done"}}});
        let body = json!({"contents": [{"role": "user", "parts": [answer]}]});
        let seen = added(Dialect::Gemini, gemini, &body);
        let parts = json!([answer, {"text": "a \"b\""}, {"text": "c"}]);
        assert_eq!(seen["contents"][0]["parts"], parts);
    }

    #[test]
    fn model_message_gets_no_injection() {
        let body = json!({"messages": [{"role": "assistant", "content": "Hi"}]});
        assert_eq!(added(Dialect::Anthropic, "/v1/messages", &body), body);
        let body = json!({"contents": [{"role": "user", "parts": {"text": "one"}}]});
        assert_eq!(added(Dialect::Gemini, "/v1beta/models/m:generateContent", &body), body);
    }
}
