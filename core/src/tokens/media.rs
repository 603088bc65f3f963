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

/// Tokens of an image or document; `Err` with a guess if its header cannot be true.
pub(super) fn tokens(
    part: &Part,
    media: &Media,
    body: &[u8],
    rule: &PictureRule,
) -> Result<u32, u32> {
    if part.kind == PartKind::Document {
        return Ok(document(media, body, rule));
    }
    match media.data.and_then(|data| size(data.of(body))) {
        Some(size) if !is_possible(size) => Err(PICTURE),
        Some(size) => Ok(picture(size.width as u32, size.height as u32, rule, media.detail)),
        None => Ok(picture(UNKNOWN_SIDE, UNKNOWN_SIDE, rule, media.detail)),
    }
}

fn is_possible(size: Size) -> bool {
    size.width > 0 && size.height > 0 && size.width.max(size.height) <= LONGEST
}

/// Tokens of a document: those of its pages if they can be counted and a page's cost is known, else a guess.
fn document(media: &Media, body: &[u8], rule: &PictureRule) -> u32 {
    let (picture, text) = match rule.page {
        PageCost::Unknown => return DOCUMENT,
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
    let data = media.data.and_then(|data| base64_of(data.of(body)));
    match data.and_then(Pages::read) {
        Some(pages) if pages.have_text => pages.number * (picture + text),
        Some(pages) => pages.number * picture,
        None => DOCUMENT,
    }
}

/// What is known of the pages of a PDF.
struct Pages {
    number: u32,
    have_text: bool,
}

impl Pages {
    /// The pages of a PDF, if it names them outside its compressed parts. Of a long one only the beginning is
    /// read; the rest is taken to be alike.
    fn read(base64: &[u8]) -> Option<Self> {
        let read = decoded(base64, READ)?;
        if !read.starts_with(b"%PDF-") {
            return None;
        }
        let named =
            memmem::find_iter(&read, b"/Type").filter(|at| is_page(&read[at + 5..])).count();
        if named == 0 {
            return None;
        }
        let number = named as u64 * base64.len() as u64 / base64.len().clamp(1, READ) as u64;
        // A scan has no fonts, and no text that could be read out of it.
        let have_text = memmem::find(&read, b"/Font").is_some();
        Some(Self { number: number.min(MOST_PAGES) as u32, have_text })
    }
}

/// Whether the type of an object is a page, and not the list of pages.
fn is_page(value: &[u8]) -> bool {
    let name = value.trim_ascii_start().strip_prefix(b"/Page");
    name.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric))
}

/// Tokens of an image given as base64.
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

/// The most that an image costs a model, whatever its size and detail.
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
        PictureCost::Tiles { base, tile } => base + 8 * tile,
        PictureCost::Crops => 16 * 258,
        PictureCost::Shape => 2_240,
        PictureCost::WholeAndTiles => 7 * 256,
    }
}

/// Tokens of an image of this size.
fn picture(width: u32, height: u32, rule: &PictureRule, detail: Option<PictureDetail>) -> u32 {
    match &rule.cost {
        PictureCost::Patches(patches) => in_patches(width, height, patches, detail),
        PictureCost::Tiles { base, .. } if detail == Some(PictureDetail::Low) => *base,
        PictureCost::Tiles { base, tile } => {
            let (width, height) = within(width, height, 2_048);
            let (width, height) = match width.min(height) {
                0..=768 => (width, height),
                shorter => within(width, height, width.max(height) * 768 / shorter),
            };
            base + tile * width.div_ceil(512) * height.div_ceil(512)
        }
        PictureCost::Crops if detail == Some(PictureDetail::Low) => 64,
        PictureCost::Crops => {
            let (width, height) = within(width, height, 3_072);
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

/// How many patches cover an image.
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
    let scale = scale * whole_share(width * scale / side).min(whole_share(height * scale / side));
    ((width * scale).max(1.0) as u32, (height * scale).max(1.0) as u32)
}

/// The share of a side of so many patches that is whole patches.
fn whole_share(patches: f64) -> f64 {
    if patches < 1.0 { 1.0 } else { patches.floor() / patches }
}

/// As many patches as fit into `most` in the image's shape; for an image of one pixel 33 by 33 were reported.
fn in_shape(width: u32, height: u32, most: f64) -> u32 {
    let scale = (most / (f64::from(width) * f64::from(height))).sqrt();
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

/// Width and height, from base64 alone.
pub(crate) fn base64_size(data: &[u8]) -> Option<Size> {
    imagesize::blob_size(&decoded(data, HEADER)?).ok()
}

/// The first `most` bytes of base64, decoded.
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

    fn rule(model: &str) -> PictureRule {
        Catalogue::default().model(model, "").pictures
    }

    fn cost(model: &str, width: u32, height: u32, detail: &str) -> u32 {
        let detail = match detail {
            "low" => Some(PictureDetail::Low),
            "medium" => Some(PictureDetail::Medium),
            "high" => Some(PictureDetail::High),
            "original" => Some(PictureDetail::Original),
            _ => None,
        };
        picture(width, height, &rule(model), detail)
    }

    /// A picture of 30,000 pixels a side was once estimated at 477,000 tokens.
    #[test]
    fn no_picture_header_exceeds_the_cost_of_the_largest_picture() {
        for (model, most) in [
            ("claude-opus-4-6", 1_568),
            ("claude-opus-4-8", 4_784),
            ("gpt-4o", 85 + 8 * 170),
            ("gpt-4o-mini", 2_833 + 8 * 5_667),
            ("gpt-5.2", 4_916),
            ("gpt-5.5", 12_000),
            ("gpt-6-astra", 36_000),
            ("gemini-2.5-pro", 16 * 258),
            ("gemini-3.5-flash", 2_240),
            ("grok-4.3", 7 * 256),
            ("deepseek-chat", 1_844),
            ("mistral-large-4", 55 * 56),
            ("qwen3-vl-plus", 2_560),
        ] {
            let rule = rule(model);
            assert_eq!(largest_picture(&rule), most, "{model}");
            for side in [1, 27, 28, 768, 3_073, 8_000, 16_384, 65_535] {
                for other in [1, 500, 16_384] {
                    for detail in ["low", "high", "original", "auto"] {
                        let tokens = cost(model, side, other, detail);
                        let what = format!("{model} {side}×{other} {detail}: {tokens}");
                        assert!((1..=most).contains(&tokens), "{what}");
                    }
                }
            }
        }
    }

    /// Such a picture was once estimated at 1,200 tokens; 160 to 420 were reported.
    #[test]
    fn a_picture_by_address_costs_what_recorded_ones_do() {
        let body = br#"{"model":"gpt-5-mini","messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"https://example.com/cat.png"}}]}]}"#;
        let read = dialect::read(Dialect::OpenaiChat, "/v1/chat/completions", body);
        let part = read.parts().find(|part| part.kind == PartKind::Image).unwrap();
        let media = part.media.as_ref().unwrap();
        for model in ["gpt-5-mini", "gpt-4o", "claude-opus-5", "gpt-6.1-sol", "gemini-2.5-pro"] {
            let counted = tokens(part, media, body, &rule(model));
            assert!(
                counted.is_ok_and(|tokens| (160..=420).contains(&tokens)),
                "{model} {counted:?}"
            );
        }
        assert_eq!(tokens(part, media, body, &rule("gemini-3.5-pro")), Ok(1_089), "at any size");
    }

    /// Small pictures were once estimated at 20 and 258 tokens; Grok and Gemini 3 reported 256 and 1,089.
    #[test]
    fn a_small_picture_costs_grok_and_gemini_3_what_they_report() {
        for model in ["grok-4-1-fast-non-reasoning", "x-ai/grok-4.3"] {
            assert_eq!(cost(model, 128, 128, ""), 256, "{model}");
            assert_eq!(cost(model, 16_384, 16_384, ""), 7 * 256, "{model}");
        }
        for model in ["gemini-3-flash-preview", "google/gemini-3.5-flash"] {
            assert_eq!(cost(model, 1, 1, ""), 1_089, "{model}");
            for (width, height) in [(1, 16_384), (1_920, 1_080), (9, 4_000), (33, 40)] {
                let tokens = cost(model, width, height, "");
                assert!((500..=1_120).contains(&tokens), "{model} {width}×{height}: {tokens}");
            }
        }
        assert_eq!(cost("gemini-2.5-flash", 128, 128, ""), 258);
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

    /// The tokens of a PDF in a request of this dialect's.
    fn document_of(model: &str, data: &str, resolution: &str) -> u32 {
        let body = format!(
            r#"{{"contents":[{{"role":"user","parts":[
            {{"inlineData":{{"mimeType":"application/pdf","data":"{data}"}}}}]}}],
            "generationConfig":{{"mediaResolution":"{resolution}"}}}}"#
        );
        let read =
            dialect::read(Dialect::Gemini, "/v1beta/models/m:generateContent", body.as_bytes());
        let part = read.parts().next().unwrap();
        assert_eq!(part.kind, PartKind::Document);
        tokens(part, part.media.as_ref().unwrap(), body.as_bytes(), &rule(model)).unwrap()
    }

    /// Two PDFs of one page each were once estimated at 4,000 tokens; Gemini 2.5 reported 516. Later Gemini 3 reported
    /// 560 a page.
    #[test]
    fn a_document_costs_gemini_its_pages() {
        let old = |data: &str| document_of("gemini-2.5-flash", data, "");
        assert_eq!([old(&pdf(1, 0)), old(&pdf(7, 0))], [258, 7 * 258]);
        let new = |resolution| document_of("gemini-3.5-flash", &pdf(3, 0), resolution);
        assert_eq!([new(""), new("MEDIA_RESOLUTION_LOW")], [3 * 560, 3 * 280]);
        assert_eq!(new("MEDIA_RESOLUTION_HIGH"), 3 * 1_120);
        // The pages cannot be counted (they are compressed, it is no PDF, or no base64), or nothing is documented.
        for data in [pdf(0, 0), png(280, 56), "%PDF /Type /Page".to_owned()] {
            assert_eq!(old(&data), DOCUMENT);
        }
        assert_eq!(document_of("deepseek-chat", &pdf(1, 0), ""), DOCUMENT);
        // Only the beginning of a long document is read, and the number of pages is limited.
        assert_eq!(old(&pdf(1, READ)), DOCUMENT);
        let long = [pdf(1, 0), "A".repeat(3 * READ)].concat().replace('=', "A");
        assert_eq!(old(&long), 3 * 258);
        assert_eq!(old(&pdf(5_000, 0)), 1_000 * 258);
    }

    /// Claude and GPT read a page as a picture and as text; a scan has no text. Once each document was 2,000.
    #[test]
    fn a_page_is_read_as_a_picture_and_as_text() {
        let text = pdf(4, 0);
        let with_fonts = standard(&format!(
            "{}/Font",
            String::from_utf8(decoded(text.as_bytes(), READ).unwrap()).unwrap()
        ));
        let of = |model: &str, data: &str| document_of(model, data, "");
        assert_eq!(of("claude-opus-5-5", &with_fonts), 4 * (1_525 + 780));
        assert_eq!(of("claude-haiku-4-5", &with_fonts), 4 * (1_525 + 560));
        assert_eq!([of("claude-opus-5-5", &text), of("claude-haiku-4-5", &text)], [4 * 1_525; 2]);
        assert_eq!(of("gpt-6-astra", &with_fonts), 4 * (1_767 + 450));
        assert_eq!(of("gpt-4o", &with_fonts), 4 * (85 + 6 * 170 + 450));
    }

    fn standard(text: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    /// Documented sizes at which pictures are made smaller, and measured ones (1.4).
    #[test]
    fn pictures_cost_what_is_documented() {
        let cases = [
            // Patches of 28 pixels. Claude up to 4.6 reads 1,568 of them and a longer side of 1,568; later models
            // 4,784 and 2,576.
            ("claude-opus-4-6", 28, 28, "", 1),
            ("claude-opus-4-6", 29, 28, "", 2),
            ("claude-haiku-4-5", 320, 200, "", 96),
            ("claude-sonnet-4-6", 1_092, 1_092, "", 1_521),
            ("claude-sonnet-4-6", 1_920, 1_080, "", 1_560),
            ("claude-sonnet-4-6", 1_928, 1_928, "", 1_521),
            ("claude-sonnet-4-6", 16_000, 1, "", 56),
            ("claude-opus-4-7", 1_280, 800, "", 1_334),
            ("claude-sonnet-5", 1_920, 1_080, "", 2_691),
            ("claude-fable-5", 1_928, 1_928, "", 4_761),
            ("anthropic/claude-opus-4.8", 3_840, 2_160, "", 4_784),
            ("us.anthropic.claude-opus-4-7-v1:0", 4_032, 3_024, "", 4_740),
            ("claude-haiku-5-5", 3_024, 1_964, "", 4_760),
            // Patches of 32 pixels at 1.2 tokens.
            ("gpt-5.4", 1_024, 1_024, "high", 1_229),
            ("gpt-5.4", 2_048, 2_048, "high", 3_000),
            ("gpt-5.4", 2_048, 2_048, "", 3_000),
            ("gpt-5.4", 2_048, 2_048, "low", 4_916),
            ("gpt-5.4-mini", 2_560, 1_440, "original", 4_320),
            ("gpt-5.5", 4_032, 3_024, "", 11_868),
            ("gpt-5.5", 2_560, 1_440, "high", 2_765),
            ("gpt-5.6-sol", 4_032, 3_024, "", 14_364),
            ("gpt-5-6-terra", 4_032, 3_024, "original", 14_364),
            ("openai/gpt-6-astra", 4_032, 3_024, "high", 2_942),
            ("gpt-6.1-sol", 4_032, 3_024, "low", 231),
            ("gpt-6.1-sol", 640, 480, "low", 231),
            ("gpt-7-unheard-of", 4_032, 3_024, "", 14_364),
            ("gpt-5.2", 1_280, 720, "", 1_104),
            ("gpt-5.3-codex", 756, 469, "", 432),
            ("gpt-4.1-mini", 1_024, 1_024, "", 1_659),
            ("o4-mini", 1_800, 2_400, "", 2_498),
            ("gpt-4.1-nano", 1_800, 2_400, "", 3_572),
            // Tiles of 512 pixels: 85 and 170, but 70 and 140, 75 and 150, 2,833 and 5,667 of others.
            ("gpt-4o", 1_024, 1_024, "high", 765),
            ("gpt-4o-2024-08-06", 2_048, 4_096, "", 1_105),
            ("gpt-4.1", 4_096, 8_192, "low", 85),
            ("gpt-4o-mini", 512, 512, "", 8_500),
            ("gpt-5", 1_920, 1_080, "", 910),
            ("gpt-5.1", 512, 512, "", 210),
            ("o3", 512, 513, "", 375),
            // Crops of 768 pixels, after scaling to a longer side of 3,072; 64 tokens at low resolution.
            ("gemini-2.5-pro", 385, 10, "", 258),
            ("gemini-2.5-pro", 10, 769, "", 2 * 258),
            ("gemini-2.5-pro", 6_144, 1_536, "", 4 * 258),
            ("gemini-2.5-pro", 6_144, 1_536, "low", 64),
            // As many patches as the resolution allows.
            ("gemini-3.8-flash", 512, 512, "", 1_089),
            ("gemini-3.8-flash", 1_920, 1_080, "", 44 * 25),
            ("gemini-3.8-flash", 1_920, 1_080, "low", 22 * 12),
            ("gemini-3.8-flash", 512, 512, "medium", 23 * 23),
            ("gemini-3.8-flash", 512, 512, "original", 47 * 47),
            // Tiles of 448 pixels, and one of the whole.
            ("grok-4.5", 448, 448, "", 256),
            ("grok-4.5", 449, 448, "", 3 * 256),
            ("grok-4.5", 1_344, 1_344, "", 7 * 256),
            // Patches of 16 and of 28 pixels, with a token for each row; and of 28 and 32 pixels.
            ("pixtral-12b-2409", 1_024, 1_024, "", 64 * 65),
            ("mistral-medium-3", 1_540, 770, "", 28 * 56),
            ("qwen2.5-vl-72b-instruct", 4_000, 4_000, "", 35 * 35),
            ("qwen3.6-plus", 1_024, 1_024, "", 1_024),
        ];
        for (model, width, height, detail, tokens) in cases {
            let counted = cost(model, width, height, detail);
            assert_eq!(counted, tokens, "{model} {width}×{height} {detail}");
        }
    }

    /// A header is believed up to a size. A picture without a header, and a document, are guessed at a fixed cost.
    #[test]
    fn a_picture_of_impossible_size_has_a_guessed_cost() {
        let rule = rule("claude-opus-4-5");
        let counted = |kind: PartKind, data: Option<String>| {
            let data = data.unwrap_or_else(|| "bm8gcGljdHVyZQ==".to_owned());
            let body = format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image","source":{{"type":"base64",
                "media_type":"image/png","data":"{data}"}}}}]}}]}}"#
            );
            let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
            let part = Part { kind, ..read.parts().next().unwrap().clone() };
            let media = part.media.as_ref().unwrap();
            tokens(&part, media, body.as_bytes(), &rule)
        };
        let image = |width, height| counted(PartKind::Image, Some(png(width, height)));
        assert_eq!(image(280, 56), Ok(20));
        assert_eq!(image(65_535, 28), Ok(56));
        for (width, height) in [(0, 28), (28, 0), (65_536, 28), (28, 65_536)] {
            assert_eq!(image(width, height), Err(PICTURE), "{width}×{height}");
        }
        assert_eq!(counted(PartKind::Image, None), Ok(19 * 19), "as one of 512 pixels");
        assert_eq!(counted(PartKind::Document, Some(png(280, 56))), Ok(DOCUMENT));
        let bare = |width, height| base64_tokens(&png(width, height), &rule, None);
        assert_eq!([bare(280, 56), bare(0, 56), bare(280, 0)], [20, PICTURE, PICTURE]);
        assert_eq!(base64_tokens("bm8gcGljdHVyZQ==", &rule, None), PICTURE);
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
