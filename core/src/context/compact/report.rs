//! Reports on a compaction: who wrote the summary, when and why, what it replaced, and what it cost.
//!
//! Shown to operators, so it must not contain any text of a summary (invariant 9). The caller, who knows
//! prices, adds the money. Pure.

use foldhash::HashSet;
use serde::{Deserialize, Serialize};

use crate::context::ledger::Ledger;
use crate::context::plan::DecisionReason;
use crate::context::policy::{DecisionMode, SummaryAuthor};
use crate::context::{CompactionRecord, ExchangeId, Millis, Turn};
use crate::dialect::Usage;

/// One compaction, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CompactionReport {
    /// Who wrote the summary.
    pub engine: SummaryAuthor,
    /// The upstream that was asked.
    pub upstream: Box<str>,
    /// The model that was asked.
    pub model: Box<str>,
    /// Why the history was compacted.
    pub why: DecisionReason,
    /// When it was first used, or written if it is not in use yet; ms since 1970.
    pub at: Millis,
    /// The exchange that first used it, or that it was written for.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Tokens of the messages before the cut, estimated.
    pub tokens_before: u64,
    /// Tokens of what replaces them, estimated.
    pub tokens_after: u64,
    /// How long writing took, ms.
    pub took_ms: Millis,
    /// Reported usage for writing it. This is overhead, and in no turn's usage.
    pub spent: Usage,
    /// The same at catalogue prices, US dollars; `None` if price or usage is unknown.
    pub dollars: Option<f64>,
}

/// The compactions of a context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Compactions {
    /// Those in its history, oldest first. The last one is in the context; earlier ones are part of its text.
    pub used: Vec<CompactionReport>,
    /// A summary that is written and waits for the context to cross the threshold.
    pub ready: Option<CompactionReport>,
}

impl CompactionReport {
    fn from_record(compact: &CompactionRecord) -> Self {
        Self {
            engine: compact.by,
            upstream: compact.upstream.clone(),
            model: compact.model.clone(),
            why: compact.why,
            at: compact.at,
            exchange: compact.exchange.clone(),
            tokens_before: compact.was,
            tokens_after: u64::from(compact.tokens),
            took_ms: compact.took,
            spent: compact.spent.clone(),
            dollars: None,
        }
    }
}

impl Compactions {
    /// The compaction whose summary is in the context; it contains the earlier ones.
    pub fn newest(&self) -> Option<&CompactionReport> {
        self.used.last()
    }

    /// The used ones, then the one that is ready.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut CompactionReport> {
        self.used.iter_mut().chain(&mut self.ready)
    }

    /// The compactions of a turn's context: the one sent with it is found by its sketch, earlier ones by the
    /// turn's ancestors.
    pub fn of_turn(ledger: &Ledger, turn: &Turn) -> Self {
        if ledger
            .summaries(DecisionMode::Active)
            .chain(ledger.compacts(DecisionMode::Active))
            .next()
            .is_none()
        {
            return Self::default();
        }
        let line = line(ledger, turn);
        let sketch = match turn.done.is_sent() {
            true => ledger.sketch(turn).unwrap_or_default(),
            false => Vec::new(),
        };
        let sent_keys: HashSet<_> = sketch.iter().map(|part| part.key).collect();
        let newest = ledger
            .compacts(DecisionMode::Active)
            .find(|compact| sent_keys.contains(&compact.key()));
        let Some(newest) = newest else {
            return Self { used: Vec::new(), ready: ready(ledger, &line, 0) };
        };
        // Earlier ones were summarised again, and are part of the newest one's text.
        let mut used: Vec<_> = ledger
            .compacts(DecisionMode::Active)
            .filter(|one| {
                one.about != newest.about && one.at <= newest.at && line.contains(&one.exchange)
            })
            .collect();
        used.sort_by_key(|compact| compact.at);
        used.push(newest);
        let used = used.into_iter().map(|compact| CompactionReport::from_record(compact)).collect();
        Self { used, ready: ready(ledger, &line, newest.at) }
    }
}

fn line<'l>(ledger: &'l Ledger, turn: &'l Turn) -> HashSet<&'l ExchangeId> {
    ledger.line(Some(turn)).map(|turn| &turn.exchange).collect()
}

fn ready(ledger: &Ledger, line: &HashSet<&ExchangeId>, since: Millis) -> Option<CompactionReport> {
    let newest = ledger
        .summaries(DecisionMode::Active)
        .filter(|one| one.at > since && line.contains(&one.exchange) && !is_used(ledger, one))
        .max_by_key(|one| one.at)?;
    Some(CompactionReport::from_record(newest))
}

fn is_used(ledger: &Ledger, summary: &CompactionRecord) -> bool {
    ledger
        .compacts(DecisionMode::Active)
        .any(|used| (used.about, used.epoch) == (summary.about, summary.epoch))
}

#[cfg(test)]
mod tests;
