//! The upstreams of a configuration: checks each of them, and that no two are selected by the same thing.
//!
//! Must not resolve a name or open a connection.

use std::net::SocketAddr;

use http::{HeaderName, Uri};

use super::{LONGEST_NAME, Resolver};
use crate::config::built_in::BUILT_IN;
use crate::config::raw::{RawConfig, RawUpstream};
use crate::config::settings::{Secret, Upstream};
use crate::dialect::Dialect;

impl Resolver<'_> {
    /// The configured ones in their order, then the built-in ones that were not configured.
    pub(super) fn upstreams(
        &mut self,
        raw: &RawConfig,
        listen: Option<SocketAddr>,
    ) -> Vec<Upstream> {
        let mut all: Vec<Upstream> = Vec::new();
        let names = self.entry.keys(&["upstream"]);
        for (at, name) in names.iter().enumerate() {
            let Some(upstream) = raw.upstream.get(name) else { continue };
            self.name(name, &names[..at]);
            self.apart(name, &names[..at], raw);
            if upstream.enabled != Some(false) {
                all.extend(self.upstream(name, upstream, raw));
            }
        }
        for built_in in &BUILT_IN {
            if !raw.upstream.contains_key(built_in.name) {
                all.extend(self.upstream(built_in.name, &RawUpstream::default(), raw));
            }
        }
        // Another fault may be the reason, and is reported then.
        if all.is_empty() && self.errors.is_empty() {
            let todo = "Leave one enabled, or name another.";
            self.wrong(&["upstream"], "there is no upstream to serve", todo);
        }
        for upstream in all.iter().filter(|upstream| points_at(upstream, listen)) {
            let path = ["upstream", &*upstream.name, "base_url"];
            self.wrong(&path, "points at our own listener", "Write the provider's base URL.");
        }
        all
    }

    fn name(&mut self, name: &str, before: &[String]) {
        // It stands in paths and variables.
        let is_plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if name.is_empty() || name.len() > LONGEST_NAME || !is_plain {
            let what = format!("{name:?} cannot be an upstream's name");
            self.wrong(&["upstream", name], what, "Use up to 40 letters, digits, `-`, `_`, `.`.");
        }
        if let Some(other) = before.iter().find(|other| other.eq_ignore_ascii_case(name)) {
            let what = format!("has the same name as upstream {other:?}");
            self.wrong(&["upstream", name], what, "Give each a name of its own.");
        }
    }

    fn upstream(&mut self, name: &str, raw: &RawUpstream, above: &RawConfig) -> Option<Upstream> {
        let built_in = BUILT_IN.iter().find(|built_in| built_in.name == name);
        let url = raw.base_url.as_deref().or(built_in.map(|built_in| built_in.base_url));
        let prefix = self.prefix(name, raw.prefix.as_deref());
        let Some(url) = url else {
            let todo = "Add base_url = \"https://…\".";
            self.wrong(&["upstream", name], "base_url is missing", todo);
            return None;
        };
        let base = self.url(&["upstream", name, "base_url"], url);
        if raw.window_tokens == Some(0) {
            let path = ["upstream", name, "window_tokens"];
            self.wrong(&path, "0 is too small", "Write 1 or more.");
        }
        self.price(&["upstream", name, "price"], raw.price.as_ref());
        self.compact_over("upstream", name, raw.compact.as_ref());
        let dialects = match (&raw.dialects, built_in) {
            (Some(dialects), _) => dialects.clone(),
            (None, Some(built_in)) => built_in.dialects.to_vec(),
            (None, None) => Vec::new(),
        };
        let credential = self.credential(name, raw, &dialects);
        Some(Upstream {
            name: name.into(),
            base: base?,
            prefix,
            hosts: raw.hosts.iter().flatten().map(|host| host.as_str().into()).collect(),
            credential,
            mode: raw.mode,
            upgrades: raw.upgrades.unwrap_or_default(),
            include_usage: raw.include_usage.unwrap_or(above.include_usage),
            count_tokens: raw.count_tokens.unwrap_or_default(),
            reasoning_echo: raw.reasoning_echo,
            window: raw.window_tokens,
            price: raw.price,
            compact: raw.compact.clone(),
            dialects,
        })
    }

    fn url(&mut self, path: &[&str], raw: &str) -> Option<Uri> {
        let todo = "Write http:// or https://, a host, and a base path if there is one.";
        // A URL may contain credentials, so it is not quoted.
        let Ok(uri) = raw.trim_end_matches('/').parse::<Uri>() else {
            self.wrong(path, "is not a URL", todo);
            return None;
        };
        let what = match (uri.scheme_str(), uri.authority()) {
            (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
                "carries a credential in the URL"
            }
            (Some("http" | "https"), Some(_)) if uri.query().is_some() => "has a query",
            (Some("http" | "https"), Some(authority)) if !authority.host().is_empty() => {
                return Some(uri);
            }
            (Some("http" | "https"), _) => "has no host",
            (Some(_), _) => "is neither http nor https",
            (None, _) => "does not begin with http:// or https://",
        };
        let todo =
            if what.contains("credential") { "Use credential = \"env:NAME\"." } else { todo };
        self.wrong(path, what, todo);
        None
    }

    fn prefix(&mut self, name: &str, raw: Option<&str>) -> Option<Box<str>> {
        let raw = raw?;
        let prefix = raw.trim_end_matches('/');
        if !prefix.starts_with('/') || prefix.contains(['?', '#', ' ']) || prefix.contains("//") {
            let todo = "Write a path such as /team-a.";
            self.wrong(&["upstream", name, "prefix"], format!("{raw:?} is not a path"), todo);
        }
        Some(prefix.into())
    }

    fn credential(
        &mut self,
        name: &str,
        raw: &RawUpstream,
        dialects: &[Dialect],
    ) -> Option<(HeaderName, Secret)> {
        let reference = raw.credential.as_deref();
        if reference.is_none() && raw.credential_header.is_some() {
            let todo = "Add credential = \"env:NAME\", or remove it.";
            let path = ["upstream", name, "credential_header"];
            self.wrong(&path, "there is no credential for it", todo);
        }
        let secret = self.secret(&["upstream", name, "credential"], reference?);
        let default = match dialects.first() {
            Some(Dialect::Anthropic) => "x-api-key",
            Some(Dialect::Gemini) => "x-goog-api-key",
            Some(Dialect::OpenaiChat | Dialect::OpenaiResponses) | None => "authorization",
        };
        let header = raw.credential_header.as_deref().unwrap_or(default);
        let Ok(header) = HeaderName::try_from(header) else {
            let path = ["upstream", name, "credential_header"];
            self.wrong(&path, "is not a header's name", "Write, say, x-api-key.");
            return None;
        };
        let Secret(secret) = secret?;
        // That header has a scheme before the secret.
        let bare = header == http::header::AUTHORIZATION && !secret.contains(' ');
        Some((header, Secret(if bare { format!("Bearer {secret}") } else { secret })))
    }

    fn apart(&mut self, name: &str, before: &[String], raw: &RawConfig) {
        let Some(upstream) = raw.upstream.get(name) else { return };
        let own_prefix = bare_prefix(upstream);
        let others = before.iter().filter_map(|name| Some((name, raw.upstream.get(name)?)));
        for (other, its) in others {
            if own_prefix.is_some() && own_prefix == bare_prefix(its) {
                let what = format!("upstream {other:?} has the same prefix");
                self.wrong(&["upstream", name, "prefix"], what, "Give each its own.");
            }
            let mut hosts = upstream.hosts.iter().flatten();
            let shared_host = hosts
                .find(|host| its.hosts.iter().flatten().any(|its| its.eq_ignore_ascii_case(host)));
            if let Some(host) = shared_host {
                let what = format!("upstream {other:?} has the host {host:?} too");
                self.wrong(&["upstream", name, "hosts"], what, "Give each its own.");
            }
        }
        let built_in = BUILT_IN.iter().map(|built_in| built_in.name);
        let mut names = built_in.chain(raw.upstream.keys().map(String::as_str));
        // A prefix is looked for before a name.
        if let Some(hidden) = own_prefix
            && names.any(|other| other == hidden && other != name)
        {
            let what = format!("hides upstream {hidden:?}, whose name it is");
            self.wrong(&["upstream", name, "prefix"], what, "Choose another prefix.");
        }
    }
}

fn bare_prefix(upstream: &RawUpstream) -> Option<&str> {
    Some(upstream.prefix.as_deref()?.trim_matches('/'))
}

fn points_at(upstream: &Upstream, listen: Option<SocketAddr>) -> bool {
    let Some(listen) = listen.filter(|listen| listen.port() != 0) else { return false };
    // Its requests would loop forever.
    let host = upstream.base.host().unwrap_or_default().trim_matches(['[', ']']);
    let same = host == "localhost" || host.parse() == Ok(listen.ip());
    same && upstream.base.port_u16() == Some(listen.port())
        && (host != "localhost" || listen.ip().is_loopback())
}
