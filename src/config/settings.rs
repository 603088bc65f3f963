//! The resolved configuration: everything that the program needs, checked and complete.
//!
//! Values only; [`super::resolve`] makes them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::{
    ClientMode, CountTokens, IncludeUsage, LogLevel, OnFailure, ProviderCounting, Tenants,
    UpgradePolicy,
};
use super::memory_limits;
use super::otel::OtelSettings;
use super::presets::Preset;
pub use super::secret::Secret;
use crate::context::caps::Cap;
use crate::context::policy::{CompactOverride, Mode, Policy, ReasoningRule};
use crate::dialect::Dialect;
use crate::dialect::credentials::redact;
use crate::dialect::models::{Catalogue, Price};

/// A server that several processes store facts on.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// Host and port of the server, of its sentinels, or of nodes of a cluster.
    pub hosts: Vec<(Box<str>, u16)>,
    /// The name under which the sentinels know the primary; `None`: there are none.
    pub sentinel: Option<Box<str>>,
    /// Whether it is a cluster.
    pub is_cluster: bool,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Its ACL user.
    pub user: Option<Box<str>>,
    /// Its password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: i64,
    /// What all keys begin with.
    pub prefix: Box<str>,
    /// What hashes of content and credentials are keyed with.
    pub secret: Secret,
    /// How many replicas must have a write, beside the primary.
    pub acks: u32,
}

impl SharedStore {
    /// Where it is, without credentials.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let primary = self.sentinel.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
        let scheme = if self.tls { "rediss" } else { "redis" };
        let form = match (&self.sentinel, self.is_cluster) {
            (Some(_), _) => "+sentinel",
            (None, true) => "+cluster",
            (None, false) => "",
        };
        format!("{scheme}{form}://{}{primary}/{}", hosts.join(","), self.database)
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
    /// Names of tags that are labels of metrics.
    pub metrics_tags: Vec<String>,
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
    /// The server on which facts are stored; `None`: they are in the data folder.
    pub shared_store: Option<SharedStore>,
    /// The URL of the database to which finished turns are copied.
    pub warehouse: Option<Secret>,
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
    /// How much may be spent.
    pub caps: Vec<Cap>,
    /// Compaction settings by model name; the last that matches applies.
    pub compact_models: Vec<(Box<str>, CompactOverride)>,
    /// What is known about models: built in, in the configured file, in the configuration.
    pub catalogue: Catalogue,
    /// The file, which is read again when it changes.
    pub catalogue_file: Option<PathBuf>,
    /// The address that the file is a copy of.
    pub catalogue_url: Option<http::Uri>,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// Which diagnostics are logged, in addition to the exchanges.
    pub log_level: LogLevel,
    /// Whether responses get an `x-plimsoll-request-id` header.
    pub request_id_header: bool,
    /// Who shares sessions and their decisions.
    pub tenants: Tenants,
    /// Traces and metrics for a collector; `None`: nothing is sent.
    pub otel: Option<OtelSettings>,
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

    /// Its base URL for people; a path may have a key.
    pub(crate) fn shown_base(&self) -> String {
        redact(&self.base.to_string()).trim_end_matches('/').to_owned()
    }

    /// Whether it can tell clients apart, by their own credentials instead of the operator's.
    pub(crate) fn distinguishes_clients(&self) -> bool {
        self.credential.is_none()
    }
}

/// Limits for everything that could grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerLimits {
    /// Client connections at once. Past it: new ones wait for a second, then get 503 with `x-plimsoll-error`.
    /// Default: one for each 170 KiB of `process_bytes`, 4096 at most: 1542 in 256 MiB. Twice as
    /// many requests are served at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Bytes of request headers. Past it: 431.
    pub header_bytes: usize,
    /// How long a client may take to send a request's headers, or the next request on a keep-alive connection.
    /// Past it: the connection is closed. Set it longer than clients keep idle connections (90 s or less): then
    /// the client closes first, and never sends on a closed connection.
    pub header_s: u64,
    /// Largest request body that is read. Past it: forwarded unread.
    pub body_bytes: usize,
    /// How long a request's body may stall. Past it: 408, and the connection to the upstream is closed.
    pub body_s: u64,
    /// Largest response body or event that is read. Past it: passed on unread. No key: what agents get fits by far.
    #[serde(skip)]
    pub reply_bytes: usize,
    /// Memory that the whole process may use; `connections` follows from it, and what traffic
    /// may use: 5/32 of it for request bodies, parsed requests, replies and messages. Past that: bytes pass unread.
    /// Default: the memory limit of the container or service (its cgroup). Without one, an eighth of the machine's
    /// memory, but at least 512 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    /// How long a request waits for the store, each time: until its session, lessons and calibration are read, until
    /// the turn before it is recorded, and until its new decisions are stored. Past it: it continues without, and
    /// nothing new is decided for it.
    pub store_ms: u64,
    /// Like `store_ms`, for the first request of a conversation that continues after a restart, ms; never less. Its
    /// earlier cuts are only in the store, and without them the provider's cache breaks. It also applies in `observe`
    /// and `shadow`, because they repeat those cuts. The wait ends when a shutdown begins. No key: a broken cache costs
    /// more than this wait, and only a store that hangs takes so long.
    #[serde(skip)]
    pub first_load_ms: u64,
    /// How long the end of a reply waits until its turn is on disk, ms, so that a turn whose end the client saw survives
    /// a crash. Past it: the end is sent, counted and logged. No key: it takes that long only if the disk hangs.
    #[serde(skip)]
    pub commit_ms: u64,
    /// How long an upstream may take to accept a connection. Past it: 504.
    pub connect_s: u64,
    /// How long an upstream may send nothing in an event stream, not even a comment or a ping. Past it: the
    /// client gets an error event of its protocol and the stream ends. In the middle of an event the connection
    /// is closed instead. A reasoning model may be silent for minutes. 0: no limit.
    pub silent_stream_s: u64,
    /// If an event stream is silent for this long, the client gets a comment (`: keep-alive`), and again after
    /// each such time, so that neither the client nor a proxy in between gives up. Between events only. 0:
    /// never.
    pub keep_alive_s: u64,
    /// How long streams may take to finish at shutdown. Past it: they are aborted.
    pub drain_s: u64,
}

/// How long and how much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Days after its last use until a session is deleted, as a whole.
    pub days: u64,
    /// Bytes on disk past which sessions are deleted, least recently used first. The store may temporarily take
    /// a tenth more, and 64 MiB for the WAL; the volumes in `deploy/` have room for that.
    pub bytes: u64,
}

/// Lessons, which refusals of upstreams teach: how long they apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LessonSettings {
    /// Days until a lesson expires, 1 to 90. The next such refusal teaches it again.
    pub days: u64,
}

/// The text of conversations: whether it is stored, in addition to usage and sizes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContentSettings {
    /// Whether the text of each exchange from now on is kept with its session, in the data folder, for
    /// `plimsoll export --content`: system prompt and tools, what each request adds, and the reply. Not
    /// pictures and documents. It is deleted with the session; log and metrics never have it.
    pub keep: bool,
    /// Whether names that stand in the text of requests and replies are kept with a session and shown: of the folder
    /// that the agent works in, and the title that its client asks the model for. Without it the folder is shown as a
    /// hash, and the title not at all.
    pub names: bool,
    /// Most bytes of one exchange; of text that does not fit only the size is kept. No key: `retention.bytes` is the
    /// limit that matters.
    #[serde(skip)]
    pub exchange_bytes: usize,
    /// Most bytes of one session; past it no more of its text is kept.
    #[serde(skip)]
    pub session_bytes: u64,
}

impl ServerLimits {
    /// Client connections at once.
    pub fn connections(&self) -> usize {
        self.connections.unwrap_or_else(|| memory_limits::connections(self.process_bytes()))
    }

    /// Requests at once, of which an HTTP/2 connection may have many. Past it: 503 with our header.
    pub fn requests(&self) -> usize {
        let fitting = memory_limits::connections(self.process_bytes());
        // A request counts until its turn is stored, and those on a WebSocket beside their connection.
        self.connections().max(fitting).saturating_mul(2)
    }

    /// Memory that traffic may use. Past it: bytes pass unread.
    pub fn memory_bytes(&self) -> usize {
        memory_limits::memory_bytes(self.process_bytes())
    }

    fn process_bytes(&self) -> u64 {
        self.process_bytes.unwrap_or_else(memory_limits::process_bytes)
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: None,
            header_bytes: 32 * 1024,
            header_s: 120,
            body_bytes: 32 * 1024 * 1024,
            body_s: 60,
            reply_bytes: 16 * 1024 * 1024,
            process_bytes: None,
            store_ms: 200,
            first_load_ms: 2000,
            commit_ms: 10_000,
            connect_s: 10,
            silent_stream_s: 0,
            keep_alive_s: 0,
            drain_s: 30,
        }
    }
}

impl Default for ContentSettings {
    fn default() -> Self {
        Self {
            keep: false,
            names: false,
            exchange_bytes: 4 * 1024 * 1024,
            session_bytes: 64 * 1024 * 1024,
        }
    }
}

impl Default for LessonSettings {
    fn default() -> Self {
        Self { days: 7 }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { days: 30, bytes: 768 * 1024 * 1024 }
    }
}
