//! Making room in a request that its provider refused: old messages are replaced by a summary before a new result,
//! which no model has read, is trimmed.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::SummaryEngine;
use plimsoll::dialect::models::Family;
use plimsoll::telemetry::Exchange;
use plimsoll::tokens::bpe;
use serde_json::json;

use crate::play::{HOLDS, Play, UNTOLD, policy};
use crate::support::http1::Call;

const SUMMARY: &str = "Numbered questions were asked.";
/// Part of every trimmed result.
const LEFT_OUT: &str = "of this tool result left out";

/// A conversation of about 2,200 tokens, and a new result of `result` words with `ending` at its end.
async fn full(engine: SummaryEngine, wait_s: u64, result: usize, ending: &str) -> Play {
    // The same tokenizer must count before and after.
    bpe::load(Family::Claude);
    let mut policy = policy();
    (policy.compact.engine, policy.compact.wait_s) = (engine, wait_s);
    policy.compact.quote_tokens = 50;
    let mut play = Play::of(policy).await;
    // The real, smaller window is not known to the proxy.
    play.config.upstreams[0].window = Some(40_000);
    play.restart().await;
    for number in 0..6 {
        play.add_user_message(number, 360);
        play.history.push(json!({"role": "assistant", "content": "Aye."}));
    }
    play.add_user_message(6, 30);
    let call = json!({"type": "tool_use", "id": "toolu_01AbCdEf0001", "name": "Read", "input": {}});
    play.history.push(json!({"role": "assistant", "content": [call]}));
    let text = format!("It begins. {}{ending} It ends.", "more of it ".repeat(result / 3));
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": text});
    play.history.push(json!({"role": "user", "content": [result]}));
    play
}

/// The new changes and their reasons.
fn new(exchange: &Exchange) -> Vec<(Change, DecisionReason)> {
    let new = exchange.done.steps.iter().filter(|step| step.decision == Decision::New);
    new.map(|step| (step.change, step.why)).collect()
}

fn is_saved(exchange: &Exchange) -> bool {
    exchange.done.overflow.is_some_and(|overflow| overflow.saved)
}

/// Whether or not the error names the window. If no summaries are written, the result is trimmed.
#[tokio::test]
async fn room_is_made_by_summary_before_new_results_are_trimmed() {
    for ending in [format!("{HOLDS}11000."), format!("{HOLDS}11000. {UNTOLD}")] {
        let mut play = full(SummaryEngine::Summary, 5, 1_200, &ending).await;
        let result = play.history.last().unwrap().to_string();
        // If the window is named, it is small, and the history is summarised in pieces.
        let questions = play.write_every_summary(SUMMARY);
        let client = play.send_request().await;
        let scene = play.read_reply(client).await;
        assert!(scene.bytes.contains(SUMMARY), "{}", scene.bytes);
        assert!(scene.bytes.contains(&result), "{}", scene.bytes);
        assert!(is_saved(&scene.exchange));
        assert!(scene.exchange.timing.compaction_wait_us.is_some());
        assert_eq!(new(&scene.exchange), [(Change::Compacted, DecisionReason::Window)], "{ending}");
        assert!(!questions.lock().unwrap().is_empty());

        let mut play = full(SummaryEngine::Off, 5, 1_200, &ending).await;
        let client = play.send_request().await;
        let scene = play.read_reply(client).await;
        assert!(is_saved(&scene.exchange), "{}", scene.bytes);
        assert!(scene.bytes.contains(LEFT_OUT), "{}", scene.bytes);
        assert_eq!(new(&scene.exchange), [(Change::Cut, DecisionReason::TooLarge)], "{ending}");
        assert!(play.take_summary_bodies().is_empty());
    }
}

/// A summary that fails or is late costs only the wait.
#[tokio::test]
async fn new_results_are_trimmed_where_no_summary_comes() {
    let fails = async |mut call: Call| {
        call.answer("529 Overloaded", r#"{"type":"error"}"#).await;
        None
    };
    let is_late = async |call: Call| Some(call);
    for (wait_s, answers) in [(5, true), (1, false)] {
        let ending = format!("{HOLDS}11000.");
        let mut play = full(SummaryEngine::Summary, wait_s, 1_200, &ending).await;
        let client = play.send_request().await;
        let question = play.next_summary_request().await;
        let held = if answers { fails(question).await } else { is_late(question).await };
        let scene = play.read_reply(client).await;
        assert!(is_saved(&scene.exchange), "{}", scene.bytes);
        assert!(scene.bytes.contains(LEFT_OUT), "{}", scene.bytes);
        assert_eq!(new(&scene.exchange), [(Change::Cut, DecisionReason::TooLarge)]);
        assert!(scene.exchange.timing.compaction_wait_us.unwrap() < 3_000_000);
        assert!(play.take_summary_bodies().is_empty(), "it is asked for once");
        drop(held);
    }
}

/// If a summary would not be enough, no request waits for it.
#[tokio::test]
async fn result_that_no_summary_makes_fit_is_trimmed_at_once() {
    let ending = format!("{HOLDS}34000. {UNTOLD}");
    let mut play = full(SummaryEngine::Summary, 5, 9_000, &ending).await;
    let client = play.send_request().await;
    let scene = play.read_reply(client).await;
    assert!(is_saved(&scene.exchange), "{}", scene.bytes.len());
    assert!(scene.bytes.contains(LEFT_OUT), "{}", scene.bytes.len());
    assert_eq!(new(&scene.exchange), [(Change::Cut, DecisionReason::TooLarge)]);
    assert_eq!(scene.exchange.timing.compaction_wait_us, None);
    assert!(play.take_summary_bodies().is_empty());
}
