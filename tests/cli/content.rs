//! Text is stored if configured, can be exported and replayed, and is deleted with its session.

use plimsoll::dialect::models::Catalogue;
use plimsoll_replay as replay;
use plimsoll_replay::score::EstimatePair;
use plimsoll_replay::transcript::TranscriptLine;
use serde_json::{Value, json};

use super::program::Serving;
use super::support::http1::Provider;
use super::support::within;

const PROMPT: &str = "Where does the lighthouse of the northern island stand?";
const SYSTEM: &str = "You answer as the harbour master would.";
const RESULT: &str = "On the cliff, as the pilot book has it.";
const REPLY: &str = "It stands on the cliff above the old mole.";
const TEXTS: [&str; 4] = [PROMPT, SYSTEM, RESULT, REPLY];

/// A server that stores text, with these further lines of configuration.
async fn keeping(provider: &Provider, more: &str) -> Serving {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, format!("[content]\nkeep = true\n{more}")).unwrap();
    Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await
}

/// One call of a session: its input and its reply.
async fn call(serving: &Serving, provider: &Provider, key: &str, input: &[Value], answer: Value) {
    call_after(serving, provider, (key, None), input, answer).await;
}

/// A call that continues a response that the provider holds.
async fn call_after(
    serving: &Serving,
    provider: &Provider,
    (key, after): (&str, Option<&str>),
    input: &[Value],
    answer: Value,
) {
    let tools = json!([{"type": "function", "name": "look", "parameters": {"type": "object"}}]);
    let model = "gpt-4o-2024-08-06";
    let mut sent = json!({"model": model, "instructions": SYSTEM, "tools": tools, "input": input});
    if let Some(after) = after {
        sent["previous_response_id"] = after.into();
    }
    let bearer = format!("Bearer {key}");
    let headers = [("x-plimsoll-session", "the-session"), ("authorization", bearer.as_str())];
    let mut client = serving.post("/v1/responses", &sent.to_string(), &headers).await;
    // The provider counts as we do, so nothing is learned.
    let tokens = [0, 240, 260, 275, 275, 304, 330][input.len()];
    let usage = json!({
        "input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 17, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 17,
    });
    let reply = json!({
        "id": format!("resp_{}", input.len()), "object": "response", "status": "completed",
        "model": model, "output": [answer], "usage": usage,
    });
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    client.response().await;
}

fn message(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
}

/// Three calls that continue each other, then one that goes back to the first message.
async fn talk(serving: &mut Serving, provider: &Provider, key: &str) {
    let asks = json!({
        "type": "function_call", "call_id": "call_Ab12Cd34Ef56", "name": "look",
        "arguments": "{\"at\":\"the chart\"}",
    });
    let found = json!({
        "type": "function_call_output", "call_id": "call_Ab12Cd34Ef56", "output": RESULT,
    });
    let mut history = vec![message("user", PROMPT)];
    call(serving, provider, key, &history, asks.clone()).await;
    history.extend([asks, found]);
    call(serving, provider, key, &history, message("assistant", REPLY)).await;
    history.extend([message("assistant", REPLY), message("user", "And how high is it?")]);
    call(serving, provider, key, &history, message("assistant", "Forty feet and some inches."))
        .await;
    let other = [message("user", PROMPT), message("user", "Say it in one word, if you please.")];
    call(serving, provider, key, &other, message("assistant", "Cliff.")).await;
    settled(serving).await;
}

/// Waits until every exchange is recorded, because its turn and text are stored then.
async fn settled(serving: &Serving) {
    let settling = async {
        loop {
            let about: Value =
                serde_json::from_str(serving.ask("/api/v1/about").await.text()).unwrap();
            if about["in_flight"] == 0 {
                return;
            }
        }
    };
    within("exchanges to be told", settling).await;
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn texts(parts: &Value) -> Vec<String> {
    let parts = parts.as_array().unwrap().iter();
    parts.map(|part| part["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// What a replay compares: the call, the estimate with its band, the new part, and the reported input.
fn pairs(lines: &[Value]) -> Vec<[u64; 6]> {
    let lines: Vec<TranscriptLine> =
        lines.iter().map(|line| serde_json::from_value(line.clone()).unwrap()).collect();
    let pairs = replay::play(&lines, &Catalogue::new(Vec::new()), &[], None, |_| ());
    let numbers = |it: &EstimatePair| [it.call, it.tokens, it.low, it.high, it.new, it.actual];
    pairs.iter().map(numbers).collect()
}

/// All bytes in the data folder's files, without the socket.
fn stored(serving: &Serving) -> Vec<u8> {
    let entries =
        std::fs::read_dir(serving.data.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

#[tokio::test]
async fn texts_are_exported_and_replayed() {
    let provider = Provider::start().await;
    let mut serving = keeping(&provider, "").await;
    talk(&mut serving, &provider, "sk-one").await;
    let sizes = lines(&serving.look(&["export", "the-session"]).await.out);
    let export = serving.look(&["export", "the-session", "--content"]).await;
    assert_eq!(export.code, 0);
    assert_eq!(export.err.as_str(), "");
    let export = lines(&export.out);
    assert_eq!(export.len(), 4);

    // Nothing is lost, and each call has what it added.
    assert_eq!(texts(&export[0]["new_parts"])[1..], [SYSTEM, PROMPT]);
    let look = "{\"at\":\"the chart\"}";
    assert_eq!(texts(&export[0]["reply"]), [look]);
    assert_eq!(texts(&export[1]["new_parts"]), [look, RESULT]);
    let parts = &export[1]["new_parts"];
    assert_eq!(parts[0]["kind"], json!("tool_use"));
    assert_eq!(parts[0]["reply"], json!(true));
    assert_eq!(parts[1]["kind"], json!("tool_result"));
    assert_eq!(parts[1]["role"], json!("user"));
    assert_eq!(texts(&export[2]["new_parts"]), [REPLY, "And how high is it?"]);
    // The call that went back has all that it sent, in a thread of its own.
    assert_ne!(export[3]["session"], export[2]["session"]);
    let new = texts(&export[3]["new_parts"]);
    assert_eq!(new[new.len() - 2..], [PROMPT, "Say it in one word, if you please."]);
    assert_eq!(texts(&export[3]["reply"]), ["Cliff."]);

    // The same pairs as without text; then measured again from the text alone.
    let judged = pairs(&sizes);
    assert_eq!(judged.len(), 2, "{judged:?}");
    assert_eq!(pairs(&export), judged);
    let remeasured: Vec<Value> = export
        .into_iter()
        .map(|mut line| {
            line.as_object_mut().unwrap().remove("estimate");
            line
        })
        .collect();
    // The first call teaches something else then, because transcripts do not have the tools.
    let remeasured = pairs(&remeasured);
    assert_eq!(remeasured.len(), judged.len());
    for ([call, tokens, .., new, actual], before) in remeasured.into_iter().zip(judged) {
        assert_eq!(call, before[0]);
        assert_eq!(actual, before[5]);
        assert!(tokens.abs_diff(before[1]) <= 1, "{tokens} {new}");
        assert!(new.abs_diff(before[4]) <= 1, "{tokens} {new}");
    }
    for secret in TEXTS {
        assert!(!serving.log().contains(secret), "{}", serving.log());
    }
}

#[tokio::test]
async fn changed_history_is_exported_whole_and_held_one_with_reply() {
    let provider = Provider::start().await;
    let serving = keeping(&provider, "").await;
    let mut history = vec![message("user", PROMPT)];
    call(&serving, &provider, "sk-one", &history, message("assistant", REPLY)).await;
    let after = ("sk-one", Some("resp_1"));
    let more = [message("user", "And how high is it, would you say?"), message("user", "In feet.")];
    let high = "Forty feet and some inches, if the book is to be believed.";
    call_after(&serving, &provider, after, &more, message("assistant", high)).await;
    // The client changes its first message.
    history[0] = message("user", "Where does the other lighthouse stand?");
    history.push(message("assistant", REPLY));
    history.extend(more.clone());
    history.extend([message("assistant", high), message("user", "Thank you.")]);
    call(&serving, &provider, "sk-one", &history, message("assistant", "Aye.")).await;
    settled(&serving).await;
    let export = serving.look(&["export", "the-session", "--content"]).await;
    assert_eq!(export.err, "");
    let export = lines(&export.out);
    assert_eq!(export.len(), 3);
    let (held, whole) = (&export[1], &export[2]);
    let added = [REPLY, "And how high is it, would you say?", "In feet."];
    assert_eq!(texts(&held["new_parts"]), added);
    assert_eq!(held["new_parts"][0]["reply"], json!(true));
    assert_eq!(held["flags"], json!([]));
    let all = [
        SYSTEM,
        "Where does the other lighthouse stand?",
        added[0],
        added[1],
        added[2],
        high,
        "Thank you.",
    ];
    assert_eq!(texts(&whole["new_parts"])[1..], all);
    assert_eq!(whole["session"], held["session"]);
    assert_eq!(whole["flags"], json!(["whole"]));
}

#[tokio::test]
async fn no_text_is_kept_by_default_and_export_says_so() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    talk(&mut serving, &provider, "sk-one").await;
    let bytes = stored(&serving);
    assert!(holds(&bytes, "the-session"), "the store was not found");
    for text in TEXTS {
        assert!(!holds(&bytes, text), "{text}");
    }
    let sizes = serving.look(&["export", "the-session"]).await;
    assert_eq!(sizes.err, "");
    let export = serving.look(&["export", "the-session", "--content"]).await;
    assert_eq!(export.code, 0);
    assert!(export.err.contains("Of 4 calls, 4 are without their text"), "{}", export.err);
    assert!(export.err.contains("content.keep = true"), "{}", export.err);
    let mut export = lines(&export.out);
    for line in &mut export {
        assert_eq!(line["flags"].as_array_mut().unwrap().pop(), Some("no_content".into()));
    }
    assert_eq!(export, lines(&sizes.out));
}

#[tokio::test]
async fn stored_texts_belong_to_credential_and_are_deleted_with_session() {
    let provider = Provider::start().await;
    let mut serving = keeping(&provider, "").await;
    talk(&mut serving, &provider, "sk-one").await;
    let history = [message("user", "What the second one asks.")];
    call(&serving, &provider, "sk-two", &history, message("assistant", "Aye, aye, captain.")).await;
    settled(&serving).await;
    assert!(TEXTS.iter().all(|text| holds(&stored(&serving), text)));
    let listed = serving.look(&["sessions", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let ids: Vec<&str> = [0, 1].map(|at| listed["sessions"][at]["id"].as_str().unwrap()).into();
    let second = serving.look(&["export", ids[0], "--content"]).await.out;
    let first = serving.look(&["export", ids[1], "--content"]).await.out;
    assert!(second.contains("the second one"), "{second}");
    assert!(!second.contains(PROMPT), "{second}");
    assert!(first.contains(PROMPT), "{first}");
    assert!(!first.contains("the second one"), "{first}");

    let id = ids[1];
    let gone =
        serving.ask_as("DELETE", &format!("/api/v1/sessions/{id}"), &serving.token, "").await;
    assert_eq!(gone.status(), 200);
    assert_eq!(serving.look(&["export", id, "--content"]).await.code, 1);
    let second = serving.look(&["export", ids[0], "--content"]).await.out;
    assert!(second.contains("the second one"), "{second}");
}

#[tokio::test]
async fn texts_past_their_limits_are_left_out_and_their_sizes_are_kept() {
    let provider = Provider::start().await;
    let serving = keeping(&provider, "").await;
    let prompt = "A long prompt. ".repeat(5 << 16);
    call(&serving, &provider, "sk-one", &[message("user", &prompt)], message("assistant", REPLY))
        .await;
    settled(&serving).await;
    let export = serving.look(&["export", "the-session", "--content"]).await;
    assert!(export.err.contains("have a part of it"), "{}", export.err);
    let first = &lines(&export.out)[0];
    assert_eq!(first["new_parts"].as_array().unwrap().last().unwrap()["redacted"], 1);
}

/// How often one of the texts is in the data folder's files.
fn on_disk(serving: &Serving) -> usize {
    let files = std::fs::read_dir(serving.data.path()).unwrap().flatten();
    let counted = files.map(|file| {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let find = |word: &&str| memchr::memmem::find_iter(&bytes, word.as_bytes()).count();
        TEXTS.iter().map(find).sum::<usize>()
    });
    counted.sum()
}

#[tokio::test]
async fn text_of_deleted_session_is_in_no_file_after_five_seconds() {
    let provider = Provider::start().await;
    let mut serving = keeping(&provider, "").await;
    talk(&mut serving, &provider, "sk-canary").await;
    assert!(on_disk(&serving) > 3, "they were never there");
    let path = "/api/v1/sessions/the-session";
    let deleted = serving.ask_as("DELETE", path, &serving.token, "").await;
    assert_eq!(deleted.status(), 200);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while on_disk(&serving) > 0 {
        assert!(std::time::Instant::now() < until, "{} of them are there", on_disk(&serving));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(serving.ask(path).await.status(), 404);
}
