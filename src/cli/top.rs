//! `plimsoll top`: the sessions in use, live in the terminal.
//!
//! Queries again when an exchange ends, and regularly, so that ages advance. Each picture replaces the
//! previous one; if standard output is not a terminal, one picture is printed.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::admin_client::{self, AdminClient};
use super::print::{self, CliError, ProgressLine, Screen, TerminalControl};
use super::sessions;
use crate::clock::wall;
use crate::context::budget::grouped;
use crate::wire::sse::Framer;

/// How many sessions are shown.
const SHOWN: usize = 20;
/// How often ages advance.
const TICK: Duration = Duration::from_secs(2);
/// The shortest time between two pictures, however many exchanges end.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest event that is read, in bytes: far longer than the report of any exchange.
const EVENT_BYTES: usize = 4 << 20;
/// How large a terminal is, in characters.
#[derive(Clone, Copy)]
struct ScreenSize {
    columns: usize,
    rows: usize,
}

/// The size that is used if the terminal does not report one.
const SIZE: ScreenSize = ScreenSize { columns: 80, rows: 24 };

pub(super) async fn run(client: &AdminClient, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return follow(client).await;
    }
    let progress = ProgressLine::begin("reading the sessions in use");
    let first_picture = picture(client).await?;
    drop(progress);
    if !std::io::stdout().is_terminal() {
        print::out(&first_picture);
        return Ok(());
    }
    let mut ending = ExitSignals::caught()?;
    let mut keys = KeyInput::begin();
    Screen::default().control(TerminalControl::Enter).show();
    drawn(&first_picture, size()).show();
    let result = tokio::select! {
        result = show(client) => result,
        () = ending.received() => Ok(()),
        () = keys.quit() => Ok(()),
    };
    // However it ends, the terminal is as it was before.
    Screen::default().control(TerminalControl::Leave).show();
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

/// Keys as they are pressed. The terminal shows none of them and waits for no line, until this is dropped.
struct KeyInput {
    /// How the terminal was before; `None` if standard input is none.
    before: Option<Termios>,
    keys: mpsc::Receiver<u8>,
}

impl KeyInput {
    fn begin() -> Self {
        let (sender, keys) = mpsc::channel(16);
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut termios) = before.clone() {
            termios.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &termios);
            // A thread of its own: the end of the program does not wait for the next key.
            std::thread::spawn(move || {
                let mut pressed = [0; 16];
                while let Ok(length @ 1..) = std::io::stdin().read(&mut pressed) {
                    for key in &pressed[..length] {
                        if sender.blocking_send(*key).is_err() {
                            return;
                        }
                    }
                }
            });
        }
        Self { before, keys }
    }

    /// Returns once `q` is pressed.
    async fn quit(&mut self) {
        loop {
            match self.keys.recv().await {
                Some(b'q' | b'Q') => return,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for KeyInput {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn size() -> ScreenSize {
    terminal_size::terminal_size().map_or(SIZE, |(columns, rows)| ScreenSize {
        columns: columns.0.into(),
        rows: rows.0.into(),
    })
}

fn drawn(picture: &str, size: ScreenSize) -> Screen {
    // No wider and no higher than the terminal, which would scroll.
    let ScreenSize { columns, rows } = size;
    let mut screen = Screen::default();
    screen.control(TerminalControl::Home);
    for line in picture.lines().take(rows.max(2) - 1) {
        screen.line(line, columns);
    }
    screen.control(TerminalControl::ClearBelow);
    screen
}

async fn show(client: &AdminClient) -> Result<(), CliError> {
    let mut events = client.ask(&Method::GET, "/api/v1/events").await?;
    loop {
        // An event or a timeout is a reason to query again. The end of the stream means that the proxy ended,
        // which the next query reports.
        let _ = tokio::time::timeout(TICK, events.frame()).await;
        let picture = picture(client).await?;
        drawn(&picture, size()).show();
        tokio::time::sleep(PAUSE).await;
    }
}

async fn picture(client: &AdminClient) -> Result<String, CliError> {
    let about = client.about().await?;
    let listed = client.sessions(SHOWN).await?;
    let mut sessions = Vec::new();
    for line in &listed.sessions {
        if let Ok(session) = client.session(&line.id).await {
            sessions.push(session);
        }
    }
    let mut input = 0;
    let mut output = 0;
    let mut cached = 0;
    let mut dollars = 0.0;
    let mut unpriced = 0;
    for session in &sessions {
        input += session.totals.input;
        output += session.totals.output;
        cached += session.totals.cache_read;
        dollars += session.dollars;
        unpriced += session.unpriced;
    }
    let mut text = format!(
        "plimsoll {}   {} sessions   input {}  output {}  from cache {}  cost {}\n\n",
        client.place(),
        sessions.len(),
        grouped(input),
        grouped(output),
        grouped(cached),
        sessions::cost(dollars, unpriced),
    );
    if let Some(banner) = admin_client::banner(&about) {
        let _ = writeln!(text, "{banner}\n");
    }
    text.push_str(&sessions::table(&sessions, wall()));
    let _ = writeln!(text, "\nq ends");
    Ok(text)
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

#[cfg(test)]
mod tests {
    use super::{ScreenSize, drawn};

    #[test]
    fn screen_fits_terminal() {
        let picture = "0123456789\né\nthird\nfourth\n";
        let shown = "\x1b[H01234\x1b[K\né\x1b[K\n\x1b[J";
        assert_eq!(drawn(picture, ScreenSize { columns: 5, rows: 3 }).text(), shown);
        let smallest = drawn(picture, ScreenSize { columns: 0, rows: 0 });
        assert_eq!(smallest.text(), "\x1b[H\x1b[K\n\x1b[J", "the smallest there is");
    }

    #[test]
    fn control_characters_are_escaped() {
        let screen = drawn("a\x1b[2J\u{9b}2Jb\n", ScreenSize { columns: 40, rows: 3 });
        assert_eq!(screen.text(), "\x1b[Ha\\u{1b}[2J\\u{9b}2Jb\x1b[K\n\x1b[J");
    }
}
