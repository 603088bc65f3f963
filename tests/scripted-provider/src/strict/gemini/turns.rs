//! Calls and responses by turns: as many responses as calls, right after them, and calls only after
//! the user or a response (`docs/protocols.md` 5.2).
//!
//! Names have to match, and ids if both have one.

use serde_json::Value;

use super::{ContentRun, refuse};
use crate::strict::verdict::{ApiError, Rule};

/// Checks all turns.
pub(super) fn check(turns: &[ContentRun<'_>]) -> Result<(), ApiError> {
    let mut open_calls: Vec<&Value> = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        let responses: Vec<&Value> = turn.responses().collect();
        if !responses.is_empty() && open_calls.is_empty() {
            return refuse(
                Rule::ResultWithoutCall,
                "Please ensure that function response turn comes immediately after a function call turn.",
            );
        }
        if !open_calls.is_empty() {
            check_match(&open_calls, &responses)?;
        }
        open_calls = turn.calls().collect();
        if !open_calls.is_empty() && (turn.role != "model" || at == 0) {
            return refuse(
                Rule::TurnOrder,
                "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
            );
        }
    }
    match open_calls.is_empty() {
        true => Ok(()),
        false => refuse_count(),
    }
}

fn refuse_count() -> Result<(), ApiError> {
    refuse(
        Rule::ResponseCount,
        "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
    )
}

fn check_match(calls: &[&Value], responses: &[&Value]) -> Result<(), ApiError> {
    if calls.len() != responses.len() {
        return refuse_count();
    }
    let mut open: Vec<&&Value> = calls.iter().collect();
    for response in responses {
        let fits = |call: &&&Value| {
            let ids = (call["id"].as_str(), response["id"].as_str());
            call["name"] == response["name"] && !matches!(ids, (Some(a), Some(b)) if a != b)
        };
        match open.iter().position(fits) {
            Some(found) => drop(open.remove(found)),
            None => {
                return refuse(
                    Rule::ResponseForm,
                    format!(
                        "Function response {} with id {} does not match any function call of the function call turn.",
                        response["name"], response["id"]
                    ),
                );
            }
        }
    }
    Ok(())
}
