//! Who may use the admin API: whoever has a token or owns the Unix socket, and no web page of another site.
//!
//! A page of any site can make a browser send requests to loopback. There, the host that the browser names
//! must be this machine's (against DNS rebinding), and no header may say that another site sent the request.
//! Decides by the request and by who connected; waits for nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method, Request};

use super::state::AdminAccess;
use crate::config::Secret;
use crate::telemetry::AdminRefusal;

/// What a browser says about the page that sends a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminPeer {
    /// A process of this user, through the Unix socket. The kernel gives the user id.
    User(u32),
    /// Someone through TCP.
    Address {
        /// The address of the other end.
        address: SocketAddr,
        /// Whether the listener's own address is loopback.
        loopback: bool,
    },
}

impl fmt::Display for AdminPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "the socket, user id {user}"),
            Self::Address { address, .. } => write!(f, "{address}"),
        }
    }
}

/// What a client is allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AdminRole {
    /// Only what is open to everyone.
    Anybody,
    /// Read metrics, lists, numbers and contexts, but no content.
    Reader,
    /// Read and change everything.
    Admin,
}

/// Returns the client's role.
pub(super) fn judge<B>(
    request: &Request<B>,
    needs: AdminRole,
    peer: AdminPeer,
    access: &AdminAccess,
) -> Result<AdminRole, AdminRefusal> {
    let host = host(request)?;
    let is_local = matches!(peer, AdminPeer::Address { loopback: true, .. });
    if is_local && !host.as_ref().is_some_and(is_this_machine) {
        return Err(AdminRefusal::ForeignHost);
    }
    check_origin(request, host.as_ref())?;
    let role = role(request.headers(), peer, access);
    match role {
        _ if needs == AdminRole::Anybody => Ok(role.unwrap_or(AdminRole::Anybody)),
        Ok(role) if role < needs => Err(AdminRefusal::ReadOnly),
        role => role,
    }
}

/// The host that a request names: well-formed, and the same wherever it is given.
fn host<B>(request: &Request<B>) -> Result<Option<Authority>, AdminRefusal> {
    let mut hosts = request.uri().authority().cloned().map(Ok).into_iter().chain(
        request.headers().get_all(HOST).iter().map(|host| Authority::try_from(host.as_bytes())),
    );
    let lines = request.headers().get_all(HOST).iter().count();
    let Some(host) = hosts.next() else { return Ok(None) };
    let host = host.map_err(|_| AdminRefusal::ForeignHost)?;
    let is_same = hosts.all(|other| other.is_ok_and(|other| other == host));
    if lines <= 1 && is_plain(&host) && is_same {
        Ok(Some(host))
    } else {
        Err(AdminRefusal::ForeignHost)
    }
}

fn is_plain(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
    })
}

fn is_this_machine(host: &Authority) -> bool {
    // An IP address, or a name that no foreign DNS server can resolve.
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

fn check_origin<B>(request: &Request<B>, host: Option<&Authority>) -> Result<(), AdminRefusal> {
    // A link to our page is allowed anywhere, because the page alone shows no data.
    let headers = request.headers();
    let is_reading = [Method::GET, Method::HEAD].contains(request.method());
    let is_link = request.uri().path() == "/"
        && is_reading
        && headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate")
        && headers.get(FETCH_DEST).is_some_and(|destination| destination == "document");
    let mut sites = headers.get_all(FETCH_SITE).iter();
    if !is_link && !sites.all(|site| site == "same-origin" || site == "none") {
        return Err(AdminRefusal::ForeignOrigin);
    }
    // Nor do its files. A browser names the origin of scripts, which is a reverse proxy's if there is one.
    if is_reading && request.uri().path().starts_with("/ui/") {
        return Ok(());
    }
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !host.zip(origin).is_some_and(|(host, origin)| host == origin) {
            return Err(AdminRefusal::ForeignOrigin);
        }
    }
    Ok(())
}

fn role(
    headers: &HeaderMap,
    peer: AdminPeer,
    access: &AdminAccess,
) -> Result<AdminRole, AdminRefusal> {
    // The kernel says who is at the other end of the socket.
    if matches!(peer, AdminPeer::User(_)) {
        return Ok(AdminRole::Admin);
    }
    let line = headers.get(AUTHORIZATION).ok_or(AdminRefusal::NoToken)?;
    let token = match line.to_str().unwrap_or_default().split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        _ => "",
    };
    match (is_same(token, &access.admin), is_same(token, &access.reader)) {
        (true, _) => Ok(AdminRole::Admin),
        (false, true) => Ok(AdminRole::Reader),
        (false, false) => Err(AdminRefusal::WrongToken),
    }
}

fn is_same(given: &str, token: &Secret) -> bool {
    // The time does not reveal where they differ, because digests differ everywhere.
    blake3::hash(given.as_bytes()) == blake3::hash(token.0.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: (&str, &str) = ("host", "127.0.0.1:9797");

    fn access() -> AdminAccess {
        let [admin, reader] = ["admin-token", "reader-token"].map(|it| Secret(it.to_owned()));
        AdminAccess { admin, reader, metrics_open: false }
    }

    fn request(target: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let request = Request::builder().uri(target);
        headers.iter().fold(request, |it, (name, value)| it.header(*name, *value)).body(()).unwrap()
    }

    fn by_port(loopback: bool) -> AdminPeer {
        AdminPeer::Address { address: "127.0.0.1:5".parse().unwrap(), loopback }
    }

    /// Asks the listener on loopback for what everybody may see.
    fn open(target: &str, headers: &[(&'static str, &str)]) -> Result<AdminRole, AdminRefusal> {
        judge(&request(target, headers), AdminRole::Anybody, by_port(true), &access())
    }

    #[test]
    fn hosts_of_this_machine_are_accepted() {
        for host in [
            "127.0.0.1:9797",
            "localhost:9797",
            "[::1]:9797",
            "[::1]",
            "LOCALHOST",
            "localhost.",
            "10.0.0.7",
            "x.localhost",
        ] {
            assert_eq!(open("/", &[("host", host)]), Ok(AdminRole::Anybody), "{host}");
        }
    }

    #[test]
    fn rebound_hosts_are_refused() {
        for host in [
            "evil.example:9797",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.1:80@evil.example",
            "evil.example@127.0.0.1",
            "127.0.0.1:port",
            "127.0.0.1:99999",
            "127.0.0.1:",
            "127.0.0.1/",
            "127.0.0.1 evil.example",
            "",
            "[::1.evil]",
            "[::1]evil.example",
        ] {
            assert_eq!(open("/", &[("host", host)]), Err(AdminRefusal::ForeignHost), "{host}");
        }
        assert_eq!(open("/", &[]), Err(AdminRefusal::ForeignHost), "none");
        let token = ("authorization", "Bearer admin-token");
        let rebound = request("/metrics", &[("host", "evil.example"), token]);
        let judged = judge(&rebound, AdminRole::Reader, by_port(true), &access());
        assert_eq!(judged, Err(AdminRefusal::ForeignHost), "with the token neither");
        let judged = judge(&rebound, AdminRole::Reader, by_port(false), &access());
        assert_eq!(
            judged,
            Ok(AdminRole::Admin),
            "a listener for others has names that we do not know"
        );
    }

    #[test]
    fn two_hosts_are_refused() {
        for (target, headers) in [
            ("/", &[OWN, OWN][..]),
            ("/", &[OWN, ("host", "evil.example")]),
            ("http://evil.example/", &[OWN]),
            ("http://127.0.0.1:9797/", &[("host", "evil.example")]),
            ("http://user@127.0.0.1:9797/", &[("host", "127.0.0.1:9797")]),
        ] {
            assert_eq!(open(target, headers), Err(AdminRefusal::ForeignHost), "{target}");
        }
        assert_eq!(open("http://127.0.0.1:9797/", &[OWN]), Ok(AdminRole::Anybody));
        assert_eq!(open("http://127.0.0.1:9797/", &[]), Ok(AdminRole::Anybody), "as HTTP/2 has it");
    }

    #[test]
    fn other_origins_are_refused() {
        assert_eq!(open("/", &[OWN, ("origin", "http://127.0.0.1:9797")]), Ok(AdminRole::Anybody));
        for origin in
            ["http://evil.example", "http://127.0.0.1:1", "null", "http://127.0.0.1:97970", ""]
        {
            let judged = open("/", &[OWN, ("origin", origin)]);
            assert_eq!(judged, Err(AdminRefusal::ForeignOrigin), "{origin}");
        }
        let site = |target, headers: &[_]| open(target, &[&[OWN], headers].concat());
        for near in ["same-origin", "none"] {
            assert_eq!(site("/metrics", &[("sec-fetch-site", near)]), Ok(AdminRole::Anybody));
        }
        for far in ["cross-site", "same-site", "anything"] {
            let far = ("sec-fetch-site", far);
            let link = [far, ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
            let frame = [far, ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
            assert_eq!(site("/", &link), Ok(AdminRole::Anybody), "a link to the page");
            for (target, headers) in [("/", &[far][..]), ("/", &frame), ("/metrics", &link)] {
                assert_eq!(site(target, headers), Err(AdminRefusal::ForeignOrigin), "{target}");
            }
        }
    }

    /// Behind a reverse proxy the browser names the proxy's origin, which is not our host.
    #[test]
    fn files_of_page_are_read_behind_proxy() {
        let proxied = [OWN, ("origin", "https://tools.example"), ("sec-fetch-site", "same-origin")];
        assert_eq!(open("/ui/page.js", &proxied), Ok(AdminRole::Anybody));
        assert_eq!(open("/metrics", &proxied), Err(AdminRefusal::ForeignOrigin));
        let foreign = [OWN, ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")];
        assert_eq!(open("/ui/page.js", &foreign), Err(AdminRefusal::ForeignOrigin));
    }

    #[test]
    fn tokens_allow_what_roles_allow() {
        let with = |needs, token: &str| {
            let request = request("/metrics", &[OWN, ("authorization", token)]);
            judge(&request, needs, by_port(true), &access())
        };
        assert_eq!(with(AdminRole::Admin, "Bearer admin-token"), Ok(AdminRole::Admin));
        assert_eq!(with(AdminRole::Reader, "bearer  admin-token"), Ok(AdminRole::Admin));
        assert_eq!(with(AdminRole::Reader, "Bearer reader-token"), Ok(AdminRole::Reader));
        assert_eq!(with(AdminRole::Admin, "Bearer reader-token"), Err(AdminRefusal::ReadOnly));
        for wrong in [
            "Bearer admin-toke",
            "Bearer admin-token2",
            "Basic admin-token",
            "admin-token",
            "Bearer ",
        ] {
            assert_eq!(with(AdminRole::Reader, wrong), Err(AdminRefusal::WrongToken), "{wrong}");
        }
        let bare = request("/metrics", &[OWN]);
        let judged = judge(&bare, AdminRole::Reader, by_port(true), &access());
        assert_eq!(judged, Err(AdminRefusal::NoToken));
        let judged = judge(&bare, AdminRole::Admin, AdminPeer::User(7), &access());
        assert_eq!(judged, Ok(AdminRole::Admin), "the socket's owner needs none");
    }
}
