//! A line of a table that people read: a name, and how many tokens.
//!
//! Words for people alone: nothing is decided by them.

use std::fmt;

pub(super) fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    width: usize,
    tokens: u64,
    how: Option<&str>,
) -> fmt::Result {
    let (tokens, width) = (grouped(tokens), width.saturating_sub(name.len() + 1));
    write!(f, "  {name} {tokens:>width$} tokens")?;
    match how {
        Some(how) => writeln!(f, " ({how})"),
        None => writeln!(f),
    }
}

/// With a comma at every third digit: `52,100`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
