//! Recorded refusals: exactly those are recognised that say that a request does not fit.

use std::path::Path;

use plimsoll::dialect::overflow::{ErrorResponse, overflow};
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
    assert!(limits >= 5 && others >= 40, "{limits} limits, {others} others");
    let numbers = |(who, seen): &(String, _)| {
        let plimsoll::dialect::overflow::Overflow { window, input } = *seen;
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
