//! The stranger here wrote what a user looks at in a terminal: a client, a model, a recorded session, or a server in
//! the place of a Plimsoll.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::program::{self, Done, Serving};
use super::support::http1::{Provider, Wire};

/// Sets the clipboard, clears the screen in two ways, overwrites a line and reverses text.
const HOSTILE: &str =
    "a\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2J\u{9b}2J\rb\u{202e}c\u{2066}d\u{200f}e\u{61c}\u{7f}";
const SHOWN: &str = "a\\u{1b}]52;c;ZXZpbA==\\u{7}\\u{1b}[2J\\u{9b}2J\\u{d}b\\u{202e}c\\u{2066}d\\u{200f}e\\u{61c}\\u{7f}";

/// Whether a terminal would act on this character.
fn obeyed(c: char) -> bool {
    let marks = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    marks || (c.is_control() && c != '\n' && c != '\t')
}

fn is_calm(done: &Done) {
    assert!(!done.out.contains(obeyed), "{:?}", done.out);
    assert!(!done.err.contains(obeyed), "{:?}", done.err);
}

/// A server that gives the same response to every request.
async fn answering(status: &'static str, body: String) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut wire = Wire::new(stream);
            wire.head().await;
            let length = body.len();
            wire.send(format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            ))
            .await;
        }
    });
    (address, answering)
}

async fn run_against(status: &'static str, body: &str, arguments: &[&str]) -> Done {
    let (address, answering) = answering(status, body.to_owned()).await;
    let address = address.to_string();
    let done = program::run(&[arguments, &["--admin", &address]].concat()).await;
    answering.abort();
    is_calm(&done);
    done
}

#[tokio::test]
async fn control_characters_in_admin_responses_are_shown_escaped() {
    // Queued messages, a context, an explanation: texts shown as they come.
    for arguments in [&["say", "s"][..], &["context", "s"], &["explain", "r"], &["savings"]] {
        let done = run_against("200 OK", &format!("{HOSTILE}\n"), arguments).await;
        assert_eq!(done.out, format!("{SHOWN}\n"), "{arguments:?}");
    }
    // Error messages of the server, and serde's message on a response that it cannot read.
    let error = json!({"error": {"message": HOSTILE}}).to_string();
    let done = run_against("400 Bad Request", &error, &["say", "s", "words"]).await;
    assert_eq!(done.err, format!("plimsoll: {SHOWN}\n"));
    let unread = json!({"sessions": HOSTILE, "id": HOSTILE}).to_string();
    let done = run_against("200 OK", &unread, &["sessions"]).await;
    assert!(done.err.contains("sent an answer that this version does not know"), "{}", done.err);
    // An id that the server made up.
    let queued = json!({"id": HOSTILE, "position": 1, "at": 1, "text": "words"}).to_string();
    let done = run_against("200 OK", &queued, &["say", "s", "words"]).await;
    assert!(done.out.starts_with(SHOWN), "{} {}", done.out, done.err);
}

#[tokio::test]
async fn json_output_is_escaped() {
    let value = json!({ HOSTILE: [HOSTILE, 1] });
    let done = run_against("200 OK", &value.to_string(), &["context", "s", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap(), value);
    let done =
        run_against("200 OK", &value.to_string(), &["compact", "s", "--dry-run", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap(), value);
    let lines = format!("{value}\n{value}\n");
    let done = run_against("200 OK", &lines, &["export", "s"]).await;
    for line in done.out.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap(), value);
    }
    assert_eq!(done.out.lines().count(), 2);
    // Only exchanges are shown; other events in the same stream are for the page.
    let events = format!("event: compaction\ndata: [1]\n\nevent: exchange\ndata: {value}\n\n");
    let done = run_against("200 OK", &events, &["top", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap(), value);
}

#[tokio::test]
async fn control_characters_in_recording_are_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("of-a-stranger{}.jsonl", '\u{1b}'));
    let name = file.to_str().unwrap();
    for (text, expected) in [
        // What serde quotes: an unknown variant, a wrong type.
        (json!({"source": HOSTILE, "api": HOSTILE}).to_string(), "is not a recorded call"),
        (json!(HOSTILE).to_string(), "is not a recorded call"),
        (format!("{HOSTILE}\n"), "is not a recorded call"),
    ] {
        std::fs::write(&file, text).unwrap();
        let done = program::run(&["replay", name]).await;
        assert!(done.code == 1, "{}", done.err);
        assert!(done.err.contains(expected), "{}", done.err);
        assert!(done.err.contains("of-a-stranger\\u{1b}.jsonl:1"), "{}", done.err);
        is_calm(&done);
    }
    // A real recording with hostile names.
    let recorded = format!("{}/tests/data/transcripts", env!("CARGO_MANIFEST_DIR"));
    let recorded = std::fs::read_dir(recorded).unwrap().map(|entry| entry.unwrap().path());
    let recorded = recorded.filter(|path| path.extension().is_some_and(|is| is == "zst"));
    let smallest = recorded.min_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let text = zstd::decode_all(std::fs::File::open(smallest).unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut lines = String::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["source"] = HOSTILE.into();
        lines.push_str(&format!("{line}\n"));
    }
    std::fs::write(&file, lines).unwrap();
    for more in [&[][..], &["--json"], &["--pairs"]] {
        let done = program::run(&[&["replay", name][..], more].concat()).await;
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.contains("]52;c;"), "{}", done.out);
        is_calm(&done);
    }
}

#[tokio::test]
async fn control_characters_in_wrong_command_line_are_shown_escaped() {
    for arguments in [&["sessions", HOSTILE][..], &[HOSTILE], &["sessions", "--limit", HOSTILE]] {
        let done = program::run(arguments).await;
        assert_eq!(done.code, 2, "{}", done.err);
        // clap removes escape sequences; what it leaves is written as escapes.
        assert!(done.err.contains("\\u{9b}2J\\u{d}b\\u{202e}c"), "{}", done.err);
        is_calm(&done);
    }
}

/// A stranger's configuration file is checked.
#[tokio::test]
async fn control_characters_in_configuration_are_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let key = "\"\\u001b]52;c;x\\u0007\\u202e\" = 1\nlisten = \"\\u001b[2J\"\n";
    std::fs::write(&file, key).unwrap();
    for more in [&[][..], &["--json"]] {
        let arguments = [&["check", "--config", file.to_str().unwrap()][..], more].concat();
        let done = program::run(&arguments).await;
        assert!(done.code == 1, "{}", done.err);
        assert!(done.err.contains("unknown key"), "{}", done.err);
        is_calm(&done);
    }
}

/// A client chooses these names for its model and session.
#[tokio::test]
async fn control_characters_in_client_names_are_shown_escaped() {
    for form in ["text", "json"] {
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &["--log", form]).await;
        let request = json!({
            "model": HOSTILE, "max_tokens": 9,
            "messages": [{"role": "user", "content": HOSTILE}],
        });
        let session = "s\u{202e}\u{9b}2J\u{200f}";
        let headers = [("x-plimsoll-session", session), ("x-api-key", "sk-test")];
        let mut client = serving.post("/v1/messages", &request.to_string(), &headers).await;
        let reply = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": HOSTILE,
            "content": [{"type": "text", "text": HOSTILE}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 3},
        });
        provider.call().await.answer("200 OK", &reply.to_string()).await;
        assert_eq!(client.response().await.status(), 200);
        serving.wait_for_log("/v1/messages").await;
        serving.wait_for_metrics("plimsoll_store_operations_total{operation=\"put\"} 1").await;
        let log = serving.log();
        assert!(!log.contains(obeyed), "{log:?}");
        assert!(log.contains("52;c;"), "{log:?}");
        for arguments in [
            &["sessions"][..],
            &["sessions", "--json"],
            &["context"],
            &["explain"],
            &["savings"],
            &["export"],
            &["top"],
        ] {
            let done = serving.look(arguments).await;
            assert_eq!(done.code, 0, "{arguments:?}: {}", done.err);
            is_calm(&done);
        }
        serving.signal("TERM").await;
        assert_eq!(serving.ended().await, 0);
    }
}
