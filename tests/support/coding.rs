//! Compressed bodies that can be read event by event, as providers flush them.

use std::io::Write;

/// The content encodings that clients offer.
pub const CODINGS: [&str; 5] = ["identity", "gzip", "deflate", "br", "zstd"];

/// Encodes a stream, flushed after every event.
pub enum Encoder {
    Identity,
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Deflate(flate2::write::ZlibEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    pub fn new(coding: &str) -> Self {
        let level = flate2::Compression::default();
        match coding {
            "identity" => Self::Identity,
            "gzip" => Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), level)),
            "deflate" => Self::Deflate(flate2::write::ZlibEncoder::new(Vec::new(), level)),
            "br" => Self::Brotli(Box::new(brotli::CompressorWriter::new(Vec::new(), 4096, 5, 18))),
            "zstd" => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap()),
            other => panic!("no coding {other}"),
        }
    }

    /// The bytes that carry this event.
    pub fn event(&mut self, event: &[u8]) -> Vec<u8> {
        fn written(encoder: &mut impl Write, event: &[u8]) {
            encoder.write_all(event).unwrap();
            encoder.flush().unwrap();
        }
        match self {
            Self::Identity => event.to_vec(),
            Self::Gzip(encoder) => {
                written(encoder, event);
                std::mem::take(encoder.get_mut())
            }
            Self::Deflate(encoder) => {
                written(encoder, event);
                std::mem::take(encoder.get_mut())
            }
            Self::Brotli(encoder) => {
                written(encoder, event);
                std::mem::take(encoder.get_mut())
            }
            Self::Zstd(encoder) => {
                written(encoder, event);
                std::mem::take(encoder.get_mut())
            }
        }
    }

    /// A whole body at once.
    pub fn whole(coding: &str, body: &[u8]) -> Vec<u8> {
        let mut encoder = Self::new(coding);
        let mut bytes = encoder.event(body);
        bytes.extend(match encoder {
            Self::Identity => Vec::new(),
            Self::Gzip(encoder) => encoder.finish().unwrap(),
            Self::Deflate(encoder) => encoder.finish().unwrap(),
            Self::Brotli(encoder) => encoder.into_inner(),
            Self::Zstd(encoder) => encoder.finish().unwrap(),
        });
        bytes
    }
}
