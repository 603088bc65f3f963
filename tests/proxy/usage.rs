//! Usage is requested if the client did not request it, and the client never sees it.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{IncludeUsage, Mode};
use plimsoll::context::Outcome;
use plimsoll::context::budget::HiddenInput;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Scope, Store};
use plimsoll::telemetry::FailOpen;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{wire, within};

const BODY: &str = "{\"model\": \"gpt-4o\", \"stream\":true,\"n\":1e0, \"messages\":[{\"role\":\"user\",\"content\":\"\\u0048i\"}] }\n";
const WITH_USAGE: &str = "{\"model\": \"gpt-4o\", \"stream\":true,\"n\":1e0, \"messages\":[{\"role\":\"user\",\"content\":\"\\u0048i\"}] ,\"stream_options\":{\"include_usage\":true}}\n";

async fn ask(server: &TestServer, body: &str) -> Wire {
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip, br\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    client
}

/// The upstream's events, and what the client gets, who did not request usage. An upstream may send `"usage":null` on
/// its own.
fn events() -> Vec<(&'static str, String)> {
    let shown = |event: &str| {
        if event.contains("\"choices\":[]") { String::new() } else { event.to_owned() }
    };
    wire::chat().events.into_iter().map(|event| (event, shown(event))).collect()
}

/// Invariant 2: outside the edit, the sent bytes are the received ones.
#[tokio::test]
async fn invariant_2_usage_is_requested_by_splicing_and_its_traces_are_hidden() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, BODY).await;
    let mut call = provider.call().await;
    assert_eq!(call.message.text(), WITH_USAGE);
    assert_eq!(call.message.header("content-length"), Some(WITH_USAGE.len().to_string().as_str()));
    assert_eq!(call.message.header("accept-encoding"), Some("identity"));
    call.begin_events().await;
    client.head().await;
    for (sent, shown) in events() {
        call.chunk(sent).await;
        if !shown.is_empty() {
            assert_eq!(String::from_utf8(client.chunk().await).unwrap(), shown);
        }
    }
    call.end().await;
    assert_eq!(client.chunk().await, b"");
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.usage.input, Some(10));
    assert_eq!(exchange.usage.output, Some(2));
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(exchange.fail_open, []);
}

#[tokio::test]
async fn requested_usage_is_hidden_in_compressed_stream_too() {
    use crate::support::coding::Encoder;
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, BODY).await;
    let mut call = provider.call().await;
    let whole: String = events().iter().map(|(sent, _)| *sent).collect();
    let body = Encoder::whole("gzip", whole.as_bytes());
    call.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    ))
    .await;
    call.send(body).await;
    let response = client.response().await;
    assert_eq!(response.header("content-encoding"), None);
    let want: String = events().into_iter().map(|(_, shown)| shown).collect();
    assert_eq!(response.text(), want);
}

#[tokio::test]
async fn requested_usage_is_all_there() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let script = wire::chat();
    let mut client = ask(&server, script.request).await;
    let mut call = provider.call().await;
    assert_eq!(call.message.text(), script.request);
    assert_eq!(call.message.header("accept-encoding"), Some("gzip, br"));
    call.begin_events().await;
    client.head().await;
    for event in script.events {
        call.chunk(event).await;
        assert_eq!(client.chunk().await, event.as_bytes());
    }
}

#[tokio::test]
async fn usage_is_not_requested_if_policy_or_request_excludes_it() {
    let provider = Provider::start().await;
    let mut never = config(&provider.base());
    never.upstreams[0].include_usage = IncludeUsage::Never;
    for (config, body) in [
        (never, BODY),
        (config(&provider.base()), "{\"model\":\"m\",\"messages\":[]}"),
        (config(&provider.base()), "{\"stream\":true,\"stream_options\":null,\"messages\":[]}"),
    ] {
        let server = TestServer::with(config).await;
        let _client = ask(&server, body).await;
        let call = provider.call().await;
        assert_eq!(call.message.text(), body);
    }
}

async fn refuse(call: &mut Call, status: &str) {
    call.answer(status, "{\"error\":{\"message\":\"Unknown parameter: 'stream_options'.\"}}").await;
}

/// A 400 that our edit caused: the original is sent once more, and the lesson is learned.
#[tokio::test]
async fn refusal_of_usage_field_is_learned_and_original_sent() {
    for status in ["400 Bad Request", "422 Unprocessable Entity"] {
        let provider = Provider::start().await;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let over =
            |store| TestServer::over(store, config(&provider.base()), Matcher::builder().build());
        let mut server = over(store.clone()).await;
        let mut client = ask(&server, BODY).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), WITH_USAGE);
        refuse(&mut call, status).await;
        let mut retry = tokio::select! {
            retry = provider.call() => retry,
            retry = call.wire.request() => retry,
        };
        assert_eq!(retry.message.text(), BODY);
        assert_eq!(retry.message.header("accept-encoding"), Some("gzip, br"));
        retry.begin_events().await;
        retry.chunk("data: [DONE]\n\n").await;
        retry.end().await;
        assert_eq!(client.response().await.text(), "data: [DONE]\n\n");
        assert_eq!(server.next_exchange().await.fail_open, [FailOpen::RewriteRefused]);

        let _client = ask(&server, BODY).await;
        let next = tokio::select! {
            next = provider.call() => next,
            next = retry.wire.request() => next,
        };
        assert_eq!(next.message.text(), BODY, "learned");
        // It applies after a restart, too, once the lesson is in the store.
        let day = UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 3600);
        let session = format!("~lessons of day {day}").into();
        let scope = Scope { tenant: "".into(), session };
        within("the lesson", async {
            while store.scan(scope.clone(), 1).await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let restarted = over(store).await;
        let _client = ask(&restarted, BODY).await;
        assert_eq!(provider.call().await.message.text(), BODY, "remembered");
    }
}

/// Observe and shadow also request usage and hide it. If a refusal names the field, the request is sent once more
/// without it.
#[tokio::test]
async fn every_mode_asks_for_usage() {
    for mode in [Mode::Shadow, Mode::Observe] {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        config.mode = mode;
        let mut server = TestServer::with(config).await;
        let mut client = ask(&server, BODY).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), WITH_USAGE, "{mode:?}");
        call.begin_events().await;
        client.head().await;
        for (sent, shown) in events() {
            call.chunk(sent).await;
            if !shown.is_empty() {
                assert_eq!(String::from_utf8(client.chunk().await).unwrap(), shown);
            }
        }
        call.end().await;
        assert_eq!(client.chunk().await, b"");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.usage.input, Some(10));
        assert_eq!(exchange.outcome, Outcome::Complete);

        let mut client = ask(&server, BODY).await;
        let mut call = tokio::select! {
            next = provider.call() => next,
            next = call.wire.request() => next,
        };
        assert_eq!(call.message.text(), WITH_USAGE, "{mode:?}");
        refuse(&mut call, "400 Bad Request").await;
        let mut retry = tokio::select! {
            retry = provider.call() => retry,
            retry = call.wire.request() => retry,
        };
        assert_eq!(retry.message.text(), BODY, "{mode:?}");
        retry.begin_events().await;
        retry.chunk("data: [DONE]\n\n").await;
        retry.end().await;
        assert_eq!(client.response().await.text(), "data: [DONE]\n\n");
        assert_eq!(server.next_exchange().await.fail_open, [FailOpen::RewriteRefused]);
    }
}

/// A refusal that does not name our field is the client's: it is forwarded at once, nothing is sent twice, and nothing
/// is learned.
#[tokio::test]
async fn refusal_that_does_not_name_usage_field_is_forwarded() {
    const GONE: &str = r#"{"error":{"message":"The model `m` has been deprecated."}}"#;
    for (mode, status, refusal) in [
        (Mode::Observe, "404 Not Found", GONE),
        (Mode::Active, "404 Not Found", GONE),
        (Mode::Active, "400 Bad Request", r#"{"error":1}"#),
        (Mode::Active, "422 Unprocessable Entity", r#"{"detail":"temperature"}"#),
    ] {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        config.mode = mode;
        let mut server = TestServer::with(config).await;
        let mut client = ask(&server, BODY).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), WITH_USAGE);
        call.answer(status, refusal).await;
        let response = client.response().await;
        assert_eq!(response.text(), refusal, "{mode:?} {status}");
        assert_eq!(server.next_exchange().await.fail_open, []);
        let _client = ask(&server, BODY).await;
        let next = tokio::select! {
            next = provider.call() => next,
            next = call.wire.request() => next,
        };
        assert_eq!(next.message.text(), WITH_USAGE, "the next request, and still asked for");
    }
}

#[tokio::test]
async fn stream_that_breaks_while_something_is_hidden_breaks_for_client() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, BODY).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk("data: {\"choices\":[{\"delta\":{}}],\"us").await;
    client.head().await;
    drop(call);
    assert_eq!(client.chunk().await, b"data: {\"choices\":[{\"delta\":{}}],\"us");
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
    assert_eq!(server.next_exchange().await.outcome, Outcome::UpstreamFailed);
}

/// Input that is in no request is no counting error: it has its own metric, and the view gives the reason.
#[tokio::test]
async fn hidden_input_is_no_error() {
    let hosted = r#"{"id":"msg_1","type":"message","role":"assistant","content":[
        {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"tram"}},
        {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]},
        {"type":"text","text":"At noon."}],"stop_reason":"end_turn",
        "usage":{"input_tokens":62000,"output_tokens":9,"server_tool_use":{"web_search_requests":1}}}"#;
    let held = r#"{"id":"resp_2","object":"response","status":"completed","model":"gpt-5","output":[
        {"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"Yes."}]}],
        "usage":{"input_tokens":19000,"output_tokens":3,"total_tokens":19003}}"#;
    let seen = r#"{"id":"msg_2","type":"message","role":"assistant","content":[
        {"type":"text","text":"Yes."}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":3}}"#;
    let messages = r#"{"model":"claude-sonnet-4-5","max_tokens":99,"messages":[{"role":"user","content":"When?"}]}"#;
    let continued = r#"{"model":"gpt-5","previous_response_id":"resp_1","input":"And then?"}"#;
    // The provider's instructions for a compaction are in no request, and only the provider can read the result.
    // Recorded: 156 tokens for a history of 60, and 276 with a compaction of 2,764 bytes at its start.
    let item = |bytes: usize| {
        format!(r#"{{"type":"compaction","id":"cmp","encrypted_content":"{}"}}"#, "g".repeat(bytes))
    };
    let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
    let history = format!(r#"{{"model":"gpt-4.1","input":[{}]}}"#, user("What is 2+2?"));
    let compacted = format!(
        r#"{{"id":"resp_3","object":"response.compaction","output":[{},{}],
        "usage":{{"input_tokens":156,"output_tokens":190,"total_tokens":346}}}}"#,
        user("What is 2+2?"),
        item(2_808)
    );
    let begins = format!("{},{}", item(2_764), user("And 4+4?"));
    let after = format!(r#"{{"model":"gpt-4.1","input":[{begins}]}}"#);
    let eight = r#"{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"4 + 4 = 8"}]}"#;
    let answer = |id: &str, input: u64| {
        format!(
            r#"{{"id":"{id}","object":"response","status":"completed","model":"gpt-4.1","output":[{eight}],
            "usage":{{"input_tokens":{input},"output_tokens":8,"total_tokens":{}}}}}"#,
            input + 8
        )
    };
    let (first, then) = (answer("resp_4", 276), answer("resp_5", 294));
    let grown = format!(r#"{{"model":"gpt-4.1","input":[{begins},{eight},{}]}}"#, user("And 5+5?"));
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    for (path, body, answer, hidden) in [
        ("/v1/messages", messages, hosted, Some(HiddenInput::HostedTools)),
        ("/v1/responses", continued, held, Some(HiddenInput::Continuation)),
        ("/v1/messages", messages, seen, None),
        ("/v1/responses/compact", &history, &compacted, Some(HiddenInput::ProviderEdit)),
        ("/v1/responses", &after, &first, Some(HiddenInput::ProviderEdit)),
        // With a parent turn, its cost is known.
        ("/v1/responses", &grown, &then, None),
    ] {
        let mut client = Wire::connect(server.address).await;
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: sk-1\r\n");
        client.send(format!("{head}content-length: {length}\r\n\r\n{body}")).await;
        provider.call().await.answer("200 OK", answer).await;
        client.response().await;
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.hidden_input(), hidden, "{path}");
        assert!(exchange.error().is_some(), "{path}");
        if body.contains("compaction") {
            // It is estimated from the encrypted length. Without that, the estimate was wrong by 264.
            assert!(exchange.error().unwrap().abs() < 20, "{body}: {:?}", exchange.error());
        }
    }
    let page = server.telemetry.render();
    let sum = |start: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(start));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    assert_eq!(sum("plimsoll_estimates_comparable_total{"), 2.0, "{page}");
    assert_eq!(sum("plimsoll_estimate_error_tokens_count{"), 2.0);
    assert_eq!(sum("plimsoll_estimate_compared_tokens_total{"), 9.0 + 294.0);
    assert_eq!(sum("plimsoll_hidden_input_total{"), 4.0);
    for label in ["hosted_tools", "continuation", "provider_edit"] {
        assert!(page.contains(&format!("hidden_input=\"{label}\"")), "{label}");
    }
}
