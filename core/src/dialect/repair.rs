//! What a provider refuses in a request, and the smallest edit that fixes it (`docs/healing.md`).
//!
//! [`reading`] reads a refusal, [`path`] finds what it names, [`Repair::edits`] makes the edits. Pure; must
//! not know what happens to an edit, or who asked for it.

mod empty;
pub mod fields;
mod ids;
mod marks;
pub mod media;
mod messages;
mod output;
mod pairs;
mod pairs_listed;
pub mod path;
mod placeholders;
pub mod prefill;
pub mod reading;
mod references;
pub mod shrink;
mod unicode;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::{Dialect, PartKey};
use crate::wire::json::{Document, Kind};
use crate::wire::splice::Edit;
pub(crate) use output::for_summary;
pub use output::{OutputLimit, SummaryOutput};
pub(crate) use placeholders::GO_ON;
pub(crate) use placeholders::NO_CONTENT;
pub(crate) use placeholders::NO_RESULT;
pub(crate) use reading::RefusalDetail;
pub use reading::{Refusal, RefusedAnswer, read};

/// What a provider refuses that an edit can answer; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    /// A member that this model does not know.
    Field,
    /// `max_tokens` is more than the model writes, or than the window has room for.
    MaxTokens,
}

/// An edit of a request, as it is stored: the same edit of the same bytes always gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case")]
pub enum Repair {
    /// A text replaces an image or document.
    Media {
        /// The image or document.
        part: PartKey,
        /// The text that is put there.
        text: Box<str>,
    },
    /// A smaller image of the same type replaces an image.
    Picture {
        /// The key of the image.
        part: PartKey,
        /// Its base64 data, stored so that replaying gives the same bytes.
        data: Box<str>,
    },
    /// Empty text is removed, or replaced by this text if something must be there.
    Empty {
        /// The text that is put there.
        text: Box<str>,
    },
    /// A user message is added after this message of the model.
    Prefill {
        /// The last part of the model's message.
        part: PartKey,
        /// The text of the user message.
        text: Box<str>,
    },
    /// Invalid characters become U+FFFD.
    Unicode,
    /// Each call gets one result, in its place; results without a call are removed.
    ToolPairs {
        /// The text in place of a missing result.
        text: Box<str>,
    },
    /// References to tools that are not defined are removed.
    ToolReferences,
    /// Ids of calls are changed to a valid form, the same everywhere.
    ToolIds {
        /// Exactly this many letters and digits; without it, letters, digits, `_` and `-`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u32>,
    },
    /// Only this many cache markers are kept, the newest.
    CacheMarks {
        /// The number of markers.
        most: u32,
    },
    /// A member is removed.
    Field {
        /// Its path, with `*` for indexes: `messages.*.content.*.citations`.
        place: Box<str>,
    },
    /// `max_tokens` is lowered.
    MaxTokens {
        /// The model's maximum output.
        most: u64,
    },
    /// `max_tokens` is lowered to the room in the window beside the prompt.
    OutputFits {
        /// The context window, tokens.
        window: u64,
    },
}

impl Repair {
    pub(crate) fn cause(&self) -> RepairCause {
        match self {
            Self::Media { .. } | Self::Picture { .. } => RepairCause::Media,
            Self::Empty { .. } => RepairCause::Empty,
            Self::Prefill { .. } => RepairCause::Prefill,
            Self::Unicode => RepairCause::Unicode,
            Self::ToolPairs { .. } | Self::ToolReferences => RepairCause::ToolPairs,
            Self::ToolIds { .. } => RepairCause::ToolIds,
            Self::CacheMarks { .. } => RepairCause::CacheMarks,
            Self::Field { .. } => RepairCause::Field,
            Self::MaxTokens { .. } | Self::OutputFits { .. } => RepairCause::MaxTokens,
        }
    }

    /// The text or base64 data that it inserts; empty if none.
    pub(crate) fn inserted_text(&self) -> &str {
        match self {
            Self::Media { text, .. }
            | Self::Empty { text }
            | Self::Prefill { text, .. }
            | Self::ToolPairs { text } => text,
            Self::Picture { data, .. } => data,
            Self::Field { place } => place,
            Self::Unicode
            | Self::ToolReferences
            | Self::ToolIds { .. }
            | Self::CacheMarks { .. }
            | Self::MaxTokens { .. }
            | Self::OutputFits { .. } => "",
        }
    }

    pub(crate) fn order(&self) -> u8 {
        // First what makes the body readable, last what counts things.
        match self {
            Self::Unicode => 0,
            Self::Field { .. } => 1,
            // If text replaces an image, no smaller image does.
            Self::Media { .. } => 2,
            Self::Picture { .. } => 3,
            Self::Empty { .. } => 4,
            Self::ToolIds { .. } => 5,
            Self::ToolPairs { .. } | Self::ToolReferences => 6,
            Self::Prefill { .. } => 7,
            Self::CacheMarks { .. } => 8,
            Self::MaxTokens { .. } | Self::OutputFits { .. } => 9,
        }
    }

    /// The edits of a body in `dialect`; empty if there is nothing to change. Edits of single parts
    /// ([`media`], [`prefill`](Self::Prefill)) are not among these, because they need the conversation.
    pub(crate) fn edits(&self, dialect: Dialect, body: &[u8]) -> Vec<Edit> {
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
            Self::ToolReferences => references::edits(root),
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

/// Fuzz target: no bytes make an edit panic, and the edits can be applied.
#[cfg(any(test, fuzzing))]
pub fn fuzz(dialect: Dialect, body: &[u8]) {
    let text = || NO_CONTENT.into();
    for repair in [
        Repair::Empty { text: text() },
        Repair::Unicode,
        Repair::ToolPairs { text: text() },
        Repair::ToolReferences,
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
