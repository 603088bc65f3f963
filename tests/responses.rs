//! The Responses dialect against recorded traffic: every reply reads, usage agrees, and a reply's
//! parts have the keys they have when the client sends them back.
//!
//! Data outside the project is found by `PLIMSOLL_CORPUS`, else `../shared`; without it the test
//! says that it was skipped.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]
#![allow(clippy::print_stdout, reason = "a test says what it skipped and how much it saw")]

use std::path::{Path, PathBuf};

use plimsoll::dialect::reading::Framing;
use plimsoll::dialect::{
    self, Chain, Conversation, Dialect, Note, Purpose, Reading, Reply, identity, paths,
};

const DIALECT: Dialect = Dialect::OpenaiResponses;

fn corpus() -> Option<PathBuf> {
    let root = std::env::var_os("PLIMSOLL_CORPUS")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"));
    let found = root.join("fixtures").is_dir();
    if !found {
        println!("skipped: no corpus at {}", root.display());
    }
    found.then_some(root)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn reply(status: u16, bytes: &[u8]) -> Reply {
    let mut reading = Reading::new(DIALECT, status, Framing::Unknown, 64 << 20);
    reading.push(bytes);
    reading.finish(true)
}

/// One call of a recorded conversation.
struct Call {
    request: Conversation,
    reply: Reply,
}

fn calls(file: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines
        .map(|call| {
            let endpoint = call["endpoint"].as_str().unwrap_or("/v1/responses");
            let body = call["request"].to_string();
            let answer = match call.get("stream") {
                Some(stream) => stream.as_str().unwrap().to_owned(),
                None => call["response"].to_string(),
            };
            let status = call["status"].as_u64().unwrap_or(200) as u16;
            Call {
                request: dialect::read(DIALECT, endpoint, body.as_bytes()),
                reply: reply(status, answer.as_bytes()),
            }
        })
        .collect()
}

/// Conversations that the client did not alter, with their calls.
fn conversations() -> Vec<(String, Vec<Call>)> {
    let Some(root) = corpus() else { return Vec::new() };
    let folder = root.join("fixtures/conversations/openai-responses");
    let named = |file: PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, calls(&file))
    };
    files(&folder).into_iter().map(named).collect()
}

#[test]
fn what_comes_back_is_what_was_said() {
    let mut pairs = 0;
    for (name, calls) in conversations() {
        for pair in calls.windows(2) {
            let (before, next) = (&pair[0], &pair[1]);
            if next.request.held.is_some() {
                continue; // the provider has the history
            }
            let sent = before.request.chains().last().unwrap_or(Chain::START);
            let after = before.reply.chain_after(sent);
            assert!(next.request.chains().any(|chain| chain == after), "{name}");
            pairs += 1;
        }
    }
    println!("{pairs} replies found again in the next request");
}

#[test]
fn everything_recorded_is_understood() {
    for (name, calls) in conversations() {
        for call in calls {
            assert!(call.request.notes.is_empty(), "{name}: {:?}", call.request.notes);
            assert!(call.reply.notes.is_empty(), "{name}: {:?}", call.reply.notes);
            assert!(call.reply.complete, "{name}");
        }
    }
}

/// Usage as `PAIRS.tsv` has it, for both calls of each pair.
#[test]
fn usage_agrees_with_the_table() {
    let Some(root) = corpus() else { return };
    let table = std::fs::read_to_string(root.join("fixtures/PAIRS.tsv")).unwrap();
    let mut lines = table.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let mut compared = 0;
    for row in lines.filter(|row| row[column("dialect")] == "openai-responses") {
        let calls = calls(&root.join("fixtures").join(row[column("path")]));
        let step: usize = row[column("step")].parse().unwrap();
        let number = |name: &str| row[column(name)].parse::<u64>().ok();
        let (one, two) = (&calls[step - 1].reply.usage, &calls[step].reply.usage);
        for (name, ours) in [
            ("input_k", one.input),
            ("cached_k", one.cache_read),
            ("cachewrite_k", one.cache_write),
            ("output_k", one.output),
            ("reasoning_k", one.reasoning),
            ("input_k1", two.input),
            ("cached_k1", two.cache_read),
            ("cachewrite_k1", two.cache_write),
        ] {
            // The table writes 0 where nothing was reported.
            assert_eq!(ours.unwrap_or(0), number(name).unwrap_or(0), "{name} {row:?}");
            compared += 1;
        }
    }
    println!("{compared} figures compared");
}

/// Bodies that are not of this dialect, whatever their folder says, and streams that hold two
/// responses.
const STRANGE: &[(&str, Note)] = &[
    ("azure__ai__azure-deepseek-reasoning.1.json", Note::UnknownShape),
    (
        "chatgpt-codex__rig__http_errors-nonstreaming_unauthorized_preserves_status_and_body.json",
        Note::UnknownShape,
    ),
    ("openai__ai__openai-reasoning-encrypted-content.1.sse", Note::SeveralReplies),
    ("openai__ai__openai-shell-tool.1.sse", Note::SeveralReplies),
];

#[test]
fn invariant_10_every_stream_and_body_reads_the_same_whatever_the_cuts() {
    let Some(root) = corpus() else { return };
    for folder in ["streams", "bodies"] {
        for file in files(&root.join("fixtures").join(folder).join("openai-responses")) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = std::fs::read(&file).unwrap();
            let whole = reply(200, &bytes);
            let strange = STRANGE.iter().find(|(known, _)| *known == name).map(|(_, note)| *note);
            assert_eq!(whole.notes, strange.into_iter().collect::<Vec<_>>(), "{name}");
            assert_eq!(whole.complete, strange != Some(Note::UnknownShape), "{name}");
            for size in [1, 7, 1000] {
                let mut reading = Reading::new(DIALECT, 200, Framing::Unknown, 64 << 20);
                bytes.chunks(size).for_each(|chunk| reading.push(chunk));
                assert_eq!(reading.finish(true), whole, "{name} in pieces of {size}");
            }
        }
    }
}

/// Requests of real agents and SDKs: nothing unknown, and each names its session as it does on the
/// wire.
#[test]
fn real_clients_are_understood() {
    let Some(root) = corpus() else { return };
    let mut requests = 0;
    for file in files(&root.join("agents/recordings")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for line in text.lines() {
            let call: serde_json::Value = serde_json::from_str(line).unwrap();
            let target = call["target"].as_str().unwrap_or("/v1/responses");
            let body = call["body"].as_str().unwrap_or_default();
            let dialect = paths::endpoint(&http::Method::POST, target).map(|found| found.dialect);
            if dialect != Some(DIALECT) || body.is_empty() {
                continue;
            }
            let read = dialect::read(DIALECT, target, body.as_bytes());
            assert!(read.notes.is_empty(), "{name}: {:?}", read.notes);
            assert!(
                read.model.is_some() && read.parts().count() + read.system.len() > 0
                    || read.purpose == Purpose::WarmUp,
                "{name}"
            );
            let headers: http::HeaderMap = call["headers"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|pair| {
                    let text = |at: usize| pair[at].as_str().unwrap();
                    (text(0).parse::<http::HeaderName>().unwrap(), text(1).parse().unwrap())
                })
                .collect();
            let who = identity::identify(&headers, &read);
            let names_itself = ["codex", "opencode"].iter().any(|agent| name.starts_with(agent));
            assert!(who.session.is_some() || !names_itself, "{name}");
            requests += 1;
        }
    }
    println!("{requests} requests of real clients");
}
