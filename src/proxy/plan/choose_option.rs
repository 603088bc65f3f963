//! Whether a request asks for something on our behalf, and for what: usage, context editing, reasoning in a
//! form that can be sent back.
//!
//! Chosen anew for each request from policy and model. What was refused once is not asked for again.

use crate::config::{IncludeUsage, Mode, Upstream};
use crate::context::editing;
use crate::context::policy::{EchoRule, Reinject};
use crate::dialect::models::Binding;
use crate::dialect::{Dialect, Purpose, rewrite};
use crate::proxy::plan::added_option::{AddedOption, AddedOptionKind};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::usage_strip;
use crate::proxy::state::Proxy;

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
