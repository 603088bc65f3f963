//! A reply is recognised when the client sends it back, and requests of real clients are understood.

use std::path::Path;

use plimsoll::dialect::paths::Transport;
use plimsoll::dialect::{self, Chain, Conversation, Dialect, Note, Purpose, Role, identity, paths};

use crate::corpus::{Call, DIALECTS, calls, corpus, files, read};

#[test]
fn reply_is_found_in_next_request() {
    let Some(corpus) = corpus() else { return };
    for (dialect, name) in DIALECTS {
        let (mut found, mut lost) = (0, Vec::new());
        for path in files(&corpus.join("conversations").join(name)) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let calls = calls(dialect, &path);
            for (step, pair) in calls.windows(2).enumerate() {
                match comes_back(dialect, &pair[0], &pair[1]) {
                    Some(true) => found += 1,
                    Some(false) => lost.push(format!("{file} step {}", step + 1)),
                    None => {}
                }
            }
        }
        println!("{name}: {found} replies found again, {} lost", lost.len());
        assert!(lost.len() <= most_lost(dialect), "not found again:\n{}", lost.join("\n"));
        assert!(found > 200, "the corpus is not whole: {found}");
    }
}

/// Recorded replies that their clients changed before sending them back: a call with a repaired name, arguments without
/// their wrapping. The number may shrink, but must not grow.
fn most_lost(dialect: Dialect) -> usize {
    match dialect {
        Dialect::Anthropic => 1,
        Dialect::OpenaiChat => 2,
        Dialect::OpenaiResponses | Dialect::Gemini => 0,
    }
}

/// Whether the second request contains the first one and its reply; `None` if the provider holds the history.
fn comes_back(dialect: Dialect, one: &Call, two: &Call) -> Option<bool> {
    let request = |call: &Call| dialect::read(dialect, &call.target, &call.request);
    let next = request(two);
    if next.held.is_some() {
        return None;
    }
    let sent = request(one).chains().last().copied().unwrap_or(Chain::START);
    let after = one.reply.chain_after(sent);
    Some(next.chains().contains(&after))
}

/// A recorded request of an agent or SDK.
struct Recorded {
    client: String,
    conversation: Conversation,
    headers: http::HeaderMap,
    /// The chain after the reply it got.
    after: Option<Chain>,
}

fn recorded(path: &Path) -> Vec<Recorded> {
    let client = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter_map(|line: serde_json::Value| {
            let target = line["target"].as_str().unwrap_or("/v1/responses");
            let body = line["body"].as_str().filter(|body| !body.is_empty())?;
            let dialect = paths::endpoint(&http::Method::POST, target)?.dialect;
            let conversation = dialect::read(dialect, target, body.as_bytes());
            let headers = line["headers"].as_array().into_iter().flatten().map(|pair| {
                let text = |at: usize| pair[at].as_str().unwrap();
                (text(0).parse::<http::HeaderName>().unwrap(), text(1).parse().unwrap())
            });
            let sent = conversation.chains().last().copied().unwrap_or(Chain::START);
            let after = line["response"]["body"].as_str().map(|answer| {
                read(dialect, 200, answer.as_bytes(), usize::MAX, true).chain_after(sent)
            });
            Some(Recorded {
                client: client.clone(),
                conversation,
                headers: headers.collect(),
                after,
            })
        })
        .collect()
}

/// Clients that send a session name (`docs/protocols.md` 8).
const NAME_THEMSELVES: &[&str] = &["codex", "opencode"];

#[test]
fn recorded_openai_responses_clients_continue_known_replies() {
    let Some(corpus) = corpus() else { return };
    let (mut count, mut grown, mut strays) = (0, 0, Vec::new());
    for path in files(&corpus.join("../agents/recordings")) {
        let mut known: Vec<Chain> = Vec::new();
        for request in recorded(&path) {
            let (client, read) = (&request.client, &request.conversation);
            if read.dialect != Dialect::OpenaiResponses {
                continue;
            }
            assert!(read.notes.is_empty(), "{client}: {:?}", read.notes);
            let empty = read.all_parts().next().is_none();
            assert!(!empty || read.purpose == Purpose::WarmUp, "{client}");
            let who = identity::identify(&request.headers, read, Transport::Http);
            let names_itself = NAME_THEMSELVES.iter().any(|agent| client.starts_with(agent));
            assert!(who.session.is_some() || !names_itself, "{client}");
            let grows = read.chains().iter().any(|chain| known.contains(chain));
            let begins = read.parts().all(|part| part.role != Role::Assistant);
            if !grows && !begins && read.held.is_none() {
                strays.push(client.clone());
            }
            grown += usize::from(grows);
            known.extend(request.after);
            count += 1;
        }
    }
    println!("{count} requests of real clients, {grown} grew from a reply");
    assert!(count > 100, "the recordings are not whole: {count}");
    // This client sends its second turn with only the last text of the first.
    assert_eq!(strays, ["js-ai-openai-nostream"]);
}

/// Responses of another dialect than their folder says, and streams with two responses.
const STRANGE: &[(&str, Note)] = &[
    ("azure__ai__azure-deepseek-reasoning.1.json", Note::UnknownStructure),
    (
        "chatgpt-codex__rig__http_errors-nonstreaming_unauthorized_preserves_status_and_body.json",
        Note::UnknownStructure,
    ),
    ("openai__ai__openai-reasoning-encrypted-content.1.sse", Note::SeveralReplies),
    ("openai__ai__openai-shell-tool.1.sse", Note::SeveralReplies),
];

#[test]
fn recorded_openai_responses_replies_have_only_listed_notes() {
    let Some(corpus) = corpus() else { return };
    let dialect = Dialect::OpenaiResponses;
    for folder in ["streams", "bodies"] {
        for path in files(&corpus.join(folder).join("openai-responses")) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let reply = read(dialect, 200, &std::fs::read(&path).unwrap(), usize::MAX, true);
            let strange = STRANGE.iter().find(|(known, _)| *known == file).map(|(_, note)| *note);
            assert_eq!(reply.notes, strange.into_iter().collect::<Vec<_>>(), "{file}");
            assert_eq!(reply.complete, strange != Some(Note::UnknownStructure), "{file}");
        }
    }
    for path in files(&corpus.join("conversations/openai-responses")) {
        for call in calls(dialect, &path) {
            let request = dialect::read(dialect, &call.target, &call.request);
            assert!(request.notes.is_empty(), "{path:?}: {:?}", request.notes);
            assert!(call.reply.complete, "{path:?}");
            assert!(call.reply.notes.is_empty(), "{path:?}");
        }
    }
}
