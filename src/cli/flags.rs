//! Arguments that several commands have: which running Plimsoll is asked, whether it is asked again, and what overrides the
//! configuration.
//!
//! Knows no command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::admin_client::AdminClient;
use super::print::{self, CliError, TerminalControl};
use crate::config::{ConfigFlag, ConfigSources};

/// Which running Plimsoll is asked, and for whom.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct AdminTarget {
    /// Data folder of the Plimsoll to ask; its socket is there [default: as configured].
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Admin listener to ask instead, of another user or machine; sends the configured token, if there is one.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Configuration file; else ~/.config/plimsoll/plimsoll.toml or /etc/plimsoll/plimsoll.toml, if there is one.
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whether a command repeats what it shows.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct WatchFlag {
    /// Show it again every so many seconds, until Ctrl-C or until nobody reads it.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

impl AdminTarget {
    /// Shows something of the running Plimsoll, once or again and again.
    pub(super) fn show(
        &self,
        watch: &WatchFlag,
        question: impl AsyncFn(&AdminClient) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        self.ask(async |client| {
            loop {
                if watch.watch.is_some() && print::width().is_some() {
                    print::control(TerminalControl::Home);
                    print::control(TerminalControl::ClearBelow);
                }
                question(&client).await?;
                let Some(seconds) = watch.watch else { return Ok(()) };
                if !print::is_read() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
        })
    }

    /// Runs a command against the running Plimsoll.
    pub(super) fn ask(
        &self,
        question: impl AsyncFnOnce(AdminClient) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        // Queries need only one thread.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { question(AdminClient::configured(&self.sources()).await?).await })
    }

    /// Like [`Self::ask`], but `None` if nothing serves, or it does not answer.
    pub(super) fn try_ask<T>(
        &self,
        question: impl AsyncFnOnce(&AdminClient) -> Result<T, CliError>,
    ) -> Result<Option<T>, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async {
            let client = AdminClient::configured(&self.sources()).await.ok()?;
            question(&client).await.ok()
        }))
    }

    /// The sources that the configuration is read from.
    pub(super) fn sources(&self) -> ConfigSources {
        let flags = ConfigFlags {
            config: self.config.clone(),
            admin: self.admin.clone(),
            data: self.data.clone(),
            ..ConfigFlags::default()
        };
        flags.sources()
    }
}

/// The settings that the command line can override, before file and environment.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ConfigFlags {
    /// Configuration file; else ~/.config/plimsoll/plimsoll.toml or /etc/plimsoll/plimsoll.toml, if there is one.
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address that clients connect to [default: 127.0.0.1:8787].
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Address of the admin listener [default: 127.0.0.1:9797].
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// The data folder [default: ~/.local/share/plimsoll].
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// A provider: anthropic, openai or gemini (this replaces its base URL), or a name that you choose, which
    /// clients then reach as /NAME/…; may be given several times.
    #[arg(long, value_name = "NAME=URL")]
    pub upstream: Vec<String>,
    /// What Plimsoll may do with requests [default: active].
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeArgument>,
    /// Format of the log [default: text].
    #[arg(long, value_name = "FORMAT")]
    pub log: Option<LogFormatArgument>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ModeArgument {
    /// Only read.
    Observe,
    /// Plan and measure, but send the original.
    Shadow,
    /// Rewrite where the policy says so.
    Active,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormatArgument {
    /// Lines of text.
    Text,
    /// JSON, for machines.
    Json,
}

impl ConfigFlags {
    /// The sources that the configuration is read from.
    pub(super) fn sources(&self) -> ConfigSources {
        let variant_name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned())
        };
        let mode = variant_name(&|| self.mode?.to_possible_value());
        let log = variant_name(&|| self.log?.to_possible_value());
        let named = [
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
            ("data", self.data.clone()),
            ("mode", mode),
            ("log", log),
        ];
        let flags = named
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .chain(self.upstream.iter().map(|pair| ("upstream", pair.clone())))
            .map(|(key, value)| ConfigFlag {
                name: format!("--{key}"),
                key: key.to_owned(),
                value,
            });
        ConfigSources::of_process(self.config.clone(), flags.collect())
    }
}

/// A time span, as people write it.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write numbers and their units, such as 12h, 7d or 1h30m".to_owned())
}
