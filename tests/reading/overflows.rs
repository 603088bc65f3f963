//! Recorded refusals: exactly those are recognised that say that a request does not fit.

use std::path::Path;

use plimsoll::context::overflow::is_near;
use plimsoll::dialect::overflow::{ErrorResponse, Overflow, overflow};
use serde_json::Value;

#[test]
fn recorded_overflows_are_recognised_and_other_refusals_are_not() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/refusals/recorded.jsonl");
    let lines = std::fs::read_to_string(file).unwrap();
    let (mut overflows, mut limits, mut others) = (Vec::new(), 0, 0);
    for line in lines.lines() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let (status, body) = (recorded["status"].as_u64().unwrap(), recorded["body"].as_str());
        let (status, body) = (u16::try_from(status).unwrap(), body.unwrap().as_bytes());
        let seen = overflow(&ErrorResponse { status, host: "", body });
        assert_eq!(Some(seen.is_some()), recorded["overflow"].as_bool(), "{line}");
        match seen {
            Some(seen) => {
                overflows.push((recorded["provider"].as_str().unwrap().to_owned(), seen));
            }
            None if status == 429 => {
                limits += 1;
                // Nor if a gateway uses another status.
                for status in [400, 413, 200] {
                    assert_eq!(overflow(&ErrorResponse { status, host: "", body }), None, "{line}");
                }
            }
            None => others += 1,
        }
    }
    assert!(limits >= 5, "{limits} limits, {others} others");
    assert!(others >= 40, "{limits} limits, {others} others");
    let numbers = |(who, seen): &(String, Overflow)| {
        let Overflow { window, input, .. } = *seen;
        (who.clone(), window, input)
    };
    let mut numbers: Vec<_> = overflows.iter().map(numbers).collect();
    numbers.sort();
    let expected = [
        ("anthropic", Some(200_000), Some(3_333_404)),
        ("deepseek", Some(1_048_565), Some(1_250_025)),
        ("google-vertex", Some(1_048_576), Some(1_250_074)),
        ("llamacpp", Some(512), Some(2009)),
        ("openai", None, None),
        // "About" a number is no count.
        ("openrouter", Some(200_000), None),
        ("perplexity", None, None),
    ];
    let expected = expected.map(|(who, window, input)| (who.to_owned(), window, input));
    assert_eq!(numbers, expected);
}

/// The texts of many servers and gateways: history is too long, only the output is, or it is something else.
#[test]
fn texts_of_servers_are_told_apart() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/refusals/texts.jsonl");
    let lines = std::fs::read_to_string(file).unwrap();
    let mut wrong = Vec::new();
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let status = u16::try_from(row["status"].as_u64().unwrap()).unwrap();
        let body = row["body"].as_str().unwrap().as_bytes();
        let seen = overflow(&ErrorResponse { status, host: "", body });
        // A text that was inferred counts if its numbers are near those of the request.
        let (window, input) = (row["window"].as_u64(), row["input"].as_u64());
        let estimate = input.or(window).unwrap_or(60_500) / 20 * 21;
        let seen = seen.filter(|seen| !seen.is_inferred || is_near(seen, estimate, Some(64_000)));
        let verdict = match &seen {
            None => "none",
            // The prompt fits by the provider's own count: only the output is too large.
            Some(seen)
                if seen.input.zip(seen.window).is_some_and(|(input, window)| input < window) =>
            {
                "output"
            }
            Some(_) => "history",
        };
        let numbers = seen.map(|seen| (seen.window, seen.input)).unwrap_or_default();
        if row["verdict"] != verdict || numbers != (window, input) {
            wrong.push(format!("{verdict} {numbers:?}: {line}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
