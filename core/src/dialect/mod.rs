//! Floor 1: what requests and replies of the four dialects mean, and where in the body it is.
//!
//! Reading never fails: what is not understood becomes an opaque part and a note. `rewrite` says which bytes
//! change; nothing here decides that, keeps state between exchanges, or knows a clock. Ranges point into the
//! body that was read.

pub mod agent;
pub mod anthropic;
mod audience;
mod backend;
pub mod billing;
pub mod cache;
mod conversation;
mod count;
pub mod counting;
pub mod credentials;
pub mod door;
pub mod editing;
pub mod error_kind;
pub(crate) mod error_message;
#[cfg(test)]
mod fuzz_tests;
pub mod gemini;
pub mod hints;
pub mod identity;
pub mod ids;
pub mod key;
mod kinds;
mod known;
pub mod lesson;
pub mod model_list;
pub mod models;
mod note;
mod numbers;
pub mod openai_chat;
pub mod openai_responses;
pub mod overflow;
mod part;
pub mod paths;
pub mod percent;
mod progress;
mod provider_error;
mod purpose;
pub mod quota;
pub mod reading;
#[cfg(test)]
#[path = "testing/recordings.rs"]
mod recordings;
pub mod refusal;
pub mod repair;
pub mod reply;
mod request;
pub mod request_id;
pub mod rewrite;
pub mod sentences;
pub mod size;
pub mod status;
pub mod summary;
mod usage;

pub use crate::wire::json::Span;
pub use audience::{Audience, ServerStep};
pub use conversation::{Conversation, HeldHistory, Message};
pub use key::{Chain, PartKey, Sentence};
pub use kinds::{Dialect, PartKind, Purpose, Role};
pub use known::{BodyElements, ElementMemory};
pub use note::Note;
pub use part::{Media, Part, PartIndex, PictureDetail};
pub use progress::ReplyProgress;
pub use provider_error::ProviderError;
pub use reading::ResponseReader;
pub use reply::{Reply, ReplyPart, StopReason};
pub use request::{read, read_in};
pub(crate) use usage::LastCall;
pub use usage::{Attempt, BilledTokens, CountLimit, EstimateError, Usage, UsageSpelling};
