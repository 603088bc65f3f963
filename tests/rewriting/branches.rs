//! A decision belongs to the branch that made it: what another branch cut is not cut here, unless this one
//! decides so itself.

use plimsoll::context::policy::Policy;
use scripted_provider::strict::{Loss, Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{CLEARED, eager, history};
use crate::stage::{RoundTrip, Stage};

const FREE: &str = "claude-opus-4-6";
const BOUND: &str = "claude-opus-5-5";

/// How many results are cut in a request of Anthropic's dialect.
fn cleared(sent: &Value) -> usize {
    sent.to_string().matches(CLEARED).count()
}

fn assistant(text: &str) -> Value {
    message("assistant", json!([{"type": "text", "text": text}]))
}

/// The reply as a client sends it back that keeps everything.
fn kept(answer: &Value) -> Value {
    message("assistant", answer["content"].clone())
}

/// The result of the only call in a reply.
fn result_of(answer: &Value, text: &str) -> Value {
    let blocks = answer["content"].as_array().unwrap();
    let call = blocks.iter().find(|block| block["type"] == "tool_use").unwrap();
    message("user", json!([{"type": "tool_result", "tool_use_id": call["id"], "content": text}]))
}

/// A session in which old results were cut for a model that does not bind reasoning, and then a model that does
/// replied. Returns the history up to then, and that reply, which calls a tool.
async fn thought_after_cuts(policy: Policy) -> (Stage, Vec<Value>, RoundTrip) {
    let rules = Rules { cache_min: Some(1), ..Rules::default() };
    let mut stage = Stage::open(rules, policy).await;
    let mut messages = history(6);
    let first = stage
        .exchange(
            "/v1/messages",
            &anthropic_request(FREE, &messages),
            ScriptedReply::text("Go on."),
        )
        .await;
    assert!(cleared(first.sent()) >= 3, "{:?}", first.exchange.done);
    messages.push(assistant("Go on."));
    messages.extend(history(7).split_off(13));
    let reply = ScriptedReply::thinking("Where is it?", 40)
        .with_text("I look.")
        .with_call("Read", json!({"path": 9}));
    let bound = stage.exchange("/v1/messages", &anthropic_request(BOUND, &messages), reply).await;
    assert_eq!(bound.status, 200, "{}", bound.answer);
    (stage, messages, bound)
}

/// A fork cuts a result that the other branch sent whole to a model that binds reasoning. There it stays whole, and the
/// reasoning stays valid.
#[tokio::test]
async fn cut_made_in_fork_is_not_applied_before_bound_reasoning() {
    let (mut stage, history, thought) = thought_after_cuts(eager()).await;
    let (before, answer) = (cleared(thought.sent()), &thought.answer);

    // In the fork, the other model replies to the same history.
    let mut fork = history.clone();
    stage
        .exchange("/v1/messages", &anthropic_request(FREE, &fork), ScriptedReply::text("Deep."))
        .await;
    fork.extend([assistant("Deep."), message("user", json!("On."))]);
    let on = stage
        .exchange("/v1/messages", &anthropic_request(FREE, &fork), ScriptedReply::text("On."))
        .await;
    fork.extend([assistant("On."), message("user", json!("On."))]);
    let forked = stage
        .exchange("/v1/messages", &anthropic_request(FREE, &fork), ScriptedReply::text("On it is."))
        .await;
    assert!(
        cleared(forked.sent()) > before,
        "the fork cuts more: {:?} {:?}",
        on.exchange.done,
        forked.exchange.done
    );

    let mut bound = history.clone();
    bound.extend([kept(answer), result_of(answer, "Deep water.")]);
    for _ in 0..2 {
        let next = stage
            .exchange(
                "/v1/messages",
                &anthropic_request(BOUND, &bound),
                ScriptedReply::text("It is deep."),
            )
            .await;
        assert_eq!(next.status, 200, "{}", next.answer);
        assert_eq!(next.log.len(), 1, "{:?}", next.exchange.done);
        assert_eq!(cleared(next.sent()), before, "{:?}", next.exchange.done);
        assert!(next.log[0].verdict.losses().is_empty(), "{:?}", next.log[0].verdict);
        bound.extend([assistant("It is deep."), message("user", json!("How deep?"))]);
        stage.restart().await;
    }
    // The fork keeps its own cuts.
    fork.extend([assistant("On it is."), message("user", json!("And now?"))]);
    let forked_on = stage
        .exchange("/v1/messages", &anthropic_request(FREE, &fork), ScriptedReply::text("So."))
        .await;
    assert!(cleared(forked_on.sent()) >= cleared(forked.sent()));
}

/// A result was cut before another model's reasoning. It stays cut once this model turns out to bind reasoning, because
/// its own reasoning was made after the cut.
#[tokio::test]
async fn cut_made_before_another_models_reasoning_stays() {
    let rules = Rules { cache_min: Some(1), binding: Some(true), ..Rules::default() };
    let mut stage = Stage::open(rules, eager()).await;
    let thinks = |path| {
        ScriptedReply::thinking("Where is it?", 40)
            .with_text("I look.")
            .with_call("Read", json!({"path": path}))
    };
    let mut history = history(6);
    let other =
        stage.exchange("/v1/messages", &anthropic_request(BOUND, &history), thinks(9)).await;
    history.extend([kept(&other.answer), result_of(&other.answer, &"Deep water. ".repeat(300))]);
    let cut = stage.exchange("/v1/messages", &anthropic_request(FREE, &history), thinks(10)).await;
    assert!(cleared(cut.sent()) > cleared(other.sent()), "{:?}", cut.exchange.done);
    history.extend([kept(&cut.answer), result_of(&cut.answer, &"Deeper water. ".repeat(300))]);
    let next = stage
        .exchange("/v1/messages", &anthropic_request(FREE, &history), ScriptedReply::text("Deep."))
        .await;
    assert_eq!(next.status, 200, "{:?} {}", next.exchange.done, next.answer);
    assert_eq!(next.log.len(), 3, "{:?} {}", next.exchange.done, next.answer);
    let cleared_in = |attempt: usize| cleared(&next.log[attempt].request.body);
    assert!(cleared_in(0) > cleared(cut.sent()), "a new cut is refused");
    assert_eq!(cleared_in(1), 0);
    assert_eq!(cleared_in(2), cleared(cut.sent()));
}

/// After a rewind, the newest results are whole if this branch sent them whole or has not sent them yet, even if
/// another branch has cut them since.
#[tokio::test]
async fn rewind_keeps_newest_results_whole() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let call = history(6)[11]["content"].clone();
    let reply = anthropic_reply("m1", FREE, json!([{"type": "text", "text": "Go on."}]));
    play.exchange(&anthropic_request(FREE, &history(5)), &anthropic_reply("m0", FREE, call)).await;
    let long = play.exchange(&anthropic_request(FREE, &history(10)), &reply).await;
    assert_eq!(long.sent["messages"][12]["content"][0]["content"], CLEARED, "{:?}", long.steps());
    let short = anthropic_request(FREE, &history(6));
    let rewound = play.exchange(&short, &reply).await;
    assert_eq!(rewound.sent["messages"][12], short["messages"][12], "{:?}", rewound.steps());
    // The longer request is sent once more, after this branch has grown, too.
    let later = play.exchange(&anthropic_request(FREE, &history(10)), &reply).await;
    assert_eq!(later.sent["messages"][12]["content"][0]["content"], CLEARED);
    for _ in 0..2 {
        play.restart().await;
        assert_eq!(play.exchange(&short, &reply).await.bytes, rewound.bytes);
    }
}

/// The last reply did not come through this proxy, so it is not known what its branch sent: older results stay cut, the
/// newest, which has no reply yet, is whole.
#[tokio::test]
async fn unanswered_result_stays_whole_if_branch_is_unknown() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", FREE, json!([{"type": "text", "text": "Go on."}]));
    let long = play.exchange(&anthropic_request(FREE, &history(10)), &reply).await;
    let is_cut = |sent: &Value, at: usize| sent["messages"][at]["content"][0]["content"] == CLEARED;
    assert!(is_cut(&long.sent, 10), "{:?}", long.steps());
    assert!(is_cut(&long.sent, 12), "{:?}", long.steps());
    let short = anthropic_request(FREE, &history(6));
    for _ in 0..2 {
        play.restart().await;
        let rewound = play.exchange(&short, &reply).await;
        assert_eq!(rewound.sent["messages"][12], short["messages"][12], "{:?}", rewound.steps());
        assert!(is_cut(&rewound.sent, 10), "{:?}", rewound.steps());
    }
}

/// A decision that a branch adopts from another is its own from then on, and is reported as new once.
#[tokio::test]
async fn decision_adopted_from_another_branch_is_new_only_once() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", FREE, json!([{"type": "text", "text": "Go on."}]));
    let on = |text: &str| {
        let mut grown = history(6);
        grown.push(assistant("Go on."));
        grown.push(message("user", json!(text)));
        anthropic_request(FREE, &grown)
    };
    play.exchange(&anthropic_request(FREE, &history(6)), &reply).await;
    let one = play.exchange(&on("One."), &reply).await;
    let new = one.exchange.done.new.cut;
    assert!(new > 0, "{:?}", one.steps());
    let two = play.exchange(&on("Two."), &reply).await;
    assert_eq!(cleared(&two.sent), cleared(&one.sent));
    assert_eq!(two.exchange.done.new.cut, new);
    let mut longer = on("Two.");
    let messages = longer["messages"].as_array_mut().unwrap();
    messages.extend([assistant("Go on."), message("user", json!("Three."))]);
    play.restart().await;
    let three = play.exchange(&longer, &reply).await;
    assert_eq!(cleared(&three.sent), cleared(&one.sent));
    assert_eq!(three.exchange.done.new.cut, 0);
}

/// With Responses, the same cut would lose reasoning without an error.
#[tokio::test]
async fn cut_made_in_fork_loses_no_encrypted_reasoning() {
    const TARGET: &str = "/v1/responses";
    let rules = Rules { cache_min: Some(1), ..Rules::default() };
    let mut stage = Stage::open(rules, eager()).await;
    let items = |count: usize| {
        let mut items = vec![json!({"role": "user", "content": "Read them all."})];
        for number in 0..count {
            let id = format!("call_01AbCdEf{number:04}");
            let arguments = json!({"path": number}).to_string();
            items.push(json!({"type": "function_call", "call_id": id, "name": "Read", "arguments": arguments}));
            let text = format!("Line {number} of the log. ").repeat(40);
            items.push(json!({"type": "function_call_output", "call_id": id, "output": text}));
        }
        items
    };
    let request_for = |model: &str, input: &[Value]| json!({"model": model, "store": false, "include": ["reasoning.encrypted_content"], "input": input});
    let spoken = |text: &str| json!({"role": "assistant", "content": text});
    let user = |text: &str| json!({"role": "user", "content": text});
    stage.exchange(TARGET, &request_for("gpt-5.4", &items(6)), ScriptedReply::text("Go on.")).await;
    let mut history = items(6);
    history.push(spoken("Go on."));
    history.extend(items(7).split_off(13));
    let reply = ScriptedReply::thinking("Where is it?", 40).with_text("I look.");
    let thought = stage.exchange(TARGET, &request_for("gpt-5.6-sol", &history), reply).await;
    let before = cleared(thought.sent());
    assert!(thought.status == 200, "{}", thought.answer);
    assert!(before > 0, "{}", thought.answer);
    let mut fork = history.clone();
    for text in ["Deep.", "Deeper."] {
        stage.exchange(TARGET, &request_for("gpt-5.4", &fork), ScriptedReply::text(text)).await;
        fork.extend([spoken(text), user("On.")]);
    }
    let forked = stage
        .exchange(TARGET, &request_for("gpt-5.4", &fork), ScriptedReply::text("On it is."))
        .await;
    assert!(cleared(forked.sent()) > before, "{:?}", forked.exchange.done);
    let mut output = thought.answer["output"].as_array().unwrap().clone();
    for item in &mut output {
        let item = item.as_object_mut().unwrap();
        item.remove("id");
        item.remove("status");
    }
    history.extend(output);
    history.push(user("And now?"));
    let next = stage
        .exchange(TARGET, &request_for("gpt-5.6-sol", &history), ScriptedReply::text("So."))
        .await;
    assert_eq!(next.status, 200, "{}", next.answer);
    assert_eq!(cleared(next.sent()), before, "{}", next.answer);
    let is_lost =
        |loss: &Loss| matches!(loss, Loss::ReasoningDropped { .. } | Loss::ReasoningAbsent { .. });
    let losses = next.log[0].verdict.losses();
    assert!(!losses.iter().any(is_lost), "{losses:?}");
}
