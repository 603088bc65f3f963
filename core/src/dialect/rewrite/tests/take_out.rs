//! Tables of what is removed: reasoning with its commas, but never all of a message.
//!
//! Blocks and items are written as two letters, to show their order.

use super::spliced;
use crate::dialect::rewrite::take_out;
use crate::dialect::{Dialect, read};

/// The body without these parts of a message.
fn out(dialect: Dialect, body: &str, message: usize, parts: &[usize]) -> String {
    let conversation = read(dialect, "/", body.as_bytes());
    match take_out(&conversation, body.as_bytes(), message, parts) {
        Some(edits) => spliced(body, edits),
        None => "none".to_owned(),
    }
}

#[test]
fn thinking_blocks_are_removed_with_their_commas() {
    let of =
        |content: &str| format!(r#"{{"messages":[{{"role":"assistant","content":{content}}}]}}"#);
    let filled = |content: &str| {
        let thought = content.replace("TT", r#"{"type":"thinking","thinking":"","signature":"s"}"#);
        of(&thought.replace("AA", r#"{"type":"text","text":"a"}"#))
    };
    for (content, parts, expected) in [
        ("[TT,AA]", &[0][..], "[AA]"),
        ("[ TT , AA ]", &[0], "[ AA ]"),
        ("[AA , TT ]", &[1], "[AA  ]"),
        ("[TT,TT,AA]", &[0, 1], "[AA]"),
        ("[TT,TT,AA]", &[1], "[TT,AA]"),
        ("[TT,AA,TT,TT,AA,TT]", &[0, 2, 3, 5], "[AA,AA]"),
        ("[TT,TT]", &[0], "[TT]"),
        ("[TT]", &[0], "none"),
        ("[TT,TT]", &[0, 1], "none"),
        (r#"[TT,{"type":"text","text":""}]"#, &[0], "none"),
        ("[TT,AA]", &[1], "none"),
        ("[TT,AA]", &[0, 1], "none"),
        ("[TT,AA]", &[7], "none"),
        ("[TT,AA]", &[], "none"),
    ] {
        let expected = if expected == "none" { "none".into() } else { filled(expected) };
        assert_eq!(out(Dialect::Anthropic, &filled(content), 0, parts), expected, "{content}");
    }
    let gemini = r#"{"contents":[{"role":"model","parts":[{"text":"t","thought":true},{"text":"a"}]},{"role":"model","parts":{"text":"t","thought":true}}]}"#;
    let left = r#"{"contents":[{"role":"model","parts":[{"text":"a"}]},{"role":"model","parts":{"text":"t","thought":true}}]}"#;
    assert_eq!(out(Dialect::Gemini, gemini, 0, &[0]), left);
    assert_eq!(out(Dialect::Gemini, gemini, 1, &[0]), "none");
    assert_eq!(out(Dialect::Gemini, gemini, 2, &[0]), "none");
}

#[test]
fn message_of_thinking_alone_is_removed_entirely() {
    let thought =
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"}]}"#;
    let user = r#"{"role":"user","content":"Go on."}"#;
    let of = |messages: &[&str]| format!(r#"{{"messages":[{}]}}"#, messages.join(" , "));
    let body = of(&[user, thought, user]);
    let left = format!(r#"{{"messages":[{user}  , {user}]}}"#);
    assert_eq!(out(Dialect::Anthropic, &body, 1, &[0]), left);
    assert_eq!(out(Dialect::Anthropic, &of(&[thought, user]), 0, &[0]), "none", "the first stays");
}

#[test]
fn chat_reasoning_is_removed_as_member_or_block() {
    let of = |inner: &str| format!(r#"{{"messages":[{{{inner}}}]}}"#);
    for (inner, parts, expected) in [
        (
            r#""role":"assistant","reasoning_content":"t","content":"a""#,
            &[0][..],
            r#""role":"assistant","content":"a""#,
        ),
        (
            r#""reasoning_content" : "t" , "role":"assistant","content":"a""#,
            &[0],
            r#""role":"assistant","content":"a""#,
        ),
        (
            r#""role":"assistant","content":"a","reasoning":"t""#,
            &[0],
            r#""role":"assistant","content":"a""#,
        ),
        (
            r#""reasoning_content":"t","reasoning":"t","role":"assistant","content":"a""#,
            &[0, 1],
            r#""role":"assistant","content":"a""#,
        ),
        (
            r#""reasoning_content":"t","role":"assistant","content":"a","reasoning":"t""#,
            &[0, 1],
            r#""role":"assistant","content":"a""#,
        ),
        (
            r#""reasoning":"t","role":"assistant","content":[{"type":"thinking","thinking":[]},{"type":"text","text":"a"}]"#,
            &[0, 1],
            r#""role":"assistant","content":[{"type":"text","text":"a"}]"#,
        ),
        (
            r#""role":"assistant","content":[{"type":"thinking","thinking":[]}],"tool_calls":[{"id":"1"}]"#,
            &[0],
            r#""role":"assistant","content":null,"tool_calls":[{"id":"1"}]"#,
        ),
        (
            r#""role":"assistant","content":{"type":"thinking","thinking":[]},"tool_calls":[{"id":"1"}]"#,
            &[0],
            "none",
        ),
        (
            r#""role":"assistant","content":[{"type":"thinking","thinking":[]}],"refusal":"no""#,
            &[0],
            "none",
        ),
        (r#""role":"assistant","content":null,"reasoning_content":"t""#, &[0], "none"),
        (r#""role":"assistant","content":"","reasoning_content":"t""#, &[0], "none"),
    ] {
        let expected = if expected == "none" { "none".into() } else { of(expected) };
        assert_eq!(out(Dialect::OpenaiChat, &of(inner), 0, parts), expected, "{inner}");
    }
}

#[test]
fn reasoning_items_are_removed_with_ids_of_items_bound_to_them() {
    let filled = |input: &str, store: &str| {
        let input = input
            .replace("RR", r#"{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"c"}"#)
            .replace("UU", r#"{"role":"user","content":"q"}"#)
            .replace("EE", r#"{"type":"additional_tools","tools":[]}"#)
            .replace("FF", r#"{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}"#)
            .replace(
                "NN",
                r#"{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}"}"#,
            )
            .replace(
                "OO",
                r#"{"type":"function_call_output","id":"fco_1","call_id":"1","output":"a"}"#,
            )
            .replace("MM", r#"{"id":"msg_1","role":"assistant","content":"a"}"#)
            .replace("WW", r#"{"role":"assistant","content":"a"}"#)
            .replace("SS", r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#);
        format!(r#"{{"input":[{input}]{store}}}"#)
    };
    let check = |store: &str, cases: &[(&str, usize, &str)]| {
        for (input, message, expected) in cases {
            let expected =
                if *expected == "none" { "none".into() } else { filled(expected, store) };
            let of = out(Dialect::OpenaiResponses, &filled(input, store), *message, &[0]);
            assert_eq!(of, expected, "{input}");
        }
    };
    check(
        r#","store":false"#,
        &[
            ("UU,RR,NN", 1, "UU,FF"),
            ("UU , RR , NN", 1, "UU  , FF"),
            ("UU,RR,SS,MM", 1, "UU,SS,WW"),
            ("UU,EE,RR,EE,NN", 1, "UU,EE,EE,FF"),
            ("RR,EE,WW", 0, "EE,WW"),
            ("UU,NN,RR", 2, "UU,NN"),
            ("UU,RR,EE", 1, "UU,EE"),
            ("RR", 0, "none"),
            ("UU,RR,SS", 1, "UU,SS"),
            ("UU,WW", 1, "none"),
        ],
    );
    check(
        "",
        &[
            ("UU,RR,NN,OO,MM,UU,MM", 1, "UU,FF,OO,WW,UU,MM"),
            ("UU,RR,NN,RR,NN", 1, "UU,FF,RR,NN"),
            ("UU,RR,RR,NN", 1, "UU,RR,NN"),
            ("UU,RR,FF", 1, "UU,FF"),
            ("UU,RR,SS,MM", 1, "none"),
            ("UU,RR", 1, "UU"),
        ],
    );
}
