//! `plimsoll context --count`: the provider counts now, if there is an endpoint and a credential.

use serde_json::Value;

use super::program::Serving;
use super::running::play;
use super::support::http1::Provider;
use super::support::wire;

/// In each protocol with an endpoint: the count is requested with the session's own credential, and shown beside the
/// estimate.
#[tokio::test]
async fn context_is_counted_by_its_provider_when_somebody_asks() {
    for script in wire::all() {
        let (path, answer) = match script.path {
            path if path.starts_with("/v1/messages") => {
                ("/v1/messages/count_tokens", r#"{"input_tokens": 4321}"#)
            }
            path if path.starts_with("/v1/responses") => {
                ("/v1/responses/input_tokens", r#"{"input_tokens": 4321}"#)
            }
            path if path.contains(":") => (":countTokens", r#"{"totalTokens": 4321}"#),
            _ => ("", ""),
        };
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &[]).await;
        play(&mut serving, &provider, &script).await;
        if path.is_empty() {
            let done = serving.look(&["context", "the-session", "--count"]).await;
            assert_eq!(done.code, 1, "{}", done.out);
            assert!(done.err.contains("no token counting endpoint"), "{}", done.err);
            continue;
        }
        let asking = serving.look(&["context", "the-session", "--count", "--json"]);
        let answering = async {
            let mut call = provider.call().await;
            assert!(call.message.first_line().contains(path), "{}", call.message.head);
            let key = call.message.header("x-api-key").or(call.message.header("x-goog-api-key"));
            assert_eq!(key, Some("sk-test"), "the session's own credential");
            call.answer("200 OK", answer).await;
        };
        let (done, ()) = tokio::join!(asking, answering);
        assert_eq!(done.code, 0, "{}", done.err);
        let view: Value = serde_json::from_str(&done.out).unwrap();
        let count = &view["count"];
        let estimated = count["estimated"].as_i64().unwrap();
        assert!(estimated > 0, "{view}");
        assert!(view["total"].is_u64(), "{view}");
        assert_eq!(count["tokens"], 4321, "{}", script.path);
        assert_eq!(count["difference"], estimated - 4321);
        // The count is not requested again; the text shows the same.
        let text = serving.look(&["context", "the-session", "--count"]).await;
        let line =
            "\nCounted now by the provider: 4,321 tokens, for the newest request as it was sent\n";
        assert!(text.out.starts_with("Context Usage:"), "{}", text.out);
        assert!(text.out.contains(line), "{}", text.out);
    }
}

/// If the upstream has a credential of its own, that one is used. The client's is not kept for that.
#[tokio::test]
async fn count_prefers_upstream_credential() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let key = file("key", "the-operators");
    let config = format!(
        "[upstream.anthropic]\ncredential = \"file:{key}\"\ncredential_header = \"x-own\"\n"
    );
    let config = file("plimsoll.toml", &config);
    let mut serving = Serving::start(&provider.base(), &["--config", &config]).await;
    play(&mut serving, &provider, &wire::anthropic()).await;
    let asking = serving.look(&["context", "the-session", "--count"]);
    let answering = async {
        let mut call = provider.call().await;
        assert_eq!(call.message.header("x-own"), Some("the-operators"));
        assert_eq!(call.message.header("x-api-key"), None);
        call.answer("200 OK", r#"{"input_tokens": 4321}"#).await;
    };
    let (done, ()) = tokio::join!(asking, answering);
    assert!(done.out.contains("Counted now by the provider: 4,321 tokens"), "{}", done.err);
}

/// After a restart, neither request nor credential is in memory, and the command says so.
#[tokio::test]
async fn count_after_restart_says_that_no_request_is_in_memory() {
    let provider = Provider::start().await;
    let script = wire::anthropic();
    let data = tempfile::tempdir().unwrap();
    let more = ["--data", data.path().to_str().unwrap()];
    let mut serving = Serving::start(&provider.base(), &more).await;
    play(&mut serving, &provider, &script).await;
    drop(serving);
    let serving = Serving::start(&provider.base(), &more).await;
    let path = "/api/v1/sessions/the-session/count";
    let refused = serving.ask_as("POST", path, &serving.token, "").await;
    assert_eq!(refused.status(), 409, "{}", refused.text());
    assert!(refused.text().contains("after the session's next request"), "{}", refused.text());
}

/// A request is repaired after a refusal: what was accepted is counted, not what was planned.
#[tokio::test]
async fn context_is_counted_as_it_was_sent_after_repair() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let request = r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hm."},{"role":"assistant","content":[{"type":"text","text":""}]},{"role":"user","content":"And then?"}]}"#;
    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post("/v1/messages", request, &headers).await;
    let mut call = provider.call().await;
    let empty = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#;
    call.answer("400 Bad Request", empty).await;
    let mut call = call.wire.request().await;
    let repaired: Value = serde_json::from_str(call.message.text()).unwrap();
    let reply = r#"{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"On."}],"stop_reason":"end_turn","usage":{"input_tokens":20,"output_tokens":7}}"#;
    call.answer("200 OK", reply).await;
    client.response().await;
    serving.wait_for_log("output=7").await;
    drop(call);
    let asking = serving.look(&["context", "the-session", "--count"]);
    let answering = async {
        let mut call = provider.call().await;
        let counted: Value = serde_json::from_str(call.message.text()).unwrap();
        assert_eq!(counted["messages"], repaired["messages"]);
        call.answer("200 OK", r#"{"input_tokens": 4321}"#).await;
    };
    let (done, ()) = tokio::join!(asking, answering);
    assert!(done.out.contains("Counted now by the provider: 4,321 tokens"), "{}", done.err);
}
