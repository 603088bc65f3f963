//! What belongs together in a list of items: calls and their outputs, reasoning and the item it led
//! to (`docs/protocols.md` 3.2).
//!
//! Reasoning and items are paired by their ids alone: an item sent inline without one is not checked.

use std::collections::{HashMap, HashSet};

use super::{Item, refuse_at};
use crate::strict::prompt::text;
use crate::strict::reply_store::Book;
use crate::strict::verdict::{Refusal, Rule};

/// Calls that have to be answered.
const CALLS: [&str; 6] = [
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
];

/// Checks all pairs. `seals` are those of the reasoning items, by place.
pub(super) fn check(
    book: &Book,
    list: &[Item<'_>],
    seals: &HashMap<usize, usize>,
) -> Result<(), Refusal> {
    outputs(list)?;
    followed(book, list)?;
    led(book, list, seals)
}

/// Every call has one output after it, every output a call before it.
fn outputs(list: &[Item<'_>]) -> Result<(), Refusal> {
    let mut open: Vec<(&str, &str)> = Vec::new();
    let mut closed = HashSet::new();
    for (at, item) in list.iter().enumerate() {
        let id = text(item.field("call_id"));
        if CALLS.contains(&item.kind.as_str()) {
            if closed.contains(id) || open.iter().any(|(_, open)| *open == id) {
                let message = format!("Duplicate tool call found with call_id {id}.");
                return refuse_at(Rule::ToolIdsUnique, &format!("input[{at}].call_id"), message);
            }
            open.push((item.kind.as_str(), id));
        }
        let Some(call) = item.kind.strip_suffix("_output").filter(|call| CALLS.contains(call))
        else {
            continue;
        };
        let Some(found) = open.iter().position(|one| *one == (call, id)) else {
            let what = call.replace('_', " ");
            let message = format!("No tool call found for {what} output with call_id {id}.");
            return refuse_at(Rule::ResultWithoutCall, "input", message);
        };
        open.swap_remove(found);
        closed.insert(id);
    }
    match open.first() {
        None => Ok(()),
        Some((kind, id)) => {
            let what = kind.replace('_', " ");
            let message = format!("No tool output found for {what} {id}.");
            refuse_at(Rule::CallUnanswered, "input", message)
        }
    }
}

/// A reasoning item with an id stands right before the item it led to.
fn followed(book: &Book, list: &[Item<'_>]) -> Result<(), Refusal> {
    for (at, item) in list.iter().enumerate().filter(|(_, item)| item.kind == "reasoning") {
        let Some(id) = item.id() else { continue };
        let Some(expected) = book.item(id).map(|item| item.led_to.as_deref()) else { continue };
        let Some(expected) = expected else { continue };
        let next = list[at + 1..].iter().find(|item| item.kind != "reasoning");
        let fits = next.is_some_and(|next| match next.id() {
            Some(next) => next == expected,
            None => is_output(next),
        });
        if !fits {
            let message = format!(
                "Item '{id}' of type 'reasoning' was provided without its required following item."
            );
            return refuse_at(Rule::ReasoningWithoutItem, "input", message);
        }
    }
    Ok(())
}

fn is_output(item: &Item<'_>) -> bool {
    item.kind == "message" && item.field("role") == "assistant"
        || CALLS.contains(&item.kind.as_str())
}

/// An item with an id comes with the reasoning that led to it.
fn led(book: &Book, list: &[Item<'_>], seals: &HashMap<usize, usize>) -> Result<(), Refusal> {
    let inline = seals.values().filter_map(|number| book.numbered(*number));
    let mut there: HashSet<&str> = inline.map(|seal| seal.id.as_str()).collect();
    there.extend(list.iter().filter_map(Item::id));
    for item in list {
        let Some(issued) = item.id().and_then(|id| book.item(id)) else { continue };
        if let Some(gone) = issued.reasoning.iter().find(|id| !there.contains(id.as_str())) {
            let message = format!(
                "Item '{}' of type '{}' was provided without its required 'reasoning' item: '{gone}'.",
                issued.id, item.kind
            );
            return refuse_at(Rule::ItemWithoutReasoning, "input", message);
        }
    }
    Ok(())
}
