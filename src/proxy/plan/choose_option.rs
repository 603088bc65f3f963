//! Whether a request asks for something on our behalf, and for what: usage, context editing, reasoning in a
//! form that can be sent back, thinking that is shown.
//!
//! Chosen anew for each request from policy and model. What was refused once is not asked for again.

use crate::config::{IncludeUsage, Mode, Upstream};
use crate::context::policy::{EchoRule, ReinjectPolicy, ThinkingDisplay};
use crate::context::{Turn, editing};
use crate::dialect::models::{Family, ReasoningBinding};
use crate::dialect::{Dialect, Purpose, rewrite};
use crate::proxy::plan::added_option::{AddedOption, AddedOptionKind};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::usage_strip;
use crate::proxy::state::Proxy;

impl AddedOption {
    /// What is asked for with this request, which grew from `parent`. Its body must not be encoded: what changes in it
    /// is what is sent.
    pub(crate) fn to(
        prepared: &PreparedRequest,
        proxy: &Proxy,
        upstream: &Upstream,
        parent: Option<&Turn>,
    ) -> Vec<Self> {
        let added = match prepared.conversation.dialect {
            Dialect::OpenaiChat => usage(prepared, upstream),
            Dialect::Anthropic => editing(prepared),
            Dialect::OpenaiResponses => reasoning(prepared),
            Dialect::Gemini => None,
        };
        let all = added.into_iter().chain(display(prepared, parent));
        all.filter(|added| !proxy.knows(&prepared.source(), added.what.lesson())).collect()
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

/// Where policy wants thinking shown that the model leaves out, and its client asked for thinking. A thread keeps what
/// its first request did: nobody says what a change in the middle does to its cache (`docs/protocols.md` 1.5).
fn display(prepared: &PreparedRequest, parent: Option<&Turn>) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    let wanted = match parent {
        Some(parent) => parent.done.shows_thinking,
        None => {
            let is_wanted = prepared.policy.reasoning.display == ThinkingDisplay::Summarized;
            is_wanted && conversation.purpose == Purpose::Turn
        }
    };
    let is_left_out = match conversation.dialect {
        Dialect::Anthropic => prepared.model.family == Family::ClaudeNew,
        Dialect::OpenaiResponses | Dialect::Gemini => true,
        Dialect::OpenaiChat => false,
    };
    let may = prepared.rewrites() && conversation.purpose != Purpose::Count;
    let edit = (wanted && is_left_out && may)
        .then(|| rewrite::show_thinking(conversation.dialect, &prepared.body))??;
    Some(AddedOption { what: AddedOptionKind::Display, edit })
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
