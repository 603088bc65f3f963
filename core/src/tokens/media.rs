//! Images and documents: the tokens of an image from its header, those of a PDF from its pages.
//!
//! Decodes no more than a header needs, and of a document no more than [`READ`]. An unknown size is counted
//! with a flat constant.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use imagesize::ImageSize as Size;
use memchr::memmem;

use crate::dialect::key::standard_alphabet;
use crate::dialect::models::{Family, Model, PictureCost};
use crate::dialect::{Media, Part, PartKind};

/// A document whose number of pages is not known: a flat guess (`docs/estimates.md` 1.4).
const DOCUMENT: u32 = 2_000;
/// Bytes of base64 that are decoded to find the pages of a document.
const READ: usize = 4 << 20;
/// A page of a PDF with Gemini, and with Gemini from 3 on: what it reports.
const PAGE: u32 = 258;
const PAGE_BY_ASPECT_RATIO: u32 = 520;
/// No provider reads more pages of one document.
const MOST_PAGES: u64 = 1_000;
/// An image whose header cannot be true.
const PICTURE: u32 = 1_200;
/// An image whose size is not known, most often one given by URL: recorded ones cost 160 to 420.
const PICTURE_BY_ADDRESS: u32 = 300;
/// No image costs more tokens than this, whatever its size.
pub(crate) const LARGEST_PICTURE: u32 = 4_800;
/// Bytes of base64 that are decoded to find an image's size: enough to skip a camera's metadata.
const HEADER: usize = 128 * 1024;

/// The longest side that is believed, in pixels: twice what any provider accepts. A header that says more is
/// wrong.
const LONGEST: usize = 16_384;

/// Tokens of an image or document; `Err` with a guess if its header cannot be true.
pub(super) fn tokens(
    part: &Part,
    media: &Media,
    body: &[u8],
    family: Family,
    cost: PictureCost,
) -> Result<u32, u32> {
    if part.kind == PartKind::Document {
        return Ok(document(media, body, family, cost));
    }
    match media.data.and_then(|data| size(data.of(body))) {
        Some(Size { width: 0, .. } | Size { height: 0, .. }) => Err(PICTURE),
        Some(size) if size.width.max(size.height) > LONGEST => Err(PICTURE),
        Some(size) => Ok(picture(size.width as u32, size.height as u32, family, cost)),
        None => Ok(PICTURE_BY_ADDRESS),
    }
}

/// Tokens of a document: those of its pages if they can be counted and a page's cost is known, else a guess.
fn document(media: &Media, body: &[u8], family: Family, cost: PictureCost) -> u32 {
    let page = match (family, cost) {
        (Family::Gemini, PictureCost::AspectRatio) => PAGE_BY_ASPECT_RATIO,
        (Family::Gemini, _) => PAGE,
        _ => return DOCUMENT,
    };
    let data = media.data.and_then(|data| base64_of(data.of(body)));
    data.and_then(pages).map_or(DOCUMENT, |pages| pages * page)
}

/// The pages of a PDF, if it names them outside its compressed parts. Of a long one only the beginning is
/// read; the rest is taken to be alike.
fn pages(base64: &[u8]) -> Option<u32> {
    let read = decoded(base64, READ)?;
    if !read.starts_with(b"%PDF-") {
        return None;
    }
    let named = memmem::find_iter(&read, b"/Type").filter(|at| is_page(&read[at + 5..])).count();
    let all = named as u64 * base64.len().max(1) as u64 / base64.len().clamp(1, READ) as u64;
    (named > 0).then(|| all.min(MOST_PAGES) as u32)
}

/// Whether the type of an object is a page, and not the list of pages.
fn is_page(value: &[u8]) -> bool {
    let name = value.trim_ascii_start().strip_prefix(b"/Page");
    name.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric))
}

/// Tokens of an image given as base64.
pub(crate) fn base64_tokens(base64: &str, model: &Model) -> u32 {
    match base64_size(base64.as_bytes()) {
        Some(Size { width, height }) if width > 0 && height > 0 => {
            picture(width as u32, height as u32, model.family, model.picture_cost)
        }
        _ => PICTURE,
    }
}

/// Patches that a model cuts an image into: Claude's of 28 by 28 and OpenAI's of 32 by 32 at 1.2 tokens are
/// measured (`docs/estimates.md` 1.4). Documented are Gemini's tiles of 768, and that it scales images larger
/// than 3,072 down.
fn picture(width: u32, height: u32, family: Family, cost: PictureCost) -> u32 {
    match cost {
        PictureCost::Family => {}
        PictureCost::Tiles => return tiles(width, height),
        PictureCost::AspectRatio => return patches(width, height),
    }
    match family {
        Family::Claude | Family::ClaudeNew => {
            let (width, height) = within(width, height, 1568);
            width.div_ceil(28) * height.div_ceil(28)
        }
        Family::O200k | Family::Cl100k | Family::Other => {
            let (width, height) = within(width, height, 2048);
            let patches = width.div_ceil(32) * height.div_ceil(32);
            (patches.min(1_536) * 6).div_ceil(5)
        }
        Family::Gemini => {
            let (width, height) = within(width, height, 3_072);
            258 * width.div_ceil(768) * height.div_ceil(768)
        }
    }
}

/// Grok's tiles: that one costs 256 was reported for an image of 128 by 128; that an image of several tiles
/// is also read as a whole, and has six tiles at most, is documented.
fn tiles(width: u32, height: u32) -> u32 {
    let tiles = (width.div_ceil(448) * height.div_ceil(448)).min(6);
    256 * if tiles > 1 { tiles + 1 } else { 1 }
}

/// Gemini's patches from Gemini 3 on: as many, in the image's shape, as fit into the documented 1,120; for an
/// image of one pixel 33 by 33 were reported.
fn patches(width: u32, height: u32) -> u32 {
    const MOST: f64 = 1_120.0;
    let scale = (MOST / (f64::from(width) * f64::from(height))).sqrt();
    let along = |length: u32| (f64::from(length) * scale).clamp(1.0, MOST) as u32;
    along(width) * along(height)
}

/// A size, scaled down so that its longer side is at most `longest`.
fn within(width: u32, height: u32, longest: u32) -> (u32, u32) {
    let side = width.max(height);
    if side <= longest {
        return (width, height);
    }
    let scale = |length: u32| (u64::from(length) * u64::from(longest) / u64::from(side)) as u32;
    (scale(width).max(1), scale(height).max(1))
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

/// Width and height, from base64 alone.
pub(crate) fn base64_size(data: &[u8]) -> Option<Size> {
    imagesize::blob_size(&decoded(data, HEADER)?).ok()
}

/// The first `most` bytes of base64, decoded.
fn decoded(base64: &[u8], most: usize) -> Option<Vec<u8>> {
    let whole = base64.len().min(most) / 4 * 4;
    let mut standard = base64[..whole].to_vec();
    standard_alphabet(&mut standard);
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, config);
    engine.decode(standard).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::models::Catalogue;
    use crate::dialect::{self, Dialect};

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
        let read = Some(Size { width: 1280, height: 720 });
        assert_eq!(size(format!("\"{data}\"").as_bytes()), read);
        assert_eq!(size(format!("\"data:image/png;base64,{data}\"").as_bytes()), read);
        assert_eq!(size(b"\"bm8gcGljdHVyZQ==\""), None);
        assert_eq!(size(b"\"\""), None);
    }

    /// A picture of 30,000 pixels a side was once estimated at 477,000 tokens.
    #[test]
    fn no_picture_header_exceeds_the_cost_of_the_largest_picture() {
        let families =
            [Family::Claude, Family::ClaudeNew, Family::O200k, Family::Gemini, Family::Other];
        for family in families {
            for side in [1, 27, 28, 768, 3_073, 8_000, 16_384] {
                for other in [1, 500, 16_384] {
                    let tokens = picture(side, other, family, PictureCost::Family);
                    assert!(
                        (1..=LARGEST_PICTURE).contains(&tokens),
                        "{family:?} {side}×{other}: {tokens}"
                    );
                }
            }
        }
        assert_eq!(picture(3_072, 3_072, Family::Gemini, PictureCost::Family), 16 * 258);
        assert_eq!(picture(12_000, 12_000, Family::Gemini, PictureCost::Family), 16 * 258);
    }

    /// Such a picture was once estimated at 1,200 tokens; 160 to 420 were reported.
    #[test]
    fn a_picture_by_address_costs_what_recorded_ones_do() {
        let body = br#"{"model":"gpt-5-mini","messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"https://example.com/cat.png"}}]}]}"#;
        let read = dialect::read(Dialect::OpenaiChat, "/v1/chat/completions", body);
        let part = read.parts().find(|part| part.kind == PartKind::Image).unwrap();
        let media = part.media.as_ref().unwrap();
        let counted = tokens(part, media, body, Family::O200k, PictureCost::Family);
        assert!(counted.is_ok_and(|tokens| (160..=420).contains(&tokens)), "{counted:?}");
    }

    /// Small pictures were once estimated at 20 and 258 tokens; Grok and Gemini 3 reported 256 and 1,089.
    #[test]
    fn a_small_picture_costs_grok_and_gemini_3_what_they_report() {
        let catalogue = Catalogue::default();
        let cost = |model: &str, width, height| {
            let model = catalogue.model(model, "");
            picture(width, height, model.family, model.picture_cost)
        };
        for model in ["grok-4-1-fast-non-reasoning", "x-ai/grok-4.3"] {
            assert_eq!(cost(model, 128, 128), 256, "{model}");
            assert_eq!(cost(model, 16_384, 16_384), 7 * 256, "{model}");
        }
        for model in ["gemini-3-flash-preview", "google/gemini-3.5-flash"] {
            assert_eq!(cost(model, 1, 1), 1_089, "{model}");
            for (width, height) in [(1, 16_384), (1_920, 1_080), (9, 4_000), (33, 40)] {
                let tokens = cost(model, width, height);
                assert!((500..=1_120).contains(&tokens), "{model} {width}×{height}: {tokens}");
            }
        }
        assert_eq!(cost("gemini-2.5-flash", 128, 128), 258);
    }

    /// A PDF with this many pages, and `before` bytes before them, as base64 in a string literal.
    fn pdf(pages: usize, before: usize) -> String {
        let mut text = format!("%PDF-1.4\n{}", "%".repeat(before));
        text += "1 0 obj << /Type /Catalog /Pages 2 0 R >> 2 0 obj << /Type/Pages /Count 9 >>";
        for page in 0..pages {
            text += ["<< /Type /Page /Parent 2 0 R >>", "<</Type/Page/Parent 2 0 R>>"][page % 2];
        }
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    /// Two PDFs of one page each were once estimated at 4,000 tokens; Gemini 2.5 reported 516. Gemini 3.5 reported 520
    /// for one page.
    #[test]
    fn a_document_costs_gemini_its_pages() {
        let document = |model: &str, data: &str| {
            let body = format!(
                r#"{{"contents":[{{"role":"user","parts":[
                {{"inlineData":{{"mimeType":"application/pdf","data":"{data}"}}}}]}}]}}"#
            );
            let path = format!("/v1beta/models/{model}:generateContent");
            let read = dialect::read(Dialect::Gemini, &path, body.as_bytes());
            let part = read.parts().next().unwrap();
            assert_eq!(part.kind, PartKind::Document);
            let model = Catalogue::default().model(model, "");
            let (family, cost) = (model.family, model.picture_cost);
            tokens(part, part.media.as_ref().unwrap(), body.as_bytes(), family, cost).unwrap()
        };
        let old = |data: &str| document("gemini-2.5-flash", data);
        assert_eq!([old(&pdf(1, 0)), old(&pdf(7, 0))], [258, 7 * 258]);
        assert_eq!(document("gemini-3.5-flash", &pdf(3, 0)), 3 * 520);
        // The pages cannot be counted (they are compressed, it is no PDF, or no base64), or another provider reads it.
        for data in [pdf(0, 0), png(280, 56), "%PDF /Type /Page".to_owned()] {
            assert_eq!(old(&data), DOCUMENT);
        }
        assert_eq!(document("gpt-5", &pdf(1, 0)), DOCUMENT);
        // Only the beginning of a long document is read, and the number of pages is limited.
        assert_eq!(old(&pdf(1, READ)), DOCUMENT);
        let long = [pdf(1, 0), "A".repeat(3 * READ)].concat().replace('=', "A");
        assert_eq!(old(&long), 3 * 258);
        assert_eq!(old(&pdf(5_000, 0)), 1_000 * 258);
    }

    #[test]
    fn pictures_cost_the_measured_tokens() {
        for (width, height, family, tokens) in [
            (1280, 720, Family::O200k, 1104),
            (756, 469, Family::O200k, 432),
            (1280, 800, Family::ClaudeNew, 1334),
            (320, 200, Family::Claude, 96),
        ] {
            assert_eq!(
                picture(width, height, family, PictureCost::Family),
                tokens,
                "{width}×{height} {family:?}"
            );
        }
    }

    /// Documented sizes at which pictures are scaled down, and at which another patch or tile begins (1.4).
    #[test]
    fn pictures_are_scaled_and_cut_into_pieces() {
        let cases = [
            // Patches of 28 by 28 pixels, scaled to a longer side of 1,568.
            (Family::Claude, 28, 28, 1),
            (Family::Claude, 29, 28, 2),
            (Family::ClaudeNew, 1_568, 1_568, 56 * 56),
            (Family::Claude, 3_136, 1_568, 56 * 28),
            (Family::Claude, 1_568, 3_136, 28 * 56),
            (Family::Claude, 16_000, 1, 56),
            // Patches of 32 by 32 pixels at 1.2 tokens, scaled to a longer side of 2,048; 1,536 patches at most.
            (Family::O200k, 32, 32, 2),
            (Family::Other, 33, 64, 5),
            (Family::Cl100k, 4_096, 320, (64 * 5 * 6_u32).div_ceil(5)),
            (Family::O200k, 2_048, 2_048, 1_844),
            // Tiles of 768 pixels, scaled to a longer side of 3,072; a small picture is one tile.
            (Family::Gemini, 384, 384, 258),
            (Family::Gemini, 385, 10, 258),
            (Family::Gemini, 10, 769, 2 * 258),
            (Family::Gemini, 769, 768, 2 * 258),
            (Family::Gemini, 6_144, 1_536, 4 * 258),
        ];
        for (family, width, height, tokens) in cases {
            let counted = picture(width, height, family, PictureCost::Family);
            assert_eq!(counted, tokens, "{width}×{height} {family:?}");
        }
        let grok = |width, height| picture(width, height, Family::Other, PictureCost::Tiles);
        assert_eq!([grok(448, 448), grok(449, 448), grok(448, 897)], [256, 3 * 256, 4 * 256]);
        assert_eq!([grok(896, 1_344), grok(1_344, 1_344)], [7 * 256; 2]);
        let by_ratio =
            |width, height| picture(width, height, Family::Gemini, PictureCost::AspectRatio);
        assert_eq!([by_ratio(1, 1), by_ratio(40, 40), by_ratio(400, 100)], [1_089, 1_089, 66 * 16]);
        assert_eq!([by_ratio(1, 9_000), by_ratio(9_000, 1)], [1_120; 2], "one is enough across");
    }

    /// A header is believed up to a size. A picture without a header, and a document, are guessed at a fixed cost.
    #[test]
    fn a_picture_of_impossible_size_has_a_guessed_cost() {
        let model = Catalogue::default().model("claude-opus-4-5", "");
        let counted = |kind: PartKind, data: Option<String>| {
            let data = data.unwrap_or_else(|| "bm8gcGljdHVyZQ==".to_owned());
            let body = format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image","source":{{"type":"base64",
                "media_type":"image/png","data":"{data}"}}}}]}}]}}"#
            );
            let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
            let part = Part { kind, ..read.parts().next().unwrap().clone() };
            let media = part.media.as_ref().unwrap();
            tokens(&part, media, body.as_bytes(), model.family, model.picture_cost)
        };
        let image = |width, height| counted(PartKind::Image, Some(png(width, height)));
        assert_eq!(image(280, 56), Ok(20));
        assert_eq!(image(16_384, 28), Ok(56));
        for (width, height) in [(0, 28), (28, 0), (16_385, 28), (28, 16_385)] {
            assert_eq!(image(width, height), Err(PICTURE), "{width}×{height}");
        }
        assert_eq!(counted(PartKind::Image, None), Ok(PICTURE_BY_ADDRESS));
        assert_eq!(counted(PartKind::Document, Some(png(280, 56))), Ok(DOCUMENT));
        let bare = |width, height| base64_tokens(&png(width, height), &model);
        assert_eq!([bare(280, 56), bare(0, 56), bare(280, 0)], [20, PICTURE, PICTURE]);
        assert_eq!(base64_tokens("bm8gcGljdHVyZQ==", &model), PICTURE);
    }

    /// The size is found after a camera's metadata, up to a limit; the rest is not decoded.
    #[test]
    fn only_so_much_of_a_picture_is_decoded() {
        // A JPEG with this many bytes of metadata before its size.
        let jpeg = |notes: usize| {
            let mut bytes = vec![0xff, 0xd8];
            for _ in 0..notes.div_ceil(60_000) {
                bytes.extend([0xff, 0xe1, 0xea, 0x62]); // a length of 60,002 includes its own two bytes
                bytes.extend(vec![0; 60_000]);
            }
            bytes.extend([
                0xff, 0xc0, 0, 17, 8, 0, 56, 1, 24, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1,
            ]);
            bytes.extend(vec![0; 60_000]);
            base64::engine::general_purpose::STANDARD.encode(bytes)
        };
        let read = Some(Size { width: 280, height: 56 });
        assert_eq!(base64_size(jpeg(0).as_bytes()), read);
        assert_eq!(base64_size(jpeg(60_000).as_bytes()), read);
        assert_eq!(base64_size(jpeg(120_000).as_bytes()), None);
        // Base64 that ends inside a group of four characters, and the URL-safe alphabet.
        let mut cut = png(280, 56);
        cut.truncate(cut.len() - 3);
        assert_eq!(base64_size(cut.as_bytes()), read);
        let url = jpeg(0).replace('+', "-").replace('/', "_");
        assert_eq!(base64_size(url.as_bytes()), read);
        assert_eq!(size(format!("\"data:image/png,{}\"", png(280, 56)).as_bytes()), None);
        assert_eq!(size(png(280, 56).as_bytes()), None, "it is no string");
    }
}
