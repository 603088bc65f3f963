//! Reasoning: what a client dropped and the provider expects is put back; what policy excludes is removed.
//!
//! It is put back only as received, at its place, and only if model, upstream and forwarded prefix are those
//! that it was made with (`docs/rewriting.md` "Reasoning", `docs/protocols.md` 1.5, 3.5, 4.2, 5.4). What a
//! client sends itself is left as it is. Pure; proposes facts, which `plan` replays.

mod order;

pub use super::records::Signature;
pub(super) use super::signature::reasoning_key;
pub(crate) use super::signature::signature_key;
pub use order::{chosen, newest};

use std::ops::Range;

use super::cache::is_cold;
use super::plan::{
    Change, DecisionReason, ForwardedPrefix, Overlay, PlanRequest, PlanStep, Proposal,
    RecordedDecisions, ReturnedReply,
};
use super::policy::{ReasoningRule, ReinjectPolicy, StripPolicy};
use super::turn_start::holds;
use super::{
    Fact, ReasoningAction, ReasoningBlock, ReasoningDecision, ReasoningRecord, Turn, ledger,
};
use crate::dialect::{
    Chain, Dialect, Part, PartIndex, PartKey, PartKind, Purpose, ReplyPart, Span,
};

/// What an upstream does with reasoning that is sent back, judged by its host and the model's name
/// (`docs/protocols.md` 4.2). Configuration and lessons override it.
pub fn rule(dialect: Dialect, host: &str, model: &str) -> ReasoningRule {
    let model = model.to_ascii_lowercase();
    // Gateways put a vendor before the name.
    let name = model.rsplit('/').next().unwrap_or_default();
    let is_deepseek = host.contains("deepseek") || name.starts_with("deepseek");
    let is_kimi =
        host.contains("moonshot") || host.contains("kimi.com") || name.starts_with("kimi");
    let demands = is_deepseek && !model.contains("deepseek-r1") || is_kimi;
    // Clients were recorded that send it there.
    let reads =
        name.starts_with("gpt-oss") && (is_at(host, "cerebras.ai") || is_at(host, "ollama.com"));
    match dialect {
        Dialect::Anthropic if demands => ReasoningRule::Demanded,
        Dialect::Anthropic | Dialect::OpenaiResponses => ReasoningRule::Wanted,
        Dialect::Gemini if generation(&model).is_some_and(|number| number >= 3) => {
            ReasoningRule::Demanded
        }
        Dialect::Gemini => ReasoningRule::Wanted,
        Dialect::OpenaiChat if reads => ReasoningRule::Wanted,
        Dialect::OpenaiChat if refuses(host) => ReasoningRule::Unwanted,
        Dialect::OpenaiChat if demands => ReasoningRule::Demanded,
        Dialect::OpenaiChat if chat_wants(host, &model, name) => ReasoningRule::Wanted,
        Dialect::OpenaiChat => ReasoningRule::Unwanted,
    }
}

fn chat_wants(host: &str, model: &str, name: &str) -> bool {
    // Hosts and models that use reasoning in a message of Chat Completions, and work without it, too.
    let vendors = ["bigmodel", "dashscope", "minimax", "openrouter", "mistral"];
    let names = ["glm", "qwen", "qwq", "minimax", "magistral", "mistral"];
    is_at(host, "z.ai")
        || host == "ai-gateway.vercel.sh"
        || host.contains("databricks") && model.contains("claude")
        || model.contains("gemini")
        || vendors.iter().any(|vendor| host.contains(vendor))
        || names.iter().any(|begin| name.starts_with(begin))
}

fn refuses(host: &str) -> bool {
    // They refuse or ignore unknown members of a message, whatever the model.
    let strict = ["api.openai.com", "groq.com", "cerebras.ai", "githubcopilot.com", "x.ai"];
    strict.into_iter().any(|name| is_at(host, name))
}

fn is_at(host: &str, name: &str) -> bool {
    host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
}

fn generation(model: &str) -> Option<u32> {
    // `gemini-3-pro` and `gemini-2.5-flash`: the digits before the dot.
    let version = model.split_once("gemini-")?.1;
    let digits = version.bytes().take_while(u8::is_ascii_digit).count();
    version.get(..digits)?.parse().ok()
}

/// A run of adjacent texts with one key: the length so far, and the signed pieces.
#[derive(Default)]
struct SignedRun<'r> {
    bytes: usize,
    signed: Vec<(Range<usize>, &'r str)>,
}

impl<'r> SignedRun<'r> {
    fn add(&mut self, piece: &'r ReplyPart) {
        let begins = self.bytes;
        self.bytes += piece.text.len();
        if let Some(signature) = &piece.signature {
            self.signed.push((begins..self.bytes, signature));
        }
    }

    fn end(self, part: u32) -> impl Iterator<Item = Signature> {
        let bytes = self.bytes;
        self.signed.into_iter().map(move |(range, signature)| {
            // A signature of the whole text fits however the client splits it.
            let piece = if range.len() < bytes {
                Some((saturated(range.start), saturated(range.end)))
            } else {
                None
            };
            Signature { part, value: signature.into(), piece }
        })
    }
}

fn saturated(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The reasoning of the reply of `turn` in one of its forms, as it would have to be sent back; `None` if there is none.
/// `after`: the chain after that form.
pub fn record(
    form: &[ReplyPart],
    after: Chain,
    turn: &Turn,
    prefix: ForwardedPrefix,
) -> Option<ReasoningRecord> {
    let mut blocks = Vec::new();
    let mut signatures = Vec::new();
    let mut parts = Vec::new();
    let mut hosted = 0;
    let mut run = SignedRun::default();
    for part in form {
        let index = parts.len() as u32;
        match (&part.raw, &part.signature) {
            // Gemini's thought summaries need not be sent back; their signatures must (`docs/protocols.md`
            // 5.4).
            (Some(raw), signature)
                if part.kind == PartKind::Reasoning
                    && (signature.is_some() || turn.dialect != Dialect::Gemini) =>
            {
                let raw = raw.clone();
                blocks.push(ReasoningBlock {
                    before: index,
                    hosted,
                    leads: false,
                    raw,
                    partial: false,
                });
            }
            // Incomplete reasoning. This dialect requires all of a reply's reasoning or none
            // (`docs/protocols.md` 1.5).
            (None, Some(signature))
                if part.kind == PartKind::Reasoning
                    && turn.dialect == Dialect::Anthropic
                    && !signature.is_empty() =>
            {
                let raw = serde_json::json!({ "signature": signature }).to_string().into();
                blocks.push(ReasoningBlock {
                    before: index,
                    hosted,
                    leads: false,
                    raw,
                    partial: true,
                });
            }
            (_, Some(signature)) if part.key.is_some() && part.kind != PartKind::Text => {
                signatures.push(Signature { part: index, value: signature.clone(), piece: None });
            }
            _ if part.kind == PartKind::Text => run.add(part),
            _ => {}
        }
        if part.key.is_some() {
            signatures.extend(std::mem::take(&mut run).end(index));
        }
        hosted = match part.key {
            Some(_) => 0,
            None if part.kind == PartKind::Reasoning || part.kind == PartKind::Text => hosted,
            None => {
                // It ran at the provider: the blocks since the last one led to it.
                for block in &mut blocks {
                    block.leads |= block.before == index && block.hosted == hosted;
                }
                hosted + 1
            }
        };
        parts.extend(part.key);
    }
    if blocks.is_empty() && signatures.is_empty() {
        return None;
    }
    Some(ReasoningRecord {
        after,
        at: turn.ended,
        prefix: prefix.chain,
        order: prefix.thought,
        model: turn.model.clone(),
        upstream: turn.upstream.clone(),
        blocks,
        signatures,
        parts,
        anchor_keys: ledger::anchor_keys_of(form),
    })
}

/// Whether recorded reasoning may be put back in this request, of which `sent` is forwarded.
///
/// # Errors
/// The reason why not.
pub fn fits(
    request: &PlanRequest<'_>,
    sent: &Overlay,
    returned: &ReturnedReply,
) -> Result<(), DecisionReason> {
    let reasoning = &returned.reasoning;
    if *reasoning.model != *request.name {
        return Err(DecisionReason::OtherModel);
    }
    if *reasoning.upstream != *request.upstream {
        return Err(DecisionReason::OtherUpstream);
    }
    if request.reasoning_rule == ReasoningRule::Unwanted
        || request.conversation.thinks == Some(false)
    {
        return Err(DecisionReason::Unwanted);
    }
    if request.is_bound()
        && !(returned.has_prefix() && sent.before(returned.index) == reasoning.prefix)
    {
        return Err(DecisionReason::OtherPrefix);
    }
    Ok(())
}

/// Whether a reply's reasoning was decided to be put back, and still may be.
pub(crate) fn is_back(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    sent: &Overlay,
    returned: &ReturnedReply,
) -> bool {
    let decision = known.reasoning_decision(returned.reasoning.after.0);
    decision.is_some_and(|decision| decision.does == ReasoningAction::PutBack)
        && fits(request, sent, returned).is_ok()
}

fn is_kept_out(request: &PlanRequest<'_>) -> bool {
    // The provider refuses requests without it: then policy gives way.
    request.policy.reasoning.strip() != StripPolicy::None
        && request.reasoning_rule != ReasoningRule::Demanded
}

/// New decisions about reasoning, and those that were decided against.
pub fn propose(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Proposal {
    let has_replies = !known.replies.is_empty();
    let overlay = if has_replies { known.sent() } else { Overlay::default() };
    let mut proposed = ReasoningProposal {
        request,
        known,
        sent: overlay,
        facts: Vec::new(),
        declined: Vec::new(),
    };
    // A call beside the conversation decides nothing that its thread would depend on.
    let is_beside = request.conversation.purpose != Purpose::Turn;
    if is_beside {
        return Proposal::default();
    }
    proposed.take_out_void();
    if known.is_suspended && !is_cold(request, known) {
        return Proposal { facts: proposed.facts, ..Proposal::default() };
    }
    if request.policy.reasoning.strip() != StripPolicy::None {
        proposed.take_out();
    }
    if request.policy.reasoning.reinject == ReinjectPolicy::Auto {
        proposed.put_back();
        proposed.stand_in();
    }
    Proposal { facts: proposed.facts, declined: proposed.declined }
}

struct ReasoningProposal<'a> {
    request: &'a PlanRequest<'a>,
    known: &'a RecordedDecisions,
    /// What is forwarded according to the recorded decisions.
    sent: Overlay,
    facts: Vec<Fact>,
    declined: Vec<PlanStep>,
}

impl ReasoningProposal<'_> {
    fn put_back(&mut self) {
        let request = self.request;
        let decisions = self.known;
        let mut reasons: Vec<Option<Result<DecisionReason, DecisionReason>>> = Vec::new();
        for returned in &decisions.replies {
            // The newest reply is sent with all of its reasoning or with none.
            let is_open = decisions.reasoning_decision(returned.reasoning.after.0).is_none()
                && !returned.parts.is_empty()
                && !returned.is_partial()
                && !returned.missing(request).is_nothing();
            reasons.push(if is_open {
                Some(reason(request, decisions, &self.sent, returned))
            } else {
                None
            });
        }
        let chosen = chosen(request, decisions, |returned| {
            match reasons.get(returned.number).copied().flatten() {
                Some(reason) => reason.is_ok(),
                None => is_back(request, decisions, &self.sent, returned),
            }
        });
        for ((returned, reason), chosen) in decisions.replies.iter().zip(&reasons).zip(chosen) {
            match reason {
                Some(Ok(why)) if chosen => {
                    self.decide(returned.reasoning.after.0, ReasoningAction::PutBack, *why);
                }
                Some(Ok(_)) => {
                    self.decline(Change::PutBack, DecisionReason::OtherPrefix, returned.start());
                }
                Some(Err(why)) => self.decline(Change::PutBack, *why, returned.start()),
                None => {}
            }
        }
    }

    fn stand_in(&mut self) {
        let request = self.request;
        let decisions = self.known;
        if request.reasoning_rule != ReasoningRule::Demanded
            || request.conversation.thinks == Some(false)
        {
            return;
        }
        let begins = request.newest_user_message();
        let messages = request.conversation.messages.iter().enumerate();
        for (index, message) in messages.skip(decisions.kept_from()) {
            if !request.is_models(index) {
                continue;
            }
            let call = message.parts.iter().position(|part| part.kind == PartKind::ToolCall);
            let Some(part) = call else { continue };
            let place = PartIndex::new(index, part);
            // DeepSeek and Kimi want one in each message with calls (`docs/protocols.md` 4.2), Gemini
            // on the first call of each step of the current turn (5.4).
            let raw = match request.conversation.dialect {
                Dialect::Gemini if index < begins || message.parts[part].signature.is_some() => {
                    continue;
                }
                Dialect::Gemini => SKIP,
                Dialect::OpenaiChat => {
                    if holds(message, PartKind::Reasoning) {
                        continue;
                    }
                    blank(request.name)
                }
                Dialect::Anthropic | Dialect::OpenaiResponses => return,
            };
            // Its own reasoning is better than a stand-in.
            let reply = decisions.replies.iter().find(|returned| returned.holds(place));
            let is_covered = reply.is_some_and(|returned| {
                let about = returned.reasoning.after.0;
                self.facts.iter().any(|fact| is_about(fact, about))
                    || decisions.reasoning_decision(about).is_some()
                        && fits(request, &self.sent, returned).is_ok()
            });
            if let Some(about) = decisions.about(place)
                && !is_covered
                && decisions.reasoning_decision(about).is_none()
            {
                self.decide(about, ReasoningAction::StandIn(raw.into()), DecisionReason::Demanded);
            }
        }
    }

    /// Removes reasoning that the client sends again after a summary made it void, or a cut whose loss policy
    /// accepts: as was done when that was first used (`docs/protocols.md` 1.5).
    fn take_out_void(&mut self) {
        let request = self.request;
        let decisions = self.known;
        let loses = decisions.compact().is_some() || request.accepts_reasoning_loss();
        if !loses || !request.is_bound() {
            return;
        }
        // Before it, what differs was changed by the client itself.
        let Some(first) = decisions.first_change() else { return };
        for returned in decisions.replies.iter().filter(|returned| returned.index > first) {
            let prefix = self.sent.before(returned.index);
            for at in returned.places(request.conversation) {
                let maker = decisions.maker_at(at, returned);
                // Another model's is not read, and may be demanded.
                if let Some(about) = request.part(at).and_then(Part::removal_key)
                    && decisions.reasoning_decision(about).is_none()
                    && *maker.model == *request.name
                    && maker.prefix != prefix
                {
                    self.decide(about, ReasoningAction::Remove, DecisionReason::Bound);
                }
            }
        }
    }

    fn take_out(&mut self) {
        let request = self.request;
        let decisions = self.known;
        let conversation = request.conversation;
        let newest =
            conversation.messages.iter().rposition(|message| holds(message, PartKind::Reasoning));
        let begins = request.newest_user_message();
        for (index, message) in conversation.messages.iter().enumerate().skip(decisions.kept_from())
        {
            for (part_at, part) in message.parts.iter().enumerate() {
                let Some(about) = part.removal_key() else { continue };
                let stays = request.policy.reasoning.strip() == StripPolicy::AllButLast
                    && newest == Some(index);
                // `take_out_void` may have decided about it already.
                let is_decided = self.facts.iter().any(|fact| is_about(fact, about));
                let is_fixed = !is_removable(conversation.dialect, part);
                if stays || is_fixed || is_decided || decisions.reasoning_decision(about).is_some()
                {
                    continue;
                }
                match may_leave(request, index, begins) {
                    Ok(()) => self.decide(about, ReasoningAction::Remove, DecisionReason::Stripped),
                    Err(why) => self.decline(Change::Removed, why, PartIndex::new(index, part_at)),
                }
            }
        }
    }

    fn decide(&mut self, about: u128, does: ReasoningAction, why: DecisionReason) {
        self.facts.push(decision(self.request, about, does, why));
    }

    fn decline(&mut self, change: Change, why: DecisionReason, at: PartIndex) {
        let span = self.request.part(at).map_or(Span::new(0, 0), |part| part.span);
        self.declined.push(PlanStep::declined(change, why, at, span, 0));
    }
}

pub(super) fn take_out(request: &PlanRequest<'_>, about: u128, why: DecisionReason) -> Fact {
    decision(request, about, ReasoningAction::Remove, why)
}

/// The decisions to remove the client's reasoning from this message on: it is bound to what changes there, and would
/// be refused (`docs/protocols.md` 1.5).
pub(super) fn take_out_from(request: &PlanRequest<'_>, first: usize) -> Vec<Fact> {
    let parts = request.conversation.messages.iter().skip(first).flat_map(|message| &message.parts);
    let keys = parts.filter_map(Part::removal_key);
    keys.map(|about| take_out(request, about, DecisionReason::Bound)).collect()
}

fn decision(
    request: &PlanRequest<'_>,
    about: u128,
    does: ReasoningAction,
    why: DecisionReason,
) -> Fact {
    Fact::ReasoningDecision(Box::new(ReasoningDecision {
        epoch: None,
        about: PartKey(about),
        at: request.now,
        exchange: request.exchange.clone(),
        does,
        why,
        shadow: request.is_shadow(),
    }))
}

fn is_about(fact: &Fact, about: u128) -> bool {
    matches!(fact, Fact::ReasoningDecision(decision) if decision.about.0 == about)
}

/// Why dropped reasoning is put back now, or why it is not.
fn reason(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    sent: &Overlay,
    returned: &ReturnedReply,
) -> Result<DecisionReason, DecisionReason> {
    fits(request, sent, returned)?;
    // Beside an edited text the place of a block is not certain; a field of the message has no other place.
    let has_blocks = request.conversation.dialect != Dialect::OpenaiChat
        && !returned.reasoning.blocks.is_empty();
    if has_blocks && returned.is_edited(request.conversation) {
        return Err(DecisionReason::OtherPrefix);
    }
    if is_kept_out(request) {
        return Err(DecisionReason::Policy);
    }
    let start = returned.parts.iter().flatten().next();
    let is_in_turn = start.is_some_and(|at| at.message >= request.newest_user_message());
    let is_newest =
        known.parent.as_ref().is_some_and(|parent| parent.after == returned.reasoning.after);
    // If it was sent one turn ago and is dropped now, cache and later reasoning depend on it.
    if is_newest || known.was_sent(returned) {
        Ok(DecisionReason::Birth)
    } else if request.reasoning_rule == ReasoningRule::Demanded {
        Ok(DecisionReason::Demanded)
    } else if is_in_turn && request.is_in_loop() {
        Ok(DecisionReason::OpenLoop)
    } else if is_cold(request, known) {
        Ok(DecisionReason::ColdCache)
    } else {
        // The requests since were cached without it.
        Err(DecisionReason::TooLate)
    }
}

/// Whether a part is reasoning that can be removed. Of Gemini's, what has a signature stays with it.
pub(super) fn is_removable(dialect: Dialect, part: &Part) -> bool {
    let is_signed = dialect == Dialect::Gemini && part.signature.is_some();
    part.kind == PartKind::Reasoning && !is_signed
}

/// Whether a client's reasoning in a message may be removed.
fn may_leave(
    request: &PlanRequest<'_>,
    message: usize,
    turn_begins: usize,
) -> Result<(), DecisionReason> {
    if request.conversation.held.is_some() {
        return Err(DecisionReason::Held);
    }
    // Only signatures are demanded, not the thoughts that are shown (`docs/protocols.md` 5.4).
    if request.conversation.dialect == Dialect::Gemini {
        return Ok(());
    }
    if request.reasoning_rule == ReasoningRule::Demanded {
        return Err(DecisionReason::Demanded);
    }
    // A provider of Chat Completions that does not want reasoning does not miss it in a loop either.
    let needs_loop = request.conversation.dialect != Dialect::OpenaiChat
        || request.reasoning_rule == ReasoningRule::Wanted;
    if needs_loop && message >= turn_begins {
        return Err(DecisionReason::OpenLoop);
    }
    // Between others that are bound to their order, none can be missing (`docs/protocols.md` 1.5).
    if request.is_bound() && request.conversation.dialect == Dialect::Anthropic {
        return Err(DecisionReason::Bound);
    }
    Ok(())
}

/// What follows the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// The results of its calls.
    InLoop,
    /// A message of the user, which begins a turn.
    NewTurn,
}

/// Whether the reasoning of a reply may be removed from the next request.
pub(super) fn may_go_next(request: &PlanRequest<'_>, next: NextRequest) -> bool {
    let turn_begins = match next {
        NextRequest::InLoop => 0,
        NextRequest::NewTurn => 1,
    };
    may_leave(request, 0, turn_begins).is_ok()
}

/// Whether it is put back in the next request if the client drops it.
pub(super) fn is_put_back_next(request: &PlanRequest<'_>) -> bool {
    // As `fits` and `propose` will judge it.
    let is_wanted = request.reasoning_rule != ReasoningRule::Unwanted
        && request.conversation.thinks != Some(false);
    let reinjects = request.policy.reasoning.reinject == ReinjectPolicy::Auto;
    reinjects && is_wanted && !is_kept_out(request)
}

/// What Gemini accepts in place of a call's lost signature (`docs/protocols.md` 5.4).
const SKIP: &str = "skip_thought_signature_validator";

fn blank(model: &str) -> &'static str {
    // DeepSeek requires the field, Kimi a character in it (`docs/protocols.md` 4.2).
    if model.to_ascii_lowercase().contains("kimi") {
        r#"{"reasoning_content":" "}"#
    } else {
        r#"{"reasoning_content":""}"#
    }
}

#[cfg(test)]
mod tests;
