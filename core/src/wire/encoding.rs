//! Content encodings: a decoded copy of a compressed body, chunk by chunk.
//!
//! The copy is only for reading; the body is passed on as it came. Bounded: at most two codings, nothing is
//! allocated before the first byte, no chunk expands beyond its limit, and memory is requested before it is
//! held. A broken encoding ends the reading and nothing else.

use std::borrow::Cow;
use std::io::Write;

use super::memory::Memory;

/// Why a copy cannot be read further. The sender's fault, except if memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not encoded as `content-encoding` says.
    #[error("the body is not encoded as its content-encoding says")]
    Broken,
    /// It decodes to more than the limit.
    #[error("the body unfolds to more than is read")]
    TooLong,
    /// There is no memory for the decoded bytes.
    #[error("there is no memory to unfold the body")]
    NoMemory,
}

/// Why a body with such a `content-encoding` is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedEncoding {
    /// More than [`MOST_CODINGS`] codings on top of each other.
    #[error("the body is encoded more than {MOST_CODINGS} times")]
    TooMany,
    /// A coding that is not known.
    #[error("the body's content-encoding is not known")]
    Unknown,
}

/// The most codings on top of each other. Each costs a window of memory, and nobody needs more than one.
const MOST_CODINGS: usize = 2;
/// The largest window of a zstd frame, as a power of two: 8 MB, the most that HTTP allows (RFC 9659). Without
/// this limit a few bytes could request 128 MB.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Decodes one body.
pub struct Decoder {
    /// In the order of decoding: the coding that is named last comes first.
    steps: Vec<CodingStep>,
}

/// One coding, and its decoder once a byte has arrived.
struct CodingStep {
    coding: Coding,
    decoder: Option<CodingDecoder>,
    out: Option<BoundedOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

enum CodingDecoder {
    Gzip(Box<flate2::write::MultiGzDecoder<BoundedOutput>>),
    Zlib(Box<flate2::write::ZlibDecoder<BoundedOutput>>),
    Raw(Box<flate2::write::DeflateDecoder<BoundedOutput>>),
    Brotli(Box<brotli::DecompressorWriter<BoundedOutput>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, BoundedOutput>>),
}

impl Decoder {
    /// A decoder for the values of all `content-encoding` lines, in order. Without a coding, or with
    /// `identity`, it passes bytes through. `limit` is the most bytes that one push may decode to. `memory`
    /// grants each coding what it holds; the result of a push is the caller's to account for.
    ///
    /// # Errors
    /// [`UnsupportedEncoding`], if a coding is unknown or there are too many.
    pub fn new<'v>(
        lines: impl IntoIterator<Item = &'v str>,
        limit: usize,
        mut memory: impl FnMut() -> Box<dyn Memory>,
    ) -> Result<Self, UnsupportedEncoding> {
        let names = lines.into_iter().flat_map(|line| line.split(',')).map(str::trim);
        let mut steps = Vec::new();
        let mut unknown = false;
        // In the order of the header: each coding was applied to the result of the one before.
        for name in names.filter(|name| !name.is_empty() && !is(name, "identity")) {
            if steps.len() == MOST_CODINGS {
                return Err(UnsupportedEncoding::TooMany);
            }
            let coding = Coding::named(name);
            // All names are read first, so that too many are refused as too many.
            unknown |= coding.is_none();
            let output =
                BoundedOutput { bytes: Vec::new(), limit, of: coding, passed: 0, memory: memory() };
            let coding = coding.unwrap_or(Coding::Gzip);
            steps.push(CodingStep { coding, decoder: None, out: Some(output) });
        }
        if unknown {
            return Err(UnsupportedEncoding::Unknown);
        }
        // The last coding was applied last, and is undone first.
        steps.reverse();
        Ok(Self { steps })
    }

    /// Whether bytes pass through unchanged.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// Decodes the next encoded bytes, which may be cut anywhere.
    ///
    /// # Errors
    /// A [`DecodeError`]; the decoder must not be used after it.
    pub fn push<'b>(&mut self, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>, DecodeError> {
        let mut bytes = Cow::Borrowed(bytes);
        for step in &mut self.steps {
            if bytes.is_empty() {
                break;
            }
            bytes = Cow::Owned(step.push(&bytes)?);
        }
        Ok(bytes)
    }

    /// Whether the bytes so far are only a part of what was encoded. That of zstd is not known: it counts as
    /// whole. Nothing may be decoded afterwards.
    pub fn is_cut(&mut self) -> bool {
        let mut decoders = self.steps.iter_mut().filter_map(|step| step.decoder.as_mut());
        decoders.any(CodingDecoder::is_cut)
    }
}

fn is(name: &str, coding: &str) -> bool {
    name.eq_ignore_ascii_case(coding)
}

impl Coding {
    fn named(name: &str) -> Option<Self> {
        if is(name, "gzip") || is(name, "x-gzip") {
            Some(Self::Gzip)
        } else if is(name, "deflate") {
            Some(Self::Deflate)
        } else if is(name, "br") {
            Some(Self::Brotli)
        } else if is(name, "zstd") {
            Some(Self::Zstd)
        } else {
            None
        }
    }

    fn holds(self, passed: usize) -> usize {
        // The rest of a window is reserved, but not in use.
        match self {
            Self::Gzip | Self::Deflate => 96 << 10,
            // The window grows by copying, so both copies count.
            Self::Brotli => (128 << 10) + passed.saturating_mul(3).div_ceil(2).min(BROTLI_WINDOW),
            Self::Zstd => (384 << 10) + passed.min(1 << ZSTD_WINDOW_LOG),
        }
    }
}

/// The largest window of a brotli stream (RFC 7932, Section 9.1) and a half.
const BROTLI_WINDOW: usize = 24 << 20;

impl CodingStep {
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        if let Some(mut out) = self.out.take() {
            out.begin().map_err(|error| fault(&error))?;
            self.decoder = Some(CodingDecoder::new(self.coding, bytes, out)?);
        }
        let decoder = self.decoder.as_mut().ok_or(DecodeError::Broken)?;
        decoder.push(bytes).map_err(|error| fault(&error))
    }
}

fn fault(error: &std::io::Error) -> DecodeError {
    match error.kind() {
        std::io::ErrorKind::StorageFull => DecodeError::TooLong,
        std::io::ErrorKind::OutOfMemory => DecodeError::NoMemory,
        _ => DecodeError::Broken,
    }
}

impl CodingDecoder {
    fn new(coding: Coding, bytes: &[u8], output: BoundedOutput) -> Result<Self, DecodeError> {
        // The first bytes tell standard zlib from raw deflate, which some servers send. The first
        // byte of a zlib stream has method 8 in its low half; that of raw deflate hardly ever does.
        let is_zlib = bytes.first().is_some_and(|first| first & 0x0f == 8);
        Ok(match coding {
            Coding::Gzip => Self::Gzip(Box::new(flate2::write::MultiGzDecoder::new(output))),
            Coding::Deflate if is_zlib => {
                Self::Zlib(Box::new(flate2::write::ZlibDecoder::new(output)))
            }
            Coding::Deflate => Self::Raw(Box::new(flate2::write::DeflateDecoder::new(output))),
            Coding::Brotli => Self::Brotli(Box::new(brotli::DecompressorWriter::new(output, 4096))),
            Coding::Zstd => {
                let decoder = zstd::stream::write::Decoder::new(output);
                let mut decoder = decoder.map_err(|_| DecodeError::NoMemory)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(|_| DecodeError::Broken)?;
                Self::Zstd(Box::new(decoder))
            }
        })
    }

    fn push(&mut self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Gzip(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Self::Zlib(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Self::Raw(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Self::Brotli(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Self::Zstd(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
        }
    }
}

impl CodingDecoder {
    fn is_cut(&mut self) -> bool {
        // A stream that has ended takes no byte more.
        match self {
            Self::Gzip(decoder) => decoder.try_finish().is_err(),
            Self::Zlib(decoder) => !matches!(decoder.write(&[0]), Ok(0)),
            Self::Raw(decoder) => !matches!(decoder.write(&[0]), Ok(0)),
            Self::Brotli(decoder) => decoder.close().is_err(),
            Self::Zstd(_) => false,
        }
    }
}

fn write(decoder: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    // Flushed, so that every event that has arrived comes out at once.
    decoder.write_all(bytes)?;
    decoder.flush()
}

/// An output of more than this many bytes gets all the memory that it may need.
const LARGE: usize = 1 << 20;

/// Collects what a decoder produces, up to a limit and as far as memory is granted.
struct BoundedOutput {
    bytes: Vec<u8>,
    limit: usize,
    /// The coding whose output it is.
    of: Option<Coding>,
    /// The number of bytes that have come out in total.
    passed: usize,
    memory: Box<dyn Memory>,
}

impl BoundedOutput {
    fn begin(&mut self) -> std::io::Result<()> {
        self.holds(0)
    }

    fn take(&mut self) -> Vec<u8> {
        let consumed = std::mem::take(&mut self.bytes);
        // Holding less than before is never refused.
        let _ = self.holds(0);
        consumed
    }

    /// Requests memory for `capacity` bytes of output and for what the decoder holds.
    fn holds(&mut self, capacity: usize) -> std::io::Result<()> {
        let decoder = self.of.map_or(0, |coding| coding.holds(self.passed));
        match self.memory.hold(decoder.saturating_add(capacity)) {
            true => Ok(()),
            false => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    }
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let length = self.bytes.len() + bytes.len();
        if length > self.limit {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.passed = self.passed.saturating_add(bytes.len());
        let mut capacity = self.bytes.capacity();
        if length > capacity {
            // Both copies of a vector that grows are resident; what is allocated and not written is not. So a large
            // one grows once.
            capacity = match length {
                ..=LARGE => length.max(capacity + capacity / 2),
                _ => self.limit,
            };
            capacity = capacity.min(self.limit);
        }
        self.holds(capacity.min(length.max(LARGE)))?;
        // Exactly what was granted, however the vector would grow by itself.
        self.bytes.reserve_exact(capacity - self.bytes.len());
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Fuzz: no bytes make a coding panic or exceed its limit.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    use super::memory::MemoryLimit;
    let header = String::from_utf8_lossy(bytes);
    if let Ok(decoder) = Decoder::new(header.lines(), 1 << 16, || Box::new(MemoryLimit(0))) {
        assert!(decoder.steps.len() <= MOST_CODINGS);
    }
    for coding in ["gzip", "deflate", "br", "zstd", "gzip, br"] {
        let memory = || Box::new(MemoryLimit(usize::MAX)) as Box<dyn Memory>;
        let Ok(mut decoder) = Decoder::new([coding], 1 << 16, memory) else { continue };
        for chunk in bytes.chunks(7) {
            match decoder.push(chunk) {
                Ok(out) => assert!(out.len() <= 1 << 16),
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::memory::MemoryLimit;
    use proptest::prelude::*;

    fn at_most(bytes: usize) -> impl FnMut() -> Box<dyn Memory> {
        move || Box::new(MemoryLimit(bytes))
    }

    fn encode(coding: &str, bytes: &[u8]) -> Vec<u8> {
        use flate2::{Compression, write as flate};
        match coding {
            "gzip" => {
                let mut encoder = flate::GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            "zlib" => {
                let mut encoder = flate::ZlibEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            "raw" => {
                let mut encoder = flate::DeflateEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            "br" => {
                let mut out = Vec::new();
                let mut encoder = brotli::CompressorWriter::new(&mut out, 4096, 5, 22);
                encoder.write_all(bytes).unwrap();
                drop(encoder);
                out
            }
            _ => zstd::encode_all(bytes, 3).unwrap(),
        }
    }

    fn decode(coding: &str, encoded: &[u8], size: usize) -> Result<Vec<u8>, DecodeError> {
        let mut decoder = Decoder::new([coding], 1 << 20, at_most(usize::MAX)).unwrap();
        let mut out = Vec::new();
        for chunk in encoded.chunks(size) {
            out.extend_from_slice(&decoder.push(chunk)?);
        }
        Ok(out)
    }

    #[test]
    fn every_coding_round_trips() {
        let body = b"data: {\"a\":1}\n\n".repeat(100);
        for (named, made) in [
            ("gzip", "gzip"),
            ("deflate", "zlib"),
            ("deflate", "raw"),
            ("BR", "br"),
            ("zstd", "zstd"),
        ] {
            let encoded = encode(made, &body);
            for size in [1, 5, encoded.len()] {
                assert_eq!(decode(named, &encoded, size).unwrap(), body, "{made} by {size}");
            }
        }
        let twice = encode("br", &encode("gzip", &body));
        assert_eq!(decode("gzip, br", &twice, 3).unwrap(), body);
        for coding in ["gzip", "zstd"] {
            let members = [encode(coding, &body), encode(coding, &body)].concat();
            for size in [1, 11, members.len()] {
                assert_eq!(
                    decode(coding, &members, size).unwrap().len(),
                    body.len() * 2,
                    "{coding}"
                );
            }
        }
        assert_eq!(decode("identity", &body, 9).unwrap(), body);
    }

    #[test]
    fn cut_body_is_not_whole() {
        let body = b"data: 1\n\n".repeat(40);
        let coded = [
            ("gzip", encode("gzip", &body)),
            ("deflate", encode("zlib", &body)),
            ("deflate", encode("raw", &body)),
            ("br", encode("br", &body)),
            ("gzip, br", encode("br", &encode("gzip", &body))),
        ];
        for (coding, encoded) in coded {
            for length in [0, encoded.len() / 2, encoded.len() - 1, encoded.len()] {
                let mut decoder = Decoder::new([coding], 1 << 20, at_most(1 << 30)).unwrap();
                decoder.push(&encoded[..length]).unwrap();
                let is_whole = length == 0 || length == encoded.len();
                assert_eq!(decoder.is_cut(), !is_whole, "{coding}: {length}");
            }
        }
    }

    #[test]
    fn event_comes_out_when_flushed() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"data: 1\n\n").unwrap();
        encoder.flush().unwrap();
        assert_eq!(decode("gzip", encoder.get_ref(), 4).unwrap(), b"data: 1\n\n");
    }

    #[test]
    fn unreadable_encoding_is_error() {
        let unknown = Decoder::new(["compress"], 10, at_most(0)).err();
        assert_eq!(unknown, Some(UnsupportedEncoding::Unknown));
        assert_eq!(decode("gzip", b"<html><body>Bad gateway</body>", 30), Err(DecodeError::Broken));
        for coding in ["gzip", "br", "zstd"] {
            let bomb = encode(coding, &vec![0; 2 << 20]);
            assert_eq!(decode(coding, &bomb, bomb.len()), Err(DecodeError::TooLong), "{coding}");
        }
        let mut wide = zstd::Encoder::new(Vec::new(), 3).unwrap();
        wide.window_log(27).unwrap();
        wide.write_all(b"data: 1\n\n").unwrap();
        assert_eq!(decode("zstd", &wide.finish().unwrap(), 9), Err(DecodeError::Broken));
    }

    #[test]
    fn two_content_codings_are_accepted_and_three_are_not() {
        let read = |lines: &[&str]| Decoder::new(lines.iter().copied(), 10, at_most(0)).err();
        assert_eq!(read(&["gzip, identity, , zstd"]), None, "at the limit");
        for lines in [&["br, br, br"][..], &["br", "br", "br"], &["gzip,br", "x"], &["zstd", "a,b"]]
        {
            assert_eq!(read(lines), Some(UnsupportedEncoding::TooMany), "{lines:?}");
        }
        let many = "br, ".repeat(30_000);
        assert_eq!(read(&[&many]), Some(UnsupportedEncoding::TooMany));
    }

    #[test]
    fn memory_is_requested_with_first_byte_and_refusal_ends_decoding() {
        let body = vec![b'a'; 1 << 20];
        for coding in ["gzip", "br", "zstd"] {
            let encoded = encode(coding, &body);
            let read = |bytes| {
                let mut decoder = Decoder::new([coding], 2 << 20, at_most(bytes)).unwrap();
                decoder.push(&[]).unwrap();
                decoder.push(&encoded).map(|plain| plain.len())
            };
            assert_eq!(read(0), Err(DecodeError::NoMemory), "{coding}: its tables");
            assert_eq!(
                read(512 << 10),
                Err(DecodeError::NoMemory),
                "{coding}: what it decompresses to"
            );
            assert_eq!(read(4 << 20), Ok(1 << 20), "{coding}");
        }
    }

    #[test]
    fn large_output_counts_what_is_written() {
        let body = vec![b'a'; 5 << 20];
        for coding in ["gzip", "br", "zstd"] {
            let tables = Coding::named(coding).unwrap().holds(body.len());
            let limit = at_most(body.len() + tables);
            let mut decoder = Decoder::new([coding], 30 << 20, limit).unwrap();
            let decoded = decoder.push(&encode(coding, &body)).map(|plain| plain.len());
            assert_eq!(decoded, Ok(body.len()), "{coding}");
        }
    }

    proptest! {
        #[test]
        fn invariant_8_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            fuzz(&bytes);
        }
    }
}
