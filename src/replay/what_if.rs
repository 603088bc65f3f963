//! What a policy would have done to recorded sessions: what it would have cut and compacted, when, at
//! which cost.
//!
//! Every request is planned by the code that plans live ones; what is recorded says what the provider
//! would have answered. Known: sizes and the cache's state as they were. Taken for granted: that the
//! model would have said the same; that a summary has so many tokens; that the cache held up to the
//! first change, measured by bytes. Nobody is asked, nothing is written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::transcript::{CallKey, ClientHistory, TranscriptLine};
use super::{answer_of, in_order, turn_of};
use crate::config::Config;
use crate::context::budget::{self, Anchor, MeasuredEstimate};
use crate::context::cache::is_cold;
use crate::context::compact::{self, CompactionNeed};
use crate::context::ledger::{Ledger, anchor_keys};
use crate::context::lineage::place;
use crate::context::plan::{
    self, Change, Decision, DecisionReason, Overlay, Plan, PlanRequest, RecordedDecisions,
    RewriteSummary,
};
use crate::context::policy::{Mode, Policy, SummaryAuthor};
use crate::context::savings::{self, Savings, SavingsInput, SummaryCosts};
use crate::context::{
    Breakdown, CompactionRecord, ExchangeId, Fact, Millis, SketchPart, Turn, prune, reasoning,
};
use crate::dialect::models::{Catalogue, Model};
use crate::dialect::{self, Conversation, PartIndex, PartKind, Usage};
use crate::tokens::Tokenizer;
use crate::tokens::learn::EstimatorState;

/// What is planned for.
#[derive(Clone, Debug)]
pub struct WhatIfOptions {
    /// What may be changed.
    pub policy: Arc<Policy>,
    /// Output tokens held free, at most.
    pub output_reserve: u64,
    /// The models, with what the user knows better.
    pub catalogue: Catalogue,
    /// Tokens that every summary is taken to have.
    pub summary_tokens: u32,
}

impl WhatIfOptions {
    /// As a configuration says.
    pub fn of(config: &Config, summary_tokens: u32) -> Self {
        Self {
            policy: config.policy.clone(),
            output_reserve: config.output_reserve,
            catalogue: Catalogue::new(config.models.clone()),
            summary_tokens,
        }
    }
}

/// One thing that would have been done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIfEvent {
    /// The session.
    pub session: String,
    /// Which call of it, from 1.
    pub call: u64,
    /// When, ms since 1970.
    pub at: Millis,
    /// The model.
    pub model: String,
    /// What.
    pub change: Change,
    /// Why.
    pub why: DecisionReason,
    /// Tokens there before, estimated.
    pub tokens_before: u64,
    /// Tokens there after.
    pub tokens_after: u64,
}

/// Tokens and US dollars of all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WhatIfCosts {
    /// Input tokens.
    pub input: u64,
    /// Of them, read from the provider's cache.
    pub cache_read: u64,
    /// US dollars of the calls whose price is known, at catalogue prices.
    pub dollars: f64,
}

impl WhatIfCosts {
    fn add(&mut self, usage: &Usage, turn: &Turn, model: &Model) {
        self.input += usage.input.unwrap_or(0);
        self.cache_read += usage.cache_read.unwrap_or(0);
        let cost = model.price.and_then(|price| savings::cost(usage, price, turn.dialect));
        self.dollars += cost.unwrap_or(0.0);
    }
}

/// What a policy would have done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WhatIfReport {
    /// Calls whose input was reported.
    pub calls: u64,
    /// Of them, those whose price is known.
    pub priced_calls: u64,
    /// As it was.
    pub as_it_was: WhatIfCosts,
    /// As it would have been, summaries left out.
    pub under_policy: WhatIfCosts,
    /// Summaries that would have been written.
    pub summaries: u64,
    /// What writing them would have cost.
    pub spent_on_summaries: WhatIfCosts,
    /// What rewriting did, summed as for live traffic; what a broken cache cost is in it.
    pub savings: Savings,
    /// Results that would have been cut.
    pub results_cut: u64,
    /// Of them, those whose tool the agent asked again later, with the same arguments: it would have had
    /// to, or did so anyway.
    pub asked_again: u64,
    /// Every change, when it would first have been made.
    pub events: Vec<WhatIfEvent>,
    /// How often something was decided against, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Plays `lines` (any order, any number of sessions) under a policy.
pub fn play(lines: &[TranscriptLine], asked: &WhatIfOptions) -> WhatIfReport {
    let mut told = WhatIfReport::default();
    let mut sessions: HashMap<&str, WhatIfSession<'_>> = HashMap::new();
    let mut learned = HashMap::new();
    for line in in_order(lines) {
        let model = asked.catalogue.model(&line.model, "");
        let known = learned
            .entry((line.provider.as_str(), line.model.as_str()))
            .or_insert_with(|| EstimatorState::new(model.family));
        sessions.entry(&line.session).or_default().call(line, &model, asked, known, &mut told);
    }
    told
}

/// One session as far as it has come.
#[derive(Default)]
struct WhatIfSession<'l> {
    history: ClientHistory,
    ledger: Ledger,
    /// The call before, whose reply comes with the next line; what it was given in the end.
    before: Option<(&'l TranscriptLine, Turn)>,
    /// What came with it, part by part.
    came: Vec<SketchPart>,
    /// How many results of a call are cut, and were not asked for again.
    cut: HashMap<CallKey, u64>,
    /// What its system prompt and tools cost, which are not recorded.
    head: Option<u64>,
    calls: u64,
}

/// A request, and what is known of it.
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

    /// What came, part by part, whatever is sent of it. `before`: the same of the call before, so that no
    /// part is counted twice.
    fn came(
        &self,
        plan: &Plan,
        measured: &MeasuredEstimate,
        before: &[SketchPart],
    ) -> Vec<SketchPart> {
        if plan.sent.is_as_it_came() {
            return measured.parts.clone();
        }
        let PlanRequest { conversation, body, model, tokenizer, .. } = self.request;
        let sent = plan::as_it_came(&self.request);
        let anchor = self.anchor.as_ref().map(|(_, turn)| Anchor { turn, sketch: before });
        let learned = self.learned;
        budget::measure(conversation, body, &sent, model, anchor, tokenizer, learned).parts
    }

    /// Replays what is known.
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
        asked: &WhatIfOptions,
        learned: &mut EstimatorState,
        told: &mut WhatIfReport,
    ) {
        let Some(dialect) = line.dialect().filter(|_| line.has_words()) else { return };
        let said = self.history.add(line);
        self.answered(&said);
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
                echo: reasoning::rule(dialect, "", &line.model),
                policy: &asked.policy,
                mode: Mode::Active,
                clears_past: None,
                tokenizer: Tokenizer::whole(model.family),
                reserve: model.reserve(asked.output_reserve),
                now: line.at(),
            },
            anchor: parent.and_then(|turn| Some((self.ledger.sketch(&turn)?, turn))),
            learned,
        };
        let known = RecordedDecisions::of(&self.ledger, &conversation, &placed, false);
        let (plan, measured, summary) = self.decide(&call, known, asked);
        let came = call.came(&plan, &measured, &self.came);
        let came_tokens = tokens(&came);
        let left_out = (came_tokens.saturating_sub(tokens(&measured.parts)), came_tokens);
        self.came = came;
        self.tell_cuts(line, &conversation, &plan, told);
        let done = RewriteSummary::of(&plan.steps, Mode::Active);
        let turn = turn_of(exchange.clone(), line, &conversation, model, &placed.position);
        let estimate = Some(measured.estimate.clone());
        let mut turn = Turn { estimate, done, sketch: measured.sketch, ..turn };
        let guess = measured.estimate.guess;
        let removed;
        (turn.usage, removed) = self.would_report(line, &turn, &plan, left_out, body.len());
        turn.done.measured = measured_share(&turn.done, removed);
        if let (Some(estimate), Some(head)) = (&mut turn.estimate, self.head) {
            let Breakdown { system, messages, .. } = &mut estimate.breakdown;
            (*system, *messages) = (*system + head, messages.saturating_sub(head));
        }
        self.tell(line, &turn, model, summary.as_ref(), told);
        if let (Some(seen), Some(actual), false) =
            (&measured.seen, turn.usage.input, turn.usage.lower_bound)
        {
            *learned = learned.clone().after(seen, &guess, actual);
        }
        self.before = Some((line, turn));
    }

    /// Decides what policy says, keeps it, and answers what is sent; the summary that is written for
    /// requests to come.
    fn decide(
        &mut self,
        call: &WhatIfCall<'_>,
        mut known: RecordedDecisions,
        asked: &WhatIfOptions,
    ) -> (Plan, MeasuredEstimate, Option<CompactionRecord>) {
        let request = &call.request;
        let (echoes, _) = reasoning::propose(request, &known);
        self.keep(&mut known, echoes);
        let (mut plan, mut measured) = call.planned(&known);
        let rules = request.policy.estimate.deciding();
        let cost =
            prune::RequestCost { tokens: measured.estimate.tokens, parts: &measured.parts, rules };
        let (cuts, mut refused) = prune::propose(request, &known, cost);
        if !cuts.is_empty() {
            self.keep(&mut known, cuts);
            (plan, measured) = call.planned(&known);
        }
        let due = compact::due(request, &known, measured.estimate.tokens);
        let mut summary = None;
        if due >= CompactionNeed::Prepare
            && (known.summaries.is_empty() || due == CompactionNeed::Must)
        {
            summary = written(call, &known, &measured, due, asked);
            // A request that does not fit waits for its summary; any other leaves it to the next.
            if let Some(compact) = summary.clone().filter(|_| due == CompactionNeed::Must) {
                self.keep(&mut known, vec![Fact::Summary(Box::new(compact))]);
                known = self.again(call);
            }
        }
        if due >= CompactionNeed::Swap && !known.summaries.is_empty() {
            match compact::propose(request, &known, due) {
                Ok(facts) => {
                    self.keep(&mut known, facts);
                    known = self.again(call);
                    (plan, measured) = call.planned(&known);
                }
                Err(why) => refused.push(plan::PlanStep::refused(
                    Change::Compacted,
                    why,
                    PartIndex::default(),
                    dialect::Span::new(0, 0),
                    measured.estimate.tokens,
                )),
            }
        }
        if let Some(compact) = summary.clone().filter(|_| due < CompactionNeed::Must) {
            self.ledger.add(Fact::Summary(Box::new(compact)));
        }
        plan.steps.extend(refused);
        (plan, measured, summary)
    }

    fn keep(&mut self, known: &mut RecordedDecisions, facts: Vec<Fact>) {
        facts.iter().cloned().for_each(|fact| self.ledger.add(fact));
        known.add(facts);
    }

    /// What is known once more, with what was just kept.
    fn again(&self, call: &WhatIfCall<'_>) -> RecordedDecisions {
        let conversation = call.request.conversation;
        let placed = place(&self.ledger, conversation, call.request.exchange, None);
        RecordedDecisions::of(&self.ledger, conversation, &placed, false)
    }

    /// The call before is answered, as it was recorded.
    fn answered(&mut self, said: &[String]) {
        let Some((line, mut turn)) = self.before.take() else { return };
        let reply = answer_of(line, turn.dialect, said);
        turn.after = reply.chain_after(turn.position.chain);
        turn.reply = budget::reply(&reply, Tokenizer::whole(turn.family));
        turn.anchor_keys = anchor_keys(&reply);
        self.ledger.add(Fact::Turn(Box::new(turn)));
    }

    /// What the provider would have reported: what it did report, less what was not sent. Its cache
    /// would have held up to the first new change. Beside it, the tokens that were not sent, as it counts.
    fn would_report(
        &mut self,
        line: &TranscriptLine,
        turn: &Turn,
        plan: &Plan,
        (left_out, came): (u64, u64),
        bytes: usize,
    ) -> (Usage, u64) {
        let mut usage = answer_of(line, turn.dialect, &[]).usage;
        // Nothing grows from a call that cannot be compared. Where its output alone was not measured, its reply
        // is counted, as of one that broke off; its input was paid for all the same.
        let is_compared = line.actual().is_some();
        usage.lower_bound |= !is_compared || !line.is_measured();
        usage.hosted_tools |= !is_compared;
        let Some(input) = usage.input.filter(|_| is_compared) else { return (usage, 0) };
        let counted = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
        let head = *self.head.get_or_insert(input.saturating_sub(counted));
        // The provider counts what is left out as it counts the whole; but what is not recorded at all, it
        // counts as well, so no more is left out than we counted.
        let messages = input.saturating_sub(head);
        let share = left_out as f64 / came.max(messages).max(1) as f64;
        let removed = (messages as f64 * share.min(1.0)) as u64;
        let (read, written) = (usage.cache_read.unwrap_or(0), usage.cache_write.unwrap_or(0));
        let plain = input.saturating_sub(read).saturating_sub(written);
        let place = |byte| head + (messages as f64 * byte as f64 / bytes.max(1) as f64) as u64;
        let share = measured_share(&turn.done, removed).unwrap_or(0.0);
        // Of the first so many tokens as they came, those that were not sent.
        let gone = |until: u64| {
            let before = plan.steps.iter().map(|step| (place(step.byte), step));
            let gone = before.filter(|(at, _)| *at < until).map(|(at, step)| {
                let went = step.tokens_before.saturating_sub(step.tokens_after) as f64 * share;
                went.min((until - at) as f64)
            });
            gone.sum::<f64>().round() as u64
        };
        let new = plan.steps.iter().filter(|step| step.decision == Decision::New);
        let first = new.map(|step| place(step.byte)).min().map(|at| at.saturating_sub(gone(at)));
        let now = input - removed;
        let held = read.saturating_sub(gone(read)).min(first.unwrap_or(u64::MAX)).min(now);
        usage.input = Some(now);
        usage.cache_read = usage.cache_read.map(|_| held);
        if written > 0 {
            usage.cache_write = Some(now.saturating_sub(held).saturating_sub(plain));
        }
        (usage, removed)
    }

    /// Counts what is cut now, and what was cut before and is asked for again.
    fn tell_cuts(
        &mut self,
        line: &TranscriptLine,
        conversation: &Conversation,
        plan: &Plan,
        told: &mut WhatIfReport,
    ) {
        told.asked_again += line.calls().filter_map(|call| self.cut.remove(&call)).sum::<u64>();
        let new =
            |step: &&plan::PlanStep| (step.change, step.decision) == (Change::Cut, Decision::New);
        let cut: Vec<_> = plan.steps.iter().filter(new).map(|step| step.at).collect();
        if cut.is_empty() {
            return;
        }
        told.results_cut += cut.len() as u64;
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

    fn tell(
        &self,
        line: &TranscriptLine,
        turn: &Turn,
        model: &Model,
        summary: Option<&CompactionRecord>,
        told: &mut WhatIfReport,
    ) {
        if let Some(summary) = summary {
            told.summaries += 1;
            told.spent_on_summaries.add(&summary.spent, turn, model);
            let summary = SummaryCosts::of(&summary.spent, model.price, turn.dialect);
            told.savings.wrote(summary);
        }
        let change = |step: &plan::PlanStep| WhatIfEvent {
            session: line.session.clone(),
            call: self.calls,
            at: line.at(),
            model: line.model.clone(),
            change: step.change,
            why: step.why,
            tokens_before: step.tokens_before,
            tokens_after: step.tokens_after,
        };
        for step in &turn.done.steps {
            match step.decision {
                Decision::New => told.events.push(change(step)),
                Decision::Refused => {
                    let why = serde_json::to_value(step.why).unwrap_or_default();
                    let why = why.as_str().unwrap_or_default().to_owned();
                    *told.refused.entry(why).or_default() += 1;
                }
                Decision::Replayed => {}
            }
        }
        if line.actual().is_none() || turn.usage.input.is_none() {
            return;
        }
        told.calls += 1;
        told.priced_calls += u64::from(model.price.is_some());
        told.as_it_was.add(&answer_of(line, turn.dialect, &[]).usage, turn, model);
        told.under_policy.add(&turn.usage, turn, model);
        let parent = turn.position.parent.as_ref().and_then(|parent| self.ledger.turn(parent));
        told.savings.add(&SavingsInput::of(turn, parent.map(Arc::as_ref), model.price).saved());
    }
}

/// How many tokens went for each that is claimed: here the provider's own count of them is known.
fn measured_share(done: &RewriteSummary, removed: u64) -> Option<f64> {
    let claimed = done.tokens_removed.saturating_add(done.tokens_compacted);
    (claimed > 0).then(|| removed as f64 / claimed as f64)
}

fn tokens(parts: &[SketchPart]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}

/// The summary that would be written of a request, if it would be worth its place.
fn written(
    call: &WhatIfCall<'_>,
    known: &RecordedDecisions,
    measured: &MeasuredEstimate,
    due: CompactionNeed,
    asked: &WhatIfOptions,
) -> Option<CompactionRecord> {
    let request = &call.request;
    let by = *compact::writers(request, false, false).first()?;
    let choice = compact::choose(request, known, &measured.parts, by)?;
    // What it says is not known: so many words of one token each.
    let words = " summary".repeat(asked.summary_tokens as usize);
    let raw = compact::lay_out(request, known, choice.cut, &words, 0, false).raw;
    let encoding = request.tokenizer.encoding;
    let tokens = encoding.map_or(raw.len() / 4, |encoding| encoding.count(&raw)) as u64;
    let why = if due == CompactionNeed::Must {
        DecisionReason::Window
    } else {
        DecisionReason::Threshold
    };
    if !compact::is_accepted(request, (measured.estimate.tokens, choice.was, tokens), why) {
        return None;
    }
    // Whoever writes it reads all that was sent; of another model, or a cold cache, nothing is cached.
    let input = measured.estimate.tokens;
    let own = request.policy.compact.model.is_none() && !is_cold(request, known);
    let held = known.parent.as_ref().filter(|_| own).and_then(|parent| parent.usage.input);
    let spent = Usage {
        input: Some(input),
        output: Some(u64::from(asked.summary_tokens)),
        cache_read: Some(held.unwrap_or(0).min(input)),
        ..Usage::default()
    };
    Some(CompactionRecord {
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
        took: 0,
        carries: None,
        shadow: false,
        after: None,
    })
}
