//! What messages consist of, as the context view shows it.

use plimsoll::context::budget::{ContextView, MessageTokens, ToolTokens};
use plimsoll::context::policy::Policy;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::shown::shown;

const MODEL: &str = "claude-opus-4-5";

fn call(id: &str, name: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": {"path": "keel.txt"}})
}

fn result(id: &str, text: &str) -> Value {
    message("user", json!([{"type": "tool_result", "tool_use_id": id, "content": text}]))
}

fn picture() -> Value {
    let data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    json!([{"type": "text", "text": "Look."}, {"type": "image", "source": source}])
}

/// A reply that reports this usage.
fn reply(content: Value, input: u64, output: u64) -> Value {
    let mut reply = anthropic_reply("m1", MODEL, content);
    reply["usage"] = json!({"input_tokens": input, "output_tokens": output});
    reply
}

fn check_sum(view: &ContextView) -> MessageTokens {
    let contents = view.contents.clone().unwrap();
    let MessageTokens { user, assistant, tool_calls, reasoning, media, summaries, other, .. } =
        contents;
    let sum = user + assistant + tool_calls + contents.results() + reasoning + media + summaries;
    assert_eq!(sum + other, view.breakdown.messages, "{view}");
    contents
}

/// Each kind of content is there, and results are listed by tool. The reply is counted at once.
#[tokio::test]
async fn messages_split_by_role_and_tool() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let thinking = json!({"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"});
    let history = vec![
        message("user", json!("How deep is she?")),
        message(
            "assistant",
            json!([{"type": "text", "text": "I look."}, call("a", "Read"), call("b", "Bash")]),
        ),
        message(
            "user",
            json!([
            {"type": "tool_result", "tool_use_id": "a", "content": "three metres and a half, ".repeat(40)},
            {"type": "tool_result", "tool_use_id": "b", "content": "keel.txt"}]),
        ),
        message("assistant", json!([{"type": "text", "text": "Three and a half."}])),
        message("user", picture()),
    ];
    let content = json!([thinking, {"type": "text", "text": "A ship."}, call("c", "Grep")]);
    let scene =
        play.exchange(&anthropic_request(MODEL, &history), &reply(content, 2_000, 3_020)).await;
    let view = shown(&play, &scene.exchange).await;
    let contents = check_sum(&view);
    assert!(contents.user > 0, "{view}");
    assert!(contents.assistant > 0, "{view}");
    assert!(contents.tool_calls > 0, "{view}");
    assert!(contents.media > 0, "{view}");
    assert!(contents.summaries == 0, "{view}");
    assert!(contents.other == 0, "{view}");
    let tools: Vec<&str> = contents.tool_results.iter().map(|it| &*it.tool).collect();
    assert_eq!(tools, ["Read", "Bash"], "the largest first");
    assert!(contents.tool_results[0].tokens > 5 * contents.tool_results[1].tokens, "{view}");
    // The reply's reasoning, which its tool loop needs again, is counted at once.
    assert!((2_900..3_020).contains(&contents.reasoning), "{view}");
    let text = view.to_string();
    let lines: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
    let at = lines.iter().position(|line| *line == "  Messages").unwrap();
    let under = [
        "    User",
        "    Assistant",
        "    Tool calls",
        "    Tool results",
        "      Read",
        "      Bash",
        "    Reasoning",
        "    Media",
    ];
    assert_eq!(lines[at + 1..at + 9], under, "{text}");
}

/// A tool whose loading is deferred is listed, and costs nothing.
#[tokio::test]
async fn deferred_tools_list_no_tokens() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let mut request = anthropic_request(MODEL, &[message("user", json!("How deep is she?"))]);
    let tool = json!({"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}});
    let mut late = tool.clone();
    (late["name"], late["defer_loading"]) = (json!("mcp__git__log"), json!(true));
    request["tools"] = json!([tool]);
    let content = json!([{"type": "text", "text": "Three metres."}]);
    let scene = play.exchange(&request, &reply(content.clone(), 900, 20)).await;
    let tools = shown(&play, &scene.exchange).await.breakdown.tools;
    request["tools"] = json!([tool, late]);
    play.session = "22222222-2222-3333-4444-555555555555";
    let scene = play.exchange(&request, &reply(content, 900, 20)).await;
    let view = shown(&play, &scene.exchange).await;
    assert_eq!(view.breakdown.tools, tools, "{view}");
    let name = "mcp__git__log".into();
    assert_eq!(view.contents.as_ref().unwrap().deferred, [ToolTokens { tool: name, tokens: 0 }]);
    assert!(
        view.to_string().contains("    Deferred:          0 tokens (mcp__git__log)\n"),
        "{view}"
    );
}

/// What Gemini's own tools added is billed as input. It is shown separately and is not part of the context.
#[tokio::test]
async fn gemini_tool_use_prompt_tokens_are_shown_separately() {
    let target = "/v1beta/models/gemini-2.5-pro:generateContent";
    let mut play = Play::of(target, Policy::default()).await;
    let parts = json!([{"text": "Three metres."}]);
    let reply = json!({"responseId": "r1", "modelVersion": "gemini-2.5-pro",
        "candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": parts}}],
        "usageMetadata": {"promptTokenCount": 132, "candidatesTokenCount": 4,
                          "toolUsePromptTokenCount": 1_387, "totalTokenCount": 1_523}});
    let question = json!({"role": "user", "parts": [{"text": "How deep is she?"}]});
    let scene = play.exchange(&json!({"contents": [question]}), &reply).await;
    let view = shown(&play, &scene.exchange).await;
    assert_eq!(view.total, 132 + 4);
    assert_eq!(view.tool_use_prompt, Some(1_387));
    let line = "Tool-use prompt: 1,387 tokens (for tools at the provider; they do not stay)\n";
    assert!(view.to_string().contains(line), "{view}");
    check_sum(&view);
}

/// An injected message counts as the user's, and a summary as a summary, also if an agent's rules count.
#[tokio::test]
async fn contents_add_up_in_every_preset() {
    use plimsoll::config::presets::Preset;
    for preset in Preset::ALL {
        let mut play = crate::presets::play(preset, &[]).await;
        let mut history = vec![message("user", json!("How deep is she?"))];
        for n in 0..3 {
            let (id, step) = (format!("c{n}"), call(&format!("c{n}"), "Read"));
            let scene = play
                .exchange(&anthropic_request(MODEL, &history), &reply(json!([step]), 1_000, 50))
                .await;
            check_sum(&shown(&play, &scene.exchange).await);
            history.push(message("assistant", json!([step])));
            history.push(result(&id, "three metres and a half"));
        }
        let scene =
            play.exchange(&anthropic_request(MODEL, &history), &reply(json!([]), 1_000, 50)).await;
        let contents = check_sum(&shown(&play, &scene.exchange).await);
        assert!(contents.results() > 0, "{}", preset.name());
        assert!(contents.tool_calls > 0, "{}", preset.name());
    }
}
