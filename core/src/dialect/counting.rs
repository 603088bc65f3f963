//! Requests to a provider's count endpoint, and its responses (`docs/protocols.md` 1.7, 6).
//!
//! A count request is made from a conversation's request: the members that make up the prompt, byte for byte,
//! with the path of the count endpoint. Pure. Must not know why it is sent.

use bytes::Bytes;
use serde_json::json;

use super::Dialect;
use super::count::Count;
use crate::wire::json::{Document, Value};

/// A request to a count endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountQuestion {
    /// Path and query.
    pub target: String,
    /// The prompt as JSON, without options of the response.
    pub body: Bytes,
}

impl CountQuestion {
    /// The request that counts the prompt of `body`, which is meant for `target` (path and query). `None` if
    /// the protocol has no count endpoint (Chat Completions), the path has none, or the body cannot be read.
    pub fn new(dialect: Dialect, target: &str, body: &[u8]) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let document = Document::read(body).ok()?;
        let root = document.root(body)?;
        let (path, body) = match dialect {
            Dialect::Anthropic => {
                let base = path.strip_suffix("/messages")?;
                (format!("{base}/messages/count_tokens"), only(root, MESSAGES))
            }
            Dialect::OpenaiResponses => {
                let base = path.strip_suffix("/responses")?;
                (format!("{base}/responses/input_tokens"), only(root, RESPONSES))
            }
            Dialect::Gemini => {
                let (base, _) = path.rsplit_once(':')?;
                (format!("{base}:countTokens"), contents(base, root)?)
            }
            Dialect::OpenaiChat => return None,
        };
        // The response is never streamed.
        let query: Vec<&str> =
            query.split('&').filter(|pair| !pair.is_empty() && *pair != "alt=sse").collect();
        let target = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
        Some(Self { target, body: body.into() })
    }
}

/// The token count in a response; `None` if there is none.
pub fn answer(dialect: Dialect, body: &[u8]) -> Option<u64> {
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    let name = if dialect == Dialect::Gemini { "totalTokens" } else { "input_tokens" };
    Count::from_member(root.get(name)).value()
}

/// The response of the count endpoint at `target` (path and query) for this many tokens. `None` if its form
/// is unknown (Bedrock), or there is no count endpoint.
pub fn estimated(dialect: Dialect, target: &str, tokens: u64) -> Option<String> {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let path = path.trim_end_matches('/');
    let body = match dialect {
        Dialect::Anthropic
            if ends_with_any(path, &["/count_tokens", "/count-tokens:rawPredict"]) =>
        {
            json!({"input_tokens": tokens})
        }
        Dialect::OpenaiResponses if path.ends_with("/input_tokens") => {
            json!({"object": "response.input_tokens", "input_tokens": tokens})
        }
        Dialect::Gemini
            if ends_with_any(path, &[":countTokens", "%3AcountTokens", "%3acountTokens"]) =>
        {
            json!({"totalTokens": tokens})
        }
        _ => return None,
    };
    Some(body.to_string())
}

/// The members that Anthropic counts (`docs/protocols.md` 1.7).
const MESSAGES: &[&str] = &[
    "model",
    "system",
    "messages",
    "tools",
    "tool_choice",
    "thinking",
    "context_management",
    "mcp_servers",
    "output_config",
    "cache_control",
    "speed",
    "billing_policy",
];

/// The members that OpenAI counts (`docs/protocols.md` 6).
const RESPONSES: &[&str] = &[
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "reasoning",
    "text",
    "truncation",
    "previous_response_id",
    "conversation",
];

/// The members that Vertex counts (`docs/protocols.md` 6).
const CONTENTS: &[&str] = &["contents", "systemInstruction", "tools", "generationConfig"];

fn ends_with_any(path: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| path.ends_with(ending))
}

/// An object with these members of `root`, each as in the body.
fn only(root: Value<'_>, names: &[&str]) -> String {
    members(root, |name| names.contains(&name))
}

fn contents(base: &str, root: Value<'_>) -> Option<String> {
    // Code Assist, which Gemini CLI uses after a login, counts nothing but messages.
    if base.ends_with("/v1internal") {
        let request = root.get("request").unwrap_or(root);
        let contents = std::str::from_utf8(request.get("contents")?.raw()).ok()?;
        let model = json!(format!("models/{}", root.get_text("model")?));
        return Some(format!(r#"{{"request":{{"model":{model},"contents":{contents}}}}}"#));
    }
    // Gemini's API expects a whole request inside, which repeats its model; Vertex does not.
    if base.contains("/publishers/") {
        return Some(only(root, CONTENTS));
    }
    let model = base.rsplit_once("models/")?.1;
    let request = members(root, |name| name != "model");
    let rest = request.strip_prefix('{')?;
    let comma = if rest == "}" { "" } else { "," };
    let model = json!(format!("models/{model}"));
    Some(format!("{{\"generateContentRequest\":{{\"model\":{model}{comma}{rest}}}"))
}

fn members(root: Value<'_>, wanted: impl Fn(&str) -> bool) -> String {
    let mut object = String::from("{");
    for (key, value) in root.entries() {
        let name = key.text();
        if let Ok(value) = std::str::from_utf8(value.raw())
            && wanted(&name)
        {
            let comma = if object.len() > 1 { "," } else { "" };
            object.push_str(&format!("{comma}{}:{value}", json!(name)));
        }
    }
    object + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question_of(dialect: Dialect, target: &str, body: &str) -> Option<(String, String)> {
        let question = CountQuestion::new(dialect, target, body.as_bytes())?;
        Some((question.target, String::from_utf8(question.body.into()).unwrap()))
    }

    fn is(target: &str, body: &str) -> Option<(String, String)> {
        Some((target.to_owned(), body.to_owned()))
    }

    #[test]
    fn count_request_has_prompt_unchanged_and_no_reply_options() {
        let body = r#"{ "max_tokens": 9, "model":"m", "stream":true, "system" : "s",
            "messages": [ {"role":"user","content":"\u00e9 1.0" } ], "temperature":1e0}"#;
        let counted =
            r#"{"model":"m","system":"s","messages":[ {"role":"user","content":"\u00e9 1.0" } ]}"#;
        let at = |path: &str| question_of(Dialect::Anthropic, path, body);
        assert_eq!(at("/v1/messages"), is("/v1/messages/count_tokens", counted));
        assert_eq!(
            at("/x/v1/messages?beta=true"),
            is("/x/v1/messages/count_tokens?beta=true", counted)
        );
        assert_eq!(at("/model/m/invoke"), None);
        let body = r#"{"model":"m","input":"hi","store":false,"include":[],"stream":true}"#;
        assert_eq!(
            question_of(Dialect::OpenaiResponses, "/v1/responses", body),
            is("/v1/responses/input_tokens", r#"{"model":"m","input":"hi"}"#)
        );
        assert_eq!(question_of(Dialect::OpenaiChat, "/v1/chat/completions", "{}"), None);
    }

    #[test]
    fn code_assist_counts_messages() {
        let counted = r#"{"request":{"model":"models/g-3","contents":[{"parts":[]}]}}"#;
        for body in [
            r#"{"model":"g-3","project":"p","request":{"contents":[{"parts":[]}],"tools":[]}}"#,
            r#"{"model":"g-3","contents":[{"parts":[]}]}"#,
        ] {
            let target = "/v1internal:streamGenerateContent?alt=sse";
            let question = question_of(Dialect::Gemini, target, body);
            assert_eq!(question, is("/v1internal:countTokens", counted));
        }
    }

    #[test]
    fn count_for_gemini_wraps_request_and_one_for_vertex_does_not() {
        let body = r#"{"contents":[{"parts":[]}],"tools":[],"safetySettings":[]}"#;
        assert_eq!(
            question_of(
                Dialect::Gemini,
                "/v1beta/models/g-3:streamGenerateContent?alt=sse&key=k",
                body
            ),
            is(
                "/v1beta/models/g-3:countTokens?key=k",
                r#"{"generateContentRequest":{"model":"models/g-3","contents":[{"parts":[]}],"tools":[],"safetySettings":[]}}"#
            )
        );
        assert_eq!(
            question_of(Dialect::Gemini, "/v1/models/g:generateContent", "{}"),
            is("/v1/models/g:countTokens", r#"{"generateContentRequest":{"model":"models/g"}}"#)
        );
        let vertex = "/v1/projects/p/locations/l/publishers/google/models/g";
        assert_eq!(
            question_of(Dialect::Gemini, &format!("{vertex}:generateContent"), body),
            is(&format!("{vertex}:countTokens"), r#"{"contents":[{"parts":[]}],"tools":[]}"#)
        );
    }

    #[test]
    fn estimate_has_form_of_endpoint() {
        for (dialect, target) in [
            (Dialect::Anthropic, "/v1/messages/count_tokens?beta=true"),
            (Dialect::Anthropic, "/v1/projects/p/models/count-tokens:rawPredict"),
            (Dialect::OpenaiResponses, "/v1/responses/input_tokens"),
            (Dialect::Gemini, "/v1beta/models/g:countTokens?key=k"),
            (Dialect::Gemini, "/v1beta/models/g%3AcountTokens"),
        ] {
            let body = estimated(dialect, target, 12).unwrap();
            assert_eq!(answer(dialect, body.as_bytes()), Some(12), "{target}");
        }
        assert_eq!(estimated(Dialect::Anthropic, "/model/claude/count-tokens", 12), None);
        assert_eq!(estimated(Dialect::OpenaiChat, "/v1/chat/completions", 12), None);
    }

    #[test]
    fn count_response_is_number_or_none() {
        let number = |dialect, body: &str| answer(dialect, body.as_bytes());
        assert_eq!(number(Dialect::Anthropic, r#"{"input_tokens": 12}"#), Some(12));
        assert_eq!(number(Dialect::Gemini, r#"{"totalTokens": 7}"#), Some(7));
        for nothing in ["", "[]", "<html>", r#"{"input_tokens":"12"}"#, r#"{"input_tokens":-1}"#] {
            assert_eq!(number(Dialect::OpenaiResponses, nothing), None, "{nothing}");
        }
        assert_eq!(
            CountQuestion::new(Dialect::Anthropic, "/v1/messages", b"[1]").unwrap().body,
            "{}"
        );
        assert_eq!(CountQuestion::new(Dialect::Anthropic, "/v1/messages", b"no"), None);
    }
}
