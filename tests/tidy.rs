//! The rules of the source that clippy does not know: floors import only lower ones, files open with their promise and
//! stay short, and dependencies have allowed licences.
//!
//! Every finding names `file:line` and what to do. Reads sources as text; knows nothing of types.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

#[path = "support/blanked.rs"]
mod blanked;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use blanked::blanked;

/// What each module may import. Every module is listed.
const SEES: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("dialect", &["wire"]),
    ("tokens", &["dialect", "wire"]),
    ("context", &["tokens", "dialect", "wire"]),
    ("clock", &["context"]),
    ("store", &["clock", "context", "tokens", "dialect", "wire"]),
    ("config", &["context", "tokens", "dialect", "wire"]),
    ("telemetry", &["clock", "config", "context", "tokens", "dialect", "wire"]),
    ("tls", &["config"]),
    ("activity", &[]),
    ("proxy", BELOW_THE_LISTENERS),
    ("admin", BELOW_THE_LISTENERS),
    ("otel", &["tls", "telemetry", "config", "context", "dialect"]),
    ("warehouse", &["tls", "telemetry", "config", "store", "context"]),
    ("replay", &[]),
    ("demo", &["context", "tokens", "dialect", "wire"]),
    (
        "cli",
        &[
            "demo",
            "admin",
            "otel",
            "warehouse",
            "proxy",
            "activity",
            "tls",
            "telemetry",
            "config",
            "store",
            "clock",
            "context",
            "tokens",
            "dialect",
            "wire",
        ],
    ),
    ("main", &["cli"]),
    // It declares the modules.
    ("lib", &[]),
];

/// What `proxy` and `admin` may import: neither each other, nor anything above them.
const BELOW_THE_LISTENERS: &[&str] = &[
    "activity",
    "tls",
    "telemetry",
    "config",
    "store",
    "clock",
    "context",
    "tokens",
    "dialect",
    "wire",
];

/// Floors 0–3: values in, values out.
const PURE: &[&str] = &["wire", "dialect", "tokens", "context"];

/// What a pure floor must not name.
const IMPURE: &[&str] = &[
    "tokio",
    "tracing",
    "hyper",
    "hyper_util",
    "std::net",
    "std::fs",
    "std::env",
    "Instant",
    "SystemTime",
];

/// Names that say nothing.
const EMPTY_NAMES: &[&str] = &["Manager", "Handler", "Helper", "Utils", "Util", "Common"];

/// Most lines in one file, tests left out.
const FILE_LINES: usize = 600;
/// How long a file's opening promise is.
const HEAD_LINES: std::ops::RangeInclusive<usize> = 2..=8;

#[test]
fn floors_look_down_only() {
    check(|file, say| {
        let Some((_, allowed)) = SEES.iter().find(|(part, _)| *part == file.part) else {
            return say(1, format!("`{}` is not in SEES: say what it may import", file.part));
        };
        for (line, code) in file.product() {
            let ours = paths_after(code, "crate::").into_iter();
            for seen in ours.chain(paths_after(code, "plimsoll::")) {
                let known = SEES.iter().any(|(part, _)| *part == seen) || is_upper(seen);
                if known && seen != file.part && !allowed.contains(&seen) {
                    say(
                        line,
                        format!(
                            "`{}` must not see `crate::{seen}`: pass what it needs as an argument, or move the code up",
                            file.part
                        ),
                    );
                }
            }
            if code.contains("super::super") {
                say(line, "write `crate::…`, so that the floor can be seen".into());
            }
        }
    });
}

#[test]
fn pure_floors_are_pure() {
    check(|file, say| {
        if !PURE.contains(&file.part.as_str()) {
            return;
        }
        for (line, code) in file.product() {
            for word in IMPURE.iter().filter(|word| has_word(code, word)) {
                say(
                    line,
                    format!(
                        "floor `{}` names `{word}`: take the value as an argument (`now`, a policy), return notes",
                        file.part
                    ),
                );
            }
        }
    });
}

#[test]
fn files_begin_with_two_to_eight_lines_of_module_docs() {
    check(|file, say| {
        if file.name.ends_with("src/lib.rs") {
            return;
        }
        let head = file.text.lines().take_while(|line| line.starts_with("//!")).count();
        if !HEAD_LINES.contains(&head) {
            say(
                1,
                format!(
                    "opens with {head} lines of `//!`, should be 2 to 8: what it is for, what it must not know, the invariant it guards"
                ),
            );
        }
    });
}

#[test]
fn files_are_short() {
    check(|file, say| {
        let lines = file.product().count();
        if lines > FILE_LINES {
            let todo = "does it carry two things?";
            say(lines, format!("{lines} lines without tests, at most {FILE_LINES}: {todo}"));
        }
    });
}

#[test]
fn names_contain_no_empty_words_like_helper_or_manager() {
    check(|file, say| {
        for (line, code) in file.product() {
            for (keyword, name) in declared(code) {
                if EMPTY_NAMES.iter().any(|word| name.contains(word))
                    || matches!(name, "utils" | "util" | "common" | "helpers" | "helper")
                {
                    say(
                        line,
                        format!(
                            "`{keyword} {name}`: say what it is in a word of the field (docs/architecture.md \"Glossary\")"
                        ),
                    );
                }
                // Traits of rmcp and redis name these.
                let is_ours = !matches!(name, "get_info" | "get_db");
                if keyword == "fn"
                    && is_ours
                    && name.starts_with("get_")
                    && code.contains("(&self)")
                {
                    say(line, format!("`fn {name}`: a getter is called by its field's name"));
                }
            }
        }
    });
}

/// Types that share one name on purpose: the four dialects' forms of the same thing.
const IN_EVERY_DIALECT: &[(&str, &str)] = &[
    ("Reader", "reads a request"),
    ("ReplyStream", "what the events of a stream have told"),
    ("UsageFields", "a provider's own counts, before they are normalised"),
    ("RequestMembers", "what is read of a request"),
    ("ResponseMembers", "what is read of a response"),
    ("MessageMembers", "what is read of a message"),
    ("DeltaMembers", "what is read of an event that adds to a reply"),
    ("UsageMembers", "what is read of a report of usage"),
];

/// The scripted provider imports nothing of the product, so it has its own type for the same four protocols.
const IN_SCRIPTED_PROVIDER: &str = "Dialect";

#[test]
fn no_type_name_stands_twice() {
    let seen = std::cell::RefCell::new(BTreeMap::<String, Vec<String>>::new());
    let add = |file: &Source, excused: &str| {
        for (line, name) in types(&file.code).into_iter().filter(|(_, name)| name != excused) {
            let at = format!("{}:{line}", file.name);
            seen.borrow_mut().entry(name).or_default().push(at);
        }
    };
    check(|file, _| {
        if file.part != "demo" {
            add(file, "");
        }
    });
    let scripted: Vec<_> = ["demo-provider/src", "tests/scripted-provider/src"]
        .iter()
        .flat_map(|folder| sources(Path::new(folder)))
        .collect();
    assert!(scripted.len() > 30, "only {} files of the scripted provider found", scripted.len());
    for path in scripted {
        let text = std::fs::read_to_string(&path).unwrap();
        add(&Source::new(&path.to_string_lossy(), &text), IN_SCRIPTED_PROVIDER);
    }
    let seen = seen.into_inner();
    assert!(seen.len() > 500, "only {} types found", seen.len());
    let mut found = String::new();
    for (name, places) in seen.iter().filter(|(_, places)| places.len() > 1) {
        let excused = IN_EVERY_DIALECT.iter().any(|(known, _)| known == name);
        let in_dialects = places.iter().all(|at| at.starts_with("core/src/dialect/"));
        if !excused || !in_dialects {
            let _ = writeln!(
                found,
                "`{name}` stands at {}: one name has one meaning (docs/architecture.md \"Glossary\")",
                places.join(" and ")
            );
        }
    }
    for (name, _) in IN_EVERY_DIALECT {
        if seen.get(*name).is_none_or(|places| places.len() < 2) {
            let _ = writeln!(found, "`{name}` stands once now: take it off IN_EVERY_DIALECT");
        }
    }
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn declared_types_are_found() {
    let code = "pub struct One<T>(T);\nenum Two {\n    A,\n}\ntype Three = u8;\npub(crate) trait Four {\n    \
                type Item;\n}\nmembers! {\n    \n    Five { a, b }\n}\nmembers! {\n    Six {\n        a,\n    }\n}\n\
                fn f() {\n    struct Seven;\n}\nimpl Four for Two {\n    type Item = u8;\n}\n";
    let names: Vec<String> = types(code).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["One", "Two", "Three", "Four", "Five", "Six", "Seven"]);
}

/// Line and name of each type that code declares, those of `members!` included. The associated types of a trait are
/// indented, and do not count.
fn types(code: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut is_in_members = false;
    for (at, line) in code.lines().enumerate() {
        let indented = line.starts_with(' ');
        let names = declared(line).into_iter().filter(|(keyword, name)| match *keyword {
            "struct" | "enum" | "trait" => is_type_name(name),
            "type" => is_type_name(name) && !indented,
            _ => false,
        });
        all.extend(names.map(|(_, name)| (at + 1, name.to_owned())));
        let of_members = line.trim().split_once(" {").filter(|(name, _)| is_type_name(name));
        if let Some((name, _)) = of_members.filter(|_| is_in_members) {
            all.push((at + 1, name.to_owned()));
            is_in_members = false;
        }
        is_in_members |= line.starts_with("members! {");
    }
    all
}

fn is_type_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
}

/// Licences that may be in a binary under Apache-2.0 (`deny.toml` has the same list).
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that are not allowed, and why.
const BANNED: &[(&str, &str)] = &[
    ("openssl-sys", "TLS is rustls: one static binary, no system library"),
    ("native-tls", "TLS is rustls"),
    ("reqwest", "hyper speaks to upstreams; a second client would hide bytes from us"),
];

/// Crates that our own manifests may not name, and why; others may need them.
const UNNAMED: &[(&str, &str)] = &[("chrono", "jiff tells the time")];

/// Crates with two versions in the lock file, and which crate needs the older one.
const TWICE: &[(&str, &str)] = &[
    ("base64", "tiktoken-rs asks for 0.22"),
    (
        "bit-set",
        "fancy-regex under tiktoken-rs asks for 0.8; proptest, in tests alone, for a newer one",
    ),
    ("bit-vec", "as bit-set"),
    ("fallible-iterator", "tokio-postgres asks for 0.2, rusqlite for 0.3"),
    ("getrandom", "ring asks for 0.2"),
    ("linux-raw-sys", "as rustix"),
    ("miniz_oxide", "png under image asks for 0.8"),
    (
        "quick-error",
        "image-webp under image asks for 2; rusty-fork under proptest, in tests alone, for 1",
    ),
    ("rand", "opentelemetry_sdk asks for 0.9"),
    ("rand_core", "as rand"),
    ("rustix", "procfs under prometheus asks for 0.38"),
    ("synstructure", "asn1-rs under rcgen, in tests alone, asks for 0.13"),
    ("syn", "divan's macros, in benches alone, ask for 2"),
];

#[test]
fn dependencies_are_released_licensed_and_not_duplicated() {
    let metadata = metadata();
    let mut found = String::new();
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        versions.entry(name).or_default().push(package["version"].as_str().unwrap_or_default());
        let Some(source) = package["source"].as_str() else {
            for needed in package["dependencies"].as_array().into_iter().flatten() {
                let known = UNNAMED.iter().find(|(unnamed, _)| needed["name"] == *unnamed);
                if let Some((unnamed, why)) = known {
                    let _ = writeln!(found, "{name}: names {unnamed}: {why}");
                }
            }
            continue;
        };
        if !source.starts_with("registry+") {
            let _ =
                writeln!(found, "{name}: comes from {source}; only released crates may come in");
        }
        let licence = package["license"].as_str().unwrap_or("none declared");
        if !licence_allowed(licence) {
            let _ =
                writeln!(found, "{name}: licence `{licence}` is not on the list of tests/tidy.rs");
        }
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            let _ = writeln!(found, "{name}: banned: {why}");
        }
    }
    for (name, all) in &versions {
        let excused = TWICE.iter().any(|(twice, _)| twice == name);
        if all.len() > 1 && !excused {
            let _ = writeln!(
                found,
                "{name}: {} stand side by side; align them, or add a reason to TWICE (`cargo tree -i {name}@VERSION`)",
                all.join(" and ")
            );
        }
        if all.len() < 2 && excused {
            let _ = writeln!(found, "{name}: stands once now; take it off TWICE");
        }
    }
    for (name, _) in TWICE.iter().filter(|(name, _)| !versions.contains_key(name)) {
        let _ = writeln!(found, "{name}: no longer used; take it off TWICE");
    }
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn licence_expressions_are_understood() {
    for yes in [
        "MIT",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "GPL-3.0 OR MIT",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(licence_allowed(yes), "{yes}");
    }
    for no in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR MPL-2.0) AND MIT", "none declared", ""] {
        assert!(!licence_allowed(no), "{no}");
    }
}

/// Everything that is installed besides Rust crates is pinned by a hash, and no script runs during installation.
#[test]
fn installed_packages_and_images_are_pinned_by_hash() {
    let mut found = String::new();
    let mut requirements = 0;
    for name in tracked() {
        let Ok(text) = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&name))
        else {
            continue;
        };
        if name.ends_with("requirements.txt") {
            requirements += 1;
        }
        for what in unpinned(&name, &text) {
            let _ = writeln!(found, "{name}: {what}");
        }
    }
    assert!(requirements >= 2, "only {requirements} lists of requirements found");
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn unpinned_installs_are_detected() {
    let hash = format!("a==1 \\\n    --hash=sha256:{}\n", "0".repeat(64));
    let image =
        format!("FROM rust:1@sha256:{} AS build\nFROM scratch\nFROM ${{X}} AS y\n", "0".repeat(64));
    for (name, fine) in [
        ("requirements.txt", hash.as_str()),
        (
            "scripts/x",
            "# npm install does this\nnpm ci --ignore-scripts\npip install --require-hashes -r x\n",
        ),
        ("Dockerfile", &image),
        ("compose.yaml", "image: plimsoll:latest\nimage: {{ .Values.image }}\n"),
    ] {
        assert_eq!(unpinned(name, fine), Vec::<String>::new());
    }
    for (name, loose) in [
        ("requirements.txt", "a==1\nb==2 --hash=sha256:00\n"),
        ("requirements.txt", "a==1 \\\n    --hash=md5:00\nb==2\n"),
        ("scripts/x", "npm ci\nx && pip install y\n"),
        ("Makefile", "\tnpm install x\n\tpip3 install y\n"),
        ("Dockerfile", "FROM rust:1\nFROM docker.io/rust AS x\n"),
        ("compose.yaml", "image: prom/prometheus:latest\nimage: \"other:1\"\n"),
    ] {
        assert_eq!(unpinned(name, loose).len(), 2, "{name}: {loose}");
    }
}

/// The files in git, from the project's root.
fn tracked() -> Vec<String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let listed = Command::new("git").arg("ls-files").current_dir(root).output().unwrap();
    assert!(listed.status.success(), "git lists no files");
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Lines that install something whose content may change.
fn unpinned(name: &str, text: &str) -> Vec<String> {
    /// Images of our own, examples in documents, and what a chart's values name.
    const OWN: [&str; 4] = ["scratch", "plimsoll:", "example.com/", "{{"];
    let digest = |text: &str, mark: &str| {
        text.split(mark)
            .skip(1)
            .any(|rest| rest.bytes().take_while(u8::is_ascii_hexdigit).count() == 64)
    };
    let is_list = name.ends_with("requirements.txt");
    let is_script = name.starts_with("scripts/") || name == "Makefile" || name.ends_with("/run");
    // A line that ends with `\` continues on the next one.
    let whole = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in
        whole.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let installs = |program: &str, verb: &str| line.contains(&format!("{program} {verb}"));
        if is_list && !digest(line, "--hash=sha256:") {
            found.push(format!(
                "`{line}` has no hash (`pip-compile --generate-hashes` writes them)"
            ));
        }
        let npm = installs("npm", "ci") || installs("npm", "install");
        if is_script && npm && !line.contains("--ignore-scripts") {
            found.push(format!("`{line}` runs what packages want run: add --ignore-scripts"));
        }
        let pip = ["pip", "pip\"", "pip3"].iter().any(|pip| installs(pip, "install"));
        if is_script && pip && !line.contains("--require-hashes") {
            found.push(format!("`{line}` takes whatever comes: add --require-hashes"));
        }
        let image = if name.ends_with("Dockerfile") {
            line.strip_prefix("FROM ").filter(|image| !image.starts_with('$'))
        } else if name.ends_with(".yaml") {
            line.trim_start_matches("- ")
                .strip_prefix("image: ")
                .map(|image| image.trim_matches('"'))
        } else {
            None
        };
        if let Some(image) = image
            && !OWN.iter().any(|own| image.starts_with(own))
            && !digest(image, "@sha256:")
        {
            found.push(format!("`{line}` names no digest (`docker buildx imagetools inspect`)"));
        }
    }
    found
}

/// What separates a tree from code bases that are read with ease, and how often each may stand in 10,000 lines: closures
/// bound to a local, locals that do not say what they are, tuples that are taken apart where they are made, options walked
/// like lists, constructors without a verb.
const HABITS: &[Habit] = &[
    ("a closure bound to a local", is_local_closure, 8),
    ("a local named by an adverb or participle", is_adverb_local, 14),
    ("`let (a, b) = (x, y)`", |code| code.starts_with("let (") && code.contains(") = ("), 7),
    ("`into_iter().for_each`", |code| code.contains(".into_iter().for_each("), 0),
    ("`filter(|_| …)`", |code| code.contains(".filter(|_|"), 0),
    ("a function named `of`", |code| code.contains("fn of("), 0),
];

/// What it is called, whether a line of code shows it, and the most in 10,000 lines.
type Habit = (&'static str, fn(&str) -> bool, usize);

fn is_local_closure(code: &str) -> bool {
    let value = code.strip_prefix("let ").and_then(|binding| binding.split_once(" = "));
    value.is_some_and(|(_, value)| {
        value.trim_start_matches("async ").trim_start_matches("move ").starts_with('|')
    })
}

/// What happened to a thing, or where it stands, instead of what it is.
const ADVERBS: &str = "of at is own its one there here found known kept left gone seen shown told taken said went then now \
    before beside within around all both each few most back out first last next plain whole fresh new old held sent asked";

fn is_adverb_local(code: &str) -> bool {
    let Some(binding) = code.strip_prefix("let ") else { return false };
    let name = binding.trim_start_matches("mut ").split(' ').next().unwrap_or_default();
    ADVERBS.split_whitespace().any(|adverb| adverb == name)
}

#[test]
fn code_reads_as_its_field_writes() {
    let lines = std::cell::Cell::new(0);
    let counts: Vec<_> = HABITS.iter().map(|_| std::cell::Cell::new(0)).collect();
    check(|file, _| {
        for (_, code) in file.product().filter(|(_, code)| !code.trim().is_empty()) {
            lines.set(lines.get() + 1);
            for ((_, is_habit, _), count) in HABITS.iter().zip(&counts) {
                count.set(count.get() + usize::from(is_habit(code.trim_start())));
            }
        }
    });
    for ((habit, _, most), count) in HABITS.iter().zip(&counts) {
        let (count, most) = (count.get(), most * lines.get() / 10_000);
        assert!(
            count <= most,
            "{habit} stands {count} times in {} lines, at most {most}",
            lines.get()
        );
    }
}

/// Documents whose claims name their tests, and the least number of tests in each. The others are for users, and name none.
const TABLES_OF_TESTS: &[(&str, usize)] =
    &[("docs/reviewing.md", 280), ("docs/architecture.md", 1), ("tests/seeds.md", 140)];

/// A document that names tests of others: of clients, and of providers' libraries.
const NAMES_FOREIGN_TESTS: &str = "docs/protocols.md";

/// Each threat that is said to be prevented has a test that tries it, and each limit one that reaches it.
#[test]
fn documents_name_existing_tests() {
    let mut code = String::new();
    for folder in ["core", "replay", "demo-provider", "src", "tests"] {
        for file in sources(Path::new(folder)) {
            code.push_str(&std::fs::read_to_string(file).unwrap());
        }
    }
    let tests = tests_of(&code);
    assert!(tests.len() > 1_500, "only {} tests found", tests.len());
    // Metrics begin with our name; error codes are in the code as text.
    let is_test = |name: &&str| {
        is_snake_case(name)
            && name.matches('_').count() > 2
            && !name.starts_with("plimsoll_")
            && !code.contains(&format!("\"{name}\""))
    };
    let mut documents = tracked();
    documents.retain(|name| name.ends_with(".md") && name != NAMES_FOREIGN_TESTS);
    for (document, _) in TABLES_OF_TESTS {
        assert!(documents.iter().any(|name| name == document), "{document} is gone");
    }
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        // Code blocks contain no test names, and their fences would confuse the search for backticks.
        let text: String = text.split("```").step_by(2).collect();
        // By its form a short name could be something else. In a column of tests it is one.
        let mut named = in_backticks(&text).filter(is_test).collect::<BTreeSet<&str>>();
        let column = test_column(&text);
        named.extend(
            column.iter().flat_map(|cell| in_backticks(cell)).filter(|it| is_snake_case(it)),
        );
        let least = TABLES_OF_TESTS.iter().find(|(name, _)| *name == document);
        let least = least.map_or(0, |(_, least)| *least);
        assert!(named.len() >= least, "{document} names hardly any test: {named:?}");
        let is_for_users = document.starts_with("docs/") && least == 0;
        assert!(
            !is_for_users || named.is_empty(),
            "{document} is for users: {named:?} belong to docs/reviewing.md"
        );
        for name in named {
            assert!(tests.contains(name), "{document} names {name}: no such test");
        }
    }
}

/// The table of the reference documents has each requirement once, in order, and a test for each.
#[test]
fn every_requirement_of_reference_documents_has_row_and_test() {
    let text = std::fs::read_to_string("tests/seeds.md").unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ")).map(cells);
    let mut number = 0;
    for row in rows.filter(|row| row[0].trim().parse::<usize>().is_ok()) {
        number += 1;
        assert_eq!(row[0].trim(), &*number.to_string(), "{row:?}");
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(in_backticks(&row[2]).next().is_some(), "row {number} names no test: {row:?}");
    }
    assert_eq!(number, 200);
}

#[test]
fn tests_named_in_column_are_found() {
    let code = "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\n#[ignore]\nasync fn two() {\n    \
                fn three() {}\n}\nfn four() {}\n";
    assert_eq!(tests_of(code), BTreeSet::from(["one", "two"]));
    let text = "| a | test |\n|---|---|\n| `x \\| y` | `is_sent`, `Tap` |\n| b | none |\n\n| test | a |\n|---|---|\n\
                | `is_cut` | c |\n\n| a | b |\n|---|---|\n| d | e |\n";
    let column = test_column(text);
    assert_eq!(column, ["`is_sent`, `Tap`", "none", "`is_cut`"]);
    let names = column.iter().flat_map(|cell| in_backticks(cell)).filter(|it| is_snake_case(it));
    assert_eq!(names.collect::<Vec<_>>(), ["is_sent", "is_cut"]);
}

/// The names of all tests.
fn tests_of(code: &str) -> BTreeSet<&str> {
    let mut tests = BTreeSet::new();
    let mut is_marked = false;
    for line in code.lines().map(str::trim_start) {
        is_marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        if let Some((_, name)) = declared(line).into_iter().find(|(keyword, _)| *keyword == "fn") {
            tests.extend(std::mem::take(&mut is_marked).then_some(name));
        }
    }
    tests
}

/// The cells of a table's row. A pipe in a cell is escaped, between backticks too.
fn cells(line: &str) -> Vec<String> {
    let inner = line.replace("\\|", "/");
    let inner = inner.trim();
    let inner = inner.strip_prefix('|').unwrap_or(inner);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    inner.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Whether a line stands between the head of a table and its rows.
fn is_rule_of_table(line: &str) -> bool {
    line.starts_with('|') && line.contains("--") && line.chars().all(|it| "|-: ".contains(it))
}

/// The cells of the columns that are headed `test`, in all tables of a document.
fn test_column(text: &str) -> Vec<String> {
    let (mut column, mut found, mut before) = (None, Vec::new(), "");
    for line in text.lines() {
        if is_rule_of_table(line) {
            column = cells(before).iter().position(|cell| cell == "test");
        } else if !line.starts_with('|') {
            column = None;
        } else if let Some(column) = column {
            found.extend(cells(line).into_iter().nth(column));
        }
        before = line;
    }
    found
}

/// What stands between backticks.
fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether a word is written as names of functions are, and has more than one part.
fn is_snake_case(word: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte);
    word.contains('_') && word.bytes().all(is_inside)
}

/// A command that names no test any more runs none, and is green.
#[test]
fn test_filters_select_tests() {
    let mut filters = Vec::new();
    for file in tracked() {
        let is_read = ["Makefile", ".md", "/run"].iter().any(|end| file.ends_with(end))
            || file.starts_with("scripts/");
        let Some(text) = std::fs::read_to_string(&file).ok().filter(|_| is_read) else { continue };
        for command in text.split("cargo test ").skip(1) {
            let command = command.split(['\n', '`', ')']).next().unwrap_or_default();
            if let Some((target, filter)) = filter_of(command) {
                filters.push((file.clone(), target.to_owned(), filter.to_owned()));
            }
            if command.contains("--ignored") {
                let code = code_of(target_and_rest(command).map_or("--lib", |(target, _)| target));
                assert!(code.contains("#[ignore"), "{file}: `{command}`: no test is ignored");
            }
        }
        // tests/confined/run gives the programs themselves their filters: `soak-*) chosen="…"`.
        for line in text.lines() {
            let Some((program, chosen)) = line.split_once("-*) chosen=") else { continue };
            let filter = name_at(chosen.trim_start_matches('"')).unwrap_or_default();
            if !filter.is_empty() {
                filters.push((file.clone(), program.trim().to_owned(), filter.to_owned()));
            }
        }
    }
    assert!(filters.len() > 8, "hardly any command has a filter: {filters:?}");
    for (file, target, filter) in filters {
        let code = code_of(&target);
        let mut names = ["fn ", "mod "]
            .into_iter()
            .flat_map(|keyword| code.split(keyword).skip(1).filter_map(name_at));
        assert!(
            names.any(|name| name.contains(&filter)),
            "{file}: {filter} selects no test of {target}"
        );
    }
}

/// The name that a text begins with.
fn name_at(text: &str) -> Option<&str> {
    text.split(|c: char| c != '_' && !c.is_alphanumeric()).next()
}

fn code_of(target: &str) -> String {
    sources_of(target).iter().map(|it| std::fs::read_to_string(it).unwrap()).collect()
}

/// The sources of a test target; of the library for any other.
fn sources_of(target: &str) -> Vec<PathBuf> {
    let (file, folder) = (format!("tests/{target}.rs"), format!("tests/{target}"));
    match (Path::new(&file), Path::new(&folder)) {
        (file, _) if file.exists() => vec![file.to_owned()],
        (_, folder) if folder.exists() => sources(folder),
        _ => ["core/src", "replay/src", "src"]
            .into_iter()
            .flat_map(|it| sources(Path::new(it)))
            .collect(),
    }
}

/// The target in the arguments of `cargo test`, and the words after it.
fn target_and_rest(arguments: &str) -> Option<(&str, std::str::SplitWhitespace<'_>)> {
    let mut words = arguments.split_whitespace();
    let target = match words.find(|word| ["--test", "--lib"].contains(word))? {
        "--test" => words.next()?,
        library => library,
    };
    Some((target, words))
}

/// The target and the filter in the arguments of `cargo test`: the filter is the word after the target.
fn filter_of(arguments: &str) -> Option<(&str, &str)> {
    let (target, mut words) = target_and_rest(arguments)?;
    let filter = words.next().filter(|it| it.starts_with(|c: char| c.is_ascii_lowercase()))?;
    Some((target, filter))
}

#[test]
fn filters_of_test_commands_are_found() {
    for (arguments, filter) in [
        ("--locked --test crash -- --nocapture", None),
        ("--release --test soak a_long_run -- --nocapture", Some(("soak", "a_long_run"))),
        ("--lib telemetry", Some(("--lib", "telemetry"))),
        ("--locked", None),
    ] {
        assert_eq!(filter_of(arguments), filter, "{arguments}");
    }
}

#[test]
fn source_reader_skips_strings_comments_and_tests() {
    let file = Source::new(
        "core/src/wire/x.rs",
        "//! a\n//! b\nfn f() {\n    let s = \"crate::proxy } // \";\n    // crate::admin {\n    let c = '}';\n    let r = r#\"fn g() {\"#;\n}\n#[cfg(test)]\nmod tests {\n    use crate::admin;\n}\n",
    );
    assert_eq!(file.product().count(), 8);
    assert!(!file.code.contains("crate::"), "strings, comments and tests are left out");
    assert_eq!(test_modules("src/a/mod.rs", "#[cfg(test)]\nmod b;"), ["src/a/b"]);
    assert_eq!(test_modules("src/a.rs", "#[cfg(test)]\npub(crate) mod b;"), ["src/a/b"]);
    assert_eq!(
        paths_after("use crate::{wire::json, proxy}; crate::admin::x", "crate::"),
        ["wire", "proxy", "admin"]
    );
    assert!(has_word("use tokio::net", "tokio"));
    assert!(!has_word("tokio_like", "tokio"));
}

/// Parts that no other part may import.
fn is_upper(part: &str) -> bool {
    matches!(part, "cli" | "demo")
}

/// A source file as the checks see it.
struct Source {
    /// Path from the project's root.
    name: String,
    /// First component under a `src`, without `.rs`.
    part: String,
    /// Unchanged.
    text: String,
    /// Comments and literals blanked, tests removed; the line numbers are the same.
    code: String,
}

impl Source {
    fn new(name: &str, text: &str) -> Self {
        let inside = name.trim_start_matches("core/").trim_start_matches("src/");
        let part = inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs");
        let mut code = blanked(text);
        if let Some(at) = tests_at(&code) {
            code.truncate(at);
        }
        Self { name: name.to_owned(), part: part.to_owned(), text: text.to_owned(), code }
    }

    /// Numbered lines of the product's code: comments and literals blanked, tests removed.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

/// Where the test module begins, which is last in a file. A module in a file of its own does not count.
fn tests_at(code: &str) -> Option<usize> {
    code.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(|at| {
        code[*at..]
            .lines()
            .skip(1)
            .find(|line| !line.trim_start().starts_with("#["))
            .is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    })
}

/// Runs a check over every product source and fails with all findings at once.
fn check(rule: impl Fn(&Source, &mut dyn FnMut(usize, String))) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = String::new();
    let mut seen = 0;
    let named = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    let all = ["core/src", "replay/src", "src"]
        .into_iter()
        .flat_map(|folder| sources(&root.join(folder)));
    let files: Vec<(String, String)> = all.map(named).collect();
    let tests: Vec<String> =
        files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    for (name, text) in &files {
        let is_test = |module: &String| {
            *name == format!("{module}.rs") || name.starts_with(&format!("{module}/"))
        };
        if name.contains("/testing/") || tests.iter().any(is_test) {
            continue;
        }
        seen += 1;
        let file = Source::new(name, text);
        rule(&file, &mut |line, what| {
            let _ = writeln!(found, "{name}:{line}: {what}");
        });
    }
    assert!(seen > 20, "only {seen} files found");
    assert!(found.is_empty(), "\n{found}");
}

/// Modules that a file declares only for tests, as paths without `.rs`.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let here = name.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let (_, module) = pair[1].strip_suffix(';')?.split_once("mod ")?;
        Some(format!("{here}/{module}"))
    });
    declared.collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// First path components after `prefix`, groups in braces included.
fn paths_after<'c>(code: &'c str, prefix: &str) -> Vec<&'c str> {
    let word = |text: &'c str| {
        &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
    };
    let mut all = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0;
                let mut fresh = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' => fresh = depth == 0 || fresh,
                        c if fresh && !c.is_whitespace() => {
                            all.push(word(&group[i..]));
                            fresh = false;
                        }
                        _ => {}
                    }
                }
            }
            None => all.push(word(rest)),
        }
    }
    all
}

fn has_word(code: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(inside) && !code[at + word.len()..].starts_with(inside)
    })
}

/// Keyword and name of what a line declares.
fn declared(code: &str) -> Vec<(&str, &str)> {
    let tokens: Vec<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    tokens
        .windows(2)
        .filter(|pair| matches!(pair[0], "fn" | "struct" | "enum" | "trait" | "mod" | "type"))
        .map(|pair| (pair[0], pair[1]))
        .collect()
}

/// Cargo's metadata of the packages in this build, without the network.
fn metadata() -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Whether an SPDX expression can be satisfied with [`LICENCES`].
fn licence_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace(" WITH ", "\u{1}");
    let tokens: Vec<String> =
        spaced.split_whitespace().map(|token| token.replace('\u{1}', " WITH ")).collect();
    let mut at = 0;
    let allowed = any_of(&tokens, &mut at);
    allowed && at == tokens.len()
}

fn any_of(tokens: &[String], at: &mut usize) -> bool {
    let mut allowed = all_of(tokens, at);
    while tokens.get(*at).is_some_and(|token| token == "OR") {
        *at += 1;
        allowed |= all_of(tokens, at);
    }
    allowed
}

fn all_of(tokens: &[String], at: &mut usize) -> bool {
    let mut allowed = one(tokens, at);
    while tokens.get(*at).is_some_and(|token| token == "AND") {
        *at += 1;
        allowed &= one(tokens, at);
    }
    allowed
}

fn one(tokens: &[String], at: &mut usize) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if token != "(" {
        return LICENCES.contains(&token.as_str());
    }
    let allowed = any_of(tokens, at);
    *at += 1;
    allowed
}
