//! Content encodings: a decoded copy of a compressed body, chunk by chunk.
//!
//! For reading only; what is passed on stays as it came. Bounded: no chunk unfolds to more than its
//! limit, so that a small body cannot fill memory. A broken encoding ends the reading, nothing else.

use std::borrow::Cow;
use std::io::Write;

/// Why a copy cannot be read on. The upstream's fault, or a coding we do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are not what `content-encoding` says.
    #[error("the body is not encoded as its content-encoding says")]
    Broken,
    /// It unfolds to more than the limit.
    #[error("the body unfolds to more than is read")]
    TooLong,
}

/// Largest window of a zstd frame, as a power of two: 8 MB, which is the most that HTTP allows
/// (RFC 9659). Without it a few bytes could ask for 128 MB.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Decodes one body.
pub struct Decoder {
    /// Innermost coding last: applied in this order.
    steps: Vec<Step>,
    limit: usize,
}

enum Step {
    Gzip(Box<flate2::write::MultiGzDecoder<Bounded>>),
    /// Zlib by its standard, raw deflate by the habit of some servers: the first byte tells.
    Deflate(Option<Deflate>),
    Brotli(Box<brotli::DecompressorWriter<Bounded>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Bounded>>),
}

enum Deflate {
    Zlib(Box<flate2::write::ZlibDecoder<Bounded>>),
    Raw(Box<flate2::write::DeflateDecoder<Bounded>>),
}

impl Decoder {
    /// A decoder for a `content-encoding` value; `None` where a coding in it is not known. No or an
    /// `identity` coding gives a decoder that passes bytes on. `limit`: most bytes one push unfolds.
    pub fn new(content_encoding: &str, limit: usize) -> Option<Self> {
        let codings = content_encoding.split(',').map(|coding| coding.trim().to_ascii_lowercase());
        let mut steps = Vec::new();
        for coding in codings.filter(|coding| !coding.is_empty() && coding != "identity") {
            let out = Bounded { bytes: Vec::new(), limit };
            steps.push(match coding.as_str() {
                "gzip" | "x-gzip" => Step::Gzip(Box::new(flate2::write::MultiGzDecoder::new(out))),
                "deflate" => Step::Deflate(None),
                "br" => Step::Brotli(Box::new(brotli::DecompressorWriter::new(out, 4096))),
                "zstd" => {
                    let mut decoder = zstd::stream::write::Decoder::new(out).ok()?;
                    decoder.window_log_max(ZSTD_WINDOW_LOG).ok()?;
                    Step::Zstd(Box::new(decoder))
                }
                _ => return None,
            });
        }
        steps.reverse();
        Some(Self { steps, limit })
    }

    /// Whether bytes pass as they are.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// The next encoded bytes, cut anywhere; answers what they unfold to.
    ///
    /// # Errors
    /// A [`Fault`]; the decoder is of no use after it.
    pub fn push<'b>(&mut self, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>, Fault> {
        let limit = self.limit;
        let mut bytes = Cow::Borrowed(bytes);
        for step in &mut self.steps {
            if bytes.is_empty() {
                break;
            }
            bytes = Cow::Owned(step.push(&bytes, limit)?);
        }
        Ok(bytes)
    }
}

impl Step {
    fn push(&mut self, bytes: &[u8], limit: usize) -> Result<Vec<u8>, Fault> {
        let out = match self {
            Step::Gzip(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Step::Deflate(decoder) => {
                decoder.get_or_insert_with(|| deflate(bytes, limit)).push(bytes)
            }
            Step::Brotli(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Step::Zstd(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
        };
        out.map_err(|error| match error.kind() {
            std::io::ErrorKind::StorageFull => Fault::TooLong,
            _ => Fault::Broken,
        })
    }
}

impl Deflate {
    fn push(&mut self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Deflate::Zlib(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
            Deflate::Raw(decoder) => write(decoder, bytes).map(|()| decoder.get_mut().take()),
        }
    }
}

/// A zlib stream's first byte names method 8 in its low half; raw deflate hardly ever does.
fn deflate(bytes: &[u8], limit: usize) -> Deflate {
    let out = Bounded { bytes: Vec::new(), limit };
    if bytes.first().is_some_and(|first| first & 0x0f == 8) {
        Deflate::Zlib(Box::new(flate2::write::ZlibDecoder::new(out)))
    } else {
        Deflate::Raw(Box::new(flate2::write::DeflateDecoder::new(out)))
    }
}

/// Writes and flushes, so that every event that has arrived comes out at once.
fn write(decoder: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    decoder.write_all(bytes)?;
    decoder.flush()
}

/// Takes what a decoder unfolds, up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Fuzz: no bytes make any coding panic or unfold past its limit.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    for coding in ["gzip", "deflate", "br", "zstd", "gzip, br"] {
        let Some(mut decoder) = Decoder::new(coding, 1 << 16) else { continue };
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
    use proptest::prelude::*;

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

    fn decode(coding: &str, encoded: &[u8], size: usize) -> Result<Vec<u8>, Fault> {
        let mut decoder = Decoder::new(coding, 1 << 20).unwrap();
        let mut out = Vec::new();
        for chunk in encoded.chunks(size) {
            out.extend_from_slice(&decoder.push(chunk)?);
        }
        Ok(out)
    }

    #[test]
    fn every_coding_gives_the_body_back_whatever_the_cuts() {
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
    fn an_event_comes_out_when_it_was_flushed_in() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"data: 1\n\n").unwrap();
        encoder.flush().unwrap();
        assert_eq!(decode("gzip", encoder.get_ref(), 4).unwrap(), b"data: 1\n\n");
    }

    #[test]
    fn what_cannot_be_read_says_so() {
        assert!(Decoder::new("compress", 10).is_none());
        assert_eq!(decode("gzip", b"<html><body>Bad gateway</body>", 30), Err(Fault::Broken));
        for coding in ["gzip", "br", "zstd"] {
            let bomb = encode(coding, &vec![0; 2 << 20]);
            assert_eq!(decode(coding, &bomb, bomb.len()), Err(Fault::TooLong), "{coding}");
        }
        let mut wide = zstd::Encoder::new(Vec::new(), 3).unwrap();
        wide.window_log(27).unwrap();
        wide.write_all(b"data: 1\n\n").unwrap();
        assert_eq!(decode("zstd", &wide.finish().unwrap(), 9), Err(Fault::Broken));
    }

    proptest! {
        #[test]
        fn invariant_8_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            fuzz(&bytes);
        }
    }
}
