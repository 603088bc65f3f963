//! What calls cost beside their tokens' prices: caches that have gone or live long, tags, turns of the user.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::context::Fact;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Record, RecordKind, ScopePage, Store};
use serde_json::{Value, json};

use crate::support::http1::{Message, Provider, Wire};
use crate::support::looking::Looking;
use crate::support::server::{TestServer, config};

/// A request of the session `s`.
fn request(system: &str, messages: &Value) -> Value {
    json!({"model": "claude-opus-5-5", "max_tokens": 9, "system": system, "messages": messages})
}

fn text(usage: &Value) -> Value {
    reply(&json!([{"type": "text", "text": "The tide is in."}]), "end_turn", usage)
}

fn reply(content: &Value, stop: &str, usage: &Value) -> Value {
    json!({
        "id": "m", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
        "content": content, "stop_reason": stop, "usage": usage
    })
}

async fn call(
    server: &mut TestServer,
    provider: &Provider,
    headers: &str,
    request: &Value,
    reply: &Value,
) -> Message {
    let mut client = Wire::connect(server.address).await;
    let request = request.to_string();
    let length = request.len();
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: s\r\n\
             {headers}content-length: {length}\r\n\r\n{request}"
        ))
        .await;
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    let response = client.response().await;
    server.next_exchange().await;
    response
}

/// Makes all turns an hour older.
async fn age(store: &dyn Store) {
    for line in store.scopes(ScopePage::first(9)).await.unwrap() {
        let mut records = store.scan(line.scope.clone(), 99).await.unwrap();
        for record in &mut records {
            let Ok(Fact::Turn(mut turn)) = serde_json::from_slice(&record.value) else { continue };
            let earlier = Arc::make_mut(&mut turn);
            earlier.at -= 3_600_000;
            earlier.ended -= 3_600_000;
            let value = serde_json::to_vec(&Fact::Turn(turn)).unwrap();
            *record = Record { kind: RecordKind::Turn, value: value.into(), ..record.clone() };
        }
        store.drop_scope(line.scope.clone()).await.unwrap();
        store.put_if_absent(line.scope, records).await.unwrap();
    }
}

/// Opus 5.5 reads at $0.20 and writes at $5 a million: 100,000 tokens that are gone from the cache cost half a dollar.
#[tokio::test]
async fn resumed_session_tells_its_price() {
    let provider = Provider::start().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let start = async || {
        TestServer::over(store.clone(), config(&provider.base()), Matcher::builder().build()).await
    };
    let usage = json!({
        "input_tokens": 10, "cache_creation_input_tokens": 100_000, "cache_read_input_tokens": 0,
        "output_tokens": 10
    });
    let question = json!({"role": "user", "content": "Is the tide in?"});
    let said = json!({"role": "assistant", "content": "The tide is in."});
    let first = request("You watch the tide.", &json!([question]));
    let next = request("You watch the tide.", &json!([question, said, question]));
    let mut server = start().await;
    let told = call(&mut server, &provider, "", &first, &text(&usage)).await;
    assert_eq!(told.header("x-plimsoll-cold-input"), None, "nothing was cached before");
    let told = call(&mut server, &provider, "", &next, &text(&usage)).await;
    assert_eq!(told.header("x-plimsoll-cold-input"), None, "it is still cached");
    server.stop();
    server.drained().await;
    age(&*store).await;
    let mut server = start().await;
    let told = call(&mut server, &provider, "", &next, &text(&usage)).await;
    let dollars = told.header("x-plimsoll-cold-input").expect("its price");
    assert!(dollars.starts_with("0.50"), "{dollars}");
}

/// $8 a million for an hour instead of $5: some gateways report one sum, and Anthropic two.
#[tokio::test]
async fn writes_without_split_cost_as_asked() {
    let provider = Provider::start().await;
    let mut server = TestServer::with(config(&provider.base())).await;
    let sum =
        json!({"input_tokens": 0, "cache_creation_input_tokens": 100_000, "output_tokens": 0});
    let mut split = sum.clone();
    split["cache_creation"] =
        json!({"ephemeral_5m_input_tokens": 100_000, "ephemeral_1h_input_tokens": 0});
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let short = json!({"type": "ephemeral"});
    let cases: [(&[&Value], &Value, f64); 4] = [
        (&[&hour, &hour], &sum, 0.8),
        (&[&hour, &short], &sum, 0.5),
        (&[&short], &sum, 0.5),
        (&[&hour], &split, 0.5),
    ];
    for (number, (markers, usage, dollars)) in cases.into_iter().enumerate() {
        let blocks: Vec<Value> = markers
            .iter()
            .map(|marker| json!({"type": "text", "text": "Hail.", "cache_control": marker}))
            .collect();
        let body = request("You greet.", &json!([{"role": "user", "content": blocks}]));
        let mut client = Wire::connect(server.address).await;
        let body = body.to_string();
        client
            .send(format!(
                "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        provider.call().await.answer("200 OK", &text(usage).to_string()).await;
        client.response().await;
        let cost = server.next_exchange().await.dollars.expect("a price");
        assert!((cost - dollars).abs() < 1e-9, "case {number}: {cost}, not {dollars}");
    }
}

/// The main line asks for two things; the first takes a tool and a sub-agent.
#[tokio::test]
async fn cost_of_message_includes_its_sub_agents() {
    let provider = Provider::start().await;
    let config = config(&provider.base());
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let usage = json!({"input_tokens": 100_000, "output_tokens": 0});
    let question = json!({"role": "user", "content": "Is the tide in?"});
    let asked = json!([{"type": "tool_use", "id": "t1", "name": "Task", "input": {}}]);
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "It is."}
    ]});
    let calling = json!({"role": "assistant", "content": asked});
    let said = json!({"role": "assistant", "content": "The tide is in."});
    let main = "You watch the tide.";
    for (request, reply) in [
        (request(main, &json!([question])), reply(&asked, "tool_use", &usage)),
        (request("You look.", &json!([{"role": "user", "content": "Look."}])), text(&usage)),
        (request(main, &json!([question, calling, result])), text(&usage)),
        (request(main, &json!([question, calling, result, said, question])), text(&usage)),
    ] {
        call(&mut server, &provider, "", &request, &reply).await;
    }
    let costs = |spent: &Value| -> Vec<f64> {
        let lines = spent["lines"].as_array().expect("lines").iter();
        lines.map(|line| (line["dollars"].as_f64().unwrap() * 10.0).round() / 10.0).collect()
    };
    let turns = looking.json("/api/v1/spend?by=turn").await;
    assert_eq!(costs(&turns), [1.2, 0.4], "{turns}");
    let name = turns["lines"][0]["name"].as_str().expect("a name");
    let exchange = name.rsplit(' ').next().expect("an id");
    let explained = looking.get(&format!("/api/v1/requests/{exchange}/explain")).await;
    assert_eq!(explained.status(), 200, "its first request is named: {name}");
    let threads = looking.json("/api/v1/spend?by=thread").await;
    assert_eq!(costs(&threads), [1.2, 0.4], "{threads}");
}

/// Only tags that are named become labels, and only the first fifty values of each.
#[tokio::test]
async fn named_tags_are_labels() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.metrics_tags = vec!["team".to_owned()];
    let looked_at = config.clone();
    let mut server = TestServer::with(config).await;
    let looking = Looking::at(&server, &looked_at).await;
    let usage = json!({"input_tokens": 100_000, "output_tokens": 0});
    let body = request("You greet.", &json!([{"role": "user", "content": "Hail."}]));
    for team in 0..52 {
        let headers = format!("x-plimsoll-tags: team={team}, env=ci\r\n");
        call(&mut server, &provider, &headers, &body, &text(&usage)).await;
    }
    let metrics = looking.get("/metrics").await;
    let metrics = metrics.text();
    for (value, dollars) in [("7", "0.4"), ("other", "0.8")] {
        let line =
            format!("plimsoll_tag_cost_dollars_total{{tag=\"team\",value=\"{value}\"}} {dollars}");
        assert!(metrics.contains(&line), "{line}");
    }
    assert!(metrics.contains("plimsoll_tag_tokens_total{tag=\"team\",value=\"7\"} 100000"));
    assert!(!metrics.contains("env"), "it is not named");
}
