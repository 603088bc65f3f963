//! The request for a summary, dialect by dialect.

use serde_json::{Value as Json, json};

use super::*;
use crate::dialect::{ProviderError, ReplyPart};

fn summary_request(dialect: Dialect, target: &str, body: &str) -> Json {
    let question = SummaryQuestion {
        instruction: "Say \"it\".",
        model: None,
        output: SummaryOutput { text: 4096, room: 30_000 },
        usage: true,
        marker: None,
    };
    let request = ask(dialect, target, &Bytes::from(body.to_owned()), &question).unwrap();
    serde_json::from_slice(&request).unwrap()
}

#[test]
fn anthropic_is_asked_for_summary_in_last_user_message() {
    let body = r#"{"model":"m","max_tokens":100,"tool_choice":{"type":"any"},"system":"s","tools":[{"name":"T"}],
        "messages":[{"role":"user","content":"Hm."},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"T","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}]}"#;
    let request = summary_request(Dialect::Anthropic, "/v1/messages", body);
    assert_eq!(
        request["messages"][2]["content"][1],
        json!({"type": "text", "text": "Say \"it\"."})
    );
    assert_eq!(request["messages"].as_array().unwrap().len(), 3);
    assert_eq!(&request["stream"], &json!(true));
    assert_eq!(&request["max_tokens"], &json!(4096));
    assert_eq!(request.get("tool_choice"), None);
    assert_eq!(&request["system"], &json!("s"));
    let plain = r#"{"model":"m","max_tokens":9000,"messages":[{"role":"user","content":"Hm."}]}"#;
    let request = summary_request(Dialect::Anthropic, "/v1/messages", plain);
    assert_eq!(request["messages"][0]["content"][0]["text"], "Hm.");
    assert_eq!(request["messages"][0]["content"][1]["text"], "Say \"it\".");
    assert_eq!(request["max_tokens"], 4096, "no more than a summary needs");
}

/// Gemini's were asked for as often as the client asks for replies, and read as one text.
#[test]
fn one_summary_is_asked_for() {
    let chat = r#"{"model":"m","n":3,"messages":[{"role":"user","content":"Hm."}]}"#;
    assert_eq!(summary_request(Dialect::OpenaiChat, "/v1/chat/completions", chat).get("n"), None);
    let gemini = r#"{"generationConfig":{"candidateCount":3},"contents":[{"role":"user","parts":[{"text":"Hm."}]}]}"#;
    let target = "/v1beta/models/gemini-2.5-pro:generateContent";
    let request = summary_request(Dialect::Gemini, target, gemini);
    assert_eq!(request["generationConfig"].get("candidateCount"), None);
}

/// A limit is raised or lowered to what a summary needs, with room for reasoning, and never past the window's room.
#[test]
fn summary_output_fits_its_input() {
    let at = |dialect, target, body: Json, path: &str| {
        summary_request(dialect, target, &body.to_string()).pointer(path).cloned()
    };
    let user = json!([{"role": "user", "content": "Hm."}]);
    let claude = |more: Json, path: &str| {
        let mut body = json!({"model": "m", "messages": user, "max_tokens": 64_000});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        at(Dialect::Anthropic, "/v1/messages", body, path).unwrap()
    };
    let thinks = |budget: u64| json!({"thinking": {"type": "enabled", "budget_tokens": budget}});
    assert_eq!(claude(json!({}), "/max_tokens"), 4_096);
    assert_eq!(claude(json!({"thinking": {"type": "adaptive"}}), "/max_tokens"), 20_480);
    assert_eq!(claude(thinks(10_000), "/max_tokens"), 14_096);
    assert_eq!(claude(thinks(10_000), "/thinking/budget_tokens"), 10_000, "as it is cached");
    assert_eq!(claude(thinks(60_000), "/max_tokens"), 30_000);
    assert_eq!(claude(thinks(60_000), "/thinking/budget_tokens"), 25_904);
    let chat = |more: Json, path: &str| {
        let mut body = json!({"model": "m", "messages": user});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        at(Dialect::OpenaiChat, "/v1/chat/completions", body, path)
    };
    for member in ["max_tokens", "max_completion_tokens"] {
        let path = format!("/{member}");
        assert_eq!(chat(json!({member: 64_000}), &path), Some(json!(20_480)));
        assert_eq!(chat(json!({member: 100}), &path), Some(json!(4_096)));
        assert_eq!(chat(json!({}), &path), None, "no limit is added");
    }
    let routed = json!({"max_tokens": 64_000, "reasoning": {"max_tokens": 60_000}});
    assert_eq!(chat(routed, "/reasoning/max_tokens"), Some(json!(25_904)));
    let asked = json!({"model": "m", "input": user, "max_output_tokens": 64_000});
    let output = at(Dialect::OpenaiResponses, "/v1/responses", asked, "/max_output_tokens");
    assert_eq!(output, Some(json!(20_480)));
    let config = json!({"maxOutputTokens": 64_000, "thinkingConfig": {"thinkingBudget": 30_000}});
    let gemini = json!({"generationConfig": config,
        "contents": [{"role": "user", "parts": [{"text": "Hm."}]}]});
    let target = "/v1beta/models/gemini-2.5-pro:generateContent";
    let of = |path| at(Dialect::Gemini, target, gemini.clone(), path);
    assert_eq!(of("/generationConfig/maxOutputTokens"), Some(json!(30_000)));
    assert_eq!(of("/generationConfig/thinkingConfig/thinkingBudget"), Some(json!(25_904)));
}

#[test]
fn cache_marker_stands_where_answered_request_ended() {
    let target = "/v1/messages";
    let body = r#"{"model":"m","messages":[{"role":"user","content":"Hm."},{"role":"assistant","content":"So."},{"role":"user","content":[{"type":"text","text":"And?","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}"#;
    let read = super::super::read(Dialect::Anthropic, target, body.as_bytes());
    let marker = marker(&read, body.as_bytes(), 2).unwrap();
    assert_eq!(super::marker(&read, body.as_bytes(), 3), None);
    let ended = r#"{"model":"m","messages":[{"role":"user","content":"Hm."},{"role":"assistant","content":"So."}]}"#;
    let blocks = ended.replace(r#""Hm.""#, r#"[{"type":"text","text":"Hm."}]"#);
    let question = SummaryQuestion {
        instruction: "Say it.",
        model: None,
        output: SummaryOutput { text: 9, room: 9 },
        usage: true,
        marker: Some(&marker),
    };
    for body in [ended, &blocks] {
        let body = Bytes::from(body.to_owned());
        let request = ask(Dialect::Anthropic, target, &body, &question).unwrap();
        let request: Json = serde_json::from_slice(&request).unwrap();
        let marked = json!({"type": "text", "text": "Hm.", "cache_control": {"type": "ephemeral", "ttl": "1h"}});
        assert_eq!(request["messages"][0]["content"], json!([marked]));
    }
    let full = ended.replace(
        r#""m","#,
        &format!(r#""m","system":[{}],"#, [r#"{"cache_control":{}}"#; 4].join(",")),
    );
    let request = ask(Dialect::Anthropic, target, &Bytes::from(full), &question).unwrap();
    let request: Json = serde_json::from_slice(&request).unwrap();
    assert_eq!(request["messages"][0]["content"], "Hm.", "no more than a request may have");
}

#[test]
fn chat_is_asked_in_user_message_or_after_tool_result() {
    let target = "/v1/chat/completions";
    let body = r#"{"model":"m","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"Hm."}]}"#;
    let request = summary_request(Dialect::OpenaiChat, target, body);
    assert_eq!(request["messages"][0]["content"], "Hm.\n\nSay \"it\".");
    assert_eq!(request["stream_options"], json!({"include_usage": true}));
    assert_eq!(request.get("response_format"), None);
    assert_eq!(request.get("max_tokens"), None, "no limit is put where there is none");
    let body = r#"{"model":"m","messages":[{"role":"user","content":"Hm."},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}]}"#;
    let request = summary_request(Dialect::OpenaiChat, target, body);
    assert_eq!(request["messages"][3], json!({"role": "user", "content": "Say \"it\"."}));
}

#[test]
fn responses_and_gemini_are_asked_for_summary_in_their_own_form() {
    let body = r#"{"model":"m","tool_choice":"required","text":{"format":{"type":"json_schema"},"verbosity":"low"},"input":[{"role":"user","content":"Hm."},{"role":"assistant","content":"So."}]}"#;
    let request = summary_request(Dialect::OpenaiResponses, "/v1/responses", body);
    assert_eq!(request["input"][2], json!({"role": "user", "content": "Say \"it\"."}));
    assert_eq!(&request["text"], &json!({"verbosity": "low"}));
    assert_eq!(request.get("tool_choice"), None);
    let body = r#"{"contents":[{"role":"user","parts":[{"text":"Hm."}]}],"generationConfig":{"responseMimeType":"application/json"}}"#;
    let target = "/v1beta/models/gemini-3-pro:generateContent?key=k";
    let request = summary_request(Dialect::Gemini, target, body);
    assert_eq!(request["contents"][0]["parts"][1], json!({"text": "Say \"it\"."}));
    assert_eq!(&request["generationConfig"], &json!({}));
    assert_eq!(request.get("stream"), None);
    assert_eq!(
        self::target(Dialect::Gemini, target, None),
        "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse&key=k"
    );
    assert_eq!(
        self::target(Dialect::Gemini, "/v1/models/a:streamGenerateContent?alt=sse", Some("b")),
        "/v1/models/b:streamGenerateContent?alt=sse"
    );
    assert_eq!(
        self::target(Dialect::Anthropic, "/v1/messages?beta=true", Some("b")),
        "/v1/messages?beta=true"
    );
}

/// An analysis before the summary's tag is not part of the summary.
#[test]
fn analysis_before_summary_is_dropped() {
    let reply =
        "<analysis>\nFirst this, then that.\n</analysis>\n\n<summary>\nShe is deep.\n</summary>";
    let part = ReplyPart { text: reply.into(), ..ReplyPart::new(PartKind::Text) };
    let reply = Reply {
        parts: vec![part],
        complete: true,
        stop: Some(StopReason::End),
        ..Reply::default()
    };
    assert_eq!(summary_text(&reply, false), Ok("She is deep.".into()));
}

#[test]
fn summary_is_accepted_only_from_complete_reply_of_text() {
    let text = |content: &str| ReplyPart { text: content.into(), ..ReplyPart::new(PartKind::Text) };
    let reply = |parts: Vec<ReplyPart>| Reply {
        parts,
        complete: true,
        stop: Some(StopReason::End),
        ..Reply::default()
    };
    assert_eq!(
        summary_text(
            &reply(vec![text("Hm. <summary> All"), text(" of it. </summary> Bye.")]),
            false
        ),
        Ok("All of it.".into())
    );
    assert_eq!(summary_text(&reply(vec![text(" Plain. ")]), false), Ok("Plain.".into()));
    assert_eq!(
        summary_text(&reply(vec![text("<summary> </summary>")]), false),
        Err(SummaryRejection::Empty)
    );
    assert_eq!(
        summary_text(&reply(vec![text("x"), ReplyPart::new(PartKind::ToolCall)]), false),
        Err(SummaryRejection::ToolCall)
    );
    assert_eq!(
        summary_text(&Reply { complete: false, ..reply(vec![text("x")]) }, false),
        Err(SummaryRejection::Incomplete)
    );
    let cut = Reply { stop: Some(StopReason::MaxTokens), ..reply(vec![text("x")]) };
    assert_eq!(summary_text(&cut, false), Err(SummaryRejection::Incomplete));
    assert_eq!(summary_text(&cut, true), Ok("x".into()));
    assert_eq!(
        summary_text(&Reply { complete: false, ..cut }, true),
        Err(SummaryRejection::Incomplete)
    );
    let failed = Reply { error: Some(ProviderError::default()), ..reply(Vec::new()) };
    assert_eq!(summary_text(&failed, false), Err(SummaryRejection::Refused));
}

/// A piece of a history that begins with a summary of earlier pieces.
#[test]
fn reasoning_that_is_signed_for_another_beginning_is_left_out() {
    let step = |signature: &str| {
        let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": signature});
        let call = json!({"type": "tool_use", "id": signature, "name": "Read", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": signature, "content": "It."});
        [
            json!({"role": "assistant", "content": [thinking, call]}),
            json!({"role": "user", "content": [result]}),
        ]
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let messages: Vec<_> =
        [vec![user("A.")], step("one").into(), vec![user("B.")], step("two").into()].concat();
    let body = json!({"model": "m", "messages": messages}).to_string();
    let left = |bound| {
        let body = Bytes::from(body.clone());
        let body = without_signed(Dialect::Anthropic, "/v1/messages", body, bound);
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains(r#""id":"one""#), "{text}");
        assert!(text.contains(r#""id":"two""#), "{text}");
        (text.contains(r#""signature":"one""#), text.contains(r#""signature":"two""#))
    };
    assert_eq!(left(true), (false, false));
    assert_eq!(left(false), (false, true));
    let plain = Bytes::from_static(br#"{"model":"m","messages":[{"role":"user","content":"A."}]}"#);
    let same = without_signed(Dialect::Anthropic, "/v1/messages", plain.clone(), true);
    assert_eq!(same, plain);
}
