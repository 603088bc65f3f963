//! Who may use the client port: token, host names, origins of pages, and headers with credentials.
//!
//! Also warns about requests that are sent unencrypted, or without a key.

use std::net::SocketAddr;

use http::HeaderName;

use super::Resolver;
use crate::config::hosts::{host_of, is_loopback};
use crate::config::raw::RawConfig;
use crate::config::settings::{Config, Secret, Upstream};

/// A token with fewer characters can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// The resolved settings about clients.
pub(super) struct ClientSettings {
    pub(super) token: Option<Secret>,
    pub(super) hosts: Vec<Box<str>>,
    pub(super) origins: Vec<Box<str>>,
    pub(super) tenant_headers: Vec<HeaderName>,
}

impl Resolver<'_> {
    pub(super) fn clients(
        &mut self,
        raw: &RawConfig,
        listen: Option<SocketAddr>,
    ) -> ClientSettings {
        let token = raw.client_token.as_deref().and_then(|raw| self.secret(&["client_token"], raw));
        if token.as_ref().is_some_and(|token| token.0.chars().count() < SHORTEST_TOKEN) {
            let what = "the token is too short and can be guessed";
            self.wrong(&["client_token"], what, "Use 16 characters or more, drawn at random.");
        }
        self.credentials_are_safe(raw, listen);
        let tenant_headers = raw.tenant_headers.iter().flatten();
        let tenant_headers = tenant_headers.filter_map(|name| self.tenant_header(name)).collect();
        for host in raw.allowed_hosts.iter().flatten() {
            if host_of(host).is_none() {
                let what = format!("{host:?} is not a host");
                self.wrong(
                    &["allowed_hosts"],
                    what,
                    "Write names such as box.lan or box.lan:8787.",
                );
            }
        }
        for origin in raw.allowed_origins.iter().flatten() {
            if !is_origin(origin) {
                let what = format!("{origin:?} is not the origin of a page");
                self.wrong(
                    &["allowed_origins"],
                    what,
                    "Write scheme and host: https://app.example.",
                );
            }
        }
        ClientSettings {
            token,
            hosts: boxed(raw.allowed_hosts.as_deref()),
            origins: boxed(raw.allowed_origins.as_deref()),
            tenant_headers,
        }
    }

    fn credentials_are_safe(&mut self, raw: &RawConfig, listen: Option<SocketAddr>) {
        // Otherwise anybody could spend the operator's money.
        let is_open = listen.is_some_and(|listen| !listen.ip().to_canonical().is_loopback());
        if !is_open || raw.client_token.is_some() {
            return;
        }
        let mut upstreams = raw.upstream.iter();
        let with_credential = upstreams
            .find(|(_, upstream)| upstream.credential.is_some() && upstream.enabled != Some(false));
        if let Some((name, _)) = with_credential {
            let what = format!(
                "other machines could reach it, and upstream {name:?} answers them with its own credential"
            );
            let todo = "Set client_token = \"env:NAME\", or bind it to 127.0.0.1.";
            self.wrong(&["listen"], what, todo);
        }
    }

    fn tenant_header(&mut self, name: &str) -> Option<HeaderName> {
        let header = HeaderName::try_from(name).ok();
        // A header that every request has, or whose value always differs, does not identify a user.
        let header = header.filter(|header| !NO_TENANT.contains(&header.as_str()));
        if header.is_none() {
            let what = format!("{name:?} is not a header that can identify a user");
            self.wrong(&["tenant_headers"], what, "Name headers such as x-corp-user.");
        }
        header
    }
}

fn boxed(list: Option<&[String]>) -> Vec<Box<str>> {
    list.unwrap_or_default().iter().map(|text| text.as_str().into()).collect()
}

/// Headers that belong to a message itself.
const NO_TENANT: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// What is odd but may be intended.
pub(in crate::config) fn oddities(config: &Config) -> Vec<String> {
    let mut oddities = Vec::new();
    for Upstream { name, base, .. } in &config.upstreams {
        if base.scheme_str() == Some("http") && !base.host().is_some_and(is_loopback) {
            oddities.push(format!(
                "upstream.{name}.base_url: prompts and credentials go to another machine unencrypted; use https:// if possible"
            ));
        }
    }
    oddities.extend(keyless_summariser(config));
    oddities.extend(open_credential(config));
    oddities
}

fn open_credential(config: &Config) -> Option<String> {
    // Where other machines can reach it, that is an error (`Resolver::credentials_are_safe`).
    if config.client_token.is_some() {
        return None;
    }
    let upstream = config.upstreams.iter().find(|upstream| upstream.credential.is_some())?;
    Some(format!(
        "upstream.{}.credential: every user and program of this machine can use it; set client_token to prevent that",
        upstream.name
    ))
}

fn keyless_summariser(config: &Config) -> Option<String> {
    // It gets no client's credential at another host; one on this machine may need none.
    let name = config.policy.compact.upstream.as_deref()?;
    let upstream = config.upstreams.iter().find(|upstream| *upstream.name == *name)?;
    let host = upstream.base.authority();
    let has_others = config.upstreams.iter().any(|other| other.base.authority() != host);
    let is_near = upstream.base.host().is_some_and(is_loopback);
    if upstream.credential.is_some() || !has_others || is_near {
        return None;
    }
    Some(format!(
        "upstream.{name}: has no credential and writes summaries; clients of other hosts have none for it"
    ))
}

fn is_origin(raw: &str) -> bool {
    // `scheme://host`, as browsers write it. Not `null`, which any page can send.
    let host = raw.split_once("://").filter(|(scheme, _)| !scheme.is_empty());
    host.is_some_and(|(_, host)| host_of(host).is_some())
}
