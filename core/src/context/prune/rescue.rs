//! Makes room after the provider said that a request does not fit: everything old that can be cut is cut at
//! once, and new results are trimmed where nothing else helps.
//!
//! The gates are about cost; here the alternative is a refused request. What policy keeps by name stays; what
//! it protects as new is protected less. Pure; proposes facts, like its parent module.

use super::{
    CutCandidate, CutTarget, LEAST_TRIMMED, PartWeights, PruneCandidates, RequestCost, SMALLEST,
    counter,
};
use crate::context::plan::{DecisionReason, PlanRequest, RecordedDecisions};
use crate::context::policy::{Policy, PrunePolicy};
use crate::context::{Fact, repair};
use crate::dialect::overflow::Overflow;
use crate::dialect::{PartIndex, PartKind, Purpose, Role};

/// How many messages stay whole, and the fraction (1/n) of the room that the newest tokens keep.
const NEWEST_MESSAGES: u32 = 2;
const NEWEST_SHARE: u64 = 4;

/// How many tokens of a request fit, which has `ours` in our count and did not fit. `overflow`: the
/// provider's message; its window is already in the model.
pub fn room_goal(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    ours: u64,
    overflow: Overflow,
) -> u64 {
    goal(request, ours, overflow, repair::lowered_output(request, known))
}

/// Cuts that make room in a request of `cost` that did not fit: all old results that may be cut. If the output
/// limit was lowered, no more than brings it to `goal` tokens. None if they would make required reasoning void.
pub fn clear_for_room(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    cost: RequestCost<'_>,
    goal: u64,
) -> Vec<Fact> {
    if !may_make_room(request) || request.needs_loop_reasoning() {
        return Vec::new();
    }
    let eased = eased(request, goal);
    let request = &PlanRequest { policy: &eased, ..*request };
    let candidates = PruneCandidates::new(request, known, cost);
    // A lowered output limit says exactly how much is too much; otherwise the counts may differ.
    let excess = match repair::lowered_output(request, known) {
        Some(_) => cost.tokens.saturating_sub(goal),
        None => u64::MAX,
    };
    let mut facts = Vec::new();
    let mut saved = 0;
    for result in candidates.old.iter().rev() {
        if saved >= excess {
            break;
        }
        saved += result.saves;
        facts.push(result.cut(request, DecisionReason::Overflow));
    }
    let voided = candidates.voided(request);
    if facts.is_empty() || !known.may_decide_all(&voided) {
        return Vec::new();
    }
    facts.extend(voided);
    facts
}

/// New results that are larger than their share of the room, trimmed to head and tail. None if the request
/// has no more than `goal` tokens.
pub fn trim_for_room(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    cost: RequestCost<'_>,
    goal: u64,
) -> Vec<Fact> {
    if !may_make_room(request) || cost.tokens <= goal {
        return Vec::new();
    }
    let eased = eased(request, goal);
    let request = &PlanRequest { policy: &eased, ..*request };
    let newborn = PruneCandidates::new(request, known, cost).newborn;
    let total: u64 = newborn.iter().map(|result| result.tokens).sum();
    // A part of the goal stays for them even where the rest fills it.
    let room = goal.saturating_sub(cost.tokens.saturating_sub(total)).max(goal / SMALLEST);
    let share = room / (newborn.len() as u64).max(1);
    let mut counter = counter(request);
    let mut facts = Vec::new();
    for target in newborn {
        if target.tokens <= share.max(LEAST_TRIMMED) {
            continue;
        }
        match CutCandidate::trimmed(target, request.body, share, &mut counter) {
            Some(result) if result.saves > 0 => {
                facts.push(result.cut(request, DecisionReason::TooLarge));
            }
            _ => {}
        }
    }
    facts
}

/// The largest text of the client's own compaction, shortened in its middle. Clients that put a whole history into one
/// message have no way out if that does not fit. None if the request has no more than `goal` tokens.
pub fn shorten_for_room(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    cost: RequestCost<'_>,
    goal: u64,
) -> Vec<Fact> {
    let conversation = request.conversation;
    if !may_make_room(request) || conversation.purpose != Purpose::Compaction {
        return Vec::new();
    }
    let excess = cost.tokens.saturating_sub(goal);
    if excess == 0 {
        return Vec::new();
    }
    let weights = PartWeights::new(request, cost);
    let texts = conversation.messages.iter().enumerate().flat_map(|(index, message)| {
        let parts = message.parts.iter().enumerate();
        parts.map(move |(at, part)| (PartIndex::new(index, at), part))
    });
    let texts = texts.filter(|(_, part)| part.kind == PartKind::Text && part.role == Role::User);
    // One text, because a history in one message is what such a request consists of.
    let largest = texts.max_by_key(|(_, part)| weights.own(part));
    let shortened = largest.and_then(|(at, part)| {
        let about = known.about(at)?;
        let key = part.key?;
        let tokens = weights.own(part);
        let stay = tokens.checked_sub(excess).filter(|stay| *stay >= LEAST_TRIMMED)?;
        let target = CutTarget { at, about, key, part, tokens };
        CutCandidate::trimmed(target, request.body, stay, &mut counter(request))
    });
    shortened.map(|text| text.cut(request, DecisionReason::TooLarge)).into_iter().collect()
}

fn may_make_room(request: &PlanRequest<'_>) -> bool {
    let conversation = request.conversation;
    let is_compaction = conversation.purpose == Purpose::Compaction && conversation.held.is_none();
    is_compaction || conversation.is_whole_turn()
}

fn eased(request: &PlanRequest<'_>, goal: u64) -> Policy {
    let policy = &request.policy.prune;
    // What policy keeps by name stays; what it protects as new is protected less.
    let prune = PrunePolicy {
        protect_messages: policy.protect_messages.min(NEWEST_MESSAGES),
        protect_tokens: policy.protect_tokens.min(goal / NEWEST_SHARE),
        protect_share: 1.0,
        protect_turns: 0,
        keep_media: false,
        stop_at_cut: false,
        ..policy.clone()
    };
    Policy { prune, ..request.policy.clone() }
}

/// How many tokens fit, in our count, corrected by the provider's count if its message has one. `lowered`:
/// the lowered output limit, if prompt and output were refused together.
fn goal(request: &PlanRequest<'_>, ours: u64, overflow: Overflow, lowered: Option<u64>) -> u64 {
    let window = request.model.window;
    let needed = request.conversation.max_output.unwrap_or(0).max(request.reserve);
    let output = lowered.unwrap_or(needed);
    let usable = window.saturating_sub(output.min(window / 2));
    let usable = match overflow.input {
        Some(input) => {
            let counted = u128::from(usable) * u128::from(ours) / u128::from(input.max(1));
            u64::try_from(counted).unwrap_or(usable)
        }
        None => usable,
    };
    // At most three quarters of the request are taken as what fits: counts differ, and the next requests have to fit,
    // too. If the output was lowered, prompt and output fit by the provider's own numbers.
    if overflow.input.is_some() && lowered.is_some() { usable } else { usable.min(ours - ours / 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::scene::{SessionFixture, messages};

    /// How many tokens fit into a window of 100,000: the window less the output, by the provider's count if it stated
    /// one, else less a share of our count.
    #[test]
    fn room_goal_uses_provider_count() {
        let of = |reserve, ours, input, lowered| {
            let mut scene = SessionFixture::new("claude-opus-4-6", &messages("u"));
            (scene.model.window, scene.reserve) = (100_000, reserve);
            goal(&scene.request(), ours, Overflow { input, ..Overflow::default() }, lowered)
        };
        assert_eq!(of(20_000, 200_000, None, None), 80_000);
        assert_eq!(of(20_000, 90_000, None, None), 67_500);
        assert_eq!(of(20_000, 50_000, Some(100_000), None), 37_500);
        assert_eq!(of(20_000, 160_000, Some(200_000), None), 64_000);
        assert_eq!(of(90_000, 200_000, None, None), 50_000, "output takes the half at most");
        assert_eq!(of(0, 200_000, None, None), 99_991, "so much output is asked for");
        // If the output was lowered, more room is left, and the provider's count is used as it is.
        assert_eq!(of(20_000, 200_000, None, Some(4_000)), 96_000);
        assert_eq!(of(20_000, 50_000, Some(100_000), Some(4_000)), 48_000);
        assert_eq!(of(20_000, 50_000, None, Some(4_000)), 37_500);
    }
}
