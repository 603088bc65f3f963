//! Faults: what breaks around the program breaks nothing else.
//!
//! `chaos` runs the built program between clients and an upstream that fails in every way at random moments, while
//! its store is locked, its disk is full and it is killed. After each exchange it checks three things: the
//! client got what the upstream sent or a broken end; the upstream got the request once; what was acknowledged
//! is there. `make chaos` runs it for as long as one likes.

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
