//! Attacks: each is tried over real sockets, the way a stranger would; most against the built program.
//!
//! `docs/threats.md` names the strangers and lists what each of these tests shows. A module is one
//! stranger. `make attack` runs them all; those that need a second user id run where the tests run as root,
//! and say so where they do not.

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
