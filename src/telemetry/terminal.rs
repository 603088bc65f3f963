//! Makes foreign text safe for a terminal: spells out what a terminal would obey.
//!
//! Names, prompts, files and replies come from strangers. An escape sequence in them could set the clipboard
//! or hide lines; a bidirectional mark makes text look different from what it is. All text that a person may
//! see in a terminal passes through here: [`crate::cli`] and the log call it. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal would act on the character instead of showing it. Newline and tab do not count.
pub(super) fn is_control(c: char) -> bool {
    match c {
        ' '..='~' | '\n' | '\t' => false,
        // Arabic letter mark, marks, embeddings, overrides, isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        c => c.is_control(),
    }
}

/// Text with each control character spelled out: `\u{1b}`.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    spelled(text, |c, out| {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    })
}

/// JSON with each control character as `\u001b`, which means the same inside a string; outside of strings
/// JSON has none.
pub(crate) fn visible_json(json: &str) -> Cow<'_, str> {
    // All of them fit into four digits.
    spelled(json, |c, out| {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
    })
}

fn spelled(text: &str, spell: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // The case of nearly all texts.
    let Some(first) = first_control(text) else { return Cow::Borrowed(text) };
    let (plain, rest) = text.split_at(first);
    let mut spelled = String::with_capacity(text.len());
    spelled.push_str(plain);
    for c in rest.chars() {
        if is_control(c) {
            spell(c, &mut spelled);
        } else {
            spelled.push(c);
        }
    }
    Cow::Owned(spelled)
}

fn first_control(text: &str) -> Option<usize> {
    let mut index = 0;
    while let Some(plain) = first_not_plain(&text.as_bytes()[index..]) {
        index += plain;
        let c = text[index..].chars().next()?;
        if is_control(c) {
            return Some(index);
        }
        index += c.len_utf8();
    }
    None
}

/// Where the first byte is that may be a part of a control character.
fn first_not_plain(bytes: &[u8]) -> Option<usize> {
    // Nearly all bytes are plain: many are looked at at once.
    let blocks = bytes.as_chunks::<32>().0.iter();
    let plain = blocks.take_while(|block| block.iter().fold(true, |all, b| all & is_plain(*b)));
    let plain = plain.count() * 32;
    bytes[plain..].iter().position(|byte| !is_plain(*byte)).map(|at| plain + at)
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        for (hostile, shown) in [
            ("\x1b]52;c;ZXZpbA==\x07", "\\u{1b}]52;c;ZXZpbA==\\u{7}"),
            ("\x1b[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("fine\rover it", "fine\\u{d}over it"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}", "a\\u{202e}b\\u{2066}c\\u{200f}d\\u{61c}"),
            ("Zürich\tå\n→ 世界 👍", "Zürich\tå\n→ 世界 👍"),
            ("", ""),
        ] {
            assert_eq!(visible(hostile), shown);
        }
    }

    proptest::proptest! {
        #[test]
        fn control_characters_go(text in "(?s).{0,60}|[\\x00-\\x1f\u{80}-\u{9f}\u{200e}-\u{202f}\u{2060}-\u{2070} a]{0,40}") {
            let shown = visible(&text);
            proptest::prop_assert!(!shown.contains(is_control), "{shown:?}");
            proptest::prop_assert_eq!(visible(&shown), shown.clone());
            if !text.contains(is_control) {
                proptest::prop_assert_eq!(&*shown, &text);
            }
        }

        #[test]
        fn json_with_escaped_control_characters_has_same_value(text in "(?s).{0,60}|[\\x00-\\x1f\u{80}-\u{9f}\u{200e}-\u{202f}\\\\\" a]{0,40}") {
            let value = serde_json::json!({ &text: [&text] });
            let json = value.to_string();
            let shown = visible_json(&json);
            proptest::prop_assert!(!shown.contains(is_control), "{shown:?}");
            proptest::prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
