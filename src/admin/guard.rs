//! Who may ask: a token where one is configured, and no web page of somebody else's.
//!
//! A page on any site can make a browser send requests to loopback. Without a token, the name it
//! believes to talk to must be this machine's (against DNS rebinding); an `Origin` must be our own.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST, ORIGIN};

use crate::config::Secret;

/// Why somebody may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No token, or a wrong one.
    Token,
    /// A name that is not this machine's.
    Host,
    /// A page that is not ours.
    Origin,
}

/// Judges a request by its headers. `open`: it may be asked without the token.
pub(super) fn judge(
    headers: &HeaderMap,
    authority: Option<&str>,
    token: Option<&Secret>,
    open: bool,
) -> Result<(), Refusal> {
    let host = text(headers, HOST).or(authority).unwrap_or_default();
    if token.is_none() && !is_this_machine(host) {
        return Err(Refusal::Host);
    }
    if headers.contains_key(ORIGIN) && !is_own_page(text(headers, ORIGIN), host) {
        return Err(Refusal::Origin);
    }
    let Some(token) = token.filter(|_| !open) else { return Ok(()) };
    let given = text(headers, AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    if given.is_some_and(|given| same(given, &token.0)) { Ok(()) } else { Err(Refusal::Token) }
}

fn text(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// An address, or a name that no foreign DNS answers for.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

fn is_own_page(origin: Option<&str>, host: &str) -> bool {
    let own = |scheme: &str| origin.and_then(|origin| origin.strip_prefix(scheme)) == Some(host);
    own("http://") || own("https://")
}

/// Compares in a time that says nothing about where they differ: digests differ everywhere.
fn same(given: &str, token: &str) -> bool {
    blake3::hash(given.as_bytes()) == blake3::hash(token.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(pairs: &[(&'static str, &str)], token: Option<&str>) -> Result<(), Refusal> {
        let pairs =
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = pairs.collect();
        let token = token.map(|token| Secret(token.to_owned()));
        judge(&headers, None, token.as_ref(), false)
    }

    #[test]
    fn names_of_this_machine_may_ask() {
        for host in [
            "127.0.0.1:9797",
            "localhost:9797",
            "[::1]:9797",
            "LOCALHOST",
            "10.0.0.7",
            "x.localhost",
        ] {
            assert_eq!(judged(&[("host", host)], None), Ok(()), "{host}");
        }
    }

    #[test]
    fn a_rebound_name_may_not() {
        for host in [
            "evil.example:9797",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "[::1.evil]",
        ] {
            assert_eq!(judged(&[("host", host)], None), Err(Refusal::Host), "{host}");
        }
    }

    #[test]
    fn only_our_own_page_may_ask() {
        let host = ("host", "127.0.0.1:9797");
        assert_eq!(judged(&[host, ("origin", "http://127.0.0.1:9797")], None), Ok(()));
        for origin in
            ["http://evil.example", "http://127.0.0.1:1", "null", "http://127.0.0.1:97970"]
        {
            assert_eq!(judged(&[host, ("origin", origin)], None), Err(Refusal::Origin), "{origin}");
        }
    }

    #[test]
    fn a_token_opens_and_nothing_else_does() {
        let host = ("host", "plimsoll.svc:9797");
        assert_eq!(judged(&[host, ("authorization", "Bearer abc")], Some("abc")), Ok(()));
        assert_eq!(judged(&[host, ("authorization", "bearer  abc")], Some("abc")), Ok(()));
        for wrong in ["Bearer ab", "Bearer abcd", "Basic abc", "abc", "Bearer "] {
            let got = judged(&[host, ("authorization", wrong)], Some("abc"));
            assert_eq!(got, Err(Refusal::Token), "{wrong}");
        }
        assert_eq!(judged(&[host], Some("abc")), Err(Refusal::Token));
    }
}
