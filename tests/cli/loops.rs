//! An agent that repeats the same call is reported in every view, and its requests are forwarded unchanged.

use serde_json::{Value, json};

use super::program::Serving;
use super::support::http1::Provider;
use super::support::wire::{self, Script};

/// The same call with the same result this many times, in the protocol of a script.
fn history(script: &Script, times: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    let mut contents = vec![json!({"role": "user", "parts": [{"text": "Go."}]})];
    for at in 0..times {
        let (id, arguments) = (format!("call_{at}"), json!({"command": "make"}));
        match script.path {
            "/v1/messages" => messages.extend([
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": "secret_tool", "input": arguments}]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": "the secret result"}]}),
            ]),
            "/v1/chat/completions" => messages.extend([
                json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function",
                    "function": {"name": "secret_tool", "arguments": arguments.to_string()}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": "the secret result"}),
            ]),
            "/v1/responses" => messages.extend([
                json!({"type": "function_call", "call_id": id, "name": "secret_tool", "arguments": arguments.to_string()}),
                json!({"type": "function_call_output", "call_id": id, "output": "the secret result"}),
            ]),
            _ => contents.extend([
                json!({"role": "model", "parts": [{"functionCall": {"name": "secret_tool", "args": arguments}}]}),
                json!({"role": "user", "parts": [{"functionResponse":
                    {"name": "secret_tool", "response": {"output": "the secret result"}}}]}),
            ]),
        }
    }
    let mut request: Value = serde_json::from_str(script.request).unwrap();
    for (name, history) in [("messages", &messages), ("input", &messages), ("contents", &contents)]
    {
        if let Some(place) = request.get_mut(name) {
            *place = json!(history);
        }
    }
    request
}

async fn play(serving: &Serving, provider: &Provider, script: &Script, body: &str) {
    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post(script.path, body, &headers).await;
    let mut call = provider.call().await;
    assert_eq!(call.message.text(), body, "it is forwarded unchanged");
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn loop_is_reported_in_every_dialect_and_never_blocked() {
    for script in wire::all() {
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &["--mode", "observe"]).await;
        play(&serving, &provider, &script, &history(&script, 3).to_string()).await;
        serving.wait_for_log(&format!("output={}", script.output)).await;
        assert!(!serving.log().contains("repeated_calls"), "{}", serving.log());
        play(&serving, &provider, &script, &history(&script, 4).to_string()).await;
        serving.wait_for_log(" repeated_calls=4 ").await;
        let session = serving.ask("/api/v1/sessions/the-session").await;
        let session: Value = serde_json::from_str(session.text()).unwrap();
        let thread = &session["threads"][0];
        assert_eq!(thread["repeated_calls"], 4, "{}: {session}", script.path);
        let request = thread["request"].as_str().unwrap();
        let path = format!("/api/v1/requests/{request}/explain?format=text");
        let explained = serving.ask(&path).await;
        let line = "\nLoop: the newest call had the same result in 4 of the last 10 turns\n";
        assert!(explained.text().contains(line), "{}", explained.text());
        let metrics = serving.ask("/metrics").await;
        let counted =
            metrics.text().lines().find(|it| it.starts_with("plimsoll_repeated_calls_total{"));
        assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{counted:?}");
        for text in [serving.log(), explained.text().to_owned(), metrics.text().to_owned()] {
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
