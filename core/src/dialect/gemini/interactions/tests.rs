use serde_json::{Value as Json, json};

use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Dialect, Purpose};

const TARGET: &str = "/v1beta/interactions";

fn request(body: &Json) -> Conversation {
    crate::dialect::read(Dialect::Gemini, TARGET, body.to_string().as_bytes())
}

fn read(framing: Framing, body: &str, end: BodyEnd) -> Reply {
    let mut reading = ResponseReader::new(Dialect::Gemini, 200, framing, 1 << 20);
    reading.push(body.as_bytes());
    reading.finish(end)
}

fn whole(body: &Json) -> Reply {
    read(Framing::Json, &body.to_string(), BodyEnd::Whole)
}

fn stream(events: &[Json]) -> String {
    let event =
        |data: &Json| format!("event: {}\ndata: {data}\n\n", data["event_type"].as_str().unwrap());
    events.iter().map(event).collect()
}

#[test]
fn request_has_its_model_and_input_and_what_it_continues() {
    let read = request(&json!({"model": "gemini-3.8-flash", "input": "hello", "stream": true}));
    assert_eq!(read.model.as_deref(), Some("gemini-3.8-flash"));
    assert!(read.stream);
    assert_eq!(read.purpose, Purpose::Turn);
    assert_eq!(read.parts().count(), 1);
    assert_eq!(read.held, None);
    let read = request(&json!({
        "agent": "deep-research", "previous_interaction_id": "int_1", "system_instruction": "Be calm.",
        "generation_config": {"max_output_tokens": 9},
        "tools": [{"type": "google_search"}, {"type": "function", "name": "f", "parameters": {}}],
        "input": [
            {"type": "text", "text": "a"},
            {"role": "model", "content": [{"type": "text", "text": "b"}, {"type": "image", "data": "aGk="}]},
            {"type": "function_result", "call_id": "c", "name": "f", "result": {"x": 1}}]}));
    assert_eq!(read.held, Some(HeldHistory::After("int_1".into())));
    assert_eq!(read.model.as_deref(), Some("deep-research"));
    assert_eq!(read.max_output, Some(9));
    assert_eq!(read.system.len(), 1);
    assert_eq!(read.tools.len(), 2);
    assert_eq!(read.notes.len(), 0);
    let seen: Vec<_> = read.parts().map(|part| (part.role, part.kind)).collect();
    use PartKind::{Opaque, Text};
    let expected = [
        (Role::User, Text),
        (Role::Assistant, Text),
        (Role::Assistant, Opaque),
        (Role::Tool, Opaque),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn usage_has_members_of_its_own() {
    let usage = json!({"total_input_tokens": 1000, "total_output_tokens": 500, "total_thought_tokens": 50,
        "total_cached_tokens": 0, "total_tool_use_tokens": 200, "total_tokens": 1750});
    let reply = whole(&json!({"id": "int_1", "object": "interaction", "status": "completed",
        "model": "gemini-3.8-flash", "outputs": [{"type": "text", "text": "ok"}], "usage": usage}));
    assert_eq!(reply.id.as_deref(), Some("int_1"));
    assert!(reply.complete);
    assert_eq!(reply.stop, Some(StopReason::End));
    assert_eq!(&*reply.parts[0].text, "ok");
    let usage = reply.usage;
    assert_eq!(usage.input, Some(1200));
    assert_eq!(usage.output, Some(550));
    assert_eq!(usage.reasoning, Some(50));
    assert_eq!(usage.cache_read, Some(0));
    assert_eq!(usage.tool_use_prompt, Some(200));
    assert!(usage.hosted_tools);
    assert_eq!(usage.last_call, Some(LastCall { input: 1000, output: 550 }));
    // An agent reports the prompts of its tools only in the total.
    let agent = json!({"total_tokens": 1_117_031, "total_input_tokens": 428_865,
        "total_output_tokens": 22_294, "total_thought_tokens": 26_213});
    let agent =
        whole(&json!({"object": "interaction", "status": "completed", "usage": agent})).usage;
    assert_eq!(agent.total(), Some(1_117_031));
}

#[test]
fn stream_is_read_event_by_event_and_cut_is_lower_bound() {
    let usage = json!({"total_tokens": 299, "total_input_tokens": 138, "total_cached_tokens": 0,
        "total_output_tokens": 20, "total_tool_use_tokens": 0, "total_thought_tokens": 141});
    let events = [
        json!({"interaction": {"id": "v1_a", "status": "in_progress", "object": "interaction", "model": "gemini-3.5-flash"}, "event_type": "interaction.created"}),
        json!({"interaction_id": "v1_a", "status": "in_progress", "event_type": "interaction.status_update"}),
        json!({"index": 0, "step": {"type": "thought"}, "event_type": "step.start"}),
        json!({"index": 0, "delta": {"content": {"text": "Hm.", "type": "text"}, "type": "thought_summary"}, "event_type": "step.delta"}),
        json!({"index": 0, "event_type": "step.stop"}),
        json!({"index": 1, "step": {"type": "model_output"}, "event_type": "step.start"}),
        json!({"index": 1, "delta": {"type": "text", "text": "It "}, "event_type": "step.delta"}),
        json!({"index": 1, "delta": {"type": "text", "text": "is."}, "event_type": "step.delta"}),
        json!({"index": 2, "step": {"id": "c", "type": "function_call", "name": "f", "arguments": {}}, "event_type": "step.start"}),
        json!({"index": 2, "delta": {"arguments": "{\"a\":1}", "type": "arguments_delta"}, "event_type": "step.delta"}),
        json!({"interaction": {"id": "v1_a", "status": "requires_action", "usage": usage}, "event_type": "interaction.completed"}),
    ];
    let reply = read(Framing::Events, &stream(&events), BodyEnd::Whole);
    assert_eq!(reply.stop, Some(StopReason::ToolUse));
    assert!(reply.complete);
    assert_eq!(reply.notes.len(), 0);
    assert_eq!(reply.model.as_deref(), Some("gemini-3.5-flash"));
    let texts: Vec<_> = reply.parts.iter().map(|part| (part.kind, &*part.text)).collect();
    use PartKind::{Reasoning, Text, ToolCall};
    assert_eq!(texts, [(Reasoning, "Hm."), (Text, "It is."), (ToolCall, "{\"a\":1}")]);
    assert_eq!(reply.usage.input, Some(138));
    assert_eq!(reply.usage.output, Some(161));
    assert!(!reply.usage.hosted_tools);
    assert!(!reply.usage.lower_bound);
    let cut = read(Framing::Events, &stream(&events[..8]), BodyEnd::Cut);
    assert!(!cut.complete);
    assert!(cut.stop.is_none());
    assert!(cut.id.as_deref() == Some("v1_a"));
    let failed = json!({"error": {"message": "Deadline expired.", "code": "gateway_timeout"}, "event_type": "error"});
    let failed = read(Framing::Events, &stream(&[failed]), BodyEnd::Whole);
    assert_eq!(failed.error.unwrap().message.as_deref(), Some("Deadline expired."));
}
