//! What is changed after a refusal: for each cause, the messages before and after.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::context::scene::{SessionFixture, messages, thinking};
use crate::context::{CompactionRecord, DecisionEpoch, ReasoningAction};
use crate::dialect::repair::path::JsonPath;
use crate::dialect::{self, Dialect};

const MODEL: &str = "claude-opus-4-6";

/// A refusal that names only its cause.
pub(super) fn refusal(cause: RepairCause) -> Refusal {
    Refusal { cause, detail: None, place: None, limit: None, count: None, name: None }
}

pub(super) fn of_place(cause: RepairCause, place: &str) -> Refusal {
    Refusal { place: JsonPath::first_in(place), ..refusal(cause) }
}

pub(super) fn scene(messages: &Value) -> SessionFixture {
    SessionFixture::new(MODEL, messages)
}

/// The request as it is sent.
fn sent(scene: &SessionFixture) -> Value {
    let plan = scene.plan();
    assert!(!plan.conflict, "{:?}", plan.steps);
    let body = Bytes::copy_from_slice(&scene.body);
    serde_json::from_slice(&splice::splice(&body, plan.edits).unwrap().concat()).unwrap()
}

pub(super) fn proposed(scene: &SessionFixture, refusal: &Refusal) -> Vec<Fact> {
    let proposal = propose(&scene.request(), &scene.known(), refusal);
    assert!(!proposal.is_misplaced, "{refusal:?}");
    proposal.facts
}

/// The messages that are sent after the refusal.
pub(super) fn repaired(scene: &mut SessionFixture, refusal: &Refusal) -> Value {
    let facts = proposed(scene, refusal);
    assert!(!facts.is_empty(), "{refusal:?}");
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    sent(scene)["messages"].take()
}

pub(super) fn user(content: &Value) -> Value {
    json!({"role": "user", "content": content})
}

pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// For each cause: the refusal, and the messages before and after.
fn rules() -> Vec<(Refusal, Value, Value)> {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "Read", "input": {}});
    let model = |content: &Value| json!({"role": "assistant", "content": content});
    let marked = |n: usize| json!({"type": "text", "text": format!("{n}"), "cache_control": {"type": "ephemeral"}});
    let cited = json!({"type": "text", "text": "So.", "citations": []});
    vec![
        (
            refusal(RepairCause::Empty),
            json!([user(&json!([text(" "), text("Go.")]))]),
            json!([user(&json!([text("Go.")]))]),
        ),
        (
            refusal(RepairCause::Empty),
            json!([user(&json!("Go.")), model(&json!([text("")])), user(&json!("On."))]),
            json!([user(&json!("Go.")), model(&json!([text(NO_CONTENT)])), user(&json!("On."))]),
        ),
        (
            refusal(RepairCause::ToolPairs),
            json!([user(&json!("Go.")), model(&json!([call("t")])), user(&json!([text("On.")]))]),
            json!([
                user(&json!("Go.")),
                model(&json!([call("t")])),
                user(&json!([
                {"type": "tool_result", "tool_use_id": "t", "content": NO_RESULT, "is_error": true}, text("On.")]))
            ]),
        ),
        (
            Refusal { limit: Some(2), ..refusal(RepairCause::CacheMarks) },
            json!([user(&json!([marked(0), marked(1), marked(2)]))]),
            json!([user(&json!([text("0"), marked(1), marked(2)]))]),
        ),
        (
            refusal(RepairCause::CacheMarks), // Anthropic's limit of four
            json!([user(&json!([marked(0), marked(1), marked(2), marked(3), marked(4)]))]),
            json!([user(&json!([text("0"), marked(1), marked(2), marked(3), marked(4)]))]),
        ),
        (
            of_place(RepairCause::Field, "messages.1.content.0.citations: Extra inputs"),
            json!([user(&json!("Go.")), model(&json!([cited])), user(&json!("On."))]),
            json!([user(&json!("Go.")), model(&json!([text("So.")])), user(&json!("On."))]),
        ),
        (
            Refusal {
                name: Some("citations".into()),
                ..of_place(RepairCause::Field, "messages.1.content.0")
            },
            json!([user(&json!("Go.")), model(&json!([cited])), user(&json!("On."))]),
            json!([user(&json!("Go.")), model(&json!([text("So.")])), user(&json!("On."))]),
        ),
        (
            refusal(RepairCause::Prefill),
            json!([user(&json!("Go.")), model(&json!("So"))]),
            json!([user(&json!("Go.")), model(&json!("So")), user(&json!(GO_ON))]),
        ),
    ]
}

/// A repaired request is not repaired again for the same cause, and a request without the fault is not changed.
#[test]
fn repair_changes_what_was_refused_and_nothing_else() {
    for (refusal, before, after) in rules() {
        let mut one = scene(&before);
        assert_eq!(repaired(&mut one, &refusal), after, "{refusal:?}");
        if refusal.cause != RepairCause::Prefill {
            assert!(proposed(&one, &refusal).is_empty(), "{refusal:?}: it is repaired already");
        }
        let clean = json!([user(&json!("Go."))]);
        let place = refusal.place.is_some();
        let proposal = propose(&scene(&clean).request(), &scene(&clean).known(), &refusal);
        assert!(proposal.facts.is_empty(), "{refusal:?}: nothing breaks it");
        assert_eq!(proposal.is_misplaced, place, "{refusal:?}: nothing breaks it");
    }
}

/// An id is changed alike in a call and in its result.
#[test]
fn call_ids_get_one_form_everywhere() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "Read", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
    let model = |content: &Value| json!({"role": "assistant", "content": content});
    let ids = |limit| {
        let all = json!([
            user(&json!("Go.")),
            model(&json!([call("a.b")])),
            user(&json!([result("a.b")]))
        ]);
        let refused = Refusal { limit, ..refusal(RepairCause::ToolIds) };
        let sent = repaired(&mut scene(&all), &refused);
        let id = sent[1]["content"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(sent[2]["content"][0]["tool_use_id"], id);
        id
    };
    let is_plain =
        |id: &str| id.bytes().all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it));
    assert!(is_plain(&ids(None)));
    assert!(ids(Some(9)).len() == 9);
    assert!(is_plain(&ids(Some(9))));
}

/// Half of a surrogate pair, which no JSON parser accepts.
#[test]
fn half_surrogate_pair_is_replaced() {
    let mut one = scene(&messages("u"));
    one.body = String::from_utf8(one.body).unwrap().replace("Words", "\\ud83d").into_bytes();
    one.conversation = dialect::read(Dialect::Anthropic, "/v1/messages", &one.body);
    let sent = repaired(&mut one, &refusal(RepairCause::Unicode));
    assert_eq!(sent[0]["content"], "\u{fffd} 0.");
}

/// Nothing changes if policy forbids it, if the provider holds the history, or if tokens are only counted. Nor if the
/// named place does not exist, or if the named member is required.
#[test]
fn parts_that_may_not_be_changed_are_not_repaired() {
    let all = json!([user(&json!([text(" "), text("Go.")]))]);
    let empty = refusal(RepairCause::Empty);
    let mut one = scene(&all);
    assert_eq!(proposed(&one, &empty).len(), 1);
    one.policy.heal.causes = vec![RepairCause::Media];
    assert_eq!(proposed(&one, &empty), []);
    let body = json!({"model": MODEL, "messages": all});
    let counts =
        SessionFixture::read(Dialect::Anthropic, "/v1/messages/count_tokens", MODEL, &body);
    assert_eq!(counts.conversation.purpose, Purpose::Count);
    assert_eq!(proposed(&counts, &empty), []);
    let held = |id: Option<&str>| {
        let mut body = json!({"model": "gpt-5", "input": [{"role": "user", "content": ""}]});
        if let Some(id) = id {
            body["previous_response_id"] = id.into();
        }
        SessionFixture::read(Dialect::OpenaiResponses, "/v1/responses", "gpt-5", &body)
    };
    assert_eq!(proposed(&held(None), &empty).len(), 1);
    assert_eq!(proposed(&held(Some("r")), &empty), []);
    let mut one = scene(&messages("u"));
    let place = of_place(RepairCause::Field, "messages.7.content.0.citations");
    let proposal = propose(&one.request(), &one.known(), &place);
    assert_eq!(proposal, RepairProposal { facts: Vec::new(), is_misplaced: true });
    let cited = json!([user(&json!([{"type": "text", "text": "So.", "citations": []}]))]);
    one = scene(&cited);
    let named = |name: &str, place: &str| {
        let named = Refusal { name: Some(name.into()), ..of_place(RepairCause::Field, place) };
        !proposed(&one, &named).is_empty()
    };
    assert!(named("citations", "messages.0.content.0"));
    assert!(named("citations", "messages.0.content.0.citations"), "it is named twice");
    assert!(named("cita-tions", "messages.0.content.0.citations"), "this is not a valid name");
    assert!(!named("type", "messages.0.content.0"), "a block needs it");
    assert!(!named("cita-tions", "messages.0.content.0.tag"), "it is not the member itself");
    // If the history ends with the user, there is no prefill to repair.
    assert_eq!(proposed(&scene(&messages("uau")), &refusal(RepairCause::Prefill)), []);
    // The refusal names no place, so no member can be removed.
    assert_eq!(proposed(&one, &refusal(RepairCause::Field)), []);
}

/// What we broke ourselves is revoked, not repaired: here our own summary is empty.
#[test]
fn inserted_summary_is_not_repaired() {
    let mut one = scene(&messages("uauau"));
    one.ledger.add(Fact::Compact(Box::new(CompactionRecord {
        raw: r#"{"role":"user","content":""}"#.into(),
        ..one.summary(2)
    })));
    assert_eq!(sent(&one)["messages"][0]["content"], "");
    assert_eq!(proposed(&one, &refusal(RepairCause::Empty)), []);
}

/// A repair applies to the model and the upstream that refused, and to no other.
#[test]
fn repair_applies_only_to_model_and_upstream_that_refused() {
    let all = json!([user(&json!([text(" "), text("Go.")]))]);
    let mut one = scene(&all);
    let after = repaired(&mut one, &refusal(RepairCause::Empty));
    assert_ne!(after, all);
    one.upstream = "other";
    assert_eq!(sent(&one)["messages"], all);
    one.upstream = "up";
    one.name = "claude-opus-4-5";
    assert_eq!(sent(&one)["messages"], all);
    one.name = MODEL;
    assert_eq!(sent(&one)["messages"], after);
    // A repair is stored under what it changes, and under model and upstream.
    let about = |name, upstream, repair: Repair| {
        let mut one = scene(&all);
        (one.name, one.upstream) = (name, upstream);
        RepairDecision::new(&one.request(), repair).about
    };
    let marks = |most| Repair::CacheMarks { most };
    let all = [
        about("a", "up", marks(1)),
        about("b", "up", marks(1)),
        about("a", "to", marks(1)),
        about("a", "up", marks(2)),
        about("a", "up", Repair::Unicode),
        about("a", "up", Repair::MaxTokens { most: 9 }),
        about("a", "up", Repair::OutputFits { window: 9 }),
        about("a", "up", Repair::ToolIds { length: None }),
        about("a", "up", Repair::ToolIds { length: Some(9) }),
        about("a", "up", Repair::Field { place: "messages.*.x".into() }),
        about("a", "up", Repair::Field { place: "messages.*.y".into() }),
        about("a", "up", Repair::Media { part: PartKey(1), text: "words".into() }),
        about("a", "up", Repair::Media { part: PartKey(2), text: "words".into() }),
        about("a", "up", Repair::Prefill { part: PartKey(1), text: "words".into() }),
        about("a", "up", Repair::Picture { part: PartKey(1), data: "QUJD".into() }),
        about("a", "up", Repair::Picture { part: PartKey(1), data: "QUJDREVG".into() }),
    ];
    let mut distinct = all.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len());
    // A new version may use another text; the decision is the same.
    let empty = |text: &str| about("a", "up", Repair::Empty { text: text.into() });
    assert_eq!(empty("one"), empty("two"));
}

#[test]
fn keys_of_repairs_are_those_they_are_stored_under() {
    let one = scene(&json!([user(&json!([text(" "), text("Go.")]))]));
    let facts = proposed(&one, &refusal(RepairCause::Empty));
    let Some(Fact::Repair(repair)) = facts.first() else { panic!("{facts:?}") };
    assert_eq!(keys(&facts), [repair.about]);
    assert_eq!(
        keys(&[Fact::Suspension(Box::new(crate::context::Suspension {
            exchange: "r".into(),
            thread: "t".into(),
            parent: None,
            at: 1,
        }))]),
        []
    );
    let window = Refusal { detail: Some(RefusalDetail::Window), ..refusal(RepairCause::MaxTokens) };
    assert!(is_of_window(&window));
    assert!(!is_of_window(&refusal(RepairCause::MaxTokens)));
}

// ---- reasoning

/// The reasoning keys that a refusal removes.
fn removed(scene: &mut SessionFixture, refusal: &Refusal) -> Vec<u128> {
    let facts = proposed(scene, refusal);
    let keys = keys(&facts).into_iter().map(|key| key.0).collect();
    let is_out = |fact: &Fact| matches!(fact, Fact::ReasoningDecision(decision) if decision.does == ReasoningAction::Remove);
    assert!(facts.iter().all(is_out), "{facts:?}");
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    keys
}

/// The named block is removed. If that did not help, or if nothing is named, all reasoning that the client sends is
/// removed.
#[test]
fn refused_reasoning_is_removed_by_block_and_then_entirely() {
    let mut all = messages("ucrcru");
    for at in [1, 3] {
        all[at]["content"] = json!([thinking(at), all[at]["content"][0]]);
    }
    let thoughts = |sent: &Value| {
        [1, 3].map(|at: usize| sent["messages"][at]["content"][0]["type"] == "thinking")
    };
    let named = of_place(RepairCause::Reasoning, "messages.3.content.0: Invalid `signature`");
    let mut one = scene(&all);
    assert_eq!(removed(&mut one, &named).len(), 1);
    assert_eq!(thoughts(&sent(&one)), [true, false]);
    // The same request is refused for reasoning again: the rest is removed.
    let rest = of_place(RepairCause::Reasoning, "messages.1.content.0: Invalid `signature`");
    assert_eq!(removed(&mut one, &rest).len(), 1);
    assert_eq!(thoughts(&sent(&one)), [false, false]);
    assert_eq!(removed(&mut one, &refusal(RepairCause::Reasoning)), []);
    // Nothing is named: all of it is removed.
    assert_eq!(removed(&mut scene(&all), &refusal(RepairCause::Reasoning)).len(), 2);
    // The named place is no reasoning.
    let not_reasoning = of_place(RepairCause::Reasoning, "messages.5.content");
    assert_eq!(removed(&mut scene(&all), &not_reasoning), []);
    let call = of_place(RepairCause::Reasoning, "messages.3.content.1");
    assert_eq!(removed(&mut scene(&all), &call), []);
    // The refusal names a message that contains reasoning.
    let message = of_place(RepairCause::Reasoning, "messages.3");
    assert_eq!(removed(&mut scene(&all), &message).len(), 1);
}

#[test]
fn reasoning_is_found_by_its_id() {
    let item =
        |id: &str| json!({"type": "reasoning", "id": id, "encrypted_content": id, "summary": []});
    let body = json!({"model": "gpt-5", "input": [{"role": "user", "content": "Go."}, item("rs_1"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
        item("rs_2"), {"role": "user", "content": "On."}]});
    let of = |name: &str| {
        let path = "/v1/responses";
        let mut one = SessionFixture::read(Dialect::OpenaiResponses, path, "gpt-5", &body);
        let named = Refusal { name: Some(name.into()), ..refusal(RepairCause::Reasoning) };
        removed(&mut one, &named).len()
    };
    assert_eq!(of("rs_1"), 1);
    assert_eq!(of("rs_2"), 1);
    assert_eq!(of("rs_3"), 0);
}

/// In the stored JSON, the decision and its repair share one object, so no name may occur twice.
#[test]
fn decision_comes_back_from_store() {
    let (part, text) = (PartKey(7), || "words".into());
    for repair in [
        Repair::Media { part, text: text() },
        Repair::Picture { part, data: text() },
        Repair::Empty { text: text() },
        Repair::Prefill { part, text: text() },
        Repair::Unicode,
        Repair::ToolPairs { text: text() },
        Repair::ToolIds { length: Some(9) },
        Repair::CacheMarks { most: 4 },
        Repair::Field { place: text() },
        Repair::MaxTokens { most: 8 },
        Repair::OutputFits { window: 9 },
    ] {
        let (exchange, model, upstream) = ("r".into(), "m".into(), "u".into());
        let (about, at, epoch) = (PartKey(1), 2, Some(DecisionEpoch::of_suspension(3)));
        let one = RepairDecision { about, at, exchange, model, upstream, repair, epoch };
        let kept = serde_json::to_string(&Fact::Repair(Box::new(one.clone()))).unwrap();
        let read: Fact = serde_json::from_str(&kept).unwrap_or_else(|why| panic!("{why}: {kept}"));
        assert_eq!(read, Fact::Repair(Box::new(one)));
    }
}
