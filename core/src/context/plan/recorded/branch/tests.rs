//! Which decisions apply in a branch, by what the branch has sent and by which exchange made the decision.

use serde_json::{Value, json};

use super::*;
use crate::context::policy::DecisionMode;
use crate::context::scene::{self, SessionFixture, messages, thinking};
use crate::context::{
    Fact, InjectionPlace, InjectionState, Position, ReasoningBlock, ReasoningDecision, Revocation,
    Turn,
};
use crate::dialect::{Chain, PartIndex};

/// The end of a branch: an exchange called `here`, whose parent sent parts with these keys. `None`: it is not known
/// what was sent.
fn branch<'l>(ledger: &'l Ledger, sent: Option<&[u128]>) -> Branch<'l> {
    let part = |key: &u128| SketchPart {
        key: PartKey(*key),
        tokens: 1,
        place: PromptSection::History,
        by_length: false,
    };
    let sent = sent.map(|keys| keys.iter().map(part).collect());
    let (line, keys, thoughts) = Default::default();
    static HERE: std::sync::LazyLock<ExchangeId> = std::sync::LazyLock::new(|| "here".into());
    Branch {
        ledger,
        exchange: &HERE,
        client_thread: None,
        parent: None,
        sent,
        covers: 0,
        line,
        keys,
        thoughts,
    }
}

fn reasoning_decision(
    request: &str,
    does: ReasoningAction,
    why: DecisionReason,
) -> ReasoningDecision {
    let about = PartKey::of_bytes(b"c2ln");
    ReasoningDecision {
        about,
        at: 1,
        exchange: request.into(),
        does,
        why,
        shadow: false,
        epoch: None,
    }
}

/// The reasoning record of a reply with one part.
fn thought() -> ReasoningRecord {
    let raw = r#"{"type":"thinking","thinking":"Hm.","signature":"c2ln"}"#;
    ReasoningRecord {
        after: Chain(5),
        at: 1,
        model: "m".into(),
        upstream: "u".into(),
        blocks: vec![ReasoningBlock {
            before: 0,
            hosted: 0,
            leads: false,
            raw: raw.into(),
            partial: false,
        }],
        parts: vec![PartKey(1)],
        ..ReasoningRecord::default()
    }
}

/// A picture that the branch has sent is not replaced, unless it was refused there. A repair by a rule applies
/// everywhere.
#[test]
fn sent_picture_is_not_replaced() {
    let ledger = Ledger::default();
    let (part, text) = (PartKey(1), || "words".into());
    let of = |sent: Option<&[u128]>, request: &str, repair: Repair| {
        let one = RepairDecision {
            about: PartKey(9),
            at: 1,
            exchange: request.into(),
            model: "m".into(),
            upstream: "u".into(),
            repair,
            epoch: None,
        };
        branch(&ledger, sent).has_repair(&one)
    };
    for repair in [Repair::Media { part, text: text() }, Repair::Picture { part, data: text() }] {
        assert!(!of(Some(&[1]), "there", repair.clone()), "it was sent here");
        assert!(of(Some(&[1]), "here", repair.clone()), "and refused here");
        assert!(of(Some(&[2]), "there", repair.clone()), "it is new here");
        assert!(of(None, "there", repair), "nobody knows what was sent");
    }
    assert!(of(Some(&[1]), "there", Repair::Unicode));
}

/// An injected message stays where it was sent. It also applies if the part before it is new here, whole or cut.
#[test]
fn injected_messages_apply_only_in_branch_that_sent_them() {
    let ledger = Ledger::default();
    let injected = |request: &str| InjectedMessage {
        id: "q".into(),
        at: 1,
        state: InjectionState::Injected(Box::new(InjectionPlace {
            exchange: request.into(),
            thread: "t".into(),
            number: 1,
            after: PartKey(1),
            boundary: None,
            text: "Mind the tide.".into(),
            tokens: 4,
            queued: 1,
            epoch: None,
        })),
    };
    let after = PartKey(1);
    let has = |sent: Option<&[u128]>, request| {
        branch(&ledger, sent).has_injected(&injected(request), after)
    };
    assert!(!has(Some(&[1]), "there"), "the part was sent without them");
    assert!(!has(Some(&[after.cut().0]), "there"));
    assert!(!has(Some(&[after.cut().cut().0]), "there"));
    assert!(has(Some(&[2]), "there"));
    assert!(has(Some(&[1]), "here"));
    assert!(has(None, "there"));
    assert!(has(Some(&[1, injected("there").key().0]), "there"), "they were sent, too");
    let removed = InjectedMessage { state: InjectionState::Removed, ..injected("there") };
    assert!(!branch(&ledger, Some(&[1])).has_injected(&removed, after));
}

/// Reasoning that was put back applies if this branch sent it or sent nothing of its reply. What a branch left out
/// stays out.
#[test]
fn reasoning_put_back_applies_only_in_branch_that_sent_it() {
    let ledger = Ledger::default();
    let reasoning = thought();
    let why = DecisionReason::Birth;
    let has = |sent: Option<&[u128]>, request, does| {
        let decision = reasoning_decision(request, does, why);
        branch(&ledger, sent).has_back(&decision, &reasoning, false)
    };
    let back = || ReasoningAction::PutBack;
    assert!(!has(Some(&[1]), "there", back()), "its reply was sent without it");
    assert!(has(Some(&[2]), "there", back()));
    assert!(has(None, "there", back()));
    assert!(has(Some(&[1]), "here", back()));
    assert!(has(Some(&[1]), "there", ReasoningAction::Remove));
    for key in names(&reasoning) {
        assert!(has(Some(&[1, key.0]), "there", back()), "it was sent, too");
    }
}

/// A summary replaced the reply whose reasoning was to be put back, and the result that was to be trimmed, in the request
/// that decided so. Another branch never saw either, so it decides for itself.
#[test]
fn decisions_that_summary_hid_do_not_apply_elsewhere() {
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    let back = reasoning_decision("r1", ReasoningAction::PutBack, DecisionReason::Birth);
    let trim = Cut { why: DecisionReason::TooLarge, ..scene::cut(9, "r1", "Trimmed.") };
    let (signature, trimmed) = (PartKey::of_bytes(b"c2ln"), PartKey(7).cut());
    let mut applies = |sent: &[PartKey]| {
        turn.sketch.added = sent
            .iter()
            .map(|key| SketchPart {
                key: *key,
                tokens: 1,
                place: PromptSection::History,
                by_length: false,
            })
            .collect();
        let mut ledger = Ledger::default();
        ledger.add(Fact::Turn(Arc::new(turn.clone())));
        let branch = branch(&ledger, Some(&[2]));
        let cut = branch.has_cut(&trim, PartKey(7), CutCount::Once, None, true);
        (branch.has_back(&back, &thought(), false), cut)
    };
    assert_eq!(applies(&[PartKey(3)]), (false, false));
    assert_eq!(applies(&[signature]), (true, false));
    assert_eq!(applies(&[trimmed]), (false, true));
}

/// Reasoning removed in another branch is sent here if it was sent before, or is new and no provider refused it.
#[test]
fn reasoning_removed_in_another_branch_stays_where_it_was_sent() {
    let ledger = Ledger::default();
    let reasoning = thought();
    let signature_key = PartKey::of_bytes(b"c2ln");
    let whole_block = PartKey::of_bytes(reasoning.blocks[0].raw.as_bytes());
    let all: HashSet<u128> = [signature_key.0].into_iter().collect();
    let (new, left_out) = (OwnReasoning::default, || OwnReasoning {
        left_out: all.clone(),
        ..OwnReasoning::default()
    });
    let was_sent = || OwnReasoning { sent: all.clone(), ..OwnReasoning::default() };
    let stays = |sent: Option<&[u128]>, request, why, own: OwnReasoning| {
        let out = Arc::new(reasoning_decision(request, ReasoningAction::Remove, why));
        let branch = branch(&ledger, sent);
        branch
            .removals_elsewhere([&out].into_iter(), [&reasoning].into_iter(), &own)
            .contains(&signature_key)
    };
    use DecisionReason::{Bound, Refusal, Stripped};
    for why in [Stripped, Bound, Refusal] {
        assert!(!stays(Some(&[]), "there", why, left_out()), "{why:?}: it was left out here");
        assert!(stays(Some(&[signature_key.0]), "there", why, new()), "{why:?}");
        assert!(stays(Some(&[]), "there", why, was_sent()), "{why:?}");
        let was_put_back = stays(Some(&[whole_block.0]), "there", why, left_out());
        assert!(was_put_back, "{why:?}: it was put back whole");
        let later_was_sent = !stays(Some(&[signature_key.0]), "there", why, left_out());
        assert!(later_was_sent, "{why:?}: it was sent again, which is a decision of its own");
        assert!(!stays(None, "there", why, new()), "{why:?}: nobody knows what was sent");
        assert!(!stays(Some(&[signature_key.0]), "here", why, was_sent()), "{why:?}: decided here");
        assert_eq!(
            stays(Some(&[]), "there", why, new()),
            why != Refusal,
            "{why:?}: it is new here"
        );
    }
}

/// The branch sent one of a reply's two blocks: the other stays out.
#[test]
fn block_that_was_left_out_stays_out_beside_one_that_was_sent() {
    let ledger = Ledger::default();
    let mut reasoning = thought();
    let mut second = reasoning.blocks[0].clone();
    second.raw = second.raw.replace("c2ln", "bmV4").into();
    reasoning.blocks.push(second);
    let out =
        Arc::new(reasoning_decision("there", ReasoningAction::Remove, DecisionReason::Stripped));
    let stays = |sent: &[u128]| {
        let branch = branch(&ledger, Some(sent));
        let left_out = [out.about.0].into_iter().collect();
        let own = OwnReasoning { left_out, ..OwnReasoning::default() };
        !branch.removals_elsewhere([&out].into_iter(), [&reasoning].into_iter(), &own).is_empty()
    };
    let blocks = reasoning.blocks.iter().map(|block| PartKey::of_bytes(block.raw.as_bytes()).0);
    let blocks: Vec<u128> = blocks.collect();
    assert!(stays(&blocks[..1]));
    assert!(stays(&blocks));
    assert!(!stays(&blocks[1..]), "only the other block of the reply was sent");
}

/// A decision that was revoked twice in a branch, or once for good, is not made there again.
#[test]
fn decision_revoked_twice_is_given_up_in_its_branch() {
    let given_up = |all: &[(&str, Option<&str>, Renewal)]| {
        let mut ledger = Ledger::default();
        for (at, (request, parent, renewal)) in all.iter().enumerate() {
            ledger.add(Fact::Revocation(Box::new(Revocation {
                exchange: (*request).into(),
                thread: "t".into(),
                parent: parent.map(Into::into),
                at: at as u64,
                about: vec![PartKey(7), PartKey(100 + at as u128)],
                renewal: *renewal,
            })));
        }
        branch(&ledger, None).given_up()
    };
    use Renewal::{Cold, Never, Next};
    let seven = HashSet::from_iter([7]);
    assert_eq!(given_up(&[("here", None, Next)]), HashSet::default());
    assert_eq!(given_up(&[("here", None, Next), ("x", Some("here"), Cold)]), seven);
    assert_eq!(given_up(&[("here", None, Next), ("x", Some("y"), Cold)]), HashSet::default());
    assert_eq!(given_up(&[("x", None, Never)]), HashSet::default());
    assert_eq!(given_up(&[("here", None, Never)]), HashSet::from_iter([7, 100]));
}

/// A decision belongs to the model of its turn. A refused request leaves decisions and no turn: they are of no model.
#[test]
fn decision_belongs_to_its_model() {
    let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    scene.answered(&json!([{"type": "text", "text": "Aye."}]));
    let is = |request, model| {
        let one = reasoning_decision(request, ReasoningAction::PutBack, DecisionReason::Birth);
        branch(&scene.ledger, None).is_of_model(&one, model)
    };
    assert!(is("r1", Some("claude-opus-4-6")));
    assert!(!is("r1", Some("other")));
    assert!(!is("r1", None));
    assert!(!is("refused", Some("other")));
}

/// A long session forgets its oldest turns, and keeps their decisions: what was sent goes on being sent.
#[test]
fn forgotten_turn_leaves_decisions() {
    let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    scene.answered(&json!([{"type": "text", "text": "Aye."}]));
    let turn = scene.ledger.turn(&"r1".into()).unwrap();
    let position = Position { parent: Some("forgotten".into()), ..turn.position.clone() };
    let mut ledger = Ledger::default();
    ledger.add(Fact::Turn(Arc::new(Turn { at: 9, position, ..Turn::clone(turn) })));
    let decision = |at| ReasoningDecision {
        at,
        ..reasoning_decision("forgotten", ReasoningAction::PutBack, DecisionReason::Birth)
    };
    let is = |at| branch(&ledger, None).is_of_model(&decision(at), Some("claude-opus-4-6"));
    assert!(is(8));
    assert!(!is(9), "as new as what is known: its request was refused");
}

/// The client edited the text of a reply before its call. The reasoning before that text is new, though the parent turn
/// sent reasoning that is the same to the letter.
#[test]
fn reasoning_of_edited_reply_is_new() {
    let id = "toolu_03AbCdEfGh03";
    let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {"n": 3}});
    let reply = |text: &str| json!([thinking(1), {"type": "text", "text": text}, call]);
    let mut all = messages("utr");
    let mut scene = SessionFixture::new("claude-opus-4-6", &all);
    scene.answered(&reply("Aye."));
    let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "So."}]);
    all.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": reply("Aye. Written by a model.")}),
        json!({"role": "user", "content": result}),
    ]);
    scene.send(&all);
    let (placed, known) = (scene.placed(), scene.known());
    let branch = Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Active);
    let own = branch.own_reasoning(&scene.conversation);
    assert_eq!(own.sent.len(), 1);
    assert_eq!(own.left_out.len(), 0);
}

/// A paused reply comes back as the end of the next request, and is no part of the reply to that request.
#[test]
fn reasoning_of_paused_reply_was_sent() {
    let text = json!({"type": "text", "text": "I look it up."});
    let paused = json!([thinking(1), text]);
    let reply = json!([thinking(2), text]);
    let mut all = messages("u");
    let mut scene = SessionFixture::new("claude-opus-4-6", &all);
    scene.answered(&paused);
    let mut push = |role: &str, content: Value| {
        all.as_array_mut().unwrap().push(json!({"role": role, "content": content}));
        all.clone()
    };
    scene.send(&push("assistant", paused));
    scene.answered(&reply);
    push("assistant", reply);
    scene.send(&push("user", json!("Thanks.")));
    let (placed, known) = (scene.placed(), scene.known());
    assert_eq!(placed.covers, 3);
    let branch = Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Active);
    let own = branch.own_reasoning(&scene.conversation);
    assert_eq!(own.sent.len(), 1);
    assert_eq!(own.left_out.len(), 0);
}

/// Its client dropped reasoning by itself, and sends it again: what another branch removed does not apply to it. Where
/// this branch has removed reasoning, what it did not send stays out.
#[test]
fn reasoning_that_its_client_had_dropped_is_new() {
    let [without, with] = ["ucrau", "utrau"].map(messages);
    let left_out = |removed| {
        let mut scene = SessionFixture::new("claude-opus-4-6", &without);
        let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Said 5."}])));
        turn.done.made.removed = removed;
        scene.ledger.add(Fact::Turn(Arc::new(turn)));
        let mut all = with.clone();
        all.as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": "Said 5."}),
            json!({"role": "user", "content": "Words 6."}),
        ]);
        scene.send(&all);
        let (placed, known) = (scene.placed(), scene.known());
        assert!(placed.parent.is_some());
        let branch = Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Active);
        let own = branch.own_reasoning(&scene.conversation);
        (own.sent.len(), own.left_out.len())
    };
    assert_eq!(left_out(0), (0, 0));
    assert_eq!(left_out(1), (0, 1));
}

/// The third request of a conversation, whose first two turns are known.
fn third_request() -> SessionFixture {
    let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    scene.answered(&json!([{"type": "text", "text": "Said 1."}]));
    scene.send(&messages("uau"));
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    scene
}

/// A branch is followed from turn to turn to its first one. If facts form a circle, it ends all the same.
#[test]
fn branch_is_followed_to_first_turn() {
    let mut scene = third_request();
    let placed = scene.placed();
    let known = scene.known();
    let branch = Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Active);
    assert!(branch.has_made(&"r1".into()));
    assert!(branch.has_made(&"r2".into()));
    assert!(branch.has_made(&"r3".into()));
    assert!(!branch.has_made(&"r4".into()));
    assert!(!branch.has_made(&"".into()));
    assert!(branch.sent.is_some());
    assert!(
        Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Shadow)
            .sent
            .is_none()
    );
    let mut ring = Turn::clone(placed.parent.as_ref().unwrap());
    (ring.exchange, ring.position.parent) = ("ring".into(), Some("ring".into()));
    scene.ledger.add(Fact::Turn(Arc::new(ring.clone())));
    let branch = Branch { parent: Some(&ring), ..super::tests::branch(&scene.ledger, None) };
    assert_eq!(*branch.line(), HashSet::from_iter([&"ring".into()]));
}

/// A sketch may be whole though its turn continues another.
#[test]
fn part_was_first_sent_before_whole_sketch() {
    let scene = third_request();
    let placed = scene.placed();
    assert_eq!(placed.parent.as_ref().unwrap().sketch.base, None);
    let known = scene.known();
    let branch = Branch::new(&scene.ledger, &placed, &known.keyed_parts, DecisionMode::Active);
    let key = known.keyed_parts[0].key;
    let first = branch.first_sent(&HashSet::from_iter([key]));
    assert_eq!(first.get(&key).map(|exchange| exchange.as_str()), Some("r1"));
}

/// The client edited the reply to the last request: what that request sent is known all the same. Of a second reply no
/// request is known.
#[test]
fn edited_reply_hides_nothing_of_what_its_branch_sent() {
    let mut scene = SessionFixture::new("claude-opus-4-6", &messages("uau"));
    scene.answered(&json!([{"type": "text", "text": "Said without a footer."}]));
    let mut is_known = |letters| {
        scene.send(&messages(letters));
        let (placed, known) = (scene.placed(), scene.known());
        assert!(placed.parent.is_some(), "{letters}");
        let active = DecisionMode::Active;
        Branch::new(&scene.ledger, &placed, known.without_prefill(), active).sent.is_some()
    };
    assert!(is_known("uauau"));
    assert!(is_known("uauacr"));
    assert!(is_known("uauaua"), "its client wrote the beginning of the next reply");
    assert!(!is_known("uauauau"));
}

/// The client took from its message what it had put into it for one request, and edited the reply.
#[test]
fn changed_message_hides_nothing_either() {
    let mut first = messages("uau");
    first[2]["content"] = "Words 2. <context/>".into();
    let mut scene = SessionFixture::new("claude-opus-4-6", &first);
    scene.answered(&json!([{"type": "text", "text": "The hull is painted white now."}]));
    let mut next = messages("uauau");
    next[3]["content"] = "The hull is painted white now. (edited)".into();
    scene.send(&next);
    let (placed, known) = (scene.placed(), scene.known());
    assert!(placed.by_sentences);
    let branch = Branch::new(&scene.ledger, &placed, known.without_prefill(), DecisionMode::Active);
    assert!(branch.sent.is_some());
}

/// A result without a reply yet was sent by no earlier request, even if it is not known what was sent.
#[test]
fn unanswered_result_stays_whole_if_branch_is_unknown() {
    let ledger = Ledger::default();
    let has = |sent: Option<&[u128]>, request: &str, why, is_new| {
        let cut = Cut { why, ..scene::cut(1, request, "Cleared.") };
        branch(&ledger, sent).has_cut(&cut, PartKey(1), CutCount::Once, None, is_new)
    };
    use DecisionReason::{Overflow, Pressure, TooLarge};
    for why in [Pressure, Overflow] {
        assert!(!has(None, "there", why, true), "{why:?}");
        assert!(has(None, "there", why, false), "{why:?}");
        assert!(!has(Some(&[]), "there", why, true));
        assert!(has(Some(&[]), "here", why, true));
    }
    assert!(has(None, "there", TooLarge, true), "it was too large when it was new");
}

/// The same picture stands in several messages. The parent sent a summary in place of the first ones, and the last one
/// cut: equal parts are matched from the end. What follows the parent's request was not sent.
#[test]
fn equal_parts_are_matched_from_end() {
    let ledger = Ledger::default();
    let picture = PartKey(7);
    let keyed_parts: Vec<KeyedPart> = [7, 1, 7, 2, 7]
        .into_iter()
        .enumerate()
        .map(|(message, key)| KeyedPart {
            at: PartIndex::new(message, 0),
            key: PartKey(key),
            about: message as u128,
            role: Role::User,
        })
        .collect();
    let forms = |sent: &[u128], covers| {
        let branch = Branch { covers, ..branch(&ledger, Some(sent)) };
        let forms = branch.forms(&keyed_parts, &HashSet::from_iter([picture]));
        let mut forms: Vec<_> = forms.into_iter().collect();
        forms.sort_unstable();
        forms
    };
    let (whole, cut) = (picture.0, picture.cut().0);
    assert_eq!(forms(&[9, cut, 2], 4), [(2, CutCount::Once)]);
    assert_eq!(forms(&[whole, 1, cut, 2], 4), [(0, CutCount::None), (2, CutCount::Once)]);
    assert_eq!(forms(&[9, 2], 4), []);
    let all = [(0, CutCount::Once), (2, CutCount::Twice), (4, CutCount::None)];
    assert_eq!(forms(&[cut, 1, picture.cut().cut().0, 2, whole], 5), all);
}
