//! Reasoning that a Responses client would lose is requested in the encrypted form, which can be sent back.

use plimsoll::config::Mode;
use plimsoll::context::policy::{Policy, ReasoningPolicy, ReinjectPolicy};
use plimsoll::dialect::refusal::RefusalCause;
use serde_json::{Value, json};

use crate::play::Play;

const WANTED: &str = "reasoning.encrypted_content";
const REFUSED: &str = r#"{"error":{"message":"Encrypted content is not supported with this model.","type":"invalid_request_error","param":"include","code":null}}"#;

fn request_body() -> Value {
    json!({"model": "gpt-5.4", "store": false, "input": [{"role": "user", "content": "Look."}]})
}

fn reply() -> Value {
    json!({"id": "resp_1", "object": "response", "status": "completed", "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAAAbCdEf"},
        {"id": "fc_1", "type": "function_call", "call_id": "call_AbCdEfGh1234", "name": "read",
         "arguments": "{}"}], "usage": {"input_tokens": 5, "output_tokens": 5}})
}

async fn play() -> Play {
    Play::of("/v1/responses", Policy::default()).await
}

#[tokio::test]
async fn encrypted_reasoning_is_requested_for_client_that_stores_nothing() {
    let mut play = play().await;
    let mut request = request_body();
    let scene = play.exchange(&request, &reply()).await;
    assert_eq!(scene.sent["include"], json!([WANTED]));
    let mut sent = scene.sent.clone();
    sent.as_object_mut().unwrap().remove("include");
    assert_eq!(sent, request);

    // It can be put back when the client drops it.
    let input = request["input"].as_array_mut().unwrap();
    input.push(json!({"type": "function_call", "call_id": "call_AbCdEfGh1234", "name": "read",
        "arguments": "{}"}));
    input.push(json!({"type": "function_call_output", "call_id": "call_AbCdEfGh1234",
        "output": "Deep."}));
    let scene = play.exchange(&request, &reply()).await;
    assert_eq!(scene.sent["input"][1]["encrypted_content"], "gAAAAAbCdEf");
    assert_eq!(scene.sent["include"], json!([WANTED]));
}

#[tokio::test]
async fn encrypted_reasoning_is_added_to_existing_include_list() {
    let mut play = play().await;
    let mut request = request_body();
    request["include"] = json!(["message.output_text.logprobs"]);
    let scene = play.exchange(&request, &reply()).await;
    assert_eq!(scene.sent["include"], json!([WANTED, "message.output_text.logprobs"]));
}

#[tokio::test]
async fn encrypted_reasoning_is_not_requested_if_none_can_be_lost() {
    let with = |name: &str, value: Value| {
        let mut request = request_body();
        request[name] = value;
        request
    };
    let mut title = with("instructions", json!("You are a title generator. Write a title."));
    title["input"] = json!("Look.");
    for (what, request) in [
        ("the provider keeps it", with("store", json!(true))),
        ("by default it does", with("store", Value::Null)),
        ("it stands at the provider", with("previous_response_id", json!("resp_0"))),
        ("it stands there under a name", with("conversation", json!("conv_1"))),
        ("the client asks itself", with("include", json!([WANTED]))),
        ("the model does not reason", with("model", json!("gpt-4.1"))),
        ("nothing is known of the model", with("model", json!("house-model"))),
        ("it is beside the conversation", title),
    ] {
        let mut play = play().await;
        assert_eq!(play.exchange(&request, &reply()).await.bytes, request.to_string(), "{what}");
    }
    // An unknown model counts as one that reasons, if reasoning is requested.
    let mut play = play().await;
    let mut request = with("model", json!("house-model"));
    request["reasoning"] = json!({"effort": "high"});
    assert_eq!(play.exchange(&request, &reply()).await.sent["include"], json!([WANTED]));
}

#[tokio::test]
async fn encrypted_reasoning_is_not_requested_if_policy_or_mode_forbids() {
    let off = ReasoningPolicy { reinject: ReinjectPolicy::Off, ..ReasoningPolicy::default() };
    let off = Policy { reasoning: off, ..Policy::default() };
    let mut play = Play::of("/v1/responses", off).await;
    assert_eq!(play.exchange(&request_body(), &reply()).await.bytes, request_body().to_string());
    for mode in [Mode::Observe, Mode::Shadow] {
        play.config.policy = Policy::default().into();
        play.config.mode = mode;
        play.restart().await;
        assert_eq!(
            play.exchange(&request_body(), &reply()).await.bytes,
            request_body().to_string()
        );
    }
}

#[tokio::test]
async fn refusal_of_encrypted_reasoning_is_learned_for_its_model() {
    let mut play = play().await;
    let mut client = play.send_request(&request_body()).await;
    let mut call = play.provider.call().await;
    assert!(call.message.text().contains(WANTED));
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request_body().to_string());
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    assert_eq!(play.server.next_exchange().await.refused, Some(RefusalCause::Include));
    play.restart().await;
    assert_eq!(play.exchange(&request_body(), &reply()).await.bytes, request_body().to_string());
    let mut other = request_body();
    other["model"] = json!("gpt-5.5");
    assert_eq!(play.exchange(&other, &reply()).await.sent["include"], json!([WANTED]));
}
