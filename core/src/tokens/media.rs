//! Images and documents: the tokens of an image from its header, those of a PDF from its pages.
//!
//! Decodes no more than a header needs, and of a document no more than [`READ`]. How a model counts is a
//! [`PictureRule`]. An unknown size is assumed to be small; what is not known at all costs a flat guess.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use imagesize::ImageSize as Size;
use memchr::memmem;

use crate::dialect::key::standard_alphabet;
use crate::dialect::models::{PageCost, Patches, PictureCost, PictureRule, Shrinking};
use crate::dialect::{Media, Part, PartKind, PictureDetail};

/// A document whose number of pages is not known: a flat guess (`docs/estimates.md` 1.4).
const DOCUMENT: u32 = 2_000;
/// Bytes of base64 that are decoded to find the pages of a document.
const READ: usize = 4 << 20;
/// No provider reads more pages of one document.
const MOST_PAGES: u64 = 1_000;
/// A page as a picture, if its size is not documented: A4 with 124 pixels per inch.
const PAGE: (u32, u32) = (1_024, 1_448);
/// An image whose header cannot be true.
const PICTURE: u32 = 1_200;
/// The assumed side of an image whose size is not known, most often one given by URL: recorded ones cost 160 to
/// 420, and this one about 300.
const UNKNOWN_SIDE: u32 = 512;
/// Bytes of base64 that are decoded to find an image's size: enough to skip a camera's metadata.
const HEADER: usize = 128 * 1024;

/// The longest side that is believed, in pixels: what OpenAI accepts, and what a JPEG can say. A header that says
/// more is wrong.
const LONGEST: usize = 65_535;

/// What an image or document may cost that nobody can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MediaGuess {
    pub(super) tokens: u32,
    pub(super) least: u32,
    pub(super) most: u32,
    /// Its header cannot be true.
    pub(super) is_impossible: bool,
}

/// Tokens of an image or document; `Err` with a guess if its size is unknown, or its header cannot be true.
pub(super) fn tokens(
    part: &Part,
    media: &Media,
    body: &[u8],
    rule: &PictureRule,
) -> Result<u32, MediaGuess> {
    let guess = |tokens, least, most| MediaGuess { tokens, least, most, is_impossible: false };
    if part.kind == PartKind::Document {
        return document(media, body, rule).ok_or(guess(DOCUMENT, 0, 3 * DOCUMENT));
    }
    match media.data.and_then(|data| size(data.slice(body))) {
        Some(size) if !is_possible(size) => {
            Err(MediaGuess { is_impossible: true, ..guess(PICTURE, 0, 2 * PICTURE) })
        }
        Some(size) => Ok(picture(size.width as u32, size.height as u32, rule, media.detail)),
        None => {
            let tokens = picture(UNKNOWN_SIDE, UNKNOWN_SIDE, rule, media.detail);
            Err(guess(tokens, 0, tokens.max(largest_picture(rule))))
        }
    }
}

fn is_possible(size: Size) -> bool {
    size.width > 0 && size.height > 0 && size.width.max(size.height) <= LONGEST
}

/// Tokens of a document: those of its pages if they can be counted and a page's cost is known.
fn document(media: &Media, body: &[u8], rule: &PictureRule) -> Option<u32> {
    let (picture, text) = match rule.page {
        PageCost::Unknown => return None,
        PageCost::Flat { picture, text } => (picture, text),
        PageCost::Picture { text } => {
            let detail = media.detail.or(Some(PictureDetail::High));
            (picture(PAGE.0, PAGE.1, rule, detail), text)
        }
        PageCost::Shape => match media.detail {
            Some(PictureDetail::Low) => (280, 0),
            Some(PictureDetail::Medium) | None => (560, 0),
            Some(PictureDetail::High | PictureDetail::Original) => (1_120, 0),
        },
    };
    let data = media.data.and_then(|data| base64_of(data.slice(body)));
    let pages = data.and_then(Pages::read)?;
    Some(pages.number * (picture + if pages.have_text { text } else { 0 }))
}

/// What is known of the pages of a PDF.
struct Pages {
    number: u32,
    have_text: bool,
}

impl Pages {
    /// The pages of a PDF, if it names them outside its compressed parts.
    fn read(base64: &[u8]) -> Option<Self> {
        // Of a long one only the beginning is read; the rest is taken to be alike.
        let read = decoded(base64, READ)?;
        if !read.starts_with(b"%PDF-") {
            return None;
        }
        let named =
            memmem::find_iter(&read, b"/Type").filter(|at| is_page(&read[at + 5..])).count();
        if named == 0 {
            return None;
        }
        // Of a long document only the beginning is read; the rest is taken to be alike.
        let number = named as u64 * base64.len() as u64 / base64.len().clamp(1, READ) as u64;
        // A scan has no fonts, and no text that could be read out of it.
        let have_text = memmem::find(&read, b"/Font").is_some();
        Some(Self { number: number.min(MOST_PAGES) as u32, have_text })
    }
}

fn is_page(value: &[u8]) -> bool {
    let name = value.trim_ascii_start().strip_prefix(b"/Page");
    name.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric))
}

pub(crate) fn base64_tokens(
    base64: &str,
    rule: &PictureRule,
    detail: Option<PictureDetail>,
) -> u32 {
    match base64_size(base64.as_bytes()) {
        Some(size) if is_possible(size) => {
            picture(size.width as u32, size.height as u32, rule, detail)
        }
        _ => PICTURE,
    }
}

pub(crate) fn largest_picture(rule: &PictureRule) -> u32 {
    match &rule.cost {
        PictureCost::Patches(patches) => {
            let costs = patches.limits.iter().map(|limit| {
                let across = u64::from(limit.longest.div_ceil(patches.side));
                let covering = (across * across).min(u64::from(limit.patches));
                let rows = u64::from(patches.row_end) * across;
                ((covering + rows) as f64 * patches.tokens).ceil() as u32
            });
            costs.max().unwrap_or(PICTURE)
        }
        // Two by four tiles: the longest side after scaling is 2,048 and the shorter 768.
        PictureCost::Tiles { base, tile } => base + 8 * tile,
        PictureCost::Crops => 16 * 258,
        PictureCost::Shape => 2_240,
        PictureCost::WholeAndTiles => 7 * 256,
    }
}

fn picture(width: u32, height: u32, rule: &PictureRule, detail: Option<PictureDetail>) -> u32 {
    match &rule.cost {
        PictureCost::Patches(patches) => in_patches(width, height, patches, detail),
        PictureCost::Tiles { base, .. } if detail == Some(PictureDetail::Low) => *base,
        PictureCost::Tiles { base, tile } => {
            let (width, height) = within(width, height, 2_048);
            // OpenAI scales to 2,048, then the shorter side to 768, and counts tiles of 512.
            let (width, height) = match width.min(height) {
                0..=768 => (width, height),
                shorter => within(width, height, width.max(height) * 768 / shorter),
            };
            base + tile * width.div_ceil(512) * height.div_ceil(512)
        }
        PictureCost::Crops if detail == Some(PictureDetail::Low) => 64,
        PictureCost::Crops => {
            let (width, height) = within(width, height, 3_072);
            // Gemini up to 2.5: each crop costs 258.
            258 * width.div_ceil(768) * height.div_ceil(768)
        }
        PictureCost::Shape => in_shape(
            width,
            height,
            match detail {
                Some(PictureDetail::Low) => 280.0,
                Some(PictureDetail::Medium) => 560.0,
                Some(PictureDetail::High) | None => 1_120.0,
                Some(PictureDetail::Original) => 2_240.0,
            },
        ),
        PictureCost::WholeAndTiles => {
            let tiles = width.div_ceil(448).saturating_mul(height.div_ceil(448)).min(6);
            // Grok reads the whole picture, too, if it has several tiles.
            256 * if tiles > 1 { tiles + 1 } else { 1 }
        }
    }
}

/// Tokens of an image that is covered with patches, after it was made small enough for its detail.
fn in_patches(width: u32, height: u32, rule: &Patches, detail: Option<PictureDetail>) -> u32 {
    let limit = rule.limit(detail);
    let (width, height) = within(width, height, limit.longest);
    let (width, height) = match rule.shrinking {
        _ if covering(width, height, rule.side) <= u64::from(limit.patches) => (width, height),
        Shrinking::Largest => largest(width, height, rule.side, limit.patches),
        Shrinking::WholePatches => whole_patches(width, height, rule.side, limit.patches),
    };
    let patches = covering(width, height, rule.side).min(u64::from(limit.patches));
    let rows = u64::from(rule.row_end * height.div_ceil(rule.side));
    ((patches + rows) as f64 * rule.tokens).ceil() as u32
}

fn covering(width: u32, height: u32, side: u32) -> u64 {
    u64::from(width.div_ceil(side)) * u64::from(height.div_ceil(side))
}

/// The largest size of the same shape that so many patches cover.
fn largest(width: u32, height: u32, side: u32, patches: u32) -> (u32, u32) {
    let mut fits = 1;
    let mut too_long = width.max(height);
    while too_long - fits > 1 {
        let longest = fits + (too_long - fits) / 2;
        let (width, height) = within(width, height, longest);
        match covering(width, height, side) <= u64::from(patches) {
            true => fits = longest,
            false => too_long = longest,
        }
    }
    within(width, height, fits)
}

/// The size of about the same shape whose area is so many patches, less what is no whole patch (OpenAI's formula).
fn whole_patches(width: u32, height: u32, side: u32, patches: u32) -> (u32, u32) {
    let [width, height, side] = [width, height, side].map(f64::from);
    let scale = (side * side * f64::from(patches) / (width * height)).sqrt();
    // Scaled down further, so that no patch is cut.
    let scale = scale * whole_share(width * scale / side).min(whole_share(height * scale / side));
    ((width * scale).max(1.0) as u32, (height * scale).max(1.0) as u32)
}

fn whole_share(patches: f64) -> f64 {
    if patches < 1.0 { 1.0 } else { patches.floor() / patches }
}

fn in_shape(width: u32, height: u32, most: f64) -> u32 {
    let scale = (most / (f64::from(width) * f64::from(height))).sqrt();
    // For an image of one pixel 33 by 33 were reported.
    let [across, down] =
        [width, height].map(|length| (f64::from(length) * scale).clamp(1.0, most) as u32);
    across * down
}

/// A size, scaled down so that its longer side is at most `longest`.
fn within(width: u32, height: u32, longest: u32) -> (u32, u32) {
    let side = width.max(height);
    if side <= longest {
        return (width, height);
    }
    let [width, height] = [width, height].map(|length| {
        let scaled = u64::from(length) * u64::from(longest) + u64::from(side) / 2;
        (scaled / u64::from(side)).max(1) as u32
    });
    (width, height)
}

/// Width and height, from a string literal that holds base64 or a `data:` URL.
pub(crate) fn size(literal: &[u8]) -> Option<Size> {
    base64_of(literal).and_then(base64_size)
}

/// The base64 in a string literal, alone or in a `data:` URL.
fn base64_of(literal: &[u8]) -> Option<&[u8]> {
    let text = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    match text.strip_prefix(b"data:") {
        Some(url) => Some(&url[memmem::find(url, b"base64,")? + 7..]),
        None => Some(text),
    }
}

pub(crate) fn base64_size(data: &[u8]) -> Option<Size> {
    imagesize::blob_size(&decoded(data, HEADER)?).ok()
}

fn decoded(base64: &[u8], most: usize) -> Option<Vec<u8>> {
    // Four characters are three bytes; a cut in between would not decode.
    let length = base64.len().min(most) / 4 * 4;
    let mut standard = base64[..length].to_vec();
    standard_alphabet(&mut standard);
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, config);
    engine.decode(standard).ok()
}

#[cfg(test)]
mod tests;
