//! Which pictures are replaced, and by which text (`docs/healing.md` "What is changed").

use base64::Engine as _;
use serde_json::{Value, json};

use super::*;
use crate::context::plan::{Change, Decision, DecisionReason, PlanStep};
use crate::context::repair::tests::{of_place, proposed, refusal, repaired, scene, text, user};
use crate::dialect::PartIndex;
use crate::dialect::repair::{Refusal, RepairCause};

/// A PNG of this size in pixels, whose file has this many bytes.
fn png(width: u32, height: u32, bytes: usize) -> String {
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    file.extend(width.to_be_bytes().into_iter().chain(height.to_be_bytes()));
    file.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
    file.resize(bytes, 7);
    base64::engine::general_purpose::STANDARD.encode(file)
}

fn labelled(mime: &str, data: &str) -> Value {
    let source = json!({"type": "base64", "media_type": mime, "data": data});
    json!({"type": "image", "source": source})
}

fn picture(width: u32, height: u32, bytes: usize) -> Value {
    labelled("image/png", &png(width, height, bytes))
}

/// A small one, a wide one of 8,000 base64 characters, and a high one of 800.
fn three() -> Vec<Value> {
    vec![picture(280, 56, 60), picture(3_000, 56, 6_000), picture(280, 2_500, 600)]
}

fn of_detail(detail: RefusalDetail, limit: Option<u64>) -> Refusal {
    Refusal { detail: Some(detail), limit, ..refusal(RepairCause::Media) }
}

fn message(pictures: &[Value]) -> Value {
    let mut content = pictures.to_vec();
    content.push(text("Look."));
    json!([user(&json!(content))])
}

/// Which of the pictures are replaced.
fn gone(pictures: &[Value], refusal: &Refusal) -> Vec<usize> {
    let mut one = scene(&message(pictures));
    let sent = repaired(&mut one, refusal);
    let is_text = |at: &usize| sent[0]["content"][*at]["type"] == "text";
    (0..pictures.len()).filter(is_text).collect()
}

#[test]
fn refused_picture_and_all_over_same_limit_are_replaced() {
    use RefusalDetail::{Bytes, Count, Pixels, Request, Unsupported};
    let at = |place: &str, refusal: Refusal| Refusal {
        place: of_place(RepairCause::Media, place).place,
        ..refusal
    };
    let first = "messages.0.content.0.image.source";
    let second = "messages.0.content.1.image.source";
    let media = || refusal(RepairCause::Media);
    let bytes = |limit| of_detail(Bytes, Some(limit));
    // Some providers count decoded bytes.
    let counted =
        |count, limit| Refusal { count: Some(count), ..at(second, of_detail(Bytes, Some(limit))) };
    let cases = [
        (media(), vec![2]),
        (at(first, media()), vec![0]),
        (at("messages.0", media()), vec![0, 1, 2]),
        (bytes(800), vec![1]),
        (bytes(799), vec![1, 2]),
        (bytes(9_000), vec![2]),
        (at(first, bytes(800)), vec![0, 1]),
        (counted(6_000, 600), vec![1]),
        (counted(6_000, 599), vec![1, 2]),
        (counted(8_000, 800), vec![1]),
        (counted(8_000, 799), vec![1, 2]),
        (of_detail(Bytes, None), vec![2]),
        (of_detail(Pixels, Some(2_500)), vec![1]),
        (of_detail(Pixels, Some(2_499)), vec![1, 2]),
        (of_detail(Pixels, None), vec![2]),
        (of_detail(Count, Some(2)), vec![0, 1]),
        (of_detail(Count, None), vec![0]),
        (of_detail(Count, Some(90)), vec![0]),
        (of_detail(Count, Some(0)), vec![0, 1, 2]),
        (of_detail(Request, None), vec![0, 1]),
        (of_detail(Unsupported, None), vec![0, 1, 2]),
    ];
    for (refusal, expected) in cases {
        assert_eq!(gone(&three(), &refusal), expected, "{refusal:?}");
    }
    // A tenth more than needed is replaced; of a request that is too large, the oldest quarter of the bytes.
    let many: Vec<Value> = (0..25).map(|n| picture(280, 56 + n, 60)).collect();
    assert_eq!(gone(&many, &of_detail(Count, Some(20))), (0..7).collect::<Vec<_>>());
    let four: Vec<Value> = (0..4).map(|n| picture(280, 56 + n, 600)).collect();
    assert_eq!(gone(&four, &of_detail(Request, None)), [0, 1]);
    // The refusal names a place that is no picture.
    let named = at("messages.0.content.3.text", media());
    assert_eq!(proposed(&scene(&message(&three())), &named), []);
    assert_eq!(proposed(&scene(&json!([user(&json!("Go."))])), &media()), []);
}

/// If the format was refused, every picture that cannot be of its declared type is replaced.
#[test]
fn pictures_that_do_not_match_their_declared_type_are_replaced() {
    let by_address =
        json!({"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}});
    let untyped = |data: &str| json!({"type": "image", "source": {"type": "base64", "data": data}});
    // Each picture has other data, because equal data would be the same picture.
    let pictures = [
        labelled("image/jpeg", &png(280, 56, 60)),
        labelled("image/png", &png(280, 57, 60)),
        labelled("image/jpg", "/9j/4AAQ"),
        labelled("image/jpg", "R0lGODlh"),
        labelled("image/gif", "R0lGODdh"),
        labelled("image/webp", "UklGRAAA"),
        labelled("image/bmp", "Qk0AAAAA"),
        by_address,
        untyped(&png(280, 58, 60)),
        untyped("Qk0AAAAB"),
        labelled("image/png", ""),
    ];
    assert_eq!(gone(&pictures, &of_detail(RefusalDetail::Format, None)), [0, 3, 6, 9]);
}

/// The text names type, size and reason.
#[test]
fn placeholder_says_what_stood_there() {
    use RefusalDetail::{Bytes, Count, Format, Pixels, Request, Unsupported};
    let placeholder = |picture: Value, detail| {
        let refusal = Refusal { detail, ..refusal(RepairCause::Media) };
        let sent = repaired(&mut scene(&message(&[picture])), &refusal);
        sent[0]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let reasons = [
        (Some(Bytes), "it is too large"),
        (Some(Pixels), "it has too many pixels"),
        (Some(Count), "there are too many of them"),
        (Some(Format), "it cannot be read"),
        (Some(Unsupported), "this model reads none"),
        (Some(Request), "the request is too large with it"),
        (None, "the provider does not take it"),
    ];
    for (detail, why) in reasons {
        let expected = format!(
            "[An image stood here (image/png, 3000 by 56 pixels, 6 KB). It was left out: {why}.]"
        );
        assert_eq!(placeholder(picture(3_000, 56, 6_000), detail), expected);
    }
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"});
    let document = json!({"type": "document", "source": source});
    let expected = "[A document stood here (application/pdf, 1 KB). It was left out: \
                    the provider does not take it.]";
    assert_eq!(placeholder(document, None), expected);
    let by_address =
        json!({"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}});
    let expected = "[An image stood here. It was left out: it is too large.]";
    assert_eq!(placeholder(by_address, Some(Bytes)), expected);
}

/// Equal pictures are replaced by one decision. After that, only the remaining ones are considered.
#[test]
fn equal_pictures_are_replaced_everywhere_by_one_decision() {
    let same = [picture(280, 56, 60), picture(280, 57, 60), picture(280, 56, 60)];
    let mut one = scene(&message(&same));
    let all = refusal(RepairCause::Media);
    assert_eq!(proposed(&one, &all).len(), 1);
    let kinds = |sent: &Value| {
        [0, 1, 2].map(|at: usize| sent[0]["content"][at]["type"].as_str().unwrap().to_owned())
    };
    assert_eq!(kinds(&repaired(&mut one, &all)), ["text", "image", "text"]);
    let plan = one.plan();
    let placeholder = "[An image stood here (image/png, 280 by 56 pixels, 1 KB). It was left out: \
                 the provider does not take it.]";
    for (step, at) in plan.steps.iter().zip([0, 2]) {
        let at = PartIndex::new(0, at);
        let span = one.request().part(at).unwrap().span;
        let key = PartKey::of_bytes(placeholder.as_bytes());
        assert_eq!(plan.sent.replaced(span), Some((key, placeholder.len() as u32 / 4)));
        let expected = PlanStep {
            change: Change::Repaired,
            decision: Decision::New,
            why: DecisionReason::Refusal,
            at,
            byte: span.start as u64,
            bytes_before: span.len() as u64,
            bytes_after: text(placeholder).to_string().len() as u64,
            tokens_before: 0,
            tokens_after: 0,
        };
        assert_eq!(*step, expected);
    }
    assert_eq!(plan.steps.len(), 2);
    assert_eq!(kinds(&repaired(&mut one, &all)), ["text"; 3]);
    assert_eq!(proposed(&one, &all), []);
    assert_eq!(proposed(&one, &of_detail(RefusalDetail::Unsupported, None)), []);
}
