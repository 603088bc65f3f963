//! The provider's request id, which its support asks for, is shown everywhere.

use serde_json::Value;

use super::program::Serving;
use super::support::http1::Provider;
use super::support::wire;

const HEADERS: [(&str, &str); 2] =
    [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];

/// In every dialect, in the header that its providers use: in log, API, explanation and the page's row, after a restart
/// too.
#[tokio::test]
async fn providers_request_id_is_shown_in_every_dialect() {
    let sent = [
        ("request-id", "req_011CSHoEeqs5C35K2UUqR7Fy"),
        ("x-request-id", "req_5f0a1b"),
        ("apim-request-id", "2f9c5e0d-0000-4c53-8d2b-0a1b2c3d4e5f"),
        ("x-goog-request-id", "AbC/12+3="),
    ];
    for (script, (name, id)) in wire::all().into_iter().zip(sent) {
        let provider = Provider::start().await;
        let data = tempfile::tempdir().unwrap();
        let more = ["--data", data.path().to_str().unwrap()];
        let mut serving = Serving::start(&provider.base(), &more).await;
        let mut client = serving.post(script.path, script.request, &HEADERS).await;
        let mut call = provider.call().await;
        let (events, head) =
            (script.events.concat(), "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream");
        call.send(format!(
            "{head}\r\n{name}: {id}\r\ncontent-length: {}\r\n\r\n{events}",
            events.len()
        ))
        .await;
        assert_eq!(client.response().await.header(name), Some(id));
        serving.wait_for_log(&format!(" provider_request_id={id} ")).await;
        let request = request(&serving).await;
        is_shown(&serving, &request, id).await;
        drop(serving);
        let restarted = Serving::start(&provider.base(), &more).await;
        is_shown(&restarted, &request, id).await;
    }
}

/// The id of the session's last exchange.
async fn request(serving: &Serving) -> String {
    let session: Value = json(serving, "/api/v1/sessions/the-session").await;
    session["threads"][0]["request"].as_str().unwrap().to_owned()
}

async fn json(serving: &Serving, path: &str) -> Value {
    serde_json::from_str(serving.ask(path).await.text()).unwrap()
}

async fn is_shown(serving: &Serving, request: &str, id: &str) {
    let session = json(serving, "/api/v1/sessions/the-session").await;
    assert_eq!(session["threads"][0]["provider_request_id"], id, "{session}");
    let exchange = json(serving, &format!("/api/v1/requests/{request}")).await;
    assert_eq!(exchange["provider_request_id"], id, "{exchange}");
    let path = format!("/api/v1/requests/{request}/explain");
    assert_eq!(json(serving, &path).await["provider_request_id"], id);
    let text = serving.ask(&format!("{path}?format=text")).await;
    assert!(
        text.text().contains(&format!("\nThe provider's request id: {id}\n")),
        "{}",
        text.text()
    );
}

/// A refusal is not a turn, but most questions to a provider's support are about refusals.
#[tokio::test]
async fn refusal_shows_its_request_id() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let script = wire::anthropic();
    let mut client = serving.post(script.path, script.request, &HEADERS).await;
    let mut call = provider.call().await;
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    call.send(format!(
        "HTTP/1.1 529 Overloaded\r\ncontent-type: application/json\r\nrequest-id: req_7\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    assert_eq!(client.response().await.status(), 529);
    serving.wait_for_log(" 529 refused id=").await;
    let log = serving.log();
    let line = log.lines().find(|line| line.contains(" 529 ")).unwrap();
    assert!(line.contains(" provider_request_id=req_7 "), "{line}");
}
