//! Many clients at once, on several threads: no stream is lost, mixed up with another or recorded twice.

use std::collections::HashMap;

use plimsoll::context::Outcome;
use tokio::task::JoinSet;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::within;

const CLIENTS: usize = 40;
const REQUESTS: usize = 5;

/// Responds to every request on a connection with a stream that contains the request's name.
async fn answer(mut call: Call) {
    loop {
        let name = call.message.header("x-name").expect("a name").to_owned();
        call.begin_events().await;
        call.chunk(format!("event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{name}\",\"role\":\"assistant\",\"usage\":{{\"input_tokens\":7,\"output_tokens\":1}}}}}}\n\n")).await;
        for number in 0..10 {
            call.chunk(format!(": {name} {number}\n\n")).await;
        }
        call.chunk("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n").await;
        call.end().await;
        call = call.wire.request().await;
    }
}

async fn ask(address: std::net::SocketAddr, client: usize) {
    let mut wire = Wire::connect(address).await;
    for request in 0..REQUESTS {
        let name = format!("c{client}r{request}");
        let body = format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":9,"stream":true,"messages":[{{"role":"user","content":"I am {name}."}}]}}"#
        );
        wire.send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-name: {name}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        let response = wire.response().await;
        let text = response.text();
        assert!(text.contains(&format!("\"id\":\"{name}\"")), "{text}");
        assert_eq!(text.matches(&format!(": {name} ")).count(), 10, "{text}");
        assert!(text.ends_with("data: {\"type\":\"message_stop\"}\n\n"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_concurrent_streams_are_each_served_and_recorded_once() {
    let provider = Provider::start().await;
    let mut server = TestServer::with(config(&provider.base())).await;
    let address = server.address;
    let mut clients: JoinSet<()> = (0..CLIENTS).map(|client| ask(address, client)).collect();
    let mut answers = JoinSet::new();
    let mut recorded = HashMap::new();
    let mut asking = CLIENTS;
    while asking > 0 || recorded.len() < CLIENTS * REQUESTS {
        tokio::select! {
            wire = provider.accept(), if asking > 0 => {
                answers.spawn(async { answer(wire.request().await).await });
            }
            Some(done) = clients.join_next() => {
                done.expect("a client");
                asking -= 1;
            }
            event = server.next_exchange() => {
                assert_eq!(event.outcome, Outcome::Complete, "{event:?}");
                assert_eq!(event.usage.input, Some(7));
                assert_eq!(event.usage.output, Some(3));
                assert_eq!(recorded.insert(event.id.clone(), ()), None, "recorded twice");
            }
        }
    }
    server.expect_no_exchange();
    server.stop();
    within("the drain", server.drained()).await;
}
