//! Requests of real clients are rewritten at every possible place, and the invariants hold.
//!
//! The invariants are in `dialect::rewrite::invariants`. The project's recordings are always read; the corpus if there
//! is one.

use serde_json::Value;

use crate::dialect::recordings::{DIALECTS, corpus, data, files};
use crate::dialect::rewrite::invariants::{self, InvariantCounts};
use crate::dialect::{Dialect, paths};

/// Longest request whose places are tried one by one: for each part, it is read about three times.
const MOST: usize = 24_000;

fn apply(dialect: Dialect, target: &str, body: &[u8], tried: &mut [InvariantCounts; 4]) {
    let of = DIALECTS.iter().position(|(known, _)| *known == dialect).unwrap();
    tried[of] += invariants::together(dialect, target, body);
    if body.len() <= MOST {
        tried[of] += invariants::one_by_one(dialect, target, body);
    }
}

#[test]
fn recorded_clients_obey_rules() {
    let mut tried = [InvariantCounts::default(); 4];
    for path in
        files(&data("agents")).iter().filter(|path| path.extension().is_some_and(|it| it == "zst"))
    {
        let text = zstd::decode_all(std::fs::read(path).unwrap().as_slice()).unwrap();
        for line in String::from_utf8(text).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let (target, body) = (line["target"].as_str(), line["body"].as_str());
            let (Some(target), Some(body)) = (target, body.filter(|body| !body.is_empty())) else {
                continue;
            };
            if let Some(endpoint) = paths::endpoint(&http::Method::POST, target) {
                apply(endpoint.dialect, target, body.as_bytes(), &mut tried);
            }
        }
    }
    check(&tried, 400, 30);
}

#[test]
fn corpus_is_rewritten_by_rules() {
    let Some(corpus) = corpus() else { return };
    let mut tried = [InvariantCounts::default(); 4];
    for folder in ["conversations", "conversations_partial"] {
        for (dialect, name) in DIALECTS {
            for path in files(&corpus.join(folder).join(name)) {
                for line in std::fs::read_to_string(path).unwrap().lines() {
                    let call: Value = serde_json::from_str(line).unwrap();
                    let target = call["endpoint"].as_str().unwrap_or_default();
                    let request = serde_json::to_vec(&call["request"]).unwrap();
                    apply(dialect, target, &request, &mut tried);
                }
            }
        }
    }
    check(&tried, 700, 40);
}

/// Each dialect had enough rewrites of each kind.
fn check(tried: &[InvariantCounts; 4], many: usize, some: usize) {
    for ((_, name), of) in DIALECTS.iter().zip(tried) {
        assert!(of.cut >= many, "{name}: {of:?}");
        assert!(of.put_back >= many, "{name}: {of:?}");
        assert!(of.removed >= some, "{name}: {of:?}");
        let has_signatures = matches!(*name, "gemini" | "openai-chat");
        assert_eq!(of.signatures_restored >= some, has_signatures, "{name}: {of:?}");
    }
}
