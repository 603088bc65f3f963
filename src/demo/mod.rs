//! The demo: an agent in front of the real proxy and a scripted provider behind it, over real sockets,
//! without a key or a network.
//!
//! Above all floors; only the command line imports it. Everything it shows comes from the admin API,
//! available to anyone.

mod report;
mod session;
mod story;

use std::io;
use std::net::SocketAddr;

use serde_json::Value;

use crate::context::budget::grouped;
use crate::context::plan::RewriteSummary;
use crate::dialect::models::Family;
use crate::tokens::bpe;
use report::DemoReport;
use session::{Agent, Speaks, Step};

/// Counts the tokens of a text with GPT's tokenizer, for the scripted provider; one token per four bytes if
/// the tokenizer is not available.
pub fn count_tokens(text: &str) -> usize {
    bpe::load(Family::O200k).map_or(text.len() / 4, |o200k| o200k.count(text))
}

/// Plays agents' sessions through the proxy at `listen`, and prints what the admin listener (accessed with `token`) reports:
/// their story, or with `is_full` everything: one session in each of two protocols, one with a long task, and one that reads
/// more than its window holds, after each turn, and at the end how accurate the estimates were and what rewriting saved.
///
/// # Errors
/// If one of the two does not respond as expected.
pub async fn play(
    listen: SocketAddr,
    admin: SocketAddr,
    token: &str,
    is_full: bool,
    out: &mut (dyn FnMut(&str) + Send),
) -> io::Result<()> {
    let http = session::http();
    let base = format!("http://{listen}");
    let mut report = DemoReport::from(&http, admin, token).await?;
    if !is_full {
        return story::play(&http, &base, &mut report, out).await;
    }
    let mut rows = Vec::new();
    for mut agent in [
        Agent::new(Speaks::Anthropic, "claude-sonnet-4-6", "demo-anthropic"),
        Agent::new(Speaks::Responses, "gpt-5.5", "demo-responses"),
    ] {
        let mut call = 0;
        while let Some(Step { sent, reply }) = agent.step(&http, &base).await? {
            call += 1;
            let exchange = report.next(&agent.session).await?;
            let thread = exchange["thread"].as_str().unwrap_or("latest");
            let context = report.context(&agent.session, thread).await?;
            out(&format!(
                "── {}, call {call}\n   sent: {sent}\n   said: “{reply}”\n\n{context}\n",
                agent.model
            ));
            rows.push(row(agent.model, call, &exchange));
        }
    }
    let task = Agent::new(Speaks::Anthropic, "claude-sonnet-4-5", "demo-pruned").forgetful();
    out("── An agent that drops its reasoning and takes many looks at one thing:\n\n");
    fills(task.steady(), &http, &base, &mut report, out, &mut rows).await?;
    let bound = Agent::new(Speaks::Responses, "gpt-5.1", "demo-compacted").long();
    out(
        "── An agent whose reasoning is bound to everything before it, so that nothing may be cut:\n\n",
    );
    fills(bound, &http, &base, &mut report, out, &mut rows).await?;
    out(&format!("{HEADING}{}", rows.concat()));
    out(&format!("\n{EARNED}\n\n{}", report.savings().await?));
    Ok(())
}

/// Plays a session that outgrows its window, with one line per call, and explains what is done about it.
async fn fills(
    mut agent: Agent,
    http: &session::Http,
    base: &str,
    report: &mut DemoReport,
    out: &mut (dyn FnMut(&str) + Send),
    rows: &mut Vec<String>,
) -> io::Result<()> {
    let mut call = 0;
    while let Some(Step { sent, .. }) = agent.step(http, base).await? {
        call += 1;
        let exchange = report.next(&agent.session).await?;
        let done: RewriteSummary = serde_json::from_value(exchange["done"].clone())?;
        let input = tokens(&exchange["usage"]["input"]);
        let window = tokens(&exchange["window"]);
        let changes = done.made.description(done.new);
        let changes = if changes.is_empty() { changes } else { format!("; {changes}") };
        out(&format!("   call {call}: {sent}: {input} of {window} tokens{changes}\n"));
        if done.new.cut + done.new.compacted > 0 {
            let id = exchange["id"].as_str().unwrap_or_default();
            out(&format!("\n{}\n", report.explained(id).await?));
        }
        rows.push(row(agent.model, call, &exchange));
    }
    out("\n");
    Ok(())
}

const HEADING: &str = "Every call: the estimate before it was sent, and the provider's count:\n\
    \n  model              call   estimated      actual   error            method       from cache\n";

/// Explains the sums below it; a test checks it.
const EARNED: &str = "What rewriting saved. Each turn without the old results costs a little less. Breaking the cache costs once,\n\
    and a long task soon earns that back. A summary costs, too: it lets a session continue that would not fit.";

fn tokens(value: &Value) -> String {
    value.as_u64().map_or_else(|| "unknown".into(), grouped)
}

fn number(value: &Value) -> String {
    value.as_i64().map_or_else(|| "unknown".into(), |number| number.to_string())
}

fn row(model: &str, call: u32, exchange: &Value) -> String {
    let ratio = exchange["error_ratio"].as_f64().map(|ratio| format!("({:+.2} %)", ratio * 100.0));
    let error = exchange["error"].as_i64().map_or_else(|| "unknown".into(), |n| format!("{n:+}"));
    let method = exchange["estimate"]["method"].as_str().unwrap_or("none");
    format!(
        "  {model:<18} {call:>4} {:>11} {:>11}   {error:<6} {:<10} {method:<10} {:>11}\n",
        number(&exchange["estimate"]["tokens"]),
        number(&exchange["actual"]),
        ratio.unwrap_or_default(),
        number(&exchange["usage"]["cache_read"]),
    )
}
