//! Every Chat Completions rule, by host: a request that breaks it is refused, a request that keeps it is accepted.

#![allow(clippy::semicolon_if_nothing_returned, reason = "edits of a request read as tables")]

use serde_json::{Value, json};

use crate::strict::tests::{BodyEdit, Client, filler_text, push};
use crate::strict::{
    DropReason, Loss, MissReason, Place, ReasoningEcho, Rule, Rules, ScriptedPart, ScriptedReply,
    prompt,
};

fn client() -> Client {
    with(Rules::default())
}

fn with(rules: Rules) -> Client {
    Client::new("/v1/chat/completions", &[("authorization", "Bearer key")], rules)
}

fn first(model: &str) -> Value {
    let parameters =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!({
        "model": model, "tools": [tool("read"), tool("list")],
        "messages": [
            {"role": "system", "content": "You are a coding agent."},
            {"role": "user", "content": "Why does the build fail?"},
        ],
    })
}

fn grow(body: &mut Value, answer: &Value) {
    let message = &answer["choices"][0]["message"];
    push(body, "messages", message.clone());
    for call in prompt::items(&message["tool_calls"]) {
        push(
            body,
            "messages",
            json!({"role": "tool", "tool_call_id": call["id"], "content": "nothing"}),
        );
    }
}

fn thinking_then_two_calls() -> ScriptedReply {
    let thinking = ScriptedReply::thinking("Look at both.", 70).with_text("I will look.");
    thinking.with_call("read", json!({"path": "a"})).with_call("list", json!({"path": "b"}))
}

fn open_loop(client: &Client, model: &str) -> Value {
    let mut body = first(model);
    let answer = client.reply_to(&body, thinking_then_two_calls());
    grow(&mut body, &answer);
    body
}

#[test]
fn well_formed_loop_is_accepted() {
    for model in [
        "gpt-5.5",
        "deepseek-v3.2",
        "kimi-k2-thinking",
        "glm-5.2",
        "mistral-large",
        "grok-4.5",
        "anthropic/claude-sonnet-4.5",
        "gemini-3-pro",
        "never-seen",
    ] {
        let client = client();
        assert_eq!(client.accept(&open_loop(&client, model)).losses, [], "{model}");
    }
}

#[test]
fn malformed_requests_are_refused() {
    let table: &[(Rule, &str, BodyEdit)] = &[
        (Rule::UnknownField, "Unknown parameter: 'thinking'", |b| b["thinking"] = json!({})),
        (Rule::FieldRequired, "model", |b| b["model"] = json!("")),
        (Rule::FieldRequired, "empty array", |b| b["messages"] = json!([])),
        (Rule::BadValue, "'stream_options'", |b| {
            b["stream_options"] = json!({"include_usage": true})
        }),
        (Rule::Role, "'model'", |b| b["messages"][1]["role"] = json!("model")),
        (Rule::UnknownField, "messages.3: property 'is_error' is unsupported", |b| {
            b["messages"][3]["is_error"] = json!(true);
        }),
        (Rule::EmptyContent, "expected a string, got null", |b| {
            b["messages"][1]["content"] = json!(null)
        }),
        (Rule::EmptyContent, "empty array", |b| b["messages"][1]["content"] = json!([])),
        (Rule::BadValue, "tool_calls': empty array", |b| {
            b["messages"][2]["tool_calls"] = json!([])
        }),
        (Rule::FieldRequired, "messages[2].tool_calls[0].id", |b| {
            b["messages"][2]["tool_calls"][0]["id"] = json!("");
        }),
        (Rule::ToolIdForm, "maximum length 40, but got a string with length 41", |b| {
            b["messages"][2]["tool_calls"][0]["id"] = json!("x".repeat(41));
        }),
        (Rule::BadValue, "function.arguments", |b| {
            b["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!({"path": "a"});
        }),
        (Rule::ToolIdsUnique, "ids must be unique", |b| {
            b["messages"][2]["tool_calls"][0]["id"] =
                b["messages"][2]["tool_calls"][1]["id"].clone();
        }),
    ];
    let mut client = client();
    let body = open_loop(&client, "gpt-5.5");
    client.accept(&body);
    for (rule, message, edit) in table {
        let mut broken = body.clone();
        edit(&mut broken);
        client.refuse(&broken, *rule, message);
    }
    let mut silent = body.clone();
    silent["messages"][2]["content"] = json!(null);
    client.accept(&silent);
    client.headers.clear();
    client.refuse(&body, Rule::Authentication, "You didn't provide an API key");
}

#[test]
fn unpaired_calls_are_refused() {
    let client = client();
    let body = open_loop(&client, "gpt-5.5");
    let edit = |edit: fn(&mut Vec<Value>)| {
        let mut broken = body.clone();
        edit(broken["messages"].as_array_mut().unwrap());
        broken
    };
    let open = "The following tool_call_ids did not have response messages: call_";
    client.refuse(&edit(|all| drop(all.pop())), Rule::CallUnanswered, open);
    let between = edit(|all| all.insert(4, json!({"role": "user", "content": "!"})));
    client.refuse(&between, Rule::CallUnanswered, open);
    let stray =
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'";
    client.refuse(&edit(|all| drop(all.remove(2))), Rule::ResultWithoutCall, stray);
    client.refuse(&edit(|all| all.push(all[4].clone())), Rule::ResultWithoutCall, stray);
    client.accept(&edit(|all| all.swap(3, 4)));
}

#[test]
fn reasoning_is_required_by_some() {
    for (model, blank, message) in [
        (
            "deepseek-v3.2",
            true,
            "The reasoning_content in the thinking mode must be passed back to the API.",
        ),
        (
            "kimi-k2.6",
            false,
            "reasoning_content is missing in assistant tool call message at index 2",
        ),
    ] {
        let client = client();
        let mut body = open_loop(&client, model);
        assert_eq!(body["messages"][2]["reasoning_content"], "Look at both.");
        push(&mut body, "messages", json!({"role": "assistant", "content": "Hm."}));
        push(&mut body, "messages", json!({"role": "user", "content": "And?"}));
        let place = Place::Message { message: 2, block: 0 };
        let absent = Loss::ReasoningAbsent { place, issued: 1, present: 0, readable: true };
        let mut lost = body.clone();
        lost["messages"][2].as_object_mut().unwrap().remove("reasoning_content");
        client.refuse(&lost, Rule::ReasoningMissing, message);
        lost["thinking"] = json!({"type": "disabled"});
        client.accept(&lost);
        lost = body.clone();
        lost["messages"][2]["reasoning_content"] = json!(if blank { "" } else { " " });
        assert_eq!(client.accept(&lost).losses, [absent]);
        lost["messages"][2]["reasoning_content"] = json!("Look at none.");
        assert_eq!(client.accept(&lost).losses, [Loss::ReasoningChanged { place }]);
    }
    let client = client();
    let mut kimi = open_loop(&client, "kimi-k2.6");
    kimi["messages"][2]["reasoning_content"] = json!("");
    client.refuse(&kimi, Rule::ReasoningMissing, "at index 2");
}

/// The model says the same again, after other reasoning: the first reply still has its own.
#[test]
fn replies_with_same_text_are_told_apart_by_their_reasoning() {
    let client = client();
    let mut body = open_loop(&client, "kimi-k2.6");
    push(&mut body, "messages", json!({"role": "user", "content": "And?"}));
    let says = |thought: &str| ScriptedReply::thinking(thought, 70).with_text("It is the parser.");
    let first = client.reply_to(&body, says("The first."));
    client.reply_to(&body, says("The second."));
    push(&mut body, "messages", first["choices"][0]["message"].clone());
    push(&mut body, "messages", json!({"role": "user", "content": "So?"}));
    assert_eq!(client.accept(&body).losses, []);
    let newest = body["messages"].as_array().unwrap().len() - 2;
    body["messages"][newest]["reasoning_content"] = json!("A third.");
    let changed = Loss::ReasoningChanged { place: Place::Message { message: newest, block: 0 } };
    assert_eq!(client.accept(&body).losses, [changed]);
}

#[test]
fn reasoning_is_refused_by_others() {
    for model in ["gpt-5.5", "mistral-large", "deepseek-r1", "never-seen"] {
        let client = client();
        let mut body = open_loop(&client, model);
        assert_eq!(body["messages"][2].get("reasoning_content"), None, "nor is it sent");
        body["messages"][2]["reasoning_content"] = json!("Look.");
        client.refuse(
            &body,
            Rule::ReasoningRefused,
            "messages.2: property 'reasoning_content' is unsupported",
        );
    }
    let open = with(Rules { reasoning_content: Some(ReasoningEcho::Optional), ..Rules::default() });
    let mut body = open_loop(&open, "never-seen");
    body["messages"][2].as_object_mut().unwrap().remove("reasoning_content");
    assert!(matches!(open.accept(&body).losses[..], [Loss::ReasoningAbsent { .. }]));
    push(&mut body, "messages", json!({"role": "user", "content": "And?"}));
    assert_eq!(open.accept(&body).losses, [], "missed inside the tool loop only");
}

#[test]
fn signed_details_come_back_whole() {
    let client = client();
    let body = open_loop(&client, "anthropic/claude-sonnet-4.5");
    let raw = "Invalid `signature` in `thinking` block";
    for field in ["signature", "text"] {
        let mut broken = body.clone();
        broken["messages"][2]["reasoning_details"][0][field] = json!("other");
        client.refuse_raw(&broken, Rule::SignatureInvalid, raw);
        broken["messages"][2]["reasoning_details"][0].as_object_mut().unwrap().remove("signature");
        client.refuse_raw(&broken, Rule::SignatureInvalid, raw);
    }
    let twice = ScriptedReply::thinking("One. ", 5)
        .with_part(ScriptedPart::Thinking { text: "Two.".into(), tokens: 5 });
    let mut two = first("anthropic/claude-sonnet-4.5");
    let answer = client.reply_to(&two, twice.with_call("read", json!({"path": "a"})));
    grow(&mut two, &answer);
    assert_eq!(client.accept(&two).losses, []);
    let edits: [fn(&mut Vec<Value>); 2] = [|all| all.reverse(), |all| drop(all.pop())];
    for edit in edits {
        let mut broken = two.clone();
        edit(broken["messages"][2]["reasoning_details"].as_array_mut().unwrap());
        client.refuse_raw(&broken, Rule::SignatureInvalid, raw);
    }
    let mut other = body.clone();
    other["model"] = json!("anthropic/claude-opus-4.5");
    let place = Place::Message { message: 2, block: 0 };
    assert_eq!(
        client.accept(&other).losses,
        [Loss::ReasoningDropped { place, reason: DropReason::Model }]
    );
}

#[test]
fn gemini_in_chat_wants_signatures() {
    let client = client();
    let body = open_loop(&client, "gemini-3-pro");
    let call = |body: &Value, n: usize| body["messages"][2]["tool_calls"][n].clone();
    assert!(call(&body, 0)["extra_content"]["google"]["thought_signature"].is_string());
    assert!(call(&body, 1)["extra_content"].is_null(), "only the first call of a step has one");
    let mut lost = body.clone();
    lost["messages"][2]["tool_calls"][0].as_object_mut().unwrap().remove("extra_content");
    client.refuse(
        &lost,
        Rule::SignatureMissing,
        "Function call is missing a thought_signature in functionCall parts.",
    );
    let signed = |value: &str| {
        let mut body = body.clone();
        body["messages"][2]["tool_calls"][0]["extra_content"]["google"]["thought_signature"] =
            json!(value);
        body
    };
    client.refuse(&signed("AAAA"), Rule::SignatureInvalid, "Thought signature is not valid");
    let place = Place::Message { message: 2, block: 0 };
    let skipped = client.accept(&signed("skip_thought_signature_validator"));
    assert_eq!(skipped.losses, [Loss::SignatureAbsent { place }]);
    push(&mut lost, "messages", json!({"role": "user", "content": "Never mind."}));
    client.accept(&lost);
}

#[test]
fn overflow_has_error_of_its_host() {
    for (model, message) in [
        ("gpt-5.5", "Your input exceeds the context window of this model."),
        (
            "gpt-4.1",
            "This model's maximum context length is 1000 tokens. However, your messages resulted in 1",
        ),
        ("deepseek-v4", "However, you requested 1"),
        ("kimi-k3", "Your request exceeded model token limit: 1000 (requested: 1"),
        (
            "anthropic/claude-opus-5",
            "This endpoint's maximum context length is 1000 tokens. However, you requested about 1",
        ),
        ("grok-4.5", "This model's maximum prompt length is 1000 but the request contains 1"),
        ("mistral-large", "too large for model with 1000 maximum context length"),
        (
            "qwen3",
            "This model's maximum context length is 1000 tokens. However, you requested 0 output tokens and your prompt contains 1",
        ),
        ("gemini-3-pro", "exceeds the maximum number of tokens allowed (1000)."),
    ] {
        let client = with(Rules { window: Some(1000), ..Rules::default() });
        let mut body = first(model);
        client.accept(&body);
        body["messages"][1]["content"] = json!(filler_text("long", 1100));
        client.refuse(&body, Rule::Overflow, message);
    }
}

#[test]
fn reply_costs_same_as_input() {
    for model in ["deepseek-v4", "glm-5.2", "anthropic/claude-opus-5", "never-seen"] {
        let client = client();
        let mut body = first(model);
        let answer = client.reply_to(&body, thinking_then_two_calls());
        let usage = &answer["usage"];
        grow(&mut body, &answer);
        let results = 2 * prompt::measure_text("tool", "nothing").tokens;
        let total = usage["total_tokens"].as_u64().unwrap();
        assert_eq!(client.accept(&body).input_tokens, total + results, "{model}");
    }
    let hidden = client().reply_to(&first("gpt-5.5"), thinking_then_two_calls());
    assert_eq!(hidden["usage"]["completion_tokens_details"]["reasoning_tokens"], 70);
}

#[test]
fn output_ends_at_output_limit() {
    let client = client();
    let mut body = first("gpt-5.5");
    body["max_completion_tokens"] = json!(20);
    let reply = ScriptedReply::default()
        .with_part(ScriptedPart::HiddenThinking { tokens: 15 })
        .with_text(&filler_text("much", 50));
    let answer = client.reply_to(&body, reply);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 15);
}

#[test]
fn prefixes_cached_without_markers() {
    let miss = |edit: BodyEdit| {
        let client = client();
        let mut body = first("gpt-5.5");
        body["messages"][0]["content"] = json!(filler_text("system", 2000));
        let answer = client.reply_to(&body, thinking_then_two_calls());
        grow(&mut body, &answer);
        edit(&mut body);
        let accepted = client.accept(&body);
        let missed = accepted.losses.iter().find_map(|loss| match loss {
            Loss::CacheMissed { reason, .. } => Some(*reason),
            _ => None,
        });
        (accepted.cache_usage.read, missed)
    };
    let (read, missed) = miss(|_| {});
    assert!(read > 1900, "{read} {missed:?}");
    assert!(read.is_multiple_of(128), "{read} {missed:?}");
    assert!(missed.is_none(), "{read} {missed:?}");
    let place = |message| MissReason::Changed(Place::Message { message, block: 0 });
    assert_eq!(miss(|b| b["messages"][0]["content"] = json!("Short.")), (0, Some(place(0))));
    assert_eq!(miss(|b| b["messages"][1]["content"] = json!("Why?")).1, Some(place(1)));
    assert_eq!(
        miss(|b| b["tools"][1]["function"]["name"] = json!("ls")).1,
        Some(MissReason::Changed(Place::Tool(1)))
    );
    assert_eq!(miss(|b| b["prompt_cache_key"] = json!("k")).1, Some(MissReason::OtherCache));
    assert_eq!(miss(|b| b["messages"][3]["content"] = json!("pruned")).1, None, "it is new");
}

#[test]
fn generated_is_never_refused() {
    for model in
        ["gpt-5.5", "deepseek-v4", "kimi-k3", "glm-5.3", "anthropic/claude-opus-5", "gemini-3-pro"]
    {
        let client = client();
        let mut body = first(model);
        for turn in 0..30 {
            let answer = client.provider.respond(&client.request(&body));
            assert_eq!(answer.status, 200, "{model}, {turn}: {}", answer.body);
            grow(&mut body, &answer.body);
            if answer.body["choices"][0]["finish_reason"] == "stop" {
                push(
                    &mut body,
                    "messages",
                    json!({"role": "user", "content": format!("More, {turn}")}),
                );
            }
        }
        let log = client.provider.take_log();
        let losses: Vec<Loss> =
            log.iter().flat_map(|entry| entry.verdict.losses().to_vec()).collect();
        assert_eq!(losses, [], "{model}");
    }
}
