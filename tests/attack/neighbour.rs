//! The stranger here is another local user, or a server in the place of a Plimsoll.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::process::Command;

use super::program::{Done, Serving, plimsoll, run};
use super::support::http1::Provider;
use super::support::{h2, wire, within};

/// The id of the other user, `nobody`.
const OTHER: u32 = 65534;
const FREE: &str = "127.0.0.1:0";
/// A made-up server description.
const ABOUT: &str = r#"{"version":"0.1.0","started":1,"clients":"http://203.0.113.9:80",
    "admin":"http://203.0.113.9:81","mode":"active","upstreams":[],"in_flight":0}"#;

/// Runs a command to its end, with these variables.
async fn with(mut command: Command, variables: &[(&str, &str)]) -> Done {
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    let done = within("the program to end", command.output()).await.unwrap();
    Done {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

/// A folder that the other user can reach, with a copy of the program; `None` if the tests do not run as root.
fn other_users(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        println!("{test}: skipped: only root can act as a second user");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), 0o755);
    let program = folder.path().join("plimsoll");
    // Copied by another process: if this one wrote the file, a child process of another test could inherit the open
    // file, and then the program could not be run.
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg(env!("CARGO_BIN_EXE_plimsoll")).arg(&program).status().unwrap();
    assert!(copied.success());
    open(&program, 0o755);
    Some((folder, program))
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A command that is run as the other user.
fn as_other(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).env_clear().kill_on_drop(true).uid(OTHER).gid(OTHER);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir("/");
    command
}

/// A server that responds to everything with a server's description, and stores what was sent to it.
async fn impostor() -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind(FREE).await.unwrap();
    let (address, heard) =
        (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(String::new())));
    let hearing = heard.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let hearing = hearing.clone();
            tokio::spawn(async move {
                make_up(stream, |heard| hearing.lock().unwrap().push_str(heard)).await;
            });
        }
    });
    (address, heard)
}

async fn make_up(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    mut hear: impl FnMut(&str),
) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        hear(&String::from_utf8_lossy(&bytes[..count]));
        let length = ABOUT.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}"
        );
        let _ = stream.write_all(format!("{head}\r\n\r\n{ABOUT}").as_bytes()).await;
    }
}

/// `plimsoll run` of a shell script, with this data folder.
fn running(data: &Path, more: &[&str], script: &str) -> Command {
    let data = data.to_str().unwrap();
    plimsoll(&[&["run", "--data", data], more, &["--", "sh", "-c", script]].concat())
}

/// Plays one exchange, so that there is a session.
async fn talk(serving: &mut Serving, provider: &Provider) {
    let script = wire::anthropic();
    let headers = [("x-plimsoll-session", "the-session"), ("x-api-key", "sk-test")];
    let mut client = serving.post(script.path, script.request, &headers).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    client.response().await;
    serving.wait_for_metrics("plimsoll_store_operations_total{operation=\"put\"} 1").await;
}

/// A false server at the admin address gets no token, and its answers are not trusted.
#[tokio::test]
async fn false_server_gets_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    // An earlier server left its tokens.
    assert_eq!(
        with(running(&data, &["--listen", FREE, "--admin", FREE], "true"), &[]).await.code,
        0
    );
    let token = std::fs::read_to_string(data.join("admin.token")).unwrap();
    let (fake, heard) = impostor().await;
    let configured = [("PLIMSOLL_ADMIN", fake.as_str())];

    let data_flag = ["--data", data.to_str().unwrap()];
    let looked = with(plimsoll(&[&["sessions"][..], &data_flag].concat()), &configured).await;
    assert!(looked.code == 1, "{}", looked.err);
    assert!(looked.err.contains("nothing answers at"), "{}", looked.err);
    run(&[&["sessions", "--admin", &fake][..], &data_flag].concat()).await;
    assert!(
        heard.lock().unwrap().contains("GET /api/v1/sessions"),
        "it was named, so it was asked"
    );

    let secret = "a-configured-token-for-the-house";
    let variables = [configured[0], ("PLIMSOLL_ADMIN_TOKEN", secret)];
    let script = "echo $ANTHROPIC_BASE_URL";
    let ran = with(running(&data, &["--listen", FREE], script), &variables).await;
    assert!(ran.out.starts_with("http://127.0.0.1:"), "{} {}", ran.out, ran.err);
    assert!(ran.err.contains(&format!("{fake} is in use by another process")), "{}", ran.err);
    let heard = heard.lock().unwrap().clone();
    assert!(!heard.contains(token.trim()), "{heard}");
    assert!(!heard.contains(secret), "{heard}");
    assert!(!heard.to_lowercase().contains("authorization"), "{heard}");
}

/// A file, a pipe, a journal or `docker logs` may be read by others. The file case is in each start of `Serving`, which
/// expects the whole line.
#[tokio::test]
async fn token_is_shown_to_terminal_and_to_nobody_else() {
    let serving = Serving::start("http://127.0.0.1:9", &[]).await;
    assert!(!serving.first_steps.join("\n").contains(&serving.token));
    let data = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let folder = data.path().display();
    let serve = format!("{program} serve --listen {FREE} --admin {FREE} --data {folder}");
    let mut terminal = tokio::process::Command::new("script")
        .args(["-qec", &format!("echo pid $$; exec {serve}"), "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut out = super::program::lines(terminal.stdout.take().unwrap());
    let pid = within("its id", out.next_line()).await.unwrap().unwrap();
    // The log goes to the same terminal.
    let mut ready = String::new();
    while !ready.contains("listening on") {
        ready = within("the ready line", out.next_line()).await.unwrap().expect("it ended");
    }
    let pid = pid.trim().strip_prefix("pid ").unwrap();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    let token = std::fs::read_to_string(data.path().join("admin.token")).unwrap();
    assert!(ready.contains(&format!("/#token={}", token.trim())), "{ready}");
    terminal.wait().await.unwrap();
}

/// Even if the false server is a process of this user, commands send nothing to another machine.
#[tokio::test]
async fn foreign_base_url_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(data.path().join("admin.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(make_up(stream, |_| {}));
        }
    });
    let ran = with(running(data.path(), &[], "echo ran"), &[]).await;
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(ran.out.as_str(), "", "{}", ran.err);
    assert!(
        ran.err.contains("http://203.0.113.9:80, which is not this machine's loopback"),
        "{}",
        ran.err
    );
}

/// Another user's real Plimsoll is not used, by address or by data folder.
#[tokio::test]
async fn another_users_server_is_not_used() {
    let Some((folder, program)) = other_users("another_users_server_is_not_used") else { return };
    let theirs = folder.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
    let theirs = theirs.to_str().unwrap();
    let mut server =
        as_other(&program, &["serve", "--listen", FREE, "--admin", FREE, "--data", theirs]);
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = super::program::lines(server.stdout.take().unwrap());
    let ready = within("the ready line", out.next_line()).await.unwrap().unwrap();
    let (clients, rest) =
        ready.split_once("listening on ").unwrap().1.split_once(" (admin http://").unwrap();
    let admin = rest.trim_end_matches(')');

    let own = tempfile::tempdir().unwrap();
    let script = "echo ${ANTHROPIC_BASE_URL%%/~*}";
    let ran =
        with(running(own.path(), &["--listen", FREE], script), &[("PLIMSOLL_ADMIN", admin)]).await;
    assert!(ran.out.starts_with("http://127.0.0.1:") && ran.out.trim() != clients, "{}", ran.out);

    // Nor by its data folder, which belongs to another user.
    let ran =
        with(running(Path::new(theirs), &["--listen", FREE, "--admin", FREE], script), &[]).await;
    assert_eq!(ran.code, 1, "the command does not begin: {}", ran.err);
    assert_eq!(ran.out.as_str(), "", "the command does not begin: {}", ran.err);
    assert!(ran.err.contains("belongs to user id 65534"), "{}", ran.err);
    assert!(ran.err.contains("another Plimsoll process uses"), "{}", ran.err);
    let looked = run(&["sessions", "--data", theirs]).await;
    assert!(looked.code == 1, "{}", looked.err);
    assert!(looked.err.contains("is not trusted"), "{}", looked.err);
    // Nor if they put their socket into one of our folders.
    let lure = own.path().join("lure");
    std::fs::create_dir(&lure).unwrap();
    std::fs::hard_link(Path::new(theirs).join("admin.sock"), lure.join("admin.sock")).unwrap();
    let looked = run(&["sessions", "--data", lure.to_str().unwrap()]).await;
    assert!(looked.err.contains("belongs to user id 65534"), "{}", looked.err);
    server.kill().await.unwrap();
}

/// Another user can neither read nor send anything: not by the port, by the socket or by the files.
#[tokio::test]
async fn another_user_cannot_look_or_speak() {
    let Some((_folder, program)) = other_users("another_user_cannot_look_or_speak") else {
        return;
    };
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    talk(&mut serving, &provider).await;
    let (admin, data) =
        (serving.admin.to_string(), serving.data.path().to_str().unwrap().to_owned());
    // The folder is made readable: files and socket are protected by their own permissions.
    open(serving.data.path(), 0o755);

    for file in ["admin.token", "read.token"] {
        let path = format!("{data}/{file}");
        let read = with(as_other("/bin/cat", &[&path]), &[]).await;
        assert!(read.code != 0, "{file}: {}", read.out);
        assert!(read.out.is_empty(), "{file}: {}", read.out);
    }
    for arguments in [
        &["sessions"][..],
        &["say", "the-session", "Do something else."],
        &["compact", "the-session"],
        &["export", "the-session"],
        &["top"],
    ] {
        let by_port = with(
            as_other(&program, &[arguments, &["--admin", &admin, "--data", &data]].concat()),
            &[],
        )
        .await;
        assert!(by_port.code == 1, "{arguments:?}: {}", by_port.out);
        assert!(by_port.out.is_empty(), "{arguments:?}: {}", by_port.out);
        assert!(by_port.err.contains("requires a token"), "{arguments:?}: {}", by_port.err);
        let by_socket =
            with(as_other(&program, &[arguments, &["--data", &data]].concat()), &[]).await;
        assert!(by_socket.code == 1, "{arguments:?}: {}", by_socket.out);
        assert!(by_socket.out.is_empty(), "{arguments:?}: {}", by_socket.out);
    }
    // Even if the socket is open to all, the kernel tells which user connects.
    open(&serving.data.path().join("admin.sock"), 0o777);
    let by_socket = with(as_other(&program, &["sessions", "--data", &data]), &[]).await;
    assert!(by_socket.code == 1, "{}", by_socket.out);
    assert!(by_socket.out.is_empty(), "{}", by_socket.out);
    serving.counted("plimsoll_admin_refusals_total{reason=\"foreign_user\"}").await;

    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/api/v1/sessions"),
        ("POST", "/api/v1/sessions/the-session/say"),
        ("DELETE", "/api/v1/sessions/the-session"),
    ] {
        let answer = serving.ask_as(method, path, "", r#"{"text":"Hello."}"#).await;
        assert_eq!(answer.status(), 401, "{method} {path}");
    }
    let waiting = serving.look(&["say", "the-session"]).await;
    assert_eq!(waiting.out, "No message is queued.\n", "{}", waiting.err);
}

/// The read token changes nothing and shows no text.
#[tokio::test]
async fn read_token_can_neither_change_anything_nor_read_text() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    talk(&mut serving, &provider).await;
    let reader = std::fs::read_to_string(serving.data.path().join("read.token")).unwrap();
    let reader = reader.trim();
    let session = "/api/v1/sessions/the-session";
    for (method, path) in [
        ("POST", "/say"),
        ("GET", "/say"),
        ("DELETE", "/say/x"),
        ("POST", "/compact"),
        ("POST", "/compact?dry_run=true"),
        ("GET", "/export?content=true"),
        ("DELETE", ""),
    ] {
        let answer =
            serving.ask_as(method, &format!("{session}{path}"), reader, r#"{"text":"Hi."}"#).await;
        assert_eq!(answer.status(), 403, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("read_only"), "{}", answer.text());
    }
    for path in
        [session, &format!("{session}/export"), "/metrics", "/api/v1/sessions", "/api/v1/savings"]
    {
        assert_eq!(serving.ask_as("GET", path, reader, "").await.status(), 200, "{path}");
    }
}

/// Fifty guesses at once: a few get late answers, the others are refused, and a client with the right token does not
/// wait for them.
#[tokio::test]
async fn token_guesses_are_delayed_and_right_token_is_not() {
    let provider = Provider::start().await;
    let serving = Arc::new(Serving::start(&provider.base(), &[]).await);
    let began = Instant::now();
    let guesses: Vec<_> = (0..50)
        .map(|number| {
            let serving = serving.clone();
            tokio::spawn(async move {
                let guess = format!("a-guess-that-is-wrong-{number}");
                let answer = serving.ask_as("GET", "/api/v1/sessions", &guess, "").await;
                (answer.status(), began.elapsed())
            })
        })
        .collect();
    // Once some are refused, the waiting list is full.
    let busy = "plimsoll_admin_refusals_total{reason=\"too_many_attempts\"}";
    serving.counted(busy).await;
    let began = Instant::now();
    assert_eq!(serving.ask("/api/v1/sessions").await.status(), 200);
    let (right, mut late, mut away) = (began.elapsed(), Vec::new(), 0);
    for guess in guesses {
        match within("a guess to be answered", guess).await.unwrap() {
            (401, after) => late.push(after),
            (429, _) => away += 1,
            (status, _) => panic!("{status}"),
        }
    }
    late.sort();
    // Two a second, however long it took to send them.
    for (number, after) in (1..).zip(&late) {
        assert!(*after >= Duration::from_millis(500) * number, "{late:?}");
    }
    assert!(away >= 30, "{late:?}, {away}");
    assert!(late.len() + away == 50, "{late:?}, {away}");
    assert!(right < Duration::from_millis(450), "a right token took {right:?}");
    let lines = serving.log().matches("the admin listener refused a request").count();
    assert_eq!(lines, 1, "{}", serving.log());
}

/// A change leaves a log line that says who made it and how, without any text.
#[tokio::test]
async fn admin_changes_log_no_text() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    talk(&mut serving, &provider).await;
    let secret = "words that nobody may read";
    let session = "/api/v1/sessions/the-session";
    let queued = serving.look(&["say", "the-session", "--json", secret]).await;
    let id = serde_json::from_str::<Value>(&queued.out).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(serving.look(&["say", "the-session", "--remove", &id]).await.code, 0);
    let body = format!("{{\"text\": \"{secret}\"}}");
    let answer = serving.ask_as("POST", &format!("{session}/say"), &serving.token, &body).await;
    assert_eq!(answer.status(), 200);
    let focus = format!("{session}/compact?focus=secret-focus");
    let compacted = serving.ask_as("POST", &focus, &serving.token, "").await.status();
    assert_eq!(serving.ask_as("DELETE", session, &serving.token, "").await.status(), 200);
    let me = rustix::process::geteuid().as_raw();
    for line in [
        format!(
            "admin: add a message to session the-session, by Admin from the socket, user id {me}: 200"
        ),
        format!(
            "admin: remove a message of session the-session, by Admin from the socket, user id {me}: 200"
        ),
    ] {
        serving.wait_for_log(&line).await;
    }
    serving.wait_for_log("admin: delete session the-session, by Admin from 127.0.0.1:").await;
    let log = serving.log();
    let of = |deed: &str| {
        let start = format!("admin: {deed} the-session, by Admin from 127.0.0.1:");
        log.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{deed}: {log}"))
    };
    assert!(of("add a message to session").ends_with(": 200"), "{log}");
    assert!(of("delete session").ends_with(": 200"), "{log}");
    assert!(of("compact session").ends_with(&format!(": {compacted}")), "{log}");
    assert!(!log.contains(secret), "{log}");
    assert!(!log.contains("secret-focus"), "{log}");
    assert!(!log.contains(&serving.token), "no token either: {log}");
}

/// A command started by `plimsoll run` gets none of our secrets, but the keys that it reads itself.
#[tokio::test]
async fn command_under_plimsoll_run_gets_no_secret_of_plimsoll() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let config = "[upstream.team]\nbase_url = \"https://team.example\"\ncredential = \"env:TEAM_KEY\"\n\
                  [upstream.anthropic]\ncredential = \"env:ANTHROPIC_API_KEY\"\n";
    std::fs::write(&file, config).unwrap();
    let data = folder.path().join("data");
    let more = ["--config", file.to_str().unwrap(), "--listen", FREE, "--admin", FREE];
    let ran = with(
        running(&data, &more, "env"),
        &[
            ("PLIMSOLL_ADMIN_TOKEN", "a-token-of-the-operators"),
            ("PLIMSOLL_ADMIN_READ_TOKEN", "another-token-of-the-operators"),
            ("PLIMSOLL_TEST_ANYTHING", "what-is-ours"),
            ("TEAM_KEY", "the-key-of-the-team"),
            ("ANTHROPIC_API_KEY", "a-key-that-clients-read"),
            ("SOMETHING_ELSE", "kept"),
        ],
    )
    .await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    for gone in ["of-the-operators", "what-is-ours", "the-key-of-the-team", "PLIMSOLL_ADMIN"] {
        assert!(!ran.out.contains(gone), "{gone}: {}", ran.out);
    }
    let folder = format!("PLIMSOLL_DATA={}\n", data.display());
    for kept in ["ANTHROPIC_API_KEY=a-key-that-clients-read", "SOMETHING_ELSE=kept", &folder] {
        assert!(ran.out.contains(kept), "{kept}: {}", ran.out);
    }
}

/// If a client token is configured, the command gets it in its environment, and none of our other secrets.
#[tokio::test]
async fn command_under_plimsoll_run_gets_client_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let config =
        "client_token = \"env:MY_TOKEN\"\n[upstream.openai]\ncredential = \"env:TEAM_KEY\"\n";
    std::fs::write(&file, config).unwrap();
    let data = folder.path().join("data");
    let more = ["--config", file.to_str().unwrap(), "--listen", FREE, "--admin", FREE];
    let token = "a-token-for-clients-alone";
    let variables = [
        ("MY_TOKEN", token),
        ("TEAM_KEY", "the-key-of-the-team"),
        ("ANTHROPIC_API_KEY", "a-key-that-clients-read"),
        ("ANTHROPIC_CUSTOM_HEADERS", "x-mine: 1"),
    ];
    let ran = with(running(&data, &more, "env"), &variables).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    for there in [
        &format!("ANTHROPIC_CUSTOM_HEADERS=x-mine: 1\nx-plimsoll-token: {token}\n"),
        &format!("OPENAI_API_KEY={token}\n"),
        "ANTHROPIC_API_KEY=a-key-that-clients-read\n",
    ] {
        assert!(ran.out.contains(there), "{there}: {}", ran.out);
    }
    assert!(!ran.out.contains("the-key-of-the-team"), "{}", ran.out);
    assert!(!ran.out.contains("MY_TOKEN"), "{}", ran.out);
    assert!(
        ran.err.contains("for gemini a command must send the header x-plimsoll-token"),
        "{}",
        ran.err
    );
}

/// A command that is itself `plimsoll run` finds the outer server.
#[tokio::test]
async fn plimsoll_run_within_another_uses_same_server() {
    let data = tempfile::tempdir().unwrap();
    // The inner one has none of the outer one's secrets, and needs none.
    let file = data.path().join("plimsoll.toml");
    let config = "admin_token = \"env:MY_TOKEN\"\n[upstream.team]\nbase_url = \"https://team.example\"\n\
                  credential = \"env:TEAM_KEY\"\n";
    std::fs::write(&file, config).unwrap();
    let inner = env!("CARGO_BIN_EXE_plimsoll");
    // Each run has a tag of its own after the address.
    let script = format!(
        "echo ${{OPENAI_BASE_URL%%/~*}}; {inner} run -- sh -c 'echo ${{OPENAI_BASE_URL%%/~*}}'"
    );
    let more = ["--config", file.to_str().unwrap(), "--listen", FREE, "--admin", FREE];
    let secrets = [("TEAM_KEY", "the-key-of-the-team"), ("MY_TOKEN", "a-token-of-the-operators")];
    let ran = with(running(data.path(), &more, &script), &secrets).await;
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(lines.len() == 2, "{lines:?} {}", ran.err);
    assert!(lines[0] == lines[1], "{lines:?} {}", ran.err);
    assert!(!lines[0].is_empty(), "{lines:?} {}", ran.err);
    assert!(!data.path().join("admin.sock").exists(), "the socket is removed with its server");
}

/// Two users of a machine can both use `plimsoll run`: the second one gets other ports.
#[tokio::test]
async fn plimsoll_run_takes_free_ports_if_configured_are_in_use() {
    let data = tempfile::tempdir().unwrap();
    let occupied = [TcpListener::bind(FREE).await.unwrap(), TcpListener::bind(FREE).await.unwrap()];
    let [listen, admin] = occupied.each_ref().map(|it| it.local_addr().unwrap().to_string());
    let script = "echo $OPENAI_BASE_URL";
    let variables = [("PLIMSOLL_LISTEN", listen.as_str()), ("PLIMSOLL_ADMIN", admin.as_str())];
    let ran = with(running(data.path(), &[], script), &variables).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("http://127.0.0.1:") && !ran.out.contains(&listen), "{}", ran.out);
    assert_eq!(ran.err.matches("is in use by another process").count(), 2, "{}", ran.err);
}

/// A second process with the same folder leaves the socket to the first, ends, and says why.
#[tokio::test]
async fn second_server_over_same_folder_leaves_socket_alone() {
    let provider = Provider::start().await;
    let mut first = Serving::start(&provider.base(), &[]).await;
    let data = first.data.path().to_str().unwrap().to_owned();
    let second = run(&["serve", "--listen", FREE, "--admin", FREE, "--data", &data]).await;
    assert_eq!(second.code, 1, "{}", second.err);
    assert_eq!(second.out.as_str(), "", "{}", second.err);
    assert!(second.err.contains("another Plimsoll process uses"), "{}", second.err);
    assert_eq!(first.look(&["sessions"]).await.code, 0, "the first one's is still there");
    // What a dead process left is replaced.
    first.signal("KILL").await;
    first.gone().await;
    assert!(first.data.path().join("admin.sock").exists());
    let third = Serving::start(&provider.base(), &["--data", &data]).await;
    let looked = run(&["sessions", "--data", &data]).await;
    assert_eq!(looked.code, 0, "{}", looked.err);
    assert_eq!(third.token, first.token, "the token is kept over restarts");
}

/// With TLS on the admin listener, tokens are encrypted on the wire, and the command line need not trust the
/// certificate.
#[tokio::test]
async fn admin_listener_can_speak_tls() {
    let certificates = h2::certificates();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let [certificate, key] = [&certificates.certificate, &certificates.key].map(|it| it.display());
    let config = format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nadmin = true\n");
    std::fs::write(&file, config).unwrap();
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await;
    assert_eq!(serving.look(&["sessions"]).await.code, 0);

    let stream = tokio::net::TcpStream::connect(serving.admin).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connector = h2::connector(&certificates.authority, &[b"http/1.1"]);
    let mut stream = within("a handshake", connector.connect(name, stream)).await.unwrap();
    let head = "GET /api/v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let head = format!("{head}authorization: Bearer {}\r\n\r\n", serving.token);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");

    let mut plain = tokio::net::TcpStream::connect(serving.admin).await.unwrap();
    plain.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = within("the end", plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}
