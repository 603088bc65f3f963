//! Whether a request asks for something on our behalf, and for what: usage, context editing, reasoning in a
//! form that can be sent back.
//!
//! Chosen anew for each request from policy and model. What was refused once is not asked for again.

use crate::config::{IncludeUsage, Mode, Upstream};
use crate::context::editing;
use crate::context::policy::{EchoRule, ReinjectPolicy};
use crate::dialect::models::ReasoningBinding;
use crate::dialect::{Dialect, Purpose, rewrite};
use crate::proxy::plan::added_option::{AddedOption, AddedOptionKind};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::usage_strip;
use crate::proxy::state::Proxy;

impl AddedOption {
    /// What is asked for with this request. Its body must not be encoded: what changes in it is what
    /// is sent.
    pub(crate) fn to(
        prepared: &PreparedRequest,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Self> {
        let added = match prepared.conversation.dialect {
            Dialect::OpenaiChat => usage(prepared, upstream),
            Dialect::Anthropic => editing(prepared),
            Dialect::OpenaiResponses => reasoning(prepared),
            Dialect::Gemini => None,
        }?;
        let is_refused = proxy.knows(&prepared.source(), added.what.lesson());
        (!is_refused).then_some(added)
    }
}

/// Where a streamed answer would not report usage unless it is asked for.
fn usage(prepared: &PreparedRequest, upstream: &Upstream) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    let wanted = conversation.stream && conversation.include_usage != Some(true);
    if !wanted || upstream.include_usage != IncludeUsage::Auto {
        return None;
    }
    Some(AddedOption { what: AddedOptionKind::Usage, edit: usage_strip::ask(&prepared.body)? })
}

/// Where policy leaves old results to the provider. A count asks for it only where it could matter:
/// a body of fewer bytes than that is not of as many tokens.
fn editing(prepared: &PreparedRequest) -> Option<AddedOption> {
    let editing = editing::wanted(&prepared.request()).filter(|_| !prepared.held_out)?;
    let trigger = editing.trigger;
    let is_count = prepared.conversation.purpose == Purpose::Count;
    if is_count && prepared.body.len() as u64 <= trigger {
        return None;
    }
    Some(AddedOption {
        what: AddedOptionKind::Editing { trigger },
        edit: editing.ask(&prepared.body)?,
    })
}

/// Where the client holds its history and its reasoning would be lost: the provider keeps nothing, and
/// what it gives out cannot be sent back (`docs/protocols.md` 3.5).
fn reasoning(prepared: &PreparedRequest) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    let is_alone = conversation.stored == Some(false) && conversation.held.is_none();
    let bound = prepared.model.known && prepared.model.binding == ReasoningBinding::Prefix;
    let reasons = conversation.thinks == Some(true) || bound;
    let may = prepared.mode == Mode::Active
        && !prepared.held_out
        && prepared.policy.reasoning.reinject == ReinjectPolicy::Auto
        && prepared.echo != EchoRule::Unwanted;
    if !(is_alone && reasons && may) || conversation.purpose != Purpose::Turn {
        return None;
    }
    let edit = rewrite::include_encrypted_reasoning(&prepared.body)?;
    Some(AddedOption { what: AddedOptionKind::Reasoning, edit })
}
