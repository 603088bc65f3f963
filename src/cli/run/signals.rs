//! The signals that end a command from outside are passed on to it, and its exit code becomes ours.
//!
//! An interrupt typed at the terminal reaches it directly.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::print::{self, CliError};

/// The signals that end a command from outside.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn catch() -> Result<Self, CliError> {
        // Before the command starts, so that none is lost.
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn wait_for(mut self, mut child: Child) -> Result<ExitStatus, CliError> {
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

pub(super) fn code(status: ExitStatus) -> ExitCode {
    // As in a shell: 128 plus the signal's number if a signal ended the command.
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
