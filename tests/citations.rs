//! Every heading of `docs` that code, configuration, help or documents cite exists.
//!
//! A citation is a file of `docs`, then numbers (1.5, 3.5) or a heading in quotes; it may continue on the next line.
//! Files are read as text. Also checks that the tests in the table of invariants exist.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what went wrong by failing"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where citations are looked for.
const READ: &[&str] = &[
    "core",
    "replay",
    "demo-provider",
    "src",
    "tests",
    "docs",
    "config",
    "benches",
    "deploy",
    "fuzz",
    "scripts",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Cargo.toml",
    "Makefile",
];
/// Recordings of others, build results, downloads.
const LEFT_OUT: &[&str] = &["tests/data", "target", "node_modules", "corpus"];
/// The endings of text files.
const ENDINGS: &[&str] =
    &["rs", "toml", "md", "json", "py", "mjs", "js", "html", "css", "yaml", "yml", "sh", "sql"];
/// Documents that are not in the repository.
const ELSEWHERE: &[&str] = &["providers", "estimator", "deviations", "clients", "design", "style"];

/// The headings of one document: their numbers, and their titles with and without them.
#[derive(Default)]
struct Headings {
    numbers: BTreeSet<String>,
    titles: BTreeSet<String>,
}

impl Headings {
    fn of(text: &str) -> Self {
        let mut found = Self::default();
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.starts_with("```");
            let title = line.trim_start_matches('#').trim();
            if is_code || !line.starts_with('#') || title.is_empty() {
                continue;
            }
            found.titles.insert(title.to_owned());
            if let Some((number, rest)) = title.split_once(' ')
                && is_number(number)
            {
                found.numbers.insert(number.to_owned());
                found.titles.insert(rest.to_owned());
            }
        }
        found
    }
}

fn is_number(word: &str) -> bool {
    word.split('.').all(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()))
}

/// The text without line ends and the comment signs after them, and where each line begins in it.
fn flat(text: &str) -> (String, Vec<usize>) {
    let (mut flat, mut lines) = (String::new(), Vec::new());
    for line in text.lines() {
        lines.push(flat.len());
        let line = line.trim_start();
        let line = ["//!", "///", "//", "#"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark))
            .unwrap_or(line);
        flat.push_str(line.trim());
        flat.push(' ');
    }
    (flat, lines)
}

/// The documents of `docs` that a text cites: place, file and heading.
fn citations(flat: &str) -> Vec<(usize, String, Option<String>)> {
    let mut found = Vec::new();
    for (at, _) in flat.match_indices("docs/") {
        let rest = &flat[at + 5..];
        let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or("");
        let Some(after) = rest[name.len()..].strip_prefix(".md").filter(|_| !name.is_empty())
        else {
            continue;
        };
        let after = after.strip_prefix('`').unwrap_or(after);
        let mut headings = Vec::new();
        let quoted = after.strip_prefix(' ').map(|after| after.trim_start_matches('\\'));
        if let Some(title) = quoted.and_then(|after| after.strip_prefix('"')) {
            let end = title.find('"').unwrap_or(title.len());
            headings.push(title[..end].trim_end_matches('\\').to_owned());
        } else if let Some(mut list) = after.strip_prefix(' ') {
            while let Some(number) = first_number(list) {
                headings.push(number.to_owned());
                let Some(next) = list[number.len()..].strip_prefix(", ") else { break };
                list = next;
            }
        }
        if headings.is_empty() {
            found.push((at, name.to_owned(), None));
        }
        found.extend(headings.into_iter().map(|heading| (at, name.to_owned(), Some(heading))));
    }
    found
}

fn first_number(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    (!number.is_empty() && is_number(number)).then_some(number)
}

/// Citations of documents that are not in the repository.
fn elsewhere(flat: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for name in ELSEWHERE {
        for (at, cited) in flat.match_indices(&format!("{name}.md")) {
            // Neither a file of `docs`, nor one with a longer name.
            let before = &flat[..at];
            let is_longer = before.ends_with(|c: char| c == '-' || c == '_' || c.is_alphanumeric());
            if !is_longer && !before.ends_with("docs/") {
                found.push((at, cited.to_owned()));
            }
        }
    }
    found.extend(flat.match_indices("../shared").map(|(at, cited)| (at, cited.to_owned())));
    for (at, sign) in flat.match_indices('§') {
        let is_cited = flat[at + sign.len()..].starts_with(|c: char| c.is_ascii_digit());
        let previous: Vec<&str> = flat[..at].split_whitespace().rev().take(2).collect();
        if is_cited && previous.get(1).is_none_or(|word| !word.ends_with("RFC")) {
            found.push((at, "a bare section sign".to_owned()));
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> BTreeMap<String, Headings> {
    let files = files().into_iter().filter(|file| file.starts_with("docs/"));
    let named = files.filter_map(|file| {
        Some((file.strip_prefix("docs/")?.strip_suffix(".md")?.to_owned(), file))
    });
    named.map(|(name, file)| (name, Headings::of(&read(&file)))).collect()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All text files that are checked, by their path from the root.
fn files() -> Vec<String> {
    fn walk(path: &Path, found: &mut Vec<String>) {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if LEFT_OUT.iter().any(|left| name == *left || name.ends_with(&format!("/{left}"))) {
            return;
        }
        if path.is_dir() {
            let mut inside: Vec<PathBuf> =
                std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            inside.sort();
            inside.iter().for_each(|path| walk(path, found));
            return;
        }
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_none_or(|ending| ENDINGS.contains(&ending))
            && std::fs::read_to_string(path).is_ok()
        {
            found.push(name);
        }
    }
    let mut found = Vec::new();
    READ.iter().for_each(|name| walk(&root().join(name), &mut found));
    found
}

/// The errors in a text's citations, and the number of good ones.
fn faults(file: &str, text: &str, documents: &BTreeMap<String, Headings>) -> (Vec<String>, usize) {
    let (flat, lines) = flat(text);
    let place = |at: usize| format!("{file}:{}", lines.partition_point(|first| *first <= at));
    let mut wrong = Vec::new();
    let mut resolved = 0;
    for (at, name, heading) in citations(&flat) {
        let Some(headings) = documents.get(&name) else {
            wrong.push(format!("{}: there is no docs/{name}.md", place(at)));
            continue;
        };
        let Some(heading) = heading else { continue };
        resolved += 1;
        let set = if is_number(&heading) { &headings.numbers } else { &headings.titles };
        if !set.contains(&heading) {
            wrong.push(format!("{}: docs/{name}.md has no heading `{heading}`", place(at)));
        }
    }
    for (at, what) in elsewhere(&flat) {
        wrong.push(format!(
            "{}: {what}: cite a heading of a document in docs, or a public one by title",
            place(at)
        ));
    }
    (wrong, resolved)
}

#[test]
fn every_cited_heading_exists_in_docs() {
    let documents = documents();
    let (mut wrong, mut resolved) = (Vec::new(), 0);
    for file in files().iter().filter(|file| *file != "tests/citations.rs") {
        let (found, more) = faults(file, &read(file), &documents);
        wrong.extend(found);
        resolved += more;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(resolved > 300, "only {resolved} citations were found: is the search right?");
}

#[test]
fn missing_heading_is_found() {
    let documents = BTreeMap::from([(
        "rules".to_owned(),
        Headings::of("# Rules\n\n## 1 One\n\n### 1.2 More\n\n```\n# 9 Code\n```\n\n## What else\n"),
    )]);
    let cases = [
        ("(`docs/rules.md` 1.2, 1)", 0),
        ("//! as (`docs/rules.md`\n//! 1.2,\n//! 1).", 0),
        ("\"docs/rules.md \\\"What else\\\"\"", 0),
        ("/// see `docs/rules.md` \"What\n/// else\".", 0),
        ("docs/rules.md \"One\", docs/rules.md, ../docs/rules.md#one", 0),
        ("RFC 9113 §8.2 of HTTP; a § b", 0),
        ("`docs/rules.md` 1.3", 1),
        ("`docs/rules.md` 1, 9", 1),
        ("docs/rules.md \"What more\"", 1),
        ("docs/gone.md", 1),
        ("(design §6.3)", 1),
        ("(§6.3)", 1),
        ("`providers.md` 1.5", 1),
        ("see ../estimator.md, docs/clients.md", 2),
    ];
    for (text, expected) in cases {
        let (wrong, _) = faults("a file", text, &documents);
        assert_eq!(wrong.len(), expected, "{text}: {wrong:?}");
    }
}

#[test]
fn every_invariant_has_a_test() {
    let page = read("docs/reviewing.md");
    let table = page.split("## Invariants").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows: Vec<&str> = table
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .collect();
    let code: String =
        files().iter().filter(|file| file.ends_with(".rs")).map(|file| read(file)).collect();
    let missing = rows.iter().filter(|row| {
        let mut quoted = row.split('`').skip(1).step_by(2);
        !quoted.any(|name| code.contains(&format!("fn {name}(")))
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "no such test");
    assert_eq!(rows.len(), 14);
}

#[test]
fn figures_match_their_text_sources() {
    let script = root().join("scripts/figures");
    let made = std::process::Command::new("python3").arg(&script).arg("--check").output();
    let made = made.expect("Python 3 makes the figures: install it, or see CONTRIBUTING.md");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let figures = std::fs::read_dir(root().join("docs/figures")).unwrap().flatten();
    let pages = read("README.md") + &read("docs/architecture.md") + &read("docs/admin.md");
    for name in figures.map(|figure| figure.file_name().into_string().unwrap()) {
        let is_shown = name.ends_with(".txt") || pages.contains(&format!("figures/{name}"));
        assert!(
            is_shown,
            "docs/figures/{name} is in neither README.md, docs/architecture.md nor docs/admin.md"
        );
    }
}
