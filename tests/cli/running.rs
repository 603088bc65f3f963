//! What the commands show of a running server.

use std::fs::File;
use std::io::{Read as _, Write as _};

use plimsoll::context::budget::grouped;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetattr;
use serde_json::{Value, json};
use tokio::process::Command;

use super::program::Serving;
use super::support::http1::Provider;
use super::support::wire::{self, Script};
use super::support::within;

/// Plays one exchange through the server, to its last event.
pub async fn play(serving: &mut Serving, provider: &Provider, script: &Script) {
    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post(script.path, script.request, &headers).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    client.response().await;
    serving.wait_for_log(&format!("output={}", script.output)).await;
}

/// A pipe that nobody reads is a disk that hangs: a reply ends after 10 s, and the process when it is told to.
#[tokio::test]
async fn disk_that_hangs_delays_no_end() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let journal = serving.data.path().join("plimsoll.db-turns.1");
    assert!(std::process::Command::new("mkfifo").arg(journal).status().unwrap().success());
    let script = &wire::all()[0];
    let mut client = serving.post(script.path, script.request, &[("x-api-key", "sk-1")]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    assert_eq!(client.response().await.status(), 200);
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
}

#[tokio::test]
async fn every_dialect_is_metered() {
    for script in wire::all() {
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &[]).await;
        play(&mut serving, &provider, &script).await;
        let log = serving.log();
        let line = log.lines().find(|line| line.contains(" POST ")).unwrap();
        for field in [
            " 200 complete ",
            "session=the-session",
            &format!(" input={}", script.input),
            " estimated=",
            &format!(" actual={} error=", script.input),
            " method=estimated",
        ] {
            assert!(line.contains(field), "{}: {field} is not in {line}", script.path);
        }
        let path = script.path.split('?').next().unwrap();
        assert!(line.contains(path), "{line}");
        assert!(!line.contains('?'), "{line}");
        let put = "plimsoll_store_operations_total{operation=\"put\"} 1";
        let text = serving.wait_for_metrics(put).await;
        assert!(text.contains("plimsoll_estimates_comparable_total{"), "{text}");
    }
}

/// Each series costs its scraper memory for as long as it lives.
#[tokio::test]
async fn three_upstreams_have_few_series() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    // Once the store has been asked for what is expired, it has done all of a start.
    let metrics =
        serving.wait_for_metrics("plimsoll_store_operations_total{operation=\"expire\"}").await;
    let series: Vec<_> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(series.len() <= 190, "{}:\n{}", series.len(), series.join("\n"));
}

#[tokio::test]
async fn sessions_and_contexts_are_shown() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let empty = serving.look(&["sessions"]).await;
    assert!(empty.out.starts_with("No session yet"), "{}", empty.out);
    assert_eq!(serving.look(&["context"]).await.code, 1);
    play(&mut serving, &provider, &wire::anthropic()).await;
    serving.wait_for_metrics("plimsoll_store_operations_total{operation=\"put\"} 1").await;

    let table = serving.look(&["sessions"]).await;
    assert_eq!(table.code, 0, "{}", table.err);
    let mut rows = table.out.lines();
    assert!(rows.next().unwrap().starts_with("SESSION"), "{}", table.out);
    let row = rows.next().unwrap();
    assert!(row.starts_with("the-session"), "{row}");
    assert!(row.contains("16 / 200,000 (0%)"), "{row}");
    let listed = serving.look(&["sessions", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let session = &listed["sessions"][0];
    assert_eq!(session["session"], "the-session");
    assert_eq!(session["thread_list"][0]["context"]["window"], 200_000);
    let none = serving.look(&["sessions", "--search", "another"]).await;
    assert_eq!(none.out, "No session matches.\n");
    let sorted = serving.look(&["sessions", "--sort", "dollars", "--limit", "900"]).await;
    assert!(sorted.out.contains("\nthe-session"), "{}", sorted.out);
    let coloured = serving.look(&["sessions", "--color", "always"]).await.out;
    assert!(coloured.contains("\x1b[1mthe-session\x1b[0m"), "{coloured}");
    let failed = serving.look(&["context", "another", "--json"]).await;
    let error: Value = serde_json::from_str(&failed.err).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("Nothing is known of session"), "{message}");

    for arguments in [&["context"][..], &["context", "the-session"]] {
        let view = serving.look(arguments).await;
        assert!(
            view.out.starts_with("Context Usage: 16 / 200,000 tokens (0%)\n━━━"),
            "{}",
            view.out
        );
        assert!(view.out.contains("Last actual input:"), "{}", view.out);
    }
    let view = serving.look(&["context", "--json"]).await;
    let view: Value = serde_json::from_str(&view.out).unwrap();
    assert_eq!(view["total"], 16);
    assert_eq!(view["basis"]["output"], 5);
    let log = serving.log();
    let id = log.split(" id=").nth(1).unwrap().split(' ').next().unwrap();
    for arguments in [&["explain"][..], &["explain", id]] {
        let explained = serving.look(arguments).await.out;
        assert!(explained.starts_with(&format!("Request {id} at ")), "{explained}");
        assert!(explained.contains("\nNothing was changed.\nCache:\n"), "{explained}");
    }
    let explained = serving.look(&["explain", id, "--json"]).await;
    let explained: Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!(explained["request"], id);
    assert_eq!(explained["made"]["cut"], 0);
    for arguments in [&["savings"][..], &["savings", "the-session"]] {
        let savings = serving.look(arguments).await;
        assert!(savings.out.starts_with("Savings of 1 session\n"), "{}", savings.out);
    }
    for arguments in [&["export"][..], &["export", "the-session"]] {
        let line: Value = serde_json::from_str(&serving.look(arguments).await.out).unwrap();
        assert_eq!(line["source"], "plimsoll");
        assert_eq!(line["usage"]["output"], 5);
    }
    let none = serving.look(&["context", "another"]).await;
    assert!(none.code == 1, "{}", none.err);
    assert!(none.err.contains("Nothing is known of session \"another\""), "{}", none.err);

    // Standard output is not a terminal here, so `top` prints once.
    let top = serving.look(&["top"]).await;
    assert!(top.code == 0, "{}", top.out);
    assert!(top.out.contains("the-session"), "{}", top.out);
    assert!(!top.out.contains('\x1b') && !top.out.contains("q quit"), "{}", top.out);
}

/// On a terminal, `top` ends with `q`, and leaves the terminal as it was.
#[tokio::test]
async fn top_ends_with_q() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let (mut ours, terminal) = open_terminal();
    let before = tcgetattr(&terminal).unwrap().local_modes;
    let mut top = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["top", "--data", serving.data.path().to_str().unwrap()])
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal.try_clone().unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let looking = tokio::task::spawn_blocking(move || {
        read_until(&mut ours, "q quit");
        ours.write_all(b"?").unwrap();
        read_until(&mut ours, "sort by the next column");
        // Back, and sorted by the next column.
        ours.write_all(b"\x1bs").unwrap();
        read_until(&mut ours, "by cost");
        ours.write_all(b"q").unwrap();
        ours
    });
    let ours = within("a picture", looking).await.unwrap();
    let ended = within("the end", top.wait()).await.unwrap();
    assert!(ended.success());
    assert_eq!(tcgetattr(&terminal).unwrap().local_modes, before);
    drop(ours);
}

/// A terminal: our end of it, and the program's.
pub fn open_terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(ours), terminal)
}

pub fn read_until(terminal: &mut File, text: &str) {
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains(text) {
        let mut bytes = [0; 4096];
        let length = terminal.read(&mut bytes).unwrap();
        shown.extend_from_slice(&bytes[..length]);
    }
}

/// One exchange of a session with this many messages in its history.
async fn talk(serving: &mut Serving, provider: &Provider, session: &str, messages: usize) {
    let role = |number: usize| if number.is_multiple_of(2) { "user" } else { "assistant" };
    let text = |number: usize| format!("Message {number}. {}", "More of the same. ".repeat(200));
    let message = |number: usize| json!({"role": role(number), "content": text(number)});
    let messages: Vec<Value> = (0..messages).map(message).collect();
    let model = "claude-sonnet-4-5";
    let request = json!({"model": model, "max_tokens": 100, "messages": messages}).to_string();
    let headers = [("x-plimsoll-session", session), ("x-api-key", "sk-test")];
    let mut client = serving.post("/v1/messages", &request, &headers).await;
    let reply = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": model,
        "content": [{"type": "text", "text": "Aye."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": request.len() / 5, "output_tokens": 3},
    });
    provider.call().await.answer("200 OK", &reply.to_string()).await;
    client.response().await;
    serving.wait_for_log(&format!("session={session}")).await;
}

#[tokio::test]
async fn dry_run_shows_what_compacting_would_do_or_why_it_cannot() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    talk(&mut serving, &provider, "long", 21).await;
    talk(&mut serving, &provider, "short", 1).await;

    let looked = serving.look(&["compact", "long", "--dry-run", "--json"]).await;
    let it: Value = serde_json::from_str(&looked.out).unwrap();
    let tokens = |name: &str| grouped(it[name].as_u64().unwrap());
    let dollars = |name: &str| format!("${:.4}", it[name].as_f64().unwrap());
    let dry_run = serving.look(&["compact", "long", "--dry-run"]).await;
    let expected = format!(
        "{} of 21 messages would be replaced by a summary written by the model at Plimsoll's request.\n\
         {} → {} tokens, with a summary of {}; the usable window is {} (claude-sonnet-4-5 at anthropic).\n\
         Each later call would save {} (cold cache: {}); writing it costs about {}.\n\
         Nothing was done.\n",
        it["messages_cut"],
        tokens("tokens_before"),
        tokens("tokens_after"),
        tokens("tokens_summary"),
        tokens("usable"),
        dollars("saved_per_call_cached"),
        dollars("saved_per_call_cold"),
        dollars("cost_of_writing"),
    );
    assert_eq!(dry_run.code, 0, "{}", dry_run.err);
    assert_eq!(&*dry_run.out, &*expected, "{}", dry_run.err);
    assert!(it["tokens_before"].as_u64() > it["tokens_after"].as_u64(), "{it}");

    for (arguments, why) in [
        (&["compact", "short"][..], "There is nothing to cut"),
        (&["compact", "short", "--dry-run"], "There is nothing to cut"),
        (&["compact", "another"], "Nothing is known of session \"another\""),
        (&["compact", "another", "--dry-run"], "Nothing is known of session \"another\""),
    ] {
        let refused = serving.look(arguments).await;
        assert!(refused.code == 1, "{}", refused.out);
        assert!(refused.out.is_empty(), "{}", refused.out);
        assert!(refused.err.contains(why), "{arguments:?}: {}", refused.err);
    }
    let requested = serving.look(&["compact", "long", "--focus", "the tests"]).await;
    let begins = "The next request of the session's main thread starts the summary; the first one after it is written";
    assert!(requested.code == 0, "{} {}", requested.out, requested.err);
    assert!(requested.out.starts_with(begins), "{} {}", requested.out, requested.err);
}

#[tokio::test]
async fn every_line_of_json_log_is_json() {
    let provider = Provider::start().await;
    let more = ["--log", "json"];
    let mut serving = Serving::start(&provider.base(), &more).await;
    let script = wire::chat();
    let mut client = serving.post(script.path, script.request, &[]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    client.response().await;
    serving.wait_for_log("\"message\":\"exchange\"").await;
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
    let log = serving.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let exchange = lines.iter().find(|line| line["message"] == "exchange").unwrap();
    assert_eq!(exchange["usage"]["input"], 10);
    assert_eq!(exchange["actual"], 10);
    assert!(exchange["error_ratio"].is_number());
    assert!(exchange["estimate"]["method"] == "estimated");
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()));
}

/// The line of a call is written at any log level, and its own level is info.
#[tokio::test]
async fn exchange_is_logged_at_any_level() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, "log_level = \"error\"\n").unwrap();
    let more = ["--log", "json", "--config", file.to_str().unwrap()];
    let mut serving = Serving::start(&provider.base(), &more).await;
    let script = wire::chat();
    let mut client = serving.post(script.path, script.request, &[]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    client.response().await;
    serving.wait_for_log("\"message\":\"exchange\"").await;
    let log = serving.log();
    let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(line["message"], "exchange");
    assert_eq!(line["level"], "INFO");
    assert!(line["error"].is_number(), "{line}");
}

/// The response and the log say whose fault it was.
#[tokio::test]
async fn silent_upstream_is_reported() {
    let gone = Provider::start().await.base();
    let mut serving = Serving::start(&gone, &[]).await;
    let script = wire::anthropic();
    let mut client = serving.post(script.path, script.request, &[]).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.header("x-plimsoll-error"), Some("upstream_failed"));
    serving.wait_for_log(" 502 upstream_failed ").await;
}

/// Messages are queued, listed and removed by commands, and sent in the session's next request.
#[tokio::test]
async fn messages_are_queued_and_sent() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let unknown = serving.look(&["say", "the-session", "Hello."]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("Nothing is known of session"), "{}", unknown.err);
    let script = wire::anthropic();
    play(&mut serving, &provider, &script).await;
    serving.wait_for_metrics("plimsoll_store_operations_total{operation=\"put\"} 1").await;

    let queued = serving.look(&["say", "the-session", "Mind", "the tide."]).await;
    assert!(queued.out.contains(" is number 1 in the queue"), "{} {}", queued.out, queued.err);
    serving.look(&["say", "the-session", "Not this."]).await;
    let listed = serving.look(&["say", "the-session", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["waiting"][0]["text"], "Mind the tide.");
    let second = listed["waiting"][1]["id"].as_str().unwrap();
    let removed = serving.look(&["say", "the-session", "--remove", second]).await;
    assert!(removed.out.contains("will not be sent"), "{} {}", removed.out, removed.err);

    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post(script.path, script.request, &headers).await;
    let mut call = provider.call().await;
    let sent = call.message.text().to_owned();
    assert!(sent.contains("Mind the tide."), "{sent}");
    assert!(!sent.contains("Not this."), "{sent}");
    call.answer("200 OK", "{}").await;
    client.response().await;
    let listed = serving.look(&["say", "the-session"]).await;
    assert!(listed.out.starts_with("No message is queued.\nsent "), "{}", listed.out);
    let id = serving.look(&["say", "the-session", "--json"]).await;
    let id: Value = serde_json::from_str(&id.out).unwrap();
    let id = id["taken"][0]["id"].as_str().unwrap().to_owned();
    let late = serving.look(&["say", "the-session", "--remove", &id]).await;
    assert!(late.code == 1, "{}", late.err);
    assert!(late.err.contains("already sent"), "{}", late.err);
}

/// The vocabularies are loaded before the server is ready: the first request is counted by its own, like the next one.
#[tokio::test]
async fn first_request_uses_vocabulary() {
    let text = "Eine Donaudampfschifffahrtsgesellschaft zzyzx qwrtplkjh 0x7f3a. ".repeat(40);
    for model in ["gpt-4o", "gpt-4", "claude-opus-4-5"] {
        let provider = Provider::start().await;
        let mut serving = Serving::start(&provider.base(), &[]).await;
        assert_eq!(serving.ask("/readyz").await.text(), "ready\n");
        let mut estimates = Vec::new();
        for session in ["the-first", "the-second"] {
            let body = json!({"model": model, "messages": [{"role": "user", "content": text}]});
            let headers = [("x-plimsoll-session", session), ("authorization", "Bearer sk-test")];
            let path = "/v1/chat/completions";
            let mut client = serving.post(path, &body.to_string(), &headers).await;
            // Without usage, nothing is learned from it.
            provider.call().await.answer("200 OK", r#"{"choices": []}"#).await;
            assert_eq!(client.response().await.status(), 200);
            serving.wait_for_log(&format!(" session={session} ")).await;
            let log = serving.log();
            let line = log.lines().find(|line| line.contains(&format!(" session={session} ")));
            let estimated = line.unwrap().split(" estimated=").nth(1).expect("an estimate");
            estimates.push(estimated.split(' ').next().unwrap().to_owned());
        }
        assert_eq!(estimates[0], estimates[1], "{model}");
    }
}
