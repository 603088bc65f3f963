//! Takes the message of an error out of the body that a provider wrapped it in.
//!
//! Anthropic, OpenAI and Google wrap it in `error`, FastAPI in `detail`, MiniMax in `base_resp`; a router
//! puts its provider's error into `metadata.raw`. Pure; must not judge the message.

use super::ProviderError;
use crate::wire::json::{Document, Kind, Value};

/// An error's message, and the provider's names for the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ErrorMessage {
    /// Its type, code and status, if it has them.
    pub kinds: Vec<Box<str>>,
    /// Its text; empty if it has none.
    pub text: Box<str>,
}

/// The longest body without JSON that is taken as a message, bytes.
const PLAIN_BYTES: usize = 512;
/// How many nested routers are followed.
const WRAPPED: usize = 3;

impl ErrorMessage {
    /// All messages in an error's body, the outermost first.
    pub(super) fn all(body: &[u8]) -> Vec<Self> {
        let mut found = Vec::new();
        read(body, 0, &mut found);
        found
    }

    /// The message of an error in a reply.
    pub(super) fn of(error: &ProviderError) -> Self {
        let text = error.message.clone().unwrap_or_default();
        Self { kinds: error.kind.clone().into_iter().collect(), text }
    }
}

fn read(body: &[u8], depth: usize, found: &mut Vec<ErrorMessage>) {
    let document = Document::read(body).ok();
    let Some(root) = document.as_ref().and_then(|document| document.root(body)) else {
        let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= PLAIN_BYTES);
        found.extend(text.map(|text| ErrorMessage { kinds: Vec::new(), text: text.into() }));
        return;
    };
    let value = root.items().next().unwrap_or(root);
    let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
    let text = message(inner).or_else(|| message(value)).unwrap_or_default();
    found.push(ErrorMessage { kinds: kinds(value, inner), text });
    if let Some(raw) = inner.path(&["metadata", "raw"]).filter(|_| depth < WRAPPED) {
        match raw.text() {
            Some(text) => read(text.as_bytes(), depth + 1, found),
            None => read(raw.raw(), depth + 1, found),
        }
    }
}

fn kinds(value: Value<'_>, inner: Value<'_>) -> Vec<Box<str>> {
    let names = ["type", "code", "status"];
    let outer = if inner.kind() == Kind::Object { inner } else { value };
    let kinds = names.iter().filter_map(|name| outer.get_text(name));
    kinds.map(|kind| kind.into_owned().into()).collect()
}

/// The message of an error, from any of its known places.
fn message(error: Value<'_>) -> Option<Box<str>> {
    if let Some(text) = error.text() {
        return Some(text.into());
    }
    let named = ["message", "msg"].iter().find_map(|name| error.get_text(name));
    if let Some(text) = named {
        return Some(text.into());
    }
    if let Some(text) = error.path(&["base_resp", "status_msg"]).and_then(|text| text.text()) {
        return Some(text.into());
    }
    let detail = error.get("detail")?;
    if let Some(text) = detail.text() {
        return Some(text.into());
    }
    // A single schema violation of a request; with several, none is the message.
    let mut faults = detail.items();
    let (fault, None) = (faults.next()?, faults.next()) else { return None };
    let place: Vec<String> = fault.get("loc")?.items().map(step).collect();
    Some(format!("{}: {}", place.join("."), fault.get_text("msg")?).into())
}

fn step(value: Value<'_>) -> String {
    match value.text() {
        Some(text) => text.into_owned(),
        None => String::from_utf8_lossy(value.raw()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &str) -> Vec<String> {
        ErrorMessage::all(body.as_bytes()).into_iter().map(|it| it.text.into()).collect()
    }

    #[test]
    fn an_error_message_is_read_from_every_known_wrapper() {
        for (body, text) in [
            (r#"{"type":"error","error":{"type":"t","message":"No."}}"#, "No."),
            (r#"{"error":{"message":"No.","type":"t","param":null,"code":null}}"#, "No."),
            (r#"[{"error":{"code":400,"message":"No.","status":"INVALID_ARGUMENT"}}]"#, "No."),
            (r#"{"object":"error","message":"No.","type":"BadRequestError","code":400}"#, "No."),
            (r#"{"error":"No."}"#, "No."),
            (r#"{"detail":"No."}"#, "No."),
            (r#"{"detail":[{"loc":["body","x",1],"msg":"No.","input":"y"}]}"#, "body.x.1: No."),
            (r#"{"base_resp":{"status_code":2013,"status_msg":"No."}}"#, "No."),
            ("404 page not found\n", "404 page not found\n"),
            ("{}", ""),
            ("", ""),
        ] {
            assert_eq!(texts(body), [text], "{body}");
        }
        let two = r#"{"detail":[{"loc":["a"],"msg":"No."},{"loc":["b"],"msg":"Nor."}]}"#;
        assert_eq!(texts(two), [""]);
        let kinds = ErrorMessage::all(br#"{"error":{"type":"t","code":"c","status":"S"}}"#);
        assert_eq!(kinds[0].kinds, ["t".into(), "c".into(), "S".into()]);
    }

    #[test]
    fn nested_error_messages_of_routers_are_read_to_a_limited_depth() {
        let mut body = r#"{"error":{"message":"deep"}}"#.to_owned();
        for _ in 0..6 {
            let raw = serde_json::Value::String(body);
            body = format!(r#"{{"error":{{"message":"passed on","metadata":{{"raw":{raw}}}}}}}"#);
        }
        assert_eq!(texts(&body), ["passed on"; WRAPPED + 1]);
        let once = r#"{"error":{"message":"Provider returned error","metadata":{"raw":{"error":{"message":"No."}}}}}"#;
        assert_eq!(texts(once), ["Provider returned error", "No."]);
    }

    #[test]
    fn no_error_body_makes_the_reader_panic() {
        for body in ["[", "[]", "[[]]", "{\"error\":[]}", "\"x\"", "null", "{\"detail\":[]}"] {
            let _ = texts(body);
        }
        assert_eq!(texts(&"x".repeat(PLAIN_BYTES)).len(), 1);
        assert!(texts(&"x".repeat(PLAIN_BYTES + 1)).is_empty());
    }
}
