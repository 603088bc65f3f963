//! What the definitions of a provider's own tools cost: a request has only their names.
//!
//! As recorded in first calls (`docs/estimates.md` 5). Knows no text.

use memchr::memmem;

use crate::dialect::models::Family;
use crate::wire::json::Document;

/// The tokens of a tool's definition, beside those of what the request shows of it: 0 for a client's own, `None` if
/// nobody recorded them. `shown`: the tool as the request has it.
pub(super) fn definition(family: Family, name: &str, shown: &[u8]) -> Option<u32> {
    // A client may give a tool of its own the same name: that one has a schema.
    if [&b"\"input_schema\""[..], b"\"parameters\""]
        .iter()
        .any(|member| memmem::find(shown, member).is_some())
    {
        return Some(0);
    }
    let document = Document::read(shown).unwrap_or_default();
    let kind = document.root(shown).and_then(|tool| tool.get_text("type")).unwrap_or_default();
    // Programs may filter what the model searches for, unless only the model may call the tool.
    let may_filter = memmem::find(shown, b"\"allowed_callers\"").is_none();
    match family {
        Family::Claude => claude(name, &kind, may_filter),
        // Those that were recorded with these models, too.
        Family::ClaudeNew if name.starts_with("tool_search_tool") => Some(280),
        // The same text takes so many more tokens.
        Family::ClaudeNew => Some(claude(name, &kind, may_filter)? * 156 / 115),
        Family::O200k | Family::Cl100k => gpt(&kind),
        // Functions have names, and clients send `null` for tools that they do not use.
        Family::Gemini if shown == b"null" => Some(0),
        Family::Gemini if memmem::find(shown, b"\"name\"").is_none() => None,
        Family::Gemini | Family::Other => Some(0),
    }
}

fn claude(name: &str, kind: &str, may_filter: bool) -> Option<u32> {
    Some(match name {
        "bash" => 216,
        "str_replace_editor" | "str_replace_based_edit_tool" => 700,
        "memory" => 1_042,
        // From 2026 on programs filter what these find, and the model is told how.
        "web_search" if kind > "web_search_2026" && may_filter => 4_300,
        "web_search" => 1_650,
        "web_fetch" if kind > "web_fetch_2026" && may_filter => 2_900,
        "web_fetch" => 470,
        "code_execution" if kind > "code_execution_20250801" => 1_720,
        "advisor" => 506,
        // Not recorded: Anthropic's page "Pricing" says 735 in all.
        "computer" => 700,
        _ if name.starts_with("tool_search_tool") => 130,
        // A tool of the client's that has no schema.
        _ if kind.is_empty() || kind == "custom" => 0,
        _ => return None,
    })
}

fn gpt(kind: &str) -> Option<u32> {
    Some(match kind {
        "code_interpreter" => 652,
        "image_generation" => 329,
        "web_search" => 273,
        // Instructions come with the first tool that is not loaded.
        "tool_search" | "function" | "custom" | "namespace" | "" => 0,
        _ => return None,
    })
}
