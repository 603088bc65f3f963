//! Pairs in a list of items: calls and their outputs, reasoning and the item that follows from it
//! (`docs/protocols.md` 3.2).
//!
//! Reasoning and items are paired only by their ids: an item sent inline without one is not checked.

use std::collections::{HashMap, HashSet};

use super::{InputItem, refuse_at};
use crate::strict::prompt::text;
use crate::strict::reply_store::ReplyStore;
use crate::strict::verdict::{ApiError, Rule};

/// Calls that need an output.
const CALLS: [&str; 6] = [
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
];

/// Checks all pairs. `signatures` has the signature number of each reasoning item, by place.
pub(super) fn check(
    store: &ReplyStore,
    list: &[InputItem<'_>],
    signatures: &HashMap<usize, usize>,
) -> Result<(), ApiError> {
    check_outputs(list)?;
    check_following_items(store, list)?;
    check_required_reasoning(store, list, signatures)
}

fn check_outputs(list: &[InputItem<'_>]) -> Result<(), ApiError> {
    // Every call has one output after it, every output a call before it.
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
        let Some(found) = open.iter().position(|open| *open == (call, id)) else {
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

fn check_following_items(store: &ReplyStore, list: &[InputItem<'_>]) -> Result<(), ApiError> {
    // A reasoning item with an id is right before the item that follows from it.
    for (at, item) in list.iter().enumerate().filter(|(_, item)| item.kind == "reasoning") {
        let Some(id) = item.id() else { continue };
        let Some(expected) = store.item(id).map(|item| item.following.as_deref()) else { continue };
        let Some(expected) = expected else { continue };
        let next_item = list[at + 1..].iter().find(|item| item.kind != "reasoning");
        let is_followed = next_item.is_some_and(|item| match item.id() {
            Some(id) => id == expected,
            None => is_output(item),
        });
        if !is_followed {
            let message = format!(
                "Item '{id}' of type 'reasoning' was provided without its required following item."
            );
            return refuse_at(Rule::ReasoningWithoutItem, "input", message);
        }
    }
    Ok(())
}

fn is_output(item: &InputItem<'_>) -> bool {
    item.kind == "message" && item.field("role") == "assistant"
        || CALLS.contains(&item.kind.as_str())
        || item.kind.starts_with("program")
}

fn check_required_reasoning(
    store: &ReplyStore,
    list: &[InputItem<'_>],
    signatures: &HashMap<usize, usize>,
) -> Result<(), ApiError> {
    // An item with an id comes with the reasoning before it.
    let inline = signatures.values().filter_map(|number| store.signature(*number));
    let mut present: HashSet<&str> = inline.map(|signature| signature.item_id.as_str()).collect();
    present.extend(list.iter().filter_map(InputItem::id));
    for item in list {
        let Some(issued) = item.id().and_then(|id| store.item(id)) else { continue };
        if let Some(missing) = issued.reasoning.iter().find(|id| !present.contains(id.as_str())) {
            let message = format!(
                "Item '{}' of type '{}' was provided without its required 'reasoning' item: '{missing}'.",
                issued.id, item.kind
            );
            return refuse_at(Rule::ItemWithoutReasoning, "input", message);
        }
    }
    Ok(())
}
