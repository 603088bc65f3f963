//! The output limit after a refusal, to the token.

use serde_json::json;

use super::*;
use crate::context::repair::are_known;
use crate::context::repair::tests::{proposed, refusal};
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::Dialect;

const MODEL: &str = "claude-opus-4-6";

/// A request for this much output.
fn asking(output: u64) -> SessionFixture {
    let body = json!({"model": MODEL, "max_tokens": output, "messages": messages("u")});
    SessionFixture::read(Dialect::Anthropic, "/v1/messages", MODEL, &body)
}

fn refused(detail: Option<RefusalDetail>, limit: u64) -> Refusal {
    Refusal { detail, limit: Some(limit), ..refusal(RepairCause::MaxTokens) }
}

fn repair_of(facts: &[Fact]) -> Option<Repair> {
    facts.first().map(|fact| match fact {
        Fact::Repair(one) => one.repair.clone(),
        other => panic!("{other:?}"),
    })
}

/// The output limit in what is sent.
fn output(scene: &SessionFixture, plan: &Plan) -> u64 {
    let sent = splice::applied(&scene.body, &plan.edits);
    let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
    sent["max_tokens"].as_u64().unwrap()
}

#[test]
fn limit_is_lowered_as_refusal_says() {
    use RefusalDetail::{Bytes, ModelLimit, ModelLimitExclusive, Window};
    let of = |requested, detail, limit| {
        repair_of(&proposed(&asking(requested), &refused(detail, limit)))
    };
    let most = |most| Some(Repair::MaxTokens { most });
    let window = |window| Some(Repair::OutputFits { window });
    let cases = [
        (100_000, Some(ModelLimit), 8_192, most(8_192)),
        (8_193, Some(ModelLimit), 8_192, most(8_192)),
        (8_192, Some(ModelLimit), 8_192, None),
        (8_192, Some(ModelLimitExclusive), 8_192, most(8_191)),
        (8_191, Some(ModelLimitExclusive), 8_192, None),
        (9_000, Some(ModelLimit), 128, most(128)),
        (9_000, Some(ModelLimit), 127, None),
        (90_000_000, Some(ModelLimit), 10_000_000, most(10_000_000)),
        (90_000_000, Some(ModelLimit), 10_000_001, None),
        // Prompt and output together: the limit is lowered to what policy leaves at least, and not below.
        (100_000, Some(Window), 200_000, window(200_000)),
        (4_097, Some(Window), 200_000, window(200_000)),
        (4_096, Some(Window), 200_000, None),
        (100_000, Some(Bytes), 8_192, None),
        (100_000, None, 8_192, None),
    ];
    for (requested, detail, limit, expected) in cases {
        assert_eq!(of(requested, detail, limit), expected, "{requested} {detail:?} {limit}");
    }
    let unnamed = Refusal { limit: None, ..refused(Some(ModelLimit), 0) };
    assert_eq!(proposed(&asking(100_000), &unnamed), []);
    let mut scene = asking(100_000);
    let facts = proposed(&scene, &refused(Some(ModelLimit), 8_192));
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    assert_eq!(output(&scene, &scene.plan()), 8_192);
}

/// A repair that the request already had when it was refused fixes nothing, even if the limit is computed from other
/// numbers now.
#[test]
fn repair_that_refused_request_already_had_is_no_repair() {
    let mut scene = asking(100_000);
    let facts = proposed(&scene, &refused(Some(RefusalDetail::Window), 200_000));
    assert!(!facts.is_empty());
    assert!(!are_known(&facts, &scene.known()));
    facts.iter().cloned().for_each(|fact| scene.ledger.add(fact));
    assert!(are_known(&facts, &scene.known()));
}

/// The room in the window is computed again for each prompt: less a margin if the prompt is only estimated, and not
/// below what policy leaves.
#[test]
fn output_fits_beside_prompt() {
    let mut scene = asking(100_000);
    let fitted = |scene: &SessionFixture, input, is_counted| {
        let mut plan = scene.plan();
        fit_output(&scene.request(), &scene.known(), &mut plan, input, is_counted);
        output(scene, &plan)
    };
    assert_eq!(fitted(&scene, 190_000, true), 100_000, "nothing was refused");
    assert_eq!(lowered_output(&scene.request(), &scene.known()), None);
    let facts = proposed(&scene, &refused(Some(RefusalDetail::Window), 200_000));
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    assert_eq!(fitted(&scene, 190_000, true), 9_999);
    assert_eq!(fitted(&scene, 190_000, false), 10_000 - 190_000 / 50);
    assert_eq!(fitted(&scene, 199_000, true), 4_096);
    assert_eq!(fitted(&scene, 300_000, false), 4_096);
    assert_eq!(fitted(&scene, 90_000, true), 100_000, "there is room");
    assert_eq!(lowered_output(&scene.request(), &scene.known()), Some(4_096));
    // Of two windows, the smaller one counts.
    let smaller = decided(&scene.request(), Repair::OutputFits { window: 102_000 });
    scene.ledger.add(smaller);
    assert_eq!(fitted(&scene, 2_000, false), 100_000 - 64);
    assert_eq!(fitted(&scene, 3_300, false), 102_000 - 3_300 - 66);
    scene.conversation.max_output = Some(900);
    assert_eq!(lowered_output(&scene.request(), &scene.known()), Some(900));
    scene.conversation.max_output = None;
    assert_eq!(lowered_output(&scene.request(), &scene.known()), Some(4_096));
}

/// What the provider says, and the window and prompt that the output must fit into, in a request of `estimate` tokens that
/// asks for `requested`; the known window is 200,000.
fn gives_way(requested: u64, said: [Option<u64>; 2], estimate: u64) -> Option<[u64; 2]> {
    let [window, input] = said;
    gives_way_to(requested, &Overflow { window, input, ..Overflow::default() }, estimate)
}

fn gives_way_to(requested: u64, stated: &Overflow, estimate: u64) -> Option<[u64; 2]> {
    let mut scene = asking(requested);
    (scene.model.window, scene.model.known) = (200_000, true);
    let refusal = refused_output(&scene.request(), stated, estimate);
    refusal.map(|refusal| [refusal.limit.unwrap(), refusal.count.unwrap()])
}

/// An overflow is one of the output if the prompt fits: by the provider's count, else by the estimate in the window that
/// it names, else in the one that is known.
#[test]
fn output_gives_way_if_prompt_fits() {
    let fits = |window, input| Some([window, input]);
    for (requested, window, input, estimate, expected) in [
        (59_290, Some(116_000), Some(60_500), 55_000, fits(116_000, 60_500)),
        (59_290, Some(54_450), Some(60_500), 55_000, None),
        (4_096, Some(64_000), Some(60_500), 60_500, None),
        (59_290, Some(116_000), None, 60_500, fits(116_000, 75_625)),
        (59_290, Some(54_450), None, 60_500, None),
        // No number: the known window decides.
        (64_000, None, None, 175_421, fits(200_000, 219_276)),
        (64_000, None, None, 200_000, None),
        // It would hold both, so that the real one is smaller.
        (64_000, None, None, 100_000, fits(102_000 + 4_096, 125_000)),
    ] {
        let found = gives_way(requested, [window, input], estimate);
        assert_eq!(found, expected, "{requested} {window:?} {input:?} {estimate}");
    }
    let mut unknown = asking(64_000);
    (unknown.model.window, unknown.model.known) = (200_000, false);
    assert_eq!(refused_output(&unknown.request(), &Overflow::default(), 175_421), None);
}

/// The same refusal by a provider that counts up to a quarter more than we do, or a tenth less: with its count, with that
/// of prompt and output together (Cerebras, AI21), and without any (vLLM's "at least", OpenRouter's "about").
#[test]
fn low_estimate_spares_history() {
    for percent in [90, 100, 106, 115, 124] {
        let prompt = 50_542 * percent / 100;
        let window = prompt + 59_290 - 600;
        for input in [Some(prompt), Some(prompt + 59_290), None] {
            let [limit, count] = gives_way(59_290, [Some(window), input], 50_542).unwrap();
            assert_eq!(limit, window, "{percent} {input:?}");
            assert!(count >= prompt, "{percent} {input:?}: refused again");
            assert!(input.is_none() || count == prompt, "{percent} {input:?}");
        }
    }
    // The text counts the output apart, so that the prompt alone is too long.
    let split = Overflow {
        window: Some(60_000),
        input: Some(70_758),
        counts_output: true,
        ..Overflow::default()
    };
    assert_eq!(gives_way_to(20_000, &split, 50_542), None);
    let both = Overflow { counts_output: false, ..split };
    assert_eq!(gives_way_to(20_000, &both, 50_542), Some([60_000, 50_758]));
    // More than the window, and too much for an output that was counted, too.
    assert_eq!(gives_way(59_290, [Some(54_450), Some(119_790)], 60_500), None);
    assert_eq!(gives_way(59_290, [Some(54_450), Some(119_790)], 50_000), None);
}

/// A limit that another request's refusal named is applied before this one is refused (`docs/healing.md` "Learned
/// output limits").
#[test]
fn learned_limit_spares_refusal() {
    let spared = |scene: &SessionFixture, most| {
        spare(&scene.request(), &scene.known(), most).map(|fact| repair_of(&[fact]).unwrap())
    };
    let scene = asking(100_000);
    assert_eq!(spared(&scene, 8_192), Some(Repair::MaxTokens { most: 8_192 }));
    assert_eq!(spared(&scene, 99_999), Some(Repair::MaxTokens { most: 99_999 }));
    assert_eq!(spared(&scene, 100_000), None, "it asks for no more");
    assert_eq!(spared(&scene, 127), None);
    assert_eq!(spared(&asking(90_000_000), 10_000_001), None);
    let mut forbidden = asking(100_000);
    forbidden.policy.heal.causes = vec![RepairCause::Media];
    assert_eq!(spared(&forbidden, 8_192), None);
    let mut counts = asking(100_000);
    counts.conversation.purpose = Purpose::Count;
    assert_eq!(spared(&counts, 8_192), None);
    let mut held = asking(100_000);
    held.conversation.held = Some(crate::dialect::HeldHistory::After("r".into()));
    assert_eq!(spared(&held, 8_192), None);
    let mut unasked = asking(100_000);
    unasked.body = unasked.body.iter().copied().filter(|byte| *byte != b'_').collect();
    unasked.conversation.max_output = None;
    assert_eq!(spared(&unasked, 8_192), None, "it names no limit");
    // It is already lowered; a higher limit changes nothing.
    let mut lowered = asking(100_000);
    let fact = spare(&lowered.request(), &lowered.known(), 8_192).unwrap();
    lowered.ledger.add(fact);
    assert_eq!(spared(&lowered, 8_192), None);
    assert_eq!(spared(&lowered, 9_000), None);
    assert_eq!(spared(&lowered, 8_000), Some(Repair::MaxTokens { most: 8_000 }));
}
