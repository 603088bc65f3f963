//! Which summaries are part of a turn's context, and which summary is ready but not used yet.

use serde_json::json;

use super::*;
use crate::context::Fact;
use crate::context::scene::{SessionFixture, messages};
use crate::dialect::Chain;

const MODEL: &str = "claude-opus-4-6";

/// A summary with this number, written or first used at this time and for this request.
fn record(about: u128, at: Millis, exchange: &str) -> Box<CompactionRecord> {
    Box::new(CompactionRecord {
        about: Chain(about),
        near: Vec::new(),
        is_own: true,
        at,
        exchange: exchange.into(),
        raw: format!(r#"{{"role":"user","content":"They spoke {about}."}}"#).into(),
        was: 100,
        tokens: 70,
        by: SummaryAuthor::Summary,
        why: DecisionReason::Threshold,
        upstream: "up".into(),
        model: MODEL.into(),
        spent: Usage { input: Some(900), ..Usage::default() },
        dollars: None,
        took: 5,
        carries: None,
        shadow: false,
        epoch: None,
    })
}

/// A session of three turns. The last one was sent with a summary that was first used at 10.
fn session() -> SessionFixture {
    let mut scene = SessionFixture::new(MODEL, &messages("u"));
    scene.answered(&json!([{"type": "text", "text": "Said 1."}]));
    scene.send(&messages("uau"));
    scene.answered(&json!([{"type": "text", "text": "Said 3."}]));
    scene.send(&messages("uauau"));
    let (about, near) = scene.known().at_cut(2).unwrap();
    let one = CompactionRecord { about, near, ..*record(0, 10, "r3") };
    scene.ledger.add(Fact::Compact(Box::new(one)));
    let mut turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Said 5."}])));
    turn.done.made.compacted = 1;
    scene.ledger.add(Fact::Turn(turn.into()));
    scene
}

/// When the used summaries were first used, and when the ready one was written.
fn times(scene: &SessionFixture, turn: usize) -> (Vec<Millis>, Option<Millis>) {
    let turn = scene.ledger.turns().nth(turn).unwrap();
    let mut all = Compactions::of_turn(&scene.ledger, turn);
    let of = (all.used.iter().map(|one| one.at).collect(), all.ready.as_ref().map(|one| one.at));
    assert_eq!(all.newest().map(|one| one.at), all.used.last().map(|one| one.at));
    let count = all.used.len() + usize::from(all.ready.is_some());
    assert_eq!(all.iter_mut().count(), count);
    of
}

#[test]
fn turn_reports_only_summaries_that_were_sent_with_it() {
    let scene = session();
    assert_eq!(times(&scene, 2), (vec![10], None));
    assert_eq!(times(&scene, 1), (vec![], None), "the turn before knew of none");
    let newest = Compactions::of_turn(&scene.ledger, scene.ledger.turns().nth(2).unwrap());
    let expected = CompactionReport {
        engine: SummaryAuthor::Summary,
        upstream: "up".into(),
        model: MODEL.into(),
        why: DecisionReason::Threshold,
        at: 10,
        exchange: "r3".into(),
        tokens_before: 100,
        tokens_after: 70,
        took_ms: 5,
        spent: Usage { input: Some(900), ..Usage::default() },
        dollars: None,
    };
    assert_eq!(newest.used, [expected]);
    // A summary that was not sent is in no context.
    let mut unsent = Turn::clone(scene.ledger.turns().nth(2).unwrap());
    unsent.done.made.compacted = 0;
    assert!(Compactions::of_turn(&scene.ledger, &unsent).used.is_empty());
}

/// Older summaries are part of the newest one if they are on the same branch, have another cut, and were first used no
/// later.
#[test]
fn older_summaries_of_line_are_folded_into_newest() {
    let mut scene = session();
    let add = |scene: &mut SessionFixture, about, at, request| {
        scene.ledger.add(Fact::Compact(record(about, at, request)));
        times(scene, 2).0
    };
    assert_eq!(add(&mut scene, 1, 7, "r2"), [7, 10]);
    assert_eq!(add(&mut scene, 2, 5, "r1"), [5, 7, 10]);
    assert_eq!(add(&mut scene, 3, 6, "other"), [5, 7, 10], "it is on another branch");
    assert_eq!(add(&mut scene, 4, 11, "r2"), [5, 7, 10], "it was used later");
    assert_eq!(add(&mut scene, 5, 10, "r2"), [5, 7, 10, 10]);
}

/// The newest summary that was written on the branch since, and is not used yet, is the ready one.
#[test]
fn newest_unused_summary_of_branch_is_ready_one() {
    let mut scene = session();
    let add = |scene: &mut SessionFixture, about, at, request| {
        scene.ledger.add(Fact::Summary(record(about, at, request)));
        times(scene, 2).1
    };
    assert_eq!(add(&mut scene, 1, 10, "r2"), None, "it is no newer than the one in use");
    assert_eq!(add(&mut scene, 2, 11, "other"), None);
    assert_eq!(add(&mut scene, 3, 12, "r2"), Some(12));
    assert_eq!(add(&mut scene, 4, 20, "r3"), Some(20));
    assert_eq!(add(&mut scene, 5, 15, "r3"), Some(20));
    scene.ledger.add(Fact::Compact(record(4, 30, "later")));
    assert_eq!(times(&scene, 2).1, Some(15), "the newest is used by then");
    assert_eq!(times(&scene, 0).1, None, "it is not on the first turn's branch");
}
