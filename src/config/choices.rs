//! Settings with a few named values, as they are written and as they are used.
//!
//! Their names are part of the configuration and never change.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::context::policy::Mode;

/// What to do with a WebSocket upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpgradePolicy {
    /// Tunnel it.
    #[default]
    Tunnel,
    /// Answer 426: known clients fall back to HTTP at once.
    Refuse,
}

/// What a client's `x-plimsoll-mode` may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
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
    pub(crate) fn mode(self, limit: Mode, wanted: Option<Mode>) -> Mode {
        match (self, wanted) {
            (_, None) => limit,
            (Self::Lower, Some(wanted)) => wanted.min(limit),
            (Self::Any, Some(wanted)) => wanted,
        }
    }
}

/// Whether `stream_options.include_usage` is added to streamed Chat Completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IncludeUsage {
    /// If the client did not ask for it, unless the upstream has refused it before.
    #[default]
    Auto,
    /// Never: not one byte is added.
    Never,
}

/// Who answers token counting calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CountTokens {
    /// The upstream; if it has no such endpoint, our estimate.
    #[default]
    Auto,
    /// Our estimate: the upstream is not asked.
    Estimate,
    /// The upstream, even if it has no such endpoint.
    Provider,
}

/// Which form of a request its token counting calls count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProviderCounting {
    /// The request as it would be sent: with the earlier decisions about its conversation.
    #[default]
    Sent,
    /// The request as the client sends it.
    Raw,
}

/// What to do at the start if the store cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Serve without it, and try again.
    #[default]
    Serve,
    /// Exit with an error that says why.
    Exit,
}

/// Which diagnostics are logged, in addition to the exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// Errors inside Plimsoll.
    Error,
    /// Also warnings: what an operator should look at.
    Warn,
    /// Also events, such as a start or a lesson.
    #[default]
    Info,
    /// Also details that help to find a fault.
    Debug,
}

/// Who shares sessions and their decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tenants {
    /// Requests with the same credential.
    #[default]
    Credential,
    /// Everyone who reaches the listener.
    One,
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub enum OtelProtocol {
    /// HTTP with protobuf bodies.
    #[default]
    #[serde(rename = "http/protobuf")]
    Http,
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
}

/// A kind of data that a collector takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OtelSignal {
    /// Spans of exchanges.
    Traces,
    /// Counts and durations.
    Metrics,
    /// The log: a record for each exchange, and what else it tells.
    Logs,
}
