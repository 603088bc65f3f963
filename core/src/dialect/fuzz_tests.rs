//! The fuzz functions run over the golden cases: whole, cut in half, and with changed bytes.
//!
//! `fuzz/` runs the same functions for longer.

use super::recordings::{DIALECTS, data, files};
use super::{
    Dialect, anthropic, gemini, model_list, openai_chat, openai_responses, paths, reading, rewrite,
};
use crate::wire::{encoding, json, splice, sse, websocket};

/// Longest file that is fuzzed: the functions read their input about a hundred times.
const MOST: usize = 6000;

#[test]
fn golden_cases_pass_fuzz_functions() {
    let golden = data("golden");
    let mut count = 0;
    for (dialect, name) in DIALECTS {
        for case in files(&golden.join(name)) {
            for file in files(&case).iter().filter(|file| !file.ends_with("expected.json")) {
                let bytes = std::fs::read(file).unwrap();
                if bytes.len() <= MOST {
                    attack(dialect, &bytes);
                    attack(dialect, &bytes[..bytes.len() / 2]);
                    attack(dialect, &bent(&bytes));
                    count += 1;
                }
            }
        }
    }
    assert!(count > 80, "golden cases are missing: {count}");
}

/// Request targets, as they are and with each character replaced by one with a meaning in a target.
#[test]
fn fuzz_functions_hold_over_targets() {
    let targets = include_str!("../../../tests/data/targets.txt");
    for target in targets.lines() {
        paths::fuzz(target.as_bytes());
        for at in 0..target.len() {
            for with in
                ["/", "//", "?", "%2f", "%2", "..", "%00", "&key=", "#", "@", ":", "\\", "\u{fffd}"]
            {
                let mut bent = target.to_owned();
                bent.replace_range(at..=at, with);
                paths::fuzz(bent.as_bytes());
            }
        }
    }
    assert!(targets.lines().count() > 20);
}

fn attack(dialect: Dialect, bytes: &[u8]) {
    sse::fuzz(bytes);
    json::fuzz(bytes);
    splice::fuzz(bytes);
    encoding::fuzz(bytes);
    websocket::fuzz(bytes);
    rewrite::fuzz(bytes);
    paths::fuzz(bytes);
    model_list::fuzz(bytes);
    reading::fuzz(dialect, bytes);
    match dialect {
        Dialect::Anthropic => anthropic::fuzz(bytes),
        Dialect::OpenaiChat => openai_chat::fuzz(bytes),
        Dialect::OpenaiResponses => openai_responses::fuzz(bytes),
        Dialect::Gemini => gemini::fuzz(bytes),
    }
}

/// The bytes that replace others: each has a meaning for one of the readers.
const BENT: &[u8] = b"\0\r\n\"{}[],:\\\xff0e-";

fn bent(bytes: &[u8]) -> Vec<u8> {
    // The choice depends only on the length, so that a failure can be repeated.
    let mut bent = bytes.to_vec();
    let mut state = bytes.len() as u64;
    for _ in 0..bytes.len() / 100 + 1 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (state >> 33) as usize % bent.len().max(1);
        if let Some(byte) = bent.get_mut(index) {
            *byte = BENT[(state >> 20) as usize % BENT.len()];
        }
    }
    bent
}
