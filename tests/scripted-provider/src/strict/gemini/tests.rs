//! Every Gemini rule: a request that breaks it is refused with the real error, a request that keeps it is accepted.

#![allow(clippy::semicolon_if_nothing_returned, reason = "edits of a request read as tables")]

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::{Value, json};

use crate::strict::tests::{BodyEdit, Client, filler_text, push};
use crate::strict::{
    DropReason, Loss, MissReason, MissedPrefix, Place, Rule, Rules, ScriptedReply, prompt,
};

const PRO: &str = "/v1beta/models/gemini-3-pro-preview:generateContent";
const OLD: &str = "/v1beta/models/gemini-2.5-pro:generateContent";

fn client(path: &'static str) -> Client {
    with(path, Rules::default())
}

fn with(path: &'static str, rules: Rules) -> Client {
    Client::new(path, &[("x-goog-api-key", "key")], rules)
}

fn first() -> Value {
    let parameters =
        json!({"type": "OBJECT", "properties": {"path": {"type": "STRING"}}, "required": ["path"]});
    let tool = |name: &str| json!({"name": name, "parameters": parameters});
    json!({
        "systemInstruction": {"parts": [{"text": "You are a coding agent."}]},
        "tools": [{"functionDeclarations": [tool("read"), tool("list")]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
        "contents": [{"role": "user", "parts": [{"text": "Why does the build fail?"}]}],
    })
}

fn grow(body: &mut Value, answer: &Value) {
    let content = &answer["candidates"][0]["content"];
    push(body, "contents", content.clone());
    let responses: Vec<Value> = prompt::items(&content["parts"])
        .filter(|part| part["functionCall"].is_object())
        .map(|part| {
            let call = &part["functionCall"];
            json!({"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": "nothing"}}})
        })
        .collect();
    if !responses.is_empty() {
        push(body, "contents", json!({"role": "user", "parts": responses}));
    }
}

fn thinking_then_two_calls() -> ScriptedReply {
    let thinking = ScriptedReply::thinking("Look at both.", 70).with_text("I will look.");
    thinking.with_call("read", json!({"path": "a"})).with_call("list", json!({"path": "b"}))
}

/// `[user, [thought, text, call, call], [response, response]]`
fn open_loop(client: &Client) -> Value {
    let mut body = first();
    let answer = client.reply_to(&body, thinking_then_two_calls());
    grow(&mut body, &answer);
    body
}

fn add_user_turn(body: &mut Value, text: &str) {
    push(body, "contents", json!({"role": "user", "parts": [{"text": text}]}));
}

fn place(message: usize, block: usize) -> Place {
    Place::Message { message, block }
}

#[test]
fn well_formed_loop_is_accepted() {
    for path in [PRO, OLD] {
        let client = client(path);
        let mut body = open_loop(&client);
        assert_eq!(client.accept(&body).losses, [], "{path}");
        let answer =
            client.reply_to(&body, ScriptedReply::thinking("So.", 9).with_text("The parser."));
        grow(&mut body, &answer);
        add_user_turn(&mut body, "And now?");
        assert_eq!(client.accept(&body).losses, [], "{path}");
    }
}

#[test]
fn both_cases_of_fields_are_read() {
    let client = client(PRO);
    let body = open_loop(&client);
    let whole = client.accept(&body).input_tokens;
    let snake = body
        .to_string()
        .replace("systemInstruction", "system_instruction")
        .replace("functionDeclarations", "function_declarations")
        .replace("functionCall", "function_call")
        .replace("functionResponse", "function_response")
        .replace("thoughtSignature", "thought_signature");
    let snake: Value = serde_json::from_str(&snake).unwrap();
    let accepted = client.accept(&snake);
    assert!(accepted.losses.iter().all(|loss| matches!(loss, Loss::CacheMissed { .. })));
    assert!(accepted.input_tokens.abs_diff(whole) < 4, "only the tools' own names are longer");
    let mut lost = snake.clone();
    lost["contents"][1]["parts"][2].as_object_mut().unwrap().remove("thought_signature");
    client.refuse(&lost, Rule::SignatureMissing, "missing a thought_signature");
}

#[test]
fn malformed_requests_are_refused() {
    let table: &[(Rule, &str, BodyEdit)] = &[
        (Rule::UnknownField, "Unknown name \"messages\": Cannot find field.", |b| {
            b["messages"] = json!([])
        }),
        (Rule::FieldRequired, "contents is not specified", |b| b["contents"] = json!([])),
        (Rule::Role, "Please use a valid role: user, model.", |b| {
            b["contents"][1]["role"] = json!("assistant")
        }),
        (Rule::UnknownField, "Unknown name \"id\" at 'contents[0]'", |b| {
            b["contents"][0]["id"] = json!(1)
        }),
        (Rule::EmptyContent, "contents[0].parts: contents.parts must not be empty", |b| {
            b["contents"][0]["parts"] = json!([]);
        }),
        (Rule::EmptyContent, "contents[0].parts[0].data: required oneof field", |b| {
            b["contents"][0]["parts"] = json!([{"text": ""}]);
        }),
        (Rule::EmptyContent, "required oneof field 'data'", |b| {
            b["contents"][0]["parts"] = json!([{"thought": true}]);
        }),
        (Rule::BadValue, "oneof field 'data' is already set", |b| {
            b["contents"][1]["parts"][2]["text"] = json!("x");
        }),
        (Rule::UnknownField, "Unknown name \"signature\" at 'contents[1].parts[2]'", |b| {
            b["contents"][1]["parts"][2]["signature"] = json!("x");
        }),
        (
            Rule::ResponseForm,
            "contents[2].parts[0].function_response.response' (type.googleapis.com/google.protobuf.Struct), \"cut\"",
            |b| {
                b["contents"][2]["parts"][0]["functionResponse"]["response"] = json!("cut");
            },
        ),
        (Rule::ResponseForm, "function_call.args", |b| {
            b["contents"][1]["parts"][2]["functionCall"]["args"] = json!("{}");
        }),
        (Rule::FieldRequired, "name is not specified", |b| {
            b["contents"][2]["parts"][0]["functionResponse"]
                .as_object_mut()
                .unwrap()
                .remove("name");
        }),
        (Rule::CachedContent, "CachedContent can not be used", |b| {
            b["cachedContent"] = json!("cachedContents/1")
        }),
    ];
    let mut client = client(PRO);
    let body = open_loop(&client);
    for (rule, message, edit) in table {
        let mut broken = body.clone();
        edit(&mut broken);
        client.refuse(&broken, *rule, message);
    }
    let alone = json!({"contents": body["contents"], "cachedContent": "cachedContents/1"});
    client.refuse(&alone, Rule::NotSimulated, "explicit caches");
    client.headers.clear();
    client.refuse(&body, Rule::Authentication, "unregistered callers");
}

#[test]
fn unpaired_function_calls_and_responses_are_refused() {
    let client = client(PRO);
    let body = open_loop(&client);
    let edit = |edit: fn(&mut Vec<Value>)| {
        let mut broken = body.clone();
        edit(broken["contents"].as_array_mut().unwrap());
        broken
    };
    let count = "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.";
    client.refuse(
        &edit(|all| drop(all[2]["parts"].as_array_mut().unwrap().pop())),
        Rule::ResponseCount,
        count,
    );
    client.refuse(&edit(|all| drop(all.pop())), Rule::ResponseCount, count);
    let between = edit(|all| all.insert(2, json!({"role": "user", "parts": [{"text": "!"}]})));
    client.refuse(&between, Rule::ResponseCount, count);
    let stray = edit(|all| drop(all.remove(1)));
    client.refuse(
        &stray,
        Rule::ResultWithoutCall,
        "function response turn comes immediately after a function call turn",
    );
    let order =
        "function call turn comes immediately after a user turn or after a function response turn";
    client.refuse(&edit(|all| drop(all.remove(0))), Rule::TurnOrder, order);
    // An SDK keeps each chunk as a content: a step is then a run of them.
    let split = edit(|all| {
        let parts = all.remove(1)["parts"].as_array().unwrap().clone();
        for part in parts.into_iter().rev() {
            all.insert(1, json!({"role": "model", "parts": [part]}));
        }
    });
    assert_eq!(client.accept(&split).losses, []);
    let renamed = edit(|all| all[2]["parts"][0]["functionResponse"]["name"] = json!("write"));
    client.refuse(&renamed, Rule::ResponseForm, "does not match any function call");
    let foreign = edit(|all| all[2]["parts"][0]["functionResponse"]["id"] = json!("other"));
    client.refuse(&foreign, Rule::ResponseForm, "does not match any function call");
    client.accept(&edit(|all| all[2]["parts"].as_array_mut().unwrap().reverse()));
    client.accept(&edit(|all| all[2]["role"] = json!("function")));
    let without_ids = edit(|all| {
        for part in all[2]["parts"].as_array_mut().unwrap() {
            part["functionResponse"].as_object_mut().unwrap().remove("id");
        }
    });
    client.accept(&without_ids);
}

#[test]
fn first_call_needs_signature() {
    let client = client(PRO);
    let mut body = open_loop(&client);
    let answer =
        client.reply_to(&body, ScriptedReply::default().with_call("read", json!({"path": "c"})));
    grow(&mut body, &answer);
    client.accept(&body);
    let call = |body: &Value, content: usize, part: usize| {
        body["contents"][content]["parts"][part].clone()
    };
    assert!(call(&body, 1, 2)["thoughtSignature"].is_string());
    assert!(call(&body, 1, 3)["thoughtSignature"].is_null(), "of parallel calls the first alone");
    assert!(call(&body, 3, 0)["thoughtSignature"].is_string(), "each step has one");
    for (content, part) in [(1, 2), (3, 0)] {
        let mut lost = body.clone();
        lost["contents"][content]["parts"][part]
            .as_object_mut()
            .unwrap()
            .remove("thoughtSignature");
        client.refuse(
            &lost,
            Rule::SignatureMissing,
            "Function call is missing a thought_signature in functionCall parts.",
        );
        client.refuse(&lost, Rule::SignatureMissing, &format!("position {}", content + 1));
        add_user_turn(&mut lost, "Never mind.");
        client.accept(&lost);
    }
}

#[test]
fn invalid_or_moved_signatures_are_refused_on_any_part() {
    let client = client(PRO);
    let mut body = open_loop(&client);
    let answer = client.reply_to(&body, ScriptedReply::thinking("So.", 9).with_text("The parser."));
    grow(&mut body, &answer);
    add_user_turn(&mut body, "And?");
    let signed = |value: &str| {
        let mut body = body.clone();
        body["contents"][1]["parts"][2]["thoughtSignature"] = json!(value);
        body
    };
    client.refuse(&signed("AAAA"), Rule::SignatureInvalid, "Corrupted thought signature.");
    let own = body["contents"][1]["parts"][2]["thoughtSignature"].as_str().unwrap();
    client.accept(&signed(&URL_SAFE.encode(STANDARD.decode(own).unwrap())));
    client.accept(&signed("skip_thought_signature_validator"));
    let mut edited = body.clone();
    edited["contents"][1]["parts"][2]["functionCall"]["args"]["path"] = json!("z");
    client.refuse(&edited, Rule::SignatureInvalid, "Thought signature is not valid");
    let mut moved = body.clone();
    moved["contents"][1]["parts"][3]["thoughtSignature"] = json!(own);
    client.refuse(&moved, Rule::SignatureInvalid, "Thought signature is not valid");
    let mut merged = body.clone();
    let tail = merged["contents"][3]["parts"].as_array_mut().unwrap();
    let signature = tail.pop().unwrap()["thoughtSignature"].clone();
    tail.last_mut().unwrap()["thoughtSignature"] = signature;
    client.refuse(&merged, Rule::SignatureInvalid, "Thought signature is not valid");
}

#[test]
fn absent_signature_that_is_not_required_is_loss() {
    let old = client(OLD);
    let mut body = open_loop(&old);
    body["contents"][1]["parts"][2].as_object_mut().unwrap().remove("thoughtSignature");
    let absent = Loss::SignatureAbsent { place: place(1, 2) };
    assert_eq!(old.accept(&body).losses, std::slice::from_ref(&absent));
    let pro = client(PRO);
    let mut body = open_loop(&pro);
    body["contents"][1]["parts"][2]["thoughtSignature"] = json!("skip_thought_signature_validator");
    assert_eq!(pro.accept(&body).losses, [absent]);
    add_user_turn(&mut body, "Never mind.");
    assert_eq!(pro.accept(&body).losses, [], "earlier turns are not looked at");
    let mut flash = client(PRO);
    let body = open_loop(&flash);
    flash.path = "/v1beta/models/gemini-3-flash:generateContent";
    let losses = flash.accept(&body).losses;
    assert_eq!(losses[0], Loss::ReasoningDropped { place: place(1, 2), reason: DropReason::Model });
}

#[test]
fn thoughts_count_in_their_turn() {
    let client = client(PRO);
    let mut body = first();
    let answer = client.reply_to(&body, thinking_then_two_calls());
    let usage = &answer["usageMetadata"];
    assert_eq!(usage["thoughtsTokenCount"], 74);
    assert_eq!(answer["candidates"][0]["content"]["parts"][0]["thought"], true);
    grow(&mut body, &answer);
    let results: u64 = 2 * prompt::measure("r", &json!({"output": "nothing"})).tokens;
    let total = usage["totalTokenCount"].as_u64().unwrap();
    assert_eq!(client.accept(&body).input_tokens, total + results);
    let thoughts = |body: &Value| {
        let mut skipped = body.clone();
        skipped["contents"][1]["parts"][2]["thoughtSignature"] =
            json!("skip_thought_signature_validator");
        client.accept(body).input_tokens - client.accept(&skipped).input_tokens
    };
    assert_eq!(thoughts(&body), 74);
    add_user_turn(&mut body, "Never mind.");
    assert_eq!(thoughts(&body), 0);
}

#[test]
fn request_past_window_is_refused() {
    let client = with(PRO, Rules { window: Some(1000), ..Rules::default() });
    let mut body = first();
    client.accept(&body);
    body["contents"][0]["parts"][0]["text"] = json!(filler_text("long", 1100));
    client.refuse(&body, Rule::Overflow, "The input token count (1");
    client.refuse(&body, Rule::Overflow, ") exceeds the maximum number of tokens allowed (1000).");
    body["contents"][0]["parts"][0]["text"] = json!("Long?");
    body["generationConfig"]["maxOutputTokens"] = json!(40);
    let answer = client
        .reply_to(&body, ScriptedReply::thinking("", 30).with_text(&filler_text("much", 100)));
    assert_eq!(answer["candidates"][0]["finishReason"], "MAX_TOKENS");
}

#[test]
fn prefixes_cached_without_markers() {
    let client = client(PRO);
    let mut body = first();
    body["systemInstruction"]["parts"][0]["text"] = json!(filler_text("system", 5000));
    let answer = client.reply_to(&body, thinking_then_two_calls());
    assert_eq!(answer["usageMetadata"].get("cachedContentTokenCount"), None);
    grow(&mut body, &answer);
    let answer = client.reply_to(&body, ScriptedReply::text("The parser."));
    assert!(answer["usageMetadata"]["cachedContentTokenCount"].as_u64().unwrap() > 5000);
    grow(&mut body, &answer);
    add_user_turn(&mut body, "And?");
    let next = client.accept(&body);
    assert!(
        matches!(
            next.cache_usage.missed,
            Some(MissedPrefix { reason: MissReason::ProviderEdit(_), .. })
        ),
        "the turn's thoughts went: {next:?}"
    );
    assert_eq!(next.losses, []);
    body["contents"][0]["parts"][0]["text"] = json!("Why?");
    let missed = client.accept(&body).cache_usage.missed.map(|missed| missed.reason);
    assert_eq!(missed, Some(MissReason::Changed(place(0, 0))));
}

#[test]
fn count_request_has_one_body() {
    let mut client = client(PRO);
    let body = open_loop(&client);
    let whole = client.accept(&body).input_tokens;
    client.path = "/v1beta/models/gemini-3-pro-preview:countTokens";
    let count =
        |body: &Value| client.provider.respond(&client.request(body)).body["totalTokens"].as_u64();
    assert_eq!(count(&json!({"generateContentRequest": body})), Some(whole));
    assert!(count(&json!({"contents": body["contents"]})).unwrap() < whole);
    let mut lost = body.clone();
    lost["contents"][1]["parts"][2].as_object_mut().unwrap().remove("thoughtSignature");
    client.refuse(&json!({"generateContentRequest": lost}), Rule::SignatureMissing, "missing");
}

#[test]
fn generated_is_never_refused() {
    for path in [PRO, OLD] {
        let client = client(path);
        let mut body = first();
        for turn in 0..30 {
            let answer = client.provider.respond(&client.request(&body));
            assert_eq!(answer.status, 200, "{path}, {turn}: {}", answer.body);
            let before = body["contents"].as_array().unwrap().len();
            grow(&mut body, &answer.body);
            if body["contents"].as_array().unwrap().len() == before + 1 {
                add_user_turn(&mut body, &format!("More, {turn}"));
            }
        }
        let log = client.provider.take_log();
        let losses: Vec<Loss> =
            log.iter().flat_map(|entry| entry.verdict.losses().to_vec()).collect();
        assert_eq!(losses, [], "{path}");
    }
}
