//! Calls and responses by turns: as many responses as calls, right after them, and calls only after
//! the user or a response (`docs/protocols.md` 5.2).
//!
//! Ids are optional; where both have one, and in their names, they have to match.

use serde_json::Value;

use super::{Turn, refuse};
use crate::strict::verdict::{Refusal, Rule};

/// Checks all turns.
pub(super) fn check(turns: &[Turn<'_>]) -> Result<(), Refusal> {
    let mut waiting: Vec<&Value> = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        let answers: Vec<&Value> = turn.responses().collect();
        if !answers.is_empty() && waiting.is_empty() {
            return refuse(
                Rule::ResultWithoutCall,
                "Please ensure that function response turn comes immediately after a function call turn.",
            );
        }
        if !waiting.is_empty() {
            matched(&waiting, &answers)?;
        }
        waiting = turn.calls().collect();
        if !waiting.is_empty() && (turn.role != "model" || at == 0) {
            return refuse(
                Rule::TurnOrder,
                "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
            );
        }
    }
    match waiting.is_empty() {
        true => Ok(()),
        false => unequal(),
    }
}

fn unequal() -> Result<(), Refusal> {
    refuse(
        Rule::ResponseCount,
        "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
    )
}

fn matched(calls: &[&Value], answers: &[&Value]) -> Result<(), Refusal> {
    if calls.len() != answers.len() {
        return unequal();
    }
    let mut open: Vec<&&Value> = calls.iter().collect();
    for answer in answers {
        let fits = |call: &&&Value| {
            let ids = (call["id"].as_str(), answer["id"].as_str());
            call["name"] == answer["name"] && !matches!(ids, (Some(a), Some(b)) if a != b)
        };
        match open.iter().position(fits) {
            Some(found) => drop(open.remove(found)),
            None => {
                return refuse(
                    Rule::ResponseForm,
                    format!(
                        "Function response {} with id {} does not match any function call of the function call turn.",
                        answer["name"], answer["id"]
                    ),
                );
            }
        }
    }
    Ok(())
}
