//! The command line: arguments in, an exit code out.
//!
//! `serve`, `run` and `demo` start a server; every other subcommand is a client of the admin API or of the
//! configuration. Exit codes: 0 success, 1 an error (standard error says whose fault it is and what to do), 2
//! invalid command line.

mod admin_client;
mod backup;
mod caps;
mod check;
mod clients;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod flags;
mod lessons;
mod line;
mod mcp;
mod models;
mod print;
mod replay;
mod run;
mod say;
mod serve;
mod service;
mod sessions;
mod setup;
mod socket;
mod spend;
mod style;
mod table;
mod times;
mod tokens;
mod top;
mod transcript;

#[cfg(feature = "demo")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::admin::spend::SpendBy;
use crate::clock::wall;
use flags::{AdminTarget, ConfigFlags, WatchFlag};
use print::CliError;
use style::ColorChoice;

/// What `--version` prints: releases set `PLIMSOLL_VERSION` to version, commit and date (`scripts/version`).
const VERSION: &str = match option_env!("PLIMSOLL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

const EXIT_CODES: &str = "Exit codes: 0 success; 1 an error, which standard error explains, as JSON with --json; 2 a wrong command \
     line. `run` ends with the code of its command, 128 and the number of a signal.";

/// A transparent proxy for LLM APIs that shows how full every conversation's context is.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version = VERSION, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Arguments {
    /// When output has colour; `NO_COLOR` is respected.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients until SIGINT or SIGTERM.
    Serve(ConfigFlags),
    /// Check the configuration: print every error, or what would be served.
    Check {
        #[command(flatten)]
        settings: ConfigFlags,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask the running Plimsoll whether it is ready, for images without a shell: exits with 0 if it is, else with 1.
    Healthcheck {
        /// Configuration file; else ~/.config/plimsoll/plimsoll.toml or /etc/plimsoll/plimsoll.toml, if there is one.
        #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
        config: Option<PathBuf>,
        /// The data folder [default: as configured].
        #[arg(long, value_name = "DIR")]
        data: Option<String>,
    },
    /// List sessions, newest first.
    Sessions {
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
        #[command(flatten)]
        query: sessions::SessionQuery,
    },
    /// Show how full a conversation's context is, and how wrong the last estimate was.
    Context {
        /// The session [default: the newest].
        session: Option<String>,
        /// The thread: `main`, an id, or what its client calls it [default: main].
        #[arg(long)]
        thread: Option<String>,
        /// Ask the provider's counting endpoint now how many tokens the newest request has.
        #[arg(long, conflicts_with = "thread")]
        count: bool,
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show what was changed in a request, what was not, why, and what that did to the provider's
    /// cache.
    Explain {
        /// The request's id, from the log or from x-plimsoll-request-id [default: the newest].
        request: Option<String>,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show what differs between two requests of a session: what was added, dropped, moved or cut, and where the
    /// provider's cached prefix ends.
    Compare {
        /// The request's id, from the log or from x-plimsoll-request-id [default: the newest].
        request: Option<String>,
        /// The other request [default: the one that it continues].
        with: Option<String>,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Serve the Model Context Protocol on standard input and output: an agent asks for its own context, cost and
    /// limits.
    Mcp {
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Compact a session: replace the beginning of its history with a summary.
    ///
    /// This starts with the session's next request, or at once if `compact.upstream` has its own
    /// credential.
    Compact {
        /// The session.
        session: String,
        /// Only show what would be cut and saved.
        #[arg(long)]
        dry_run: bool,
        /// What the summary should focus on.
        #[arg(long)]
        focus: Option<String>,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show what rewriting saved and cost, in one session or in the newest ones together.
    Savings {
        /// The session [default: the newest ones together].
        session: Option<String>,
        /// How many sessions to count.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show what was spent, and who spent it.
    Spend {
        /// By which name the calls are listed.
        #[arg(long, value_enum, default_value = "model")]
        by: SpendBy,
        /// Since how long, such as 12h or 7d.
        #[arg(long, default_value = "30d", value_parser = flags::period)]
        since: Duration,
        /// Print comma-separated values.
        #[arg(long, conflicts_with = "json")]
        csv: bool,
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show how much is left of the providers' limits, as their responses last said.
    Limits {
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show how much of each spending cap is spent, by whom, and until when.
    Caps {
        #[command(flatten)]
        change: caps::CapChange,
        #[command(flatten)]
        watch: WatchFlag,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Print one line about a session, for a status bar: how full its context is, what the next call's input costs, what
    /// was spent today, how much of a limit is left.
    Line {
        /// The session [default: the newest; for Claude Code, the one that it names on standard input].
        session: Option<String>,
        /// Who shows it.
        #[arg(long, value_enum, default_value = "plain")]
        format: line::LineFormat,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Show what is known about models: windows, limits, prices.
    Models {
        /// The names, as clients send them.
        names: Vec<String>,
        /// List where this table of models differs.
        #[arg(long, value_name = "FILE", conflicts_with = "names")]
        compare: Option<PathBuf>,
        /// List the models of the last 30 days whose window or price is not known.
        #[arg(long, conflicts_with_all = ["names", "compare"])]
        missing: bool,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Export a session for sharing, one line of JSON per call: usage, sizes and estimates, with names
    /// hashed and no text unless you ask for it. `plimsoll replay` reads it.
    Export {
        /// The session [default: the newest].
        session: Option<String>,
        #[command(flatten)]
        options: transcript::ExportOptions,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Copy the whole store into a file, whether Plimsoll runs or not.
    Backup {
        /// The file to write; it must not exist yet.
        file: PathBuf,
        /// Configuration file; else ~/.config/plimsoll/plimsoll.toml or /etc/plimsoll/plimsoll.toml, if there is one.
        #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
        config: Option<PathBuf>,
        /// The data folder [default: as configured].
        #[arg(long, value_name = "DIR")]
        data: Option<String>,
    },
    /// Add a user message to a session's next request; without text, list queued and sent messages.
    Say {
        /// The session.
        session: String,
        /// The text of the message.
        #[arg(conflicts_with_all = ["remove", "clear"])]
        text: Vec<String>,
        /// Remove a queued message.
        #[arg(long, value_name = "ID")]
        remove: Option<String>,
        /// Remove all queued messages.
        #[arg(long, conflicts_with = "remove")]
        clear: bool,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// List what Plimsoll learned from refusals of upstreams (windows, unknown fields), to whom each lesson
    /// applies, and until when.
    Lessons {
        /// Delete a lesson; the next such refusal teaches it again.
        #[arg(long, value_name = "ID", conflicts_with = "share")]
        forget: Option<String>,
        /// Apply a lesson to everyone, until it is deleted.
        #[arg(long, value_name = "ID")]
        share: Option<String>,
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Watch the sessions in use; with --json, print every exchange as it ends.
    Top {
        #[command(flatten)]
        at: AdminTarget,
    },
    /// Run an agent behind Plimsoll, which is started if it is not running.
    Run {
        #[command(flatten)]
        settings: ConfigFlags,
        #[command(flatten)]
        options: run::RunOptions,
    },
    /// Print an agent's lasting configuration, write it, or take back what was written.
    Setup(setup::SetupOptions),
    /// Look whether everything works here: listener, keys, store, clock, agents. Exits with 1 if a line begins with `fault`.
    Doctor(doctor::DoctorOptions),
    /// Have this user's service manager (systemd or launchd) run `plimsoll serve`.
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Measure how wrong the estimates would have been on recorded sessions.
    Replay(replay::ReplayArguments),
    /// Print shell completions.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or that of a command.
    Man {
        /// The command.
        command: Option<String>,
    },
    /// Try Plimsoll: agents run against a scripted provider, without key or network.
    #[cfg(feature = "demo")]
    Demo {
        /// Keep serving at the end, so that you can look at the page and metrics.
        #[arg(long)]
        keep: bool,
        /// Show every call, and what each did to the context.
        #[arg(long)]
        full: bool,
        /// Only serve the scripted provider, at this address (port 0: any free one).
        #[arg(long, value_name = "ADDRESS")]
        provider: Option<SocketAddr>,
    },
}

/// Runs the command of the arguments.
pub fn run(arguments: &Arguments) -> ExitCode {
    style::choose(arguments.color);
    match execute(&arguments.command) {
        Ok(code) => code,
        Err(trouble) => {
            print::error(&trouble, arguments.command.prints_json());
            ExitCode::from(1)
        }
    }
}

impl Command {
    /// Whether its output is for machines, so that its error is, too.
    fn prints_json(&self) -> bool {
        match self {
            Command::Sessions { at, .. }
            | Command::Context { at, .. }
            | Command::Explain { at, .. }
            | Command::Compare { at, .. }
            | Command::Compact { at, .. }
            | Command::Savings { at, .. }
            | Command::Spend { at, .. }
            | Command::Limits { at, .. }
            | Command::Caps { at, .. }
            | Command::Line { at, .. }
            | Command::Export { at, .. }
            | Command::Say { at, .. }
            | Command::Lessons { at, .. }
            | Command::Models { at, .. }
            | Command::Top { at } => at.json,
            Command::Check { json, .. } => *json,
            Command::Run { options, .. } => options.json,
            Command::Doctor(options) => options.json,
            _ => false,
        }
    }
}

/// Prints what is wrong with the command line, or the help or version that was requested.
pub fn usage_error(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand};
    // Help and version contain only our own text; an error quotes what was typed.
    let is_ours = matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand);
    if is_ours || !error.use_stderr() {
        let _ = error.print();
    } else {
        print::error_text(&error.render().to_string());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    let name = env!("CARGO_PKG_NAME");
    clap_complete::generate(shell, &mut Arguments::command(), name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The manual page of the program or of one command.
fn manual(command: Option<&str>) -> Result<String, CliError> {
    let mut program = Arguments::command();
    program.build();
    let described = match command {
        None => program,
        Some(name) => {
            let subcommand = program.find_subcommand(name).cloned();
            subcommand.ok_or_else(|| CliError(format!("there is no command `{name}`")))?
        }
    };
    let mut text = Vec::new();
    let source = concat!("plimsoll ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(described).source(source).render(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn healthcheck(config: Option<PathBuf>, data: Option<String>) -> Result<(), CliError> {
    AdminTarget { config, data, ..AdminTarget::default() }.ask(async |client| {
        print::line(client.text("/readyz").await?.trim_end());
        Ok(())
    })
}

fn status_line(
    session: Option<&str>,
    format: line::LineFormat,
    at: &AdminTarget,
) -> Result<(), CliError> {
    let path = line::path(format, session);
    let outcome = at.ask(async |client| sessions::show(&client, &path, at.json).await);
    line::printed(format, outcome)
}

fn back_up(
    file: &std::path::Path,
    config: Option<PathBuf>,
    data: Option<String>,
) -> Result<(), CliError> {
    backup::run(&ConfigFlags { config, data, ..ConfigFlags::default() }.sources(), file)
}

fn execute(command: &Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Serve(settings) => serve::run(&settings.sources())?,
        Command::Check { settings, json } => check::run(&settings.sources(), *json)?,
        Command::Healthcheck { config, data } => healthcheck(config.clone(), data.clone())?,
        Command::Sessions { at, query, watch } => {
            at.show(watch, async |client| sessions::sessions(client, query, at.json).await)?;
        }
        Command::Context { session, thread, count, watch, at } => {
            at.show(watch, async |client| {
                let (session, thread) = (session.as_deref(), thread.as_deref());
                sessions::context(client, session, thread, *count, at.json).await
            })?;
        }
        Command::Explain { request, at } => {
            at.ask(async |client| sessions::explain(&client, request.as_deref(), at.json).await)?;
        }
        Command::Compare { request, with, at } => at.ask(async |client| {
            sessions::compare(&client, request.as_deref(), with.as_deref(), at.json).await
        })?,
        Command::Mcp { at } => mcp::serve(at.sources())?,
        Command::Compact { session, dry_run, focus, at } => {
            let focus = focus.as_deref();
            at.ask(async |client| {
                sessions::compact(&client, session, focus, *dry_run, at.json).await
            })?;
        }
        Command::Savings { session, limit, watch, at } => {
            at.show(watch, async |client| {
                sessions::savings(client, session.as_deref(), *limit, at.json).await
            })?;
        }
        Command::Spend { by, since, csv, watch, at } => {
            at.show(watch, async |client| spend::spend(client, *by, *since, *csv, at.json).await)?;
        }
        Command::Limits { watch, at } => {
            at.show(watch, async |client| {
                sessions::show(client, "/api/v1/limits?", at.json).await
            })?;
        }
        Command::Caps { change, watch, at } => {
            at.show(watch, async |client| change.show(client, at.json).await)?;
        }
        Command::Line { session, format, at } => status_line(session.as_deref(), *format, at)?,
        Command::Models { missing: true, at, .. } => models::missing(at)?,
        Command::Models { names, compare, at, .. } => models::run(at, names, compare.as_deref())?,
        Command::Export { session, options, at } => {
            at.ask(async |client| sessions::export(&client, session.as_deref(), options).await)?;
        }
        Command::Backup { file, config, data } => back_up(file, config.clone(), data.clone())?,
        Command::Say { session, clear: true, at, .. } => {
            at.ask(async |client| say::clear(&client, session, at.json).await)?;
        }
        Command::Say { session, text, remove, at, .. } => {
            at.ask(async |client| {
                say::run(&client, session, text, remove.as_deref(), at.json).await
            })?;
        }
        Command::Lessons { forget, share, at } => {
            let (forget, share) = (forget.as_deref(), share.as_deref());
            at.ask(async |client| lessons::run(&client, forget, share, wall(), at.json).await)?;
        }
        Command::Top { at } => at.ask(async |client| top::run(&client, at.json).await)?,
        Command::Run { settings, options } => return run::run(settings.sources(), options),
        Command::Setup(options) => setup::run(options)?,
        Command::Doctor(options) => return doctor::run(options),
        Command::Service(command) => service::run(command)?,
        Command::Replay(options) => replay::run(options)?,
        Command::Completions { shell } => print::out(&completions(*shell)),
        Command::Man { command } => print::out(&manual(command.as_deref())?),
        #[cfg(feature = "demo")]
        Command::Demo { keep, full, provider } => {
            demo::run(*provider, *keep, *full)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
