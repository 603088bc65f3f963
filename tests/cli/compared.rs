//! `plimsoll compare`: what differs between two requests of a session.

use serde_json::{Value, json};

use super::program::{Serving, run};
use super::support::http1::Provider;

/// Sends a request of a session, and returns its id.
async fn ask(
    serving: &Serving,
    provider: &Provider,
    session: &str,
    system: &str,
    texts: &[&str],
) -> String {
    let messages: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": text}))
        .collect();
    let body = json!({
        "model": "claude-opus-5-5", "max_tokens": 9, "system": system, "messages": messages,
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
    });
    let headers = [("x-plimsoll-session", session), ("x-api-key", "sk-test")];
    let mut client = serving.post("/v1/messages", &body.to_string(), &headers).await;
    let reply = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
        "content": [{"type": "text", "text": "Aye."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0},
    });
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    let shown = serving.ask(&format!("/api/v1/sessions/{session}")).await;
    let shown: Value = serde_json::from_str(shown.text()).unwrap();
    shown["threads"][0]["request"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn requests_are_compared_in_words() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let calm = "You are calm.";
    let first = ask(&serving, &provider, "one", calm, &["Hail."]).await;
    let alone = serving.look(&["compare"]).await;
    assert_eq!(alone.code, 1);
    assert!(alone.err.contains("continues no known request"), "{}", alone.err);
    let second = ask(&serving, &provider, "one", calm, &["Hail.", "Aye.", "Is it deep?"]).await;
    let grown = serving.look(&["compare"]).await.out;
    let lines: Vec<&str> = grown.lines().collect();
    assert_eq!(lines[0], format!("{second} after {first}, 0s later, the same model"), "{grown}");
    assert!(lines[1].starts_with("The same: the first 4 of 6 parts, "), "{grown}");
    assert!(lines[2].starts_with("  added    parts 5–6 (history): "), "{grown}");
    assert_eq!(
        lines[3],
        "All of the earlier request can be read from the cache. The provider read 0 tokens from its cache, though its \
         lifetime was not over."
    );
    let texts = ["Hail.", "Aye.", "Is it deep?", "Very.", "Go."];
    let third = ask(&serving, &provider, "one", "You are brisk.", &texts).await;
    let broken = serving.look(&["compare", &third, &first]).await.out;
    assert!(
        broken.contains("\n  dropped  part 3 (system prompt) of the earlier request: "),
        "{broken}"
    );
    assert!(broken.contains("\n  added    part 3 (system prompt): "), "{broken}");
    assert!(broken.contains("\nA cached prefix ends before part 3 (system prompt)."), "{broken}");
    let as_json = serving.look(&["compare", &first, &third, "--json"]).await.out;
    let compared: Value = serde_json::from_str(&as_json).unwrap();
    assert_eq!(compared["earlier_request"], *first, "in time, whichever is named first");
    assert_eq!(compared["changes"][0]["does"], "dropped");
    assert!(!as_json.contains("brisk"), "{as_json}");
}

#[tokio::test]
async fn requests_of_two_sessions_are_not_compared() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let one = ask(&serving, &provider, "one", "You are calm.", &["Hail."]).await;
    let other = ask(&serving, &provider, "other", "You are calm.", &["Hail."]).await;
    let refused = serving.look(&["compare", &one, &other]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("compare two requests of one session"), "{}", refused.err);
    let data = serving.data.path().to_str().unwrap();
    let unknown = run(&["compare", "nothing", "--data", data]).await;
    assert!(
        unknown.err.contains("known of request \"nothing\": it is not among"),
        "{}",
        unknown.err
    );
}
