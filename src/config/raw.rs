//! The raw configuration: its keys with their documentation and defaults.
//!
//! The only source of `config/default.toml` and `config/schema.json`: doc comments here are the text in those
//! files. Nothing is checked here; [`super::resolve`] does that.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::{
    ClientMode, CountTokens, IncludeUsage, LogLevel, OnFailure, OtelProtocol, OtelSignal,
    ProviderCounting, Tenants, UpgradePolicy,
};
use super::presets::Preset;
use super::settings::{ContentSettings, LessonSettings, Retention, ServerLimits};
use crate::context::caps::CapPeriod;
use crate::context::policy::{
    ClassicPolicy, CompactOverride, CompactPolicy, DiagnosisPolicy, Mode, PrunePolicy,
    ReasoningPolicy, ReasoningRule, RepairPolicy, ReportedUsage,
};
use crate::dialect::Dialect;
use crate::dialect::models::{Family, Price};

/// Plimsoll's configuration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "plimsoll.toml")]
pub struct RawConfig {
    /// Address and port that clients connect to. Port 0 lets the system choose.
    pub listen: String,
    /// Token that clients must send: `env:NAME` or `file:PATH`, never the token itself; 16 characters or more.
    /// They send it as `x-plimsoll-token`, or in place of their API key if the upstream has a `credential`.
    /// Plimsoll does not forward it. Required if other machines can reach `listen` and an upstream has a
    /// `credential`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_token: Option<String>,
    /// More `Host` names that a listener on loopback accepts. It always accepts `localhost`, loopback
    /// addresses, `hosts` of upstreams and the names that containers use. It refuses all others, so that no web
    /// page can reach it by DNS rebinding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may use a listener on loopback, such as `https://app.example`. Pages from
    /// loopback always may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_origins: Option<Vec<String>>,
    /// More headers that identify a user. Those of known providers and gateways are built in. They tell tenants
    /// apart, and are removed for an upstream with a `credential`. If a request has no known credential, but a
    /// header that might be one, Plimsoll measures it and stores nothing about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_headers: Option<Vec<String>>,
    /// Address and port of the admin listener: metrics, health, context views. An address that other machines
    /// can reach needs `admin_token`.
    pub admin: String,
    /// Bearer token that may do everything on the admin listener: `env:NAME` or `file:PATH`, never the
    /// token itself; at least 16 characters. Default: one that the first start puts into the data
    /// folder, as `admin.token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token: Option<String>,
    /// Bearer token that may only read on the admin listener: metrics, lists, numbers, contexts. It
    /// shows no text, and changes nothing. Default: one that the first start puts into the data folder, as `read.token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_read_token: Option<String>,
    /// Whether `/metrics` answers without a token, for scrapers that can send none.
    pub metrics_open: bool,
    /// Names of tags (`x-plimsoll-tags: team=core`) by whose values metrics count cost and tokens; at most 50 values of
    /// each, any further are `other`.
    pub metrics_tags: Vec<String>,
    /// The data folder. Default: `plimsoll` in the user's data folder
    /// (`$XDG_DATA_HOME`, else `~/.local/share`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// What Plimsoll may do with requests: `observe` decides nothing (earlier rewrites of a thread are still
    /// repeated, because its cache and reasoning depend on them), `shadow` decides and measures but sends the
    /// original, `active` rewrites where the policy allows it.
    pub mode: Mode,
    /// What a client's `x-plimsoll-mode` header may do for one request: `lower` the mode that is set here or
    /// for its upstream (`active` to `shadow`, either to `observe`), or set `any`. A session that
    /// `prune.hold_out` leaves untouched is sent untouched either way.
    pub client_mode: ClientMode,
    /// The policy of a known agent, in place of the defaults of `[prune]`, `[compact]`, `[reasoning]`, `[estimate]`
    /// and `output_reserve_tokens`; keys that you set override it. `config/presets/` holds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Format of the log, which goes to standard error: lines of text, or JSON.
    pub log: RawLogFormat,
    /// The log level. The line of each exchange is always written. SIGHUP reloads it. RUST_LOG overrides it.
    pub log_level: LogLevel,
    /// Whether responses have the header `x-plimsoll-request-id`; `/api/v1/requests/{id}` finds them by it.
    pub request_id_header: bool,
    /// Who shares sessions and their decisions: requests with the same `credential` (on a listener that other
    /// machines can reach, requests without one share nothing), or, as `one`, everyone who reaches the
    /// listener. Set `one` if only you use this Plimsoll and your client renews its token while it runs: with
    /// `credential` each new token starts new sessions.
    pub tenants: Tenants,
    /// Which request token counting calls (`count_tokens`, `countTokens`, `input_tokens`) count: the one that
    /// would be `sent`, after earlier decisions, or the `raw` one as the client has it.
    pub count: ProviderCounting,
    /// Which usage clients see after something was cut or compacted: `actual`, the provider's own number, byte
    /// for byte; or `unpruned`, the input as if nothing had been removed (estimated; output and cache stay as they
    /// are). With `unpruned` a client that compacts by this number compacts when it would without Plimsoll.
    pub client_usage: ReportedUsage,
    /// Whether a request takes the first of the queued messages alone, and not all of them (as Dexto's steps do).
    #[schemars(extend("presetOnly" = true))]
    pub one_queued_message: bool,
    /// Whether Plimsoll asks for usage in streamed Chat Completions if the client did not, and hides the report
    /// from the client: `auto` or `never`.
    pub include_usage: IncludeUsage,
    /// Most tokens that are reserved for the output in every window.
    pub output_reserve_tokens: u64,
    /// File or https URL with windows, limits and prices of models, over the built-in ones and under `[model."NAME"]`:
    /// LiteLLM's `model_prices_and_context_window.json`, models.dev's `api.json`, or the form of Plimsoll's
    /// `config/models.toml`. A file is read again when it changes; a warning says if it is older than the built-in
    /// table. A URL is fetched at the start and every six hours; until it answers, the last copy in the data folder is
    /// used. Without one, Plimsoll fetches nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<String>,
    /// PostgreSQL database to which finished turns are copied, with the views of the file: `postgres://USER@HOST/DATABASE`
    /// (docs/fleets.md). As `env:NAME` or `file:PATH` it may have the password in it. `sslmode=require` needs TLS;
    /// `extra_ca` and the system's authorities are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warehouse: Option<String>,
    /// PEM file with certificate authorities to trust, in addition to the platform's and the bundled ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_ca: Option<String>,
    /// TLS on the client listener. Without it, it speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<RawTls>,
    /// Limits. Past each of them traffic continues, unless its text says otherwise.
    pub limits: ServerLimits,
    /// Pruning: which old tool results may be replaced by a placeholder, and when.
    pub prune: PrunePolicy,
    /// Compaction: when a history fills the window, a summary replaces its beginning.
    pub compact: CompactPolicy,
    /// Reasoning that clients drop, and that Plimsoll puts back where the provider expects it.
    pub reasoning: ReasoningPolicy,
    /// The provider's prompt cache.
    pub cache: DiagnosisPolicy,
    /// Healing: what Plimsoll changes in a request after its provider refused it.
    pub heal: RepairPolicy,
    /// Other counts of a request, in addition to Plimsoll's own estimate: by the rules of a known agent, or by
    /// the provider's counting endpoint.
    pub estimate: ClassicPolicy,
    /// How long and how much is kept.
    pub retention: Retention,
    /// The store: a file in the data folder, or a server that several replicas share (docs/fleets.md).
    pub store: RawStore,
    /// The text of conversations: whether it is stored, in addition to usage and sizes.
    pub content: ContentSettings,
    /// Lessons: what refusals of upstreams teach, such as a window or an unknown field. A lesson applies to the
    /// credential whose request was refused, and to all only if you share it. `plimsoll lessons` lists, shares and
    /// deletes them.
    pub lessons: LessonSettings,
    /// OpenTelemetry: traces and metrics of exchanges for a collector, by OTLP. Never text of a conversation. Keys here come
    /// before the standard `OTEL_*` variables (docs/opentelemetry.md).
    pub otel: RawOtel,
    /// The endpoints that requests go to, by name. `anthropic`, `openai` and `gemini` are built in; yours come
    /// before them, in the order of the file. `/NAME/…` always selects one.
    pub upstream: BTreeMap<String, RawUpstream>,
    /// Spending caps, by names that you choose. What is spent counts at once, kept turns after a restart. At 80 % responses
    /// have the header `x-plimsoll-cap`; once a cap is spent, the next request gets 402 with `x-plimsoll-error: spend_cap`.
    /// Replies in flight end as they would have. `plimsoll caps` shows and lifts them.
    pub cap: BTreeMap<String, RawCap>,
    /// Corrections to what is known about models, by name; a `*` at the end matches any rest.
    pub model: BTreeMap<String, RawModel>,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawLogFormat {
    /// People.
    #[default]
    Text,
    /// Machines.
    Json,
}

/// TLS on the client listener. The files are read again when they change.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawTls {
    /// PEM file with the certificate chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// PEM file with the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether the admin listener speaks TLS too, with the same certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
}

/// The store: a file in the data folder, or a Redis or Valkey server that several replicas share.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawStore {
    /// The server of a fleet: `redis://USER@HOST:PORT/DATABASE`, `rediss://` with TLS,
    /// `redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY`, or `redis+cluster://HOST:PORT,HOST:PORT`. Without it there is the
    /// file. As `env:NAME` or `file:PATH` it may have the password in it (`redis://USER:PASSWORD@HOST`). `extra_ca` and the
    /// system's authorities are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The server's password: `env:NAME` or `file:PATH`, never the password itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// What hashes of content and of credentials are keyed with, so that nobody who has the server can check a guess:
    /// `env:NAME` or `file:PATH`, 16 characters or more. All replicas need the same, and it must not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What all keys on the server begin with.
    pub prefix: String,
    /// Who must have a decision before it is sent, and a turn before its reply ends: `primary`, or as many replicas of
    /// the server beside it (`replicas:1`). With fewer nothing new is decided.
    pub ack: String,
    /// What to do at the start if the store cannot be used: `serve` traffic, store nothing and try again
    /// until it works, or `exit`. A damaged file is renamed, never deleted.
    pub on_failure: OnFailure,
}

impl Default for RawStore {
    fn default() -> Self {
        Self {
            url: None,
            password: None,
            secret: None,
            prefix: "plimsoll:".to_owned(),
            ack: "primary".to_owned(),
            on_failure: OnFailure::default(),
        }
    }
}

/// OpenTelemetry: where traces and metrics are sent, and which.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawOtel {
    /// Base URL of the collector: `http://127.0.0.1:4318`. Default: `OTEL_EXPORTER_OTLP_ENDPOINT`. Without either, nothing is
    /// sent. `extra_ca` and the system's authorities are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How it is spoken to: `http/protobuf` (usually port 4318) or `grpc` (4317). Default: `OTEL_EXPORTER_OTLP_PROTOCOL`, else
    /// `http/protobuf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<OtelProtocol>,
    /// Headers of each request to it, as `name=value,name=value`: `env:NAME` or `file:PATH`, never the value itself. Default:
    /// `OTEL_EXPORTER_OTLP_HEADERS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<String>,
    /// What is sent: `traces`, `metrics`, `logs`.
    pub signals: Vec<OtelSignal>,
    /// Share of traces that are sent, 0 to 1. A client that continues a trace decides instead. Default:
    /// `OTEL_TRACES_SAMPLER`, else all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    /// Whether requests of sampled traces carry our `traceparent` header to the upstream, in place of the client's. Otherwise
    /// the client's passes as it is.
    pub propagate: bool,
}

impl Default for RawOtel {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            headers: None,
            signals: vec![OtelSignal::Traces, OtelSignal::Metrics, OtelSignal::Logs],
            sample: None,
            propagate: false,
        }
    }
}

/// A provider endpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawUpstream {
    /// Its base URL: `http` or `https`, host, and a base path if it has one. A version at its end (`/v1`) is
    /// not repeated if clients send it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Whether it is used; `false` turns a built-in one off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The protocols for which it is chosen if only the path decides. `anthropic`, `openai` and `gemini` have
    /// their own. Any other has none unless you set them: clients reach it by its name, its prefix or its host,
    /// so that no provider gets another's traffic by accident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialects: Option<Vec<Dialect>>,
    /// A path prefix that selects it and is removed, such as `/team-a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Host headers that select it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// A credential of its own that replaces the client's: `env:NAME` or `file:PATH`, never the credential
    /// itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The header that carries `credential`. Default: `x-api-key` for Anthropic, `x-goog-api-key`
    /// for Gemini, else `authorization` with `Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_header: Option<String>,
    /// What Plimsoll may do here. Default: `mode` above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// WebSocket upgrades: `tunnel` them, or `refuse` them with 426, after which known clients use HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<UpgradePolicy>,
    /// Whether Plimsoll asks for usage in its streamed Chat Completions: `auto` or `never`. Default:
    /// `include_usage` above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_usage: Option<IncludeUsage>,
    /// Who answers token counting calls (`count_tokens`, `countTokens`, `input_tokens`): `provider`;
    /// `estimate`, which is Plimsoll, with its likely range in `x-plimsoll-estimated`; or `auto`: the provider, but in
    /// mode `active` Plimsoll if the provider answers 404, 405 or 501 because it has no such endpoint. Default:
    /// `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_tokens: Option<CountTokens>,
    /// Whether its reasoning must be sent back: `demanded` (it answers 400 without), `wanted`, or `unwanted`.
    /// Default: what is known about the provider, and learned from its responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_echo: Option<ReasoningRule>,
    /// Context window of all its models, if the catalogue is wrong for this upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Prices of all its models, US dollars per million tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// When its histories are compacted. Default: `[compact]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact: Option<CompactOverride>,
}

/// A limit of spending. One of `dollars` and `tokens` is required.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawCap {
    /// Whose spending has a sum of its own: `all` together, or each `tenant` (credential), `session` (with its sub-agents),
    /// `project`, `tag` or `upstream`. With a name after a colon, only that one: `upstream:openai`, `tag:team=core`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// In which time, UTC. `session`: as long as the session; only with `of = "session"`.
    pub per: CapPeriod,
    /// At most so many US dollars. A call whose price is not known counts as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// At most so many tokens: input, with what comes from caches, and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// What you know better about a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawModel {
    /// Context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Largest output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Its tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Its prices, US dollars per million tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// When its histories are compacted. Default: that of its upstream, else `[compact]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact: Option<CompactOverride>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8787".to_owned(),
            client_token: None,
            allowed_hosts: None,
            allowed_origins: None,
            tenant_headers: None,
            admin: "127.0.0.1:9797".to_owned(),
            admin_token: None,
            admin_read_token: None,
            metrics_open: false,
            metrics_tags: Vec::new(),
            data: None,
            mode: Mode::default(),
            client_mode: ClientMode::default(),
            preset: None,
            log: RawLogFormat::default(),
            log_level: LogLevel::default(),
            request_id_header: false,
            tenants: Tenants::default(),
            count: ProviderCounting::default(),
            client_usage: ReportedUsage::default(),
            one_queued_message: false,
            include_usage: IncludeUsage::default(),
            output_reserve_tokens: 16_000,
            catalogue: None,
            warehouse: None,
            extra_ca: None,
            tls: None,
            limits: ServerLimits::default(),
            prune: PrunePolicy::default(),
            compact: CompactPolicy::default(),
            reasoning: ReasoningPolicy::default(),
            cache: DiagnosisPolicy::default(),
            heal: RepairPolicy::default(),
            estimate: ClassicPolicy::default(),
            retention: Retention::default(),
            store: RawStore::default(),
            content: ContentSettings::default(),
            lessons: LessonSettings::default(),
            otel: RawOtel::default(),
            upstream: BTreeMap::new(),
            cap: BTreeMap::new(),
            model: BTreeMap::new(),
        }
    }
}
