//! The binary: arguments in, an exit code out.
//!
//! `src/cli/serve.rs` is the list to read: config → build → serve → drain.

use std::process::ExitCode;

use clap::Parser as _;
use plimsoll::cli;

fn main() -> ExitCode {
    cli::run(&cli::Arguments::parse())
}
