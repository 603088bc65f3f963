//! Takes the message of an error out of the body that a provider wrapped it in.
//!
//! Anthropic, OpenAI and Google wrap it in `error`, Cloudflare in `errors`, FastAPI in `detail`, MiniMax in
//! `base_resp`; a router puts its provider's error into `metadata.raw`, or as JSON into its own message. Pure;
//! must not judge the message.

use super::ProviderError;
use crate::wire::json::{Document, Kind, Value};

/// An error's message, and what the provider says of it in members of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorMessage {
    /// Its type, code and status, if it has them.
    pub kinds: Vec<Box<str>>,
    /// The status of HTTP that it has as its code, also within a reply of another status.
    pub status: Option<u64>,
    /// Its text; empty if it has none.
    pub text: Box<str>,
    /// The places in the request that it names, as the provider writes them.
    pub places: Vec<Box<str>>,
    /// The tokens that would fit.
    pub window: Option<u64>,
    /// The tokens that were counted in the prompt.
    pub input: Option<u64>,
    /// It is in a list of details beside the message, which quotes the request more often than not.
    pub is_detail: bool,
}

/// The longest body without JSON that is taken as a message, bytes.
const PLAIN_BYTES: usize = 2048;
/// How many nested routers are followed.
const WRAPPED: usize = 3;

impl ErrorMessage {
    /// All messages in an error's body, the outermost first.
    pub(super) fn all(body: &[u8]) -> Vec<Self> {
        let mut messages = Vec::new();
        read(body, 0, &mut messages);
        messages
    }

    /// The message of an error in a reply.
    pub(super) fn from_error(error: &ProviderError) -> Self {
        let text = error.message.clone().unwrap_or_default();
        let kind = error.kind.as_deref();
        let status = kind.and_then(|kind| kind.parse().ok()).filter(is_status);
        Self { kinds: kind.into_iter().map(Into::into).collect(), status, text, ..Self::default() }
    }
}

fn read(body: &[u8], depth: usize, found: &mut Vec<ErrorMessage>) {
    let document = Document::read(body).ok();
    let Some(root) = document.as_ref().and_then(|document| document.root(body)) else {
        let Ok(text) = std::str::from_utf8(body) else { return };
        // Of a body that is no JSON, as a proxy's page: only a short one is a message.
        if text.len() <= PLAIN_BYTES {
            found.push(ErrorMessage { text: text.into(), ..ErrorMessage::default() });
        }
        if depth < WRAPPED
            && let Some(wrapped) = json_in(text)
        {
            read(wrapped.as_bytes(), depth + 1, found);
        }
        return;
    };
    let value = root.items().next().unwrap_or(root);
    let value = value.get("Response").unwrap_or(value);
    let inner = value.get_any(&["error", "errors", "Error"]);
    let inner = inner.map_or(value, |inner| inner.items().next().unwrap_or(inner));
    let text = message(inner).or_else(|| message(value)).unwrap_or_default();
    let wrapped = json_in(&text).map(str::to_owned);
    let named = if inner.kind() == Kind::Object { inner } else { value };
    found.push(ErrorMessage {
        kinds: kinds(named),
        status: code(named).filter(is_status),
        text,
        places: places(named),
        window: number(named, &WINDOW_NAMES),
        input: number(named, &INPUT_NAMES),
        is_detail: false,
    });
    found.extend(details(named));
    if depth == WRAPPED {
        return;
    }
    if let Some(wrapped) = wrapped {
        read(wrapped.as_bytes(), depth + 1, found);
    }
    if let Some(raw) = inner.path(&["metadata", "raw"]) {
        match raw.text() {
            Some(text) => read(text.as_bytes(), depth + 1, found),
            None => read(raw.raw(), depth + 1, found),
        }
    }
}

fn json_in(text: &str) -> Option<&str> {
    // A gateway puts another server's error into its own message.
    let json = text.get(text.find('{')?..=text.rfind('}')?)?;
    Document::read(json.as_bytes()).is_ok().then_some(json)
}

/// Members with the tokens that would fit, and with those that were counted (llama.cpp, ds4).
const WINDOW_NAMES: [&str; 5] =
    ["n_ctx", "max_context_length", "context_window", "max_model_len", "max_tokens_allowed"];
const INPUT_NAMES: [&str; 3] = ["n_prompt_tokens", "prompt_tokens", "input_tokens"];
/// Codes up to here are statuses of HTTP.
const LAST_STATUS: u64 = 599;

/// Most details of one error that are read.
const DETAILS: usize = 8;

fn number(error: Value<'_>, names: &[&str]) -> Option<u64> {
    let places = [Some(error), error.get("details")];
    let mut values = places
        .into_iter()
        .flatten()
        .flat_map(|place| names.iter().filter_map(move |name| place.get(name)));
    values.find_map(|value| value.as_u64().or_else(|| value.text()?.parse().ok()))
}

/// The texts that an error has in a list beside its message: Google's field violations, Azure's faults of a schema.
fn details(error: Value<'_>) -> Vec<ErrorMessage> {
    let details = error.get("details").into_iter().flat_map(|details| details.items());
    let violations = details.flat_map(|detail| {
        let fields = detail.get("fieldViolations").into_iter().flat_map(|fields| fields.items());
        std::iter::once(detail).chain(fields)
    });
    let texts = violations
        .take(DETAILS)
        .filter_map(|detail| detail.get_text("description").or_else(|| detail.get_text("msg")));
    texts
        .map(|text| ErrorMessage { text: text.into(), is_detail: true, ..ErrorMessage::default() })
        .collect()
}

fn kinds(error: Value<'_>) -> Vec<Box<str>> {
    let names = ["type", "code", "status", "Code"];
    let mut kinds: Vec<Box<str>> =
        names.iter().filter_map(|name| error.get_text(name)).map(Into::into).collect();
    let detailed = error.get("details").and_then(|details| details.get_text("error_code"));
    kinds.extend(detailed.map(Into::into));
    let number = error.get("code").and_then(|code| code.as_u64());
    kinds.extend(number.filter(|code| !is_status(code)).map(|code| code.to_string().into()));
    kinds
}

fn code(error: Value<'_>) -> Option<u64> {
    let code = error.get("code")?;
    code.as_u64().or_else(|| code.text()?.parse().ok())
}

fn is_status(code: &u64) -> bool {
    *code <= LAST_STATUS
}

fn places(error: Value<'_>) -> Vec<Box<str>> {
    let paths = error.path(&["details", "paths"]);
    let paths = paths.into_iter().flat_map(|paths| paths.items()).filter_map(|path| path.text());
    paths.chain(error.get_text("param")).map(Into::into).collect()
}

fn message(error: Value<'_>) -> Option<Box<str>> {
    if let Some(text) = error.text() {
        return Some(text.into());
    }
    let named =
        ["message", "msg", "error_msg", "Message"].iter().find_map(|name| error.get_text(name));
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
    if detail.kind() == Kind::Object {
        return message(detail.get("error").unwrap_or(detail));
    }
    // A single schema violation of a request; with several, none is the message.
    let mut faults = detail.items();
    let fault = faults.next()?;
    if faults.next().is_some() {
        return None;
    }
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
    fn error_message_is_read_from_every_known_wrapper() {
        for (body, text) in [
            (r#"{"type":"error","error":{"type":"t","message":"No."}}"#, "No."),
            (r#"{"error":{"message":"No.","type":"t","param":null,"code":null}}"#, "No."),
            (r#"[{"error":{"code":400,"message":"No.","status":"INVALID_ARGUMENT"}}]"#, "No."),
            (r#"{"object":"error","message":"No.","type":"BadRequestError","code":400}"#, "No."),
            (r#"{"error":"No."}"#, "No."),
            (r#"{"detail":"No."}"#, "No."),
            (r#"{"detail":[{"loc":["body","x",1],"msg":"No.","input":"y"}]}"#, "body.x.1: No."),
            (r#"{"detail":{"msg":"No.","type":"t"}}"#, "No."),
            (r#"{"detail":{"error":"No."}}"#, "No."),
            (r#"{"error_code":336103,"error_msg":"No."}"#, "No."),
            (r#"{"base_resp":{"status_code":2013,"status_msg":"No."}}"#, "No."),
            (r#"{"success":false,"errors":[{"message":"No.","code":5021}]}"#, "No."),
            (r#"{"Response":{"Error":{"Code":"FailedOperation","Message":"No."}}}"#, "No."),
            ("404 page not found\n", "404 page not found\n"),
            ("{}", ""),
            ("", ""),
        ] {
            assert_eq!(texts(body), [text], "{body}");
        }
        let two = r#"{"detail":[{"loc":["a"],"msg":"No."},{"loc":["b"],"msg":"Nor."}]}"#;
        assert_eq!(texts(two), [""]);
        let kinds = |body: &str| ErrorMessage::all(body.as_bytes()).remove(0).kinds;
        let named = kinds(r#"{"error":{"type":"t","code":"c","status":"S"}}"#);
        assert_eq!(named, ["t".into(), "c".into(), "S".into()]);
        let coded = kinds(r#"{"error":{"code":1261,"details":{"error_code":"d"}}}"#);
        assert_eq!(coded, ["d".into(), "1261".into()]);
        assert_eq!(kinds(r#"{"error":{"code":400}}"#), [], "a status says nothing");
    }

    #[test]
    fn places_and_counts_are_read_from_their_members() {
        let read = |body: &str| ErrorMessage::all(body.as_bytes()).remove(0);
        let error =
            r#"{"error":{"message":"No.","param":"input[2]","details":{"paths":["a.1","b"]}}}"#;
        assert_eq!(read(error).places, ["a.1".into(), "b".into(), "input[2]".into()]);
        let counted = read(r#"{"error":{"n_ctx":512,"n_prompt_tokens":2009,"code":400}}"#);
        assert_eq!(counted.window, Some(512));
        assert_eq!(counted.input, Some(2009));
        let detailed =
            read(r#"{"error":{"details":{"max_tokens_allowed":"512","input_tokens":"2009"}}}"#);
        assert_eq!(detailed.window, Some(512));
        assert_eq!(detailed.input, Some(2009));
    }

    #[test]
    fn details_in_lists_are_read() {
        let google = r#"{"error":{"message":"Invalid.","details":[{"@type":"t","fieldViolations":[{"field":"contents","description":"No."}]}]}}"#;
        assert_eq!(texts(google), ["Invalid.", "No."]);
        let azure = r#"{"error":{"message":"Invalid.","details":[{"loc":["body"],"msg":"No."}]}}"#;
        assert_eq!(texts(azure), ["Invalid.", "No."]);
    }

    #[test]
    fn error_that_gateway_put_into_its_message_is_read() {
        let body = r#"{"error":{"message":"litellm.BadRequestError: Exception - {\"error\":{\"message\":\"No.\",\"code\":\"c\"}} (400)","code":"400"}}"#;
        let all = ErrorMessage::all(body.as_bytes());
        assert_eq!(&*all[1].text, "No.");
        assert_eq!(&all[1].kinds[..], &["c".into()][..]);
        let plain = r#"Error code: 400 - {"error":{"message":"No."}}"#;
        assert_eq!(texts(plain), [plain, "No."]);
    }

    #[test]
    fn nested_error_messages_of_routers_are_read_to_limited_depth() {
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
    fn no_error_body_makes_reader_panic() {
        for body in ["[", "[]", "[[]]", "{\"error\":[]}", "\"x\"", "null", "{\"detail\":[]}"] {
            let _ = texts(body);
        }
        assert_eq!(texts(&"x".repeat(PLAIN_BYTES)).len(), 1);
        assert!(texts(&"x".repeat(PLAIN_BYTES + 1)).is_empty());
    }
}
