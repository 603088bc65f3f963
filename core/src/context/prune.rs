//! Old tool results: which may be cut, and whether to cut them now (`docs/rewriting.md` "Old tool results").
//!
//! Cuts are made in batches: none until enough can be cut, then all at once. Cutting is free while the
//! provider's cache is cold, and never done before reasoning that is bound to its prefix (`docs/protocols.md`
//! 1.5, 7.4). Pure; proposes facts, which `plan` replays.

mod rescue;

pub use rescue::{clear_for_room, room_goal, shorten_for_room, trim_for_room};

use foldhash::HashMap;

use super::cache::is_cold;
use super::plan::{
    self, Change, CutOfPart, DecisionReason, PlanRequest, PlanStep, Proposal, RecordedDecisions,
};
use super::policy::{ProtectUnit, PruneGate, PruneMethod, PrunePolicy};
use super::trim::{self, TrimRange, text_at};
use super::turn_start::is_users;
use super::{Cut, Fact, Replacement, SketchPart, compact, cost, reasoning};
use crate::dialect::{Conversation, Message, Part, PartIndex, PartKey, PartKind, Role};
use crate::tokens::TokenCounter;
use crate::tokens::classic::ClassicRules;

/// The measured cost of a request.
#[derive(Clone, Copy)]
pub struct RequestCost<'a> {
    /// Total tokens; by `rules` if they decide.
    pub tokens: u64,
    /// Each part that is sent, with its tokens, in order.
    pub parts: &'a [SketchPart],
    /// The rules of an agent, if they decide.
    pub rules: Option<&'a ClassicRules>,
}

/// New cuts, and those that were decided against.
pub fn propose(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    cost: RequestCost<'_>,
) -> Proposal {
    if !request.conversation.is_whole_turn() {
        return Proposal::default();
    }
    let candidates = PruneCandidates::new(request, known, cost);
    let gate = candidates.gate(request, known, cost);
    // If cutting old results makes enough room, new ones are not trimmed.
    let freed = if let Ok(Some(_)) = gate { candidates.saving() } else { 0 };
    let remaining_cost = RequestCost { tokens: cost.tokens.saturating_sub(freed), ..cost };
    let mut proposal = candidates.newborn(request, known, remaining_cost);
    match gate {
        Ok(Some(why)) => {
            proposal.facts.extend(candidates.old.iter().map(|result| result.cut(request, why)));
            proposal.facts.extend(candidates.voided(request));
        }
        Ok(None) => {}
        Err(why) => {
            // One step for the whole batch, at the oldest result.
            if let Some(oldest) = candidates.old.last() {
                let saving = candidates.saving();
                let step =
                    PlanStep::declined(Change::Cut, why, oldest.at, oldest.part.span, saving);
                proposal.declined.push(step);
            }
        }
    }
    proposal
}

/// A result that may be cut.
struct CutCandidate<'a> {
    at: PartIndex,
    about: u128,
    key: PartKey,
    part: &'a Part,
    /// Its tokens, including images in it if they are cut too.
    tokens: u64,
    /// What replaces it, and its tokens.
    content: Replacement,
    after: u64,
    /// Tokens saved, in the count that decides.
    saves: u64,
}

/// A result or image that can be cut.
#[derive(Clone, Copy)]
struct CutTarget<'a> {
    at: PartIndex,
    /// The key that decisions about it are stored under.
    about: u128,
    /// Its key in the form in which it is sent without this cut.
    key: PartKey,
    part: &'a Part,
    tokens: u64,
}

/// The candidates of a request, newest first.
#[derive(Default)]
struct PruneCandidates<'a> {
    old: Vec<CutCandidate<'a>>,
    /// Results that are sent for the first time, with their tokens.
    newborn: Vec<CutTarget<'a>>,
    /// Tokens from the oldest candidate to the end.
    after_first: u64,
    /// Tokens that no cut takes away: system prompt, tools, and what comes after the newest candidate.
    uncuttable: u64,
    /// A cut must save at least this many tokens.
    least_saving: u64,
    /// Whether there is reasoning after the oldest candidate.
    reasoning_after: bool,
}

impl<'a> PruneCandidates<'a> {
    fn new(request: &PlanRequest<'a>, known: &RecordedDecisions, cost: RequestCost<'_>) -> Self {
        let mut candidates = Self::default();
        let weights = PartWeights::new(request, cost);
        let policy = &request.policy.prune;
        let counts_results = policy.protect_counts == ProtectUnit::Results;
        let messages = &request.conversation.messages;
        let names = names(request);
        let last_reply = known.last_reply(messages);
        let head = weights.head(request.conversation, cost.tokens);
        let tail = ProtectedTail::new(request, head);
        candidates.least_saving = policy.min_saving_tokens.min(tail.share).max(1);
        let mut counter = counter(request);
        let mut passed = 0u64;
        let mut counted = 0u64;
        let mut reasoning = false;
        for (place, message, part) in newest_first(messages, known.kept_from()) {
            if policy.stop_at_summary && is_summary(part) {
                return candidates;
            }
            reasoning |= part.kind == PartKind::Reasoning || part.signature.is_some();
            // A trimmed result can be cleared like any other.
            let CutOfPart { cut, trim: trimmed } = known.cut_at(part, place);
            let part_tokens =
                trimmed.map_or_else(|| weights.own(part), |cut| u64::from(cut.tokens));
            passed += part_tokens;
            if policy.protect_counts == ProtectUnit::All {
                counted += weights.judged(part, part_tokens);
            }
            let is_picture = policy.media && is_users_picture(message, place.part);
            // A result without content has nothing that a placeholder could replace.
            let is_result = part.kind == PartKind::ToolResult && part.content.is_some();
            if !is_result && !is_picture {
                continue;
            }
            let keeps = policy.keep_media || is_picture;
            let tokens = part_tokens + if keeps { 0 } else { weights.within(message, place.part) };
            let (Some(about), Some(key)) = (known.about(place), part.key) else { continue };
            let name = part.name.as_deref().or_else(|| names.get(part.id.as_deref()?).copied());
            let may_go = is_picture || may_go(policy, name, part);
            let is_new = last_reply.is_none_or(|last| place.message > last);
            if cut.is_some() && (is_new || trimmed.is_none()) {
                if may_go && policy.stop_at_cut {
                    return candidates;
                }
                continue;
            }
            let (about, key) = match trimmed {
                Some(_) => (plan::clearing_key(about), key.cut()),
                None => (about, key),
            };
            if is_new {
                // An image cannot be trimmed to head and tail.
                if may_go && !is_picture {
                    let target = CutTarget { at: place, about, key, part, tokens: part_tokens };
                    candidates.newborn.push(target);
                }
                // It counts among the newest results, though it cannot be cut yet.
                if counts_results && may_go && place.message < tail.from {
                    counted += weights.judged(part, part_tokens);
                }
                continue;
            }
            if tail.holds(place.message, passed) || !may_go {
                continue;
            }
            let text = placeholder(policy, name, part_tokens, is_picture);
            if policy.stop_at_cut && has_only_text(part, request.body, &text) {
                return candidates;
            }
            if counts_results {
                counted += weights.judged(part, part_tokens);
            }
            if counted <= policy.protect_tokens.min(tail.share) {
                continue;
            }
            let saves = weights.saved(policy, part, part_tokens, &text);
            let target = CutTarget { at: place, about, key, part, tokens };
            if let Some(result) = CutCandidate::cleared(target, text, saves, &mut counter) {
                candidates.add(result, passed, reasoning, head + passed - part_tokens);
            }
        }
        candidates
    }

    fn add(&mut self, result: CutCandidate<'a>, passed: u64, reasoning: bool, uncuttable: u64) {
        // The newest one comes first: nothing after it goes, whatever is cut before it.
        if self.old.is_empty() {
            self.uncuttable = uncuttable;
        }
        self.after_first = passed;
        self.reasoning_after = reasoning;
        self.old.push(result);
    }

    fn saving(&self) -> u64 {
        self.old.iter().map(|result| result.saves).sum()
    }

    fn gate(
        &self,
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        cost: RequestCost<'_>,
    ) -> Result<Option<DecisionReason>, DecisionReason> {
        let policy = &request.policy.prune;
        let is_short = request.conversation.messages.len() < policy.min_messages as usize;
        if self.old.is_empty() || is_short || policy.gate.is_empty() {
            return Ok(None);
        }
        if self.saving() < self.least_saving {
            return Err(DecisionReason::TooLittle);
        }
        // The provider clears old results itself.
        if request.clears_past.is_some() || policy.method == PruneMethod::Provider {
            return Err(DecisionReason::Provider);
        }
        let cold = is_cold(request, known);
        if known.is_suspended && !cold {
            return Err(DecisionReason::Suspended);
        }
        let mut verdict = Err(DecisionReason::NoGate);
        for gate in &policy.gate {
            let opened = match gate {
                PruneGate::Pressure => self.relieves(request, known, cost, cold),
                PruneGate::ColdCache if cold => Ok(DecisionReason::ColdCache),
                PruneGate::PaysBack if self.pays_back(request, known) => {
                    Ok(DecisionReason::PaysBack)
                }
                PruneGate::ColdCache | PruneGate::PaysBack => Err(DecisionReason::NoGate),
                PruneGate::Always => Ok(DecisionReason::Always),
            };
            // The reason of the first closed gate is reported, unless it is only that no gate is open.
            if opened.is_ok() || verdict == Err(DecisionReason::NoGate) {
                verdict = opened;
            }
            if verdict.is_ok() {
                break;
            }
        }
        let why = verdict?;
        let voids = request.is_bound() && (self.reasoning_after || !known.replies.is_empty());
        // A cut before bound reasoning makes it void.
        match voids {
            true if !policy.accept_reasoning_loss => Err(DecisionReason::Bound),
            // The open loop's own reasoning must stay (`docs/protocols.md` 1.5).
            true if request.is_in_loop() => Err(DecisionReason::OpenLoop),
            true if !known.may_decide_all(&self.voided(request)) => Err(DecisionReason::Suspended),
            _ => Ok(Some(why)),
        }
    }

    fn voided(&self, request: &PlanRequest<'_>) -> Vec<Fact> {
        // The provider would refuse it (`docs/protocols.md` 1.5). What we put back is left out by itself,
        // because its prefix no longer matches.
        match self.old.last() {
            Some(oldest) if request.is_bound() => {
                reasoning::take_out_from(request, oldest.at.message)
            }
            _ => Vec::new(),
        }
    }

    fn relieves(
        &self,
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        cost: RequestCost<'_>,
        cold: bool,
    ) -> Result<DecisionReason, DecisionReason> {
        let policy = &request.policy.prune;
        let fillable = request.fillable();
        let remaining_tokens = cost.tokens.saturating_sub(self.saving());
        let is_full = cost.tokens >= request.policy.compact.threshold(fillable);
        let low_water = policy.low_water(fillable, self.uncuttable);
        if cost.tokens as f64 <= policy.threshold(fillable) {
            Err(DecisionReason::NoGate)
        } else if !request.model.known {
            Err(DecisionReason::UnknownWindow)
        // A request that does not fit is cut whatever it costs.
        } else if cost.tokens > fillable || policy.low_water >= 1.0 {
            Ok(DecisionReason::Pressure)
        } else if remaining_tokens > low_water {
            Err(DecisionReason::LittleRoom)
        // Where a summary would be used otherwise, a cut need not pay.
        } else if !is_full && !cold && !self.pays_back(request, known) {
            Err(DecisionReason::NoGain)
        } else {
            Ok(DecisionReason::Pressure)
        }
    }

    fn pays_back(&self, request: &PlanRequest<'_>, known: &RecordedDecisions) -> bool {
        // The client's own summary is about to replace what would be cut.
        if known.is_being_compacted {
            return false;
        }
        let Some(price) = request.model.price.filter(|price| price.input > 0.0) else {
            return false;
        };
        let read = price.cache_read / price.input;
        // A cache write is priced for the same lifetime as the parent turn's write.
        let usage = known.parent.as_ref().map(|parent| parent.usage.clone()).unwrap_or_default();
        let dialect = request.conversation.dialect;
        let write = cost::write_price(&usage, price.base(), dialect) / price.input;
        let saving = self.saving() as f64;
        let rewrite_cost = (self.after_first as f64 - saving).max(0.0) * (write - read).max(0.0);
        // `N = (T−R)(w−r) / (R·r)`: T tokens after the first changed byte, of which R go, are read at r and
        // processed again at w.
        let turns = rewrite_cost / (saving * read);
        turns <= f64::from(request.policy.prune.horizon_turns)
    }

    fn newborn(
        &self,
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        cost: RequestCost<'_>,
    ) -> Proposal {
        // Trims results that are too large to head and tail when they are first sent, before anything depends
        // on them.
        let Proposal { mut facts, mut declined } = Proposal::default();
        let limit = request.policy.prune.max_result_tokens;
        // A window that is only a guess decides nothing.
        let mut fits = !request.model.known || cost.tokens <= request.fillable();
        // A summary that makes enough room leaves the new results whole.
        if !fits && limit.is_none() && !self.newborn.is_empty() {
            fits = compact::would_fit(request, known, cost.parts, cost.tokens);
        }
        let mut counter = counter(request);
        for newborn in &self.newborn {
            let CutTarget { at, part, tokens, .. } = *newborn;
            // What the rest of the request leaves of the window.
            let room = request.fillable().saturating_sub(cost.tokens.saturating_sub(tokens));
            let too_large = match limit {
                Some(limit) => tokens > limit,
                None => !fits && tokens > request.fillable() / 2,
            };
            if !too_large || tokens < LEAST_TRIMMED {
                continue;
            }
            if known.is_suspended {
                declined.push(PlanStep::declined(
                    Change::Cut,
                    DecisionReason::Suspended,
                    at,
                    part.span,
                    tokens,
                ));
                continue;
            }
            let target = limit.unwrap_or(u64::MAX).min(room.max(request.fillable() / SMALLEST));
            let Some(result) = CutCandidate::trimmed(*newborn, request.body, target, &mut counter)
            else {
                declined.push(PlanStep::declined(
                    Change::Cut,
                    DecisionReason::Structure,
                    at,
                    part.span,
                    tokens,
                ));
                continue;
            };
            facts.push(result.cut(request, DecisionReason::TooLarge));
        }
        Proposal { facts, declined }
    }
}

/// The text that replaces an image in a user message.
const PICTURE_PLACEHOLDER: &str = "[Old picture cleared]";
/// A result with fewer tokens is never too large: trimming it would save nothing.
const LEAST_TRIMMED: u64 = 200;
/// So many of the newest messages are protected, however large they are: what the model reads now, and what it read
/// before its last reply.
const NEWEST_MESSAGES: usize = 4;
/// At least this fraction (1/n) of the window is left of a result that does not fit.
const SMALLEST: u64 = 20;

impl<'a> CutCandidate<'a> {
    /// A result replaced by this text; `None` if that is not smaller. `saves`: the saving in the count that
    /// decides, if that is not ours.
    fn cleared(
        target: CutTarget<'a>,
        text: String,
        saves: Option<u64>,
        counter: &mut TokenCounter<'_>,
    ) -> Option<Self> {
        let CutTarget { at, about, key, part, tokens } = target;
        let text_tokens = u64::from(counter.stands_for(part, &text));
        if text_tokens >= tokens {
            return None;
        }
        Some(Self {
            at,
            about,
            key,
            part,
            tokens,
            content: Replacement::Text(text.into()),
            after: text_tokens,
            saves: saves.unwrap_or(tokens - text_tokens),
        })
    }

    fn trimmed(
        target: CutTarget<'a>,
        body: &[u8],
        stay: u64,
        counter: &mut TokenCounter<'_>,
    ) -> Option<Self> {
        let CutTarget { at, about, key, part, tokens } = target;
        let result_text = trim::text(part, body);
        let trim = TrimRange::new(&result_text, tokens, stay)?;
        let trimmed_text = trim.apply(&result_text, part.kind)?;
        let trimmed_tokens = u64::from(counter.stands_for(part, &trimmed_text));
        Some(Self {
            at,
            about,
            key,
            part,
            tokens,
            content: Replacement::Trim(trim),
            after: trimmed_tokens,
            saves: tokens.saturating_sub(trimmed_tokens),
        })
    }

    fn cut(&self, request: &PlanRequest<'_>, why: DecisionReason) -> Fact {
        Fact::Cut(Box::new(Cut {
            epoch: None,
            about: PartKey(self.about),
            part: if self.key.0 == self.about { None } else { Some(self.key) },
            at: request.now,
            exchange: request.exchange.clone(),
            content: self.content.clone(),
            keep_media: why == DecisionReason::TooLarge || request.policy.prune.keep_media,
            was: u32::try_from(self.tokens).unwrap_or(u32::MAX),
            tokens: u32::try_from(self.after).unwrap_or(u32::MAX),
            why,
            shadow: request.is_shadow(),
        }))
    }
}

/// The tokens of parts: as billed, and in the count that decides.
struct PartWeights<'a> {
    own: HashMap<PartKey, u32>,
    rules: Option<&'a ClassicRules>,
    body: &'a [u8],
}

impl<'a> PartWeights<'a> {
    fn new(request: &PlanRequest<'a>, cost: RequestCost<'a>) -> Self {
        Self {
            own: cost.parts.iter().map(|part| (part.key, part.tokens)).collect(),
            rules: cost.rules,
            body: request.body,
        }
    }

    fn own(&self, part: &Part) -> u64 {
        part.key.map_or(0, |key| u64::from(self.own.get(&key).copied().unwrap_or(0)))
    }

    /// What a request of this many tokens has beside the results and texts of its history: system prompt, tools, and
    /// what stands in place of earlier messages.
    fn head(&self, conversation: &Conversation, tokens: u64) -> u64 {
        tokens.saturating_sub(conversation.parts().map(|part| self.own(part)).sum())
    }

    fn within(&self, message: &Message, at: usize) -> u64 {
        let end = message.parts[at].span.end;
        // Parts of a result follow it in the list; those beside it begin after its end.
        let inner = message.parts[at + 1..].iter().take_while(|inner| inner.span.end <= end);
        inner.map(|inner| self.own(inner)).sum()
    }

    fn judged(&self, part: &Part, own: u64) -> u64 {
        self.rules.map_or(own, |rules| rules.part(self.body, part))
    }

    fn saved(&self, policy: &PrunePolicy, part: &Part, own: u64, text: &str) -> Option<u64> {
        if policy.protect_counts == ProtectUnit::Results {
            // The placeholder is not subtracted if policy counts results only.
            return Some(self.judged(part, own));
        }
        let rules = self.rules?;
        let stays = rules.stands_for(self.body, part, text);
        Some(rules.part(self.body, part).saturating_sub(stays))
    }
}

fn placeholder(policy: &PrunePolicy, tool: Option<&str>, tokens: u64, is_picture: bool) -> String {
    match is_picture {
        true => PICTURE_PLACEHOLDER.to_owned(),
        false => policy.placeholder_text(tool, tokens),
    }
}

fn may_go(policy: &PrunePolicy, tool: Option<&str>, part: &Part) -> bool {
    policy.covers(tool) && !(policy.keep_errors && part.is_error)
}

fn is_users_picture(message: &Message, at: usize) -> bool {
    let part = &message.parts[at];
    if part.kind != PartKind::Image || message.role != Role::User {
        return false;
    }
    // An image inside a tool result is cut with the result.
    let mut others = message.parts.iter().enumerate().filter(|(other, _)| *other != at);
    !others.any(|(_, other)| other.span.start <= part.span.start && part.span.end <= other.span.end)
}

/// The parts of the messages from `from` on, the newest first.
fn newest_first(
    messages: &[Message],
    from: usize,
) -> impl Iterator<Item = (PartIndex, &Message, &Part)> {
    let messages = messages.iter().enumerate().skip(from).rev();
    messages.flat_map(|(index, message)| {
        let parts = message.parts.iter().enumerate().rev();
        parts.map(move |(at, part)| (PartIndex::new(index, at), message, part))
    })
}

/// The newest messages that policy protects.
#[derive(Clone, Copy)]
struct ProtectedTail {
    /// The first of them.
    from: usize,
    /// The first that is protected however large it is.
    newest: usize,
    /// The most tokens that are protected.
    share: u64,
}

impl ProtectedTail {
    /// The tail of a request whose head has so many tokens.
    fn new(request: &PlanRequest<'_>, head: u64) -> Self {
        let policy = &request.policy.prune;
        let messages = &request.conversation.messages;
        // A window that is only a guess limits nothing.
        let room = request.fillable().saturating_sub(head);
        Self {
            from: first_protected(policy, messages),
            newest: messages.len().saturating_sub(NEWEST_MESSAGES),
            share: if request.model.known { policy.share_of(room) } else { u64::MAX },
        }
    }

    fn holds(self, message: usize, passed: u64) -> bool {
        message >= self.from && (passed <= self.share || message >= self.newest)
    }
}

fn first_protected(policy: &PrunePolicy, messages: &[Message]) -> usize {
    let newest = messages.len().saturating_sub(policy.protect_messages as usize);
    let Some(turns) = (policy.protect_turns as usize).checked_sub(1) else { return newest };
    let begun = (0..messages.len()).rev().filter(|at| is_users(&messages[*at])).nth(turns);
    newest.min(begun.unwrap_or(0))
}

fn counter<'a>(request: &PlanRequest<'a>) -> TokenCounter<'a> {
    request.tokenizer.counter(request.conversation, request.body, request.model)
}

fn has_only_text(part: &Part, body: &[u8], text: &str) -> bool {
    // The client has cut it with the same placeholder.
    let [result_text] = &part.texts[..] else { return false };
    // JSON escapes make a text at most six times as long.
    result_text.len() <= 6 * text.len() + 2 && text_at(*result_text, body) == text
}

fn names<'a>(request: &PlanRequest<'a>) -> HashMap<&'a str, &'a str> {
    // Most results have only the id of their call.
    let calls = request.conversation.parts().filter(|part| part.kind == PartKind::ToolCall);
    calls.filter_map(|call| Some((call.id.as_deref()?, call.name.as_deref()?))).collect()
}

fn is_summary(part: &Part) -> bool {
    // Whether a part is the provider's own summary: what comes before it is no longer read (`docs/protocols.md`
    // 1.3, 3.3).
    part.kind == PartKind::Opaque && part.name.as_deref() == Some("compaction")
}

#[cfg(test)]
mod tests;
