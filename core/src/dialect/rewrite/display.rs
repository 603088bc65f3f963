//! Requests a summary of the model's thinking, if the client asked for thinking and did not say how to show
//! it.
//!
//! The prompt does not change: this is an option of the request. Must not know which models omit it.

use super::beside::{edit, first_member};
use crate::dialect::Dialect;
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// The edit that requests it; `None` if the client asked for no thinking, or said how to show it.
pub fn show_thinking(dialect: Dialect, body: &[u8]) -> Option<Edit> {
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    match dialect {
        Dialect::Anthropic => {
            let thinking = root.get("thinking")?;
            let thinks = matches!(&*thinking.get_text("type")?, "adaptive" | "enabled");
            adds(thinking, thinks, &["display"], "\"display\":\"summarized\"", body)
        }
        Dialect::OpenaiResponses => {
            let reasoning = root.get("reasoning")?;
            let thinks = reasoning.get_text("effort")? != "none";
            let names = &["summary", "generate_summary"];
            adds(reasoning, thinks, names, "\"summary\":\"auto\"", body)
        }
        Dialect::Gemini => {
            let inner = root.get("request").filter(|inner| inner.kind() == Kind::Object);
            let config = inner.unwrap_or(root);
            let config = config.get_any(&["generationConfig", "generation_config"])?;
            let thinking = config.get_any(&["thinkingConfig", "thinking_config"])?;
            let budget = thinking.get_any(&["thinkingBudget", "thinking_budget"]);
            let level = thinking.get_any(&["thinkingLevel", "thinking_level"]);
            let thinks = level.is_some() || budget.is_some_and(|budget| budget.raw() != b"0");
            let names = &["includeThoughts", "include_thoughts"];
            adds(thinking, thinks, names, "\"includeThoughts\":true", body)
        }
        // Providers of this dialect decide themselves what is shown.
        Dialect::OpenaiChat => None,
    }
}

fn adds(
    object: Value<'_>,
    thinks: bool,
    names: &[&str],
    member: &str,
    body: &[u8],
) -> Option<Edit> {
    let is_set = names.iter().any(|name| object.get(name).is_some_and(|value| !value.is_null()));
    if object.kind() != Kind::Object || !thinks || is_set {
        return None;
    }
    match names.iter().find_map(|name| object.get(name)) {
        // Only the value changes, so that no name occurs twice.
        Some(null) => Some(edit(null.span(), member.split_once(':')?.1.to_owned())),
        None => first_member(body, object.span().start, member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::splice::applied;

    fn shown(dialect: Dialect, body: &str) -> Option<String> {
        let edit = show_thinking(dialect, body.as_bytes())?;
        Some(String::from_utf8(applied(body.as_bytes(), &[edit])).unwrap())
    }

    #[test]
    fn display_is_added_to_thinking() {
        for (dialect, body, expected) in [
            (
                Dialect::Anthropic,
                r#"{"thinking":{"type":"adaptive"}}"#,
                r#"{"thinking":{"display":"summarized","type":"adaptive"}}"#,
            ),
            (
                Dialect::Anthropic,
                r#"{"thinking": {"type":"enabled","budget_tokens":2000,"display":null}}"#,
                r#"{"thinking": {"type":"enabled","budget_tokens":2000,"display":"summarized"}}"#,
            ),
            (
                Dialect::OpenaiResponses,
                r#"{"reasoning":{"effort":"high"}}"#,
                r#"{"reasoning":{"summary":"auto","effort":"high"}}"#,
            ),
            (
                Dialect::OpenaiResponses,
                r#"{"reasoning":{"effort":"low","summary":null}}"#,
                r#"{"reasoning":{"effort":"low","summary":"auto"}}"#,
            ),
            (
                Dialect::Gemini,
                r#"{"generationConfig":{"thinkingConfig":{"thinkingBudget":-1}}}"#,
                r#"{"generationConfig":{"thinkingConfig":{"includeThoughts":true,"thinkingBudget":-1}}}"#,
            ),
            (
                Dialect::Gemini,
                r#"{"request":{"generationConfig":{"thinkingConfig":{"thinkingLevel":"high"}}}}"#,
                r#"{"request":{"generationConfig":{"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"high"}}}}"#,
            ),
        ] {
            assert_eq!(shown(dialect, body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn requests_without_thinking_or_with_display_are_left_alone() {
        for (dialect, body) in [
            (Dialect::Anthropic, r#"{"messages":[]}"#),
            (Dialect::Anthropic, r#"{"thinking":{"type":"disabled"}}"#),
            (Dialect::Anthropic, r#"{"thinking":{"type":"adaptive","display":"omitted"}}"#),
            (Dialect::Anthropic, r#"{"thinking":7}"#),
            (Dialect::OpenaiResponses, r#"{"reasoning":{"effort":"none"}}"#),
            (Dialect::OpenaiResponses, r#"{"reasoning":{}}"#),
            (Dialect::OpenaiResponses, r#"{"reasoning":{"effort":"high","summary":"detailed"}}"#),
            (Dialect::Gemini, r#"{"generationConfig":{"thinkingConfig":{"thinkingBudget":0}}}"#),
            (
                Dialect::Gemini,
                r#"{"generationConfig":{"thinkingConfig":{"thinkingLevel":"low","includeThoughts":false}}}"#,
            ),
            (Dialect::OpenaiChat, r#"{"reasoning_effort":"high"}"#),
            (Dialect::Anthropic, "{"),
        ] {
            assert_eq!(shown(dialect, body), None, "{body}");
        }
    }
}
