use super::*;
use crate::dialect::StopReason;

fn read(dialect: Dialect, status: u16, framing: Framing, body: &[u8]) -> Reply {
    let mut reading = ResponseReader::new(dialect, status, framing, 1 << 12);
    reading.push(body);
    let whole = reading.finish(BodyEnd::Whole);
    for size in [1, 2, 5] {
        let mut reading = ResponseReader::new(dialect, status, framing, 1 << 12);
        body.chunks(size).for_each(|chunk| reading.push(chunk));
        assert_eq!(reading.finish(BodyEnd::Whole), whole, "by {size}");
    }
    for (first, second) in (0..body.len()).map(|at| body.split_at(at)) {
        let mut reading = ResponseReader::new(dialect, status, framing, 1 << 12);
        [first, second].into_iter().for_each(|piece| reading.push(piece));
        assert_eq!(reading.finish(BodyEnd::Whole), whole, "cut at {}", first.len());
        let mut reading = ResponseReader::new(dialect, status, framing, 1 << 12);
        reading.push(first);
        let (is_stream, prefix) = (reading.is_stream(), reading.finish(BodyEnd::Cut));
        assert!(!is_stream || whole.complete || !prefix.complete, "complete at {}", first.len());
    }
    fuzz(dialect, body);
    whole
}

const STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n\
    event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n\
    event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// Forms that no recording has, but that the rules of event streams allow.
#[test]
fn event_stream_is_read_in_every_allowed_notation() {
    let expected = read(Dialect::Anthropic, 200, Framing::Events, STREAM.as_bytes());
    assert!(expected.complete);
    assert!(expected.usage.total() == Some(5));
    assert_eq!(expected.stop, Some(StopReason::End));
    let split = STREAM.replace("\"usage\"", "\ndata: \"usage\"");
    assert_ne!(split, STREAM);
    for spelt in [
        STREAM.replace('\n', "\r\n"),
        STREAM.replace('\n', "\r"),
        format!("\u{feff}{STREAM}"),
        format!("\n \n\n{STREAM}"),
        STREAM.replace("event:", "id: 7\nretry: 10\nevent:"),
        STREAM.replace("data: ", "data:"),
        STREAM.replace("event:", ": ping\n\n: ping\nevent:"),
        STREAM.replace("\n\n", "\nunknown: x\n\n"),
        STREAM.trim_end().to_owned(),
        split,
    ] {
        for framing in [Framing::Events, Framing::Unknown] {
            assert_eq!(
                read(Dialect::Anthropic, 200, framing, spelt.as_bytes()),
                expected,
                "{spelt:?}"
            );
        }
    }
}

#[test]
fn json_body_is_read_even_if_it_is_declared_event_stream() {
    let body = r#"{"type":"message","id":"m","content":[],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}"#;
    for spelt in [body.to_owned(), format!("\n     \n{body}\n"), format!("\u{feff}{body}")] {
        for framing in [Framing::Events, Framing::Unknown] {
            let reply = read(Dialect::Anthropic, 200, framing, spelt.as_bytes());
            assert!(reply.complete, "{spelt:?}");
            assert!(reply.notes.is_empty(), "{spelt:?}");
            assert_eq!(reply.usage.total(), Some(5));
        }
    }
}

#[test]
fn error_bodies_may_be_json_arrays_html_or_text() {
    let error = r#"{"error":{"status":"UNAVAILABLE","message":"later"}}"#;
    for body in [error.to_owned(), format!("[{error}]"), format!("[{error}\n]\n")] {
        for framing in [Framing::Events, Framing::Unknown] {
            let reply = read(Dialect::Gemini, 503, framing, body.as_bytes());
            assert_eq!(reply.error.unwrap().kind.as_deref(), Some("UNAVAILABLE"));
            assert!(reply.complete);
            assert!(reply.notes.is_empty());
        }
    }
    for body in ["<html>Bad gateway</html>", "upstream connect error", "\u{feff}<html>"] {
        let reply = read(Dialect::OpenaiChat, 502, Framing::Unknown, body.as_bytes());
        assert_eq!(reply.notes, vec![Note::NotJson], "{body}");
        assert_eq!(reply.error, None, "{body}");
    }
    let nothing = read(Dialect::OpenaiChat, 204, Framing::Unknown, b"");
    assert_eq!(nothing, Reply::default());
}

#[test]
fn error_code_is_used_if_it_says_more_than_type() {
    for (error, kind) in [
        (
            r#"{"type":"invalid_request_error","code":"context_length_exceeded"}"#,
            "context_length_exceeded",
        ),
        (r#"{"type":"tokens","code":"rate_limit_exceeded"}"#, "rate_limit_exceeded"),
        (r#"{"type":"invalid_request_error","code":null}"#, "invalid_request_error"),
        (r#"{"type":"BadRequestError","code":400}"#, "BadRequestError"),
        (r#"{"type":"too_long","code":"400"}"#, "too_long"),
        (r#"{"type":"too_long","code":"It is too long"}"#, "too_long"),
        (r#"{"type":"too_long","code":""}"#, "too_long"),
        (r#"{"code":429,"status":"RESOURCE_EXHAUSTED"}"#, "RESOURCE_EXHAUSTED"),
        (r#"{"code":429,"message":"slow down"}"#, "429"),
    ] {
        for body in [format!(r#"{{"error":{error}}}"#), error.to_owned()] {
            let reply = read(Dialect::OpenaiChat, 400, Framing::Json, body.as_bytes());
            assert_eq!(reply.error.unwrap().kind.as_deref(), Some(kind), "{body}");
        }
    }
}

#[test]
fn invalid_event_spares_the_others() {
    for event in ["data: {\"type\":\n\n", "data: nonsense\n\n", "data: \u{0}\n\n", "data: {}}\n\n"]
    {
        let stream = format!("{event}{STREAM}");
        let reply = read(Dialect::Anthropic, 200, Framing::Events, stream.as_bytes());
        assert!(reply.complete);
        assert_eq!(reply.notes, vec![Note::BrokenEvent]);
    }
    let mut stream = STREAM.replace("\"m\"", "\"m\u{1}\"").into_bytes();
    let at = stream.iter().position(|byte| *byte == 1).unwrap();
    stream[at] = 0xff;
    let reply = read(Dialect::Anthropic, 200, Framing::Events, &stream);
    assert_eq!(reply.id.as_deref(), Some("m\u{fffd}"));
    assert!(reply.complete);
}

/// A body may end inside its last frame if the reply ended before. If it ends inside a text, it is broken.
#[test]
fn body_that_ends_in_its_last_frame_is_not_broken() {
    let chat = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Aye.\"},\"finish_reason\":\"stop\"}]}\n\n";
    for (dialect, stream) in [(Dialect::OpenaiChat, chat), (Dialect::Anthropic, STREAM)] {
        let end = "data: [DONE]";
        for cut in "data: ".len()..=end.len() {
            let reply =
                read(dialect, 200, Framing::Events, format!("{stream}{}", &end[..cut]).as_bytes());
            assert!(reply.complete, "{dialect:?} {cut}");
            assert!(!reply.notes.contains(&Note::BrokenEvent), "{dialect:?} {cut}");
        }
        let reply = read(dialect, 200, Framing::Events, format!("{stream}data: [DOOM").as_bytes());
        assert!(reply.notes.contains(&Note::BrokenEvent));
    }
}

#[test]
fn past_limit_reader_gives_up() {
    let long = "x".repeat(1 << 12);
    for body in [
        format!("data: \"{long}\"\n\n{STREAM}"),
        format!("{{\"id\":\"{long}\"}}"),
        format!("[{{\"id\":\"{long}\"}}]"),
        format!("<html>{long}"),
    ] {
        let reply = read(Dialect::Anthropic, 200, Framing::Unknown, body.as_bytes());
        assert_eq!(reply.notes, vec![Note::TooLong], "{}", &body[..9]);
        assert!(!reply.complete, "{}", &body[..9]);
    }
    let padding = " ".repeat(1 << 13);
    let padded = read(Dialect::Anthropic, 200, Framing::Unknown, padding.as_bytes());
    assert!(padded.parts.is_empty());
}

#[test]
fn one_event_may_be_megabyte() {
    let text = "word ".repeat(1 << 18);
    let stream = STREAM.replacen(
        "event: message_delta",
        &format!(
            "data: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{{\"type\":\"text\",\"text\":\"\"}}}}\n\n\
             data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n\
             event: message_delta"
        ),
        1,
    );
    for size in [stream.len(), 4096, 1021] {
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 2 << 20);
        stream.as_bytes().chunks(size).for_each(|chunk| reading.push(chunk));
        let reply = reading.finish(BodyEnd::Whole);
        assert_eq!(reply.parts[0].text.len(), text.len());
        assert!(reply.complete);
    }
}

#[test]
fn reply_is_complete_once_its_terminal_event_was_read() {
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 12);
    let (before, last) = STREAM.split_at(STREAM.len() - 1);
    reading.push(before.as_bytes());
    assert!(!reading.is_complete());
    reading.push(last.as_bytes());
    assert!(reading.is_complete());
    assert!(reading.is_stream());
}

proptest::proptest! {
    #[test]
    fn invariant_8_never_panics(bytes in proptest::collection::vec(proptest::prop_oneof![
        proptest::sample::select(b"data: {}[]\",\n\r:<\xef\xbb\xbf".to_vec()), proptest::prelude::any::<u8>()], 0..60)) {
        for dialect in [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini] {
            fuzz(dialect, &bytes);
        }
    }
}

/// `[DONE]` ends a stream. Only a reason to stop shows that the reply is whole.
#[test]
fn done_without_reason_is_broken() {
    let anthropic = r#"data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}"#;
    let chat =
        r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#;
    let responses = r#"data: {"type":"response.output_text.delta","output_index":0,"delta":"x"}"#;
    let gemini = r#"data: {"candidates":[{"content":{"parts":[{"text":"x"}]}}]}"#;
    let stopped = r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#;
    let finished = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let reason = r#"data: {"candidates":[{"finishReason":"STOP"}]}"#;
    for (dialect, half, end) in [
        (Dialect::Anthropic, anthropic, Some(stopped)),
        (Dialect::OpenaiChat, chat, Some(finished)),
        (Dialect::OpenaiResponses, responses, None),
        (Dialect::Gemini, gemini, Some(reason)),
    ] {
        let read = |text: String, end| {
            let mut reading = ResponseReader::new(dialect, 200, Framing::Events, 1 << 20);
            reading.push(text.as_bytes());
            reading.finish(end)
        };
        let broken = read(format!("{half}\n\ndata: [DONE]\n\n"), BodyEnd::Whole);
        assert!(!broken.complete, "{dialect:?}");
        assert_eq!(broken.stop, None, "{dialect:?}");
        let Some(end) = end else { continue };
        for done in ["", "data: [DONE]\n\n"] {
            let whole = read(format!("{half}\n\n{end}\n\n{done}"), BodyEnd::Whole);
            assert!(whole.complete, "{dialect:?}");
            assert_eq!(whole.stop, Some(StopReason::End), "{dialect:?}");
        }
        let cut = read(format!("{half}\n\n{end}\n\n"), BodyEnd::Cut);
        assert!(!cut.complete, "{dialect:?}");
    }
}
