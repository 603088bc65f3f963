//! `plimsoll say`: messages for a session's next request.
//!
//! Queues, lists and removes through the admin API; decides nothing.

use http::Method;

use super::admin_client::AdminClient;
use super::print::{self, CliError};
use super::sessions;
use crate::admin::messages::{ClearedMessages, RemovedMessage, WaitingMessage};
use crate::dialect::percent::encoded;

/// Removes all queued messages.
pub(super) async fn clear(
    client: &AdminClient,
    session: &str,
    as_json: bool,
) -> Result<(), CliError> {
    let path = format!("/api/v1/sessions/{}/say", encoded(session));
    let cleared: ClearedMessages = client.request_value(&Method::DELETE, &path, "").await?;
    match (as_json, cleared.removed.len()) {
        (true, _) => print::json(&cleared),
        (false, 0) => print::line("No message was queued."),
        (false, 1) => print::line("1 message will not be sent."),
        (false, many) => print::line(&format!("{many} messages will not be sent.")),
    }
    Ok(())
}

/// Queues `text`; without it, removes the message `remove`, or lists all messages.
pub(super) async fn run(
    client: &AdminClient,
    session: &str,
    text: &[String],
    remove: Option<&str>,
    as_json: bool,
) -> Result<(), CliError> {
    let path = format!("/api/v1/sessions/{}/say", encoded(session));
    if let Some(id) = remove {
        let path = format!("{path}/{}", encoded(id));
        let removed: RemovedMessage = client.request_value(&Method::DELETE, &path, "").await?;
        match as_json {
            true => print::json(&removed),
            false => print::line(&format!("{} will not be sent.", removed.removed)),
        }
        return Ok(());
    }
    if text.is_empty() {
        return sessions::show(client, &format!("{path}?"), as_json).await;
    }
    let question = serde_json::json!({"text": text.join(" ")}).to_string();
    let waiting: WaitingMessage = client.request_value(&Method::POST, &path, &question).await?;
    match as_json {
        true => print::json(&waiting),
        false => print::line(&format!(
            "{} is number {} in the queue for the session's next request.",
            waiting.id, waiting.position
        )),
    }
    Ok(())
}
