//! Where the user's turns begin, which decides what happens to reasoning.
//!
//! Reads messages only.

use crate::dialect::{Conversation, Dialect, Message, Part, PartKind, Role};

/// Whether a message is the user's own text, which begins a turn. Text together with tool results continues
/// one. No signal tells the two apart (`docs/estimates.md` 2), and keeping reasoning is the cautious guess.
pub(in crate::context) fn is_users(message: &Message) -> bool {
    let is_text = holds(message, PartKind::Text) && !holds(message, PartKind::ToolResult);
    message.role == Role::User && is_text
}

/// Whether a message has a part of this kind.
pub(super) fn holds(message: &Message, kind: PartKind) -> bool {
    message.parts.iter().any(|part| part.kind == kind)
}

/// The message that begins the user's last turn. Text right after tool results continues the turn, wherever
/// the dialect puts it (`docs/estimates.md` 2: models keep reasoning in half of such cases, and keeping is
/// the cautious guess). With Gemini, a turn begins with the last message that has user text, with results or
/// without, as its documentation of signatures says.
pub(super) fn turn_start(conversation: &Conversation) -> usize {
    if conversation.dialect == Dialect::Gemini {
        return last_user_text(conversation);
    }
    let messages = &conversation.messages;
    let answers =
        |message: &Message| message.parts.iter().any(|part| part.kind == PartKind::ToolResult);
    let begins = |at: &usize| {
        let before = messages[..*at].iter().rev().find(|message| !is_users(message));
        is_users(&messages[*at]) && !before.is_some_and(answers)
    };
    (0..messages.len()).rev().find(begins).unwrap_or(0)
}

/// The message with the user's last text; with Gemini, also if it came with tool results.
pub(super) fn last_user_text(conversation: &Conversation) -> usize {
    let speaks = |message: &Message| match conversation.dialect {
        Dialect::Gemini => {
            let is_text = |part: &Part| part.kind == PartKind::Text;
            message.role == Role::User && message.parts.iter().any(is_text)
        }
        _ => is_users(message),
    };
    conversation.messages.iter().rposition(speaks).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    fn began(dialect: Dialect, path: &str, body: &str) -> usize {
        turn_start(&dialect::read(dialect, path, body.as_bytes()))
    }

    /// The same text beside a result, in three protocols.
    #[test]
    fn text_beside_results_begins_a_turn_for_gemini_alone() {
        let gemini = r#"{"contents":[{"role":"user","parts":[{"text":"Look."}]},
            {"role":"model","parts":[{"functionCall":{"name":"ls","args":{}}}]},
            {"role":"user","parts":[{"functionResponse":{"name":"ls","response":{"output":"a"}}},
                {"text":"And b?"}]}]}"#;
        let path = "/v1beta/models/gemini-3-pro:generateContent";
        assert_eq!(began(Dialect::Gemini, path, gemini), 2);
        let claude = r#"{"messages":[{"role":"user","content":"Look."},
            {"role":"assistant","content":[{"type":"tool_use","id":"c","name":"ls","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"a"},
                {"type":"text","text":"And b?"}]}]}"#;
        assert_eq!(began(Dialect::Anthropic, "/v1/messages", claude), 0);
        let gpt = r#"{"input":[{"role":"user","content":"Look."},
            {"type":"function_call","call_id":"c","name":"ls","arguments":"{}"},
            {"type":"function_call_output","call_id":"c","output":"a"},
            {"role":"user","content":"And b?"}]}"#;
        assert_eq!(began(Dialect::OpenaiResponses, "/v1/responses", gpt), 0);
    }
}
