//! Old pictures of users are cut like old results if policy says so, and nothing else in their messages is.

use base64::Engine as _;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::Policy;
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::play::Play;
use crate::pruned::eager;
use crate::stage::Stage;

const PLACEHOLDER: &str = "[Old picture cleared]";

/// The beginning of a PNG of 1200 by 900 pixels, a different one for each number.
fn png(number: u8) -> String {
    let mut bytes =
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x04\xb0\x00\x00\x03\x84\x08\x06\x00\x00\x00"
            .to_vec();
    bytes.extend([number; 64]);
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A protocol: its path, how to write a request, a picture block, a text block and a message of either side, and a
/// reply.
struct Protocol {
    target: &'static str,
    model: &'static str,
    request: fn(&str, &[Value]) -> Value,
    picture: fn(&str) -> Value,
    text: fn(&str) -> Value,
    user: fn(Vec<Value>) -> Value,
    model_says: fn(&str) -> Value,
    answer: fn() -> Value,
    /// The member of a request that holds the messages.
    history: &'static str,
    /// The member of a message that holds the blocks.
    blocks: &'static str,
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol {
        target: "/v1/messages",
        model: "claude-sonnet-4-5",
        request: |model, messages| json!({"model": model, "max_tokens": 100, "messages": messages}),
        picture: |data| {
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data},
            "cache_control": {"type": "ephemeral"}})
        },
        text: |text| json!({"type": "text", "text": text}),
        user: |blocks| json!({"role": "user", "content": blocks}),
        model_says: |text| json!({"role": "assistant", "content": [{"type": "text", "text": text}]}),
        answer: || {
            json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 1000, "output_tokens": 5}})
        },
        history: "messages",
        blocks: "content",
    },
    Protocol {
        target: "/v1/chat/completions",
        model: "gpt-4o",
        request: |model, messages| json!({"model": model, "messages": messages}),
        picture: |data| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}}),
        text: |text| json!({"type": "text", "text": text}),
        user: |blocks| json!({"role": "user", "content": blocks}),
        model_says: |text| json!({"role": "assistant", "content": text}),
        answer: || {
            json!({"id": "c", "object": "chat.completion", "model": "gpt-4o", "choices": [{"index": 0,
            "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}})
        },
        history: "messages",
        blocks: "content",
    },
    Protocol {
        target: "/v1/responses",
        model: "gpt-4o",
        request: |model, messages| json!({"model": model, "store": false, "input": messages}),
        picture: |data| json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}")}),
        text: |text| json!({"type": "input_text", "text": text}),
        user: |blocks| json!({"type": "message", "role": "user", "content": blocks}),
        model_says: |text| {
            json!({"type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]})
        },
        answer: || {
            json!({"id": "r", "object": "response", "status": "completed", "model": "gpt-4o", "output": [
            {"type": "message", "id": "msg", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]}],
            "usage": {"input_tokens": 1000, "output_tokens": 5, "total_tokens": 1005}})
        },
        history: "input",
        blocks: "content",
    },
    Protocol {
        target: "/v1beta/models/gemini-2.5-pro:generateContent",
        model: "",
        request: |_, messages| json!({"contents": messages}),
        picture: |data| json!({"inlineData": {"mimeType": "image/png", "data": data}}),
        text: |text| json!({"text": text}),
        user: |blocks| json!({"role": "user", "parts": blocks}),
        model_says: |text| json!({"role": "model", "parts": [{"text": text}]}),
        answer: || {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Yes."}]},
            "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 5, "totalTokenCount": 1005}})
        },
        history: "contents",
        blocks: "parts",
    },
];

impl Protocol {
    /// A history of questions, each with a picture.
    fn conversation(&self, questions: u8) -> Value {
        let mut messages = Vec::new();
        for number in 0..questions {
            let mut blocks = vec![(self.picture)(&png(number))];
            // Anthropic allows four cache markers at most.
            if number > 0 {
                blocks[0].as_object_mut().unwrap().remove("cache_control");
            }
            blocks.push(json!({"text": format!("What is in picture {number}?")}));
            if self.blocks == "content" {
                let kind = if self.history == "input" { "input_text" } else { "text" };
                blocks[1]["type"] = json!(kind);
            }
            messages.push((self.user)(blocks));
            if number + 1 < questions {
                messages.push((self.model_says)(&format!("A cat, number {number}.")));
            }
        }
        (self.request)(self.model, &messages)
    }
}

fn policy(media: bool) -> Policy {
    let mut policy = eager();
    policy.prune.media = media;
    policy
}

/// With the strict provider.
#[tokio::test]
async fn old_pictures_of_users_are_cut_like_old_results() {
    for protocol in &PROTOCOLS {
        let mut stage = Stage::open(Rules::default(), policy(true)).await;
        let request = protocol.conversation(4);
        let trip = stage.exchange(protocol.target, &request, ScriptedReply::text("Yes.")).await;
        assert_eq!(trip.status, 200, "{}: {}", protocol.target, trip.answer);
        // Messages 0, 2 and 4 are old; the newest two of seven are protected.
        let mut expected = request.clone();
        for message in [0, 2, 4] {
            let block = &mut expected[protocol.history][message][protocol.blocks][0];
            let marker = block.get("cache_control").cloned();
            *block = (protocol.text)(PLACEHOLDER);
            if let Some(marker) = marker {
                block["cache_control"] = marker;
            }
        }
        assert_eq!(trip.sent(), &expected, "{}", protocol.target);
        assert!(trip.log.iter().all(|entry| entry.verdict.losses().is_empty()));
        let done = &trip.exchange.done;
        let steps: Vec<_> =
            done.steps.iter().map(|step| (step.change, step.decision, step.why)).collect();
        let cut = (Change::Cut, Decision::New, DecisionReason::Always);
        assert_eq!(steps, [cut; 3], "{}", protocol.target);
        assert!(done.tokens_removed > 300, "{}: {}", protocol.target, done.tokens_removed);
        // Later requests have the same bytes, after a restart too.
        stage.restart().await;
        let later = stage
            .exchange(protocol.target, &protocol.conversation(5), ScriptedReply::text("Yes."))
            .await;
        assert_eq!(later.status, 200, "{}: {}", protocol.target, later.answer);
        let (before, after) = (&trip.sent()[protocol.history], &later.sent()[protocol.history]);
        let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
        assert_eq!(after[..6], before[..6], "{}", protocol.target);
        assert!(after[6] != before[6], "{}: it is old now", protocol.target);
    }
}

/// The default policy.
#[tokio::test]
async fn by_default_no_user_picture_is_cut() {
    assert!(!Policy::default().prune.media);
    for protocol in &PROTOCOLS {
        let mut play = Play::of(protocol.target, policy(false)).await;
        let request = protocol.conversation(6);
        let scene = play.exchange(&request, &(protocol.answer)()).await;
        assert_eq!(scene.bytes, request.to_string(), "{}", protocol.target);
    }
}

#[tokio::test]
async fn picture_in_kept_result_stays() {
    let mut policy = policy(true);
    policy.prune.except_tools = vec!["screen".into()];
    let mut play = Play::of("/v1/messages", policy).await;
    let mut messages = vec![json!({"role": "user", "content": "Look."})];
    for number in 0..4u8 {
        let id = format!("toolu_{number}");
        messages.push(json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "screen", "input": {}}]}));
        messages.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(number)}}]}]}));
    }
    let request = json!({"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages});
    let scene = play.exchange(&request, &(PROTOCOLS[0].answer)()).await;
    assert_eq!(scene.bytes, request.to_string());
}
