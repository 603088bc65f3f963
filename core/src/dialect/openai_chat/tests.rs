use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Chain, Reply, ReplyPart, StopReason, Usage};

fn read(target: &str, body: &[u8]) -> Conversation {
    crate::dialect::read(Dialect::OpenaiChat, target, body)
}

fn request(messages: &str) -> Conversation {
    read("", format!(r#"{{"messages":[{messages}]}}"#).as_bytes())
}

fn bytes_of(chunks: &[&str]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| format!("data: {chunk}\n\n").into_bytes()).collect()
}

/// Reads a stream. Fails if cutting it changes the result, or if a strict prefix is complete.
fn stream(bytes: &[u8]) -> Reply {
    let read = |bytes: &[u8], size: usize, whole: bool| {
        let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 1 << 20);
        bytes.chunks(size.max(1)).for_each(|chunk| reading.push(chunk));
        reading.finish(BodyEnd::new(whole))
    };
    let reply = read(bytes, bytes.len(), true);
    assert_eq!(read(bytes, 1, true), reply);
    // The last event's blank line is not needed: the end of the body ends it.
    let end = bytes.trim_ascii_end().len();
    for at in 0..end {
        assert!(!read(&bytes[..at], at, false).complete, "complete at {at}");
    }
    reply
}

fn chunks(chunks: &[&str]) -> Reply {
    stream(&bytes_of(chunks))
}

fn body(text: &str) -> Reply {
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Json, 1 << 20);
    reading.push(text.as_bytes());
    reading.finish(BodyEnd::Whole)
}

fn usage_of(usage: &str) -> (Usage, Vec<Note>) {
    let choice = r#"{"index":0,"message":{"content":"x"},"finish_reason":"stop"}"#;
    let reply = body(&format!(r#"{{"choices":[{choice}],"usage":{usage}}}"#));
    (reply.usage, reply.notes)
}

fn contents(reply: &Reply) -> Vec<(PartKind, &str)> {
    reply.parts.iter().map(|part| (part.kind, part.text.as_str())).collect()
}

fn delta(inner: &str) -> String {
    format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{inner}}}]}}"#)
}

const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const FINISH_CALLS: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#;

/// The reply of these deltas, with OpenAI's end of a stream.
fn deltas(inner: &[&str]) -> Reply {
    let mut all: Vec<String> = inner.iter().map(|inner| delta(inner)).collect();
    all.push(FINISH.into());
    all.push("[DONE]".into());
    chunks(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn calls(reply: &Reply) -> Vec<(Option<&str>, Option<&str>, &str)> {
    let calls = reply.parts.iter().filter(|part| part.kind == PartKind::ToolCall);
    calls.map(|p| (p.id.as_deref(), p.name.as_deref(), p.text.as_str())).collect()
}

const REQUEST: &str = r#"{
 "model":"m","stream":true,"stream_options":{"include_usage":false},
 "max_tokens":1,"max_completion_tokens":99,"prompt_cache_key":"key_12345678","user":"u",
 "messages":[
  {"role":"system","content":"You are calm."},
  {"role":"developer","content":[{"type":"text","text":"Be brief."}]},
  {"role":"user","name":"n","content":[
    {"type":"text","text":"look"},
    {"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},
    {"type":"image_url","image_url":{"url":"https://x/y.png"}},
    {"type":"input_audio","input_audio":{"data":"aGk=","format":"wav"}},
    {"type":"file","file":{"file_data":"data:application/pdf;base64,aGk=","filename":"f"}},
    {"type":"file","file":{"file_id":"file-1"}},
    {"type":"hologram","x":1}]},
  {"tool_calls":[
     {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"},
      "extra_content":{"google":{"thought_signature":"c2ln"}}},
     {"id":"","function":{"name":"g","arguments":{"b":2}}},
     {"id":"c3","type":"custom","custom":{"name":"h","input":"free words"}}],
   "content":"I look.","reasoning":"hm","reasoning_content":"hm","role":"assistant"},
  {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"a"},
    {"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},{"type":"text","text":"b"}]},
  {"role":"function","name":"old","content":"c"},
  {"role":"assistant","content":null,"refusal":"No.","function_call":{"name":"old","arguments":"{}"},
   "audio":{"id":"audio_1"}},
  {"role":"system","content":"now this"}],
 "tools":[{"type":"function","function":{"name":"f","parameters":{}}},{"type":"custom","custom":{"name":"h"}}],
 "functions":[{"name":"old"}],
 "response_format":{"type":"json_schema","json_schema":{}}
}"#;

#[test]
fn request_is_read_with_its_ranges() {
    let bytes = REQUEST.as_bytes();
    let read = read("/v1/chat/completions", bytes);
    assert_eq!(read.model.as_deref(), Some("m"));
    assert!(read.stream);
    assert_eq!(read.max_output, Some(99));
    assert_eq!(read.include_usage, Some(false));
    assert_eq!(read.session, Some("key_12345678".into()));
    assert_eq!(read.purpose, Purpose::Turn);
    let texts = |parts: &[Part]| -> Vec<String> {
        let texts = parts.iter().flat_map(|part| &part.texts);
        texts.map(|text| String::from_utf8_lossy(text.slice(bytes)).into_owned()).collect()
    };
    assert_eq!(texts(&read.system), [r#""You are calm.""#, r#""Be brief.""#]);
    let names: Vec<_> = read.tools.iter().map(|tool| tool.name.as_deref()).collect();
    assert_eq!(names, [Some("f"), Some("h"), Some("old"), None]);
    use PartKind::{Document, Image, Opaque, Reasoning, Text, ToolCall, ToolResult};
    let kinds: Vec<Vec<PartKind>> =
        read.messages.iter().map(|m| m.parts.iter().map(|part| part.kind).collect()).collect();
    assert_eq!(
        kinds,
        [
            vec![Text, Image, Image, Document, Document, Document, Opaque],
            vec![Reasoning, Reasoning, Text, ToolCall, ToolCall, ToolCall],
            vec![ToolResult, Image],
            vec![ToolResult],
            vec![Text, Document, ToolCall],
            vec![Text],
        ]
    );
    let media: Vec<_> = read.messages[0].parts.iter().filter_map(|p| p.media.as_ref()).collect();
    let mimes: Vec<_> = media.iter().map(|media| media.mime.as_deref()).collect();
    assert_eq!(mimes, [Some("image/png"), None, Some("audio/wav"), Some("application/pdf"), None]);
    let has_data: Vec<_> = media.iter().map(|media| media.data.is_some()).collect();
    assert_eq!(has_data, [true, false, true, true, false]);
    let assistant = &read.messages[1].parts;
    let field = r#""reasoning_content":"hm""#.as_bytes();
    assert_eq!(assistant[0].span.slice(bytes), field, "from the key on, the surest field first");
    assert_eq!(assistant[0].texts[0].slice(bytes), br#""hm""#);
    assert!(assistant[1].texts.is_empty(), "the same thought is not read twice");
    assert_eq!(assistant[3].signature.unwrap().slice(bytes), br#""c2ln""#);
    assert_eq!(assistant[4].texts[0].slice(bytes), br#"{"b":2}"#);
    assert_eq!(assistant[4].id.as_deref(), None);
    assert_eq!(assistant[5].id.as_deref(), Some("c3"));
    assert_eq!(texts(&read.messages[2].parts), [r#""a""#, r#""b""#]);
    assert_eq!(read.messages[3].parts[0].name.as_deref(), Some("old"));
    assert_eq!(read.messages[5].role, Role::System, "later instructions stay where they stand");
    assert_eq!(read.notes, [Note::UnknownPart]);
}

#[test]
fn differences_between_clients_do_not_change_chain() {
    let last = |conversation: Conversation| conversation.chains().last().copied().unwrap();
    let call = |arguments: &str| {
        format!(
            r#"{{"role":"user","content":"hi"}},{{"role":"assistant","content":"yes",
            "tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}},
            {{"role":"tool","tool_call_id":"c","content":"done"}}"#
        )
    };
    let plain = call(r#""{\"a\":1,\"b\":2}""#);
    let chain = last(request(&plain));
    for same in [
        call(r#""{ \"b\": 2, \"a\": 1 }""#),
        call(r#"{"a":1,"b":2}"#),
        plain.replace(r#""content":"hi""#, r#""content":[{"type":"text","text":"hi","cache_control":{}}]"#),
        plain.replace(r#""content":"done""#, r#""content":[{"type":"text","text":"done\n"}]"#),
        plain.replace(r#""content":"yes""#, r#""reasoning_content":"hm","content":"yes""#),
        plain.replace(r#""content":"yes""#, r#""content":"<think>hm</think>\n\nyes""#),
        plain.replace(
            r#""content":"yes""#,
            r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"yes"}]"#,
        ),
        format!(r#"{{"role":"system","content":"s"}},{plain}"#),
    ] {
        assert_eq!(last(request(&same)), chain, "{same}");
    }
    assert_ne!(last(request(&plain.replace("done", "gone"))), chain);
}

#[test]
fn every_reasoning_is_found() {
    for (field, texts, signatures) in [
        (r#""reasoning_content":"a""#, 1, 0),
        (r#""reasoning_content":"""#, 0, 0),
        (r#""reasoning":"a""#, 1, 0),
        (r#""reasoning_text":"a","reasoning_opaque":"s""#, 1, 1),
        (r#""reasoning_details":[{"type":"reasoning.text","text":"a","signature":"s"}]"#, 1, 1),
        (r#""reasoning_details":[{"type":"reasoning.encrypted","data":"s"}]"#, 0, 1),
        (r#""thinking_blocks":[{"type":"thinking","thinking":"a","signature":"s"}]"#, 1, 1),
        (r#""thinking_blocks":[{"type":"thinking","thinking":"a","signature":""}]"#, 1, 0),
        (r#""extra_content":{"google":{"thought_signature":"s"}}"#, 0, 1),
        (r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"a"}]}]"#, 1, 0),
        (
            r#""content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"a","signature":"s"}]}]"#,
            1,
            1,
        ),
        (
            r#""reasoning_content":{"reasoningContent":{"reasoningText":{"text":"a","signature":"s"}}}"#,
            1,
            1,
        ),
        (r#""reasoning_content":{"text":"a","signature":"s"}"#, 1, 1),
        (r#""content":[{"type":"thinking","text":"a","signature":"s"}]"#, 1, 1),
    ] {
        let read = request(&format!(r#"{{"role":"assistant",{field}}}"#));
        let parts: Vec<_> = read.parts().collect();
        assert!(parts.iter().all(|p| p.kind == PartKind::Reasoning && p.key.is_none()), "{field}");
        assert_eq!(parts.iter().map(|part| part.texts.len()).sum::<usize>(), texts, "{field}");
        assert_eq!(
            parts.iter().filter(|part| part.signature.is_some()).count(),
            signatures,
            "{field}"
        );
        assert!(!parts.is_empty(), "even an empty field is there: {field}");
    }
    let null = request(r#"{"role":"assistant","reasoning_content":null,"content":"x"}"#);
    assert_eq!(null.parts().count(), 1);
}

#[test]
fn instructions_alone_are_history() {
    let read = request(r#"{"role":"system","content":"say hi"}"#);
    assert!(read.system.is_empty());
    assert!(read.messages.len() == 1);
}

#[test]
fn body_that_is_no_request_has_note() {
    for (bytes, note) in [
        ("", Note::NotJson),
        ("<html>", Note::NotJson),
        ("[1]", Note::UnknownStructure),
        (r#"{"prompt":"x"}"#, Note::UnknownStructure),
        (r#"{"messages":[7]}"#, Note::UnknownStructure),
        (r#"{"messages":[{"role":"user","content":7}]}"#, Note::UnknownStructure),
    ] {
        assert_eq!(read("", bytes.as_bytes()).notes, [note], "{bytes}");
    }
}

#[test]
fn side_calls_and_compactions_are_known_by_their_text() {
    let purpose = |system: &str, rest: &str| {
        let text = format!(
            r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"x"}}]{rest}}}"#
        );
        crate::dialect::read(Dialect::OpenaiChat, "/v1/chat/completions", text.as_bytes()).purpose
    };
    assert_eq!(purpose("You are a title generator. You output", ""), Purpose::Side);
    assert_eq!(
        purpose("You are a helpful AI assistant tasked with summarizing conversations.", ""),
        Purpose::Compaction
    );
    assert_eq!(purpose("You are calm.", ""), Purpose::Turn);
    let tools = r#","tools":[{"type":"function","function":{"name":"f"}}]"#;
    assert_eq!(purpose("You are a title generator.", tools), Purpose::Turn);
    assert_eq!(purpose("You are calm.", r#","max_tokens":0"#), Purpose::WarmUp);
}

#[test]
fn stream_and_replay_have_one_chain() {
    let reply = deltas(&[
        r#"{"role":"assistant","content":"","reasoning_content":null}"#,
        r#"{"reasoning_content":"I "}"#,
        r#"{"reasoning_content":"think"}"#,
        r#"{"content":"yes"}"#,
        r#"{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}"#,
    ]);
    use PartKind::{Reasoning, Text, ToolCall};
    assert_eq!(contents(&reply), [(Reasoning, "I think"), (Text, "yes"), (ToolCall, r#"{"a":1}"#)]);
    assert_eq!(reply.parts[0].raw.as_deref(), Some(r#"{"reasoning_content":"I think"}"#));
    assert_eq!(reply.stop, Some(StopReason::ToolUse), "`stop` with calls");
    assert!(reply.complete, "`stop` with calls");
    assert_eq!(reply.usage, Usage::default(), "unknown, not 0");
    let replay = request(
        r#"{"role":"assistant","content":"yes","reasoning_content":"I think","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}"#,
    );
    assert_eq!(replay.chains().last(), Some(&reply.chain_after(Chain::START)));
}

#[test]
fn reasoning_of_gateways_keeps_its_form_and_signature() {
    let raw = |inner: &[&str]| -> Vec<String> {
        let reply = deltas(inner);
        let parts = reply.parts.iter().filter(|part| part.kind == PartKind::Reasoning);
        parts.map(|part: &ReplyPart| part.raw.as_deref().unwrap_or("none").to_owned()).collect()
    };
    // Databricks: the signature comes last, and alone.
    let summary = |text: &str, seal: &str| {
        let block = format!(r#"{{"type":"summary_text","text":"{text}","signature":"{seal}"}}"#);
        format!(r#"{{"content":[{{"type":"reasoning","summary":[{block}]}}]}}"#)
    };
    let streamed = [summary("a", ""), summary("b", ""), summary("", "s")];
    let [a, b, seal] = [0, 1, 2].map(|at| &*streamed[at]);
    assert_eq!(raw(&[a, b, seal, r#"{"content":"yes"}"#]), [summary("ab", "s")]);
    // LiteLLM: twice, with the signature in one of them only.
    let thinking = |text: &str, seal: &str| {
        format!(
            r#"{{"thinking_blocks":[{{"type":"thinking","thinking":"{text}","signature":"{seal}"}}]}}"#
        )
    };
    let twice = |text: &str| {
        let blocks = thinking(text, "");
        format!(r#"{{"reasoning_content":"{text}",{}"#, &blocks[1..])
    };
    let sealed = thinking("ab", "s");
    assert_eq!(raw(&[&twice("a"), &twice("b"), &thinking("", "s")]), [&*sealed]);
    assert_eq!(raw(&[&twice("a"), &twice("b")]), [r#"{"reasoning_content":"ab"}"#], "unsigned");
    let two = [thinking("a", "s"), thinking("b", "t")];
    assert_eq!(raw(&[&two[0], &two[1]]).len(), 1);
    assert!(raw(&[&two[0], &two[1]])[0].contains(r#""s"},{"#), "two blocks");
    // The text of both is omitted: each keeps its signature, streamed or not.
    let hidden = [thinking("", "s"), thinking("", "t")];
    let listed = r#"{"thinking_blocks":[{"type":"thinking","thinking":"","signature":"s"},{"type":"thinking","thinking":"","signature":"t"}]}"#;
    assert_eq!(raw(&[&hidden[0], &hidden[1]]), [listed]);
    assert_eq!(raw(&[listed]), [listed]);
    // Some versions repeat the text beside the signature.
    assert_eq!(raw(&[&twice("a"), &twice("b"), &thinking("ab", "s")]), [&*sealed]);
    // Envoy's gateway: the block has only the signature, or the reasoning is an object.
    let bare = r#"{"thinking_blocks":[{"type":"thinking","signature":"s"}]}"#;
    let plain = [r#"{"reasoning_content":"a"}"#, r#"{"reasoning_content":"b"}"#, bare];
    let parsed = |raw: &str| serde_json::from_str::<serde_json::Value>(raw).unwrap();
    assert_eq!(parsed(&raw(&plain)[0]), parsed(&sealed));
    let object = |inner: &str| format!(r#"{{"reasoning_content":{inner}}}"#);
    let whole = r#"{"reasoningContent":{"reasoningText":{"text":"ab","signature":"s"}}}"#;
    let pieces = [r#"{"text":"a"}"#, r#"{"text":"b"}"#, r#"{"signature":"s"}"#].map(object);
    for (deltas, own) in
        [(vec![object(whole)], whole), (pieces.to_vec(), r#"{"text":"ab","signature":"s"}"#)]
    {
        let deltas: Vec<&str> = deltas.iter().map(String::as_str).collect();
        let back = parsed(&raw(&deltas)[0]);
        assert_eq!(back["reasoning_content"], parsed(own));
        assert_eq!(back["thinking_blocks"], parsed(&sealed)["thinking_blocks"]);
    }
}

#[test]
fn reasoning_is_kept_as_received() {
    let raw = |inner: &[&str]| -> Vec<String> {
        let reply = deltas(inner);
        let parts = reply.parts.iter().filter(|part| part.kind == PartKind::Reasoning);
        parts.map(|part: &ReplyPart| part.raw.as_deref().unwrap_or("none").to_owned()).collect()
    };
    assert_eq!(raw(&[r#"{"reasoning":"a"}"#, r#"{"reasoning":"b"}"#]), [r#"{"reasoning":"ab"}"#]);
    assert_eq!(
        raw(&[r#"{"reasoning":"a","reasoning_content":"a"}"#]),
        [r#"{"reasoning_content":"a"}"#]
    );
    assert_eq!(
        raw(&[r#"{"reasoning_text":"a"}"#, r#"{"reasoning_opaque":"s"}"#]),
        [r#"{"reasoning_text":"a","reasoning_opaque":"s"}"#]
    );
    assert_eq!(
        raw(&[
            r#"{"reasoning":"ab","reasoning_details":[{"type":"reasoning.text","text":"a","format":"f","index":0}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"b","index":0}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.encrypted","data":"x","index":0}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.encrypted","data":"y","index":0}]}"#,
        ]),
        [concat!(
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"ab","format":"f","index":0,"signature":"s"},"#,
            r#"{"type":"reasoning.encrypted","data":"x","index":0},{"type":"reasoning.encrypted","data":"y","index":0}]}"#
        )]
    );
    // Avian's Kimi sends the same text in two fields, and the model demands it in the first.
    let both = |end: &str| {
        format!(
            r#"{{"reasoning_content":"a","reasoning_details":[{{"type":"reasoning.text","text":"a"{end}}}]}}"#
        )
    };
    assert_eq!(raw(&[&both("")]), [r#"{"reasoning_content":"a"}"#]);
    let sealed = r#","signature":"s""#;
    assert!(raw(&[&both(sealed)])[0].starts_with(r#"{"reasoning_details":"#));
    // Two texts, each with its signature, are two entries.
    let signed = |text: &str, seal: &str| {
        format!(
            r#"{{"reasoning_details":[{{"type":"reasoning.text","text":"{text}","signature":"{seal}"}}]}}"#
        )
    };
    let two = raw(&[&signed("a", "s"), &signed("b", "t")]);
    assert!(two[0].contains(r#""signature":"s"},{"#), "{two:?}");
    let claude = |end: &str| {
        format!(
            r#"{{"reasoning_details":[{{"type":"reasoning.text","text":"a","format":"anthropic-claude-v1"{end}}}]}}"#
        )
    };
    assert_eq!(raw(&[&claude("")]), ["none"], "refused without its signature");
    let sealed = claude(r#","signature":"s""#);
    assert_eq!(raw(&[&sealed]), [sealed]);
    assert_eq!(
        raw(&[
            r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"a"}]}]}"#,
            r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"b"}]}]}"#,
            r#"{"content":[{"type":"text","text":"yes"}]}"#,
        ]),
        [r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"ab"}]}]}"#]
    );
    assert_eq!(
        raw(&[r#"{"content":"<think>a"}"#, r#"{"content":"b</think>yes"}"#]),
        [r#"{"content":"<think>ab</think>yes"}"#]
    );
    assert_eq!(
        raw(&[r#"{"extra_content":{"google":{"thought_signature":"s"}},"content":"x"}"#]),
        [r#"{"extra_content":{"google":{"thought_signature":"s"}}}"#]
    );
    assert!(raw(&[r#"{"reasoning_content":"","content":"x"}"#]).is_empty());
    let call =
        r#"{"reasoning_content":"","tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}"#;
    assert_eq!(raw(&[call]), [r#"{"reasoning_content":""}"#], "DeepSeek wants it back");
}

#[test]
fn cut_reasoning_cannot_go_back() {
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 1 << 20);
    reading.push(&bytes_of(&[&delta(r#"{"reasoning_content":"hal"}"#)]));
    let reply = reading.finish(BodyEnd::Cut);
    assert_eq!(contents(&reply), [(PartKind::Reasoning, "hal")]);
    assert_eq!(reply.parts[0].raw.as_deref(), None);
    assert_eq!(reply.stop, None);
    assert!(!reply.complete);
    assert_eq!(reply.usage, Usage::default());
}

#[test]
fn tool_calls_are_put_together_however_they_come() {
    let tool = |pieces: &[&str]| -> Vec<(Option<String>, Option<String>, String)> {
        let all: Vec<String> =
            pieces.iter().map(|piece| format!(r#"{{"tool_calls":[{piece}]}}"#)).collect();
        let reply = deltas(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let own = |text: Option<&str>| text.map(str::to_owned);
        calls(&reply).iter().map(|(i, n, t)| (own(*i), own(*n), (*t).to_owned())).collect()
    };
    let call = |id: &str, name: &str, text: &str| {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (some(id), some(name), text.to_owned())
    };
    // Mistral: no index, whole arguments; two at once.
    assert_eq!(
        tool(&[
            r#"{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"f","arguments":"{}"}}"#
        ]),
        [call("a", "f", "{}"), call("b", "f", "{}")]
    );
    // Alibaba: an empty id continues the call; Venice: null ids and names.
    assert_eq!(
        tool(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":0,"id":"","function":{"name":"","arguments":"}"}}"#,
            r#"{"index":0,"id":null,"function":{"name":null,"arguments":" "}}"#,
        ]),
        [call("a", "f", "{} ")]
    );
    // Id and name repeated on every piece.
    assert_eq!(
        tool(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"}"}}"#,
        ]),
        [call("a", "f", "{}")]
    );
    // Cerebras: two ids on one index.
    assert_eq!(
        tool(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"index":0,"id":"b","function":{"name":"f","arguments":"{}"}}"#,
        ]),
        [call("a", "f", "{}"), call("b", "f", "{}")]
    );
    // A random id on each piece, as some gateways make them.
    assert_eq!(
        tool(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":0,"id":"b","function":{"arguments":"}"}}"#,
        ]),
        [call("a", "f", "{}")]
    );
    // Gemini's look-alike: every call is whole, on index 0, without an id.
    assert_eq!(
        tool(&[
            r#"{"index":0,"id":"","function":{"name":"f","arguments":"{\"a\":1}"}}"#,
            r#"{"index":0,"id":"","function":{"name":"f","arguments":"{\"a\":2}"}}"#,
        ]),
        [call("", "f", r#"{"a":1}"#), call("", "f", r#"{"a":2}"#)]
    );
    // Index not from 0, pieces interleaved.
    assert_eq!(
        tool(&[
            r#"{"index":1,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":2,"id":"b","function":{"name":"g","arguments":"["}}"#,
            r#"{"index":1,"function":{"arguments":"}"}}"#,
            r#"{"index":2,"function":{"arguments":"]"}}"#,
        ]),
        [call("a", "f", "{}"), call("b", "g", "[]")]
    );
    // No index, and pieces without ids; arguments as an object; freeform input; nothing at all.
    assert_eq!(
        tool(&[
            r#"{"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"function":{"arguments":"}"}}"#,
        ]),
        [call("a", "f", "{}")]
    );
    assert_eq!(
        tool(&[r#"{"index":0,"id":"a","function":{"name":"f","arguments":{"a":1}}}"#]),
        [call("a", "f", r#"{"a":1}"#)]
    );
    assert_eq!(
        tool(&[r#"{"index":0,"id":"a","type":"custom","custom":{"name":"f","input":"free"}}"#]),
        [call("a", "f", "free")]
    );
    assert!(tool(&[r#"{"index":0,"function":{"name":"","arguments":""}}"#]).is_empty());
}

#[test]
fn legacy_calls_and_signatures_on_calls_are_read() {
    let reply = deltas(&[
        r#"{"function_call":{"name":"f","arguments":"{"}}"#,
        r#"{"function_call":{"arguments":"}"}}"#,
    ]);
    assert_eq!(calls(&reply), [(None, Some("f"), "{}")]);
    let reply = deltas(&[
        r#"{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]}"#,
    ]);
    assert_eq!(reply.parts[0].signature.as_deref(), Some("c2ln"));
}

/// LiteLLM says who called.
#[test]
fn streamed_call_of_program_is_its_own() {
    let reply = deltas(&[
        r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""},"caller":{"type":"code_execution_20250825","tool_id":"s"}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}"#,
        r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"f","arguments":"{}"},"caller":{"type":"direct"}}]}"#,
    ]);
    let audiences: Vec<_> = reply.parts.iter().map(|part| part.audience).collect();
    assert_eq!(audiences, [Audience::Program, Audience::Model]);
}

#[test]
fn every_known_finish_reason_is_read() {
    for (word, expected) in [
        ("stop", StopReason::End),
        ("eos", StopReason::End),
        ("end_turn", StopReason::End),
        ("length", StopReason::MaxTokens),
        ("function_call", StopReason::ToolUse),
        ("content_filter", StopReason::Refused),
        ("model_context_window_exceeded", StopReason::WindowFull),
        ("insufficient_system_resource", StopReason::Failed),
        ("error", StopReason::Failed),
        ("whatever", StopReason::Other),
    ] {
        let finish =
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{word}"}}]}}"#);
        assert_eq!(chunks(&[&finish, "[DONE]"]).stop, Some(expected), "{word}");
    }
    let empty = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":""}]}"#;
    assert_eq!(chunks(&[empty, "[DONE]"]).stop, Some(StopReason::End), "Snowflake says no more");
    assert_eq!(chunks(&[empty]).stop, None);
    let null = empty.replace(r#""""#, r#""null""#);
    assert!(!chunks(&[&null, "[DONE]"]).complete, "KoboldCpp's word for null");
    let reply = deltas(&[r#"{"refusal":"I can"}"#, r#"{"refusal":"not"}"#]);
    assert_eq!(contents(&reply)[0].1, "I cannot");
    assert_eq!(reply.stop, Some(StopReason::Refused));
}

#[test]
fn stream_without_done_is_complete_when_it_finished_and_ended_whole() {
    let finished = bytes_of(&[&delta(r#"{"content":"x"}"#), FINISH]);
    assert!(stream(&finished).complete);
    let unfinished = bytes_of(&[&delta(r#"{"content":"x"}"#)]);
    assert!(!stream(&unfinished).complete);
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 1 << 20);
    reading.push(&finished);
    assert!(!reading.is_complete(), "[DONE] may still come");
    reading.push(b"data: [DONE]\n\n");
    assert!(reading.is_complete());
    assert!(reading.finish(BodyEnd::Cut).complete, "clients close on [DONE]");
}

#[test]
fn usage_is_found_wherever_it_stands() {
    let usage = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#;
    let nulls = r#"{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}"#;
    let own = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let finish = |at: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"{at}}}]"#)
    };
    let in_choice = format!("{}}}", finish(&format!(r#","usage":{usage}"#)));
    let beside = format!(r#"{},"usage":{usage}}}"#, finish(""));
    let groq = format!(r#"{},"x_groq":{{"id":"r","usage":{usage}}}}}"#, finish(""));
    let expected = Usage { input: Some(10), output: Some(5), ..Usage::default() };
    for all in [
        vec![nulls, FINISH, &own, "[DONE]"],
        vec![nulls, &in_choice, "[DONE]"],
        vec![nulls, &beside, "[DONE]"],
        vec![nulls, &groq, "[DONE]"],
        vec![nulls, &groq, &own, "[DONE]"],
    ] {
        assert_eq!(chunks(&all).usage, expected, "{all:?}");
    }
    let none = chunks(&[nulls, FINISH, "[DONE]"]);
    assert_eq!(none.usage, Usage::default(), "absent, not 0");
}

#[test]
fn cumulative_usage_counts_once_and_cut_leaves_lower_bound() {
    let chunk = |n: u64| {
        let total = 10 + n;
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}}}}],"usage":{{"prompt_tokens":10,"completion_tokens":{n},"total_tokens":{total}}}}}"#
        )
    };
    let all = [chunk(1), chunk(2), chunk(3)];
    let mut bytes = bytes_of(&[&all[0], &all[1], &all[2]]);
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 1 << 20);
    reading.push(&bytes);
    let cut = reading.finish(BodyEnd::Cut).usage;
    assert_eq!(cut.input, Some(10));
    assert_eq!(cut.output, Some(3));
    assert!(cut.lower_bound);
    bytes.extend(bytes_of(&[FINISH, "[DONE]"]));
    let whole = stream(&bytes).usage;
    assert_eq!(whole.output, Some(3));
    assert!(!whole.lower_bound);
}

#[test]
fn cached_tokens_have_many_names() {
    for (field, read, written) in [
        (r#""prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":3}"#, Some(4), Some(3)),
        (r#""prompt_token_details":{"cached_tokens":4}"#, Some(4), None),
        (r#""prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6"#, Some(4), None),
        (r#""cached_tokens":4"#, Some(4), None),
        (r#""num_cached_tokens":4"#, Some(4), None),
        (r#""cached_input_tokens":4"#, Some(4), None),
        (r#""prompt_tokens_details":{"cached_tokens":0},"cached_tokens":4"#, Some(4), None),
        (r#""cache_read_input_tokens":4,"cache_creation_input_tokens":2"#, Some(4), Some(2)),
        (r#""prompt_tokens_details":null"#, None, None),
        (r#""prompt_tokens_details":{"cached_tokens":0}"#, Some(0), None),
    ] {
        let (usage, notes) = usage_of(&format!(
            r#"{{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,{field}}}"#
        ));
        assert_eq!(usage.cache_read, read, "{field}");
        assert_eq!(usage.cache_write, written, "{field}");
        assert_eq!(usage.input, Some(10), "{field}");
        assert_eq!(usage.output, Some(5), "{field}");
        assert!(notes.is_empty(), "{field}");
    }
}

#[test]
fn wrong_totals_are_noted() {
    let mismatch = vec![Note::UsageMismatch];
    // xAI: reasoning outside of completion_tokens, inside of the total.
    let (usage, notes) = usage_of(
        r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":45,"completion_tokens_details":{"reasoning_tokens":30}}"#,
    );
    assert_eq!(usage.output, Some(35));
    assert_eq!(usage.reasoning, Some(30));
    assert_eq!(notes, mismatch.clone());
    // Gemini's look-alike: no details at all.
    let (usage, notes) =
        usage_of(r#"{"prompt_tokens":66,"completion_tokens":6,"total_tokens":100}"#);
    assert_eq!(usage.input, Some(66));
    assert_eq!(usage.output, Some(34));
    assert_eq!(notes, mismatch.clone());
    // Mistral: audio is outside of the prompt.
    let (usage, notes) = usage_of(
        r#"{"prompt_tokens":9,"completion_tokens":201,"total_tokens":585,"prompt_tokens_details":{"audio_tokens":375}}"#,
    );
    assert_eq!(usage.input, Some(384));
    assert_eq!(usage.output, Some(201));
    assert_eq!(notes, mismatch.clone());
    // If the total is too small, output is not reduced.
    let (usage, notes) = usage_of(r#"{"prompt_tokens":9,"completion_tokens":5,"total_tokens":9}"#);
    assert_eq!(usage.output, Some(5));
    assert_eq!(notes, mismatch.clone());
    // Azure's Grok counts a hidden prefix as cached, but not in the prompt.
    let (usage, notes) = usage_of(
        r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":161}}"#,
    );
    assert_eq!(usage.input, Some(10));
    assert_eq!(usage.cache_read, None);
    assert_eq!(notes, [Note::ImpossibleCount]);
    let huge = u64::MAX;
    usage_of(&format!(
        r#"{{"prompt_tokens":{huge},"completion_tokens":{huge},"total_tokens":{huge},"prompt_tokens_details":{{"audio_tokens":{huge}}}}}"#
    ));
    let (usage, _) = usage_of(r#"{"prompt_tokens":9,"total_tokens":14}"#);
    assert_eq!(usage.output, Some(5));
}

/// Vercel's gateway with Gemini: reasoning is in neither the completion nor the total, but is billed.
#[test]
fn reasoning_tokens_outside_completion_are_added_to_it() {
    let output = |usage: &str| usage_of(usage).0.output;
    let normalised = |completion: u64, total: u64, reasoning: u64| {
        output(&format!(
            r#"{{"prompt_tokens":61,"completion_tokens":{completion},"total_tokens":{total},"completion_tokens_details":{{"reasoning_tokens":{reasoning}}}}}"#
        ))
    };
    assert_eq!(normalised(10, 71, 96), Some(106));
    // If the total includes reasoning, it is not added again.
    assert_eq!(normalised(10, 167, 96), Some(106));
    // A difference of a few tokens is only another way of counting.
    assert_eq!(normalised(10, 71, 11), Some(10));
    assert_eq!(normalised(128, 189, 132), Some(128));
    let notes = usage_of(r#"{"prompt_tokens":1,"completion_tokens":10,"reasoning_tokens":96}"#).1;
    assert_eq!(notes, [Note::UsageMismatch]);
}

#[test]
fn llama_cpp_counts_in_timings() {
    let timings = r#""timings":{"prompt_n":3,"cache_n":7,"predicted_n":5}"#;
    let finish =
        format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],{timings}}}"#);
    let usage = chunks(&[&finish, "[DONE]"]).usage;
    assert_eq!(usage.input, Some(10));
    assert_eq!(usage.output, Some(5));
    assert_eq!(usage.cache_read, Some(7));
    let own =
        r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6,"total_tokens":17}}"#;
    let usage = chunks(&[own, &finish, "[DONE]"]).usage;
    assert_eq!(usage.input, Some(11), "usage goes first");
    assert_eq!(usage.cache_read, Some(7), "usage goes first");
}

#[test]
fn errors_come_in_many_places() {
    let message = |reply: &Reply| reply.error.as_ref().and_then(|e| e.message.clone()).unwrap();
    let kind = |reply: &Reply| reply.error.as_ref().and_then(|e| e.kind.clone());
    // OpenAI in the middle of a stream; Groq's `event: error`; gpustack's bare line.
    let reply = chunks(&[&delta(r#"{"content":"x"}"#), r#"{"error":{"message":"m","type":"t"}}"#]);
    assert_eq!(&*message(&reply), "m");
    assert_eq!(kind(&reply).as_deref(), Some("t"));
    assert_eq!(contents(&reply), vec![(PartKind::Text, "x")]);
    assert!(!reply.complete);
    let reply = stream(b"event: error\ndata: {\"error\":{\"message\":\"m\",\"code\":400}}\n\n");
    assert_eq!(&*message(&reply), "m");
    assert_eq!(kind(&reply).as_deref(), Some("400"));
    let mut bytes = bytes_of(&[&delta(r#"{"content":"x"}"#)]);
    bytes.extend(b"error: {\"detail\":\"failed\"}\n\n");
    let reply = stream(&bytes);
    assert_eq!(&*message(&reply), "failed");
    assert!(!reply.complete);
    // OpenRouter: in an ordinary chunk, with usage, then [DONE].
    let chunk = r#"{"id":"g","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}],
        "error":{"code":502,"message":"Token limit reached"},
        "usage":{"prompt_tokens":1,"completion_tokens":10,"total_tokens":11,"completion_tokens_details":{"reasoning_tokens":11}}}"#
        .replace('\n', " ");
    let reply = chunks(&[&chunk, "[DONE]"]);
    assert_eq!(&*message(&reply), "Token limit reached");
    assert_eq!(reply.usage.output, Some(10));
    assert_eq!(reply.notes, [Note::UsageMismatch]);
    // Bodies with status 200.
    for (text, expected) in [
        (r#"{"error":{"message":"m","code":"content_filter"}}"#, "m"),
        ("\n   \n {\"error\":{\"message\":\"m\",\"code\":402}}", "m"),
        (r#"{"error":"m"}"#, "m"),
        (r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#, "m"),
        (r#"{"base_resp":{"status_code":2013,"status_msg":"m"}}"#, "m"),
    ] {
        let reply = body(text);
        assert_eq!(&*message(&reply), expected, "{text}");
        assert!(reply.complete, "{text}");
    }
    let unknown = body(r#"{"hello":1}"#);
    assert_eq!(unknown.notes, vec![Note::UnknownStructure]);
    assert!(!unknown.complete);
}

#[test]
fn odd_chunks_are_survived() {
    // Azure's first chunk, a choice without a delta, Perplexity's message and new id, OpenRouter's
    // chunk after the finish, comments, padding keys, a second choice.
    let mut bytes = b": OPENROUTER PROCESSING\n\n".to_vec();
    bytes.extend(bytes_of(&[
        r#"{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}"#,
        r#"{"id":"a","model":"m","choices":[{"index":0,"finish_reason":null}]}"#,
        r#"{"id":"a","choices":[{"index":0,"delta":{"content":"1"},"message":{"content":"1"}}],"obfuscation":"xx"}"#,
        r#"{"id":"b","choices":[{"index":0,"delta":{"content":"2"},"message":{"content":"12"}}],"p":"abc"}"#,
        r#"{"id":"b","choices":[{"index":1,"delta":{"content":"other"}}]}"#,
        r#"{"id":"b","object":"chat.completion.done","choices":[{"index":0,"delta":{},"message":{"content":"12"},"finish_reason":"stop"}]}"#,
        r#"{"id":"b","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
    ]));
    bytes.extend(b"data: not json\n\ndata: {\"x\":1}\n\ndata: [DONE]\n\n");
    let reply = stream(&bytes);
    assert_eq!(contents(&reply), [(PartKind::Text, "12other")]);
    assert_eq!(reply.id.as_deref(), Some("a"));
    assert_eq!(reply.model.as_deref(), Some("m"));
    assert_eq!(reply.notes, [Note::BrokenEvent, Note::UnknownEvent]);
    assert!(reply.complete);
}

#[test]
fn each_of_several_replies_must_end() {
    let both = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}"#;
    let second = FINISH.replace(r#""index":0"#, r#""index":1"#);
    let is_complete = |events: &[&str], several| {
        let framing = Framing::Events;
        let mut reader = ResponseReader::new(Dialect::OpenaiChat, 200, framing, 1 << 20);
        reader.set_several(several);
        reader.push(&bytes_of(events));
        reader.finish(BodyEnd::Whole).complete
    };
    assert!(!is_complete(&[both, FINISH, "[DONE]"], true));
    assert!(is_complete(&[both, FINISH, &second, "[DONE]"], true));
    assert!(is_complete(&[both, FINISH, "[DONE]"], false), "choices of one reply");
    assert!(is_complete(&[FINISH, "[DONE]"], true), "a server without `n`");
}

#[test]
fn of_several_replies_last_one_counts() {
    let other = |inner: &str| delta(inner).replace(r#""id":"c""#, r#""id":"d""#);
    let all =
        [&delta(r#"{"content":"a"}"#), FINISH, &other(r#"{"role":"assistant","content":""}"#)];
    let own = r#"{"id":"e","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let one = chunks(&[all[0], all[1], all[2], own, "[DONE]"]);
    assert_eq!(contents(&one), vec![(PartKind::Text, "a")], "an id is nothing");
    assert_eq!(one.notes.as_slice(), &[][..], "an id is nothing");
    assert_eq!(one.usage.output, Some(2));
    let two = chunks(&[all[0], all[1], all[2], &other(r#"{"content":"b"}"#), FINISH, "[DONE]"]);
    assert_eq!(contents(&two), [(PartKind::Text, "b")]);
    assert_eq!(two.id.as_deref(), Some("d"));
    assert_eq!(two.notes, vec![Note::SeveralReplies]);
}

#[test]
fn body_is_read_like_stream() {
    let reply = body(
        r#"  {"id":"i","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{
        "role":"assistant","content":null,"reasoning":"r","refusal":null,"annotations":[],
        "audio":{"id":"","data":"","transcript":""},"function_call":{"name":"","arguments":""},
        "tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":"}}]}}],
        "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
    );
    assert_eq!(contents(&reply), [(PartKind::Reasoning, "r"), (PartKind::ToolCall, "{\"a\":")]);
    assert_eq!(reply.stop, Some(StopReason::ToolUse));
    assert!(reply.complete);
    let spoken = body(
        r#"{"choices":[{"message":{"content":null,"audio":{"id":"audio_1","data":"aGk=","transcript":"hello"}},"finish_reason":"stop"}]}"#,
    );
    let replay = request(r#"{"role":"assistant","audio":{"id":"audio_1"}}"#);
    assert_eq!(contents(&spoken), [(PartKind::Document, "hello")]);
    assert_eq!(replay.chains().last(), Some(&spoken.chain_after(Chain::START)));
    let searched = body(
        r#"{"choices":[{"message":{"content":"x","executed_tools":[{"type":"search"}]},"finish_reason":"stop"}]}"#,
    );
    assert!(searched.usage.hosted_tools);
}

#[test]
fn endless_reply_is_kept_to_limit() {
    // With its key and quotes, each delta is a megabyte: 32 are kept, the next is not.
    let size = (1 << 20) - r#"{"content":""}"#.len();
    let piece = bytes_of(&[&delta(&format!(r#"{{"content":"{}"}}"#, "x".repeat(size)))]);
    let usage =
        r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Events, 2 << 20);
    (0..33).for_each(|_| reading.push(&piece));
    reading.push(&bytes_of(&[usage, FINISH, "[DONE]"]));
    let reply = reading.finish(BodyEnd::Whole);
    assert_eq!(reply.parts[0].text.len(), 32 * size);
    assert_eq!(reply.notes, vec![Note::TooLong]);
    assert_eq!(reply.usage.output, Some(2), "the rest is still read");
    assert!(reply.complete, "the rest is still read");
}

#[test]
fn no_bytes_make_dialect_panic() {
    let stream = bytes_of(&[&delta(r#"{"tool_calls":[{"index":0,"id":"a"}]}"#), FINISH_CALLS]);
    for bytes in [REQUEST.as_bytes(), &stream, b"{\"choices\":[{\"delta\":[]}]}", b"[[[[", b""] {
        fuzz(bytes);
        for at in (0..bytes.len().min(400)).step_by(3) {
            let mut other = bytes.to_vec();
            other[at] = other[at].wrapping_add(1);
            fuzz(&other);
        }
    }
}

/// Snowflake's finish reason is always empty, or missing beside a reported usage.
#[test]
fn provider_that_never_says_why_it_stopped_is_complete_at_done() {
    let chunk = |reason: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}}{reason}}}]}}"#)
    };
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let ends = |chunks: &[&str]| {
        let reply = stream(&bytes_of(chunks));
        (reply.complete, reply.stop)
    };
    let (whole, broken) = ((true, Some(StopReason::End)), (false, None));
    let (empty, none, missing) =
        (chunk(r#","finish_reason":"""#), chunk(r#","finish_reason":null"#), chunk(""));
    assert_eq!(ends(&[&empty, "[DONE]"]), whole);
    assert_eq!(ends(&[&missing, usage, "[DONE]"]), whole);
    assert_eq!(ends(&[&missing, "[DONE]"]), broken);
    assert_eq!(ends(&[&none, usage, "[DONE]"]), broken);
    assert_eq!(ends(&["[DONE]"]), broken, "nothing was answered");
    assert_eq!(ends(&[&empty]), broken, "without [DONE]");
}
