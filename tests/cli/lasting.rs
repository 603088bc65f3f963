//! What lasts: `setup` and its undo, `service`; and `doctor`, which changes nothing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::agents::Machine;
use super::program::Serving;
use super::support::http1::Provider;

#[tokio::test]
async fn setup_prints_first() {
    let machine = Machine::new();
    for (agent, line) in [
        ("codex", "openai_base_url = \"http://127.0.0.1:8787/v1\"\n"),
        ("pi", "\"baseUrl\": \"http://127.0.0.1:8787\"\n"),
        ("aider", "export OPENAI_API_BASE='http://127.0.0.1:8787/v1'\n"),
        ("droid", "customModels with provider anthropic: baseUrl = http://127.0.0.1:8787\n"),
    ] {
        let printed = machine.run(&["setup", agent]).await;
        assert_eq!(printed.code, 0, "{}", printed.err);
        assert!(printed.out.contains(line), "{}", printed.out);
    }
    assert!(std::fs::read_dir(machine.path("home")).unwrap().next().is_none());
    let listed = machine.run(&["setup", "--list"]).await;
    assert!(listed.out.contains("codex            Codex CLI\n"), "{}", listed.out);
}

/// A key is named in what is printed.
#[tokio::test]
async fn setup_shows_no_key() {
    let machine = Machine::new();
    let mut command = machine.command(&["setup", "copilot"]);
    command.env("OPENAI_API_KEY", "sk-of-the-user");
    let printed = super::agents::done(command).await;
    let line = "export COPILOT_PROVIDER_API_KEY=\"$OPENAI_API_KEY\"\n";
    assert!(printed.out.contains(line), "{}", printed.out);
    assert!(!printed.out.contains("sk-"), "{}", printed.out);
}

#[tokio::test]
async fn undo_restores_every_byte() {
    let machine = Machine::new();
    let original = "{\"theme\":\"dark\",\r\n \"env\": {\"A\": \"1\"}}";
    machine.write(".claude/settings.json", original);
    let mode = Permissions::from_mode(0o640);
    std::fs::set_permissions(machine.home(".claude/settings.json"), mode).unwrap();
    let root = ["--listen", "127.0.0.1:9999"];
    for agent in ["claude-code", "codex", "gemini-cli"] {
        let written = machine.run(&[&["setup", agent, "--write"], &root[..]].concat()).await;
        assert_eq!(written.code, 0, "{}", written.err);
    }
    let settings: Value = serde_json::from_str(&machine.read(".claude/settings.json")).unwrap();
    assert_eq!(settings["env"]["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9999");
    assert_eq!(settings["env"]["A"], "1");
    let again = machine.run(&[&["setup", "codex", "--write"], &root[..]].concat()).await;
    assert!(again.out.contains("is as it should be"), "{}", again.out);
    let undone = machine.run(&["setup", "--undo"]).await;
    assert_eq!(undone.code, 0, "{}", undone.err);
    assert_eq!(machine.read(".claude/settings.json"), original);
    let mode = machine.home(".claude/settings.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(!machine.home(".codex").exists());
    assert!(!machine.home(".gemini").exists());
    assert!(!machine.path("data").join("setup.json").exists());
}

/// Two addresses, one after the other: the bytes before the first come back.
#[tokio::test]
async fn undo_restores_bytes_before_first() {
    let machine = Machine::new();
    machine.write(".pi/agent/models.json", "{}");
    for listen in ["127.0.0.1:1", "127.0.0.1:2"] {
        machine.run(&["setup", "pi", "--write", "--listen", listen]).await;
    }
    assert!(machine.read(".pi/agent/models.json").contains("127.0.0.1:2"));
    machine.run(&["setup", "--undo", "pi"]).await;
    assert_eq!(machine.read(".pi/agent/models.json"), "{}");
}

/// Agents write into their own files all the time: only what `setup` wrote is taken out of them.
#[tokio::test]
async fn undo_keeps_what_agents_wrote() {
    let machine = Machine::new();
    machine.write(".claude/settings.json", "{\"env\": {\"ANTHROPIC_BASE_URL\": \"http://mine\"}}");
    for agent in ["claude", "codex"] {
        let written = machine.run(&["setup", agent, "--write"]).await;
        assert_eq!(written.code, 0, "{}", written.err);
    }
    let settings = machine.read(".claude/settings.json");
    let allowed = settings.replacen('{', "{\"permissions\": {\"allow\": [\"Bash(ls)\"]},", 1);
    machine.write(".claude/settings.json", &allowed);
    let trusted = "[projects.\"/src\"]\ntrust_level = \"trusted\"\n";
    machine.write(".codex/config.toml", &(machine.read(".codex/config.toml") + trusted));
    let undone = machine.run(&["setup", "--undo"]).await;
    assert_eq!(undone.code, 0, "{}", undone.err);
    assert_eq!(machine.read(".codex/config.toml"), trusted);
    let settings: Value = serde_json::from_str(&machine.read(".claude/settings.json")).unwrap();
    assert_eq!(settings["permissions"]["allow"][0], "Bash(ls)");
    assert_eq!(settings["env"], json!({"ANTHROPIC_BASE_URL": "http://mine"}));
    assert!(!machine.path("data").join("setup.json").exists());
}

#[tokio::test]
async fn undo_leaves_what_it_cannot_edit() {
    let machine = Machine::new();
    machine.run(&["setup", "codex", "--write"]).await;
    let changed =
        machine.read(".codex/config.toml").replace("openai_base_url", "\"openai_base_url\"");
    let changed = format!("text = \"\"\"\n{changed}\"\"\"\n{changed}");
    machine.write(".codex/config.toml", &changed);
    let refused = machine.run(&["setup", "--undo"]).await;
    assert_eq!(refused.code, 1, "{}", refused.out);
    assert!(refused.err.contains("Remove openai_base_url yourself"), "{}", refused.err);
    assert_eq!(machine.read(".codex/config.toml"), changed);
    // Once the user has done that, there is nothing left to undo.
    machine.write(".codex/config.toml", "model = \"mine\"\n");
    assert_eq!(machine.run(&["setup", "--undo"]).await.code, 0);
    assert_eq!(machine.read(".codex/config.toml"), "model = \"mine\"\n");
}

#[tokio::test]
async fn setup_says_how_to_undo() {
    let machine = Machine::new();
    let data = machine.path("elsewhere");
    let data = data.to_str().unwrap();
    let written = machine.run(&["setup", "codex", "--write", "--data", data]).await;
    assert!(
        written.out.contains(&format!("`plimsoll setup --undo --data {data}`")),
        "{}",
        written.out
    );
    let undone = machine.run(&["setup", "--undo", "--data", data]).await;
    assert_eq!(undone.code, 0, "{}", undone.err);
    assert!(!machine.home(".codex").exists());
}

#[tokio::test]
async fn setup_says_if_nothing_can_be_set() {
    let machine = Machine::new();
    for arguments in [&["setup", "copilot"][..], &["setup", "copilot", "--write"]] {
        let mut command = machine.command(arguments);
        command.env_remove("ANTHROPIC_API_KEY").env_remove("OPENAI_API_KEY");
        let refused = super::agents::done(command).await;
        assert_eq!(refused.code, 1, "{}", refused.out);
        assert!(refused.err.contains("there is nothing to set for Copilot CLI"), "{}", refused.err);
    }
}

/// A link into a folder of dotfiles stays one.
#[tokio::test]
async fn setup_follows_links() {
    let machine = Machine::new();
    machine.write("dotfiles/config.toml", "# mine\n");
    std::fs::create_dir(machine.home(".codex")).unwrap();
    let link = machine.home(".codex/config.toml");
    std::os::unix::fs::symlink(machine.home("dotfiles/config.toml"), &link).unwrap();
    machine.run(&["setup", "codex", "--write"]).await;
    assert!(link.symlink_metadata().unwrap().file_type().is_symlink());
    assert!(machine.read("dotfiles/config.toml").starts_with("openai_base_url"));
}

#[tokio::test]
async fn setup_refuses_what_it_cannot_edit() {
    let machine = Machine::new();
    machine.write(".claude/settings.json", "// mine\n{}");
    for (agent, said) in [
        ("claude-code", "is not plain JSON"),
        ("aider", "aider has no file for this"),
        ("droid", "has no place for an address"),
        ("nobody", "nobody is no agent that Plimsoll knows"),
    ] {
        let refused = machine.run(&["setup", agent, "--write"]).await;
        assert_eq!(refused.code, 1, "{}", refused.out);
        assert!(refused.err.contains(said), "{}", refused.err);
    }
    assert_eq!(machine.read(".claude/settings.json"), "// mine\n{}");
    assert!(!machine.home(".factory").exists());
}

/// The line about something.
fn finding<'v>(findings: &'v Value, about: &str) -> &'v Value {
    let mut all = findings["findings"].as_array().unwrap().iter();
    all.find(|finding| finding["about"] == about).unwrap_or_else(|| panic!("{about}: {findings}"))
}

#[tokio::test]
async fn doctor_says_what_works() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let machine = Machine::new();
    machine.agent("codex", "echo codex-cli 99.1.0");
    machine.agent("claude", "echo '2.1.1 (Claude Code)'");
    machine.agent("pi", "exit 1");
    machine.agent("qwen", "echo 0.24.4 >&2");
    machine.agent("kimi", "echo 'SyntaxError: no such export. Node.js v20.20.2' >&2; exit 1");
    machine.agent("goose", "true");
    machine.write(".codex/config.toml", "openai_base_url = \"https://me:pw@mine.example/v1\"\n");
    let data = serving.data.path().to_str().unwrap();
    let mut command = machine.command(&["doctor", "--json", "--data", data]);
    command.env("ANTHROPIC_API_KEY", "sk-of-the-user");
    command.env("ANTHROPIC_BASE_URL", format!("http://{}", serving.clients));
    let done = super::agents::done(command).await;
    let found: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(done.code, 0, "{found}");
    assert_eq!(found["ok"], true);
    for (about, level, text) in [
        ("listens", "ok", "http://127.0.0.1:"),
        ("store", "ok", " MiB"),
        ("clock", "ok", " UTC"),
        ("key", "ok", "anthropic: ANTHROPIC_API_KEY"),
        ("codex", "look", "99.1.0, new to us: we tried"),
        ("codex", "look", "~/.codex/config.toml points it at https://mine.example/v1"),
        ("claude-code", "ok", "2.1.1, older: we tried"),
        ("claude-code", "ok", "ANTHROPIC_BASE_URL points it here"),
        ("qwen-code", "ok", "0.24.4; "),
        ("pi", "look", "does not run: see what its --version prints; not pointed here"),
        ("kimi-code", "look", "does not run: see"),
        ("goose", "ok", "says no version; not pointed here: `plimsoll run -- goose` does that"),
    ] {
        let finding = finding(&found, about);
        assert_eq!(finding["level"], level, "{finding}");
        assert!(finding["text"].as_str().unwrap().contains(text), "{finding}");
    }
    assert!(!done.out.contains("sk-"), "{}", done.out);
    assert!(!done.out.contains("pw@"), "{}", done.out);
}

#[tokio::test]
async fn doctor_fails_if_something_is_broken() {
    let machine = Machine::new();
    let lines = machine.run(&["doctor"]).await;
    assert_eq!(lines.code, 0, "{}", lines.out);
    assert!(lines.out.contains("look   listens        no: nothing serves from"), "{}", lines.out);
    machine.write(".config/plimsoll/plimsoll.toml", "lisen = \"x\"\n");
    let lines = machine.run(&["doctor"]).await;
    assert_eq!(lines.code, 1, "{}", lines.out);
    assert!(lines.out.contains("fault  configuration  "), "{}", lines.out);
}

/// Through the running Plimsoll, with the key of the environment.
#[tokio::test]
async fn doctor_asks_providers_online() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let machine = Machine::new();
    let data = serving.data.path().to_str().unwrap();
    let mut command = machine.command(&["doctor", "--online", "--json", "--data", data]);
    command.env("ANTHROPIC_API_KEY", "sk-of-the-user");
    let asking = tokio::spawn(super::agents::done(command));
    for status in ["200 OK", "401 Unauthorized", "401 Unauthorized"] {
        let mut call = provider.call().await;
        let line = call.message.first_line().to_owned();
        assert!(line.starts_with("GET /v1") && line.contains("/models "), "{line}");
        let has_key = call.message.header("x-api-key") == Some("sk-of-the-user");
        assert_eq!(has_key, status == "200 OK");
        let head = format!("HTTP/1.1 {status}\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT\r\n");
        call.send(format!("{head}content-length: 2\r\nconnection: close\r\n\r\n{{}}")).await;
    }
    let done = asking.await.unwrap();
    for text in ["anthropic: answers, and takes the key", "openai: answers, and wants a key"] {
        assert!(done.out.contains(text), "{}", done.out);
    }
    assert!(done.out.contains(" s away from that of anthropic"), "{}", done.out);
}

#[tokio::test]
async fn service_is_written_and_removed() {
    let machine = Machine::new();
    for (manager, file, start) in [
        ("systemd", ".config/systemd/user/plimsoll.service", "systemctl --user enable --now"),
        ("launchd", "Library/LaunchAgents/plimsoll.plist", "launchctl bootstrap"),
    ] {
        let install = ["service", "install", "--manager", manager];
        let done = machine.run(&[&install[..], &["--listen", "127.0.0.1:1234"]].concat()).await;
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.contains(start), "{}", done.out);
        let text = machine.read(file);
        for word in [env!("CARGO_BIN_EXE_plimsoll"), "serve", "--listen", "127.0.0.1:1234"] {
            assert!(text.contains(word), "{text}");
        }
        if manager == "systemd" {
            verify(&machine.home(file)).await;
        }
        let done = machine.run(&["service", "remove", "--manager", manager]).await;
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(!machine.home(file).exists());
        machine.write(file, "somebody else's");
        for command in [&install[..], &["service", "remove", "--manager", manager]] {
            let done = machine.run(command).await;
            assert_eq!(done.code, 1, "{}", done.out);
            assert!(done.err.contains("is not ours; it stays"), "{}", done.err);
        }
        assert_eq!(machine.read(file), "somebody else's");
    }
}

/// systemd's own check, where it is installed.
async fn verify(unit: &std::path::Path) {
    let mut command = tokio::process::Command::new("systemd-analyze");
    command.args(["verify", "--user", "--man=no"]).arg(unit);
    if let Ok(done) = command.output().await {
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!err.contains("plimsoll.service"), "{err}");
    }
}
