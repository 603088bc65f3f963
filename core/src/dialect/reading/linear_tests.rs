//! Twice the input takes about twice the steps, in every dialect and however it is cut, and what is kept is bounded.
//!
//! Steps are counted (`wire::steps`), not timed.

use super::*;
use crate::dialect::reply::MOST_PARTS;
use crate::wire::steps;

/// What grows in a stream, and its event at a place.
type HostileStream = (&'static str, Dialect, fn(usize) -> String);
/// A body of about this many bytes.
type HostileBody = (&'static str, fn(usize) -> String);

const STREAMS: [HostileStream; 9] = [
    ("new blocks", Dialect::Anthropic, |at| {
        format!(
            r#"{{"type":"content_block_start","index":{at},"content_block":{{"type":"text","text":""}}}}"#
        )
    }),
    ("deltas of an unknown block", Dialect::Anthropic, |at| match at % 2 {
        0 => format!(
            r#"{{"type":"content_block_start","index":{at},"content_block":{{"type":"text","text":""}}}}"#
        ),
        _ => r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#
            .into(),
    }),
    ("new output indexes", Dialect::OpenaiResponses, |at| {
        format!(
            r#"{{"type":"response.output_text.delta","output_index":{at},"content_index":0,"delta":"a"}}"#
        )
    }),
    ("new places in an item", Dialect::OpenaiResponses, |at| {
        format!(
            r#"{{"type":"response.output_text.delta","output_index":0,"content_index":{at},"delta":"a"}}"#
        )
    }),
    ("names without ids", Dialect::OpenaiChat, |_| {
        r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":"}}]}}]}"#
            .into()
    }),
    ("new calls", Dialect::OpenaiChat, |at| {
        format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{at},"id":"c{at}","function":{{"name":"f","arguments":"{{}}"}}}}]}}}}]}}"#
        )
    }),
    ("details", Dialect::OpenaiChat, |at| {
        format!(
            r#"{{"choices":[{{"delta":{{"reasoning_details":[{{"type":"x","index":{at}}}]}}}}]}}"#
        )
    }),
    ("signed texts", Dialect::Gemini, |_| {
        r#"{"candidates":[{"content":{"parts":[{"text":"a","thoughtSignature":"c2ln"}]}}]}"#.into()
    }),
    ("places in arguments", Dialect::Gemini, |at| {
        let name = if at == 0 { r#""name":"f","# } else { "" };
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"functionCall":{{{name}"partialArgs":[{{"jsonPath":"$[{at}].a.b.c","numberValue":1}}],"willContinue":true}}}}]}}}}]}}"#
        )
    }),
];

/// Reads chunks of this many bytes; returns what is held in the end, and the reply.
fn read_in(dialect: Dialect, body: &[u8], size: usize) -> (usize, Reply) {
    let mut reading = ResponseReader::new(dialect, 200, Framing::Unknown, 8 << 20);
    body.chunks(size).for_each(|chunk| reading.push(chunk));
    (reading.holds(), reading.finish(BodyEnd::Whole))
}

fn steps_of(dialect: Dialect, body: &[u8], size: usize) -> usize {
    steps::during(|| drop(read_in(dialect, body, size)))
}

/// The first events fill what is kept; those after it cost the same each.
#[test]
fn twice_input_takes_twice_steps() {
    for (name, dialect, event) in STREAMS {
        let stream = |events: usize| -> String {
            (0..events).map(|at| format!("data: {}\n\n", event(at))).collect()
        };
        let [once, twice] =
            [8_000, 16_000].map(|events| steps_of(dialect, stream(events).as_bytes(), 1 << 16));
        assert!(twice <= once * 5 / 2 + 1_000, "{name}: {once}, then {twice}");
    }
}

#[test]
fn one_byte_at_time_takes_twice_steps_for_twice_input() {
    let bodies: [HostileBody; 4] = [
        ("white space, then an array", |size| " ".repeat(size) + r#"[{"candidates":[]}]"#),
        ("white space, then an object", |size| " ".repeat(size) + r#"{"choices":[]}"#),
        ("white space", |size| " ".repeat(size)),
        ("one long element", |size| format!(r#"[{{"text":"{}"}}]"#, "a".repeat(size))),
    ];
    for (name, body) in bodies {
        for dialect in
            [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini]
        {
            let [once, twice] =
                [10_000, 20_000].map(|size| steps_of(dialect, body(size).as_bytes(), 1));
            assert!(twice <= once * 5 / 2 + 1_000, "{name}, {dialect:?}: {once}, then {twice}");
        }
    }
}

#[test]
fn reply_has_most_of_parts() {
    for (name, dialect, event) in STREAMS {
        let stream: String =
            (0..MOST_PARTS * 4).map(|at| format!("data: {}\n\n", event(at))).collect();
        let (held, reply) = read_in(dialect, stream.as_bytes(), 1 << 16);
        assert!(reply.parts.len() <= MOST_PARTS, "{name}: {} parts", reply.parts.len());
        assert!(held < 16 << 20, "{name}: {held} bytes");
    }
    let many = |item: &str| vec![item; MOST_PARTS * 4].join(",");
    let bodies = [
        (Dialect::Anthropic, format!(r#"{{"type":"message","content":[{}]}}"#, many("{}"))),
        (
            Dialect::OpenaiResponses,
            format!(r#"{{"output":[{{"type":"message","content":[{}]}}]}}"#, many("{}")),
        ),
        (Dialect::OpenaiResponses, format!(r#"{{"output":[{}]}}"#, many("{}"))),
        (
            Dialect::Gemini,
            format!(r#"{{"candidates":[{{"content":{{"parts":[{}]}}}}]}}"#, many(r#"{"x":1}"#)),
        ),
        (
            Dialect::OpenaiChat,
            format!(
                r#"{{"choices":[{{"message":{{"content":[{}]}}}}]}}"#,
                many(r#"{"type":"thinking"}"#)
            ),
        ),
    ];
    for (dialect, body) in bodies {
        let (_, reply) = read_in(dialect, body.as_bytes(), 1 << 16);
        assert!(reply.parts.len() <= MOST_PARTS, "{dialect:?}: {} parts", reply.parts.len());
        assert!(reply.complete, "{dialect:?}: its end is read");
    }
}

/// What honest replies have passes whole.
#[test]
fn thousand_parts_are_kept() {
    let event = STREAMS[0].2;
    let stream: String = (0..1_000).map(|at| format!("data: {}\n\n", event(at))).collect();
    let (_, reply) = read_in(Dialect::Anthropic, stream.as_bytes(), 1 << 16);
    assert_eq!(reply.parts.len(), 1_000);
    assert!(!reply.notes.contains(&Note::TooLong));
}
