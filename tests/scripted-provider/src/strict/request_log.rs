//! The validated requests with their exact bodies, for tests to take.
//!
//! Bounded by the bytes of the bodies; past the limit the oldest go, and nothing fails.

use std::collections::VecDeque;

use serde_json::Value;

use super::{ReceivedRequest, RequestVerdict};

/// Limit on the bytes of all bodies: enough for a test of a thousand large requests.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// One validated request.
#[derive(Clone, Debug)]
pub struct LoggedRequest {
    /// The request, with the exact body received.
    pub request: ReceivedRequest,
    /// The verdict on it.
    pub verdict: RequestVerdict,
    /// The whole reply, if one was requested and given. Its stream may have broken off.
    pub reply: Option<Value>,
}

#[derive(Debug)]
pub(super) struct RequestLog {
    entries: VecDeque<LoggedRequest>,
    bytes: usize,
    max_bytes: usize,
}

impl Default for RequestLog {
    fn default() -> Self {
        Self { entries: VecDeque::new(), bytes: 0, max_bytes: MAX_BYTES }
    }
}

impl RequestLog {
    pub(super) fn add(&mut self, request: &ReceivedRequest, verdict: &RequestVerdict) {
        self.bytes += request.bytes.len();
        self.entries.push_back(LoggedRequest {
            request: request.clone(),
            verdict: verdict.clone(),
            reply: None,
        });
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.request.bytes.len();
        }
    }

    /// Sets the reply to the newest request.
    pub(super) fn set_reply(&mut self, reply: &Value) {
        if let Some(newest) = self.entries.back_mut() {
            newest.reply = Some(reply.clone());
        }
    }

    /// Takes all requests, oldest first.
    pub(super) fn take(&mut self) -> Vec<LoggedRequest> {
        self.bytes = 0;
        std::mem::take(&mut self.entries).into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::strict::{ApiError, Dialect};

    #[test]
    fn request_log_drops_its_oldest_entries_past_its_limit() {
        let body = Bytes::from_static(b"{\"model\":\"m\"}");
        let path = "/v1/messages";
        let request = ReceivedRequest::parse(path, &HeaderMap::new(), body.clone(), Duration::ZERO);
        let mut request = request.unwrap();
        let verdict = RequestVerdict::Refused(ApiError::not_simulated(Dialect::Chat, "x"));
        let mut log = RequestLog { max_bytes: 3 * body.len(), ..RequestLog::default() };
        for (count, kept) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3)] {
            request.received_at = Duration::from_secs(count);
            log.add(&request, &verdict);
            assert_eq!(log.entries.len(), kept);
        }
        let taken: Vec<u64> =
            log.take().iter().map(|entry| entry.request.received_at.as_secs()).collect();
        assert_eq!(taken, vec![3, 4, 5]);
        assert_eq!(log.take().len(), 0);
        assert_eq!(log.bytes, 0);
    }
}
