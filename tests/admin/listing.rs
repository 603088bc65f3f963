//! The list of sessions in other orders, searched and filtered, and its pages.

use plimsoll::context::{Turn, TurnOrigin};
use plimsoll::dialect::agent::Agent;
use serde_json::Value;

use super::place::{self, Place, tenant};

/// Ten sessions: the later ones cost less and have more input.
async fn filled() -> Place {
    let place = Place::new().await;
    for n in 0..10_u64 {
        let mut turn = place::turn(&format!("r{n}"), "main", 1_000 + n);
        turn.dollars = Some(10.0 - n as f64);
        turn.usage.input = Some(50_000 + n);
        if n % 2 == 0 {
            turn.model = "gpt-5.1".into();
            turn.upstream = "openai".into();
        }
        let agent = Some(Agent { name: format!("Agent {n}").into(), version: None });
        turn.origin = Some(Box::new(TurnOrigin { agent, ..TurnOrigin::default() }));
        place.keep(&tenant(n % 3), &format!("s{n}"), turn).await;
    }
    place
}

fn names(page: &Value) -> Vec<&str> {
    let sessions = page["sessions"].as_array().unwrap();
    sessions.iter().map(|session| session["session"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn list_is_sorted_as_requested() {
    let place = filled().await;
    for (query, first) in [
        ("sort=dollars", "s0"),
        ("sort=dollars&order=asc", "s9"),
        ("sort=input", "s9"),
        ("sort=began&order=asc", "s0"),
        ("sort=client", "s0"),
        ("sort=client&order=desc", "s9"),
        ("sort=used&order=asc", "s0"),
        ("sort=error", "s0"),
        ("sort=turns", "s9"),
    ] {
        let page = place.json(&format!("/api/v1/sessions?{query}")).await;
        assert_eq!(names(&page)[0], first, "{query}");
        assert_eq!(page["found"], 10);
        assert_eq!(page.get("incomplete"), None);
    }
    let wrong = place.get("/api/v1/sessions?sort=colour").await;
    assert!(wrong.status() == 400 && wrong.text().contains("dollars"), "{}", wrong.text());
    assert_eq!(place.get("/api/v1/sessions?order=up").await.status(), 400);
}

#[tokio::test]
async fn list_is_searched_and_filtered() {
    let place = filled().await;
    for (query, found) in [
        ("search=agent+7", vec!["s7"]),
        ("search=AGENT%207", vec!["s7"]),
        ("search=gpt", vec!["s8", "s6", "s4", "s2", "s0"]),
        ("search=gpt+s4", vec!["s4"]),
        ("search=nothing", vec![]),
        ("upstream=openai&sort=input&limit=2", vec!["s8", "s6"]),
        (&format!("tenant={}&model=claude-sonnet-4-5", tenant(0)), vec!["s9", "s3"]),
    ] {
        let page = place.json(&format!("/api/v1/sessions?{query}")).await;
        assert_eq!(names(&page), found, "{query}");
    }
}

#[tokio::test]
async fn pages_of_any_order_have_each_session_once() {
    let place = filled().await;
    for sort in ["dollars", "fill", "model", "used&order=asc"] {
        let mut listed = Vec::new();
        let mut skip = 0;
        loop {
            let path = format!("/api/v1/sessions?sort={sort}&limit=3&skip={skip}");
            let page = place.json(&path).await;
            listed.extend(names(&page).into_iter().map(str::to_owned));
            match page["next"].as_u64() {
                Some(next) => skip = next,
                None => break,
            }
        }
        listed.sort();
        assert_eq!(listed, (0..10).map(|n| format!("s{n}")).collect::<Vec<_>>(), "{sort}");
    }
}

/// A session that changed is read again, also if only its last turn was replaced by its whole reply.
#[tokio::test]
async fn list_shows_what_changed() {
    let place = filled().await;
    let page = place.json("/api/v1/sessions?sort=dollars").await;
    assert_eq!(names(&page)[0], "s0");
    let dear = Turn { dollars: Some(90.0), ..place::turn("dear", "main", 2_000) };
    place.keep(&tenant(2), "s5", dear).await;
    tokio::time::sleep(std::time::Duration::from_millis(450)).await;
    let page = place.json("/api/v1/sessions?sort=dollars").await;
    assert_eq!(names(&page)[0], "s5");
    assert_eq!(page["sessions"][0]["dollars"], 95.0);
}
