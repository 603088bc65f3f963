//! A summariser that fails in every way: the conversation continues, the client sees nothing of it, and no summary is
//! requested for a while.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::dialect::refusal::RefusalCause;
use serde_json::json;

use crate::play::{
    DEMANDS, HOLDS, MARK, Play, TOO_LONG, UNTOLD, USABLE, WHOLE, answer, policy, send_summary,
    tokens, without_a_pause,
};
use crate::support::http1::Call;

/// Responds to a summary request; checks the counted outcome, and that the next requests are sent whole.
async fn check(play: &mut Play, question: Call, answers: impl AsyncFnOnce(Call), outcome: &str) {
    answers(question).await;
    play.wait_for_count(&format!("outcome=\"{outcome}\""), 1).await;
    for _ in 0..3 {
        let scene = play.turn(play.history.len() / 2).await;
        let sent = scene.sent["messages"].as_array().unwrap();
        assert_eq!(sent.len() + 1, play.history.len(), "all of it is sent, word for word");
        assert!(tokens(&scene) > MARK);
    }
    assert!(play.take_summary_bodies().is_empty(), "no summary is requested for a while");
}

async fn refused(answers: impl AsyncFnOnce(Call), outcome: &str) {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    check(&mut play, question, answers, outcome).await;
}

#[tokio::test]
async fn error_html_or_empty_response_is_not_used_as_summary() {
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "no"}});
    let fails = async move |mut call: Call| call.answer("529 Overloaded", &error.to_string()).await;
    refused(fails, "upstream_failed").await;
    let html = async |mut call: Call| call.answer("200 OK", "<html>Sign in</html>").await;
    refused(html, "rejected").await;
    let empty = async |mut call: Call| call.answer("200 OK", "").await;
    refused(empty, "rejected").await;
    refused(async |call: Call| drop(call), "upstream_failed").await;
    refused(async |call: Call| send_summary(call, "<summary> </summary>").await, "rejected").await;
}

#[tokio::test]
async fn tool_call_is_no_summary() {
    let mut reply = answer("I look.", 900);
    reply["stop_reason"] = json!("tool_use");
    let call = json!({"type": "tool_use", "id": "t", "name": "Read", "input": {}});
    reply["content"].as_array_mut().unwrap().push(call);
    let calls = async move |mut call: Call| call.answer("200 OK", &reply.to_string()).await;
    refused(calls, "rejected").await;
}

#[tokio::test]
async fn incomplete_reply_is_no_summary() {
    let begins = async |mut call: Call| {
        call.begin_events().await;
        call.chunk(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\
             \"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":1}}}\n\n\
             event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
             \"content_block\":{\"type\":\"text\",\"text\":\"So far\"}}\n\n",
        )
        .await;
    };
    refused(begins, "upstream_failed").await;
}

/// A summary that ended at its length limit may lack what matters most: it is used only if the request would not fit
/// otherwise.
#[tokio::test]
async fn truncated_summary_is_used_only_if_request_does_not_fit() {
    let mut short = answer("The person asks numbered", 900);
    short["stop_reason"] = json!("max_tokens");
    let short = short.to_string();
    let answers = async |mut call: Call| call.answer("200 OK", &short).await;
    refused(answers, "rejected").await;

    let mut play = Play::of(policy()).await;
    for number in 0..6 {
        assert!(tokens(&play.turn(number).await) < MARK);
    }
    play.add_user_message(6, 2200);
    let client = play.send_request().await;
    answers(play.next_summary_request().await).await;
    let scene = play.read_reply(client).await;
    assert!(scene.bytes.contains("The person asks numbered\\n</summary-"), "{}", scene.bytes);
}

#[tokio::test]
async fn summary_that_is_too_long_or_saves_nothing_is_discarded() {
    let long = "word ".repeat(40_000);
    refused(async move |call: Call| send_summary(call, &long).await, "rejected").await;
    let useless = "word ".repeat(3000);
    refused(async move |call: Call| send_summary(call, &useless).await, "too_large").await;
}

#[tokio::test]
async fn silent_summariser_times_out() {
    let mut policy = policy();
    policy.compact.timeout_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    let mut held = None;
    check(&mut play, question, async |call: Call| held = Some(call), "timed_out").await;
}

/// If no summary comes, the request is sent whole, and the client gets the provider's error.
#[tokio::test]
async fn request_that_does_not_fit_waits_for_limited_time() {
    let mut policy = policy();
    policy.compact.wait_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    play.add_user_message(70, 3000);
    let client = play.send_request().await;
    let scene = play.read_reply(client).await;
    assert!(tokens(&scene) > USABLE);
    let waited = scene.exchange.timing.compaction_wait_us.unwrap();
    assert!((900_000..3_000_000).contains(&waited), "{waited}");
    let steps = &scene.exchange.done.steps;
    let last = steps.last().unwrap();
    assert_eq!(last.change, Change::Compacted);
    assert_eq!(last.decision, Decision::Declined);
    assert_eq!(last.why, DecisionReason::NotReady);
    drop(question);
}

/// The wait for a provider's summary is not part of our own time; it is measured separately.
#[tokio::test]
async fn wait_for_summary_is_no_overhead() {
    let mut policy = policy();
    policy.compact.wait_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    play.add_user_message(70, 3000);
    let client = play.send_request().await;
    let exchange = play.read_reply(client).await.exchange;
    let (waited, own) =
        (exchange.timing.compaction_wait_us.unwrap(), exchange.timing.request_side_us);
    assert!(waited > 900_000, "waited {waited} µs, own time {own} µs");
    assert!(own < waited / 2, "waited {waited} µs, own time {own} µs");
    let metrics = play.server.telemetry.render();
    let slow = "plimsoll_overhead_request_seconds_bucket{upstream=\"up\",le=\"0.25\"}";
    let all = "plimsoll_overhead_request_seconds_count{upstream=\"up\"}";
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(value(slow), value(all), "{metrics}");
    assert_eq!(value("plimsoll_compaction_wait_seconds_count{upstream=\"up\"}"), "1");
    drop(question);
}

/// The request waits before it is sent. If the provider then refuses it for its size, it does not wait again: all its
/// waits together are limited, far below the timeout of any client.
#[tokio::test]
async fn request_that_waited_does_not_wait_again_when_it_is_refused() {
    let mut policy = policy();
    policy.compact.wait_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    play.add_user_message(70, 3000);
    play.history.push(json!({"role": "assistant", "content": "Aye."}));
    play.history.push(json!({"role": "user", "content": TOO_LONG}));
    let mut client = play.send_request().await;
    let response = client.response().await;
    assert_eq!(response.status(), 400);
    assert!(response.text().contains("prompt is too long: 4100 tokens"), "{}", response.text());
    let waited = play.server.next_exchange().await.timing.compaction_wait_us.unwrap();
    assert!((900_000..1_800_000).contains(&waited), "{waited}");
    drop(question);
}

/// The client's own request for a summary is left alone, and so is its own compaction.
#[tokio::test]
async fn client_that_compacts_by_itself_is_left_alone() {
    let mut play = Play::of(policy()).await;
    play.turn(0).await;
    let own = "Your task is to create a detailed summary of the conversation so far.";
    play.history.push(json!({"role": "user", "content": own}));
    let client = play.send_request().await;
    play.read_reply(client).await;
    play.history.clear();
    for number in 0..14 {
        let scene = play.turn(number).await;
        if tokens(&scene) > USABLE {
            break;
        }
        assert!(scene.exchange.done.made.is_nothing());
        assert!(scene.exchange.done.steps.is_empty());
    }
    assert!(play.take_summary_bodies().is_empty());
}

/// A summary that a provider refused is not used again on that branch, and does not prevent a new one.
#[tokio::test]
async fn after_refused_summary_history_is_summarised_again() {
    let mut play = Play::of(without_a_pause()).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, "The person asks numbered questions.").await;
    play.wait_until_written(1).await;
    // The newest turn and the question before it stay.
    let cut = play.history.len() - 4;
    let refused = loop {
        let number = play.history.len();
        play.history.push(json!({"role": "user", "content": WHOLE}));
        play.history.push(json!({"role": "assistant", "content": "Aye."}));
        let scene = play.turn(number).await;
        if scene.exchange.refused.is_some() {
            break scene;
        }
    };
    assert_eq!(refused.sent["messages"].as_array().unwrap().len(), play.history.len() - 1);
    assert_eq!(play.cuts(&refused).await.len(), 1);
    // What stayed is past the threshold again.
    let question = play.next_summary_request().await;
    send_summary(question, "The whole of it was asked for.").await;
    play.wait_until_written(2).await;

    // Everything between the cut and the newest turn is dropped, and a message is added that does not fit beside the
    // rest.
    let newest = play.history.split_off(play.history.len() - 2);
    play.history.truncate(cut);
    play.history.extend(newest);
    play.add_user_message(99, 2400);
    let client = play.send_request().await;
    let question = play.next_summary_request().await;
    send_summary(question, "Numbered questions were asked.").await;
    let scene = play.read_reply(client).await;
    assert!(scene.bytes.contains("Numbered questions were asked."), "{:?}", scene.exchange.done);
    assert_eq!(play.cuts(&scene).await.len(), 2, "the first stays with what was not refused");

    // It is repeated, after a restart too.
    play.restart().await;
    let scene = play.turn(100).await;
    assert!(scene.bytes.contains("Numbered questions were asked."), "{}", scene.bytes);
    assert_eq!(scene.exchange.done.made.compacted, 1);
}

/// Every form of a request was refused, so its summary is given up for good. Another one of the same history would take
/// its place in the store: it counts as a failure, after which none is paid for, for a while.
#[tokio::test]
async fn summary_that_was_given_up_is_not_paid_for_again_and_again() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, "The person asks numbered questions.").await;
    play.wait_until_written(1).await;
    // With the summary it is refused, and without it is too large.
    play.add_user_message(99, 2200);
    let holds = play.request().to_string().len() - 1500;
    let text = play.history.last().unwrap()["content"].as_str().unwrap();
    let text = format!("{text} {WHOLE} {UNTOLD} {HOLDS}{holds}.");
    *play.history.last_mut().unwrap() = json!({"role": "user", "content": text});
    let refused = async |play: &mut Play, asks: bool| {
        let mut client = play.send_request().await;
        if asks {
            send_summary(play.next_summary_request().await, "Numbered questions.").await;
        }
        assert_eq!(client.response().await.status(), 400);
        play.server.next_exchange().await.done.resent
    };
    assert_eq!(refused(&mut play, false).await, Some(RefusalCause::Signature));
    // Another one, of more of the history.
    assert_eq!(refused(&mut play, true).await, Some(RefusalCause::Signature));
    play.wait_until_written(2).await;
    assert_eq!(refused(&mut play, true).await, None, "it has no summary");
    play.wait_for_count("outcome=\"not_kept\"", 1).await;
    assert_eq!(refused(&mut play, false).await, None);
    assert!(play.take_summary_bodies().is_empty(), "it is paid for again");
}

/// The provider demands the reasoning of an open tool loop, which a summary would invalidate. It refuses such a summary
/// once. From then on no request in an open loop waits for a summary, and the next turn uses it.
#[tokio::test]
async fn open_tool_loop_keeps_reasoning_that_its_provider_demands() {
    let mut play = Play::of(policy()).await;
    play.model = "claude-opus-5-5";
    in_a_loop(&mut play, [2400, 2400, 30]);
    let client = play.send_request().await;
    play.write_summaries("Much was read.", 1).await;
    let exchange = play.read_reply(client).await.exchange;
    let counts = (exchange.refused, exchange.done.new.compacted);
    assert_eq!(
        counts,
        (Some(RefusalCause::ReasoningDemanded), 1),
        "{:?} {:?}",
        exchange.done,
        exchange.estimate
    );

    play.session = "another";
    play.history.clear();
    in_a_loop(&mut play, [2400, 2400, 30]);
    let client = play.send_request().await;
    let scene = play.read_reply(client).await;
    assert!(scene.bytes.contains("It is deep."), "{}", scene.bytes);
    assert!(tokens(&scene) > USABLE, "{}", scene.bytes);
    assert_eq!(scene.exchange.refused, None);
    assert_eq!(scene.exchange.timing.compaction_wait_us, None);
    play.write_summaries("Much was read.", 2).await;
    play.add_user_message(1, 30);
    let client = play.send_request().await;
    let scene = play.read_reply(client).await;
    assert!(scene.bytes.contains("Much was read."), "{}", scene.bytes);
}

/// A history is summarised in pieces. The second piece is sent without the reasoning that is bound to the first one,
/// even if that is known only after a refusal.
#[tokio::test]
async fn summary_piece_refused_for_reasoning_is_retried_without_reasoning() {
    const BOUND: &str = r#"{"type":"error","error":{"message":"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\"."}}"#;
    let mut play = Play::of(policy()).await;
    in_a_loop(&mut play, [2400, 2400, 30]);
    let client = play.send_request().await;
    send_summary(play.next_summary_request().await, "One was read.").await;
    let mut question = play.next_summary_request().await;
    let text = question.message.text().to_owned();
    assert!(text.contains("One was read."), "{text}");
    assert!(text.contains("It is deep."), "{text}");
    question.answer("400 Bad Request", BOUND).await;
    drop(question);
    let question = play.next_summary_request().await;
    let text = question.message.text().to_owned();
    assert!(text.contains("One was read."), "{text}");
    assert!(!text.contains("It is deep."), "{text}");
    send_summary(question, "Both were read.").await;
    play.write_summaries("All was read.", 1).await;
    let scene = play.read_reply(client).await;
    assert_eq!(scene.exchange.done.new.compacted, 1, "{:?}", scene.exchange.done);
}

/// A turn with an open tool loop that does not fit, with results of these sizes, in words.
fn in_a_loop(play: &mut Play, sizes: [usize; 3]) {
    play.history.push(json!({"role": "user", "content": "Read it."}));
    for (number, size) in sizes.into_iter().enumerate() {
        let id = format!("toolu_01AbCdEf{number:04}");
        let thought = json!({"type": "thinking", "thinking": "It is deep.", "signature": "c2ln"});
        let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {}});
        play.history.push(json!({"role": "assistant", "content": [thought, call]}));
        let text = format!("Line {number}. {}{DEMANDS}", "more of it ".repeat(size / 3));
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": text});
        play.history.push(json!({"role": "user", "content": [result]}));
    }
}
