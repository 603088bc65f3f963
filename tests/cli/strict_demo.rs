//! The demo's agents send what real providers accept: here a strict one stands behind the proxy.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use demo_provider::{Judge, OnReply, ScriptedProvider};
use http::StatusCode;
use http::request::Parts;
use scripted_provider::strict::{Rules, StrictProvider};
use serde_json::Value;

use super::program::Serving;

#[derive(Default)]
struct Verdicts {
    accepted: usize,
    refused: Vec<Value>,
}

/// Notes what it accepts and refuses.
struct NotedVerdicts {
    provider: StrictProvider,
    verdicts: Arc<Mutex<Verdicts>>,
}

impl Judge for NotedVerdicts {
    fn judge(&self, head: &Parts, body: &Bytes) -> Result<Option<OnReply>, (StatusCode, Value)> {
        let verdict = self.provider.judge(head, body);
        let mut verdicts = self.verdicts.lock().unwrap();
        match &verdict {
            Ok(judged) => verdicts.accepted += usize::from(judged.is_some()),
            Err((_, error)) => verdicts.refused.push(error.clone()),
        }
        verdict
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_sends_what_strict_providers_accept() {
    let verdicts: Arc<Mutex<Verdicts>> = Arc::default();
    let provider = StrictProvider::new(Rules::default(), 0);
    let judge = Box::new(NotedVerdicts { provider, verdicts: verdicts.clone() });
    let address = "127.0.0.1:0".parse().unwrap();
    let counter = plimsoll::demo::count_tokens;
    let provider = ScriptedProvider::judged(address, counter, judge).await.unwrap();
    let config = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(config.path(), "[estimate]\nclassic = true\n").unwrap();
    let base = format!("http://{}", provider.address());
    let serving = Serving::start(&base, &["--config", config.path().to_str().unwrap()]).await;
    let mut told = String::new();
    for is_full in [false, true] {
        let mut tell = |text: &str| told.push_str(text);
        let (clients, admin, token) = (serving.clients, serving.admin, &serving.token);
        plimsoll::demo::play(clients, admin, token, is_full, &mut tell).await.unwrap();
    }
    assert!(told.contains("old results cut, "), "{told}");
    let verdicts = verdicts.lock().unwrap();
    assert_eq!(verdicts.refused, Vec::<Value>::new());
    assert!(verdicts.accepted > 30, "{} calls", verdicts.accepted);
}
