//! Calls beside a conversation (counts, titles, routers, warm-ups, the client's own compaction) repeat earlier
//! decisions and make none. Requests of real clients are played under a policy that would cut everything.

use std::path::Path;

use plimsoll::context::plan::Decision;
use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy, ReasoningRule};
use plimsoll::dialect::{Purpose, paths};
use plimsoll::telemetry::Exchange;
use serde_json::Value;

use crate::play::Play;
use crate::support::http1::Wire;

/// Cuts everything that can be cut, at once. (The play also demands reasoning everywhere.)
fn greedy() -> Policy {
    let prune = PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 0,
        protect_messages: 0,
        min_saving_tokens: 0,
        min_messages: 0,
        keep_errors: false,
        placeholder: "-".to_owned(),
        max_result_tokens: Some(200),
        accept_reasoning_loss: true,
        ..PrunePolicy::default()
    };
    Policy { prune, ..Policy::default() }
}

/// What happened to the requests of one recording.
#[derive(Default)]
struct Seen {
    /// Turns for which something was decided.
    decided: usize,
    /// Calls beside them.
    beside: usize,
    /// Of these, calls that repeated a decision.
    repeated: usize,
    wrong: Vec<String>,
}

#[tokio::test]
async fn side_calls_of_recorded_clients_decide_nothing_new() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agents");
    let mut all = Seen::default();
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "zst") {
            continue;
        }
        let text = zstd::decode_all(std::fs::read(&path).unwrap().as_slice()).unwrap();
        let calls = String::from_utf8(text).unwrap();
        let seen = play(calls.lines().map(|line| serde_json::from_str(line).unwrap())).await;
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        all.wrong.extend(seen.wrong.iter().map(|wrong| format!("{name}: {wrong}")));
        all.decided += seen.decided;
        all.beside += seen.beside;
        all.repeated += seen.repeated;
    }
    assert!(all.wrong.is_empty(), "\n{}", all.wrong.join("\n"));
    // The policy does cut turns, and there are such calls, some of which repeat cuts.
    assert!(all.decided > 50, "{} turns were changed", all.decided);
    assert!(all.beside > 300, "{} beside, {}", all.beside, all.repeated);
    assert!(all.repeated > 50, "{} beside, {}", all.beside, all.repeated);
}

/// Plays each request twice: first as its client's own compaction of the same history, then as it was.
async fn play(calls: impl Iterator<Item = Value>) -> Seen {
    let mut play = Play::of("/", greedy()).await;
    play.config.upstreams[0].reasoning_echo = Some(ReasoningRule::Demanded);
    play.restart().await;
    let mut seen = Seen::default();
    for (index, call) in calls.enumerate() {
        let (method, target) = (call["method"].as_str().unwrap(), call["target"].as_str().unwrap());
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let endpoint = paths::endpoint(&method, target);
        if endpoint.is_none_or(|endpoint| endpoint.transport != paths::Transport::Http) {
            continue;
        }
        for as_compaction in [true, false] {
            let recorded = exchange(&mut play, &call, as_compaction).await;
            let new = recorded.done.steps.iter().any(|step| step.decision == Decision::New);
            if recorded.purpose == Some(Purpose::Turn) {
                assert!(!as_compaction);
                seen.decided += usize::from(new);
                continue;
            }
            seen.beside += 1;
            seen.repeated += usize::from(recorded.done.is_sent());
            if new || !recorded.done.new.is_nothing() {
                seen.wrong
                    .push(format!("request {index}, {:?}: {:?}", recorded.purpose, recorded.done));
            }
        }
    }
    seen
}

async fn exchange(play: &mut Play, call: &Value, as_compaction: bool) -> std::sync::Arc<Exchange> {
    const OURS: &[&str] =
        &["host", "content-length", "connection", "transfer-encoding", "x-openai-subagent"];
    let (target, body) = (call["target"].as_str().unwrap(), call["body"].as_str().unwrap());
    let mut head = format!("POST {target} HTTP/1.1\r\nhost: localhost\r\n");
    for header in call["headers"].as_array().unwrap() {
        let [name, value] = [0, 1].map(|at| header[at].as_str().unwrap());
        if !OURS.contains(&&*name.to_lowercase()) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    if as_compaction {
        head += "x-openai-subagent: compact\r\n";
    }
    let mut client = Wire::connect(play.server.address).await;
    client.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
    let mut provider_call = play.provider.call().await;
    let answer = call["response"]["body"].as_str().unwrap_or("{}");
    provider_call.answer("200 OK", if as_compaction { "{}" } else { answer }).await;
    client.response().await;
    play.server.next_exchange().await
}
