//! Files of a package import each other in one direction only, so that no group of files has to be learned as one
//! piece.
//!
//! Reads sources as text, from `lib.rs` along `mod` declarations, without what only tests and fuzzing build. Every path
//! in a file counts, and leads to the file that defines the name, through modules, imports and re-exports. A name that
//! a file only declares or re-exports does not count.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

#[path = "support/blanked.rs"]
mod blanked;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use blanked::blanked;

/// The folders of the packages that are checked.
const PACKAGES: &[&str] = &["core/src", "replay/src", "src"];

/// Modules by path (`proxy::exchange::retry`), with the files that each imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn files_import_in_one_direction() {
    let mut report = String::new();
    for package in PACKAGES {
        let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package));
        assert!(sources.len() > 5, "{package}: only {} files found", sources.len());
        let modules = modules(&sources);
        let imports = imports(&modules);
        for cycle in cycles(&imports) {
            report.push_str(&format!("{package}: {}\n", cycle.join(", ")));
            for name in &cycle {
                for to in imports[name].intersection(&cycle.iter().cloned().collect()) {
                    report.push_str(&format!("    {name} imports {to}\n"));
                }
            }
        }
    }
    assert!(report.is_empty(), "move what both sides need into a file below both:\n{report}");
}

/// The modules of `context` that its stored types may import: leaves.
const BELOW_RECORDS: &[&str] = &["policy", "signature", "trim"];

#[test]
fn records_import_nothing_that_decides() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for (from, targets) in &imports(&modules(&sources(&root.join("core/src")))) {
        if !from.starts_with("context::records") {
            continue;
        }
        found += 1;
        for to in targets.iter().filter_map(|to| to.strip_prefix("context::")) {
            let module = to.split("::").next().unwrap();
            let is_below = module == "records" || BELOW_RECORDS.contains(&module);
            assert!(is_below, "{from} imports context::{to}");
        }
    }
    assert!(found >= 10, "only {found} files of records found");
}

/// The most imports in a chain of folders of `src/proxy`: a reader of the first one has no deeper to go.
const LEVELS: usize = 5;

/// The table of `src/proxy` in docs/architecture.md: each row uses only its own folder and those above it.
#[test]
fn proxy_folders_import_each_other_only_in_documented_order() {
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
    for (from, targets) in &imports(&modules(&sources(&root.join("src")))) {
        let Some(from) = folder(from) else { continue };
        let targets = targets.iter().filter_map(folder).filter(|to| *to != from);
        folders.entry(from.clone()).or_default().extend(targets);
    }
    assert!(folders.len() > 8, "{:?}", cycles(&folders));
    assert!(cycles(&folders).is_empty(), "{:?}", cycles(&folders));
    for (from, to) in folders.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        let (Some(user), Some(used)) = (place.get(from), place.get(to)) else {
            panic!("docs/architecture.md has no row for src/proxy/{from} or src/proxy/{to}");
        };
        assert!(user >= used, "src/proxy/{from} uses src/proxy/{to}, which stands below it");
    }
    let chain = longest_chain(&folders);
    assert!(
        chain.len() - 1 <= LEVELS,
        "more than {LEVELS} imports in a row: {}",
        chain.join(" > ")
    );
}

/// The longest path along imports without a cycle.
fn longest_chain(imports: &Imports) -> Vec<String> {
    fn below(imports: &Imports, from: &str) -> Vec<String> {
        let targets = imports.get(from).into_iter().flatten();
        let longest = targets.map(|to| below(imports, to)).max_by_key(Vec::len);
        [vec![from.to_owned()], longest.unwrap_or_default()].concat()
    }
    imports.keys().map(|from| below(imports, from)).max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn longest_import_chain_is_found() {
    let edges = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"), ("e", "d")];
    let mut imports = Imports::new();
    for (from, to) in edges {
        imports.entry(from.to_owned()).or_default().insert(to.to_owned());
    }
    assert_eq!(longest_chain(&imports), ["a", "b", "c", "d"]);
    assert!(longest_chain(&Imports::new()).is_empty());
}

#[test]
fn import_cycles_are_found_without_false_alarms() {
    let source = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
    let found = |texts: &[(&str, &str)]| {
        let root = ("", "mod a;\nmod b;\nmod d;\nmod e;\n#[cfg(test)]\nmod f;\n");
        let all = [root].iter().chain(texts).copied().map(source).collect();
        imports(&modules(&all))
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let set = |list: &[&str]| names(list).into_iter().collect::<BTreeSet<_>>();
    let calm = [
        ("a", "use super::b::{self, Thing, c::{Deep}};\nfn f() { b::made() }\n"),
        ("b", "mod c;\npub(crate) use self::c::Deep;\nuse crate::d::Other as It;\nstruct Thing;\n"),
        ("b::c", "struct Deep;\n"),
        ("d", "fn f() { crate::e::g(); }\n// crate::a\nconst T: &str = \"crate::a::A\";\n"),
        ("e", "pub use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\n"),
        ("f", "use crate::a::A;\n"),
    ];
    assert_eq!(found(&calm)["a"], set(&["b", "b::c"]));
    assert_eq!(found(&calm)["b"], set(&["d"]), "a re-export is no import");
    assert!(!found(&calm).contains_key("f"), "a module of tests");
    assert!(cycles(&found(&calm)).is_empty(), "{:?}", cycles(&found(&calm)));

    // Each of these adds a cycle.
    let with = |at: &str, text: &str| {
        let mut texts: BTreeMap<&str, &str> = calm.into_iter().collect();
        texts.insert(at, text);
        cycles(&found(&texts.into_iter().collect::<Vec<_>>()))
    };
    let all = [names(&["a", "b", "d", "e"])];
    assert_eq!(with("e", "pub(in crate::x) fn g() { super::a::f() }"), all);
    assert_eq!(with("e", "use super::a;\nfn g() { a::f() }"), all, "through an imported module");
    assert_eq!(with("e", "pub use crate::a::A;\nstruct B(A);"), all, "re-exported and used");
    assert_eq!(with("b::c", "use super::Thing;"), Vec::<Vec<String>>::new());
    let both = [names(&["b", "b::c"])];
    let parent = "mod c;\nuse c::Deep;\nstruct Thing;";
    assert_eq!(cycles(&found(&[("b", parent), ("b::c", "use super::Thing;")])), both);
    let parent = "mod c;\nfn f() { c::g() }\nstruct Thing;";
    assert_eq!(cycles(&found(&[("b", parent), ("b::c", "use crate::b::Thing;")])), both);
    let outside = [
        ("a", "pub use crate::b::Thing;"),
        ("b", "use crate::d::D;\nstruct Thing;"),
        ("d", "use crate::a::Thing;\nstruct D;"),
    ];
    assert_eq!(cycles(&found(&outside)), [names(&["b", "d"])], "a is only their surface");
}

/// The files of a package by their modules.
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
            if path.extension().is_none_or(|it| it != "rs") || parts == ["main"] {
                continue;
            }
            if matches!(parts.last(), Some(&("mod" | "lib"))) {
                parts.pop();
            }
            all.insert(parts.join("::"), std::fs::read_to_string(&path).unwrap());
        }
    }
    all
}

/// What a file says about names.
#[derive(Default)]
struct Module {
    /// Files that it declares by `mod name;`.
    children: BTreeSet<String>,
    /// What it imports or re-exports, by its name in this file.
    names: BTreeMap<String, Vec<String>>,
    /// The paths in its code, its own imports included.
    paths: Vec<Vec<String>>,
}

/// The modules of the product, from the root down.
fn modules(sources: &BTreeMap<String, String>) -> BTreeMap<String, Module> {
    let mut all = BTreeMap::new();
    let mut next = vec![String::new()];
    while let Some(name) = next.pop() {
        let Some(text) = sources.get(&name) else { continue };
        let module = read(text);
        next.extend(module.children.iter().map(|child| below(&name, child)));
        all.insert(name, module);
    }
    all
}

/// The module `name` inside `parent`; the root has no name.
fn below(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}::{name}") }
}

fn imports(modules: &BTreeMap<String, Module>) -> Imports {
    let of = |(name, module): (&String, &Module)| {
        let targets = module.paths.iter().filter_map(|path| origin(modules, name, path, 0));
        (name.clone(), targets.filter(|target| target != name).collect())
    };
    modules.iter().map(of).collect()
}

/// The file that defines what a path leads to, seen from the module `here`; `None` if it is not ours.
fn origin(
    modules: &BTreeMap<String, Module>,
    here: &str,
    path: &[String],
    depth: usize,
) -> Option<String> {
    /// The depth of re-exports. A name that leads to itself belongs to another package.
    const DEEPEST: usize = 20;
    if depth > DEEPEST {
        return None;
    }
    let through = |at: &str, name: &str, rest: &[String]| {
        let path = [modules[at].names[name].as_slice(), rest].concat();
        origin(modules, at, &path, depth + 1)
    };
    let mut at = here.to_owned();
    let (first, mut rest) = path.split_first()?;
    match first.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            at = parent(&at);
            while let Some((_, further)) = rest.split_first().filter(|(next, _)| *next == "super") {
                (at, rest) = (parent(&at), further);
            }
        }
        name if modules[here].children.contains(name) => at = below(&at, name),
        name if modules[here].names.contains_key(name) => return through(here, name, rest),
        _ => return None,
    }
    while let Some((next, further)) = rest.split_first() {
        let module = modules.get(&at)?;
        if module.children.contains(next) {
            (at, rest) = (below(&at, next), further);
        } else if module.names.contains_key(next) {
            return through(&at, next, further);
        } else {
            // The root's file defines nothing.
            return Some(at).filter(|at| !at.is_empty());
        }
    }
    // A path that ends at a module: what is used of it has a path of its own.
    None
}

fn parent(module: &str) -> String {
    module.rsplit_once("::").map(|(parent, _)| parent).unwrap_or_default().to_owned()
}

/// Reads a file's code: its declarations, imports and paths.
fn read(text: &str) -> Module {
    let code = without_tests(&blanked(text));
    let tokens = tokens(&code);
    let mut module = Module::default();
    let mut surface = Vec::new();
    let mut names = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at)).copied();
        let (token, next) = (tokens[at], at + 1);
        if token == "use" {
            let mut leaves = Vec::new();
            at = tree(&[], &tokens, next, &mut leaves);
            let is_surface = matches!(tokens.get(next.wrapping_sub(2)), Some(&("pub" | ")")));
            for (path, name) in leaves {
                match is_surface {
                    true => surface.push((name.clone(), path.clone())),
                    false => module.paths.push(path.clone()),
                }
                module.names.insert(name, path);
            }
        } else if token == "mod" && tokens.get(at + 2) == Some(&";") {
            module.children.insert(tokens[next].to_owned());
            at += 3;
        } else if is_word(token) && !matches!(before(1), Some("::" | ".")) {
            let is_visibility = before(1) == Some("in") && before(2) == Some("(");
            let mut path = vec![token.to_owned()];
            while tokens.get(at + 1) == Some(&"::")
                && tokens.get(at + 2).is_some_and(|it| is_word(it))
            {
                path.push(tokens[at + 2].to_owned());
                at += 2;
            }
            names.insert(token);
            if path.len() > 1 && !is_visibility {
                module.paths.push(path);
            }
            at += 1;
        } else {
            at = next;
        }
    }
    // A name that is re-exported and also used here counts as imported.
    let used = surface.into_iter().filter(|(name, _)| names.contains(name.as_str()));
    module.paths.extend(used.map(|(_, path)| path));
    module
}

/// Reads a tree of paths that begins at a token: each leaf's path, and its name here. Returns the position after it.
fn tree(
    prefix: &[String],
    tokens: &[&str],
    mut at: usize,
    leaves: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        match *token {
            "::" => at += 1,
            "{" => {
                at += 1;
                while !matches!(tokens.get(at), None | Some(&"}")) {
                    at = tree(&path, tokens, at, leaves);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" => {
                leaves.push((path, tokens[at + 1].to_owned()));
                return at + 2;
            }
            "self" if !path.is_empty() => at += 1,
            word if is_word(word) || word == "*" => {
                path.push(word.to_owned());
                at += 1;
            }
            _ => break,
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    leaves.push((path, name));
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::`, and other characters one by one.
fn tokens(code: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            _ if is_part(first) => rest.find(|c: char| !is_part(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let (token, further) = rest.split_at(length);
        all.push(token);
        rest = further.trim_start();
    }
    all
}

/// The code without items that only tests and fuzzing build.
fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    for mark in ["#[cfg(test)]", "#[cfg(any(test, fuzzing))]"] {
        while let Some(from) = out.find(mark) {
            out.replace_range(from..item_end(&out, from + mark.len()), "");
        }
    }
    out
}

/// The end of the item that begins at `from`: its `;`, or the end of its body.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, character) in code[from..].char_indices() {
        match character {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && character == '}' {
                    return from + at + 1;
                }
            }
            ';' if depth == 0 => return from + at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Each group of files that lead to each other.
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
