//! What responses taught about counting survives a slow store.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Scope, Store};
use serde_json::{Value, json};

use crate::support::held::Held;
use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::within;

async fn server(provider: &Provider, store: Arc<dyn Store>) -> TestServer {
    let mut config = config(&provider.base());
    config.limits.store_ms = 5;
    TestServer::over(store, config, Matcher::builder().build()).await
}

/// A first call of a new conversation, which teaches the cost of its head.
async fn teaches(server: &mut TestServer, provider: &Provider, number: usize) {
    let mut client = Wire::connect(server.address).await;
    let text = format!("Question {number}: how deep is it?");
    let ask = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "system": format!("Be calm, {number}."),
        "messages": [{"role": "user", "content": text}]});
    let ask = ask.to_string();
    let length = ask.len();
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-length: {length}\r\n\r\n{ask}"
        ))
        .await;
    let reply = json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "Deep."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 30, "output_tokens": 2}});
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    client.response().await;
    server.next_exchange().await;
}

/// How many lessons the next process would start with.
async fn newest(store: &Arc<dyn Store>) -> u64 {
    let series = Scope::series("counting claude-sonnet-4-5 behind up");
    let newest = store.scan(series, 1).await.unwrap().pop();
    newest.map_or(0, |record| {
        let state: Value = serde_json::from_slice(&record.value).unwrap();
        state["observations"].as_u64().unwrap()
    })
}

#[tokio::test]
async fn slow_store_read_does_not_erase_or_shrink_learned_state() {
    let provider = Provider::start().await;
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut before = server(&provider, memory.clone()).await;
    for number in 0..8 {
        teaches(&mut before, &provider, number).await;
    }
    let saved = async {
        while newest(&memory).await < 8 {
            tokio::task::yield_now().await;
        }
    };
    within("what was learned to be saved", saved).await;

    let store = Held::over(memory.clone());
    let mut after = server(&provider, store.clone()).await;
    store.hold_reads(true);
    for number in 10..15 {
        teaches(&mut after, &provider, number).await;
        assert_eq!(newest(&memory).await, 8, "what is here is less");
    }
    store.hold_reads(false);
    // The late state is merged, and continues to grow: it is saved again at the next power of two.
    let joined = async {
        for number in 20.. {
            teaches(&mut after, &provider, number).await;
            let newest = newest(&memory).await;
            assert!(newest == 8 || newest == 16, "{newest}");
            if newest == 16 {
                return number - 20;
            }
        }
        unreachable!()
    };
    let taught = within("what is learned to be saved again", joined).await;
    assert!(taught < 16, "{taught}: it grew from what was saved");
}
