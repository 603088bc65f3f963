//! `plimsoll demo`, as a person runs it: it needs no key and no network, and what it shows is what
//! the proxy measured.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::process::Command;

#[test]
fn the_demo_shows_every_call_estimated_and_counted() {
    let done = Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("demo").output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}\n{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(told.matches("Context Usage: ").count(), 18, "{told}");
    let (_, table) = told.split_once("Every call").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| {
            row.first().is_some_and(|it| it.starts_with("claude-") || it.starts_with("gpt-"))
        })
        .collect();
    assert_eq!(rows.len(), 18 + told.matches("\n   call ").count(), "{table}");
    for row in rows {
        let [estimated, actual, error] =
            [row[2], row[3], row[4]].map(|n| n.parse::<i64>().unwrap());
        assert!(estimated > 0 && actual > 0, "{row:?}");
        assert_eq!(error, estimated - actual, "{row:?}");
    }
    for what in ["tool results cut (", "of reasoning put back (", "1 history compacted (1 new)"] {
        assert!(told.contains(what), "{what}: {told}");
    }
    assert!(!told.contains("refused the rewrite") && !told.contains("(lost)"), "{told}");
}
