//! Reads what was written (files, environment, flags) as raw values, then resolves them: checked and
//! complete.
//!
//! All faults are reported at once, each with its place, the nearest known key and what to do, before a port
//! is bound. Secrets come from the environment or files, never from the configuration's text.

mod built_in;
pub mod faults;
mod granted;
pub mod hosts;
mod layers;
pub(crate) mod permissions;
pub mod presets;
pub mod raw;
mod resolve;
pub mod schema;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::context::policy::Mode;
use crate::context::policy::{CompactOverride, EchoRule, Policy};
use crate::dialect::Dialect;
use crate::dialect::models::{ModelOverride, Price};
use faults::{ConfigFaults, ConfigPlace};
use layers::ConfigEntry;
use presets::Preset;

/// The name of a configuration file.
const FILE: &str = "plimsoll.toml";

/// The sources of a configuration: a file, overridden by the environment, overridden by flags.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The file that was named explicitly.
    pub file: Option<PathBuf>,
    /// Other files to try, the first existing one is used; none of them need exist.
    pub search: Vec<PathBuf>,
    /// A file that people might take for ours: reported if it exists, never read.
    pub stray: Option<PathBuf>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// Flags: the name as typed, the dotted key, and the value.
    pub flags: Vec<(String, String, String)>,
}

impl ConfigSources {
    /// The sources of this process: the file that was named, or else the one in the user's configuration
    /// folder, or else the system's; and the environment. The working directory may belong to anybody (a
    /// cloned repository), so a file in it is read only if it is named.
    pub(crate) fn of_process(file: Option<PathBuf>, flags: Vec<(String, String, String)>) -> Self {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut sources =
            Self { variables, flags, stray: Some(PathBuf::from(FILE)), ..Self::default() };
        let folder = sources.folder("XDG_CONFIG_HOME");
        let folder = folder.or_else(|| Some(sources.folder("HOME")?.join(".config")));
        let folders = folder.into_iter().chain([PathBuf::from("/etc")]);
        sources.search = folders.map(|folder| folder.join("plimsoll").join(FILE)).collect();
        sources.file = file.or_else(|| sources.variable("PLIMSOLL_CONFIG").map(PathBuf::from));
        sources
    }

    /// The folder that a variable names. A relative path would lead into the working directory; the XDG Base
    /// Directory Specification requires it to be ignored.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    }

    /// A variable's value, if it is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.variables.iter().find(|(known, _)| known == name)?;
        Some(value).filter(|value| !value.is_empty()).map(String::as_str)
    }

    /// What was found in these sources and is ignored.
    fn ignored(&self, read: Option<&Path>) -> Vec<String> {
        let mut ignored = Vec::new();
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            if self.variable(name).is_some() && self.folder(name).is_none() {
                ignored.push(format!("{name} is not an absolute path; it is ignored"));
            }
        }
        let real = |path: &Path| path.canonicalize().ok();
        if let Some(stray) = self.stray.as_deref().filter(|stray| stray.symlink_metadata().is_ok())
            && (read.is_none() || read.and_then(real) != real(stray))
        {
            let stray = stray.display();
            ignored.push(format!("./{stray} is not read; name it with --config if it is yours"));
        }
        ignored
    }
}

/// A configuration that can be served.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The resolved configuration.
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// What is odd but harmless.
    pub warnings: Vec<String>,
}

/// Reads, checks and completes a configuration.
///
/// # Errors
/// All faults at once.
pub fn load(sources: &ConfigSources) -> Result<LoadedConfig, ConfigFaults> {
    load_but(sources, |_| false)
}

/// Like [`load`], for commands that only query a running process: that process has the secrets that are
/// missing here. `plimsoll run` removes them from the environment of its command, which may query all the
/// same.
///
/// # Errors
/// All other faults at once.
pub(crate) fn load_to_look(sources: &ConfigSources) -> Result<LoadedConfig, ConfigFaults> {
    load_but(sources, |key| key.ends_with("token") || key.ends_with(".credential"))
}

/// Reads, checks and completes a configuration; faults of keys that are `excused` are ignored.
fn load_but(
    sources: &ConfigSources,
    excused: fn(&str) -> bool,
) -> Result<LoadedConfig, ConfigFaults> {
    let schema = schema::schema();
    let mut faults = ConfigFaults::default();
    let file =
        sources.file.clone().or_else(|| sources.search.iter().find(|path| path.exists()).cloned());
    let mut warnings = sources.ignored(file.as_deref());
    let mut raw = file.as_deref().map_or_else(ConfigEntry::empty, |path| read(path, &mut faults));
    if !faults.is_empty() {
        // A text that is not valid TOML has no reliable meaning, so its keys are not checked.
        return Err(faults.sorted());
    }
    say_variables(&mut raw, &schema, sources, &mut warnings);
    for (flag, key, value) in &sources.flags {
        say(&mut raw, &schema, key, value, ConfigPlace::Flag(flag.clone()), &mut faults);
    }
    schema::hold(&schema, &raw, "", &mut faults);
    presets::put_under(&mut raw);
    let config = resolve::mean(&raw, sources, &mut faults, &mut warnings);
    faults.0.retain(|fault| !excused(&fault.key));
    match config {
        Some(config) if faults.is_empty() => {
            warnings.extend(resolve::oddities(&config));
            Ok(LoadedConfig { config, file, warnings })
        }
        _ => Err(faults.sorted()),
    }
}

fn read(path: &Path, faults: &mut ConfigFaults) -> ConfigEntry {
    if let Some(finding) = permissions::writable(path) {
        faults.add(ConfigPlace::File(path.to_owned()), "", finding.what, finding.todo);
        return ConfigEntry::empty();
    }
    match std::fs::read_to_string(path) {
        Ok(text) => layers::file(path, &text, faults),
        Err(error) => {
            let todo = "Name a file that is there and can be read, or leave --config out.";
            faults.add(
                ConfigPlace::File(path.to_owned()),
                "",
                format!("cannot be read: {error}"),
                todo,
            );
            ConfigEntry::empty()
        }
    }
}

/// `PLIMSOLL_…`: one variable for each plain key, and `PLIMSOLL_UPSTREAM_NAME` for base URLs.
fn say_variables(
    raw: &mut ConfigEntry,
    schema: &serde_json::Value,
    sources: &ConfigSources,
    warnings: &mut Vec<String>,
) {
    let leaves = schema::leaves(schema);
    for (name, value) in &sources.variables {
        if !name.starts_with("PLIMSOLL_") || value.is_empty() || resolve::is_foreign(name) {
            continue;
        }
        let place = ConfigPlace::Variable(name.clone());
        if let Some(upstream) = name.strip_prefix("PLIMSOLL_UPSTREAM_") {
            let upstream = upstream.to_lowercase().replace('_', "-");
            raw.set(&["upstream", &upstream, "base_url"], value.as_str().into(), place);
        } else if let Some((path, leaf)) =
            leaves.iter().find(|(path, _)| schema::variable(path) == *name)
        {
            let path: Vec<_> = path.iter().map(String::as_str).collect();
            raw.set(&path, schema::from_text(leaf, value), place);
        } else {
            let known: Vec<_> = leaves.iter().map(|(path, _)| schema::variable(path)).collect();
            let near = faults::nearest(name, known.iter().map(String::as_str));
            let hint = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
            warnings.push(format!("environment variable {name} is not known{hint}; it is ignored"));
        }
    }
}

fn say(
    raw: &mut ConfigEntry,
    schema: &serde_json::Value,
    key: &str,
    value: &str,
    place: ConfigPlace,
    faults: &mut ConfigFaults,
) {
    if key == "upstream" {
        return match value.split_once('=') {
            Some((name, url)) => {
                let path = ["upstream", name, "base_url"];
                let twice = raw.at(&path).is_some_and(|entry| entry.place == place);
                if twice {
                    faults.add(place, key, format!("{name} is named twice"), "Name each once.");
                } else {
                    raw.set(&path, url.into(), place);
                }
            }
            None => faults.add(place, key, "should be NAME=URL", "Write, say, openai=http://…"),
        };
    }
    let leaves = schema::leaves(schema);
    let leaf = leaves.iter().find(|(path, _)| path.join(".") == key);
    let value = leaf.map_or_else(|| value.into(), |(_, leaf)| schema::from_text(leaf, value));
    raw.set(&key.split('.').collect::<Vec<_>>(), value, place);
}

/// What to do with a WebSocket upgrade.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum UpgradePolicy {
    /// Tunnel it.
    #[default]
    Tunnel,
    /// Answer 426: known clients fall back to HTTP at once.
    Refuse,
}

/// What a client's `x-plimsoll-mode` may do.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ClientMode {
    /// Lower the operator's mode for one request.
    #[default]
    Lower,
    /// Set any mode for one request.
    Any,
}

impl ClientMode {
    /// The mode of a request: `limit` is the operator's, `wanted` the client's.
    pub fn mode(self, limit: Mode, wanted: Option<Mode>) -> Mode {
        match (self, wanted) {
            (_, None) => limit,
            (Self::Lower, Some(wanted)) => wanted.min(limit),
            (Self::Any, Some(wanted)) => wanted,
        }
    }
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

/// Who answers token counting calls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum CountTokens {
    /// The upstream; where it has no such endpoint, our estimate.
    #[default]
    Auto,
    /// Our estimate: the upstream is not asked.
    Estimate,
    /// The upstream, whatever it says.
    Provider,
}

/// What token counting calls answer for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ProviderCounting {
    /// The request as it would be sent: with what was decided about its conversation before.
    #[default]
    Sent,
    /// The request as the client sends it.
    Raw,
}

/// What to do at the start where the store cannot be used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Serve without it, and try again.
    #[default]
    Serve,
    /// End, saying why.
    Exit,
}

/// How much the log tells beside the exchanges.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What went wrong inside.
    Error,
    /// And what somebody should look at.
    Warn,
    /// And what happens.
    #[default]
    Info,
    /// And what helps to find a fault.
    Debug,
}

/// Who shares what is known of conversations.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Tenants {
    /// Requests with the same credential.
    #[default]
    Credential,
    /// Everyone who reaches the listener.
    One,
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
    pub fn host(&self) -> &str {
        self.base.host().unwrap_or_default()
    }

    /// Whether it can tell clients apart, by their own credentials instead of the operator's.
    pub fn distinguishes_clients(&self) -> bool {
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
    /// Days.
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
