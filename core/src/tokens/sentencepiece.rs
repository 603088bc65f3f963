//! A SentencePiece vocabulary of byte pairs that the operator provides: Gemma's `tokenizer.model`, or the
//! `tokenizer.json` that was made from it.
//!
//! Reads which pieces are merged in which order, and which are never merged; merging itself is in `bpe.rs`.
//! Reports a file that is not such a vocabulary, whatever its bytes; nothing here panics.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

/// A vocabulary as read from a file, with real spaces.
#[derive(Debug, Default, PartialEq)]
pub(super) struct VocabularyPieces {
    /// Pieces that are merged, in the order of merging.
    pub(super) merged: Vec<String>,
    /// Pieces that always stay as they are and merge with nothing.
    pub(super) whole: Vec<String>,
}

/// Why a file is not a vocabulary that can be used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyError {
    /// Neither SentencePiece's protocol buffer nor JSON with a model.
    #[error("is neither a SentencePiece model (tokenizer.model) nor a tokenizer.json")]
    Unread,
    /// It uses another algorithm.
    #[error("is no vocabulary of byte pairs")]
    NotMerged,
    /// It would change text before splitting it.
    #[error("changes text before it splits it, which is not supported")]
    Normalizes,
    /// It would not count characters that it lacks as bytes.
    #[error("has no bytes for characters that it does not know")]
    NoBytes,
    /// It has too few pieces to be a vocabulary.
    #[error("has next to no pieces")]
    Empty,
}

/// The fewest pieces of a vocabulary: the bytes alone are this many.
const FEWEST: usize = 256;
/// How SentencePiece writes a space.
const SPACE: char = '▁';

pub(super) fn read(file: &[u8]) -> Result<VocabularyPieces, VocabularyError> {
    let is_json = file.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let pieces = if is_json {
        read_json(file)?
    } else {
        read_model(file).ok_or(VocabularyError::Unread)??
    };
    if pieces.merged.len() < FEWEST { Err(VocabularyError::Empty) } else { Ok(pieces) }
}

fn spaced(piece: &str) -> String {
    piece.replace(SPACE, " ")
}

#[derive(Deserialize)]
struct TokenizerJson {
    normalizer: Option<serde_json::Value>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: JsonModel,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
}

#[derive(Deserialize)]
struct JsonModel {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
    vocab: HashMap<String, u32>,
}

fn read_json(file: &[u8]) -> Result<VocabularyPieces, VocabularyError> {
    let TokenizerJson { normalizer, added_tokens, model } =
        serde_json::from_slice(file).map_err(|_| VocabularyError::Unread)?;
    if model.kind != "BPE" {
        return Err(VocabularyError::NotMerged);
    }
    if !model.byte_fallback {
        return Err(VocabularyError::NoBytes);
    }
    // Gemma's only normalizer replaces spaces, which `spaced` undoes.
    if normalizer.is_some_and(|value| !value.is_null() && value["type"] != "Replace") {
        return Err(VocabularyError::Normalizes);
    }
    let whole: Vec<String> = added_tokens.iter().map(|added| spaced(&added.content)).collect();
    let apart: HashSet<&str> = added_tokens.iter().map(|added| added.content.as_str()).collect();
    // Pieces are numbered in the order in which they are merged.
    let mut vocab: Vec<(u32, &str)> =
        model.vocab.iter().map(|(piece, id)| (*id, piece.as_str())).collect();
    vocab.sort_unstable();
    let merged = vocab.iter().filter(|(_, piece)| !apart.contains(piece) && !is_byte(piece));
    let merged = merged.map(|(_, piece)| spaced(piece)).collect();
    Ok(VocabularyPieces { merged, whole })
}

fn is_byte(piece: &str) -> bool {
    // Such as `<0x0A>`: a byte of a character that is not in the vocabulary.
    piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>')
}

/// Reads SentencePiece's own form, a protocol buffer (`sentencepiece_model.proto`); `None` if it is not one.
fn read_model(file: &[u8]) -> Option<Result<VocabularyPieces, VocabularyError>> {
    let mut scored = Vec::new();
    let mut unmerged = Vec::new();
    let mut is_merged = false;
    let mut has_bytes = false;
    let mut normalizes = false;
    for field in ProtoFields(file) {
        match field? {
            (1, ProtoValue::Bytes(piece)) => {
                let ModelPiece { text, score, kind } = ModelPiece::parse(piece)?;
                match kind {
                    NORMAL => scored.push((score, spaced(text))),
                    USER_DEFINED => unmerged.push(spaced(text)),
                    _ => {}
                }
            }
            (2, ProtoValue::Bytes(trainer)) => {
                for setting in ProtoFields(trainer) {
                    match setting? {
                        (3, ProtoValue::Number(kind)) => is_merged = kind == BPE,
                        (35, ProtoValue::Number(fallback)) => has_bytes = fallback == 1,
                        _ => {}
                    }
                }
            }
            (3, ProtoValue::Bytes(normalizer)) => normalizes = changes(normalizer)?,
            _ => {}
        }
    }
    // The sort is stable: pieces of equal score stay in the file's order.
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merged = scored.into_iter().map(|(_, text)| text).collect();
    Some(match () {
        () if !is_merged => Err(VocabularyError::NotMerged),
        () if !has_bytes => Err(VocabularyError::NoBytes),
        () if normalizes => Err(VocabularyError::Normalizes),
        () => Ok(VocabularyPieces { merged, whole: unmerged }),
    })
}

fn changes(normalizer: &[u8]) -> Option<bool> {
    let mut has_map = false;
    // The two are true in the protocol if a file does not mention them.
    let mut adds_space = true;
    let mut removes_spaces = true;
    for field in ProtoFields(normalizer) {
        match field? {
            (2, ProtoValue::Bytes(charsmap)) => has_map = !charsmap.is_empty(),
            (3, ProtoValue::Number(value)) => adds_space = value != 0,
            (4, ProtoValue::Number(value)) => removes_spaces = value != 0,
            _ => {}
        }
    }
    Some(has_map || adds_space || removes_spaces)
}

/// `TrainerSpec.ModelType.BPE`, and two values of `SentencePiece.Type`.
const BPE: u64 = 2;
const NORMAL: u64 = 1;
const USER_DEFINED: u64 = 4;

struct ModelPiece<'f> {
    text: &'f str,
    score: f32,
    kind: u64,
}

impl<'f> ModelPiece<'f> {
    fn parse(bytes: &'f [u8]) -> Option<Self> {
        let mut piece = ModelPiece { text: "", score: 0.0, kind: NORMAL };
        for field in ProtoFields(bytes) {
            match field? {
                (1, ProtoValue::Bytes(text)) => piece.text = std::str::from_utf8(text).ok()?,
                (2, ProtoValue::Fixed(score)) => piece.score = f32::from_le_bytes(score),
                (3, ProtoValue::Number(kind)) => piece.kind = kind,
                _ => {}
            }
        }
        Some(piece)
    }
}

/// A value of a protocol buffer.
enum ProtoValue<'f> {
    Number(u64),
    Bytes(&'f [u8]),
    Fixed([u8; 4]),
    /// Eight bytes: no field that is read here has this type.
    Wide,
}

/// The fields of a message, as number and value; if the bytes are not a message, yields `None` inside and
/// then ends.
struct ProtoFields<'f>(&'f [u8]);

impl<'f> Iterator for ProtoFields<'f> {
    type Item = Option<(u64, ProtoValue<'f>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'f> ProtoFields<'f> {
    fn field(&mut self) -> Option<(u64, ProtoValue<'f>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => ProtoValue::Number(self.number()?),
            1 => self.take(8).map(|_| ProtoValue::Wide)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                ProtoValue::Bytes(self.take(length)?)
            }
            5 => ProtoValue::Fixed(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn take(&mut self, length: usize) -> Option<&'f [u8]> {
        let (used, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(used)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of a protocol buffer.
    fn field(number: u8, kind: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | kind], value].concat()
    }

    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        let length = [value.len() as u8 & 0x7f | 0x80, (value.len() >> 7) as u8];
        field(number, 2, &[&length, value].concat())
    }

    fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
        let inner = [
            bytes(1, text.as_bytes()),
            field(2, 5, &score.to_le_bytes()),
            field(3, 0, &[kind as u8]),
        ];
        bytes(1, &inner.concat())
    }

    fn letters() -> impl Iterator<Item = String> {
        (0..300u32).filter_map(|at| char::from_u32(0x4e00 + at)).map(String::from)
    }

    /// A model of a few pieces, with these settings of its trainer and normalizer.
    fn model(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
        let mut file = [piece("<unk>", 0.0, 2), piece("\n\n", 0.0, USER_DEFINED)].concat();
        for (at, letter) in letters().enumerate() {
            file.extend(piece(&letter, -2.0 - at as f32, NORMAL));
        }
        file.extend(piece("▁he", -1.0, NORMAL));
        file.extend(piece("<0x0A>", 0.0, 6));
        file.extend([bytes(2, trainer), bytes(3, normalizer)].concat());
        file
    }

    fn trainer() -> Vec<u8> {
        [field(3, 0, &[2]), [&[0x98, 0x02][..], &[1]].concat()].concat()
    }

    fn plain() -> Vec<u8> {
        [field(3, 0, &[0]), field(4, 0, &[0])].concat()
    }

    /// The same as JSON.
    fn json(kind: &str, falls_back: bool) -> String {
        let mut vocab: HashMap<String, u32> = letters().zip(10..).collect();
        vocab.extend([("▁he".into(), 9), ("\n\n".into(), 3), ("<0x0A>".into(), 4)]);
        serde_json::json!({
            "normalizer": { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
            "added_tokens": [{ "id": 3, "content": "\n\n", "special": false }],
            "model": { "type": kind, "byte_fallback": falls_back, "vocab": vocab, "merges": [] },
        })
        .to_string()
    }

    fn expected() -> VocabularyPieces {
        let merged = std::iter::once(" he".to_owned()).chain(letters()).collect();
        VocabularyPieces { merged, whole: vec!["\n\n".to_owned()] }
    }

    #[test]
    fn both_formats_are_read_alike() {
        assert_eq!(read(&model(&trainer(), &plain())), Ok(expected()));
        assert_eq!(read(json("BPE", true).as_bytes()), Ok(expected()));
    }

    #[test]
    fn unusable_vocabulary_is_error() {
        let unigram = [field(3, 0, &[1]), [&[0x98, 0x02][..], &[1]].concat()].concat();
        for (file, why) in [
            (b"hello".to_vec(), VocabularyError::Unread),
            (b"{}".to_vec(), VocabularyError::Unread),
            (Vec::new(), VocabularyError::NotMerged),
            (model(&unigram, &plain()), VocabularyError::NotMerged),
            (model(&field(3, 0, &[2]), &plain()), VocabularyError::NoBytes),
            (model(&trainer(), &[]), VocabularyError::Normalizes),
            ([bytes(2, &trainer()), bytes(3, &plain())].concat(), VocabularyError::Empty),
            (json("Unigram", true).into(), VocabularyError::NotMerged),
            (json("BPE", false).into(), VocabularyError::NoBytes),
        ] {
            assert_eq!(read(&file), Err(why));
        }
    }

    #[test]
    fn no_bytes_cause_panic() {
        let file = model(&trainer(), &plain());
        for cut in 0..file.len() {
            let _ = read(&file[..cut]);
            let mut broken = file.clone();
            broken[cut] ^= 0xff;
            let _ = read(&broken);
        }
    }

    /// A normalizer must not change text before it is split: no added space, no removed white space, no replaced
    /// characters.
    #[test]
    fn changing_normalizer_is_error() {
        let of = |adds: u8, takes: u8, map: &[u8]| {
            let all = [field(3, 0, &[adds]), field(4, 0, &[takes]), bytes(2, map)].concat();
            changes(&all)
        };
        assert_eq!(of(0, 0, b""), Some(false));
        assert_eq!([of(1, 0, b""), of(0, 1, b""), of(0, 0, b"map")], [Some(true); 3]);
        assert_eq!(changes(&[]), Some(true), "its defaults change text");
        assert!(is_byte("<0x0A>"));
        assert!(!is_byte("<0x0AB>"));
        assert!(!is_byte("<0x0A "));
        assert!(!is_byte(" 0x0A>"));
        // Unknown fields are skipped, also those of eight bytes.
        let wide = [field(9, 1, &[7; 8]), field(3, 0, &[0]), field(4, 0, &[0])].concat();
        assert_eq!(changes(&wide), Some(false));
    }

    /// A vocabulary needs more pieces than there are bytes.
    #[test]
    fn too_few_pieces_are_an_error() {
        let of = |count: usize| {
            let mut file = Vec::new();
            for (at, letter) in letters().take(count).enumerate() {
                file.extend(piece(&letter, -(at as f32), NORMAL));
            }
            file.extend([bytes(2, &trainer()), bytes(3, &plain())].concat());
            read(&file).map(|it| it.merged.len())
        };
        assert_eq!(of(FEWEST - 1), Err(VocabularyError::Empty));
        assert_eq!(of(FEWEST), Ok(FEWEST));
    }
}
