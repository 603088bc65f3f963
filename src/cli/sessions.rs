//! `plimsoll sessions` and `plimsoll context`: the state of sessions, for people or machines.
//!
//! Every number comes from the admin API; nothing is computed here except columns.

pub(super) mod table;

use std::time::Duration;

use http::Method;

use super::admin_client::AdminClient;
use super::print::{self, CliError, ProgressLine};
use super::{style, times};
use crate::admin::count::CountComparison;
use crate::admin::routes::encoded;
use crate::admin::spend::{SpendBy, SpendPage};
use crate::admin::view::{CompactionRequest, CompactionStart, DryRun, SessionPage, SessionView};
use crate::clock::wall;
use crate::context::Millis;
use crate::context::budget::grouped;

pub(super) async fn sessions(
    client: &AdminClient,
    limit: usize,
    as_json: bool,
) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the list of sessions");
    let listed = client.listed(&format!("limit={limit}&details=true")).await?;
    if listed.sessions.is_empty() && !as_json {
        drop(progress);
        print::line("No session yet: point a client's base URL at the proxy.");
        return Ok(());
    }
    let mut sessions: Vec<SessionView> = Vec::new();
    for (at, line) in listed.sessions.iter().enumerate() {
        progress.show(&format!("reading session {} of {}", at + 1, listed.sessions.len()));
        // A session may be deleted between two requests.
        if let Ok(session) = client.session(&line.id).await {
            sessions.push(session);
        }
    }
    drop(progress);
    if as_json {
        print::json(&with_threads(&listed, &sessions));
        return Ok(());
    }
    let width = print::width();
    print::styled(&table::table(&sessions, wall(), width).lines(width));
    Ok(())
}

/// The list as JSON, each session with the threads that the table shows, too.
fn with_threads(listed: &SessionPage, sessions: &[SessionView]) -> serde_json::Value {
    let mut page = serde_json::to_value(listed).unwrap_or_default();
    for line in page["sessions"].as_array_mut().into_iter().flatten() {
        let session = sessions.iter().find(|session| line["id"] == *session.id);
        let threads = session.map(|session| &session.threads);
        line["thread_list"] = serde_json::to_value(threads).unwrap_or_default();
    }
    page
}

pub(super) async fn context(
    client: &AdminClient,
    session: Option<&str>,
    thread: Option<&str>,
    count: bool,
    as_json: bool,
) -> Result<(), CliError> {
    let thread = thread.unwrap_or("latest");
    let id = match session {
        Some(session) => session.to_owned(),
        None => match newest(client).await {
            Ok(id) => id,
            // Nothing is stored yet, but the first request may be in flight.
            Err(none) => {
                let path = format!("/api/v1/sessions/latest/threads/{}/context?", encoded(thread));
                return show(client, &path, as_json).await.map_err(|_| none);
            }
        },
    };
    let path = format!("/api/v1/sessions/{}/threads/{}/context", encoded(&id), encoded(thread));
    if !count {
        return show(client, &format!("{path}?"), as_json).await;
    }
    let progress = ProgressLine::begin("asking the provider to count");
    let path_of_count = format!("/api/v1/sessions/{}/count", encoded(&id));
    let counted: CountComparison = client.request_value(&Method::POST, &path_of_count, "").await?;
    drop(progress);
    if !as_json {
        show(client, &format!("{path}?"), as_json).await?;
        print::line(&counted.to_string());
        return Ok(());
    }
    let mut context: serde_json::Value =
        client.read(&client.text(&format!("{path}?format=json")).await?)?;
    context["count"] = serde_json::to_value(&counted).unwrap_or_default();
    print::json(&context);
    Ok(())
}

pub(super) async fn explain(
    client: &AdminClient,
    request: Option<&str>,
    as_json: bool,
) -> Result<(), CliError> {
    let exchange = match request {
        Some(request) => request.into(),
        None => {
            let session = client.session(&newest(client).await?).await?;
            session.threads.into_iter().next().map(|thread| thread.request).unwrap_or_default()
        }
    };
    show(client, &format!("/api/v1/requests/{}/explain?", encoded(exchange.as_str())), as_json)
        .await
}

pub(super) async fn export(
    client: &AdminClient,
    session: Option<&str>,
    content: bool,
) -> Result<(), CliError> {
    let id = match session {
        Some(session) => session.to_owned(),
        None => newest(client).await?,
    };
    let progress = ProgressLine::begin(&format!("reading session {id}"));
    let lines =
        client.text(&format!("/api/v1/sessions/{}/export?content={content}", encoded(&id))).await?;
    drop(progress);
    print::json_text(&lines);
    if content && let Some(missing) = unkept(&lines) {
        print::note(&missing);
    }
    Ok(())
}

/// What content an export lacks, and why; `None` if it is complete.
fn unkept(lines: &str) -> Option<String> {
    /// The fields of a call that show whether its content is there.
    #[derive(serde::Deserialize)]
    struct ExportedCall {
        flags: Vec<String>,
        new_parts: Vec<ExportedPart>,
        #[serde(default)]
        reply: Vec<ExportedPart>,
    }
    #[derive(serde::Deserialize)]
    struct ExportedPart {
        #[serde(default)]
        redacted: u64,
    }
    let mut calls = 0;
    let mut without = 0;
    let mut cut = 0;
    let mut gaps = 0;
    for line in lines.lines() {
        let Ok(call) = serde_json::from_str::<ExportedCall>(line) else { continue };
        calls += 1;
        without += usize::from(call.flags.iter().any(|flag| flag == "no_content"));
        gaps += usize::from(call.flags.iter().any(|flag| flag == "content_gap"));
        let mut parts = call.new_parts.iter().chain(&call.reply);
        cut += usize::from(parts.any(|part| part.redacted > 0));
    }
    if without + cut + gaps == 0 {
        return None;
    }
    Some(format!(
        "Of {calls} calls, {without} are without their text, {cut} have a part of it, {gaps} lack some text \
         from before; usage and sizes of all are complete. Text is stored only for calls that are made \
         while content.keep = true, up to 4 MiB of an exchange and 64 MiB of a session."
    ))
}

pub(super) async fn compact(
    client: &AdminClient,
    session: &str,
    focus: Option<&str>,
    dry: bool,
    as_json: bool,
) -> Result<(), CliError> {
    let mut query = Vec::new();
    if let Some(focus) = focus {
        query.push(format!("focus={}", encoded(focus)));
    }
    if dry {
        query.push("dry_run=true".to_owned());
    }
    let path = format!("/api/v1/sessions/{}/compact?{}", encoded(session), query.join("&"));
    let answer = client.request_text(&Method::POST, &path).await?;
    if as_json {
        print::json_text(&format!("{}\n", answer.trim()));
    } else if dry {
        print::line(&preview_text(&serde_json::from_str(&answer).map_err(unreadable)?));
    } else {
        let requested: CompactionRequest = serde_json::from_str(&answer).map_err(unreadable)?;
        print::line(match requested.begins {
            CompactionStart::Now => {
                "A summary is being written; the next request after it is ready uses it."
            }
            CompactionStart::NextRequest => {
                "The next request of the session's main thread starts the summary; the first one after it is written uses it. \
                 This waits up to an hour for such a request."
            }
        });
    }
    Ok(())
}

fn unreadable(error: serde_json::Error) -> CliError {
    CliError(format!("the response cannot be read: {error}"))
}

fn dollars(amount: Option<f64>) -> String {
    amount.map_or("?".to_owned(), |amount| format!("${amount:.4}"))
}

fn preview_text(preview: &DryRun) -> String {
    let engine = preview.engine.description();
    let tokens_before = grouped(preview.tokens_before);
    let tokens_after = grouped(preview.tokens_after);
    format!(
        "{} of {} messages would be replaced by a summary {engine}.\n\
         {tokens_before} → {tokens_after} tokens, with a summary of {}; the usable window is {} ({} at {}).\n\
         Each later call would save {} (cold cache: {}); writing it costs about {}.\n\
         Nothing was done.",
        preview.messages_cut,
        preview.messages,
        grouped(preview.tokens_summary),
        grouped(preview.fillable),
        preview.model,
        preview.upstream,
        dollars(preview.saved_per_call_cached),
        dollars(preview.saved_per_call_cold),
        dollars(preview.cost_of_writing),
    )
}

pub(super) async fn savings(
    client: &AdminClient,
    session: Option<&str>,
    limit: usize,
    as_json: bool,
) -> Result<(), CliError> {
    let path = match session {
        Some(session) => format!("/api/v1/sessions/{}/savings?", encoded(session)),
        None => format!("/api/v1/savings?limit={limit}&"),
    };
    show(client, &path, as_json).await
}

pub(super) async fn spend(
    client: &AdminClient,
    by: SpendBy,
    since: Duration,
    as_csv: bool,
    as_json: bool,
) -> Result<(), CliError> {
    let since = wall().saturating_sub(since.as_millis() as Millis);
    let path = format!("/api/v1/spend?by={}&since={since}&", by.as_ref());
    if !as_csv {
        return show(client, &path, as_json).await;
    }
    let progress = ProgressLine::begin("reading the store");
    let page: SpendPage = client.read(&client.text(&format!("{path}format=json")).await?)?;
    drop(progress);
    print::out(&page.csv());
    Ok(())
}

/// Prints a view that the API renders for people and for machines; `path` must accept one more parameter.
pub(super) async fn show(client: &AdminClient, path: &str, as_json: bool) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the store");
    let form = if as_json { "json" } else { "text" };
    let answer = client.text(&format!("{path}format={form}")).await?;
    drop(progress);
    if as_json {
        print::json(&client.read::<serde_json::Value>(&answer)?);
    } else if print::width().is_some() {
        print::styled(&style::with_gauge(&times::local(&answer)));
    } else {
        print::out(&times::local(&answer));
    }
    Ok(())
}

async fn newest(client: &AdminClient) -> Result<String, CliError> {
    let listed = client.sessions(1).await?;
    let newest = listed.sessions.into_iter().next();
    newest.map(|line| line.id).ok_or_else(|| {
        CliError("no session yet: point a client's base URL at the proxy".to_owned())
    })
}
