//! Diagnostics in a process of their own: what they may say, and what not (invariant 9).
//!
//! One test, because a process has one place for them.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use plimsoll::telemetry::log::{Log, LogFormat};

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn panics_and_library_logs_contain_nothing_private() {
    let page = Page::default();
    let log = Log::to(LogFormat::Text, page.clone()).unwrap();
    log.take_diagnostics("trace");
    let prompt = String::from("é, the prompt");
    let panicked = std::panic::catch_unwind(|| prompt[..1].len());
    assert!(panicked.is_err());
    tracing::error!(target: "h2::codec", "authorization: the key");
    tracing::warn!(target: "plimsoll::proxy", "ours");
    tracing::debug!(target: "plimsoll::proxy", "more of ours");
    log.set_level("warn");
    tracing::info!(target: "plimsoll::proxy", "too much of ours");
    log.set_level("info");
    tracing::info!(target: "plimsoll::proxy", "again of ours");
    log.flush();
    let printed = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    assert!(printed.contains("panicked at tests/diagnostics.rs:"), "{printed}");
    assert!(printed.contains("ours"), "{printed}");
    assert!(printed.contains("more of ours"), "{printed}");
    assert!(printed.contains("again of ours"), "{printed}");
    assert!(!printed.contains("too much of ours"), "{printed}");
    assert!(!printed.contains("the prompt"), "{printed}");
    assert!(!printed.contains("the key"), "{printed}");
}
