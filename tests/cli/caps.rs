//! Caps and the status line of the real binary.

use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::program::{Serving, plimsoll, run};
use super::support::http1::{Message, Provider};
use super::support::within;

/// A request of the session that costs 15 tokens: 10 and 5 of Opus 5.5 at $4 and $20 a million.
async fn talk(serving: &Serving, provider: &Provider, is_answered: bool) -> Message {
    let body = json!({
        "model": "claude-opus-5-5", "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hail."}],
    });
    let headers = [("x-claude-code-session-id", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post("/v1/messages", &body.to_string(), &headers).await;
    let reply = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
        "content": [{"type": "text", "text": "Aye."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    });
    if is_answered {
        provider.call().await.answer("200 OK", &reply.to_string()).await;
    }
    client.response().await
}

fn capped(folder: &Path) -> String {
    let file = folder.join("plimsoll.toml");
    std::fs::write(&file, "[cap.daily]\nof = \"tenant\"\ntokens = 15\n").unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn cap_survives_kill_and_is_lifted() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = capped(folder.path());
    let data = folder.path().join("data").to_str().unwrap().to_owned();
    let start =
        async || Serving::start(&provider.base(), &["--config", &config, "--data", &data]).await;
    let mut serving = start().await;
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    serving.signal("KILL").await;
    serving.gone().await;
    let mut serving = start().await;
    let refused = talk(&serving, &provider, false).await;
    assert_eq!(refused.status(), 402, "{}", refused.text());
    assert!(refused.text().contains("15 of 15 tokens"), "{}", refused.text());
    let caps = run(&["caps", "--data", &data]).await;
    assert!(caps.out.contains("daily"), "{}{}", caps.out, caps.err);
    assert!(caps.out.contains("100%  15 of 15 tokens, until 20"), "{}", caps.out);
    let unknown = run(&["caps", "--lift", "weekly", "--data", &data]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("There is no cap \"weekly\""), "{}", unknown.err);
    let nobody = run(&["caps", "--lift", "daily", "--of", "nobody", "--data", &data]).await;
    assert_eq!(nobody.code, 1);
    assert!(nobody.err.contains("\"nobody\" has spent nothing of the cap"), "{}", nobody.err);
    // The second column of the first line is who spent most of it.
    let who = caps.out.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap();
    let lifted = run(&["caps", "--lift", "daily", "--of", who, "--data", &data]).await;
    assert!(lifted.out.contains("lifted until"), "{}{}", lifted.out, lifted.err);
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    serving.signal("KILL").await;
    serving.gone().await;
    let serving = start().await;
    assert_eq!(talk(&serving, &provider, true).await.status(), 200, "it is still lifted");
}

/// A cap that was set while it ran counts what was spent before, survives a kill, and is taken back.
#[tokio::test]
async fn cap_is_set_while_running() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").to_str().unwrap().to_owned();
    let start = async || Serving::start(&provider.base(), &["--data", &data]).await;
    let mut serving = start().await;
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    let caps = async |words: &[&str]| run(&[&["caps", "--data", &data], words].concat()).await;
    let wrong = caps(&["--set", "small", "--of", "everybody", "--tokens", "20"]).await;
    assert!(wrong.err.contains("\"everybody\" is nobody whose spending is known"), "{}", wrong.err);
    let set = caps(&["--set", "small", "--of", "all", "--per", "month", "--tokens", "20"]).await;
    assert!(set.out.contains(" 75%  15 of 20 tokens, until 20"), "{}{}", set.out, set.err);
    assert!(set.out.trim_end().ends_with(", set by caps --set"), "{}", set.out);
    let lower = caps(&["--set", "small", "--tokens", "15"]).await;
    assert!(lower.out.contains("month     100%  15 of 15 tokens"), "{}{}", lower.out, lower.err);
    serving.signal("KILL").await;
    serving.gone().await;
    let serving = start().await;
    assert_eq!(talk(&serving, &provider, false).await.status(), 402);
    let gone = caps(&["--unset", "small"]).await;
    assert!(gone.out.contains("There are no caps."), "{}{}", gone.out, gone.err);
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    assert_eq!(caps(&["--unset", "small"]).await.code, 1);
}

/// What is set goes before the configuration, until it is taken back.
#[tokio::test]
async fn set_cap_replaces_configured_one() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = capped(folder.path());
    let serving = Serving::start(&provider.base(), &["--config", &config]).await;
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    assert_eq!(talk(&serving, &provider, false).await.status(), 402);
    let raised = serving.look(&["caps", "--set", "daily", "--tokens", "60"]).await;
    assert!(raised.out.contains(" 25%  15 of 60 tokens"), "{}{}", raised.out, raised.err);
    assert_eq!(talk(&serving, &provider, true).await.status(), 200);
    let back = serving.look(&["caps", "--unset", "daily"]).await;
    assert!(back.out.contains("200%  30 of 15 tokens"), "{}{}", back.out, back.err);
    assert!(!back.out.contains("set by caps"), "{}", back.out);
}

/// What Claude Code passes on standard input, shortened.
const STATUS: &str = r#"{"hook_event_name":"Status","session_id":"the-session","cwd":"/work","model":{"id":"claude-opus-5-5","display_name":"Opus 5.5"},"cost":{"total_cost_usd":0.01}}"#;

async fn status_line(data: &str, input: &str) -> String {
    let mut child = plimsoll(&["line", "--format", "claude-code", "--data", data])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let done = within("the line", child.wait_with_output()).await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test]
async fn status_line_is_one_line() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_str().unwrap();
    assert_eq!(status_line(data, STATUS).await, "today $0.00\n");
    talk(&serving, &provider, true).await;
    let expected = "15 / 1,000,000 (0%) · next $0.0001 · today $0.0001\n";
    assert_eq!(status_line(data, STATUS).await, expected);
    assert_eq!(status_line(data, "not JSON").await, expected, "the newest session");
    assert_eq!(serving.look(&["line"]).await.out, expected);
    let json = serving.look(&["line", "--json"]).await;
    let line: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let today = line["today"].as_f64().unwrap();
    assert!((today - 0.00014).abs() < 1e-9, "{today}");
}

#[tokio::test]
async fn status_line_says_that_nothing_answers() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let said = status_line(data, STATUS).await;
    assert_eq!(said, format!("plimsoll: nothing answers at {data}/admin.sock\n"));
}
