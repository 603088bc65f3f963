//! Words that somebody had said in a request: they wait again where nobody answers it, however it ends.
//!
//! Held from the moment the words are taken until the provider answers; dropped before that, whoever left, it
//! puts them back. Must not keep anybody waiting.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::context::plan::RecordedDecisions;
use crate::context::{ExchangeId, Fact, inject};
use crate::proxy::state::Proxy;
use crate::store::Scope;
use crate::store::ledgers::{OpenedSession, SessionRoom};
use crate::telemetry::clock::now;
use crate::telemetry::{MessageEvent, MessageStep};

/// Words at the end of a request that is not answered yet.
pub(crate) struct UndeliveredMessage {
    proxy: Arc<Proxy>,
    room: SessionRoom,
    facts: Vec<Fact>,
}

impl UndeliveredMessage {
    /// Those of a request of which this is known; `None` where it says nothing.
    pub(crate) fn of(
        proxy: &Arc<Proxy>,
        opened: &OpenedSession,
        known: &RecordedDecisions,
        exchange: &ExchangeId,
    ) -> Option<Self> {
        let facts = inject::again(known, exchange, now(), false);
        let guard = |facts| Self { proxy: proxy.clone(), room: opened.room(), facts };
        (!facts.is_empty()).then(|| guard(facts))
    }

    /// Somebody answers, or they wait again already.
    pub(crate) fn end(mut self) {
        self.facts.clear();
    }
}

impl Drop for UndeliveredMessage {
    fn drop(&mut self) {
        // Outside a runtime there is nobody left to keep anything for.
        let Ok(runtime) = Handle::try_current() else { return };
        for fact in std::mem::take(&mut self.facts) {
            let (proxy, room) = (self.proxy.clone(), self.room.clone());
            runtime.spawn(async move { wait_again(&proxy, &room, fact).await });
        }
    }
}

/// Queues words anew.
pub(crate) async fn wait_again(proxy: &Proxy, room: &SessionRoom, fact: Fact) {
    let Fact::Queued(queued) = &fact else { return };
    let Scope { tenant, session } = room.scope.clone();
    let (id, step, at) = (queued.id.clone(), MessageStep::Queued, now());
    proxy.telemetry.announce(MessageEvent {
        id,
        step,
        tenant,
        session,
        exchange: None,
        position: None,
        at,
    });
    // What the store cannot take stays in memory.
    let _ = proxy.ledgers.note(room, fact).await;
}
