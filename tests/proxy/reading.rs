//! Streams are read while they are forwarded: every event goes to the client at once, and its usage is recorded.

use plimsoll::context::Outcome;
use plimsoll::dialect::Note;
use plimsoll::telemetry::FailOpen;

use crate::support::coding::{CODINGS, Encoder};
use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{digest, h2, noise, wire};

fn post(path: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// The client has event n before the provider has sent event n + 1, in every dialect and encoding. Comments and pings
/// count as events.
#[tokio::test]
async fn events_leave_one_by_one() {
    for script in wire::all() {
        for coding in CODINGS {
            let provider = Provider::start().await;
            let mut server = TestServer::before(&provider.base()).await;
            let mut client = Wire::connect(server.address).await;
            let accepts = format!("accept-encoding: {coding}\r\n");
            client.send(post(script.path, &accepts, script.request.as_bytes())).await;
            let mut call = provider.call().await;
            assert_eq!(call.message.text(), script.request);
            call.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                 content-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n"
            ))
            .await;
            assert!(client.head().await.contains(&format!("content-encoding: {coding}")));
            let mut encoder = Encoder::new(coding);
            for event in &script.events {
                let bytes = encoder.event(event.as_bytes());
                call.chunk(&bytes).await;
                assert_eq!(client.chunk().await, bytes, "{} {coding}", script.path);
            }
            call.end().await;
            assert_eq!(client.chunk().await, b"");
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.outcome, Outcome::Complete, "{} {coding}", script.path);
            assert_eq!(exchange.usage.input, Some(script.input), "{} {coding}", script.path);
            assert_eq!(exchange.usage.output, Some(script.output), "{} {coding}", script.path);
            assert!(exchange.streamed);
            assert_eq!(exchange.fail_open, []);
            assert_eq!(exchange.timing.frames as usize, script.events.len());
        }
    }
}

#[tokio::test]
async fn http2_has_each_event_at_once() {
    for script in wire::all() {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = h2::Client::connect(server.address).await;
        let uri = format!("http://localhost{}", script.path);
        let request = http::Request::post(uri).body(h2::whole(script.request).await).unwrap();
        let answering = async {
            let mut call = provider.call().await;
            assert_eq!(call.message.text(), script.request);
            call.begin_events().await;
            call
        };
        let (response, mut call) = tokio::join!(client.request(request), answering);
        let mut body = response.into_body();
        for event in &script.events {
            call.chunk(event).await;
            assert_eq!(h2::next(&mut body).await.unwrap().unwrap(), event.as_bytes());
        }
        call.end().await;
        assert!(h2::next(&mut body).await.is_none());
        assert_eq!(server.next_exchange().await.usage.input, Some(script.input));
    }
}

/// Codex closes the connection on `response.completed`, OpenAI's SDKs on `[DONE]`: such exchanges are complete.
#[tokio::test]
async fn close_after_terminal_event_is_complete_and_before_it_is_not() {
    for script in [wire::anthropic(), wire::chat(), wire::responses()] {
        for (events, outcome) in
            [(script.events.len(), Outcome::Complete), (2, Outcome::ClientLeft)]
        {
            let provider = Provider::start().await;
            let mut server = TestServer::before(&provider.base()).await;
            let mut client = Wire::connect(server.address).await;
            client.send(post(script.path, "", script.request.as_bytes())).await;
            let mut call = provider.call().await;
            call.begin_events().await;
            client.head().await;
            for event in &script.events[..events] {
                call.chunk(event).await;
                client.chunk().await;
            }
            drop(client);
            call.wire.gone().await;
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.outcome, outcome, "{}", script.path);
            if outcome == Outcome::Complete {
                assert_eq!(exchange.usage.output, Some(script.output));
                assert!(!exchange.usage.lower_bound);
            }
            server.expect_no_exchange();
        }
    }
}

#[tokio::test]
async fn answers_that_are_no_streams_are_read_whatever_their_encoding() {
    let body = br#"{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hi."}],"stop_reason":"end_turn","usage":{"input_tokens":21,"output_tokens":4}}"#;
    let request = br#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#;
    for coding in CODINGS {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        // The request is compressed, too, and is forwarded unchanged.
        let sent = Encoder::whole(coding, request);
        let encoded = format!("content-encoding: {coding}\r\n");
        client.send(post("/v1/messages", &encoded, &sent)).await;
        let mut call = provider.call().await;
        assert_eq!(digest(&call.message.body), digest(&sent));
        assert_eq!(call.message.header("content-encoding"), Some(coding));
        let answer = Encoder::whole(coding, body);
        call.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: {coding}\r\n\
             content-length: {}\r\n\r\n",
            answer.len()
        ))
        .await;
        call.send(&answer).await;
        let response = client.response().await;
        assert_eq!(digest(&response.body), digest(&answer));
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.model.as_deref(), Some("claude-sonnet-4-5"), "{coding}");
        assert_eq!(exchange.usage.input, Some(21), "{coding}");
        assert_eq!(exchange.usage.output, Some(4), "{coding}");
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert!(!exchange.streamed);
        assert_eq!(exchange.timing.request_bytes as usize, sent.len());
        assert_eq!(exchange.timing.response_bytes as usize, answer.len());
    }
}

/// Invariant 1: if nothing is rewritten, the body is forwarded unchanged, at the limit and past it.
#[tokio::test]
async fn invariant_1_bodies_at_and_past_limit_are_forwarded_as_they_are() {
    let limit = 100_000;
    for (length, aside) in [(limit, None), (limit + 1, Some(FailOpen::BodyTooLarge))] {
        for chunked in [false, true] {
            let provider = Provider::start().await;
            let mut config = config(&provider.base());
            config.limits.body_bytes = limit;
            let mut server = TestServer::with(config).await;
            let mut client = Wire::connect(server.address).await;
            let body = [b"{\"a\":\"".as_slice(), &vec![b'x'; length - 8], b"\"}"].concat();
            if chunked {
                client.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").await;
                for part in body.chunks(30_000) {
                    client.send(format!("{:x}\r\n", part.len())).await;
                    client.send([part, b"\r\n"].concat()).await;
                }
                client.send("0\r\n\r\n").await;
            } else {
                client.send(post("/v1/messages", "", &body)).await;
            }
            let mut call = provider.call().await;
            assert_eq!(digest(&call.message.body), digest(&body), "{length} {chunked}");
            assert_eq!(call.message.chunks.is_some(), chunked);
            call.answer("200 OK", "{}").await;
            client.response().await;
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.fail_open.contains(&FailOpen::BodyTooLarge), aside.is_some());
            assert_eq!(exchange.timing.request_bytes as usize, length, "{chunked}");
        }
    }
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_forwarded_and_recorded() {
    let cases: [(&str, &[u8], Option<FailOpen>); 3] = [
        ("", b"this is not JSON", Some(FailOpen::BodyUnread)),
        ("content-encoding: gzip\r\n", b"this is not gzip", Some(FailOpen::BodyUnread)),
        ("content-encoding: rot13\r\n", b"guvf", Some(FailOpen::BodyUnread)),
    ];
    for (more, body, aside) in cases {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client.send(post("/v1/messages", more, body)).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.body, body);
        // Nor can these responses be read: one in an unknown encoding, and one that is broken.
        call.send("HTTP/1.1 200 OK\r\ncontent-encoding: rot13\r\ncontent-length: 4\r\n\r\nfher")
            .await;
        assert_eq!(client.response().await.text(), "fher");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.fail_open.first().copied(), aside);
        assert!(exchange.fail_open.contains(&FailOpen::ReplyUnread));
        assert!(exchange.notes.contains(&Note::UnknownEncoding));
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert_eq!(exchange.usage.input, None);
    }
}

#[tokio::test]
async fn answer_that_is_not_encoded_as_it_says_passes_unread() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(post("/v1/messages", "", b"{}")).await;
    let mut call = provider.call().await;
    let body = noise(9, 50_000);
    call.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ))
    .await;
    call.send(&body).await;
    assert_eq!(digest(&client.response().await.body), digest(&body));
    assert_eq!(server.next_exchange().await.fail_open, [FailOpen::ReplyUnread]);
}

/// A response without a body, a refusal, a path without a conversation: each is recorded once.
#[tokio::test]
async fn invariant_6_every_kind_of_exchange_is_recorded_once() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.send("HTTP/1.1 200 OK\r\n\r\n").await;
    client.message(false).await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(exchange.status, Some(200));
    assert_eq!(exchange.dialect, None);

    client.send(post("/v1/messages?beta=true", "", b"{}")).await;
    let mut call = call.wire.request().await;
    call.answer("429 Too Many Requests", r#"{"type":"error","error":{"type":"rate_limit_error"}}"#)
        .await;
    client.response().await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::Refused);
    assert_eq!(exchange.status, Some(429));
    assert_eq!(&*exchange.path, "/v1/messages");

    // The provider closes instead of responding, on the kept connection and on a new one.
    client.send(post("/v1/messages", "", b"{}")).await;
    drop(call.wire.request().await);
    drop(provider.call().await);
    assert_eq!(client.response().await.status(), 502);
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::UpstreamFailed);
    assert_eq!(exchange.status, Some(502));

    // The client leaves in the middle of its request.
    let mut leaving = Wire::connect(server.address).await;
    leaving
        .send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        .await;
    drop(leaving);
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::ClientLeft);
    server.expect_no_exchange();
}

/// Invariant 9: canaries in every place that may contain a secret appear in no event and no metric.
#[tokio::test]
async fn invariant_9_no_prompt_reply_or_key_is_in_events_or_metrics() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    let request =
        r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"CANARY-prompt"}]}"#;
    client
        .send(post(
            "/v1/messages?key=CANARY-query",
            "authorization: Bearer CANARY-bearer\r\nx-api-key: CANARY-key\r\ncookie: CANARY-cookie\r\n",
            request.as_bytes(),
        ))
        .await;
    let mut call = provider.call().await;
    call.answer("200 OK", r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"CANARY-reply"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":1}}"#).await;
    client.response().await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.usage.input, Some(3), "it was read");
    let event = serde_json::to_string(&*exchange).unwrap();
    assert!(!event.contains("CANARY"), "{event}");
    let metrics = server.telemetry.render();
    assert!(metrics.contains("plimsoll"), "{metrics}");
    assert!(!metrics.contains("CANARY"), "{metrics}");
}

/// Large bodies are read off the async threads, with the same result.
#[tokio::test]
async fn large_conversation_is_measured() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    let text = "All work and no play. ".repeat(60_000);
    let body = format!(
        r#"{{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{{"role":"user","content":"{text}"}}]}}"#
    );
    client.send(post("/v1/messages", "", body.as_bytes())).await;
    let mut call = provider.call().await;
    assert_eq!(digest(&call.message.body), digest(body.as_bytes()));
    call.answer("200 OK", "{}").await;
    client.response().await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.model.as_deref(), Some("claude-sonnet-4-5"));
    let estimate = exchange.estimate.as_ref().expect("measured").tokens;
    assert!((100_000..2_000_000).contains(&estimate), "{estimate}");
    assert_eq!(exchange.fail_open, []);
}
