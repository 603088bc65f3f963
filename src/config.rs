//! What was said (files, environment, flags), then what is meant (checked, complete).
//!
//! Every fault is reported at once, with its place, the nearest known key and what to do, before a
//! port is bound. Secrets come from the environment or files, never from the config text.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dialect::Dialect;
use crate::dialect::models::Price;

/// How far we may go with requests (design §6.4).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Read only.
    Observe,
    /// Plan and measure, send the original.
    Shadow,
    /// Rewrite where policy says so.
    #[default]
    Active,
}

/// What to do with a WebSocket upgrade.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Upgrades {
    /// Tunnel it.
    #[default]
    Tunnel,
    /// Answer 426: known clients fall back to HTTP at once.
    Refuse,
}

/// Whether `stream_options.include_usage` is added to streamed Chat Completions.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum IncludeUsage {
    /// Where the client did not ask, unless the upstream has refused it before.
    #[default]
    Auto,
    /// Never: not one byte is added.
    Never,
}

/// A secret: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What is meant: everything the program needs, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where the admin listener stands.
    pub admin: SocketAddr,
    /// Bearer token that the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// TLS on the client listener.
    pub tls: Option<Tls>,
    /// Where data is kept.
    pub data: PathBuf,
    /// How far we may go, unless an upstream says otherwise.
    pub mode: Mode,
    /// The endpoints that requests go to.
    pub upstreams: Vec<Upstream>,
    /// Extra certificate authorities for upstreams, PEM.
    pub extra_ca: Option<PathBuf>,
    /// The bounds of everything that could grow.
    pub limits: Limits,
    /// How long and how much is kept.
    pub retention: Retention,
    /// Output tokens held free in every window, at most.
    pub output_reserve: u64,
    /// Overrides of the model catalogue.
    pub models: Vec<ModelOverride>,
    /// Log lines for machines rather than people.
    pub log_json: bool,
    /// Add an `x-plimsoll-request-id` response header.
    pub request_id_header: bool,
}

/// Certificate and key of the client listener, PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// A configured provider endpoint.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name, unique; also a path prefix that always selects it (`/name/v1/…`).
    pub name: Box<str>,
    /// Scheme, authority and base path, without a trailing slash.
    pub base: http::Uri,
    /// The protocols it is chosen for when only the path tells.
    pub dialects: Vec<Dialect>,
    /// Path prefix that selects it and is taken off, e.g. `/team-a`.
    pub prefix: Option<Box<str>>,
    /// Host headers that select it.
    pub hosts: Vec<Box<str>>,
    /// A credential of its own in place of the client's: header name and value.
    pub credential: Option<(http::HeaderName, Secret)>,
    /// How far we may go here.
    pub mode: Option<Mode>,
    /// WebSocket upgrades.
    pub upgrades: Upgrades,
    /// `stream_options.include_usage`.
    pub include_usage: IncludeUsage,
    /// Window of all its models, tokens.
    pub window: Option<u64>,
    /// Prices of all its models.
    pub price: Option<Price>,
}

/// Bounds; past each of them traffic still flows, unless its text says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections at once. Past it: 503 with our header.
    pub connections: usize,
    /// Request header bytes. Past it: 431.
    pub header_bytes: usize,
    /// Largest request body that is read. Past it: forwarded unread.
    pub body_bytes: usize,
    /// Largest response body or event that is read. Past it: passed on unread.
    pub reply_bytes: usize,
    /// How long the terminal event waits for its turn to be durable, ms. Past it: it leaves.
    pub commit_ms: u64,
    /// How long a request waits for the turn before it to settle, ms. Past it: it goes on.
    pub settle_ms: u64,
    /// How long an upstream may take to accept a connection, s. Past it: 504.
    pub connect_s: u64,
    /// How long streams may take to finish at shutdown, s. Past it: they are broken off.
    pub drain_s: u64,
}

/// How long and how much is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Days.
    pub days: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// What the user knows better about models whose name matches.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOverride {
    /// Model name, `*` at its end matches any rest.
    pub name: Box<str>,
    /// Context window, tokens.
    pub window: Option<u64>,
    /// Largest output, tokens.
    pub max_output: Option<u64>,
    /// Its tokenizer.
    pub family: Option<crate::dialect::models::Family>,
    /// Prices.
    pub price: Option<Price>,
}
