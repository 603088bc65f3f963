//! Whether rewriting pays: scripted agents of 36 steps in windows of several sizes, played as recordings. The default
//! policy costs no more than the cheaper of nothing, where that fits, and cuts alone.
//!
//! Prices and caches are those of the catalogue and of the models' providers; every dollar is computed from the usage
//! that the ledger holds.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt;
use std::path::PathBuf;

use plimsoll::config::{self, ConfigSources};
use plimsoll_replay::transcript::TranscriptLine;
use plimsoll_replay::what_if::{self, WhatIfOptions, WhatIfReport};
use serde_json::json;

const STEPS: usize = 36;
const WINDOWS: [u64; 4] = [60_000, 80_000, 200_000, 1_000_000];
/// How much more the default policy may cost than the cheaper alternative.
const MARGIN: f64 = 1.02;
/// Tokens of a summary.
const SUMMARY: u32 = 2_000;

/// More summaries than these are too many.
const MOST_SUMMARIES: u64 = 2;

/// An agent: what it sends, and how much each step adds.
#[derive(Clone, Copy)]
struct Agent {
    name: &'static str,
    model: &'static str,
    provider: &'static str,
    /// Tokens of system prompt and tools.
    head: u64,
    /// Tokens of the results, one after another, over and over.
    results: &'static [u64],
    /// Tokens that the model writes in each step.
    output: u64,
}

const AGENTS: [Agent; 6] = [
    Agent {
        name: "large prompt, Anthropic",
        model: "claude-sonnet-4-5",
        provider: "anthropic",
        head: 18_000,
        results: &[600, 3_000, 1_500, 6_000],
        output: 250,
    },
    Agent {
        name: "small prompt, Anthropic",
        model: "claude-sonnet-4-5",
        provider: "anthropic",
        head: 5_000,
        results: &[400, 900, 5_000],
        output: 200,
    },
    Agent {
        name: "short steps, Anthropic",
        model: "claude-sonnet-4-5",
        provider: "anthropic",
        head: 12_000,
        results: &[300, 800, 1_500],
        output: 300,
    },
    Agent {
        name: "Chat Completions",
        model: "gpt-4.1",
        provider: "openai",
        head: 9_000,
        results: &[2_000, 3_000, 400],
        output: 200,
    },
    // Most of what it sends is its own text, which no cut takes away.
    Agent {
        name: "much text, Anthropic",
        model: "claude-sonnet-4-5",
        provider: "anthropic",
        head: 12_000,
        results: &[300, 900],
        output: 1_200,
    },
    Agent {
        name: "Gemini",
        model: "gemini-2.5-pro",
        provider: "gemini",
        head: 10_000,
        results: &[3_500, 800],
        output: 250,
    },
];

impl Agent {
    /// Its session as a recording: each step reads the cache up to what the step before it sent.
    fn session(&self) -> Vec<TranscriptLine> {
        let Self { model, provider, head, results, output, .. } = self;
        let (mut input, mut sent) = (head + 20, 0);
        let mut lines = Vec::new();
        for step in 0..STEPS {
            let mut parts =
                vec![json!({ "role": "user", "kind": "text", "text": "Mend the build, please." })];
            if step > 0 {
                let result = results[step % results.len()];
                let call = format!(
                    r#"{{"path":"file-{step}","why":"{}"}}"#,
                    "word ".repeat(*output as usize - 30)
                );
                parts = vec![
                    json!({ "role": "assistant", "kind": "tool_use", "name": "read", "text": call, "reply": true }),
                    json!({ "role": "user", "kind": "tool_result", "name": "read", "text": format!("{step} {}", "word ".repeat(result as usize)) }),
                ];
                (sent, input) = (input, input + result + output + 20);
            }
            let written = if *provider == "anthropic" { input - sent } else { 0 };
            let line = json!({
                "session": "s", "source": "test", "model": model, "provider": provider, "ts": step * 10_000,
                "flags": [], "new_parts": parts,
                "usage": { "input_total": input, "cache_read": sent, "cache_write": written, "output": output, "reasoning": 0 },
            });
            lines.push(serde_json::from_value(line).unwrap());
        }
        lines
    }

    fn played(&self, window: u64, policy: &str) -> WhatIfReport {
        let text = format!("{policy}\n[model.\"{}\"]\nwindow_tokens = {window}\n", self.model);
        let name = format!("pays-{}-{window}-{}.toml", self.name, policy.len());
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&file, text).unwrap();
        let variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
        let sources = ConfigSources { file: Some(file), variables, ..ConfigSources::default() };
        let loaded = config::load(&sources).unwrap();
        let options = WhatIfOptions {
            policy: loaded.config.policy.clone(),
            output_reserve: loaded.config.output_reserve,
            catalogue: loaded.config.catalogue.clone(),
            summary_tokens: SUMMARY,
        };
        what_if::play(&self.session(), &options, |_| ())
    }
}

/// What a session cost in one way.
struct Bill {
    dollars: f64,
    summaries: u64,
    cuts: u64,
    net: f64,
    largest: u64,
}

impl Bill {
    fn of(report: &WhatIfReport) -> Self {
        Self {
            dollars: report.under_policy.dollars + report.spent_on_summaries.dollars,
            summaries: report.summaries,
            cuts: report.results_cut,
            net: report.savings.net,
            largest: report.under_policy.largest,
        }
    }

    fn fits(&self, window: u64) -> bool {
        self.largest <= window
    }
}

impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dollars, summaries, cuts, net, largest } = self;
        write!(
            f,
            "${dollars:.3}, {summaries} summaries, {cuts} cut, net {net:+.3}, largest {largest}"
        )
    }
}

const NOTHING: &str = "[prune]\ngate = []\n[compact]\nengine = \"off\"\n";
const CUTS_ONLY: &str = "[compact]\nengine = \"off\"\n";

/// The default policy costs no more than the cheaper of nothing and cuts alone, where these fit; it always fits, and its
/// summaries are few. With `--nocapture` it prints what each costs, as a table.
#[test]
fn default_policy_costs_no_more_than_nothing_or_cuts_alone() {
    let mut failures = Vec::new();
    for agent in &AGENTS {
        for window in WINDOWS {
            let bills = [NOTHING, CUTS_ONLY, ""].map(|it| Bill::of(&agent.played(window, it)));
            let [direct, cuts_only, default] = &bills;
            println!("| {} | {window} | {direct} | {cuts_only} | {default} |", agent.name);
            let alternatives = [direct, cuts_only].into_iter().filter(|bill| bill.fits(window));
            let least = alternatives.map(|bill| bill.dollars).fold(f64::INFINITY, f64::min);
            // What a forced summary replaces could not have been sent, so it counts as no saving.
            let is_gain = default.net >= 0.0 || default.summaries > 0;
            let is_cheap = default.dollars <= least * MARGIN && is_gain;
            if !is_cheap || !default.fits(window) || default.summaries > MOST_SUMMARIES {
                failures.push(format!("{}, {window}: {default}; least ${least:.3}", agent.name));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// System prompt and tools alone fill the window: no summary would help, and none is bought.
#[test]
fn full_head_buys_no_summary() {
    let agent = Agent { head: 70_000, ..AGENTS[4] };
    let report = agent.played(60_000, "");
    assert_eq!(report.summaries, 0, "{:?}", report.declined);
}

/// Without a price nothing is cut for money: only where a summary would be due otherwise.
#[test]
fn without_price_cuts_wait_for_window() {
    let agent = Agent { model: "a-model-of-mine", ..AGENTS[0] };
    let [priced, unpriced] = [&AGENTS[0], &agent].map(|agent| Bill::of(&agent.played(80_000, "")));
    assert!(unpriced.largest > priced.largest, "{unpriced} {priced}");
    assert!(unpriced.fits(80_000), "{unpriced} {priced}");
    assert!(unpriced.cuts > 0, "{unpriced}");
    assert!(unpriced.summaries == 0, "{unpriced}");
    assert_eq!(Bill::of(&agent.played(200_000, "")).cuts, 0, "it would pay, but nobody knows");
}
