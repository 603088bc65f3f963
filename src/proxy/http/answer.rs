//! Responses of our own: if there is none from an upstream, they say whose fault it is and what to do.
//!
//! Each has the header `x-plimsoll-error`, and a JSON body in the dialect's error shape, so that a client
//! reports it like a provider's error. Only this file maps faults to statuses.

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri};
use jiff::Timestamp;

use crate::config::Config;
use crate::context::Outcome;
use crate::context::caps::CapState;
use crate::dialect::Dialect;
use crate::proxy::http::transport::MOST_HEADERS;
use crate::wire::sse::write_event;

/// Marks a response as ours; its value is [`ProxyError::code`].
pub(super) const ERROR: HeaderName = HeaderName::from_static("x-plimsoll-error");

/// The response to `GET /` and `HEAD /`, which people open and clients use as a probe.
pub(crate) fn greeting(config: &Config, uri: &Uri, headers: &HeaderMap) -> Response<Bytes> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).map(str::parse::<Authority>);
    let host = host.and_then(Result::ok).or_else(|| uri.authority().cloned());
    let host = host.map_or_else(|| config.listen.to_string(), |host| host.to_string());
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let introduction = config.introduction(&format!("{scheme}://{host}"));
    let version = env!("CARGO_PKG_VERSION");
    let mut response = Response::new(Bytes::from(format!(
        "Plimsoll {version}, an LLM proxy: set a client's base URL to this address.\n{introduction}\n"
    )));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A response of ours as HTTP/1.1 text, for a connection that ends with it.
pub(crate) fn http1_text(response: &Response<Bytes>) -> Bytes {
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut text = BytesMut::from(format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).as_bytes());
    for (name, value) in response.headers().iter().filter(|(name, _)| *name != CONNECTION) {
        for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.extend_from_slice(piece);
        }
    }
    let length = response.body().len();
    text.extend_from_slice(
        format!("connection: close\r\ncontent-length: {length}\r\n\r\n").as_bytes(),
    );
    text.extend_from_slice(response.body());
    text.freeze()
}

/// Why Plimsoll responds itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProxyError {
    /// No upstream takes this request: the names of all, and the one that may have been meant.
    NoUpstream { known: Box<[Box<str>]>, nearest: Option<Box<str>> },
    /// `CONNECT`: the client uses Plimsoll as a forward proxy.
    NoForwardProxy,
    /// A listener on loopback was addressed by a name that is not a loopback name.
    ForeignHost,
    /// The request comes from a web page of another site.
    ForeignOrigin,
    /// The client token is missing or wrong.
    NoToken,
    /// The upstream has the operator's credential, and it may not be used for this path.
    PathRefused,
    /// So much is spent that a cap stops the next request: the cap, what is spent of what, and when it begins anew.
    SpendCap { cap: Box<str>, spent: String, ends: Option<String> },
    /// All connections are in use.
    TooManyConnections,
    /// As many requests as there is memory for are in progress.
    TooManyRequests,
    /// The data is not an HTTP request.
    Malformed,
    /// The request's target is too long.
    TargetTooLong,
    /// The request's headers are larger than the limit.
    HeadersTooLarge,
    /// Policy forbids WebSockets.
    UpgradeRefused,
    /// The client aborted its request body.
    RequestBroken,
    /// The request's body stalled for too long.
    BodyTooSlow,
    /// The upstream was unreachable, or failed before its headers.
    UpstreamFailed { upstream: Box<str>, reason: String },
    /// The upstream did not accept a connection in time.
    UpstreamTooSlow { upstream: Box<str>, reason: String },
    /// The upstream sent nothing in a stream for this many seconds.
    UpstreamSilent { upstream: Box<str>, seconds: u64 },
    /// Plimsoll lost the upstream's response: a mistake of ours.
    ResponseLost,
}

impl ProxyError {
    /// Why a request is refused by a cap that is spent.
    pub(crate) fn from_cap(state: &CapState) -> Self {
        let end = state.ends.and_then(|ends| i64::try_from(ends).ok());
        let end = end.and_then(|end| Timestamp::from_millisecond(end).ok());
        Self::SpendCap {
            cap: state.cap.clone(),
            spent: state.to_string(),
            ends: end.map(|end| end.strftime("%Y-%m-%d %H:%M UTC").to_string()),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            ProxyError::NoUpstream { .. } => "no_upstream",
            ProxyError::NoForwardProxy => "no_forward_proxy",
            ProxyError::ForeignHost => "foreign_host",
            ProxyError::ForeignOrigin => "foreign_origin",
            ProxyError::NoToken => "client_token",
            ProxyError::PathRefused => "path_refused",
            ProxyError::SpendCap { .. } => "spend_cap",
            ProxyError::TooManyConnections => "too_many_connections",
            ProxyError::TooManyRequests => "too_many_requests_at_once",
            ProxyError::Malformed => "malformed_request",
            ProxyError::TargetTooLong => "target_too_long",
            ProxyError::HeadersTooLarge => "headers_too_large",
            ProxyError::UpgradeRefused => "upgrade_refused",
            ProxyError::RequestBroken => "request_broken",
            ProxyError::BodyTooSlow => "body_too_slow",
            ProxyError::UpstreamFailed { .. } => "upstream_failed",
            ProxyError::UpstreamTooSlow { .. } => "upstream_too_slow",
            ProxyError::UpstreamSilent { .. } => "upstream_silent_timeout",
            ProxyError::ResponseLost => "response_lost",
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ProxyError::NoUpstream { .. } => StatusCode::NOT_FOUND,
            ProxyError::NoForwardProxy => StatusCode::METHOD_NOT_ALLOWED,
            ProxyError::ForeignHost => StatusCode::MISDIRECTED_REQUEST,
            ProxyError::ForeignOrigin | ProxyError::PathRefused => StatusCode::FORBIDDEN,
            ProxyError::NoToken => StatusCode::UNAUTHORIZED,
            // SDKs repeat 408, 409, 429 and 5xx, and take 401 and 403 for a wrong key.
            ProxyError::SpendCap { .. } => StatusCode::PAYMENT_REQUIRED,
            ProxyError::TooManyConnections | ProxyError::TooManyRequests => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ProxyError::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ProxyError::UpgradeRefused => StatusCode::UPGRADE_REQUIRED,
            ProxyError::TargetTooLong => StatusCode::URI_TOO_LONG,
            ProxyError::Malformed | ProxyError::RequestBroken => StatusCode::BAD_REQUEST,
            ProxyError::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            ProxyError::UpstreamFailed { .. } => StatusCode::BAD_GATEWAY,
            ProxyError::UpstreamTooSlow { .. } | ProxyError::UpstreamSilent { .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            ProxyError::ResponseLost => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            ProxyError::NoUpstream { .. }
            | ProxyError::NoForwardProxy
            | ProxyError::ForeignHost
            | ProxyError::ForeignOrigin
            | ProxyError::NoToken
            | ProxyError::PathRefused
            | ProxyError::SpendCap { .. }
            | ProxyError::TooManyConnections
            | ProxyError::TooManyRequests
            | ProxyError::Malformed
            | ProxyError::TargetTooLong
            | ProxyError::HeadersTooLarge
            | ProxyError::BodyTooSlow
            | ProxyError::UpgradeRefused
            | ProxyError::ResponseLost => Outcome::EndedByProxy,
            ProxyError::RequestBroken => Outcome::ClientLeft,
            ProxyError::UpstreamFailed { .. }
            | ProxyError::UpstreamTooSlow { .. }
            | ProxyError::UpstreamSilent { .. } => Outcome::UpstreamFailed,
        }
    }

    /// The message: whose fault it is, and what to do.
    fn message(&self) -> String {
        match self {
            ProxyError::NoUpstream { known, nearest } => no_upstream(known, nearest.as_deref()),
            ProxyError::NoForwardProxy => {
                "The client uses Plimsoll as a forward proxy (HTTPS_PROXY), \
                but it is none: set the client's base URL to Plimsoll instead."
                    .to_owned()
            }
            ProxyError::ForeignHost => {
                "The request names a host that is not this machine's loopback, \
                and Plimsoll listens only there: use http://127.0.0.1 or http://localhost, or add \
                the name to allowed_hosts in Plimsoll's configuration."
                    .to_owned()
            }
            ProxyError::ForeignOrigin => {
                "A web page of another site may not use this Plimsoll: if it \
                is yours, add its origin to allowed_origins in Plimsoll's configuration."
                    .to_owned()
            }
            ProxyError::NoToken => {
                "This Plimsoll requires its client_token: send it as x-plimsoll-token, \
                or as the client's API key if the upstream has a key of its own."
                    .to_owned()
            }
            ProxyError::PathRefused => {
                "Plimsoll uses the operator's credential for this upstream, so \
                it allows only paths that call a model, count tokens or list models, \
                without dot segments: configure an upstream without credential for the others."
                    .to_owned()
            }
            ProxyError::SpendCap { cap, spent, ends } => spend_cap(cap, spent, ends.as_deref()),
            ProxyError::TooManyConnections => {
                "Plimsoll has reached its limit of client connections \
                (limits.connections): try again, or raise it."
                    .to_owned()
            }
            ProxyError::TooManyRequests => {
                "Plimsoll serves as many requests at once as it has memory for \
                (limits.process_bytes): try again, or raise it."
                    .to_owned()
            }
            ProxyError::HeadersTooLarge => format!(
                "The client's request has more than {MOST_HEADERS} header lines, or its headers are \
                larger than limits.header_bytes: send fewer. Only limits.header_bytes can be raised."
            ),
            ProxyError::Malformed => "The client did not send a valid HTTP request: fix its \
                request line or headers. In a URL, write ` in the path as %60, \" in the \
                query as %22, and < > and spaces as %3C %3E %20."
                .to_owned(),
            ProxyError::TargetTooLong => "The request's URL is too long: shorten it.".to_owned(),
            ProxyError::UpgradeRefused => "Plimsoll's policy for this upstream refuses WebSockets \
                (upgrades = \"refuse\"): use HTTP."
                .to_owned(),
            ProxyError::RequestBroken => "The client aborted its request body.".to_owned(),
            ProxyError::BodyTooSlow => {
                "The client's request body stalled for longer than Plimsoll waits \
                (limits.body_s): send the request again."
                    .to_owned()
            }
            ProxyError::UpstreamFailed { upstream, reason } => format!(
                "The upstream {upstream:?} could not be reached or closed the connection before it answered; \
                 neither the client nor Plimsoll caused this: {reason}"
            ),
            ProxyError::UpstreamTooSlow { upstream, reason } => format!(
                "The upstream {upstream:?} accepted no connection or stream in time (limits.connect_s); \
                 neither the client nor Plimsoll caused this: {reason}"
            ),
            ProxyError::UpstreamSilent { upstream, seconds } => format!(
                "The upstream {upstream:?} sent nothing in its stream for {seconds} s (limits.silent_stream_s); \
                 neither the client nor Plimsoll caused this: try again."
            ),
            ProxyError::ResponseLost => {
                "Plimsoll lost the upstream's response, by a mistake of its \
                own: send the request again, and report this."
                    .to_owned()
            }
        }
    }

    /// The whole response, in the error shape of `dialect`.
    pub(crate) fn answer(&self, dialect: Option<Dialect>) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body(dialect)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR, HeaderValue::from_static(self.code()));
        if matches!(self, ProxyError::SpendCap { .. }) {
            // What OpenAI's and Anthropic's SDKs ask before the status.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if *self == ProxyError::NoToken {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"plimsoll\""));
        }
        if *self == ProxyError::TooManyConnections {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // The rest of its body may never come.
        if *self == ProxyError::BodyTooSlow {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The same as an event in a stream.
    pub(crate) fn event(&self, dialect: Dialect) -> String {
        let data = match dialect {
            // The message is in the members of the dialect's own error event, and where the SDKs look for it.
            Dialect::OpenaiResponses => serde_json::json!({
                "type": "error", "code": self.code(), "message": self.message(), "param": null,
                "error": {"type": "plimsoll", "code": self.code(), "message": self.message(), "param": null}
            })
            .to_string(),
            Dialect::Anthropic | Dialect::OpenaiChat | Dialect::Gemini => self.body(Some(dialect)),
        };
        match dialect {
            Dialect::Anthropic | Dialect::OpenaiResponses => write_event("error", &data),
            Dialect::OpenaiChat | Dialect::Gemini => write_event("", &data),
        }
    }

    fn body(&self, dialect: Option<Dialect>) -> String {
        let code = self.code();
        let message = self.message();
        let value = match dialect {
            Some(Dialect::Anthropic) => serde_json::json!({
                "type": "error", "error": {"type": code, "message": message}
            }),
            Some(Dialect::Gemini) => serde_json::json!({
                "error": {"code": self.status().as_u16(), "message": message, "status": code}
            }),
            // Of an unknown API, too: most imitate the shape of OpenAI.
            Some(Dialect::OpenaiChat | Dialect::OpenaiResponses) | None => serde_json::json!({
                "error": {"message": message, "type": "plimsoll", "param": null, "code": code}
            }),
        };
        value.to_string()
    }
}

fn spend_cap(cap: &str, spent: &str, ends: Option<&str>) -> String {
    let end = match ends {
        Some(ends) => format!("It begins anew at {ends}."),
        None => "It lasts as long as the session.".to_owned(),
    };
    format!(
        "This Plimsoll's spending cap {cap:?} is reached: {spent}. {end} Whoever runs it can lift the cap \
         (plimsoll caps --lift {cap}) or raise it (cap.{cap} in the configuration)."
    )
}

fn no_upstream(known: &[Box<str>], nearest: Option<&str>) -> String {
    let nearest = nearest.map_or(String::new(), |name| format!(" Nearest: /{name}."));
    format!(
        "Plimsoll has no upstream for this path, and forwarded it nowhere (check the client's base \
         URL and the proxy's configuration): use an API path such as /v1/messages, put \
         /NAME of a configured upstream before it, or add an upstream. Upstreams here: \
         {}.{nearest}",
        known.join(", ")
    )
}
