//! Label values of metrics: closed sets, so that nothing a client sends can grow a metric.
//!
//! They know nothing about the metrics; `docs/metrics.md` is generated from where they are used.

use serde::Serialize;
use strum::{AsRefStr, EnumIter};

use crate::dialect::Usage;

/// Why an exchange was forwarded without some of our functions; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FailOpen {
    /// The request body is larger than the limit for analysis.
    BodyTooLarge,
    /// The request body could not be parsed as its dialect.
    BodyUnread,
    /// Reading or estimating panicked.
    Panicked,
    /// The store did not answer in time, or failed.
    Store,
    /// The session has the maximum number of decisions: earlier ones are replayed, nothing new is decided.
    Decisions,
    /// The store did not identify the session in time: the exchange is measured, and nothing of it is
    /// remembered.
    SessionLate,
    /// The response could not be read.
    ReplyUnread,
    /// The turn was not durable when its terminal event was forwarded, or a few seconds after its client left.
    CommitLate,
    /// Edits of one body contradicted each other; it was sent as it came.
    EditsConflict,
    /// A stored fact cannot be understood; it was ignored.
    FactUnread,
    /// The upstream refused a body that we had changed; the original was sent again.
    RewriteRefused,
    /// It may carry a credential that we do not recognise: it was measured, and nothing of it is remembered.
    UnknownCredential,
    /// It has no credential, and others can reach the listener: it was measured, and nothing of it is
    /// remembered.
    NoCredential,
    /// A body is encoded more than twice; it was forwarded unread.
    TooManyCodings,
    /// The limit of memory was reached (5/32 of `limits.process_bytes`); the body was forwarded unread.
    MemoryBudget,
    /// Reading the request would have taken too much memory, or waited too long.
    AnalysisBudget,
}

/// The outcome of a refusal that blames the request's content; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefusalOutcome {
    /// The request was changed, sent once more, and answered with a response.
    Healed,
    /// The request was changed before it was sent, because another request was refused.
    Spared,
    /// The changed request was refused as well.
    RefusedAgain,
    /// The changed request met a rate limit or a failing provider, or got no response.
    Unanswered,
    /// No change helps: the refused content is not the client's, or changing it has failed before.
    NoRepair,
    /// It names a place that does not exist in the request.
    Misplaced,
    /// The store could not save the change.
    NotKept,
    /// In mode `active` the request could have been changed.
    Possible,
    /// The message of the refusal is not known.
    Unknown,
}

/// What memory is used for; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum MemoryKind {
    /// Request bodies, as received and decoded.
    Request,
    /// Parsed requests: parts and plans.
    Analysis,
    /// Responses while they are read, and their decoders.
    Reply,
    /// WebSocket messages.
    Message,
}

/// What is cached in memory beyond its exchange; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum CacheKind {
    /// Sessions with their turns and decisions.
    Sessions,
    /// The decisions of the session with the most of them.
    SessionDecisions,
    /// The newest request of each session, parsed.
    LatestRequests,
    /// Data that waits to be written to the store.
    StoreQueue,
}

/// Why a request was sent to its upstream again: the upstream had not processed it, certainly or, for one cause, almost
/// certainly; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RepeatCause {
    /// It had not been sent when its connection closed.
    NotSent,
    /// An idle connection closed without an answer, so soon after the request that the upstream almost certainly had
    /// closed it before it read the request.
    ClosedWhileIdle,
    /// The upstream refused its HTTP/2 stream.
    RefusedStream,
    /// The upstream closed the HTTP/2 connection and named an earlier stream as the last one.
    WentAway,
    /// Nothing came on the HTTP/2 connection after it was sent, and no answer to a ping.
    WentSilent,
}

/// The outcome of a call to a provider's counting endpoint; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum CountOutcome {
    /// It was answered.
    Answered,
    /// The same prompt was counted before.
    Cached,
    /// Not called: enough calls are in flight.
    Busy,
    /// Not called: the provider asked us to wait.
    Paused,
    /// The endpoint does not exist.
    Missing,
    /// The provider refused it.
    Refused,
    /// No answer in time, or an answer that is not a number.
    Failed,
}

/// Why a client's token count was answered with our estimate; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CountEstimate {
    /// The configuration requires it.
    Configured,
    /// The upstream was called and has no such endpoint.
    Missing,
    /// It is known from before that it has none.
    Learned,
}

/// What became of something for an OpenTelemetry collector; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(not(feature = "otel"), allow(dead_code))]
pub(crate) enum OtelOutcome {
    /// The collector took it.
    Sent,
    /// The collector did not take it, in time or at all.
    Dropped,
}

/// What became of a turn for the warehouse; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum WarehouseOutcome {
    /// It is in the database.
    Written,
    /// There was no room to wait in, or the database does not take it.
    Dropped,
}

/// Why the admin API refused a request; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum AdminRefusal {
    /// It has no token.
    NoToken,
    /// Its token is wrong.
    WrongToken,
    /// Its token is wrong, and so were many others just before.
    TooManyAttempts,
    /// Its token only allows reading.
    ReadOnly,
    /// Its `Host` is missing, malformed, given twice, or not this machine's.
    ForeignHost,
    /// A page of another site sent it.
    ForeignOrigin,
    /// A process of another user connected to the Unix socket.
    ForeignUser,
}

/// The outcome of a lesson that a refusal could teach; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum LessonOutcome {
    /// It holds for the tenant that received the refusal.
    Learned,
    /// Not learned: the refusal's text quotes the refused request.
    Quoted,
    /// Not learned: a window that contradicts what was sent.
    Implausible,
    /// Not learned: our change was refused with an unknown message.
    Unknown,
    /// Not learned: there is no room for more.
    Full,
}

/// An operation of the store; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum StoreOperation {
    /// Saves new facts.
    Put,
    /// Saves drafts, or turns drafts into turns.
    Draft,
    /// Reads one fact.
    Get,
    /// Finds the scope that holds a fact.
    Find,
    /// Reads a whole scope.
    Scan,
    /// Lists the scopes.
    Scopes,
    /// Deletes a scope.
    Drop,
    /// Deletes what has expired.
    Expire,
    /// Checks whether the store responds.
    Ready,
}

/// How a connection past `limits.connections` ended; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RejectedConnection {
    /// With a 503 response that says what to do.
    Answered,
    /// Without a response: it sent no request in time, or there were too many of them.
    Closed,
}

/// What a client took too long for; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum ClientTimeout {
    /// The first request on a new connection.
    Silent,
    /// The next request on a connection that is kept alive.
    Idle,
    /// More of a request's body.
    Body,
}

/// How writing a summary ended; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum SummaryOutcome {
    /// It was written.
    Written,
    /// The upstream refused, failed, or could not be reached.
    UpstreamFailed,
    /// It took too long.
    TimedOut,
    /// The reply was empty, called a tool, was cut off, or was too long.
    Rejected,
    /// The provider offers no compaction.
    NotOffered,
    /// It would not have made the context smaller, or not enough.
    TooLarge,
    /// The store could not save it, or another replica was to write it and did not.
    NotKept,
}

/// What tokens were; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum UsageKind {
    /// The whole prompt.
    Input,
    /// The whole reply.
    Output,
    /// The part of the reply that was reasoning.
    Reasoning,
    /// The part of the prompt that was read from the cache.
    CacheRead,
    /// The part of the prompt that was written to the cache.
    CacheWrite,
}

/// Whose price of a call it is; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum PriceSource {
    /// The provider's own word.
    Stated,
    /// What the tokens cost at our prices.
    Catalogue,
}

/// The tokens that were reported, by kind.
pub(super) fn tokens_by_kind(usage: &Usage) -> [(UsageKind, Option<u64>); 5] {
    [
        (UsageKind::Input, usage.input),
        (UsageKind::Output, usage.output),
        (UsageKind::Reasoning, usage.reasoning),
        (UsageKind::CacheRead, usage.cache_read),
        (UsageKind::CacheWrite, usage.cache_write),
    ]
}
