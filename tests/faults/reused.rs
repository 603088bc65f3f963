//! Connections that are kept between requests. If the provider has closed one in the meantime, the proxy handles that,
//! not the client. A request that the provider may have read is not sent twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::within;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

const ASK: &str =
    "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 7\r\n\r\n{\"a\":1}";

/// A provider, a proxy before it, a client, and the kept connection that its first request opened.
struct Kept {
    provider: Provider,
    server: TestServer,
    client: Wire,
    connection: Wire,
}

impl Kept {
    async fn new() -> Self {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client.send(ASK).await;
        let mut first = provider.call().await;
        first.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
        Self { provider, server, client, connection: first.wire }
    }
}

/// The request as it arrives on another connection, where it gets a response; `None` if the client gets 502.
async fn answered_on_another(provider: &Provider, client: &mut Wire) -> Option<Call> {
    let mut retry = tokio::select! {
        retry = provider.call() => retry,
        answer = client.response() => {
            assert_eq!(answer.status(), 502);
            return None;
        }
    };
    retry.answer("200 OK", "{\"b\":2}").await;
    assert_eq!(client.response().await.text(), "{\"b\":2}");
    Some(retry)
}

/// How many requests were sent again because a kept connection had closed.
fn repeats_of(server: &TestServer) -> u64 {
    repeats_for(server, "closed_while_idle")
}

fn repeats_for(server: &TestServer, cause: &str) -> u64 {
    let page = server.telemetry.render();
    let series = format!("plimsoll_upstream_repeats_total{{cause=\"{cause}\",upstream=\"up\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
}

/// The provider closes the kept connection when a request arrives, without reading it. On a slow machine this may come
/// too late to be believed, but not five times in a row.
async fn replaces(ask: &str) {
    for _ in 0..5 {
        let Kept { provider, server, mut client, connection } = Kept::new().await;
        client.send(ask).await;
        within("the request", connection.stream.readable()).await.unwrap();
        drop(connection);
        if let Some(retry) = answered_on_another(&provider, &mut client).await {
            assert_eq!(retry.message.text(), ask.split_once("\r\n\r\n").unwrap().1);
            assert_eq!(repeats_of(&server), 1);
            return;
        }
    }
    panic!("the request was never sent again");
}

#[tokio::test]
async fn connection_that_closed_while_idle_is_replaced() {
    replaces(ASK).await;
}

#[tokio::test]
async fn request_without_body_is_sent_again_if_idle_connection_closed() {
    replaces("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
}

/// The connection of a repeated request is kept like any other, and may be closed like any other.
#[tokio::test]
async fn provider_that_closes_after_each_response_loses_no_request() {
    'tries: for _ in 0..5 {
        let Kept { provider, server, mut client, mut connection } = Kept::new().await;
        for repeats in 1..=6 {
            client.send(ASK).await;
            within("the request", connection.stream.readable()).await.unwrap();
            drop(connection);
            let Some(retry) = answered_on_another(&provider, &mut client).await else {
                continue 'tries;
            };
            connection = retry.wire;
            assert_eq!(repeats_of(&server), repeats);
        }
        return;
    }
    panic!("a request was lost in every try");
}

#[tokio::test]
async fn request_on_fresh_connection_that_closes_is_not_sent_again() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    drop(provider.call().await);
    assert_eq!(client.response().await.status(), 502);
}

/// After many connections were in use at once, a few are kept and the others are closed.
#[tokio::test]
async fn idle_upstream_connections_are_limited_in_number() {
    const KEPT: usize = 128;
    const MANY: usize = KEPT + 12;
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.connections = Some(MANY);
    let server = TestServer::with(config).await;
    let (mut clients, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let mut client = Wire::connect(server.address).await;
        client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        calls.push(provider.call().await);
        clients.push(client);
    }
    for (client, call) in clients.iter_mut().zip(&mut calls) {
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
    let gone = |mut call: Call| async move { call.wire.gone().await };
    let mut closed: FuturesUnordered<_> = calls.into_iter().map(gone).collect();
    for _ in KEPT..MANY {
        closed.next().await.unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(300), closed.next()).await;
    assert!(more.is_err(), "one of those that are kept was closed");
    let idle = format!("plimsoll_upstream_idle_connections{{upstream=\"up\"}} {KEPT}\n");
    assert!(server.telemetry.render().contains(&idle));
}

/// The provider read the request, and may have worked on it.
#[tokio::test]
async fn request_that_was_read_and_not_answered_is_not_sent_again() {
    for pause in [150, 900] {
        let Kept { provider, server, mut client, connection } = Kept::new().await;
        client.send(ASK).await;
        let call = connection.request().await;
        sleep(Duration::from_millis(pause)).await;
        drop(call);
        tokio::select! {
            answer = client.response() => assert_eq!(answer.status(), 502),
            _ = provider.accept() => panic!("it is sent twice after {pause} ms"),
        }
        assert_eq!(repeats_of(&server), 0);
    }
}

#[tokio::test]
async fn request_that_was_answered_in_part_is_not_sent_again() {
    for part in
        ["H", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 103 Early Hints\r\n\r\n"]
    {
        let Kept { provider, server: _server, mut client, connection } = Kept::new().await;
        client.send(ASK).await;
        let mut call = connection.request().await;
        call.send(part).await;
        drop(call);
        tokio::select! {
            answer = client.response() => assert_eq!(answer.status(), 502, "{part:?}"),
            _ = provider.accept() => panic!("it is sent twice after {part:?}"),
        }
    }
}

/// A body that streams through cannot be sent again.
#[tokio::test]
async fn streamed_body_is_not_repeated() {
    let Kept { provider, server: _server, mut client, connection } = Kept::new().await;
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        .await;
    within("the request", connection.stream.readable()).await.unwrap();
    drop(connection);
    tokio::select! {
        answer = client.response() => assert_eq!(answer.status(), 502),
        _ = provider.accept() => panic!("half of it is sent again"),
    }
}

/// A provider that closes connections that are idle for this long, and counts the requests that it read.
struct IdleCloser {
    address: std::net::SocketAddr,
    read: Arc<Mutex<HashMap<String, usize>>>,
}

impl IdleCloser {
    async fn start(idle: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let read = Arc::<Mutex<HashMap<String, usize>>>::default();
        let counted = read.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(answers(stream, idle, counted.clone()));
            }
        });
        Self { address, read }
    }
}

/// Responds to requests until the connection is idle for `idle`.
async fn answers(
    stream: tokio::net::TcpStream,
    idle: Duration,
    read: Arc<Mutex<HashMap<String, usize>>>,
) {
    let mut wire = Wire::new(stream);
    loop {
        let mut call = wire.request().await;
        *read.lock().unwrap().entry(call.message.text().to_owned()).or_default() += 1;
        call.answer("200 OK", "{}").await;
        wire = call.wire;
        if timeout(idle, wire.stream.readable()).await.is_err() {
            return;
        }
        let mut first = [0];
        if matches!(wire.stream.peek(&mut first).await, Ok(0) | Err(_)) {
            return;
        }
    }
}

/// `PLIMSOLL_REUSED` sets the number of repetitions; some hundred by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn providers_that_close_idle_connections_get_each_request_exactly_once() {
    let many = std::env::var("PLIMSOLL_REUSED").map_or(300, |many| many.parse().unwrap());
    for idle in [1, 5, 20].map(Duration::from_millis) {
        let provider = IdleCloser::start(idle).await;
        let server = TestServer::before(&format!("http://{}", provider.address)).await;
        let mut asking = Vec::new();
        for client in 0..4 {
            let to = server.address;
            asking.push(tokio::spawn(async move {
                let mut wire = Wire::connect(to).await;
                for number in 0..many / 4 {
                    let body = format!("{{\"n\":\"{client} {number}\"}}");
                    let length = body.len();
                    wire.send(format!(
                        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
                    ))
                    .await;
                    let answer = wire.response().await;
                    assert_eq!(answer.status(), 200, "{body} after {idle:?}: {}", answer.text());
                    // Around the time at which the provider closes, before it and after it.
                    let about = idle.as_micros() as u64 * (80 + number % 41) / 100;
                    sleep(Duration::from_micros(about)).await;
                }
            }));
        }
        for one in asking {
            one.await.unwrap();
        }
        let read = provider.read.lock().unwrap();
        assert_eq!(read.len() as u64, many / 4 * 4);
        let twice: Vec<_> = read.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "sent twice after {idle:?}: {twice:?}");
        let [closed, unsent] = ["closed_while_idle", "not_sent"].map(|it| repeats_for(&server, it));
        let sent = many / 4 * 4;
        println!(
            "idle for {idle:?}: {sent} POSTs, {closed} sent again after a close, {unsent} that had not \
             left, 0 lost, 0 read twice"
        );
    }
}
