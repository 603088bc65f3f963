use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::dialect::{self, Dialect};

fn all(raw: &str) -> (u64, u64) {
    let CharCounts { ascii, other } = chars(raw.as_bytes());
    (ascii, other)
}

#[test]
fn json_string_counts_unescaped() {
    assert_eq!(all(r#""plain""#), (5, 0));
    assert_eq!(all(r#""a\nb\"\\\/c""#), (7, 0));
    assert_eq!(all(r#""\u0041\u00e9é""#), (1, 2));
    // A character beyond the first plane is two units, escaped or not.
    assert_eq!(all(r#""😀\ud83d\ude00""#), (0, 4));
}

#[test]
fn json_counts_its_shortest_form() {
    assert_eq!(all(r#"{ "a" : [1, 2] }"#), (11, 0));
    assert_eq!(all("{\n  \"a b\": \"c\\n\\u0007\\u0041\\/\"\n}"), (21, 0));
    assert_eq!(all(r#"{"é":"日本"}"#), (7, 3));
    assert_eq!(all("null"), (4, 0));
}

#[test]
fn incomplete_json_is_counted() {
    let odd: [&[u8]; 8] =
        [b"", b"\"", b"\"\\", b"\"\\u12", b"{\"a", b"{\"a\\", b"[\"\\u00", b"\xff\xfe\""];
    for raw in odd {
        let (one, other) = (chars(raw), literal(raw, true));
        assert!(one.all() <= 16.0, "{raw:?}");
        assert!(other.all() <= 16.0, "{raw:?}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[\\x00-\\x7f]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    })
}

proptest! {
    /// A value is as long as its shortest JSON, however it is laid out. A string is as long as its text.
    #[test]
    fn json_layout_does_not_count(value in values()) {
        let units = |text: &str| text.encode_utf16().count() as u64;
        let shortest = match value.as_str() {
            Some(text) => units(text),
            None => units(&value.to_string()),
        };
        for raw in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let chars = chars(raw.as_bytes());
            prop_assert_eq!(chars.ascii + chars.other, shortest);
        }
    }

    #[test]
    fn no_bytes_cause_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let at = Span { start: 0, end: bytes.len() };
        prop_assert!(length(at, &bytes) <= 6 * bytes.len() as u64);
    }
}

#[test]
fn rounding_modes_round_as_named() {
    let round = |rounding: Rounding| [0.25, 0.5, 1.5, 2.0].map(|it| rounding.round(it));
    assert_eq!(round(Rounding::Nearest), [0.0, 1.0, 2.0, 2.0]);
    assert_eq!(round(Rounding::Up), [1.0, 1.0, 2.0, 2.0]);
    assert_eq!(round(Rounding::Down), [0.0, 0.0, 1.0, 2.0]);
    assert_eq!(round(Rounding::None), [0.25, 0.5, 1.5, 2.0]);
}

const BODY: &str = r#"{"model":"m","system":"12345678","tools":[{"name":"Read"}],"messages":[
        {"role":"user","content":[{"type":"text","text":"12345"},
            {"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"1234","signature":"AAAA"},
            {"type":"tool_use","id":"t","name":"Read","input":{"a": 1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":
            [{"type":"text","text":"12345678"},{"type":"image","source":{"type":"base64",
            "media_type":"image/png","data":"QUJD"}}]}]}]}"#;

fn count(rules: &ClassicRules) -> u64 {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", BODY.as_bytes());
    rules.whole(&read, BODY.as_bytes(), |_| SentContent::Whole)
}

#[test]
fn every_kind_of_part_has_its_rule() {
    // Characters by four, rounded up: 2 system, 4 tools, 2 text, 1 reasoning, 1 name, 2 input, 2 result.
    let rules = ClassicRules { image_tokens: 100, ..ClassicRules::default() };
    assert_eq!(count(&rules), 2 + 4 + 2 + 100 + 1 + 1 + 2 + 2 + 100);
    assert_eq!(count(&ClassicRules { head: false, ..rules.clone() }), 208);
    assert_eq!(count(&ClassicRules { message_tokens: 12, ..rules.clone() }), 214 + 36);
    assert_eq!(count(&ClassicRules { tool_block_tokens: 24, ..rules.clone() }), 214 + 48);
    assert_eq!(count(&ClassicRules { factor: 2.0, ..rules.clone() }), 428);
    // `{"type":"thinking","thinking":"1234","signature":"AAAA"}`: 14 tokens instead of 1.
    assert_eq!(count(&ClassicRules { reasoning: CountedContent::Json, ..rules.clone() }), 213 + 14);
    assert_eq!(count(&ClassicRules { reasoning: CountedContent::Nothing, ..rules.clone() }), 213);
    // The list counts instead of its text and picture.
    let listed = r#"[{"type":"text","text":"12345678"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}}]"#;
    let list = listed.len().div_ceil(4) as u64;
    assert_eq!(count(&ClassicRules { results: CountedContent::Json, ..rules }), 214 - 102 + list);
}

#[test]
fn unsent_parts_cost_nothing_and_placeholder_costs_its_text() {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", BODY.as_bytes());
    let rules = ClassicRules { head: false, image_tokens: 0, ..ClassicRules::default() };
    let count = |rules: &ClassicRules, seen: fn(&Part) -> SentContent<'static>| {
        rules.messages(BODY.as_bytes(), &read.messages, seen)
    };
    assert_eq!(count(&rules, |_| SentContent::Whole), 8);
    assert_eq!(count(&rules, |_| SentContent::Gone), 0);
    let cut = |part: &Part| match part.kind {
        PartKind::ToolResult => SentContent::Text("123456789"),
        _ => SentContent::Whole,
    };
    assert_eq!(count(&rules, cut), 9);
    let without = ClassicRules { placeholders: false, ..rules };
    assert_eq!(count(&without, cut), 6);
    let trimmed = |part: &Part| match part.kind {
        PartKind::ToolResult => SentContent::Trimmed("123456789"),
        _ => SentContent::Whole,
    };
    assert_eq!(count(&without, trimmed), 9, "a trimmed result is no placeholder");
}

/// In texts up to a length, each character counts by its rate; in longer ones, all count as ASCII.
#[test]
fn other_characters_have_their_rate_in_short_texts() {
    let rules = ClassicRules {
        other_tokens_per_char: 1.5,
        piece_rounding: Rounding::None,
        ..ClassicRules::default()
    };
    let text = "abcdéé"; // four ASCII characters and two others
    assert_eq!(rules.weigh_text(text), 1.0 + 3.0);
    let past = |limit| ClassicRules { plain_past_chars: Some(limit), ..rules.clone() };
    assert_eq!(past(6).weigh_text(text), 4.0);
    assert_eq!(past(5).weigh_text(text), 1.5);
    let least = ClassicRules { least_tokens: 7, ..rules };
    assert_eq!(least.weigh_text(text), 7.0);
}

/// Single parts and heads, after the factor and the last rounding.
#[test]
fn part_is_counted_by_itself() {
    let read = dialect::read(Dialect::Anthropic, "/v1/messages", BODY.as_bytes());
    let rules = ClassicRules { factor: 10.0, ..ClassicRules::default() };
    let part = |message: usize, part: usize| &read.messages[message].parts[part];
    let body = BODY.as_bytes();
    assert_eq!(rules.part(body, part(0, 0)), 20);
    assert_eq!(rules.part(body, part(1, 1)), 30);
    let result = part(2, 0);
    assert_eq!(rules.part(body, result), 20);
    assert_eq!(rules.stands_for(body, result, "12345"), 20);
    assert_eq!(rules.stands_for(body, result, "123456789"), 30);
    assert_eq!(rules.system(&read, body), 20);
    assert_eq!(rules.tools(&read, body), 40);
    // A message of which nothing is sent costs nothing; a message without parts costs the fixed tokens of a
    // message.
    let wrapped = ClassicRules { message_tokens: 5, ..ClassicRules::default() };
    let sent = |messages: &[Message], seen| {
        wrapped.messages(body, messages, move |_: &Part| -> SentContent<'static> { seen })
    };
    assert_eq!(sent(&read.messages[..1], SentContent::Gone), 0);
    let empty = Message { parts: Vec::new(), ..read.messages[0].clone() };
    assert_eq!(sent(&[empty], SentContent::Gone), 5);
}
