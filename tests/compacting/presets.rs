//! After a compaction every preset has one number: what the context shows, what the next request is decided
//! by, and what the provider counts.

use plimsoll::config::presets::Preset;
use plimsoll::context::plan::{Change, Decision};
use plimsoll::context::{CountingMethod, EstimateMethod};
use serde_json::Value;

use crate::play::{Play, Scene, tokens};
use crate::support::looking::Looking;

const CONTEXT: &str = "/api/v1/sessions/s/threads/latest/context";
const SUMMARY: &str = "The person asks numbered questions.";
/// Tokens. Large enough for the reserves of all presets but one.
const WINDOW: u64 = 100_000;
/// Words of each question: some 7,300 tokens.
const QUESTION_WORDS: usize = 8_000;
/// What the provider says of each answer.
const OUTPUT: u64 = 20;

/// What the scripted provider counts: a quarter of a token a byte, of what it received.
fn counted(scene: &Scene) -> u64 {
    scene.bytes.len() as u64 / 4
}

/// A play under a preset, and the exchange in which its history was compacted.
async fn compacted(preset: Preset) -> (Play, Scene) {
    let mut play = Play::under(preset, "", WINDOW).await;
    play.writes_always(SUMMARY);
    for number in 0..30 {
        play.says(number, QUESTION_WORDS);
        let client = play.asks().await;
        let scene = play.answered(client).await;
        let mut steps = scene.exchange.done.steps.iter();
        if steps.any(|step| (step.change, step.decision) == (Change::Compacted, Decision::New)) {
            return (play, scene);
        }
    }
    panic!("{preset:?} compacts nothing")
}

/// `context` after the newest exchange, of which its provider counted so much: as JSON, and the same
/// total in words.
async fn shown(play: &Play, counted: u64) -> Value {
    let looking = Looking::at(&play.server, &play.config).await;
    let view = looking.json(CONTEXT).await;
    assert_eq!(view["basis"]["input"], counted, "{view}");
    assert_eq!(view["basis"]["output"], OUTPUT, "{view}");
    let text = looking.get(&format!("{CONTEXT}?format=text")).await.text().to_owned();
    let total = plimsoll::context::budget::grouped(view["total"].as_u64().unwrap());
    assert!(text.contains(&format!("{total} / ")), "{total}\n{text}");
    view
}

/// How far apart two counts are, percent of the second.
fn apart(one: u64, other: u64) -> f64 {
    one.abs_diff(other) as f64 * 100.0 / other as f64
}

/// `most_apart`: how far the request that is compacted may be off, percent: the scripted provider counts
/// by length, as some presets do, and not as a tokenizer does.
async fn agrees(preset: Preset, most_apart: f64) {
    let (mut play, scene) = compacted(preset).await;
    assert!(scene.bytes.contains(SUMMARY), "{preset:?}");
    // The request itself was decided by what was sent, the summary included.
    let estimate = scene.exchange.estimate.as_ref().unwrap();
    let is_ruled = play.config.policy.estimate.deciding().is_some();
    let expected = match is_ruled {
        true => (EstimateMethod::Estimated, CountingMethod::Length),
        false => (EstimateMethod::Compacted, estimate.counting),
    };
    assert_eq!((estimate.method, estimate.counting), expected, "{preset:?}");
    let off = apart(estimate.tokens, counted(&scene));
    assert!(off < most_apart, "{preset:?}: {off} % off after a compaction");

    let view = shown(&play, counted(&scene)).await;
    let total = view["total"].as_u64().unwrap();
    assert!(total.abs_diff(counted(&scene) + OUTPUT) <= 10, "{preset:?}: {view}");
    assert!(view["contents"]["summaries"].as_u64() > Some(0), "{preset:?}: {view}");
    let error = view["last_error_percent"].as_f64().unwrap().abs();
    assert!((error - off).abs() < 1e-9, "the error of the request before: {view}");
    // It is below the point where the next compaction begins.
    let compacting = view["thresholds"]["compacting"]["tokens"].as_u64().unwrap();
    assert!(total < compacting, "{preset:?}: {view}");

    // The next request: what was shown, and what is new; as the provider counts it, too.
    let next = play.turn(40).await;
    let estimate = next.exchange.estimate.as_ref().unwrap();
    assert_eq!(estimate.method, EstimateMethod::Anchored, "{preset:?}");
    assert_eq!(tokens(&next), total + estimate.new - u64::from(!is_ruled) * estimate.gone);
    assert!(estimate.new > 100, "{preset:?}: {estimate:?}");
    let off = apart(tokens(&next), counted(&next));
    assert!(off < 0.3, "{preset:?}: {off} % off in the turn after");
    assert_eq!(next.exchange.error(), Some(tokens(&next) as i64 - counted(&next) as i64));
    let made = next.exchange.done.steps.iter().filter(|step| step.decision == Decision::New);
    assert_eq!(made.count(), 0, "{preset:?}: nothing is compacted again");
    let view = shown(&play, counted(&next)).await;
    assert!(view["total"].as_u64().unwrap().abs_diff(counted(&next) + OUTPUT) <= 10);
}

#[tokio::test]
async fn after_a_compaction_dexto_shows_decides_and_is_counted_alike() {
    agrees(Preset::Dexto, 2.0).await;
}

#[tokio::test]
async fn after_a_compaction_opencode_shows_decides_and_is_counted_alike() {
    agrees(Preset::Opencode, 2.0).await;
}

#[tokio::test]
async fn after_a_compaction_gemini_cli_shows_decides_and_is_counted_alike() {
    agrees(Preset::GeminiCli, 2.0).await;
}

#[tokio::test]
async fn after_a_compaction_claude_code_shows_decides_and_is_counted_alike() {
    agrees(Preset::ClaudeCode, 15.0).await;
}

/// A third is put on top of what it estimates alone; what was reported is taken as it is.
#[tokio::test]
async fn after_a_compaction_micro_compact_shows_decides_and_is_counted_alike() {
    agrees(Preset::MicroCompact, 36.0).await;
}

#[tokio::test]
async fn after_a_compaction_llxprt_shows_decides_and_is_counted_alike() {
    agrees(Preset::Llxprt, 15.0).await;
}
