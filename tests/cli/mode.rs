//! The operator's mode is a limit: a client can lower it, and can raise it only if that is explicitly allowed.

use serde_json::{Value, json};

use super::program::Serving;
use super::support::http1::{Provider, Wire};

/// A policy that cuts as soon as there is something to cut.
pub const EAGER: &str = "[prune]\ngate = [\"always\"]\nprotect_tokens = 100\nprotect_messages = 2\n\
    min_saving_tokens = 50\nmin_messages = 4\n[compact]\nengine = \"off\"\n";
const CLEARED: &str = "[Old tool result content cleared]";

/// A server with these lines of configuration before the eager policy.
pub async fn serving(provider: &Provider, above: &str, flags: &[&str]) -> Serving {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, format!("{above}\n{EAGER}")).unwrap();
    let arguments = [&["--config", file.to_str().unwrap()], flags].concat();
    Serving::start(&provider.base(), &arguments).await
}

/// A history of calls with results of this text.
pub fn history(count: usize, text: impl Fn(usize) -> String) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Read them all."})];
    for number in 0..count {
        let id = format!("toolu_01AbCdEf{number:04}");
        let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {"path": number}});
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": text(number)});
        messages.push(json!({"role": "assistant", "content": [call]}));
        messages.push(json!({"role": "user", "content": [result]}));
    }
    json!({"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": messages})
}

/// A session's first request, and what reaches the provider if the client requests `mode`.
async fn sent(serving: &Serving, provider: &Provider, mode: &str) -> (String, String) {
    let request = history(6, |number| format!("Line {number} of the log. ").repeat(40)).to_string();
    let session = format!("the-session-of-{mode}");
    let mut headers = vec![("x-api-key", "k"), ("x-plimsoll-session", session.as_str())];
    headers.extend((mode != "none").then_some(("x-plimsoll-mode", mode)));
    let mut client = serving.post("/v1/messages", &request, &headers).await;
    let mut call = provider.call().await;
    let reply = json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Go on."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 900, "output_tokens": 5}});
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    (request, call.message.text().to_owned())
}

#[tokio::test]
async fn client_header_cannot_raise_mode() {
    let provider = Provider::start().await;
    for limit in ["observe", "shadow"] {
        let serving = serving(&provider, "", &["--mode", limit]).await;
        for wanted in ["active", "shadow", "observe", "none"] {
            let (request, sent) = sent(&serving, &provider, wanted).await;
            assert_eq!(sent, request, "{limit}, asked for {wanted}");
        }
    }
}

#[tokio::test]
async fn client_cannot_raise_mode_of_upstream_or_held_out_session() {
    let provider = Provider::start().await;
    let limited = "[upstream.anthropic]\nmode = \"observe\"\n";
    let serving = serving(&provider, limited, &["--mode", "active"]).await;
    let (request, sent) = sent(&serving, &provider, "active").await;
    assert_eq!(sent, request);
    drop(serving);

    let serving = super::mode::serving(&provider, "", &[]).await;
    let (request, cut) = self::sent(&serving, &provider, "active").await;
    assert!(cut != request);
    assert!(cut.contains(CLEARED));
    drop(serving);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, EAGER.replace("[compact]", "hold_out = 1.0\n[compact]")).unwrap();
    let serving = Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await;
    let (request, sent) = self::sent(&serving, &provider, "active").await;
    assert_eq!(sent, request);
}

#[tokio::test]
async fn client_can_always_lower_mode_and_raise_only_if_configured() {
    let provider = Provider::start().await;
    let serving = serving(&provider, "", &[]).await;
    for (wanted, is_cut) in
        [("active", true), ("none", true), ("shadow", false), ("observe", false)]
    {
        let (request, sent) = sent(&serving, &provider, wanted).await;
        assert_eq!(sent != request, is_cut, "{wanted}");
    }
    drop(serving);
    let any = "mode = \"observe\"\nclient_mode = \"any\"";
    let serving = super::mode::serving(&provider, any, &[]).await;
    for (wanted, is_cut) in [("active", true), ("none", false), ("shadow", false)] {
        let (request, sent) = sent(&serving, &provider, wanted).await;
        assert_eq!(sent != request, is_cut, "{wanted}, with client_mode = any");
    }
}

/// `include_usage = "never"` is a single line, as in the README, and an upstream's own setting has priority.
#[tokio::test]
async fn one_line_turns_off_include_usage() {
    let provider = Provider::start().await;
    let request = json!({"model": "gpt-4o", "stream": true,
        "messages": [{"role": "user", "content": "Say hello."}]})
    .to_string();
    for (above, is_requested) in [
        ("include_usage = \"never\"", false),
        ("include_usage = \"never\"\n[upstream.openai]\ninclude_usage = \"auto\"", true),
        ("", true),
    ] {
        let serving = serving(&provider, above, &[]).await;
        let mut client = serving.post("/v1/chat/completions", &request, &[]).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        call.chunk("data: [DONE]\n\n").await;
        call.end().await;
        client.response().await;
        assert_eq!(call.message.text() != request, is_requested, "{above}");
    }
}

#[tokio::test]
async fn first_output_says_what_it_does() {
    let provider = Provider::start().await;
    for (flags, mode) in [
        (&[] as &[&str], "mode active: may clear old tool results"),
        (&["--mode", "shadow"], "mode shadow: decides and measures"),
        (&["--mode", "observe"], "mode observe: only watches"),
    ] {
        let serving = Serving::start(&provider.base(), flags).await;
        let [says, upstreams, clients, page, data] = &serving.first_steps[..] else {
            panic!("{:?}", serving.first_steps)
        };
        assert!(says.trim_start().starts_with(mode), "{says}");
        assert_eq!(data.trim(), format!("data: {}", serving.data.path().display()));
        let base = format!("http://{}", serving.clients);
        let named = format!(
            "clients: ANTHROPIC_BASE_URL={base} OPENAI_BASE_URL={base}/v1 GOOGLE_GEMINI_BASE_URL={base}"
        );
        assert_eq!(clients.trim(), named);
        let to = provider.base();
        let named = format!("upstreams: anthropic {to}, openai {to}, gemini {to}");
        assert_eq!(upstreams.trim(), named);
        assert_eq!(page.trim(), format!("page: http://{}", serving.admin));
        // Who opens the address reads the same, but not where this machine keeps its data.
        let mut browser = Wire::connect(serving.clients).await;
        let host = serving.clients;
        browser.send(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        let greeting = browser.response().await;
        let greeting = greeting.text();
        for line in [says, upstreams, clients] {
            assert!(greeting.contains(line.as_str()), "{greeting}");
        }
        assert!(!greeting.contains("data:"), "{greeting}");
    }
}
