//! The edit that requests usage of a stream: `stream_options.include_usage` (`docs/protocols.md` 2.1).
//!
//! What it adds to the response is removed by `response::usage_strip`.

use bytes::Bytes;
use memchr::memmem;

use crate::wire::json::{Document, Kind, Span, Value};
use crate::wire::splice::Edit;

const FIELD: &[u8] = b"stream_options";
const INSERTED: &[u8] = b",\"stream_options\":{\"include_usage\":true}";

/// The edit that requests usage; `None` if it was requested, or cannot be requested by a simple edit.
pub(crate) fn request(body: &Bytes) -> Option<Edit> {
    // The common case needs no parsing.
    if memmem::find(body, FIELD).is_none() {
        let end = body.trim_ascii_end().strip_suffix(b"}")?.len();
        return Some(insert(end, INSERTED));
    }
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    let mut given = root.entries().filter(|(key, _)| key.is("stream_options"));
    match (given.next(), given.next()) {
        (None, _) => Some(insert(root.span().end.checked_sub(1)?, INSERTED)),
        (Some((_, options)), None) if options.kind() == Kind::Object => within(options),
        // Of a repeated key nobody knows which one counts.
        _ => None,
    }
}

fn within(options: Value<'_>) -> Option<Edit> {
    let mut given = options.entries().filter(|(key, _)| key.is("include_usage"));
    match (given.next(), given.next()) {
        (None, _) => {
            let text: &[u8] = match options.entries().next() {
                Some(_) => b",\"include_usage\":true",
                None => b"\"include_usage\":true",
            };
            Some(insert(options.span().end.checked_sub(1)?, text))
        }
        (Some((_, value)), None) if value.as_bool() == Some(false) => {
            Some(Edit { at: value.span(), with: Bytes::from_static(b"true") })
        }
        _ => None,
    }
}

fn insert(at: usize, text: &'static [u8]) -> Edit {
    Edit { at: Span::new(at, at), with: Bytes::from_static(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::splice::splice;

    fn requested(body: &str) -> Option<String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let edit = request(&body)?;
        Some(String::from_utf8(splice(&body, vec![edit]).unwrap().concat()).unwrap())
    }

    #[test]
    fn only_include_usage_is_inserted() {
        let cases = [
            (
                "{\"model\": \"m\", \"stream\":true,\"n\":1e3 }\n",
                Some(
                    "{\"model\": \"m\", \"stream\":true,\"n\":1e3 ,\"stream_options\":{\"include_usage\":true}}\n",
                ),
            ),
            (
                r#"{"stream":true,"stream_options":{}}"#,
                Some(r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            ),
            (
                r#"{"stream_options":{"include_obfuscation":false },"stream":true}"#,
                Some(
                    r#"{"stream_options":{"include_obfuscation":false ,"include_usage":true},"stream":true}"#,
                ),
            ),
            (
                r#"{"stream_options":{"include_usage": false},"stream":true}"#,
                Some(r#"{"stream_options":{"include_usage": true},"stream":true}"#),
            ),
            (
                r#"{"stream":true,"messages":["stream_options"]}"#,
                Some(
                    r#"{"stream":true,"messages":["stream_options"],"stream_options":{"include_usage":true}}"#,
                ),
            ),
            (r#"{"stream_options":{"include_usage":true},"stream":true}"#, None),
            (r#"{"stream_options":null,"stream":true}"#, None),
            (r#"{"stream_options":{},"stream":true,"stream_options":{}}"#, None),
            ("not json stream_options", None),
            ("not json", None),
        ];
        for (body, want) in cases {
            assert_eq!(requested(body).as_deref(), want, "{body}");
        }
    }
}
