//! Pictures and documents: tokens from the header's bytes alone.
//!
//! Decodes no more than a header needs. Unknown sizes get flat constants.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

use crate::dialect::key::standard_alphabet;
use crate::dialect::models::Family;
use crate::dialect::{Media, Part, PartKind};

/// A document whose pages are not known; a flat guess (`estimator.md` §3).
const DOCUMENT: u32 = 2_000;
/// A picture whose size is not known.
const PICTURE: u32 = 1_200;
/// Base64 that is decoded to find a picture's size: enough to step over a camera's notes.
const HEADER: usize = 128 * 1024;

/// Tokens of a picture or document.
pub(super) fn tokens(part: &Part, media: &Media, body: &[u8], family: Family) -> u32 {
    if part.kind == PartKind::Document {
        return DOCUMENT;
    }
    let size = media.data.and_then(|data| size(data.of(body)));
    size.map_or(PICTURE, |(width, height)| picture(width, height, family))
}

/// Patches a model cuts a picture into: Claude's of 28 by 28 and OpenAI's of 32 by 32 at 1.2 tokens
/// are measured (`estimator.md` §1), Gemini's tiles of 768 are documented.
fn picture(width: u32, height: u32, family: Family) -> u32 {
    match family {
        Family::Claude | Family::ClaudeNew => {
            let (width, height) = within(width, height, 1568);
            (width.div_ceil(28) * height.div_ceil(28)).min(4_800)
        }
        Family::O200k | Family::Cl100k | Family::Other => {
            let (width, height) = within(width, height, 2048);
            let patches = width.div_ceil(32) * height.div_ceil(32);
            (patches.min(1_536) * 6).div_ceil(5)
        }
        Family::Gemini => match width.max(height) {
            0..=384 => 258,
            _ => 258 * width.div_ceil(768) * height.div_ceil(768),
        },
    }
}

/// A size scaled down so that its longer side fits.
fn within(width: u32, height: u32, longest: u32) -> (u32, u32) {
    let side = width.max(height);
    if side <= longest {
        return (width, height);
    }
    let scale = |length: u32| (u64::from(length) * u64::from(longest) / u64::from(side)) as u32;
    (scale(width).max(1), scale(height).max(1))
}

/// Width and height, from a string literal of base64 or of a `data:` URL.
fn size(literal: &[u8]) -> Option<(u32, u32)> {
    let text = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let data = match text.strip_prefix(b"data:") {
        Some(url) => &url[url.windows(7).position(|window| window == b"base64,")? + 7..],
        None => text,
    };
    let whole = data.len().min(HEADER) / 4 * 4;
    let mut standard = data[..whole].to_vec();
    standard_alphabet(&mut standard);
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, config);
    let header = engine.decode(standard).ok()?;
    let size = imagesize::blob_size(&header).ok()?;
    Some((
        u32::try_from(size.width).ok()?.min(1 << 15),
        u32::try_from(size.height).ok()?.min(1 << 15),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a PNG of this size, as base64 in a string literal.
    fn png(width: u32, height: u32) -> String {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend_from_slice(&width.to_be_bytes());
        bytes.extend_from_slice(&height.to_be_bytes());
        bytes.extend_from_slice(&[8, 2, 0, 0, 0, 0, 0, 0, 0]);
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    #[test]
    fn sizes_come_from_headers() {
        let data = png(1280, 720);
        assert_eq!(size(format!("\"{data}\"").as_bytes()), Some((1280, 720)));
        assert_eq!(size(format!("\"data:image/png;base64,{data}\"").as_bytes()), Some((1280, 720)));
        assert_eq!(size(b"\"bm8gcGljdHVyZQ==\""), None);
        assert_eq!(size(b"\"\""), None);
    }

    #[test]
    fn measured_pictures() {
        for (width, height, family, tokens) in [
            (1280, 720, Family::O200k, 1104),
            (756, 469, Family::O200k, 432),
            (1280, 800, Family::ClaudeNew, 1334),
            (320, 200, Family::Claude, 96),
        ] {
            assert_eq!(picture(width, height, family), tokens, "{width}×{height} {family:?}");
        }
    }
}
