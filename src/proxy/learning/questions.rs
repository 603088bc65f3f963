//! The headers of Plimsoll's own requests: for a summary or a count.
//!
//! Only headers that the receiver is known to need are sent, not all those of the client. The client's own
//! provider gets the client's credentials and what belongs to them. Any other upstream gets the protocol's
//! headers and its configured credential.

use http::header::{CONTENT_TYPE, COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Uri};

use crate::config::Upstream;
use crate::dialect::credentials::CredentialRules;
use crate::proxy::http::headers;

/// Headers that the protocols require; they say nothing about the client.
const PROTOCOL: &[&str] = &["anthropic-version", "anthropic-beta"];

/// Prefixes of headers that a provider or gateway may need beside a credential.
const OF_PROVIDERS: &[&str] = &[
    "anthropic-",
    "openai-",
    "chatgpt-account-id",
    "copilot-integration-id",
    "editor-version",
    "x-goog-",
    "x-ms-",
    "x-portkey-",
    "cf-aig-",
    "helicone-",
    "x-litellm-",
    "http-referer",
    "x-title",
    "x-app",
    "originator",
    "version",
    // The providers' caches are found by these.
    "session-id",
    "session_id",
    "thread-id",
    "conversation_id",
    "x-session-id",
    "x-session-affinity",
    "x-grok-conv-id",
];

/// The headers of our request to `to`, for a client that sent these headers in a request to `from`.
pub(crate) fn headers(
    client: &HeaderMap,
    from: &Upstream,
    to: &Upstream,
    credentials: &CredentialRules,
) -> HeaderMap {
    let is_same_host = is_same_host(&from.base, &to.base);
    let credential = match &to.credential {
        None if is_same_host => from.credential.as_ref(),
        credential => credential.as_ref(),
    };
    // Only its own provider may see what the client is known by, and only if nobody else pays.
    let is_with_client = is_same_host && credential.is_none();
    let has_credential = client.keys().any(|name| credentials.is_header(name));
    let headers = headers::without(client.clone(), |name| {
        let is_sent = match *name {
            CONTENT_TYPE => true,
            USER_AGENT => is_same_host,
            // Without another credential, the cookie is one.
            COOKIE => is_with_client && !has_credential,
            _ if credentials.is_header(name) => is_with_client,
            _ => {
                let name = name.as_str();
                PROTOCOL.contains(&name)
                    || is_same_host && OF_PROVIDERS.iter().any(|with| name.starts_with(with))
            }
        };
        !is_sent
    });
    let mut headers = headers::set_host(headers, &to.base);
    if let Some((name, secret)) = credential
        && let Ok(mut value) = HeaderValue::from_str(&secret.0)
    {
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    headers
}

fn is_same_host(one: &Uri, other: &Uri) -> bool {
    let one_host = one.host().unwrap_or_default();
    let other_host = other.host().unwrap_or_default();
    one.scheme_str() == other.scheme_str()
        && port(one) == port(other)
        && one_host.eq_ignore_ascii_case(other_host)
}

fn port(uri: &Uri) -> u16 {
    let standard_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    uri.port_u16().unwrap_or(standard_port)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::config::Secret;
    use crate::dialect::Dialect::Anthropic;
    use crate::proxy::tests::upstream;

    const CLIENT: &[(&str, &str)] = &[
        ("host", "a.example"),
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "b"),
        ("anthropic-workspace-id", "w"),
        ("user-agent", "u"),
        ("x-corp-secret", "s"),
        ("cookie", "sid=1"),
    ];

    fn sent(more: &[(&'static str, &str)], from: &Upstream, to: &Upstream) -> Vec<String> {
        let all = CLIENT.iter().chain(more);
        let client = all.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let list = CredentialRules::new(&[HeaderName::from_static("x-corp-user")], None);
        let headers = headers(&client.collect(), from, to, &list);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        headers.iter().map(line).collect()
    }

    fn at(base: &str, own: Option<&str>) -> Upstream {
        let mut upstream = upstream("u", base, &[Anthropic]);
        let name = HeaderName::from_static("x-own");
        upstream.credential = own.map(|own| (name, Secret(own.to_owned())));
        upstream
    }

    const KEYS: &[(&str, &str)] = &[("x-api-key", "k"), ("x-corp-user", "anna")];
    const PROTOCOL: [&str; 3] =
        ["content-type: application/json", "anthropic-version: 2023-06-01", "anthropic-beta: b"];
    const SAME: [&str; 2] = ["anthropic-workspace-id: w", "user-agent: u"];

    #[test]
    fn own_provider_gets_credentials() {
        let a = at("https://a.example", None);
        let with_keys = [&PROTOCOL[..], &SAME, &["x-api-key: k", "x-corp-user: anna"]].concat();
        assert_eq!(sent(KEYS, &a, &a), with_keys);
        let same = at("https://A.example:443/other", None);
        assert_eq!(sent(KEYS, &a, &same), with_keys);
        let with_cookie = [&PROTOCOL[..], &SAME, &["cookie: sid=1"]].concat();
        assert_eq!(sent(&[], &a, &a), with_cookie, "the cookie is the credential");
    }

    #[test]
    fn others_get_protocol_headers() {
        let a = at("https://a.example", Some("of-a"));
        assert_eq!(sent(KEYS, &a, &at("https://b.example", None)), PROTOCOL);
        for b in ["https://b.example", "http://a.example:443", "https://a.example:444"] {
            let own = sent(KEYS, &a, &at(b, Some("of-b")));
            let own: Vec<&String> = own.iter().filter(|line| !line.starts_with("host:")).collect();
            assert_eq!(own, [&PROTOCOL[..], &["x-own: of-b"]].concat(), "{b}");
        }
    }

    #[test]
    fn upstream_credentials_replace() {
        let a = at("https://a.example", Some("of-a"));
        let own = [&PROTOCOL[..], &SAME, &["x-own: of-a"]].concat();
        assert_eq!(sent(KEYS, &a, &a), own);
        assert_eq!(sent(KEYS, &a, &at("https://a.example/b", None)), own);
    }
}
