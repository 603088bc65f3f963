//! Which decisions apply to a request, made in its own branch or another, and what they change.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::context::policy::{DecisionMode, Mode, ReasoningRule, StripPolicy, SummaryAuthor};
use crate::context::scene::{SessionFixture, messages, thinking};
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, Fact, InjectedMessage, QueuedMessage, ReasoningAction,
    ReasoningDecision, Renewal, Replacement, Revocation, Suspension, compact, inject, reasoning,
};
use crate::dialect::{Dialect, PartIndex, PartKey, Span, rewrite};
use crate::wire::splice::splice;

const FREE: &str = "claude-opus-4-6";
const BOUND: &str = "claude-opus-5-5";
const GONE: &str = "It went.";
const NONE: [usize; 0] = [];

/// The request as it is sent.
fn sent(scene: &SessionFixture) -> Value {
    let plan = scene.plan();
    assert!(!plan.conflict, "{:?}", plan.steps);
    let slices = splice(&Bytes::copy_from_slice(&scene.body), plan.edits).unwrap();
    serde_json::from_slice(&slices.concat()).unwrap()
}

/// The current request decides to cut the result in this message.
fn cut(scene: &SessionFixture, message: usize, why: DecisionReason) -> Fact {
    Fact::Cut(Box::new(Cut {
        at: scene.now,
        exchange: scene.request().exchange.clone(),
        tokens: 20,
        why,
        shadow: scene.mode == Mode::Shadow,
        ..scene.cut(message, GONE)
    }))
}

/// The messages whose results are cut.
fn cut_in(scene: &SessionFixture) -> Vec<usize> {
    let sent = sent(scene);
    let messages = sent["messages"].as_array().unwrap().iter().enumerate();
    messages.filter(|(_, one)| one.to_string().contains(GONE)).map(|(at, _)| at).collect()
}

/// A session with a reply to each request, as `letters` say; the last request is the current one.
fn session(
    name: &'static str,
    letters: &str,
    at: impl Fn(usize, &mut SessionFixture),
) -> SessionFixture {
    let all = messages(letters);
    let upto = |count: usize| all.as_array().unwrap()[..count].iter().cloned().collect::<Value>();
    let mut scene = SessionFixture::new(name, &upto(1));
    for (number, letter) in letters.chars().enumerate().filter(|(_, it)| "acwt".contains(*it)) {
        if number > 1 {
            scene.send(&upto(number));
        }
        at(number, &mut scene);
        let content = &all[number]["content"];
        let blocks = || json!([{"type": "text", "text": content}]);
        scene.answered(&if letter == 'a' { blocks() } else { content.clone() });
    }
    scene.send(&upto(letters.len()));
    scene
}

fn plain(letters: &str) -> SessionFixture {
    session(FREE, letters, |_, _| {})
}

/// A session in which the request before message `number` cut a result.
fn with_cut(letters: &str, number: usize, result: usize, why: DecisionReason) -> SessionFixture {
    session(FREE, letters, |at, scene| {
        if at == number {
            let fact = cut(scene, result, why);
            scene.ledger.add(fact);
        }
    })
}

const PRESSURE: DecisionReason = DecisionReason::Pressure;

#[test]
fn cut_is_replayed_in_all_later_requests_of_its_branch() {
    assert_eq!(cut_in(&plain("ucrau")), NONE);
    let scene = with_cut("ucrauau", 5, 2, PRESSURE);
    assert_eq!(cut_in(&scene), [2]);
    let plan = scene.plan();
    let [step] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(step.change, Change::Cut);
    assert_eq!(step.decision, Decision::Replayed);
    assert_eq!(step.why, PRESSURE);
    assert_eq!(step.at, PartIndex::new(2, 0));
    assert_eq!(step.tokens_before, 900);
    assert_eq!(step.tokens_after, 20);
    assert!(step.bytes_before > 900, "{step:?}");
    assert!(step.bytes_after < 50, "{step:?}");
    assert!(plan.sent.replaced(scene.request().part(PartIndex::new(2, 0)).unwrap().span).is_some());
    assert!(!plan.sent.is_original());
    assert!(original_overlay(&scene.request()).is_original());
    // For the request that decides it, the cut is new.
    let mut scene = plain("ucrau");
    scene.ledger.add(cut(&scene, 2, PRESSURE));
    let plan = scene.plan();
    assert_eq!(plan.steps.iter().map(|step| step.decision).collect::<Vec<_>>(), [Decision::New]);
}

/// A fork that sent the result whole keeps it whole, because its cache and bound reasoning depend on that. A result
/// trimmed when it was new is trimmed wherever it is not known to have been sent whole.
#[test]
fn cut_holds_in_branch_that_made_it() {
    let forked = |why| {
        let mut scene = with_cut("ucrauau", 5, 2, why);
        let mut all = messages("ucrau");
        all[4]["content"] = "Another way.".into();
        scene.send(&all);
        cut_in(&scene)
    };
    assert_eq!(forked(PRESSURE), NONE);
    assert_eq!(forked(DecisionReason::TooLarge), NONE, "this branch sent it whole");
    // A fork that begins before the result: the model has not read it.
    let before = |why| {
        let mut scene = with_cut("ucrau", 3, 2, why);
        let mut all = messages("ucr");
        let first = json!({"type": "text", "text": "Be quick."});
        all[2]["content"].as_array_mut().unwrap().insert(0, first);
        scene.send(&all);
        cut_in(&scene)
    };
    assert!(before(PRESSURE).is_empty());
    assert_eq!(before(DecisionReason::TooLarge), vec![2]);
}

/// Decisions of shadow mode are repeated in shadow mode only.
#[test]
fn shadow_mode_decisions_are_repeated_in_shadow_mode_only() {
    let mut scene = plain("ucrau");
    scene.mode = Mode::Shadow;
    scene.ledger.add(cut(&scene, 2, PRESSURE));
    let cuts = |scene: &SessionFixture| scene.known().cuts_here().count();
    assert_eq!(cuts(&scene), 1);
    scene.mode = Mode::Active;
    assert_eq!(cuts(&scene), 0);
}

/// A refused decision no longer applies. It may be made once more; if it is refused twice, never again. A suspended
/// thread keeps none of its earlier decisions.
#[test]
fn refused_decision_is_void() {
    let mut scene = plain("ucrau");
    let decided = cut(&scene, 2, PRESSURE);
    scene.ledger.add(decided.clone());
    let about = vec![PartKey(scene.about(2))];
    let revoked = |scene: &SessionFixture, renewal| {
        Fact::Revocation(Box::new(Revocation {
            exchange: scene.request().exchange.clone(),
            thread: scene.placed().position.thread,
            parent: scene.placed().position.parent,
            at: 2,
            about: about.clone(),
            renewal,
        }))
    };
    assert_eq!(cut_in(&scene), [2]);
    scene.ledger.add(revoked(&scene, Renewal::Next));
    assert_eq!(cut_in(&scene), NONE);
    assert!(scene.known().may_decide(&decided));
    assert!(!scene.known().is_suspended);
    scene.send(&messages("ucrau"));
    let repeated = scene.ledger.after_suspension(cut(&scene, 2, PRESSURE), None);
    scene.ledger.add(repeated);
    assert_eq!(cut_in(&scene), [2], "it was decided again");
    let mut never = plain("ucrau");
    never.ledger.add(cut(&never, 2, PRESSURE));
    never.ledger.add(revoked(&never, Renewal::Never));
    assert!(!never.known().may_decide(&decided));
    let mut cold = plain("ucrau");
    cold.ledger.add(cut(&cold, 2, PRESSURE));
    cold.ledger.add(revoked(&cold, Renewal::Cold));
    assert!(cold.known().is_suspended);
    assert!(cold.known().may_decide(&decided));
    let mut suspended = plain("ucrau");
    suspended.ledger.add(cut(&suspended, 2, PRESSURE));
    let position = suspended.placed().position;
    suspended.ledger.add(Fact::Suspension(Box::new(Suspension {
        exchange: "refused".into(),
        thread: position.thread,
        parent: position.parent,
        at: 9,
    })));
    let known = suspended.known();
    assert_eq!(known.epoch, Some(DecisionEpoch::of_suspension(9)));
    assert!(known.is_suspended);
    assert_eq!(known.cuts_here().count(), 0);
}

/// A trimmed result can be cleared later: its second cut is stored beside the first.
#[test]
fn second_cut_clears_a_trim() {
    let mut scene = with_cut("ucrau", 3, 2, DecisionReason::TooLarge);
    let Fact::Cut(first) = cut(&scene, 2, PRESSURE) else { unreachable!() };
    let about = PartKey(clearing_key(first.about.0));
    let second = Cut { about, content: Replacement::Text("Cleared.".into()), ..*first };
    scene.ledger.add(Fact::Cut(Box::new(Cut { was: 20, tokens: 9, ..second })));
    assert!(sent(&scene).to_string().contains("Cleared."));
    let plan = scene.plan();
    let step = plan.steps.last().unwrap();
    assert_eq!(step.tokens_before, 900, "as it was before anything");
    assert_eq!(step.tokens_after, 9, "as it was before anything");
    let known = scene.known();
    let part = scene.request().part(PartIndex::new(2, 0)).unwrap().clone();
    let CutOfPart { cut, trim } = known.cut_at(&part, PartIndex::new(2, 0));
    assert_eq!(cut.unwrap().about, about);
    assert!(trim.is_none());
    let uncut = CutOfPart { cut: None, trim: None };
    assert_eq!(known.cut_at(&part, PartIndex::new(0, 0)), uncut);
    let whole = scene.conversation.messages[2].parts[0].key.unwrap();
    assert_eq!(known.cuts_here().map(|(_, key, _)| key).collect::<Vec<_>>(), [whole.cut().cut()]);
}

/// A fork that makes the same decision uses it as it was first made.
#[test]
fn other_branches_are_adopted() {
    let mut scene = with_cut("ucrauau", 5, 2, PRESSURE);
    let mut all = messages("ucrau");
    all[4]["content"] = "Another way.".into();
    scene.send(&all);
    let mut known = scene.known();
    let bare = known.clone();
    assert!(known.decides_nothing());
    let first = scene.ledger.cut(scene.about(2), DecisionMode::Active, None).unwrap().clone();
    known.add([Fact::Cut(Box::new(Cut::clone(&first)))]);
    assert!(!known.decides_nothing());
    let decision = known.decision(first.about.0, &first.exchange, scene.request().exchange);
    assert_eq!(decision, Decision::New, "new to this exchange");
    assert_eq!(known.decision(first.about.0, &first.exchange, &"other".into()), Decision::Replayed);
    assert_eq!(
        known.decided_by(scene.request().exchange).into_iter().collect::<Vec<_>>(),
        [first.about]
    );
    let mut later = bare.clone();
    later.keep_adopted(&known);
    assert_eq!(later.cuts_here().count(), 1);
    assert!(
        known.as_cached(scene.request().exchange).is_some_and(|cached| cached.decides_nothing())
    );
    assert!(bare.as_cached(scene.request().exchange).is_none());
}

/// Decisions made when a part was new are adopted: nothing depends on their absence.
#[test]
fn decisions_made_at_birth_are_adopted_by_repeated_request() {
    let births = |why| {
        let mut scene = plain("ucr");
        scene.ledger.add(cut(&scene, 2, why));
        let (of, id) = (scene.known(), scene.request().exchange);
        let mut known = plain("ucr").known();
        known.take_births(&of, id);
        let mut other = plain("ucr").known();
        other.take_births(&of, &"other".into());
        assert!(other.decides_nothing());
        (known.cuts_here().count(), of.as_cached(id).is_some())
    };
    assert_eq!(births(DecisionReason::TooLarge), (1, false));
    assert_eq!(births(DecisionReason::Birth), (1, false));
    assert_eq!(births(PRESSURE), (0, true));
}

fn compacts(scene: &mut SessionFixture, cut: usize) {
    let one = scene.summary(cut);
    scene.ledger.add(Fact::Compact(Box::new(one)));
}

#[test]
fn summary_takes_place_of_what_is_before_its_cut() {
    let mut scene = plain("uauau");
    compacts(&mut scene, 2);
    let body = sent(&scene);
    let texts: Vec<&str> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["content"].as_str())
        .collect();
    assert_eq!(texts, ["They spoke.", "Words 2.", "Said 3.", "Words 4."]);
    let plan = scene.plan();
    let step = &plan.steps[0];
    assert_eq!(step.change, Change::Compacted);
    assert_eq!(step.decision, Decision::New);
    assert_eq!(step.at, PartIndex::new(0, 0));
    assert_eq!(step.tokens_before, 100);
    assert_eq!(step.tokens_after, 10);
    assert_eq!(plan.summary, Some(SummaryAuthor::Summary));
    assert_eq!(plan.sent.summary().map(|(_, tokens)| tokens), Some(10));
    let request = scene.request();
    let gone = |message| plan.sent.is_gone(request.part(PartIndex::new(message, 0)).unwrap().span);
    assert_eq!([0, 1, 2, 3, 4].map(gone), [true, true, false, false, false]);
    // What is cut before the summary's end is not cut as well.
    let mut both = session(FREE, "ucrauau", |at, scene| {
        if at == 5 {
            let fact = cut(scene, 2, PRESSURE);
            scene.ledger.add(fact);
        }
    });
    assert_eq!(both.known().cuts_here().count(), 1);
    compacts(&mut both, 4);
    assert_eq!(both.known().kept_from(), 4);
    assert_eq!(both.known().cuts_here().count(), 0);
    assert_eq!(cut_in(&both), NONE);
}

/// A summary applies if its end is in the request and this branch made it. Of several, the latest cut; of equal ones,
/// the first.
#[test]
fn latest_summary_of_branch_is_in_use() {
    let mut scene = plain("uauauau");
    compacts(&mut scene, 2);
    compacts(&mut scene, 4);
    assert_eq!(scene.known().kept_from(), 4);
    let later = CompactionRecord {
        at: 9,
        epoch: Some(DecisionEpoch::of_suspension(9)),
        ..plain("uauauau").summary(4)
    };
    scene.ledger.add(Fact::Compact(Box::new(later)));
    assert_eq!(scene.known().compact().unwrap().1.at, 1);
    // After a rewind to before its end, it does not apply.
    scene.send(&messages("uau"));
    assert_eq!(scene.known().kept_from(), 0, "a message has to follow");
    let mut fork = plain("uauau");
    let mut one = fork.summary(2);
    one.exchange = "elsewhere".into();
    fork.ledger.add(Fact::Compact(Box::new(one)));
    assert_eq!(fork.known().kept_from(), 0, "this branch never sent it");
}

/// A provider's own summary is not valid for another model. One of shadow mode is never sent.
#[test]
fn summary_is_for_its_model_and_mode() {
    let of = |change: fn(&mut CompactionRecord)| {
        let mut scene = plain("uauau");
        let mut one = scene.summary(2);
        change(&mut one);
        scene.ledger.add(Fact::Compact(Box::new(one)));
        scene.known().kept_from()
    };
    assert_eq!(of(|_| {}), 2);
    assert_eq!(of(|one| one.shadow = true), 0);
    assert_eq!(of(|one| one.model = "other".into()), 2);
    assert_eq!(of(|one| one.by = SummaryAuthor::Provider), 2);
    assert_eq!(of(|one| (one.by, one.model) = (SummaryAuthor::Provider, "other".into())), 0);
}

/// A written summary waits until a request uses it; that request records the decision.
#[test]
fn written_summary_is_used_once() {
    let mut scene = plain("uauauau");
    let written = |cut| Fact::Summary(Box::new(plain("uauauau").summary(cut)));
    assert_eq!(compact_of(&scene), Err(DecisionReason::NotReady));
    scene.ledger.add(written(2));
    scene.ledger.add(written(4));
    assert_eq!(scene.known().kept_from(), 0);
    assert_eq!(scene.known().summaries.len(), 2);
    let mut known = scene.known();
    let facts = compact_of(&scene).unwrap();
    let [Fact::Compact(one)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!(one.exchange, *scene.request().exchange);
    known.add(facts);
    assert_eq!(known.kept_from(), 4, "older ones are of no use");
    assert_eq!(known.summaries.len(), 0, "older ones are of no use");
    let mut later = scene.known();
    later.keep_adopted(&known);
    assert_eq!(later.kept_from(), 0, "nothing of it is another branch's");
}

fn compact_of(scene: &SessionFixture) -> Result<Vec<Fact>, DecisionReason> {
    compact::propose(&scene.request(), &scene.known(), compact::CompactionNeed::Swap)
}

/// If the client changed earlier messages, a summary is found by the parts before its cut, if these are unique.
#[test]
fn summary_is_found_by_what_stands_before_its_cut() {
    let found = |letters: &str, own| {
        let mut scene = plain(letters);
        let one = CompactionRecord { is_own: own, ..scene.summary(4) };
        scene.ledger.add(Fact::Compact(Box::new(one.clone())));
        let mut all = messages(letters);
        all.as_array_mut().unwrap().insert(0, json!({"role": "user", "content": "Another date."}));
        scene.send(&all);
        // The branch must have made the decision, too.
        scene.ledger.add(Fact::Compact(Box::new(CompactionRecord {
            exchange: scene.request().exchange.clone(),
            about: Chain(7),
            ..one
        })));
        scene.known().kept_from()
    };
    assert_eq!(found("ucraua", true), 5);
    assert_eq!(found("ucraua", false), 0);
}

#[test]
fn only_random_call_id_or_long_model_text_identifies_cut() {
    let own = |text: &str, cut| {
        let scene = SessionFixture::new(
            FREE,
            &json!([{"role": "user", "content": "Hm. ".repeat(40)},
            {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": "Aye."}, {"role": "user", "content": "Go on."}]),
        );
        scene.known().has_own_near(&scene.conversation, cut)
    };
    assert!(!own(&"w".repeat(45), 2), "quotes count");
    assert!(own(&"w".repeat(46), 2), "quotes count");
    assert!(!own("Aye.", 2), "the user's text does not count");
    let called = plain("ucra");
    assert!(called.known().has_own_near(&called.conversation, 3));
    // Four parts are compared.
    let long = "w".repeat(99);
    assert!(own(&long, 4));
    assert!(own(&long, 5));
}

/// Reasoning that was put back is put back again where the model thinks after it. It stays out where the request was
/// sent without it.
#[test]
fn reasoning_returns_in_its_branch() {
    let all = messages("ucrcr");
    let upto = |count: usize| all.as_array().unwrap()[..count].iter().cloned().collect::<Value>();
    let with = |number: usize| json!([thinking(number), all[number]["content"][0]]);
    let mut scene = SessionFixture::new(BOUND, &upto(1));
    scene.answered(&with(1));
    scene.send(&upto(3));
    let decided = reasoning::propose(&scene.request(), &scene.known()).facts;
    let [Fact::ReasoningDecision(decision)] = &decided[..] else { panic!("{decided:?}") };
    assert_eq!(decision.does, ReasoningAction::PutBack);
    decided.iter().for_each(|fact| scene.ledger.add(fact.clone()));
    let thinks = |scene: &SessionFixture| {
        let sent = sent(scene);
        let all = sent["messages"].as_array().unwrap().iter().enumerate();
        let thinks = |one: &Value| one["content"][0]["type"] == "thinking";
        all.filter(|(_, one)| thinks(one)).map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(thinks(&scene), [1]);
    let first = reasoning::signature_key(&thinking(1).to_string());
    assert_eq!(scene.plan().sent.prefix().thought, first);
    assert_eq!(scene.plan().sent.all_back().collect::<Vec<_>>(), [first.unwrap()]);
    scene.answered(&with(3));
    scene.send(&upto(5));
    assert_eq!(thinks(&scene), [1], "that of the newest is not decided yet");
    assert!(scene.known().was_sent(&scene.known().replies[0]));
    assert!(!scene.known().was_sent(&scene.known().replies[1]));
    let more = reasoning::propose(&scene.request(), &scene.known()).facts;
    more.into_iter().for_each(|fact| scene.ledger.add(fact));
    assert_eq!(thinks(&scene), [1, 3]);
    // If the client sends it itself, it is not added a second time.
    let mut own = upto(5);
    own[3]["content"] = with(3);
    scene.send(&own);
    assert_eq!(thinks(&scene), [1, 3]);
    // After a changed text, none of it applies.
    own[0]["content"] = "Other words.".into();
    own[3]["content"] = all[3]["content"].clone();
    scene.send(&own);
    assert_eq!(thinks(&scene), NONE);
}

/// Reasoning that the client sends and policy removes is removed block by block. The rest of the message stays.
#[test]
fn reasoning_that_policy_removes_is_removed_block_by_block() {
    let mut all = messages("uauau");
    for number in [1, 3] {
        all[number]["content"] = json!([thinking(number), {"type": "text", "text": "Aye."}]);
    }
    let mut scene = SessionFixture::new(FREE, &all);
    scene.policy.reasoning.strip_from_context = crate::context::policy::StripPolicy::AllButLast;
    let facts = reasoning::propose(&scene.request(), &scene.known()).facts;
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    let sent = sent(&scene);
    let content = |number: usize| sent["messages"][number]["content"].as_array().unwrap().len();
    assert_eq!(content(1), 1);
    assert_eq!(content(3), 2);
    let plan = scene.plan();
    let [step] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!(step.change, Change::Removed);
    assert_eq!(step.at, PartIndex::new(1, 0));
    let span = |at| scene.request().part(at).unwrap().span;
    assert!(plan.sent.is_gone(span(PartIndex::new(1, 0))));
    assert!(!plan.sent.is_gone(span(PartIndex::new(3, 0))));
    assert_eq!(plan.sent.prefix().thought, reasoning::signature_key(&thinking(3).to_string()));
}

/// Queued messages are added at the end of the next request, and stay there.
#[test]
fn queued_messages_are_sent_once() {
    let mut scene = plain("uau");
    let queued = |number: u32| QueuedMessage {
        id: format!("q{number}").into(),
        number,
        at: 1,
        text: format!("Mind {number}.").into(),
        repeats: None,
    };
    for number in [1, 2] {
        scene.ledger.add(Fact::Queued(Box::new(queued(number))));
    }
    let proposed = |scene: &SessionFixture| inject::propose(&scene.request(), &scene.known());
    let injected = proposed(&scene);
    assert_eq!(injected.len(), 2);
    injected.iter().for_each(|fact| scene.ledger.add(fact.clone()));
    assert_eq!(
        inject::injected_ids(&injected, scene.request().exchange),
        ["q1".into(), "q2".into()]
    );
    assert_eq!(inject::injected_ids(&injected, &"other".into()), [] as [Box<str>; 0]);
    assert_eq!(inject::requeue_unsent(&injected, scene.request().exchange).len(), 2);
    assert!(proposed(&scene).is_empty(), "nothing waits any more");
    let times_sent = |scene: &SessionFixture| {
        let sent = sent(scene).to_string();
        ["Mind 1.", "Mind 2."].map(|text| sent.matches(text).count())
    };
    assert_eq!(times_sent(&scene), [1, 1]);
    let known = scene.known();
    assert!(known.is_injected("q1"));
    assert!(!known.is_injected("q3"));
    assert_eq!(known.injected_at(PartIndex::new(2, 0)).count(), 2);
    assert_eq!(known.injected_at(PartIndex::new(0, 0)).count(), 0);
    assert_eq!(known.injected_in(2).count(), 2);
    let ids: Vec<_> = known.injections().map(|(at, injected)| (at, injected.len())).collect();
    assert_eq!(ids, [(PartIndex::new(2, 0), 2)]);
    let plan = scene.plan();
    let span = scene.request().part(PartIndex::new(2, 0)).unwrap().span;
    assert_eq!(plan.sent.injected_after(span).len(), 2);
    assert!(
        plan.steps.iter().all(|it| (it.change, it.decision) == (Change::Injected, Decision::New))
    );
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    assert_eq!(times_sent(&scene), [1, 1]);
    assert_eq!(scene.known().injected_at(PartIndex::new(2, 0)).count(), 2);
    let steps = scene.plan().steps;
    assert!(steps.iter().all(|step| step.decision == Decision::Replayed), "{steps:?}");
    // If nobody replied to a request, its messages wait again.
    let waits = |scene: &SessionFixture, failure| {
        inject::requeue(&scene.known(), &"r9".into(), 5, failure).len()
    };
    assert_eq!(
        waits(&scene, inject::DeliveryFailure::NoReply),
        0,
        "they were sent in an earlier message"
    );
    scene.send(&messages("uau"));
    assert_eq!(waits(&scene, inject::DeliveryFailure::NoReply), 2);
    assert_eq!(waits(&scene, inject::DeliveryFailure::Refused), 2);
    // Nothing is injected into a call beside the conversation.
    scene.ledger.add(Fact::Queued(Box::new(queued(3))));
    scene.send(&messages("uauau"));
    assert_eq!(proposed(&scene).len(), 1);
    scene.mode = Mode::Shadow;
    assert!(proposed(&scene).is_empty());
    let removed =
        InjectedMessage { id: "q3".into(), at: 1, state: crate::context::InjectionState::Removed };
    scene.ledger.add(Fact::InjectedMessage(Box::new(removed)));
    scene.mode = Mode::Active;
    assert!(proposed(&scene).is_empty());
}

/// The history is not in the request, so there is nothing to change.
#[test]
fn held_history_is_sent_unchanged() {
    let mut scene = plain("ucrau");
    scene.ledger.add(cut(&scene, 2, PRESSURE));
    scene.conversation.held = Some(crate::dialect::HeldHistory::After("r".into()));
    let plan = scene.plan();
    assert!(plan.edits.is_empty());
    assert!(plan.sent.is_original());
    assert!(!plan.conflict);
}

/// Where the user's turn begins, and whether the model waits for results.
#[test]
fn loop_is_open_while_calls_wait() {
    let of = |letters: &str| {
        let scene = SessionFixture::new(FREE, &messages(letters));
        let request = scene.request();
        (request.newest_user_message(), request.is_in_loop())
    };
    assert_eq!(of("ucr"), (0, true));
    assert_eq!(of("uc"), (0, true));
    assert_eq!(of("ucra"), (0, false));
    assert_eq!(of("ucrau"), (4, false));
    assert_eq!(of("ucraucr"), (4, true));
    let mut all = messages("ucr");
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    all[2]["content"].as_array_mut().unwrap().push(picture);
    let scene = SessionFixture::new(FREE, &all);
    assert!(scene.request().is_in_loop(), "pictures come with results");
    all[2]["content"][0]["content"] = json!([{"type": "tool_reference", "tool_name": "ls"}]);
    assert!(SessionFixture::new(FREE, &all).request().is_in_loop(), "so do references to tools");
    let request = scene.request();
    assert_eq!([0, 1, 2, 3].map(|at| request.is_models(at)), [false, true, false, false]);
    assert_eq!(PlanRequest { reserve: 1_000, ..request }.fillable(), scene.model.window - 1_000);
    let bound = |name| SessionFixture::new(name, &messages("u")).request().is_bound();
    assert!(bound(BOUND));
    assert!(!bound(FREE));
}

/// A stand-in that was decided for one model is used for another only if that demands one, too.
#[test]
fn stand_in_goes_where_it_is_demanded() {
    let body = json!({"model": "kimi-k2.5", "messages": [{"role": "user", "content": "Look."},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "ls", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a"}]});
    let path = "/v1/chat/completions";
    let mut scene = SessionFixture::read(Dialect::OpenaiChat, path, "kimi-k2.5", &body);
    let proposed =
        |scene: &SessionFixture| reasoning::propose(&scene.request(), &scene.known()).facts;
    assert!(proposed(&scene).is_empty());
    scene.reasoning_rule = ReasoningRule::Demanded;
    let facts = proposed(&scene);
    let [Fact::ReasoningDecision(decision)] = &facts[..] else { panic!("{facts:?}") };
    let ReasoningAction::StandIn(raw) = &decision.does else { panic!("{decision:?}") };
    assert_eq!(&**raw, r#"{"reasoning_content":" "}"#);
    scene.ledger.add(Fact::ReasoningDecision(Box::new(ReasoningDecision {
        exchange: "unknown".into(),
        ..*decision.clone()
    })));
    assert!(proposed(&scene).is_empty(), "once");
    assert_eq!(sent(&scene)["messages"][1]["reasoning_content"], " ");
    assert_eq!(scene.plan().steps[0].change, Change::StandIn);
    scene.reasoning_rule = ReasoningRule::Unwanted;
    assert!(
        scene.plan().edits.is_empty(),
        "its request was refused: no turn tells for which model"
    );
    scene.reasoning_rule = ReasoningRule::Demanded;
    scene.conversation.thinks = Some(false);
    assert!(proposed(&scene).is_empty());
    let mut deepseek = SessionFixture::read(Dialect::OpenaiChat, path, "deepseek-chat", &body);
    deepseek.reasoning_rule = ReasoningRule::Demanded;
    let facts = proposed(&deepseek);
    assert!(format!("{facts:?}").contains(r#"{\"reasoning_content\":\"\"}"#), "{facts:?}");
}

#[test]
fn place_of_change_is_written_as_pair() {
    let step = PlanStep::declined(Change::Cut, PRESSURE, PartIndex::new(2, 1), Span::new(0, 9), 1);
    let written = serde_json::to_value(&step).unwrap();
    assert_eq!(written["at"], json!([2, 1]));
    assert_eq!(serde_json::from_value::<PlanStep>(written).unwrap(), step);
}

/// A session whose request contains a queued message.
fn with_injected(letters: &str) -> SessionFixture {
    let mut scene = plain(letters);
    scene.ledger.add(Fact::Queued(Box::new(QueuedMessage {
        id: "q".into(),
        number: 1,
        at: 1,
        text: "Mind the tide.".into(),
        repeats: None,
    })));
    let injected = inject::propose(&scene.request(), &scene.known());
    assert_eq!(injected.len(), 1);
    injected.into_iter().for_each(|fact| scene.ledger.add(fact));
    scene
}

/// If a client changed earlier messages, an injected message still follows the same part with the same neighbour, if
/// the two are found in one place only.
#[test]
fn injected_messages_are_found_by_their_neighbours() {
    let mut scene = with_injected("uau");
    let tell = |scene: &mut SessionFixture, changed: &[(usize, &str)], letters: &str| {
        let mut all = messages(letters);
        changed.iter().for_each(|(at, text)| all[*at]["content"] = (*text).into());
        scene.send(&all);
        let sent = sent(scene)["messages"].clone();
        let sent = sent.as_array().unwrap();
        sent.iter().position(|one| one.to_string().contains("Mind the tide."))
    };
    let first = (0, "Words of another day.");
    assert_eq!(tell(&mut scene, &[first], "uauau"), Some(2));
    let repeated = [first, (3, "Said 1."), (4, "Words 2.")];
    assert_eq!(tell(&mut scene, &repeated, "uauau"), None, "they might stand in two places");
    assert_eq!(tell(&mut scene, &[first, (1, "Said otherwise.")], "uauau"), None);
}

/// The step that reports an injected message, and the chain of what is forwarded with it.
#[test]
fn injected_messages_are_reported_and_end_sent_chain() {
    let scene = with_injected("uau");
    let (plan, known) = (scene.plan(), scene.known());
    let injected = known.injected_at(PartIndex::new(2, 0)).next().unwrap();
    let tokens = u64::from(injected.place().unwrap().tokens);
    let span = scene.request().part(PartIndex::new(2, 0)).unwrap().span;
    let expected = PlanStep {
        change: Change::Injected,
        decision: Decision::New,
        why: DecisionReason::Queued,
        at: PartIndex::new(2, 0),
        byte: span.end as u64,
        bytes_before: 0,
        bytes_after: "Mind the tide.".len() as u64,
        tokens_before: 0,
        tokens_after: tokens,
    };
    assert_eq!(plan.steps, [expected]);
    assert_eq!(plan.sent.injected_after(span), [(injected.key(), tokens as u32)]);
    let keys: Vec<PartKey> = scene.conversation.parts().filter_map(|part| part.key).collect();
    let mut chain = Chain::START;
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(plan.sent.before(at), chain, "{at}");
        chain = chain.then(*key);
    }
    assert_eq!(plan.sent.prefix().chain, chain.then(injected.key()));
    assert!(!plan.sent.is_original());
    assert!(plain("uau").plan().sent.is_original());
}

/// In the chain, a summary replaces the messages before its cut; messages injected before the cut are not sent.
#[test]
fn summary_replaces_its_messages_in_chain_that_is_sent() {
    let mut scene = with_injected("uau");
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    let step =
        |scene: &SessionFixture| scene.plan().steps.iter().map(|it| it.change).collect::<Vec<_>>();
    assert_eq!(step(&scene), [Change::Injected]);
    let one = scene.summary(3);
    let chain = Chain::START.then(one.key());
    scene.ledger.add(Fact::Compact(Box::new(one)));
    assert_eq!(step(&scene), [Change::Compacted]);
    let keys: Vec<PartKey> = scene.conversation.parts().filter_map(|part| part.key).collect();
    let sent = scene.plan().sent;
    let after: Vec<Chain> = (0..5).map(|at| sent.before(at)).collect();
    let kept = chain.then(keys[3]);
    assert_eq!(after, [Chain::START, Chain::START, Chain::START, chain, kept]);
    assert_eq!(sent.prefix().chain, kept.then(keys[4]));
}

/// The chain begins with system prompt and tools. What the provider is asked to clear is reported with what is sent.
#[test]
fn chain_that_is_sent_begins_with_system_prompt() {
    let body = |system: &str| json!({"model": FREE, "system": system, "messages": messages("u")});
    let of = |system: &str| {
        let mut scene =
            SessionFixture::read(Dialect::Anthropic, "/v1/messages", FREE, &body(system));
        scene.clears_past = Some(5);
        scene.plan().sent
    };
    let (kind, brief) = (of("Be kind."), of("Be brief."));
    assert_ne!((kind.before(0), kind.prefix().chain), (brief.before(0), brief.prefix().chain));
    assert_ne!(kind.before(0), Chain::START);
    assert_eq!(kind.clears_past(), Some(5));
    assert_eq!(plain("u").plan().sent.clears_past(), None);
}

/// A decision that was revoked for good is not made again, whatever its kind.
#[test]
fn decision_revoked_for_good_is_not_made_again() {
    let mut scene = plain("ucrau");
    let about = PartKey(scene.about(2));
    let decide = |why, does| {
        Fact::ReasoningDecision(Box::new(ReasoningDecision {
            about,
            at: 1,
            exchange: "r".into(),
            does,
            why,
            shadow: false,
            epoch: None,
        }))
    };
    let cut = cut(&scene, 2, PRESSURE);
    let out = decide(DecisionReason::Refusal, ReasoningAction::Remove);
    let known = scene.known();
    assert!(known.may_decide(&cut));
    assert!(known.may_decide(&out));
    scene.ledger.add(cut.clone());
    scene.ledger.add(Fact::Revocation(Box::new(Revocation {
        exchange: scene.request().exchange.clone(),
        thread: scene.placed().position.thread,
        parent: scene.placed().position.parent,
        at: 1,
        about: vec![about],
        renewal: Renewal::Never,
    })));
    let known = scene.known();
    assert!(!known.may_decide(&cut));
    assert!(!known.may_decide(&out));
    let mut known = scene.known();
    assert!(!known.takes_out_unrefused());
    known.add([out]);
    assert!(!known.takes_out_unrefused(), "its provider refused it");
    let mut known = scene.known();
    known.add([decide(DecisionReason::Stripped, ReasoningAction::Remove)]);
    assert!(known.takes_out_unrefused());
    let mut known = scene.known();
    known.add([decide(DecisionReason::Birth, ReasoningAction::PutBack)]);
    assert!(!known.takes_out_unrefused());
}

/// A cut was free while the client left reasoning out. If that reasoning comes back and the model binds it, the cut
/// is dropped, or the reasoning is taken out where policy accepts its loss.
#[test]
fn cut_or_returned_reasoning_is_dropped_if_they_exclude_each_other() {
    let call = |all: &Value, at: usize| all[at]["content"][0].clone();
    let all = messages("ucrcrau");
    let upto = |count: usize| all.as_array().unwrap()[..count].iter().cloned().collect::<Value>();
    // How many cuts remain once the client sends the reasoning of these messages, and how much of that is taken out.
    let left = |name, thinks: &[usize], change: fn(&mut SessionFixture)| {
        let mut scene = SessionFixture::new(name, &upto(1));
        scene.answered(&json!([call(&all, 1)]));
        scene.send(&upto(3));
        scene.answered(&json!([thinking(3), call(&all, 3)]));
        scene.send(&upto(5));
        let fact = cut(&scene, 2, PRESSURE);
        scene.ledger.add(fact);
        scene.answered(&json!([{"type": "text", "text": "Said 5."}]));
        let mut sends = all.clone();
        for at in thinks {
            sends[*at]["content"] = json!([thinking(*at), call(&all, *at)]);
        }
        scene.send(&sends);
        change(&mut scene);
        let mut known = scene.known();
        assert_eq!(known.cuts_here().count(), 1);
        known.drop_cuts_that_void_reasoning(&scene.request());
        (known.cuts_here().count(), reasoning::propose(&scene.request(), &known).facts.len())
    };
    assert_eq!(left(BOUND, &[3], |_| {}), (0, 0));
    assert_eq!(left(BOUND, &[], |_| {}), (1, 0), "none comes back");
    assert_eq!(left(BOUND, &[1], |_| {}), (1, 0), "it is before the cut");
    assert_eq!(left(FREE, &[3], |_| {}), (1, 0), "it is not bound");
    let accept = |it: &mut SessionFixture| it.policy.prune.accept_reasoning_loss = true;
    assert_eq!(left(BOUND, &[3], accept), (1, 1));
    assert_eq!(left(BOUND, &[1], accept), (1, 0), "it is before the cut");
    let strip = |it: &mut SessionFixture| {
        it.policy.reasoning.strip_from_context = StripPolicy::AllButLast;
    };
    assert_eq!(left(BOUND, &[3], strip), (1, 1), "policy takes it out");
    assert_eq!(left(BOUND, &[3], |it| it.name = "another"), (1, 0), "it is another model's");
}

/// A fallback model that binds nothing got the cut together with reasoning of a model that binds: for that one, when it is
/// back, nothing was lost, and the cut is not repeated, whatever policy accepts. Nor is it repeated that reasoning was taken out.
#[test]
fn changes_of_a_fallback_void_no_reasoning() {
    let call = |all: &Value, at: usize| all[at]["content"][0].clone();
    let all = messages("ucrcrauau");
    let mut sends = all.clone();
    sends[3]["content"] = json!([thinking(3), call(&all, 3)]);
    let upto = |count: usize| sends.as_array().unwrap()[..count].iter().cloned().collect::<Value>();
    let is_cut_after = |fallback: &'static str, strip: StripPolicy| {
        let mut scene = SessionFixture::new(BOUND, &upto(1));
        scene.answered(&json!([call(&all, 1)]));
        scene.send(&upto(3));
        scene.answered(&json!([thinking(3), call(&all, 3)]));
        scene.fall_back(fallback);
        scene.send(&upto(5));
        let fact = cut(&scene, 2, PRESSURE);
        scene.ledger.add(fact);
        scene.answered(&json!([sends[5]["content"][0].clone()]));
        scene.send(&upto(7));
        scene.answered(&json!([sends[7]["content"][0].clone()]));
        scene.fall_back(BOUND);
        scene.send(&sends);
        scene.policy.reasoning.strip_from_context = strip;
        let mut known = scene.known();
        assert_eq!(known.cuts_here().count(), 1);
        known.drop_cuts_that_void_reasoning(&scene.request());
        known.cuts_here().count() == 1
    };
    for strip in [StripPolicy::None, StripPolicy::AllButLast] {
        assert!(!is_cut_after(FREE, strip));
        assert!(
            is_cut_after(BOUND, strip),
            "it was sent both, so it has lost its reasoning already"
        );
    }
    let is_stripped_after = |fallback: &'static str| {
        let mut scene = SessionFixture::new(BOUND, &upto(3));
        scene.answered(&json!([thinking(3), call(&all, 3)]));
        scene.fall_back(fallback);
        scene.send(&upto(5));
        let about = scene.conversation.part(PartIndex::new(3, 0)).unwrap().removal_key().unwrap();
        scene.ledger.add(Fact::ReasoningDecision(Box::new(ReasoningDecision {
            about: PartKey(about),
            at: 1,
            exchange: scene.request().exchange.clone(),
            does: ReasoningAction::Remove,
            why: DecisionReason::Stripped,
            shadow: false,
            epoch: None,
        })));
        scene.answered(&json!([sends[5]["content"][0].clone()]));
        scene.fall_back(BOUND);
        scene.send(&upto(7));
        !scene.plan().edits.is_empty()
    };
    assert!(!is_stripped_after(FREE));
    assert!(is_stripped_after(BOUND));
}

/// Before a message of the model, the boundary of the model ends the summary's own message. A summary that the
/// provider wrote is sent as it was written.
#[test]
fn boundary_joins_summary_before_model() {
    let of = |letters: &str, by: SummaryAuthor| {
        let mut scene = SessionFixture::new("claude-opus-4-6", &messages(letters));
        let raw = rewrite::continued(Dialect::Anthropic, "They spoke.", &[], Some("Go on."));
        let written = CompactionRecord { raw: raw.into(), by, ..scene.summary(1) };
        scene.ledger.add(Fact::Summary(Box::new(written.clone())));
        let mut known = scene.known();
        let offered = known.summaries[0].1.raw.clone();
        known.add([Fact::Compact(Box::new(written.clone()))]);
        scene.ledger.add(Fact::Compact(Box::new(written)));
        let (now, later) = (known.compact().unwrap().1, scene.known());
        assert_eq!(now.raw, offered);
        assert_eq!(later.compact().unwrap().1.raw, offered);
        offered
    };
    use SummaryAuthor::{Provider, Summary};
    let joined = r#"{"role":"user","content":"They spoke.\n\nGo on."}"#;
    let apart =
        r#"{"role":"user","content":"They spoke."},{"role":"assistant","content":"Go on."}"#;
    assert_eq!(&*of("uau", Summary), joined);
    assert_eq!(&*of("uuau", Summary), apart);
    assert_eq!(&*of("uau", Provider), apart);
}
