//! Every Responses rule: a request that breaks it is refused with the real error, a request that keeps it is accepted.

#![allow(clippy::semicolon_if_nothing_returned, reason = "edits of a request read as tables")]

use serde_json::{Value, json};

use crate::strict::tests::{BodyEdit, Client, filler_text, push};
use crate::strict::{
    DropReason, Loss, MissReason, Place, Rule, Rules, ScriptedPart, ScriptedReply, prompt,
};

fn client() -> Client {
    with(Rules::default())
}

fn with(rules: Rules) -> Client {
    Client::new("/v1/responses", &[("authorization", "Bearer key")], rules)
}

fn first(model: &str) -> Value {
    let parameters =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tool = |name: &str| json!({"type": "function", "name": name, "parameters": parameters});
    json!({
        "model": model, "store": false, "instructions": "You are a coding agent.",
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "medium", "summary": "auto"},
        "tools": [tool("read"), tool("list")],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Why does the build fail?"}]}],
    })
}

fn grow(body: &mut Value, answer: &Value) {
    for item in prompt::items(&answer["output"]) {
        push(body, "input", item.clone());
    }
    for call in prompt::items(&answer["output"]).filter(|item| item["type"] == "function_call") {
        push(body, "input", output(&call["call_id"]));
    }
}

fn output(call_id: &Value) -> Value {
    json!({"type": "function_call_output", "call_id": call_id, "output": "nothing"})
}

fn thinking_then_two_calls() -> ScriptedReply {
    let thinking = ScriptedReply::thinking("Look at both.", 70).with_text("I will look.");
    thinking.with_call("read", json!({"path": "a"})).with_call("list", json!({"path": "b"}))
}

/// `[user, rs, msg, fc, fc, output, output]`
fn open_loop(client: &Client, model: &str) -> Value {
    let mut body = first(model);
    let answer = client.reply_to(&body, thinking_then_two_calls());
    grow(&mut body, &answer);
    body
}

/// The same, `[…, rs, msg]` and a second question at 9.
fn two_turns(client: &Client, model: &str) -> Value {
    let mut body = open_loop(client, model);
    let answer = client
        .reply_to(&body, ScriptedReply::thinking("The parser.", 50).with_text("It is the parser."));
    grow(&mut body, &answer);
    push(&mut body, "input", json!({"role": "user", "content": "And now?"}));
    body
}

fn without(body: &Value, gone: &[usize]) -> Value {
    let mut body = body.clone();
    let items = body["input"].as_array().unwrap().clone();
    let kept = items.into_iter().enumerate().filter(|(at, _)| !gone.contains(at));
    body["input"] = kept.map(|(_, item)| item).collect();
    body
}

fn place(message: usize) -> Place {
    Place::Message { message, block: 0 }
}

#[test]
fn well_formed_is_accepted() {
    for model in ["gpt-5.5", "gpt-5.3-codex", "gpt-6.1-sol", "never-seen"] {
        let client = client();
        assert_eq!(client.accept(&two_turns(&client, model)).losses, [], "{model}");
    }
}

#[test]
fn malformed_requests_are_refused() {
    let table: &[(Rule, &str, BodyEdit)] = &[
        (Rule::UnknownField, "Unknown parameter: 'messages'", |b| b["messages"] = json!([])),
        (Rule::FieldRequired, "'model'", |b| b["model"] = json!("")),
        (Rule::FieldRequired, "'input'", |b| b["input"] = json!(null)),
        (Rule::EmptyContent, "empty array", |b| b["input"] = json!([])),
        (Rule::BadValue, "Invalid value: 'thought'", |b| b["input"][0]["type"] = json!("thought")),
        (Rule::UnknownField, "'input[1].signature'", |b| b["input"][1]["signature"] = json!("x")),
        (Rule::FieldRequired, "'input[1].summary'", |b| {
            b["input"][1].as_object_mut().unwrap().remove("summary");
        }),
        (Rule::FieldRequired, "'input[5].output'", |b| b["input"][5]["output"] = json!(null)),
        (Rule::BadValue, "'input[3].arguments'", |b| b["input"][3]["arguments"] = json!({})),
        (Rule::BadValue, "'input[0].role'", |b| b["input"][0]["role"] = json!("model")),
        (Rule::BadValue, "'input[5].output'", |b| b["input"][5]["output"] = json!({"a": 1})),
        (Rule::NotSimulated, "conversations", |b| b["conversation"] = json!("conv_1")),
        (Rule::NotSimulated, "compaction", |b| {
            push(b, "input", json!({"type": "compaction_trigger"}))
        }),
        (Rule::NotSimulated, "compaction on the server", |b| {
            b["context_management"] = json!([{"type": "compaction", "compact_threshold": 10}]);
        }),
    ];
    let mut client = client();
    let body = open_loop(&client, "gpt-5.5");
    for (rule, message, edit) in table {
        let mut broken = body.clone();
        edit(&mut broken);
        client.refuse(&broken, *rule, message);
    }
    let mut text_input = body.clone();
    text_input["input"] = json!("Hello?");
    text_input["context_management"] = json!([{"type": "compaction", "compact_threshold": 9000}]);
    client.accept(&text_input);
    client.headers.clear();
    client.refuse(&body, Rule::Authentication, "You didn't provide an API key");
}

#[test]
fn unpaired_calls_are_refused() {
    let client = client();
    let body = open_loop(&client, "gpt-5.5");
    let id = body["input"][3]["call_id"].as_str().unwrap();
    client.refuse(
        &without(&body, &[5]),
        Rule::CallUnanswered,
        &format!("No tool output found for function call {id}."),
    );
    client.refuse(
        &without(&body, &[3]),
        Rule::ResultWithoutCall,
        &format!("No tool call found for function call output with call_id {id}."),
    );
    let mut early = body.clone();
    early["input"].as_array_mut().unwrap().swap(3, 5);
    client.refuse(&early, Rule::ResultWithoutCall, "No tool call found");
    let mut twice = body.clone();
    push(&mut twice, "input", output(&body["input"][3]["call_id"]));
    client.refuse(&twice, Rule::ResultWithoutCall, "No tool call found");
    let mut again = body.clone();
    again["input"][4]["call_id"] = body["input"][3]["call_id"].clone();
    client.refuse(&again, Rule::ToolIdsUnique, "Duplicate tool call");
    client.accept(&without(&body, &[4, 6]));
    let mut swapped = body.clone();
    swapped["input"].as_array_mut().unwrap().swap(5, 6);
    client.accept(&swapped);
    let mut custom = body.clone();
    push(
        &mut custom,
        "input",
        json!({"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "x"}),
    );
    client.refuse(&custom, Rule::CallUnanswered, "No tool output found for custom tool call c.");
    push(
        &mut custom,
        "input",
        json!({"type": "function_call_output", "call_id": "c", "output": "y"}),
    );
    client.refuse(&custom, Rule::ResultWithoutCall, "call_id c");
    custom["input"][8]["type"] = json!("custom_tool_call_output");
    client.accept(&custom);
}

#[test]
fn item_ids_fit_type_and_are_unique() {
    let client = client();
    let body = open_loop(&client, "gpt-5.5");
    for (at, prefix) in [(1, "rs"), (2, "msg"), (3, "fc")] {
        let mut broken = body.clone();
        broken["input"][at]["id"] = json!("x_1");
        client.refuse(
            &broken,
            Rule::ItemIdForm,
            &format!("'input[{at}].id': 'x_1'. Expected an ID that begins with '{prefix}'."),
        );
    }
    let mut twice = body.clone();
    twice["input"][4]["id"] = body["input"][3]["id"].clone();
    client.refuse(&twice, Rule::ItemTwice, "Duplicate item found with id fc_");
}

#[test]
fn lone_reasoning_is_refused() {
    let client = client();
    let body = open_loop(&client, "gpt-5.5");
    let rs = body["input"][1]["id"].as_str().unwrap();
    let msg = body["input"][2]["id"].as_str().unwrap();
    client.refuse(
        &without(&body, &[2]),
        Rule::ReasoningWithoutItem,
        &format!(
            "Item '{rs}' of type 'reasoning' was provided without its required following item."
        ),
    );
    client.refuse(
        &without(&body, &[2, 3, 4, 5, 6]),
        Rule::ReasoningWithoutItem,
        "without its required following item",
    );
    client.refuse(&without(&body, &[1]), Rule::ItemWithoutReasoning, &format!("Item '{msg}' of type 'message' was provided without its required 'reasoning' item: '{rs}'."));
    // The repair: inline, without ids, pairs are no longer checked.
    let mut inline = without(&body, &[1]);
    inline["input"][1].as_object_mut().unwrap().remove("id");
    let absent = Loss::ReasoningAbsent { place: place(1), issued: 1, present: 0, readable: true };
    assert_eq!(client.accept(&inline).losses, [absent]);
    let mut bare = body.clone();
    bare["input"][1].as_object_mut().unwrap().remove("id");
    assert_eq!(client.accept(&bare).losses, [], "known by its encrypted content");
    bare["input"][2].as_object_mut().unwrap().remove("id");
    assert_eq!(client.accept(&bare).losses, []);
    // A call without reasoning directly before it may be sent alone.
    client.accept(&without(&body, &[1, 2, 3, 5]));
}

#[test]
fn encrypted_content_is_checked() {
    let mut client = client();
    let body = open_loop(&client, "gpt-5.5");
    let mut broken = body.clone();
    broken["input"][1]["encrypted_content"] = json!("gAAAA");
    client.refuse(
        &broken,
        Rule::SignatureInvalid,
        "could not be verified. Reason: Encrypted content could not be decrypted or parsed.",
    );
    let mut renamed = body.clone();
    renamed["input"][1]["id"] = json!("rs_other");
    client.refuse(&renamed, Rule::SignatureInvalid, "item rs_other could not be verified");
    let mut bare = body.clone();
    bare["input"][1].as_object_mut().unwrap().remove("encrypted_content");
    client.refuse(
        &bare,
        Rule::ItemNotFound,
        "not found. Items are not persisted when `store` is set to false.",
    );
    let mut dumb = body.clone();
    dumb["model"] = json!("gpt-4.1");
    client.refuse(
        &dumb,
        Rule::ReasoningRefused,
        "Reasoning input items can only be provided to a reasoning",
    );
    client.set("authorization", "Bearer other");
    client.refuse(
        &body,
        Rule::SignatureInvalid,
        "organization_id did not match the target organization.",
    );
}

#[test]
fn stored_responses_are_found_again() {
    let mut client = client();
    let mut body = first("gpt-5.5");
    body["store"] = json!(true);
    let answer = client.reply_to(&body, thinking_then_two_calls());
    let mut inline = body.clone();
    grow(&mut inline, &answer);
    inline["input"][1].as_object_mut().unwrap().remove("encrypted_content");
    let whole = client.accept(&inline);
    assert_eq!(whole.losses, [], "found by its id");
    let outputs: Vec<Value> = inline["input"].as_array().unwrap()[5..].to_vec();
    let mut chained = body.clone();
    chained["previous_response_id"] = answer["id"].clone();
    chained["input"] = json!(outputs);
    let accepted = client.accept(&chained);
    assert_eq!(accepted.input_tokens, whole.input_tokens);
    assert!(accepted.losses.is_empty());
    let mut referred = inline.clone();
    for at in 1..5 {
        referred["input"][at] = json!({"type": "item_reference", "id": inline["input"][at]["id"]});
    }
    assert_eq!(client.accept(&referred).input_tokens, whole.input_tokens);
    referred["input"][1]["id"] = json!("rs_unknown");
    client.refuse(&referred, Rule::ItemNotFound, "Item with id 'rs_unknown' not found.");
    client.set("authorization", "Bearer other");
    client.refuse(&chained, Rule::PreviousResponse, "Previous response with id 'resp_");
    let gone = client.reply_to(&first("gpt-5.5"), ScriptedReply::text("Hm."));
    chained["previous_response_id"] = gone["id"].clone();
    client.refuse(&chained, Rule::PreviousResponse, "not found.");
}

#[test]
fn reasoning_withheld_without_error() {
    let client = client();
    let body = two_turns(&client, "gpt-5.6-sol");
    let whole = client.accept(&body);
    assert!(whole.transformations.is_empty());
    let dropped = |place, reason| Loss::ReasoningDropped { place, reason };
    let reasons = |body: &Value| {
        let answer = client.reply_to(body, ScriptedReply::text("Done."));
        let all = answer["input_transformations"].clone();
        prompt::items(&all).map(|it| it["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut other = body.clone();
    other["model"] = json!("gpt-6.1-sol");
    let both = [dropped(place(1), DropReason::Model), dropped(place(7), DropReason::Model)];
    assert_eq!(client.accept(&other).losses, both);
    assert_eq!(reasons(&other), ["model_mismatch", "model_mismatch"]);
    let mut cut = body.clone();
    cut["input"][5]["output"] = json!("cut");
    let losses = client.accept(&cut).losses;
    assert_eq!(losses, [dropped(place(7), DropReason::Prefix)], "the first stands before the cut");
    assert!(reasons(&cut).contains(&"prefix_mismatch".to_owned()));
    cut["instructions"] = json!("Other.");
    assert_eq!(client.accept(&cut).losses.len(), 2);
    let mut current = body.clone();
    current["reasoning"]["context"] = json!("current_turn");
    let seen = client.accept(&current);
    assert_eq!(seen.losses, [], "a turn's boundary is nobody's loss");
    assert_eq!(reasons(&current), ["turn_boundary", "turn_boundary"]);
    assert_eq!(seen.input_tokens + 70 + 50 + 8, whole.input_tokens);
    let older = two_turns(&client, "gpt-5.5");
    assert_eq!(reasons(&older), ["turn_boundary", "turn_boundary"], "earlier models keep no turns");
}

#[test]
fn earlier_models_bind_nothing() {
    let client = client();
    let mut body = open_loop(&client, "gpt-5.5");
    body["input"][5]["output"] = json!("cut");
    body["instructions"] = json!("Other.");
    assert_eq!(client.accept(&body).losses, []);
    let bound = with(Rules { binding: Some(true), ..Rules::default() });
    let mut body = open_loop(&bound, "gpt-5.5");
    body["instructions"] = json!("Other.");
    let dropped = Loss::ReasoningDropped { place: place(1), reason: DropReason::Prefix };
    assert!(bound.accept(&body).losses.contains(&dropped));
}

#[test]
fn absent_reasoning_and_phases_are_reported_as_losses() {
    let client = client();
    let body = two_turns(&client, "gpt-5.6-sol");
    let mut lost = without(&body, &[1, 7]);
    for at in [1, 6] {
        lost["input"][at].as_object_mut().unwrap().remove("id");
    }
    let absent = |message, readable| Loss::ReasoningAbsent {
        place: place(message),
        issued: 1,
        present: 0,
        readable,
    };
    assert_eq!(client.accept(&lost).losses, [absent(1, true), absent(6, true)]);
    lost["input"][4]["output"] = json!("cut");
    assert_eq!(
        client.accept(&lost).losses,
        [absent(1, true), absent(6, false)],
        "bound to what was cut"
    );
    let mut phaseless = body.clone();
    phaseless["input"][8].as_object_mut().unwrap().remove("phase");
    assert_eq!(client.accept(&phaseless).losses, [Loss::PhaseDropped { place: place(8) }]);
    phaseless["input"][8]["phase"] = json!("commentary");
    assert_eq!(client.accept(&phaseless).losses, [Loss::PhaseDropped { place: place(8) }]);
}

#[test]
fn replies_with_same_text_are_told_apart_by_their_calls() {
    let client = client();
    let mut body = open_loop(&client, "gpt-5.6-sol");
    for item in body["input"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id");
    }
    let grown = {
        let mut body = body.clone();
        push(&mut body, "input", json!({"role": "user", "content": "Again."}));
        let answer = client.reply_to(&body, thinking_then_two_calls());
        grow(&mut body, &answer);
        body
    };
    assert_eq!(client.accept(&body).losses, [], "a rewind to before the second reply");
    assert_eq!(client.accept(&grown).losses, []);
    let absent = Loss::ReasoningAbsent { place: place(1), issued: 1, present: 0, readable: true };
    assert_eq!(client.accept(&without(&body, &[1])).losses, [absent]);
}

/// Two replies with the same text, before and after a question: the reasoning of the second one is missed.
#[test]
fn reply_ends_before_next_question() {
    let client = client();
    let mut body = first("gpt-5.5");
    let says = || ScriptedReply::thinking("Hm.", 50).with_text("I will look.");
    let answer = client.reply_to(&body, says());
    grow(&mut body, &answer);
    push(&mut body, "input", json!({"role": "user", "content": "Go on."}));
    let answer = client.reply_to(&body, says().with_call("read", json!({"path": "a"})));
    grow(&mut body, &answer);
    for item in body["input"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id");
    }
    let absent = Loss::ReasoningAbsent { place: place(3), issued: 1, present: 0, readable: true };
    // The text alone does not tell that the first one ended its turn: its phase counts as wrong.
    let losses = client.accept(&without(&body, &[1, 4])).losses;
    assert!(losses.contains(&absent), "{losses:?}");
}

#[test]
fn request_past_window_is_refused() {
    let client = with(Rules { window: Some(1000), ..Rules::default() });
    let mut body = open_loop(&client, "gpt-5.5");
    client.accept(&body);
    body["input"][5]["output"] = json!(filler_text("long", 1100));
    client.refuse(&body, Rule::Overflow, "Your input exceeds the context window of this model.");
    body["truncation"] = json!("auto");
    assert!(client.accept(&body).input_tokens <= 1000);
}

#[test]
fn reply_costs_same_as_input() {
    let client = client();
    let mut body = first("gpt-5.5");
    let answer = client.reply_to(&body, thinking_then_two_calls());
    let usage = &answer["usage"];
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 74);
    grow(&mut body, &answer);
    let results = 2 * prompt::measure_text("tool", "nothing").tokens;
    let total = usage["total_tokens"].as_u64().unwrap();
    assert_eq!(client.accept(&body).input_tokens, total + results);
}

#[test]
fn output_ends_at_output_limit() {
    let client = client();
    let mut body = first("gpt-5.5");
    body["max_output_tokens"] = json!(30);
    let answer = client.reply_to(
        &body,
        ScriptedReply::default()
            .with_part(ScriptedPart::HiddenThinking { tokens: 15 })
            .with_text(&filler_text("much", 50)),
    );
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(answer["status"], json!("incomplete"));
    assert_eq!(answer["output"][0]["summary"], json!([]));
    grow(&mut body, &answer);
    push(&mut body, "input", json!({"role": "user", "content": "Go on."}));
    client.accept(&body);
}

#[test]
fn prefixes_cached_without_markers() {
    let miss = |edit: BodyEdit| {
        let client = client();
        let mut body = first("gpt-5.6-sol");
        body["instructions"] = json!(filler_text("system", 2000));
        let answer = client.reply_to(&body, thinking_then_two_calls());
        assert!(
            answer["usage"]["input_tokens_details"]["cache_write_tokens"].as_u64().unwrap() > 2000
        );
        grow(&mut body, &answer);
        edit(&mut body);
        let accepted = client.accept(&body);
        (accepted.cache_usage.read, accepted.cache_usage.missed.map(|missed| missed.reason))
    };
    let (read, missed) = miss(|_| {});
    assert!(read > 1900, "{read} {missed:?}");
    assert!(read.is_multiple_of(128), "{read} {missed:?}");
    assert!(missed.is_none(), "{read} {missed:?}");
    assert_eq!(
        miss(|b| b["input"][0]["content"] = json!("Why?")).1,
        Some(MissReason::Changed(place(0)))
    );
    assert_eq!(miss(|b| b["input"][5]["output"] = json!("pruned")).1, None, "it is new");
    assert_eq!(miss(|b| b["input"][0]["content"] = json!("Why does the build fail?")).1, None);
    assert_eq!(
        miss(|b| b["tools"][0]["strict"] = json!(true)).1,
        Some(MissReason::Changed(Place::Tool(0)))
    );
    assert_eq!(miss(|b| b["prompt_cache_key"] = json!("k")).1, Some(MissReason::OtherCache));
}

#[test]
fn count_is_checked_like_reply() {
    let mut client = client();
    let mut body = open_loop(&client, "gpt-5.5");
    let input = client.accept(&body).input_tokens;
    client.path = "/v1/responses/input_tokens";
    let answer = client.provider.respond(&client.request(&body));
    assert_eq!(answer.body, json!({"object": "response.input_tokens", "input_tokens": input}));
    body["input"].as_array_mut().unwrap().pop();
    client.refuse(&body, Rule::CallUnanswered, "No tool output found");
}

#[test]
fn generated_is_never_refused() {
    for model in ["gpt-5.5", "gpt-5.6-sol", "gpt-4.1"] {
        let client = client();
        let mut body = first(model);
        for turn in 0..30 {
            let answer = client.provider.respond(&client.request(&body));
            assert_eq!(answer.status, 200, "{model}, {turn}: {}", answer.body);
            let before = body["input"].as_array().unwrap().len();
            grow(&mut body, &answer.body);
            let called = body["input"].as_array().unwrap()[before..]
                .iter()
                .any(|i| i["type"] == "function_call");
            if !called {
                push(
                    &mut body,
                    "input",
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
