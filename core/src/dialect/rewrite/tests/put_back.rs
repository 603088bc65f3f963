//! Tables of what is put back: reasoning among blocks, parts, items and members, and signatures on parts.
//!
//! Raw reasoning is kept short: its place does not depend on its content.

use super::{inside, spliced};
use crate::dialect::rewrite::{ReasoningInsert, put_back, restore_signature};
use crate::dialect::{Dialect, PartIndex, read};

/// The message (in Responses, the last item) with blocks put back. Each block is the number of the part that it
/// preceded, and its raw bytes.
fn back(dialect: Dialect, message: &str, blocks: &[(usize, &str)]) -> String {
    let (head, tail) = match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => (r#"{"messages":["#, "]}"),
        Dialect::OpenaiResponses => (r#"{"input":["#, r#"],"store":false}"#),
        Dialect::Gemini => (r#"{"contents":["#, "]}"),
    };
    let body = format!("{head}{message}{tail}");
    let conversation = read(dialect, "/", body.as_bytes());
    let blocks: Vec<ReasoningInsert<'_>> =
        blocks.iter().map(|(before, raw)| ReasoningInsert { before: *before, raw }).collect();
    let last = conversation.messages.len() - 1;
    let out = spliced(&body, put_back(&conversation, body.as_bytes(), last, &blocks));
    inside(&out, head, tail)
}

#[test]
fn thinking_goes_back_among_blocks_of_anthropic() {
    type Case<'a> = (&'a str, &'a [(usize, &'a str)], &'a str);
    let cases: [Case<'_>; 12] = [
        (r#"[{"type":"text","text":"a"}]"#, &[(0, "{}")], r#"[{},{"type":"text","text":"a"}]"#),
        (
            r#"[ {"type":"text","text":"a"} , {"type":"tool_use","id":"1"} ]"#,
            &[(0, r#"{"n":1}"#), (0, r#"{"n":2}"#), (1, r#"{"n":3}"#), (2, r#"{"n":4}"#)],
            r#"[ {"n":1},{"n":2},{"type":"text","text":"a"} , {"n":3},{"type":"tool_use","id":"1"},{"n":4} ]"#,
        ),
        (
            r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#,
            &[(9, r#"{"n":2}"#), (0, r#"{"n":1}"#)],
            r#"[{"n":1},{"type":"text","text":"a"},{"type":"text","text":"b"},{"n":2}]"#,
        ),
        (
            r#"[{"type":"mcp_tool_result","tool_use_id":"m","content":[{"type":"text","text":"a"},{"type":"image"}]},{"type":"text","text":"b"}]"#,
            &[(1, r#"{"n":1}"#), (0, r#"{"n":2}"#), (2, r#"{"n":3}"#)],
            r#"[{"n":1},{"n":2},{"type":"mcp_tool_result","tool_use_id":"m","content":[{"type":"text","text":"a"},{"type":"image"}]},{"n":3},{"type":"text","text":"b"}]"#,
        ),
        (
            r#""a \u00e9""#,
            &[(0, r#"{"n":1}"#), (1, r#"{"n":2}"#)],
            r#"[{"n":1},{"type":"text","text":"a \u00e9"},{"n":2}]"#,
        ),
        (r#""a""#, &[(7, "{}")], r#"[{"type":"text","text":"a"},{}]"#),
        (r#""""#, &[(0, "{}")], "[{}]"),
        ("[]", &[(0, r#"{"n":1}"#), (1, r#"{"n":2}"#)], r#"[{"n":1},{"n":2}]"#),
        ("null", &[(0, "{}")], "-"),
        (r#""a""#, &[(0, "[]"), (0, "{} {}"), (0, ""), (0, r#"{"a":"#)], "-"),
        (r#""a""#, &[(0, "7"), (0, "{}")], r#"[{},{"type":"text","text":"a"}]"#),
        (r#""a""#, &[], "-"),
    ];
    for (content, blocks, expected) in cases {
        let message = |content: &str| format!(r#"{{"role":"assistant","content":{content}}}"#);
        let expected = if expected == "-" { "-".into() } else { message(expected) };
        assert_eq!(back(Dialect::Anthropic, &message(content), blocks), expected);
    }
    let users = r#"{"role":"user","content":"a"}"#;
    assert_eq!(back(Dialect::Anthropic, users, &[(0, "{}")]), "-");
}

#[test]
fn gemini_thoughts_go_back() {
    let of = |parts: &str| format!(r#"{{"role":"model","parts":{parts}}}"#);
    for (parts, before, expected) in [
        (
            r#"[{"text":"a"},{"functionCall":{}}]"#,
            1,
            r#"[{"text":"a"},{"n":1},{"functionCall":{}}]"#,
        ),
        (r#"[{"text":"a"}]"#, 1, r#"[{"text":"a"},{"n":1}]"#),
        (r#"{"text":"a"}"#, 0, r#"[{"n":1},{"text":"a"}]"#),
        (r#"{"text":"a"}"#, 1, r#"[{"text":"a"},{"n":1}]"#),
        ("[]", 0, r#"[{"n":1}]"#),
    ] {
        assert_eq!(back(Dialect::Gemini, &of(parts), &[(before, r#"{"n":1}"#)]), of(expected));
    }
    assert_eq!(back(Dialect::Gemini, r#"{"role":"model"}"#, &[(0, "{}")]), "-");
    assert_eq!(back(Dialect::Gemini, r#"{"role":"user","parts":[]}"#, &[(0, "{}")]), "-");
}

#[test]
fn items_of_reasoning_go_back_beside_item_they_led_to() {
    let sealed = r#"{"id":"rs_1", "type":"reasoning","summary":[],"encrypted_content":"c"}"#;
    let bare = r#"{"type":"reasoning","summary":[],"encrypted_content":"c"}"#;
    let unsealed = r#"{"id":"rs_1","type":"reasoning","summary":[]}"#;
    let call = r#"{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}"#;
    let named = r#"{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}"}"#;
    let back = |item: &str, blocks: &[(usize, &str)]| back(Dialect::OpenaiResponses, item, blocks);
    assert_eq!(back(call, &[(0, sealed)]), format!("{bare},{call}"));
    assert_eq!(back(named, &[(0, sealed)]), format!("{sealed},{named}"));
    assert_eq!(back(call, &[(1, sealed)]), format!("{call},{bare}"));
    assert_eq!(
        back(call, &[(0, bare), (0, sealed), (7, bare)]),
        format!("{bare},{bare},{call},{bare}")
    );
    let between = format!(r#"{{"role":"user","content":"q"}}, {call}"#);
    let there = format!(r#"{{"role":"user","content":"q"}}, {bare},{call}"#);
    assert_eq!(back(&between, &[(0, sealed)]), there);
    assert_eq!(back(call, &[(0, unsealed)]), "-", "not kept, so not found");
    assert_eq!(back(named, &[(0, unsealed)]), "-", "not kept, so not found");
    let open = r#"{"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]}"#;
    assert_eq!(back(named, &[(0, open)]), format!("{open},{named}"));
    assert_eq!(back(call, &[(0, open)]), format!("{},{call}", open.replace(r#""id":"rs_1","#, "")));
    // A text in several parts is one item, so reasoning from between the parts goes before it.
    let message = r#"{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}"#;
    assert_eq!(back(message, &[(1, sealed)]), format!("{bare},{message}"));

    let stored = |item: &str, raw: &str| {
        let body = format!(r#"{{"input":[{item}]}}"#);
        let conversation = read(Dialect::OpenaiResponses, "/", body.as_bytes());
        let block = ReasoningInsert { before: 0, raw };
        spliced(&body, put_back(&conversation, body.as_bytes(), 0, &[block]))
    };
    assert_eq!(stored(named, unsealed), format!(r#"{{"input":[{unsealed},{named}]}}"#));
    assert_eq!(stored(call, unsealed), format!(r#"{{"input":[{unsealed},{call}]}}"#));
    assert_eq!(stored(call, sealed), format!(r#"{{"input":[{bare},{call}]}}"#));
    let nameless = r#"{"type":"reasoning","summary":[]}"#;
    assert_eq!(stored(named, nameless), "-", "nothing says what it was");
    let prompt = r#"{"input":"hello"}"#;
    let conversation = read(Dialect::OpenaiResponses, "/", prompt.as_bytes());
    let block = ReasoningInsert { before: 0, raw: sealed };
    assert_eq!(put_back(&conversation, prompt.as_bytes(), 0, &[block]), []);
}

/// The members of a message, what is put back, and the members after it. The role comes last, so that it shows what
/// goes first.
fn check_members(cases: &[(&str, &str, &str)]) {
    for (before, raw, after) in cases {
        let message = |inner: &str| format!(r#"{{{inner},"role":"assistant"}}"#);
        let expected = if *after == "-" { "-".into() } else { message(after) };
        let got = back(Dialect::OpenaiChat, &message(before), &[(0, raw)]);
        assert_eq!(got, expected, "{before} {raw}");
    }
}

#[test]
fn chat_members_go_back() {
    let thinking = r#"{"content":[{"type":"thinking","thinking":[]}]}"#;
    let cases = [
        // A field becomes the first member.
        (
            r#""content":"a""#,
            r#"{"reasoning_content":"t"}"#,
            r#""reasoning_content":"t","content":"a""#,
        ),
        (
            r#""content":"a""#,
            r#"{"reasoning":"t","reasoning_signature":"s"}"#,
            r#""reasoning":"t","reasoning_signature":"s","content":"a""#,
        ),
        (
            r#""content":"a""#,
            r#"{"reasoning_details":[{"n":1}, {"n":2}]}"#,
            r#""reasoning_details":[{"n":1}, {"n":2}],"content":"a""#,
        ),
        (
            r#""content":"a""#,
            r#"{"extra_content":{"google":{}}}"#,
            r#""extra_content":{"google":{}},"content":"a""#,
        ),
        (r#""content":"a","reasoning":"x""#, r#"{"reasoning":"t"}"#, "-"),
        (r#""content":"a","reasoning":"""#, r#"{"reasoning":"t"}"#, "-"),
        (
            r#""reasoning":null,"content":"a""#,
            r#"{"reasoning":"t"}"#,
            r#""reasoning":"t","content":"a""#,
        ),
        // Reasoning in blocks becomes the first block of the content.
        (
            r#""content":"a""#,
            thinking,
            r#""content":[{"type":"thinking","thinking":[]},{"type":"text","text":"a"}]"#,
        ),
        (r#""content":"""#, thinking, r#""content":[{"type":"thinking","thinking":[]}]"#),
        (r#""content":null"#, thinking, r#""content":[{"type":"thinking","thinking":[]}]"#),
        (
            r#""tool_calls":[]"#,
            thinking,
            r#""content":[{"type":"thinking","thinking":[]}],"tool_calls":[]"#,
        ),
        (r#""content":[]"#, thinking, r#""content":[{"type":"thinking","thinking":[]}]"#),
        (
            r#""content":[ {"type":"text","text":"a"}]"#,
            thinking,
            r#""content":[{"type":"thinking","thinking":[]}, {"type":"text","text":"a"}]"#,
        ),
        (r#""content":[{"type":"thinking","thinking":"x"}]"#, thinking, "-"),
        (r#""content":"a""#, r#"{"content":null}"#, "-"),
        (r#""content":"a""#, r#"{"content":[]}"#, "-"),
        (r#""content":"a""#, "{}", "-"),
    ];
    check_members(&cases);
    // A client kept the text without its signature.
    let signed = r#"{"thinking_blocks":[{"type":"thinking","thinking":"t","signature":"s"}]}"#;
    let listed = r#"{"content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"t","signature":"s"}]}]}"#;
    let inner = |raw: &str| raw[1..raw.len() - 1].to_owned();
    for (raw, kept, is_replaced) in [
        (signed, signed.replace(r#","signature":"s""#, ""), true),
        (signed, signed.replace(r#""s""#, r#""""#), true),
        (signed, r#"{"thinking_blocks":[]}"#.into(), true),
        (signed, signed.replace(r#""t","signature":"s""#, r#""other""#), false),
        (signed, signed.replace(r#""s""#, r#""u""#), false),
        (listed, listed.replace(r#","signature":"s""#, ""), true),
        (listed, listed.replace(r#""t","signature":"s""#, r#""other""#), false),
    ] {
        let expected = if is_replaced { inner(raw) } else { "-".into() };
        check_members(&[(&inner(&kept), raw, &expected)]);
    }
    let twice = [(0, r#"{"reasoning":"t"}"#), (1, r#"{"reasoning":"u","extra_content":{}}"#)];
    assert_eq!(
        back(Dialect::OpenaiChat, r#"{"role":"assistant"}"#, &twice),
        r#"{"reasoning":"t","extra_content":{},"role":"assistant"}"#
    );
    for message in [r#"{"role":"user","content":"a"}"#, r#""a""#] {
        assert_eq!(back(Dialect::OpenaiChat, message, &[(0, r#"{"reasoning":"t"}"#)]), "-");
    }
}

#[test]
fn tagged_thinking_goes_back() {
    let tagged = r#"{"content":"<think>t</think>\n\nwords"}"#;
    let only_thought = r#"{"content":"<think>t</think>"}"#;
    check_members(&[
        (r#""content":"words""#, tagged, r#""content":"<think>t</think>\n\nwords""#),
        (
            r#""content":[{"type":"text","text":"\nwords"}]"#,
            tagged,
            r#""content":[{"type":"text","text":"<think>t</think>\n\nwords"}]"#,
        ),
        (r#""content":"other words""#, tagged, "-"),
        (r#""content":null"#, tagged, "-"),
        (r#""content":"<think>s</think>words""#, tagged, "-"),
        (r#""content":"words""#, r#"{"content":"words"}"#, "-"),
        (r#""content":null"#, only_thought, r#""content":"<think>t</think>""#),
        (r#""content":"""#, only_thought, r#""content":"<think>t</think>""#),
        (r#""refusal":null"#, only_thought, r#""content":"<think>t</think>","refusal":null"#),
    ]);
}

#[test]
fn signature_goes_back_on_its_part() {
    let sealed = |dialect: Dialect, body: &str, at: PartIndex| {
        let conversation = read(dialect, "/", body.as_bytes());
        spliced(
            body,
            restore_signature(&conversation, body.as_bytes(), at, "c2ln").into_iter().collect(),
        )
    };
    let gemini = |part: &str| {
        let (head, tail) = (r#"{"contents":[{"role":"model","parts":["#, "]}]}");
        let out = sealed(Dialect::Gemini, &format!("{head}{part}{tail}"), PartIndex::new(0, 0));
        inside(&out, head, tail)
    };
    for (part, expected) in [
        (
            r#"{"functionCall":{"name":"f"}}"#,
            r#"{"thoughtSignature":"c2ln","functionCall":{"name":"f"}}"#,
        ),
        (r#"{"text":"a"}"#, r#"{"thoughtSignature":"c2ln","text":"a"}"#),
        (r#"{"text":"a","thoughtSignature":null}"#, r#"{"text":"a","thoughtSignature":"c2ln"}"#),
        (
            r#"{"thought_signature": null,"text":"a"}"#,
            r#"{"thought_signature": "c2ln","text":"a"}"#,
        ),
        (r#"{"text":"a","thoughtSignature":"x"}"#, "-"),
        (r#"{"text":"a","thoughtSignature":7}"#, "-"),
        (r#"{"hologram":{}}"#, "-"),
        ("{}", "-"),
        (r#""a""#, "-"),
    ] {
        assert_eq!(gemini(part), expected, "{part}");
    }
    let chat = |call: &str| {
        let (head, tail) = (r#"{"messages":[{"role":"assistant","tool_calls":["#, "]}]}");
        let out = sealed(Dialect::OpenaiChat, &format!("{head}{call}{tail}"), PartIndex::new(0, 0));
        inside(&out, head, tail)
    };
    for (call, expected) in [
        (r#"{"id":"1"}"#, r#"{"extra_content":{"google":{"thought_signature":"c2ln"}},"id":"1"}"#),
        (
            r#"{"id":"1","extra_content":null}"#,
            r#"{"id":"1","extra_content":{"google":{"thought_signature":"c2ln"}}}"#,
        ),
        (
            r#"{"id":"1","extra_content":{"a":1}}"#,
            r#"{"id":"1","extra_content":{"google":{"thought_signature":"c2ln"},"a":1}}"#,
        ),
        (
            r#"{"id":"1","extra_content":{"google":{}}}"#,
            r#"{"id":"1","extra_content":{"google":{"thought_signature":"c2ln"}}}"#,
        ),
        (r#"{"id":"1","extra_content":{"google":7}}"#, "-"),
        (r#"{"id":"1","extra_content":{"google":{"thought_signature":"x"}}}"#, "-"),
    ] {
        assert_eq!(chat(call), expected, "{call}");
    }
    let body = r#"{"messages":[{"role":"assistant","content":"a"}]}"#;
    assert_eq!(sealed(Dialect::OpenaiChat, body, PartIndex::new(0, 0)), "-");
    assert_eq!(sealed(Dialect::Anthropic, body, PartIndex::new(0, 0)), "-");
    assert_eq!(sealed(Dialect::Gemini, body, PartIndex::new(3, 0)), "-");
}
