//! Where the user's turns begin, which decides what happens to reasoning.
//!
//! Reads messages only.

use crate::dialect::{Conversation, Dialect, Message, PartKind, Role};

/// Whether a message is the user's own text, which begins a turn (`docs/estimates.md` 2).
pub(in crate::context) fn is_users(message: &Message) -> bool {
    // Text together with tool results continues a turn. No signal tells the two apart, and keeping
    // reasoning is the cautious guess.
    let is_text = holds(message, PartKind::Text) && !holds(message, PartKind::ToolResult);
    message.role == Role::User && is_text
}

pub(super) fn holds(message: &Message, kind: PartKind) -> bool {
    message.parts.iter().any(|part| part.kind == kind)
}

/// The message that begins the user's last turn (`docs/estimates.md` 2).
pub(super) fn turn_start(conversation: &Conversation) -> usize {
    // Gemini's documentation of signatures counts text beside results, too.
    if conversation.dialect == Dialect::Gemini {
        return last_user_text(conversation);
    }
    let messages = &conversation.messages;
    for (index, message) in messages.iter().enumerate().rev() {
        if !is_users(message) {
            continue;
        }
        // Text right after tool results continues the turn, wherever the dialect puts it: models keep
        // reasoning in half of such cases, and keeping is the cautious guess.
        let previous = messages[..index].iter().rev().find(|message| !is_users(message));
        if !previous.is_some_and(|message| holds(message, PartKind::ToolResult)) {
            return index;
        }
    }
    0
}

/// The message with the user's last text; with Gemini, also if it came with tool results.
pub(super) fn last_user_text(conversation: &Conversation) -> usize {
    let is_gemini = conversation.dialect == Dialect::Gemini;
    let index = conversation.messages.iter().rposition(|message| {
        let is_text = message.role == Role::User && holds(message, PartKind::Text);
        is_users(message) || is_gemini && is_text
    });
    index.unwrap_or(0)
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
    fn text_beside_results_begins_turn_for_gemini_alone() {
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
