//! Which results may be cut, and when it is time.

use serde_json::{Value, json};

use super::*;
use crate::context::Turn;
use crate::context::policy::{Mode, ReasoningRule};
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::models::{Price, Rates};
use crate::dialect::{Dialect, Purpose};

/// Tokens of each part.
const EACH: u32 = 100;
const FREE: &str = "claude-opus-4-6";
const BOUND: &str = "claude-opus-5-5";

/// A policy under which everything may be cut at once.
fn eased() -> PrunePolicy {
    PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 0,
        protect_messages: 0,
        min_saving_tokens: 0,
        min_messages: 0,
        ..PrunePolicy::default()
    }
}

fn scene(letters: &str, prune: PrunePolicy) -> SessionFixture {
    of(FREE, &messages(letters), prune)
}

fn of(name: &'static str, messages: &Value, prune: PrunePolicy) -> SessionFixture {
    let mut scene = SessionFixture::new(name, messages);
    scene.policy.prune = prune;
    scene
}

/// What was found: the messages of the old results, newest first; those of the new ones; the tokens from the oldest
/// result to the end; and whether there is reasoning after it.
#[derive(Debug, PartialEq)]
struct Found {
    old: Vec<usize>,
    new: Vec<usize>,
    after_first: u64,
    reasoning_after: bool,
}

fn found_in(scene: &SessionFixture, known: &RecordedDecisions) -> Found {
    let parts = scene.parts(|_| EACH);
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let request = scene.request();
    let found = PruneCandidates::new(&request, known, cost);
    Found {
        old: found.old.iter().map(|result| result.at.message).collect(),
        new: found.newborn.iter().map(|newborn| newborn.at.message).collect(),
        after_first: found.after_first,
        reasoning_after: found.reasoning_after,
    }
}

fn old(scene: &SessionFixture) -> Vec<usize> {
    found_in(scene, &scene.known()).old
}

#[test]
fn answered_result_is_old() {
    for (letters, old, new) in [
        ("ucrcrcra", vec![6, 4, 2], vec![]),
        ("ucrcrcr", vec![4, 2], vec![6]),
        ("ucr", vec![], vec![2]),
        ("ua", vec![], vec![]),
    ] {
        let scene = scene(letters, eased());
        let found = found_in(&scene, &scene.known());
        assert_eq!(found.old, old, "{letters}");
        assert_eq!(found.new, new, "{letters}");
    }
}

/// Protected tokens count the whole history, or only the results that could be cut: then new results count, too, unless
/// policy protects them anyway.
#[test]
fn protected_results_are_not_cut() {
    let stay = |letters, tokens, protect_counts, protect_messages, except: &[&str]| {
        let except_tools = except.iter().map(ToString::to_string).collect();
        let policy = PrunePolicy {
            protect_tokens: tokens,
            protect_counts,
            protect_messages,
            except_tools,
            ..eased()
        };
        old(&scene(letters, policy))
    };
    for (tokens, rest) in
        [(199, vec![6, 4, 2]), (200, vec![4, 2]), (399, vec![4, 2]), (400, vec![2]), (600, vec![])]
    {
        assert_eq!(stay("ucrcrcra", tokens, ProtectUnit::All, 0, &[]), rest, "{tokens}");
    }
    let of_results = |letters, tokens, messages, except: &[&str]| {
        stay(letters, tokens, ProtectUnit::Results, messages, except)
    };
    assert_eq!(of_results("ucrcrcra", 100, 0, &[]), [4, 2]);
    assert_eq!(of_results("ucrcrcra", 200, 0, &[]), [2]);
    assert_eq!(of_results("ucrcrcr", 100, 0, &[]), [4, 2], "the new one counts");
    assert_eq!(of_results("ucrcrcr", 100, 1, &[]), [2], "it is protected by its place");
    assert_eq!(of_results("ucrcrwr", 100, 0, &["Write"]), [2], "it could not be cut");
    assert_eq!(of_results("ucrwrcra", 100, 0, &["Write"]), [2], "nor could an old one");
}

#[test]
fn newest_messages_and_turns_stay() {
    for (messages, turns, rest) in [
        (0, 0, vec![10, 6, 2]),
        (1, 0, vec![10, 6, 2]),
        (2, 0, vec![6, 2]),
        (99, 0, vec![]),
        (0, 1, vec![6, 2]),
        (0, 2, vec![2]),
        (0, 3, vec![]),
        (0, 4, vec![]),
        (6, 1, vec![2]),
        (2, 2, vec![2]),
    ] {
        let policy = PrunePolicy { protect_messages: messages, protect_turns: turns, ..eased() };
        let case = format!("{messages} messages, {turns} turns");
        assert_eq!(old(&scene("ucraucraucra", policy)), rest, "{case}");
    }
}

#[test]
fn kept_errors_and_tools_stay() {
    let kept = |keep_errors| old(&scene("ucecra", PrunePolicy { keep_errors, ..eased() }));
    assert_eq!(kept(true), vec![4]);
    assert_eq!(kept(false), vec![4, 2]);
    // A result does not name its tool: its call does.
    let only = PrunePolicy { tools: vec!["Write".into()], ..eased() };
    assert_eq!(old(&scene("ucrwrcra", only)), [4]);
    let except = PrunePolicy { except_tools: vec!["Write".into()], ..eased() };
    assert_eq!(old(&scene("ucrwrcra", except)), [6, 2]);
}

/// What precedes a provider's summary is no longer read.
#[test]
fn provider_summary_stops_cuts() {
    let with = |block: Value| {
        let mut all = messages("ucrucra");
        all[3]["content"] = json!([block, {"type": "text", "text": "Go on."}]);
        all[3]["role"] = "assistant".into();
        move |stop_at_summary| {
            old(&of(FREE, &all.clone(), PrunePolicy { stop_at_summary, ..eased() }))
        }
    };
    let summary = with(json!({"type": "compaction", "content": "They looked."}));
    assert_eq!(summary(true), vec![5]);
    assert_eq!(summary(false), vec![5, 2]);
    let unknown = with(json!({"type": "container_upload", "file_id": "f"}));
    assert_eq!(unknown(true), [5, 2], "another block that nobody knows");
    let call = json!({"type": "tool_use", "id": "toolu_9", "name": "compaction", "input": {}});
    assert_eq!(with(call)(true), [5, 2], "a tool of that name");
}

fn trim_of(scene: &SessionFixture, message: usize) -> Replacement {
    let part = &scene.conversation.messages[message].parts[0];
    let text = trim::text(part, &scene.body);
    Replacement::Trim(TrimRange::new(&text, 1000, 300).unwrap())
}

fn cut(scene: &SessionFixture, message: usize, why: DecisionReason) -> Fact {
    let content = match why {
        DecisionReason::TooLarge => trim_of(scene, message),
        _ => Replacement::Text("gone".into()),
    };
    Fact::Cut(Box::new(Cut {
        content,
        keep_media: true,
        was: 1000,
        tokens: 90,
        why,
        ..scene.cut(message, "gone")
    }))
}

fn with_cut(scene: &SessionFixture, message: usize, why: DecisionReason) -> RecordedDecisions {
    let mut known = scene.known();
    known.add([cut(scene, message, why)]);
    known
}

/// A result that was trimmed when it was new can be cleared like any other, under another key. Once cleared, it stays
/// as it is.
#[test]
fn result_is_cut_once_and_one_that_was_trimmed_can_be_cleared() {
    let scene = scene("ucrcrcr", eased());
    let found = |message, why| found_in(&scene, &with_cut(&scene, message, why));
    let cleared = found(4, DecisionReason::Pressure);
    assert_eq!(cleared.old, vec![2]);
    assert_eq!(cleared.new, vec![6]);
    let trimmed = found(4, DecisionReason::TooLarge);
    assert_eq!(trimmed.old, vec![4, 2]);
    assert_eq!(trimmed.new, vec![6]);
    // A trimmed result costs what is left of it: from the oldest to the end are 4 parts of 100 tokens and one of 90.
    assert_eq!(trimmed.after_first, 4 * u64::from(EACH) + 90);
    let new = found(6, DecisionReason::TooLarge);
    assert_eq!(new.old, vec![4, 2], "the model has not read it yet");
    assert!(new.new.is_empty(), "the model has not read it yet");
    let known = with_cut(&scene, 4, DecisionReason::TooLarge);
    let (parts, request) = (scene.parts(|_| EACH), scene.request());
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let abouts = PruneCandidates::new(&request, &known, cost).old;
    let abouts: Vec<u128> = abouts.iter().map(|result| result.about).collect();
    assert_eq!(abouts, [plan::clearing_key(scene.about(4)), scene.about(2)]);
}

#[test]
fn nothing_is_cut_before_earlier_cut_if_policy_stops_there() {
    let stops = |stop_at_cut| scene("ucrcrcra", PrunePolicy { stop_at_cut, ..eased() });
    let ours = |stop_at_cut| {
        let scene = stops(stop_at_cut);
        found_in(&scene, &with_cut(&scene, 4, DecisionReason::Pressure)).old
    };
    assert_eq!(ours(true), vec![6]);
    assert_eq!(ours(false), vec![6, 2]);
    // The client cut it itself: the text is our placeholder, or another text.
    let clients = |text: &str| {
        let mut all = messages("ucrcrcra");
        all[4]["content"][0]["content"] = text.into();
        old(&of(FREE, &all, PrunePolicy { stop_at_cut: true, ..eased() }))
    };
    let placeholder = eased().placeholder;
    assert_eq!(clients(&placeholder), [6]);
    assert_eq!(clients(&placeholder.replace('O', "N")), [6, 4, 2]);
    assert_eq!(clients(&format!("{placeholder}.")), [6, 4, 2]);
}

/// A placeholder is used only if it costs less than what it replaces.
#[test]
fn placeholder_no_smaller_than_its_result_is_not_used() {
    let scene = scene("ucra", eased());
    let (request, known) = (scene.request(), scene.known());
    let saves = |tokens: u32| {
        let parts = scene.parts(|_| tokens);
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        let found = PruneCandidates::new(&request, &known, cost);
        found.old.first().map(|result| (result.after, result.saves))
    };
    let (after, saved) = saves(EACH).unwrap();
    assert_eq!(after + saved, u64::from(EACH));
    let after = u32::try_from(after).unwrap();
    assert_eq!(saves(after), None);
    assert_eq!(saves(after + 1), Some((u64::from(after), 1)));
}

/// Pictures within a result are cut with it if policy allows that. Pictures beside it belong to the user, and stay.
#[test]
fn pictures_in_result_are_counted_if_they_are_cut_with_it() {
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let mut all = messages("ucra");
    let text = all[2]["content"][0]["content"].clone();
    all[2]["content"][0]["content"] = json!([{"type": "text", "text": text}, picture, picture]);
    let tokens = |all: &Value, keep_media| {
        let scene = of(FREE, all, PrunePolicy { keep_media, ..eased() });
        let parts = scene.parts(|_| EACH);
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        let (request, known) = (scene.request(), scene.known());
        PruneCandidates::new(&request, &known, cost).old[0].tokens / u64::from(EACH)
    };
    assert_eq!(tokens(&all, true), 1);
    assert_eq!(tokens(&all, false), 3);
    all[2]["content"].as_array_mut().unwrap().push(picture);
    assert_eq!(tokens(&all, true), 1, "one beside it");
    assert_eq!(tokens(&all, false), 3, "one beside it");
}

/// The tokens from the oldest cut to the end, and whether there is reasoning after it: that is what a cut breaks.
#[test]
fn tokens_and_reasoning_after_oldest_cut_are_counted() {
    let of = |letters| {
        let scene = scene(letters, eased());
        let found = found_in(&scene, &scene.known());
        (found.after_first / u64::from(EACH), found.reasoning_after)
    };
    assert_eq!(of("ucrcrcra"), (6, false));
    assert_eq!(of("ucra"), (2, false));
    assert_eq!(of("ucrtra"), (4, true), "thinking costs nothing here: it has no key");
    assert_eq!(of("utra"), (2, false), "the reasoning is before the result");
    // A signature may be on the text or the calls themselves.
    let call = |n: usize, signature: Option<&str>| json!({"functionCall": {"name": "ls", "args": {"n": n}}, "thoughtSignature": signature});
    let result = |n: usize| json!({"functionResponse": {"name": "ls", "response": {"output": format!("{n}: {}", "a ".repeat(900))}}});
    let signed = |signatures: [Option<&str>; 2]| {
        let body = json!({"contents": [
            {"role": "user", "parts": [{"text": "Look."}]},
            {"role": "model", "parts": [call(1, signatures[0])]}, {"role": "user", "parts": [result(1)]},
            {"role": "model", "parts": [call(2, signatures[1])]}, {"role": "user", "parts": [result(2)]}]});
        let path = "/v1beta/models/gemini-3-pro:generateContent";
        let mut scene = SessionFixture::read(Dialect::Gemini, path, "gemini-3-pro", &body);
        scene.policy.prune = eased();
        let found = found_in(&scene, &scene.known());
        (found.old, found.reasoning_after)
    };
    assert_eq!(signed([Some("c2ln"), None]), (vec![2], false));
    assert_eq!(signed([None, Some("c2ln")]), (vec![2], true));
}

/// The prices of a model: a read costs an eighth of input, a write a quarter more, so all sums are exact.
const PRICE: Price =
    Price::from_rates(Rates { input: 8.0, output: 40.0, cache_read: 1.0, cache_write: 10.0 });

/// After how many turns a cut of 1,000 tokens with `stays` tokens behind it is paid back.
fn turns(stays: u64, price: Price, usage: impl Fn(&mut crate::dialect::Usage)) -> Option<u32> {
    let mut scene = scene("ucra", eased());
    scene.model.price = Some(price);
    let known = scene.grown_from(|turn| usage(&mut turn.usage));
    (0..200).find(|horizon| {
        scene.policy.prune.horizon_turns = *horizon;
        let request = scene.request();
        let parts = scene.parts(|_| EACH);
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        let mut found = PruneCandidates::new(&request, &known, cost);
        (found.old[0].saves, found.after_first) = (1000, 1000 + stays);
        found.pays_back(&request, &known)
    })
}

/// `N = (T−R)(w−r) / (R·r)` (`docs/protocols.md` 7.4).
#[test]
fn cut_pays_back_once_it_saved_what_it_broke_of_cache() {
    let of = |stays, price| turns(stays, price, |_| {});
    assert_eq!(of(0, PRICE), Some(0), "it breaks nothing");
    assert_eq!(of(1_000, PRICE), Some(9), "(1.25 - 0.125) / 0.125");
    assert_eq!(of(3_000, PRICE), Some(27));
    assert_eq!(of(1_001, PRICE), Some(10), "9.009 turns are not 9");
    assert_eq!(
        of(1_000, Price { cache_write: 0.0, ..PRICE }),
        Some(7),
        "a write is a read of input"
    );
    let free_write = Price { cache_write: 0.5, ..PRICE };
    assert_eq!(of(1_000, free_write), Some(0), "a write for less than a read breaks nothing");
    // With a model that costs nothing, nothing is saved.
    assert_eq!(of(1_000, Price { input: 0.0, ..PRICE }), None);
    assert_eq!(of(1_000, Price { cache_read: 0.0, ..PRICE }), None, "a read that is free, too");
    let mut unknown = scene("ucra", eased());
    unknown.model.price = None;
    let request = unknown.request();
    assert!(!PruneCandidates::default().pays_back(&request, &unknown.known()));
}

/// What is written is assumed to live as long as what the parent turn wrote, and costs accordingly.
#[test]
fn one_hour_cache_pays_back_later() {
    let of = |write, long| {
        turns(1_000, PRICE, |usage| {
            (usage.cache_write, usage.cache_write_long) = (write, long);
        })
    };
    assert_eq!(of(Some(100), Some(100)), Some(15), "(2 - 0.125) / 0.125");
    assert_eq!(of(Some(100), Some(0)), Some(9));
    assert_eq!(of(Some(100), None), Some(9));
    assert_eq!(of(Some(0), Some(100)), Some(9), "nothing was written");
}

/// Why the old results are cut, or why they are not.
fn gate(
    scene: &SessionFixture,
    known: &RecordedDecisions,
    tokens: u64,
) -> Result<Option<DecisionReason>, DecisionReason> {
    let parts = scene.parts(|_| EACH);
    let cost = RequestCost { tokens, parts: &parts, rules: None };
    let request = scene.request();
    PruneCandidates::new(&request, known, cost).gate(&request, known, cost)
}

#[test]
fn no_step_is_reported_for_request_that_is_not_pruned() {
    let of = |letters, prune| {
        let scene = scene(letters, prune);
        gate(&scene, &scene.known(), 0)
    };
    assert_eq!(of("ucra", eased()), Ok(Some(DecisionReason::Always)));
    assert_eq!(of("ua", eased()), Ok(None), "nothing is old");
    assert_eq!(of("ucra", PrunePolicy { gate: vec![], ..eased() }), Ok(None));
    assert_eq!(of("ucra", PrunePolicy { min_messages: 5, ..eased() }), Ok(None));
    let four = PrunePolicy { min_messages: 4, ..eased() };
    assert_eq!(of("ucra", four), Ok(Some(DecisionReason::Always)));
}

#[test]
fn batch_waits_until_it_saves_enough() {
    let scene_of =
        |min_saving_tokens| scene("ucrcra", PrunePolicy { min_saving_tokens, ..eased() });
    let scene = scene_of(0);
    let (request, parts) = (scene.request(), scene.parts(|_| EACH));
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let saving = PruneCandidates::new(&request, &scene.known(), cost).saving();
    assert!(saving > u64::from(EACH), "two of them: {saving}");
    let of = |min| gate(&scene_of(min), &scene.known(), 0);
    assert_eq!(of(saving), Ok(Some(DecisionReason::Always)));
    assert_eq!(of(saving + 1), Err(DecisionReason::TooLittle));
}

#[test]
fn nothing_is_cut_if_provider_clears_results_itself() {
    let mut scene = scene("ucra", PrunePolicy { method: PruneMethod::Provider, ..eased() });
    assert_eq!(gate(&scene, &scene.known(), 0), Err(DecisionReason::Provider));
    scene.policy.prune.method = PruneMethod::Auto;
    assert_eq!(gate(&scene, &scene.known(), 0), Ok(Some(DecisionReason::Always)));
    scene.clears_past = Some(1);
    assert_eq!(gate(&scene, &scene.known(), 0), Err(DecisionReason::Provider));
}

/// A thread whose rewrite was refused is left alone until its cache is cold.
#[test]
fn suspended_thread_is_cut_only_when_its_cache_is_cold() {
    let mut scene = scene("ucra", eased());
    let mut known = scene.grown_from(|_| {});
    known.is_suspended = true;
    assert_eq!(gate(&scene, &known, 0), Err(DecisionReason::Suspended));
    scene.now += 48 * 3_600_000;
    assert_eq!(gate(&scene, &known, 0), Ok(Some(DecisionReason::Always)));
}

/// The client's own summary is about to replace what would be cut.
#[test]
fn no_cut_is_made_for_money_while_client_compacts() {
    let mut scene = scene("ucra", PrunePolicy { gate: vec![PruneGate::PaysBack], ..eased() });
    scene.model.price = Some(PRICE);
    scene.policy.prune.horizon_turns = 999;
    let mut known = scene.grown_from(|_| {});
    assert_eq!(gate(&scene, &known, 0), Ok(Some(DecisionReason::PaysBack)));
    known.is_being_compacted = true;
    assert_eq!(gate(&scene, &known, 0), Err(DecisionReason::NoGate));
}

#[test]
fn summary_that_its_client_does_not_use_is_forgotten() {
    let mut scene = scene("ucra", eased());
    let mut turn = Turn::clone(scene.grown_from(|_| {}).parent.as_ref().unwrap());
    let summarised = turn.exchange.clone();
    let mut summary = Turn { exchange: "summary".into(), ..turn.clone() };
    summary.purpose = Purpose::Compaction;
    summary.position.parent = Some(summarised);
    for fact in [turn.clone(), summary] {
        scene.ledger.add(Fact::Turn(fact.into()));
    }
    for step in 0..9 {
        assert_eq!(scene.ledger.is_being_compacted(Some(&turn)), step < 7, "{step}");
        turn.position.parent = Some(turn.exchange.clone());
        turn.exchange = format!("step {step}").into();
        scene.ledger.add(Fact::Turn(turn.clone().into()));
    }
}

/// The first open gate is the reason. If none is open, the reason is that of the first gate that gives one.
#[test]
fn first_open_gate_is_why() {
    let mut scene = scene("ucra", eased());
    scene.model.price = Some(PRICE);
    let known = scene.grown_from(|_| {});
    let mut of = |gates: &[PruneGate], tokens, horizon_turns, now| {
        scene.policy.prune.gate = gates.to_vec();
        (scene.policy.prune.horizon_turns, scene.now) = (horizon_turns, now);
        gate(&scene, &known, tokens)
    };
    use PruneGate::{Always, ColdCache, PaysBack, Pressure};
    let late = 48 * 3_600_000;
    assert_eq!(of(&[ColdCache, Always], 0, 0, 1), Ok(Some(DecisionReason::Always)));
    assert_eq!(of(&[ColdCache, Always], 0, 0, late), Ok(Some(DecisionReason::ColdCache)));
    assert_eq!(of(&[Always, ColdCache], 0, 0, late), Ok(Some(DecisionReason::Always)));
    assert_eq!(of(&[ColdCache], 0, 0, 1), Err(DecisionReason::NoGate));
    assert_eq!(of(&[PaysBack], 0, 0, 1), Err(DecisionReason::NoGate));
    assert_eq!(of(&[PaysBack], 0, 99, 1), Ok(Some(DecisionReason::PaysBack)));
    let full = scene.model.window;
    let mut of = |gates: &[PruneGate], tokens| {
        scene.policy.prune.gate = gates.to_vec();
        gate(&scene, &known, tokens)
    };
    assert_eq!(of(&[ColdCache, Pressure], full), Err(DecisionReason::LittleRoom));
    assert_eq!(of(&[Pressure, ColdCache], full), Err(DecisionReason::LittleRoom));
    assert_eq!(of(&[ColdCache, Pressure], full + 1), Ok(Some(DecisionReason::Pressure)));
}

/// Cuts and summaries share the room that may be filled: of a window with a reserve of half of it, three quarters.
#[test]
fn pressure_is_share_of_room_that_summaries_have() {
    let mut scene = scene("ucra", PrunePolicy { gate: vec![PruneGate::Pressure], ..eased() });
    (scene.model.window, scene.reserve) = (1_000, 500);
    (scene.policy.prune.pressure, scene.policy.prune.low_water) = (0.8, 1.0);
    let known = scene.grown_from(|_| {});
    assert_eq!(gate(&scene, &known, 600), Err(DecisionReason::NoGate));
    assert_eq!(gate(&scene, &known, 601), Ok(Some(DecisionReason::Pressure)));
}

/// A cut must make room for several turns and pay for what it breaks. Neither matters if the request no longer fits.
#[test]
fn pressure_cuts_where_that_makes_room_and_pays() {
    let mut scene = scene("ucra", PrunePolicy { gate: vec![PruneGate::Pressure], ..eased() });
    scene.model.price = Some(PRICE);
    scene.model.window = 1_000;
    scene.reserve = 200;
    (scene.policy.prune.pressure, scene.policy.prune.low_water) = (0.5, 0.75);
    scene.policy.prune.horizon_turns = 999;
    let known = scene.grown_from(|_| {});
    let (request, parts) = (scene.request(), scene.parts(|_| EACH));
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let saving = PruneCandidates::new(&request, &known, cost).saving();
    // Of 400 tokens in the history, 200 precede the newest result. Of what is left of 800 above the others, a quarter
    // must be free.
    let most = (400..800).rev().find(|tokens| {
        let uncuttable = tokens - 200 - 100;
        tokens - saving <= uncuttable + (800 - uncuttable) * 3 / 4
    });
    let most = most.unwrap();
    let no = Err(DecisionReason::NoGate);
    let (pressure, little) = (Ok(Some(DecisionReason::Pressure)), Err(DecisionReason::LittleRoom));
    for (tokens, verdict) in [
        (400, no),
        (401, pressure),
        (most, pressure),
        (most + 1, little),
        (800, little),
        (801, pressure),
    ] {
        assert_eq!(gate(&scene, &known, tokens), verdict, "{tokens}");
    }
    scene.policy.prune.low_water = 1.0;
    assert_eq!(gate(&scene, &known, 800), pressure, "it never waits");
    scene.policy.prune.low_water = 0.75;
    scene.policy.prune.horizon_turns = 0;
    assert_eq!(gate(&scene, &known, 500), Err(DecisionReason::NoGain));
    assert_eq!(gate(&scene, &known, 801), pressure, "the request no longer fits");
    // Without a price nothing is cut for money: only where a summary would be used otherwise.
    for price in [None, Some(Price { input: 0.0, ..PRICE })] {
        scene.model.price = price;
        assert_eq!(gate(&scene, &known, 500), Err(DecisionReason::NoGain));
        assert_eq!(gate(&scene, &known, 759), Err(DecisionReason::NoGain));
        assert_eq!(gate(&scene, &known, 760), pressure);
    }
    // A cold cache need not pay.
    scene.model.price = Some(PRICE);
    scene.now += 48 * 3_600_000;
    assert_eq!(gate(&scene, &known, 500), pressure);
    scene.model.known = false;
    assert_eq!(gate(&scene, &known, 801), Err(DecisionReason::UnknownWindow));
}

/// Bound reasoning depends on what precedes it, so a cut there invalidates it. In an open tool loop that is never done.
#[test]
fn cut_before_bound_reasoning_must_be_allowed_by_policy() {
    let of = |name, letters, accept_reasoning_loss| {
        let scene = of(name, &messages(letters), PrunePolicy { accept_reasoning_loss, ..eased() });
        gate(&scene, &scene.known(), 0)
    };
    let always = Ok(Some(DecisionReason::Always));
    assert_eq!(of(BOUND, "ucrtra", false), Err(DecisionReason::Bound));
    assert_eq!(of(BOUND, "ucrtrau", true), always);
    assert_eq!(of(BOUND, "ucrtr", true), Err(DecisionReason::OpenLoop));
    assert_eq!(of(BOUND, "ucrcr", true), always, "no reasoning becomes invalid");
    assert_eq!(of(BOUND, "utra", false), always, "the reasoning is before the cut");
    assert_eq!(of(FREE, "ucrtr", false), always);
}

/// Reasoning that a cut invalidates is removed with it.
#[test]
fn reasoning_that_cut_invalidates_is_removed_with_it() {
    let facts = |name| {
        let policy = PrunePolicy { accept_reasoning_loss: true, ..eased() };
        let scene = of(name, &messages("utrctrau"), policy);
        let parts = scene.parts(|_| EACH);
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        let Proposal { facts, declined } = propose(&scene.request(), &scene.known(), cost);
        assert!(declined.is_empty(), "{declined:?}");
        facts.iter().fold((0, 0), |(cuts, out), fact| match fact {
            Fact::Cut(_) => (cuts + 1, out),
            Fact::ReasoningDecision(decision) if decision.why == DecisionReason::Bound => {
                (cuts, out + 1)
            }
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(facts(BOUND), (2, 1));
    assert_eq!(facts(FREE), (2, 0));
}

/// A batch that is not cut is reported once, at its oldest result.
#[test]
fn waiting_batch_is_reported_once_at_its_oldest_result() {
    let scene = scene("ucrcra", PrunePolicy { gate: vec![PruneGate::ColdCache], ..eased() });
    let parts = scene.parts(|_| EACH);
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let Proposal { facts, declined } = propose(&scene.request(), &scene.known(), cost);
    assert!(facts.is_empty());
    let [one] = &declined[..] else { panic!("{declined:?}") };
    assert_eq!(one.at, PartIndex::new(2, 0));
    assert_eq!(one.why, DecisionReason::NoGate);
    assert!(one.tokens_before > u64::from(EACH), "of both: {}", one.tokens_before);
}

/// Nothing is cut in a call beside the conversation, or if the provider holds the history.
#[test]
fn nothing_is_cut_beside_conversation_or_in_held_histories() {
    let mut scene = scene("ucra", eased());
    let parts = scene.parts(|_| EACH);
    let proposed = |scene: &SessionFixture| {
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        propose(&scene.request(), &scene.known(), cost).facts.len()
    };
    assert_eq!(proposed(&scene), 1);
    for beside in [Purpose::Count, Purpose::Compaction, Purpose::Side, Purpose::WarmUp] {
        scene.conversation.purpose = beside;
        assert_eq!(proposed(&scene), 0, "{beside:?}");
    }
    scene.conversation.purpose = Purpose::Turn;
    scene.conversation.held = Some(crate::dialect::HeldHistory::After("resp".into()));
    assert_eq!(proposed(&scene), 0);
}

/// The cut of the newest result, if it costs `own` and the request `tokens`.
fn trimmed(scene: &SessionFixture, own: u32, tokens: u64) -> Option<Cut> {
    let last = scene.conversation.messages.len() - 1;
    let parts = scene.parts(|message| if message == last { own } else { EACH });
    let cost = RequestCost { tokens, parts: &parts, rules: None };
    let facts = propose(&scene.request(), &scene.known(), cost).facts;
    facts.into_iter().find_map(|fact| match fact {
        Fact::Cut(cut) if cut.why == DecisionReason::TooLarge => Some(*cut),
        _ => None,
    })
}

#[test]
fn new_result_past_limit_is_trimmed() {
    let limited = |max_result_tokens| scene("ucr", PrunePolicy { max_result_tokens, ..eased() });
    let scene = limited(Some(500));
    assert_eq!(trimmed(&scene, 500, 700), None);
    let cut = trimmed(&scene, 501, 700).unwrap();
    assert_eq!(cut.was, 501);
    assert!(cut.keep_media);
    let small = limited(Some(100));
    assert_eq!(trimmed(&small, 199, 700), None, "nothing would be saved");
    assert!(trimmed(&small, 200, 700).is_some());
}

/// Without a limit, a result is trimmed to what fits. Nothing is trimmed if a compaction makes room, or if the result
/// is small.
#[test]
fn large_new_result_that_does_not_fit_is_trimmed() {
    let mut scene = scene("ucr", eased());
    scene.policy.compact.engine = crate::context::policy::SummaryEngine::Off;
    (scene.model.window, scene.reserve) = (1_200, 200);
    assert_eq!(trimmed(&scene, 900, 1_000), None, "it fits");
    assert!(trimmed(&scene, 900, 1_001).is_some());
    assert_eq!(trimmed(&scene, 500, 1_001), None, "it is no more than half of what fits");
    assert!(trimmed(&scene, 501, 1_001).is_some());
    scene.mode = Mode::Shadow;
    assert!(trimmed(&scene, 501, 1_001).unwrap().shadow);
    scene.model.known = false;
    assert_eq!(trimmed(&scene, 900, 1_001), None, "the window is a guess");
}

#[test]
fn suspended_thread_is_not_trimmed() {
    let scene = scene("ucr", PrunePolicy { max_result_tokens: Some(500), ..eased() });
    let parts = scene.parts(|_| 900);
    let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
    let mut known = scene.known();
    known.is_suspended = true;
    let Proposal { facts, declined } = propose(&scene.request(), &known, cost);
    assert!(facts.is_empty());
    assert_eq!(
        declined.iter().map(|step| step.why).collect::<Vec<_>>(),
        [DecisionReason::Suspended]
    );
}

/// A new result is not trimmed if cutting old ones makes room for it.
#[test]
fn new_result_stays_whole_where_old_ones_make_room_for_it() {
    let of = |gate| {
        let mut scene = scene("ucrcr", PrunePolicy { gate, ..eased() });
        scene.policy.compact.engine = crate::context::policy::SummaryEngine::Off;
        scene.model.window = 1_000;
        trimmed(&scene, 600, 1_050)
    };
    assert!(of(vec![]).is_some());
    assert_eq!(of(vec![PruneGate::Always]), None);
}

/// However little room there is, a result keeps a twentieth of the window: head, tail and the note between them have
/// about so many tokens.
#[test]
fn trim_keeps_twentieth_of_window() {
    let mut all = messages("ucr");
    all[2]["content"][0]["content"] = "It is so. ".repeat(3_000).into();
    let mut scene = of(FREE, &all, eased());
    scene.policy.compact.engine = crate::context::policy::SummaryEngine::Off;
    scene.model.window = 10_000;
    let result = scene.conversation.parts().last().unwrap();
    let own = counter(&scene.request()).part(result);
    assert!(own > 6_000, "{own}");
    let kept = |room: i64| {
        let tokens = u64::try_from(10_000 + i64::from(own) - room).unwrap();
        trimmed(&scene, own, tokens).unwrap().tokens
    };
    let is_about = |tokens: u32, wanted: u32| tokens.abs_diff(wanted) <= wanted / 20;
    for (room, wanted) in [(-5_000, 500), (0, 500), (500, 500), (1_000, 1_000), (2_000, 2_000)] {
        let kept = kept(room);
        assert!(is_about(kept, wanted), "of {own}, {kept} with room for {room}");
    }
}

/// Pictures stay with a trimmed result. With a cut result, policy decides.
#[test]
fn pictures_stay_if_policy_keeps_them_or_result_is_trimmed() {
    let keeps = |keep_media, why| {
        let scene = scene("ucra", PrunePolicy { keep_media, ..eased() });
        let (request, known, parts) = (scene.request(), scene.known(), scene.parts(|_| EACH));
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        match PruneCandidates::new(&request, &known, cost).old[0].cut(&request, why) {
            Fact::Cut(cut) => cut.keep_media,
            other => panic!("{other:?}"),
        }
    };
    assert!(!keeps(false, DecisionReason::Always));
    assert!(keeps(true, DecisionReason::Always));
    assert!(keeps(false, DecisionReason::TooLarge));
}

/// If only results are counted, the placeholder is not subtracted from what a cut saves.
#[test]
fn placeholder_is_not_subtracted_if_only_results_are_counted() {
    let saves = |protect_counts| {
        let scene = scene("ucra", PrunePolicy { protect_counts, ..eased() });
        let parts = scene.parts(|_| EACH);
        let cost = RequestCost { tokens: 0, parts: &parts, rules: None };
        PruneCandidates::new(&scene.request(), &scene.known(), cost).saving()
    };
    assert_eq!(saves(ProtectUnit::Results), u64::from(EACH));
    assert!(saves(ProtectUnit::All) < u64::from(EACH));
}

/// A text is recognised however it is escaped in JSON.
#[test]
fn result_that_its_client_cut_is_known_by_its_text() {
    let mut all = messages("ucrcrcra");
    let placeholder = eased().placeholder;
    all[4]["content"][0]["content"] = placeholder.clone().into();
    let mut scene = of(FREE, &all, PrunePolicy { stop_at_cut: true, ..eased() });
    let escaped: String =
        placeholder.chars().map(|it| format!("\\u{:04x}", u32::from(it))).collect();
    let body = String::from_utf8(scene.body).unwrap().replace(&placeholder, &escaped);
    scene.conversation = crate::dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes());
    scene.body = body.into_bytes();
    assert_eq!(old(&scene), [6]);
}

/// What a summary replaced cannot be cut.
#[test]
fn summarised_results_are_not_cut() {
    let mut scene = scene("ucraucra", eased());
    assert_eq!(old(&scene), [6, 2]);
    let compact = scene.summary(4);
    scene.ledger.add(Fact::Compact(Box::new(compact)));
    assert_eq!(old(&scene), [6]);
}

/// After the provider's refusal, all old results that may be cut are cut at once, and a new one is cut to its share of
/// the room.
#[test]
fn old_results_make_room_first_and_new_ones_only_if_needed() {
    use crate::dialect::overflow::Overflow;
    let mut scene =
        scene("ucraucrcr", PrunePolicy { protect_messages: 9, ..PrunePolicy::default() });
    (scene.model.window, scene.reserve) = (10_000, 1_000);
    let made = |tokens: u64, own: u32, reported| {
        let parts = scene.parts(|message| if message == 8 { own } else { 900 });
        let cost = RequestCost { tokens, parts: &parts, rules: None };
        let (request, known) = (scene.request(), scene.known());
        let goal = room_goal(&request, &known, tokens, reported);
        let mut facts = clear_for_room(&request, &known, cost, goal);
        // A short placeholder replaces each cut result.
        let left = RequestCost { tokens: tokens - 890 * facts.len() as u64, ..cost };
        facts.extend(trim_for_room(&request, &known, left, goal));
        let cuts = facts.iter().map(|fact| match fact {
            Fact::Cut(cut) => {
                let at = (0..9)
                    .find(|at| scene.known().about(PartIndex::new(*at, 0)) == Some(cut.about.0));
                (at.unwrap(), cut.why)
            }
            other => panic!("{other:?}"),
        });
        cuts.collect::<Vec<_>>()
    };
    use DecisionReason::{Overflow as Full, TooLarge};
    let reported = |input| Overflow { input, ..Overflow::default() };
    // The goal is three quarters of 6,000: a quarter of that, and two messages, stay. The oldest are cut first.
    assert_eq!(made(6_000, 900, reported(None)), [(2, Full), (6, Full)]);
    let with_new = vec![(2, Full), (6, Full), (8, TooLarge)];
    assert_eq!(made(40_000, 30_000, reported(None)), with_new);
    // By the provider's count, the same tokens no longer fit.
    assert_eq!(made(8_000, 5_000, reported(Some(80_000))), with_new);
    scene.conversation.purpose = Purpose::Compaction;
    let parts = scene.parts(|_| 900);
    let cost = RequestCost { tokens: 8_000, parts: &parts, rules: None };
    let (request, known) = (scene.request(), scene.known());
    let cleared = clear_for_room(&request, &known, cost, 1).len();
    assert_eq!(cleared, 2, "the client's own compaction");
    scene.conversation.purpose = Purpose::Side;
    let request = scene.request();
    assert!(clear_for_room(&request, &known, cost, 1).is_empty());
    assert!(trim_for_room(&request, &known, cost, 1).is_empty());
}

/// A model that binds reasoning and requires that of an open tool loop would refuse each cut before it.
#[test]
fn required_reasoning_of_open_loop_is_not_made_void_for_room() {
    let cleared = |name, letters, rule| {
        let mut scene = of(name, &messages(letters), eased());
        scene.reasoning_rule = rule;
        let parts = scene.parts(|_| 900);
        let cost = RequestCost { tokens: 8_000, parts: &parts, rules: None };
        !clear_for_room(&scene.request(), &scene.known(), cost, 1).is_empty()
    };
    let (demanded, wanted) = (ReasoningRule::Demanded, ReasoningRule::Wanted);
    assert!(!cleared(BOUND, "ucraucrtr", demanded));
    assert!(cleared(BOUND, "ucraucrtr", wanted));
    assert!(cleared(FREE, "ucraucrtr", demanded));
    assert!(cleared(BOUND, "ucraucrtrau", demanded), "the loop has ended");
}

/// The client's own compaction, which has the whole history in one message, is shortened in its middle as far as needed.
/// Nobody else's text is.
#[test]
fn client_compaction_is_shortened() {
    let history = format!("First. {}Last.", "They read on. ".repeat(4_000));
    let asked = json!([{"role": "user", "content": history}]);
    let mut scene = of(FREE, &asked, eased());
    scene.conversation.purpose = Purpose::Compaction;
    let parts = scene.parts(|_| 16_000);
    let shortened = |scene: &SessionFixture, goal| {
        let cost = RequestCost { tokens: 16_100, parts: &parts, rules: None };
        shorten_for_room(&scene.request(), &scene.known(), cost, goal)
    };
    let facts = shortened(&scene, 10_000);
    let [Fact::Cut(cut)] = &facts[..] else { panic!("{facts:?}") };
    assert!(cut.is_trim(), "{cut:?}");
    assert!((9_000..11_000).contains(&cut.tokens), "{cut:?}");
    let mut known = scene.known();
    known.add(facts.iter().cloned());
    let plan = crate::context::plan::replay(&scene.request(), &known);
    let [edit] = &plan.edits[..] else { panic!("{:?}", plan.edits) };
    let text = String::from_utf8_lossy(&edit.with).into_owned();
    assert!(text.starts_with("\"First. "), "{text}");
    assert!(text.ends_with("Last.\""), "{text}");
    assert!(text.contains("bytes of this message left out"), "{text}");
    assert_eq!(shortened(&scene, 16_100), [], "it fits");
    assert_eq!(shortened(&scene, 100), [], "nothing would be left");
    scene.conversation.purpose = Purpose::Turn;
    assert_eq!(shortened(&scene, 10_000), [], "the user's own words");
}

/// The client writes the beginning of the next reply: no model has read the result before it. Of a reply that is sent back
/// to be continued, the model has.
#[test]
fn result_before_prefill_is_new() {
    let found = |answered: &str, reply: &Value| {
        let mut scene = scene(answered, eased());
        scene.answered(reply);
        scene.send(&messages("ucra"));
        let found = found_in(&scene, &scene.known());
        (found.old, found.new)
    };
    assert_eq!(found("u", &messages("uc")[1]["content"]), (vec![], vec![2]));
    let reply = json!([{"type": "text", "text": "Said 3."}]);
    assert_eq!(found("ucr", &reply), (vec![2], vec![]));
}

/// Pictures in the user's own messages are cut if policy says so. A picture in a tool result is cut with the result.
#[test]
fn user_picture_is_cut_separately() {
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let mut all = messages("uacraua");
    all[0]["content"] =
        json!([{"type": "text", "text": "Look."}, picture, {"type": "text", "text": "So?"}]);
    all[3]["content"][0]["content"] = json!([{"type": "text", "text": "Here."}, picture]);
    let found = |media| {
        let scene = of(FREE, &all, PrunePolicy { media, keep_media: true, ..eased() });
        old(&scene)
    };
    assert_eq!(found(true), [3, 0]);
    assert_eq!(found(false), [3]);
    let scene = of(FREE, &all, eased());
    let message = |at: usize| &scene.conversation.messages[at];
    let users = |at: usize| -> Vec<usize> {
        (0..message(at).parts.len()).filter(|part| is_users_picture(message(at), *part)).collect()
    };
    assert_eq!(users(0), vec![1]);
    assert!(users(3).is_empty());
    let models = Message { role: Role::Assistant, ..message(0).clone() };
    assert!(!is_users_picture(&models, 1));
}
