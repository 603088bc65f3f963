//! Faults: what breaks around the program breaks nothing else.
//!
//! `chaos` runs the built program between clients and an upstream that fails in every way at random moments, while its
//! store is locked, its disk is full and it is killed. After each exchange it checks three things: the client got what
//! the upstream sent, or a broken end; the upstream got the request once; every acknowledged turn is stored. `make
//! chaos` runs it for as long as you like.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[allow(dead_code, reason = "other targets ask for more")]
#[path = "../cli/program.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod chaos;
mod framing;
mod reused;
mod upstream;
