//! `plimsoll run -- COMMAND`: runs an agent behind Plimsoll, and prints a summary at its end.
//!
//! What an agent needs for that stands in `config/clients.toml`. The user's own files stay as they are, and the
//! command gets none of our secrets.

mod launch;
mod overlay;
pub(super) mod proxy;
mod signals;
mod summary;

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};

use tokio::process::Command;

use super::clients::{self, KEYS, TABLE};
use super::print::{self, CliError};
use super::{admin_client, serve};
use crate::clock::wall;
use crate::config::{Config, ConfigSources};
use launch::Launch;
use proxy::RunningProxy;
use signals::Signals;
use summary::RunTag;

/// Our own variables that are not secret, and through which a command finds the same server.
const KEPT: &[&str] = &["PLIMSOLL_DATA", "PLIMSOLL_CONFIG"];

/// How a command is run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RunOptions {
    /// Print the summary as one line of JSON on standard error.
    #[arg(long)]
    pub json: bool,
    /// Which agent the command starts, if its name does not say: `plimsoll setup --list`.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// What to do if Plimsoll cannot start [default: do not run the command].
    #[arg(long, value_name = "HOW")]
    fallback: Option<Fallback>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fallback {
    /// Run the command without Plimsoll.
    Direct,
}

pub(super) fn run(sources: ConfigSources, options: &RunOptions) -> Result<ExitCode, CliError> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| CliError("name the command to run".to_owned()))?;
    let client = match &options.agent {
        Some(name) => Some(TABLE.by_name(name).ok_or_else(|| clients::unknown(name))?),
        None => TABLE.by_program(program),
    };
    serve::block_on(async {
        let began = wall();
        let (config, proxied) = match find_proxy(sources.clone()).await {
            Ok(found) => found,
            Err(error) if options.fallback.is_some() => {
                print::note(&format!("{}\nplimsoll: the command runs without Plimsoll", error.0));
                return run_directly(program, arguments).await;
            }
            Err(error) => return Err(error),
        };
        let tag = RunTag::new(&proxied.about);
        let mut launch = Launch::new(client, &config, &proxied.about);
        launch.point_to(&tag.base(&proxied.base), &proxied.base)?;
        let mut command = Command::new(program);
        for name in secrets(&config) {
            command.env_remove(name);
        }
        command.args(&launch.arguments).args(arguments).envs(&launch.variables);
        command.envs(folders(&sources, &config));
        let status = finished(command, program).await;
        if let Some(overlay) = launch.overlay {
            overlay.end();
        }
        let status = status?;
        summary::wait_until_stored(&proxied.client).await;
        tag.summarise(&proxied.client, began, status.success(), options.json).await;
        proxied.end().await;
        Ok(signals::code(status))
    })
}

async fn find_proxy(sources: ConfigSources) -> Result<(Config, RunningProxy), CliError> {
    let config = admin_client::load_config(&sources)?;
    let proxied = RunningProxy::find_or_start(sources, &config).await?;
    Ok((config, proxied))
}

async fn run_directly(program: &str, arguments: &[String]) -> Result<ExitCode, CliError> {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name)) {
        command.env_remove(name);
    }
    command.args(arguments);
    Ok(signals::code(finished(command, program).await?))
}

async fn finished(mut command: Command, program: &str) -> Result<ExitStatus, CliError> {
    // Before the command starts, so that none is lost.
    let signals = Signals::catch()?;
    let child = command.spawn().map_err(|error| {
        CliError(format!("{program} cannot be run: {error}. Is it installed and on the PATH?"))
    })?;
    signals.wait_for(child).await
}

fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("PLIMSOLL_") && !KEPT.contains(&&*name)
}

fn secrets(config: &Config) -> Vec<OsString> {
    // Upstream credentials stay with us, unless clients read them themselves.
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name));
    let others = config
        .secret_variables
        .iter()
        .filter(|name| !KEYS.iter().any(|(_, keys)| keys.contains(&name.as_str())));
    ours.chain(others.map(OsString::from)).collect()
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
