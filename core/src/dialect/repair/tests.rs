//! Each edit on a small body of each dialect: what is changed, and that a second pass changes nothing.

use super::*;
use crate::wire::splice::applied;

fn repaired(repair: &Repair, dialect: Dialect, body: &str) -> String {
    let edits = repair.edits(dialect, body.as_bytes());
    let out = applied(body.as_bytes(), &edits);
    assert!(edits.is_empty() || out != body.as_bytes(), "edits that change nothing: {body}");
    let second = repair.edits(dialect, &out);
    let out = String::from_utf8(out).unwrap();
    assert!(second.is_empty(), "{repair:?} twice of {body}\n{out}\n{second:?}");
    out
}

fn empty(dialect: Dialect, body: &str) -> String {
    repaired(&Repair::Empty { text: NO_CONTENT.into() }, dialect, body)
}

fn paired(dialect: Dialect, body: &str) -> String {
    let out = repaired(&Repair::ToolPairs { text: "none".into() }, dialect, body);
    let plain = out.replace("\\ud83d", "");
    serde_json::from_str::<serde_json::Value>(&plain).unwrap_or_else(|why| panic!("{why}: {out}"));
    out
}

use Dialect::{Anthropic, Gemini, OpenaiChat as Chat, OpenaiResponses as Responses};

#[test]
fn empty_text_is_removed_or_filled() {
    let text = r#"{"type":"text","text":"(no content)"}"#;
    for (dialect, body, expected) in [
        (
            Anthropic,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":" "},{"type":"text","text":"a"}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#.to_owned(),
        ),
        (
            Anthropic,
            r#"{"messages":[{"role":"user","content":""},{"role":"assistant","content":[]}]}"#,
            format!(
                r#"{{"messages":[{{"role":"user","content":"(no content)"}},{{"role":"assistant","content":[{text}]}}]}}"#
            ),
        ),
        (
            Anthropic,
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":""}]}]}]}"#,
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":[{text}]}}]}}]}}"#
            ),
        ),
        (
            Anthropic,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b \n"}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#.to_owned(),
        ),
        (
            Chat,
            r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"a"}]},{"role":"tool","content":""}]}"#,
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]},{"role":"tool","content":"(no content)"}]}"#.to_owned(),
        ),
        (
            Chat,
            r#"{"messages":[{"role":"assistant","content":null}]}"#,
            r#"{"messages":[{"role":"assistant","content":"(no content)"}]}"#.to_owned(),
        ),
        (
            Responses,
            r#"{"input":[{"role":"user","content":[{"type":"input_text","text":""}]},{"type":"function_call","call_id":"a"}]}"#,
            r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"(no content)"}]},{"type":"function_call","call_id":"a"}]}"#.to_owned(),
        ),
        (
            Gemini,
            r#"{"contents":[{"role":"user","parts":[]},{"role":"model","parts":[{"text":""},{"text":"a"}]}]}"#,
            r#"{"contents":[{"role":"user","parts":[{"text":"(no content)"}]},{"role":"model","parts":[{"text":"a"}]}]}"#.to_owned(),
        ),
    ] {
        assert_eq!(empty(dialect, body), expected, "{body}");
    }
}

#[test]
fn invalid_characters_are_replaced_and_nothing_else() {
    let unicode = |body: &str| repaired(&Repair::Unicode, Anthropic, body);
    assert_eq!(unicode(r#"{"a":"x\ud83dy\udc00 \ud83d\ude00 \\ud83d"}"#), {
        r#"{"a":"x\ufffdy\ufffd \ud83d\ude00 \\ud83d"}"#
    });
    let broken = b"{\"a\":\"\xff\xe2\x82 x\"}";
    let out = applied(broken, &Repair::Unicode.edits(Anthropic, broken));
    assert_eq!(String::from_utf8(out).unwrap(), "{\"a\":\"\u{fffd}\u{fffd} x\"}");
}

#[test]
fn anthropic_calls_pair() {
    let call = |id: &str| {
        format!(
            r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"{id}","name":"t","input":{{}}}}]}}"#
        )
    };
    let result =
        |id: &str| format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"r-{id}"}}"#);
    let none = |id: &str| {
        format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"none","is_error":true}}"#)
    };
    let user = |content: &str| format!(r#"{{"role":"user","content":{content}}}"#);
    let body = |messages: &[String]| format!(r#"{{"messages":[{}]}}"#, messages.join(","));
    let begins = || user("\"a\"");
    let text = r#"{"type":"text","text":"b"}"#;
    for (before, after) in [
        // A call without a result.
        (
            vec![begins(), call("1"), user("\"b\"")],
            vec![begins(), call("1"), user(&format!("[{},{text}]", none("1")))],
        ),
        // The same at the end of the history.
        (vec![begins(), call("1")], vec![begins(), call("1"), user(&format!("[{}]", none("1")))]),
        // A result without its call.
        (
            vec![begins(), user(&format!("[{},{text}]", result("9")))],
            vec![begins(), user(&format!("[{text}]"))],
        ),
        // A result after text, and one that is a message too late.
        (
            vec![begins(), call("1"), user(&format!("[{text},{}]", result("1")))],
            vec![begins(), call("1"), user(&format!("[{},{text}]", result("1")))],
        ),
        (
            vec![begins(), call("1"), user("\"b\""), user(&format!("[{},{text}]", result("1")))],
            vec![
                begins(),
                call("1"),
                user(&format!("[{},{text}]", result("1"))),
                user(&format!("[{text}]")),
            ],
        ),
        // The same result twice.
        (
            vec![begins(), call("1"), user(&format!("[{},{}]", result("1"), result("1")))],
            vec![begins(), call("1"), user(&format!("[{}]", result("1")))],
        ),
        // Two calls with the same id.
        (
            vec![
                begins(),
                call("1"),
                user(&format!("[{}]", result("1"))),
                call("1"),
                user(&format!("[{}]", result("1"))),
            ],
            vec![
                begins(),
                call("1"),
                user(&format!("[{}]", result("1"))),
                call("1_2"),
                user(&format!("[{}]", result("1").replacen("\"1\"", "\"1_2\"", 1))),
            ],
        ),
    ] {
        assert_eq!(paired(Anthropic, &body(&before)), body(&after));
    }
    let whole = body(&[begins(), call("1"), user(&format!("[{},{text}]", result("1")))]);
    assert_eq!(paired(Anthropic, &whole), whole);
}

#[test]
fn calls_and_results_of_chat_pair() {
    let user = r#"{"role":"user","content":"a"}"#;
    let call = r#"{"role":"assistant","tool_calls":[{"id":"1"},{"id":"2"}]}"#;
    let result =
        |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"r-{id}"}}"#);
    let none = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"none"}}"#);
    let body = |messages: &[&str]| format!(r#"{{"messages":[{}]}}"#, messages.join(","));
    let (one, two, none_two) = (result("1"), result("2"), none("2"));
    for (before, after) in [
        (vec![user, call, &one, user], vec![user, call, &none_two, &one, user]),
        (vec![user, call, &one, user, &two], vec![user, call, &two, &one, user]),
        (vec![user, &two, user], vec![user, user]),
        (vec![user, call, &one, &two, &one], vec![user, call, &one, &two]),
    ] {
        assert_eq!(paired(Chat, &body(&before)), body(&after));
    }
    let whole = body(&[user, call, &two, &one, user]);
    assert_eq!(paired(Chat, &whole), whole);
}

#[test]
fn responses_calls_pair() {
    let user = r#"{"role":"user","content":"a"}"#;
    let call = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}"}}"#);
    let output =
        |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"r"}}"#);
    let none =
        |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"none"}}"#);
    let body = |items: &[&str]| format!(r#"{{"input":[{}]}}"#, items.join(","));
    let (one, two, of_one) = (call("1"), call("2"), output("1"));
    let (none_one, none_two) = (none("1"), none("2"));
    let (next, of_next, none_next) = (call("1_2"), output("1_2"), none("1_2"));
    let named = r#"{"type":"function_call","id":"fc_1","call_id":"1"}"#;
    let message = r#"{"type":"message","id":"msg_1","role":"assistant","content":"b"}"#;
    let by_program =
        r#"{"type":"function_call","call_id":"1","caller":{"type":"program","caller_id":"p"}}"#;
    let none_program = r#"{"type":"function_call_output","call_id":"1","output":"none","caller":{"type":"program","caller_id":"p"}}"#;
    for (before, after) in [
        (vec![user, &one, &two, &of_one], vec![user, &one, &two, &none_two, &of_one]),
        (vec![user, &one], vec![user, &one, &none_one]),
        (vec![user, &of_one, user], vec![user, user]),
        (vec![user, &of_one, &one], vec![user, &one, &of_one]),
        // A second call with the same id gets another id; an exact repetition is removed.
        (vec![&one, &of_one, &one, &of_one], vec![&one, &of_one, &next, &of_next]),
        (vec![&one, &of_one, &one], vec![&one, &of_one, &next, &none_next]),
        (vec![&one, &one, &of_one], vec![&one, &of_one]),
        (vec![named, &of_one, named, &of_one, user], vec![named, &of_one, user]),
        (vec![message, user, message], vec![message, user]),
        (vec![by_program], vec![by_program, none_program]),
    ] {
        assert_eq!(paired(Responses, &body(&before)), body(&after));
    }
}

#[test]
fn calls_and_responses_of_gemini_pair() {
    let user = r#"{"role":"user","parts":[{"text":"a"}]}"#;
    let call = r#"{"role":"model","parts":[{"functionCall":{"name":"t","args":{}}},{"functionCall":{"name":"u","args":{}}}]}"#;
    let one = r#"{"functionResponse":{"name":"t","response":{"output":1}}}"#;
    let none = r#"{"functionResponse":{"name":"u","response":{"error":"none"}}}"#;
    let none_t = r#"{"functionResponse":{"name":"t","response":{"error":"none"}}}"#;
    let turn = |parts: &str| format!(r#"{{"role":"user","parts":[{parts}]}}"#);
    let body = |contents: &[&str]| format!(r#"{{"contents":[{}]}}"#, contents.join(","));
    let (short, full) = (turn(one), turn(&format!("{one},{none}")));
    let answered = turn(&format!("{none_t},{none}"));
    let gone = turn(r#"{"text":"(no content)"}"#);
    for (before, after) in [
        (vec![user, call, &short], vec![user, call, &full]),
        (vec![user, call, user], vec![user, call, &answered, user]),
        (vec![user, &short], vec![user, &gone]),
        (vec![user, call, &full], vec![user, call, &full]),
    ] {
        assert_eq!(paired(Gemini, &body(&before)), body(&after));
    }
}

#[test]
fn repaired_id_is_same_in_result() {
    let body = r#"{"messages":[{"tool_calls":[{"id":"call_0fypS1hVX"}]},{"role":"tool","tool_call_id":"call_0fypS1hVX"},{"role":"tool","tool_call_id":"abcdefgh1"}]}"#;
    let out = repaired(&Repair::ToolIds { length: Some(9) }, Chat, body);
    let read: serde_json::Value = serde_json::from_str(&out).unwrap();
    let id = read["messages"][0]["tool_calls"][0]["id"].as_str().unwrap();
    assert_eq!(id.len(), 9);
    assert_eq!(read["messages"][1]["tool_call_id"].as_str(), Some(id));
    assert_eq!(read["messages"][2]["tool_call_id"], "abcdefgh1");
    let body = r#"{"messages":[{"content":[{"type":"tool_use","id":"a.b"},{"type":"tool_use","id":"a-b"}]},{"content":[{"type":"tool_result","tool_use_id":"a.b"}]}]}"#;
    let out = repaired(&Repair::ToolIds { length: None }, Anthropic, body);
    assert!(!out.contains("a.b"), "{out}");
    assert!(out.contains("\"a-b\""), "{out}");
}

#[test]
fn surplus_cache_markers_are_removed_from_oldest_messages() {
    let mark = r#","cache_control":{"type":"ephemeral"}"#;
    let body = format!(
        r#"{{"system":[{{"type":"text","text":"s"{mark}}}],"messages":[{{"content":[{{"type":"text","text":"a"{mark}}},{{"type":"text","text":"b"{mark}}}]}}]}}"#
    );
    let out = repaired(&Repair::CacheMarks { most: 2 }, Anthropic, &body);
    let expected = format!(
        r#"{{"system":[{{"type":"text","text":"s"{mark}}}],"messages":[{{"content":[{{"type":"text","text":"a"}},{{"type":"text","text":"b"{mark}}}]}}]}}"#
    );
    assert_eq!(out, expected);
}

#[test]
fn refused_member_is_removed_in_every_matching_place() {
    let body = r#"{"messages":[{"role":"a","x":1,"content":[{"x":2}]},{"x":3,"role":"b"}],"x":4}"#;
    let field = |place: &str| repaired(&Repair::Field { place: place.into() }, Chat, body);
    assert_eq!(
        field("messages.*.x"),
        r#"{"messages":[{"role":"a","content":[{"x":2}]},{"role":"b"}],"x":4}"#
    );
    assert_eq!(field("x"), body.replace(r#","x":4"#, ""), "a member of the request itself");
    for kept in ["messages", "messages.*.role", "messages.*", "tools.*.x", ""] {
        assert_eq!(field(kept), body, "{kept}");
    }
    let asks = r#"{"model":"m","tools":[],"max_tokens":9,"thinking":{"type":"adaptive"}}"#;
    for kept in ["model", "tools", "max_tokens", "thinking"] {
        assert_eq!(repaired(&Repair::Field { place: kept.into() }, Chat, asks), asks, "{kept}");
    }
}

#[test]
fn references_to_tools_that_are_not_defined_are_removed() {
    let found = |names: &[&str]| {
        let list =
            names.iter().map(|it| format!(r#"{{"type":"tool_reference","tool_name":"{it}"}}"#));
        list.collect::<Vec<_>>().join(",")
    };
    let body = |one: &str, all: &str| {
        format!(
            r#"{{"tools":[{{"name":"look"}}],"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":[{one}]}}]}},{{"role":"assistant","content":[{{"type":"tool_search_tool_result","tool_use_id":"b","content":{{"type":"tool_search_tool_search_result","tool_references":[{all}]}}}}]}}]}}"#
        )
    };
    let out = |body: &str| repaired(&Repair::ToolReferences, Anthropic, body);
    let kept = body(&found(&["look"]), &found(&["look"]));
    assert_eq!(out(&body(&found(&["gone", "look"]), &found(&["look", "gone"]))), kept);
    assert_eq!(out(&kept), kept);
    let nothing = body(r#"{"type":"text","text":"(no content)"}"#, "");
    assert_eq!(out(&body(&found(&["gone"]), &found(&["gone"]))), nothing);
}

#[test]
fn output_limit_is_lowered_and_thinking_budget_below_it() {
    for (dialect, body, expected) in [
        (
            Anthropic,
            r#"{"max_tokens":64000,"thinking":{"type":"enabled","budget_tokens":32000}}"#,
            r#"{"max_tokens":8000,"thinking":{"type":"enabled","budget_tokens":6000}}"#,
        ),
        (
            Anthropic,
            r#"{"max_tokens":9000,"thinking":{"budget_tokens":2000}}"#,
            r#"{"max_tokens":8000,"thinking":{"budget_tokens":2000}}"#,
        ),
        (Chat, r#"{"max_completion_tokens":9000}"#, r#"{"max_completion_tokens":8000}"#),
        (Responses, r#"{"max_output_tokens":9000}"#, r#"{"max_output_tokens":8000}"#),
        (
            Gemini,
            r#"{"generationConfig":{"maxOutputTokens":65536}}"#,
            r#"{"generationConfig":{"maxOutputTokens":8000}}"#,
        ),
        (Chat, r#"{"max_tokens":100}"#, r#"{"max_tokens":100}"#),
    ] {
        assert_eq!(repaired(&Repair::MaxTokens { most: 8000 }, dialect, body), expected, "{body}");
    }
}

/// Messages of each dialect, valid and invalid ones.
const MESSAGES: [&[&str]; 4] = [
    &[
        r#"{"role":"user","content":"a"}"#,
        r#"{"role":"user","content":""}"#,
        r#"{"role":"assistant","content":[]}"#,
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"t","input":{}}]}"#,
        r#"{"role":"assistant","content":[{"type":"text","text":" "},{"type":"tool_use","id":"2:","name":"t"}]}"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}"#,
        r#"{"role":"user","content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}},{"type":"tool_result","tool_use_id":"2:"}]}"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":""}]},{"type":"text","text":"\ud83d"}]}"#,
    ],
    &[
        r#"{"role":"user","content":"a"}"#,
        r#"{"role":"user","content":[]}"#,
        r#"{"role":"assistant","content":""}"#,
        r#"{"role":"assistant","content":"","tool_calls":[{"id":"1"},{"id":"2"}]}"#,
        r#"{"role":"tool","tool_call_id":"1","content":"r"}"#,
        r#"{"role":"tool","tool_call_id":"2","content":""}"#,
    ],
    &[
        r#"{"role":"user","content":[{"type":"input_text","text":""}]}"#,
        r#"{"type":"function_call","call_id":"1"}"#,
        r#"{"type":"function_call","call_id":"2"}"#,
        r#"{"type":"custom_tool_call","call_id":"1"}"#,
        r#"{"type":"function_call_output","call_id":"1","output":"r"}"#,
        r#"{"type":"custom_tool_call_output","call_id":"3","output":"r"}"#,
    ],
    &[
        r#"{"role":"user","parts":[{"text":""}]}"#,
        r#"{"role":"model","parts":[{"functionCall":{"name":"t"}},{"functionCall":{"name":"t"}}]}"#,
        r#"{"role":"user","parts":[{"functionResponse":{"name":"t","response":{"output":1}}}]}"#,
        r#"{"role":"user","parts":[{"functionResponse":{"name":"u","response":{}}},{"text":"b"}]}"#,
        r#"{"role":"model","parts":[{"text":"c"},{}]}"#,
    ],
];

proptest::proptest! {
    /// Whatever a history contains, its edits can be applied, the result is JSON, and it is not changed again.
    #[test]
    fn second_repair_changes_nothing(
        pieces in proptest::collection::vec(0usize..8, 0..12),
        dialect in 0usize..4,
    ) {
        let (of, name) = [(Anthropic, "messages"), (Chat, "messages"), (Responses, "input"), (Gemini, "contents")][dialect];
        let all: Vec<&str> = pieces.iter().map(|at| MESSAGES[dialect][at % MESSAGES[dialect].len()]).collect();
        let body = format!("{{\"{name}\":[{}]}}", all.join(","));
        fuzz(of, body.as_bytes());
        empty(of, &body);
        paired(of, &body);
        repaired(&Repair::CacheMarks { most: 1 }, of, &body);
        repaired(&Repair::ToolIds { length: None }, of, &body);
    }

    #[test]
    fn invariant_8_never_panics(
        pieces in proptest::collection::vec(0usize..24, 0..40),
        dialect in 0usize..4,
    ) {
        const PIECES: [&str; 24] = [
            "{\"messages\":[", "{\"contents\":[", "{\"input\":[", "]}", "{\"role\":\"assistant\",", "{\"role\":\"user\",",
            "\"content\":[", "\"content\":\"\"", "{\"type\":\"tool_use\",\"id\":\"a\"}", "\"parts\":[", "]", "}", ",",
            "{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}", "{\"functionCall\":{\"name\":\"a\"}}",
            "{\"functionResponse\":{\"name\":\"a\"}}", "{\"type\":\"function_call\",\"call_id\":\"a\"}",
            "{\"type\":\"function_call_output\",\"call_id\":\"b\"}", "\"tool_calls\":[{\"id\":\"a\"}]",
            "{\"role\":\"tool\",\"tool_call_id\":\"a\"}", "{\"type\":\"text\",\"text\":\"\"}",
            "\"cache_control\":{}", "\\ud800", "null",
        ];
        let body: String = pieces.into_iter().map(|at| PIECES[at]).collect();
        fuzz([Anthropic, Chat, Responses, Gemini][dialect], body.as_bytes());
    }
}
