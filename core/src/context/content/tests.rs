//! What is stored of an exchange, and how much of it.

use super::*;
use crate::context::ledger::Ledger;
use crate::context::lineage::place;
use crate::dialect::{self, Dialect, ReplyPart};

fn exchanged(body: &str, most: usize) -> ExchangeContent {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    let part = ReplyPart { text: "Aye.".into(), ..ReplyPart::new(PartKind::Text) };
    let reply = Reply { parts: vec![part], ..Reply::default() };
    let placed = place(&Ledger::default(), &read, &"r".into(), None);
    ExchangeContent::of_request(&read, body.as_bytes(), &placed, most).answered(&reply, most)
}

fn request(text: &str) -> String {
    let text = serde_json::Value::from(text);
    format!(r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":{text}}}]}}"#)
}

#[test]
fn text_one_byte_too_long_is_not_kept_but_its_size_is() {
    // The reply, the part, and its text.
    let room = BESIDE + 4 + BESIDE + 100;
    let text = "é".repeat(50);
    let kept = exchanged(&request(&text), room);
    assert_eq!(&*kept.messages[0].text, &*text);
    assert_eq!(kept.messages[0].redacted, 0);
    let left_out = exchanged(&request(&text), room - 1);
    assert_eq!(&*left_out.messages[0].text, "");
    assert_eq!(left_out.messages[0].redacted, 1);
    assert_eq!(left_out.messages[0].chars, 100);
    assert_eq!(left_out.reply[0].text, "Aye.");
}

#[test]
fn many_small_parts_stay_in_limit() {
    let block = r#"{"type":"text","text":"x"}"#;
    let blocks = vec![block; 10_000].join(",");
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{blocks}]}}]}}"#);
    let kept = exchanged(&body, 10_000);
    assert!(kept.messages.len() <= 10_000 / BESIDE + 1, "{}", kept.messages.len());
    let written = serde_json::to_string(&kept).unwrap().len();
    assert!(written <= 11_000, "{written}");
    assert_eq!(kept.messages.last().unwrap().redacted, 1);
}

#[test]
fn texts_are_kept_as_sent_and_pictures_leave_their_size() {
    let png = "iVBORw0KGgoAAAANSUhEUgAABQAAAALQCAIAAAA=";
    let body = format!(
        r#"{{"model":"m","system":"Be \"kind\".","tools":[{{"name":"look","input_schema":{{}}}}],
        "messages":[{{"role":"user","content":[{{"type":"text","text":"a\nb"}},
        {{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{png}"}}}}]}},
        {{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"look","input":{{"n":1}}}}]}},
        {{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":[
        {{"type":"text","text":"one"}},{{"type":"text","text":"two"}}]}}]}}]}}"#
    );
    let kept = exchanged(&body, 1 << 20);
    assert_eq!(kept.follows, ContentLink::Nothing);
    let contents = |parts: &[TranscriptPart]| -> Vec<(TranscriptKind, String)> {
        parts.iter().map(|parts| (parts.kind, parts.text.clone())).collect()
    };
    assert_eq!(kept.head[0].kind, TranscriptKind::Tools);
    assert_eq!(kept.head[1].text, "Be \"kind\".");
    let expected = [
        (TranscriptKind::Text, "a\nb"),
        (TranscriptKind::Image, ""),
        (TranscriptKind::ToolUse, r#"{"n":1}"#),
        (TranscriptKind::ToolResult, "one"),
        (TranscriptKind::ToolResult, "two"),
    ];
    assert_eq!(contents(&kept.messages), expected.map(|(kind, text)| (kind, text.to_owned())));
    let picture = &kept.messages[1];
    assert_eq!(picture.width, 1280);
    assert_eq!(picture.height, 720);
    assert_eq!(picture.chars, png.len() as u64);
    assert!(!kept.messages[3].continues);
    assert!(kept.messages[4].continues);
    // The names that transcripts use.
    let written = serde_json::to_value(&kept.messages).unwrap();
    assert_eq!(written[1]["w"], 1280);
    assert_eq!(written[1]["h"], 720);
    assert_eq!(written[4]["cont"], true);
}

/// What is exported of an exchange: the role of each part, its name and id, and the length of its signature.
#[test]
fn parts_keep_role_name_id_and_signature_length() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"Look."},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"c2lnbmVk"},
        {"type":"tool_use","id":"t","name":"look","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"ok"}]}]}"#;
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    let part = |kind| ReplyPart::new(kind);
    let reply = Reply {
        parts: vec![
            ReplyPart {
                text: "So.".into(),
                signature: Some("12345".into()),
                ..part(PartKind::Reasoning)
            },
            ReplyPart {
                text: "{}".into(),
                id: Some("u".into()),
                name: Some("go".into()),
                ..part(PartKind::ToolCall)
            },
        ],
        ..Reply::default()
    };
    let placed = place(&Ledger::default(), &read, &"r".into(), None);
    let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
    let kept = kept.answered(&reply, 1 << 20);
    let written = |parts: &[TranscriptPart]| serde_json::to_value(parts).unwrap();
    assert_eq!(
        written(&kept.messages),
        serde_json::json!([
            {"role": "user", "kind": "text", "chars": 5, "text": "Look."},
            {"role": "assistant", "kind": "thinking", "chars": 3, "text": "Hm.", "sig": 8},
            {"role": "assistant", "kind": "tool_use", "chars": 2, "text": "{}", "name": "look", "id": "t"},
            {"role": "user", "kind": "tool_result", "chars": 2, "text": "ok", "id": "t"},
        ])
    );
    assert_eq!(
        written(&kept.reply),
        serde_json::json!([
            {"role": "assistant", "kind": "thinking", "chars": 3, "text": "So.", "sig": 5},
            {"role": "assistant", "kind": "tool_use", "chars": 2, "text": "{}", "name": "go", "id": "u"},
        ])
    );
    // If there is no room for the text, the length of the signature and the names remain.
    let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
    let short = kept.answered(&reply, 2 * BESIDE + 3);
    assert_eq!(&*short.reply[0].text, "So.");
    assert_eq!(short.reply[0].redacted, 0);
    assert_eq!(short.reply[1].kind, TranscriptKind::Other);
    assert_eq!(short.reply[1].redacted, 1);
    assert_eq!(short.reply[1].chars, 2);
}

/// Gemini signs the part that follows its thoughts: the signature is exported as a thought before that part.
#[test]
fn signature_on_call_is_exported_as_reasoning_before_it() {
    let body = r#"{"contents":[{"role":"user","parts":[{"text":"Look."}]},{"role":"model","parts":[
        {"functionCall":{"name":"look","args":{}},"thoughtSignature":"c2lnbmVk"}]},
        {"role":"user","parts":[{"functionResponse":{"name":"look","response":{"a":1}}}]}]}"#;
    let path = "/v1beta/models/gemini-2.5-pro:generateContent";
    let read = dialect::read(Dialect::Gemini, path, body.as_bytes());
    let placed = place(&Ledger::default(), &read, &"r".into(), None);
    let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
    let listed: Vec<_> =
        kept.messages.iter().map(|part| (part.role, part.kind, part.signature_len)).collect();
    let (user, model) = (TranscriptSpeaker::User, TranscriptSpeaker::Assistant);
    let expected = [
        (user, TranscriptKind::Text, 0),
        (model, TranscriptKind::Thinking, 8),
        (model, TranscriptKind::ToolUse, 0),
        (user, TranscriptKind::ToolResult, 0),
    ];
    assert_eq!(listed, expected);
}

/// What a request contains that its parent did not: the reply as the client sends it, then what is new. System
/// prompt and tools are written again if they changed; if the history changed, all of it is written.
#[test]
fn parents_content_is_stored_once() {
    use serde_json::{Value, json};

    use crate::context::scene::SessionFixture;
    const MODEL: &str = "claude-opus-4-6";
    let user = |text: &str| json!({"role": "user", "content": text});
    let model = |text: &str| json!({"role": "assistant", "content": text});
    let body = |system: &str, messages: &Value| {
        let tools = json!([{"name": "look", "input_schema": {}}]);
        json!({"model": MODEL, "system": system, "tools": tools, "messages": messages})
    };
    let first = body("Be kind.", &json!([user("Words.")]));
    let mut scene = SessionFixture::read(Dialect::Anthropic, "/v1/messages", MODEL, &first);
    scene.answered(&json!([{"type": "text", "text": "Said."}]));
    let mut next = |body: &Value| {
        scene.body = body.to_string().into_bytes();
        scene.conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &scene.body);
        let (conversation, body) = (&scene.conversation, &scene.body);
        let kept = ExchangeContent::of_request(conversation, body, &scene.placed(), 1 << 20);
        let texts = |parts: Vec<TranscriptPart>| -> Vec<(String, bool)> {
            parts.into_iter().map(|parts| (parts.text, parts.reply)).collect()
        };
        (kept.follows, kept.head.len(), texts(kept.messages))
    };
    let expected = |texts: &[(&str, bool)]| -> Vec<(String, bool)> {
        texts.iter().map(|(text, reply)| ((*text).to_owned(), *reply)).collect()
    };
    let grown = json!([user("Words."), model("Said."), user("More."), model("So."), user("On.")]);
    let new = expected(&[("Said.", true), ("More.", false), ("So.", false), ("On.", false)]);
    assert_eq!(next(&body("Be kind.", &grown)), (ContentLink::Request, 0, new.clone()));
    assert_eq!(next(&body("Be brief.", &grown)), (ContentLink::Request, 2, new));
    let bare = json!([user("Words."), model("Said.")]);
    let reply = expected(&[("Said.", true)]);
    assert_eq!(next(&body("Be kind.", &bare)), (ContentLink::Request, 0, reply));
    let other = json!([user("Others."), model("Said."), user("More.")]);
    let all = expected(&[("Others.", false), ("Said.", false), ("More.", false)]);
    assert_eq!(next(&body("Be kind.", &other)).2, all);
    assert_eq!(next(&body("Be kind.", &other)).0, ContentLink::Nothing);
    // The provider holds the earlier request and its reply.
    let held = json!({"model": "gpt-5", "previous_response_id": "msg_1", "input": "More."});
    scene.body = held.to_string().into_bytes();
    scene.conversation = dialect::read(Dialect::OpenaiResponses, "/v1/responses", &scene.body);
    let (conversation, body) = (&scene.conversation, &scene.body);
    let kept = ExchangeContent::of_request(conversation, body, &scene.placed(), 1 << 20);
    assert_eq!(kept.follows, ContentLink::Reply);
    assert_eq!(kept.messages.len(), 1);
    assert_eq!(&*kept.messages[0].text, "More.");
    assert!(!kept.messages[0].reply);
}

/// If a text does not fit, its size is kept, in a request and in a reply. Several texts of one thought are one
/// part.
#[test]
fn oversized_text_keeps_its_size() {
    let body = request(&"x".repeat(100));
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    let placed = place(&Ledger::default(), &read, &"r".into(), None);
    let kept = |most| ExchangeContent::of_request(&read, body.as_bytes(), &placed, most);
    let part = TranscriptPart::new(TranscriptKind::Text);
    let whole = TranscriptPart { text: "x".repeat(100), chars: 100, ..part.clone() };
    // The length as it is in the body, with quotes.
    assert_eq!(kept(BESIDE + 102).messages, [whole]);
    let cut = TranscriptPart { chars: 102, redacted: 1, ..part };
    assert_eq!(kept(BESIDE + 101).messages, std::slice::from_ref(&cut));
    let nothing = TranscriptPart { kind: TranscriptKind::Other, ..cut.clone() };
    assert_eq!(kept(BESIDE - 1).messages, [nothing]);
    let part = ReplyPart { text: "y".repeat(100), ..ReplyPart::new(PartKind::Text) };
    let reply = Reply { parts: vec![part], ..Reply::default() };
    let answered = kept(0).answered(&reply, BESIDE + 99);
    let cut = TranscriptPart { role: TranscriptSpeaker::Assistant, chars: 100, ..cut };
    assert_eq!(answered.reply, [cut]);
    let body = r#"{"input":[{"type":"reasoning","encrypted_content":"AAAA","summary":[
        {"type":"summary_text","text":"One. "},{"type":"summary_text","text":"Two."}]}]}"#;
    let read = dialect::read(Dialect::OpenaiResponses, "/v1/responses", body.as_bytes());
    let placed = place(&Ledger::default(), &read, &"r".into(), None);
    let kept = ExchangeContent::of_request(&read, body.as_bytes(), &placed, 1 << 20);
    let texts: Vec<&str> = kept.messages.iter().map(|part| &*part.text).collect();
    assert_eq!(texts, ["One. Two."]);
}
