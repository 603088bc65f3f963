//! The number that decisions about a request use, which is also the number that is shown: our own estimate,
//! or that of an agent's rules if they decide.
//!
//! Only this file chooses between them. Views, decisions, log lines and metrics take the number from here.

use std::borrow::Cow;

use foldhash::HashMap;

use super::anchor::Anchor;
use super::classic::classic;
use super::measure::{MeasuredEstimate, measure};
use super::sums::fit;
use crate::context::plan::{Overlay, PlanRequest, RecordedDecisions};
use crate::context::{Band, Breakdown, CostPrediction, CountingMethod, Estimate, EstimateMethod};
use crate::dialect::{self, Dialect};
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
    let (conversation, body) = (request.conversation, request.body);
    let tokenizer = request.tokenizer;
    let mut measured = measure(conversation, body, sent, request.model, anchor, tokenizer, learned);
    let policy = &request.policy.estimate;
    let Some(rules) = policy.rules() else { return measured };
    // Such rules know nothing of summaries: after one, they count from the start.
    let anchor = anchor.filter(|_| measured.estimate.method != EstimateMethod::Compacted);
    let is_whole = anchor.is_none() || !rules.anchored;
    let added = added(rules, request, sent, known, is_whole);
    let cuts = known.cuts_here().filter_map(|(at, _, cut)| {
        let part = request.part(at)?;
        Some((part.span.start, cut.content.text(part, body)?))
    });
    let cuts: HashMap<usize, Cow<'_, str>> = cuts.collect();
    let seen = |part: &dialect::Part| match part.span {
        span if sent.is_gone(span) => SentContent::Gone,
        span if sent.replaced(span).is_none() => SentContent::Whole,
        span => cuts
            .get(&span.start)
            .map_or(SentContent::Whole, |replaced_by| SentContent::Text(replaced_by)),
    };
    measured.classic = Some(classic(rules, conversation, body, anchor, added, seen));
    if policy.deciding().is_some() {
        measured.ruled_by_classic();
    }
    measured
}

impl MeasuredEstimate {
    /// Replaces our number by the classic one: it is shown, stored and used for decisions.
    fn ruled_by_classic(&mut self) {
        let Some(classic) = &self.classic else { return };
        let estimate = &mut self.estimate;
        (estimate.tokens, estimate.new, estimate.gone) =
            (classic.tokens, classic.new, classic.gone);
        (estimate.method, estimate.counting) = (classic.method, CountingMethod::Length);
        let (system, tools) = (classic.system, classic.tools);
        estimate.breakdown = fit(Breakdown { system, tools, ..estimate.breakdown }, classic.tokens);
    }
}

impl Estimate {
    /// The range that contains the real number in nine of ten cases; `None` for a number by an agent's rules.
    pub fn band(&self) -> Option<Band> {
        let CostPrediction { tokens, low, high, .. } = self.guess;
        (tokens == self.tokens).then_some(Band { low, high })
    }
}

/// The weight of what is sent but not from the client: the summary, and injected messages. If the count is
/// based on an earlier call, only messages injected for the first time.
fn added(
    rules: &ClassicRules,
    request: &PlanRequest<'_>,
    sent: &Overlay,
    known: &RecordedDecisions,
    is_whole: bool,
) -> f64 {
    let summary = known.compact().filter(|_| is_whole && sent.summary().is_some());
    let summary = summary.map_or(0.0, |(_, compact)| {
        summary_weight(rules, request.conversation.dialect, &compact.raw)
    });
    let injected = known.injections().flat_map(|(at, injected)| {
        let is_sent =
            request.part(at).is_some_and(|part| !sent.injected_after(part.span).is_empty());
        injected.into_iter().filter_map(|injected| injected.place()).filter(move |_| is_sent)
    });
    let new = injected.filter(|place| is_whole || place.exchange == *request.exchange);
    summary + new.map(|place| rules.weigh_text(&place.text)).sum::<f64>()
}

/// The weight of a summary's messages.
fn summary_weight(rules: &ClassicRules, dialect: Dialect, raw: &str) -> f64 {
    let (target, member) = match dialect {
        Dialect::Anthropic => ("/v1/messages", "messages"),
        Dialect::OpenaiChat => ("/v1/chat/completions", "messages"),
        Dialect::OpenaiResponses => ("/v1/responses", "input"),
        Dialect::Gemini => ("/v1beta/models/m:generateContent", "contents"),
    };
    let body = format!("{{\"{member}\":[{raw}]}}");
    let read = dialect::read(dialect, target, body.as_bytes());
    rules.weigh(body.as_bytes(), &read.messages, &|_: &dialect::Part| SentContent::Whole)
}

#[cfg(test)]
mod tests;
