//! Requests that the provider says why its cache was missed, and hides the answer from a client that did not ask
//! (`docs/protocols.md` 1.3, 7.2).
//!
//! The prompt does not change: this is an option of the request.

use super::beside::{edit, first_member, insert, literal, without_member};
use crate::dialect::Dialect;
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// The edit that requests it, compared with the response `previous`. `None` if the client asks itself, or the
/// dialect has no such option. Anthropic only stores what it compares with if it is asked from the first request
/// on.
pub fn diagnose(dialect: Dialect, body: &[u8], previous: Option<&str>) -> Option<Edit> {
    // New members come last, because other options are inserted first.
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    let id = previous.map(literal);
    let (name, member) = match dialect {
        Dialect::Anthropic => {
            let id = id.unwrap_or_else(|| "null".to_owned());
            ("diagnostics", format!("\"previous_message_id\":{id}"))
        }
        Dialect::OpenaiResponses => {
            ("prompt_cache_options", format!("\"comparison_response_id\":{}", id?))
        }
        Dialect::OpenaiChat | Dialect::Gemini => return None,
    };
    match root.get(name) {
        None => {
            root.entries().next()?;
            // Last, because other options are inserted first.
            let end = root.span().end.checked_sub(1)?;
            Some(insert(end, format!(",\"{name}\":{{{member}}}")))
        }
        Some(null) if null.is_null() => Some(edit(null.span(), format!("{{{member}}}"))),
        Some(options) => {
            let is_asked = dialect == Dialect::Anthropic || options.kind() != Kind::Object;
            if is_asked || options.get("comparison_response_id").is_some() {
                return None;
            }
            first_member(body, options.span().start, &member)
        }
    }
}

/// The edits that remove the answer from a response, or from an event of its stream.
pub fn hide_diagnosis(dialect: Dialect, body: &[u8]) -> Vec<Edit> {
    let document = Document::read(body).ok();
    let Some(root) = document.as_ref().and_then(|document| document.root(body)) else {
        return Vec::new();
    };
    let (inside, names): (_, &[&[&str]]) = match dialect {
        Dialect::Anthropic => ("message", &[&["diagnostics"]]),
        Dialect::OpenaiResponses => (
            "response",
            &[&["prompt_cache_diagnostics"], &["prompt_cache_options", "comparison_response_id"]],
        ),
        Dialect::OpenaiChat | Dialect::Gemini => return Vec::new(),
    };
    let objects = std::iter::once(root).chain(root.get(inside));
    let objects = objects.filter(|object| object.kind() == Kind::Object);
    let values = objects
        .flat_map(|object: Value<'_>| names.iter().filter_map(move |path| object.path(path)));
    values.filter_map(|value| without_member(body, value.span())).collect()
}

/// Whether a response, or a part of one, may have such an answer.
pub fn mentions_diagnosis(bytes: &[u8]) -> bool {
    let names = [&b"diagnostics\""[..], b"comparison_response_id\""];
    names.iter().any(|name| memchr::memmem::find(bytes, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::splice::applied;

    fn asked(dialect: Dialect, body: &str, previous: Option<&str>) -> Option<String> {
        let edit = diagnose(dialect, body.as_bytes(), previous)?;
        Some(String::from_utf8(applied(body.as_bytes(), &[edit])).unwrap())
    }

    #[test]
    fn diagnosis_is_requested_once() {
        let claude = |body: &str, previous| asked(Dialect::Anthropic, body, previous);
        assert_eq!(
            claude(r#"{"model":"m"}"#, Some("msg_1")).as_deref(),
            Some(r#"{"model":"m","diagnostics":{"previous_message_id":"msg_1"}}"#)
        );
        assert_eq!(
            claude(r#"{"model":"m"}"#, None).as_deref(),
            Some(r#"{"model":"m","diagnostics":{"previous_message_id":null}}"#)
        );
        assert_eq!(claude(r#"{"diagnostics":{"previous_message_id":null}}"#, Some("x")), None);
        assert_eq!(claude(r#"{"diagnostics":{}}"#, Some("x")), None);
        let openai = |body: &str, previous| asked(Dialect::OpenaiResponses, body, previous);
        assert_eq!(openai(r#"{"model":"m"}"#, None), None);
        assert_eq!(
            openai(r#"{"model":"m"}"#, Some("resp_1")).as_deref(),
            Some(r#"{"model":"m","prompt_cache_options":{"comparison_response_id":"resp_1"}}"#)
        );
        assert_eq!(
            openai(r#"{"prompt_cache_options":{"ttl":"30m"}}"#, Some("resp_1")).as_deref(),
            Some(r#"{"prompt_cache_options":{"comparison_response_id":"resp_1","ttl":"30m"}}"#)
        );
        let own = r#"{"prompt_cache_options":{"comparison_response_id":"resp_0"}}"#;
        assert_eq!(openai(own, Some("resp_1")), None);
        assert_eq!(asked(Dialect::Gemini, "{}", Some("r")), None);
    }

    #[test]
    fn answer_is_removed_with_its_comma() {
        let hidden = |dialect, body: &str| {
            let edits = hide_diagnosis(dialect, body.as_bytes());
            String::from_utf8(applied(body.as_bytes(), &edits)).unwrap()
        };
        for (dialect, body, expected) in [
            (
                Dialect::Anthropic,
                r#"{"id":"msg_1", "diagnostics" : null,"content":[{"text":"\"diagnostics\":1"}]}"#,
                r#"{"id":"msg_1","content":[{"text":"\"diagnostics\":1"}]}"#,
            ),
            (
                Dialect::Anthropic,
                r#"{"type":"message_start","message":{"diagnostics":{"cache_miss_reason":{"type":"tools_changed"}},"id":"m"}}"#,
                r#"{"type":"message_start","message":{"id":"m"}}"#,
            ),
            (
                Dialect::OpenaiResponses,
                r#"{"type":"response.completed","response":{"id":"r","prompt_cache_options":{"comparison_response_id":"resp_1","ttl":"30m"},"prompt_cache_diagnostics":{"type":"cache_hit"}}}"#,
                r#"{"type":"response.completed","response":{"id":"r","prompt_cache_options":{"ttl":"30m"}}}"#,
            ),
            (Dialect::Gemini, r#"{"diagnostics":1}"#, r#"{"diagnostics":1}"#),
            (Dialect::Anthropic, "not json", "not json"),
        ] {
            assert_eq!(hidden(dialect, body), expected);
        }
    }
}
