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
fn no_picture_header_exceeds_cost_of_largest_picture() {
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
fn picture_by_address_costs_what_recorded_ones_do() {
    let body = br#"{"model":"gpt-5-mini","messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"https://example.com/cat.png"}}]}]}"#;
    let read = dialect::read(Dialect::OpenaiChat, "/v1/chat/completions", body);
    let part = read.parts().find(|part| part.kind == PartKind::Image).unwrap();
    let media = part.media.as_ref().unwrap();
    for model in ["gpt-5-mini", "gpt-4o", "claude-opus-5", "gpt-6.1-sol", "gemini-2.5-pro"] {
        let guess = tokens(part, media, body, &rule(model)).unwrap_err();
        assert!((160..=420).contains(&guess.tokens), "{model} {guess:?}");
        assert!(guess.most > 420, "{model} {guess:?}");
    }
    let guess = tokens(part, media, body, &rule("gemini-3.5-pro")).unwrap_err();
    assert_eq!(guess.tokens, 1_089, "at any size");
}

/// Small pictures were once estimated at 20 and 258 tokens; Grok and Gemini 3 reported 256 and 1,089.
#[test]
fn small_picture_costs_grok_and_gemini_3_what_they_report() {
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
    let read = dialect::read(Dialect::Gemini, "/v1beta/models/m:generateContent", body.as_bytes());
    let part = read.parts().next().unwrap();
    assert_eq!(part.kind, PartKind::Document);
    let counted = tokens(part, part.media.as_ref().unwrap(), body.as_bytes(), &rule(model));
    counted.unwrap_or_else(|guess| guess.tokens)
}

/// Two PDFs of one page each were once estimated at 4,000 tokens; Gemini 2.5 reported 516. Later Gemini 3 reported
/// 560 a page.
#[test]
fn document_costs_gemini_its_pages() {
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
fn page_is_picture_and_text() {
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
fn impossible_picture_has_a_guess() {
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
        let guess = image(width, height).unwrap_err();
        assert_eq!((guess.tokens, guess.is_impossible), (PICTURE, true), "{width}×{height}");
    }
    let guess = counted(PartKind::Image, None).unwrap_err();
    let as_of_512_pixels =
        MediaGuess { tokens: 19 * 19, least: 0, most: 1_568, is_impossible: false };
    assert_eq!(guess, as_of_512_pixels);
    let guess = counted(PartKind::Document, Some(png(280, 56))).unwrap_err();
    assert_eq!((guess.tokens, guess.most), (DOCUMENT, 3 * DOCUMENT));
    let bare = |width, height| base64_tokens(&png(width, height), &rule, None);
    assert_eq!([bare(280, 56), bare(0, 56), bare(280, 0)], [20, PICTURE, PICTURE]);
    assert_eq!(base64_tokens("bm8gcGljdHVyZQ==", &rule, None), PICTURE);
}

/// The size is found after a camera's metadata, up to a limit; the rest is not decoded.
#[test]
fn only_so_much_of_picture_is_decoded() {
    // A JPEG with this many bytes of metadata before its size.
    let jpeg = |notes: usize| {
        let mut bytes = vec![0xff, 0xd8];
        for _ in 0..notes.div_ceil(60_000) {
            bytes.extend([0xff, 0xe1, 0xea, 0x62]); // a length of 60,002 includes its own two bytes
            bytes.extend(vec![0; 60_000]);
        }
        bytes.extend([0xff, 0xc0, 0, 17, 8, 0, 56, 1, 24, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1]);
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
