//! What is told of a compaction: who wrote the summary, when and why, what it took the place of, and what
//! that cost.
//!
//! Shown outward, so nothing in it may hold a word of a summary (invariant 9). Money is priced by whoever
//! knows prices. Pure.

use std::sync::Arc;

use foldhash::HashSet;
use serde::{Deserialize, Serialize};

use crate::context::ledger::Ledger;
use crate::context::plan::DecisionReason;
use crate::context::policy::SummaryAuthor;
use crate::context::{CompactionRecord, Millis, Turn};
use crate::dialect::Usage;

/// A compaction, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// Who wrote the summary.
    pub engine: SummaryAuthor,
    /// The upstream that was asked.
    pub upstream: Box<str>,
    /// The model that was asked.
    pub model: Box<str>,
    /// Why.
    pub why: DecisionReason,
    /// When it was taken into use, ms since 1970; of one that still waits, when it was written.
    pub at: Millis,
    /// The exchange that took it into use, or for which it was written.
    pub request: Box<str>,
    /// What the messages before the cut cost, tokens, estimated.
    pub tokens_before: u64,
    /// What stands in their place costs, tokens, estimated.
    pub tokens_after: u64,
    /// How long writing took, ms.
    pub took_ms: Millis,
    /// What writing cost, as reported: overhead, in no turn's usage.
    pub spent: Usage,
    /// The same at catalogue prices, US dollars; `None` where price or usage is not known.
    pub dollars: Option<f64>,
}

/// The compactions of a context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compactions {
    /// Those that it rests on, oldest first: the last one stands at its beginning, those before it are
    /// folded into it.
    pub used: Vec<CompactionReport>,
    /// Written, and waiting for the context to cross the threshold.
    pub ready: Option<CompactionReport>,
}

impl CompactionReport {
    /// Of a fact, without its price.
    pub fn of(compact: &CompactionRecord) -> Self {
        Self {
            engine: compact.by,
            upstream: compact.upstream.clone(),
            model: compact.model.clone(),
            why: compact.why,
            at: compact.at,
            request: compact.request.clone(),
            tokens_before: compact.was,
            tokens_after: u64::from(compact.tokens),
            took_ms: compact.took,
            spent: compact.spent.clone(),
            dollars: None,
        }
    }
}

impl Compactions {
    /// Whether there are none.
    pub fn is_nothing(&self) -> bool {
        self.used.is_empty() && self.ready.is_none()
    }

    /// The one at the beginning of the context.
    pub fn newest(&self) -> Option<&CompactionReport> {
        self.used.last()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut CompactionReport> {
        self.used.iter_mut().chain(&mut self.ready)
    }

    /// Those of a turn's context: the summary that was sent with it is found in its sketch, those before
    /// it with the turns it grew from.
    pub fn of_turn(ledger: &Ledger, turn: &Turn) -> Self {
        if ledger.summaries(false).chain(ledger.compacts(false)).next().is_none() {
            return Self::default();
        }
        let line = line(ledger, turn);
        let sketch = ledger.sketch(turn).filter(|_| turn.done.is_sent()).unwrap_or_default();
        let sent: HashSet<_> = sketch.iter().map(|part| part.key).collect();
        let newest = ledger.compacts(false).find(|compact| sent.contains(&compact.key()));
        let Some(newest) = newest else {
            return Self { used: Vec::new(), ready: ready(ledger, &line, 0) };
        };
        let folded = |one: &&Arc<CompactionRecord>| {
            one.about != newest.about && one.at <= newest.at && line.contains(&*one.request)
        };
        let mut used: Vec<_> = ledger.compacts(false).filter(folded).collect();
        used.sort_by_key(|compact| compact.at);
        used.push(newest);
        let used = used.into_iter().map(|compact| CompactionReport::of(compact)).collect();
        Self { used, ready: ready(ledger, &line, newest.at) }
    }
}

/// The exchanges that a turn grew from, itself among them.
fn line<'l>(ledger: &'l Ledger, turn: &'l Turn) -> HashSet<&'l str> {
    let parent = |turn: &&'l Turn| Some(&**ledger.turn(turn.position.parent.as_deref()?)?);
    let turns = std::iter::successors(Some(turn), parent);
    let mut line = HashSet::default();
    // What was seen before is a circle: the facts contradict each other.
    turns.map(|turn| &*turn.request).take_while(|request| line.insert(*request)).for_each(drop);
    line
}

/// The newest summary that was written for one of these exchanges after `since` and is not in use.
fn ready(ledger: &Ledger, line: &HashSet<&str>, since: Millis) -> Option<CompactionReport> {
    let is_used = |one: &CompactionRecord| {
        ledger.compacts(false).any(|used| (used.about, used.after) == (one.about, one.after))
    };
    let fresh = ledger.summaries(false).filter(|one| one.at > since);
    let ready = fresh.filter(|one| line.contains(&*one.request) && !is_used(one));
    ready.max_by_key(|one| one.at).map(|one| CompactionReport::of(one))
}

#[cfg(test)]
mod tests;
