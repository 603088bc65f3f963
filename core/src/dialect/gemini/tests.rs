use super::*;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Chain, LastCall, Reply, StopReason, Usage};

fn read(target: &str, body: &[u8]) -> Conversation {
    crate::dialect::read(Dialect::Gemini, target, body)
}

fn request(contents: &str) -> Conversation {
    read("", format!(r#"{{"contents":[{contents}]}}"#).as_bytes())
}

fn last(conversation: &Conversation) -> Chain {
    *conversation.chains().last().unwrap()
}

/// Reads a response. Fails if cutting it changes the result, or if a strict prefix is complete.
fn response(bytes: &[u8]) -> Reply {
    let read = |bytes: &[u8], size: usize, whole: bool| {
        let mut reading = ResponseReader::new(Dialect::Gemini, 200, Framing::Unknown, 1 << 20);
        bytes.chunks(size.max(1)).for_each(|chunk| reading.push(chunk));
        assert!(!reading.is_complete(), "only the end of the body ends it");
        reading.finish(BodyEnd::new(whole))
    };
    let reply = read(bytes, bytes.len(), true);
    assert_eq!(read(bytes, 1, true), reply);
    for at in 0..bytes.trim_ascii_end().len() {
        assert!(!read(&bytes[..at], at, false).complete, "complete at {at}");
    }
    reply
}

fn frames(frames: &[&str]) -> Reply {
    let frame = |frame: &&str| format!("data: {frame}\r\n\r\n").into_bytes();
    response(&frames.iter().flat_map(frame).collect::<Vec<u8>>())
}

/// One frame with these parts.
fn parts(parts: &str) -> String {
    format!(r#"{{"candidates":[{{"content":{{"role":"model","parts":[{parts}]}},"index":0}}]}}"#)
}

const STOP: &str = r#"{"candidates":[{"finishReason":"STOP","index":0}]}"#;

fn replied(all: &[&str]) -> Reply {
    let mut all: Vec<String> = all.iter().map(|inner| parts(inner)).collect();
    all.push(STOP.into());
    frames(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn contents(reply: &Reply) -> Vec<(PartKind, &str, Option<&str>)> {
    reply.parts.iter().map(|p| (p.kind, p.text.as_str(), p.signature.as_deref())).collect()
}

fn usage_of(usages: &[&str]) -> (Usage, Vec<Note>) {
    let mut all: Vec<String> =
        usages.iter().map(|usage| format!(r#"{{"usageMetadata":{usage}}}"#)).collect();
    all.push(STOP.into());
    let reply = frames(&all.iter().map(String::as_str).collect::<Vec<_>>());
    (reply.usage, reply.notes)
}

const REQUEST: &str = r#"{
 "systemInstruction":{"role":"user","parts":[{"text":"You are calm."}]},
 "contents":[
  {"role":"user","parts":[{"text":"look"},
    {"inlineData":{"mimeType":"image/png","data":"aGk="}},
    {"fileData":{"mimeType":"application/pdf","fileUri":"gs://b/f"}},
    {"hologram":1}]},
  {"role":"model","parts":[
    {"text":"hm","thought":true},
    {"text":"I look."},
    {"functionCall":{"id":"made-by-client-1","name":"f","args":{"a":1}},"thoughtSignature":"c2ln"},
    {"functionCall":{"name":"g"}},
    {"executableCode":{"language":"PYTHON","code":"print(1)","id":"x"}},
    {"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1\n"}},
    {"text":"","thoughtSignature":"c2ln"}]},
  {"role":"user","parts":[
    {"functionResponse":{"id":"made-by-client-1","name":"f","response":{"output":"done"},
      "parts":[{"inlineData":{"mimeType":"image/png","data":"aGk="}}]}},
    {"functionResponse":{"name":"g","response":{"error":"no","code":7}}}]}],
 "tools":[{"functionDeclarations":[{"name":"f"},{"name":"g"}]},{"googleSearch":{}}],
 "toolConfig":{},"cachedContent":"cachedContents/1",
 "generationConfig":{"maxOutputTokens":99,"responseJsonSchema":{"type":"object"}}
}"#;

#[test]
fn request_is_read_with_its_ranges() {
    let bytes = REQUEST.as_bytes();
    let read = crate::dialect::read(Dialect::Gemini, "/v1beta/models/m-1:generateContent", bytes);
    assert_eq!(read.model.as_deref(), Some("m-1"));
    assert_eq!(read.max_output, Some(99));
    assert_eq!(read.held, Some(HeldHistory::Named("cachedContents/1".into())));
    assert_eq!(read.system[0].texts[0].slice(bytes), br#""You are calm.""#);
    let names: Vec<_> = read.tools.iter().map(|tool| tool.name.as_deref()).collect();
    assert_eq!(names, [Some("f"), Some("g"), Some("googleSearch"), None]);
    use PartKind::{Document, Image, Opaque, Reasoning, Text, ToolCall, ToolResult};
    let kinds: Vec<Vec<PartKind>> =
        read.messages.iter().map(|m| m.parts.iter().map(|part| part.kind).collect()).collect();
    assert_eq!(
        kinds,
        [
            vec![Text, Image, Document, Opaque],
            vec![Reasoning, Text, ToolCall, ToolCall, Opaque, Opaque, Reasoning],
            vec![ToolResult, Image, ToolResult],
        ]
    );
    let model = &read.messages[1].parts;
    assert!(model[0].key.is_none());
    assert!(model[6].key.is_none());
    assert!(model[6].texts.is_empty());
    assert_eq!(model[2].signature.unwrap().slice(bytes), br#""c2ln""#);
    assert_eq!(model[2].texts[0].slice(bytes), br#"{"a":1}"#);
    assert_eq!(model[4].texts[0].slice(bytes), br#""print(1)""#);
    let results = &read.messages[2].parts;
    assert_eq!(results[0].texts[0].slice(bytes), br#""done""#, "a cut leaves an object");
    assert_eq!(results[2].texts[0].slice(bytes), br#"{"error":"no","code":7}"#);
    assert!(!results[0].is_error);
    assert!(results[2].is_error);
    assert_eq!(read.notes, [Note::UnknownPart]);
}

#[test]
fn camel_case_and_snake_case_keys_are_read_alike() {
    let snake = REQUEST
        .replace("systemInstruction", "system_instruction")
        .replace("functionCall", "function_call")
        .replace("functionResponse", "function_response")
        .replace("functionDeclarations", "function_declarations")
        .replace("inlineData", "inline_data")
        .replace("mimeType", "mime_type")
        .replace("fileData", "file_data")
        .replace("fileUri", "file_uri")
        .replace("thoughtSignature", "thought_signature")
        .replace("executableCode", "executable_code")
        .replace("codeExecutionResult", "code_execution_result")
        .replace("generationConfig", "generation_config")
        .replace("maxOutputTokens", "max_output_tokens")
        .replace("responseJsonSchema", "response_json_schema")
        .replace("cachedContent\"", "cached_content\"");
    let (camel, snake) = (read("", REQUEST.as_bytes()), read("", snake.as_bytes()));
    assert_eq!(last(&snake), last(&camel));
    assert_eq!(snake.max_output, camel.max_output);
    assert_eq!(&snake.held, &camel.held);
    let keys = |read: &Conversation| read.all_parts().map(|part| part.key).collect::<Vec<_>>();
    assert_eq!(keys(&snake), keys(&camel));
}

#[test]
fn differences_between_clients_do_not_change_chain() {
    let chain = last(&read("", REQUEST.as_bytes()));
    for (from, to) in [
        (r#""id":"made-by-client-1","#, ""),
        ("made-by-client-1", "f__f_2"),
        ("c2ln", "skip_thought_signature_validator"),
        (r#"{"text":"hm","thought":true},"#, ""),
        (
            r#",
    {"text":"","thoughtSignature":"c2ln"}"#,
            "",
        ),
        (r#","thoughtSignature":"c2ln""#, r#","thoughtSignature":"_-__""#),
        (r#"{"text":"I look."}"#, r#"{"text":"I "},{"text":"look.","thoughtSignature":"x"}"#),
        (r#"{"text":"I look."}"#, r#"{"text":"I "}]},{"role":"model","parts":[{"text":"look."}"#),
        (r#"{"error":"no","code":7}"#, r#"{"code":7.0, "error":"no"}"#),
        (r#","id":"x""#, ""),
        (r#"{"name":"g"}}"#, r#"{"name":"g","args":{}}}"#),
        ("aGk=", "aGk"),
    ] {
        let other = REQUEST.replace(from, to);
        assert_ne!(other, REQUEST, "{from}");
        assert_eq!(last(&read("", other.as_bytes())), chain, "{from} -> {to}");
    }
    for (from, to) in [("I look.", "I see."), (r#""done""#, r#""gone""#), (r#"{"a":1}"#, "{}")] {
        assert_ne!(last(&read("", REQUEST.replace(from, to).as_bytes())), chain, "{from}");
    }
}

#[test]
fn wrapped_requests_are_read() {
    let assist = r#"{"model":"gemini-3-pro","project":"p","user_prompt_id":"u",
        "request":{"contents":[{"role":"user","parts":[{"text":"hi"}]}],"session_id":"s-12345678"}}"#;
    let target = "/v1internal:streamGenerateContent?alt=sse";
    let seen = crate::dialect::read(Dialect::Gemini, target, assist.as_bytes());
    assert_eq!(seen.model.as_deref(), Some("gemini-3-pro"));
    assert!(seen.stream);
    assert_eq!(seen.session, Some("s-12345678".into()));
    assert_eq!(last(&seen), last(&request(r#"{"parts":[{"text":"hi"}]}"#)));

    let count = r#"{"generateContentRequest":{"model":"models/m-2","contents":[{"parts":[{"text":"hi"}]}],
        "tools":{"functionDeclarations":[{"name":"f"}]}}}"#;
    let seen =
        crate::dialect::read(Dialect::Gemini, "/v1beta/models/m-2:countTokens", count.as_bytes());
    assert_eq!(seen.model.as_deref(), Some("m-2"));
    assert_eq!(seen.purpose, Purpose::Count);
    assert_eq!(seen.tools.len(), 1);
    assert_eq!(seen.messages.len(), 1);
}

#[test]
fn loose_shapes_are_tolerated() {
    let one = read(
        "",
        br#"{"contents":{"parts":{"text":"hi"}},"systemInstruction":{"parts":{"text":"s"}}}"#,
    );
    assert_eq!(one.messages.len(), 1);
    assert_eq!(one.system.len(), 1);
    assert_eq!(last(&one), last(&request(r#"{"role":"user","parts":[{"text":"hi"}]}"#)));
    let bare = read("", br#"{"contents":"hi","systemInstruction":"s"}"#);
    assert_eq!(last(&bare), last(&one));
    assert_eq!(bare.system.len(), 1);
    for (bytes, note) in [
        ("<html>", Note::NotJson),
        ("[1]", Note::UnknownStructure),
        (r#"{"messages":[]}"#, Note::UnknownStructure),
        (r#"{"contents":[{"role":"user"}]}"#, Note::UnknownStructure),
        (r#"{"contents":[{"parts":[7]}]}"#, Note::UnknownPart),
    ] {
        assert_eq!(read("", bytes.as_bytes()).notes, [note], "{bytes}");
    }
}

#[test]
fn routing_request_of_gemini_cli_is_side_request() {
    let router = r#"{"contents":[{"role":"user","parts":[{"text":"x"}]}],
        "systemInstruction":{"parts":[{"text":"\nYou are a specialized Task Routing AI. Your"}]},
        "generationConfig":{"responseJsonSchema":{"properties":{"complexity_score":{}}}}}"#;
    let purpose = |text: &str| {
        let target = "/v1beta/models/m:generateContent";
        crate::dialect::read(Dialect::Gemini, target, text.as_bytes()).purpose
    };
    assert_eq!(purpose(router), Purpose::Side);
    assert_eq!(purpose(&router.replace("Task Routing", "Data")), Purpose::Turn);
    let compaction =
        router.replace("a specialized Task Routing AI", "told to fill a <state_snapshot>");
    assert_eq!(purpose(&compaction), Purpose::Compaction);
}

#[test]
fn stream_and_replay_have_one_chain() {
    let reply = replied(&[
        r#"{"text":"I ","thought":true}"#,
        r#"{"text":"think","thought":true}"#,
        r#"{"text":"Hello "}"#,
        r#"{"text":"there"}"#,
        r#"{"functionCall":{"id":"abc","name":"f","args":{"a":1}},"thoughtSignature":"c2ln"},{"functionCall":{"name":"g","args":{}}}"#,
    ]);
    use PartKind::{Reasoning, Text, ToolCall};
    assert_eq!(
        contents(&reply),
        [
            (Reasoning, "I think", None),
            (Text, "Hello there", None),
            (ToolCall, r#"{"a":1}"#, Some("c2ln")),
            (ToolCall, "{}", None),
        ]
    );
    assert_eq!(reply.stop, Some(StopReason::ToolUse));
    assert!(reply.complete);
    assert_eq!(reply.parts[0].raw.as_deref(), Some(r#"{"text":"I think","thought":true}"#));
    let replay = |part: &str| {
        request(&format!(
            r#"{{"role":"model","parts":[{part},{{"functionCall":{{"name":"f","args":{{"a":1}}}}}},
            {{"functionCall":{{"name":"g"}}}}]}}"#
        ))
    };
    let after = reply.chain_after(Chain::START);
    assert_eq!(last(&replay(r#"{"text":"Hello there"}"#)), after);
    assert_eq!(last(&replay(r#"{"text":"Hello "},{"text":"there"}"#)), after, "as it came");
}

#[test]
fn signed_parts_are_never_joined() {
    let reply = replied(&[
        r#"{"text":"a"}"#,
        r#"{"text":"b","thoughtSignature":"c2ln"}"#,
        r#"{"text":"c"}"#,
        r#"{"text":""}"#,
        r#"{"text":"d"}"#,
    ]);
    let after_finish = r#"{"candidates":[{"content":{"parts":[{"text":"","thoughtSignature":"ZW5k"}]},"finishReason":"STOP"}]}"#;
    use PartKind::{Reasoning, Text};
    assert_eq!(
        contents(&reply),
        [(Text, "a", None), (Text, "b", Some("c2ln")), (Text, "cd", None)]
    );
    let one = request(r#"{"role":"model","parts":[{"text":"abcd"}]}"#);
    assert_eq!(reply.chain_after(Chain::START), last(&one), "one run of words, however cut");
    let keys: Vec<bool> = reply.parts.iter().map(|part| part.key.is_some()).collect();
    assert_eq!(keys, [false, false, true]);

    let reply = frames(&[&parts(r#"{"text":"a"}"#), STOP, after_finish]);
    assert_eq!(contents(&reply), [(Text, "a", None), (Reasoning, "", Some("ZW5k"))]);
    let raw = r#"{"text":"","thoughtSignature":"ZW5k"}"#;
    assert_eq!(reply.parts[1].raw.as_deref(), Some(raw), "an empty signed part is recorded");
    assert!(reply.complete, "a second finish reason is no trouble");
}

#[test]
fn calls_are_assembled_from_pieces_of_their_arguments() {
    let reply = replied(&[
        r#"{"functionCall":{"name":"f","willContinue":true},"thoughtSignature":"c2ln"}"#,
        r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.place","stringValue":"Bos","willContinue":true}],"willContinue":true}}"#,
        r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.place","stringValue":"ton"}],"willContinue":true}}"#,
        r#"{"functionCall":{"willContinue":true}}"#,
        r#"{"functionCall":{}}"#,
        r#"{"functionCall":{"name":"g","willContinue":true}}"#,
        r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.n","numberValue":0.5}]}}"#,
        r#"{"functionCall":{"name":"h","args":{"x":1}}}"#,
        r#"{"functionCall":{}}"#,
    ]);
    use PartKind::ToolCall;
    assert_eq!(
        contents(&reply),
        [
            (ToolCall, r#"{"place":"Boston"}"#, Some("c2ln")),
            (ToolCall, r#"{"n":0.5}"#, None),
            (ToolCall, r#"{"x":1}"#, None),
        ]
    );
    let replay = request(
        r#"{"role":"model","parts":[{"functionCall":{"name":"f","args":{"place":"Boston"}}},
        {"functionCall":{"name":"g","args":{"n":0.5}}},{"functionCall":{"name":"h","args":{"x":1}}}]}"#,
    );
    assert_eq!(reply.chain_after(Chain::START), last(&replay));
    // The end of a call may be missing: the next part closes it.
    let reply = replied(&[
        r#"{"functionCall":{"name":"f","willContinue":true}}"#,
        r#"{"functionCall":{"partialArgs":[{"jsonPath":"$[x]","stringValue":"x"}],"willContinue":true}}"#,
        r#"{"text":"after"}"#,
    ]);
    assert_eq!(contents(&reply), [(ToolCall, "", None), (PartKind::Text, "after", None)]);
    assert!(reply.parts[0].key.is_some());
    assert_eq!(reply.notes, [Note::UnknownPart]);
}

#[test]
fn parts_that_ran_at_provider_have_same_chain_when_replayed() {
    let inner = concat!(
        r#"{"executableCode":{"language":"PYTHON","code":"1","id":"x"},"thoughtSignature":"c2ln"},"#,
        r#"{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1"}},"#,
        r#"{"toolCall":{"id":"t","toolType":"SEARCH"}},{"toolResponse":{"id":"t"}},"#,
        r#"{"inlineData":{"mimeType":"image/png","data":"aGk="}},{"text":"so"}"#
    );
    let reply = replied(&[inner]);
    assert_eq!(reply.parts.len(), 6);
    assert!(reply.notes.is_empty());
    let replay = request(&format!(r#"{{"role":"model","parts":[{inner}]}}"#));
    assert_eq!(reply.chain_after(Chain::START), last(&replay));
}

#[test]
fn usage_keeps_what_later_chunks_drop() {
    let (usage, notes) = usage_of(&[
        r#"{"promptTokenCount":9,"totalTokenCount":9}"#,
        r#"{"promptTokenCount":10,"candidatesTokenCount":4,"thoughtsTokenCount":3,"cachedContentTokenCount":6,"totalTokenCount":17}"#,
        r#"{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":18,"trafficType":"ON_DEMAND"}"#,
    ]);
    let expected = Usage {
        input: Some(10),
        output: Some(8),
        reasoning: Some(3),
        cache_read: Some(6),
        ..Usage::default()
    };
    assert_eq!(usage, expected);
    assert!(notes.is_empty());
    let (usage, _) = usage_of(&[r#"{"trafficType":"ON_DEMAND"}"#]);
    assert_eq!(usage, Usage::default(), "unknown, not 0");
}

#[test]
fn prompts_of_hosted_tools_are_input_but_not_context() {
    let (usage, notes) = usage_of(&[
        r#"{"promptTokenCount":132,"candidatesTokenCount":65,"totalTokenCount":1733,"toolUsePromptTokenCount":1387,"thoughtsTokenCount":149}"#,
    ]);
    assert_eq!(usage.input, Some(1519));
    assert_eq!(usage.output, Some(214));
    assert_eq!(usage.last_call, Some(LastCall { input: 132, output: 214 }));
    assert!(usage.hosted_tools);
    assert!(notes.is_empty());
}

#[test]
fn wrong_totals_are_noted() {
    let (usage, notes) =
        usage_of(&[r#"{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":20}"#]);
    assert_eq!(usage.output, Some(10));
    assert_eq!(notes, vec![Note::UsageMismatch]);
    let huge = u64::MAX;
    let all = format!(
        r#"{{"promptTokenCount":{huge},"candidatesTokenCount":{huge},"thoughtsTokenCount":{huge},"toolUsePromptTokenCount":{huge},"totalTokenCount":1}}"#
    );
    let (usage, notes) = usage_of(&[&all]);
    assert_eq!(usage, crate::dialect::Usage::default());
    assert_eq!(notes, vec![Note::ImpossibleCount]);
}

#[test]
fn chunk_of_zeros_erases_nothing() {
    let whole = r#"{"promptTokenCount":500,"candidatesTokenCount":40,"thoughtsTokenCount":7,"cachedContentTokenCount":300,"toolUsePromptTokenCount":9,"totalTokenCount":556}"#;
    let known = usage_of(&[whole]).0;
    assert_eq!(known.input, Some(509));
    assert_eq!(known.output, Some(47));
    assert_eq!(known.cache_read, Some(300));
    let zeros = r#"{"promptTokenCount":0,"candidatesTokenCount":0,"thoughtsTokenCount":0,"cachedContentTokenCount":0,"toolUsePromptTokenCount":0,"totalTokenCount":0}"#;
    let corrected = usage_of(&[whole, r#"{"promptTokenCount":490,"totalTokenCount":546}"#]).0;
    assert_eq!(corrected.input, Some(499));
    assert_eq!(corrected.output, Some(47));
    let nulls = zeros.replace(":0", ":null");
    for last in [zeros, &nulls, "{}"] {
        assert_eq!(usage_of(&[whole, last]).0, known, "{last}");
    }
}

#[test]
fn finish_reason_by_name_or_number() {
    for (reason, expected, complete) in [
        (r#""STOP""#, Some(StopReason::End), true),
        ("1", Some(StopReason::End), true),
        ("2", Some(StopReason::MaxTokens), true),
        (r#""MAX_TOKENS""#, Some(StopReason::MaxTokens), true),
        (r#""SAFETY""#, Some(StopReason::Refused), true),
        ("8", Some(StopReason::Refused), true),
        (r#""MALFORMED_FUNCTION_CALL""#, Some(StopReason::Failed), true),
        (r#""MISSING_THOUGHT_SIGNATURE""#, Some(StopReason::Failed), true),
        (r#""CONTINUATION""#, Some(StopReason::Paused), true),
        (r#""NEW_REASON""#, Some(StopReason::Other), true),
        (r#""FINISH_REASON_UNSPECIFIED""#, None, false),
        ("0", None, false),
        ("null", None, false),
    ] {
        let frame = format!(r#"{{"candidates":[{{"finishReason":{reason}}}]}}"#);
        let reply = frames(&[&frame]);
        assert_eq!(reply.stop, expected, "{reason}");
        assert_eq!(reply.complete, complete, "{reason}");
    }
    // Reasoning used all output: no content at all. A blocked prompt: no candidates.
    let eaten = r#"{"candidates":[{"content":{"role":"model"},"finishReason":"MAX_TOKENS"}],
        "usageMetadata":{"promptTokenCount":4,"thoughtsTokenCount":30,"totalTokenCount":34}}"#
        .replace('\n', "");
    let reply = frames(&[&eaten]);
    assert_eq!(reply.parts.len(), 0);
    assert_eq!(reply.usage.output, Some(30));
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4}}"#;
    let reply = frames(&[blocked]);
    assert_eq!(reply.stop, Some(StopReason::Refused));
    assert!(reply.complete);
    assert_eq!(reply.usage.input, Some(4));
    assert_eq!(reply.usage.output, Some(0));
}

#[test]
fn cut_stream_is_incomplete() {
    let one = parts(r#"{"text":"hal","thought":true}"#).replace(
        "\"index\"",
        r#""x":0}],"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4},"y":[{"index""#,
    );
    let reply = frames(&[&one]);
    assert!(!reply.complete);
    assert!(reply.usage.lower_bound);
    assert_eq!(reply.usage.input, Some(4));
    assert_eq!(reply.stop, None);
    assert_eq!(reply.parts[0].raw, None, "what was cut cannot be sent back");
}

#[test]
fn streamed_array_is_read_like_stream() {
    let usage =
        r#"{"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":1,"totalTokenCount":5}}"#;
    let all = [parts(r#"{"text":"[a"}"#), parts(r#"{"text":"]b"}"#), STOP.into(), usage.into()];
    let array = format!("[{}\n]", all.join("\n,\r\n"));
    let reply = response(array.as_bytes());
    let same = frames(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(reply, same);
    assert_eq!(contents(&reply), [(PartKind::Text, "[a]b", None)]);
}

#[test]
fn code_assist_chunks_are_read() {
    let wrap = |inner: &str| format!(r#"{{"response":{inner},"traceId":"t"}}"#);
    let inner = parts(r#"{"text":"hi"}"#);
    let reply = frames(&[&wrap(&inner), &wrap(STOP)]);
    assert_eq!(reply, frames(&[&inner, STOP]));
    assert!(reply.complete);
    assert!(reply.notes.is_empty());
}

#[test]
fn whole_bodies_and_errors_are_read() {
    let body = r#"{"candidates":[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}],
        "responseId":"r","modelVersion":"m"}"#;
    let reply = response(body.as_bytes());
    assert_eq!(reply.id.as_deref(), Some("r"));
    assert_eq!(reply.model.as_deref(), Some("m"));
    assert!(reply.complete);
    assert!(!reply.usage.lower_bound);
    let reply = response(br#"{"totalTokens":31,"promptTokensDetails":[]}"#);
    assert_eq!(reply.counted, Some(31));
    assert!(reply.complete);
    let error = r#"{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}"#;
    let kind = |reply: &Reply| reply.error.as_ref().and_then(|error| error.kind.clone());
    let reply = frames(&[&parts(r#"{"text":"hi"}"#), error]);
    assert_eq!(kind(&reply).as_deref(), Some("RESOURCE_EXHAUSTED"));
    assert!(!reply.complete);
    let reply = response(format!("[{},{error}]", parts(r#"{"text":"hi"}"#)).as_bytes());
    assert_eq!(kind(&reply).as_deref(), Some("RESOURCE_EXHAUSTED"), "as an array element");
    assert_eq!(kind(&response(error.as_bytes())).as_deref(), Some("RESOURCE_EXHAUSTED"));
    assert_eq!(frames(&[r#"{"x":1}"#]).notes, [Note::UnknownEvent]);
    let other = r#"{"candidates":[{"index":0,"content":{"parts":[{"text":"a"}]}},{"index":1,"content":{"parts":[{"text":"b"}]}}]}"#;
    assert_eq!(contents(&frames(&[other, STOP])), [(PartKind::Text, "ab", None)]);
}

#[test]
fn endless_reply_is_kept_to_limit() {
    // With its key and quotes, each part is a megabyte: 32 are kept, the next is not.
    let size = (1 << 20) - r#"{"text":""}"#.len();
    let piece = parts(&format!(r#"{{"text":"{}"}}"#, "x".repeat(size)));
    let piece = format!("data: {piece}\n\n").into_bytes();
    let mut reading = ResponseReader::new(Dialect::Gemini, 200, Framing::Events, 2 << 20);
    (0..33).for_each(|_| reading.push(&piece));
    reading.push(format!("data: {STOP}\n\n").as_bytes());
    let reply = reading.finish(BodyEnd::Whole);
    assert_eq!(reply.parts[0].text.len(), 32 * size);
    assert_eq!(reply.notes, vec![Note::TooLong]);
    assert!(reply.complete, "the rest is still read");
}

#[test]
fn no_bytes_make_dialect_panic() {
    let stream = format!(
        "data: {}\n\ndata: {STOP}\n\n",
        parts(r#"{"functionCall":{"name":"f","willContinue":true}}"#)
    );
    for bytes in [REQUEST.as_bytes(), stream.as_bytes(), b"[{\"candidates\":[[]]}]", b"", b"]"] {
        fuzz(bytes);
        for at in (0..bytes.len().min(400)).step_by(3) {
            let mut other = bytes.to_vec();
            other[at] = other[at].wrapping_add(1);
            fuzz(&other);
        }
    }
}
