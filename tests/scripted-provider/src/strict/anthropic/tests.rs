//! Every Anthropic rule: a request that breaks it is refused with the real error, a request that keeps it is accepted.

#![allow(clippy::semicolon_if_nothing_returned, reason = "edits of a request read as tables")]

use serde_json::{Value, json};

use crate::strict::tests::{BodyEdit, Client, filler_text, push};
use crate::strict::{
    DropReason, Loss, MissReason, MissedPrefix, Operation, Place, RequestVerdict, Rule, Rules,
    ScriptedPart, ScriptedReply, prompt,
};

const BINDING_BETA: &str = "thinking-binding-controls-2026-08-01";

fn client() -> Client {
    with(Rules::default())
}

fn with(rules: Rules) -> Client {
    let headers = [("x-api-key", "key"), ("anthropic-version", "2023-06-01")];
    Client::new("/v1/messages", &headers, rules)
}

fn tools() -> Value {
    let schema =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    json!([{"name": "read", "input_schema": schema}, {"name": "list", "input_schema": schema}])
}

fn first(model: &str, thinking: Value) -> Value {
    json!({
        "model": model, "max_tokens": 8000, "thinking": thinking, "tools": tools(),
        "system": [{"type": "text", "text": "You are a coding agent."}],
        "messages": [{"role": "user", "content": "Why does the build fail?"}],
    })
}

fn adaptive() -> Value {
    json!({"type": "adaptive", "display": "summarized"})
}

fn thinking_then_two_calls() -> ScriptedReply {
    ScriptedReply::thinking("Look at both.", 70)
        .with_part(ScriptedPart::Thinking { text: "Indeed.".into(), tokens: 30 })
        .with_text("I will look.")
        .with_call("read", json!({"path": "a"}))
        .with_call("list", json!({"path": "b"}))
}

/// Adds a reply to the history, and the results of its calls.
fn grow(body: &mut Value, answer: &Value) {
    push(body, "messages", json!({"role": "assistant", "content": answer["content"]}));
    let calls = prompt::items(&answer["content"]).filter(|block| block["type"] == "tool_use");
    let results: Vec<Value> = calls
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "found nothing"}))
        .collect();
    if !results.is_empty() {
        push(body, "messages", json!({"role": "user", "content": results}));
    }
}

/// An open tool loop: question, thinking and two calls, their results.
fn open_loop(client: &Client, model: &str, thinking: Value) -> Value {
    let mut body = first(model, thinking);
    let answer = client.reply_to(&body, thinking_then_two_calls());
    grow(&mut body, &answer);
    body
}

/// Two turns with thinking and a third question.
fn two_turns(client: &Client, model: &str) -> Value {
    let mut body = open_loop(client, model, adaptive());
    let answer = client.reply_to(
        &body,
        ScriptedReply::thinking("So it is the parser.", 50).with_text("The parser."),
    );
    grow(&mut body, &answer);
    push(&mut body, "messages", json!({"role": "user", "content": "And now?"}));
    body
}

#[test]
fn well_formed_loop_is_accepted() {
    for model in ["claude-sonnet-4-5", "claude-opus-4-6", "claude-fable-5-2", "claude-haiku-5-5"] {
        let client = client();
        let body = two_turns(&client, model);
        assert_eq!(client.accept(&body).losses, [], "{model}");
    }
}

#[test]
fn headers_are_checked() {
    let body = first("claude-opus-5", adaptive());
    let mut client = client();
    client.headers.remove("anthropic-version");
    client.refuse(&body, Rule::VersionHeader, "anthropic-version: header is required");
    client.set("anthropic-version", "2026-10-21");
    client.accept(&body);
    let mut warm = body.clone();
    warm["temperature"] = json!(0.5);
    client.refuse(&warm, Rule::UnknownField, "temperature: Extra inputs are not permitted");
    client.set("anthropic-version", "2023-06-01");
    client.accept(&warm);
    client.headers.remove("x-api-key");
    client.refuse(&body, Rule::Authentication, "x-api-key");
}

#[test]
fn malformed_requests_are_refused() {
    let table: &[(Rule, &str, BodyEdit)] = &[
        (Rule::UnknownField, "plimsoll: Extra inputs", |b| b["plimsoll"] = json!(1)),
        (Rule::BetaMissing, "context_management: Extra inputs", |b| {
            b["context_management"] = json!({"edits": []});
        }),
        (Rule::FieldRequired, "max_tokens: Field required", |b| {
            b.as_object_mut().unwrap().remove("max_tokens");
        }),
        (Rule::FieldRequired, "model: Field required", |b| b["model"] = json!("")),
        (Rule::FieldRequired, "at least one message", |b| b["messages"] = json!([])),
        (Rule::FirstMessage, "first message must use the \"user\" role", |b| {
            b["messages"].as_array_mut().unwrap().remove(0);
        }),
        (Rule::Role, "messages.2.role", |b| b["messages"][2]["role"] = json!("tool")),
        (Rule::UnknownField, "messages.1.id: Extra", |b| b["messages"][1]["id"] = json!("x")),
        (Rule::UnknownField, "messages.1.content.2.text.id: Extra", |b| {
            b["messages"][1]["content"][2]["id"] = json!("x");
        }),
        (Rule::EmptyContent, "messages.0: all messages must have non-empty content", |b| {
            b["messages"][0]["content"] = json!("");
        }),
        (Rule::EmptyContent, "text content blocks must be non-empty", |b| {
            b["messages"][1]["content"][2]["text"] = json!("");
        }),
        (Rule::EmptyContent, "text content blocks must be non-empty", |b| {
            b["messages"][2]["content"][0]["content"] = json!([{"type": "text", "text": ""}]);
        }),
        (Rule::BadValue, "Input tag 'picture'", |b| {
            b["messages"][0]["content"] = json!([{"type": "picture"}]);
        }),
        (Rule::Role, "`tool_use` blocks can only be in `assistant`", |b| {
            b["messages"][0]["content"] =
                json!([{"type": "tool_use", "id": "a", "name": "n", "input": {}}]);
        }),
        (Rule::ToolIdForm, "String should match pattern", |b| {
            b["messages"][1]["content"][3]["id"] = json!("toolu 1");
        }),
        (Rule::BadValue, "tool_use.input", |b| {
            b["messages"][1]["content"][3]["input"] = json!("{}")
        }),
        (Rule::BadValue, "images are not allowed", |b| {
            b["messages"][2]["content"][0]["content"] = json!([{"type": "image", "source": {}}]);
            b["messages"][2]["content"][0]["is_error"] = json!(true);
        }),
        (Rule::Prefill, "does not support assistant message prefill", |b| {
            push(b, "messages", json!({"role": "assistant", "content": "So"}));
        }),
        (Rule::SystemRole, "messages.2: a 'system' message must", |b| {
            b["messages"]
                .as_array_mut()
                .unwrap()
                .insert(2, json!({"role": "system", "content": "Be brief."}));
        }),
        (Rule::BetaMissing, "Input tag 'compaction'", |b| {
            b["messages"][0]["content"] = json!([{"type": "compaction", "content": "x"}]);
        }),
    ];
    let client = client();
    let body = open_loop(&client, "claude-opus-4-6", adaptive());
    client.accept(&body);
    for (rule, message, edit) in table {
        let mut broken = body.clone();
        edit(&mut broken);
        client.refuse(&broken, *rule, message);
    }
}

#[test]
fn system_may_follow_user() {
    let client = client();
    let mut body = open_loop(&client, "claude-opus-4-6", adaptive());
    push(&mut body, "messages", json!({"role": "system", "content": "12 tokens left"}));
    client.accept(&body);
    body["model"] = json!("claude-sonnet-4");
    client.refuse(&body, Rule::SystemRole, "role 'system' is not supported on this model");
}

#[test]
fn prefill_is_accepted_if_supported() {
    let client = client();
    let mut body = first("claude-sonnet-4-5", json!({"type": "disabled"}));
    push(&mut body, "messages", json!({"role": "assistant", "content": "So"}));
    client.accept(&body);
}

#[test]
fn unpaired_calls_are_refused() {
    let client = client();
    let body = open_loop(&client, "claude-opus-4-6", adaptive());
    let unanswered = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_";
    let results = |edit: fn(&mut Vec<Value>)| {
        let mut broken = body.clone();
        edit(broken["messages"][2]["content"].as_array_mut().unwrap());
        broken
    };
    let missing = results(|all| drop(all.pop()));
    client.refuse(&missing, Rule::CallUnanswered, unanswered);
    let late = results(|all| all.insert(1, json!({"type": "text", "text": "wait"})));
    client.refuse(&late, Rule::CallUnanswered, unanswered);
    let twice = results(|all| all.push(all[0].clone()));
    client.refuse(&twice, Rule::ResultTwice, "each tool_use must have a single result");
    let stray = results(|all| all.push(json!({"type": "tool_result", "tool_use_id": "toolu_x"})));
    client.refuse(&stray, Rule::ResultWithoutCall, "messages.2.content.2: unexpected `tool_use_id` found in `tool_result` blocks: toolu_x. Each");
    let swapped = results(|all| all.reverse());
    client.accept(&swapped);
    client.accept(&results(|all| all.push(json!({"type": "text", "text": "go on"}))));

    let mut between = body.clone();
    between["messages"].as_array_mut().unwrap().insert(2, json!({"role": "user", "content": "!"}));
    client.refuse(&between, Rule::CallUnanswered, unanswered);
    let mut split = body.clone();
    let second = split["messages"][2]["content"].as_array_mut().unwrap().pop();
    push(&mut split, "messages", json!({"role": "user", "content": [second]}));
    client.accept(&split);
    let mut open = body.clone();
    open["messages"].as_array_mut().unwrap().pop();
    open["model"] = json!("claude-opus-4-5");
    client.refuse(&open, Rule::CallUnanswered, unanswered);
    let mut again = body.clone();
    grow(&mut again, &json!({"content": [body["messages"][1]["content"][3]]}));
    client.refuse(&again, Rule::ToolIdsUnique, "`tool_use` ids must be unique");
}

#[test]
fn too_many_or_unordered_cache_markers_are_refused() {
    let client = client();
    let body = open_loop(&client, "claude-opus-4-6", adaptive());
    let marked = |places: &[(&str, &str)]| {
        let mut body = body.clone();
        for (pointer, ttl) in places {
            body.pointer_mut(pointer).unwrap()["cache_control"] =
                json!({"type": "ephemeral", "ttl": ttl});
        }
        body
    };
    let four = [
        ("/tools/0", "1h"),
        ("/system/0", "1h"),
        ("/messages/1/content/2", "5m"),
        ("/messages/2/content/1", "5m"),
    ];
    client.accept(&marked(&four));
    let mut five = marked(&four);
    five["cache_control"] = json!({"type": "ephemeral"});
    client.refuse(
        &five,
        Rule::CacheMarkers,
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    );
    let order = marked(&[("/system/0", "5m"), ("/messages/2/content/1", "1h")]);
    client.refuse(&order, Rule::CacheMarkerOrder, "must not come after");
    let thinking = marked(&[("/messages/1/content/0", "5m")]);
    client.refuse(
        &thinking,
        Rule::CacheMarkerPlace,
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    );
    client.refuse(&marked(&[("/system/0", "2h")]), Rule::BadValue, "cache_control");
    let mut empty = marked(&[("/system/0", "5m")]);
    empty["system"][0]["text"] = json!("");
    client.refuse(&empty, Rule::CacheMarkerPlace, "cannot be set for empty text");
}

#[test]
fn thinking_options_that_model_does_not_support_are_refused() {
    let client = client();
    let check = |model: &str, thinking: Value, choice: Value, refused: Option<(Rule, &str)>| {
        let mut body = first(model, thinking);
        if !choice.is_null() {
            body["tool_choice"] = choice;
        }
        match refused {
            Some((rule, message)) => client.refuse(&body, rule, message),
            None => drop(client.accept(&body)),
        }
    };
    let enabled = |budget: u64| json!({"type": "enabled", "budget_tokens": budget});
    let (any, none) = (json!({"type": "any"}), Value::Null);
    let config = |message| Some((Rule::ThinkingConfig, message));
    check("claude-sonnet-4-5", enabled(1024), none.clone(), None);
    check(
        "claude-sonnet-4-5",
        enabled(1023),
        none.clone(),
        config("greater than or equal to 1024"),
    );
    check("claude-sonnet-4-5", enabled(8000), none.clone(), config("`max_tokens` must be greater"));
    check("claude-sonnet-4-5", json!({"type": "loud"}), none.clone(), config("'loud'"));
    check(
        "claude-fable-5-1",
        json!({"type": "disabled"}),
        none.clone(),
        config("\"thinking.type.disabled\" is not supported for this model"),
    );
    check("claude-opus-5", json!({"type": "disabled"}), any.clone(), None);
    let forced = Some((Rule::ForcedTool, "Thinking may not be enabled when tool_choice forces"));
    check("claude-opus-5", adaptive(), any.clone(), forced);
    let never = Some((
        Rule::ForcedTool,
        "tool_choice: type \"tool\" and \"any\" are not supported for this model.",
    ));
    check("claude-sonnet-5-5", adaptive(), any, never);
    let binding =
        json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let beta = Some((
        Rule::BetaMissing,
        "thinking.adaptive.block_binding: Extra inputs are not permitted",
    ));
    check("claude-sonnet-5-5", binding, none, beta);
}

#[test]
fn changed_thinking_is_refused() {
    let client = client();
    let body = two_turns(&client, "claude-opus-4-6");
    let invalid = "messages.1.content.0: Invalid `signature` in `thinking` block";
    for field in ["thinking", "signature"] {
        let mut broken = body.clone();
        broken["messages"][1]["content"][0][field] = json!("other");
        client.refuse(&broken, Rule::SignatureInvalid, invalid);
        let mut latest = body.clone();
        latest["messages"][3]["content"][0][field] = json!("other");
        client.refuse(&latest, Rule::LatestThinkingModified, "messages.3.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.");
    }
    for removed in [0, 1] {
        let mut part = body.clone();
        part["messages"][1]["content"].as_array_mut().unwrap().remove(removed);
        client.refuse(&part, Rule::RunIncomplete, invalid);
    }
    let mut none = body.clone();
    none["messages"][1]["content"].as_array_mut().unwrap().drain(..2);
    let place = Place::Message { message: 1, block: 0 };
    let absent = Loss::ReasoningAbsent { place, issued: 2, present: 0, readable: true };
    assert_eq!(client.accept(&none).losses, [absent], "kept by this model, so missed");
    let mut moved = body.clone();
    moved["messages"][3]["content"].as_array_mut().unwrap().reverse();
    client.refuse(&moved, Rule::LatestThinkingModified, "cannot be modified");
}

#[test]
fn newest_message_keeps_all_its_thinking_or_none() {
    let client = client();
    let mut body = first("claude-opus-4-6", adaptive());
    let reply = ScriptedReply::thinking("One.", 5)
        .with_text("So.")
        .with_part(ScriptedPart::Thinking { text: "Two.".into(), tokens: 5 });
    let answer = client.reply_to(&body, reply.with_call("read", json!({"path": "a"})));
    grow(&mut body, &answer);
    client.accept(&body);
    let without = |removed: &[usize]| {
        let mut body = body.clone();
        let blocks = body["messages"][1]["content"].as_array_mut().unwrap();
        removed.iter().rev().for_each(|at| drop(blocks.remove(*at)));
        body
    };
    for removed in [0, 2] {
        client.refuse(&without(&[removed]), Rule::LatestThinkingModified, "cannot be modified");
    }
    assert!(matches!(
        client.accept(&without(&[0, 2])).losses[..],
        [Loss::ReasoningAbsent { issued: 2, .. }]
    ));
}

#[test]
fn redacted_and_hidden_thinking_are_checked_too() {
    let client = client();
    let mut body = first("claude-opus-5", json!({"type": "adaptive"}));
    let reply = ScriptedReply::thinking("unseen", 40)
        .with_part(ScriptedPart::RedactedThinking { tokens: 10 });
    let answer = client.reply_to(&body, reply.with_text("Yes."));
    assert_eq!(answer["content"][0]["thinking"], "", "hidden by default from Opus 4.7 on");
    grow(&mut body, &answer);
    push(&mut body, "messages", json!({"role": "user", "content": "Sure?"}));
    assert_eq!(client.accept(&body).losses, []);
    let mut shown = body.clone();
    shown["messages"][1]["content"][0]["thinking"] = json!("unseen");
    client.refuse(&shown, Rule::LatestThinkingModified, "cannot be modified");
    push(&mut body, "messages", json!({"role": "assistant", "content": "Sure."}));
    push(&mut body, "messages", json!({"role": "user", "content": "Go."}));
    body["messages"][1]["content"][1]["data"] = json!("other");
    client.refuse(
        &body,
        Rule::SignatureInvalid,
        "messages.1.content.1: Invalid `data` in `redacted_thinking` block",
    );
}

#[test]
fn with_manual_thinking_open_loop_must_begin_with_thinking() {
    let client = client();
    let manual = json!({"type": "enabled", "budget_tokens": 2000});
    let mut body = open_loop(&client, "claude-sonnet-4-5", manual);
    client.accept(&body);
    let answer = client
        .reply_to(&body, ScriptedReply::text("More.").with_call("read", json!({"path": "c"})));
    grow(&mut body, &answer);
    client.accept(&body);
    let mut bare = body.clone();
    bare["messages"][1]["content"].as_array_mut().unwrap().drain(..3);
    client.refuse(&bare, Rule::ThinkingMissing, "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled");
    bare["thinking"] = adaptive();
    assert!(matches!(client.accept(&bare).losses[..], [Loss::ReasoningAbsent { .. }]));
    bare["thinking"] = json!({"type": "enabled", "budget_tokens": 2000});
    push(&mut bare, "messages", json!({"role": "user", "content": "Never mind."}));
    assert_eq!(
        client.accept(&bare).losses,
        [],
        "the loop is closed, and earlier thinking not kept"
    );
}

#[test]
fn newer_models_bind_thinking() {
    let client = client();
    let body = two_turns(&client, "claude-fable-5-2");
    let bound = "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".";
    let table: &[(&str, &str, BodyEdit)] = &[
        ("messages.1.content.0", "The `system` prompt differs", |b| b["system"] = json!("Other.")),
        ("messages.1.content.0", "The `tools` list differs", |b| {
            b["tools"].as_array_mut().unwrap().pop();
        }),
        ("messages.1.content.0", "", |b| b["messages"][0]["content"] = json!("Why?")),
        ("messages.3.content.0", "", |b| b["messages"][2]["content"][0]["content"] = json!("cut")),
        ("messages.3.content.0", "", |b| {
            b["messages"][1]["content"].as_array_mut().unwrap().remove(2);
        }),
    ];
    for (at, cause, edit) in table {
        let mut edited = body.clone();
        edit(&mut edited);
        client.refuse(&edited, Rule::BoundElsewhere, &format!("{at}: {bound}"));
        client.refuse(
            &edited,
            Rule::BoundElsewhere,
            "requires the `thinking-binding-controls-2026-08-01` value",
        );
        client.refuse(&edited, Rule::BoundElsewhere, cause);
        edited["model"] = json!("claude-opus-5");
        let free = client.accept(&edited);
        assert!(free.losses.iter().all(|loss| !matches!(
            loss,
            Loss::ReasoningDropped { reason: DropReason::Prefix, .. }
        )));
    }
    let harmless: &[BodyEdit] = &[
        |b| b["messages"][2]["content"][1]["cache_control"] = json!({"type": "ephemeral"}),
        |b| {
            b["messages"][0]["content"] =
                json!([{"type": "text", "text": "Why does the build fail?"}])
        },
        |b| b["system"] = json!("You are a coding agent."),
        |b| {
            b["tools"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": "late", "input_schema": {}, "defer_loading": true}))
        },
        |b| {
            b["system"]
                .as_array_mut()
                .unwrap()
                .insert(0, json!({"type": "text", "text": "x-anthropic-billing-header: cch=1;"}))
        },
        |b| b["messages"][4]["content"] = json!("Something else?"),
    ];
    for edit in harmless {
        let mut edited = body.clone();
        edit(&mut edited);
        client.accept(&edited);
    }
}

#[test]
fn mismatched_thinking_is_dropped_where_that_is_asked_for() {
    let mut client = client();
    client.set("anthropic-beta", BINDING_BETA);
    let mut body = two_turns(&client, "claude-fable-5-2");
    body["thinking"]["block_binding"] = json!({"prefix_mismatch_behavior": "drop_block"});
    let whole = client.accept(&body);
    body["messages"][2]["content"][0]["content"] = json!("cut");
    let accepted = client.accept(&body);
    let place = Place::Message { message: 3, block: 0 };
    assert_eq!(accepted.losses, [Loss::ReasoningDropped { place, reason: DropReason::Prefix }]);
    assert!(accepted.input_tokens + 50 <= whole.input_tokens, "what is dropped is not counted");
    let answer = client.reply_to(&body, ScriptedReply::text("Done."));
    assert_eq!(
        answer["input_transformations"],
        json!([{"type": "thinking_dropped", "path": "messages.3.content.0", "reason": "prefix_binding_mismatch"}])
    );
    body["messages"][2]["content"][0]["content"] = json!("found nothing");
    body["messages"][0]["content"] = json!("Why?");
    let all = client.accept(&body).losses;
    assert_eq!(all.len(), 3, "the edit stands before all three blocks: {all:?}");
}

#[test]
fn bound_thinking_may_be_removed_only_from_start() {
    let client = client();
    let mut body = two_turns(&client, "claude-fable-5-2");
    let answer =
        client.reply_to(&body, ScriptedReply::thinking("Third.", 9).with_text("Now rest."));
    grow(&mut body, &answer);
    push(&mut body, "messages", json!({"role": "user", "content": "Bye."}));
    let remove = |body: &Value, message: usize, count: usize| {
        let mut body = body.clone();
        body["messages"][message]["content"].as_array_mut().unwrap().drain(..count);
        body
    };
    client.accept(&remove(&body, 1, 2));
    client.accept(&remove(&remove(&body, 1, 2), 3, 1));
    client.refuse(&remove(&body, 3, 1), Rule::BoundElsewhere, "messages.5.content.0");
}

#[test]
fn old_accounts_get_prefix_binding_only_if_requested() {
    let mut client = with(Rules { new_account: false, ..Rules::default() });
    client.set("anthropic-beta", BINDING_BETA);
    let mut body = two_turns(&client, "claude-opus-5-5");
    body["system"] = json!("Other.");
    let accepted = client.accept(&body);
    assert!(accepted.losses.is_empty());
    assert!(accepted.transformations.iter().all(|it| it.allowed));
    assert_eq!(accepted.transformations.len(), 3);
    body["thinking"]["block_binding"] = json!({"prefix_mismatch_behavior": "error"});
    client.refuse(&body, Rule::BoundElsewhere, "messages.1.content.0");
    let mut fable = two_turns(&client, "claude-fable-5-2");
    fable["system"] = json!("Other.");
    client.refuse(&fable, Rule::BoundElsewhere, "messages.1.content.0");
}

#[test]
fn thinking_of_other_models_and_accounts_is_dropped_silently() {
    let mut client = client();
    let mut body = two_turns(&client, "claude-opus-5");
    let kept = client.accept(&body);
    body["model"] = json!("claude-fable-5-1");
    assert_eq!(client.accept(&body).losses.len(), 0, "reads Opus 5");
    body["model"] = json!("claude-sonnet-5");
    let other = client.accept(&body);
    let dropped =
        |loss: &Loss| matches!(loss, Loss::ReasoningDropped { reason: DropReason::Model, .. });
    assert_eq!(other.losses.len(), 3);
    assert!(other.losses.iter().all(dropped));
    assert!(other.input_tokens < kept.input_tokens);
    let mut own = two_turns(&client, "claude-haiku-5-5");
    client.set("x-api-key", "another");
    own["stream"] = json!(false);
    let foreign = client.accept(&own);
    let dropped =
        |loss: &Loss| matches!(loss, Loss::ReasoningDropped { reason: DropReason::Account, .. });
    assert_eq!(foreign.losses.iter().filter(|loss| dropped(loss)).count(), 3);
}

#[test]
fn only_kept_thinking_is_counted() {
    let client = client();
    let tokens = |model: &str, strip: bool| {
        let mut body = two_turns(&client, model);
        if strip {
            body["messages"][1]["content"].as_array_mut().unwrap().drain(..2);
            body["messages"][3]["content"].as_array_mut().unwrap().drain(..1);
        }
        client.accept(&body).input_tokens
    };
    // 70 + 30 + 50 tokens were thought, 4 of structure each.
    assert_eq!(tokens("claude-opus-4-6", false), tokens("claude-opus-4-6", true) + 162);
    assert_eq!(tokens("claude-sonnet-4-5", false), tokens("claude-sonnet-4-5", true));
}

#[test]
fn reply_costs_same_as_input() {
    let client = client();
    let mut body = first("claude-opus-4-6", adaptive());
    let answer = client.reply_to(&body, thinking_then_two_calls());
    let usage = &answer["usage"];
    assert_eq!(answer["stop_reason"], "tool_use");
    assert_eq!(usage["output_tokens_details"]["thinking_tokens"], 108);
    grow(&mut body, &answer);
    let results: u64 = prompt::items(&body["messages"][2]["content"])
        .map(|block| prompt::measure("user", block).tokens)
        .sum();
    let next = client.accept(&body).input_tokens;
    assert_eq!(
        next,
        usage["input_tokens"].as_u64().unwrap()
            + usage["output_tokens"].as_u64().unwrap()
            + results
    );
}

#[test]
fn request_past_window_is_refused() {
    let client = with(Rules { window: Some(1000), ..Rules::default() });
    let mut body = first("claude-opus-4-6", adaptive());
    body["messages"][0]["content"] = json!(filler_text("long", 1200));
    client.refuse(&body, Rule::Overflow, "prompt is too long: 1");
    client.refuse(&body, Rule::Overflow, " tokens > 1000 maximum");
    body["messages"][0]["content"] = json!(filler_text("long", 700));
    client.accept(&body);
    let answer = client.reply_to(&body, ScriptedReply::text(&filler_text("answer", 900)));
    assert_eq!(answer["stop_reason"], "model_context_window_exceeded");
    body["model"] = json!("claude-opus-4-1");
    client.refuse(&body, Rule::Overflow, "input length and `max_tokens` exceed context limit: ");
}

#[test]
fn old_tool_results_are_cleared_where_that_is_asked_for() {
    let mut client = client();
    client.set("anthropic-beta", "context-management-2025-06-27");
    let mut body = first("claude-opus-4-6", adaptive());
    for n in 0..4 {
        let reply = ScriptedReply::default().with_call("read", json!({"path": n.to_string()}));
        let answer = client.reply_to(&body, reply);
        grow(&mut body, &answer);
        let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
        last["content"][0]["content"] = json!(filler_text("result", 500));
    }
    let whole = client.accept(&body).input_tokens;
    let edit = |more: Value| {
        let mut body = body.clone();
        let mut edit = json!({"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1000}, "keep": {"type": "tool_uses", "value": 1}});
        edit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body["context_management"] = json!({"edits": [edit]});
        body
    };
    let cleared = client.accept(&edit(json!({})));
    assert_eq!(cleared.edits[0]["cleared_tool_uses"], 3);
    let tokens = cleared.edits[0]["cleared_input_tokens"].as_u64().unwrap();
    assert_eq!(cleared.input_tokens + tokens, whole);
    assert_eq!(cleared.unedited_tokens, whole);
    assert_eq!(
        client.accept(&edit(json!({"trigger": {"type": "input_tokens", "value": 90000}}))).edits,
        Vec::<Value>::new()
    );
    assert_eq!(
        client
            .accept(&edit(json!({"clear_at_least": {"type": "input_tokens", "value": 9000}})))
            .input_tokens,
        whole
    );
    assert_eq!(client.accept(&edit(json!({"exclude_tools": ["read"]}))).input_tokens, whole);
    client.refuse(&edit(json!({"type": "clear_all"})), Rule::ContextEdit, "Input tag 'clear_all'");
    let mut late = edit(json!({}));
    push(&mut late["context_management"], "edits", json!({"type": "clear_thinking_20251015"}));
    client.refuse(&late, Rule::ContextEdit, "must be the first edit");
    let answer = client.reply_to(&edit(json!({})), ScriptedReply::text("Done."));
    assert_eq!(answer["context_management"]["applied_edits"][0]["cleared_tool_uses"], 3);
}

#[test]
fn earlier_thinking_is_cleared_where_that_is_asked_for() {
    let mut client = client();
    let mut body = two_turns(&client, "claude-opus-4-6");
    let whole = client.accept(&body).input_tokens;
    client.set("anthropic-beta", "context-management-2025-06-27");
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]});
    let cleared = client.accept(&body);
    assert_eq!(whole - cleared.input_tokens, 108);
    assert_eq!(cleared.edits[0]["cleared_input_tokens"], 108);
    body["context_management"]["edits"][0]["keep"] = json!("all");
    assert_eq!(client.accept(&body).input_tokens, whole);
}

#[test]
fn count_is_checked_like_reply() {
    let mut client = client();
    let mut body = two_turns(&client, "claude-fable-5-2");
    let input = client.accept(&body).input_tokens;
    client.path = "/v1/messages/count_tokens";
    client.refuse(&body, Rule::UnknownField, "max_tokens: Extra inputs");
    body.as_object_mut().unwrap().remove("max_tokens");
    let request = client.request(&body);
    assert_eq!(request.operation, Operation::CountTokens);
    assert_eq!(client.provider.respond(&request).body, json!({"input_tokens": input}));
    body["system"] = json!("Other.");
    client.refuse(&body, Rule::BoundElsewhere, "messages.1.content.0");
}

/// A conversation whose cached prefix is long enough, marked at its end.
fn cached(client: &Client, turns: usize) -> Value {
    cached_by(client, "claude-sonnet-4-6", turns)
}

fn cached_by(client: &Client, model: &str, turns: usize) -> Value {
    let mut body = first(model, adaptive());
    body["system"][0]["text"] = json!(filler_text("system", 1500));
    for n in 0..turns {
        let reply =
            ScriptedReply::thinking("Hm.", 20).with_call("read", json!({"path": n.to_string()}));
        let answer = client.reply_to(&marked(&body), reply);
        grow(&mut body, &answer);
    }
    body
}

fn marked(body: &Value) -> Value {
    let mut body = body.clone();
    let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
    if last["content"].is_string() {
        last["content"] = json!([{"type": "text", "text": last["content"]}]);
    }
    last["content"].as_array_mut().unwrap().last_mut().unwrap()["cache_control"] =
        json!({"type": "ephemeral"});
    body
}

fn miss(verdict: &RequestVerdict) -> Option<MissReason> {
    verdict.losses().iter().find_map(|loss| match loss {
        Loss::CacheMissed { reason, .. } => Some(*reason),
        _ => None,
    })
}

#[test]
fn cache_follows_growing_conversation() {
    let client = client();
    let body = cached(&client, 3);
    let verdict = client.validate(&marked(&body));
    let cached = verdict.accepted().unwrap().cache_usage;
    assert_eq!(miss(&verdict), None);
    assert!(cached.read > 1500, "{cached:?}");
    assert!(cached.written_5m > 0, "{cached:?}");
    let usage = client.reply_to(&marked(&body), ScriptedReply::text("Done."))["usage"].clone();
    let total = verdict.accepted().unwrap().input_tokens;
    assert_eq!(usage["cache_read_input_tokens"], total, "the same again is read whole");
    assert_eq!(usage["input_tokens"], 0);
}

#[test]
fn cache_miss_names_first_difference() {
    let place = |message, block| MissReason::Changed(Place::Message { message, block });
    let table: &[(MissReason, BodyEdit)] = &[
        (MissReason::Changed(Place::Tool(0)), |b| b["tools"][0]["description"] = json!("Reads.")),
        (MissReason::Changed(Place::System(0)), |b| {
            b["system"][0]["text"] = json!(filler_text("x", 1500))
        }),
        (MissReason::Changed(Place::Settings), |b| b["tool_choice"] = json!({"type": "auto"})),
        (place(0, 0), |b| b["messages"][0]["content"] = json!("Why?")),
        (place(2, 0), |b| b["messages"][2]["content"][0]["content"] = json!("cut")),
        (place(1, 0), |b| {
            b["messages"][1]["content"].as_array_mut().unwrap().remove(0);
        }),
        (MissReason::OtherCache, |b| b["model"] = json!("claude-sonnet-5")),
    ];
    for (reason, edit) in table {
        let client = client();
        let mut body = cached(&client, 3);
        edit(&mut body);
        assert_eq!(miss(&client.validate(&marked(&body))), Some(*reason));
    }
    let client = client();
    let body = cached(&client, 3);
    client.advance(300);
    assert_eq!(miss(&client.validate(&marked(&body))), Some(MissReason::Expired));
    let body = cached(&client, 3);
    assert_eq!(miss(&client.validate(&body)), Some(MissReason::OutOfReach), "no marker at all");
}

#[test]
fn providers_cache_miss_is_no_loss() {
    let client = client();
    let mut body = cached_by(&client, "claude-sonnet-4-5", 3);
    let answer = client
        .reply_to(&marked(&body), ScriptedReply::thinking("So.", 20).with_text("The parser."));
    grow(&mut body, &answer);
    push(&mut body, "messages", json!({"role": "user", "content": "And now?"}));
    let accepted = client.accept(&marked(&body));
    assert!(
        matches!(
            accepted.cache_usage.missed,
            Some(MissedPrefix { reason: MissReason::ProviderEdit(_), .. })
        ),
        "{:?}",
        accepted.cache_usage
    );
    assert!(accepted.losses.iter().all(|loss| !matches!(loss, Loss::CacheMissed { .. })));
}

#[test]
fn top_level_marker_covers_prompt() {
    let client = client();
    let mut body = first("claude-sonnet-4-6", adaptive());
    body["system"][0]["text"] = json!(filler_text("system", 1500));
    body["cache_control"] = json!({"type": "ephemeral", "ttl": "1h"});
    let accepted = client.accept(&body);
    assert_eq!(accepted.cache_usage.written_1h, accepted.input_tokens);
}

#[test]
fn generated_is_never_refused() {
    for model in ["claude-sonnet-4-5", "claude-opus-4-6", "claude-fable-5-2", "claude-sonnet-5-5"] {
        let client = client();
        let mut body = first(model, adaptive());
        for turn in 0..30 {
            let answer = client.provider.respond(&client.request(&marked(&body)));
            assert_eq!(answer.status, 200, "{model}, {turn}: {}", answer.body);
            grow(&mut body, &answer.body);
            if answer.body["stop_reason"] == "end_turn" {
                push(
                    &mut body,
                    "messages",
                    json!({"role": "user", "content": format!("More, {turn}")}),
                );
            }
        }
        let losses: Vec<Loss> = client
            .provider
            .take_log()
            .iter()
            .flat_map(|entry| entry.verdict.losses().to_vec())
            .collect();
        assert_eq!(losses, [], "{model}");
    }
}

/// The history that a summary replaces still counts as read: later thinking stays valid (`docs/protocols.md` 1.5.7).
#[test]
fn compaction_on_demand_keeps_later_thinking_and_checks_its_blocks() {
    let betas = "compact-2026-09-04,context-management-2025-06-27";
    let compacting = |rules| {
        let mut client = with(rules);
        client.headers.insert("anthropic-beta", betas.parse().unwrap());
        client
    };
    let client = compacting(Rules::default());
    let body = two_turns(&client, "claude-opus-5-5");
    let cut = |from: usize, to: usize| body["messages"].as_array().unwrap()[from..to].to_vec();
    let mut compacting_body = body.clone();
    compacting_body["messages"] = json!(cut(0, 3));
    compacting_body["compaction"] = json!({"type": "summarize"});
    let answer = client.reply_to(&compacting_body, ScriptedReply::text("never said"));
    assert_eq!(answer["stop_reason"], json!("compaction"));
    assert_eq!(answer["usage"]["input_tokens"], json!(0));
    let block = &answer["content"][0];
    let mut kept = body.clone();
    let mut messages = vec![json!({"role": "assistant", "content": [block]})];
    messages.extend(cut(3, 5));
    kept["messages"] = json!(messages);
    assert_eq!(client.accept(&kept).losses, []);

    let table: &[(Rule, &str, BodyEdit)] = &[
        (Rule::BoundElsewhere, "The `system` prompt differs", |b| b["system"] = json!("Another.")),
        (Rule::Compaction, "is not the first block", |b| {
            b["messages"]
                .as_array_mut()
                .unwrap()
                .insert(0, json!({"role": "user", "content": "a"}));
        }),
        (Rule::Compaction, "differs from the text", |b| {
            b["messages"][0]["content"][0]["content"] = json!("Something else.");
        }),
        (Rule::Compaction, "does not verify", |b| {
            b["messages"][0]["content"][0]["signature"] = json!("c2ln");
        }),
    ];
    for (rule, message, edit) in table {
        let mut broken = kept.clone();
        edit(&mut broken);
        client.refuse(&broken, *rule, message);
    }
    let mut both = compacting_body.clone();
    both["context_management"] = json!({"edits": []});
    client.refuse(&both, Rule::Compaction, "cannot be combined");
    let mut open = compacting_body.clone();
    open["messages"] = json!(cut(0, 2));
    client.refuse(&open, Rule::Compaction, "is not finished");
    let none = compacting(Rules { compacts: false, ..Rules::default() });
    none.refuse(&compacting_body, Rule::UnknownField, "compaction: Extra inputs are not permitted");
}
