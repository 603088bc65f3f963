//! Where the rest of an open tool loop may begin behind a summary: a provider that demands reasoning demands it there.
//!
//! Pure; must not know summaries.

use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::policy::ReasoningRule;
use crate::context::turn_start::holds;
use crate::dialect::{Dialect, PartKind, Role};

/// Whether the rest of an open tool loop may begin at this message: a provider that demands reasoning demands it there
/// (`docs/protocols.md` 1.2).
pub(super) fn may_begin(request: &PlanRequest<'_>, known: &RecordedDecisions, cut: usize) -> bool {
    let conversation = request.conversation;
    let is_demanded = request.reasoning_rule == ReasoningRule::Demanded
        && conversation.dialect == Dialect::Anthropic
        && conversation.thinks != Some(false)
        && request.is_in_loop();
    let message = &conversation.messages[cut];
    if !is_demanded || message.role != Role::Assistant || cut <= request.newest_user_message() {
        return true;
    }
    holds(message, PartKind::Reasoning)
        || known.replies.iter().any(|reply| {
            reply.start().message == cut
                && !reply.reasoning.blocks.is_empty()
                && !reply.is_edited(conversation)
        })
}
