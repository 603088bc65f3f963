//! The provider's own compaction: requests for it, and responses (`docs/protocols.md` 1.3, 1.5, 3.3).
//!
//! Anthropic writes a signed block on request; OpenAI writes a list of items, the last of which only OpenAI
//! can read. Both are kept byte for byte, because later reasoning depends on that. The caller cuts the
//! history first. Never panics; must not know where the request is sent.

use bytes::Bytes;
use memchr::memmem;
use serde_json::json;

use super::{SummaryRejection, put, replaced, spliced, with_output};
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::repair::SummaryOutput;
use crate::dialect::{Attempt, Dialect, Usage, rewrite};
use crate::wire::json::{Document, Value};

/// The beta that the `anthropic-beta` header must list if a body requests a compaction block, or has one.
pub const BETA: &str = "compact-2026-09-04";

/// The summary that a provider wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSummary {
    /// The messages that replace those that it read, as JSON for the body.
    pub raw: String,
    /// The part of it that is readable, which may be empty.
    pub text: String,
    /// Whether another part of it is readable only for the provider.
    pub is_encrypted: bool,
    /// The reported usage of the call that wrote it.
    pub usage: Usage,
}

/// Whether a provider of this dialect can be asked to compact this request: the dialect supports it, the
/// request does not already leave compaction to the provider, and it is not for a platform that lists betas
/// elsewhere (Bedrock, Vertex).
pub(crate) fn is_possible(dialect: Dialect, body: &[u8]) -> bool {
    match dialect {
        Dialect::Anthropic => {
            // A compaction block cannot be combined with an edit that compacts at a threshold.
            let compacts = mentions(body, "\"compact_") && may_have(body, &["context_management"]);
            let alone = ["anthropic_version", "anthropic_beta", "thread"];
            let is_alone = alone.iter().any(|name| mentions(body, &format!("\"{name}\"")))
                && may_have(body, &alone);
            !compacts && !is_alone
        }
        Dialect::OpenaiResponses => {
            let compacts = mentions(body, "\"compact_threshold\"");
            !(compacts && may_have(body, &["context_management"]))
        }
        Dialect::OpenaiChat | Dialect::Gemini => false,
    }
}

fn mentions(body: &[u8], name: &str) -> bool {
    memmem::find(body, name.as_bytes()).is_some()
}

fn may_have<const N: usize>(body: &[u8], members: &[&str; N]) -> bool {
    // A body that cannot be read may have anything.
    let document = Document::read(body).unwrap_or_default();
    document.root(body).is_none_or(|root| root.get_any(members).is_some())
}

pub(crate) fn takes_instructions(dialect: Dialect) -> bool {
    dialect == Dialect::Anthropic
}

/// The path for compacting a request to `target`.
pub fn target(dialect: Dialect, target: &str) -> String {
    match (dialect, target.split_once('?')) {
        (Dialect::OpenaiResponses, Some((path, query))) => format!("{path}/compact?{query}"),
        (Dialect::OpenaiResponses, None) => format!("{target}/compact"),
        _ => target.to_owned(),
    }
}

/// The body that requests compacting the whole history of `body`. `instructions` replace the provider's own;
/// `output`: what a summary needs. `None` if it is not possible.
pub fn ask(
    dialect: Dialect,
    body: &Bytes,
    instructions: Option<&str>,
    output: SummaryOutput,
) -> Option<Bytes> {
    match dialect {
        Dialect::Anthropic => block(body, instructions, output),
        Dialect::OpenaiResponses => items(body),
        Dialect::OpenaiChat | Dialect::Gemini => None,
    }
}

/// Members that are refused with a compaction: those that shape a reply, and `context_management`.
const NOT_COMPACTED: [&[&str]; 5] = [
    &["context_management"],
    &["stop_sequences"],
    &["output_format"],
    &["output_config", "format"],
    &["stream"],
];

fn block(body: &Bytes, instructions: Option<&str>, output: SummaryOutput) -> Option<Bytes> {
    let mut asks = json!({"type": "summarize"});
    if let Some(instructions) = instructions {
        asks["instructions"] = json!(instructions);
    }
    let mut body = body.clone();
    for path in NOT_COMPACTED {
        if let Some(edit) = put(&body, path, "null") {
            body = spliced(&body, vec![edit])?;
        }
    }
    body = changed(&body, |root, body| {
        let choice = root.get_any(&["tool_choice"])?;
        let forces = matches!(choice.get_text("type").as_deref(), Some("any" | "tool"));
        if forces { Some(replaced(body, choice, "null")) } else { None }
    })?;
    body = with_output(Dialect::Anthropic, body, output)?;
    // The client's own marker was cut off with the end: this one makes the history be read from the cache.
    let markers = memmem::find_iter(&body, b"\"cache_control\"").count();
    if (1..4).contains(&markers) {
        body = changed(&body, |root, body| {
            rewrite::set(body, root.span(), &["cache_control"], r#"{"type":"ephemeral"}"#)
        })?;
    }
    changed(&body, |root, body| rewrite::set(body, root.span(), &["compaction"], &asks.to_string()))
        .filter(|request| request.len() > body.len())
}

fn changed(
    body: &Bytes,
    edit: impl FnOnce(Value<'_>, &[u8]) -> Option<crate::wire::splice::Edit>,
) -> Option<Bytes> {
    let document = Document::read(body).ok()?;
    let edit = edit(document.root(body)?, body);
    match edit {
        Some(edit) => spliced(body, vec![edit]),
        None => Some(body.clone()),
    }
}

/// Members that the endpoint accepts.
const COMPACTED: [&str; 7] = [
    "model",
    "input",
    "instructions",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
];

fn items(body: &Bytes) -> Option<Bytes> {
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    root.get("input")?;
    let mut request = Vec::with_capacity(body.len());
    for (name, value) in root.entries() {
        if COMPACTED.iter().any(|kept| name.is(kept)) {
            request.extend_from_slice(if request.is_empty() { b"{\"" } else { b",\"" });
            request.extend_from_slice(name.text().as_bytes());
            request.extend_from_slice(b"\":");
            request.extend_from_slice(value.raw());
        }
    }
    request.push(b'}');
    Some(request.into())
}

/// Reads a provider's successful response to [`ask`].
///
/// # Errors
/// The reason why it is not a compaction; [`SummaryRejection::Unrelated`] if it is a response to something
/// else.
pub fn read(dialect: Dialect, body: &[u8]) -> Result<ProviderSummary, SummaryRejection> {
    let document = Document::read(body).map_err(|_| SummaryRejection::Unrelated)?;
    let root = document.root(body).ok_or(SummaryRejection::Unrelated)?;
    if root.get_any(&["error"]).is_some() {
        return Err(SummaryRejection::Refused);
    }
    let name = if dialect == Dialect::Anthropic { "content" } else { "output" };
    let list = root.get(name).ok_or(SummaryRejection::Unrelated)?;
    let compaction = list
        .items()
        .find(|item| item.get_text("type").as_deref() == Some("compaction"))
        .ok_or(SummaryRejection::Unrelated)?;
    let member = if dialect == Dialect::Anthropic { "content" } else { "encrypted_content" };
    // With `content: null`, the compaction failed.
    let content = compaction
        .get_text(member)
        .filter(|text| !text.trim().is_empty())
        .ok_or(SummaryRejection::Empty)?;
    let (raw, summary_text) = match dialect {
        Dialect::Anthropic => {
            let raw = raw_text(compaction);
            (format!(r#"{{"role":"assistant","content":[{raw}]}}"#), content.into_owned())
        }
        _ => {
            let items: Vec<String> = list.items().map(raw_text).collect();
            let parts = list.items().filter_map(|item| item.get("content"));
            let parts = parts.flat_map(|content| content.items());
            let texts: Vec<_> = parts.filter_map(|part| part.get_text("text")).collect();
            (items.join(","), texts.join("\n"))
        }
    };
    let is_encrypted = dialect != Dialect::Anthropic;
    let mut reading = ResponseReader::new(dialect, 200, Framing::Json, body.len() + 1);
    reading.push(body);
    let mut usage = reading.finish(BodyEnd::Whole).usage;
    add_attempts(&mut usage);
    Ok(ProviderSummary { raw, text: summary_text, is_encrypted, usage })
}

fn raw_text(value: Value<'_>) -> String {
    std::str::from_utf8(value.raw()).unwrap_or_default().to_owned()
}

fn add_attempts(usage: &mut Usage) {
    // The top level does not include what the summary itself cost.
    let attempts = std::mem::take(&mut usage.attempts);
    usage.last_call = None;
    for Attempt { usage: one, .. } in attempts {
        for (sum, more) in [
            (&mut usage.input, one.input),
            (&mut usage.output, one.output),
            (&mut usage.cache_read, one.cache_read),
            (&mut usage.cache_write, one.cache_write),
        ] {
            *sum = Some(sum.unwrap_or(0).saturating_add(more.unwrap_or(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: SummaryOutput = SummaryOutput { text: 8192, room: 100_000 };

    fn request(dialect: Dialect, body: &str, instructions: Option<&str>) -> serde_json::Value {
        let body = ask(dialect, &Bytes::from(body.to_owned()), instructions, OUTPUT).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn compaction_request_to_anthropic_asks_for_block_only() {
        let body = r#"{"model":"claude-opus-5-5","max_tokens":100,"stream":true,"system":"s",
            "tool_choice":{"type":"any"},"context_management":{"edits":[]},"stop_sequences":["x"],
            "output_config":{"effort":"low","format":{"type":"json_schema"}},
            "messages":[{"role":"user","content":"a"}]}"#;
        assert_eq!(
            request(Dialect::Anthropic, body, None),
            json!({"model": "claude-opus-5-5", "max_tokens": 8192, "system": "s",
                "output_config": {"effort": "low"}, "compaction": {"type": "summarize"},
                "messages": [{"role": "user", "content": "a"}]})
        );
        // A `tool_choice` that forces nothing is kept, because the cached prompt includes it.
        let auto = r#"{"max_tokens":9000,"tool_choice":{"type":"auto"},"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}"#;
        let body = request(Dialect::Anthropic, auto, Some("Look at \"it\"."));
        assert_eq!(body["tool_choice"]["type"], "auto");
        assert_eq!(body["compaction"]["instructions"], "Look at \"it\".");
        assert_eq!(body["cache_control"]["type"], "ephemeral");
        assert_eq!(body["max_tokens"], 8192, "no more than a summary needs");
        assert_eq!(ask(Dialect::Anthropic, &Bytes::from_static(b"[1]"), None, OUTPUT), None);
        assert_eq!(ask(Dialect::Gemini, &Bytes::from_static(b"{}"), None, OUTPUT), None);
    }

    #[test]
    fn compaction_request_to_openai_has_only_accepted_members() {
        let body = r#"{"model":"gpt-5.6-sol","stream":true,"store":false,"tools":[],"instructions":"s",
            "input":[ {"role":"user","content":"a"} ],"prompt_cache_key":"k"}"#;
        assert_eq!(
            request(Dialect::OpenaiResponses, body, None),
            json!({"model": "gpt-5.6-sol", "instructions": "s", "prompt_cache_key": "k",
                "input": [{"role": "user", "content": "a"}]})
        );
        let to = |target: &str| super::target(Dialect::OpenaiResponses, target);
        assert_eq!(to("/v1/responses"), "/v1/responses/compact");
        assert_eq!(to("/v1/responses?api-version=1"), "/v1/responses/compact?api-version=1");
        assert_eq!(
            super::target(Dialect::Anthropic, "/v1/messages?beta=true"),
            "/v1/messages?beta=true"
        );
    }

    #[test]
    fn provider_summary_keeps_its_bytes() {
        let block = r#"{ "type":"compaction","content":"So \u0066ar.","signature":"Sig==","tool_changes":[]}"#;
        let usage = r#"{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":7,"output_tokens":3,"cache_read_input_tokens":90,"cache_creation_input_tokens":1}]}"#;
        let body = format!(
            r#"{{"type":"message","role":"assistant","content":[{block}],"stop_reason":"compaction","usage":{usage}}}"#
        );
        let written = read(Dialect::Anthropic, body.as_bytes()).unwrap();
        assert_eq!(written.raw, format!(r#"{{"role":"assistant","content":[{block}]}}"#));
        assert_eq!(&*written.text, "So far.");
        assert!(!written.is_encrypted);
        let usage = &written.usage;
        assert_eq!(usage.input, Some(98));
        assert_eq!(usage.output, Some(3));
        assert_eq!(usage.cache_read, Some(90));
        assert_eq!(usage.cache_write, Some(1));

        let (one, two) = (
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"u"}]}"#,
            r#"{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"}"#,
        );
        let body = format!(
            r#"{{"object":"response.compaction","output":[{one}, {two}],"usage":{{"input_tokens":50,"output_tokens":9}}}}"#
        );
        let written = read(Dialect::OpenaiResponses, body.as_bytes()).unwrap();
        assert_eq!(written.raw, format!("{one},{two}"));
        assert_eq!(written.usage.input, Some(50));
        assert_eq!(&*written.text, "u");
        assert!(written.is_encrypted);
    }

    #[test]
    fn other_responses_are_no_summary() {
        let why = |dialect, body: &str| read(dialect, body.as_bytes()).unwrap_err();
        let anthropic = |body: &str| why(Dialect::Anthropic, body);
        assert_eq!(
            anthropic(r#"{"content":[{"type":"text","text":"I go on."}]}"#),
            SummaryRejection::Unrelated
        );
        assert_eq!(
            anthropic(r#"{"content":[{"type":"compaction","content":null}]}"#),
            SummaryRejection::Empty
        );
        assert_eq!(
            anthropic(r#"{"type":"error","error":{"message":"no"}}"#),
            SummaryRejection::Refused
        );
        for nothing in ["", "<html>", "[]", "{}", "data: {}"] {
            assert_eq!(anthropic(nothing), SummaryRejection::Unrelated, "{nothing}");
            assert_eq!(
                why(Dialect::OpenaiResponses, nothing),
                SummaryRejection::Unrelated,
                "{nothing}"
            );
        }
    }

    #[test]
    fn request_that_compacts_by_itself_gets_no_provider_summary() {
        let edits = r#"{"context_management":{"edits":[{"type":"compact_20260112"}]}}"#;
        let clears = r#"{"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}}"#;
        assert!(!is_possible(Dialect::Anthropic, edits.as_bytes()));
        assert!(is_possible(Dialect::Anthropic, clears.as_bytes()));
        assert!(!is_possible(Dialect::Anthropic, br#"{"anthropic_version":"bedrock-2023-05-31"}"#));
        assert!(is_possible(Dialect::Anthropic, br#"{"messages":["anthropic_version"]}"#));
        let own = r#"{"context_management":[{"type":"compaction","compact_threshold":9}]}"#;
        assert!(!is_possible(Dialect::OpenaiResponses, own.as_bytes()));
        assert!(is_possible(Dialect::OpenaiResponses, br#"{"input":"x"}"#));
        assert!(!is_possible(Dialect::Gemini, b"{}"));
        assert!(!is_possible(Dialect::OpenaiChat, b"{}"));
    }
}
