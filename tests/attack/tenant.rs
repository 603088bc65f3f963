//! The stranger here is another client on a shared proxy.

use plimsoll::config::Secret;
use plimsoll::store::ScopePage;
use plimsoll::telemetry::FailOpen;
use serde_json::{Value, json};

use crate::program::{self, Serving};
use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};

const MODEL: &str = "claude-opus-4-5";
const THOUGHT: &str = "What only the first user's model thought.";
const TOKEN: &str = "a-token-that-is-long-enough";

fn request(messages: &[Value]) -> Value {
    json!({"model": MODEL, "max_tokens": 1000, "thinking": {"type": "adaptive"},
        "system": "You are calm.", "messages": messages})
}

fn reply(content: &Value) -> String {
    json!({"id": "m1", "type": "message", "role": "assistant", "model": MODEL, "content": content,
        "stop_reason": "tool_use", "usage": {"input_tokens": 100, "output_tokens": 50}})
    .to_string()
}

/// One user: the headers of its requests, and their target.
#[derive(Clone, Copy)]
struct User<'a> {
    headers: &'a str,
    target: &'a str,
}

const fn by(headers: &str) -> User<'_> {
    User { headers, target: "/v1/messages" }
}

impl User<'_> {
    async fn exchange(
        self,
        serving: &Serving,
        provider: &Provider,
        body: &Value,
        answer: &str,
    ) -> Message {
        let (body, Self { headers, target }) = (body.to_string(), self);
        let mut client = Wire::connect(serving.clients).await;
        client
            .send(format!(
                "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-session-id: the-same-session\r\n{headers}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        let mut call = provider.call().await;
        call.answer("200 OK", answer).await;
        assert_eq!(client.response().await.status(), 200);
        call.message
    }
}

/// Two users with the same session id and the same history. The first one's model reasoned. The other's request is
/// forwarded byte for byte. `remembers`: the first one's own next request gets its reasoning put back.
async fn stay_strangers(one: User<'_>, other: User<'_>, remembers: bool) {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let call = json!({"type": "tool_use", "id": "toolu_01AbCdEfGh12", "name": "Read", "input": {}});
    let thinking = json!({"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"});
    let mut history = vec![json!({"role": "user", "content": "Look."})];
    let first = request(&history);
    one.exchange(&serving, &provider, &first, &reply(&json!([thinking, call]))).await;
    serving.wait_for_log("output=50").await;
    history.push(json!({"role": "assistant", "content": [call]}));
    let result =
        json!({"type": "tool_result", "tool_use_id": "toolu_01AbCdEfGh12", "content": "Deep."});
    history.push(json!({"role": "user", "content": [result]}));
    let next = request(&history);
    let sent = other.exchange(&serving, &provider, &next, &reply(&json!([]))).await;
    assert_eq!(sent.text(), next.to_string(), "the other user's request: {}", other.headers);
    let sent = one.exchange(&serving, &provider, &next, &reply(&json!([]))).await;
    assert_eq!(sent.text().contains(THOUGHT), remembers, "the first user's own: {}", one.headers);
    if !remembers {
        serving.counted("plimsoll_fail_open_total{reason=\"unknown_credential\"}").await;
    }
    let log = serving.log();
    for secret in ["secret-of-anna", "secret-of-bert"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn cloudflare_users_share_nothing() {
    let of = |line| by(line);
    let (a, b) = (
        "cf-aig-authorization: Bearer secret-of-anna",
        "cf-aig-authorization: Bearer secret-of-bert",
    );
    stay_strangers(of(a), of(b), true).await;
}

#[tokio::test]
async fn users_of_portkey_share_nothing() {
    let (a, b) = ("x-portkey-api-key: secret-of-anna", "x-portkey-api-key: secret-of-bert");
    stay_strangers(by(a), by(b), true).await;
}

#[tokio::test]
async fn azure_users_share_nothing() {
    let (a, b) =
        ("Ocp-Apim-Subscription-Key: secret-of-anna", "Ocp-Apim-Subscription-Key: secret-of-bert");
    stay_strangers(by(a), by(b), true).await;
}

#[tokio::test]
async fn cookie_users_share_nothing() {
    let (a, b) = ("Cookie: __cf_bm=1; sid=secret-of-anna", "Cookie: __cf_bm=1; sid=secret-of-bert");
    stay_strangers(by(a), by(b), true).await;
}

#[tokio::test]
async fn users_with_different_keys_in_query_share_nothing() {
    let at = |target| User { headers: "x-app: cli", target };
    let one = at("/v1/messages?api_key=secret-of-anna");
    stay_strangers(one, at("/v1/messages?api_key=secret-of-bert"), true).await;
}

#[tokio::test]
async fn users_with_different_keys_in_path_share_nothing() {
    let at = |target| User { headers: "x-app: cli", target };
    let one = at("/anthropic/sk-secret-of-anna-00/v1/messages");
    stay_strangers(one, at("/anthropic/sk-secret-of-bert-00/v1/messages"), true).await;
}

/// A user with an unknown header has no memory, not even of its own.
#[tokio::test]
async fn users_with_different_unlisted_headers_share_nothing() {
    stay_strangers(by("x-corp-key: secret-of-anna"), by("x-corp-key: secret-of-bert"), false).await;
}

#[tokio::test]
async fn proxied_users_share_nothing() {
    stay_strangers(by("x-forwarded-for: 192.0.2.1"), by("x-forwarded-for: 192.0.2.2"), false).await;
}

/// The id of an access key is public: policies and logs contain it.
#[tokio::test]
async fn users_of_one_access_key_id_with_other_signatures_share_nothing() {
    let signed = |by: &str| {
        format!(
            "authorization: AWS4-HMAC-SHA256 Credential=AKIA1/20261122/us-east-1/bedrock/aws4_request, \
             SignedHeaders=host, Signature=secret-of-{by}"
        )
    };
    let (a, b) = (signed("anna"), signed("bert"));
    stay_strangers(by(&a), by(&b), false).await;
    stay_strangers(by(&a), by("x-api-key: AKIA1"), false).await;
}

/// A header that the configuration lists distinguishes users, and each has a memory.
#[tokio::test]
async fn configured_tenant_header_distinguishes_users() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.tenant_headers = vec!["x-corp-user".parse().unwrap()];
    let mut server = TestServer::with(config).await;
    let mut tenants = Vec::new();
    for user in ["anna", "bert", "anna"] {
        let more = format!("x-corp-user: {user}\r\n");
        forwarded(
            &server,
            &provider,
            &more,
            &request(&[json!({"role": "user", "content": "Hm."})]),
        )
        .await;
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.fail_open, []);
        tenants.push(exchange.tenant.clone().unwrap());
    }
    assert!(tenants[0] == tenants[2], "{tenants:?}");
    assert!(tenants[0] != tenants[1], "{tenants:?}");
}

async fn forwarded(server: &TestServer, provider: &Provider, more: &str, body: &Value) -> Message {
    let body = body.to_string();
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    let mut call = provider.call().await;
    call.answer("200 OK", &reply(&json!([]))).await;
    assert_eq!(client.response().await.status(), 200);
    call.message
}

/// On a laptop, all users without a credential are one. If others can reach the listener, they are not.
#[tokio::test]
async fn clients_without_credential_are_remembered_only_on_loopback() {
    let provider = Provider::start().await;
    let body = request(&[json!({"role": "user", "content": "Hm."})]);
    for (listen, aside) in
        [([127, 0, 0, 1], &[][..]), ([0, 0, 0, 0], &[FailOpen::NoCredential][..])]
    {
        let mut config = config(&provider.base());
        config.listen = (listen, 8787).into();
        let mut server = TestServer::with(config).await;
        forwarded(&server, &provider, "", &body).await;
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.fail_open, aside);
        assert!(exchange.estimate.is_some(), "it is measured");
        assert!(exchange.usage.input == Some(100), "it is measured");
        let sessions = server.ledgers.sessions(ScopePage::first(9)).await.unwrap();
        assert_eq!(sessions.is_empty(), !aside.is_empty());
    }
}

/// WebSockets and token counts leave nothing either.
#[tokio::test]
async fn token_counts_and_websockets_of_unknown_users_are_not_stored() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send("GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-corp-key: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    let mut call = provider.call().await;
    call.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
    )
    .await;
    client.head().await;
    let create = r#"{"type":"response.create","model":"gpt-5","input":"Hi"}"#;
    let done = r#"{"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":2,"total_tokens":5}}}"#;
    let frame = |text: &str| {
        let length = u16::try_from(text.len()).unwrap().to_be_bytes();
        [&[0x81, 126][..], &length, text.as_bytes()].concat()
    };
    // A mask of zeros leaves the text unchanged.
    let length = u8::try_from(create.len()).unwrap();
    let masked = [&[0x81, 0x80 | length, 0, 0, 0, 0][..], create.as_bytes()].concat();
    client.send(&masked).await;
    call.wire.exactly(masked.len()).await;
    call.send(frame(done)).await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.fail_open, [FailOpen::UnknownCredential]);
    assert_eq!(exchange.usage.input, Some(3));
    assert_eq!(exchange.tenant, None);
    drop((client, call));
    server.next_exchange().await;

    let mut client = Wire::connect(server.address).await;
    let body = request(&[json!({"role": "user", "content": "Hm."})]).to_string();
    client
        .send(format!("POST /v1/messages/count_tokens HTTP/1.1\r\nhost: localhost\r\nx-corp-key: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.text(), body);
    call.answer("200 OK", r#"{"input_tokens":9}"#).await;
    client.response().await;
    assert_eq!(server.next_exchange().await.fail_open, [FailOpen::UnknownCredential]);
    assert!(server.ledgers.sessions(ScopePage::first(9)).await.unwrap().is_empty());
}

/// The operator's secret for A, and a client's cookie and headers, are not sent to a summariser at B.
#[tokio::test]
async fn summariser_at_another_upstream_gets_no_foreign_secret() {
    let (a, b) = (Provider::start().await, Provider::start().await);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let key = file("key", "secret-of-the-operator");
    let config = format!(
        "[upstream.anthropic]\ncredential = \"file:{key}\"\ncredential_header = \"x-operators-own\"\nwindow_tokens = 4000\n\
         [upstream.b]\nbase_url = {:?}\ndialects = [\"anthropic\"]\n\
         [compact]\nengine = \"summary\"\nupstream = \"b\"\nthreshold = 0.6\nprepare = 0.6\nkeep_messages = 4\nwait_s = 1\n",
        b.base()
    );
    let config = file("plimsoll.toml", &config);
    let serving = Serving::start(&a.base(), &["--config", &config]).await;
    let text = "more of it ".repeat(40);
    let messages: Vec<Value> = (0..15)
        .map(|number| {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": format!("{number}: {text}")})
        })
        .collect();
    let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": messages});
    let user = by(
        "x-api-key: secret-of-anna\r\ncookie: sid=secret-of-anna\r\nx-corp-secret: secret-of-anna\r\n\
         anthropic-version: 2023-06-01\r\nanthropic-beta: some-beta\r\nuser-agent: secret-of-anna",
    );
    let answer = reply(&json!([{"type": "text", "text": "Well."}]));
    let asking = user.exchange(&serving, &a, &body, &answer);
    let (sent, mut question) = tokio::join!(asking, b.call());
    assert_eq!(sent.header("x-operators-own"), Some("secret-of-the-operator"));
    let head = &question.message.head;
    assert!(question.message.text().contains("Write a summary"), "{}", question.message.text());
    assert!(!head.contains("secret"), "{head}");
    for name in
        ["cookie", "x-corp-secret", "x-operators-own", "x-api-key", "user-agent", "x-session-id"]
    {
        assert_eq!(question.message.header(name), None, "{name}");
    }
    assert_eq!(question.message.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(question.message.header("anthropic-beta"), Some("some-beta"));
    question.answer("200 OK", &reply(&json!([]))).await;
}

/// If a client token is configured, requests without it are refused. It is not forwarded, and does not identify a
/// tenant.
#[tokio::test]
async fn client_token_is_required_and_never_forwarded() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.client_token = Some(Secret(TOKEN.into()));
    config.limits.connections = Some(1);
    let mut server = TestServer::with(config).await;
    let body = r#"{"model":"claude-opus-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hm."}]}"#;
    let post = |target: &str, more: &str| {
        format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let upgrade = "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    for asks in [
        post("/v1/messages", ""),
        post("/v1/messages", "x-plimsoll-token: \r\n"),
        post("/v1/messages", "x-plimsoll-token: a-token-that-is-long-enoug\r\n"),
        post("/v1/messages", "x-api-key: sk-own\r\n"),
        post("/v1/messages", &format!("x-other: {TOKEN}\r\n")),
        upgrade.to_owned(),
    ] {
        let mut client = Wire::connect(server.address).await;
        client.send(&asks).await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 401);
        assert_eq!(answer.header("x-plimsoll-error"), Some("client_token"));
        assert!(answer.text().contains("x-plimsoll-token"), "{}", answer.text());
        assert_eq!(server.next_exchange().await.status, Some(401));
        client.stream.set_zero_linger().unwrap();
        drop(client);
    }
    for (target, more) in [
        ("/v1/messages", format!("x-plimsoll-token: {TOKEN}\r\n")),
        ("/v1/messages", format!("x-plimsoll-token: {TOKEN}\r\nx-api-key: sk-own\r\n")),
        ("/v1/messages", format!("x-api-key: {TOKEN}\r\n")),
        ("/v1/messages", format!("authorization: Bearer {TOKEN}\r\n")),
        ("/v1/messages?key=a-token-that-is-long%2Denough", String::new()),
    ] {
        let mut client = Wire::connect(server.address).await;
        client.send(post(target, &more)).await;
        let mut call = provider.call().await;
        let own = more.contains("sk-own");
        assert!(!call.message.head.contains("token"), "{}", call.message.head);
        assert_eq!(call.message.header("x-api-key"), own.then_some("sk-own"));
        assert_eq!(call.message.header("authorization"), None);
        call.answer("200 OK", &reply(&json!([]))).await;
        client.response().await;
        let exchange = server.next_exchange().await;
        assert_eq!(
            exchange.tenant == Some("0000000000000000".into()),
            !own,
            "it identifies no tenant"
        );
    }
}

/// If all connections are in use, a client without the token learns nothing more.
#[tokio::test]
async fn client_token_is_required_even_past_connection_limit() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.client_token = Some(Secret(TOKEN.into()));
    config.limits.connections = Some(1);
    let server = TestServer::with(config).await;
    let mut first = Wire::connect(server.address).await;
    first.send(format!("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-plimsoll-token: {TOKEN}\r\ncontent-length: 2\r\n\r\n{{}}")).await;
    let call = provider.call().await;
    for (more, status) in [(String::new(), 401), (format!("x-plimsoll-token: {TOKEN}\r\n"), 503)] {
        let mut client = Wire::connect(server.address).await;
        client.send(format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{more}\r\n")).await;
        assert_eq!(client.response().await.status(), status);
    }
    drop(call);
}

/// Anybody who can reach it would spend the operator's money.
#[tokio::test]
async fn open_listener_with_operators_key_is_refused_without_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("key"), "sk-own").unwrap();
    std::fs::write(path("token"), TOKEN).unwrap();
    let check = async |token: &str| {
        let text = format!(
            "listen = \"0.0.0.0:8787\"\ndata = \"d\"\n{token}\n[upstream.anthropic]\ncredential = \"file:{}\"\n",
            path("key")
        );
        std::fs::write(path("plimsoll.toml"), text).unwrap();
        program::run(&["check", "--config", &path("plimsoll.toml")]).await
    };
    let done = check("").await;
    assert!(done.code != 0, "{}", done.err);
    assert!(done.err.contains("client_token"), "{}", done.err);
    let done = check(&format!("client_token = \"file:{}\"", path("token"))).await;
    assert_eq!(done.code, 0, "{}", done.err);
    std::fs::write(path("token"), "fifteen-letters").unwrap();
    let done = check(&format!("client_token = \"file:{}\"", path("token"))).await;
    assert!(done.code != 0, "{}", done.err);
    assert!(done.err.contains("16 characters"), "{}", done.err);
}

/// A gateway may return what it was sent. A value that contains a credential is not used as a request id, and is shown
/// nowhere.
#[tokio::test]
async fn request_id_that_is_credential_appears_nowhere() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("key"), "sk-of-the-operator").unwrap();
    let config = format!("[upstream.gemini]\ncredential = \"file:{}\"\n", path("key"));
    std::fs::write(path("plimsoll.toml"), config).unwrap();
    let mut serving = Serving::start(&provider.base(), &["--config", &path("plimsoll.toml")]).await;
    let claude = request(&[json!({"role": "user", "content": "Hi"})]).to_string();
    let gemini = r#"{"contents":[{"role":"user","parts":[{"text":"Hi"}]}]}"#;
    let keyed = "/v1/messages?key=sk-in-the-query";
    let cases = [
        ("/v1/messages", &*claude, "sk-in-a-header", "sk-in-a-header"),
        ("/v1/messages", &claude, "sk-in-a-header", "id-sk-in-a-header-1"),
        ("/v1/messages", &claude, "sk-in-a-header", "in-a-header"),
        (keyed, &claude, "sk-in-a-header", "sk-in-the-query"),
        ("/v1beta/models/gemini-2.5-pro:generateContent", gemini, "", "sk-of-the-operator"),
    ];
    for (target, body, key, id) in cases {
        let mut client = serving.post(target, body, &[("x-api-key", key)]).await;
        let mut call = provider.call().await;
        let answer = reply(&json!([]));
        call.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        ))
        .await;
        assert_eq!(
            client.response().await.header("x-request-id"),
            Some(id),
            "it is forwarded all the same"
        );
    }
    serving.wait_for_log("generateContent 200").await;
    let (log, sessions) = (serving.log(), serving.ask("/api/v1/sessions").await);
    for secret in ["in-a-header", "in-the-query", "of-the-operator"] {
        assert!(!log.contains(secret), "{log}");
        assert!(!sessions.text().contains(secret), "{log}");
    }
    assert_eq!(log.matches(" POST ").count(), 5, "{log}");
}
