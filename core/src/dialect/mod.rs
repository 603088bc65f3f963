//! Floor 1, meaning: what requests and replies of the four dialects say, and where they say it.
//!
//! Reading never fails: what is not understood is an opaque part and a note. `rewrite` says where
//! bytes change; nothing here decides that, keeps state between exchanges, or knows a clock. Ranges
//! point into the body that was read.

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

/// Who speaks. `developer` is [`Role::System`], `model` is [`Role::Assistant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions.
    System,
    /// The user, or the client on their behalf.
    User,
    /// The model.
    Assistant,
    /// A tool's answer, in dialects that give it a role of its own.
    Tool,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Words.
    Text,
    /// A tool's definition (only in [`Conversation::tools`]).
    Tool,
    /// The model calls a tool.
    ToolCall,
    /// A tool's answer.
    ToolResult,
    /// Thinking, in whatever form: plain, signed, encrypted, redacted.
    Reasoning,
    /// A picture.
    Image,
    /// A PDF, a file, audio, video.
    Document,
    /// Anything not understood. It survives as it is.
    Opaque,
}

/// Where a part of the history stands. Written as a pair of numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "(usize, usize)", into = "(usize, usize)")]
pub struct PartIndex {
    /// The number of its message.
    pub message: usize,
    /// Its number there.
    pub part: usize,
}

impl PartIndex {
    /// The part with this number, of the message with that.
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

/// The smallest thing with a meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Who said it.
    pub role: Role,
    /// The whole block, as it stands in the body.
    pub span: Span,
    /// The JSON values whose content the model reads, in order: string literals (quotes included),
    /// or objects (tool input, schemas). Empty for pictures.
    pub texts: Vec<Span>,
    /// Where the content stands that a cut replaces: of tool results whose answer may give way to
    /// other words. Not those of the provider's own tools, and no unknown shapes.
    pub content: Option<Span>,
    /// The call id, of tool calls and tool results.
    pub id: Option<Box<str>>,
    /// The tool's name, of definitions, calls, and results that carry it.
    pub name: Option<Box<str>>,
    /// A result that reports a failure.
    pub is_error: bool,
    /// Signature, encrypted content or redacted data of reasoning (or a Gemini part's
    /// `thoughtSignature`): a string literal.
    pub sealed: Option<Span>,
    /// A picture's or document's data.
    pub media: Option<Media>,
    /// Of system prompt and tools: it came as an item of the history (Responses), so who holds the
    /// history holds it. The others are sent with each request.
    pub in_history: bool,
    /// Of a tool: it is none, but the form that the answer has to have. It comes without instructions on how
    /// to call tools.
    pub is_schema: bool,
    /// Identity: role, kind, normalised content and ids. `None` for what is no part of the chain
    /// (reasoning, empty text, text that changes with every call).
    pub key: Option<PartKey>,
}

impl Part {
    /// A part that stands at `value`, of which nothing more is known yet.
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
        }
    }

    /// What a client's own reasoning is known by: its seal, else its words. `None` for all other parts.
    pub fn reasoning_key(&self, body: &[u8]) -> Option<u128> {
        let span = self.sealed.or_else(|| self.texts.first().copied()).unwrap_or(self.span);
        let bytes = span.of(body);
        let words = bytes.strip_prefix(b"\"").and_then(|bytes| bytes.strip_suffix(b"\""));
        (self.kind == PartKind::Reasoning).then(|| PartKey::of_bytes(words.unwrap_or(bytes)).0)
    }

    /// Words: `value` is the string literal, which is also where the part stands.
    pub fn text(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            key: keyer.text(role, value),
            ..Self::at(PartKind::Text, role, value)
        }
    }

    /// A part that is not understood: it survives as it is, and its bytes are what is counted.
    fn opaque(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            key: keyer.value(PartKind::Opaque, role, value),
            ..Self::at(PartKind::Opaque, role, value)
        }
    }

    /// A tool's definition, or another piece of the prompt's head, as it stands.
    pub fn tool(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            name,
            key: keyer.value(PartKind::Tool, Role::System, value),
            ..Self::at(PartKind::Tool, Role::System, value)
        }
    }

    /// The form that the answer has to have, as it stands.
    pub fn schema(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self { is_schema: true, ..Self::tool(value, name, keyer) }
    }
}

/// Where a picture's or document's bytes come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// The string literal that holds base64 (or a `data:` URL); `None` where it is elsewhere
    /// (URL, file id).
    pub data: Option<Span>,
    /// As declared by the client.
    pub mime: Option<Box<str>>,
}

/// One message (or item) of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The whole message, as it stands in the body.
    pub span: Span,
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

/// What a request is for. Only turns carry a conversation on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A step of a conversation.
    #[default]
    Turn,
    /// Asks for the number of tokens (`count_tokens`, `countTokens`, `input_tokens`).
    Count,
    /// The client's own compaction (`docs/protocols.md` 10.12).
    Compaction,
    /// A title, a topic, a router's question: beside the conversation.
    Side,
    /// Opens a connection or a cache without wanting output (`generate:false`, `max_tokens:0`).
    WarmUp,
}

/// History that the provider holds: the request is then not the whole conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldHistory {
    /// It grows from this response or message (`previous_response_id`, `thread: continue`).
    After(Box<str>),
    /// A named conversation or thread.
    Named(Box<str>),
}

/// The neutral view of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The protocol it was read as.
    pub dialect: Dialect,
    /// What it is for.
    pub purpose: Purpose,
    /// As asked for; from the path where the dialect puts it there.
    pub model: Option<Box<str>>,
    /// Whether a stream is asked for.
    pub stream: bool,
    /// Limit on output, tokens.
    pub max_output: Option<u64>,
    /// Instructions that stand apart from the messages.
    pub system: Vec<Part>,
    /// Tool definitions, and with them whatever else shapes the prompt's head (response format).
    pub tools: Vec<Part>,
    /// The history, oldest first.
    pub messages: Vec<Message>,
    /// Whether the request asks the model to think; `None` where it does not say.
    pub thinks: Option<bool>,
    /// Set where the provider holds earlier history.
    pub held: Option<HeldHistory>,
    /// The session id that the body carries, if any (`docs/protocols.md` 8).
    pub session: Option<SessionId>,
    /// Chat Completions: what `stream_options.include_usage` says.
    pub include_usage: Option<bool>,
    /// Responses: what `store` says.
    pub stored: Option<bool>,
    /// Responses: what `reasoning.context` says (`auto`, `current_turn`, `all_turns`).
    pub reasoning_context: Option<Box<str>>,
    /// Anthropic: the client asks the provider to clear old parts past so many input tokens.
    pub clears_past: Option<u64>,
    /// What was strange.
    pub notes: Vec<Note>,
}

impl Conversation {
    /// The part at a place of the history.
    pub fn part(&self, at: PartIndex) -> Option<&Part> {
        self.messages.get(at.message)?.parts.get(at.part)
    }

    /// A conversation in which nothing was understood.
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

    /// Every part of the history, oldest first.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.messages.iter().flat_map(|message| &message.parts)
    }

    /// Every part that fills the window: system, tools, history.
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

/// Reads a request of `dialect`. `target` is the path and query it was sent to: it tells purpose,
/// model and stream where the dialect puts them there. Never fails.
pub fn read(dialect: Dialect, target: &str, body: &[u8]) -> Conversation {
    read_in(&Document::read(body).unwrap_or_default(), dialect, target, body)
}

/// [`read`] of a body whose values are found already.
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
    conversation
}

impl ReplyPart {
    /// A part of which nothing more is known yet.
    pub fn of(kind: PartKind) -> Self {
        Self { kind, text: String::new(), id: None, name: None, sealed: None, raw: None, key: None }
    }
}

/// What a provider reported, normalised (`docs/protocols.md` 0): unknown is `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The whole prompt, tokens, cached and cache-written included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// Everything generated, tokens, reasoning included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The part of `output` that was reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// The part of `input` read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    /// The part of `input` written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// The part of `cache_write` with the long time to live (1 h, 12 h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_long: Option<u64>,
    /// Tokens that other internal calls of the same exchange cost (compaction, advisor), which are
    /// billed but are not in `input` and `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<u64>,
    /// The context's size after the exchange where `input` sums several internal calls: input and
    /// output of the last one (`usage.iterations`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<LastCall>,
    /// The stream was cut before the final numbers: these are a lower bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_bound: bool,
    /// Tools ran at the provider, so `input` does not measure the context: a poor anchor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosted_tools: bool,
    /// The part of `input` that prompts of these tools were, where the provider tells (Gemini).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_prompt: Option<u64>,
    /// Why the cache was missed, where the client asked and the provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_miss: Option<cache::CacheMiss>,
    /// What the provider cleared of the prompt before the model read it: not in `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<editing::ClearingReport>,
}

/// Input and output of the last of several internal calls, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCall {
    /// Its whole prompt.
    pub input: u64,
    /// Everything it generated.
    pub output: u64,
}

impl Usage {
    /// Input and output together, where both are known.
    pub fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }

    /// The context that was read and written, where these numbers measure it: not those of a stream
    /// that was cut, nor sums over several internal calls. Unreported output is taken as 0.
    pub fn context(&self) -> Option<LastCall> {
        let whole = self.input.map(|input| LastCall { input, output: self.output.unwrap_or(0) });
        let measured = self.last_call.or(whole.filter(|_| !self.hosted_tools));
        measured.filter(|_| !self.lower_bound)
    }
}

/// Why a reply ended, in the provider's word and in ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model was done.
    End,
    /// The model waits for tool results.
    ToolUse,
    /// The output limit was reached.
    MaxTokens,
    /// The context window was full.
    WindowFull,
    /// Refused or filtered.
    Refused,
    /// The provider stopped to compact, or to pause a long turn.
    Paused,
    /// The provider failed.
    Failed,
    /// Any other word.
    Other,
}

/// One part of a reply, assembled.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyPart {
    /// What it is.
    pub kind: PartKind,
    /// Text, reasoning text, or a tool call's arguments as the provider wrote them.
    pub text: String,
    /// The call id of a tool call.
    pub id: Option<Box<str>>,
    /// The tool's name.
    pub name: Option<Box<str>>,
    /// Signature, encrypted content or redacted data. Without [`Self::raw`], reasoning's may be cut off.
    pub sealed: Option<Box<str>>,
    /// The block as a client would have to send it back, raw JSON; reasoning only, and only where
    /// it arrived whole. Chat look-alikes: `{"reasoning_content": …}`, the one field received.
    pub raw: Option<Box<str>>,
    /// The same identity that the part will have in the next request.
    pub key: Option<PartKey>,
}

/// An error that the provider reported, in a body or in the middle of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderError {
    /// `code` where it is a name, else `type` or `status`, as the provider wrote it.
    pub kind: Option<Box<str>>,
    /// The message. Never logged: providers quote prompts in it.
    pub message: Option<Box<str>>,
}

impl ProviderError {
    /// All that it says.
    pub fn words(&self) -> String {
        [self.kind.as_deref(), self.message.as_deref()].map(Option::unwrap_or_default).join(" ")
    }
}

/// What a response said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The response's id.
    pub id: Option<Box<str>>,
    /// The model that answered.
    pub model: Option<Box<str>>,
    /// Its parts, in order.
    pub parts: Vec<ReplyPart>,
    /// What it cost.
    pub usage: Usage,
    /// Why it ended; `None` while it has not.
    pub stop: Option<StopReason>,
    /// The dialect's terminal event was seen (or the whole body): nothing more belongs to it.
    pub complete: bool,
    /// An error in place of, or after, the answer.
    pub error: Option<ProviderError>,
    /// For token counting calls: the answer.
    pub counted: Option<u64>,
    /// What was strange.
    pub notes: Vec<Note>,
}

impl Reply {
    /// The chain after this reply, if it grew from `chain` and the client sends it back whole.
    pub fn chain_after(&self, chain: Chain) -> Chain {
        self.parts.iter().filter_map(|part| part.key).fold(chain, Chain::then)
    }

    /// The reply as far as its client can send it back, where it was broken off: without a call whose arguments
    /// are not whole, and without a thought that was not sealed yet, though others were.
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

    /// Each key, and the parts it stands for: one, or a run of words that came in pieces, of which the
    /// last has the key (Gemini signs a piece).
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
