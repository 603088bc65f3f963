//! Decisions about compaction: when a context is too full, where its history is cut, what replaces it, and
//! whether that is worth it (`docs/rewriting.md` "Compaction").
//!
//! A summary is written first, and used later by the request that crosses the threshold: two facts. Pure:
//! nothing here asks for a summary. What is done when is in `compact/schedule.rs`, the exact rules of known agents
//! in `compact/agents.rs`, the messages for a summary in `compact/layout.rs`, clients that compact by themselves in
//! `compact/clients.rs`.

pub mod agents;
mod clients;
mod layout;
mod loaded;
mod loops;
mod quotes;
pub mod report;
pub mod schedule;
mod worth;

pub use agents::is_worth_it;
pub use clients::{compacts_by_itself, is_left_to_client};
pub use layout::{SummaryDraft, SummaryMessage, lay_out};
pub use quotes::{most_quoted, user_texts};
pub use worth::{SummarySizes, is_accepted, is_worth_writing};

use foldhash::{HashMap, HashSet};

use super::plan::{DecisionReason, PlanRequest, RecordedDecisions};
use super::policy::{Mode, SummaryAuthor, SummaryEngine, ThresholdBasis};
use super::turn_start::{holds, is_users};
use super::{CompactionRecord, Fact, SketchPart, reasoning, trim};
use crate::dialect::models::Family;
use crate::dialect::summary::provider;
use crate::dialect::{Chain, Dialect, Message, Part, PartIndex, PartKey, PartKind, Role, rewrite};
use crate::wire::splice::Edit;

/// How urgently a request needs a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompactionNeed {
    /// Not yet.
    No,
    /// It should be written.
    Prepare,
    /// It should be used, if it is written.
    Swap,
    /// The request does not fit without it.
    Must,
}

/// Whether a request can be compacted at all: it contains its history, and is not a call beside the
/// conversation.
pub fn is_compactable(request: &PlanRequest<'_>) -> bool {
    request.conversation.is_whole_turn()
}

fn policy_allows(request: &PlanRequest<'_>) -> bool {
    request.policy.compact.engine != SummaryEngine::Off && is_compactable(request)
}

/// How urgently a request of this many tokens needs a summary. If a rewrite of the branch was refused, only a request
/// that does not fit otherwise is compacted; if the client compacts by itself, only one that its provider refused.
pub fn need_at(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    tokens: u64,
) -> CompactionNeed {
    let policy = &request.policy.compact;
    let fillable = request.fillable();
    match tokens {
        _ if !policy_allows(request) || !request.model.known || fillable == 0 => CompactionNeed::No,
        // A client that compacts by itself is only helped when its provider refuses.
        _ if is_left_to_client(request, known.client_compacted) => CompactionNeed::No,
        tokens if tokens > fillable && policy.watches == ThresholdBasis::Estimate => {
            CompactionNeed::Must
        }
        // After a refused rewrite, only what does not fit otherwise is compacted.
        _ if known.is_suspended => CompactionNeed::No,
        _ if is_settled(request, known) => CompactionNeed::No,
        _ if reaches(request, known, tokens, policy.threshold(fillable)) => CompactionNeed::Swap,
        _ if reaches(request, known, tokens, policy.prepare_threshold(fillable)) => {
            CompactionNeed::Prepare
        }
        _ => CompactionNeed::No,
    }
}

/// Whether the context has reached a threshold, by the size that policy watches.
fn reaches(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    tokens: u64,
    threshold: u64,
) -> bool {
    match request.policy.compact.watches {
        // A request that still fits the window exactly is left alone.
        ThresholdBasis::Estimate => tokens >= threshold && threshold < request.fillable(),
        ThresholdBasis::LastCall => known
            .parent
            .as_ref()
            .and_then(|turn| agents::tokens_without_cache_writes(&turn.usage))
            .is_some_and(|tokens| tokens > threshold),
    }
}

fn highest_need(request: &PlanRequest<'_>) -> CompactionNeed {
    // A summary would make reasoning void that the provider requires in an open tool loop; it is then for the
    // next turn, and nothing waits for it.
    if request.needs_loop_reasoning() { CompactionNeed::Swap } else { CompactionNeed::Must }
}

fn is_settled(request: &PlanRequest<'_>, known: &RecordedDecisions) -> bool {
    let Some(((_, compact), last)) = known.compact().zip(known.parent.as_ref()) else {
        return false;
    };
    // A summary has replaced what that call read.
    let is_new = compact.exchange != last.exchange && compact.at >= last.ended;
    request.policy.compact.watches == ThresholdBasis::LastCall && is_new
}

pub(super) fn would_fit(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    tokens: u64,
) -> bool {
    request.model.known && would_leave(request, known, parts, tokens, request.fillable())
}

/// Whether a request of this many tokens would have no more than `most` once it is compacted, whatever its
/// window.
pub fn would_leave(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    tokens: u64,
    most: u64,
) -> bool {
    let is_allowed = policy_allows(request) && request.mode == Mode::Active;
    if !is_allowed || highest_need(request) < CompactionNeed::Must {
        return false;
    }
    let by = writers(request, SummaryFocus::OfPolicy).first();
    let choice = by.and_then(|by| Some((*by, choose(request, known, parts, tokens, *by)?)));
    choice.is_some_and(|(by, choice)| preview(request, by, &choice, tokens).after <= most)
}

/// Who says what a summary must dwell on. Not every provider takes that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryFocus {
    /// The policy, if it names anything.
    OfPolicy,
    /// An operator, for this summary.
    OfOperator,
}

/// Who can write a summary of a request, the first choice first. Empty if policy leaves it to a provider that
/// cannot.
pub fn writers(request: &PlanRequest<'_>, focus: SummaryFocus) -> &'static [SummaryAuthor] {
    let dialect = request.conversation.dialect;
    let instructed = focus == SummaryFocus::OfOperator || request.policy.compact.focus.is_some();
    let may = !request.compaction_refused
        && (!instructed || provider::takes_instructions(dialect))
        && provider::is_possible(dialect, request.body);
    let families: &[Family] = match dialect {
        Dialect::Anthropic => &[Family::Claude, Family::ClaudeNew],
        Dialect::OpenaiResponses => &[Family::O200k],
        Dialect::OpenaiChat | Dialect::Gemini => &[],
    };
    // A provider with a compatible API may ignore the unknown field and continue the task.
    let has = may && request.model.known && families.contains(&request.model.family);
    match request.policy.compact.engine {
        // Who names it gets it, whatever is known of the model.
        SummaryEngine::Provider if may => &[SummaryAuthor::Provider],
        SummaryEngine::Provider => &[],
        SummaryEngine::Auto if has => &[SummaryAuthor::Provider, SummaryAuthor::Summary],
        SummaryEngine::Auto | SummaryEngine::Summary | SummaryEngine::Off => {
            &[SummaryAuthor::Summary]
        }
    }
}

/// A place where a history can be cut.
#[derive(Clone, Debug, PartialEq)]
pub struct CutPoint {
    /// The first message that stays.
    pub cut: usize,
    /// The chain at the cut.
    pub about: Chain,
    /// The keyed parts before it, nearest first.
    pub near: Vec<PartKey>,
    /// Whether these parts are unlikely to occur elsewhere.
    pub is_own: bool,
    /// Tokens that are replaced, in the form in which they are sent now.
    pub was: u64,
}

/// A history that would lose less than this fraction (1/n) of its tokens is not worth a summary.
const LEAST_SHARE: u64 = 8;

/// Where a history is cut: before a message of the model or a user's text, so that calls stay with their
/// results and reasoning with what followed it. Of the places after which no more remains than policy keeps,
/// the first one at the start of a user's turn, else the first one; if the newest step alone is more than
/// that, the place before it. If the provider writes, the roles before and after the cut must differ
/// (`docs/protocols.md` 1.5.7). Less remains if the summary would not last otherwise. `None` if nothing can be
/// cut. `tokens`: those of the request.
pub fn choose(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    tokens: u64,
    by: SummaryAuthor,
) -> Option<CutPoint> {
    let messages = &request.conversation.messages;
    let weights = MessageWeights::new(request, known, parts);
    let policy = &request.policy.compact;
    // As Gemini CLI cuts.
    if let Some(share) = policy.keep_history {
        let cut = agents::cut_point(request.conversation, request.body, share);
        return weights.choice(request, known, cut, by);
    }
    // So many messages stay, whatever they cost.
    if policy.keep_at_least {
        let newest = messages.len().saturating_sub(policy.keep_messages as usize);
        let mut cuts = (known.kept_from() + 1..=newest).rev();
        let cut = cuts.find(|cut| weights.is_open_to(messages, *cut, by))?;
        return weights.choice(request, known, cut, by);
    }
    let head = tokens.saturating_sub(weights.messages.iter().sum());
    let lasting = policy.most_after(request.fillable()).saturating_sub(head + EXPECTED);
    let limit = policy.tail(request.fillable()).min(lasting);
    let mut tail = 0;
    let mut best: Option<(usize, bool)> = None;
    let mut latest = None;
    for cut in (known.kept_from() + 1..messages.len()).rev() {
        tail += weights.messages[cut];
        let is_kept = messages.len() - cut <= policy.keep_messages as usize && tail <= limit;
        // The newest step alone may be more than policy keeps: one place is always looked for.
        if !is_kept && latest.is_some() {
            break;
        }
        if !weights.is_open_to(messages, cut, by) || known.at_cut(cut).is_none() {
            continue;
        }
        let choice = (cut, is_users(&messages[cut]));
        latest = latest.or(Some(choice));
        // The start of a user's turn is better than any other place; of two alike, the earlier one.
        if is_kept && best.is_none_or(|best| choice.1 || !best.1) {
            best = Some(choice);
        }
    }
    let (cut, ..) = best.or(latest)?;
    weights.choice(request, known, cut, by)
}

/// What a compaction of a request would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionPreview {
    /// Messages in its history.
    pub messages: u64,
    /// Messages that would be replaced.
    pub cut: u64,
    /// Its cost, tokens, estimated.
    pub before: u64,
    /// Its cost after the compaction, tokens, estimated.
    pub after: u64,
    /// The assumed cost of the summary, tokens.
    pub summary: u64,
    /// Tokens that the request may fill before its history must be compacted.
    pub fillable: u64,
    /// Who would write the summary.
    pub by: SummaryAuthor,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// The model that the client asks for.
    pub model: Box<str>,
}

/// The assumed cost of a summary before it is written, tokens, at most.
const EXPECTED: u64 = 2000;

/// The preview of a cut in a request of this many tokens.
pub fn preview(
    request: &PlanRequest<'_>,
    by: SummaryAuthor,
    choice: &CutPoint,
    tokens: u64,
) -> CompactionPreview {
    // What is short has a short summary.
    let summary = EXPECTED.min(choice.was / 4);
    CompactionPreview {
        messages: request.conversation.messages.len() as u64,
        cut: choice.cut as u64,
        before: tokens,
        after: tokens.saturating_sub(choice.was).saturating_add(summary),
        summary,
        fillable: request.fillable(),
        by,
        upstream: request.upstream.into(),
        model: request.name.into(),
    }
}

/// A range of messages that is summarised at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryChunk {
    /// Its first message.
    pub from: usize,
    /// One past its last.
    pub through: usize,
}

/// Splits the messages before a cut into chunks for requests with `room` tokens of history; one chunk if all
/// fits. A step that is too large by itself is a chunk of its own.
pub fn pieces(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    cut: usize,
    room: u64,
) -> Vec<HistoryChunk> {
    let messages = &request.conversation.messages;
    let weights = MessageWeights::new(request, known, parts);
    let mut pieces = Vec::new();
    let mut from = 0;
    let mut through = 0;
    let mut sum = 0u64;
    for at in 0..=cut.min(messages.len()) {
        // Only whole steps: a call and its result belong in one request to the summariser.
        let ends = at == cut || at > known.kept_from().max(1) && weights.is_closed(messages, at);
        if !ends || at <= through {
            continue;
        }
        let step: u64 = weights.messages[through..at].iter().sum();
        if sum > 0 && sum.saturating_add(step) > room {
            pieces.push(HistoryChunk { from, through });
            from = through;
            sum = 0;
        }
        sum = sum.saturating_add(step);
        through = at;
    }
    pieces.push(HistoryChunk { from, through: cut });
    pieces
}

/// The tokens of a chunk of the history.
pub fn weigh(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    piece: HistoryChunk,
) -> u64 {
    let weights = MessageWeights::new(request, known, parts).messages;
    weights.iter().take(piece.through).skip(piece.from).sum()
}

/// Edits that cut results of a chunk to head and tail: those larger than `most` tokens, too large for the
/// model that summarises them.
pub fn shorten(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    parts: &[SketchPart],
    piece: HistoryChunk,
    most: u64,
) -> Vec<Edit> {
    let part_tokens: HashMap<PartKey, u32> =
        parts.iter().map(|part| (part.key, part.tokens)).collect();
    let messages = request.conversation.messages.iter().enumerate();
    let mut edits = Vec::new();
    for (index, message) in messages.take(piece.through).skip(piece.from.max(known.kept_from())) {
        for (part_at, part) in message.parts.iter().enumerate() {
            if part.kind != PartKind::ToolResult {
                continue;
            }
            let tokens = part.key.and_then(|key| part_tokens.get(&key));
            let tokens = tokens.map_or(0, |tokens| u64::from(*tokens));
            let place = PartIndex::new(index, part_at);
            // A cut result is short already, or has the length that was decided.
            let is_cut = known.about(place).is_some_and(|about| known.cut(about).is_some());
            if tokens <= most || is_cut {
                continue;
            }
            if let Some(text) = trim::head_and_tail(part, request.body, tokens, most) {
                let cut = rewrite::CutContent { text: &text, keep_media: false };
                edits.extend(rewrite::cut(request.conversation, request.body, place, &cut));
            }
        }
    }
    edits
}

/// The calls of a history that have a result. One without, such as that of a client that was killed, waits for nothing.
struct AnsweredCalls<'c> {
    ids: HashSet<&'c str>,
    /// A result without an id may be that of any call.
    any: bool,
}

impl<'c> AnsweredCalls<'c> {
    fn new(messages: &'c [Message]) -> Self {
        let mut calls = Self { ids: HashSet::default(), any: false };
        for part in messages.iter().flat_map(|message| &message.parts) {
            match part.id.as_deref() {
                _ if part.kind != PartKind::ToolResult => {}
                Some(id) => drop(calls.ids.insert(id)),
                None => calls.any = true,
            }
        }
        calls
    }

    fn includes(&self, id: &str) -> bool {
        self.any || self.ids.contains(id)
    }
}

/// The tokens of messages, and where calls are open.
struct MessageWeights {
    messages: Vec<u64>,
    /// Before each message: whether an earlier call still waits for its result, or runs at the provider, or a loop may not
    /// begin there.
    open: Vec<bool>,
    /// Before each message: whether a cut takes the reference away that a later call needs.
    separates: Vec<bool>,
}

impl MessageWeights {
    fn new(request: &PlanRequest<'_>, known: &RecordedDecisions, parts: &[SketchPart]) -> Self {
        let part_tokens: HashMap<PartKey, u32> =
            parts.iter().map(|part| (part.key, part.tokens)).collect();
        let from = known.kept_from();
        let summary = known.compact().map_or(0, |(_, compact)| u64::from(compact.tokens));
        let answered = AnsweredCalls::new(&request.conversation.messages);
        let mut calls: HashSet<&str> = HashSet::default();
        let mut unnamed = 0usize;
        let mut messages = Vec::new();
        let mut open = request.conversation.open_server_steps();
        // The last entry is the end of the history, which is no place for a cut.
        open.pop();
        for (index, message) in request.conversation.messages.iter().enumerate() {
            open[index] |=
                !calls.is_empty() || unnamed > 0 || !loops::may_begin(request, known, index);
            let tokens = message.parts.iter().map(|part| sent_tokens(part, request, &part_tokens));
            let sum = tokens.sum();
            messages.push(match index {
                0 if from > 0 => summary,
                index if index < from => 0,
                _ => sum,
            });
            for part in &message.parts {
                match (part.kind, part.id.as_deref()) {
                    (PartKind::ToolCall, Some(id)) if answered.includes(id) => {
                        calls.insert(id);
                    }
                    (PartKind::ToolResult, Some(id)) if !calls.remove(id) => {
                        // Its call may have had no id.
                        unnamed = unnamed.saturating_sub(1);
                    }
                    (PartKind::ToolCall, None) => unnamed += 1,
                    (PartKind::ToolResult, None) => unnamed = unnamed.saturating_sub(1),
                    _ => {}
                }
            }
        }
        Self { messages, open, separates: loaded::separates(&request.conversation.messages) }
    }

    fn choice(
        &self,
        request: &PlanRequest<'_>,
        known: &RecordedDecisions,
        cut: usize,
        by: SummaryAuthor,
    ) -> Option<CutPoint> {
        let messages = &request.conversation.messages;
        let is_there = known.kept_from() < cut && cut < messages.len();
        if !is_there || !self.is_open_to(messages, cut, by) {
            return None;
        }
        let (about, near) = known.at_cut(cut)?;
        let is_own = known.has_own_near(request.conversation, cut);
        let total: u64 = self.messages.iter().sum();
        let was = self.messages[..cut].iter().sum::<u64>();
        // A summary of little saves little, and costs a call.
        if was.saturating_mul(LEAST_SHARE) < total {
            return None;
        }
        Some(CutPoint { cut, about, near, is_own, was })
    }

    fn is_open_to(&self, messages: &[Message], cut: usize, by: SummaryAuthor) -> bool {
        let is_even = messages[cut].role == messages[cut - 1].role;
        // Nothing may come between a provider's summary and what follows it.
        let stays_together = match by {
            SummaryAuthor::Provider => is_even || self.separates[cut],
            SummaryAuthor::Summary => false,
        };
        !stays_together && self.is_closed(messages, cut)
    }

    fn is_closed(&self, messages: &[Message], cut: usize) -> bool {
        let previous = &messages[cut - 1];
        let message = &messages[cut];
        let begins = match message.role {
            Role::User => !holds(message, PartKind::ToolResult),
            Role::Assistant => previous.role != Role::Assistant,
            Role::System | Role::Tool => false,
        };
        begins && !self.open[cut] && !holds(previous, PartKind::ToolCall)
    }
}

fn sent_tokens(part: &Part, request: &PlanRequest<'_>, part_tokens: &HashMap<PartKey, u32>) -> u64 {
    let key = part.key.unwrap_or_else(|| PartKey::of_bytes(part.span.slice(request.body)));
    // A trimmed result has the key of a cut, and one that was cleared after that, of a cut of the cut.
    let cut = part.key.and_then(|key| part_tokens.get(&key.cut()));
    cut.or_else(|| part.key.and_then(|key| part_tokens.get(&key.cut().cut())))
        .or_else(|| part_tokens.get(&key))
        .map_or(0, |tokens| u64::from(*tokens))
}

/// Puts a written summary into use: returns that decision, and decisions to remove reasoning after the cut if
/// the model binds it to its prefix (`docs/protocols.md` 1.5).
///
/// # Errors
/// The reason to wait: no summary is written, the open tool loop needs its reasoning and can still wait, or reasoning
/// that would be void may not be removed, because the removal was refused.
pub fn propose(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    due: CompactionNeed,
) -> Result<Vec<Fact>, DecisionReason> {
    let newest = known.summaries.iter().max_by_key(|(cut, one)| (*cut, std::cmp::Reverse(one.at)));
    let (cut, summary) = newest.ok_or(DecisionReason::NotReady)?;
    // What the provider read for the summary has not changed since.
    let carries = summary.carries.filter(|carried| *carried == known.carried(*cut));
    let voided = match request.is_bound() && carries.is_none() {
        true => reasoning::take_out_from(request, *cut),
        false => Vec::new(),
    };
    if !voided.is_empty() && request.is_in_loop() && due < CompactionNeed::Must {
        return Err(DecisionReason::OpenLoop);
    }
    if !known.may_decide_all(&voided) {
        return Err(DecisionReason::Suspended);
    }
    let why = if due == CompactionNeed::Must {
        DecisionReason::Window
    } else {
        DecisionReason::Threshold
    };
    let compact = CompactionRecord {
        at: request.now,
        exchange: request.exchange.clone(),
        why: if summary.why == DecisionReason::Requested { DecisionReason::Requested } else { why },
        shadow: request.is_shadow(),
        carries,
        ..CompactionRecord::clone(summary)
    };
    Ok(std::iter::once(Fact::Compact(Box::new(compact))).chain(voided).collect())
}

#[cfg(test)]
mod tests;
