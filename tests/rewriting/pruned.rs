//! Old tool results are replaced by a placeholder when policy says so, and nothing else is changed.

use plimsoll::config::Mode;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy};
use plimsoll::dialect::models::Family;
use plimsoll::tokens::bpe;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};

const MODEL: &str = "claude-sonnet-4-5";
pub const CLEARED: &str = "[Old tool result content cleared]";

/// Cuts as soon as there is something to cut.
pub fn eager() -> Policy {
    let prune = PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 100,
        protect_messages: 2,
        min_saving_tokens: 50,
        min_messages: 4,
        ..PrunePolicy::default()
    };
    Policy { prune, ..Policy::default() }
}

/// A history of `count` calls, each with a result of its own.
pub fn history(count: usize) -> Vec<Value> {
    let mut history = vec![message("user", json!("Read them all."))];
    for number in 0..count {
        let id = format!("toolu_01AbCdEf{number:04}");
        let input = json!({"path": number});
        history.push(message(
            "assistant",
            json!([{"type": "tool_use", "id": id, "name": "Read", "input": input}]),
        ));
        let text = format!("Line {number} of the log. ").repeat(40);
        history.push(message(
            "user",
            json!([{"type": "tool_result", "tool_use_id": id, "content": text}]),
        ));
    }
    history
}

fn contents(sent: &Value) -> Vec<&str> {
    let messages = sent["messages"].as_array().unwrap().iter();
    messages.filter_map(|message| message["content"][0]["content"].as_str()).collect()
}

#[tokio::test]
async fn invariant_4_old_results_are_cut_and_stay_cut() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let request = anthropic_request(MODEL, &history(6));
    let scene = play.exchange(&request, &reply).await;
    let steps = scene.steps();
    assert!(steps.iter().all(|step| *step == (Change::Cut, Decision::New, DecisionReason::Always)));
    let sent = contents(&scene.sent);
    assert_eq!(sent.iter().filter(|content| **content == CLEARED).count(), steps.len());
    assert!(steps.len() >= 3, "{sent:?}");
    assert!(sent.last() != Some(&CLEARED), "{sent:?}");
    // Only the contents of results changed.
    let mut same = scene.sent.clone();
    for (index, message) in request["messages"].as_array().unwrap().iter().enumerate() {
        if message["content"][0]["content"].is_string() {
            same["messages"][index]["content"][0]["content"] =
                message["content"][0]["content"].clone();
        }
    }
    assert_eq!(same, request);

    // The next request repeats the cuts, byte for byte, whatever the policy is then.
    let cut = steps.len();
    play.config.policy = Policy::default().into();
    play.restart().await;
    let mut longer = history(6);
    longer.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    longer.push(message("user", json!("And now?")));
    let later = play.exchange(&anthropic_request(MODEL, &longer), &reply).await;
    assert_eq!(later.exchange.done.made.cut as usize, cut);
    assert!(later.exchange.done.steps.is_empty(), "nothing new");
    let prefix = scene.bytes.rfind("]}").unwrap();
    assert_eq!(later.bytes[..prefix], scene.bytes[..prefix]);
}

#[tokio::test]
async fn shadow_decides_and_measures_but_sends_original() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.headers = "x-plimsoll-mode: shadow\r\n".to_owned();
    let request = anthropic_request(MODEL, &history(6));
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let scene = play.exchange(&request, &reply).await;
    assert_eq!(scene.bytes, request.to_string());
    let done = &scene.exchange.done;
    assert!(done.mode == Mode::Shadow, "{done:?}");
    assert!(done.made.cut >= 3, "{done:?}");
    assert!(done.tokens_removed > 300, "{done:?}");
    // Decisions of shadow mode are not used in other modes.
    play.headers = "x-plimsoll-mode: observe\r\n".to_owned();
    assert_eq!(play.exchange(&request, &reply).await.bytes, request.to_string());
}

#[tokio::test]
async fn observe_touches_nothing() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.config.mode = Mode::Observe;
    play.restart().await;
    let request = anthropic_request(MODEL, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    assert!(scene.exchange.done.made.is_nothing());
    assert!(scene.exchange.done.steps.is_empty());
}

#[tokio::test]
async fn default_policy_leaves_warm_small_conversation_alone() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let request = anthropic_request(MODEL, &history(20));
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
}

#[tokio::test]
async fn new_result_that_does_not_fit_is_cut_to_head_and_tail() {
    let mut policy = Policy::default();
    policy.prune.max_result_tokens = Some(500);
    let mut play = Play::of("/v1/messages", policy).await;
    let mut history = history(1);
    let text = "begin ".to_owned() + &"middle ".repeat(5000) + "end";
    history[2]["content"][0]["content"] = json!(text);
    let scene = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m1", MODEL, json!([])))
        .await;
    assert_eq!(scene.steps(), [(Change::Cut, Decision::New, DecisionReason::TooLarge)]);
    let sent = contents(&scene.sent)[0];
    assert!(sent.starts_with("begin "), "{sent}");
    assert!(sent.ends_with(" end"), "{sent}");
    assert!(sent.contains("left out"), "{}", sent.len());
    assert!(sent.len() < 3500, "{}", sent.len());
}

/// A trim is stored as ranges: the text comes from the request, and gives the same bytes each time. If the result has
/// another text, it is sent whole.
#[tokio::test]
async fn trim_repeats_for_same_text_only() {
    let mut policy = Policy::default();
    policy.prune.max_result_tokens = Some(500);
    let mut play = Play::of("/v1/messages", policy).await;
    let mut history = history(1);
    let text = "bégin ".to_owned() + &"middle ".repeat(5000) + "end\n";
    history[2]["content"][0]["content"] = json!(text);
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let first = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    let trimmed = contents(&first.sent)[0].to_owned();
    assert!(trimmed.starts_with("bégin "));
    assert!(trimmed.contains("left out"));
    // Under another policy, and if the client writes the result as blocks or without its last line break.
    play.config.policy = Policy::default().into();
    play.restart().await;
    history.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    history.push(message("user", json!("And now?")));
    let later = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    assert_eq!(contents(&later.sent)[0], trimmed);
    assert_eq!(later.exchange.done.made.cut, 1);
    assert_eq!(later.exchange.done.new.cut, 0);
    history[2]["content"][0]["content"] = json!([{"type": "text", "text": text.trim_end()}]);
    let spelt = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    let is_there = |bytes: &str| bytes.contains(&json!(trimmed).to_string());
    assert!(is_there(&spelt.bytes), "{}", spelt.bytes);
    assert!(spelt.bytes.len() < text.len(), "{}", spelt.bytes);
    history[2]["content"][0]["content"] = json!(text.replace("end", "END"));
    let other = anthropic_request(MODEL, &history);
    assert_eq!(play.exchange(&other, &reply).await.bytes, other.to_string());
}

/// The estimate is that of what is sent: the history with cuts, not the original.
#[tokio::test]
async fn estimate_follows_cut() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let request = anthropic_request(MODEL, &history(12));
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let cut = play.exchange(&request, &reply).await.exchange.estimate.clone().unwrap().tokens;
    play.session = "untouched";
    play.headers = "x-plimsoll-mode: observe\r\n".to_owned();
    let whole = play.exchange(&request, &reply).await.exchange.estimate.clone().unwrap().tokens;
    assert!(cut * 2 < whole, "{cut} of {whole}");
}

/// A held-out session is sent unchanged, and is marked as held out for comparison.
#[tokio::test]
async fn held_out_session_is_untouched() {
    let mut policy = eager();
    policy.prune.hold_out = 1.0;
    let mut play = Play::of("/v1/messages", policy).await;
    let request = anthropic_request(MODEL, &history(6));
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let scene = play.exchange(&request, &reply).await;
    assert_eq!(scene.bytes, request.to_string());
    assert!(scene.exchange.done.held_out);
    assert!(scene.exchange.done.made.is_nothing());
    // In a mode without rewrites there is nothing to compare.
    play.session = "observed";
    play.headers = "x-plimsoll-mode: observe\r\n".to_owned();
    assert!(!play.exchange(&request, &reply).await.exchange.done.held_out);
}

/// An open tool loop must keep its reasoning, which a cut would invalidate. So nothing is cut, whether the newest
/// result is text or ends with a picture.
#[tokio::test]
async fn nothing_is_cut_in_open_loop_whose_thinking_is_bound() {
    const BOUND: &str = "claude-opus-5-5";
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}});
    for last in [json!("Done."), json!([{"type": "text", "text": "Done."}, picture])] {
        let mut policy = eager();
        policy.prune.accept_reasoning_loss = true;
        let mut play = Play::of("/v1/messages", policy).await;
        let mut messages = history(6);
        for message in messages.iter_mut().skip(1).step_by(2) {
            let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"});
            message["content"].as_array_mut().unwrap().insert(0, thinking);
        }
        messages.last_mut().unwrap()["content"][0]["content"] = last;
        let request = anthropic_request(BOUND, &messages);
        let scene = play.exchange(&request, &anthropic_reply("m1", BOUND, json!([]))).await;
        assert_eq!(scene.bytes, request.to_string());
        assert_eq!(scene.steps(), [(Change::Cut, Decision::Declined, DecisionReason::OpenLoop)]);
    }
}

/// Reasoning with a signature that depends on its text.
fn thinking(text: &str) -> Value {
    let signature: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    json!({"type": "thinking", "thinking": text, "signature": signature})
}

/// The client left reasoning out while results were cut, and sends it after all. If the model binds it, the cut is
/// dropped, because the reasoning was made without it. Reasoning that was made after the cut depends on it.
#[tokio::test]
async fn cut_gives_way_to_bound_reasoning_that_comes_back() {
    const BOUND: &str = "claude-opus-5-5";
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", BOUND, json!([{"type": "text", "text": "Go on."}]));
    let cut = play.exchange(&anthropic_request(BOUND, &history(6)), &reply).await;
    let cleared = |sent: &Value| contents(sent).iter().filter(|it| **it == CLEARED).count();
    let count = cleared(&cut.sent);
    assert!(count >= 3, "{:?}", cut.steps());

    let mut later = history(6);
    later.push(message("assistant", json!([thinking("So."), {"type": "text", "text": "Go on."}])));
    later.push(message("user", json!("And now?")));
    assert_eq!(
        cleared(&play.exchange(&anthropic_request(BOUND, &later), &reply).await.sent),
        count
    );

    let mut back = later.clone();
    let answer = back[7]["content"].as_array_mut().unwrap();
    answer.insert(0, thinking("Hm."));
    let spared = play.exchange(&anthropic_request(BOUND, &back), &reply).await.sent;
    let before = |sent: &Value| sent["messages"].as_array().unwrap()[..8].to_vec();
    assert_eq!(before(&spared), back[..8]);
    assert_eq!(cleared(&spared), count - 3, "those after it stay");
    // The client leaves it out again: the results are cut again.
    assert_eq!(
        cleared(&play.exchange(&anthropic_request(BOUND, &later), &reply).await.sent),
        count
    );
}

/// Policy accepted the loss of reasoning, and a cut was sent. It stays when policy no longer accepts such a loss,
/// because the cache has those bytes. It is still dropped for reasoning that comes back later.
#[tokio::test]
async fn cut_stays_after_policy_stops_accepting_reasoning_loss() {
    const BOUND: &str = "claude-opus-5-5";
    let thinks = |messages: &mut [Value], at: usize| {
        messages[at]["content"].as_array_mut().unwrap().insert(0, thinking(&format!("Hm {at}.")));
    };
    let goes_on = |messages: &mut Vec<Value>| {
        messages.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
        messages.push(message("user", json!("And now?")));
    };
    let mut accepts = eager();
    accepts.prune.accept_reasoning_loss = true;
    let mut play = Play::of("/v1/messages", accepts).await;
    let reply = anthropic_reply("m1", BOUND, json!([{"type": "text", "text": "Go on."}]));
    let mut messages = history(6);
    let cut = play.exchange(&anthropic_request(BOUND, &messages), &reply).await;
    let cleared = |sent: &Value| contents(sent).iter().filter(|it| **it == CLEARED).count();
    assert!(cleared(&cut.sent) > 3, "{:?}", cut.steps());

    thinks(&mut messages, 7);
    goes_on(&mut messages);
    let accepted = play.exchange(&anthropic_request(BOUND, &messages), &reply).await;
    assert!(accepted.bytes.contains("Hm 7."));
    let count = cleared(&accepted.sent);
    assert!(count > 3, "{:?}", accepted.steps());

    play.config.policy = eager().into();
    play.restart().await;
    goes_on(&mut messages);
    let later = play.exchange(&anthropic_request(BOUND, &messages), &reply).await;
    assert!(
        later.exchange.done.steps.iter().all(|it| it.decision != Decision::New),
        "{:?}",
        later.steps()
    );
    let prefix = accepted.bytes.rfind("]}").unwrap();
    assert_eq!(later.bytes[..prefix], accepted.bytes[..prefix]);

    thinks(&mut messages, 5);
    assert_eq!(
        cleared(&play.exchange(&anthropic_request(BOUND, &messages), &reply).await.sent),
        count - 2
    );
    // A dropped cut is not made again while the reasoning is there.
    goes_on(&mut messages);
    assert_eq!(
        cleared(&play.exchange(&anthropic_request(BOUND, &messages), &reply).await.sent),
        count - 2
    );
}

/// In shadow mode, by header and by configuration, the client's bytes are sent unchanged, also where a stand-in would
/// be added.
#[tokio::test]
async fn shadow_adds_no_stand_ins() {
    let id = "call_00_ZyXwVuTs9876";
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": id, "content": "Deep."});
    let request =
        json!({"model": "deepseek-v4", "messages": [message("user", json!("Hm.")), call, result]});
    let reply = json!({"id": "c1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "So."},
        "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 5}});
    for by_header in [true, false] {
        let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
        if by_header {
            play.headers = "x-plimsoll-mode: shadow\r\n".to_owned();
        } else {
            play.config.mode = Mode::Shadow;
            play.restart().await;
        }
        let scene = play.exchange(&request, &reply).await;
        assert_eq!(scene.bytes, request.to_string());
        assert_eq!(scene.exchange.done.made.put_back, 1, "{:?}", scene.steps());
    }
}

/// A rewritten thread is repeated as it was, in shadow mode as in observe: nothing new is decided in it.
#[tokio::test]
async fn shadow_and_observe_repeat_what_was_rewritten() {
    for (mode, by_header) in
        [("shadow", true), ("observe", true), ("shadow", false), ("observe", false)]
    {
        let mut play = Play::of("/v1/messages", eager()).await;
        let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
        let active = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
        if by_header {
            play.headers = format!("x-plimsoll-mode: {mode}\r\n");
        } else {
            play.config.mode = if mode == "shadow" { Mode::Shadow } else { Mode::Observe };
            play.restart().await;
        }
        let on = play.exchange(&anthropic_request(MODEL, &history(9)), &reply).await;
        let cut = |sent: &Value| contents(sent).iter().filter(|it| **it == CLEARED).count();
        assert_eq!(cut(&on.sent), cut(&active.sent), "{mode}");
        assert_eq!(on.exchange.done.mode, Mode::Observe);
        assert_eq!(on.exchange.done.new.cut, 0);
        // Another session is sent unchanged.
        play.session = "another";
        assert_eq!(
            play.exchange(&anthropic_request(MODEL, &history(9)), &reply).await.bytes,
            anthropic_request(MODEL, &history(9)).to_string()
        );
    }
}

/// The claimed savings are what the provider no longer counts, however wrong our own count is.
#[tokio::test]
async fn claimed_savings_equal_what_provider_no_longer_counts() {
    const TURNS: usize = 24;
    // The vocabulary must be loaded: counting by length is not what this test is about.
    bpe::load(Family::Claude);
    // The provider counts more tokens than we expect.
    let counts = |body: &str| body.len() as u64 * 10 / 21;
    let mut policy = eager();
    policy.prune.min_saving_tokens = 900;
    let mut play = Play::of("/v1/messages", policy).await;
    let (mut claimed, mut went) = (0, 0);
    for turn in 1..=TURNS {
        let request = anthropic_request(MODEL, &history(turn));
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        let (came, sent) = (counts(&request.to_string()), counts(call.message.text()));
        let id = format!("toolu_01AbCdEf{turn:04}");
        let next = json!([{"type": "tool_use", "id": id, "name": "Read", "input": {"path": turn}}]);
        // It counts what it writes as it counts what it reads.
        let written = counts(&next.to_string());
        let mut reply = anthropic_reply(&format!("m{turn}"), MODEL, next);
        reply["usage"] = json!({"input_tokens": sent, "output_tokens": written});
        call.answer("200 OK", &reply.to_string()).await;
        client.response().await;
        let saved = play.server.next_exchange().await.saved.unwrap();
        claimed += saved.removed;
        went += came - sent;
        if turn > 20 {
            let wrong = saved.removed.abs_diff(came - sent);
            assert!(wrong * 50 <= came - sent, "turn {turn}: {} of {}", saved.removed, came - sent);
        }
    }
    assert!(went > 20_000, "{went}");
    assert!(claimed.abs_diff(went) * 50 <= went, "{claimed} of {went}");
}
