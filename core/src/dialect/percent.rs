//! Percent-decoding, as every reader of a target does it.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The text with its escapes undone; what is no escape stays, what is no UTF-8 becomes U+FFFD.
pub fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}
