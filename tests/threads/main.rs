//! Requests of real clients are assigned to the right threads.
//!
//! Each recording (`tests/data/agents`) is played in order through reader, identity and ledgers. Each request gets the
//! letter of its thread; `expected.tsv` has the right letters, with the reason.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use plimsoll::context::ledger::anchor_keys;
use plimsoll::context::lineage::Growth;
use plimsoll::context::policy::DecisionMode;
use plimsoll::context::{
    ExchangeId, Fact, Outcome, PromptSection, SessionId, Sketch, SketchPart, ThreadId, Turn,
};
use plimsoll::dialect::agent::{self, Agent};
use plimsoll::dialect::models::Family;
use plimsoll::dialect::reading::{BodyEnd, Framing, ResponseReader};
use plimsoll::dialect::{self, PartKey, Purpose, Reply, identity, paths};
use plimsoll::store::ledgers::{Ledgers, OpenedSession, SessionLookup};
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::recall::ReadBudget;
use serde_json::Value;

#[tokio::test]
async fn clients_keep_their_threads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agents");
    let expected = std::fs::read_to_string(folder.join("expected.tsv")).unwrap();
    let mut wrong = Vec::new();
    for line in expected.lines().filter(|line| !line.starts_with('#')) {
        let [name, threads, _reason] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}");
        };
        let text = std::fs::read(folder.join(format!("{name}.jsonl.zst"))).unwrap();
        let text = String::from_utf8(zstd::decode_all(text.as_slice()).unwrap()).unwrap();
        let seen = play(text.lines().map(|line| serde_json::from_str(line).unwrap())).await;
        if seen != threads {
            wrong.push(format!("{name}\t{seen}\tbut expected {threads}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let recordings = std::fs::read_dir(&folder).unwrap().count() - 2;
    assert_eq!(expected.lines().filter(|l| !l.starts_with('#')).count(), recordings);
}

/// The agent of each recording and the folder that it states, in the request of its main conversation.
#[test]
fn recorded_agents_are_named() {
    for (name, expected, folder) in [
        ("codex", "Codex 0.169.0", Some("/home/user/project")),
        ("gemini-cli", "Gemini CLI 0.61.0", Some("/home/user/project")),
        ("acp-gemini-cli", "Gemini CLI 0.61.0", Some("/home/user/project")),
        ("opencode-anthropic", "opencode 1.18.33", Some("/home/user/project")),
        ("opencode-google", "opencode 1.18.33", Some("/home/user/project")),
        ("opencode-openai", "opencode 1.18.33", Some("/home/user/project")),
        ("aider-openai", "aider", None),
        ("mini-anthropic", "mini-swe-agent", None),
        ("mini-text", "mini-swe-agent", None),
        ("py-lc-anthropic", "LangChain 1.7.7", None),
        ("py-lc-google", "LangChain 4.4.2-ChatGoogleGenerativeAI", None),
        ("py-pydantic-google", "pydantic-ai 2.68.0", None),
        ("py-agents-chat", "OpenAI Agents 0.24.0", None),
        ("py-litellm-gemini", "LiteLLM 1.83.0", None),
        ("js-openai-chat", "OpenAI/JS 7.55.0", None),
        ("js-ai-openai", "ai-sdk-openai 4.0.118", None),
    ] {
        let folder_of = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agents");
        let text = std::fs::read(folder_of.join(format!("{name}.jsonl.zst"))).unwrap();
        let text = String::from_utf8(zstd::decode_all(text.as_slice()).unwrap()).unwrap();
        let found = text.lines().find_map(|line| {
            let call: Value = serde_json::from_str(line).unwrap();
            let target = call["target"].as_str()?;
            let endpoint = paths::endpoint(&Method::POST, target)?;
            let body = call["body"].as_str()?.as_bytes();
            let conversation = dialect::read(endpoint.dialect, target, body);
            let is_main =
                conversation.purpose == Purpose::Turn && !conversation.messages.is_empty();
            let agent = Agent::from_request(&headers(&call), &conversation, body);
            is_main
                .then(|| (agent.map(|it| it.to_string()), agent::project_path(&conversation, body)))
        });
        let (agent, path) = found.unwrap();
        assert_eq!(agent.as_deref(), Some(expected), "{name}");
        assert_eq!(path.as_deref(), folder, "{name}");
    }
}

/// The threads of a recording, one letter per request: lower case if it does not continue the thread's last request,
/// `.` if it is no conversation.
async fn play(calls: impl Iterator<Item = Value>) -> String {
    let ledgers = Ledgers::new(std::sync::Arc::new(MemoryStore::default()));
    let mut threads: Vec<(SessionId, ThreadId)> = Vec::new();
    let mut seen = String::new();
    for (index, call) in calls.enumerate() {
        let target = call["target"].as_str().unwrap();
        let method = Method::from_bytes(call["method"].as_str().unwrap().as_bytes()).unwrap();
        let Some(endpoint) = paths::endpoint(&method, target) else {
            seen.push('.');
            continue;
        };
        let body = call["body"].as_str().unwrap_or_default().as_bytes();
        let mut conversation = dialect::read(endpoint.dialect, target, body);
        let identity = identity::identify(&headers(&call), &conversation, endpoint.transport);
        conversation.purpose = identity.purpose.unwrap_or(conversation.purpose);
        let exchange = ExchangeId::from(format!("req-{index}"));
        let lookup = SessionLookup {
            tenant: &"t".into(),
            session: identity.session.as_ref(),
            client_thread: identity.thread.as_deref(),
            exchange: &exchange,
            timeout: Duration::from_secs(5),
            reads: &ReadBudget::new(Duration::from_secs(5)),
            decisions: DecisionMode::Active,
            source: Default::default(),
            body,
            spender: None,
        };
        let opened = ledgers.open(lookup, &conversation).await.unwrap();
        let place = (opened.scope.session.clone(), opened.placed.position.thread.clone());
        let known = threads.iter().position(|thread| *thread == place);
        let letter = known.unwrap_or_else(|| {
            threads.push(place);
            threads.len() - 1
        });
        let letter = char::from(b'A' + letter as u8);
        let begins = opened.placed.growth == Growth::Begins;
        seen.push(if begins { letter.to_ascii_lowercase() } else { letter });
        let reply = reply(&call, endpoint.dialect);
        let turn = turn(&opened, &reply, endpoint.dialect, conversation.purpose, exchange);
        ledgers.commit(opened, vec![Fact::Turn(Arc::new(turn))]).await.unwrap();
    }
    seen
}

fn headers(call: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in call["headers"].as_array().unwrap() {
        let [name, value] = [0, 1].map(|index| header[index].as_str().unwrap());
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn reply(call: &Value, dialect: dialect::Dialect) -> Reply {
    let response = &call["response"];
    let status = response["status"].as_u64().unwrap_or(200) as u16;
    let mut reading = ResponseReader::new(dialect, status, Framing::Unknown, 16 << 20);
    reading.push(response["body"].as_str().unwrap_or_default().as_bytes());
    reading.finish(BodyEnd::Whole)
}

fn turn(
    opened: &OpenedSession,
    reply: &Reply,
    dialect: dialect::Dialect,
    purpose: Purpose,
    exchange: ExchangeId,
) -> Turn {
    let sketched = |key: PartKey| SketchPart {
        key,
        tokens: 1,
        place: PromptSection::History,
        by_length: false,
    };
    Turn {
        exchange,
        position: opened.placed.position.clone(),
        after: reply.chain_after(opened.placed.position.chain),
        response: reply.id.clone(),
        upstream: "u".into(),
        model: "m".into(),
        purpose,
        usage: reply.usage.clone(),
        stop: reply.stop,
        outcome: Outcome::Complete,
        sketch: Sketch { added: vec![sketched(PartKey(1))], ..Sketch::default() },
        reply: reply.parts.iter().filter_map(|part| part.key).map(sketched).collect(),
        anchor_keys: anchor_keys(reply),
        ..Turn::empty(dialect, Family::Other)
    }
}
