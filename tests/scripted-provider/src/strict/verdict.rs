//! The verdict on a request: the provider's error, or what was accepted and what was lost without an
//! error.
//!
//! Every error names its rule; a rule names the heading of `docs/protocols.md` it comes from.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cache::{CacheUsage, MissReason};
use super::prompt::Place;
use super::{Dialect, ReplyBasis};

/// The verdict on a request.
#[derive(Clone, Debug)]
pub enum RequestVerdict {
    /// Refused, as a real provider refuses it.
    Refused(ApiError),
    /// Accepted, with what it costs and what it silently lost.
    Accepted(AcceptedRequest),
}

impl RequestVerdict {
    /// The rule that it breaks; `None` if it was accepted.
    pub fn broken_rule(&self) -> Option<Rule> {
        match self {
            Self::Refused(error) => Some(error.rule),
            Self::Accepted(_) => None,
        }
    }

    /// What was accepted; `None` if it was refused.
    pub fn accepted(&self) -> Option<&AcceptedRequest> {
        match self {
            Self::Refused(_) => None,
            Self::Accepted(accepted) => Some(accepted),
        }
    }

    /// What was lost without an error; nothing if it was refused.
    pub fn losses(&self) -> &[Loss] {
        self.accepted().map_or(&[], |accepted| &accepted.losses)
    }
}

/// An error response of the provider.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Headers besides `content-type`.
    pub headers: Vec<(&'static str, String)>,
    /// The error in the protocol's shape.
    pub body: Box<Value>,
    /// The rule that was broken.
    pub rule: Rule,
    /// The error's message.
    pub message: String,
}

/// An accepted request.
#[derive(Clone, Debug)]
pub struct AcceptedRequest {
    /// Tokens of the whole prompt, after the provider's own edits.
    pub input_tokens: u64,
    /// Tokens before them.
    pub unedited_tokens: u64,
    /// Those read from and written to the cache; nothing for a count.
    pub cache_usage: CacheUsage,
    /// Reasoning withheld from the model, as the provider reports it.
    pub transformations: Vec<Transformation>,
    /// The provider's own context edits, as it reports them (`docs/protocols.md` 1.3).
    pub edits: Vec<Value>,
    /// What was lost without an error.
    pub losses: Vec<Loss>,
    pub(super) basis: Arc<ReplyBasis>,
}

/// Reasoning that is withheld from the model, or read although it does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transformation {
    /// Where it stands.
    pub place: Place,
    /// The item's id (Responses).
    pub id: Option<String>,
    /// Why it is not read.
    pub reason: DropReason,
    /// Read all the same (`docs/protocols.md` 1.5.6).
    pub allowed: bool,
}

/// The reason why reasoning is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Another model's, which this one does not read.
    Model,
    /// Another account's.
    Account,
    /// Its prefix has changed.
    Prefix,
    /// An earlier turn's, which this model does not keep.
    Turn,
}

/// What was lost without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Reasoning came back and was not read.
    ReasoningDropped {
        /// Where it stands.
        place: Place,
        /// Why it was not read.
        reason: DropReason,
    },
    /// Issued reasoning did not come back where the model would look for it.
    ReasoningAbsent {
        /// The reply it belongs to.
        place: Place,
        /// Pieces that were issued with that reply.
        issued: usize,
        /// Pieces that came back.
        present: usize,
        /// Whether it would have been read here: same model, same account, same prefix.
        readable: bool,
    },
    /// Plain reasoning text came back changed (Chat Completions).
    ReasoningChanged {
        /// The message.
        place: Place,
    },
    /// A prefix that was cached for this conversation was not read.
    CacheMissed {
        /// Tokens of it.
        tokens: u64,
        /// Why it was not read, and where the first difference is.
        reason: MissReason,
    },
    /// A signature is missing, or replaced by the value that skips the check, where none is demanded.
    SignatureAbsent {
        /// The part it sat on.
        place: Place,
    },
    /// A message lost its phase (`docs/protocols.md` 3.5).
    PhaseDropped {
        /// The message.
        place: Place,
    },
}

/// The rules, each with its heading in `docs/protocols.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the name says it; `section` has the source")]
pub enum Rule {
    Authentication,
    VersionHeader,
    UnknownField,
    BetaMissing,
    FieldRequired,
    BadValue,
    EmptyContent,
    FirstMessage,
    Role,
    SystemRole,
    Prefill,
    ToolIdForm,
    ToolIdsUnique,
    CallUnanswered,
    ResultWithoutCall,
    ResultTwice,
    CacheMarkers,
    CacheMarkerPlace,
    CacheMarkerOrder,
    ThinkingConfig,
    ForcedTool,
    SignatureInvalid,
    LatestThinkingModified,
    RunIncomplete,
    BoundElsewhere,
    ThinkingMissing,
    ContextEdit,
    Thread,
    Compaction,
    Overflow,
    ReasoningMissing,
    ReasoningRefused,
    ReasoningWithoutItem,
    ItemWithoutReasoning,
    ItemNotFound,
    ItemTwice,
    ItemIdForm,
    PreviousResponse,
    SignatureMissing,
    TurnOrder,
    ResponseCount,
    ResponseForm,
    CachedContent,
    Pictures,
    Characters,
    OutputLimit,
    RequestBytes,
    NotSimulated,
}

impl Rule {
    /// The heading that it comes from.
    pub fn section(self) -> &'static str {
        match self {
            Self::Authentication | Self::VersionHeader | Self::BetaMissing => {
                "docs/protocols.md 1.1"
            }
            Self::UnknownField => "docs/protocols.md 1.1, 4.2",
            Self::FieldRequired
            | Self::BadValue
            | Self::EmptyContent
            | Self::FirstMessage
            | Self::Role
            | Self::SystemRole
            | Self::Prefill
            | Self::ToolIdForm
            | Self::ToolIdsUnique
            | Self::ForcedTool
            | Self::CacheMarkers
            | Self::CacheMarkerPlace
            | Self::CacheMarkerOrder
            | Self::ThinkingMissing => "docs/protocols.md 1.2",
            Self::CallUnanswered | Self::ResultWithoutCall | Self::ResultTwice => {
                "docs/protocols.md 1.2, 2.2, 3.2"
            }
            Self::ThinkingConfig => "docs/protocols.md 1.2, 1.5",
            Self::SignatureInvalid => "docs/protocols.md 1.5, 3.2, 5.4",
            Self::LatestThinkingModified | Self::RunIncomplete | Self::BoundElsewhere => {
                "docs/protocols.md 1.5"
            }
            Self::ContextEdit => "docs/protocols.md 1.3",
            Self::Thread => "docs/protocols.md 1.3",
            Self::Compaction => "docs/protocols.md 1.3, 3.3",
            Self::RequestBytes => "docs/protocols.md 1.6, 1.8",
            Self::Overflow => "docs/protocols.md 1.6, 2.5, 3.6, 4.3, 5.5",
            Self::ReasoningMissing | Self::ReasoningRefused => "docs/protocols.md 4.2",
            Self::ReasoningWithoutItem
            | Self::ItemWithoutReasoning
            | Self::ItemNotFound
            | Self::ItemTwice
            | Self::ItemIdForm
            | Self::PreviousResponse => "docs/protocols.md 3.2",
            Self::SignatureMissing => "docs/protocols.md 5.4",
            Self::TurnOrder | Self::ResponseCount | Self::ResponseForm | Self::CachedContent => {
                "docs/protocols.md 5.2"
            }
            Self::Pictures | Self::Characters | Self::OutputLimit => "docs/protocols.md 1.8",
            Self::NotSimulated => "none: this provider does not play it",
        }
    }
}

impl ApiError {
    /// Something that real providers have and this one does not.
    pub(super) fn not_simulated(dialect: Dialect, what: &str) -> Self {
        let message = format!("The strict provider does not simulate this: {what}.");
        match dialect {
            Dialect::Anthropic => Self::anthropic(Rule::NotSimulated, message),
            Dialect::Chat | Dialect::Responses => {
                Self::openai(Rule::NotSimulated, 400, None, None, message)
            }
            Dialect::Gemini => Self::gemini(Rule::NotSimulated, 400, message),
        }
    }

    /// An `invalid_request_error` (`docs/protocols.md` 1.1).
    pub(super) fn anthropic(rule: Rule, message: String) -> Self {
        Self::anthropic_kind(rule, 400, "invalid_request_error", message)
    }

    pub(super) fn anthropic_kind(rule: Rule, status: u16, kind: &str, message: String) -> Self {
        let body = json!({
            "type": "error", "error": {"type": kind, "message": message}, "request_id": "req_strict",
        });
        let headers = vec![("request-id", "req_strict".to_owned())];
        Self { status, headers, body: Box::new(body), rule, message }
    }

    /// One with a code for machines (`docs/protocols.md` 1.1).
    pub(super) fn anthropic_code(rule: Rule, code: &str, message: String) -> Self {
        let mut error = Self::anthropic(rule, message);
        error.body["error"]["details"] = json!({"error_code": code});
        error
    }

    /// `docs/protocols.md` 2.5, 3.2.
    pub(super) fn openai(
        rule: Rule,
        status: u16,
        code: Option<&str>,
        param: Option<&str>,
        message: String,
    ) -> Self {
        let kind = "invalid_request_error";
        let body =
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        let headers = vec![("x-request-id", "req_strict".to_owned())];
        Self { status, headers, body: Box::new(body), rule, message }
    }

    /// `docs/protocols.md` 5.1.
    pub(super) fn gemini(rule: Rule, code: u16, message: String) -> Self {
        let status = match code {
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            _ => "INVALID_ARGUMENT",
        };
        let body = json!({"error": {"code": code, "message": message, "status": status}});
        Self { status: code, headers: Vec::new(), body: Box::new(body), rule, message }
    }
}
