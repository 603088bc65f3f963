//! Requests that count tokens get the count of what would be sent, and leave no trace.

use plimsoll::config::ProviderCounting;
use plimsoll::context::plan::Decision;
use plimsoll::context::policy::{Policy, PruneMethod};
use plimsoll::dialect::Purpose;
use plimsoll::dialect::refusal::RefusalCause;
use serde_json::{Value, json};

use crate::play::{Play, Scene, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};

const MODEL: &str = "claude-sonnet-4-5";

/// A request without the members that a count does not have.
fn counting(messages: &[Value]) -> Value {
    let mut request = anthropic_request(MODEL, messages);
    request.as_object_mut().unwrap().remove("max_tokens");
    request
}

async fn count(play: &mut Play, request: &Value) -> Scene {
    let turns = play.target;
    play.target = "/v1/messages/count_tokens";
    let scene = play.exchange(request, &json!({"input_tokens": 7})).await;
    play.target = turns;
    scene
}

async fn threads(play: &Play) -> Vec<usize> {
    let scope = play.server.ledgers.scopes_of(&play.session.into()).await.unwrap().remove(0);
    let look = |ledger: &plimsoll::context::ledger::Ledger| {
        ledger.threads().iter().map(|(_, turns)| turns.len()).collect()
    };
    play.server.ledgers.look(&scope, look).await.unwrap()
}

#[tokio::test]
async fn count_request_repeats_earlier_cuts_and_makes_no_new_ones() {
    let mut play = Play::of("/v1/messages", eager()).await;
    // Nothing was decided yet, and the count decides nothing.
    let request = counting(&history(6));
    let scene = count(&mut play, &request).await;
    assert_eq!(scene.bytes, request.to_string());

    let turn = play
        .exchange(&anthropic_request(MODEL, &history(6)), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    let cut = turn.exchange.done.made.cut;
    assert!(cut >= 3);
    let scene = count(&mut play, &counting(&history(9))).await;
    assert_eq!(scene.exchange.purpose, Some(Purpose::Count));
    assert_eq!(scene.exchange.done.made.cut, cut);
    assert_eq!(scene.exchange.done.new.cut, 0);
    assert!(scene.exchange.done.steps.iter().all(|step| step.decision != Decision::New));
    let sent = scene.sent["messages"].as_array().unwrap();
    let before = turn.sent["messages"].as_array().unwrap();
    assert_eq!(sent[..before.len()], before[..]);

    // The count began no thread, and the next turn has the same parent as without it.
    assert_eq!(threads(&play).await, [1]);
    assert!(scene.exchange.thread.is_none());
    assert!(scene.exchange.estimate.is_none());
    let mut longer = history(6);
    longer.push(message("user", json!("And now?")));
    play.exchange(&anthropic_request(MODEL, &longer), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    assert_eq!(threads(&play).await.iter().sum::<usize>(), 2);
}

#[tokio::test]
async fn count_without_session_name_finds_its_session_by_messages() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.session = "";
    let content =
        json!([{"type": "text", "text": "I have read all of them, and they are all alike."}]);
    let turn = play
        .exchange(
            &anthropic_request(MODEL, &history(6)),
            &anthropic_reply("m1", MODEL, content.clone()),
        )
        .await;
    let mut longer = history(6);
    longer.push(message("assistant", content));
    longer.push(message("user", json!("And now?")));
    // With the session in memory, and with the store alone.
    for _ in 0..2 {
        let scene = count(&mut play, &counting(&longer)).await;
        assert_eq!(scene.exchange.done.made.cut, turn.exchange.done.made.cut);
        assert_eq!(scene.exchange.session, turn.exchange.session);
        play.restart().await;
    }
    // A count in an unknown session begins none.
    let scene = count(&mut play, &counting(&[message("user", json!("Hm."))])).await;
    assert_eq!(scene.exchange.session, None);
}

#[tokio::test]
async fn raw_counting_forwards_count_request_unchanged() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.config.count = ProviderCounting::Raw;
    play.restart().await;
    play.exchange(&anthropic_request(MODEL, &history(6)), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    let request = counting(&history(6));
    assert_eq!(count(&mut play, &request).await.bytes, request.to_string());
}

#[tokio::test]
async fn shadow_mode_forwards_count_request_unchanged() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.headers = "x-plimsoll-mode: shadow\r\n".to_owned();
    play.exchange(&anthropic_request(MODEL, &history(6)), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    let request = counting(&history(6));
    let scene = count(&mut play, &request).await;
    assert_eq!(scene.bytes, request.to_string());
    assert!(scene.exchange.done.made.cut >= 3);
    assert!(!scene.exchange.done.is_sent());
}

#[tokio::test]
async fn refused_count_is_sent_as_it_came_and_teaches_nothing() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let cut =
        play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await.exchange.done.made.cut;
    let request = counting(&history(6));
    play.target = "/v1/messages/count_tokens";
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", r#"{"error":{"message":"`tool_use` ids were found"}}"#).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("200 OK", r#"{"input_tokens":7}"#).await;
    assert_eq!(client.response().await.text(), r#"{"input_tokens":7}"#);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refused, Some(RefusalCause::Structure));
    assert_eq!(exchange.done.resent, Some(RefusalCause::Structure));
    assert!(!exchange.done.is_sent());
    assert!(!exchange.suspends_branch());
    play.target = "/v1/messages";
    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    // The thread is not suspended: what was cut stays cut.
    let done =
        play.exchange(&anthropic_request(MODEL, &longer), &reply).await.exchange.done.clone();
    assert!(done.made.cut - done.new.cut == cut, "{done:?}");
    assert!(done.resent.is_none(), "{done:?}");
}

/// Only a count that could reach the trigger requests the provider's editing: Claude Code counts its tools one by one.
#[tokio::test]
async fn only_large_count_request_asks_provider_to_clear() {
    let mut policy = eager();
    policy.prune.method = PruneMethod::Provider;
    let mut play = Play::of("/v1/messages", policy).await;
    let scene = count(&mut play, &counting(&history(6))).await;
    assert!(scene.sent["context_management"].is_object());
    assert!(scene.head.contains("context-management-2025-06-27"), "{}", scene.head);
    let small = json!({"model": MODEL, "messages": [{"role": "user", "content": "foo"}]});
    assert_eq!(count(&mut play, &small).await.bytes, small.to_string());
}

/// In `generateContentRequest`, the edited members are one level deeper.
#[tokio::test]
async fn gemini_count_requests_are_edited_inside_their_wrapper() {
    let mut play = Play::of("/v1beta/models/gemini-3-pro:generateContent", eager()).await;
    let mut contents = vec![json!({"role": "user", "parts": [{"text": "Read them all."}]})];
    for number in 0..6 {
        let name = format!("read_{number}");
        let call = json!({"functionCall": {"name": name, "args": {"path": number}},
            "thoughtSignature": "c2lnbmF0dXJl"});
        let output = format!("Line {number} of the log. ").repeat(40);
        let result = json!({"functionResponse": {"name": name, "response": {"output": output}}});
        contents.push(json!({"role": "model", "parts": [call]}));
        contents.push(json!({"role": "user", "parts": [result]}));
    }
    let reply = json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Done."}]},
        "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 5,
        "candidatesTokenCount": 5, "totalTokenCount": 10}});
    let turn = play.exchange(&json!({"contents": contents}), &reply).await;
    assert!(turn.exchange.done.made.cut >= 3, "{:?}", turn.exchange.done);

    play.target = "/v1beta/models/gemini-3-pro:countTokens";
    let total = json!({"totalTokens": 7});
    let plain = json!({"contents": contents});
    assert_eq!(play.exchange(&plain, &total).await.sent, turn.sent);
    let inner = json!({"model": "models/gemini-3-pro", "contents": contents,
        "systemInstruction": {"parts": [{"text": "You are calm."}]}});
    let wrapped = play.exchange(&json!({"generateContentRequest": inner}), &total).await;
    let mut expected = inner;
    expected["contents"] = turn.sent["contents"].clone();
    assert_eq!(wrapped.sent, json!({"generateContentRequest": expected}));
    assert_eq!(wrapped.exchange.done.made, turn.exchange.done.made);
}

#[tokio::test]
async fn openai_responses_counts_include_reasoning_that_was_put_back() {
    let mut play = Play::of("/v1/responses", Policy::default()).await;
    let call = json!({"type": "function_call", "call_id": "call_AbCdEfGh1234", "name": "read",
        "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "call_AbCdEfGh1234",
        "output": "Deep."});
    let question = json!({"role": "user", "content": "Look."});
    let reply = json!({"id": "resp_1", "object": "response", "status": "completed", "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAAAbCdEf"}, call],
        "usage": {"input_tokens": 5, "output_tokens": 5}});
    let request = |input: Value| json!({"model": "gpt-5.4", "store": false, "input": input});
    play.exchange(&request(json!([question])), &reply).await;
    let turn = play.exchange(&request(json!([question, call, result])), &reply).await;
    assert_eq!(turn.sent["input"][1]["type"], "reasoning");
    play.target = "/v1/responses/input_tokens";
    let total = json!({"object": "response.input_tokens", "input_tokens": 7});
    let count = json!({"model": "gpt-5.4", "input": [question, call, result]});
    let scene = play.exchange(&count, &total).await;
    assert_eq!(scene.sent["input"], turn.sent["input"]);
    assert!(scene.sent["include"].is_null());
}
