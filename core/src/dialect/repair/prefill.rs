//! A user message after a message of the model at the end of a history.
//!
//! The model's message stays. Must not know why it is the last.

use crate::dialect::rewrite::{insert, literal};
use crate::dialect::{Conversation, Dialect, Role};
use crate::wire::splice::Edit;

/// The edit that adds a user message after message `message`; `None` if that is not the model's.
pub(crate) fn edits(conversation: &Conversation, message: usize, text: &str) -> Option<Edit> {
    let prefill =
        conversation.messages.get(message).filter(|message| message.role == Role::Assistant)?;
    let text = literal(text);
    let message = match conversation.dialect {
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            format!(",{{\"role\":\"user\",\"content\":{text}}}")
        }
        Dialect::Gemini => format!(",{{\"role\":\"user\",\"parts\":[{{\"text\":{text}}}]}}"),
    };
    Some(insert(prefill.span.end, message))
}
