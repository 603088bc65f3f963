//! Quotes of what the user said before a cut, kept beside the summary: literal, and only from the user's
//! messages, never from the summariser's output.
//!
//! Not quoted, although they are in user messages: tool results, blocks that a client inserts, and summaries
//! that a client writes itself. Anything else that a client sends as the user's text is quoted, because it
//! was in the history as such. Pure.

use crate::context::InjectionState;
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::trim::text_at;
use crate::dialect::summary::frame::{CONTINUED, Quote, Speaker};
use crate::dialect::{Conversation, Message, PartKind, ReplyPart, Role};

/// Most bytes of one message that are quoted.
const BYTES: usize = 2000;
/// Quoted messages of the operator, the newest.
const OPERATORS: usize = 8;
/// Quotes take at most this fraction (1/n) of the tokens that may be filled.
const SHARE: u64 = 16;

/// The quotes, and how many messages the user wrote.
pub(super) struct Quotes {
    /// Oldest first.
    pub(super) quotes: Vec<Quote>,
    /// Messages that contain text of the user.
    pub(super) messages: usize,
}

/// Most tokens of quotes, not counting the first message and pinned ones.
pub fn most_quoted(request: &PlanRequest<'_>) -> u64 {
    request.policy.compact.quote_tokens.min(request.fillable() / SHARE)
}

/// What the user wrote in a conversation, without what clients insert.
pub fn user_texts<'a>(
    conversation: &'a Conversation,
    body: &'a [u8],
) -> impl Iterator<Item = String> + 'a {
    conversation.messages.iter().filter_map(|message| Some(own_text(message, body)?.text))
}

/// The user's text before a cut. Kept are the first message and those with a pin, as policy says, then the
/// newest as far as the tokens allow, and the operator's last messages.
pub(super) fn quotes(request: &PlanRequest<'_>, known: &RecordedDecisions, cut: usize) -> Quotes {
    let policy = &request.policy.compact;
    let quoted = quotable(request, known, cut);
    let operators = quoted.iter().enumerate().rev();
    let operators = operators.filter(|(_, quote)| quote.speaker == Speaker::Operator);
    let operators: Vec<usize> = operators.take(OPERATORS).map(|(at, _)| at).collect();
    let opening = quoted.iter().position(|quote| quote.speaker == Speaker::User);
    let mut stays: Vec<bool> = quoted
        .iter()
        .enumerate()
        .map(|(at, quote)| {
            // The whole text is searched for pins, before it is shortened.
            let is_pinned = policy
                .pinned
                .iter()
                .any(|pin| !pin.is_empty() && quote.text.contains(pin.as_str()));
            let is_first = policy.keep_first && Some(at) == opening;
            is_pinned || is_first || operators.contains(&at)
        })
        .collect();
    let shortened: Vec<Quote> = quoted.iter().map(shorten).collect();
    let limit = most_quoted(request);
    let certain = shortened.iter().zip(&stays).filter(|(_, stays)| **stays);
    let mut sum: u64 = certain.map(|(quote, _)| quote_tokens(request, quote)).sum();
    for (quote, stays) in shortened.iter().zip(&mut stays).rev().filter(|(_, stays)| !**stays) {
        sum = sum.saturating_add(quote_tokens(request, quote));
        if sum > limit {
            break;
        }
        *stays = true;
    }
    let messages = quoted.iter().filter(|quote| quote.speaker == Speaker::User).count();
    let quotes = shortened.into_iter().zip(stays).filter(|(_, stays)| *stays);
    Quotes { quotes: quotes.map(|(quote, _)| quote).collect(), messages }
}

fn quote_tokens(request: &PlanRequest<'_>, quote: &Quote) -> u64 {
    let part = ReplyPart { text: quote.text.clone(), ..ReplyPart::new(PartKind::Text) };
    u64::from(request.tokenizer.reply().reply_part(&part))
}

fn quotable(request: &PlanRequest<'_>, known: &RecordedDecisions, cut: usize) -> Vec<Quote> {
    let mut quoted = Vec::new();
    let mut number = 0;
    let messages = request.conversation.messages.iter().enumerate();
    for (index, message) in messages.take(cut) {
        if let Some(OwnText { text, is_whole }) = own_text(message, request.body) {
            number += 1;
            quoted.push(Quote { number, text, is_whole, speaker: Speaker::User });
        }
        for message in known.injected_in(index) {
            let InjectionState::Injected(place) = &message.state else { continue };
            let text = place.text.to_string();
            quoted.push(Quote { number: 0, text, is_whole: true, speaker: Speaker::Operator });
        }
    }
    quoted
}

fn shorten(quote: &Quote) -> Quote {
    let end = quote.text.floor_char_boundary(BYTES);
    let is_whole = quote.is_whole && end == quote.text.len();
    Quote { text: quote.text[..end].to_owned(), is_whole, ..*quote }
}

/// The user's own text in a message.
struct OwnText {
    text: String,
    /// The message contains nothing else.
    is_whole: bool,
}

fn own_text(message: &Message, body: &[u8]) -> Option<OwnText> {
    if message.role != Role::User {
        return None;
    }
    let mut results = 0;
    let mut texts: Vec<String> = Vec::new();
    let mut is_whole = true;
    for part in &message.parts {
        match part.kind {
            PartKind::ToolResult => results = results.max(part.span.end),
            // Text inside a tool result starts before the result's end, and is skipped.
            PartKind::Text if part.role == Role::User && part.span.start >= results => {
                for text in &part.texts {
                    let text = text_at(*text, body);
                    let own_text = without_blocks(&text);
                    is_whole &= own_text.len() == text.len();
                    texts.push(own_text);
                }
            }
            _ => {}
        }
    }
    texts.retain(|text| !text.trim().is_empty());
    match texts.is_empty() {
        true => None,
        false => Some(OwnText { text: texts.join("\n"), is_whole }),
    }
}

/// Tags of blocks that clients insert into user messages, by the start of their names.
const BLOCKS: [&str; 22] = [
    "system-reminder",
    "system_reminder",
    "environment_context",
    "environment_details",
    "environment-details",
    "session_context",
    "hook_context",
    "untrusted_context",
    "user_instructions",
    "INSTRUCTIONS",
    "system_information",
    "persisted-output",
    "command-name",
    "command-message",
    "command-args",
    "local-command-",
    "bash-stdout",
    "bash-stderr",
    "ide_",
    "file_content",
    "state_snapshot",
    "turn_aborted",
];

/// How texts begin that clients write in the user's name: notes, and summaries of their own.
const NOTES: [&str; 7] = [
    CONTINUED,
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem",
    "Caveat: The messages below were generated by the user while running local commands",
    "[Request interrupted by user",
    "# AGENTS.md instructions",
    "<returncode>",
];

fn without_blocks(text: &str) -> String {
    let begin = text.trim_start();
    if NOTES.iter().any(|note| begin.starts_with(note)) {
        return String::new();
    }
    let mut rest = text.to_owned();
    let mut from = 0;
    while let Some((start, name)) = block(&rest, from) {
        let close = format!("</{name}>");
        // The last closing tag: a block may contain such tags itself. Without one it goes to the end.
        let end = rest[start..].rfind(&close).map_or(rest.len(), |at| start + at + close.len());
        rest.replace_range(start..end, "");
        from = start;
    }
    rest
}

fn block(text: &str, from: usize) -> Option<(usize, String)> {
    let mut tags = text[from..].match_indices('<').map(|(at, _)| from + at);
    tags.find_map(|at| {
        let tag = &text[at + 1..];
        if !BLOCKS.iter().any(|name| tag.starts_with(name)) {
            return None;
        }
        // Only the space before it is searched, not the whole line, which may be very long.
        let head = text[..at].trim_end_matches(|c: char| c.is_whitespace() && c != '\n');
        let begins_line = head.is_empty() || head.ends_with('\n');
        let name = &tag[..tag.find(['>', ' ', '\n', '/']).unwrap_or(tag.len())];
        if begins_line { Some((at, name.to_owned())) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_blocks_are_not_quoted() {
        for (text, own) in [
            ("Mend it.", "Mend it."),
            ("<system-reminder>\nBe calm.\n</system-reminder>", ""),
            ("Mend it.\n<system-reminder>Be calm.</system-reminder>\n", "Mend it.\n\n"),
            // A closing tag inside a file's text does not end the block.
            (
                "<system-reminder>a</system-reminder>\nPush to main.\n</system-reminder>Mend.",
                "Mend.",
            ),
            ("<environment_context>\n  <cwd>/a</cwd>", ""),
            ("<ide_opened_file>a</ide_opened_file><command-name>/x</command-name>", ""),
            ("This session is being continued from a previous conversation that ran out.", ""),
            // A tag that the user mentions within a line.
            (
                "Why is <system-reminder> there? <b>So</b>",
                "Why is <system-reminder> there? <b>So</b>",
            ),
        ] {
            assert_eq!(without_blocks(text), own, "{text}");
        }
    }
}
