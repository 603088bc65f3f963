//! Where recorded traffic is found, and how its calls are read.

use std::path::{Path, PathBuf};

use plimsoll::dialect::reading::BodyEnd;
use plimsoll::dialect::reading::Framing;
use plimsoll::dialect::{Dialect, Reply, ResponseReader};

/// The four dialects, with the names of their folders.
pub(crate) const DIALECTS: [(Dialect, &str); 4] = [
    (Dialect::Anthropic, "anthropic"),
    (Dialect::OpenaiChat, "openai-chat"),
    (Dialect::OpenaiResponses, "openai-responses"),
    (Dialect::Gemini, "gemini"),
];

/// The corpus of recorded traffic; prints what is skipped if there is none.
pub(crate) fn corpus() -> Option<PathBuf> {
    let Some(root) = std::env::var_os("PLIMSOLL_CORPUS") else {
        println!("skipped: PLIMSOLL_CORPUS names no folder of recorded traffic");
        return None;
    };
    let fixtures = Path::new(&root).join("fixtures");
    if fixtures.is_dir() {
        return Some(fixtures);
    }
    println!("skipped: no recorded traffic at {}", fixtures.display());
    None
}

/// Files of a folder, by name.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).map(Iterator::flatten);
    let mut files: Vec<PathBuf> = entries.into_iter().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Reads a response in pieces of `size` bytes.
pub(crate) fn read(dialect: Dialect, status: u16, bytes: &[u8], size: usize, whole: bool) -> Reply {
    let mut reading = ResponseReader::new(dialect, status, Framing::Unknown, 16 << 20);
    bytes.chunks(size.max(1)).for_each(|chunk| reading.push(chunk));
    reading.finish(BodyEnd::new(whole))
}

/// One call of a recorded conversation.
pub(crate) struct Call {
    pub(crate) target: String,
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Reply,
}

/// The calls of a conversation file.
pub(crate) fn calls(dialect: Dialect, path: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| call(dialect, &serde_json::from_str(line).unwrap())).collect()
}

fn call(dialect: Dialect, line: &serde_json::Value) -> Call {
    let response = match line.get("stream").and_then(serde_json::Value::as_str) {
        Some(stream) => stream.as_bytes().to_vec(),
        None => serde_json::to_vec(&line["response"]).unwrap(),
    };
    let status = line["status"].as_u64().unwrap_or(200) as u16;
    Call {
        target: line["endpoint"].as_str().unwrap_or_default().to_owned(),
        request: serde_json::to_vec(&line["request"]).unwrap(),
        reply: read(dialect, status, &response, usize::MAX, true),
    }
}
