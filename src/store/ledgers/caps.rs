//! What was spent of each cap: read from the kept turns at the start, then added to as turns are stored.
//!
//! So the sums survive a crash as the turns do. What retention or a person deleted is missing after the next start.

use std::sync::Mutex;

use tokio::sync::broadcast;

use super::lock::lock;
use super::{Ledgers, OpenedSession, SessionHandle};
use crate::context::caps::{Cap, CapState, CapSums, Spender, Spending};
use crate::context::ledger::Ledger;
use crate::context::policy::DecisionMode;
use crate::context::{CompactionRecord, Millis, SessionNames, Turn};
use crate::store::{Scope, ScopePage, StoreError};

/// Sessions that are read in one step.
const PAGE: usize = 500;
/// Events that a slow subscriber may be behind.
const BEHIND: usize = 64;

/// What was spent, and what may be.
pub struct CapBoard {
    sums: Mutex<CapSums>,
    passed: broadcast::Sender<CapState>,
}

impl Default for CapBoard {
    fn default() -> Self {
        Self { sums: Mutex::default(), passed: broadcast::channel(BEHIND).0 }
    }
}

impl CapBoard {
    /// Sets the caps; before that there are none.
    pub fn set(&self, caps: Vec<Cap>) {
        *lock(&self.sums) = CapSums::new(caps);
    }

    /// Whether there is a cap.
    pub(crate) fn has_caps(&self) -> bool {
        lock(&self.sums).has_caps()
    }

    /// The fullest cap that limits a spender.
    pub(crate) fn fullest(&self, spender: &Spender, now: Millis) -> Option<CapState> {
        lock(&self.sums).fullest(spender, now)
    }

    /// What is spent of each cap now, the fullest first.
    pub(crate) fn list(&self, now: Millis) -> Vec<CapState> {
        lock(&self.sums).list(now)
    }

    /// What was spent today, UTC.
    pub(crate) fn today(&self, now: Millis) -> Spending {
        lock(&self.sums).today(now)
    }

    /// Lets a cap stop nothing until its period ends; whether there is one of this name.
    pub(crate) fn lift(&self, name: &str, now: Millis) -> bool {
        lock(&self.sums).lift(name, now)
    }

    /// Subscribes to caps of which 80 % or the whole was just spent.
    pub fn passed(&self) -> broadcast::Receiver<CapState> {
        self.passed.subscribe()
    }

    fn add(&self, spender: &Spender, spending: Spending, at: Millis) {
        let passed = lock(&self.sums).add(spender, spending, at);
        for state in passed {
            let CapState { cap, subject, .. } = &state;
            if state.used >= 1.0 {
                tracing::warn!(
                    "cap {cap} is reached ({state}, of {subject}): the next request is refused"
                );
            } else {
                tracing::warn!("cap {cap} is nearly reached: {state}, of {subject}");
            }
            // It is fine if nobody subscribes.
            let _ = self.passed.send(state);
        }
    }

    /// Adds a turn that is stored now.
    pub(super) fn add_turn(&self, opened: &OpenedSession, turn: &Turn) {
        let spending = Spending::from_turn(turn);
        // Another exchange that read its reply has added it.
        if spending != Spending::default() && !opened.is_completed() {
            self.add(&opened.spender(&turn.upstream), spending, turn.at);
        }
    }

    /// Adds a turn whose reply came after its exchange. `earlier`: what was added of it then.
    pub(super) fn add_late_turn(&self, scope: &Scope, turn: &Turn, earlier: Spending) {
        let origin = turn.origin.as_deref();
        let spender = Spender {
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            project: origin.and_then(|origin| origin.project.clone()),
            tags: origin.map(|origin| origin.tags.clone()).unwrap_or_default(),
            upstream: turn.upstream.clone(),
        };
        self.add(&spender, Spending::from_turn(turn).less(earlier), turn.at);
    }

    /// Adds a summary of ours that is stored now.
    pub(super) fn add_summary(&self, handle: &SessionHandle, summary: &CompactionRecord) {
        let spender = Spender {
            tenant: handle.scope.tenant.clone(),
            session: handle.scope.session.clone(),
            project: handle.cache.look(project_of),
            tags: Vec::new(),
            upstream: summary.upstream.clone(),
        };
        self.add(&spender, Spending::from_summary(summary), summary.at);
    }
}

impl OpenedSession {
    /// Who pays for its request at this upstream.
    pub(crate) fn spender(&self, upstream: &str) -> Spender {
        let project = self.origin.project.clone();
        Spender {
            tenant: self.scope.tenant.clone(),
            session: self.scope.session.clone(),
            // A call beside the conversation does not state it.
            project: project.or_else(|| self.cache.look(project_of)),
            tags: self.origin.tags.clone(),
            upstream: upstream.into(),
        }
    }
}

fn project_of(ledger: &Ledger) -> Option<Box<str>> {
    ledger.turns().rev().find_map(|turn| turn.origin.as_deref()?.project.clone())
}

/// A sum to add: who spent what, and when.
type Addition = (Spender, Spending, Millis);

impl Ledgers {
    /// What was spent, and what may be.
    pub fn caps(&self) -> &CapBoard {
        &self.caps
    }

    /// Adds what the kept turns of requests that arrived before `now` spent in the running periods.
    ///
    /// # Errors
    /// The store's [`StoreError`]; what was read until then counts.
    pub async fn read_spending(&self, now: Millis) -> Result<(), StoreError> {
        let since = lock(&self.caps.sums).since(now);
        let mut page = ScopePage { after: None, skip: 0, count: PAGE };
        loop {
            let lines = self.sessions(page).await?;
            // Newest first: the rest was last used before.
            let used = lines.iter().filter(|line| line.cursor.used >= since);
            let mut count = 0;
            for line in used {
                count += 1;
                let scope = line.scope.clone();
                let reading = self.look_at_one_of_many(&line.scope, move |ledger| {
                    additions(&scope, ledger, since, now)
                });
                let additions = reading.await?;
                let mut sums = lock(&self.caps.sums);
                for (spender, spending, at) in additions {
                    sums.add(&spender, spending, at);
                }
            }
            if count < PAGE {
                return Ok(());
            }
            page.after = lines.last().map(|line| line.cursor);
        }
    }
}

fn additions(scope: &Scope, ledger: &Ledger, since: Millis, now: Millis) -> Vec<Addition> {
    let project = SessionNames::from_ledger(ledger).project;
    let spender = |upstream: &str, tags: Vec<Box<str>>| Spender {
        tenant: scope.tenant.clone(),
        session: scope.session.clone(),
        project: project.clone(),
        tags,
        upstream: upstream.into(),
    };
    let mut additions = Vec::new();
    for turn in ledger.turns().filter(|turn| turn.at >= since && turn.at < now) {
        let tags = turn.origin.as_deref().map(|origin| origin.tags.clone()).unwrap_or_default();
        additions.push((spender(&turn.upstream, tags), Spending::from_turn(turn), turn.at));
    }
    for one in ledger.summaries(DecisionMode::Active) {
        if one.at >= since && one.at < now {
            let spending = Spending::from_summary(one);
            additions.push((spender(&one.upstream, Vec::new()), spending, one.at));
        }
    }
    additions
}
