//! Injected messages of a request that was not answered: they are queued again, in whatever way the request ends.
//!
//! Held from the moment when the messages are taken until it is known whether they were delivered. If it is
//! dropped before that, it queues the messages again. Must not delay anybody.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::clock::now;
use crate::context::Fact;
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::store::Scope;
use crate::store::ledgers::{OpenedSession, SessionHandle};
use crate::telemetry::{MessageEvent, MessageStep};

/// Messages at the end of a request that are not known to be delivered.
pub(crate) struct UndeliveredMessages {
    proxy: Arc<Proxy>,
    handle: SessionHandle,
    facts: Vec<Fact>,
}

impl UndeliveredMessages {
    /// `facts`: those that queue the messages again. `None` if there are none.
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        opened: &OpenedSession,
        facts: Vec<Fact>,
    ) -> Option<Self> {
        if facts.is_empty() {
            return None;
        }
        Some(Self { proxy: proxy.clone(), handle: opened.handle(), facts })
    }

    /// The facts that queue the messages again, which the caller stores.
    pub(crate) fn into_facts(mut self) -> Vec<Fact> {
        for fact in &self.facts {
            announce(&self.proxy, &self.handle, fact);
        }
        std::mem::take(&mut self.facts)
    }

    pub(crate) async fn requeue(mut self) {
        for fact in std::mem::take(&mut self.facts) {
            requeue(&self.proxy, &self.handle, fact).await;
        }
    }

    /// Called when the messages are delivered, held elsewhere, or queued again already.
    pub(crate) fn end(mut self) {
        self.facts.clear();
    }
}

impl Drop for UndeliveredMessages {
    fn drop(&mut self) {
        // Without a runtime, the process is ending.
        let Ok(runtime) = Handle::try_current() else { return };
        for fact in std::mem::take(&mut self.facts) {
            let proxy = self.proxy.clone();
            let handle = self.handle.clone();
            runtime.spawn(async move { requeue(&proxy, &handle, fact).await });
        }
    }
}

async fn requeue(proxy: &Proxy, handle: &SessionHandle, fact: Fact) {
    announce(proxy, handle, &fact);
    // If the store cannot save it, it stays in memory.
    let _ = proxy.ledgers.store_fact(handle, fact).await;
}

pub(super) fn announce_dequeued(ids: &[Box<str>], scope: &Scope, recorder: &ExchangeRecorder) {
    for id in ids {
        recorder.proxy.telemetry.announce(MessageEvent {
            id: id.clone(),
            step: MessageStep::Dequeued,
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            exchange: Some(recorder.event.id.clone()),
            position: None,
            at: now(),
        });
    }
}

fn announce(proxy: &Proxy, handle: &SessionHandle, fact: &Fact) {
    let Fact::Queued(queued) = fact else { return };
    let Scope { tenant, session } = handle.scope.clone();
    proxy.telemetry.announce(MessageEvent {
        id: queued.id.clone(),
        step: MessageStep::Queued,
        tenant,
        session,
        exchange: None,
        position: Some(handle.position(queued)),
        at: now(),
    });
}
