//! Where the parts of earlier replies are in a request, and what is missing of their reasoning.

use serde_json::{Value, json};

use super::super::reply::DroppedReasoning;
use super::*;
use crate::context::scene::{SessionFixture, messages, thinking};
use crate::context::{Fact, ReasoningBlock, Signature};
use crate::dialect::Dialect;

/// The reasoning record of a reply that ends with this keyed part and has `count` of them.
fn record(scene: &SessionFixture, last: usize, count: usize) -> ReasoningRecord {
    let keys: Vec<PartKey> = scene.conversation.parts().filter_map(|part| part.key).collect();
    ReasoningRecord {
        after: scene.conversation.chains()[last],
        at: 1,
        model: scene.name.into(),
        upstream: scene.upstream.into(),
        parts: keys[last + 1 - count..=last].to_vec(),
        ..ReasoningRecord::default()
    }
}

fn block(before: u32, hosted: u32, leads: bool) -> ReasoningBlock {
    ReasoningBlock {
        before,
        hosted,
        leads,
        raw: r#"{"encrypted_content":"eHg"}"#.into(),
        partial: false,
    }
}

fn gemini(model: &Value) -> SessionFixture {
    let user = |text: &str| json!({"role": "user", "parts": [{"text": text}]});
    let body = json!({"contents": [user("Hi."), {"role": "model", "parts": model}, user("On.")]});
    let path = "/v1beta/models/gemini-3-pro-preview:generateContent";
    SessionFixture::read(Dialect::Gemini, path, "gemini-3-pro-preview", &body)
}

/// A signature: the number of its keyed part, its bytes, and the range of text that it belongs to.
type PlacedSignature<'s> = (u32, &'s str, Option<(u32, u32)>);

/// Where signatures are missing.
fn unsigned(model: &Value, signatures: &[PlacedSignature]) -> Vec<(usize, String)> {
    let mut scene = gemini(model);
    let keyed = scene.conversation.parts().filter(|part| part.key.is_some()).count();
    let of = |(part, value, piece): &PlacedSignature| Signature {
        part: *part,
        value: (*value).into(),
        piece: *piece,
    };
    let signatures = signatures.iter().map(of).collect();
    let one = ReasoningRecord { signatures, ..record(&scene, keyed - 2, keyed - 2) };
    scene.ledger.add(Fact::Reasoning(Box::new(one)));
    let known = scene.known();
    let [returned] = &known.replies[..] else { panic!("{:?}", known.replies) };
    let missing = returned.missing(&scene.request());
    assert!(missing.signatures.iter().all(|(at, _)| at.message == 1));
    assert!(missing.signatures.iter().all(|(at, _)| returned.spans(*at)));
    missing.signatures.into_iter().map(|(at, value)| (at.part, value.to_owned())).collect()
}

/// Gemini's signatures go back to the parts that had them. Within a text, a signature needs the same piece, or it is
/// left out.
#[test]
fn signature_keeps_its_part() {
    let call = |name: &str| json!({"functionCall": {"name": name, "args": {}}});
    let text = |text: &str| json!({"text": text});
    let signatures = [
        (0, "a", Some((0, 4))),
        (0, "b", Some((8, 14))),
        (1, "c", None),
        (3, "d", None),
        (9, "e", None),
    ];
    let at = |places: &[(usize, &str)]| -> Vec<(usize, String)> {
        places.iter().map(|(at, value)| (*at, (*value).to_owned())).collect()
    };
    let pieces = json!([
        text("One "),
        text("two "),
        text("three."),
        call("go"),
        call("stop"),
        text("Done.")
    ]);
    assert_eq!(unsigned(&pieces, &signatures), at(&[(0, "a"), (2, "b"), (3, "c"), (5, "d")]));
    // The client joined the pieces: signatures of pieces no longer fit, but a signature of the whole text does.
    let joined = json!([text("One two three."), call("go"), call("stop"), text("Done.")]);
    assert_eq!(unsigned(&joined, &signatures), at(&[(1, "c"), (3, "d")]));
    assert_eq!(unsigned(&joined, &[(0, "w", None)]), at(&[(0, "w")]));
    assert_eq!(unsigned(&pieces, &[(0, "w", None)]), []);
    // A signature that the client sends itself is not missing.
    let mut signed = pieces.clone();
    signed[3]["thoughtSignature"] = "c2ln".into();
    assert_eq!(unsigned(&signed, &signatures[2..4]), at(&[(5, "d")]));
}

/// A block goes back before the part that followed it. If it led to a tool that ran at the provider, it goes before
/// that.
#[test]
fn reasoning_block_goes_back_before_part_that_followed_it() {
    let message = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let ran = |id: &str| json!({"type": "web_search_call", "id": id, "status": "completed"});
    let user = |text: &str| json!({"role": "user", "content": text});
    let input = json!([
        user("Hi."),
        message("One."),
        ran("ws_1"),
        ran("ws_2"),
        message("Two."),
        user("On.")
    ]);
    let body = json!({"model": "gpt-5", "input": input});
    let mut scene = SessionFixture::read(Dialect::OpenaiResponses, "/v1/responses", "gpt-5", &body);
    let keyed: Vec<bool> = scene.conversation.parts().map(|part| part.key.is_some()).collect();
    assert_eq!(keyed, [true, true, false, false, true, true]);
    let one = record(&scene, 2, 2);
    scene.ledger.add(Fact::Reasoning(Box::new(one)));
    let known = scene.known();
    let [returned] = &known.replies[..] else { panic!("{:?}", known.replies) };
    let at = |block: &ReasoningBlock| {
        let at = returned.place(&scene.conversation, block)?;
        let all: Vec<PartIndex> = returned.places(&scene.conversation).collect();
        all.iter().position(|it| *it == at)
    };
    // The model's four parts: text, two searches, text.
    assert_eq!(at(&block(0, 0, false)), Some(0));
    assert_eq!(at(&block(1, 0, false)), Some(3));
    assert_eq!(at(&block(1, 0, true)), Some(1));
    assert_eq!(at(&block(1, 1, true)), Some(2));
    assert_eq!(at(&block(0, 0, true)), Some(1));
    assert_eq!(at(&block(1, 2, true)), None);
    assert_eq!(at(&block(2, 0, true)), None);
    let last = returned.place(&scene.conversation, &block(2, 0, false)).unwrap();
    assert_eq!(last, returned.parts[1].unwrap().after());
    assert!(returned.has_prefix());
    assert!(returned.holds(returned.start()));
    assert!(!returned.holds(last));
    assert!(returned.spans(returned.start()));
    assert!(!returned.spans(PartIndex::default()));
}

/// A reply of reasoning alone is found where the client sends reasoning.
#[test]
fn reply_of_nothing_but_thought_is_found_by_its_place() {
    let mut all = messages("uau");
    all[1]["content"] = json!([thinking(1)]);
    let found = |all: &Value| {
        let mut scene = SessionFixture::new("claude-opus-4-6", all);
        let one = ReasoningRecord { blocks: vec![block(0, 0, false)], ..record(&scene, 0, 0) };
        scene.ledger.add(Fact::Reasoning(Box::new(one)));
        let known = scene.known();
        known.replies.iter().map(ReturnedReply::start).collect::<Vec<_>>()
    };
    assert_eq!(found(&all), [PartIndex::new(1, 0)]);
    all[1]["content"] = json!("Said.");
    assert_eq!(found(&all), []);
}

#[test]
fn dropped_reasoning_is_partial_if_all_its_blocks_are_partial() {
    let (whole, cut) = (block(0, 0, false), ReasoningBlock { partial: true, ..block(0, 0, false) });
    let dropped = |blocks: Vec<_>, signatures: Vec<_>| DroppedReasoning { blocks, signatures };
    assert!(dropped(vec![&cut], vec![]).is_partial());
    assert!(!dropped(vec![&cut, &whole], vec![]).is_partial());
    assert!(!dropped(vec![&cut], vec![(PartIndex::default(), "c2ln")]).is_partial());
    assert!(DroppedReasoning::default().is_nothing());
    assert!(!dropped(vec![&cut], vec![]).is_nothing());
}

/// The reasoning of the replies that are found in this request, in order.
fn signed(scene: &SessionFixture) -> Vec<String> {
    let known = scene.known();
    assert!(known.replies.iter().all(ReturnedReply::has_prefix), "{:?}", known.replies);
    let raw = |returned: &ReturnedReply| returned.reasoning.blocks[0].raw.to_string();
    known.replies.iter().map(raw).collect()
}

/// The client changed its first message, so replies are found by their own text, and their texts are equal.
#[test]
fn equal_replies_are_distinguished() {
    let text = json!({"type": "text", "text": "The tide comes in from the west, and it will be here by noon."});
    for letters in ["uauau", "uaucr", "ucrau", "uauauau"] {
        let mut all = messages(letters);
        let all = all.as_array_mut().unwrap();
        let is_reply = |one: &Value| one["role"] == "assistant";
        for one in all.iter_mut().filter(|one| is_reply(one)) {
            let calls = one["content"].as_array().cloned().unwrap_or_default();
            one["content"] = std::iter::once(text.clone()).chain(calls).collect();
        }
        let mut scene = SessionFixture::new("claude-opus-5-5", &all[..1].iter().cloned().collect());
        let replies: Vec<usize> = (1..all.len()).filter(|at| is_reply(&all[*at])).collect();
        for at in &replies {
            scene.now += 1;
            scene.send(&all[..*at].iter().cloned().collect());
            let content = std::iter::once(thinking(*at));
            scene.answered(
                &content.chain(all[*at]["content"].as_array().unwrap().clone()).collect(),
            );
        }
        let raw: Vec<String> = replies.iter().map(|at| thinking(*at).to_string()).collect();
        scene.send(&all.iter().cloned().collect());
        assert_eq!(signed(&scene), raw, "{letters}");
        all[0]["content"] = "Other words.".into();
        scene.send(&all.iter().cloned().collect());
        assert_eq!(signed(&scene), raw, "{letters}");
        // The client dropped the oldest turn.
        if letters == "uauauau" {
            scene.send(&all[2..].iter().cloned().collect());
            assert_eq!(signed(&scene), raw[1..]);
        }
    }
}

/// A reply broke off, and its client kept its text; the next reply has the same text and came back whole.
#[test]
fn text_of_broken_reply_is_not_hidden_by_its_equal() {
    let said = "The tide comes in from the west, and it will be here by noon.";
    let text = json!({"type": "text", "text": said});
    let user = |content: Value| json!({"role": "user", "content": content});
    let model = |content: Value| json!({"role": "assistant", "content": content});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "ls", "input": {}});
    let [broken, whole] = ["toolu_01AbCdEfGh1234", "toolu_01ZyXwVuTs9876"].map(call);
    let result = json!([{"type": "tool_result", "tool_use_id": whole["id"], "content": "a"}]);
    let history = [
        user("Go.".into()),
        model(json!([text])),
        user("On.".into()),
        model(json!([text, whole])),
        user(result),
    ];
    let mut scene = SessionFixture::new("claude-opus-5-5", &json!(history[..1]));
    scene.answered(&json!([thinking(1), text, broken]));
    scene.now += 1;
    scene.send(&json!(history[..3]));
    scene.answered(&json!([thinking(3), text, whole]));
    scene.send(&json!(history));
    assert_eq!(signed(&scene), [thinking(1).to_string(), thinking(3).to_string()]);
}

/// A client may add text to a reply of nothing but calls: the field with the reasoning beside it is the reply's.
#[test]
fn added_text_does_not_hide_reasoning_field() {
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "go", "arguments": "{}"}});
    let reply = json!({"role": "assistant", "reasoning_content": "Hm.", "content": "By a model.", "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "Done."});
    let user = json!({"role": "user", "content": "Go."});
    let body = json!({"model": "kimi-k3", "messages": [user, reply, result]});
    let path = "/v1/chat/completions";
    let mut scene = SessionFixture::read(Dialect::OpenaiChat, path, "kimi-k3", &body);
    let raw = r#"{"reasoning_content":"Hm."}"#.into();
    let blocks = vec![ReasoningBlock { raw, ..block(0, 0, false) }];
    let one = ReasoningRecord { blocks, ..record(&scene, 2, 1) };
    scene.ledger.add(Fact::Reasoning(Box::new(one)));
    let known = scene.known();
    let [returned] = &known.replies[..] else { panic!("{:?}", known.replies) };
    assert!(returned.missing(&scene.request()).is_nothing());
    // A reply of nothing but reasoning, of which nothing came back, at the end of the history.
    let thought = ReasoningRecord { at: 2, ..record(&scene, 3, 0) };
    scene.ledger.add(Fact::Reasoning(Box::new(thought)));
    assert_eq!(scene.known().replies.len(), 1);
}

/// A client may write a signature in the alphabet of URLs (`docs/protocols.md` 10.8): it is the same signature.
#[test]
fn signature_in_other_alphabet_is_not_missing() {
    let model = json!([{"text": "Done."}, {"text": "", "thoughtSignature": "ab-_cQ=="}]);
    let mut scene = gemini(&model);
    let raw = r#"{"text":"","thoughtSignature":"ab+/cQ=="}"#.into();
    let blocks = vec![ReasoningBlock { raw, ..block(1, 0, false) }];
    let one = ReasoningRecord { blocks, ..record(&scene, 1, 1) };
    scene.ledger.add(Fact::Reasoning(Box::new(one)));
    let known = scene.known();
    let [returned] = &known.replies[..] else { panic!("{:?}", known.replies) };
    assert!(returned.missing(&scene.request()).is_nothing());
}
