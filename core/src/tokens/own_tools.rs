//! What the definitions of a provider's own tools cost: a request has only their names.
//!
//! As recorded in first calls (`docs/estimates.md` 5). Knows no text.

use crate::dialect::models::Family;

/// The tokens of Claude's own tool of this name, beside those of what the request shows of it.
pub(super) fn definition(family: Family, name: &str) -> u32 {
    let is_search = name.starts_with("tool_search_tool");
    let tokens = match name {
        "bash" => 216,
        "str_replace_editor" | "str_replace_based_edit_tool" => 700,
        "memory" => 1_042,
        "web_search" => 1_650,
        // Not recorded: Anthropic's page "Pricing" says 735 in all.
        "computer" => 700,
        _ if is_search => 130,
        _ => 0,
    };
    match family {
        Family::Claude => tokens,
        Family::ClaudeNew if is_search => 280,
        // Not recorded: the same text takes so many more tokens.
        Family::ClaudeNew => tokens * 156 / 115,
        Family::O200k | Family::Cl100k | Family::Gemini | Family::Other => 0,
    }
}
