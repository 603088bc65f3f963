//! No text of a tool result is on disk while `content.keep` is off, whatever is cut and trimmed.

use std::path::Path;

use plimsoll::config::presets::Preset;
use serde_json::{Value, json};

use super::mode::{EAGER, history};
use super::program::Serving;
use super::support::http1::Provider;

/// In every result, beside its number, and nowhere else.
const CANARY: &str = "kestrel-over-the-quay";
const TRIMMED: &str = "of this tool result left out";
const TOO_LONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 260000 tokens > 20000 maximum"}}"#;

/// The files in a folder that contain the canary.
fn holding(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path));
        } else if path.is_file() // not the socket, which has no content
            && memchr::memmem::find(&std::fs::read(&path).unwrap(), CANARY.as_bytes()).is_some()
        {
            found.push(path.display().to_string());
        }
    }
    found
}

fn reply() -> String {
    json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Go on."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 9000, "output_tokens": 5}})
    .to_string()
}

/// One call; if `is_refused`, the provider first refuses it for its length. Returns the last body that the provider
/// received.
async fn call(serving: &Serving, provider: &Provider, request: &Value, is_refused: bool) -> String {
    let headers = [("x-api-key", "k"), ("x-plimsoll-session", "the-session")];
    let mut client = serving.post("/v1/messages", &request.to_string(), &headers).await;
    let mut call = provider.call().await;
    if is_refused {
        call.answer("400 Bad Request", TOO_LONG).await;
        call = tokio::select! {
            call = provider.call() => call,
            call = call.wire.request() => call,
        };
    }
    call.answer("200 OK", &reply()).await;
    assert_eq!(client.response().await.status(), 200);
    call.message.text().to_owned()
}

/// A session with this configuration: small results, then one that is too large. Returns what was sent.
async fn session(configuration: &str, is_refused: bool) -> String {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, configuration).unwrap();
    let serving = Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await;
    let text = |times: usize| move |number: usize| format!("{CANARY} {number}, ").repeat(times);
    call(&serving, &provider, &history(6, text(40)), false).await;
    let mut grown = history(7, text(40));
    grown["messages"][14]["content"][0]["content"] = json!(text(8000)(7));
    let sent = call(&serving, &provider, &grown, is_refused).await;
    serving.counted("plimsoll_store_operations_total{operation=\"put\"}").await;
    let found = holding(serving.data.path());
    assert!(found.is_empty(), "{configuration}\nwords of a tool result are in {found:?}");
    assert!(serving.data.path().join("plimsoll.db").exists());
    sent
}

#[tokio::test]
async fn no_word_of_tool_result_is_on_disk_in_any_mode() {
    for mode in ["active", "shadow", "observe"] {
        let trims = EAGER.replace("[compact]", "max_result_tokens = 500\n[compact]");
        let sent = session(&format!("mode = \"{mode}\"\n{trims}"), false).await;
        assert_eq!(sent.contains(TRIMMED), mode == "active", "{mode}");
    }
}

#[tokio::test]
async fn no_word_of_tool_result_is_on_disk_with_any_preset() {
    for preset in Preset::ALL {
        let trims = "[prune]\nmax_result_tokens = 500\n[compact]\nengine = \"off\"\n";
        let sent = session(&format!("preset = \"{}\"\n{trims}", preset.name()), false).await;
        assert!(sent.contains(TRIMMED), "{}", preset.name());
    }
}

#[tokio::test]
async fn no_word_of_tool_result_is_on_disk_after_refusal() {
    let sent = session("[prune]\ngate = []\n[compact]\nengine = \"off\"\n", true).await;
    assert!(sent.contains(TRIMMED));
}
