//! What was cut stays cut: after `kill -9`, the first request of each session is sent with the cuts of the last one,
//! byte for byte (`docs/rewriting.md` "Rules for every rewrite").

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use scripted_provider::strict::{self, LoggedRequest, Rules, StrictProvider};
use serde_json::{Value, json};

use crate::{rounds, start};

const CLIENTS: usize = 4;
/// The placeholder of a cut result.
const CLEARED: &str = "[Old tool result content cleared]";
/// Old results are cut a few at a time, as soon as that saves enough.
const POLICY: [(&str, &str); 6] = [
    ("PLIMSOLL_PRUNE_GATE", "always"),
    ("PLIMSOLL_PRUNE_PROTECT_TOKENS", "0"),
    ("PLIMSOLL_PRUNE_PROTECT_MESSAGES", "2"),
    ("PLIMSOLL_PRUNE_MIN_MESSAGES", "0"),
    ("PLIMSOLL_PRUNE_MIN_SAVING_TOKENS", "2000"),
    // The limit on this wait has tests of its own.
    ("PLIMSOLL_LIMITS_STORE_MS", "10000"),
];

/// The history that each session's client has.
type Histories = Arc<Mutex<HashMap<String, Vec<Value>>>>;

#[tokio::test(flavor = "multi_thread")]
async fn cuts_are_repeated_in_first_request_after_kill_9() {
    let provider = StrictProvider::new(Rules::default(), 7);
    let serving = strict::serve(provider.clone()).await.unwrap();
    let data = tempfile::tempdir().unwrap();
    let histories = Histories::default();
    let mut last: HashMap<String, Vec<Value>> = HashMap::new();
    let (mut crashes, mut cuts) = (0, 0);
    for round in 0..rounds() {
        let (mut child, address) = start(data.path(), serving.address(), &POLICY).await;
        let clients = (0..CLIENTS).map(|n| {
            tokio::spawn(talk(address, format!("cut-{}-{n}", round / 4), histories.clone()))
        });
        let clients: Vec<_> = clients.collect();
        let moment = rand::random_range(200..900);
        tokio::time::sleep(Duration::from_millis(moment)).await;
        child.kill().await.unwrap();
        for client in clients {
            client.abort();
            let _ = client.await;
        }
        let mut begun = HashSet::new();
        for entry in provider.take_log() {
            let (session, sent) = read(&entry);
            let before = last.insert(session.clone(), sent.clone()).unwrap_or_default();
            let kept = repeats(&before, &sent)
                .unwrap_or_else(|what| panic!("round {round}, {session}: {what}"));
            let is_first = begun.insert(session) && !before.is_empty();
            crashes += usize::from(is_first);
            cuts += if is_first { kept } else { 0 };
        }
    }
    println!("{crashes} first requests after a crash, with {cuts} cuts repeated");
    assert!(crashes > 0, "nothing was tested: {crashes} requests, {cuts} cuts");
    assert!(cuts > 0, "nothing was tested: {crashes} requests, {cuts} cuts");
}

/// The session of a request, and its messages; panics if it was refused.
fn read(entry: &LoggedRequest) -> (String, Vec<Value>) {
    let body = &entry.request.body;
    assert_eq!(entry.verdict.broken_rule(), None, "{:?}", entry.verdict);
    let session = body["system"].as_str().unwrap().to_owned();
    (session, body["messages"].as_array().unwrap().clone())
}

/// Checks that `sent` begins with what was sent before, except for new cuts; returns how many cuts it repeats.
fn repeats(before: &[Value], sent: &[Value]) -> Result<usize, String> {
    let mut kept = 0;
    for (at, was) in before.iter().enumerate() {
        let now = sent.get(at).unwrap_or(&Value::Null);
        let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
        let (was_blocks, blocks) = (blocks(was), blocks(now));
        let pairs = || was_blocks.iter().zip(&blocks);
        let newly_cut = |(was, now): (&Value, &Value)| {
            was["content"] != CLEARED && now["content"] == CLEARED && was["type"] == "tool_result"
        };
        let same = was_blocks.len() == blocks.len()
            && pairs().all(|pair| pair.0 == pair.1 || newly_cut(pair));
        if was != now && (blocks.is_empty() || !same) {
            return Err(format!("message {at} was sent as {was}, and now as {now}"));
        }
        kept += was_blocks.iter().filter(|block| block["content"] == CLEARED).count();
    }
    Ok(kept)
}

/// Sends one request after the other in one session until something fails: the model calls tools and gets large
/// results.
async fn talk(address: SocketAddr, session: String, histories: Histories) {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    loop {
        let known = histories.lock().unwrap().get(&session).cloned();
        let mut history = known.unwrap_or_else(|| vec![user_message("Begin.")]);
        let Some(answer) = send_request(&client, address, &session, &history).await else { return };
        let content = answer["content"].as_array().unwrap();
        let calls = content.iter().filter(|block| block["type"] == "tool_use");
        let results: Vec<Value> = calls.map(result).collect();
        history.push(json!({"role": "assistant", "content": content}));
        history.push(match results.is_empty() {
            true => user_message(&format!("Go on after {}.", history.len())),
            false => json!({"role": "user", "content": results}),
        });
        histories.lock().unwrap().insert(session.clone(), history);
    }
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn result(call: &Value) -> Value {
    let id = call["id"].as_str().unwrap();
    let text = format!("{id} {}", "and a line of a long file ".repeat(120));
    json!({"type": "tool_result", "tool_use_id": id, "content": text})
}

async fn send_request(
    client: &Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    session: &str,
    history: &[Value],
) -> Option<Value> {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}},
        "required": ["path"]});
    let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 512, "system": session,
        "tools": [{"name": "Read", "input_schema": schema}], "messages": history});
    let request = http::Request::post(format!("http://{address}/v1/messages"))
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header("x-api-key", "sk-crash")
        .header("x-claude-code-session-id", session)
        .body(Full::from(body.to_string()))
        .unwrap();
    let response = client.request(request).await.ok()?;
    let whole = response.into_body().collect().await.ok()?.to_bytes();
    serde_json::from_slice(&whole).ok()
}
