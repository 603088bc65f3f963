//! Percent-encoding for all readers and writers of a target.
//!
//! Works for any text. Code that takes a name from a path refuses invalid escapes; code that only observes
//! keeps them.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is escaped in a path segment: all but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A name, encoded as one path segment.
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// The text with its escapes decoded; invalid escapes stay, and invalid UTF-8 becomes U+FFFD.
pub(super) fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

/// The same without guessing: `None` if an escape is invalid, or the result is not UTF-8.
pub fn decoded_whole(text: &str) -> Option<Cow<'_, str>> {
    for rest in text.split('%').skip(1) {
        if rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() < 2 {
            return None;
        }
    }
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_names_decode_to_themselves() {
        for name in ["plain", "a/b c", "{\"x\":1}", "Ünï", "%2F"] {
            assert_eq!(decoded_whole(&encoded(name)).as_deref(), Some(name));
        }
        assert_eq!(encoded("a/b ü-_.~"), "a%2Fb%20%C3%BC-_.~");
    }

    #[test]
    fn percent_escapes_are_decoded_and_broken_ones_kept_or_refused() {
        for (text, lossy, whole) in [
            ("a%2Fb%20c", "a/b c", Some("a/b c")),
            ("a%2", "a%2", None),
            ("%zz%41", "%zzA", None),
            ("%FF", "\u{fffd}", None),
            ("", "", Some("")),
        ] {
            assert_eq!(decoded(text), lossy, "{text}");
            assert_eq!(decoded_whole(text).as_deref(), whole, "{text}");
        }
    }
}
