//! Two requests of a session at the same time: with the next request of a conversation its agent asks something
//! beside it, with the same system prompt, tools and history, and forgets the reply.

use std::sync::Arc;

use plimsoll::telemetry::Exchange;
use scripted_provider::strict::LoggedRequest;
use serde_json::Value;

use super::Play;
use super::checks::CheckedExchange;
use crate::client::{self, HistoryItem};

/// What is asked beside the conversation begins so.
const QUESTION: &str = "Beside this:";

/// What became of the conversation's next request, and of one beside it.
pub(super) struct Answered {
    /// Status and body.
    pub(super) response: (u16, String),
    pub(super) exchange: Arc<Exchange>,
    pub(super) sibling: Option<AnsweredSibling>,
}

/// A request beside the conversation that was answered.
pub(super) struct AnsweredSibling {
    body: Value,
    status: u16,
    exchange: Arc<Exchange>,
}

impl Play {
    /// Decides whether another request goes out with the next one, whose body is `body`; returns its body.
    pub(super) fn choose_sibling(&mut self, may: bool, body: &Value) -> Option<Value> {
        if !may || !self.sibling_dice.once_in(5) {
            return None;
        }
        let question = format!("{QUESTION} {}", self.sibling_dice.words(5));
        let history = [&*self.history, &[HistoryItem::User(question)]].concat();
        let beside = client::request(self.dialect, &self.head, &history, self.style);
        // Only their lengths tell their events apart.
        if beside.to_string().len() == body.to_string().len() {
            return None;
        }
        Some(beside)
    }

    /// Sends the conversation's next request and one beside it at once.
    pub(super) async fn send_beside(&mut self, body: &Value, sibling: Value) -> Answered {
        self.stage.provider.take_log();
        let target = client::path(self.dialect, &self.head);
        let (response, (status, _)) = self.stage.send_both(&target, body, &sibling).await;
        let server = &mut self.stage.server;
        let (one, other) = (server.next_exchange().await, server.next_exchange().await);
        let is_own = one.timing.request_bytes == body.to_string().len() as u64;
        let (own, beside) = if is_own { (one, other) } else { (other, one) };
        let sibling = AnsweredSibling { body: sibling, status, exchange: beside };
        Answered { response, exchange: own, sibling: Some(sibling) }
    }

    /// Takes the sibling's requests from the log, and checks them.
    pub(super) fn check_sibling(
        &mut self,
        answered: &AnsweredSibling,
        log: &mut Vec<LoggedRequest>,
    ) -> Result<(), String> {
        let AnsweredSibling { body, status, exchange } = answered;
        let is_beside = |entry: &mut LoggedRequest| {
            memchr::memmem::find(&entry.request.bytes, QUESTION.as_bytes()).is_some()
        };
        let log: Vec<LoggedRequest> = log.extract_if(.., is_beside).collect();
        if self.verbose {
            super::show(*status, None, body, exchange, &log);
        }
        // The provider may have judged it after it had written the other reply, whose text may be an earlier one's.
        let original = self.check_original(body);
        self.counts.siblings += 1;
        let checked = CheckedExchange {
            body,
            mode: None,
            status: *status,
            exchange,
            log: &log,
            original: &original,
            is_implausible: false,
        };
        self.check(&checked).map_err(|harm| format!("beside the conversation: {harm}"))?;
        self.learn_from(&checked);
        self.remember_sent(&checked);
        Ok(())
    }
}
