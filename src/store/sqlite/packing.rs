//! Compresses the values of turns, which mostly repeat the same names.
//!
//! Uses zstd with the dictionary below. Compressed values must remain readable: another dictionary needs
//! another [`Packing`], and this one stays. Values that do not get smaller are stored as they are, and every
//! value is restored byte for byte.

use std::cell::RefCell;

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};

/// How a value is stored; the number in the column `packed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Uncompressed.
    Plain = 0,
    /// Its length in four bytes, little-endian; then zstd with [`TURN`].
    Turn = 1,
}

/// The dictionary: typical parts of turns, the most frequent last. Changing it changes the layout of the file ([`super::schema::LAYOUT`]).
const TURN: &[u8] = br#""removed":0,"compacted":0,"injected":0},"cut":0,"put_back":0,"new":{"cut":0,"put_back":0,"removed":0,"compacted":0,"injected":0}},{"change":"put_back","decision":"new","why":"birth","at":[19,0],"byte":1,"bytes_before":0,"bytes_after":314,"tokens_before":0,"tokens_after":0},{"change":"cut","decision":"refused","why":"too_little","at":[2,0],"byte":2,"counting":"tokenizer","counting":"words","method":"estimated","method":"held","method":"compacted","dialect":"openai_chat","dialect":"openai_responses","dialect":"gemini","upstream":"openai","upstream":"gemini","model":"gpt-5.2-codex","model":"gemini-3-pro-preview","model":"claude-opus-4-6","model":"claude-haiku-4-5","family":"o200k","family":"gemini","purpose":"title","place":"system_item","place":"tools_item","place":"old_reasoning","stop":"end","outcome":"client_left","lower_bound":true,"client_thread":"{"kind":"turn","exchange":"","position":{"thread":"","parent":"","chain":"","last":"","system":"","tools":""},"after":"","done":{"steps":[],"response":"msg_0","response":"resp_0","response":"chatcmpl-","response":null,"at":179,"ended":179,"upstream":"anthropic","dialect":"anthropic","model":"claude-sonnet-4-5","family":"claude","purpose":"turn","estimate":{"tokens":10,"method":"anchored","counting":"ratio","new":2,"gone":0,"breakdown":{"system":3,"tools":5,"messages":10,"reasoning":0},"guess":{"tokens":10,"low":10,"high":10,"retention":"loops","expert":"regression","by_retention":[10,10,10,10],"evidence":[0.2328779,0.2328779,0.2328779,1.0451767]}},"usage":{"input":10,"output":5,"reasoning":2,"cache_read":8,"cache_write":2,"cache_write_long":0},"stop":"tool_use","outcome":"complete","window":200000,"reserve":16000,"sketch":{"base":"","kept":36,"added":[{"key":"","tokens":1,"place":"system"},{"key":"","tokens":1,"place":"tools"},{"key":"","tokens":22,"place":"reasoning"},{"key":"","tokens":11,"place":"history"}]},"reply":[{"key":"","tokens":9,"place":"history"},{"key":"","tokens":26,"place":"history"}],"anchor_keys":[""]}"#;
/// The compression level: with the dictionary, higher ones make turns no smaller.
const LEVEL: i32 = 1;
/// Values shorter than this do not get smaller.
const SHORTEST: usize = 128;
/// The longest value that is decompressed: more than any real one has.
const LONGEST: usize = 256 << 20;

thread_local! {
    static PACKER: RefCell<Option<Compressor<'static>>> =
        RefCell::new(Compressor::with_dictionary(LEVEL, TURN).ok());
    static UNPACKER: RefCell<Option<Decompressor<'static>>> =
        RefCell::new(Decompressor::with_dictionary(TURN).ok());
}

/// The compressed value of a turn; `None` if it is stored as it is.
pub(super) fn pack(value: &[u8]) -> Option<Vec<u8>> {
    if value.len() < SHORTEST || value.len() > LONGEST {
        return None;
    }
    let packed = PACKER.with_borrow_mut(|packer| packer.as_mut()?.compress(value).ok())?;
    let length = u32::try_from(value.len()).ok()?.to_le_bytes();
    let with_length = [&length[..], &packed].concat();
    if with_length.len() < value.len() { Some(with_length) } else { None }
}

/// The original value; `None` if these bytes were not made by [`pack`].
pub(super) fn unpack(packed: &[u8]) -> Option<Bytes> {
    // The length comes first, so that a damaged value cannot ask for endless memory.
    let (length, packed) = packed.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if length > LONGEST {
        return None;
    }
    let value =
        UNPACKER.with_borrow_mut(|unpacker| unpacker.as_mut()?.decompress(packed, length).ok())?;
    (value.len() == length).then(|| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_are_restored() {
        let hex: String = (0..40).map(|n| format!("{:032x}", u128::MAX / (n + 3))).collect();
        let turn = format!(r#"{{"kind":"turn","exchange":"{hex}","window":200000,"ü":1e3}}"#);
        let packed = pack(turn.as_bytes()).unwrap();
        assert!(packed.len() < turn.len() * 3 / 4, "{} of {}", packed.len(), turn.len());
        assert_eq!(unpack(&packed).unwrap(), turn.as_bytes());
        for end in 0..packed.len() {
            assert_eq!(unpack(&packed[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn noise_is_not_packed() {
        assert_eq!(pack(b"short"), None);
        let mut noise = vec![0u8; 4096];
        getrandom::fill(&mut noise).unwrap();
        assert_eq!(pack(&noise), None);
    }

    #[test]
    fn short_values_are_not_packed() {
        let turn = |bytes: usize| format!("{{{:>1$}", "}", bytes - 1).into_bytes();
        assert!(pack(&turn(SHORTEST)).is_some());
        assert_eq!(pack(&turn(SHORTEST - 1)), None);
    }

    #[test]
    fn dictionary_does_not_change() {
        assert_eq!(xxhash_rust::xxh3::xxh3_64(TURN), DICTIONARY);
    }

    /// Changes only with the layout.
    const DICTIONARY: u64 = 15_480_529_447_813_742_540;
}
