//! `plimsoll run -- COMMAND`: runs a client with its base URLs pointed here, and prints a summary at its end.
//!
//! Uses the proxy that answers at the socket in the data folder, which is this user's own; if there is none,
//! serves for as long as the command runs. The command gets none of our secrets. Signals are forwarded to it,
//! and its exit code becomes ours.

use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::admin_client::{self, AdminClient};
use super::print::{self, CliError};
use super::serve::{self, Ports, Server};
use super::sessions;
use crate::admin::view::{ServerInfo, SessionView};
use crate::clock::wall;
use crate::config::{self, Config, ConfigSources};
use crate::context::budget::grouped;
use crate::store::folder;
use crate::telemetry::log::{Log, LogFormat};

/// The most sessions in the summary.
const SUMMARIZED: usize = 50;
/// How long to wait for turns that are still being stored, and how often to check.
const STORED_WITHIN: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The variables from which known clients read their base URLs (`docs/clients.md`). `ROOTED` ones
/// stand before the provider's whole path; those of the OpenAI family include the version.
const ROOTED: &[&str] =
    &["ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"];
const VERSIONED: &[&str] = &["OPENAI_BASE_URL", "OPENAI_API_BASE"];
/// Variables that may already send a provider's calls elsewhere, and the upstream of each.
const DETOURS: &[(&str, &str)] = &[
    ("ANTHROPIC_BASE_URL", "anthropic"),
    ("OPENAI_BASE_URL", "openai"),
    ("GOOGLE_GEMINI_BASE_URL", "gemini"),
];

/// Our own variables that are not secret, and through which a command finds the same server.
const KEPT: &[&str] = &["PLIMSOLL_DATA", "PLIMSOLL_CONFIG"];
/// Headers that Claude Code sends with each request, one per line.
const CLAUDE_HEADERS: &str = "ANTHROPIC_CUSTOM_HEADERS";
/// With this, Claude Code says in headers what each request is for (`docs/protocols.md` 8.1).
const CLAUDE_HINTS: &str = "CLAUDE_CODE_GATEWAY_HINT_HEADERS";
/// The variables from which clients read their keys, and the upstream of each.
const KEYS: &[(&str, &str)] = &[
    ("ANTHROPIC_API_KEY", "anthropic"),
    ("OPENAI_API_KEY", "openai"),
    ("GEMINI_API_KEY", "gemini"),
];
/// Provider keys that clients read themselves.
const CLIENT_KEYS: &[&str] =
    &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"];

pub(super) fn run(
    sources: ConfigSources,
    command: &[String],
    as_json: bool,
) -> Result<ExitCode, CliError> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| CliError("name the command to run".to_owned()))?;
    serve::block_on(async {
        let config = admin_client::load_config(&sources)?;
        let folders = folders(&sources, &config);
        let proxied = RunningProxy::find_or_start(sources, &config).await?;
        let signals = Signals::catch()?;
        let began = wall();
        let mut child = Command::new(program);
        child.args(arguments);
        for name in secrets(&config) {
            child.env_remove(name);
        }
        for (name, value) in variables(&proxied.base) {
            child.env(name, value);
        }
        child.envs(folders);
        if std::env::var_os(CLAUDE_HINTS).is_none() {
            child.env(CLAUDE_HINTS, "1");
        }
        for (name, value) in with_token(&config, |name| std::env::var(name).ok()) {
            child.env(name, value);
        }
        let child = child.spawn().map_err(|error| {
            CliError(format!("{program} cannot be run: {error}. Is it installed and on the PATH?"))
        })?;
        let status = signals.wait_for(child).await?;
        wait_until_stored(&proxied.client).await;
        summarise(&proxied.client, began, as_json).await;
        proxied.end().await;
        Ok(code(status))
    })
}

/// The variables through which a command sends a required client token. Prints what is left to do.
fn with_token(
    config: &Config,
    set: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let Some(token) = config.client_token.as_ref().map(|token| &*token.0) else {
        return Vec::new();
    };
    let header = format!("x-plimsoll-token: {token}");
    let headers = match set(CLAUDE_HEADERS) {
        Some(headers) if !headers.is_empty() => format!("{headers}\n{header}"),
        _ => header,
    };
    let mut variables = Vec::new();
    let mut others = Vec::new();
    for (variable, name) in KEYS {
        let mut upstreams = config.upstreams.iter();
        // Where the upstream has a key of its own, the client's key may be the token.
        if upstreams.any(|upstream| *upstream.name == **name && upstream.credential.is_some()) {
            variables.push((*variable, token.to_owned()));
        } else if *name != "anthropic" {
            // Claude Code sends the header.
            others.push(*name);
        }
    }
    if !others.is_empty() {
        print::note(&format!(
            "client_token is required. Claude Code sends it; for {} a command must send the header \
             x-plimsoll-token itself, or gets 401",
            others.join(" and ")
        ));
    }
    variables.push((CLAUDE_HEADERS, headers));
    variables
}

fn variables(base: &str) -> Vec<(&'static str, String)> {
    let rooted = ROOTED.iter().map(|name| (*name, base.to_owned()));
    let versioned = VERSIONED.iter().map(|name| (*name, format!("{base}/v1")));
    rooted.chain(versioned).collect()
}

fn secrets(config: &Config) -> Vec<OsString> {
    // Upstream credentials stay with us, unless clients read them themselves.
    let mut secrets = Vec::new();
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PLIMSOLL_") && !KEPT.contains(&&*text) {
            secrets.push(name);
        }
    }
    for name in &config.secret_variables {
        if !CLIENT_KEYS.contains(&name.as_str()) {
            secrets.push(OsString::from(name));
        }
    }
    secrets
}

fn folders(sources: &ConfigSources, config: &Config) -> Vec<(&'static str, OsString)> {
    // If only flags name the folder, a `plimsoll run` inside this one would find another server.
    let mut variables = Vec::new();
    if sources.flags.iter().any(|flag| flag.key == "data") {
        let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
        variables.push(("PLIMSOLL_DATA", data.into_os_string()));
    }
    if let Some(file) = &sources.file
        && let Ok(file) = std::path::absolute(file)
    {
        variables.push(("PLIMSOLL_CONFIG", file.into_os_string()));
    }
    variables
}

/// A running proxy, either somebody else's or our own.
struct RunningProxy {
    /// The base URL for clients.
    base: String,
    client: AdminClient,
    /// What stops our own, and its task.
    own: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl RunningProxy {
    async fn find_or_start(sources: ConfigSources, config: &Config) -> Result<Self, CliError> {
        match AdminClient::by_socket(&config.data).await {
            Ok(Some((client, about))) if is_requested_server(&sources, config, &about) => {
                let base = reachable(&about.clients);
                if !is_loopback(&base) {
                    return Err(CliError(format!(
                        "the running proxy listens on {base}, which is not this machine's loopback: \
                         commands are not sent there. Set its base URL yourself, or choose another folder with --data"
                    )));
                }
                warn_of_detours(&sources, &base);
                return Ok(Self { base, client, own: None });
            }
            Ok(_) => {}
            Err(trouble) => {
                print::note(&format!("{}; starting another Plimsoll for this command", trouble.0));
            }
        }
        Self::start(sources).await
    }

    async fn start(mut sources: ConfigSources) -> Result<Self, CliError> {
        keep_detours(&mut sources);
        let loaded = config::load(&sources)?;
        let config = &loaded.config;
        let path = config.data.join(folder::RUN_LOG);
        let data = config.data.clone();
        let form = if config.log_json { LogFormat::Json } else { LogFormat::Text };
        let log = log_file(&path)?;
        // The terminal belongs to the command, so the log is written to a file.
        let server = Server::build(loaded, Log::to(form, log)?, Ports::OrFree).await?;
        // We bound this address, so nobody else can be listening there.
        let client = match server.socket {
            Some(_) => AdminClient::Socket(data),
            None => AdminClient::Port(server.admin_at, Some(server.access.admin.clone())),
        };
        let base = reachable(&server.base());
        print::note(&format!("serving on {base}; the log is {}", path.display()));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server.serve(stopped));
        Ok(Self { base, client, own: Some((stop, serving)) })
    }

    async fn end(self) {
        if let Some((stop, serving)) = self.own {
            stop.send_replace(true);
            let _ = serving.await;
        }
    }
}

fn is_requested_server(sources: &ConfigSources, config: &Config, about: &ServerInfo) -> bool {
    // Any server is the requested one, unless a flag names its address.
    let is_named = sources.flags.iter().any(|flag| flag.key == "admin");
    !is_named || admin_client::serves_at(about, config.admin)
}

fn is_loopback(base: &str) -> bool {
    let Ok(uri) = base.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    is_web
        && is_plain
        && (host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

fn log_file(path: &Path) -> Result<File, CliError> {
    let data = path.parent().unwrap_or(path);
    let opened = folder::prepare(data).and_then(|warnings| {
        for warning in &warnings {
            print::note(warning);
        }
        folder::run_log(data)
    });
    opened.map_err(|error| {
        let path = path.display();
        CliError(format!("{path} cannot be written: {error}. Choose another folder with --data"))
    })
}

fn reachable(base: &str) -> String {
    // A listener on all addresses is also on loopback.
    base.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
}

fn keep_detours(sources: &mut ConfigSources) {
    // The user's calls go there, with keys for that place. So our own proxy forwards to them, unless its
    // configuration names another base URL.
    for (name, upstream) in DETOURS {
        let Some(url) = sources.variable(name).map(str::to_owned) else { continue };
        let ours = format!("PLIMSOLL_UPSTREAM_{}", upstream.to_uppercase());
        let flagged = format!("{upstream}=");
        let is_set = sources.variable(&ours).is_some()
            || sources
                .flags
                .iter()
                .any(|flag| flag.key == "upstream" && flag.value.starts_with(&flagged));
        if !is_set {
            print::note(&format!("{name} is set: {upstream} is forwarded to {url}"));
            sources.variables.push((ours, url));
        }
    }
}

fn warn_of_detours(sources: &ConfigSources, base: &str) {
    // A proxy that already runs does not know this terminal's base URLs.
    for (name, upstream) in DETOURS {
        if let Some(url) = sources.variable(name).filter(|url| !url.starts_with(base)) {
            print::note(&format!(
                "{name} was {url}; the running proxy sends {upstream} where its own configuration \
                 says"
            ));
        }
    }
}

/// The signals that end a command from outside.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn catch() -> Result<Self, CliError> {
        // Before the command starts, so that none is lost.
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn wait_for(mut self, mut child: Child) -> Result<ExitStatus, CliError> {
        // SIGTERM and SIGHUP are forwarded to the command; an interrupt typed at the terminal reaches it
        // directly, and it decides what to do.
        loop {
            tokio::select! {
                status = child.wait() => return Ok(status?),
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => forward(&child, "TERM").await,
                _ = self.hang_up.recv() => forward(&child, "HUP").await,
            }
        }
    }
}

async fn forward(child: &Child, name: &str) {
    // The standard library has no function for it.
    if let Some(id) = child.id() {
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).arg(id.to_string());
        if kill.status().await.is_err() {
            print::note("the signal could not be forwarded: there is no `kill`");
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    // As in a shell: 128 plus the signal's number if a signal ended the command.
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

async fn wait_until_stored(client: &AdminClient) {
    // A turn may be stored after its response was sent.
    let stored = async {
        while client.about().await.is_ok_and(|about| about.in_flight > 0) {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    // A proxy that others use too may never be idle.
    let _ = tokio::time::timeout(STORED_WITHIN, stored).await;
}

async fn summarise(client: &AdminClient, began: u64, as_json: bool) {
    let Ok(listed) = client.sessions(SUMMARIZED).await else { return };
    let mut used: Vec<SessionView> = Vec::new();
    for line in listed.sessions.iter().filter(|line| line.newest >= began) {
        used.extend(client.session(&line.id).await.ok());
    }
    if as_json {
        // Standard output belongs to the command.
        print::error_json(&serde_json::json!({ "sessions": used }).to_string());
        return;
    }
    if used.is_empty() {
        print::note(
            "nothing came through the proxy: does the command read its base URL from the environment?",
        );
        return;
    }
    print::note(&format!(
        "input {}, output {}, from cache {} tokens in the sessions used",
        grouped(used.iter().map(|session| session.totals.input).sum()),
        grouped(used.iter().map(|session| session.totals.output).sum()),
        grouped(used.iter().map(|session| session.totals.cache_read).sum()),
    ));
    let lines = sessions::table::table(&used, wall(), None).lines(None);
    for line in lines {
        print::error_text(&format!("{}\n", line.rendered(usize::MAX, false)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_urls_are_recognised() {
        for yes in [
            "http://127.0.0.1:8787",
            "https://127.9.9.9:1",
            "http://[::1]:8787",
            "http://localhost:1",
        ] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in [
            "http://203.0.113.9:80",
            "http://127.0.0.1:80@evil.example",
            "http://evil.example@127.0.0.1",
            "http://127.0.0.1.evil.example",
            "http://localhost.evil.example",
            "ftp://127.0.0.1",
            "127.0.0.1",
            "/",
            "",
        ] {
            assert!(!is_loopback(no), "{no}");
        }
    }
}
