//! Reasoning after a summary, with a model that binds it to its prefix.

use serde_json::{Value, json};

use crate::play::{Play, Scene, THINKS, policy, send_summary};

/// The signatures in a history.
fn signatures(history: &[Value]) -> Vec<String> {
    let parts = history.iter().filter_map(|message| message["content"].as_array()).flatten();
    parts.filter_map(|part| Some(part["signature"].as_str()?.to_owned())).collect()
}

fn sent(scene: &Scene) -> Vec<String> {
    signatures(scene.sent["messages"].as_array().unwrap())
}

/// A client left reasoning out when the summary was first used, and sends it later: it is invalid after the summary,
/// and is removed. Reasoning that was made after the summary stays.
#[tokio::test]
async fn old_reasoning_that_client_sends_after_summary_is_removed() {
    let mut play = Play::of(policy()).await;
    play.model = "claude-opus-5-5";
    play.history.push(json!({"role": "user", "content": THINKS}));
    play.history.push(json!({"role": "assistant", "content": "I will."}));
    // The client stores all reasoning, and sends none of it.
    let mut whole = play.history.clone();
    let compacted = loop {
        play.add_user_message(play.history.len() / 2, 120);
        let client = play.send_request().await;
        let scene = play.read_reply(client).await;
        whole.extend(play.history[whole.len()..].iter().cloned());
        let content = play.history.last_mut().unwrap()["content"].as_array_mut().unwrap();
        content.retain(|part| part["type"] != "thinking");
        for question in play.take_summary_requests() {
            send_summary(question, "Numbered questions were asked.").await;
            play.wait_until_written(1).await;
        }
        if scene.exchange.done.made.compacted > 0 {
            break scene;
        }
    };
    let before = signatures(&whole[..whole.len() - 1]);
    assert!(before.len() > 3, "{}", compacted.bytes);
    assert!(sent(&compacted).is_empty(), "{}", compacted.bytes);

    // Now it sends all of it.
    play.history = whole;
    for turn in 0..3 {
        let scene = play.turn(90).await;
        let sent = sent(&scene);
        assert!(sent.iter().all(|signature| !before.contains(signature)), "{}", scene.bytes);
        assert_eq!(sent.len(), turn + 1, "{}", scene.bytes);
        play.restart().await;
    }
}
