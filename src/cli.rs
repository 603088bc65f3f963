//! The command line: arguments in, an exit code out.
//!
//! `serve`, `run` and `demo` bring a house up; every other sub-command is a client of the admin
//! API or of the configuration. Exit codes: 0 done, 1 something is wrong (standard error says whose
//! fault and what to do), 2 the command line was not understood.

mod check;
mod demo;
mod print;
mod serve;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Sources;

/// A transparent LLM proxy sidecar: knows how full every conversation's context is.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients until a signal.
    Serve(Settings),
    /// Print every fault of the configuration, or what would be served.
    Check {
        #[command(flatten)]
        settings: Settings,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
    /// See it at work: an agent's session against a scripted provider, without key or network.
    Demo {
        /// Stay up at the end, for Prometheus to scrape and people to look.
        #[arg(long)]
        keep: bool,
        /// Only serve the scripted provider, at this address (port 0: any free one).
        #[arg(long, value_name = "ADDRESS")]
        provider: Option<SocketAddr>,
    },
}

/// What the command line can say of the configuration; it goes over file and environment.
#[derive(Clone, Debug, Default, Args)]
struct Settings {
    /// Configuration file; else ./plimsoll.toml or the user's, if there is one.
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
    config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8787].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where the admin listener stands [default: 127.0.0.1:9797].
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Folder in which facts are kept [default: ~/.local/share/plimsoll].
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// A provider: anthropic, openai, gemini (whose addresses this replaces), or a name of your
    /// own, which clients then reach as /NAME/…; may be given several times.
    #[arg(long, value_name = "NAME=URL")]
    upstream: Vec<String>,
    /// How far Plimsoll may go with requests [default: active].
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeWord>,
    /// The log's form [default: text].
    #[arg(long, value_name = "FORM")]
    log: Option<FormWord>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeWord {
    /// Read only.
    Observe,
    /// Plan and measure, send the original.
    Shadow,
    /// Rewrite where policy says so.
    Active,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormWord {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Settings {
    /// Where the configuration is read from.
    fn sources(&self) -> Sources {
        let word = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|word| word.get_name().to_owned())
        };
        let mode = word(&|| self.mode?.to_possible_value());
        let log = word(&|| self.log?.to_possible_value());
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
            .chain(self.upstream.iter().map(|said| ("upstream", said.clone())))
            .map(|(key, value)| (format!("--{key}"), key.to_owned(), value));
        Sources::of_process(self.config.clone(), flags.collect())
    }
}

/// Does what the arguments say.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.command {
        Command::Serve(settings) => serve::run(&settings.sources()),
        Command::Check { settings, json } => check::run(&settings.sources(), *json),
        Command::Demo { keep, provider } => demo::run(*provider, *keep),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            print::trouble(&trouble);
            ExitCode::from(1)
        }
    }
}
