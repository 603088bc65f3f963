//! A script with a strict judge before it.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::ScriptedProvider;
use crate::strict::{Rules, StrictProvider};

#[tokio::test]
async fn strict_provider_refuses_changes_to_scripted_thinking() {
    let judge = Box::new(StrictProvider::new(Rules::default(), 0));
    let tokenizer = |text: &str| text.len().div_ceil(4);
    let provider =
        ScriptedProvider::judged(([127, 0, 0, 1], 0).into(), tokenizer, judge).await.unwrap();
    let http: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let send = async |body: &Value| -> (u16, Value) {
        let request = http::Request::post(format!("http://{}/v1/messages", provider.address()))
            .header("x-api-key", "k")
            .header("anthropic-version", "2023-06-01")
            .body(Full::from(body.to_string()))
            .unwrap();
        let (head, body) = http.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap())
    };
    let mut body = json!({
        "model": "claude-sonnet-4-6", "max_tokens": 9000, "thinking": {"type": "enabled", "budget_tokens": 2000},
        "messages": [{"role": "user", "content": "Look at the project and tell me what it does."}],
    });
    let (status, reply) = send(&body).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["content"][0]["type"], json!("thinking"), "{reply}");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": reply["content"]}));
    messages.push(json!({"role": "user", "content": "Go on."}));
    assert_eq!(send(&body).await.0, 200, "its own signature is known again");
    body["messages"][1]["content"][0]["thinking"] = json!("something else");
    let (status, error) = send(&body).await;
    assert!(status == 400, "{error}");
    assert!(error.to_string().contains("cannot be modified"), "{error}");
}
