//! Logs at the start which upstreams are reached through a proxy: a variable that was set for another purpose
//! would otherwise send all requests there unnoticed.
//!
//! Names variables and hosts, but not what comes before the `@` of a proxy's address.

use std::collections::BTreeMap;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;

use crate::config::Upstream;

/// Logs which upstreams are reached through a proxy, and which variable says so.
pub(crate) fn log_relays(upstreams: &[Upstream], matcher: &Matcher) {
    for line in lines(upstreams, matcher, |name| std::env::var_os(name).is_some()) {
        tracing::warn!("{line}");
    }
}

fn lines(upstreams: &[Upstream], matcher: &Matcher, is_set: impl Fn(&str) -> bool) -> Vec<String> {
    let mut relays: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for upstream in upstreams {
        let Some(relay) = matcher.intercept(&upstream.base) else { continue };
        let variable = variables(&upstream.base).into_iter().find(|name| is_set(name));
        let place = (variable.unwrap_or("the environment"), address(relay.uri()));
        relays.entry(place).or_default().push(&upstream.name);
    }
    let mut lines = Vec::new();
    for ((variable, proxy), names) in relays {
        lines.push(format!(
            "{variable} sends requests for {} through the proxy {proxy}. If that is not meant, unset it, \
             or list these hosts in NO_PROXY",
            names.join(", ")
        ));
    }
    lines
}

/// The variables that may name a proxy for this address, in order of precedence.
fn variables(base: &Uri) -> [&'static str; 4] {
    match base.scheme_str() {
        Some("https") => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        _ => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
    }
}

fn address(proxy: &Uri) -> String {
    // Not the whole authority: a credential may stand before its `@`.
    let host = proxy.host().unwrap_or_default();
    proxy.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::tests::upstream;

    #[test]
    fn log_hides_proxy_credentials() {
        let upstreams = [
            upstream("anthropic", "https://api.anthropic.com", &[]),
            upstream("openai", "https://api.openai.com/v1", &[]),
            upstream("local", "http://127.0.0.1:8000", &[]),
        ];
        let proxy = "http://me:hunter2@corp.example:3128";
        let matcher = Matcher::builder().https(proxy).build();
        let logged = lines(&upstreams, &matcher, |name| name == "https_proxy");
        assert_eq!(
            logged,
            [
                "https_proxy sends requests for anthropic, openai through the proxy corp.example:3128. \
              If that is not meant, unset it, or list these hosts in NO_PROXY"
            ]
        );
        let matcher = Matcher::builder().all(proxy).no("127.0.0.1, api.openai.com").build();
        let logged = lines(&upstreams, &matcher, |name| name == "ALL_PROXY");
        assert!(logged.len() == 1);
        assert!(logged[0].starts_with("ALL_PROXY sends requests for anthropic "));
        assert!(lines(&upstreams, &Matcher::builder().build(), |_| true).is_empty());
    }
}
