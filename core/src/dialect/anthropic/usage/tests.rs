use serde_json::{Value as Json, json};

use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Dialect, Note, Reply};

/// The reply of a stream with this usage at its start and at its end.
fn streamed(start: &Json, end: &Json) -> Reply {
    let message = json!({"id": "m", "model": "claude-fable-5", "content": [], "usage": start});
    let events = [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end}),
        json!({"type": "message_stop"}),
    ];
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 20);
    for event in events {
        reading.push(format!("data: {event}\n\n").as_bytes());
    }
    reading.finish(BodyEnd::Whole)
}

fn whole(stop: &str, content: &Json, usage: &Json) -> Usage {
    let body =
        json!({"id": "m", "model": "m", "content": content, "stop_reason": stop, "usage": usage});
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
    reading.push(body.to_string().as_bytes());
    reading.finish(BodyEnd::Whole).usage
}

fn call(kind: &str, model: Option<&str>, input: u64, output: u64) -> Json {
    json!({"type": kind, "model": model, "input_tokens": input, "output_tokens": output})
}

fn counts(usage: &Usage) -> [Option<u64>; 4] {
    [usage.input, usage.cache_write, usage.cache_read, usage.output]
}

#[test]
fn later_report_counts() {
    let start = json!({"input_tokens": 15, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000, "output_tokens": 1});
    let known = [Some(3215), Some(200), Some(3000), Some(42)];
    for (end, expected) in [
        (json!({"output_tokens": 42}), known),
        (json!({"input_tokens": 0, "output_tokens": 42}), known),
        (
            json!({"input_tokens": null, "cache_read_input_tokens": null, "output_tokens": 42}),
            known,
        ),
        (
            json!({"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 42}),
            known,
        ),
        (
            json!({"input_tokens": 15, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 42}),
            known,
        ),
        (
            json!({"input_tokens": 9, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000, "output_tokens": 42}),
            known,
        ),
        // What was input at first was read from the cache, as the end knows.
        (
            json!({"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3215, "output_tokens": 42}),
            [Some(3215), Some(0), Some(3215), Some(42)],
        ),
        // A hosted tool ran.
        (
            json!({"input_tokens": 900, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 42}),
            [Some(4100), Some(200), Some(3000), Some(42)],
        ),
    ] {
        assert_eq!(counts(&streamed(&start, &end).usage), expected, "{end}");
    }
    // An output never falls either.
    let grown =
        streamed(&json!({"input_tokens": 5, "output_tokens": 42}), &json!({"output_tokens": 0}));
    assert_eq!(counts(&grown.usage), [Some(5), None, None, Some(42)]);
}

#[test]
fn impossible_count_is_unknown() {
    let fine = json!({"output_tokens": 42});
    for wrong in [json!(-1), json!(0.5), json!(9_007_199_254_740_993_u64), json!(1e300)] {
        let reply = streamed(&json!({"input_tokens": wrong, "cache_read_input_tokens": 3}), &fine);
        assert_eq!(counts(&reply.usage), [None, None, Some(3), Some(42)], "{wrong}");
        assert_eq!(reply.notes, [Note::ImpossibleCount], "{wrong}");
        // A part of the input: then the sum is unknown.
        let reply = streamed(&json!({"input_tokens": 3, "cache_read_input_tokens": wrong}), &fine);
        assert_eq!(counts(&reply.usage), [None, None, None, Some(42)], "{wrong}");
        let reply = streamed(&json!({"input_tokens": 3}), &json!({"input_tokens": wrong}));
        assert_eq!(reply.usage.input, Some(3), "known before: {wrong}");
        let start = json!({"input_tokens": 3, "output_tokens": 1});
        let reply = streamed(&start, &json!({"output_tokens": wrong}));
        assert_eq!(reply.usage.output, None, "the start has a placeholder: {wrong}");
    }
    let text = streamed(&json!({"input_tokens": "9"}), &fine);
    assert_eq!(text.usage.input, None);
    assert!(text.notes.is_empty());
}

/// The numbers are those of the documentation of the advisor, whose top level has the first call's input only.
#[test]
fn advice_is_attempt_of_its_model_and_calls_of_model_that_answered_are_summed() {
    let advice = call("advisor_message", Some("claude-opus-5"), 823, 1612);
    let second = json!({"type": "message", "input_tokens": 1348, "cache_read_input_tokens": 412, "output_tokens": 442});
    let iterations = json!([call("message", None, 412, 89), advice, second]);
    let usage = json!({"input_tokens": 412, "output_tokens": 531, "iterations": iterations});
    let usage = whole("end_turn", &json!([]), &usage);
    assert_eq!(counts(&usage), [Some(2172), None, Some(412), Some(531)]);
    assert_eq!(usage.last_call, Some(LastCall { input: 1760, output: 442 }));
    assert_eq!(usage.served_by, None);
    let [advice] = &usage.attempts[..] else { panic!("{:?}", usage.attempts) };
    assert_eq!(&*advice.kind, "advisor_message");
    assert_eq!(advice.model.as_deref(), Some("claude-opus-5"));
    assert_eq!(counts(&advice.usage), [Some(823), None, None, Some(1612)]);
}

/// Nobody makes so many calls for a reply: what is past them is not kept, and that is noted. Names have a limit, too.
#[test]
fn reply_has_most_of_attempts() {
    let attempts = |count: usize, model: &str| {
        let iterations = vec![call("advisor_message", Some(model), 5, 7); count];
        streamed(&json!({}), &json!({"output_tokens": 1, "iterations": iterations}))
    };
    let most = attempts(MOST_ATTEMPTS, "m");
    assert_eq!(most.usage.attempts.len(), MOST_ATTEMPTS);
    assert_eq!(most.notes.len(), 0);
    let more = attempts(MOST_ATTEMPTS + 1, "m");
    assert_eq!(more.usage.attempts.len(), MOST_ATTEMPTS);
    assert_eq!(more.notes, [Note::ImpossibleCount]);
    let long = attempts(1, &"m".repeat(4_096));
    assert!(long.usage.attempts[0].model.as_deref().is_some_and(|model| model.len() < 128));
}

#[test]
fn fallback_is_counted_under_model_that_answered() {
    let served = call("fallback_message", Some("claude-opus-5"), 412, 264);
    let usage = |declined: Json| {
        let end =
            json!({"input_tokens": 412, "output_tokens": 264, "iterations": [declined, served]});
        streamed(&json!({"input_tokens": 408, "output_tokens": 1}), &end).usage
    };
    let declined = usage(call("message", Some("claude-fable-5"), 408, 30));
    assert_eq!(counts(&declined), [Some(412), None, None, Some(264)]);
    assert_eq!(declined.served_by.as_deref(), Some("claude-opus-5"));
    assert_eq!(declined.last_call, Some(LastCall { input: 412, output: 264 }));
    let [attempt] = &declined.attempts[..] else { panic!("{:?}", declined.attempts) };
    assert_eq!(attempt.model.as_deref(), Some("claude-fable-5"));
    assert_eq!(counts(&attempt.usage), [Some(408), None, None, Some(30)]);
    // It declined before it wrote anything: that is not billed.
    let silent = usage(call("message", Some("claude-fable-5"), 408, 0));
    assert_eq!(silent.attempts.len(), 0);
    assert_eq!(silent.input, Some(412));
    // An unnamed call is the requested model's.
    assert_eq!(usage(call("message", None, 408, 30)).attempts[0].model, None);
    // Calls of the model that answered, in a loop of hosted tools, are its own.
    let looped = usage(call("message", Some("claude-opus-5"), 100, 30));
    assert_eq!(looped.attempts.len(), 0);
    assert_eq!(looped.input, Some(512));
    assert_eq!(looped.output, Some(294));
}

/// Of several fallbacks the last one answered; the others declined, one of them after its first words.
#[test]
fn each_fallback_is_counted_under_its_model() {
    let fallback = |model, output| call("fallback_message", Some(model), 412, output);
    let iterations = json!([
        call("message", Some("claude-fable-5"), 408, 0),
        fallback("claude-opus-5-5", 30),
        fallback("claude-sonnet-5-5", 0),
        fallback("claude-opus-5", 264),
    ]);
    let end = json!({"input_tokens": 412, "output_tokens": 264, "iterations": iterations});
    let usage = streamed(&json!({"input_tokens": 408, "output_tokens": 1}), &end).usage;
    let billed: Vec<_> =
        usage.billed().map(|(model, usage)| (model, usage.input, usage.output)).collect();
    let answered = (Some("claude-opus-5"), Some(412), Some(264));
    assert_eq!(billed, [answered, (Some("claude-opus-5-5"), Some(412), Some(30))]);
}

#[test]
fn early_refusal_is_not_billed() {
    let usage = json!({"input_tokens": 412, "output_tokens": 0});
    let refused = whole("refusal", &json!([]), &usage);
    assert!(refused.unbilled);
    assert!(refused.billed().next().is_none());
    assert_eq!(refused.input, Some(412));
    assert!(!whole("end_turn", &json!([]), &usage).unbilled);
    let begun = json!({"input_tokens": 412, "output_tokens": 7});
    assert!(!whole("refusal", &json!([{"type": "text", "text": "I"}]), &begun).unbilled);
    // All models declined; the last one answers. One of them had written something.
    let end = json!({"input_tokens": 5, "output_tokens": 0, "iterations":
        [call("message", Some("a"), 4, 2), call("message", Some("b"), 5, 0)]});
    let all = whole("refusal", &json!([]), &end);
    let billed: Vec<_> = all.billed().map(|(model, usage)| (model, usage.input)).collect();
    assert_eq!(billed, [(Some("a"), Some(4))]);
}

#[test]
fn compaction_reported_at_start_is_not_input_of_message() {
    let end = json!({"input_tokens": 181, "cache_read_input_tokens": 0, "output_tokens": 8, "iterations": [
        {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 55096, "output_tokens": 83},
        call("message", None, 181, 8)]});
    let start = json!({"input_tokens": 100, "cache_read_input_tokens": 55096, "output_tokens": 7});
    let usage = streamed(&start, &end).usage;
    assert_eq!(usage.input, Some(181));
    assert_eq!(usage.output, Some(8));
    assert_eq!(usage.attempts[0].usage.input, Some(55_196));
    // Without counts, calls say nothing.
    let end = json!({"output_tokens": 8, "iterations": [{"type": "message"}]});
    let usage = streamed(&start, &end).usage;
    assert_eq!(usage.input, Some(55_196));
    assert_eq!(usage.output, Some(8));
    assert_eq!(usage.last_call, None);
}
