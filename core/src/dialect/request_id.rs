//! The provider's id of a request, which its support asks for.
//!
//! Read from the headers of the response. A value that does not look like an id is ignored, because ids are
//! logged.

use http::HeaderMap;

/// The headers that have it, in order of preference: Anthropic; OpenAI and most gateways; Azure's gateway;
/// Azure; Bedrock; Google; Mistral.
const HEADERS: &[&str] = &[
    "request-id",
    "x-request-id",
    "apim-request-id",
    "x-ms-request-id",
    "x-amzn-requestid",
    "x-goog-request-id",
    "mistral-correlation-id",
];

/// A longer value is not an id, bytes.
const LONGEST: usize = 128;

/// The provider's id of the request, from the headers of its response.
pub fn provider_request_id(answered: &HeaderMap) -> Option<&str> {
    // One pass over the names that are there: a look-up of each name that could be takes ten times as long.
    let ids = answered.keys().filter_map(|name| {
        let rank = HEADERS.iter().position(|known| *known == name.as_str())?;
        let id = answered.get(name)?.to_str().ok()?.trim();
        is_id(id).then_some((rank, id))
    });
    ids.min_by_key(|(rank, _)| *rank).map(|(_, id)| id)
}

fn is_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LONGEST
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[(&'static str, &str)]) -> Option<String> {
        let headers =
            lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        provider_request_id(&headers.collect()).map(str::to_owned)
    }

    #[test]
    fn request_ids_are_read_from_every_known_header_if_they_are_valid() {
        for name in HEADERS {
            assert_eq!(of(&[(name, "req_011C")]).as_deref(), Some("req_011C"), "{name}");
        }
        let both = [("x-request-id", "a"), ("request-id", "b")];
        assert_eq!(of(&both).as_deref(), Some("b"));
        assert_eq!(of(&[("request-id", "two words"), ("x-request-id", "a")]).as_deref(), Some("a"));
        for none in ["", " ", "a b", "a\"b", "<a>", "ü", &"x".repeat(LONGEST + 1)] {
            assert_eq!(of(&[("x-request-id", none)]), None, "{none}");
        }
        assert_eq!(of(&[("x-request-id", &"x".repeat(LONGEST))]).map(|id| id.len()), Some(LONGEST));
        assert_eq!(of(&[("x-client-request-id", "a")]), None);
    }
}
