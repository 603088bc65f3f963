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
use crate::context::policy::{CompactOverride, Mode, Policy, ReasoningRule};
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

/// The configuration as the program uses it, checked and complete.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of the client listener.
    pub listen: SocketAddr,
    /// The token that clients must send; `None`: none is needed.
    pub client_token: Option<Secret>,
    /// Host names that a listener on loopback accepts, in addition to those of loopback.
    pub allowed_hosts: Vec<Box<str>>,
    /// Origins of web pages that a listener on loopback accepts, in addition to those of loopback.
    pub allowed_origins: Vec<Box<str>>,
    /// Headers that carry credentials, in addition to the known ones.
    pub tenant_headers: Vec<http::HeaderName>,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// The bearer token for everything on the admin listener; `None`: one is generated.
    pub admin_token: Option<Secret>,
    /// The bearer token that only allows reading there; `None`: one is generated.
    pub admin_read_token: Option<Secret>,
    /// Whether `/metrics` answers without a token.
    pub metrics_open: bool,
    /// TLS on the admin listener.
    pub admin_tls: Option<Tls>,
    /// Environment variables that secrets were read from.
    pub secret_variables: Vec<String>,
    /// TLS on the client listener.
    pub tls: Option<Tls>,
    /// The data folder.
    pub data: PathBuf,
    /// The mode of requests, unless their upstream has one of its own.
    pub mode: Mode,
    /// What a client's `x-plimsoll-mode` may do.
    pub client_mode: ClientMode,
    /// The known agent whose policy is used.
    pub preset: Option<Preset>,
    /// The endpoints that requests go to.
    pub upstreams: Vec<Upstream>,
    /// Extra certificate authorities for upstreams, PEM.
    pub extra_ca: Option<PathBuf>,
    /// Limits for everything that could grow.
    pub limits: ServerLimits,
    /// How long and how much is stored.
    pub retention: Retention,
    /// What to do at the start if the store cannot be used.
    pub on_failure: OnFailure,
    /// Whether the text of conversations is stored.
    pub content: ContentSettings,
    /// How long lessons apply.
    pub lessons: LessonSettings,
    /// Which form of a request its token counting calls count.
    pub count: ProviderCounting,
    /// Tokens that are reserved for the output in every window, at most.
    pub output_reserve: u64,
    /// What may be changed in requests, and when.
    pub policy: Arc<Policy>,
    /// Compaction settings by model name; the last that matches applies.
    pub compact_models: Vec<(Box<str>, CompactOverride)>,
    /// Overrides of the model catalogue.
    pub models: Vec<ModelOverride>,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// Which diagnostics are logged, in addition to the exchanges.
    pub log_level: LogLevel,
    /// Whether responses get an `x-plimsoll-request-id` header.
    pub request_id_header: bool,
    /// Who shares sessions and their decisions.
    pub tenants: Tenants,
}

impl Config {
    /// Whether only this machine can reach the client listener.
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
    /// The protocols for which it is chosen if only the path decides.
    pub dialects: Vec<Dialect>,
    /// Path prefix that selects it and is removed, e.g. `/team-a`.
    pub prefix: Option<Box<str>>,
    /// Host headers that select it.
    pub hosts: Vec<Box<str>>,
    /// The operator's credential, which replaces the client's: header name and value.
    pub credential: Option<(http::HeaderName, Secret)>,
    /// The mode of requests to it; `None`: the general one.
    pub mode: Option<Mode>,
    /// What is done with WebSocket upgrades.
    pub upgrades: UpgradePolicy,
    /// `stream_options.include_usage`.
    pub include_usage: IncludeUsage,
    /// Who answers token counting calls.
    pub count_tokens: CountTokens,
    /// What it does with reasoning that is sent back; `None`: as learned or known.
    pub reasoning_echo: Option<ReasoningRule>,
    /// Window of all its models, tokens.
    pub window: Option<u64>,
    /// Prices of all its models.
    pub price: Option<Price>,
    /// Compaction settings for its requests.
    pub compact: Option<CompactOverride>,
}

impl Upstream {
    /// The host of its base URL; empty if that has none.
    pub(crate) fn host(&self) -> &str {
        self.base.host().unwrap_or_default()
    }

    /// Whether it can tell clients apart, by their own credentials instead of the operator's.
    pub(crate) fn distinguishes_clients(&self) -> bool {
        self.credential.is_none()
    }
}

/// Limits. Past each of them traffic continues, unless its text says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Client connections at once. Past it: 503 with our header.
    pub connections: usize,
    /// Requests at once, of which an HTTP/2 connection may have many. Past it: 503 with our header.
    pub requests: usize,
    /// Request header bytes. Past it: 431.
    pub header_bytes: usize,
    /// How long a client may take to send a request's headers, or the next request on a keep-alive connection, s.
    /// Past it: the connection is closed.
    pub header_s: u64,
    /// Largest request body that is read. Past it: forwarded unread.
    pub body_bytes: usize,
    /// How long a request's body may stall, s. Past it: 408.
    pub body_s: u64,
    /// Largest response body or event that is read. Past it: passed on unread.
    pub reply_bytes: usize,
    /// Memory that traffic may use. Past it: bytes pass unread.
    pub memory_bytes: usize,
    /// How long the terminal event waits until its turn is durable, ms. Past it: it is sent.
    pub commit_ms: u64,
    /// How long a request waits for everything that it reads from the store, ms. Past it: it continues without.
    pub load_ms: u64,
    /// The same for the first request of a conversation that continues after a restart, ms. Never less.
    pub first_load_ms: u64,
    /// How long a request waits for the turn before it to be recorded, ms. Past it: it continues.
    pub settle_ms: u64,
    /// How long a request waits for its new decisions to be stored, ms. Past it: it continues without them.
    pub save_ms: u64,
    /// How long an upstream may take to accept a connection, s. Past it: 504.
    pub connect_s: u64,
    /// How long an upstream may send nothing in an event stream, s; 0: no limit. Past it: the stream is ended.
    pub silent_stream_s: u64,
    /// After how long a silence in an event stream the client gets a comment, s; 0: never.
    pub keep_alive_s: u64,
    /// How long streams may take to finish at shutdown, s. Past it: they are aborted.
    pub drain_s: u64,
}

/// How long and how much is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Days after its last use until a session is deleted.
    pub days: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// How long lessons apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessonSettings {
    /// Days until a lesson expires.
    pub days: u64,
}

/// Whether the text of conversations is stored, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct ContentSettings {
    /// Whether it is stored at all.
    pub keep: bool,
    /// Whether names of folders and titles are kept in the clear.
    pub names: bool,
    /// Most of one exchange, bytes.
    pub exchange_bytes: usize,
    /// Most of one session, bytes.
    pub session_bytes: u64,
}
