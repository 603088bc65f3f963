//! `plimsoll demo` as a user runs it: it needs no key and no network, it shows what the proxy measured, and the savings
//! it reports are what the session would have cost in addition.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

/// A demo that is not ready by then is ended.
const TIMEOUT: Duration = Duration::from_secs(180);

/// One run, and the responses of its admin listener.
struct Demo {
    output: String,
    token: String,
    savings: Value,
    /// The calls of the session that was pruned.
    pruned: Vec<Value>,
}

static DEMO: LazyLock<Demo> = LazyLock::new(|| {
    let program = || Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = program();
    demo.args(["demo", "--full", "--keep"]).env("TMPDIR", temporary.path()).stdout(Stdio::piped());
    let mut child = demo.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut output = String::new();
    let (is_ready, ready) = channel::<()>();
    let pid = child.id().to_string();
    std::thread::spawn(move || {
        if ready.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").arg(pid).status();
        }
    });
    while !output.contains("Ctrl-C ends it.") {
        assert!(out.read_line(&mut output).unwrap() > 0, "it ended: {output}");
    }
    drop(is_ready);
    let (_, link) = output.split_once("Sessions: http://").unwrap();
    let admin = link.lines().next().unwrap();
    let (_, hint) = output.split_once("In another terminal: plimsoll ").unwrap();
    let hint: Vec<&str> = hint.lines().next().unwrap().split(' ').collect();
    let context = program().args(&hint).output().unwrap();
    assert!(context.stdout.starts_with(b"Context Usage: "), "{context:?}");
    let data = Path::new(hint[2]);
    let token = std::fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned();
    let ask = |arguments: &[&str]| {
        let mut asking = program();
        asking.args(arguments).args(["--admin", admin]).env("PLIMSOLL_ADMIN_TOKEN", &token);
        let done = asking.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let savings = serde_json::from_str(&ask(&["savings", "--json"])).unwrap();
    let pruned = ask(&["export", "demo-pruned"]);
    let pruned = pruned.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    out.read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{output}");
    Demo { output, token, savings, pruned }
});

/// The story: on one screen, with everything that happens, and ten lines of result.
#[test]
fn demo_tells_story() {
    let done = Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("demo").output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}");
    for what in
        ["the first estimate", "reasoning is put back", "old results cut, ", "a summary replaces"]
    {
        assert_eq!(
            told.matches(what).count(),
            if what.contains("first") { 2 } else { 1 },
            "{what}: {told}"
        );
    }
    let (_, ending) = told.split_once("What it came to:\n").unwrap();
    assert_eq!(ending.lines().take_while(|line| line.starts_with("  ")).count(), 10, "{ending}");
    assert!(ending.contains("63, of which 0 failed"), "{ending}");
    assert!(told.lines().count() < 50, "{told}");
}

#[test]
fn demo_shows_token_to_no_pipe() {
    assert!(!DEMO.output.contains(&DEMO.token), "{}", DEMO.output);
}

#[test]
fn demo_shows_every_call_estimated_and_counted() {
    let output = &DEMO.output;
    assert_eq!(output.matches("Context Usage: ").count(), 18, "{output}");
    let (_, table) = output.split_once("Every call").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| {
            row.first().is_some_and(|it| it.starts_with("claude-") || it.starts_with("gpt-"))
        })
        .collect();
    assert_eq!(rows.len(), 18 + output.matches("\n   call ").count(), "{table}");
    for row in rows {
        let [estimated, actual, error] =
            [row[2], row[3], row[4]].map(|n| n.parse::<i64>().unwrap());
        assert!(estimated > 0, "{row:?}");
        assert!(actual > 0, "{row:?}");
        assert_eq!(error, estimated - actual, "{row:?}");
    }
    for what in ["tool results cut (", "of reasoning put back (", "1 history compacted (1 new)"] {
        assert!(output.contains(what), "{what}: {output}");
    }
    assert!(!output.contains("refused the rewrite"), "{output}");
    assert!(!output.contains("(lost)"), "{output}");
}

/// The cost of a Claude Sonnet 4.5 call in dollars, for tokens read from the cache, written to it, and processed
/// without it.
fn dollars(read: u64, written: u64, plain: u64) -> f64 {
    (read as f64 * 0.3 + written as f64 * 3.75 + plain as f64 * 3.0) / 1e6
}

/// What the session would have cost in addition without cuts, computed only from the provider's reports: the history
/// grows by what each call added, and the rest is read from the cache. Where a cut hides what a call added, it is that
/// of three calls earlier, because results have three sizes in turn.
fn would_have_cost_more(calls: &[Value]) -> (f64, u64) {
    let reported = |call: &Value, what: &str| call["usage"][what].as_u64().unwrap();
    let (mut more, mut whole, mut brought) = (0.0, 0, Vec::new());
    for (at, call) in calls.iter().enumerate() {
        let [input, read, written] =
            ["input_total", "cache_read", "cache_write"].map(|it| reported(call, it));
        let before = at.checked_sub(1).map_or(0, |at| reported(&calls[at], "input_total"));
        brought.push(if input > before { input - before } else { brought[at - 3] });
        let spent = dollars(read, written, input - read - written);
        if input != whole + brought[at] {
            more += dollars(whole, brought[at], 0) - spent;
        }
        whole += brought[at];
    }
    (more, whole)
}

/// The end of the output is what the ledger has, to the digit. The gain comes from the cuts, and agrees with the
/// additional cost within three percent.
#[test]
fn gain_reported_by_demo_matches_ledger_and_provider() {
    let Demo { output, savings, pruned, .. } = &*DEMO;
    let total = &savings["total"];
    let (_, ending) = output.split_once("What rewriting saved").unwrap();
    let money = |value: &Value| {
        let value = value.as_f64().unwrap();
        format!("{}${:.4}", if value < 0.0 { "-" } else { "" }, value.abs())
    };
    for (name, value) in [
        ("Saved:", &total["money"]["saved"]),
        ("Broken cache:", &total["money"]["broken"]),
        ("Summaries:", &total["summaries"]["dollars"]),
        ("Net:", &total["net"]),
        ("Spent:", &total["money"]["spent"]),
    ] {
        let line = ending.lines().find(|line| line.trim().starts_with(name)).unwrap();
        assert!(line.split_whitespace().any(|word| word == money(value)), "{line}: {value}");
    }
    let net = |of: &Value| of["net"].as_f64().unwrap();
    let sessions = savings["sessions"].as_array().unwrap();
    let session = |name| sessions.iter().find(|it| it["session"] == name).unwrap();
    let (gain, overhead) =
        (net(&session("demo-pruned")["savings"]), net(&session("demo-compacted")["savings"]));
    assert!(net(total) > 0.0, "{total}");
    assert!(gain > 0.0, "{total}");
    assert!(overhead < 0.0, "{total}");
    assert!((gain + overhead - net(total)).abs() < 1e-9, "{savings}");
    let (more, whole) = would_have_cost_more(pruned);
    assert!(whole < 190_000, "it would have fit its window: {whole}");
    assert!(
        (gain - more).abs() < 0.03 * more,
        "reported ${gain:.4}, and it would have cost ${more:.4} more"
    );
}
