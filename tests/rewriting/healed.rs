//! What a provider refuses in a client's request is changed once, the request is sent again, and the change is repeated
//! later (`docs/healing.md`).

use plimsoll::config::Mode;
use plimsoll::context::policy::{Policy, RepairPolicy};
use plimsoll::dialect::repair::RepairCause;
use plimsoll::telemetry::{RefusalOutcome, RefusalReport};
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::stage::{RoundTrip, Stage};

pub(crate) const CLAUDE: &str = "/v1/messages";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const GEMINI: &str = "/v1beta/models/gemini-2.5-pro:generateContent";

pub(crate) fn healed(cause: RepairCause) -> Option<RefusalReport> {
    Some(RefusalReport { causes: vec![cause], outcome: RefusalOutcome::Healed })
}

pub(crate) fn claude(messages: Value) -> Value {
    json!({"model": "claude-sonnet-4-6", "max_tokens": 1000, "messages": messages, "tools": [
        {"name": "look", "input_schema": {"type": "object"}}]})
}

pub(crate) fn chat(messages: Value) -> Value {
    json!({"model": "gpt-5.5", "max_completion_tokens": 1000, "messages": messages})
}

pub(crate) fn responses(input: Value) -> Value {
    json!({"model": "gpt-5.5", "max_output_tokens": 1000, "store": false, "input": input})
}

pub(crate) fn gemini(contents: Value) -> Value {
    json!({"contents": contents, "generationConfig": {"maxOutputTokens": 1000}})
}

/// The base64 of a picture with this many bytes.
pub(crate) fn picture(bytes: usize) -> String {
    format!("iVBORw0KGgo{}", "A".repeat(bytes))
}

pub(crate) fn image(data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
}

/// The member that holds the history.
pub(crate) fn history(body: &Value) -> &'static str {
    ["messages", "input", "contents"].into_iter().find(|name| body[*name].is_array()).unwrap()
}

/// The client's next request after a response.
pub(crate) fn goes_on(body: &Value, answer: &Value) -> Value {
    let mut body = body.clone();
    let name = history(&body);
    let list = body[name].as_array_mut().unwrap();
    match name {
        "contents" => {
            list.push(answer["candidates"][0]["content"].clone());
            list.push(json!({"role": "user", "parts": [{"text": "And now?"}]}));
        }
        "input" => {
            list.extend(answer["output"].as_array().unwrap().clone());
            list.push(json!({"role": "user", "content": "And now?"}));
        }
        _ => {
            let message = match answer["choices"][0]["message"].is_object() {
                true => {
                    json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
                }
                false => json!({"role": "assistant", "content": answer["content"]}),
            };
            list.push(message);
            list.push(json!({"role": "user", "content": "And now?"}));
        }
    }
    body
}

pub(crate) fn refusals(trip: &RoundTrip) -> usize {
    trip.log.iter().filter(|entry| entry.verdict.broken_rule().is_some()).count()
}

/// The provider refuses, the client gets a reply all the same, and its next request is not refused, after a restart
/// too. What was sent before does not change.
pub(crate) async fn heals(name: &str, rules: Rules, target: &str, body: Value, cause: RepairCause) {
    let mut stage = Stage::open(rules, Policy::default()).await;
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{name}: {} {:?}", trip.answer, trip.exchange.refusal);
    assert_eq!(trip.log.len(), 2, "{name}");
    assert_eq!(refusals(&trip), 1, "{name}");
    assert_eq!(trip.exchange.refusal, healed(cause), "{name}");
    let (sent, list) = (trip.sent().clone(), history(&body));
    let mut next = goes_on(&body, &trip.answer);
    for restarts in [false, true] {
        if restarts {
            stage.restart().await;
        }
        let later = stage.exchange(target, &next, ScriptedReply::text("Better.")).await;
        assert_eq!(later.status, 200, "{name}: {}", later.answer);
        assert_eq!(later.log.len(), 1, "{name}: {}", later.answer);
        assert_eq!(later.exchange.refusal, None, "{name}");
        let (before, now) =
            (sent[list].as_array().unwrap(), later.sent()[list].as_array().unwrap());
        assert_eq!(before[..], now[..before.len()], "{name}: bytes that were sent before changed");
        next = goes_on(&next, &later.answer);
    }
}

fn rules() -> Rules {
    Rules { max_image_bytes: 5_000, ..Rules::default() }
}

#[tokio::test]
async fn too_large_picture_becomes_text() {
    let question = json!({"type": "text", "text": "What is this?"});
    let large = claude(json!([{"role": "user", "content": [image(&picture(9_000)), question]}]));
    heals("in a message", rules(), CLAUDE, large.clone(), RepairCause::Media).await;
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]});
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
        {"type": "text", "text": "Here."}, image(&picture(9_000))]}]});
    let nested = claude(json!([{"role": "user", "content": "Look."}, call, result]));
    heals("in a result", rules(), CLAUDE, nested, RepairCause::Media).await;
    let url = format!("data:image/png;base64,{}", picture(9_000));
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    let body =
        chat(json!([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]));
    heals("Chat", rules(), CHAT, body, RepairCause::Media).await;
    let part = json!({"type": "input_image", "image_url": url});
    let body = responses(
        json!([{"role": "user", "content": [part, {"type": "input_text", "text": "What?"}]}]),
    );
    heals("Responses", rules(), RESPONSES, body, RepairCause::Media).await;
    let part = json!({"inlineData": {"mimeType": "image/png", "data": picture(9_000)}});
    let body = gemini(json!([{"role": "user", "parts": [part, {"text": "What?"}]}]));
    heals("Gemini", rules(), GEMINI, body, RepairCause::Media).await;

    // Only what is named is changed; everything else is the client's bytes.
    let mut stage = Stage::open(rules(), Policy::default()).await;
    let small = picture(100);
    let both =
        claude(json!([{"role": "user", "content": [image(&picture(9_000)), image(&small)]}]));
    let trip = stage.exchange(CLAUDE, &both, ScriptedReply::text("Good.")).await;
    let sent = trip.log.last().unwrap().request.bytes.clone();
    let sent = String::from_utf8(sent.to_vec()).unwrap();
    let (before, after) = (both.to_string(), image(&picture(9_000)).to_string());
    let (first, rest) = before.split_once(&after).unwrap();
    assert!(sent.starts_with(first), "{sent}");
    assert!(sent.ends_with(rest), "{sent}");
    let text = trip.sent()["messages"][0]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("image/png"), "{text}");
    assert!(text.contains("too large"), "{text}");
}

#[tokio::test]
async fn surplus_pictures_become_text() {
    let rules = Rules { max_images: 4, ..Rules::default() };
    let many: Vec<Value> = (0..6).map(|at| image(&picture(100 + at))).collect();
    let body = claude(json!([{"role": "user", "content": many}]));
    heals("too many", rules, CLAUDE, body.clone(), RepairCause::Media).await;
    let rules = Rules { max_images: 4, ..Rules::default() };
    let mut stage = Stage::open(rules, Policy::default()).await;
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    let kinds = trip.sent()["messages"][0]["content"].as_array().unwrap();
    let kinds: Vec<&str> = kinds.iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "text", "text", "image", "image", "image"], "the oldest go");
    let wrong =
        claude(json!([{"role": "user", "content": [image("AAAAAAAA"), image(&picture(10))]}]));
    heals("no picture", Rules::default(), CLAUDE, wrong, RepairCause::Media).await;
    // If no place is named, the picture that is not of its declared type is replaced.
    let url = |data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    let body = chat(json!([{"role": "user", "content": [url("AAAAAAAA"), url(&picture(10))]}]));
    heals("no place", Rules::default(), CHAT, body, RepairCause::Media).await;
}

#[tokio::test]
async fn empty_content_is_removed_or_filled() {
    let body = claude(json!([{"role": "user", "content": [
        {"type": "text", "text": ""}, {"type": "text", "text": "Hello"}]}]));
    heals("a block", Rules::default(), CLAUDE, body, RepairCause::Empty).await;
    let body = claude(json!([
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "?"}]));
    heals("a message", Rules::default(), CLAUDE, body, RepairCause::Empty).await;
}

#[tokio::test]
async fn refused_prefill_is_repaired() {
    let body = claude(json!([
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I was cut"}]));
    heals("Claude", Rules::default(), CLAUDE, body, RepairCause::Prefill).await;
}

#[tokio::test]
async fn lone_surrogate_is_replaced() {
    for (target, body) in [
        (CLAUDE, claude(json!([{"role": "user", "content": "x HALF y"}]))),
        (CHAT, chat(json!([{"role": "user", "content": "x HALF y"}]))),
        (RESPONSES, responses(json!([{"role": "user", "content": "x HALF y"}]))),
        (GEMINI, gemini(json!([{"role": "user", "parts": [{"text": "x HALF y"}]}]))),
    ] {
        let mut stage = Stage::open(Rules::default(), Policy::default()).await;
        let text = body.to_string().replace("HALF", "\\ud83d");
        let trip = stage.exchange_text(target, &text, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{target}: {}", trip.answer);
        assert_eq!(trip.log.len(), 2, "{target}: {}", trip.answer);
        assert_eq!(trip.exchange.refusal, healed(RepairCause::Unicode));
        let sent = String::from_utf8(trip.log[1].request.bytes.to_vec()).unwrap();
        let sent = sent.replace("\"include\":[\"reasoning.encrypted_content\"],", "");
        assert_eq!(sent, text.replace("\\ud83d", "\\ufffd"));
        let later = stage.exchange_text(target, &text, ScriptedReply::text("Good.")).await;
        assert_eq!(later.status, 200);
        assert_eq!(later.log.len(), 1);
    }
}

#[tokio::test]
async fn unpaired_calls_are_repaired() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]});
    let result = |id: &str| {
        json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": id, "content": "Seen."}]})
    };
    for (name, messages) in [
        ("no result", json!([user("a"), call, user("b")])),
        ("no call", json!([user("a"), result("toolu_9")])),
        ("an id twice", json!([user("a"), call, result("toolu_1"), call, result("toolu_1")])),
        (
            "too late",
            json!([user("a"), call, user("b"), {"role": "assistant", "content": "c"}, result("toolu_1")]),
        ),
    ] {
        heals(name, Rules::default(), CLAUDE, claude(messages), RepairCause::ToolPairs).await;
    }
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "Seen."});
    for (name, messages) in [
        ("Chat: no result", json!([user("a"), call, user("b")])),
        ("Chat: no call", json!([user("a"), result, user("b")])),
    ] {
        heals(name, Rules::default(), CHAT, chat(messages), RepairCause::ToolPairs).await;
    }
    let call =
        json!({"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "call_1", "output": "Seen."});
    for (name, items) in [
        ("Responses: no output", json!([user("a"), call, user("b")])),
        ("Responses: no call", json!([user("a"), output, user("b")])),
        ("Responses: an item twice", {
            let mut item = call.clone();
            item["id"] = json!("fc_0123456789abcdef");
            json!([user("a"), item, item, output, user("b")])
        }),
    ] {
        heals(name, Rules::default(), RESPONSES, responses(items), RepairCause::ToolPairs).await;
    }
    let question = json!({"role": "user", "parts": [{"text": "a"}]});
    let call = json!({"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]});
    let body = gemini(json!([question, call, question]));
    heals("Gemini: no response", Rules::default(), GEMINI, body, RepairCause::ToolPairs).await;
}

#[tokio::test]
async fn refused_ids_cache_markers_and_members_are_repaired() {
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "look:1", "name": "look", "input": {}}]});
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "look:1", "content": "Seen."}]});
    let body = claude(json!([{"role": "user", "content": "a"}, call, result]));
    heals("ids", Rules::default(), CLAUDE, body, RepairCause::ToolIds).await;
    let marked =
        |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let marks: Vec<Value> = ["a", "b", "c", "d", "e", "f"].iter().map(|it| marked(it)).collect();
    let mut stage = Stage::open(Rules::default(), Policy::default()).await;
    let body = claude(json!([{"role": "user", "content": marks}]));
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200);
    assert_eq!(trip.exchange.refusal.clone(), healed(RepairCause::CacheMarks));
    let body = claude(json!([{"role": "user", "content": [
        {"type": "text", "text": "a", "source_note": "mine"}]}]));
    heals("a member", Rules::default(), CLAUDE, body, RepairCause::Field).await;
}

#[tokio::test]
async fn foreign_thinking_is_removed() {
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": "bm90IG91cnM="});
    let body = claude(json!([{"role": "user", "content": "a"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"}]));
    heals("Claude", Rules::default(), CLAUDE, body, RepairCause::Reasoning).await;
}

#[tokio::test]
async fn output_limit_above_models_maximum_is_lowered() {
    for (target, mut body, path) in [
        (CLAUDE, claude(json!([{"role": "user", "content": "a"}])), "/max_tokens"),
        (CHAT, chat(json!([{"role": "user", "content": "a"}])), "/max_completion_tokens"),
        (
            GEMINI,
            gemini(json!([{"role": "user", "parts": [{"text": "a"}]}])),
            "/generationConfig/maxOutputTokens",
        ),
    ] {
        *body.pointer_mut(path).unwrap() = json!(64_000);
        let rules = Rules { max_output_tokens: Some(8_192), ..Rules::default() };
        let mut stage = Stage::open(rules.clone(), Policy::default()).await;
        let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{target}");
        assert_eq!(trip.exchange.refusal.clone(), healed(RepairCause::MaxTokens), "{target}");
        assert_eq!(trip.sent().pointer(path), Some(&json!(8_192)));
        heals(target, rules, target, body, RepairCause::MaxTokens).await;
    }
}

/// Prompt and output together are too large: the output limit is lowered, and no history is cut.
#[tokio::test]
async fn output_limit_is_lowered_before_history_is_cut() {
    let rules = Rules { window: Some(12_000), ..Rules::default() };
    let mut stage = Stage::open(rules, Policy::default()).await;
    let mut body = claude(json!([{"role": "user", "content": "word ".repeat(3_000)}]));
    body["model"] = json!("claude-sonnet-4");
    body["max_tokens"] = json!(11_000);
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{}", trip.answer);
    assert_eq!(trip.log.len(), 2, "{}", trip.answer);
    assert_eq!(trip.exchange.refusal, healed(RepairCause::MaxTokens));
    let (before, after) = (&body["messages"], &trip.sent()["messages"]);
    assert_eq!(before, after, "history was cut");
    assert!(trip.sent()["max_tokens"].as_u64().unwrap() >= 4096);
    let next = goes_on(&body, &trip.answer);
    let later = stage.exchange(CLAUDE, &next, ScriptedReply::text("Good.")).await;
    assert_eq!(later.status, 200, "{}", later.answer);
    assert_eq!(later.log.len(), 1, "{}", later.answer);
}

/// If even the lowest output does not fit, the history is cut by what is too much, and not more.
#[tokio::test]
async fn history_is_cut_only_by_what_lower_output_limit_does_not_save() {
    let rules = Rules { window: Some(12_000), ..Rules::default() };
    let mut stage = Stage::open(rules, Policy::default()).await;
    let mut messages = vec![json!({"role": "user", "content": "Look at all."})];
    for at in 0..7 {
        let id = format!("toolu_{at}");
        messages.push(json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": "look", "input": {"at": at}}]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": format!("{at} {}", "word ".repeat(1_040))}]}));
    }
    messages.push(json!({"role": "assistant", "content": "Seen."}));
    messages.push(json!({"role": "user", "content": "And now?"}));
    let mut body = claude(Value::Array(messages));
    body["model"] = json!("claude-sonnet-4");
    body["max_tokens"] = json!(9_000);
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{} {:?}", trip.answer, trip.exchange.refusal);
    let sent = trip.sent();
    let whole = sent["messages"].as_array().unwrap().iter();
    let whole =
        whole.filter(|it| it["content"][0]["content"].as_str().is_some_and(|it| it.len() > 5_000));
    let whole = whole.count();
    assert!((4..7).contains(&whole), "{whole} results stay whole");
    assert_eq!(sent["max_tokens"], 4_096);
}

/// Each refused thing is repaired, one after the other: two in one request, the third when its client asks again.
#[tokio::test]
async fn several_things_at_once_are_healed() {
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]});
    let body = claude(
        json!([{"role": "user", "content": [image(&picture(9_000)), {"type": "text", "text": ""}]},
        call, {"role": "user", "content": "go on"}]),
    );
    let mut stage = Stage::open(rules(), Policy::default()).await;
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 400, "{}", trip.answer);
    assert_eq!(trip.log.len(), 3, "{}", trip.answer);
    let causes = [RepairCause::Media, RepairCause::Empty];
    assert_eq!(trip.exchange.refusal.as_ref().unwrap().causes, causes);
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 200, "{}", trip.answer);
    assert_eq!(trip.log.len(), 2, "{}", trip.answer);
    assert_eq!(trip.exchange.refusal.as_ref().unwrap().causes, [RepairCause::ToolPairs]);
    let next = goes_on(&body, &trip.answer);
    assert_eq!(stage.exchange(CLAUDE, &next, ScriptedReply::text("Good.")).await.log.len(), 1);
}

#[tokio::test]
async fn only_active_mode_heals() {
    let body = claude(json!([{"role": "user", "content": ""}]));
    for mode in [Mode::Observe, Mode::Shadow] {
        let mut stage = Stage::open(Rules::default(), Policy::default()).await;
        stage.config.mode = mode;
        stage.restart().await;
        let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 400);
        assert_eq!(trip.log.len(), 1);
        let (causes, outcome) = (vec![RepairCause::Empty], RefusalOutcome::Possible);
        assert_eq!(trip.exchange.refusal, Some(RefusalReport { causes, outcome }), "{mode:?}");
    }
    // A cause that policy does not list is forwarded.
    let heal = RepairPolicy { causes: vec![RepairCause::Media], ..RepairPolicy::default() };
    let mut stage = Stage::open(Rules::default(), Policy { heal, ..Policy::default() }).await;
    let trip = stage.exchange(CLAUDE, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 400);
    assert_eq!(trip.log.len(), 1);
}

const EMPTY: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#;

/// The provider refuses the repaired request, too: the client gets the first response, byte for byte, and the repair is
/// not tried again.
#[tokio::test]
async fn repair_that_does_not_help_is_not_tried_again() {
    let mut play = Play::of(CLAUDE, Policy::default()).await;
    let request = anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": ""})]);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", EMPTY).await;
    let mut call = call.wire.request().await;
    assert_ne!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", &EMPTY.replace("messages", "all messages")).await;
    let response = client.response().await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.text(), EMPTY);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refusal.as_ref().unwrap().outcome, RefusalOutcome::RefusedAgain);
    for restarts in [false, true] {
        if restarts {
            play.restart().await;
        }
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        assert_eq!(call.message.text(), request.to_string());
        call.answer("400 Bad Request", EMPTY).await;
        assert_eq!(client.response().await.status(), 400);
        let exchange = play.server.next_exchange().await;
        assert_eq!(exchange.refusal.as_ref().unwrap().outcome, RefusalOutcome::NoRepair);
    }
}

/// Unknown messages, and places that do not exist, are forwarded and counted.
#[tokio::test]
async fn refusal_that_is_not_understood_is_forwarded_and_counted() {
    let mut play = Play::of(CLAUDE, Policy::default()).await;
    let request =
        anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": "a"})]);
    for (refusal, outcome) in [
        (r#"{"error":{"message":"The moon is full."}}"#, RefusalOutcome::Unknown),
        (
            r#"{"error":{"message":"messages.7.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes"}}"#,
            RefusalOutcome::Misplaced,
        ),
    ] {
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        call.answer("400 Bad Request", refusal).await;
        let response = client.response().await;
        assert_eq!(response.status(), 400);
        assert_eq!(response.text(), refusal);
        assert_eq!(
            play.server.next_exchange().await.refusal.as_ref().unwrap().outcome,
            outcome,
            "{refusal}"
        );
    }
    let reply =
        anthropic_reply("m1", "claude-sonnet-4-6", json!([{"type": "text", "text": "Go on."}]));
    assert_eq!(play.exchange(&request, &reply).await.bytes, request.to_string());
}

/// A response header names what was changed.
#[tokio::test]
async fn header_names_what_was_repaired() {
    let play = Play::of(CLAUDE, Policy::default()).await;
    let request = anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": ""})]);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", EMPTY).await;
    let mut call = call.wire.request().await;
    let reply =
        anthropic_reply("m1", "claude-sonnet-4-6", json!([{"type": "text", "text": "Go on."}]));
    call.answer("200 OK", &reply.to_string()).await;
    let response = client.response().await;
    assert!(response.head.contains("x-plimsoll-healed: empty"), "{}", response.head);
}

/// The reply is so long that it is read after its end, and its client leaves before: the record still has the repair.
#[tokio::test]
async fn repair_is_recorded_if_client_leaves_during_long_reply() {
    let mut play = Play::of(CLAUDE, Policy::default()).await;
    let request = anthropic_request("claude-sonnet-4-6", &[json!({"role": "user", "content": ""})]);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", EMPTY).await;
    let mut call = call.wire.request().await;
    let text = "Go on. ".repeat(80_000);
    let reply = anthropic_reply("m1", "claude-sonnet-4-6", json!([{"type": "text", "text": text}]));
    let reply = reply.to_string();
    let length = reply.len();
    call.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ))
    .await;
    let (start, _) = reply.split_at(length / 2 + 100_000);
    call.send(start).await;
    client.head().await;
    client.exactly(start.len()).await;
    drop(client);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refusal, healed(RepairCause::Empty));
}
