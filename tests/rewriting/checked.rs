//! A provider's counting endpoint is queried beside the request: the result is used, and nothing waits for it but a
//! request with media where an agent's rules decide.

use plimsoll::context::ProviderCount;
use plimsoll::context::policy::{CountSchedule, Policy};
use plimsoll::dialect::models::{Catalogue, ModelOverride};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::presets::play_at;
use crate::pruned::{eager, history};
use crate::refused::BOUND;
use crate::support::http1::Call;
use plimsoll::config::presets::Preset;

const MODEL: &str = "claude-sonnet-4-5";

fn asking(count: CountSchedule) -> Policy {
    let mut policy = eager();
    policy.estimate.count = count;
    policy
}

/// The turn and the count, which may arrive in either order.
async fn both(play: &mut Play) -> (Call, Call) {
    let (one, other) = (play.provider.call().await, play.provider.call().await);
    let is_count = |call: &Call| call.message.first_line().contains("/v1/messages/count_tokens ");
    assert!(is_count(&one) != is_count(&other));
    if is_count(&one) { (other, one) } else { (one, other) }
}

fn reply(id: &str) -> String {
    anthropic_reply(id, MODEL, json!([{"type": "text", "text": "Go on."}])).to_string()
}

/// How many counting requests had this outcome.
fn questions(play: &Play, outcome: &str) -> u64 {
    let metrics = play.server.telemetry.render();
    let label = format!("outcome=\"{outcome}\"");
    let line = |line: &&str| {
        line.starts_with("plimsoll_estimate_questions_total{") && line.contains(&label)
    };
    let found = metrics.lines().find(line).and_then(|line| line.rsplit(' ').next()?.parse().ok());
    found.unwrap_or(0)
}

async fn until_questions(play: &Play, outcome: &str, times: u64) {
    let seen = async {
        while questions(play, outcome) < times {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    crate::support::within(outcome, seen).await;
}

async fn counted(play: &Play) -> Vec<Option<ProviderCount>> {
    let scope = play.server.ledgers.scopes_of(&play.session.into()).await.unwrap().remove(0);
    let look = |ledger: &plimsoll::context::ledger::Ledger| {
        ledger.turns().map(|turn| turn.counted).collect()
    };
    play.server.ledgers.look(&scope, look).await.unwrap()
}

#[tokio::test]
async fn sampled_count_sends_original_request_and_credentials() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::Sample(1.0))).await;
    play.headers = "anthropic-beta: some-beta\r\n".to_owned();
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let (mut turn, mut count) = both(&mut play).await;
    assert_ne!(turn.message.text(), request.to_string());
    let mut came = request.clone();
    came.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(serde_json::from_str::<Value>(count.message.text()).unwrap(), came);
    for (name, value) in
        [("x-api-key", "k"), ("anthropic-beta", "some-beta"), ("accept-encoding", "identity")]
    {
        assert_eq!(count.message.header(name), Some(value), "{name}");
    }
    count.answer("200 OK", r#"{"input_tokens": 54321}"#).await;
    until_questions(&play, "answered", 1).await;
    turn.answer("200 OK", &reply("m1")).await;
    assert_eq!(client.response().await.text(), reply("m1"));
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.saved.unwrap().came, Some(54321));
    assert_eq!(counted(&play).await, [Some(ProviderCount { of_original: true, tokens: 54321 })]);
}

#[tokio::test]
async fn no_answer_waits_for_count() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::Sample(1.0))).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(6))).await;
    let (mut turn, mut count) = both(&mut play).await;
    turn.answer("200 OK", &reply("m1")).await;
    assert_eq!(client.response().await.text(), reply("m1"));
    assert_eq!(play.server.next_exchange().await.saved.unwrap().came, None);
    count.answer("200 OK", "<html>").await;
    until_questions(&play, "failed", 1).await;
    drop((turn, count));
    // The endpoint is not queried for a while.
    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    let reply = anthropic_reply("m2", MODEL, json!([]));
    play.exchange(&anthropic_request(MODEL, &longer), &reply).await;
    assert_eq!(questions(&play, "paused"), 1);
}

#[tokio::test]
async fn upstream_without_count_endpoint_is_not_queried_again() {
    // At a router the chosen backend counts, or does not.
    for backend in [json!({}), json!({"provider": {"only": ["x"]}})] {
        let request = |text: &str| {
            let mut request = anthropic_request(MODEL, &[message("user", json!(text))]);
            request.as_object_mut().unwrap().extend(backend.as_object().unwrap().clone());
            request
        };
        let mut play = Play::of("/v1/messages", asking(CountSchedule::Cold)).await;
        let mut client = play.send_request(&request("Hm.")).await;
        let (mut turn, mut count) = both(&mut play).await;
        count.answer("404 Not Found", "{}").await;
        until_questions(&play, "missing", 1).await;
        turn.answer("200 OK", &reply("m1")).await;
        client.response().await;
        play.server.next_exchange().await;
        drop((turn, count));
        play.restart().await;
        play.session = "another";
        play.exchange(&request("Well."), &anthropic_reply("m2", MODEL, json!([]))).await;
        until_questions(&play, "missing", 1).await;
    }
}

#[tokio::test]
async fn cold_request_is_counted_as_it_is_sent_and_warm_one_is_not() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::Cold)).await;
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let (mut turn, mut count) = both(&mut play).await;
    let mut sent: Value = serde_json::from_str(turn.message.text()).unwrap();
    sent.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(serde_json::from_str::<Value>(count.message.text()).unwrap(), sent);
    count.answer("200 OK", r#"{"input_tokens": 99}"#).await;
    until_questions(&play, "answered", 1).await;
    turn.answer("200 OK", &reply("m1")).await;
    client.response().await;
    assert_eq!(play.server.next_exchange().await.saved.unwrap().came, None);
    assert_eq!(counted(&play).await, [Some(ProviderCount { of_original: false, tokens: 99 })]);
    drop((turn, count));
    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    // A second count would be the next request that the provider gets.
    play.exchange(&anthropic_request(MODEL, &longer), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    assert_eq!(counted(&play).await.iter().flatten().count(), 1);
}

#[tokio::test]
async fn prompt_is_counted_near_threshold_and_not_below_it() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::NearThreshold)).await;
    play.config.catalogue = Catalogue::new(vec![ModelOverride {
        name: MODEL.into(),
        window: Some(40_000),
        ..ModelOverride::default()
    }]);
    play.restart().await;
    // A count would be the next request that the provider gets.
    let small = vec![message("user", json!("word ".repeat(5_000)))];
    play.exchange(&anthropic_request(MODEL, &small), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    assert_eq!(counted(&play).await, [None]);
    let large = vec![message("user", json!("word ".repeat(34_000)))];
    let mut client = play.send_request(&anthropic_request(MODEL, &large)).await;
    let (mut turn, mut count) = both(&mut play).await;
    count.answer("200 OK", r#"{"input_tokens": 34123}"#).await;
    until_questions(&play, "answered", 1).await;
    turn.answer("200 OK", &reply("m2")).await;
    client.response().await;
    play.server.next_exchange().await;
    let last = counted(&play).await.into_iter().flatten().last();
    assert_eq!(last, Some(ProviderCount { of_original: true, tokens: 34_123 }));
}

#[tokio::test]
async fn counting_pauses_after_429_and_repeated_prompts_are_not_recounted() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::Cold)).await;
    let request = anthropic_request(MODEL, &[message("user", json!("Hm."))]);
    let mut client = play.send_request(&request).await;
    let (mut turn, mut count) = both(&mut play).await;
    count.answer("200 OK", r#"{"input_tokens": 9}"#).await;
    until_questions(&play, "answered", 1).await;
    turn.answer("200 OK", &reply("m1")).await;
    client.response().await;
    play.server.next_exchange().await;
    drop((turn, count));
    play.session = "another";
    play.exchange(&request, &anthropic_reply("m2", MODEL, json!([]))).await;
    until_questions(&play, "cached", 1).await;
    play.session = "a third";
    let mut client =
        play.send_request(&anthropic_request(MODEL, &[message("user", json!("Well."))])).await;
    let (mut turn, mut count) = both(&mut play).await;
    count
        .send("HTTP/1.1 429 Too Many Requests\r\nretry-after: 3000\r\ncontent-length: 0\r\n\r\n")
        .await;
    until_questions(&play, "refused", 1).await;
    turn.answer("200 OK", &reply("m3")).await;
    client.response().await;
    play.server.next_exchange().await;
    drop((turn, count));
    play.session = "a fourth";
    play.exchange(
        &anthropic_request(MODEL, &[message("user", json!("So."))]),
        &anthropic_reply("m4", MODEL, json!([])),
    )
    .await;
    assert_eq!(questions(&play, "paused"), 1);
}

const GEMINI: &str = "/v1beta/models/gemini-2.5-pro:generateContent";

/// A session of Gemini CLI's preset.
async fn gemini_cli() -> Play {
    play_at(GEMINI, Preset::GeminiCli, &[]).await
}

fn gemini_reply() -> Value {
    json!({"responseId": "r1", "modelVersion": "gemini-2.5-pro",
        "candidates": [{"index": 0, "finishReason": "STOP",
            "content": {"role": "model", "parts": [{"text": "Three metres."}]}}],
        "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 5, "totalTokenCount": 305}})
}

fn says(text: &str) -> Value {
    json!({"role": "user", "parts": [{"text": text}]})
}

/// 20 characters of text and a picture, which the rules count as 3,005.
fn shows() -> Value {
    let picture = json!({"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}});
    json!({"role": "user", "parts": [{"text": "And how deep is she?"}, picture]})
}

/// The numbers by which the turns of its session were decided.
async fn decided(play: &Play) -> Vec<u64> {
    let scope = play.server.ledgers.scopes_of(&play.session.into()).await.unwrap().remove(0);
    let look = |ledger: &plimsoll::context::ledger::Ledger| {
        ledger.turns().filter_map(|turn| Some(turn.estimate.as_ref()?.tokens)).collect()
    };
    play.server.ledgers.look(&scope, look).await.unwrap()
}

/// Under Gemini CLI's preset a request with a new picture waits for the provider's count of its message, which is
/// then the number that decides. Nothing else is counted so, and no message twice.
#[tokio::test]
async fn gemini_cli_decides_by_count_of_media() {
    let mut play = gemini_cli().await;
    // A count would be the next request that the provider gets.
    play.exchange(&json!({"contents": [says("How long is she?")]}), &gemini_reply()).await;
    let answer = gemini_reply()["candidates"][0]["content"].clone();
    let mut history = vec![says("How long is she?"), answer.clone(), shows()];
    let mut client = play.send_request(&json!({"contents": history})).await;
    let mut count = play.provider.call().await;
    assert!(count.message.first_line().contains(":countTokens "), "before the turn");
    let question = json!({"model": "models/gemini-2.5-pro", "contents": [shows()]});
    let asked: Value = serde_json::from_str(count.message.text()).unwrap();
    assert_eq!(asked, json!({"generateContentRequest": question}));
    count.answer("200 OK", r#"{"totalTokens": 1337}"#).await;
    let mut turn = count.wire.request().await;
    turn.answer("200 OK", &gemini_reply().to_string()).await;
    client.response().await;
    let waited = play.server.next_exchange().await.timing.count_wait_us;
    assert!(waited.is_some_and(|us| us > 0));
    assert_eq!(decided(&play).await[1], 305 + 1337);
    drop(turn);
    // The reported input has the picture now.
    history.extend([answer, says("Thanks.")]);
    play.exchange(&json!({"contents": history}), &gemini_reply()).await;
    // In another session the same message is known.
    play.session = "22222222-2222-3333-4444-555555555555";
    play.exchange(&json!({"contents": [shows()]}), &gemini_reply()).await;
    assert_eq!(decided(&play).await, [1337]);
    assert_eq!(questions(&play, "answered"), 1);
}

/// If the endpoint refuses, or says nothing for 5 seconds, a picture counts by the rules, and the endpoint is left
/// alone for a while.
#[tokio::test]
async fn media_counts_by_rule_without_answer() {
    for is_refused in [true, false] {
        let mut play = gemini_cli().await;
        let mut client = play.send_request(&json!({"contents": [shows()]})).await;
        let mut count = play.provider.call().await;
        let mut turn = if is_refused {
            count.answer("429 Too Many Requests", "{}").await;
            count.wire.request().await
        } else {
            play.provider.call().await
        };
        turn.answer("200 OK", &gemini_reply().to_string()).await;
        client.response().await;
        play.server.next_exchange().await;
        assert_eq!(decided(&play).await, [3005]);
        let outcome = if is_refused { "refused" } else { "failed" };
        assert_eq!(questions(&play, outcome), 1);
        drop(turn);
        play.session = "22222222-2222-3333-4444-555555555555";
        play.exchange(&json!({"contents": [shows()]}), &gemini_reply()).await;
        assert_eq!(decided(&play).await, [3005]);
        assert_eq!(questions(&play, "paused"), 1);
    }
}

/// The request is counted in the form that was planned, and another form is sent in the end: its count says nothing
/// about the exchange.
#[tokio::test]
async fn count_of_form_that_was_refused_is_not_recorded() {
    let mut play = Play::of("/v1/messages", asking(CountSchedule::Cold)).await;
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let (mut turn, mut count) = both(&mut play).await;
    assert_ne!(turn.message.text(), request.to_string());
    count.answer("200 OK", r#"{"input_tokens": 99}"#).await;
    until_questions(&play, "answered", 1).await;
    turn.answer("400 Bad Request", BOUND).await;
    let mut turn = turn.wire.request().await;
    assert_eq!(turn.message.text(), request.to_string());
    turn.answer("200 OK", &reply("m1")).await;
    assert_eq!(client.response().await.status(), 200);
    play.server.next_exchange().await;
    assert_eq!(counted(&play).await, [None]);
}
