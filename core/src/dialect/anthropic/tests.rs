use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{LastCall, Reply, StopReason};

fn read(body: &[u8]) -> Conversation {
    crate::dialect::read(Dialect::Anthropic, "", body)
}

const REQUEST: &str = r#"{
 "model": "claude-opus-4-5", "stream": true, "max_tokens": 64,
 "messages": [
  {"role":"user","content":[{"type":"text","text":"look","cache_control":{"type":"ephemeral"}}]},
  {"role":"assistant","content":[
    {"type":"thinking","thinking":"","signature":"c2ln"},
    {"type":"redacted_thinking","data":"eHg="},
    {"type":"text","text":"I look."},
    {"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a","n":1}}]},
  {"role":"user","content":[
    {"type":"tool_result","tool_use_id":"toolu_1","is_error":true,"content":[
      {"type":"text","text":"a"},{"type":"text","text":"b"},
      {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]},
    {"type":"hologram","x":1}]},
  {"role":"system","content":"be brief"}],
 "system": [{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=abc;"},
            {"type":"text","text":"You are calm."}],
 "tools": [{"name":"Read","input_schema":{}},{"name":"Late","defer_loading":true}],
 "metadata": {"user_id":"{\"device_id\":\"d\",\"session_id\":\"s-1\"}"}
}"#;

fn kinds(conversation: &Conversation) -> Vec<PartKind> {
    conversation.parts().map(|part| part.kind).collect()
}

#[test]
fn request_is_read_with_its_ranges() {
    let body = REQUEST.as_bytes();
    let read = read(body);
    use PartKind::{Image, Opaque, Reasoning, Text, ToolCall, ToolResult};
    assert_eq!(
        kinds(&read),
        [Text, Reasoning, Reasoning, Text, ToolCall, ToolResult, Image, Opaque, Text]
    );
    assert_eq!(read.model.as_deref(), Some("claude-opus-4-5"));
    assert!(read.stream);
    assert_eq!(read.max_output, Some(64));
    assert_eq!(read.session, Some("s-1".into()));
    assert_eq!(read.notes, [Note::UnknownPart]);
    let parts: Vec<&Part> = read.parts().collect();
    assert_eq!(parts[0].texts[0].slice(body), br#""look""#);
    assert_eq!(parts[1].signature.unwrap().slice(body), br#""c2ln""#);
    assert_eq!(parts[2].signature.unwrap().slice(body), br#""eHg=""#);
    assert_eq!(parts[4].texts[0].slice(body), br#"{"path":"a","n":1}"#);
    assert!(parts[5].is_error);
    assert!(parts[5].texts.len() == 2);
    let media = parts[6].media.as_ref().unwrap();
    assert_eq!(media.data.unwrap().slice(body), br#""iVBORw0KGgo=""#);
    assert_eq!(parts[8].role, Role::System);
    assert!(read.system[0].key.is_none());
    assert!(read.system[1].key.is_some());
    let audiences = [0, 1].map(|at| read.tools[at].audience);
    assert_eq!(
        audiences,
        [Audience::Model, Audience::Nobody],
        "a deferred tool is not in the prompt"
    );
}

#[test]
fn differences_between_clients_do_not_change_chain() {
    let last = |text: &str| read(text.as_bytes()).chains().last().copied();
    let chain = last(REQUEST);
    assert!(chain.is_some());
    let plain = REQUEST
        .replace(
            r#"[{"type":"text","text":"look","cache_control":{"type":"ephemeral"}}]"#,
            r#""look""#,
        )
        .replace(r#"{"path":"a","n":1}"#, r#"{ "n" : 1.0, "path" : "\u0061" }"#)
        .replace(r#"{"type":"thinking","thinking":"","signature":"c2ln"},"#, "")
        .replace(
            r#"{"type":"text","text":"a"},{"type":"text","text":"b"}"#,
            r#"{"type":"text","text":"ab"}"#,
        )
        .replace("cch=abc", "cch=def");
    assert_eq!(last(&plain), chain);
    assert_ne!(last(&REQUEST.replace("I look.", "I see.")), chain);
}

#[test]
fn string_result_is_result_in_blocks() {
    let of = |content: &str| {
        let text = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":{content}}}]}}]}}"#
        );
        read(text.as_bytes()).chains().last().copied()
    };
    assert_eq!(of(r#""ab""#), of(r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#));
}

#[test]
fn purpose_session_and_model_of_request_are_read() {
    let of =
        |path: &str, body: &str| crate::dialect::read(Dialect::Anthropic, path, body.as_bytes());
    assert_eq!(of("/v1/messages/count_tokens", "{}").purpose, Purpose::Count);
    assert_eq!(of("/v1/messages", r#"{"max_tokens":0}"#).purpose, Purpose::WarmUp);
    assert_eq!(
        of("/v1/messages", r#"{"compaction":{"type":"summarize"}}"#).purpose,
        Purpose::Compaction
    );
    let side = r#"{"messages":[{"role":"user","content":"q"}],"output_config":{"format":{"type":"json_schema"}}}"#;
    assert_eq!(of("/v1/messages", side).purpose, Purpose::Side);
    let grown = side.replace(r#"[{"#, r#"[{"role":"user","content":"p"},{"#);
    assert_eq!(of("/v1/messages", &grown).purpose, Purpose::Turn);
    for content in [
        r#""Please create a detailed summary of the conversation""#,
        r#"[{"type":"text","text":"x"},{"type":"text","text":"Now create a detailed summary of the conversation so far."}]"#,
    ] {
        let body = format!(
            r#"{{"tools":[{{"name":"t"}}],"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"a"}},{{"role":"user","content":{content}}}]}}"#
        );
        assert_eq!(of("/v1/messages", &body).purpose, Purpose::Compaction);
    }
    let path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x@1:streamRawPredict";
    let vertex = of(path, "{}");
    assert_eq!(vertex.model.as_deref(), Some("claude-x@1"));
    assert!(vertex.stream);
    for (user, session) in [
        ("user_ab_account_c_session_d-e", Some("d-e")),
        ("session_kimi", Some("session_kimi")),
        ("user-7", None),
    ] {
        let body = format!(r#"{{"metadata":{{"user_id":"{user}"}}}}"#);
        assert_eq!(of("/v1/messages", &body).session, session.map(Into::into));
    }
    let thread = r#"{"thread":{"type":"continue","previous_message_id":"msg_1"}}"#;
    assert_eq!(of("/v1/messages", thread).held, Some(HeldHistory::After("msg_1".into())));
}

#[test]
fn broken_requests_have_no_parts() {
    for (body, note) in [("<html>", Note::NotJson), ("[]", Note::UnknownStructure)] {
        let read = read(body.as_bytes());
        assert_eq!(read.notes, [note]);
        assert_eq!(read.parts().count(), 0);
    }
}

fn reply_of(stream: &str) -> Reply {
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 1 << 20);
    reading.push(stream.as_bytes());
    reading.finish(BodyEnd::Whole)
}

fn stream(events: &[&str]) -> String {
    events.iter().map(|data| format!("event: x\ndata: {data}\n\n")).collect()
}

const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"m","content":[],"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_1h_input_tokens":15},"output_tokens":1}}}"#;

/// A stream that a gateway closed politely after its upstream broke off: `[DONE]` of Chat Completions is no better.
#[test]
fn stop_event_without_message_delta_is_broken_reply() {
    let text = [
        START,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Half"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
    ];
    let stop = r#"{"type":"message_stop"}"#;
    let delta =
        r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":3}}"#;
    assert!(!reply_of(&stream(&[&text[..], &[stop]].concat())).complete);
    // Its usage was reported, only no reason.
    assert!(reply_of(&stream(&[&text[..], &[delta, stop]].concat())).complete);
}

#[test]
fn stream_is_assembled_by_index() {
    let reply = reply_of(&stream(&[
        START,
        r#"{"type":"ping"}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"Read","input":{}}}"#,
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#,
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"path\": \"a\", \"n\": 1}"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":4,"cache_read_input_tokens":null,"output_tokens":30,"output_tokens_details":{"thinking_tokens":9}}}"#,
        r#"{"type":"message_stop"}   "#,
    ]));
    assert!(reply.complete);
    assert!(reply.notes.is_empty());
    assert_eq!(reply.stop, Some(StopReason::ToolUse));
    let usage = &reply.usage;
    assert_eq!(usage.input, Some(124));
    assert_eq!(usage.output, Some(30));
    assert_eq!(usage.reasoning, Some(9));
    assert_eq!(usage.cache_read, Some(100));
    assert_eq!(usage.cache_write, Some(20));
    assert_eq!(usage.cache_write_long, Some(15));
    assert!(!usage.lower_bound);
    assert_eq!(
        reply.parts[0].raw.as_deref(),
        Some(r#"{"type":"thinking","thinking":"","signature":"c2ln"}"#)
    );
    let sent = r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Read","input":{"n":1,"path":"a"}}]}]}"#;
    assert_eq!(reply.parts[1].key, read(sent.as_bytes()).parts().next().unwrap().key);
}

#[test]
fn cut_stream_gives_lower_bound() {
    let reply = reply_of(&stream(&[START]));
    assert!(!reply.complete);
    assert!(reply.usage.lower_bound);
    assert_eq!(reply.usage.input, Some(123));
    assert_eq!(reply_of("").usage, crate::dialect::Usage::default());
}

#[test]
fn usage_iterations_give_last_call_and_tokens_billed_aside() {
    let body = r#"{"id":"m","type":"message","content":[{"type":"compaction","content":"sum"}],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":5,"iterations":[
      {"type":"compaction","input_tokens":900,"output_tokens":100},
      {"type":"message","input_tokens":4,"cache_read_input_tokens":6,"output_tokens":5}]}}"#;
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
    reading.push(body.as_bytes());
    let usage = reading.finish(BodyEnd::Whole).usage;
    let [compaction] = &usage.attempts[..] else { panic!("{:?}", usage.attempts) };
    assert_eq!(&*compaction.kind, "compaction");
    assert_eq!(compaction.usage.total(), Some(1000));
    assert_eq!(usage.last_call, Some(LastCall { input: 10, output: 5 }));
}

#[test]
fn hosted_tools_in_reply_are_marked_and_keep_their_part_keys() {
    let body = r#"{"id":"m","type":"message","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{"q":1}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]}],"stop_reason":"pause_turn","usage":{"input_tokens":10,"output_tokens":5,"server_tool_use":{"web_search_requests":0}}}"#;
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
    reading.push(body.as_bytes());
    let reply = reading.finish(BodyEnd::Whole);
    assert!(reply.usage.hosted_tools);
    assert!(reply.stop == Some(StopReason::Paused));
    let sent = r#"{"messages":[{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{"q":1}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]}]}]}"#;
    let keys: Vec<_> = read(sent.as_bytes()).parts().map(|part| part.key).collect();
    assert_eq!(reply.parts.iter().map(|part| part.key).collect::<Vec<_>>(), keys);
}

#[test]
fn errors_and_token_counts_are_read() {
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let reply = reply_of(&stream(&[START, error]));
    assert_eq!(reply.error.unwrap().kind.as_deref(), Some("overloaded_error"));
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
    reading.push(br#"{"input_tokens":42}"#);
    assert_eq!(reading.finish(BodyEnd::Whole).counted, Some(42));
    let mut reading = ResponseReader::new(Dialect::Anthropic, 529, Framing::Unknown, 1 << 20);
    reading.push(error.as_bytes());
    assert!(reading.finish(BodyEnd::Whole).error.is_some());
    let mut reading = ResponseReader::new(Dialect::Anthropic, 502, Framing::Unknown, 1 << 20);
    reading.push(b"<html>Bad gateway</html>");
    assert_eq!(reading.finish(BodyEnd::Whole).notes, [Note::NotJson]);
}

#[test]
fn last_of_several_replies_counts() {
    let second =
        START.replace("msg_1", "msg_2").replace("\"input_tokens\":3", "\"input_tokens\":7");
    let reply = reply_of(&stream(&[
        START,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"one"}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":30}}"#,
        r#"{"type":"message_stop"}"#,
        &second,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"two"}}"#,
    ]));
    assert_eq!(reply.notes, vec![Note::SeveralReplies]);
    assert_eq!(reply.stop, None);
    assert!(reply.usage.lower_bound);
    assert_eq!(reply.id.as_deref(), Some("msg_2"));
    assert_eq!(reply.usage.input, Some(127));
    assert_eq!(reply.parts.len(), 1);
    assert_eq!(reply.parts[0].text.as_str(), "two");
}

#[test]
fn tool_input_that_deltas_repeat_is_not_doubled() {
    for (start, deltas, expected) in [
        (r#"{"a":1}"#, &[""][..], r#"{"a":1}"#),
        (r#"{"a":1}"#, &["", "{\"a\"", ":1}"], r#"{"a":1}"#),
        ("{}", &["{\"a\"", ":1}"], r#"{"a":1}"#),
        ("{}", &[], ""),
    ] {
        let start = format!(
            r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"tool_use","id":"t","name":"f","input":{start}}}}}"#
        );
        let deltas = deltas.iter().map(|text| {
            let text = serde_json::to_string(text).unwrap();
            format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{text}}}}}"#)
        });
        let events: Vec<String> = [START.to_owned(), start].into_iter().chain(deltas).collect();
        let reply = reply_of(&stream(&events.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(reply.parts[0].text, expected);
    }
}

#[test]
fn withheld_reasoning_is_noted() {
    for (kind, notes) in
        [("thinking_dropped", vec![Note::InputWithheld]), ("thinking_mismatch_allowed", vec![])]
    {
        let extra = format!(
            r#""input_transformations":[{{"type":"{kind}","path":"messages.1"}}],"content":[]"#
        );
        let start = START.replace(r#""content":[]"#, &extra);
        assert_eq!(reply_of(&stream(&[&start])).notes, notes);
        let body = format!(r#"{{"id":"m",{extra},"stop_reason":"end_turn"}}"#);
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
        reading.push(body.as_bytes());
        assert_eq!(reading.finish(BodyEnd::Whole).notes, notes);
    }
}

/// `diagnostics` as the SDK's types define it; `null` while the result is pending.
#[test]
fn cause_of_cache_miss_is_read() {
    use crate::dialect::cache::{CacheMiss, CacheMissCause};
    let miss = |cause, tokens| Some(CacheMiss { cause, tokens });
    for (reason, expected) in [
        (
            r#"{"type":"messages_changed","cache_missed_input_tokens":1200}"#,
            miss(CacheMissCause::Messages, Some(1200)),
        ),
        (r#"{"type":"tools_changed"}"#, miss(CacheMissCause::Tools, None)),
        (r#"{"type":"unavailable"}"#, miss(CacheMissCause::Unavailable, None)),
        (r#"{"type":"weather"}"#, miss(CacheMissCause::Other, None)),
        ("null", None),
    ] {
        let extra = format!(r#""diagnostics":{{"cache_miss_reason":{reason}}},"content":[]"#);
        let start = START.replace(r#""content":[]"#, &extra);
        assert_eq!(reply_of(&stream(&[&start])).usage.cache_miss, expected, "{reason}");
        let body = format!(r#"{{"id":"m",{extra},"usage":{{"input_tokens":1}}}}"#);
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
        reading.push(body.as_bytes());
        assert_eq!(reading.finish(BodyEnd::Whole).usage.cache_miss, expected, "{reason}");
    }
}

#[test]
fn provider_summary_has_same_key_in_reply_and_request() {
    let reply = reply_of(&stream(&[
        START,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"compaction","content":null}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"so far","encrypted_content":"ZQ=="}}"#,
    ]));
    let sent = r#"{"messages":[{"role":"assistant","content":[{"type":"compaction","content":"so far","encrypted_content":"ZQ==","cache_control":{}}]}]}"#;
    let key = read(sent.as_bytes()).parts().next().unwrap().key;
    assert!(key.is_some());
    assert!(reply.parts[0].key == key);
    assert_eq!(reply.parts[0].signature.as_deref(), Some("ZQ=="));
}

#[test]
fn cache_writes_are_summed_where_only_their_split_is_reported() {
    let usage = r#"{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":3}}"#;
    let body = format!(r#"{{"content":[],"stop_reason":"end_turn","usage":{usage}}}"#);
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
    reading.push(body.as_bytes());
    let usage = reading.finish(BodyEnd::Whole).usage;
    assert_eq!(usage.input, Some(24));
    assert_eq!(usage.cache_write, Some(23));
    assert_eq!(usage.cache_write_long, Some(3));
}

#[test]
fn huge_usage_numbers_are_unknown() {
    let max = u64::MAX;
    let one =
        format!(r#""input_tokens":{max},"cache_read_input_tokens":{max},"output_tokens":{max}"#);
    let body = format!(
        r#"{{"content":[],"usage":{{{one},"iterations":[{{"type":"compaction",{one}}},{{"type":"compaction",{one}}}]}}}}"#
    );
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Unknown, 1 << 20);
    reading.push(body.as_bytes());
    let usage = reading.finish(BodyEnd::Whole).usage;
    assert_eq!(usage, crate::dialect::Usage::default());
}

/// Within the limit all text is kept; past it it is dropped, and usage is still read.
#[test]
fn endless_reply_is_kept_to_limit() {
    let word = "w".repeat(1 << 20);
    let delta = format!(
        r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{word}"}}}}"#
    );
    for (count, notes) in [(31, vec![]), (40, vec![Note::TooLong])] {
        let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Events, 2 << 20);
        let block =
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
        reading.push(stream(&[START, block]).as_bytes());
        (0..count).for_each(|_| reading.push(stream(&[&delta]).as_bytes()));
        let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#;
        reading.push(stream(&[end]).as_bytes());
        let reply = reading.finish(BodyEnd::Whole);
        assert_eq!(reply.notes, notes);
        assert_eq!(reply.usage.output, Some(9));
        assert!(reply.parts[0].text.len() >> 20 == 31);
    }
}

proptest::proptest! {
    #[test]
    fn invariant_8_never_panics(text in r#"[{}\[\]":,a-z0-9 \\n]{0,80}"#) {
        fuzz(text.as_bytes());
    }
}

/// A hosted tool's result is one part in the reply, so it is one part when it comes back.
#[test]
fn hosted_tools_answer_is_one_part() {
    let blocks = r#"{"type":"server_tool_use","id":"srv","name":"web_search","input":{"q":1}},
        {"type":"web_search_tool_result","tool_use_id":"srv","content":[{"type":"web_search_result","url":"u"}]},
        {"type":"bash_code_execution_tool_result","tool_use_id":"srv2","content":{"stdout":"o"}}"#;
    let request = format!(r#"{{"messages":[{{"role":"assistant","content":[{blocks}]}}]}}"#);
    let read = read(request.as_bytes());
    assert_eq!(kinds(&read), [PartKind::ToolCall, PartKind::ToolResult, PartKind::ToolResult]);
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
    let body = format!(r#"{{"content":[{blocks}],"stop_reason":"end_turn"}}"#);
    reading.push(body.as_bytes());
    let after = reading.finish(BodyEnd::Whole).chain_after(crate::dialect::Chain::START);
    assert_eq!(read.chains().last(), Some(&after));
}
