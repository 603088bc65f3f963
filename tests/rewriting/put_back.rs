//! Reasoning that a client dropped is put back at its place before the request is sent.

use plimsoll::context::ledger::Ledger;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{
    Mode, Policy, ReasoningPolicy, ReasoningRule, ReinjectPolicy, StripPolicy,
};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};

const MODEL: &str = "claude-opus-4-5";

fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": format!("c2ln{}", text.len())})
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "Read", "input": {"path": "a"}})
}

fn result(id: &str, text: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": text})
}

#[tokio::test]
async fn thinking_is_put_back_and_stays() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let ids = ["toolu_01AbCdEfGh12", "toolu_01ZyXwVuTs34"];
    let mut history = vec![message("user", json!("Look."))];
    let reply =
        json!([thinking("Let me look."), {"type": "text", "text": "I look."}, call(ids[0])]);
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, reply))
        .await;
    assert!(scene.exchange.done.is_nothing());

    // The client drops the thinking.
    history.push(message("assistant", json!([{"type": "text", "text": "I look."}, call(ids[0])])));
    history.push(message("user", json!([result(ids[0], "Deep water.")])));
    let reply = json!([thinking("So it is deep."), call(ids[1])]);
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, reply))
        .await;
    assert_eq!(scene.steps(), [(Change::PutBack, Decision::New, DecisionReason::Birth)]);
    let content = &scene.sent["messages"][1]["content"];
    assert_eq!(content[0], thinking("Let me look."));
    assert_eq!(content.as_array().unwrap().len(), 3);

    // It stays there, after a restart too, and the next reasoning is put back as well.
    history.push(message("assistant", json!([call(ids[1])])));
    history.push(message("user", json!([result(ids[1], "Very deep.")])));
    play.restart().await;
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m3", MODEL, json!([])))
        .await;
    assert_eq!(scene.sent["messages"][1]["content"], *content);
    assert_eq!(scene.sent["messages"][3]["content"][0], thinking("So it is deep."));
    assert_eq!(scene.exchange.done.made.put_back, 2);
}

/// Bound reasoning must follow the reasoning that it was made after, even if that is all of a reply.
#[tokio::test]
async fn reply_with_only_thinking_is_put_back_before_bound_reasoning() {
    const BOUND: &str = "claude-opus-5-5";
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let id = "toolu_01AbCdEfGh12";
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call(id)]);
    play.exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m1", BOUND, reply)).await;
    // The client drops the first reasoning and keeps the second.
    history.push(message("assistant", json!([call(id)])));
    history.push(message("user", json!([result(id, "Deep water.")])));
    let alone = json!([thinking("So it is.")]);
    let scene = play
        .exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m2", BOUND, alone.clone()))
        .await;
    assert_eq!(scene.exchange.done.made.put_back, 1);
    history.push(message("assistant", alone));
    history.push(message("user", json!("And now?")));
    for _ in 0..2 {
        let scene = play
            .exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m3", BOUND, json!([])))
            .await;
        assert_eq!(scene.sent["messages"][1]["content"][0], thinking("Let me look."));
        assert_eq!(scene.sent["messages"].as_array().unwrap()[2..], history[2..]);
        play.restart().await;
    }
    // With unknown reasoning in its place, nothing of ours is put back.
    history[3] = message("assistant", json!([thinking("It may be otherwise.")]));
    let scene = play
        .exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m4", BOUND, json!([])))
        .await;
    assert_eq!(scene.exchange.done.made.put_back, 0, "{:?}", scene.steps());
}

/// A request that is sent twice may get two replies with the same text. The client continues with the second reply: the
/// first one's reasoning is not added to it.
#[tokio::test]
async fn second_reply_to_request_gets_no_reasoning_of_first() {
    let id = "toolu_01AbCdEfGh12";
    for model in [MODEL, "claude-opus-5-5"] {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let mut history = vec![message("user", json!("Look."))];
        for text in ["Let me look.", "I shall look."] {
            let reply = json!([thinking(text), call(id)]);
            play.exchange(
                &anthropic_request(model, &history),
                &anthropic_reply(text, model, reply),
            )
            .await;
        }
        history.push(message("assistant", json!([thinking("I shall look."), call(id)])));
        history.push(message("user", json!([result(id, "Deep water.")])));
        for _ in 0..2 {
            let request = anthropic_request(model, &history);
            let scene = play.exchange(&request, &anthropic_reply("m3", model, json!([]))).await;
            assert_eq!(scene.bytes, request.to_string());
            play.restart().await;
        }
    }
}

/// After a rewind the model writes the same text after other reasoning. Each branch gets its own reasoning back.
#[tokio::test]
async fn branch_gets_its_own_reasoning() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let text = json!({"type": "text", "text": "Aye."});
    let mut branches = Vec::new();
    for (thought, question) in [("Hm.", "And here?"), ("I see it.", "And there?")] {
        let mut history = vec![message("user", json!("Look."))];
        let reply = json!([thinking(thought), text]);
        play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply(thought, MODEL, reply))
            .await;
        history.extend([message("assistant", json!([text])), message("user", json!(question))]);
        let reply = json!([{"type": "text", "text": question}]);
        let scene = play
            .exchange(&anthropic_request(MODEL, &history), &anthropic_reply(question, MODEL, reply))
            .await;
        assert_eq!(scene.sent["messages"][1]["content"], json!([thinking(thought), text]));
        history.extend([message("assistant", json!(question)), message("user", json!("So."))]);
        branches.push((thought, history));
    }
    play.restart().await;
    for (thought, history) in branches {
        let scene = play
            .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m", MODEL, json!([])))
            .await;
        assert_eq!(scene.sent["messages"][1]["content"], json!([thinking(thought), text]));
    }
}

/// The same with Gemini's signatures, which stand on the calls themselves and not in blocks of their own.
#[tokio::test]
async fn each_branch_gets_signatures_of_its_own_reply() {
    let mut play = Play::of("/v1beta/models/gemini-3-pro:generateContent", Policy::default()).await;
    let question = json!({"role": "user", "parts": [{"text": "Look."}]});
    let call = json!({"functionCall": {"name": "Read", "args": {"path": "log"}}});
    let signed = |signature: &str| {
        let mut signed = call.clone();
        signed["thoughtSignature"] = json!(signature);
        signed
    };
    let reply = |id: &str, parts: Value| {
        json!({"responseId": id, "modelVersion": "gemini-3-pro",
            "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 10}})
    };
    let body = |contents: &[Value]| json!({"contents": contents});
    let mut branches = Vec::new();
    for (signature, result) in [("c2lnbmF0dXJlMQ==", "Deep."), ("c2lnbmF0dXJlMg==", "Shallow.")] {
        let mut history = vec![question.clone()];
        play.exchange(&body(&history), &reply(result, json!([signed(signature)]))).await;
        let result = json!({"functionResponse": {"name": "Read", "response": {"output": result}}});
        history.push(json!({"role": "model", "parts": [call]}));
        history.push(json!({"role": "user", "parts": [result]}));
        let scene = play.exchange(&body(&history), &reply("next", json!([{"text": "So."}]))).await;
        assert_eq!(scene.sent["contents"][1]["parts"], json!([signed(signature)]));
        branches.push((signature, history));
    }
    play.restart().await;
    for (signature, mut history) in branches {
        history.push(json!({"role": "model", "parts": [{"text": "So."}]}));
        history.push(json!({"role": "user", "parts": [{"text": "And now?"}]}));
        let scene = play.exchange(&body(&history), &reply("end", json!([{"text": "Well."}]))).await;
        assert_eq!(scene.sent["contents"][1]["parts"], json!([signed(signature)]));
    }
}

/// In `shadow` no reasoning is put back for the first time, even if the model wrote the same text in another branch.
#[tokio::test]
async fn shadow_puts_back_no_reasoning_for_first_time() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let text = json!({"type": "text", "text": "Aye."});
    let question = message("user", json!("Look."));
    for (thought, mode) in [("Hm.", Mode::Active), ("I see it.", Mode::Shadow)] {
        let reply = json!([thinking(thought), text]);
        play.exchange(
            &anthropic_request(MODEL, std::slice::from_ref(&question)),
            &anthropic_reply(thought, MODEL, reply),
        )
        .await;
        let answer = message("assistant", json!([text]));
        let next = message("user", json!(format!("{thought} So?")));
        play.config.mode = mode;
        play.restart().await;
        let request = anthropic_request(MODEL, &[question.clone(), answer, next]);
        let scene = play.exchange(&request, &anthropic_reply("next", MODEL, json!([]))).await;
        let original = request.to_string();
        assert_eq!(scene.bytes == original, mode == Mode::Shadow, "{}", scene.bytes);
    }
}

/// After a rewind the model writes the same text without reasoning: the reasoning of its first reply is not added.
#[tokio::test]
async fn reply_without_reasoning_gets_none_of_another() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let ids = ["toolu_01AbCdEfGh12", "toolu_01ZyXwVuTs34"];
    let question = message("user", json!("Look."));
    let text =
        json!({"type": "text", "text": "I look at the depth of the water under the keel now."});
    for (id, thinks, count) in [(ids[0], vec![thinking("So.")], 3), (ids[1], vec![], 2)] {
        let said = vec![text.clone(), call(id)];
        let reply = json!([thinks, said.clone()].concat());
        play.exchange(
            &anthropic_request(MODEL, std::slice::from_ref(&question)),
            &anthropic_reply(id, MODEL, reply),
        )
        .await;
        let result = message("user", json!([result(id, "Deep.")]));
        let history = [question.clone(), message("assistant", json!(said)), result];
        let scene = play
            .exchange(
                &anthropic_request(MODEL, &history),
                &anthropic_reply("next", MODEL, json!([])),
            )
            .await;
        let content = &scene.sent["messages"][1]["content"];
        assert_eq!(content.as_array().unwrap().len(), count, "{content}");
    }
}

/// A reply breaks off after its text. The request is repeated, and the second reply has the same text and a call. Its
/// own reasoning is put back, once.
#[tokio::test]
async fn longer_second_reply_gets_its_own_reasoning_put_back() {
    let id = "toolu_01AbCdEfGh12";
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let mut history = vec![message("user", json!("Look."))];
    let says = json!({"type": "text", "text": "I look."});
    let broken = json!([thinking("Let me look."), says]);
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, broken)).await;
    let whole = json!([thinking("I shall look."), says, call(id)]);
    play.exchange(
        &anthropic_request(MODEL, &history),
        &anthropic_reply("m2", MODEL, whole.clone()),
    )
    .await;
    history.push(message("assistant", json!([says, call(id)])));
    history.push(message("user", json!([result(id, "Deep water.")])));
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m3", MODEL, json!([])))
        .await;
    assert_eq!(scene.exchange.done.made.put_back, 1, "{:?}", scene.steps());
    assert_eq!(scene.sent["messages"][1]["content"], whole);
}

/// A reply breaks off after its text, and its client goes on from it. Then it goes back, and the second reply has the same text,
/// a call and no reasoning: the reasoning of the first one is not added.
#[tokio::test]
async fn longer_second_reply_without_reasoning_gets_none() {
    let id = "toolu_01AbCdEfGh12";
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let question = message("user", json!("Look."));
    let says = json!({"type": "text", "text": "I look."});
    let ask = |history: &[Value]| anthropic_request(MODEL, history);
    let broken = json!([thinking("Let me look."), says]);
    play.exchange(&ask(std::slice::from_ref(&question)), &anthropic_reply("m1", MODEL, broken))
        .await;
    let resumed = message("user", json!("Resume directly."));
    let history = [question.clone(), message("assistant", json!([says])), resumed];
    let scene = play.exchange(&ask(&history), &anthropic_reply("m2", MODEL, json!([]))).await;
    assert_eq!(scene.exchange.done.made.put_back, 1, "{:?}", scene.steps());

    let whole = message("assistant", json!([says, call(id)]));
    let reply = anthropic_reply("m3", MODEL, whole["content"].clone());
    play.exchange(&ask(std::slice::from_ref(&question)), &reply).await;
    let results = message("user", json!([result(id, "Deep water.")]));
    let request = ask(&[question, whole, results]);
    let scene = play.exchange(&request, &anthropic_reply("m4", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
}

/// Bound reasoning came back without the rest of its reply, or in a second reply to the same request. It still follows
/// what was put back before it, after a restart too.
#[tokio::test]
async fn reasoning_put_back_stays_before_bound_reasoning_of_partial_reply() {
    const BOUND: &str = "claude-opus-5-5";
    let (id, next) = ("toolu_01AbCdEfGh12", "toolu_01AbCdEfGh34");
    let thought = |text: &str| vec![json!([thinking(text)])];
    let repeated = [thought("So it is."), thought("It is just so.")].concat();
    let broken = vec![json!([thinking("It is just so."), call(next)])];
    for replies in [repeated, broken] {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let mut history = vec![message("user", json!("Look."))];
        let reply = json!([thinking("Let me look."), call(id)]);
        play.exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m1", BOUND, reply))
            .await;
        history.push(message("assistant", json!([call(id)])));
        history.push(message("user", json!([result(id, "Deep water.")])));
        for (number, reply) in replies.iter().enumerate() {
            let answer = anthropic_reply(&format!("n{number}"), BOUND, reply.clone());
            let scene = play.exchange(&anthropic_request(BOUND, &history), &answer).await;
            assert_eq!(scene.exchange.done.made.put_back, 1);
        }
        history.push(message("assistant", json!([thinking("It is just so.")])));
        history.push(message("user", json!("Resume directly.")));
        for _ in 0..2 {
            let scene = play
                .exchange(
                    &anthropic_request(BOUND, &history),
                    &anthropic_reply("m3", BOUND, json!([])),
                )
                .await;
            assert_eq!(scene.sent["messages"][1]["content"][0], thinking("Let me look."));
            assert_eq!(scene.sent["messages"].as_array().unwrap()[2..], history[2..]);
            play.restart().await;
        }
    }
}

/// Reasoning that policy removed for one model is sent to a model that demands it.
#[tokio::test]
async fn reasoning_stripped_for_one_model_is_sent_to_one_that_demands_it() {
    let mut policy = Policy::default();
    policy.reasoning.strip_from_context = StripPolicy::All;
    let mut play = Play::of("/v1/chat/completions", policy).await;
    let reply = json!({"role": "assistant", "content": "Deep.", "reasoning_content": "Hm."});
    let mut messages =
        vec![message("user", json!("How deep?")), reply, message("user", json!("And how wide?"))];
    let request_for = |model: &str, reply: &[Value]| json!({"model": model, "messages": reply});
    let reply = |id: &str| {
        json!({"id": id, "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "So."}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    };
    for _ in 0..2 {
        let scene = play.exchange(&request_for("glm-5", &messages), &reply("c1")).await;
        assert_eq!(scene.exchange.done.made.removed, 1, "{:?}", scene.steps());
        for _ in 0..2 {
            let request = request_for("deepseek-v4", &messages);
            assert_eq!(play.exchange(&request, &reply("c2")).await.bytes, request.to_string());
            messages.push(message("assistant", json!("So.")));
            messages.push(message("user", json!("And now?")));
        }
    }
}

/// One model's reasoning is known; another model got stand-ins instead. With the first model again, its own reasoning
/// is sent as before.
#[tokio::test]
async fn models_reasoning_is_put_back_after_another_got_stand_in() {
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    let call = json!({"id": "call_00_ZyXwVuTs9876", "type": "function", "function": {"name": "read", "arguments": "{}"}});
    let reply = |message: Value| {
        json!({"id": "c1", "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    };
    let says = reply(json!({"role": "assistant", "content": "So."}));
    let thinks = json!({"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call]});
    let request_for =
        |model: &str, messages: &[Value]| json!({"model": model, "messages": messages});
    let mut messages = vec![message("user", json!("How deep?"))];
    play.exchange(&request_for("kimi-k3", &messages), &reply(thinks)).await;
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    messages
        .push(json!({"role": "tool", "tool_call_id": "call_00_ZyXwVuTs9876", "content": "Deep."}));
    let first = play.exchange(&request_for("kimi-k3", &messages), &says).await;
    assert_eq!(first.sent["messages"][1]["reasoning_content"], "Hm.");
    let other = play.exchange(&request_for("deepseek-v4", &messages), &says).await;
    assert_eq!(other.sent["messages"][1]["reasoning_content"], "");
    assert_eq!(play.exchange(&request_for("kimi-k3", &messages), &says).await.bytes, first.bytes);
}

#[tokio::test]
async fn reasoning_that_client_sends_is_left_unchanged() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call("toolu_01AbCdEfGh12")]);
    play.exchange(
        &anthropic_request(MODEL, &history),
        &anthropic_reply("m1", MODEL, reply.clone()),
    )
    .await;
    history.push(message("assistant", reply));
    history.push(message("user", json!([result("toolu_01AbCdEfGh12", "Deep water.")])));
    let request = anthropic_request(MODEL, &history);
    let scene = play.exchange(&request, &anthropic_reply("m2", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
}

#[tokio::test]
async fn nothing_is_put_back_or_kept_where_policy_forbids_it() {
    let reasoning = ReasoningPolicy { reinject: ReinjectPolicy::Off, ..ReasoningPolicy::default() };
    let policy = Policy { reasoning, ..Policy::default() };
    let mut play = Play::of("/v1/messages", policy).await;
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call("toolu_01AbCdEfGh12")]);
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, reply)).await;
    history.push(message("assistant", json!([call("toolu_01AbCdEfGh12")])));
    history.push(message("user", json!([result("toolu_01AbCdEfGh12", "Deep water.")])));
    let request = anthropic_request(MODEL, &history);
    let scene = play.exchange(&request, &anthropic_reply("m2", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    let scope = play.server.ledgers.scopes_of(&play.session.into()).await.unwrap().remove(0);
    let knows = play.server.ledgers.look(&scope, Ledger::knows_reasoning).await;
    assert!(!knows.unwrap());
}

/// Bound reasoning that was made after reasoning we put back is invalid without that.
#[tokio::test]
async fn reasoning_put_back_stays_after_policy_forbids_putting_back() {
    const BOUND: &str = "claude-opus-5-5";
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let ids = ["toolu_01AbCdEfGh12", "toolu_01ZyXwVuTs34"];
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call(ids[0])]);
    play.exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m1", BOUND, reply)).await;
    history.push(message("assistant", json!([call(ids[0])])));
    history.push(message("user", json!([result(ids[0], "Deep water.")])));
    let reply = json!([{"type": "text", "text": "It is deep."}]);
    play.exchange(
        &anthropic_request(BOUND, &history),
        &anthropic_reply("m2", BOUND, reply.clone()),
    )
    .await;
    let mut policy = Policy::default();
    policy.reasoning.reinject = ReinjectPolicy::Off;
    play.config.policy = policy.into();
    play.restart().await;
    history.extend([message("assistant", reply), message("user", json!("And here?"))]);
    let reply = json!([thinking("I look here."), call(ids[1])]);
    let first = play
        .exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m3", BOUND, reply.clone()))
        .await;
    assert_eq!(first.sent["messages"][1]["content"][0], thinking("Let me look."));
    history
        .extend([message("assistant", reply), message("user", json!([result(ids[1], "Deep.")]))]);
    let next = play
        .exchange(&anthropic_request(BOUND, &history), &anthropic_reply("m4", BOUND, json!([])))
        .await;
    assert_eq!(next.sent["messages"][1], first.sent["messages"][1]);
}

#[tokio::test]
async fn no_reasoning_is_put_back_for_model_that_cannot_read_it() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call("toolu_01AbCdEfGh12")]);
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, reply)).await;
    history.push(message("assistant", json!([call("toolu_01AbCdEfGh12")])));
    history.push(message("user", json!([result("toolu_01AbCdEfGh12", "Deep water.")])));
    let request = anthropic_request("claude-sonnet-4-5", &history);
    let scene =
        play.exchange(&request, &anthropic_reply("m2", "claude-sonnet-4-5", json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    assert_eq!(scene.steps(), [(Change::PutBack, Decision::Declined, DecisionReason::OtherModel)]);
}

/// DeepSeek refuses every request of a session that has lost its reasoning (`docs/protocols.md` 4.2).
#[tokio::test]
async fn provider_that_demands_reasoning_gets_it_or_stand_in() {
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    let id = "call_00_AbCdEfGh1234";
    let call = |id: &str| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "Deep."});
    let mut history = vec![message("user", json!("Look."))];
    let request = |history: &[Value]| json!({"model": "deepseek-v4", "messages": history});
    let mut answer = call(id);
    answer["reasoning_content"] = json!("Let me look.");
    let reply = json!({"id": "c1", "choices": [{"index": 0, "message": answer,
        "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5, "completion_tokens": 5}});
    play.exchange(&request(&history), &reply).await;
    history.extend([call(id), result(id)]);
    let scene = play.exchange(&request(&history), &reply).await;
    assert_eq!(scene.sent["messages"][1]["reasoning_content"], "Let me look.");

    // The conversation began elsewhere: the field is needed all the same.
    play.session = "another";
    let foreign = "call_00_ZyXwVuTs9876";
    let history = [message("user", json!("Hm.")), call(foreign), result(foreign)];
    let scene = play.exchange(&request(&history), &reply).await;
    assert_eq!(scene.sent["messages"][1]["reasoning_content"], "");
    assert_eq!(scene.steps(), [(Change::StandIn, Decision::New, DecisionReason::Demanded)]);
}

#[tokio::test]
async fn gemini_signature_returns_to_call() {
    let mut play = Play::of("/v1beta/models/gemini-3-pro:generateContent", Policy::default()).await;
    let question = json!({"role": "user", "parts": [{"text": "Look."}]});
    let call = json!({"functionCall": {"name": "read", "args": {"path": "a"}}});
    let mut signed = call.clone();
    signed["thoughtSignature"] = json!("c2lnbmF0dXJl");
    let reply = json!({"candidates": [{"content": {"role": "model", "parts": [signed]},
        "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 5,
        "candidatesTokenCount": 5, "totalTokenCount": 10}});
    play.exchange(&json!({"contents": [question]}), &reply).await;
    let result = json!({"role": "user", "parts": [
        {"functionResponse": {"name": "read", "response": {"output": "Deep."}}}]});
    let history = json!({"contents": [question, {"role": "model", "parts": [call]}, result]});
    let scene = play.exchange(&history, &reply).await;
    assert_eq!(scene.sent["contents"][1]["parts"][0], signed);

    // Another model's call: the documented value is sent instead of a signature (`docs/protocols.md` 5.4).
    play.session = "another";
    let scene = play.exchange(&history, &reply).await;
    let part = &scene.sent["contents"][1]["parts"][0];
    assert_eq!(part["thoughtSignature"], "skip_thought_signature_validator");
}

/// A file search at the provider leaves three signatures: on its call, on its result and on the text. A client that
/// keeps the parts and drops the signatures gets all of them back.
#[tokio::test]
async fn geminis_signatures_around_file_search_are_all_back() {
    let call = json!({"toolCall": {"toolType": "FILE_SEARCH", "id": "93z4z1x3", "args": {"queries": ["depth"]}}});
    let answer = json!({"toolResponse": {"toolType": "FILE_SEARCH", "id": "93z4z1x3", "response": {"text": "Deep."}}});
    let text = json!({"text": "It is deep, as the file says that was searched for it."});
    let empty = json!({"text": ""});
    let signed = |part: &Value, signature: &str| {
        let mut part = part.clone();
        part["thoughtSignature"] = json!(signature);
        part
    };
    let [first, second, third] = ["c2lnbmF0dXJlMQ==", "c2lnbmF0dXJlMg==", "c2lnbmF0dXJlMw=="];
    let whole = vec![signed(&call, first), signed(&answer, second), signed(&text, third)];
    let at_end =
        vec![signed(&call, first), signed(&answer, second), text.clone(), signed(&empty, third)];
    for reply in [whole, at_end] {
        let mut play =
            Play::of("/v1beta/models/gemini-3-pro:generateContent", Policy::default()).await;
        let question = json!({"role": "user", "parts": [{"text": "Look."}]});
        let answered = json!({"candidates": [{"content": {"role": "model", "parts": reply},
            "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 5,
            "candidatesTokenCount": 5, "totalTokenCount": 10}});
        play.exchange(&json!({"contents": [question]}), &answered).await;
        let kept = json!({"role": "model", "parts": [call, answer, text]});
        let next = json!({"role": "user", "parts": [{"text": "And now?"}]});
        for _ in 0..2 {
            let scene =
                play.exchange(&json!({"contents": [question, kept, next]}), &answered).await;
            assert_eq!(scene.sent["contents"][1]["parts"], json!(reply), "{:?}", scene.steps());
            play.restart().await;
        }
    }
}

/// A text that comes in several pieces is signed on one of them. A client that keeps the pieces gets each signature
/// back at its piece. On text that the client joined, none of them fits.
#[tokio::test]
async fn geminis_signatures_are_back_on_pieces_of_text_that_they_came_with() {
    let call = json!({"toolCall": {"toolType": "FILE_SEARCH", "id": "93z4z1x3", "args": {"queries": ["depth"]}}});
    let answer = json!({"toolResponse": {"toolType": "FILE_SEARCH", "id": "93z4z1x3", "response": {"text": "Deep."}}});
    let pieces = ["It is deep, as the file ", "says that was — 🌊 — ", "searched for it."];
    let text = |pieces: &str| json!({"text": pieces});
    let signed = |mut part: Value, signature: &str| {
        part["thoughtSignature"] = json!(signature);
        part
    };
    let [first, second, third] = ["c2lnbmF0dXJlMQ==", "c2lnbmF0dXJlMg==", "c2lnbmF0dXJlMw=="];
    let around = |pieces: &[Value]| {
        let ran = [signed(call.clone(), first), signed(answer.clone(), second)];
        ran.into_iter().chain(pieces.iter().cloned()).collect::<Vec<_>>()
    };
    let bare = |parts: &[Value]| {
        let mut parts = parts.to_vec();
        for part in &mut parts {
            part.as_object_mut().unwrap().remove("thoughtSignature");
        }
        parts
    };
    let last = around(&[text(pieces[0]), text(pieces[1]), signed(text(pieces[2]), third)]);
    let both = around(&[
        signed(text(pieces[0]), "c2lnbmF0dXJlNA=="),
        text(pieces[1]),
        signed(text(pieces[2]), third),
    ]);
    let joined = around(&[text(&pieces[..2].concat()), signed(text(pieces[2]), third)]);
    let whole = around(&[text(&pieces.concat())]);
    for (reply, back) in [(&last, &last), (&both, &both), (&last, &joined), (&last, &whole)] {
        let mut play =
            Play::of("/v1beta/models/gemini-3-pro:generateContent", Policy::default()).await;
        let question = json!({"role": "user", "parts": [{"text": "Look."}]});
        let answered = json!({"candidates": [{"content": {"role": "model", "parts": reply},
            "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 5,
            "candidatesTokenCount": 5, "totalTokenCount": 10}});
        play.exchange(&json!({"contents": [question]}), &answered).await;
        let kept = json!({"role": "model", "parts": bare(back)});
        let next = json!({"role": "user", "parts": [{"text": "And now?"}]});
        for _ in 0..2 {
            let scene =
                play.exchange(&json!({"contents": [question, kept, next]}), &answered).await;
            assert_eq!(scene.sent["contents"][1]["parts"], json!(back), "{:?}", scene.steps());
            play.restart().await;
        }
    }
}

#[tokio::test]
async fn encrypted_reasoning_stands_before_its_call_again() {
    let mut play = Play::of("/v1/responses", Policy::default()).await;
    let reasoning = json!({"id": "rs_1", "type": "reasoning", "summary": [],
        "encrypted_content": "gAAAAAbCdEf"});
    let call = json!({"type": "function_call", "call_id": "call_AbCdEfGh1234", "name": "read",
        "arguments": "{}"});
    let mut with_id = call.clone();
    with_id["id"] = json!("fc_1");
    let reply = json!({"id": "resp_1", "object": "response", "status": "completed",
        "output": [reasoning, with_id], "usage": {"input_tokens": 5, "output_tokens": 5}});
    let question = json!({"role": "user", "content": "Look."});
    let request = |input: Value| json!({"model": "gpt-5.4", "store": false, "input": input});
    play.exchange(&request(json!([question])), &reply).await;
    let result = json!({"type": "function_call_output", "call_id": "call_AbCdEfGh1234",
        "output": "Deep."});
    let scene = play.exchange(&request(json!([question, call, result])), &reply).await;
    // It is sent inline, without its id, which the client does not send either (`docs/protocols.md` 3.2).
    let inline = json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAAbCdEf"});
    assert_eq!(scene.sent["input"][1], inline);
    assert_eq!(scene.sent["input"][2], call);
}

/// A stand-in is for the model that demands it. Another model in the same conversation may refuse the field.
#[tokio::test]
async fn stand_in_for_one_model_is_not_sent_to_another() {
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    let demands = play.exchange(&lost("deepseek-v4"), &completion("c1")).await;
    assert!(demands.bytes.contains("reasoning_content"), "{}", demands.bytes);
    let other = play.exchange(&lost("some-model"), &completion("c2")).await;
    assert_eq!(other.bytes, lost("some-model").to_string());
    let later = play.exchange(&lost("deepseek-v4"), &completion("c3")).await;
    assert_eq!(later.bytes, demands.bytes, "repeated to the byte");
}

/// The provider's cache has the stand-in: it is still sent when it is no longer known that the model demands it.
#[tokio::test]
async fn stand_in_is_repeated_after_models_demand_is_forgotten() {
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    play.config.upstreams[0].reasoning_echo = Some(ReasoningRule::Demanded);
    play.restart().await;
    let demands = play.exchange(&lost("some-model"), &completion("c1")).await;
    assert!(demands.bytes.contains("reasoning_content"), "{}", demands.bytes);
    play.config.upstreams[0].reasoning_echo = None;
    play.restart().await;
    let later = play.exchange(&lost("some-model"), &completion("c2")).await;
    assert_eq!(later.bytes, demands.bytes, "repeated to the byte");
}

/// A call whose reasoning is not known, and its result.
fn lost(model: &str) -> Value {
    let id = "call_00_ZyXwVuTs9876";
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": id, "content": "Deep."});
    json!({"model": model, "messages": [message("user", json!("Hm.")), call, result]})
}

fn completion(id: &str) -> Value {
    json!({"id": id, "choices": [{"index": 0, "message": {"role": "assistant", "content": "So."},
        "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 5}})
}

/// A model without signatures thinks the same twice. That the newer thought was sent does not mean that the older one was:
/// what went out without it stays as it went out.
#[tokio::test]
async fn equal_thought_stays_out_where_it_was_out() {
    let call = |id: &str| {
        let function = json!({"name": "Read", "arguments": "{\"path\":\"a\"}"});
        json!([{"id": id, "type": "function", "function": function}])
    };
    let calls = |id: &str| json!({"role": "assistant", "content": null, "tool_calls": call(id)});
    let thinks = |id: &str| {
        let mut message = calls(id);
        message["reasoning_content"] = json!("Let me look.");
        message
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "Deep water."});
    let text = |text: &str| json!({"role": "assistant", "content": text});
    let reply = |id: &str, message: &Value| {
        json!({"id": id, "object": "chat.completion", "model": "glm-5.2",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 90, "completion_tokens": 20, "total_tokens": 110}})
    };
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    let mut history = vec![message("user", json!("Look."))];
    let ids = ["call_01AbCdEfGh12", "call_01ZyXwVuTs34"];
    let replies = [thinks(ids[0]), text("It is deep."), thinks(ids[1]), text("Still.")];
    let next = [result(ids[0]), message("user", json!("Again."))];
    let next = next.into_iter().chain([result(ids[1]), message("user", json!("And now?"))]);
    let mut sent = Vec::new();
    for (number, (said, next)) in replies.iter().zip(next).enumerate() {
        // The second request goes out as it came: without the thought.
        play.headers = if number == 1 { "x-plimsoll-mode: observe\r\n" } else { "" }.to_owned();
        let request = json!({"model": "glm-5.2", "messages": history});
        let scene = play.exchange(&request, &reply(&format!("r{number}"), said)).await;
        sent.push(scene.sent);
        history.push(if number == 0 { calls(ids[0]) } else { said.clone() });
        history.push(next);
    }
    let request = json!({"model": "glm-5.2", "messages": history});
    let scene = play.exchange(&request, &reply("r4", &text("The same."))).await;
    assert_eq!(sent[3]["messages"][1], calls(ids[0]));
    assert_eq!(scene.sent["messages"][1], calls(ids[0]), "{:?}", scene.steps());
}

/// The client changed the message that the newest reply follows, and the provider turns out to bind reasoning: what was put
/// back before is right, and only the newest reasoning is left out.
#[tokio::test]
async fn birth_behind_changed_message_is_left_out_if_bound() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let ids = ["toolu_01AbCdEfGh12", "toolu_01ZyXwVuTs34"];
    let mut history = vec![message("user", json!("Look."))];
    let reply = json!([thinking("Let me look."), call(ids[0])]);
    play.exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, reply)).await;
    history.push(message("assistant", json!([call(ids[0])])));
    history.push(message("user", json!([result(ids[0], "Deep water.")])));
    let kept = json!([thinking("So it is deep."), {"type": "text", "text": "It is deep."}]);
    let reply = anthropic_reply("m2", MODEL, kept.clone());
    play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    history.push(message("assistant", kept));
    let mut asked = history.clone();
    asked.push(message("user", json!("How deep? <context>Page 16.</context>")));
    let reply = anthropic_reply("m3", MODEL, json!([thinking("Measure."), call(ids[1])]));
    play.exchange(&anthropic_request(MODEL, &asked), &reply).await;

    history.push(message("user", json!("How deep?")));
    history.push(message("assistant", json!([call(ids[1])])));
    history.push(message("user", json!([result(ids[1], "Nine fathoms.")])));
    let mut client = play.send_request(&anthropic_request(MODEL, &history)).await;
    let mut call = play.provider.call().await;
    let planned = call.message.text().to_owned();
    assert!(planned.contains("Let me look.") && planned.contains("Measure."), "{planned}");
    for _ in 0..2 {
        call.answer("400 Bad Request", crate::refused::BOUND).await;
        call = call.wire.request().await;
    }
    let sent = call.message.text().to_owned();
    assert!(sent.contains("Let me look.") && !sent.contains("Measure."), "{sent}");
    let reply = anthropic_reply("m4", MODEL, json!([{"type": "text", "text": "Nine."}]));
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
}
