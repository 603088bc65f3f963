//! The program itself on a server: `check` says what is wrong, `serve` serves all the same.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::server::{Engine, Server};
use crate::support::http1::Wire;
use crate::support::within;

fn program(port: u16, data: &std::path::Path) -> Command {
    program_at(&format!("redis://127.0.0.1:{port}/1"), data)
}

/// The program on a server.
pub fn program_at(url: &str, data: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .env_clear()
        .env("PLIMSOLL_STORE_URL", url)
        .env("PLIMSOLL_STORE_SECRET", "0123456789abcdef0123456789abcdef")
        .env("PLIMSOLL_LISTEN", "127.0.0.1:0")
        .env("PLIMSOLL_ADMIN", "127.0.0.1:0")
        .env("PLIMSOLL_DATA", data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Starts it; returns the port of its admin listener.
async fn serve(port: u16, data: &std::path::Path) -> (Child, u16) {
    let mut process = program(port, data).arg("serve").spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let ready = within("the ready line", lines.next_line()).await.unwrap().unwrap();
    let admin = ready.rsplit_once(':').unwrap().1.trim_end_matches(')').parse().unwrap();
    (process, admin)
}

async fn readiness(admin: u16) -> String {
    let mut client = Wire::connect(([127, 0, 0, 1], admin).into()).await;
    client.send("GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()).await;
    client.response().await.text().to_owned()
}

async fn becomes(admin: u16, word: &str) {
    for _ in 0..300 {
        let text = readiness(admin).await;
        if text.contains("degraded") == (word == "degraded") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is not {word}: {}", readiness(admin).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_what_is_wrong() {
    let mut server = Server::start(Engine::Redis).await;
    let data = tempfile::tempdir().unwrap();
    let before: u64 = server.ask(&["DBSIZE"]).await;
    let output = program(server.port, data.path()).arg("check").output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("store:     redis://127.0.0.1:{}/1\n", server.port)), "{text}");
    assert_eq!(server.ask::<u64>(&["DBSIZE"]).await, before, "it writes nothing");
    server.kill();
    let output = program(server.port, data.path()).arg("check").output().await.unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("Redis at 127.0.0.1:{}: ", server.port)), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_waits_for_its_server() {
    let mut server = Server::start(Engine::Redis).await;
    server.kill();
    let data = tempfile::tempdir().unwrap();
    let (_process, admin) = serve(server.port, data.path()).await;
    becomes(admin, "degraded").await;
    server.restart().await;
    becomes(admin, "ready").await;
    server.kill();
    becomes(admin, "degraded").await;
}
