//! Headers on their way through: order and case kept, the ones that belong to one hop taken out.
//!
//! A header map that loses an entry moves its last one into the gap, so maps are built anew where
//! something has to go. Case travels in the message's extensions, which stay with it.

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, Entry, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::Mode;

/// Set by clients for us alone: how far we may go with this request.
const MODE: &str = "x-plimsoll-mode";
/// Set by clients for us alone: the session.
const SESSION: &str = "x-plimsoll-session";
/// Set by clients for us alone: the client token.
const TOKEN: &str = "x-plimsoll-token";

/// What Anthropic's clients list betas in.
const BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// What a header map is cleaned for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeaderDirection {
    /// An upgrade: `connection` and `upgrade` are its substance.
    pub(crate) upgrade: bool,
    /// The other side speaks HTTP/1.1, so chunked framing can be kept as it was announced.
    pub(crate) keep_chunked: bool,
}

/// What the `content-encoding` lines say, all of them; one that is no text is a coding that nobody knows.
pub(crate) fn codings(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(CONTENT_ENCODING).iter().map(|line| line.to_str().unwrap_or("?"))
}

/// The headers that go on, in their order.
pub(crate) fn pass(headers: HeaderMap, passing: HeaderDirection) -> HeaderMap {
    // As most have it: what `connection` lists would come with `connection`.
    if !headers.keys().any(is_one_hop) {
        return headers;
    }
    let listed = listed_by_connection(&headers);
    let chunked = passing.keep_chunked && is_chunked(&headers);
    let trailers = wants_trailers(&headers);
    let has_coding = headers.contains_key(TRANSFER_ENCODING);
    let stays = |name: &HeaderName| match *name {
        CONNECTION | UPGRADE => passing.upgrade,
        TRANSFER_ENCODING => chunked,
        TE => trailers,
        // Nobody may take the length out of a message; but where it is chunked, that alone counts
        // (RFC 9112, Message Body Length).
        CONTENT_LENGTH => !has_coding,
        _ => !is_one_hop(name) && !listed.contains(name),
    };
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut current = None;
    for (name, mut value) in headers {
        current = name.or(current);
        let Some(name) = &current else { continue };
        if !stays(name) {
            continue;
        }
        if *name == TE {
            value = HeaderValue::from_static("trailers");
        }
        kept.append(name.clone(), value);
    }
    kept
}

/// Takes the named headers out; the rest keep their order.
pub(crate) fn without(headers: HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    without_lines(headers, |name, _| unwanted(name))
}

/// Takes lines out by name and value; the rest keep their order.
pub(crate) fn without_lines(
    headers: HeaderMap,
    unwanted: impl Fn(&HeaderName, &HeaderValue) -> bool,
) -> HeaderMap {
    if !headers.iter().any(|(name, value)| unwanted(name, value)) {
        return headers;
    }
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut current = None;
    for (name, value) in headers {
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !unwanted(name, &value)) {
            kept.append(name.clone(), value);
        }
    }
    kept
}

/// Bytes of the header section as HTTP/1.1 would write it.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// One `cookie` line, as HTTP/1.1 wants it; HTTP/2 clients may send several (RFC 9113 §8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(b"; ".as_slice())) {
        headers.insert(COOKIE, joined);
    }
}

/// Whether a request asks to leave HTTP for a protocol that is `wanted`. An offer may be passed over, and some
/// clients (Java's) offer `h2c` with every first request.
pub(crate) fn is_upgrade(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> bool {
    tokens(headers, &UPGRADE).any(wanted) && lists(headers, &CONNECTION, "upgrade")
}

/// Whether an upgrade to `protocol` would be HTTP/2 on the same connection: with an upstream that takes it,
/// what follows would be requests that nobody here has seen.
pub(crate) fn is_http2(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default().trim();
    ["h2c", "h2", "http"].iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// Leaves of an upgrade's offer what is `wanted`; one that holds nothing else passes as it is.
pub(crate) fn narrow_upgrade(headers: &mut HeaderMap, wanted: impl Fn(&str) -> bool) {
    let is_wanted = |value: &HeaderValue| {
        value.to_str().is_ok_and(|line| line.split(',').all(|it| wanted(it.trim())))
    };
    if headers.get_all(UPGRADE).iter().all(is_wanted) {
        return;
    }
    let kept: Vec<&str> = tokens(headers, &UPGRADE).filter(|protocol| wanted(protocol)).collect();
    if let Ok(kept) = HeaderValue::from_str(&kept.join(", ")) {
        headers.insert(UPGRADE, kept);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Whether a header is addressed to us, and to nobody behind us.
pub(crate) fn is_for_us(name: &HeaderName) -> bool {
    name == MODE || name == SESSION || name == TOKEN
}

/// Whether a header would make a server or gateway do something else than path and method say, or send its
/// caller's key elsewhere.
pub(crate) fn steers(name: &HeaderName) -> bool {
    STEER.contains(&name.as_str())
}

const STEER: &[&str] = &[
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-portkey-custom-host",
    "helicone-target-url",
    "helicone-openai-api-base",
    "x-litellm-api-base",
];

/// Whether a response's header opens it to pages of other sites.
pub(crate) fn opens_to_pages(name: &HeaderName) -> bool {
    name.as_str().starts_with("access-control-") || name == "timing-allow-origin"
}

/// How far the client lets us go with this request; `None` where it does not say.
pub(crate) fn mode(headers: &HeaderMap) -> Option<Mode> {
    match headers.get(MODE)?.to_str().ok()?.trim() {
        "observe" => Some(Mode::Observe),
        "shadow" => Some(Mode::Shadow),
        "active" => Some(Mode::Active),
        _ => None,
    }
}

/// Sets `host` for a plain HTTP/1.1 upstream in its place; over TLS the protocol is not known yet,
/// and HTTP/2 wants none, so the client sets it where it is needed.
pub(crate) fn set_host(headers: HeaderMap, upstream: &http::Uri) -> HeaderMap {
    let plain = upstream.scheme_str() == Some("http");
    let authority = upstream.authority().map(Authority::as_str);
    let host = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
    match host {
        Some(host) if plain => {
            let mut headers = headers;
            headers.insert(HOST, host);
            headers
        }
        _ => without(headers, |name| *name == HOST),
    }
}

/// Says the new length of an edited body, where a length was said.
pub(crate) fn set_length(headers: &mut HeaderMap, length: usize) {
    if headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Lists a beta that the request needs: behind those that are there, in the line that lists the last
/// of them.
pub(crate) fn list_beta(headers: &mut HeaderMap, beta: &'static str) {
    if lists(headers, &BETA, beta) {
        return;
    }
    let mut last = match headers.entry(BETA) {
        Entry::Vacant(place) => {
            place.insert(HeaderValue::from_static(beta));
            return;
        }
        Entry::Occupied(lines) => lines,
    };
    if let Some(line) = last.iter_mut().last() {
        let comma: &[u8] = if line.is_empty() { b"" } else { b"," };
        if let Ok(joined) =
            HeaderValue::from_bytes(&[line.as_bytes(), comma, beta.as_bytes()].concat())
        {
            *line = joined;
        }
    }
}

/// Whether the body's framing was announced as chunked, and as nothing else.
fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    codings.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    lists(headers, &TE, "trailers")
}

fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

fn listed_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok()).collect()
}

fn is_one_hop(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | TE | TRANSFER_ENCODING | UPGRADE | PROXY_AUTHENTICATE
        | PROXY_AUTHORIZATION => true,
        _ => matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn betas(lines: &[&'static str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(BETA, HeaderValue::from_static(line));
        }
        list_beta(&mut headers, "new");
        let lines = headers.get_all(BETA).iter();
        lines.map(|line| line.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn of_an_offer_only_what_is_wanted_is_left() {
        let narrowed = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade, HTTP2-Settings"));
            for line in lines {
                headers.append(UPGRADE, HeaderValue::from_static(line));
            }
            let asks = is_upgrade(&headers, |protocol| !is_http2(protocol));
            narrow_upgrade(&mut headers, |protocol| !is_http2(protocol));
            let lines = headers.get_all(UPGRADE).iter();
            let lines: Vec<_> = lines.map(|line| line.to_str().unwrap().to_owned()).collect();
            asks.then(|| lines.join("; "))
        };
        for (offer, left) in [
            (&["websocket"][..], Some("websocket")),
            (&["WebSocket"], Some("WebSocket")),
            (&["h2c, websocket"], Some("websocket")),
            (&["websocket", "h2c"], Some("websocket")),
            (&["websocket,H2C"], Some("websocket")),
            (&["HTTP/2.0, x"], Some("x")),
            (&["h2c"], None),
            (&["H2c , h2"], None),
            (&["h2c", "HTTP/2"], None),
            (&[", h2c ,"], None),
            (&[], None),
        ] {
            assert_eq!(narrowed(offer).as_deref(), left, "{offer:?}");
        }
    }

    #[test]
    fn a_beta_is_listed_once_and_last() {
        assert_eq!(betas(&[]), ["new"]);
        assert_eq!(betas(&[""]), ["new"]);
        assert_eq!(betas(&["b,a"]), ["b,a,new"]);
        assert_eq!(betas(&["b, a", "c"]), ["b, a", "c,new"]);
        assert_eq!(betas(&["b, new ,a"]), ["b, new ,a"]);
        assert_eq!(betas(&["newer"]), ["newer,new"]);
    }
}
