//! The process's own diagnostics (`tracing`): written to the log, and kept for an exporter until one takes them.
//!
//! Only our own: those of libraries about headers and frames could contain private data. A diagnostic waits for nobody:
//! past a limit, those for the exporter are lost and counted.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock::wall;
use crate::context::Millis;

/// How many diagnostics wait for an exporter.
const WAITING: usize = 256;

/// One diagnostic.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "otel"), allow(dead_code))]
pub(crate) struct Diagnostic {
    pub(crate) at: Millis,
    pub(crate) level: Level,
    /// The message, with its fields behind it.
    pub(crate) text: String,
}

/// Diagnostics on their way to an exporter.
pub(super) struct DiagnosticFeed {
    sender: mpsc::Sender<Diagnostic>,
    /// Those since the start, until somebody takes them.
    receiver: Mutex<Option<mpsc::Receiver<Diagnostic>>>,
    lost: AtomicUsize,
}

impl Default for DiagnosticFeed {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self { sender, receiver: Mutex::new(Some(receiver)), lost: AtomicUsize::new(0) }
    }
}

impl DiagnosticFeed {
    /// All since the start, once. If what is returned is dropped, none is kept any more.
    pub(super) fn take(&self) -> Option<mpsc::Receiver<Diagnostic>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How many were lost since this was asked.
    pub(super) fn take_lost(&self) -> usize {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

/// Adds each diagnostic to the feed.
struct FeedLayer(Arc<DiagnosticFeed>);

impl<S: Subscriber> Layer<S> for FeedLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if self.0.sender.is_closed() {
            return;
        }
        let Ok(place) = self.0.sender.try_reserve() else {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut text = EventText::default();
        event.record(&mut text);
        place.send(Diagnostic {
            at: wall(),
            level: *event.metadata().level(),
            text: text.message + &text.fields,
        });
    }
}

#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Changes the level of diagnostics.
pub(super) type ChangeLevel = Box<dyn Fn(&str) + Send + Sync>;

/// Writes diagnostics up to `level` with `writer`, and adds them to `feed`. An invalid `level` means `info`. Panics are
/// reported too, only with their location: their message could quote a prompt. `None` if there is a subscriber already.
pub(super) fn install<W>(
    writer: W,
    is_json: bool,
    level: &str,
    feed: Arc<DiagnosticFeed>,
) -> Option<ChangeLevel>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        // The filter below decides, because it can change while the process runs.
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_target(false)
        .with_writer(writer);
    let feed = FeedLayer(feed);
    let (taken, change): (_, ChangeLevel) = if is_json {
        let (filter, change) = reload::Layer::new(ours(level));
        (
            lines.json().flatten_event(true).finish().with(filter).with(feed).try_init(),
            Box::new(move |level| drop(change.reload(ours(level)))),
        )
    } else {
        let (filter, change) = reload::Layer::new(ours(level));
        (
            lines.compact().finish().with(filter).with(feed).try_init(),
            Box::new(move |level| drop(change.reload(ours(level)))),
        )
    };
    taken.ok()?;
    std::panic::set_hook(Box::new(|panic| match panic.location() {
        Some(place) => tracing::error!("panicked at {place}; please report it"),
        None => tracing::error!("panicked; please report it"),
    }));
    Some(change)
}

/// A filter for our own diagnostics up to a level; `info` if the level is invalid.
fn ours(level: &str) -> Targets {
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    Targets::new().with_target(env!("CARGO_CRATE_NAME"), level)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens before an exporter starts is not lost, and nothing is kept once nobody wants it.
    #[test]
    fn diagnostics_wait_for_exporter() {
        let feed = Arc::new(DiagnosticFeed::default());
        let subscriber = tracing_subscriber::registry().with(FeedLayer(feed.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(port = 80, "it is {}", "slow");
            for _ in 0..WAITING + 2 {
                tracing::info!("more");
            }
        });
        let mut waiting = feed.take().unwrap();
        let first = waiting.try_recv().unwrap();
        assert_eq!((first.level, first.text.as_str()), (Level::WARN, "it is slow port=80"));
        assert_eq!(waiting.len(), WAITING - 1);
        assert_eq!((feed.take_lost(), feed.take_lost()), (3, 0));
        assert!(feed.take().is_none());
        drop(waiting);
        let subscriber = tracing_subscriber::registry().with(FeedLayer(feed.clone()));
        tracing::subscriber::with_default(subscriber, || tracing::info!("unheard"));
        assert_eq!(feed.take_lost(), 0);
    }
}
