//! Messages are queued, listed in order and removed; one that cannot be queued is refused with a reason.

use plimsoll::context::Position;
use plimsoll::context::budget::{ContextView, RewriteView};
use plimsoll::context::inject::{LONGEST, MOST};
use plimsoll::context::plan::{ChangeCounts, RewriteSummary};
use plimsoll::context::policy::{Mode, SummaryAuthor};
use plimsoll::dialect::Purpose;
use plimsoll::telemetry::{MessageEvent, MessageStep, OpenExchange};
use serde_json::{Value, json};

use crate::place::{Place, exchange, json as read, tenant};

fn text(message: &str) -> String {
    json!({"text": message}).to_string()
}

async fn server() -> (Place, String) {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    (place, "/api/v1/sessions/s/say".to_owned())
}

async fn waiting(place: &Place, path: &str) -> Vec<(u64, String)> {
    let queue = place.json(path).await;
    let waiting = queue["waiting"].as_array().unwrap().iter();
    let of =
        |it: &Value| (it["position"].as_u64().unwrap(), it["text"].as_str().unwrap().to_owned());
    waiting.map(of).collect()
}

#[tokio::test]
async fn messages_wait_in_order() {
    let (place, path) = server().await;
    assert_eq!(place.get(&format!("{path}?format=text")).await.text(), "No message is queued.\n");
    let mut live = place.open("GET", "/api/v1/events", &[]).await;
    live.until(": listening").await;
    let first = read(&place.post(&path, &text("Mind the tide.")).await);
    let second = read(&place.post(&path, &text("And \"the\" wind.\nBoth.")).await);
    assert_eq!(first["position"], json!(1));
    assert_eq!(second["position"], json!(2));
    let queue = waiting(&place, &path).await;
    assert_eq!(queue, [(1, "Mind the tide.".into()), (2, "And \"the\" wind.\nBoth.".into())]);
    let answer = place.get(&format!("{path}?format=text")).await;
    assert!(answer.text().contains(": And \"the\" wind. ⏎ Both.\n"), "{}", answer.text());

    let id = first["id"].as_str().unwrap();
    let gone = place.ask("DELETE", &format!("{path}/{id}"), &[]).await;
    assert_eq!(read(&gone)["removed"], id);
    assert_eq!(waiting(&place, &path).await, [(1, "And \"the\" wind.\nBoth.".into())]);
    // The live feed says what happened, without the text.
    let received = live.until("\"step\":\"removed\"").await;
    let received = String::from_utf8(received).unwrap();
    assert_eq!(received.matches("event: say").count(), 3, "{received}");
    assert_eq!(received.matches("event: queued\n").count(), 2, "{received}");
    assert!(received.contains("\"position\":2"), "{received}");
    assert!(received.contains("\"step\":\"queued\""), "{received}");
    assert!(!received.contains("tide"), "{received}");
}

#[tokio::test]
async fn all_messages_can_be_removed() {
    let (place, path) = server().await;
    let none = read(&place.ask("DELETE", &path, &[]).await);
    assert_eq!(none, json!({"removed": []}));
    let first = read(&place.post(&path, &text("Mind the tide.")).await);
    let second = read(&place.post(&path, &text("And the wind.")).await);
    let cleared = read(&place.ask("DELETE", &path, &[]).await);
    assert_eq!(cleared, json!({"removed": [first["id"], second["id"]]}));
    assert!(waiting(&place, &path).await.is_empty());
    assert_eq!(read(&place.post(&path, &text("Again.")).await)["position"], 1);
}

/// Events about dequeued messages and about smaller contexts have names of their own.
#[tokio::test]
async fn live_events_tell_what_is_dequeued_compacted_and_pruned() {
    let place = Place::new().await;
    let mut live = place.open("GET", "/api/v1/events", &[]).await;
    live.until(": listening").await;
    place.telemetry.announce(MessageEvent {
        id: "w1".into(),
        step: MessageStep::Dequeued,
        tenant: "t".into(),
        session: "s".into(),
        exchange: Some("r1".into()),
        position: None,
        at: 1,
    });
    let received =
        String::from_utf8(live.until("event: dequeued\ndata: {\"id\":\"w1\"").await).unwrap();
    assert!(received.contains("event: say\n"), "{received}");
    let new = ChangeCounts { cut: 3, compacted: 1, ..ChangeCounts::default() };
    let rewriting = RewriteView {
        mode: Mode::Active,
        made: new,
        new,
        summary_by: Some(SummaryAuthor::Summary),
        compacted_from: Some(170_100),
        tokens_compacted: 900,
        tokens_removed: 50,
        tokens_pruned: 40,
        ..RewriteView::default()
    };
    let sent = exchange("r2");
    let estimate = sent.estimate.as_ref().unwrap();
    let view = ContextView::before(estimate, 200_000, 16_000, None, &RewriteSummary::default());
    let total = view.total;
    let of = |mode| OpenExchange {
        id: "r2".into(),
        tenant: "t".into(),
        session: "s".into(),
        position: Position { thread: "main".into(), ..Position::default() },
        hints: None,
        at: 2,
        purpose: Purpose::Turn,
        view: ContextView { rewriting: RewriteView { mode, ..rewriting }, ..view.clone() },
    };
    // In shadow mode nothing becomes smaller.
    place.telemetry.exchange_opened(of(Mode::Shadow));
    place.telemetry.exchange_opened(of(Mode::Active));
    let received = String::from_utf8(live.until("\"results\":3").await).unwrap();
    let compacted = format!("\"before\":170100,\"after\":{total},\"strategy\":\"summary\"");
    assert!(received.contains(&compacted), "{received}");
    assert!(
        received.contains(&format!("\"before\":{},\"after\":{total},\"results\"", total + 40)),
        "{received}"
    );
    for event in ["event: compacted\n", "event: pruned\n"] {
        assert_eq!(received.matches(event).count(), 1, "{received}");
    }
}

#[tokio::test]
async fn message_that_cannot_be_queued_is_refused_with_reason() {
    let (place, path) = server().await;
    let none = "/api/v1/sessions/none/say";
    let long = text(&"x".repeat(LONGEST + 1));
    for (path, body, status, code) in [
        (&*path, &*text("  \n"), 400, "empty"),
        (&*path, "tide", 400, "bad_question"),
        (&*path, "{\"text\": 7}", 400, "bad_question"),
        (&*path, &*long, 413, "too_long"),
        (&*path, &*text(&"x".repeat(1 << 20)), 413, "too_long"),
        (none, &*text("Hello."), 404, "not_found"),
    ] {
        let answer = place.post(path, body).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(read(&answer)["error"]["code"], code);
    }
    let answer = place.ask("DELETE", &format!("{path}/none"), &[]).await;
    assert_eq!(answer.status(), 404, "{}", answer.text());
    assert!(waiting(&place, &path).await.is_empty());

    // A queue that is not emptied has a limit, and its error says so.
    for number in 0..MOST {
        assert_eq!(place.post(&path, &text(&format!("Message {number}."))).await.status(), 200);
    }
    let full = place.post(&path, &text("One more.")).await;
    assert_eq!(full.status(), 409);
    assert_eq!(read(&full)["error"]["code"], json!("queue_full"));
}
