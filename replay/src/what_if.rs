//! What a policy would have done to recorded sessions: what it would have cut and compacted, when, and at
//! which cost.
//!
//! Every request is planned by the code that plans live ones; the recording says what the provider would have
//! replied. Known are the sizes and the state of the cache at the time. Assumed is that the model would have
//! said the same, that a summary has a given number of tokens, and that the cache held up to the first
//! change, measured in bytes. Calls nobody and writes nothing.

mod report;

use std::collections::HashMap;
use std::sync::Arc;

use super::transcript::{CallKey, ClientHistory, TranscriptLine};
use super::{LearnedModels, answer_of, in_order, turn_of};
use plimsoll_core::context::budget::{self, Anchor, MeasuredEstimate};
use plimsoll_core::context::cache::is_cold;
use plimsoll_core::context::compact::schedule::{
    self, ScheduleAction, ScheduleContext, ScheduleEvent, ScheduleState, SummaryWriter,
    WrittenSummary,
};
use plimsoll_core::context::compact::{
    self, CompactionNeed, SummaryDraft, SummaryFocus, SummarySizes,
};
use plimsoll_core::context::cost;
use plimsoll_core::context::ledger::{Ledger, anchor_keys};
use plimsoll_core::context::lineage::place;
use plimsoll_core::context::plan::{
    self, Change, Decision, DecisionReason, Overlay, Plan, PlanRequest, PlanStep, Proposal,
    RecordedDecisions, RewriteSummary,
};
use plimsoll_core::context::policy::{DecisionMode, Mode, Policy, SummaryAuthor};
use plimsoll_core::context::savings::SummaryCosts;
use plimsoll_core::context::{
    Breakdown, CompactionRecord, ExchangeId, Fact, SketchPart, Turn, prune, reasoning,
};
use plimsoll_core::dialect::models::{Catalogue, Model};
use plimsoll_core::dialect::{self, Conversation, PartIndex, PartKind, Usage};
use plimsoll_core::tokens::Tokenizer;
use plimsoll_core::tokens::learn::EstimatorState;

pub use report::{WhatIfCosts, WhatIfEvent, WhatIfReport};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct WhatIfOptions {
    /// The policy for changes.
    pub policy: Arc<Policy>,
    /// The most output tokens that are reserved.
    pub output_reserve: u64,
    /// The models, with the user's overrides.
    pub catalogue: Catalogue,
    /// The assumed tokens of every summary.
    pub summary_tokens: u32,
}

/// Replays `lines` (any order, any number of sessions) under a policy.
pub fn play(
    lines: &[TranscriptLine],
    options: &WhatIfOptions,
    mut each: impl FnMut(usize),
) -> WhatIfReport {
    let mut report = WhatIfReport::default();
    let mut sessions: HashMap<&str, WhatIfSession<'_>> = HashMap::new();
    let mut learned = LearnedModels::default();
    for (done, (_, line)) in in_order(lines).enumerate() {
        let model = options.catalogue.model(&line.model, "");
        let state = learned.state(line, model.family);
        sessions.entry(&line.session).or_default().call(line, &model, options, state, &mut report);
        each(done + 1);
    }
    report
}

/// The state of one session.
#[derive(Default)]
struct WhatIfSession<'l> {
    history: ClientHistory,
    ledger: Ledger,
    /// The previous call, whose reply comes with the next line, and its final turn.
    before: Option<(&'l TranscriptLine, Turn)>,
    /// The previous request as it came, part by part.
    came: Vec<SketchPart>,
    /// The number of cut results of each call, as long as it was not repeated.
    cut: HashMap<CallKey, u64>,
    /// The tokens of its system prompt and tools, which are not recorded.
    head: Option<u64>,
    calls: u64,
}

/// What is decided about a call.
struct WhatIfPlan {
    known: RecordedDecisions,
    plan: Plan,
    measured: MeasuredEstimate,
    /// What is decided against.
    declined: Vec<PlanStep>,
    /// The summaries that are written because of it.
    summaries: Vec<CompactionRecord>,
}

/// A request, with what is known about it.
struct WhatIfCall<'a> {
    request: PlanRequest<'a>,
    anchor: Option<(Vec<SketchPart>, Arc<Turn>)>,
    learned: &'a EstimatorState,
}

impl WhatIfCall<'_> {
    fn measure(&self, sent: &Overlay, known: &RecordedDecisions) -> MeasuredEstimate {
        let anchor = self.anchor.as_ref().map(|(sketch, turn)| Anchor { turn, sketch });
        budget::estimate(&self.request, sent, known, anchor, self.learned)
    }

    /// The request as it came, part by part, whatever is sent of it. `before` is that of the previous call,
    /// so that no part is counted twice.
    fn came(
        &self,
        plan: &Plan,
        measured: &MeasuredEstimate,
        before: &[SketchPart],
    ) -> Vec<SketchPart> {
        if plan.sent.is_original() {
            return measured.parts.clone();
        }
        let PlanRequest { conversation, body, model, tokenizer, .. } = self.request;
        let original = plan::original_overlay(&self.request);
        let anchor = self.anchor.as_ref().map(|(_, turn)| Anchor { turn, sketch: before });
        let learned = self.learned;
        budget::measure(conversation, body, &original, model, anchor, tokenizer, learned).parts
    }

    /// Replays the known decisions.
    fn planned(&self, known: &RecordedDecisions) -> (Plan, MeasuredEstimate) {
        let plan = plan::replay(&self.request, known);
        let measured = self.measure(&plan.sent, known);
        (plan, measured)
    }
}

impl<'l> WhatIfSession<'l> {
    fn call(
        &mut self,
        line: &'l TranscriptLine,
        model: &Model,
        options: &WhatIfOptions,
        learned: &mut EstimatorState,
        report: &mut WhatIfReport,
    ) {
        let Some(dialect) = line.dialect() else { return };
        if !line.has_text() {
            return;
        }
        let reply_texts = self.history.add(line);
        self.add_reply(&reply_texts);
        let (path, body) = self.history.request(line, dialect);
        let conversation = dialect::read(dialect, &path, &body);
        self.calls += 1;
        let exchange = ExchangeId::from(self.calls.to_string());
        let placed = place(&self.ledger, &conversation, &exchange, None);
        let parent =
            placed.parent.as_ref().and_then(|parent| self.ledger.anchor_at(parent)).cloned();
        let call = WhatIfCall {
            request: PlanRequest {
                exchange: &exchange,
                conversation: &conversation,
                body: &body,
                model,
                name: &line.model,
                upstream: &line.provider,
                reasoning_rule: reasoning::rule(dialect, "", &line.model),
                compaction_refused: false,
                policy: &options.policy,
                client_compacts: None,
                mode: Mode::Active,
                clears_past: None,
                tokenizer: Tokenizer::whole(model.family),
                reserve: model.reserve(options.output_reserve),
                now: line.at(),
            },
            anchor: parent.and_then(|turn| Some((self.ledger.sketch(&turn)?, turn))),
            learned,
        };
        let decisions = RecordedDecisions::from_ledger(
            &self.ledger,
            &conversation,
            &placed,
            DecisionMode::Active,
        );
        let WhatIfPlan { plan, measured, summaries, .. } = self.decide(&call, decisions, options);
        let came = call.came(&plan, &measured, &self.came);
        let came_tokens = tokens(&came);
        let left_out = came_tokens.saturating_sub(tokens(&measured.parts));
        self.came = came;
        self.report_cuts(line, &conversation, &plan, report);
        let done = RewriteSummary::from_steps(&plan.steps, Mode::Active);
        let turn = turn_of(exchange.clone(), line, &conversation, model, &placed.position);
        let estimate = Some(measured.estimate.clone());
        let mut turn = Turn { estimate, done, sketch: measured.sketch, ..turn };
        let guess = measured.estimate.guess;
        let removed;
        (turn.usage, removed) =
            self.would_report(line, &turn, &plan, left_out, came_tokens, body.len());
        turn.done.measured = measured_share(&turn.done, removed);
        if let (Some(estimate), Some(head)) = (&mut turn.estimate, self.head) {
            let Breakdown { system, messages, head: uncapped, .. } = &mut estimate.breakdown;
            (*system, *messages) = (*system + head, messages.saturating_sub(head));
            *uncapped = None;
        }
        self.list(line, plan.steps, report);
        self.report_costs(line, &turn, model, &summaries, report);
        if let (Some(seen), Some(actual), false) =
            (&measured.seen, turn.usage.input, turn.usage.lower_bound)
        {
            *learned = learned.clone().after(seen, &guess, actual);
        }
        self.before = Some((line, turn));
    }

    /// Decides by the policy and stores the decisions.
    fn decide(
        &mut self,
        call: &WhatIfCall<'_>,
        mut known: RecordedDecisions,
        options: &WhatIfOptions,
    ) -> WhatIfPlan {
        let request = &call.request;
        let reasoning = reasoning::propose(request, &known).facts;
        self.keep(&mut known, reasoning);
        let (mut plan, mut measured) = call.planned(&known);
        let cost = prune::RequestCost {
            tokens: measured.estimate.tokens,
            parts: &measured.parts,
            rules: request.policy.estimate.deciding(),
        };
        let Proposal { facts: cuts, declined } = prune::propose(request, &known, cost);
        if !cuts.is_empty() {
            self.keep(&mut known, cuts);
            (plan, measured) = call.planned(&known);
        }
        let mut decided = WhatIfPlan { known, plan, measured, declined, summaries: Vec::new() };
        self.compact(call, &mut decided, options);
        decided.plan.steps.extend(std::mem::take(&mut decided.declined));
        decided
    }

    /// Compacts as live requests are: performs one action of the schedule after another.
    fn compact(
        &mut self,
        call: &WhatIfCall<'_>,
        decided: &mut WhatIfPlan,
        options: &WhatIfOptions,
    ) {
        // Nobody else writes summaries, and a request that waits for one gets it.
        let request = &call.request;
        let mut state = ScheduleState::default();
        let mut event = ScheduleEvent::Planned;
        loop {
            let tokens = decided.measured.estimate.tokens;
            let waiting = plan::waiting_savings(&decided.declined);
            let sent_soon = tokens.saturating_sub(waiting);
            let need = state.need(request, &decided.known, Some(sent_soon), false);
            let context = ScheduleContext {
                need,
                mode: request.mode,
                may_decide: true,
                summary: WrittenSummary::from_request(request, &decided.known, need),
                writer: SummaryWriter::Nobody,
                is_requested: false,
                waits_at_threshold: schedule::waits_at_threshold(request),
            };
            let step = schedule::next(context, state, event);
            state = step.state;
            event = match step.action {
                ScheduleAction::SendSmall | ScheduleAction::Send => return,
                ScheduleAction::Decline(why) | ScheduleAction::GiveUp(why) => {
                    // It is about the whole request, not about a part of it.
                    let part_index = PartIndex::default();
                    let span = dialect::Span::new(0, 0);
                    let step = PlanStep::declined(Change::Compacted, why, part_index, span, tokens);
                    decided.declined.push(step);
                    return;
                }
                action @ (ScheduleAction::WriteLater | ScheduleAction::WriteNow) => {
                    match written(call, decided, need, options) {
                        Ok(summary) => {
                            if let Some(summary) = summary {
                                self.ledger.add(Fact::Summary(Box::new(summary.clone())));
                                decided.summaries.push(summary);
                            }
                            if action == ScheduleAction::WriteLater {
                                return;
                            }
                            decided.known = self.replanned(call);
                            ScheduleEvent::WriterDone
                        }
                        Err(why) => ScheduleEvent::CannotWrite(why),
                    }
                }
                ScheduleAction::Use => match compact::propose(request, &decided.known, need) {
                    Ok(facts) => {
                        self.keep(&mut decided.known, facts);
                        decided.known = self.replanned(call);
                        (decided.plan, decided.measured) = call.planned(&decided.known);
                        ScheduleEvent::Planned
                    }
                    Err(_) => ScheduleEvent::NotSaved,
                },
                ScheduleAction::Refresh => ScheduleEvent::Planned,
                ScheduleAction::Wait => ScheduleEvent::WriterDone,
            };
        }
    }

    fn keep(&mut self, known: &mut RecordedDecisions, facts: Vec<Fact>) {
        for fact in &facts {
            self.ledger.add(fact.clone());
        }
        known.add(facts);
    }

    /// The known decisions, read again with those that were just stored.
    fn replanned(&self, call: &WhatIfCall<'_>) -> RecordedDecisions {
        let conversation = call.request.conversation;
        let placed = place(&self.ledger, conversation, call.request.exchange, None);
        RecordedDecisions::from_ledger(&self.ledger, conversation, &placed, DecisionMode::Active)
    }

    /// Adds the recorded reply of the previous call.
    fn add_reply(&mut self, reply_texts: &[String]) {
        let Some((line, mut turn)) = self.before.take() else { return };
        let reply = answer_of(line, turn.dialect, reply_texts);
        turn.after = reply.chain_after(turn.position.chain);
        turn.reply = budget::reply(&reply, Tokenizer::whole(turn.family));
        turn.anchor_keys = anchor_keys(&reply);
        self.ledger.add(Fact::Turn(Arc::new(turn)));
    }

    /// What the provider would have reported: what it did report, less what would not have been sent, with a
    /// cache hit up to the first new change. Also returns the tokens that would not have been sent, by the
    /// provider's count.
    fn would_report(
        &mut self,
        line: &TranscriptLine,
        turn: &Turn,
        plan: &Plan,
        left_out: u64,
        came: u64,
        bytes: usize,
    ) -> (Usage, u64) {
        let mut usage = answer_of(line, turn.dialect, &[]).usage;
        // A call that cannot be compared is no base for estimates. If only its output was not measured, its
        // reply is counted like one that broke off; its input was paid for all the same.
        let is_compared = line.actual().is_some();
        usage.lower_bound |= !is_compared || !line.is_measured();
        usage.hosted_tools |= !is_compared;
        let (true, Some(input)) = (is_compared, usage.input) else { return (usage, 0) };
        let counted = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
        let head = *self.head.get_or_insert(input.saturating_sub(counted));
        // Scales our count of what is left out to the provider's count. The provider also counts what is not
        // recorded at all, so at most as much is left out as we counted.
        let messages = input.saturating_sub(head);
        let share = left_out as f64 / came.max(messages).max(1) as f64;
        let removed = (messages as f64 * share.min(1.0)) as u64;
        let cache_read = usage.cache_read.unwrap_or(0);
        let cache_write = usage.cache_write.unwrap_or(0);
        let uncached = input.saturating_sub(cache_read).saturating_sub(cache_write);
        let place = |byte| head + (messages as f64 * byte as f64 / bytes.max(1) as f64) as u64;
        let share = measured_share(&turn.done, removed).unwrap_or(0.0);
        // The tokens before position `until`, in the request as it came, that would not have been sent.
        let removed_before = |until: u64| {
            let mut tokens = 0.0;
            for step in &plan.steps {
                let at = place(step.byte);
                if at < until {
                    let saved = step.tokens_before.saturating_sub(step.tokens_after) as f64 * share;
                    // A part that reaches past `until` is removed only as far as there.
                    tokens += saved.min((until - at) as f64);
                }
            }
            tokens.round() as u64
        };
        let new_steps = plan.steps.iter().filter(|step| step.decision == Decision::New);
        let first_change = new_steps.map(|step| place(step.byte)).min();
        // A new change breaks the cache from its place on.
        let unbroken = first_change.map_or(u64::MAX, |at| at.saturating_sub(removed_before(at)));
        let sent = input - removed;
        let cached = cache_read.saturating_sub(removed_before(cache_read)).min(unbroken).min(sent);
        usage.input = Some(sent);
        if usage.cache_read.is_some() {
            usage.cache_read = Some(cached);
        }
        if cache_write > 0 {
            usage.cache_write = Some(sent.saturating_sub(cached).saturating_sub(uncached));
        }
        (usage, removed)
    }

    /// Counts the results that are cut now, and those that were cut before and are requested again.
    fn report_cuts(
        &mut self,
        line: &TranscriptLine,
        conversation: &Conversation,
        plan: &Plan,
        report: &mut WhatIfReport,
    ) {
        report.requested_again +=
            line.calls().filter_map(|call| self.cut.remove(&call)).sum::<u64>();
        let mut cut = Vec::new();
        for step in &plan.steps {
            if step.change == Change::Cut && step.decision == Decision::New {
                cut.push(step.at);
            }
        }
        if cut.is_empty() {
            return;
        }
        report.results_cut += cut.len() as u64;
        let places = conversation.messages.iter().enumerate().flat_map(|(index, message)| {
            message
                .parts
                .iter()
                .enumerate()
                .map(move |(at, part)| (PartIndex::new(index, at), part))
        });
        let results = places.filter(|(_, part)| part.kind == PartKind::ToolResult).enumerate();
        for (number, (at, _)) in results {
            if cut.contains(&at)
                && let Some(call) = self.history.call_of(number)
            {
                *self.cut.entry(call).or_default() += 1;
            }
        }
    }

    fn list(&self, line: &TranscriptLine, steps: Vec<plan::PlanStep>, report: &mut WhatIfReport) {
        // Adds the new and declined changes: all of them, of which a turn stores only the first.
        for step in steps {
            match step.decision {
                Decision::New => report.events.push(WhatIfEvent {
                    session: line.session.clone(),
                    call: self.calls,
                    at: line.at(),
                    model: line.model.clone(),
                    change: step.change,
                    why: step.why,
                    tokens_before: step.tokens_before,
                    tokens_after: step.tokens_after,
                }),
                Decision::Declined => {
                    let why = serde_json::to_value(step.why).unwrap_or_default();
                    let why = why.as_str().unwrap_or_default().to_owned();
                    *report.declined.entry(why).or_default() += 1;
                }
                Decision::Replayed => {}
            }
        }
    }

    fn report_costs(
        &self,
        line: &TranscriptLine,
        turn: &Turn,
        model: &Model,
        summaries: &[CompactionRecord],
        report: &mut WhatIfReport,
    ) {
        for summary in summaries {
            report.summaries += 1;
            report.spent_on_summaries.add(&summary.spent, turn, model);
            let price = model.price.as_ref();
            let dollars =
                price.and_then(|price| cost::call(&summary.spent, price, turn.dialect, turn.at));
            report.savings.wrote(SummaryCosts::from_usage(&summary.spent, dollars));
        }
        if line.actual().is_none() || turn.usage.input.is_none() {
            return;
        }
        report.calls += 1;
        report.priced_calls += u64::from(model.price.is_some());
        report.as_it_was.add(&answer_of(line, turn.dialect, &[]).usage, turn, model);
        report.under_policy.add(&turn.usage, turn, model);
        let parent = self.ledger.parent(&turn.position);
        report.savings.add(&turn.savings(parent, |_| model.price));
    }
}

fn measured_share(done: &RewriteSummary, removed: u64) -> Option<f64> {
    // Actual tokens saved per estimated token, because the provider's own count is known here.
    let claimed = done.tokens_removed.saturating_add(done.tokens_compacted);
    if claimed > 0 { Some(removed as f64 / claimed as f64) } else { None }
}

fn tokens(parts: &[SketchPart]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}

/// The summary that would be written of a request, if it would be worth its size.
fn written(
    call: &WhatIfCall<'_>,
    decided: &WhatIfPlan,
    due: CompactionNeed,
    options: &WhatIfOptions,
) -> Result<Option<CompactionRecord>, DecisionReason> {
    let request = &call.request;
    let WhatIfPlan { known, measured, .. } = decided;
    let writers = compact::writers(request, SummaryFocus::OfPolicy);
    let by = *writers.first().ok_or(DecisionReason::Provider)?;
    let input = measured.estimate.tokens;
    let choice = compact::choose(request, known, &measured.parts, input, by)
        .ok_or(DecisionReason::NothingToCut)?;
    if !compact::is_worth_writing(request, known, &choice, input, due) {
        return Err(DecisionReason::LittleRoom);
    }
    // Its text is not known, so the given number of one-token words is used.
    let text = " summary".repeat(options.summary_tokens as usize);
    let draft = SummaryDraft { cut: choice.cut, summary: &text, seed: 0, is_requested: false };
    let raw = compact::lay_out(request, known, draft).raw;
    let encoding = request.tokenizer.encoding;
    let tokens = encoding.map_or(raw.len() / 4, |encoding| encoding.count(&raw)) as u64;
    let why = if due == CompactionNeed::Must {
        DecisionReason::Window
    } else {
        DecisionReason::Threshold
    };
    let sizes = SummarySizes { whole: input, was: choice.was, tokens };
    if !compact::is_accepted(request, sizes, why) {
        return Ok(None);
    }
    // The writer reads everything that was sent; with another model or a cold cache, nothing of it is cached.
    let mut cached = 0;
    if request.policy.compact.model.is_none() && !is_cold(request, known) {
        cached = known.parent.as_ref().and_then(|parent| parent.usage.input).unwrap_or(0);
    }
    let spent = Usage {
        input: Some(input),
        output: Some(u64::from(options.summary_tokens)),
        cache_read: Some(cached.min(input)),
        ..Usage::default()
    };
    Ok(Some(CompactionRecord {
        about: choice.about,
        near: choice.near,
        is_own: choice.is_own,
        at: request.now,
        exchange: request.exchange.clone(),
        raw: raw.into(),
        was: choice.was,
        tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        by: SummaryAuthor::Summary,
        why,
        upstream: request.upstream.into(),
        model: request.name.into(),
        spent,
        dollars: None,
        took: 0,
        carries: None,
        shadow: false,
        epoch: None,
    }))
}
