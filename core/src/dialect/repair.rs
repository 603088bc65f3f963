//! What a provider refuses of a request, and the smallest edit that answers it (`docs/healing.md`).
//!
//! [`reading`] reads a refusal, [`path`] finds what it names, [`Repair::edits`] changes the bytes. Pure; must not
//! know what becomes of an edit, or who asked for it.

mod empty;
pub mod fields;
mod ids;
mod marks;
pub mod media;
mod output;
mod pairs;
mod pairs_listed;
pub mod path;
pub mod prefill;
pub mod reading;
pub mod shrink;
mod unicode;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Dialect, PartKey};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;
pub use output::OutputLimit;
pub use reading::{Refusal, RefusalDetail, RefusedAnswer, read};

/// What a provider refuses that an edit can answer; a metric label.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
pub enum RepairCause {
    /// A picture or document is too large, one too many, or none that the model reads; or the request has too
    /// many bytes.
    Media,
    /// Text or a message is empty, or white space alone.
    Empty,
    /// The history ends with a message of the model, where the model does not go on with its own words.
    Prefill,
    /// Half a surrogate pair, or bytes that are no UTF-8.
    Unicode,
    /// A tool call without its result, a result without its call, one of them twice or in the wrong place.
    ToolPairs,
    /// The id of a tool call has another form than the provider takes.
    ToolIds,
    /// Reasoning of another model or account, or with a signature that is not valid.
    Reasoning,
    /// More `cache_control` markers than are allowed.
    CacheMarks,
    /// A member in the history that this model does not know.
    Field,
    /// `max_tokens` is more than the model writes, or than the window has room for.
    MaxTokens,
}

impl RepairCause {
    /// As it is written in the configuration and in a metric.
    pub fn word(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::Empty => "empty",
            Self::Prefill => "prefill",
            Self::Unicode => "unicode",
            Self::ToolPairs => "tool_pairs",
            Self::ToolIds => "tool_ids",
            Self::Reasoning => "reasoning",
            Self::CacheMarks => "cache_marks",
            Self::Field => "field",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// One edit of a request, as it is remembered: the same edit of the same bytes gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case")]
pub enum Repair {
    /// Words take the place of a picture or document.
    Media {
        /// Which.
        part: PartKey,
        /// The words.
        text: Box<str>,
    },
    /// A smaller picture of the same type takes the place of a picture.
    Picture {
        /// Which.
        part: PartKey,
        /// Its base64: what is replayed is what was made once.
        data: Box<str>,
    },
    /// What is empty goes, or gets these words where something has to stand.
    Empty {
        /// The words.
        text: Box<str>,
    },
    /// A message of the user follows this message of the model.
    Prefill {
        /// The last part of the model's message.
        part: PartKey,
        /// What the user says.
        text: Box<str>,
    },
    /// What is no character becomes U+FFFD.
    Unicode,
    /// Each call gets one result, in its place; a result that has no call goes.
    ToolPairs {
        /// What stands for a result that never came.
        text: Box<str>,
    },
    /// Ids of calls get a form that is taken, the same everywhere.
    ToolIds {
        /// Exactly so many letters and digits; without it, letters, digits, `_` and `-`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u32>,
    },
    /// So many cache markers stay, the newest.
    CacheMarks {
        /// How many.
        most: u32,
    },
    /// A member of the history goes.
    Field {
        /// Where it stands, with `*` for numbers: `messages.*.content.*.citations`.
        place: Box<str>,
    },
    /// `max_tokens` is lowered.
    MaxTokens {
        /// The most that the model writes.
        most: u64,
    },
    /// `max_tokens` is lowered to the room that the window has beside the prompt.
    OutputFits {
        /// The window, tokens.
        window: u64,
    },
}

/// What stands for nothing.
pub const NO_CONTENT: &str = "(no content)";
/// What stands for a result that never came.
pub const NO_RESULT: &str = "(The tool was interrupted: there is no result.)";
/// What the user says after words of the model that it does not go on with by itself.
pub const GO_ON: &str = "Continue.";

impl Repair {
    /// What it answers.
    pub fn cause(&self) -> RepairCause {
        match self {
            Self::Media { .. } | Self::Picture { .. } => RepairCause::Media,
            Self::Empty { .. } => RepairCause::Empty,
            Self::Prefill { .. } => RepairCause::Prefill,
            Self::Unicode => RepairCause::Unicode,
            Self::ToolPairs { .. } => RepairCause::ToolPairs,
            Self::ToolIds { .. } => RepairCause::ToolIds,
            Self::CacheMarks { .. } => RepairCause::CacheMarks,
            Self::Field { .. } => RepairCause::Field,
            Self::MaxTokens { .. } | Self::OutputFits { .. } => RepairCause::MaxTokens,
        }
    }

    /// The words that it puts in, or the base64; empty where it puts in none.
    pub fn words(&self) -> &str {
        match self {
            Self::Media { text, .. }
            | Self::Empty { text }
            | Self::Prefill { text, .. }
            | Self::ToolPairs { text } => text,
            Self::Picture { data, .. } => data,
            Self::Field { place } => place,
            Self::Unicode
            | Self::ToolIds { .. }
            | Self::CacheMarks { .. }
            | Self::MaxTokens { .. }
            | Self::OutputFits { .. } => "",
        }
    }

    /// In which order edits are made: what makes the text readable first, what counts last.
    pub fn order(&self) -> u8 {
        match self {
            Self::Unicode => 0,
            Self::Field { .. } => 1,
            // Where a picture has words, no other takes its place.
            Self::Media { .. } => 2,
            Self::Picture { .. } => 3,
            Self::Empty { .. } => 4,
            Self::ToolIds { .. } => 5,
            Self::ToolPairs { .. } => 6,
            Self::Prefill { .. } => 7,
            Self::CacheMarks { .. } => 8,
            Self::MaxTokens { .. } | Self::OutputFits { .. } => 9,
        }
    }

    /// The changes of a body that is `dialect`'s; none where there is nothing to change. `parts` are found
    /// where the conversation is at hand: those of [`media`] and [`prefill`](Self::Prefill) are not among these.
    pub fn edits(&self, dialect: Dialect, body: &[u8]) -> Vec<Edit> {
        if *self == Self::Unicode {
            return unicode::edits(body);
        }
        let document = Document::read(body).unwrap_or_default();
        let Some(root) = document.root(body).filter(|root| root.kind() == Kind::Object) else {
            return Vec::new();
        };
        match self {
            Self::Empty { text } => empty::edits(dialect, root, body, text),
            Self::ToolPairs { text } => match dialect {
                Dialect::Anthropic => pairs::anthropic(root, text),
                Dialect::Gemini => pairs::gemini(root, text),
                Dialect::OpenaiChat => pairs_listed::chat(root, body, text),
                Dialect::OpenaiResponses => pairs_listed::responses(root, body, text),
            },
            Self::ToolIds { length } => ids::edits(dialect, root, *length),
            Self::CacheMarks { most } => marks::edits(root, body, *most as usize),
            Self::Field { place } => fields::edits(root, body, place),
            Self::MaxTokens { most } => output::edits(dialect, root, *most),
            Self::Unicode
            | Self::Media { .. }
            | Self::Picture { .. }
            | Self::Prefill { .. }
            | Self::OutputFits { .. } => Vec::new(),
        }
    }
}

/// The list that holds the history.
fn history<'d>(dialect: Dialect, root: Value<'d>) -> Option<Value<'d>> {
    let name = match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => "messages",
        Dialect::OpenaiResponses => "input",
        Dialect::Gemini => "contents",
    };
    root.get(name).filter(|list| list.kind() == Kind::Array)
}

/// Whether a value is a string of nothing but white space.
fn is_blank(value: Value<'_>) -> bool {
    value.text().is_some_and(|text| text.trim().is_empty())
}

/// Fuzz: whatever the bytes, no edit panics, and edits can be applied.
#[cfg(any(test, fuzzing))]
pub fn fuzz(dialect: Dialect, body: &[u8]) {
    let text = || NO_CONTENT.into();
    for repair in [
        Repair::Empty { text: text() },
        Repair::Unicode,
        Repair::ToolPairs { text: text() },
        Repair::ToolIds { length: None },
        Repair::ToolIds { length: Some(9) },
        Repair::CacheMarks { most: 1 },
        Repair::Field { place: "messages.*.content.*.text".into() },
        Repair::MaxTokens { most: 7 },
    ] {
        let edits = repair.edits(dialect, body);
        assert_eq!(crate::wire::splice::check(&edits, body.len()), Ok(()), "{repair:?}");
    }
}

#[cfg(test)]
mod tests;
