//! `plimsoll top`: the sessions in use, live in the terminal.
//!
//! Queries again when an exchange ends, and regularly, so that ages advance. Each picture replaces the previous one; if
//! standard output is not a terminal, one picture is printed.

mod keys;
mod screen;

use std::io::IsTerminal as _;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::admin_client::{self, AdminClient};
use super::print::{self, CliError, ProgressLine, TerminalControl};
use super::style;
use super::times;
use crate::admin::line::StatusLine;
use crate::clock::wall;
use crate::dialect::percent::encoded;
use crate::wire::sse::Framer;
use keys::{Key, KeyInput};
use screen::{OpenView, ScreenSize, Top, TopAction};

/// How many sessions are listed.
const LISTED: usize = 100;
/// How often ages advance.
const TICK: Duration = Duration::from_secs(2);
/// The shortest time between two queries, however many exchanges end.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest event that is read, in bytes: far longer than the report of any exchange.
const EVENT_BYTES: usize = 4 << 20;
/// The size that is used if the terminal does not report one.
const SIZE: ScreenSize = ScreenSize { columns: 80, rows: 24 };

pub(super) async fn run(client: &AdminClient, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return follow(client).await;
    }
    let progress = ProgressLine::begin("reading the sessions in use");
    let mut top = Top::new(false);
    load(client, &mut top).await?;
    drop(progress);
    if !std::io::stdout().is_terminal() {
        print::line(&top.head);
        print::styled(&screen::table(&top.sessions, wall()).lines(None));
        return Ok(());
    }
    let mut ending = ExitSignals::caught()?;
    let mut keys = KeyInput::begin();
    top.set_keys(keys.is_terminal());
    print::control(TerminalControl::Enter);
    let result = tokio::select! {
        result = show(client, &mut top, &mut keys) => result,
        () = ending.received() => Ok(()),
    };
    // However it ends, the terminal is as it was before.
    print::control(TerminalControl::Leave);
    result
}

/// The signals that end the program from outside: the terminal must be restored.
struct ExitSignals([Signal; 3]);

impl ExitSignals {
    fn caught() -> Result<Self, CliError> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hang_up] = kinds.map(signal);
        Ok(Self([interrupt?, terminate?, hang_up?]))
    }

    async fn received(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

async fn show(client: &AdminClient, top: &mut Top, keys: &mut KeyInput) -> Result<(), CliError> {
    let mut events = client.ask(&Method::GET, "/api/v1/events").await?;
    let mut resized = signal(SignalKind::window_change())?;
    loop {
        draw(top);
        tokio::select! {
            pressed = keys.next() => match press(top, &pressed) {
                TopAction::Quit => return Ok(()),
                TopAction::Load => load(client, top).await?,
                TopAction::Draw => {}
            },
            () = change(&mut events) => load(client, top).await?,
            _ = resized.recv() => {}
        }
    }
}

fn press(top: &mut Top, keys: &[Key]) -> TopAction {
    let mut wanted = TopAction::Draw;
    for key in keys {
        match top.press(*key) {
            TopAction::Quit => return TopAction::Quit,
            TopAction::Load => wanted = TopAction::Load,
            TopAction::Draw => {}
        }
    }
    wanted
}

async fn change(events: &mut Incoming) {
    // An event or a timeout is a reason to query again. The end of the stream means that the proxy ended, which the next
    // query reports.
    let _ = tokio::time::timeout(TICK, events.frame()).await;
    tokio::time::sleep(PAUSE).await;
}

fn draw(top: &Top) {
    let size = terminal_size::terminal_size().map_or(SIZE, |(columns, rows)| ScreenSize {
        columns: columns.0.into(),
        rows: rows.0.into(),
    });
    print::picture(&top.lines(size, wall()), size.columns, style::has_colour());
}

/// Asks for what is shown.
async fn load(client: &AdminClient, top: &mut Top) -> Result<(), CliError> {
    let about = client.about().await?;
    let status: StatusLine = client.value("/api/v1/line").await?;
    top.failure = admin_client::banner(&about);
    top.head = format!(
        "plimsoll {} · {} · ${:.2} today, UTC",
        about.clients,
        about.mode.as_ref(),
        status.today
    );
    match &top.view {
        OpenView::Session(id, _) => {
            let path = format!("/api/v1/sessions/{}/threads/main/context?format=text", encoded(id));
            top.session_text = match client.text(&path).await {
                Ok(text) => times::local(&text),
                Err(CliError(reason)) => reason,
            };
        }
        _ => {
            let listed = client.listed(&top.query(LISTED)).await?;
            top.set_sessions(listed.sessions);
        }
    }
    Ok(())
}

async fn follow(client: &AdminClient) -> Result<(), CliError> {
    let mut events = client.ask(&Method::GET, "/api/v1/events").await?;
    let mut framer = Framer::new(EVENT_BYTES);
    while let Some(frame) = events.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let mut is_read = true;
        framer.push(&data, |event| {
            if event.name == "exchange" {
                is_read &= print::json_text(&String::from_utf8_lossy(event.data));
            }
        });
        if !is_read {
            return Ok(());
        }
    }
    Ok(())
}
