//! Agents under `plimsoll run`: scripts that stand for them print what they were started with, and read their files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::program::{self, Done, Serving, plimsoll, post};
use super::support::http1::Provider;
use super::support::wire;
use super::support::within;

const FREE: &str = "127.0.0.1:0";

/// A user's machine: a home folder, and a folder of programs.
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "bin", "data"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file in the home folder.
    pub fn home(&self, name: &str) -> PathBuf {
        self.path("home").join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.home(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.home(name)).unwrap()
    }

    /// Installs a script as an agent.
    pub fn agent(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    /// `plimsoll` as this machine's user.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = plimsoll(arguments);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.env("HOME", self.path("home")).env("PLIMSOLL_DATA", self.path("data"));
        command.stdin(Stdio::null());
        command
    }

    pub async fn run(&self, arguments: &[&str]) -> Done {
        done(self.command(arguments)).await
    }

    /// An agent under `plimsoll run`, which starts its own proxy.
    fn behind(&self, command: &[&str]) -> Command {
        self.command(&[&["run", "--listen", FREE, "--admin", FREE, "--"], command].concat())
    }
}

pub async fn done(mut command: Command) -> Done {
    let done = within("the program to end", command.output()).await.unwrap();
    Done {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

/// The value of a variable in the output of `env`.
fn value<'o>(done: &'o Done, name: &str) -> &'o str {
    let mut lines = done.out.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

#[tokio::test]
async fn agents_get_their_variables() {
    let machine = Machine::new();
    for (agent, name, end) in [
        ("claude", "ANTHROPIC_BASE_URL", ""),
        ("claude", "CLAUDE_CODE_GATEWAY_HINT_HEADERS", "1"),
        ("claude", "ENABLE_TOOL_SEARCH", "true"),
        ("claude", "CLAUDE_CODE_PROPAGATE_TRACEPARENT", "1"),
        ("goose", "OPENAI_HOST", ""),
        ("aider", "OPENAI_API_BASE", "/v1"),
        ("opencode", "OPENCODE_CONFIG_CONTENT", "/v1beta\"}}}}"),
        ("script", "GOOGLE_GEMINI_BASE_URL", ""),
    ] {
        machine.agent(agent, "env");
        let ran = done(machine.behind(&[agent])).await;
        assert_eq!(ran.code, 0, "{}", ran.err);
        let value = value(&ran, name);
        assert!(value.ends_with(end) && !value.is_empty(), "{agent}: {name}={value}");
        assert!(end == "1" || end == "true" || value.contains("http://127.0.0.1:"), "{value}");
    }
}

/// Other commands get no variable of an agent.
#[tokio::test]
async fn scripts_get_addresses_only() {
    let machine = Machine::new();
    machine.agent("script", "env");
    let ran = done(machine.behind(&["script"])).await;
    assert_eq!(value(&ran, "ENABLE_TOOL_SEARCH"), "");
    assert_eq!(value(&ran, "OPENCODE_CONFIG_CONTENT"), "");
}

#[tokio::test]
async fn what_the_user_set_stays() {
    let machine = Machine::new();
    machine.agent("claude", "env");
    let mut command = machine.behind(&["claude"]);
    command.env("ENABLE_TOOL_SEARCH", "auto").env("CLAUDE_CODE_GATEWAY_HINT_HEADERS", "");
    let ran = done(command).await;
    assert_eq!(value(&ran, "ENABLE_TOOL_SEARCH"), "auto");
    assert!(ran.out.contains("CLAUDE_CODE_GATEWAY_HINT_HEADERS=\n"), "{}", ran.out);
}

#[tokio::test]
async fn replaced_address_is_said() {
    let machine = Machine::new();
    machine.agent("goose", "env");
    let mut command = machine.behind(&["goose"]);
    command.env("OPENAI_HOST", "https://mine.example");
    let ran = done(command).await;
    let said = "OPENAI_HOST was https://mine.example; for this command it is http://127.0.0.1:";
    assert!(ran.err.contains(said), "{}", ran.err);
    assert!(value(&ran, "OPENAI_HOST").starts_with("http://127.0.0.1:"));
}

#[tokio::test]
async fn arguments_come_first() {
    let machine = Machine::new();
    machine.agent("codex", "printf '%s\\n' \"$@\"");
    let ran = done(machine.behind(&["codex", "exec", "Go."])).await;
    let words: Vec<&str> = ran.out.lines().collect();
    assert_eq!(words.len(), 4, "{words:?} {}", ran.err);
    assert_eq!(words[0], "-c");
    assert!(words[1].starts_with("openai_base_url=\"http://127.0.0.1:"), "{words:?}");
    assert!(words[1].ends_with("/v1\""), "{words:?}");
    assert_eq!(words[2..], ["exec", "Go."]);
}

/// The agent can be named if the command is another program.
#[tokio::test]
async fn agent_can_be_named() {
    let machine = Machine::new();
    let run = ["run", "--listen", FREE, "--admin", FREE];
    let named = [&run[..], &["--agent", "goose", "--", "env"]].concat();
    assert!(!value(&machine.run(&named).await, "OPENAI_HOST").is_empty());
    let unknown = machine.run(&["run", "--agent", "gose", "--", "env"]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("gose is no agent that Plimsoll knows"), "{}", unknown.err);
}

/// Copilot's variable for its key gets the user's usual one, which no line shows.
#[tokio::test]
async fn key_is_named_never_shown() {
    let machine = Machine::new();
    machine.agent("copilot", "env");
    let mut command = machine.behind(&["copilot"]);
    command.env("ANTHROPIC_API_KEY", "sk-of-the-user").env("OPENAI_API_KEY", "sk-other");
    let ran = done(command).await;
    assert_eq!(value(&ran, "COPILOT_PROVIDER_API_KEY"), "sk-of-the-user");
    assert_eq!(value(&ran, "COPILOT_PROVIDER_TYPE"), "anthropic");
    assert!(ran.err.contains("COPILOT_PROVIDER_API_KEY is the key of ANTHROPIC_API_KEY"));
    assert!(ran.err.contains("Copilot CLI: it also needs COPILOT_MODEL"), "{}", ran.err);
    assert!(!ran.err.contains("sk-"), "{}", ran.err);
}

#[tokio::test]
async fn limits_are_said_before_start() {
    let machine = Machine::new();
    machine.agent("copilot", "echo started >&2");
    let ran = done(machine.behind(&["copilot"])).await;
    let said = ran.err.find("GitHub's own models cannot pass Plimsoll").expect("a limit");
    assert!(said < ran.err.find("started").unwrap(), "{}", ran.err);
}

#[tokio::test]
async fn missing_upstream_is_said() {
    let machine = Machine::new();
    machine.agent("vibe", "env");
    let ran = done(machine.behind(&["vibe"])).await;
    let said = "it needs an upstream: --upstream mistral=https://api.mistral.ai";
    assert!(ran.err.contains(said), "{}", ran.err);
}

/// pi reads its address from a file only. It gets a copy of its folder, and what it writes itself is kept.
#[tokio::test]
async fn file_is_changed_in_a_copy() {
    let machine = Machine::new();
    let models = "{ \"providers\": {\"mine\": {\"baseUrl\":\"https://mine.example\"}} }";
    machine.write(".pi/agent/models.json", models);
    machine.write(".pi/agent/auth.json", "old");
    machine.write(".pi/agent/sessions/one", "1");
    machine.agent(
        "pi",
        "cd $PI_CODING_AGENT_DIR && pwd && cat models.json && cat sessions/one && echo 2 > sessions/two \
         && echo new > auth.tmp && mv auth.tmp auth.json && mkdir fresh && echo 3 > fresh/three",
    );
    let ran = done(machine.behind(&["pi"])).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    let (folder, text) = ran.out.split_once('\n').unwrap();
    assert!(text.contains("https://mine.example"), "{text}");
    assert!(text.contains("\"anthropic\": {\n      \"baseUrl\": \"http://127.0.0.1:"), "{text}");
    assert!(!Path::new(folder).exists(), "{folder}");
    assert_eq!(machine.read(".pi/agent/models.json"), models);
    for (name, text) in [("auth.json", "new\n"), ("sessions/two", "2\n"), ("fresh/three", "3\n")] {
        assert_eq!(machine.read(&format!(".pi/agent/{name}")), text);
    }
}

/// droid's variable names the folder above, and its models are in a list.
#[tokio::test]
async fn folder_below_a_variable_is_copied() {
    let machine = Machine::new();
    let settings =
        r#"{"customModels": [{"provider": "openai", "baseUrl": "x"}, {"provider": "z"}]}"#;
    machine.write(".factory/settings.json", settings);
    machine.agent("droid", "cat $FACTORY_HOME_OVERRIDE/.factory/settings.json");
    let ran = done(machine.behind(&["droid"])).await;
    let seen: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let address = seen["customModels"][0]["baseUrl"].as_str().unwrap();
    assert!(address.ends_with("/v1"), "{address}");
    assert_eq!(seen["customModels"][1].get("baseUrl"), None);
    assert_eq!(machine.read(".factory/settings.json"), settings);
}

/// A login that is made under `run` lasts, without the address of that run.
#[tokio::test]
async fn login_is_kept() {
    let machine = Machine::new();
    let providers = r#"{"providers": {"anthropic": {"settings": {"baseUrl": "https://mine"}}}}"#;
    machine.write(".cline/data/settings/providers.json", providers);
    machine.agent(
        "cline",
        "cd $CLINE_DATA_DIR/settings && sed 's/\"settings\": {/\"settings\": {\"apiKey\": \"new\",/' \
         providers.json > fresh && mv fresh providers.json",
    );
    let ran = done(machine.behind(&["cline"])).await;
    assert!(!ran.err.contains("changed its copy"), "{}", ran.err);
    let kept = machine.read(".cline/data/settings/providers.json");
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let settings = &kept["providers"]["anthropic"]["settings"];
    assert_eq!(*settings, serde_json::json!({"apiKey": "new", "baseUrl": "https://mine"}));
}

#[tokio::test]
async fn rewritten_file_says_nothing() {
    let machine = Machine::new();
    machine.write(".pi/agent/models.json", "{}");
    machine
        .agent("pi", "cd $PI_CODING_AGENT_DIR && tr -d ' ' < models.json > m && mv m models.json");
    let ran = done(machine.behind(&["pi"])).await;
    assert!(!ran.err.contains("models.json"), "{}", ran.err);
    assert_eq!(machine.read(".pi/agent/models.json"), "{}");
}

#[tokio::test]
async fn advice_has_a_lasting_address() {
    let machine = Machine::new();
    machine.agent("cn", "true");
    let ran = done(machine.behind(&["cn"])).await;
    assert!(ran.err.contains("set apiBase = http://127.0.0.1:"), "{}", ran.err);
    assert!(!ran.err.contains("~run="), "{}", ran.err);
}

/// A file that is not understood stays, and that is said; the agent runs all the same.
#[tokio::test]
async fn odd_file_is_left_alone() {
    let machine = Machine::new();
    machine.write(".cline/data/settings/providers.json", "// mine\n{}");
    machine.agent("cline", "echo ${CLINE_DATA_DIR:-none}");
    let ran = done(machine.behind(&["cline"])).await;
    assert_eq!(ran.out.as_str(), "none\n");
    let said = "; ~/.cline/data/settings/providers.json is not plain JSON";
    assert!(ran.err.contains(said), "{}", ran.err);
}

/// The base URL has a tag of this run, so the summary has no call of anybody else.
#[tokio::test]
async fn summary_has_own_calls_only() {
    let provider = Provider::start().await;
    let serving = Serving::start(&provider.base(), &[]).await;
    let data = serving.data.path().to_str().unwrap();
    let script = "echo $ANTHROPIC_BASE_URL; read line";
    let mut child = plimsoll(&["run", "--data", data, "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = program::lines(child.stdout.take().unwrap());
    let base = within("its base URL", out.next_line()).await.unwrap().unwrap();
    let prefix = base.strip_prefix(&format!("http://{}", serving.clients)).unwrap();
    assert!(prefix.starts_with("/~run="), "{base}");
    let script = wire::anthropic();
    for path in [format!("{prefix}/v1/messages"), "/v1/messages".to_owned()] {
        let headers = [("x-api-key", "sk-test")];
        let mut client = post(serving.clients, &path, script.request, &headers).await;
        let mut call = provider.call().await;
        assert_eq!(call.message.first_line(), "POST /v1/messages HTTP/1.1");
        assert_eq!(call.message.header("x-plimsoll-tags"), None);
        call.begin_events().await;
        for event in &script.events {
            call.chunk(event).await;
        }
        call.end().await;
        assert_eq!(client.response().await.status(), 200);
    }
    child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let ran = within("its end", child.wait_with_output()).await.unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    let summary = err.find("plimsoll: calls   1\n").map(|at| &err[at..]).expect(&err);
    assert_eq!(summary.lines().count(), 4, "{err}");
    assert!(summary.contains("tokens  11 in (0% from the cache), 5 out\n"), "{err}");
}

#[tokio::test]
async fn fallback_runs_without_proxy() {
    let machine = Machine::new();
    machine.agent("claude", "env");
    let run = ["run", "--data", "/dev/null/data"];
    let refused = machine.run(&[&run[..], &["--", "claude"]].concat()).await;
    assert_eq!(refused.code, 1, "{}", refused.out);
    let fallback = [&run[..], &["--fallback", "direct", "--", "claude"]].concat();
    let mut command = machine.command(&fallback);
    let ran = done({
        command.env("PLIMSOLL_ADMIN_TOKEN", "a-token-of-the-operators");
        command
    })
    .await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("the command runs without Plimsoll"), "{}", ran.err);
    assert_eq!(value(&ran, "ANTHROPIC_BASE_URL"), "");
    assert!(!ran.out.contains("a-token"), "{}", ran.out);
}
