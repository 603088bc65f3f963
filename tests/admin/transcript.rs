//! The words of a thread: a page at a time, bounded, with secrets masked, for the token that may do everything.

use plimsoll::context::Fact;
use plimsoll::store::RecordKind;
use serde_json::{Value, json};

use super::place::{self, Place, tenant};
use super::support::looking::READER;

fn part(role: &str, kind: &str, text: &str) -> Value {
    json!({"role": role, "kind": kind, "chars": text.len(), "text": text})
}

/// Stores a call and its text.
async fn call(place: &Place, number: u64, messages: &[Value]) {
    let request = format!("r{number}");
    let mut turn = place::turn(&request, "thread-1", 1_000 + number);
    turn.position.client_thread = Some("reviewer".into());
    turn.position.parent = number.checked_sub(1).map(|parent| format!("r{parent}").into());
    place.keep(&tenant(1), "s", turn).await;
    let content = json!({
        "follows": if number == 0 { "nothing" } else { "request" }, "head": [], "messages": messages,
        "reply": [part("assistant", "text", &format!("Answer {number}."))],
    });
    let content = (serde_json::to_vec(&content).unwrap(), 1_000 + number);
    place.keep_record((&tenant(1), "s"), RecordKind::Content, &request, content).await;
}

fn path(query: &str) -> String {
    format!("/api/v1/sessions/{}.s/threads/main/transcript{query}", tenant(1))
}

fn requests(page: &Value) -> Vec<&str> {
    let calls = page["calls"].as_array().unwrap().iter();
    calls.map(|call| call["request"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn transcript_is_paged() {
    let place = Place::new().await;
    for number in 0..5 {
        call(&place, number, &[part("user", "text", "Go on.")]).await;
    }
    for (query, skip, expected) in [
        ("?limit=2", 3, &["r3", "r4"][..]),
        ("?limit=2&skip=1", 1, &["r1", "r2"]),
        ("?limit=2&request=r2", 2, &["r2", "r3"]),
        ("?skip=9", 5, &[]),
    ] {
        let page = place.json(&path(query)).await;
        assert_eq!(
            (page["skip"].as_u64(), page["total"].as_u64()),
            (Some(skip), Some(5)),
            "{query}"
        );
        assert_eq!(requests(&page), expected, "{query}");
    }
    for (query, status) in [("?request=other", 404), ("?limit=x", 400)] {
        assert_eq!(place.get(&path(query)).await.status(), status, "{query}");
    }
    // By its id, and as its client calls it, as everywhere.
    for name in ["thread-1", "reviewer"] {
        assert_eq!(place.json(&path("").replace("main", name)).await["total"], 5, "{name}");
    }
    let other = path("").replace("main", "nobody");
    assert_eq!(place.get(&other).await.status(), 404);
}

#[tokio::test]
async fn transcript_masks_secrets_and_needs_admin_token() {
    let place = Place::new().await;
    let words = concat!("My key is sk-", "ant-api03-0123456789abcdef.");
    call(
        &place,
        0,
        &[part("user", "text", words), part("user", "tool_result", "password=correct-horse")],
    )
    .await;
    let page = place.json(&path("")).await;
    let parts = &page["calls"][0]["parts"];
    assert_eq!(parts[0]["text"], "My key is [secret].");
    assert_eq!(parts[1]["text"], "password=[secret]");
    let refused =
        place.ask("GET", &path(""), &[("authorization", &format!("Bearer {READER}"))]).await;
    assert_eq!(refused.status(), 403);
    assert!(!refused.text().contains("key"), "{}", refused.text());
}

/// A reply that was sent back is shown once, and a call without its text says so.
#[tokio::test]
async fn transcript_has_each_part_once() {
    let place = Place::new().await;
    call(&place, 0, &[part("user", "text", "One?")]).await;
    let mut sent_back = part("assistant", "text", "Answer 0.");
    sent_back["reply"] = true.into();
    call(&place, 1, &[sent_back, part("user", "text", "Two?")]).await;
    place.keep(&tenant(1), "s", place::turn("r9", "thread-1", 2_000)).await;
    let page = place.json(&path("")).await;
    let texts = |call: usize| {
        let call = &page["calls"][call];
        let parts = [&call["parts"], &call["reply"]].map(|parts| parts.as_array().unwrap().clone());
        parts
            .concat()
            .iter()
            .map(|part| part["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(0), ["One?", "Answer 0."]);
    assert_eq!(texts(1), ["Two?", "Answer 1."]);
    assert_eq!(page["calls"][2]["stored"], false);
    let second = place.json(&path("?request=r1")).await;
    assert_eq!(
        second["calls"][0]["parts"].as_array().unwrap().len(),
        1,
        "its parent is on another page"
    );
}

/// At the limit a part's text is there; past it only its size; past that only how many parts there are.
#[tokio::test]
async fn transcript_page_is_bounded() {
    let place = Place::new().await;
    let half = "w".repeat((512 << 10) - 128);
    let rest = "w".repeat((512 << 10) - 2 * 128 - "Answer 0.".len());
    call(&place, 0, &[part("user", "text", &half), part("user", "tool_result", &rest)]).await;
    let page = place.json(&path("")).await;
    let lengths = |page: &Value| {
        let parts = page["calls"][0]["parts"].as_array().unwrap().iter();
        parts.map(|part| part["text"].as_str().unwrap().len()).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&page), [half.len(), rest.len()]);
    assert_eq!(page["calls"][0]["reply"][0]["text"], "Answer 0.");
    call(&place, 1, &[part("user", "text", "One more.")]).await;
    let page = place.json(&path("")).await;
    let second = &page["calls"][1];
    assert_eq!(second["left_out"], 2);
    let alone = place.json(&path("?request=r1")).await;
    assert_eq!(alone["calls"][0]["parts"][0]["text"], "One more.");
    let huge = "w".repeat((1 << 20) - 127);
    call(&place, 2, &[part("user", "tool_result", &huge)]).await;
    let page = place.json(&path("?request=r2")).await;
    assert_eq!(lengths(&page), [0]);
    assert_eq!(page["calls"][0]["parts"][0]["bytes"], huge.len());
}

#[tokio::test]
async fn transcript_shows_summary_where_history_was_compacted() {
    let place = Place::new().await;
    for number in 0..2 {
        call(&place, number, &[part("user", "text", "Go on.")]).await;
    }
    let summary = json!({
        "kind": "compact", "about": "0".repeat(32), "near": [], "is_own": false, "at": 1_001, "exchange": "r1",
        "raw": "[{\"role\":\"user\",\"content\":\"So far: token=abc, password=correct-horse\"}]",
        "was": 90_000, "tokens": 900, "by": "summary", "why": "threshold", "upstream": "anthropic", "model": "m",
    });
    let fact: Fact = serde_json::from_value(summary).unwrap();
    let value = (serde_json::to_vec(&fact).unwrap(), 1_001);
    place.keep_record((&tenant(1), "s"), RecordKind::Compact, "compact", value).await;
    let page = place.json(&path("")).await;
    assert!(page["calls"][0].get("compacted").is_none(), "{page}");
    let compacted = &page["calls"][1]["compacted"];
    assert_eq!([&compacted["tokens_before"], &compacted["tokens_after"]], [90_000, 900]);
    assert!(compacted["text"].as_str().unwrap().contains("password=[secret]"), "{compacted}");
}
