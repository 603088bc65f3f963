use flate2::{Compress, FlushCompress};
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 16;

fn unlimited() -> Box<dyn crate::wire::memory::Memory> {
    Box::new(crate::wire::memory::MemoryLimit(usize::MAX))
}
const KEEPS: Compression = Compression::Deflate { keeps_context: true };
const FORGETS: Compression = Compression::Deflate { keeps_context: false };

fn read_in(pieces: &[&[u8]], compression: Compression) -> (Vec<String>, Option<FrameError>) {
    let mut messages = MessageDecoder::new(LIMIT, compression, unlimited());
    let mut texts = Vec::new();
    for piece in pieces {
        messages.push(piece, |text| texts.push(String::from_utf8_lossy(&text).into_owned()));
    }
    (texts, messages.fault())
}

fn read(bytes: &[u8], compression: Compression) -> (Vec<String>, Option<FrameError>) {
    read_in(&[bytes], compression)
}

/// A frame; `first` holds FIN, reserved bits and opcode.
fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = vec![first];
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match payload.len() {
        short @ 0..=125 => out.push(masked | short as u8),
        middle @ 126..=0xffff => {
            out.push(masked | 126);
            out.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            out.push(masked | 127);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask.unwrap_or_default()[..if mask.is_some() { 4 } else { 0 }]);
    let mask = mask.unwrap_or_default();
    out.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]));
    out
}

fn deflated(with: &mut Compress, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() * 2 + 64);
    with.compress_vec(text, &mut out, FlushCompress::Sync).unwrap();
    assert!(out.ends_with(TAIL));
    out.truncate(out.len() - 4);
    out
}

#[test]
fn examples_of_rfc_6455() {
    let unmasked: &[u8] = &[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    let masked: &[u8] = &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let fragments: &[u8] = &[0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    for bytes in [unmasked, masked, fragments] {
        assert_eq!(read(bytes, Compression::Plain), (vec!["Hello".to_owned()], None));
    }
}

#[test]
fn examples_of_rfc_7692() {
    let one: &[u8] = &[0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    let fragments: &[u8] = &[0x41, 0x03, 0xf2, 0x48, 0xcd, 0x80, 0x04, 0xc9, 0xc9, 0x07, 0x00];
    let stored: &[u8] =
        &[0xc1, 0x0b, 0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
    let ended: &[u8] = &[0xc1, 0x08, 0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    let two_blocks: &[u8] =
        &[0xc1, 0x0d, 0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
    for bytes in [one, fragments, stored, ended, two_blocks] {
        for compression in [KEEPS, FORGETS] {
            let twice = [bytes, bytes].concat();
            let hello = || "Hello".to_owned();
            assert_eq!(read(&twice, compression), (vec![hello(), hello()], None), "{bytes:x?}");
        }
    }
    let second: &[u8] = &[0xc1, 0x05, 0xf2, 0x00, 0x11, 0x00, 0x00];
    let both = [one, second].concat();
    assert_eq!(read(&both, KEEPS).0, ["Hello", "Hello"]);
    assert_ne!(read(&both, FORGETS).0.last().unwrap(), "Hello", "the second needs the first");
}

/// A connection with every kind of frame.
fn connection(keeps_context: bool, mask: Option<[u8; 4]>) -> (Vec<u8>, Vec<String>) {
    let mut deflate = Compress::new(flate2::Compression::default(), false);
    let mut bytes = Vec::new();
    let mut texts = Vec::new();
    for round in 0..4 {
        let text = format!(
            r#"{{"type":"response.create","round":{round},"text":"{}"}}"#,
            "ähnlich ".repeat(round * 20)
        );
        if !keeps_context {
            deflate.reset();
        }
        let packed = deflated(&mut deflate, text.as_bytes());
        let (head, tail) = packed.split_at(packed.len() / 2);
        bytes.extend(frame(0x41, head, mask));
        bytes.extend(frame(0x89, b"ping", mask));
        bytes.extend(frame(0x00, b"", mask));
        bytes.extend(frame(0x80, tail, mask));
        bytes.extend(frame(0x82, b"\x00\x01", mask));
        bytes.extend(frame(0x81, text.as_bytes(), mask));
        texts.extend([text.clone(), text]);
    }
    bytes.extend(frame(0x88, &[0x03, 0xe8], mask));
    bytes.extend(frame(0x81, b"after the close", mask));
    (bytes, texts)
}

#[test]
fn invariant_10_frames_cut_anywhere() {
    for (keeps, compression) in [(true, KEEPS), (false, FORGETS)] {
        for mask in [None, Some([1, 2, 3, 250])] {
            let (bytes, texts) = connection(keeps, mask);
            assert_eq!(read(&bytes, compression), (texts.clone(), None));
            for cut in 0..bytes.len() {
                let pieces = [&bytes[..cut], &bytes[cut..]];
                assert_eq!(read_in(&pieces, compression), (texts.clone(), None), "{cut}");
                let (prefix, fault) = read(&bytes[..cut], compression);
                assert!(fault.is_none(), "{cut}");
                assert!(texts.starts_with(&prefix), "{cut}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read_in(&single, compression), (texts, None));
        }
    }
}

#[test]
fn invalid_frame_ends_reading() {
    for (bytes, fault) in [
        (frame(0xc1, b"x", None), FrameError::Reserved),
        (frame(0xa1, b"x", None), FrameError::Reserved),
        (frame(0x83, b"x", None), FrameError::Reserved),
        (frame(0x8b, b"x", None), FrameError::Reserved),
        (frame(0xc9, b"x", None), FrameError::Reserved),
        (frame(0x80, b"x", None), FrameError::Fragments),
        ([frame(0x01, b"x", None), frame(0x81, b"x", None)].concat(), FrameError::Fragments),
        (frame(0x09, b"x", None), FrameError::Length),
        (frame(0x89, &[0; 126], None), FrameError::Length),
        (vec![0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], FrameError::Length),
    ] {
        let good = frame(0x81, b"good", None);
        let all = [good.clone(), bytes, good].concat();
        assert_eq!(read(&all, Compression::Plain), (vec!["good".to_owned()], Some(fault)));
    }
    assert_eq!(read(&frame(0xc1, &[7; 9], None), KEEPS), (Vec::new(), Some(FrameError::Deflate)));
    assert_eq!(read(&frame(0x81, b"x", None), Compression::Unknown).1, Some(FrameError::Reserved));
}

#[test]
fn messages_up_to_limit_are_read_and_longer_ones_are_not() {
    let at = vec![b'a'; LIMIT];
    let past = vec![b'a'; LIMIT + 1];
    let last = frame(0x81, b"last", None);
    let mut messages = MessageDecoder::new(LIMIT, Compression::Plain, unlimited());
    let mut lengths = Vec::new();
    for bytes in [frame(0x81, &at, None), frame(0x81, &past, None), last.clone()] {
        bytes.chunks(1000).for_each(|piece| messages.push(piece, |text| lengths.push(text.len())));
    }
    assert_eq!(lengths, vec![LIMIT, 4]);
    assert_eq!(messages.fault(), None);

    for (text, fault) in [(at, None), (past, Some(FrameError::TooLong))] {
        let mut deflate = Compress::new(flate2::Compression::default(), false);
        let packed = frame(0xc1, &deflated(&mut deflate, &text), None);
        assert!(packed.len() < 500, "a small frame that grows");
        let (texts, seen) = read(&packed, KEEPS);
        assert_eq!(texts.len(), usize::from(fault.is_none()));
        assert_eq!(seen, fault);
    }
}

#[test]
fn compression_is_the_accepted_one() {
    for (header, settled) in [
        ("", (Compression::Plain, Compression::Plain)),
        ("permessage-deflate", (KEEPS, KEEPS)),
        ("Permessage-Deflate; server_no_context_takeover", (KEEPS, FORGETS)),
        (
            "permessage-deflate;client_no_context_takeover; server_max_window_bits=12",
            (FORGETS, KEEPS),
        ),
        ("x-webkit-deflate-frame", (Compression::Unknown, Compression::Unknown)),
        ("permessage-deflate, mux", (Compression::Unknown, Compression::Unknown)),
    ] {
        assert_eq!(negotiated(header), settled, "{header}");
    }
}

proptest! {
    #[test]
    fn invariant_8_never_panics(bytes in proptest::collection::vec(prop_oneof![
        proptest::sample::select(vec![0x81u8, 0xc1, 0x01, 0x80, 0x00, 0x89, 5, 126, 127, 0x85, 0xf2, 0x48]),
        any::<u8>()], 0..80)) {
        fuzz(&bytes);
    }
}

/// Found by fuzzing: if a message contains the start of a new deflate stream and is cut there, the rest can look like
/// the tail that senders leave off.
#[test]
fn bytes_like_deflate_tail_within_message_are_read_at_any_cut() {
    fuzz(b"\x41\x2f\x23\x05\0\0\0\0\xff\xff\x10\x71\x71\x04");
}
