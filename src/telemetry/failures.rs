//! Calls that failed and became no turn: refused by a provider or by us, or without an upstream that answers.
//!
//! Nothing of them is stored, so they are known since this process began. Bounded: past [`MOST_FAILURES`] the oldest are
//! forgotten. Decides nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Exchange;
use crate::context::{Millis, Outcome, SessionId, TenantId};
use crate::dialect::Purpose;

/// How many are kept; each takes about 200 bytes.
const MOST_FAILURES: usize = 5_000;

/// A call that failed and became no turn.
#[derive(Clone, Debug)]
pub(crate) struct FailedCall {
    /// When the request arrived.
    pub at: Millis,
    pub upstream: Option<Box<str>>,
    pub model: Option<Box<str>>,
    pub tenant: Option<TenantId>,
    pub session: Option<SessionId>,
    pub tags: Vec<Box<str>>,
    /// The status that the client received.
    pub status: Option<u16>,
    pub outcome: Outcome,
}

impl FailedCall {
    /// `None` if it is no call of a model, did not fail, or became a turn.
    fn from_exchange(exchange: &Exchange) -> Option<Self> {
        let purpose = exchange.purpose.filter(|purpose| *purpose != Purpose::Count);
        let is_call = purpose.is_some() && exchange.dialect.is_some();
        if !is_call || !exchange.outcome.is_failure() || exchange.saved.is_some() {
            return None;
        }
        Some(Self {
            at: exchange.at,
            upstream: exchange.upstream.clone(),
            model: exchange.model.clone(),
            tenant: exchange.tenant.clone(),
            session: exchange.session.clone(),
            tags: exchange.tags.clone(),
            status: exchange.status,
            outcome: exchange.outcome,
        })
    }
}

/// The failed calls that are known, oldest first.
pub(super) struct FailureBoard(Mutex<KeptFailures>);

struct KeptFailures {
    calls: VecDeque<FailedCall>,
    complete_since: Millis,
}

impl FailureBoard {
    pub(super) fn new(now: Millis) -> Self {
        Self(Mutex::new(KeptFailures { calls: VecDeque::new(), complete_since: now }))
    }

    pub(super) fn add(&self, exchange: &Exchange) {
        let Some(call) = FailedCall::from_exchange(exchange) else { return };
        let mut state = self.kept();
        if state.calls.len() == MOST_FAILURES
            && let Some(oldest) = state.calls.pop_front()
        {
            state.complete_since = state.complete_since.max(oldest.at + 1);
        }
        state.calls.push_back(call);
    }

    /// Those of a time, oldest first.
    pub(super) fn since(&self, since: Millis) -> Vec<FailedCall> {
        self.kept().calls.iter().filter(|call| call.at >= since).cloned().collect()
    }

    /// Since when all are known.
    pub(super) fn complete_since(&self) -> Millis {
        self.kept().complete_since
    }

    fn kept(&self) -> MutexGuard<'_, KeptFailures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::savings::ExchangeSavings;
    use crate::dialect::Dialect;

    fn exchange(at: Millis) -> Exchange {
        Exchange {
            dialect: Some(Dialect::Anthropic),
            purpose: Some(Purpose::Turn),
            status: Some(500),
            outcome: Outcome::Refused,
            ..Exchange::begun("r".into(), at, "POST", "/v1/messages")
        }
    }

    #[test]
    fn only_failed_calls_are_kept() {
        let board = FailureBoard::new(0);
        board.add(&exchange(1));
        board.add(&Exchange { outcome: Outcome::Complete, ..exchange(2) });
        board.add(&Exchange { outcome: Outcome::ClientLeft, ..exchange(3) });
        board.add(&Exchange { purpose: Some(Purpose::Count), ..exchange(4) });
        board.add(&Exchange { purpose: None, ..exchange(5) });
        board.add(&Exchange { saved: Some(ExchangeSavings::default()), ..exchange(6) });
        board.add(&Exchange { outcome: Outcome::UpstreamFailed, ..exchange(7) });
        let times: Vec<Millis> = board.since(0).iter().map(|call| call.at).collect();
        assert_eq!(times, [1, 7]);
        assert_eq!(board.since(2).len(), 1);
    }

    #[test]
    fn oldest_failures_are_forgotten() {
        let board = FailureBoard::new(3);
        (10..10 + MOST_FAILURES as Millis).for_each(|at| board.add(&exchange(at)));
        assert_eq!(board.complete_since(), 3);
        board.add(&exchange(9_999));
        assert_eq!(board.since(0).len(), MOST_FAILURES);
        assert_eq!(board.complete_since(), 11);
    }
}
