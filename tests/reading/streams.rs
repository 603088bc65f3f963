//! Every recorded stream and body: whole, in pieces, and cut off.

use std::path::Path;

use plimsoll::dialect::reading::BodyEnd;
use plimsoll::dialect::reading::Framing;
use plimsoll::dialect::{Dialect, Note, Reply, ResponseReader};
use plimsoll::wire::sse::Framer;

use crate::corpus::{DIALECTS, corpus, files, read};

#[test]
fn streams_are_read_alike_however_they_are_split_into_chunks() {
    let Some(corpus) = corpus() else { return };
    let mut count = 0;
    for (dialect, name) in DIALECTS {
        for path in files(&corpus.join("streams").join(name)) {
            check(dialect, &path, &std::fs::read(&path).unwrap());
            count += 1;
        }
        for path in files(&corpus.join("conversations").join(name)) {
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let call: serde_json::Value = serde_json::from_str(line).unwrap();
                if let Some(stream) = call["stream"].as_str() {
                    check(dialect, &path, stream.as_bytes());
                    count += 1;
                }
            }
        }
    }
    println!("{count} streams read");
    assert!(count > 500, "the corpus is not whole: {count}");
}

fn check(dialect: Dialect, path: &Path, bytes: &[u8]) {
    let whole = read(dialect, 200, bytes, usize::MAX, true);
    let sizes: &[usize] = if bytes.len() < 10_000 { &[1, 2, 7] } else { &[13] };
    for size in sizes {
        assert_eq!(read(dialect, 200, bytes, *size, true), whole, "{path:?} by {size}");
    }
    assert_eq!(framed(bytes), expected_events(bytes), "{path:?}");
    assert!(!whole.notes.contains(&Note::NotJson), "{path:?}: {:?}", whole.notes);
    // Each cut of a short stream, some cuts of a long one.
    for at in (0..bytes.len()).step_by(if bytes.len() < 800 { 1 } else { bytes.len() / 12 + 1 }) {
        let (first, second) = bytes.split_at(at);
        let mut reading = ResponseReader::new(dialect, 200, Framing::Events, 16 << 20);
        [first, second].into_iter().for_each(|chunk| reading.push(chunk));
        assert_eq!(reading.finish(BodyEnd::Whole), whole, "{path:?} cut at {at}");
        prefix(dialect, first, &whole);
    }
}

/// Invariant 10: every strict prefix is incomplete or as complete as the whole, and has no error that the whole does
/// not have.
fn prefix(dialect: Dialect, bytes: &[u8], whole: &Reply) {
    let reply = read(dialect, 200, bytes, 4096, false);
    assert!(reply.error.is_none() || whole.error.is_some());
    assert!(!reply.complete || whole.complete);
    assert!(!reply.notes.contains(&Note::NotJson));
    assert!(!reply.notes.contains(&Note::TooLong));
    if whole.notes.contains(&Note::SeveralReplies) {
        return;
    }
    assert!(reply.parts.len() <= whole.parts.len());
    let is_final = reply.complete || reply.stop.is_some() || reply.usage.input.is_none();
    assert!(is_final || reply.usage.lower_bound, "numbers of a cut stream are a lower bound");
}

fn framed(bytes: &[u8]) -> usize {
    let (mut framer, mut count) = (Framer::new(16 << 20), 0);
    framer.push(bytes, |_| count += 1);
    framer.finish(|_| count += 1);
    count
}

/// Events counted in a simple way: blocks between blank lines that contain a `data` line, and bare error lines.
fn expected_events(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
    let has_data = |block: &&str| block.lines().any(|line| line.trim_start().starts_with("data"));
    let errors = text.lines().filter(|line| line.starts_with("error:")).count();
    text.split("\n\n").filter(has_data).count() + errors
}

#[test]
fn bodies_are_read_to_end() {
    let Some(corpus) = corpus() else { return };
    let mut count = 0;
    for (dialect, name) in DIALECTS {
        for path in files(&corpus.join("bodies").join(name)) {
            let bytes = std::fs::read(&path).unwrap();
            let whole = read(dialect, 200, &bytes, usize::MAX, true);
            assert_eq!(read(dialect, 200, &bytes, 5, true), whole, "{path:?}");
            let has_reply = !whole.parts.is_empty() || whole.usage.input.is_some();
            let other = whole.error.is_some() || whole.counted.is_some() || !whole.notes.is_empty();
            let empty = whole.complete; // a reply without content is a reply
            assert!(has_reply || other || empty, "{path:?}: nothing was understood");
            let cut = read(dialect, 200, &bytes[..bytes.len() / 2], usize::MAX, false);
            assert!(!cut.complete, "{path:?}: half a body is not complete");
            count += 1;
        }
    }
    println!("{count} bodies read");
    assert!(count > 300, "the corpus is not whole: {count}");
}
