//! Decides what is requested on the client's behalf: usage, context editing, reasoning that can be sent back,
//! visible thinking, why a cache was missed.
//!
//! Decided for each request, from policy and model. What was refused once is not requested again.

use crate::config::{IncludeUsage, Mode};
use crate::context::policy::{ReasoningRule, ReinjectPolicy, ThinkingDisplay};
use crate::context::{Turn, editing};
use crate::dialect::models::{Family, ReasoningBinding};
use crate::dialect::{Dialect, Purpose, rewrite};
use crate::proxy::plan::added_option::{AddedOption, AddedOptionKind};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::plan::request_usage;
use crate::proxy::state::Proxy;

impl AddedOption {
    /// `parent`: the turn that the request continues.
    pub(crate) fn choose(
        prepared: &PreparedRequest,
        proxy: &Proxy,
        parent: Option<&Turn>,
    ) -> Vec<Self> {
        // Its body must not be compressed, because it is edited.
        let of_dialect = match prepared.conversation.dialect {
            Dialect::OpenaiChat => usage(prepared),
            Dialect::Anthropic => editing(prepared),
            Dialect::OpenaiResponses => reasoning(prepared),
            Dialect::Gemini => None,
        };
        let mut options = Vec::new();
        options.extend(of_dialect);
        options.extend(display(prepared, parent));
        options.extend(diagnosis(prepared, parent));
        // What was refused once is not requested again.
        options.retain(|added| !proxy.knows(&prepared.info.lesson_source(), added.kind.lesson()));
        options
    }
}

/// A host whose streams always report usage: nothing is requested there, and so nothing hidden
/// (`docs/protocols.md` 2.1).
const REPORTS_USAGE: &str = "openrouter.ai";

fn usage(prepared: &PreparedRequest) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    let upstream = &prepared.info.upstream;
    let wanted = conversation.stream && conversation.include_usage != Some(true);
    let is_reported = upstream.host().eq_ignore_ascii_case(REPORTS_USAGE);
    if !wanted || is_reported || upstream.include_usage != IncludeUsage::Auto {
        return None;
    }
    Some(AddedOption {
        kind: AddedOptionKind::Usage,
        edit: request_usage::request(&prepared.body)?,
    })
}

fn editing(prepared: &PreparedRequest) -> Option<AddedOption> {
    if prepared.held_out {
        return None;
    }
    let editing = editing::wanted(&prepared.plan_request())?;
    let trigger = editing.trigger;
    let is_count = prepared.conversation.purpose == Purpose::Count;
    // A count only asks for it if it could matter: a body with fewer bytes than the trigger has fewer tokens,
    // too.
    if is_count && prepared.body.len() as u64 <= trigger {
        return None;
    }
    Some(AddedOption {
        kind: AddedOptionKind::Editing { trigger },
        edit: editing.ask(&prepared.body)?,
    })
}

fn display(prepared: &PreparedRequest, parent: Option<&Turn>) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    // A thread keeps the choice of its first request, because the effect of a change on the cache is not
    // documented (`docs/protocols.md` 1.5).
    let wanted = match parent {
        Some(parent) => parent.done.shows_thinking,
        None => {
            let is_wanted = prepared.info.policy.reasoning.display == ThinkingDisplay::Summarized;
            is_wanted && conversation.purpose == Purpose::Turn
        }
    };
    let is_left_out = match conversation.dialect {
        Dialect::Anthropic => prepared.info.model.family == Family::ClaudeNew,
        Dialect::OpenaiResponses | Dialect::Gemini => true,
        Dialect::OpenaiChat => false,
    };
    let may = prepared.may_rewrite() && conversation.purpose != Purpose::Count;
    if !wanted || !is_left_out || !may {
        return None;
    }
    // Only if the client asked for thinking.
    let edit = rewrite::show_thinking(conversation.dialect, &prepared.body)?;
    Some(AddedOption { kind: AddedOptionKind::Display, edit })
}

fn diagnosis(prepared: &PreparedRequest, parent: Option<&Turn>) -> Option<AddedOption> {
    let conversation = &prepared.conversation;
    if !prepared.info.policy.cache.diagnose || !conversation.is_whole_turn() {
        return None;
    }
    // The request is compared with its parent's (`docs/protocols.md` 1.3, 7.2). OpenAI's models before GPT-5.6,
    // whose cache writes are free, refuse it.
    let dialect = conversation.dialect;
    let beta = dialect == Dialect::Anthropic;
    let bills_writes =
        prepared.info.model.price.is_some_and(|price| price.cache_write > price.input);
    if !beta && prepared.info.model.known && !bills_writes {
        return None;
    }
    let previous = match parent {
        Some(turn) if turn.dialect == dialect && turn.upstream == prepared.info.upstream.name => {
            turn.response.as_deref()
        }
        _ => None,
    };
    let edit = rewrite::diagnose(dialect, &prepared.body, previous)?;
    Some(AddedOption { kind: AddedOptionKind::Diagnosis { beta }, edit })
}

fn reasoning(prepared: &PreparedRequest) -> Option<AddedOption> {
    // Without it the reasoning would be lost: the provider stores nothing, and its plain reasoning cannot be
    // sent back (`docs/protocols.md` 3.5).
    let conversation = &prepared.conversation;
    let is_alone = conversation.stored == Some(false) && conversation.held.is_none();
    let bound =
        prepared.info.model.known && prepared.info.model.binding == ReasoningBinding::Prefix;
    let reasons = conversation.thinks == Some(true) || bound;
    let may = prepared.mode == Mode::Active
        && !prepared.held_out
        && prepared.info.policy.reasoning.reinject == ReinjectPolicy::Auto
        && prepared.info.reasoning_rule != ReasoningRule::Unwanted;
    if !(is_alone && reasons && may) || conversation.purpose != Purpose::Turn {
        return None;
    }
    let edit = rewrite::include_encrypted_reasoning(&prepared.body)?;
    Some(AddedOption { kind: AddedOptionKind::Reasoning, edit })
}
