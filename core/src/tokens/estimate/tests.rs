use super::*;
use crate::dialect::models::Catalogue;
use crate::dialect::{self, Dialect};
use crate::tokens::costs::{FamilyCosts, TokenCosts};
use crate::tokens::features::CLASSES;

fn model(family: Family) -> Model {
    let name = match family {
        Family::ClaudeNew => "claude-opus-5",
        _ => "gpt-5",
    };
    Catalogue::default().model(name, "")
}

fn tokens(family: Family, body: &str) -> (Vec<u32>, CountingMethod) {
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
    let mut counter = Tokenizer::whole(family).counter(&read, body.as_bytes(), &model(family));
    let parts = read.parts().map(|part| counter.part(part)).collect();
    (parts, counter.counting)
}

const BODY: &str = r#"{"input":[{"role":"user","content":"Hello, \u0077orld!"},
        {"type":"function_call","call_id":"c","name":"shell","arguments":"{}"},
        {"type":"function_call_output","call_id":"c","output":"Hello, world!"}]}"#;

#[test]
fn gpts_structure_is_counted_to_token() {
    let (parts, counting) = tokens(Family::O200k, BODY);
    // 4 and the text; 6, "functions.shell" and the text (`docs/estimates.md` 1.3).
    assert_eq!(parts[0], 4 + 4);
    assert_eq!(parts[2], 6 + 2 + 4);
    assert_eq!(counting, CountingMethod::Exact);
}

/// Given costs apply to one tokenizer. Another one in the same process counts as before.
#[test]
fn given_costs_hold_for_tokenizer_that_has_them_and_no_other() {
    let counted = |tokenizer: Tokenizer| tokenizer.reply().text("So many words of one token each.");
    let fitted = Tokenizer::whole(Family::ClaudeNew);
    let given = |cost| {
        let costs = TokenCosts { classes: &[cost; CLASSES], frequent: &[] };
        FamilyCosts::new(Family::ClaudeNew, costs)
    };
    let twice = fitted.with_costs(given(2.0));
    let plain =
        Tokenizer::whole(Family::Other).encoding.unwrap().count("So many words of one token each.");
    let before = counted(fitted);
    assert_eq!(counted(twice) as usize, 2 * plain);
    assert_eq!(counted(fitted), before);
    assert_ne!(counted(fitted), counted(twice));
    // Costs for another family, for a family without fitted costs, and values that are no costs, are ignored or
    // refused.
    let other = Tokenizer::whole(Family::Claude);
    assert_eq!(counted(other.with_costs(given(2.0))), counted(other));
    let costs = TokenCosts { classes: &[1.0; CLASSES], frequent: &[] };
    assert!(FamilyCosts::new(Family::O200k, costs).is_none());
    assert!(given(1_000.0).is_none());
    assert!(given(f32::NAN).is_none());
}

/// Gemini 3 counts `\r
/// ` like `
/// `. Older Geminis and other families count the carriage return.
#[test]
fn gemini_3_ignores_carriage_return() {
    let counted = |model: &str, text: &str| {
        let body = format!(r#"{{"contents":[{{"role":"user","parts":[{{"text":"{text}"}}]}}]}}"#);
        let path = format!("/v1beta/models/{model}:generateContent");
        let read = dialect::read(Dialect::Gemini, &path, body.as_bytes());
        let model = Catalogue::default().model(model, "");
        let whole = Tokenizer::whole(model.family);
        let mut counter = whole.counter(&read, body.as_bytes(), &model);
        counter.part(read.parts().next().unwrap())
    };
    let lines = |end: &str| format!("one{}", end.repeat(20)).repeat(20);
    let (with, without) = (lines(r"\r\n"), lines(r"\n"));
    for model in ["gemini-3-pro-preview", "gemini-3.5-flash"] {
        assert_eq!(counted(model, &with), counted(model, &without), "{model}");
    }
    for model in ["gemini-2.5-pro", "gpt-5"] {
        assert!(counted(model, &with) > counted(model, &without), "{model}");
    }
}

#[test]
fn other_families_scale() {
    let (parts, counting) = tokens(Family::ClaudeNew, BODY);
    assert_eq!(parts[0], 6);
    assert_eq!(parts[2], 48 + 6);
    assert_eq!(counting, CountingMethod::Ratio);
}

/// The rate is from recordings. Another part with encrypted content and no text is only a marker.
#[test]
fn encrypted_compaction_is_counted_by_its_length() {
    let counted = |kind: &str, bytes: usize| {
        let encrypted = "g".repeat(bytes);
        let body =
            format!(r#"{{"input":[{{"type":"{kind}","encrypted_content":"{encrypted}"}}]}}"#);
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
        let whole = Tokenizer::whole(Family::O200k);
        let mut counter = whole.counter(&read, body.as_bytes(), &model(Family::O200k));
        let mut part = read.parts().next().unwrap().clone();
        let tokens = counter.part(&part);
        assert!(counter.guesses_compaction());
        assert!(counter.counting == CountingMethod::Length);
        part.name = Some("marker".into());
        let mut counter = whole.counter(&read, body.as_bytes(), &model(Family::O200k));
        assert_eq!(counter.part(&part), 0);
        assert!(!counter.guesses_compaction());
        tokens
    };
    assert!(counted("compaction", 2_764).abs_diff(262) <= 10);
    // The difference of the two recorded compactions is 159 tokens.
    let more = counted("compaction_summary", 4_068) - counted("compaction", 2_764);
    assert!(more.abs_diff(159) <= 5, "{more}");
    assert_eq!(counted("compaction", 100), 0);
}

#[test]
fn text_past_limit_or_without_vocabulary_counts_by_length() {
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", BODY.as_bytes());
    for tokenizer in [
        Tokenizer { limit: 5, ..Tokenizer::whole(Family::O200k) },
        Tokenizer { encoding: None, ..Tokenizer::whole(Family::O200k) },
    ] {
        let mut counter = tokenizer.counter(&read, BODY.as_bytes(), &model(Family::O200k));
        assert_eq!(counter.part(read.parts().next().unwrap()), 4 + 3);
        assert_eq!(counter.counting, CountingMethod::Length);
    }
}

/// This many characters that look like base64.
fn base64(length: u64) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mixed = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(21) % 64;
    (0..length).map(|at| char::from(ALPHABET[mixed(at) as usize])).collect()
}

/// Text of no language, or no text at all: the work is limited, and the count is close to that of the whole.
#[test]
fn long_text_is_counted_from_samples() {
    let base64 = base64(1 << 20);
    for (text, family) in [
        (base64.clone(), Family::O200k),
        (base64, Family::ClaudeNew),
        ("a".repeat(1 << 19), Family::O200k),
        ("\\ud800".repeat(100_000), Family::Gemini),
        ("日本語".repeat(50_000), Family::Claude),
    ] {
        let body = format!(r#"{{"input":[{{"role":"user","content":"{text}"}}]}}"#);
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
        let part = read.parts().next().unwrap();
        let short = Tokenizer { limit: 1 << 16, ..Tokenizer::whole(family) };
        let mut counter = short.counter(&read, body.as_bytes(), &model(family));
        let sampled = counter.part(part);
        assert_eq!(counter.counting, CountingMethod::Length);
        let whole = Tokenizer { limit: usize::MAX, ..Tokenizer::whole(family) };
        let whole = whole.counter(&read, body.as_bytes(), &model(family)).part(part);
        let ratio = f64::from(sampled) / f64::from(whole);
        assert!((0.9..1.1).contains(&ratio), "{family:?}: {sampled} for {whole}");
    }
}
/// However long a text is and whatever it contains, only a limited number of bytes is tokenised.
#[test]
fn only_limited_number_of_bytes_is_tokenised_for_any_text() {
    let most = |limit: usize| limit + SAMPLES * SAMPLE_BYTES;
    let many = format!(r#"a"}},{}{{"role":"user","content":"b"#, {
        r#"{"role":"user","content":"one\ud800two"},"#.repeat(40_000)
    });
    for (text, counting) in [
        (base64(5 << 20), CountingMethod::Length),
        ("x".repeat(1 << 20), CountingMethod::Exact),
        ("\\udc00\\ud800".repeat(200_000), CountingMethod::Exact),
        ("\\ud83d".repeat(1 << 20), CountingMethod::Length),
        (many, CountingMethod::Exact),
    ] {
        let body = format!(r#"{{"input":[{{"role":"user","content":"{text}"}}]}}"#);
        let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
        let tokenizer = Tokenizer::whole(Family::O200k);
        let mut counter = tokenizer.counter(&read, body.as_bytes(), &model(Family::O200k));
        let tokens: u32 = read.parts().map(|part| counter.part(part)).sum();
        assert!(counter.looked <= most(EXACT_BYTES), "{} bytes", counter.looked);
        assert_eq!(counter.counting, counting, "{}", &text[..40]);
        let least = text.len() as u32 / 100;
        assert!((least..text.len() as u32).contains(&tokens), "{tokens} of {}", text.len());
    }
}
