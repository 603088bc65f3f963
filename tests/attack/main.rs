//! Attacks: each is tried over real sockets, as a stranger would; most of them against the built program.
//!
//! `docs/threats.md` describes the strangers, `docs/reviewing.md` names the test of each threat. There is one module for
//! each stranger. `make attack` runs all of them. Those that need a second user id run only as root, and otherwise print
//! that they were skipped.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[allow(dead_code, reason = "shared with tests/cli, which uses all of it")]
#[path = "../cli/program.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod admin_page;
mod held;
mod hoarder;
mod neighbour;
mod summary;
mod teacher;
mod tenant;
mod terminal;
mod web_page;
mod working_directory;
