//! `plimsoll say`: words for a session's next request.
//!
//! Queues, lists and takes back through the admin API; decides nothing.

use http::Method;

use super::ask::Asked;
use super::look;
use super::print::{self, Trouble};
use crate::admin::routes::encoded;
use crate::admin::say::{Cleared, Removed, Waiting};

/// Takes back all that waits.
pub(super) async fn clear(asked: &Asked, session: &str, as_json: bool) -> Result<(), Trouble> {
    let path = format!("/api/v1/sessions/{}/say", encoded(session));
    let cleared: Cleared = asked.told(&Method::DELETE, &path, "").await?;
    match (as_json, cleared.removed.len()) {
        (true, _) => print::json(&cleared),
        (false, 0) => print::line("No message waited."),
        (false, 1) => print::line("1 message will not be sent."),
        (false, many) => print::line(&format!("{many} messages will not be sent.")),
    }
    Ok(())
}

/// Queues `text`; with none takes `remove` back, or lists.
pub(super) async fn run(
    asked: &Asked,
    session: &str,
    text: &[String],
    remove: Option<&str>,
    as_json: bool,
) -> Result<(), Trouble> {
    let path = format!("/api/v1/sessions/{}/say", encoded(session));
    if let Some(id) = remove {
        let path = format!("{path}/{}", encoded(id));
        let removed: Removed = asked.told(&Method::DELETE, &path, "").await?;
        match as_json {
            true => print::json(&removed),
            false => print::line(&format!("{} will not be sent.", removed.removed)),
        }
        return Ok(());
    }
    if text.is_empty() {
        return look::show(asked, &format!("{path}?"), as_json).await;
    }
    let question = serde_json::json!({"text": text.join(" ")}).to_string();
    let waiting: Waiting = asked.told(&Method::POST, &path, &question).await?;
    match as_json {
        true => print::json(&waiting),
        false => print::line(&format!(
            "{} waits as number {} for the session's next request.",
            waiting.id, waiting.position
        )),
    }
    Ok(())
}
