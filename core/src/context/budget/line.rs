//! A line of a table for people: a name and a number of tokens.
//!
//! For display only; nothing is decided by it.

use std::fmt;

pub(super) fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    width: usize,
    tokens: u64,
    how: Option<&str>,
) -> fmt::Result {
    let tokens = grouped(tokens);
    let width = width.saturating_sub(name.len() + 1);
    write!(f, "  {name} {tokens:>width$} tokens")?;
    match how {
        Some(how) => writeln!(f, " ({how})"),
        None => writeln!(f),
    }
}

/// A number with a comma after every third digit: `52,100`.
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
