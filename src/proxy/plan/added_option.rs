//! What a request asks of its provider on our behalf, as an edit of its body or a line of its head.
//!
//! None of it is a fact, and none of it stands in the prompt. One that is refused is a lesson.

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, HeaderValue};

use crate::context::attempt::RefusableOption;
use crate::dialect::editing::BETA;
use crate::dialect::lesson::Lesson;
use crate::dialect::refusal::RefusalCause;
use crate::proxy::http::headers;
use crate::wire::splice::Edit;

/// Something that is asked on our behalf.
#[derive(Clone, Debug)]
pub(crate) struct AddedOption {
    /// What.
    pub(crate) what: AddedOptionKind,
    /// The change of the body that asks for it.
    pub(crate) edit: Edit,
}

/// What is asked; each dialect has one, and may ask for summaries of thinking too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddedOptionKind {
    /// Chat Completions: the usage of a stream; the answer is hidden from the client.
    Usage,
    /// Anthropic: that old results are cleared, past so many input tokens.
    Editing { trigger: u64 },
    /// Responses: reasoning's encrypted content, for the client that holds its history itself.
    Reasoning,
    /// A summary of the model's thinking, in addition to one of the others.
    Display,
}

impl AddedOptionKind {
    /// What a refusal of it teaches.
    pub(crate) fn lesson(self) -> Lesson {
        match self {
            AddedOptionKind::Usage => Lesson::UsageRefused,
            AddedOptionKind::Editing { .. } => Lesson::EditingRefused,
            AddedOptionKind::Reasoning => Lesson::IncludeRefused,
            AddedOptionKind::Display => Lesson::DisplayRefused,
        }
    }

    /// How a refusal names it, and what that teaches.
    pub(crate) fn refusable(self) -> RefusableOption {
        let cause = match self {
            AddedOptionKind::Usage => RefusalCause::Usage,
            AddedOptionKind::Editing { .. } => RefusalCause::Editing,
            AddedOptionKind::Reasoning => RefusalCause::Include,
            AddedOptionKind::Display => RefusalCause::Display,
        };
        RefusableOption { cause, lesson: self.lesson() }
    }

    /// What the head says of it.
    pub(crate) fn in_head(self, head: &mut HeaderMap) {
        match self {
            // What is hidden from the client has to be read: it is asked for plain.
            AddedOptionKind::Usage => {
                head.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            AddedOptionKind::Editing { .. } => headers::list_beta(head, BETA),
            AddedOptionKind::Reasoning | AddedOptionKind::Display => {}
        }
    }
}
