//! An agent that summarises its history by itself, as Deep Agents does: at its own threshold, or after an overflow, it
//! sends everything as text in one message. It finishes behind the proxy what it finishes without.

use plimsoll::config::Mode;
use plimsoll::context::plan::{Change, DecisionReason};
use plimsoll::context::policy::Policy;
use plimsoll::dialect::Purpose;
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::stage::{RoundTrip, Stage};

const STEPS: usize = 36;
/// What the provider's window holds, tokens.
const WINDOW: u64 = 20_000;
/// The agent believes in a larger window, of which it fills so much; it takes four bytes for a token.
const OWN_THRESHOLD: usize = 30_000;
const PATH: &str = "/v1/chat/completions";
/// The beginning of its prompt.
const ROLE: &str = "Context Extraction Assistant";

struct Agent {
    stage: Stage,
    history: Vec<Value>,
    /// Its own summary calls.
    summaries: Vec<RoundTrip>,
}

impl Agent {
    async fn open(mode: Mode) -> Self {
        let rules = Rules { window: Some(WINDOW), ..Rules::default() };
        let mut stage = Stage::open(rules, Policy::default()).await;
        stage.config.mode = mode;
        stage.config.upstreams[0].window = Some(WINDOW);
        stage.restart().await;
        stage.provider.reply_to_matching(ROLE, ScriptedReply::text("Logs were read."));
        let history =
            vec![json!({"role": "user", "content": "Read all logs, one after the other."})];
        Self { stage, history, summaries: Vec::new() }
    }

    /// Plays until the end, or until it cannot go on; returns how many steps it made.
    async fn play(&mut self) -> usize {
        for step in 0..STEPS {
            if self.tokens() > OWN_THRESHOLD && !self.summarise().await {
                return step;
            }
            let mut trip = self.turn().await;
            if trip.status == 400 {
                if !self.summarise().await {
                    return step;
                }
                trip = self.turn().await;
            }
            if trip.status != 200 {
                return step;
            }
            let message = &trip.answer["choices"][0]["message"];
            let id = message["tool_calls"][0]["id"].clone();
            self.history.push(message.clone());
            let log = format!("Log {step}. {}", "The door was open at noon. ".repeat(150));
            self.history.push(json!({"role": "tool", "tool_call_id": id, "content": log}));
        }
        STEPS
    }

    fn tokens(&self) -> usize {
        self.history.iter().map(|message| message.to_string().len() / 4).sum()
    }

    async fn turn(&mut self) -> RoundTrip {
        let tool = json!({"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}});
        let body = json!({"model": "gpt-4.1", "messages": self.history, "tools": [tool], "max_tokens": 500});
        self.stage.exchange(PATH, &body, reply()).await
    }

    /// Replaces all but the newest step by a summary; `false` if it was refused.
    async fn summarise(&mut self) -> bool {
        let newest = self.history.len() - 2;
        let texts = self.history[..newest].iter().filter_map(|message| message["content"].as_str());
        let text = texts.collect::<Vec<_>>().join("\n");
        let question =
            json!([{"role": "user", "content": format!("<role>\n{ROLE}\n</role>\n\n{text}")}]);
        let body = json!({"model": "gpt-4.1", "messages": question, "max_tokens": 500});
        let trip = self.stage.exchange(PATH, &body, reply()).await;
        let is_done = trip.status == 200;
        self.summaries.push(trip);
        let summary = json!({"role": "user", "content": "Here is a summary: logs were read."});
        self.history.splice(..newest, [summary]);
        is_done
    }
}

/// A step's reply. A refused request leaves it to the next one.
fn reply() -> ScriptedReply {
    ScriptedReply::text("I read on.").with_call("Read", json!({"path": "next"}))
}

#[tokio::test]
async fn agent_that_summarises_itself_finishes_behind_proxy_too() {
    let mut direct = Agent::open(Mode::Observe).await;
    assert_eq!(direct.play().await, STEPS, "it lives without us");
    assert_eq!(direct.summaries.len(), 1, "it lives without us");
    let mut behind = Agent::open(Mode::Active).await;
    assert_eq!(behind.play().await, STEPS);
    let [summary] = &behind.summaries[..] else { panic!("{} summaries", behind.summaries.len()) };
    // It came later than directly, because old results were cut. So it was too large, and was shortened in its middle.
    assert_eq!(summary.exchange.purpose, Some(Purpose::Compaction));
    assert!(summary.exchange.done.overflow.is_some_and(|overflow| overflow.saved));
    let [step] = &summary.exchange.done.steps[..] else { panic!("{:?}", summary.exchange.done) };
    assert_eq!(step.change, Change::Cut);
    assert_eq!(step.why, DecisionReason::TooLarge);
    let sent = summary.sent()["messages"][0]["content"].as_str().unwrap();
    assert!(sent.contains(ROLE), "{sent}");
    assert!(sent.contains("bytes of this message left out"), "{sent}");
}
