//! A summary that is needed at once is requested with the prefix that the provider's cache has: the history as it was
//! last sent, up to the cut.

use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy, SummaryEngine};
use plimsoll::dialect::models::Family;
use plimsoll::tokens::bpe;
use scripted_provider::strict::{LoggedRequest, Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::stage::{RoundTrip, Stage};

const MODEL: &str = "claude-sonnet-4-5";
const TARGET: &str = "/v1/messages";
const WINDOW: u64 = 40_000;
/// Part of every request for a summary.
const ASKS: &str = "Write a summary of the conversation";
const SUMMARY: &str = "<summary>Logs were read.</summary>";

fn compacting(prune: PrunePolicy) -> Policy {
    let mut policy = Policy { prune, ..Policy::default() };
    policy.compact.engine = SummaryEngine::Summary;
    policy.compact.keep_messages = 2;
    // Nothing is prepared: a summary is needed when the request does not fit.
    (policy.compact.prepare, policy.compact.threshold) = (1.0, 1.0);
    policy
}

fn never() -> PrunePolicy {
    PrunePolicy { gate: Vec::new(), ..PrunePolicy::default() }
}

/// Cuts nothing before the request that does not fit, and then all but the newest results.
fn when_full() -> PrunePolicy {
    PrunePolicy { gate: vec![PruneGate::Pressure], pressure: 0.95, ..always() }
}

/// Cuts all but the newest results in each request.
fn always() -> PrunePolicy {
    PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 2_000,
        protect_messages: 2,
        min_saving_tokens: 500,
        min_messages: 2,
        ..PrunePolicy::default()
    }
}

fn text(content: &str) -> Value {
    json!({"type": "text", "text": content})
}

/// A request with the client's own cache marker at the end of its history.
fn request(history: &[Value]) -> Value {
    let mut messages = history.to_vec();
    let last = messages.last_mut().unwrap()["content"].as_array_mut().unwrap();
    last.last_mut().unwrap()["cache_control"] = json!({"type": "ephemeral"});
    let system =
        json!([{"type": "text", "text": "You read logs.", "cache_control": {"type": "ephemeral"}}]);
    let tool = json!({"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}});
    json!({"model": MODEL, "max_tokens": 1000, "system": system, "tools": [tool], "messages": messages})
}

async fn open(policy: Policy) -> Stage {
    // Without the vocabulary, parts would be counted by length.
    bpe::load(Family::Claude);
    let rules = Rules { window: Some(WINDOW), ..Rules::default() };
    let mut stage = Stage::open(rules, policy).await;
    stage.provider.reply_to_matching(ASKS, ScriptedReply::text(SUMMARY));
    stage.config.upstreams[0].window = Some(WINDOW);
    stage.restart().await;
    stage
}

async fn exchange(stage: &mut Stage, history: &mut Vec<Value>, reply: ScriptedReply) -> RoundTrip {
    let trip = stage.exchange(TARGET, &request(history), reply).await;
    assert_eq!(trip.status, 200, "{:?}", trip.answer);
    history.push(json!({"role": "assistant", "content": trip.answer["content"]}));
    trip
}

/// A history of six results; returns the last exchange.
async fn reads(stage: &mut Stage, history: &mut Vec<Value>) -> RoundTrip {
    history.push(json!({"role": "user", "content": [text(&"Read the logs, all. ".repeat(2_000))]}));
    for number in 0..6 {
        let reply = ScriptedReply::text("I read.").with_call("Read", json!({"path": number}));
        exchange(stage, history, reply).await;
        let call = history.last().unwrap()["content"].as_array().unwrap().last().unwrap();
        let text = format!("Line {number} of the log. ").repeat(50);
        let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": text});
        history.push(json!({"role": "user", "content": [result]}));
    }
    exchange(stage, history, ScriptedReply::text("All is read.")).await
}

fn without_markers(value: &Value) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Array(items) => items.iter_mut().for_each(|it| *it = without_markers(it)),
        Value::Object(members) => {
            members.remove("cache_control");
            members.values_mut().for_each(|it| *it = without_markers(it));
        }
        _ => {}
    }
    value
}

fn question(trip: &RoundTrip) -> &LoggedRequest {
    let is_question =
        |it: &&LoggedRequest| memchr::memmem::find(&it.request.bytes, ASKS.as_bytes()).is_some();
    let mut questions = trip.log.iter().filter(is_question);
    let first = questions.next().expect("a question for the summary");
    assert!(questions.next().is_none(), "one piece");
    first
}

/// The summary's request begins with the bytes that were sent before, and these come from the cache.
fn is_read_from_cache(before: &Value, question: &LoggedRequest) {
    let request = &question.request.body;
    for member in ["model", "system", "tools"] {
        assert_eq!(request[member], before[member], "{member}");
    }
    let (request, before) =
        (without_markers(&request["messages"]), without_markers(&before["messages"]));
    let (request, before) = (request.as_array().unwrap(), before.as_array().unwrap());
    // The last message contains the instruction.
    let common = request.len().min(before.len()) - 1;
    assert!(common >= 12, "{common} messages");
    assert_eq!(request[..common], before[..common], "the prefix is what was sent before");
    let accepted = question.verdict.accepted().unwrap();
    let (read, whole) = (accepted.cache_usage.read, accepted.input_tokens);
    assert!(read * 10 >= whole * 8, "{read} of {whole} tokens from the cache");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn immediate_summary_request_begins_with_cached_prefix() {
    let mut whole = 0;
    for prune in [never(), when_full(), always()] {
        let mut stage = open(compacting(prune.clone())).await;
        let mut history = Vec::new();
        let before = reads(&mut stage, &mut history).await;
        let cut = before.exchange.done.made.cut;
        assert_eq!(cut > 0, prune == always(), "{:?}", before.exchange.done);
        // With the last message the history does not fit, cut or not. Without the history it fits.
        history
            .push(json!({"role": "user", "content": [text(&"And what of this? ".repeat(3_700))]}));
        let at_once = exchange(&mut stage, &mut history, ScriptedReply::text("That, too.")).await;
        let estimates = [&before, &at_once].map(|it| it.exchange.estimate.as_ref().unwrap().tokens);
        assert_eq!(
            at_once.exchange.done.made.compacted, 1,
            "{estimates:?} {:?}",
            at_once.exchange.done
        );
        assert!(at_once.exchange.timing.compaction_wait_us.is_some());
        // The summary also replaced what was cut before or by this request.
        let went = at_once.exchange.done.steps[0].tokens_before;
        whole = whole.max(went);
        assert_eq!(went + 1_500 < whole, prune != never(), "{whole} {:?}", at_once.exchange.done);
        is_read_from_cache(before.sent(), question(&at_once));
    }
}
