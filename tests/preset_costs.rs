//! The head of each preset's file says what the preset saves. `make presets` measures it with the recorded sessions of
//! `tests/data/transcripts/long` (`PLIMSOLL_PRESETS=1`, takes minutes); `PLIMSOLL_BLESS=1` writes the result. Otherwise
//! the test only checks that each file states the saving for these sessions and calls.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use plimsoll::config::presets::Preset;
use plimsoll::config::{self, ConfigSources};
use plimsoll_replay::transcript::TranscriptLine;
use plimsoll_replay::what_if::{self, WhatIfOptions, WhatIfReport};

/// The assumed size of a summary, tokens.
const SUMMARY: u32 = 2_000;
/// The licences of the recorded sessions. All of them allow publication.
const LICENCES: [&str; 2] = ["CC0-1.0", "MIT"];
/// The first words of the statement.
const BEGINS: &str = "# What it saves: ";
/// Its second line.
const CONTINUES: &str = "# cost of summaries (below 0 it costs more).";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn recorded() -> Vec<TranscriptLine> {
    let folder = root().join("tests/data/transcripts/long");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|it| it.extension().is_some()).collect();
    files.sort();
    let unpack = |path: &PathBuf| zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let texts = files.iter().map(|path| String::from_utf8(unpack(path)).unwrap());
    let parse = |text: String| -> Vec<TranscriptLine> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    texts.flat_map(parse).collect()
}

fn played(preset: Preset, lines: &[TranscriptLine]) -> WhatIfReport {
    let variables = [("HOME", "/home/somebody"), ("PLIMSOLL_PRESET", preset.name())];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let sources = ConfigSources { variables: variables.into(), ..ConfigSources::default() };
    let loaded = config::load(&sources).unwrap();
    let options = WhatIfOptions {
        policy: loaded.config.policy.clone(),
        output_reserve: loaded.config.output_reserve,
        catalogue: loaded.config.catalogue.clone(),
        summary_tokens: SUMMARY,
    };
    what_if::play(lines, &options, |_| ())
}

/// The result as comment lines.
fn described(report: &WhatIfReport, sessions: usize) -> String {
    let dollars = report.as_it_was.dollars;
    let after = report.under_policy.dollars + report.spent_on_summaries.dollars;
    let millions = |tokens: u64| format!("{:.1}", tokens as f64 / 1e6);
    let first = format!(
        "{BEGINS}over {sessions} recorded sessions, {} calls, ${dollars:.0}: net saving {:+.1} % after the\n{CONTINUES}",
        report.calls,
        (dollars - after) * 100.0 / dollars
    );
    let (cut, share) = (report.results_cut, report.re_read_rate() * 100.0);
    let cleared = match cut {
        0 => "# Cuts no results".to_owned(),
        _ => format!("# Cuts {cut} results, {share:.0} % of them asked for again"),
    };
    let savings = &report.savings;
    let tokens = match cut {
        0 => String::new(),
        _ => format!(
            ": {} M tokens not sent, {} M processed again where the cache broke",
            millions(savings.removed),
            millions(savings.reprocessed)
        ),
    };
    format!(
        "{first}\n{cleared}{tokens}.\n# Summaries: {}. `make presets` measures it.\n",
        report.summaries
    )
}

/// The numbers in a text, in order.
fn numbers(text: &str) -> Vec<f64> {
    let is_of_number = |c: char| c.is_ascii_digit() || "+-.".contains(c);
    let pieces = text.split(|c: char| !is_of_number(c));
    pieces.filter_map(|word| word.trim_end_matches('.').parse().ok()).collect()
}

/// The statement in a preset's file.
fn documented(text: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with(BEGINS));
    lines.take(4).map(|line| format!("{line}\n")).collect()
}

fn check(preset: Preset) {
    let lines = recorded();
    let sessions = lines.iter().map(|line| line.session.as_str()).collect::<HashSet<_>>().len();
    let [bless, measure] =
        ["BLESS", "PRESETS"].map(|name| std::env::var_os(format!("PLIMSOLL_{name}")).is_some());
    if !(bless || measure) {
        let documented = documented(preset.text());
        let calls = lines.iter().filter(|line| line.actual().is_some()).count();
        let of = format!("over {sessions} recorded sessions, {calls} calls,");
        assert!(documented.starts_with(BEGINS), "{of}\n{documented}");
        assert!(documented.contains(&of), "{of}\n{documented}");
        assert!(documented.contains(CONTINUES), "{documented}");
        assert!(documented.contains("# Summaries: "), "{documented}");
        return;
    }
    let measured = described(&played(preset, &lines), sessions);
    let file = root().join(format!("config/presets/{}.toml", preset.name()));
    let text = std::fs::read_to_string(&file).unwrap();
    let documented = documented(&text);
    if bless {
        let text = match documented.is_empty() {
            true => text.replacen("\n\n", &format!("\n{measured}\n"), 1),
            false => text.replace(&documented, &measured),
        };
        std::fs::write(&file, text).unwrap();
        return;
    }
    let (claimed, found) = (numbers(&documented), numbers(&measured));
    let difference =
        format!("{}: the file says\n{documented}and measured is\n{measured}", preset.name());
    assert!(claimed.len() == found.len(), "{difference}");
    assert!(found.len() >= 4, "{difference}");
    // A better estimate changes the numbers a little.
    let is_near =
        |(claimed, found): (&f64, &f64)| (claimed - found).abs() <= 0.3 + 0.05 * found.abs();
    assert!(claimed.iter().zip(&found).all(is_near), "{difference}");
}

#[test]
fn dexto_preset_file_states_its_cost() {
    check(Preset::Dexto);
}

#[test]
fn opencode_preset_file_states_its_cost() {
    check(Preset::Opencode);
}

#[test]
fn gemini_cli_preset_file_states_its_cost() {
    check(Preset::GeminiCli);
}

#[test]
fn claude_code_preset_file_states_its_cost() {
    check(Preset::ClaudeCode);
}

#[test]
fn micro_compact_preset_file_states_its_cost() {
    check(Preset::MicroCompact);
}

#[test]
fn llxprt_preset_file_states_its_cost() {
    check(Preset::Llxprt);
}

/// The README lists the files, where they are from, with the commit, and their licences.
#[test]
fn every_recorded_session_has_its_source_in_readme() {
    let folder = root().join("tests/data/transcripts");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let in_folder = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".zst")).collect::<Vec<String>>()
    };
    let names = [in_folder(&folder), in_folder(&folder.join("long"))].concat();
    assert!(names.len() > 20, "only {} sessions found", names.len());
    for name in names {
        let source = name.split("__").next().unwrap();
        let mut rows = readme.lines().filter(|line| line.starts_with('|'));
        let row = rows.find(|row| row.contains(&format!("`{source}*`")));
        let row = row.unwrap_or_else(|| panic!("{name} has no row in README.md"));
        let [_, _, from, licence, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("files, from and licence: {row}");
        };
        assert!(is_source(from), "repository and commit: {row}");
        assert!(LICENCES.contains(&licence), "licence: {row}");
    }
}

/// Whether a text names a repository and a commit: `github.com/owner/name, …, 47dca0eea`.
fn is_source(text: &str) -> bool {
    let named = text.split_once(", ").zip(text.rsplit_once(", "));
    named.is_some_and(|((repository, _), (_, commit))| {
        let path = repository.strip_prefix("github.com/").and_then(|it| it.split_once('/'));
        let is_repository = path.is_some_and(|(owner, name)| !owner.is_empty() && !name.is_empty());
        let is_hex = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_repository && commit.len() >= 7 && is_hex
    })
}
