//! What text is made of: tokens of a public vocabulary, counted by kind and length.
//!
//! Where a model's own tokenizer is not public, what it makes of a text follows from this far better
//! than from the text's length (`estimator.md` §1). Counts only; the words are not kept.

/// How many kinds of tokens there are.
const KINDS: usize = Kind::Foreign as usize + 1;
/// How long it is: 1, 2, 3, 4, up to 6, up to 9 bytes, and more.
const LENGTHS: usize = 7;
/// Numbers that a text is told by.
pub const CLASSES: usize = KINDS * LENGTHS;

/// How many tokens of each class some text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally(pub [u32; CLASSES]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl Tally {
    /// One token more; `class` as [`class`] says.
    pub(super) fn add(&mut self, class: u8) {
        if let Some(count) = self.0.get_mut(usize::from(class)) {
            *count += 1;
        }
    }

    /// What was added since `before`, weighed by class.
    pub(super) fn weighed_since(&self, before: &Self, weights: &[f32; CLASSES]) -> f64 {
        let added = self.0.iter().zip(&before.0).map(|(now, before)| now.wrapping_sub(*before));
        added.zip(weights).map(|(count, weight)| f64::from(count) * f64::from(*weight)).sum()
    }

    /// Adds a sample of a text as if it were `times` as long.
    pub(super) fn stretch(&mut self, sample: &Self, times: f64) {
        for (all, count) in self.0.iter_mut().zip(&sample.0) {
            *all = all.saturating_add((f64::from(*count) * times) as u32);
        }
    }

    /// Tokens of all classes.
    pub fn tokens(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Tokens of one kind.
    fn of(&self, kind: Kind) -> f64 {
        let from = kind as usize * LENGTHS;
        self.0.iter().skip(from).take(LENGTHS).map(|count| f64::from(*count)).sum()
    }

    /// What a regression is given of a text: tokens; those with line ends, signs, digits, capitals,
    /// and letters beyond ASCII.
    pub fn rough(&self) -> [f64; 6] {
        let capitals = [Kind::Title, Kind::SpacedTitle, Kind::Capitals];
        [
            self.tokens() as f64,
            self.of(Kind::Line),
            self.of(Kind::Sign) + self.of(Kind::Mixed),
            self.of(Kind::Digits),
            capitals.into_iter().map(|kind| self.of(kind)).sum(),
            self.of(Kind::Foreign),
        ]
    }
}

/// The class of a token, by its bytes.
pub(super) fn class(token: &[u8]) -> u8 {
    let length = match token.len() {
        0..=4 => token.len().saturating_sub(1),
        5..=6 => 4,
        7..=9 => 5,
        _ => 6,
    };
    (kind(token) as usize * LENGTHS + length) as u8
}

/// What a token looks like.
#[derive(Clone, Copy)]
enum Kind {
    Blank,
    Line,
    Digits,
    Word,
    SpacedWord,
    Title,
    SpacedTitle,
    Capitals,
    Sign,
    Mixed,
    Foreign,
}

fn kind(token: &[u8]) -> Kind {
    let any = |is: fn(&u8) -> bool| token.iter().any(is);
    let spaced = token.first() == Some(&b' ');
    let letters = any(u8::is_ascii_alphabetic);
    if any(|byte| !byte.is_ascii()) {
        Kind::Foreign
    } else if any(|byte| matches!(byte, b'\n' | b'\r')) {
        if any(|byte| !byte.is_ascii_whitespace()) { Kind::Mixed } else { Kind::Line }
    } else if letters && any(|byte| !byte.is_ascii_alphabetic() && *byte != b' ') {
        Kind::Mixed
    } else if any(u8::is_ascii_lowercase) {
        match (any(u8::is_ascii_uppercase), spaced) {
            (false, false) => Kind::Word,
            (false, true) => Kind::SpacedWord,
            (true, false) => Kind::Title,
            (true, true) => Kind::SpacedTitle,
        }
    } else if letters {
        Kind::Capitals
    } else if any(u8::is_ascii_digit) {
        Kind::Digits
    } else if any(u8::is_ascii_graphic) {
        Kind::Sign
    } else {
        Kind::Blank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_by_their_looks() {
        let kinds = [
            ("  ", Kind::Blank, 1),
            ("\n\n", Kind::Line, 1),
            ("123", Kind::Digits, 2),
            ("the", Kind::Word, 2),
            (" the", Kind::SpacedWord, 3),
            ("Hello", Kind::Title, 4),
            (" Anchored", Kind::SpacedTitle, 5),
            ("HTTP", Kind::Capitals, 3),
            ("();", Kind::Sign, 2),
            (");\n", Kind::Mixed, 2),
            ("-name", Kind::Mixed, 4),
            ("日本語テ", Kind::Foreign, 6),
        ];
        for (token, kind, length) in kinds {
            let expected = kind as usize * LENGTHS + length;
            assert_eq!(usize::from(class(token.as_bytes())), expected, "{token:?}");
        }
        assert!(usize::from(class(b"")) < CLASSES);
    }
}
