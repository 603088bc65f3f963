//! Recorded sessions through the estimator: how wrong it is, and that it cannot look ahead.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use plimsoll::dialect::models::Catalogue;
use plimsoll::replay;
use plimsoll::replay::score::{Pair, Scores};
use plimsoll::replay::transcript::Line;
use plimsoll::tokens::classic::Rules;

/// The project's own recordings.
fn recorded() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transcripts");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|is| is == "zst")).collect();
    files.sort();
    let unpack = |path| zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let texts = files.iter().map(|path| String::from_utf8(unpack(path)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn lines(texts: &[String]) -> Vec<Line> {
    texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn played(texts: &[String], rules: &[Rules]) -> Vec<Pair> {
    replay::play(&lines(texts), &Catalogue::new(Vec::new()), rules)
}

fn of(pairs: &[Pair], provider: &str) -> Scores {
    Scores::of(pairs.iter().filter(|pair| pair.visible && pair.provider == provider))
}

/// What was measured on these few sessions, and a little room: a rule that breaks is seen here.
#[test]
fn recorded_sessions_are_estimated_well() {
    let pairs = played(&recorded(), &[Rules::default()]);
    let openai = of(&pairs, "openai");
    assert!(openai.pairs >= 15 && openai.median_abs_pct == 0.0, "{openai:?}");
    assert!(openai.exact_share > 0.8, "{openai:?}");
    let anthropic = of(&pairs, "anthropic");
    assert!(anthropic.pairs >= 35 && anthropic.median_abs_pct < 0.05, "{anthropic:?}");
    let gemini = of(&pairs, "gemini");
    assert!(gemini.pairs >= 70 && gemini.median_abs_pct < 0.1, "{gemini:?}");
    let classic = pairs.iter().filter(|pair| pair.visible);
    let classic: Vec<Pair> =
        classic.map(|pair| Pair { tokens: pair.classic[0], ..pair.clone() }).collect();
    let ours = Scores::of(pairs.iter().filter(|pair| pair.visible));
    assert!(ours.median_abs_pct * 2.0 < Scores::of(&classic).median_abs_pct);
}

/// What is reported of the last call of a session, or said in it, changes no estimate before.
#[test]
fn an_estimate_never_knows_what_comes_after_it() {
    let texts = recorded();
    let whole = played(&texts, &[]);
    let latest = |lines: &[Line]| (0..lines.len()).max_by_key(|at| lines[*at].at()).unwrap();
    let last = latest(&lines(&texts));
    let mut changed: serde_json::Value = serde_json::from_str(&texts[last]).unwrap();
    changed["usage"]["input_total"] = 7.into();
    changed["usage"]["output"] = 7.into();
    let mut other = texts.clone();
    other[last] = changed.to_string();
    let other = played(&other, &[]);
    assert_eq!(whole.len(), other.len());
    let said = |pairs: &[Pair]| pairs.iter().map(|pair| pair.tokens).collect::<Vec<_>>();
    assert_eq!(said(&whole), said(&other));
}
