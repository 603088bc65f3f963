//! Reasoning that its client sends is not put back a second time beside it.

use std::collections::HashMap;

use scripted_provider::strict::LoggedRequest;
use serde_json::Value;

use super::Play;
use super::checks::{CheckedExchange, for_each_signature};
use crate::client;

impl Play {
    pub(super) fn check_doubled(&self, checked: &CheckedExchange<'_>) -> Result<(), String> {
        let own = self.signatures(checked.body);
        for LoggedRequest { request, .. } in checked.log {
            for (signature, times) in self.signatures(&request.body) {
                // Replies may have equal signatures: of those that its client dropped, each comes back.
                if own.get(&signature).is_some_and(|own| times > *own) {
                    return Err(format!(
                        "sent twice: {signature}: {:?}\n{}\n{}",
                        checked.exchange.done.steps,
                        checked.body,
                        String::from_utf8_lossy(&request.bytes)
                    ));
                }
            }
        }
        Ok(())
    }

    /// How often a request has each signature.
    fn signatures(&self, body: &Value) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for message in client::history(self.dialect, body) {
            for_each_signature(&message, &mut |signature| {
                *times.entry(signature.to_owned()).or_default() += 1;
            });
        }
        times
    }
}
