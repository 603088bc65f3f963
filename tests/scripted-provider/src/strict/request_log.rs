//! What was judged, for a test to take: the newest requests with their exact bodies.
//!
//! Bounded by the bytes of the bodies; past the limit the oldest go, and nothing fails.

use std::collections::VecDeque;

use serde_json::Value;

use super::{Call, Verdict};

/// Bytes of bodies that the log keeps at most: enough for a test of a thousand large requests.
const BYTES: usize = 256 * 1024 * 1024;

/// One judged request.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The request, with the exact body received.
    pub call: Call,
    /// What became of it.
    pub verdict: Verdict,
    /// The whole reply, where the model was asked for one and gave it. A stream may have broken off in it.
    pub reply: Option<Value>,
}

/// The log.
#[derive(Debug)]
pub(super) struct Log {
    all: VecDeque<Judged>,
    bytes: usize,
    most: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self { all: VecDeque::new(), bytes: 0, most: BYTES }
    }
}

impl Log {
    pub(super) fn add(&mut self, call: &Call, verdict: &Verdict) {
        self.bytes += call.bytes.len();
        self.all.push_back(Judged { call: call.clone(), verdict: verdict.clone(), reply: None });
        while self.bytes > self.most {
            let Some(oldest) = self.all.pop_front() else { break };
            self.bytes -= oldest.call.bytes.len();
        }
    }

    /// What the newest of them was answered.
    pub(super) fn answered(&mut self, reply: &Value) {
        if let Some(newest) = self.all.back_mut() {
            newest.reply = Some(reply.clone());
        }
    }

    /// Everything in it, oldest first; it is empty then.
    pub(super) fn take(&mut self) -> Vec<Judged> {
        self.bytes = 0;
        std::mem::take(&mut self.all).into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::strict::{Dialect, Refusal};

    #[test]
    fn past_its_limit_the_oldest_go() {
        let body = Bytes::from_static(b"{\"model\":\"m\"}");
        let call = Call::read("/v1/messages", &HeaderMap::new(), body.clone(), Duration::ZERO);
        let (mut call, refusal) = (call.unwrap(), Refusal::not_simulated(Dialect::Chat, "x"));
        let verdict = Verdict::Refused(refusal);
        let mut log = Log { most: 3 * body.len(), ..Log::default() };
        for (count, kept) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3)] {
            call.at = Duration::from_secs(count);
            log.add(&call, &verdict);
            assert_eq!(log.all.len(), kept);
        }
        let taken: Vec<u64> = log.take().iter().map(|one| one.call.at.as_secs()).collect();
        assert_eq!((taken, log.take().len(), log.bytes), (vec![3, 4, 5], 0, 0));
    }
}
