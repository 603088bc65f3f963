//! Thinking that stands in tags at the head of an answer (`docs/protocols.md` 4.2, MiniMax and others).
//!
//! Only at the head: an answer may talk about tags. Must not know of fields or messages. Request and
//! reply split alike, so that dropping the thought does not change who the answer is.

use memchr::memmem;

/// The tags that models think in, opening and closing.
const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<mm:think>", "</mm:think>"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
];

/// The thought, if there is one, and the answer after it. A tag that is not closed is all thought;
/// a closing tag on a line of its own, with nothing opened before it, ends a thought whose opening
/// tag the chat template held back.
pub(in crate::dialect) fn split(text: &str) -> (Option<&str>, &str) {
    let head = text.trim_start();
    for (open, close) in TAGS {
        if let Some(inner) = head.strip_prefix(open) {
            return match find(inner, close) {
                Some(at) => (Some(&inner[..at]), &inner[at + close.len()..]),
                None => (Some(inner), ""),
            };
        }
    }
    for (open, close) in &TAGS[..2] {
        if let Some(at) = find(text, close)
            && (at == 0 || text[..at].ends_with('\n'))
            && !text[..at].contains(open)
        {
            return (Some(&text[..at]), &text[at + close.len()..]);
        }
    }
    (None, text)
}

fn find(text: &str, tag: &str) -> Option<usize> {
    memmem::find(text.as_bytes(), tag.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn thoughts_stand_at_the_head() {
        assert_eq!(split("<think>a</think>\n\nb"), (Some("a"), "\n\nb"));
        assert_eq!(split("\n<mm:think>a</mm:think>b"), (Some("a"), "b"));
        assert_eq!(split("a\n</think>\n\nb"), (Some("a\n"), "\n\nb"));
        assert_eq!(split("<think>a"), (Some("a"), ""));
        assert_eq!(split("the tag </think> ends"), (None, "the tag </think> ends"));
        assert_eq!(split("use <think>\n</think> so"), (None, "use <think>\n</think> so"));
        assert_eq!(split(""), (None, ""));
    }
}
