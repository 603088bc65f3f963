//! Histories at hand: the newest request of a session, for those who ask what compacting it would do, or
//! want it done now.
//!
//! In memory alone and bounded: facts hold no words, so that nothing of it outlives the process or the
//! session's being forgotten. What stands behind it is not known here, only its size.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use foldhash::HashMap;

use crate::context::ExchangeId;
use crate::context::compact::CompactionPreview;
use crate::store::Scope;

/// Most sessions; past it the oldest goes.
const MOST: usize = 64;
/// Most bytes of requests with what was read of them; past it the oldest go.
pub(super) const BYTES: usize = 16 * 1024 * 1024;

/// Looks at what compacting would do; `None` where nothing can be cut.
pub(super) type PreviewCompaction = Box<dyn Fn() -> Option<CompactionPreview> + Send + Sync>;
/// Begins a summary, with a look at this above all; `false` where that cannot be.
pub(super) type BeginCompaction = Box<dyn Fn(Option<Box<str>>) -> bool + Send + Sync>;

/// Asks the provider how many tokens the request is, as it was sent.
pub(super) type CountTokensFn = Box<dyn Fn() -> TokenCountFuture + Send + Sync>;
/// The answer, once it is here.
pub(super) type TokenCountFuture =
    Pin<Box<dyn Future<Output = Result<ProviderRecount, RecountError>> + Send>>;

/// A provider's own count of a session's newest request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderRecount {
    /// The exchange of that request.
    pub exchange: ExchangeId,
    /// Input tokens, as its counting endpoint answers.
    pub tokens: u64,
    /// What was estimated before it was sent.
    pub estimated: u64,
}

/// Why a request is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecountError {
    /// The protocol or its provider has no counting endpoint.
    NoEndpoint,
    /// The client's credential is not held any more, and the upstream has none of its own.
    NoCredential,
    /// Enough questions are under way, or the provider wants to be left alone.
    Busy,
    /// The provider refused it.
    Refused,
    /// No answer in time, or none that is a number.
    Failed,
}

/// The newest request of a session.
pub struct LatestRequest {
    /// What it holds, bytes: the request and what was read of it.
    pub bytes: usize,
    /// What compacting it would do.
    pub look: PreviewCompaction,
    /// Compacts it, where that takes no credential of the client's.
    pub begin: Option<BeginCompaction>,
    /// Has it counted.
    pub count: CountTokensFn,
}

/// All of them.
#[derive(Default)]
pub(super) struct LatestRequests {
    by_scope: HashMap<Scope, (u64, Arc<LatestRequest>)>,
    /// Their sessions, by when they came.
    order: BTreeMap<u64, Scope>,
    bytes: usize,
    count: u64,
}

impl LatestRequests {
    /// Keeps a session's newest request in place of the one before.
    pub(super) fn keep(&mut self, scope: Scope, one: LatestRequest) {
        self.forget(&scope);
        if one.bytes > BYTES {
            return;
        }
        while self.by_scope.len() >= MOST || self.bytes + one.bytes > BYTES {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.forget(&oldest);
        }
        self.count += 1;
        self.bytes += one.bytes;
        self.order.insert(self.count, scope.clone());
        self.by_scope.insert(scope, (self.count, Arc::new(one)));
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn of(&self, scope: &Scope) -> Option<Arc<LatestRequest>> {
        self.by_scope.get(scope).map(|(_, one)| one.clone())
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        if let Some((since, gone)) = self.by_scope.remove(scope) {
            self.order.remove(&since);
            self.bytes -= gone.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(number: usize) -> Scope {
        Scope { tenant: "t".into(), session: number.to_string().into() }
    }

    fn of(bytes: usize) -> LatestRequest {
        let count: CountTokensFn =
            Box::new(|| Box::pin(std::future::ready(Err(RecountError::NoEndpoint))));
        LatestRequest { bytes, look: Box::new(|| None), begin: None, count }
    }

    #[test]
    fn the_oldest_go_where_there_are_too_many_or_too_much() {
        let mut all = LatestRequests::default();
        (0..MOST).for_each(|number| all.keep(scope(number), of(1)));
        assert!(all.of(&scope(0)).is_some(), "at the limit");
        all.keep(scope(MOST), of(1));
        assert!(all.of(&scope(0)).is_none() && all.of(&scope(1)).is_some());
        all.keep(scope(1), of(BYTES));
        assert_eq!((all.by_scope.len(), all.bytes), (1, BYTES), "at the limit");
        all.keep(scope(2), of(BYTES + 1));
        assert!(all.of(&scope(2)).is_none() && all.of(&scope(1)).is_some());
        all.keep(scope(3), of(1));
        assert!(all.of(&scope(1)).is_none());
        all.forget(&scope(3));
        assert_eq!((all.by_scope.len(), all.bytes), (0, 0));
    }
}
