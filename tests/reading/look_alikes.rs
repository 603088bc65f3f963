//! Chat Completions, its look-alikes, and Gemini: recorded traffic contains no unexpected thing that is not listed
//! here, and requests of real clients continue the replies they got.

use std::path::Path;

use plimsoll::dialect::{self, Chain, Dialect, Note, Purpose, Reply, Role, paths};

use crate::corpus::{calls, corpus, files, read};

const HERE: [(Dialect, &str); 2] =
    [(Dialect::OpenaiChat, "openai-chat"), (Dialect::Gemini, "gemini")];

/// Providers whose token numbers do not add up (`docs/protocols.md` 4.1), by the beginning of the file's name.
const MISCOUNT: &[&str] = &[
    "azure__ruby_llm__", // Grok
    "doubleword__rig__response_identity_edge",
    "google__pydantic-ai__openai-compatible_api",
    "google__pydantic-ai__structured_output-native_output_with_builtin_tools_stream",
    "inception__",
    "mistral__ruby_llm__chat_audio_models",
    "openrouter__pydantic-ai__openrouter-openrouter_stream_error",
    "vercel-gateway__",
];

/// Streams that broke off, and a body that is no reply.
const INCOMPLETE: &[(&str, bool)] = &[
    (
        "gpustack__ruby_llm__chat_with_extended_thinking_gpustack_qwen3_streams_thinking_content_when_available.sse",
        true,
    ),
    ("groq__pydantic-ai__groq-tool_use_failed_error_streaming.sse", true),
    ("demo-endpoints.pydanti__pydantic-ai__openai-invalid_response.json", false),
];

#[test]
fn recorded_chat_and_gemini_replies_have_only_listed_notes() {
    let Some(corpus) = corpus() else { return };
    let mut count = 0;
    for (dialect, name) in HERE {
        for folder in ["streams", "bodies"] {
            for path in files(&corpus.join(folder).join(name)) {
                let reply = read(dialect, 200, &std::fs::read(&path).unwrap(), usize::MAX, true);
                check(&path, &reply);
                count += 1;
            }
        }
        for folder in ["conversations", "conversations_partial"] {
            for path in files(&corpus.join(folder).join(name)) {
                for call in calls(dialect, &path) {
                    check(&path, &call.reply);
                    let request = dialect::read(dialect, &call.target, &call.request);
                    assert!(request.notes.is_empty(), "{path:?}: {:?}", request.notes);
                    assert_eq!(request.purpose, Purpose::Turn, "{path:?}");
                    count += 1;
                }
            }
        }
    }
    println!("{count} replies without surprise");
    assert!(count > 1200, "the corpus is not whole: {count}");
}

fn check(path: &Path, reply: &Reply) {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some((_, is_error)) = INCOMPLETE.iter().find(|(known, _)| file == *known) {
        assert!(!reply.complete, "{file}");
        assert_eq!(reply.error.is_some(), *is_error, "{file}");
        return;
    }
    assert!(reply.complete, "{file}");
    if file.starts_with("cerebras__ai__cerebras-cererebras-structured-output-tools") {
        assert_eq!(reply.notes, [Note::SeveralReplies], "two responses, spliced");
        return;
    }
    let miscounts = MISCOUNT.iter().any(|known| file.starts_with(known));
    let strange = |note: &&Note| !(miscounts && **note == Note::UsageMismatch);
    assert_eq!(reply.notes.iter().find(strange), None, "{file}");
    // A reply ends for a known reason, and has usage unless none was requested.
    assert!(reply.error.is_some() || reply.stop.is_some() || reply.counted.is_some(), "{file}");
    assert_ne!(reply.stop, Some(dialect::StopReason::Other), "{file}");
}

#[test]
fn recorded_chat_and_gemini_clients_continue_known_replies() {
    let Some(corpus) = corpus() else { return };
    let (mut count, mut grown) = (0, 0);
    let (mut strays, mut beside) = (Vec::new(), Vec::new());
    for path in files(&corpus.join("../agents/recordings")) {
        let client = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut known: Vec<Chain> = Vec::new();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let (Some(target), Some(body)) = (line["target"].as_str(), line["body"].as_str())
            else {
                continue;
            };
            let endpoint = paths::endpoint(&http::Method::POST, target);
            let Some(dialect) = endpoint.map(|endpoint| endpoint.dialect) else { continue };
            if !HERE.iter().any(|(here, _)| *here == dialect) || body.is_empty() {
                continue;
            }
            let request = dialect::read(dialect, target, body.as_bytes());
            assert!(request.notes.is_empty(), "{client}: {:?}", request.notes);
            assert!(request.model.is_some(), "{client}");
            let grows = request.chains().iter().any(|chain| known.contains(chain));
            let begins = request.parts().all(|part| part.role != Role::Assistant);
            match request.purpose {
                Purpose::Turn if !grows && !begins => strays.push(client.clone()),
                Purpose::Turn => grown += usize::from(grows),
                _ => beside.push((client.clone(), request.purpose)),
            }
            if let Some(answer) = line["response"]["body"].as_str() {
                let reply = read(dialect, 200, answer.as_bytes(), usize::MAX, true);
                let sent = request.chains().last().copied().unwrap_or(Chain::START);
                known.push(reply.chain_after(sent));
            }
            count += 1;
        }
    }
    println!("{count} requests of real clients, {grown} grew from a reply");
    assert!(count > 150, "the recordings are not whole: {count}, {grown}");
    assert!(grown > 120, "the recordings are not whole: {count}, {grown}");
    // Its examples are assistant messages that were no replies.
    assert_eq!(strays, ["aider-openai"; 2]);
    let beside: Vec<_> =
        beside.iter().map(|(client, purpose)| (client.as_str(), *purpose)).collect();
    assert_eq!(
        beside,
        [
            ("acp-gemini-cli", Purpose::Side),
            ("acp-gemini-cli", Purpose::Side),
            ("gemini-cli", Purpose::Side),
            ("gemini-cli", Purpose::Side),
            ("js-genai", Purpose::Count),
            ("opencode-compat", Purpose::Side),
            ("opencode-google", Purpose::Side),
            ("py-genai-nostream", Purpose::Count),
            ("py-genai", Purpose::Count),
        ]
    );
}
