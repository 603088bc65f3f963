//! Reasoning that policy excludes is removed, and only what is left counts.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{
    Policy, PruneGate, PrunePolicy, ReasoningPolicy, ReasoningRule, ReinjectPolicy, StripPolicy,
    SummaryEngine,
};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};

fn strips(strip: StripPolicy) -> Policy {
    let reasoning = ReasoningPolicy { strip_from_context: strip, ..ReasoningPolicy::default() };
    Policy { reasoning, ..Policy::default() }
}

fn request(model: &str, turns: usize, thought: &str) -> Value {
    let mut messages = Vec::new();
    for turn in 0..turns {
        messages.push(message("user", json!(format!("Question {turn}?"))));
        let mut answer = message("assistant", json!(format!("Answer {turn}.")));
        answer["reasoning_content"] = json!(format!("{turn}: {thought}"));
        messages.push(answer);
    }
    messages.push(message("user", json!("And now?")));
    json!({"model": model, "messages": messages})
}

fn reply() -> Value {
    json!({"id": "c", "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "So."}}]})
}

fn thinking(sent: &Value) -> Vec<bool> {
    let messages = sent["messages"].as_array().unwrap().iter();
    let answers = messages.filter(|message| message["role"] == "assistant");
    answers.map(|message| message.get("reasoning_content").is_some()).collect()
}

#[tokio::test]
async fn stripped_reasoning_stays_out_of_later_requests() {
    for (strip, left) in
        [(StripPolicy::All, [false, false, false]), (StripPolicy::AllButLast, [false, false, true])]
    {
        let mut play = Play::of("/v1/chat/completions", strips(strip)).await;
        let request_body = request("some-model", 3, "Hm.");
        let scene = play.exchange(&request_body, &reply()).await;
        assert_eq!(thinking(&scene.sent), left, "{strip:?}");
        let gone = left.iter().filter(|left| !**left).count();
        assert_eq!(
            scene.steps(),
            vec![(Change::Removed, Decision::New, DecisionReason::Stripped); gone]
        );
        // It was sent without the reasoning, so it stays without, whatever policy says later.
        play.config.policy = Policy::default().into();
        play.restart().await;
        assert_eq!(play.exchange(&request_body, &reply()).await.bytes, scene.bytes);
    }
}

#[tokio::test]
async fn reasoning_that_provider_demands_is_not_stripped() {
    let mut play = Play::of("/v1/chat/completions", strips(StripPolicy::All)).await;
    let request_body = request("deepseek-v4", 2, "Hm.");
    let scene = play.exchange(&request_body, &reply()).await;
    assert_eq!(scene.bytes, request_body.to_string());
    assert!(scene.steps().iter().all(|step| step.2 == DecisionReason::Demanded));
}

/// Bound reasoning is chained: removing one block invalidates those after it (`docs/protocols.md` 1.5).
#[tokio::test]
async fn bound_reasoning_is_not_stripped() {
    let mut play = Play::of("/v1/messages", strips(StripPolicy::All)).await;
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"});
    let history = [
        message("user", json!("One?")),
        message("assistant", json!([thought, {"type": "text", "text": "One."}])),
        message("user", json!("Two?")),
    ];
    let request_body = anthropic_request("claude-opus-5-5", &history);
    let answer = anthropic_reply("m", "claude-opus-5-5", json!([]));
    let scene = play.exchange(&request_body, &answer).await;
    assert_eq!(scene.bytes, request_body.to_string());
    assert_eq!(scene.steps(), [(Change::Removed, Decision::Declined, DecisionReason::Bound)]);
    let request_body = anthropic_request("claude-opus-4-6", &history);
    play.session = "free";
    let scene = play.exchange(&request_body, &answer).await;
    assert_eq!(scene.sent["messages"][1]["content"], json!([{"type": "text", "text": "One."}]));
}

/// A branch that sent reasoning removes it by its own decision, even if another branch did so first and no reply is
/// recorded.
#[tokio::test]
async fn each_branch_decides_by_itself_to_strip_reasoning() {
    let model = "claude-opus-4-6";
    let mut policy = strips(StripPolicy::All);
    policy.reasoning.reinject = ReinjectPolicy::Off;
    let mut play = Play::of("/v1/messages", policy).await;
    let called = json!([{"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Deep."}]);
    let mut history = vec![message("user", json!("How deep?"))];
    play.exchange(
        &anthropic_request(model, &history),
        &anthropic_reply("m1", model, called.clone()),
    )
    .await;
    history.extend([message("assistant", called), message("user", result)]);
    let reply = json!([{"type": "text", "text": "Deep."}]);
    let open = play
        .exchange(&anthropic_request(model, &history), &anthropic_reply("m2", model, reply.clone()))
        .await;
    assert_eq!(open.steps(), [(Change::Removed, Decision::Declined, DecisionReason::OpenLoop)]);
    history.push(message("assistant", reply.clone()));
    for question in ["And here?", "And there?"] {
        let branch = [history.clone(), vec![message("user", json!(question))]].concat();
        let scene = play
            .exchange(
                &anthropic_request(model, &branch),
                &anthropic_reply(question, model, reply.clone()),
            )
            .await;
        let removed = (Change::Removed, Decision::New, DecisionReason::Stripped);
        assert_eq!(scene.steps(), [removed], "{question}");
    }
}

/// Reasoning without a signature is identified by its text. If the model writes the same reasoning again, earlier
/// removals do not apply to it.
#[tokio::test]
async fn equal_reasoning_of_two_replies_is_stripped_separately() {
    let mut play = Play::of("/v1/chat/completions", strips(StripPolicy::All)).await;
    play.config.upstreams[0].reasoning_echo = Some(ReasoningRule::Wanted);
    play.restart().await;
    let mut history = vec![message("user", json!("How deep?")), thinks("Look.", json!([]))];
    history.push(message("user", json!("And here?")));
    let first = play.exchange(&anthropic_request("glm-5", &history), &reply()).await;
    assert_eq!(thinking(&first.sent), [false]);
    history.extend([thinks("", json!([call("c1")])), result("c1", "Deep.")]);
    let open = play.exchange(&anthropic_request("glm-5", &history), &reply()).await;
    assert_eq!(thinking(&open.sent), [false, true], "the open loop's own stays");
    history.extend([message("assistant", json!("Deep.")), message("user", json!("Thanks."))]);
    let closed = play.exchange(&anthropic_request("glm-5", &history), &reply()).await;
    assert_eq!(thinking(&closed.sent), [false, false, false]);
    play.restart().await;
    assert_eq!(
        play.exchange(&anthropic_request("glm-5", &history), &reply()).await.bytes,
        closed.bytes
    );
}

/// One branch removed reasoning, for a model that does not demand it. Another model demands it, and wrote the same
/// reasoning in its own branch.
#[tokio::test]
async fn reasoning_equal_to_stripped_reasoning_is_sent_if_demanded() {
    let mut play = Play::of("/v1/chat/completions", strips(StripPolicy::All)).await;
    let question = message("user", json!("How deep?"));
    let resumed = [question.clone(), thinks("It i", json!([])), message("user", json!("Go on."))];
    let first = play.exchange(&anthropic_request("glm-5", &resumed), &reply()).await;
    assert_eq!(thinking(&first.sent), [false]);
    let mut history = vec![question];
    let called = thinks("It is deep.", json!([call("c1")]));
    let answer = json!({"id": "k", "choices": [{"index": 0, "finish_reason": "tool_calls",
        "message": called}]});
    play.exchange(&anthropic_request("kimi-k3", &history), &answer).await;
    history.extend([called, result("c1", "Deep.")]);
    let next = play.exchange(&anthropic_request("kimi-k3", &history), &reply()).await;
    assert_eq!(thinking(&next.sent), [true]);
}

fn thinks(text: &str, calls: Value) -> Value {
    let mut said = message("assistant", json!(text));
    said["reasoning_content"] = json!("Hm.");
    if calls != json!([]) {
        said["tool_calls"] = calls;
    }
    said
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "Read", "arguments": "{}"}})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

/// 100k of content and 50k of removed reasoning: 100k is shown, and a threshold in between is not passed.
#[tokio::test]
async fn count_without_stripped_reasoning_is_shown_and_decides() {
    // About 4 bytes a token for these models.
    let thought = "so the keel goes down and ".repeat(400);
    let request_body = request("some-model", 5, &thought);
    let mut measured = Vec::new();
    for policy in [Policy::default(), strips(StripPolicy::All)] {
        let mut play = Play::of("/v1/chat/completions", policy).await;
        let scene = play.exchange(&request_body, &reply()).await;
        measured.push(scene.exchange.estimate.clone().unwrap());
    }
    let [raw, effective] = measured.as_slice() else { panic!() };
    assert!(raw.tokens > 10 * effective.tokens, "{} and {}", raw.tokens, effective.tokens);
    assert_eq!(effective.breakdown.reasoning, 0);

    // With a window between the two counts, the whole would be under pressure.
    let mut policy = strips(StripPolicy::All);
    policy.prune = PrunePolicy {
        gate: vec![PruneGate::Pressure],
        protect_tokens: 0,
        protect_messages: 0,
        min_saving_tokens: 1,
        min_messages: 0,
        ..PrunePolicy::default()
    };
    policy.compact.engine = SummaryEngine::Off;
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_AbCdEfGh12",
        "type": "function", "function": {"name": "read", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "call_AbCdEfGh12",
        "content": "Line of the log. ".repeat(20)});
    let mut request_body = request_body;
    request_body["messages"].as_array_mut().unwrap().splice(1..1, [call, result]);
    for (strip, cuts) in [(StripPolicy::All, 0), (StripPolicy::None, 1)] {
        policy.reasoning.strip_from_context = strip;
        let mut play = Play::of("/v1/chat/completions", policy.clone()).await;
        play.config.output_reserve = 0;
        play.config.upstreams[0].window = Some((raw.tokens + effective.tokens) / 2);
        play.restart().await;
        let scene = play.exchange(&request_body, &reply()).await;
        assert_eq!(
            scene.exchange.done.made.cut, cuts,
            "{strip:?}: {:?}",
            scene.exchange.done.steps
        );
    }
}
