//! Further causes that are healed, and responses that are forwarded unchanged (`docs/healing.md`).

use plimsoll::context::policy::Policy;
use plimsoll::dialect::repair::RepairCause;
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::healed::{
    CHAT, CLAUDE, GEMINI, RESPONSES, chat, claude, gemini, heals, image, picture, responses,
};
use crate::play::{Play, anthropic_request};
use crate::stage::Stage;

/// 413: the oldest pictures of a request are replaced until it is accepted.
#[tokio::test]
async fn request_of_too_many_bytes_sheds_its_oldest_pictures() {
    let rules = Rules { max_request_bytes: 40_000, ..Rules::default() };
    let data: Vec<String> = (0..5).map(|at| picture(9_000 + at)).collect();
    let url = |data: &String| format!("data:image/png;base64,{data}");
    let of = |part: &dyn Fn(&String) -> Value| data.iter().map(part).collect::<Vec<Value>>();
    let claudes = of(&|data| image(data));
    let chats = of(&|data| json!({"type": "image_url", "image_url": {"url": url(data)}}));
    let items = of(&|data| json!({"type": "input_image", "image_url": url(data)}));
    let parts = of(&|data| json!({"inlineData": {"mimeType": "image/png", "data": data}}));
    for (target, body) in [
        (CLAUDE, claude(json!([{"role": "user", "content": claudes}]))),
        (CHAT, chat(json!([{"role": "user", "content": chats}]))),
        (RESPONSES, responses(json!([{"role": "user", "content": items}]))),
        (GEMINI, gemini(json!([{"role": "user", "parts": parts}]))),
    ] {
        heals(target, rules.clone(), target, body, RepairCause::Media).await;
    }
}

/// For example a web page that was saved as `paper.pdf`. The refusal names no place, and the picture beside the
/// document stays.
#[tokio::test]
async fn invalid_document_becomes_text_and_valid_picture_stays() {
    let page = "PGh0bWw+PC9odG1sPg==";
    let document = json!({"type": "document", "source": {
        "type": "base64", "media_type": "application/pdf", "data": page}});
    let question = json!({"type": "text", "text": "What does it say?"});
    let shown = claude(json!([{"role": "user", "content": [document, question]}]));
    heals("in a message", Rules::default(), CLAUDE, shown, RepairCause::Media).await;
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]});
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [document]}]});
    let read = claude(json!([{"role": "user", "content": "Read it."}, call, result]));
    heals("in a result", Rules::default(), CLAUDE, read, RepairCause::Media).await;

    let inline = |mime: &str, data: &str| json!({"inlineData": {"mimeType": mime, "data": data}});
    let parts = json!([inline("application/pdf", page), inline("image/png", &picture(90)), {"text": "What?"}]);
    let both = gemini(json!([{"role": "user", "parts": parts}]));
    heals("Gemini", Rules::default(), GEMINI, both.clone(), RepairCause::Media).await;
    let mut stage = Stage::open(Rules::default(), Policy::default()).await;
    let trip = stage.exchange(GEMINI, &both, ScriptedReply::text("Good.")).await;
    let sent = &trip.sent()["contents"][0]["parts"];
    assert!(sent[0]["text"].as_str().unwrap().contains("A document stood here"), "{sent}");
    assert_eq!(sent[1], parts[1], "the picture was not refused");
}

/// OpenAI names it by its first and last characters. The other block stays.
#[tokio::test]
async fn encrypted_reasoning_without_id_is_found_by_its_content() {
    let foreign =
        json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABmForeignDQ=="});
    let reply = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]});
    let input = json!([{"role": "user", "content": "Look."}, foreign, reply, {"role": "user", "content": "Well?"}]);
    let body = responses(input);
    heals("without an id", Rules::default(), RESPONSES, body, RepairCause::Reasoning).await;
}

#[tokio::test]
async fn whitespace_only_text_is_repaired_like_empty_text() {
    for messages in [
        json!([{"role": "user", "content": [{"type": "text", "text": " \n\t"}, {"type": "text", "text": "a"}]}]),
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "  "}, {"role": "user", "content": "b"}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "\n"}]}]),
    ] {
        heals("white space", Rules::default(), CLAUDE, claude(messages), RepairCause::Empty).await;
    }
}

/// The message is a known one, but the status is that of a failure or a limit: no byte changes, and nothing is sent
/// again.
#[tokio::test]
async fn server_errors_and_rate_limits_are_forwarded_without_repair() {
    let play = Play::of(CLAUDE, Policy::default()).await;
    let request = anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": ""})]);
    let refusal =
        "{ \"error\":\n {\"message\": \"messages: text content blocks must be non-empty\"} }";
    for status in [
        "500 Internal Server Error",
        "529 Overloaded",
        "503 Service Unavailable",
        "429 Too Many Requests",
    ] {
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        assert_eq!(call.message.text(), request.to_string(), "{status}");
        call.answer(status, refusal).await;
        let response = client.response().await;
        assert!(status.starts_with(&response.status().to_string()), "{status}");
        assert_eq!(response.text(), refusal, "{status}");
        assert!(!response.head.contains("x-plimsoll-healed"), "{}", response.head);
    }
}

/// Refusals are counted by the status that the client saw, by cause and by outcome.
#[tokio::test]
async fn refusals_are_counted_by_status_cause_and_outcome() {
    let mut play = Play::of(CLAUDE, Policy::default()).await;
    let request =
        anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": "a"})]);
    let place = r#"{"error":{"message":"messages.7.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes"}}"#;
    for (status, refusal) in [
        ("400 Bad Request", r#"{"error":{"message":"The moon is full."}}"#),
        ("422 Unprocessable Entity", r#"{"error":{"message":"The moon is full."}}"#),
        ("413 Payload Too Large", "The moon is full."),
        ("400 Bad Request", place),
    ] {
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        call.answer(status, refusal).await;
        assert_eq!(client.response().await.text(), refusal, "{status}");
        play.server.next_exchange().await;
    }
    let metrics = play.server.telemetry.render();
    for (status, cause, outcome) in [
        (400, "unknown", "unknown"),
        (422, "unknown", "unknown"),
        (413, "unknown", "unknown"),
        (400, "media", "misplaced"),
    ] {
        let of = format!("cause=\"{cause}\",outcome=\"{outcome}\",status=\"{status}\"");
        let line = |line: &&str| {
            line.starts_with("plimsoll_refusals_total{")
                && line.contains(&of)
                && line.ends_with(" 1")
        };
        assert!(metrics.lines().any(|it| line(&it)), "{of}: {metrics}");
    }
}
