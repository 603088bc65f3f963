//! Many streams over HTTP/2 upstreams: no stream waits for another client's stream to end, and the peer's limits are
//! respected.

mod peer;

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use plimsoll::config::Config;
use tokio::task::JoinSet;

use self::peer::{Call, Event, NO_ERROR, Provider, REFUSED_STREAM};
use crate::support::http1::Wire;
use crate::support::server::TestServer;
use crate::support::{h2, within};

/// A client without a limit on its streams.
struct Client {
    connection: h2::Client,
    server: TestServer,
}

impl Client {
    async fn new(config: Config) -> Self {
        let server = TestServer::with(config).await;
        let connection = h2::Client::connect(server.address).await;
        Self { connection, server }
    }

    /// Sends a request, and reads the first byte; returns the rest of the body.
    async fn ask(&self) -> impl Future<Output = Incoming> + Send + use<> {
        self.ask_at("/v1/files").await
    }

    /// A request at an inference path is collected, so it can be sent twice.
    async fn ask_at(&self, path: &str) -> impl Future<Output = Incoming> + Send + use<> {
        let mut sender = self.connection.sender.clone();
        let request = Request::post(format!("http://localhost{path}"));
        let request = request.body(h2::whole("{\"a\":1}").await);
        async move {
            let response = within("an answer", sender.send_request(request.unwrap())).await;
            let (head, mut body) = response.unwrap().into_parts();
            let first = h2::next(&mut body).await;
            assert_eq!(head.status, 200, "{first:?}");
            assert_eq!(first.unwrap().unwrap(), "one");
            body
        }
    }

    /// A request that is answered to its end, so that its connection to the provider is idle and was of use.
    async fn is_answered(&self, provider: &mut Provider) {
        let asking = tokio::spawn(self.ask_at("/v1/messages").await);
        let call = provider.call().await;
        call.begin();
        call.end();
        assert_eq!(ended(asking.await.unwrap()).await, "two");
        self.rests().await;
    }

    /// Sends a request that can be sent twice over HTTP/1.1, which shows the status of its response.
    async fn post(&self) -> Wire {
        let mut wire = Wire::connect(self.server.address).await;
        wire.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
            .await;
        wire
    }

    /// The value of this metric for the upstream.
    fn metric(&self, name: &str) -> f64 {
        let text = self.server.telemetry.render();
        let line = format!("{name}{{upstream=\"up\"}} ");
        let found = text.lines().find_map(|it| it.strip_prefix(&line));
        found.unwrap_or_else(|| panic!("{name} is missing")).parse().unwrap()
    }

    /// Waits until no stream is counted.
    async fn rests(&self) {
        self.rests_but(0).await;
    }

    /// Waits until no more than this many streams are counted.
    async fn rests_but(&self, streams: usize) {
        within("no other stream is counted", async {
            while self.metric("plimsoll_upstream_streams") > streams as f64 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn ended(mut body: Incoming) -> Bytes {
    let mut all = Vec::new();
    while let Some(frame) = within("the rest", body.frame()).await {
        all.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    all.into()
}

/// All streams are open before any of them ends, over as few connections as possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_upstream_streams_start_at_once_over_few_connections() {
    for (streams, connections) in [(50, 1), (400, 4), (1000, 10)] {
        let mut provider = Provider::start(100).await;
        let client = Client::new(provider.config()).await;
        let mut asking = JoinSet::new();
        for _ in 0..streams {
            asking.spawn(client.ask().await);
        }
        let mut calls = Vec::new();
        for _ in 0..streams {
            let call = provider.call().await;
            call.begin();
            calls.push(call);
        }
        assert_eq!(provider.links(), connections, "{streams} streams");
        let bodies = asking.join_all().await;
        assert_eq!(client.metric("plimsoll_upstream_streams"), f64::from(streams));
        assert_eq!(client.metric("plimsoll_upstream_connections"), connections as f64);
        calls.iter().for_each(Call::end);
        for body in bodies {
            assert_eq!(ended(body).await, "two");
        }
        client.rests().await;
    }
}

/// The number in `docs/limits.md`: one more stream waits in the client until another has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_connection_carries_at_most_1000_streams_at_once() {
    const STREAMS: usize = 1000;
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let mut asking = JoinSet::new();
    let mut calls = Vec::new();
    for number in 0..=STREAMS {
        asking.spawn(client.ask().await);
        if number < STREAMS {
            let call = provider.call().await;
            call.begin();
            calls.push(call);
        }
    }
    let one_more = tokio::time::timeout(Duration::from_millis(300), provider.call()).await;
    assert!(one_more.is_err(), "a stream past the bound");
    assert_eq!(client.metric("plimsoll_upstream_streams"), STREAMS as f64);
    calls[0].end();
    let last = provider.call().await;
    last.begin();
    calls.push(last);
    calls[1..].iter().for_each(Call::end);
    for body in asking.join_all().await {
        assert_eq!(ended(body).await, "two");
    }
    client.rests().await;
    assert_eq!(client.metric("plimsoll_upstream_idle_connections"), provider.links() as f64);
}

/// With a constant number of streams, each new one once went to the same connection until that was full.
#[tokio::test]
async fn steady_number_of_streams_does_not_fill_one_connection() {
    const STEADY: usize = 200;
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let mut open = std::collections::VecDeque::new();
    for number in 0..2 * STEADY {
        if number >= STEADY {
            let (call, body): (Call, Incoming) = open.pop_front().unwrap();
            call.end();
            assert_eq!(ended(body).await, "two");
        }
        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        open.push_back((call, within("the first byte", asking).await.unwrap()));
    }
    assert!(provider.links() <= 3, "{} connections for two", provider.links());
}

#[tokio::test]
async fn peer_that_allows_one_stream_gets_one_on_each_connection() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let mut asking = JoinSet::new();
    for _ in 0..8 {
        asking.spawn(client.ask().await);
    }
    let mut calls = Vec::new();
    for _ in 0..8 {
        let call = provider.call().await;
        call.begin();
        calls.push(call);
    }
    assert_eq!(provider.links(), 8);
    let bodies = asking.join_all().await;
    calls.iter().for_each(Call::end);
    for body in bodies {
        ended(body).await;
    }
    client.rests().await;
    assert!(client.metric("plimsoll_upstream_wait_seconds_count") >= 8.0);
}

#[tokio::test]
async fn stream_limit_that_changes_in_mid_flight_is_obeyed() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        open.push((call, asking.await.unwrap()));
    }
    let first = open[0].0.link.clone();
    first.allow(3);
    while !matches!(provider.event().await, Event::Acknowledged(0)) {}
    let asking = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    assert_eq!(call.link.number, 1, "the first connection is full now");
    call.begin();
    drop(asking.await.unwrap());
    assert_eq!(first.open(), 3);
    // The limit is raised: there is room without a stream having ended.
    first.allow(4);
    while !matches!(provider.event().await, Event::Acknowledged(0)) {}
    let asking = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    assert_eq!(call.link.number, 0);
    call.begin();
    drop(asking.await.unwrap());
}

#[tokio::test]
async fn request_that_goaway_left_unprocessed_is_sent_again() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let first = tokio::spawn(client.ask().await);
    let kept = provider.call().await;
    kept.begin();
    let first = first.await.unwrap();
    let second = tokio::spawn(client.ask_at("/v1/messages").await);
    let call = provider.call().await;
    assert_eq!(call.link.number, 0);
    call.link.go_away(kept.stream);
    let retry = provider.call().await;
    assert_eq!(retry.link.number, 1, "another connection");
    retry.begin();
    retry.end();
    assert_eq!(ended(second.await.unwrap()).await, "two");
    // Streams that it works on continue; later ones go to another connection.
    let third = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    assert_eq!(call.link.number, 1);
    call.begin();
    drop(third.await.unwrap());
    kept.end();
    assert_eq!(ended(first).await, "two");
}

#[tokio::test]
async fn refused_stream_is_retried_elsewhere_limited_number_of_times() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let asking = tokio::spawn(client.ask_at("/v1/messages").await);
    let refused = provider.call().await;
    refused.reset(REFUSED_STREAM);
    let retry = provider.call().await;
    assert_eq!(retry.link.number, 1);
    retry.begin();
    drop(asking.await.unwrap());

    let mut wire = client.post().await;
    for _ in 0..3 {
        provider.call().await.reset(REFUSED_STREAM);
    }
    assert_eq!(wire.response().await.status(), 502);
}

/// Gateways reset a stream with `NO_ERROR` if what is behind them broke off. It is no end: the client would take half a
/// response for a whole one.
#[tokio::test]
async fn reset_without_error_breaks_client() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let asking = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    call.begin();
    let mut body = asking.await.unwrap();
    call.reset(NO_ERROR);
    assert!(within("the end", body.frame()).await.unwrap().is_err());
}

/// The peer may have begun to work on the request, also if it names the request's stream as its last.
#[tokio::test]
async fn request_is_not_resent_if_its_connection_closes() {
    for names_it in [false, true] {
        let mut provider = Provider::start(100).await;
        let client = Client::new(provider.config()).await;
        client.is_answered(&mut provider).await;
        let mut lost = client.post().await;
        let call = provider.call().await;
        assert_eq!(call.link.number, 0, "the idle connection");
        if names_it {
            call.link.go_away(call.stream);
        }
        call.link.close();
        tokio::select! {
            answer = lost.response() => assert_eq!(answer.status(), 502),
            _ = provider.call() => panic!("it is sent twice"),
        }
    }
}

#[tokio::test]
async fn leaving_gives_the_stream_back() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    // Once before the response's head, once in its body.
    for begins in [false, true] {
        let mut wire = Wire::connect(client.server.address).await;
        wire.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let call = provider.call().await;
        if begins {
            call.begin();
            wire.head().await;
        }
        drop(wire);
        while !matches!(provider.event().await, Event::Reset(0, stream) if stream == call.stream) {}
        client.rests().await;
    }
    assert_eq!(provider.links(), 1, "the connection goes on");
}

#[tokio::test]
async fn connection_that_breaks_takes_only_its_own_streams_with_it() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        open.push((call, asking.await.unwrap()));
    }
    let (broken, mut lost) = open.remove(0);
    broken.link.close();
    assert!(h2::next(&mut lost).await.is_none_or(|frame| frame.is_err()), "it is cut");
    let (call, body) = open.remove(0);
    call.end();
    assert_eq!(ended(body).await, "two");
    client.rests().await;
}

/// This takes 45 s: a silent peer is trusted that long, because reasoning models are silent, too.
#[tokio::test]
async fn silent_peer_is_given_up() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        open.push((call, asking.await.unwrap()));
    }
    let (silent, mut lost) = open.remove(0);
    silent.link.die_silently();
    let cut = tokio::time::timeout(std::time::Duration::from_secs(120), lost.frame()).await;
    assert!(cut.expect("it is given up").is_none_or(|frame| frame.is_err()));
    // The other connection continues, and new requests go to a new one.
    let asking = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    assert_eq!(call.link.number, 2);
    call.begin();
    call.end();
    assert_eq!(ended(asking.await.unwrap()).await, "two");
    let (call, body) = open.remove(0);
    call.end();
    assert_eq!(ended(body).await, "two");
    client.rests().await;
}

/// A request waits for its stream for a limited time, and frees its place in the queue.
#[tokio::test]
async fn request_without_free_upstream_stream_times_out_with_504() {
    let mut provider = Provider::start(100).await;
    let mut config = provider.config();
    config.limits.connect_s = 1;
    let client = Client::new(config).await;
    let asking = tokio::spawn(client.ask().await);
    let call = provider.call().await;
    call.begin();
    let body = asking.await.unwrap();
    // The connection is full, and so would be any other.
    provider.refuse_more();
    call.link.allow(1);
    while !matches!(provider.event().await, Event::Acknowledged(0)) {}
    let mut wire = Wire::connect(client.server.address).await;
    wire.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let answer = wire.response().await;
    assert_eq!(answer.status(), 504, "{}", answer.text());
    call.link.allow(100);
    call.end();
    assert_eq!(ended(body).await, "two");
    client.rests().await;
}

/// The first connection finds out the provider's protocol, and is then used.
#[tokio::test]
async fn provider_that_speaks_http1_over_tls_keeps_its_connections() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let certificates = h2::certificates();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config =
        crate::support::server::config(&format!("https://{}", listener.local_addr().unwrap()));
    config.extra_ca = Some(certificates.authority.clone());
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    let tls = h2::acceptor(&certificates, &[b"http/1.1"]);
    let mut stream = None;
    for _ in 0..3 {
        client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        if stream.is_none() {
            let (accepted, _) = within("a connection", listener.accept()).await.unwrap();
            stream = Some(within("TLS", tls.accept(accepted)).await.unwrap());
        }
        let stream = stream.as_mut().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within("a request on the same connection", stream.read_u8()).await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(client.response().await.status(), 200);
    }
}

/// Whatever reason a reset gives (NO_ERROR, INTERNAL_ERROR, CANCEL), the response did not end; nor did it if the
/// connection ends without an error.
#[tokio::test]
async fn reset_response_never_ends_well() {
    for reason in [Some(0), Some(2), Some(8), None] {
        let mut provider = Provider::start(100).await;
        let client = Client::new(provider.config()).await;
        let mut wire = client.post().await;
        let call = provider.call().await;
        call.begin();
        match reason {
            Some(reason) => call.reset(reason),
            None => call.link.go_away(0),
        }
        assert!(wire.head().await.starts_with("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"));
        let rest = wire.rest().await.unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&rest), "3\r\none\r\n", "{reason:?}");

        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        let mut body = asking.await.unwrap();
        match reason {
            Some(reason) => call.reset(reason),
            None => call.link.go_away(0),
        }
        let next = h2::next(&mut body).await;
        assert!(matches!(next, Some(Err(_))), "{reason:?}: {next:?}");
    }
}

/// Longer than a sign of life counts.
const SILENCE: Duration = Duration::from_millis(5200);

/// A connection that died unnoticed (NAT, sleep, another network): the next request finds out by a ping, and goes
/// elsewhere. So do those that come at the same time.
#[tokio::test]
async fn dead_connection_is_not_used() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let asking = tokio::spawn(client.ask().await);
        let call = provider.call().await;
        call.begin();
        open.push((call, asking.await.unwrap()));
    }
    for (call, body) in open {
        call.end();
        ended(body).await;
        call.link.die_silently();
    }
    client.rests().await;
    tokio::time::sleep(SILENCE).await;
    let began = std::time::Instant::now();
    let (mut one, mut other) = (client.post().await, client.post().await);
    for _ in 0..2 {
        let call = provider.call().await;
        assert!(call.link.number >= 3, "on a dead connection");
        call.begin();
        call.end();
    }
    assert_eq!(one.response().await.status(), 200);
    assert_eq!(other.response().await.status(), 200);
    assert!(began.elapsed() < Duration::from_secs(4), "one ping is waited for, not one for each");
}

/// A connection that dies within the time for which a sign of life counts: nothing comes after the request, nor after a
/// ping, so the request goes elsewhere. This takes 16 s.
#[tokio::test]
async fn request_on_frozen_connection_goes_elsewhere() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    client.is_answered(&mut provider).await;
    let mut wire = client.post().await;
    let lost = provider.call().await;
    lost.link.die_silently();
    tokio::time::sleep(2 * SILENCE).await;
    let call = provider.call().await;
    assert_eq!(lost.link.number, 0);
    assert_eq!(call.link.number, 1);
    call.begin();
    call.end();
    assert_eq!(wire.response().await.status(), 200);
}

/// A connection that lives is used on: its ping is answered.
#[tokio::test]
async fn pause_keeps_the_connection() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    client.is_answered(&mut provider).await;
    tokio::time::sleep(SILENCE).await;
    client.is_answered(&mut provider).await;
    assert_eq!(provider.links(), 1);
}

/// The peer lowers its limit after the request was placed: it is sent on another connection.
#[tokio::test]
async fn request_whose_stream_is_never_allowed_goes_elsewhere() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    client.is_answered(&mut provider).await;
    let first = tokio::spawn(client.ask_at("/v1/messages").await);
    let call = provider.call().await;
    call.begin();
    let body = first.await.unwrap();
    call.link.close_on_ping();
    tokio::time::sleep(SILENCE).await;
    let mut wire = client.post().await;
    let retry = provider.call().await;
    assert_eq!(retry.link.number, 1);
    retry.begin();
    retry.end();
    assert_eq!(wire.response().await.status(), 200);
    // The first one, which is under way, goes on.
    call.end();
    assert_eq!(ended(body).await, "two");
}

/// Others use all streams, and the provider accepts no connection for a moment.
#[tokio::test]
async fn connection_that_cannot_be_opened_is_opened_later() {
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let first = tokio::spawn(client.ask().await);
    provider.call().await.begin();
    let _body = first.await.unwrap();
    provider.refuse_more();
    let mut wire = client.post().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    provider.accept_again();
    let call = provider.call().await;
    assert_eq!(call.link.number, 1);
    call.begin();
    call.end();
    assert_eq!(wire.response().await.status(), 200);
}

/// One failure may be an accident: all requests that waited for the connection wait for another one.
#[tokio::test]
async fn one_failed_dial_fails_no_request() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    provider.refuse(1);
    let mut wires = Vec::new();
    for _ in 0..5 {
        wires.push(client.post().await);
    }
    for _ in 0..5 {
        let call = provider.call().await;
        call.begin();
        call.end();
    }
    for mut wire in wires {
        assert_eq!(wire.response().await.status(), 200);
    }
}

/// A client that was told the length leaves after the last byte. The end may come later, in a frame of its own.
#[tokio::test]
async fn response_whose_end_comes_late_is_not_reset() {
    let mut provider = Provider::start(100).await;
    let client = Client::new(provider.config()).await;
    let mut wire = client.post().await;
    let call = provider.call().await;
    call.begin_whole();
    assert_eq!(wire.response().await.text(), "one");
    // A stream that was reset would be seen before the next one.
    let mut next_wire = client.post().await;
    let next_call = loop {
        match provider.event().await {
            Event::Call(call) => break call,
            Event::Acknowledged(_) => {}
            event => panic!("{event:?}"),
        }
    };
    call.end_with(b"");
    next_call.begin();
    next_call.end();
    assert_eq!(next_wire.response().await.status(), 200);
    client.rests().await;
}

/// Requests share a connection, so each adds 10, and its own response, to what it may bring. A request on another
/// connection goes on.
#[tokio::test]
async fn http2_upstream_that_sends_1xx_for_ever_is_given_up() {
    const MOST: usize = 1000;
    let mut provider = Provider::start(1).await;
    let client = Client::new(provider.config()).await;
    let mut first = client.post().await;
    let other_call = provider.call().await;
    let mut second = client.post().await;
    let call = provider.call().await;
    assert_ne!(call.link.number, other_call.link.number);
    call.interim(MOST);
    call.begin();
    call.end();
    assert_eq!(
        second.response().await.status(),
        200,
        "at the limit, which counts from the newest request"
    );
    client.rests_but(1).await;
    second = client.post().await;
    let call = provider.call().await;
    call.interim(MOST + 2);
    let refused = second.response().await;
    assert_eq!(refused.status(), 502, "past it");
    assert!(refused.text().contains("too many 1xx"), "{}", refused.text());
    other_call.begin();
    other_call.end();
    assert_eq!(first.response().await.status(), 200);
}
