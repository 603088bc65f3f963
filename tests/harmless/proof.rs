//! What proves whose a request is, if its client names no session (`docs/protocols.md` 8.2).

use scripted_provider::strict::Dialect;
use serde_json::Value;

use crate::client::{self, ClientStyle, HistoryItem, ReplyEdit};

/// Letters and digits of a sentence that is not in many replies.
const TELLING: usize = 24;

/// Whether the next request proves that it continues this reply to a history. What was retrieved for the history's end
/// does not come again: the reply and the history before that have to tell.
pub fn is_telling(
    dialect: Dialect,
    style: ClientStyle,
    history: &[HistoryItem],
    reply: &Value,
) -> bool {
    let is_question = matches!(history.last(), Some(HistoryItem::User(_)));
    if style.retrieves.is_none() || !is_question {
        return true;
    }
    let has_ids = dialect != Dialect::Gemini || !style.drops_call_ids;
    // A text that it drops leaves only the call, whose arguments another run's may have.
    let drops_text = matches!(style.edits_replies, Some(ReplyEdit::DropBesideCalls))
        && client::has_calls(dialect, reply);
    has_ids && client::has_call_ids(dialect, reply)
        || !drops_text
            && client::texts(reply).concat().split('\n').any(|line| letters(line) >= TELLING)
}

fn letters(line: &str) -> usize {
    let words = line.split_whitespace().filter(|word| word.is_ascii());
    words.map(|word| word.chars().filter(char::is_ascii_alphanumeric).count()).sum()
}
