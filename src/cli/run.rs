//! `plimsoll run -- COMMAND`: a client with its base URLs pointed here, and a summary at its end.
//!
//! Uses the proxy that answers at the admin address; where none does, serves for as long as the
//! command runs. Signals go on to the command; its exit code is ours.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ask::Asked;
use super::look;
use super::print::{self, Trouble};
use super::serve::{self, House};
use crate::admin::view::Session;
use crate::config::{self, Config, Sources};
use crate::telemetry::log::{Form, Log};

/// How many sessions the summary looks at.
const SUMMED: usize = 50;

/// What the known clients read their base URLs from (`clients.md` §1). Root: what stands before the
/// provider's whole path; the OpenAI family wants the version in it.
const ROOTED: &[&str] = &["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"];
const VERSIONED: &[&str] = &["OPENAI_BASE_URL", "OPENAI_API_BASE"];

/// Runs a command through the proxy; answers its exit code.
pub(super) fn run(sources: &Sources, command: &[String]) -> Result<ExitCode, Trouble> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Trouble("say which command to run".to_owned()))?;
    serve::runtime()?.block_on(async {
        let proxied = Proxied::found_or_started(sources).await?;
        let began = look::now();
        let mut child = Command::new(program);
        child.args(arguments);
        for (name, value) in variables(&proxied.base) {
            child.env(name, value);
        }
        let child = child.spawn().map_err(|error| {
            Trouble(format!("{program} cannot be run: {error}. Is it installed and on the PATH?"))
        })?;
        let status = wait(child).await?;
        summarise(&proxied.asked, began).await;
        proxied.end().await;
        Ok(code(status))
    })
}

/// The variables that point known clients at `base`.
fn variables(base: &str) -> Vec<(&'static str, String)> {
    let rooted = ROOTED.iter().map(|name| (*name, base.to_owned()));
    let versioned = VERSIONED.iter().map(|name| (*name, format!("{base}/v1")));
    rooted.chain(versioned).collect()
}

/// A proxy that somebody serves, or that we do.
struct Proxied {
    /// Where clients connect.
    base: String,
    asked: Asked,
    own: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl Proxied {
    async fn found_or_started(sources: &Sources) -> Result<Self, Trouble> {
        let loaded = config::load(sources)?;
        let config = &loaded.config;
        let asked = Asked::at(config.admin, config.admin_token.clone());
        if asked.answers().await {
            return Ok(Self { base: base(config, config.listen), asked, own: None });
        }
        std::fs::create_dir_all(&config.data).map_err(|error| {
            Trouble(format!(
                "{} cannot be made: {error}. Choose another folder with --data",
                config.data.display()
            ))
        })?;
        // The terminal belongs to the command.
        let path = config.data.join("run.log");
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(|error| {
                Trouble(format!("{} cannot be written: {error}", path.display()))
            })?;
        let form = if config.log_json { Form::Json } else { Form::Text };
        let (tls, token) = (config.tls.is_some(), config.admin_token.clone());
        let house = House::build(loaded, Log::to(form, file)?).await?;
        let asked = Asked::at(house.admin_at, token);
        let base = address(tls, house.listen);
        print::note(&format!("serving on {base}; the log is {}", path.display()));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(house.serve(stopped));
        Ok(Self { base, asked, own: Some((stop, serving)) })
    }

    async fn end(self) {
        if let Some((stop, serving)) = self.own {
            stop.send_replace(true);
            let _ = serving.await;
        }
    }
}

fn base(config: &Config, listen: SocketAddr) -> String {
    address(config.tls.is_some(), listen)
}

fn address(tls: bool, mut listen: SocketAddr) -> String {
    if listen.ip().is_unspecified() {
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    format!("{}://{listen}", if tls { "https" } else { "http" })
}

/// Waits for the command. SIGTERM goes on to it; an interrupt typed at the terminal reaches it by
/// itself, and it decides what to do.
async fn wait(mut child: Child) -> Result<ExitStatus, Trouble> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(status?),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => forward(&child, "TERM").await,
            _ = hang_up.recv() => forward(&child, "HUP").await,
        }
    }
}

/// Sends a signal on. The standard library has no call for it, so `kill` is asked.
async fn forward(child: &Child, name: &str) {
    if let Some(id) = child.id() {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(id.to_string()).status().await;
        if sent.is_err() {
            print::note("the signal could not be passed on: there is no `kill`");
        }
    }
}

/// As a shell has it: 128 and the signal's number where one ended it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// What the sessions that were used meanwhile cost, and how full they are.
async fn summarise(asked: &Asked, began: u64) {
    let Ok(listed) = asked.sessions(SUMMED).await else { return };
    let mut used: Vec<Session> = Vec::new();
    for line in listed.sessions.iter().filter(|line| line.newest >= began) {
        used.extend(asked.session(&line.id).await.ok());
    }
    if used.is_empty() {
        print::note(
            "nothing came through the proxy: does the command read its base URL from the environment?",
        );
        return;
    }
    let sum = |of: fn(&Session) -> u64| look::grouped(used.iter().map(of).sum());
    print::note(&format!(
        "input {}, output {}, from cache {} tokens in the sessions used\n{}",
        sum(|session| session.totals.input),
        sum(|session| session.totals.output),
        sum(|session| session.totals.cache_read),
        look::table(&used, look::now()),
    ));
}
