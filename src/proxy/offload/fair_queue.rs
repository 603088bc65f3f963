//! Permits that tenants get in turn: nobody waits for all the work that another tenant has queued.
//!
//! While several tenants wait, none of them gets two permits in a row. Must not know what the permits are for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashMapExt as _};
use tokio::sync::oneshot;

use crate::context::TenantId;

/// Who waits. Everybody without a known tenant shares one place.
type QueuedTenant = Option<TenantId>;

/// A number of permits, and who waits for them.
pub(super) struct FairQueue(Mutex<QueueState>);

struct QueueState {
    free: usize,
    /// Who waits, the next one first.
    order: VecDeque<QueuedTenant>,
    /// What each of them waits with, the oldest first.
    waiting: HashMap<QueuedTenant, VecDeque<oneshot::Sender<Permit>>>,
    /// Who got the last permit.
    last: QueuedTenant,
}

/// A permit; dropping it passes it on.
pub(super) struct Permit(&'static FairQueue);

impl FairQueue {
    pub(super) fn new(permits: usize) -> Self {
        Self(Mutex::new(QueueState {
            free: permits,
            order: VecDeque::new(),
            waiting: HashMap::new(),
            last: None,
        }))
    }

    pub(super) async fn acquire(&'static self, tenant: Option<&TenantId>) -> Permit {
        loop {
            let Some(permit) = self.queue(tenant) else { return Permit(self) };
            // The sender is dropped only with a permit that was sent, so this does not fail.
            if let Ok(permit) = permit.await {
                return permit;
            }
        }
    }

    fn queue(&self, tenant: Option<&TenantId>) -> Option<oneshot::Receiver<Permit>> {
        let mut state = self.lock();
        if state.free > 0 {
            state.free -= 1;
            state.last = tenant.cloned();
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let QueueState { order, waiting, .. } = &mut *state;
        let waiters = waiting.entry(tenant.cloned()).or_default();
        if waiters.is_empty() {
            order.push_back(tenant.cloned());
        }
        waiters.push_back(sender);
        Some(receiver)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        if self.order.len() > 1 && self.order.front() == Some(&self.last) {
            // While others wait, nobody gets two permits in a row.
            self.order.rotate_left(1);
        }
        while let Some(tenant) = self.order.pop_front() {
            let waiters = self.waiting.get_mut(&tenant)?;
            // Those that gave up are left out.
            while waiters.front().is_some_and(oneshot::Sender::is_closed) {
                waiters.pop_front();
            }
            let waiter = waiters.pop_front();
            match waiters.is_empty() {
                true => drop(self.waiting.remove(&tenant)),
                false => self.order.push_back(tenant.clone()),
            }
            if waiter.is_some() {
                self.last = tenant;
                return waiter;
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        match state.next() {
            Some(next) => {
                drop(state);
                // Whoever gives up at this very moment drops it, and it is passed on again.
                let _ = next.send(Self(self.0));
            }
            None => state.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;

    use super::*;

    fn queue(permits: usize) -> &'static FairQueue {
        Box::leak(Box::new(FairQueue::new(permits)))
    }

    /// Somebody who has queued.
    fn waiter(queue: &'static FairQueue, tenant: &'static str) -> BoxFuture<'static, Permit> {
        let tenant = TenantId::from(tenant);
        let mut waiter = async move { queue.acquire(Some(&tenant)).await }.boxed();
        assert!((&mut waiter).now_or_never().is_none(), "no permit is free");
        waiter
    }

    /// The order in which waiters are served, each after the one before is done.
    fn served(waiters: Vec<(&'static str, BoxFuture<'static, Permit>)>) -> Vec<&'static str> {
        let mut waiters = waiters;
        let mut order = Vec::new();
        while !waiters.is_empty() {
            let ready = waiters
                .iter_mut()
                .enumerate()
                .find_map(|(at, (_, waiter))| waiter.now_or_never().map(|permit| (at, permit)));
            let Some((at, permit)) = ready else { return order };
            order.push(waiters.remove(at).0);
            drop(permit);
        }
        order
    }

    #[test]
    fn one_tenants_long_work_does_not_go_before_anothers() {
        let queue = queue(1);
        let first = queue.acquire(Some(&"a".into())).now_or_never().unwrap();
        let waiters = ["a", "a", "a", "b", "b", "c"];
        let waiters = waiters.map(|tenant| (tenant, waiter(queue, tenant))).into();
        drop(first);
        assert_eq!(served(waiters), ["b", "c", "a", "b", "a", "a"]);
    }

    #[test]
    fn single_tenants_queue_in_order() {
        let queue = queue(2);
        let held = [(); 2].map(|()| queue.acquire(Some(&"a".into())).now_or_never().unwrap());
        let [mut first, mut second, mut third] = ["a"; 3].map(|tenant| waiter(queue, tenant));
        drop(held);
        let permits = (&mut first).now_or_never().zip((&mut second).now_or_never());
        assert!(permits.is_some());
        assert!((&mut third).now_or_never().is_none());
        drop(permits);
        assert!(third.now_or_never().is_some());
        assert_eq!(queue.lock().free, 2, "nobody waits");
    }

    #[test]
    fn who_gave_up_gets_no_permit() {
        let queue = queue(1);
        let first = queue.acquire(None).now_or_never().unwrap();
        let (gone, late) = (waiter(queue, "b"), waiter(queue, "c"));
        drop((gone, first));
        drop(late.now_or_never().expect("the next one has it"));
        // A permit that was passed on, and not taken any more, is passed on again.
        let first = queue.acquire(None).now_or_never().unwrap();
        let gone = waiter(queue, "b");
        drop(first);
        drop(gone);
        assert_eq!(queue.lock().free, 1);
        assert!(queue.lock().waiting.is_empty());
    }
}
