//! Compresses the values of turns, which mostly repeat the same names.
//!
//! Uses zstd with the dictionary below. Compressed values must remain readable: another dictionary needs
//! another [`Packing`], and this one stays. Values that do not get smaller are stored as they are, and every
//! value is restored byte for byte.

use std::cell::RefCell;
use std::thread::LocalKey;

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{self, CParameter};

/// How a value is stored; the number in the column `packed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Uncompressed.
    Plain = 0,
    /// Its length in four bytes, little-endian; then zstd with [`TURN`].
    Turn = 1,
}

/// The dictionary: typical parts of turns, the most frequent last. Changing it changes the layout of the file (`LAYOUT` in the store).
const TURN: &[u8] = br#""definitions":"","tokens_compacted":0,"tokens_removed":0,"measured":0,"repeated_calls":0,"why":"pressure","why":"cold_cache","why":"no_gate","counting":"exact","called":["shell"],"called":["bash"],"returns":true,"served":"","project":"","title":"","model":"gpt-5.5","model":"gpt-6.2","model":"claude-opus-5-5","model":"claude-sonnet-4-6","cache_write_long":0},"provider_request_id":"req_011","done":{"steps":[{"change":"removed":0,"compacted":0,"injected":0},"cut":0,"put_back":0,"new":{"cut":0,"put_back":0,"removed":0,"compacted":0,"injected":0}},{"change":"put_back","decision":"new","why":"birth","at":[19,0],"byte":1,"bytes_before":0,"bytes_after":314,"tokens_before":0,"tokens_after":0},{"change":"cut","decision":"refused","why":"too_little","at":[2,0],"byte":2,"lower_bound":true,"client_thread":"","client_left","stop":"end","purpose":"title","place":"system_item","place":"tools_item","place":"old_reasoning","counting":"words","method":"held","method":"compacted","model":"claude-opus-4-6","model":"claude-haiku-4-5","upstream":"gemini","dialect":"gemini","model":"gemini-3-pro-preview","family":"gemini","purpose":"turn","upstream":"openai","dialect":"openai-responses","model":"gpt-5.2-codex","family":"o200k","purpose":"turn","upstream":"openai","dialect":"openai-chat","model":"gpt-5.2-codex","family":"o200k","purpose":"turn","found_by":"signature","guess":{"tokens":1285,"low":1190,"high":1402,"retention":"drops","expert":"regression","by_retention":[1307,1307,1307,1285],"evidence":[0.0,0.0,0.0,1.8761494]}},"carry":{"tokens":714,"by_rules":714,"reasoning":0,"hidden":true,"limits":{"usable":1032576,"pruning":619545,"preparing":931899,"compacting":980947,"refusing":1048576},"contents":{"user":37,"assistant":30,"tool_calls":60,"tool_results":[{"tool":"bash","tokens":305}],"reasoning":0,"media":0,"summaries":0,"other":0}}}{"kind":"turn","exchange":"","position":{"thread":"","chain":"","last":"","system":"","tools":"","beginnings":["",""]},"after":"","response":"msg_0","origin":{"found_by":"new","agent":{"name":"","version":""}},"at":179,"ended":179,"upstream":"anthropic","dialect":"anthropic","model":"claude-opus-4-6","family":"claude","purpose":"turn","estimate":{"tokens":43,"method":"estimated","counting":"ratio","new":43,"gone":0,"breakdown":{"system":8,"tools":0,"messages":35,"reasoning":0},"guess":{"tokens":43,"low":38,"high":129,"retention":"keeps","expert":"counted","by_retention":[43,43,43,43],"evidence":[0.0,0.0,0.0,0.0]}},"usage":{"input":1110,"output":33,"cache_read":900,"cache_write":30},"dollars":0.00,"stop":"end","outcome":"complete","window":1000000,"reserve":16000,"sketch":{"kept":0,"added":[{"key":"","tokens":1,"place":"reasoning"},{"key":"","tokens":1,"place":"history"}]},"reply":[{"key":"","tokens":1,"place":"reasoning"},{"key":"","tokens":1,"place":"history"}],"anchor_keys":[""],"carry":{"tokens":1143,"by_rules":1143,"reasoning":0,"limits":{"usable":984000,"pruning":590400,"preparing":888060,"compacting":934800,"refusing":1000000},"contents":{"user":28,"assistant":33,"tool_calls":0,"reasoning":0,"media":0,"summaries":0,"other":0}}}{"kind":"turn","exchange":"","position":{"thread":"","parent":"","chain":"","last":"","system":"","tools":"","has_reply":true},"after":"","response":"msg_0","origin":{"found_by":"prefix","agent":{"name":"","version":""}},"at":179,"ended":179,"upstream":"anthropic","dialect":"anthropic","model":"claude-haiku-4-5","family":"claude","purpose":"turn","estimate":{"tokens":3057,"method":"anchored","counting":"ratio","new":420,"gone":0,"breakdown":{"system":8,"tools":984,"messages":2065,"reasoning":0},"guess":{"tokens":3057,"low":3023,"high":3091,"retention":"loops","expert":"counted","by_retention":[3057,3057,3057,3057],"evidence":[0.0,0.0,0.0,0.0]}},"usage":{"input":3096,"output":33,"cache_read":900,"cache_write":30},"dollars":0.00,"stop":"tool_use","outcome":"complete","window":200000,"reserve":16000,"sketch":{"base":"","kept":20,"added":[{"key":"","tokens":1,"place":"reasoning"},{"key":"","tokens":1,"place":"history"}]},"reply":[{"key":"","tokens":1,"place":"reasoning"},{"key":"","tokens":1,"place":"history"}],"carry":{"tokens":3129,"by_rules":3129,"reasoning":0,"limits":{"usable":184000,"pruning":110400,"preparing":166060,"compacting":174800,"refusing":200000},"contents":{"user":39,"assistant":91,"tool_calls":140,"tool_results":[{"tool":"bash","tokens":1665}],"reasoning":0,"media":0,"summaries":0,"other":0}}}"#;
/// What stands before them in zstd's form of a dictionary: how often what occurs in turns, so that no turn brings tables
/// of its own, which took longer than all else. `ZDICT_finalizeDictionary` made it from the turns of 36 sessions in the
/// four dialects.
const STATISTICS: [u8; 135] = [
    0x37, 0xa4, 0x30, 0xec, 0x09, 0x00, 0x00, 0x00, 0x24, 0x10, 0xd8, 0x52, 0x48, 0x07, 0x0c, 0xc3,
    0x30, 0x0c, 0x83, 0x0b, 0x05, 0xd5, 0x1a, 0xc6, 0x1a, 0xc2, 0x5a, 0x90, 0x52, 0x4a, 0x59, 0x39,
    0x7a, 0x6c, 0x4a, 0x29, 0xa5, 0x94, 0x52, 0x9a, 0xad, 0x00, 0xe1, 0x50, 0xb8, 0xe3, 0x03, 0x00,
    0x08, 0x12, 0x80, 0x47, 0xc2, 0x70, 0x00, 0xae, 0x35, 0x00, 0x04, 0x00, 0x40, 0x09, 0x15, 0x10,
    0x20, 0x22, 0x19, 0x1d, 0x2b, 0x1b, 0x11, 0xc4, 0x02, 0x91, 0x40, 0x50, 0x0a, 0x84, 0x04, 0xe4,
    0xa0, 0x78, 0x24, 0x8a, 0x41, 0x10, 0x83, 0xc1, 0x94, 0x74, 0xca, 0x41, 0x36, 0x22, 0x03, 0x00,
    0x00, 0x00, 0x14, 0x0c, 0x26, 0x44, 0xc4, 0x87, 0x50, 0x38, 0x10, 0x08, 0x06, 0x40, 0x38, 0x00,
    0x89, 0x01, 0x00, 0x00, 0x90, 0xc8, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x04,
    0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
];
/// What every frame of zstd begins with.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The compression level for a file, where time counts.
const FAST: i32 = -3;
/// For a server's memory: a turn of an agent takes 350 bytes, not 580, and 11 µs, not 3.
const SMALL: i32 = 6;
/// Values shorter than this do not get smaller.
const SHORTEST: usize = 128;
/// The longest value that is decompressed: more than any real one has.
const LONGEST: usize = 256 << 20;

thread_local! {
    static FAST_PACKER: Packer = packer(FAST);
    static SMALL_PACKER: Packer = packer(SMALL);
    static UNPACKER: RefCell<Option<Decompressor<'static>>> =
        RefCell::new(Decompressor::with_dictionary(&dictionary()).ok());
}

type Packer = RefCell<Option<Compressor<'static>>>;

fn packer(level: i32) -> Packer {
    let mut packer = Compressor::with_dictionary(level, &dictionary()).ok();
    // There is one dictionary.
    if let Some(packer) = &mut packer {
        let _ = packer.set_parameter(CParameter::DictIdFlag(false));
    }
    RefCell::new(packer)
}

fn dictionary() -> Vec<u8> {
    [&STATISTICS[..], TURN].concat()
}

/// The compressed value of a turn, for a file; `None` if it is stored as it is.
pub(super) fn pack(value: &[u8]) -> Option<Vec<u8>> {
    let frame = frame(&FAST_PACKER, value)?;
    let length = u32::try_from(value.len()).ok()?.to_le_bytes();
    let with_length = [&length[..], &frame].concat();
    if with_length.len() < value.len() { Some(with_length) } else { None }
}

/// As [`pack`], for a server's memory: a frame without [`MAGIC`].
pub(super) fn pack_small(value: &[u8]) -> Option<Vec<u8>> {
    let frame = frame(&SMALL_PACKER, value)?;
    let rest = frame.strip_prefix(&MAGIC)?;
    if rest.len() < value.len() { Some(rest.to_vec()) } else { None }
}

fn frame(packer: &'static LocalKey<Packer>, value: &[u8]) -> Option<Vec<u8>> {
    if value.len() < SHORTEST || value.len() > LONGEST {
        return None;
    }
    packer.with_borrow_mut(|packer| packer.as_mut()?.compress(value).ok())
}

/// The original value; `None` if these bytes were not made by [`pack`].
pub(super) fn unpack(packed: &[u8]) -> Option<Bytes> {
    // The length comes first, so that a damaged value cannot ask for endless memory.
    let (length, packed) = packed.split_first_chunk::<4>()?;
    unpack_frame(packed, u32::from_le_bytes(*length).into())
}

/// The original value; `None` if these bytes were not made by [`pack_small`].
pub(super) fn unpack_small(packed: &[u8]) -> Option<Bytes> {
    let frame = [&MAGIC[..], packed].concat();
    let length = zstd_safe::get_frame_content_size(&frame).ok()??;
    unpack_frame(&frame, length)
}

fn unpack_frame(frame: &[u8], length: u64) -> Option<Bytes> {
    let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST)?;
    let value =
        UNPACKER.with_borrow_mut(|unpacker| unpacker.as_mut()?.decompress(frame, length).ok())?;
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
    fn small_values_are_restored() {
        let hex: String = (0..40).map(|n| format!("{:032x}", u128::MAX / (n + 3))).collect();
        let turn = format!(r#"{{"kind":"turn","exchange":"{hex}","window":200000}}"#);
        let [packed, small] = [pack, pack_small].map(|pack| pack(turn.as_bytes()).unwrap());
        assert!(small.len() < packed.len(), "{} of {}", small.len(), packed.len());
        assert_eq!(unpack_small(&small).unwrap(), turn.as_bytes());
        for end in 0..small.len() {
            assert_eq!(unpack_small(&small[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn noise_is_not_packed() {
        assert_eq!(pack(b"short"), None);
        assert_eq!(pack_small(b"short"), None);
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
        assert_eq!(xxhash_rust::xxh3::xxh3_64(&dictionary()), DICTIONARY);
    }

    /// Changes only with the layout.
    const DICTIONARY: u64 = 12_099_829_025_119_702_051;
}
