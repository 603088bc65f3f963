//! Which messages teach a lesson, and which only quote a client's text.

use super::*;

fn read(status: u16, body: &str, request: &str) -> LessonMatch {
    let refusal = RefusalBody { status, body: body.as_bytes() };
    taught(&refusal, &QuotableText { body: request.as_bytes(), texts: Vec::new() })
}

fn anthropic(message: &str) -> String {
    let error = serde_json::json!({"type": "invalid_request_error", "message": message});
    serde_json::json!({"type": "error", "error": error}).to_string()
}

/// A message of this form, with a value in each of its places.
fn filled(form: &str) -> String {
    let form = form.replace("{window}", "200,000").replace("{input}", "210001");
    let form = form.replace("{output}", "200000");
    form.replace("{}", "77").replace("{name}", "messages.1.content[0]")
}

#[test]
fn every_message_form_teaches_its_lesson_only_as_whole_message() {
    assert!(built_in().form.len() > 10, "the data does not parse");
    for form in &built_in().form {
        let status = form.status[0];
        let kind = form.kind.first().map_or("invalid_request_error", |kind| kind);
        for written in &form.message {
            let wrapped = |message: &str| {
                serde_json::json!({"error": {"type": kind, "message": message}}).to_string()
            };
            let message = filled(written);
            let all = read(status, &wrapped(&message), "{}");
            let lessons: Vec<Lesson> =
                form.teaches.iter().filter_map(|kind| kind.lesson(Some(200_000))).collect();
            assert!(lessons.iter().all(|lesson| all.holds(*lesson)), "{message}: {all:?}");
            for around in [
                format!("{message}: Extra inputs are not permitted"),
                format!("Unknown parameter: '{message}'."),
                format!("{message} x"),
                format!("x {message}"),
            ] {
                let taught = read(status, &wrapped(&around), "{}");
                assert_eq!(taught, LessonMatch::default(), "{around}");
            }
            assert_eq!(read(429, &wrapped(&message), "{}"), LessonMatch::default(), "{message}");
            if message.len() >= MIN_DECISIVE {
                let asks = serde_json::json!({"tools": [{ message.as_str(): 1 }]}).to_string();
                let taught = read(status, &wrapped(&message), &asks);
                assert!(taught.lessons.is_empty(), "{message}");
                assert!(!taught.quoted.is_empty(), "{message}");
            }
        }
    }
}

#[test]
fn message_that_stands_in_request_teaches_nothing() {
    const MESSAGE: &str = "prompt is too long: 10000 tokens > 9000 maximum";
    let refusal = anthropic(MESSAGE);
    assert_eq!(read(400, &refusal, "{}").window(), Some(9000));
    let escaped = "prompt is too long: 10000 tokens \\u003e 9000 maximum";
    for request in [
        serde_json::json!({ MESSAGE: 1 }).to_string(),
        serde_json::json!({"model": MESSAGE}).to_string(),
        serde_json::json!({"messages": [{"content": format!("Why {}?", MESSAGE.to_uppercase())}]})
            .to_string(),
        serde_json::json!({"tools": [{"function": {"name": MESSAGE.replace(' ', "\n  ")}}]})
            .to_string(),
        format!("{{\"x\":\"{escaped}\"}}"),
        serde_json::json!({"arguments": serde_json::json!({"x": MESSAGE}).to_string()}).to_string(),
        MESSAGE.to_owned(),
    ] {
        let taught = read(400, &refusal, &request);
        assert_eq!(taught.window(), None, "{request}");
        assert_eq!(taught.quoted.len(), 1, "{request}");
    }
    // The request contains the message with another number, so the provider is not quoting it.
    let earlier = serde_json::json!({"messages": MESSAGE.replace("9000", "8000")}).to_string();
    assert_eq!(read(400, &refusal, &earlier).window(), Some(9000));
    // A path and a header may be quoted, too.
    for word in [
        MESSAGE,
        "/v1beta/models/prompt%20is%20too%20long:%2010000+tokens%20%3E%209000%20maximum:x",
    ] {
        let refusal = RefusalBody { status: 400, body: refusal.as_bytes() };
        let request = QuotableText { body: b"{}", texts: vec![word] };
        assert_eq!(taught(&refusal, &request).window(), None, "{word}");
    }
}

/// Messages in which providers quoted a client's text, as recorded.
#[test]
fn quoted_text_teaches_nothing() {
    for message in [
        "prompt is too long: 10000 tokens > 9000 maximum",
        "This model's maximum context length is 9000 tokens.",
        "stream_options: Extra inputs are not permitted",
        "The reasoning_content in the thinking mode must be passed back to the API.",
        "property 'reasoning_content' is unsupported",
        "compaction: Extra inputs are not permitted",
        "Not Found",
    ] {
        let escaped = serde_json::json!(message).to_string();
        let quoted = &escaped[1..escaped.len() - 1];
        for body in [
            anthropic(&format!("{message}: Extra inputs are not permitted")),
            anthropic(&format!("messages.0.{message}: Extra inputs are not permitted")),
            anthropic(&format!("model: {message}")),
            anthropic(&format!("Unexpected value(s) `{message}` for the `anthropic-beta` header.")),
            format!(
                r#"{{"error":{{"message":"Unknown parameter: '{quoted}'.","type":"invalid_request_error","param":"{quoted}","code":"unknown_parameter"}}}}"#
            ),
            format!(
                r#"{{"error":{{"message":"The model `{quoted}` does not exist","type":"invalid_request_error","param":null,"code":"model_not_found"}}}}"#
            ),
            format!(
                r#"{{"error":{{"message":"Invalid 'tools[0].function.name': string does not match pattern.","type":"invalid_request_error","param":"{quoted}","code":"{quoted}"}}}}"#
            ),
            format!(
                r#"[{{"error":{{"code":400,"message":"Invalid JSON payload received. Unknown name \"{quoted}\": Cannot find field.","status":"INVALID_ARGUMENT","details":[{{"description":"{quoted}"}}]}}}}]"#
            ),
            format!(
                r#"{{"detail":[{{"type":"extra_forbidden","loc":["body","{quoted}"],"msg":"Extra inputs are not permitted","input":"{quoted}"}}]}}"#
            ),
            format!(
                r#"{{"error":{{"message":"Provider returned error","code":400,"metadata":{{"raw":"{{\"error\":{{\"message\":\"{quoted}: Extra inputs are not permitted\"}}}}","provider_name":"x"}}}}}}"#
            ),
            format!(
                r#"{{"error":{{"code":500,"message":"Failed to parse input at pos 0: {quoted}","type":"server_error"}}}}"#
            ),
        ] {
            for status in [400, 404, 422, 500] {
                assert_eq!(read(status, &body, "{}"), LessonMatch::default(), "{body}");
            }
        }
    }
}

#[test]
fn impossible_numbers_are_not_learned_as_window() {
    for message in [
        "prompt is too long: 9000 tokens > 10000 maximum",
        "prompt is too long: 100 tokens > 50 maximum",
        "prompt is too long: tokens > maximum",
    ] {
        assert_eq!(read(400, &anthropic(message), "{}"), LessonMatch::default(), "{message}");
    }
    let number = "9".repeat(30);
    let message = format!("prompt is too long: {number} tokens > {number} maximum");
    assert_eq!(read(400, &anthropic(&message), "{}"), LessonMatch::default());
}

#[test]
fn error_within_reply_teaches_like_error_response() {
    let error = ProviderError {
        kind: Some("context_length_exceeded".into()),
        message: Some("This model's maximum context length is 9000 tokens.".into()),
        ..ProviderError::default()
    };
    assert_eq!(taught_in_reply(&error, 200, &QuotableText::default()).window(), Some(9000));
}

#[test]
fn no_error_body_makes_reader_panic() {
    for body in ["", "{", "\"\u{0}\"", "{\"error\":{\"message\":\"ünlesbar > {window}\"}}"] {
        for status in [200, 400, 404] {
            let _ = read(status, body, body);
        }
    }
    let long = anthropic(&format!("{}: Expected `thinking`", "a.".repeat(50_000)));
    assert_eq!(read(400, &long, "{}"), LessonMatch::default());
}
