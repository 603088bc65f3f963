//! Caps hold while clients come at once and the process is killed.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use plimsoll::context::caps::Spending;
use scripted_provider::ScriptedProvider;
use serde_json::json;

use super::{start, turns};

const CLIENTS: usize = 50;
/// At most so many tokens.
const MOST: u64 = 20_000;

/// Sends requests until one is refused by the cap, or the process is gone; the former is true.
async fn spend(address: std::net::SocketAddr, session: String) -> bool {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    loop {
        let body = json!({
            "model": "claude-sonnet-4-5", "max_tokens": 512, "stream": true,
            "messages": [{"role": "user", "content": "Spend what you can."}],
        });
        let request = http::Request::post(format!("http://{address}/v1/messages"))
            .header("content-type", "application/json")
            .header("x-api-key", "sk-crash")
            .header("x-claude-code-session-id", &session)
            .body(Full::<bytes::Bytes>::from(body.to_string()))
            .unwrap();
        let Ok(response) = client.request(request).await else { return false };
        if response.status() == 402 {
            return true;
        }
        assert_eq!(response.status(), 200);
        if response.into_body().collect().await.is_err() {
            return false;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cap_holds_under_50_clients_and_kill_9() {
    let provider =
        ScriptedProvider::start(([127, 0, 0, 1], 0).into(), plimsoll::demo::count_tokens)
            .await
            .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let config = folder.path().join("plimsoll.toml");
    std::fs::write(&config, format!("[cap.all]\nof = \"all\"\ntokens = {MOST}\n")).unwrap();
    let environment = [("PLIMSOLL_CONFIG", config.to_str().unwrap())];
    let mut kills = 0;
    loop {
        let (mut child, address) = start(&data, provider.address(), &environment).await;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| tokio::spawn(spend(address, format!("client-{number}"))))
            .collect();
        // The last start is not killed: all are refused then.
        let is_killed = kills < 3;
        if is_killed {
            tokio::time::sleep(Duration::from_millis(rand::random_range(50..200))).await;
            child.kill().await.unwrap();
            kills += 1;
        }
        let mut refused = 0;
        for client in clients {
            refused += usize::from(client.await.unwrap());
        }
        if !is_killed {
            assert_eq!(refused, CLIENTS);
            child.kill().await.unwrap();
            break;
        }
    }
    let mut spent = 0;
    let mut dearest = 0;
    for turn in turns(&data).await.values().flatten() {
        let tokens = Spending::from_turn(turn).tokens;
        spent += tokens;
        dearest = dearest.max(tokens);
    }
    assert!(spent >= MOST, "only {spent} tokens were spent");
    let most = MOST + CLIENTS as u64 * dearest;
    assert!(spent <= most, "{spent} tokens were spent, of at most {most}");
}
