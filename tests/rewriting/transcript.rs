//! A thread is read beside what rewriting did to it: cut results and reasoning that was put back are marked where they stand.

use plimsoll::context::policy::Policy;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};
use crate::support::looking::Looking;
use crate::support::within;

const MODEL: &str = "claude-sonnet-4-5";

async fn keeping(policy: Policy) -> Play {
    let mut play = Play::of("/v1/messages", policy).await;
    play.config.content.keep = true;
    play.restart().await;
    play
}

/// The calls of the session's conversation.
async fn calls(play: &Play) -> Vec<Value> {
    let looking = Looking::at(&play.server, &play.config).await;
    let settling = async { while looking.json("/api/v1/about").await["in_flight"] != 0 {} };
    within("text to be stored", settling).await;
    let path = format!("/api/v1/sessions/{}/threads/main/transcript", play.session);
    looking.json(&path).await["calls"].as_array().unwrap().clone()
}

fn parts(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().unwrap().iter()
}

/// Texts of results that are marked as cut.
fn cut_texts(calls: &[Value]) -> Vec<&str> {
    let all = calls.iter().flat_map(|call| parts(&call["parts"]));
    all.filter(|part| part.get("cut").is_some())
        .map(|part| part["text"].as_str().unwrap())
        .collect()
}

/// Texts of results that the provider did not get.
fn missing<'t>(came: &'t [Value], sent: &Value) -> Vec<&'t str> {
    let sent = sent.to_string();
    let blocks = came.iter().filter_map(|message| message["content"].as_array()).flatten();
    let texts = blocks.filter_map(|block| block["content"].as_str());
    texts.filter(|text| !sent.contains(*text)).collect()
}

#[tokio::test]
async fn cut_results_are_marked() {
    let mut play = keeping(eager()).await;
    let reply = |text| anthropic_reply("m1", MODEL, json!([{"type": "text", "text": text}]));
    // What is cut in the request that first sends it.
    let mut came = history(6);
    let scene = play.exchange(&anthropic_request(MODEL, &came), &reply("One.")).await;
    let cut_at_first = missing(&came, &scene.sent).len();
    assert!(cut_at_first > 0, "{}", scene.sent);
    // What a later request cuts, beside parts of other kinds.
    came.push(message("assistant", json!([{"type": "text", "text": "One."}])));
    came.push(message("user", json!("And more.")));
    came.extend(history(9).into_iter().skip(13));
    let scene = play.exchange(&anthropic_request(MODEL, &came), &reply("Two.")).await;
    let missing = missing(&came, &scene.sent);
    assert!(missing.len() > cut_at_first, "{}", scene.sent);
    let calls = calls(&play).await;
    assert_eq!(cut_texts(&calls), missing);
    let marks = parts(&calls[0]["parts"]).filter_map(|part| part.get("cut"));
    let mark = marks.last().unwrap();
    assert_eq!(mark["request"], scene.exchange.id.as_str(), "decided by the second request");
    assert!(mark["tokens_after"].as_u64() < mark["tokens_before"].as_u64(), "{mark}");
}

#[tokio::test]
async fn reasoning_that_was_put_back_is_marked() {
    let mut play = keeping(Policy::default()).await;
    let thinking = |text: &str| json!({"type": "thinking", "thinking": text, "signature": "c2ln"});
    let call = json!({"type": "tool_use", "id": "toolu_01AbCdEfGh12", "name": "Read", "input": {"path": "a"}});
    let result =
        json!([{"type": "tool_result", "tool_use_id": "toolu_01AbCdEfGh12", "content": "Deep."}]);
    let mut came = vec![message("user", json!("Look."))];
    let reply = anthropic_reply("m1", MODEL, json!([thinking("Let me look."), call]));
    play.exchange(&anthropic_request(MODEL, &came), &reply).await;
    // The client drops the reasoning of the first reply.
    came.extend([message("assistant", json!([call])), message("user", result)]);
    let reply = anthropic_reply("m2", MODEL, json!([thinking("So it is deep.")]));
    let scene = play.exchange(&anthropic_request(MODEL, &came), &reply).await;
    assert_eq!(scene.exchange.done.new.put_back, 1);
    let calls = calls(&play).await;
    let [first, second] = &calls[..] else { panic!("{calls:?}") };
    let thoughts = [&first["reply"][0], &second["reply"][0]];
    assert_eq!(thoughts.map(|part| &part["text"]), ["Let me look.", "So it is deep."]);
    assert_eq!(thoughts.map(|part| part.get("put_back").is_some()), [true, false]);
    // A reply that was sent back stands at its own call alone.
    let kinds: Vec<&Value> = parts(&second["parts"]).map(|part| &part["kind"]).collect();
    assert_eq!(kinds, ["tool_result"]);
}
