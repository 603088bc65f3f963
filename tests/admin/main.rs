//! The admin listener over real sockets, with a memory store and some turns.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod export;
mod history;
mod listing;
mod openapi;
mod place;
mod queued;
mod transcript;

use http::Method;
use place::{Place, tenant};
use plimsoll::admin::AdminAccess;
use plimsoll::admin::routes::ROUTES;
use plimsoll::context::{SessionWitness, Turn, TurnOrigin};
use plimsoll::dialect::agent::Agent;
use plimsoll::telemetry::{FailOpen, RECENT};
use serde_json::{Value, json};
use support::looking::access;
use support::within;

#[tokio::test]
async fn probes_answer() {
    let place = Place::new().await;
    assert_eq!(place.get("/healthz").await.text(), "alive\n");
    let ready = place.get("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert_eq!(ready.text(), "ready\n");
}

/// A session is listed with its names, model, window and threads if that is requested; one of an earlier version has none.
#[tokio::test]
async fn sessions_list_their_names() {
    let place = Place::new().await;
    let agent = Agent { name: "Claude Code".into(), version: Some("2.1.332".into()) };
    let origin = TurnOrigin {
        found_by: Some(SessionWitness::Prefix),
        agent: Some(agent),
        project: Some("#3f2a91c0".into()),
        title: Some("<b>Tides".into()),
        ..TurnOrigin::default()
    };
    let named = Turn { origin: Some(Box::new(origin)), ..place::turn("r1", "main", 2) };
    place.keep(&tenant(1), "named", named).await;
    place.turn(&tenant(1), "old", "main", 1).await;
    let listed = place.json("/api/v1/sessions?details=true").await;
    let line = &listed["sessions"][0];
    assert_eq!(line["agent"], json!({"name": "Claude Code", "version": "2.1.332"}));
    assert_eq!(line["project"], json!("#3f2a91c0"));
    assert_eq!(line["title"], json!("<b>Tides"));
    assert_eq!(line["found_by"], json!("prefix"));
    assert_eq!(line["main_thread"], json!("main"));
    assert_eq!(line["threads"], json!(1));
    assert!(line["window"].is_u64());
    assert!(line["model"].is_string());
    assert!(line["error"].is_i64());
    let old = &listed["sessions"][1];
    assert_eq!(old.get("agent"), None);
    assert_eq!(old["threads"], json!(1));
    let plain = place.json("/api/v1/sessions").await;
    assert_eq!(plain["sessions"][0].get("agent"), None, "its turns are not read");
    let id = line["id"].as_str().unwrap();
    assert_eq!(place.json(&format!("/api/v1/sessions/{id}")).await["title"], json!("<b>Tides"));
    let why = place.get("/api/v1/requests/r1/explain?format=text").await;
    assert!(why.text().contains("The session was found by its beginning"), "{}", why.text());
}

/// If a liveness probe had to wait, the pod would be restarted.
#[tokio::test]
async fn health_probe_answers_however_many_connections_hang() {
    let place = Place::new().await;
    let mut hanging = Vec::new();
    for half in ["", "GET /healthz HT", "PRI * HTTP/2.0\r\n"] {
        for _ in 0..120 {
            let mut wire = support::http1::Wire::connect(place.address).await;
            wire.send(half).await;
            hanging.push(wire);
        }
        assert_eq!(place.get("/healthz").await.text(), "alive\n");
    }
    // A client that keeps its connection after a request counts, too.
    for _ in 0..200 {
        let mut wire = support::http1::Wire::connect(place.address).await;
        wire.send(format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", place.address)).await;
        assert_eq!(wire.response().await.status(), 200);
        hanging.push(wire);
    }
    assert_eq!(place.get("/healthz").await.text(), "alive\n");
}

#[tokio::test]
async fn draining_server_is_not_ready() {
    let place = Place::new().await;
    place.draining.send_replace(true);
    assert_eq!(place.get("/healthz").await.status(), 200);
    let ready = place.get("/readyz").await;
    assert_eq!(ready.status(), 503);
    assert_eq!(place::json(&ready)["error"]["code"], "not_ready");
}

#[tokio::test]
async fn about_route_names_addresses_mode_and_upstreams() {
    let about = Place::new().await.json("/api/v1/about").await;
    assert_eq!(about["clients"], json!("http://127.0.0.1:2"));
    assert_eq!(about["mode"], json!("observe"));
    assert_eq!(about["upstreams"][0]["base_url"], "http://127.0.0.1:1/base");
}

#[tokio::test]
async fn sessions_come_newest_first() {
    let place = Place::new().await;
    for number in 0..5 {
        place.turn(&tenant(1), &format!("session-{number}"), "main", 1_000 + number).await;
    }
    let page = place.json("/api/v1/sessions?limit=2").await;
    let ids = |page: &Value| -> Vec<String> {
        let lines = page["sessions"].as_array().unwrap().iter();
        lines.map(|line| line["session"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&page), ["session-4", "session-3"]);
    assert_eq!(page["next"], 2);
    // With a cursor the pages are the same, and new sessions do not shift them.
    let after = page["next_after"].as_str().unwrap();
    let by_cursor = place.json(&format!("/api/v1/sessions?limit=2&after={after}")).await;
    let by_number = place.json("/api/v1/sessions?limit=2&skip=2").await;
    assert_eq!(by_cursor["sessions"], by_number["sessions"]);
    let page = place.json("/api/v1/sessions?limit=2&skip=4").await;
    assert_eq!(ids(&page), ["session-0"]);
    assert_eq!(page["next"], Value::Null);
}

#[tokio::test]
async fn invalid_paging_parameter_gets_400() {
    let place = Place::new().await;
    for query in ["limit=many", "skip=-1", "limit=99999999999999999999999", "after=x"] {
        let answer = place.get(&format!("/api/v1/sessions?{query}")).await;
        assert_eq!(answer.status(), 400, "{query}");
        assert_eq!(place::json(&answer)["error"]["code"], "bad_query");
    }
}

#[tokio::test]
async fn session_shows_threads_and_totals() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    place.turn(&tenant(1), "s", "main", 2_000).await;
    place.turn(&tenant(1), "s", "title", 1_500).await;
    let session = place.json(&format!("/api/v1/sessions/{}.s", tenant(1))).await;
    assert_eq!(session["turns"], 3);
    assert_eq!(session["totals"]["input"], 3 * 51_790);
    let threads = session["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    assert_eq!(threads[0]["id"], json!("main"));
    assert_eq!(threads[0]["turns"], json!(2));
    assert_eq!(threads[0]["measured"]["estimated"], 52_100);
    assert_eq!(threads[0]["measured"]["error"], 310);
    assert_eq!(threads[1]["id"], "title");
}

/// The view as text, and the same numbers as JSON.
#[tokio::test]
async fn context_is_text_and_json() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    let path = format!("/api/v1/sessions/{}.s/threads/main/context", tenant(1));
    let view = place.json(&path).await;
    assert_eq!(view["total"], json!(53_790));
    assert_eq!(view["window"], json!(200_000));
    assert_eq!(view["basis"]["input"], json!(51_790));
    assert_eq!(view["free"], json!(130_210));
    let text = place.get(&format!("{path}?format=text")).await;
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    let expected = "Context Usage: 53,790 / 200,000 tokens (27%)\n━━━";
    assert!(text.text().starts_with(expected), "{}", text.text());
    assert!(text.text().contains("Last estimate accuracy: +0.6% error\n"), "{}", text.text());
    let accepted = place.ask("GET", &path, &[("accept", "text/plain")]).await;
    assert_eq!(accepted.text(), text.text());
    let headers = [("accept", "text/plain")];
    let json = place.ask("GET", &format!("{path}?format=json"), &headers).await;
    assert_eq!(place::json(&json), view);
}

/// The cache of a turn of long ago is gone. Sonnet 4.5 costs $3 a million tokens of input, $3.75 written to the cache.
#[tokio::test]
async fn price_of_next_input_is_in_views_and_list() {
    let place = Place::new().await;
    place.turn(&tenant(1), "s", "main", 1_000).await;
    let context = place.json("/api/v1/sessions/s/threads/main/context").await;
    let next_input = &context["next_input"];
    assert_eq!(next_input["dollars"], next_input["cold"], "{next_input}");
    let session = place.json("/api/v1/sessions/s").await;
    assert_eq!(session["threads"][0]["context"]["next_input"], *next_input);
    let listed = place.json("/api/v1/sessions?details=true").await;
    assert_eq!(listed["sessions"][0]["next_input"], *next_input);
}

/// The last turns are of a side call and of a sub-agent, but a user who asks for the context means the conversation.
#[tokio::test]
async fn context_is_that_of_main_thread() {
    let place = beside_conversation().await;
    for thread in ["main", "latest"] {
        let context = place.json(&format!("/api/v1/sessions/s/threads/{thread}/context")).await;
        assert_eq!(context["total"], 53_790, "{thread}");
        assert_eq!(context["shown"]["thread"], "r1");
        assert_eq!(context["shown"]["main"], true);
    }
    let line = place.json("/api/v1/line?session=s").await;
    assert_eq!(line["total"], 53_790);
    let text = place.get("/api/v1/sessions/s/threads/main/context?format=text").await;
    let text = text.text();
    let shown = "Thread: main, claude-sonnet-4-5, 1970-01-01T00:00:01Z\nSession: s\n";
    assert!(text.ends_with(shown), "{text}");
}

#[tokio::test]
async fn other_threads_are_named() {
    let place = beside_conversation().await;
    for thread in ["r3", "reviewer"] {
        let path = format!("/api/v1/sessions/s/threads/{thread}/context?format=text");
        let text = place.get(&path).await;
        let text = text.text();
        assert!(text.contains("\nThread: sub-agent reviewer, claude-sonnet-4-5, "), "{text}");
    }
    let answer = place.get("/api/v1/sessions/s/threads/none/context").await;
    assert_eq!(answer.status(), 404);
}

/// A conversation, and after it a title and a sub-agent.
async fn beside_conversation() -> Place {
    let place = Place::new().await;
    place.keep(&tenant(1), "s", place::turn("r1", "r1", 1_000)).await;
    let mut title = place::turn("r2", "r2", 2_000);
    title.purpose = plimsoll::dialect::Purpose::Side;
    title.usage.input = Some(7);
    place.keep(&tenant(1), "s", title).await;
    let mut agent = place::turn("r3", "r3", 3_000);
    agent.usage.input = Some(9);
    agent.position.client_thread = Some("reviewer".into());
    place.keep(&tenant(1), "s", agent).await;
    place
}

/// Clients choose session ids, so they may contain anything.
#[tokio::test]
async fn session_is_found_by_any_id_that_client_chose() {
    let place = Place::new().await;
    let odd = "user/1 {\"a\":\"é%\"}";
    place.turn(&tenant(1), odd, "main", 1_000).await;
    let path = format!("/api/v1/sessions/{}", plimsoll::dialect::percent::encoded(odd));
    let session = place.json(&path).await;
    assert_eq!(session["session"], odd);
}

#[tokio::test]
async fn beginning_of_id_is_enough() {
    let place = Place::new().await;
    place.turn(&tenant(1), "c0e2960e-one", "main", 1_000).await;
    place.turn(&tenant(1), "c0e2960e-two", "main", 2_000).await;
    let get = async |id: &str| place.get(&format!("/api/v1/sessions/{id}")).await;
    assert_eq!(place.json("/api/v1/sessions/c0e2960e-o").await["session"], "c0e2960e-one");
    assert_eq!(place.json("/api/v1/sessions/latest").await["session"], "c0e2960e-two");
    assert_eq!(get("c0e2960e").await.status(), 409);
    assert_eq!(get("c0").await.status(), 404);
    // Nothing is deleted by half an id.
    let deleted = place.ask("DELETE", "/api/v1/sessions/c0e2960e-o", &[]).await;
    assert_eq!(deleted.status(), 404);
}

#[tokio::test]
async fn id_of_two_tenants_is_ambiguous() {
    let place = Place::new().await;
    place.turn(&tenant(1), "same", "main", 1_000).await;
    place.turn(&tenant(2), "same", "main", 2_000).await;
    let answer = place.get("/api/v1/sessions/same").await;
    assert_eq!(answer.status(), 409);
    for tenant in [tenant(1), tenant(2)] {
        assert!(answer.text().contains(&format!("{tenant}.same")), "{}", answer.text());
        let session = place.json(&format!("/api/v1/sessions/{tenant}.same")).await;
        assert_eq!(session["tenant"], json!(tenant));
        assert_eq!(session["turns"], json!(1));
    }
}

#[tokio::test]
async fn compaction_is_requested_and_impossible_one_refused() {
    let place = Place::new().await;
    place.turn(&tenant(1), "mine", "main", 1_000).await;
    let path = format!("/api/v1/sessions/{}.mine/compact", tenant(1));
    let answer = place.ask("POST", &format!("{path}?focus=the%20tests"), &[]).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(place.ask("GET", &path, &[]).await.status(), 405);
    let long = format!("{path}?focus={}", "x".repeat(4001));
    assert_eq!(place.ask("POST", &long, &[]).await.status(), 400);
    // Of a megabyte, only as much is read as the limit of a request line allows.
    let endless = format!("{path}?focus={}", "x".repeat(1 << 20));
    let mut wire = support::http1::Wire::connect(place.address).await;
    // The request may be refused and the connection closed before all of it was written.
    let ask = format!("POST {endless} HTTP/1.1\r\nhost: {}\r\n\r\n", place.address);
    let _ = tokio::io::AsyncWriteExt::write_all(&mut wire.stream, ask.as_bytes()).await;
    let answer = wire.rest().await.unwrap_or_default();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert_eq!(place.get("/healthz").await.status(), 200);
    let answer = place.ask("POST", "/api/v1/sessions/nobody/compact", &[]).await;
    assert_eq!(answer.status(), 404);
}

#[tokio::test]
async fn only_that_session_is_deleted() {
    let place = Place::new().await;
    place.turn(&tenant(1), "kept", "main", 1_000).await;
    place.turn(&tenant(1), "gone", "main", 1_000).await;
    let path = format!("/api/v1/sessions/{}.gone", tenant(1));
    assert_eq!(place.get(&path).await.status(), 200, "it is in memory too");
    let answer = place.ask("DELETE", &path, &[]).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(place::json(&answer)["records"].as_u64(), Some(1));
    assert_eq!(place.get(&path).await.status(), 404);
    assert_eq!(place.ask("DELETE", &path, &[]).await.status(), 404);
    let left = place.json("/api/v1/sessions").await;
    assert_eq!(left["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(left["sessions"][0]["session"], "kept");
}

#[tokio::test]
async fn exchange_can_be_looked_up() {
    let place = Place::new().await;
    place.telemetry.report(place::exchange("abc"));
    let found = place.json("/api/v1/requests/abc").await;
    assert_eq!(found["id"], json!("abc"));
    assert_eq!(found["usage"]["input"], json!(51_790));
    assert_eq!(found["actual"], json!(51_790));
    assert_eq!(found["error"], json!(310));
    let answer = place.get("/api/v1/requests/other").await;
    assert_eq!(answer.status(), 404);
    assert!(answer.text().contains(&RECENT.to_string()), "{}", answer.text());
}

#[tokio::test]
async fn live_subscribers_get_each_exchange_at_its_end() {
    let place = Place::new().await;
    let mut wire = place.open("GET", "/api/v1/events", &[]).await;
    let head = wire.head().await;
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    wire.until(": listening\n\n").await;
    for id in ["first", "second"] {
        place.telemetry.report(place::exchange(id));
        let event = String::from_utf8(wire.until("\n\n").await).unwrap();
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        assert!(event.contains("event: exchange\n"), "{event}");
        assert_eq!(serde_json::from_str::<Value>(data).unwrap()["id"], id);
    }
}

/// A subscriber that is too slow misses events, gets their number, and delays nothing.
#[tokio::test]
async fn slow_subscriber_hears_of_misses() {
    let place = Place::new().await;
    let mut wire = place.open("GET", "/api/v1/events", &[]).await;
    wire.until(": listening\n\n").await;
    // Without a pause in between, so that the listener cannot send any.
    (0..1_000).for_each(|number| place.telemetry.report(place::exchange(&number.to_string())));
    wire.until("event: missed\ndata: {\"missed\":").await;
    place.telemetry.report(place::exchange("after"));
    wire.until("id: after\n").await;
}

#[tokio::test]
async fn live_streams_end_with_listener() {
    let mut place = Place::new().await;
    let mut wire = place.open("GET", "/api/v1/events", &[]).await;
    wire.until(": listening\n\n").await;
    place.stop().await;
    within("the stream to end", wire.gone()).await;
}

#[tokio::test]
async fn metrics_are_what_telemetry_counted() {
    let place = Place::new().await;
    let mut exchange = place::exchange("abc");
    exchange.fail_open.push(FailOpen::Store);
    place.telemetry.report(exchange);
    let metrics = place.get("/metrics").await;
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    assert!(metrics.text().contains("plimsoll_fail_open_total{reason=\"store\"} 1"));
    assert!(metrics.text().contains("process_resident_memory_bytes"));
}

#[tokio::test]
async fn without_token_only_probes_bare_page_and_openapi_file_are_open() {
    let place = Place::new().await;
    let none = [("authorization", place::ABSENT)];
    let open = ["/", "/healthz", "/readyz", "/api/v1/openapi.json"];
    for path in open {
        assert_eq!(place.ask("GET", path, &none).await.status(), 200, "{path}");
    }
    let routes = ROUTES.iter().map(|(method, path, _)| (method.clone(), *path));
    let closed = routes.filter(|(_, path)| !open.contains(path) && *path != "/ui/{file}");
    for (method, path) in closed.chain([(Method::GET, "/nowhere")]) {
        let target = path.replace(['{', '}'], "");
        let answer = place.ask(method.as_str(), &target, &none).await;
        assert_eq!(answer.status(), 401, "{method} {path}");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    let wrong = [("authorization", "Bearer token-of-the-tests-for-everythin")];
    assert_eq!(place.ask("GET", "/metrics", &wrong).await.status(), 401);
}

/// A listener on loopback refuses requests for another host's name, even with a token.
#[tokio::test]
async fn token_does_not_excuse_foreign_host() {
    let place = Place::new().await;
    let rebound = [("host", "plimsoll.example")];
    assert_eq!(place.ask("GET", "/metrics", &rebound).await.status(), 421);
}

#[tokio::test]
async fn metrics_are_open_if_configured() {
    let place = Place::open_to(AdminAccess { metrics_open: true, ..access() }).await;
    let none = [("authorization", place::ABSENT)];
    assert_eq!(place.ask("GET", "/metrics", &none).await.status(), 200);
    assert_eq!(place.ask("GET", "/api/v1/sessions", &none).await.status(), 401);
}

#[tokio::test]
async fn admin_listener_refuses_foreign_hosts_and_origins() {
    let place = Place::new().await;
    let rebound = [("host", "evil.example")];
    assert_eq!(place.ask("GET", "/api/v1/sessions", &rebound).await.status(), 421);
    let foreign = [("origin", "http://evil.example")];
    let answer = place.ask("DELETE", "/api/v1/sessions/x", &foreign).await;
    assert_eq!(answer.status(), 403);
    assert!(answer.header("access-control-allow-origin").is_none());
}

/// Every response has headers that keep other sites from reading it.
#[tokio::test]
async fn responses_have_security_headers() {
    let place = Place::new().await;
    for path in ["/", "/healthz", "/metrics", "/api/v1/sessions", "/api/v1/sessions/none", "/x"] {
        let answer = place.get(path).await;
        for (name, value) in [
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}: {name}");
        }
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"));
        assert!(policy.contains("frame-ancestors 'none'"));
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_get_error_with_hint() {
    let place = Place::new().await;
    let answer = place.get("/api/v2/sessions").await;
    assert_eq!(answer.status(), 404);
    assert!(answer.text().contains("/api/v1/openapi.json"));
    let answer = place.ask("POST", "/api/v1/sessions", &[]).await;
    assert_eq!(answer.status(), 405);
    assert!(answer.text().contains("GET"));
}

/// The page loads its own files, by relative addresses, and its policy allows no others.
#[tokio::test]
async fn page_loads_nothing_foreign() {
    let place = Place::new().await;
    let none = [("authorization", place::ABSENT)];
    let page = place.ask("GET", "/", &none).await;
    assert_eq!(page.status(), 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let page = page.text();
    let mut texts = vec![page.to_owned()];
    let mut files: Vec<String> = ["src=\"", "href=\""]
        .iter()
        .flat_map(|attribute| page.split(attribute).skip(1))
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .filter(|address| !address.starts_with('#'))
        .collect();
    assert!(files.len() >= 4, "{files:?}");
    while let Some(file) = files.pop() {
        let path = format!("/{file}");
        assert!(file.starts_with("ui/"), "{file}");
        let answer = place.ask("GET", &path, &none).await;
        assert_eq!(answer.status(), 200, "{path}");
        if file == "ui/uplot.js" {
            // It belongs to others, who name their address in a comment.
            continue;
        }
        let text = answer.text().to_owned();
        for line in text.lines().filter(|line| line.starts_with("import ")) {
            let name = line.split('"').nth(1).unwrap().trim_start_matches("./");
            files.push(format!("ui/{name}"));
        }
        texts.push(text);
    }
    for text in &texts {
        for outside in ["https://", "@import", "url(", "innerHTML", "<style", "<script>"] {
            assert!(!text.contains(outside), "the page names {outside}");
        }
    }
    assert_eq!(place.ask("GET", "/ui/none.js", &none).await.status(), 404);
}
