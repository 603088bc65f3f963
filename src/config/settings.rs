//! The resolved configuration: everything that the program needs, checked and complete.
//!
//! Values only; [`super::resolve`] makes them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::choices::{
    ClientMode, CountTokens, IncludeUsage, LogLevel, OnFailure, ProviderCounting, Tenants,
    UpgradePolicy,
};
use super::presets::Preset;
use crate::context::policy::{CompactOverride, EchoRule, Mode, Policy};
use crate::dialect::Dialect;
use crate::dialect::models::{ModelOverride, Price};

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
    /// What clients have to show.
    pub client_token: Option<Secret>,
    /// Names under which a listener on loopback answers beside loopback's own.
    pub allowed_hosts: Vec<Box<str>>,
    /// Origins of pages that may ask a listener on loopback, beside loopback's own.
    pub allowed_origins: Vec<Box<str>>,
    /// Headers that carry credentials beside those that are known.
    pub tenant_headers: Vec<http::HeaderName>,
    /// Where the admin listener stands.
    pub admin: SocketAddr,
    /// Bearer token that may do everything on the admin listener; else one is made.
    pub admin_token: Option<Secret>,
    /// Bearer token that may only read there; else one is made.
    pub admin_read_token: Option<Secret>,
    /// Whether `/metrics` answers without a token.
    pub metrics_open: bool,
    /// TLS on the admin listener.
    pub admin_tls: Option<Tls>,
    /// Environment variables that secrets were read from.
    pub secret_variables: Vec<String>,
    /// TLS on the client listener.
    pub tls: Option<Tls>,
    /// Where data is kept.
    pub data: PathBuf,
    /// How far we may go, unless an upstream says otherwise.
    pub mode: Mode,
    /// What a client's `x-plimsoll-mode` may do.
    pub client_mode: ClientMode,
    /// The known agent whose policy it is.
    pub preset: Option<Preset>,
    /// The endpoints that requests go to.
    pub upstreams: Vec<Upstream>,
    /// Extra certificate authorities for upstreams, PEM.
    pub extra_ca: Option<PathBuf>,
    /// The bounds of everything that could grow.
    pub limits: ServerLimits,
    /// How long and how much is kept.
    pub retention: Retention,
    /// What to do at the start where the store cannot be used.
    pub on_failure: OnFailure,
    /// Whether the words of conversations are kept.
    pub content: ContentSettings,
    /// Whom lessons hold for, and how long.
    pub lessons: LessonSettings,
    /// What token counting calls answer for.
    pub count: ProviderCounting,
    /// Output tokens held free in every window, at most.
    pub output_reserve: u64,
    /// What may be changed in requests, and when.
    pub policy: Arc<Policy>,
    /// When histories of models are compacted, by name; the last that matches holds.
    pub compact_models: Vec<(Box<str>, CompactOverride)>,
    /// Overrides of the model catalogue.
    pub models: Vec<ModelOverride>,
    /// Log lines for machines rather than people.
    pub log_json: bool,
    /// How much the log tells beside the exchanges.
    pub log_level: LogLevel,
    /// Add an `x-plimsoll-request-id` response header.
    pub request_id_header: bool,
    /// Who shares what is known of conversations.
    pub tenants: Tenants,
}

impl Config {
    /// Whether only this machine's own can reach the client listener.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

/// Certificate and key of the client listener, PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain, a PEM file.
    pub certificate: PathBuf,
    /// The private key, a PEM file.
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
    /// What is done with WebSocket upgrades.
    pub upgrades: UpgradePolicy,
    /// `stream_options.include_usage`.
    pub include_usage: IncludeUsage,
    /// Who answers token counting calls.
    pub count_tokens: CountTokens,
    /// What it does with reasoning that is sent back; else as is known of it.
    pub reasoning_echo: Option<EchoRule>,
    /// Window of all its models, tokens.
    pub window: Option<u64>,
    /// Prices of all its models.
    pub price: Option<Price>,
    /// When its histories are compacted.
    pub compact: Option<CompactOverride>,
}

impl Upstream {
    /// The host of its address; empty if that has none.
    pub(crate) fn host(&self) -> &str {
        self.base.host().unwrap_or_default()
    }

    /// Whether it can tell clients apart, by their own credentials instead of the operator's.
    pub(crate) fn distinguishes_clients(&self) -> bool {
        self.credential.is_none()
    }
}

/// Bounds; past each of them traffic still flows, unless its text says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Client connections at once. Past it: 503 with our header.
    pub connections: usize,
    /// Request header bytes. Past it: 431.
    pub header_bytes: usize,
    /// How long a client may take to send a request's headers, or to ask for the next thing on a
    /// connection that it keeps, s. Past it: the connection is closed.
    pub header_s: u64,
    /// Largest request body that is read. Past it: forwarded unread.
    pub body_bytes: usize,
    /// How long a request's body may bring nothing, s. Past it: 408.
    pub body_s: u64,
    /// Largest response body or event that is read. Past it: passed on unread.
    pub reply_bytes: usize,
    /// Memory that traffic may make us hold. Past it: bytes pass unread.
    pub memory_bytes: usize,
    /// Memory that connections may take. Past it: less is read at once, and whoever comes hears 503.
    pub connection_bytes: usize,
    /// The part of it that what is read of requests may take. Past it: requests pass unread.
    pub analysis_bytes: usize,
    /// How long the terminal event waits for its turn to be durable, ms. Past it: it leaves.
    pub commit_ms: u64,
    /// How long a request waits for all that it reads from the store, together, ms. Past it: it goes on without.
    pub load_ms: u64,
    /// The same for the first request of a conversation that goes on and can be rewritten, ms; never less.
    pub first_load_ms: u64,
    /// How long a request waits for the turn before it to settle, ms. Past it: it goes on.
    pub settle_ms: u64,
    /// How long a request waits for new decisions about it to be kept, ms. Past it: it goes on without.
    pub save_ms: u64,
    /// How long an upstream may take to accept a connection, s. Past it: 504.
    pub connect_s: u64,
    /// How long an upstream may say nothing in a stream of events, s; 0: for ever. Past it: the stream breaks.
    pub silent_stream_s: u64,
    /// After how long without a word in a stream its client gets a comment, s; 0: never.
    pub keep_alive_s: u64,
    /// How long streams may take to finish at shutdown, s. Past it: they are broken off.
    pub drain_s: u64,
}

/// How long and how much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Days after its last use until a session is deleted.
    pub days: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Whom lessons hold for, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessonSettings {
    /// Tenants that must agree before a lesson holds for all.
    pub tenants: usize,
    /// Days that a lesson holds after it was met.
    pub days: u64,
}

/// Whether the words of conversations are kept, and how much of them.
#[derive(Clone, Copy, Debug)]
pub struct ContentSettings {
    /// Whether they are kept at all.
    pub keep: bool,
    /// Most of one exchange, bytes.
    pub exchange_bytes: usize,
    /// Most of one session, bytes.
    pub session_bytes: u64,
}
