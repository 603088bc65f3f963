//! The binary: arguments in, an exit code out.
//!
//! `src/cli/serve.rs` is the list to read: config → build → serve → drain.

use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;
use plimsoll::cli;

/// A small request is hundreds of allocations, a sixth of its instructions with the system's allocator
/// and a third of that with this one. Without huge pages, which would double what is
/// resident, and of its second line, which gives memory back after 10 ms (the third keeps it for a second): a flood of
/// answers that unfold then takes 180 MiB and not 270. In place of the C library's too, so that what SQLite and zstd free goes
/// back to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match cli::Arguments::try_parse() {
        Ok(arguments) => cli::run(&arguments),
        Err(error) => cli::misused(&error),
    }
}
