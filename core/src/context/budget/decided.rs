//! The number that decisions about a request use, which is also the number that is shown: our own estimate,
//! or that of an agent's rules if they decide.
//!
//! Only this file chooses between them. Views, decisions, log lines and metrics take the number from here.

use std::borrow::Cow;

use foldhash::HashSet;

use super::anchor::Anchor;
use super::classic::{ClassicEstimate, classic, counted_from};
use super::measure::{MeasuredEstimate, measure};
use super::sums::fit;
use crate::context::plan::{Decision, Overlay, PlanRequest, RecordedDecisions};
use crate::context::{Band, Breakdown, CostPrediction, CountingMethod, Estimate, EstimateMethod};
use crate::dialect::{self, Dialect, Part, PartIndex, PartKey, Span};
use crate::tokens::classic::{ClassicRules, SentContent};
use crate::tokens::learn::EstimatorState;

/// What `request` will cost in its planned form, by the count that decides. `known`: the recorded decisions
/// in that form.
pub fn estimate(
    request: &PlanRequest<'_>,
    sent: &Overlay,
    known: &RecordedDecisions,
    anchor: Option<Anchor<'_>>,
    learned: &EstimatorState,
) -> MeasuredEstimate {
    let conversation = request.conversation;
    let body = request.body;
    let tokenizer = request.tokenizer;
    let mut measured = measure(conversation, body, sent, request.model, anchor, tokenizer, learned);
    let policy = &request.policy.estimate;
    let Some(rules) = policy.rules() else { return measured };
    // Such rules know nothing of summaries: after one, they count from the start.
    let anchor = match measured.estimate.method {
        EstimateMethod::Compacted => None,
        EstimateMethod::Anchored | EstimateMethod::Estimated | EstimateMethod::Held => anchor,
    };
    let is_whole = anchor.is_none() || !rules.anchored;
    let added = added(rules, request, sent, known, is_whole);
    let cuts = CutResult::all(request, sent, known);
    let mut counted =
        classic(rules, conversation, body, anchor, added, |part| seen(part, sent, &cuts));
    counted.count_removed(rules, request, (sent, known), anchor, &cuts);
    measured.classic = Some(counted);
    if policy.deciding().is_some() {
        measured.ruled_by_classic();
    }
    measured
}

impl MeasuredEstimate {
    fn ruled_by_classic(&mut self) {
        let Some(classic) = &self.classic else { return };
        let estimate = &mut self.estimate;
        estimate.tokens = classic.tokens;
        estimate.new = classic.new;
        estimate.gone = classic.gone;
        estimate.method = classic.method;
        estimate.counting = CountingMethod::Length;
        self.removed = Some(classic.removed);
        let breakdown = Breakdown {
            system: classic.system,
            tools: classic.tools,
            head: None,
            ..estimate.breakdown
        };
        estimate.breakdown = fit(breakdown, classic.tokens);
    }
}

impl Estimate {
    /// The range that contains the real number in nine of ten cases; `None` for a number by an agent's rules.
    pub fn band(&self) -> Option<Band> {
        let CostPrediction { tokens, low, high, .. } = self.guess;
        // A number by an agent's rules is not the one that was predicted.
        if tokens == self.tokens { Some(Band { low, high }) } else { None }
    }
}

impl ClassicEstimate {
    /// Counts what is not sent of the messages, and subtracts what was cleared since the earlier call.
    fn count_removed(
        &mut self,
        rules: &ClassicRules,
        request: &PlanRequest<'_>,
        (sent, known): (&Overlay, &RecordedDecisions),
        anchor: Option<Anchor<'_>>,
        cuts: &[CutResult<'_>],
    ) {
        let conversation = request.conversation;
        let body = request.body;
        if sent.summary().is_some() {
            let replaced = known.kept_from().min(conversation.messages.len());
            let replaced = rules.weigh(body, &conversation.messages[..replaced], &whole);
            let summary = rules.sum(summary_of(request, known));
            self.removed.compacted = rules.sum(replaced).saturating_sub(summary);
        }
        if cuts.is_empty() {
            return;
        }
        let cleared = ClearedResults::new(rules, request, sent, cuts, anchor);
        let share = cleared.reported_share(self.before);
        self.removed.cut = cleared.tokens(self, share, &|_| true);
        self.removed.pruned = cleared.tokens(self, share, &|cut| cut.is_new);
        self.subtract(cleared.tokens(self, share, &|cut| cleared.is_late(cut)));
    }
}

/// A tool result of which a placeholder or a part is sent.
struct CutResult<'k> {
    at: PartIndex,
    span: Span,
    /// The key of what is sent.
    key: PartKey,
    text: Cow<'k, str>,
    is_trim: bool,
    /// This request is the first in its branch that is sent so.
    is_new: bool,
}

impl<'k> CutResult<'k> {
    fn all(request: &PlanRequest<'_>, sent: &Overlay, known: &'k RecordedDecisions) -> Vec<Self> {
        let cuts = known.cuts_here().filter_map(|(at, _, cut)| {
            let part = request.part(at)?;
            let (key, _) = sent.replaced(part.span)?;
            let decision = known.decision(cut.about.0, &cut.exchange, request.exchange);
            Some(Self {
                at,
                span: part.span,
                key,
                text: cut.content.text(part, request.body)?,
                is_trim: cut.is_trim(),
                is_new: decision == Decision::New,
            })
        });
        cuts.collect()
    }
}

fn seen<'c>(part: &Part, sent: &Overlay, cuts: &'c [CutResult<'_>]) -> SentContent<'c> {
    if sent.is_gone(part.span) {
        return SentContent::Gone;
    }
    let cut = cuts.binary_search_by_key(&part.span.start, |cut| cut.span.start);
    match cut.ok().and_then(|index| cuts.get(index)) {
        None => SentContent::Whole,
        Some(cut) if cut.is_trim => SentContent::Trimmed(&cut.text),
        Some(cut) => SentContent::Text(&cut.text),
    }
}

pub(super) fn whole(_: &Part) -> SentContent<'static> {
    SentContent::Whole
}

/// The results of a request that are not sent whole, seen from the earlier call that its count is based on.
struct ClearedResults<'r> {
    rules: &'r ClassicRules,
    request: &'r PlanRequest<'r>,
    sent: &'r Overlay,
    cuts: &'r [CutResult<'r>],
    /// The first message after that call and its reply; 0 without one.
    new_from: usize,
    /// What that call sent.
    sketched: HashSet<PartKey>,
}

impl<'r> ClearedResults<'r> {
    fn new(
        rules: &'r ClassicRules,
        request: &'r PlanRequest<'r>,
        sent: &'r Overlay,
        cuts: &'r [CutResult<'r>],
        anchor: Option<Anchor<'_>>,
    ) -> Self {
        let new_from = counted_from(rules, request.conversation, anchor);
        let sketch = match anchor {
            Some(anchor) if new_from > 0 => anchor.sketch,
            _ => &[],
        };
        Self {
            rules,
            request,
            sent,
            cuts,
            new_from,
            sketched: sketch.iter().map(|part| part.key).collect(),
        }
    }

    /// Whether the earlier call's input has it in full.
    fn is_late(&self, cut: &CutResult<'_>) -> bool {
        cut.at.message < self.new_from && !self.sketched.contains(&cut.key)
    }

    /// The reported tokens for each token that the rules count in what comes from the earlier call, 1 at most: a
    /// result that is cleared takes away no more than its share of what was reported.
    fn reported_share(&self, reported: u64) -> f64 {
        let Self { rules, request, sent, cuts, .. } = self;
        let cleared = self.weight(&|cut| self.is_late(cut));
        // Long histories are not counted for nothing.
        if cleared == 0.0 {
            return 1.0;
        }
        let messages = &request.conversation.messages[..self.new_from];
        let head = rules.head(request.conversation, request.body);
        let weight = rules.weigh(request.body, messages, &|part: &Part| seen(part, sent, cuts));
        let counted = rules.sum(head + weight + cleared).max(1);
        (reported as f64 / counted as f64).min(1.0)
    }

    /// The tokens that the cuts for which `is_meant` holds save in the count `estimate`.
    fn tokens(
        &self,
        estimate: &ClassicEstimate,
        share: f64,
        is_meant: &dyn Fn(&CutResult<'_>) -> bool,
    ) -> u64 {
        let late = self.weight(&|cut| self.is_late(cut) && is_meant(cut));
        let others = self.weight(&|cut| !self.is_late(cut) && is_meant(cut));
        let late = estimate.more(self.rules, late) as f64 * share;
        (late as u64).saturating_add(estimate.more(self.rules, others))
    }

    /// The weight that the cuts for which `is_meant` holds save, with what is inside the results.
    fn weight(&self, is_meant: &dyn Fn(&CutResult<'_>) -> bool) -> f64 {
        let Self { rules, request, sent, cuts, .. } = self;
        let mut saved = 0.0;
        for cuts_of_message in cuts.chunk_by(|a, b| a.at.message == b.at.message) {
            let index = cuts_of_message[0].at.message;
            let Some(message) = request.conversation.messages.get(index) else { continue };
            let message = std::slice::from_ref(message);
            // The difference of two counts: each piece is rounded by itself.
            let cut_weight =
                rules.weigh(request.body, message, &|part: &Part| seen(part, sent, cuts));
            let weight = rules.weigh(request.body, message, &|part: &Part| {
                let mut holders = cuts_of_message.iter();
                let holder = holders
                    .find(|cut| cut.span.start <= part.span.start && part.span.end <= cut.span.end);
                match holder {
                    Some(cut) if is_meant(cut) => SentContent::Whole,
                    _ => seen(part, sent, cuts),
                }
            });
            saved += weight - cut_weight;
        }
        saved
    }
}

fn summary_of(request: &PlanRequest<'_>, known: &RecordedDecisions) -> f64 {
    let rules = &request.policy.estimate.rules;
    let dialect = request.conversation.dialect;
    known.compact().map_or(0.0, |(_, compact)| messages_weight(rules, dialect, &compact.raw))
}

/// The weight of what is sent but not from the client: the summary, and injected messages.
fn added(
    rules: &ClassicRules,
    request: &PlanRequest<'_>,
    sent: &Overlay,
    known: &RecordedDecisions,
    is_whole: bool,
) -> f64 {
    // If the count is based on an earlier call, only messages injected for the first time.
    // With an earlier call, only what is new since counts.
    let is_summarised = is_whole && sent.summary().is_some();
    let summary = if is_summarised { summary_of(request, known) } else { 0.0 };
    let mut weight = 0.0;
    for (at, messages) in known.injections() {
        if request.part(at).is_none_or(|part| sent.injected_after(part.span).is_empty()) {
            continue;
        }
        for place in messages.into_iter().filter_map(|message| message.place()) {
            if is_whole || place.exchange == *request.exchange {
                weight += rules.weigh_text(&place.text);
            }
        }
    }
    summary + weight
}

/// The weight of messages, the elements of a request's list as raw JSON.
pub(super) fn messages_weight(rules: &ClassicRules, dialect: Dialect, raw: &str) -> f64 {
    let target = match dialect {
        Dialect::Anthropic => "/v1/messages",
        Dialect::OpenaiChat => "/v1/chat/completions",
        Dialect::OpenaiResponses => "/v1/responses",
        Dialect::Gemini => "/v1beta/models/m:generateContent",
    };
    let body = format!("{{\"{}\":[{raw}]}}", messages_member(dialect));
    let read = dialect::read(dialect, target, body.as_bytes());
    rules.weigh(body.as_bytes(), &read.messages, &|_: &Part| SentContent::Whole)
}

/// The member of a request that its messages are in.
pub(super) fn messages_member(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => "messages",
        Dialect::OpenaiResponses => "input",
        Dialect::Gemini => "contents",
    }
}

#[cfg(test)]
mod tests;
