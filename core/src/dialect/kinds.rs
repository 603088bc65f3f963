//! The closed sets that all readers share: dialects, speakers, kinds of parts, and purposes of requests.
//!
//! Their names are stored, and `key` hashes the numbers of kinds and speakers: both must never change, so what is
//! new comes last.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

/// One wire protocol. A closed set: differences are `match` arms without a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
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
    /// A tool's definition (only in [`super::Conversation::tools`]).
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

/// The purpose of a request. Only turns continue a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
