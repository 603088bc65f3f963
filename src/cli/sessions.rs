//! `plimsoll sessions` and `plimsoll context`: the state of sessions, for people or machines.
//!
//! Every number comes from the admin API; nothing is computed here except columns.

use std::fmt::Write as _;
use std::time::Duration;

use http::Method;

use super::admin_client::AdminClient;
use super::print::{self, CliError, ProgressLine};
use crate::admin::count::CountComparison;
use crate::admin::routes::encoded;
use crate::admin::spend::{SpendBy, SpendPage};
use crate::admin::view::{CompactionRequest, CompactionStart, DryRun, SessionView, ThreadView};
use crate::clock::wall;
use crate::context::Millis;
use crate::context::budget::grouped;
use crate::dialect::Purpose;

pub(super) async fn sessions(
    client: &AdminClient,
    limit: usize,
    as_json: bool,
) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the list of sessions");
    if as_json {
        let listed = client.detailed_sessions(limit).await?;
        drop(progress);
        print::json(&listed);
        return Ok(());
    }
    let listed = client.sessions(limit).await?;
    if listed.sessions.is_empty() {
        drop(progress);
        print::line("No session yet: point a client's base URL at the proxy.");
        return Ok(());
    }
    let mut rows = Vec::new();
    for (at, line) in listed.sessions.iter().enumerate() {
        progress.show(&format!("reading session {} of {}", at + 1, listed.sessions.len()));
        // A session may be deleted between two requests.
        if let Ok(session) = client.session(&line.id).await {
            rows.push(session);
        }
    }
    drop(progress);
    print::out(&table(&rows, wall()));
    Ok(())
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
    let before = grouped(preview.tokens_before);
    let after = grouped(preview.tokens_after);
    format!(
        "{} of {} messages would be replaced by a summary {engine}.\n\
         {before} → {after} tokens, with a summary of {}; the usable window is {} ({} at {}).\n\
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

pub(super) async fn caps(
    client: &AdminClient,
    lift: Option<&str>,
    subject: Option<&str>,
    as_json: bool,
) -> Result<(), CliError> {
    if let Some(name) = lift {
        let mut path = format!("/api/v1/caps/{}/lift", encoded(name));
        if let Some(subject) = subject {
            path += &format!("?subject={}", encoded(subject));
        }
        client.request_text(&Method::POST, &path).await?;
    }
    show(client, "/api/v1/caps?", as_json).await
}

/// Prints a view that the API renders for people and for machines; `path` must accept one more parameter.
pub(super) async fn show(client: &AdminClient, path: &str, as_json: bool) -> Result<(), CliError> {
    let progress = ProgressLine::begin("reading the store");
    let form = if as_json { "json" } else { "text" };
    let answer = client.text(&format!("{path}format={form}")).await?;
    drop(progress);
    if as_json {
        print::json(&client.read::<serde_json::Value>(&answer)?);
    } else {
        print::out(&answer);
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

/// Sessions as a table: one line for the main thread of each, one for its title, and one for each other thread.
pub(super) fn table(sessions: &[SessionView], now: Millis) -> String {
    let heads = [
        "SESSION", "LAST", "MODEL", "TURNS", "CONTEXT", "ERROR", "COST", "ENDED", "AGENT",
        "PROJECT",
    ];
    let mut rows = vec![heads.map(String::from)];
    for session in sessions {
        let names = &session.names;
        let mut threads: Vec<&ThreadView> = session.threads.iter().collect();
        threads.sort_by_key(|thread| Some(&thread.id) != names.main_thread.as_ref());
        for (at, thread) in threads.into_iter().enumerate() {
            let mut row = thread_row(thread, now);
            if at > 0 {
                row[0] = format!("  {}", short(thread.id.as_str()));
                rows.push(row);
                continue;
            }
            row[0] = short(session.session.as_str());
            row[6] = cost(session.dollars, session.unpriced);
            row[8] =
                names.agent.as_ref().map(|agent| short(&agent.to_string())).unwrap_or_default();
            row[9] = names.project.as_deref().map(short).unwrap_or_default();
            rows.push(row);
            if let Some(title) = &names.title {
                let mut row = [const { String::new() }; 10];
                row[0] = format!("  “{}”", short(title));
                rows.push(row);
            }
        }
    }
    columns(&rows)
}

fn thread_row(thread: &ThreadView, now: Millis) -> [String; 10] {
    let purpose = match thread.purpose {
        Purpose::Turn => match thread.hints.as_ref().and_then(|hints| hints.agent_type) {
            None => String::new(),
            Some(kind) => format!(" ({})", kind.as_ref()),
        },
        other => format!(" ({})", other.as_ref()),
    };
    let model = format!("{}{purpose}", short(&thread.model));
    [
        // Name, cost, agent and project are the caller's: other threads have none of their own.
        String::new(),
        age(now, thread.newest),
        model,
        thread.turns.to_string(),
        fill(thread),
        error(thread),
        String::new(),
        thread.outcome.as_ref().to_owned(),
        String::new(),
        String::new(),
    ]
}

/// Left-aligned columns.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(table, "{}", line.trim_end());
    }
    table
}

/// `52,100 / 200,000 (26%)`
fn fill(thread: &ThreadView) -> String {
    let Some(context) = &thread.context else { return "unknown".to_owned() };
    let total = grouped(context.total);
    let window = grouped(context.window);
    format!("{total} / {window} ({:.0}%)", context.percent)
}

/// `$0.42`; with `+ ?` if the price of some calls is not known.
pub(super) fn cost(dollars: f64, unpriced: usize) -> String {
    let unknown = if unpriced > 0 { " + ?" } else { "" };
    format!("${dollars:.2}{unknown}")
}

/// `+310 (+0.6%)`
fn error(thread: &ThreadView) -> String {
    let Some(measured) = thread.measured else { return "–".to_owned() };
    let (Some(error), Some(ratio)) = (measured.error, measured.error_ratio) else {
        return "–".to_owned();
    };
    let sign = if error < 0 { '-' } else { '+' };
    format!("{sign}{} ({:+.1}%)", grouped(error.unsigned_abs()), ratio * 100.0)
}

pub(super) fn age(now: Millis, then: Millis) -> String {
    // In the largest unit that fits.
    let seconds = now.saturating_sub(then) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn short(name: &str) -> String {
    // Clients choose names, which must not break a table.
    const LONGEST: usize = 40;
    let name = crate::telemetry::log::clean(name);
    if name.chars().count() <= LONGEST {
        return name.into_owned();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let second = 1000;
        for (ms, text) in [
            (0, "0 s"),
            (59 * second, "59 s"),
            (60 * second, "1 min"),
            (3600 * second, "1 h"),
            (49 * 3600 * second, "2 d"),
        ] {
            assert_eq!(age(ms, 0), text);
        }
        assert_eq!(age(0, 5_000), "0 s", "clocks differ");
    }

    #[test]
    fn cost_says_what_it_lacks() {
        assert_eq!(cost(0.424, 0), "$0.42");
        assert_eq!(cost(0.424, 2), "$0.42 + ?");
    }

    #[test]
    fn odd_names_keep_table() {
        assert_eq!(short("a\nb"), "a_b");
        assert_eq!(short(&"x".repeat(90)).chars().count(), 40);
    }
}
