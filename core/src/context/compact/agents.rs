//! The exact rules of known agents, which presets name: what counts as the size of the last call, where the
//! history is cut, and which summaries are accepted. When they compact is configured in `[compact]`.
//!
//! Pure: nothing is summarised or changed here.

use crate::context::turn_start::holds;
use crate::dialect::{Audience, Conversation, Message, PartKind, Role, Usage};
use crate::tokens::classic;

/// Input tokens of a call, less what it wrote to the cache (`last_call`, as opencode counts). Reads from the cache are
/// included.
pub fn tokens_without_cache_writes(usage: &Usage) -> Option<u64> {
    usage.input.map(|input| input.saturating_sub(usage.cache_write.unwrap_or(0)))
}

/// The first message to keep if the last share `keep` of the history, by length, is to stay (Gemini CLI: 0.3).
/// Everything before it is summarised; 0: nothing can be. It is after the last message only if the model has
/// finished.
pub(super) fn cut_point(conversation: &Conversation, body: &[u8], keep: f64) -> usize {
    // The cut is before a user's text, so that calls and their results stay together.
    let messages = &conversation.messages;
    let lengths: Vec<u64> = messages
        .iter()
        .map(|message| match message.parts.iter().any(|part| part.audience == Audience::Model) {
            true => classic::length(message.span, body),
            // What the model does not read is not in the agent's own history.
            false => 0,
        })
        .collect();
    let target = lengths.iter().sum::<u64>() as f64 * (1.0 - keep.clamp(0.0, 1.0));
    let mut length = 0u64;
    let mut latest = 0;
    for (index, message) in messages.iter().enumerate() {
        if is_users_own(message) {
            // Before a user's text, so that calls and their results stay together.
            if length as f64 >= target {
                return index;
            }
            latest = index;
        }
        length += lengths[index];
    }
    // Only a model that has finished leaves nothing that belongs to the next message.
    if messages.last().is_some_and(is_finished) { messages.len() } else { latest }
}

/// Whether a compaction is accepted: it must shrink the context, but not to nothing.
pub fn is_worth_it(before: u64, after: u64) -> bool {
    0 < after && after < before
}

fn is_users_own(message: &Message) -> bool {
    message.role == Role::User && !holds(message, PartKind::ToolResult)
}

fn is_finished(message: &Message) -> bool {
    message.role == Role::Assistant && !holds(message, PartKind::ToolCall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{self, Dialect};

    #[test]
    fn summary_that_does_not_shrink_history_is_rejected() {
        assert!(is_worth_it(1_000, 999));
        assert!(!is_worth_it(1_000, 1_000));
        assert!(!is_worth_it(1_000, 1_001));
        assert!(!is_worth_it(10, 0));
    }

    const USER: &str = r#"{"role":"user","parts":[{"text":"A question of some words."}]}"#;
    const MODEL: &str = r#"{"role":"model","parts":[{"text":"An answer, of a few more."}]}"#;
    const CALL: &str = r#"{"role":"model","parts":[{"functionCall":{"name":"ls","args":{}}}]}"#;
    const RESULT: &str =
        r#"{"role":"user","parts":[{"functionResponse":{"name":"ls","response":{}}}]}"#;

    fn cut(keep: f64, history: &[&str]) -> usize {
        let body = format!(r#"{{"contents":[{}]}}"#, history.join(","));
        let target = "/v1beta/models/gemini-3-pro:generateContent";
        let read = dialect::read(Dialect::Gemini, target, body.as_bytes());
        assert_eq!(read.messages.len(), history.len());
        cut_point(&read, body.as_bytes(), keep)
    }

    #[test]
    fn gemini_cli_keeps_last_part_and_cuts_before_question() {
        let five = [USER, MODEL, USER, MODEL, USER];
        assert_eq!(cut(0.5, &five), 4);
        assert_eq!(cut(0.1, &five), 4);
        assert_eq!(cut(0.3, &five), 4);
        assert_eq!(cut(0.7, &five), 2);
        // No question comes after the place: everything is cut, if the model has finished.
        assert_eq!(cut(0.2, &[USER, MODEL, USER, MODEL]), 4);
        // If a call waits for its result, or a result for a reply, the cut is at the question before it.
        assert_eq!(cut(0.01, &[USER, MODEL, USER, CALL]), 2);
        assert_eq!(cut(0.3, &[USER, MODEL, USER, CALL, RESULT]), 2);
        // Nothing can be summarised before the first question.
        assert_eq!(cut(0.5, &[]), 0);
        assert_eq!(cut(0.5, &[USER]), 0);
        assert_eq!(cut(0.3, &[USER, CALL, RESULT]), 0);
        assert_eq!(cut(-1.0, &five), 4);
        assert_eq!(cut(2.0, &five), 0);
        assert_eq!(cut(f64::NAN, &five), 4);
    }
}
