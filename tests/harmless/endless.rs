//! Sessions without end: hundreds of turns through a window of 30,000 tokens, against a provider that
//! checks what real ones check. None overflows, none gets a refusal that its client did not earn, no
//! call loses its result, and the same beginning is never summarised twice.
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
    self, Clock, Dialect, LoggedRequest, Loss, Operation, Rules, ScriptedReply, StrictProvider,
};
use serde_json::{Value, json};

use crate::client::{self, ClientStyle, Head, HistoryItem, KeptReasoning, ToolResult};
use crate::dice::Dice;
use crate::number;
use crate::stage::Stage;
use crate::support::server::config;

pub const WINDOW: u64 = 30_000;
/// Part of every request for a summary.
pub const SUMMARY_REQUEST: &str = "Write a summary of the conversation";

/// Counts of one or more sessions.
#[derive(Debug, Default)]
pub struct SessionReport {
    exchanges: usize,
    /// Summaries that were asked for.
    pub summaries_requested: usize,
    /// Summaries that replaced history.
    pub summaries_used: usize,
    /// Requests that waited for one, and the longest wait.
    waited: usize,
    longest_wait: Duration,
    /// Tokens of the largest request that the provider read.
    pub largest: u64,
    /// Requests that repeated the previous prefix.
    stable: usize,
    /// Refusals from which the proxy learned that a model binds its reasoning.
    pub binding_refusals: usize,
    /// Reasoning that its provider dropped, though it was sent.
    pub dropped: usize,
    /// Reasoning that its provider would have read, and that was not sent.
    pub absent: usize,
    /// Summaries by the provider's own compaction.
    pub provider_summaries: usize,
}

struct Session {
    stage: Stage,
    dice: Dice,
    dialect: Dialect,
    head: Head,
    style: ClientStyle,
    history: Vec<HistoryItem>,
    report: SessionReport,
    /// The histories that were summarised.
    summarised: HashSet<String>,
    /// The history that the provider received last.
    last_sent: Vec<Value>,
}

pub async fn session(
    seed: u64,
    turns: usize,
    engine: SummaryEngine,
) -> Result<SessionReport, String> {
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
    let provider = StrictProvider::with_clock(rules, seed, Clock::manual());
    let summary = format!("<summary>{}</summary>", "So far much was read. ".repeat(30));
    provider.reply_to_matching(SUMMARY_REQUEST, ScriptedReply::text(&summary));
    let serving = strict::serve(provider.clone()).await.map_err(|error| error.to_string())?;
    let mut config = config(&serving.base());
    let mut policy = Policy::default();
    // Cuts would leave little to summarise.
    policy.prune.gate = Vec::new();
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
    let kept_reasoning = dice.of(&[KeptReasoning::All, KeptReasoning::None]);
    let style = ClientStyle {
        cache_markers: true,
        reformats_arguments: dice.once_in(3),
        ..ClientStyle::plain(kept_reasoning)
    };
    let mut session = Session {
        stage,
        dice,
        dialect,
        head,
        style,
        history: Vec::new(),
        report: SessionReport::default(),
        summarised: HashSet::new(),
        last_sent: Vec::new(),
    };
    for turn in 0..turns {
        session.turn(turn).await.map_err(|message| {
            let text = session.stage.server.telemetry.render();
            let lines = text.lines().filter(|line| line.starts_with("plimsoll_compactions_total"));
            let counted: Vec<&str> = lines.collect();
            format!("{counted:?} seed {seed}, {model}, binding {binding}, {style:?}, turn {turn}: {message}")
        })?;
    }
    Ok(session.report)
}

impl Session {
    /// The user asks, the model calls a tool a few times, then answers.
    async fn turn(&mut self, turn: usize) -> Result<(), String> {
        let words = 20 + self.dice.below(120);
        self.history.push(HistoryItem::User(format!("Turn {turn}. {}", self.dice.words(words))));
        for round in 0..=self.dice.below(3) {
            let call = json!({"path": format!("{turn}-{round}")});
            let reply = ScriptedReply::thinking("Where is it?", 40).with_text("I read on.");
            self.stage.provider.queue_reply(reply.with_call("Read", call));
            let calls = self.exchange().await?;
            let mut results = Vec::new();
            for call in calls {
                let words = self.dice.of(&[5, 60, 300, 1200]);
                let text = self.dice.words(words);
                let (id, name) = (call.id, call.name);
                let (is_error, has_picture, in_blocks) = (false, false, self.dice.once_in(3));
                let (loads, caller) = (false, None);
                results.push(ToolResult {
                    id,
                    name,
                    text,
                    is_error,
                    has_picture,
                    in_blocks,
                    loads,
                    caller,
                });
            }
            self.history.push(HistoryItem::ToolResults(results));
        }
        let words = 10 + self.dice.below(60);
        let answer = format!("That was turn {turn}: {}", self.dice.words(words));
        self.stage.provider.queue_reply(ScriptedReply::text(&answer));
        self.exchange().await.map(drop)
    }

    async fn exchange(&mut self) -> Result<Vec<client::ToolCall>, String> {
        let body = client::request(self.dialect, &self.head, &self.history, self.style);
        let target = client::path(self.dialect, &self.head);
        let (status, text) = self.stage.send(&target, &body).await;
        let exchange = self.stage.server.next_exchange().await;
        self.report.exchanges += 1;
        self.report.summaries_used += exchange.done.new.compacted as usize;
        if let Some(us) = exchange.timing.compaction_wait_us {
            self.report.waited += 1;
            self.report.longest_wait = self.report.longest_wait.max(Duration::from_micros(us));
        }
        let log = self.stage.provider.take_log();
        for entry in &log {
            self.check_received(entry, &exchange)?;
        }
        if status != 200 {
            return Err(format!("{status} {text}: {:?}", exchange.done));
        }
        let sent = log.iter().rev().find(|entry| !is_summary_request(entry));
        let sent = sent.map(|entry| client::history(self.dialect, &entry.request.body));
        let sent = sent.unwrap_or_default();
        let has_new_decision =
            exchange.done.steps.iter().any(|step| step.decision == Decision::New);
        let before = std::mem::replace(&mut self.last_sent, sent);
        if !has_new_decision {
            let same = before.iter().zip(&self.last_sent).take_while(|(a, b)| a == b).count();
            if same < before.len() {
                return Err(format!("the prefix changed at {same}: {:?}", exchange.done.steps));
            }
            self.report.stable += 1;
        }
        let answer = match self.head.stream {
            true => crate::stream::assemble(self.dialect, &text),
            false => serde_json::from_str(&text).map_err(|error| error.to_string())?,
        };
        let (reply, calls) = client::read_reply(self.dialect, &answer);
        self.history.push(HistoryItem::Reply(reply));
        Ok(calls)
    }

    /// Checks one request that the provider received, requests for summaries included.
    fn check_received(&mut self, entry: &LoggedRequest, exchange: &Exchange) -> Result<(), String> {
        // One refusal is allowed for the proxy to learn that the model binds its reasoning.
        let learns_binding =
            exchange.refused == Some(RefusalCause::Bound) && exchange.status == Some(200);
        if learns_binding && entry.verdict.broken_rule().is_some() {
            self.report.binding_refusals += 1;
            return if self.report.binding_refusals > 1 {
                Err("taught twice".to_owned())
            } else {
                Ok(())
            };
        }
        if let Some(rule) = entry.verdict.broken_rule() {
            let body = String::from_utf8_lossy(&entry.request.bytes).into_owned();
            return Err(format!("refused: {rule:?} {:?}\n{body}", entry.verdict));
        }
        let Some(accepted) = entry.verdict.accepted() else { return Ok(()) };
        self.report.largest = self.report.largest.max(accepted.input_tokens);
        let dropped = |loss: &&Loss| matches!(loss, Loss::ReasoningDropped { .. });
        self.report.dropped += accepted.losses.iter().filter(dropped).count();
        let absent = |loss: &&Loss| matches!(loss, Loss::ReasoningAbsent { readable: true, .. });
        self.report.absent += accepted.losses.iter().filter(absent).count();
        if !is_summary_request(entry) {
            return Ok(());
        }
        self.report.summaries_requested += 1;
        let mut history = client::history(self.dialect, &entry.request.body);
        self.report.provider_summaries += usize::from(is_compact_call(entry));
        history.truncate(history.len().saturating_sub(usize::from(!is_compact_call(entry))));
        let summarised = serde_json::to_string(&history).unwrap_or_default();
        if !self.summarised.insert(summarised) {
            return Err("the same beginning was summarised twice".to_owned());
        }
        Ok(())
    }
}

/// Whether we asked for a summary with this request.
pub fn is_summary_request(entry: &LoggedRequest) -> bool {
    is_compact_call(entry)
        || memchr::memmem::find(&entry.request.bytes, SUMMARY_REQUEST.as_bytes()).is_some()
}

/// Whether the provider was asked for its own summary.
fn is_compact_call(entry: &LoggedRequest) -> bool {
    entry.request.operation == Operation::Compact
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_continue_past_window() {
    let (count, turns) = match number("PLIMSOLL_ENDLESS") {
        Some(count) => (count, 500),
        None => (4, 40),
    };
    let turns = number("PLIMSOLL_ENDLESS_TURNS").map_or(turns, |turns| turns as usize);
    if let Some(seed) = number("PLIMSOLL_ENDLESS_SEED") {
        return println!("{:?}", session(seed, turns, SummaryEngine::Summary).await.unwrap());
    }
    let began = Instant::now();
    let mut all = SessionReport::default();
    let mut harm = Vec::new();
    let play = |seed, turns| session(seed, turns, SummaryEngine::Summary);
    for pair in 0..count.div_ceil(2) {
        let (one, two) = tokio::join!(play(pair, turns), play(pair + count.div_ceil(2), turns));
        for report in [one, two] {
            match report {
                Ok(report) => {
                    all.exchanges += report.exchanges;
                    all.summaries_requested += report.summaries_requested;
                    all.summaries_used += report.summaries_used;
                    all.waited += report.waited;
                    all.longest_wait = all.longest_wait.max(report.longest_wait);
                    all.largest = all.largest.max(report.largest);
                    all.stable += report.stable;
                    all.dropped += report.dropped;
                    all.binding_refusals += report.binding_refusals;
                }
                Err(message) => harm.push(message.chars().take(4000).collect::<String>()),
            }
        }
    }
    println!("{count} sessions of {turns} turns in {:.0?}: {all:?}", began.elapsed());
    assert!(harm.is_empty(), "{} of {count}:\n{}", harm.len(), harm.join("\n\n"));
    assert!(all.summaries_used as u64 >= count, "{all:?}");
    assert!(all.summaries_requested >= all.summaries_used, "{all:?}");
    assert!(all.largest <= WINDOW, "{all:?}");
}
