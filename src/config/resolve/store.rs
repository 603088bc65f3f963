//! Where facts are stored, if not in the data folder: a server that several processes share.
//!
//! Nothing is connected to here.

use super::Resolver;
use crate::config::errors::ConfigPlace;
use crate::config::raw::RawConfig;
use crate::config::settings::{Secret, SharedStore};

/// The ports of a server and of a sentinel.
const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// A secret with fewer characters can be guessed.
const SHORTEST_SECRET: usize = 16;
const FORM: &str = "Write redis://HOST:PORT, rediss:// for TLS, redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY, or \
                    redis+cluster://HOST:PORT,HOST:PORT.";
/// Nobody has more replicas of a server.
const MOST_ACKS: u32 = 9;

/// What a URL says.
#[derive(Debug, PartialEq, Eq)]
struct StoreUrl<'a> {
    tls: bool,
    user: Option<&'a str>,
    password: Option<&'a str>,
    hosts: Vec<(&'a str, u16)>,
    sentinel: Option<&'a str>,
    is_cluster: bool,
    database: i64,
}

/// The URL of a server as it is configured.
pub(super) struct ServerUrl {
    pub(super) url: Secret,
    /// Whether it may carry a password: it is not in the configuration itself.
    pub(super) is_secret: bool,
}

impl Resolver<'_> {
    pub(super) fn shared_store(&mut self, raw: &RawConfig) -> Option<SharedStore> {
        let store = &raw.store;
        let Some(url) = store.url.as_deref() else {
            for (key, is_set) in
                [("password", store.password.is_some()), ("secret", store.secret.is_some())]
            {
                if is_set {
                    let todo = "Add store.url, or remove it.";
                    self.wrong(&["store", key], "there is no server that it is for", todo);
                }
            }
            return None;
        };
        let path = ["store", "url"];
        let ServerUrl { url, is_secret } = self.server_url(&path, url)?;
        let password = store.password.as_deref();
        let password = password.and_then(|raw| self.secret(&["store", "password"], raw));
        let secret = match store.secret.as_deref() {
            Some(raw) => self.secret(&["store", "secret"], raw),
            None => {
                let what = "is missing: all processes on a server need the same";
                let todo = "Make one (openssl rand -hex 32), and set store.secret = \"env:NAME\".";
                self.wrong(&["store", "secret"], what, todo);
                None
            }
        };
        if secret.as_ref().is_some_and(|it| it.0.chars().count() < SHORTEST_SECRET) {
            let what = format!("is shorter than {SHORTEST_SECRET} characters, and can be guessed");
            self.wrong(&["store", "secret"], what, "Make a longer one: openssl rand -hex 32.");
        }
        let acks = match store.ack.strip_prefix("replicas:") {
            Some(count) => count.parse().ok().filter(|count| (1..=MOST_ACKS).contains(count)),
            None => (store.ack == "primary").then_some(0),
        };
        if acks.is_none() {
            let todo = format!("Write primary, or replicas:N with N from 1 to {MOST_ACKS}.");
            self.wrong(&["store", "ack"], "says neither the primary nor how many replicas", &todo);
        }
        // It may contain a password, so it is not quoted.
        let parsed = match parse(&url.0) {
            Ok(parsed) => parsed,
            Err(what) => {
                self.wrong(&path, what, FORM);
                return None;
            }
        };
        if parsed.password.is_some() && !is_secret {
            let todo = "Use store.password = \"env:NAME\", or store.url = \"env:NAME\".";
            self.wrong(&path, "carries a password", todo);
            return None;
        }
        let hosts = parsed.hosts.iter().map(|(host, port)| ((*host).into(), *port));
        Some(SharedStore {
            hosts: hosts.collect(),
            sentinel: parsed.sentinel.map(Into::into),
            is_cluster: parsed.is_cluster,
            tls: parsed.tls,
            user: parsed.user.map(Into::into),
            password: password.or_else(|| parsed.password.map(|it| Secret(it.to_owned()))),
            database: parsed.database,
            prefix: store.prefix.as_str().into(),
            secret: secret?,
            acks: acks?,
        })
    }

    /// The URL of a server, which may be a secret.
    pub(super) fn server_url(&mut self, path: &[&str], raw: &str) -> Option<ServerUrl> {
        let is_variable = matches!(self.entry.place(path), ConfigPlace::Variable(_));
        let is_secret = is_variable || raw.starts_with("env:") || raw.starts_with("file:");
        let url = if is_secret { self.secret(path, raw)? } else { Secret(raw.to_owned()) };
        Some(ServerUrl { url, is_secret })
    }
}

/// Reads a URL.
///
/// # Errors
/// What is wrong with it.
fn parse(url: &str) -> Result<StoreUrl<'_>, &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("is not a URL")?;
    let (engine, form) = scheme.split_once('+').unwrap_or((scheme, ""));
    let (has_sentinels, is_cluster) = match form {
        "" => (false, false),
        "sentinel" => (true, false),
        "cluster" => (false, true),
        _ => return Err("is for no store that Plimsoll knows"),
    };
    let tls = match engine {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err("is for no store that Plimsoll knows"),
    };
    // A password may have an @ in it, a host may not.
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (login, rest),
        None => ("", rest),
    };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, password),
        None => (login, ""),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (sentinel, database) = match (has_sentinels, path.split_once('/')) {
        (true, Some((primary, database))) => (Some(primary), database),
        (true, None) => (Some(path), ""),
        (false, _) => (None, path),
    };
    if sentinel == Some("") {
        return Err("does not name the primary that the sentinels know");
    }
    let database = if database.is_empty() { Ok(0) } else { database.parse::<u16>() };
    let port = if has_sentinels { SENTINEL_PORT } else { SERVER_PORT };
    let mut parsed = StoreUrl {
        tls,
        user: Some(user).filter(|user| !user.is_empty()),
        password: Some(password).filter(|password| !password.is_empty()),
        hosts: Vec::new(),
        sentinel,
        is_cluster,
        database: database.map_err(|_| "has a database that is no number")?.into(),
    };
    for host in hosts.split(',') {
        parsed.hosts.push(host_and_port(host, port)?);
    }
    if form.is_empty() && parsed.hosts.len() > 1 {
        return Err("names several servers, which only sentinels and nodes of a cluster may be");
    }
    if is_cluster && parsed.database != 0 {
        return Err("names a database, and a cluster has only one");
    }
    Ok(parsed)
}

fn host_and_port(text: &str, otherwise: u16) -> Result<(&str, u16), &'static str> {
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address has brackets.
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| "has a port that is no number")?)
        }
        _ => (text, otherwise),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err("names no server") } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers() {
        let plain = StoreUrl {
            tls: false,
            user: None,
            password: None,
            hosts: vec![("cache", 6379)],
            sentinel: None,
            is_cluster: false,
            database: 0,
        };
        assert_eq!(parse("redis://cache"), Ok(plain));
        let full = parse("rediss://me:p@:w@[::1]:7000/3").unwrap();
        assert!(full.tls);
        assert_eq!(full.user, Some("me"));
        assert_eq!(full.password, Some("p@:w"));
        assert_eq!(full.hosts, [("::1", 7000)]);
        assert_eq!(full.database, 3);
        let watched = parse("valkey+sentinel://a,b:1/main/2").unwrap();
        assert_eq!(watched.hosts, [("a", 26379), ("b", 1)]);
        assert_eq!(watched.sentinel, Some("main"));
        assert_eq!(watched.database, 2);
        let cluster = parse("rediss+cluster://a,b:1").unwrap();
        assert_eq!(cluster.hosts, [("a", 6379), ("b", 1)]);
        assert!(cluster.is_cluster);
    }

    #[test]
    fn odd_urls_are_refused() {
        for (url, what) in [
            ("cache:6379", "is not a URL"),
            ("mysql://cache", "is for no store that Plimsoll knows"),
            ("redis://", "names no server"),
            ("redis://:secret@/1", "names no server"),
            (
                "redis://a,b",
                "names several servers, which only sentinels and nodes of a cluster may be",
            ),
            ("redis+cluster://a/1", "names a database, and a cluster has only one"),
            ("redis+unix://a", "is for no store that Plimsoll knows"),
            ("redis://a:port", "has a port that is no number"),
            ("redis://a/first", "has a database that is no number"),
            ("redis+sentinel://a", "does not name the primary that the sentinels know"),
        ] {
            assert_eq!(parse(url), Err(what), "{url}");
        }
    }
}
