//! The stranger here is a cloned repository, and files that others may write.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::program::{self, Done, plimsoll};
use super::support::http1::Provider;
use super::support::within;

const NOT_READ: &str = "./plimsoll.toml is not read; name it with --config if it is yours";
const FREE: &str = "127.0.0.1:0";

/// A folder whose files somebody else wrote.
fn cloned(file: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plimsoll.toml"), file).unwrap();
    folder
}

/// Runs a command to its end.
async fn run(mut command: Command) -> Done {
    let child = command.stdin(Stdio::null()).output();
    let done = within("the program to end", child).await.unwrap();
    Done {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

/// Checks that nothing connected to the stranger.
async fn heard_nothing(stranger: &Provider) {
    // An earlier connection would be accepted before this one.
    let address = stranger.base().trim_start_matches("http://").to_owned();
    let mut probe = tokio::net::TcpStream::connect(address).await.unwrap();
    probe.write_all(b"probe\r\n\r\n").await.unwrap();
    let head = within("the probe", async { stranger.accept().await.head().await }).await;
    assert_eq!(head, "probe", "something connected before");
}

/// The folder's file named the address of the admin listener, and a key of the user as its token.
#[tokio::test]
async fn commands_ignore_admin_address_in_cloned_folder() {
    let stranger = Provider::start().await;
    let at = stranger.base().trim_start_matches("http://").to_owned();
    let text = format!("admin = \"{at}\"\nadmin_token = \"env:ANTHROPIC_API_KEY\"\n");
    let folder = cloned(&text);
    // A free port: nothing answers there.
    let empty = std::net::TcpListener::bind(FREE).unwrap().local_addr().unwrap().to_string();
    for arguments in [&["sessions"][..], &["context"], &["top"], &["say", "s", "words"]] {
        let mut command = plimsoll(arguments);
        command.current_dir(folder.path()).env("ANTHROPIC_API_KEY", "sk-of-the-user");
        command.env("PLIMSOLL_ADMIN", &empty);
        // A variable has priority over a file. Without it, the file's value would be used.
        if arguments == ["sessions"] {
            command.env_remove("PLIMSOLL_ADMIN");
        }
        let done = run(command).await;
        assert_eq!(done.err.matches(NOT_READ).count(), 1, "{}", done.err);
    }
    heard_nothing(&stranger).await;
}

/// The folder's file sent requests of the client to a stranger's provider.
#[tokio::test]
async fn plimsoll_run_ignores_upstream_in_cloned_folder() {
    let (stranger, provider) = (Provider::start().await, Provider::start().await);
    let upstream =
        format!("[upstream.trap]\nbase_url = \"{}\"\nprefix = \"/v1\"\n", stranger.base());
    let folder = cloned(&upstream);
    let data = tempfile::tempdir().unwrap();
    let own = format!("anthropic={}", provider.base());
    let mut command = plimsoll(&["run", "--listen", FREE, "--admin", FREE, "--upstream", &own]);
    command.arg("--data").arg(data.path());
    command.args(["--", "sh", "-c", "echo $ANTHROPIC_BASE_URL; read line"]);
    command.current_dir(folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = program::lines(child.stdout.take().unwrap());
    let base = within("the base URL", out.next_line()).await.unwrap().unwrap();
    // After the address stands the tag of this run.
    let (address, tag) = base.trim_start_matches("http://").split_once('/').unwrap();
    let path = format!("/{tag}/v1/messages");
    let key = [("x-api-key", "sk-of-the-user")];
    let mut client = program::post(address.parse().unwrap(), &path, "{}", &key).await;
    provider.call().await.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
    child.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    let done = within("the program to end", child.wait_with_output()).await.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(err.matches(NOT_READ).count(), 1, "{err}");
    heard_nothing(&stranger).await;
}

/// `plimsoll check` and `plimsoll serve` report the file, too, and continue without it.
#[tokio::test]
async fn check_and_serve_report_and_skip_file_in_working_directory() {
    let folder = cloned("this is no configuration at all\n");
    let mut check = plimsoll(&["check"]);
    check.current_dir(folder.path());
    let done = run(check).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.starts_with("configuration: defaults: no errors\n"), "{}", done.out);
    assert_eq!(done.out.matches(NOT_READ).count(), 1, "{}", done.out);
    // If it is named, it is read, and nothing is reported.
    let mut named = plimsoll(&["check", "--config", "plimsoll.toml"]);
    named.current_dir(folder.path());
    let done = run(named).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("plimsoll.toml:1: not TOML"), "{}", done.err);
    assert!(!done.err.contains("is not read"), "{}", done.err);

    let data = tempfile::tempdir().unwrap();
    let mut serve = plimsoll(&["serve", "--listen", FREE, "--admin", FREE, "--data"]);
    serve.arg(data.path()).current_dir(folder.path());
    let mut serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = program::lines(serve.stdout.take().unwrap());
    within("the ready line", out.next_line()).await.unwrap().unwrap();
    program::signal(&serve, "TERM").await;
    let done = within("the program to end", serve.wait_with_output()).await.unwrap();
    let log = String::from_utf8_lossy(&done.stderr);
    assert_eq!(log.matches(NOT_READ).count(), 1, "{log}");
}

/// A variable that leads into the working directory would make the folder's files count as ours.
#[tokio::test]
async fn relative_folders_are_ignored() {
    let folder = cloned("");
    let inside = folder.path().join("plimsoll");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("plimsoll.toml"), "listen = \"127.0.0.1:1\"\n").unwrap();
    std::fs::create_dir_all(folder.path().join(".config")).unwrap();
    symlink("../plimsoll", folder.path().join(".config/plimsoll")).unwrap();
    for (name, value) in [("XDG_CONFIG_HOME", "."), ("HOME", "."), ("HOME", "")] {
        let mut check = plimsoll(&["check", "--data", "/nowhere"]);
        let done = run({
            check.current_dir(folder.path()).env(name, value);
            check
        })
        .await;
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.starts_with("configuration: defaults: "), "{name}: {}", done.out);
        let ignored = format!("{name} is not an absolute path; it is ignored");
        assert_eq!(done.out.contains(&ignored), !value.is_empty(), "{}", done.out);
    }
    // Nor is data stored there.
    let mut check = plimsoll(&["check"]);
    check.current_dir(folder.path()).env("XDG_DATA_HOME", "plimsoll").env("HOME", "/home/somebody");
    let done = run(check).await;
    assert!(done.out.contains("data:      /home/somebody/.local/share/plimsoll\n"), "{}", done.out);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[allow(clippy::print_stderr, reason = "nothing is left out in silence")]
fn left_out(what: &str) {
    eprintln!("left out: {what}");
}

/// A file that others may write is no configuration of the user's.
#[tokio::test]
async fn configuration_files_that_others_may_write_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("plimsoll");
    let file = folder.join("plimsoll.toml");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&file, "mode = \"observe\"\n").unwrap();
    let check = async || {
        let mut check = plimsoll(&["check"]);
        check.env("XDG_CONFIG_HOME", home.path());
        run(check).await
    };
    let done = check().await;
    assert!(done.code == 0, "{}", done.err);
    assert!(done.out.contains("mode:      observe"), "{}", done.err);
    for (path, before, open) in [(&file, 0o644, 0o646), (&folder, 0o755, 0o757)] {
        set_mode(path, open);
        let done = check().await;
        assert_eq!(done.code, 1, "{}", done.out);
        let path_shown = path.display();
        let fault = format!("{path_shown} can be written by other users (mode {open:04o})");
        assert!(done.err.contains(&fault), "{}", done.err);
        assert!(done.err.contains(&format!("chmod go-w {path_shown}")), "{}", done.err);
        set_mode(path, before);
    }
    // A file of another user; only root can make one.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(12_345), None).unwrap();
        let done = check().await;
        assert_eq!(done.code, 1, "{}", done.out);
        assert!(done.err.contains("belongs to another user (id 12345)"), "{}", done.err);
    } else {
        left_out("a file of another user: only root can make one");
    }
}

/// A ConfigMap volume of Kubernetes: links into a folder that is replaced as a whole.
#[tokio::test]
async fn kubernetes_links_are_followed() {
    let volume = tempfile::tempdir().unwrap();
    let at = |name: &str| volume.path().join(name);
    std::fs::create_dir(at("..2026_11_22")).unwrap();
    std::fs::write(at("..2026_11_22/plimsoll.toml"), "mode = \"observe\"\n").unwrap();
    set_mode(&at("..2026_11_22"), 0o755);
    set_mode(&at("..2026_11_22/plimsoll.toml"), 0o644);
    symlink("..2026_11_22", at("..data")).unwrap();
    symlink("..data/plimsoll.toml", at("plimsoll.toml")).unwrap();
    let file = at("plimsoll.toml").display().to_string();
    let done = program::run(&["check", "--config", &file]).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("mode:      observe"), "{}", done.out);
    // The permissions of the link's target count.
    set_mode(&at("..2026_11_22/plimsoll.toml"), 0o666);
    let done = program::run(&["check", "--config", &file]).await;
    assert!(done.code == 1, "{}", done.err);
    assert!(done.err.contains("can be written"), "{}", done.err);
}
