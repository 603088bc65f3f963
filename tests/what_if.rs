//! What a policy would have done to recorded sessions, with sessions whose sums can be computed by hand.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use plimsoll::config::{self, ConfigSources};
use plimsoll::context::plan::Change;
use plimsoll_replay::transcript::TranscriptLine;
use plimsoll_replay::what_if::{self, WhatIfOptions, WhatIfReport};
use serde_json::json;

/// Tokens of the result that each call adds; some words come with it.
const RESULT: usize = 3_000;

/// A session of one tool loop: every call adds a large result, and the provider caches everything before it. With fewer
/// files than calls, the first file is read again after the last.
fn session(calls: u64, files: u64) -> Vec<TranscriptLine> {
    session_of(("gpt-4.1", "openai"), calls, files, RESULT)
}

/// The same with another model, and results of this many tokens.
fn session_of(of: (&str, &str), calls: u64, files: u64, tokens: usize) -> Vec<TranscriptLine> {
    recorded(of, calls, files, tokens, |_| &[])
}

/// The same as a recording, with flags for each call. `cold`: of what was sent before, the cache has only system prompt
/// and tools.
fn recorded(
    (model, provider): (&str, &str),
    calls: u64,
    files: u64,
    tokens: usize,
    flags: fn(u64) -> &'static [&'static str],
) -> Vec<TranscriptLine> {
    let (result, tokens) = ("word ".repeat(tokens), tokens as u64);
    let line = |call: u64| {
        let mut parts = vec![json!({ "role": "user", "kind": "text", "text": "Go on." })];
        if call > 0 {
            let arguments = format!(r#"{{"path":"file-{}"}}"#, call % files);
            parts = vec![
                json!({ "role": "assistant", "kind": "tool_use", "name": "read", "text": arguments, "reply": true }),
                json!({ "role": "user", "kind": "tool_result", "name": "read", "text": format!("{call} {result}") }),
            ];
        }
        let input = 5_000 + call * (tokens + 100);
        let read = match call {
            0 => 0,
            _ if flags(call).contains(&"cold") => 4_000,
            _ => input - tokens - 100,
        };
        let written = if provider == "anthropic" { input - read } else { 0 };
        let usage = json!({
            "input_total": input, "cache_read": read, "cache_write": written, "output": 50, "reasoning": 0,
        });
        json!({
            "session": "s", "source": "test", "model": model, "provider": provider, "ts": call * 1_000,
            "flags": flags(call), "new_parts": parts, "usage": usage,
        })
    };
    (0..calls).map(|call| serde_json::from_value(line(call)).unwrap()).collect()
}

fn played(name: &str, policy: &str, calls: u64) -> WhatIfReport {
    played_of(name, policy, &session(calls, calls))
}

fn played_of(name: &str, policy: &str, session: &[TranscriptLine]) -> WhatIfReport {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    std::fs::write(&file, policy).unwrap();
    let variables = vec![("HOME".to_owned(), "/home/somebody".to_owned())];
    let sources = ConfigSources { file: Some(file), variables, ..ConfigSources::default() };
    let loaded = config::load(&sources).unwrap();
    let options = WhatIfOptions {
        policy: loaded.config.policy.clone(),
        output_reserve: loaded.config.output_reserve,
        catalogue: loaded.config.catalogue.clone(),
        summary_tokens: 500,
    };
    what_if::play(session, &options, |_| ())
}

#[test]
fn idle_policy_changes_nothing() {
    let report = played("nothing", "[prune]\ngate = []\n[compact]\nengine = \"off\"\n", 30);
    assert_eq!(report.calls, 30);
    assert_eq!(report.priced_calls, 30);
    assert_eq!(report.under_policy, report.as_it_was);
    assert!(report.as_it_was.dollars > 0.0, "{report:?}");
    assert!(report.events.is_empty(), "{report:?}");
    // 30 calls, each with 5,000 tokens and what earlier calls added.
    assert_eq!(report.as_it_was.input, 30 * 5_000 + (0..30).sum::<u64>() * 3_100);
}

#[test]
fn old_results_are_cut_in_batches() {
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 9000\nprotect_messages = 0\nmin_saving_tokens = 11000\n[compact]\nengine = \"off\"\n";
    let report = played("prune", policy, 30);
    let cuts: Vec<u64> = report.events.iter().map(|event| event.call).collect();
    assert!(report.events.iter().all(|event| event.change == Change::Cut), "{report:?}");
    // Behind the protected results, four results are needed for a cut.
    assert!(cuts.len() >= 16, "{cuts:?}");
    assert!((6..=8).contains(&cuts[0]), "{cuts:?}");
    let batches = cuts.chunk_by(|one, other| one == other).map(<[u64]>::len);
    assert!(batches.clone().all(|batch| batch >= 4), "{cuts:?}");
    // Each cut result is missing in every later call.
    let left_out: u64 = cuts.iter().map(|call| (31 - call) * 2_900).sum();
    let (before, after) = (report.as_it_was.input, report.under_policy.input);
    assert!(before - after > left_out, "{report:?}");
    assert!(before - after < left_out * 12 / 10, "{report:?}");
    assert!(report.savings.removed.abs_diff(before - after) * 100 < before - after, "{report:?}");
    // A cut breaks the cache from its place on.
    assert!(report.savings.reprocessed > 0, "{report:?}");
    assert!(report.savings.money.broken > 0.0, "{report:?}");
    assert!(report.under_policy.cache_read < report.as_it_was.cache_read, "{report:?}");
}

/// The ledger's net saving equals the difference in the cost of the calls: the claim is what was left out, and what a
/// cut broke is what was processed again.
#[test]
fn net_saving_is_drop_in_call_costs() {
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 9000\nprotect_messages = 0\nmin_saving_tokens = 11000\n[compact]\nengine = \"off\"\n";
    // Sometimes the cache is cold where nothing is cut. If something were cut there, the cut would be taken for the
    // cause.
    let flags: fn(u64) -> &'static [&'static str] =
        |call| if [19, 27].contains(&call) { &["cold"] } else { &[] };
    for (model, provider) in
        [("gpt-4.1", "openai"), ("claude-sonnet-4-5", "anthropic"), ("gemini-2.5-pro", "gemini")]
    {
        let session = recorded((model, provider), 30, 30, RESULT, flags);
        let report = played_of(&format!("net-{provider}"), policy, &session);
        let less = report.as_it_was.dollars - report.under_policy.dollars;
        let net = report.savings.net;
        assert!(less > 0.0, "{model}: {net} is not {less}");
        assert!((net - less).abs() < less / 500.0, "{model}: {net} is not {less}");
        let left_out = report.as_it_was.input - report.under_policy.input;
        assert!(report.savings.removed.abs_diff(left_out) <= report.calls, "{model}: {report:?}");
    }
}

/// A call with more cuts than a turn stores reports all of them, and their total effect.
#[test]
fn batch_with_more_cuts_than_turn_stores_is_reported_whole() {
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 900\nprotect_messages = 0\nmin_saving_tokens = 25000\n[compact]\nengine = \"off\"\n";
    let report =
        played_of("large-batch", policy, &session_of(("gpt-4.1", "openai"), 120, 120, 300));
    assert_eq!(report.events.len() as u64, report.results_cut, "{report:?}");
    let batches = report.events.chunk_by(|one, other| one.call == other.call);
    assert!(batches.map(<[_]>::len).max() > Some(80), "{report:?}");
    let less = report.as_it_was.dollars - report.under_policy.dollars;
    let (net, broken) = (report.savings.net, report.savings.money.broken);
    assert!((net - less).abs() < broken / 100.0, "{net} is not {less}, {broken} broken");
}

/// A cut result whose call is repeated later is counted: the agent would have had to call again.
#[test]
fn calls_repeated_after_their_result_was_cut_are_counted() {
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 9000\nprotect_messages = 0\nmin_saving_tokens = 11000\n[compact]\nengine = \"off\"\n";
    let never = played_of("never-again", policy, &session(30, 30));
    assert!(never.results_cut >= 16, "{never:?}");
    assert!(never.requested_again == 0, "{never:?}");
    assert_eq!(never.results_cut, never.events.len() as u64);
    // Each of ten files is read three times. What is cut of the first two readings is called again.
    let repeats = played_of("again", policy, &session(30, 10));
    assert_eq!(repeats.results_cut, never.results_cut, "{repeats:?}");
    let read_twice = repeats.events.iter().filter(|event| event.call <= 20).count() as u64;
    assert!(repeats.requested_again >= read_twice - 4, "{repeats:?}");
    assert!(repeats.requested_again < repeats.results_cut, "{repeats:?}");
}

#[test]
fn full_window_is_compacted_and_summary_cost_is_counted() {
    let policy = "[prune]\ngate = []\n[model.\"gpt-4.1\"]\nwindow_tokens = 60000\n[compact]\nengine = \"summary\"\n";
    let report = played("compact", policy, 40);
    let compacted = report.events.iter().filter(|event| event.change == Change::Compacted);
    // Seven results fit after each compaction: 40 calls fill the window at least three times.
    assert!(compacted.clone().count() >= 3, "{report:?}");
    assert!(compacted.clone().all(|event| event.tokens_after < 1_000), "{report:?}");
    assert!(report.summaries >= 2, "{report:?}");
    assert!(report.spent_on_summaries.dollars > 0.0, "{report:?}");
    assert!(report.under_policy.input * 2 < report.as_it_was.input, "{report:?}");
}

/// Many recordings have the input but not the output of a call. Such a call is no anchor, but its input was paid for,
/// and what a policy leaves out of it is saved.
#[test]
fn input_of_call_with_unknown_output_is_counted() {
    let flags: fn(u64) -> &'static [&'static str] =
        |call| if call % 4 == 0 { &[] } else { &["output_unreliable"] };
    let session = recorded(("gpt-4.1", "openai"), 30, 30, RESULT, flags);
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 9000\nprotect_messages = 0\nmin_saving_tokens = 11000\n[compact]\nengine = \"off\"\n";
    let poor = played_of("poor", policy, &session);
    let whole = played("well-recorded", policy, 30);
    assert_eq!(poor.calls, whole.calls);
    assert_eq!(poor.as_it_was, whole.as_it_was);
    let left_out = |report: &WhatIfReport| report.as_it_was.input - report.under_policy.input;
    assert!(
        left_out(&poor).abs_diff(left_out(&whole)) * 50 < left_out(&whole),
        "{poor:?} {whole:?}"
    );
}

/// Large results in a window for six of them, the newest two protected. Under pressure, one result could be cut in
/// each turn, which would break the cache each time and make room for one turn only.
#[test]
fn one_cut_makes_room_for_long() {
    let session = session_of(("claude-sonnet-4-5", "anthropic"), 30, 30, 25_000);
    let window = "[model.\"claude-sonnet-4-5\"]\nwindow_tokens = 150000\n";
    let breaks = |report: &WhatIfReport| {
        let mut calls: Vec<u64> = report.events.iter().map(|event| event.call).collect();
        calls.dedup();
        calls.len()
    };
    let cost =
        |report: &WhatIfReport| report.under_policy.dollars + report.spent_on_summaries.dollars;
    let dripping = played_of("drips", &format!("{window}[prune]\nlow_water = 1.0\n"), &session);
    let batched = played_of("batches", window, &session);
    let report = (breaks(&dripping), breaks(&batched), cost(&dripping), cost(&batched));
    assert!(report.0 > 20, "{report:?}");
    assert!(report.1 * 2 <= report.0, "{report:?}");
    assert!(report.3 < 0.8 * report.2, "{report:?}");
}

/// Without a price cuts wait until a summary would be used otherwise. Until then none is prepared for them.
#[test]
fn waiting_cut_prepares_no_summary() {
    let session = session_of(("a-model-of-mine", "openai"), 60, 60, 2_000);
    let window = "[model.\"a-model-of-mine\"]\nwindow_tokens = 60000\n";
    let report = played_of("waiting", window, &session);
    assert!(report.declined["no_gain"] > 5, "{report:?}");
    assert!(report.results_cut > 10, "{report:?}");
    assert_eq!(report.summaries, 0, "{report:?}");
}

/// A new cut breaks the cache from its place in what is sent, not in what came.
#[test]
fn new_cut_breaks_cache_from_its_place_in_sent_request() {
    let policy = "[prune]\ngate = [\"always\"]\nprotect_tokens = 9000\nprotect_messages = 0\nmin_saving_tokens = 2000\n[compact]\nengine = \"off\"\n";
    let report = played("one-by-one", policy, 30);
    let calls = report.events.iter().map(|event| event.call);
    let late = calls.filter(|call| *call > 10).count() as u64;
    assert!(late >= 15, "{report:?}");
    // Each time the result after it is processed again, wherever it was in the whole history.
    assert!(report.savings.reprocessed > late * 3_000, "{}", report.savings.reprocessed);
}

/// As in the proxy: a request that does not fit uses the prepared summary, which covers one result. The next one is not
/// written before more was added.
#[test]
fn prepared_summary_is_used_before_another_is_written() {
    let policy = "[prune]\ngate = []\n[model.\"gpt-4.1\"]\nwindow_tokens = 60000\n[compact]\nengine = \"summary\"\nprepare = 0.5\n";
    let report = played_of("prepared", policy, &session_of(("gpt-4.1", "openai"), 8, 8, 15_000));
    let before: Vec<(u64, u64)> =
        report.events.iter().map(|event| (event.call, event.tokens_before)).collect();
    assert!(before.len() >= 3, "{before:?}");
    assert!((15_000..20_000).contains(&before[0].1), "{before:?}");
    assert!(before.is_sorted_by(|one, next| one.0 < next.0), "one in each request: {before:?}");
}

/// As in the proxy, the reason is reported if a compaction cannot be made.
#[test]
fn refused_compactions_have_reasons() {
    let policy = "[prune]\ngate = []\n[model.\"gemini-2.5-pro\"]\nwindow_tokens = 60000\n[compact]\nengine = \"provider\"\n";
    let session = session_of(("gemini-2.5-pro", "gemini"), 40, 40, RESULT);
    let report = played_of("no-provider", policy, &session);
    assert!(report.summaries == 0, "{:?}", report.declined);
    assert!(report.declined["provider"] > 10, "{:?}", report.declined);
}
