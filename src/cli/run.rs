//! `plimsoll run -- COMMAND`: a client with its base URLs pointed here, and a summary at its end.
//!
//! Uses the proxy that answers at the admin address; where none does, serves for as long as the
//! command runs. Signals go on to the command; its exit code is ours.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ask::Asked;
use super::look;
use super::print::{self, Trouble};
use super::serve::{self, House};
use crate::admin::view::{About, Session};
use crate::config::{self, Sources};
use crate::context::budget::grouped;
use crate::store::folder;
use crate::telemetry::log::{Form, Log};

/// How many sessions the summary looks at.
const SUMMED: usize = 50;
/// How long it waits for turns that are still being kept, and how often it asks.
const KEPT_WITHIN: Duration = Duration::from_secs(2);
const ASKED_EVERY: Duration = Duration::from_millis(20);

/// What the known clients read their base URLs from (`clients.md` §1). Root: what stands before the
/// provider's whole path; the OpenAI family wants the version in it.
const ROOTED: &[&str] = &["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"];
const VERSIONED: &[&str] = &["OPENAI_BASE_URL", "OPENAI_API_BASE"];
/// Set by people who already send a provider's calls elsewhere.
const DETOURS: &[(&str, &str)] = &[
    ("ANTHROPIC_BASE_URL", "anthropic"),
    ("OPENAI_BASE_URL", "openai"),
    ("GOOGLE_GEMINI_BASE_URL", "gemini"),
];

/// Runs a command through the proxy; answers its exit code.
pub(super) fn run(
    sources: Sources,
    command: &[String],
    as_json: bool,
) -> Result<ExitCode, Trouble> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Trouble("say which command to run".to_owned()))?;
    serve::runtime()?.block_on(async {
        let proxied = Proxied::found_or_started(sources).await?;
        let signals = Signals::caught()?;
        let began = look::now();
        let mut child = Command::new(program);
        child.args(arguments);
        for (name, value) in variables(&proxied.base) {
            child.env(name, value);
        }
        let child = child.spawn().map_err(|error| {
            Trouble(format!("{program} cannot be run: {error}. Is it installed and on the PATH?"))
        })?;
        let status = signals.until_end_of(child).await?;
        all_kept(&proxied.asked).await;
        summarise(&proxied.asked, began, as_json).await;
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
    async fn found_or_started(mut sources: Sources) -> Result<Self, Trouble> {
        let asked = Asked::configured(&sources)?;
        if asked.answers().await {
            let about: About = asked.value("/api/v1/about").await?;
            let base = reachable(&about.clients);
            warn_of_detours(&sources, &base);
            return Ok(Self { base, asked, own: None });
        }
        keep_detours(&mut sources);
        let loaded = config::load(&sources)?;
        let config = &loaded.config;
        let path = config.data.join(folder::RUN_LOG);
        let token = config.admin_token.clone();
        let form = if config.log_json { Form::Json } else { Form::Text };
        // The terminal belongs to the command.
        let house = House::build(loaded, Log::to(form, log_file(&path)?)?).await?;
        let asked = Asked::at(house.admin_at, token);
        let base = reachable(&house.base());
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

fn log_file(path: &Path) -> Result<File, Trouble> {
    let data = path.parent().unwrap_or(path);
    let opened = folder::prepare(data).and_then(|warnings| {
        warnings.iter().for_each(|warning| print::note(warning));
        folder::append(path)
    });
    opened.map_err(|error| {
        let path = path.display();
        Trouble(format!("{path} cannot be written: {error}. Choose another folder with --data"))
    })
}

/// A base URL that one can connect to: a listener on all addresses is on loopback too.
fn reachable(base: &str) -> String {
    base.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
}

/// Base URLs that are set already say where this person's calls go, and with whose keys: a proxy
/// of our own sends them there too, unless the configuration's own layers say otherwise.
fn keep_detours(sources: &mut Sources) {
    for (name, upstream) in DETOURS {
        let Some(url) = sources.variable(name).map(str::to_owned) else { continue };
        let ours = format!("PLIMSOLL_UPSTREAM_{}", upstream.to_uppercase());
        let flagged = format!("{upstream}=");
        let said = sources.variable(&ours).is_some()
            || sources
                .flags
                .iter()
                .any(|(_, key, it)| key == "upstream" && it.starts_with(&flagged));
        if !said {
            print::note(&format!("{name} is set: {upstream} goes on to {url}"));
            sources.variables.push((ours, url));
        }
    }
}

/// A proxy that runs already knows nothing of this terminal's base URLs.
fn warn_of_detours(sources: &Sources, base: &str) {
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
    /// From now on they come here. To be called before the command begins, so that none is lost.
    fn caught() -> Result<Self, Trouble> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the command. SIGTERM and SIGHUP go on to it; an interrupt typed at the terminal
    /// reaches it by itself, and it decides what to do.
    async fn until_end_of(mut self, mut child: Child) -> Result<ExitStatus, Trouble> {
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

/// Waits until what the command asked can be found: a turn may be kept after its answer has left.
async fn all_kept(asked: &Asked) {
    let is_busy = |about: About| about.in_flight > 0;
    let kept = async {
        while asked.value("/api/v1/about").await.is_ok_and(is_busy) {
            tokio::time::sleep(ASKED_EVERY).await;
        }
    };
    // A proxy that others use is never idle.
    let _ = tokio::time::timeout(KEPT_WITHIN, kept).await;
}

/// What the sessions that were used meanwhile cost, and how full they are.
async fn summarise(asked: &Asked, began: u64, as_json: bool) {
    let Ok(listed) = asked.sessions(SUMMED).await else { return };
    let mut used: Vec<Session> = Vec::new();
    for line in listed.sessions.iter().filter(|line| line.newest >= began) {
        used.extend(asked.session(&line.id).await.ok());
    }
    if as_json {
        // Standard output is the command's.
        print::error_json(&serde_json::json!({ "sessions": used }).to_string());
        return;
    }
    if used.is_empty() {
        print::note(
            "nothing came through the proxy: does the command read its base URL from the environment?",
        );
        return;
    }
    let sum = |of: fn(&Session) -> u64| grouped(used.iter().map(of).sum());
    print::note(&format!(
        "input {}, output {}, from cache {} tokens in the sessions used\n{}",
        sum(|session| session.totals.input),
        sum(|session| session.totals.output),
        sum(|session| session.totals.cache_read),
        look::table(&used, look::now()),
    ));
}
