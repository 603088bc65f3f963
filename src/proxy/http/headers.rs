//! Forwards headers: keeps their order and case, and removes those that apply to one hop.
//!
//! A header map that loses an entry moves its last one into the gap, so maps are rebuilt if something is
//! removed. The case is stored in the message's extensions, which stay with it.

use std::borrow::Cow;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, Entry, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::Mode;
use crate::dialect::credentials::is_harmless_header;

/// A client's header for Plimsoll only: the mode for this request.
const MODE: HeaderName = HeaderName::from_static("x-plimsoll-mode");
/// A client's header for Plimsoll only: the session.
const SESSION: HeaderName = HeaderName::from_static("x-plimsoll-session");
/// Tags that the client gives a request, which its spending is listed and limited by.
const TAGS: HeaderName = HeaderName::from_static("x-plimsoll-tags");
/// Who uses the client, which is read as the tag `user`.
const USER: HeaderName = HeaderName::from_static("x-plimsoll-user");
/// How many tags of a request are read.
const MOST_TAGS: usize = 8;
/// Bytes of a tag; a longer one is left out.
const LONGEST_TAG: usize = 96;
/// A client's header for Plimsoll only: the client token.
const TOKEN: HeaderName = HeaderName::from_static("x-plimsoll-token");

/// The header in which Anthropic's clients list betas.
pub(crate) const BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// Which headers that apply to one hop are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HopByHopFilter {
    /// `connection` and `upgrade`, for an upgrade.
    pub(crate) keep_upgrade: bool,
    /// Declared chunked framing, because the other side speaks HTTP/1.1.
    pub(crate) keep_chunked: bool,
}

/// All `content-encoding` lines. A line that is not text becomes an unknown coding.
pub(crate) fn codings(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(CONTENT_ENCODING).iter().map(|line| line.to_str().unwrap_or("?"))
}

/// The headers that are forwarded, in their order: without those that apply to one hop.
pub(crate) fn without_hop_by_hop(headers: HeaderMap, filter: HopByHopFilter) -> HeaderMap {
    // The common case. Headers listed by `connection` only exist together with `connection`.
    if !headers.keys().any(is_hop_by_hop) {
        return headers;
    }
    let listed = listed_by_connection(&headers);
    let chunked = filter.keep_chunked && is_chunked(&headers);
    let trailers = wants_trailers(&headers);
    let has_coding = headers.contains_key(TRANSFER_ENCODING);
    filter_lines(headers, |name, value| match *name {
        CONNECTION | UPGRADE => filter.keep_upgrade,
        TRANSFER_ENCODING => chunked,
        TE => {
            *value = HeaderValue::from_static("trailers");
            trailers
        }
        // The length of a message may not be removed, unless it is chunked, because then only that counts
        // (RFC 9112, Message Body Length).
        CONTENT_LENGTH => !has_coding,
        _ => !is_hop_by_hop(name) && !listed.contains(name),
    })
}

pub(crate) fn without(headers: HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    without_lines(headers, |name, _| unwanted(name))
}

/// Removes lines by name and value; the others keep their order.
pub(crate) fn without_lines(
    headers: HeaderMap,
    unwanted: impl Fn(&HeaderName, &HeaderValue) -> bool,
) -> HeaderMap {
    if !headers.iter().any(|(name, value)| unwanted(name, value)) {
        return headers;
    }
    filter_lines(headers, |name, value| !unwanted(name, value))
}

/// Rebuilds a map from the lines that stay, in their order. `stays` may change the value.
fn filter_lines(
    headers: HeaderMap,
    stays: impl Fn(&HeaderName, &mut HeaderValue) -> bool,
) -> HeaderMap {
    let mut remaining = HeaderMap::with_capacity(headers.len());
    // Only the first line of several with one name comes with the name.
    let mut current = None;
    for (name, mut value) in headers {
        current = name.or(current);
        if let Some(name) = &current
            && stays(name, &mut value)
        {
            remaining.append(name.clone(), value);
        }
    }
    remaining
}

/// Bytes of the header section as HTTP/1.1 would write it.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() < 2 {
        return;
    }
    // HTTP/1.1 requires one line; HTTP/2 clients may send several (RFC 9113 §8.2.3).
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(b"; ".as_slice())) {
        headers.insert(COOKIE, joined);
    }
}

pub(crate) fn is_upgrade(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> bool {
    // An offer may be ignored, and some clients (Java's) offer `h2c` with every first request.
    tokens(headers, &UPGRADE).any(wanted) && lists(headers, &CONNECTION, "upgrade")
}

pub(crate) fn is_http2(protocol: &str) -> bool {
    // If the upstream accepted HTTP/2 on the same connection, later requests would pass unseen.
    let name = protocol.split('/').next().unwrap_or_default().trim();
    ["h2c", "h2", "http"].iter().any(|http2| name.eq_ignore_ascii_case(http2))
}

/// Reduces an upgrade's offer to what is `wanted`. An offer of nothing else is left unchanged.
pub(crate) fn narrow_upgrade(headers: &mut HeaderMap, wanted: impl Fn(&str) -> bool) {
    if headers.get_all(UPGRADE).iter().all(|value| {
        value.to_str().is_ok_and(|line| line.split(',').all(|name| wanted(name.trim())))
    }) {
        return;
    }
    let protocols: Vec<&str> = tokens(headers, &UPGRADE).filter(|name| wanted(name)).collect();
    if let Ok(offer) = HeaderValue::from_str(&protocols.join(", ")) {
        headers.insert(UPGRADE, offer);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

pub(crate) fn is_for_us(name: &HeaderName) -> bool {
    [MODE, SESSION, TOKEN, TAGS, USER].contains(name)
}

pub(crate) fn may_join_credential(name: &HeaderName) -> bool {
    // Gateways invent headers that say who pays or where a request goes faster than a list of them grows, so
    // only headers that are known to be harmless pass; subprotocols are narrowed (`narrow_subprotocols`).
    (is_harmless_header(name.as_str()) || name == SEC_WEBSOCKET_PROTOCOL)
        && !STEERING.contains(&name.as_str())
}

pub(crate) fn narrow_subprotocols(headers: &mut HeaderMap) {
    // Browsers also write keys, organisations and projects there (`openai-insecure-api-key.…`).
    let protocols: Vec<&str> = tokens(headers, &SEC_WEBSOCKET_PROTOCOL)
        .filter(|offered| SUBPROTOCOLS.contains(offered))
        .collect();
    match HeaderValue::from_str(&protocols.join(", ")) {
        Ok(offer) if !offer.is_empty() => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, offer)),
        _ => *headers = without(std::mem::take(headers), |name| *name == SEC_WEBSOCKET_PROTOCOL),
    }
}

/// Subprotocols of OpenAI's Realtime API (<https://platform.openai.com/docs/guides/realtime-websocket>).
const SUBPROTOCOLS: &[&str] = &["realtime", "openai-beta.realtime-v1"];

/// Headers of providers that choose whose account is charged, or which backend answers.
const STEERING: &[&str] =
    &["openai-organization", "openai-project", "x-goog-request-params", "x-goog-user-project"];

pub(crate) fn is_operators(name: &HeaderName) -> bool {
    let name = name.as_str();
    // Such a header allows pages of other sites to read the response, sets a cookie for the operator's account,
    // names that account, or pretends to be ours.
    name.starts_with("access-control-")
        || name.starts_with("x-plimsoll-")
        || ["timing-allow-origin", "set-cookie", "set-cookie2"].contains(&name)
        || ["organization", "organisation", "workspace", "project", "account"]
            .iter()
            .any(|word| name.contains(word))
}

/// The mode that the client asks for with this request; `None` if it asks for none.
pub(crate) fn mode(headers: &HeaderMap) -> Option<Mode> {
    match headers.get(MODE)?.to_str().ok()?.trim() {
        "observe" => Some(Mode::Observe),
        "shadow" => Some(Mode::Shadow),
        "active" => Some(Mode::Active),
        _ => None,
    }
}

/// The tags of a request, `team=core, env=ci`, and that of its user. What is not of this form is left out.
pub(crate) fn tags(headers: &HeaderMap) -> Vec<Box<str>> {
    if !states_tags(headers) {
        return Vec::new();
    }
    let mut known: Vec<Box<str>> =
        stated_tags(headers).filter(|tag| is_tag(tag)).take(MOST_TAGS).map(Into::into).collect();
    known.sort();
    known.dedup();
    known
}

/// Whether some of what should be tags is left out: it has another form, or there are too many.
pub(crate) fn leaves_out_tags(headers: &HeaderMap) -> bool {
    if !states_tags(headers) {
        return false;
    }
    let unreadable = |name| headers.get_all(name).iter().any(|line| line.to_str().is_err());
    let mut stated = stated_tags(headers);
    stated.by_ref().take(MOST_TAGS).any(|tag| !is_tag(&tag))
        || stated.next().is_some()
        || unreadable(TAGS)
        || unreadable(USER)
}

fn states_tags(headers: &HeaderMap) -> bool {
    headers.contains_key(TAGS) || headers.contains_key(USER)
}

fn stated_tags(headers: &HeaderMap) -> impl Iterator<Item = Cow<'_, str>> {
    let text = |name| headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    let user = text(USER).map(|user| Cow::Owned(format!("user={}", user.trim())));
    let tags = text(TAGS).flat_map(|line| line.split(',')).map(str::trim);
    user.chain(tags.filter(|tag| !tag.is_empty()).map(Cow::Borrowed))
}

/// Adds tags to a request.
pub(super) fn add_tags(headers: &mut HeaderMap, tags: HeaderValue) {
    headers.append(TAGS, tags);
}

/// Whether it is `name=value`, of letters, digits and `-_./:@`.
pub(super) fn is_tag(tag: &str) -> bool {
    tag.len() <= LONGEST_TAG
        && tag.split_once('=').is_some_and(|(name, value)| is_tag_word(name) && is_tag_word(value))
}

fn is_tag_word(word: &str) -> bool {
    let mut bytes = word.bytes();
    !word.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte))
}

pub(crate) fn set_host(headers: HeaderMap, upstream: &http::Uri) -> HeaderMap {
    // With TLS the protocol is not known yet, and HTTP/2 has no `host`, so the HTTP client sets it if needed.
    let is_cleartext = upstream.scheme_str() == Some("http");
    let authority = upstream.authority().map(Authority::as_str);
    let host = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
    match host {
        Some(host) if is_cleartext => {
            let mut headers = headers;
            headers.insert(HOST, host);
            headers
        }
        _ => without(headers, |name| *name == HOST),
    }
}

/// Sets the new length of an edited body, if a length was declared.
pub(crate) fn set_length(headers: &mut HeaderMap, length: usize) {
    if headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Adds a beta that the request needs: at the end of the last line that lists betas.
pub(crate) fn list_beta(headers: &mut HeaderMap, beta: &'static str) {
    if lists(headers, &BETA, beta) {
        return;
    }
    let mut lines = match headers.entry(BETA) {
        Entry::Vacant(place) => {
            place.insert(HeaderValue::from_static(beta));
            return;
        }
        Entry::Occupied(lines) => lines,
    };
    if let Some(line) = lines.iter_mut().last() {
        let comma: &[u8] = if line.is_empty() { b"" } else { b"," };
        if let Ok(joined) =
            HeaderValue::from_bytes(&[line.as_bytes(), comma, beta.as_bytes()].concat())
        {
            *line = joined;
        }
    }
}

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

fn is_hop_by_hop(name: &HeaderName) -> bool {
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

    /// A header that could be a credential leaves a request without a key without a tenant.
    #[test]
    fn headers_for_us_name_no_sender() {
        for name in [MODE, SESSION, TOKEN, TAGS, USER] {
            assert!(is_for_us(&name), "{name}");
            assert!(is_harmless_header(name.as_str()), "{name}");
        }
    }

    #[test]
    fn upgrades_to_http2_are_removed() {
        let narrowed = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade, HTTP2-Settings"));
            for line in lines {
                headers.append(UPGRADE, HeaderValue::from_static(line));
            }
            let is_requested = is_upgrade(&headers, |protocol| !is_http2(protocol));
            narrow_upgrade(&mut headers, |protocol| !is_http2(protocol));
            let lines = headers.get_all(UPGRADE).iter();
            let lines: Vec<_> = lines.map(|line| line.to_str().unwrap().to_owned()).collect();
            is_requested.then(|| lines.join("; "))
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
    fn subprotocols_carry_no_keys() {
        for (offer, left) in [
            (&[][..], None),
            (&["realtime"], Some("realtime")),
            (&["realtime, openai-insecure-api-key.sk-1"], Some("realtime")),
            (&["openai-organization.o, realtime", "openai-project.p"], Some("realtime")),
            (&["realtime", "openai-beta.realtime-v1"], Some("realtime, openai-beta.realtime-v1")),
            (&["openai-insecure-api-key.sk-1"], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in offer {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(line));
            }
            narrow_subprotocols(&mut headers);
            let lines: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(lines, left.iter().collect::<Vec<_>>(), "{offer:?}");
        }
    }

    #[test]
    fn betas_are_listed_once_and_last() {
        assert_eq!(betas(&[]), ["new"]);
        assert_eq!(betas(&[""]), ["new"]);
        assert_eq!(betas(&["b,a"]), ["b,a,new"]);
        assert_eq!(betas(&["b, a", "c"]), ["b, a", "c,new"]);
        assert_eq!(betas(&["b, new ,a"]), ["b, new ,a"]);
        assert_eq!(betas(&["newer"]), ["newer,new"]);
    }
}
