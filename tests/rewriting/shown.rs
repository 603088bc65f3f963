//! The number shown between turns is the number that the next request is decided by, in every preset, over sockets.

use plimsoll::config::presets::Preset;
use plimsoll::context::budget::ContextView;
use plimsoll::context::{EstimateMethod, Outcome};
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::presets::{play, play_at};

/// The context view after an exchange.
pub async fn shown(play: &Play, exchange: &Exchange) -> ContextView {
    let scope = plimsoll::store::Scope {
        tenant: exchange.tenant.clone().unwrap(),
        session: exchange.session.clone().unwrap(),
    };
    let id = exchange.id.clone();
    let view = play
        .server
        .ledgers
        .look(&scope, move |ledger| ContextView::after(ledger.turn(&id).unwrap()));
    view.await.unwrap()
}

fn decided(exchange: &Exchange) -> (u64, u64) {
    let estimate = exchange.estimate.as_ref().unwrap();
    (estimate.tokens, estimate.new)
}

/// Input 100,000 and output 50,050, nearly all of it reasoning that policy removes: the view shows 100,000 and the
/// text.
#[tokio::test]
async fn llxprt_does_not_show_reasoning_that_is_kept_out() {
    const MODEL: &str = "claude-opus-4-5";
    let also = [
        ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false"),
        ("PLIMSOLL_REASONING_REINJECT", "off"),
    ];
    let mut play = play(Preset::Llxprt, &also).await;
    let thinking = json!({"type": "thinking", "thinking": "Let me think.", "signature": "c2ln"});
    let content = json!([thinking, {"type": "text", "text": "Three metres and a half."}]);
    let mut reply = anthropic_reply("m1", MODEL, content.clone());
    reply["stop_reason"] = json!("end_turn");
    reply["usage"] = json!({"input_tokens": 100_000, "output_tokens": 50_050});
    let mut history = vec![message("user", json!("How deep is she?"))];
    let first = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    let view = shown(&play, &first.exchange).await;
    assert!((100_001..100_020).contains(&view.total), "{view}");
    assert!(view.free > 0, "{view}");
    assert!(view.breakdown.reasoning == 0, "{view}");
    history.push(message("assistant", content));
    history.push(message("user", json!("And how wide?")));
    let next = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
    let (by, new) = decided(&next.exchange);
    assert_eq!(view.total + new, by);
    assert!(!next.bytes.contains("Let me think."), "it was kept out");
}

/// A client drops its reasoning, in a tool loop of eight steps: what policy keeps out is not put back, and not counted.
#[tokio::test]
async fn kept_out_reasoning_is_not_put_back_in_loop_either() {
    const MODEL: &str = "claude-opus-4-5";
    let excluded = ("PLIMSOLL_REASONING_INCLUDE_IN_CONTEXT", "false");
    let stripped = ("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all");
    for (preset, key) in [(Preset::Llxprt, excluded), (Preset::Dexto, stripped)] {
        let mut play = play(preset, &[key]).await;
        let mut history = vec![message("user", json!("How deep is she?"))];
        let mut shown_before = None;
        for n in 0..8 {
            let call = json!({"type": "tool_use", "id": format!("toolu_01AbCdEfGh{n:02}"),
                              "name": "read", "input": {"n": n}});
            let thinking = json!({"type": "thinking", "thinking": "Let me think.",
                                  "signature": format!("c2lnbmF0dXJl{n:04}")});
            let mut reply = anthropic_reply(&format!("m{n}"), MODEL, json!([thinking, call]));
            reply["usage"] = json!({"input_tokens": 500 + 60 * n, "output_tokens": 1_040});
            let scene = play.exchange(&anthropic_request(MODEL, &history), &reply).await;
            assert_eq!(scene.bytes.matches("Let me think.").count(), 0, "{preset:?}, step {n}");
            // That the client drops its reasoning is known once it did.
            if let Some(total) = shown_before.filter(|_| n > 1) {
                let (by, new) = decided(&scene.exchange);
                assert_eq!(total + new, by, "{preset:?}, step {n}");
            }
            shown_before = Some(shown(&play, &scene.exchange).await.total);
            history.push(message("assistant", json!([call])));
            history.push(message(
                "user",
                json!([{"type": "tool_result",
                "tool_use_id": call["id"], "content": "x".repeat(120)}]),
            ));
        }
    }
}

/// Input 5,000 and output 3,050, of which 3,000 are thoughts: they are not sent back.
#[tokio::test]
async fn gemini_cli_does_not_show_thoughts() {
    let target = "/v1beta/models/gemini-2.5-pro:generateContent";
    let mut play = play_at(target, Preset::GeminiCli, &[]).await;
    let parts = json!([{"text": "Hm.", "thought": true}, {"text": "Three metres."}]);
    let reply = json!({"responseId": "r1", "modelVersion": "gemini-2.5-pro",
        "candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": parts}}],
        "usageMetadata": {"promptTokenCount": 5_000, "candidatesTokenCount": 50,
                          "thoughtsTokenCount": 3_000, "totalTokenCount": 8_050}});
    let question = json!({"role": "user", "parts": [{"text": "How deep is she?"}]});
    let first = play.exchange(&json!({"contents": [question]}), &reply).await;
    assert_eq!(shown(&play, &first.exchange).await.total, 5_050);
    let reply = json!({"role": "model", "parts": [{"text": "Three metres."}]});
    let more = json!({"role": "user", "parts": [{"text": "12345678"}]});
    let next = play.exchange(&json!({"contents": [question, reply, more]}), &reply).await;
    assert_eq!(decided(&next.exchange), (5_050 + 2, 2));
}

/// Nor are thoughts sent back, in an open tool loop either, and with Gemini 3. Signatures stay, with a thought too.
#[tokio::test]
async fn gemini_clis_thoughts_are_not_sent_back() {
    for target in [
        "/v1beta/models/gemini-2.5-pro:generateContent",
        "/v1beta/models/gemini-3-pro-preview:generateContent",
    ] {
        let mut play = play_at(target, Preset::GeminiCli, &[]).await;
        let call =
            json!({"functionCall": {"name": "read", "args": {}}, "thoughtSignature": "c2lnbmVk"});
        let signed = json!({"text": "So?", "thought": true, "thoughtSignature": "c2lnbmVkdG9v"});
        let thought = json!({"text": "Hm.", "thought": true});
        let result =
            json!({"functionResponse": {"name": "read", "response": {"output": "Three metres."}}});
        let contents = |thoughts: &[Value]| {
            let parts = [thoughts, std::slice::from_ref(&call)].concat();
            json!({"contents": [
                {"role": "user", "parts": [{"text": "How deep is she?"}]},
                {"role": "model", "parts": parts},
                {"role": "user", "parts": [result]},
            ]})
        };
        let reply = json!({"responseId": "r1", "candidates": [{"index": 0, "finishReason": "STOP",
            "content": {"role": "model", "parts": [{"text": "Three."}]}}]});
        let scene = play.exchange(&contents(&[thought, signed.clone()]), &reply).await;
        assert_eq!(scene.sent, contents(&[signed]), "{target}");
    }
}

/// Gemini CLI sends the signatures of its calls back and no thoughts; the provider does not read the thoughts behind
/// them. Six steps of a loop, 3,000 thoughts each: the number stays what is reported.
#[tokio::test]
async fn thoughts_behind_signatures_are_subtracted_once() {
    let target = "/v1beta/models/gemini-2.5-pro:generateContent";
    let strips = [("PLIMSOLL_REASONING_STRIP_FROM_CONTEXT", "all")];
    for (preset, also) in [(Preset::GeminiCli, &[][..]), (Preset::Dexto, &strips)] {
        let mut play = play_at(target, preset, also).await;
        let mut contents = vec![json!({"role": "user", "parts": [{"text": "How deep is she?"}]})];
        let mut shown_before = None;
        for n in 0..6_u64 {
            let call = json!({"functionCall": {"name": "read", "args": {"n": n}},
                              "thoughtSignature": format!("c2lnbmF0dXJl{n:04}")});
            let input = 5_000 + 60 * n;
            let reply = json!({"responseId": format!("r{n}"), "modelVersion": "gemini-2.5-pro",
                "candidates": [{"index": 0, "finishReason": "STOP", "content":
                    {"role": "model", "parts": [{"text": "Hm.", "thought": true}, call]}}],
                "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": 20,
                                  "thoughtsTokenCount": 3_000, "totalTokenCount": input + 3_020}});
            let scene = play.exchange(&json!({"contents": contents}), &reply).await;
            if let Some(total) = shown_before {
                let (by, new) = decided(&scene.exchange);
                assert_eq!(total + new, by, "{preset:?}, step {n}");
                assert!(by.abs_diff(input) < 100, "{preset:?}, step {n}: {by} of {input}");
            }
            shown_before = Some(shown(&play, &scene.exchange).await.total);
            contents.push(json!({"role": "model", "parts": [call]}));
            contents.push(json!({"role": "user", "parts": [{"functionResponse":
                {"name": "read", "response": {"output": "x".repeat(120)}}}]}));
        }
    }
}

fn chat(content: &str, usage: (u64, u64, u64)) -> Value {
    json!({"id": "c1", "object": "chat.completion", "model": "gpt-5",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": usage.0, "completion_tokens": usage.1,
            "total_tokens": usage.0 + usage.1,
            "completion_tokens_details": {"reasoning_tokens": usage.2}}})
}

/// Hidden reasoning of Chat Completions does not count in the last output: 5,000 and 50, and compaction does not begin
/// too early.
#[tokio::test]
async fn dexto_does_not_count_hidden_reasoning_of_last_output() {
    let mut play = play_at("/v1/chat/completions", Preset::Dexto, &[]).await;
    let mut history = vec![json!({"role": "user", "content": "How deep is she?"})];
    let request_for = |history: &[Value]| json!({"model": "gpt-5", "messages": history});
    let first =
        play.exchange(&request_for(&history), &chat("Three metres.", (5_000, 3_050, 3_000))).await;
    let view = shown(&play, &first.exchange).await;
    assert_eq!(view.total, 5_050);
    assert_eq!(view.basis.unwrap().gone, 3_000);
    history.push(json!({"role": "assistant", "content": "Three metres."}));
    history.push(json!({"role": "user", "content": "12345678901234567890"}));
    let next = play.exchange(&request_for(&history), &chat("Four.", (5_064, 9, 0))).await;
    assert_eq!(decided(&next.exchange), (5_055, 5));
    assert_eq!(next.exchange.error(), Some(-9));
    assert_eq!(next.exchange.done.overflow, None);
}

/// The document's example: 5,000 and 100 were reported, 80 characters are new, and 5,115 come back: +5, which is +0.1 %.
#[tokio::test]
async fn dexto_example_has_its_numbers() {
    let mut play = play_at("/v1/chat/completions", Preset::Dexto, &[]).await;
    let mut history = vec![json!({"role": "user", "content": "How deep is she?"})];
    let request_for = |history: &[Value]| json!({"model": "gpt-5", "messages": history});
    play.exchange(&request_for(&history), &chat("Three metres.", (5_000, 100, 0))).await;
    history.push(json!({"role": "assistant", "content": "Three metres."}));
    history.push(json!({"role": "user", "content": "x".repeat(80)}));
    let next = play.exchange(&request_for(&history), &chat("Four.", (5_115, 50, 0))).await;
    assert_eq!(decided(&next.exchange), (5_120, 20));
    assert_eq!(next.exchange.error(), Some(5));
    let view = shown(&play, &next.exchange).await;
    assert!(view.to_string().contains("\nLast estimate accuracy: +0.1% error\n"), "{view}");
    let basis = view.basis.unwrap();
    assert_eq!(basis.input, 5_115);
    assert_eq!(basis.output, 50);
    assert_eq!(view.total, 5_165);
}

/// A system message in the middle of the history is new like any other: length divided by four.
#[tokio::test]
async fn late_system_counts_by_length() {
    let mut play = play_at("/v1/chat/completions", Preset::Dexto, &[]).await;
    let mut history = vec![json!({"role": "user", "content": "How deep is she?"})];
    let request_for = |history: &[Value]| json!({"model": "gpt-5", "messages": history});
    play.exchange(&request_for(&history), &chat("Three metres.", (5_000, 100, 0))).await;
    history.push(json!({"role": "assistant", "content": "Three metres."}));
    history.push(json!({"role": "system", "content": "x".repeat(120)}));
    history.push(json!({"role": "user", "content": "x".repeat(80)}));
    let next = play.exchange(&request_for(&history), &chat("Four.", (5_160, 50, 0))).await;
    assert_eq!(decided(&next.exchange), (5_150, 30 + 20));
}

/// A stream of Chat Completions that broke off told no usage: the part that arrived counts by each preset's rules, on
/// the basis of the call before.
#[tokio::test]
async fn cancelled_stream_counts_by_rules() {
    for preset in [Preset::Dexto, Preset::Opencode, Preset::GeminiCli, Preset::MicroCompact] {
        let mut play = play_at("/v1/chat/completions", preset, &[]).await;
        let mut history = vec![json!({"role": "user", "content": "How deep is she?"})];
        let request_for = |history: &[Value]| json!({"model": "gpt-5", "messages": history});
        play.exchange(&request_for(&history), &chat("Three metres.", (5_000, 100, 0))).await;
        history.push(json!({"role": "assistant", "content": "Three metres."}));
        history.push(json!({"role": "user", "content": "x".repeat(80)}));
        let mut request = request_for(&history);
        request["stream"] = json!(true);
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        call.begin_events().await;
        let text = "She is three metres and a half deep, and";
        let chunk = json!({"id": "c2", "object": "chat.completion.chunk", "model": "gpt-5",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": null}]});
        call.chunk(format!("data: {chunk}\n\n")).await;
        client.until("a half deep").await;
        client.reset();
        let exchange = play.server.next_exchange().await;
        drop(call);
        assert_eq!(exchange.outcome, Outcome::ClientLeft);
        assert_eq!(exchange.actual(), None);
        let view = shown(&play, &exchange).await;
        let basis = view.basis.unwrap();
        assert_eq!(basis.input, 5_000, "{preset:?}");
        assert_eq!(basis.output, 100, "{preset:?}");
        history.push(json!({"role": "assistant", "content": text}));
        history.push(json!({"role": "user", "content": "12345678"}));
        let next = play.exchange(&request_for(&history), &chat("Four.", (5_160, 50, 0))).await;
        let rules = &play.config.policy.estimate.rules;
        let body = next.bytes.as_bytes();
        let read =
            plimsoll::dialect::read(plimsoll::dialect::Dialect::OpenaiChat, play.target, body);
        let of = |from: usize, to: usize| {
            let whole = |_: &plimsoll::dialect::Part| plimsoll::tokens::classic::SentContent::Whole;
            rules.messages(body, &read.messages[from..to], whole)
        };
        // Each sum is rounded once.
        assert_eq!(view.total, 5_100 + of(2, 4), "{preset:?}: {view}");
        assert_eq!(decided(&next.exchange).0, 5_100 + of(2, 5), "{preset:?}");
    }
}

/// System prompt and tools are counted by length, divided by four, the same in every call. The messages are the rest of
/// what is reported.
#[tokio::test]
async fn dexto_breakdown_counts_system_and_tools_by_length() {
    const MODEL: &str = "claude-sonnet-4-5";
    let mut play = play(Preset::Dexto, &[]).await;
    let tool =
        json!({"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}});
    let ask = |history: &[Value]| {
        let mut request = anthropic_request(MODEL, history);
        request["system"] = json!("x".repeat(402));
        request["tools"] = json!([tool]);
        request
    };
    let mut history = vec![message("user", json!("How deep is she?"))];
    let content = json!([{"type": "text", "text": "Three metres."}]);
    let first = play.exchange(&ask(&history), &anthropic_reply("m1", MODEL, content.clone())).await;
    let tools = (tool.to_string().len() as f64 / 4.0).round() as u64;
    let at_first = first.exchange.estimate.as_ref().unwrap();
    assert_eq!(at_first.method, EstimateMethod::Estimated);
    assert_eq!(at_first.breakdown.system, 101, "402 / 4, halves up");
    assert_eq!(at_first.breakdown.tools, tools, "402 / 4, halves up");
    assert_eq!(at_first.tokens, 101 + tools + 4);
    let view = shown(&play, &first.exchange).await;
    let parts = view.breakdown;
    assert_eq!(view.total, 1_850);
    assert_eq!(parts.system, 101);
    assert_eq!(parts.tools, tools);
    assert_eq!(parts.messages, 1_850 - 101 - tools);
    history.push(message("assistant", content));
    history.push(message("user", json!("12345678")));
    let next = play.exchange(&ask(&history), &anthropic_reply("m2", MODEL, json!([]))).await;
    let parts = next.exchange.estimate.as_ref().unwrap().breakdown;
    assert_eq!(parts.system, 101);
    assert_eq!(parts.tools, tools);
    assert_eq!(parts.messages, 1_852 - 101 - tools);
}

/// A client leaves in the middle: the input that the stream reported at its start is the anchor, the received part of
/// the reply counts, and the error is shown.
#[tokio::test]
async fn cancelled_stream_that_reported_its_input_is_anchor() {
    const MODEL: &str = "claude-sonnet-4-5";
    let mut play = play(Preset::Dexto, &[]).await;
    let mut history = vec![message("user", json!("How deep is she?"))];
    let mut request = anthropic_request(MODEL, &history);
    request["stream"] = json!(true);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    let begins = json!({"type": "message_start", "message": {"id": "m1", "type": "message",
        "role": "assistant", "model": MODEL, "content": [],
        "usage": {"input_tokens": 5_000, "output_tokens": 1}}});
    call.chunk(format!("event: message_start\ndata: {begins}\n\n")).await;
    let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    call.chunk(format!("event: content_block_start\ndata: {block}\n\n")).await;
    let text = "She is three metres and a half deep, and";
    let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
    call.chunk(format!("event: content_block_delta\ndata: {delta}\n\n")).await;
    client.until("a half deep").await;
    client.reset();
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::ClientLeft);
    assert_eq!(exchange.actual(), Some(5_000));
    assert!(exchange.error().is_some());
    assert!(exchange.usage.lower_bound);
    let view = shown(&play, &exchange).await;
    let basis = view.basis.unwrap();
    assert_eq!(basis.input, 5_000);
    assert!(basis.cut);
    assert_eq!(basis.gone, 0);
    assert!((8..16).contains(&basis.output), "{view}");
    assert!(view.to_string().contains("(estimated, the reply was cut)"), "{view}");
    drop(call);
    history.push(message("assistant", json!([{"type": "text", "text": text}])));
    history.push(message("user", json!("12345678")));
    let next = play
        .exchange(&anthropic_request(MODEL, &history), &anthropic_reply("m2", MODEL, json!([])))
        .await;
    assert_eq!(decided(&next.exchange), (view.total + 2, 2));
    assert_eq!(next.exchange.estimate.as_ref().unwrap().method, EstimateMethod::Anchored);
}
