//! Who may use the client port: clients with the token, if one is configured, and no web pages of other
//! sites.
//!
//! A page of any site can make a browser send requests to loopback, even under a name of its own that it
//! points there (DNS rebinding). So a listener on loopback only accepts loopback names, and only pages loaded
//! from loopback; others can be configured. A listener that others can reach accepts any name.

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};

use super::answer::ProxyError;
use crate::config::Config;
use crate::config::hosts::{host_of, is_loopback};
use crate::dialect::credentials::CredentialRules;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names by which containers reach the loopback of their host. Nobody can register them.
const OF_CONTAINERS: &[&str] = &["host.docker.internal", "host.containers.internal"];

/// Which requests are accepted.
pub(crate) struct ClientAccess {
    on_loopback: bool,
    /// Accepted names besides those of loopback.
    hosts: Vec<Box<str>>,
    /// Accepted origins of pages besides those of loopback.
    origins: Vec<Box<str>>,
}

impl ClientAccess {
    pub(crate) fn new(config: &Config) -> Self {
        let of_upstreams = config.upstreams.iter().flat_map(|upstream| &upstream.hosts);
        let containers = OF_CONTAINERS.iter().map(|name| Box::from(*name));
        let hosts = config.allowed_hosts.iter().chain(of_upstreams).cloned();
        Self {
            on_loopback: config.is_on_loopback(),
            hosts: hosts.chain(containers).collect(),
            origins: config.allowed_origins.clone(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.on_loopback
    }

    /// Checks a request by its address and headers.
    ///
    /// # Errors
    /// The reason why it is not accepted.
    pub(crate) fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        credentials: &CredentialRules,
    ) -> Result<(), ProxyError> {
        if self.on_loopback {
            if !self.is_known_host(uri, headers) {
                return Err(ProxyError::ForeignHost);
            }
            if !self.is_known_page(headers) {
                return Err(ProxyError::ForeignOrigin);
            }
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        if credentials.wants_token() && !credentials.has_token(headers, target) {
            return Err(ProxyError::NoToken);
        }
        Ok(())
    }

    fn is_known_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        // `host` and the address may differ, and either may be the one that counts further on; there must be one.
        let mut lines = headers.get_all(HOST).iter();
        let host = lines.next().map(|line| line.to_str().unwrap_or_default());
        if lines.next().is_some() {
            return false;
        }
        let mut named = host.into_iter().chain(uri.authority().map(Authority::as_str)).peekable();
        named.peek().is_some() && named.all(|named| self.is_known(named))
    }

    fn is_known(&self, authority: &str) -> bool {
        let Some(name) = host_of(authority) else { return false };
        is_loopback(name)
            || self.hosts.iter().any(|known| {
                known.eq_ignore_ascii_case(authority)
                    || known.trim_matches(['[', ']']).eq_ignore_ascii_case(name)
            })
    }

    fn is_known_page(&self, headers: &HeaderMap) -> bool {
        let mut origins = headers.get_all(ORIGIN).iter().peekable();
        if origins.peek().is_some() {
            // Requests between two loopback names are cross-site, so a known origin is enough.
            return origins
                .all(|origin| origin.to_str().is_ok_and(|origin| self.is_known_origin(origin)));
        }
        let mut sites = headers.get_all(FETCH_SITE).iter();
        !sites.any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site"))
    }

    fn is_known_origin(&self, origin: &str) -> bool {
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        authority.and_then(host_of).is_some_and(is_loopback)
            || self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn access() -> ClientAccess {
        let mut config = crate::proxy::tests::config(0);
        config.allowed_hosts = vec!["box.lan".into(), "other.lan:8787".into()];
        config.allowed_origins = vec!["https://app.example".into()];
        config.upstreams[0].hosts = vec!["api.internal".into()];
        ClientAccess::new(&config)
    }

    fn judged(
        access: &ClientAccess,
        uri: &str,
        pairs: &[(&'static str, &str)],
    ) -> Result<(), ProxyError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        access.check(&uri.parse().unwrap(), &headers, &CredentialRules::default())
    }

    #[test]
    fn accepts_loopback_and_configured() {
        let access = access();
        for host in [
            "localhost",
            "LOCALHOST:8787",
            "localhost.",
            "x.localhost:1",
            "127.0.0.1:8787",
            "127.9.9.9",
            "[::1]:8787",
            "[::ffff:127.0.0.1]",
            "box.lan",
            "Box.lan:99",
            "other.lan:8787",
            "api.internal:8787",
            "host.docker.internal:8787",
            "host.containers.internal",
        ] {
            assert_eq!(judged(&access, "/", &[("host", host)]), Ok(()), "{host}");
            if host_of(host).is_some_and(|name| !name.contains("ffff")) {
                assert_eq!(judged(&access, &format!("http://{host}/"), &[]), Ok(()), "{host}");
            }
        }
    }

    #[test]
    fn other_hosts_are_refused() {
        let access = access();
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.example:8787",
            "u@localhost",
            "localhost@evil.example",
            "evil.example#localhost",
            "localhost:80:80",
            "localhost:x",
            "localhost/",
            "[::1",
            "[::1]x",
            "[::1.evil]",
            "::1",
            "0.0.0.0",
            "192.0.2.1:8787",
            "2130706433",
            "127.1",
            "other.lan:1",
            "",
            " ",
        ] {
            assert_eq!(
                judged(&access, "/", &[("host", host)]),
                Err(ProxyError::ForeignHost),
                "{host}"
            );
        }
        assert_eq!(judged(&access, "/", &[]), Err(ProxyError::ForeignHost), "no name at all");
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(judged(&access, "/", &twice), Err(ProxyError::ForeignHost));
        let local = [("host", "localhost")];
        for uri in ["http://evil.example/", "http://localhost@evil.example/", "http://u@localhost/"]
        {
            assert_eq!(judged(&access, uri, &local), Err(ProxyError::ForeignHost), "{uri}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let access = access();
        let with = |more: &[(&'static str, &str)]| {
            judged(&access, "/", &[&[("host", "localhost")][..], more].concat())
        };
        for origin in ["http://localhost:3000", "https://127.0.0.1", "https://app.example"] {
            assert_eq!(with(&[("origin", origin)]), Ok(()), "{origin}");
            let across = [("origin", origin), ("sec-fetch-site", "cross-site")];
            assert_eq!(with(&across), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "https://evil.example",
            "https://localhost.evil.example",
            "http://localhost@evil.example",
            "http://localhost/x",
            "file://",
            "ftp://localhost",
            "chrome-extension://localhost",
        ] {
            assert_eq!(with(&[("origin", origin)]), Err(ProxyError::ForeignOrigin), "{origin}");
            let both = [("origin", "http://localhost"), ("origin", origin)];
            assert_eq!(with(&both), Err(ProxyError::ForeignOrigin), "{origin}");
        }
        assert_eq!(with(&[("sec-fetch-site", "cross-site")]), Err(ProxyError::ForeignOrigin));
        for site in ["none", "same-origin", "same-site"] {
            assert_eq!(with(&[("sec-fetch-site", site)]), Ok(()), "{site}");
        }
    }

    #[test]
    fn open_listeners_require_token() {
        let mut config = crate::proxy::tests::config(0);
        config.listen = ([0, 0, 0, 0], 8787).into();
        let access = ClientAccess::new(&config);
        assert!(access.is_open());
        let pairs = [("host", "plimsoll.svc"), ("origin", "https://app.example")];
        assert_eq!(judged(&access, "/", &pairs), Ok(()));
        let credentials = CredentialRules::new(&[], Some("a-token-of-some-length"));
        let check =
            |headers: &HeaderMap| access.check(&Uri::from_static("/"), headers, &credentials);
        assert_eq!(check(&HeaderMap::new()), Err(ProxyError::NoToken));
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-plimsoll-token"),
            HeaderValue::from_static("a-token-of-some-length"),
        )]);
        assert_eq!(check(&headers), Ok(()));
    }
}
