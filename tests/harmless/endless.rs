//! Sessions without end: hundreds of turns through a window of 30,000 tokens, against a provider that
//! checks what real ones check. None overflows, none gets a refusal that its client did not earn, no
//! call is parted from its result, and the same beginning is never summarised twice.
//!
//! `make endless N=20` plays that many sessions of 500 turns; `PLIMSOLL_ENDLESS_SEED` one alone, and
//! `PLIMSOLL_ENDLESS_TURNS` so many of its turns.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::config::Mode;
use plimsoll::context::plan::Decision;
use plimsoll::context::policy::{Policy, SummaryEngine};
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use scripted_provider::strict::{
    self, Clock, Dialect, Judged, Loss, Provider, Purpose, Reply, Rules,
};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::number;
use crate::speak::{self, Answered, Habits, Head, Memory, Said};
use crate::stage::Stage;
use crate::support::server::config;

pub const WINDOW: u64 = 30_000;
/// Part of every request for a summary.
const ASKS: &str = "Write a summary of the conversation";

/// What became of sessions.
#[derive(Debug, Default)]
pub struct Lived {
    exchanges: usize,
    /// Summaries that were asked for.
    pub asked: usize,
    /// Summaries that were taken into use.
    pub used: usize,
    /// Requests that waited for one, and the longest wait.
    waited: usize,
    longest: Duration,
    /// Tokens of the largest request that the provider read.
    pub largest: u64,
    /// Prefixes that went out again as they had gone out before.
    stable: usize,
    /// Refusals that taught that a model binds its reasoning.
    pub taught: usize,
    /// Reasoning that its provider dropped, though it was sent.
    pub dropped: usize,
    /// Reasoning that its provider would have read, and that was not sent.
    pub absent: usize,
    /// Summaries that providers were asked for themselves.
    pub by_provider: usize,
}

struct Session {
    stage: Stage,
    dice: Dice,
    dialect: Dialect,
    head: Head,
    habits: Habits,
    history: Vec<Said>,
    lived: Lived,
    /// What was summarised, as it was asked.
    summarised: HashSet<String>,
    /// What went out last.
    forwarded: Vec<Value>,
}

pub async fn session(seed: u64, turns: usize, engine: SummaryEngine) -> Result<Lived, String> {
    let mut dice = Dice::new(seed);
    let dialects = [Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini];
    let (binding, dialect) = match engine {
        // Where providers compact, they bind.
        SummaryEngine::Provider | SummaryEngine::Auto => (true, dialects[seed as usize % 2 * 2]),
        SummaryEngine::Summary | SummaryEngine::Off => {
            (seed.is_multiple_of(2), dialects[(seed / 2) as usize % 4])
        }
    };
    let rules = Rules { window: Some(WINDOW), binding: Some(binding), ..Rules::default() };
    let provider = Provider::at(rules, seed, Clock::manual());
    let summary = format!("<summary>{}</summary>", "So far much was read. ".repeat(30));
    provider.say_to(ASKS, Reply::text(&summary));
    let serving = strict::serve(provider.clone()).await.map_err(|error| error.to_string())?;
    let mut config = config(&serving.base());
    let mut policy = Policy::default();
    policy.compact.engine = engine;
    (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
    config.upstreams[0].window = Some(WINDOW);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let stage = Stage::open(provider, serving, config, store).await;
    let model = match dialect {
        Dialect::Anthropic if engine != SummaryEngine::Summary => "claude-opus-5-5",
        Dialect::Responses if engine != SummaryEngine::Summary => "gpt-5.6-sol",
        Dialect::Anthropic => dice.of(&["claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5-5"]),
        Dialect::Chat => dice.of(&["gpt-4.1", "deepseek-v4", "kimi-k3"]),
        Dialect::Responses => dice.of(&["gpt-5.4", "gpt-5.6-sol"]),
        Dialect::Gemini => dice.of(&["gemini-3-pro", "gemini-2.5-flash"]),
    };
    let (system, tools) = ("You read logs.".to_owned(), vec!["Read", "Grep"]);
    let head = Head { model, system, tools, thinks: true, stream: dice.once_in(2) };
    let habits = Habits {
        memory: dice.of(&[Memory::Whole, Memory::None]),
        marks: true,
        respells: dice.once_in(3),
        strips: false,
        url_safe: false,
    };
    let mut session = Session {
        stage,
        dice,
        dialect,
        head,
        habits,
        history: Vec::new(),
        lived: Lived::default(),
        summarised: HashSet::new(),
        forwarded: Vec::new(),
    };
    for turn in 0..turns {
        session.turn(turn).await.map_err(|what| {
            let text = session.stage.server.telemetry.render();
            let lines = text.lines().filter(|line| line.starts_with("plimsoll_compactions_total"));
            let counted: Vec<&str> = lines.collect();
            format!("{counted:?} seed {seed}, {model}, binding {binding}, {habits:?}, turn {turn}: {what}")
        })?;
    }
    Ok(session.lived)
}

impl Session {
    /// The person asks, the model reads a few times and answers.
    async fn turn(&mut self, turn: usize) -> Result<(), String> {
        let words = 20 + self.dice.below(120);
        self.history.push(Said::User(format!("Turn {turn}. {}", self.dice.words(words))));
        for round in 0..=self.dice.below(3) {
            let call = json!({"path": format!("{turn}-{round}")});
            let reply = Reply::thinking("Where is it?", 40).saying("I read on.");
            self.stage.provider.say(reply.calling("Read", call));
            let calls = self.exchange().await?;
            let mut results = Vec::new();
            for call in calls {
                let words = self.dice.of(&[5, 60, 300, 1200]);
                let text = self.dice.words(words);
                let (id, name) = (call.id, call.name);
                let (is_error, has_picture, in_blocks) = (false, false, self.dice.once_in(3));
                results.push(Answered { id, name, text, is_error, has_picture, in_blocks });
            }
            self.history.push(Said::Results(results));
        }
        let words = 10 + self.dice.below(60);
        let answer = format!("That was turn {turn}: {}", self.dice.words(words));
        self.stage.provider.say(Reply::text(&answer));
        self.exchange().await.map(drop)
    }

    async fn exchange(&mut self) -> Result<Vec<speak::Called>, String> {
        let body = speak::request(self.dialect, &self.head, &self.history, self.habits);
        let target = speak::target(self.dialect, &self.head);
        let (status, text) = self.stage.asks(&target, &body).await;
        let told = self.stage.server.told().await;
        self.lived.exchanges += 1;
        self.lived.used += told.done.new.compacted as usize;
        if let Some(us) = told.compaction_wait_us {
            self.lived.waited += 1;
            self.lived.longest = self.lived.longest.max(Duration::from_micros(us));
        }
        let log = self.stage.provider.take_log();
        for judged in &log {
            self.judged(judged, &told)?;
        }
        if status != 200 {
            return Err(format!("{status} {text}: {:?}", told.done));
        }
        let sent = log.iter().rev().find(|judged| !is_question(judged));
        let sent = sent.map(|judged| speak::history(self.dialect, &judged.call.body));
        let sent = sent.unwrap_or_default();
        let decided = told.done.steps.iter().any(|step| step.decision == Decision::New);
        let before = std::mem::replace(&mut self.forwarded, sent);
        if !decided {
            let same = before.iter().zip(&self.forwarded).take_while(|(a, b)| a == b).count();
            if same < before.len() {
                return Err(format!("the prefix changed at {same}: {:?}", told.done.steps));
            }
            self.lived.stable += 1;
        }
        let answer = match self.head.stream {
            true => crate::stream::whole(self.dialect, &text),
            false => serde_json::from_str(&text).map_err(|error| error.to_string())?,
        };
        let (reply, calls) = speak::kept(self.dialect, &answer);
        self.history.push(Said::Model(reply));
        Ok(calls)
    }

    /// What must hold of everything that the provider received, requests for summaries included.
    fn judged(&mut self, judged: &Judged, told: &Exchange) -> Result<(), String> {
        // Where a model binds reasoning that is not known to, one refusal teaches it.
        let teaches = told.refused == Some(RefusalCause::Bound) && told.status == Some(200);
        if teaches && judged.verdict.refused().is_some() {
            self.lived.taught += 1;
            return if self.lived.taught > 1 { Err("taught twice".to_owned()) } else { Ok(()) };
        }
        if let Some(rule) = judged.verdict.refused() {
            let body = String::from_utf8_lossy(&judged.call.bytes).into_owned();
            return Err(format!("refused: {rule:?} {:?}\n{body}", judged.verdict));
        }
        let Some(accepted) = judged.verdict.accepted() else { return Ok(()) };
        self.lived.largest = self.lived.largest.max(accepted.input_tokens);
        let dropped = |loss: &&Loss| matches!(loss, Loss::ReasoningDropped { .. });
        self.lived.dropped += accepted.losses.iter().filter(dropped).count();
        let absent = |loss: &&Loss| matches!(loss, Loss::ReasoningAbsent { readable: true, .. });
        self.lived.absent += accepted.losses.iter().filter(absent).count();
        if !is_question(judged) {
            return Ok(());
        }
        self.lived.asked += 1;
        let mut history = speak::history(self.dialect, &judged.call.body);
        self.lived.by_provider += usize::from(is_to_compact(judged));
        history.truncate(history.len().saturating_sub(usize::from(!is_to_compact(judged))));
        let asked = serde_json::to_string(&history).unwrap_or_default();
        if !self.summarised.insert(asked) {
            return Err("the same beginning was summarised twice".to_owned());
        }
        Ok(())
    }
}

fn is_question(judged: &Judged) -> bool {
    is_to_compact(judged) || memchr::memmem::find(&judged.call.bytes, ASKS.as_bytes()).is_some()
}

/// Whether the provider was asked for its own summary.
fn is_to_compact(judged: &Judged) -> bool {
    judged.call.purpose == Purpose::Compact
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_never_end_at_the_window() {
    let (count, turns) = match number("PLIMSOLL_ENDLESS") {
        Some(count) => (count, 500),
        None => (4, 40),
    };
    let turns = number("PLIMSOLL_ENDLESS_TURNS").map_or(turns, |turns| turns as usize);
    if let Some(seed) = number("PLIMSOLL_ENDLESS_SEED") {
        return println!("{:?}", session(seed, turns, SummaryEngine::Summary).await.unwrap());
    }
    let began = Instant::now();
    let mut all = Lived::default();
    let mut harm = Vec::new();
    let play = |seed, turns| session(seed, turns, SummaryEngine::Summary);
    for pair in 0..count.div_ceil(2) {
        let (one, two) = tokio::join!(play(pair, turns), play(pair + count.div_ceil(2), turns));
        for lived in [one, two] {
            match lived {
                Ok(lived) => {
                    all.exchanges += lived.exchanges;
                    all.asked += lived.asked;
                    all.used += lived.used;
                    all.waited += lived.waited;
                    all.longest = all.longest.max(lived.longest);
                    all.largest = all.largest.max(lived.largest);
                    all.stable += lived.stable;
                    all.dropped += lived.dropped;
                    all.taught += lived.taught;
                }
                Err(what) => harm.push(what.chars().take(4000).collect::<String>()),
            }
        }
    }
    println!("{count} sessions of {turns} turns in {:.0?}: {all:?}", began.elapsed());
    assert!(harm.is_empty(), "{} of {count}:\n{}", harm.len(), harm.join("\n\n"));
    assert!(all.used as u64 >= count && all.asked >= all.used, "{all:?}");
    assert!(all.largest <= WINDOW, "{all:?}");
}
