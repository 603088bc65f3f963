//! `plimsoll replay`: replays recorded sessions through the estimator, and prints how wrong it was.
//!
//! Reads files, connects to nobody, and writes only its output.

mod what_if;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use plimsoll_replay as replay;
use plimsoll_replay::score::{EstimatePair, Scores};
use plimsoll_replay::transcript::TranscriptLine;
use serde_json::{Value, json};

use super::print::{self, CliError, ProgressLine};
use super::serve::provide_gemini_vocabulary;
use crate::config::presets::Preset;
use crate::dialect::models::{Catalogue, Family};
use crate::tokens::classic::ClassicRules;
use crate::tokens::costs::{FamilyCosts, TokenCosts};

/// What is asked for.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ReplayArguments {
    /// Recorded sessions: .jsonl or .jsonl.zst files with one call per line, or folders of them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Also show how wrong the counts of known agents are.
    #[arg(long)]
    compare: bool,
    /// Print every pair of estimate and count as a line of JSON.
    #[arg(long, conflicts_with = "json")]
    pairs: bool,
    /// A Gemma 3 tokenizer.model or tokenizer.json, with which Gemini's tokens are counted, not estimated.
    #[arg(long, value_name = "FILE")]
    gemini_vocabulary: Option<PathBuf>,
    /// Costs of the classes of tokens in place of the fitted ones, as `scripts/estimator/cross_validate.py` writes them:
    /// how good a fit is shows on sessions that it left out.
    #[arg(long, value_name = "FILE", hide = true)]
    costs: Option<PathBuf>,
    /// A configuration: show what it would have cut and compacted in these sessions, when, and at what cost.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "compare", "costs"])]
    policy: Option<PathBuf>,
    /// With --policy: the assumed tokens of each summary.
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "policy")]
    summary_tokens: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &ReplayArguments) -> Result<(), CliError> {
    if let Some(file) = &arguments.gemini_vocabulary {
        provide_gemini_vocabulary(file)?;
    }
    let costs = arguments.costs.as_deref().map(given_costs).transpose()?;
    let mut lines = Vec::new();
    let progress = ProgressLine::begin_silent();
    for file in recordings(&arguments.files)? {
        read(&file, &mut lines, &progress)?;
    }
    drop(progress);
    if !lines.iter().any(|line| line.estimate.is_some() || line.dialect().is_some()) {
        let what = "these files contain no recorded call of a known provider \
                    (anthropic, openai, gemini)";
        return Err(CliError(what.to_owned()));
    }
    if let Some(file) = &arguments.policy {
        return what_if::run(&lines, file, arguments.summary_tokens, arguments.json);
    }
    let rules = if arguments.compare { heuristics()? } else { Vec::new() };
    let progress = ProgressLine::begin_silent();
    let pairs = replay::play(&lines, &Catalogue::new(Vec::new()), &rules, costs, |done| {
        progress.step("replaying call", done, lines.len());
    });
    drop(progress);
    if arguments.pairs {
        for pair in &pairs {
            print::json_text(&format!("{}\n", json!(pair)));
        }
    } else if arguments.json {
        print::json(&for_machines(&pairs, &rules));
    } else {
        print::out(&for_people(&pairs, &rules));
    }
    Ok(())
}

/// The costs of one family's tokens in `file`: `{"family": "claude", "classes": [...], "frequent": [[rank, more], ...]}`.
fn given_costs(file: &Path) -> Result<FamilyCosts, CliError> {
    #[derive(serde::Deserialize)]
    struct CostsFile {
        family: Family,
        classes: Vec<f32>,
        frequent: Vec<(u32, f32)>,
    }
    let text = text(file).map_err(|error| cannot(file, &error))?;
    let parsed: Option<CostsFile> = serde_json::from_str(&text).ok();
    let costs = parsed.and_then(|CostsFile { family, classes, frequent }| {
        let classes = classes.as_slice().try_into().ok()?;
        FamilyCosts::new(family, TokenCosts { classes, frequent: &frequent })
    });
    costs.ok_or_else(|| CliError(format!("{} has no costs of a fitted family", file.display())))
}

fn recordings(named: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| cannot(path, &error))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut inside: Vec<PathBuf> = paths.filter(|path| is_recording(path)).collect();
        if inside.is_empty() {
            let folder = path.display();
            return Err(CliError(format!(
                "{folder} contains no recorded session: no file in it ends in .jsonl or .jsonl.zst"
            )));
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

fn is_recording(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")
}

/// How many times its size a compressed file may become; recordings become 5 to 30 times as large.
const INFLATION: u64 = 64;
/// What it may become whatever its size, and at most, bytes.
const SMALL: u64 = 16 << 20;
const LARGEST: u64 = 256 << 20;

/// The text of a file, decompressed if it is a `.zst` file.
fn text(file: &Path) -> std::io::Result<String> {
    if file.extension().is_none_or(|extension| extension != "zst") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    let compressed = std::fs::File::open(file)?;
    // A few kilobytes can become gigabytes, and those take thirty times as much once they are parsed.
    let limit = (INFLATION * compressed.metadata()?.len()).clamp(SMALL, LARGEST);
    zstd::Decoder::new(compressed)?.take(limit + 1).read_to_string(&mut text)?;
    if text.len() as u64 > limit {
        let why = "it decompresses to more than 64 times its size or 256 MiB: split it, or decompress it first";
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn read(
    file: &Path,
    lines: &mut Vec<TranscriptLine>,
    progress: &ProgressLine,
) -> Result<(), CliError> {
    let text = text(file).map_err(|error| cannot(file, &error))?;
    let count = text.lines().count();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = serde_json::from_str(line).map_err(|error| {
            CliError(format!("{}:{} is not a recorded call: {error}", file.display(), number + 1))
        })?;
        lines.push(line);
        progress.step("reading call", number + 1, count);
    }
    Ok(())
}

fn cannot(path: &Path, error: &std::io::Error) -> CliError {
    CliError(format!("{} cannot be read: {error}", path.display()))
}

/// The rules to compare with: length divided by four for everything, the same for what is new, and two
/// presets.
fn heuristics() -> Result<Vec<ClassicRules>, CliError> {
    let unanchored =
        ClassicRules { name: "length/4 of all".into(), anchored: false, ..ClassicRules::default() };
    let mut rules =
        vec![unanchored, ClassicRules { name: "length/4".into(), ..ClassicRules::default() }];
    for preset in [Preset::MicroCompact, Preset::GeminiCli] {
        let table: toml::Table = preset.text().parse()?;
        let table = table.get("estimate").and_then(|estimate| estimate.get("rules")).cloned();
        rules.extend(table.map(toml::Value::try_into::<ClassicRules>).transpose()?);
    }
    Ok(rules)
}

type PairGroup<'p> = (String, Vec<&'p EstimatePair>);

fn grouped<'p>(
    pairs: &[&'p EstimatePair],
    by: impl Fn(&EstimatePair) -> String,
) -> Vec<PairGroup<'p>> {
    let mut groups: BTreeMap<String, Vec<&EstimatePair>> = BTreeMap::new();
    for pair in pairs {
        groups.entry(by(pair)).or_default().push(pair);
    }
    groups.into_iter().collect()
}

fn as_by(pairs: &[&EstimatePair], rule: usize) -> Vec<EstimatePair> {
    // The pairs with a classic rule's estimates; exports have no text that a rule could count.
    let mut by_rule = Vec::new();
    for pair in pairs {
        if let Some(&tokens) = pair.classic.get(rule) {
            let stayed = pair.tokens.saturating_sub(pair.new);
            let new_tokens = tokens.saturating_sub(stayed);
            by_rule.push(EstimatePair { tokens, new: new_tokens, ..(*pair).clone() });
        }
    }
    by_rule
}

fn scores_by(
    pairs: &[&EstimatePair],
    by: impl Fn(&EstimatePair) -> String,
) -> BTreeMap<String, Scores> {
    let groups = grouped(pairs, by).into_iter();
    groups.map(|(name, pairs)| (name, Scores::from_pairs(pairs))).collect()
}

fn for_machines(pairs: &[EstimatePair], rules: &[ClassicRules]) -> Value {
    let visible: Vec<&EstimatePair> = pairs.iter().filter(|pair| pair.visible).collect();
    let classic = rules.iter().enumerate().map(|(rule, rules)| {
        (rules.name.clone(), json!(Scores::from_pairs(&as_by(&visible, rule))))
    });
    let mut report = json!({
        "all": Scores::from_pairs(visible.iter().copied()),
        "with_hidden_bytes": Scores::from_pairs(pairs),
        "with_proven_hidden_input": Scores::from_pairs(pairs.iter().filter(|pair| pair.excess.is_some())),
        "by_provider": scores_by(&visible, |pair| pair.provider.clone()),
        "by_model": scores_by(&visible, |pair| pair.model.clone()),
        "by_source": scores_by(&visible, |pair| pair.source.clone()),
    });
    if !rules.is_empty() {
        report["classic"] = classic.collect();
    }
    report
}

fn for_people(pairs: &[EstimatePair], rules: &[ClassicRules]) -> String {
    let visible: Vec<&EstimatePair> = pairs.iter().filter(|pair| pair.visible).collect();
    let mut report = String::new();
    let _ = writeln!(
        report,
        "{:<44}{:>6}{:>8}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}{:>7}{:>7}{:>8}{:>8}{:>7}{:>7}{:>7}",
        "absolute errors, percent of the prompt",
        "pairs",
        "context",
        "signed",
        "median",
        "p90",
        "p95",
        "p99",
        "median",
        "p95",
        "p99",
        "new",
        "new",
        "exact",
        "in",
        "band"
    );
    let _ = writeln!(
        report,
        "{:<44}{:>6}{:>8}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}{:>7}{:>7}{:>8}{:>8}{:>7}{:>7}{:>7}",
        "",
        "",
        "median",
        "%",
        "%",
        "%",
        "%",
        "%",
        "tok",
        "tok",
        "tok",
        "median%",
        "p95%",
        "%",
        "band %",
        "± tok"
    );
    for (name, pairs) in grouped(&visible, |pair| format!("{} {}", pair.source, pair.model)) {
        row(&mut report, &name, &Scores::from_pairs(pairs));
    }
    for (name, pairs) in grouped(&visible, |pair| pair.provider.clone()) {
        row(&mut report, &format!("all of {name}"), &Scores::from_pairs(pairs));
    }
    row(&mut report, "all", &Scores::from_pairs(visible.iter().copied()));
    row(&mut report, "all, with calls whose bytes are hidden", &Scores::from_pairs(pairs));
    let proven = Scores::from_pairs(pairs.iter().filter(|pair| pair.excess.is_some()));
    if proven.pairs > 0 {
        row(&mut report, "of these, costlier than an identical call", &proven);
    }
    for (rule, rules) in rules.iter().enumerate() {
        row(
            &mut report,
            &format!("all, by {}", rules.name),
            &Scores::from_pairs(&as_by(&visible, rule)),
        );
    }
    bands(&mut report, &visible);
    report
}

/// The share of calls in their band, by model and size of the new part.
fn bands(out: &mut String, pairs: &[&EstimatePair]) {
    let sizes = ["to 100 new", "to 500", "to 3,000", "more"];
    let _ = write!(out, "\n{:<44}", "in band %, and of how many calls");
    for size in sizes {
        let _ = write!(out, "{size:>16}");
    }
    for (model, pairs) in grouped(pairs, |pair| pair.model.clone()) {
        let _ = write!(out, "\n{model:<44}");
        for band in Scores::from_pairs(pairs).bands_by_size {
            let _ = match band.pairs {
                0 => write!(out, "{:>16}", "–"),
                pairs => write!(out, "{:>9.1} of {pairs:>3}", band.share() * 100.0),
            };
        }
    }
    out.push('\n');
}

fn row(out: &mut String, name: &str, scores: &Scores) {
    let _ = writeln!(
        out,
        "{name:<44}{:>6}{:>8}{:>9.4}{:>9.4}{:>9.3}{:>9.3}{:>8.2}{:>7.0}{:>7.0}{:>7.0}{:>8.2}{:>8.1}{:>7.1}{:>7.1}{:>7.0}",
        scores.pairs,
        scores.median_context_tokens,
        scores.median_signed_pct,
        scores.median_abs_pct,
        scores.p90_abs_pct,
        scores.p95_abs_pct,
        scores.p99_abs_pct,
        scores.median_abs_tokens,
        scores.p95_abs_tokens,
        scores.p99_abs_tokens,
        scores.new_median_abs_pct,
        scores.new_p95_abs_pct,
        scores.exact_share * 100.0,
        scores.band_coverage * 100.0,
        scores.band_median_tokens,
    );
}
