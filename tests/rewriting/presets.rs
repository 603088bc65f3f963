//! Presets reproduce the numbers of the agents that they are named after, through the whole proxy.

use plimsoll::config::presets::Preset;
use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::compact::{self, CompactionNeed};
use plimsoll::context::plan::{
    Change, Decision, DecisionReason, PlanRequest, RecordedDecisions, RemovedTokens,
};
use plimsoll::context::policy::{ClassicRole, ReasoningRule, StripPolicy};
use plimsoll::context::{CountingMethod, EstimateMethod, Turn};
use plimsoll::dialect::models::Model;
use plimsoll::dialect::{self, Dialect, PartKind};
use plimsoll::tokens::Tokenizer;
use plimsoll::tokens::classic::{ClassicRules, SentContent};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::support::server::resolved;

const MODEL: &str = "claude-sonnet-4-5";
const CLEARED: &str = "[Old tool result content cleared]";

/// A play under a preset.
pub async fn play(preset: Preset, also: &[(&str, &str)]) -> Play {
    play_at("/v1/messages", preset, also).await
}

/// The same with another protocol.
pub async fn play_at(target: &'static str, preset: Preset, also: &[(&str, &str)]) -> Play {
    let resolved_config = resolved(preset, also);
    let mut play = Play::of(target, resolved_config.policy.as_ref().clone()).await;
    play.config.output_reserve = resolved_config.output_reserve;
    play.restart().await;
    play
}

fn call(id: &str, name: &str, text: &str, input: Value) -> Value {
    let call = json!({"type": "tool_use", "id": id, "name": name, "input": input});
    message("assistant", json!([{"type": "text", "text": text}, call]))
}

fn result(id: &str, text: &str) -> Value {
    message("user", json!([{"type": "tool_result", "tool_use_id": id, "content": text}]))
}

/// Fifteen files are read, each 505 characters long.
fn fifteen_reads() -> Vec<Value> {
    let pair = |n: usize| {
        let (id, input) = (format!("tool_{n}"), json!({"file_path": format!("src/file{n}.ts")}));
        let text = format!("Read:{}", "x".repeat(500));
        [call(&id, "Read", &format!("Looking at file {n}..."), input), result(&id, &text)]
    };
    (0..15).flat_map(pair).collect()
}

/// The tokens of a body's messages by these rules.
fn counted(rules: &ClassicRules, body: &str) -> u64 {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    rules.messages(body.as_bytes(), &read.messages, |_| SentContent::Whole)
}

#[tokio::test]
async fn micro_compact_clears_11_of_15_results_with_original_counts() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let rules = play.config.policy.estimate.rules.clone();
    let request = anthropic_request(MODEL, &fifteen_reads());
    assert_eq!(request["messages"].as_array().unwrap().len(), 30);
    assert_eq!(counted(&rules, &request.to_string()), 6_907);

    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.steps(), vec![(Change::Cut, Decision::New, DecisionReason::Always); 11]);
    assert_eq!(counted(&rules, &scene.bytes), 3_446);
    // The logged count is that of what was sent.
    let classic = scene.exchange.classic.clone().unwrap();
    assert_eq!(&*classic.rules, "micro-compact");
    assert_eq!(classic.tokens, 3_446);
    assert_eq!(classic.method, EstimateMethod::Estimated);
    // What it saved is told in the same counting: half of it.
    let saved = RemovedTokens { cut: 3_461, pruned: 3_461, compacted: 0 };
    assert_eq!(scene.exchange.done.removed(), saved);
    let view = crate::shown::shown(&play, &scene.exchange).await;
    assert!(view.to_string().contains("11 tool results cut, 3,461 tokens less"), "{view}");

    // All fifteen pairs stay, and the oldest results are cleared.
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", scene.bytes.as_bytes());
    let ids = |kind| -> Vec<&str> {
        let parts = read.parts().filter(|part| part.kind == kind);
        parts.filter_map(|part| part.id.as_deref()).collect()
    };
    assert_eq!(ids(PartKind::ToolCall).len(), 15);
    assert_eq!(ids(PartKind::ToolResult).len(), 15);
    assert_eq!(ids(PartKind::ToolCall), ids(PartKind::ToolResult));
    let is_cleared =
        |n: &usize| scene.sent["messages"][2 * n + 1]["content"][0]["content"] == CLEARED;
    assert_eq!((0..15).filter(is_cleared).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
}

/// Clearing is a live event when the request is sent. A repetition is not.
#[tokio::test]
async fn pruning_is_announced_live() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let mut live = play.server.telemetry.shrunk();
    let scene = play
        .exchange(
            &anthropic_request(MODEL, &fifteen_reads()),
            &anthropic_reply("m1", MODEL, json!([])),
        )
        .await;
    let event = live.try_recv().unwrap();
    assert_eq!(event.event, "pruned");
    assert_eq!(event.results, Some(11));
    assert_eq!(event.exchange, scene.exchange.id);
    assert_eq!(event.before, 6_907);
    assert_eq!(event.after, 3_446);
    play.exchange(
        &anthropic_request(MODEL, &fifteen_reads()),
        &anthropic_reply("m2", MODEL, json!([])),
    )
    .await;
    assert!(live.try_recv().is_err());
}

/// A failed result of a reading tool goes as well, and so does one that is a list of blocks.
#[tokio::test]
async fn micro_compact_clears_failed_results_and_lists() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let mut history = fifteen_reads();
    history[1]["content"][0]["is_error"] = json!(true);
    let text = history[3]["content"][0]["content"].take();
    history[3]["content"][0]["content"] = json!([{"type": "text", "text": text}]);
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let scene = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    for at in [1, 3] {
        let sent = &scene.sent["messages"][at]["content"][0];
        assert!(sent["content"].to_string().contains(CLEARED), "{sent}");
    }
    assert_eq!(scene.sent["messages"][1]["content"][0]["is_error"], true);
}

/// A picture and a document cost 2,000 each, before a third comes on top.
#[test]
fn micro_compact_counts_pictures() {
    let rules = resolved(Preset::MicroCompact, &[]).policy.estimate.rules.clone();
    let of = |kind: &str, media: &str| {
        let source = json!({"type": "base64", "media_type": media, "data": "QUJD"});
        let block = json!({"type": kind, "source": source});
        let body = anthropic_request(MODEL, &[message("user", json!([block]))]).to_string();
        counted(&rules, &body)
    };
    let expected = ((2_000.0 + 12.0) * 4.0_f64 / 3.0).ceil() as u64;
    assert_eq!(of("image", "image/png"), expected);
    assert_eq!(of("document", "application/pdf"), expected);
}

/// Without reasoning, no key about reasoning changes a number.
#[tokio::test]
async fn without_reasoning_keys_about_it_change_nothing() {
    let strip = "PLIMSOLL_REASONING_STRIP_FROM_CONTEXT";
    let variants: [&[(&str, &str)]; 4] = [
        &[],
        &[(strip, "all")],
        &[(strip, "all_but_last")],
        &[("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false")],
    ];
    let mut seen = Vec::new();
    for also in variants {
        let mut play = play(Preset::Llxprt, also).await;
        let mut history = vec![message("user", json!("How deep is she?"))];
        let content = json!([{"type": "text", "text": "Three metres and a half."}]);
        let reply = anthropic_reply("m1", MODEL, content.clone());
        let first = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
        let view = crate::shown::shown(&play, &first.exchange).await;
        history.extend([message("assistant", content), message("user", json!("And how wide?"))]);
        let next = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
        let tokens = next.exchange.estimate.as_ref().unwrap().tokens;
        seen.push((view.total, view.free, tokens, next.bytes));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}

/// From the second call on, the count is the last input and output, cache included, plus the new messages.
#[tokio::test]
async fn micro_compact_counts_new_messages_on_top_of_reported_usage() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let mut history = fifteen_reads();
    let call = json!([{"type": "tool_use", "id": "tool_15", "name": "Read", "input": {}}]);
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, call.clone()))
        .await;
    history.push(message("assistant", call));
    history.push(result("tool_15", "12345678"));
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    let classic = scene.exchange.classic.clone().unwrap();
    // 12 + 24 + 4, times four thirds.
    assert_eq!(classic.method, EstimateMethod::Anchored);
    assert_eq!(classic.new, 54);
    // One more result is cleared, which the last call still had: 314 of 3,500 tokens, where 1,850 were reported.
    let share = 314 * 1_850 / 3_500;
    let pruned = scene.exchange.done.removed().pruned;
    assert_eq!(classic.tokens, 1_800 + 50 + 54 - share);
    assert_eq!(pruned, share);
    assert_eq!(scene.exchange.classic_error().map(|error| error.tokens), Some(1_739 - 1_800));
}

/// If the provider refuses the rewrite, the count is that of the original, which was accepted.
#[tokio::test]
async fn classic_count_after_refused_rewrite_is_of_original() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let request = anthropic_request(MODEL, &fifteen_reads());
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let refused = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: bad tool_result"}}"#;
    call.answer("400 Bad Request", refused).await;
    let mut call = call.wire.request().await;
    call.answer("200 OK", &anthropic_reply("m1", MODEL, json!([])).to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert!(exchange.done.resent.is_some());
    assert_eq!(exchange.classic.as_ref().map(|classic| classic.tokens), Some(6_907));
}

#[test]
fn micro_compact_begins_at_167_000() {
    let config = resolved(Preset::MicroCompact, &[]);
    let effective = 200_000 - config.output_reserve;
    assert_eq!(effective, 180_000);
    assert!((config.policy.prune.threshold(effective) - 167_000.0).abs() < 1e-9);
}

/// Below ten messages nothing is cleared, nor are results of other tools.
#[tokio::test]
async fn micro_compact_needs_ten_messages_and_clears_only_its_own_tools() {
    let mut play = play(Preset::MicroCompact, &[]).await;
    let nothing = anthropic_reply("m1", MODEL, json!([]));
    let few = anthropic_request(MODEL, &fifteen_reads()[..8]);
    assert_eq!(play.exchange(&few, &nothing).await.bytes, few.to_string());
    play.session = "ten";
    let ten = anthropic_request(MODEL, &fifteen_reads()[..10]);
    assert_eq!(play.exchange(&ten, &nothing).await.exchange.done.made.cut, 1);
    play.session = "others";
    let others =
        anthropic_request(MODEL, &fifteen_reads()).to_string().replace("\"Read\"", "\"WebFetch\"");
    let others: Value = serde_json::from_str(&others).unwrap();
    assert_eq!(play.exchange(&others, &nothing).await.bytes, others.to_string());
}

/// Results of these sizes, in thousands of tokens, each in a turn of its own; the newest is last.
fn turns(thousands: &[usize]) -> Vec<Value> {
    let turn = |(n, size): (usize, &usize)| {
        let id = format!("call_AbCdEfGh{n:04}");
        // Four characters a token, no two texts alike.
        let text = format!("{n:04}").repeat(size * 1_000);
        [
            message("user", json!("Go on.")),
            call(&id, "read", "I read.", json!({"n": n})),
            result(&id, &text),
        ]
    };
    thousands.iter().enumerate().flat_map(turn).collect()
}

/// Which results of a request were cut.
fn cut(sent: &Value) -> Vec<usize> {
    let messages = sent["messages"].as_array().unwrap();
    let results = messages.iter().filter(|it| it["content"][0]["type"] == "tool_result");
    let cut = results.enumerate().filter(|(_, it)| it["content"][0]["content"] == CLEARED);
    cut.map(|(index, _)| index).collect()
}

/// It clears when a loop ends, which the next question shows.
async fn opencode_cuts(history: &[Value]) -> Vec<usize> {
    let mut play = play(Preset::Opencode, &[]).await;
    let mut history = history.to_vec();
    history.push(message("user", json!("And now?")));
    cut(&play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, json!([])))
        .await
        .sent)
}

#[tokio::test]
async fn opencode_protects_two_turns_and_40000_tokens_and_cuts_over_20000() {
    // When the loop of the turn before the newest question ends, it protects that turn and the one before it, whatever
    // their size.
    assert_eq!(opencode_cuts(&turns(&[11, 10, 40, 90, 9])).await, [0, 1]);
    // Exactly 40,000 tokens are protected.
    assert_eq!(opencode_cuts(&turns(&[21, 20, 20, 9, 9])).await, [0]);
    assert_eq!(
        opencode_cuts(&turns(&[20, 20, 20, 9, 9])).await,
        [0usize; 0],
        "20,000 is not enough"
    );
    assert_eq!(opencode_cuts(&turns(&[1, 20, 20, 20, 9, 9])).await, [0, 1]);
}

#[tokio::test]
async fn opencode_stops_at_cleared_result_and_skips_failed_calls() {
    let mut history = turns(&[30, 30, 10, 20, 20, 9, 9]);
    // The client has cut the third itself, so nothing before it is considered.
    history[8]["content"][0]["content"] = json!(CLEARED);
    assert_eq!(opencode_cuts(&history).await, [2], "only what its client cut");
    // A failed call is neither counted nor cut.
    let mut history = turns(&[21, 20, 19, 9, 9]);
    assert_eq!(opencode_cuts(&history).await, [0]);
    history[5]["content"][0]["is_error"] = json!(true);
    assert_eq!(opencode_cuts(&history).await, [0usize; 0], "40,000 are protected then");
    let mut history = turns(&[21, 40, 20, 20, 9, 9]);
    history[5]["content"][0]["is_error"] = json!(true);
    assert_eq!(opencode_cuts(&history).await, [0]);
}

/// A conversation of one question and several steps, each with a result of this size in thousands of tokens.
fn steps_of(thousands: &[usize]) -> Vec<Value> {
    let mut history = turns(thousands);
    let mut at = 0;
    history.retain(|message| {
        at += 1;
        at == 1 || message["content"] != "Go on."
    });
    history
}

/// The text of user and model and the calls are sent unchanged: only results are cleared.
#[tokio::test]
async fn text_and_calls_are_never_cleared() {
    for preset in [Preset::Dexto, Preset::Opencode, Preset::MicroCompact] {
        let mut play = play(preset, &[]).await;
        let mut history = turns(&[20; 6]);
        for call in history.iter_mut().filter_map(|it| it["content"].get_mut(1)) {
            call["name"] = json!("Read");
        }
        history.push(message("user", json!("And now?")));
        let scene = play
            .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, json!([])))
            .await;
        let sent = scene.sent["messages"].as_array().unwrap();
        assert_eq!(sent.len(), history.len(), "{preset:?}");
        for (sent, came) in sent.iter().zip(&history) {
            let is_result = came["content"][0]["type"] == "tool_result";
            assert!(is_result || sent == came, "{preset:?}: {sent}");
        }
        assert!(!cut(&scene.sent).is_empty(), "{preset:?}");
    }
}

async fn dexto_cuts(history: &[Value]) -> Vec<usize> {
    let mut play = play(Preset::Dexto, &[]).await;
    cut(&play
        .exchange(&anthropic_request(MODEL, history), &anthropic_reply("m1", MODEL, json!([])))
        .await
        .sent)
}

/// The newest 40,000 tokens of results stay. The rest is cleared if it is more than 20,000 tokens. A message of the
/// user protects nothing, and no pressure is needed.
#[tokio::test]
async fn dexto_keeps_40000_tokens_of_results_and_clears_over_20000() {
    assert_eq!(dexto_cuts(&steps_of(&[10; 10])).await, [0, 1, 2, 3, 4, 5]);
    assert_eq!(dexto_cuts(&steps_of(&[10; 6])).await, [0usize; 0], "20,000 is not enough");
    assert_eq!(dexto_cuts(&steps_of(&[1, 10, 10, 10, 10, 10, 10])).await, [0, 1, 2]);
    // A result that is already cleared ends the search.
    let mut cleared = steps_of(&[30, 30, 10, 20, 10, 10]);
    cleared[6]["content"][0]["content"] = json!(CLEARED);
    assert_eq!(dexto_cuts(&cleared).await, [2], "only what its client cleared");
    // A failed call is neither counted nor cleared.
    let mut failed = steps_of(&[30, 10, 10, 10, 10, 10]);
    failed[6]["content"][0]["is_error"] = json!(true);
    assert_eq!(dexto_cuts(&failed).await, [0]);
    failed[2]["content"][0]["is_error"] = json!(true);
    assert_eq!(dexto_cuts(&failed).await, [0usize; 0]);
}

/// `input + cache_read > window − min(max_output, 32,000)`: then it counts as more than fits.
#[test]
fn dexto_compacts_past_the_window() {
    let due = |tokens| due(Preset::Dexto, 200_000, tokens, json!({}));
    assert_eq!(due(100_000), CompactionNeed::No);
    assert_eq!(due(168_000), CompactionNeed::No);
    assert_eq!(due(168_001), CompactionNeed::Must);
}

/// The same number is shown and used for decisions: last input, last output, and the new messages' characters divided
/// by four.
#[tokio::test]
async fn dexto_shows_last_usage_plus_new_messages_by_length() {
    let mut play = play(Preset::Dexto, &[]).await;
    let call = json!([{"type": "tool_use", "id": "call_1", "name": "read", "input": {}}]);
    let mut history = vec![message("user", json!("How deep is she?"))];
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, call.clone()))
        .await;
    history.push(message("assistant", call));
    history.push(result("call_1", &"x".repeat(401)));
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    let estimate = scene.exchange.estimate.clone().unwrap();
    assert_eq!(estimate.tokens, 1_800 + 50 + 100);
    assert_eq!(estimate.new, 100);
    assert_eq!(
        Some(estimate.tokens),
        scene.exchange.classic.as_ref().map(|classic| classic.tokens)
    );
    assert_eq!(estimate.method, EstimateMethod::Anchored);
    assert_eq!(estimate.counting, CountingMethod::Length);
    // The messages are the total less system prompt and tools, and the error is recorded.
    let parts = estimate.breakdown;
    assert_eq!(parts.system + parts.tools + parts.messages, estimate.tokens);
    assert_eq!(scene.exchange.error(), Some(150));
}

/// If the rules decide, their number is shown, too. If not, ours is the budget, and both errors are recorded.
#[tokio::test]
async fn estimate_is_budget_unless_classic_rules_decide() {
    let request = anthropic_request(MODEL, &fifteen_reads()[..8]);
    let nothing = anthropic_reply("m1", MODEL, json!([]));
    let mut bare = Play::of("/v1/messages", plimsoll::context::policy::Policy::default()).await;
    let ours = bare.exchange(&request, &nothing).await;
    assert!(ours.exchange.classic.is_none());
    let ours = ours.exchange.estimate.clone();
    let rules = &[("PLIMSOLL_ESTIMATE_DECIDES", "nothing")];
    let beside =
        play(Preset::MicroCompact, rules).await.exchange(&request, &nothing).await.exchange;
    assert_eq!(beside.estimate, ours);
    assert!(beside.error().is_some());
    assert!(beside.classic_error().is_some());
    let rules = &[("PLIMSOLL_ESTIMATE_DECIDES", "budget")];
    let ruled = play(Preset::MicroCompact, rules).await.exchange(&request, &nothing).await.exchange;
    assert_eq!(
        ruled.estimate.as_ref().map(|it| it.tokens),
        Some(ruled.classic.clone().unwrap().tokens)
    );
    assert_ne!(ruled.estimate, ours);
    assert_eq!(ruled.estimate.as_ref().unwrap().band(), None, "the band is of ours");
}

#[tokio::test]
async fn gemini_cli_counts_by_characters_and_cuts_nothing() {
    let config = resolved(Preset::GeminiCli, &[]);
    let rules = &config.policy.estimate.rules;
    let count = |text: &str| {
        let body = json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}).to_string();
        let read =
            dialect::read(Dialect::Gemini, "/v1beta/models/m:generateContent", body.as_bytes());
        rules.messages(body.as_bytes(), &read.messages, |_| SentContent::Whole)
    };
    // 0.25 and 1.3 tokens a character, rounded down together; in a long text, 0.25 for each.
    assert_eq!(count("Hello world"), 2);
    assert_eq!(count("你好世界"), 5);
    assert_eq!(count("Hello 世界"), 4);
    assert_eq!(count(&"世".repeat(100_000)), 130_000);
    assert_eq!(count(&"世".repeat(100_001)), 25_000);
    let body = json!({"contents": [
        {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"dir": "/tmp"}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "ls", "response": {"output": "a b"}}},
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}}]},
    ]})
    .to_string();
    let read = dialect::read(Dialect::Gemini, "/v1beta/models/m:generateContent", body.as_bytes());
    let call = r#"{"functionCall":{"name":"ls","args":{"dir":"/tmp"}}}"#.len();
    let answer = r#"{"output":"a b"}"#.len() + "ls".len();
    let expected = 3_000 + 25_800 + (call + answer) as u64 / 4;
    assert_eq!(rules.messages(body.as_bytes(), &read.messages, |_| SentContent::Whole), expected);
    assert!(config.policy.prune.gate.is_empty());
    assert_eq!(config.policy.reasoning.strip(), StripPolicy::All);
}

#[test]
fn claude_code_reserves_20000_for_output_and_13000_as_buffer() {
    let config = resolved(Preset::ClaudeCode, &[]);
    assert_eq!(config.output_reserve, 20_000);
    assert!((config.policy.prune.threshold(180_000) - 167_000.0).abs() < 1e-9);
    for preset in [Preset::ClaudeCode, Preset::MicroCompact] {
        let due = |tokens| due(preset, 200_000, tokens, json!({}));
        assert_eq!(due(166_999), CompactionNeed::Prepare);
        assert_eq!(due(167_000), CompactionNeed::Swap);
        assert_eq!(due(180_000), CompactionNeed::Swap);
        assert_eq!(due(180_001), CompactionNeed::Must);
    }
    assert_eq!(config.policy.estimate.decides, ClassicRole::Nothing);
}

#[test]
fn llxprt_strips_reasoning_by_two_configuration_keys() {
    let config = resolved(Preset::Llxprt, &[]);
    assert_eq!(config.output_reserve, 65_536);
    assert_eq!(config.policy.reasoning.strip(), StripPolicy::None);
    let strip = |name, value| resolved(Preset::Llxprt, &[(name, value)]).policy.reasoning.strip();
    assert_eq!(strip("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false"), StripPolicy::All);
    let but_last = ("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all_but_last");
    assert_eq!(strip(but_last.0, but_last.1), StripPolicy::AllButLast);
    let excluded = ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false");
    let both = resolved(Preset::Llxprt, &[excluded, but_last]);
    assert_eq!(both.policy.reasoning.strip(), StripPolicy::All, "leaving all of it out wins");
}

/// How urgently a request of this many tokens needs a summary, if `last` is the reported usage of its last call.
fn due(preset: Preset, window: u64, tokens: u64, last: Value) -> CompactionNeed {
    let config = resolved(preset, &[]);
    let body = json!({"messages": [message("user", json!("And now?"))]}).to_string();
    let conversation = dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    let model = Model { window, max_output: 128_000, known: true, ..Model::unknown() };
    let request = PlanRequest {
        exchange: &"r".into(),
        conversation: &conversation,
        body: body.as_bytes(),
        model: &model,
        name: MODEL,
        upstream: "up",
        reasoning_rule: ReasoningRule::Unwanted,
        compaction_refused: false,
        policy: &config.policy,
        client_compacts: None,
        mode: Mode::Active,
        clears_past: None,
        tokenizer: Tokenizer::now(model.family),
        reserve: model.reserve(config.output_reserve),
        now: 9,
    };
    let zero = "0".repeat(32);
    let turn: Turn = serde_json::from_value(json!({
        "exchange": "q", "position": {"thread": "t", "chain": zero, "last": null, "system": zero, "tools": zero},
        "after": zero, "response": null, "at": 1, "ended": 2, "upstream": "up", "dialect": "anthropic",
        "model": MODEL, "family": "claude", "purpose": "turn", "estimate": null, "usage": last,
        "stop": null, "outcome": "complete", "window": window, "reserve": 0,
        "sketch": {"kept": 0, "added": []}, "reply": [],
    }))
    .unwrap();
    let mut known = RecordedDecisions::default();
    known.parent = Some(Arc::new(turn));
    compact::need_at(&request, &known, tokens)
}

/// `input + cache_read > window − min(max_output, 32,000)`, whatever the estimate is.
#[test]
fn opencode_compacts_by_last_call() {
    let due = |input: u64, written: u64| {
        let last = json!({"input": input, "cache_read": input / 2, "cache_write": written});
        due(Preset::Opencode, 200_000, 100_000, last)
    };
    assert_eq!(due(168_000, 0), CompactionNeed::Prepare);
    assert_eq!(due(168_001, 0), CompactionNeed::Swap);
    assert_eq!(due(168_001, 1), CompactionNeed::Prepare);
    assert_eq!(due(10_000, 0), CompactionNeed::No);
    let last_call = json!({"input": 167_900, "cache_read": 0});
    assert_eq!(
        super::presets::due(Preset::Opencode, 200_000, 168_001, last_call),
        CompactionNeed::Prepare,
        "the next call is not estimated"
    );
}

#[test]
fn gemini_cli_compacts_at_half_and_keeps_last_part() {
    let due = |tokens| due(Preset::GeminiCli, 1_000_000, tokens, json!({}));
    assert_eq!(due(499_999), CompactionNeed::Prepare);
    assert_eq!(due(500_000), CompactionNeed::Swap);
    assert_eq!(due(1_000_000), CompactionNeed::Swap);
    assert_eq!(due(1_000_001), CompactionNeed::Must);
    let compact = resolved(Preset::GeminiCli, &[]).policy.compact.clone();
    assert_eq!(compact.keep_history, Some(0.3));
    // A summary must be smaller than what it replaces.
    assert!(compact::is_worth_it(1_000, 999));
    assert!(!compact::is_worth_it(1_000, 1_000));
}

/// The context, pending content and the output budget must fit together: 100,000 + 34,464 + 65,536.
#[test]
fn llxprt_has_two_thresholds() {
    let due = |tokens| due(Preset::Llxprt, 200_000, tokens, json!({}));
    // 85 % of 134,464.
    assert!(due(114_293) < CompactionNeed::Swap);
    assert_eq!(due(114_294), CompactionNeed::Swap);
    assert_eq!(due(100_000 + 34_464), CompactionNeed::Swap);
    assert_eq!(due(100_000 + 34_465), CompactionNeed::Must);
}

/// Compaction is decided by the count without removed reasoning: a little over 100,000, and 120,000 with it.
#[tokio::test]
async fn llxprt_counts_no_reasoning() {
    const THINKS: &str = "claude-opus-4-5";
    for (include, compacts) in [("false", false), ("true", true)] {
        let mut play = play(
            Preset::Llxprt,
            &[
                ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", include),
                ("PLIMSOLL_COMPACT_THRESHOLD_TOKENS", "101000"),
            ],
        )
        .await;
        play.config.mode = Mode::Active;
        play.restart().await;
        let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"});
        let content = json!([thinking, {"type": "text", "text": "Three metres."}]);
        let mut reply = anthropic_reply("m1", THINKS, content.clone());
        reply["stop_reason"] = json!("end_turn");
        reply["usage"] = json!({"input_tokens": 100_000, "output_tokens": 20_050});
        let mut history = vec![message("user", json!("How deep is she?"))];
        let first = play.exchange(&anthropic_request(THINKS, &history), &reply).await;
        let view = crate::shown::shown(&play, &first.exchange).await;
        history.push(message("assistant", content));
        history.push(message("user", json!("And how wide?")));
        let scene = play.exchange(&anthropic_request(THINKS, &history), &reply).await;
        let by = scene.exchange.estimate.as_ref().unwrap().tokens;
        assert_eq!(by >= 101_000, compacts, "{by} with include_in_context = {include}");
        assert_eq!(view.total >= 101_000, compacts, "{view}");
        assert_eq!(view.thresholds.unwrap().compacting.unwrap().tokens, 101_000);
    }
}

/// Of two reasoning blocks, only the newest counts.
#[tokio::test]
async fn llxprt_counts_only_newest_reasoning_with_all_but_last() {
    const THINKS: &str = "claude-opus-4-5";
    let mut shown = Vec::new();
    for strip in ["none", "all_but_last"] {
        let mut play =
            play(Preset::Llxprt, &[("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", strip)]).await;
        let mut history = vec![message("user", json!("How deep is she?"))];
        for n in 0..2 {
            let thinking =
                json!({"type": "thinking", "thinking": "Hm.", "signature": format!("c2ln{n}===")});
            let content = json!([thinking, {"type": "text", "text": "Three metres."}]);
            let mut reply = anthropic_reply(&format!("m{n}"), THINKS, content.clone());
            reply["stop_reason"] = json!("end_turn");
            reply["usage"] = json!({"input_tokens": 5_000 + 4_000 * n, "output_tokens": 3_010});
            let scene = play.exchange(&anthropic_request(THINKS, &history), &reply).await;
            let view = crate::shown::shown(&play, &scene.exchange).await;
            shown.push((strip, n, view.breakdown.reasoning));
            history.push(message("assistant", content));
            history.push(message("user", json!("And how wide?")));
        }
    }
    let counts =
        |strip: &str, n| shown.iter().find(|it| it.0 == strip && it.1 == n).map(|it| it.2).unwrap();
    let (one, both) = (counts("all_but_last", 1), counts("none", 1));
    assert!((2_900..3_020).contains(&one), "{shown:?}");
    assert!((5_800..6_040).contains(&both), "{shown:?}");
}

/// 158,071 tokens and a result of 22,000 are more than 168,000. Three old results of 10,000 are cleared, so that the
/// request fits, and no summary is written.
#[tokio::test]
async fn dexto_writes_no_summary_where_its_pruning_makes_room() {
    let mut play = play(Preset::Dexto, &[]).await;
    let mut history = steps_of(&[10; 4]);
    let call = json!([{"type": "tool_use", "id": "call_9", "name": "read", "input": {}}]);
    let mut reply = anthropic_reply("m1", MODEL, call.clone());
    reply["usage"] = json!({"input_tokens": 158_000, "output_tokens": 71});
    play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    history.push(message("assistant", call));
    history.push(result("call_9", &"x".repeat(88_000)));
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    let cut = (Change::Cut, Decision::New, DecisionReason::Always);
    assert_eq!(scene.steps(), [cut; 3]);
    // The placeholder costs 8 tokens.
    let saved = 3 * (10_000 - 8);
    assert_eq!(scene.exchange.estimate.as_ref().unwrap().tokens, 180_071 - saved);
    assert_eq!(scene.exchange.done.removed().pruned, saved);
}

/// Compaction is decided by the number that is shown.
#[tokio::test]
async fn dexto_compacts_by_its_number() {
    for (threshold, compacts) in [("1950", true), ("1951", false)] {
        let mut play =
            play(Preset::Dexto, &[("PLIMSOLL_COMPACT_THRESHOLD_TOKENS", threshold)]).await;
        play.config.mode = Mode::Shadow;
        play.restart().await;
        let call = json!([{"type": "tool_use", "id": "call_1", "name": "read", "input": {}}]);
        let mut history = vec![message("user", json!("How deep is she?"))];
        play.exchange(
            &anthropic_request(MODEL, &history),
            &anthropic_reply("m1", MODEL, call.clone()),
        )
        .await;
        history.push(message("assistant", call));
        history.push(result("call_1", &"x".repeat(401)));
        let scene = play
            .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, json!([])))
            .await;
        assert_eq!(scene.exchange.estimate.as_ref().map(|it| it.tokens), Some(1_950));
        let refused = (Change::Compacted, Decision::Declined, DecisionReason::Shadow);
        assert_eq!(scene.steps().contains(&refused), compacts, "{threshold}");
    }
}
