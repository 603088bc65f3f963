//! The latest request of each session, for operators who preview its compaction or start it.
//!
//! In memory only, and bounded: facts hold no text, so nothing of it outlives the process or the session's
//! deletion. Its content is not known here, only its size and its age.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::context::compact::CompactionPreview;
use crate::context::{ExchangeId, TenantId};
use crate::store::Scope;

/// Most sessions; past it, the oldest of the tenant that has most of them is dropped.
const MOST: usize = 64;
/// Most bytes of requests with what was parsed of them; past it, the same.
pub(super) const BYTES: usize = 16 * 1024 * 1024;

/// What a small one counts as, bytes: as many of them are kept as of bytes.
const LEAST: usize = BYTES / MOST;

/// The count, once it has arrived.
pub(crate) type TokenCountFuture =
    Pin<Box<dyn Future<Output = Result<ProviderRecount, RecountError>> + Send>>;

/// The provider's count of a session's latest request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderRecount {
    /// The exchange of that request.
    pub exchange: ExchangeId,
    /// Input tokens according to its counting endpoint.
    pub tokens: u64,
    /// The estimate from before it was sent.
    pub estimated: u64,
}

/// Why a request is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecountError {
    /// The protocol or its provider has no counting endpoint.
    NoEndpoint,
    /// The client's credential is not held any more, and the upstream has none of its own.
    NoCredential,
    /// Too many count requests are in flight, or the provider asked for a pause.
    Busy,
    /// The provider refused it.
    Refused,
    /// No response in time, or not a number.
    Failed,
}

/// The latest request of a session.
pub(crate) trait LatestRequest: Send + Sync {
    /// Its exchange.
    fn exchange(&self) -> &ExchangeId;
    /// Its memory, bytes: the request and what was parsed of it.
    fn bytes(&self) -> usize;
    /// Previews its compaction; `None` if nothing can be cut.
    fn preview(&self) -> Option<CompactionPreview>;
    /// Whether its compaction can be begun here, because that needs no credential of the client.
    fn can_begin(&self) -> bool;
    /// Begins a summary with this focus; `false` if it is not possible now.
    fn begin(&self, focus: Option<Box<str>>) -> bool;
    /// Asks the provider for its token count, in the form in which it was sent.
    fn count(self: Arc<Self>) -> TokenCountFuture;
    /// Drops the client's credential.
    fn drop_credential(&self);
}

/// The latest requests of all sessions.
#[derive(Default)]
pub(super) struct LatestRequests {
    by_scope: HashMap<Scope, LatestEntry>,
    order: BTreeMap<u64, Scope>,
    /// What the requests of each tenant count as, bytes.
    shares: HashMap<TenantId, usize>,
    bytes: usize,
    /// The number of the last one that arrived.
    count: u64,
}

struct LatestEntry {
    /// Its number in the order of arrival.
    number: u64,
    since: Instant,
    request: Arc<dyn LatestRequest>,
}

impl LatestRequests {
    pub(super) fn keep(&mut self, scope: Scope, request: Arc<dyn LatestRequest>) {
        self.forget(&scope);
        let bytes = request.bytes();
        if bytes > BYTES {
            return;
        }
        while self.by_scope.len() >= MOST || self.bytes + bytes > BYTES {
            let Some(oldest) = self.oldest_of_largest(&scope.tenant, bytes) else { break };
            self.forget(&oldest);
        }
        self.count += 1;
        self.bytes += bytes;
        *self.shares.entry(scope.tenant.clone()).or_default() += bytes.max(LEAST);
        self.order.insert(self.count, scope.clone());
        let kept = LatestEntry { number: self.count, since: Instant::now(), request };
        self.by_scope.insert(scope, kept);
    }

    /// Drops the credentials of clients whose requests are kept for longer than `life`.
    pub(super) fn drop_credentials(&self, life: Duration) {
        for kept in self.by_scope.values() {
            if kept.since.elapsed() >= life {
                kept.request.drop_credential();
            }
        }
    }

    fn oldest_of_largest(&self, tenant: &TenantId, bytes: usize) -> Option<Scope> {
        // The new request counts as well: its tenant may have the largest share with it.
        let with_new = |holder: &TenantId, share: usize| {
            if holder == tenant { share + bytes.max(LEAST) } else { share }
        };
        let (largest, _) =
            self.shares.iter().max_by_key(|(holder, share)| with_new(holder, **share))?;
        self.order.values().find(|scope| scope.tenant == *largest).cloned()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<Arc<dyn LatestRequest>> {
        self.by_scope.get(scope).map(|kept| kept.request.clone())
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        if let Some(LatestEntry { number, request, .. }) = self.by_scope.remove(scope) {
            let bytes = request.bytes();
            self.order.remove(&number);
            self.bytes -= bytes;
            if let Some(share) = self.shares.get_mut(&scope.tenant) {
                *share -= bytes.max(LEAST);
                if *share == 0 {
                    self.shares.remove(&scope.tenant);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn scope(number: usize) -> Scope {
        Scope { tenant: "t".into(), session: number.to_string().into() }
    }

    /// A request of so many bytes, and whether its credential is still held.
    pub(in crate::store::ledgers) struct Bulk {
        bytes: usize,
        has_credential: AtomicBool,
        exchange: ExchangeId,
    }

    impl LatestRequest for Bulk {
        fn exchange(&self) -> &ExchangeId {
            &self.exchange
        }

        fn bytes(&self) -> usize {
            self.bytes
        }

        fn preview(&self) -> Option<CompactionPreview> {
            None
        }

        fn can_begin(&self) -> bool {
            false
        }

        fn begin(&self, _: Option<Box<str>>) -> bool {
            false
        }

        fn count(self: Arc<Self>) -> TokenCountFuture {
            Box::pin(std::future::ready(Err(RecountError::NoEndpoint)))
        }

        fn drop_credential(&self) {
            self.has_credential.store(false, Ordering::Relaxed);
        }
    }

    pub(in crate::store::ledgers) fn latest(exchange: &str, bytes: usize) -> Arc<Bulk> {
        Arc::new(Bulk { bytes, has_credential: true.into(), exchange: exchange.into() })
    }

    fn request(bytes: usize) -> Arc<Bulk> {
        latest("", bytes)
    }

    #[test]
    fn credentials_are_dropped_after_their_life() {
        let mut all = LatestRequests::default();
        let [old, new] = [request(1), request(1)];
        all.keep(scope(1), old.clone());
        all.keep(scope(2), new.clone());
        let life = Duration::from_secs(60);
        all.by_scope.get_mut(&scope(1)).unwrap().since = Instant::now().checked_sub(life).unwrap();
        all.drop_credentials(life);
        assert!(!old.has_credential.load(Ordering::Relaxed));
        assert!(new.has_credential.load(Ordering::Relaxed));
    }

    #[test]
    fn latest_requests_are_bounded() {
        let mut all = LatestRequests::default();
        (0..MOST).for_each(|number| all.keep(scope(number), request(1)));
        assert!(all.get(&scope(0)).is_some(), "at the limit");
        all.keep(scope(MOST), request(1));
        assert!(all.get(&scope(0)).is_none());
        assert!(all.get(&scope(1)).is_some());
        all.keep(scope(1), request(BYTES));
        assert_eq!(all.by_scope.len(), 1, "at the limit");
        assert_eq!(all.bytes(), BYTES, "at the limit");
        all.keep(scope(2), request(BYTES + 1));
        assert!(all.get(&scope(2)).is_none());
        assert!(all.get(&scope(1)).is_some());
        all.keep(scope(3), request(1));
        assert!(all.get(&scope(1)).is_none());
        all.forget(&scope(3));
        assert_eq!(all.by_scope.len(), 0);
        assert_eq!(all.bytes, 0);
    }

    #[test]
    fn tenants_keep_their_latest_requests() {
        for bytes in [1, BYTES / 8] {
            let mut all = LatestRequests::default();
            let other = Scope { tenant: "other".into(), session: "s".into() };
            all.keep(other.clone(), request(BYTES / 4));
            (0..2 * MOST).for_each(|number| all.keep(scope(number), request(bytes)));
            assert!(all.get(&other).is_some(), "{bytes} bytes each");
            assert!(all.get(&scope(2 * MOST - 1)).is_some(), "{bytes} bytes each");
        }
    }
}
