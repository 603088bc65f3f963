//! `plimsoll replay --policy FILE`: what a policy would have done to recorded sessions, as text.
//!
//! Changes of one kind, to one call and for one reason, are one line. Must not know how they were found.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_replay::transcript::TranscriptLine;
use plimsoll_replay::what_if::{self, WhatIfEvent, WhatIfOptions, WhatIfReport};

use crate::cli::print::{self, CliError, ProgressLine};
use crate::config::{self, ConfigSources};

/// The most changes that are listed individually; JSON has all.
const MOST: usize = 40;

pub(super) fn run(
    lines: &[TranscriptLine],
    file: &Path,
    summary_tokens: u32,
    as_json: bool,
) -> Result<(), CliError> {
    // Only the file counts: this machine's environment configures its own Plimsoll.
    let home = std::env::var("HOME").map(|home| ("HOME".to_owned(), home)).ok();
    let sources = ConfigSources {
        file: Some(file.to_owned()),
        variables: home.into_iter().collect(),
        ..ConfigSources::default()
    };
    let loaded = config::load(&sources)?;
    let without = lines.iter().filter(|line| !line.has_text()).count();
    if without == lines.len() {
        return Err(CliError(
            "these recordings have no content, so nothing in them could be cut or compacted. Export with \
             --content, if content.keep = true stored it"
                .to_owned(),
        ));
    }
    if without > 0 {
        print::note(&format!(
            "{without} of {} calls have no recorded content: they are left out",
            lines.len()
        ));
    }
    let options = WhatIfOptions {
        policy: loaded.config.policy.clone(),
        output_reserve: loaded.config.output_reserve,
        catalogue: loaded.config.catalogue.clone(),
        summary_tokens,
    };
    let progress = ProgressLine::begin_silent();
    let report = what_if::play(lines, &options, |done| {
        progress.step("replaying call", done, lines.len());
    });
    drop(progress);
    if as_json {
        print::json(&report);
    } else {
        print::out(&text(&report, summary_tokens));
    }
    Ok(())
}

fn text(report: &WhatIfReport, summary_tokens: u32) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} calls with reported usage, {} of them with a known price",
        report.calls, report.priced_calls
    );
    let _ =
        writeln!(text, "{:<24}{:>16}{:>18}{:>12}", "", "input tokens", "read from cache", "cost");
    let summaries = &report.spent_on_summaries;
    for (name, spent) in [
        ("as it was", &report.as_it_was),
        ("under this policy", &report.under_policy),
        ("  summaries", summaries),
    ] {
        let _ = writeln!(
            text,
            "{name:<24}{:>16}{:>18}{:>12}",
            spent.input,
            spent.cache_read,
            format!("${:.2}", spent.dollars)
        );
    }
    let saved = report.as_it_was.dollars - report.under_policy.dollars - summaries.dollars;
    let share = saved * 100.0 / report.as_it_was.dollars.max(f64::MIN_POSITIVE);
    let _ = writeln!(text, "{:<24}{:>46} ({share:.1} %)", "saved", format!("${saved:.2}"));
    let savings = &report.savings;
    let _ = writeln!(
        text,
        "tool results: {} tokens not sent, in {} calls; {} tokens processed again because the cache \
         broke (${:.2})",
        savings.removed, savings.pruned_turns, savings.reprocessed, savings.money.broken
    );
    let _ = writeln!(
        text,
        "results cut: {}; {} of them requested again later, with the same arguments ({:.1} %)",
        report.results_cut,
        report.requested_again,
        report.re_read_rate() * 100.0
    );
    let _ = writeln!(
        text,
        "summaries: {} written, each counted as {summary_tokens} tokens",
        report.summaries
    );
    if !report.declined.is_empty() {
        let declined = report.declined.iter().map(|(why, times)| format!("{why} {times}"));
        let _ = writeln!(text, "decided against: {}", declined.collect::<Vec<_>>().join(", "));
    }
    let batches = batches(&report.events);
    if !batches.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<22}{:<38}{:>6}  {:<12}{:<14}{:>6}{:>12}{:>12}",
            "when", "session", "call", "change", "why", "times", "tokens", "after"
        );
    }
    for EventBatch { first, times, before, after } in batches.iter().take(MOST) {
        let _ = writeln!(
            text,
            "{:<22}{:<38}{:>6}  {:<12}{:<14}{times:>6}{before:>12}{after:>12}",
            when(first.at),
            first.session,
            first.call,
            first.change.as_ref(),
            first.why.as_ref(),
        );
    }
    if batches.len() > MOST {
        let _ = writeln!(text, "… and {} more (--json lists all)", batches.len() - MOST);
    }
    text
}

/// Changes of one kind, to one call and for one reason.
struct EventBatch<'e> {
    first: &'e WhatIfEvent,
    times: usize,
    /// Tokens before all of them, and after.
    before: u64,
    after: u64,
}

fn batches(events: &[WhatIfEvent]) -> Vec<EventBatch<'_>> {
    let mut batches = Vec::new();
    let chunks = events.chunk_by(|one, other| {
        (one.call, one.change, one.why) == (other.call, other.change, other.why)
            && one.session == other.session
    });
    for batch in chunks {
        if let Some(first) = batch.first() {
            batches.push(EventBatch {
                first,
                times: batch.len(),
                before: batch.iter().map(|event| event.tokens_before).sum(),
                after: batch.iter().map(|event| event.tokens_after).sum(),
            });
        }
    }
    batches
}

fn when(at: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn re_read_rate_is_printed() {
        let line = |results_cut, requested_again| {
            let report = WhatIfReport { results_cut, requested_again, ..WhatIfReport::default() };
            let text = text(&report, 500);
            text.lines().find(|line| line.starts_with("results cut")).unwrap().to_owned()
        };
        let of = line(40, 3);
        assert!(of.starts_with("results cut: 40; 3 of them"), "{of}");
        assert!(of.ends_with("(7.5 %)"), "{of}");
        assert!(line(0, 0).ends_with("(0.0 %)"), "nothing was cut");
    }
}
