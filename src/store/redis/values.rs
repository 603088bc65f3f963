//! Values as the server keeps them: turns are packed, all others are as they are.
//!
//! The first byte tells which: JSON never begins with the one before a packed value.

use bytes::Bytes;

use crate::store::packing::{pack_small, unpack_small};
use crate::store::{Record, RecordKind};

/// The first byte of a packed value.
const PACKED: u8 = 1;

/// A value as the server keeps it. Only turns are many enough to be packed.
pub(super) fn stored(record: &Record) -> Vec<u8> {
    let packed = if record.kind == RecordKind::Turn { pack_small(&record.value) } else { None };
    match packed {
        Some(packed) => [&[PACKED][..], &packed].concat(),
        None => record.value.to_vec(),
    }
}

/// The value that the server keeps so; `None` if it is damaged.
pub(super) fn restored(stored: Vec<u8>) -> Option<Bytes> {
    match stored.split_first() {
        Some((first, packed)) if *first == PACKED => unpack_small(packed),
        _ => Some(stored.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_packed_and_restored() {
        let turn = format!(r#"{{"kind":"turn","outcome":"complete","response":"{:0999}"}}"#, 7);
        let record = |kind| Record { kind, key: 1, value: turn.clone().into(), at: 1, turn: None };
        let packed = stored(&record(RecordKind::Turn));
        assert!(packed.len() < turn.len() / 2, "{} of {}", packed.len(), turn.len());
        assert_eq!(restored(packed.clone()).unwrap(), turn.as_bytes());
        assert_eq!(restored(packed[..9].to_vec()), None);
        // A short one, and all others, are stored as they are.
        assert_eq!(restored(b"{}".to_vec()).unwrap(), b"{}"[..]);
        assert_eq!(stored(&record(RecordKind::Cut)), turn.as_bytes());
    }
}
