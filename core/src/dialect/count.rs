//! One number of a report: what it may be, and how repeated reports are merged (`docs/protocols.md` 0).
//!
//! Reports are cumulative, so a count never falls: a later 0 or null says nothing. Only Gemini's prompts are corrected. A
//! count that cannot be is no count.

use serde::{Deserialize, Deserializer};

use crate::wire::json::{Kind, Value};

/// The largest count: past it, other readers of JSON round, and sums of a database overflow.
const MOST: u64 = 1 << 53;

/// A count, as far as it was reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    most: Option<u64>,
    /// A number was reported that is no count: negative, not whole, or larger than any.
    is_impossible: bool,
}

impl Count {
    pub(super) fn from_member(value: Option<Value<'_>>) -> Self {
        // What is no number was not reported.
        let number = value.filter(|value| value.kind() == Kind::Number);
        let count = number.and_then(|number| number.as_u64()).filter(|count| *count <= MOST);
        Self { most: count, is_impossible: number.is_some() && count.is_none() }
    }

    /// The largest of several spellings of the same number: one that is 0 was not filled in.
    pub(super) fn of_any(spellings: &[Option<Value<'_>>]) -> Self {
        let mut largest = Self::default();
        for spelling in spellings {
            largest.grow(Self::from_member(*spelling));
        }
        largest
    }

    /// This report, or an earlier one where nothing was reported.
    pub(super) fn or(self, earlier: Self) -> Self {
        if self == Self::default() { earlier } else { self }
    }

    /// Takes over a later report, unless that is smaller. Returns whether the count is larger than before.
    pub(super) fn grow(&mut self, later: Self) -> bool {
        let is_larger = later.most > self.most;
        self.most = self.most.max(later.most);
        self.is_impossible |= later.is_impossible;
        is_larger
    }

    /// Takes over a later report, also a smaller one, but no 0: for a prompt that is counted better at the end.
    pub(super) fn correct(&mut self, later: Self) {
        let is_reported = later.most.is_some_and(|count| count > 0) || self.most.is_none();
        if is_reported {
            self.most = later.most;
        }
        self.is_impossible |= later.is_impossible;
    }

    /// The sum of two parts; what was not reported adds nothing.
    pub(super) fn plus(self, other: Self) -> Self {
        let is_impossible = self.is_impossible || other.is_impossible;
        let sum = match (self.most, other.most) {
            _ if is_impossible => None,
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
        };
        Self { most: sum, is_impossible }
    }

    /// The count; `None` if it was not reported, or cannot be.
    pub(super) fn value(self) -> Option<u64> {
        self.most
    }

    /// Whether the only numbers that were reported cannot be.
    pub(super) fn is_unknown(self) -> bool {
        self.is_impossible && self.most.is_none()
    }

    /// Whether any of these had a number that cannot be.
    pub(super) fn any_impossible(counts: &[Self]) -> bool {
        counts.iter().any(|count| count.is_impossible)
    }
}

/// A stored count: an older version stored whatever was reported.
pub(super) fn stored_count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<u64>::deserialize(from)?.filter(|count| *count <= MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Document;

    fn read(number: &str) -> Count {
        let document = Document::read(number.as_bytes()).unwrap();
        Count::from_member(document.root(number.as_bytes()))
    }

    #[test]
    fn count_is_whole_number_that_everybody_can_read() {
        for (number, count) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("12.0", Some(12)),
            ("9007199254740992", Some(MOST)),
            ("9007199254740993", None),
            ("9223372036854775808", None),
            ("1e300", None),
            ("-1", None),
            ("0.5", None),
        ] {
            assert_eq!(read(number).value(), count);
            assert_eq!(read(number).is_unknown(), count.is_none());
        }
        for nothing in ["null", "\"12\"", "{}", "[]", "true"] {
            assert_eq!(read(nothing), Count::default(), "{nothing}");
        }
    }

    #[test]
    fn count_never_falls() {
        let mut count = read("500");
        for later in ["0", "null", "-3", "9223372036854775808", "499"] {
            assert!(!count.grow(read(later)), "{later}");
            assert_eq!(count.value(), Some(500), "{later}");
            assert!(!count.is_unknown(), "{later}");
        }
        assert!(count.grow(read("501")));
        assert_eq!(count.value(), Some(501));
        assert!(Count::any_impossible(&[Count::default(), count]));
        for (later, corrected) in [("0", 501), ("null", 501), ("-3", 501), ("17", 17)] {
            count.correct(read(later));
            assert_eq!(count.value(), Some(corrected), "{later}");
        }
    }
}
