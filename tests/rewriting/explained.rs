//! What was done to a request is explained, and what it saved is summed, through the admin listener.

use plimsoll::config::Mode;
use plimsoll::context::ExchangeId;
use plimsoll::context::policy::{Policy, PruneGate};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};
use crate::support::looking::Looking;

const MODEL: &str = "claude-sonnet-4-5";

fn counts(steps: &Value, decision: &str) -> usize {
    let steps = steps.as_array().unwrap().iter();
    steps.filter(|step| step["decision"] == decision).count()
}

/// A cut, its repetition, and an explanation after a restart.
#[tokio::test]
async fn cuts_are_explained_when_they_are_new_and_when_they_are_repeated() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let request = anthropic_request(MODEL, &history(6));
    let first = play.exchange(&request, &reply).await;
    let cut = first.exchange.done.made.cut;
    let looking = Looking::at(&play.server, &play.config).await;
    let explain = |id: &ExchangeId| format!("/api/v1/requests/{id}/explain");
    let explained = looking.json(&explain(&first.exchange.id)).await;
    assert_eq!(explained["mode"], json!("active"));
    assert_eq!(explained["sent_changed"], json!(true));
    assert_eq!(explained["new"]["cut"], json!(cut));
    assert_eq!(explained["unlisted"], json!(0));
    let step = &explained["steps"][0];
    assert_eq!(step["why"], json!("always"));
    assert_eq!(step["section"], json!("docs/rewriting.md \"Old tool results\""));
    let at = (step["message"].as_u64().unwrap(), step["part"].as_u64().unwrap());
    let content = &request["messages"][at.0 as usize]["content"][at.1 as usize]["content"];
    let byte = step["byte"].as_u64().unwrap() as usize;
    let text = request.to_string();
    assert!(text[byte..].starts_with(&content.to_string()), "the place is where the result was");

    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    play.config.policy = Policy::default().into();
    play.restart().await;
    let second = play.exchange(&anthropic_request(MODEL, &longer), &reply).await;
    play.restart().await;
    let looking = Looking::at(&play.server, &play.config).await;
    assert!(play.server.telemetry.recent(&second.exchange.id).is_none());
    let explained = looking.json(&explain(&second.exchange.id)).await;
    assert_eq!(explained["made"]["cut"], json!(cut));
    assert_eq!(explained["new"]["cut"], json!(0));
    assert_eq!(counts(&explained["steps"], "replayed"), cut as usize);
    assert_eq!(explained["unlisted"], 0);
    let step = &explained["steps"][0];
    assert_eq!(step["decided_by"], first.exchange.id.as_str());
    // Nothing before this turn changed, so the cache is not expected to break.
    let cache = &explained["cache"];
    assert_eq!(cache["kept"], cache["kept_of"]);
    assert_eq!(cache["breaks_in"], Value::Null);
    assert_eq!(cache["before"]["request"], first.exchange.id.as_str());
    assert_eq!(cache["now"]["read"], json!(300));
    assert_eq!(cache["now"]["written"], json!(500));

    let answer = looking.get(&format!("{}?format=text", explain(&second.exchange.id))).await;
    let text = answer.text();
    let line = format!("\nChanges: {cut} tool results cut; ");
    for part in [
        &line,
        "\nReplayed:\n  cut a tool result",
        "\n    the policy cuts",
        "100% of the turn before",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("Line 0 of the log"), "no text of a prompt");
}

/// Calls of Gemini have no ids of their own, so their cuts are stored by position, and two results may be equal.
#[tokio::test]
async fn repeated_cuts_of_gemini_are_listed() {
    let mut play = Play::of("/v1beta/models/gemini-2.5-pro:generateContent", eager()).await;
    let mut contents = vec![json!({"role": "user", "parts": [{"text": "Read them all."}]})];
    for number in 0..6 {
        let output = format!("Line {} of the log. ", number / 2).repeat(40);
        let call = json!({"functionCall": {"name": "read", "args": {"path": number}}});
        let result = json!({"functionResponse": {"name": "read", "response": {"output": output}}});
        contents.push(json!({"role": "model", "parts": [call]}));
        contents.push(json!({"role": "user", "parts": [result]}));
    }
    let answer = json!({"role": "model", "parts": [{"text": "Go on."}]});
    let reply = json!({"candidates": [{"content": answer, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 900, "candidatesTokenCount": 5, "totalTokenCount": 905}});
    let first = play.exchange(&json!({"contents": contents}), &reply).await;
    let cut = first.exchange.done.new.cut;
    assert!(cut >= 4, "{:?}", first.exchange.done);

    contents.extend([answer, json!({"role": "user", "parts": [{"text": "And now?"}]})]);
    play.config.policy = Policy::default().into();
    play.restart().await;
    let second = play.exchange(&json!({"contents": contents}), &reply).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let path = format!("/api/v1/requests/{}/explain", second.exchange.id);
    let explained = looking.json(&path).await;
    assert_eq!(explained["made"]["cut"], cut);
    assert_eq!(counts(&explained["steps"], "replayed"), cut as usize);
    assert_eq!(explained["unlisted"], 0);
}

/// There is a new cut in the middle: the cache is expected to break there.
#[tokio::test]
async fn cut_says_how_much_cache_stays() {
    let mut policy = eager();
    policy.prune.gate = Vec::new();
    let mut play = Play::of("/v1/messages", policy).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    play.config.policy = eager().into();
    play.restart().await;
    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    let scene = play.exchange(&anthropic_request(MODEL, &longer), &reply).await;
    assert!(scene.exchange.done.new.cut > 0);
    let looking = Looking::at(&play.server, &play.config).await;
    let explained = looking.json(&format!("/api/v1/requests/{}/explain", scene.exchange.id)).await;
    let cache = &explained["cache"];
    assert_eq!(cache["breaks_in"], "history");
    let (kept, of) = (cache["kept"].as_u64().unwrap(), cache["kept_of"].as_u64().unwrap());
    assert!(kept > 0, "{kept} of {of}");
    assert!(kept * 2 < of, "{kept} of {of}");
}

#[tokio::test]
async fn refused_cut_names_its_rule() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let mut policy = eager();
    policy.prune.gate = vec![PruneGate::Pressure];
    play.config.policy = policy.into();
    play.restart().await;
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let scene = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let path = format!("/api/v1/requests/{}/explain?format=text", scene.exchange.id);
    let text = looking.get(&path).await.text().to_owned();
    for part in [
        "Nothing was changed.\nNot made:\n",
        "    no condition in prune.gate is met (docs/rewriting.md \"Old tool results\")\n",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let none = looking.get("/api/v1/requests/nobody/explain").await;
    assert_eq!(none.status(), 404);
}

/// A guessed window leads to no decision, and the view says that it is guessed.
#[tokio::test]
async fn guessed_window_triggers_no_cut_and_is_shown_as_guess() {
    const UNKNOWN: &str = "mistralai/Mixtral-8x7B-Instruct-v0.1";
    let mut policy = eager();
    (policy.prune.gate, policy.prune.pressure) = (vec![PruneGate::Pressure], 0.001);
    policy.prune.horizon_turns = 20;
    let mut play = Play::of("/v1/messages", policy).await;
    let reply = |model| anthropic_reply("m1", model, json!([{"type": "text", "text": "Go on."}]));
    let scene = play.exchange(&anthropic_request(UNKNOWN, &history(6)), &reply(UNKNOWN)).await;
    assert_eq!(scene.exchange.done.made.cut, 0, "{:?}", scene.exchange.done);
    let looking = Looking::at(&play.server, &play.config).await;
    let path = format!("/api/v1/requests/{}/explain?format=text", scene.exchange.id);
    let text = looking.get(&path).await.text().to_owned();
    assert!(text.contains("\n    the model is unknown"), "{text}");
    let path = format!("/api/v1/sessions/{}/threads/latest/context?format=text", play.session);
    let view = looking.get(&path).await.text().to_owned();
    assert!(view.contains("its window is a guess"), "{view}");
    play.session = "another";
    let scene = play.exchange(&anthropic_request(MODEL, &history(6)), &reply(MODEL)).await;
    assert!(scene.exchange.done.new.cut > 0, "of a known model it would be cut");
}

#[tokio::test]
async fn savings_have_their_denominators_and_shadow_saves_nothing() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let first = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let removed = first.exchange.done.tokens_removed;
    play.session = "the-shadow";
    play.headers = "x-plimsoll-mode: shadow\r\n".to_owned();
    let shadow = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    assert_eq!(shadow.exchange.done.tokens_removed, removed);
    // A session that is not in memory counts, too.
    play.restart().await;
    let looking = Looking::at(&play.server, &play.config).await;
    let savings = looking.json("/api/v1/savings").await;
    let total = &savings["total"];
    let sent = 2 * 1800;
    assert_eq!(total["turns"], json!(2));
    assert_eq!(total["pruned_turns"], json!(1));
    assert_eq!(total["removed"], json!(removed));
    assert_eq!(total["in_shadow"], json!(removed));
    assert_eq!(total["sent"], json!(sent));
    assert_eq!(total["priced_turns"], json!(2));
    let share = removed as f64 / (removed + sent) as f64;
    assert!((total["removed_share"].as_f64().unwrap() - share).abs() < 1e-9);
    assert!(total["net"].as_f64().unwrap() > 0.0);
    assert_eq!(savings["counted"], json!(2));
    assert_eq!(savings["comparison"], Value::Null);
    let one = looking.json("/api/v1/sessions/the-shadow/savings").await;
    assert_eq!(one["total"]["removed"], json!(0));
    assert_eq!(one["counted"], json!(1));
    let text = looking.get("/api/v1/savings?format=text").await;
    assert!(text.text().starts_with("Savings of 2 sessions\n"), "{}", text.text());
    assert!(text.text().contains("% of "), "{}", text.text());
}

#[tokio::test]
async fn savings_compare_held_out_sessions_with_others() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let mut policy = eager();
    policy.prune.hold_out = 1.0;
    play.config.policy = policy.into();
    play.restart().await;
    // A session that was rewritten before it was held out belongs to neither group.
    play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    play.session = "untouched";
    play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    play.session = "observed";
    play.headers = "x-plimsoll-mode: observe\r\n".to_owned();
    play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    play.config.mode = Mode::Active;
    let looking = Looking::at(&play.server, &play.config).await;
    let comparison = looking.json("/api/v1/savings").await["comparison"].clone();
    assert_eq!(comparison["held_out"]["sessions"], 1);
    assert_eq!(comparison["held_out"]["median_input"], 1800);
    assert_eq!(comparison["mixed"], json!(2));
    assert_eq!(comparison["others"]["sessions"], json!(0));
    assert_eq!(comparison["enough"], false);
    let text = looking.get("/api/v1/savings?format=text").await;
    assert!(text.text().contains("too few for a conclusion"), "{}", text.text());
}

/// The context of a request that has no response yet, and is the first of its session.
#[tokio::test]
async fn request_on_its_way_is_shown() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let looking = Looking::at(&play.server, &play.config).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(6))).await;
    let mut call = play.provider.call().await;
    let path = format!("/api/v1/sessions/{}/threads/latest/context", play.session);
    let view = looking.json(&path).await;
    let estimate = view["total"].as_u64().unwrap();
    assert_eq!(view["in_flight"], json!(true));
    assert_eq!(view["method"], json!("estimated"));
    assert!(view["rewriting"]["made"]["cut"].as_u64().unwrap() > 0);
    let text = looking.get(&format!("{path}?format=text")).await.text().to_owned();
    assert!(text.contains("(estimated, in flight)\n"), "{text}");
    assert!(text.contains("\nRewriting (active): "), "{text}");
    // Nobody has to know its name.
    let latest = looking.json("/api/v1/sessions/latest/threads/latest/context").await;
    assert_eq!(latest["total"], view["total"]);

    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    call.answer("200 OK", &reply.to_string()).await;
    client.response().await;
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.estimate.as_ref().unwrap().tokens, estimate);
    let view = looking.json(&path).await;
    assert_eq!(view["in_flight"], json!(false));
    assert_eq!(view["total"], json!(1850));
    assert_eq!(view["rewriting"]["made"]["cut"], exchange.done.made.cut);
}
