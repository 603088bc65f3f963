use serde_json::{Value, json};

use super::repeated_calls;
use crate::dialect::{Dialect, read};

/// A turn of an agent: the tool, its arguments and its result.
type Turn = (&'static str, Value, &'static str);

const DIALECTS: [Dialect; 4] =
    [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];

/// A request with these turns; each call has its own id.
fn request(dialect: Dialect, turns: &[Turn]) -> Value {
    let mut messages = match dialect {
        Dialect::Gemini => vec![json!({"role": "user", "parts": [{"text": "Go."}]})],
        _ => vec![json!({"role": "user", "content": "Go."})],
    };
    for (at, (name, arguments, result)) in turns.iter().enumerate() {
        let id = format!("call_{at}");
        messages.extend(match dialect {
            Dialect::Anthropic => vec![
                json!({"role": "assistant", "content": [{"type": "text", "text": format!("Try {at}")},
                    {"type": "tool_use", "id": id, "name": name, "input": arguments}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}),
            ],
            Dialect::OpenaiChat => vec![
                json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": result}),
            ],
            Dialect::OpenaiResponses => vec![
                json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string()}),
                json!({"type": "function_call_output", "call_id": id, "output": result}),
            ],
            Dialect::Gemini => vec![
                json!({"role": "model", "parts": [{"functionCall": {"name": name, "args": arguments}}]}),
                json!({"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"output": result}}}]}),
            ],
        });
    }
    match dialect {
        Dialect::Anthropic => {
            json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages})
        }
        Dialect::OpenaiChat => json!({"model": "gpt-5", "messages": messages}),
        Dialect::OpenaiResponses => json!({"model": "gpt-5", "input": messages}),
        Dialect::Gemini => json!({"contents": messages}),
    }
}

fn seen(dialect: Dialect, request: &Value) -> Option<u32> {
    let target = match dialect {
        Dialect::Anthropic => "/v1/messages",
        Dialect::OpenaiChat => "/v1/chat/completions",
        Dialect::OpenaiResponses => "/v1/responses",
        Dialect::Gemini => "/v1beta/models/gemini-3-pro:generateContent",
    };
    let body = request.to_string();
    repeated_calls(&read(dialect, target, body.as_bytes()), body.as_bytes())
}

fn same(times: usize) -> Vec<Turn> {
    vec![("bash", json!({"command": "make", "n": 1}), "error: no rule"); times]
}

/// Other work: no two turns are alike.
fn others(times: usize) -> Vec<Turn> {
    (0..times).map(|at| ("read", json!({"line": at}), "fine")).collect()
}

#[test]
fn four_equal_calls_with_equal_results_are_loop_in_every_dialect() {
    for dialect in DIALECTS {
        let of = |turns: &[Turn]| seen(dialect, &request(dialect, turns));
        assert_eq!(of(&same(3)), None, "{dialect:?}");
        assert_eq!(of(&same(4)), Some(4), "{dialect:?}");
        assert_eq!(of(&same(14)), Some(10), "{dialect:?}: ten turns are looked at");
        assert_eq!(of(&[same(3), others(6), same(1)].concat()), Some(4), "{dialect:?}: within ten");
        assert_eq!(of(&[same(3), others(7), same(1)].concat()), None, "{dialect:?}: within eleven");
        assert_eq!(of(&[same(4), others(1)].concat()), None, "{dialect:?}: it has gone on");
        assert_eq!(of(&[]), None, "{dialect:?}");
        let arguments = (0..5).map(|n| ("bash", json!({"n": n}), "no"));
        assert_eq!(of(&arguments.collect::<Vec<_>>()), None, "{dialect:?}: other arguments");
        let results = ["a", "b", "c", "d", "e"].map(|result| ("bash", json!({}), result));
        assert_eq!(of(&results), None, "{dialect:?}: other results");
        let tools = ["a", "b", "c", "d", "e"].map(|tool| (tool, json!({}), "no"));
        assert_eq!(of(&tools), None, "{dialect:?}: other tools");
    }
}

/// A model may write the same arguments in another order and notation.
#[test]
fn arguments_are_compared_by_meaning() {
    let mut body = request(Dialect::OpenaiChat, &same(4));
    let call = &mut body["messages"][1]["tool_calls"][0]["function"];
    call["arguments"] = json!("{ \"n\": 1.0,\n\"command\":\"make\"}");
    assert_eq!(seen(Dialect::OpenaiChat, &body), Some(4));
}

/// Several calls of one reply count once, and each is compared with its own result.
#[test]
fn calls_of_one_reply_count_once() {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for at in 0..6 {
        calls
            .push(json!({"type": "tool_use", "id": format!("t{at}"), "name": "bash", "input": {}}));
        results.insert(
            0,
            json!({"type": "tool_result", "tool_use_id": format!("t{at}"), "content": "no"}),
        );
    }
    let turn = [
        json!({"role": "assistant", "content": calls}),
        json!({"role": "user", "content": results}),
    ];
    let body = |turns: usize| json!({"model": "m", "max_tokens": 9, "messages": vec![turn.clone(); turns].concat()});
    assert_eq!(seen(Dialect::Anthropic, &body(1)), None);
    assert_eq!(seen(Dialect::Anthropic, &body(4)), Some(4));
}

/// The text is the same, but the picture is not: the screen has changed.
#[test]
fn picture_is_part_of_its_result() {
    let body = |picture: fn(usize) -> String| {
        let mut messages = vec![json!({"role": "user", "content": "Go."})];
        for at in 0..4 {
            let id = format!("t{at}");
            messages.push(json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "screen", "input": {}}]}));
            messages.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": [
                {"type": "text", "text": "Here."},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture(at)}}]}]}));
        }
        json!({"model": "m", "max_tokens": 9, "messages": messages})
    };
    assert_eq!(seen(Dialect::Anthropic, &body(|_| "AAAA".into())), Some(4));
    assert_eq!(seen(Dialect::Anthropic, &body(|at| format!("AAA{at}"))), None);
}

/// What the provider holds cannot be compared.
#[test]
fn held_history_shows_no_loop() {
    let mut body = request(Dialect::OpenaiResponses, &same(5));
    body["previous_response_id"] = json!("resp_1");
    assert_eq!(seen(Dialect::OpenaiResponses, &body), None);
}
