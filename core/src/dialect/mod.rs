//! Floor 1: what requests and replies of the four dialects mean, and where in the body it is.
//!
//! Reading never fails: what is not understood becomes an opaque part and a note. `rewrite` says which bytes
//! change; nothing here decides that, keeps state between exchanges, or knows a clock. Ranges point into the
//! body that was read.

pub mod anthropic;
pub mod cache;
pub mod counting;
pub mod credentials;
pub mod editing;
pub mod error_kind;
pub mod error_message;
#[cfg(test)]
mod fuzzed;
pub mod gemini;
pub mod identity;
pub mod ids;
pub mod key;
pub mod lesson;
pub mod models;
mod note;
pub mod openai_chat;
pub mod openai_responses;
pub mod overflow;
pub mod paths;
pub mod percent;
mod progress;
mod purpose;
pub mod reading;
#[cfg(test)]
mod recordings;
pub mod refusal;
pub mod repair;
pub mod request_id;
pub mod rewrite;
pub mod size;
pub mod summary;

pub use self::note::Note;
use serde::{Deserialize, Serialize};

pub use crate::wire::json::Span;
use crate::wire::json::{Document, Value};
use ids::SessionId;
use key::Keyer;
pub use key::{Chain, PartKey};
pub use progress::ReplyProgress;
pub use reading::ResponseReader;

/// One wire protocol. A closed set: differences are `match` arms without a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Anthropic Messages, `POST /v1/messages` (`docs/protocols.md` 1).
    Anthropic,
    /// OpenAI Chat Completions and its look-alikes (`docs/protocols.md` 2, 4).
    OpenaiChat,
    /// OpenAI Responses (`docs/protocols.md` 3).
    OpenaiResponses,
    /// Gemini `generateContent` (`docs/protocols.md` 5).
    Gemini,
}

/// The speaker. `developer` is [`Role::System`], `model` is [`Role::Assistant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions.
    System,
    /// The user, or the client on their behalf.
    User,
    /// The model.
    Assistant,
    /// A tool result, in dialects with a role for it.
    Tool,
}

/// The kind of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A text.
    Text,
    /// A tool's definition (only in [`Conversation::tools`]).
    Tool,
    /// A tool call by the model.
    ToolCall,
    /// The result of a tool call.
    ToolResult,
    /// Reasoning in any form: plain, signed, encrypted, redacted.
    Reasoning,
    /// An image.
    Image,
    /// A PDF, a file, audio or video.
    Document,
    /// Anything that is not understood. It is kept as it is.
    Opaque,
}

/// The place of a part in the history. Written as a pair of numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "(usize, usize)", into = "(usize, usize)")]
pub struct PartIndex {
    /// The index of its message.
    pub message: usize,
    /// The index within the message.
    pub part: usize,
}

impl PartIndex {
    /// The place of a part within a message.
    pub fn new(message: usize, part: usize) -> Self {
        Self { message, part }
    }

    /// The place right after it.
    pub fn after(self) -> Self {
        Self { part: self.part + 1, ..self }
    }
}

impl From<(usize, usize)> for PartIndex {
    fn from((message, part): (usize, usize)) -> Self {
        Self { message, part }
    }
}

impl From<PartIndex> for (usize, usize) {
    fn from(at: PartIndex) -> Self {
        (at.message, at.part)
    }
}

/// The smallest unit with a meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its kind.
    pub kind: PartKind,
    /// Its speaker.
    pub role: Role,
    /// The range of the whole block in the body.
    pub span: Span,
    /// The JSON values whose content the model reads, in order: string literals (with quotes), or objects
    /// (tool input, schemas). Empty for images.
    pub texts: Vec<Span>,
    /// The range of the content that a cut replaces, for tool results whose content may be replaced. Not for
    /// those of the provider's own tools, nor for unknown structures.
    pub content: Option<Span>,
    /// The call id of a tool call or tool result.
    pub id: Option<Box<str>>,
    /// The tool's name, in definitions, calls, and results that have it.
    pub name: Option<Box<str>>,
    /// A result that reports a failure.
    pub is_error: bool,
    /// Reasoning's signature, encrypted content or redacted data (Gemini: `thoughtSignature`): a string literal.
    pub sealed: Option<Span>,
    /// The data of an image or document.
    pub media: Option<Media>,
    /// For system prompt and tools: it was sent as an item of the history (Responses), so a provider that
    /// holds the history holds it, too. Others are sent with each request.
    pub in_history: bool,
    /// For tools: it is not a tool but the response format. It comes without instructions for tool calls.
    pub is_schema: bool,
    /// The part key: role, kind, normalised content and ids. `None` if the part is not in the chain
    /// (reasoning, empty text, text that changes with every request).
    pub key: Option<PartKey>,
    /// The key of a client's own reasoning: the hash of its signature, else of its text.
    pub reasoning_key: Option<u128>,
}

impl Part {
    /// A part at `value`, with nothing else known yet.
    pub fn at(kind: PartKind, role: Role, value: Value<'_>) -> Self {
        Self {
            kind,
            role,
            span: value.span(),
            texts: Vec::new(),
            content: None,
            id: None,
            name: None,
            is_error: false,
            sealed: None,
            media: None,
            in_history: false,
            is_schema: false,
            key: None,
            reasoning_key: None,
        }
    }

    fn hash_reasoning(&mut self, body: &[u8]) {
        let span = self.sealed.or_else(|| self.texts.first().copied()).unwrap_or(self.span);
        let is_reasoning = self.kind == PartKind::Reasoning;
        self.reasoning_key = is_reasoning.then(|| PartKey::of_literal(span.of(body)).0);
    }

    /// A text part: `value` is the string literal, which is also its range.
    pub fn text(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            key: keyer.text(role, value),
            ..Self::at(PartKind::Text, role, value)
        }
    }

    /// A part that is not understood: it is kept as it is, and its bytes are counted.
    fn opaque(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            key: keyer.value(PartKind::Opaque, role, value),
            ..Self::at(PartKind::Opaque, role, value)
        }
    }

    /// A tool's definition, or another part of the prompt's head.
    pub fn tool(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            name,
            key: keyer.value(PartKind::Tool, Role::System, value),
            ..Self::at(PartKind::Tool, Role::System, value)
        }
    }

    /// The response format.
    pub fn schema(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self { is_schema: true, ..Self::tool(value, name, keyer) }
    }
}

/// The data of an image or document.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// The string literal with base64 (or a `data:` URL); `None` if it is elsewhere (URL, file id).
    pub data: Option<Span>,
    /// The type that the client declared.
    pub mime: Option<Box<str>>,
}

/// One message (or item) of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its speaker.
    pub role: Role,
    /// The range of the whole message in the body.
    pub span: Span,
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

/// The purpose of a request. Only turns continue a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A step of a conversation.
    #[default]
    Turn,
    /// A token count (`count_tokens`, `countTokens`, `input_tokens`).
    Count,
    /// The client's own compaction (`docs/protocols.md` 10.12).
    Compaction,
    /// A title, a topic, a router's question: a call beside the conversation.
    Side,
    /// Opens a connection or a cache, without output (`generate:false`, `max_tokens:0`).
    WarmUp,
}

/// History that the provider holds, so that the request is not the whole conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldHistory {
    /// The request continues this response or message (`previous_response_id`, `thread: continue`).
    After(Box<str>),
    /// A named conversation or thread.
    Named(Box<str>),
}

/// A request in a form that is the same for all dialects.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The dialect that it was read as.
    pub dialect: Dialect,
    /// Its purpose.
    pub purpose: Purpose,
    /// The requested model, from the body or the path.
    pub model: Option<Box<str>>,
    /// Whether a streamed response is requested.
    pub stream: bool,
    /// The output limit, tokens.
    pub max_output: Option<u64>,
    /// Instructions outside the messages.
    pub system: Vec<Part>,
    /// Tool definitions, and whatever else is in the prompt's head (response format).
    pub tools: Vec<Part>,
    /// The history, oldest first.
    pub messages: Vec<Message>,
    /// Whether the request asks the model to think; `None` if it does not say.
    pub thinks: Option<bool>,
    /// The history that the provider holds, if any.
    pub held: Option<HeldHistory>,
    /// The session id in the body, if any (`docs/protocols.md` 8).
    pub session: Option<SessionId>,
    /// Chat Completions: the value of `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// Responses: the value of `store`.
    pub stored: Option<bool>,
    /// Responses: the value of `reasoning.context` (`auto`, `current_turn`, `all_turns`).
    pub reasoning_context: Option<Box<str>>,
    /// Anthropic: the client asks the provider to clear old parts past this many input tokens.
    pub clears_past: Option<u64>,
    /// What was unexpected.
    pub notes: Vec<Note>,
}

impl Conversation {
    /// The part at a place in the history.
    pub fn part(&self, at: PartIndex) -> Option<&Part> {
        self.messages.get(at.message)?.parts.get(at.part)
    }

    /// A conversation without content.
    pub fn empty(dialect: Dialect) -> Self {
        Self {
            dialect,
            purpose: Purpose::Turn,
            model: None,
            stream: false,
            max_output: None,
            system: Vec::new(),
            tools: Vec::new(),
            messages: Vec::new(),
            thinks: None,
            held: None,
            session: None,
            include_usage: None,
            stored: None,
            reasoning_context: None,
            clears_past: None,
            notes: Vec::new(),
        }
    }

    /// All parts of the history, oldest first.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.messages.iter().flat_map(|message| &message.parts)
    }

    /// All parts that use the window: system, tools, history.
    pub fn all_parts(&self) -> impl Iterator<Item = &Part> {
        self.system.iter().chain(&self.tools).chain(self.parts())
    }

    /// The chain after each part of the history that has a key, oldest first.
    pub fn chains(&self) -> impl Iterator<Item = Chain> + '_ {
        self.parts().filter_map(|part| part.key).scan(Chain::START, |chain, key| {
            *chain = chain.then(key);
            Some(*chain)
        })
    }
}

/// Reads a request of `dialect`. `target` is its path and query, which has purpose, model and stream in some
/// dialects. Never fails.
pub fn read(dialect: Dialect, target: &str, body: &[u8]) -> Conversation {
    read_in(&Document::read(body).unwrap_or_default(), dialect, target, body)
}

/// [`read`] for a body that is already parsed.
pub fn read_in(document: &Document, dialect: Dialect, target: &str, body: &[u8]) -> Conversation {
    let mut conversation = match dialect {
        Dialect::Anthropic => anthropic::read_in(document, body),
        Dialect::OpenaiChat => openai_chat::read_in(document, body),
        Dialect::OpenaiResponses => openai_responses::read_in(document, body),
        Dialect::Gemini => gemini::read_in(document, body),
    };
    if let Some(endpoint) = paths::endpoint(&http::Method::POST, target) {
        let model = || endpoint.model.as_deref().map(Into::into);
        conversation.model = conversation.model.or_else(model);
        conversation.stream = endpoint.stream.unwrap_or(conversation.stream);
        if conversation.purpose == Purpose::Turn {
            conversation.purpose = endpoint.purpose;
        }
    }
    if conversation.purpose == Purpose::Turn {
        conversation.purpose = purpose::told(&conversation, body).unwrap_or_default();
    }
    conversation.model = conversation.model.map(size::name);
    let messages = conversation.messages.iter_mut();
    messages.flat_map(|message| &mut message.parts).for_each(|part| part.hash_reasoning(body));
    conversation
}

impl ReplyPart {
    /// A part with nothing else known yet.
    pub fn of(kind: PartKind) -> Self {
        Self { kind, text: String::new(), id: None, name: None, sealed: None, raw: None, key: None }
    }
}

/// Usage as the provider reported it, normalised (`docs/protocols.md` 0): unknown is `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The whole prompt, tokens, including cached and cache-written ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// All output, tokens, including reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The share of `output` that was reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// The share of `input` that was read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    /// The share of `input` that was written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// The share of `cache_write` with the long lifetime (1 h, 12 h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_long: Option<u64>,
    /// Tokens of other internal calls of the same exchange (compaction, advisor), which are billed but not in
    /// `input` and `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<u64>,
    /// If `input` sums several internal calls: input and output of the last one, which are the context's size
    /// after the exchange (`usage.iterations`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<LastCall>,
    /// The stream broke off before the final numbers: these are a lower bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_bound: bool,
    /// Tools ran at the provider, so `input` does not measure the context, and is a poor anchor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosted_tools: bool,
    /// The reply holds a compaction by the provider: `input` includes instructions that no request has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compacted: bool,
    /// The share of `input` that was prompts of these tools, if reported (Gemini).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_prompt: Option<u64>,
    /// Why the cache was missed, if the client asked and the provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_miss: Option<cache::CacheMiss>,
    /// What the provider cleared from the prompt before the model read it; not in `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<editing::ClearingReport>,
}

/// Input and output of the last of several internal calls, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCall {
    /// Its input.
    pub input: u64,
    /// Its output.
    pub output: u64,
}

impl Usage {
    /// Input plus output, if both are known.
    pub fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }

    /// Input and output, if they measure the context: not if the stream broke off, nor as a sum over several
    /// internal calls. An unreported output counts as 0.
    pub fn context(&self) -> Option<LastCall> {
        let whole = self.input.map(|input| LastCall { input, output: self.output.unwrap_or(0) });
        let measured = self.last_call.or(whole.filter(|_| !self.hosted_tools));
        measured.filter(|_| !self.lower_bound)
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model had finished.
    End,
    /// The model waits for tool results.
    ToolUse,
    /// The output limit was reached.
    MaxTokens,
    /// The context window was full.
    WindowFull,
    /// Refused or filtered.
    Refused,
    /// The provider stopped for a compaction, or paused a long turn.
    Paused,
    /// The provider failed.
    Failed,
    /// Another reason.
    Other,
}

/// One part of a reply, assembled.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyPart {
    /// Its kind.
    pub kind: PartKind,
    /// Text, reasoning text, or a tool call's arguments as the provider wrote them.
    pub text: String,
    /// The call id of a tool call.
    pub id: Option<Box<str>>,
    /// The tool's name.
    pub name: Option<Box<str>>,
    /// Signature, encrypted content or redacted data. For reasoning without [`Self::raw`], it may be
    /// incomplete.
    pub sealed: Option<Box<str>>,
    /// The block as a client would have to send it back, raw JSON. Only for reasoning, and only if it arrived
    /// whole. For APIs compatible with Chat Completions: `{"reasoning_content": …}`, the received field.
    pub raw: Option<Box<str>>,
    /// The key that the part will have in the next request.
    pub key: Option<PartKey>,
}

/// An error that the provider reported, in a body or in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderError {
    /// Its `code` if that is a name, else `type` or `status`, as the provider wrote it.
    pub kind: Option<Box<str>>,
    /// The message. Never logged: providers quote prompts in it.
    pub message: Option<Box<str>>,
}

impl ProviderError {
    /// Kind and message.
    pub fn words(&self) -> String {
        [self.kind.as_deref(), self.message.as_deref()].map(Option::unwrap_or_default).join(" ")
    }
}

/// The content of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The response's id.
    pub id: Option<Box<str>>,
    /// The model that answered.
    pub model: Option<Box<str>>,
    /// Its parts, in order.
    pub parts: Vec<ReplyPart>,
    /// Its usage.
    pub usage: Usage,
    /// Why it ended; `None` while it has not.
    pub stop: Option<StopReason>,
    /// The dialect's terminal event (or the whole body) was seen: nothing more belongs to it.
    pub complete: bool,
    /// An error instead of the reply, or after it.
    pub error: Option<ProviderError>,
    /// The count, for the count endpoint.
    pub counted: Option<u64>,
    /// What was unexpected.
    pub notes: Vec<Note>,
}

impl Reply {
    /// The chain after this reply, if the request ended at `chain` and the client sends the whole reply back.
    pub fn chain_after(&self, chain: Chain) -> Chain {
        self.parts.iter().filter_map(|part| part.key).fold(chain, Chain::then)
    }

    /// The parts of an interrupted reply that its client can send back: without a call whose arguments are
    /// incomplete, and without a thought that was not sealed yet, if others were.
    #[must_use]
    pub fn delivered(mut self) -> Self {
        let is_sealed =
            |part: &ReplyPart| part.sealed.as_deref().is_some_and(|seal| !seal.is_empty());
        let is_thought = |part: &&ReplyPart| part.kind == PartKind::Reasoning;
        let seals = self.parts.iter().filter(is_thought).any(is_sealed);
        let is_half = |part: &ReplyPart| match part.kind {
            PartKind::ToolCall => crate::wire::json::Document::read(part.text.as_bytes()).is_err(),
            PartKind::Reasoning => seals && !is_sealed(part),
            _ => false,
        };
        if !self.complete && self.parts.last().is_some_and(is_half) {
            self.parts.pop();
        }
        self
    }

    /// Each key with the parts that it stands for: one, or a run of texts that came in pieces, of which the
    /// last has the key (Gemini signs pieces).
    pub fn runs(&self) -> impl Iterator<Item = (PartKey, Vec<&ReplyPart>)> {
        let mut run = Vec::new();
        self.parts.iter().filter_map(move |part| match part.key {
            Some(key) => {
                let mut pieces = std::mem::take(&mut run);
                pieces.retain(|_| part.kind == PartKind::Text);
                pieces.push(part);
                Some((key, pieces))
            }
            None => {
                run.extend((part.kind == PartKind::Text).then_some(part));
                None
            }
        })
    }
}
