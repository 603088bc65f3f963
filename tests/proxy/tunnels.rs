//! Upgrades: forwarded byte for byte, or refused if policy says so.

use std::time::{Duration, Instant};

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::UpgradePolicy;
use plimsoll::context::{EstimateMethod, Outcome, SessionNames};
use plimsoll::dialect::error_kind::ErrorKind;
use plimsoll::dialect::{Dialect, Purpose, StopReason};
use plimsoll::proxy::{DrainOutcome, TunnelTimeouts};
use plimsoll::telemetry::FailOpen;
use tokio::io::AsyncWriteExt as _;

use crate::support::held::Held;
use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{digest, noise};

const UPGRADE: &str = "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: k\r\nSec-WebSocket-Version: 13\r\n\
    openai-beta: responses_websockets=2026-02-06\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";

#[tokio::test]
async fn bytes_pass_both_ways() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    assert_eq!(
        call.message.lines()[1..],
        [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: k",
            "Sec-WebSocket-Version: 13",
            "openai-beta: responses_websockets=2026-02-06",
        ]
    );
    call.send(SWITCHED).await;
    assert_eq!(client.head().await, SWITCHED.trim_end());

    let (up, down) = (noise(3, 300_000), noise(4, 500_000));
    let (got_up, got_down) = tokio::join!(
        async {
            client.send(&up).await;
            client.exactly(down.len()).await
        },
        async {
            let got = call.wire.exactly(up.len()).await;
            call.send(&down).await;
            got
        },
    );
    assert_eq!(digest(&got_up), digest(&down));
    assert_eq!(digest(&got_down), digest(&up));

    // The client ends its side. The upstream sees the end, and can still send.
    client.stream.shutdown().await.unwrap();
    assert_eq!(call.wire.rest().await.unwrap(), b"");
    call.send("after the client's end").await;
    client.expect("after the client's end").await;
    drop(call);
    assert_eq!(client.rest().await.unwrap(), b"");
    let exchange = server.next_exchange().await;
    let bytes = (exchange.timing.request_bytes, exchange.timing.response_bytes);
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(bytes, (300_000, 500_022));

    // The other way round: the upstream ends its side first.
    let (mut server, mut client, mut call) = tunnel(NEVER, NEVER).await;
    call.wire.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await.unwrap(), b"");
    client.send("after the upstream's end").await;
    call.wire.expect("after the upstream's end").await;
    drop(client);
    assert_eq!(call.wire.rest().await.unwrap(), b"");
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(exchange.timing.request_bytes, 24);
}

#[tokio::test]
async fn upgrade_refused_by_upstream_gets_upstreams_response() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.answer("404 Not Found", "{\"error\":1}").await;
    let response = client.response().await;
    assert_eq!(response.status(), 404);
    assert_eq!(response.text(), "{\"error\":1}");
}

/// Codex falls back to HTTP at once on 426.
#[tokio::test]
async fn refused_upgrade_gets_426() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.upstreams[0].upgrades = UpgradePolicy::Refuse;
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let response = client.response().await;
    assert_eq!(response.status(), 426);
    assert_eq!(response.header("x-plimsoll-error"), Some("upgrade_refused"));
}

/// Java's client offers h2c with every first request, although it does not want to leave HTTP.
#[tokio::test]
async fn h2c_upgrade_offer_is_not_forwarded() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: x\r\ncontent-length: 2\r\n\r\n{}",
        )
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.lines()[1..], ["content-length: 2"]);
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

/// If an upstream accepted the h2c part of an offer, later requests would bypass the proxy.
#[tokio::test]
async fn only_h2c_is_removed_from_offer_of_several_upgrades() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let post = |offer: &str| {
        format!(
            "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             {offer}\r\nHTTP2-Settings: x\r\ncontent-length: 2\r\n\r\n{{}}"
        )
    };
    for offer in
        ["Upgrade: h2c, h2", "Upgrade: HTTP/2.0", "Upgrade: h2c\r\nUpgrade: h2c", "Upgrade: ,H2C ,"]
    {
        let mut client = Wire::connect(server.address).await;
        client.send(post(offer)).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.lines()[1..], ["content-length: 2"], "{offer}");
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
    for offer in ["Upgrade: h2c, x", "Upgrade: x ,H2C", "Upgrade: h2c\r\nUpgrade: x"] {
        let mut client = Wire::connect(server.address).await;
        client.send(post(offer)).await;
        let mut call = provider.call().await;
        let wanted = ["Connection: Upgrade", "Upgrade: x", "content-length: 2"];
        assert_eq!(call.message.lines()[1..], wanted, "{offer}");
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
}

/// A text frame; clients mask theirs.
fn frame(text: &str, mask: bool) -> Vec<u8> {
    let mut frame = vec![0x81];
    let flag = if mask { 0x80 } else { 0 };
    match text.len() {
        short @ 0..126 => frame.push(flag | short as u8),
        long => {
            frame.push(flag | 126);
            frame.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    let key = [1, 2, 3, 4];
    if mask {
        frame.extend_from_slice(&key);
        frame.extend(text.bytes().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    } else {
        frame.extend_from_slice(text.as_bytes());
    }
    frame
}

const CREATE: &str = r#"{"type":"response.create","model":"gpt-5","prompt_cache_key":"codex-session","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}]}"#;
const DELTA: &str = r#"{"type":"response.output_text.delta","sequence_number":1,"item_id":"m","output_index":0,"content_index":0,"delta":"Hello"}"#;
const COMPLETED: &str = r#"{"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","status":"completed","model":"gpt-5","output":[{"id":"m","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[]}]}],"usage":{"input_tokens":31,"output_tokens":2,"total_tokens":33}}}"#;

/// The usage of OpenAI Responses over WebSocket is read from the frames, which are forwarded unchanged.
#[tokio::test]
async fn responses_on_websocket_are_recorded_as_exchanges() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED.replace("a\r\n\r\n", "a\r\nx-request-id: req_ws\r\n\r\n")).await;
    client.head().await;
    for event in [COMPLETED, DELTA] {
        let request = frame(CREATE, true);
        client.send(&request).await;
        assert_eq!(call.wire.exactly(request.len()).await, request);
        // Frames arrive byte by byte, and are forwarded unchanged.
        for byte in frame(event, false) {
            call.send([byte]).await;
            assert_eq!(client.exactly(1).await, [byte]);
        }
        if event == COMPLETED {
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.outcome, Outcome::Complete);
            assert_eq!(exchange.usage.input, Some(31));
            assert_eq!(exchange.usage.output, Some(2));
            assert_eq!(exchange.session, Some("codex-session".into()));
            assert_eq!(exchange.dialect, Some(Dialect::OpenaiResponses));
            assert_eq!(exchange.model.as_deref(), Some("gpt-5"));
            assert_eq!(exchange.provider_request_id.as_deref(), Some("req_ws"), "the connection's");
        }
    }
    // The upstream breaks off in the middle of the second reply.
    call.wire.reset();
    client.gone().await;
    let mut exchange = [server.next_exchange().await, server.next_exchange().await];
    exchange.sort_by_key(|event| event.model.is_some());
    assert_eq!(exchange[0].status, Some(101), "the tunnel");
    assert_eq!(exchange[0].model.as_deref(), None, "the tunnel");
    assert_eq!(exchange[0].provider_request_id.as_deref(), Some("req_ws"));
    assert_eq!(exchange[1].outcome, Outcome::UpstreamFailed);
    assert_eq!(exchange[1].usage.input, None);
    server.expect_no_exchange();
}

/// Over WebSocket, too, a failed reply is not a reply, with an error and without.
#[tokio::test]
async fn websocket_reply_that_reports_its_failure_counts_as_failed() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED).await;
    client.head().await;
    for (error, kind) in [
        ("null", ErrorKind::Provider),
        (r#"{"code":"rate_limit_exceeded","message":"Slowly."}"#, ErrorKind::RateLimit),
    ] {
        let request = frame(CREATE, true);
        client.send(&request).await;
        call.wire.exactly(request.len()).await;
        let failed = format!(
            r#"{{"type":"response.failed","sequence_number":1,"response":{{"id":"resp_1","status":"failed","error":{error},"output":[],"usage":null}}}}"#
        );
        let failed = frame(&failed, false);
        call.send(&failed).await;
        assert_eq!(client.exactly(failed.len()).await, failed);
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::UpstreamFailed, "{error}");
        assert_eq!(exchange.error_kind, Some(kind), "{error}");
        assert_eq!(exchange.stop, Some(StopReason::Failed), "{error}");
    }
}

/// A request without a reply: whoever ended the connection, by a close frame or by closing it, ended the exchange.
#[tokio::test]
async fn upstream_end_is_not_the_clients() {
    const CLOSE: [u8; 4] = [0x88, 2, 3, 0xf3];
    for (by_upstream, by_frame) in [(true, false), (true, true), (false, false)] {
        let (mut server, mut client, mut call) = tunnel(NEVER, NEVER).await;
        let turn = turn("r", "", &message("user", "input", "Hi"), 9, "");
        let request = frame(&turn.request, true);
        client.send(&request).await;
        call.wire.exactly(request.len()).await;
        match (by_upstream, by_frame) {
            (true, true) => {
                call.send(CLOSE).await;
                client.exactly(CLOSE.len()).await;
                drop(client);
                call.wire.gone().await;
                drop(call);
            }
            (true, false) => {
                drop(call);
                client.gone().await;
                drop(client);
            }
            (false, _) => {
                drop(client);
                call.wire.gone().await;
                drop(call);
            }
        }
        let exchange = loop {
            let exchange = server.next_exchange().await;
            if exchange.timing.request_bytes == turn.request.len() as u64 {
                break exchange;
            }
        };
        let expected = if by_upstream { Outcome::UpstreamFailed } else { Outcome::ClientLeft };
        assert_eq!(exchange.outcome, expected, "{by_frame}");
    }
}

/// The limit is that of a request's body: a large message is moved, not copied, until it is read.
#[tokio::test]
async fn large_websocket_request_is_metered() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.process_bytes = Some(48 << 20);
    let mut server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED).await;
    client.head().await;
    let turn = turn("r", "", &message("user", "input", &"word ".repeat(200_000)), 200_000, "Yes.");
    // A text frame with a long length, and a mask that changes nothing.
    let mut request = vec![0x81, 0xff];
    request.extend_from_slice(&(turn.request.len() as u64).to_be_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(turn.request.as_bytes());
    let answered = frame(&turn.answered, false);
    let (_, ()) = tokio::join!(call.wire.exactly(request.len()), client.send(&request));
    call.send(&answered).await;
    client.exactly(answered.len()).await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.fail_open.as_slice(), [].as_slice());
    assert_eq!(exchange.usage.input, Some(200_000));
}

/// A turn on a connection: the request, and its terminal event.
struct Turn {
    request: String,
    answered: String,
}

/// `more`: further members of the request. `reply`: the text of the reply.
fn turn(id: &str, more: &str, input: &str, input_tokens: u64, reply: &str) -> Turn {
    // As a real model's: the text, and what surrounds it.
    let output_tokens = reply.len() as u64 / 4 + 4;
    let reply =
        if reply.is_empty() { String::new() } else { message("assistant", "output", reply) };
    Turn {
        request: format!(r#"{{"type":"response.create","model":"gpt-5"{more},"input":[{input}]}}"#),
        answered: format!(
            r#"{{"type":"response.completed","sequence_number":1,"response":{{"id":"{id}","status":"completed","output":[{reply}],"usage":{{"input_tokens":{input_tokens},"output_tokens":{output_tokens},"total_tokens":{}}}}}}}"#,
            input_tokens + output_tokens
        ),
    }
}

fn message(role: &str, way: &str, text: &str) -> String {
    format!(
        r#"{{"type":"message","role":"{role}","status":"completed","content":[{{"type":"{way}_text","text":"{text}"}}]}}"#
    )
}

/// Codex begins a connection with a warm-up, which its headers announce. A new process opens another connection and
/// sends the whole history again. It is one thread, measured all the time.
#[tokio::test]
async fn conversation_changes_websocket() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let answer = "The last build passed: its log ends without an error, and the tests ran.";
    let developer =
        message("developer", "input", &"Work with care, and say what you did. ".repeat(50));
    let (hi, second) = (
        message("user", "input", "<cwd>/shop</cwd> Did it pass?"),
        message("user", "input", "Sure?"),
    );
    let whole =
        [&hi, &message("assistant", "output", answer), &second].map(String::as_str).join(",");
    let warm = |id: &str| turn(id, r#","generate":false"#, &developer, 500, "");
    let after = |id: &str| format!(r#","previous_response_id":"{id}""#);
    let connections = [
        vec![warm("w1"), turn("r1", &after("w1"), &hi, 510, answer)],
        vec![
            warm("w2"),
            turn("r2", &after("w2"), &whole, 536, "Yes."),
            turn("r3", &after("r2"), &second, 547, "Yes!"),
        ],
    ];
    let mut exchanges = Vec::new();
    for connection in connections {
        let mut client = Wire::connect(server.address).await;
        let codex = "x-codex-turn-metadata: {\"request_kind\":\"prewarm\"}\r\nsession-id: s\r\nthread-id: s\r\n\r\n";
        client.send(UPGRADE.replace("\r\n\r\n", &format!("\r\n{codex}"))).await;
        let mut call = provider.call().await;
        call.send(SWITCHED).await;
        client.head().await;
        for turn in connection {
            let (request, answered) = (frame(&turn.request, true), frame(&turn.answered, false));
            client.send(&request).await;
            call.wire.exactly(request.len()).await;
            call.send(&answered).await;
            assert_eq!(client.exactly(answered.len()).await, answered);
            exchanges.push(server.next_exchange().await);
        }
        drop((client, call));
        assert_eq!(server.next_exchange().await.session, None, "the tunnel");
    }
    let purposes: Vec<_> = exchanges.iter().filter_map(|event| event.purpose).collect();
    let (warm, turn) = (Purpose::WarmUp, Purpose::Turn);
    assert_eq!(purposes, [warm, turn, warm, turn, turn]);
    assert!(exchanges.iter().all(|event| event.session == Some("s".into())));
    for at in [1, 3, 4] {
        let (event, estimate) = (&exchanges[at], exchanges[at].estimate.as_ref().unwrap());
        assert_eq!(event.thread, exchanges[0].thread, "call {at}");
        assert_eq!(estimate.method, EstimateMethod::Held);
        let error = event.error().unwrap();
        assert!(error.abs() <= 12, "call {at}: {error} of {estimate:?}");
        assert!(estimate.new < 30, "{estimate:?}");
        assert!(estimate.breakdown.system > 300, "{estimate:?}");
    }
    let scopes = server.ledgers.scopes_of(&"s".into()).await.unwrap();
    let names = server.ledgers.look(&scopes[0], SessionNames::from_ledger).await.unwrap();
    assert!(names.project.is_some(), "the warm-up did not state it: {names:?}");
}

/// Bytes that are no WebSocket frames are forwarded all the same.
#[tokio::test]
async fn nonsense_on_websocket_passes() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED.replace("\r\n\r\n", "\r\nsec-websocket-extensions: x-unknown\r\n\r\n"))
        .await;
    client.head().await;
    client.send([0xff; 100]).await;
    assert_eq!(call.wire.exactly(100).await, [0xff; 100]);
    call.send([0x0f; 100]).await;
    assert_eq!(client.exactly(100).await, [0x0f; 100]);
}

/// A drain waits for a reply in flight, not for an idle connection.
#[tokio::test]
async fn drain_ends_websocket_once_its_replies_are_done() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED).await;
    client.head().await;
    let request = frame(CREATE, true);
    client.send(&request).await;
    call.wire.exactly(request.len()).await;
    server.stop();
    for event in [DELTA, COMPLETED] {
        let event = frame(event, false);
        call.send(&event).await;
        assert_eq!(client.exactly(event.len()).await, event);
    }
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
    assert_eq!(server.drained().await, DrainOutcome::Whole);
}

/// Requests arrive faster than the store answers: a few wait, and each of the others is recorded at once.
#[tokio::test]
async fn few_requests_on_websocket_wait_for_store_at_once() {
    const MANY: usize = 100;
    const AT_ONCE: usize = 32;
    let (provider, store) = (Provider::start().await, Held::new());
    let mut config = config(&provider.base());
    config.limits.store_ms = 60_000;
    let mut server = TestServer::over(store.clone(), config, Matcher::builder().build()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED).await;
    client.head().await;
    store.hold_reads(true);
    let request = frame(CREATE, true);
    for _ in 0..MANY {
        client.send(&request).await;
        assert_eq!(call.wire.exactly(request.len()).await, request);
    }
    for _ in AT_ONCE..MANY {
        assert_eq!(server.next_exchange().await.fail_open, [FailOpen::AnalysisBudget]);
    }
    server.expect_no_exchange();
    let under_way = format!("plimsoll_active_streams {AT_ONCE}\n");
    assert!(server.telemetry.render().contains(&under_way));
    store.hold_reads(false);
    // Of the waiting requests, only the newest sixteen were kept, so there is room again.
    for _ in 16..AT_ONCE {
        assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
    }
    client.send(&request).await;
    let completed = frame(COMPLETED, false);
    call.send(&completed).await;
    assert_eq!(client.exactly(completed.len()).await, completed);
}

/// A time that passes during a test, and one that does not.
const SOON: Duration = Duration::from_millis(1500);
const NEVER: Duration = Duration::from_secs(3600);

/// Both ends of a tunnel with these timeouts.
async fn tunnel(idle: Duration, half_closed: Duration) -> (TestServer, Wire, Call) {
    let provider = Provider::start().await;
    let check = Duration::from_millis(20);
    let timeouts = TunnelTimeouts { idle, half_closed, check };
    let server = TestServer::with_tunnels(config(&provider.base()), timeouts).await;
    let mut client = Wire::connect(server.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.send(SWITCHED).await;
    client.head().await;
    (server, client, call)
}

/// The upstream sends something now and then, for three times as long as a tunnel may be idle.
async fn continues_on(client: &mut Wire, call: &mut Call) {
    let began = Instant::now();
    while began.elapsed() < 3 * SOON {
        call.send("a").await;
        client.expect("a").await;
        tokio::time::sleep(SOON / 15).await;
    }
}

#[tokio::test]
async fn tunnel_in_which_nothing_passes_ends_on_both_sides() {
    let (mut server, mut client, mut call) = tunnel(SOON, NEVER).await;
    client.send("a").await;
    call.wire.expect("a").await;
    let began = Instant::now();
    assert_eq!(client.rest().await.unwrap(), b"");
    assert_eq!(call.wire.rest().await.unwrap(), b"");
    assert!(began.elapsed() > SOON / 2, "it was closed too early");
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::EndedByProxy);
    assert_eq!(exchange.timing.request_bytes, 1);
}

#[tokio::test]
async fn tunnel_of_which_one_side_has_ended_ends_once_nothing_passes() {
    let (_server, mut client, mut call) = tunnel(NEVER, SOON).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(call.wire.rest().await.unwrap(), b"", "the end is passed on");
    // The upstream has more to send, and sends it.
    continues_on(&mut client, &mut call).await;
    assert_eq!(client.rest().await.unwrap(), b"");
    drop(call);
}

#[tokio::test]
async fn busy_tunnel_stays() {
    let (_server, mut client, mut call) = tunnel(SOON, NEVER).await;
    continues_on(&mut client, &mut call).await;
    client.send("b").await;
    call.wire.expect("b").await;
}
