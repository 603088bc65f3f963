//! What was spent of each cap: read from the kept turns at the start ([`super::past_spending`]), then added to as turns are
//! stored.
//!
//! So the sums survive a crash as the turns do. What retention or a person deleted is missing after the next start.
//! Processes that share a store add up there ([`super::shared_caps`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::broadcast;

use super::lock::lock;
use super::opened_session::{OpenedSession, SessionHandle};
use crate::context::caps::{Cap, CapState, CapSums, Spender, Spending, SumKey};
use crate::context::ledger::Ledger;
use crate::context::{CompactionRecord, Millis, Turn};
use crate::store::Scope;

/// Events that a slow subscriber may be behind.
const BEHIND: usize = 64;

/// What a turn costs, US dollars: with one that was interrupted, nothing is stored of it.
pub type TurnCost = Arc<dyn Fn(&Turn) -> Option<f64> + Send + Sync>;

/// What was spent, and what may be.
pub struct CapBoard {
    pub(super) sums: Mutex<CapSums>,
    configured: OnceLock<Vec<Cap>>,
    pub(super) kept: tokio::sync::Mutex<KeptCapChanges>,
    /// What was spent since the last addition to the shared store.
    pub(super) unsent: Mutex<BTreeMap<SumKey, Spending>>,
    /// Held while an addition is sent: one at a time.
    pub(super) addition: tokio::sync::Mutex<SumAddition>,
    passed: broadcast::Sender<CapState>,
    cost: OnceLock<TurnCost>,
}

/// The last addition to sums that several processes share: what calls spent that ended at about the same time.
#[derive(Default)]
pub(super) struct SumAddition {
    /// How many additions there were.
    pub(super) number: u64,
    /// Empty once it is confirmed.
    pub(super) sums: Vec<(SumKey, Spending)>,
}

/// The document of what was changed of the caps, as it was read or written last, and the folder of its file.
#[derive(Default)]
pub(super) struct KeptCapChanges {
    pub(super) text: Option<Bytes>,
    pub(super) folder: Option<PathBuf>,
}

impl Default for CapBoard {
    fn default() -> Self {
        Self {
            sums: Mutex::default(),
            configured: OnceLock::new(),
            kept: tokio::sync::Mutex::default(),
            unsent: Mutex::default(),
            addition: tokio::sync::Mutex::default(),
            passed: broadcast::channel(BEHIND).0,
            cost: OnceLock::new(),
        }
    }
}

impl CapBoard {
    /// Sets, once, the configured caps; before that there are none.
    pub fn configure(&self, caps: Vec<Cap>) {
        *lock(&self.sums) = CapSums::new(self.configured.get_or_init(|| caps).clone());
    }

    pub(super) fn configured(&self) -> &[Cap] {
        self.configured.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The cap of this name that holds now.
    pub(crate) fn named(&self, name: &str) -> Option<Cap> {
        lock(&self.sums).cap(name).cloned()
    }

    /// Sets, once, what turns cost that were stored without it.
    pub fn price_by(&self, cost: TurnCost) {
        let _ = self.cost.set(cost);
    }

    /// What a stored turn spent.
    pub(super) fn pricing(&self) -> impl Fn(&Turn) -> Spending + Clone + Send + use<> {
        let cost = self.cost.get().cloned();
        move |turn| {
            let dollars = turn.dollars.or_else(|| cost.as_ref()?(turn));
            Spending::new(&turn.usage, dollars)
        }
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

    /// Subscribes to caps of which 80 % or the whole was just spent.
    pub fn passed(&self) -> broadcast::Receiver<CapState> {
        self.passed.subscribe()
    }

    /// Adds what was spent; returns what other processes should know of it.
    fn add(&self, spender: &Spender, spending: Spending, at: Millis) -> Vec<(SumKey, Spending)> {
        let (passed, keys) = {
            let mut sums = lock(&self.sums);
            (sums.add(spender, spending, at), sums.keys(spender, at))
        };
        self.tell(passed);
        keys.into_iter().map(|key| (key, spending)).collect()
    }

    /// Tells that caps are reached, or nearly.
    pub(super) fn tell(&self, passed: Vec<CapState>) {
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
    pub(super) fn add_turn(&self, opened: &OpenedSession, turn: &Turn) -> Vec<(SumKey, Spending)> {
        let spending = Spending::from_turn(turn);
        // Another exchange that read its reply has added it.
        if spending == Spending::default() || opened.is_completed(&turn.usage) {
            return Vec::new();
        }
        if self.has_caps() {
            return self.add(&opened.spender(&turn.upstream), spending, turn.at);
        }
        lock(&self.sums).add_to_day(spending, turn.at);
        vec![(CapSums::day_key(turn.at), spending)]
    }

    /// Adds a turn whose reply came after its exchange. `earlier`: what was added of it then.
    pub(super) fn add_late_turn(
        &self,
        scope: &Scope,
        turn: &Turn,
        earlier: Spending,
    ) -> Vec<(SumKey, Spending)> {
        let spender = turn_spender(scope, turn, None);
        self.add(&spender, Spending::from_turn(turn).less(earlier), turn.at)
    }

    /// Adds a summary of ours that is stored now.
    pub(super) fn add_summary(
        &self,
        handle: &SessionHandle,
        summary: &CompactionRecord,
    ) -> Vec<(SumKey, Spending)> {
        let spender = Spender {
            tenant: handle.scope.tenant.clone(),
            session: handle.scope.session.clone(),
            project: handle.cache.look(project_of),
            tags: Vec::new(),
            upstream: summary.upstream.clone(),
        };
        self.add(&spender, Spending::from_summary(summary), summary.at)
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

/// Who paid for a turn. `project`: that of its session, which a call beside the conversation does not state.
pub(crate) fn turn_spender(scope: &Scope, turn: &Turn, project: Option<&str>) -> Spender {
    let origin = turn.origin.as_deref();
    let stated = origin.and_then(|origin| origin.project.as_deref());
    Spender {
        tenant: scope.tenant.clone(),
        session: scope.session.clone(),
        project: stated.or(project).map(Into::into),
        tags: origin.map(|origin| origin.tags.clone()).unwrap_or_default(),
        upstream: turn.upstream.clone(),
    }
}

pub(super) fn project_of(ledger: &Ledger) -> Option<Box<str>> {
    ledger.turns().rev().find_map(|turn| turn.origin.as_deref()?.project.clone())
}
