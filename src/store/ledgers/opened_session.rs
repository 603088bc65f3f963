//! A request's place among the turns of its session, and what is known there.
//!
//! While it is held, later requests of the conversation wait for it, for a short time. Knows sessions in memory, and
//! neither the store nor other sessions.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::continued_end::ContinuedEnd;
use super::fingerprints::RequestSource;
use super::session_cache::SessionCache;
use crate::context::budget::Anchor;
use crate::context::caps::{Spender, SumKey};
use crate::context::ledger::Ledger;
use crate::context::lineage::{Growth, Placement, place};
use crate::context::plan::RecordedDecisions;
use crate::context::policy::DecisionMode;
use crate::context::{
    DecisionEpoch, ExchangeId, Fact, Millis, Outcome, QueuedMessage, SessionId, SketchPart,
    TenantId, Turn, TurnOrigin, inject,
};
use crate::dialect::{Conversation, Usage};
use crate::store::Scope;
use crate::store::recall::ReadBudget;

/// What a request's session and its place there are found by.
pub struct SessionLookup<'a> {
    /// The keyed hash of the credential.
    pub tenant: &'a TenantId,
    /// The session that the client names.
    pub session: Option<&'a SessionId>,
    /// The thread that the client names.
    pub client_thread: Option<&'a str>,
    /// The exchange that sends it.
    pub exchange: &'a ExchangeId,
    /// How long to wait for the turn before it.
    pub timeout: Duration,
    /// How long to wait for the store.
    pub reads: &'a ReadBudget,
    /// Which decisions are used.
    pub decisions: DecisionMode,
    /// The connection and the agent that it comes from.
    pub source: RequestSource,
    /// Its body.
    pub body: &'a [u8],
    /// Who spends, as far as it is known yet, if there are caps.
    pub spender: Option<Spender>,
}

/// A request's place among the turns of its session. Until it is dropped, later requests wait for it for a
/// short time.
pub struct OpenedSession {
    /// The tenant and session that it belongs to.
    pub scope: Scope,
    /// Its thread and parent.
    pub placed: Placement,
    /// The turn that an estimate can be based on.
    pub anchor: Option<AnchorTurn>,
    /// The recorded decisions that apply to it.
    pub known: Arc<RecordedDecisions>,
    /// The store did not answer, so its data was not used.
    pub store_missed: bool,
    /// A record of the session was unreadable and left out; reported once.
    pub unread: bool,
    /// Where it comes from, which is stored with its turn.
    pub origin: TurnOrigin,
    /// Its reply gives the conversation a title, which is stored, too.
    pub keeps_title: bool,
    /// How long it may still wait for the store, now that its session is loaded.
    pub reads: ReadBudget,
    pub(super) connection: u64,
    pub(super) cache: Arc<SessionCache>,
    pub(super) exchange: ExchangeId,
    pub(super) began: Instant,
    /// The client named the session, so no fingerprint is needed to find it again.
    pub(super) named: bool,
    /// The end of a turn from which it is the first to go on.
    pub(super) continues: Option<ContinuedEnd>,
    /// The sums of spending that were read with the session.
    pub(super) fresh_sums: Vec<SumKey>,
}

/// What is known about a request that takes no place in its session.
pub(crate) struct SessionPeek {
    pub session: SessionId,
    /// The recorded decisions that apply to it.
    pub known: RecordedDecisions,
    /// The store did not answer, so its data was not used.
    pub store_missed: bool,
}

/// A turn whose reported usage measures its context, with the parts that it had sent.
#[derive(Clone)]
pub struct AnchorTurn {
    /// The nearest turn with reported usage, from the parent upwards.
    pub turn: Arc<Turn>,
    /// The parts of its request.
    pub sketch: Vec<SketchPart>,
}

impl AnchorTurn {
    pub(crate) fn as_anchor(&self) -> Anchor<'_> {
        Anchor { turn: &self.turn, sketch: &self.sketch }
    }
}

impl OpenedSession {
    /// The place of a request in its session, by what is known there now.
    pub(super) fn at(
        lookup: &SessionLookup<'_>,
        conversation: &Conversation,
        scope: Scope,
        cache: Arc<SessionCache>,
        began: Instant,
        store_missed: bool,
    ) -> Self {
        // In one look: another request must not come in between.
        let (placed, anchor, decisions) = cache.look(|ledger| {
            let placed = place(ledger, conversation, lookup.exchange, lookup.client_thread);
            let anchor = anchor(ledger, &placed);
            let decisions =
                RecordedDecisions::from_ledger(ledger, conversation, &placed, lookup.decisions);
            (placed, anchor, Arc::new(decisions))
        });
        cache.begin(lookup.exchange.clone(), placed.position.chain);
        Self {
            unread: cache.take_unread(),
            reads: lookup.reads.after_first_load(),
            exchange: lookup.exchange.clone(),
            named: lookup.session.is_some(),
            origin: TurnOrigin::default(),
            keeps_title: false,
            continues: None,
            fresh_sums: Vec::new(),
            connection: lookup.source.connection,
            scope,
            placed,
            anchor,
            known: decisions,
            store_missed,
            cache,
            began,
        }
    }

    /// Marks new decisions of a request in this epoch: each comes after the revocation of the decision before it.
    pub(crate) fn after_suspension(
        &self,
        facts: Vec<Fact>,
        epoch: Option<DecisionEpoch>,
    ) -> Vec<Fact> {
        self.cache.look(|ledger| {
            facts.into_iter().map(|fact| ledger.after_suspension(fact, epoch)).collect()
        })
    }

    /// The recorded decisions that apply to the request now.
    pub(crate) fn reload_decisions(
        &self,
        conversation: &Conversation,
        mode: DecisionMode,
    ) -> RecordedDecisions {
        self.cache
            .look(|ledger| RecordedDecisions::from_ledger(ledger, conversation, &self.placed, mode))
    }

    /// The handle by which later data of this exchange is written.
    pub(crate) fn handle(&self) -> SessionHandle {
        SessionHandle {
            scope: self.scope.clone(),
            cache: self.cache.clone(),
            exchange: self.exchange.clone(),
        }
    }

    /// The sums of spending that were read with the session: what all processes spent.
    pub(crate) fn fresh_sums(&self) -> &[SumKey] {
        &self.fresh_sums
    }

    /// Whether its reply was read by another exchange, which completed its turn and reported its usage, if this has one.
    pub(crate) fn is_completed(&self, usage: &Usage) -> bool {
        self.cache.look(|ledger| {
            let turn = ledger.turn(&self.exchange);
            turn.is_some_and(|turn| {
                let is_whole = turn.outcome == Outcome::Complete;
                is_whole && !turn.is_completed_by(Outcome::Complete, usage)
            })
        })
    }

    /// Whether the request is on the main line of its session: not a sub-agent's, and not a call beside it.
    pub(crate) fn is_main_line(&self) -> bool {
        self.cache.look(|ledger| inject::is_or_begins_main_line(ledger, &self.placed))
    }
}

impl Drop for OpenedSession {
    fn drop(&mut self) {
        self.cache.settle(&self.exchange);
    }
}

/// A session to which data is written later: the content of an exchange, its summary, messages that are queued
/// again. If the session was deleted meanwhile, nothing is written.
#[derive(Clone)]
pub struct SessionHandle {
    /// The tenant and session that it belongs to.
    pub scope: Scope,
    pub(super) cache: Arc<SessionCache>,
    /// The exchange that it is for; empty if it is for none.
    pub(super) exchange: ExchangeId,
}

impl SessionHandle {
    /// The place of a message among those that wait, from 1: messages that wait again come first.
    pub(crate) fn position(&self, queued: &QueuedMessage) -> usize {
        1 + self.cache.look(|ledger| {
            let waiting = ledger.waiting();
            waiting.iter().filter(|other| order(other) < order(queued)).count()
        })
    }
}

fn order(message: &QueuedMessage) -> (u32, Millis, &str) {
    // By number first: a message that waits again keeps its place.
    (message.number, message.at, &message.id)
}

/// The turn that an estimate can be based on: the nearest measured one, from the parent upwards.
fn anchor(ledger: &Ledger, placed: &Placement) -> Option<AnchorTurn> {
    if placed.growth == Growth::Held {
        return None;
    }
    let turn = ledger.anchor_at(placed.parent.as_ref()?)?.clone();
    let sketch = ledger.sketch(&turn)?;
    Some(AnchorTurn { turn, sketch })
}
