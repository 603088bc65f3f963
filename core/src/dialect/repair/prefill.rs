//! A message of the user after words of the model that end a history.
//!
//! The words stay where they are. Must not know why they are the last.

use crate::dialect::rewrite::{insert, literal};
use crate::dialect::{Conversation, Dialect, Role};
use crate::wire::splice::Edit;

/// The edit that has the user speak after message `message`; `None` where that is not the model's.
pub fn edits(conversation: &Conversation, message: usize, text: &str) -> Option<Edit> {
    let at = conversation.messages.get(message).filter(|it| it.role == Role::Assistant)?;
    let text = literal(text);
    let message = match conversation.dialect {
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            format!(",{{\"role\":\"user\",\"content\":{text}}}")
        }
        Dialect::Gemini => format!(",{{\"role\":\"user\",\"parts\":[{{\"text\":{text}}}]}}"),
    };
    Some(insert(at.span.end, message))
}
