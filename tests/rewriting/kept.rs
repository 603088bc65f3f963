//! Clients that keep some reasoning and drop the rest: what they drop is put back where the provider's prefix had it.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::Policy;
use scripted_provider::strict::{Rules, ScriptedPart, ScriptedReply};
use serde_json::{Value, json};

use crate::play::{anthropic_request, message};
use crate::stage::Stage;

const BOUND: &str = "claude-opus-5-5";
const KEEPS: &str = "claude-opus-4-6";

fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking"
}

/// A reply as its client sends it back, with its reasoning or without.
fn back(answer: &Value, keeps: bool) -> Value {
    let blocks = answer["content"].as_array().unwrap().iter();
    message("assistant", blocks.filter(|block| keeps || !is_thinking(block)).cloned().collect())
}

fn result(answer: &Value, text: &str) -> Value {
    let blocks = answer["content"].as_array().unwrap();
    let call = blocks.iter().find(|block| block["type"] == "tool_use").unwrap();
    message("user", json!([{"type": "tool_result", "tool_use_id": call["id"], "content": text}]))
}

fn loses_nothing(log: &[scripted_provider::strict::LoggedRequest]) -> bool {
    log.iter().all(|entry| entry.verdict.losses().is_empty())
}

/// The client sends the reasoning of an open tool loop and drops it with the user's next message. Cache and later
/// reasoning depend on it, so it is put back.
#[tokio::test]
async fn thinking_dropped_at_end_of_tool_loop_is_put_back() {
    for model in [KEEPS, BOUND] {
        let rules = Rules { cache_min: Some(1), ..Rules::default() };
        let mut stage = Stage::open(rules, Policy::default()).await;
        let (mut sent, mut answers) = (vec![message("user", json!("Look."))], Vec::new());
        for number in 0..3 {
            let reply = ScriptedReply::thinking("Where is it?", 40)
                .with_call("Read", json!({"path": number}));
            let trip =
                stage.exchange("/v1/messages", &anthropic_request(model, &sent), reply).await;
            assert_eq!(trip.status, 200, "{}", trip.answer);
            sent.extend([back(&trip.answer, true), result(&trip.answer, "Deep water.")]);
            answers.push(trip.answer);
        }
        let reply = ScriptedReply::thinking("So it is.", 40).with_text("It is deep.");
        let last = stage.exchange("/v1/messages", &anthropic_request(model, &sent), reply).await;
        answers.push(last.answer);
        // Now all of it is dropped.
        let mut plain = vec![message("user", json!("Look."))];
        for answer in &answers[..3] {
            plain.extend([back(answer, false), result(answer, "Deep water.")]);
        }
        plain.extend([back(&answers[3], false), message("user", json!("And now?"))]);
        for decision in [Decision::New, Decision::Replayed] {
            let trip = stage
                .exchange(
                    "/v1/messages",
                    &anthropic_request(model, &plain),
                    ScriptedReply::text("So."),
                )
                .await;
            assert_eq!(trip.status, 200, "{}", trip.answer);
            let there = trip.sent()["messages"].to_string().matches("\"thinking\":").count();
            assert_eq!(there, 4, "{model}: {:?}", trip.exchange.done.steps);
            let is_new = |step: &plimsoll::context::plan::PlanStep| {
                (step.change, step.decision, step.why)
                    == (Change::PutBack, Decision::New, DecisionReason::Birth)
            };
            let new = trip.exchange.done.steps.iter().filter(|step| is_new(step)).count();
            assert_eq!(new > 0, decision == Decision::New);
            assert!(loses_nothing(&trip.log), "{:?}", trip.log[0].verdict.losses());
            stage.restart().await;
        }
    }
}

/// A broken stream's reply is known: its reasoning, which the client sends back, is valid after the reasoning that is
/// put back before it.
#[tokio::test]
async fn reasoning_of_partial_reply_stays_valid_when_sent_back() {
    // The stream breaks within the text, or within a call.
    for (reply, breaks) in [
        (
            ScriptedReply::thinking("Hm.", 40).with_text("It lies deep, and deeper than that."),
            "text_delta",
        ),
        (
            ScriptedReply::thinking("Hm.", 40)
                .with_text("I look.")
                .with_call("Read", json!({"path": "a long path"})),
            "input_json_delta",
        ),
    ] {
        let rules = Rules { cache_min: Some(1), ..Rules::default() };
        let mut stage = Stage::open(rules, Policy::default()).await;
        let mut sent = two_replies(&mut stage, BOUND, false).await;
        let mut streamed = anthropic_request(BOUND, &sent);
        streamed["stream"] = json!(true);
        // The last event of that kind in the whole stream.
        let events = stage.preview(&streamed, reply.clone()).await;
        let seen = events.iter().rposition(|event| event.contains(breaks)).unwrap();
        stage.provider.cut_next_stream_after(seen);
        let broken = stage.exchange("/v1/messages", &streamed, reply).await;
        let partial = partial(broken.answer.as_str().unwrap());
        assert!(is_thinking(&partial["content"][0]), "{partial}");
        sent.extend([back(&partial, true), message("user", json!("Resume directly."))]);
        for _ in 0..2 {
            let trip = stage
                .exchange(
                    "/v1/messages",
                    &anthropic_request(BOUND, &sent),
                    ScriptedReply::text("On."),
                )
                .await;
            assert_eq!(trip.status, 200, "{breaks}: {}", trip.answer);
            assert_eq!(trip.log.len(), 1, "{breaks}: {}", trip.answer);
            let there = trip.sent()["messages"].to_string().matches("\"thinking\":").count();
            assert_eq!(there, 3, "{:?}", trip.exchange.done.steps);
            stage.restart().await;
        }
    }
}

/// A reply begins to reason again after its text, and breaks off before the second signature. What came of it is sent
/// back, and nothing is put in between.
#[tokio::test]
async fn reply_that_broke_off_in_its_second_reasoning_is_recognised() {
    let reply = ScriptedReply::thinking("Hm.", 40)
        .with_text("It lies deep.")
        .with_part(ScriptedPart::Thinking { text: "And deeper than that.".to_owned(), tokens: 40 })
        .with_text("It does.");
    for (event, keeps) in [
        ("thinking_delta", true),
        ("thinking_delta", false),
        ("signature_delta", true),
        ("signature_delta", false),
    ] {
        for model in [KEEPS, BOUND] {
            let rules = Rules { cache_min: Some(1), ..Rules::default() };
            let mut stage = Stage::open(rules, Policy::default()).await;
            let mut sent = two_replies(&mut stage, model, keeps).await;
            let mut streamed = anthropic_request(model, &sent);
            streamed["stream"] = json!(true);
            let events = stage.preview(&streamed, reply.clone()).await;
            // Not every model shows its reasoning.
            let Some(seen) = events.iter().rposition(|it| it.contains(event)) else { continue };
            stage.provider.cut_next_stream_after(seen);
            let broken = stage.exchange("/v1/messages", &streamed, reply.clone()).await;
            let partial = partial(broken.answer.as_str().unwrap());
            assert_eq!(partial["content"].as_array().unwrap().len(), 2, "{partial}");
            sent.extend([back(&partial, true), message("user", json!("Resume directly."))]);
            for number in 0..4 {
                let on = ScriptedReply::thinking("On.", 40).with_text(&format!("And {number} on."));
                let trip =
                    stage.exchange("/v1/messages", &anthropic_request(model, &sent), on).await;
                assert_eq!(
                    trip.status,
                    200,
                    "{model} {event} {keeps}: {:?} {:#}",
                    trip.log[0].verdict,
                    trip.sent()
                );
                assert_eq!(
                    trip.log.len(),
                    1,
                    "{model} {event} {keeps}: {:?} {:#}",
                    trip.log[0].verdict,
                    trip.sent()
                );
                assert!(loses_nothing(&trip.log), "{:?}", trip.log[0].verdict.losses());
                if number > 0 {
                    let keeps = keeps == (number == 1);
                    sent.extend([back(&trip.answer, keeps), message("user", json!("Go on."))]);
                }
                stage.restart().await;
            }
        }
    }
}

/// A history of a call and a text, both after reasoning, and the next question. The client keeps the reasoning before
/// calls, and that before text if it `keeps` it.
async fn two_replies(stage: &mut Stage, model: &str, keeps: bool) -> Vec<Value> {
    let mut sent = vec![message("user", json!("Look."))];
    let call = ScriptedReply::thinking("Where?", 40).with_call("Read", json!({"path": 1}));
    let first = stage.exchange("/v1/messages", &anthropic_request(model, &sent), call).await;
    sent.extend([back(&first.answer, true), result(&first.answer, "Deep water.")]);
    let reply = ScriptedReply::thinking("So it is.", 40).with_text("It is deep.");
    let second = stage.exchange("/v1/messages", &anthropic_request(model, &sent), reply).await;
    sent.extend([back(&second.answer, keeps), message("user", json!("How deep?"))]);
    sent
}

/// A stream breaks off after a signature and before the end of its block, or after the block. What the client drops of
/// the reply is put back as a whole or not at all; what it keeps is known.
#[tokio::test]
async fn reasoning_of_partial_reply_is_put_back_whole_or_not_at_all() {
    let thinks_twice = ScriptedReply::thinking("Hm.", 40)
        .with_text("It lies deep.")
        .with_part(ScriptedPart::Thinking { text: "And deeper than that.".to_owned(), tokens: 40 })
        .with_text("It does.");
    let thinks_once = ScriptedReply::thinking("Hm.", 40).with_text("It lies deep.");
    for (reply, after) in
        [(&thinks_twice, 1), (&thinks_twice, 2), (&thinks_once, 1), (&thinks_once, 2)]
    {
        for (model, keeps) in [(KEEPS, true), (KEEPS, false), (BOUND, true), (BOUND, false)] {
            let rules = Rules { cache_min: Some(1), ..Rules::default() };
            let mut stage = Stage::open(rules, Policy::default()).await;
            let mut sent = two_replies(&mut stage, model, false).await;
            let mut streamed = anthropic_request(model, &sent);
            streamed["stream"] = json!(true);
            let events = stage.preview(&streamed, reply.clone()).await;
            let signature = events.iter().rposition(|it| it.contains("signature_delta")).unwrap();
            stage.provider.cut_next_stream_after(signature + after);
            let broken = stage.exchange("/v1/messages", &streamed, reply.clone()).await;
            let partial = back(&partial(broken.answer.as_str().unwrap()), keeps);
            // If nothing is left of a reply, the client sends its request again.
            if partial["content"] != json!([]) {
                sent.extend([partial, message("user", json!("Resume directly."))]);
            }
            for number in 0..4 {
                let on = ScriptedReply::thinking("On.", 40).with_text(&format!("And {number} on."));
                let trip =
                    stage.exchange("/v1/messages", &anthropic_request(model, &sent), on).await;
                assert_eq!(
                    trip.status,
                    200,
                    "{model} {after} {keeps}: {:?} {:#}",
                    trip.log[0].verdict,
                    trip.sent()
                );
                assert_eq!(
                    trip.log.len(),
                    1,
                    "{model} {after} {keeps}: {:?} {:#}",
                    trip.log[0].verdict,
                    trip.sent()
                );
                sent.extend([back(&trip.answer, number != 1), message("user", json!("Go on."))]);
                stage.restart().await;
            }
        }
    }
}

/// What a client keeps of a broken stream: the complete blocks, and the text so far.
fn partial(stream: &str) -> Value {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut blocks: Vec<Value> = Vec::new();
    for event in data.map(|data| serde_json::from_str::<Value>(data).unwrap()) {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => blocks.push(event["content_block"].clone()),
            "content_block_delta" => {
                let delta = event["delta"].as_object().unwrap();
                for (name, piece) in delta.iter().filter(|(name, _)| *name != "type") {
                    let so_far = blocks[index][name].as_str().unwrap_or_default().to_owned();
                    blocks[index][name] = json!(so_far + piece.as_str().unwrap());
                }
            }
            _ => {}
        }
    }
    blocks.retain(|block| match block["type"].as_str().unwrap() {
        "thinking" => block["signature"].as_str().is_some_and(|signature| !signature.is_empty()),
        "text" => block["text"] != "",
        _ => false,
    });
    json!({"content": blocks})
}
