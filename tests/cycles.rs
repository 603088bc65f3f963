//! Files of a package import each other in one direction only: there is no cycle to learn in one piece.
//!
//! Reads sources as text. What a file re-exports is its surface and counts for nothing, and so do tests.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Packages whose files are looked at, by their folder.
const PACKAGES: &[&str] = &["core/src", "src"];

/// Modules by path (`proxy::exchange::retry`), with what each imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn files_import_each_other_in_one_direction() {
    for package in PACKAGES {
        let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package));
        assert!(sources.len() > 50, "{package}: only {} files found", sources.len());
        let found = cycles(&imports(&sources));
        let told: Vec<String> = found.iter().map(|cycle| cycle.join(" → ")).collect();
        assert!(
            told.is_empty(),
            "{package}: move what both sides need into a file below both:\n{}",
            told.join("\n")
        );
    }
}

/// The table of `src/proxy` in docs/architecture.md: what each row names uses its own row and those above it.
#[test]
fn folders_of_the_proxy_are_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let table = text.split("The table lists the folders of `src/proxy`.").nth(1).unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let mut place = BTreeMap::new();
    for (at, row) in rows.take_while(|line| line.starts_with('|')).enumerate() {
        let names = row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2);
        place.extend(names.map(|name| (name.trim_end_matches(".rs").to_owned(), at)));
    }
    let folder = |module: &String| {
        let inside = module.strip_prefix("proxy::")?;
        inside.split("::").next().map(str::to_owned)
    };
    let mut folders = Imports::new();
    for (from, targets) in &imports(&sources(&root.join("src"))) {
        let Some(from) = folder(from) else { continue };
        let targets = targets.iter().filter_map(folder).filter(|to| *to != from);
        folders.entry(from.clone()).or_default().extend(targets);
    }
    assert!(folders.len() > 10 && cycles(&folders).is_empty(), "{:?}", cycles(&folders));
    for (from, to) in folders.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        let (Some(user), Some(used)) = (place.get(from), place.get(to)) else {
            panic!("docs/architecture.md has no row for src/proxy/{from} or src/proxy/{to}");
        };
        assert!(user >= used, "src/proxy/{from} uses src/proxy/{to}, which stands below it");
    }
}

#[test]
fn a_cycle_is_found_and_what_is_none_is_not() {
    let source = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let sources = BTreeMap::from([
        source("a", "use super::b::{self, Thing, c::{Deep}};\n"),
        source("b", "pub use self::c::Deep;\nuse crate::d::Other;\nstruct Thing;\n"),
        source("b::c", "struct Deep;\n"),
        source("d", "fn f() { crate::e::g(); }\n// crate::a\n"),
        source(
            "e",
            "use super::*;\npub use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::d;\n}\n",
        ),
    ]);
    let found = imports(&sources);
    assert_eq!(found["a"], BTreeSet::from(["b".to_owned(), "b::c".to_owned()]));
    assert_eq!(found["b"], BTreeSet::from(["d".to_owned()]), "a re-export is no import");
    assert!(cycles(&found).is_empty(), "{:?}", cycles(&found));
    let mut with = sources;
    with.insert("e".into(), "pub(in crate::x) fn g() { super::a::f() }".into());
    assert_eq!(cycles(&imports(&with)), [["a", "b", "d", "e"].map(str::to_owned).to_vec()]);
}

/// The files of a package by their modules, without tests.
fn sources(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path.strip_prefix(root).unwrap().with_extension("");
            let mut parts: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap()).collect();
            // What only tests and fuzzing build.
            let is_test = |part: &&str| matches!(*part, "tests" | "invariants" | "conformance");
            if path.extension().is_none_or(|it| it != "rs") || parts.iter().any(is_test) {
                continue;
            }
            if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
                parts.pop();
            }
            if !parts.is_empty() {
                all.insert(parts.join("::"), std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    all
}

fn imports(sources: &BTreeMap<String, String>) -> Imports {
    let of = |(name, text): (&String, &String)| {
        let here: Vec<String> = name.split("::").map(str::to_owned).collect();
        let paths = product(text);
        let targets = paths.iter().filter_map(|path| resolved(path, &here, sources));
        (name.clone(), targets.filter(|target| target != name).collect())
    };
    sources.iter().map(of).collect()
}

/// The paths that a file's code names: comments, re-exports and tests left out, groups taken apart.
fn product(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut paths = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            let is_inside = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            let statement = before.rsplit([';', '}']).next().unwrap_or_default().trim();
            let is_surface = statement.contains("pub") && statement.ends_with("use");
            if !is_inside && !is_surface && !before.ends_with("in ") {
                tree("", &code[at..], &mut paths);
            }
        }
    }
    paths
}

/// Takes a path, or a tree of them, from the beginning of `text`; answers what follows it.
fn tree<'t>(prefix: &str, text: &'t str, paths: &mut Vec<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut group) = text.strip_prefix('{') {
        loop {
            group = group.trim_start_matches([',', ' ', '\n']);
            match group.strip_prefix('}') {
                Some(rest) => return rest,
                None if group.is_empty() => return group,
                None => {
                    let rest = tree(prefix, group, paths);
                    // `as` and its name.
                    let end = rest.find([',', '}']).unwrap_or(rest.len());
                    group = &rest[end..];
                }
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let path = if prefix.is_empty() { word.to_owned() } else { format!("{prefix}::{word}") };
    match rest.strip_prefix("::") {
        Some(deeper) => tree(&path, deeper, paths),
        None => {
            paths.push(path);
            rest
        }
    }
}

/// The file that a path leads to, seen from the module `here`.
fn resolved(path: &str, here: &[String], sources: &BTreeMap<String, String>) -> Option<String> {
    let mut words: Vec<&str> = path.split("::").filter(|word| !word.is_empty()).collect();
    let mut at: Vec<&str> = here.iter().map(String::as_str).collect();
    match *words.first()? {
        "crate" => at.clear(),
        "self" => {}
        "super" => drop(at.pop()),
        _ => return None,
    }
    words.remove(0);
    while words.first() == Some(&"super") {
        at.pop();
        words.remove(0);
    }
    at.extend(words.into_iter().filter(|word| *word != "self"));
    while !at.is_empty() && !sources.contains_key(&at.join("::")) {
        at.pop();
    }
    // A path that goes no further than the module around names what stands in its own file or beside it.
    (!at.is_empty()).then(|| at.join("::"))
}

/// Each group of files of which every one leads to every other.
fn cycles(imports: &Imports) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            for to in imports.get(at).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|name| (name, reached(name))).collect();
    let mut found = BTreeSet::new();
    for (name, all) in &reached {
        let back = |other: &&String| reached.get(*other).is_some_and(|seen| seen.contains(name));
        let group: Vec<String> = all.iter().copied().filter(back).cloned().collect();
        if group.len() > 1 {
            found.insert(group);
        }
    }
    found.into_iter().collect()
}
