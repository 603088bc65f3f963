//! A session is exported without its text, and replay can read the export.

use plimsoll::context::{PromptSection as Where, Sketch, SketchPart};
use plimsoll::dialect::PartKey;
use plimsoll::dialect::models::Catalogue;
use plimsoll::store::RecordKind;
use plimsoll_replay as replay;
use plimsoll_replay::transcript::TranscriptLine;
use serde_json::{Value, json};

use super::place::{self, Place, tenant};
use super::support::held::Held;
use super::support::looking::access;

/// A call that sent `tokens` more than the one before.
fn call(
    request: &str,
    parent: Option<&str>,
    at: u64,
    key: u128,
    tokens: u32,
) -> plimsoll::context::Turn {
    let mut turn = place::turn(request, "main", at);
    turn.position.parent = parent.map(Into::into);
    let part =
        |key, tokens, place| SketchPart { key: PartKey(key), tokens, place, by_length: false };
    let mut added = vec![part(key, tokens, Where::History)];
    if parent.is_none() {
        added.insert(0, part(7, 4_000, Where::System));
    }
    turn.sketch = Sketch { base: parent.map(Into::into), kept: 0, added };
    turn.reply = vec![part(key + 1, 30, Where::History)];
    turn
}

async fn exported(place: &Place, session: &str) -> Vec<Value> {
    let answer = place.get(&format!("/api/v1/sessions/{}.{session}/export", tenant(1))).await;
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn export_contains_sizes_and_usage_but_no_names() {
    let place = Place::new().await;
    place.keep(&tenant(1), "secret-name", call("a", None, 1_000, 10, 100)).await;
    let mut second = call("b", Some("a"), 2_000, 11, 30);
    second.sketch.added.push(SketchPart {
        key: PartKey(12),
        tokens: 55,
        place: Where::History,
        by_length: false,
    });
    place.keep(&tenant(1), "secret-name", second).await;
    let lines = exported(&place, "secret-name").await;
    assert_eq!(lines.len(), 2);
    let text = json!(lines).to_string();
    assert!(!text.contains("secret-name"), "{text}");
    assert!(!text.contains(&tenant(1)), "{text}");
    assert_eq!(lines[0]["session"], lines[1]["session"]);
    assert_eq!(lines[0]["i"], json!(0));
    assert_eq!(lines[1]["i"], json!(1));
    assert_eq!(lines[1]["usage"]["input_total"], 51_790);
    assert_eq!(lines[1]["estimate"]["tokens"], 52_100);
    assert_eq!(lines[1]["flags"], json!([]));
    assert_eq!(
        lines[1]["new_parts"],
        json!([
            {"role": "assistant", "kind": "other", "tokens": 30, "reply": true},
            {"role": "user", "kind": "other", "tokens": 55}
        ])
    );
    assert_eq!(place.get("/api/v1/sessions/nobody/export").await.status(), 404);
}

#[tokio::test]
async fn replay_says_how_wrong_exported_estimates_were() {
    let place = Place::new().await;
    let mut unmeasured = call("c", Some("b"), 3_000, 13, 30);
    unmeasured.usage.input = None;
    for turn in [call("a", None, 1_000, 10, 100), call("b", Some("a"), 2_000, 11, 30), unmeasured] {
        place.keep(&tenant(1), "s", turn).await;
    }
    // A call with another parent is marked as a fork, and is not compared.
    place.keep(&tenant(1), "s", call("d", Some("a"), 4_000, 14, 30)).await;
    let lines = exported(&place, "s").await;
    assert_eq!(lines[2]["flags"], json!(["no_usage"]));
    assert_eq!(lines[3]["flags"], json!(["fork"]));
    let lines: Vec<TranscriptLine> =
        lines.into_iter().map(|line| serde_json::from_value(line).unwrap()).collect();
    let pairs = replay::play(&lines, &Catalogue::new(Vec::new()), &[], None, |_| ());
    let shown: Vec<_> = pairs.iter().map(|pair| (pair.call, pair.tokens, pair.actual)).collect();
    assert_eq!(shown, [(1, 52_100, 51_790), (2, 52_100, 51_790)]);
}

/// The number of calls of a long session, and bytes of text in each: far more than socket buffers hold.
const CALLS: usize = 300;
const TEXT_BYTES: usize = 48 << 10;

/// Stores a long session with its text.
async fn long(place: &Place) {
    for number in 0..CALLS {
        let (request, parent) = (format!("r{number}"), number.checked_sub(1));
        let parent = parent.map(|number| format!("r{number}"));
        let key = 100 + number as u128;
        let turn = call(&request, parent.as_deref(), 1_000 + number as u64, key, 9);
        place.keep(&tenant(1), "long", turn).await;
        let part = |role: &str, text: String| json!({"role": role, "kind": "text", "chars": text.len(), "text": text});
        let content = json!({
            "follows": if number == 0 { "nothing" } else { "reply" },
            "head": [],
            "messages": [part("user", format!("{number} {}", "w".repeat(TEXT_BYTES)))],
            "reply": [part("assistant", format!("Answer {number}"))],
        });
        let content = (serde_json::to_vec(&content).unwrap(), 1_000 + number as u64);
        place.keep_record((&tenant(1), "long"), RecordKind::Content, &request, content).await;
    }
}

/// An export is written while it is read: it takes no more memory than its longest line, however long the session is.
/// If the store fails in the middle, it breaks off.
#[tokio::test]
async fn export_streams_while_reading() {
    let store = Held::new();
    let place = Place::over(store.clone(), access()).await;
    long(&place).await;
    let path = format!("/api/v1/sessions/{}.long/export?content=true", tenant(1));
    let before = store.gets();
    let mut export = place.open("GET", &path, &[]).await;
    let head = export.head().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let read = store.gets() - before;
    assert!(read < CALLS, "{read} of {CALLS} were read before any was taken");
    let mut text = Vec::new();
    loop {
        let chunk = export.chunk().await;
        if chunk.is_empty() {
            break;
        }
        text.extend_from_slice(&chunk);
    }
    let lines: Vec<Value> = String::from_utf8(text)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), CALLS);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["flags"], json!([]), "{number}");
        let parts = line["new_parts"].as_array().unwrap();
        let own = parts.last().unwrap()["text"].as_str().unwrap();
        assert!(own.starts_with(&format!("{number} w")), "{number}");
        let answer = (number > 0).then(|| format!("Answer {}", number - 1));
        assert_eq!(parts.len() == 2, answer.is_some());
        assert!(answer.is_none_or(|answer| parts[0]["text"] == answer), "{number}");
    }
    store.fail_after(CALLS / 2);
    let mut broken = place.open("GET", &path, &[]).await;
    let came = broken.rest().await.unwrap_or_default();
    assert!(!came.ends_with(b"0\r\n\r\n"), "half an export looks whole");
}

/// Only a few exports run at the same time.
#[tokio::test]
async fn few_sessions_are_exported_at_once() {
    let place = Place::over(Held::new(), access()).await;
    long(&place).await;
    let path = format!("/api/v1/sessions/{}.long/export?content=true", tenant(1));
    let mut exports = Vec::new();
    for _ in 0..4 {
        let mut wire = place.open("GET", &path, &[]).await;
        assert!(wire.head().await.starts_with("HTTP/1.1 200"));
        exports.push(wire);
    }
    let refused = place.get(&path).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(place::json(&refused)["error"]["code"], "too_many_exports");
    drop(exports);
    let freed = async {
        while !place.open("GET", &path, &[]).await.head().await.starts_with("HTTP/1.1 200") {}
    };
    super::support::within("a place that is given back", freed).await;
}
