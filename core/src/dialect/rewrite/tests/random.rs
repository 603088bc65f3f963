//! Random conversations, as clients of each dialect write them, and the invariants of rewriting for all of them.
//!
//! Each conversation is written in four dialects, with every form of content, reasoning and white space that clients
//! use. Every part of it can be cut, put back and removed.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::invariants::{self, InvariantCounts};
use crate::dialect::{Dialect, PartKind, read};

/// A question, the model's reasoning, text and calls, and the results of the tools.
#[derive(Clone, Debug)]
struct Step {
    question: String,
    thoughts: usize,
    /// Which form the reasoning has.
    form: usize,
    text: Option<String>,
    results: Vec<Answer>,
}

#[derive(Clone, Debug)]
struct Answer {
    pieces: Vec<Piece>,
    is_error: bool,
    /// One string instead of a list of blocks, if all of them are text.
    is_string: bool,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String, bool),
    Picture(bool),
}

impl Step {
    /// A model that reasons also writes text or calls a tool.
    fn text(&self) -> Option<&str> {
        match &self.text {
            None if self.results.is_empty() => Some("so"),
            text => text.as_deref(),
        }
    }
}

impl Answer {
    /// One string, or a list of blocks.
    fn content(&self, block_type: &str, picture: &Value, marker: &str) -> Value {
        let is_text = self.pieces.iter().all(|piece| matches!(piece, Piece::Text(..)));
        if self.is_string && is_text {
            return json!(self.text());
        }
        let blocks = self.pieces.iter().map(|piece| {
            let (mut block, is_marked) = match piece {
                Piece::Text(text, is_marked) => {
                    (json!({ "type": block_type, "text": text }), *is_marked)
                }
                Piece::Picture(is_marked) => (picture.clone(), *is_marked),
            };
            if is_marked {
                block[marker] = json!({ "type": "ephemeral" });
            }
            block
        });
        blocks.collect()
    }

    fn text(&self) -> String {
        let texts = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text, _) => text.as_str(),
            Piece::Picture(_) => "",
        });
        texts.collect()
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "\\PC{1,12}", Just("\"quoted\" \\ line\n\u{1f409}".to_owned())]
        .prop_map(|text| format!("w{text}"))
}

fn step() -> impl Strategy<Value = Step> {
    let piece = prop_oneof![
        3 => (text(), any::<bool>()).prop_map(|(text, marked)| Piece::Text(text, marked)),
        1 => any::<bool>().prop_map(Piece::Picture),
    ];
    let answer = (prop::collection::vec(piece, 0..5), any::<bool>(), any::<bool>())
        .prop_map(|(pieces, is_error, is_string)| Answer { pieces, is_error, is_string });
    (text(), 0..3usize, 0..4usize, prop::option::of(text()), prop::collection::vec(answer, 0..3))
        .prop_map(|(question, thoughts, form, text, results)| Step {
            question,
            thoughts,
            form,
            text,
            results,
        })
}

fn anthropic(steps: &[Step]) -> Value {
    let mut messages = Vec::new();
    for (turn, step) in steps.iter().enumerate() {
        messages.push(json!({ "role": "user", "content": step.question }));
        let mut blocks: Vec<Value> = (0..step.thoughts)
            .map(|n| match step.form % 2 {
                0 => {
                    json!({ "type": "thinking", "thinking": format!("t{n}"), "signature": "c2ln" })
                }
                _ => json!({ "type": "redacted_thinking", "data": format!("ZGF0{n}") }),
            })
            .collect();
        blocks.extend(step.text().map(|text| json!({ "type": "text", "text": text })));
        if step.form > 1 {
            let turned = usize::from(blocks.len() > 1);
            blocks.rotate_left(turned); // reasoning between the other blocks
        }
        let mut results = Vec::new();
        for (n, answer) in step.results.iter().enumerate() {
            let id = format!("toolu_{turn}_{n}");
            blocks.push(json!({ "type": "tool_use", "id": id, "name": "f", "input": { "n": n } }));
            let source = json!({ "type": "base64", "media_type": "image/png", "data": "aQ==" });
            let picture = json!({ "type": "image", "source": source });
            let content = answer.content("text", &picture, "cache_control");
            results.push(json!({ "type": "tool_result", "tool_use_id": id,
                "is_error": answer.is_error, "content": content }));
        }
        let alone = blocks.len() == 1 && blocks[0]["type"] == "text";
        let content = if alone { blocks[0]["text"].clone() } else { blocks.into() };
        messages.push(json!({ "role": "assistant", "content": content }));
        if !results.is_empty() {
            messages.push(json!({ "role": "user", "content": results }));
        }
    }
    json!({ "model": "claude", "max_tokens": 1.0e3, "messages": messages, "system": "s" })
}

fn chat(steps: &[Step]) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": "s" })];
    for (turn, step) in steps.iter().enumerate() {
        messages.push(json!({ "role": "user", "content": step.question }));
        let mut message = json!({ "role": "assistant", "content": step.text() });
        match step.form {
            _ if step.thoughts == 0 => {}
            0 => message["reasoning_content"] = json!("t"),
            1 => message["reasoning_details"] = json!([{ "type": "reasoning.text", "text": "t" }]),
            2 => {
                message["reasoning_content"] = json!("t");
                message["reasoning"] = json!("t");
            }
            _ => {
                let mut content: Vec<Value> = (0..step.thoughts)
                    .map(|_| json!({ "type": "thinking", "thinking": [{ "type": "text", "text": "t" }] }))
                    .collect();
                content.extend(step.text().map(|text| json!({ "type": "text", "text": text })));
                message["content"] = content.into();
            }
        }
        let calls: Vec<Value> = (0..step.results.len())
            .map(|n| json!({ "id": format!("call_{turn}_{n}"), "type": "function", "function": { "name": "f", "arguments": "{}" } }))
            .collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
        for (n, answer) in step.results.iter().enumerate() {
            let picture = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,aQ==" } });
            let content = answer.content("text", &picture, "prompt_cache_breakpoint");
            messages.push(json!({ "role": "tool", "tool_call_id": format!("call_{turn}_{n}"), "content": content }));
        }
    }
    json!({ "model": "m", "messages": messages, "stream": true })
}

fn responses(steps: &[Step], with_ids: bool, store: bool) -> Value {
    let mut input = Vec::new();
    let mut push = |mut item: Value, id: String| {
        if with_ids {
            item["id"] = id.into();
        }
        input.push(item);
    };
    for (turn, step) in steps.iter().enumerate() {
        push(json!({ "role": "user", "content": step.question }), format!("msg_u{turn}"));
        for n in 0..step.thoughts {
            let item = json!({ "type": "reasoning", "summary": [], "encrypted_content": format!("c{turn}{n}") });
            push(item, format!("rs_{turn}_{n}"));
        }
        if let Some(text) = step.text() {
            let content = json!([{ "type": "output_text", "text": text }]);
            push(
                json!({ "type": "message", "role": "assistant", "content": content }),
                format!("msg_{turn}"),
            );
        }
        for n in 0..step.results.len() {
            push(
                json!({ "type": "function_call", "call_id": format!("call_{turn}_{n}"), "name": "f", "arguments": "{}" }),
                format!("fc_{turn}_{n}"),
            );
        }
        for (n, answer) in step.results.iter().enumerate() {
            let picture =
                json!({ "type": "input_image", "image_url": "data:image/png;base64,aQ==" });
            let output = answer.content("input_text", &picture, "prompt_cache_breakpoint");
            let kind = ["function_call_output", "custom_tool_call_output"][step.form % 2];
            push(
                json!({ "type": kind, "call_id": format!("call_{turn}_{n}"), "output": output }),
                format!("fco_{turn}_{n}"),
            );
        }
    }
    json!({ "model": "gpt", "input": input, "store": store, "instructions": "s" })
}

fn gemini(steps: &[Step], snake: bool) -> Value {
    let name = |camel: &'static str, other: &'static str| if snake { other } else { camel };
    let mut contents = Vec::new();
    for step in steps {
        contents.push(json!({ "role": "user", "parts": [{ "text": step.question }] }));
        let mut parts: Vec<Value> = (0..step.thoughts)
            .map(|n| match step.form % 2 {
                0 => json!({ "text": format!("t{n}"), "thought": true }),
                _ => json!({ "text": "", name("thoughtSignature", "thought_signature"): "c2ln" }),
            })
            .collect();
        // The client may send the text in the pieces in which it was streamed.
        parts.extend(step.text().into_iter().flat_map(|text| {
            let (one, two) = text.split_at(text.len().min(1));
            [one, two].map(|piece| json!({ "text": piece }))
        }));
        let mut results = Vec::new();
        for (n, answer) in step.results.iter().enumerate() {
            let mut call = json!({ name("functionCall", "function_call"): { "name": format!("f{n}"), "args": {} } });
            if step.form > 1 {
                call[name("thoughtSignature", "thought_signature")] = json!("c2ln");
            }
            parts.push(call);
            let member = if answer.is_error { "error" } else { "output" };
            let mut response =
                json!({ "name": format!("f{n}"), "response": { member: answer.text() } });
            let pictures: Vec<Value> = answer.pieces.iter().filter_map(|piece| match piece {
                Piece::Text(..) => None,
                Piece::Picture(_) => Some(json!({ name("inlineData", "inline_data"): { name("mimeType", "mime_type"): "image/png", "data": "aQ==" } })),
            }).collect();
            if !pictures.is_empty() {
                response["parts"] = pictures.into();
            }
            results.push(json!({ name("functionResponse", "function_response"): response }));
        }
        contents.push(json!({ "role": "model", "parts": parts }));
        if !results.is_empty() {
            contents.push(json!({ "role": "user", "parts": results }));
        }
    }
    json!({ "contents": contents, name("systemInstruction", "system_instruction"): { "parts": [{ "text": "s" }] } })
}

/// How a client writes JSON.
#[derive(Clone, Copy, Debug)]
struct JsonStyle {
    space: &'static str,
    /// By how many places the members are rotated.
    turned: usize,
    /// Whether characters are escaped that need no escape.
    escapes: bool,
}

fn json_style() -> impl Strategy<Value = JsonStyle> {
    let space = prop::sample::select(vec!["", "", " ", "\n\t", "\r\n  "]);
    (space, 0..4usize, any::<bool>()).prop_map(|(space, turned, escapes)| JsonStyle {
        space,
        turned,
        escapes,
    })
}

impl JsonStyle {
    fn write(self, value: &Value, out: &mut String) {
        let space = self.space;
        match value {
            Value::Array(items) => {
                out.extend(["[", space]);
                for (at, item) in items.iter().enumerate() {
                    out.extend(if at > 0 { [space, ",", space] } else { [""; 3] });
                    self.write(item, out);
                }
                out.extend([space, "]"]);
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                let turned = self.turned % members.len().max(1);
                members.rotate_left(turned);
                out.extend(["{", space]);
                for (at, (name, value)) in members.into_iter().enumerate() {
                    out.extend(if at > 0 { [space, ",", space] } else { [""; 3] });
                    out.extend([&Value::from(name.as_str()).to_string(), space, ":", space]);
                    self.write(value, out);
                }
                out.extend([space, "}"]);
            }
            Value::String(_) if self.escapes => {
                out.push_str(&value.to_string().replace('e', "\\u0065").replace('/', "\\/"));
            }
            _ => out.push_str(&value.to_string()),
        }
    }

    fn written(self, value: &Value) -> String {
        let mut out = self.space.to_owned();
        self.write(value, &mut out);
        out + self.space
    }
}

/// Everything in a conversation can be changed, and the invariants hold after every change.
fn check(dialect: Dialect, steps: &[Step], body: &str) {
    let conversation = read(dialect, "/", body.as_bytes());
    let of = |kind: PartKind| conversation.parts().filter(|part| part.kind == kind).count();
    let results: usize = steps.iter().map(|step| step.results.len()).sum();
    assert_eq!(of(PartKind::ToolResult), results, "{body}");
    let thoughts = of(PartKind::Reasoning);
    let expected: usize = steps.iter().map(|step| step.thoughts).sum();
    assert!(
        thoughts == expected
            || dialect == Dialect::OpenaiChat && thoughts.min(1) == expected.min(1)
    );
    let InvariantCounts { cut, removed, .. } = invariants::together(dialect, "/", body.as_bytes());
    assert_eq!(cut, results, "{body}");
    assert_eq!(removed, thoughts, "{body}");
    let InvariantCounts { cut, put_back, removed, .. } =
        invariants::one_by_one(dialect, "/", body.as_bytes());
    assert_eq!(cut, 2 * results);
    let unthinking = steps.iter().filter(|step| step.thoughts == 0).count();
    let answers = if dialect == Dialect::OpenaiChat { unthinking } else { steps.len() };
    assert!(put_back >= answers, "{body}");
    assert!(removed >= steps.len() - unthinking, "{body}");
}

fn bodies(steps: &[Step], json_style: JsonStyle) -> [(Dialect, String); 4] {
    let flag = json_style.turned.is_multiple_of(2);
    [
        (Dialect::Anthropic, json_style.written(&anthropic(steps))),
        (Dialect::OpenaiChat, json_style.written(&chat(steps))),
        (Dialect::OpenaiResponses, json_style.written(&responses(steps, flag, json_style.escapes))),
        (Dialect::Gemini, json_style.written(&gemini(steps, flag))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn invariants_always_hold(steps in prop::collection::vec(step(), 1..4), json_style in json_style()) {
        for (dialect, body) in bodies(&steps, json_style) {
            check(dialect, &steps, &body);
        }
    }

    /// Invariant 8, for bodies with changed and missing bytes.
    #[test]
    fn invariant_8_bent_bodies_are_rewritten_by_rules_or_not_at_all(
        steps in prop::collection::vec(step(), 1..3),
        json_style in json_style(),
        bends in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(br#""{}[],:\ne0"#.to_vec())), 1..4),
        cut: Option<prop::sample::Index>,
    ) {
        for (_, body) in bodies(&steps, json_style) {
            let mut bytes = body.into_bytes();
            for (at, with) in &bends {
                let at = at.index(bytes.len());
                bytes[at] = *with;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            invariants::fuzz(&bytes);
        }
    }
}
