//! A session is given away without its words, and replay reads what was given.

use plimsoll::context::{Place as Where, Sketch, Sketched};
use plimsoll::dialect::PartKey;
use plimsoll::dialect::models::Catalogue;
use plimsoll::replay::{self, transcript::Line};
use serde_json::{Value, json};

use super::place::{self, Place, tenant};

/// A call that sent `tokens` more than the one before.
fn call(
    request: &str,
    parent: Option<&str>,
    at: u64,
    key: u128,
    tokens: u32,
) -> plimsoll::context::Turn {
    let mut turn = place::turn(request, "main", at);
    turn.standing.parent = parent.map(Into::into);
    let part = |key, tokens, place| Sketched { key: PartKey(key), tokens, place };
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
async fn sizes_and_usage_leave_and_names_do_not() {
    let place = Place::new().await;
    place.keep(&tenant(1), "secret-name", call("a", None, 1_000, 10, 100)).await;
    let mut second = call("b", Some("a"), 2_000, 11, 30);
    second.sketch.added.push(Sketched { key: PartKey(12), tokens: 55, place: Where::History });
    place.keep(&tenant(1), "secret-name", second).await;
    let lines = exported(&place, "secret-name").await;
    assert_eq!(lines.len(), 2);
    let text = json!(lines).to_string();
    assert!(!text.contains("secret-name") && !text.contains(&tenant(1)), "{text}");
    assert_eq!(lines[0]["session"], lines[1]["session"]);
    assert_eq!((&lines[0]["i"], &lines[1]["i"]), (&json!(0), &json!(1)));
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
async fn replay_says_how_wrong_the_exported_estimates_were() {
    let place = Place::new().await;
    let mut unmeasured = call("c", Some("b"), 3_000, 13, 30);
    unmeasured.usage.input = None;
    for turn in [call("a", None, 1_000, 10, 100), call("b", Some("a"), 2_000, 11, 30), unmeasured] {
        place.keep(&tenant(1), "s", turn).await;
    }
    // One that grew from something else says so, and is not compared.
    place.keep(&tenant(1), "s", call("d", Some("a"), 4_000, 14, 30)).await;
    let lines = exported(&place, "s").await;
    assert_eq!((&lines[2]["flags"], &lines[3]["flags"]), (&json!(["no_usage"]), &json!(["fork"])));
    let lines: Vec<Line> =
        lines.into_iter().map(|line| serde_json::from_value(line).unwrap()).collect();
    let pairs = replay::play(&lines, &Catalogue::new(Vec::new()), &[]);
    let told: Vec<_> = pairs.iter().map(|pair| (pair.call, pair.tokens, pair.actual)).collect();
    assert_eq!(told, [(1, 52_100, 51_790), (2, 52_100, 51_790)]);
}
