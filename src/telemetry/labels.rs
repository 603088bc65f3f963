//! The words that metrics count by: closed sets, so that nothing a client sends can grow a metric.
//!
//! They know nothing of who counts them; `docs/metrics.md` is made from where they are used.

use serde::Serialize;
use strum::EnumIter;

/// Why we stood aside; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum FailOpen {
    /// The request body is larger than what is analysed.
    BodyTooLarge,
    /// The request body could not be read as its dialect.
    BodyUnread,
    /// Reading or estimating panicked.
    Panicked,
    /// The store did not answer in time, or failed.
    Store,
    /// Its session has as many decisions as one may have: nothing new was decided, and those are repeated.
    Decisions,
    /// The store did not say in time which session it is: measured, and nothing of it remembered.
    SessionLate,
    /// The response could not be read.
    ReplyUnread,
    /// The turn was not durable when its terminal event left.
    CommitLate,
    /// Changes of one body contradicted each other; it was sent as it came.
    EditsConflict,
    /// A fact that was kept is not understood; it was ignored.
    FactUnread,
    /// The upstream refused a body that we had changed; the original was sent again.
    RewriteRefused,
    /// It may carry a credential that is not known as one: it was measured and nothing of it remembered.
    UnknownCredential,
    /// It has no credential, and others can reach the listener: measured, and nothing of it remembered.
    NoCredential,
    /// A body is encoded more than twice; it was passed on unread.
    TooManyCodings,
    /// There was no memory for more (`limits.memory_bytes`); what came was passed on unread.
    MemoryBudget,
    /// Reading the request would have taken too much memory (`limits.analysis_bytes`) or waited too long.
    AnalysisBudget,
}

/// What became of a refusal that blames what was sent; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum RefusalOutcome {
    /// The request was changed, sent once more and answered.
    Healed,
    /// The request was changed before it was sent, because another request was refused.
    Spared,
    /// The changed request was refused, too.
    RefusedAgain,
    /// The changed request met a limit, or a provider that failed.
    Unanswered,
    /// No change answers it: what is refused is not the client's, or was changed in vain before.
    NoRepair,
    /// It names a place that is not there.
    Misplaced,
    /// The store did not keep the change.
    NotKept,
    /// It could have been changed, in mode `active`.
    Possible,
    /// Its words are not known.
    Unknown,
}

/// What memory is held for; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemoryKind {
    /// Request bodies, as they came and decoded.
    Request,
    /// What is read of requests: parts, plans.
    Analysis,
    /// What is read of responses, and decoders for them.
    Reply,
    /// WebSocket messages.
    Message,
    /// Connections, exchanges and their headers.
    Connection,
    /// What lies in the buffers of connections.
    Buffer,
}

impl MemoryKind {
    /// All of them, in the order in which they are declared.
    pub(crate) const ALL: [Self; 6] =
        [Self::Request, Self::Analysis, Self::Reply, Self::Message, Self::Connection, Self::Buffer];
}

/// What is kept in memory beyond the exchange that it came with; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeptKind {
    /// Sessions: their turns and decisions.
    Sessions,
    /// The decisions of the session that has most of them.
    SessionDecisions,
    /// The newest request of sessions, with what was read of it.
    LatestRequests,
    /// What waits to be written to the store.
    StoreQueue,
}

/// Why a request was sent to its upstream again, which surely did not work on it; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RepeatCause {
    /// It had not left when its connection closed.
    NotSent,
    /// The upstream had closed the kept connection before it could read it.
    ClosedWhileIdle,
    /// The upstream refused its HTTP/2 stream.
    RefusedStream,
    /// The upstream closed the HTTP/2 connection, and named an earlier stream as its last.
    WentAway,
}

/// What became of a question to a provider's counting endpoint; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CountOutcome {
    /// It was answered.
    Answered,
    /// The same prompt was counted before.
    Cached,
    /// Not asked: enough questions are under way.
    Busy,
    /// Not asked: the provider wants to be left alone.
    Paused,
    /// There is no such endpoint.
    Missing,
    /// The provider refused it.
    Refused,
    /// No answer in time, or none that is a number.
    Failed,
}

/// Why a client's token count was answered with our estimate; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum CountEstimate {
    /// The configuration says so.
    Configured,
    /// The upstream was asked, and has no such endpoint.
    Missing,
    /// That it has none was learned before.
    Learned,
}

/// Why the admin listener refused a request; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AdminRefusal {
    /// It came without a token.
    NoToken,
    /// It came with a wrong token.
    WrongToken,
    /// It came with a wrong token, and so did many others just before.
    TooManyAttempts,
    /// Its token may only read.
    ReadOnly,
    /// Its `Host` is missing, malformed, said twice, or not this machine's.
    ForeignHost,
    /// A page of another site sent it.
    ForeignOrigin,
    /// A process of another user connected to the Unix socket.
    ForeignUser,
}

/// What became of a lesson that a refusal could teach; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LessonOutcome {
    /// It holds for the tenant that met it.
    Learned,
    /// Enough tenants agree: it holds for all.
    Agreed,
    /// Not learned: its words stand in the request that was refused.
    Quoted,
    /// Not learned: a window that does not agree with what was sent.
    Implausible,
    /// Not learned: what we changed was refused, in words that are no known message.
    Unknown,
    /// Not learned: there is no room for more.
    Full,
}

/// What is asked of a store; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreOperation {
    /// New facts.
    Put,
    /// Write what is on its way, or make turns of what was.
    Draft,
    /// One fact.
    Get,
    /// Who holds a fact.
    Find,
    /// A whole scope.
    Scan,
    /// The list of scopes.
    Scopes,
    /// Forgetting a scope.
    Drop,
    /// Forgetting what is old.
    Expire,
    /// Whether it answers.
    Ready,
}

/// What a connection past `limits.connections` got; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RejectedConnection {
    /// 503, with what to do.
    Answered,
    /// Nothing: it asked nothing in time, or there were too many of them.
    Closed,
}

/// What a client took too long for; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientTimeout {
    /// To ask anything on a new connection.
    Silent,
    /// To ask the next thing on a connection that it keeps.
    Idle,
    /// To send more of a request's body.
    Body,
}

/// How writing a summary ended; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum SummaryOutcome {
    /// It is written.
    Written,
    /// The upstream refused, failed, or could not be reached.
    UpstreamFailed,
    /// It took too long.
    TimedOut,
    /// The answer was empty, called a tool, was cut off or too long.
    Rejected,
    /// The provider does not compact by itself.
    NotOffered,
    /// It would not have shrunk the context, or not enough.
    TooLarge,
    /// The store did not keep it, or another replica was to write it and did not.
    NotKept,
}
