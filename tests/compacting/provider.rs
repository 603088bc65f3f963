//! A summary by the provider itself: it is sent back unchanged; a provider that has none is remembered; and it is not
//! valid for another model.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{Policy, SummaryEngine};
use serde_json::{Value, json};

use crate::play::{BLOCK, MARK, Play, policy, send_compaction_block, send_summary, tokens};

const BETA: &str = "anthropic-beta: compact-2026-09-04";
const SUMMARY: &str = "The person asks numbered questions.";

fn engine(engine: SummaryEngine) -> Policy {
    let mut policy = policy();
    policy.compact.engine = engine;
    policy
}

#[tokio::test]
async fn compaction_block_is_requested_and_sent_back_first_unchanged() {
    let mut play = Play::of(engine(SummaryEngine::Auto)).await;
    let (scene, question) = play.fill_to_mark().await;
    let request: Value = serde_json::from_str(question.message.text()).unwrap();
    assert!(question.message.head.contains(BETA), "{}", question.message.head);
    assert!(question.message.head.contains("x-api-key: k\r\n"));
    // The history before the cut, unchanged, and nothing after it.
    let messages = request["messages"].as_array().unwrap();
    let sent = scene.sent["messages"].as_array().unwrap();
    assert!(!messages.is_empty());
    assert!(messages.len() < sent.len());
    assert_eq!(messages[..], sent[..messages.len()]);
    assert_eq!(request["compaction"], json!({"type": "summarize"}), "its own instructions");
    assert_eq!(request["system"], scene.sent["system"]);
    assert_eq!(request["stream"], Value::Null);
    let cut = messages.len();
    send_compaction_block(question).await;
    play.wait_for_count("outcome=\"written\"", 1).await;
    let scene = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains(BLOCK) {
            break scene;
        }
        assert!(!play.head().contains("compact-2026"), "only where it is needed");
    };
    let first = format!(r#""messages":[{{"role":"assistant","content":[{BLOCK}]}},"#);
    assert!(scene.bytes.contains(&first), "{}", scene.bytes);
    assert!(play.head().contains(BETA), "{}", play.head());
    let (sent, history) = (scene.sent["messages"].as_array().unwrap(), &play.history);
    assert_eq!(sent[1..], history[cut..history.len() - 1], "what stays is what the client sent");
    let step = &scene.exchange.done.steps[0];
    assert_eq!(step.change, Change::Compacted);
    assert_eq!(step.decision, Decision::New);
    assert_eq!(step.why, DecisionReason::Threshold);
    // It is repeated, also across a restart. Its cost is counted separately.
    play.restart().await;
    let later = play.turn(90).await;
    assert!(later.bytes.contains(&first));
    assert!(play.head().contains(BETA));
}

/// They are in no count of the traffic, and the summary is no exchange of the session.
#[tokio::test]
async fn tokens_of_provider_summary_are_counted_separately() {
    let mut play = Play::of(engine(SummaryEngine::Provider)).await;
    let mut scenes = vec![play.turn(0).await];
    while tokens(scenes.last().unwrap()) <= MARK {
        scenes.push(play.turn(scenes.len()).await);
    }
    send_compaction_block(play.next_summary_request().await).await;
    play.wait_until_written(1).await;
    let text = play.server.telemetry.render();
    let sum = |series: &str| {
        let lines = text.lines().filter(|line| line.starts_with(series));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>()
    };
    let [of_summaries, of_traffic] = ["compaction_tokens", "tokens"].map(|metric| {
        ["input", "output", "aside"]
            .map(|kind| sum(&format!("plimsoll_{metric}_total{{kind=\"{kind}\"")))
    });
    assert_eq!(of_summaries, [900, 21, 0]);
    // What the provider reported for the turns.
    let turns = scenes.len() as u64;
    let input = scenes.iter().map(|scene| scene.bytes.len() as u64 / 4).sum();
    assert_eq!(of_traffic, [input, 20 * turns, 0]);
    let totals = play.totals(&scenes[0]).await;
    assert_eq!(totals.tokens.input, input);
    assert_eq!(totals.tokens.output, 20 * turns);
    assert_eq!(sum("plimsoll_requests_total{"), turns);
    play.server.expect_no_exchange();
}

/// A provider that writes none is asked once. From then on the model is asked, across restarts.
#[tokio::test]
async fn provider_without_compaction_is_learned_and_model_is_asked() {
    let mut play = Play::of(engine(SummaryEngine::Auto)).await;
    let (_, mut question) = play.fill_to_mark().await;
    let error = json!({"type": "error", "error": {"type": "invalid_request_error",
        "message": "compaction: Extra inputs are not permitted"}});
    question.answer("400 Bad Request", &error.to_string()).await;
    drop(question);
    let question = play.next_summary_request().await;
    assert!(question.message.text().contains("Write a summary of the conversation"));
    play.wait_for_count("outcome=\"not_offered\"", 1).await;
    send_summary(question, SUMMARY).await;
    play.wait_for_count("outcome=\"written\"", 1).await;
    play.restart().await;
    (play.session, play.history) = ("another", Vec::new());
    let (scene, question) = play.fill_to_mark().await;
    assert!(tokens(&scene) > MARK);
    assert!(!question.message.text().contains("summarize"));
}

/// A provider that ignores the unknown member continues the task: its reply is not used as a summary.
#[tokio::test]
async fn reply_in_place_of_compaction_block_is_not_used_as_summary() {
    let mut play = Play::of(engine(SummaryEngine::Auto)).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, "I go on with the task.").await;
    let question = play.next_summary_request().await;
    play.wait_for_count("outcome=\"not_offered\"", 1).await;
    drop(question);
}

/// A temporary failure teaches nothing, and the client sees nothing of it.
#[tokio::test]
async fn temporary_compaction_failure_teaches_nothing() {
    let mut play = Play::of(engine(SummaryEngine::Auto)).await;
    let (_, mut question) = play.fill_to_mark().await;
    let error = json!({"type": "error", "error": {"type": "invalid_request_error",
        "message": "The compaction could not be completed.",
        "details": {"error_code": "compaction_unavailable"}}});
    question.answer("400 Bad Request", &error.to_string()).await;
    drop(question);
    let question = play.next_summary_request().await;
    play.wait_for_count("outcome=\"rejected\"", 1).await;
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    (play.session, play.history) = ("another", Vec::new());
    let (_, question) = play.fill_to_mark().await;
    assert!(question.message.text().contains("summarize"), "it is asked again");
    drop(question);
}

/// With `provider` no other writer is used.
#[tokio::test]
async fn with_engine_provider_no_other_summariser_is_asked() {
    let mut play = Play::of(engine(SummaryEngine::Provider)).await;
    let (_, mut question) = play.fill_to_mark().await;
    question.answer("404 Not Found", r#"{"detail":"Not Found"}"#).await;
    drop(question);
    play.wait_for_count("outcome=\"not_offered\"", 1).await;
    for _ in 0..3 {
        play.turn(play.history.len() / 2).await;
    }
    assert!(play.take_summary_bodies().is_empty());
}

/// A block is valid for one model. For another, the history is sent whole, and summarised again.
#[tokio::test]
async fn compaction_block_is_not_sent_to_another_model() {
    let mut play = Play::of(engine(SummaryEngine::Auto)).await;
    let (_, question) = play.fill_to_mark().await;
    send_compaction_block(question).await;
    play.wait_until_written(1).await;
    while !play.turn(play.history.len() / 2).await.bytes.contains(BLOCK) {}
    let own = play.model;
    play.model = "claude-opus-4-6";
    let scene = play.turn(80).await;
    assert!(!scene.bytes.contains(BLOCK));
    assert!(!play.head().contains("compact-2026"));
    play.model = own;
    assert!(play.turn(81).await.bytes.contains(BLOCK));
}
