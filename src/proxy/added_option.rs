//! What a request asks of its provider on our behalf, beside what the client asks and the plan
//! changes: usage, context editing, reasoning in a form that can be sent back.
//!
//! Made anew for each request from policy and model; nothing of it is a fact, and none of it stands in
//! the prompt. One that is refused is a lesson, and is not asked for again.

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, HeaderValue};

use super::planned_request::PreparedRequest;
use super::{Proxy, headers, usage_strip};
use crate::config::{IncludeUsage, Mode, Upstream};
use crate::context::editing;
use crate::context::policy::{EchoRule, Reinject};
use crate::dialect::editing::BETA;
use crate::dialect::lesson::Lesson;
use crate::dialect::models::Binding;
use crate::dialect::refusal::Cause;
use crate::dialect::{Dialect, Purpose, rewrite};
use crate::wire::splice::Edit;

/// Something that is asked on our behalf.
#[derive(Clone, Debug)]
pub(crate) struct AddedOption {
    /// What.
    pub(crate) what: AddedOptionKind,
    /// The change of the body that asks for it.
    pub(crate) edit: Edit,
}

/// What is asked; each dialect has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddedOptionKind {
    /// Chat Completions: the usage of a stream; the answer is hidden from the client.
    Usage,
    /// Anthropic: that old results are cleared, past so many input tokens.
    Editing { trigger: u64 },
    /// Responses: reasoning's encrypted content, for the client that holds its history itself.
    Reasoning,
}

impl AddedOption {
    /// What is asked for with this request. Its body must not be encoded: what changes in it is what
    /// is sent.
    pub(crate) fn to(
        subject: &PreparedRequest,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Self> {
        let added = match subject.conversation.dialect {
            Dialect::OpenaiChat => usage(subject, upstream),
            Dialect::Anthropic => editing(subject),
            Dialect::OpenaiResponses => reasoning(subject),
            Dialect::Gemini => None,
        }?;
        let is_refused = proxy.knows(&subject.source(), added.what.lesson());
        (!is_refused).then_some(added)
    }
}

/// Where a streamed answer would not report usage unless it is asked for.
fn usage(subject: &PreparedRequest, upstream: &Upstream) -> Option<AddedOption> {
    let conversation = &subject.conversation;
    let wanted = conversation.stream && conversation.include_usage != Some(true);
    if !wanted || upstream.include_usage != IncludeUsage::Auto {
        return None;
    }
    Some(AddedOption { what: AddedOptionKind::Usage, edit: usage_strip::ask(&subject.body)? })
}

/// Where policy leaves old results to the provider. A count asks for it only where it could matter:
/// a body of fewer bytes than that is not of as many tokens.
fn editing(subject: &PreparedRequest) -> Option<AddedOption> {
    let editing = editing::wanted(&subject.request()).filter(|_| !subject.held_out)?;
    let trigger = editing.trigger;
    let is_count = subject.conversation.purpose == Purpose::Count;
    if is_count && subject.body.len() as u64 <= trigger {
        return None;
    }
    Some(AddedOption {
        what: AddedOptionKind::Editing { trigger },
        edit: editing.ask(&subject.body)?,
    })
}

/// Where the client holds its history and its reasoning would be lost: the provider keeps nothing, and
/// what it gives out cannot be sent back (`docs/protocols.md` 3.5).
fn reasoning(subject: &PreparedRequest) -> Option<AddedOption> {
    let conversation = &subject.conversation;
    let is_alone = conversation.stored == Some(false) && conversation.held.is_none();
    let bound = subject.model.known && subject.model.binding == Binding::Prefix;
    let reasons = conversation.thinks == Some(true) || bound;
    let may = subject.mode == Mode::Active
        && !subject.held_out
        && subject.policy.reasoning.reinject == Reinject::Auto
        && subject.echo != EchoRule::Unwanted;
    if !(is_alone && reasons && may) || conversation.purpose != Purpose::Turn {
        return None;
    }
    let edit = rewrite::include_encrypted_reasoning(&subject.body)?;
    Some(AddedOption { what: AddedOptionKind::Reasoning, edit })
}

impl AddedOptionKind {
    /// What a refusal of it teaches.
    pub(crate) fn lesson(self) -> Lesson {
        match self {
            AddedOptionKind::Usage => Lesson::UsageRefused,
            AddedOptionKind::Editing { .. } => Lesson::EditingRefused,
            AddedOptionKind::Reasoning => Lesson::IncludeRefused,
        }
    }

    /// How a refusal names it.
    pub(crate) fn cause(self) -> Cause {
        match self {
            AddedOptionKind::Usage => Cause::Usage,
            AddedOptionKind::Editing { .. } => Cause::Editing,
            AddedOptionKind::Reasoning => Cause::Include,
        }
    }

    /// What the head says of it.
    pub(crate) fn in_head(self, head: &mut HeaderMap) {
        match self {
            // What is hidden from the client has to be read: it is asked for plain.
            AddedOptionKind::Usage => {
                head.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            AddedOptionKind::Editing { .. } => headers::list_beta(head, BETA),
            AddedOptionKind::Reasoning => {}
        }
    }
}
