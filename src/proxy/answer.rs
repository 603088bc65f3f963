//! Answers of our own: when nothing can be had from an upstream, whose fault it is and what to do.
//!
//! Every one carries `x-plimsoll-error` and a JSON body in the error shape of the dialect, so that
//! a client reports it as it would a provider's error. The one place where faults become statuses.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use crate::context::Outcome;
use crate::dialect::Dialect;

/// Marks an answer as ours; its value is [`Fault::code`].
pub(crate) const ERROR: &str = "x-plimsoll-error";

/// What `GET /` and `HEAD /` hear: clients probe it before they send anything.
const GREETING: &str = "Plimsoll, an LLM proxy: set a client's base URL to this address.\n";

/// The answer to who asks what this is.
pub(crate) fn greeting() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(GREETING.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Why we answer ourselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No configured upstream takes this request: their names, and the one that may have been meant.
    NoUpstream { known: Box<[Box<str>]>, nearest: Option<Box<str>> },
    /// `CONNECT`: the client takes us for a forward proxy.
    NoForwardProxy,
    /// A listener on loopback is asked under a name that is not loopback's.
    ForeignHost,
    /// A page of another site asks.
    ForeignOrigin,
    /// The client token is missing or wrong.
    NoToken,
    /// The upstream has the operator's credential, and this is no path that may be asked with it.
    PathRefused,
    /// All connections are in use.
    Full,
    /// There is no memory for another request.
    Crowded,
    /// What came is no request.
    Malformed,
    /// The request's target is longer than can be read.
    TargetTooLong,
    /// The request's headers are larger than the limit.
    HeadersTooLarge,
    /// Policy: no WebSockets here.
    UpgradeRefused,
    /// The client broke off its request body.
    RequestBroken,
    /// Nothing came of the request's body for too long.
    BodyTooSlow,
    /// The upstream (first) could not be reached, or broke off before its headers: why (second).
    UpstreamFailed(Box<str>, String),
    /// The upstream accepted no connection in time.
    UpstreamTooSlow(Box<str>, String),
}

impl Fault {
    /// One word for machines.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Fault::NoUpstream { .. } => "no_upstream",
            Fault::NoForwardProxy => "no_forward_proxy",
            Fault::ForeignHost => "foreign_host",
            Fault::ForeignOrigin => "foreign_origin",
            Fault::NoToken => "client_token",
            Fault::PathRefused => "path_refused",
            Fault::Full => "too_many_connections",
            Fault::Crowded => "too_many_requests_at_once",
            Fault::Malformed => "malformed_request",
            Fault::TargetTooLong => "target_too_long",
            Fault::HeadersTooLarge => "headers_too_large",
            Fault::UpgradeRefused => "upgrade_refused",
            Fault::RequestBroken => "request_broken",
            Fault::BodyTooSlow => "body_too_slow",
            Fault::UpstreamFailed(..) => "upstream_failed",
            Fault::UpstreamTooSlow(..) => "upstream_too_slow",
        }
    }

    /// The status that goes with it.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Fault::NoUpstream { .. } => StatusCode::NOT_FOUND,
            Fault::NoForwardProxy => StatusCode::METHOD_NOT_ALLOWED,
            Fault::ForeignHost => StatusCode::MISDIRECTED_REQUEST,
            Fault::ForeignOrigin | Fault::PathRefused => StatusCode::FORBIDDEN,
            Fault::NoToken => StatusCode::UNAUTHORIZED,
            Fault::Full | Fault::Crowded => StatusCode::SERVICE_UNAVAILABLE,
            Fault::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Fault::UpgradeRefused => StatusCode::UPGRADE_REQUIRED,
            Fault::TargetTooLong => StatusCode::URI_TOO_LONG,
            Fault::Malformed | Fault::RequestBroken => StatusCode::BAD_REQUEST,
            Fault::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Fault::UpstreamFailed(..) => StatusCode::BAD_GATEWAY,
            Fault::UpstreamTooSlow(..) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What it is told as.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Fault::NoUpstream { .. }
            | Fault::NoForwardProxy
            | Fault::ForeignHost
            | Fault::ForeignOrigin
            | Fault::NoToken
            | Fault::PathRefused
            | Fault::Full
            | Fault::Crowded
            | Fault::Malformed
            | Fault::TargetTooLong
            | Fault::HeadersTooLarge
            | Fault::BodyTooSlow
            | Fault::UpgradeRefused => Outcome::Turned,
            Fault::RequestBroken => Outcome::ClientLeft,
            Fault::UpstreamFailed(..) | Fault::UpstreamTooSlow(..) => Outcome::UpstreamFailed,
        }
    }

    /// Whose fault, and what to do.
    fn words(&self) -> String {
        match self {
            Fault::NoUpstream { known, nearest } => {
                let meant =
                    nearest.as_ref().map_or(String::new(), |it| format!(" Nearest: /{it}."));
                format!(
                    "Plimsoll has no upstream for this path, and sent it nowhere (the client's base \
                     URL or the proxy's configuration): use an API path such as /v1/messages, put \
                     /NAME of a configured upstream before it, or add an upstream. Upstreams here: \
                     {}.{meant}",
                    known.join(", ")
                )
            }
            Fault::NoForwardProxy => "The client uses Plimsoll as a forward proxy (HTTPS_PROXY), \
                which it is not: set the client's base URL to it instead."
                .to_owned(),
            Fault::ForeignHost => "The request names a host that is not this machine's loopback, \
                and Plimsoll listens there alone: use http://127.0.0.1 or http://localhost, or add \
                the name to allowed_hosts in Plimsoll's configuration."
                .to_owned(),
            Fault::ForeignOrigin => "A web page of another site may not use this Plimsoll: if it \
                is yours, add its origin to allowed_origins in Plimsoll's configuration."
                .to_owned(),
            Fault::NoToken => "This Plimsoll answers clients that have its client_token: send it \
                as x-plimsoll-token, or as the client's API key where the upstream has its own."
                .to_owned(),
            Fault::PathRefused => "This upstream is asked with the operator's credential, so \
                Plimsoll lets through only paths that ask a model, count tokens or list models, \
                without dot segments: configure an upstream without credential for the others."
                .to_owned(),
            Fault::Full => "Plimsoll has reached its limit of client connections \
                (limits.connections): try again, or raise it."
                .to_owned(),
            Fault::Crowded => "Plimsoll has no memory for another request \
                (limits.connection_bytes): try again, or raise it."
                .to_owned(),
            Fault::HeadersTooLarge => "The client's request headers are larger than Plimsoll's \
                limit (limits.header_bytes): send fewer, or raise it."
                .to_owned(),
            Fault::Malformed => "What the client sent is not a readable HTTP request: fix its \
                request line or headers. In an address, write ` in the path as %60, \" in the \
                query as %22, and < > and spaces as %3C %3E %20."
                .to_owned(),
            Fault::TargetTooLong => "The request's address is too long: shorten it.".to_owned(),
            Fault::UpgradeRefused => "Plimsoll's policy for this upstream refuses WebSockets \
                (upgrades = \"refuse\"): use HTTP."
                .to_owned(),
            Fault::RequestBroken => "The client broke off its request body.".to_owned(),
            Fault::BodyTooSlow => "The client sent nothing more of its request's body for longer \
                than Plimsoll waits (limits.body_s): send it again."
                .to_owned(),
            Fault::UpstreamFailed(name, why) => format!(
                "The upstream {name:?} could not be reached or broke off before it answered, \
                 which is neither the client's nor Plimsoll's doing: {why}"
            ),
            Fault::UpstreamTooSlow(name, why) => format!(
                "The upstream {name:?} accepted no connection or stream in time (limits.connect_s), which is \
                 neither the client's nor Plimsoll's doing: {why}"
            ),
        }
    }

    /// The whole answer, in the error shape of `dialect`.
    pub(crate) fn answer(&self, dialect: Option<Dialect>) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body(dialect)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR, HeaderValue::from_static(self.code()));
        if *self == Fault::NoToken {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"plimsoll\""));
        }
        if *self == Fault::Full {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if *self == Fault::BodyTooSlow {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn body(&self, dialect: Option<Dialect>) -> String {
        let (code, words) = (self.code(), self.words());
        let value = match dialect {
            Some(Dialect::Anthropic) => serde_json::json!({
                "type": "error", "error": {"type": code, "message": words}
            }),
            Some(Dialect::Gemini) => serde_json::json!({
                "error": {"code": self.status().as_u16(), "message": words, "status": code}
            }),
            Some(Dialect::OpenaiChat | Dialect::OpenaiResponses) | None => serde_json::json!({
                "error": {"message": words, "type": "plimsoll", "param": null, "code": code}
            }),
        };
        value.to_string()
    }
}
