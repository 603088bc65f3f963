//! What a ledger takes in memory, what it forgets, and in what order it returns what it has.

use serde_json::json;

use super::*;
use crate::context::budget::ToolTokens;
use crate::context::scene::{SessionFixture, messages};
use crate::context::{
    InjectionState, Millis, PromptSection, ReasoningAction, Replacement, Signature, plan,
};
use crate::dialect::Usage;

const HELD: usize = 1 << 16;

fn long<T: From<String>>() -> T {
    "w".repeat(HELD).into()
}

/// Adds a fact twice to an empty ledger, and returns by how many bytes it grew.
fn grown(fact: Fact) -> usize {
    let mut ledger = Ledger::default();
    ledger.add(fact.clone());
    let bytes = ledger.bytes();
    ledger.add(fact);
    assert_eq!(ledger.bytes(), bytes, "added twice");
    let mut other = Ledger::default();
    other.merge(&ledger);
    assert_eq!(other.bytes(), bytes, "taken over");
    bytes
}

/// Whether the growth is this many times `HELD`, or up to an eighth more.
fn check(more: usize, times: usize) {
    assert!((times * HELD..times * (HELD + HELD / 8)).contains(&more), "{more}, {times} times");
}

fn turn() -> Turn {
    let scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
    let turn = scene.turn(&scene.reply(&json!([{"type": "text", "text": "Aye."}])));
    Turn { sketch: Sketch::default(), response: None, ..turn }
}

#[test]
fn size_of_turn_includes_content() {
    let of = |turn: Turn| grown(Fact::Turn(Arc::new(turn)));
    let base = of(turn());
    assert!((size_of::<Turn>()..2 * size_of::<Turn>() + 1000).contains(&base), "{base}");
    let with = |times, change: fn(&mut Turn)| {
        let mut turn = turn();
        change(&mut turn);
        check(of(turn) - base, times);
    };
    // What a turn is found by is stored twice.
    with(2, |turn| turn.exchange = long());
    with(2, |turn| turn.response = Some(long()));
    with(2, |turn| turn.position.parent = Some(long()));
    with(1, |turn| turn.position.client_thread = Some(long()));
    with(1, |turn| turn.position.thread = long());
    with(1, |turn| turn.upstream = long());
    with(1, |turn| turn.model = long());
    with(1, |turn| turn.sketch.base = Some(long()));
    let part = || SketchPart {
        key: PartKey(1),
        tokens: 1,
        place: PromptSection::History,
        by_length: false,
    };
    let count = HELD / size_of::<SketchPart>() + 1;
    let grows = |turn: Turn| of(turn) - base;
    let sketch = Sketch { added: vec![part(); count], ..Sketch::default() };
    check(grows(Turn { sketch, ..turn() }), 1);
    check(grows(Turn { reply: vec![part(); count], ..turn() }), 1);
    let (declined, span) = (plan::PlanStep::declined, crate::dialect::Span::new(0, 1));
    let step = declined(
        plan::Change::Cut,
        plan::DecisionReason::NoGate,
        crate::dialect::PartIndex::new(0, 0),
        span,
        1,
    );
    let mut with_steps = turn();
    with_steps.done.steps = vec![step; HELD / size_of::<plan::PlanStep>() + 1];
    check(grows(with_steps), 1);
    // Each anchor key is an index entry, too.
    let anchor_keys = grows(Turn { anchor_keys: vec![PartKey(7); 1000], ..turn() });
    assert!((1000 * (16 + 48)..1000 * 400).contains(&anchor_keys), "{anchor_keys}");
}

fn queued(id: &str, number: u32, at: Millis) -> QueuedMessage {
    QueuedMessage { id: id.into(), number, at, text: "Mind.".into(), repeats: None }
}

fn injected(id: &str, number: u32) -> InjectedMessage {
    let place = InjectionPlace {
        exchange: "r".into(),
        thread: "t".into(),
        number,
        after: PartKey(1),
        boundary: None,
        text: "Mind.".into(),
        tokens: 2,
        queued: 1,
        epoch: None,
    };
    InjectedMessage { id: id.into(), at: 1, state: InjectionState::Injected(Box::new(place)) }
}

#[test]
fn queued_messages_count_memory() {
    let of = |queued| grown(Fact::Queued(Box::new(queued)));
    let base = of(queued("q", 1, 1));
    let own = size_of::<QueuedMessage>();
    assert!((own..2 * own + 300).contains(&base), "{base}");
    check(of(QueuedMessage { id: long(), ..queued("q", 1, 1) }) - base, 2);
    check(of(QueuedMessage { text: long(), ..queued("q", 1, 1) }) - base, 1);
    check(of(QueuedMessage { repeats: Some(long()), ..queued("q", 1, 1) }) - base, 1);
    let of = |one| grown(Fact::InjectedMessage(Box::new(one)));
    let base = of(injected("q", 1));
    let own = size_of::<InjectedMessage>() + size_of::<InjectionPlace>();
    assert!((own..2 * own + 300).contains(&base), "{base}");
    check(of(InjectedMessage { id: long(), ..injected("q", 1) }) - base, 2);
    let with = |change: fn(&mut InjectionPlace)| {
        let mut one = injected("q", 1);
        let InjectionState::Injected(place) = &mut one.state else { unreachable!() };
        change(place);
        check(of(one) - base, 1);
    };
    with(|place| place.text = long());
    with(|place| place.exchange = long());
    with(|place| place.thread = long());
    let removed = InjectedMessage { state: InjectionState::Removed, ..injected("q", 1) };
    assert!(of(removed) < base);
}

/// Injected messages wait and are sent in the order in which they were queued.
#[test]
fn injections_stand_in_order_in_which_they_were_queued() {
    let mut ledger = Ledger::default();
    for (id, number, at) in [("d", 2, 5), ("b", 1, 9), ("c", 2, 4), ("a", 1, 9)] {
        ledger.add(Fact::Queued(Box::new(queued(id, number, at))));
    }
    let ids =
        |ledger: &Ledger| ledger.waiting().iter().map(|it| it.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&ledger), ["a", "b", "c", "d"]);
    ledger.add(Fact::InjectedMessage(Box::new(injected("c", 2))));
    ledger.add(Fact::InjectedMessage(Box::new(injected("b", 1))));
    let removed = InjectedMessage { state: InjectionState::Removed, ..injected("d", 2) };
    ledger.add(Fact::InjectedMessage(Box::new(removed)));
    assert_eq!(ids(&ledger), ["a"]);
    let order: Vec<_> = ledger.injections().iter().map(|(one, _)| one.id.to_string()).collect();
    assert_eq!(order, ["b", "c"]);
    assert_eq!(ledger.queued().count(), 4);
    assert!(ledger.injected.get("d").is_some_and(|one| one.place().is_none()));
    assert!(!ledger.injected.contains_key("a"));
}

/// What decisions take is part of the total.
#[test]
fn size_of_decisions_is_also_counted_separately() {
    let scene = SessionFixture::new("claude-opus-4-6", &messages("ucrau"));
    let content = Replacement::Text(long());
    let cut = Cut { content, ..crate::context::scene::cut(1, "r", "") };
    let decision = ReasoningDecision {
        about: PartKey(2),
        at: 1,
        exchange: "r".into(),
        does: ReasoningAction::StandIn(long()),
        why: plan::DecisionReason::Demanded,
        shadow: false,
        epoch: None,
    };
    let compact = CompactionRecord { raw: long(), ..scene.summary(2) };
    let mut ledger = Ledger::default();
    let mut before = 0;
    let repair = crate::context::repair::RepairDecision {
        about: PartKey(3),
        at: 1,
        exchange: "r".into(),
        model: "m".into(),
        upstream: "u".into(),
        repair: crate::dialect::repair::Repair::Empty { text: long() },
        epoch: None,
    };
    for fact in [
        Fact::Repair(Box::new(repair)),
        Fact::Cut(Box::new(cut)),
        Fact::ReasoningDecision(Box::new(decision)),
        Fact::Summary(Box::new(compact.clone())),
        Fact::Compact(Box::new(compact)),
    ] {
        let alone = grown(fact.clone());
        check(alone, 1);
        ledger.add(fact);
        assert_eq!(ledger.decision_bytes(), before + alone);
        assert_eq!(ledger.bytes(), before + alone);
        before += alone;
    }
    ledger.add(Fact::Turn(Arc::new(turn())));
    assert!(ledger.bytes() > ledger.decision_bytes());
    assert_eq!(ledger.decision_bytes(), before);
}

/// Past its limit, the oldest quarter is forgotten. The sketch of a turn that was based on a forgotten one is stored
/// whole, so that the turn can still be an anchor.
#[test]
fn oldest_quarter_is_forgotten() {
    let part = |n: usize| SketchPart {
        key: PartKey(n as u128),
        tokens: 1,
        place: PromptSection::History,
        by_length: false,
    };
    let mut ledger = Ledger::default();
    let base = turn();
    let add = |ledger: &mut Ledger, n: usize| {
        let sketch = Sketch {
            base: n.checked_sub(1).map(|before| before.to_string().into()),
            kept: n.min(2) as u32,
            added: vec![part(n)],
        };
        let mut turn = Turn { exchange: n.to_string().into(), sketch, ..base.clone() };
        turn.position.thread = if n.is_multiple_of(2) { "even".into() } else { "odd".into() };
        turn.usage = Usage { input: Some(1), output: Some(2), ..Usage::default() };
        if n == 0 {
            turn.definitions = vec![ToolTokens { tool: "Read".into(), tokens: 9 }];
        }
        ledger.add(Fact::Turn(Arc::new(turn)));
    };
    for n in 0..TURNS {
        add(&mut ledger, n);
    }
    assert_eq!(ledger.turns().count(), TURNS);
    let before = ledger.bytes();
    let compaction = Turn { exchange: "c".into(), purpose: Purpose::Compaction, ..base.clone() };
    ledger.add(Fact::Turn(Arc::new(compaction)));
    let left = TURNS - TURNS / 4;
    assert_eq!(ledger.turns().count(), left + 1);
    assert!(ledger.bytes() < before * 4 / 5, "{}", ledger.bytes());
    assert!(ledger.bytes() > before / 2, "{}", ledger.bytes());
    assert!(ledger.client_compacted(), "its client compacts by itself");
    let oldest = (TURNS / 4).to_string();
    assert!(ledger.turn(&oldest.into()).is_some());
    assert!(ledger.turn(&"0".into()).is_none());
    let defining: Vec<&str> = ledger
        .turns()
        .filter(|turn| !turn.definitions.is_empty())
        .map(|turn| turn.exchange.as_str())
        .collect();
    assert_eq!(defining, [(TURNS / 4).to_string()], "the first that is left has its tools");
    let sketch = |n: usize| ledger.sketch(ledger.turn(&n.to_string().into()).unwrap());
    assert_eq!(sketch(TURNS / 4).unwrap(), [part(0), part(1), part(TURNS / 4)]);
    assert_eq!(sketch(TURNS - 1).unwrap(), [part(0), part(1), part(TURNS - 1)]);
    let threads: Vec<_> =
        ledger.threads().into_iter().map(|(id, turns)| (id, turns.len())).collect();
    let own = base.position.thread.clone();
    assert_eq!(threads, [("even".into(), left / 2), ("odd".into(), left / 2), (own, 1)]);
    let totals = ledger.totals();
    assert_eq!(totals.tokens.input, left as u64 + 900);
    assert_eq!(totals.tokens.output, 2 * left as u64 + 100);
    assert_eq!(totals.total, totals.tokens.input + totals.tokens.output);
}

/// A reply that is reasoning alone ends where its request does.
#[test]
fn reasoning_stays_with_its_turn() {
    let mut ledger = Ledger::default();
    let base = turn();
    let reasoning = |after| ReasoningRecord {
        after,
        at: 1,
        prefix: after,
        model: "m".into(),
        upstream: "u".into(),
        ..ReasoningRecord::default()
    };
    for n in 0..=TURNS {
        let mut turn =
            Turn { exchange: n.to_string().into(), after: Chain(n as u128), ..base.clone() };
        turn.position.chain = turn.after;
        ledger.add(Fact::Turn(Arc::new(turn)));
        if n == 0 || n == TURNS - 1 {
            ledger.add(Fact::Reasoning(Box::new(reasoning(Chain(n as u128)))));
        }
    }
    assert!(ledger.turn(&"0".into()).is_none(), "the oldest quarter is forgotten");
    assert!(ledger.reasoning(Chain(0)).is_none());
    assert!(ledger.reasoning(Chain(TURNS as u128 - 1)).is_some());
}

/// A request was answered twice with equal parts and other reasoning: a ledger that takes both over knows both.
#[test]
fn reasoning_of_equal_replies_is_taken_over() {
    let mut ledger = Ledger::default();
    for (at, value) in [(1, "first"), (2, "second")] {
        let signatures = vec![Signature { part: 0, value: value.into(), piece: None }];
        let record = ReasoningRecord { at, signatures, ..ReasoningRecord::default() };
        ledger.add(Fact::Reasoning(Box::new(record)));
    }
    let mut other = Ledger::default();
    other.merge(&ledger);
    let times = other.all_reasoning().map(|record| record.at);
    assert_eq!(times.collect::<Vec<_>>(), [1, 2]);
}
