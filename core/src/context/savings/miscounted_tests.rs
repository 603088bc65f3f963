//! Claimed savings compared with the true ones, in a session whose tool results are miscounted.

use serde_json::{Value, json};

use super::*;
use crate::context::budget::{self, Anchor, MeasuredEstimate};
use crate::context::scene::SessionFixture;
use crate::context::{Cut, Fact, SketchPart};
use crate::dialect::{PartIndex, PartKey, PartKind};
use crate::tokens::learn::EstimatorState;

/// Tokens of the placeholder.
const STAND_IN: u32 = 12;

/// For each number a call of `Read` and its result, with text between them. Results vary in size, so many are larger
/// than those cut in the same turn.
fn history(turns: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Read them all, one by one."})];
    for number in 1..=turns {
        let id = format!("toolu_{number:02}AbCdEfGh{number:02}");
        let text = format!("That was number {number}. ").repeat(10 + number % 4);
        let result = format!("Line {number} of it is so. ").repeat(200 + 83 * number % 300);
        messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": text},
            {"type": "tool_use", "id": id, "name": "Read", "input": {"n": number}}]}));
        messages.push(json!({"role": "user", "content":
            [{"type": "tool_result", "tool_use_id": id, "content": result}]}));
    }
    messages.into()
}

/// A session in which results of the tool cost `times` what we count. Everything else costs what we count.
struct Miscounted {
    scene: SessionFixture,
    learned: EstimatorState,
    times: f64,
    /// The tokens that the provider no longer counts.
    truth: f64,
}

impl Miscounted {
    fn new(times: f64) -> Self {
        let scene = SessionFixture::new("claude-sonnet-4-5", &history(0));
        let learned = EstimatorState::new(scene.model.family);
        Self { scene, learned, times, truth: 0.0 }
    }

    /// The provider's count of what was sent.
    fn counted(&self, parts: &[SketchPart]) -> u64 {
        let results = self.scene.conversation.parts();
        let results = results.filter(|part| part.kind == PartKind::ToolResult);
        let results: Vec<PartKey> = results.filter_map(|part| part.key).collect();
        let times = |key| if results.contains(&key) { self.times } else { 1.0 };
        parts.iter().map(|part| f64::from(part.tokens) * times(part.key)).sum::<f64>() as u64
    }

    /// Cuts the result of an early turn.
    fn cut(&mut self, turn: usize, parts: &[SketchPart]) {
        let scene = &mut self.scene;
        let part = scene.conversation.part(PartIndex::new(2 * turn, 0)).unwrap();
        let was = parts.iter().find(|it| Some(it.key) == part.key).unwrap().tokens;
        scene.ledger.add(Fact::Cut(Box::new(Cut {
            at: scene.now,
            exchange: scene.request().exchange.clone(),
            was,
            tokens: STAND_IN,
            ..scene.cut(2 * turn, "It went.")
        })));
        self.truth += f64::from(was) * self.times - f64::from(STAND_IN);
    }

    fn measure(&self, parent: Option<&Turn>) -> MeasuredEstimate {
        let (scene, plan) = (&self.scene, self.scene.plan());
        let sketch = parent.and_then(|parent| scene.ledger.sketch(parent));
        let anchor = parent.zip(sketch.as_deref());
        let anchor = anchor.map(|(turn, sketch)| Anchor { turn, sketch });
        budget::estimate(&scene.request(), &plan.sent, &scene.known(), anchor, &self.learned)
    }

    /// Sends the request of a turn, with the result of the turn `cut` cut from now on.
    fn turn(&mut self, turn: usize, cut: Option<usize>) -> Turn {
        self.scene.send(&history(turn));
        let parent = self.scene.placed().parent;
        if let Some(cut) = cut {
            let parts = self.measure(parent.as_deref()).parts;
            self.cut(cut, &parts);
        }
        let measured = self.measure(parent.as_deref());
        let input = self.counted(&measured.parts);
        let reply = self.scene.reply(&history(turn + 1)[2 * turn + 1]["content"]);
        let mut sent = self.scene.turn(&reply);
        let output = sent.reply.iter().map(|part| u64::from(part.tokens)).sum();
        sent.usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
        if let Some(seen) = &measured.seen {
            let guess = &measured.estimate.guess;
            self.learned = std::mem::replace(&mut self.learned, EstimatorState::new(sent.family))
                .after(seen, guess, input);
        }
        (sent.estimate, sent.sketch) = (Some(measured.estimate), measured.sketch);
        sent.done = RewriteSummary::from_steps(&self.scene.plan().steps, Mode::Active);
        sent.measure_removed(parent.as_deref());
        self.scene.ledger.add(Fact::Turn(sent.clone().into()));
        sent
    }
}

/// Each turn cuts a result and adds another, often a larger one. The tool is miscounted by 40 %, prose is not, so
/// neither the error of the whole nor that of the turn before tells how much was cut.
#[test]
fn savings_claimed_for_miscounted_tool_are_right() {
    // By then it is learned what its results cost.
    const QUIET: usize = 6;
    for times in [0.6, 1.0, 1.4] {
        let mut play = Miscounted::new(times);
        let (mut all, mut truth, mut more) = (0.0, 0.0, 0);
        for turn in 1..=QUIET + 20 {
            let sent = play.turn(turn, turn.checked_sub(QUIET).filter(|cut| *cut > 0));
            let claimed = SavingsInput::from_turn(&sent, None, |_| None).saved().removed as f64;
            let wrong = (claimed - play.truth).abs();
            assert!(
                wrong <= 0.02 * play.truth,
                "{times}, turn {turn}: {claimed} of {}",
                play.truth
            );
            let estimate = sent.estimate.unwrap();
            more += u32::from(turn > QUIET && estimate.new >= estimate.gone_history);
            (all, truth) = (all + claimed, truth + play.truth);
        }
        assert!(truth > 100_000.0, "{times}: {all} of {truth}");
        assert!((all - truth).abs() <= 0.02 * truth, "{times}: {all} of {truth}");
        assert!(more > 3, "{times}: {more} turns brought more than they cut");
    }
}
