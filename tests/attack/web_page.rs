//! The stranger here is a page in the user's browser.

use std::net::SocketAddr;

use crate::program::Serving;
use crate::support::http1::{Message, Provider, Wire};

/// The operator's key, which a Plimsoll on loopback sends.
const KEY: &str = "sk-of-the-operator";

struct Stage {
    provider: Provider,
    serving: Serving,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn with(more: &str) -> Self {
        let provider = Provider::start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), KEY).unwrap();
        let key = folder.path().join("key").display().to_string();
        let credential = format!("credential = \"file:{key}\"\n");
        let config =
            format!("{more}\n[upstream.anthropic]\n{credential}[upstream.openai]\n{credential}");
        let file = folder.path().join("plimsoll.toml");
        std::fs::write(&file, config).unwrap();
        let serving = Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await;
        Self { provider, serving, _folder: folder }
    }

    /// Sends exactly this head; `{}` is replaced by the listener's own authority.
    async fn ask(&self, head: &str) -> Message {
        ask(self.serving.clients, head).await
    }

    /// Checks that the upstream got no request: the first one that it gets is the one sent now.
    async fn heard_nothing(&self) {
        let mut client = Wire::connect(self.serving.clients).await;
        let host = self.serving.clients;
        client
            .send(format!("POST /v1/messages HTTP/1.1\r\nhost: {host}\r\nx-request-id: honest\r\ncontent-length: 2\r\n\r\n{{}}"))
            .await;
        let mut call = self.provider.call().await;
        assert_eq!(call.message.header("x-request-id"), Some("honest"), "{}", call.message.head);
        assert_eq!(call.message.header("x-api-key"), Some(KEY));
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
}

async fn ask(to: SocketAddr, head: &str) -> Message {
    let mut client = Wire::connect(to).await;
    let head = head.replace("{}", &to.to_string());
    client.send(format!("{head}\r\ncontent-length: 2\r\n\r\n{{}}")).await;
    client.response().await
}

fn verdict(message: &Message) -> (u16, Option<&str>) {
    (message.status(), message.header("x-plimsoll-error"))
}

/// A page can point a name of its own at loopback; its requests carry that name.
#[tokio::test]
async fn rebound_name_reaches_no_upstream() {
    let stage = Stage::with("").await;
    for head in [
        "POST /v1/messages HTTP/1.1\r\nhost: evil.example",
        "POST /v1/messages HTTP/1.1\r\nhost: evil.example:8787",
        "POST /v1/messages HTTP/1.1\r\nhost: localhost.evil.example",
        "POST /v1/messages HTTP/1.1\r\nhost: u@localhost",
        "POST /v1/messages HTTP/1.1\r\nhost: 192.0.2.7",
        "POST /v1/messages HTTP/1.1\r\nhost:",
        "POST /v1/messages HTTP/1.1\r\nhost: {}\r\nhost: evil.example",
        "POST /v1/messages HTTP/1.1\r\nhost: evil.example\r\nhost: {}",
        "POST http://evil.example/v1/messages HTTP/1.1\r\nhost: {}",
        "POST /v1/messages HTTP/1.1\r\nx-no-host: 1",
        "POST /v1/messages HTTP/1.0\r\nx-no-host: 1",
        "GET /v1/responses HTTP/1.1\r\nhost: evil.example\r\nconnection: Upgrade\r\nupgrade: websocket",
    ] {
        let answer = stage.ask(head).await;
        assert_eq!(verdict(&answer), (421, Some("foreign_host")), "{head}");
        assert!(answer.text().contains("allowed_hosts"), "{}", answer.text());
    }
    stage.heard_nothing().await;
}

#[tokio::test]
async fn foreign_page_reaches_no_upstream() {
    let stage = Stage::with("").await;
    for more in [
        "origin: https://evil.example",
        "origin: null",
        "origin: http://localhost.evil.example",
        "origin: http://localhost@evil.example",
        "origin: http://localhost\r\norigin: https://evil.example",
        "sec-fetch-site: cross-site",
        "origin: https://evil.example\r\nsec-fetch-site: same-origin",
    ] {
        let post = format!("POST /v1/messages HTTP/1.1\r\nhost: {{}}\r\n{more}");
        let answer = stage.ask(&post).await;
        assert_eq!(verdict(&answer), (403, Some("foreign_origin")), "{more}");
        assert!(answer.text().contains("allowed_origins"), "{}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), None);
        let upgrade = format!(
            "GET /v1/responses HTTP/1.1\r\nhost: {{}}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n{more}"
        );
        assert_eq!(verdict(&stage.ask(&upgrade).await), (403, Some("foreign_origin")), "{more}");
    }
    stage.heard_nothing().await;
}

/// Configured hosts and origins may send requests, and pages from loopback may. Containers reach loopback by fixed
/// names.
#[tokio::test]
async fn configured_hosts_are_served() {
    let more = "allowed_hosts = [\"box.lan\"]\nallowed_origins = [\"https://app.example\"]";
    let stage = Stage::with(more).await;
    for more in [
        "host: box.lan:8787",
        "host: host.docker.internal:8787",
        "host: localhost\r\norigin: http://127.0.0.1:3000\r\nsec-fetch-site: cross-site",
        "host: localhost\r\norigin: https://app.example\r\nsec-fetch-site: cross-site",
    ] {
        let mut client = Wire::connect(stage.serving.clients).await;
        client
            .send(format!("POST /v1/messages HTTP/1.1\r\n{more}\r\ncontent-length: 2\r\n\r\n{{}}"))
            .await;
        let mut call = stage.provider.call().await;
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200, "{more}");
    }
}

/// The operator's key gives access to files, batches and the organisation. A client that may use a model may not use
/// these.
#[tokio::test]
async fn operators_key_is_used_only_for_inference_paths() {
    let stage = Stage::with("").await;
    for line in [
        "GET /anthropic/v1/files",
        "DELETE /anthropic/v1/files/f",
        "POST /v1/messages/batches",
        "GET /openai/v1/organization/api_keys",
        "POST /openai/v1/files/messages",
        "GET /openai/v1/responses/resp_1",
        "GET /openai/v1/responses",
        "POST /openai/v1/fine_tuning/jobs",
        "DELETE /anthropic/v1/messages",
        "POST /anthropic/v1/files/../messages",
        "POST /anthropic/v1/organizations/%2e%2e/messages",
        "POST /anthropic/v1/organizations/.%2E/messages",
        "POST /anthropic/v1/organizations/%252e%252e/messages",
        "POST /anthropic/v1/organizations/..;/messages",
        "POST /anthropic/v1/organizations/..%5cmessages",
        "POST /anthropic/v1/organizations%2f..%2f/messages",
        "POST /openai/deployments/d;api_base=evil/chat/completions",
        "OPTIONS /v1/messages",
    ] {
        let answer = stage.ask(&format!("{line} HTTP/1.1\r\nhost: {{}}")).await;
        assert_eq!(verdict(&answer), (403, Some("path_refused")), "{line}");
    }
    // Without an upstream's name, such a path belongs to no upstream.
    let bare = "POST /v1/files/../messages HTTP/1.1\r\nhost: {}";
    assert_eq!(verdict(&stage.ask(bare).await), (404, Some("no_upstream")));
    stage.heard_nothing().await;
}

/// Whatever the upstream allows pages to read, a page cannot read responses to requests with the operator's key.
#[tokio::test]
async fn cors_headers_are_dropped_if_key_is_operators() {
    let stage = Stage::with("").await;
    let mut client = Wire::connect(stage.serving.clients).await;
    client.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-http-method-override: DELETE\r\ncookie: a=b\r\ncontent-length: 2\r\n\r\n{}").await;
    let mut call = stage.provider.call().await;
    assert_eq!(call.message.header("x-http-method-override"), None);
    assert_eq!(call.message.header("cookie"), None);
    call.send(
        "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\nAccess-Control-Allow-Credentials: true\r\n\
         access-control-expose-headers: *\r\ntiming-allow-origin: *\r\nrequest-id: r\r\ncontent-length: 2\r\n\r\n{}",
    )
    .await;
    let answer = client.response().await;
    assert_eq!(answer.lines(), ["request-id: r", "content-length: 2"]);
}

/// A gateway does what headers say: only those that are known to choose neither a backend nor an account go with the
/// operator's key, and of its account the client learns nothing.
#[tokio::test]
async fn key_goes_where_operator_said() {
    let stage = Stage::with("").await;
    let mut client = Wire::connect(stage.serving.clients).await;
    let steering = [
        "helicone-openai-api-base",
        "helicone-target-url",
        "openai-organization",
        "openai-project",
        "x-forwarded-host",
        "x-goog-user-project",
        "x-original-uri",
        "x-portkey-provider",
        "x-portkey-custom-host",
        "x-some-gateway-target",
    ];
    let steers: String = steering.map(|name| format!("{name}: evil.example\r\n")).concat();
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nanthropic-version: 2023-06-01\r\n\
             anthropic-beta: b\r\nx-stainless-lang: js\r\n{steers}content-length: 2\r\n\r\n{{}}"
        ))
        .await;
    let mut call = stage.provider.call().await;
    for name in steering {
        assert_eq!(call.message.header(name), None, "{name}");
    }
    for name in ["anthropic-version", "anthropic-beta", "x-stainless-lang", "content-length"] {
        assert!(call.message.header(name).is_some(), "{name}");
    }
    call.send(
        "HTTP/1.1 200 OK\r\nset-cookie: session=operators\r\nopenai-organization: org-1\r\n\
         anthropic-organization-id: org-2\r\nx-plimsoll-healed: forged\r\n\
         anthropic-ratelimit-tokens-remaining: 7\r\ncontent-length: 2\r\n\r\n{}",
    )
    .await;
    let answer = client.response().await;
    assert_eq!(answer.lines(), ["anthropic-ratelimit-tokens-remaining: 7", "content-length: 2"]);
}

/// What a gateway reads of the query, too: an address, a version, a key.
#[tokio::test]
async fn query_beside_operators_key_has_only_known_parameters() {
    let stage = Stage::with("").await;
    for (query, forwarded) in [
        ("?beta=true", "?beta=true"),
        ("?api_base=https://evil.example", ""),
        ("?beta=true&base_url=https%3A%2F%2Fevil.example&key=k", "?beta=true"),
        ("?beta=true;api_base=https://evil.example", ""),
        ("?custom_llm_provider=x&api-version=2025-04-01&%61pi_key=k", "?api-version=2025-04-01"),
    ] {
        let mut client = Wire::connect(stage.serving.clients).await;
        let head = format!("POST /anthropic/v1/messages{query} HTTP/1.1\r\nhost: localhost");
        client.send(format!("{head}\r\ncontent-length: 2\r\n\r\n{{}}")).await;
        let mut call = stage.provider.call().await;
        let line = format!("POST /v1/messages{forwarded} HTTP/1.1");
        assert_eq!(call.message.head.lines().next(), Some(&*line));
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200, "{query}");
    }
}

#[tokio::test]
async fn trailers_hide_operators_account() {
    let stage = Stage::with("").await;
    let mut client = Wire::connect(stage.serving.clients).await;
    client
        .send(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nte: trailers\r\n\
             content-length: 2\r\n\r\n{}",
        )
        .await;
    let mut call = stage.provider.call().await;
    call.send(
        "HTTP/1.1 200 OK\r\ntrailer: openai-organization, x-ended, set-cookie\r\n\
         transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\
         openai-organization: org-1\r\nset-cookie: a=b\r\nx-ended: well\r\n\r\n",
    )
    .await;
    let answer = String::from_utf8(client.until("x-ended: well\r\n\r\n").await).unwrap();
    let (_, trailers) = answer.split_once("\r\n0\r\n").unwrap();
    assert_eq!(trailers, "x-ended: well\r\n\r\n");
}

/// What headers may not say beside the operator's key, the trailers of an upgrade request may not say either.
#[tokio::test]
async fn trailers_of_upgrade_do_not_join_operators_key() {
    let stage = Stage::with("").await;
    let mut client = Wire::connect(stage.serving.clients).await;
    client
        .send(
            "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
             upgrade: websocket\r\ntransfer-encoding: chunked\r\ntrailer: x-portkey-config\r\n\r\n\
             2\r\n{}\r\n0\r\nx-portkey-config: c\r\n\r\n",
        )
        .await;
    let mut call = stage.provider.call().await;
    assert_eq!(call.message.header("upgrade"), Some("websocket"));
    assert_eq!(call.message.text(), "{}");
    assert!(call.message.trailers.is_empty(), "{:?}", call.message.trailers);
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

/// A client of a WebSocket that offers subprotocols needs one of them back, but none may name a key or an account.
#[tokio::test]
async fn subprotocol_reaches_upstream_without_keys_and_accounts() {
    let stage = Stage::with("").await;
    let mut client = Wire::connect(stage.serving.clients).await;
    client
        .send(
            "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-protocol: realtime, \
             openai-insecure-api-key.sk-1, openai-organization.org-1\r\n\r\n",
        )
        .await;
    let mut call = stage.provider.call().await;
    assert_eq!(call.message.header("sec-websocket-protocol"), Some("realtime"));
    call.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-protocol: realtime\r\n\r\n",
    )
    .await;
    let head = client.head().await;
    assert!(head.contains("sec-websocket-protocol: realtime"), "{head}");
}
