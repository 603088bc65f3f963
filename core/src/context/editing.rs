//! Context editing by the provider: expresses policy in the terms of the provider's own feature.
//!
//! Made only from policy, model and the names of tools, so that every request of a thread asks for the same.
//! `context_management` is not part of the prompt: neither the cache nor bound reasoning depends on it, and
//! changing the policy changes no prefix. Pure.

use super::plan::PlanRequest;
use super::policy::{Mode, PruneGate, PruneMethod};
use crate::dialect::editing::ContextEditing;
use crate::dialect::models::Family;
use crate::dialect::{Dialect, Part, PartKind, Purpose};

/// What the provider keeps by default (`docs/protocols.md` 1.3). With fewer, it would clear results that the
/// model has not read yet.
const LEAST_KEPT: u64 = 3;

/// What to request from the provider; `None` if policy requests nothing. Of the gates, only `pressure` and
/// `always` can be expressed. The provider keeps neither errors nor images.
pub fn wanted(request: &PlanRequest<'_>) -> Option<ContextEditing> {
    let prune = &request.policy.prune;
    let conversation = request.conversation;
    let claude = matches!(request.model.family, Family::Claude | Family::ClaudeNew);
    let is_its = match prune.method {
        PruneMethod::Rewrite => false,
        PruneMethod::Provider => true,
        // Cuts of our own would make reasoning void that is bound to what was cut.
        PruneMethod::Auto => claude && request.is_bound(),
    };
    // The client's own compaction reads the whole history: what is cleared cannot be summarised.
    let is_turn = matches!(conversation.purpose, Purpose::Turn | Purpose::Count);
    let speaks = conversation.dialect == Dialect::Anthropic && conversation.held.is_none();
    if !is_its || !is_turn || !speaks || request.mode != Mode::Active {
        return None;
    }
    // Below this, no cut is large enough.
    let least = prune.protect_tokens.saturating_add(prune.min_saving_tokens).max(1);
    let pressure = prune.threshold(request.fillable()) as u64;
    let trigger = match prune.gate.as_slice() {
        gates if gates.contains(&PruneGate::Always) => least,
        // Without a known window, the pressure is unknown.
        gates if gates.contains(&PruneGate::Pressure) && request.model.known => pressure.max(least),
        _ => return None,
    };
    Some(ContextEditing {
        trigger,
        // As many tool uses as messages: one message can have several.
        keep: u64::from(prune.protect_messages).max(LEAST_KEPT),
        at_least: prune.min_saving_tokens,
        except: except(request),
    })
}

fn except(request: &PlanRequest<'_>) -> Vec<Box<str>> {
    let conversation = request.conversation;
    let called = conversation.parts().filter(|part| part.kind == PartKind::ToolCall);
    let names =
        conversation.tools.iter().chain(called).filter_map(|part: &Part| part.name.as_ref());
    let mut except: Vec<Box<str>> = Vec::new();
    // The provider knows no patterns, and no list of tools to cut.
    for name in names.filter(|name| !request.policy.prune.covers(Some(name))) {
        if !except.contains(name) {
            except.push(name.clone());
        }
    }
    except
}

#[cfg(test)]
mod tests;
