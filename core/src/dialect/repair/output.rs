//! The output limit: its places in a body, and the edits that lower it.
//!
//! A thinking budget has to be smaller than the limit (`docs/protocols.md` 1.2), so it is lowered, too. The largest
//! limit is also what a summary asks for.

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
    pub(crate) fn from_request(dialect: Dialect, root: Value<'_>) -> Option<Self> {
        limits(dialect, root).into_iter().filter_map(|limit| limit.as_u64()).max().map(Self)
    }
}

/// The edits after which at most `most` tokens are requested.
pub(super) fn edits(dialect: Dialect, root: Value<'_>, most: u64) -> Vec<Edit> {
    let limit = most.max(1);
    let lowered = limits(dialect, root).into_iter().filter(|value| value.as_u64() > Some(limit));
    let mut edits: Vec<Edit> = lowered.map(|value| edit(value.span(), limit.to_string())).collect();
    // A budget has to be smaller than the limit, and leave something for the answer.
    if !edits.is_empty()
        && let Some(budget) = thinking_budget(root)
        && budget.as_u64() >= Some(limit)
    {
        let room = limit.saturating_sub((limit / ANSWER).max(1)).max(LEAST_BUDGET);
        edits.push(edit(budget.span(), room.min(limit.saturating_sub(1)).to_string()));
    }
    edits
}

/// The output that a summary needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryOutput {
    /// Its own tokens.
    pub text: u64,
    /// How many tokens the window has room for beside the prompt, reasoning included.
    pub room: u64,
}

/// Tokens for reasoning where no budget is named.
const REASONING: u64 = 16_384;

/// The edits after which a request asks for the output that a summary needs, and for no more.
pub(crate) fn for_summary(dialect: Dialect, root: Value<'_>, needed: SummaryOutput) -> Vec<Edit> {
    let SummaryOutput { text, room } = needed;
    let budget = thinking_budget(root);
    let named = budget.and_then(|budget| budget.as_u64());
    // Only Anthropic's requests say that the model does not reason.
    let reasons = dialect != Dialect::Anthropic
        || root
            .path(&["thinking", "type"])
            .is_some_and(|kind| kind.text().as_deref() != Some("disabled"));
    let reasoning = named.unwrap_or(if reasons { REASONING } else { 0 });
    let output = text.saturating_add(reasoning).min(room).max(text);
    let mut edits = Vec::new();
    for value in limits(dialect, root) {
        let limit = value.as_u64().unwrap_or(text).clamp(text, output);
        if value.as_u64() != Some(limit) {
            edits.push(edit(value.span(), limit.to_string()));
        }
    }
    let room = output.saturating_sub(text).max(LEAST_BUDGET).min(output.saturating_sub(1));
    if named > Some(room)
        && let Some(budget) = budget
    {
        edits.push(edit(budget.span(), room.to_string()));
    }
    edits
}

fn thinking_budget<'d>(root: Value<'d>) -> Option<Value<'d>> {
    // In a dialect's own place, or a gateway's.
    let config = root.get_any(&["generationConfig", "generation_config"]);
    let thinking = config.and_then(|config| config.get_any(&["thinkingConfig", "thinking_config"]));
    root.path(&["thinking", "budget_tokens"])
        .or_else(|| root.path(&["reasoning", "max_tokens"]))
        .or_else(|| root.get("thinking_budget"))
        .or_else(|| thinking?.get_any(&["thinkingBudget", "thinking_budget"]))
}

fn limits<'d>(dialect: Dialect, root: Value<'d>) -> Vec<Value<'d>> {
    match dialect {
        Dialect::Anthropic => root.get("max_tokens").into_iter().collect(),
        Dialect::OpenaiChat => ["max_tokens", "max_completion_tokens"]
            .iter()
            .filter_map(|name| root.get(name))
            .collect(),
        Dialect::OpenaiResponses => root.get("max_output_tokens").into_iter().collect(),
        Dialect::Gemini => {
            let config = root.get_any(&["generationConfig", "generation_config"]);
            let names = ["maxOutputTokens", "max_output_tokens"];
            config.and_then(|config| config.get_any(&names)).into_iter().collect()
        }
    }
}
