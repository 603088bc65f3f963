//! The plan: which recorded decisions apply to a request, and the edits they make of it
//! (`docs/architecture.md` "The way of a request").
//!
//! Edits come from facts alone (invariant 3): what is new is proposed as a fact (`prune`,
//! `reasoning`), saved, and then replayed like an old one, so that the same facts and request always
//! give the same bytes (invariant 4). Pure; must not know where facts are kept.

mod overlay;
mod recorded;
mod report;

pub use overlay::Overlay;
pub(in crate::context) use recorded::again;
pub use recorded::{RecordedDecisions, ReturnedReply};
pub(in crate::context) use report::is_default;
pub use report::{ChangeCounts, MOST_TOLD, RewriteSummary};

use serde::{Deserialize, Serialize};

use super::policy::{EchoRule, Mode, Policy, SummaryAuthor};
use super::{Millis, ReasoningAction};
use crate::dialect::models::{Binding, Model};
use crate::dialect::rewrite::{self, Block};
use crate::dialect::{Chain, Conversation, Dialect, Part, PartKey, PartKind, Role, Span};
use crate::tokens::Tokenizer;
use crate::wire::splice::{self, Edit};

/// A request that is planned for, and the policy it stands under.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// Its exchange.
    pub id: &'a str,
    /// What it says.
    pub conversation: &'a Conversation,
    /// What it was read from.
    pub body: &'a [u8],
    /// The model it asks for.
    pub model: &'a Model,
    /// The model, as the client named it.
    pub name: &'a str,
    /// The configured upstream's name.
    pub upstream: &'a str,
    /// What the upstream does with reasoning that is sent back.
    pub echo: EchoRule,
    /// What may be changed.
    pub policy: &'a Policy,
    /// How far we may go.
    pub mode: Mode,
    /// The provider is asked to clear old results in our place, past so many input tokens.
    pub clears_past: Option<u64>,
    /// Counts what is put in.
    pub tokenizer: Tokenizer,
    /// Output tokens held free.
    pub reserve: u64,
    /// The time.
    pub now: Millis,
}

impl PlanRequest<'_> {
    /// Whether the model binds reasoning to the prefix it was made from (`docs/architecture.md` "When a
    /// rewrite is allowed").
    pub fn is_bound(&self) -> bool {
        let signs =
            matches!(self.conversation.dialect, Dialect::Anthropic | Dialect::OpenaiResponses);
        signs && self.model.binding == Binding::Prefix
    }

    /// Tokens that may be filled: the window less what is held free.
    pub fn usable(&self) -> u64 {
        self.model.window.saturating_sub(self.reserve)
    }

    /// Whether what is decided is decided for shadow mode alone.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    /// Whether a message is the model's.
    pub fn is_models(&self, message: usize) -> bool {
        self.conversation.messages.get(message).is_some_and(|it| it.role == Role::Assistant)
    }

    /// The part at a place of the history.
    pub fn part(&self, (message, part): (usize, usize)) -> Option<&Part> {
        self.conversation.messages.get(message)?.parts.get(part)
    }

    /// The message with which the turn begins that is not finished yet: the newest words of the
    /// person. Reasoning after it belongs to the open tool loop.
    pub fn turn_begins(&self) -> usize {
        self.conversation.messages.iter().rposition(super::budget::is_persons).unwrap_or(0)
    }

    /// Whether the model is in the middle of a tool loop: its last words are calls that are being
    /// answered. Pictures come with results as well as with words.
    pub fn is_in_loop(&self) -> bool {
        let beside = [PartKind::Reasoning, PartKind::Image, PartKind::Document];
        let said = |part: &&Part| !beside.contains(&part.kind) && part.key.is_some();
        let last = self.conversation.parts().rev().find(said);
        last.is_some_and(|part| matches!(part.kind, PartKind::ToolResult | PartKind::ToolCall))
    }
}

/// Why something was decided, or was not; a metric label. [`DecisionReason::rule`] says it in words, and
/// where it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The window fills.
    Pressure,
    /// The provider's cache is cold, or holds nothing (`docs/protocols.md` 7.4).
    ColdCache,
    /// The saving pays for the broken cache in time (`docs/protocols.md` 7.4).
    PaysBack,
    /// Policy cuts whenever there is enough.
    Always,
    /// One result was too large when it was first seen.
    TooLarge,
    /// Somebody queued it.
    Queued,
    /// The provider refused the request: it does not fit the window.
    Overflow,
    /// First seen: nothing rests on its absence yet.
    Birth,
    /// The provider answers 400 without it (`docs/protocols.md` 4.2, 5.4).
    Demanded,
    /// The tool loop it belongs to is open (`docs/protocols.md` 1.2, 1.5).
    OpenLoop,
    /// Policy leaves reasoning out of the context.
    Stripped,
    /// Refused: later reasoning is bound to what would change (`docs/protocols.md` 1.5).
    Bound,
    /// Refused: it was made from another prefix than the one that is sent now (`docs/protocols.md` 1.5).
    OtherPrefix,
    /// Refused: another model made it (`docs/protocols.md` 1.5).
    OtherModel,
    /// Refused: another upstream made it.
    OtherUpstream,
    /// Refused: the provider does not want it (`docs/protocols.md` 4.2).
    Unwanted,
    /// Refused: it was sent without it before, and the cache rests on that.
    TooLate,
    /// Refused: policy forbids it.
    Policy,
    /// Refused: the provider cuts in our place, or nobody does.
    Provider,
    /// Refused: no gate of the policy is open.
    NoGate,
    /// Refused: too little would be saved.
    TooLittle,
    /// Refused: nobody knows how large the model's window is.
    UnknownWindow,
    /// Refused: it would not make room for several turns.
    LittleRoom,
    /// Refused: the broken cache would cost more than is saved.
    NoGain,
    /// Refused: the thread is set aside, because a rewrite of it was refused.
    Aside,
    /// Refused: the session is held out for comparison.
    HeldOut,
    /// Refused: the provider holds the history.
    Held,
    /// Refused: it is the client's own compaction, or a call beside the conversation.
    Purpose,
    /// Refused: the bytes do not allow it.
    Shape,
    /// Refused: the store did not keep it.
    NotKept,
    /// The context fills past the share at which policy compacts.
    Threshold,
    /// It would not fit the window otherwise.
    Window,
    /// Somebody asked for it.
    Asked,
    /// Refused: there is nothing that could be summarised.
    NothingToCut,
    /// Refused: shadow mode asks for no summary.
    Shadow,
    /// Refused: the summary is not written yet.
    NotReady,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A tool result's content gave way to words of ours.
    Cut,
    /// Reasoning was put back.
    PutBack,
    /// Something stands in for reasoning that is gone.
    StandIn,
    /// Reasoning was taken out.
    TakenOut,
    /// A summary took the place of the history's beginning.
    Compacted,
    /// Words were added that somebody queued.
    Said,
}

/// Whether a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Decided earlier, repeated now.
    Replayed,
    /// Decided for this request.
    New,
    /// Not made.
    Refused,
}

/// One change, made or refused, as it is explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// What.
    pub change: Change,
    /// Whether.
    pub decision: Decision,
    /// Why.
    pub why: DecisionReason,
    /// Message and part of the history.
    pub at: (u32, u32),
    /// First byte of what is changed, in the request as it came.
    pub byte: u64,
    /// Bytes there before.
    pub bytes_before: u64,
    /// Bytes there after.
    pub bytes_after: u64,
    /// Tokens before.
    pub tokens_before: u64,
    /// Tokens after.
    pub tokens_after: u64,
}

/// What recorded decisions make of a request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The changes of bytes; disjoint.
    pub edits: Vec<Edit>,
    /// What is sent, as far as it is not what came.
    pub sent: Overlay,
    /// The changes, one by one.
    pub steps: Vec<PlanStep>,
    /// The changes contradicted each other: none is made.
    pub conflict: bool,
    /// Who wrote the summary that is sent.
    pub summary: Option<SummaryAuthor>,
}

/// What a decision about a part is kept by: its key where the call's id is its own; else the whole
/// chain up to it, because a counted id, or none, says the same words again without meaning the same
/// place (Gemini, `call_0`).
pub fn about(key: PartKey, chain: Chain, has_own_id: bool) -> u128 {
    if has_own_id { key.0 } else { chain.0 }
}

/// What is forwarded where nothing is changed.
pub fn as_it_came(request: &PlanRequest<'_>) -> Overlay {
    let mut sent = RecordedDecisions::bare(request.conversation).sent();
    sent.thought = super::reasoning::newest(request, &sent);
    sent
}

/// Replays what is known: every recorded decision that applies, and nothing else.
pub fn replay(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Plan {
    if request.conversation.held.is_some() {
        return Plan { sent: as_it_came(request), ..Plan::default() };
    }
    let sent = known.sent().cleared_past(request.clears_past);
    let mut plan = Plan { sent, ..Plan::default() };
    compact(request, known, &mut plan);
    cuts(request, known, &mut plan);
    said(request, known, &mut plan);
    reasoning(request, known, &mut plan);
    match splice::check(&plan.edits, request.body.len()) {
        Ok(()) if !plan.conflict => {
            plan.sent.thought = super::reasoning::newest(request, &plan.sent);
            plan
        }
        Ok(()) | Err(_) => {
            let sent = as_it_came(request).cleared_past(request.clears_past);
            Plan { sent, conflict: true, ..Plan::default() }
        }
    }
}

fn compact(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let Some((cut, compact)) = known.compact() else { return };
    let conversation = request.conversation;
    let edits = rewrite::compact(conversation, request.body, cut, &compact.raw);
    let Some((edits, first)) =
        edits.and_then(|edits| Some((edits.clone(), edits.into_iter().next()?)))
    else {
        // What rests on it cannot be sent either.
        plan.conflict = true;
        return;
    };
    plan.sent.begins_with((compact.key(), compact.tokens), &conversation.messages[..cut]);
    plan.steps.push(PlanStep {
        change: Change::Compacted,
        decision: known.decision(compact.address().0, &compact.request, request.id),
        why: compact.why,
        at: (0, 0),
        byte: first.at.start as u64,
        bytes_before: edits.iter().map(|edit| edit.at.len() as u64).sum(),
        bytes_after: edits.iter().map(|edit| edit.with.len() as u64).sum(),
        tokens_before: compact.was,
        tokens_after: u64::from(compact.tokens),
    });
    plan.summary = Some(compact.by);
    plan.edits.extend(edits);
}

fn cuts(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, key, cut) in known.cuts_here() {
        let was = known.tokens_before(at, cut);
        let Some(part) = request.part(at) else { continue };
        let words = cut.content.words(part, request.body);
        let edits = words.map_or_else(Vec::new, |words| {
            let change = rewrite::Cut { text: &words, keep_media: cut.keep_media };
            rewrite::cut(request.conversation, request.body, at, &change)
        });
        if edits.is_empty() {
            // The fact rests on bytes that are not there.
            let tokens = u64::from(cut.was);
            plan.steps.push(PlanStep::refused(
                Change::Cut,
                DecisionReason::Shape,
                at,
                part.span,
                tokens,
            ));
            continue;
        }
        plan.sent.replace(part.span, key, cut.tokens);
        if !cut.keep_media {
            let message = &request.conversation.messages[at.0];
            let inner = message.parts[at.1 + 1..].iter();
            let inner = inner.take_while(|inner| inner.span.end <= part.span.end);
            inner.for_each(|inner| plan.sent.remove(inner.span));
        }
        let before = edits.iter().map(|edit| edit.at.len() as u64).sum();
        plan.steps.push(PlanStep {
            change: Change::Cut,
            decision: known.decision(cut.about.0, &cut.request, request.id),
            why: cut.why,
            at: (at.0 as u32, at.1 as u32),
            byte: edits.first().map_or(0, |edit| edit.at.start as u64),
            bytes_before: before,
            bytes_after: edits.iter().map(|edit| edit.with.len() as u64).sum(),
            tokens_before: was,
            tokens_after: u64::from(cut.tokens),
        });
        plan.edits.extend(edits);
    }
}

/// Words that somebody outside said, where they stand.
fn said(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, said) in known.said_here() {
        let Some(part) = request.part(at) else { continue };
        let taken: Vec<_> =
            said.iter().filter_map(|said| Some((said.key(), said.taken()?))).collect();
        let texts: Vec<&str> = taken.iter().map(|(_, taken)| &*taken.text).collect();
        let edits = rewrite::say(request.conversation, request.body, at, &texts);
        for (key, taken) in taken {
            let tokens = u64::from(taken.tokens);
            let refused =
                PlanStep::refused(Change::Said, DecisionReason::Shape, at, part.span, tokens);
            if edits.is_empty() {
                plan.steps.push(refused);
                continue;
            }
            plan.sent.say(part.span, key, taken.tokens);
            plan.steps.push(PlanStep {
                decision: known.decision(key.0, &taken.request, request.id),
                why: DecisionReason::Queued,
                byte: part.span.end as u64,
                bytes_before: 0,
                bytes_after: taken.text.len() as u64,
                tokens_before: 0,
                tokens_after: tokens,
                ..refused
            });
        }
        plan.edits.extend(edits);
    }
}

fn reasoning(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let sent = &plan.sent;
    let is_back =
        |returned: &ReturnedReply| super::reasoning::is_back(request, known, sent, returned);
    let chosen = super::reasoning::chosen(request, known, is_back);
    for (returned, chosen) in known.replies.iter().zip(chosen) {
        if let Some(echo) = known.echo(returned.reasoning.after.0).filter(|_| chosen) {
            put_back(request, known, returned, echo, plan);
        }
    }
    // Another model than the one that demanded something may refuse it. To the same it goes again, whatever is
    // known by now of what it demands.
    let is_demanded = request.echo == EchoRule::Demanded;
    for (at, echo) in
        known.stand_ins().filter(|(_, echo)| is_demanded || known.is_of_its_model(echo))
    {
        let ReasoningAction::StandIn(raw) = &echo.does else { continue };
        let edits = stand_in(request, at, raw);
        let step = step_of(request, known, Change::StandIn, at, echo, &edits);
        if !edits.is_empty() {
            plan.steps.push(step);
            plan.edits.extend(edits);
        }
    }
    take_out(request, known, plan);
}

/// A signature on the part itself (Gemini), or a field of its message.
fn stand_in(request: &PlanRequest<'_>, at: (usize, usize), raw: &str) -> Vec<Edit> {
    let conversation = request.conversation;
    match conversation.dialect {
        Dialect::Gemini => rewrite::seal(conversation, request.body, at, raw).into_iter().collect(),
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            let block = Block { before: at.1, raw };
            rewrite::put_back(conversation, request.body, at.0, &[block])
        }
    }
}

/// Reasoning that is missing, message by message, and signatures, part by part.
fn put_back(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    returned: &ReturnedReply,
    echo: &super::ReasoningDecision,
    plan: &mut Plan,
) {
    let conversation = request.conversation;
    let missing = returned.missing(request);
    let mut blocks: Vec<(usize, Block<'_>)> = Vec::new();
    for thought in &missing.blocks {
        let Some((message, part)) = returned.place(conversation, thought) else { continue };
        blocks.push((message, Block { before: part, raw: &thought.raw }));
    }
    let mut rest = &blocks[..];
    while let Some((message, _)) = rest.first() {
        let run = rest.iter().take_while(|(other, _)| other == message).count();
        let group: Vec<Block<'_>> = rest[..run].iter().map(|(_, block)| *block).collect();
        let edits = rewrite::put_back(conversation, request.body, *message, &group);
        let at = (*message, group[0].before);
        plan.steps.push(step_of(request, known, Change::PutBack, at, echo, &edits));
        if !edits.is_empty() {
            for block in &group {
                let seal = super::reasoning::seal(block.raw);
                let key = seal.unwrap_or_else(|| PartKey::of_bytes(block.raw.as_bytes()));
                plan.sent.put_back(conversation, (*message, block.before), key);
            }
        }
        plan.edits.extend(edits);
        rest = &rest[run..];
    }
    for &(at, seal) in &missing.seals {
        let Some(edit) = rewrite::seal(conversation, request.body, at, seal) else { continue };
        plan.sent.put_back(conversation, at, PartKey::of_bytes(seal.as_bytes()));
        let edits = vec![edit];
        plan.steps.push(step_of(request, known, Change::PutBack, at, echo, &edits));
        plan.edits.extend(edits);
    }
}

fn take_out(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    if !known.takes_out() {
        return;
    }
    let messages = request.conversation.messages.iter().enumerate();
    for (index, message) in messages.skip(known.kept_from()) {
        let is_out = |part: &Part| {
            let about = super::reasoning::identity(part, request.body);
            about
                .and_then(|about| known.echo(about))
                .filter(|echo| echo.does == ReasoningAction::Out)
        };
        let out: Vec<(usize, &super::ReasoningDecision)> = message
            .parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.kind == PartKind::Reasoning)
            .filter_map(|(at, part)| Some((at, is_out(part)?)))
            .collect();
        let Some((first, echo)) = out.first().copied() else { continue };
        let parts: Vec<usize> = out.iter().map(|(at, _)| *at).collect();
        let taken = rewrite::take_out(request.conversation, request.body, index, &parts);
        // Of a message that goes whole, nothing else can change.
        let within =
            |other: &Edit| message.span.start < other.at.end && other.at.start < message.span.end;
        let is_changed = || plan.edits.iter().any(within);
        let goes_whole = |edits: &[Edit]| edits.iter().any(|it| it.at.len() >= message.span.len());
        let Some(edits) = taken.filter(|edits| !(goes_whole(edits) && is_changed())) else {
            continue;
        };
        parts.iter().for_each(|part| plan.sent.remove(message.parts[*part].span));
        let at = (index, first);
        plan.steps.push(step_of(request, known, Change::TakenOut, at, echo, &edits));
        plan.edits.extend(edits);
    }
}

/// A change as its edits make it; without any, the bytes did not allow it.
fn step_of(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    change: Change,
    at: (usize, usize),
    echo: &super::ReasoningDecision,
    edits: &[Edit],
) -> PlanStep {
    let Some(first) = edits.first() else {
        let span = request.part(at).map_or(Span::new(0, 0), |part| part.span);
        return PlanStep::refused(change, DecisionReason::Shape, at, span, 0);
    };
    PlanStep {
        change,
        decision: known.decision(echo.about.0, &echo.request, request.id),
        why: echo.why,
        at: (at.0 as u32, at.1 as u32),
        byte: first.at.start as u64,
        bytes_before: edits.iter().map(|edit| edit.at.len() as u64).sum(),
        bytes_after: edits.iter().map(|edit| edit.with.len() as u64).sum(),
        tokens_before: 0,
        tokens_after: 0,
    }
}

impl PlanStep {
    /// A change that is not made.
    pub fn refused(
        change: Change,
        why: DecisionReason,
        at: (usize, usize),
        span: Span,
        tokens: u64,
    ) -> Self {
        Self {
            change,
            decision: Decision::Refused,
            why,
            at: (at.0 as u32, at.1 as u32),
            byte: span.start as u64,
            bytes_before: span.len() as u64,
            bytes_after: span.len() as u64,
            tokens_before: tokens,
            tokens_after: tokens,
        }
    }
}
