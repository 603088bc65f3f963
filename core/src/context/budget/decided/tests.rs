//! Sessions counted by an agent's rules: one token per four characters, each text rounded up. Expected numbers are
//! computed by hand.

use serde_json::{Value, json};

use super::*;
use crate::context::plan::{self, RemovedTokens};
use crate::context::policy::ClassicRole;
use crate::context::scene::{SessionFixture, messages};
use crate::context::{
    Breakdown, CompactionRecord, CountingMethod, Cut, ExchangeId, Fact, QueuedMessage, inject,
};

const FREE: &str = "claude-opus-4-6";

/// The estimate of the current request that decisions use, measured from its parent turn.
fn decided(scene: &SessionFixture) -> MeasuredEstimate {
    decided_with(scene, &scene.known())
}

fn decided_with(scene: &SessionFixture, known: &RecordedDecisions) -> MeasuredEstimate {
    let plan = plan::replay(&scene.request(), known);
    let placed = scene.placed();
    let sketch = placed.parent.as_ref().and_then(|parent| scene.ledger.sketch(parent));
    let anchor = placed.parent.as_deref().zip(sketch.as_deref());
    let anchor = anchor.map(|(turn, sketch)| Anchor { turn, sketch });
    let learned = EstimatorState::new(scene.model.family);
    estimate(&scene.request(), &plan.sent, known, anchor, &learned)
}

/// A session in which the agent's rules decide. Each request but the last got a reply; its input and output are 1,000
/// tokens.
fn ruled(letters: &str) -> SessionFixture {
    let mut scene = SessionFixture::new(FREE, &messages("u"));
    scene.policy.estimate.decides = ClassicRole::Budget;
    let all = messages(letters);
    for count in (1..letters.len()).filter(|count| "uer".contains(&letters[count - 1..*count])) {
        if count > 1 {
            scene.send(&all.as_array().unwrap()[..count].iter().cloned().collect::<Value>());
        }
        let content = &all[count]["content"];
        let blocks = || json!([{"type": "text", "text": content}]);
        scene.answered(&if content.is_string() { blocks() } else { content.clone() });
    }
    scene.send(&all);
    scene
}

/// The tokens by the rules: all, new, and gone.
fn counted(scene: &SessionFixture) -> (u64, u64, u64) {
    let classic = decided(scene).classic.unwrap();
    (classic.tokens, classic.new, classic.gone)
}

/// The current request clears the result in the third message.
fn clear_result(scene: &mut SessionFixture) {
    let exchange = scene.request().exchange.clone();
    scene.ledger.add(cut_by(scene, exchange));
}

fn cut_by(scene: &SessionFixture, exchange: ExchangeId) -> Fact {
    Fact::Cut(Box::new(Cut { exchange, was: 753, tokens: 20, ..scene.cut(2, "It went.") }))
}

/// The rules are not used, are shown beside the estimate, or decide. If they decide, their number is the estimate, it
/// is counted by length, and it has no band.
#[test]
fn classic_rules_are_unused_or_shown_beside_estimate_or_decide() {
    let mut scene = ruled("uau");
    let by_rules = decided(&scene);
    scene.policy.estimate.decides = ClassicRole::Nothing;
    let plain = decided(&scene);
    assert_eq!(plain.classic, None);
    let CostPrediction { low, high, .. } = plain.estimate.guess;
    assert_eq!(plain.estimate.band(), Some(Band { low, high }));
    scene.policy.estimate.classic = true;
    let beside = decided(&scene);
    assert_eq!(&beside.estimate, &plain.estimate);
    assert_eq!(&beside.classic, &by_rules.classic);
    let (ours, theirs) = (plain.estimate, by_rules.estimate);
    let expected = Estimate {
        tokens: 1_002, // "Words 2."
        new: 2,
        gone: 0,
        method: EstimateMethod::Anchored,
        counting: CountingMethod::Length,
        breakdown: Breakdown { messages: 1_002, ..ours.breakdown },
        ..ours
    };
    assert_ne!(ours, expected);
    assert_eq!(theirs, expected);
    assert_eq!(theirs.band(), None);
    let classic = by_rules.classic.unwrap();
    assert_eq!(&*classic.rules, "length-4");
    assert_eq!(classic.method, EstimateMethod::Anchored);
}

/// If everything is counted, a cut result counts as its placeholder.
#[test]
fn cut_result_counts_as_placeholder() {
    let mut scene = ruled("ucrau");
    assert_eq!(counted(&scene), (1_002, 2, 0), "what is not new was reported");
    scene.policy.estimate.rules.anchored = false;
    // "Words 0.", "Read", `{"n":1}`, the result, "Said 3." and "Words 4.".
    assert_eq!(counted(&scene).0, 2 + 1 + 2 + 753 + 2 + 2);
    clear_result(&mut scene);
    assert_eq!(counted(&scene), (2 + 1 + 2 + 2 + 2 + 2, 11, 0));
    let removed = RemovedTokens { cut: 751, pruned: 751, compacted: 0 };
    assert_eq!(decided(&scene).removed, Some(removed));
    scene.policy.estimate.rules.placeholders = false;
    assert_eq!(counted(&scene).0, 9);
    assert_eq!(decided(&scene).removed.unwrap().cut, 753);
}

/// The input of the earlier call contains what was cleared since. It is subtracted once, and told as removed in each
/// request.
#[test]
fn what_was_cleared_since_last_call_is_subtracted_once() {
    let mut scene = ruled("ucrau");
    clear_result(&mut scene);
    assert_eq!(counted(&scene), (1_002 - 751, 2, 751));
    assert_eq!(
        decided(&scene).removed,
        Some(RemovedTokens { cut: 751, pruned: 751, compacted: 0 })
    );
    scene.answered(&json!([{"type": "text", "text": "Said 5."}]));
    scene.send(&messages("ucrauau"));
    assert_eq!(counted(&scene), (1_002, 2, 0), "the last call was sent without it");
    assert_eq!(decided(&scene).removed, Some(RemovedTokens { cut: 751, pruned: 0, compacted: 0 }));
    scene.policy.estimate.decides = ClassicRole::Nothing;
    assert_eq!(decided(&scene).removed, None);
}

/// Rules that count more than the provider does take no more away than a result's share of what was reported.
#[test]
fn cleared_result_takes_its_share_of_reported_input() {
    let mut scene = ruled("ucrau");
    scene.policy.estimate.rules.factor = 2.0;
    assert_eq!(counted(&scene), (1_004, 4, 0), "reported were 1,000, of 1,520 by the rules");
    clear_result(&mut scene);
    let share = 751 * 2 * 1_000 / 1_520;
    assert_eq!(counted(&scene), (1_004 - share, 4, share));
    assert_eq!(
        decided(&scene).removed,
        Some(RemovedTokens { cut: share, pruned: share, compacted: 0 })
    );
}

/// What another branch decided first is cleared here for the first time all the same.
#[test]
fn result_that_another_branch_cleared_first_is_pruned_here() {
    let scene = ruled("ucrau");
    let mut known = scene.known();
    known.add([cut_by(&scene, "other".into())]);
    let measured = decided_with(&scene, &known);
    assert_eq!(measured.estimate.tokens, 1_002 - 751);
    assert_eq!(measured.removed, Some(RemovedTokens { cut: 751, pruned: 751, compacted: 0 }));
}

/// Injected messages count in the first request that contains them, and if everything is counted.
#[test]
fn new_injected_messages_count() {
    let mut scene = ruled("uau");
    scene.ledger.add(Fact::Queued(Box::new(QueuedMessage {
        id: "q".into(),
        number: 1,
        at: 1,
        text: "Mind the tide.".into(),
        repeats: None,
    })));
    assert_eq!(counted(&scene).0, 1_002, "they are not injected yet");
    let injected = inject::propose(&scene.request(), &scene.known());
    injected.into_iter().for_each(|fact| scene.ledger.add(fact));
    assert_eq!(counted(&scene), (1_002 + 4, 2 + 4, 0));
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    assert_eq!(counted(&scene), (1_002, 2, 0));
    scene.policy.estimate.rules.anchored = false;
    assert_eq!(counted(&scene), (2 + 2 + 2 + 4 + 2 + 2, 14, 0));
}

/// Agents do not know our summaries. With a new summary, what is sent is counted as if nothing had been reported.
#[test]
fn new_summary_recounts_the_request() {
    let mut scene = ruled("uauau");
    let summary = CompactionRecord { tokens: 70, ..scene.summary(2) };
    scene.ledger.add(Fact::Compact(Box::new(summary)));
    // The summary, and the three messages that remain.
    assert_eq!(counted(&scene), (3 + 2 + 2 + 2, 9, 0));
    assert_eq!(
        decided(&scene).removed.unwrap().compacted,
        2 + 2 - 3,
        "two messages for the summary"
    );
    assert_eq!(decided(&scene).estimate.method, EstimateMethod::Estimated);
    scene.answered(&json!([{"type": "text", "text": "Said 5."}]));
    scene.send(&messages("uauauau"));
    assert_eq!(counted(&scene), (1_002, 2, 0));
    scene.policy.estimate.rules.anchored = false;
    assert_eq!(counted(&scene), (3 + 5 * 2, 13, 0));
}

#[test]
fn summary_weighs_same_everywhere() {
    let plain = r#"{"role":"user","content":"12345678"}"#;
    let gemini = r#"{"role":"user","parts":[{"text":"12345678"}]}"#;
    let of = [
        (Dialect::Anthropic, plain),
        (Dialect::OpenaiChat, plain),
        (Dialect::OpenaiResponses, plain),
        (Dialect::Gemini, gemini),
    ];
    for (dialect, raw) in of {
        assert_eq!(messages_weight(&ClassicRules::default(), dialect, raw), 2.0, "{dialect:?}");
    }
}
