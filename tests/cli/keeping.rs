//! The store as a user of the program sees it: at the start, in `check`, and as a backup.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::program::{Serving, lines, plimsoll, post, run};
use super::running::play;
use super::support::http1::{Provider, Wire};
use super::support::wire;
use super::support::within;

/// The token for reading that is configured.
const READER: &str = "a-token-that-reads";

/// A server over a data folder as it is.
struct Served {
    _child: tokio::process::Child,
    clients: std::net::SocketAddr,
    admin: std::net::SocketAddr,
    token: String,
    log: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStderr>>,
}

impl Served {
    async fn over(data: &Path, provider: &Provider) -> Self {
        let upstream = format!("anthropic={}", provider.base());
        let free = "127.0.0.1:0";
        let arguments = ["serve", "--listen", free, "--admin", free, "--upstream", &upstream];
        let mut command = plimsoll(&[&arguments[..], &["--data", data.to_str().unwrap()]].concat());
        command.env("PLIMSOLL_ADMIN_READ_TOKEN", READER);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = lines(child.stdout.take().unwrap());
        let ready = within("the ready line", out.next_line()).await.unwrap();
        let ready = ready.expect("it ended before it was ready");
        let pieces: Vec<&str> = ready.split(['/', ' ', ')']).collect();
        let mut addresses = pieces.iter().filter_map(|word| word.parse().ok());
        let (clients, admin) = (addresses.next().unwrap(), addresses.next().unwrap());
        let token = READER.to_owned();
        let log = lines(child.stderr.take().unwrap());
        Self { _child: child, clients, admin, token, log }
    }

    async fn ask(&self, path: &str) -> String {
        let mut wire = Wire::connect(self.admin).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.admin);
        wire.send(format!("{head}authorization: Bearer {}\r\n\r\n", self.token)).await;
        let answer = wire.response().await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().to_owned()
    }

    /// Plays one exchange, to its last event.
    async fn exchange(&self, provider: &Provider) {
        let script = wire::anthropic();
        let headers = [("x-api-key", "sk-test")];
        let mut client = post(self.clients, script.path, script.request, &headers).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        for event in &script.events {
            call.chunk(event).await;
        }
        call.end().await;
        assert_eq!(client.response().await.status(), 200);
    }

    async fn wait_for_text(&self, path: &str, text: &str) {
        let saying = async {
            while !self.ask(path).await.contains(text) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(text, saying).await;
    }

    async fn wait_for_log(&mut self, text: &str) -> String {
        let saying = async {
            loop {
                let line = self.log.next_line().await.unwrap().expect("the log ended");
                if line.contains(text) {
                    return line;
                }
            }
        };
        within(text, saying).await
    }
}

#[tokio::test]
async fn unusable_store_does_not_delay_traffic_and_is_retried() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("data");
    std::fs::write(&in_the_way, "a file where a folder should be").unwrap();
    let mut served = Served::over(&in_the_way, &provider).await;
    let line = served.wait_for_log("nothing is stored for now").await;
    assert!(line.contains("cannot be created"), "{line}");
    served.exchange(&provider).await;
    let ready = served.ask("/readyz").await;
    assert!(ready.starts_with("ready, degraded: nothing is stored"), "{ready}");
    assert!(served.ask("/metrics").await.contains("plimsoll_store_unusable 1"));
    std::fs::remove_file(&in_the_way).unwrap();
    served.wait_for_text("/readyz", "ready\n").await;
    served.wait_for_log("the store works again").await;
    served.wait_for_text("/metrics", "plimsoll_store_unusable 0").await;
    served.exchange(&provider).await;
    served.wait_for_text("/api/v1/sessions", "\"turns\":1").await;
    // The commands find the server by its folder now, and a scraper finds the token file.
    let looking = async {
        loop {
            let done = run(&["sessions", "--data", in_the_way.to_str().unwrap()]).await;
            if done.code == 0 {
                return done.out;
            }
        }
    };
    let shown = within("the socket in the folder", looking).await;
    assert!(shown.contains("claude"), "{shown}");
    let token = std::fs::read_to_string(in_the_way.join("admin.token")).unwrap();
    served.token = token.trim().to_owned();
    assert!(served.ask("/metrics").await.contains("plimsoll_store_unusable 0"));
}

/// If old sessions cannot be deleted, log and metric report it (`deploy/prometheus` tests the alert), requests are not
/// delayed, and it ends when the cause is gone.
#[tokio::test]
async fn failed_deletion_of_old_sessions_is_logged_and_counted() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("plimsoll.toml");
    std::fs::write(&config, "[retention]\nbytes = 1\n").unwrap();
    let config = config.to_str().unwrap();
    let mut serving = Serving::start(&provider.base(), &["--config", config]).await;
    let file = rusqlite::Connection::open(serving.data.path().join("plimsoll.db")).unwrap();
    let in_the_way = "CREATE TRIGGER in_the_way BEFORE DELETE ON scopes
        BEGIN SELECT raise(FAIL, 'something is in the way'); END";
    file.execute_batch(in_the_way).unwrap();
    let headers = ["one", "two", "three"].map(|name| ("x-plimsoll-session", name));
    let exchange = async |headers: &[(&str, &str)]| {
        let script = wire::anthropic();
        let mut client = serving.post(script.path, script.request, headers).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        for event in &script.events {
            call.chunk(event).await;
        }
        call.end().await;
        assert_eq!(client.response().await.status(), 200);
    };
    for header in headers {
        exchange(&[("x-api-key", "sk-test"), header]).await;
    }
    serving.counted("plimsoll_retention_failures_total").await;
    exchange(&[("x-api-key", "sk-test"), headers[0]]).await;
    serving.wait_for_log("could not be deleted: the store failed: something is in the way").await;
    file.execute_batch("DROP TRIGGER in_the_way").unwrap();
    serving.counted("plimsoll_store_forgotten_sessions_total").await;
}

#[tokio::test]
async fn damaged_store_is_renamed() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let letter = "a letter, not a database".repeat(99);
    std::fs::write(folder.path().join("plimsoll.db"), &letter).unwrap();
    let mut served = Served::over(folder.path(), &provider).await;
    let line = served.wait_for_log("a new one is used").await;
    let files = std::fs::read_dir(folder.path()).unwrap().flatten();
    let names: Vec<_> = files.map(|it| it.file_name().into_string().unwrap()).collect();
    let aside = names.iter().find(|name| name.contains(".damaged-")).unwrap();
    assert!(line.contains(aside.as_str()), "{line}");
    assert_eq!(std::fs::read_to_string(folder.path().join(aside)).unwrap(), letter);
    served.wait_for_text("/readyz", "ready\n").await;
    served.exchange(&provider).await;
    served.wait_for_text("/api/v1/sessions", "\"turns\":1").await;
}

#[tokio::test]
async fn check_finds_broken_store() {
    let folder = tempfile::tempdir().unwrap();
    let check = async |data: &Path| run(&["check", "--data", data.to_str().unwrap()]).await;
    assert_eq!(check(&folder.path().join("not yet/there")).await.code, 0);

    let file = folder.path().join("plimsoll.db");
    std::fs::write(&file, "a letter, not a database".repeat(99)).unwrap();
    let done = check(folder.path()).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("not a database"), "{}", done.err);

    let done = check(&file.join("below")).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("is not a folder"), "{}", done.err);

    std::fs::remove_file(&file).unwrap();
    let newer = rusqlite::Connection::open(&file).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let done = check(folder.path()).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("a newer Plimsoll wrote it"), "{}", done.err);
    let done = run(&["check", "--json", "--data", folder.path().to_str().unwrap()]).await;
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(done.code, 1);
    assert_eq!(report["ok"], Value::Bool(false));
    assert!(report["store"]["trouble"].as_str().unwrap().contains("layout 99"), "{report}");

    std::fs::remove_file(&file).unwrap();
    let config = folder.path().join("plimsoll.toml");
    std::fs::write(&config, "[retention]\nbytes = 4000000000000000\n").unwrap();
    let (config, data) = (config.to_str().unwrap(), folder.path().to_str().unwrap());
    let done = run(&["check", "--config", config, "--data", data]).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("lower retention.bytes to"), "{}", done.out);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "it wrote something: {left:?}");
}

#[tokio::test]
async fn backup_of_running_server_is_complete_and_stop_leaves_one_file() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_owned();
    let data = data.to_str().unwrap();
    play(&mut serving, &provider, &wire::anthropic()).await;
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("plimsoll.db");
    let backup = ["backup", copy.to_str().unwrap(), "--data", data];
    let done = run(&backup).await;
    assert!(done.code == 0, "{}", done.err);
    assert!(done.out.contains("a complete copy of the store"), "{}", done.err);
    let second = run(&backup).await;
    assert!(second.code == 1, "{}", second.err);
    assert!(second.err.contains("exists"), "{}", second.err);
    serving.signal("TERM").await;
    assert_eq!(serving.ended().await, 0);
    let left = std::fs::read_dir(data).unwrap().flatten().map(|it| it.file_name());
    let left: Vec<_> = left.filter(|name| name.to_str().unwrap().contains(".db")).collect();
    assert_eq!(left, ["plimsoll.db"]);
    // A restore: another start uses the copy as its store.
    for folder in [copies.path(), Path::new(data)] {
        let served = Served::over(folder, &provider).await;
        served.wait_for_text("/api/v1/sessions", "\"session\":\"the-session\"").await;
    }
    let nothing = run(&["backup", "/nowhere/copy", "--data", "/nowhere"]).await;
    assert!(nothing.code == 1, "{}", nothing.err);
    assert!(nothing.err.contains("/nowhere"), "{}", nothing.err);
}

/// If the file is deleted, that is logged, and shown by every command that a user runs.
#[tokio::test]
async fn deleted_store_file_is_reported_by_log_api_and_commands() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    assert_eq!(serving.ask("/readyz").await.text(), "ready\n");
    std::fs::remove_file(serving.data.path().join("plimsoll.db")).unwrap();
    serving.wait_for_log("nothing is stored for now").await;
    serving.wait_for_metrics("plimsoll_store_unusable 1").await;
    let ready = serving.ask("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert!(ready.text().contains("degraded"), "{}", ready.text());
    assert!(ready.text().contains("deleted or replaced"), "{}", ready.text());
    let asking = serving.post("/v1/messages", "{}", &[]);
    let (mut client, mut call) = tokio::join!(asking, provider.call());
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200, "requests are still served");
    // Each command shows it first, even if it cannot answer.
    for question in [&["sessions"][..], &["top"], &["context"], &["savings"], &["lessons"]] {
        let looked = serving.look(question).await;
        assert!(looked.err.contains("NOTHING IS STORED FOR NOW"), "{question:?}: {}", looked.err);
    }
    let about = serving.ask("/api/v1/about").await;
    let about: Value = serde_json::from_str(about.text()).unwrap();
    assert!(about["store_failure"].as_str().unwrap().contains("deleted or replaced"), "{about}");
}

#[tokio::test]
async fn working_store_gives_no_warning() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let looked = serving.look(&["sessions"]).await;
    assert!(looked.code == 0, "{}", looked.err);
    assert!(looked.err.is_empty(), "{}", looked.err);
    let about = serving.ask("/api/v1/about").await;
    let about: Value = serde_json::from_str(about.text()).unwrap();
    assert_eq!(about["store_failure"], Value::Null);
}

/// Another program locks the file, and no turn can be appended beside it: the reply ends all the same, and the failure is
/// logged and counted.
#[tokio::test]
async fn turn_that_is_not_stored_in_time_is_logged_and_counted() {
    let provider = Provider::start().await;
    let mut serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path();
    std::fs::create_dir(data.join("plimsoll.db-turns.1")).unwrap();
    let holder = rusqlite::Connection::open(data.join("plimsoll.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let script = wire::anthropic();
    let asking = serving.post(script.path, script.request, &[("x-api-key", "sk-test")]);
    let (mut client, mut call) = tokio::join!(asking, provider.call());
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    assert_eq!(client.response().await.status(), 200);
    serving.wait_for_log("its turn was not stored in time").await;
    serving.wait_for_metrics("plimsoll_fail_open_total{reason=\"commit_late\"} 1").await;
    holder.execute_batch("ROLLBACK").unwrap();
}

/// Two processes that do not know each other's decisions would break each other's caches.
#[tokio::test]
async fn second_process_on_one_data_folder_is_refused() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_str().unwrap();
    let free = "127.0.0.1:0";
    let second = run(&["serve", "--listen", free, "--admin", free, "--data", data]).await;
    assert_eq!(second.code, 1, "{}", second.err);
    assert!(second.err.contains("another Plimsoll process uses"), "{}", second.err);
    assert_eq!(serving.ask("/readyz").await.text(), "ready\n");
    // A killed process holds no lock.
    serving.signal("KILL").await;
    let restarted = Serving::start(&provider.base(), &["--data", data]).await;
    assert_eq!(restarted.ask("/readyz").await.status(), 200);
}

#[tokio::test]
async fn sighup_reloads_log_level() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, "").unwrap();
    let mut serving = Serving::start(&provider.base(), &["--config", file.to_str().unwrap()]).await;
    serving.signal("HUP").await;
    serving.wait_for_log("SIGHUP: the log's level is info").await;
    // A file with an error changes nothing.
    std::fs::write(&file, "log_level = \"loud\"\n").unwrap();
    serving.signal("HUP").await;
    serving.wait_for_log("SIGHUP: the configuration stays as it was").await;
    // Once the file is read, lines of this level are no longer logged; later they are again.
    std::fs::write(&file, "log_level = \"error\"\n").unwrap();
    let silenced = async {
        loop {
            let before = serving.log().len();
            serving.signal("HUP").await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            if serving.log().len() == before {
                return;
            }
        }
    };
    within("the log to be silent", silenced).await;
    std::fs::write(&file, "log_level = \"debug\"\n").unwrap();
    serving.signal("HUP").await;
    serving.wait_for_log("SIGHUP: the log's level is debug").await;
    assert_eq!(serving.ask("/healthz").await.status(), 200);
}

/// Each file is valid, but they do not belong together.
#[tokio::test]
async fn check_finds_foreign_key() {
    let [one, other] = [(); 2].map(|()| super::support::h2::certificates());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    for (key, code) in [(&one.key, 0), (&other.key, 1)] {
        let text = format!(
            "data = {:?}\n[tls]\ncertificate = {:?}\nkey = {key:?}\n",
            folder.path(),
            one.certificate
        );
        std::fs::write(&file, text).unwrap();
        let done = run(&["check", "--config", file.to_str().unwrap()]).await;
        assert_eq!(done.code, code, "{}", done.err);
        assert!(code == 0 || done.err.contains("listener certificate"), "{}", done.err);
    }
}
