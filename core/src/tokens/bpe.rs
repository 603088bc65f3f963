//! Byte-pair encoding: o200k and cl100k exactly, and a SentencePiece vocabulary that the operator provides.
//!
//! A vocabulary is loaded on first need, by a caller that can wait; until then text is counted by its length.
//! Must not know what the text is. Counting is linear in the text, even if the text has no break, and never
//! panics. Written here because the existing crates take ten times this memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::features::{self, ClassCounts};
use super::sentencepiece::{self, VocabularyError, VocabularyPieces};
use super::split::{SplitPattern, WordSplitter, pieces};
use crate::dialect::models::Family;

/// One vocabulary, ready for counting: about 4.5 MB.
pub struct Encoding {
    splits: TextSplitter,
    /// Every token's bytes, one after the other.
    bytes: Box<[u8]>,
    /// The offset in `bytes` at which each token begins, by rank, and one past the last.
    starts: Box<[u32]>,
    /// The rank of each token of one byte, or [`NONE`].
    singles: Box<[u32]>,
    /// The rank of each token of two bytes, by both, or [`NONE`].
    pairs: Box<[u32]>,
    /// The ranks of longer tokens: an open-addressing hash table by their bytes; a free slot is [`NONE`].
    slots: Box<[u32]>,
    /// The class of each token, by rank (see [`features`]).
    classes: Box<[u8]>,
}

/// How text is split before anything is merged.
enum TextSplitter {
    /// By a published pattern; single bytes are merged.
    Pattern(SplitPattern),
    /// At spaces and at the pieces that are never merged; characters are merged.
    Words(WordSplitter),
}

const NONE: u32 = u32::MAX;

/// The public vocabulary of `family`, or the nearest one, if it is loaded.
pub(super) fn loaded(family: Family) -> Option<&'static Encoding> {
    if let Some(own) = own(family) {
        return Some(own);
    }
    vocabulary(family).encoding.get().and_then(Option::as_ref)
}

/// Whether the vocabulary of `family` should be loaded now: true only for the first caller, which then calls
/// [`load`] on a thread where waiting does no harm.
pub fn is_wanted(family: Family) -> bool {
    let vocabulary = vocabulary(family);
    own(family).is_none()
        && vocabulary.encoding.get().is_none()
        && !vocabulary.is_requested.swap(true, Ordering::Relaxed)
}

/// Like [`loaded`], but waits until the vocabulary is loaded (some 30 ms).
pub fn load(family: Family) -> Option<&'static Encoding> {
    own(family).or_else(|| vocabulary(family).load())
}

fn own(family: Family) -> Option<&'static Encoding> {
    if family == Family::Gemini { GEMINI.get() } else { None }
}

struct Vocabulary {
    packed: &'static [u8],
    rules: SplitPattern,
    is_requested: AtomicBool,
    /// `None` inside if the data is damaged, which cannot happen: it is embedded in the program.
    encoding: OnceLock<Option<Encoding>>,
}

static O200K: Vocabulary = Vocabulary {
    packed: include_bytes!("data/o200k.bin.zst"),
    rules: SplitPattern::O200k,
    is_requested: AtomicBool::new(false),
    encoding: OnceLock::new(),
};

static CL100K: Vocabulary = Vocabulary {
    packed: include_bytes!("data/cl100k.bin.zst"),
    rules: SplitPattern::Cl100k,
    is_requested: AtomicBool::new(false),
    encoding: OnceLock::new(),
};

/// Gemini's own vocabulary, if the operator provided it: its license terms do not allow us to embed it.
static GEMINI: OnceLock<Encoding> = OnceLock::new();

/// Provides the vocabulary of Gemini's tokenizer as Gemma's `tokenizer.model` or `tokenizer.json`: from then
/// on Gemini's tokens are counted, not estimated. Takes some 200 ms. A second vocabulary is ignored.
///
/// # Errors
/// If the file is not such a vocabulary.
pub fn provide(file: &[u8]) -> Result<(), VocabularyError> {
    let encoding = Encoding::from_pieces(&sentencepiece::read(file)?);
    GEMINI.get_or_init(|| encoding);
    Ok(())
}

/// Checks whether a file is a vocabulary that can be provided.
///
/// # Errors
/// The reason why it cannot.
pub fn fits(file: &[u8]) -> Result<(), VocabularyError> {
    sentencepiece::read(file).map(drop)
}

pub(super) fn is_exact(family: Family) -> bool {
    match family {
        Family::O200k | Family::Cl100k => true,
        Family::Gemini => GEMINI.get().is_some(),
        Family::Claude | Family::ClaudeNew | Family::Other => false,
    }
}

fn vocabulary(family: Family) -> &'static Vocabulary {
    match family {
        Family::Cl100k => &CL100K,
        Family::O200k | Family::Gemini | Family::Claude | Family::ClaudeNew | Family::Other => {
            &O200K
        }
    }
}

impl Vocabulary {
    fn load(&'static self) -> Option<&'static Encoding> {
        self.encoding
            .get_or_init(|| {
                let tokens = zstd::decode_all(self.packed).ok()?;
                Some(Encoding::packed(self.rules, &tokens))
            })
            .as_ref()
    }
}

impl Encoding {
    /// Builds from tokens in the order of their ranks, each as its length in one byte and then its bytes.
    fn packed(rules: SplitPattern, mut packed: &[u8]) -> Self {
        let mut tokens = Vec::new();
        while let Some((&length, rest)) = packed.split_first() {
            tokens.push(rest.get(..length as usize).unwrap_or_default());
            packed = rest.get(length as usize..).unwrap_or_default();
        }
        Self::new(TextSplitter::Pattern(rules), &tokens)
    }

    fn from_pieces(pieces: &VocabularyPieces) -> Self {
        let tokens: Vec<&[u8]> = pieces.merged.iter().map(String::as_bytes).collect();
        let words = WordSplitter::new(&pieces.whole, &pieces.merged);
        Self::new(TextSplitter::Words(words), &tokens)
    }

    fn new(splits: TextSplitter, tokens: &[&[u8]]) -> Self {
        let bytes = tokens.concat().into();
        let mut starts: Vec<u32> = Vec::with_capacity(tokens.len() + 1);
        starts.push(0);
        for token in tokens {
            starts.push(starts.last().copied().unwrap_or_default() + token.len() as u32);
        }
        let slots = vec![NONE; (starts.len() * 2).next_power_of_two()].into();
        let ranked = tokens.iter().enumerate();
        let classes = ranked.map(|(rank, token)| features::class(token, rank)).collect();
        let mut encoding = Self {
            splits,
            bytes,
            starts: starts.into(),
            singles: vec![NONE; 1 << 8].into(),
            pairs: vec![NONE; 1 << 16].into(),
            slots,
            classes,
        };
        for (rank, token) in (0..).zip(tokens) {
            match **token {
                [] => {}
                [byte] => encoding.singles[usize::from(byte)] = rank,
                [first, second] => encoding.pairs[pair_index(first, second)] = rank,
                _ => {
                    let slot = encoding.slot(token);
                    encoding.slots[slot] = rank;
                }
            }
        }
        encoding
    }

    /// Counts the tokens of `text`.
    pub fn count(&self, text: &str) -> usize {
        let mut count = 0;
        self.each(text, |token, _| count += self.cost(token));
        count
    }

    /// Counts the tokens of `text`, and adds their classes to `tally`.
    pub(super) fn tally(&self, text: &str, tally: &mut ClassCounts) -> usize {
        let mut count = 0;
        self.each(text, |token, rank| {
            count += self.cost(token);
            if let Some(rank) = rank.or_else(|| self.rank(token)) {
                tally.add(self.classes[rank as usize]);
            }
        });
        count
    }

    /// What the tokens of `text` cost; adds their classes to `tally`. `costs`: by rank.
    pub(super) fn weigh(&self, text: &str, tally: &mut ClassCounts, costs: &[f32]) -> f64 {
        let mut sum = 0.0;
        self.each(text, |token, rank| {
            if let Some(rank) = rank.or_else(|| self.rank(token)) {
                tally.add(self.classes[rank as usize]);
                sum += f64::from(costs[rank as usize]);
            }
        });
        sum
    }

    /// How often each token occurs in `text`, by rank.
    pub fn ranks(&self, text: &str) -> BTreeMap<u32, u32> {
        let mut ranks = BTreeMap::new();
        self.each(text, |token, rank| {
            if let Some(rank) = rank.or_else(|| self.rank(token)) {
                *ranks.entry(rank).or_default() += 1;
            }
        });
        ranks
    }

    /// The class of each token, by rank.
    pub(super) fn classes(&self) -> &[u8] {
        &self.classes
    }

    /// Calls `each` with every token of a text, in order, and with its rank if that was looked up.
    fn each(&self, text: &str, mut each: impl FnMut(&[u8], Option<u32>)) {
        match &self.splits {
            TextSplitter::Pattern(rules) => {
                for piece in pieces(*rules, text) {
                    self.piece(piece.as_bytes(), &mut each);
                }
            }
            TextSplitter::Words(words) => words.split(text, |word, is_whole| match is_whole {
                true => each(word.as_bytes(), None),
                false => self.piece(word.as_bytes(), &mut each),
            }),
        }
    }

    fn cost(&self, token: &[u8]) -> usize {
        let may_be_unknown = matches!(self.splits, TextSplitter::Words(_)) && token.len() <= 4;
        // A character that is in no vocabulary is counted as its bytes.
        if may_be_unknown && !self.is_known(token) { token.len() } else { 1 }
    }

    fn is_known(&self, token: &[u8]) -> bool {
        match &self.splits {
            // Every byte is a token of the published vocabularies.
            TextSplitter::Pattern(_) => true,
            TextSplitter::Words(words) => {
                self.rank(token).is_some()
                    || std::str::from_utf8(token).is_ok_and(|token| words.is_whole(token))
            }
        }
    }

    /// Calls `each` with every token of a piece, in order; the rank is given only if one token is the whole
    /// piece.
    fn piece(&self, piece: &[u8], mut each: impl FnMut(&[u8], Option<u32>)) {
        if piece.len() < 2 {
            if !piece.is_empty() {
                each(piece, None);
            }
            return;
        }
        if let Some(rank) = self.rank(piece) {
            return each(piece, Some(rank));
        }
        if piece.len() < SHORT {
            return self.merge_short(piece, |token| each(token, None));
        }
        let mut rest = piece;
        while !rest.is_empty() {
            // A window must not end inside a character, whose bytes are merged as one.
            let cut = (WINDOW.min(rest.len())..rest.len()).find(|at| self.begins(rest, *at));
            let (window, tail) = rest.split_at(cut.unwrap_or(rest.len()));
            self.merge_long(window, |token| each(token, None));
            rest = tail;
        }
    }

    /// Whether a unit of merging may begin at this offset: any byte, or only the start of a character.
    fn begins(&self, piece: &[u8], at: usize) -> bool {
        match &self.splits {
            TextSplitter::Pattern(_) => true,
            // The second to fourth byte of a character: 10xxxxxx.
            TextSplitter::Words(_) => piece.get(at).is_none_or(|byte| byte & 0xc0 != 0x80),
        }
    }

    fn merge_short(&self, piece: &[u8], mut each: impl FnMut(&[u8])) {
        // Quadratic, but the fastest for pieces as short as words.
        // The start of each part, and the rank of the token that it and the next part would form.
        let begins = (0..=piece.len()).filter(|at| self.begins(piece, *at));
        let mut parts: Vec<(u32, usize)> = Vec::with_capacity(piece.len() + 1);
        parts.extend(begins.map(|at| (NONE, at)));
        for at in 0..parts.len() {
            parts[at].0 = self.pair(piece, parts[at].1, part_start(&parts, at + 2));
        }
        while let Some(best) = (0..parts.len()).min_by_key(|at| parts[*at].0) {
            if parts[best].0 == NONE {
                break;
            }
            parts.remove(best + 1);
            // Only the merged part and its neighbour on the left form other pairs than before.
            parts[best].0 = self.pair(piece, parts[best].1, part_start(&parts, best + 2));
            if let Some(before) = best.checked_sub(1) {
                parts[before].0 = self.pair(piece, parts[before].1, part_start(&parts, best + 1));
            }
        }
        for part in parts.windows(2) {
            if let Some(token) = piece.get(part[0].1..part[1].1) {
                each(token);
            }
        }
    }

    fn merge_long(&self, piece: &[u8], mut each: impl FnMut(&[u8])) {
        // A heap of pairs and a linked list of neighbours: O(n log n), for text without a break.
        let end = piece.len();
        let mut next: Vec<u32> = (1..=end as u32 + 1).collect();
        let mut before: Vec<u32> = (0..=end as u32).map(|at| at.wrapping_sub(1)).collect();
        let mut alive: Vec<bool> = (0..end).map(|at| self.begins(piece, at)).collect();
        let firsts: Vec<usize> = (0..=end).filter(|at| self.begins(piece, *at)).collect();
        for pair in firsts.windows(2) {
            (next[pair[0]], before[pair[1]]) = (pair[1] as u32, pair[0] as u32);
        }
        let mut pairs = BinaryHeap::new();
        pairs.extend(firsts.iter().filter_map(|at| self.pair_at(piece, &next, *at)));
        while let Some(Reverse((_, at, stop))) = pairs.pop() {
            // A pair is out of date if its parts have changed since it was pushed.
            if !alive[at] || successor(&next, successor(&next, at)) != stop {
                continue;
            }
            let eaten = next[at] as usize;
            alive[eaten] = false;
            next[at] = stop as u32;
            if stop < end {
                before[stop] = at as u32;
            }
            pairs.extend(self.pair_at(piece, &next, at));
            if let Some(left) = before.get(at).filter(|left| (**left as usize) < end) {
                pairs.extend(self.pair_at(piece, &next, *left as usize));
            }
        }
        for at in (0..end).filter(|at| alive[*at]) {
            if let Some(token) = piece.get(at..successor(&next, at).min(end)) {
                each(token);
            }
        }
    }

    fn pair_at(
        &self,
        piece: &[u8],
        next: &[u32],
        at: usize,
    ) -> Option<Reverse<(u32, usize, usize)>> {
        let stop = successor(next, successor(next, at));
        match self.pair(piece, at, stop) {
            NONE => None,
            rank => Some(Reverse((rank, at, stop))),
        }
    }

    fn pair(&self, piece: &[u8], start: usize, end: usize) -> u32 {
        piece.get(start..end).and_then(|pair| self.rank(pair)).unwrap_or(NONE)
    }

    fn rank(&self, bytes: &[u8]) -> Option<u32> {
        let rank = match *bytes {
            [] => NONE,
            [byte] => self.singles[usize::from(byte)],
            [first, second] => self.pairs[pair_index(first, second)],
            _ => self.slots[self.slot(bytes)],
        };
        if rank == NONE { None } else { Some(rank) }
    }

    fn token(&self, rank: u32) -> &[u8] {
        let [start, end] = [rank, rank + 1].map(|at| self.starts[at as usize] as usize);
        &self.bytes[start..end]
    }

    fn slot(&self, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) as usize & mask;
        // Half of the slots are free, so the search ends.
        while self.slots[slot] != NONE && self.token(self.slots[slot]) != bytes {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

fn pair_index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// A hash for [`Encoding::slots`]. Nearly all tokens have at most 16 bytes, for which two words and a product are enough.
fn hash(bytes: &[u8]) -> u64 {
    let words = if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        [first, last].map(|word| u32::from_le_bytes(*word).into())
    } else {
        return bytes.iter().fold(0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FACTOR))
            >> 32;
    };
    if bytes.len() > 16 {
        return xxh3_64(bytes);
    }
    let product =
        u128::from(words[0] ^ FACTOR) * u128::from(words[1].rotate_left(32) ^ bytes.len() as u64);
    (product ^ product >> 64) as u64
}

/// An odd number with as many bits set as not: the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn part_start(parts: &[(u32, usize)], at: usize) -> usize {
    // Past the last part no range can end: such a pair has no rank.
    parts.get(at).map_or(usize::MAX, |part| part.1)
}

fn successor(next: &[u32], at: usize) -> usize {
    next.get(at).map_or(usize::MAX, |next| *next as usize)
}

/// Pieces shorter than this are merged without a heap.
const SHORT: usize = 64;
/// Longer pieces are merged in windows of this many bytes, which takes a quarter of the time and memory. Each
/// cut may cost one token more; no meaningful text has such a piece.
const WINDOW: usize = 4096;

impl std::fmt::Debug for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Encoding({} tokens)", self.starts.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(text: &str) {
        let pairs = [
            (Family::O200k, tiktoken_rs::o200k_base_singleton()),
            (Family::Cl100k, tiktoken_rs::cl100k_base_singleton()),
        ];
        for (family, truth) in pairs {
            let ours = load(family).unwrap().count(text);
            assert_eq!(ours, truth.encode_ordinary(text).len(), "{family:?}: {text:?}");
        }
    }

    /// A look-up ends at a free slot. Clients choose the text, but not how full the table is.
    #[test]
    fn look_ups_are_short() {
        for family in [Family::O200k, Family::Cl100k] {
            let slots = &load(family).unwrap().slots;
            let longest = slots.split(|rank| *rank == NONE).map(<[u32]>::len).max().unwrap();
            assert!(longest < 100, "{family:?}: {longest} slots in a row are taken");
        }
    }

    #[test]
    fn encoder_counts_like_public_encoder() {
        for text in [
            "",
            "Hello, world!",
            "HTMLParser parsesHTML aB ABc 中文A混排 日本語テキスト",
            "I'm you'LL they've it's 'tis don'T we'Re",
            "  leading\n\n\n  and   trailing   ",
            "\t\tfn main() {\r\n\r\n    println!(\"{}\", 1234567890);\n}\n",
            "a/b//c\n/d ..., !!!\n\n--- ===\r\n",
            "é e\u{301} \u{301}a n\u{303}o 😀👍🏽 ½ ①②③ ٣٤٥",
            " \u{a0}\u{3000}x \u{2028}y",
            "{\"key\": [1, 2.5, null], \"path\": \"/home/user/project/src/app.py\"}",
            "Ǆungla ǅ ʰʰ ªº",
        ] {
            same(text);
        }
        let source = include_str!("bpe.rs");
        same(source);
        same(include_str!("../../Cargo.toml"));
    }

    #[test]
    fn long_piece_is_right_and_fast() {
        same(&"aGVsbG8gd29ybGQh".repeat(20));
        same(&"a".repeat(500));
        let base64: String =
            (0..200_000u32).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
        assert!(load(Family::O200k).unwrap().count(&base64) > 50_000);
    }

    proptest! {
        #[test]
        fn encoder_agrees_with_public_encoder_on_any_text(text in "(\\PC|[ \\t\\r\\na-zA-Z0-9'.,/{}\"]){0,80}") {
            same(&text);
        }

        #[test]
        fn both_ways_of_merging_agree(text in "[a-zäß0-9]{2,120}") {
            let encoding = load(Family::O200k).unwrap();
            let bytes = text.as_bytes();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            encoding.merge_short(bytes, |token| short.push(token.to_vec()));
            encoding.merge_long(bytes, |token| long.push(token.to_vec()));
            prop_assert_eq!(short.concat(), bytes);
            prop_assert_eq!(short, long);
        }
    }

    /// A vocabulary of a few words and every ASCII character.
    fn few() -> Encoding {
        let words = ["he", " t", " the", "in", "ing", "><", "日本", "</", " </", "> </"];
        let letters = (33..127).map(|byte| char::from(byte).to_string());
        let merged = words.map(str::to_owned).into_iter().chain(letters).collect();
        let whole = ["\n", "\n\n", "  ", "<table>"].map(str::to_owned).into();
        Encoding::from_pieces(&VocabularyPieces { merged, whole })
    }

    #[test]
    fn sentencepiece_vocabulary_merges_characters_except_fixed_pieces() {
        let few = few();
        for (text, tokens) in [
            ("", 0),
            ("the", 2),        // t, he
            (" the thing", 4), // " the", " t", h, ing
            ("\n\n\n", 2),     // the longest first
            ("   the", 2),     // two spaces stand alone
            ("<table><b", 3),  // and so does this: no "><"
            ("a> </b", 3),     // a piece that goes over a space
            ("日本語", 4),     // 日本, and the bytes of what is not there
            ("é", 2),
        ] {
            assert_eq!(few.count(text), tokens, "{text:?}");
        }
        let long = " the".repeat(3000) + &"日本".repeat(3000);
        assert_eq!(few.count(&long), 6000);
    }

    /// A loaded vocabulary need not be loaded again. Bytes that are no vocabulary are refused.
    #[test]
    fn vocabulary_is_loaded_once() {
        for family in [Family::O200k, Family::Cl100k, Family::Claude] {
            let encoding = load(family).unwrap();
            assert!(!is_wanted(family), "{family:?}");
            assert!(loaded(family).is_some_and(|it| std::ptr::eq(it, encoding)));
        }
        assert_eq!(format!("{:?}", load(Family::Cl100k).unwrap()), "Encoding(100256 tokens)");
        assert_eq!(fits(b"hello"), Err(VocabularyError::Unread));
        assert_eq!(provide(b"hello"), Err(VocabularyError::Unread));
    }
}
