//! Splits text into the pieces within which byte pairs are merged: the published patterns of o200k and
//! cl100k, written by hand, and the words of a SentencePiece vocabulary.
//!
//! The patterns are regular expressions with look-ahead; an engine for them is slower than the merging. Each
//! function below is one alternative, in the pattern's order. Every character is in exactly one piece.

use std::collections::HashSet;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// Which pattern splits the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitPattern {
    O200k,
    Cl100k,
}

pub(super) fn pieces(rules: SplitPattern, text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = length(rules, rest)?;
        let (piece, after) = rest.split_at_checked(length)?;
        rest = after;
        Some(piece)
    })
}

/// The character classes of the patterns, each a bit of a [`ClassSet`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    /// `\p{Lu}` and `\p{Lt}`
    Upper = 1,
    /// `\p{Ll}`
    Lower = 2,
    /// `\p{Lm}` and `\p{Lo}`: counts as upper and lower case.
    Letter = 4,
    /// `\p{M}`: counts as upper and lower case, but not as a letter.
    Mark = 8,
    /// `\p{N}`
    Number = 16,
    /// `\s`, including line ends.
    Space = 32,
    /// Anything else.
    Sign = 64,
}

/// Classes, as bits.
type ClassSet = u8;

const LETTERS: ClassSet = Class::Upper as u8 | Class::Lower as u8 | Class::Letter as u8;
const UPPER: ClassSet = Class::Upper as u8 | Class::Letter as u8 | Class::Mark as u8;
const LOWER: ClassSet = Class::Lower as u8 | Class::Letter as u8 | Class::Mark as u8;
const SIGNS: ClassSet = Class::Sign as u8 | Class::Mark as u8;

/// The class of each ASCII character.
const ASCII: [Class; 128] = {
    let mut classes = [Class::Sign; 128];
    let mut code = 0;
    while code < classes.len() {
        classes[code] = match code as u8 {
            b'a'..=b'z' => Class::Lower,
            b'A'..=b'Z' => Class::Upper,
            b'0'..=b'9' => Class::Number,
            b' ' | b'\t'..=b'\r' => Class::Space,
            _ => Class::Sign,
        };
        code += 1;
    }
    classes
};

/// The class of each byte as a set; none of a byte that is no ASCII character.
const BYTES: [ClassSet; 256] = {
    let mut sets = [0; 256];
    let mut code = 0;
    while code < ASCII.len() {
        sets[code] = ASCII[code] as ClassSet;
        code += 1;
    }
    sets
};

impl Class {
    fn from_char(character: char) -> Self {
        match ASCII.get(character as usize) {
            Some(class) => *class,
            None if character.is_whitespace() => Class::Space,
            None => Self::from_category(get_general_category(character)),
        }
    }

    fn from_category(category: Category) -> Self {
        use Category as C;
        match category {
            C::UppercaseLetter | C::TitlecaseLetter => Class::Upper,
            C::LowercaseLetter => Class::Lower,
            C::ModifierLetter | C::OtherLetter => Class::Letter,
            C::NonspacingMark | C::SpacingMark | C::EnclosingMark => Class::Mark,
            C::DecimalNumber | C::LetterNumber | C::OtherNumber => Class::Number,
            _ => Class::Sign,
        }
    }

    fn is_in(self, set: ClassSet) -> bool {
        self as ClassSet & set != 0
    }
}

fn length(rules: SplitPattern, text: &str) -> Option<usize> {
    let initial = text.chars().next()?;
    let class = Class::from_char(initial);
    let word = match rules {
        SplitPattern::O200k => cased_word(text, initial, class),
        SplitPattern::Cl100k => contraction(text).or_else(|| plain_word(text, initial, class)),
    };
    Some(match word {
        Some(length) => length,
        None if class == Class::Number => numbers(text),
        None => signs(rules, text).unwrap_or_else(|| spaces(rules, text)),
    })
}

/// Whether a character may be the lead of a word: `[^\r\n\p{L}\p{N}]`.
fn may_lead(character: char, class: Class) -> bool {
    !matches!(character, '\r' | '\n') && !class.is_in(LETTERS | Class::Number as ClassSet)
}

/// `[^\r\n\p{L}\p{N}]?[upper]*[lower]+` or `…?[upper]+[lower]*`, each with a contraction after it.
fn cased_word(text: &str, first: char, class: Class) -> Option<usize> {
    let lead = first.len_utf8();
    let led = if may_lead(first, class) { cased(&text[lead..]) } else { None };
    let end = match (led, class) {
        (Some((length, true)), _) => lead + length,
        // A mark that does not lead a word of the first form is itself a word of that form.
        (_, Class::Mark) => cased(text)?.0,
        (Some((length, false)), _) => lead + length,
        (None, class) if class.is_in(LETTERS) => cased(text)?.0,
        // What is no letter begins no word of its own.
        (None, _) => return None,
    };
    Some(end + contraction(&text[end..]).unwrap_or(0))
}

/// A word without its lead: its length in bytes, and whether it matches the first form (with a lower-case
/// end).
fn cased(text: &str) -> Option<(usize, bool)> {
    let upper = run(text, UPPER);
    let lower = run(&text[upper..], LOWER);
    if lower > 0 {
        return Some((upper + lower, true));
    }
    // The upper-case run gives back what the lower-case one needs: it ends after its last character that
    // counts as lower case.
    let ends = text[..upper].char_indices().rev();
    let mut lower_ends = ends.filter(|(_, c)| Class::from_char(*c).is_in(LOWER));
    match lower_ends.next() {
        Some((at, last)) => Some((at + last.len_utf8(), true)),
        None if upper > 0 => Some((upper, false)),
        None => None,
    }
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+`
fn plain_word(text: &str, first: char, class: Class) -> Option<usize> {
    let lead = if may_lead(first, class) { first.len_utf8() } else { 0 };
    let letters = run(&text[lead..], LETTERS);
    if letters > 0 { Some(lead + letters) } else { None }
}

fn contraction(text: &str) -> Option<usize> {
    // `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; ſ counts as an s.
    let mut letters = text.strip_prefix('\'')?.chars();
    let initial = letters.next()?;
    let second = letters.next().map(|second| second.to_ascii_lowercase());
    match (initial.to_ascii_lowercase(), second) {
        // ſ takes two bytes.
        ('s' | 't' | 'm' | 'd' | 'ſ', _) => Some(1 + initial.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// `\p{N}{1,3}`
fn numbers(text: &str) -> usize {
    if let [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', ..] = text.as_bytes() {
        return 3;
    }
    let digits = text.chars().take(3).take_while(|c| Class::from_char(*c) == Class::Number);
    digits.map(char::len_utf8).sum()
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`; cl100k without the slash.
fn signs(rules: SplitPattern, text: &str) -> Option<usize> {
    let lead = usize::from(text.starts_with(' '));
    let signs = run(&text[lead..], SIGNS);
    if signs == 0 {
        return None;
    }
    let end = lead + signs;
    let line_ends = text.as_bytes()[end..].iter().take_while(|byte| match byte {
        b'\r' | b'\n' => true,
        b'/' => rules == SplitPattern::O200k,
        _ => false,
    });
    Some(end + line_ends.count())
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`; cl100k takes all white space at the end of the text as one piece.
fn spaces(rules: SplitPattern, text: &str) -> usize {
    let run = run(text, Class::Space as ClassSet);
    let at_end = run == text.len();
    if at_end && rules == SplitPattern::Cl100k {
        return run;
    }
    if let Some(line_end) = text[..run].rfind(['\r', '\n']) {
        return line_end + 1;
    }
    // The last space goes with the word that follows it.
    let width = text[..run].chars().next_back().map_or(1, char::len_utf8);
    if at_end || run == width { run } else { run - width }
}

/// How many bytes from the beginning are characters of these classes.
fn run(text: &str, set: ClassSet) -> usize {
    let bytes = text.as_bytes();
    // Nearly all characters are ASCII and need no decoding.
    let ascii = bytes.iter().position(|byte| BYTES[usize::from(*byte)] & set == 0);
    match ascii {
        None => bytes.len(),
        Some(at) if bytes[at].is_ascii() => at,
        Some(at) => at + wide_run(&text[at..], set),
    }
}

fn wide_run(text: &str, set: ClassSet) -> usize {
    let end = text.char_indices().find(|(_, character)| !Class::from_char(*character).is_in(set));
    end.map_or(text.len(), |(at, _)| at)
}

/// The ASCII characters, and one entry for all others.
const BESIDE: usize = 129;

/// Splits text for a SentencePiece vocabulary: at pieces that are never merged, and between characters that
/// are adjacent in no piece, so that no merge can cross the split.
#[derive(Debug, Default)]
pub(super) struct WordSplitter {
    whole: HashSet<Box<str>>,
    /// The lengths of `whole`, longest first, by first byte.
    lengths: Vec<Vec<usize>>,
    /// Which first two bytes occur in `whole`: this rules out most positions.
    begins: Vec<bool>,
    /// Which pairs of characters are adjacent in some piece, by [`WordSplitter::place`]; all characters
    /// beyond ASCII are one entry.
    joined: Vec<bool>,
}

impl WordSplitter {
    pub(super) fn new(whole: &[String], merged: &[String]) -> Self {
        let mut splitter = Self {
            lengths: vec![Vec::new(); 256],
            begins: vec![false; 256 * 256],
            ..Self::default()
        };
        for text in whole {
            if let Some(first) = text.bytes().next() {
                splitter.lengths[usize::from(first)].push(text.len());
                if let Some(&[first, second]) = text.as_bytes().first_chunk() {
                    splitter.begins[usize::from(first) << 8 | usize::from(second)] = true;
                }
                splitter.whole.insert(text.as_str().into());
            }
        }
        for lengths in &mut splitter.lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        splitter.joined = vec![false; BESIDE * BESIDE];
        for pair in merged.iter().flat_map(|piece| piece.as_bytes().windows(2)) {
            splitter.joined[Self::place(pair[0], pair[1])] = true;
        }
        splitter
    }

    fn place(before: u8, after: u8) -> usize {
        let [row, column] = [before, after].map(|byte| usize::from(byte).min(BESIDE - 1));
        row * BESIDE + column
    }

    pub(super) fn is_whole(&self, text: &str) -> bool {
        self.whole.contains(text)
    }

    /// Calls `each` with every word, and with whether it is a piece that is never merged.
    pub(super) fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str, bool)) {
        let mut start = 0;
        let mut position = 0;
        while let Some(&byte) = text.as_bytes().get(position) {
            if let Some(length) = self.stands_alone(text, position, byte) {
                each(&text[start..position], false);
                each(&text[position..position + length], true);
                position += length;
                start = position;
                continue;
            }
            // The first character of a word has none before it that it could merge with.
            let is_apart =
                position > start && !self.joined[Self::place(text.as_bytes()[position - 1], byte)];
            if is_apart && text.is_char_boundary(position) {
                each(&text[start..position], false);
                start = position;
            }
            position += 1;
        }
        each(&text[start..], false);
    }

    fn stands_alone(&self, text: &str, at: usize, first: u8) -> Option<usize> {
        let lengths = &self.lengths[usize::from(first)];
        let shortest = *lengths.last()?;
        let second = text.as_bytes().get(at + 1);
        let is_long = second
            .is_some_and(|second| self.begins[usize::from(first) << 8 | usize::from(*second)]);
        let longest = if is_long { usize::MAX } else { 1 };
        // Most positions end here, before any text is looked up.
        if shortest > longest {
            return None;
        }
        let mut candidates = lengths.iter().copied().skip_while(|length| *length > longest);
        candidates
            .find(|length| text.get(at..at + length).is_some_and(|piece| self.is_whole(piece)))
    }
}
