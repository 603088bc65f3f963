//! `plimsoll doctor`: what works here and what does not, in short lines.
//!
//! Asks only this machine, unless `--online`. Keys are named, never shown. Changes nothing.

mod agents;
mod findings;
mod online;

use std::collections::BTreeMap;
use std::process::ExitCode;

use tokio::net::TcpStream;

use super::admin_client::AdminClient;
use super::check::StoreCheck;
use super::clients::{self, Environment, KEYS};
use super::flags::ConfigFlags;
use super::print::{self, CliError};
use super::run::proxy::reachable;
use super::{serve, setup, times};
use crate::admin::view::ServerInfo;
use crate::clock::wall;
use crate::config::errors::ConfigErrors;
use crate::config::{self, Config};
use crate::context::budget::grouped;
use findings::{Finding, Findings, Level};

/// What is asked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DoctorOptions {
    /// Also ask each provider for its list of models, through the running Plimsoll; that costs nothing.
    #[arg(long)]
    online: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    settings: ConfigFlags,
}

/// Prints the lines. The exit code is 1 if there is a fault.
pub(super) fn run(options: &DoctorOptions) -> Result<ExitCode, CliError> {
    let findings = serve::block_on(async { Ok(examine(options).await) })?;
    let is_faulty = findings.0.iter().any(|finding| finding.level == Level::Fault);
    if options.json {
        print::json(&serde_json::json!({ "ok": !is_faulty, "findings": findings }));
    } else {
        for Finding { level, about, text } in &findings.0 {
            let level = match level {
                Level::Ok => "ok",
                Level::Look => "look",
                Level::Fault => "fault",
            };
            print::line(&format!("{level:<6} {about:<14} {text}"));
        }
    }
    Ok(ExitCode::from(u8::from(is_faulty)))
}

async fn examine(options: &DoctorOptions) -> Findings {
    let mut findings = Findings::default();
    let sources = options.settings.sources();
    let environment = clients::environment();
    let loaded = match config::load_for_query(&sources) {
        Ok(loaded) => loaded,
        Err(errors) => {
            findings.add(Level::Fault, "configuration", errors.to_string().trim_end());
            return findings;
        }
    };
    for warning in &loaded.warnings {
        findings.add(Level::Look, "configuration", warning);
    }
    // What serves goes on with the table that it has; a restart needs this one.
    if let Err(ConfigErrors(errors)) = config::load(&sources) {
        for error in errors.iter().filter(|error| error.key == "catalogue") {
            findings.add(Level::Look, "configuration", error.to_string());
        }
    }
    let file = loaded.file.map_or("the defaults".to_owned(), |file| file.display().to_string());
    findings.add(Level::Ok, "configuration", file);
    let config = loaded.config;
    let about = listener(&config, &mut findings).await;
    store(&config, about.as_ref(), &mut findings).await;
    clock(about.as_ref(), &mut findings);
    keys(&config, &environment, &mut findings);
    if options.online {
        online::ask(about.as_ref(), &environment, &mut findings).await;
    }
    let root = match &about {
        Some(about) => reachable(&about.clients),
        None => setup::root(&config),
    };
    agents::examine(&root, &environment, &mut findings).await;
    findings
}

async fn listener(config: &Config, findings: &mut Findings) -> Option<ServerInfo> {
    let about = match AdminClient::by_socket(&config.data).await {
        Ok(Some((_, about))) => about,
        Ok(None) => {
            let data = config.data.display();
            let text = format!("no: nothing serves from {data}. Start `plimsoll serve`");
            findings.add(Level::Look, "listens", text);
            return None;
        }
        Err(trouble) => {
            findings.add(Level::Fault, "listens", trouble.0);
            return None;
        }
    };
    let base = reachable(&about.clients);
    let address = base.split_once("://").map_or(&*base, |(_, address)| address);
    match TcpStream::connect(address).await {
        Ok(_) => findings.add(Level::Ok, "listens", &base),
        Err(error) => findings.add(Level::Fault, "listens", format!("{base}: {error}")),
    }
    let version = env!("CARGO_PKG_VERSION");
    if about.version != version {
        let text = format!("{} runs, this is {version}: restart it", about.version);
        findings.add(Level::Look, "version", text);
    }
    Some(about)
}

async fn store(config: &Config, about: Option<&ServerInfo>, findings: &mut Findings) {
    if let Some(failure) = about.and_then(|about| about.store_failure.as_ref()) {
        findings.add(Level::Fault, "store", format!("nothing is stored for now: {failure}"));
        return;
    }
    match StoreCheck::new(config).await {
        Err(trouble) => findings.add(Level::Fault, "store", trouble.0),
        Ok(StoreCheck { trouble: Some(trouble), .. }) => {
            findings.add(Level::Fault, "store", trouble);
        }
        Ok(StoreCheck { room: Some(room), .. }) => findings.add(Level::Look, "store", room),
        Ok(StoreCheck { bytes, .. }) => {
            let size = grouped(bytes >> 20);
            findings.add(Level::Ok, "store", format!("{}, {size} MiB", config.data.display()));
        }
    }
}

fn clock(about: Option<&ServerInfo>, findings: &mut Findings) {
    let now = wall();
    if about.is_some_and(|about| about.started > now) {
        let text = "it was set back since Plimsoll started: new turns seem older than stored ones";
        return findings.add(Level::Fault, "clock", text);
    }
    findings.add(Level::Ok, "clock", times::full(now));
}

fn keys(config: &Config, environment: &Environment, findings: &mut Findings) {
    let mut lines = BTreeMap::new();
    for upstream in &config.upstreams {
        let name = &*upstream.name;
        let key_names = KEYS.iter().find(|(known, _)| *known == name).map(|(_, names)| *names);
        let set = key_names.unwrap_or_default().iter().find(|key| environment.contains_key(**key));
        if upstream.credential.is_some() {
            lines.insert(name, "Plimsoll's own credential".to_owned());
        } else if let Some(set) = set {
            lines.insert(name, (*set).to_owned());
        }
    }
    if lines.is_empty() {
        let text = "none in this environment: your agents need a login or a key of their own";
        return findings.add(Level::Look, "key", text);
    }
    for (name, key) in lines {
        findings.add(Level::Ok, "key", format!("{name}: {key}"));
    }
}
