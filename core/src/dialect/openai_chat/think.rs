//! Thinking in tags at the start of a reply (`docs/protocols.md` 4.2, MiniMax and others).
//!
//! Only at the start, because a reply may mention tags. Must not know members or messages. Requests and
//! replies are split in the same way, so that dropping the thought does not change the reply's key.

use memchr::memmem;

/// The tags that models use for thinking, opening and closing.
const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<mm:think>", "</mm:think>"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
];

/// The thought, if any, and the reply after it. Without a closing tag, everything is thought. A closing tag
/// on its own line without an opening one ends a thought whose opening tag the chat template removed.
pub(in crate::dialect) fn split(text: &str) -> (Option<&str>, &str) {
    let head = text.trim_start();
    for (open, close) in TAGS {
        if let Some(inner) = head.strip_prefix(open) {
            // Without a closing tag, everything is thought.
            return match find(inner, close) {
                Some(at) => (Some(&inner[..at]), &inner[at + close.len()..]),
                None => (Some(inner), ""),
            };
        }
    }
    // A closing tag on its own line ends a thought whose opening tag the chat template removed.
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
    fn reasoning_tags_are_split_off_only_at_start_of_text() {
        assert_eq!(split("<think>a</think>\n\nb"), (Some("a"), "\n\nb"));
        assert_eq!(split("\n<mm:think>a</mm:think>b"), (Some("a"), "b"));
        assert_eq!(split("a\n</think>\n\nb"), (Some("a\n"), "\n\nb"));
        assert_eq!(split("<think>a"), (Some("a"), ""));
        assert_eq!(split("the tag </think> ends"), (None, "the tag </think> ends"));
        assert_eq!(split("use <think>\n</think> so"), (None, "use <think>\n</think> so"));
        assert_eq!(split(""), (None, ""));
    }
}
