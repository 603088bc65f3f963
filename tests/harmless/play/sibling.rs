//! Two requests of a session at the same time: with the next request of a conversation its agent asks something
//! beside it, with the same system prompt, tools and history, and forgets the reply.

use std::sync::Arc;

use plimsoll::telemetry::Exchange;
use scripted_provider::strict::LoggedRequest;
use serde_json::Value;

use super::Play;
use super::checks::{CheckedExchange, Original};
use crate::client::{self, HistoryItem};

/// What is asked beside the conversation begins so.
const QUESTION: &str = "Beside this:";

/// A request beside the conversation.
pub(super) struct Sibling {
    body: Value,
    original: Original,
    /// Its status and event, once it is answered.
    answer: Option<(u16, Arc<Exchange>)>,
}

impl Play {
    /// Decides whether another request goes out with the next one. LoggedRequest before either is sent.
    pub(super) fn choose_sibling(&mut self, may: bool) -> Option<Sibling> {
        if !may || !self.sibling_dice.once_in(5) {
            return None;
        }
        let question = format!("{QUESTION} {}", self.sibling_dice.words(5));
        let history = [&*self.history, &[HistoryItem::User(question)]].concat();
        let body = client::request(self.dialect, &self.head, &history, self.style);
        let original = self.check_original(&body);
        Some(Sibling { body, original, answer: None })
    }

    /// Sends both at once, and returns the answer and the event of the first.
    pub(super) async fn send_beside(
        &mut self,
        body: &Value,
        sibling: &mut Sibling,
    ) -> Result<((u16, String), Arc<Exchange>), String> {
        self.stage.provider.take_log();
        let target = client::path(self.dialect, &self.head);
        let (response, beside) = self.stage.send_both(&target, body, &sibling.body).await;
        let events =
            [self.stage.server.next_exchange().await, self.stage.server.next_exchange().await];
        // Their lengths tell them apart.
        let length = body.to_string().len() as u64;
        let [first, second] = match events {
            [one, other] if one.request_bytes == length => [one, other],
            [one, other] => [other, one],
        };
        if first.request_bytes != length || second.request_bytes == length {
            return Err("two requests of one length".to_owned());
        }
        sibling.answer = Some((beside.0, second));
        Ok((response, first))
    }

    /// Takes the sibling's requests from the log, and checks them.
    pub(super) fn check_sibling(
        &mut self,
        sibling: Sibling,
        log: &mut Vec<LoggedRequest>,
    ) -> Result<(), String> {
        let is_beside = |entry: &mut LoggedRequest| {
            memchr::memmem::find(&entry.request.bytes, QUESTION.as_bytes()).is_some()
        };
        let log: Vec<LoggedRequest> = log.extract_if(.., is_beside).collect();
        let Some((status, exchange)) = &sibling.answer else { return Ok(()) };
        if self.verbose {
            super::show(*status, None, &sibling.body, exchange, &log);
        }
        self.counts.siblings += 1;
        let checked = CheckedExchange {
            body: &sibling.body,
            mode: None,
            status: *status,
            exchange,
            log: &log,
            original: &sibling.original,
            is_implausible: false,
        };
        self.check(&checked).map_err(|harm| format!("beside the conversation: {harm}"))?;
        self.learn_from(&checked);
        self.remember_sent(&checked);
        Ok(())
    }
}
