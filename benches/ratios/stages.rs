//! What a request costs before it leaves, by stage, on one core: agent-shaped bodies of 1 and 4 MB of
//! which 2 % is new since the turn before. Beside it, what others would do with the same bytes.

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use plimsoll::context::budget::{self, Anchor};
use plimsoll::context::ledger::Ledger;
use plimsoll::context::lineage::{Placement, place};
use plimsoll::context::plan::{self, Overlay, RecordedDecisions};
use plimsoll::context::policy::{DecisionMode, Mode, Policy, ReasoningRule};
use plimsoll::context::{Cut, Fact, Outcome, Position, Replacement, Turn, reasoning};
use plimsoll::dialect::models::{Catalogue, Family, Model};
use plimsoll::dialect::{
    self, BodyElements, Conversation, Dialect, ElementMemory, PartKind, Usage,
};
use plimsoll::tokens::Tokenizer;
use plimsoll::tokens::learn::EstimatorState;
use plimsoll::wire::json::{Document, most_values};
use plimsoll::wire::memory::MemoryLimit;
use plimsoll::wire::splice::splice;

/// Source code, as tools return it: many quotes and backslashes once it is JSON.
const SOURCE: &str = include_str!("../../core/src/wire/json.rs");

/// Prints the table.
pub(crate) fn print() {
    println!("{:<44}{:>10}{:>10}", "request side, ms (medians of 31)", "1 MB", "4 MB");
    let small = Bench::new(1 << 20, CUTS, RUNS + 1);
    let large = Bench::new(4 << 20, CUTS, RUNS + 1);
    let mut whole = [0.0; 2];
    for (stage, run) in Bench::STAGES {
        let times = [&small, &large].map(|bench| time(|| run(bench)));
        let bar = if stage == ESTIMATE { "   (bar at 4 MB: 3)" } else { "" };
        println!("{stage:<44}{:>10.3}{:>10.3}{bar}", times[0], times[1]);
        if stage.starts_with("our") {
            whole[0] += times[0];
            whole[1] += times[1];
        }
    }
    println!(
        "{:<44}{:>10.3}{:>10.3}   (bars: 0.25, 0.8)",
        "read + keys + estimate", whole[0], whole[1]
    );
    println!("{:<44}{:>10}{:>10}\n", "body, bytes", small.body.len(), large.body.len());
}

/// Reads, estimates and plans a turn of 1 MB with [`FEW_CUTS`], so many times: for a process that is looked at with a
/// profiler. At most [`MOST_TURNS`].
pub(crate) fn turns(count: usize) {
    let bench = Bench::new(1 << 20, FEW_CUTS, MOST_TURNS);
    for _ in 0..count {
        for (stage, run) in Bench::STAGES {
            if stage.starts_with("our") || stage == REPLAY {
                run(&bench);
            }
        }
    }
}

/// Median time of a stage, ms.
fn time(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    crate::median(&mut times)
}

/// A memory of earlier requests, empty.
fn memory() -> Arc<ElementMemory> {
    Arc::new(ElementMemory::new(1, 1 << 30, Box::new(MemoryLimit(1 << 30))))
}

fn read(memory: &Arc<ElementMemory>, body: &[u8]) -> Conversation {
    let mut elements = BodyElements::for_body(memory, Dialect::Anthropic, b"tenant", body.len());
    let document = elements.document(body, most_values(body.len())).unwrap();
    let target = "/v1/messages";
    let read = dialect::read_in(&document, Dialect::Anthropic, target, body, &mut elements);
    elements.remember();
    read
}

struct Bench {
    /// Each knows the body before, and is used once.
    memories: Mutex<Vec<Arc<ElementMemory>>>,
    body: Bytes,
    before: Bytes,
    conversation: Conversation,
    model: Model,
    turn: Turn,
    sketch: Vec<plimsoll::context::SketchPart>,
    placed: Placement,
    /// Nothing was decided.
    untouched: Ledger,
    /// The oldest results were cut.
    decided: Ledger,
    policy: Policy,
}

/// How often each stage is timed.
const RUNS: usize = 31;
/// Most turns for a profiler.
const MOST_TURNS: usize = 6;
/// Recorded cuts that are replayed.
const CUTS: usize = 400;
/// The same in [`turns`].
const FEW_CUTS: usize = 100;

/// The stage that has a bar of its own.
const ESTIMATE: &str = "our estimate";
/// The stage that replays what was decided.
const REPLAY: &str = "plan and splice, up to 400 recorded cuts";

/// A stage's name, and what it does.
type Stage = (&'static str, fn(&Bench));

impl Bench {
    const STAGES: [Stage; 8] = [
        ("memcmp with the body before", |bench| {
            let length = bench.before.len() - 2;
            black_box(bench.before[..length] == bench.body[..length]);
        }),
        ("serde_json::Value, read only", |bench| {
            let value: serde_json::Value = serde_json::from_slice(&bench.body).unwrap();
            black_box(value);
        }),
        ("spans alone", |bench| {
            black_box(Document::read(&bench.body).unwrap());
        }),
        ("the first reading: spans, parts, keys", |bench| {
            black_box(read(&memory(), &bench.body));
        }),
        ("our reading of what is new, with the rest", |bench| {
            let memory = bench.memories.lock().unwrap().pop().unwrap();
            black_box(read(&memory, &bench.body));
        }),
        (ESTIMATE, |bench| {
            let anchor = Anchor { turn: &bench.turn, sketch: &bench.sketch };
            let tokenizer = Tokenizer::whole(bench.model.family);
            let learned = EstimatorState::new(bench.model.family);
            black_box(budget::measure(
                &bench.conversation,
                &bench.body,
                &Overlay::default(),
                &bench.model,
                Some(anchor),
                tokenizer,
                &learned,
            ));
        }),
        ("plan and splice, nothing decided", |bench| bench.plan(&bench.untouched)),
        (REPLAY, |bench| bench.plan(&bench.decided)),
    ];

    fn new(size: usize, most_cuts: usize, memories: usize) -> Self {
        let steps = steps(size, "");
        let before = body(&steps[..steps.len() - steps.len() / 50 - 1]);
        let body = body(&steps);
        let memories = (0..memories).map(|_| {
            let memory = memory();
            read(&memory, &before);
            memory
        });
        let memories = Mutex::new(memories.collect());
        let model = Catalogue::new(Vec::new()).model("claude-opus-4-5", "");
        let tokenizer = Tokenizer::whole(model.family);
        let learned = EstimatorState::new(model.family);
        let measured = budget::measure(
            &read(&memory(), &before),
            &before,
            &Overlay::default(),
            &model,
            None,
            tokenizer,
            &learned,
        );
        let turn = turn(model.family, measured.sketch.clone());
        let conversation = read(&memory(), &body);
        let untouched = Ledger::default();
        let placed = place(&untouched, &conversation, &"now".into(), None);
        let mut decided = Ledger::default();
        let cuts = cuts(&conversation).take(most_cuts);
        cuts.for_each(|cut| decided.add(Fact::Cut(Box::new(cut))));
        let (sketch, policy) = (measured.sketch.added, Policy::default());
        Self {
            memories,
            body,
            before,
            conversation,
            model,
            turn,
            sketch,
            placed,
            untouched,
            decided,
            policy,
        }
    }

    /// What planning adds to a request: what is known of it, replayed and spliced.
    fn plan(&self, ledger: &Ledger) {
        let known = RecordedDecisions::from_ledger(
            ledger,
            &self.conversation,
            &self.placed,
            DecisionMode::Active,
        );
        let request = plan::PlanRequest {
            exchange: &self.placed.exchange,
            conversation: &self.conversation,
            body: &self.body,
            model: &self.model,
            name: "claude-opus-4-5",
            upstream: "anthropic",
            reasoning_rule: ReasoningRule::Wanted,
            compaction_refused: false,
            policy: &self.policy,
            client_compacts: None,
            mode: Mode::Active,
            clears_past: None,
            tokenizer: Tokenizer::now(self.model.family),
            reserve: 16_000,
            now: 0,
        };
        black_box(reasoning::propose(&request, &known));
        let plan = plan::replay(&request, &known);
        black_box(splice(&self.body, plan.edits).unwrap());
    }
}

/// Cuts of the oldest results.
fn cuts(conversation: &Conversation) -> impl Iterator<Item = Cut> + '_ {
    let results = conversation.parts().filter(|part| part.kind == PartKind::ToolResult);
    results.filter_map(|part| {
        Some(Cut {
            about: part.key?,
            part: None,
            at: 0,
            exchange: "before".into(),
            content: Replacement::Text("[Old tool result content cleared]".into()),
            keep_media: true,
            was: 1000,
            tokens: 10,
            why: plan::DecisionReason::Pressure,
            shadow: false,
            epoch: None,
        })
    })
}

/// Tool calls with their results, of about 4 KB each, until the body is large enough. `name`: in each result.
pub(crate) fn steps(size: usize, name: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let (mut bytes, mut at) = (0, 0);
    while bytes < size {
        let end = (at + 4_000 + steps.len() * 7 % 500).min(SOURCE.len());
        let (from, to) = (SOURCE.floor_char_boundary(at), SOURCE.floor_char_boundary(end));
        let result =
            serde_json::to_string(&format!("{name}{}: {}", steps.len(), &SOURCE[from..to]))
                .unwrap();
        at = if end == SOURCE.len() { 0 } else { end };
        let id = format!("toolu_{:024}", steps.len());
        let step = format!(
            r#"{{"role":"assistant","content":[{{"type":"text","text":"I look at part {at}."}},{{"type":"tool_use","id":"{id}","name":"Read","input":{{"path":"src/json.rs","offset":{at}}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":{result}}}]}}"#
        );
        bytes += step.len();
        steps.push(step);
    }
    steps
}

/// A request that holds them.
pub(crate) fn body(steps: &[String]) -> Bytes {
    let tools = r#"{"name":"Read","description":"Reads a part of a file.","input_schema":{"type":"object","properties":{"path":{"type":"string"},"offset":{"type":"integer"}}}}"#;
    let steps = steps.join(",");
    format!(
        r#"{{"model":"claude-opus-4-5","max_tokens":32000,"stream":true,"system":"You read code.","tools":[{tools}],"messages":[{{"role":"user","content":"Read it all."}},{steps}]}}"#
    )
    .into()
}

fn turn(family: Family, sketch: plimsoll::context::Sketch) -> Turn {
    Turn {
        exchange: "before".into(),
        position: Position { thread: "t".into(), ..Position::default() },
        upstream: "anthropic".into(),
        model: "claude-opus-4-5".into(),
        usage: Usage { input: Some(300_000), output: Some(100), ..Usage::default() },
        outcome: Outcome::Complete,
        window: 200_000,
        reserve: 16_000,
        sketch,
        ..Turn::empty(Dialect::Anthropic, family)
    }
}
