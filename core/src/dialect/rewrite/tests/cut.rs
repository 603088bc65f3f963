//! Tables of cuts: the content of a tool result before and after.
//!
//! Only the inside of the result's object is shown; everything around it must stay the same.

use super::{inside, spliced};
use crate::dialect::rewrite::{CutContent, cut};
use crate::dialect::{Dialect, PartIndex, read};

/// The body before and after the tested part, as a client of the dialect sends it.
fn around_it(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::Anthropic => (
            r#"{ "model":"m", "messages":[{"role":"user","content":[{"tool_use_id":"t","type":"tool_result","#,
            r#""is_error":false,"cache_control":{"type":"ephemeral"}}, {"type":"text","text":"go on"}]}] }"#,
        ),
        Dialect::OpenaiChat => (
            r#"{"messages":[{"role":"user","content":"q"},{"role":"tool","tool_call_id":"t", "#,
            r#" "x":1.0e1}],"stream":true}"#,
        ),
        Dialect::OpenaiResponses => (
            r#"{"input":[{"id":"fco_1","call_id":"t","#,
            r#""status":"completed"}],"store":false}"#,
        ),
        Dialect::Gemini => (
            r#"{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"t","#,
            r#""id":"1"}}]}]}"#,
        ),
    }
}

/// The tested part, cut to `new "words"`.
fn cut_down(dialect: Dialect, inner: &str, keep_media: bool) -> String {
    let (head, tail) = around_it(dialect);
    let body = format!("{head}{inner}{tail}");
    let conversation = read(dialect, "/", body.as_bytes());
    let at = PartIndex::new(conversation.messages.len() - 1, 0);
    let cutting = CutContent { text: r#"new "words""#, keep_media };
    let out = spliced(&body, cut(&conversation, body.as_bytes(), at, &cutting));
    inside(&out, head, tail)
}

/// Each case is the content before and after; `-`: nothing can be cut.
fn check_cuts(dialect: Dialect, keep_media: bool, cases: &[(&str, &str)]) {
    for (before, after) in cases {
        let after = after.replace('§', r#""new \"words\"""#);
        assert_eq!(cut_down(dialect, before, keep_media), after, "{dialect:?}: {before}");
    }
}

#[test]
fn anthropic_cut_changes_content() {
    let image =
        r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aQ=="}}"#;
    let both = format!(r#""content":[{{"type":"text","text":"a"}}, {image}],"#);
    check_cuts(
        Dialect::Anthropic,
        false,
        &[
            (r#""content":"old",  "#, r#""content":§,  "#),
            (r#""content":"","#, r#""content":§,"#),
            (
                r#""content" : [{"type":"text","text":"a"},{"type":"text","text":"b"}],"#,
                r#""content" : §,"#,
            ),
            (r#""content":[],"#, r#""content":§,"#),
            (r#""content":"a","content":"b","#, r#""content":"a","content":§,"#),
            (&both, r#""content":§,"#),
            (
                r#""content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral", "ttl":"1h"}}],"#,
                r#""content":[{"type":"text","text":§,"cache_control":{"type":"ephemeral", "ttl":"1h"}}],"#,
            ),
            (
                r#""content":[{"type":"text","text":"a","cache_control":{"n":1}},{"type":"text","text":"b","cache_control" : {"n":2}},{"type":"text","text":"c"}],"#,
                r#""content":[{"type":"text","text":§,"cache_control" : {"n":2}}],"#,
            ),
            (r#""content":[{"type":"text","text":"on \"cache_control\""}],"#, r#""content":§,"#),
            (r#""content":[{"type":"text","text":"a","cache_control":null}],"#, r#""content":§,"#),
            ("", "-"),
            (r#""content":null,"#, "-"),
            (r#""content":{"a":1},"#, "-"),
            (r#""content":[{"type":"tool_reference","tool_name":"x"}],"#, "-"),
        ],
    );
    let (head, tail) = around_it(Dialect::Anthropic);
    let hosted =
        format!(r#"{head}"content":"old",{tail}"#).replace("tool_result", "mcp_tool_result");
    let read = read(Dialect::Anthropic, "/", hosted.as_bytes());
    let cutting = CutContent { text: "x", keep_media: false };
    assert_eq!(cut(&read, hosted.as_bytes(), PartIndex::new(0, 0), &cutting), []);
    for nowhere in [PartIndex::new(0, 1), PartIndex::new(0, 9), PartIndex::new(9, 0)] {
        assert_eq!(cut(&read, hosted.as_bytes(), nowhere, &cutting), []);
    }
}

#[test]
fn pictures_stay_where_they_are_and_markers_move_to_what_stays_before() {
    let cases = [
        (
            r#"[{"type":"text","text":"a","x":1}, IMAGE]"#,
            r#"[{"type":"text","text":§,"x":1}, IMAGE]"#,
        ),
        (r#"[ IMAGE ]"#, r#"[{"type":"text","text":§}, IMAGE ]"#),
        (
            r#"[IMAGE, {"type":"text","text":"a"}, {"type":"text","text":"b"}, IMAGE]"#,
            r#"[IMAGE, {"type":"text","text":§}, IMAGE]"#,
        ),
        (
            r#"[{"type":"text","text":"a"},IMAGE,{"type":"text","text":"b"},{"type":"text","text":"c"}]"#,
            r#"[{"type":"text","text":§},IMAGE]"#,
        ),
        (
            r#"[{"type":"text","text":"a"},IMAGE,{"type":"text","text":"b","cache_control":{"n":1}}]"#,
            r#"[{"type":"text","text":§},MARKED,"type":"image","data":1}]"#,
        ),
        (
            r#"[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"n":1}},IMAGE]"#,
            r#"[{"cache_control":{"n":1},"type":"text","text":§},IMAGE]"#,
        ),
        (
            r#"[{"cache_control":{"n":0},"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"n":1}},IMAGE]"#,
            r#"[{"cache_control":{"n":0},"type":"text","text":§},IMAGE]"#,
        ),
        (r#"[{"type":"text","text":null},IMAGE]"#, r#"[{"type":"text","text":§},IMAGE]"#),
        (r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, "§"),
    ];
    let filled = |text: &str| {
        let text = text.replace("IMAGE", r#"{"type":"image","data":1}"#);
        format!(r#""content":{},"#, text.replace("MARKED", r#"{"cache_control":{"n":1}"#))
    };
    for (before, after) in cases {
        check_cuts(Dialect::Anthropic, true, &[(&filled(before), &filled(after))]);
    }
}

#[test]
fn cut_of_chat_completions_result_changes_only_its_content() {
    let picture = r#"{"type":"image_url","image_url":{"url":"https://a/b.png"}}"#;
    let both = format!(r#""content":[{{"type":"text","text":"a"}},"b",{picture}],"#);
    let kept = format!(r#""content":[{{"type":"text","text":§}},{picture}],"#);
    check_cuts(
        Dialect::OpenaiChat,
        false,
        &[
            (r#""content":"old","#, r#""content":§,"#),
            (r#""content":[{"type":"text","text":"a"}],"#, r#""content":§,"#),
            (&both, r#""content":§,"#),
            (
                r#""content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}],"#,
                r#""content":[{"type":"text","text":§,"prompt_cache_breakpoint":{"mode":"explicit"}}],"#,
            ),
            (r#""content":null,"#, "-"),
            (r#""content":{"a":1},"#, "-"),
            (r#""content":7,"#, "-"),
        ],
    );
    check_cuts(
        Dialect::OpenaiChat,
        true,
        &[
            (&both, &kept),
            (&format!(r#""content":["a",{picture}],"#), &format!(r#""content":[§,{picture}],"#)),
            (
                &format!(
                    r#""content":["a",{{"type":"text","text":"b","cache_control":{{}}}},{picture}],"#
                ),
                &format!(
                    r#""content":[{{"type":"text","text":§,"cache_control":{{}}}},{picture}],"#
                ),
            ),
        ],
    );
}

#[test]
fn cut_of_responses_result_changes_only_its_output() {
    for kind in ["function_call_output", "custom_tool_call_output"] {
        let kind = format!(r#""type":"{kind}","output":"#);
        let of = |output: &str| format!("{kind}{output},");
        let image = r#"{"type":"input_image","image_url":"data:image/png;base64,aQ=="}"#;
        check_cuts(
            Dialect::OpenaiResponses,
            false,
            &[
                (&of(r#""old""#), &of("§")),
                (&of(&format!(r#"[{{"type":"input_text","text":"a"}},{image}]"#)), &of("§")),
                (&of("null"), "-"),
                (&of(r#"{"a":1}"#), "-"),
            ],
        );
        check_cuts(
            Dialect::OpenaiResponses,
            true,
            &[
                (
                    &of(&format!(r#"[{{"type":"input_text","text":"a"}},{image}]"#)),
                    &of(&format!(r#"[{{"type":"input_text","text":§}},{image}]"#)),
                ),
                (
                    &of(&format!("[{image}]")),
                    &of(&format!(r#"[{{"type":"input_text","text":§}},{image}]"#)),
                ),
                (
                    &of(&format!(r#"[{{"stdout":"a","stderr":"b"}},{image}]"#)),
                    &of(&format!(r#"[{{"type":"input_text","text":§}},{image}]"#)),
                ),
            ],
        );
    }
    for (kind, output) in [
        ("computer_call_output", r#"{"type":"computer_screenshot","image_url":"data:,"}"#),
        ("shell_call_output", r#"[{"stdout":"a","stderr":"","outcome":{"type":"exit"}}]"#),
        ("local_shell_call_output", r#""{}""#),
        ("apply_patch_call_output", r#""Done""#),
    ] {
        let inner = format!(r#""type":"{kind}","output":{output},"#);
        check_cuts(Dialect::OpenaiResponses, false, &[(&inner, "-")]);
    }
}

#[test]
fn cut_of_gemini_stays_object() {
    let parts = r#""parts":[{"inlineData":{"mimeType":"image/png","data":"aQ=="}}]"#;
    check_cuts(
        Dialect::Gemini,
        false,
        &[
            (r#""response":{"output":"a"},"#, r#""response":{"output":§},"#),
            (r#""response":{"a":{"b":[1]},"c":2},"#, r#""response":{"output":§},"#),
            (r#""response":{"error":"a"},"#, r#""response":{"error":§},"#),
            (&format!(r#""response":{{}}, {parts}, "#), r#""response":{"output":§}, "#),
            (&format!(r#"{parts},"response":{{}},"#), r#""response":{"output":§},"#),
            (&format!(r#"{parts},"response":{{}},{parts},"#), r#""response":{"output":§},"#),
            (r#""response":{},"parts":[],"#, r#""response":{"output":§},"parts":[],"#),
            (r#""response":"a","#, "-"),
            ("", "-"),
        ],
    );
    check_cuts(
        Dialect::Gemini,
        true,
        &[(
            &format!(r#""response":{{}},{parts},"#),
            &format!(r#""response":{{"output":§}},{parts},"#),
        )],
    );
    let snake = r#"{"contents":[{"role":"user","parts":[{"function_response":{"name":"t","parts":{"inline_data":{"mime_type":"image/png","data":"aQ=="}},"response":{"output":"a"}}}]}]}"#;
    let conversation = read(Dialect::Gemini, "/", snake.as_bytes());
    let cutting = CutContent { text: "b", keep_media: false };
    assert_eq!(
        spliced(snake, cut(&conversation, snake.as_bytes(), PartIndex::new(0, 0), &cutting)),
        r#"{"contents":[{"role":"user","parts":[{"function_response":{"name":"t","response":{"output":"b"}}}]}]}"#
    );
}
