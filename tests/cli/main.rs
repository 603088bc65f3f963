//! The real binary, as a user or a script runs it.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod canary;
mod caps;
mod collector;
mod compared;
mod content;
mod counting;
mod keeping;
mod lasting;
mod loops;
mod mcp;
mod mode;
mod models;
mod private;
mod program;
mod replaying;
mod request_ids;
mod running;
mod strict_demo;

use std::process::Stdio;

use program::{Serving, plimsoll, run};
use support::http1::Provider;
use support::wire::anthropic;
use support::within;
use tokio::io::AsyncWriteExt as _;

#[tokio::test]
async fn usage_faults_exit_with_2() {
    let done = run(&["serve", "--lisen", "x"]).await;
    assert_eq!(done.code, 2);
    assert!(done.err.contains("--listen"), "{}", done.err);
    assert_eq!(run(&[]).await.code, 2);
    assert_eq!(run(&["--version"]).await.code, 0);
}

#[tokio::test]
async fn check_says_what_would_be_served() {
    let done = run(&["check", "--upstream", "local=http://127.0.0.1:1", "--mode", "observe"]).await;
    assert_eq!(done.code, 0);
    assert_eq!(done.err.as_str(), "");
    for line in [
        "clients:   http://127.0.0.1:8787",
        "mode:      observe",
        "local        http://127.0.0.1:1  (only by name, prefix or host; /local/…)",
    ] {
        assert!(done.out.contains(line), "{line}:\n{}", done.out);
    }
    let done = run(&["check", "--json"]).await;
    let served: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(served["upstreams"][1]["base_url"], "https://api.openai.com/v1");
}

/// On loopback it is no error: the machine may be one person's.
#[tokio::test]
async fn check_notes_key_that_every_local_program_can_use() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let config = "[upstream.anthropic]\ncredential = \"env:OPERATORS_KEY\"\n";
    std::io::Write::write_all(&mut file, config.as_bytes()).unwrap();
    let check = async |variables: &[(&str, &str)]| {
        let mut command = program::plimsoll(&["check", "--config", file.path().to_str().unwrap()]);
        let done = command.envs(variables.iter().copied()).output().await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let key = ("OPERATORS_KEY", "sk-operators");
    let note = "note: upstream.anthropic.credential: every user and program of this machine";
    assert!(check(&[key]).await.contains(note));
    let token = ("PLIMSOLL_CLIENT_TOKEN", "a-token-of-some-length");
    assert!(!check(&[key, token]).await.contains("note:"));
}

#[tokio::test]
async fn check_prints_all_faults_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, "lisen = \"127.0.0.1:1\"\n[limits]\nbody_bytes = 0\n").unwrap();
    let file = file.to_str().unwrap();
    let done = run(&["check", "--config", file]).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    assert!(
        done.err.contains("plimsoll.toml:1: lisen: unknown key; the nearest known key is listen")
    );
    assert!(done.err.contains("plimsoll.toml:3: limits.body_bytes: 0 allows nothing"));
    let done = run(&["check", "--config", file, "--json"]).await;
    let faults: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(done.code, 1);
    assert_eq!(faults["faults"].as_array().unwrap().len(), 2);
    // `serve` refuses the same file, and binds no port.
    let done = run(&["serve", "--config", file]).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    assert!(done.err.contains("2 errors in the configuration"), "{}", done.err);
}

#[tokio::test]
async fn port_in_use_is_reported() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = holder.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let done = run(&["serve", "--listen", &used, "--admin", "127.0.0.1:0", "--data", data]).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    let expected = format!(
        "plimsoll: {used} is in use by another process. Stop it, or choose another port with --listen"
    );
    assert!(done.err.contains(&expected), "{}", done.err);
    let done = run(&["serve", "--admin", &used, "--listen", "127.0.0.1:0", "--data", data]).await;
    assert!(done.err.contains("with --admin"), "{}", done.err);
    drop(holder);
}

/// A proxy variable that was set for something else would send every request there without notice.
#[tokio::test]
async fn stray_proxy_variable_is_logged_at_start_without_its_credential() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let free = "127.0.0.1:0";
    let mut child = plimsoll(&["serve", "--listen", free, "--admin", free, "--data", data])
        .env("HTTPS_PROXY", "http://me:hunter2@proxy.example:3128")
        .env("NO_PROXY", "api.openai.com")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = program::lines(child.stderr.take().unwrap());
    let line = within("the proxy to be told", async {
        loop {
            let line = log.next_line().await.unwrap().expect("the log ended");
            if line.contains("proxy.example") {
                return line;
            }
        }
    })
    .await;
    assert!(line.contains("HTTPS_PROXY"), "{line}");
    assert!(line.contains("proxy.example:3128"), "{line}");
    assert!(line.contains("anthropic, gemini"), "{line}");
    assert!(!line.contains("openai"), "{line}");
    assert!(!line.contains("hunter2"), "{line}");
    assert!(!line.contains("me:"), "{line}");
    child.kill().await.unwrap();
}

#[tokio::test]
async fn unwritable_folder_is_reported() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[store]\non_failure = \"exit\"\n").unwrap();
    let config = file.path().to_str().unwrap();
    let inside = file.path().join("data");
    let data = inside.to_str().unwrap();
    let free = "127.0.0.1:0";
    let serve = ["serve", "--config", config, "--listen", free, "--admin", free, "--data", data];
    let done = run(&serve).await;
    assert_eq!(done.code, 1);
    assert_eq!(done.out.as_str(), "");
    assert!(done.err.contains(data), "{}", done.err);
    assert!(done.err.len() < 600, "{}", done.err);
}

#[tokio::test]
async fn command_without_running_server_says_what_to_do() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for command in
        [&["sessions"][..], &["context"], &["top"], &["explain", "x"], &["savings"], &["export"]]
    {
        let admin = ["--admin", &free.to_string()];
        let done = run(&[command, &admin].concat()).await;
        assert_eq!(done.code, 1, "{command:?}");
        let expected = format!("nothing answers at {free}. Start `plimsoll serve`");
        assert!(done.err.contains(&expected), "{command:?}: {}", done.err);
    }
}

#[tokio::test]
async fn healthcheck_asks_the_running_server() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let done = serving.look(&["healthcheck"]).await;
    assert_eq!(done.code, 0);
    assert_eq!(done.out.as_str(), "ready\n");
    assert_eq!(done.err.as_str(), "");
}

#[tokio::test]
async fn healthcheck_fails_without_server() {
    let data = tempfile::tempdir().unwrap();
    let done = run(&["healthcheck", "--data", data.path().to_str().unwrap()]).await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("nothing answers at"), "{}", done.err);
}

#[tokio::test]
async fn completions_and_man_page_come_from_arguments() {
    let done = run(&["completions", "bash"]).await;
    assert!(done.code == 0, "{}", done.out);
    assert!(done.out.contains("--upstream"), "{}", done.out);
    let done = run(&["man"]).await;
    assert!(done.code == 0);
    assert!(done.out.starts_with(".ie"));
    assert!(done.out.contains("serve"));
    let done = run(&["man", "sessions"]).await;
    assert!(
        done.out.contains("plimsoll\\-sessions") && done.out.contains("\\-\\-watch"),
        "{}",
        done.out
    );
    let source = concat!("\"plimsoll ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(done.out.contains(source), "{}", done.out);
    assert_eq!(run(&["man", "nothing"]).await.code, 1);
}

/// `plimsoll man | head -1`: a closed pipe is not an error.
#[tokio::test]
async fn closed_pipe_is_no_panic() {
    for arguments in [&["man"][..], &["check"], &["check", "--json"], &["completions", "zsh"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = plimsoll(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let done = within("the program to end", child.wait_with_output()).await.unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {err}");
        assert!(err.is_empty(), "{arguments:?}: {err}");
    }
}

/// `plimsoll sessions --watch | head -1`: it ends when nobody reads it.
#[tokio::test]
async fn watching_ends_with_its_reader() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_str().unwrap();
    for command in ["sessions", "spend"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = plimsoll(&[command, "--watch=1", "--data", data]);
        let child = child.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let done = within("the program to end", child.wait_with_output()).await.unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && err.is_empty(), "{command}: {err}");
    }
}

#[tokio::test]
async fn first_signal_drains() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let script = anthropic();
    let mut client = serving.post(script.path, script.request, &[]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk(script.events[0]).await;
    client.until("message_start").await;
    serving.signal("TERM").await;
    serving.wait_for_log("shutting down: finishing open streams").await;
    // The stream continues, and the server reports that it is not ready for new requests.
    call.chunk(script.events[1]).await;
    client.until("content_block_start").await;
    assert_eq!(serving.ask("/readyz").await.status(), 503);
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 130);
}

#[tokio::test]
async fn drained_server_exits_with_0() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let script = anthropic();
    let mut client = serving.post(script.path, script.request, &[]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk(script.events[0]).await;
    client.until("message_start").await;
    serving.signal("INT").await;
    serving.wait_for_log("shutting down: finishing open streams").await;
    for event in &script.events[1..] {
        call.chunk(event).await;
    }
    call.end().await;
    client.until("message_stop").await;
    assert_eq!(serving.ended().await, 0);
}

#[tokio::test]
async fn plimsoll_run_sets_base_urls_and_returns_exit_code() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (base, free) = (format!("anthropic={}", provider.base()), "127.0.0.1:0");
    let script = "echo $ANTHROPIC_BASE_URL; echo $OPENAI_BASE_URL; echo $GOOGLE_GEMINI_BASE_URL; read line; exit 7";
    let data = folder.path().to_str().unwrap();
    let mut child = plimsoll(&[
        "run",
        "--listen",
        free,
        "--admin",
        free,
        "--data",
        data,
        "--upstream",
        &base,
        "--",
        "sh",
        "-c",
        script,
    ])
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = program::lines(child.stdout.take().unwrap());
    let mut line = async || within("a line", lines.next_line()).await.unwrap().unwrap();
    let (root, versioned, gemini) = (line().await, line().await, line().await);
    assert_eq!(versioned, format!("{root}/v1"));
    assert_eq!(gemini, root);
    // The client's request goes through the proxy that was started for it.
    // After the address stands the tag of this run.
    let (address, tag) = root.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let address = address.parse().unwrap();
    let request = anthropic();
    let path = format!("/{tag}{}", request.path);
    let mut client = program::post(address, &path, request.request, &[]).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &request.events {
        call.chunk(event).await;
    }
    call.end().await;
    client.until("message_stop").await;
    child.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    let done = within("the program to end", child.wait_with_output()).await.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(7), "{err}");
    assert!(err.contains("tokens  11 in (0% from the cache), 5 out"), "the summary:\n{err}");
    let log = std::fs::read_to_string(folder.path().join("run.log")).unwrap();
    assert!(log.contains(" input=11 output=5"), "{log}");
}

/// Who has a wrong key hears that the calls came through, and not that the command was pointed wrongly.
#[tokio::test]
async fn run_tells_of_refused_calls() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let free = "127.0.0.1:0";
    let places = ["--listen", free, "--admin", free, "--data", data];
    let mut child = plimsoll(&["run"])
        .args(places)
        .args(["--upstream", "anthropic=http://127.0.0.1:1"])
        .args(["--", "sh", "-c", "echo $ANTHROPIC_BASE_URL; read line; exit 1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = program::lines(child.stdout.take().unwrap());
    let root = within("a line", lines.next_line()).await.unwrap().unwrap();
    let (address, tag) = root.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let request = anthropic();
    let path = format!("/{tag}{}", request.path);
    let mut client = program::post(address.parse().unwrap(), &path, request.request, &[]).await;
    client.until("502 Bad Gateway").await;
    drop(child.stdin.take());
    let done = within("the program to end", child.wait_with_output()).await.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.contains("1 call came through, and all failed: 1 × 502."), "{err}");
    assert_eq!(done.status.code(), Some(1));
}

/// The log of earlier runs is kept up to 16 MiB, and one older file.
#[tokio::test]
async fn plimsoll_run_renames_large_log() {
    let folder = tempfile::tempdir().unwrap();
    let (free, data) = ("127.0.0.1:0", folder.path().to_str().unwrap());
    let [log, old] = ["run.log", "run.log.1"].map(|name| folder.path().join(name));
    let size = |path| std::fs::metadata(path).unwrap().len();
    let limit = 16 << 20;
    std::fs::write(&old, "an older log").unwrap();
    std::fs::File::create(&log).unwrap().set_len(limit).unwrap();
    let arguments = ["run", "--listen", free, "--admin", free, "--data", data, "--", "true"];
    let first = run(&arguments).await;
    assert_eq!(first.code, 0, "{}", first.err);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "an older log");
    assert!(size(&log) >= limit, "a log of the limit's size is appended to");
    std::fs::File::create(&log).unwrap().set_len(limit + 1).unwrap();
    let second = run(&arguments).await;
    assert_eq!(second.code, 0, "{}", second.err);
    assert_eq!(size(&old), limit + 1, "it replaces the older one");
    assert!(size(&log) < limit);
}

/// SIGTERM is passed on to the command; its exit code is ours.
#[tokio::test]
async fn run_passes_signals_on() {
    let folder = tempfile::tempdir().unwrap();
    let (free, data) = ("127.0.0.1:0", folder.path().to_str().unwrap());
    let script = "trap 'echo heard; exit 9' TERM; echo waiting; while read line; do :; done";
    let arguments =
        ["run", "--listen", free, "--admin", free, "--data", data, "--", "sh", "-c", script];
    let mut child = plimsoll(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = program::lines(child.stdout.take().unwrap());
    let mut line = async || within("a line", out.next_line()).await.unwrap().unwrap();
    assert_eq!(line().await, "waiting");
    program::signal(&child, "TERM").await;
    // Some shells handle the signal only between two commands; others have ended by now.
    let _ = child.stdin.as_mut().unwrap().write_all(b"\n").await;
    assert_eq!(line().await, "heard");
    let done = within("the program to end", child.wait()).await.unwrap();
    assert_eq!(done.code(), Some(9));
}

/// If the user has set a base URL, requests still go there.
#[tokio::test]
async fn plimsoll_run_forwards_to_base_url_that_user_has_set() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (free, data) = ("127.0.0.1:0", folder.path().to_str().unwrap());
    let script = "echo $ANTHROPIC_BASE_URL; read line";
    let arguments = [
        "run", "--json", "--listen", free, "--admin", free, "--data", data, "--", "sh", "-c",
        script,
    ];
    let mut child = plimsoll(&arguments)
        .env("ANTHROPIC_BASE_URL", provider.base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = program::lines(child.stdout.take().unwrap());
    let root = within("a line", out.next_line()).await.unwrap().unwrap();
    assert_ne!(root, provider.base());
    // After the address stands the tag of this run.
    let (address, tag) = root.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let address = address.parse().unwrap();
    let path = format!("/{tag}/v1/messages");
    let mut client = program::post(address, &path, "{}", &[]).await;
    provider.call().await.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
    child.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    let done = within("the program to end", child.wait_with_output()).await.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.contains("anthropic is forwarded to"), "{err}");
    let summary: serde_json::Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
    assert!(summary["calls"].is_u64(), "{summary}");
}

/// A running proxy is used, whatever its address for clients is.
#[tokio::test]
async fn plimsoll_run_uses_server_that_is_already_running() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_str().unwrap().to_owned();
    let done = run(&["run", "--data", &data, "--", "sh", "-c", "echo $OPENAI_BASE_URL"]).await;
    let address = format!("http://{}/~run=", serving.clients);
    assert!(done.out.starts_with(&address) && done.out.ends_with("/v1\n"), "{}", done.out);
    assert!(done.err.contains("nothing came through the proxy"), "{}", done.err);
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
}

#[tokio::test]
async fn plimsoll_run_reports_command_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let (free, data) = ("127.0.0.1:0", folder.path().to_str().unwrap());
    let done =
        run(&["run", "--listen", free, "--admin", free, "--data", data, "--", "no-such-command"])
            .await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("no-such-command cannot be run"), "{}", done.err);
}

/// An upstream's own window is the window of all its models: the log names only a model whose window is a guess, once.
#[tokio::test]
async fn log_names_model_only_if_its_window_is_unknown() {
    let provider = Provider::start().await;
    let above = format!(
        "[upstream.anthropic]\nwindow_tokens = 32000\n[upstream.other]\nbase_url = \"{}\"\n",
        provider.base()
    );
    let mut serving = mode::serving(&provider, &above, &[]).await;
    let request = serde_json::json!({"model": "a-model-of-our-own", "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hello."}]});
    let reply = serde_json::json!({"id": "m", "type": "message", "role": "assistant", "model": "a-model-of-our-own",
        "content": [{"type": "text", "text": "Hello."}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 5}});
    for path in ["/v1/messages", "/other/v1/messages", "/other/v1/messages"] {
        let mut client =
            serving.post(path, &request.to_string(), &[("x-api-key", "sk-test")]).await;
        provider.call().await.answer("200 OK", &reply.to_string()).await;
        assert_eq!(client.response().await.status(), 200);
    }
    serving.wait_for_log("so its window is a guess").await;
    serving.signal("TERM").await;
    let log = serving.log_to_its_end().await;
    let named: Vec<&str> = log.lines().filter(|line| line.contains("is a guess")).collect();
    assert_eq!(named.len(), 1, "{log}");
    assert!(
        named[0].contains("other: model \"a-model-of-our-own\" is not in the catalogue"),
        "{log}"
    );
}

/// A window that a refusal taught is no guess, after a restart too.
#[tokio::test]
async fn log_does_not_name_model_whose_window_was_learned() {
    let (provider, data) = (Provider::start().await, tempfile::tempdir().unwrap());
    let flags = ["--mode", "observe", "--data", data.path().to_str().unwrap()];
    let mut request = mode::history(12, |number| format!("Line {number} of it. ").repeat(60));
    request["model"] = "a-model-of-our-own".into();
    let refusal = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2600 tokens > 2000 maximum"}}"#;
    let mut logs = Vec::new();
    for _ in 0..2 {
        let mut serving = mode::serving(&provider, "", &flags).await;
        let headers = [("x-api-key", "sk-test")];
        let mut client = serving.post("/v1/messages", &request.to_string(), &headers).await;
        provider.call().await.answer("400 Bad Request", refusal).await;
        assert_eq!(client.response().await.status(), 400);
        serving.signal("TERM").await;
        logs.push(serving.log_to_its_end().await);
    }
    assert!(logs[0].contains("so its window is a guess"), "{}", logs[0]);
    assert!(!logs[1].contains("is a guess"), "{}", logs[1]);
}
