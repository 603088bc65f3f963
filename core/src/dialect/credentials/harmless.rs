//! Headers and parameters that do not identify a client: a request with only these has no credential.
//!
//! A list of known names, because anything unknown may be a credential. Addresses and names added by a web
//! server in front (`x-forwarded-for`, `remote-user`) are not on it: they show that several clients are
//! behind it.

/// Headers of HTTP, browsers, tracing, providers and their clients. In alphabetical order.
const HEADERS: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "access-control-request-private-network",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "b3",
    "baggage",
    "cache-control",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "conversation_id",
    "copilot-integration-id",
    "date",
    "dnt",
    "early-data",
    "editor-plugin-version",
    "editor-version",
    "expect",
    "helicone-session-id",
    "helicone-session-name",
    "helicone-session-path",
    "host",
    "http-referer",
    "http2-settings",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "langfuse_session_id",
    "openai-beta",
    "openai-intent",
    "openai-organization",
    "openai-project",
    "origin",
    "originator",
    "pragma",
    "priority",
    "proxy-connection",
    "range",
    "referer",
    "request-id",
    "save-data",
    "sec-gpc",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "sentry-trace",
    "session-id",
    "session_id",
    "te",
    "thread-id",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "uber-trace-id",
    "upgrade",
    "upgrade-insecure-requests",
    "user-agent",
    "version",
    "x-affinity",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amzn-bedrock-accept",
    "x-amzn-trace-id",
    "x-app",
    "x-client-request-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-goog-api-client",
    "x-goog-request-params",
    "x-goog-user-project",
    "x-grok-conv-id",
    "x-http-referer",
    "x-initiator",
    "x-litellm-session-id",
    "x-litellm-trace-id",
    "x-ms-client-request-id",
    "x-openai-subagent",
    "x-opencode-session",
    "x-parent-session-id",
    "x-plimsoll-mode",
    "x-plimsoll-session",
    "x-plimsoll-tags",
    "x-plimsoll-token",
    "x-plimsoll-user",
    "x-request-id",
    "x-requested-with",
    "x-server-timeout",
    "x-session-affinity",
    "x-session-id",
    "x-title",
];

/// Prefixes of such headers.
const FAMILIES: &[&str] = &[
    "amz-sdk-",
    "sec-ch-",
    "sec-fetch-",
    "x-b3-",
    "x-claude-code-",
    "x-codex-",
    "x-datadog-",
    "x-opencode-",
    "x-stainless-",
];

/// A header with such a prefix is not harmless if its name contains one of these.
const DOUBTFUL: &[&str] = &["key", "token", "auth", "secret", "signature", "password", "cookie"];

/// Query parameters in lower case. In alphabetical order.
const PARAMETERS: &[&str] = &[
    "$alt",
    "$prettyprint",
    "after",
    "after_id",
    "alt",
    "api-version",
    "before_id",
    "beta",
    "client_version",
    "include",
    "limit",
    "model",
    "order",
    "pagesize",
    "pagetoken",
    "prettyprint",
    "stream",
    "x-amz-algorithm",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
];

/// Whether a header does not identify the client.
pub fn is_harmless_header(name: &str) -> bool {
    HEADERS.binary_search(&name).is_ok() || is_of_family(name) || is_session(name)
}

fn is_of_family(name: &str) -> bool {
    FAMILIES.iter().any(|with| name.starts_with(with)) && !is_doubtful(name)
}

fn is_session(name: &str) -> bool {
    // `x-<vendor>-session-id` names a session, not a user.
    name.starts_with("x-") && name.ends_with("-session-id") && !is_doubtful(name)
}

fn is_doubtful(name: &str) -> bool {
    DOUBTFUL.iter().any(|doubtful| name.contains(doubtful))
}

/// Whether a parameter (in lower case) does not identify the client.
pub(super) fn is_harmless_parameter(name: &str) -> bool {
    PARAMETERS.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_harmless_names_are_sorted_and_hold_no_credential() {
        assert!(HEADERS.is_sorted());
        assert!(PARAMETERS.is_sorted());
        for name in HEADERS {
            assert!(super::super::HEADERS.binary_search(name).is_err(), "{name}");
        }
        for name in PARAMETERS {
            assert!(super::super::PARAMETERS.binary_search(name).is_err(), "{name}");
        }
    }

    #[test]
    fn headers_that_may_identify_sender_are_not_harmless() {
        for name in ["user-agent", "x-stainless-lang", "x-corp-session-id", "x-codex-window-id"] {
            assert!(is_harmless_header(name), "{name}");
        }
        for name in [
            "x-corp-key",
            "x-forwarded-for",
            "forwarded",
            "remote-user",
            "from",
            "via",
            "sec-websocket-protocol",
            "x-stainless-api-key",
            "x-token-session-id",
            "x-codex-auth",
        ] {
            assert!(!is_harmless_header(name), "{name}");
        }
    }
}
