//! Features of a text: its tokens in a public vocabulary, counted by kind, length and rareness.
//!
//! If a model's own tokenizer is not public, its token count follows from these features far better than from
//! the text's length (`docs/estimates.md` 1.3). Only counts are stored, not the text. Rareness tells as much
//! as the kind: vocabularies are sorted by how often tokens were merged, and a token that is rare in one is
//! several tokens in another.

/// The number of token kinds.
const KINDS: usize = TokenKind::Drawing as usize + 1;
/// Length classes of a token: 1, 2, 3, up to 6 bytes, and more; of a drawing, in characters: 1, 2, up to 5,
/// up to 15, and more.
const LENGTHS: usize = 5;
/// Bytes of a token of each length class.
const BYTES: [f64; LENGTHS] = [1.0, 2.0, 3.0, 5.0, 9.0];
/// Rareness classes by rank, in a vocabulary of 200,000 tokens: the first 4,000, up to 20,000, up to 70,000,
/// and the rest.
const RARENESS: usize = 4;
/// The number of classes that describe a text.
pub(super) const CLASSES: usize = KINDS * LENGTHS * RARENESS;
/// The number of features of a text that the regression receives.
pub(super) const ROUGH: usize = 12;

/// The number of tokens of each class in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCounts(pub [u32; CLASSES]);

impl Default for ClassCounts {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl ClassCounts {
    pub(super) fn add(&mut self, class: u8) {
        if let Some(count) = self.0.get_mut(usize::from(class)) {
            *count += 1;
        }
    }

    /// Adds the counts of a sample as if it were `times` as long.
    pub(super) fn stretch(&mut self, sample: &Self, times: f64) {
        for (all, count) in self.0.iter_mut().zip(&sample.0) {
            *all = all.saturating_add((f64::from(*count) * times) as u32);
        }
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// The features for the regression: all tokens; blanks; line ends; symbols; letters with symbols;
    /// numbers, and their digits; capitalized ones; letters beyond ASCII, and their bytes; the rarer tokens,
    /// and the rarest. Some tokenizers make one token of each digit, and few know other scripts as well.
    pub(super) fn rough(&self) -> [f64; ROUGH] {
        let sums = self.sums();
        let capitals = [TokenKind::Title, TokenKind::SpacedTitle, TokenKind::Capitals];
        [
            self.tokens() as f64,
            sums.tokens(TokenKind::Blank),
            sums.tokens(TokenKind::Line),
            sums.tokens(TokenKind::Sign),
            sums.tokens(TokenKind::Mixed),
            sums.tokens(TokenKind::Digits),
            sums.bytes(TokenKind::Digits),
            capitals.into_iter().map(|kind| sums.tokens(kind)).sum(),
            sums.tokens(TokenKind::Foreign) + sums.tokens(TokenKind::Drawing),
            // The length classes of drawings count characters, of three bytes each.
            sums.bytes(TokenKind::Foreign) + 3.0 * sums.bytes(TokenKind::Drawing),
            sums.rare[2] as f64,
            sums.rare[3] as f64,
        ]
    }

    fn sums(&self) -> KindSums {
        let mut sums = KindSums::default();
        let kinds = self.0.as_chunks::<{ LENGTHS * RARENESS }>().0;
        for (kind, lengths) in kinds.iter().enumerate() {
            for (counts, width) in lengths.as_chunks::<RARENESS>().0.iter().zip(BYTES) {
                // A short text has tokens of few classes only.
                if *counts == [0; RARENESS] {
                    continue;
                }
                let tokens = counts.iter().map(|count| u64::from(*count)).sum::<u64>();
                sums.tokens[kind] += tokens;
                sums.bytes[kind] += tokens as f64 * width;
                // Scripts beyond ASCII are rare as such; their rareness says nothing more.
                if kind < TokenKind::Foreign as usize {
                    for (rare, count) in sums.rare.iter_mut().zip(counts) {
                        *rare += u64::from(*count);
                    }
                }
            }
        }
        sums
    }
}

/// Sums over the classes of a text.
#[derive(Default)]
struct KindSums {
    /// The tokens of each kind.
    tokens: [u64; KINDS],
    /// The bytes of the tokens of each kind, approximate for long tokens.
    bytes: [f64; KINDS],
    /// The tokens of each rareness, without those beyond ASCII.
    rare: [u64; RARENESS],
}

impl KindSums {
    fn tokens(&self, kind: TokenKind) -> f64 {
        self.tokens[kind as usize] as f64
    }

    fn bytes(&self, kind: TokenKind) -> f64 {
        self.bytes[kind as usize]
    }
}

pub(super) fn class(token: &[u8], rank: usize) -> u8 {
    let kind = kind(token);
    let length = match (kind, token.len()) {
        (TokenKind::Drawing, bytes) => match bytes / 3 {
            0..=1 => 0,
            2 => 1,
            3..=5 => 2,
            6..=15 => 3,
            _ => 4,
        },
        (_, bytes @ 0..=3) => bytes.saturating_sub(1),
        (_, 4..=6) => 3,
        _ => 4,
    };
    let rareness = match rank {
        0..4_000 => 0,
        4_000..20_000 => 1,
        20_000..70_000 => 2,
        _ => 3,
    };
    ((kind as usize * LENGTHS + length) * RARENESS + rareness) as u8
}

/// What kind of text a token is.
#[derive(Clone, Copy)]
enum TokenKind {
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
    /// Lines and blocks of tables and frames, as long as what they frame.
    Drawing,
}

fn kind(token: &[u8]) -> TokenKind {
    let has_letters = any(token, u8::is_ascii_alphabetic);
    if !token.is_ascii() {
        if is_drawing(token) { TokenKind::Drawing } else { TokenKind::Foreign }
    } else if any(token, |byte| matches!(byte, b'\n' | b'\r')) {
        let is_blank = token.iter().all(u8::is_ascii_whitespace);
        if is_blank { TokenKind::Line } else { TokenKind::Mixed }
    } else if has_letters && any(token, |byte| !byte.is_ascii_alphabetic() && *byte != b' ') {
        TokenKind::Mixed
    } else if any(token, u8::is_ascii_lowercase) {
        match (any(token, u8::is_ascii_uppercase), token.starts_with(b" ")) {
            (false, false) => TokenKind::Word,
            (false, true) => TokenKind::SpacedWord,
            (true, false) => TokenKind::Title,
            (true, true) => TokenKind::SpacedTitle,
        }
    } else if has_letters {
        TokenKind::Capitals
    } else if any(token, u8::is_ascii_digit) {
        TokenKind::Digits
    } else if any(token, u8::is_ascii_graphic) {
        TokenKind::Sign
    } else {
        TokenKind::Blank
    }
}

fn any(token: &[u8], predicate: fn(&u8) -> bool) -> bool {
    token.iter().any(predicate)
}

fn is_drawing(token: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(token) else { return false };
    // Box drawing and block elements.
    text.chars().all(|sign| matches!(sign, ' ' | '\u{2500}'..='\u{259f}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Box-drawing characters were once in one class with text in other scripts, whatever their length.
    #[test]
    fn box_drawing_lines_are_not_in_token_class_of_other_scripts() {
        let lines = ["─", "──", "────", "────────", "────────────────", "日本語テ"];
        let classes: Vec<u8> = lines.iter().map(|line| class(line.as_bytes(), 90_000)).collect();
        let mut sorted = classes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), lines.len(), "{classes:?}");
    }

    #[test]
    fn tokens_classified_by_characters() {
        let kinds = [
            ("  ", 400, TokenKind::Blank, 1, 0),
            ("\n\n", 400, TokenKind::Line, 1, 0),
            ("123", 7_000, TokenKind::Digits, 2, 1),
            ("the", 3_999, TokenKind::Word, 2, 0),
            (" the", 4_000, TokenKind::SpacedWord, 3, 1),
            ("Hello", 19_999, TokenKind::Title, 3, 1),
            (" Anchored", 150_000, TokenKind::SpacedTitle, 4, 3),
            ("HTTP", 20_000, TokenKind::Capitals, 3, 2),
            ("();", 70_000, TokenKind::Sign, 2, 3),
            (");\n", 69_999, TokenKind::Mixed, 2, 2),
            ("-name", 0, TokenKind::Mixed, 3, 0),
            ("日本語テ", 199_000, TokenKind::Foreign, 4, 3),
        ];
        for (token, rank, kind, length, rareness) in kinds {
            let expected = (kind as usize * LENGTHS + length) * RARENESS + rareness;
            assert_eq!(usize::from(class(token.as_bytes(), rank)), expected, "{token:?}");
        }
        assert!(usize::from(class(b"", 0)) < CLASSES);
        assert!(CLASSES <= 1 + usize::from(u8::MAX));
        assert!(usize::from(class("─".repeat(40).as_bytes(), 199_000)) < CLASSES);
    }

    #[test]
    fn numbers_and_other_scripts_are_weighed_by_their_bytes_too() {
        let mut tally = ClassCounts::default();
        for (token, rank) in
            [("123", 900), ("7", 20), (" the", 5), ("日", 30_000), (" Anchored", 150_000)]
        {
            tally.add(class(token.as_bytes(), rank));
        }
        let [all, .., numbers, digits, capitals, foreign, bytes, rarer, rarest] = tally.rough();
        assert_eq!(all, 5.0);
        assert_eq!(numbers, 2.0);
        assert_eq!(digits, 4.0);
        assert_eq!(capitals, 1.0);
        assert_eq!(foreign, 1.0);
        assert_eq!(bytes, 3.0);
        assert_eq!(rarer, 0.0);
        assert_eq!(rarest, 1.0);
    }
}
