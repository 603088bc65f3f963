use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader, SocketReader};
use crate::dialect::{Chain, PartKey, PartKind, Reply, StopReason};

fn read(body: &[u8]) -> Conversation {
    crate::dialect::read(Dialect::OpenaiResponses, "", body)
}

fn input(items: &str) -> Conversation {
    read(format!(r#"{{"input":[{items}]}}"#).as_bytes())
}

fn reply(stream: &str) -> Reply {
    let mut reading = ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, 1 << 20);
    reading.push(stream.as_bytes());
    reading.finish(BodyEnd::Whole)
}

fn body(text: &str) -> Reply {
    let mut reading = ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Unknown, 1 << 20);
    reading.push(text.as_bytes());
    reading.finish(BodyEnd::Whole)
}

/// Events as OpenAI frames them.
fn events(data: &[&str]) -> String {
    data.iter().map(|data| format!("data: {data}\n\n")).collect()
}

fn kinds(conversation: &Conversation) -> Vec<PartKind> {
    conversation.parts().map(|part| part.kind).collect()
}

fn keys(conversation: &Conversation) -> Vec<PartKey> {
    conversation.parts().filter_map(|part| part.key).collect()
}

/// A request of an older Codex: classic tools, reasoning sent back.
const REQUEST: &str = r#"{"model":"gpt-5.5","instructions":"Be calm.","stream":true,"store":false,
 "max_output_tokens":900,"reasoning":{"effort":"low","context":"all_turns"},
 "include":["reasoning.encrypted_content"],"prompt_cache_key":"thread-1",
 "tools":[{"type":"function","name":"shell","parameters":{}},{"type":"web_search"}],
 "text":{"verbosity":"low","format":{"type":"json_schema","name":"answer","schema":{}}},
 "input":[
  {"type":"message","role":"developer","content":[{"type":"input_text","text":"Sandboxed."}]},
  {"role":"user","content":"look"},
  {"type":"message","role":"developer","content":"Approved."},
  {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"gAAA"},
  {"type":"function_call","id":"fc_1","call_id":"call_1","name":"shell","arguments":"{\"cmd\":\"ls\",\"n\":1}","status":"completed"},
  {"type":"function_call_output","id":"fco_1","call_id":"call_1","output":"a\nb"},
  {"type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"Two.","annotations":[]},{"type":"refusal","refusal":"No."}]},
  {"type":"message","role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,iVBOR=="},{"type":"input_file","filename":"a.pdf","file_id":"file_1"}]}]}"#;

#[test]
fn request_is_read_with_its_ranges() {
    let bytes = REQUEST.as_bytes();
    let read = read(bytes);
    use PartKind::{Document, Image, Reasoning, Text, ToolCall, ToolResult};
    let all = [Text, Text, Reasoning, ToolCall, ToolResult, Text, Text, Text, Image, Document];
    assert_eq!(kinds(&read), all);
    assert_eq!(read.model.as_deref(), Some("gpt-5.5"));
    assert!(read.stream);
    assert_eq!(read.max_output, Some(900));
    assert_eq!(read.session, Some("thread-1".into()));
    assert_eq!(read.reasoning_context.as_deref(), Some("all_turns"));
    assert_eq!(read.purpose, Purpose::Turn);
    assert_eq!(&read.held, &None);
    assert_eq!(read.notes.len(), 0);
    let texts = |parts: &[Part]| -> Vec<String> {
        let spans = parts.iter().flat_map(|part| &part.texts);
        spans.map(|span| String::from_utf8_lossy(span.slice(bytes)).into_owned()).collect()
    };
    assert_eq!(texts(&read.system), [r#""Be calm.""#, r#""Sandboxed.""#]);
    let names: Vec<_> = read.tools.iter().map(|tool| tool.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["shell", "web_search", "answer"]);
    let parts: Vec<&Part> = read.parts().collect();
    assert_eq!(parts[1].role, Role::System, "instructions in mid-history stay where they are");
    assert_eq!(parts[2].signature.unwrap().slice(bytes), br#""gAAA""#);
    assert_eq!(parts[3].texts[0].slice(bytes), br#""{\"cmd\":\"ls\",\"n\":1}""#);
    assert_eq!(parts[4].id.as_deref(), Some("call_1"));
    let image = parts[8].media.as_ref().unwrap();
    assert_eq!(image.mime.as_deref(), Some("image/png"));
    assert!(image.data.is_some());
    assert!(parts[9].media.as_ref().unwrap().data.is_none());
    assert!(parts[2].key.is_none());
    assert!(parts[3].key.is_some());
}

#[test]
fn differences_between_clients_do_not_change_chain() {
    let last = |text: &str| read(text.as_bytes()).chains().last().copied();
    let chain = last(REQUEST);
    assert!(chain.is_some());
    let other = REQUEST
        .replace(r#""content":"look""#, r#""content":[{"type":"input_text","text":"look\n"}]"#)
        .replace(r#"{\"cmd\":\"ls\",\"n\":1}"#, r#"{ \"n\": 1.0, \"cmd\": \"\\u006cs\" }"#)
        .replace(r#""id":"fc_1","#, "")
        .replace(r#""id":"fco_1","#, "")
        .replace(r#","status":"completed""#, "")
        .replace(r#""phase":"commentary","#, "")
        .replace(
            r#""output":"a\nb""#,
            r#""output":[{"type":"input_text","text":"a\n"},{"type":"input_text","text":"b"}]"#,
        )
        .replace(r#","encrypted_content":"gAAA""#, "");
    assert_eq!(last(&other), chain);
    for (was, is) in [("call_1", "call_2"), ("Two.", "Three."), ("iVBOR", "iVBOS"), ("ls", "rm")] {
        assert_ne!(last(&REQUEST.replace(was, is)), chain, "{was} → {is}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of all kinds")]
fn every_item_is_the_right_part() {
    use PartKind::{Image, Opaque, Reasoning, ToolCall, ToolResult};
    for (item, expected, id, name) in [
        (
            r#"{"type":"custom_tool_call","call_id":"c","name":"exec","input":"await x()"}"#,
            &[ToolCall][..],
            Some("c"),
            Some("exec"),
        ),
        (
            r#"{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"o"},{"type":"input_image","image_url":"data:,x"}]}"#,
            &[ToolResult, Image],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"local_shell_call","id":"l","call_id":"c","action":{"type":"exec","command":["ls"]}}"#,
            &[ToolCall],
            Some("c"),
            Some("local_shell"),
        ),
        (
            r#"{"type":"local_shell_call_output","id":"c","output":"o"}"#,
            &[ToolResult],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"shell_call","call_id":"c","action":{"commands":["ls"]}}"#,
            &[ToolCall],
            Some("c"),
            Some("shell"),
        ),
        (
            r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"o","stderr":"e","outcome":{"type":"exit"}}]}"#,
            &[ToolResult],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"apply_patch_call","call_id":"c","operation":{"type":"update_file"}}"#,
            &[ToolCall],
            Some("c"),
            Some("apply_patch"),
        ),
        (
            r#"{"type":"apply_patch_call_output","call_id":"c","status":"failed","output":"no"}"#,
            &[ToolResult],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"computer_call","call_id":"c","action":{"type":"click"}}"#,
            &[ToolCall],
            Some("c"),
            Some("computer"),
        ),
        (
            r#"{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","image_url":"data:,x"}}"#,
            &[ToolResult, Image],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"tool_search_call","call_id":"c","execution":"client","arguments":{"q":1}}"#,
            &[ToolCall],
            Some("c"),
            Some("tool_search"),
        ),
        (
            r#"{"type":"tool_search_output","call_id":"c","execution":"client","tools":[{"name":"t"}]}"#,
            &[ToolResult],
            Some("c"),
            None,
        ),
        (
            r#"{"type":"tool_search_call","call_id":null,"execution":"server","id":"t","arguments":{}}"#,
            &[Opaque],
            Some("t"),
            Some("tool_search_call"),
        ),
        (
            r#"{"type":"web_search_call","id":"w","action":{"query":"q"}}"#,
            &[Opaque],
            Some("w"),
            Some("web_search_call"),
        ),
        (
            r#"{"type":"file_search_call","id":"w","queries":["q"],"results":null}"#,
            &[Opaque],
            Some("w"),
            Some("file_search_call"),
        ),
        (
            r#"{"type":"code_interpreter_call","id":"w","code":"1","outputs":[]}"#,
            &[Opaque],
            Some("w"),
            Some("code_interpreter_call"),
        ),
        (
            r#"{"type":"mcp_call","id":"w","name":"f","arguments":"{}","output":"o"}"#,
            &[Opaque],
            Some("w"),
            Some("mcp_call"),
        ),
        (
            r#"{"type":"mcp_list_tools","id":"w","tools":[]}"#,
            &[Opaque],
            Some("w"),
            Some("mcp_list_tools"),
        ),
        (
            r#"{"type":"mcp_approval_response","approval_request_id":"w","approve":true}"#,
            &[Opaque],
            None,
            Some("mcp_approval_response"),
        ),
        (
            r#"{"type":"image_generation_call","id":"i","result":"iVBOR"}"#,
            &[Image],
            None,
            Some("image_generation"),
        ),
        (
            r#"{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"}"#,
            &[Opaque],
            None,
            Some("compaction"),
        ),
        (r#"{"type":"program","id":"p","code":"x"}"#, &[Opaque], Some("p"), Some("program")),
        (r#"{"type":"reasoning","id":"rs","summary":[]}"#, &[Reasoning], None, None),
        (r#"{"type":"item_reference","id":"rs_1"}"#, &[Reasoning], None, None),
    ] {
        let read = input(item);
        let first = read.parts().next().unwrap();
        assert_eq!(kinds(&read).as_slice(), expected, "{item}");
        assert_eq!(first.id.as_deref(), id, "{item}");
        assert_eq!(first.name.as_deref(), name, "{item}");
        assert!(read.notes.is_empty(), "{item}");
        assert_eq!(first.is_error, item.contains("failed"), "{item}");
    }
    let unknown = input(r#"{"type":"hologram","id":"h","status":"x","depth":3}"#);
    assert_eq!(kinds(&unknown), vec![Opaque]);
    assert_eq!(unknown.notes.clone(), vec![Note::UnknownPart]);
    assert_eq!(keys(&unknown), keys(&input(r#"{"depth":3.0,"type":"hologram","metadata":{}}"#)));
    assert_eq!(
        input(r#"{"role":"user","content":[{"type":"input_smell"}]}"#).notes,
        [Note::UnknownPart]
    );
}

#[test]
fn unusual_inputs_are_read_with_notes() {
    for (text, notes, parts) in [
        (r#"{"input":"hello"}"#, &[][..], 1),
        (r#"{"input":[]}"#, &[], 0),
        (r#"{"input":["x",7,null,{}]}"#, &[Note::UnknownPart], 4),
        (r#"{"previous_response_id":"r"}"#, &[], 0),
        (r#"{"model":"m"}"#, &[Note::UnknownStructure], 0),
        (r#"{"input":{"a":1}}"#, &[Note::UnknownStructure], 0),
        ("[]", &[Note::UnknownStructure], 0),
        ("<html>", &[Note::NotJson], 0),
        ("", &[Note::NotJson], 0),
    ] {
        let read = read(text.as_bytes());
        assert_eq!(read.notes.as_slice(), notes, "{text}");
        assert_eq!(read.parts().count(), parts, "{text}");
    }
}

#[test]
fn tools_given_as_input_items_are_read_as_tools() {
    let read = input(
        r#"{"type":"additional_tools","id":"at_1","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[{"name":"exec"}]}]},
           {"type":"message","role":"developer","content":"d"},{"role":"user","content":"u"}"#,
    );
    assert_eq!(read.tools[0].name.as_deref(), Some("functions"));
    assert_eq!(read.system.len(), 1);
    assert_eq!(read.messages.len(), 1);
}

#[test]
fn held_history_is_recognised() {
    for (text, held) in [
        (
            r#"{"previous_response_id":"resp_1","input":"x"}"#,
            Some(HeldHistory::After("resp_1".into())),
        ),
        (r#"{"previous_response_id":null,"input":"x"}"#, None),
        (r#"{"conversation":"conv_1","input":"x"}"#, Some(HeldHistory::Named("conv_1".into()))),
        (
            r#"{"conversation":{"id":"conv_1"},"input":"x"}"#,
            Some(HeldHistory::Named("conv_1".into())),
        ),
        (
            r#"{"input":[{"type":"item_reference","id":"msg_1"},{"role":"user","content":"u"}]}"#,
            Some(HeldHistory::After("msg_1".into())),
        ),
        (
            r#"{"input":[{"type":"item_reference","id":"rs_1"},{"role":"user","content":"u"}]}"#,
            None,
        ),
    ] {
        assert_eq!(read(text.as_bytes()).held, held, "{text}");
    }
}

#[test]
fn purposes() {
    let of = |path: &str, body: &str| {
        crate::dialect::read(Dialect::OpenaiResponses, path, body.as_bytes()).purpose
    };
    let checkpoint = r#"{"input":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"input_text","text":"You are performing a CONTEXT CHECKPOINT COMPACTION. Create"}]}]}"#;
    let title = r#"{"input":[{"role":"developer","content":"You are a title generator. You"},{"role":"user","content":"a"}]}"#;
    let metadata = r#"{"input":"x","client_metadata":{"x-codex-turn-metadata":"{\"request_kind\":\"compaction\"}"}}"#;
    for (path, body, purpose) in [
        ("/v1/responses", r#"{"input":"x"}"#, Purpose::Turn),
        ("/v1/responses/compact", r#"{"input":"x"}"#, Purpose::Compaction),
        ("/v1/responses/input_tokens", r#"{"input":"x"}"#, Purpose::Count),
        ("/v1/responses", r#"{"input":[],"generate":false}"#, Purpose::WarmUp),
        (
            "/v1/responses",
            r#"{"input":[{"role":"user","content":"a"},{"type":"compaction_trigger"}]}"#,
            Purpose::Compaction,
        ),
        ("/v1/responses", checkpoint, Purpose::Compaction),
        (
            "/v1/responses",
            &checkpoint.replace(r#"{"input""#, r#"{"tools":[{"name":"t"}],"input""#),
            Purpose::Turn,
        ),
        ("/v1/responses", metadata, Purpose::Compaction),
        ("/v1/responses", &metadata.replace("compaction", "turn"), Purpose::Turn),
        ("/v1/responses", title, Purpose::Side),
    ] {
        assert_eq!(of(path, body), purpose, "{path} {body}");
    }
}

/// As OpenAI streams a reasoned tool call: incomplete encrypted content first, deltas, `done`.
const CREATED: &str = r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","model":"gpt-5.5-2026","status":"in_progress","output":[],"usage":null}}"#;
const STREAM: &[&str] = &[
    CREATED,
    r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"rs_a","type":"reasoning","summary":[],"encrypted_content":"gA"}}"#,
    r#"{"type":"response.output_item.done","output_index":0,"item":{"id":"rs_b","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAA"}}"#,
    r#"{"type":"keepalive"}"#,
    r#"{"type":"response.output_item.added","output_index":1,"item":{"id":"msg_a","type":"message","role":"assistant","content":[]}}"#,
    r#"{"type":"response.content_part.added","output_index":1,"content_index":0,"part":{"type":"output_text","text":""}}"#,
    r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"item_id":"msg_zzz","delta":"I loo","obfuscation":"xx"}"#,
    r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"k."}"#,
    r#"{"type":"response.output_item.done","output_index":1,"item":{"id":"msg_b","type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"I look."}]}}"#,
    r#"{"type":"response.output_item.added","output_index":2,"item":{"id":"fc_a","type":"function_call","call_id":"call_1","name":"shell","arguments":""}}"#,
    r#"{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"cmd\":"}"#,
    r#"{"type":"response.function_call_arguments.delta","output_index":2,"delta":"\"ls\"}"}"#,
    r#"{"type":"response.output_item.done","output_index":2,"item":{"id":"fc_b","type":"function_call","call_id":"call_1","name":"shell","arguments":"{\"cmd\":\"ls\"}"}}"#,
];
const USAGE: &str = r#""usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64,"cache_write_tokens":30,"cache_write_tokens_details":{"ttl_30m_tokens":20,"ttl_12h_tokens":10}},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":12},"total_tokens":120}"#;

fn completed(output: &str) -> String {
    format!(
        r#"{{"type":"response.completed","response":{{"id":"resp_1","status":"completed","output":{output},{USAGE}}}}}"#
    )
}

/// What a client sends back for [`STREAM`]: one that keeps everything, and one that keeps little.
const BACK: &str = r#"{"type":"reasoning","id":"rs_b","summary":[],"encrypted_content":"gAAA"},{"role":"assistant","content":[{"type":"output_text","text":"I look."}]},{"type":"function_call","call_id":"call_1","name":"shell","arguments":"{ \"cmd\" : \"ls\" }"}"#;

#[test]
fn items_come_from_done_events() {
    // The last event of the Codex backend has an empty output.
    for output in ["[]", r#"[{"type":"message","id":"1","role":"assistant","content":[]}]"#] {
        let mut data = STREAM.to_vec();
        let last = completed(output);
        data.push(&last);
        let reply = reply(&events(&data));
        assert_eq!(reply.id.as_deref(), Some("resp_1"));
        assert_eq!(reply.model.as_deref(), Some("gpt-5.5-2026"));
        let kinds: Vec<_> = reply.parts.iter().map(|part| part.kind).collect();
        assert_eq!(kinds, [PartKind::Reasoning, PartKind::Text, PartKind::ToolCall]);
        let reasoning = &reply.parts[0];
        assert_eq!(reasoning.text.as_str(), "hm");
        assert_eq!(reasoning.signature.as_deref(), Some("gAAA"));
        assert!(reasoning.raw.as_deref().unwrap().starts_with(r#"{"id":"rs_b","#));
        assert_eq!(reply.parts[2].text, r#"{"cmd":"ls"}"#);
        assert!(reply.complete);
        assert_eq!(reply.stop, Some(StopReason::ToolUse));
        assert_eq!(reply.notes.len(), 0);
        assert_eq!(reply.chain_after(Chain::START), input(BACK).chains().last().copied().unwrap());
        let usage = &reply.usage;
        assert_eq!(usage.input, Some(100));
        assert_eq!(usage.output, Some(20));
        assert_eq!(usage.reasoning, Some(12));
        assert_eq!(usage.cache_read, Some(64));
        assert_eq!(usage.cache_write, Some(30));
        assert_eq!(usage.cache_write_long, Some(10));
        assert!(!usage.hosted_tools);
    }
}

#[test]
fn invariant_10_every_cut_gives_same_and_every_prefix_is_incomplete() {
    let mut data = STREAM.to_vec();
    let last = completed("[]");
    data.push(&last);
    let stream = events(&data);
    let whole = reply(&stream);
    for cut in 0..stream.len() {
        let mut reading =
            ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, 1 << 20);
        reading.push(&stream.as_bytes()[..cut]);
        assert!(!reading.is_complete() || cut >= stream.len() - 1, "{cut}");
        reading.push(&stream.as_bytes()[cut..]);
        assert_eq!(reading.finish(BodyEnd::Whole), whole);
        let mut reading =
            ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, 1 << 20);
        reading.push(&stream.as_bytes()[..cut]);
        let part = reading.finish(BodyEnd::Cut);
        assert!(part.error.is_none(), "{cut}");
        assert!(part.usage.output.is_none_or(|_| part.complete), "{cut}");
    }
}

#[test]
fn stream_that_was_cut_keeps_parts_that_arrived() {
    let reply_of = |count: usize| {
        let mut reading =
            ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, 1 << 20);
        reading.push(events(&STREAM[..count]).as_bytes());
        reading.finish(BodyEnd::Cut)
    };
    let text = reply_of(7);
    assert_eq!(text.parts[1].text.as_str(), "I loo");
    assert!(!text.complete);
    assert_eq!(text.stop, None);
    assert!(text.parts[0].raw.is_some(), "the reasoning item had arrived whole");
    let call = reply_of(11);
    assert_eq!(call.parts[2].kind, PartKind::ToolCall);
    assert_eq!(call.parts[2].text.as_str(), r#"{"cmd":"#);
    assert_eq!(call.parts[2].id.as_deref(), Some("call_1"));
    assert_eq!(call.parts[2].key, None);
    let opened = reply_of(2);
    assert!(opened.parts[0].raw.is_none(), "may be incomplete");
    assert!(opened.parts[0].signature.is_none(), "may be incomplete");
}

#[test]
fn streams_with_missing_or_equal_output_indexes_are_assembled() {
    for index in ["", r#""output_index":0,"#] {
        let data: Vec<String> = STREAM
            .iter()
            .map(|data| {
                let mut data = (*data).to_owned();
                for n in 0..3 {
                    data = data.replace(&format!(r#""output_index":{n},"#), index);
                }
                data.replace("rs_b", "rs_a")
                    .replace("msg_b", "msg_a")
                    .replace("msg_zzz", "msg_a")
                    .replace("fc_b", "fc_a")
            })
            .collect();
        let mut data: Vec<&str> = data.iter().map(String::as_str).collect();
        let last = completed("[]");
        data.push(&last);
        let reply = reply(&events(&data));
        assert_eq!(reply.parts.len(), 3, "{index}");
        assert_eq!(reply.chain_after(Chain::START), input(BACK).chains().last().copied().unwrap());
    }
}

#[test]
fn output_is_read_from_last_event_if_no_item_events_came() {
    let last = completed(&format!("[{BACK}]"));
    let reply = reply(&events(&[CREATED, &last]));
    assert_eq!(reply.parts.len(), 3);
    assert_eq!(reply.stop, Some(StopReason::ToolUse));
    assert_eq!(reply.chain_after(Chain::START), input(BACK).chains().last().copied().unwrap());
}

#[test]
fn every_terminal_event_is_read_with_its_stop_reason() {
    let end = |kind: &str, rest: &str| {
        reply(&events(&[CREATED, &format!(r#"{{"type":"{kind}","response":{{{rest}}}}}"#)]))
    };
    for (kind, rest, stop) in [
        ("response.completed", r#""status":"completed""#, StopReason::End),
        ("response.completed", "", StopReason::End),
        (
            "response.incomplete",
            r#""status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}"#,
            StopReason::MaxTokens,
        ),
        (
            "response.incomplete",
            r#""status":"incomplete","incomplete_details":{"reason":"content_filter"}"#,
            StopReason::Refused,
        ),
        (
            "response.incomplete",
            r#""status":"incomplete","incomplete_details":{"reason":"steered"}"#,
            StopReason::Other,
        ),
        (
            "response.failed",
            r#""status":"failed","usage":null,"error":{"code":"context_length_exceeded","message":"m"}"#,
            StopReason::Failed,
        ),
        ("response.cancelled", r#""status":"cancelled""#, StopReason::Other),
    ] {
        let reply = end(kind, rest);
        assert!(reply.complete, "{kind} {rest}");
        assert_eq!(reply.stop, Some(stop), "{kind} {rest}");
        assert_eq!(reply.usage.input, None, "unknown is not zero");
    }
    let failed =
        end("response.failed", r#""error":{"code":"context_length_exceeded","message":"m"}"#);
    assert_eq!(failed.error.unwrap().kind.as_deref(), Some("context_length_exceeded"));
}

#[test]
fn errors_in_stream_are_read() {
    for (data, kind) in [
        (
            r#"{"type":"error","code":"rate_limit_exceeded","message":"m","param":null}"#,
            "rate_limit_exceeded",
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","code":"previous_response_not_found","message":"m"},"status":400}"#,
            "previous_response_not_found",
        ),
        (
            r#"{"type":"error","error":{"type":"server_error","code":null,"message":"m"}}"#,
            "server_error",
        ),
        (r#"{"error":{"code":"overloaded","message":"m"}}"#, "overloaded"),
    ] {
        let reply = reply(&events(&[
            CREATED,
            data,
            r#"{"type":"response.failed","response":{"status":"failed","usage":null,"error":null}}"#,
        ]));
        let error = reply.error.unwrap();
        assert_eq!(error.kind.as_deref(), Some(kind), "{data}");
        assert_eq!(error.message.as_deref(), Some("m"), "{data}");
        assert!(reply.complete);
        assert_eq!(reply.stop, Some(StopReason::Failed));
    }
}

#[test]
fn look_alikes() {
    // Types in the event line only. `[DONE]` in place of the terminal event does not say that the reply is whole.
    let item = r#"{"item":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x"}]}}"#;
    let named =
        reply(&format!("event: response.output_item.done\ndata: {item}\n\ndata: [DONE]\n\n"));
    assert!(!named.complete);
    assert_eq!(named.parts.len(), 1);
    assert_eq!(named.stop, None);
    let odd = reply(&events(&[r#"{"type":"response.mystery"}"#, "7", "{"]));
    assert_eq!(odd.notes, [Note::UnknownEvent, Note::BrokenEvent]);
    // Reasoning is missing in the output tokens.
    let usage =
        body(r#"{"output":[],"usage":{"input_tokens":10,"output_tokens":5,"total_tokens":22}}"#);
    assert_eq!(usage.usage.output, Some(12));
    assert_eq!(usage.notes, vec![Note::UsageMismatch]);
}

/// A server that reports the input while it works, and zeros at the end: no count falls.
#[test]
fn zeros_of_last_event_erase_no_earlier_count() {
    let event = |kind: &str, input: u64, output: u64| {
        format!(
            r#"{{"type":"response.{kind}","response":{{"output":[],"usage":{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{}}}}}}}"#,
            input + output
        )
    };
    let [begun, ended] = [event("in_progress", 30_010, 9), event("completed", 0, 0)];
    let usage = reply(&events(&[CREATED, &begun, &ended])).usage;
    assert_eq!(usage.input, Some(30_010));
    assert_eq!(usage.output, Some(9));
    // A reply that broke off was not counted to its end.
    assert_eq!(reply(&events(&[CREATED, &begun])).usage.input, None);
}

/// `prompt_cache_diagnostics` as the SDK's types define it.
#[test]
fn cause_of_cache_miss_is_read() {
    use crate::dialect::cache::{CacheMiss, CacheMissCause};
    let miss = |cause, tokens| Some(CacheMiss { cause, tokens });
    for (diagnostics, expected) in [
        (
            r#"{"type":"cache_miss","reason":"input_changed","cache_missed_tokens":900}"#,
            miss(CacheMissCause::Messages, Some(900)),
        ),
        (
            r#"{"type":"cache_miss","reason":"verbosity_changed","cache_missed_tokens":1}"#,
            miss(CacheMissCause::Settings, Some(1)),
        ),
        (r#"{"type":"cache_miss","reason":"weather"}"#, miss(CacheMissCause::Other, None)),
        (r#"{"type":"comparison_response_not_found"}"#, miss(CacheMissCause::NotFound, None)),
        (r#"{"type":"cache_hit"}"#, None),
        ("null", None),
    ] {
        let whole = body(&format!(
            r#"{{"object":"response","status":"completed","output":[],{USAGE},"prompt_cache_diagnostics":{diagnostics}}}"#
        ));
        assert_eq!(whole.usage.cache_miss, expected, "{diagnostics}");
        assert_eq!(whole.usage.input, Some(100), "{diagnostics}");
    }
}

#[test]
fn bodies() {
    let whole = body(&format!(
        r#"{{"id":"resp_1","object":"response","status":"completed","output":[{BACK}],{USAGE},"input_transformations":[{{"type":"reasoning","action":"removed","reason":"prefix_mismatch"}}]}}"#
    ));
    assert!(whole.complete);
    assert_eq!(whole.stop, Some(StopReason::ToolUse));
    assert_eq!(whole.parts.len(), 3);
    assert_eq!(whole.usage.total(), Some(120));
    assert_eq!(whole.notes, vec![Note::InputWithheld]);
    assert_eq!(body(r#"{"object":"response.input_tokens","input_tokens":77}"#).counted, Some(77));
    let compacted = body(&format!(
        r#"{{"object":"response.compaction","output":[{{"type":"message","role":"user","content":[{{"type":"input_text","text":"u"}}]}},{{"type":"compaction","id":"c","encrypted_content":"gAAA"}}],{USAGE}}}"#
    ));
    let next =
        input(r#"{"role":"user","content":"u"},{"type":"compaction","encrypted_content":"gAAA"}"#);
    assert_eq!(compacted.chain_after(Chain::START), next.chains().last().copied().unwrap());
    assert!(compacted.usage.compacted);
    assert!(!whole.usage.compacted);
    let queued = body(r#"{"status":"queued","output":[],"usage":null}"#);
    assert!(queued.complete);
    assert_eq!(queued.stop, None);
    assert_eq!(queued.usage.input, None);
    let refusal = r#"{"output":[{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"No."}]}]}"#;
    assert_eq!(body(refusal).stop, Some(StopReason::Refused));
    assert_eq!(body(r#"{"output":[{"type":"hologram"}]}"#).notes, [Note::UnknownPart]);
    let error = body(r#"{"code":"invalid-argument","error":"Incorrect API key"}"#).error.unwrap();
    assert_eq!(error.kind.as_deref(), Some("invalid-argument"));
    assert_eq!(error.message.as_deref(), Some("Incorrect API key"));
    assert_eq!(body(r#"{"choices":[]}"#).notes, [Note::UnknownStructure]);
}

#[test]
fn tools_that_provider_ran_are_marked() {
    for (item, hosted) in [
        (
            r#"{"type":"web_search_call","id":"w","status":"completed","action":{"query":"q"}}"#,
            true,
        ),
        (r#"{"type":"code_interpreter_call","id":"w","code":"1"}"#, true),
        (r#"{"type":"file_search_call","id":"w","queries":[]}"#, true),
        (r#"{"type":"mcp_call","id":"w","name":"f"}"#, true),
        (r#"{"type":"image_generation_call","id":"w","result":"iVBOR"}"#, true),
        (r#"{"type":"tool_search_call","id":"w","execution":"server","arguments":{}}"#, true),
        (r#"{"type":"tool_search_call","call_id":"c","execution":"client","arguments":{}}"#, false),
        (r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}"#, false),
        (r#"{"type":"compaction","encrypted_content":"x"}"#, false),
    ] {
        let reply = body(&format!(r#"{{"status":"completed","output":[{item}]}}"#));
        assert_eq!(reply.usage.hosted_tools, hosted, "{item}");
        assert_eq!(reply.parts.len(), 1);
    }
}

#[test]
fn last_of_several_replies_in_one_stream_counts() {
    let mut data = STREAM.to_vec();
    let last = completed("[]");
    data.push(&last);
    data.push(r#"{"type":"response.created","response":{"id":"resp_2"}}"#);
    let two = reply(&events(&data));
    assert_eq!(two.id.as_deref(), Some("resp_2"));
    assert_eq!(two.parts.len(), 0);
    assert!(!two.complete);
    assert_eq!(two.notes, [Note::SeveralReplies]);
}

#[test]
fn repeated_call_id_may_come_back_prefixed_with_response_id() {
    let reply = body(
        r#"{"output":[{"type":"function_call","call_id":"call_0","name":"f","arguments":"{}"}]}"#,
    );
    let back =
        input(r#"{"type":"function_call","call_id":"resp_9:call_0","name":"f","arguments":""}"#);
    assert_eq!(reply.chain_after(Chain::START), back.chains().last().copied().unwrap());
}

#[test]
fn endless_reply_is_kept_to_limit() {
    let megabyte = "x".repeat(1 << 20);
    let delta = format!(
        r#"data: {{"type":"response.output_text.delta","output_index":0,"delta":"{megabyte}"}}"#
    ) + "\n\n";
    let last = events(&[&completed("[]")]);
    for (count, notes, kept) in [(32, &[][..], 32 << 20), (40, &[Note::TooLong], 32 << 20)] {
        let mut reading =
            ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, 2 << 20);
        (0..count).for_each(|_| reading.push(delta.as_bytes()));
        reading.push(last.as_bytes());
        let reply = reading.finish(BodyEnd::Whole);
        let bytes: usize = reply.parts.iter().map(|part| part.text.len()).sum();
        assert_eq!(reply.notes.as_slice(), notes);
        assert_eq!(bytes, kept);
        assert_eq!(reply.usage.input, Some(100));
    }
}

#[test]
fn one_websocket_connection_carries_many_replies() {
    let mut socket = SocketReader::new(1 << 20);
    let create = |rest: &str| format!(r#"{{"type":"response.create","model":"m"{rest}}}"#);
    let warm = socket.request(create(r#","generate":false,"input":[]"#).as_bytes(), read).unwrap();
    assert_eq!(warm.0, 0);
    assert_eq!(warm.1.purpose, Purpose::WarmUp);
    assert!(socket.event(CREATED.as_bytes()).is_none());
    assert_eq!(socket.event(completed("[]").as_bytes()).unwrap().0, 0);
    let turn =
        create(r#","previous_response_id":"resp_1","input":[{"role":"user","content":"u"}]"#);
    let (number, conversation) = socket.request(turn.as_bytes(), read).unwrap();
    assert_eq!(number, 1);
    assert_eq!(conversation.held, Some(HeldHistory::After("resp_1".into())));
    assert!(socket.request(br#"{"type":"response.steer"}"#, read).is_none());
    assert!(socket.request(b"not json", read).is_none());
    for data in STREAM {
        assert!(socket.event(data.as_bytes()).is_none());
    }
    let (number, reply) = socket.event(completed("[]").as_bytes()).unwrap();
    assert_eq!(number, 1);
    assert_eq!(reply.parts.len(), 3);
    assert_eq!(reply.usage.input, Some(100));
    assert!(socket.event(completed("[]").as_bytes()).is_none(), "nobody asked");
    socket.request(turn.as_bytes(), read).unwrap();
    let error =
        br#"{"type":"error","error":{"code":"websocket_connection_limit_reached"},"status":400}"#;
    assert!(socket.event(error).unwrap().1.error.is_some());
}

#[test]
fn lanes_of_one_connection_do_not_mix_and_are_bounded() {
    let mut socket = SocketReader::new(1 << 20);
    for lane in ["a", "b"] {
        let frame = format!(r#"{{"type":"response.create","stream_id":"{lane}","input":"x"}}"#);
        socket.request(frame.as_bytes(), read).unwrap();
    }
    let done = br#"{"type":"response.completed","stream_id":"b","response":{"id":"rb"}}"#;
    let (number, reply) = socket.event(done).unwrap();
    assert_eq!(number, 1);
    assert_eq!(reply.id.as_deref(), Some("rb"));
    for _ in 0..100 {
        socket.request(br#"{"type":"response.create","input":"x"}"#, read).unwrap();
    }
    let open = socket.finish();
    assert_eq!(open.len(), 16);
    assert!(open.iter().all(|(_, reply)| !reply.complete));
}

#[test]
fn invariant_8_never_panics() {
    for seed in [REQUEST, BACK, &events(STREAM), &completed("[]")] {
        for cut in (0..seed.len()).step_by(5) {
            fuzz(&seed.as_bytes()[..cut]);
            let mut mangled = seed.as_bytes().to_vec();
            mangled[cut] = b'"';
            fuzz(&mangled);
        }
    }
}

#[test]
fn what_was_streamed_stays_whatever_final_object_lists() {
    let head = concat!(
        "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"id\":\"fc\",\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"\"}}\n\n",
        "data: {\"type\":\"response.function_call_arguments.delta\",\"output_index\":0,\"item_id\":\"fc\",\"delta\":\"{\\\"a\\\":1}\"}\n\n",
    );
    let call = |id: &str, arguments: &str| {
        format!(
            r#"{{"id":"fc9","type":"function_call","call_id":"{id}","name":"f","arguments":"{arguments}"}}"#
        )
    };
    let stub =
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":""}]}"#;
    let whole = r#"{\"a\":1}"#;
    let lists = [
        (String::new(), 0),
        (stub.to_owned(), 0),
        (call("c1", ""), 0),
        (call("c1", whole), 0),
        (format!("{stub},{}", call("c1", whole)), 0),
        (call("c2", whole), 1),
        (call("c2", ""), 1),
    ];
    for (output, variants) in lists {
        let end = format!(
            "data: {{\"type\":\"response.completed\",\"response\":{{\"status\":\"completed\",\"output\":[{output}]}}}}\n\n"
        );
        let reply = reply(&format!("{head}{end}"));
        assert_eq!(reply.parts.len(), 1, "{output}");
        assert_eq!(reply.variants.len(), variants, "{output}");
        assert_eq!(reply.stop, Some(StopReason::ToolUse));
        for id in ["c1", "c2"].into_iter().take(1 + variants) {
            let key = input(&call(id, whole)).parts().next().unwrap().key;
            assert!(reply.forms().any(|form| form[0].key == key), "{output} {id}");
        }
    }
}
