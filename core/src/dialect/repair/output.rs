//! The output limit: its places in a body, and the edits that lower it.
//!
//! A thinking budget has to be smaller than the limit (`docs/protocols.md` 1.2), so it is lowered, too.

use crate::dialect::Dialect;
use crate::dialect::rewrite::edit;
use crate::wire::json::Value;
use crate::wire::splice::Edit;

/// Anthropic refuses smaller thinking budgets, tokens.
const LEAST_BUDGET: u64 = 1024;
/// The fraction (1/n) of the output that is kept for the reply beside thinking.
const ANSWER: u64 = 4;

/// The output limit of a request, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit(pub u64);

impl OutputLimit {
    /// The largest limit in a request.
    pub(crate) fn of(dialect: Dialect, root: Value<'_>) -> Option<Self> {
        limits(dialect, root).into_iter().filter_map(|limit| limit.as_u64()).max().map(Self)
    }
}

/// The edits after which at most `most` tokens are requested.
pub(super) fn edits(dialect: Dialect, root: Value<'_>, most: u64) -> Vec<Edit> {
    let most = most.max(1);
    let lowered = limits(dialect, root).into_iter().filter(|limit| limit.as_u64() > Some(most));
    let mut edits: Vec<Edit> = lowered.map(|at| edit(at.span(), most.to_string())).collect();
    let budget = root.path(&["thinking", "budget_tokens"]);
    let budget = budget.filter(|budget| !edits.is_empty() && budget.as_u64() >= Some(most));
    if let Some(budget) = budget {
        let room = most.saturating_sub((most / ANSWER).max(1)).max(LEAST_BUDGET);
        edits.push(edit(budget.span(), room.min(most.saturating_sub(1)).to_string()));
    }
    edits
}

fn limits<'d>(dialect: Dialect, root: Value<'d>) -> Vec<Value<'d>> {
    match dialect {
        Dialect::Anthropic => root.get("max_tokens").into_iter().collect(),
        Dialect::OpenaiChat => {
            ["max_tokens", "max_completion_tokens"].iter().filter_map(|it| root.get(it)).collect()
        }
        Dialect::OpenaiResponses => root.get("max_output_tokens").into_iter().collect(),
        Dialect::Gemini => {
            let config = root.get_any(&["generationConfig", "generation_config"]);
            let limit = config.and_then(|it| it.get_any(&["maxOutputTokens", "max_output_tokens"]));
            limit.into_iter().collect()
        }
    }
}
