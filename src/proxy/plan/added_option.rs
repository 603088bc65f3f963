//! What is requested from a provider on the client's behalf, as an edit of the body or a line of the head.
//!
//! It is not stored as a fact, and is not part of the prompt. A refusal of it is a lesson.

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, HeaderValue};

use crate::context::attempt::RefusableOption;
use crate::dialect::cache;
use crate::dialect::editing::BETA;
use crate::dialect::lesson::Lesson;
use crate::dialect::refusal::RefusalCause;
use crate::proxy::http::headers;
use crate::wire::splice::Edit;

/// Something that is requested on the client's behalf.
#[derive(Clone, Debug)]
pub(crate) struct AddedOption {
    pub(crate) kind: AddedOptionKind,
    /// The edit of the body that requests it.
    pub(crate) edit: Edit,
}

/// What can be requested: one kind per dialect, and visible thinking in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddedOptionKind {
    /// Chat Completions: the usage of a stream, which is hidden from the client.
    Usage,
    /// Anthropic: clearing old tool results, past this many input tokens.
    Editing { trigger: u64 },
    /// Responses: encrypted reasoning, for a client that holds its history itself.
    Reasoning,
    /// A summary of the model's thinking, in addition to one of the others.
    Display,
    /// Why the cache was missed, in addition to the others; hidden from the client. Of Anthropic it needs a beta.
    Diagnosis { beta: bool },
}

impl AddedOptionKind {
    pub(super) fn lesson(self) -> Lesson {
        match self {
            AddedOptionKind::Usage => Lesson::UsageRefused,
            AddedOptionKind::Editing { .. } => Lesson::EditingRefused,
            AddedOptionKind::Reasoning => Lesson::IncludeRefused,
            AddedOptionKind::Display => Lesson::DisplayRefused,
            AddedOptionKind::Diagnosis { .. } => Lesson::DiagnosisRefused,
        }
    }

    pub(crate) fn refusable(self) -> RefusableOption {
        let cause = match self {
            AddedOptionKind::Usage => RefusalCause::Usage,
            AddedOptionKind::Editing { .. } => RefusalCause::Editing,
            AddedOptionKind::Reasoning => RefusalCause::Include,
            AddedOptionKind::Display => RefusalCause::Display,
            AddedOptionKind::Diagnosis { .. } => RefusalCause::Diagnosis,
        };
        RefusableOption { cause, lesson: self.lesson() }
    }

    pub(crate) fn add_headers(self, head: &mut HeaderMap) {
        match self {
            // To hide what comes of it, the response must be read: it is requested uncompressed.
            AddedOptionKind::Usage => {
                head.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            AddedOptionKind::Editing { .. } => headers::list_beta(head, BETA),
            AddedOptionKind::Diagnosis { beta } => {
                head.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                if beta {
                    headers::list_beta(head, cache::BETA);
                }
            }
            AddedOptionKind::Reasoning | AddedOptionKind::Display => {}
        }
    }
}
