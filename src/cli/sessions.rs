//! `plimsoll sessions` and `plimsoll context`: the state of sessions, for people or machines.
//!
//! Every number comes from the admin API; nothing is computed here except columns.

pub(super) mod table;

use http::Method;

use super::admin_client::AdminClient;
use super::print::{self, CliError, ProgressLine};
use super::transcript::{self, ExportFormat, ExportOptions};
use super::{style, times};
use crate::admin::count::CountComparison;
use crate::admin::failures::FailuresPage;
use crate::admin::secrets::masked;
use crate::admin::view::{CompactionRequest, CompactionStart, DryRun, SessionPage, SessionView};
use crate::clock::wall;
use crate::context::budget::grouped;
use crate::dialect::percent::encoded;

/// Which sessions are listed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SessionQuery {
    /// How many to list.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Only those with all these words in their id, agent, title, project, model or upstream.
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// By what to sort: used, began, client, model, fill, dollars, error, turns, input or output.
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// How many to leave out first.
    #[arg(long, default_value_t = 0)]
    skip: usize,
}

/// The list, of as many pages as it takes.
async fn listed(client: &AdminClient, query: &SessionQuery) -> Result<SessionPage, CliError> {
    let mut selection = "details=true".to_owned();
    for (name, value) in [("search", &query.search), ("sort", &query.sort)] {
        if let Some(value) = value {
            selection += &format!("&{name}={}", encoded(value));
        }
    }
    let mut list = None::<SessionPage>;
    loop {
        let count = list.as_ref().map_or(0, |list| list.sessions.len());
        let limit = query.limit.saturating_sub(count).max(1);
        // A place in the list of the newest stays where it is while sessions are added.
        let place = match list.as_ref().and_then(|list| list.next_after.as_ref()) {
            Some(after) => format!("after={after}"),
            None => format!("skip={}", query.skip + count),
        };
        let page = client.listed(&format!("{selection}&limit={limit}&{place}")).await?;
        let list = match &mut list {
            None => list.insert(page),
            Some(list) => {
                list.sessions.extend(page.sessions);
                list.next = page.next;
                list.next_after = page.next_after;
                list
            }
        };
        if list.sessions.len() >= query.limit || list.next.is_none() {
            return Ok(list.clone());
        }
    }
}

/// What is not in the list.
fn remainder(list: &SessionPage, query: &SessionQuery) -> Option<String> {
    let mut notes = Vec::new();
    if list.next.is_some() {
        let end = query.skip + list.sessions.len();
        let total = list.found.map(|found| format!(" of {}", grouped(found as u64)));
        notes.push(format!(
            "{}–{}{}; --limit and --skip show more",
            query.skip + 1,
            grouped(end as u64),
            total.unwrap_or_default()
        ));
    }
    if list.incomplete {
        let count = grouped(list.indexed.unwrap_or(0) as u64);
        let state = if list.reading { "still being read" } else { "left out" };
        notes.push(format!("searched and sorted: the newest {count}; older ones are {state}"));
    }
    if notes.is_empty() { None } else { Some(notes.join("\n")) }
}

pub(super) async fn sessions(
    client: &AdminClient,
    query: &SessionQuery,
    as_json: bool,
) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the list of sessions");
    let listed = listed(client, query).await?;
    if listed.sessions.is_empty() && !as_json {
        drop(progress);
        match query.search {
            Some(_) => print::line("No session matches."),
            None => print::line("No session yet: point a client's base URL at the proxy."),
        }
        note_failures(client).await;
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
    if let Some(remainder) = remainder(&listed, query) {
        print::line(&remainder);
    }
    note_failures(client).await;
    Ok(())
}

/// Says how many calls failed: they are in no session.
async fn note_failures(client: &AdminClient) {
    // A proxy of an earlier version does not know.
    let Ok(failures) = client.value::<FailuresPage>("/api/v1/failures").await else { return };
    if failures.calls > 0 {
        let since = times::when(failures.complete_since);
        print::line(&format!("\nSince {since}, {failures}; they are in no session"));
    }
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
    let thread = thread.unwrap_or("main");
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
    let path = request_path(client, request).await?;
    show(client, &format!("{path}/explain?"), as_json).await
}

pub(super) async fn compare(
    client: &AdminClient,
    request: Option<&str>,
    with: Option<&str>,
    as_json: bool,
) -> Result<(), CliError> {
    let path = request_path(client, request).await?;
    let with = with.map(|with| format!("with={}&", encoded(with))).unwrap_or_default();
    show(client, &format!("{path}/compare?{with}"), as_json).await
}

/// Where the admin listener has a request; the newest one if none is named.
pub(super) async fn request_path(
    client: &AdminClient,
    request: Option<&str>,
) -> Result<String, CliError> {
    let exchange = match request {
        Some(request) => request.into(),
        None => {
            let session = client.session(&newest(client).await?).await?;
            session.threads.into_iter().next().map(|thread| thread.request).unwrap_or_default()
        }
    };
    Ok(format!("/api/v1/requests/{}", encoded(exchange.as_str())))
}

pub(super) async fn export(
    client: &AdminClient,
    session: Option<&str>,
    options: &ExportOptions,
) -> Result<(), CliError> {
    let ExportOptions { content, format, unmasked } = *options;
    let id = match session {
        Some(session) => session.to_owned(),
        None => newest(client).await?,
    };
    let progress = ProgressLine::begin(&format!("reading session {id}"));
    let lines =
        client.text(&format!("/api/v1/sessions/{}/export?content={content}", encoded(&id))).await?;
    drop(progress);
    let missing = if content { transcript::unkept(&lines) } else { None };
    let (lines, secrets) = if content && !unmasked { masked(&lines) } else { (lines, 0) };
    if format == ExportFormat::Jsonl {
        print::json_text(&lines);
    } else {
        print::out(&transcript::document(&lines, format));
    }
    if let Some(missing) = missing {
        print::note(&missing);
    }
    if secrets > 0 {
        print::note(&format!(
            "{secrets} pieces that look like secrets are masked; read the text before you share it. --unmasked leaves them."
        ));
    }
    Ok(())
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

/// Prints a view that the API renders for people and for machines; `path` must accept one more parameter.
pub(super) async fn show(client: &AdminClient, path: &str, as_json: bool) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the store");
    let form = if as_json { "json" } else { "text" };
    let answer = client.text(&format!("{path}format={form}")).await?;
    drop(progress);
    if as_json {
        print::json(&client.read::<serde_json::Value>(&answer)?);
    } else if print::width().is_some() || style::has_colour() {
        print::styled(&style::with_gauge(&times::local(&answer)));
    } else {
        print::out(&times::local(&answer));
    }
    Ok(())
}

/// The session that was used last.
pub(super) async fn newest(client: &AdminClient) -> Result<String, CliError> {
    let listed = client.sessions(1).await?;
    let newest = listed.sessions.into_iter().next();
    newest.map(|line| line.id).ok_or_else(|| {
        CliError("no session yet: point a client's base URL at the proxy".to_owned())
    })
}
