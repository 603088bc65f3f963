//! Which parts of a reply come back: choices, final objects, hidden and repeated reasoning.
//!
//! The inputs are in `tests/data/cases`.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::policy::{Policy, ReasoningRule};
use plimsoll::dialect::StopReason;
use plimsoll::dialect::models::Family;
use plimsoll::telemetry::Exchange;
use plimsoll::tokens::Tokenizer;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const GEMINI: &str = "/v1beta/models/gemini-3-pro-preview:generateContent";
const GEMINI_STREAM: &str = "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse";

/// A provider, and the proxy in front of it.
struct Stage {
    provider: Provider,
    server: TestServer,
    headers: String,
}

/// One exchange: what the provider received, what the client received, and the record.
struct Trip {
    sent: Value,
    received: String,
    exchange: Arc<Exchange>,
}

impl Stage {
    async fn open(reasoning_echo: Option<ReasoningRule>) -> Self {
        // Until a vocabulary is loaded, tokens are counted by length.
        Tokenizer::whole(Family::O200k);
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        (config.mode, config.policy) = (Mode::Active, Arc::new(Policy::default()));
        config.upstreams[0].reasoning_echo = reasoning_echo;
        let server = TestServer::with(config).await;
        Self { provider, server, headers: String::new() }
    }

    async fn exchange(&mut self, target: &str, request: &Value, reply: &str) -> Trip {
        let (mut client, body) = (Wire::connect(self.server.address).await, request.to_string());
        let (length, headers) = (body.len(), &self.headers);
        client
            .send(format!(
                "POST {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\nx-api-key: k\r\n{headers}\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            ))
            .await;
        let mut call = self.provider.call().await;
        if reply.starts_with('{') {
            call.answer("200 OK", reply).await;
        } else {
            call.begin_events().await;
            call.chunk(reply).await;
            call.end().await;
        }
        let received = client.response().await.text().to_owned();
        let sent = serde_json::from_str(call.message.text()).unwrap();
        Trip { sent, received, exchange: self.server.next_exchange().await }
    }
}

impl Trip {
    fn estimate(&self) -> u64 {
        self.exchange.estimate.as_ref().unwrap().tokens
    }

    fn assert_continues(&self, first: &Trip) {
        let place = |trip: &Trip| (trip.exchange.session.clone(), trip.exchange.thread.clone());
        assert_eq!(place(self), place(first));
    }
}

fn text(file: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/data/cases/{file}", env!("CARGO_MANIFEST_DIR")))
        .unwrap()
}

fn json(file: &str) -> Value {
    serde_json::from_str(&text(file)).unwrap()
}

/// An empty reply of Chat Completions.
const DONE: &str =
    r#"{"choices":[{"index":0,"message":{"content":"It prints hello."},"finish_reason":"stop"}]}"#;
const RESPONDED: &str = r#"{"status":"completed","output":[]}"#;

fn is_near(estimate: u64, expected: u64) -> bool {
    let off = estimate.abs_diff(expected);
    off <= 60 || off * 20 <= expected
}

#[tokio::test]
async fn litellm_blocks_are_put_back_whole() {
    for reply in ["reply-1.sse", "reply-1.json"] {
        let reply = text(&format!("thinking-blocks/{reply}"));
        // Some clients keep the text, which has no signature.
        for kept in [
            None,
            Some("I should look at the file before answering, because the name alone says little."),
        ] {
            let mut stage = Stage::open(Some(ReasoningRule::Wanted)).await;
            let first = stage.exchange(CHAT, &json("thinking-blocks/request-1.json"), &reply).await;
            let mut request = json("thinking-blocks/request-2.json");
            if let Some(kept) = kept {
                request["messages"][2]["reasoning_content"] = kept.into();
            }
            let second = stage.exchange(CHAT, &request, &text("thinking-blocks/reply-2.sse")).await;
            let blocks = &second.sent["messages"][2]["thinking_blocks"];
            assert_eq!(
                *blocks,
                json("thinking-blocks/reply-1.json")["choices"][0]["message"]["thinking_blocks"]
            );
            second.assert_continues(&first);
        }
    }
}

/// A client that puts pieces together keeps what the first one said of the signature.
#[tokio::test]
async fn signature_is_put_back_beside_text_that_was_kept() {
    let whole =
        json("thinking-blocks/reply-1.json")["choices"][0]["message"]["thinking_blocks"].clone();
    let thinking = &whole[0]["thinking"];
    for kept in [
        json!([]),
        json!([{"type": "thinking", "thinking": thinking}]),
        json!([{"type": "thinking", "thinking": thinking, "signature": ""}]),
        json!([{"type": "thinking", "thinking": thinking, "signature": null}]),
    ] {
        let mut stage = Stage::open(Some(ReasoningRule::Wanted)).await;
        let reply = text("thinking-blocks/reply-1.sse");
        stage.exchange(CHAT, &json("thinking-blocks/request-1.json"), &reply).await;
        let mut request = json("thinking-blocks/request-2.json");
        request["messages"][2]["thinking_blocks"] = kept.clone();
        let second = stage.exchange(CHAT, &request, &text("thinking-blocks/reply-2.sse")).await;
        assert_eq!(second.sent["messages"][2]["thinking_blocks"], whole, "{kept}");
    }
}

#[tokio::test]
async fn server_that_counts_chunks_in_index_sends_one_reply() {
    let mut stage = Stage::open(Some(ReasoningRule::Demanded)).await;
    let reply = text("choices/counting.sse");
    let first = stage.exchange(CHAT, &json("choices/counting-request-1.json"), &reply).await;
    assert_eq!(first.exchange.stop, Some(StopReason::ToolUse));
    let second = stage.exchange(CHAT, &json("choices/counting-request-2.json"), DONE).await;
    second.assert_continues(&first);
    assert_eq!(
        second.sent["messages"][2]["reasoning_content"],
        "I should look at the file before answering, because the name alone says little."
    );
}

/// The call was unknown, and counted twice: as new, and as the text beside it.
#[tokio::test]
async fn second_choice_belongs_to_reply() {
    let long = "// a line of the file that the call writes\n".repeat(100);
    let arguments = json!({"path": "src/main.rs", "lines": long}).to_string();
    for (file, has_text) in [("two-choices.json", true), ("two-choices-no-text.json", false)] {
        for (arguments, output) in [(None, 60), (Some(arguments.as_str()), 1_100)] {
            let mut reply = json(&format!("choices/{file}"));
            let mut request = json("choices/two-request-2.json");
            reply["usage"]["completion_tokens"] = output.into();
            reply["usage"]["total_tokens"] = (420 + output).into();
            if !has_text {
                request["messages"][2]["content"] = Value::Null;
            }
            if let Some(arguments) = arguments {
                let call = &mut reply["choices"][1]["message"]["tool_calls"][0];
                call["function"]["arguments"] = arguments.into();
                let call = &mut request["messages"][2]["tool_calls"][0];
                call["function"]["arguments"] = arguments.into();
            }
            let mut together = reply.clone();
            let call = together["choices"][1]["message"]["tool_calls"].take();
            together["choices"][0]["message"]["tool_calls"] = call;
            together["choices"].as_array_mut().unwrap().pop();
            let mut estimates = Vec::new();
            for reply in [&reply, &together] {
                let mut stage = Stage::open(None).await;
                let first = json("choices/two-request-1.json");
                let first = stage.exchange(CHAT, &first, &reply.to_string()).await;
                let second = stage.exchange(CHAT, &request, DONE).await;
                second.assert_continues(&first);
                assert_eq!(first.exchange.stop, Some(StopReason::ToolUse));
                estimates.push(second.estimate());
            }
            assert_eq!(estimates[0], estimates[1], "{file}");
        }
    }
}

#[tokio::test]
async fn after_any_of_three_choices_estimate_is_that_after_one() {
    let reply = json("choices/three-choices.json");
    let choice = |at: usize| reply["choices"][at]["message"]["content"].clone();
    let one = |stage: Stage, several: bool, chosen: usize| {
        let (mut request, mut answer, mut stage) =
            (json("choices/n-request-1.json"), reply.clone(), stage);
        let mut next = json("choices/n-request-2.json");
        next["messages"][2]["content"] = choice(chosen);
        if !several {
            request["n"] = 1.into();
            answer["choices"] = json!([{"index": 0, "finish_reason": "stop", "message": {"content": choice(chosen)}}]);
            answer["usage"]["completion_tokens"] = 210.into();
        }
        async move {
            let first = stage.exchange(CHAT, &request, &answer.to_string()).await;
            let second = stage.exchange(CHAT, &next, DONE).await;
            second.assert_continues(&first);
            second.estimate()
        }
    };
    let expected = one(Stage::open(None).await, false, 0).await;
    assert!(is_near(expected, 642), "{expected}");
    for chosen in 0..3 {
        let estimate = one(Stage::open(None).await, true, chosen).await;
        assert!(is_near(estimate, expected), "{chosen}: {estimate} for {expected}");
    }
}

/// Each choice of a stream is a reply of its own, and so is each of Gemini's candidates.
#[tokio::test]
async fn each_of_several_streamed_replies_gets_its_own_reasoning_back() {
    let request = |extra: Value| {
        let mut request = json!({"model": "deepseek-v4-pro", "stream": true, "n": 2,
            "messages": [{"role": "user", "content": "Read the file."}]});
        request["messages"].as_array_mut().unwrap().extend(extra.as_array().unwrap().clone());
        request
    };
    let call = |at: usize| {
        json!({"index": 0, "id": format!("call_{at}"), "type": "function",
        "function": {"name": "read", "arguments": format!("{{\"path\":\"{at}\"}}")}})
    };
    let chunk = |at: usize, delta: Value, end: Value| {
        let chunk =
            json!({"id": "c", "choices": [{"index": at, "delta": delta, "finish_reason": end}]});
        format!("data: {chunk}\n\n")
    };
    let mut stream = String::new();
    for piece in ["Think ", "of "] {
        for at in 0..2 {
            stream +=
                &chunk(at, json!({"reasoning_content": format!("{piece}{at}. ")}), Value::Null);
        }
    }
    for at in 0..2 {
        stream += &chunk(at, json!({"tool_calls": [call(at)]}), Value::Null);
        stream += &chunk(at, json!({}), "tool_calls".into());
    }
    stream += "data: [DONE]\n\n";
    for chosen in 0..2 {
        let mut stage = Stage::open(None).await;
        let first = stage.exchange(CHAT, &request(json!([])), &stream).await;
        let mut own = call(chosen);
        own.as_object_mut().unwrap().remove("index");
        let next = request(json!([{"role": "assistant", "content": null, "tool_calls": [own]},
            {"role": "tool", "tool_call_id": format!("call_{chosen}"), "content": "fn main() {}"}]));
        let second = stage.exchange(CHAT, &next, DONE).await;
        second.assert_continues(&first);
        assert_eq!(
            second.sent["messages"][1]["reasoning_content"],
            format!("Think {chosen}. of {chosen}. ")
        );
    }
}

#[tokio::test]
async fn geminis_candidates_are_parts_of_one_reply_unless_several_are_asked_for() {
    let call = |at: usize, signature: bool| {
        let mut part = json!({"functionCall": {"name": "read", "args": {"path": at.to_string()}}});
        if signature {
            part["thoughtSignature"] = format!("c2lnbmF0dXJl{at}").into();
        }
        part
    };
    let candidate = |at: usize, parts: Value| json!({"index": at, "finishReason": "STOP", "content": {"role": "model", "parts": parts}});
    let request = |several: bool, parts: Option<Value>| {
        let mut request =
            json!({"contents": [{"role": "user", "parts": [{"text": "Read the file."}]}]});
        if several {
            request["generationConfig"] = json!({"candidateCount": 2});
        }
        if let Some(parts) = parts {
            let result = json!({"functionResponse": {"name": "read", "response": {"output": "fn main() {}"}}});
            let contents = request["contents"].as_array_mut().unwrap();
            contents.push(json!({"role": "model", "parts": parts}));
            contents.push(json!({"role": "user", "parts": [result]}));
        }
        request
    };
    let usage =
        json!({"promptTokenCount": 420, "candidatesTokenCount": 40, "totalTokenCount": 460});
    // Two replies.
    let reply = json!({"candidates": [candidate(0, json!([call(0, true)])), candidate(1, json!([call(1, true)]))],
        "usageMetadata": usage});
    for chosen in 0..2 {
        let mut stage = Stage::open(None).await;
        let first = stage.exchange(GEMINI, &request(true, None), &reply.to_string()).await;
        let next = request(true, Some(json!([call(chosen, false)])));
        let second = stage.exchange(GEMINI, &next, r#"{"candidates":[]}"#).await;
        second.assert_continues(&first);
        assert_eq!(second.sent["contents"][1]["parts"][0], call(chosen, true));
    }
    // One reply in two candidates.
    let text = json!({"text": "I will read it."});
    let reply = json!({"candidates": [candidate(0, json!([text])), candidate(1, json!([call(1, true)]))],
        "usageMetadata": usage});
    let mut stage = Stage::open(None).await;
    let first = stage.exchange(GEMINI, &request(false, None), &reply.to_string()).await;
    assert_eq!(first.exchange.stop, Some(StopReason::ToolUse));
    let next = request(false, Some(json!([text, call(1, false)])));
    let second = stage.exchange(GEMINI, &next, r#"{"candidates":[]}"#).await;
    second.assert_continues(&first);
    assert_eq!(second.sent["contents"][1]["parts"][1], call(1, true));
}

#[tokio::test]
async fn call_with_two_ids_is_found_by_each() {
    let reply = text("final-object/other-id.sse");
    let data =
        reply.lines().find(|line| line.contains("output_item.done") && line.contains("rs_1"));
    let done: Value = data
        .map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap())
        .unwrap();
    for id in ["call_B2", "call_A1"] {
        let mut stage = Stage::open(None).await;
        let first = stage.exchange(RESPONSES, &json("final-object/request-1.json"), &reply).await;
        assert_eq!(first.exchange.stop, Some(StopReason::ToolUse));
        assert_eq!(&*first.received, &*reply);
        let next = text("final-object/request-2-other-id.json").replace("call_B2", id);
        let next: Value = serde_json::from_str(&next).unwrap();
        let second = stage.exchange(RESPONSES, &next, RESPONDED).await;
        second.assert_continues(&first);
        let encrypted = &second.sent["input"][1]["encrypted_content"];
        assert_eq!(*encrypted, done["item"]["encrypted_content"], "{id}");
    }
}

#[tokio::test]
async fn stub_in_final_object_replaces_nothing_that_was_streamed() {
    let reply = text("final-object/stub.sse");
    // Other stubs: the call itself without its arguments, and nothing at all.
    let (events, last) = reply.split_once("event: response.completed\ndata: ").unwrap();
    let with_output = |change: fn(&mut Value)| {
        let mut last: Value = serde_json::from_str(last).unwrap();
        change(&mut last["response"]["output"]);
        format!("{events}event: response.completed\ndata: {last}\n\n")
    };
    let call = with_output(|output| {
        output[1] = json!({"id": "fc_9", "type": "function_call", "call_id": "call_A1", "name": "read_file", "arguments": ""});
    });
    let longer = with_output(|output| {
        let call = json!({"id": "fc_9", "type": "function_call", "call_id": "call_A1", "name": "read_file",
            "arguments": "{\"path\":\"src/main.rs\"}"});
        output.as_array_mut().unwrap().push(call);
    });
    for reply in [reply.clone(), call, longer, with_output(|output| *output = json!([]))] {
        let mut stage = Stage::open(None).await;
        let first = stage.exchange(RESPONSES, &json("final-object/request-1.json"), &reply).await;
        assert_eq!(first.exchange.stop, Some(StopReason::ToolUse));
        assert_eq!(&*first.received, &*reply);
        let second =
            stage.exchange(RESPONSES, &json("final-object/request-2-stub.json"), RESPONDED).await;
        second.assert_continues(&first);
        assert!(second.sent["input"][1]["encrypted_content"].is_string(), "{reply}");
        assert_eq!(second.sent["input"][2]["call_id"], "call_A1");
    }
}

/// In Chat Completions a later piece may name the call anew.
#[tokio::test]
async fn call_whose_id_changes_in_stream_is_found_by_each() {
    let chunk = |delta: Value| {
        format!("data: {}\n\n", json!({"id": "c", "choices": [{"index": 0, "delta": delta}]}))
    };
    let piece = |id: &str, function: Value| {
        chunk(json!({"tool_calls": [{"index": 0, "id": id, "function": function}]}))
    };
    let reply = [
        chunk(json!({"reasoning_content": "Let me look."})),
        piece("call_A1", json!({"name": "read_file", "arguments": "{\"path\":"})),
        piece("call_B2", json!({"arguments": "\"a\"}"})),
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n".into(),
    ]
    .concat();
    for id in ["call_A1", "call_B2"] {
        let mut stage = Stage::open(None).await;
        let mut request = json!({"model": "deepseek-v4-pro", "stream": true,
            "messages": [{"role": "user", "content": "Read the file."}]});
        let first = stage.exchange(CHAT, &request, &reply).await;
        let call = json!({"id": id, "type": "function",
            "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}});
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "fn main() {}"}));
        let second = stage.exchange(CHAT, &request, DONE).await;
        second.assert_continues(&first);
        assert_eq!(second.sent["messages"][1]["reasoning_content"], "Let me look.", "{id}");
    }
}

#[tokio::test]
async fn repeated_call_keeps_signature_that_it_came_with() {
    let reply = text("repeated-call/reply-1.sse");
    let signed = reply.split_once("\"thoughtSignature\": \"").unwrap().1.split_once('"').unwrap().0;
    // The client keeps one of the calls, or both.
    for times in [1, 2] {
        let mut stage = Stage::open(None).await;
        let first =
            stage.exchange(GEMINI_STREAM, &json("repeated-call/request-1.json"), &reply).await;
        assert_eq!(first.received, reply);
        let mut next = json("repeated-call/request-2.json");
        let calls = next["contents"][1]["parts"].as_array_mut().unwrap();
        calls.extend(vec![calls[0].clone(); times - 1]);
        let second = stage.exchange(GEMINI_STREAM, &next, &reply).await;
        second.assert_continues(&first);
        assert_eq!(second.sent["contents"][1]["parts"][0]["thoughtSignature"], signed);
        assert!(!second.sent.to_string().contains("skip_thought_signature_validator"));
    }
}

/// Clients merge the texts of a reply, over a call too, edit or drop them; and keep the last of repeated calls.
#[tokio::test]
async fn call_keeps_signature_beside_changed_text() {
    let text = |text: &str| json!({"text": text});
    let call = json!({"functionCall": {"name": "read_file", "args": {"path": "a"}}});
    let mut signed = call.clone();
    signed["thoughtSignature"] = json!("QUFB");
    let [will, look] = ["I will ", "look."].map(text);
    for (parts, returned) in [
        ([&will, &look, &signed], vec![text("I will look."), call.clone()]),
        ([&will, &look, &signed], vec![text("I will look.\n— by a model"), call.clone()]),
        ([&will, &look, &signed], vec![call.clone()]),
        ([&will, &signed, &look], vec![text("I will look."), call.clone()]),
        ([&signed, &look, &call], vec![look.clone(), call.clone()]),
        ([&will, &signed, &call], vec![text("Will do."), call.clone(), call.clone()]),
    ] {
        let mut stage = Stage::open(None).await;
        stage.headers = "x-session-id: mine\r\n".to_owned();
        let reply = json!({"candidates": [{"index": 0, "finishReason": "STOP",
            "content": {"role": "model", "parts": parts}}]});
        let request = json("repeated-call/request-1.json");
        stage.exchange(GEMINI, &request, &reply.to_string()).await;
        let mut next = json("repeated-call/request-2.json");
        next["contents"][1]["parts"] = json!(returned);
        let sent = stage.exchange(GEMINI, &next, r#"{"candidates":[]}"#).await.sent;
        let parts = sent["contents"][1]["parts"].as_array().unwrap();
        let first = parts.iter().find(|part| part.get("functionCall").is_some());
        assert_eq!(first, Some(&signed), "{returned:?}");
    }
}

/// The same for reasoning beside a call whose id only counts.
#[tokio::test]
async fn call_keeps_reasoning_beside_changed_text() {
    let call = json!({"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{}"}});
    let request = json!({"model": "deepseek-v4-pro",
        "messages": [{"role": "user", "content": "Read the file."}]});
    let message = json!({"content": "I will look.", "reasoning_content": "Let me see.", "tool_calls": [call]});
    let reply =
        json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
    for content in [json!("I will look.\n— by a model"), Value::Null] {
        let mut stage = Stage::open(Some(ReasoningRule::Wanted)).await;
        stage.exchange(CHAT, &request, &reply.to_string()).await;
        let mut next = request.clone();
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": content, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "call_0", "content": "fn main() {}"}));
        let sent = stage.exchange(CHAT, &next, DONE).await.sent;
        assert_eq!(sent["messages"][1]["reasoning_content"], "Let me see.", "{content}");
    }
}

/// Sub-agents get the same prompt, and their provider counts its calls; their client names the session, or only them.
#[tokio::test]
async fn named_agents_with_equal_prompts_and_call_ids_keep_their_own_reasoning() {
    for session in ["x-claude-code-session-id: s\r\n", ""] {
        keep_their_own_reasoning(session).await;
    }
}

async fn keep_their_own_reasoning(session: &str) {
    let call = json!({"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{}"}});
    let agent = |name: &str| format!("{session}x-claude-code-agent-id: {name}\r\n");
    let prompt = json!({"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "Read the file."}]});
    // The third one's reply has no reasoning, so it gets none of the others.
    let thoughts = [("a1", Some("Let me see.")), ("a2", Some("I shall look.")), ("a3", None)];
    let mut stage = Stage::open(Some(ReasoningRule::Wanted)).await;
    for (name, thought) in thoughts {
        stage.headers = agent(name);
        let mut message = json!({"content": null, "tool_calls": [call]});
        if let Some(thought) = thought {
            message["reasoning_content"] = thought.into();
        }
        let reply =
            json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
        stage.exchange(CHAT, &prompt, &reply.to_string()).await;
    }
    for (name, thought) in thoughts {
        stage.headers = agent(name);
        let mut next = prompt.clone();
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "call_0", "content": "fn main() {}"}));
        let second = stage.exchange(CHAT, &next, DONE).await;
        assert_eq!(
            second.sent["messages"][1].get("reasoning_content").and_then(Value::as_str),
            thought,
            "{session:?}: {name}"
        );
    }
}

/// A reply of 2,060 tokens, 2,000 of them reasoning that is neither sent nor reported, made the next estimate 2,578 for 580.
#[tokio::test]
async fn hidden_reasoning_is_not_carried() {
    let text = "It prints a greeting and ends. ".repeat(8);
    for (target, model) in [
        (CHAT, "gpt-5"),
        (CHAT, "some-model"),
        (MESSAGES, "claude-opus-4-8"),
        (RESPONSES, "gpt-5"),
        (GEMINI, ""),
    ] {
        for reported in [None, Some(0), Some(2_000)] {
            let mut stage = Stage::open(None).await;
            let mut texts = vec!["What does it do?".to_owned()];
            let mut input = 500;
            for turn in 0..6 {
                let request = request(target, model, &texts);
                let reply = reply(target, &text, input, 2_060, reported);
                let trip = stage.exchange(target, &request, &reply).await;
                let estimate = trip.estimate();
                assert!(
                    turn == 0 || is_near(estimate, input),
                    "{target} {model} {reported:?}: {estimate} for {input}"
                );
                texts.extend([text.clone(), "And the tests?".to_owned()]);
                input += 80;
            }
        }
    }
}

fn request(target: &str, model: &str, texts: &[String]) -> Value {
    let messages: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| match (target, at % 2) {
            (GEMINI, 0) => json!({"role": "user", "parts": [{"text": text}]}),
            (GEMINI, _) => json!({"role": "model", "parts": [{"text": text}]}),
            (_, 0) => json!({"role": "user", "content": text}),
            _ => json!({"role": "assistant", "content": text}),
        })
        .collect();
    match target {
        GEMINI => json!({"contents": messages}),
        RESPONSES => json!({"model": model, "store": false, "input": messages}),
        _ => json!({"model": model, "max_tokens": 9_000, "messages": messages}),
    }
}

fn reply(target: &str, text: &str, input: u64, output: u64, reasoning: Option<u64>) -> String {
    let reply = match target {
        CHAT => {
            json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": text}}],
            "usage": {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
                "completion_tokens_details": {"reasoning_tokens": reasoning}}})
        }
        MESSAGES => {
            json!({"id": "m", "type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": input, "output_tokens": output,
                "output_tokens_details": {"thinking_tokens": reasoning}}})
        }
        RESPONSES => json!({"id": "r", "status": "completed",
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}],
            "usage": {"input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                "output_tokens_details": {"reasoning_tokens": reasoning}}}),
        _ => {
            json!({"candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [{"text": text}]}}],
            "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": output - reasoning.unwrap_or(0),
                "thoughtsTokenCount": reasoning, "totalTokenCount": input + output}})
        }
    };
    reply.to_string()
}
