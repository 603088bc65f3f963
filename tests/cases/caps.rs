//! Spending caps: what they count, whom they stop, and how a client is told.

use plimsoll::config::Config;
use plimsoll::context::caps::{Cap, CapOrigin, CapPeriod, CapSubject};
use plimsoll::dialect::Note;

use crate::support::http1::{Message, Provider, Wire};
use crate::support::looking::Looking;
use crate::support::server::{TestServer, config};

/// A reply of 15 tokens.
const REPLY: &str = r#"{"id":"m","type":"message","role":"assistant","model":"claude-opus-5-5","content":[{"type":"text","text":"Aye."}],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":5}}"#;

fn capped(base: &str, of: CapSubject, only: Option<&str>, tokens: u64) -> Config {
    let cap = Cap {
        name: "small".into(),
        origin: CapOrigin::Configuration,
        of,
        only: only.map(Into::into),
        per: CapPeriod::Day,
        dollars: None,
        tokens: Some(tokens),
    };
    Config { caps: vec![cap], ..config(base) }
}

/// Sends a request to Claude; the response can be read from the returned connection.
async fn send(server: &TestServer, session: &str, headers: &str) -> Wire {
    let mut client = Wire::connect(server.address).await;
    let body = r#"{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"Hail."}]}"#;
    let length = body.len();
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: {session}\r\n\
             {headers}content-length: {length}\r\n\r\n{body}"
        ))
        .await;
    client
}

/// A request that its provider answers, with what reached the provider.
async fn exchange(
    server: &TestServer,
    provider: &Provider,
    session: &str,
    headers: &str,
) -> (String, Message) {
    let mut client = send(server, session, headers).await;
    let mut call = provider.call().await;
    let head = call.message.head.clone();
    call.answer("200 OK", REPLY).await;
    (head, client.response().await)
}

#[track_caller]
fn expect_refused(response: &Message) {
    assert_eq!(response.status(), 402, "{}", response.text());
    assert_eq!(response.header("x-plimsoll-error"), Some("spend_cap"));
}

#[tokio::test]
async fn next_request_is_refused_once_cap_is_spent() {
    let provider = Provider::start().await;
    let config = capped(&provider.base(), CapSubject::Session, None, 18);
    let looked_at = config.clone();
    let server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let (_, first) = exchange(&server, &provider, "the-session", "").await;
    assert_eq!(first.header("x-plimsoll-cap"), None);
    let (_, second) = exchange(&server, &provider, "the-session", "").await;
    assert_eq!(second.header("x-plimsoll-cap"), Some("small=0.83"));
    let third = send(&server, "the-session", "").await.response().await;
    expect_refused(&third);
    assert_eq!(third.header("x-should-retry"), Some("false"));
    let text = third.text();
    assert!(text.contains("30 of 18 tokens"), "{text}");
    // Another session has a sum of its own.
    let (_, other) = exchange(&server, &provider, "another-session", "").await;
    assert_eq!(other.status(), 200);
    let caps = looking.json("/api/v1/caps").await;
    assert_eq!(caps["caps"][0]["tokens"], 30);
    let metrics = looking.get("/metrics").await;
    let gauge = "plimsoll_cap_fill_ratio{cap=\"small\"} 1.6666666666666667";
    assert!(metrics.text().contains(gauge), "{}", metrics.text());
}

#[tokio::test]
async fn each_protocol_has_its_error_shape() {
    let provider = Provider::start().await;
    let server = TestServer::with(capped(&provider.base(), CapSubject::All, None, 15)).await;
    exchange(&server, &provider, "the-session", "").await;
    for (path, body, shape) in [
        (
            "/v1/messages",
            r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#,
            r#"{"type":"error","error":{"type":"spend_cap""#,
        ),
        (
            "/v1/chat/completions",
            r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#,
            r#""code":"spend_cap""#,
        ),
        ("/v1/responses", r#"{"model":"m","input":"a"}"#, r#""code":"spend_cap""#),
        (
            "/v1beta/models/m:generateContent",
            r#"{"contents":[{"role":"user","parts":[{"text":"a"}]}]}"#,
            r#""status":"spend_cap""#,
        ),
    ] {
        let mut client = Wire::connect(server.address).await;
        let length = body.len();
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: {length}\r\n\r\n{body}"
            ))
            .await;
        let response = client.response().await;
        expect_refused(&response);
        assert!(response.text().contains(shape), "{path}: {}", response.text());
    }
}

#[tokio::test]
async fn websocket_is_refused_before_it_opens() {
    let provider = Provider::start().await;
    let server = TestServer::with(capped(&provider.base(), CapSubject::Tenant, None, 15)).await;
    exchange(&server, &provider, "the-session", "").await;
    let mut client = Wire::connect(server.address).await;
    client
        .send(
            "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    expect_refused(&client.response().await);
}

#[tokio::test]
async fn counting_tokens_is_free() {
    let provider = Provider::start().await;
    let server = TestServer::with(capped(&provider.base(), CapSubject::All, None, 15)).await;
    exchange(&server, &provider, "the-session", "").await;
    let mut client = Wire::connect(server.address).await;
    let body = r#"{"model":"claude-opus-5-5","messages":[{"role":"user","content":"Hail."}]}"#;
    let length = body.len();
    client
        .send(format!(
            "POST /v1/messages/count_tokens HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    provider.call().await.answer("200 OK", r#"{"input_tokens":8}"#).await;
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn running_reply_ends_as_it_would_have() {
    let provider = Provider::start().await;
    let server = TestServer::with(capped(&provider.base(), CapSubject::All, None, 15)).await;
    let mut running = send(&server, "the-session", "").await;
    let mut call = provider.call().await;
    let length = REPLY.len();
    let half = length / 2;
    call.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{}",
        &REPLY[..half]
    ))
    .await;
    exchange(&server, &provider, "another-session", "").await;
    expect_refused(&send(&server, "another-session", "").await.response().await);
    call.send(REPLY[half..].to_owned()).await;
    let response = running.response().await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.text(), REPLY);
}

#[tokio::test]
async fn tags_are_counted_and_stay_here() {
    let provider = Provider::start().await;
    let config = capped(&provider.base(), CapSubject::Tag, Some("team=core"), 15);
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let long = "x".repeat(10_000);
    let headers = format!(
        "x-plimsoll-tags: team=core, env=ci, {long}=1, nonsense, team=core\r\n\
         x-plimsoll-user: ada@example.com\r\n"
    );
    let (head, _) = exchange(&server, &provider, "the-session", &headers).await;
    assert!(!head.contains("x-plimsoll-"), "{head}");
    assert_eq!(server.next_exchange().await.notes, [Note::IgnoredTag]);
    let spent = looking.json("/api/v1/spend?by=tag").await;
    assert_eq!(spent["total"]["calls"], 1, "listed three times, counted once: {spent}");
    let people = looking.json("/api/v1/spend?by=person").await;
    assert_eq!(people["lines"][0]["name"], "ada@example.com");
    let mut names: Vec<&str> = Vec::new();
    for line in spent["lines"].as_array().expect("lines") {
        names.push(line["name"].as_str().expect("a name"));
    }
    names.sort_unstable();
    assert_eq!(names, ["env=ci", "team=core", "user=ada@example.com"]);
    expect_refused(&send(&server, "the-session", &headers).await.response().await);
    let (_, untagged) = exchange(&server, &provider, "the-session", "").await;
    assert_eq!(untagged.status(), 200);
}

#[tokio::test]
async fn live_event_tells_of_80_percent() {
    let provider = Provider::start().await;
    let config = capped(&provider.base(), CapSubject::All, None, 18);
    let server = TestServer::with(config).await;
    let mut passed = server.ledgers.caps().passed();
    exchange(&server, &provider, "the-session", "").await;
    exchange(&server, &provider, "the-session", "").await;
    let mut shares = Vec::new();
    for _ in 0..2 {
        shares.push(passed.recv().await.expect("an event").tokens);
    }
    assert_eq!(shares, [15, 30]);
}
