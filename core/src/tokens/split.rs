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

/// The pieces of `text`, in order.
pub(super) fn pieces(rules: SplitPattern, text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = length(rules, rest)?;
        let (piece, after) = rest.split_at_checked(length)?;
        rest = after;
        Some(piece)
    })
}

/// The character classes of the patterns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// `\p{Lu}` and `\p{Lt}`
    Upper,
    /// `\p{Ll}`
    Lower,
    /// `\p{Lm}` and `\p{Lo}`: counts as upper and lower case.
    Letter,
    /// `\p{M}`: counts as upper and lower case, but not as a letter.
    Mark,
    /// `\p{N}`
    Number,
    /// `\s`, including line ends.
    Space,
    /// Anything else.
    Sign,
}

/// The class of each ASCII character.
const ASCII: [Class; 128] = {
    let mut classes = [Class::Sign; 128];
    let mut at = 0;
    while at < classes.len() {
        classes[at] = match at as u8 {
            b'a'..=b'z' => Class::Lower,
            b'A'..=b'Z' => Class::Upper,
            b'0'..=b'9' => Class::Number,
            b' ' | b'\t'..=b'\r' => Class::Space,
            _ => Class::Sign,
        };
        at += 1;
    }
    classes
};

impl Class {
    fn of(character: char) -> Self {
        match ASCII.get(character as usize) {
            Some(class) => *class,
            None if character.is_whitespace() => Class::Space,
            None => Self::of_category(get_general_category(character)),
        }
    }

    fn of_category(category: Category) -> Self {
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

    fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Letter)
    }

    fn counts_upper(self) -> bool {
        matches!(self, Class::Upper | Class::Letter | Class::Mark)
    }

    fn counts_lower(self) -> bool {
        matches!(self, Class::Lower | Class::Letter | Class::Mark)
    }
}

/// Bytes of the first piece; `None` at the end of the text.
fn length(rules: SplitPattern, text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let class = Class::of(first);
    let word = match rules {
        SplitPattern::O200k => cased_word(text, first, class),
        SplitPattern::Cl100k => contraction(text).or_else(|| plain_word(text, first, class)),
    };
    Some(match word {
        Some(length) => length,
        None if class == Class::Number => numbers(text),
        None => signs(rules, text).unwrap_or_else(|| spaces(rules, text)),
    })
}

/// Whether a character may be the lead of a word: `[^\r\n\p{L}\p{N}]`.
fn may_lead(character: char, class: Class) -> bool {
    !matches!(character, '\r' | '\n') && !class.is_letter() && class != Class::Number
}

/// `[^\r\n\p{L}\p{N}]?[upper]*[lower]+` or `…?[upper]+[lower]*`, each with a contraction after it.
fn cased_word(text: &str, first: char, class: Class) -> Option<usize> {
    let lead = first.len_utf8();
    let led = may_lead(first, class).then(|| cased(&text[lead..])).flatten();
    let end = match (led, class) {
        (Some((length, true)), _) => lead + length,
        // A mark that does not lead a word of the first form is itself a word of that form.
        (_, Class::Mark) => cased(text)?.0,
        (Some((length, false)), _) => lead + length,
        (None, _) => cased(text)?.0,
    };
    Some(end + contraction(&text[end..]).unwrap_or(0))
}

/// A word without its lead: its length in bytes, and whether it matches the first form (with a lower-case
/// end).
fn cased(text: &str) -> Option<(usize, bool)> {
    let upper = run(text, Class::counts_upper);
    let lower = run(&text[upper..], Class::counts_lower);
    if lower > 0 {
        return Some((upper + lower, true));
    }
    // The upper-case run gives back what the lower-case one needs: it ends after its last character that
    // counts as lower case.
    let ends = text[..upper].char_indices().rev();
    let mut lower_ends = ends.filter(|(_, c)| Class::of(*c).counts_lower());
    match lower_ends.next() {
        Some((at, last)) => Some((at + last.len_utf8(), true)),
        None => (upper > 0).then_some((upper, false)),
    }
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+`
fn plain_word(text: &str, first: char, class: Class) -> Option<usize> {
    let lead = if may_lead(first, class) { first.len_utf8() } else { 0 };
    let letters = run(&text[lead..], Class::is_letter);
    (letters > 0).then_some(lead + letters)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; ſ counts as an s.
fn contraction(text: &str) -> Option<usize> {
    let after = text.strip_prefix('\'')?;
    let mut letters = after.chars();
    let first = letters.next()?;
    let second = letters.next().map(|second| second.to_ascii_lowercase());
    match (first.to_ascii_lowercase(), second) {
        ('s' | 't' | 'm' | 'd' | 'ſ', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// `\p{N}{1,3}`
fn numbers(text: &str) -> usize {
    let digits = text.chars().take(3).take_while(|c| Class::of(*c) == Class::Number);
    digits.map(char::len_utf8).sum()
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`; cl100k without the slash.
fn signs(rules: SplitPattern, text: &str) -> Option<usize> {
    let lead = usize::from(text.starts_with(' '));
    let signs = run(&text[lead..], |class| matches!(class, Class::Sign | Class::Mark));
    let end = lead + signs;
    let ends = |byte: &u8| match byte {
        b'\r' | b'\n' => true,
        b'/' => rules == SplitPattern::O200k,
        _ => false,
    };
    (signs > 0).then(|| end + text.as_bytes()[end..].iter().take_while(|byte| ends(byte)).count())
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`; cl100k takes all white space at the end of the text as one piece.
fn spaces(rules: SplitPattern, text: &str) -> usize {
    let run = run(text, |class| class == Class::Space);
    let at_end = run == text.len();
    if at_end && rules == SplitPattern::Cl100k {
        return run;
    }
    if let Some(line_end) = text[..run].rfind(['\r', '\n']) {
        return line_end + 1;
    }
    let last = text[..run].chars().next_back().map_or(1, char::len_utf8);
    if at_end || run == last { run } else { run - last }
}

/// The length in bytes of the leading run of characters whose class `belongs`. Nearly all are ASCII and need
/// no decoding.
fn run(text: &str, belongs: impl Fn(Class) -> bool) -> usize {
    for (at, byte) in text.bytes().enumerate() {
        match ASCII.get(usize::from(byte)) {
            Some(class) if belongs(*class) => {}
            Some(_) => return at,
            None => return at + wide_run(&text[at..], belongs),
        }
    }
    text.len()
}

fn wide_run(text: &str, belongs: impl Fn(Class) -> bool) -> usize {
    let end = text.char_indices().find(|(_, character)| !belongs(Class::of(*character)));
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
    /// `whole` are the pieces that are never merged, `merged` all others.
    pub(super) fn new(whole: &[String], merged: &[String]) -> Self {
        let (lengths, begins) = (vec![Vec::new(); 256], vec![false; 256 * 256]);
        let mut splitter = Self { lengths, begins, ..Self::default() };
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
        let of = |byte: u8| usize::from(byte).min(BESIDE - 1);
        of(before) * BESIDE + of(after)
    }

    /// Whether the text is a piece that is never merged.
    pub(super) fn is_whole(&self, text: &str) -> bool {
        self.whole.contains(text)
    }

    /// Calls `each` with every word, and with whether it is a piece that is never merged.
    pub(super) fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str, bool)) {
        let (mut start, mut at) = (0, 0);
        while let Some(&byte) = text.as_bytes().get(at) {
            if let Some(length) = self.stands_alone(text, at, byte) {
                each(&text[start..at], false);
                each(&text[at..at + length], true);
                at += length;
                start = at;
                continue;
            }
            let before = text.as_bytes()[..at].last().filter(|_| at > start);
            let apart = before.is_some_and(|before| !self.joined[Self::place(*before, byte)]);
            if apart && text.is_char_boundary(at) {
                each(&text[start..at], false);
                start = at;
            }
            at += 1;
        }
        each(&text[start..], false);
    }

    /// The length in bytes of the longest never-merged piece that begins here.
    fn stands_alone(&self, text: &str, at: usize, first: u8) -> Option<usize> {
        let lengths = &self.lengths[usize::from(first)];
        let shortest = *lengths.last()?;
        let second = text.as_bytes().get(at + 1);
        let is_long = second
            .is_some_and(|second| self.begins[usize::from(first) << 8 | usize::from(*second)]);
        let longest = if is_long { usize::MAX } else { 1 };
        let whole =
            |length: &&usize| text.get(at..at + **length).is_some_and(|it| self.is_whole(it));
        let mut candidates = lengths.iter().skip_while(|length| **length > longest);
        if shortest > longest { None } else { candidates.find(whole).copied() }
    }
}
