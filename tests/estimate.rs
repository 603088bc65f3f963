//! How wrong the estimate is on recorded conversations of two calls and more.
//!
//! Each later call is estimated from the turns before it, as in the proxy, and then compared with its usage.
//! Percentages of small contexts are misleading (`docs/estimates.md` 4), so tokens are shown beside them. The classic
//! heuristic (four bytes of the body a token) is measured on the same calls.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "reading/corpus.rs"]
mod corpus;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corpus::{Call, DIALECTS, calls};
use plimsoll::context::budget::{self, Anchor, MeasuredEstimate};
use plimsoll::context::ledger::{Ledger, anchor_keys};
use plimsoll::context::lineage::place;
use plimsoll::context::plan::Overlay;
use plimsoll::context::{EstimateMethod, ExchangeId, Fact, Outcome, Position, Turn};
use plimsoll::dialect::models::{Catalogue, Family, Model};
use plimsoll::dialect::{self, Conversation, Dialect};
use plimsoll::tokens::Tokenizer;
use plimsoll::tokens::learn::{
    CostPrediction, EstimatorState, GuessedTokens, NewContent, Observation,
};
use plimsoll::tokens::retention::ByRetention;
use serde_json::{Value, json};

/// An estimate and the reported input, tokens.
struct Pair {
    dialect: Dialect,
    method: EstimateMethod,
    estimate: u64,
    classic: u64,
    actual: u64,
    /// A tool ran at the provider, or the model reasoned invisibly, before this call.
    hidden: bool,
    /// The reported input is in the band.
    held: bool,
    cold: Option<FirstCall>,
}

/// A first call, estimated without anything learned about its model.
#[derive(Clone, Debug, PartialEq)]
struct FirstCall {
    family: Family,
    model: String,
    /// The project that recorded it.
    source: String,
    guess: CostPrediction,
    guessed: GuessedTokens,
    actual: u64,
}

impl FirstCall {
    /// A call that was counted as this many tokens.
    fn new(
        family: Family,
        model: &str,
        source: &str,
        counted: u64,
        guessed: GuessedTokens,
        actual: u64,
    ) -> Self {
        let new_content = NewContent { head: Some(1), guessed, ..NewContent::default() };
        let counted = ByRetention::from([counted; 4]);
        let seen = Observation { counted, new_content, ..Observation::default() };
        let guess = EstimatorState::new(family).guess(&seen, ByRetention::default());
        let (model, source) = (model.to_owned(), source.to_owned());
        Self { family, model, source, guess, guessed, actual }
    }

    fn read(line: &str) -> Self {
        let [family, model, source, counted, less, more, actual] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let family = serde_json::from_value(json!(family)).unwrap();
        let guessed = GuessedTokens { less: less.parse().unwrap(), more: more.parse().unwrap() };
        let (counted, actual) = (counted.parse().unwrap(), actual.parse().unwrap());
        Self::new(family, model, source, counted, guessed, actual)
    }

    fn line(&self) -> String {
        let family = json!(self.family);
        let (family, counted) = (family.as_str().unwrap(), self.guess.tokens);
        let Self { model, source, guessed: GuessedTokens { less, more }, actual, .. } = self;
        format!("{family}\t{model}\t{source}\t{counted}\t{less}\t{more}\t{actual}\n")
    }

    fn is_held(&self) -> bool {
        (self.guess.low..=self.guess.high).contains(&self.actual)
    }

    fn is_guessed(&self) -> bool {
        self.guessed != GuessedTokens::default()
    }

    /// The calls with the same band: by tokenizer and size of the estimate.
    fn class(&self) -> (Family, usize) {
        (self.family, SIZES.iter().filter(|size| **size <= self.guess.tokens).count())
    }
}

/// Where the size classes of first calls begin.
const SIZES: [u64; 2] = [200, 1_000];

#[test]
fn recorded_conversations_are_estimated_within_error_bounds() {
    let pairs = played(conversations);
    println!(
        "{:<18}{:<11}{:>6}{:>9}{:>9}{:>9}{:>8}{:>8}{:>8}{:>12}",
        "dialect",
        "method",
        "pairs",
        "median %",
        "p90 %",
        "p95 %",
        "median",
        "p95",
        "exact %",
        "length/4 %"
    );
    for (dialect, name) in DIALECTS {
        for method in [EstimateMethod::Anchored, EstimateMethod::Estimated] {
            let these: Vec<&Pair> =
                pairs.iter().filter(|p| p.dialect == dialect && p.method == method).collect();
            if !these.is_empty() {
                row(name, &format!("{method:?}"), &these);
            }
        }
    }
    let anchored: Vec<&Pair> =
        pairs.iter().filter(|p| p.method == EstimateMethod::Anchored).collect();
    row("all", "Anchored", &anchored);
    let (ours, classic) = (percents(&anchored, |p| p.estimate), percents(&anchored, |p| p.classic));
    assert!(anchored.len() >= 20, "too few pairs: {}", anchored.len());
    assert!(at(&ours, 0.5) * 4.0 < at(&classic, 0.5), "no better than length/4");
    let exact = anchored.iter().filter(|pair| pair.estimate == pair.actual).count();
    assert!(exact * 5 > anchored.len(), "exact to the token: {exact} of {}", anchored.len());
    // Measured values with a small margin: if a rule breaks, it shows here.
    let bars = match anchored.len() {
        0..500 => [0.6, 3.0, 6.0, 5.0], // only the project's recordings, which are few and small
        _ => [0.6, 1.2, 1.2, 5.0],
    };
    for ((dialect, _), bar) in DIALECTS.into_iter().zip(bars) {
        let these: Vec<&Pair> =
            anchored.iter().filter(|pair| pair.dialect == dialect).copied().collect();
        let median = at(&percents(&these, |pair| pair.estimate), 0.5);
        assert!(median < bar, "{dialect:?}: median error {median:.2} %");
    }
}

/// The band of a later call must hold nine times in ten, too.
#[test]
fn band_of_follow_up_holds() {
    let pairs = played(conversations);
    let check = |name: &str, of: &dyn Fn(&Pair) -> bool| {
        let anchored = pairs.iter().filter(|it| it.method == EstimateMethod::Anchored && of(it));
        let held: Vec<bool> = anchored.map(|pair| pair.held).collect();
        let share = held.iter().filter(|held| **held).count() as f64 / held.len() as f64;
        println!("{name}: {} calls, {:.0} % in their band", held.len(), share * 100.0);
        // Fewer calls would show chance, not the band.
        assert!(held.len() < 40 || share >= 0.84, "{name}: {share:.2} of {}", held.len());
    };
    for (dialect, name) in DIALECTS {
        check(name, &|pair| pair.dialect == dialect);
    }
    check("all", &|_| true);
}

/// A first call has no anchor. Its band says how wrong the estimate may be, and must hold nine times in ten, by
/// tokenizer, size and model.
#[test]
fn band_of_first_call_holds() {
    let cold = first_calls();
    let mut errors: Vec<f64> = Vec::new();
    for FirstCall { guess, actual, .. } in &cold {
        errors.push(guess.tokens.abs_diff(*actual) as f64 * 100.0 / *actual as f64);
    }
    errors.sort_by(f64::total_cmp);
    println!("{} first calls: median error {:.1} %", cold.len(), at(&errors, 0.5));
    let check =
        |name: &str, bounds: std::ops::RangeInclusive<f64>, of: &dyn Fn(&FirstCall) -> bool| {
            let held: Vec<bool> = cold.iter().filter(|it| of(it)).map(FirstCall::is_held).collect();
            let (calls, held) = (held.len(), held.iter().filter(|held| **held).count());
            let share = held as f64 / calls.max(1) as f64;
            println!("{name}: {calls} calls, {:.0} % in their band", share * 100.0);
            // Fewer calls would show chance, not the band.
            assert!(calls < 40 || bounds.contains(&share), "{name}: {share:.2} of {calls}");
            calls
        };
    let families =
        [Family::O200k, Family::Gemini, Family::Claude, Family::ClaudeNew, Family::Other];
    for family in families {
        check(&format!("{family:?}"), 0.88..=0.97, &|it| it.family == family);
        for size in 0..=SIZES.len() {
            let name = format!("{family:?}, size class {size}");
            check(&name, 0.88..=0.97, &|it| it.class() == (family, size));
        }
    }
    check("with guessed parts", 0.88..=1.0, &FirstCall::is_guessed);
    let models: BTreeSet<&str> = cold.iter().map(|it| it.model.as_str()).collect();
    for model in models {
        check(model, 0.88..=1.0, &|it| it.model == model);
    }
    assert!(check("all", 0.88..=0.96, &|_| true) > 900);
    let (calls, held) = by_bands_of_others(&cold);
    let share = held as f64 / calls.max(1) as f64;
    println!("by bands that their project has no say in: {calls} calls, {:.0} %", share * 100.0);
    assert!(calls > 800, "{share:.2} of {calls}");
    assert!(share >= 0.88, "{share:.2} of {calls}");
}

/// All recorded first calls, from a stored table. If the recordings are there, the table is measured again.
fn first_calls() -> Vec<FirstCall> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/first_calls/calls.tsv");
    if corpus::corpus().is_some() {
        let mut lines: Vec<String> = played(conversations)
            .iter()
            .filter_map(|pair| Some(pair.cold.as_ref()?.line()))
            .collect();
        lines.sort();
        if std::env::var_os("PLIMSOLL_BLESS").is_some() {
            std::fs::write(&path, lines.concat()).unwrap();
        }
        let was = std::fs::read_to_string(&path).unwrap();
        assert!(
            was == lines.concat(),
            "tests/data/first_calls: the measured values differ; PLIMSOLL_BLESS=1"
        );
    }
    std::fs::read_to_string(&path).unwrap().lines().map(FirstCall::read).collect()
}

/// How many calls there are, and how many are in a band computed only from calls of other projects: from the 5th to the
/// 95th percentile, for the same tokenizer and size.
fn by_bands_of_others(cold: &[FirstCall]) -> (usize, usize) {
    let share = |it: &FirstCall| it.actual as f64 / it.guess.tokens.max(1) as f64;
    let (mut calls, mut held) = (0, 0);
    for call in cold {
        let others =
            cold.iter().filter(|it| it.source != call.source && it.class() == call.class());
        let mut shares: Vec<f64> = others.map(share).collect();
        if shares.len() < 20 {
            continue;
        }
        shares.sort_by(f64::total_cmp);
        let [low, high] = [0.05, 0.95].map(|of| at(&shares, of) * call.guess.tokens as f64);
        calls += 1;
        // A few tokens of structure are half of a prompt of ten tokens.
        held += usize::from((low - 3.0..=high + 3.0).contains(&(call.actual as f64)));
    }
    (calls, held)
}

/// The published table is what is measured on the project's own recordings. `PLIMSOLL_BLESS=1` writes it.
#[test]
fn table_of_errors_is_current() {
    let table = table(&played(own));
    if let Some(root) = corpus::corpus() {
        println!("{}\n{}", root.display(), self::table(&played(conversations)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/estimates.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- measured -->\n").unwrap();
    let (was, after) = rest.split_once("<!-- /measured -->").unwrap();
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        let text = format!("{before}<!-- measured -->\n{table}<!-- /measured -->{after}");
        return std::fs::write(&path, text).unwrap();
    }
    assert_eq!(was, table, "docs/estimates.md: read the difference, then PLIMSOLL_BLESS=1");
}

/// Pairs with an anchor by dialect: all of them, and those without hidden input.
fn table(pairs: &[Pair]) -> String {
    let mut table =
        "| | pairs | context, tokens | median | 90 of 100 within | exact | length/4, median |\n\
                     |---|---|---|---|---|---|---|\n"
            .to_owned();
    for (dialect, name) in DIALECTS {
        let anchored = pairs.iter().filter(|it| it.dialect == dialect);
        let anchored: Vec<&Pair> =
            anchored.filter(|it| it.method == EstimateMethod::Anchored).collect();
        let plain: Vec<&Pair> = anchored.iter().copied().filter(|pair| !pair.hidden).collect();
        for (what, these) in [("", &anchored), (", nothing hidden", &plain)] {
            let (ours, classic) = (percents(these, |p| p.estimate), percents(these, |p| p.classic));
            let mut contexts: Vec<f64> = these.iter().map(|pair| pair.actual as f64).collect();
            contexts.sort_by(f64::total_cmp);
            let exact = these.iter().filter(|pair| pair.estimate == pair.actual).count();
            table += &format!(
                "| {name}{what} | {} | {:.0} | {:.2} % | {:.1} % | {:.0} % | {:.0} % |\n",
                these.len(),
                at(&contexts, 0.5),
                at(&ours, 0.5),
                at(&ours, 0.9),
                exact as f64 * 100.0 / these.len() as f64,
                at(&classic, 0.5),
            );
        }
    }
    table
}

/// A gateway may leave out reasoning of a model that reads it elsewhere (OpenRouter's Grok 4.1 and Vercel's GPT-5), and
/// a provider may read what another drops (Gemini 2.5 on Vertex). The first call that shows this clearly is the last
/// one with a wrong estimate, also in other conversations.
#[test]
fn how_upstream_counts_reasoning_is_learned_from_one_clear_pair() {
    let chat = |model: &str, word: &str, read: u64| {
        let question = json!({"role": "user", "content": format!("Where is the {word}?")});
        let call = json!({"id": format!("call_{word}"), "type": "function",
            "function": {"name": "look", "arguments": format!(r#"{{"at":"{word}"}}"#)}});
        let answer = json!({"role": "assistant", "content": null, "tool_calls": [call],
            "reasoning": format!("They ask for the {word}, so I look."),
            "reasoning_details": [{"type": "reasoning.encrypted", "data": format!("c2VhbGVk{word}")}]});
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": format!("The {word} is here.")});
        let reply = |message: &Value, input: u64| {
            json!({"id": "c", "object": "chat.completion", "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": input, "completion_tokens": 740, "total_tokens": input + 740,
                    "completion_tokens_details": {"reasoning_tokens": 700}}})
        };
        let line = |messages: Value, input: u64| {
            json!({"endpoint": "/v1/chat/completions", "status": 200,
                "request": {"model": model, "messages": messages}, "response": reply(&answer, input)})
        };
        // 40 tokens of the call, and the cost of the result.
        [
            line(json!([question]), 300),
            line(json!([question, answer, result]), 300 + 40 + 16 + read),
        ]
    };
    let gemini = |word: &str, read: u64| {
        let question =
            json!({"role": "user", "parts": [{"text": format!("Where is the {word}?")}]});
        let call = json!({"role": "model", "parts": [{"thoughtSignature": format!("c2lnbmVk{word}"),
            "functionCall": {"name": "look", "args": {"at": word}}}]});
        let result = json!({"role": "user", "parts": [{"functionResponse": {"name": "look",
            "response": {"result": format!("The {word} is here.")}}}]});
        let line = |contents: Value, input: u64| {
            json!({"endpoint": "/v1/publishers/google/models/gemini-2.5-flash:generateContent", "status": 200,
                "request": {"contents": contents},
                "response": {"candidates": [{"content": call, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": 40,
                        "thoughtsTokenCount": 700, "totalTokenCount": input + 740}}})
        };
        [line(json!([question]), 300), line(json!([question, call, result]), 300 + 40 + 20 + read)]
    };
    let check = |name: &str, dialect: Dialect, first: [Value; 2], second: [Value; 2]| {
        let (mut pairs, mut learned) = (Vec::new(), HashMap::new());
        for (at, lines) in [first, second].into_iter().enumerate() {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{at}.jsonl"));
            std::fs::write(&path, text).unwrap();
            play(dialect, name, name, &calls(dialect, &path), &mut learned, &mut pairs);
        }
        let grown = pairs.iter().filter(|pair| pair.method == EstimateMethod::Anchored);
        let errors: Vec<u64> = grown.map(|pair| pair.estimate.abs_diff(pair.actual)).collect();
        assert!(errors[0] > 600, "{name}: {errors:?}");
        assert!(errors[1] < 40, "{name}: {errors:?}");
    };
    for model in ["x-ai/grok-4-1-fast", "openai/gpt-5"] {
        let name = model.replace('/', "-");
        check(&name, Dialect::OpenaiChat, chat(model, "key", 0), chat(model, "lamp", 0));
    }
    check("gemini-2.5-flash", Dialect::Gemini, gemini("key", 700), gemini("lamp", 700));
}

fn played(recordings: fn(&str) -> Vec<PathBuf>) -> Vec<Pair> {
    let (mut pairs, mut learned) = (Vec::new(), HashMap::new());
    for (dialect, name) in DIALECTS {
        for path in recordings(name) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let source = name.split("__").nth(1).unwrap_or(name);
            play(dialect, source, name, &calls(dialect, &path), &mut learned, &mut pairs);
        }
    }
    pairs
}

/// The whole corpus if there is one, else the recordings in the project.
fn conversations(name: &str) -> Vec<PathBuf> {
    let of = |root: PathBuf| corpus::files(&root.join("conversations").join(name));
    corpus::corpus().map_or_else(|| own(name), of)
}

/// The recordings in the project.
fn own(name: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/conversations");
    corpus::files(&data.join(name))
}

/// What is learned, by model.
type Known = HashMap<String, EstimatorState>;

fn play(
    dialect: Dialect,
    source: &str,
    file: &str,
    calls: &[Call],
    learned: &mut Known,
    pairs: &mut Vec<Pair>,
) {
    let catalogue = Catalogue::new(Vec::new());
    let mut ledger = Ledger::default();
    let mut hidden = false;
    for (index, call) in calls.iter().enumerate() {
        let conversation = dialect::read(dialect, &call.target, &call.request);
        let exchange = index.to_string().into();
        let placed = place(&ledger, &conversation, &exchange, None);
        let name = conversation.model.as_deref().unwrap_or_default();
        let model = catalogue.model(name, "");
        let parent = placed.parent.as_ref().and_then(|parent| ledger.anchor_at(parent)).cloned();
        let anchor = parent.and_then(|turn| Some((ledger.sketch(&turn)?, turn)));
        let anchor = anchor.as_ref().map(|(sketch, turn)| Anchor { turn, sketch });
        let tokenizer = Tokenizer::whole(model.family);
        // Each path to a model counts as an upstream of its own.
        let way = call.target.rsplit_once(name).map_or(&*call.target, |(way, _)| way);
        let known = learned.entry(format!("{way}{name}"));
        let known = known.or_insert_with(|| EstimatorState::new(model.family));
        let sent = Overlay::default();
        let measured =
            budget::measure(&conversation, &call.request, &sent, &model, anchor, tokenizer, known);
        let usage = &call.reply.usage;
        if let Some(actual) = usage.input.filter(|_| !usage.lower_bound && !usage.hosted_tools) {
            let (method, estimate) = (measured.estimate.method, measured.estimate.tokens);
            if let Some(seen) = &measured.seen {
                *known = known.clone().after(seen, &measured.estimate.guess, actual);
            }
            let classic = call.request.len() as u64 / 4;
            let is_cold = method == EstimateMethod::Estimated && actual > 0;
            let cold = measured.seen.as_ref().filter(|_| is_cold);
            let fresh = EstimatorState::new(model.family);
            let cold = cold.map(|seen| FirstCall {
                family: model.family,
                model: name.rsplit('/').next().unwrap_or(name).to_owned(),
                source: source.to_owned(),
                guess: fresh.guess(seen, ByRetention::default()),
                guessed: seen.new_content.guessed,
                actual,
            });
            let guess = &measured.estimate.guess;
            let held = (guess.low..=guess.high).contains(&actual);
            pairs.push(Pair { dialect, method, estimate, classic, actual, hidden, held, cold });
            if std::env::var_os("PLIMSOLL_TEST_VERBOSE").is_some() {
                let seen = measured.seen.as_ref().map(|seen| &seen.new_content);
                println!(
                    "{file} {index} {dialect:?} {name} {method:?} {actual} {:?} {seen:?}",
                    pairs.last().and_then(|pair| Some(pair.cold.as_ref()?.guess)).unwrap_or(*guess)
                );
            }
        }
        hidden |= usage.hosted_tools || usage.reasoning.is_some_and(|tokens| tokens > 0);
        let turn = turn(&conversation, call, &model, exchange, placed.position, measured);
        ledger.add(Fact::Turn(Arc::new(turn)));
    }
}

/// The turn of a measured call.
fn turn(
    conversation: &Conversation,
    call: &Call,
    model: &Model,
    exchange: ExchangeId,
    position: Position,
    measured: MeasuredEstimate,
) -> Turn {
    Turn {
        exchange,
        after: call.reply.chain_after(position.chain),
        position,
        response: call.reply.id.clone(),
        upstream: "u".into(),
        model: conversation.model.as_deref().unwrap_or_default().into(),
        purpose: conversation.purpose,
        estimate: Some(measured.estimate),
        usage: call.reply.usage.clone(),
        stop: call.reply.stop,
        outcome: Outcome::Complete,
        window: model.window,
        sketch: measured.sketch,
        reply: budget::reply(&call.reply, Tokenizer::whole(model.family)),
        anchor_keys: anchor_keys(&call.reply),
        ..Turn::empty(conversation.dialect, model.family)
    }
}

fn row(name: &str, method: &str, pairs: &[&Pair]) {
    let percent = percents(pairs, |pair| pair.estimate);
    let classic = percents(pairs, |pair| pair.classic);
    let mut tokens: Vec<f64> =
        pairs.iter().map(|pair| pair.estimate.abs_diff(pair.actual) as f64).collect();
    tokens.sort_by(f64::total_cmp);
    let exact = tokens.iter().filter(|tokens| **tokens == 0.0).count();
    println!(
        "{name:<18}{method:<11}{:>6}{:>9.2}{:>9.2}{:>9.2}{:>8.0}{:>8.0}{:>8.1}{:>12.1}",
        pairs.len(),
        at(&percent, 0.5),
        at(&percent, 0.9),
        at(&percent, 0.95),
        at(&tokens, 0.5),
        at(&tokens, 0.95),
        exact as f64 * 100.0 / pairs.len() as f64,
        at(&classic, 0.5),
    );
}

/// Absolute errors in percent of the reported input, sorted.
fn percents(pairs: &[&Pair], estimate: impl Fn(&Pair) -> u64) -> Vec<f64> {
    let error = |pair: &&Pair| {
        estimate(pair).abs_diff(pair.actual) as f64 * 100.0 / (pair.actual.max(1)) as f64
    };
    let mut errors: Vec<f64> = pairs.iter().map(error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}
