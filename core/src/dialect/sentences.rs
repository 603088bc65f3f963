//! The sentences of a reply, of which most are the same after a client edited it.
//!
//! Filters add a line, change line ends or the Unicode form, or take words out (`docs/protocols.md` 10.7), and each changes the
//! key of the whole text. A sentence is compared by its words in ASCII, because other letters have several forms. Must not
//! know what a sentence proves.

use std::borrow::Cow;

use super::conversation::Conversation;
use super::key::{PartKey, Sentence};
use super::kinds::{PartKind, Role};
use super::reply::ReplyPart;
use crate::wire::json::text_of;

/// Most sentences that are kept of a reply: the first one and the longest.
const MOST: usize = 8;
/// Most bytes of a text that are read.
const TEXT: usize = 64 * 1024;

/// The telling sentences of a reply as it came: of its texts as one, because a text may come in pieces; and if there are
/// several, of each by itself, because a client may add something to each.
pub fn of_reply(parts: &[ReplyPart]) -> Vec<Vec<Sentence>> {
    let texts = parts.iter().filter(|part| part.kind == PartKind::Text);
    let texts: Vec<&str> = texts.map(|part| part.text.as_str()).collect();
    let mut forms = vec![telling(&texts.concat())];
    if texts.len() > 1 {
        forms.push(telling(&texts.join("\n")));
    }
    forms
}

/// The telling sentences of the last reply in a request. None goes on from one text to the next.
pub(super) fn of_last_reply(conversation: &Conversation, body: &[u8]) -> Vec<Sentence> {
    let mut parts = conversation.parts().rev().skip_while(|part| part.role != Role::Assistant);
    let mut texts: Vec<String> = parts
        .by_ref()
        .take_while(|part| part.role == Role::Assistant)
        .filter(|part| part.kind == PartKind::Text)
        .map(|part| part.texts.iter().filter_map(|span| text_of(span.slice(body))).collect())
        .collect();
    texts.reverse();
    telling(&texts.join("\n"))
}

/// The first and the last sentence that the user says in a request with one reply or none.
pub(super) fn of_prompt(conversation: &Conversation, body: &[u8]) -> Option<[PartKey; 2]> {
    // A reply of reasoning alone says nothing, and its client may drop it.
    let spoken = conversation.parts().filter(|part| part.kind != PartKind::Reasoning);
    let from_reply = spoken.skip_while(|part| part.role != Role::Assistant);
    let mut after_reply = from_reply.skip_while(|part| part.role == Role::Assistant);
    if after_reply.any(|part| part.role == Role::Assistant) {
        return None;
    }
    let prompt: Vec<Cow<'_, str>> = conversation
        .parts()
        .take_while(|part| part.role != Role::Assistant)
        .filter(|part| part.role == Role::User && part.kind == PartKind::Text)
        .flat_map(|part| &part.texts)
        .filter_map(|span| text_of(span.slice(body)))
        .collect();
    let first_sentence = prompt.iter().find_map(|text| text.split(is_end).find_map(sentence))?;
    let last_sentence =
        prompt.iter().rev().find_map(|text| text.rsplit(is_end).find_map(sentence))?;
    Some([first_sentence.key, last_sentence.key])
}

fn telling(text: &str) -> Vec<Sentence> {
    let mut found: Vec<Sentence> = Vec::new();
    for sentence in text[..text.floor_char_boundary(TEXT)].split(is_end).filter_map(sentence) {
        if !found.contains(&sentence) {
            found.push(sentence);
        }
        if found.len() == 2 * MOST {
            // The first one stays first.
            found[1..].sort_by_key(|sentence| std::cmp::Reverse(sentence.length));
            found.truncate(MOST);
        }
    }
    if let Some(rest) = found.get_mut(1..) {
        rest.sort_by_key(|sentence| std::cmp::Reverse(sentence.length));
    }
    found.truncate(MOST);
    found
}

/// Whether a character ends a sentence.
fn is_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | ';' | ':' | '\n' | '\r' | '。' | '！' | '？')
}

fn sentence(text: &str) -> Option<Sentence> {
    if text.is_ascii() {
        // The usual case: all of its words are compared.
        let mut letters = text.as_bytes().to_vec();
        letters.retain(u8::is_ascii_alphanumeric);
        return sentence_of(&letters);
    }
    let compared = text
        .split_whitespace()
        .filter(|word| word.chars().all(|c| c.is_ascii() || is_punctuation(c)));
    let mut words: String = compared.flat_map(letters).collect();
    if words.is_empty() {
        // It is written without spaces, or in other letters.
        words.extend(letters(text));
    }
    sentence_of(words.as_bytes())
}

fn sentence_of(words: &[u8]) -> Option<Sentence> {
    if words.is_empty() {
        return None;
    }
    Some(Sentence { key: PartKey::of_bytes(words), length: words.len() })
}

fn letters(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| c.is_alphanumeric())
}

fn is_punctuation(c: char) -> bool {
    // Dashes, quotes and dots, which filters replace.
    matches!(c, '\u{2010}'..='\u{2027}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<PartKey> {
        telling(text).into_iter().map(|sentence| sentence.key).collect()
    }

    #[test]
    fn edited_replies_keep_sentences() {
        let text = "It works.\nThe café “opens” at nine, and closes at five. Go there!";
        let whole = keys(text);
        assert_eq!(whole.len(), 3);
        for edited in [
            text.replace('\n', "\r\n"),
            text.replace('é', "e\u{301}"),
            text.replace(['“', '”'], "\""),
            format!("{text}\n"),
        ] {
            assert_eq!(keys(&edited), whole, "{edited}");
        }
        let footer = format!("{text}\n---\nanswered by a model");
        assert!(whole.iter().all(|key| keys(&footer).contains(key)));
        let filtered = keys(&text.replace("opens", "***"));
        assert_eq!(whole.iter().filter(|key| filtered.contains(key)).count(), 2);
    }

    #[test]
    fn other_scripts_have_sentences() {
        let whole = keys("潮は一日に二回。船も。");
        assert_eq!(whole.len(), 2);
        assert!(whole.iter().all(|key| keys("潮は一日に二回。船も。\n— by a model").contains(key)));
        assert_eq!(keys(" \n...— "), []);
    }

    fn numbered(n: usize) -> String {
        format!("{} {n}.", "word ".repeat(1 + n % 40))
    }

    /// Of a long reply the first sentence and the longest ones are kept, wherever they stand.
    #[test]
    fn longest_sentences_are_kept() {
        let text: String = (0..120).map(numbered).collect();
        let kept = telling(&text);
        assert_eq!(kept.len(), MOST);
        assert_eq!(kept[0], telling(&numbered(0))[0]);
        let longest: Vec<PartKey> = [39, 79, 119].map(|n| keys(&numbered(n))[0]).into();
        assert!(longest.iter().all(|key| kept.iter().any(|sentence| sentence.key == *key)));
    }
}
