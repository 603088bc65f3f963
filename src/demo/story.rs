//! The demo's story: one agent reads on until old results go, another until its history is compacted; then what that came
//! to, in ten lines.
//!
//! Every number is the admin API's, of this run.

use std::fmt::Write as _;
use std::io;

use serde_json::Value;

use super::report::DemoReport;
use super::session::{Agent, Http, Speaks};
use crate::context::budget::grouped;
use crate::context::plan::RewriteSummary;

/// How wide a full window is drawn, in characters.
const BAR: usize = 20;
/// A call at which a context has become fuller by such a share of its window has a line.
const STEPS: u64 = 5;

const FORGETFUL: &str = "An agent reads and reads, and drops the reasoning of its model. The line\n\
     shows how full the model's window is, up to its end at ┃. Only calls at which\n\
     something happens are shown.\n\n";
const BOUND: &str = "\nAnother reads more than its window holds. The provider binds reasoning to\n\
     everything before it, so that nothing may be cut on the way: its history is\n\
     compacted before it overflows.\n\n";

/// Plays both agents, and tells what happens.
pub(super) async fn play(
    http: &Http,
    base: &str,
    report: &mut DemoReport,
    out: &mut (dyn FnMut(&str) + Send),
) -> io::Result<()> {
    let pruned = Agent::new(Speaks::Anthropic, "claude-sonnet-4-5", "demo-pruned");
    let compacted = Agent::new(Speaks::Responses, "gpt-5.1", "demo-compacted");
    let agents = [(FORGETFUL, pruned.forgetful().steady()), (BOUND, compacted.long())];
    let mut calls = 0;
    for (head, mut agent) in agents {
        out(head);
        let mut teller = StoryTeller::default();
        while agent.step(http, base).await?.is_some() {
            let exchange = report.next(&agent.session).await?;
            calls += 1;
            if let Some(line) = teller.line(&exchange)? {
                out(&line);
            }
        }
    }
    out(&ending(&report.history(calls).await?));
    Ok(())
}

/// What was told of a session so far.
#[derive(Default)]
struct StoryTeller {
    calls: u32,
    /// How full the context was, in steps.
    fill: u64,
    has_put_back: bool,
}

impl StoryTeller {
    /// The line of a call; `None` if nothing new happened.
    fn line(&mut self, exchange: &Value) -> io::Result<Option<String>> {
        let done: RewriteSummary = serde_json::from_value(exchange["done"].clone())?;
        let input = exchange["usage"]["input"].as_u64().unwrap_or(0);
        let window = exchange["window"].as_u64().unwrap_or(0).max(1);
        self.calls += 1;
        let mut events = Vec::new();
        if self.calls == 1 {
            events.push("the first estimate, from the request alone".to_owned());
        }
        if done.new.put_back > 0 && !self.has_put_back {
            self.has_put_back = true;
            events.push("dropped reasoning is put back from now on".to_owned());
        }
        if done.new.cut > 0 {
            let removed = grouped(done.removed().cut);
            events.push(format!("{} old results cut, {removed} tokens less", done.new.cut));
        }
        if done.new.compacted > 0 {
            let removed = grouped(done.removed().compacted);
            events.push(format!("a summary replaces the history, {removed} tokens less"));
        }
        let fill = input * STEPS / window;
        let is_fuller = fill > self.fill;
        self.fill = fill;
        if events.is_empty() && !is_fuller {
            return Ok(None);
        }
        let filled = (input as usize * BAR / window as usize).min(BAR);
        let bar = "━".repeat(filled) + &"─".repeat(BAR - filled);
        let error = match exchange["error_ratio"].as_f64() {
            Some(ratio) if ratio.abs() < 0.000_05 => "<0.01%".to_owned(),
            Some(ratio) => format!("{:+.2}%", ratio * 100.0),
            None => String::new(),
        };
        let mut lines = format!(
            "  call {:>2} {bar}┃ {:>7} of {}, estimate {error}\n",
            self.calls,
            grouped(input),
            grouped(window),
        );
        for event in events {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "          → {event}");
        }
        Ok(Some(lines))
    }
}

/// Numbers of the history, by name.
struct StorySums<'h>(&'h Value);

impl StorySums<'_> {
    fn count(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }

    fn real(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(0.0)
    }
}

/// What all calls came to.
fn ending(history: &Value) -> String {
    let sums = StorySums(&history["total"]);
    let summaries = sums.real("summary_dollars");
    let read = sums.count("cache_read") as f64 * 100.0 / sums.count("input").max(1) as f64;
    let estimates = StorySums(&sums.0["estimates"]);
    let median = estimates.real("median") * 100.0;
    let p95 = estimates.real("p95") * 100.0;
    let lines = [
        ("calls", format!("{}, of which {} failed", sums.count("calls"), sums.count("failed"))),
        ("input", format!("{} tokens", grouped(sums.count("input")))),
        ("from the cache", format!("{read:.0}%")),
        (
            "estimates",
            format!("half of them within {:.2}%, 19 of 20 within {p95:.1}%", median.max(0.01)),
        ),
        ("old results", format!("{} cut", sums.count("cut"))),
        ("reasoning", format!("{} pieces put back", sums.count("put_back"))),
        ("compactions", sums.count("compacted").to_string()),
        ("not sent", format!("{} tokens", grouped(sums.count("removed")))),
        (
            "saved",
            format!(
                "${:.2}, after ${summaries:.2} for the summary",
                sums.real("saved") - summaries
            ),
        ),
        ("spent", format!("${:.2}", sums.real("dollars"))),
    ];
    let mut text = "\nWhat it came to:\n".to_owned();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<15} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(teller: &mut StoryTeller, input: u64, done: Value) -> Option<String> {
        let done: RewriteSummary = serde_json::from_value(done).unwrap_or_default();
        let exchange = json!({
            "done": done, "usage": {"input": input}, "window": 200_000, "error_ratio": -0.001,
        });
        teller.line(&exchange).unwrap()
    }

    #[test]
    fn only_news_are_told() {
        let mut teller = StoryTeller::default();
        let first = told(&mut teller, 1_000, json!({})).unwrap();
        assert!(
            first.contains("1,000 of 200,000, estimate -0.10%\n          → the first estimate"),
            "{first}"
        );
        assert_eq!(told(&mut teller, 30_000, json!({})), None);
        let fuller = told(&mut teller, 100_000, json!({})).unwrap();
        assert!(fuller.contains(&("━".repeat(10) + &"─".repeat(10) + "┃")), "{fuller}");
        assert_eq!(told(&mut teller, 101_000, json!({})), None);
        assert_eq!(teller.calls, 4);
    }

    #[test]
    fn story_fits_80_columns() {
        let mut teller = StoryTeller::default();
        let done = json!({"new": {"cut": 20, "put_back": 1, "compacted": 1}});
        let line = told(&mut teller, 199_999, done).unwrap();
        for line in line.lines().chain(FORGETFUL.lines()).chain(BOUND.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn ending_has_ten_lines() {
        let text = ending(&json!({"total": {"calls": 63, "saved": 0.35, "summary_dollars": 0.17}}));
        assert_eq!(text.trim().lines().count(), 11, "a head and ten lines: {text}");
        assert!(text.contains("saved           $0.18, after $0.17 for the summary"), "{text}");
    }
}
